/**
 * @file test_pack.c
 * @brief Packing laws: unpack and fold are transposes of each other, ids survive the round trip, predictions follow
 * paths.
 *
 *     <unpack(x), y> = <x, fold(y)>          fold(unpack(x)) = copies * x
 *
 * Read before: common/pack.h, tests/support/forest.h.
 */
#include "common/pack.h"

#include <math.h>
#include <stdlib.h>

#include "common/rng.h"
#include "tests/support/expect.h"
#include "tests/support/forest.h"
#include "tests/support/memory.h"

/** A forest, its layout, the replicated twin and the map between them. */
struct twins {
  struct forest f;
  dkv_layout packed, replicated;
  int32_t *map;
};

static void twins_open(struct twins *t, uint64_t seed) {
  forest_random(&t->f, seed);
  EXPECT_OK(dkv_layout_forest(&t->packed, t->f.segments, t->f.parent, t->f.length));
  EXPECT_OK(dkv_layout_replicate(&t->replicated, &t->map, &t->packed));
}

static void twins_close(struct twins *t) {
  free(t->map);
  dkv_layout_free(&t->packed);
  dkv_layout_free(&t->replicated);
}

/** A small integer, so that every sum below is exact. */
static double draw(uint64_t seed, uint64_t stream, uint64_t index) {
  return (double)(dkv_rng(seed, stream, index).word[0] % 17) - 8;
}

/** Leaves below the segment of packed row t: the number of its copies. */
static int32_t copies(const struct forest *f, int32_t t) {
  int32_t n = 0;
  for (int32_t leaf = 0; leaf < f->segments; ++leaf)
    n += forest_is_leaf(f, leaf) && forest_is_on_path(f, f->owner[t], leaf);
  return n;
}

Test(pack, fold_is_the_transpose_of_unpack_and_counts_copies) {
  enum { WIDTH = 3 };
  static double x[FOREST_ROWS * WIDTH], folded[FOREST_ROWS * WIDTH];
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    struct twins t;
    twins_open(&t, seed);
    size_t n = (size_t)t.replicated.rows * WIDTH;
    double *wide = calloc(n + 1, sizeof *wide), *y = calloc(n + 1, sizeof *y), left = 0, right = 0;
    cr_assert(wide != NULL && y != NULL);
    for (int32_t i = 0; i < t.f.rows * WIDTH; ++i) x[i] = draw(seed, 1, (uint64_t)i);
    for (size_t i = 0; i < n; ++i) y[i] = draw(seed, 2, i);
    EXPECT_OK(dkv_unpack_rows(wide, x, WIDTH * sizeof *x, t.map, t.replicated.rows));
    EXPECT_OK(dkv_fold_rows(folded, t.f.rows, y, WIDTH, DKV_F64, t.map, t.replicated.rows));
    for (size_t i = 0; i < n; ++i) left += wide[i] * y[i];
    for (int32_t i = 0; i < t.f.rows * WIDTH; ++i) right += x[i] * folded[i];
    cr_assert(left == right, "seed %lu: <unpack(x), y> = %g, <x, fold(y)> = %g", (unsigned long)seed, left, right);
    EXPECT_OK(dkv_fold_rows(folded, t.f.rows, wide, WIDTH, DKV_F64, t.map, t.replicated.rows));
    for (int32_t i = 0; i < t.f.rows * WIDTH; ++i)
      cr_assert(folded[i] == copies(&t.f, i / WIDTH) * x[i], "seed %lu, row %d", (unsigned long)seed, i / WIDTH);
    free(wide);
    free(y);
    twins_close(&t);
  }
}

Test(pack, unpack_copies_the_row_that_the_map_names) {
  const char packed[] = "ppaabb";
  const int32_t map[] = {0, 1, 2, 3, 0, 1, 4, 5};
  char replicated[9] = {0};
  EXPECT_OK(dkv_unpack_rows(replicated, packed, 1, map, 8));
  cr_assert_str_eq(replicated, "ppaappbb");
  EXPECT_OK(dkv_unpack_rows(NULL, NULL, 1, NULL, 0));
  EXPECT_OK(dkv_unpack_rows(NULL, NULL, 0, map, 8));
}

Test(pack, ids_survive_unpack_and_pack) {
  static int32_t ids[FOREST_ROWS], back[FOREST_ROWS];
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    struct twins t;
    twins_open(&t, seed);
    int32_t *wide = malloc(((size_t)t.replicated.rows + 1) * sizeof *wide);
    cr_assert(wide != NULL);
    for (int32_t i = 0; i < t.f.rows; ++i) ids[i] = (int32_t)dkv_rng(seed, 3, (uint64_t)i).word[0];
    EXPECT_OK(dkv_unpack_rows(wide, ids, sizeof *ids, t.map, t.replicated.rows));
    EXPECT_OK(dkv_pack_ids(back, t.f.rows, wide, t.map, t.replicated.rows));
    cr_assert(memcmp(ids, back, (size_t)t.f.rows * sizeof *ids) == 0, "seed %lu", (unsigned long)seed);
    free(wide);
    twins_close(&t);
  }
}

Test(pack, ids_refuse_prompts_that_differ_and_name_both_copies) {
  const int32_t map[] = {0, 1, 2, 0, 1, 3}, ids[] = {10, 11, 12, 10, 99, 13};
  int32_t packed[4] = {-7, -7, -7, -7};
  EXPECT_FAIL(DKV_ERR_MISMATCH, "replicated rows 1 and 4 are copies of packed row 1 but hold ids 11 and 99",
              dkv_pack_ids(packed, 4, ids, map, 6));
  for (int i = 0; i < 4; ++i) cr_assert(packed[i] == -7, "packed was written");
  EXPECT_FAIL(DKV_ERR_RANGE, "packed row 4", dkv_pack_ids(packed, 5, (int32_t[6]){0}, map, 6));
  EXPECT_FAIL(DKV_ERR_RANGE, "row_map[5] is 3", dkv_pack_ids(packed, 3, ids, map, 6));
  EXPECT_FAIL(DKV_ERR_RANGE, "row_map[0] is -1", dkv_pack_ids(packed, 3, ids, (const int32_t[]){-1}, 1));
  EXPECT_FAIL(DKV_ERR_RANGE, "-4 packed", dkv_pack_ids(packed, -4, ids, map, 6));
  EXPECT_FAIL(DKV_ERR_RANGE, "-6 replicated", dkv_pack_ids(packed, 4, ids, map, -6));
  EXPECT_FAIL(DKV_ERR_NULL, "packed", dkv_pack_ids(NULL, 4, ids, map, 6));
  EXPECT_FAIL(DKV_ERR_NULL, "replicated", dkv_pack_ids(packed, 4, NULL, map, 6));
  EXPECT_FAIL(DKV_ERR_NULL, "row_map", dkv_pack_ids(packed, 4, ids, NULL, 6));
  EXPECT_OK(dkv_pack_ids(NULL, 0, NULL, NULL, 0));
}

Test(pack, fold_adds_in_double_in_ascending_order_and_rounds_once) {
  /* bf16 has 8 bits: 256 + 1 rounds back to 256, so adding one by one would lose both ones. */
  const int32_t zeros[3] = {0, 0, 0};
  uint16_t halves[3] = {dkv_float_to_bf16(256), dkv_float_to_bf16(1), dkv_float_to_bf16(1)}, half;
  EXPECT_OK(dkv_fold_rows(&half, 1, halves, 1, DKV_BF16, zeros, 3));
  cr_assert(dkv_bf16_to_float(half) == 258, "%g", (double)dkv_bf16_to_float(half));
  for (uint64_t seed = 0; seed < 300; ++seed) {
    double terms[40], sum = 0, folded;
    int32_t map[40] = {0};
    for (uint64_t i = 0; i < 40; ++i) terms[i] = exp(4 * (double)dkv_rng_normal(seed, 4, i)) * draw(seed, 5, i);
    for (int i = 0; i < 40; ++i) sum += terms[i];
    EXPECT_OK(dkv_fold_rows(&folded, 1, terms, 1, DKV_F64, map, 40));
    cr_assert(folded == sum, "seed %lu: %.17g, in order %.17g", (unsigned long)seed, folded, sum);
  }
}

Test(pack, fold_handles_every_float_type_and_clears_rows_without_copies) {
  static const dkv_dtype TYPES[] = {DKV_F32, DKV_BF16, DKV_F16, DKV_F64};
  const int32_t map[] = {2, 0, 2, 0, 2};
  const double values[10] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, expected[6] = {10, 12, 0, 0, 15, 18};
  for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; ++i) {
    double in[10], out[6] = {-1, -1, -1, -1, -1, -1};
    EXPECT_OK(dkv_convert(in, TYPES[i], values, DKV_F64, 10));
    EXPECT_OK(dkv_fold_rows(out, 3, in, 2, TYPES[i], map, 5));
    for (int64_t e = 0; e < 6; ++e)
      cr_assert(dkv_element(out, TYPES[i], e) == expected[e], "%s, element %ld", dkv_dtype_name(TYPES[i]), (long)e);
  }
}

Test(pack, fold_and_unpack_refuse_bad_arguments_and_write_nothing) {
  const int32_t map[2] = {0, 1};
  float x[2] = {-7, -7}, y[2] = {1, 2};
  EXPECT_FAIL(DKV_ERR_UNSUPPORTED, "i32", dkv_fold_rows(x, 2, y, 1, DKV_I32, map, 2));
  EXPECT_FAIL(DKV_ERR_UNSUPPORTED, "?", dkv_fold_rows(x, 2, y, 1, DKV_DTYPES, map, 2));
  EXPECT_FAIL(DKV_ERR_RANGE, "rows of -1 elements", dkv_fold_rows(x, 2, y, -1, DKV_F32, map, 2));
  EXPECT_FAIL(DKV_ERR_RANGE, "-2 packed", dkv_fold_rows(x, -2, y, 1, DKV_F32, map, 2));
  EXPECT_FAIL(DKV_ERR_RANGE, "-2 replicated", dkv_fold_rows(x, 2, y, 1, DKV_F32, map, -2));
  EXPECT_FAIL(DKV_ERR_RANGE, "row_map[1] is 1", dkv_fold_rows(x, 1, y, 1, DKV_F32, map, 2));
  EXPECT_FAIL(DKV_ERR_RANGE, "row_map[0] is -3", dkv_fold_rows(x, 1, y, 1, DKV_F32, (const int32_t[]){-3}, 1));
  EXPECT_FAIL(DKV_ERR_NULL, "packed", dkv_fold_rows(NULL, 2, y, 1, DKV_F32, map, 2));
  EXPECT_FAIL(DKV_ERR_NULL, "replicated", dkv_fold_rows(x, 2, NULL, 1, DKV_F32, map, 2));
  EXPECT_FAIL(DKV_ERR_NULL, "row_map", dkv_fold_rows(x, 2, y, 1, DKV_F32, NULL, 2));
  EXPECT_FAIL(DKV_ERR_NULL, "packed", dkv_unpack_rows(x, NULL, 4, map, 2));
  EXPECT_FAIL(DKV_ERR_NULL, "replicated", dkv_unpack_rows(NULL, y, 4, map, 2));
  EXPECT_FAIL(DKV_ERR_NULL, "row_map", dkv_unpack_rows(x, y, 4, NULL, 2));
  EXPECT_FAIL(DKV_ERR_RANGE, "-2 replicated", dkv_unpack_rows(x, y, 4, map, -2));
  EXPECT_FAIL(DKV_ERR_RANGE, "row_map[1] is -1", dkv_unpack_rows(x, y, 4, (const int32_t[]){0, -1}, 2));
  cr_assert(x[0] == -7 && x[1] == -7);
}

Test(pack, predictions_of_the_seven_token_group_are_the_ones_by_hand) {
  static const dkv_prediction HAND[4] = {{2, 3, 1}, {3, 4, 1}, {2, 5, 2}, {5, 6, 2}};
  dkv_layout l;
  dkv_prediction *list;
  int32_t count;
  EXPECT_OK(dkv_layout_group(&l, 3, 2, (const int32_t[]){2, 2}));
  EXPECT_OK(dkv_predictions(&list, &count, &l));
  cr_assert(count == 4 && memcmp(list, HAND, sizeof HAND) == 0);
  free(list);
  dkv_layout_free(&l);
}

Test(pack, predictions_pair_every_response_row_with_the_row_before_it_on_its_path) {
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    struct forest f;
    dkv_layout l;
    dkv_prediction *list;
    int32_t count, next = 0;
    forest_random(&f, seed);
    EXPECT_OK(dkv_layout_forest(&l, f.segments, f.parent, f.length));
    EXPECT_OK(dkv_predictions(&list, &count, &l));
    for (int32_t t = 0; t < f.rows; ++t) {
      int32_t source = t - 1; /* the latest row that t sees, itself apart */
      if (f.parent[f.owner[t]] < 0) continue;
      while (source >= 0 && !forest_sees(&f, t, source)) --source;
      if (source < 0) continue;
      cr_assert(next < count && list[next].target == t && list[next].source == source &&
                    list[next].segment == f.owner[t],
                "seed %lu: the pair of target %d, source %d is missing", (unsigned long)seed, t, source);
      ++next;
    }
    cr_assert(next == count && (count > 0) == (list != NULL), "seed %lu: %d pairs too many", (unsigned long)seed,
              count - next);
    free(list);
    dkv_layout_free(&l);
  }
}

Test(pack, the_last_prompt_row_predicts_the_first_token_of_every_response) {
  dkv_layout l;
  dkv_prediction *list;
  int32_t count, times = 0, length[50];
  for (int i = 0; i < 50; ++i) length[i] = i % 7;
  EXPECT_OK(dkv_layout_group(&l, 9, 50, length));
  EXPECT_OK(dkv_predictions(&list, &count, &l));
  for (int32_t p = 0; p < count; ++p) times += list[p].source == 8;
  cr_assert(count == l.rows - 9 && times == 42, "%d pairs, %d of the last prompt row", count, times);
  free(list);
  dkv_layout_free(&l);
}

Test(pack, predictions_refuse_null) {
  dkv_layout l;
  dkv_prediction *list;
  int32_t count;
  EXPECT_OK(dkv_layout_group(&l, 3, 0, NULL));
  EXPECT_FAIL(DKV_ERR_NULL, "out", dkv_predictions(NULL, &count, &l));
  EXPECT_FAIL(DKV_ERR_NULL, "count", dkv_predictions(&list, NULL, &l));
  EXPECT_FAIL(DKV_ERR_NULL, "layout", dkv_predictions(&list, &count, NULL));
  dkv_layout_free(&l);
}

Test(pack, functions_report_memory_that_is_missing) {
  dkv_layout l;
  dkv_prediction *list = (dkv_prediction *)&l;
  int32_t count;
  float x;
  EXPECT_OK(dkv_layout_group(&l, 1, 1, (const int32_t[]){4 << 20}));
  if (!limit_memory(16 << 20)) cr_skip_test("memory cannot be limited under a sanitizer");
  EXPECT_FAIL(DKV_ERR_NOMEM, "4194304 predictions", dkv_predictions(&list, &count, &l));
  cr_assert(list == NULL && count == 0);
  EXPECT_FAIL(DKV_ERR_NOMEM, "pack 1000000000 rows", dkv_pack_ids(&count, 1000000000, NULL, NULL, 0));
  EXPECT_FAIL(DKV_ERR_NOMEM, "into 1", dkv_fold_rows(&x, 1, NULL, INT64_C(1) << 40, DKV_F32, NULL, 0));
  dkv_layout_free(&l);
}
