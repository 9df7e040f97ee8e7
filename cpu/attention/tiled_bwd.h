/**
 * @file tiled_bwd.h
 * @brief What one thread of the tiled backward keeps in its cache, and what all threads share.
 *
 * Read before: tile.h.  Read next: tiled_bwd.c.
 */
#ifndef DKV_TILED_BWD_H
#define DKV_TILED_BWD_H

#include <stdatomic.h>

#include "cpu/attention/tile.h"

/** Floats of a row of q or dout that a product of key gradients takes at once: two vectors. */
#define DKV_CHUNK (2 * DKV_LANES)

/** One thread's tiles. L = lanes rounded up to whole panels, C = chunks of a row. */
struct bwd_scratch {
  float *q, *dout;           /**< [panels][D][DKV_PANEL] c q and dout, transposed */
  float *q_rows, *dout_rows; /**< [C][L][DKV_CHUNK] the same as rows, in chunks */
  float *dq;                 /**< [panels][D][DKV_PANEL] sum so far, transposed */
  float *lse, *delta;        /**< [L] */
  float *shift;              /**< [L] what is taken off a score before exp: lse, or 0 for a row with fine scores */
  float *k, *v;              /**< [DKV_KEYS][D] */
  float *k_columns;          /**< [D / DKV_MR][DKV_COLUMN_BLOCK] columns in blocks */
  float *s;                  /**< [DKV_KEYS][L] scores, then weights P */
  float *ds;                 /**< [DKV_KEYS][L] dP, then dS */
  float *dk, *dv;            /**< [DKV_KEYS][C DKV_CHUNK] contribution of this query tile */
  bool fine;                 /**< some row has large scores: s - lse is taken in double, see fine.h */
};

/** Sizes of a call, and what all threads share. */
struct bwd_call {
  const dkv_attention *p;
  int32_t rows;          /**< rows of a query tile */
  int32_t lanes;         /**< L */
  int32_t key_tiles;     /**< ceil(T / DKV_KEYS) */
  int32_t chunks;        /**< C */
  size_t scratch_floats; /**< of one thread */
  size_t fixed_bytes;    /**< turns and sums */
  _Atomic int32_t *turn; /**< [Hkv][key_tiles] query tile that may add next */
  float *dk, *dv;        /**< [T][Hkv][D] sums: the outputs themselves when they are f32 */
};

#endif
