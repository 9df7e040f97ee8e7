/**
 * @file exp.h
 * @brief exp(x) in float that a compiler can run on a whole vector register, without fast-math flags.
 *
 *     x = n ln 2 + r, |r| <= ln 2 / 2        exp(x) = 2^n exp(r)        exp(r) = 1 + r + r^2 q(r), q of degree 4
 *
 * n is rounded by adding and subtracting 1.5 2^23; ln 2 is split in two so that n ln 2 loses nothing; 2^n is written
 * into the exponent bits; q is a least-squares fit that is off by 3e-9 of exp(r).  Relative error below 2e-7 over the
 * whole range.  Below -87.3 the result is 2^-126 (about 1e-38) instead of a subnormal, above 88.3 it stays finite
 * (about 2e38); NaN stays NaN.  tests/test_layers.c measures all of this.
 *
 * Read before: common/dtype.h.  Read next: cpu/layers/swiglu.c, cpu/layers/lm_logprob.c.
 */
#ifndef DKV_CPU_EXP_H
#define DKV_CPU_EXP_H

#include "common/dtype.h"

/** exp(x), vectorisable. */
static inline float dkv_exp(float x) {
  const float shift = 12582912.0f; /* 1.5 2^23: adding it rounds to an integer, kept in the low bits */
  float y = x < -87.3f ? -87.3f : x;
  y = y > 88.3f ? 88.3f : y;
  float shifted = y * 1.44269504088896341f + shift;
  float n = shifted - shift;
  float r = y - n * 0.693145751953125f - n * 1.42860682030941723e-6f;
  float q = 1.38145398e-3f;
  q = q * r + 8.36874514e-3f;
  q = q * r + 4.16683908e-2f;
  q = q * r + 1.66665204e-1f;
  q = q * r + 4.99999934e-1f;
  float mantissa = 1.0f + (r + r * r * q);
  uint32_t exponent = (dkv_float_bits(shifted) + 127u) << 23; /* the low bits of `shifted` are n */
  return mantissa * dkv_bits_float(exponent);
}

#endif
