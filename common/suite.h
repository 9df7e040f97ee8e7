/**
 * @file suite.h
 * @brief The laws that every attention kernel must obey, as plain functions: tests and `dualkv check` run the same.
 *
 * A law is a claim about the function, not about an implementation: packed equals fold(replicated), permuted responses
 * give permuted outputs, huge values in a sibling change nothing, ...  The suite runs each law over each kernel of a
 * backend, each storage type that the kernel takes and a table of small shapes, and calls back one line per law, kernel
 * and type.  A line that failed says on which shape and seed, in which tensor, row and index.
 *
 * Every run inside the suite, whatever the law, also demands that all outputs were written (they start as NaN), that no
 * result is NaN or infinite, and that guard zones around every buffer are untouched (they hold NaN, so reading past the
 * last row poisons the result).
 *
 * A kernel that is not available on this machine gives one skipped line with the reason; a suite in which nothing ran
 * fails.
 *
 * Read before: backend.h, execute.h.  Read next: common/suite/laws.h.
 */
#ifndef DKV_SUITE_H
#define DKV_SUITE_H

#include "common/backend.h"

DKV_BEGIN_C

/** What a check found. */
typedef enum dkv_verdict {
  DKV_PASSED, /**< the law holds */
  DKV_FAILED, /**< it does not, or the kernel reported an error */
  DKV_SKIPPED /**< the kernel cannot run here; says why */
} dkv_verdict;

/** One finished check; the strings live until the callback returns. */
typedef struct dkv_suite_line {
  const char *law;          /**< name, as in dkv_suite_laws */
  const char *backend;      /**< "cpu" */
  const dkv_kernel *kernel; /**< which kernel */
  dkv_dtype dtype;          /**< storage type of its tensors */
  dkv_verdict verdict;      /**< the outcome */
  int32_t problems;         /**< problems that were run */
  double error;             /**< largest relative error seen; 0 for a bitwise law */
  double bound;             /**< its bound; 0 for a bitwise law */
  const char *text;         /**< FAILED: shape, seed, what was wrong; SKIPPED: why; PASSED: "" */
} dkv_suite_line;

/**
 * Called once per line, on the thread that called dkv_suite_run.
 * @param[in] context the caller's
 * @param[in] line    the line
 */
typedef void (*dkv_suite_callback)(void *context, const dkv_suite_line *line);

/** A law: its name and its claim in one sentence. */
typedef struct dkv_law {
  const char *name;  /**< short, unique: "fold" */
  const char *claim; /**< "packed results equal the folded results of the replicated layout" */
} dkv_law;

/** All laws in the order in which they run; the last entry has a NULL name. */
extern const dkv_law dkv_suite_laws[];

/** What to run. Zeroed means everything. */
typedef struct dkv_suite_options {
  const char *kernel; /**< only this kernel (in whichever direction has it), NULL = all */
  const char *law;    /**< only this law, NULL = all */
  uint64_t seed;      /**< of the random problems */
} dkv_suite_options;

/** Lines by verdict. */
typedef struct dkv_suite_total {
  int32_t passed;  /**< lines that passed */
  int32_t failed;  /**< lines that failed */
  int32_t skipped; /**< lines that were skipped */
} dkv_suite_total;

/**
 * Runs the laws.
 * @param[out] total    overwritten; the suite holds when failed == 0 and passed > 0
 * @param[in]  backend  whose kernels are judged
 * @param[in]  against  whose default kernels are the answer, usually "ref"
 * @param[in]  options  NULL = everything
 * @param[in]  callback may be NULL
 * @param[in]  context  handed to the callback
 * @return DKV_OK, also when laws fail; DKV_ERR_NULL; DKV_ERR_RANGE (no such law or kernel); DKV_ERR_NOMEM
 */
dkv_status dkv_suite_run(dkv_suite_total *total, const dkv_backend *backend, const dkv_backend *against,
                         const dkv_suite_options *options, dkv_suite_callback callback, void *context);

DKV_END_C
#endif
