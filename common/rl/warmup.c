/**
 * @file warmup.c
 * @brief Supervised steps on noisy demonstrations; see warmup.h.
 */
#include "common/rl/warmup.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/rl/seed.h"
#include "common/rl/state.h"

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

dkv_warmup_config dkv_warmup_defaults(const dkv_task *task) {
  return (dkv_warmup_config){.task = task,
                             .seed = 1,
                             .examples = 16,
                             .noise = task->noise,
                             .schedule = {DKV_SCHEDULE_COSINE, 3e-3, 30, 500, 0.1},
                             .optimizer = dkv_optimizer_defaults()};
}

dkv_status dkv_warmup_open(dkv_warmup *out, dkv_model *model, const dkv_warmup_config *c) {
  DKV_REQUIRE(out != NULL, DKV_ERR_NULL, "dkv_warmup_open: out is NULL");
  memset(out, 0, sizeof *out);
  DKV_REQUIRE(model && c && c->task, DKV_ERR_NULL, "dkv_warmup_open: an argument is NULL");
  DKV_REQUIRE(c->examples >= 1 && c->examples <= 1 << 16, DKV_ERR_RANGE,
              "a warm-up step of %d demonstrations; it takes 1 to 65536", c->examples);
  DKV_REQUIRE(c->noise >= 0 && c->noise <= 20, DKV_ERR_RANGE, "the noise is %g mistakes, but it must be 0 to 20",
              c->noise);
  DKV_REQUIRE(c->schedule.peak >= 0 && isfinite(c->schedule.peak), DKV_ERR_RANGE,
              "the warm-up's learning rate is %g, but it must be a number >= 0", c->schedule.peak);
  DKV_REQUIRE(model->config.vocabulary >= c->task->vocabulary, DKV_ERR_SHAPE,
              "the model knows %d tokens, but the task %s has %d", model->config.vocabulary, c->task->name,
              c->task->vocabulary);
  out->config = *c;
  out->model = model;
  dkv_status status = dkv_optimizer_create(&out->optimizer, model, &c->optimizer);
  if (status == DKV_OK && (out->examples = calloc((size_t)c->examples, sizeof *out->examples)) == NULL)
    status = dkv_fail(DKV_ERR_NOMEM, "no memory for %d demonstrations", c->examples);
  if (status != DKV_OK) dkv_warmup_close(out);
  return status;
}

void dkv_warmup_close(dkv_warmup *warmup) {
  if (warmup == NULL) return;
  free(warmup->examples);
  dkv_pass_free(&warmup->pass);
  dkv_optimizer_free(&warmup->optimizer);
  memset(warmup, 0, sizeof *warmup);
}

/** The rows of a step and the pairs that it scores. */
typedef struct lesson {
  dkv_layout layout;
  int32_t *ids;           /* [rows] prompt and answer without its last token */
  dkv_prediction *pairs;  /* [count] */
  int32_t *target;        /* [count] */
  float *logprob, *slope; /* [count] */
  int32_t count;
} lesson;

static void lesson_free(lesson *l) {
  dkv_layout_free(&l->layout);
  free(l->ids);
  free(l->pairs);
  free(l->target);
  free(l->logprob);
}

static void score(lesson *l, int32_t source, int32_t segment, int32_t token) {
  l->pairs[l->count] = (dkv_prediction){source, -1, segment};
  l->target[l->count++] = token;
}

/** One example: its rows from `first` on, its supervised tokens, each predicted by the row before it. */
static void write_example(lesson *l, const dkv_example *e, int32_t segment) {
  int32_t first = l->layout.start[segment];
  memcpy(l->ids + first, e->prompt, (size_t)e->prompt_length * sizeof *l->ids);
  memcpy(l->ids + first + e->prompt_length, e->answer, (size_t)(e->answer_length - 1) * sizeof *l->ids);
  for (int32_t i = 1; i < e->prompt_length; ++i)
    if (e->supervised[i]) score(l, first + i - 1, segment, e->prompt[i]);
  for (int32_t i = 0; i < e->answer_length; ++i) score(l, first + e->prompt_length + i - 1, segment, e->answer[i]);
}

/** Lays out B examples as B roots. */
static dkv_status write_lesson(lesson *l, const dkv_example *examples, int32_t count) {
  int32_t *parent = malloc((size_t)count * sizeof *parent), *length = malloc((size_t)count * sizeof *length);
  dkv_status status = parent && length ? DKV_OK : dkv_fail(DKV_ERR_NOMEM, "no memory for %d demonstrations", count);
  for (int32_t b = 0; status == DKV_OK && b < count; ++b) {
    parent[b] = -1;
    length[b] = examples[b].prompt_length + examples[b].answer_length - 1;
  }
  if (status == DKV_OK) status = dkv_layout_forest(&l->layout, count, parent, length);
  free(parent);
  free(length);
  DKV_TRY(status);
  size_t most = (size_t)l->layout.rows + (size_t)count;
  l->ids = malloc(most * sizeof *l->ids);
  l->pairs = malloc(most * sizeof *l->pairs);
  l->target = malloc(most * sizeof *l->target);
  l->logprob = malloc(2 * most * sizeof *l->logprob);
  DKV_REQUIRE(l->ids && l->pairs && l->target && l->logprob, DKV_ERR_NOMEM, "no memory for %d rows", l->layout.rows);
  l->slope = l->logprob + most;
  for (int32_t b = 0; b < count; ++b) write_example(l, &examples[b], b);
  return DKV_OK;
}

/** Forward, loss, backward, AdamW. */
static dkv_status learn(dkv_warmup *w, lesson *l, dkv_warmup_stats *stats) {
  dkv_batch batch = {.layout = &l->layout,
                     .ids = l->ids,
                     .pairs = l->pairs,
                     .pair_count = l->count,
                     .target_ids = l->target,
                     .temperature = 1};
  DKV_TRY(dkv_pass_set(&w->pass, w->model, &batch));
  DKV_TRY(dkv_model_forward(w->model, &w->pass, l->logprob, NULL));
  for (int32_t i = 0; i < l->count; ++i) {
    stats->loss -= (double)l->logprob[i] / l->count;
    l->slope[i] = -1.0f / (float)l->count;
  }
  DKV_TRY(dkv_model_zero_grads(w->model));
  DKV_TRY(dkv_model_backward(w->model, &w->pass, l->slope, NULL));
  stats->tokens = l->count;
  stats->rows = l->layout.rows;
  return dkv_optimizer_step(&w->optimizer, w->model, stats->learning_rate, &stats->grad_norm);
}

dkv_status dkv_warmup_step(dkv_warmup *w, dkv_warmup_stats *stats) {
  DKV_REQUIRE(w && stats, DKV_ERR_NULL, "dkv_warmup_step: an argument is NULL");
  const dkv_warmup_config *c = &w->config;
  *stats = (dkv_warmup_stats){.step = w->step, .learning_rate = dkv_schedule_rate(&c->schedule, w->step)};
  double begin = now();
  uint64_t first = (uint64_t)w->step * (uint64_t)c->examples;
  for (int32_t b = 0; b < c->examples; ++b)
    c->task->generate(&w->examples[b], dkv_seed(c->seed, DKV_SEED_WARMUP), first + (uint64_t)b, c->noise);
  lesson l = {0};
  dkv_status status = write_lesson(&l, w->examples, c->examples);
  if (status == DKV_OK) status = learn(w, &l, stats);
  lesson_free(&l);
  DKV_TRY(status);
  stats->seconds = now() - begin;
  w->seconds += stats->seconds;
  stats->total_seconds = w->seconds;
  w->step += 1;
  return DKV_OK;
}

enum { SETTINGS = 11 };

static void describe(dkv_setting out[SETTINGS], const dkv_warmup *w) {
  const dkv_warmup_config *c = &w->config;
  const dkv_setting list[SETTINGS] = {{"vocabulary", c->task->vocabulary},
                                      {"longest prompt", c->task->max_prompt},
                                      {"seed (low half)", (double)(uint32_t)c->seed},
                                      {"seed (high half)", (double)(uint32_t)(c->seed >> 32)},
                                      {"demonstrations", c->examples},
                                      {"noise", c->noise},
                                      {"whole last layer", w->model->options.whole_last_layer},
                                      {"schedule", c->schedule.shape},
                                      {"learning rate", c->schedule.peak},
                                      {"warm-up steps of the learning rate", (double)c->schedule.warmup},
                                      {"steps", (double)c->schedule.total}};
  memcpy(out, list, sizeof list);
}

dkv_status dkv_warmup_save(const dkv_warmup *w, const char *path) {
  DKV_REQUIRE(w && path, DKV_ERR_NULL, "dkv_warmup_save: an argument is NULL");
  dkv_setting setting[SETTINGS];
  describe(setting, w);
  dkv_counters counters = {.step = w->step, .seconds = w->seconds};
  return dkv_state_save(path, "warm-up", w->model, &w->optimizer, setting, SETTINGS, &counters, NULL);
}

dkv_status dkv_warmup_load(dkv_warmup *w, const char *path) {
  DKV_REQUIRE(w && path, DKV_ERR_NULL, "dkv_warmup_load: an argument is NULL");
  dkv_setting setting[SETTINGS];
  dkv_counters counters;
  describe(setting, w);
  DKV_TRY(dkv_state_load(path, "warm-up", w->model, &w->optimizer, setting, SETTINGS, &counters, NULL));
  w->step = counters.step;
  w->seconds = counters.seconds;
  return DKV_OK;
}
