/**
 * @file trainer_open.c
 * @brief A run's configuration: the recipe, its rules, and what is allocated for it.
 *
 * Read before: trainer.h.  Read next: trainer_state.c.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/rl/trainer.h"

dkv_status dkv_train_defaults(dkv_train_config *out, const dkv_task *task, const char *algorithm) {
  DKV_REQUIRE(out && task && algorithm, DKV_ERR_NULL, "dkv_train_defaults: an argument is NULL");
  *out = (dkv_train_config){.task = task,
                            .seed = 1,
                            .groups = 8,
                            .responses = 32,
                            .groups_per_batch = 8,
                            .epochs = 1,
                            .max_length = task->max_response,
                            .temperature = 1,
                            .dead = DKV_DEAD_DROP,
                            .max_tries = 4,
                            .advantage = {.divide_by_std = true, .epsilon = 1e-4},
                            .schedule = {DKV_SCHEDULE_LINEAR, 5e-4, 5, 120, 0.05},
                            .optimizer = dkv_optimizer_defaults()};
  DKV_TRY(dkv_policy_preset(&out->loss, algorithm));
  if (out->loss.aggregation == DKV_SEQUENCE_CONSTANT) { /* Dr.GRPO: its constant is the cap, and no deviation */
    out->loss.max_length = out->max_length;
    out->advantage.divide_by_std = false;
  }
  return DKV_OK;
}

dkv_model_config dkv_train_model(const dkv_task *task) {
  return (dkv_model_config){.layers = 2,
                            .width = 96,
                            .mlp_width = 256,
                            .vocabulary = task->vocabulary,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 32,
                            .max_positions = task->max_prompt + DKV_TASK_MAX_RESPONSE,
                            .norm_epsilon = 1e-6,
                            .rope_theta = 10000,
                            .eos_count = 1,
                            .eos = {task->end},
                            .init_std = 0.05};
}

/** One whole number and the range it must lie in. */
static dkv_status check_number(const char *name, int64_t value, int64_t low, int64_t high) {
  DKV_REQUIRE(value >= low && value <= high, DKV_ERR_RANGE, "%s is %lld, but it must be %lld to %lld", name,
              (long long)value, (long long)low, (long long)high);
  return DKV_OK;
}

dkv_status dkv_train_config_check(const dkv_train_config *c, const dkv_model *model) {
  DKV_REQUIRE(c && model, DKV_ERR_NULL, "dkv_train_config_check: an argument is NULL");
  DKV_REQUIRE(c->task != NULL, DKV_ERR_NULL, "dkv_trainer_open: the task is NULL");
  DKV_TRY(check_number("groups", c->groups, 1, 1 << 16));
  DKV_REQUIRE(c->responses != 1, DKV_ERR_RANGE,
              "responses is 1, but a group of one has nothing to compare its response with: take 2 or more");
  DKV_TRY(check_number("responses", c->responses, 2, DKV_MAX_RESPONSES));
  DKV_TRY(check_number("groups_per_batch", c->groups_per_batch, 1, 1 << 16));
  DKV_TRY(check_number("epochs", c->epochs, 1, 1000));
  DKV_TRY(check_number("max_length", c->max_length, 1, DKV_TASK_MAX_RESPONSE));
  DKV_TRY(check_number("max_tries", c->max_tries, 1, 1000));
  DKV_TRY(check_number("overlong_buffer", c->overlong_buffer, 0, c->max_length));
  DKV_TRY(check_number("schedule.total", c->schedule.total, 0, INT64_C(1) << 40));
  DKV_TRY(check_number("schedule.warmup", c->schedule.warmup, 0, INT64_C(1) << 40));
  DKV_REQUIRE(c->temperature > 0 && isfinite(c->temperature), DKV_ERR_RANGE,
              "the temperature is %g, but it must be a number above 0", (double)c->temperature);
  DKV_REQUIRE(c->schedule.peak >= 0 && isfinite(c->schedule.peak) && c->schedule.floor >= 0 && c->schedule.floor <= 1,
              DKV_ERR_RANGE, "the learning rate is %g down to %g of it, but it must be >= 0 and the share 0 to 1",
              c->schedule.peak, c->schedule.floor);
  DKV_TRY(dkv_policy_check(&c->loss));
  DKV_REQUIRE(!c->exact || c->epochs == 1, DKV_ERR_RANGE,
              "epochs is %d, but an exact run takes its own log-probabilities as the old ones: it must be 1",
              c->epochs);
  DKV_REQUIRE(!c->exact || c->loss.kl_weight == 0, DKV_ERR_RANGE,
              "kl_weight is %g, but an exact run has no reference model: it must be 0", c->loss.kl_weight);
  DKV_REQUIRE(model->config.vocabulary >= c->task->vocabulary, DKV_ERR_SHAPE,
              "the model knows %d tokens, but the task %s has %d", model->config.vocabulary, c->task->name,
              c->task->vocabulary);
  DKV_REQUIRE(model->config.max_positions >= c->task->max_prompt + c->max_length, DKV_ERR_SHAPE,
              "the model has %d positions, but prompts and responses of the task %s take %d",
              model->config.max_positions, c->task->name, c->task->max_prompt + c->max_length);
  return DKV_OK;
}

/** A frozen copy of the model for the KL term. */
static dkv_status copy_model(dkv_model *out, const dkv_model *from) {
  DKV_TRY(dkv_model_create(out, &from->config, 0, &from->options));
  memcpy(out->params.data, from->params.data, (size_t)from->params.count * sizeof *from->params.data);
  return DKV_OK;
}

dkv_status dkv_trainer_open(dkv_trainer *out, dkv_model *model, const dkv_train_config *config) {
  DKV_REQUIRE(out != NULL, DKV_ERR_NULL, "dkv_trainer_open: out is NULL");
  memset(out, 0, sizeof *out);
  DKV_REQUIRE(model && config, DKV_ERR_NULL, "dkv_trainer_open: an argument is NULL");
  DKV_TRY(dkv_train_config_check(config, model));
  out->config = *config;
  out->model = model;
  int32_t new_capacity = config->max_length > 1 ? config->max_length - 1 : 1;
  dkv_status status = dkv_optimizer_create(&out->optimizer, model, &config->optimizer);
  if (status == DKV_OK)
    status = dkv_decoder_open(&out->decoder, model, config->groups, config->responses,
                              config->groups * config->task->max_prompt, new_capacity);
  if (status == DKV_OK && config->loss.kl_weight > 0) status = copy_model(&out->reference, model);
  if (status == DKV_OK && config->exact) status = dkv_exact_open(&out->exact, model);
  if (status == DKV_OK && (out->groups = calloc((size_t)config->groups, sizeof *out->groups)) == NULL)
    status = dkv_fail(DKV_ERR_NOMEM, "no memory for %d groups", config->groups);
  for (int32_t g = 0; status == DKV_OK && g < config->groups; ++g)
    status = dkv_group_open(&out->groups[g], config->responses);
  if (status != DKV_OK) dkv_trainer_close(out);
  return status;
}

void dkv_trainer_close(dkv_trainer *trainer) {
  if (trainer == NULL) return;
  for (int32_t g = 0; trainer->groups != NULL && g < trainer->config.groups; ++g) dkv_group_close(&trainer->groups[g]);
  free(trainer->groups);
  dkv_pass_free(&trainer->pass);
  dkv_decoder_close(&trainer->decoder);
  dkv_optimizer_free(&trainer->optimizer);
  dkv_model_free(&trainer->reference);
  dkv_exact_close(&trainer->exact);
  memset(trainer, 0, sizeof *trainer);
}
