/**
 * @file test_compare.c
 * @brief What must never pass does not: NaN, infinity, nothing, one wrong element; and honest noise always does.
 *
 * Read before: common/compare.h.
 */
#include "common/compare.h"

#include <math.h>
#include <stdlib.h>

#include "common/rng.h"
#include "tests/support/expect.h"

enum { ROWS = 24, WIDTH = 40, SIZE = ROWS * WIDTH };

static const dkv_dtype FLOATS[] = {DKV_F32, DKV_BF16, DKV_F16, DKV_F64};

/** Standard normal numbers. */
static void fill(double *y, uint64_t seed) {
  for (uint64_t i = 0; i < SIZE; ++i) y[i] = (double)dkv_rng_normal(seed, 9, i);
}

/** Compares doubles. */
static dkv_comparison compare(const double *x, const double *y, int64_t rows, int64_t width, double bound) {
  dkv_comparison c;
  EXPECT_OK(dkv_compare(&c, x, DKV_F64, y, DKV_F64, rows, width, bound));
  return c;
}

Test(compare, errors_are_the_ones_computed_by_hand) {
  const double y[4] = {3, 4, 0, 0}, x[4] = {3, 4.5, 0, 0.5};
  dkv_comparison c = compare(x, y, 2, 2, 0.01);
  cr_assert(fabs(c.error - sqrt(0.5) / 5) < 1e-15, "%g", c.error);
  /* Row 0 has norm 5 and difference 0.5; row 1 has norm 0, so the floor 5 / sqrt(2) is used. */
  cr_assert(fabs(c.row_error - 0.5 / (5 / sqrt(2))) < 1e-15, "%g", c.row_error);
  /* Element floors are row norms / sqrt(2): 0.5 / (4 + 3.54) in row 0, 0.5 / (0 + 2.5) in row 1. */
  cr_assert(fabs(c.element_error - 0.5 / 2.5) < 1e-15, "%g", c.element_error);
  cr_assert(!c.passed && c.worst_row == 1 && c.worst_index == 1 && c.worst_got == 0.5 && c.worst_want == 0);
  cr_assert(c.elements == 4 && c.not_finite == 0 && c.bound == 0.01);
}

Test(compare, equal_tensors_pass_with_no_error_and_no_worst_row) {
  double y[SIZE];
  fill(y, 1);
  dkv_comparison c = compare(y, y, ROWS, WIDTH, 1e-12);
  cr_assert(c.passed && c.error == 0 && c.row_error == 0 && c.element_error == 0 && c.worst_row == -1);
  memset(y, 0, sizeof y);
  cr_assert(compare(y, y, ROWS, WIDTH, 1e-12).passed, "zero is zero");
}

Test(compare, nothing_compared_is_nothing_passed) {
  double y = 1;
  cr_assert(!compare(&y, &y, 0, 5, 1e-3).passed && !compare(&y, &y, 5, 0, 1e-3).passed);
  cr_assert(!compare(NULL, NULL, 0, 0, 1e-3).passed);
  cr_assert(compare(&y, &y, 0, 5, 1e-3).elements == 0);
}

Test(compare, a_nan_or_infinity_on_either_side_or_both_never_passes_and_is_named) {
  const double BAD[] = {NAN, -NAN, INFINITY, -INFINITY};
  for (size_t t = 0; t < 4; ++t)
    for (uint64_t k = 0; k < 60; ++k) {
      double y[SIZE], bad = BAD[k % 4];
      char got[SIZE * 8], want[SIZE * 8];
      int64_t at = (int64_t)(dkv_rng(3, 9, k).word[0] % SIZE), size = (int64_t)dkv_dtype_size(FLOATS[t]);
      fill(y, k);
      EXPECT_OK(dkv_convert(want, FLOATS[t], y, DKV_F64, SIZE));
      memcpy(got, want, sizeof got);
      if (k % 3 != 1) EXPECT_OK(dkv_convert(got + at * size, FLOATS[t], &bad, DKV_F64, 1));
      if (k % 3 != 0) EXPECT_OK(dkv_convert(want + at * size, FLOATS[t], &bad, DKV_F64, 1));
      dkv_comparison c;
      EXPECT_OK(dkv_compare(&c, got, FLOATS[t], want, FLOATS[t], ROWS, WIDTH, 1e6));
      cr_assert(!c.passed && c.not_finite == 1 && isinf(c.error) && isinf(c.row_error) && isinf(c.element_error),
                "%s, case %lu", dkv_dtype_name(FLOATS[t]), (unsigned long)k);
      cr_assert(c.worst_row == at / WIDTH && c.worst_index == at % WIDTH, "%s, case %lu: row %ld index %ld",
                dkv_dtype_name(FLOATS[t]), (unsigned long)k, (long)c.worst_row, (long)c.worst_index);
    }
}

Test(compare, unwritten_tensors_that_are_still_nan_never_pass) {
  double x[SIZE], y[SIZE];
  fill(y, 1);
  memset(x, 0xff, sizeof x);
  dkv_comparison c = compare(x, y, ROWS, WIDTH, 1);
  cr_assert(!c.passed && c.not_finite == SIZE && c.worst_row == 0 && c.worst_index == 0);
}

Test(compare, one_element_changed_by_its_own_size_is_found_and_named) {
  for (size_t t = 0; t < 4; ++t)
    for (uint64_t k = 0; k < 400; ++k) {
      double y[SIZE], value, bound = dkv_error_bound(FLOATS[t], true);
      char got[SIZE * 8];
      int64_t at = (int64_t)(dkv_rng(4, 9, k).word[0] % SIZE), size = (int64_t)dkv_dtype_size(FLOATS[t]);
      fill(y, k);
      if (fabs(y[at]) < 15 * bound) continue; /* so small that its own size is noise: outlier.h looks closer */
      EXPECT_OK(dkv_convert(got, FLOATS[t], y, DKV_F64, SIZE));
      value = y[at] * (k % 2 == 0 ? 2 : 0);
      EXPECT_OK(dkv_convert(got + at * size, FLOATS[t], &value, DKV_F64, 1));
      dkv_comparison c;
      EXPECT_OK(dkv_compare(&c, got, FLOATS[t], y, DKV_F64, ROWS, WIDTH, bound));
      cr_assert(!c.passed && c.worst_row == at / WIDTH && c.worst_index == at % WIDTH,
                "%s, case %lu: %g changed to %g at row %ld index %ld: %s, row %ld index %ld", dkv_dtype_name(FLOATS[t]),
                (unsigned long)k, y[at], value, (long)(at / WIDTH), (long)(at % WIDTH),
                c.passed ? "passed" : "failed elsewhere", (long)c.worst_row, (long)c.worst_index);
    }
}

Test(compare, a_few_bad_elements_fail_though_their_row_is_within_its_bound) {
  double x[SIZE], y[SIZE], bound = 1e-3;
  for (int i = 0; i < SIZE; ++i) x[i] = y[i] = i % 2 == 0 ? 1 : -1;
  x[7] += 0.021; /* 10.5 bounds of itself and an ordinary element; each bound of the whole allows 31 of one element */
  x[9] -= 0.021;
  dkv_comparison c = compare(x, y, ROWS, WIDTH, bound);
  cr_assert(c.error <= bound && c.row_error <= 10 * bound, "error %g, row %g", c.error, c.row_error);
  cr_assert(c.element_error > 10 * bound && !c.passed && c.worst_row == 0, "element %g", c.element_error);
  cr_assert(c.worst_index == 7 || c.worst_index == 9);
}

Test(compare, rounding_alone_always_passes) {
  for (size_t t = 0; t < 4; ++t)
    for (uint64_t seed = 0; seed < 400; ++seed) {
      double y[SIZE];
      char got[SIZE * 8];
      dkv_comparison c;
      fill(y, seed);
      for (int i = 0; i < SIZE; ++i) y[i] *= exp2((double)(seed % 5) * (i / WIDTH % 4)); /* rows of unlike sizes */
      EXPECT_OK(dkv_convert(got, FLOATS[t], y, DKV_F64, SIZE));
      EXPECT_OK(dkv_compare(&c, got, FLOATS[t], y, DKV_F64, ROWS, WIDTH, dkv_error_bound(FLOATS[t], false)));
      cr_assert(c.passed, "%s, seed %lu: error %g, row %g, element %g", dkv_dtype_name(FLOATS[t]), (unsigned long)seed,
                c.error, c.row_error, c.element_error);
    }
}

/* Where the 16-bit bounds come from: the output is rounded once, the weights (and dS) once more on their way. */
Test(compare, one_rounding_takes_half_of_a_16_bit_bound_and_three_fit_a_gradients) {
  static const dkv_dtype HALVES[] = {DKV_BF16, DKV_F16};
  for (size_t t = 0; t < 2; ++t) {
    double y[SIZE], squares = 0;
    char got[SIZE * 2];
    dkv_comparison c;
    for (uint64_t seed = 0; seed < 100; ++seed) {
      fill(y, seed);
      EXPECT_OK(dkv_convert(got, HALVES[t], y, DKV_F64, SIZE));
      EXPECT_OK(dkv_compare(&c, got, HALVES[t], y, DKV_F64, ROWS, WIDTH, dkv_error_bound(HALVES[t], false)));
      squares += c.error * c.error / 100;
    }
    double once = sqrt(squares), forward = dkv_error_bound(HALVES[t], false);
    cr_assert(once > 0.5 * forward && once < 0.57 * forward, "%s: %g", dkv_dtype_name(HALVES[t]), once);
    cr_assert(sqrt(2) * once < 0.8 * forward && sqrt(3) * once < 0.85 * dkv_error_bound(HALVES[t], true));
  }
}

Test(compare, noise_passes_below_the_bound_and_fails_above_it) {
  for (uint64_t seed = 0; seed < 600; ++seed) {
    double x[SIZE], y[SIZE], level = exp2(-(double)(seed % 40) / 8), bound = 1e-3;
    fill(y, seed);
    for (uint64_t i = 0; i < SIZE; ++i) x[i] = y[i] + bound * level * (double)dkv_rng_normal(seed, 10, i);
    dkv_comparison c = compare(x, y, ROWS, WIDTH, bound);
    if (level < 0.85) cr_assert(c.passed, "seed %lu: noise %g of the bound failed", (unsigned long)seed, level);
    for (uint64_t i = 0; i < SIZE; ++i) x[i] = y[i] + bound / level * 1.2 * (double)dkv_rng_normal(seed, 10, i);
    c = compare(x, y, ROWS, WIDTH, bound);
    cr_assert(!c.passed, "seed %lu: noise %g of the bound passed", (unsigned long)seed, 1.2 / level);
  }
}

Test(compare, one_bad_row_among_many_fails_though_the_whole_error_is_small) {
  enum { MANY = 4000 };
  double *x = malloc(MANY * sizeof *x), *y = malloc(MANY * sizeof *y);
  cr_assert(x != NULL && y != NULL);
  for (uint64_t i = 0; i < MANY; ++i) x[i] = y[i] = (double)dkv_rng_normal(1, 9, i);
  for (int i = 40; i < 44; ++i) x[i] += 0.03 * y[i]; /* row 10 of width 4, wrong by 3 % */
  dkv_comparison c = compare(x, y, MANY / 4, 4, 2e-3);
  cr_assert(c.error < 2e-3 && c.row_error > 2e-2 && !c.passed && c.worst_row == 10, "error %g, row %g in row %ld",
            c.error, c.row_error, (long)c.worst_row);
  free(x);
  free(y);
}

Test(compare, swapped_rows_heads_or_signs_fail) {
  double x[SIZE], y[SIZE];
  fill(y, 2);
  for (int i = 0; i < SIZE; ++i) x[i] = y[(i + WIDTH) % SIZE];
  cr_assert(!compare(x, y, ROWS, WIDTH, 3e-3).passed);
  for (int i = 0; i < SIZE; ++i) x[i] = -y[i];
  cr_assert(!compare(x, y, ROWS, WIDTH, 3e-3).passed);
  memset(x, 0, sizeof x);
  cr_assert(!compare(x, y, ROWS, WIDTH, 3e-3).passed, "an answer of zeros");
  cr_assert(!compare(y, x, ROWS, WIDTH, 3e-3).passed, "anything against zeros");
}

Test(compare, neither_huge_nor_tiny_values_leave_the_range_of_double) {
  static const double SCALES[] = {1e-320, 1e-300, 1e-200, 1, 1e200, 1e305};
  for (size_t s = 0; s < sizeof SCALES / sizeof *SCALES; ++s) {
    double x[SIZE], y[SIZE];
    fill(y, 3);
    for (int i = 0; i < SIZE; ++i) x[i] = y[i] *= SCALES[s];
    cr_assert(compare(x, y, ROWS, WIDTH, 1e-6).passed, "scale %g", SCALES[s]);
    x[77] *= 1.5;
    dkv_comparison c = compare(x, y, ROWS, WIDTH, 1e-6);
    cr_assert(!c.passed && c.worst_row == 77 / WIDTH && c.worst_index == 77 % WIDTH && isfinite(c.error), "scale %g",
              SCALES[s]);
  }
  const double most = 1.7e308, y[2] = {1, -most}, x[2] = {1, most};
  cr_assert(!compare(x, y, 1, 2, 1e-3).passed, "a difference beyond the range of double");
  cr_assert(!compare(x, (const double[]){1, 1}, 1, 2, 1e-3).passed);
}

Test(compare, bounds_are_the_documented_ones) {
  cr_assert(dkv_error_bound(DKV_F32, false) == 2e-6 && dkv_error_bound(DKV_F32, true) == 5e-6);
  cr_assert(dkv_error_bound(DKV_BF16, false) == 3e-3 && dkv_error_bound(DKV_BF16, true) == 3.5e-3);
  cr_assert(dkv_error_bound(DKV_F16, false) == 4e-4 && dkv_error_bound(DKV_F16, true) == 5e-4);
  cr_assert(dkv_error_bound(DKV_F64, false) == 1e-12 && dkv_error_bound(DKV_F64, true) == 1e-12);
  cr_assert(dkv_error_bound(DKV_I32, false) == 0 && dkv_error_bound(DKV_DTYPES, true) == 0);
}

Test(compare, refuses_bad_arguments_and_leaves_a_verdict_that_has_not_passed) {
  const double y[2] = {1, 2};
  dkv_comparison c;
#define REFUSED(status, fragment, ...)                                                                                 \
  do {                                                                                                                 \
    memset(&c, 1, sizeof c);                                                                                           \
    EXPECT_FAIL(status, fragment, dkv_compare(&c, __VA_ARGS__));                                                       \
    cr_assert(!c.passed && isinf(c.error) && c.elements == 0);                                                         \
  } while (0)
  EXPECT_FAIL(DKV_ERR_NULL, "out", dkv_compare(NULL, y, DKV_F64, y, DKV_F64, 1, 2, 1e-3));
  REFUSED(DKV_ERR_NULL, "x and y", NULL, DKV_F64, y, DKV_F64, 1, 2, 1e-3);
  REFUSED(DKV_ERR_NULL, "x and y", y, DKV_F64, NULL, DKV_F64, 1, 2, 1e-3);
  REFUSED(DKV_ERR_UNSUPPORTED, "i64 with f64", y, DKV_I64, y, DKV_F64, 1, 2, 1e-3);
  REFUSED(DKV_ERR_UNSUPPORTED, "f64 with u8", y, DKV_F64, y, DKV_U8, 1, 2, 1e-3);
  REFUSED(DKV_ERR_RANGE, "-1 rows", y, DKV_F64, y, DKV_F64, -1, 2, 1e-3);
  REFUSED(DKV_ERR_RANGE, "-2 elements", y, DKV_F64, y, DKV_F64, 1, -2, 1e-3);
  REFUSED(DKV_ERR_RANGE, "63 bits", y, DKV_F64, y, DKV_F64, INT64_C(1) << 40, INT64_C(1) << 40, 1e-3);
  REFUSED(DKV_ERR_RANGE, "bound 0", y, DKV_F64, y, DKV_F64, 1, 2, 0.0);
  REFUSED(DKV_ERR_RANGE, "bound -1", y, DKV_F64, y, DKV_F64, 1, 2, -1.0);
  REFUSED(DKV_ERR_RANGE, "nan", y, DKV_F64, y, DKV_F64, 1, 2, (double)NAN);
  REFUSED(DKV_ERR_RANGE, "inf", y, DKV_F64, y, DKV_F64, 1, 2, (double)INFINITY);
#undef REFUSED
}
