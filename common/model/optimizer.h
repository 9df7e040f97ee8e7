/**
 * @file optimizer.h
 * @brief AdamW with float moments over the flat parameter array, global-norm clipping, learning-rate schedules, and the
 * file that lets a run continue bit for bit.
 *
 * Read before: model.h.  Read next: common/model/optimizer.c, cpu/layers/adamw.c.
 */
#ifndef DKV_MODEL_OPTIMIZER_H
#define DKV_MODEL_OPTIMIZER_H

#include "common/model/model.h"

DKV_BEGIN_C

/** Constants of AdamW. dkv_optimizer_defaults fills them. */
typedef struct dkv_optimizer_config {
  double beta1;        /**< 0.9 */
  double beta2;        /**< 0.95 */
  double epsilon;      /**< 1e-8 */
  double weight_decay; /**< 0; only views that decay */
  double max_norm;     /**< gradients are scaled down to this global norm; 0 = never */
} dkv_optimizer_config;

/** Moments and step count of one model. */
typedef struct dkv_optimizer {
  dkv_optimizer_config config; /**< constants */
  int64_t count;               /**< elements of each moment, = params.count */
  float *m;                    /**< [count] first moment */
  float *v;                    /**< [count] second moment */
  int64_t step;                /**< steps taken */
} dkv_optimizer;

/** How the learning rate goes after the warm-up. */
typedef enum dkv_schedule_shape { DKV_SCHEDULE_CONSTANT, DKV_SCHEDULE_LINEAR, DKV_SCHEDULE_COSINE } dkv_schedule_shape;

/** A learning-rate schedule: linear warm-up, then the shape down to `floor` times the peak at step `total`. */
typedef struct dkv_schedule {
  dkv_schedule_shape shape; /**< after the warm-up */
  double peak;              /**< learning rate at the end of the warm-up */
  int64_t warmup;           /**< warm-up steps, >= 0: step s < warmup has peak (s + 1) / warmup */
  int64_t total;            /**< steps of the run */
  double floor;             /**< last learning rate as a share of the peak */
} dkv_schedule;

/** beta 0.9 and 0.95, epsilon 1e-8, no decay, norm 1. @return the defaults. */
dkv_optimizer_config dkv_optimizer_defaults(void);

/**
 * Zero moments for a model.
 * @param[out] out    overwritten; zeroed on failure
 * @param[in]  model  the model
 * @param[in]  config NULL = defaults
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE (a constant outside its range); DKV_ERR_NOMEM
 */
dkv_status dkv_optimizer_create(dkv_optimizer *out, const dkv_model *model, const dkv_optimizer_config *config);

/** Frees; accepts a zeroed struct. @param[in,out] optimizer zeroed afterwards. */
void dkv_optimizer_free(dkv_optimizer *optimizer);

/**
 * Clips by global norm and takes one step from model->grads, which it leaves as they are (dkv_model_zero_grads clears
 * them). A gradient that is not finite is refused and nothing changes.
 * @param[in,out] optimizer moments and step count
 * @param[in,out] model     weights
 * @param[in]     lr        learning rate of this step, >= 0
 * @param[out]    grad_norm global norm before clipping; NULL when not wanted
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE (lr, a norm that is not finite); DKV_ERR_SHAPE (another model's moments)
 */
dkv_status dkv_optimizer_step(dkv_optimizer *optimizer, dkv_model *model, double lr, double *grad_norm);

/** Learning rate of step s (0 for the first). @param[in] schedule schedule. @param[in] step s >= 0. @return learning
 * rate. */
double dkv_schedule_rate(const dkv_schedule *schedule, int64_t step);

/**
 * Saves everything that a run needs to continue bit for bit, in one safetensors file that appears whole or not at all:
 * configuration, weights (f32), both moments, step, and the caller's own tensors (counters, seeds, cursors).
 * @param[in] path        where
 * @param[in] model       weights and configuration
 * @param[in] optimizer   moments
 * @param[in] extra       [extra_count] tensors; their names are stored with the prefix "run."
 * @param[in] extra_count number, may be 0
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_SHAPE; DKV_ERR_IO; DKV_ERR_NOMEM
 */
dkv_status dkv_resume_save(const char *path, const dkv_model *model, const dkv_optimizer *optimizer,
                           const dkv_tensor *extra, int32_t extra_count);

/**
 * Restores weights, moments and step into an existing model and optimizer of the same shape; nothing changes on
 * failure.
 * @param[in]     path      what dkv_resume_save wrote
 * @param[in,out] model     weights overwritten
 * @param[in,out] optimizer moments, constants and step overwritten
 * @param[out]    file      the open file, in which dkv_safetensors_find(file, "run.NAME") finds the caller's tensors;
 * close it with dkv_safetensors_close. NULL when not wanted
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_IO; DKV_ERR_FORMAT (not such a file, a tensor missing); DKV_ERR_SHAPE (another
 *         shape, named); DKV_ERR_NOMEM
 */
dkv_status dkv_resume_load(const char *path, dkv_model *model, dkv_optimizer *optimizer, dkv_safetensors *file);

DKV_END_C
#endif
