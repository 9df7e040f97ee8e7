/**
 * @file vector_exp.h
 * @brief exp of a vector of floats: what stands between attention and the speed of its matrix products.
 *
 *     x = n ln2 + r, |r| <= ln2 / 2      exp(x) = 2^n exp(r)      exp(r) = 1 + r + r^2 (c2 + c3 r + ... + c6 r^4)
 *
 * n = round(x / ln2).  ln2 is subtracted in two parts, the first with 9 trailing zero bits so that n times it is exact.
 * The polynomial has the least largest relative error on the interval (3.1e-9, by weighted least squares with
 * re-weighting; a twentieth of a float's rounding), with the first two coefficients held at 1 so that exp(0) = 1
 * exactly.
 *
 * Error: at most 0.9 units in the last place for normal results, 1.2 where there is no fused multiply-add (found by
 * trying every float; tests/test_vector_exp.c tries one in 61). exp(-infinity) and everything below -103.98 is exactly
 * 0: masked scores get a weight of exactly 0.  Above 88.73 the result is infinity; NaN stays NaN.
 *
 * Read before: simd.h.  Read next: attention/tiled_fwd.c.
 */
#ifndef DKV_VECTOR_EXP_H
#define DKV_VECTOR_EXP_H

#include "cpu/simd.h"

/** exp of each lane. */
static inline dkv_vec vec_exp(dkv_vec x) {
  x = vec_max(vec_set(-104.0f), vec_min(vec_set(89.0f), x)); /* keeps infinities out of n and r; passes NaN */
  const dkv_vec n = vec_round(vec_mul(x, vec_set(0x1.715476p+0f)));
  dkv_vec r = vec_fma(n, vec_set(-0x1.62e400p-1f), x);
  r = vec_fma(n, vec_set(-0x1.7f7d1cp-20f), r);
  dkv_vec p = vec_fma(r, vec_set(0x1.6a2434p-10f), vec_set(0x1.1239e2p-7f));
  p = vec_fma(r, p, vec_set(0x1.5558f2p-5f));
  p = vec_fma(r, p, vec_set(0x1.555492p-3f));
  p = vec_fma(r, p, vec_set(0x1.fffffcp-2f));
  p = vec_fma(r, p, vec_set(1.0f));
  p = vec_fma(r, p, vec_set(1.0f));
  return vec_scale2(p, n);
}

#endif
