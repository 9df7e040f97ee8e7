/**
 * @file outlier.c
 * @brief The gap test: the two largest errors beyond rounding, by several scales, in two passes.
 *
 * Read before: outlier.h.  Read next: tests/test_outlier.c.
 */
#include "common/outlier.h"

#include <math.h>

enum {
  CROWD = 64, /* fewest elements among which one can stand alone */
  FLOORS = 6  /* scales: f = 1, 1e-3, 1e-6, ... */
};

/** The tensors. */
struct tensors {
  const void *x, *y;
  dkv_dtype x_dtype, y_dtype;
  const double *other;
};

/** The two largest residuals so far, by one scale. */
struct leaders {
  double first, second;
  int64_t at; /* element of the first */
};

/** Half a unit in the last place of a value y stored as `dtype`, at most: the error of correct rounding. */
static double half_ulp(dkv_dtype dtype, double y) {
  switch (dtype) {
  case DKV_BF16: return ldexp(fabs(y), -8);
  case DKV_F16: return fmax(ldexp(fabs(y), -11), ldexp(1, -25)); /* the second: subnormals */
  case DKV_F32: return ldexp(fabs(y), -24);
  default: return 0;
  }
}

/** How far element i is from the nearer answer, beyond what rounding explains. */
static double residual(const struct tensors *t, int64_t i) {
  double x = dkv_element(t->x, t->x_dtype, i), y = dkv_element(t->y, t->y_dtype, i);
  double beyond = fabs(x - y) - half_ulp(t->x_dtype, y);
  if (t->other != NULL) beyond = fmin(beyond, fabs(x - t->other[i]) - half_ulp(t->x_dtype, t->other[i]));
  return fmax(0, beyond);
}

/** Root mean square of elements [begin, end) of the answer; scaled inside, so that 1e-200 has one too. */
static double root_mean_square(const struct tensors *t, int64_t begin, int64_t end) {
  double largest = 0, sum = 0;
  for (int64_t i = begin; i < end; ++i) largest = fmax(largest, fabs(dkv_element(t->y, t->y_dtype, i)));
  if (largest == 0) return 0;
  for (int64_t i = begin; i < end; ++i) {
    double y = dkv_element(t->y, t->y_dtype, i) / largest;
    sum += y * y;
  }
  return largest * sqrt(sum / (double)(end - begin));
}

static void enter(struct leaders *leaders, double r, int64_t i) {
  if (r > leaders->first) {
    leaders->second = leaders->first;
    leaders->first = r;
    leaders->at = i;
  } else if (r > leaders->second) {
    leaders->second = r;
  }
}

/** The gap that noise does not show: wider where few elements share the noise. */
static double gap(int64_t width, int floor) { return width < 16 ? 16 : width < 32 || floor > 0 ? 8 : 4; }

/**
 * The error from which the first leader stands alone.  Noise of f32 is a few units in the last place, times the size of
 * what was added up: it has gaps of its own below the bound and around it, so there only an error well beyond counts.
 * (An element below that share of its row has no size that it could be changed by.)  In 16 bits half a unit has been
 * taken off, and what is left says more.
 */
static double alone_from(const struct tensors *t, double second, double factor, double bound) {
  double least = dkv_dtype_size(t->x_dtype) < 4 ? factor * bound / 100 : 4 * bound;
  return fmax(factor * second, least);
}

/**
 * The gap test inside one row of its own size.  Only for tensors stored in f32 or f64: in 16 bits rounding hides most
 * of a row's noise, and among the few elements that are left gaps are common.
 */
static int64_t alone_in_row(const struct tensors *t, int64_t row, int64_t width, double own, double bound) {
  struct leaders leaders = {0};
  if (dkv_dtype_size(t->x_dtype) < 4 || width < 32 || own == 0) return -1;
  for (int64_t i = row * width; i < (row + 1) * width; ++i) enter(&leaders, residual(t, i) / own, i);
  return leaders.first > alone_from(t, leaders.second, 8, bound) ? leaders.at : -1;
}

int64_t dkv_outlier(const void *x, dkv_dtype x_dtype, const void *y, dkv_dtype y_dtype, const double *other,
                    int64_t rows, int64_t width, double bound) {
  const struct tensors t = {x, y, x_dtype, y_dtype, other};
  struct leaders leaders[FLOORS] = {{0}};
  int64_t alone = -1;
  if (width <= 0 || rows * width < CROWD) return -1;
  double whole = root_mean_square(&t, 0, rows * width);
  for (int64_t row = 0; row < rows; ++row) {
    double own = root_mean_square(&t, row * width, (row + 1) * width);
    for (int64_t i = row * width; i < (row + 1) * width; ++i) {
      double beyond = residual(&t, i), floor = whole;
      if (beyond == 0) continue;
      for (int f = 0; f < FLOORS; ++f, floor *= 1e-3) enter(&leaders[f], beyond / fmax(own, floor), i);
    }
    if (alone < 0) alone = alone_in_row(&t, row, width, own, bound);
  }
  for (int f = 0; f < FLOORS; ++f)
    if (leaders[f].first > alone_from(&t, leaders[f].second, gap(width, f), bound)) return leaders[f].at;
  return alone;
}
