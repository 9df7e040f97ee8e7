/**
 * @file update.c
 * @brief Turns the loss of laid-out groups into a gradient; see update.h.
 *
 * Read before: update_batch.c.  Read next: trainer.c.
 */
#include "common/rl/update.h"

#include <math.h>
#include <stdlib.h>

/** Log-probabilities under the frozen reference. */
static dkv_status reference_logprobs(const dkv_model *reference, dkv_batch batch, float *logprob) {
  dkv_pass pass = {0};
  batch.forward_only = true;
  dkv_status status = dkv_pass_set(&pass, reference, &batch);
  if (status == DKV_OK) status = dkv_model_forward(reference, &pass, logprob, NULL);
  dkv_pass_free(&pass);
  return status;
}

static void add_mismatch(dkv_update_stats *stats, const dkv_update_batch *b, const float *logprob,
                         const float *entropy) {
  for (int32_t i = 0; i < b->tokens; ++i) {
    double gap = fabs((double)logprob[i] - (double)b->old[i]);
    stats->mismatch_max = fmax(stats->mismatch_max, gap);
    stats->mismatch_sum += gap;
    stats->entropy_sum += (double)entropy[i];
  }
  stats->tokens += b->tokens;
  stats->rows += b->layout.rows;
  stats->replicated_rows += b->replicated_rows;
}

/** The groups as the model sees them. */
static dkv_batch model_batch(const dkv_update_batch *b, float temperature) {
  return (dkv_batch){.layout = &b->layout,
                     .ids = b->ids,
                     .pairs = b->pairs,
                     .pair_count = b->tokens,
                     .target_ids = b->target_ids,
                     .temperature = temperature};
}

dkv_status dkv_update_gradient(dkv_update_stats *stats, dkv_model *model, dkv_pass *pass, const dkv_update_batch *b,
                               const dkv_policy_config *loss, const dkv_normaliser *total, float temperature,
                               const dkv_model *reference) {
  DKV_REQUIRE(stats && model && pass && b && loss && total, DKV_ERR_NULL, "dkv_update_gradient: an argument is NULL");
  DKV_REQUIRE(loss->kl_weight == 0 || reference != NULL, DKV_ERR_NULL,
              "kl_weight is %g, but there is no reference model to measure the distance from", loss->kl_weight);
  size_t tokens = (size_t)b->tokens;
  float *buffer =
      malloc((5 * tokens + 1) * sizeof *buffer); /* one array for five: logprob, entropy, reference, two slopes */
  DKV_REQUIRE(buffer != NULL, DKV_ERR_NOMEM, "no memory for %d log-probabilities", b->tokens);
  float *logprob = buffer, *entropy = buffer + tokens, *frozen = buffer + 2 * tokens;
  float *dlogprob = buffer + 3 * tokens, *dentropy = buffer + 4 * tokens;
  dkv_batch batch = model_batch(b, temperature);
  dkv_policy_batch view = dkv_update_policy_view(b);
  view.logprob = logprob;
  view.entropy = entropy;
  view.reference = loss->kl_weight > 0 ? frozen : NULL;
  dkv_status status = loss->kl_weight > 0 ? reference_logprobs(reference, batch, frozen) : DKV_OK;
  if (status == DKV_OK) status = dkv_pass_set(pass, model, &batch);
  if (status == DKV_OK) status = dkv_model_forward(model, pass, logprob, entropy);
  if (status == DKV_OK) status = dkv_policy_loss(&stats->policy, dlogprob, dentropy, &view, loss, total);
  if (status == DKV_OK) status = dkv_model_backward(model, pass, dlogprob, loss->entropy_weight > 0 ? dentropy : NULL);
  if (status == DKV_OK) add_mismatch(stats, b, logprob, entropy);
  free(buffer);
  return status;
}

dkv_status dkv_update_gradient_exact(dkv_update_stats *stats, dkv_exact *exact, const dkv_update_batch *b,
                                     const dkv_policy_config *loss, const dkv_normaliser *total, float temperature) {
  DKV_REQUIRE(stats && exact && b && loss && total, DKV_ERR_NULL, "dkv_update_gradient_exact: an argument is NULL");
  DKV_REQUIRE(loss->kl_weight == 0, DKV_ERR_UNSUPPORTED,
              "kl_weight is %g, but an exact update has no reference model: it must be 0", loss->kl_weight);
  size_t tokens = (size_t)b->tokens;
  double *values = malloc((2 * tokens + 1) * sizeof *values);
  float *buffer = malloc((4 * tokens + 1) * sizeof *buffer);
  float *logprob = buffer, *entropy = buffer + tokens, *dlogprob = buffer + 2 * tokens, *dentropy = buffer + 3 * tokens;
  dkv_status status = values && buffer ? DKV_OK : dkv_fail(DKV_ERR_NOMEM, "no memory for %d tokens", b->tokens);
  dkv_batch batch = model_batch(b, temperature);
  if (status == DKV_OK) status = dkv_exact_forward(exact, &batch, values, values + tokens);
  for (size_t i = 0; status == DKV_OK && i < tokens; ++i) {
    logprob[i] = (float)values[i];
    entropy[i] = (float)values[tokens + i];
  }
  dkv_policy_batch view = dkv_update_policy_view(b);
  view.logprob = view.old = logprob;
  view.entropy = entropy;
  if (status == DKV_OK) status = dkv_policy_loss(&stats->policy, dlogprob, dentropy, &view, loss, total);
  if (status == DKV_OK) status = dkv_exact_backward(exact, dlogprob, loss->entropy_weight > 0 ? dentropy : NULL);
  if (status == DKV_OK) add_mismatch(stats, b, logprob, entropy);
  free(values);
  free(buffer);
  return status;
}
