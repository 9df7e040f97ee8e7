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

/** The problem in f64 where `against` takes it, else in its own type. */
static bool widen(dkv_check *check, dkv_problem *out, const dkv_problem *problem) {
  bool all_in_f64 = true;
  for (int32_t i = 0; i < check->against->kernel_count; ++i) {
    all_in_f64 = all_in_f64 && (check->against->kernels[i].dtypes & DKV_BIT(DKV_F64)) != 0;
  }
  return dkv_check_ok(check, dkv_problem_cast(out, problem, all_in_f64 ? DKV_F64 : problem->dtype));
}

bool dkv_check_forward(dkv_check *check, dkv_results *out, const dkv_problem *problem) {
  dkv_problem wide = {0};
  *out = (dkv_results){0};
  if (!widen(check, &wide, problem)) return false;
  dkv_problem view = wide; /* a view that owns nothing */
  view.dout = NULL;
  bool fine = dkv_check_ok(check, dkv_execute(out, check->against, &view, NULL));
  dkv_problem_free(&wide);
  return fine;
}

bool dkv_check_stored(dkv_check *check, dkv_results *out, const dkv_problem *problem) {
  dkv_results exact = {0};
  bool fine = dkv_check_forward(check, &exact, problem);
  *out = (dkv_results){.dtype = problem->dtype, .lse_dtype = problem->dtype == DKV_F64 ? DKV_F64 : DKV_F32};
  for (int r = DKV_O; r <= DKV_LSE && fine; ++r) {
    dkv_dtype to = dkv_result_dtype(out, (dkv_result)r), from = dkv_result_dtype(&exact, (dkv_result)r);
    int64_t n = dkv_result_elements(problem, (dkv_result)r);
    out->data[r] = malloc((size_t)n * dkv_dtype_size(to) + 1);
    fine = out->data[r] != NULL ? dkv_check_ok(check, dkv_convert(out->data[r], to, exact.data[r], from, n))
                                : dkv_check_ok(check, dkv_fail(DKV_ERR_NOMEM, "suite: no memory for o and lse"));
  }
  dkv_results_free(&exact);
  return fine;
}

/** Widens a stored o or lse to the session's type and puts it where the backward kernel reads it. */
static bool give(dkv_check *check, const dkv_session *session, void *target, const dkv_problem *problem,
                 const dkv_results *stored, dkv_result result) {
  dkv_dtype wide = session->backward_call.dtype, from = dkv_result_dtype(stored, result);
  dkv_dtype to = result == DKV_LSE && wide != DKV_F64 ? DKV_F32 : wide;
  int64_t n = dkv_result_elements(problem, result);
  if (n == 0) return true;
  void *values = malloc((size_t)n * dkv_dtype_size(to));
  if (values == NULL) return dkv_check_ok(check, dkv_fail(DKV_ERR_NOMEM, "suite: no memory for o and lse"));
  bool fine = dkv_check_ok(check, dkv_convert(values, to, stored->data[result], from, n)) &&
              dkv_check_ok(check, session->backend->upload(target, values, (size_t)n * dkv_dtype_size(to)));
  free(values);
  return fine;
}

bool dkv_check_backward(dkv_check *check, dkv_results *out, const dkv_problem *problem, const dkv_results *stored) {
  dkv_problem wide = {0};
  dkv_session session = {0};
  *out = (dkv_results){0};
  bool fine = widen(check, &wide, problem) &&
              dkv_check_ok(check, dkv_session_open(&session, check->against, &wide, NULL)) &&
              give(check, &session, session.backward_call.o, problem, stored, DKV_O) &&
              give(check, &session, session.backward_call.lse, problem, stored, DKV_LSE) &&
              dkv_check_ok(check, session.backward->run(&session.backward_call)) &&
              dkv_check_ok(check, session.backend->synchronize()) &&
              dkv_check_ok(check, dkv_session_results(&session, out, &wide));
  dkv_session_close(&session);
  dkv_problem_free(&wide);
  return fine;
}

dkv_rows dkv_check_rows(const dkv_problem *problem, dkv_result result) {
  dkv_rows rows = {0, 0, NULL};
  dkv_result_shape(problem, result, &rows.rows, &rows.width);
  return rows;
}

/** Copies the kept rows, one after another. */
static void *gather(const void *data, dkv_dtype dtype, dkv_rows rows, int64_t *kept) {
  size_t row_bytes = (size_t)rows.width * dkv_dtype_size(dtype);
  char *out = malloc((size_t)rows.rows * row_bytes + 1);
  *kept = 0;
  for (int64_t row = 0; row < rows.rows && out != NULL; ++row) {
    if (rows.keep != NULL && !rows.keep[row]) continue;
    memcpy(out + (size_t)*kept * row_bytes, (const char *)data + (size_t)row * row_bytes, row_bytes);
    ++*kept;
  }
  return out;
}

/** Largest magnitude. */
static double largest(const void *x, dkv_dtype dtype, int64_t n) {
  double most = 0.0;
  for (int64_t i = 0; i < n; ++i) most = fmax(most, fabs(dkv_element(x, dtype, i)));
  return most;
}

/** Two tensors with their types, and what is asked of them. */
struct judged {
  dkv_result result;
  const void *x, *y;
  dkv_dtype x_dtype, y_dtype;
  int64_t rows, width;
  double bound, floor;
};

/** Keeps the error that comes closest to its bound. */
static void note(dkv_check *check, double error, double bound) {
  if (check->bound > 0.0 && error / bound < check->error / check->bound) return;
  check->error = error;
  check->bound = bound;
}

/** The verdict on gathered rows. */
static bool judge(dkv_check *check, const struct judged *j) {
  int64_t n = j->rows * j->width;
  const char *name = dkv_result_name(j->result);
  if (j->floor > 0.0 && largest(j->y, j->y_dtype, n) == 0.0) {
    double most = largest(j->x, j->x_dtype, n) / j->floor;
    note(check, most, j->bound);
    return most <= j->bound || dkv_check_fail(check,
                                              "%s must be 0, but has an element of %.2e times its natural size "
                                              "(bound %.1e)",
                                              name, most, j->bound);
  }
  dkv_comparison c;
  if (!dkv_check_ok(check, dkv_compare(&c, j->x, j->x_dtype, j->y, j->y_dtype, j->rows, j->width, j->bound)))
    return false;
  double error = fmax(c.error, fmax(c.row_error, c.element_error) / 10.0);
  note(check, error, j->bound);
  if (c.passed) return true;
  return dkv_check_fail(check,
                        "%s is off by %.2e (worst row %.2e, worst element %.2e; bound %.1e): row %lld, index %lld is "
                        "%.9g, not %.9g",
                        name, c.error, c.row_error, c.element_error, j->bound, (long long)c.worst_row,
                        (long long)c.worst_index, c.worst_got, c.worst_want);
}

bool dkv_check_near(dkv_check *check, dkv_result result, const void *x, dkv_dtype x_dtype, const void *y,
                    dkv_dtype y_dtype, dkv_rows rows, double floor) {
  struct judged j = {.result = result, .x_dtype = x_dtype, .y_dtype = y_dtype, .width = rows.width, .floor = floor};
  int64_t y_rows;
  void *x_kept = gather(x, x_dtype, rows, &j.rows), *y_kept = gather(y, y_dtype, rows, &y_rows);
  j.x = x_kept;
  j.y = y_kept;
  /* lse is stored in f32 whatever the tensors are, and its inputs are exact. */
  bool single = result == DKV_LSE && check->dtype != DKV_F64;
  j.bound = dkv_error_bound(single ? DKV_F32 : check->dtype, result >= DKV_DQ) + check->slack;
  bool fine = x_kept != NULL && y_kept != NULL;
  if (!fine)
    dkv_check_ok(check, dkv_fail(DKV_ERR_NOMEM, "suite: no memory to compare %lld rows", (long long)rows.rows));
  if (fine && j.rows * j.width > 0) fine = judge(check, &j);
  free(x_kept);
  free(y_kept);
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
