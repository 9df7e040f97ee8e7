/**
 * @file test_outlier.c
 * @brief One element changed by its own size is found in a large tensor, and noise alone never is.
 *
 * The tensors are [12][512] normal numbers, like an output of 4 heads of 128.  "Its own size" is x -> 2 x; elements
 * smaller than what rounding leaves visible (0.1 % of a row's root mean square in bf16 from a kernel that only rounds
 * its results) are beyond any judge and are not asked for.
 *
 * Read before: common/outlier.h.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "common/compare.h"
#include "common/outlier.h"
#include "common/rng.h"

enum { ROWS = 12, WIDTH = 512, COUNT = ROWS * WIDTH };

/** An answer, and the outputs of a kernel with relative noise `noise`, stored as `dtype`. */
struct tensors {
  double answer[COUNT];
  float exact[COUNT];
  uint8_t stored[COUNT * 8];
};

static void fill(struct tensors *t, uint64_t seed, dkv_dtype dtype, double noise) {
  for (uint64_t i = 0; i < COUNT; ++i) {
    t->answer[i] = (double)dkv_rng_normal(seed, 0, i);
    t->exact[i] = (float)(t->answer[i] + noise * (double)dkv_rng_normal(seed, 1, i));
  }
  cr_assert_eq(dkv_convert(t->stored, dtype, t->exact, DKV_F32, COUNT), DKV_OK);
}

static dkv_comparison compare(const struct tensors *t, dkv_dtype dtype) {
  dkv_comparison verdict;
  double bound = dkv_error_bound(dtype, false);
  cr_assert_eq(dkv_compare(&verdict, t->stored, dtype, t->answer, DKV_F64, ROWS, WIDTH, bound), DKV_OK);
  int64_t alone = dkv_outlier(t->stored, dtype, t->answer, DKV_F64, NULL, ROWS, WIDTH, bound);
  if (alone >= 0) {
    verdict.passed = false;
    verdict.worst_row = alone / WIDTH;
    verdict.worst_index = alone % WIDTH;
  }
  return verdict;
}

/** Stores 2 x in place of element i. */
static void double_element(struct tensors *t, dkv_dtype dtype, int64_t i) {
  size_t size = dkv_dtype_size(dtype);
  double twice = 2 * dkv_element(t->stored, dtype, i);
  cr_assert_eq(dkv_convert(t->stored + (size_t)i * size, dtype, &twice, DKV_F64, 1), DKV_OK);
}

/** Doubles every element above `visible`, one at a time, and expects each to be named. */
static void expect_each_doubling_named(dkv_dtype dtype, double noise, double visible) {
  struct tensors *t = malloc(sizeof *t);
  cr_assert_not_null(t);
  fill(t, 5, dtype, noise);
  cr_assert(compare(t, dtype).passed);
  int64_t asked = 0;
  for (int64_t i = 0; i < COUNT; i += 11) {
    if (fabs(t->answer[i]) < visible) continue;
    uint8_t before[8];
    size_t size = dkv_dtype_size(dtype);
    memcpy(before, t->stored + (size_t)i * size, size);
    double_element(t, dtype, i);
    dkv_comparison verdict = compare(t, dtype);
    cr_assert_not(verdict.passed, "%s: doubling element %ld = %g passed", dkv_dtype_name(dtype), (long)i, t->answer[i]);
    cr_assert_eq(verdict.worst_row * WIDTH + verdict.worst_index, i);
    memcpy(t->stored + (size_t)i * size, before, size);
    ++asked;
  }
  cr_assert_gt(asked, COUNT / 11 * 9 / 10);
  free(t);
}

Test(outlier, a_doubled_element_is_named_in_f32) { expect_each_doubling_named(DKV_F32, 2e-7, 1e-4); }
Test(outlier, a_doubled_element_is_named_in_bf16) { expect_each_doubling_named(DKV_BF16, 1e-6, 1e-3); }
Test(outlier, a_doubled_element_is_named_in_f16) { expect_each_doubling_named(DKV_F16, 1e-6, 1e-3); }
Test(outlier, a_doubled_element_is_named_beside_tensor_core_noise) { expect_each_doubling_named(DKV_BF16, 8e-4, 0.05); }

/** Right answers pass: every type, noise from none to half the bound, many seeds. */
Test(outlier, noise_alone_passes) {
  struct tensors *t = malloc(sizeof *t);
  cr_assert_not_null(t);
  const dkv_dtype dtypes[] = {DKV_F32, DKV_BF16, DKV_F16};
  for (int d = 0; d < 3; ++d) {
    for (uint64_t seed = 0; seed < 24; ++seed) {
      double noise = dkv_error_bound(dtypes[d], false) * (double)seed / 48;
      fill(t, seed, dtypes[d], noise);
      dkv_comparison verdict = compare(t, dtypes[d]);
      cr_assert(verdict.passed, "%s, seed %lu, noise %g: error %g, row %g, element %g, alone %d",
                dkv_dtype_name(dtypes[d]), (unsigned long)seed, noise, verdict.error, verdict.row_error,
                verdict.element_error, verdict.stands_alone);
    }
  }
  free(t);
}

/** A right f32 kernel is a few units in the last place off at one element and exact at the others: no alarm. */
Test(outlier, units_in_the_last_place_are_no_outlier) {
  enum { LSE = 175 };
  double answer[LSE];
  float got[LSE];
  for (uint64_t i = 0; i < LSE; ++i) {
    answer[i] = 4 + fabs((double)dkv_rng_normal(11, 0, i));
    got[i] = (float)answer[i];
  }
  for (int64_t at = 0; at < LSE; ++at) {
    float before = got[at];
    for (int step = 0; step < 4; ++step) got[at] = nextafterf(got[at], 100);
    cr_assert_eq(dkv_outlier(got, DKV_F32, answer, DKV_F64, NULL, 1, LSE, 2e-6), -1, "element %ld", (long)at);
    got[at] = before * (1 + 1e-4f);
    cr_assert_eq(dkv_outlier(got, DKV_F32, answer, DKV_F64, NULL, 1, LSE, 2e-6), at);
    got[at] = before;
  }
}

/** The same inside one row: an error just below the bound's share of a narrow row, ten times its neighbours'. */
Test(outlier, a_large_element_with_noise_of_its_size_is_no_outlier) {
  enum { ROW = 56, ALL = 20 * ROW };
  double answer[ALL];
  float got[ALL];
  for (uint64_t i = 0; i < ALL; ++i) {
    answer[i] = 0.2 * (double)dkv_rng_normal(12, 0, i);
    got[i] = (float)(answer[i] + 5e-8 * (double)dkv_rng_normal(12, 1, i));
  }
  answer[7 * ROW + 51] = 0.905039277;
  got[7 * ROW + 51] = 0.905038277f; /* 1e-6 off: 9e-7 of the element, 4e-6 of its row's root mean square */
  cr_assert_eq(dkv_outlier(got, DKV_F32, answer, DKV_F64, NULL, 20, ROW, 5e-6), -1);
  got[7 * ROW + 51] = 0.90513f; /* 1e-4 off */
  cr_assert_eq(dkv_outlier(got, DKV_F32, answer, DKV_F64, NULL, 20, ROW, 5e-6), 7 * ROW + 51);
}

/** Rows of very different size: a doubled element of a tiny row is found by that row's scale. */
Test(outlier, a_doubled_element_of_a_tiny_row_is_named) {
  struct tensors *t = malloc(sizeof *t);
  cr_assert_not_null(t);
  for (uint64_t i = 0; i < COUNT; ++i) {
    double size = pow(10, -(double)(i / WIDTH)); /* down to 1e-11 */
    t->answer[i] = size * (double)dkv_rng_normal(9, 0, i);
    t->exact[i] = (float)(t->answer[i] + 2e-6 * size * (double)dkv_rng_normal(9, 1, i));
  }
  for (int64_t row = 0; row < ROWS; ++row) {
    memcpy(t->stored, t->exact, sizeof t->exact);
    cr_assert_lt(dkv_outlier(t->stored, DKV_F32, t->answer, DKV_F64, NULL, ROWS, WIDTH, 5e-6), 0);
    double_element(t, DKV_F32, row * WIDTH + 3);
    cr_assert_eq(dkv_outlier(t->stored, DKV_F32, t->answer, DKV_F64, NULL, ROWS, WIDTH, 5e-6), row * WIDTH + 3);
  }
  free(t);
}

/** An element may be near either of two right answers. */
Test(outlier, a_second_right_answer_counts) {
  enum { N = 128 };
  double answer[N], other[N], got[N];
  for (uint64_t i = 0; i < N; ++i) {
    answer[i] = (double)dkv_rng_normal(3, 0, i);
    other[i] = answer[i] + (i == 7 ? 0.01 : 0);
    got[i] = other[i];
  }
  cr_assert_eq(dkv_outlier(got, DKV_F64, answer, DKV_F64, NULL, 2, N / 2, 1e-6), 7);
  cr_assert_eq(dkv_outlier(got, DKV_F64, answer, DKV_F64, other, 2, N / 2, 1e-6), -1);
}

/** Few elements have no crowd to stand alone in. */
Test(outlier, small_tensors_have_none) {
  const double answer[2] = {1, 2};
  const float got[2] = {1.0000006f, 2};
  cr_assert_eq(dkv_outlier(got, DKV_F32, answer, DKV_F64, NULL, 1, 2, 2e-6), -1);
}
