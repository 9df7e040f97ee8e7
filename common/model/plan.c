/**
 * @file plan.c
 * @brief Cuts the arena of a pass into tensors.  The same walk counts the bytes (base NULL) and hands out the pointers,
 * so that the printed plan cannot differ from what is used.
 *
 * Read before: plan.h.  Read next: pass.c.
 */
#include "common/model/plan.h"

#include <stdio.h>
#include <string.h>

#include "common/layers.h"

#define ALIGNMENT 256

/** A walk through memory: where it stands. With base NULL it only counts. */
typedef struct walk {
  char *base;
  size_t used;
} walk;

/** Takes rows x width floats; NULL while counting. */
static float *take(walk *w, int64_t rows, int64_t width) {
  char *here = w->base == NULL ? NULL : w->base + w->used;
  w->used += (size_t)dkv_ceil_div(rows * width * (int64_t)sizeof(float), ALIGNMENT) * ALIGNMENT;
  return (float *)(void *)here;
}

/** Starts a walk at a byte of the arena. */
static walk walk_from(char *arena, size_t offset) {
  walk w = {arena == NULL ? NULL : arena + offset, 0};
  return w;
}

static dkv_layer_tensors layer_tensors(walk *w, const dkv_model_config *c, int64_t rows, int64_t active) {
  int64_t q = (int64_t)c->heads * c->head_dim, kv = (int64_t)c->kv_heads * c->head_dim;
  dkv_layer_tensors t = {0};
  t.q_raw = take(w, active, q);
  t.k_raw = take(w, rows, kv);
  t.v = take(w, rows, kv);
  t.o = take(w, rows, q);
  t.lse = take(w, rows, c->heads);
  t.x_mid = take(w, active, c->width);
  t.gate = take(w, active, c->mlp_width);
  t.up = take(w, active, c->mlp_width);
  return t;
}

static dkv_head_tensors head_tensors(walk *w, const dkv_model_config *c, const dkv_plan *plan, size_t chunk) {
  dkv_head_tensors t = {0};
  t.x = take(w, plan->sources, c->width);
  t.h = take(w, plan->sources, c->width);
  t.rstd = take(w, plan->sources, 1);
  t.lse = take(w, plan->sources, 1);
  if (plan->keep != DKV_KEEP_NOTHING) t.dh = take(w, plan->sources, c->width);
  t.chunk = take(w, (int64_t)chunk, 1);
  return t;
}

/** The passing tensors and, in *attention, where rotated q and k lie. */
static dkv_passing_tensors passing_tensors(walk *w, const dkv_model_config *c, const dkv_plan *plan,
                                           dkv_layer_tensors *attention) {
  int64_t q = (int64_t)c->heads * c->head_dim, kv = (int64_t)c->kv_heads * c->head_dim, rows = plan->rows;
  bool backward = plan->keep != DKV_KEEP_NOTHING;
  dkv_passing_tensors t = {0};
  t.scratch = take(w, (int64_t)dkv_layer_scratch(c->width > c->head_dim ? c->width : c->head_dim), 1);
  t.rstd = take(w, rows, 1);
  t.rstd_q = take(w, rows, c->heads);
  t.rstd_k = take(w, rows, c->kv_heads);
  t.h = take(w, rows, c->width);
  if (backward) t.dh = take(w, rows, c->width);
  if (backward) t.dx = take(w, rows, c->width);
  int64_t few = plan->sources < plan->rows ? plan->sources : 0;
  t.few_h = take(w, few, c->width);
  t.few_q = take(w, few, q);
  if (backward) t.few_dh = take(w, few, c->width);
  if (backward) t.few_dx = take(w, few, c->width);
  if (backward) t.few_do = take(w, few, q);
  /* The MLP and the attention are never alive together: their tensors share one place. */
  walk mlp = *w, attn = *w;
  t.act = take(&mlp, rows, c->mlp_width);
  if (backward) t.dact = take(&mlp, rows, c->mlp_width);
  attention->q = take(&attn, rows, q);
  attention->k = take(&attn, rows, kv);
  if (backward) {
    t.dout = take(&attn, rows, q);
    t.dq = take(&attn, rows, q);
    t.dk = take(&attn, rows, kv);
    t.dv = take(&attn, rows, kv);
  }
  w->used = mlp.used > attn.used ? mlp.used : attn.used;
  return t;
}

static size_t layers_offset(const dkv_plan *p) { return (size_t)p->input_copies * p->input_bytes; }
static size_t head_offset(const dkv_plan *p) { return layers_offset(p) + p->layers_bytes; }
static size_t passing_offset(const dkv_plan *p) { return head_offset(p) + p->head_bytes; }
static size_t workspace_offset(const dkv_plan *p) { return passing_offset(p) + p->passing_bytes; }

dkv_status dkv_plan_make(dkv_plan *out, const dkv_model_config *config, int32_t rows, int32_t sources, bool whole,
                         dkv_keep keep, size_t chunk, size_t workspace) {
  DKV_REQUIRE(out != NULL && config != NULL, DKV_ERR_NULL, "dkv_plan_make: out and config must not be NULL");
  DKV_REQUIRE(rows >= 0 && sources >= 0 && sources <= rows, DKV_ERR_RANGE,
              "dkv_plan_make: %d rows of which %d predict; it must be 0 <= predicting rows <= rows", rows, sources);
  memset(out, 0, sizeof *out);
  out->rows = rows;
  out->sources = sources;
  out->keep = keep;
  out->layers = config->layers;
  out->last_active = whole ? rows : sources;
  out->input_copies = config->layers + (out->last_active > sources);
  if (keep == DKV_KEEP_NOTHING && out->input_copies > 2) out->input_copies = 2;
  out->layer_copies = keep == DKV_KEEP_ALL ? config->layers : 1;
  walk inputs = {0}, layer = {0}, last = {0}, head = {0}, passing = {0};
  dkv_layer_tensors unused = {0};
  take(&inputs, rows, config->width);
  layer_tensors(&layer, config, rows, rows);
  layer_tensors(&last, config, rows, out->last_active);
  head_tensors(&head, config, out, chunk);
  passing_tensors(&passing, config, out, &unused);
  out->input_bytes = inputs.used;
  out->layer_bytes = layer.used;
  out->last_bytes = last.used;
  bool shared = out->layer_copies < config->layers; /* one place for all layers: it must hold the largest */
  out->layers_bytes = (size_t)(out->layer_copies - 1) * layer.used + (shared ? layer.used : last.used);
  out->head_bytes = head.used;
  out->passing_bytes = passing.used;
  out->workspace_bytes = workspace;
  out->total_bytes = workspace_offset(out) + workspace;
  return DKV_OK;
}

float *dkv_plan_input(const dkv_plan *plan, char *arena, int32_t l) {
  return (float *)(void *)(arena + (size_t)(l % plan->input_copies) * plan->input_bytes);
}

dkv_layer_tensors dkv_plan_layer(const dkv_plan *plan, const dkv_model_config *config, char *arena, int32_t l) {
  walk w = walk_from(arena, layers_offset(plan) + (size_t)(l % plan->layer_copies) * plan->layer_bytes);
  walk passing = walk_from(arena, passing_offset(plan));
  dkv_layer_tensors t = layer_tensors(&w, config, plan->rows, dkv_plan_active(plan, l)), rotated = {0};
  passing_tensors(&passing, config, plan, &rotated);
  t.q = rotated.q;
  t.k = rotated.k;
  return t;
}

dkv_head_tensors dkv_plan_head(const dkv_plan *plan, const dkv_model_config *config, char *arena) {
  walk w = walk_from(arena, head_offset(plan));
  return head_tensors(&w, config, plan, 0); /* the chunk comes last: its size moves nothing */
}

dkv_passing_tensors dkv_plan_passing(const dkv_plan *plan, const dkv_model_config *config, char *arena) {
  walk w = walk_from(arena, passing_offset(plan));
  dkv_layer_tensors unused = {0};
  return passing_tensors(&w, config, plan, &unused);
}

char *dkv_plan_workspace(const dkv_plan *plan, char *arena) { return arena + workspace_offset(plan); }

void dkv_plan_describe(const dkv_plan *plan, char *out, size_t bytes) {
  const double mib = 1.0 / (1 << 20);
  snprintf(out, bytes,
           "%d rows, %d predicting: inputs %.1f, layers %.1f, head %.1f, passing %.1f, workspace %.1f: %.1f MiB in all",
           plan->rows, plan->sources, (double)layers_offset(plan) * mib, (double)plan->layers_bytes * mib,
           (double)plan->head_bytes * mib, (double)plan->passing_bytes * mib, (double)plan->workspace_bytes * mib,
           (double)plan->total_bytes * mib);
}
