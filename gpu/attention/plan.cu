/**
 * @file plan.cu
 * @brief Builds the plan on the host from the layout's own functions and copies it into the workspace.
 *
 * Read before: plan.h, common/tiles.h.
 */
#include "gpu/attention/plan.h"

#include <algorithm>
#include <stdlib.h>
#include <string.h>

#include "common/tiles.h"

namespace {

/** Tile number and its work, for sorting. */
struct job {
  int32_t tile;
  int64_t work;
};

int32_t tile_count(int32_t rows, int32_t size) { return size == 0 ? 0 : (int32_t)dkv_ceil_div(rows, size); }

/** Rounds up to 16 bytes, so that each array may be read in vectors. */
size_t rounded(size_t bytes) { return (bytes + 15) / 16 * 16; }

/** Order of decreasing work; equal work keeps its order, so the plan is a function of the layout. */
void write_order(job *jobs, int32_t count, int32_t *order) {
  std::sort(jobs, jobs + count,
            [](const job &a, const job &b) { return a.work != b.work ? a.work > b.work : a.tile < b.tile; });
  for (int32_t i = 0; i < count; ++i) order[i] = jobs[i].tile;
}

/** One past the last key that every query row of [i0, i1) sees, among the keys of its first row's path. */
int32_t full_limit(const dkv_layout *layout, int32_t i0, int32_t i1) {
  int32_t s = layout->segment[i0];
  if (layout->subtree_end[s] >= i1) return i0 + 1;
  for (s = layout->parent[s]; s >= 0; s = layout->parent[s])
    if (layout->subtree_end[s] >= i1) return layout->start[s + 1];
  return 0;
}

/** Writes the spans of one query tile; returns how many, at most the layout's depth. */
int32_t tile_spans(const dkv_layout *layout, dkv_gpu_tiling tiling, int32_t tile, dkv_range *ranges,
                   dkv_gpu_span *out) {
  int32_t i0 = tile * tiling.query_rows, i1 = (int32_t)dkv_min((int64_t)i0 + tiling.query_rows, layout->rows);
  int32_t count = dkv_key_ranges(layout, i0, i1, ranges, layout->depth + 1);
  int32_t limit = full_limit(layout, i0, i1), step = tiling.query_step;
  for (int32_t r = 0; r < count; ++r) {
    int32_t begin = ranges[r].begin, full = std::min(limit, ranges[r].end);
    full = full > begin ? begin + (full - begin) / step * step : begin;
    out[r] = dkv_gpu_span{begin, full, ranges[r].end};
  }
  return count;
}

/** Queries of one key tile. */
dkv_gpu_queries tile_queries(const dkv_layout *layout, dkv_gpu_tiling tiling, int32_t tile) {
  int32_t j0 = tile * tiling.key_rows, j1 = (int32_t)dkv_min((int64_t)j0 + tiling.key_rows, layout->rows);
  int32_t step = tiling.key_step, least_end = INT32_MAX;
  for (int32_t j = j0; j < j1; j = layout->start[layout->segment[j] + 1])
    least_end = std::min(least_end, layout->end[j]);
  dkv_gpu_queries q;
  q.query_begin = j0 / step * step;
  q.query_end = dkv_query_range(layout, j0, j1).end;
  q.full_begin = (int32_t)(dkv_ceil_div(j1 - 1, step) * step);
  q.full_end = least_end / step * step;
  bool has_full = j1 - j0 == tiling.key_rows && q.full_begin < q.full_end;
  if (!has_full) q.full_begin = q.full_end = (int32_t)dkv_min(dkv_ceil_div(q.query_end, step) * step, INT32_MAX);
  return q;
}

/** Host image of a plan, with the same offsets as on the device. */
struct image {
  int32_t *end, *key_order, *span_first, *query_order;
  dkv_gpu_queries *queries;
  dkv_gpu_span *spans;
};

/** Offsets of the arrays; returns those of the spans, which come last. */
size_t place(int32_t rows, dkv_gpu_tiling tiling, char *memory, image *out) {
  size_t query_tiles = (size_t)tile_count(rows, tiling.query_rows),
         key_tiles = (size_t)tile_count(rows, tiling.key_rows);
  size_t at = 0;
  auto take = [&](size_t bytes) {
    char *here = memory + at;
    at += rounded(bytes);
    return here;
  };
  out->end = (int32_t *)take((size_t)rows * sizeof(int32_t));
  out->queries = (dkv_gpu_queries *)take(key_tiles * sizeof(dkv_gpu_queries));
  out->key_order = (int32_t *)take(key_tiles * sizeof(int32_t));
  out->span_first = (int32_t *)take((query_tiles + 1) * sizeof(int32_t));
  out->query_order = (int32_t *)take(query_tiles * sizeof(int32_t));
  out->spans = (dkv_gpu_span *)(memory + at);
  return at;
}

void build_keys(const dkv_layout *layout, dkv_gpu_tiling tiling, image host, job *jobs) {
  int32_t tiles = tile_count(layout->rows, tiling.key_rows);
  for (int32_t t = 0; t < tiles; ++t) {
    host.queries[t] = tile_queries(layout, tiling, t);
    jobs[t] = job{t, (int64_t)host.queries[t].query_end - host.queries[t].query_begin};
  }
  write_order(jobs, tiles, host.key_order);
}

/** Returns how many spans there are: often far fewer than there is room for, for touching ones are merged. */
int32_t build_queries(const dkv_layout *layout, dkv_gpu_tiling tiling, image host, job *jobs, dkv_range *ranges) {
  int32_t tiles = tile_count(layout->rows, tiling.query_rows), used = 0;
  for (int32_t t = 0; t < tiles; ++t) {
    host.span_first[t] = used;
    int32_t count = tile_spans(layout, tiling, t, ranges, host.spans + used);
    jobs[t] = job{t, 0};
    for (int32_t s = used; s < used + count; ++s) jobs[t].work += host.spans[s].end - host.spans[s].begin;
    used += count;
  }
  host.span_first[tiles] = used;
  write_order(jobs, tiles, host.query_order);
  return used;
}

} // namespace

size_t dkv_gpu_plan_bytes(const dkv_layout *layout, dkv_gpu_tiling tiling) {
  image offsets;
  size_t spans = (size_t)tile_count(layout->rows, tiling.query_rows) * (size_t)layout->depth;
  return place(layout->rows, tiling, nullptr, &offsets) + rounded(spans * sizeof(dkv_gpu_span));
}

dkv_status dkv_gpu_plan_upload(const dkv_layout *layout, dkv_gpu_tiling tiling, void *memory, void *stream) {
  size_t bytes = dkv_gpu_plan_bytes(layout, tiling);
  int64_t spans = (int64_t)tile_count(layout->rows, tiling.query_rows) * layout->depth;
  DKV_REQUIRE(spans <= INT32_MAX, DKV_ERR_RANGE, "gpu: up to %lld key spans; a plan numbers at most %d",
              (long long)spans, INT32_MAX);
  int32_t jobs_needed =
      std::max(tile_count(layout->rows, tiling.query_rows), tile_count(layout->rows, tiling.key_rows));
  char *staging = (char *)calloc(bytes, 1);
  job *jobs = (job *)malloc(((size_t)jobs_needed + 1) * sizeof *jobs);
  dkv_range *ranges = (dkv_range *)malloc(((size_t)layout->depth + 1) * sizeof *ranges);
  dkv_status status = DKV_OK;
  if (!staging || !jobs || !ranges) {
    status = dkv_fail(DKV_ERR_NOMEM, "gpu: no host memory for a plan of %zu bytes", bytes);
  } else {
    image host;
    size_t used = place(layout->rows, tiling, staging, &host);
    memcpy(host.end, layout->end, (size_t)layout->rows * sizeof *host.end);
    build_keys(layout, tiling, host, jobs);
    used += (size_t)build_queries(layout, tiling, host, jobs, ranges) * sizeof(dkv_gpu_span);
    cudaError_t error = cudaMemcpyAsync(memory, staging, used, cudaMemcpyHostToDevice, (cudaStream_t)stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize((cudaStream_t)stream); /* staging is freed below */
    if (error != cudaSuccess) status = dkv_gpu_fail(error, "copying the plan");
  }
  free(staging);
  free(jobs);
  free(ranges);
  return status;
}

dkv_gpu_plan dkv_gpu_plan_view(int32_t rows, dkv_gpu_tiling tiling, const void *memory) {
  image at;
  place(rows, tiling, (char *)memory, &at);
  return dkv_gpu_plan{at.end,
                      at.queries,
                      at.key_order,
                      at.span_first,
                      at.query_order,
                      at.spans,
                      tile_count(rows, tiling.query_rows),
                      tile_count(rows, tiling.key_rows)};
}
