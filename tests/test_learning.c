/**
 * @file test_learning.c
 * @brief Does it learn?  From the stored warm start, 30 steps must lift held-out accuracy well beyond chance; the bar
 * is loose, since the documentation holds the measured curves.
 */
#include <criterion/criterion.h>

#include "common/rl/evaluate.h"
#include "common/rl/self_check.h"
#include "support/expect.h"

static dkv_evaluation ask(const dkv_model *model, const dkv_task *task) {
  dkv_evaluation result;
  dkv_evaluate_config config = dkv_evaluate_defaults(task);
  config.prompts = 64;
  config.responses = 2;
  EXPECT_OK(dkv_evaluate(&result, model, &config));
  return result;
}

Test(learning, thirty_steps_from_the_warm_start_lift_sampled_accuracy) {
  const dkv_task *task = NULL;
  dkv_model model;
  dkv_train_config config;
  dkv_trainer trainer;
  dkv_self_check found;
  EXPECT_OK(dkv_task_find(&task, "sort"));
  EXPECT_OK(dkv_model_load(&model, "tools/warmstart/sort", NULL));
  dkv_evaluation before = ask(&model, task);
  cr_expect(before.sampled > 0.2 && before.sampled < 0.5 && before.greedy > 0.9, "%g sampled, %g greedy",
            before.sampled, before.greedy);
  EXPECT_OK(dkv_train_defaults(&config, task, "dapo"));
  config.schedule.total = 30;
  config.responses = 16; /* the self-check's replicated pass takes most of the time */
  EXPECT_OK(dkv_trainer_open(&trainer, &model, &config));
  EXPECT_OK(dkv_trainer_self_check(&trainer, DKV_SELF_CHECK_TOLERANCE, &found));
  cr_expect(found.rows[0] * 9 < found.rows[1], "%d and %d rows", (int)found.rows[0], (int)found.rows[1]);
  EXPECT_OK(dkv_trainer_run(&trainer, 30, NULL, NULL));
  dkv_evaluation after = ask(&model, task);
  cr_expect(after.sampled > 0.6 && after.sampled > before.sampled + 0.2, "from %g to %g", before.sampled,
            after.sampled);
  dkv_trainer_close(&trainer);
  dkv_model_free(&model);
}
