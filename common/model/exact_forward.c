/**
 * @file exact_forward.c
 * @brief forward.c in double, over all rows, with nothing left out: compare them line by line.
 *
 * Read before: exact.h, forward.c.  Read next: exact_backward.c.
 */
#include <math.h>
#include <omp.h>
#include <stdlib.h>

#include "common/model/exact_math.h"
#include "common/model/exact_stack.h"

/** A walk through memory: with base NULL it only counts. */
typedef struct walk {
  double *base;
  size_t used;
} walk;

static double *take(walk *w, int64_t rows, int64_t width) {
  double *here = w->base == NULL ? NULL : w->base + w->used;
  w->used += (size_t)(rows * width);
  return here;
}

/** Hands out all tensors; returns their doubles. */
static size_t cut(dkv_exact *e, double *base, int64_t rows) {
  const dkv_model_config *c = &e->model->config;
  int64_t q = (int64_t)c->heads * c->head_dim, kv = (int64_t)c->kv_heads * c->head_dim;
  walk w = {base, 0};
  for (int32_t l = 0; l < c->layers; ++l) {
    dkv_exact_layer *t = &e->layer[l];
    double **wide[] = {&t->x, &t->h, &t->x_mid, &t->h_mid}, **of_q[] = {&t->q_raw, &t->q, &t->o};
    double **of_k[] = {&t->k_raw, &t->k, &t->v}, **of_mlp[] = {&t->gate, &t->up, &t->act};
    for (int i = 0; i < 4; ++i) *wide[i] = take(&w, rows, c->width);
    for (int i = 0; i < 3; ++i) {
      *of_q[i] = take(&w, rows, q);
      *of_k[i] = take(&w, rows, kv);
      *of_mlp[i] = take(&w, rows, c->mlp_width);
    }
    t->lse = take(&w, rows, c->heads);
  }
  dkv_exact_tensors *t = &e->other;
  double **wide[] = {&t->x, &t->h, &t->dx, &t->dh}, **of_mlp[] = {&t->dgate, &t->dup, &t->dact};
  double **of_q[] = {&t->dout, &t->dq}, **of_k[] = {&t->dk, &t->dv}, **of_v[] = {&t->logits, &t->dlogits};
  for (int i = 0; i < 4; ++i) *wide[i] = take(&w, rows, c->width);
  for (int i = 0; i < 3; ++i) *of_mlp[i] = take(&w, rows, c->mlp_width);
  for (int i = 0; i < 2; ++i) {
    *of_q[i] = take(&w, rows, q);
    *of_k[i] = take(&w, rows, kv);
    *of_v[i] = take(&w, rows, c->vocabulary);
  }
  return w.used;
}

static dkv_status make_room(dkv_exact *e, int64_t rows) {
  size_t needed = cut(e, NULL, rows) + 1;
  if (needed > e->room) {
    free(e->memory);
    e->room = 0;
    e->memory = malloc(needed * sizeof *e->memory);
    DKV_REQUIRE(e->memory != NULL, DKV_ERR_NOMEM, "no memory for %lld rows in double", (long long)rows);
    e->room = needed;
  }
  cut(e, e->memory, rows);
  return DKV_OK;
}

int dkv_exact_threads(const dkv_exact *e) {
  return e->model->options.threads > 0 ? e->model->options.threads : omp_get_max_threads();
}

dkv_attention dkv_exact_problem(const dkv_exact *e, const dkv_exact_layer *t) {
  const dkv_model_config *c = &e->model->config;
  return (dkv_attention){.layout = e->batch.layout,
                         .heads = c->heads,
                         .kv_heads = c->kv_heads,
                         .head_dim = c->head_dim,
                         .scale = 1.0 / sqrt(c->head_dim),
                         .dtype = DKV_F64,
                         .threads = dkv_exact_threads(e),
                         .q = t->q,
                         .k = t->k,
                         .v = t->v,
                         .o = t->o,
                         .lse = t->lse};
}

/** One layer: x_next from t->x. */
static dkv_status layer_forward(const dkv_exact *e, int32_t l, double *x_next) {
  const dkv_model_config *c = &e->model->config;
  const dkv_layer_params *w = &e->model->params.layer[l];
  const dkv_exact_layer *t = &e->layer[l];
  const int32_t *position = e->batch.layout->position;
  int32_t rows = e->batch.layout->rows, q_width = c->heads * c->head_dim, kv_width = c->kv_heads * c->head_dim;
  int64_t stream = (int64_t)rows * c->width, mlp = (int64_t)rows * c->mlp_width;
  int n = dkv_exact_threads(e);
#define W(view) dkv_exact_at(e, e->weight, w->view)
  dkv_exact_norm(t->h, t->x, W(attention_norm), rows, c->width, c->norm_epsilon, n);
  dkv_exact_linear(t->q_raw, t->h, W(q), rows, c->width, q_width, n);
  dkv_exact_linear(t->k_raw, t->h, W(k), rows, c->width, kv_width, n);
  dkv_exact_linear(t->v, t->h, W(v), rows, c->width, kv_width, n);
  dkv_exact_norm(t->q, t->q_raw, W(q_norm), (int64_t)rows * c->heads, c->head_dim, c->norm_epsilon, n);
  dkv_exact_norm(t->k, t->k_raw, W(k_norm), (int64_t)rows * c->kv_heads, c->head_dim, c->norm_epsilon, n);
  dkv_exact_rotate(t->q, position, rows, c->heads, c->head_dim, c->rope_theta, 1, n);
  dkv_exact_rotate(t->k, position, rows, c->kv_heads, c->head_dim, c->rope_theta, 1, n);
  dkv_attention attention = dkv_exact_problem(e, t);
  DKV_TRY(dkv_exact_attention(&attention, DKV_FORWARD));
  dkv_exact_linear(t->x_mid, t->o, W(o), rows, q_width, c->width, n);
  for (int64_t i = 0; i < stream; ++i) t->x_mid[i] += t->x[i];
  dkv_exact_norm(t->h_mid, t->x_mid, W(mlp_norm), rows, c->width, c->norm_epsilon, n);
  dkv_exact_linear(t->gate, t->h_mid, W(gate), rows, c->width, c->mlp_width, n);
  dkv_exact_linear(t->up, t->h_mid, W(up), rows, c->width, c->mlp_width, n);
#pragma omp parallel for num_threads(n)
  for (int64_t i = 0; i < mlp; ++i) t->act[i] = t->gate[i] / (1 + exp(-t->gate[i])) * t->up[i];
  dkv_exact_linear(x_next, t->act, W(down), rows, c->mlp_width, c->width, n);
  for (int64_t i = 0; i < stream; ++i) x_next[i] += t->x_mid[i];
#undef W
  return DKV_OK;
}

int32_t dkv_exact_token(const dkv_exact *e, int32_t i) {
  return e->batch.target_ids != NULL ? e->batch.target_ids[i] : e->batch.ids[e->batch.pairs[i].target];
}

double dkv_exact_softmax(const dkv_exact *e, int32_t i, double *entropy) {
  const double *z = e->other.logits + dkv_offset(e->batch.pairs[i].source, 0, 1, e->model->config.vocabulary);
  double temperature = (double)e->batch.temperature, top = -INFINITY, sum = 0, mean = 0;
  for (int32_t v = 0; v < e->model->config.vocabulary; ++v) top = fmax(top, z[v] / temperature);
  for (int32_t v = 0; v < e->model->config.vocabulary; ++v) sum += exp(z[v] / temperature - top);
  double lse = top + log(sum);
  for (int32_t v = 0; v < e->model->config.vocabulary; ++v)
    mean += exp(z[v] / temperature - lse) * (z[v] / temperature);
  *entropy = lse - mean;
  return lse;
}

dkv_status dkv_exact_forward(dkv_exact *e, const dkv_batch *batch, double *logprob, double *entropy) {
  DKV_REQUIRE(e != NULL && batch != NULL, DKV_ERR_NULL, "dkv_exact_forward: exact and batch must not be NULL");
  DKV_REQUIRE(logprob != NULL || batch->pair_count == 0, DKV_ERR_NULL, "dkv_exact_forward: logprob must not be NULL");
  DKV_TRY(dkv_batch_check(e->model, batch));
  const dkv_model_config *c = &e->model->config;
  int32_t rows = batch->layout->rows;
  int n = dkv_exact_threads(e);
  e->forward_done = false;
  e->batch = *batch;
  DKV_TRY(make_room(e, rows));
  const double *table = dkv_exact_at(e, e->weight, e->model->params.embed);
  for (int32_t t = 0; t < rows; ++t)
    memcpy(e->layer[0].x + dkv_offset(t, 0, 1, c->width), table + dkv_offset(batch->ids[t], 0, 1, c->width),
           (size_t)c->width * sizeof *table);
  for (int32_t l = 0; l < c->layers; ++l)
    DKV_TRY(layer_forward(e, l, l + 1 < c->layers ? e->layer[l + 1].x : e->other.x));
  dkv_exact_norm(e->other.h, e->other.x, dkv_exact_at(e, e->weight, e->model->params.final_norm), rows, c->width,
                 c->norm_epsilon, n);
  dkv_exact_linear(e->other.logits, e->other.h, dkv_exact_at(e, e->weight, e->model->params.lm_head), rows, c->width,
                   c->vocabulary, n);
  for (int32_t i = 0; i < batch->pair_count; ++i) {
    double own = 0, lse = dkv_exact_softmax(e, i, &own);
    int64_t at = dkv_offset(batch->pairs[i].source, 0, 1, c->vocabulary) + dkv_exact_token(e, i);
    logprob[i] = e->other.logits[at] / (double)batch->temperature - lse;
    if (entropy != NULL) entropy[i] = own;
    DKV_REQUIRE(isfinite(logprob[i]), DKV_ERR_RANGE, "dkv_exact_forward: the log-probability of pair %d is %g", i,
                logprob[i]);
  }
  e->forward_done = true;
  return DKV_OK;
}
