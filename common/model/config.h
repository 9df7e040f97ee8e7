/**
 * @file config.h
 * @brief The numbers that define a Qwen3-style decoder, read from and written to a Hugging Face config.json.
 *
 * transformers 4 and 5 spell some keys differently (rope_theta and rope_scaling, or rope_parameters; torch_dtype or
 * dtype): both are read.  A missing key means the default of Qwen3Config.  The head size is its own number, never width
 * / heads.  A setting that would change the arithmetic and that is not built (a sliding window in use, RoPE scaling,
 * attention bias, dropout, another activation or model_type) is refused by its name, never ignored.
 *
 * Read before: status.h.  Read next: params.h, model.h.
 */
#ifndef DKV_MODEL_CONFIG_H
#define DKV_MODEL_CONFIG_H

#include "common/dtype.h"

DKV_BEGIN_C

/** Most end-of-sequence ids of a model. */
#define DKV_MAX_EOS 8

/** Shape and constants of a decoder. */
typedef struct dkv_model_config {
  int32_t layers;           /**< L >= 1 */
  int32_t width;            /**< C >= 1 */
  int32_t mlp_width;        /**< F >= 1 */
  int32_t vocabulary;       /**< V >= 1, rows of the embedding */
  int32_t heads;            /**< H, a multiple of kv_heads */
  int32_t kv_heads;         /**< Hkv >= 1 */
  int32_t head_dim;         /**< D, a multiple of 8 up to DKV_MAX_HEAD_DIM; H D need not be C */
  int32_t max_positions;    /**< longest path; a longer one is refused */
  double norm_epsilon;      /**< epsilon of every RMSNorm, > 0 */
  double rope_theta;        /**< base of the rotation angles, > 0 */
  bool tied;                /**< the LM head is the embedding table */
  int32_t eos_count;        /**< number of end-of-sequence ids, 0 to DKV_MAX_EOS */
  int32_t eos[DKV_MAX_EOS]; /**< end-of-sequence ids */
  double init_std;          /**< standard deviation of fresh weights (initializer_range) */
} dkv_model_config;

/**
 * Checks every rule stated beside the fields.
 * @param[in] config the configuration
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE; DKV_ERR_SHAPE
 */
dkv_status dkv_model_config_check(const dkv_model_config *config);

/**
 * Reads config.json; the end-of-sequence ids of a generation_config.json beside it, when there is one, take precedence.
 * @param[out] out  overwritten; zeroed on failure
 * @param[in]  path path of config.json
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_IO; DKV_ERR_FORMAT (not JSON, a key missing or of a wrong type);
 * DKV_ERR_UNSUPPORTED (a setting that is not built, by name and value); whatever dkv_model_config_check says
 */
dkv_status dkv_model_config_load(dkv_model_config *out, const char *path);

/**
 * Writes config.json, atomically, in a spelling that transformers 4 and 5 both read.
 * @param[in] config the configuration
 * @param[in] path   where
 * @param[in] dtype  type of the stored weights: f32, bf16 or f16
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_UNSUPPORTED; DKV_ERR_IO; DKV_ERR_NOMEM
 */
dkv_status dkv_model_config_save(const dkv_model_config *config, const char *path, dkv_dtype dtype);

DKV_END_C
#endif
