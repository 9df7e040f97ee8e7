/**
 * @file warmup.h
 * @brief Supervised learning on demonstrations, so that reinforcement learning has something to choose from.
 *
 * Demonstrations carry random mistakes (see task.h).  The model learns the format and the rule, and imitates the
 * mistakes: its samples are right about three times in ten, though its most likely answer nearly always is.
 *
 *     loss = - mean over the step's supervised tokens of log pi(token)
 *
 * Supervised are the answers inside the prompt and the last answer.  A batch of B examples is B roots of one layout.
 *
 * Read before: task.h, common/model/optimizer.h.  Read next: trainer.h.
 */
#ifndef DKV_RL_WARMUP_H
#define DKV_RL_WARMUP_H

#include "common/model/optimizer.h"
#include "common/rl/task.h"

DKV_BEGIN_C

/** A warm-up. dkv_warmup_defaults gives one. */
typedef struct dkv_warmup_config {
  const dkv_task *task;           /**< whose demonstrations */
  uint64_t seed;                  /**< of the demonstrations */
  int32_t examples;               /**< B demonstrations of a step, >= 1 */
  double noise;                   /**< mean number of mistakes in each answer shown, 0 to 20 */
  dkv_schedule schedule;          /**< learning rate; total = steps */
  dkv_optimizer_config optimizer; /**< AdamW */
} dkv_warmup_config;

/** What one step did. */
typedef struct dkv_warmup_stats {
  int64_t step;         /**< number of the step, 0 first */
  double loss;          /**< nats per supervised token */
  double grad_norm;     /**< before clipping */
  double learning_rate; /**< of this step */
  int64_t tokens;       /**< supervised tokens */
  int64_t rows;         /**< rows computed */
  double seconds;       /**< of this step */
  double total_seconds; /**< of all steps, continued by a resumed run */
} dkv_warmup_stats;

/** A warm-up in progress. Fields may be read. */
typedef struct dkv_warmup {
  dkv_warmup_config config; /**< as given */
  dkv_model *model;         /**< what learns; not owned */
  dkv_optimizer optimizer;  /**< owned */
  dkv_pass pass;            /**< owned */
  dkv_example *examples;    /**< [config.examples] owned */
  int64_t step;             /**< steps done */
  double seconds;           /**< spent in steps */
} dkv_warmup;

/** 500 steps of 16 demonstrations with the task's number of mistakes, learning rate 3e-3, 30 warm-up steps, cosine to
 * 10 %.
 * @param[in] task the task. @return the recipe. */
dkv_warmup_config dkv_warmup_defaults(const dkv_task *task);

/**
 * Opens a warm-up.
 * @param[out] out    overwritten; zeroed on failure
 * @param[in]  model  what learns; must outlive the warm-up
 * @param[in]  config copied
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE; DKV_ERR_SHAPE (a model too small for the task); DKV_ERR_NOMEM
 */
dkv_status dkv_warmup_open(dkv_warmup *out, dkv_model *model, const dkv_warmup_config *config);

/** Frees; accepts a zeroed struct. @param[in,out] warmup zeroed afterwards. */
void dkv_warmup_close(dkv_warmup *warmup);

/**
 * One step.
 * @param[in,out] warmup the warm-up
 * @param[out]    stats  overwritten
 * @return DKV_OK; DKV_ERR_RANGE (a loss or gradient that is not finite); DKV_ERR_NOMEM; ...
 */
dkv_status dkv_warmup_step(dkv_warmup *warmup, dkv_warmup_stats *stats);

/** Saves everything needed to continue bit for bit. @param[in] warmup the warm-up. @param[in] path a file. @return as
 * dkv_resume_save */
dkv_status dkv_warmup_save(const dkv_warmup *warmup, const char *path);

/** Continues a saved warm-up. @param[in,out] warmup opened with the same configuration. @param[in] path its file.
 * @return DKV_OK; DKV_ERR_RANGE (a setting that differs); as dkv_resume_load */
dkv_status dkv_warmup_load(dkv_warmup *warmup, const char *path);

DKV_END_C
#endif
