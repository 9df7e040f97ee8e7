/**
 * @file rng.h
 * @brief Counter-based random numbers: a pure function of (seed, stream, index), so the same on CPU and GPU, for any
 * thread count, in any order, and whether or not other draws were skipped.
 *
 * The generator is Philox4x32-10 (Salmon et al., SC11): ten rounds of multiply and xor of a 128-bit counter under a
 * 64-bit key.  key = seed, counter = (index, stream).
 *
 * Read before: base.h.
 */
#ifndef DKV_RNG_H
#define DKV_RNG_H

#include <math.h>

#include "common/base.h"

/** Four random words. */
typedef struct dkv_rng_block {
  uint32_t word[4]; /**< uniform on 0 .. 2^32-1 */
} dkv_rng_block;

/**
 * Philox4x32-10 of counter (index, stream) under key seed.
 * @param[in] seed   which experiment
 * @param[in] stream which use of random numbers in it: a tensor, a response
 * @param[in] index  which draw
 * @return four words
 */
DKV_HD static inline dkv_rng_block dkv_rng(uint64_t seed, uint64_t stream, uint64_t index) {
  uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    uint64_t p0 = UINT64_C(0xD2511F53) * c0, p1 = UINT64_C(0xCD9E8D57) * c2;
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)p1;
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)p0;
    k0 += UINT32_C(0x9E3779B9);
    k1 += UINT32_C(0xBB67AE85);
  }
  dkv_rng_block block = {{c0, c1, c2, c3}};
  return block;
}

/**
 * Uniform in [0, 1): 24 bits, exact in float.
 * @param[in] seed   as dkv_rng
 * @param[in] stream as dkv_rng
 * @param[in] index  which draw; four draws share a block
 * @return the number
 */
DKV_HD static inline float dkv_rng_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
  return (float)(dkv_rng(seed, stream, index >> 2).word[index & 3] >> 8) * 5.9604644775390625e-8f;
}

/**
 * Standard normal by Box-Muller in double, rounded to float (host and device libm may differ in the last bit).
 * @param[in] seed   as dkv_rng
 * @param[in] stream as dkv_rng
 * @param[in] index  which draw; two draws share a block
 * @return the number, within 6.77 of 0
 */
DKV_HD static inline float dkv_rng_normal(uint64_t seed, uint64_t stream, uint64_t index) {
  dkv_rng_block b = dkv_rng(seed, stream, index >> 1);
  uint32_t first = b.word[(index & 1) * 2], second = b.word[(index & 1) * 2 + 1];
  double u = ((double)first + 0.5) * 2.3283064365386963e-10, angle = (double)second * 1.4629180792671596e-9;
  return (float)(sqrt(-2.0 * log(u)) * cos(angle));
}

#endif
