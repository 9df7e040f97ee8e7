/**
 * @file test_problem.c
 * @brief Problems in memory: random, in another type, replicated; and every documented refusal.
 *
 * Read before: common/problem.h.  Read next: tests/test_problem_file.c.
 */
#include "common/problem.h"

#include <math.h>
#include <stdlib.h>

#include "common/pack.h"
#include "tests/support/expect.h"
#include "tests/support/memory.h"

static const dkv_random_spec sound = {.heads = 4, .kv_heads = 2, .head_dim = 16, .dtype = DKV_F32, .seed = 5};

/** P=5 and responses of 3, 0 and 4 rows. */
static dkv_layout group(void) {
  dkv_layout layout;
  EXPECT_OK(dkv_layout_group(&layout, 5, 3, (const int32_t[]){3, 0, 4}));
  return layout;
}

/** A random problem on that group. */
static dkv_problem problem_of(dkv_dtype dtype, uint64_t seed) {
  dkv_layout layout = group();
  dkv_problem problem;
  dkv_random_spec spec = sound;
  spec.dtype = dtype;
  spec.seed = seed;
  EXPECT_OK(dkv_problem_random(&problem, &layout, &spec));
  dkv_layout_free(&layout);
  return problem;
}

/** Mean and variance of n elements. */
static void moments(const void *data, dkv_dtype dtype, int64_t n, double *mean, double *variance) {
  double sum = 0.0, squares = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    double x = dkv_element(data, dtype, i);
    sum += x;
    squares += x * x;
  }
  *mean = sum / (double)n;
  *variance = squares / (double)n - *mean * *mean;
}

Test(problem, of_random_numbers_is_standard_normal_in_every_type) {
  for (int type = 0; type < 4; ++type) {
    dkv_dtype dtype = (dkv_dtype[]){DKV_F32, DKV_BF16, DKV_F16, DKV_F64}[type];
    int32_t length = 2000, root = -1;
    dkv_layout layout;
    dkv_problem p;
    dkv_random_spec spec = {.heads = 2, .kv_heads = 1, .head_dim = 8, .dtype = dtype, .seed = 9, .gain = 3.0};
    EXPECT_OK(dkv_layout_forest(&layout, 1, &root, &length));
    EXPECT_OK(dkv_problem_random(&p, &layout, &spec));
    const void *const tensors[4] = {p.q, p.k, p.v, p.dout};
    for (int t = 0; t < 4; ++t) {
      double mean, variance, want = t == 0 ? 9.0 : 1.0; /* only q has a gain */
      moments(tensors[t], dtype, t % 3 == 0 ? 32000 : 16000, &mean, &variance);
      cr_assert(fabs(mean) < 0.06 && fabs(variance / want - 1.0) < 0.06, "%s tensor %d: mean %g, variance %g",
                dkv_dtype_name(dtype), t, mean, variance);
    }
    cr_assert(memcmp(p.k, p.v, 100) != 0 && p.answer.data[DKV_O] == NULL);
    cr_assert(fabs(p.scale - 1.0 / sqrt(8.0)) < 1e-15);
    dkv_problem_free(&p);
    dkv_layout_free(&layout);
  }
}

Test(problem, of_one_seed_is_always_the_same) {
  dkv_problem a = problem_of(DKV_F32, 1), b = problem_of(DKV_F32, 1), c = problem_of(DKV_F32, 2);
  size_t bytes = (size_t)dkv_result_elements(&a, DKV_O) * 4;
  cr_assert(memcmp(a.q, b.q, bytes) == 0 && memcmp(a.dout, b.dout, bytes) == 0);
  cr_assert(memcmp(a.q, c.q, bytes) != 0);
  dkv_problem_free(&a);
  dkv_problem_free(&b);
  dkv_problem_free(&c);
}

Test(problem, has_results_of_the_shapes_that_the_header_says) {
  dkv_problem p = problem_of(DKV_F32, 1);
  int64_t rows, width;
  cr_assert_str_eq(dkv_result_name(DKV_O), "o");
  cr_assert_str_eq(dkv_result_name(DKV_LSE), "lse");
  cr_assert_str_eq(dkv_result_name(DKV_DV), "dv");
  cr_assert_str_eq(dkv_result_name(DKV_RESULTS), "?");
  cr_assert(dkv_result_elements(&p, DKV_O) == 12 * 4 * 16 && dkv_result_elements(&p, DKV_DK) == 12 * 2 * 16);
  cr_assert(dkv_result_elements(&p, DKV_LSE) == 4 * 12);
  dkv_result_shape(&p, DKV_LSE, &rows, &width);
  cr_assert(rows == 4 && width == 12);
  dkv_result_shape(&p, DKV_DV, &rows, &width);
  cr_assert(rows == 12 && width == 32);
  dkv_problem_free(&p);
  dkv_problem_free(&p); /* a freed one may be freed again */
  dkv_problem_free(NULL);
  dkv_results_free(NULL);
}

Test(problem, of_no_rows_is_legal) {
  dkv_layout none;
  dkv_problem p, twin, cast;
  int32_t *map;
  EXPECT_OK(dkv_layout_group(&none, 0, 2, (const int32_t[]){0, 0}));
  EXPECT_OK(dkv_problem_random(&p, &none, &sound));
  EXPECT_OK(dkv_problem_replicate(&twin, &map, &p));
  EXPECT_OK(dkv_problem_cast(&cast, &p, DKV_BF16));
  cr_assert(p.layout.rows == 0 && twin.layout.rows == 0 && twin.layout.segments == 2);
  free(map);
  dkv_problem_free(&cast);
  dkv_problem_free(&twin);
  dkv_problem_free(&p);
  dkv_layout_free(&none);
}

Test(problem, cast_rounds_once_and_drops_answers_that_no_longer_fit) {
  dkv_problem wide = problem_of(DKV_F64, 3), half, same;
  int64_t n = dkv_result_elements(&wide, DKV_O);
  wide.answer = (dkv_results){.dtype = DKV_F64, .lse_dtype = DKV_F64};
  wide.answer.data[DKV_O] = calloc((size_t)n, 8);
  ((double *)wide.answer.data[DKV_O])[7] = 42.0;
  EXPECT_OK(dkv_problem_cast(&half, &wide, DKV_BF16));
  EXPECT_OK(dkv_problem_cast(&same, &wide, DKV_F64));
  for (int64_t i = 0; i < n; ++i) {
    double exact = dkv_element(wide.q, DKV_F64, i), rounded = dkv_element(half.q, DKV_BF16, i);
    cr_assert(fabs(rounded - exact) <= fabs(exact) / 256.0);
  }
  cr_assert(half.answer.data[DKV_O] == NULL && half.dtype == DKV_BF16 && half.dout != NULL);
  cr_assert(dkv_element(same.answer.data[DKV_O], DKV_F64, 7) > 41.0 && same.answer.data[DKV_LSE] == NULL);
  cr_assert(memcmp(same.v, wide.v, (size_t)dkv_result_elements(&wide, DKV_DV) * 8) == 0);
  dkv_problem_free(&wide);
  dkv_problem_free(&half);
  dkv_problem_free(&same);
}

/** The twin's dout folds back to the packed dout exactly: one copy has it, the others are zero. */
Test(problem, replicate_copies_inputs_and_gives_dout_to_the_first_copy) {
  dkv_problem packed = problem_of(DKV_F32, 4), twin;
  int32_t *map;
  EXPECT_OK(dkv_problem_replicate(&twin, &map, &packed));
  cr_assert(twin.layout.rows == 3 * 5 + 3 + 4 && twin.layout.segments == 3);
  size_t n = (size_t)dkv_result_elements(&packed, DKV_O);
  float *folded = malloc(n * sizeof *folded);
  EXPECT_OK(dkv_fold_rows(folded, packed.layout.rows, twin.dout, 64, DKV_F32, map, twin.layout.rows));
  cr_assert(memcmp(folded, packed.dout, n * sizeof *folded) == 0);
  for (int32_t r = 0; r < twin.layout.rows; ++r) {
    cr_assert(memcmp((char *)twin.k + (size_t)r * 128, (char *)packed.k + (size_t)map[r] * 128, 128) == 0);
    cr_assert(memcmp((char *)twin.q + (size_t)r * 256, (char *)packed.q + (size_t)map[r] * 256, 256) == 0);
  }
  free(folded);
  free(map);
  dkv_problem_free(&twin);
  dkv_problem_free(&packed);
}

Test(problem, replicates_a_forward_only_problem) {
  dkv_problem packed = problem_of(DKV_F16, 4), twin, cast;
  int32_t *map;
  free(packed.dout);
  packed.dout = NULL;
  EXPECT_OK(dkv_problem_replicate(&twin, &map, &packed));
  EXPECT_OK(dkv_problem_cast(&cast, &packed, DKV_F32));
  cr_assert(twin.dout == NULL && cast.dout == NULL);
  free(map);
  dkv_problem_free(&cast);
  dkv_problem_free(&twin);
  dkv_problem_free(&packed);
}

/** A spec with one field changed must be refused, and leave *out zeroed. */
static void expect_refused(dkv_random_spec spec, dkv_status status, const char *fragment) {
  static const dkv_problem zero;
  dkv_layout layout = group();
  dkv_problem p;
  memset(&p, 0xff, sizeof p);
  EXPECT_FAIL(status, fragment, dkv_problem_random(&p, &layout, &spec));
  cr_assert(memcmp(&p, &zero, sizeof zero) == 0);
  dkv_layout_free(&layout);
}

Test(problem, random_refuses_impossible_shapes) {
  dkv_random_spec s = sound;
  s.heads = 3, expect_refused(s, DKV_ERR_SHAPE, "H=3 is not a multiple of Hkv=2"), s = sound;
  s.heads = 0, expect_refused(s, DKV_ERR_RANGE, "H=0"), s = sound;
  s.kv_heads = -1, expect_refused(s, DKV_ERR_RANGE, "Hkv=-1"), s = sound;
  s.head_dim = 12, expect_refused(s, DKV_ERR_SHAPE, "D=12 is not a multiple of 8"), s = sound;
  s.head_dim = 0, expect_refused(s, DKV_ERR_RANGE, "D=0"), s = sound;
  s.head_dim = 264, expect_refused(s, DKV_ERR_RANGE, "D=264"), s = sound;
  s.scale = (double)NAN, expect_refused(s, DKV_ERR_RANGE, "scale is"), s = sound;
  s.gain = (double)INFINITY, expect_refused(s, DKV_ERR_RANGE, "gain is inf"), s = sound;
  s.dtype = DKV_I32, expect_refused(s, DKV_ERR_UNSUPPORTED, "dtype i32");
}

Test(problem, refuses_null_arguments) {
  dkv_layout layout = group();
  dkv_problem p = problem_of(DKV_F32, 1), out;
  int32_t *map;
  EXPECT_FAIL(DKV_ERR_NULL, "out", dkv_problem_random(NULL, &layout, &sound));
  EXPECT_FAIL(DKV_ERR_NULL, "layout", dkv_problem_random(&out, NULL, &sound));
  EXPECT_FAIL(DKV_ERR_NULL, "spec", dkv_problem_random(&out, &layout, NULL));
  EXPECT_FAIL(DKV_ERR_NULL, "out", dkv_problem_cast(NULL, &p, DKV_F32));
  EXPECT_FAIL(DKV_ERR_NULL, "from", dkv_problem_cast(&out, NULL, DKV_F32));
  EXPECT_FAIL(DKV_ERR_UNSUPPORTED, "dtype u8", dkv_problem_cast(&out, &p, DKV_U8));
  EXPECT_FAIL(DKV_ERR_NULL, "out", dkv_problem_replicate(NULL, &map, &p));
  EXPECT_FAIL(DKV_ERR_NULL, "row_map", dkv_problem_replicate(&out, NULL, &p));
  EXPECT_FAIL(DKV_ERR_NULL, "packed", dkv_problem_replicate(&out, &map, NULL));
  dkv_problem_free(&p);
  dkv_layout_free(&layout);
}

Test(problem, says_when_memory_runs_out) {
  int32_t root = -1, rows = 1 << 20;
  dkv_layout layout;
  dkv_problem p;
  static const dkv_problem zero;
  dkv_random_spec large = {.heads = 64, .kv_heads = 64, .head_dim = 256, .dtype = DKV_F64};
  EXPECT_OK(dkv_layout_forest(&layout, 1, &root, &rows));
  if (!limit_memory((size_t)256 << 20)) cr_skip_test("the address space cannot be limited under a sanitizer");
  EXPECT_FAIL(DKV_ERR_NOMEM, "no memory for a problem of 1048576 rows", dkv_problem_random(&p, &layout, &large));
  cr_assert(memcmp(&p, &zero, sizeof zero) == 0);
  dkv_layout_free(&layout);
}

Test(problem, refuses_a_replica_of_too_many_rows) {
  enum { N = 3000 };
  static int32_t length[N];
  dkv_layout layout;
  dkv_problem p, twin;
  int32_t *map;
  dkv_random_spec small = {.heads = 1, .kv_heads = 1, .head_dim = 8, .dtype = DKV_BF16};
  for (int n = 0; n < N; ++n) length[n] = 1;
  EXPECT_OK(dkv_layout_group(&layout, 800000, N, length)); /* 2.4e9 rows replicated */
  EXPECT_OK(dkv_problem_random(&p, &layout, &small));
  EXPECT_FAIL(DKV_ERR_RANGE, "rows", dkv_problem_replicate(&twin, &map, &p));
  cr_assert(map == NULL && twin.q == NULL);
  dkv_problem_free(&p);
  dkv_layout_free(&layout);
}
