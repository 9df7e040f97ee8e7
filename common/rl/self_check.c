/**
 * @file self_check.c
 * @brief The first step computed both ways; see self_check.h.
 */
#include "common/rl/self_check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/rl/seed.h"

dkv_status dkv_gradients_compare(dkv_self_check *out, const dkv_params *packed, const float *other, double tolerance) {
  DKV_REQUIRE(out && packed && packed->data && other, DKV_ERR_NULL, "dkv_gradients_compare: an argument is NULL");
  double all = 0;
  out->worst = -1;
  out->parameters = packed->view_count;
  for (int32_t i = 0; i < packed->view_count; ++i) {
    const dkv_param *view = &packed->view[i];
    double squares = 0, gap = 0;
    for (int64_t j = view->offset; j < view->offset + view->rows * view->cols; ++j) {
      double a = (double)packed->data[j], b = (double)other[j];
      squares += a * a;
      gap += (a - b) * (a - b);
    }
    double error = gap == 0 ? 0 : sqrt(gap / squares); /* x/0 is infinite: present in one of them only */
    all += squares;
    if (!(error <= out->worst)) { /* written so that NaN counts as the worst */
      out->worst = error;
      snprintf(out->worst_parameter, sizeof out->worst_parameter, "%s", view->name);
      if (isnan(error)) break;
    }
  }
  out->norm = sqrt(all);
  DKV_REQUIRE(out->worst <= tolerance, DKV_ERR_MISMATCH,
              "the gradient of %s differs by %.3g of its size between packed and replicated; rounding allows %.3g",
              out->worst_parameter, out->worst, tolerance);
  DKV_REQUIRE(out->norm > 0, DKV_ERR_MISMATCH, "the gradient is 0 in all %d parameters, so that nothing was compared",
              packed->view_count);
  return DKV_OK;
}

/** Have the first `used` groups any signal? */
static bool has_signal(const dkv_trainer *t, int32_t used) {
  for (int32_t g = 0; g < used; ++g)
    for (int32_t n = 0; n < t->config.responses; ++n)
      if (t->groups[g].advantage[n] != 0 && t->groups[g].active[n]) return true;
  return false;
}

/** Without signal: advantages from a normal distribution for all groups, so that there is a gradient to compare. */
static void draw_advantages(dkv_trainer *t) {
  uint64_t seed = dkv_seed(t->config.seed, DKV_SEED_SAMPLES);
  for (int32_t g = 0; g < t->config.groups; ++g)
    for (int32_t n = 0; n < t->config.responses; ++n) {
      t->groups[g].advantage[n] = (double)dkv_rng_normal(seed, UINT64_MAX - (uint64_t)g, (uint64_t)n);
      t->groups[g].active[n] = true;
    }
}

/** The gradient in one layout; the model's own gradients hold it afterwards. */
static dkv_status one_way(dkv_trainer *t, int32_t used, bool replicated, dkv_self_check *out) {
  dkv_update_stats stats = {0};
  dkv_normaliser total;
  struct timespec begin, end;
  DKV_TRY(dkv_model_zero_grads(t->model));
  clock_gettime(CLOCK_MONOTONIC, &begin);
  DKV_TRY(dkv_trainer_gradient(t, used, replicated, &stats, &total));
  clock_gettime(CLOCK_MONOTONIC, &end);
  out->seconds[replicated] = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
  out->loss[replicated] = stats.policy.loss;
  out->rows[replicated] = stats.rows;
  return DKV_OK;
}

dkv_status dkv_trainer_self_check(dkv_trainer *t, double tolerance, dkv_self_check *out) {
  DKV_REQUIRE(t && out, DKV_ERR_NULL, "dkv_trainer_self_check: an argument is NULL");
  DKV_REQUIRE(!t->config.exact, DKV_ERR_UNSUPPORTED, "the self-check compares float gradients; an exact run has none");
  *out = (dkv_self_check){0};
  dkv_train_stats sampled;
  int32_t used = 0;
  DKV_TRY(dkv_trainer_collect(t, &sampled, &used));
  out->drawn = !has_signal(t, used);
  if (out->drawn) {
    draw_advantages(t);
    used = t->config.groups;
  }
  DKV_TRY(one_way(t, used, true, out));
  size_t bytes = (size_t)t->model->grads.count * sizeof(float);
  float *replicated = malloc(bytes);
  DKV_REQUIRE(replicated != NULL, DKV_ERR_NOMEM, "no memory for a second gradient");
  memcpy(replicated, t->model->grads.data, bytes);
  dkv_status status = one_way(t, used, false, out);
  if (status == DKV_OK) status = dkv_gradients_compare(out, &t->model->grads, replicated, tolerance);
  free(replicated);
  DKV_TRY(status);
  double gap = fabs(out->loss[0] - out->loss[1]);
  DKV_REQUIRE(gap <= tolerance * fmax(1, fabs(out->loss[0])), DKV_ERR_MISMATCH,
              "the loss is %.9g packed and %.9g replicated; rounding allows a difference of %.3g", out->loss[0],
              out->loss[1], tolerance);
  return DKV_OK;
}
