/**
 * @file backward.c
 * @brief The same decoder from bottom to top: forward.c read upwards, each line replaced by its derivative.
 *
 *     head     dz from d logprob, d entropy;  dh = dz Wlm;  dWlm += dz^T h;  through the final norm;  scatter into dx
 *     layer    d act = dx Wd;  through silu(gate) up;  dh = d gate Wg + d up Wu;  dx += through norm(x')
 *              d o = dx Wo;  attention backward;  rotate dq, dk back;  through the heads' norms
 *              dh = dq Wq + dk Wk + dv Wv;  dx += through norm(x)
 *     x_0      dE[ids] += dx
 *
 * dx is the gradient of the residual stream.  It enters a layer as d x_next and leaves it as d x: a residual sum passes
 * its gradient on unchanged, so both branches just add to it.  A shared prompt needs no line of its own: its rows are
 * rows, and what all responses send to its keys and values is summed inside the attention kernel.
 *
 * Read before: forward.c.  Read next: optimizer.c, decode.c.
 */
#include "common/model/stack.h"

/* The last layer's dx comes from the head at the rows that predict and is 0 elsewhere: down to d o only these "active"
 * rows are computed.  d o is spread among zeros for the attention kernel, and from there on dx has all rows again. */

/** Everything a step of the backward needs. */
typedef struct context {
  dkv_model *model;
  dkv_pass *pass;
  const dkv_model_config *c;
  const dkv_layers *f;
  dkv_passing_tensors p;
  dkv_where where;
  int32_t rows, q_width, kv_width;
  float epsilon;
} context;

/** dx (at x_next) becomes dx at x_mid, both of the active rows; the MLP's gradients are added. */
static dkv_status mlp_backward(const context *b, int32_t l, const dkv_layer_tensors *t, float *dx) {
  const dkv_layer_params *w = &b->model->params.layer[l], *d = &b->model->grads.layer[l];
  const dkv_layers *f = b->f;
  const dkv_where *where = &b->where;
  int32_t rows = dkv_plan_active(&b->pass->plan, l), width = b->c->width, mlp = b->c->mlp_width;
  float *act = b->p.act, *dact = b->p.dact, *h = b->p.h, *dh = b->p.dh;

  DKV_TRY(f->swiglu_fwd(where, act, t->gate, t->up, rows, mlp));
  DKV_TRY(f->linear_bwd(where, dact, false, d->down, dx, act, w->down, rows, mlp, width));
  DKV_TRY(f->swiglu_bwd(where, t->gate, t->up, dact, rows, mlp)); /* gate, up hold their gradients now */
  DKV_TRY(f->rmsnorm_fwd(where, h, b->p.rstd, t->x_mid, w->mlp_norm, rows, width, b->epsilon));
  DKV_TRY(f->linear_bwd(where, dh, false, d->gate, t->gate, h, w->gate, rows, width, mlp));
  DKV_TRY(f->linear_bwd(where, dh, true, d->up, t->up, h, w->up, rows, width, mlp));
  return f->rmsnorm_bwd(where, dx, true, d->mlp_norm, dh, t->x_mid, b->p.rstd, w->mlp_norm, rows, width);
}

/** Runs the attention kernel: dq, dk, dv at the rotated q and k from dout. */
static dkv_status attend_backward(const context *b, const dkv_layer_tensors *t) {
  dkv_attention attention = b->pass->attention_bwd;
  attention.q = t->q;
  attention.k = t->k;
  attention.v = t->v;
  attention.o = t->o;
  attention.lse = t->lse;
  attention.dout = b->p.dout;
  attention.dq = b->p.dq;
  attention.dk = b->p.dk;
  attention.dv = b->p.dv;
  return b->pass->kernel_bwd->run(&attention);
}

/** Gradient of rotated and normed heads -> gradient of raw heads, in place; the norm's weight gets its gradient. */
static dkv_status heads_backward(const context *b, float *dheads, const float *raw, const float *rstd,
                                 const float *weight, float *dweight, const int32_t *position, int32_t rows,
                                 int32_t heads) {
  const dkv_layers *f = b->f;
  int32_t dim = b->c->head_dim;
  DKV_TRY(f->rope(&b->where, dheads, b->pass->rope, position, rows, heads, dim, true));
  return f->rmsnorm_bwd(&b->where, dheads, false, dweight, dheads, raw, rstd, weight, (int64_t)rows * heads, dim);
}

/** dx at x_mid -> dq, dk, dv at the raw heads of the active rows (dq) and of all rows (dk, dv). */
static dkv_status heads_from_output(const context *b, int32_t l, const dkv_layer_tensors *t, const float *dx,
                                    float **dq) {
  const dkv_layer_params *w = &b->model->params.layer[l], *d = &b->model->grads.layer[l];
  int32_t active = dkv_plan_active(&b->pass->plan, l);
  const int32_t *position = b->pass->batch.layout->position;
  bool few = dkv_pass_few(b->pass, l);
  const float *o, *picked;
  float *dout = few ? b->p.few_do : b->p.dout;
  DKV_TRY(dkv_layer_pick(b->model, b->pass, l, &o, b->p.few_q, t->o, b->q_width));
  DKV_TRY(b->f->linear_bwd(&b->where, dout, false, d->o, dx, o, w->o, active, b->q_width, b->c->width));
  if (few) DKV_TRY(dkv_layer_spread(b->model, b->pass, b->p.dout, dout, b->q_width));
  DKV_TRY(dkv_layer_rotate(b->model, b->pass, l, t));
  DKV_TRY(attend_backward(b, t));
  DKV_TRY(dkv_layer_pick(b->model, b->pass, l, &picked, b->p.few_q, b->p.dq, b->q_width));
  *dq = few ? b->p.few_q : b->p.dq;
  DKV_TRY(heads_backward(b, *dq, t->q_raw, b->p.rstd_q, w->q_norm, d->q_norm, few ? b->pass->source_position : position,
                         active, b->c->heads));
  return heads_backward(b, b->p.dk, t->k_raw, b->p.rstd_k, w->k_norm, d->k_norm, position, b->rows, b->c->kv_heads);
}

/** dx at x_mid of the active rows becomes dx at x of all rows, in p.dx; the attention's gradients are added. */
static dkv_status attention_backward(const context *b, int32_t l, const dkv_layer_tensors *t, const float *x,
                                     const float *dx_mid) {
  const dkv_layer_params *w = &b->model->params.layer[l], *d = &b->model->grads.layer[l];
  const dkv_layers *f = b->f;
  const dkv_where *where = &b->where;
  int32_t rows = b->rows, width = b->c->width, active = dkv_plan_active(&b->pass->plan, l);
  bool few = dkv_pass_few(b->pass, l);
  float *dx = b->p.dx, *h = b->p.h, *dh = b->p.dh, *dq = NULL;
  const float *h_active;
  DKV_TRY(heads_from_output(b, l, t, dx_mid, &dq));
  DKV_TRY(f->rmsnorm_fwd(where, h, b->p.rstd, x, w->attention_norm, rows, width, b->epsilon));
  DKV_TRY(f->linear_bwd(where, dh, false, d->k, b->p.dk, h, w->k, rows, width, b->kv_width));
  DKV_TRY(f->linear_bwd(where, dh, true, d->v, b->p.dv, h, w->v, rows, width, b->kv_width));
  DKV_TRY(dkv_layer_pick(b->model, b->pass, l, &h_active, b->p.few_h, h, width));
  float *dh_active = few ? b->p.few_dh : dh;
  DKV_TRY(f->linear_bwd(where, dh_active, !few, d->q, dq, h_active, w->q, active, width, b->q_width));
  if (few) DKV_TRY(f->scatter_rows(where, dh, dh_active, b->pass->source_row, active, width));
  if (few) DKV_TRY(dkv_layer_spread(b->model, b->pass, dx, dx_mid, width));
  return f->rmsnorm_bwd(where, dx, true, d->attention_norm, dh, x, b->p.rstd, w->attention_norm, rows, width);
}

/** d logprob, d entropy -> dx [U][C] at x_L of the rows that predict. */
static dkv_status head_backward(const context *b, const float *dlogprob, const float *dentropy, float *dx) {
  const dkv_params *w = &b->model->params, *d = &b->model->grads;
  const dkv_layers *f = b->f;
  dkv_head_tensors t = dkv_plan_head(&b->pass->plan, b->c, b->pass->arena);
  dkv_scored scored = dkv_pass_scored(b->pass);
  int32_t width = b->c->width;
  DKV_TRY(f->lm_logprob_bwd(&b->where, t.dh, d->lm_head, t.chunk, &scored, dlogprob, dentropy, t.lse, t.h, w->lm_head,
                            width, b->c->vocabulary));
  return f->rmsnorm_bwd(&b->where, dx, false, d->final_norm, t.dh, t.x, t.rstd, w->final_norm, scored.rows, width);
}

dkv_status dkv_model_backward(dkv_model *model, dkv_pass *pass, const float *dlogprob, const float *dentropy) {
  DKV_REQUIRE(model != NULL && pass != NULL, DKV_ERR_NULL, "dkv_model_backward: model and pass must not be NULL");
  DKV_REQUIRE(dlogprob != NULL || pass->batch.pair_count == 0, DKV_ERR_NULL,
              "dkv_model_backward: dlogprob must not be NULL");
  DKV_REQUIRE(pass->forward_done && !pass->batch.forward_only, DKV_ERR_RANGE,
              "dkv_model_backward: needs one dkv_model_forward of a batch that is not forward_only, and consumes it");
  if (model->grads.data == NULL) DKV_TRY(dkv_model_zero_grads(model));
  pass->forward_done = false;
  const dkv_model_config *c = &model->config;
  context b = {.model = model, .pass = pass, .c = c, .f = model->layers, .rows = pass->plan.rows};
  b.p = dkv_plan_passing(&pass->plan, c, pass->arena);
  b.where = dkv_pass_where(model, &b.p);
  b.q_width = c->heads * c->head_dim;
  b.kv_width = c->kv_heads * c->head_dim;
  b.epsilon = (float)c->norm_epsilon;

  float *dx = pass->plan.sources < b.rows ? b.p.few_dx : b.p.dx;
  DKV_TRY(head_backward(&b, dlogprob, dentropy, dx));
  if (dkv_pass_gathers(pass)) DKV_TRY(dkv_layer_spread(model, pass, b.p.dx, dx, c->width));
  if (dkv_pass_gathers(pass)) dx = b.p.dx;
  for (int32_t l = c->layers - 1; l >= 0; --l) {
    dkv_layer_tensors tensors = dkv_plan_layer(&pass->plan, c, pass->arena, l);
    const float *x = dkv_plan_input(&pass->plan, pass->arena, l);
    if (pass->plan.keep == DKV_KEEP_INPUTS) DKV_TRY(dkv_layer_forward(model, pass, l, &tensors, x, NULL));
    DKV_TRY(mlp_backward(&b, l, &tensors, dx));
    DKV_TRY(attention_backward(&b, l, &tensors, x, dx));
    dx = b.p.dx;
  }
  return b.f->embedding_bwd(&b.where, model->grads.embed, b.p.dx, pass->batch.ids, b.rows, c->width);
}
