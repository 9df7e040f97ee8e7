/**
 * @file problem.h
 * @brief One whole attention problem in host memory: layout, shapes, inputs, and the answers when they are known.
 *
 * This is what a case file holds (q, k, v, do, segment_parent, segment_length, and o, lse, dq, dk, dv in f64; metadata
 * "scale" and "name"), what the random generator makes, and what dkv_execute runs.
 *
 * Read before: attention.h, safetensors.h.  Read next: execute.h.
 */
#ifndef DKV_PROBLEM_H
#define DKV_PROBLEM_H

#include "common/attention.h"
#include "common/safetensors.h"

DKV_BEGIN_C

/** The five results. */
typedef enum dkv_result { DKV_O, DKV_LSE, DKV_DQ, DKV_DK, DKV_DV, DKV_RESULTS } dkv_result;

/**
 * Name of a result in files.
 * @param[in] result which
 * @return "o", "lse", "dq", "dk" or "dv"; "?" for an unknown value
 */
const char *dkv_result_name(dkv_result result);

/** Five result tensors of one type; absent ones are NULL. Owned. */
typedef struct dkv_results {
  dkv_dtype dtype;         /**< type of o, dq, dk, dv */
  dkv_dtype lse_dtype;     /**< type of lse: f32, or f64 when dtype is f64 */
  void *data[DKV_RESULTS]; /**< o, dq [T][H][D]; dk, dv [T][Hkv][D]; lse [H][T]; NULL when absent */
} dkv_results;

/** A problem. Owns everything; release with dkv_problem_free. */
typedef struct dkv_problem {
  dkv_layout layout;  /**< who sees whom */
  int32_t heads;      /**< H */
  int32_t kv_heads;   /**< Hkv */
  int32_t head_dim;   /**< D */
  double scale;       /**< c */
  dkv_dtype dtype;    /**< type of the inputs */
  void *q;            /**< [T][H][D] */
  void *k;            /**< [T][Hkv][D] */
  void *v;            /**< [T][Hkv][D] */
  void *dout;         /**< [T][H][D], or NULL: forward only */
  dkv_results answer; /**< exact results when known; data[...] NULL otherwise */
} dkv_problem;

/** How dkv_problem_random fills its tensors. */
typedef struct dkv_random_spec {
  int32_t heads;    /**< H */
  int32_t kv_heads; /**< Hkv */
  int32_t head_dim; /**< D */
  double scale;     /**< c; 0 means 1/sqrt(D) */
  dkv_dtype dtype;  /**< f32, bf16, f16 or f64: values are rounded to it */
  double gain;      /**< factor on q, for large scores; 0 means 1 */
  uint64_t seed;    /**< of dkv_rng */
} dkv_random_spec;

/**
 * A problem with standard normal q, k, v, dout (dout too), on a copy of `layout`; no answers.
 * @param[out] out    overwritten; zeroed on failure
 * @param[in]  layout any layout
 * @param[in]  spec   shapes, type, seed
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_SHAPE; DKV_ERR_RANGE; DKV_ERR_UNSUPPORTED; DKV_ERR_NOMEM
 */
dkv_status dkv_problem_random(dkv_problem *out, const dkv_layout *layout, const dkv_random_spec *spec);

/**
 * Reads a case file.
 * @param[out] out  overwritten; zeroed on failure
 * @param[in]  path safetensors file; q, k, v (one float type), segment_parent, segment_length (i32 or i64) and metadata
 *                  "scale" required; do and the answers o, lse, dq, dk, dv (any float type, kept in f64) optional
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_IO; DKV_ERR_FORMAT; DKV_ERR_SHAPE; DKV_ERR_RANGE (a NaN or an infinity in an
 *         input or an answer: tensor, row and index named); DKV_ERR_LAYOUT; DKV_ERR_UNSUPPORTED; DKV_ERR_NOMEM
 */
dkv_status dkv_problem_load(dkv_problem *out, const char *path);

/**
 * The same from an open file.
 * @param[out] out  overwritten; zeroed on failure
 * @param[in]  file an open safetensors file; not needed any more afterwards
 * @param[in]  name what sentences call it
 * @return as dkv_problem_load, without DKV_ERR_IO
 */
dkv_status dkv_problem_parse(dkv_problem *out, const dkv_safetensors *file, const char *name);

/**
 * Writes a case file, answers included when present, atomically.
 * @param[in] problem the problem
 * @param[in] path    where
 * @param[in] name    metadata "name"
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_IO; DKV_ERR_NOMEM
 */
dkv_status dkv_problem_save(const dkv_problem *problem, const char *path, const char *name);

/**
 * Reads results of a problem that somebody computed: o, lse, dq, dk, dv of any float type, widened to f64 (exact).
 * Values are not judged: NaN and infinities are kept, for dkv_compare to find.
 * @param[out] out     overwritten; zeroed on failure
 * @param[in]  problem whose results they are: its shape is demanded
 * @param[in]  path    safetensors file with at least one of the five; other tensors are ignored
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_IO; DKV_ERR_FORMAT; DKV_ERR_SHAPE; DKV_ERR_NOMEM
 */
dkv_status dkv_results_load(dkv_results *out, const dkv_problem *problem, const char *path);

/**
 * Writes results, those that are present, atomically.
 * @param[in] results the results
 * @param[in] problem whose results they are
 * @param[in] path    where
 * @param[in] name    metadata "name"
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_IO; DKV_ERR_NOMEM
 */
dkv_status dkv_results_save(const dkv_results *results, const dkv_problem *problem, const char *path, const char *name);

/**
 * The same problem in another input type: inputs are rounded, answers dropped (they belong to the unrounded inputs)
 * unless the type stays.
 * @param[out] out   overwritten; zeroed on failure
 * @param[in]  from  the problem
 * @param[in]  dtype f32, bf16, f16 or f64
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_UNSUPPORTED; DKV_ERR_NOMEM
 */
dkv_status dkv_problem_cast(dkv_problem *out, const dkv_problem *from, dkv_dtype dtype);

/**
 * The replicated twin: inputs unpacked; dout of a row that has several copies is put on its first copy (zero on the
 * others) so that fold(replicated gradients) equals the packed gradients.
 * @param[out] out     overwritten; zeroed on failure
 * @param[out] row_map malloc'd, free() it
 * @param[in]  packed  the problem
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE; DKV_ERR_NOMEM
 */
dkv_status dkv_problem_replicate(dkv_problem *out, int32_t **row_map, const dkv_problem *packed);

/**
 * Elements of a result.
 * @param[in] problem shape
 * @param[in] result  which
 * @return T H D, T Hkv D or H T
 */
int64_t dkv_result_elements(const dkv_problem *problem, dkv_result result);

/**
 * Rows and row width under which a result is compared: (T, H D), (T, Hkv D); lse: (H, T).
 * @param[in]  problem shape
 * @param[in]  result  which
 * @param[out] rows    rows
 * @param[out] width   elements of a row
 */
void dkv_result_shape(const dkv_problem *problem, dkv_result result, int64_t *rows, int64_t *width);

/** Frees; accepts a zeroed struct. @param[in,out] problem zeroed afterwards. */
void dkv_problem_free(dkv_problem *problem);

/** Frees the tensors; accepts a zeroed struct. @param[in,out] results zeroed afterwards. */
void dkv_results_free(dkv_results *results);

DKV_END_C
#endif
