/**
 * @file cost.h
 * @brief What sharing the prompt saves: tokens, pairs, FLOPs, bytes, in closed form for equal responses and counted
 * exactly for any layout.
 *
 *     rho = N (P+R) / (P + N R)                          tokens: everything that is done per row
 *     A   = N (P+R)^2 / (P^2 + N R (2P + R))             attention pairs (continuous form); A <= rho for one prompt
 *
 * Read before: layout.h.
 */
#ifndef DKV_COST_H
#define DKV_COST_H

#include "common/layout.h"

DKV_BEGIN_C

/**
 * Token ratio rho of equal responses (reals, so that limits can be drawn).
 * @param[in] prompt          P >= 0, rows
 * @param[in] responses       N >= 1
 * @param[in] response_length R >= 0, rows
 * @return rho; 1 when there is no row at all
 */
double dkv_cost_rho(double prompt, double responses, double response_length);

/**
 * Attention pair ratio A, continuous form: a row's pair with itself counts a half, as in an integral.
 * @param[in] prompt          P >= 0, rows
 * @param[in] responses       N >= 1
 * @param[in] response_length R >= 0, rows
 * @return A; 1 when there is no row at all
 */
double dkv_cost_pair_ratio(double prompt, double responses, double response_length);

/** Shape of a Qwen3-style decoder, for counting. */
typedef struct dkv_model_shape {
  int32_t layers;        /**< L */
  int32_t width;         /**< C */
  int32_t mlp_width;     /**< F */
  int32_t vocabulary;    /**< V */
  int32_t heads;         /**< H */
  int32_t kv_heads;      /**< Hkv */
  int32_t head_dim;      /**< D */
  int32_t element_bytes; /**< bytes of a stored activation: 2 or 4 */
} dkv_model_shape;

/** Cost of one layout. FLOPs are useful ones, forward; a training step is 3 times linear_flops and 3.5
 *  times pair_flops. */
typedef struct dkv_cost {
  int64_t rows;            /**< tokens in every layer */
  int64_t pairs;           /**< visible (query, key) pairs */
  int64_t predictions;     /**< rows that go through the LM head, repeats counted once */
  double linear_flops;     /**< projections and MLP of all layers: 2 L rows (2 C H D + 2 C Hkv D + 3 C F) */
  double pair_flops;       /**< attention of all layers: 4 D H L pairs */
  double head_flops;       /**< LM head: 2 C V predictions */
  double attention_bytes;  /**< q, k, v, o, lse and their gradients of one layer */
  double activation_bytes; /**< activations kept for the backward of all layers without recomputation, see cost.c */
} dkv_cost;

/** Packed beside replicated. */
typedef struct dkv_saving {
  dkv_cost packed;     /**< the layout as given */
  dkv_cost replicated; /**< one root for every path from root to leaf */
  double rho;          /**< replicated.rows / packed.rows, counted */
  double pair_ratio;   /**< replicated.pairs / packed.pairs, counted */
  double step_ratio;   /**< ratio of training-step FLOPs */
} dkv_saving;

/**
 * Counts both layouts exactly, without building the replicated one.
 * @param[out] out    overwritten
 * @param[in]  layout the packed layout
 * @param[in]  shape  the model; every size >= 1
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE (a size < 1; more than 2^63 - 1 replicated pairs); DKV_ERR_NOMEM.  On
 *         failure *out is zeroed
 */
dkv_status dkv_cost_saving(dkv_saving *out, const dkv_layout *layout, const dkv_model_shape *shape);

DKV_END_C
#endif
