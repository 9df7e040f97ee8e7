/**
 * @file update.c
 * @brief Lays out groups and turns their loss into a gradient; see update.h.
 */
#include "common/rl/update.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/** Input rows of a response of `length` tokens: all but the last, which predicts nothing. */
static int32_t input_rows(int32_t length) { return length > 0 ? length - 1 : 0; }

/** The packed layout of the groups. */
static dkv_status pack(dkv_layout *out, const dkv_group *const *groups, int32_t count, int32_t responses) {
  int32_t *prompt = malloc((size_t)count * sizeof *prompt), *number = malloc((size_t)count * sizeof *number);
  int32_t *length = malloc((size_t)responses * sizeof *length + 1), next = 0;
  dkv_status status =
      prompt && number && length ? DKV_OK : dkv_fail(DKV_ERR_NOMEM, "no memory for the lengths of %d groups", count);
  for (int32_t g = 0; status == DKV_OK && g < count; ++g) {
    prompt[g] = groups[g]->example.prompt_length;
    number[g] = groups[g]->responses;
    for (int32_t n = 0; n < number[g]; ++n) length[next++] = input_rows(groups[g]->length[n]);
  }
  if (status == DKV_OK) status = dkv_layout_groups(out, count, prompt, number, length);
  free(prompt);
  free(number);
  free(length);
  return status;
}

/** Fills everything that is counted by response and token; rows are those of the packed layout. */
static void fill(dkv_update_batch *b, const dkv_group *const *groups, int32_t count, const dkv_layout *packed,
                 int32_t *ids) {
  int32_t segment = 0, response = 0, token = 0;
  for (int32_t g = 0; g < count; ++g) {
    const dkv_group *group = groups[g];
    int32_t prompt = segment++, last = packed->start[prompt] + group->example.prompt_length - 1;
    memcpy(ids + packed->start[prompt], group->example.prompt, (size_t)group->example.prompt_length * sizeof *ids);
    for (int32_t n = 0; n < group->responses; ++n, ++segment, ++response) {
      const int32_t *said = group->token + (int64_t)n * DKV_TASK_MAX_RESPONSE;
      int32_t first = packed->start[segment];
      memcpy(ids + first, said, (size_t)input_rows(group->length[n]) * sizeof *ids);
      b->advantage[response] = group->advantage[n];
      b->active[response] = group->active[n];
      for (int32_t t = 0; t < group->length[n]; ++t, ++token) {
        int32_t target = t + 1 < group->length[n] ? first + t : -1; /* the last token has no row of its own */
        b->pairs[token] = (dkv_prediction){t == 0 ? last : first + t - 1, target, segment};
        b->target_ids[token] = said[t];
        b->old[token] = group->logprob[(int64_t)n * DKV_TASK_MAX_RESPONSE + t];
      }
      b->begin[response + 1] = token;
    }
  }
}

static dkv_status allocate(dkv_update_batch *b) {
  size_t tokens = (size_t)b->tokens + 1, responses = (size_t)b->responses + 1;
  b->pairs = malloc(tokens * sizeof *b->pairs);
  b->target_ids = malloc(tokens * sizeof *b->target_ids);
  b->old = malloc(tokens * sizeof *b->old);
  b->begin = calloc(responses, sizeof *b->begin);
  b->advantage = malloc(responses * sizeof *b->advantage);
  b->active = malloc(responses * sizeof *b->active);
  bool ok = b->pairs && b->target_ids && b->old && b->begin && b->advantage && b->active;
  return ok ? DKV_OK : dkv_fail(DKV_ERR_NOMEM, "no memory for %d response tokens", b->tokens);
}

/** Moves rows and pairs of the packed layout to the replicated one. */
static dkv_status spread(dkv_update_batch *b, const dkv_layout *packed, const int32_t *packed_ids) {
  int32_t *map = NULL;
  DKV_TRY(dkv_layout_replicate(&b->layout, &map, packed));
  b->ids = malloc((size_t)b->layout.rows * sizeof *b->ids + 1);
  dkv_status status = b->ids ? DKV_OK : dkv_fail(DKV_ERR_NOMEM, "no memory for %d replicated rows", b->layout.rows);
  if (status == DKV_OK) status = dkv_unpack_rows(b->ids, packed_ids, sizeof *b->ids, map, b->layout.rows);
  if (status == DKV_OK) status = dkv_predictions_replicate(b->pairs, b->pairs, b->tokens, packed, &b->layout);
  free(map);
  return status;
}

dkv_status dkv_update_batch_make(dkv_update_batch *out, const dkv_group *const *groups, int32_t count,
                                 bool replicated) {
  DKV_REQUIRE(out != NULL, DKV_ERR_NULL, "dkv_update_batch_make: out is NULL");
  memset(out, 0, sizeof *out);
  DKV_REQUIRE(groups != NULL, DKV_ERR_NULL, "dkv_update_batch_make: groups is NULL");
  DKV_REQUIRE(count >= 1, DKV_ERR_RANGE, "an update of %d groups; it needs at least one", count);
  for (int32_t g = 0; g < count; ++g) {
    DKV_REQUIRE(groups[g] != NULL, DKV_ERR_NULL, "dkv_update_batch_make: group %d is NULL", g);
    DKV_REQUIRE(groups[g]->example.prompt_length >= 1, DKV_ERR_RANGE,
                "the prompt of group %d has %d tokens; without one nothing predicts the first token", g,
                groups[g]->example.prompt_length);
    out->responses += groups[g]->responses;
    for (int32_t n = 0; n < groups[g]->responses; ++n) {
      out->tokens += groups[g]->length[n];
      out->replicated_rows += groups[g]->example.prompt_length + input_rows(groups[g]->length[n]);
    }
  }
  dkv_layout packed = {0};
  int32_t *ids = NULL;
  dkv_status status = allocate(out);
  if (status == DKV_OK) status = pack(&packed, groups, count, out->responses);
  if (status == DKV_OK && (ids = malloc((size_t)packed.rows * sizeof *ids + 1)) == NULL)
    status = dkv_fail(DKV_ERR_NOMEM, "no memory for %d packed rows", packed.rows);
  if (status == DKV_OK) fill(out, groups, count, &packed, ids);
  if (status == DKV_OK && replicated) status = spread(out, &packed, ids);
  if (status == DKV_OK && !replicated) {
    out->layout = packed;
    out->ids = ids;
    return DKV_OK;
  }
  free(ids);
  dkv_layout_free(&packed);
  if (status != DKV_OK) dkv_update_batch_free(out);
  return status;
}

void dkv_update_batch_free(dkv_update_batch *batch) {
  if (batch == NULL) return;
  dkv_layout_free(&batch->layout);
  free(batch->ids);
  free(batch->pairs);
  free(batch->target_ids);
  free(batch->begin);
  free(batch->advantage);
  free(batch->active);
  free(batch->old);
  memset(batch, 0, sizeof *batch);
}

dkv_policy_batch dkv_update_policy_view(const dkv_update_batch *b) {
  return (dkv_policy_batch){
      .responses = b->responses, .begin = b->begin, .advantage = b->advantage, .active = b->active, .old = b->old};
}

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
  stats->rows += b->layout.rows;
  stats->replicated_rows += b->replicated_rows;
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
  dkv_batch batch = {.layout = &b->layout,
                     .ids = b->ids,
                     .pairs = b->pairs,
                     .pair_count = b->tokens,
                     .target_ids = b->target_ids,
                     .temperature = temperature};
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
