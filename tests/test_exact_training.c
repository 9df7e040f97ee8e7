/**
 * @file test_exact_training.c
 * @brief Free-running training in double: packed and replicated draw the same tokens and get the same rewards, losses
 * and gradients at every one of 40 steps, from every seed and with every algorithm; and with the sorting task too.
 *
 * Read before: test_exact.c, test_trainer.c.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/rl/self_check.h"
#include "support/echo.h"
#include "support/expect.h"
#include "support/files.h"
#include "support/groups.h"

enum { STEPS = 40 };

/** Two runs side by side from the same weights; says where they part. @return the last step's accuracy */
static double run_both(dkv_train_config config, dkv_model model[2], int steps) {
  dkv_trainer trainer[2];
  double moved = 0, last = 0;
  for (int i = 0; i < 2; ++i) {
    config.replicated = i == 1;
    config.exact = true;
    EXPECT_OK(dkv_trainer_open(&trainer[i], &model[i], &config));
  }
  for (int step = 0; step < steps; ++step) {
    dkv_train_stats a, b;
    EXPECT_OK(dkv_trainer_step(&trainer[0], &a));
    EXPECT_OK(dkv_trainer_step(&trainer[1], &b));
    cr_assert_eq(a.reward, b.reward, "step %d: rewards %.17g and %.17g", step, a.reward, b.reward);
    cr_assert(a.tokens == b.tokens && a.replicated_rows == b.rows);
    cr_assert(fabs(a.loss - b.loss) <= 1e-10 * fmax(1, fabs(a.loss)), "step %d: losses %.17g and %.17g", step, a.loss,
              b.loss);
    cr_assert(fabs(a.grad_norm - b.grad_norm) <= 1e-8 * a.grad_norm, "step %d: norms %.17g and %.17g", step,
              a.grad_norm, b.grad_norm);
    cr_assert(a.mismatch_max < 1e-4, "the float sampler is off by %g", a.mismatch_max);
    moved += a.updated ? a.grad_norm : 0;
    last = a.accuracy;
  }
  cr_assert_gt(moved, 0.1, "nothing was learnt, so nothing was compared");
  for (int i = 0; i < 2; ++i) {
    dkv_trainer_close(&trainer[i]);
    dkv_model_free(&model[i]);
  }
  return last;
}

Test(exact_training, layouts_agree_at_every_step_from_every_seed) {
  static const char *const methods[] = {"grpo", "dapo", "dr_grpo", "gspo", "cispo"};
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    dkv_model model[2];
    dkv_train_config c = echo_run(methods[seed % 5]);
    c.seed = seed;
    c.dead = seed % 2 ? DKV_DEAD_DROP : DKV_DEAD_KEEP;
    c.loss.entropy_weight = seed % 3 ? 0 : 0.01;
    for (int i = 0; i < 2; ++i) groups_model(&model[i], c.task, seed, 2);
    run_both(c, model, STEPS);
  }
}

Test(exact_training, layouts_agree_when_sorting_from_the_warm_start) {
  dkv_model model[2];
  dkv_train_config c;
  const dkv_task *sort = NULL;
  EXPECT_OK(dkv_task_find(&sort, "sort"));
  EXPECT_OK(dkv_train_defaults(&c, sort, "dapo"));
  c.seed = 4;
  c.groups = c.groups_per_batch = 2;
  c.responses = 2;
  for (int i = 0; i < 2; ++i) EXPECT_OK(dkv_model_load(&model[i], "tools/warmstart/sort", NULL));
  run_both(c, model, 3);
}

/* One optimizer step's gradient, micro-batches of 4, 3, 2 and 1 groups: equal in every tensor, loss and all. */
Test(exact_training, the_micro_batch_split_changes_no_tensor) {
  static const char *const methods[] = {"grpo", "dapo", "dr_grpo", "gspo", "cispo"};
  for (int m = 0; m < 5; ++m) {
    double *want = NULL, loss = 0;
    for (int32_t size = 4; size >= 1; --size) {
      dkv_model model;
      dkv_trainer trainer;
      dkv_train_stats stats;
      dkv_train_config c = echo_run(methods[m]);
      c.exact = true;
      c.dead = DKV_DEAD_KEEP;
      c.groups_per_batch = size;
      groups_model(&model, c.task, 5, 2);
      EXPECT_OK(dkv_trainer_open(&trainer, &model, &c));
      EXPECT_OK(dkv_trainer_step(&trainer, &stats));
      if (size == 4) {
        want = malloc((size_t)trainer.exact.count * sizeof *want);
        memcpy(want, trainer.exact.grad, (size_t)trainer.exact.count * sizeof *want);
        loss = stats.loss;
      }
      cr_assert_float_eq(stats.loss, loss, 1e-13);
      for (int32_t i = 0; i < model.params.view_count; ++i) {
        const dkv_param *v = &model.params.view[i];
        double gap = 0, norm = 0;
        for (int64_t j = v->offset; j < v->offset + v->rows * v->cols; ++j) {
          gap += pow(trainer.exact.grad[j] - want[j], 2);
          norm += want[j] * want[j];
        }
        cr_assert(norm > 0 && sqrt(gap / norm) < 1e-12, "%s, %d groups at a time, %s: %g", methods[m], size, v->name,
                  sqrt(gap / norm));
      }
      dkv_trainer_close(&trainer);
      dkv_model_free(&model);
    }
    free(want);
  }
}

/* The double run and the float run start alike: same samples, same gradient to float's rounding. */
Test(exact_training, the_first_step_is_that_of_the_float_trainer) {
  dkv_model model[2];
  dkv_trainer trainer[2];
  dkv_train_stats stats[2];
  for (int i = 0; i < 2; ++i) {
    dkv_train_config c = echo_run("dapo");
    c.exact = i == 1;
    groups_model(&model[i], c.task, 3, 2);
    EXPECT_OK(dkv_trainer_open(&trainer[i], &model[i], &c));
    EXPECT_OK(dkv_trainer_step(&trainer[i], &stats[i]));
  }
  cr_assert_eq(stats[0].reward, stats[1].reward);
  cr_assert_float_eq(stats[0].loss, stats[1].loss, 1e-6);
  cr_assert_float_eq(stats[0].grad_norm, stats[1].grad_norm, 1e-5 * stats[1].grad_norm);
  cr_assert_float_eq(stats[0].entropy, stats[1].entropy, 1e-5);
  cr_assert_lt(groups_gap(model[0].params.data, model[1].params.data, model[0].params.count), 1e-3);
  for (int i = 0; i < 2; ++i) {
    dkv_trainer_close(&trainer[i]);
    dkv_model_free(&model[i]);
  }
}

/* The old log-probabilities are the trainer's own: all ratios are 1, whatever the sampler stored, which is reported. */
Test(exact_training, the_sampler_has_no_say_in_the_gradient) {
  static const int32_t length[3] = {5, 0, 3};
  const dkv_task *sort = NULL;
  dkv_group group;
  const dkv_group *list[1] = {&group};
  dkv_model model;
  dkv_exact exact;
  dkv_update_batch batch;
  dkv_policy_config loss;
  dkv_normaliser total = {0, 0};
  dkv_update_stats stats = {0};
  EXPECT_OK(dkv_task_find(&sort, "sort"));
  groups_random(&group, 1, 9, length, 3, 12);
  groups_model(&model, sort, 12, 2);
  EXPECT_OK(dkv_exact_open(&exact, &model));
  EXPECT_OK(dkv_update_batch_make(&batch, list, 1, false));
  EXPECT_OK(dkv_policy_preset(&loss, "grpo"));
  dkv_policy_batch view = dkv_update_policy_view(&batch);
  EXPECT_OK(dkv_normaliser_add(&total, &view));
  EXPECT_OK(dkv_update_gradient_exact(&stats, &exact, &batch, &loss, &total, 0.9f));
  double want = 0; /* -sum of the advantages of responses with tokens, each divided by their number */
  for (int n = 0; n < 3; ++n) want -= length[n] > 0 ? group.advantage[n] / 2 : 0;
  cr_expect_float_eq(stats.policy.loss, want, 1e-14);
  cr_expect_eq(stats.policy.max_log_ratio, 0);
  cr_expect_gt(stats.mismatch_max, 0.1);
  loss.kl_weight = 0.1;
  EXPECT_FAIL(DKV_ERR_UNSUPPORTED, "no reference model",
              dkv_update_gradient_exact(&stats, &exact, &batch, &loss, &total, 0.9f));
  dkv_update_batch_free(&batch);
  dkv_exact_close(&exact);
  dkv_group_close(&group);
  dkv_model_free(&model);
}

Test(exact_training, what_it_cannot_do_is_refused) {
  dkv_model model;
  dkv_trainer trainer;
  dkv_self_check found;
  dkv_train_config c = echo_run("grpo");
  groups_model(&model, c.task, 3, 1);
  c.exact = true;
  c.epochs = 2;
  EXPECT_FAIL(DKV_ERR_RANGE, "epochs is 2", dkv_trainer_open(&trainer, &model, &c));
  c.epochs = 1;
  c.loss.kl_weight = 0.1;
  EXPECT_FAIL(DKV_ERR_RANGE, "no reference model", dkv_trainer_open(&trainer, &model, &c));
  c.loss.kl_weight = 0;
  EXPECT_OK(dkv_trainer_open(&trainer, &model, &c));
  EXPECT_FAIL(DKV_ERR_UNSUPPORTED, "cannot be saved", dkv_trainer_save(&trainer, file_path("exact.state")));
  EXPECT_FAIL(DKV_ERR_UNSUPPORTED, "cannot be saved", dkv_trainer_load(&trainer, file_path("exact.state")));
  EXPECT_FAIL(DKV_ERR_UNSUPPORTED, "float gradients", dkv_trainer_self_check(&trainer, 1e-4, &found));
  dkv_trainer_close(&trainer);
  dkv_model_free(&model);
}
