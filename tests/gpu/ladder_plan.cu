/**
 * @file ladder_plan.cu
 * @brief Checks the plan of the ladder (plan.h) on random forests, row by row, on the host: no GPU is needed.
 *
 * For every tiling that a rung uses: the spans of a query tile are in order, hold every key that one of its rows sees,
 * and are seen by all of its rows up to full_end, a whole number of steps on; tiles of one row hold visible keys only.
 * The queries of a key tile hold every row that sees one of its keys, start on the grid, and are full where they say
 * so.  The orders name each tile once, most work first; nothing is written past dkv_gpu_plan_bytes.
 *
 * The copy to the device is replaced by one within the host.  Exit code 0: all plans passed.
 *
 * Read before: gpu/attention/plan.h.
 */
#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>

#include <vector>

static cudaError_t copy_within_host(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  memcpy(to, from, bytes);
  return cudaSuccess;
}
static cudaError_t nothing_to_wait_for(cudaStream_t) { return cudaSuccess; }
#define cudaMemcpyAsync copy_within_host
#define cudaStreamSynchronize nothing_to_wait_for
#include "gpu/attention/plan.cu"

static unsigned state = 1;
static int draw(int n) { return (int)((state = state * 1664525u + 1013904223u) >> 8) % n; }

/** A random forest; every fourth a deep chain, every fourth a crowd of tiny segments. */
static void draw_forest(int trial, std::vector<int32_t> *parent, std::vector<int32_t> *length) {
  const int kind = trial % 4, segments = kind < 2 ? 1 + draw(12) : 20 + draw(300);
  const int longest = kind < 2 ? 1 + draw(400) : 1 + draw(4);
  for (int s = 0; s < segments; ++s) {
    int32_t p = s - 1;
    for (int up = kind == 2 ? draw(20) == 0 : draw(4); up > 0 && p >= 0; --up) p = (*parent)[(size_t)p];
    parent->push_back(p);
    length->push_back(draw(4) == 0 ? 0 : draw(longest + 1));
  }
}

static int wrong, full_steps, masked_steps;
static void expect(bool ok, const char *rule, const dkv_layout *layout, int32_t tile) {
  if (!ok && wrong++ < 10) printf("WRONG: %s (tile %d of T = %d)\n", rule, tile, layout->rows);
}

/** Is `order` a permutation with falling work? */
template <class Work> static bool is_order(const int32_t *order, int32_t tiles, Work work) {
  std::vector<bool> seen((size_t)tiles);
  for (int32_t n = 0; n < tiles; ++n) {
    if (order[n] < 0 || order[n] >= tiles || seen[(size_t)order[n]]) return false;
    seen[(size_t)order[n]] = true;
    if (n > 0 && work(order[n - 1]) < work(order[n])) return false;
  }
  return true;
}

static void check_query_tile(const dkv_layout *layout, dkv_gpu_tiling tiling, dkv_gpu_plan plan, int32_t tile) {
  const int32_t i0 = tile * tiling.query_rows, i1 = std::min(i0 + tiling.query_rows, layout->rows);
  int32_t after = 0; /* keys before it are in an earlier span, or have been looked at */
  auto any_sees = [&](int32_t j) { return std::max(i0, j) < std::min(i1, layout->end[j]); };
  expect(plan.span_first[tile] < plan.span_first[tile + 1], "a row sees itself at least", layout, tile);
  for (int32_t n = plan.span_first[tile]; n < plan.span_first[tile + 1]; ++n) {
    const dkv_gpu_span s = plan.spans[n];
    expect(after <= s.begin && s.begin < s.end && s.end <= i1, "spans in order, none empty", layout, tile);
    for (; after < s.begin; ++after) expect(!any_sees(after), "no visible key between spans", layout, tile);
    expect(s.begin <= s.full_end && s.full_end <= s.end && (s.full_end - s.begin) % tiling.query_step == 0,
           "full keys are whole steps", layout, tile);
    for (int32_t j = s.begin; j < s.full_end; ++j)
      expect(j <= i0 && layout->end[j] >= i1, "all rows see a full key", layout, tile);
    for (int32_t j = s.begin; j < s.end && tiling.query_rows == 1; ++j)
      expect(any_sees(j), "a tile of one row has visible keys only", layout, tile);
    full_steps += (s.full_end - s.begin) / tiling.query_step;
    masked_steps += s.end > s.full_end;
    after = s.end;
  }
  expect(after == i1, "the last span ends with the tile", layout, tile);
}

static void check_key_tile(const dkv_layout *layout, dkv_gpu_tiling tiling, dkv_gpu_plan plan, int32_t tile) {
  const int32_t j0 = tile * tiling.key_rows, j1 = std::min(j0 + tiling.key_rows, layout->rows), step = tiling.key_step;
  const dkv_gpu_queries q = plan.queries[tile];
  int32_t last = 0, least = layout->rows;
  for (int32_t j = j0; j < j1; ++j) last = std::max(last, layout->end[j]), least = std::min(least, layout->end[j]);
  expect(q.query_begin % step == 0 && q.query_begin <= j0 && j0 - q.query_begin < step, "the grid row of the first key",
         layout, tile);
  expect(q.query_end == last, "queries end with the last row that sees a key", layout, tile);
  expect(q.full_begin % step == 0 && q.full_end % step == 0 && q.full_begin <= q.full_end, "full runs on the grid",
         layout, tile);
  if (q.full_begin < q.full_end)
    expect(j1 - j0 == tiling.key_rows && q.full_begin >= j1 - 1 && q.full_end <= least, "full queries see every key",
           layout, tile);
  else expect(q.full_begin >= q.query_end, "without full queries every step is masked", layout, tile);
}

static void check_plan(const dkv_layout *layout, dkv_gpu_tiling tiling) {
  const size_t bytes = dkv_gpu_plan_bytes(layout, tiling);
  std::vector<char> memory(bytes + 64, 0x5a);
  char *at = memory.data();
  if (dkv_gpu_plan_upload(layout, tiling, at, nullptr) != DKV_OK) {
    expect(false, dkv_last_error(), layout, 0);
    return;
  }
  for (size_t b = bytes; b < bytes + 64; ++b) expect(memory[b] == 0x5a, "nothing past the plan", layout, 0);
  const dkv_gpu_plan plan = dkv_gpu_plan_view(layout->rows, tiling, at);
  expect(memcmp(plan.end, layout->end, (size_t)layout->rows * 4) == 0, "end[] is the layout's", layout, 0);
  for (int32_t tile = 0; tile < plan.query_tiles; ++tile) check_query_tile(layout, tiling, plan, tile);
  for (int32_t tile = 0; tile < plan.key_tiles; ++tile) check_key_tile(layout, tiling, plan, tile);
  auto keys = [&](int32_t tile) {
    int64_t sum = 0;
    for (int32_t n = plan.span_first[tile]; n < plan.span_first[tile + 1]; ++n)
      sum += plan.spans[n].end - plan.spans[n].begin;
    return sum;
  };
  auto queries = [&](int32_t tile) { return plan.queries[tile].query_end - plan.queries[tile].query_begin; };
  expect(is_order(plan.query_order, plan.query_tiles, keys), "query tiles once, most keys first", layout, 0);
  expect(is_order(plan.key_order, plan.key_tiles, queries), "key tiles once, longest first", layout, 0);
}

int main(void) {
  /* naive; warp; shared; mma and pipeline; backward shared for D <= 128 and above; backward mma */
  static const dkv_gpu_tiling tilings[] = {{0, 0, 0, 0},     {1, 1, 0, 0},     {64, 32, 0, 0}, {128, 64, 0, 0},
                                           {64, 32, 64, 32}, {32, 32, 32, 32}, {0, 0, 128, 64}};
  int plans = 0;
  for (int trial = 0; trial < 400; ++trial) {
    std::vector<int32_t> parent, length;
    draw_forest(trial, &parent, &length);
    dkv_layout layout;
    if (dkv_layout_forest(&layout, (int32_t)parent.size(), parent.data(), length.data()) != DKV_OK)
      return printf("forest: %s\n", dkv_last_error()), 1;
    for (const dkv_gpu_tiling &tiling : tilings)
      if (layout.rows > 0) check_plan(&layout, tiling), ++plans;
    dkv_layout_free(&layout);
  }
  printf("%d plans, %d full steps, %d masked runs, %d broken rules\n", plans, full_steps, masked_steps, wrong);
  return wrong != 0 || full_steps == 0 || masked_steps == 0;
}
