/**
 * @file vector_exp.h
 * @brief exp of a vector of floats: what stands between attention and the speed of its matrix products.
 *
 *     x = n ln2 + r, |r| <= ln2 / 2      exp(x) = 2^n exp(r)      exp(r) = 1 + r + r^2 (c2 + c3 r + ... + c6 r^4)
 *
 * n = round(x / ln2): adding 1.5 2^23 leaves no bits behind the point, and n itself in the low bits, from where it goes
 * straight into the exponent of the result.  ln2 is subtracted in two parts, the first with 9 trailing zero bits so
 * that n times it is exact.  The polynomial has the least largest relative error on the interval (3.1e-9, by weighted
 * least squares with re-weighting; a twentieth of a float's rounding), with the first two coefficients held at 1 so
 * that exp(0) is 1.
 *
 * Error: at most 0.9 units in the last place, 1.2 where there is no fused multiply-add (found by trying every float;
 * tests/test_vector_exp.c tries one in 61).
 *
 * Ends: below -87.3, and for -infinity, the result is exactly 0: a masked score has a weight of exactly 0.  Above 88.72
 * it stays at exp(88.72) = 3.4e38.  NaN stays NaN.
 *
 * Read before: simd.h.  Read next: attention/tiled_fwd.c.
 */
#ifndef DKV_VECTOR_EXP_H
#define DKV_VECTOR_EXP_H

#include "cpu/simd.h"

/** exp of each lane. */
static inline dkv_vec vec_exp(dkv_vec x) {
  const dkv_vec shift = vec_set(12582912.0f);
  x = vec_min(vec_set(88.72f), x);
  const dkv_vec shifted = vec_fma(x, vec_set(0x1.715476p+0f), shift), n = vec_sub(shifted, shift);
  dkv_vec r = vec_fma(n, vec_set(-0x1.62e400p-1f), x);
  r = vec_fma(n, vec_set(-0x1.7f7d1cp-20f), r);
  dkv_vec p = vec_fma(r, vec_set(0x1.6a2434p-10f), vec_set(0x1.1239e2p-7f));
  p = vec_fma(r, p, vec_set(0x1.5558f2p-5f));
  p = vec_fma(r, p, vec_set(0x1.555492p-3f));
  p = vec_fma(r, p, vec_set(0x1.fffffcp-2f));
  p = vec_fma(r, p, vec_set(1.0f));
  p = vec_fma(r, p, vec_set(1.0f));
  return vec_zero_below(vec_add_exponent(p, shifted), x, -87.3f);
}

#endif
