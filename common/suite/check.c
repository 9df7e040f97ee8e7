/**
 * @file check.c
 * @brief The moves from which laws are written: make a problem, get the exact answer, compare, fail with a place.
 *
 * Read before: laws.h.  Read next: rig.c.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/compare.h"
#include "common/execute.h"
#include "common/suite/laws.h"

bool dkv_check_fail(dkv_check *check, const char *format, ...) {
  char sentence[400];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(sentence, sizeof sentence, format, arguments);
  va_end(arguments);
  if (!check->failed) snprintf(check->text, sizeof check->text, "%s, on %s", sentence, check->where);
  check->failed = true;
  return false;
}

bool dkv_check_ok(dkv_check *check, dkv_status status) {
  if (check->status == DKV_OK) check->status = status;
  return status == DKV_OK;
}

bool dkv_check_problem(dkv_check *check, dkv_problem *out, const dkv_layout *layout, const char *name, dkv_heads heads,
                       double gain, double scale) {
  snprintf(check->where, sizeof check->where, "\"%s\" (T=%d, S=%d, H=%d, Hkv=%d, D=%d, seed %llu)", name, layout->rows,
           layout->segments, heads.heads, heads.kv_heads, heads.head_dim, (unsigned long long)check->seed);
  dkv_random_spec spec = {.heads = heads.heads,
                          .kv_heads = heads.kv_heads,
                          .head_dim = heads.head_dim,
                          .scale = scale,
                          .dtype = check->dtype,
                          .gain = gain,
                          .seed = check->seed};
  return dkv_check_ok(check, dkv_problem_random(out, layout, &spec));
}

/** The answer in f64 where `against` takes it, else in the problem's own type. */
static bool answer(dkv_check *check, dkv_results *out, const dkv_problem *problem, bool gradients) {
  dkv_problem wide = {0};
  bool all_in_f64 = true;
  for (int32_t i = 0; i < check->against->kernel_count; ++i) {
    all_in_f64 = all_in_f64 && (check->against->kernels[i].dtypes & DKV_BIT(DKV_F64)) != 0;
  }
  *out = (dkv_results){0};
  if (!dkv_check_ok(check, dkv_problem_cast(&wide, problem, all_in_f64 ? DKV_F64 : problem->dtype))) return false;
  dkv_problem view = wide; /* a view that owns nothing */
  if (!gradients) view.dout = NULL;
  bool fine = dkv_check_ok(check, dkv_execute(out, check->against, &view, NULL));
  dkv_problem_free(&wide);
  return fine;
}

bool dkv_check_answer(dkv_check *check, dkv_results *out, const dkv_problem *problem) {
  return answer(check, out, problem, check->kernel->direction == DKV_BACKWARD);
}

bool dkv_check_stored(dkv_check *check, dkv_results *out, const dkv_problem *problem) {
  return answer(check, out, problem, false);
}

dkv_rows dkv_check_rows(const dkv_problem *problem, dkv_result result) {
  dkv_rows rows = {0, 0, NULL};
  dkv_result_shape(problem, result, &rows.rows, &rows.width);
  return rows;
}

/** Copies the kept rows, widened to f64, one after another. */
static double *gather(const void *data, dkv_dtype dtype, dkv_rows rows, int64_t *kept) {
  double *out = malloc((size_t)(rows.rows * rows.width) * sizeof *out + 1);
  *kept = 0;
  for (int64_t row = 0; row < rows.rows && out != NULL; ++row) {
    if (rows.keep != NULL && !rows.keep[row]) continue;
    for (int64_t i = 0; i < rows.width; ++i) {
      out[*kept * rows.width + i] = dkv_element(data, dtype, row * rows.width + i);
    }
    ++*kept;
  }
  return out;
}

/** Largest magnitude. */
static double largest(const double *x, int64_t n) {
  double most = 0.0;
  for (int64_t i = 0; i < n; ++i) most = fmax(most, fabs(x[i]));
  return most;
}

/** The verdict on gathered rows. */
static bool judge(dkv_check *check, dkv_result result, const double *x, const double *y, int64_t rows, int64_t width,
                  double bound, double floor) {
  dkv_comparison c;
  if (floor > 0.0 && largest(y, rows * width) == 0.0) {
    double most = largest(x, rows * width);
    return most <= bound * floor ||
           dkv_check_fail(check, "%s must be 0, but has an element of size %g where %g is rounding",
                          dkv_result_name(result), most, bound * floor);
  }
  if (!dkv_check_ok(check, dkv_compare(&c, x, DKV_F64, y, DKV_F64, rows, width, bound))) return false;
  double error = fmax(c.error, c.row_error / 10.0);
  if (error / bound >= check->error / (check->bound > 0.0 ? check->bound : 1.0)) {
    check->error = error;
    check->bound = bound;
  }
  return c.passed ||
         dkv_check_fail(check, "%s is off by %.2e (worst row %.2e; bound %.1e): row %lld, index %lld is %.9g, not %.9g",
                        dkv_result_name(result), c.error, c.row_error, bound, (long long)c.worst_row,
                        (long long)c.worst_index, c.worst_got, c.worst_want);
}

bool dkv_check_near(dkv_check *check, dkv_result result, const void *x, dkv_dtype x_dtype, const void *y,
                    dkv_dtype y_dtype, dkv_rows rows, double floor) {
  int64_t x_rows, y_rows;
  double *left = gather(x, x_dtype, rows, &x_rows), *right = gather(y, y_dtype, rows, &y_rows);
  double bound = dkv_error_bound(check->dtype, result >= DKV_DQ);
  /* lse is stored in f32 whatever the tensors are, and its inputs are exact. */
  if (result == DKV_LSE && check->dtype != DKV_F64) bound = dkv_error_bound(DKV_F32, false);
  bool fine = left != NULL && right != NULL;
  if (!fine)
    dkv_check_ok(check, dkv_fail(DKV_ERR_NOMEM, "suite: no memory to compare %lld rows", (long long)rows.rows));
  if (fine && x_rows * rows.width > 0) fine = judge(check, result, left, right, x_rows, rows.width, bound, floor);
  free(left);
  free(right);
  return fine;
}

bool dkv_check_same(dkv_check *check, dkv_result result, const void *x, const void *y, dkv_dtype dtype, dkv_rows rows) {
  size_t size = dkv_dtype_size(dtype);
  for (int64_t row = 0; row < rows.rows; ++row) {
    if (rows.keep != NULL && !rows.keep[row]) continue;
    for (int64_t i = row * rows.width; i < (row + 1) * rows.width; ++i) {
      if (memcmp((const char *)x + (size_t)i * size, (const char *)y + (size_t)i * size, size) == 0) continue;
      return dkv_check_fail(check, "%s changed its bits: row %lld, index %lld is %.9g, not %.9g",
                            dkv_result_name(result), (long long)row, (long long)(i - row * rows.width),
                            dkv_element(x, dtype, i), dkv_element(y, dtype, i));
    }
  }
  return true;
}

double dkv_check_floor(const dkv_problem *p) {
  int64_t query = dkv_result_elements(p, DKV_O), key = dkv_result_elements(p, DKV_DK);
  double k = 0.0, v = 0.0, dout = 0.0;
  for (int64_t i = 0; i < key; ++i) {
    k = fmax(k, fabs(dkv_element(p->k, p->dtype, i)));
    v = fmax(v, fabs(dkv_element(p->v, p->dtype, i)));
  }
  for (int64_t i = 0; i < query; ++i) dout = fmax(dout, fabs(dkv_element(p->dout, p->dtype, i)));
  return fabs(p->scale) * k * v * dout * p->head_dim;
}

bool dkv_check_all_near(dkv_check *check, const dkv_problem *problem, const dkv_results *x, const dkv_results *y) {
  bool fine = true;
  double floor = problem->dout != NULL ? dkv_check_floor(problem) : 0.0;
  for (int r = 0; r < DKV_RESULTS && fine; ++r) {
    dkv_result result = (dkv_result)r;
    if (x->data[r] == NULL) continue;
    fine = dkv_check_near(check, result, x->data[r], dkv_result_dtype(x, result), y->data[r],
                          dkv_result_dtype(y, result), dkv_check_rows(problem, result), r >= DKV_DQ ? floor : 0.0);
  }
  return fine;
}
