/**
 * @file decode.c
 * @brief Generation: the prompt once, then one token of every live response at a time.
 *
 *     prefill   the layers of forward.c over a layout of G roots; each layer's k and v go straight into the prompt
 * cache step      the same layer for one row per response; its k and v go to the end of that response's cache, and its
 * query sees the prompt cache of its group and its own
 *
 * So N responses store one copy of the prompt's keys and values, and their positions go on from P as in training.
 *
 * Read before: forward.c.  Read next: decode_step.c.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/decode.h"

static dkv_status allocate(const dkv_model *model, void *out, size_t bytes) {
  void *memory = NULL;
  DKV_TRY(model->backend->allocate(&memory, bytes));
  memcpy(out, &memory, sizeof memory);
  return DKV_OK;
}

static dkv_status open_caches(dkv_decoder *d) {
  const dkv_model_config *c = &d->model->config;
  size_t row = (size_t)c->kv_heads * (size_t)c->head_dim * sizeof(float) * (size_t)c->layers;
  size_t slots = (size_t)d->groups * (size_t)d->responses;
  size_t prompt = row * (size_t)d->prompt_capacity, own = row * slots * (size_t)d->new_capacity;
  int32_t step_rows = (int32_t)(dkv_ceil_div((int64_t)slots, DKV_DECODE_BLOCK) * DKV_DECODE_BLOCK);
  dkv_step_tensors unused;
  d->cache_bytes = 2 * (prompt + own);
  d->arena_bytes = dkv_step_cut(&unused, c, NULL, step_rows);
  d->prompt_start = calloc((size_t)d->groups + 1, sizeof *d->prompt_start);
  d->length = calloc(slots, sizeof *d->length);
  d->row_slot = calloc((size_t)step_rows, sizeof *d->row_slot);
  d->live_row = calloc(slots, sizeof *d->live_row);
  DKV_REQUIRE(d->prompt_start != NULL && d->length != NULL && d->row_slot != NULL && d->live_row != NULL, DKV_ERR_NOMEM,
              "no memory for %zu responses", slots);
  DKV_TRY(allocate(d->model, &d->prompt_k, prompt));
  DKV_TRY(allocate(d->model, &d->prompt_v, prompt));
  DKV_TRY(allocate(d->model, &d->response_k, own));
  DKV_TRY(allocate(d->model, &d->response_v, own));
  return allocate(d->model, &d->arena, d->arena_bytes);
}

dkv_status dkv_decoder_open(dkv_decoder *out, const dkv_model *model, int32_t groups, int32_t responses,
                            int32_t prompt_capacity, int32_t new_capacity) {
  DKV_REQUIRE(out != NULL && model != NULL, DKV_ERR_NULL, "dkv_decoder_open: out and model must not be NULL");
  memset(out, 0, sizeof *out);
  DKV_REQUIRE(groups >= 1 && responses >= 1 && prompt_capacity >= 1 && new_capacity >= 1, DKV_ERR_RANGE,
              "dkv_decoder_open: groups %d, responses %d, prompt rows %d and new tokens %d must all be 1 or more",
              groups, responses, prompt_capacity, new_capacity);
  DKV_REQUIRE((int64_t)groups * responses <= 1 << 24, DKV_ERR_RANGE,
              "dkv_decoder_open: %d groups of %d responses are more than 2^24", groups, responses);
  out->model = model;
  out->groups = groups;
  out->responses = responses;
  out->prompt_capacity = prompt_capacity;
  out->new_capacity = new_capacity;
  dkv_status status = open_caches(out);
  if (status != DKV_OK) dkv_decoder_close(out);
  return status;
}

void dkv_decoder_close(dkv_decoder *d) {
  if (d == NULL) return;
  if (d->model != NULL) {
    void *owned[] = {d->prompt_k, d->prompt_v, d->response_k, d->response_v, d->arena};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; ++i) d->model->backend->release(owned[i]);
  }
  free(d->prompt_start);
  free(d->length);
  free(d->row_slot);
  free(d->live_row);
  dkv_pass_free(&d->pass);
  memset(d, 0, sizeof *d);
}

/** The layers over all prompts; every layer's k and v land in the caches. */
static dkv_status prefill_layers(dkv_decoder *d) {
  const dkv_model *model = d->model;
  const dkv_model_config *c = &model->config;
  dkv_pass *pass = &d->pass;
  dkv_passing_tensors p = dkv_plan_passing(&pass->plan, c, pass->arena);
  dkv_where where = dkv_pass_where(model, &p);
  int64_t layer_cache = dkv_offset(d->prompt_capacity, 0, c->kv_heads, c->head_dim);
  float *x = dkv_plan_input(&pass->plan, pass->arena, 0);
  DKV_TRY(model->layers->embedding_fwd(&where, x, model->params.embed, pass->batch.ids, pass->plan.rows, c->width));
  for (int32_t l = 0; l < c->layers; ++l) {
    dkv_layer_tensors tensors = dkv_plan_layer(&pass->plan, c, pass->arena, l);
    tensors.k = d->prompt_k + l * layer_cache;
    tensors.v = d->prompt_v + l * layer_cache;
    float *x_next = dkv_pass_output(pass, c, l);
    DKV_TRY(dkv_layer_forward(model, pass, l, &tensors, x, x_next));
    x = x_next;
  }
  return DKV_OK;
}

/** Logits after the last row of each prompt. */
static dkv_status prefill_logits(dkv_decoder *d, float *logits) {
  const dkv_model *model = d->model;
  const dkv_model_config *c = &model->config;
  dkv_where where = {.threads = model->options.threads};
  DKV_TRY(dkv_head_norm(model, &d->pass));
  return model->layers->linear_fwd(&where, logits, false, dkv_plan_head(&d->pass.plan, c, d->pass.arena).h,
                                   model->params.lm_head, d->pass.source_count, c->width, c->vocabulary);
}

/** Runs the prompts as a layout of roots whose last rows predict. */
static dkv_status prefill(dkv_decoder *d, const int32_t *ids, const dkv_layout *layout, const dkv_prediction *pairs,
                          int32_t longest, float *logits) {
  dkv_batch batch = {.layout = layout,
                     .ids = ids,
                     .pairs = pairs,
                     .pair_count = layout->segments,
                     .temperature = 1.0f,
                     .forward_only = true};
  DKV_TRY(dkv_pass_set(&d->pass, d->model, &batch));
  DKV_TRY(dkv_pass_rope(&d->pass, d->model,
                        (int32_t)dkv_min(longest + (int64_t)d->new_capacity, d->model->config.max_positions)));
  DKV_TRY(prefill_layers(d));
  return prefill_logits(d, logits);
}

dkv_status dkv_decoder_prefill(dkv_decoder *d, const int32_t *ids, const int32_t *length, int32_t groups,
                               float *logits) {
  DKV_REQUIRE(d != NULL && ids != NULL && length != NULL && logits != NULL, DKV_ERR_NULL,
              "dkv_decoder_prefill: decoder, ids, length and logits must not be NULL");
  DKV_REQUIRE(groups >= 1 && groups <= d->groups, DKV_ERR_RANGE,
              "dkv_decoder_prefill: %d prompts; this decoder takes 1 to %d", groups, d->groups);
  int64_t rows = 0;
  int32_t longest = 0;
  for (int32_t g = 0; g < groups; ++g) {
    DKV_REQUIRE(length[g] >= 1, DKV_ERR_RANGE, "dkv_decoder_prefill: prompt %d has %d rows; it needs at least 1", g,
                length[g]);
    rows += length[g];
    if (length[g] > longest) longest = length[g];
  }
  DKV_REQUIRE(rows <= d->prompt_capacity, DKV_ERR_RANGE,
              "dkv_decoder_prefill: the prompts have %lld rows; there is room for %d", (long long)rows,
              d->prompt_capacity);
  int32_t *parent = malloc((size_t)groups * sizeof *parent);
  dkv_prediction *pairs = malloc((size_t)groups * sizeof *pairs);
  dkv_layout layout = {0};
  dkv_status status = DKV_OK;
  if (parent == NULL || pairs == NULL) status = dkv_fail(DKV_ERR_NOMEM, "no memory for %d prompts", groups);
  for (int32_t g = 0; status == DKV_OK && g < groups; ++g) {
    parent[g] = -1;
    d->prompt_start[g + 1] = d->prompt_start[g] + length[g];
    pairs[g] = (dkv_prediction){d->prompt_start[g + 1] - 1, d->prompt_start[g + 1] - 1, g};
  }
  if (status == DKV_OK) status = dkv_layout_forest(&layout, groups, parent, length);
  if (status == DKV_OK) status = prefill(d, ids, &layout, pairs, longest, logits);
  d->live_groups = status == DKV_OK ? groups : 0;
  memset(d->length, 0, (size_t)d->groups * (size_t)d->responses * sizeof *d->length);
  memset(&d->pass.batch, 0, sizeof d->pass.batch); /* it pointed to the layout and the pairs */
  dkv_layout_free(&layout);
  free(parent);
  free(pairs);
  return status;
}
