/**
 * @file rollout.c
 * @brief Prefill each prompt once, then draw one token for every living response until all have ended.
 */
#include "common/rl/rollout.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"

dkv_status dkv_group_open(dkv_group *out, int32_t responses) {
  DKV_REQUIRE(out != NULL, DKV_ERR_NULL, "dkv_group_open: out is NULL");
  memset(out, 0, sizeof *out);
  DKV_REQUIRE(responses >= 1 && responses <= DKV_MAX_RESPONSES, DKV_ERR_RANGE,
              "a group has %d responses; it may have 1 to %d", responses, DKV_MAX_RESPONSES);
  size_t n = (size_t)responses, tokens = n * DKV_TASK_MAX_RESPONSE;
  out->responses = responses;
  out->length = calloc(n, sizeof *out->length);
  out->token = calloc(tokens, sizeof *out->token);
  out->logprob = calloc(tokens, sizeof *out->logprob);
  out->truncated = calloc(n, sizeof *out->truncated);
  out->outcome = calloc(n, sizeof *out->outcome);
  out->reward = calloc(n, sizeof *out->reward);
  out->advantage = calloc(n, sizeof *out->advantage);
  out->active = calloc(n, sizeof *out->active);
  if (out->length && out->token && out->logprob && out->truncated && out->outcome && out->reward && out->advantage &&
      out->active)
    return DKV_OK;
  dkv_group_close(out);
  return dkv_fail(DKV_ERR_NOMEM, "no memory for a group of %d responses", responses);
}

void dkv_group_close(dkv_group *group) {
  if (group == NULL) return;
  free(group->length);
  free(group->token);
  free(group->logprob);
  free(group->truncated);
  free(group->outcome);
  free(group->reward);
  free(group->advantage);
  free(group->active);
  memset(group, 0, sizeof *group);
}

int32_t dkv_sample_token(float *logprob, const float *logits, int32_t vocabulary, float temperature, float u) {
  double top = -INFINITY, sum = 0, below = 0;
  int32_t token = 0;
  for (int32_t v = 0; v < vocabulary; ++v) {
    if (!isfinite(logits[v])) return -1;
    if ((double)logits[v] > top) {
      top = (double)logits[v];
      token = v;
    }
  }
  for (int32_t v = 0; v < vocabulary; ++v) sum += exp(((double)logits[v] - top) / (double)temperature);
  if (u >= 0) { /* rounding may leave the last sum a little below u * sum: then the last token stays */
    for (token = 0; token < vocabulary - 1; ++token)
      if ((below += exp(((double)logits[token] - top) / (double)temperature)) > (double)u * sum) break;
  }
  if (logprob != NULL) *logprob = (float)(((double)logits[token] - top) / (double)temperature - log(sum));
  return token;
}

/** Everything that a rollout carries from step to step. */
typedef struct state {
  dkv_group *groups;
  int32_t responses; /**< N of every group */
  const dkv_sampler *sampler;
  int32_t vocabulary;
  int32_t *slots, *ids; /**< living responses and the token each is fed next */
  int32_t living;
  float *logits; /**< [slots][V] */
} state;

static bool ends(const dkv_sampler *sampler, int32_t token) {
  for (int32_t i = 0; i < sampler->end_count; ++i)
    if (sampler->end[i] == token) return true;
  return false;
}

/** Draws the next token of slot `slot` from its logits; keeps the slot in the list of the living unless it ended. */
static dkv_status draw(state *s, int32_t slot, const float *logits) {
  int32_t g = slot / s->responses, n = slot % s->responses;
  dkv_group *group = &s->groups[g];
  int32_t t = group->length[n];
  int64_t place = (int64_t)n * DKV_TASK_MAX_RESPONSE + t;
  float u = s->sampler->greedy
                ? -1
                : dkv_rng_uniform(s->sampler->seed, group->id * DKV_MAX_RESPONSES + (uint64_t)n, (uint64_t)t);
  int32_t token = dkv_sample_token(&group->logprob[place], logits, s->vocabulary, s->sampler->temperature, u);
  DKV_REQUIRE(token >= 0, DKV_ERR_RANGE,
              "the logits of response %d of group %d are not finite at token %d: the model has diverged", n, g, t);
  group->token[place] = token;
  group->length[n] = t + 1;
  if (ends(s->sampler, token)) return DKV_OK;
  if (t + 1 == s->sampler->max_length) {
    group->truncated[n] = true;
    return DKV_OK;
  }
  s->slots[s->living] = slot;
  s->ids[s->living++] = token;
  return DKV_OK;
}

/** Runs the prompts and draws every first token: N draws from one row of logits. */
static dkv_status first_tokens(state *s, int32_t count, dkv_decoder *decoder) {
  int32_t *ids = NULL, *length = malloc((size_t)count * sizeof *length), rows = 0;
  for (int32_t g = 0; g < count; ++g) rows += s->groups[g].example.prompt_length;
  ids = malloc((size_t)rows * sizeof *ids + 1);
  dkv_status status = ids && length ? DKV_OK : dkv_fail(DKV_ERR_NOMEM, "no memory for the prompts of %d groups", count);
  rows = 0;
  for (int32_t g = 0; status == DKV_OK && g < count; ++g) {
    const dkv_example *example = &s->groups[g].example;
    length[g] = example->prompt_length;
    memcpy(ids + rows, example->prompt, (size_t)length[g] * sizeof *ids);
    rows += length[g];
  }
  if (status == DKV_OK) status = dkv_decoder_prefill(decoder, ids, length, count, s->logits);
  for (int32_t slot = 0; status == DKV_OK && slot < count * s->responses; ++slot)
    status = draw(s, slot, s->logits + (int64_t)(slot / s->responses) * s->vocabulary);
  free(ids);
  free(length);
  return status;
}

/** Feeds the tokens drawn last and draws the next ones, until no response lives. */
static dkv_status later_tokens(state *s, dkv_decoder *decoder) {
  while (s->living > 0) {
    int32_t count = s->living;
    DKV_TRY(dkv_decoder_step(decoder, s->slots, s->ids, count, s->logits));
    s->living = 0; /* draw() refills the list from its front; entry i is read before it can be overwritten */
    for (int32_t i = 0; i < count; ++i) DKV_TRY(draw(s, s->slots[i], s->logits + (int64_t)i * s->vocabulary));
  }
  return DKV_OK;
}

static dkv_status check(const dkv_group *groups, int32_t count, const dkv_decoder *decoder,
                        const dkv_sampler *sampler) {
  DKV_REQUIRE(groups != NULL && decoder != NULL && sampler != NULL && sampler->end != NULL, DKV_ERR_NULL,
              "dkv_rollout: groups, decoder, sampler and its end tokens must not be NULL");
  DKV_REQUIRE(count >= 1 && count <= decoder->groups, DKV_ERR_RANGE,
              "dkv_rollout: %d groups; the decoder has room for 1 to %d", count, decoder->groups);
  DKV_REQUIRE(sampler->temperature > 0 && isfinite(sampler->temperature), DKV_ERR_RANGE,
              "the temperature is %g; it must be a number above 0 (greedy is a flag of its own)",
              (double)sampler->temperature);
  DKV_REQUIRE(sampler->end_count >= 1, DKV_ERR_RANGE, "dkv_rollout: %d end tokens; at least one is needed",
              sampler->end_count);
  DKV_REQUIRE(sampler->max_length >= 1 && sampler->max_length <= DKV_TASK_MAX_RESPONSE, DKV_ERR_RANGE,
              "the longest response is %d tokens; it must be 1 to %d", sampler->max_length, DKV_TASK_MAX_RESPONSE);
  for (int32_t g = 0; g < count; ++g)
    DKV_REQUIRE(groups[g].responses == decoder->responses, DKV_ERR_RANGE,
                "group %d has %d responses; the decoder was opened for %d", g, groups[g].responses, decoder->responses);
  return DKV_OK;
}

dkv_status dkv_rollout(dkv_group *groups, int32_t count, dkv_decoder *decoder, const dkv_sampler *sampler) {
  DKV_TRY(check(groups, count, decoder, sampler));
  int32_t vocabulary = decoder->model->config.vocabulary;
  size_t slots = (size_t)count * (size_t)decoder->responses;
  state s = {.groups = groups, .responses = decoder->responses, .sampler = sampler, .vocabulary = vocabulary};
  s.slots = malloc(slots * sizeof *s.slots);
  s.ids = malloc(slots * sizeof *s.ids);
  s.logits = malloc(slots * (size_t)vocabulary * sizeof *s.logits);
  for (int32_t g = 0; g < count; ++g) {
    memset(groups[g].length, 0, (size_t)s.responses * sizeof *groups[g].length);
    memset(groups[g].truncated, 0, (size_t)s.responses * sizeof *groups[g].truncated);
  }
  dkv_status status =
      s.slots && s.ids && s.logits ? DKV_OK : dkv_fail(DKV_ERR_NOMEM, "no memory to sample %d responses", (int)slots);
  if (status == DKV_OK) status = first_tokens(&s, count, decoder);
  if (status == DKV_OK) status = later_tokens(&s, decoder);
  free(s.slots);
  free(s.ids);
  free(s.logits);
  return status;
}
