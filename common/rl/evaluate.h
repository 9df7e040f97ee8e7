/**
 * @file evaluate.h
 * @brief How good is the model on prompts that it never trained on?
 *
 * Three numbers on the same fixed prompts: sampled accuracy (what a user gets at this temperature), greedy accuracy
 * (what the model thinks best), pass\@N (at least one of N samples is right).  Reinforcement learning that only
 * sharpens raises the first towards the others.
 *
 * Read before: rollout.h.
 */
#ifndef DKV_RL_EVALUATE_H
#define DKV_RL_EVALUATE_H

#include "common/rl/rollout.h"

DKV_BEGIN_C

/** What to ask. */
typedef struct dkv_evaluate_config {
  const dkv_task *task; /**< the task */
  uint64_t seed;        /**< of held-out prompts and samples: its own purposes, so no training prompt returns */
  int32_t prompts;      /**< >= 1 */
  int32_t responses;    /**< samples of each, >= 1 */
  float temperature;    /**< > 0 */
  int32_t max_length;   /**< cap */
  bool greedy;          /**< also the most likely response of each */
} dkv_evaluate_config;

/** Shares of 1. */
typedef struct dkv_evaluation {
  double sampled;   /**< exact samples */
  double greedy;    /**< exact greedy responses; 0 when not asked for */
  double pass;      /**< prompts with at least one exact sample */
  double reward;    /**< mean reward of the samples */
  double length;    /**< mean tokens of the samples */
  double truncated; /**< samples cut off at the cap */
} dkv_evaluation;

/** 128 prompts, 4 samples each, temperature 1, the task's longest response, greedy too. @param[in] task the task.
 * @return the usual question. */
dkv_evaluate_config dkv_evaluate_defaults(const dkv_task *task);

/**
 * Asks the model.
 * @param[out] out    overwritten
 * @param[in]  model  the model
 * @param[in]  config what to ask
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE; whatever the rollout said
 */
dkv_status dkv_evaluate(dkv_evaluation *out, const dkv_model *model, const dkv_evaluate_config *config);

DKV_END_C
#endif
