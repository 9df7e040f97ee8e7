/**
 * @file params.h
 * @brief All parameters in one flat float array, and a table of named views into it; gradients and moments have the
 * same shape.
 *
 *     data  [ embed | layer 0: norm q k v q_norm k_norm o norm gate up down | layer 1 ... | norm | lm_head if not tied
 * ]
 *
 * The optimizer walks the flat array; the model reads the views; files use the names, which are those of Hugging Face.
 * Every weight is [out][in] row-major: y = x W^T.
 *
 * Read before: config.h.  Read next: model.h, forward.c.
 */
#ifndef DKV_MODEL_PARAMS_H
#define DKV_MODEL_PARAMS_H

#include "common/model/config.h"

DKV_BEGIN_C

/** Parameters of one decoder layer: views into a flat array. */
typedef struct dkv_layer_params {
  float *attention_norm; /**< [C] input_layernorm */
  float *q;              /**< [H D][C] */
  float *k;              /**< [Hkv D][C] */
  float *v;              /**< [Hkv D][C] */
  float *q_norm;         /**< [D] */
  float *k_norm;         /**< [D] */
  float *o;              /**< [C][H D] */
  float *mlp_norm;       /**< [C] post_attention_layernorm */
  float *gate;           /**< [F][C] */
  float *up;             /**< [F][C] */
  float *down;           /**< [C][F] */
} dkv_layer_params;

/** One named view. */
typedef struct dkv_param {
  char name[72];  /**< Hugging Face name, "model.layers.0.self_attn.q_proj.weight" */
  int64_t offset; /**< first element in the flat array */
  int64_t rows;   /**< out; 1 for a vector */
  int64_t cols;   /**< in; the length of a vector */
  bool is_vector; /**< stored with rank 1 */
  bool decays;    /**< takes weight decay: matrices of the layers and an untied head; not norms, not the embedding */
} dkv_param;

/** A flat array and its views. */
typedef struct dkv_params {
  float *data;             /**< [count], 64-byte aligned */
  int64_t count;           /**< elements, padding between views included (always zero) */
  int32_t view_count;      /**< named views */
  dkv_param *view;         /**< [view_count] in the order of data */
  float *embed;            /**< [V][C] */
  float *final_norm;       /**< [C] */
  float *lm_head;          /**< [V][C]; the same pointer as embed when tied */
  int32_t layer_count;     /**< L */
  dkv_layer_params *layer; /**< [L] */
} dkv_params;

/**
 * Allocates a zeroed flat array with its views.
 * @param[out] out    overwritten; zeroed on failure
 * @param[in]  config a configuration that passes dkv_model_config_check
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_NOMEM
 */
dkv_status dkv_params_create(dkv_params *out, const dkv_model_config *config);

/**
 * Fresh weights: norms 1, everything else normal with deviation init_std (residual outputs o and down divided by sqrt(2
 * L)), drawn from dkv_rng_normal(seed, view, element), so that a weight does not depend on any other.
 * @param[in,out] params overwritten
 * @param[in]     config its configuration
 * @param[in]     seed   seed
 */
void dkv_params_init(dkv_params *params, const dkv_model_config *config, uint64_t seed);

/** Finds a view by its name. @param[in] params parameters. @param[in] name Hugging Face name. @return the view, or
 * NULL. */
const dkv_param *dkv_params_find(const dkv_params *params, const char *name);

/** Number of trainable elements, padding not counted. @param[in] params parameters. @return elements. */
int64_t dkv_params_elements(const dkv_params *params);

/** Frees; accepts a zeroed struct. @param[in,out] params zeroed afterwards. */
void dkv_params_free(dkv_params *params);

DKV_END_C
#endif
