/**
 * @file policy_loss.h
 * @brief The policy losses of GRPO, DAPO, Dr.GRPO, GSPO and CISPO, and their derivative by the log-probabilities.
 *
 * For token t of response n: lp = log pi(token), old = its log-probability when it was sampled, ref = under a frozen
 * reference, A = the response's advantage, r = exp(lp - old).  lp - old and ref - lp are held in [-20, 20], which every
 * clip range lies within; a value that is held has no derivative.
 *
 *     clip     l = -min( r A, clip(r, 1 - low, 1 + high) A )            with dual clip c:  A < 0:  l = min(l, -c A)
 *     gspo     the same with one ratio per response, s = exp(mean_t(lp - old))
 *     cispo    l = -sg( clip(r, 1 - low, 1 + high) ) A lp               sg: no gradient goes through
 *     + beta k3,   k3 = exp(ref - lp) - (ref - lp) - 1                  - entropy_weight * entropy
 *
 * What the methods really differ in is the weight w of a token in the sum, loss = sum w l:
 *
 *     token mean (DAPO)             w = 1 / Z.tokens
 *     sequence mean of token means  w = 1 / (Z.responses len_n)         (GRPO)
 *     sequence mean over a constant w = 1 / (Z.responses max_length)    (Dr.GRPO)
 *
 * Z counts the WHOLE optimizer step and is handed to every micro-batch; dividing by a local count is the classical bug,
 * since then loss and gradient change with the micro-batch split.
 *
 * Read before: advantage.h.  Read next: trainer.h.
 */
#ifndef DKV_RL_POLICY_LOSS_H
#define DKV_RL_POLICY_LOSS_H

#include "common/status.h"

DKV_BEGIN_C

/** The shape of the surrogate. */
typedef enum dkv_surrogate { DKV_SURROGATE_CLIP, DKV_SURROGATE_GSPO, DKV_SURROGATE_CISPO } dkv_surrogate;

/** The weight of a token. */
typedef enum dkv_aggregation {
  DKV_TOKEN_MEAN,          /**< 1 / tokens of the step */
  DKV_SEQUENCE_TOKEN_MEAN, /**< 1 / (responses of the step * length of the response) */
  DKV_SEQUENCE_CONSTANT    /**< 1 / (responses of the step * max_length) */
} dkv_aggregation;

/** A policy loss. dkv_policy_preset fills one. */
typedef struct dkv_policy_config {
  dkv_surrogate surrogate;     /**< clip, gspo or cispo */
  dkv_aggregation aggregation; /**< token weights */
  double clip_low;             /**< low, 0 to 1 */
  double clip_high;            /**< high, >= 0 */
  double dual_clip;            /**< c > 1; 0 = off */
  double kl_weight;            /**< beta >= 0; 0 = no reference needed */
  double entropy_weight;       /**< >= 0 */
  double max_length;           /**< Dr.GRPO's constant, > 0 when it is used */
} dkv_policy_config;

/** The counts of a whole optimizer step, loss tokens and responses that have any. */
typedef struct dkv_normaliser {
  int64_t tokens;    /**< tokens that carry loss */
  int64_t responses; /**< responses that carry loss */
} dkv_normaliser;

/** Some responses of one step: a micro-batch. Response n owns tokens begin[n] .. begin[n+1]-1 of the token arrays. */
typedef struct dkv_policy_batch {
  int32_t responses;       /**< responses here */
  const int32_t *begin;    /**< [responses + 1], begin[0] = 0, ascending */
  const double *advantage; /**< [responses] */
  const bool *active;      /**< [responses] false: masked out (truncated, dropped); NULL = all active */
  const float *logprob;    /**< [tokens] current policy, nats */
  const float *old;        /**< [tokens] sampling policy */
  const float *reference;  /**< [tokens] frozen reference; may be NULL when kl_weight = 0 */
  const float *entropy;    /**< [tokens] current policy, nats; may be NULL when entropy_weight = 0 */
} dkv_policy_batch;

/** Sums over one or more micro-batches of one step. Zero it before the first. */
typedef struct dkv_policy_stats {
  double loss;          /**< sum of w l, KL and entropy terms included: what is minimised */
  double policy;        /**< its surrogate part */
  double kl;            /**< sum over tokens of k3 */
  double entropy;       /**< sum over tokens of the entropy, when given */
  double ratio;         /**< sum over tokens of r */
  double max_log_ratio; /**< largest |lp - old| */
  int64_t clipped_low;  /**< tokens with A < 0 and r < 1 - low: no gradient */
  int64_t clipped_high; /**< tokens with A > 0 and r > 1 + high: no gradient */
  int64_t clipped_dual; /**< tokens with A < 0 and r > c: no gradient */
  int64_t tokens;       /**< tokens seen */
} dkv_policy_stats;

/**
 * The usual constants of a method.
 * @param[out] out    overwritten
 * @param[in]  method "grpo" (sequence mean of token means, clip 0.2/0.2), "dapo" (token mean, 0.2/0.28, no KL),
 * "dr_grpo" (constant, 0.2/0.2), "gspo" (sequence ratio, 3e-4/4e-4), "cispo" (token mean, 1/4 : weight in 0 .. 5)
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE (no such method: the sentence lists them)
 */
dkv_status dkv_policy_preset(dkv_policy_config *out, const char *method);

/** Checks the constants. @param[in] config a loss. @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE naming field, value,
 * rule. */
dkv_status dkv_policy_check(const dkv_policy_config *config);

/**
 * Adds the responses of a micro-batch to a step's counts.
 * @param[in,out] total  counts, zero at the start of the step
 * @param[in]     batch  only responses, begin and active are read
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_SHAPE (begin not ascending from 0)
 */
dkv_status dkv_normaliser_add(dkv_normaliser *total, const dkv_policy_batch *batch);

/**
 * Loss and derivative of one micro-batch.  With no active token anywhere in the step (Z = 0) loss and derivatives are
 * 0.
 * @param[in,out] stats    sums are added
 * @param[out]    dlogprob [tokens] overwritten: d loss / d logprob
 * @param[out]    dentropy [tokens] overwritten: d loss / d entropy; NULL allowed when entropy_weight = 0
 * @param[in]     batch    the responses
 * @param[in]     config   the loss
 * @param[in]     total    counts of the whole step
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_SHAPE; DKV_ERR_RANGE (a constant; a log-probability or advantage that is not
 * finite: response and token named; counts smaller than this batch's own)
 */
dkv_status dkv_policy_loss(dkv_policy_stats *stats, float *dlogprob, float *dentropy, const dkv_policy_batch *batch,
                           const dkv_policy_config *config, const dkv_normaliser *total);

DKV_END_C
#endif
