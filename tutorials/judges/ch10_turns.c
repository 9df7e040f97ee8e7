/*
 * Judge of exercise 10: lets workers of random speed go through a queue with the student's turns, and looks whether
 * they all come home and whether every run gives the same bits.  Items are the key tiles of a layout, their steps those
 * of dkv_query_range, in several orders of the queue; in one of them long items are cut, so that a tile comes twice.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/layout.h"
#include "common/rng.h"
#include "common/tiles.h"

enum { KEYS = 4, QUERIES = 4, MOST = 64, MOST_TURNS = 2048, RUNS = 20, NOT_WRITTEN = -1 };

struct item {
  int32_t tile;
  int32_t first, last;
};

void student_turns(int32_t *turn, const struct item *items, int32_t count, int32_t *visits, int32_t steps);

/** A queue and the turns at its steps. */
struct queue {
  struct item item[MOST];
  int32_t count, steps;
  int32_t base[MOST + 1]; /* turns of item n: turn[base[n]], ... */
  int32_t turn[MOST_TURNS];
};

static uint32_t draw(uint64_t seed, uint64_t a, uint64_t b) { return dkv_rng(seed, a, b).word[0]; }

/** What item n adds at its step s: sizes differ, so that the order shows in the last bits. */
static float part(const struct queue *q, int32_t n, int32_t s) {
  const uint32_t x = draw(3, (uint64_t)q->item[n].tile, (uint64_t)s);
  return (float)(x % 20001) * (x & 0x100000 ? 1e-3f : 1.0f) - 7000.0f;
}

/** One worker: the item it has, the step it is at, the time until its part is ready. */
struct worker {
  int32_t item, step, busy;
};

/** Where a run stopped: time it took, ticks spent waiting; who waits for whom when it never ends. */
struct run {
  int64_t time, waited;
  int32_t stuck, step; /* item that waits for ever, -1: none */
};

/** A worker's tick: takes an item, computes, or adds when its turn has come. @return did anything happen? */
static int tick(struct worker *w, const struct queue *q, float *sum, int32_t *added, int32_t *next, uint64_t seed,
                struct run *run) {
  if (w->item < 0) {
    if (*next == q->count) return 0;
    w->item = (*next)++;
    w->step = q->item[w->item].first;
    w->busy = 1 + (int32_t)(draw(seed, (uint64_t)w->item, (uint64_t)w->step) % (seed == 0 ? 1 : 5));
  }
  if (w->busy > 1) return --w->busy, 1;
  const int32_t n = w->item, s = w->step;
  if (added[s] < q->turn[q->base[n] + s - q->item[n].first]) return ++run->waited, 0;
  sum[s] += part(q, n, s);
  ++added[s];
  if (++w->step == q->item[n].last) w->item = -1;
  else w->busy = 1 + (int32_t)(draw(seed, (uint64_t)n, (uint64_t)w->step) % (seed == 0 ? 1 : 5));
  return 1;
}

/** Goes through the queue; seed 0 gives all workers the same speed. */
static struct run simulate(float *sum, const struct queue *q, int workers, uint64_t seed) {
  struct worker w[8];
  int32_t added[MOST] = {0}, next = 0;
  struct run run = {.stuck = -1};
  for (int i = 0; i < workers; ++i) w[i] = (struct worker){.item = -1};
  for (int32_t s = 0; s < q->steps; ++s) sum[s] = 0;
  for (;; ++run.time) {
    int active = 0, moved = 0;
    for (int i = 0; i < workers; ++i) {
      const int who = (i + (int)(draw(seed, 99, (uint64_t)run.time) % 8)) % workers;
      moved += tick(&w[who], q, sum, added, &next, seed, &run);
    }
    for (int i = 0; i < workers; ++i) active += w[i].item >= 0;
    if (active == 0 && next == q->count) return run;
    if (moved > 0) continue;
    for (int i = 0; i < workers; ++i)
      if (w[i].item >= 0) run.stuck = w[i].item, run.step = w[i].step;
    return run;
  }
}

/** The turns of the usual mistakes, for item n at step s. */
enum mistake { RIGHT, ALL_ZERO, BY_TILE, BACKWARDS, ITEM_NUMBER, INSIDE_ITEM, FROM_ONE, MISTAKES };
static const char *const reason[MISTAKES] = {
    NULL,
    "everybody has turn 0, so whoever comes first adds first",
    "the turns follow the key tiles, but items are taken in the order of the queue",
    "the turns run against the queue: the foremost item waits for the last",
    "that is the item's number: items that do not visit the step have turns there too, and those never come",
    "that is counted along the item; the turns count the visitors of one step",
    "turns begin at 0: a turn is the number of those who have added before",
};

static int32_t mistaken(const struct queue *q, int32_t n, int32_t s, enum mistake mistake) {
  int32_t before = 0, after = 0, smaller = 0;
  for (int32_t m = 0; m < q->count; ++m) {
    if (s < q->item[m].first || s >= q->item[m].last) continue;
    before += m < n;
    after += m > n;
    smaller += q->item[m].tile < q->item[n].tile;
  }
  const int32_t values[MISTAKES] = {before, 0, smaller, after, n, s - q->item[n].first, before + 1};
  return values[mistake];
}

static int fits(const struct queue *q, enum mistake mistake) {
  for (int32_t n = 0; n < q->count; ++n)
    for (int32_t s = q->item[n].first; s < q->item[n].last; ++s)
      if (q->turn[q->base[n] + s - q->item[n].first] != mistaken(q, n, s, mistake)) return 0;
  return 1;
}

static const char *why(const struct queue *q, uint32_t rubbish) {
  if (q->turn[0] == NOT_WRITTEN) return "nothing was written";
  for (int m = ALL_ZERO; m < MISTAKES; ++m)
    if (fits(q, (enum mistake)m)) return reason[m];
  if (q->turn[0] >= (int32_t)rubbish) return "visits held rubbish: the counters were not set to 0 first";
  return "the first item of the queue that visits a step has turn 0 there, the next one turn 1";
}

/** What the wrong turns lead to. */
static int consequence(const char *name, const struct queue *q, uint32_t rubbish) {
  float first[MOST], sum[MOST];
  for (uint64_t seed = 1; seed <= RUNS; ++seed) {
    const struct run run = simulate(seed == 1 ? first : sum, q, 2, seed);
    if (run.stuck >= 0) {
      printf("%s: 2 workers wait for ever, one with tile %d at step %d; %s\n", name, q->item[run.stuck].tile, run.step,
             why(q, rubbish));
      return 1;
    }
    for (int32_t s = 0; s < q->steps && seed > 1; ++s)
      if (memcmp(&first[s], &sum[s], sizeof sum[s]) != 0) {
        printf("%s: two runs give different bits at step %d, %.9g and %.9g; %s\n", name, s, first[s], sum[s],
               why(q, rubbish));
        return 1;
      }
  }
  printf("%s: turns of a step must be 0, 1, 2, ..., in the order of the queue; %s\n", name, why(q, rubbish));
  return 1;
}

/** Asks the student and compares. */
static int judge(const char *name, struct queue *q) {
  const uint32_t rubbish = 1000;
  int32_t visits[MOST];
  float first[MOST], sum[MOST];
  q->base[0] = 0;
  for (int32_t n = 0; n < q->count; ++n) q->base[n + 1] = q->base[n] + q->item[n].last - q->item[n].first;
  for (int32_t i = 0; i < MOST_TURNS; ++i) q->turn[i] = NOT_WRITTEN;
  for (int32_t s = 0; s < MOST; ++s) visits[s] = (int32_t)rubbish + s;
  student_turns(q->turn, q->item, q->count, visits, q->steps);
  if (q->turn[q->base[q->count]] != NOT_WRITTEN)
    return printf("%s: more than %d turns were written\n", name, q->base[q->count]), 1;
  for (int32_t s = q->steps; s < MOST; ++s)
    if (visits[s] != (int32_t)rubbish + s)
      return printf("%s: visits[%d] was written; there are %d steps, 0 to %d\n", name, s, q->steps, q->steps - 1), 1;
  if (!fits(q, RIGHT)) return consequence(name, q, rubbish);
  for (int workers = 1; workers <= 8; ++workers)
    for (uint64_t seed = 1; seed <= RUNS; ++seed) {
      const struct run run = simulate(seed == 1 && workers == 1 ? first : sum, q, workers, seed);
      if (run.stuck >= 0 || ((seed > 1 || workers > 1) && memcmp(first, sum, (size_t)q->steps * sizeof *sum) != 0))
        return printf("the judge itself failed: right turns that do not repeat\n"), 2;
    }
  return 0;
}

enum order { LONGEST_FIRST, LAST_TILE_FIRST, SHUFFLED, CUT, ORDERS };

/** Puts an item where the order wants it; SHUFFLED and CUT: anywhere. */
static void insert(struct queue *q, struct item item, enum order order) {
  int32_t at = q->count++;
  if (order == LAST_TILE_FIRST) at = 0;
  if (order == LONGEST_FIRST)
    for (at = 0; at < q->count - 1 && q->item[at].last - q->item[at].first >= item.last - item.first;) ++at;
  if (order >= SHUFFLED)
    at = (int32_t)(draw(5, 5, 100 * (uint64_t)item.tile + (uint64_t)item.first) % (uint32_t)q->count);
  memmove(&q->item[at + 1], &q->item[at], (size_t)(q->count - 1 - at) * sizeof *q->item);
  q->item[at] = item;
}

/** The items of a layout, in one of the orders. */
static void fill(struct queue *q, const dkv_layout *l, enum order order) {
  q->count = 0;
  q->steps = (int32_t)dkv_ceil_div(l->rows, QUERIES);
  for (int32_t j0 = 0; j0 < l->rows; j0 += KEYS) {
    const dkv_range seen_by = dkv_query_range(l, j0, (int32_t)dkv_min((int64_t)j0 + KEYS, l->rows));
    struct item item = {j0 / KEYS, seen_by.begin / QUERIES, (int32_t)dkv_ceil_div(seen_by.end, QUERIES)};
    while (order == CUT && item.last - item.first > 3) { /* as rung 5 cuts the tiles of a long prompt */
      insert(q, (struct item){item.tile, item.first, item.first + 3}, order);
      item.first += 3;
    }
    insert(q, item, order);
  }
}

int main(void) {
  static const char *const words[] = {"longest first", "last tile first", "shuffled", "long items cut"};
  static const int32_t parent[] = {-1, 0, 0, 0, 0}, length[] = {13, 22, 0, 17, 25};
  static struct queue q;
  struct run run[2];
  float sum[MOST];
  dkv_layout l;
  if (dkv_layout_forest(&l, 5, parent, length)) return printf("the judge itself failed: %s\n", dkv_last_error()), 2;
  int wrong = 0;
  for (int order = LONGEST_FIRST; order < ORDERS && !wrong; ++order) {
    char name[64];
    fill(&q, &l, (enum order)order);
    snprintf(name, sizeof name, "P=13, R={22,0,17,25}, %s", words[order]);
    wrong = judge(name, &q);
    if (!wrong && order <= LAST_TILE_FIRST) run[order] = simulate(sum, &q, 4, 0);
  }
  dkv_layout_free(&l);
  if (dkv_layout_forest(&l, 3, (const int32_t[]){-1, 0, 0}, (const int32_t[]){7, 5, 9}))
    return printf("the judge itself failed: %s\n", dkv_last_error()), 2;
  fill(&q, &l, LONGEST_FIRST);
  if (!wrong) wrong = judge("P=7, R={5,9}, longest first", &q);
  if (!wrong)
    printf("right: the same bits in %d runs of each queue with 1 to 8 workers; 4 workers of equal speed need %d ticks "
           "(%d of waiting) longest first, %d (%d) last tile first\n",
           RUNS, (int)run[0].time, (int)run[0].waited, (int)run[1].time, (int)run[1].waited);
  dkv_layout_free(&l);
  return wrong;
}
