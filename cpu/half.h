/**
 * @file half.h
 * @brief Rows of bf16 and f16 to floats and back: the conversions of common/dtype.h without branches, so that a
 * compiler can run whole vectors.  The same bits, which tests/test_half.c checks.
 *
 *     f16 to float    move exponent and fraction to their places, multiply by 2^112 to make up for the smaller exponent
 *                     bias: exact, subnormals included; infinity and NaN get the full exponent instead
 *     float to f16    the normal, the subnormal, the overflowing and the NaN result are all worked out, then chosen
 * from
 *
 * Read before: common/dtype.h.  Read next: attention/tile.h.
 */
#ifndef DKV_HALF_H
#define DKV_HALF_H

#include "common/dtype.h"

/** Exact. @param[out] out [n]. @param[in] in [n] bf16 bits. @param[in] n elements */
static inline void bf16_to_floats(float *DKV_RESTRICT out, const uint16_t *DKV_RESTRICT in, int32_t n) {
#pragma omp simd
  for (int32_t i = 0; i < n; ++i) out[i] = dkv_bits_float((uint32_t)in[i] << 16);
}

/** Exact. @param[out] out [n]. @param[in] in [n] f16 bits. @param[in] n elements */
static inline void f16_to_floats(float *DKV_RESTRICT out, const uint16_t *DKV_RESTRICT in, int32_t n) {
#pragma omp simd
  for (int32_t i = 0; i < n; ++i) {
    const uint32_t h = in[i], magnitude = (h & 0x7fffu) << 13, sign = (h & 0x8000u) << 16;
    const uint32_t finite = dkv_float_bits(dkv_bits_float(magnitude) * 0x1p112f), special = magnitude | 0x7f800000u;
    out[i] = dkv_bits_float(sign | (magnitude >= 0x0f800000u ? special : finite));
  }
}

/** Rounds to the nearest, ties to even. @param[out] out [n] bf16 bits. @param[in] in [n]. @param[in] n elements */
static inline void floats_to_bf16(uint16_t *DKV_RESTRICT out, const float *DKV_RESTRICT in, int32_t n) {
#pragma omp simd
  for (int32_t i = 0; i < n; ++i) {
    const uint32_t u = dkv_float_bits(in[i]), rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, nan = (u >> 16) | 0x40u;
    out[i] = (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
  }
}

/** Rounds to the nearest, ties to even. @param[out] out [n] f16 bits. @param[in] in [n]. @param[in] n elements */
static inline void floats_to_f16(uint16_t *DKV_RESTRICT out, const float *DKV_RESTRICT in, int32_t n) {
#pragma omp simd
  for (int32_t i = 0; i < n; ++i) {
    const uint32_t u = dkv_float_bits(in[i]), a = u & 0x7fffffffu;
    const uint32_t normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
    const uint32_t small = dkv_float_bits(dkv_bits_float(a) + 0.5f) - 0x3f000000u; /* 0.5's last place is 2^-24 */
    uint32_t h = a < 0x38800000u ? small : normal;
    h = a >= 0x477ff000u ? 0x7c00u : h;
    h = a > 0x7f800000u ? 0x7e00u : h;
    out[i] = (uint16_t)(((u >> 16) & 0x8000u) | h);
  }
}

#endif
