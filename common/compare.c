/**
 * @file compare.c
 * @brief Three passes over two tensors: is everything finite and how large is the answer; the norms; the rows and
 * elements.
 *
 * Every verdict is written so that a NaN fails it: `error <= bound`, never `!(error > bound)`.  Values are divided by
 * the answer's largest magnitude before they are squared, so that neither 1e200 nor 1e-200 leaves the range of double.
 *
 * Read before: compare.h.  Read next: tests/test_compare.c.
 */
#include "common/compare.h"

#include <math.h>

/** The two tensors of a comparison. */
struct pair {
  const void *x, *y;
  dkv_dtype x_dtype, y_dtype;
  int64_t rows, width;
  double scale; /* largest |y|, or 1 */
};

static bool is_float(dkv_dtype dtype) {
  return dtype == DKV_F32 || dtype == DKV_BF16 || dtype == DKV_F16 || dtype == DKV_F64;
}

static double got(const struct pair *p, int64_t i) { return dkv_element(p->x, p->x_dtype, i); }
static double want(const struct pair *p, int64_t i) { return dkv_element(p->y, p->y_dtype, i); }

/** a / b where 0 / 0 is no error and anything else over 0 is an infinite one. */
static double ratio(double a, double b) { return a == 0 ? 0 : b == 0 ? (double)INFINITY : a / b; }

/** Names element i as the worst one. */
static void blame(dkv_comparison *out, const struct pair *p, int64_t i) {
  out->worst_row = i / p->width;
  out->worst_index = i % p->width;
  out->worst_got = got(p, i);
  out->worst_want = want(p, i);
}

/** First pass: counts what is not finite and finds the scale. */
static void scan(dkv_comparison *out, struct pair *p) {
  double largest = 0;
  for (int64_t i = 0; i < out->elements; ++i) {
    double x = got(p, i), y = want(p, i);
    if (isfinite(x) && isfinite(y)) {
      if (fabs(y) > largest) largest = fabs(y);
    } else if (out->not_finite++ == 0) {
      blame(out, p, i);
    }
  }
  p->scale = largest > 0 ? largest : 1;
}

/** Adds the squares of one row's differences and answers, scaled; notes its largest difference. */
static void measure_row(const struct pair *p, int64_t row, double *difference, double *answer, int64_t *largest_at) {
  double largest = -1;
  *difference = *answer = 0;
  for (int64_t i = row * p->width; i < (row + 1) * p->width; ++i) {
    double y = want(p, i) / p->scale, d = fabs(got(p, i) / p->scale - y);
    *difference += d * d;
    *answer += y * y;
    if (d > largest) {
      largest = d;
      *largest_at = i;
    }
  }
}

/** Notes the largest element error of a row whose norm (with its floor) is `norm`, scaled like the tensors. */
static void measure_elements(dkv_comparison *out, int64_t *worst, const struct pair *p, int64_t row, double norm) {
  double floor = norm * p->scale / sqrt((double)p->width);
  for (int64_t i = row * p->width; i < (row + 1) * p->width; ++i) {
    double y = want(p, i), error = ratio(fabs(got(p, i) - y), fabs(y) + floor);
    if (error > out->element_error) {
      out->element_error = error;
      *worst = i;
    }
  }
}

/** Second and third pass: the whole error, then the row and the element with the largest errors of their own. */
static void measure(dkv_comparison *out, const struct pair *p) {
  double difference = 0, answer = 0, row_difference, row_answer;
  int64_t at = 0;
  for (int64_t row = 0; row < p->rows; ++row) {
    measure_row(p, row, &row_difference, &row_answer, &at);
    difference += row_difference;
    answer += row_answer;
  }
  out->error = ratio(sqrt(difference), sqrt(answer));
  out->row_error = 0;
  double floor = sqrt(answer / (double)p->rows);
  int64_t worst = 0;
  out->element_error = 0;
  for (int64_t row = 0; row < p->rows; ++row) {
    measure_row(p, row, &row_difference, &row_answer, &at);
    double norm = fmax(sqrt(row_answer), floor), error = ratio(sqrt(row_difference), norm);
    measure_elements(out, &worst, p, row, norm);
    if (error > out->row_error) {
      out->row_error = error;
      blame(out, p, at);
    }
  }
  bool elements_fit = out->element_error <= 10 * out->bound;
  if (!elements_fit) blame(out, p, worst);
  out->passed = out->error <= out->bound && out->row_error <= 10 * out->bound && elements_fit;
}

dkv_status dkv_compare(dkv_comparison *out, const void *x, dkv_dtype x_dtype, const void *y, dkv_dtype y_dtype,
                       int64_t rows, int64_t width, double bound) {
  DKV_REQUIRE(out != NULL, DKV_ERR_NULL, "dkv_compare: out must not be NULL");
  *out = (dkv_comparison){.error = (double)INFINITY,
                          .row_error = (double)INFINITY,
                          .element_error = (double)INFINITY,
                          .bound = bound,
                          .worst_row = -1,
                          .worst_index = -1};
  DKV_REQUIRE(is_float(x_dtype) && is_float(y_dtype), DKV_ERR_UNSUPPORTED,
              "dkv_compare: %s with %s; only f32, bf16, f16 and f64 are compared", dkv_dtype_name(x_dtype),
              dkv_dtype_name(y_dtype));
  DKV_REQUIRE(rows >= 0 && width >= 0 && (width == 0 || rows <= INT64_MAX / width), DKV_ERR_RANGE,
              "dkv_compare: %lld rows of %lld elements; both are >= 0 and their product fits 63 bits", (long long)rows,
              (long long)width);
  DKV_REQUIRE(bound > 0 && isfinite(bound), DKV_ERR_RANGE, "dkv_compare: bound %g; a bound is finite and > 0", bound);
  if (rows == 0 || width == 0) return DKV_OK; /* nothing was compared, so nothing has passed */
  DKV_REQUIRE(x != NULL && y != NULL, DKV_ERR_NULL, "dkv_compare: x and y must not be NULL");
  struct pair p = {x, y, x_dtype, y_dtype, rows, width, 1};
  out->elements = rows * width;
  scan(out, &p);
  if (out->not_finite == 0) measure(out, &p);
  return DKV_OK;
}

double dkv_error_bound(dkv_dtype dtype, bool gradient) {
  switch (dtype) {
  case DKV_F32: return gradient ? 5e-6 : 2e-6;
  case DKV_BF16: return gradient ? 3.5e-3 : 3e-3;
  case DKV_F16: return gradient ? 5e-4 : 4e-4;
  case DKV_F64: return 1e-12;
  default: return 0;
  }
}
