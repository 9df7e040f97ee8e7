/**
 * @file task_draw.h
 * @brief The dice of the tasks: counter-based, so that an example depends on (seed, index) alone.
 *
 * Read before: common/rng.h, task.h.
 */
#ifndef DKV_RL_TASK_DRAW_H
#define DKV_RL_TASK_DRAW_H

#include <math.h>

#include "common/rl/task.h"
#include "common/rng.h"

/** A stream of draws. */
typedef struct dkv_dice {
  uint64_t seed;   /**< of the task */
  uint64_t stream; /**< of the example */
  uint64_t next;   /**< draws so far */
} dkv_dice;

/** Uniform. @param[in,out] dice a stream. @param[in] sides > 0. @return 0 .. sides-1. */
static inline int32_t dkv_roll(dkv_dice *dice, int32_t sides) {
  return (int32_t)(dkv_rng_uniform(dice->seed, dice->stream, dice->next++) * (float)sides);
}

/**
 * Poisson, by multiplying uniforms until they fall below e^-mean.
 * @param[in,out] dice a stream
 * @param[in]     mean at most 20
 * @return the draw
 */
static inline int32_t dkv_roll_poisson(dkv_dice *dice, double mean) {
  int32_t count = 0;
  double product = 1, limit = exp(-mean);
  while ((product *= (double)dkv_rng_uniform(dice->seed, dice->stream, dice->next++)) > limit) ++count;
  return count;
}

/**
 * Appends a token to the example's prompt.
 * @param[in,out] example    room for one more
 * @param[in]     token      the token
 * @param[in]     supervised see dkv_example
 */
static inline void dkv_example_push(dkv_example *example, int32_t token, bool supervised) {
  example->prompt[example->prompt_length] = token;
  example->supervised[example->prompt_length++] = supervised;
}

#endif
