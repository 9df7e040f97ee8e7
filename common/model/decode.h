/**
 * @file decode.h
 * @brief The tensors of one decoding step. Private to common/model.
 *
 * Read before: model.h.  Read next: decode.c, decode_step.c.
 */
#ifndef DKV_MODEL_DECODE_H
#define DKV_MODEL_DECODE_H

#include "common/model/stack.h"

/** Rows of a block of slots: see decode_step.c. */
#define DKV_DECODE_BLOCK 16

/** Tensors of one step over `rows` rows. */
typedef struct dkv_step_tensors {
  float *x;          /**< [rows][C] residual stream */
  float *h;          /**< [rows][C] a norm's output */
  float *delta;      /**< [rows][C] what a branch adds */
  float *q;          /**< [rows][H D] normed and rotated */
  float *k;          /**< [rows][Hkv D] normed and rotated */
  float *v;          /**< [rows][Hkv D] */
  float *o;          /**< [rows][H D]; before attention q and k lie here unnormed */
  float *gate;       /**< [rows][F] */
  float *up;         /**< [rows][F] */
  float *rstd;       /**< [rows H] */
  float *logits;     /**< [rows][V] */
  int32_t *position; /**< [rows] */
} dkv_step_tensors;

/**
 * Cuts the arena of a step.
 * @param[out] out    pointers, all NULL when arena is NULL
 * @param[in]  config the model
 * @param[in]  arena  memory, or NULL to count only
 * @param[in]  rows   rows
 * @return bytes needed
 */
size_t dkv_step_cut(dkv_step_tensors *out, const dkv_model_config *config, char *arena, int32_t rows);

#endif
