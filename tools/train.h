/**
 * @file train.h
 * @brief What the files of `dualkv train` share: the flags, a session, and the steps from flags to a trained model.
 *
 *     cmd_train.c       flags -> configuration
 *     train_session.c   warm-up, reinforcement learning, saving, Ctrl-C
 *     train_check.c     steps computed both ways
 *     train_log.c       metrics as JSON lines
 *     train_show.c      what people see: planned memory, progress, samples
 *     train_compare.c   packed and replicated from the same start
 *     curves.c          JSON lines -> a picture
 *
 * Read before: tool.h, common/rl/trainer.h, common/rl/warmup.h.  Read next: cmd_train.c.
 */
#ifndef DKV_TOOLS_TRAIN_H
#define DKV_TOOLS_TRAIN_H

#include <stdio.h>

#include "common/rl/evaluate.h"
#include "common/rl/self_check.h"
#include "common/rl/trainer.h"
#include "common/rl/warmup.h"
#include "tools/tool.h"

/** Exit code of a run that Ctrl-C ended: 128 + SIGINT, as shells have it. */
enum { DKV_EXIT_INTERRUPTED = 130 };

/** The command line. */
struct dkv_train_flags {
  const char *task, *algorithm, *layout, *dead; /**< names */
  const char *checkpoint;                       /**< directory to start from, or NULL */
  const char *output;                           /**< directory of the run, or NULL: nothing is kept */
  const char *json;                             /**< metrics, or NULL: output/metrics.jsonl */
  int64_t seed, threads;
  int64_t steps, warmup_steps, evaluate_every, held_out;
  int64_t repeats, check_every;
  int64_t groups, responses, groups_per_batch, epochs, max_length, tries, overlong;
  double lr, temperature, clip_low, clip_high, dual_clip, kl, entropy;
  double warmup_lr, noise, tolerance;
  bool resume, self_check, compare, no_warmup, mask_truncated, recompute, progress, exact, whole;
};

/** A run in progress. */
struct dkv_training {
  const struct dkv_train_flags *flags;
  const dkv_task *task;
  dkv_model model;
  dkv_train_config config;
  dkv_warmup_config warmup;
  dkv_trainer *trainer;        /**< during reinforcement learning */
  FILE *log;                   /**< JSON lines, or NULL */
  char directory[1024];        /**< where states go: the output, or a default when Ctrl-C must save */
  char command[1024];          /**< the command line, for the sentence that says how to resume */
  dkv_status status;           /**< what went wrong inside a report */
  dkv_evaluation before, last; /**< held-out accuracy at the start and latest */
  bool saved;                  /**< a state of this process is on the disk */
  double first_update_seconds; /**< sum over this run's steps */
  int64_t rows, replicated_rows;
  int64_t steps_here, updates; /**< steps of this process, and those that changed the weights */
  dkv_train_stats *kept;       /**< [steps] every step's numbers, or NULL: not kept */
  int64_t checked;             /**< steps computed both ways by --check-every */
  double worst_loss;           /**< largest difference of their losses */
  double worst_gradient;       /**< largest relative difference of a tensor's gradient */
  char worst_parameter[72];    /**< which tensor */
};

/* --- train_session.c */

/** From the session's model to the end: warm-up if asked for, self-check, reinforcement learning, saving.
 * @param[in,out] session configured, with a model. @return an exit code. */
int dkv_training_run(struct dkv_training *session);

/** Checks that the output and --resume fit together; makes the directory. @param[in,out] session configured. @return
 * DKV_OK; DKV_ERR_IO */
dkv_status dkv_training_prepare(struct dkv_training *session);

/** How far a saved run got. @param[in] session prepared. @param[out] warmup,step steps done of each phase. @return
 * DKV_OK; what the reader said */
dkv_status dkv_training_progress(const struct dkv_training *session, int64_t *warmup, int64_t *step);

/** The warm-up. @param[in,out] session its model learns. @return DKV_OK, also when interrupted; what a step said. */
dkv_status dkv_training_warm_up(struct dkv_training *session);

/** Reinforcement learning from the model as it is. @param[in,out] session its model learns. @return as above. */
dkv_status dkv_training_learn(struct dkv_training *session);

/** Path of a file in the session's directory. @param[in] session the run. @param[in] name file. @param[out] out room
 * for 1200 bytes. @return out. */
const char *dkv_training_path(const struct dkv_training *session, const char *name, char out[1200]);

/** Lets Ctrl-C end the run between two steps. */
void dkv_training_catch_interrupt(void);
/** Was Ctrl-C pressed? @return yes or no. */
bool dkv_training_interrupted(void);

/* --- train_check.c */

/** The next step's gradient both ways, --repeats times, with a paragraph about it. @param[in,out] session with a
 * trainer.
 * @return DKV_OK; DKV_ERR_MISMATCH; what a step said */
dkv_status dkv_training_self_check(struct dkv_training *session);

/** --check-every: the same once, in silence, kept for the end. @param[in,out] session with a trainer. @return as above.
 */
dkv_status dkv_training_check_step(struct dkv_training *session);

/** What --check-every found. @param[in] session after learning. */
void dkv_training_report_checks(const struct dkv_training *session);

/* --- train_log.c */

/**
 * Opens the file of metrics. A resumed run keeps the lines of the steps that are done and drops later ones.
 * @param[out] out    the open file
 * @param[in]  path   the file
 * @param[in]  resume continue an existing file
 * @param[in]  warmup_step,step first steps that will be logged again
 * @return DKV_OK; DKV_ERR_IO
 */
dkv_status dkv_log_open(FILE **out, const char *path, bool resume, int64_t warmup_step, int64_t step);
/** The first line: what ran where. @param[in] session the run. */
void dkv_log_run(const struct dkv_training *session);
/** Have all lines been written? @param[in] log file or NULL. @return DKV_OK; DKV_ERR_IO, as on a full disk */
dkv_status dkv_log_check(FILE *log);
/** A step of the warm-up. @param[in] log file or NULL. @param[in] stats its numbers. */
void dkv_log_warmup(FILE *log, const dkv_warmup_stats *stats);
/** A self-check and its times. @param[in] session the run. @param[in] step steps done before it. @param[in] found the
 * last check. @param[in] seconds [count][2] packed and replicated. @param[in] count repeats. */
void dkv_log_self_check(const struct dkv_training *session, int64_t step, const dkv_self_check *found,
                        double seconds[][2], int64_t count);
/** A step. @param[in] session the run. @param[in] stats its numbers. */
void dkv_log_step(const struct dkv_training *session, const dkv_train_stats *stats);
/** A held-out evaluation. @param[in] session the run. @param[in] step steps done. @param[in] seconds spent in steps.
 * @param[in] result its numbers. */
void dkv_log_evaluation(const struct dkv_training *session, int64_t step, double seconds, const dkv_evaluation *result);

/* --- train_show.c */

/** Planned activation memory of a micro-batch, packed and replicated. @param[in] session the run. @return a status. */
dkv_status dkv_show_memory(const struct dkv_training *session);
/** Answers to the first held-out prompts. @param[in] model model. @param[in] task task. @param[in] title heading.
 * @param[in] count prompts. @param[in] temperature,greedy,seed as a sampler has them. @return a status. */
dkv_status dkv_show_samples(const dkv_model *model, const dkv_task *task, const char *title, int32_t count,
                            double temperature, bool greedy, uint64_t seed);
/** Heading of the lines of dkv_show_step. */
void dkv_show_heading(void);
/** One line for a step. @param[in] stats its numbers. @param[in] held_out held-out evaluation, or NULL. */
void dkv_show_step(const dkv_train_stats *stats, const dkv_evaluation *held_out);

/* --- train_compare.c */

/** Both layouts from the same start. @param[in,out] session configured, its model warmed up. @return a status. */
dkv_status dkv_training_compare(struct dkv_training *session);

/* --- train_demo.c */

/** Reinforcement learning from the stored warm start, for the tour. @return DKV_OK, also when it is not there; what the
 * trainer said. */
dkv_status dkv_demo_train(void);

/* --- curves.c */

/**
 * Draws accuracy by step and by second from files of metrics, as SVG.
 * @param[in] out   file to write, whole or not at all
 * @param[in] title what the picture says above
 * @param[in] paths [count] JSON-lines files, a curve each, named after their layout, algorithm and seed where they
 * differ
 * @param[in] count 1 to 8
 * @return DKV_OK; DKV_ERR_IO; DKV_ERR_FORMAT (no steps in a file); DKV_ERR_RANGE
 */
dkv_status dkv_curves_draw(const char *out, const char *title, const char *const *paths, int32_t count);

#endif
