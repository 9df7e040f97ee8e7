/**
 * @file bwd_5_plan.cuh
 * @brief Host side of the key-stationary backward: which (key tile, query chunk) items there are, and in which order.
 *
 * A tile of 128 keys [j0, j1) is seen by the query rows [j0, last end[j]), cut into steps on one fixed grid.  With rule
 * j <= i < end[j] the steps of a tile form three runs, whatever the layout (no step in between is empty: every row sees
 * itself and everything up to the tile's largest end):
 *
 *     step    first ........ full .................... full_end ........ last
 *             |  partial     |  every pair visible     |  partial        |
 *             diagonal       from row j1 - 1 on        past the smallest end
 *
 * Long runs are cut at absolute multiples of `chunk` steps: the CTAs at work at one time then share a window of Q, dO
 * and dQ rows that stays in the L2 cache, and no item is so long that the last one keeps the card waiting.  A tile that
 * is cut adds its parts to an fp32 slot; a tile that is not cut rounds its dK, dV once and stores them.  Slots live in
 * the dq output, so there are only as many as fit (all tiles when H >= 4 Hkv); the longest tiles come first.
 *
 * Order: first the parts of cut tiles, then the whole tiles, so that short items fill the end of the queue; each by
 * chunk, long ones first.  The queue runs through the early items for every key head, then through the late ones for
 * every key head; the list is the same for all of them.
 *
 * Read before: common/mask.h, common/tiles.h.  Read next: bwd_5_config.cuh.
 */
#ifndef DKV_BWD_5_PLAN_CUH
#define DKV_BWD_5_PLAN_CUH

#include <algorithm>
#include <functional>
#include <new>
#include <queue>
#include <stdint.h>
#include <vector>

#include "common/attention.h"

/** Keys of a tile. */
#define DKV_BWD5_KEYS 128
/** Multiprocessors that the cut into chunks is balanced for; another number only costs balance. */
#define DKV_BWD5_PROCESSORS 132
/** Most steps of a chunk, over the query heads of a key head: their rows of Q, dO and dQ stay in the L2 cache. */
#define DKV_BWD5_CHUNK 256
/** The same where key tiles take turns, until a chunk is 1/128 of a multiprocessor's work: a tile that waits makes
 * others wait, and shorter items start them closer to each other. */
#define DKV_BWD5_CHUNK_ORDERED 128
/** Most steps, of all heads, that ordered plans are tried with before one is chosen. */
#define DKV_BWD5_PAPER 200000

/** One work item of every key head: a key tile against the query steps [first, last), all query heads of the key head.
 */
struct dkv_bwd5_item {
  int32_t tile;     /**< key rows 128 tile .. 128 tile + 127 */
  int32_t first;    /**< first query step */
  int32_t full;     /**< from here on every pair is visible ... */
  int32_t full_end; /**< ... up to here; first <= full <= full_end <= last */
  int32_t last;     /**< one past the last query step */
  int32_t slot;     /**< fp32 slot that the parts of this tile add to, -1: the tile is not cut */
  int32_t part;     /**< which part of its tile */
  int32_t unused;   /**< 0 */
  int64_t rank;     /**< ordered mode: the turn of step s is number rank + s of the table */
};

/** The whole plan. */
struct dkv_bwd5_plan {
  std::vector<dkv_bwd5_item> items;
  std::vector<int32_t> rank;       /**< [sum of steps] turn of each (item, step) at its dQ block; filled on request */
  std::vector<int32_t> slot_tiles; /**< [slots] key tile of each slot */
  std::vector<int32_t> end;        /**< [tiles * 128] end[j]; j itself past the rows, so that nobody sees those */
  int32_t slots = 0;               /**< tiles that are cut */
  int32_t early = 0;               /**< items that are handed out, for every key head, before the others */
  int32_t blocks = 0;              /**< ceil(T / queries) */
  int32_t tiles = 0;               /**< ceil(T / 128) */
};

/** The item of a whole key tile: its three runs of steps of `queries` rows. */
static inline dkv_bwd5_item dkv_bwd5_tile(const dkv_layout *layout, int32_t tile, int32_t queries) {
  const int32_t j0 = tile * DKV_BWD5_KEYS;
  const int32_t j1 = (int32_t)std::min<int64_t>((int64_t)j0 + DKV_BWD5_KEYS, layout->rows);
  int32_t low = layout->end[j0], high = low;
  for (int32_t j = j0; j < j1; j++) {
    low = std::min(low, layout->end[j]);
    high = std::max(high, layout->end[j]);
  }
  dkv_bwd5_item item = {};
  item.tile = tile;
  item.slot = -1;
  item.first = j0 / queries;
  item.last = (int32_t)dkv_ceil_div(high, queries);
  item.full = item.full_end = item.last;
  if (j1 - j0 == DKV_BWD5_KEYS) { /* a tile over the end of the rows is masked throughout */
    item.full = (int32_t)std::min<int64_t>(dkv_ceil_div(j1 - 1, queries), item.last);
    item.full_end = std::max(item.full, low / queries);
  }
  return item;
}

/** The part of `whole` inside steps [begin, end). */
static inline dkv_bwd5_item dkv_bwd5_cut(const dkv_bwd5_item &whole, int32_t begin, int32_t end) {
  dkv_bwd5_item part = whole;
  part.first = std::max(whole.first, begin);
  part.last = std::min(whole.last, end);
  part.full = std::min(std::max(whole.full, part.first), part.last);
  part.full_end = std::min(std::max(whole.full_end, part.full), part.last);
  return part;
}

/** Most tiles that may be cut: the fp32 dK and dV of every key head, for each of them, must fit into dq. */
static inline int32_t dkv_bwd5_most_slots(int64_t rows, int32_t heads, int32_t kv_heads) {
  return (int32_t)std::min<int64_t>(rows * heads / (4 * DKV_BWD5_KEYS) / kv_heads, INT32_MAX);
}

/** Most steps of all tiles together: as if every row saw all rows before it. From T alone, for run(). */
static inline int64_t dkv_bwd5_most_steps(int64_t rows, int32_t queries) {
  const int64_t blocks = dkv_ceil_div(rows, queries), tiles = dkv_ceil_div(rows, DKV_BWD5_KEYS);
  return tiles * (blocks + 1) - DKV_BWD5_KEYS / 2 * tiles * (tiles - 1) / queries;
}

/**
 * Most items: no item is empty; and s steps in chunks of c are at most 1 + (s + 1) / c items (the first and the last
 * have c / 2 steps or more), where c >= 32 / g, or else steps / c <= 8192 / Hkv (see dkv_bwd5_chunk).
 */
static inline int64_t dkv_bwd5_most_items(int64_t rows, int32_t queries, int32_t heads, int32_t kv_heads) {
  const int64_t steps = dkv_bwd5_most_steps(rows, queries), tiles = dkv_ceil_div(rows, DKV_BWD5_KEYS);
  return std::min(steps, 2 * tiles + 8192 / kv_heads + 1 + steps * (heads / kv_heads) / 32);
}

/** Appends the item, or its parts if it is longer than a chunk and a half and there is a slot left; a last part under
 * half a chunk joins its neighbour. */
static inline void dkv_bwd5_append(dkv_bwd5_plan *plan, const dkv_bwd5_item &whole, int32_t chunk, int32_t most_slots) {
  if (2 * (int64_t)(whole.last - whole.first) <= 3 * (int64_t)chunk || plan->slots == most_slots)
    return plan->items.push_back(whole);
  int32_t begin = whole.first, part = 0;
  while (begin < whole.last) {
    int64_t end = ((int64_t)begin / chunk + 1) * chunk;
    if (end - begin < chunk / 2) end += chunk;
    if (whole.last - end < chunk / 2) end = whole.last;
    dkv_bwd5_item item = dkv_bwd5_cut(whole, begin, (int32_t)end);
    item.slot = plan->slots;
    item.part = part++;
    plan->items.push_back(item);
    begin = (int32_t)end;
  }
  if (part == 1) plan->items.back().slot = -1;
  else plan->slot_tiles.push_back(whole.tile), plan->slots++;
}

/**
 * Sorts the list: parts first; by chunk; within a chunk long items first, so that short ones fill the gaps.  Ordered,
 * within a chunk the last key tile first: of the tiles that add to a step it starts nearest to that step, and so nobody
 * waits long for it.  (The other way round every tile of a response takes as long as the first.)
 */
static inline void dkv_bwd5_sort(dkv_bwd5_plan *plan, int32_t chunk, bool ordered) {
  std::stable_sort(plan->items.begin(), plan->items.end(), [=](const dkv_bwd5_item &a, const dkv_bwd5_item &b) {
    if ((a.slot < 0) != (b.slot < 0)) return a.slot >= 0;
    const bool by_end = ordered && a.slot < 0; /* tiles of one response end together */
    const int32_t left = (by_end ? a.last - 1 : a.first) / chunk, right = (by_end ? b.last - 1 : b.first) / chunk;
    if (left != right) return left < right;
    return ordered ? a.tile > b.tile : a.last - a.first > b.last - b.first;
  });
}

/**
 * Ordered, when there are fewer parts than multiprocessors: the longest whole tiles start beside the parts, so they go
 * before them.  Then a part waits for a short item, and not a short item for the end of a part.
 */
static inline void dkv_bwd5_fill_start(dkv_bwd5_plan *plan, int32_t kv_heads) {
  const int32_t whole = (int32_t)plan->items.size() - plan->early;
  const int32_t room = std::min(whole, DKV_BWD5_PROCESSORS / kv_heads - plan->early);
  if (plan->early == 0 || room <= 0) return;
  const auto middle = plan->items.begin() + plan->early;
  std::stable_sort(middle, plan->items.end(),
                   [](const dkv_bwd5_item &a, const dkv_bwd5_item &b) { return a.last - a.first > b.last - b.first; });
  std::rotate(plan->items.begin(), middle, middle + room);
  plan->early += room;
}

/** Cuts the tiles (longest first) into chunks and puts the items into order. */
static inline void dkv_bwd5_list(dkv_bwd5_plan *plan, const std::vector<dkv_bwd5_item> &whole, int32_t chunk,
                                 const dkv_attention *a) {
  const int32_t most_slots = dkv_bwd5_most_slots(a->layout->rows, a->heads, a->kv_heads);
  plan->items.clear();
  plan->slot_tiles.clear();
  plan->slots = plan->early = 0;
  for (const dkv_bwd5_item &item : whole) dkv_bwd5_append(plan, item, chunk, most_slots);
  dkv_bwd5_sort(plan, chunk, a->deterministic);
  for (const dkv_bwd5_item &item : plan->items) plan->early += item.slot >= 0;
  if (a->deterministic) dkv_bwd5_fill_start(plan, a->kv_heads);
}

/** Times for makespan, in quarters of a step: filling an item's pipeline, a step, a turn at dQ, adding to a slot. */
enum { DKV_BWD5_START = 8, DKV_BWD5_STEP = 4, DKV_BWD5_TURN = 6, DKV_BWD5_ADD = 4 };

/**
 * Ordered: when an item that starts at `time` has added its last dQ.
 * @param[in,out] added [blocks][heads] when the dQ of a block was added to last
 */
static inline int64_t dkv_bwd5_take_turns(const dkv_bwd5_item &item, int32_t head, int32_t group, int32_t heads,
                                          int64_t time, int64_t *added) {
  int64_t helper[2] = {0, 0};
  int even = 0;
  for (int32_t h = head; h < head + group; h++)
    for (int32_t step = item.first; step < item.last; step++, even ^= 1) {
      int64_t *last = added + (int64_t)step * heads + h;
      time += DKV_BWD5_STEP;
      *last = helper[even] = std::max(time, std::max(*last, helper[even]) + DKV_BWD5_TURN);
      time = std::max(time, helper[even ^ 1]); /* the place in shared memory */
    }
  return std::max(time, helper[even ^ 1]);
}

/** Time of the list on all multiprocessors: each takes the next item when it is free. */
static inline int64_t dkv_bwd5_makespan(const dkv_bwd5_plan &plan, const dkv_attention *a) {
  const int32_t group = a->heads / a->kv_heads;
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<int64_t>> free;
  std::vector<int64_t> added(a->deterministic ? (size_t)plan.blocks * a->heads : 0);
  std::vector<int64_t> slot(a->deterministic ? (size_t)plan.slots * a->kv_heads : 0);
  for (int i = 0; i < DKV_BWD5_PROCESSORS; i++) free.push(0);
  int64_t last = 0;
  const size_t bounds[3] = {0, (size_t)plan.early, plan.items.size()};
  for (int late = 0; late < 2; late++)
    for (int32_t kv_head = 0; kv_head < a->kv_heads; kv_head++)
      for (size_t i = bounds[late]; i < bounds[late + 1]; i++) {
        const dkv_bwd5_item &item = plan.items[i];
        int64_t time = free.top() + DKV_BWD5_START;
        free.pop();
        if (a->deterministic) {
          time = dkv_bwd5_take_turns(item, kv_head * group, group, a->heads, time, added.data());
          if (item.slot >= 0) time = std::max(time, slot[(size_t)item.slot * a->kv_heads + kv_head]);
        } else {
          time += (int64_t)(item.last - item.first) * group * DKV_BWD5_STEP;
        }
        if (item.slot >= 0) time += DKV_BWD5_ADD;
        if (a->deterministic && item.slot >= 0) slot[(size_t)item.slot * a->kv_heads + kv_head] = time;
        free.push(time);
        last = std::max(last, time);
      }
  return last;
}

/**
 * Steps of a chunk, shared by the g query heads: an eighth of a multiprocessor's work, with an upper bound.  A small
 * problem has few items a multiprocessor and its time is that of whoever gets one too many: there, lengths from half of
 * that eighth (8 at least) upwards are tried on paper.  So they are in ordered mode, as long as the paper is short:
 * what waits for what depends on the length in no simple way.
 */
static inline int32_t dkv_bwd5_chunk(dkv_bwd5_plan *plan, const std::vector<dkv_bwd5_item> &whole, int64_t steps,
                                     const dkv_attention *a) {
  const int32_t group = a->heads / a->kv_heads;
  const int64_t all = steps * a->heads, eighth = all / (DKV_BWD5_PROCESSORS * 8);
  const int64_t ordered = std::min<int64_t>(std::max<int64_t>(DKV_BWD5_CHUNK_ORDERED, eighth / 16), DKV_BWD5_CHUNK);
  int32_t best = (int32_t)std::max<int64_t>(1, (a->deterministic ? ordered : DKV_BWD5_CHUNK) / group);
  if (a->deterministic ? all > DKV_BWD5_PAPER : eighth >= DKV_BWD5_CHUNK) return best;
  int64_t least = INT64_MAX;
  for (int64_t together = DKV_BWD5_CHUNK; together >= std::max<int64_t>(8, eighth / 2); together = together * 7 / 8) {
    const int32_t chunk = (int32_t)std::max<int64_t>(1, together / group);
    dkv_bwd5_list(plan, whole, chunk, a);
    const int64_t time = dkv_bwd5_makespan(*plan, a);
    if (time < least) least = time, best = chunk;
  }
  return best;
}

/** Turns: the n-th item in list order that visits a step adds to the step's dQ as number n. */
static inline void dkv_bwd5_rank(dkv_bwd5_plan *plan) {
  std::vector<int32_t> visits(plan->blocks, 0);
  for (dkv_bwd5_item &item : plan->items) {
    item.rank = (int64_t)plan->rank.size() - item.first;
    for (int32_t step = item.first; step < item.last; step++) plan->rank.push_back(visits[step]++);
  }
}

/**
 * Plans a layout.
 * @param[out] plan    overwritten
 * @param[in]  problem layout, heads and deterministic are read; T >= 1
 * @param[in]  queries rows of a step
 * @return DKV_OK; DKV_ERR_NOMEM
 */
static inline dkv_status dkv_bwd5_make_plan(dkv_bwd5_plan *plan, const dkv_attention *problem, int32_t queries) {
  const dkv_layout *layout = problem->layout;
  try {
    *plan = dkv_bwd5_plan();
    plan->blocks = (int32_t)dkv_ceil_div(layout->rows, queries);
    plan->tiles = (int32_t)dkv_ceil_div(layout->rows, DKV_BWD5_KEYS);
    std::vector<dkv_bwd5_item> whole;
    int64_t steps = 0;
    for (int32_t tile = 0; tile < plan->tiles; tile++) {
      whole.push_back(dkv_bwd5_tile(layout, tile, queries));
      steps += whole.back().last - whole.back().first;
    }
    std::stable_sort(whole.begin(), whole.end(), [](const dkv_bwd5_item &a, const dkv_bwd5_item &b) {
      return a.last - a.first > b.last - b.first;
    });
    dkv_bwd5_list(plan, whole, dkv_bwd5_chunk(plan, whole, steps, problem), problem);
    if (problem->deterministic) dkv_bwd5_rank(plan);
    plan->end.assign(layout->end, layout->end + layout->rows);
    while (plan->end.size() < (size_t)plan->tiles * DKV_BWD5_KEYS) plan->end.push_back((int32_t)plan->end.size());
  } catch (const std::bad_alloc &) {
    return dkv_fail(DKV_ERR_NOMEM, "no host memory to plan a backward pass over %d rows", layout->rows);
  }
  return DKV_OK;
}

#endif
