/**
 * @file test_attention_ref.c
 * @brief The definition is judged first: by a second calculation from ancestry, by finite differences, and by
 * identities.
 *
 * Everything else is judged by the definition, so nothing here may use another kernel.
 *
 * Read before: cpu/attention/ref_fwd.c, ref_bwd.c, tests/support/forest.h.  Read next: test_attention_cpu.c.
 */
#include <math.h>
#include <stdlib.h>

#include "common/execute.h"
#include "tests/support/expect.h"
#include "tests/support/forest.h"

static const dkv_backend *ref(void) {
  const dkv_backend *backend;
  EXPECT_OK(dkv_backend_find(&backend, "ref"));
  return backend;
}

/** A random f64 problem on a random forest. @return false when the forest has no rows */
static bool open_problem(dkv_problem *p, struct forest *f, uint64_t seed, int32_t heads, int32_t kv_heads) {
  dkv_layout layout;
  dkv_random_spec spec = {.heads = heads, .kv_heads = kv_heads, .head_dim = 8, .dtype = DKV_F64, .seed = seed};
  forest_random(f, seed);
  if (f->rows == 0) return false;
  EXPECT_OK(dkv_layout_forest(&layout, f->segments, f->parent, f->length));
  EXPECT_OK(dkv_problem_random(p, &layout, &spec));
  dkv_layout_free(&layout);
  return true;
}

/** Row `row`, head `head` of a [T][heads][8] tensor of doubles. */
static double *row_of(const void *tensor, int32_t row, int32_t head, int32_t heads) {
  return (double *)tensor + ((int64_t)row * heads + head) * 8;
}

static double dot8(const double *x, const double *y) {
  double sum = 0;
  for (int d = 0; d < 8; ++d) sum += x[d] * y[d];
  return sum;
}

/* o_i = sum_j exp(s_ij) v_j / sum_j exp(s_ij), with the mask from ancestry: no end[], no maximum taken out */
Test(attention_ref, forward_is_a_softmax_over_ancestors) {
  struct forest f;
  dkv_problem p;
  int64_t rows = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    if (!open_problem(&p, &f, seed, 4, 2)) continue;
    dkv_results got;
    EXPECT_OK(dkv_execute(&got, ref(), &p, NULL));
    for (int32_t i = 0; i < f.rows; ++i)
      for (int32_t h = 0; h < 4; ++h, ++rows) {
        double sum = 0, o[8] = {0};
        for (int32_t j = 0; j < f.rows; ++j) {
          if (!forest_sees(&f, i, j)) continue;
          double weight = exp(p.scale * dot8(row_of(p.q, i, h, 4), row_of(p.k, j, h / 2, 2)));
          sum += weight;
          for (int d = 0; d < 8; ++d) o[d] += weight * row_of(p.v, j, h / 2, 2)[d];
        }
        double lse = ((double *)got.data[DKV_LSE])[h * f.rows + i];
        cr_assert(fabs(lse - log(sum)) < 1e-12, "seed %lu row %d head %d: lse %g, not %g", (unsigned long)seed, i, h,
                  lse, log(sum));
        for (int d = 0; d < 8; ++d)
          cr_assert(fabs(row_of(got.data[DKV_O], i, h, 4)[d] - o[d] / sum) < 1e-12, "seed %lu row %d head %d",
                    (unsigned long)seed, i, h);
      }
    dkv_results_free(&got);
    dkv_problem_free(&p);
  }
  cr_assert(rows > 1000);
}

/** The loss whose gradient with respect to o is dout: sum of dout * o. */
static double loss(const dkv_problem *p) {
  dkv_problem forward = *p;
  dkv_results results;
  double sum = 0;
  forward.dout = NULL;
  EXPECT_OK(dkv_execute(&results, ref(), &forward, NULL));
  for (int64_t i = 0; i < dkv_result_elements(p, DKV_O); ++i)
    sum += ((const double *)p->dout)[i] * ((const double *)results.data[DKV_O])[i];
  dkv_results_free(&results);
  return sum;
}

/** Every element of one input: (loss(x + h) - loss(x - h)) / 2h against the gradient. */
static void expect_gradient(dkv_problem *p, void *input, const void *gradient, int64_t elements, const char *what,
                            uint64_t seed) {
  const double h = 1e-4; /* the error of the difference is of order h^2 times the third derivative */
  double *x = input;
  for (int64_t i = 0; i < elements; ++i) {
    double kept = x[i], want = ((const double *)gradient)[i];
    x[i] = kept + h;
    double up = loss(p);
    x[i] = kept - h;
    double down = loss(p);
    x[i] = kept;
    cr_assert(fabs((up - down) / (2 * h) - want) < 1e-6, "seed %lu: %s[%ld] is %.9g, the difference says %.9g",
              (unsigned long)seed, what, (long)i, want, (up - down) / (2 * h));
  }
}

Test(attention_ref, backward_is_the_slope_of_forward) {
  struct forest f;
  int64_t elements = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    dkv_problem p;
    dkv_results g;
    if (!open_problem(&p, &f, seed, 2, 1)) continue;
    if (f.rows <= 20) {
      EXPECT_OK(dkv_execute(&g, ref(), &p, NULL));
      expect_gradient(&p, p.q, g.data[DKV_DQ], dkv_result_elements(&p, DKV_DQ), "dq", seed);
      expect_gradient(&p, p.k, g.data[DKV_DK], dkv_result_elements(&p, DKV_DK), "dk", seed);
      expect_gradient(&p, p.v, g.data[DKV_DV], dkv_result_elements(&p, DKV_DV), "dv", seed);
      elements += dkv_result_elements(&p, DKV_DQ);
      dkv_results_free(&g);
    }
    dkv_problem_free(&p);
  }
  cr_assert(elements > 500, "only %ld elements were tried", (long)elements);
}

/* weights of a row sum to 1: sum_j dv_j = sum_i dout_i;  ds of a row sum to 0: with equal q, sum_j dk_j = 0 */
Test(attention_ref, gradients_of_values_sum_to_dout_and_of_keys_to_zero) {
  struct forest f;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    dkv_problem p;
    dkv_results g;
    if (!open_problem(&p, &f, seed, 3, 1)) continue;
    for (int64_t i = 0; i < dkv_result_elements(&p, DKV_O); ++i) ((double *)p.q)[i] = 0.5 + 0.1 * (double)(i % 8);
    EXPECT_OK(dkv_execute(&g, ref(), &p, NULL));
    for (int d = 0; d < 8; ++d) {
      double dv = 0, dk = 0, dout = 0;
      for (int32_t i = 0; i < f.rows; ++i) {
        dv += row_of(g.data[DKV_DV], i, 0, 1)[d];
        dk += row_of(g.data[DKV_DK], i, 0, 1)[d];
        for (int32_t h = 0; h < 3; ++h) dout += row_of(p.dout, i, h, 3)[d];
      }
      cr_assert(fabs(dv - dout) < 1e-11, "seed %lu: dv sums to %g, dout to %g", (unsigned long)seed, dv, dout);
      cr_assert(fabs(dk) < 1e-11, "seed %lu: dk sums to %g", (unsigned long)seed, dk);
    }
    dkv_results_free(&g);
    dkv_problem_free(&p);
  }
}

/* s_ij + c <q_i, u> for all j: the softmax does not notice, lse moves by c <q_i, u> */
Test(attention_ref, one_vector_added_to_all_keys_only_moves_lse) {
  struct forest f;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const double u[8] = {1, -2, 0.5, 3, 0, 1, -1, 0.25};
    dkv_problem p;
    dkv_results before, after;
    if (!open_problem(&p, &f, seed, 2, 2)) continue;
    EXPECT_OK(dkv_execute(&before, ref(), &p, NULL));
    for (int64_t i = 0; i < dkv_result_elements(&p, DKV_DK); ++i) ((double *)p.k)[i] += u[i % 8];
    EXPECT_OK(dkv_execute(&after, ref(), &p, NULL));
    for (int32_t i = 0; i < f.rows; ++i)
      for (int32_t h = 0; h < 2; ++h) {
        double moved =
            ((double *)after.data[DKV_LSE])[h * f.rows + i] - ((double *)before.data[DKV_LSE])[h * f.rows + i];
        cr_assert(fabs(moved - p.scale * dot8(row_of(p.q, i, h, 2), u)) < 1e-11);
        for (int d = 0; d < 8; ++d)
          cr_assert(fabs(row_of(after.data[DKV_O], i, h, 2)[d] - row_of(before.data[DKV_O], i, h, 2)[d]) < 1e-11);
      }
    dkv_results_free(&before);
    dkv_results_free(&after);
    dkv_problem_free(&p);
  }
}

/* 16-bit and f32 storage: the same numbers, computed in double, rounded once */
Test(attention_ref, other_types_are_the_double_result_rounded_once) {
  struct forest f;
  for (uint64_t seed = 1; seed < 12; ++seed) {
    const dkv_dtype types[] = {DKV_F32, DKV_BF16, DKV_F16};
    dkv_problem p;
    if (!open_problem(&p, &f, seed, 2, 1)) continue;
    for (int t = 0; t < 3; ++t) {
      dkv_problem rounded, exact;
      dkv_results got, want;
      EXPECT_OK(dkv_problem_cast(&rounded, &p, types[t]));
      EXPECT_OK(dkv_problem_cast(&exact, &rounded, DKV_F64));
      free(rounded.dout);
      free(exact.dout);
      rounded.dout = exact.dout = NULL; /* the backward reads the rounded o: compared in test_attention_cpu.c */
      EXPECT_OK(dkv_execute(&got, ref(), &rounded, NULL));
      EXPECT_OK(dkv_execute(&want, ref(), &exact, NULL));
      for (int64_t i = 0; i < dkv_result_elements(&p, DKV_O); ++i) {
        double once, x = dkv_element(want.data[DKV_O], DKV_F64, i);
        char stored[8];
        EXPECT_OK(dkv_convert(stored, types[t], &x, DKV_F64, 1));
        once = dkv_element(stored, types[t], 0);
        cr_assert(dkv_element(got.data[DKV_O], types[t], i) == once, "%s element %ld", dkv_dtype_name(types[t]),
                  (long)i);
      }
      dkv_results_free(&got);
      dkv_results_free(&want);
      dkv_problem_free(&rounded);
      dkv_problem_free(&exact);
    }
    dkv_problem_free(&p);
  }
}

Test(attention_ref, huge_scores_do_not_overflow) {
  const int32_t length = 5;
  dkv_layout layout;
  dkv_problem p;
  dkv_results g;
  dkv_random_spec spec = {.heads = 1, .kv_heads = 1, .head_dim = 8, .dtype = DKV_F64, .gain = 1e30, .seed = 3};
  EXPECT_OK(dkv_layout_group(&layout, 4, 1, &length));
  EXPECT_OK(dkv_problem_random(&p, &layout, &spec));
  EXPECT_OK(dkv_execute(&g, ref(), &p, NULL));
  for (int r = 0; r < DKV_RESULTS; ++r)
    for (int64_t i = 0; i < dkv_result_elements(&p, (dkv_result)r); ++i)
      cr_assert(isfinite(((double *)g.data[r])[i]), "%s[%ld]", dkv_result_name((dkv_result)r), (long)i);
  dkv_results_free(&g);
  dkv_problem_free(&p);
  dkv_layout_free(&layout);
}

Test(attention_ref, says_what_is_missing) {
  dkv_layout layout;
  double x[64], lse[8], room[64];
  size_t bytes;
  EXPECT_OK(dkv_layout_group(&layout, 2, 0, NULL));
  dkv_attention call = {.layout = &layout,
                        .heads = 1,
                        .kv_heads = 1,
                        .head_dim = 8,
                        .scale = 1,
                        .dtype = DKV_F64,
                        .q = x,
                        .k = x,
                        .v = x,
                        .o = x,
                        .lse = lse,
                        .dout = x,
                        .dq = x,
                        .dk = x,
                        .dv = x,
                        .workspace = room,
                        .workspace_bytes = 8};
  for (int32_t n = 0; n < ref()->kernel_count; ++n) {
    const dkv_kernel *kernel = &ref()->kernels[n];
    EXPECT_FAIL(DKV_ERR_NOMEM, "workspace of 8 bytes", kernel->run(&call));
    EXPECT_FAIL(DKV_ERR_NULL, "must not be NULL", kernel->workspace(&call, NULL));
    EXPECT_FAIL(DKV_ERR_NULL, "must not be NULL", kernel->workspace(NULL, &bytes));
  }
  dkv_layout_free(&layout);
}
