/**
 * @file twins.h
 * @brief The packed problem and its replicated twin, run side by side: packed == fold(replicated), for demo and bench.
 *
 * Read before: common/problem.h, common/pack.h.
 */
#ifndef DKV_TOOLS_TWINS_H
#define DKV_TOOLS_TWINS_H

#include "common/compare.h"
#include "common/execute.h"

/**
 * Compares the results of both layouts.  o and lse: every copy of a row in the replicated layout against the packed
 * row. dq, dk, dv: the sum over the copies against the packed gradient.
 * @param[out] out          [DKV_RESULTS] overwritten; entries of absent results have elements == 0 and passed == false
 * @param[in]  packed       the problem
 * @param[in]  once         its results
 * @param[in]  replicated   the twin that dkv_problem_replicate gave
 * @param[in]  copies       the twin's results
 * @param[in]  row_map      packed row behind each replicated row
 * @return DKV_OK, also when they differ (see passed); DKV_ERR_NOMEM
 */
dkv_status dkv_twins_compare(dkv_comparison out[DKV_RESULTS], const dkv_problem *packed, const dkv_results *once,
                             const dkv_problem *replicated, const dkv_results *copies, const int32_t *row_map);

/**
 * The worst of several comparisons.
 * @param[in] of      the comparisons
 * @param[in] results how many
 * @return the first that failed, else the one with the largest error
 */
const dkv_comparison *dkv_twins_worst(const dkv_comparison of[DKV_RESULTS], int32_t results);

#endif
