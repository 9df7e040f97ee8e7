/**
 * @file test_trainer.c
 * @brief The training loop: packed and replicated learn the same at every step; dead groups; continuing to the bit.
 *
 * Learning itself is tested from the committed warm start, with a loose bar.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/rl/self_check.h"
#include "support/files.h"
#include "support/echo.h"
#include "support/expect.h"
#include "support/groups.h"

static const dkv_task *sort(void) {
  const dkv_task *task = NULL;
  EXPECT_OK(dkv_task_find(&task, "sort"));
  return task;
}

enum { STEPS = 40 };

/** Runs 40 steps and keeps their numbers. */
static void run(dkv_train_stats stats[STEPS], const dkv_train_config *config, uint64_t seed, int32_t threads) {
  dkv_model model;
  dkv_trainer trainer;
  groups_model(&model, config->task, seed, threads);
  EXPECT_OK(dkv_trainer_open(&trainer, &model, config));
  for (int i = 0; i < STEPS; ++i) EXPECT_OK(dkv_trainer_step(&trainer, &stats[i]));
  dkv_trainer_close(&trainer);
  dkv_model_free(&model);
}

Test(trainer, packed_and_replicated_give_the_same_rewards_and_losses_at_every_step) {
  static const char *const methods[] = {"grpo", "dapo", "dr_grpo", "gspo", "cispo"};
  for (int m = 0; m < 5; ++m) {
    dkv_train_stats packed[STEPS], replicated[STEPS];
    dkv_train_config c = echo_run(methods[m]);
    c.dead = m % 2 ? DKV_DEAD_DROP : DKV_DEAD_RESAMPLE;
    c.epochs = m == 0 ? 2 : 1;
    c.loss.kl_weight = m == 2 ? 0.05 : 0;
    run(packed, &c, 1, 2);
    c.replicated = true;
    run(replicated, &c, 1, 2);
    double moved = 0, early = 0, late = 0;
    for (int i = 0; i < STEPS; ++i) {
      cr_assert_eq(packed[i].reward, replicated[i].reward, "%s step %d: rewards %.9g and %.9g", methods[m], i,
                   packed[i].reward, replicated[i].reward);
      double gap = fabs(packed[i].loss - replicated[i].loss), scale = fmax(1, fabs(packed[i].loss));
      cr_assert(gap <= 2e-5 * scale, "%s step %d: losses %.9g and %.9g", methods[m], i, packed[i].loss,
                replicated[i].loss);
      cr_assert(fabs(packed[i].grad_norm - replicated[i].grad_norm) <= 1e-3 * fmax(1e-3, packed[i].grad_norm));
      cr_assert(packed[i].mismatch_max < 1e-4 && replicated[i].mismatch_max < 1e-4);
      cr_assert_eq(packed[i].replicated_rows, replicated[i].rows);
      cr_assert(packed[i].used_groups == 0 || packed[i].rows < replicated[i].rows);
      moved += packed[i].grad_norm;
      early += i < 10 ? packed[i].accuracy / 10 : 0;
      late += i >= STEPS - 10 ? packed[i].accuracy / 10 : 0;
    }
    cr_expect(moved > 1 && late > early + 0.05, "%s: accuracy %g to %g", methods[m], early, late);
  }
}

Test(trainer, the_number_of_threads_changes_no_bit_of_any_step) {
  dkv_train_stats one[STEPS], two[STEPS];
  dkv_train_config c = echo_run("dapo");
  run(one, &c, 2, 1);
  run(two, &c, 2, 2);
  for (int i = 0; i < STEPS; ++i) {
    cr_assert_eq(one[i].loss, two[i].loss, "step %d", i);
    cr_assert_eq(one[i].grad_norm, two[i].grad_norm, "step %d", i);
    cr_assert_eq(one[i].reward, two[i].reward, "step %d", i);
  }
}

Test(trainer, the_micro_batch_split_changes_no_loss) {
  dkv_train_stats all[STEPS], split[STEPS];
  dkv_train_config c = echo_run("dapo");
  c.groups_per_batch = 4;
  run(all, &c, 3, 2);
  c.groups_per_batch = 1;
  run(split, &c, 3, 2);
  cr_expect(fabs(all[0].loss - split[0].loss) <= 1e-6);
  for (int i = 0; i < STEPS; ++i)
    cr_assert(fabs(all[i].loss - split[i].loss) <= 2e-5 && all[i].reward == split[i].reward);
}

Test(trainer, a_continued_run_is_the_uninterrupted_one_to_the_bit) {
  for (int with_reference = 0; with_reference < 2; ++with_reference) {
    dkv_train_config c = echo_run("grpo");
    c.dead = DKV_DEAD_RESAMPLE; /* the number of the next prompt is not a function of the step */
    c.epochs = 2;
    c.loss.kl_weight = with_reference ? 0.02 : 0;
    dkv_model whole, first, second;
    dkv_trainer a, b, d;
    dkv_train_stats stats;
    char path[512];
    snprintf(path, sizeof path, "%s", file_path("run.state"));
    groups_model(&whole, &echo, 5, 2);
    groups_model(&first, &echo, 5, 2);
    groups_model(&second, &echo, 77, 2); /* other weights: all must come from the file */
    EXPECT_OK(dkv_trainer_open(&a, &whole, &c));
    for (int i = 0; i < 12; ++i) EXPECT_OK(dkv_trainer_step(&a, &stats));
    EXPECT_OK(dkv_trainer_open(&b, &first, &c));
    for (int i = 0; i < 5; ++i) EXPECT_OK(dkv_trainer_step(&b, &stats));
    EXPECT_OK(dkv_trainer_save(&b, path));
    EXPECT_OK(dkv_trainer_open(&d, &second, &c));
    EXPECT_OK(dkv_trainer_load(&d, path));
    cr_assert(d.step == 5 && d.next_example == b.next_example && d.seconds == b.seconds);
    for (int i = 5; i < 12; ++i) EXPECT_OK(dkv_trainer_step(&d, &stats));
    size_t bytes = (size_t)whole.params.count * sizeof(float);
    cr_expect(memcmp(whole.params.data, second.params.data, bytes) == 0, "weights differ");
    cr_expect(memcmp(a.optimizer.m, d.optimizer.m, bytes) == 0 && memcmp(a.optimizer.v, d.optimizer.v, bytes) == 0);
    cr_expect_eq(a.next_example, d.next_example);
    dkv_trainer_close(&a);
    dkv_trainer_close(&b);
    dkv_trainer_close(&d);
    dkv_model_free(&whole);
    dkv_model_free(&first);
    dkv_model_free(&second);
  }
}

Test(trainer, a_state_of_other_settings_is_refused_and_changes_nothing) {
  dkv_train_config c = echo_run("dapo");
  dkv_model model;
  dkv_trainer trainer;
  char path[512], other[512];
  snprintf(path, sizeof path, "%s", file_path("run.state"));
  snprintf(other, sizeof other, "%s", file_path("other"));
  groups_model(&model, &echo, 5, 1);
  EXPECT_OK(dkv_trainer_open(&trainer, &model, &c));
  EXPECT_OK(dkv_trainer_save(&trainer, path));
  trainer.config.schedule.peak = 3e-3;
  float before = model.params.data[7];
  model.params.data[7] += 1;
  EXPECT_FAIL(DKV_ERR_RANGE, "learning rate = 0.002, but this run has 0.003", dkv_trainer_load(&trainer, path));
  cr_expect_eq(model.params.data[7], before + 1);
  file_write(other, "nonsense", 8);
  EXPECT_FAIL(DKV_ERR_FORMAT, "other", dkv_trainer_load(&trainer, other));
  EXPECT_FAIL(DKV_ERR_IO, "absent", dkv_trainer_load(&trainer, file_path("absent")));
  dkv_trainer_close(&trainer);
  dkv_model_free(&model);
}

Test(trainer, several_epochs_keep_the_old_log_probabilities_and_clip) {
  dkv_train_stats once[STEPS], thrice[STEPS];
  dkv_train_config c = echo_run("dapo");
  c.schedule.peak = 5e-3;
  run(once, &c, 1, 1);
  c.epochs = 3;
  run(thrice, &c, 1, 1);
  double clipped = 0;
  for (int i = 0; i < STEPS; ++i) {
    cr_assert_eq(once[i].clipped_low + once[i].clipped_high, 0, "on policy nothing is clipped");
    clipped += thrice[i].clipped_low + thrice[i].clipped_high;
    cr_assert(thrice[i].mismatch_max < 1e-4, "the mismatch is that of the first epoch: %g", thrice[i].mismatch_max);
  }
  cr_expect(clipped > 0);
}

Test(trainer, a_penalty_on_the_distance_keeps_the_policy_near_its_start) {
  dkv_train_stats free_run[STEPS], held[STEPS];
  dkv_train_config c = echo_run("dapo");
  c.loss.kl_weight = 1e-6; /* measured, hardly felt */
  run(free_run, &c, 1, 1);
  c.loss.kl_weight = 1;
  run(held, &c, 1, 1);
  cr_expect(fabs(free_run[0].kl) < 1e-8, "the reference is the start: %g", free_run[0].kl);
  double last_free = 0, last_held = 0;
  for (int i = STEPS - 10; i < STEPS; ++i) last_free += free_run[i].kl, last_held += held[i].kl;
  cr_expect(last_held < 0.5 * last_free, "%g held, %g free", last_held, last_free);
}

Test(trainer, the_self_check_passes_names_rounding_and_leaves_the_run_alone) {
  dkv_train_config c = echo_run("dapo");
  dkv_model model;
  dkv_trainer trainer;
  dkv_self_check found;
  groups_model(&model, &echo, 1, 2);
  EXPECT_OK(dkv_trainer_open(&trainer, &model, &c));
  EXPECT_OK(dkv_trainer_self_check(&trainer, DKV_SELF_CHECK_TOLERANCE, &found));
  cr_expect(found.rows[1] > 2 * found.rows[0] && found.norm > 0 && found.worst < 1e-4 && !found.drawn);
  cr_expect(trainer.step == 0 && trainer.next_example == 0 && trainer.optimizer.step == 0);
  EXPECT_FAIL(DKV_ERR_MISMATCH, "differs by", dkv_trainer_self_check(&trainer, 0, &found));
  dkv_trainer_close(&trainer);
  dkv_model_free(&model);
  groups_model(&model, sort(), 1, 2);
  EXPECT_OK(dkv_train_defaults(&c, sort(), "dapo"));
  c.groups = c.responses = 2;
  EXPECT_OK(dkv_trainer_open(&trainer, &model, &c));
  EXPECT_OK(dkv_trainer_self_check(&trainer, DKV_SELF_CHECK_TOLERANCE, &found));
  cr_expect(found.drawn && found.norm > 0, "without any signal the advantages are drawn");
  dkv_trainer_close(&trainer);
  dkv_model_free(&model);
}

Test(trainer, diverged_weights_stop_the_run_with_a_sentence) {
  dkv_train_config c = echo_run("dapo");
  dkv_model model;
  dkv_trainer trainer;
  dkv_train_stats stats;
  groups_model(&model, &echo, 1, 1);
  EXPECT_OK(dkv_trainer_open(&trainer, &model, &c));
  model.params.layer[1].down[5] = NAN;
  EXPECT_FAIL(DKV_ERR_RANGE, "not finite", dkv_trainer_step(&trainer, &stats));
  cr_expect(trainer.step == 0 && trainer.next_example == 0);
  dkv_trainer_close(&trainer);
  dkv_model_free(&model);
}

static bool stop_at_three(void *user, const dkv_train_stats *stats) {
  *(int *)user += 1;
  return stats->step < 2;
}

Test(trainer, the_report_can_stop_a_run) {
  dkv_train_config c = echo_run("dapo");
  dkv_model model;
  dkv_trainer trainer;
  int calls = 0;
  groups_model(&model, &echo, 1, 1);
  EXPECT_OK(dkv_trainer_open(&trainer, &model, &c));
  EXPECT_OK(dkv_trainer_run(&trainer, 40, stop_at_three, &calls));
  cr_expect(calls == 3 && trainer.step == 3);
  EXPECT_OK(dkv_trainer_run(&trainer, 5, NULL, NULL));
  cr_expect_eq(trainer.step, 5);
  dkv_trainer_close(&trainer);
  dkv_model_free(&model);
}
