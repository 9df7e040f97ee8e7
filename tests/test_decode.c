/**
 * @file test_decode.c
 * @brief Decoding with a shared prompt says what training says, and no response notices another.
 *
 * Read before: common/model/model.h, test_model.c.
 */
#include <math.h>
#include <stdlib.h>

#include "common/rng.h"
#include "tests/support/expect.h"
#include "tests/support/tiny.h"

enum { V = 37 };

static double log_probability(const float *logits, int32_t token, double temperature) {
  double sum = 0.0;
  for (int v = 0; v < V; ++v) sum += exp((double)logits[v] / temperature);
  return (double)logits[token] / temperature - log(sum);
}

/* Feeding the rows of a packed batch of two groups token by token gives its log-probabilities. */
Test(decode, equals_the_packed_forward) {
  const int32_t prompt[] = {70, 5}, responses[] = {3, 3}, length[] = {6, 2, 9, 4, 0, 1};
  dkv_layout layout;
  struct tiny batch;
  dkv_model model;
  tiny_model(&model, false, 21, NULL);
  EXPECT_OK(dkv_layout_groups(&layout, 2, prompt, responses, length));
  tiny_batch(&batch, layout, 21);
  tiny_forward(&batch, &model);
  int32_t prompts[75];
  for (int t = 0; t < 75; ++t) prompts[t] = batch.ids[t < 70 ? t : t + 17];
  dkv_decoder decoder;
  float logits[6 * V], first[2 * V];
  EXPECT_OK(dkv_decoder_open(&decoder, &model, 2, 3, 80, 9));
  EXPECT_OK(dkv_decoder_prefill(&decoder, prompts, prompt, 2, first));
  int checked = 0;
  for (int32_t i = 0; i < batch.pair_count; ++i) { /* the first tokens, from the prompts' logits */
    int32_t segment = batch.pairs[i].segment;
    if (batch.pairs[i].target != batch.layout.start[segment]) continue;
    double got = log_probability(first + (segment > 3) * V, batch.ids[batch.pairs[i].target], 0.9f);
    cr_assert_lt(fabs(got - (double)batch.logprob[i]), 2e-5, "pair %d: %.7f, not %.7f", i, got,
                 (double)batch.logprob[i]);
    ++checked;
  }
  for (int32_t step = 0; step < 9; ++step) {
    int32_t slots[6], ids[6], live = 0;
    for (int32_t slot = 0; slot < 6; ++slot) {
      if (length[slot] <= step) continue;
      int32_t segment = slot < 3 ? slot + 1 : slot + 2;
      slots[live] = slot;
      ids[live++] = batch.ids[batch.layout.start[segment] + step];
    }
    if (live == 0) break;
    EXPECT_OK(dkv_decoder_step(&decoder, slots, ids, live, logits));
    for (int32_t j = 0; j < live; ++j) {
      int32_t segment = slots[j] < 3 ? slots[j] + 1 : slots[j] + 2, source = batch.layout.start[segment] + step;
      for (int32_t i = 0; i < batch.pair_count; ++i) {
        if (batch.pairs[i].source != source) continue;
        double got = log_probability(logits + j * V, batch.ids[batch.pairs[i].target], 0.9f);
        cr_assert_lt(fabs(got - (double)batch.logprob[i]), 2e-5, "pair %d: %.7f, not %.7f", i, got,
                     (double)batch.logprob[i]);
        ++checked;
      }
    }
  }
  cr_assert_eq(checked, batch.pair_count);
  dkv_decoder_close(&decoder);
  tiny_free(&batch);
  dkv_model_free(&model);
}

/** Logits of `slot` after feeding it 4 tokens while the slots of `others` live too; by threads. */
static void decode(float out[V], int32_t slot, uint64_t others, int32_t threads) {
  enum { GROUPS = 3, RESPONSES = 16, ALL = GROUPS * RESPONSES };
  const int32_t length[] = {20, 33, 8};
  const dkv_model_options options = {.threads = threads};
  dkv_model_config c = tiny_config(true);
  dkv_model model;
  dkv_decoder d;
  float first[GROUPS * V], logits[ALL * V];
  int32_t prompt[61], slots[ALL], ids[ALL], live = 0, mine = -1;
  c.width = 96; /* large enough for OpenBLAS to choose its kernels by the number of rows */
  c.mlp_width = 200;
  c.head_dim = 32;
  c.init_std = 0.1;
  EXPECT_OK(dkv_model_create(&model, &c, 22, &options));
  for (int t = 0; t < 61; ++t) prompt[t] = t * 11 % V;
  for (int32_t s = 0; s < ALL; ++s) {
    if (s == slot) mine = live;
    if (s == slot || (others >> s & 1) != 0) slots[live++] = s;
  }
  EXPECT_OK(dkv_decoder_open(&d, &model, GROUPS, RESPONSES, 61, 4));
  EXPECT_OK(dkv_decoder_prefill(&d, prompt, length, GROUPS, first));
  for (int step = 0; step < 4; ++step) {
    for (int32_t i = 0; i < live; ++i) ids[i] = (slots[i] * 5 + step * 3) % V;
    EXPECT_OK(dkv_decoder_step(&d, slots, ids, live, logits));
  }
  cr_assert_eq(d.length[slot], 4);
  memcpy(out, logits + mine * V, sizeof(float) * V);
  dkv_decoder_close(&d);
  dkv_model_free(&model);
}

Test(decode, a_response_notices_neither_the_others_nor_the_threads) {
  const int32_t slots[] = {0, 6, 15, 16, 31, 47};
  for (int i = 0; i < 6; ++i) {
    float alone[V], crowded[V], some[V];
    decode(alone, slots[i], 0, 1);
    decode(crowded, slots[i], UINT64_MAX, 3);
    decode(some, slots[i], UINT64_C(0x15a5a), 2);
    cr_assert_eq(memcmp(alone, crowded, sizeof alone), 0, "slot %d", slots[i]);
    cr_assert_eq(memcmp(alone, some, sizeof alone), 0, "slot %d", slots[i]);
  }
}

/* One decoder serves many rollouts: prefill forgets what was there. */
Test(decode, prefill_starts_over) {
  const int32_t length[] = {4, 3}, prompt[] = {1, 2, 3, 4, 5, 6, 7}, slots[] = {0}, ids[] = {9};
  dkv_model model;
  dkv_decoder d;
  float first[2 * V], logits[2][V];
  tiny_model(&model, true, 23, NULL);
  EXPECT_OK(dkv_decoder_open(&d, &model, 2, 2, 7, 3));
  for (int round = 0; round < 2; ++round) {
    EXPECT_OK(dkv_decoder_prefill(&d, prompt, length, 2, first));
    EXPECT_OK(dkv_decoder_step(&d, slots, ids, 1, logits[round]));
    EXPECT_OK(dkv_decoder_step(&d, slots, ids, 1, first));
  }
  cr_assert_eq(memcmp(logits[0], logits[1], sizeof logits[0]), 0);
  size_t row = 2 * 8 * sizeof(float) * 3; /* Hkv D, 3 layers */
  cr_assert_eq(d.cache_bytes, 2 * row * (7 + 4 * 3), "N responses share one copy of the prompt");
  EXPECT_OK(dkv_decoder_step(&d, NULL, NULL, 0, NULL));
  dkv_decoder_close(&d);
  dkv_decoder_close(&d);
  dkv_model_free(&model);
}

Test(decode, refuses_in_a_sentence) {
  const int32_t length[] = {4, 0}, prompt[] = {1, 2, 3, 99}, good[] = {1, 2, 3, 4}, slots[] = {0, 0}, ids[] = {9, 37},
                far[] = {2};
  dkv_model model;
  dkv_decoder d;
  float logits[4 * V];
  tiny_model(&model, true, 24, NULL);
  EXPECT_FAIL(DKV_ERR_RANGE, "groups 0", dkv_decoder_open(&d, &model, 0, 2, 4, 1));
  EXPECT_FAIL(DKV_ERR_NULL, "model", dkv_decoder_open(&d, NULL, 1, 2, 4, 1));
  EXPECT_OK(dkv_decoder_open(&d, &model, 1, 2, 4, 1));
  EXPECT_FAIL(DKV_ERR_RANGE, "there are 0 responses", dkv_decoder_step(&d, slots, ids, 1, logits)); /* before prefill */
  EXPECT_FAIL(DKV_ERR_RANGE, "2 prompts", dkv_decoder_prefill(&d, good, length, 2, logits));
  EXPECT_FAIL(DKV_ERR_RANGE, "prompt 0 has 0 rows", dkv_decoder_prefill(&d, good, length + 1, 1, logits));
  EXPECT_FAIL(DKV_ERR_RANGE, "there is room for 4", dkv_decoder_prefill(&d, good, (const int32_t[]){5}, 1, logits));
  EXPECT_FAIL(DKV_ERR_RANGE, "row 3 is 99", dkv_decoder_prefill(&d, prompt, length, 1, logits));
  EXPECT_OK(dkv_decoder_prefill(&d, good, length, 1, logits));
  EXPECT_FAIL(DKV_ERR_RANGE, "slot 0 at place 1", dkv_decoder_step(&d, slots, ids, 2, logits));
  EXPECT_FAIL(DKV_ERR_RANGE, "slot 2 at place 0", dkv_decoder_step(&d, far, ids, 1, logits));
  EXPECT_FAIL(DKV_ERR_RANGE, "token of slot 0 is 37", dkv_decoder_step(&d, slots, ids + 1, 1, logits));
  EXPECT_FAIL(DKV_ERR_NULL, "logits", dkv_decoder_step(&d, slots, ids, 1, NULL));
  EXPECT_OK(dkv_decoder_step(&d, slots, ids, 1, logits));
  EXPECT_FAIL(DKV_ERR_RANGE, "already holds 1", dkv_decoder_step(&d, slots, ids, 1, logits));
  dkv_decoder_close(&d);
  model.config.max_positions = 4;
  EXPECT_OK(dkv_decoder_open(&d, &model, 1, 2, 4, 1));
  EXPECT_OK(dkv_decoder_prefill(&d, good, length, 1, logits));
  EXPECT_FAIL(DKV_ERR_RANGE, "position 4", dkv_decoder_step(&d, slots, ids, 1, logits));
  dkv_decoder_close(&d);
  dkv_model_free(&model);
}
