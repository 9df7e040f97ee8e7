/**
 * @file advantage.c
 * @brief Group-relative advantages in two passes; see advantage.h for the equations.
 */
#include "common/rl/advantage.h"

#include <math.h>

static dkv_status check(const double *advantage, const double *reward, int32_t count,
                        const dkv_advantage_config *config) {
  DKV_REQUIRE(config != NULL, DKV_ERR_NULL, "dkv_advantages: config is NULL");
  DKV_REQUIRE(count >= 0, DKV_ERR_RANGE, "dkv_advantages: count is %d, but a group has 0 or more responses", count);
  DKV_REQUIRE(count == 0 || (advantage != NULL && reward != NULL), DKV_ERR_NULL,
              "dkv_advantages: an array is NULL while the group has %d responses", count);
  DKV_REQUIRE(config->epsilon >= 0 && isfinite(config->epsilon), DKV_ERR_RANGE,
              "dkv_advantages: epsilon is %g, but it must be a number >= 0", config->epsilon);
  for (int32_t n = 0; n < count; ++n)
    DKV_REQUIRE(isfinite(reward[n]), DKV_ERR_RANGE,
                "dkv_advantages: the reward of response %d is %g, but rewards must be finite", n, reward[n]);
  return DKV_OK;
}

bool dkv_group_is_dead(const double *outcome, int32_t count) {
  for (int32_t n = 1; n < count; ++n)
    if (outcome[n] != outcome[0]) return false;
  return true;
}

dkv_status dkv_advantages(double *advantage, const double *reward, int32_t count, const dkv_advantage_config *config) {
  DKV_TRY(check(advantage, reward, count, config));
  if (dkv_group_is_dead(reward, count)) { /* exactly 0, whatever the mean rounds to */
    for (int32_t n = 0; n < count; ++n) advantage[n] = 0;
    return DKV_OK;
  }
  double mean = 0;
  for (int32_t n = 0; n < count; ++n) mean += reward[n] / count;
  double squares = 0;
  for (int32_t n = 0; n < count; ++n) squares += (reward[n] - mean) * (reward[n] - mean);
  double deviation = sqrt(squares / (config->population ? count : count - 1));
  double divisor = config->divide_by_std ? deviation + config->epsilon : 1;
  for (int32_t n = 0; n < count; ++n) advantage[n] = (reward[n] - mean) / divisor;
  return DKV_OK;
}
