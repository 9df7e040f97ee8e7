/**
 * @file decode_step.c
 * @brief One token of every live response: a layer of forward.c with one row per response.
 *
 *     k, v of the new rows go to the end of their response's cache; then
 *     out_r = attention of row r over its group's prompt cache and its own cache, the new row included
 *
 * A response's logits must not depend on which others are still alive, to the last bit, or a response that ends early
 * could change another's draw.  OpenBLAS rounds a row differently in products of different height, so slots sit at
 * fixed places of blocks of DKV_DECODE_BLOCK rows: a block runs whole when one of its slots is alive, and the rows of
 * the others are zero.
 *
 * Read before: decode.c, cpu/layers/decode_attention.c.
 */
#include <math.h>
#include <string.h>

#include "common/model/decode.h"

size_t dkv_step_cut(dkv_step_tensors *t, const dkv_model_config *c, char *arena, int32_t rows) {
  int64_t q = (int64_t)c->heads * c->head_dim, kv = (int64_t)c->kv_heads * c->head_dim;
  float **field[] = {&t->x, &t->h, &t->delta, &t->q, &t->k, &t->v, &t->o, &t->gate, &t->up, &t->rstd, &t->logits};
  int64_t width[] = {c->width, c->width, c->width, q, kv, kv, q, c->mlp_width, c->mlp_width, c->heads, c->vocabulary};
  size_t used = 0;
  for (size_t i = 0; i < sizeof field / sizeof field[0]; ++i) {
    *field[i] = arena == NULL ? NULL : (float *)(void *)(arena + used);
    used += (size_t)dkv_ceil_div(rows * width[i], 64) * 64 * sizeof(float);
  }
  t->position = arena == NULL ? NULL : (int32_t *)(void *)(arena + used);
  return used + (size_t)rows * sizeof(int32_t);
}

static dkv_status check_step(const dkv_decoder *d, const int32_t *slots, const int32_t *ids, int32_t count) {
  int32_t all = d->live_groups * d->responses;
  DKV_REQUIRE(count >= 0 && count <= all, DKV_ERR_RANGE, "dkv_decoder_step: %d rows; there are %d responses", count,
              all);
  for (int32_t i = 0; i < count; ++i) {
    DKV_REQUIRE(slots[i] >= 0 && slots[i] < all && (i == 0 || slots[i] > slots[i - 1]), DKV_ERR_RANGE,
                "dkv_decoder_step: slot %d at place %d; slots must ascend within 0 to %d", slots[i], i, all - 1);
    DKV_REQUIRE(ids[i] >= 0 && ids[i] < d->model->config.vocabulary, DKV_ERR_RANGE,
                "dkv_decoder_step: the token of slot %d is %d; it must be 0 to %d", slots[i], ids[i],
                d->model->config.vocabulary - 1);
    DKV_REQUIRE(d->length[slots[i]] < d->new_capacity, DKV_ERR_RANGE,
                "dkv_decoder_step: slot %d already holds %d tokens, as many as there is room for", slots[i],
                d->new_capacity);
    int32_t g = slots[i] / d->responses, position = d->prompt_start[g + 1] - d->prompt_start[g] + d->length[slots[i]];
    DKV_REQUIRE(position < d->model->config.max_positions, DKV_ERR_RANGE,
                "dkv_decoder_step: slot %d would reach position %d; the model has positions 0 to %d", slots[i],
                position, d->model->config.max_positions - 1);
  }
  return DKV_OK;
}

/** Gives every block with a live slot BLOCK rows, in order; returns the rows. Fills row_slot and live_row. */
static int32_t place_rows(dkv_decoder *d, const int32_t *slots, int32_t count) {
  int32_t rows = 0, block = -1;
  for (int32_t i = 0; i < count; ++i) {
    if (slots[i] / DKV_DECODE_BLOCK != block) {
      block = slots[i] / DKV_DECODE_BLOCK;
      for (int32_t r = 0; r < DKV_DECODE_BLOCK; ++r) d->row_slot[rows + r] = -1;
      rows += DKV_DECODE_BLOCK;
    }
    int32_t row = rows - DKV_DECODE_BLOCK + slots[i] % DKV_DECODE_BLOCK;
    d->row_slot[row] = slots[i];
    d->live_row[i] = row;
  }
  return rows;
}

/** Heads of the rows: norm per head, then rotate. */
static dkv_status rotate(const dkv_decoder *d, const dkv_where *where, const dkv_step_tensors *t, const float *raw,
                         float *out, const float *weight, int32_t rows, int32_t heads) {
  const dkv_model_config *c = &d->model->config;
  const dkv_layers *f = d->model->layers;
  DKV_TRY(f->rmsnorm_fwd(where, out, t->rstd, raw, weight, (int64_t)rows * heads, c->head_dim, (float)c->norm_epsilon));
  return f->rope(where, out, d->pass.rope, t->position, rows, heads, c->head_dim, false);
}

static dkv_status attend(const dkv_decoder *d, const dkv_where *where, const dkv_step_tensors *t, int32_t l,
                         int32_t rows) {
  const dkv_model_config *c = &d->model->config;
  const dkv_layers *f = d->model->layers;
  int32_t kv_width = c->kv_heads * c->head_dim;
  int64_t prompt_layer = (int64_t)d->prompt_capacity * kv_width;
  int64_t own_layer = (int64_t)d->groups * d->responses * d->new_capacity * kv_width;
  float *own_k = d->response_k + l * own_layer, *own_v = d->response_v + l * own_layer;
  DKV_TRY(f->append_rows(where, own_k, t->k, d->row_slot, d->length, rows, d->new_capacity, kv_width));
  DKV_TRY(f->append_rows(where, own_v, t->v, d->row_slot, d->length, rows, d->new_capacity, kv_width));
  dkv_decode_cache cache = {.responses = d->responses,
                            .capacity = d->new_capacity,
                            .prompt_start = d->prompt_start,
                            .length = d->length,
                            .prompt_k = d->prompt_k + l * prompt_layer,
                            .prompt_v = d->prompt_v + l * prompt_layer,
                            .response_k = own_k,
                            .response_v = own_v};
  return f->decode_attention(where, t->o, t->q, &cache, d->row_slot, rows, c->heads, c->kv_heads, c->head_dim,
                             (float)(1.0 / sqrt(c->head_dim)));
}

/** One layer: forward.c with t->x as the residual stream. */
static dkv_status step_layer(const dkv_decoder *d, const dkv_where *where, const dkv_step_tensors *t, int32_t l,
                             int32_t rows) {
  const dkv_model_config *c = &d->model->config;
  const dkv_layers *f = d->model->layers;
  const dkv_layer_params *w = &d->model->params.layer[l];
  int32_t q_width = c->heads * c->head_dim, kv_width = c->kv_heads * c->head_dim;
  int64_t stream = (int64_t)rows * c->width;
  float epsilon = (float)c->norm_epsilon;
  DKV_TRY(f->rmsnorm_fwd(where, t->h, t->rstd, t->x, w->attention_norm, rows, c->width, epsilon));
  DKV_TRY(f->linear_fwd(where, t->o, false, t->h, w->q, rows, c->width, q_width));
  DKV_TRY(rotate(d, where, t, t->o, t->q, w->q_norm, rows, c->heads));
  DKV_TRY(f->linear_fwd(where, t->o, false, t->h, w->k, rows, c->width, kv_width));
  DKV_TRY(rotate(d, where, t, t->o, t->k, w->k_norm, rows, c->kv_heads));
  DKV_TRY(f->linear_fwd(where, t->v, false, t->h, w->v, rows, c->width, kv_width));
  DKV_TRY(attend(d, where, t, l, rows));
  DKV_TRY(f->linear_fwd(where, t->delta, false, t->o, w->o, rows, q_width, c->width));
  DKV_TRY(f->residual(where, t->x, t->x, t->delta, stream));
  DKV_TRY(f->rmsnorm_fwd(where, t->h, t->rstd, t->x, w->mlp_norm, rows, c->width, epsilon));
  DKV_TRY(f->linear_fwd(where, t->gate, false, t->h, w->gate, rows, c->width, c->mlp_width));
  DKV_TRY(f->linear_fwd(where, t->up, false, t->h, w->up, rows, c->width, c->mlp_width));
  DKV_TRY(f->swiglu_fwd(where, t->gate, t->gate, t->up, rows, c->mlp_width));
  DKV_TRY(f->linear_fwd(where, t->delta, false, t->gate, w->down, rows, c->mlp_width, c->width));
  return f->residual(where, t->x, t->x, t->delta, stream);
}

/** Embeddings of the live rows at their places among zero rows. */
static dkv_status step_input(const dkv_decoder *d, const dkv_where *where, const dkv_step_tensors *t,
                             const int32_t *ids, int32_t count, int32_t rows) {
  const dkv_layers *f = d->model->layers;
  int32_t width = d->model->config.width;
  DKV_TRY(f->embedding_fwd(where, t->h, d->model->params.embed, ids, count, width));
  DKV_TRY(d->model->backend->fill(t->x, 0, (size_t)rows * (size_t)width * sizeof(float)));
  return f->scatter_rows(where, t->x, t->h, d->live_row, count, width);
}

dkv_status dkv_decoder_step(dkv_decoder *d, const int32_t *slots, const int32_t *ids, int32_t count, float *logits) {
  DKV_REQUIRE(d != NULL && (count == 0 || (slots != NULL && ids != NULL && logits != NULL)), DKV_ERR_NULL,
              "dkv_decoder_step: decoder, slots, ids and logits must not be NULL");
  DKV_TRY(check_step(d, slots, ids, count));
  if (count == 0) return DKV_OK;
  const dkv_model_config *c = &d->model->config;
  const dkv_layers *f = d->model->layers;
  dkv_step_tensors t;
  int32_t rows = place_rows(d, slots, count);
  dkv_step_cut(&t, c, d->arena, rows);
  dkv_where where = {.threads = d->model->options.threads, .row_tile = DKV_DECODE_BLOCK};
  memset(t.position, 0, (size_t)rows * sizeof *t.position);
  for (int32_t i = 0; i < count; ++i) {
    int32_t g = slots[i] / d->responses;
    t.position[d->live_row[i]] = d->prompt_start[g + 1] - d->prompt_start[g] + d->length[slots[i]]++;
  }
  DKV_TRY(step_input(d, &where, &t, ids, count, rows));
  for (int32_t l = 0; l < c->layers; ++l) DKV_TRY(step_layer(d, &where, &t, l, rows));
  DKV_TRY(
      f->rmsnorm_fwd(&where, t.h, t.rstd, t.x, d->model->params.final_norm, rows, c->width, (float)c->norm_epsilon));
  DKV_TRY(f->linear_fwd(&where, t.logits, false, t.h, d->model->params.lm_head, rows, c->width, c->vocabulary));
  return f->gather_rows(&where, logits, t.logits, d->live_row, count, c->vocabulary);
}
