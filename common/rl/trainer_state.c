/**
 * @file trainer_state.c
 * @brief Saving a run and continuing it bit for bit.
 *
 * Prompts and samples are functions of (seed, number), so two counters hold all random state there is.
 *
 * Read before: trainer.h, state.h.
 */
#include "common/rl/state.h"
#include "common/rl/trainer.h"

enum { SETTINGS = 32 };

/** Where the task stands in the list of tasks; -1 for a task of the caller's own. */
static int32_t task_number(const dkv_task *task) {
  for (int32_t i = 0; dkv_tasks[i] != NULL; ++i)
    if (dkv_tasks[i] == task) return i;
  return -1;
}

/** Everything that decides what the run will do, to the bit. @return settings. */
static int32_t describe(dkv_setting out[SETTINGS], const dkv_trainer *t) {
  const dkv_train_config *c = &t->config;
  const dkv_setting list[] = {{"the task's number", task_number(c->task)},
                              {"seed (low half)", (double)(uint32_t)c->seed},
                              {"seed (high half)", (double)(uint32_t)(c->seed >> 32)},
                              {"groups", c->groups},
                              {"responses", c->responses},
                              {"groups per batch", c->groups_per_batch},
                              {"epochs", c->epochs},
                              {"longest response", c->max_length},
                              {"temperature", (double)c->temperature},
                              {"replicated layout", c->replicated},
                              {"whole last layer", t->model->options.whole_last_layer},
                              {"policy for dead groups", c->dead},
                              {"tries", c->max_tries},
                              {"truncated responses masked", c->mask_truncated},
                              {"overlong buffer", c->overlong_buffer},
                              {"division by the deviation", c->advantage.divide_by_std},
                              {"population deviation", c->advantage.population},
                              {"epsilon of the deviation", c->advantage.epsilon},
                              {"surrogate", c->loss.surrogate},
                              {"aggregation", c->loss.aggregation},
                              {"lower clip", c->loss.clip_low},
                              {"upper clip", c->loss.clip_high},
                              {"dual clip", c->loss.dual_clip},
                              {"KL weight", c->loss.kl_weight},
                              {"entropy weight", c->loss.entropy_weight},
                              {"constant length", c->loss.max_length},
                              {"schedule", c->schedule.shape},
                              {"learning rate", c->schedule.peak},
                              {"warm-up steps of the learning rate", (double)c->schedule.warmup},
                              {"steps", (double)c->schedule.total},
                              {"last share of the learning rate", c->schedule.floor}};
  int32_t count = (int32_t)(sizeof list / sizeof list[0]);
  for (int32_t i = 0; i < count; ++i) out[i] = list[i];
  return count;
}

/** The double weights and moments of an exact run have no place in the file. */
static dkv_status refuse_exact(const dkv_trainer *t) {
  DKV_REQUIRE(!t->config.exact, DKV_ERR_UNSUPPORTED,
              "an exact run cannot be saved or continued: its state is in double, and the file holds float");
  return DKV_OK;
}

dkv_status dkv_trainer_save(const dkv_trainer *t, const char *path) {
  DKV_REQUIRE(t && path, DKV_ERR_NULL, "dkv_trainer_save: an argument is NULL");
  DKV_TRY(refuse_exact(t));
  dkv_setting setting[SETTINGS];
  int32_t count = describe(setting, t);
  dkv_counters counters = {.step = t->step, .next_example = (int64_t)t->next_example, .seconds = t->seconds};
  return dkv_state_save(path, "training", t->model, &t->optimizer, setting, count, &counters,
                        t->config.loss.kl_weight > 0 ? &t->reference : NULL);
}

dkv_status dkv_trainer_load(dkv_trainer *t, const char *path) {
  DKV_REQUIRE(t && path, DKV_ERR_NULL, "dkv_trainer_load: an argument is NULL");
  DKV_TRY(refuse_exact(t));
  dkv_setting setting[SETTINGS];
  int32_t count = describe(setting, t);
  dkv_counters counters;
  DKV_TRY(dkv_state_load(path, "training", t->model, &t->optimizer, setting, count, &counters,
                         t->config.loss.kl_weight > 0 ? &t->reference : NULL));
  t->step = counters.step;
  t->next_example = (uint64_t)counters.next_example;
  t->seconds = counters.seconds;
  return DKV_OK;
}
