/**
 * @file groups.h
 * @brief Groups for tests of reinforcement learning: a tiny model for a task, sampled groups, random advantages.
 *
 * Read before: common/rl/update.h.  Read next: tests/test_update.c.
 */
#ifndef DKV_TESTS_GROUPS_H
#define DKV_TESTS_GROUPS_H

#include "common/rl/rollout.h"

/** A small model for a task: 2 layers of width 32, weights large enough that its samples vary. */
void groups_model(dkv_model *out, const dkv_task *task, uint64_t seed, int32_t threads);

/**
 * Groups with prompts of `prompt` tokens (the task's last ones) and random responses, log-probabilities near those of
 * nothing in particular, random advantages.
 * @param[out] out    [count] opened; close each
 * @param[in]  count  groups
 * @param[in]  prompt tokens
 * @param[in]  length [count][responses] tokens of each response
 * @param[in]  responses N
 * @param[in]  seed   of everything
 */
void groups_random(dkv_group *out, int32_t count, int32_t prompt, const int32_t *length, int32_t responses,
                   uint64_t seed);

/** Largest |x - y| over [count], infinite when one is not finite. */
double groups_gap(const float *x, const float *y, int64_t count);

#endif
