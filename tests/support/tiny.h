/**
 * @file tiny.h
 * @brief A tiny model and random batches for it: groups with ragged and empty responses, deeper trees, and their
 * replicated twins.
 *
 * Read before: common/model/model.h, forest.h.  Read next: tests/test_model.c.
 */
#ifndef DKV_TESTS_TINY_H
#define DKV_TESTS_TINY_H

#include "common/model/model.h"

/** A batch with everything that it points to, and weights that make a loss of its log-probabilities and entropies. */
struct tiny {
  dkv_layout layout;
  int32_t *ids;
  dkv_prediction *pairs;
  int32_t pair_count;
  float *dlogprob; /* [pair_count] */
  float *dentropy; /* [pair_count] */
  float *logprob;  /* [pair_count] result */
  float *entropy;  /* [pair_count] result */
  dkv_batch batch;
  dkv_pass pass;
};

/** 3 layers, width 24, 4 query heads on 2 key heads of 8 (so H D = 32 is not the width), MLP 40, vocabulary 37. */
dkv_model_config tiny_config(bool tied);

/** A tiny model whose weights are large enough to matter; norms differ from 1. */
void tiny_model(dkv_model *out, bool tied, uint64_t seed, const dkv_model_options *options);

/** A batch over a layout, which it takes over: random tokens, all predictions, random loss weights. */
void tiny_batch(struct tiny *out, dkv_layout layout, uint64_t seed);

/** One group. */
void tiny_group(struct tiny *out, int32_t prompt, int32_t responses, const int32_t *length, uint64_t seed);

/** The same loss on the replicated layout. */
void tiny_replicate(struct tiny *out, const struct tiny *packed);

/** Forward; fills logprob and entropy. */
void tiny_forward(struct tiny *t, const dkv_model *model);

/** Forward and backward from zero gradients. */
void tiny_gradient(struct tiny *t, dkv_model *model);

/** The loss, in double, of a fresh forward. */
double tiny_loss(struct tiny *t, const dkv_model *model);

/** Frees. */
void tiny_free(struct tiny *t);

#endif
