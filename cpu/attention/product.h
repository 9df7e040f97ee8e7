/**
 * @file product.h
 * @brief The one matrix product under all tiles: a block of C stays in registers while k runs.
 *
 *     C[r][x] (= | += | *= alpha[x], +=)  sum_k A(r, k) B[k][x]
 *
 *                     B[k][0 .. 3 vectors)            a step k: load 3 vectors of B, then for each of the DKV_MR rows
 *     A(0, k)  ->   [ acc 0,0 | acc 0,1 | acc 0,2 ]   broadcast one number of A and do 3 multiply-adds.  With AVX-512
 *     A(1, k)  ->   [ acc 1,0 | acc 1,1 | acc 1,2 ]   that is 24 multiply-adds for 11 loads, and 28 of 32 registers:
 *       ...                                           the units that multiply are never idle.
 *
 * A's numbers are read one by one, so A may lie in memory in any order (two strides); B and C are rows of vectors.
 * The order of the sum over k is fixed, and a lane's result does not depend on the number of lanes: so the backward
 * gets the same bits for a score as the forward.
 *
 * Read before: cpu/simd.h.  Read next: tile.h.
 */
#ifndef DKV_PRODUCT_H
#define DKV_PRODUCT_H

#include <stddef.h>

#include "cpu/simd.h"

/** Rows of a register block: divides 8, hence every head size. */
#define DKV_MR (DKV_LANES == 16 ? 8 : 4)
/** Most vectors across a register block. */
#define DKV_NV 3

/** What happens to the old C. */
enum product_mode {
  PRODUCT_SET,  /**< C = A B */
  PRODUCT_ADD,  /**< C += A B */
  PRODUCT_SCALE /**< C = alpha C + A B, alpha by column */
};

/** A matrix read number by number: A(r, k) = data[r * row + k * column]. */
struct product_left {
  const float *data;
  size_t row, column;
};

/** Rows of vectors: row k at data + k * stride. */
struct product_right {
  const float *data;
  size_t stride;
};

#define DKV_INLINE static inline __attribute__((always_inline))

/**
 * Rows of two tensors that will be read soon.  A product asks for a few of their cache lines after each register block,
 * so that they arrive while it computes; asking for all at once would fill the processor's few slots for lines under
 * way.
 */
struct rows_ahead {
  const char *first, *second; /**< next row of each */
  size_t stride, bytes;       /**< from row to row; of a row */
  size_t at;                  /**< bytes of the row asked for */
  int32_t rows;               /**< rows left */
};

/** Asks for the next 8 lines of each tensor. */
static inline void ask_ahead(struct rows_ahead *ahead) {
  for (int n = 0; n < 8 && ahead->rows > 0; ++n) {
    __builtin_prefetch(ahead->first + ahead->at, 0, 2);
    __builtin_prefetch(ahead->second + ahead->at, 0, 2);
    ahead->at += 64;
    if (ahead->at < ahead->bytes) continue;
    ahead->at = 0;
    ahead->first += ahead->stride;
    ahead->second += ahead->stride;
    --ahead->rows;
  }
}

/** One block of DKV_MR rows and nv vectors; nv, mode and one of A's strides are constants where this is inlined. */
DKV_INLINE void product_block(int nv, enum product_mode mode, struct product_left a, struct product_right b,
                              int32_t depth, float *c, size_t c_stride, const float *alpha) {
  dkv_vec acc[DKV_MR][DKV_NV];
#pragma GCC unroll 8
  for (int r = 0; r < DKV_MR; ++r)
#pragma GCC unroll 3
    for (int v = 0; v < nv; ++v) acc[r][v] = vec_set(0.0f);

  for (int32_t k = 0; k < depth; ++k) {
    dkv_vec right[DKV_NV];
#pragma GCC unroll 3
    for (int v = 0; v < nv; ++v) right[v] = vec_load(b.data + (size_t)k * b.stride + v * DKV_LANES);
#pragma GCC unroll 8
    for (int r = 0; r < DKV_MR; ++r) {
      const dkv_vec left = vec_set(a.data[(size_t)r * a.row + (size_t)k * a.column]);
#pragma GCC unroll 3
      for (int v = 0; v < nv; ++v) acc[r][v] = vec_fma(left, right[v], acc[r][v]);
    }
  }

#pragma GCC unroll 8
  for (int r = 0; r < DKV_MR; ++r)
#pragma GCC unroll 3
    for (int v = 0; v < nv; ++v) {
      float *at = c + (size_t)r * c_stride + v * DKV_LANES;
      dkv_vec sum = acc[r][v];
      if (mode == PRODUCT_ADD) sum = vec_add(vec_load(at), sum);
      if (mode == PRODUCT_SCALE) sum = vec_fma(vec_load(alpha + v * DKV_LANES), vec_load(at), sum);
      vec_store(at, sum);
    }
}

/**
 * C = A B over `rows` rows (a multiple of DKV_MR) and nv vectors (1 to DKV_NV).  `block_step` is the distance in A from
 * one block of DKV_MR rows to the next; `ahead` is moved on.
 */
DKV_INLINE void product(int nv, enum product_mode mode, int32_t rows, struct product_left a, size_t block_step,
                        struct product_right b, int32_t depth, float *c, size_t c_stride, const float *alpha,
                        struct rows_ahead *ahead) {
  for (int32_t r = 0; r < rows; r += DKV_MR, a.data += block_step, c += (size_t)DKV_MR * c_stride) {
    if (nv == 3) product_block(3, mode, a, b, depth, c, c_stride, alpha);
    else if (nv == 2) product_block(2, mode, a, b, depth, c, c_stride, alpha);
    else product_block(1, mode, a, b, depth, c, c_stride, alpha);
    ask_ahead(ahead);
  }
}

#endif
