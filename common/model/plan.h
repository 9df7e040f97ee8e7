/**
 * @file plan.h
 * @brief Where every activation lives, known before anything runs: so that memory can be printed, packed beside
 * replicated.
 *
 *     arena  [ x_0 | layer 0: kept tensors | ... | layer L-1 | x_L | head rows | backward scratch ]
 *
 * Without recomputation every layer keeps its own tensors; with it a layer keeps its input x_l only, all layers share
 * one set of the rest, and the backward pass runs the layer's forward again.
 *
 * Read before: params.h.  Read next: forward.c.
 */
#ifndef DKV_MODEL_PLAN_H
#define DKV_MODEL_PLAN_H

#include "common/layout.h"
#include "common/model/config.h"

DKV_BEGIN_C

/** Bytes of one pass by purpose; offsets follow from config, rows and sources. */
typedef struct dkv_plan {
  int32_t rows;           /**< T */
  int32_t sources;        /**< U rows that go through the LM head */
  int32_t pairs;          /**< scored pairs */
  bool recompute;         /**< layers keep their input only */
  size_t inputs_bytes;    /**< x_0 .. x_L */
  size_t layer_bytes;     /**< the tensors of one layer besides its input */
  int32_t layer_copies;   /**< L, or 1 with recomputation */
  size_t head_bytes;      /**< gathered rows, their norm, lse, one chunk of logits */
  size_t backward_bytes;  /**< gradients of activations, alive for one layer at a time */
  size_t workspace_bytes; /**< attention workspace and the layers' partial sums */
  size_t total_bytes;     /**< all of it: what dkv_pass_set allocates */
} dkv_plan;

/**
 * Plans a pass without running it.
 * @param[out] out       overwritten
 * @param[in]  config    the model
 * @param[in]  rows      T >= 0
 * @param[in]  sources   distinct source rows, 0 to T
 * @param[in]  pairs     scored pairs >= 0
 * @param[in]  recompute keep layer inputs only
 * @param[in]  attention workspace bytes of the attention kernels, the larger of the two
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE
 */
dkv_status dkv_plan_make(dkv_plan *out, const dkv_model_config *config, int32_t rows, int32_t sources, int32_t pairs,
                         bool recompute, size_t attention);

/**
 * One line for people: rows, MiB by purpose, total.
 * @param[in]  plan  a plan
 * @param[out] out   text, NUL-terminated
 * @param[in]  bytes room in out, >= 160
 */
void dkv_plan_describe(const dkv_plan *plan, char *out, size_t bytes);

DKV_END_C
#endif
