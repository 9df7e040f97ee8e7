/**
 * @file test_model_limits.c
 * @brief The memory plan, and everything that the model refuses in a sentence.
 *
 * Read before: test_model.c, common/model/plan.h.
 */
#include <math.h>
#include <stdlib.h>

#include "tests/support/expect.h"
#include "tests/support/tiny.h"

Test(model_limits, plan_is_what_is_allocated) {
  const int32_t length[] = {5, 9, 2};
  struct tiny group;
  dkv_model model;
  char line[256];
  tiny_model(&model, true, 13, NULL);
  tiny_group(&group, 12, 3, length, 13);
  dkv_plan plan;
  EXPECT_OK(dkv_pass_plan(&plan, &model, &group.layout, false));
  tiny_forward(&group, &model);
  cr_assert_eq(plan.total_bytes, group.pass.arena_bytes);
  cr_assert_eq(plan.sources, group.pass.source_count);
  dkv_plan_describe(&plan, line, sizeof line);
  cr_assert(strstr(line, "28 rows, 14 predicting") != NULL, "%s", line);
  tiny_free(&group);
  dkv_model_free(&model);
}

/** A stretch of memory. */
struct stretch {
  const float *first;
  int64_t count;
};

static int by_address(const void *a, const void *b) {
  const struct stretch *x = a, *y = b;
  return x->first < y->first ? -1 : x->first > y->first;
}

/* No two tensors that are alive together share a float: all that a layer keeps, the head's, and the passing ones of
 * either branch. */
Test(model_limits, planned_tensors_do_not_overlap) {
  const dkv_model_config c = tiny_config(true);
  const int64_t rows = 50, q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim, width = c.width, mlp = c.mlp_width;
  for (int way = 0; way < 6; ++way) {
    const int keep = way / 2;
    const bool whole = way % 2 == 1;
    dkv_plan plan;
    EXPECT_OK(dkv_plan_make(&plan, &c, 50, 20, whole, (dkv_keep)keep, 1000, 512));
    char *arena = malloc(plan.total_bytes);
    dkv_head_tensors h = dkv_plan_head(&plan, &c, arena);
    dkv_passing_tensors p = dkv_plan_passing(&plan, &c, arena);
    for (int branch = 0; branch < 2; ++branch) {
      struct stretch all[80];
      int n = 0;
#define ALIVE(pointer, floats)                                                                                         \
  all[n++] = (struct stretch) { pointer, floats }
      for (int32_t l = 0; l < plan.input_copies; ++l) ALIVE(dkv_plan_input(&plan, arena, l), rows * width);
      for (int32_t l = 0; l < plan.layer_copies; ++l) {
        const int64_t few = plan.keep == DKV_KEEP_ALL && l == c.layers - 1 && !whole ? 20 : 50; /* active rows */
        dkv_layer_tensors t = dkv_plan_layer(&plan, &c, arena, l);
        ALIVE(t.q_raw, few * q);
        ALIVE(t.k_raw, rows * kv);
        ALIVE(t.v, rows * kv);
        ALIVE(t.o, rows * q);
        ALIVE(t.lse, rows * c.heads);
        ALIVE(t.x_mid, few * width);
        ALIVE(t.gate, few * mlp);
        ALIVE(t.up, few * mlp);
        if (branch == 1 && l == 0) ALIVE(t.q, rows * q);
        if (branch == 1 && l == 0) ALIVE(t.k, rows * kv);
      }
      ALIVE(h.x, 20 * width);
      ALIVE(h.h, 20 * width);
      ALIVE(h.rstd, 20);
      ALIVE(h.lse, 20);
      ALIVE(h.chunk, 1000);
      ALIVE(p.scratch, DKV_ROW_BLOCKS * width);
      ALIVE(p.rstd, rows);
      ALIVE(p.rstd_q, rows * c.heads);
      ALIVE(p.rstd_k, rows * c.kv_heads);
      ALIVE(p.h, rows * width);
      ALIVE(p.few_h, 20 * width);
      ALIVE(p.few_q, 20 * q);
      if (branch == 0) ALIVE(p.act, rows * mlp);
      if (keep != DKV_KEEP_NOTHING) {
        ALIVE(h.dh, 20 * width);
        ALIVE(p.dh, rows * width);
        ALIVE(p.dx, rows * width);
        ALIVE(p.few_dh, 20 * width);
        ALIVE(p.few_dx, 20 * width);
        ALIVE(p.few_do, 20 * q);
        if (branch == 0) ALIVE(p.dact, rows * mlp);
        if (branch == 1) ALIVE(p.dout, rows * q);
        if (branch == 1) ALIVE(p.dq, rows * q);
        if (branch == 1) ALIVE(p.dk, rows * kv);
        if (branch == 1) ALIVE(p.dv, rows * kv);
      }
      ALIVE((float *)(void *)dkv_plan_workspace(&plan, arena), 128);
#undef ALIVE
      qsort(all, (size_t)n, sizeof all[0], by_address);
      cr_assert_geq((const char *)all[0].first, arena);
      for (int i = 1; i < n; ++i)
        cr_assert_geq(all[i].first, all[i - 1].first + all[i - 1].count, "keep %d, tensor %d", keep, i);
      cr_assert_leq((const char *)(all[n - 1].first + all[n - 1].count), arena + plan.total_bytes);
    }
    free(arena);
  }
}

Test(model_limits, refuses_bad_batches_in_a_sentence) {
  const int32_t length[] = {2, 2};
  struct tiny g;
  dkv_model model;
  tiny_model(&model, true, 14, NULL);
  tiny_group(&g, 3, 2, length, 14);
  g.batch.layout = &g.layout;
  EXPECT_FAIL(DKV_ERR_NULL, "must not be NULL", dkv_pass_set(NULL, &model, &g.batch));
  dkv_batch bad = g.batch;
  bad.temperature = 0.0f;
  EXPECT_FAIL(DKV_ERR_RANGE, "temperature is 0", dkv_pass_set(&g.pass, &model, &bad));
  bad.temperature = NAN;
  EXPECT_FAIL(DKV_ERR_RANGE, "temperature", dkv_pass_set(&g.pass, &model, &bad));
  bad = g.batch;
  bad.layout = NULL;
  EXPECT_FAIL(DKV_ERR_NULL, "layout", dkv_pass_set(&g.pass, &model, &bad));
  bad = g.batch;
  bad.ids = NULL;
  EXPECT_FAIL(DKV_ERR_NULL, "token ids", dkv_pass_set(&g.pass, &model, &bad));
  bad = g.batch;
  bad.pairs = NULL;
  EXPECT_FAIL(DKV_ERR_NULL, "pairs", dkv_pass_set(&g.pass, &model, &bad));
  bad = g.batch;
  bad.pair_count = -1;
  EXPECT_FAIL(DKV_ERR_RANGE, "pair_count is -1", dkv_pass_set(&g.pass, &model, &bad));
  g.pairs[1].source = 7;
  EXPECT_FAIL(DKV_ERR_RANGE, "source row 7", dkv_pass_set(&g.pass, &model, &g.batch));
  g.pairs[1].source = 2;
  g.pairs[1].target = -4;
  EXPECT_FAIL(DKV_ERR_RANGE, "target row -4", dkv_pass_set(&g.pass, &model, &g.batch));
  int32_t targets[] = {0, 37, 1, 1};
  bad = g.batch;
  bad.target_ids = targets;
  EXPECT_FAIL(DKV_ERR_RANGE, "scores token 37", dkv_pass_set(&g.pass, &model, &bad));
  g.pairs[1].target = 4;
  g.ids[3] = 37;
  EXPECT_FAIL(DKV_ERR_RANGE, "row 3 is 37", dkv_pass_set(&g.pass, &model, &g.batch));
  g.ids[3] = 1;
  model.config.max_positions = 4;
  EXPECT_FAIL(DKV_ERR_RANGE, "path position 4", dkv_pass_set(&g.pass, &model, &g.batch));
  model.config.max_positions = 512;
  dkv_pass fresh = {0};
  EXPECT_FAIL(DKV_ERR_RANGE, "no batch", dkv_model_forward(&model, &fresh, g.logprob, NULL));
  tiny_forward(&g, &model);
  EXPECT_FAIL(DKV_ERR_NULL, "logprob", dkv_model_forward(&model, &g.pass, NULL, NULL));
  EXPECT_FAIL(DKV_ERR_NULL, "dlogprob", dkv_model_backward(&model, &g.pass, NULL, NULL));
  tiny_gradient(&g, &model);
  EXPECT_FAIL(DKV_ERR_RANGE, "consumes it", dkv_model_backward(&model, &g.pass, g.dlogprob, NULL));
  EXPECT_FAIL(DKV_ERR_RANGE, "call dkv_model_forward first", dkv_model_logits(&model, &g.pass, g.logprob));
  tiny_free(&g);
  dkv_model_free(&model);
}

/* A NaN anywhere in the weights ends in a sentence, not in a number. */
Test(model_limits, never_hides_a_nan) {
  const int32_t length[] = {2, 2};
  struct tiny g;
  dkv_model model;
  tiny_model(&model, true, 15, NULL);
  tiny_group(&g, 3, 2, length, 15);
  g.batch.layout = &g.layout;
  EXPECT_OK(dkv_pass_set(&g.pass, &model, &g.batch));
  const char *const names[] = {"model.layers.0.self_attn.k_proj.weight", "model.layers.2.mlp.up_proj.weight",
                               "model.norm.weight"};
  for (int i = 0; i < 3; ++i) {
    float *w = model.params.data + dkv_params_find(&model.params, names[i])->offset, old = w[3];
    w[3] = NAN;
    EXPECT_FAIL(DKV_ERR_RANGE, "log-probability of pair 0", dkv_model_forward(&model, &g.pass, g.logprob, NULL));
    w[3] = old;
  }
  tiny_free(&g);
  dkv_model_free(&model);
}

Test(model_limits, refuses_bad_options_and_shapes) {
  dkv_model model;
  dkv_model_config c = tiny_config(true);
  EXPECT_FAIL(DKV_ERR_UNSUPPORTED, "\"gpu\" has no layers",
              dkv_model_create(&model, &c, 0, &(dkv_model_options){.backend = "gpu"}));
  EXPECT_FAIL(DKV_ERR_RANGE, "threads is -1", dkv_model_create(&model, &c, 0, &(dkv_model_options){.threads = -1}));
  EXPECT_FAIL(DKV_ERR_NULL, "config", dkv_model_create(&model, NULL, 0, NULL));
  c.kv_heads = 3;
  EXPECT_FAIL(DKV_ERR_SHAPE, "num_attention_heads is 4", dkv_model_create(&model, &c, 0, NULL));
  c = tiny_config(true);
  c.head_dim = 12;
  EXPECT_FAIL(DKV_ERR_SHAPE, "head_dim is 12", dkv_model_create(&model, &c, 0, NULL));
  c = tiny_config(true);
  c.vocabulary = 0;
  EXPECT_FAIL(DKV_ERR_RANGE, "vocab_size is 0", dkv_model_create(&model, &c, 0, NULL));
  c = tiny_config(true);
  c.norm_epsilon = 0.0;
  EXPECT_FAIL(DKV_ERR_RANGE, "rms_norm_eps is 0", dkv_model_create(&model, &c, 0, NULL));
  c = tiny_config(true);
  c.eos_count = 1;
  c.eos[0] = 37;
  EXPECT_FAIL(DKV_ERR_RANGE, "eos_token_id is 37", dkv_model_create(&model, &c, 0, NULL));
}
