/**
 * @file rollout.h
 * @brief Sampling N responses to each prompt, the prompt's keys and values computed once and read by all N.
 *
 * The random number behind token t of response n of example e is draw t of stream e * 65536 + n under the run's seed: a
 * sample does not depend on threads, on the layout of training, on which groups were skipped or on which responses are
 * still alive.  (With other groups beside it, the last bit of a logit may differ; with other threads, no bit does.)
 *
 * The log-probability of each sampled token is stored as the sampler saw it (temperature included); the trainer
 * compares it with its own, so the mismatch between sampler and trainer is a number that one can read, not a hope.
 *
 * Read before: task.h, common/model/model.h.  Read next: update.h.
 */
#ifndef DKV_RL_ROLLOUT_H
#define DKV_RL_ROLLOUT_H

#include "common/model/model.h"
#include "common/rl/task.h"

DKV_BEGIN_C

/** Most responses of a group: streams of the sampler are numbered by it. */
#define DKV_MAX_RESPONSES 65536

/** One prompt and its responses. Arrays are [responses] or [responses][DKV_TASK_MAX_RESPONSE]; owned. */
typedef struct dkv_group {
  dkv_example example; /**< what was asked */
  uint64_t id;         /**< number of the example: key of its sampling streams */
  int32_t responses;   /**< N */
  int32_t *length;     /**< [N] tokens of each response, end token included */
  int32_t *token;      /**< [N][DKV_TASK_MAX_RESPONSE] */
  float *logprob;      /**< [N][DKV_TASK_MAX_RESPONSE] nats, as sampled */
  bool *truncated;     /**< [N] stopped by the cap, not by an end token */
  double *outcome;     /**< [N] 1 = exact, 0 = not: what dead groups are found by */
  double *reward;      /**< [N] what advantages are made of, length shaping included */
  double *advantage;   /**< [N] */
  bool *active;        /**< [N] carries loss */
} dkv_group;

/** How to sample. */
typedef struct dkv_sampler {
  uint64_t seed;      /**< of the draws */
  float temperature;  /**< > 0: logits are divided by it */
  bool greedy;        /**< take the most likely token instead; the log-probability is still that of the temperature */
  const int32_t *end; /**< [end_count] tokens that end a response */
  int32_t end_count;  /**< >= 1 */
  int32_t max_length; /**< cap, 1 to DKV_TASK_MAX_RESPONSE */
} dkv_sampler;

/** Makes room for N responses. @param[out] out zeroed on failure. @param[in] responses N, 1 to DKV_MAX_RESPONSES.
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE; DKV_ERR_NOMEM */
dkv_status dkv_group_open(dkv_group *out, int32_t responses);

/** Frees; accepts a zeroed struct. @param[in,out] group zeroed afterwards. */
void dkv_group_close(dkv_group *group);

/**
 * Draws one token by inverse distribution function: the first v with u < sum of softmax(logits / temperature)[0..v].
 * @param[out] logprob     nats of the token drawn; NULL when not wanted
 * @param[in]  logits      [vocabulary]
 * @param[in]  vocabulary  V >= 1
 * @param[in]  temperature > 0
 * @param[in]  u           uniform in [0, 1); negative: the most likely token (the first of equals)
 * @return the token; -1 when a logit is not finite
 */
int32_t dkv_sample_token(float *logprob, const float *logits, int32_t vocabulary, float temperature, float u);

/**
 * Samples all responses of `count` groups whose example and id are set; length, token, logprob and truncated are
 * overwritten.
 * @param[in,out] groups  [count]
 * @param[in]     count   1 to decoder->groups; every group has decoder->responses responses
 * @param[in,out] decoder opened with room for the prompts and max_length - 1 tokens
 * @param[in]     sampler how
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE (a field of the sampler; logits that are not finite: group and response
 * named); DKV_ERR_NOMEM; whatever the decoder said
 */
dkv_status dkv_rollout(dkv_group *groups, int32_t count, dkv_decoder *decoder, const dkv_sampler *sampler);

DKV_END_C
#endif
