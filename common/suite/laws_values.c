/**
 * @file laws_values.c
 * @brief Laws about values: constant values come out unchanged, shifted keys change nothing, repeated key heads are
 * GQA.
 *
 *     constant  v_j = w for all j      =>  o_i = w,  dq = dk = 0          (the weights of a row sum to one)
 *     shift     k_j -> k_j + u         =>  lse_i -> lse_i + c <q_i, u>,  o and all gradients stay   (softmax is
 * shift-free) heads     k, v repeated to H heads  =>  same o, dq;  dk, dv sum over the copies
 *
 * Read before: laws.h.  Read next: laws_isolation.c.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/compare.h"
#include "common/rng.h"
#include "common/suite/laws.h"

/** Address of element i. */
static char *at(void *data, dkv_dtype dtype, int64_t i) { return (char *)data + (size_t)i * dkv_dtype_size(dtype); }

/** Writes one element. */
static void put(void *data, dkv_dtype dtype, int64_t i, double x) {
  (void)dkv_convert(at(data, dtype, i), dtype, &x, DKV_F64, 1); /* both are float types: cannot fail */
}

/** n zeroed doubles, or a stopped suite. */
static double *doubles(dkv_check *check, int64_t n) {
  double *out = calloc((size_t)n + 1, sizeof *out);
  if (out == NULL) dkv_check_ok(check, dkv_fail(DKV_ERR_NOMEM, "suite: no memory for %lld numbers", (long long)n));
  return out;
}

/** A problem on the n-th of three layouts: a ragged group, two groups, a tree. */
static bool make(dkv_check *check, dkv_problem *out, int32_t n, dkv_heads heads) {
  static const int32_t chosen[] = {5, 11, 12};
  dkv_layout layout = {0};
  const char *name;
  bool fine = dkv_check_ok(check, dkv_suite_layout(&layout, &name, chosen[n % 3], check->seed)) &&
              dkv_check_problem(check, out, &layout, name, heads, 0.0, 0.0);
  dkv_layout_free(&layout);
  return fine;
}

/** Constant v, forward: o is v's only row. */
static bool constant_forward(dkv_check *check, const dkv_problem *p, const dkv_results *got) {
  int64_t n = dkv_result_elements(p, DKV_O), D = p->head_dim;
  double *want = doubles(check, n);
  if (want == NULL) return false;
  for (int64_t i = 0; i < n; ++i) {
    int64_t head = i / D % p->heads / (p->heads / p->kv_heads);
    want[i] = dkv_element(p->v, p->dtype, head * D + i % D);
  }
  bool fine = dkv_check_near(check, DKV_O, got->data[DKV_O], got->dtype, want, DKV_F64, dkv_check_rows(p, DKV_O), 0.0);
  free(want);
  return fine;
}

/** Constant v, backward: dq and dk are rounding, and of f32, since o is exact in every type. */
static bool constant_backward(dkv_check *check, const dkv_problem *p, const dkv_results *got) {
  double floor = dkv_check_floor(p);
  if (check->dtype != DKV_F64) floor *= dkv_error_bound(DKV_F32, true) / dkv_error_bound(check->dtype, true);
  double *zero = doubles(check, dkv_result_elements(p, DKV_DQ));
  bool fine =
      zero != NULL &&
      dkv_check_near(check, DKV_DQ, got->data[DKV_DQ], got->dtype, zero, DKV_F64, dkv_check_rows(p, DKV_DQ), floor) &&
      dkv_check_near(check, DKV_DK, got->data[DKV_DK], got->dtype, zero, DKV_F64, dkv_check_rows(p, DKV_DK), floor);
  free(zero);
  return fine;
}

void dkv_law_constant(dkv_check *check) {
  bool fine = true;
  for (int32_t n = 0; n < 3 && fine; ++n) {
    dkv_problem p = {0};
    dkv_results got = {0};
    fine = make(check, &p, n, dkv_suite_heads(check, n));
    int64_t width = fine ? dkv_check_rows(&p, DKV_DV).width : 0;
    for (int64_t row = 1; fine && row < p.layout.rows; ++row) {
      memcpy(at(p.v, p.dtype, row * width), p.v, (size_t)width * dkv_dtype_size(p.dtype));
    }
    fine = fine && dkv_check_run(check, &got, &p, NULL, NULL);
    fine = fine && (check->kernel->direction == DKV_FORWARD ? constant_forward(check, &p, &got)
                                                            : constant_backward(check, &p, &got));
    dkv_results_free(&got);
    dkv_problem_free(&p);
  }
}

/** A multiple of 1/8 in [-2, 2]: sums of two are exact in every storage type. */
static double grid(uint64_t seed, uint64_t stream, int64_t i) {
  return floor((double)dkv_rng_uniform(seed, stream, (uint64_t)i) * 33.0) / 8.0 - 2.0;
}

/** Keys on the grid, plus, when asked, one vector u per key head added to all rows. */
static void set_keys(dkv_problem *p, uint64_t seed, bool shifted) {
  int64_t n = dkv_result_elements(p, DKV_DK), width = (int64_t)p->kv_heads * p->head_dim;
  for (int64_t i = 0; i < n; ++i)
    put(p->k, p->dtype, i, grid(seed, 201, i) + (shifted ? grid(seed, 202, i % width) : 0.0));
}

/** Adds c <q_i, u> to a copy of the unshifted lse. */
static bool shift_lse(dkv_check *check, const dkv_problem *p, dkv_results *x) {
  int64_t T = p->layout.rows, D = p->head_dim;
  double *lse = doubles(check, dkv_result_elements(p, DKV_LSE));
  if (lse == NULL) return false;
  for (int64_t h = 0; h < p->heads; ++h) {
    for (int64_t i = 0; i < T; ++i) {
      double sum = 0.0;
      for (int64_t d = 0; d < D; ++d) {
        double u = grid(check->seed, 202, h / (p->heads / p->kv_heads) * D + d);
        sum += dkv_element(p->q, p->dtype, (i * p->heads + h) * D + d) * u;
      }
      lse[h * T + i] = dkv_element(x->data[DKV_LSE], x->lse_dtype, h * T + i) + p->scale * sum;
    }
  }
  free(x->data[DKV_LSE]);
  x->data[DKV_LSE] = lse;
  x->lse_dtype = DKV_F64;
  return true;
}

void dkv_law_shift(dkv_check *check) {
  bool fine = true;
  /* Two runs are compared, each of which may be off by its bound: gradients may differ by twice that.  (The forward's o
   * and lse have different bounds and pass under their own.) */
  if (check->kernel->direction == DKV_BACKWARD) check->slack = dkv_error_bound(check->dtype, true);
  for (int32_t n = 0; n < 3 && fine; ++n) {
    dkv_problem plain = {0}, shifted = {0};
    dkv_results x = {0}, y = {0};
    fine = make(check, &plain, n, dkv_suite_heads(check, n)) && make(check, &shifted, n, dkv_suite_heads(check, n));
    if (fine) {
      set_keys(&plain, check->seed, false);
      set_keys(&shifted, check->seed, true);
    }
    fine = fine && dkv_check_run(check, &x, &plain, NULL, NULL) && dkv_check_run(check, &y, &shifted, NULL, NULL);
    if (fine && check->kernel->direction == DKV_FORWARD) fine = shift_lse(check, &plain, &x);
    fine = fine && dkv_check_all_near(check, &shifted, &y, &x);
    dkv_results_free(&x);
    dkv_results_free(&y);
    dkv_problem_free(&plain);
    dkv_problem_free(&shifted);
  }
}

/** Copies each key head of `from` [T][Hkv][D] to all its query heads, [T][H][D]. */
static void repeat_heads(void *out, const void *from, const dkv_problem *p) {
  size_t head = (size_t)p->head_dim * dkv_dtype_size(p->dtype);
  int32_t group = p->heads / p->kv_heads;
  for (int64_t i = 0; i < (int64_t)p->layout.rows * p->heads; ++i) {
    int64_t row = i / p->heads, key_head = i % p->heads / group;
    memcpy((char *)out + (size_t)i * head, (const char *)from + (size_t)(row * p->kv_heads + key_head) * head, head);
  }
}

/** Replaces dk and dv [T][H][D] by their sums over the query heads of each key head, [T][Hkv][D] in f64. */
static bool sum_heads(dkv_check *check, const dkv_problem *p, dkv_results *x) {
  int64_t D = p->head_dim, group = p->heads / p->kv_heads;
  for (int r = DKV_DQ; r <= DKV_DV; ++r) {
    int64_t n = (int64_t)p->layout.rows * p->heads * D;
    double *sum = doubles(check, n);
    if (sum == NULL) return false;
    for (int64_t i = 0; i < n; ++i) {
      int64_t target = r == DKV_DQ ? i : i / D / group * D + i % D;
      sum[target] += dkv_element(x->data[r], x->dtype, i);
    }
    free(x->data[r]);
    x->data[r] = sum;
  }
  x->dtype = DKV_F64;
  return true;
}

void dkv_law_heads(dkv_check *check) {
  bool fine = true;
  for (int32_t n = 0; n < 3 && fine; ++n) {
    int32_t D = dkv_suite_heads(check, n).head_dim;
    dkv_problem few = {0}, many = {0};
    dkv_results x = {0}, y = {0};
    fine = make(check, &many, n, (dkv_heads){6, 6, D}) && make(check, &few, n, (dkv_heads){6, 2, D});
    if (fine) {
      repeat_heads(many.k, few.k, &few);
      repeat_heads(many.v, few.v, &few);
    }
    fine = fine && dkv_check_run(check, &x, &few, NULL, NULL) && dkv_check_run(check, &y, &many, NULL, NULL);
    if (fine && check->kernel->direction == DKV_BACKWARD) fine = sum_heads(check, &few, &y);
    fine = fine && dkv_check_all_near(check, &few, &x, &y);
    dkv_results_free(&x);
    dkv_results_free(&y);
    dkv_problem_free(&few);
    dkv_problem_free(&many);
  }
}
