/**
 * @file config.c
 * @brief Reads, checks and writes config.json.
 *
 * Reading takes three steps: refuse every setting that changes the arithmetic and is not built, read the numbers (with
 * Qwen3Config's defaults), check the rules.  Keys that change nothing here (use_cache, dtype, transformers_version,
 * ...) are skipped.
 *
 * Read before: config.h.  Read next: checkpoint.c.
 */
#include "common/model/config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/attention.h"
#include "common/model/json_file.h"

dkv_status dkv_model_config_check(const dkv_model_config *config) {
  DKV_REQUIRE(config != NULL, DKV_ERR_NULL, "dkv_model_config_check: config must not be NULL");
  const struct {
    const char *name;
    int32_t value;
  } sizes[] = {{"num_hidden_layers", config->layers},
               {"hidden_size", config->width},
               {"intermediate_size", config->mlp_width},
               {"vocab_size", config->vocabulary},
               {"num_attention_heads", config->heads},
               {"num_key_value_heads", config->kv_heads},
               {"max_position_embeddings", config->max_positions}};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i)
    DKV_REQUIRE(sizes[i].value >= 1 && sizes[i].value <= 1 << 24, DKV_ERR_RANGE, "%s is %d; it must be 1 to 2^24",
                sizes[i].name, sizes[i].value);
  DKV_REQUIRE(config->layers <= 1 << 16, DKV_ERR_RANGE, "num_hidden_layers is %d; it must be 1 to 2^16",
              config->layers); /* each takes memory before a file of weights is looked at */
  DKV_REQUIRE(config->heads % config->kv_heads == 0, DKV_ERR_SHAPE,
              "num_attention_heads is %d, not a multiple of num_key_value_heads = %d", config->heads, config->kv_heads);
  DKV_REQUIRE(config->head_dim >= 8 && config->head_dim <= DKV_MAX_HEAD_DIM && config->head_dim % 8 == 0, DKV_ERR_SHAPE,
              "head_dim is %d; it must be a multiple of 8 from 8 to %d", config->head_dim, DKV_MAX_HEAD_DIM);
  DKV_REQUIRE((int64_t)config->heads * config->head_dim <= 1 << 24, DKV_ERR_RANGE,
              "num_attention_heads times head_dim is %lld; it must be at most 2^24",
              (long long)config->heads * config->head_dim);
  DKV_REQUIRE(isfinite(config->norm_epsilon) && config->norm_epsilon > 0.0, DKV_ERR_RANGE,
              "rms_norm_eps is %g; it must be a positive number", config->norm_epsilon);
  DKV_REQUIRE(isfinite(config->rope_theta) && config->rope_theta > 0.0, DKV_ERR_RANGE,
              "rope_theta is %g; it must be a positive number", config->rope_theta);
  DKV_REQUIRE(isfinite(config->init_std) && config->init_std >= 0.0, DKV_ERR_RANGE,
              "initializer_range is %g; it must be 0 or more", config->init_std);
  DKV_REQUIRE(config->eos_count >= 0 && config->eos_count <= DKV_MAX_EOS, DKV_ERR_RANGE,
              "there are %d end-of-sequence ids; at most %d fit", config->eos_count, DKV_MAX_EOS);
  for (int32_t i = 0; i < config->eos_count; ++i)
    DKV_REQUIRE(config->eos[i] >= 0 && config->eos[i] < config->vocabulary, DKV_ERR_RANGE,
                "eos_token_id is %d; it must be 0 to vocab_size - 1 = %d", config->eos[i], config->vocabulary - 1);
  return DKV_OK;
}

/** The value of a key, NULL when it is missing or null. */
static const cJSON *present(const cJSON *object, const char *key) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
  return item == NULL || cJSON_IsNull(item) ? NULL : item;
}

/** Refuses a key unless it is missing, null, false or 0. */
static dkv_status refuse_unless_off(const cJSON *root, const char *key, const char *path) {
  const cJSON *item = present(root, key);
  bool off = item == NULL || cJSON_IsFalse(item) || (cJSON_IsNumber(item) && item->valuedouble == 0.0);
  DKV_REQUIRE(off, DKV_ERR_UNSUPPORTED, "%s: %s is set; this model is built without it", path, key);
  return DKV_OK;
}

/** Refuses a string key unless it is missing (when that is allowed) or has the one value that is built. */
static dkv_status refuse_unless(const cJSON *object, const char *key, const char *value, bool required,
                                const char *path) {
  const cJSON *item = present(object, key);
  if (item == NULL && !required) return DKV_OK;
  DKV_REQUIRE(item != NULL, DKV_ERR_FORMAT, "%s: %s is missing; it must be \"%s\"", path, key, value);
  DKV_REQUIRE(cJSON_IsString(item), DKV_ERR_FORMAT, "%s: %s is not a string", path, key);
  DKV_REQUIRE(strcmp(item->valuestring, value) == 0, DKV_ERR_UNSUPPORTED, "%s: %s is \"%.60s\"; only \"%s\" is built",
              path, key, item->valuestring, value);
  return DKV_OK;
}

static dkv_status read_number(double *out, const cJSON *object, const char *key, double missing, const char *path) {
  const cJSON *item = present(object, key);
  *out = missing;
  if (item == NULL) return DKV_OK;
  DKV_REQUIRE(cJSON_IsNumber(item), DKV_ERR_FORMAT, "%s: %s is not a number", path, key);
  *out = item->valuedouble;
  return DKV_OK;
}

static dkv_status read_size(int32_t *out, const cJSON *root, const char *key, int32_t missing, const char *path) {
  double value;
  DKV_TRY(read_number(&value, root, key, missing, path));
  DKV_REQUIRE(value >= 0.0 && value <= 2147483647.0 && value == floor(value), DKV_ERR_FORMAT,
              "%s: %s is %g; it must be a whole number", path, key, value);
  *out = (int32_t)value;
  return DKV_OK;
}

/** Refuses a block of blocks (one for each type of layer: its base would be missed) and a scaling that has no name. */
static dkv_status refuse_nested(const cJSON *block, const char *name, const char *path) {
  const cJSON *item;
  cJSON_ArrayForEach(item, block) {
    DKV_REQUIRE(!cJSON_IsObject(item), DKV_ERR_UNSUPPORTED,
                "%s: %s has a block %.60s of its own; one rotation for all layers is built", path, name, item->string);
  }
  bool named = present(block, "rope_type") != NULL || present(block, "type") != NULL;
  DKV_REQUIRE(named || present(block, "factor") == NULL, DKV_ERR_FORMAT,
              "%s: %s has a factor, but no rope_type that says what it scales", path, name);
  return DKV_OK;
}

/** The rotation's base: rope_parameters (transformers 5), or rope_theta with rope_scaling (transformers 4). */
static dkv_status read_rope(dkv_model_config *out, const cJSON *root, const char *path) {
  double share;
  DKV_TRY(read_number(&out->rope_theta, root, "rope_theta", 10000.0, path));
  DKV_TRY(read_number(&share, root, "partial_rotary_factor", 1.0, path));
  const char *const blocks[] = {"rope_scaling", "rope_parameters"};
  for (int i = 0; i < 2; ++i) {
    const cJSON *block = present(root, blocks[i]);
    if (block == NULL) continue;
    DKV_REQUIRE(cJSON_IsObject(block), DKV_ERR_FORMAT, "%s: %s is not an object", path, blocks[i]);
    DKV_TRY(refuse_nested(block, blocks[i], path));
    DKV_TRY(refuse_unless(block, "rope_type", "default", false, path));
    DKV_TRY(refuse_unless(block, "type", "default", false, path)); /* the older spelling of rope_type */
    if (share == 1.0) DKV_TRY(read_number(&share, block, "partial_rotary_factor", 1.0, path));
    DKV_TRY(read_number(&out->rope_theta, block, "rope_theta", out->rope_theta, path));
  }
  DKV_REQUIRE(share == 1.0, DKV_ERR_UNSUPPORTED, "%s: partial_rotary_factor is %g; only 1 is built", path, share);
  return DKV_OK;
}

/** End-of-sequence ids: a number or a list. */
static dkv_status read_eos(dkv_model_config *out, const cJSON *root, const char *path) {
  const cJSON *item = present(root, "eos_token_id");
  if (item == NULL) return DKV_OK;
  int count = cJSON_IsArray(item) ? cJSON_GetArraySize(item) : 1;
  DKV_REQUIRE(count <= DKV_MAX_EOS, DKV_ERR_UNSUPPORTED, "%s: eos_token_id has %d entries; at most %d fit", path, count,
              DKV_MAX_EOS);
  out->eos_count = count;
  const cJSON *entry = cJSON_IsArray(item) ? item->child : item;
  for (int i = 0; i < count; ++i, entry = entry->next) {
    bool whole =
        cJSON_IsNumber(entry) && entry->valuedouble == floor(entry->valuedouble) && fabs(entry->valuedouble) < 1e9;
    DKV_REQUIRE(whole, DKV_ERR_FORMAT, "%s: eos_token_id is neither a whole number nor a list of them", path);
    out->eos[i] = (int32_t)entry->valuedouble;
  }
  return DKV_OK;
}

/** Refuses every setting that would change the arithmetic. */
static dkv_status refuse_unsupported(const cJSON *root, const char *path) {
  DKV_TRY(refuse_unless(root, "model_type", "qwen3", true, path));
  DKV_TRY(refuse_unless(root, "hidden_act", "silu", false, path));
  const char *const off[] = {"attention_bias", "attention_dropout", "use_sliding_window", "quantization_config",
                             "mlp_bias"};
  for (size_t i = 0; i < sizeof off / sizeof off[0]; ++i) DKV_TRY(refuse_unless_off(root, off[i], path));
  const cJSON *types = present(root, "layer_types"), *type;
  DKV_REQUIRE(types == NULL || cJSON_IsArray(types), DKV_ERR_FORMAT, "%s: layer_types is not a list", path);
  cJSON_ArrayForEach(type, types) {
    bool full = cJSON_IsString(type) && strcmp(type->valuestring, "full_attention") == 0;
    DKV_REQUIRE(full, DKV_ERR_UNSUPPORTED, "%s: layer_types has \"%.60s\"; only \"full_attention\" is built", path,
                cJSON_IsString(type) ? type->valuestring : "something that is not a string");
  }
  return DKV_OK;
}

static dkv_status read_config(dkv_model_config *out, const cJSON *root, const char *path) {
  DKV_TRY(refuse_unsupported(root, path));
  DKV_TRY(read_size(&out->vocabulary, root, "vocab_size", 151936, path));
  DKV_TRY(read_size(&out->width, root, "hidden_size", 4096, path));
  DKV_TRY(read_size(&out->mlp_width, root, "intermediate_size", 22016, path));
  DKV_TRY(read_size(&out->layers, root, "num_hidden_layers", 32, path));
  DKV_TRY(read_size(&out->heads, root, "num_attention_heads", 32, path));
  /* A key that is there but null means as many as query heads; one that is missing means the class's 32. */
  bool is_null = cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(root, "num_key_value_heads"));
  DKV_TRY(read_size(&out->kv_heads, root, "num_key_value_heads", is_null ? out->heads : 32, path));
  DKV_TRY(read_size(&out->head_dim, root, "head_dim", 128, path));
  DKV_TRY(read_size(&out->max_positions, root, "max_position_embeddings", 32768, path));
  DKV_TRY(read_number(&out->norm_epsilon, root, "rms_norm_eps", 1e-6, path));
  DKV_TRY(read_number(&out->init_std, root, "initializer_range", 0.02, path));
  const cJSON *tied = present(root, "tie_word_embeddings");
  DKV_REQUIRE(tied == NULL || cJSON_IsBool(tied), DKV_ERR_FORMAT, "%s: tie_word_embeddings is neither true nor false",
              path);
  out->tied = tied != NULL && cJSON_IsTrue(tied);
  DKV_TRY(read_rope(out, root, path));
  return read_eos(out, root, path);
}

/** Reads generation_config.json beside config.json, when there is one, for its end-of-sequence ids. */
static dkv_status read_generation(dkv_model_config *out, const char *path) {
  const char *slash = strrchr(path, '/');
  char beside[4096];
  int n =
      snprintf(beside, sizeof beside, "%.*sgeneration_config.json", slash == NULL ? 0 : (int)(slash - path + 1), path);
  cJSON *root = NULL;
  if (n < 0 || (size_t)n >= sizeof beside || !dkv_file_exists(beside)) return DKV_OK;
  DKV_TRY(dkv_json_load(&root, beside));
  dkv_status status = read_eos(out, root, beside);
  cJSON_Delete(root);
  return status;
}

dkv_status dkv_model_config_load(dkv_model_config *out, const char *path) {
  DKV_REQUIRE(out != NULL && path != NULL, DKV_ERR_NULL, "dkv_model_config_load: out and path must not be NULL");
  memset(out, 0, sizeof *out);
  cJSON *root = NULL;
  dkv_status status = dkv_json_load(&root, path);
  if (status == DKV_OK) status = read_config(out, root, path);
  if (status == DKV_OK) status = read_generation(out, path);
  if (status == DKV_OK) status = dkv_model_config_check(out);
  cJSON_Delete(root);
  if (status != DKV_OK) memset(out, 0, sizeof *out);
  return status;
}

/** The configuration as JSON text that the caller frees; NULL without memory. */
static char *print_config(const dkv_model_config *config, const char *dtype) {
  cJSON *root = cJSON_CreateObject();
  cJSON *architectures = cJSON_AddArrayToObject(root, "architectures");
  cJSON_AddItemToArray(architectures, cJSON_CreateString("Qwen3ForCausalLM"));
  cJSON_AddStringToObject(root, "model_type", "qwen3");
  cJSON_AddNumberToObject(root, "vocab_size", config->vocabulary);
  cJSON_AddNumberToObject(root, "hidden_size", config->width);
  cJSON_AddNumberToObject(root, "intermediate_size", config->mlp_width);
  cJSON_AddNumberToObject(root, "num_hidden_layers", config->layers);
  cJSON_AddNumberToObject(root, "num_attention_heads", config->heads);
  cJSON_AddNumberToObject(root, "num_key_value_heads", config->kv_heads);
  cJSON_AddNumberToObject(root, "head_dim", config->head_dim);
  cJSON_AddNumberToObject(root, "max_position_embeddings", config->max_positions);
  cJSON_AddNumberToObject(root, "rms_norm_eps", config->norm_epsilon);
  cJSON_AddNumberToObject(root, "initializer_range", config->init_std);
  cJSON_AddBoolToObject(root, "tie_word_embeddings", config->tied);
  cJSON_AddStringToObject(root, "hidden_act", "silu");
  cJSON_AddBoolToObject(root, "attention_bias", false);
  cJSON_AddNumberToObject(root, "attention_dropout", 0.0);
  cJSON_AddBoolToObject(root, "use_sliding_window", false);
  cJSON_AddNumberToObject(root, "rope_theta", config->rope_theta); /* transformers 4 */
  cJSON *rope = cJSON_AddObjectToObject(root, "rope_parameters");  /* transformers 5 */
  cJSON_AddNumberToObject(rope, "rope_theta", config->rope_theta);
  cJSON_AddStringToObject(rope, "rope_type", "default");
  cJSON_AddStringToObject(root, "torch_dtype", dtype);
  cJSON_AddStringToObject(root, "dtype", dtype);
  if (config->eos_count == 1) cJSON_AddNumberToObject(root, "eos_token_id", config->eos[0]);
  if (config->eos_count > 1)
    cJSON_AddItemToObject(root, "eos_token_id", cJSON_CreateIntArray(config->eos, config->eos_count));
  char *text = cJSON_Print(root);
  cJSON_Delete(root);
  return text;
}

dkv_status dkv_model_config_save(const dkv_model_config *config, const char *path, dkv_dtype dtype) {
  DKV_REQUIRE(config != NULL && path != NULL, DKV_ERR_NULL, "dkv_model_config_save: config and path must not be NULL");
  DKV_REQUIRE(dtype == DKV_F32 || dtype == DKV_BF16 || dtype == DKV_F16, DKV_ERR_UNSUPPORTED,
              "dkv_model_config_save: weights are stored as f32, bf16 or f16, not as %s", dkv_dtype_name(dtype));
  char *text = print_config(config, dtype == DKV_F32 ? "float32" : dtype == DKV_BF16 ? "bfloat16" : "float16");
  DKV_REQUIRE(text != NULL, DKV_ERR_NOMEM, "no memory for config.json");
  dkv_status status = dkv_text_save(path, text);
  free(text);
  return status;
}
