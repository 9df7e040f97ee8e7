/**
 * @file optimizer.c
 * @brief AdamW over the flat array: clip the whole gradient by its norm, then step view by view; and learning-rate
 * schedules.
 *
 * Read before: optimizer.h.  Read next: resume.c, cpu/layers/adamw.c.
 */
#include "common/model/optimizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

dkv_optimizer_config dkv_optimizer_defaults(void) {
  dkv_optimizer_config config = {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.0, .max_norm = 1.0};
  return config;
}

static dkv_status check_config(const dkv_optimizer_config *c) {
  DKV_REQUIRE(c->beta1 >= 0.0 && c->beta1 < 1.0, DKV_ERR_RANGE, "beta1 is %g; it must be in [0, 1)", c->beta1);
  DKV_REQUIRE(c->beta2 >= 0.0 && c->beta2 < 1.0, DKV_ERR_RANGE, "beta2 is %g; it must be in [0, 1)", c->beta2);
  DKV_REQUIRE(isfinite(c->epsilon) && c->epsilon > 0.0, DKV_ERR_RANGE, "epsilon is %g; it must be positive",
              c->epsilon);
  DKV_REQUIRE(isfinite(c->weight_decay) && c->weight_decay >= 0.0, DKV_ERR_RANGE,
              "weight_decay is %g; it must be 0 or more", c->weight_decay);
  DKV_REQUIRE(isfinite(c->max_norm) && c->max_norm >= 0.0, DKV_ERR_RANGE,
              "max_norm is %g; it must be 0 (never clip) or more", c->max_norm);
  return DKV_OK;
}

dkv_status dkv_optimizer_create(dkv_optimizer *out, const dkv_model *model, const dkv_optimizer_config *config) {
  DKV_REQUIRE(out != NULL && model != NULL, DKV_ERR_NULL, "dkv_optimizer_create: out and model must not be NULL");
  memset(out, 0, sizeof *out);
  dkv_optimizer_config chosen = config != NULL ? *config : dkv_optimizer_defaults();
  DKV_TRY(check_config(&chosen));
  size_t bytes = (size_t)model->params.count * sizeof(float);
  float *m = aligned_alloc(64, bytes), *v = aligned_alloc(64, bytes);
  if (m == NULL || v == NULL) {
    free(m);
    free(v);
    return dkv_fail(DKV_ERR_NOMEM, "no memory for the moments of %lld parameters", (long long)model->params.count);
  }
  memset(m, 0, bytes);
  memset(v, 0, bytes);
  *out = (dkv_optimizer){.config = chosen, .count = model->params.count, .m = m, .v = v};
  return DKV_OK;
}

void dkv_optimizer_free(dkv_optimizer *optimizer) {
  if (optimizer == NULL) return;
  free(optimizer->m);
  free(optimizer->v);
  memset(optimizer, 0, sizeof *optimizer);
}

dkv_status dkv_optimizer_step(dkv_optimizer *optimizer, dkv_model *model, double lr, double *grad_norm) {
  DKV_REQUIRE(optimizer != NULL && model != NULL, DKV_ERR_NULL,
              "dkv_optimizer_step: optimizer and model must not be NULL");
  DKV_REQUIRE(model->grads.data != NULL, DKV_ERR_NULL, "dkv_optimizer_step: the model has no gradients yet");
  DKV_REQUIRE(optimizer->count == model->params.count, DKV_ERR_SHAPE,
              "dkv_optimizer_step: the moments have %lld elements, the parameters %lld", (long long)optimizer->count,
              (long long)model->params.count);
  DKV_REQUIRE(isfinite(lr) && lr >= 0.0, DKV_ERR_RANGE, "the learning rate is %g; it must be 0 or more", lr);
  const dkv_optimizer_config *c = &optimizer->config;
  dkv_where where = {.threads = model->options.threads};
  double squares = 0.0;
  DKV_TRY(model->layers->sum_squares(&where, &squares, model->grads.data, model->grads.count));
  double norm = sqrt(squares);
  if (grad_norm != NULL) *grad_norm = norm;
  DKV_REQUIRE(isfinite(norm), DKV_ERR_RANGE, "the gradient's norm is %g: no step is taken", norm);
  optimizer->step++;
  dkv_adamw constants = {.lr = (float)lr,
                         .beta1 = (float)c->beta1,
                         .beta2 = (float)c->beta2,
                         .epsilon = (float)c->epsilon,
                         .grad_scale = c->max_norm > 0.0 && norm > c->max_norm ? (float)(c->max_norm / norm) : 1.0f,
                         .step = optimizer->step};
  for (int32_t i = 0; i < model->params.view_count; ++i) {
    const dkv_param *view = &model->params.view[i];
    int64_t at = view->offset;
    constants.weight_decay = view->decays ? (float)c->weight_decay : 0.0f;
    DKV_TRY(model->layers->adamw(&where, model->params.data + at, optimizer->m + at, optimizer->v + at,
                                 model->grads.data + at, view->rows * view->cols, &constants));
  }
  return DKV_OK;
}

double dkv_schedule_rate(const dkv_schedule *s, int64_t step) {
  if (step < s->warmup) return s->peak * (double)(step + 1) / (double)s->warmup;
  if (s->shape == DKV_SCHEDULE_CONSTANT || s->total <= s->warmup + 1) return s->peak;
  double done =
      (double)(step - s->warmup) / (double)(s->total - 1 - s->warmup); /* 0 after the warm-up, 1 at the last step */
  if (done > 1.0) done = 1.0;
  double left = s->shape == DKV_SCHEDULE_LINEAR ? 1.0 - done : 0.5 * (1.0 + cos(3.14159265358979323846 * done));
  return s->peak * (s->floor + (1.0 - s->floor) * left);
}
