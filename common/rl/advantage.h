/**
 * @file advantage.h
 * @brief Group-relative advantages: how much better than its siblings was a response?
 *
 *     A_n = (r_n - mean) / (std + epsilon)      GRPO, DAPO          std over the group, divided by n-1 or n
 *     A_n =  r_n - mean                         Dr.GRPO             no division: easy groups are not blown up
 *
 * TRL divides by n-1 and adds 1e-4, verl n-1 and 1e-6, several small projects n and 1e-4; so both are parameters.  The
 * variance takes two passes in double: E[x^2] - mean^2 cancels.  A group whose rewards are all equal has A = 0 exactly.
 *
 * Read next: policy_loss.h, filter in trainer.h.
 */
#ifndef DKV_RL_ADVANTAGE_H
#define DKV_RL_ADVANTAGE_H

#include "common/status.h"

DKV_BEGIN_C

/** How rewards become advantages. Zeroed is Dr.GRPO: the mean is subtracted, nothing else. */
typedef struct dkv_advantage_config {
  bool divide_by_std; /**< divide by the group's deviation plus epsilon */
  bool population;    /**< deviation over n instead of n-1 */
  double epsilon;     /**< added to the deviation, >= 0 */
} dkv_advantage_config;

/**
 * Advantages of one group.  A group of one has nothing to compare with: A = 0.
 * @param[out] advantage [count] overwritten
 * @param[in]  reward    [count] finite
 * @param[in]  count     responses of the group, >= 0
 * @param[in]  config    how
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE (count < 0, epsilon < 0 or not finite, a reward that is not finite)
 */
dkv_status dkv_advantages(double *advantage, const double *reward, int32_t count, const dkv_advantage_config *config);

/**
 * Has the group no signal: are all its raw outcomes equal?  Exact comparison, before any length shaping: a shaped
 * reward keeps dead groups alive.  Groups of 0 or 1 have none.
 * @param[in] outcome [count]
 * @param[in] count   responses
 * @return true when min == max
 */
bool dkv_group_is_dead(const double *outcome, int32_t count);

DKV_END_C
#endif
