/**
 * @file trainer.h
 * @brief Reinforcement learning, one step after another: sample, judge, compare within the group, learn.
 *
 *     step:  prompts -> N responses each -> rewards -> dead groups kept, dropped or replaced -> advantages
 *            epochs times:  gradient of the whole step, micro-batch by micro-batch -> AdamW
 *
 * A group is dead when all its raw outcomes are equal: it says nothing about what is better.  Kept, its tokens count in
 * the normaliser (and its partial credits in the gradient); dropped, they do not; resampled, fresh prompts replace it
 * until the step is full or the tries are used up, after which the step trains on what there is.
 *
 * The normaliser is counted once for the whole optimizer step, so that neither loss nor gradient depends on the
 * micro-batch split.  With several epochs the old log-probabilities stay those of the sampler.
 *
 * Nothing here depends on the layout but the rows that are computed: packed and replicated learn the same, in float up
 * to the step at which a rounding difference first flips a sampled token, and with `exact` (exact.h) for hundreds of
 * steps.
 *
 * Read before: rollout.h, advantage.h, update.h.  Read next: trainer.c, then warmup.h, evaluate.h.
 */
#ifndef DKV_RL_TRAINER_H
#define DKV_RL_TRAINER_H

#include "common/model/exact.h"
#include "common/model/optimizer.h"
#include "common/rl/advantage.h"
#include "common/rl/update.h"

DKV_BEGIN_C

/** What happens to groups without signal. */
typedef enum dkv_dead_policy { DKV_DEAD_KEEP, DKV_DEAD_DROP, DKV_DEAD_RESAMPLE } dkv_dead_policy;

/** A run. dkv_train_defaults fills one. */
typedef struct dkv_train_config {
  const dkv_task *task;           /**< what is learnt; static */
  uint64_t seed;                  /**< of prompts and samples */
  int32_t groups;                 /**< prompts of a step, >= 1 */
  int32_t responses;              /**< N >= 2: a group of one has nothing to compare with */
  int32_t groups_per_batch;       /**< groups of a micro-batch, >= 1 */
  int32_t epochs;                 /**< optimizer steps on the same samples, >= 1 */
  int32_t max_length;             /**< cap of a response, 1 to DKV_TASK_MAX_RESPONSE */
  float temperature;              /**< > 0: logits are divided by it, in the sampler and in the loss */
  bool replicated;                /**< lay the prompt out N times: same numbers, more rows */
  bool exact;                     /**< update in double, with the trainer's own log-probabilities as the old ones */
  dkv_dead_policy dead;           /**< see above */
  int32_t max_tries;              /**< resample: most rounds of sampling in a step, >= 1 */
  bool mask_truncated;            /**< responses cut off at the cap carry no loss (their reward stays in the mean) */
  int32_t overlong_buffer;        /**< DAPO's soft penalty begins so many tokens before the cap; 0 = off */
  dkv_advantage_config advantage; /**< how rewards become advantages */
  dkv_policy_config loss;         /**< the policy loss */
  dkv_schedule schedule;          /**< learning rate by step; total = steps of the run */
  dkv_optimizer_config optimizer; /**< AdamW */
} dkv_train_config;

/** What one step did. */
typedef struct dkv_train_stats {
  int64_t step;             /**< number of the step, 0 first */
  int32_t sampled_groups;   /**< groups that were sampled, replaced ones included */
  int32_t dead_groups;      /**< how many of them were dead */
  int32_t resampled;        /**< groups sampled to replace dead ones */
  int32_t used_groups;      /**< groups in the gradient */
  double reward;            /**< mean over all sampled responses, penalty included */
  double accuracy;          /**< share of them that are exact */
  double length;            /**< mean tokens */
  double truncated;         /**< share cut off at the cap */
  double loss;              /**< mean over the epochs */
  double kl;                /**< k3 to the reference, mean over tokens and epochs; 0 without reference */
  double entropy;           /**< nats, mean over the tokens of the first epoch */
  double clipped_low;       /**< share of tokens without gradient because r < 1 - low, all epochs */
  double clipped_high;      /**< share because r > 1 + high */
  double clipped_dual;      /**< share because r > c */
  double grad_norm;         /**< before clipping, of the last epoch */
  double learning_rate;     /**< of this step */
  double mismatch_max;      /**< largest |log pi_train - log pi_rollout| before the first update */
  double mismatch_mean;     /**< mean of it */
  int64_t tokens;           /**< response tokens in the gradient */
  int64_t rows;             /**< rows computed, one epoch */
  int64_t replicated_rows;  /**< rows that the replicated layout has */
  bool updated;             /**< false: no token carried loss, so the weights stayed as they were */
  double rollout_seconds;   /**< sampling and judging */
  double update_seconds;    /**< log-probabilities, gradient, AdamW */
  double total_seconds;     /**< of all steps up to here, continued by a resumed run */
  double tokens_per_second; /**< sampled tokens by seconds of the whole step */
} dkv_train_stats;

/** A run in progress. Fields may be read. */
typedef struct dkv_trainer {
  dkv_train_config config; /**< as given */
  dkv_model *model;        /**< what learns; not owned */
  dkv_model reference;     /**< frozen copy for the KL term; zeroed when kl_weight is 0 */
  dkv_optimizer optimizer; /**< owned */
  dkv_decoder decoder;     /**< owned */
  dkv_pass pass;           /**< owned */
  dkv_exact exact;         /**< owned: the model in double; zeroed unless config.exact */
  dkv_group *groups;       /**< [config.groups] owned: the latest samples */
  int64_t step;            /**< steps done */
  uint64_t next_example;   /**< number of the next prompt */
  double seconds;          /**< spent in steps */
} dkv_trainer;

/**
 * The recipe that the documentation measures: 8 groups of 32, token mean and clip as the algorithm has them, learning
 * rate 5e-4 with 5 warm-up steps and linear decay to 5 % over 120 steps, dead groups dropped.
 * @param[out] out       overwritten
 * @param[in]  task      the task
 * @param[in]  algorithm "grpo", "dapo", "dr_grpo", "gspo" or "cispo"
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE (no such algorithm)
 */
dkv_status dkv_train_defaults(dkv_train_config *out, const dkv_task *task, const char *algorithm);

/**
 * The small model of the recipe: 2 layers, width 96, 4 query heads on 2 key heads of 32, MLP 256, own head: 0.22 M
 * parameters for the sorting task.
 * @param[in] task gives vocabulary and end token
 * @return a shape for dkv_model_create
 */
dkv_model_config dkv_train_model(const dkv_task *task);

/**
 * Checks a configuration, so that a program can refuse it before a long warm-up.
 * @param[in] config the run
 * @param[in] model  what would learn: its vocabulary and positions are looked at
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE, DKV_ERR_SHAPE as dkv_trainer_open
 */
dkv_status dkv_train_config_check(const dkv_train_config *config, const dkv_model *model);

/**
 * Opens a run. With loss.kl_weight > 0 the reference is a copy of the model as it is now.
 * @param[out] out    overwritten; zeroed on failure
 * @param[in]  model  what learns; must outlive the trainer
 * @param[in]  config copied
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE (a field, its value and its rule); DKV_ERR_SHAPE (a model whose
 * vocabulary or positions are too small for the task); DKV_ERR_NOMEM
 */
dkv_status dkv_trainer_open(dkv_trainer *out, dkv_model *model, const dkv_train_config *config);

/** Frees; accepts a zeroed struct. @param[in,out] trainer zeroed afterwards. */
void dkv_trainer_close(dkv_trainer *trainer);

/**
 * One step.  On failure the weights are those of the last complete optimizer step, and the step is not counted.
 * @param[in,out] trainer the run
 * @param[out]    stats   overwritten
 * @return DKV_OK; DKV_ERR_RANGE (logits, a loss or a gradient that is not finite, named); DKV_ERR_NOMEM; ...
 */
dkv_status dkv_trainer_step(dkv_trainer *trainer, dkv_train_stats *stats);

/**
 * The first half of a step: samples, judges, sorts out the dead, computes advantages.  Nothing is counted as done.
 * @param[in,out] trainer the run; groups overwritten
 * @param[out]    stats   its part is overwritten
 * @param[out]    used    groups[0 .. *used-1] take part in the gradient
 * @return as dkv_trainer_step
 */
dkv_status dkv_trainer_collect(dkv_trainer *trainer, dkv_train_stats *stats, int32_t *used);

/**
 * Adds the gradient of the first `used` groups to the model's (exact: to the double one), micro-batch by micro-batch.
 * @param[in,out] trainer    after dkv_trainer_collect
 * @param[in]     used       groups
 * @param[in]     replicated the layout
 * @param[in,out] stats      sums are added
 * @param[out]    total      overwritten: the counts by which the loss was divided
 * @return as dkv_update_gradient
 */
dkv_status dkv_trainer_gradient(dkv_trainer *trainer, int32_t used, bool replicated, dkv_update_stats *stats,
                                dkv_normaliser *total);

/** Gets what a step did. @param[in] user the caller's. @param[in] stats the step's. @return false to stop. */
typedef bool (*dkv_train_report)(void *user, const dkv_train_stats *stats);

/**
 * Steps until `until` steps are done or the report says stop.
 * @param[in,out] trainer the run
 * @param[in]     until   number of steps, at most config.schedule.total makes sense
 * @param[in]     report  called after every step; may be NULL
 * @param[in]     user    handed to report
 * @return as dkv_trainer_step
 */
dkv_status dkv_trainer_run(dkv_trainer *trainer, int64_t until, dkv_train_report report, void *user);

/** Saves everything that the run needs to continue bit for bit. @param[in] trainer the run. @param[in] path a file.
 * @return as dkv_resume_save; DKV_ERR_UNSUPPORTED (an exact run) */
dkv_status dkv_trainer_save(const dkv_trainer *trainer, const char *path);

/**
 * Continues a saved run; the configuration must be the one that was saved.
 * @param[in,out] trainer opened with the same configuration; unchanged on failure
 * @param[in]     path    what dkv_trainer_save wrote
 * @return DKV_OK; DKV_ERR_RANGE (a setting that differs: name and both values); as dkv_resume_load;
 * DKV_ERR_UNSUPPORTED (an exact run)
 */
dkv_status dkv_trainer_load(dkv_trainer *trainer, const char *path);

/** DAPO's soft penalty: 0 up to cap - buffer tokens, then linearly down to -1 at the cap, -1 beyond. @param[in] length
 * tokens. @param[in] cap longest response. @param[in] buffer tokens; 0 = no penalty. @return the penalty. */
double dkv_overlong_penalty(int32_t length, int32_t cap, int32_t buffer);

DKV_END_C
#endif
