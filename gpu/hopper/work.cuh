/**
 * @file work.cuh
 * @brief What a persistent forward kernel has to do: for every tile of query rows the tiles of keys that it sees.
 *
 * Queries and keys lie on fixed grids of T rows.  A query tile visits the key tiles that hold at least one visible
 * pair, the masked ones first and then the full ones, each as runs of consecutive tiles:
 *
 *     rows 0..127      prompt      |  masked {0, 1}                           run = {first key tile,
 *     rows 640..767    response a  |  masked {5, 1}   full {0, 3}, {4, 1}             number of tiles}
 *
 * With the masked steps in front, the kernel's main loop knows nothing about prompts, responses, groups or trees; any
 * number of key ranges is a list of runs.  The mask itself is one array: reach[j] = end[j] - j (0 at and past T), so
 * that row i sees row j exactly when (uint32_t)(i - j) < reach[j].
 *
 * Query tiles are listed by falling cost.  A work item is (key head, place in the list, query head of that key head),
 * counted in this order: the query heads that share keys run side by side, one key head's keys and values stay in L2,
 * and the short items come last.  Items are handed out by a counter which returns to 0 by itself when all are done.
 *
 *     workspace:  counter (256 bytes) | a vector of 4 + keys numbers for every key tile | tiles | runs
 *
 * The vector of a key tile is what a masked step needs: its first row (then three zeros, for alignment) and reach[].
 *
 * Read before: common/tiles.h.  Read next: gpu/attention/fwd_7_hopper.cu.
 */
#ifndef DKV_WORK_CUH
#define DKV_WORK_CUH

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "common/tiles.h"
#include "gpu/runtime/buffers.h"
#include "gpu/runtime/device.h"

/** One query tile and its steps. */
struct alignas(16) dkv_query_tile {
  int32_t row;    /**< first query row */
  int32_t masked; /**< key tiles with mask code, first in the runs; at least one: the tile that holds the diagonal */
  int32_t full;   /**< key tiles without */
  int32_t run;    /**< index of the first run */
};

/** Consecutive key tiles. */
struct alignas(8) dkv_key_run {
  int32_t first; /**< first key tile */
  int32_t count; /**< number of key tiles, > 0 */
};

/** Numbers before the reach in a key tile's vector. */
#define DKV_WORK_HEAD 4

/** The lists of a workspace, as a kernel gets them. */
struct dkv_work {
  uint32_t *counter;           /**< next item to hand out; 0 between launches */
  const uint32_t *vectors;     /**< [key tiles][DKV_WORK_HEAD + keys] first row, 0, 0, 0, reach of each key */
  const dkv_query_tile *tiles; /**< [tile_count] by falling cost */
  const dkv_key_run *runs;     /**< runs of all tiles */
  int32_t tile_count;          /**< query tiles */
};

/** The lists inside `workspace` for T rows and query tiles of `rows`, key tiles of `keys`. */
static inline dkv_work dkv_work_view(void *workspace, int32_t total, int32_t rows, int32_t keys) {
  uint8_t *base = static_cast<uint8_t *>(workspace);
  const int64_t tiles = dkv_ceil_div(total, rows),
                tiles_at = 256 + dkv_ceil_div(total, keys) * (DKV_WORK_HEAD + keys) * 4;
  dkv_work work;
  work.counter = reinterpret_cast<uint32_t *>(base);
  work.vectors = reinterpret_cast<const uint32_t *>(base + 256);
  work.tiles = reinterpret_cast<const dkv_query_tile *>(base + tiles_at);
  work.runs = reinterpret_cast<const dkv_key_run *>(base + tiles_at + tiles * (int64_t)sizeof(dkv_query_tile));
  work.tile_count = (int32_t)tiles;
  return work;
}

/** What the list builder keeps at hand: the extreme ends of every key tile, room for the key ranges of a query tile. */
struct dkv_work_builder {
  const dkv_layout *layout;
  int32_t rows, keys;
  int32_t *nearest;  /**< [key tiles] smallest end[j] */
  int32_t *farthest; /**< [key tiles] largest end[j] */
  dkv_range *ranges; /**< [depth + 1] */
};

/** Class of key tile `tile` for query rows [i0, i1), as dkv_tile_classify, in O(1). A tile that passes T is never full.
 */
static inline dkv_tile_class dkv_work_class(const dkv_work_builder *b, int32_t i0, int32_t i1, int64_t tile) {
  const int64_t j0 = tile * b->keys, j1 = j0 + b->keys;
  if (j0 >= i1 || b->farthest[tile] <= i0) return DKV_TILE_EMPTY;
  if (j1 <= b->layout->rows && j1 - 1 <= i0 && b->nearest[tile] >= i1) return DKV_TILE_FULL;
  return DKV_TILE_PARTIAL;
}

/** Appends the runs of one class to runs[count...] (NULL: only counts them); adds their tiles to *steps. @return new
 * count. */
static inline int64_t dkv_work_runs(const dkv_work_builder *b, int32_t i0, int32_t i1, int32_t range_count,
                                    dkv_tile_class wanted, dkv_key_run *runs, int64_t count, int32_t *steps) {
  int64_t next = 0, last = -2; /* first key tile not visited yet (ranges may share one); last tile of the open run */
  for (int32_t r = 0; r < range_count; ++r) {
    for (next = dkv_max(next, b->ranges[r].begin / b->keys); next * b->keys < b->ranges[r].end; ++next) {
      if (dkv_work_class(b, i0, i1, next) != wanted) continue;
      if (next != last + 1) {
        if (runs != nullptr) runs[count] = {(int32_t)next, 0};
        ++count;
      }
      if (runs != nullptr) ++runs[count - 1].count;
      last = next;
      ++*steps;
    }
  }
  return count;
}

/** Writes tiles and runs, both may be NULL. @return number of runs. */
static inline int64_t dkv_work_lists(const dkv_work_builder *b, dkv_query_tile *tiles, dkv_key_run *runs) {
  int64_t count = 0;
  const int64_t tile_count = dkv_ceil_div(b->layout->rows, b->rows);
  for (int64_t t = 0; t < tile_count; ++t) {
    const int32_t i0 = (int32_t)(t * b->rows), i1 = (int32_t)dkv_min((int64_t)i0 + b->rows, b->layout->rows);
    const int32_t ranges = dkv_key_ranges(b->layout, i0, i1, b->ranges, b->layout->depth + 1);
    dkv_query_tile tile = {i0, 0, 0, (int32_t)count};
    count = dkv_work_runs(b, i0, i1, ranges, DKV_TILE_PARTIAL, runs, count, &tile.masked);
    count = dkv_work_runs(b, i0, i1, ranges, DKV_TILE_FULL, runs, count, &tile.full);
    if (tiles != nullptr) tiles[t] = tile;
  }
  return count;
}

/** Order of the list: most steps first, then by row. */
static inline int dkv_work_compare(const void *a, const void *b) {
  const dkv_query_tile *x = static_cast<const dkv_query_tile *>(a), *y = static_cast<const dkv_query_tile *>(b);
  const int32_t cost_x = x->masked + x->full, cost_y = y->masked + y->full;
  if (cost_x != cost_y) return cost_x > cost_y ? -1 : 1;
  return x->row < y->row ? -1 : 1;
}

/** Allocates and fills a builder. @return DKV_OK or DKV_ERR_NOMEM; dkv_work_builder_free in either case. */
static inline dkv_status dkv_work_builder_make(dkv_work_builder *b, const dkv_layout *layout, int32_t rows,
                                               int32_t keys) {
  const int64_t tiles = dkv_ceil_div(layout->rows, keys);
  *b = {layout, rows, keys, nullptr, nullptr, nullptr};
  b->nearest = static_cast<int32_t *>(malloc((size_t)(tiles + 1) * sizeof(int32_t)));
  b->farthest = static_cast<int32_t *>(malloc((size_t)(tiles + 1) * sizeof(int32_t)));
  b->ranges = static_cast<dkv_range *>(malloc(((size_t)layout->depth + 1) * sizeof(dkv_range)));
  DKV_REQUIRE(b->nearest != nullptr && b->farthest != nullptr && b->ranges != nullptr, DKV_ERR_NOMEM,
              "no memory for the tile lists of %d rows", layout->rows);
  for (int64_t j = 0; j < layout->rows; ++j) {
    const int64_t t = j / keys;
    const int32_t end = layout->end[j];
    if (j % keys == 0 || end < b->nearest[t]) b->nearest[t] = end;
    if (j % keys == 0 || end > b->farthest[t]) b->farthest[t] = end;
  }
  return DKV_OK;
}

/** Releases a builder's arrays. */
static inline void dkv_work_builder_free(dkv_work_builder *b) {
  free(b->nearest);
  free(b->farthest);
  free(b->ranges);
}

/**
 * Most runs of all query tiles, from T and the depth alone.  A query tile has at most 3 depth + 5: an ancestor's range
 * is a masked, a full and a masked run; its own range ends in the masked diagonal; and no key tile is in two runs.
 */
static inline int64_t dkv_work_most_runs(const dkv_layout *layout, int32_t rows, int32_t keys) {
  return dkv_ceil_div(layout->rows, rows) * dkv_min(3 * (int64_t)layout->depth + 5, dkv_ceil_div(layout->rows, keys));
}

/**
 * Bytes of workspace that the lists may need, from T and the depth alone, so that run() can check them without the
 * layout's arrays.
 * @param[in] layout rows and depth are read
 * @param[in] rows   query rows of a tile
 * @param[in] keys   keys of a tile
 * @return bytes; 0 when T = 0
 */
static inline size_t dkv_work_bytes(const dkv_layout *layout, int32_t rows, int32_t keys) {
  if (layout->rows == 0) return 0;
  const dkv_work view = dkv_work_view(nullptr, layout->rows, rows, keys);
  return reinterpret_cast<size_t>(view.runs) + (size_t)dkv_work_most_runs(layout, rows, keys) * sizeof(dkv_key_run);
}

/** A workspace of `bytes` that prepare() or run() was given. @return as dkv_gpu_space_check; DKV_ERR_RANGE (more than
 * 2^31 runs) */
static inline dkv_status dkv_work_check(const void *workspace, size_t bytes, const dkv_layout *layout, int32_t rows,
                                        int32_t keys) {
  const int64_t runs = dkv_work_most_runs(layout, rows, keys);
  DKV_REQUIRE(runs <= INT32_MAX, DKV_ERR_RANGE, "gpu: up to %lld runs of key tiles; the lists number at most %d",
              (long long)runs, INT32_MAX);
  return dkv_gpu_space_check(workspace, bytes, dkv_work_bytes(layout, rows, keys));
}

/**
 * Builds the lists in host memory; the counter is 0.
 * @param[out] host   [dkv_work_bytes], zeroed by the caller
 * @param[out] used   bytes from the start that hold something
 * @param[in]  layout the layout, T >= 1
 * @param[in]  rows,keys as for dkv_work_bytes
 * @return DKV_OK; DKV_ERR_NOMEM
 */
static inline dkv_status dkv_work_fill(void *host, size_t *used, const dkv_layout *layout, int32_t rows, int32_t keys) {
  dkv_work_builder builder;
  const dkv_status status = dkv_work_builder_make(&builder, layout, rows, keys);
  if (status == DKV_OK) {
    const dkv_work view = dkv_work_view(host, layout->rows, rows, keys);
    uint32_t *vectors = const_cast<uint32_t *>(view.vectors);
    dkv_query_tile *tiles = const_cast<dkv_query_tile *>(view.tiles);
    for (int32_t j = 0; j < layout->rows; ++j) {
      uint32_t *vector = vectors + (int64_t)(j / keys) * (DKV_WORK_HEAD + keys);
      if (j % keys == 0) vector[0] = (uint32_t)j;
      vector[DKV_WORK_HEAD + j % keys] = (uint32_t)(layout->end[j] - j);
    }
    const int64_t runs = dkv_work_lists(&builder, tiles, const_cast<dkv_key_run *>(view.runs));
    qsort(tiles, (size_t)view.tile_count, sizeof *tiles, dkv_work_compare);
    *used = (size_t)(reinterpret_cast<const uint8_t *>(view.runs + runs) - static_cast<const uint8_t *>(host));
  }
  dkv_work_builder_free(&builder);
  return status;
}

/**
 * Builds the lists and copies them into the workspace; returns when they are there.
 * @param[out] workspace device memory of at least dkv_work_bytes
 * @param[in]  bytes     its size
 * @param[in]  layout    the layout, T >= 1
 * @param[in]  rows,keys as for dkv_work_bytes
 * @param[in]  stream    the copy's stream
 * @return DKV_OK; as dkv_work_check; DKV_ERR_NOMEM (host memory); DKV_ERR_CUDA
 */
static inline dkv_status dkv_work_write(void *workspace, size_t bytes, const dkv_layout *layout, int32_t rows,
                                        int32_t keys, cudaStream_t stream) {
  DKV_TRY(dkv_work_check(workspace, bytes, layout, rows, keys));
  size_t used = 0;
  void *host = calloc(1, dkv_work_bytes(layout, rows, keys));
  DKV_REQUIRE(host != nullptr, DKV_ERR_NOMEM, "no memory for the tile lists of %d rows", layout->rows);
  dkv_status status = dkv_work_fill(host, &used, layout, rows, keys);
  if (status == DKV_OK) {
    cudaError_t error = cudaMemcpyAsync(workspace, host, used, cudaMemcpyHostToDevice, stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream); /* host is freed below */
    if (error != cudaSuccess) status = dkv_gpu_fail(error, "copying tile lists");
  }
  free(host);
  return status;
}

#endif
