/**
 * @file test_trainer_rules.c
 * @brief The rules of a step: dead groups, shaping, masks, and settings that are refused.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/rl/trainer.h"
#include "support/echo.h"
#include "support/expect.h"
#include "support/groups.h"

static const dkv_task *sort(void) {
  const dkv_task *task = NULL;
  EXPECT_OK(dkv_task_find(&task, "sort"));
  return task;
}

/** One step under a policy for dead groups. */
static dkv_train_stats one_step(dkv_dead_policy dead, int32_t tries, const dkv_task *task, bool *moved) {
  dkv_train_config c;
  dkv_model model;
  dkv_trainer trainer;
  dkv_train_stats stats;
  EXPECT_OK(dkv_train_defaults(&c, task, "dapo"));
  c.groups = 6;
  c.responses = 2; /* few responses: many dead groups */
  c.dead = dead;
  c.max_tries = tries;
  groups_model(&model, task, 1, 1);
  float *before = malloc((size_t)model.params.count * sizeof *before);
  memcpy(before, model.params.data, (size_t)model.params.count * sizeof *before);
  EXPECT_OK(dkv_trainer_open(&trainer, &model, &c));
  EXPECT_OK(dkv_trainer_step(&trainer, &stats));
  for (int32_t g = 0; dead != DKV_DEAD_KEEP && g < stats.used_groups; ++g)
    cr_expect_not(dkv_group_is_dead(trainer.groups[g].outcome, 2), "group %d is dead", g);
  cr_expect_eq(trainer.next_example, (uint64_t)stats.sampled_groups);
  *moved = memcmp(before, model.params.data, (size_t)model.params.count * sizeof *before) != 0;
  cr_expect_eq(*moved, stats.updated);
  free(before);
  dkv_trainer_close(&trainer);
  dkv_model_free(&model);
  return stats;
}

Test(trainer_rules, dead_groups_are_kept_dropped_or_replaced) {
  bool moved;
  dkv_train_stats keep = one_step(DKV_DEAD_KEEP, 1, &echo, &moved);
  cr_expect(keep.dead_groups > 0 && keep.used_groups == 6 && keep.sampled_groups == 6, "%d dead", keep.dead_groups);
  dkv_train_stats drop = one_step(DKV_DEAD_DROP, 9, &echo, &moved);
  cr_expect_eq(drop.dead_groups, keep.dead_groups);
  cr_expect_eq(drop.used_groups, 6 - drop.dead_groups);
  cr_expect(drop.sampled_groups == 6 && drop.resampled == 0);
  dkv_train_stats again = one_step(DKV_DEAD_RESAMPLE, 50, &echo, &moved);
  cr_expect(again.used_groups == 6 && moved);
  cr_expect_eq(again.sampled_groups, 6 + again.resampled);
  cr_expect_eq(again.dead_groups, again.resampled, "every dead group was replaced");
  dkv_train_stats capped = one_step(DKV_DEAD_RESAMPLE, 2, &echo, &moved);
  cr_expect(capped.used_groups < 6 && capped.resampled == keep.dead_groups, "the tries are used up: train on %d",
            capped.used_groups);
  dkv_train_stats none = one_step(DKV_DEAD_RESAMPLE, 2, sort(), &moved); /* an untrained model sorts nothing */
  cr_expect(none.used_groups == 0 && none.dead_groups == 12 && none.sampled_groups == 12 && !moved);
  cr_expect(none.loss == 0 && none.grad_norm == 0 && isfinite(none.entropy) && isfinite(none.mismatch_mean));
}

Test(trainer_rules, dead_is_decided_on_the_raw_outcome_not_on_the_shaped_reward) {
  dkv_train_config c = echo_run("dapo");
  dkv_model model;
  dkv_trainer trainer;
  dkv_train_stats stats;
  int32_t used = 0, checked = 0;
  c.overlong_buffer = 2;
  c.dead = DKV_DEAD_KEEP;
  groups_model(&model, &echo, 1, 1);
  EXPECT_OK(dkv_trainer_open(&trainer, &model, &c));
  for (int i = 0; i < 5; ++i) {
    trainer.next_example += 4;
    EXPECT_OK(dkv_trainer_collect(&trainer, &stats, &used));
    int32_t dead = 0;
    for (int32_t g = 0; g < used; ++g) {
      const dkv_group *group = &trainer.groups[g];
      bool equal = true;
      for (int n = 0; n < 6; ++n) {
        double raw = echo.verify(&group->example, group->token + n * DKV_TASK_MAX_RESPONSE, group->length[n]).reward;
        cr_assert_float_eq(group->reward[n], raw + dkv_overlong_penalty(group->length[n], 3, 2), 1e-12);
        equal = equal && group->reward[n] == group->reward[0];
      }
      dead += dkv_group_is_dead(group->outcome, 6);
      checked += dkv_group_is_dead(group->outcome, 6) && !equal;
    }
    cr_expect_eq(dead, stats.dead_groups);
  }
  cr_expect(checked > 0, "some dead group must have unequal shaped rewards, or this shows nothing");
  dkv_trainer_close(&trainer);
  dkv_model_free(&model);
}

Test(trainer_rules, the_overlong_penalty_is_a_slope_and_then_minus_one) {
  static const double want[] = {0, 0, 0, 0, -0.25, -0.5, -0.75, -1, -1, -1};
  for (int length = 4; length < 14; ++length)
    cr_expect_float_eq(dkv_overlong_penalty(length, 11, 4), want[length - 4], 1e-12, "%d tokens", length);
  cr_expect_eq(dkv_overlong_penalty(11, 11, 0), 0);
}

Test(trainer_rules, truncated_responses_are_masked_on_request_and_still_in_the_mean) {
  dkv_train_config c = echo_run("dapo");
  dkv_model model;
  dkv_trainer trainer;
  dkv_train_stats stats;
  int32_t used = 0, masked = 0;
  c.mask_truncated = true;
  c.dead = DKV_DEAD_KEEP;
  groups_model(&model, &echo, 1, 1);
  EXPECT_OK(dkv_trainer_open(&trainer, &model, &c));
  EXPECT_OK(dkv_trainer_collect(&trainer, &stats, &used));
  for (int32_t g = 0; g < used; ++g) {
    double sum = 0;
    for (int n = 0; n < 6; ++n) {
      cr_expect_eq(trainer.groups[g].active[n], !trainer.groups[g].truncated[n]);
      masked += trainer.groups[g].truncated[n];
      sum += trainer.groups[g].advantage[n];
    }
    cr_expect(fabs(sum) < 1e-9, "the mean is taken over all six: advantages add up to %g", sum);
  }
  cr_expect(masked > 0 && masked < 24, "%d of 24 truncated", masked);
  cr_expect_float_eq(stats.truncated, masked / 24.0, 1e-12);
  dkv_trainer_close(&trainer);
  dkv_model_free(&model);
}

Test(trainer_rules, impossible_settings_get_a_sentence) {
  dkv_train_config good = echo_run("dapo"), c;
  dkv_model model;
  dkv_trainer t;
  groups_model(&model, &echo, 1, 1);
  c = good, c.responses = 1;
  EXPECT_FAIL(DKV_ERR_RANGE, "nothing to compare", dkv_trainer_open(&t, &model, &c));
  c = good, c.groups = 0;
  EXPECT_FAIL(DKV_ERR_RANGE, "groups is 0", dkv_trainer_open(&t, &model, &c));
  c = good, c.groups_per_batch = 0;
  EXPECT_FAIL(DKV_ERR_RANGE, "groups_per_batch is 0", dkv_trainer_open(&t, &model, &c));
  c = good, c.epochs = 0;
  EXPECT_FAIL(DKV_ERR_RANGE, "epochs is 0", dkv_trainer_open(&t, &model, &c));
  c = good, c.max_length = 17;
  EXPECT_FAIL(DKV_ERR_RANGE, "max_length is 17", dkv_trainer_open(&t, &model, &c));
  c = good, c.temperature = 0;
  EXPECT_FAIL(DKV_ERR_RANGE, "temperature is 0", dkv_trainer_open(&t, &model, &c));
  c = good, c.schedule.peak = NAN;
  EXPECT_FAIL(DKV_ERR_RANGE, "learning rate", dkv_trainer_open(&t, &model, &c));
  c = good, c.loss.clip_low = 2;
  EXPECT_FAIL(DKV_ERR_RANGE, "clip_low is 2", dkv_trainer_open(&t, &model, &c));
  c = good, c.task = sort();
  EXPECT_FAIL(DKV_ERR_SHAPE, "knows 4 tokens", dkv_trainer_open(&t, &model, &c));
  EXPECT_FAIL(DKV_ERR_RANGE, "ppo", dkv_train_defaults(&c, &echo, "ppo"));
  cr_expect_null(t.groups);
  dkv_trainer_close(&t);
  dkv_model_free(&model);
}
