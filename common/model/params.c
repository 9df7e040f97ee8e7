/**
 * @file params.c
 * @brief Cuts the flat parameter array into named views, once, by walking the model from bottom to top.
 *
 * Every view starts at a multiple of 16 elements (a cache line); the gaps stay zero for ever, since their gradient is
 * zero.
 *
 * Read before: params.h.  Read next: forward.c.
 */
#include "common/model/params.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"

#define VIEWS_PER_LAYER 11
#define ALIGNMENT 16 /* elements */

/** Appends a view of [rows][cols] (rows = 0: a vector of cols) and returns its offset. */
static int64_t append(dkv_params *params, bool decays, int64_t rows, int64_t cols, int32_t layer, const char *name) {
  dkv_param *view = &params->view[params->view_count++];
  if (layer >= 0) snprintf(view->name, sizeof view->name, "model.layers.%d.%s.weight", layer, name);
  else snprintf(view->name, sizeof view->name, "%s.weight", name);
  view->is_vector = rows == 0;
  view->rows = view->is_vector ? 1 : rows;
  view->cols = cols;
  view->decays = decays;
  view->offset = params->count;
  params->count += dkv_ceil_div(view->rows * cols, ALIGNMENT) * ALIGNMENT;
  return view->offset;
}

/** Offsets of one layer's views, in the order of dkv_layer_params. */
static void append_layer(dkv_params *params, const dkv_model_config *c, int32_t l, int64_t offset[VIEWS_PER_LAYER]) {
  int64_t width = c->width, mlp = c->mlp_width, q = (int64_t)c->heads * c->head_dim,
          kv = (int64_t)c->kv_heads * c->head_dim;
  int i = 0;
  offset[i++] = append(params, false, 0, width, l, "input_layernorm");
  offset[i++] = append(params, true, q, width, l, "self_attn.q_proj");
  offset[i++] = append(params, true, kv, width, l, "self_attn.k_proj");
  offset[i++] = append(params, true, kv, width, l, "self_attn.v_proj");
  offset[i++] = append(params, false, 0, c->head_dim, l, "self_attn.q_norm");
  offset[i++] = append(params, false, 0, c->head_dim, l, "self_attn.k_norm");
  offset[i++] = append(params, true, width, q, l, "self_attn.o_proj");
  offset[i++] = append(params, false, 0, width, l, "post_attention_layernorm");
  offset[i++] = append(params, true, mlp, width, l, "mlp.gate_proj");
  offset[i++] = append(params, true, mlp, width, l, "mlp.up_proj");
  offset[i++] = append(params, true, width, mlp, l, "mlp.down_proj");
}

dkv_status dkv_params_create(dkv_params *out, const dkv_model_config *config) {
  DKV_REQUIRE(out != NULL && config != NULL, DKV_ERR_NULL, "dkv_params_create: out and config must not be NULL");
  memset(out, 0, sizeof *out);
  size_t layers = (size_t)config->layers;
  out->layer_count = config->layers;
  out->view = calloc(layers * VIEWS_PER_LAYER + 3, sizeof *out->view);
  out->layer = calloc(layers, sizeof *out->layer);
  int64_t(*offset)[VIEWS_PER_LAYER] = calloc(layers, sizeof *offset);
  int64_t embed = 0, norm = 0, head = 0;
  if (out->view != NULL && out->layer != NULL && offset != NULL) {
    embed = append(out, false, config->vocabulary, config->width, -1, "model.embed_tokens");
    for (int32_t l = 0; l < config->layers; ++l) append_layer(out, config, l, offset[l]);
    norm = append(out, false, 0, config->width, -1, "model.norm");
    head = config->tied ? embed : append(out, true, config->vocabulary, config->width, -1, "lm_head");
    out->data = aligned_alloc(64, (size_t)out->count * sizeof *out->data);
  }
  if (out->data == NULL) {
    free(offset);
    dkv_params_free(out);
    return dkv_fail(DKV_ERR_NOMEM, "no memory for the parameters of %d layers of width %d", config->layers,
                    config->width);
  }
  memset(out->data, 0, (size_t)out->count * sizeof *out->data);
  for (int32_t l = 0; l < config->layers; ++l) {
    dkv_layer_params *p = &out->layer[l];
    float **field[VIEWS_PER_LAYER] = {&p->attention_norm, &p->q,    &p->k,  &p->v,   &p->q_norm, &p->k_norm, &p->o,
                                      &p->mlp_norm,       &p->gate, &p->up, &p->down};
    for (int i = 0; i < VIEWS_PER_LAYER; ++i) *field[i] = out->data + offset[l][i];
  }
  free(offset);
  out->embed = out->data + embed;
  out->final_norm = out->data + norm;
  out->lm_head = out->data + head;
  return DKV_OK;
}

void dkv_params_init(dkv_params *params, const dkv_model_config *config, uint64_t seed) {
  double residual_std = config->init_std / sqrt(2.0 * config->layers);
  for (int32_t i = 0; i < params->view_count; ++i) {
    const dkv_param *view = &params->view[i];
    float *data = params->data + view->offset;
    bool residual = strstr(view->name, "o_proj") != NULL || strstr(view->name, "down_proj") != NULL;
    float std = (float)(residual ? residual_std : config->init_std);
#pragma omp parallel for
    for (int64_t j = 0; j < view->rows * view->cols; ++j)
      data[j] = view->is_vector ? 1.0f : std * dkv_rng_normal(seed, (uint64_t)i, (uint64_t)j);
  }
}

const dkv_param *dkv_params_find(const dkv_params *params, const char *name) {
  for (int32_t i = 0; i < params->view_count; ++i)
    if (strcmp(params->view[i].name, name) == 0) return &params->view[i];
  return NULL;
}

int64_t dkv_params_elements(const dkv_params *params) {
  int64_t elements = 0;
  for (int32_t i = 0; i < params->view_count; ++i) elements += params->view[i].rows * params->view[i].cols;
  return elements;
}

void dkv_params_free(dkv_params *params) {
  if (params == NULL) return;
  free(params->data);
  free(params->view);
  free(params->layer);
  memset(params, 0, sizeof *params);
}
