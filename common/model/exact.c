/**
 * @file exact.c
 * @brief Opens a double twin of a model, and steps it with AdamW in double; see exact.h.
 *
 * Read before: exact.h, optimizer.c.  Read next: exact_forward.c.
 */
#include "common/model/exact.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

dkv_status dkv_exact_open(dkv_exact *out, dkv_model *model) {
  DKV_REQUIRE(out != NULL && model != NULL, DKV_ERR_NULL, "dkv_exact_open: out and model must not be NULL");
  memset(out, 0, sizeof *out);
  size_t count = (size_t)model->params.count;
  out->model = model;
  out->count = model->params.count;
  out->layer = calloc((size_t)model->config.layers, sizeof *out->layer);
  double **array[] = {&out->weight, &out->grad, &out->m, &out->v};
  bool ok = out->layer != NULL;
  for (int i = 0; i < 4; ++i) ok = (*array[i] = calloc(count, sizeof(double))) != NULL && ok;
  if (!ok) {
    dkv_exact_close(out);
    return dkv_fail(DKV_ERR_NOMEM, "no memory for %zu parameters in double", count);
  }
  for (size_t i = 0; i < count; ++i) out->weight[i] = (double)model->params.data[i];
  return DKV_OK;
}

void dkv_exact_close(dkv_exact *e) {
  if (e == NULL) return;
  void *owned[] = {e->weight, e->grad, e->m, e->v, e->layer, e->memory};
  for (size_t i = 0; i < sizeof owned / sizeof owned[0]; ++i) free(owned[i]);
  memset(e, 0, sizeof *e);
}

/** One view of the flat arrays. */
static void step_view(dkv_exact *e, const dkv_optimizer_config *c, const dkv_param *view, double lr, double scale) {
  double correct_m = 1 / (1 - pow(c->beta1, (double)e->step)), correct_v = 1 / (1 - pow(c->beta2, (double)e->step));
  double decay = view->decays ? c->weight_decay : 0;
  for (int64_t i = view->offset; i < view->offset + view->rows * view->cols; ++i) {
    double g = e->grad[i] * scale;
    e->m[i] = c->beta1 * e->m[i] + (1 - c->beta1) * g;
    e->v[i] = c->beta2 * e->v[i] + (1 - c->beta2) * g * g;
    e->weight[i] -= lr * (e->m[i] * correct_m / (sqrt(e->v[i] * correct_v) + c->epsilon) + decay * e->weight[i]);
    e->model->params.data[i] = (float)e->weight[i];
  }
}

dkv_status dkv_exact_step(dkv_exact *e, const dkv_optimizer_config *config, double lr, double *grad_norm) {
  DKV_REQUIRE(e != NULL && config != NULL && grad_norm != NULL, DKV_ERR_NULL, "dkv_exact_step: an argument is NULL");
  double squares = 0;
  for (int64_t i = 0; i < e->count; ++i) squares += e->grad[i] * e->grad[i];
  double norm = *grad_norm = sqrt(squares);
  DKV_REQUIRE(isfinite(norm), DKV_ERR_RANGE, "the gradient's norm is %g: no step is taken", norm);
  e->step += 1;
  double scale = config->max_norm > 0 && norm > config->max_norm ? config->max_norm / norm : 1;
  for (int32_t i = 0; i < e->model->params.view_count; ++i) step_view(e, config, &e->model->params.view[i], lr, scale);
  return DKV_OK;
}
