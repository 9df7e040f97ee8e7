/**
 * @file forward.c
 * @brief The decoder, top to bottom, over the packed rows of any layout.
 *
 *     x_0 = E[ids]                                                        rows of the layout, each computed once
 *     layer    h = norm(x) w_1            q, k, v = h Wq^T, h Wk^T, h Wv^T
 *              q, k <- rotate(norm(q) w_q, norm(k) w_k)                   per head; angle = path position
 *              x' = x + attention(q, k, v) Wo^T                           rule dkv_sees: the only place where rows meet
 *              h = norm(x') w_2           x_next = x' + (silu(h Wg^T) * h Wu^T) Wd^T
 *     head     rows that predict:  logprob, entropy of softmax(norm(x_L) w Wlm^T / temperature)
 *
 * The last layer's output is read at the rows that predict and nowhere else, so there q, x' and the MLP are computed
 * for these "active" rows alone; keys and values are those of all rows.
 *
 * Nothing here knows whether the layout is packed or replicated.  Every line calls one layer through the table.
 *
 * Read before: model.h, plan.h, stack.h.  Read next: backward.c.
 */
#include <math.h>

#include "common/model/stack.h"

dkv_status dkv_layer_pick(const dkv_model *model, const dkv_pass *pass, int32_t l, const float **out, float *few,
                          const float *all, int32_t width) {
  *out = all;
  if (!dkv_pass_few(pass, l)) return DKV_OK;
  *out = few;
  dkv_where where = {.threads = model->options.threads};
  return model->layers->gather_rows(&where, few, all, pass->source_row, pass->source_count, width);
}

dkv_status dkv_layer_spread(const dkv_model *model, const dkv_pass *pass, float *all, const float *few, int32_t width) {
  dkv_where where = {.threads = model->options.threads};
  DKV_TRY(model->backend->fill(all, 0, (size_t)pass->plan.rows * (size_t)width * sizeof(float)));
  return model->layers->scatter_rows(&where, all, few, pass->source_row, pass->source_count, width);
}

dkv_status dkv_layer_rotate(const dkv_model *model, const dkv_pass *pass, int32_t l, const dkv_layer_tensors *tensors) {
  const dkv_model_config *c = &model->config;
  const dkv_layers *f = model->layers;
  const dkv_layer_params *w = &model->params.layer[l];
  const int32_t *position = pass->batch.layout->position, rows = pass->plan.rows;
  int32_t active = dkv_plan_active(&pass->plan, l);
  dkv_passing_tensors p = dkv_plan_passing(&pass->plan, c, pass->arena);
  dkv_where where = dkv_pass_where(model, &p);
  int64_t q_heads = (int64_t)active * c->heads, k_heads = (int64_t)rows * c->kv_heads;
  float epsilon = (float)c->norm_epsilon, *q = dkv_pass_few(pass, l) ? p.few_q : tensors->q;
  const int32_t *q_position = dkv_pass_few(pass, l) ? pass->source_position : position;
  DKV_TRY(f->rmsnorm_fwd(&where, q, p.rstd_q, tensors->q_raw, w->q_norm, q_heads, c->head_dim, epsilon));
  DKV_TRY(f->rmsnorm_fwd(&where, tensors->k, p.rstd_k, tensors->k_raw, w->k_norm, k_heads, c->head_dim, epsilon));
  DKV_TRY(f->rope(&where, q, pass->rope, q_position, active, c->heads, c->head_dim, false));
  DKV_TRY(f->rope(&where, tensors->k, pass->rope, position, rows, c->kv_heads, c->head_dim, false));
  return q == tensors->q ? DKV_OK : dkv_layer_spread(model, pass, tensors->q, q, c->heads * c->head_dim);
}

/** h = norm(x), q k v, rotate, attend, project, add: x_mid. Keys and values of all rows, the rest of the active ones.
 */
static dkv_status attention_forward(const dkv_model *model, const dkv_pass *pass, int32_t l, const dkv_layer_tensors *t,
                                    const float *x) {
  const dkv_model_config *c = &model->config;
  const dkv_layers *f = model->layers;
  const dkv_layer_params *w = &model->params.layer[l];
  int32_t rows = pass->plan.rows, active = dkv_plan_active(&pass->plan, l);
  int32_t q_width = c->heads * c->head_dim, kv_width = c->kv_heads * c->head_dim;
  dkv_passing_tensors p = dkv_plan_passing(&pass->plan, c, pass->arena);
  dkv_where where = dkv_pass_where(model, &p);
  const float *h, *o, *x_active;
  DKV_TRY(f->rmsnorm_fwd(&where, p.h, p.rstd, x, w->attention_norm, rows, c->width, (float)c->norm_epsilon));
  DKV_TRY(dkv_layer_pick(model, pass, l, &h, p.few_h, p.h, c->width));
  DKV_TRY(f->linear_fwd(&where, t->q_raw, false, h, w->q, active, c->width, q_width));
  DKV_TRY(f->linear_fwd(&where, t->k_raw, false, p.h, w->k, rows, c->width, kv_width));
  DKV_TRY(f->linear_fwd(&where, t->v, false, p.h, w->v, rows, c->width, kv_width));
  DKV_TRY(dkv_layer_rotate(model, pass, l, t));
  dkv_attention attention = pass->attention_fwd;
  attention.q = t->q;
  attention.k = t->k;
  attention.v = t->v;
  attention.o = t->o;
  attention.lse = t->lse;
  DKV_TRY(pass->kernel_fwd->run(&attention));
  DKV_TRY(dkv_layer_pick(model, pass, l, &o, p.few_q, t->o, q_width));
  DKV_TRY(f->linear_fwd(&where, t->x_mid, false, o, w->o, active, q_width, c->width));
  DKV_TRY(dkv_layer_pick(model, pass, l, &x_active, p.few_h, x, c->width));
  return f->residual(&where, t->x_mid, x_active, t->x_mid, (int64_t)active * c->width);
}

dkv_status dkv_layer_forward(const dkv_model *model, const dkv_pass *pass, int32_t l, const dkv_layer_tensors *t,
                             const float *x, float *x_next) {
  const dkv_model_config *c = &model->config;
  const dkv_layers *f = model->layers;
  const dkv_layer_params *w = &model->params.layer[l];
  int32_t active = dkv_plan_active(&pass->plan, l);
  dkv_passing_tensors p = dkv_plan_passing(&pass->plan, c, pass->arena);
  dkv_where where = dkv_pass_where(model, &p);
  DKV_TRY(attention_forward(model, pass, l, t, x));

  /* MLP: h = norm(x_mid), gate and up, silu(gate) up, project, add. */
  DKV_TRY(f->rmsnorm_fwd(&where, p.h, p.rstd, t->x_mid, w->mlp_norm, active, c->width, (float)c->norm_epsilon));
  DKV_TRY(f->linear_fwd(&where, t->gate, false, p.h, w->gate, active, c->width, c->mlp_width));
  DKV_TRY(f->linear_fwd(&where, t->up, false, p.h, w->up, active, c->width, c->mlp_width));
  if (x_next == NULL) return DKV_OK;
  DKV_TRY(f->swiglu_fwd(&where, p.act, t->gate, t->up, active, c->mlp_width));
  DKV_TRY(f->linear_fwd(&where, x_next, false, p.act, w->down, active, c->mlp_width, c->width));
  return f->residual(&where, x_next, t->x_mid, x_next, (int64_t)active * c->width);
}

dkv_status dkv_head_norm(const dkv_model *model, const dkv_pass *pass) {
  const dkv_model_config *c = &model->config;
  dkv_head_tensors t = dkv_plan_head(&pass->plan, c, pass->arena);
  dkv_where where = {.threads = model->options.threads};
  int32_t rows = pass->source_count;
  if (dkv_pass_gathers(pass))
    DKV_TRY(model->layers->gather_rows(&where, t.x, dkv_plan_input(&pass->plan, pass->arena, c->layers),
                                       pass->source_row, rows, c->width));
  return model->layers->rmsnorm_fwd(&where, t.h, t.rstd, t.x, model->params.final_norm, rows, c->width,
                                    (float)c->norm_epsilon);
}

/** Final norm and LM head over the rows that predict. */
static dkv_status head_forward(const dkv_model *model, dkv_pass *pass, float *logprob, float *entropy) {
  const dkv_model_config *c = &model->config;
  dkv_head_tensors t = dkv_plan_head(&pass->plan, c, pass->arena);
  dkv_passing_tensors p = dkv_plan_passing(&pass->plan, c, pass->arena);
  dkv_where where = dkv_pass_where(model, &p);
  dkv_scored scored = dkv_pass_scored(pass);
  DKV_TRY(dkv_head_norm(model, pass));
  return model->layers->lm_logprob_fwd(&where, logprob, entropy, t.lse, t.chunk, &scored, t.h, model->params.lm_head,
                                       c->width, c->vocabulary);
}

dkv_status dkv_model_forward(const dkv_model *model, dkv_pass *pass, float *logprob, float *entropy) {
  DKV_REQUIRE(model != NULL && pass != NULL, DKV_ERR_NULL, "dkv_model_forward: model and pass must not be NULL");
  DKV_REQUIRE(pass->batch.layout != NULL, DKV_ERR_RANGE,
              "dkv_model_forward: the pass has no batch; call dkv_pass_set first");
  DKV_REQUIRE(logprob != NULL || pass->batch.pair_count == 0, DKV_ERR_NULL,
              "dkv_model_forward: logprob must not be NULL");
  const dkv_model_config *c = &model->config;
  dkv_passing_tensors p = dkv_plan_passing(&pass->plan, c, pass->arena);
  dkv_where where = dkv_pass_where(model, &p);
  float *x = dkv_plan_input(&pass->plan, pass->arena, 0);
  pass->forward_done = false;
  DKV_TRY(model->layers->embedding_fwd(&where, x, model->params.embed, pass->batch.ids, pass->plan.rows, c->width));
  for (int32_t l = 0; l < c->layers; ++l) {
    dkv_layer_tensors tensors = dkv_plan_layer(&pass->plan, c, pass->arena, l);
    float *x_next = dkv_pass_output(pass, c, l);
    DKV_TRY(dkv_layer_forward(model, pass, l, &tensors, x, x_next));
    x = x_next;
  }
  DKV_TRY(head_forward(model, pass, logprob, entropy));
  for (int32_t i = 0; i < pass->batch.pair_count; ++i)
    DKV_REQUIRE(isfinite(logprob[i]), DKV_ERR_RANGE,
                "dkv_model_forward: the log-probability of pair %d is %g; a weight or an activation has overflowed", i,
                (double)logprob[i]);
  pass->forward_done = true;
  return DKV_OK;
}

dkv_status dkv_model_logits(const dkv_model *model, dkv_pass *pass, float *logits) {
  DKV_REQUIRE(model != NULL && pass != NULL && logits != NULL, DKV_ERR_NULL,
              "dkv_model_logits: model, pass and logits must not be NULL");
  DKV_REQUIRE(pass->forward_done, DKV_ERR_RANGE, "dkv_model_logits: call dkv_model_forward first");
  const dkv_model_config *c = &model->config;
  dkv_head_tensors t = dkv_plan_head(&pass->plan, c, pass->arena);
  dkv_where where = {.threads = model->options.threads};
  return model->layers->linear_fwd(&where, logits, false, t.h, model->params.lm_head, pass->source_count, c->width,
                                   c->vocabulary);
}
