/**
 * @file update.h
 * @brief From sampled groups to a gradient: rows, pairs, log-probabilities, loss, backward. Packed or replicated: the
 * layout only.
 *
 * A response of R tokens needs R - 1 input rows: its first token is predicted by the last prompt row, its last token
 * predicts nothing.  So for N responses of R tokens the packed batch has P + N (R - 1) rows and the replicated one N (P
 * + R - 1).
 *
 * Read before: rollout.h, policy_loss.h, common/model/model.h.  Read next: update_batch.c, update.c, trainer.h.
 */
#ifndef DKV_RL_UPDATE_H
#define DKV_RL_UPDATE_H

#include "common/model/exact.h"
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

/** A prompt and how many responses it has. Nothing is owned. */
typedef struct dkv_asked {
  const int32_t *token; /**< [length] */
  int32_t length;       /**< P >= 1 */
  int32_t responses;    /**< N >= 0 */
} dkv_asked;

/** A response. Nothing is owned. */
typedef struct dkv_said {
  const int32_t *token; /**< [length] */
  const float *old;     /**< [length] log-probability of each token when it was sampled, nats */
  int32_t length;       /**< R >= 0 */
  double advantage;     /**< how much better than its siblings */
  bool active;          /**< carries loss */
} dkv_said;

/**
 * Lays out prompts and their responses, of any lengths.
 * @param[out] out        overwritten; zeroed on failure
 * @param[in]  asked      [count] prompts
 * @param[in]  count      groups >= 1
 * @param[in]  said       responses, group by group
 * @param[in]  replicated repeat the prompt for every response
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE (no group, an empty prompt, a negative length, too many rows);
 * DKV_ERR_NOMEM
 */
dkv_status dkv_update_batch_assemble(dkv_update_batch *out, const dkv_asked *asked, int32_t count, const dkv_said *said,
                                     bool replicated);

/**
 * Lays out sampled groups.
 * @param[out] out        overwritten; zeroed on failure
 * @param[in]  groups     [count] pointers; length, token, logprob, advantage and active are read; a response may be
 * empty
 * @param[in]  count      groups >= 1
 * @param[in]  replicated repeat the prompt for every response
 * @return as dkv_update_batch_assemble
 */
dkv_status dkv_update_batch_make(dkv_update_batch *out, const dkv_group *const *groups, int32_t count, bool replicated);

/** Sequences as other programs hold them: every response behind a copy of its prompt. Nothing is owned. */
typedef struct dkv_sequences {
  int32_t groups;               /**< G >= 1 */
  const int32_t *prompt_length; /**< [G] tokens that the sequences of a group are said to share, >= 1 */
  const int32_t *responses;     /**< [G] sequences of each group, >= 0 */
  const int32_t *begin;         /**< [S+1] sequence s is ids[begin[s]] .. ids[begin[s+1]-1]; begin[0] = 0 */
  const int32_t *ids;           /**< tokens, prompt and response */
  const float *old;             /**< as ids: log-probabilities when sampled; those of prompts are not read */
  const double *advantage;      /**< [S] */
  const bool *active;           /**< [S]; NULL = all carry loss */
} dkv_sequences;

/**
 * Lays out a caller's own data, prompts and responses of any lengths.  Prompts that are said to be shared but differ
 * are refused: packing them would train on something else than what was sampled.
 * @param[out] out        overwritten; zeroed on failure
 * @param[in]  sequences  the data
 * @param[in]  replicated repeat the prompt for every response (equal prompts are required all the same)
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE (no group, begin not ascending, a sequence shorter than its prompt);
 * DKV_ERR_MISMATCH (two copies of a prompt differ: rows and tokens named); DKV_ERR_NOMEM
 */
dkv_status dkv_update_batch_from_sequences(dkv_update_batch *out, const dkv_sequences *sequences, bool replicated);

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
  int64_t tokens;          /**< response tokens, masked ones included */
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

/**
 * The same in double, for one epoch on fresh samples: the old log-probabilities are those of this forward, so every
 * ratio is 1 and nothing of the float sampler's rounding enters the gradient.  The mismatch is still measured against
 * what the sampler stored.
 * @param[in,out] stats       sums are added
 * @param[in,out] exact       exact->grad accumulated
 * @param[in]     batch       the groups
 * @param[in]     loss        the policy loss; kl_weight must be 0
 * @param[in]     total       counts of the whole optimizer step
 * @param[in]     temperature the sampler's
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_UNSUPPORTED (a KL term); DKV_ERR_NOMEM; whatever model or loss said
 */
dkv_status dkv_update_gradient_exact(dkv_update_stats *stats, dkv_exact *exact, const dkv_update_batch *batch,
                                     const dkv_policy_config *loss, const dkv_normaliser *total, float temperature);

DKV_END_C
#endif
