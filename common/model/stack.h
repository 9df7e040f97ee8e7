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
 * Checks a batch against a model: pointers, tokens, positions, pairs, temperature.
 * @param[in] model the model
 * @param[in] batch the batch
 * @return as dkv_pass_set
 */
dkv_status dkv_batch_check(const dkv_model *model, const dkv_batch *batch);

/**
 * One decoder layer over the rows of a pass.
 * @param[in]     model   the model
 * @param[in]     pass    rows, positions, prepared attention
 * @param[in]     l       layer
 * @param[in]     tensors where its tensors go, all overwritten
 * @param[in]     x       [T][C] input
 * @param[out]    x_next  [A][C] overwritten; NULL: stop after gate and up, which is all that a recomputation needs
 * @return DKV_OK or what a kernel said
 */
dkv_status dkv_layer_forward(const dkv_model *model, const dkv_pass *pass, int32_t l, const dkv_layer_tensors *tensors,
                             const float *x, float *x_next);

/**
 * The active rows of a tensor: the tensor itself, or in a layer where only some rows are active copies of those.
 * @param[in]  model the model
 * @param[in]  pass  its active rows
 * @param[in]  l     layer
 * @param[out] out   [A][width] `all` or `few`
 * @param[out] few   [A][width] overwritten when only some rows are active
 * @param[in]  all   [T][width]
 * @param[in]  width floats of a row
 * @return DKV_OK or what a kernel said
 */
dkv_status dkv_layer_pick(const dkv_model *model, const dkv_pass *pass, int32_t l, const float **out, float *few,
                          const float *all, int32_t width);

/**
 * The way back, for a layer where only some rows are active: these rows at their places among zeros.
 * @param[in]  model the model
 * @param[in]  pass  its active rows
 * @param[out] all   [T][width] overwritten
 * @param[in]  few   [U][width]
 * @param[in]  width floats of a row
 * @return DKV_OK or what a kernel said
 */
dkv_status dkv_layer_spread(const dkv_model *model, const dkv_pass *pass, float *all, const float *few, int32_t width);

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

/** Are only some rows of a layer active? @param[in] pass a pass. @param[in] l layer. @return whether A < T. */
static inline bool dkv_pass_few(const dkv_pass *pass, int32_t l) {
  return dkv_plan_active(&pass->plan, l) < pass->plan.rows;
}

/** Is x_L computed at more rows than predict? @param[in] pass a pass. @return whether the head must gather its rows. */
static inline bool dkv_pass_gathers(const dkv_pass *pass) { return pass->plan.last_active > pass->plan.sources; }

/** Where layer l writes its output: the next layer's input, or the head's x. @param[in] pass a pass. @param[in] c the
 * model. @param[in] l layer. @return [A][C] */
static inline float *dkv_pass_output(const dkv_pass *pass, const dkv_model_config *c, int32_t l) {
  if (l + 1 == c->layers && !dkv_pass_gathers(pass)) return dkv_plan_head(&pass->plan, c, pass->arena).x;
  return dkv_plan_input(&pass->plan, pass->arena, l + 1);
}

/**
 * The head's x and its final norm, h.
 * @param[in] model the model
 * @param[in] pass  after the layers' forward
 * @return DKV_OK or what a kernel said
 */
dkv_status dkv_head_norm(const dkv_model *model, const dkv_pass *pass);

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
