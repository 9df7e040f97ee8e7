/**
 * @file test_parity.c
 * @brief transformers is the judge: the same checkpoint, the same tokens, and every number that comes out, down to the
 * gradient of every parameter.
 *
 * The fixtures in tests/parity/ were computed by make_qwen3.py, which runs Qwen3ForCausalLM on every path of a forest
 * as a sequence of its own.  Here the forest is run packed, and then replicated.
 *
 * Read before: tests/parity/make_qwen3.py, common/model/model.h.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/compare.h"
#include "common/model/model.h"
#include "tests/support/expect.h"

/** float32 on both sides, summed in another order: 1e-4 is the promise, this is what holds. */
#define BOUND 1e-5

/** A checkpoint with what transformers computed. */
struct fixture {
  dkv_model model;
  dkv_safetensors expected;
  dkv_layout layout;
  dkv_prediction *pairs;
  int32_t pair_count;
};

static const dkv_tensor *get(const struct fixture *f, const char *name) {
  const dkv_tensor *t = dkv_safetensors_find(&f->expected, name);
  cr_assert(t != NULL, "the fixture lacks %s", name);
  return t;
}

static void open_fixture(struct fixture *f, const char *directory, const dkv_model_options *options) {
  char path[256];
  snprintf(path, sizeof path, "tests/parity/%s", directory);
  EXPECT_OK(dkv_model_load(&f->model, path, options));
  snprintf(path, sizeof path, "tests/parity/%s/expected.safetensors", directory);
  EXPECT_OK(dkv_safetensors_open(&f->expected, path));
  const dkv_tensor *parent = get(f, "segment_parent"), *length = get(f, "segment_length");
  EXPECT_OK(dkv_layout_forest(&f->layout, (int32_t)parent->shape[0], parent->data, length->data));
  EXPECT_OK(dkv_predictions(&f->pairs, &f->pair_count, &f->layout));
  cr_assert_eq(f->pair_count, get(f, "pair_source")->shape[0]);
  for (int32_t i = 0; i < f->pair_count; ++i) {
    cr_assert_eq(f->pairs[i].source, ((const int32_t *)get(f, "pair_source")->data)[i], "source of pair %d", i);
    cr_assert_eq(f->pairs[i].target, ((const int32_t *)get(f, "pair_target")->data)[i], "target of pair %d", i);
  }
}

static void close_fixture(struct fixture *f) {
  dkv_model_free(&f->model);
  dkv_safetensors_close(&f->expected);
  dkv_layout_free(&f->layout);
  free(f->pairs);
}

/** `got` against a tensor of the fixture, as rows of its last dimension. */
static void expect_close(const struct fixture *f, const char *name, const float *got) {
  const dkv_tensor *want = get(f, name);
  int64_t width = want->shape[want->rank - 1], rows = want->rank == 2 ? want->shape[0] : 1;
  dkv_comparison c;
  EXPECT_OK(dkv_compare(&c, got, DKV_F32, want->data, DKV_F32, rows, width, BOUND));
  cr_assert(c.passed, "%s: error %.3g, row error %.3g (row %lld, index %lld: %.9g, transformers has %.9g)", name,
            c.error, c.row_error, (long long)c.worst_row, (long long)c.worst_index, c.worst_got, c.worst_want);
}

/** Forward and backward of one batch; log-probabilities, entropies and all gradients against transformers. */
static void expect_same(struct fixture *f, const dkv_batch *batch, const float *dlogprob, const float *dentropy,
                        float *logprob, float *entropy, dkv_pass *pass) {
  EXPECT_OK(dkv_pass_set(pass, &f->model, batch));
  EXPECT_OK(dkv_model_forward(&f->model, pass, logprob, entropy));
  EXPECT_OK(dkv_model_zero_grads(&f->model));
  EXPECT_OK(dkv_model_backward(&f->model, pass, dlogprob, dentropy));
  char name[96];
  for (int32_t i = 0; i < f->model.grads.view_count; ++i) {
    const dkv_param *view = &f->model.grads.view[i];
    snprintf(name, sizeof name, "grad.%s", view->name);
    expect_close(f, name, f->model.grads.data + view->offset);
  }
}

static void packed(const char *directory, bool recompute) {
  const dkv_model_options options = {.recompute = recompute};
  struct fixture f = {0};
  open_fixture(&f, directory, &options);
  dkv_batch batch = {.layout = &f.layout, .ids = get(&f, "ids")->data, .pairs = f.pairs, .pair_count = f.pair_count};
  batch.temperature = *(const float *)get(&f, "temperature")->data;
  dkv_pass pass = {0};
  float *logprob = calloc((size_t)f.pair_count, 4), *entropy = calloc((size_t)f.pair_count, 4);
  expect_same(&f, &batch, get(&f, "weight_logprob")->data, get(&f, "weight_entropy")->data, logprob, entropy, &pass);
  expect_close(&f, "logprob", logprob);
  expect_close(&f, "entropy", entropy);

  EXPECT_OK(dkv_model_forward(&f.model, &pass, logprob, NULL));
  cr_assert_eq(pass.source_count, get(&f, "logits")->shape[0]);
  float *logits = calloc((size_t)pass.source_count * (size_t)f.model.config.vocabulary, 4);
  EXPECT_OK(dkv_model_logits(&f.model, &pass, logits));
  expect_close(&f, "logits", logits);
  free(logits);
  free(logprob);
  free(entropy);
  dkv_pass_free(&pass);
  close_fixture(&f);
}

Test(parity, tied_head_in_one_file_packed) { packed("tied", false); }
Test(parity, untied_head_in_two_shards_packed) { packed("untied", false); }
Test(parity, recomputed_layers_packed) { packed("untied", true); }

/* Every copy of a pair carries its weight divided by the number of copies: the loss is the same. */
Test(parity, untied_head_in_two_shards_replicated) {
  struct fixture f = {0};
  open_fixture(&f, "untied", NULL);
  dkv_layout replicated;
  int32_t *row_map = NULL;
  EXPECT_OK(dkv_layout_replicate(&replicated, &row_map, &f.layout));
  int32_t count = 0, *ids = calloc((size_t)replicated.rows, 4), *copies = calloc((size_t)f.layout.rows, 4);
  dkv_prediction *pairs = calloc((size_t)replicated.rows, sizeof *pairs);
  float *dlogprob = calloc((size_t)replicated.rows, 4), *dentropy = calloc((size_t)replicated.rows, 4);
  float *logprob = calloc((size_t)replicated.rows, 4), *entropy = calloc((size_t)replicated.rows, 4);
  const float *weight_logprob = get(&f, "weight_logprob")->data, *weight_entropy = get(&f, "weight_entropy")->data;
  for (int32_t r = 0; r < replicated.rows; ++r) copies[row_map[r]]++;
  for (int32_t r = 0; r < replicated.rows; ++r) {
    ids[r] = ((const int32_t *)get(&f, "ids")->data)[row_map[r]];
    for (int32_t i = 0; i < f.pair_count; ++i) {
      if (f.pairs[i].target != row_map[r]) continue;
      pairs[count] = (dkv_prediction){.source = r - 1, .target = r};
      dlogprob[count] = weight_logprob[i] / (float)copies[row_map[r]];
      dentropy[count++] = weight_entropy[i] / (float)copies[row_map[r]];
    }
  }
  dkv_batch batch = {.layout = &replicated, .ids = ids, .pairs = pairs, .pair_count = count};
  batch.temperature = *(const float *)get(&f, "temperature")->data;
  dkv_pass pass = {0};
  expect_same(&f, &batch, dlogprob, dentropy, logprob, entropy, &pass);
  dkv_pass_free(&pass);
  void *owned[] = {row_map, ids, copies, pairs, dlogprob, dentropy, logprob, entropy};
  for (size_t i = 0; i < sizeof owned / sizeof owned[0]; ++i) free(owned[i]);
  dkv_layout_free(&replicated);
  close_fixture(&f);
}

/* config.json as transformers wrote it. */
Test(parity, reads_the_configuration_of_transformers) {
  dkv_model_config c;
  EXPECT_OK(dkv_model_config_load(&c, "tests/parity/untied/config.json"));
  cr_assert_eq(c.layers, 2);
  cr_assert_eq(c.width, 32);
  cr_assert_eq(c.mlp_width, 40);
  cr_assert_eq(c.vocabulary, 48);
  cr_assert_eq(c.heads, 4);
  cr_assert_eq(c.kv_heads, 2);
  cr_assert_eq(c.head_dim, 16);
  cr_assert_eq(c.max_positions, 64);
  cr_assert_float_eq(c.rope_theta, 5000.0, 0.0);
  cr_assert(!c.tied);
  cr_assert_eq(c.eos_count, 2);
  cr_assert_eq(c.eos[1], 5);
}
