/**
 * @file tiny.c
 * @brief Makes tiny models and batches.
 *
 * Read before: tiny.h.
 */
#include "tests/support/tiny.h"

#include <stdlib.h>

#include "common/rng.h"
#include "tests/support/expect.h"

dkv_model_config tiny_config(bool tied) {
  dkv_model_config c = {
      .layers = 3, .width = 24, .mlp_width = 40, .vocabulary = 37, .heads = 4, .kv_heads = 2, .head_dim = 8};
  c.max_positions = 512;
  c.norm_epsilon = 1e-6;
  c.rope_theta = 10000.0;
  c.tied = tied;
  c.init_std = 0.3;
  return c;
}

void tiny_model(dkv_model *out, bool tied, uint64_t seed, const dkv_model_options *options) {
  dkv_model_config c = tiny_config(tied);
  EXPECT_OK(dkv_model_create(out, &c, seed, options));
  for (int32_t i = 0; i < out->params.view_count; ++i) {
    const dkv_param *view = &out->params.view[i];
    for (int64_t j = 0; view->is_vector && j < view->cols; ++j)
      out->params.data[view->offset + j] = 0.5f + dkv_rng_uniform(seed, 1000 + (uint64_t)i, (uint64_t)j);
  }
}

void tiny_batch(struct tiny *out, dkv_layout layout, uint64_t seed) {
  *out = (struct tiny){.layout = layout};
  size_t rows = (size_t)layout.rows + 1;
  out->ids = calloc(rows, sizeof *out->ids);
  for (int32_t t = 0; t < layout.rows; ++t)
    out->ids[t] = (int32_t)(dkv_rng(seed, 1, (uint64_t)t).word[0] % (uint32_t)tiny_config(true).vocabulary);
  EXPECT_OK(dkv_predictions(&out->pairs, &out->pair_count, &out->layout));
  size_t pairs = (size_t)out->pair_count + 1;
  out->dlogprob = calloc(pairs, sizeof(float));
  out->dentropy = calloc(pairs, sizeof(float));
  out->logprob = calloc(pairs, sizeof(float));
  out->entropy = calloc(pairs, sizeof(float));
  for (int32_t i = 0; i < out->pair_count; ++i) {
    out->dlogprob[i] = dkv_rng_normal(seed, 2, (uint64_t)i);
    out->dentropy[i] = dkv_rng_normal(seed, 3, (uint64_t)i);
  }
  out->batch = (dkv_batch){.ids = out->ids, .pairs = out->pairs, .pair_count = out->pair_count, .temperature = 0.9f};
}

void tiny_group(struct tiny *out, int32_t prompt, int32_t responses, const int32_t *length, uint64_t seed) {
  dkv_layout layout;
  EXPECT_OK(dkv_layout_group(&layout, prompt, responses, length));
  tiny_batch(out, layout, seed);
}

void tiny_replicate(struct tiny *out, const struct tiny *packed) {
  dkv_layout layout;
  int32_t *row_map = NULL;
  EXPECT_OK(dkv_layout_replicate(&layout, &row_map, &packed->layout));
  tiny_batch(out, layout, 0);
  for (int32_t r = 0; r < layout.rows; ++r) out->ids[r] = packed->ids[row_map[r]];
  free(row_map);
  free(out->pairs);
  size_t pairs = (size_t)packed->pair_count + 1;
  out->pair_count = packed->pair_count;
  out->pairs = calloc(pairs, sizeof *out->pairs);
  EXPECT_OK(dkv_predictions_replicate(out->pairs, packed->pairs, packed->pair_count, &packed->layout, &out->layout));
  float **mine[] = {&out->dlogprob, &out->dentropy, &out->logprob, &out->entropy};
  float *const theirs[] = {packed->dlogprob, packed->dentropy, packed->logprob, packed->entropy};
  for (int i = 0; i < 4; ++i) {
    free(*mine[i]);
    *mine[i] = calloc(pairs, sizeof(float));
    memcpy(*mine[i], theirs[i], (size_t)packed->pair_count * sizeof(float));
  }
  out->batch.pairs = out->pairs;
  out->batch.pair_count = out->pair_count;
  out->batch.temperature = packed->batch.temperature;
}

void tiny_forward(struct tiny *t, const dkv_model *model) {
  t->batch.layout = &t->layout;
  for (int32_t i = 0; i < t->pair_count; ++i) t->logprob[i] = t->entropy[i] = 1e30f; /* must be overwritten */
  EXPECT_OK(dkv_pass_set(&t->pass, model, &t->batch));
  EXPECT_OK(dkv_model_forward(model, &t->pass, t->logprob, t->entropy));
}

void tiny_gradient(struct tiny *t, dkv_model *model) {
  tiny_forward(t, model);
  EXPECT_OK(dkv_model_zero_grads(model));
  EXPECT_OK(dkv_model_backward(model, &t->pass, t->dlogprob, t->dentropy));
}

double tiny_loss(struct tiny *t, const dkv_model *model) {
  double loss = 0.0;
  tiny_forward(t, model);
  for (int32_t i = 0; i < t->pair_count; ++i)
    loss += (double)t->dlogprob[i] * (double)t->logprob[i] + (double)t->dentropy[i] * (double)t->entropy[i];
  return loss;
}

void tiny_free(struct tiny *t) {
  void *owned[] = {t->ids, t->pairs, t->dlogprob, t->dentropy, t->logprob, t->entropy};
  for (size_t i = 0; i < sizeof owned / sizeof owned[0]; ++i) free(owned[i]);
  dkv_layout_free(&t->layout);
  dkv_pass_free(&t->pass);
}
