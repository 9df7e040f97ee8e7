/**
 * @file checkpoint.h
 * @brief What the makers and the readers of models share. Private to common/model.
 *
 * Read before: model.h.  Read next: checkpoint.c.
 */
#ifndef DKV_MODEL_CHECKPOINT_H
#define DKV_MODEL_CHECKPOINT_H

#include "common/model/model.h"

/**
 * A model with zeroed parameters.
 * @param[out] out     overwritten; zeroed on failure
 * @param[in]  config  shape
 * @param[in]  options NULL = defaults
 * @return as dkv_model_create
 */
dkv_status dkv_model_allocate(dkv_model *out, const dkv_model_config *config, const dkv_model_options *options);

/**
 * One dkv_tensor per view of a flat array, in the order of the views: what dkv_safetensors_write takes.
 * @param[out] out    [params->view_count] overwritten; names point into params
 * @param[in]  params views
 * @param[in]  data   the flat array, of type dtype
 * @param[in]  dtype  its type
 */
void dkv_params_tensors(dkv_tensor *out, const dkv_params *params, const void *data, dkv_dtype dtype);

#endif
