/**
 * @file bench.h
 * @brief One benchmark: what is asked, what was measured, and the three steps check, time, print.
 *
 *     useful FLOP/s = 4 D H pairs / time forward, 2.5 times that backward; the packed layout's pairs for both layouts
 *     share         = useful FLOP/s / FLOP/s of one large library matrix product, same threads, same rounds
 *     prediction    = pairs of the replicated layout / pairs of the packed one = A
 *
 * Read before: tool.h.  Read next: bench_check.c, bench_time.c, bench_print.c, cmd_bench.c.
 */
#ifndef DKV_TOOLS_BENCH_H
#define DKV_TOOLS_BENCH_H

#include "common/cost.h"
#include "tools/tool.h"

/** What is asked. */
struct dkv_bench_request {
  const dkv_backend *backend;  /**< where */
  dkv_execute_options options; /**< kernels, threads, determinism */
  dkv_layout layout;           /**< packed; owned */
  dkv_random_spec spec;        /**< heads, head size, type, seed */
  int64_t repeats;             /**< timed calls; 0 = as many as fit in a few seconds */
  int64_t matmul_size;         /**< n of the ceiling's product */
  bool packed_only;            /**< leave the replicated layout out */
};

enum { DKV_BENCH_REPEATS = 201 }; /* most timed calls */

/** Times of one kernel on one layout. */
struct dkv_bench_times {
  int32_t count;                          /**< calls */
  double milliseconds[DKV_BENCH_REPEATS]; /**< each, ascending after dkv_bench_time */
};

/** One layout, measured. */
struct dkv_bench_side {
  bool measured;                       /**< false: `why` says why */
  char why[256];                       /**< "" when measured */
  int64_t rows;                        /**< T */
  int64_t pairs;                       /**< visible pairs */
  size_t peak_bytes;                   /**< allocated on the backend */
  struct dkv_bench_times direction[2]; /**< by dkv_direction */
};

/** Everything that came out. */
struct dkv_bench_result {
  const char *kernel[2];            /**< names, by dkv_direction */
  int32_t checked;                  /**< tensors compared before timing */
  double worst_share;               /**< largest error / bound among them */
  bool same_at_size;                /**< packed == fold(replicated) was also checked at the size timed */
  double flops[2];                  /**< useful FLOPs of one call, by dkv_direction */
  double matmul_flops;              /**< FLOP/s of the ceiling: median over the rounds, like the kernels' times */
  double matmul_best;               /**< the fastest product */
  dkv_saving saving;                /**< rho and A, counted */
  struct dkv_bench_side packed;     /**< the layout as given */
  struct dkv_bench_side replicated; /**< its twin */
};

/** The median of sorted times. @param[in] times at least one. @return milliseconds. */
double dkv_bench_median(const struct dkv_bench_times *times);

/**
 * Compares the kernels with the definition, packed and replicated, on a small group and on the shape scaled down to
 * what the definition can do in about a second.
 * @param[in,out] result  checked and worst_share are updated
 * @param[in]     request what is asked
 * @return DKV_OK; DKV_ERR_MISMATCH naming tensor, row and index; what a kernel said
 */
dkv_status dkv_bench_check(struct dkv_bench_result *result, const struct dkv_bench_request *request);

/**
 * Times both layouts and the matrix product in turn: packed, replicated, product, packed, ... so that a slow moment of
 * the machine hits all three, and medians can be compared.
 * @param[in,out] result  overwritten but for what dkv_bench_check wrote
 * @param[in]     request what is asked
 * @return DKV_OK; DKV_ERR_MISMATCH (packed and replicated disagree); what a kernel said
 */
dkv_status dkv_bench_time(struct dkv_bench_result *result, const struct dkv_bench_request *request);

/** Prints the result for people. @param[in] result measured. @param[in] request what was asked. */
void dkv_bench_print(const struct dkv_bench_result *result, const struct dkv_bench_request *request);

/** Prints the result as JSON, schema dualkv.bench.1. @param[in] result,request as above. @return DKV_OK or
 * DKV_ERR_NOMEM. */
dkv_status dkv_bench_print_json(const struct dkv_bench_result *result, const struct dkv_bench_request *request);

#endif
