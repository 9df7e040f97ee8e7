/**
 * @file exact.h
 * @brief The decoder and its training in double: the definition by which the float model is judged, and updates in
 * which packed and replicated agree to twelve digits.
 *
 * Float adds the same numbers of the two layouts in another order, so gradients differ by about 1e-6.  A long run
 * multiplies that: AdamW divides a gradient near 0 by its own size, and every step goes on from slightly other weights.
 * After some ten steps a sampled token may differ, and then the runs part.  In double the start of all this is 1e-15.
 *
 *     dkv_exact_open(model)                    double weights from the model's
 *     dkv_exact_forward(batch)  -> logprob     all rows through all layers: nothing is left out, nothing recomputed
 *     dkv_exact_backward        -> grad +=     plain loops; attention by the "ref" backend
 *     dkv_exact_step                           AdamW in double; the model gets the weights as floats, to sample
 *
 * Ten to thirty times slower than the float model, and its memory is not planned: for checks, not for work.
 *
 * Read before: model.h.  Read next: exact_forward.c, exact_backward.c.
 */
#ifndef DKV_MODEL_EXACT_H
#define DKV_MODEL_EXACT_H

#include "common/model/optimizer.h"

DKV_BEGIN_C

/** What a layer's forward leaves. */
typedef struct dkv_exact_layer {
  double *x;     /**< [T][C] input */
  double *h;     /**< [T][C] after the norm */
  double *q_raw; /**< [T][H D] before norm and rotation */
  double *k_raw; /**< [T][Hkv D] before norm and rotation */
  double *v;     /**< [T][Hkv D] */
  double *q;     /**< [T][H D] normed and rotated */
  double *k;     /**< [T][Hkv D] normed and rotated */
  double *o;     /**< [T][H D] attention's output */
  double *lse;   /**< [T H] root by root, [H][rows of the root] each */
  double *x_mid; /**< [T][C] after the attention's residual */
  double *h_mid; /**< [T][C] after the norm */
  double *gate;  /**< [T][F] */
  double *up;    /**< [T][F] */
  double *act;   /**< [T][F] silu(gate) up */
} dkv_exact_layer;

/** Tensors around the layers, and those that pass in the backward. */
typedef struct dkv_exact_tensors {
  double *x;       /**< [T][C] the last layer's output */
  double *h;       /**< [T][C] after the final norm */
  double *logits;  /**< [T][V] */
  double *dlogits; /**< [T][V] */
  double *dx;      /**< [T][C] gradient of the residual stream */
  double *dh;      /**< [T][C] */
  double *dgate;   /**< [T][F] */
  double *dup;     /**< [T][F] */
  double *dact;    /**< [T][F] */
  double *dout;    /**< [T][H D] gradient of o */
  double *dq;      /**< [T][H D] */
  double *dk;      /**< [T][Hkv D] */
  double *dv;      /**< [T][Hkv D] */
} dkv_exact_tensors;

/** A model in double. Arrays may be read; everything is owned but the model. */
typedef struct dkv_exact {
  dkv_model *model;        /**< shape, names and float weights; element i here belongs to params.data[i] */
  int64_t count;           /**< elements, = model->params.count */
  double *weight;          /**< [count] */
  double *grad;            /**< [count] accumulated by dkv_exact_backward */
  double *m;               /**< [count] AdamW's first moment */
  double *v;               /**< [count] AdamW's second moment */
  int64_t step;            /**< optimizer steps taken */
  dkv_batch batch;         /**< of the latest forward */
  bool forward_done;       /**< backward is legal */
  dkv_exact_layer *layer;  /**< [L] */
  dkv_exact_tensors other; /**< the rest */
  double *memory;          /**< behind all tensors */
  size_t room;             /**< its doubles */
} dkv_exact;

/**
 * Opens a double twin of a model.
 * @param[out] out   overwritten; zeroed on failure
 * @param[in]  model must outlive it; its weights are copied
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_NOMEM
 */
dkv_status dkv_exact_open(dkv_exact *out, dkv_model *model);

/** Frees; accepts a zeroed struct. @param[in,out] exact zeroed afterwards. */
void dkv_exact_close(dkv_exact *exact);

/**
 * Log-probabilities (nats) of a batch's pairs from the double weights.
 * @param[in,out] exact   tensors overwritten
 * @param[in]     batch   as for dkv_pass_set; what it points to must outlive the backward
 * @param[out]    logprob [pair_count] overwritten
 * @param[out]    entropy [pair_count] overwritten; NULL when not wanted
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE (as dkv_pass_set; a result that is not finite); DKV_ERR_NOMEM
 */
dkv_status dkv_exact_forward(dkv_exact *exact, const dkv_batch *batch, double *logprob, double *entropy);

/**
 * Adds to exact->grad the gradient of  sum_i dlogprob[i] logprob[i] + dentropy[i] entropy[i].
 * @param[in,out] exact    after dkv_exact_forward, which it consumes
 * @param[in]     dlogprob [pair_count]
 * @param[in]     dentropy [pair_count], NULL = zeros
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE (no forward before); DKV_ERR_NOMEM
 */
dkv_status dkv_exact_backward(dkv_exact *exact, const float *dlogprob, const float *dentropy);

/**
 * One step of AdamW in double from exact->grad, clipped by global norm; the model's float weights become the rounded
 * double ones.  The gradient stays as it is.
 * @param[in,out] exact     weights, moments, step
 * @param[in]     config    constants
 * @param[in]     lr        learning rate of this step
 * @param[out]    grad_norm global norm before clipping
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE (a norm that is not finite: nothing changes)
 */
dkv_status dkv_exact_step(dkv_exact *exact, const dkv_optimizer_config *config, double lr, double *grad_norm);

/** The double twin of a view into the model's float weights. @param[in] exact the twin. @param[in] array weight, grad,
 * m or v. @param[in] view a pointer from model->params. @return the same element there. */
static inline double *dkv_exact_at(const dkv_exact *exact, double *array, const float *view) {
  return array + (view - exact->model->params.data);
}

DKV_END_C
#endif
