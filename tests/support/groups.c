/**
 * @file groups.c
 * @brief A tiny model and groups for tests of reinforcement learning; see groups.h.
 */
#include "groups.h"

#include <math.h>
#include <string.h>

#include "common/rng.h"
#include "expect.h"

void groups_model(dkv_model *out, const dkv_task *task, uint64_t seed, int32_t threads) {
  dkv_model_config shape = {.layers = 2, .width = 32, .mlp_width = 48, .vocabulary = task->vocabulary, .heads = 4};
  shape.kv_heads = 2;
  shape.head_dim = 16;
  shape.max_positions = task->max_prompt + DKV_TASK_MAX_RESPONSE;
  shape.norm_epsilon = 1e-6;
  shape.rope_theta = 10000;
  shape.init_std = 0.15;
  dkv_model_options options = {.threads = threads};
  EXPECT_OK(dkv_model_create(out, &shape, seed, &options));
}

void groups_random(dkv_group *out, int32_t count, int32_t prompt, const int32_t *length, int32_t responses,
                   uint64_t seed) {
  for (int32_t g = 0; g < count; ++g) {
    dkv_group *group = &out[g];
    EXPECT_OK(dkv_group_open(group, responses));
    group->id = (uint64_t)g;
    group->example.prompt_length = prompt;
    for (int32_t i = 0; i < prompt; ++i)
      group->example.prompt[i] = (int32_t)(dkv_rng(seed, 10 + (uint64_t)g, (uint64_t)i).word[0] % 16);
    for (int32_t n = 0; n < responses; ++n) {
      uint64_t stream = 1000 + (uint64_t)(g * responses + n);
      group->length[n] = length[g * responses + n];
      group->active[n] = true;
      group->advantage[n] = (double)dkv_rng_normal(seed, stream, 0);
      for (int32_t t = 0; t < group->length[n]; ++t) {
        int32_t at = n * DKV_TASK_MAX_RESPONSE + t;
        group->token[at] = (int32_t)(dkv_rng(seed, stream, 100 + (uint64_t)t).word[0] % 16);
        group->logprob[at] = -2.8f + 0.2f * dkv_rng_normal(seed, stream, 200 + (uint64_t)t);
      }
    }
  }
}

double groups_gap(const float *x, const float *y, int64_t count) {
  double most = 0;
  for (int64_t i = 0; i < count; ++i) {
    double gap = fabs((double)x[i] - (double)y[i]);
    if (!(gap <= most)) most = isfinite(gap) ? gap : INFINITY;
  }
  return most;
}
