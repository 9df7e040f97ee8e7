/**
 * @file train_demo.c
 * @brief The last stop of `dualkv demo`: reinforcement learning from a stored warm start, for some seconds.
 *
 * The warm start is made by
 *
 *     build/dualkv train --task sort --steps 0 --output DIR
 *
 * and its config.json and model.safetensors are kept in tools/warmstart/sort.
 *
 * Read before: train.h.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/train.h"

enum { STEPS = 50, SHOWN = 5 };

/** The stored model: beside the program's source tree (build/dualkv), or below the working directory. */
static bool find_warm_start(char out[1200]) {
  char program[1024];
  ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  const char *const below[] = {"/../tools/warmstart/sort", "/../../tools/warmstart/sort"};
  for (int i = 0; length > 0 && i < 2; ++i) {
    program[length] = '\0';
    char *slash = strrchr(program, '/');
    if (slash != NULL) *slash = '\0';
    snprintf(out, 1200, "%s%s", program, below[i]);
    if (access(out, R_OK) == 0) return true;
  }
  snprintf(out, 1200, "tools/warmstart/sort");
  return access(out, R_OK) == 0;
}

/** Numbers of the demonstration. */
struct totals {
  double update_seconds, seconds;
  int64_t rows, replicated_rows;
  int32_t responses;
};

/** Shows a bar that grows with accuracy. */
static bool report(void *user, const dkv_train_stats *x) {
  struct totals *t = user;
  t->update_seconds += x->update_seconds;
  t->seconds = x->total_seconds;
  t->rows += x->rows;
  t->replicated_rows += x->replicated_rows;
  if (x->step % SHOWN != 0 && x->step + 1 != STEPS) return true;
  printf("  step %3lld   %5.1f %% of %d samples right  ", (long long)x->step + 1, 100 * x->accuracy,
         x->sampled_groups * t->responses);
  for (int i = 0; i < 40; ++i) putchar(i < 40 * x->accuracy ? '#' : '.');
  printf("  %.1f s\n", x->total_seconds);
  fflush(stdout);
  return true;
}

static dkv_status show_accuracy(const dkv_model *model, const dkv_task *task, const char *when) {
  dkv_evaluation result;
  dkv_evaluate_config config = dkv_evaluate_defaults(task);
  config.prompts = 64;
  config.responses = 2;
  config.greedy = false;
  DKV_TRY(dkv_evaluate(&result, model, &config));
  printf("  %s: %.0f %% of the answers to 64 prompts that it never trained on are right\n", when, 100 * result.sampled);
  return DKV_OK;
}

/** Trains and tells. */
static dkv_status train(dkv_model *model, const dkv_task *task) {
  dkv_train_config config;
  dkv_trainer trainer;
  struct totals t = {0};
  DKV_TRY(dkv_train_defaults(&config, task, "dapo"));
  config.schedule.total = STEPS;
  t.responses = config.responses;
  DKV_TRY(show_accuracy(model, task, "before"));
  DKV_TRY(dkv_trainer_open(&trainer, model, &config));
  dkv_status status = dkv_trainer_run(&trainer, STEPS, report, &t);
  dkv_trainer_close(&trainer);
  if (status == DKV_OK) status = show_accuracy(model, task, "after");
  if (status == DKV_OK && t.rows > 0)
    printf("\n%d steps took %.1f s, %.1f s of them updates; with the prompt copied for every response an update has "
           "%.1f times the rows.\n",
           STEPS, t.seconds, t.update_seconds, (double)t.replicated_rows / (double)t.rows);
  return status;
}

dkv_status dkv_demo_train(void) {
  char directory[1200];
  const dkv_task *task = NULL;
  dkv_model model;
  DKV_TRY(dkv_task_find(&task, "sort"));
  if (!find_warm_start(directory)) {
    printf("The stored model tools/warmstart/sort is not here; dualkv train --task sort trains one from scratch.\n");
    return DKV_OK;
  }
  printf(
      "A model of 0.22 million parameters has learnt to sort from sloppy demonstrations, and sorts sloppily.  Now it\n"
      "gets no more demonstrations, only a reward for each of its own answers: 8 prompts a step, 32 answers to each,\n"
      "the prompt computed once (DAPO).\n\n");
  DKV_TRY(dkv_model_load(&model, directory, NULL));
  dkv_status status = train(&model, task);
  dkv_model_free(&model);
  return status;
}
