/**
 * @file test_warmup.c
 * @brief Supervised warm-up: the loss is the mean over supervised tokens, it falls, and it continues to the bit.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/rl/seed.h"
#include "common/rl/warmup.h"
#include "support/expect.h"
#include "support/files.h"
#include "support/groups.h"

static const dkv_task *sort(void) {
  const dkv_task *task = NULL;
  EXPECT_OK(dkv_task_find(&task, "sort"));
  return task;
}

static dkv_warmup_config small(void) {
  dkv_warmup_config c = dkv_warmup_defaults(sort());
  c.examples = 3;
  c.schedule.total = 20;
  c.schedule.warmup = 3;
  c.noise = 1;
  return c;
}

/** The loss of the first step, one example and one token at a time, each prompt alone in a layout of its own. */
static double loss_by_hand(const dkv_model *model, const dkv_warmup_config *c) {
  static dkv_example e;
  double sum = 0;
  int count = 0;
  dkv_pass pass = {0};
  for (int32_t b = 0; b < c->examples; ++b) {
    sort()->generate(&e, dkv_seed(c->seed, DKV_SEED_WARMUP), (uint64_t)b, c->noise);
    int32_t ids[DKV_TASK_MAX_PROMPT + DKV_TASK_MAX_RESPONSE], length = e.prompt_length + e.answer_length;
    memcpy(ids, e.prompt, (size_t)e.prompt_length * sizeof *ids);
    memcpy(ids + e.prompt_length, e.answer, (size_t)e.answer_length * sizeof *ids);
    for (int32_t i = 1; i < length; ++i) {
      if (i < e.prompt_length && !e.supervised[i]) continue;
      dkv_layout layout;
      dkv_prediction pair = {i - 1, -1, 0};
      float logprob = 0;
      EXPECT_OK(dkv_layout_group(&layout, i, 0, NULL));
      dkv_batch batch = {.layout = &layout, .ids = ids, .pairs = &pair, .pair_count = 1, .target_ids = &ids[i]};
      batch.temperature = 1;
      batch.forward_only = true;
      EXPECT_OK(dkv_pass_set(&pass, model, &batch));
      EXPECT_OK(dkv_model_forward(model, &pass, &logprob, NULL));
      sum -= (double)logprob;
      ++count;
      dkv_layout_free(&layout);
    }
  }
  dkv_pass_free(&pass);
  cr_assert_eq(count, c->examples * (100 + 11));
  return sum / count;
}

Test(warmup, the_loss_is_the_mean_over_all_supervised_tokens) {
  dkv_model model;
  dkv_warmup w;
  dkv_warmup_stats stats;
  dkv_warmup_config c = small();
  c.examples = 1;
  groups_model(&model, sort(), 3, 2);
  double want = loss_by_hand(&model, &c);
  EXPECT_OK(dkv_warmup_open(&w, &model, &c));
  EXPECT_OK(dkv_warmup_step(&w, &stats));
  cr_expect(fabs(stats.loss - want) < 1e-5, "%.9g, by hand %.9g", stats.loss, want);
  cr_expect(stats.tokens == 111 && stats.rows == 242 && stats.grad_norm > 0);
  dkv_warmup_close(&w);
  dkv_model_free(&model);
}

Test(warmup, the_loss_falls) {
  dkv_model model;
  dkv_warmup w;
  dkv_warmup_stats stats, first;
  dkv_warmup_config c = small();
  groups_model(&model, sort(), 3, 2);
  EXPECT_OK(dkv_warmup_open(&w, &model, &c));
  EXPECT_OK(dkv_warmup_step(&w, &first));
  for (int i = 1; i < 20; ++i) EXPECT_OK(dkv_warmup_step(&w, &stats));
  cr_expect(stats.loss < first.loss - 0.3, "%g to %g", first.loss, stats.loss);
  dkv_warmup_close(&w);
  dkv_model_free(&model);
}

Test(warmup, a_continued_warm_up_is_the_uninterrupted_one_to_the_bit) {
  dkv_model whole, first, second;
  dkv_warmup a, b, d;
  dkv_warmup_stats stats;
  dkv_warmup_config c = small();
  char path[512];
  snprintf(path, sizeof path, "%s", file_path("warmup.state"));
  groups_model(&whole, sort(), 3, 2);
  groups_model(&first, sort(), 3, 2);
  groups_model(&second, sort(), 4, 2);
  EXPECT_OK(dkv_warmup_open(&a, &whole, &c));
  for (int i = 0; i < 8; ++i) EXPECT_OK(dkv_warmup_step(&a, &stats));
  EXPECT_OK(dkv_warmup_open(&b, &first, &c));
  for (int i = 0; i < 3; ++i) EXPECT_OK(dkv_warmup_step(&b, &stats));
  EXPECT_OK(dkv_warmup_save(&b, path));
  EXPECT_OK(dkv_warmup_open(&d, &second, &c));
  EXPECT_OK(dkv_warmup_load(&d, path));
  for (int i = 3; i < 8; ++i) EXPECT_OK(dkv_warmup_step(&d, &stats));
  cr_expect(d.step == 8 && memcmp(whole.params.data, second.params.data, (size_t)whole.params.count * 4) == 0);
  d.config.noise = 2;
  EXPECT_FAIL(DKV_ERR_RANGE, "noise = 1, but this run has 2", dkv_warmup_load(&d, path));
  dkv_warmup_close(&a);
  dkv_warmup_close(&b);
  dkv_warmup_close(&d);
  dkv_model_free(&whole);
  dkv_model_free(&first);
  dkv_model_free(&second);
}

Test(warmup, impossible_settings_get_a_sentence) {
  dkv_model model;
  dkv_warmup w;
  dkv_warmup_config c = small();
  groups_model(&model, sort(), 3, 1);
  c.examples = 0;
  EXPECT_FAIL(DKV_ERR_RANGE, "0 demonstrations", dkv_warmup_open(&w, &model, &c));
  c = small();
  c.noise = -1;
  EXPECT_FAIL(DKV_ERR_RANGE, "noise is -1", dkv_warmup_open(&w, &model, &c));
  c = small();
  c.schedule.peak = INFINITY;
  EXPECT_FAIL(DKV_ERR_RANGE, "learning rate", dkv_warmup_open(&w, &model, &c));
  c = small();
  EXPECT_OK(dkv_task_find(&c.task, "missing"));
  EXPECT_FAIL(DKV_ERR_SHAPE, "knows 16 tokens", dkv_warmup_open(&w, &model, &c));
  dkv_model_free(&model);
}
