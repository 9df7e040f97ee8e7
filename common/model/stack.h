/**
 * @file stack.h
 * @brief What forward, backward and decoding share: one layer's forward, and how a layer is called. Private to
 * common/model.
 *
 * Read before: model.h.  Read next: forward.c.
 */
#ifndef DKV_MODEL_STACK_H
#define DKV_MODEL_STACK_H

#include "common/model/model.h"

/**
 * One decoder layer over the rows of a pass.
 * @param[in]     model   the model
 * @param[in]     pass    rows, positions, prepared attention
 * @param[in]     l       layer
 * @param[in]     tensors where its tensors go, all overwritten
 * @param[in]     x       [T][C] input
 * @param[out]    x_next  [T][C] overwritten; NULL: stop after gate and up, which is all that a recomputation needs
 * @return DKV_OK or what a kernel said
 */
dkv_status dkv_layer_forward(const dkv_model *model, const dkv_pass *pass, int32_t l, const dkv_layer_tensors *tensors,
                             const float *x, float *x_next);

/**
 * Rotated and normed q and k of a layer from q_raw and k_raw: made in the forward, made again in the backward.
 * @param[in] model   the model
 * @param[in] pass    rows and positions
 * @param[in] l       layer
 * @param[in] tensors q and k are overwritten, and the passing rstd_q and rstd_k
 * @return DKV_OK or what a kernel said
 */
dkv_status dkv_layer_rotate(const dkv_model *model, const dkv_pass *pass, int32_t l, const dkv_layer_tensors *tensors);

/**
 * Makes the table of cosines and sines, or lets it be when it reaches far enough.
 * @param[in,out] pass      rope overwritten when it is too short
 * @param[in]     model     the model
 * @param[in]     positions positions that will be used
 * @return DKV_OK; DKV_ERR_NOMEM; what a kernel said
 */
dkv_status dkv_pass_rope(dkv_pass *pass, const dkv_model *model, int32_t positions);

/** Threads and scratch of a pass. @param[in] model model. @param[in] passing its tensors. @return where layers run. */
static inline dkv_where dkv_pass_where(const dkv_model *model, const dkv_passing_tensors *passing) {
  dkv_where where = {.threads = model->options.threads, .scratch = passing->scratch};
  return where;
}

/** The scored rows of a pass. @param[in] pass a pass. @return them. */
static inline dkv_scored dkv_pass_scored(const dkv_pass *pass) {
  dkv_scored scored = {pass->source_count, pass->source_begin, pass->pair_token, pass->pair_order,
                       pass->batch.temperature};
  return scored;
}

#endif
