/**
 * @file exact_backward.c
 * @brief backward.c in double, over all rows: exact_forward.c read upwards.
 *
 * Read before: exact_forward.c, backward.c.  Read next: exact.c.
 */
#include <math.h>

#include "common/model/exact_math.h"
#include "common/model/exact_stack.h"

#define W(view) dkv_exact_at(e, e->weight, w->view)
#define DW(view) dkv_exact_at(e, e->grad, w->view)

/** dx at the layer's output becomes dx at x_mid. */
static void mlp_backward(const dkv_exact *e, int32_t l) {
  const dkv_model_config *c = &e->model->config;
  const dkv_layer_params *w = &e->model->params.layer[l];
  const dkv_exact_layer *t = &e->layer[l];
  const dkv_exact_tensors *d = &e->other;
  int32_t rows = e->batch.layout->rows;
  int n = dkv_exact_threads(e);
  dkv_exact_linear_bwd(d->dact, false, DW(down), d->dx, t->act, W(down), rows, c->mlp_width, c->width, n);
#pragma omp parallel for num_threads(n)
  for (int64_t i = 0; i < (int64_t)rows * c->mlp_width; ++i) {
    double z = t->gate[i], s = 1 / (1 + exp(-z));
    d->dgate[i] = d->dact[i] * t->up[i] * s * (1 + z * (1 - s));
    d->dup[i] = d->dact[i] * z * s;
  }
  dkv_exact_linear_bwd(d->dh, false, DW(gate), d->dgate, t->h_mid, W(gate), rows, c->width, c->mlp_width, n);
  dkv_exact_linear_bwd(d->dh, true, DW(up), d->dup, t->h_mid, W(up), rows, c->width, c->mlp_width, n);
  dkv_exact_norm_bwd(d->dx, true, DW(mlp_norm), d->dh, t->x_mid, W(mlp_norm), rows, c->width, c->norm_epsilon);
}

/** dx at x_mid becomes dx at x. */
static dkv_status attention_backward(const dkv_exact *e, int32_t l) {
  const dkv_model_config *c = &e->model->config;
  const dkv_layer_params *w = &e->model->params.layer[l];
  const dkv_exact_layer *t = &e->layer[l];
  const dkv_exact_tensors *d = &e->other;
  const int32_t *position = e->batch.layout->position;
  int32_t rows = e->batch.layout->rows, q_width = c->heads * c->head_dim, kv_width = c->kv_heads * c->head_dim;
  int n = dkv_exact_threads(e);
  dkv_exact_linear_bwd(d->dout, false, DW(o), d->dx, t->o, W(o), rows, q_width, c->width, n);
  dkv_attention attention = dkv_exact_problem(e, t);
  attention.dout = d->dout;
  attention.dq = d->dq;
  attention.dk = d->dk;
  attention.dv = d->dv;
  DKV_TRY(dkv_exact_attention(&attention, DKV_BACKWARD));
  dkv_exact_rotate(d->dq, position, rows, c->heads, c->head_dim, c->rope_theta, -1, n);
  dkv_exact_rotate(d->dk, position, rows, c->kv_heads, c->head_dim, c->rope_theta, -1, n);
  dkv_exact_norm_bwd(d->dq, false, DW(q_norm), d->dq, t->q_raw, W(q_norm), (int64_t)rows * c->heads, c->head_dim,
                     c->norm_epsilon);
  dkv_exact_norm_bwd(d->dk, false, DW(k_norm), d->dk, t->k_raw, W(k_norm), (int64_t)rows * c->kv_heads, c->head_dim,
                     c->norm_epsilon);
  dkv_exact_linear_bwd(d->dh, false, DW(q), d->dq, t->h, W(q), rows, c->width, q_width, n);
  dkv_exact_linear_bwd(d->dh, true, DW(k), d->dk, t->h, W(k), rows, c->width, kv_width, n);
  dkv_exact_linear_bwd(d->dh, true, DW(v), d->dv, t->h, W(v), rows, c->width, kv_width, n);
  dkv_exact_norm_bwd(d->dx, true, DW(attention_norm), d->dh, t->x, W(attention_norm), rows, c->width, c->norm_epsilon);
  return DKV_OK;
}

/** d logprob, d entropy -> d logits of the rows that predict, dx at the last layer's output. */
static void head_backward(const dkv_exact *e, const float *dlogprob, const float *dentropy) {
  const dkv_model_config *c = &e->model->config;
  const dkv_params *w = &e->model->params;
  const dkv_exact_tensors *d = &e->other;
  int32_t rows = e->batch.layout->rows, V = c->vocabulary;
  double temperature = (double)e->batch.temperature;
  memset(d->dlogits, 0, (size_t)rows * (size_t)V * sizeof *d->dlogits);
  for (int32_t i = 0; i < e->batch.pair_count; ++i) {
    int64_t at = dkv_offset(e->batch.pairs[i].source, 0, 1, V);
    double entropy = 0, lse = dkv_exact_softmax(e, i, &entropy), g = (double)dlogprob[i];
    double h = dentropy != NULL ? (double)dentropy[i] : 0;
    for (int32_t v = 0; v < V; ++v) {
      double log_p = d->logits[at + v] / temperature - lse, p = exp(log_p);
      d->dlogits[at + v] -= (g * p + h * p * (log_p + entropy)) / temperature;
    }
    d->dlogits[at + dkv_exact_token(e, i)] += g / temperature;
  }
  dkv_exact_linear_bwd(d->dh, false, DW(lm_head), d->dlogits, d->h, W(lm_head), rows, c->width, V,
                       dkv_exact_threads(e));
  dkv_exact_norm_bwd(d->dx, false, DW(final_norm), d->dh, d->x, W(final_norm), rows, c->width, c->norm_epsilon);
}

dkv_status dkv_exact_backward(dkv_exact *e, const float *dlogprob, const float *dentropy) {
  DKV_REQUIRE(e != NULL, DKV_ERR_NULL, "dkv_exact_backward: exact must not be NULL");
  DKV_REQUIRE(dlogprob != NULL || e->batch.pair_count == 0, DKV_ERR_NULL,
              "dkv_exact_backward: dlogprob must not be NULL");
  DKV_REQUIRE(e->forward_done, DKV_ERR_RANGE, "dkv_exact_backward: needs one dkv_exact_forward, and consumes it");
  e->forward_done = false;
  const dkv_model_config *c = &e->model->config;
  head_backward(e, dlogprob, dentropy);
  for (int32_t l = c->layers - 1; l >= 0; --l) {
    mlp_backward(e, l);
    DKV_TRY(attention_backward(e, l));
  }
  double *table = dkv_exact_at(e, e->grad, e->model->params.embed);
  for (int32_t t = 0; t < e->batch.layout->rows; ++t)
    for (int32_t i = 0; i < c->width; ++i)
      table[dkv_offset(e->batch.ids[t], 0, 1, c->width) + i] += e->other.dx[dkv_offset(t, 0, 1, c->width) + i];
  return DKV_OK;
}
