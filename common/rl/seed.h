/**
 * @file seed.h
 * @brief One seed of a run, and from it an independent seed for every use of random numbers.
 *
 * Prompts, samples and weights of one run are drawn from different seeds, and held-out prompts are never training
 * prompts, whatever numbers the user picks.
 *
 * Read before: common/rng.h.
 */
#ifndef DKV_RL_SEED_H
#define DKV_RL_SEED_H

#include "common/rng.h"

/** What random numbers are for. */
typedef enum dkv_purpose {
  DKV_SEED_WEIGHTS = 1,     /**< fresh weights */
  DKV_SEED_WARMUP,          /**< demonstrations of the supervised warm-up */
  DKV_SEED_PROMPTS,         /**< prompts of reinforcement learning */
  DKV_SEED_SAMPLES,         /**< responses to them */
  DKV_SEED_HELD_OUT,        /**< prompts of the evaluation */
  DKV_SEED_HELD_OUT_SAMPLES /**< responses to those */
} dkv_purpose;

/** The seed for one purpose. @param[in] seed of the run. @param[in] purpose what for. @return another seed. */
static inline uint64_t dkv_seed(uint64_t seed, dkv_purpose purpose) {
  dkv_rng_block block = dkv_rng(seed, UINT64_C(0x5eed) << 32, (uint64_t)purpose);
  return (uint64_t)block.word[0] << 32 | block.word[1];
}

#endif
