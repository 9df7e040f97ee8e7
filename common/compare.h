/**
 * @file compare.h
 * @brief Is this tensor the right one?  A NaN, an infinity, an unwritten element or an empty comparison never passes.
 *
 *     error         = |x - y|_F / |y|_F
 *     row error     = |x_r - y_r| / max(|y_r|, |y|_F / sqrt(rows))
 *     element error = |x_i - y_i| / (|y_i| + s_r)     s_r = max(|y_r|, |y|_F / sqrt(rows)) / sqrt(width)
 *
 * passes when error <= bound, every row error <= 10 bound and every element error <= 10 bound.  The floors keep rows
 * and elements that are nearly zero (a gradient of a token that nothing depends on) from dividing by nothing.  Elements
 * have a bound of their own because one wrong element among many vanishes in a norm: in bf16 a row of 512 elements may
 * be off by 3 % of its norm, which is two thirds of an ordinary element.  outlier.h looks closer still.
 *
 * Read before: dtype.h.  Read next: outlier.h.
 */
#ifndef DKV_COMPARE_H
#define DKV_COMPARE_H

#include "common/dtype.h"

DKV_BEGIN_C

/** The verdict on one tensor. */
typedef struct dkv_comparison {
  double error;         /**< relative Frobenius error; infinity when something is not finite where the answer is */
  double row_error;     /**< largest row error */
  double element_error; /**< largest element error */
  bool stands_alone;    /**< false; whoever asks dkv_outlier too sets it */
  double bound;         /**< the bound that was asked for */
  int64_t elements;     /**< compared */
  int64_t not_finite;   /**< elements that are NaN or infinite in x, or in y (an answer must be finite) */
  int64_t worst_row;    /**< the row to look at: of the first non-finite element; else of the largest element error if
                             that is out of bounds; else of the largest row error; or -1 */
  int64_t worst_index;  /**< that element inside its row (by row error: the largest difference); -1 if none */
  double worst_got;     /**< x there */
  double worst_want;    /**< y there */
  bool passed;          /**< the verdict; false when elements == 0 */
} dkv_comparison;

/**
 * Compares x with the answer y.
 * @param[out] out     overwritten
 * @param[in]  x       [rows][width] of type x_dtype: what was computed
 * @param[in]  x_dtype f32, bf16, f16 or f64
 * @param[in]  y       [rows][width] of type y_dtype: the answer
 * @param[in]  y_dtype likewise
 * @param[in]  rows    rows
 * @param[in]  width   elements of a row
 * @param[in]  bound   relative error allowed, > 0
 * @return DKV_OK (also when the verdict is no); DKV_ERR_NULL; DKV_ERR_RANGE (a negative size, a bound that is not
 *         finite and > 0); DKV_ERR_UNSUPPORTED (an integer type)
 */
dkv_status dkv_compare(dkv_comparison *out, const void *x, dkv_dtype x_dtype, const void *y, dkv_dtype y_dtype,
                       int64_t rows, int64_t width, double bound);

/**
 * Error bound that kernels are held to: f32 2e-6 / 5e-6, bf16 3e-3 / 3.5e-3, f16 4e-4 / 5e-4, f64 1e-12 / 1e-12.
 * @param[in] dtype    storage type
 * @param[in] gradient false: a forward result; true: a gradient
 * @return the bound; 0, which dkv_compare refuses, for an integer type
 */
double dkv_error_bound(dkv_dtype dtype, bool gradient);

DKV_END_C
#endif
