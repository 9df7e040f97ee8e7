/**
 * @file outlier.h
 * @brief Is one element wrong where all others are right?  The noise of a tensor is measured by its other elements.
 *
 * A bound that holds for every right kernel is coarse for a good one: what rounding leaves of bf16 gradients on tensor
 * cores hides an element of 3 % of the ordinary size that was changed by its own size.  But noise has no gaps.  With
 *
 *     r_i = max(0, |x_i - y_i| - half a unit in the last place of x_i) / s_r
 *
 * the largest r_i stands alone when it is more than 4 times the second largest (8 or 16 times where a row is short, or
 * scales differ, so that few elements share the noise), and no less than a share of the bound (in 16 bits that many
 * hundredths, in f32 and f64 4 times the bound).  Of 32 normal numbers the largest
 * is never 4 times the second: not once in 10^5 draws; of 8 it is 16 times the second once in some 10^6.
 *
 * The scale s_r of a row is its root mean square, but no less than f times that of the tensor.  Rows of very different
 * size (keys that hardly anybody looks at) have noise of very different size, so the question is asked for several
 * floors f.
 *
 * Meant for judging one file or one run; a suite that asks it of thousands of tiny tensors would hear a false alarm.
 *
 * Read before: compare.h.
 */
#ifndef DKV_OUTLIER_H
#define DKV_OUTLIER_H

#include "common/dtype.h"

DKV_BEGIN_C

/**
 * Finds the element that stands alone.  All values must be finite, as dkv_compare makes sure.
 * @param[in] x       [rows][width] of type x_dtype: what was computed
 * @param[in] x_dtype f32, bf16, f16 or f64
 * @param[in] y       [rows][width] of type y_dtype: the answer
 * @param[in] y_dtype likewise
 * @param[in] other   NULL, or a second right answer [rows][width] in f64: an element is as wrong as its distance to the
 * nearer
 * @param[in] rows    rows
 * @param[in] width   elements of a row
 * @param[in] bound   relative error that the tensor is held to
 * @return its index row * width + i; -1 when none does, and for tensors of fewer than 64 elements
 */
int64_t dkv_outlier(const void *x, dkv_dtype x_dtype, const void *y, dkv_dtype y_dtype, const double *other,
                    int64_t rows, int64_t width, double bound);

DKV_END_C
#endif
