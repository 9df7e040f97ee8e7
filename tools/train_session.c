/**
 * @file train_session.c
 * @brief A run from start to end: warm-up, reinforcement learning, saving, and Ctrl-C at any time.
 *
 * A run's directory holds warmup.state or train.state (safetensors files from which it continues bit for bit), and in
 * the end config.json and model.safetensors.  States are saved at every evaluation, at the end, and on Ctrl-C.
 *
 * Read before: train.h.  Read next: train_compare.c.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/train.h"

static volatile sig_atomic_t interrupted;

static void note_interrupt(int number) {
  (void)number;
  interrupted = 1;
}

void dkv_training_catch_interrupt(void) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = note_interrupt;
  action.sa_flags = (int)SA_RESETHAND | SA_RESTART; /* a second Ctrl-C ends the program at once; no write is cut */
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
}

bool dkv_training_interrupted(void) { return interrupted != 0; }

const char *dkv_training_path(const struct dkv_training *s, const char *name, char out[1200]) {
  snprintf(out, 1200, "%s/%s", s->directory, name);
  return out;
}

static dkv_status make_directory(const char *path) {
  DKV_REQUIRE(mkdir(path, 0777) == 0 || errno == EEXIST, DKV_ERR_IO, "cannot make the directory %s: %s", path,
              strerror(errno));
  return DKV_OK;
}

static bool exists(const struct dkv_training *s, const char *name) {
  char path[1200];
  return access(dkv_training_path(s, name, path), F_OK) == 0;
}

/** Makes the directory that a state goes to. Ctrl-C in a run without --output takes a name that is free: whatever
 * stands under the first one may be somebody's only state. */
static dkv_status claim_directory(struct dkv_training *s) {
  if (s->flags->output != NULL) return make_directory(s->directory);
  for (int number = 1; number < 1000; ++number) {
    snprintf(s->directory, sizeof s->directory, number > 1 ? "dualkv_run_%d" : "dualkv_run", number);
    if (mkdir(s->directory, 0777) == 0) return DKV_OK;
    if (errno != EEXIST) break;
  }
  return dkv_fail(DKV_ERR_IO, "cannot make the directory %s: %s", s->directory, strerror(errno));
}

/** Has the run a state that could be continued? A comparison has two, an exact run one in double. */
static bool has_state(const struct dkv_training *s) { return !s->flags->compare && !s->flags->exact; }

/** Is the state to be written now? */
static bool keeps_state(const struct dkv_training *s) {
  return has_state(s) && (s->flags->output != NULL || interrupted);
}

/** Says where the run stopped and how it goes on. */
static int stopped(const struct dkv_training *s, const char *where) {
  dkv_tool_progress_end();
  bool named = s->flags->output != NULL;
  if (!has_state(s)) {
    printf("\nStopped %s.  %s keeps no state: it starts again with\n  %s\n", where,
           s->flags->exact ? "An exact run" : "A comparison", s->command);
    return DKV_EXIT_INTERRUPTED;
  }
  printf("\nStopped %s; saved in %s.  Continue with:\n  %s%s%s --resume\n", where, s->directory, s->command,
         named ? "" : " --output ", named ? "" : s->directory);
  return DKV_EXIT_INTERRUPTED;
}

dkv_status dkv_training_warm_up(struct dkv_training *s) {
  dkv_warmup w;
  char path[1200];
  dkv_warmup_stats stats = {0};
  DKV_TRY(dkv_warmup_open(&w, &s->model, &s->warmup));
  dkv_training_path(s, "warmup.state", path);
  dkv_status status = s->flags->resume && exists(s, "warmup.state") ? dkv_warmup_load(&w, path) : DKV_OK;
  if (status == DKV_OK && w.step < s->warmup.schedule.total)
    printf("Warm-up: %lld supervised steps of %d demonstrations with %.1f mistakes each\n",
           (long long)s->warmup.schedule.total, s->warmup.examples, s->warmup.noise);
  while (status == DKV_OK && w.step < s->warmup.schedule.total && !interrupted) {
    status = dkv_warmup_step(&w, &stats);
    if (status != DKV_OK) break;
    if (stats.step % 10 == 0 || w.step == s->warmup.schedule.total) dkv_log_warmup(s->log, &stats);
    status = dkv_log_check(s->log);
    dkv_tool_progress("warm-up %lld of %lld: loss %.3f", (long long)w.step, (long long)s->warmup.schedule.total,
                      stats.loss);
    if (w.step % 100 == 0 || w.step == s->warmup.schedule.total)
      printf("  step %4lld  loss %.4f  %6.1f s\n", (long long)w.step, stats.loss, stats.total_seconds);
    fflush(stdout);
  }
  dkv_tool_progress_end();
  if (status == DKV_OK && keeps_state(s)) {
    status = claim_directory(s);
    if (status == DKV_OK) status = dkv_warmup_save(&w, dkv_training_path(s, "warmup.state", path));
    s->saved = status == DKV_OK;
  }
  dkv_warmup_close(&w);
  return status;
}

static dkv_status save_state(struct dkv_training *s) {
  char path[1200];
  DKV_TRY(claim_directory(s));
  DKV_TRY(dkv_trainer_save(s->trainer, dkv_training_path(s, "train.state", path)));
  s->saved = true;
  return DKV_OK;
}

static dkv_status evaluate(struct dkv_training *s, int64_t step, dkv_evaluation *out) {
  dkv_evaluate_config config = dkv_evaluate_defaults(s->task);
  config.prompts = (int32_t)s->flags->held_out;
  config.temperature = s->config.temperature;
  config.max_length = s->config.max_length;
  DKV_TRY(dkv_evaluate(out, &s->model, &config));
  s->last = *out;
  dkv_log_evaluation(s, step, s->trainer->seconds, out);
  return DKV_OK;
}

/** After every step: the log, the lines that people see, evaluations, states. */
static bool report(void *user, const dkv_train_stats *stats) {
  struct dkv_training *s = user;
  int64_t done = stats->step + 1, every = s->flags->evaluate_every, total = s->config.schedule.total;
  bool asks = every > 0 && (done % every == 0 || done == total);
  dkv_evaluation result;
  s->first_update_seconds += stats->update_seconds;
  s->rows += stats->rows;
  s->replicated_rows += stats->replicated_rows;
  if (s->kept != NULL) s->kept[stats->step] = *stats;
  dkv_log_step(s, stats);
  s->updates += stats->updated;
  s->steps_here += 1;
  double left = (stats->rollout_seconds + stats->update_seconds) * (double)(total - done);
  dkv_tool_progress("step %lld of %lld: reward %.3f, accuracy %.3f, %.0f tokens/s, about %.0f s to go", (long long)done,
                    (long long)total, stats->reward, stats->accuracy, stats->tokens_per_second, left);
  if (asks) s->status = evaluate(s, done, &result);
  if (s->status == DKV_OK) s->status = dkv_log_check(s->log);
  if (s->status == DKV_OK && asks && s->flags->output != NULL && has_state(s)) s->status = save_state(s);
  if (s->status == DKV_OK && (asks || done % 10 == 0 || done == 1)) {
    dkv_tool_progress_end();
    dkv_show_step(stats, asks ? &result : NULL);
  }
  int64_t check = s->flags->check_every;
  if (s->status == DKV_OK && check > 0 && done % check == 0 && done < total) s->status = dkv_training_check_step(s);
  return s->status == DKV_OK && !interrupted;
}

dkv_status dkv_training_learn(struct dkv_training *s) {
  dkv_trainer trainer;
  char path[1200];
  int64_t total = s->config.schedule.total;
  DKV_TRY(dkv_trainer_open(&trainer, &s->model, &s->config));
  s->trainer = &trainer;
  s->status = DKV_OK;
  dkv_status status = DKV_OK;
  if (s->flags->resume && exists(s, "train.state"))
    status = dkv_trainer_load(&trainer, dkv_training_path(s, "train.state", path));
  if (status == DKV_OK && trainer.step > 0)
    printf("Continuing after step %lld of %lld\n\n", (long long)trainer.step, (long long)total);
  if (status == DKV_OK && s->flags->self_check) status = dkv_training_self_check(s);
  if (status == DKV_OK && s->flags->check_every > 0 && trainer.step < total) status = dkv_training_check_step(s);
  if (status == DKV_OK && trainer.step == 0 && s->flags->evaluate_every > 0) {
    status = evaluate(s, 0, &s->before);
    if (status == DKV_OK)
      printf("Held out, before: sampled accuracy %.3f, greedy %.3f, at least one of four right %.3f\n\n",
             s->before.sampled, s->before.greedy, s->before.pass);
  }
  if (status == DKV_OK && trainer.step < total) {
    dkv_show_heading();
    status = dkv_trainer_run(&trainer, total, report, s);
  }
  if (status == DKV_OK) status = s->status;
  dkv_tool_progress_end();
  if (status == DKV_OK && s->checked > 0) dkv_training_report_checks(s);
  if (status == DKV_OK && keeps_state(s)) status = save_state(s);
  dkv_trainer_close(&trainer);
  s->trainer = NULL;
  return status;
}

/** The last words: what was learnt, and where it is. */
static dkv_status finish(struct dkv_training *s) {
  bool learnt = s->config.schedule.total > 0;
  if (s->flags->evaluate_every > 0 && learnt)
    printf("\nHeld out, after: sampled accuracy %.3f, greedy %.3f, at least one of four right %.3f\n\n",
           s->last.sampled, s->last.greedy, s->last.pass);
  if (s->steps_here > 0 && s->updates == 0)
    printf("\nNothing was learnt: in none of %lld steps had any group both right and wrong answers%s.\nStart from a "
           "model that sometimes succeeds, or take more --responses%s.\n",
           (long long)s->steps_here, s->config.mask_truncated ? " that were not cut off" : "",
           s->config.max_length < s->task->max_response ? ", or a longer --max-length" : "");
  if (learnt) printf("%s", s->flags->evaluate_every > 0 && s->updates > 0 ? "" : "\n");
  if (learnt) DKV_TRY(dkv_show_samples(&s->model, s->task, "Samples after", 3, s->flags->temperature, false, 1));
  if (s->flags->output == NULL) return DKV_OK;
  DKV_TRY(dkv_model_save(&s->model, s->directory, DKV_F32));
  printf("Saved in %s; try: dualkv sample --task %s --checkpoint %s\n", s->directory, s->task->name, s->directory);
  return DKV_OK;
}

dkv_status dkv_training_prepare(struct dkv_training *s) {
  DKV_TRY(dkv_train_config_check(&s->config, &s->model));
  bool holds = exists(s, "train.state") || exists(s, "warmup.state");
  DKV_REQUIRE(!s->flags->resume || holds, DKV_ERR_IO, "dualkv train: %s holds no run that could be resumed",
              s->directory);
  DKV_REQUIRE(!s->flags->resume || exists(s, "train.state") || !(s->flags->no_warmup || s->flags->checkpoint),
              DKV_ERR_RANGE, "dualkv train: %s holds a warm-up, which %s would throw away; resume without it",
              s->directory, s->flags->no_warmup ? "--no-warmup" : "--checkpoint");
  if (s->flags->output == NULL) return DKV_OK;
  DKV_REQUIRE(s->flags->resume || !holds, DKV_ERR_IO,
              "dualkv train: %s already holds a run; go on with --resume, or name another --output", s->directory);
  bool model = exists(s, "model.safetensors") || exists(s, "model.safetensors.index.json") || exists(s, "config.json");
  DKV_REQUIRE(s->flags->resume || !model, DKV_ERR_IO,
              "dualkv train: %s already holds a model, which this run would replace; name another --output",
              s->directory);
  return make_directory(s->directory);
}

/** Steps done according to one state file; 0 when there is none. */
static dkv_status read_steps(const struct dkv_training *s, const char *name, int64_t *steps) {
  char path[1200];
  dkv_safetensors file;
  *steps = 0;
  if (!exists(s, name)) return DKV_OK;
  DKV_TRY(dkv_safetensors_open(&file, dkv_training_path(s, name, path)));
  const dkv_tensor *counters = dkv_safetensors_find(&file, "run.counters");
  if (counters != NULL && counters->bytes >= 8) memcpy(steps, counters->data, 8);
  dkv_safetensors_close(&file);
  return DKV_OK;
}

dkv_status dkv_training_progress(const struct dkv_training *s, int64_t *warmup, int64_t *step) {
  DKV_TRY(read_steps(s, "warmup.state", warmup));
  return read_steps(s, "train.state", step);
}

/** Was Ctrl-C pressed in time for what it promises? After the last save it changes nothing. */
static bool ends_here(const struct dkv_training *s) { return interrupted && (s->saved || !has_state(s)); }

int dkv_training_run(struct dkv_training *s) {
  bool learning = s->flags->resume && exists(s, "train.state");
  dkv_status status = dkv_show_memory(s);
  if (status == DKV_OK && !learning && !s->flags->no_warmup && s->flags->checkpoint == NULL) {
    status = dkv_training_warm_up(s);
    if (status == DKV_OK && ends_here(s)) return stopped(s, "in the warm-up");
  }
  if (status == DKV_OK)
    status = dkv_show_samples(&s->model, s->task, learning ? "Samples of the warm start" : "Samples before", 3,
                              s->flags->temperature, false, 1);
  if (status == DKV_OK) status = s->flags->compare ? dkv_training_compare(s) : dkv_training_learn(s);
  if (status == DKV_OK && ends_here(s)) return stopped(s, "between two steps");
  if (status == DKV_OK) status = finish(s);
  return status == DKV_OK ? DKV_EXIT_OK : dkv_tool_fail(status);
}
