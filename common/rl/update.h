/**
 * @file update.h
 * @brief From sampled groups to a gradient: rows, pairs, log-probabilities, loss, backward. Packed or replicated: the
 * layout only.
 *
 * A response of R tokens needs R - 1 input rows: its first token is predicted by the last prompt row, its last token
 * predicts nothing.  So for N responses of R tokens the packed batch has P + N (R - 1) rows and the replicated one N (P
 * + R - 1).
 *
 * Read before: rollout.h, policy_loss.h, common/model/model.h.  Read next: trainer.h.
 */
#ifndef DKV_RL_UPDATE_H
#define DKV_RL_UPDATE_H

#include "common/rl/policy_loss.h"
#include "common/rl/rollout.h"

DKV_BEGIN_C

/** The training batch of some groups. Owned; release with dkv_update_batch_free. */
typedef struct dkv_update_batch {
  dkv_layout layout;       /**< packed or replicated */
  int32_t *ids;            /**< [rows] input tokens */
  int32_t tokens;          /**< response tokens: pairs, in order of group, response, token */
  dkv_prediction *pairs;   /**< [tokens] source rows */
  int32_t *target_ids;     /**< [tokens] token that each pair scores */
  int32_t responses;       /**< responses of all groups */
  int32_t *begin;          /**< [responses+1] first token of each response */
  double *advantage;       /**< [responses] */
  bool *active;            /**< [responses] */
  float *old;              /**< [tokens] log-probabilities as sampled */
  int64_t replicated_rows; /**< rows that the replicated layout has */
} dkv_update_batch;

/**
 * Lays out the groups.
 * @param[out] out        overwritten; zeroed on failure
 * @param[in]  groups     [count] pointers; length, token, logprob, advantage and active are read; a response may be
 * empty
 * @param[in]  count      groups >= 1
 * @param[in]  replicated repeat the prompt for every response
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE (no group, an empty prompt); DKV_ERR_NOMEM
 */
dkv_status dkv_update_batch_make(dkv_update_batch *out, const dkv_group *const *groups, int32_t count, bool replicated);

/** Frees; accepts a zeroed struct. @param[in,out] batch zeroed afterwards. */
void dkv_update_batch_free(dkv_update_batch *batch);

/** The batch as the loss sees it, without log-probabilities. @param[in] batch a batch. @return a view into it. */
dkv_policy_batch dkv_update_policy_view(const dkv_update_batch *batch);

/** What one micro-batch did. */
typedef struct dkv_update_stats {
  dkv_policy_stats policy; /**< loss and clip counts, summed */
  double mismatch_max;     /**< largest |log pi_train - log pi_rollout|; meaningful in the first epoch */
  double mismatch_sum;     /**< sum of it over tokens */
  double entropy_sum;      /**< sum over tokens, nats */
  int64_t rows;            /**< rows that were computed */
  int64_t replicated_rows; /**< rows that the replicated layout would have computed */
} dkv_update_stats;

/**
 * Adds the gradient of one micro-batch's loss to model->grads.
 * @param[in,out] stats       sums are added
 * @param[in,out] model       gradients accumulated
 * @param[in,out] pass        activations; may be reused from call to call
 * @param[in]     batch       the groups
 * @param[in]     loss        the policy loss
 * @param[in]     total       counts of the whole optimizer step
 * @param[in]     temperature the sampler's
 * @param[in]     reference   frozen policy for the KL term; NULL when loss->kl_weight is 0
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_NOMEM; whatever model or loss said
 */
dkv_status dkv_update_gradient(dkv_update_stats *stats, dkv_model *model, dkv_pass *pass, const dkv_update_batch *batch,
                               const dkv_policy_config *loss, const dkv_normaliser *total, float temperature,
                               const dkv_model *reference);

DKV_END_C
#endif
