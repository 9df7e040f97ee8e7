/**
 * @file compare.c
 * @brief Three passes over two tensors: is everything finite and how large is the answer; the norms; the rows and
 * elements.
 *
 * Every verdict is written so that a NaN fails it: `error <= bound`, never `!(error > bound)`.  Values are multiplied
 * by a power of two that brings the answer's largest magnitude near 1 before they are squared: neither 1e200 nor 1e-200
 * leaves the range of double, and no bit is lost.  Elements are widened to double a block at a time.
 *
 * Read before: compare.h.  Read next: tests/test_compare.c.
 */
#include "common/compare.h"

#include <math.h>

enum { BLOCK = 512 }; /* elements widened at a time */

/** The two tensors of a comparison. */
struct pair {
  const void *x, *y;
  dkv_dtype x_dtype, y_dtype;
  int64_t rows, width;
  double scale; /* a power of two: the largest |y| times it is near 1 */
};

/** Some elements of both tensors as doubles. */
struct block {
  int64_t first, size;
  double x[BLOCK], y[BLOCK];
};

static bool is_float(dkv_dtype dtype) {
  return dtype == DKV_F32 || dtype == DKV_BF16 || dtype == DKV_F16 || dtype == DKV_F64;
}

/** Widens n elements from element `first` on. */
static void widen(double *out, const void *data, dkv_dtype dtype, int64_t first, int64_t n) {
  dkv_convert(out, DKV_F64, (const char *)data + (size_t)first * dkv_dtype_size(dtype), dtype, n);
}

/** Loads the elements from b->first on, as many as fit before `end`. */
static void load(struct block *b, const struct pair *p, int64_t end) {
  b->size = dkv_min(BLOCK, end - b->first);
  widen(b->x, p->x, p->x_dtype, b->first, b->size);
  widen(b->y, p->y, p->y_dtype, b->first, b->size);
}

/** a / b where 0 / 0 is no error and anything else over 0 is an infinite one. */
static double ratio(double a, double b) { return a == 0 ? 0 : b == 0 ? (double)INFINITY : a / b; }

/** Names element i as the worst one. */
static void blame(dkv_comparison *out, const struct pair *p, int64_t i) {
  out->worst_row = i / p->width;
  out->worst_index = i % p->width;
  out->worst_got = dkv_element(p->x, p->x_dtype, i);
  out->worst_want = dkv_element(p->y, p->y_dtype, i);
}

/** First pass: counts what is not finite and finds the scale. */
static void scan(dkv_comparison *out, struct pair *p) {
  struct block b;
  double largest = 0;
  for (b.first = 0; b.first < out->elements; b.first += b.size) {
    load(&b, p, out->elements);
    for (int64_t i = 0; i < b.size; ++i) {
      if (isfinite(b.x[i]) && isfinite(b.y[i])) {
        if (fabs(b.y[i]) > largest) largest = fabs(b.y[i]);
      } else if (out->not_finite++ == 0) {
        blame(out, p, b.first + i);
      }
    }
  }
  int exponent = 0;
  frexp(largest, &exponent); /* largest < 2^exponent; exponent 0 for 0 */
  p->scale = ldexp(1, exponent < -1023 ? 1023 : -exponent);
}

/** One row's squared norms of difference and answer, scaled, and where its largest difference is. */
struct row_norms {
  double difference, answer;
  int64_t largest_at;
};

static struct row_norms measure_row(const struct pair *p, int64_t row) {
  struct row_norms n = {0, 0, row * p->width};
  struct block b;
  double largest = -1;
  int64_t end = (row + 1) * p->width;
  for (b.first = row * p->width; b.first < end; b.first += b.size) {
    load(&b, p, end);
    for (int64_t i = 0; i < b.size; ++i) {
      double y = b.y[i] * p->scale, d = fabs(b.x[i] * p->scale - y);
      n.difference += d * d;
      n.answer += y * y;
      if (d > largest) {
        largest = d;
        n.largest_at = b.first + i;
      }
    }
  }
  return n;
}

/** Notes the largest element error of a row whose norm (with its floor) is `norm`, scaled. */
static void measure_elements(dkv_comparison *out, int64_t *worst, const struct pair *p, int64_t row, double norm) {
  struct block b;
  double floor = norm / sqrt((double)p->width);
  int64_t end = (row + 1) * p->width;
  for (b.first = row * p->width; b.first < end; b.first += b.size) {
    load(&b, p, end);
    for (int64_t i = 0; i < b.size; ++i) {
      double y = b.y[i] * p->scale, error = ratio(fabs(b.x[i] * p->scale - y), fabs(y) + floor);
      if (error > out->element_error) {
        out->element_error = error;
        *worst = b.first + i;
      }
    }
  }
}

/** Second and third pass: the whole error, then the row and the element with the largest errors of their own. */
static void measure(dkv_comparison *out, const struct pair *p) {
  double difference = 0, answer = 0;
  for (int64_t row = 0; row < p->rows; ++row) {
    struct row_norms n = measure_row(p, row);
    difference += n.difference;
    answer += n.answer;
  }
  double floor = sqrt(answer / (double)p->rows);
  int64_t worst = 0;
  out->error = ratio(sqrt(difference), sqrt(answer));
  out->row_error = out->element_error = 0;
  for (int64_t row = 0; row < p->rows; ++row) {
    struct row_norms n = measure_row(p, row);
    double norm = fmax(sqrt(n.answer), floor), error = ratio(sqrt(n.difference), norm);
    measure_elements(out, &worst, p, row, norm);
    if (error > out->row_error) {
      out->row_error = error;
      blame(out, p, n.largest_at);
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
