/**
 * @file evaluate.c
 * @brief Held-out prompts, sixteen at a time, sampled and greedy; see evaluate.h.
 */
#include "common/rl/evaluate.h"

#include <stdlib.h>
#include <string.h>

#include "common/rl/seed.h"

enum { CHUNK = 16 }; /* prompts at a time: bounds the memory of their keys and values */

dkv_evaluate_config dkv_evaluate_defaults(const dkv_task *task) {
  return (dkv_evaluate_config){.task = task,
                               .seed = 2026,
                               .prompts = 128,
                               .responses = 4,
                               .temperature = 1,
                               .max_length = task->max_response,
                               .greedy = true};
}

/** Adds the outcomes of one group's samples. */
static void add_samples(dkv_evaluation *sum, const dkv_group *group, const dkv_task *task) {
  bool any = false;
  for (int32_t n = 0; n < group->responses; ++n) {
    dkv_outcome o = task->verify(&group->example, group->token + (int64_t)n * DKV_TASK_MAX_RESPONSE, group->length[n]);
    any = any || o.exact;
    sum->sampled += o.exact;
    sum->reward += o.reward;
    sum->length += group->length[n];
    sum->truncated += group->truncated[n];
  }
  sum->pass += any;
}

/** One way of answering all prompts: N samples, or one greedy response. */
static dkv_status ask(dkv_evaluation *sum, const dkv_model *model, const dkv_evaluate_config *c, int32_t responses,
                      bool greedy) {
  dkv_decoder decoder = {0};
  dkv_group groups[CHUNK];
  memset(groups, 0, sizeof groups);
  dkv_sampler sampler = {.seed = dkv_seed(c->seed, DKV_SEED_HELD_OUT_SAMPLES),
                         .temperature = c->temperature,
                         .greedy = greedy,
                         .end = &c->task->end,
                         .end_count = 1,
                         .max_length = c->max_length};
  dkv_status status = dkv_decoder_open(&decoder, model, CHUNK, responses, CHUNK * c->task->max_prompt,
                                       c->max_length > 1 ? c->max_length - 1 : 1);
  for (int32_t g = 0; status == DKV_OK && g < CHUNK; ++g) status = dkv_group_open(&groups[g], responses);
  for (int32_t first = 0; status == DKV_OK && first < c->prompts; first += CHUNK) {
    int32_t count = c->prompts - first < CHUNK ? c->prompts - first : CHUNK;
    for (int32_t g = 0; g < count; ++g) {
      groups[g].id = (uint64_t)(first + g);
      c->task->generate(&groups[g].example, dkv_seed(c->seed, DKV_SEED_HELD_OUT), groups[g].id, 0);
    }
    status = dkv_rollout(groups, count, &decoder, &sampler);
    for (int32_t g = 0; status == DKV_OK && g < count; ++g) add_samples(sum, &groups[g], c->task);
  }
  for (int32_t g = 0; g < CHUNK; ++g) dkv_group_close(&groups[g]);
  dkv_decoder_close(&decoder);
  return status;
}

dkv_status dkv_evaluate(dkv_evaluation *out, const dkv_model *model, const dkv_evaluate_config *c) {
  DKV_REQUIRE(out && model && c && c->task, DKV_ERR_NULL, "dkv_evaluate: an argument is NULL");
  DKV_REQUIRE(c->prompts >= 1, DKV_ERR_RANGE, "an evaluation on %d prompts; it needs at least one", c->prompts);
  DKV_REQUIRE(c->responses >= 1 && c->responses <= DKV_MAX_RESPONSES, DKV_ERR_RANGE,
              "an evaluation with %d samples of each prompt; it takes 1 to %d", c->responses, DKV_MAX_RESPONSES);
  dkv_evaluation sampled = {0}, greedy = {0};
  DKV_TRY(ask(&sampled, model, c, c->responses, false));
  if (c->greedy) DKV_TRY(ask(&greedy, model, c, 1, true));
  double prompts = c->prompts, samples = prompts * c->responses;
  *out = (dkv_evaluation){.sampled = sampled.sampled / samples,
                          .greedy = greedy.sampled / prompts,
                          .pass = sampled.pass / prompts,
                          .reward = sampled.reward / samples,
                          .length = sampled.length / samples,
                          .truncated = sampled.truncated / samples};
  return DKV_OK;
}
