/**
 * @file laws.h
 * @brief Inside the suite: what a law gets, and the few moves from which laws are written.
 *
 * A law is a function `void law(dkv_check *check)`.  It makes problems, runs the kernel under test on them with
 * dkv_check_run, and compares with dkv_check_near or dkv_check_same.  Every move returns false once the check has
 * failed (or memory ran out), after writing down why, so a law reads as a chain of moves.
 *
 * Read before: suite.h.  Read next: laws_layout.c, rig.c.
 */
#ifndef DKV_SUITE_LAWS_H
#define DKV_SUITE_LAWS_H

#include "common/problem.h"
#include "common/suite.h"

/** One line of the suite while it is being worked out. */
typedef struct dkv_check {
  const dkv_backend *backend; /**< under test */
  const dkv_backend *against; /**< the answer */
  const dkv_kernel *kernel;   /**< under test */
  dkv_dtype dtype;            /**< storage type under test */
  uint64_t seed;              /**< of all random values */
  char where[192];            /**< the problem at hand: shape, heads, seed */
  int32_t problems;           /**< problems run so far */
  double error;               /**< the largest error so far, as a share of its bound: error / bound decides */
  double bound;               /**< the bound of that error */
  double slack;      /**< added to the bounds: what f32 scores of this size cannot do better, see dkv_law_scores */
  bool failed;       /**< the law is broken */
  dkv_status status; /**< anything but DKV_OK stops the suite: memory, or `against` itself fails */
  char text[640];    /**< why it failed */
} dkv_check;

/** Query heads, key heads, head size. */
typedef struct dkv_heads {
  int32_t heads;    /**< H */
  int32_t kv_heads; /**< Hkv */
  int32_t head_dim; /**< D */
} dkv_heads;

/** How dkv_check_run calls the kernel. Zeroed: once, all threads, not asked to be deterministic. */
typedef struct dkv_manner {
  bool deterministic; /**< see dkv_attention */
  int32_t threads;    /**< see dkv_attention */
  int32_t repeats;    /**< further runs into the same, already written buffers */
} dkv_manner;

/** Number of named layouts. */
int32_t dkv_suite_layout_count(void);

/**
 * Builds a named layout: hand-sized, tile edges, ragged, empty, trees, many one-token responses, random forests.
 * @param[out] out   overwritten
 * @param[out] name  its name, static
 * @param[in]  index 0 to dkv_suite_layout_count() - 1
 * @param[in]  seed  of the random ones
 * @return as dkv_layout_forest
 */
dkv_status dkv_suite_layout(dkv_layout *out, const char **name, int32_t index, uint64_t seed);

/** The n-th head shape that the kernel under test takes (counted round and round). */
dkv_heads dkv_suite_heads(const dkv_check *check, int32_t n);

/**
 * Makes a random problem on `layout` and writes the check's `where`. `gain` and `scale` as in dkv_random_spec.
 * @return true; false when the check cannot go on
 */
bool dkv_check_problem(dkv_check *check, dkv_problem *out, const dkv_layout *layout, const char *name, dkv_heads heads,
                       double gain, double scale);

/**
 * Exact forward results of a problem, from `against` on the same rounded inputs, in f64 where it can.
 * @param[in,out] check   the check
 * @param[out]    out     overwritten: o and lse
 * @param[in]     problem the problem
 * @return true; false when the check cannot go on
 */
bool dkv_check_forward(dkv_check *check, dkv_results *out, const dkv_problem *problem);

/**
 * What a backward kernel is given: those o and lse, rounded to the types in which a forward stores them.
 * @param[in,out] check   the check
 * @param[out]    out     overwritten: o in the problem's type, lse in f32 (f64 beside f64)
 * @param[in]     problem the problem
 * @return true; false when the check cannot go on
 */
bool dkv_check_stored(dkv_check *check, dkv_results *out, const dkv_problem *problem);

/**
 * Exact gradients, from `against`, for these stored o and lse.  A backward is a function of q, k, v, dout, o and lse:
 * the rounding of o and lse is the forward's, so it is in the answer too, and what is left is the kernel's own error.
 * @param[in,out] check   the check
 * @param[out]    out     overwritten: dq, dk, dv (and the o and lse given)
 * @param[in]     problem the problem
 * @param[in]     stored  o and lse
 * @return true; false when the check cannot go on
 */
bool dkv_check_backward(dkv_check *check, dkv_results *out, const dkv_problem *problem, const dkv_results *stored);

/**
 * Runs the kernel under test between guard zones, on NaN-filled outputs, and demands finite results and untouched
 * guards.
 * @param[in,out] check   the check
 * @param[out]    out     overwritten; o and lse of a forward kernel, dq, dk, dv of a backward one
 * @param[in]     problem the problem
 * @param[in]     stored  a backward kernel's o and lse; NULL = dkv_check_stored
 * @param[in]     manner  NULL = defaults
 * @return true; false when the law is broken or the check cannot go on
 */
bool dkv_check_run(dkv_check *check, dkv_results *out, const dkv_problem *problem, const dkv_results *stored,
                   const dkv_manner *manner);

/** Rows that are compared: those with keep[row], or all when keep is NULL. */
typedef struct dkv_rows {
  int64_t rows;     /**< rows of the tensors */
  int64_t width;    /**< elements of a row */
  const bool *keep; /**< [rows], or NULL */
} dkv_rows;

/**
 * Demands that x is near y, as dkv_compare does with the type's bound. When y is all zero (the gradients of a row that
 * sees only itself), |x| must be below bound * floor.
 * @param[in,out] check   the check
 * @param[in]     result  which result, for the sentence and the bound
 * @param[in]     x       what was computed
 * @param[in]     x_dtype its type
 * @param[in]     y       what it should be
 * @param[in]     y_dtype its type
 * @param[in]     rows    which rows
 * @param[in]     floor   natural size of the result; 0 when y is never all zero
 * @return true when near
 */
bool dkv_check_near(dkv_check *check, dkv_result result, const void *x, dkv_dtype x_dtype, const void *y,
                    dkv_dtype y_dtype, dkv_rows rows, double floor);

/** Demands the same bits in the kept rows. @return true when so */
bool dkv_check_same(dkv_check *check, dkv_result result, const void *x, const void *y, dkv_dtype dtype, dkv_rows rows);

/** Demands that every result that `x` has is near `y`'s, all rows; y may be rounded too. @return true when so */
bool dkv_check_all_near(dkv_check *check, const dkv_problem *problem, const dkv_results *x, const dkv_results *y);

/** Breaks the law with a sentence, to which the place is added. @return false */
bool dkv_check_fail(dkv_check *check, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

/** Stops the suite when status is not DKV_OK. @return status == DKV_OK */
bool dkv_check_ok(dkv_check *check, dkv_status status);

/** Rows of a result of a problem, all of them. */
dkv_rows dkv_check_rows(const dkv_problem *problem, dkv_result result);

/** The type of a result. */
static inline dkv_dtype dkv_result_dtype(const dkv_results *results, dkv_result result) {
  return result == DKV_LSE ? results->lse_dtype : results->dtype;
}

/** Natural size of a gradient, c max|dout| max|v| max|k| D: the yardstick where the exact gradient is zero. */
double dkv_check_floor(const dkv_problem *problem);

/* The laws; their claims are in suite.c. */
void dkv_law_definition(dkv_check *check);
void dkv_law_scores(dkv_check *check);
void dkv_law_scale(dkv_check *check);
void dkv_law_fold(dkv_check *check);
void dkv_law_causal(dkv_check *check);
void dkv_law_permute(dkv_check *check);
void dkv_law_groups(dkv_check *check);
void dkv_law_constant(dkv_check *check);
void dkv_law_shift(dkv_check *check);
void dkv_law_heads(dkv_check *check);
void dkv_law_siblings(dkv_check *check);
void dkv_law_future(dkv_check *check);
void dkv_law_repeat(dkv_check *check);
void dkv_law_refuse(dkv_check *check);

#endif
