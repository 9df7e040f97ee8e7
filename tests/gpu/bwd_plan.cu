/**
 * @file bwd_plan.cu
 * @brief Checks the plan of the Hopper backward on random forests, on the host: no GPU is needed.
 *
 * Every step of every key tile that holds a visible pair belongs to exactly one item; full steps are full by the rule
 * of mask.h; parts share a slot and count up; turns of a step are 0, 1, 2, ... in list order; no list is longer than
 * the bounds that run() knows from T alone.  Exit code 0: all plans passed.
 *
 * Read before: gpu/attention/bwd_5_plan.cuh.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/tiles.h"
#include "gpu/attention/bwd_5_plan.cuh"

static unsigned state = 1;
static int draw(int n) { return (int)((state = state * 1664525u + 1013904223u) >> 8) % n; }

/** A random forest in depth-first order: each parent is the previous segment, one of its ancestors, or none. */
static void draw_forest(std::vector<int32_t> *parent, std::vector<int32_t> *length) {
  const int segments = 1 + draw(12), longest = draw(3) == 0 ? 2000 : 200;
  for (int s = 0; s < segments; s++) {
    int32_t p = s - 1;
    for (int up = draw(4); up > 0 && p >= 0; up--) p = (*parent)[p];
    parent->push_back(p);
    length->push_back(draw(5) == 0 ? 0 : draw(longest));
  }
}

static int wrong;
static void expect(bool ok, const char *rule) {
  if (!ok && wrong++ < 10) printf("WRONG: %s\n", rule);
}

/** The lengths of a plan's lists against the bounds from T and the heads. */
static void check_bounds(const dkv_bwd5_plan &plan, const dkv_attention &a, int32_t queries) {
  const int64_t rows = a.layout->rows;
  int64_t steps = 0;
  for (const dkv_bwd5_item &item : plan.items) steps += item.last - item.first;
  expect(steps <= dkv_bwd5_most_steps(rows, queries), "no more steps than the bound");
  expect((int64_t)plan.items.size() <= dkv_bwd5_most_items(rows, queries, a.heads, a.kv_heads),
         "no more items than the bound");
  expect(plan.slots <= dkv_bwd5_most_slots(rows, a.heads, a.kv_heads), "the slots fit into dq");
  expect((int64_t)plan.slots * a.kv_heads * 2 * DKV_BWD5_KEYS * 4 <= rows * a.heads * 2, "and really do");
}

/** The items of one plan against the layout, pair by pair of tiles. */
static void check_plan(const dkv_bwd5_plan &plan, const dkv_layout *layout, int32_t queries) {
  std::vector<int32_t> covered((size_t)plan.tiles * plan.blocks), visits(plan.blocks), parts(plan.slots);
  for (const dkv_bwd5_item &item : plan.items) {
    expect(item.first <= item.full && item.full <= item.full_end && item.full_end <= item.last, "runs are in order");
    expect(item.first < item.last, "no item is empty");
    if (item.slot >= 0)
      expect(item.part == parts[item.slot]++ && plan.slot_tiles[item.slot] == item.tile, "parts count up");
    for (int32_t step = item.first; step < item.last; step++) {
      const int32_t i0 = step * queries, i1 = std::min(i0 + queries, layout->rows);
      const int32_t j0 = item.tile * DKV_BWD5_KEYS, j1 = std::min(j0 + DKV_BWD5_KEYS, layout->rows);
      const dkv_tile_class kind = dkv_tile_classify(layout, i0, i1, j0, j1);
      const bool full = step >= item.full && step < item.full_end;
      covered[(size_t)item.tile * plan.blocks + step]++;
      expect(!full || (kind == DKV_TILE_FULL && i1 - i0 == queries && j1 - j0 == DKV_BWD5_KEYS), "a full step is full");
      expect(plan.rank[item.rank + step] == visits[step]++, "turns follow the list");
    }
  }
  for (int32_t tile = 0; tile < plan.tiles; tile++)
    for (int32_t step = 0; step < plan.blocks; step++) {
      const int32_t i0 = step * queries, j0 = tile * DKV_BWD5_KEYS;
      const bool seen = dkv_tile_classify(layout, i0, std::min(i0 + queries, layout->rows), j0,
                                          std::min(j0 + DKV_BWD5_KEYS, layout->rows)) != DKV_TILE_EMPTY;
      const int32_t count = covered[(size_t)tile * plan.blocks + step];
      expect(count == 1 || (count == 0 && !seen), "every step with a visible pair is done exactly once");
    }
}

int main(void) {
  int plans = 0, cut = 0;
  for (int trial = 0; trial < 400; trial++) {
    std::vector<int32_t> parent, length;
    draw_forest(&parent, &length);
    dkv_layout layout;
    if (dkv_layout_forest(&layout, (int32_t)parent.size(), parent.data(), length.data()) != DKV_OK)
      return printf("forest: %s\n", dkv_last_error()), 1;
    const int32_t queries = trial % 2 ? 80 : 128;
    dkv_attention problem = {};
    problem.layout = &layout;
    problem.kv_heads = 1 + draw(3);
    problem.heads = problem.kv_heads * (draw(20) == 0 ? 300 : 1 + draw(8));
    problem.deterministic = true;
    dkv_bwd5_plan plan;
    if (layout.rows > 0) {
      if (dkv_bwd5_make_plan(&plan, &problem, queries) != DKV_OK) return printf("plan: %s\n", dkv_last_error()), 1;
      check_plan(plan, &layout, queries);
      check_bounds(plan, problem, queries);
      plans++, cut += plan.slots > 0;
    }
    dkv_layout_free(&layout);
  }
  printf("%d plans, %d with cut tiles, %d broken rules\n", plans, cut, wrong);
  return wrong != 0 || cut == 0;
}
