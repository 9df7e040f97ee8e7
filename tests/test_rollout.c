/**
 * @file test_rollout.c
 * @brief Sampling: the sampler's log-probabilities are the trainer's; samples depend on (seed, example, response)
 * alone.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "common/rl/evaluate.h"
#include "common/rl/seed.h"
#include "common/rl/update.h"
#include "support/expect.h"
#include "support/groups.h"

enum { GROUPS = 3, RESPONSES = 5 };

static const dkv_task *sort(void) {
  const dkv_task *task = NULL;
  EXPECT_OK(dkv_task_find(&task, "sort"));
  return task;
}

static dkv_sampler sampler_of(const dkv_task *task) {
  return (dkv_sampler){.seed = 77, .temperature = 1, .end = &task->end, .end_count = 1, .max_length = 11};
}

/** Samples the examples `id` .. `id + count - 1`. */
static void sample(dkv_group *groups, uint64_t id, int32_t count, const dkv_model *model, const dkv_sampler *sampler) {
  const dkv_task *task = sort();
  dkv_decoder decoder;
  EXPECT_OK(dkv_decoder_open(&decoder, model, count, RESPONSES, count * task->max_prompt, 10));
  for (int32_t g = 0; g < count; ++g) {
    EXPECT_OK(dkv_group_open(&groups[g], RESPONSES));
    groups[g].id = id + (uint64_t)g;
    task->generate(&groups[g].example, 5, groups[g].id, 0);
    for (int32_t n = 0; n < RESPONSES; ++n) groups[g].active[n] = true;
  }
  EXPECT_OK(dkv_rollout(groups, count, &decoder, sampler));
  dkv_decoder_close(&decoder);
}

static void close_all(dkv_group *groups, int32_t count) {
  for (int32_t g = 0; g < count; ++g) dkv_group_close(&groups[g]);
}

/** Are all samples of two groups the same, and their log-probabilities as near as `gap`? 0: to the bit. */
static bool same(const dkv_group *a, const dkv_group *b, double gap) {
  bool equal = memcmp(a->length, b->length, RESPONSES * sizeof(int32_t)) == 0;
  for (int32_t n = 0; equal && n < RESPONSES; ++n) {
    size_t at = (size_t)n * DKV_TASK_MAX_RESPONSE, bytes = (size_t)a->length[n] * 4;
    equal = memcmp(a->token + at, b->token + at, bytes) == 0;
    equal = equal && groups_gap(a->logprob + at, b->logprob + at, a->length[n]) <= gap;
  }
  return equal;
}

/** Largest difference between stored log-probabilities and those of a training forward at temperature t. */
static double mismatch(dkv_group *groups, int32_t count, dkv_model *model, float temperature, bool replicated) {
  const dkv_group *list[GROUPS] = {&groups[0], &groups[1], &groups[2]};
  dkv_update_batch batch;
  dkv_update_stats stats = {0};
  dkv_pass pass = {0};
  dkv_normaliser total = {0, 0};
  dkv_policy_config loss;
  EXPECT_OK(dkv_policy_preset(&loss, "dapo"));
  EXPECT_OK(dkv_update_batch_make(&batch, list, count, replicated));
  dkv_policy_batch view = dkv_update_policy_view(&batch);
  EXPECT_OK(dkv_normaliser_add(&total, &view));
  EXPECT_OK(dkv_model_zero_grads(model));
  EXPECT_OK(dkv_update_gradient(&stats, model, &pass, &batch, &loss, &total, temperature, NULL));
  cr_assert_eq(stats.tokens, batch.tokens);
  dkv_update_batch_free(&batch);
  dkv_pass_free(&pass);
  return stats.mismatch_max;
}

Test(rollout, the_sampler_stores_the_log_probabilities_that_the_trainer_computes) {
  dkv_model model;
  groups_model(&model, sort(), 3, 2);
  for (int hot = 0; hot < 2; ++hot) {
    dkv_group groups[GROUPS];
    dkv_sampler sampler = sampler_of(sort());
    sampler.temperature = hot ? 1.7f : 0.8f;
    sample(groups, 40, GROUPS, &model, &sampler);
    double packed = mismatch(groups, GROUPS, &model, sampler.temperature, false);
    double replicated = mismatch(groups, GROUPS, &model, sampler.temperature, true);
    cr_expect(packed < 1e-4 && replicated < 1e-4, "%g packed, %g replicated", packed, replicated);
    double other = mismatch(groups, GROUPS, &model, 1, false);
    cr_expect(other > 0.01, "another temperature in the loss must show: %g", other);
    close_all(groups, GROUPS);
  }
  dkv_model_free(&model);
}

Test(rollout, samples_do_not_depend_on_threads_or_on_other_groups) {
  dkv_model one, two;
  dkv_sampler sampler = sampler_of(sort());
  groups_model(&one, sort(), 3, 1);
  groups_model(&two, sort(), 3, 2);
  dkv_group all[GROUPS], threaded[GROUPS], alone[1], others[1];
  sample(all, 10, GROUPS, &one, &sampler);
  sample(threaded, 10, GROUPS, &two, &sampler);
  sample(alone, 11, 1, &one, &sampler); /* example 11 without its neighbours */
  for (int g = 0; g < GROUPS; ++g) cr_expect(same(&all[g], &threaded[g], 0), "group %d", g);
  cr_expect(same(&all[1], &alone[0], 1e-5)); /* a product of fewer rows rounds its last bit differently */
  cr_expect_not(same(&all[0], &all[1], 1), "different examples have different samples");
  sampler.seed = 78;
  sample(others, 11, 1, &one, &sampler);
  cr_expect_not(same(&alone[0], &others[0], 1), "another seed gives other samples");
  close_all(all, GROUPS);
  close_all(threaded, GROUPS);
  close_all(alone, 1);
  close_all(others, 1);
  dkv_model_free(&one);
  dkv_model_free(&two);
}

Test(rollout, greedy_takes_the_largest_logit_and_all_responses_agree) {
  dkv_model model;
  dkv_group groups[1];
  dkv_sampler sampler = sampler_of(sort());
  sampler.greedy = true;
  groups_model(&model, sort(), 3, 1);
  sample(groups, 10, 1, &model, &sampler);
  for (int n = 1; n < RESPONSES; ++n) {
    cr_assert_eq(groups[0].length[n], groups[0].length[0]);
    for (int t = 0; t < groups[0].length[0]; ++t)
      cr_expect_eq(groups[0].token[n * DKV_TASK_MAX_RESPONSE + t], groups[0].token[t]);
  }
  close_all(groups, 1);
  dkv_model_free(&model);
}

Test(rollout, responses_end_at_an_end_token_or_at_the_cap) {
  dkv_model model;
  dkv_group groups[GROUPS];
  dkv_sampler sampler = sampler_of(sort());
  const int32_t ends[3] = {13, 2, 7};
  int stopped = 0, cut = 0;
  sampler.end = ends;
  sampler.end_count = 3;
  sampler.max_length = 6;
  groups_model(&model, sort(), 3, 1);
  sample(groups, 10, GROUPS, &model, &sampler);
  for (int g = 0; g < GROUPS; ++g)
    for (int n = 0; n < RESPONSES; ++n) {
      int32_t length = groups[g].length[n];
      const int32_t *token = groups[g].token + n * DKV_TASK_MAX_RESPONSE;
      for (int t = 0; t < length; ++t) {
        bool is_end = token[t] == 13 || token[t] == 2 || token[t] == 7;
        cr_assert_eq(is_end, t == length - 1 && !groups[g].truncated[n]);
      }
      cr_assert(length >= 1 && length <= 6 && (!groups[g].truncated[n] || length == 6));
      stopped += !groups[g].truncated[n];
      cut += groups[g].truncated[n];
    }
  cr_expect(stopped > 0 && cut > 0, "%d ended, %d cut: both must occur here", stopped, cut);
  close_all(groups, GROUPS);
  dkv_model_free(&model);
}

Test(rollout, token_frequencies_are_the_softmax_at_the_temperature) {
  const float logits[4] = {0.5f, -1, 2, 0};
  const float temperature = 1.5f;
  double p[4], sum = 0, seen[4] = {0};
  enum { DRAWS = 40000 };
  for (int v = 0; v < 4; ++v) sum += p[v] = exp((double)logits[v] / (double)temperature);
  for (int i = 0; i < DRAWS; ++i) {
    float logprob;
    int32_t token = dkv_sample_token(&logprob, logits, 4, temperature, dkv_rng_uniform(1, 2, (uint64_t)i));
    cr_assert(token >= 0 && token < 4);
    cr_assert_float_eq(logprob, (float)log(p[token] / sum), 1e-5);
    seen[token] += 1.0 / DRAWS;
  }
  for (int v = 0; v < 4; ++v) cr_expect(fabs(seen[v] - p[v] / sum) < 0.012, "%d: %g, not %g", v, seen[v], p[v] / sum);
  cr_expect_eq(dkv_sample_token(NULL, logits, 4, 1, -1), 2);
  cr_expect_eq(dkv_sample_token(NULL, logits, 4, 1, 0), 0);
  cr_expect_eq(dkv_sample_token(NULL, logits, 4, 1, 0.99999994f), 3);
  const float broken[2] = {0, NAN};
  cr_expect_eq(dkv_sample_token(NULL, broken, 2, 1, 0.5f), -1);
}

Test(rollout, bad_settings_and_broken_weights_get_a_sentence) {
  dkv_model model;
  dkv_group group;
  dkv_decoder decoder;
  dkv_sampler good = sampler_of(sort()), bad;
  groups_model(&model, sort(), 3, 1);
  EXPECT_OK(dkv_decoder_open(&decoder, &model, 1, RESPONSES, 232, 10));
  EXPECT_OK(dkv_group_open(&group, RESPONSES));
  sort()->generate(&group.example, 1, 1, 0);
  bad = good, bad.temperature = 0;
  EXPECT_FAIL(DKV_ERR_RANGE, "temperature is 0", dkv_rollout(&group, 1, &decoder, &bad));
  bad = good, bad.temperature = NAN;
  EXPECT_FAIL(DKV_ERR_RANGE, "temperature", dkv_rollout(&group, 1, &decoder, &bad));
  bad = good, bad.end_count = 0;
  EXPECT_FAIL(DKV_ERR_RANGE, "end tokens", dkv_rollout(&group, 1, &decoder, &bad));
  bad = good, bad.max_length = 17;
  EXPECT_FAIL(DKV_ERR_RANGE, "17 tokens", dkv_rollout(&group, 1, &decoder, &bad));
  EXPECT_FAIL(DKV_ERR_RANGE, "2 groups", dkv_rollout(&group, 2, &decoder, &good));
  EXPECT_FAIL(DKV_ERR_NULL, "NULL", dkv_rollout(NULL, 1, &decoder, &good));
  dkv_group other, none;
  EXPECT_OK(dkv_group_open(&other, RESPONSES + 1));
  other.example = group.example;
  EXPECT_FAIL(DKV_ERR_RANGE, "6 responses", dkv_rollout(&other, 1, &decoder, &good));
  EXPECT_FAIL(DKV_ERR_RANGE, "0 responses", dkv_group_open(&none, 0));
  model.params.lm_head[3] = NAN;
  EXPECT_FAIL(DKV_ERR_RANGE, "not finite", dkv_rollout(&group, 1, &decoder, &good));
  dkv_group_close(&group);
  dkv_group_close(&other);
  dkv_decoder_close(&decoder);
  dkv_model_free(&model);
}

Test(rollout, evaluation_counts_exact_answers_and_repeats_itself) {
  dkv_model model;
  groups_model(&model, sort(), 3, 1);
  dkv_evaluate_config config = dkv_evaluate_defaults(sort());
  config.prompts = 20; /* more than a chunk */
  config.responses = 2;
  dkv_evaluation first, second;
  EXPECT_OK(dkv_evaluate(&first, &model, &config));
  EXPECT_OK(dkv_evaluate(&second, &model, &config));
  cr_expect(memcmp(&first, &second, sizeof first) == 0, "the same question, the same answer");
  cr_expect(first.sampled == 0 && first.greedy == 0, "an untrained model sorts nothing");
  cr_expect(first.reward > 0 && first.length >= 1 && first.length <= 11);
  config.prompts = 0;
  EXPECT_FAIL(DKV_ERR_RANGE, "0 prompts", dkv_evaluate(&first, &model, &config));
  dkv_model_free(&model);
}

Test(rollout, every_purpose_has_its_own_seed) {
  for (int a = DKV_SEED_WEIGHTS; a <= DKV_SEED_HELD_OUT_SAMPLES; ++a) {
    cr_expect_neq(dkv_seed(1, (dkv_purpose)a), dkv_seed(2, (dkv_purpose)a));
    for (int b = DKV_SEED_WEIGHTS; b < a; ++b) cr_expect_neq(dkv_seed(1, (dkv_purpose)a), dkv_seed(1, (dkv_purpose)b));
  }
}
