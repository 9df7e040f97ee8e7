/**
 * @file test_tiles.c
 * @brief Tile classes, key ranges, query ranges and counts against the mask by ancestry, element by element.
 *
 * Read before: common/tiles.h, tests/support/forest.h.
 */
#include "common/tiles.h"

#include <stdlib.h>

#include "common/rng.h"
#include "tests/support/expect.h"
#include "tests/support/forest.h"
#include "tests/support/memory.h"

/** A forest, its layout, and its mask by ancestry. */
struct world {
  struct forest f;
  dkv_layout layout;
  bool sees[FOREST_ROWS][FOREST_ROWS];
};

static void world_open(struct world *w, uint64_t seed) {
  forest_random(&w->f, seed);
  EXPECT_OK(dkv_layout_forest(&w->layout, w->f.segments, w->f.parent, w->f.length));
  for (int32_t i = 0; i < w->f.rows; ++i)
    for (int32_t j = 0; j < w->f.rows; ++j) w->sees[i][j] = forest_sees(&w->f, i, j);
}

/** Visible pairs of queries [i0, i1) and keys [j0, j1). */
static int64_t visible_pairs(const struct world *w, int32_t i0, int32_t i1, int32_t j0, int32_t j1) {
  int64_t pairs = 0;
  for (int32_t i = i0; i < i1; ++i)
    for (int32_t j = j0; j < j1; ++j) pairs += w->sees[i][j];
  return pairs;
}

/** A random range inside 0 .. n-1, never empty. */
static dkv_range draw_range(uint64_t seed, uint64_t index, int32_t n) {
  dkv_rng_block b = dkv_rng(seed, 5, index);
  int32_t begin = (int32_t)(b.word[0] % (uint32_t)n);
  return (dkv_range){begin, begin + 1 + (int32_t)(b.word[1] % (uint32_t)(n - begin))};
}

Test(tiles, of_the_seven_token_group_are_classified_as_by_hand) {
  static const char *const HAND[4] = {"+...", "#+..", "#++.", "#++#"}; /* rows 01 | 23 | 45 | 6, the same keys */
  dkv_layout l;
  dkv_range ranges[3];
  EXPECT_OK(dkv_layout_group(&l, 3, 2, (const int32_t[]){2, 2}));
  for (int32_t a = 0; a < 4; ++a)
    for (int32_t b = 0; b < 4; ++b) {
      int32_t i1 = a == 3 ? 7 : 2 * a + 2, j1 = b == 3 ? 7 : 2 * b + 2;
      dkv_tile_class class = dkv_tile_classify(&l, 2 * a, i1, 2 * b, j1);
      cr_assert(class == (HAND[a][b] == '.'   ? DKV_TILE_EMPTY
                          : HAND[a][b] == '#' ? DKV_TILE_FULL
                                              : DKV_TILE_PARTIAL),
                "tile %d, %d: class %d", a, b, (int)class);
    }
  cr_assert(dkv_key_ranges(&l, 5, 7, ranges, 3) == 2); /* b sees the prompt and itself, not a */
  cr_assert(ranges[0].begin == 0 && ranges[0].end == 3 && ranges[1].begin == 5 && ranges[1].end == 7);
  cr_assert(dkv_key_ranges(&l, 4, 7, ranges, 3) == 1); /* a tile that straddles a and b: adjacent ranges are merged */
  cr_assert(ranges[0].begin == 0 && ranges[0].end == 7);
  dkv_range prompt = dkv_query_range(&l, 1, 2), first = dkv_query_range(&l, 3, 5);
  cr_assert(prompt.begin == 1 && prompt.end == 7 && first.begin == 3 && first.end == 5);
  dkv_layout_free(&l);
}

Test(tiles, classes_are_exact_on_any_forest) {
  static struct world w;
  int64_t seen[3] = {0};
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    world_open(&w, seed);
    for (uint64_t k = 0; k < 60 && w.f.rows > 0; ++k) {
      dkv_range q = draw_range(seed, 2 * k, w.f.rows), c = draw_range(seed, 2 * k + 1, w.f.rows);
      if (k % 2 == 0) q.end = q.begin + 1 + (q.end - q.begin) / 8, c.end = c.begin + 1 + (c.end - c.begin) / 8;
      int64_t pairs = visible_pairs(&w, q.begin, q.end, c.begin, c.end);
      int64_t all = (int64_t)(q.end - q.begin) * (c.end - c.begin);
      dkv_tile_class expected = pairs == 0 ? DKV_TILE_EMPTY : pairs == all ? DKV_TILE_FULL : DKV_TILE_PARTIAL;
      dkv_tile_class class = dkv_tile_classify(&w.layout, q.begin, q.end, c.begin, c.end);
      cr_assert(class == expected, "seed %lu: queries %d..%d, keys %d..%d: class %d, not %d", (unsigned long)seed,
                q.begin, q.end, c.begin, c.end, (int)class, (int)expected);
      ++seen[class];
    }
    dkv_layout_free(&w.layout);
  }
  cr_assert(seen[0] > 1000 && seen[1] > 1000 && seen[2] > 1000, "%ld %ld %ld", (long)seen[0], (long)seen[1],
            (long)seen[2]);
}

/** The ranges ascend with gaps, none is useless, and together they hold every key that the queries see. */
static void check_ranges(const struct world *w, dkv_range q, const dkv_range *ranges, int32_t count) {
  unsigned long seed = (unsigned long)w->f.seed;
  int64_t covered = 0;
  for (int32_t r = 0; r < count; ++r) {
    int64_t pairs = visible_pairs(w, q.begin, q.end, ranges[r].begin, ranges[r].end);
    cr_assert(ranges[r].begin < ranges[r].end && pairs > 0, "seed %lu, queries %d..%d: range %d is useless", seed,
              q.begin, q.end, r);
    cr_assert(r == 0 || ranges[r - 1].end < ranges[r].begin, "seed %lu, queries %d..%d: ranges %d and %d touch", seed,
              q.begin, q.end, r - 1, r);
    covered += pairs;
  }
  cr_assert(covered == visible_pairs(w, q.begin, q.end, 0, w->f.rows), "seed %lu, queries %d..%d: keys are missing",
            seed, q.begin, q.end);
}

Test(tiles, key_ranges_hold_every_visible_key_and_no_useless_range) {
  static struct world w;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    world_open(&w, seed);
    for (uint64_t k = 0; k < 30 && w.f.rows > 0; ++k) {
      dkv_range q = draw_range(seed, k, w.f.rows), ranges[FOREST_SEGMENTS + 1];
      int32_t count = dkv_key_ranges(&w.layout, q.begin, q.end, ranges, w.layout.depth + 1);
      cr_assert(count >= 1 && count <= w.layout.depth, "seed %lu: %d ranges, depth %d", (unsigned long)seed, count,
                w.layout.depth);
      check_ranges(&w, q, ranges, count);
      for (int32_t less = 1; less < count; ++less) { /* too little room: fewer ranges, still every key */
        dkv_range few[FOREST_SEGMENTS];
        cr_assert(dkv_key_ranges(&w.layout, q.begin, q.end, few, less) == less);
        check_ranges(&w, q, few, less);
      }
    }
    dkv_layout_free(&w.layout);
  }
}

Test(tiles, groups_need_at_most_two_key_ranges) {
  dkv_layout l;
  dkv_range ranges[3];
  EXPECT_OK(
      dkv_layout_groups(&l, 2, (const int32_t[]){9, 4}, (const int32_t[]){3, 2}, (const int32_t[]){5, 0, 6, 3, 8}));
  for (int32_t i0 = 0; i0 < l.rows; ++i0)
    for (int32_t i1 = i0 + 1; i1 <= l.rows; ++i1) {
      int32_t count = dkv_key_ranges(&l, i0, i1, ranges, 3);
      cr_assert(count <= 2, "queries %d..%d: %d ranges", i0, i1, count);
    }
  cr_assert(dkv_key_ranges(&l, 0, 1, NULL, 0) == 0);
  dkv_layout_free(&l);
}

Test(tiles, query_range_starts_at_the_tile_and_ends_at_the_last_row_that_sees_it) {
  static struct world w;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    world_open(&w, seed);
    for (uint64_t k = 0; k < 30 && w.f.rows > 0; ++k) {
      dkv_range c = draw_range(seed, k, w.f.rows), range = dkv_query_range(&w.layout, c.begin, c.end);
      int32_t last = w.f.rows;
      while (visible_pairs(&w, last - 1, last, c.begin, c.end) == 0) --last;
      cr_assert(range.begin == c.begin && range.end == last, "seed %lu: keys %d..%d: queries %d..%d, last %d",
                (unsigned long)seed, c.begin, c.end, range.begin, range.end, last);
    }
    dkv_layout_free(&w.layout);
  }
}

/** Counts the tiles of a grid by looking at every pair. */
static dkv_tile_count count_by_force(const struct world *w, int32_t rows, int32_t keys) {
  dkv_tile_count count = {0};
  for (int32_t i0 = 0; i0 < w->f.rows; i0 += rows)
    for (int32_t j0 = 0; j0 < w->f.rows; j0 += keys) {
      int32_t i1 = i0 + rows < w->f.rows ? i0 + rows : w->f.rows, j1 = j0 + keys < w->f.rows ? j0 + keys : w->f.rows;
      int64_t pairs = visible_pairs(w, i0, i1, j0, j1), all = (int64_t)(i1 - i0) * (j1 - j0);
      count.full += pairs == all;
      count.empty_skipped += pairs == 0;
      count.partial += pairs > 0 && pairs < all;
      count.issued_pairs += pairs > 0 ? all : 0;
      count.useful_pairs += pairs;
    }
  return count;
}

Test(tiles, counts_are_exact_on_any_forest_and_any_tiling) {
  static struct world w;
  for (uint64_t seed = 0; seed < 2500; ++seed) {
    world_open(&w, seed);
    for (uint64_t k = 0; k < 6; ++k) {
      dkv_rng_block b = dkv_rng(seed, 6, k);
      int32_t rows = 1 + (int32_t)(b.word[0] % (k < 4 ? 9 : 120)), keys = 1 + (int32_t)(b.word[1] % (k < 4 ? 9 : 120));
      dkv_tile_count count, force = count_by_force(&w, rows, keys);
      EXPECT_OK(dkv_tile_counts(&count, &w.layout, rows, keys));
      cr_assert(count.full == force.full && count.partial == force.partial &&
                    count.empty_skipped == force.empty_skipped && count.issued_pairs == force.issued_pairs &&
                    count.useful_pairs == force.useful_pairs,
                "seed %lu, %d rows, tiles %d x %d: full %ld/%ld partial %ld/%ld empty %ld/%ld issued %ld/%ld",
                (unsigned long)seed, w.f.rows, rows, keys, (long)count.full, (long)force.full, (long)count.partial,
                (long)force.partial, (long)count.empty_skipped, (long)force.empty_skipped, (long)count.issued_pairs,
                (long)force.issued_pairs);
    }
    dkv_layout_free(&w.layout);
  }
}

Test(tiles, of_one_pair_each_are_the_visible_pairs) {
  dkv_layout l;
  dkv_tile_count count;
  EXPECT_OK(dkv_layout_group(&l, 20000, 3, (const int32_t[]){9000, 1, 11000}));
  EXPECT_OK(dkv_tile_counts(&count, &l, 1, 1));
  cr_assert(count.full == dkv_layout_pairs(&l) && count.partial == 0 && count.issued_pairs == count.useful_pairs);
  dkv_layout_free(&l);
}

Test(tiles, of_a_large_aligned_group_are_counted_as_on_paper) {
  /* P = 256 p, R = 256 r in tiles of 256: per response r p full prompt tiles, r (r-1) / 2 full and r partial own ones.
   */
  int64_t p = 128, r = 8, n = 28, tile = 256;
  int32_t length[28];
  dkv_layout l;
  dkv_tile_count count;
  for (int i = 0; i < 28; ++i) length[i] = (int32_t)(r * tile);
  EXPECT_OK(dkv_layout_group(&l, (int32_t)(p * tile), 28, length));
  EXPECT_OK(dkv_tile_counts(&count, &l, 256, 256));
  cr_assert(count.full == p * (p - 1) / 2 + n * (r * p + r * (r - 1) / 2), "%ld full", (long)count.full);
  cr_assert(count.partial == p + n * r, "%ld partial", (long)count.partial);
  cr_assert(count.issued_pairs == (count.full + count.partial) * tile * tile);
  cr_assert(count.empty_skipped == (p + n * r) * (p + n * r) - count.full - count.partial);
  dkv_layout_free(&l);
}

Test(tiles, refuse_null_and_empty_tiles_and_report_missing_memory) {
  dkv_layout l;
  dkv_tile_count count;
  EXPECT_OK(dkv_layout_group(&l, 3, 0, NULL));
  EXPECT_FAIL(DKV_ERR_NULL, "out", dkv_tile_counts(NULL, &l, 1, 1));
  EXPECT_FAIL(DKV_ERR_NULL, "layout", dkv_tile_counts(&count, NULL, 1, 1));
  EXPECT_FAIL(DKV_ERR_RANGE, "0 rows", dkv_tile_counts(&count, &l, 0, 1));
  EXPECT_FAIL(DKV_ERR_RANGE, "-8 keys", dkv_tile_counts(&count, &l, 1, -8));
  dkv_layout deep = l;
  deep.depth = 1 << 26; /* as deep as a layout may be: half a gigabyte of ranges */
  if (!limit_memory(16 << 20)) cr_skip_test("memory cannot be limited under a sanitizer");
  EXPECT_FAIL(DKV_ERR_NOMEM, "67108865 key ranges", dkv_tile_counts(&count, &deep, 1, 1));
  dkv_layout_free(&l);
}
