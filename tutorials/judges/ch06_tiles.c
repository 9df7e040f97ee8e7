/*
 * Judge of exercise 06: the student's class of every tile of a hundred random forests against dkv_tile_classify, then
 * the number of key tiles that a kernel would load for a large group, packed and replicated.
 */
#include <inttypes.h>
#include <stdio.h>

#include "common/rng.h"
#include "common/tiles.h"

enum { SEGMENTS = 10 };

int student_classify(const int32_t *end, int32_t i0, int32_t i1, int32_t j0, int32_t j1);

static const char *const word[] = {"empty", "full", "partial"};

/** Pairs of the tile that are visible. */
static int64_t visible(const dkv_layout *l, int32_t i0, int32_t i1, int32_t j0, int32_t j1) {
  int64_t pairs = 0;
  for (int32_t i = i0; i < i1; ++i)
    for (int32_t j = j0; j < j1; ++j) pairs += dkv_sees(i, j, l->end[j]);
  return pairs;
}

static const char *reason(const dkv_layout *l, int32_t i0, int32_t i1, int32_t j0, int32_t j1, int want, int got) {
  const int corners = dkv_sees(i0, j0, l->end[j0]) + dkv_sees(i0, j1 - 1, l->end[j1 - 1]) +
                      dkv_sees(i1 - 1, j0, l->end[j0]) + dkv_sees(i1 - 1, j1 - 1, l->end[j1 - 1]);
  if (want == DKV_TILE_FULL) return "every pair is visible: right results, but mask code where none is needed";
  if (want == DKV_TILE_EMPTY) return "no pair is visible: a tile of work for nothing";
  if (got == DKV_TILE_FULL && i0 < j1 - 1)
    return "a tile on the diagonal is not full: its first row does not see its last key";
  if (got == DKV_TILE_FULL && corners < 4)
    return "the tile straddles two responses, and the rows of the second do not see the first";
  return "the corners of a tile say nothing about its inside: segments may begin and end there";
}

static int judge_tile(const char *name, const dkv_layout *l, int32_t i0, int32_t i1, int32_t j0, int32_t j1) {
  const int want = (int)dkv_tile_classify(l, i0, i1, j0, j1), got = student_classify(l->end, i0, i1, j0, j1);
  if (got == want) return 0;
  printf("%s, rows [%d, %d) x keys [%d, %d): you say %s, it is %s, with %" PRId64 " of %" PRId64 " pairs visible; %s\n",
         name, i0, i1, j0, j1, got >= 0 && got <= 2 ? word[got] : "something else", word[want],
         visible(l, i0, i1, j0, j1), (int64_t)(i1 - i0) * (j1 - j0), reason(l, i0, i1, j0, j1, want, got));
  return 1;
}

/** Every tile of every rectangle size up to 7 x 7. */
static int judge_layout(const char *name, const dkv_layout *l) {
  for (int32_t rows = 1; rows <= 7; ++rows)
    for (int32_t keys = 1; keys <= 7; ++keys)
      for (int32_t i0 = 0; i0 + rows <= l->rows; ++i0)
        for (int32_t j0 = 0; j0 + keys <= l->rows; ++j0)
          if (judge_tile(name, l, i0, i0 + rows, j0, j0 + keys)) return 1;
  return 0;
}

static int judge_random(uint64_t seed) {
  dkv_layout layout;
  int32_t parent[SEGMENTS], length[SEGMENTS];
  char name[40];
  for (int32_t s = 0; s < SEGMENTS; ++s) {
    uint32_t up = dkv_rng(seed, 1, (uint64_t)s).word[0] % 4;
    parent[s] = s - 1;
    while (up-- > 0 && parent[s] >= 0) parent[s] = parent[parent[s]];
    length[s] = (int32_t)(dkv_rng(seed, 2, (uint64_t)s).word[0] % 5);
  }
  if (dkv_layout_forest(&layout, SEGMENTS, parent, length))
    return printf("the judge itself failed: %s\n", dkv_last_error()), 2;
  snprintf(name, sizeof name, "random forest %d", (int)seed);
  const int wrong = judge_layout(name, &layout);
  dkv_layout_free(&layout);
  return wrong;
}

/** Is anything ever computed, and everything not merely called partial? */
static int judge_group(void) {
  dkv_layout l;
  int count[3] = {0};
  if (dkv_layout_group(&l, 6, 3, (const int32_t[]){3, 2, 5}))
    return printf("the judge itself failed: %s\n", dkv_last_error()), 2;
  for (int32_t i0 = 0; i0 < l.rows; i0 += 2)
    for (int32_t j0 = 0; j0 < l.rows; j0 += 2) {
      const int got = student_classify(l.end, i0, i0 + 2, j0, j0 + 2);
      if (got >= 0 && got <= 2) ++count[got];
    }
  int wrong = count[DKV_TILE_EMPTY] == 64;
  if (wrong) printf("P=6, R={3,2,5}: you call all 64 tiles of 2 x 2 empty: nothing is ever computed\n");
  if (!wrong) wrong = judge_layout("P=6, R={3,2,5}", &l);
  dkv_layout_free(&l);
  return wrong;
}

/** Key tiles of 128 that query tiles of 128 load. */
static int64_t loads(const dkv_layout *l) {
  int64_t n = 0;
  for (int32_t i0 = 0; i0 < l->rows; i0 += 128)
    for (int32_t j0 = 0; j0 < l->rows; j0 += 128)
      n += student_classify(l->end, i0, i0 + 128, j0, j0 + 128) != DKV_TILE_EMPTY;
  return n;
}

int main(void) {
  int wrong = judge_group();
  for (uint64_t seed = 0; seed < 100 && !wrong; ++seed) wrong = judge_random(seed);
  if (wrong) return wrong;
  dkv_layout packed, replicated;
  const int32_t length[] = {512, 512, 512, 512};
  if (dkv_layout_group(&packed, 4096, 4, length) || dkv_layout_replicate(&replicated, NULL, &packed))
    return printf("the judge itself failed: %s\n", dkv_last_error()), 2;
  printf("right: all tiles of a group and of 100 random forests; P=4096, N=4, R=512 loads %" PRId64
         " key tiles packed, %" PRId64 " replicated\n",
         loads(&packed), loads(&replicated));
  dkv_layout_free(&packed);
  dkv_layout_free(&replicated);
  return 0;
}
