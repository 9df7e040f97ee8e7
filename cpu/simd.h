/**
 * @file simd.h
 * @brief A vector of floats and the dozen operations that attention needs, three times: AVX-512, AVX2 with FMA, and
 * plain C.
 *
 * Which one is chosen when the file is compiled (-march).  The rest of cpu/ is written once, in these words:
 *
 *     load, store, set, add, sub, mul     the obvious
 *     fma(a, b, c)                        a b + c, rounded once where the processor can
 *     max(a, b), min(a, b)                b when either is NaN: put the value whose NaN must survive second
 *     add_exponent(a, n)                  a 2^n for the integer n in the low bits of vector n; the result must be
 * normal zero_below(a, x, limit)             a where !(x < limit), else 0; a NaN in x keeps a keep(a, lo, hi, b) lane l
 * of a where lo <= l < hi, else lane l of b: the mask
 *
 * Read next: vector_exp.h, attention/product.h.
 */
#ifndef DKV_SIMD_H
#define DKV_SIMD_H

#include <stdint.h>

#if defined(__AVX512F__)

#include <immintrin.h>

#define DKV_LANES 16
#define DKV_SIMD_NAME "AVX-512"
typedef __m512 dkv_vec;

static inline dkv_vec vec_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void vec_store(float *p, dkv_vec a) { _mm512_storeu_ps(p, a); }
static inline dkv_vec vec_set(float a) { return _mm512_set1_ps(a); }
static inline dkv_vec vec_add(dkv_vec a, dkv_vec b) { return _mm512_add_ps(a, b); }
static inline dkv_vec vec_sub(dkv_vec a, dkv_vec b) { return _mm512_sub_ps(a, b); }
static inline dkv_vec vec_mul(dkv_vec a, dkv_vec b) { return _mm512_mul_ps(a, b); }
static inline dkv_vec vec_fma(dkv_vec a, dkv_vec b, dkv_vec c) { return _mm512_fmadd_ps(a, b, c); }
static inline dkv_vec vec_max(dkv_vec a, dkv_vec b) { return _mm512_max_ps(a, b); }
static inline dkv_vec vec_min(dkv_vec a, dkv_vec b) { return _mm512_min_ps(a, b); }
static inline dkv_vec vec_add_exponent(dkv_vec a, dkv_vec n) {
  const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(n), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), exponent));
}
static inline dkv_vec vec_zero_below(dkv_vec a, dkv_vec x, float limit) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_NLT_UQ), a);
}
static inline dkv_vec vec_keep(dkv_vec a, int32_t lo, int32_t hi, dkv_vec b) {
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __mmask16 inside = _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(lo));
  inside = _mm512_mask_cmplt_epi32_mask(inside, lane, _mm512_set1_epi32(hi));
  return _mm512_mask_blend_ps(inside, b, a);
}

#elif defined(__AVX2__) && defined(__FMA__)

#include <immintrin.h>

#define DKV_LANES 8
#define DKV_SIMD_NAME "AVX2"
typedef __m256 dkv_vec;

static inline dkv_vec vec_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void vec_store(float *p, dkv_vec a) { _mm256_storeu_ps(p, a); }
static inline dkv_vec vec_set(float a) { return _mm256_set1_ps(a); }
static inline dkv_vec vec_add(dkv_vec a, dkv_vec b) { return _mm256_add_ps(a, b); }
static inline dkv_vec vec_sub(dkv_vec a, dkv_vec b) { return _mm256_sub_ps(a, b); }
static inline dkv_vec vec_mul(dkv_vec a, dkv_vec b) { return _mm256_mul_ps(a, b); }
static inline dkv_vec vec_fma(dkv_vec a, dkv_vec b, dkv_vec c) { return _mm256_fmadd_ps(a, b, c); }
static inline dkv_vec vec_max(dkv_vec a, dkv_vec b) { return _mm256_max_ps(a, b); }
static inline dkv_vec vec_min(dkv_vec a, dkv_vec b) { return _mm256_min_ps(a, b); }
static inline dkv_vec vec_add_exponent(dkv_vec a, dkv_vec n) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(n), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), exponent));
}
static inline dkv_vec vec_zero_below(dkv_vec a, dkv_vec x, float limit) {
  return _mm256_and_ps(_mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_NLT_UQ), a);
}
static inline dkv_vec vec_keep(dkv_vec a, int32_t lo, int32_t hi, dkv_vec b) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  __m256i outside = _mm256_cmpgt_epi32(_mm256_set1_epi32(lo), lane);
  __m256i inside = _mm256_andnot_si256(outside, _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), lane));
  return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(inside));
}

#else

#include <string.h>

#define DKV_LANES 4
#define DKV_SIMD_NAME "plain C"
typedef float dkv_vec __attribute__((vector_size(16)));
typedef int32_t dkv_ivec __attribute__((vector_size(16)));
typedef uint32_t dkv_uvec __attribute__((vector_size(16)));

static inline dkv_vec vec_load(const float *p) {
  dkv_vec a;
  memcpy(&a, p, sizeof a);
  return a;
}
static inline void vec_store(float *p, dkv_vec a) { memcpy(p, &a, sizeof a); }
static inline dkv_vec vec_set(float a) { return (dkv_vec){a, a, a, a}; }
static inline dkv_vec vec_add(dkv_vec a, dkv_vec b) { return a + b; }
static inline dkv_vec vec_sub(dkv_vec a, dkv_vec b) { return a - b; }
static inline dkv_vec vec_mul(dkv_vec a, dkv_vec b) { return a * b; }
static inline dkv_vec vec_fma(dkv_vec a, dkv_vec b, dkv_vec c) { return a * b + c; }
/* a comparison gives all ones or all zeros per lane */
static inline dkv_vec vec_select(dkv_ivec mask, dkv_vec a, dkv_vec b) {
  return (dkv_vec)((mask & (dkv_ivec)a) | (~mask & (dkv_ivec)b));
}
static inline dkv_vec vec_max(dkv_vec a, dkv_vec b) { return vec_select(a > b, a, b); }
static inline dkv_vec vec_min(dkv_vec a, dkv_vec b) { return vec_select(a < b, a, b); }
static inline dkv_vec vec_add_exponent(dkv_vec a, dkv_vec n) { return (dkv_vec)((dkv_uvec)a + ((dkv_uvec)n << 23)); }
static inline dkv_vec vec_zero_below(dkv_vec a, dkv_vec x, float limit) {
  return (dkv_vec)(~(x < vec_set(limit)) & (dkv_ivec)a);
}
static inline dkv_vec vec_keep(dkv_vec a, int32_t lo, int32_t hi, dkv_vec b) {
  const dkv_ivec lane = {0, 1, 2, 3};
  return vec_select((lane >= lo) & (lane < hi), a, b);
}

#endif

#endif
