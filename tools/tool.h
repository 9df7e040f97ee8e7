/**
 * @file tool.h
 * @brief What the commands of `dualkv` share: their table, exit codes, output helpers, progress, and the choice of a
 * layout and of kernels from flags.
 *
 * Results go to stdout, sentences about what went wrong and progress to stderr.  Exit codes: 0 all is well, 1 a
 * comparison failed, 2 a bad flag, a bad file, an impossible shape or a backend that is not there.
 *
 * Read next: dualkv.c, args.h, then any cmd_*.c.
 */
#ifndef DKV_TOOLS_TOOL_H
#define DKV_TOOLS_TOOL_H

#include "common/execute.h"
#include "common/compare.h"
#include "tools/args.h"

/** Exit codes of every command. */
enum dkv_exit { DKV_EXIT_OK = 0, DKV_EXIT_MISMATCH = 1, DKV_EXIT_USAGE = 2 };

/** One command: a line of the table in dualkv.c. */
struct dkv_command {
  const char *name;                        /**< what is typed */
  const char *summary;                     /**< one line of `dualkv --help` */
  int (*run)(int argc, char *const *argv); /**< gets what follows the name; returns an exit code */
};

/* The commands; each answers --help itself. */

/** The tour. @param[in] argc,argv what follows the command's name. @return an exit code. */
int dkv_cmd_demo(int argc, char *const *argv);
/** Draws a layout. @param[in] argc,argv what follows the command's name. @return an exit code. */
int dkv_cmd_layout(int argc, char *const *argv);
/** Counts packed and replicated. @param[in] argc,argv what follows the command's name. @return an exit code. */
int dkv_cmd_cost(int argc, char *const *argv);
/** Counts what kernels load. @param[in] argc,argv what follows the command's name. @return an exit code. */
int dkv_cmd_count(int argc, char *const *argv);
/** Runs a case file, writes its results. @param[in] argc,argv what follows the command's name. @return an exit code. */
int dkv_cmd_attention(int argc, char *const *argv);
/** Compares results with answers; without a case, runs the laws. @param[in] argc,argv what follows the command's name.
 * @return an exit code. */
int dkv_cmd_check(int argc, char *const *argv);
/** Checks, then times packed and replicated. @param[in] argc,argv what follows the command's name. @return an exit
 * code. */
int dkv_cmd_bench(int argc, char *const *argv);
/** Lists kernels.def and what runs here. @param[in] argc,argv what follows the command's name. @return an exit code. */
int dkv_cmd_kernels(int argc, char *const *argv);
/** Reinforcement learning. @param[in] argc,argv what follows the command's name. @return an exit code. */
int dkv_cmd_train(int argc, char *const *argv);
/** Answers of a trained model. @param[in] argc,argv what follows the command's name. @return an exit code. */
int dkv_cmd_sample(int argc, char *const *argv);
/** A picture of training runs. @param[in] argc,argv what follows the command's name. @return an exit code. */
int dkv_cmd_plot(int argc, char *const *argv);

/* --- output.c: sentences, numbers, colour, progress ------------------------------------------------------------------
 */

/** Prints the sentence of the latest failure on stderr. @param[in] status that failure. @return the exit code it
 * deserves. */
int dkv_tool_fail(dkv_status status);

/** Colours of the terminal; all strings are empty when stdout is no terminal or NO_COLOR is set. */
struct dkv_style {
  const char *title; /**< headings */
  const char *good;  /**< a check that passed */
  const char *bad;   /**< a check that failed */
  const char *dim;   /**< side remarks */
  const char *off;   /**< ends any of them */
};

/** The style for stdout. @return a static struct. */
const struct dkv_style *dkv_tool_style(void);

/**
 * A count with spaces between thousands, "1 048 576".
 * @param[out] out    room for 32 bytes
 * @param[in]  number the count
 * @return out
 */
const char *dkv_tool_count(char out[32], int64_t number);

/**
 * A size in a power of 1024, "3.4 GiB".
 * @param[out] out   room for 32 bytes
 * @param[in]  bytes the size
 * @return out
 */
const char *dkv_tool_bytes(char out[32], double bytes);

/**
 * Shows what is being done, on stderr, replacing the last such line: when stderr is a terminal, or
 * dkv_tool_progress_always was called. Silent otherwise, so that logs stay clean.
 * @param[in] format printf format of a short line
 */
void dkv_tool_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** Shows progress even when stderr is no terminal: the flag --progress. */
void dkv_tool_progress_always(void);

/** Erases the progress line. */
void dkv_tool_progress_end(void);

/** The commit that this program was built from, "-dirty" behind it when files had changed. @return a static string. */
const char *dkv_tool_commit(void);

/** Today's UTC date and time, "2026-01-31T12:00:00Z". @param[out] out room for 32 bytes. @return out. */
const char *dkv_tool_date(char out[32]);

/* --- choose.c: a layout, a backend and kernels from flags ------------------------------------------------------------
 */

/** Flags that describe a layout; see DKV_LAYOUT_FLAGS. */
struct dkv_layout_flags {
  int64_t prompt;              /**< P; -1: not given */
  int64_t responses;           /**< N; -1: not given */
  int64_t response_length;     /**< R; -1: not given */
  const char *lengths;         /**< "R1,R2,..." or NULL */
  struct dkv_text_list groups; /**< each "P:R1,R2,..." */
  const char *tree;            /**< "parent:length,..." or NULL */
};

/** A zeroed set: nothing given. */
#define DKV_NO_LAYOUT_FLAGS                                                                                            \
  { -1, -1, -1, NULL, {0}, NULL }

/** Rows of a flag table for the layout in `set`. */
#define DKV_LAYOUT_FLAGS(set)                                                                                          \
  {"prompt", DKV_FLAG_INT, &(set).prompt, "P", "rows of the prompt", 0, 2147480000},                                   \
      {"responses", DKV_FLAG_INT, &(set).responses, "N", "number of responses", 0, 1 << 26},                           \
      {"response-length", DKV_FLAG_INT, &(set).response_length, "R", "rows of every response", 0, 2147480000}, {       \
    "lengths", DKV_FLAG_TEXT, &(set).lengths, "R1,R2,...", "rows of each response, instead of N and R", 0, 0           \
  }

/** Rows of a flag table for several groups and for trees, after DKV_LAYOUT_FLAGS. */
#define DKV_FOREST_FLAGS(set)                                                                                          \
  {"group", DKV_FLAG_LIST, &(set).groups, "P:R1,R2,...", "one group; repeat it for several", 0, 0}, {                  \
    "tree", DKV_FLAG_TEXT, &(set).tree, "PARENT:LEN,...", "any forest, depth first; -1 is no parent", 0, 0             \
  }

/** Was any of the layout flags given? @param[in] flags the set. @return yes or no. */
bool dkv_layout_flags_given(const struct dkv_layout_flags *flags);

/**
 * Builds the layout that the flags describe.
 * @param[out] out     overwritten; owned by the caller; zeroed on failure
 * @param[in]  command name of the command, for sentences
 * @param[in]  flags   the set
 * @return DKV_OK; DKV_ERR_RANGE (flags missing or contradicting each other); what the constructor said
 */
dkv_status dkv_layout_from_flags(dkv_layout *out, const char *command, const struct dkv_layout_flags *flags);

/**
 * The layout of the one case file in `operands`, or, when there is none, of the flags.
 * @param[out] out      overwritten; owned by the caller; zeroed on failure
 * @param[in]  command  name of the command, for sentences
 * @param[in]  operands files of the command line
 * @param[in]  flags    the set
 * @return DKV_OK; DKV_ERR_RANGE (both or neither, two files); what the reader or the constructor said
 */
dkv_status dkv_tool_layout(dkv_layout *out, const char *command, const struct dkv_text_list *operands,
                           const struct dkv_layout_flags *flags);

/** Flags that say where and how to compute; see DKV_RUN_FLAGS. */
struct dkv_run_flags {
  const char *backend; /**< "ref", "cpu" or "gpu" */
  const char *kernel;  /**< a kernel's name or NULL */
  const char *dtype;   /**< "f32", ... or NULL: as the case has it */
  int64_t threads;     /**< 0 = all */
  bool deterministic;  /**< repeatable bits */
  bool progress;       /**< show progress even in a log */
};

/** Rows of a flag table for `set`. */
#define DKV_RUN_FLAGS(set)                                                                                             \
  {"backend", DKV_FLAG_TEXT, &(set).backend, "NAME", "ref, cpu or gpu", 0, 0},                                         \
      {"kernel", DKV_FLAG_TEXT, &(set).kernel, "NAME", "a kernel of `dualkv kernels`; default: the fastest", 0, 0},    \
      {"dtype", DKV_FLAG_TEXT, &(set).dtype, "TYPE", "storage type: f32, bf16 or f16", 0, 0},                          \
      {"deterministic", DKV_FLAG_SWITCH, &(set).deterministic, NULL, "the same bits on every run", 0, 0},              \
      {"threads", DKV_FLAG_INT, &(set).threads, "N", "CPU threads; default: all", 0, 4096}, {                          \
    "progress", DKV_FLAG_SWITCH, &(set).progress, NULL, "show progress even when stderr is no terminal", 0, 0          \
  }

/** The storage type that --dtype names. @param[out] out overwritten. @param[in] name f32, bf16 or f16. @return a
 * status. */
dkv_status dkv_tool_dtype(dkv_dtype *out, const char *name);

/**
 * Loads a case file, its inputs rounded to another storage type when one is named.
 * @param[out] out        overwritten; owned by the caller; zeroed on failure
 * @param[in]  path       the file
 * @param[in]  dtype_name f32, bf16, f16, or NULL: as stored
 * @return DKV_OK; what the reader said
 */
dkv_status dkv_tool_problem(dkv_problem *out, const char *path, const char *dtype_name);

/** The last part of a path. @param[in] path a path. @return a pointer into it. */
const char *dkv_tool_base_name(const char *path);

/**
 * Turns the flags into options for dkv_execute.  A kernel's name counts for each direction that has it; the other
 * direction takes its default.
 * @param[out] out     overwritten
 * @param[in]  backend where
 * @param[in]  flags   the set
 * @return DKV_OK; DKV_ERR_RANGE when neither direction has a kernel of that name
 */
dkv_status dkv_tool_options(dkv_execute_options *out, const dkv_backend *backend, const struct dkv_run_flags *flags);

/* --- report.c, judge.c: verdicts on tensors
 * -----------------------------------------------------------------------------------
 */

/** Verdicts so far. */
struct dkv_tally {
  int32_t passed; /**< tensors, or lines of the suite */
  int32_t failed; /**< likewise */
};

/** Prints the heading of the lines of dkv_report. */
void dkv_report_heading(void);

/**
 * Prints a line for one tensor and counts it.
 * @param[in,out] tally   counts
 * @param[in]     subject what was judged: "plain_group"
 * @param[in]     kernel  who computed it: "cpu tiled"
 * @param[in]     tensor  "dq"
 * @param[in]     verdict the comparison
 */
void dkv_report(struct dkv_tally *tally, const char *subject, const char *kernel, const char *tensor,
                const dkv_comparison *verdict);

/**
 * Prints "N passed, N failed".
 * @param[in] tally counts
 * @return the exit code: 1 when something failed or nothing was judged
 */
int dkv_report_total(const struct dkv_tally *tally);

/**
 * Compares one result with an answer.
 * @param[out] out     overwritten
 * @param[in]  problem whose result it is
 * @param[in]  which   which of the five
 * @param[in]  x,x_dtype what was computed, and its type
 * @param[in]  answer  the answers
 * @param[in]  slack   factor on the bound: 1 against a definition, 2 between two kernels that may each be off
 * @return what dkv_compare said
 */
dkv_status dkv_judge(dkv_comparison *out, const dkv_problem *problem, dkv_result which, const void *x,
                     dkv_dtype x_dtype, const dkv_results *answer, double slack);

/**
 * dkv_judge by the nearer of two right answers, and when they are exact also the question whether one element stands
 * alone (see common/outlier.h).
 * @param[out] out     overwritten; passed is false and stands_alone true when one does
 * @param[in]  problem,which,x,x_dtype,answer,slack as dkv_judge
 * @param[in]  stored  gradients for the stored o (dkv_stored_gradients), which are right answers too, or NULL
 * @return what dkv_compare said
 */
dkv_status dkv_judge_closely(dkv_comparison *out, const dkv_problem *problem, dkv_result which, const void *x,
                             dkv_dtype x_dtype, const dkv_results *answer, const dkv_results *stored, double slack);

/**
 * The exact gradients for an o that was rounded before the backward read it: delta = <dout, o> inherits that rounding,
 * in all columns of a row at once, which is most of the noise of dq and dk in 16-bit types.
 * @param[out] out     overwritten; dq, dk, dv in f64, the others NULL; owned by the caller; zeroed on failure
 * @param[in]  problem with dout
 * @param[in]  o,dtype the stored output and its type
 * @param[in]  answer  exact results, for lse
 * @return DKV_OK; DKV_ERR_NOMEM; what the reference said
 */
dkv_status dkv_stored_gradients(dkv_results *out, const dkv_problem *problem, const void *o, dkv_dtype dtype,
                                const dkv_results *answer);

/**
 * The exact results of a problem by the reference in double on the same (rounded) inputs.
 * @param[out] out     overwritten; owned by the caller; zeroed on failure
 * @param[in]  problem the problem
 * @return DKV_OK; DKV_ERR_NOMEM; what the reference said
 */
dkv_status dkv_exact_results(dkv_results *out, const dkv_problem *problem);

#endif
