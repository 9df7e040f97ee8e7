/**
 * @file model.c
 * @brief Makes and frees a model: parameters, and the tables of functions that it runs on.
 *
 * Read before: model.h.  Read next: pass.c, forward.c, checkpoint.c.
 */
#include "common/model/model.h"

#include <omp.h>
#include <string.h>

#include "common/model/checkpoint.h"

dkv_status dkv_model_allocate(dkv_model *out, const dkv_model_config *config, const dkv_model_options *options) {
  memset(out, 0, sizeof *out);
  DKV_TRY(dkv_model_config_check(config));
  const dkv_model_options defaults = {0};
  out->config = *config;
  out->options = options != NULL ? *options : defaults;
  if (out->options.backend == NULL) out->options.backend = "cpu";
  dkv_status status = DKV_OK;
  if (out->options.threads < 0)
    status = dkv_fail(DKV_ERR_RANGE, "threads is %d; it must be 0 (all) or more", out->options.threads);
  if (status == DKV_OK) status = dkv_layers_find(&out->layers, out->options.backend);
  if (status == DKV_OK) status = dkv_backend_find(&out->backend, out->options.backend);
  if (status == DKV_OK) status = dkv_params_create(&out->params, config);
  if (status != DKV_OK) dkv_model_free(out);
  return status;
}

dkv_status dkv_model_create(dkv_model *out, const dkv_model_config *config, uint64_t seed,
                            const dkv_model_options *options) {
  DKV_REQUIRE(out != NULL && config != NULL, DKV_ERR_NULL, "dkv_model_create: out and config must not be NULL");
  DKV_TRY(dkv_model_allocate(out, config, options));
  dkv_params_init(&out->params, config, seed);
  return DKV_OK;
}

void dkv_model_free(dkv_model *model) {
  if (model == NULL) return;
  dkv_params_free(&model->params);
  dkv_params_free(&model->grads);
  memset(model, 0, sizeof *model);
}

dkv_status dkv_model_zero_grads(dkv_model *model) {
  DKV_REQUIRE(model != NULL, DKV_ERR_NULL, "dkv_model_zero_grads: model must not be NULL");
  if (model->grads.data == NULL) return dkv_params_create(&model->grads, &model->config); /* comes zeroed */
  const dkv_params *grads = &model->grads;
  const int threads = model->options.threads > 0 ? model->options.threads : omp_get_max_threads();
  /* by all threads: one core alone does not write as fast as the memory takes it */
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (int32_t i = 0; i < grads->view_count; ++i)
    memset(grads->data + grads->view[i].offset, 0, (size_t)(grads->view[i].rows * grads->view[i].cols) * sizeof(float));
  return DKV_OK;
}
