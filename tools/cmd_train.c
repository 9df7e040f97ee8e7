/**
 * @file cmd_train.c
 * @brief `dualkv train`: reinforcement learning with verifiable rewards, packed or replicated.
 *
 * Read before: train.h.  Read next: train_session.c.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/train.h"

static const char about[] =
    "usage: dualkv train --task sort --algorithm dapo [--layout packed|replicated] [--output DIR] [FLAGS]\n\n"
    "A small model learns a task: first from noisy demonstrations (warm-up), then from rewards for its own samples, N\n"
    "for every prompt, which is computed once.  Progress goes to the screen, metrics as JSON lines to "
    "DIR/metrics.jsonl.\n"
    "Ctrl-C saves and says how to resume (exit code 130).  With --compare both layouts run from the same start, and\n"
    "DIR/curves.svg shows accuracy by step and by second.  Exit code 1 when --self-check finds a difference.\n";

enum { FLAGS = 56 };

/** The table of flags. */
static void list_flags(struct dkv_flag out[FLAGS], struct dkv_train_flags *f) {
  const struct dkv_flag list[] = {
      {NULL, DKV_FLAG_TITLE, NULL, NULL, "The run", 0, 0},
      {"task", DKV_FLAG_TEXT, &f->task, "NAME", "sort or missing", 0, 0},
      {"algorithm", DKV_FLAG_TEXT, &f->algorithm, "NAME", "grpo, dapo, dr_grpo, gspo or cispo (dapo)", 0, 0},
      {"layout", DKV_FLAG_TEXT, &f->layout, "NAME", "packed or replicated (packed)", 0, 0},
      {"checkpoint", DKV_FLAG_TEXT, &f->checkpoint, "DIR", "start from this model instead of a warm-up", 0, 0},
      {"output", DKV_FLAG_TEXT, &f->output, "DIR", "keep states, metrics and the model here", 0, 0},
      {"json", DKV_FLAG_TEXT, &f->json, "FILE", "metrics as JSON lines (DIR/metrics.jsonl)", 0, 0},
      {"resume", DKV_FLAG_SWITCH, &f->resume, NULL, "continue the run in --output", 0, 0},
      {"seed", DKV_FLAG_INT, &f->seed, "S", "of weights, prompts and samples (1)", 0, 9007199254740992.0},
      {"steps", DKV_FLAG_INT, &f->steps, "K", "steps of reinforcement learning (120)", 0, 1000000},
      {"threads", DKV_FLAG_INT, &f->threads, "N", "CPU threads; default: all", 0, 4096},
      {"self-check", DKV_FLAG_SWITCH, &f->self_check, NULL, "first compute one step both ways; stop if they differ", 0,
       0},
      {"repeats", DKV_FLAG_INT, &f->repeats, "K", "times the self-check, so that its times mean something (1)", 1, 99},
      {"tolerance", DKV_FLAG_REAL, &f->tolerance, "X", "relative difference that --self-check allows (1e-4)", 0, 1},
      {"check-every", DKV_FLAG_INT, &f->check_every, "K", "the self-check before every K-th step; 0: never (0)", 0,
       1000000},
      {"compare", DKV_FLAG_SWITCH, &f->compare, NULL, "run both layouts; needs --output", 0, 0},
      {"evaluate-every", DKV_FLAG_INT, &f->evaluate_every, "K", "steps between held-out evaluations; 0: none (20)", 0,
       1000000},
      {"held-out", DKV_FLAG_INT, &f->held_out, "K", "held-out prompts (128)", 1, 100000},
      {"exact", DKV_FLAG_SWITCH, &f->exact, NULL, "update in double: slow, both layouts equal step by step", 0, 0},
      {"whole-last-layer", DKV_FLAG_SWITCH, &f->whole, NULL, "compute the last layer at rows that predict nothing, too",
       0, 0},
      {"recompute", DKV_FLAG_SWITCH, &f->recompute, NULL, "keep only each layer's input: less memory, more time", 0, 0},
      {"progress", DKV_FLAG_SWITCH, &f->progress, NULL, "show progress even when stderr is no terminal", 0, 0},
      {NULL, DKV_FLAG_TITLE, NULL, NULL, "Samples", 0, 0},
      {"groups", DKV_FLAG_INT, &f->groups, "G", "prompts of a step (8)", 1, 65536},
      {"responses", DKV_FLAG_INT, &f->responses, "N", "responses to each (32)", 1, 65536},
      {"temperature", DKV_FLAG_REAL, &f->temperature, "T", "of sampler and loss (1)", 0.001, 1000},
      {"max-length", DKV_FLAG_INT, &f->max_length, "R", "longest response (the task's)", 1, DKV_TASK_MAX_RESPONSE},
      {"dead", DKV_FLAG_TEXT, &f->dead, "WHAT", "groups of equal outcomes: keep, drop or resample (drop)", 0, 0},
      {"tries", DKV_FLAG_INT, &f->tries, "K", "most rounds of sampling with --dead resample (4)", 1, 1000},
      {"mask-truncated", DKV_FLAG_SWITCH, &f->mask_truncated, NULL, "responses cut off at the cap carry no loss", 0, 0},
      {"overlong", DKV_FLAG_INT, &f->overlong, "K", "penalty from K tokens before the cap on; 0: none (0)", 0,
       DKV_TASK_MAX_RESPONSE},
      {NULL, DKV_FLAG_TITLE, NULL, NULL, "Learning", 0, 0},
      {"lr", DKV_FLAG_REAL, &f->lr, "X", "learning rate, 5 steps up, then linearly down (5e-4)", 0, 1},
      {"epochs", DKV_FLAG_INT, &f->epochs, "K", "optimizer steps on the same samples (1)", 1, 1000},
      {"groups-per-batch", DKV_FLAG_INT, &f->groups_per_batch, "K", "groups of a micro-batch (all)", 1, 65536},
      {"clip-low", DKV_FLAG_REAL, &f->clip_low, "X", "lower clip (the algorithm's)", 0, 1},
      {"clip-high", DKV_FLAG_REAL, &f->clip_high, "X", "upper clip (the algorithm's)", 0, 1000},
      {"dual-clip", DKV_FLAG_REAL, &f->dual_clip, "C", "bound on the ratio of bad responses, above 1; 0: off (0)", 0,
       1000},
      {"kl", DKV_FLAG_REAL, &f->kl, "X", "weight of the distance to the start (0)", 0, 1000},
      {"entropy", DKV_FLAG_REAL, &f->entropy, "X", "weight of an entropy bonus (0)", 0, 1000},
      {NULL, DKV_FLAG_TITLE, NULL, NULL, "Warm-up", 0, 0},
      {"warmup-steps", DKV_FLAG_INT, &f->warmup_steps, "K", "supervised steps (the task's)", 0, 1000000},
      {"warmup-lr", DKV_FLAG_REAL, &f->warmup_lr, "X", "learning rate, then down as a cosine (3e-3)", 0, 1},
      {"noise", DKV_FLAG_REAL, &f->noise, "X", "mean number of mistakes in a demonstration (the task's)", 0, 20},
      {"no-warmup", DKV_FLAG_SWITCH, &f->no_warmup, NULL, "start from fresh weights", 0, 0},
      {0}};
  _Static_assert(sizeof list <= FLAGS * sizeof *list, "FLAGS is too small");
  memcpy(out, list, sizeof list);
}

/** Sets `target` when the flag was given: flags that were not hold -1. */
static void set_real(double *target, double given) {
  if (given >= 0) *target = given;
}

/** One of a list of names. */
static dkv_status choose(int *out, const char *flag, const char *given, const char *const *names, int count) {
  for (*out = 0; *out < count; ++*out)
    if (strcmp(given, names[*out]) == 0) return DKV_OK;
  return dkv_fail(DKV_ERR_RANGE, "dualkv train: --%s is \"%.60s\", but it must be %s%s%s%s%s", flag, given, names[0],
                  count > 2 ? ", " : " or ", names[1], count > 2 ? " or " : "", count > 2 ? names[2] : "");
}

static dkv_status configure(struct dkv_training *s, const struct dkv_train_flags *f) {
  static const char *const layouts[] = {"packed", "replicated"}, *const dead[] = {"keep", "drop", "resample"};
  int layout = 0, policy = 0;
  dkv_train_config *c = &s->config;
  DKV_REQUIRE(f->task != NULL, DKV_ERR_RANGE, "dualkv train: --task is missing; tasks are sort and missing");
  DKV_TRY(dkv_task_find(&s->task, f->task));
  DKV_TRY(dkv_train_defaults(c, s->task, f->algorithm));
  DKV_TRY(choose(&layout, "layout", f->layout, layouts, 2));
  DKV_TRY(choose(&policy, "dead", f->dead, dead, 3));
  c->replicated = layout == 1;
  c->exact = f->exact;
  c->dead = (dkv_dead_policy)policy;
  c->seed = (uint64_t)f->seed;
  c->schedule.total = f->steps;
  c->groups = (int32_t)f->groups;
  c->responses = (int32_t)f->responses;
  c->groups_per_batch = (int32_t)(f->groups_per_batch < 0 ? f->groups : f->groups_per_batch);
  c->epochs = (int32_t)f->epochs;
  c->temperature = (float)f->temperature;
  c->max_tries = (int32_t)f->tries;
  c->mask_truncated = f->mask_truncated;
  c->overlong_buffer = (int32_t)f->overlong;
  if (f->max_length > 0) c->max_length = (int32_t)f->max_length;
  if (c->loss.aggregation == DKV_SEQUENCE_CONSTANT) c->loss.max_length = c->max_length;
  set_real(&c->schedule.peak, f->lr);
  set_real(&c->loss.clip_low, f->clip_low);
  set_real(&c->loss.clip_high, f->clip_high);
  set_real(&c->loss.dual_clip, f->dual_clip);
  set_real(&c->loss.kl_weight, f->kl);
  set_real(&c->loss.entropy_weight, f->entropy);
  s->warmup = dkv_warmup_defaults(s->task);
  s->warmup.seed = c->seed;
  if (f->warmup_steps >= 0) s->warmup.schedule.total = f->warmup_steps;
  set_real(&s->warmup.schedule.peak, f->warmup_lr);
  set_real(&s->warmup.noise, f->noise);
  return DKV_OK;
}

/** Flags that contradict each other. */
static dkv_status check_flags(const struct dkv_train_flags *f) {
  DKV_REQUIRE(!f->compare || f->output != NULL, DKV_ERR_RANGE,
              "dualkv train: --compare needs --output DIR for its two logs and its picture");
  DKV_REQUIRE(!f->compare || f->json == NULL, DKV_ERR_RANGE,
              "dualkv train: --compare writes DIR/packed.jsonl and DIR/replicated.jsonl; --json goes without it");
  DKV_REQUIRE(!f->compare || !f->resume, DKV_ERR_RANGE, "dualkv train: --compare cannot be resumed");
  DKV_REQUIRE(!f->resume || f->output != NULL, DKV_ERR_RANGE,
              "dualkv train: --resume needs --output DIR, the directory of the run");
  DKV_REQUIRE(f->checkpoint == NULL || f->warmup_steps < 0, DKV_ERR_RANGE,
              "dualkv train: --checkpoint is a warm start already; --warmup-steps goes without it");
  DKV_REQUIRE(!f->exact || !f->resume, DKV_ERR_RANGE, "dualkv train: --exact keeps no state, so it cannot be resumed");
  DKV_REQUIRE(!f->exact || !(f->self_check || f->check_every > 0), DKV_ERR_RANGE,
              "dualkv train: --self-check and --check-every compare float gradients; --exact computes none");
  return DKV_OK;
}

/** Appends a blank and an argument, in single quotes if a shell would read it otherwise. @return false: no room. */
static bool append_argument(char *out, size_t room, const char *argument) {
  static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:=,+-@%";
  bool bare = argument[0] != '\0' && argument[strspn(argument, plain)] == '\0';
  size_t used = strlen(out);
  if (used + 4 * strlen(argument) + 4 > room) return false;
  out[used++] = ' ';
  if (!bare) out[used++] = '\'';
  for (const char *c = argument; *c != '\0'; ++c) {
    if (*c == '\'') { /* ends the quotes, an escaped quote, quotes again */
      memcpy(out + used, "'\\'", 3);
      used += 3;
    }
    out[used++] = *c;
  }
  if (!bare) out[used++] = '\'';
  out[used] = '\0';
  return true;
}

/** The command as typed, for the sentence that says how to resume. */
static void remember(struct dkv_training *s, int argc, char *const *argv) {
  snprintf(s->command, sizeof s->command, "dualkv train");
  for (int i = 0; i < argc; ++i)
    if (strcmp(argv[i], "--resume") != 0 && !append_argument(s->command, sizeof s->command, argv[i])) break;
}

static dkv_status open_model(struct dkv_training *s) {
  dkv_model_options options = {
      .threads = (int32_t)s->flags->threads, .recompute = s->flags->recompute, .whole_last_layer = s->flags->whole};
  if (s->flags->checkpoint != NULL) return dkv_model_load(&s->model, s->flags->checkpoint, &options);
  dkv_model_config shape = dkv_train_model(s->task);
  return dkv_model_create(&s->model, &shape, (uint64_t)s->flags->seed, &options);
}

/** The log of a plain run; --compare opens its own two. */
static dkv_status open_log(struct dkv_training *s) {
  char path[1200];
  if (s->flags->compare || (s->flags->json == NULL && s->flags->output == NULL)) return DKV_OK;
  const char *file = s->flags->json != NULL ? s->flags->json : dkv_training_path(s, "metrics.jsonl", path);
  int64_t warmup = 0, step = 0;
  if (s->flags->resume) DKV_TRY(dkv_training_progress(s, &warmup, &step));
  DKV_TRY(dkv_log_open(&s->log, file, s->flags->resume, warmup, step));
  dkv_log_run(s);
  return dkv_log_check(s->log);
}

int dkv_cmd_train(int argc, char *const *argv) {
  struct dkv_train_flags f = {.algorithm = "dapo",
                              .layout = "packed",
                              .dead = "drop",
                              .seed = 1,
                              .steps = 120,
                              .repeats = 1,
                              .warmup_steps = -1,
                              .evaluate_every = 20,
                              .held_out = 128,
                              .groups = 8,
                              .responses = 32,
                              .groups_per_batch = -1,
                              .epochs = 1,
                              .tries = 4,
                              .lr = -1,
                              .temperature = 1,
                              .clip_low = -1,
                              .clip_high = -1,
                              .dual_clip = -1,
                              .kl = -1,
                              .entropy = -1,
                              .warmup_lr = -1,
                              .noise = -1,
                              .tolerance = DKV_SELF_CHECK_TOLERANCE};
  struct dkv_flag flags[FLAGS];
  list_flags(flags, &f);
  if (dkv_args_help(about, flags, argc, argv)) return DKV_EXIT_OK;
  struct dkv_training *s = calloc(1, sizeof *s);
  dkv_status status = s != NULL ? DKV_OK : dkv_fail(DKV_ERR_NOMEM, "dualkv train: no memory");
  if (status == DKV_OK) status = dkv_args_parse("train", flags, argc, argv, NULL);
  if (status == DKV_OK) status = check_flags(&f);
  if (status == DKV_OK) {
    s->flags = &f;
    snprintf(s->directory, sizeof s->directory, "%s", f.output != NULL ? f.output : "dualkv_run");
    remember(s, argc, argv);
    if (f.progress) dkv_tool_progress_always();
    status = configure(s, &f);
  }
  if (status == DKV_OK) status = open_model(s);
  if (status == DKV_OK) status = dkv_training_prepare(s);
  if (status == DKV_OK) status = open_log(s);
  dkv_training_catch_interrupt();
  int code = status == DKV_OK ? dkv_training_run(s) : dkv_tool_fail(status);
  if (s != NULL) {
    if (s->log != NULL) fclose(s->log);
    dkv_model_free(&s->model);
  }
  free(s);
  return code;
}
