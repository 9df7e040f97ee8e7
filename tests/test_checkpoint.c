/**
 * @file test_checkpoint.c
 * @brief Hugging Face directories: what is saved loads again, and everything that does not fit is refused in one
 * sentence.
 *
 * Read before: common/model/model.h, tests/support/tiny.h.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/expect.h"
#include "tests/support/tiny.h"

/** A directory of this test's own. */
static char *new_directory(void) {
  static char path[64];
  snprintf(path, sizeof path, "/tmp/dkv_checkpoint_XXXXXX");
  cr_assert(mkdtemp(path) != NULL);
  return path;
}

static const char *inside(const char *directory, const char *file) {
  static char path[2][256];
  static int turn;
  turn = !turn;
  snprintf(path[turn], sizeof path[turn], "%s/%s", directory, file);
  return path[turn];
}

static void write_text(const char *path, const char *text) {
  FILE *file = fopen(path, "w");
  cr_assert(file != NULL);
  fputs(text, file);
  fclose(file);
}

static void remove_directory(const char *directory) {
  const char *const files[] = {
      "config.json", "model.safetensors", "generation_config.json", "model.safetensors.index.json", "a", "b"};
  for (size_t i = 0; i < sizeof files / sizeof files[0]; ++i) unlink(inside(directory, files[i]));
  cr_assert_eq(rmdir(directory), 0, "a file was left in %s", directory);
}

/* Every type and both heads: the weights come back as they were rounded, the configuration as it was. */
Test(checkpoint, what_is_saved_loads_again) {
  const dkv_dtype types[] = {DKV_F32, DKV_BF16, DKV_F16};
  for (int tied = 0; tied < 2; ++tied)
    for (int k = 0; k < 3; ++k) {
      const char *directory = new_directory();
      dkv_model saved, loaded;
      tiny_model(&saved, tied == 1, 41, NULL);
      saved.config.eos_count = 2;
      saved.config.eos[1] = 36;
      saved.config.rope_theta = 1234.5;
      EXPECT_OK(dkv_model_save(&saved, directory, types[k]));
      EXPECT_OK(dkv_model_load(&loaded, directory, NULL));
      const dkv_model_config *a = &saved.config, *b = &loaded.config;
      cr_assert(a->layers == b->layers && a->width == b->width && a->mlp_width == b->mlp_width && a->heads == b->heads);
      cr_assert(a->kv_heads == b->kv_heads && a->head_dim == b->head_dim && a->vocabulary == b->vocabulary &&
                a->tied == b->tied);
      cr_assert(a->max_positions == b->max_positions && a->eos_count == b->eos_count && a->init_std == b->init_std);
      cr_assert(a->norm_epsilon == b->norm_epsilon && a->rope_theta == b->rope_theta);
      cr_assert_eq(loaded.config.eos[1], 36);
      for (int64_t i = 0; i < saved.params.count; ++i) {
        float w = saved.params.data[i];
        float want = k == 0   ? w
                     : k == 1 ? dkv_bf16_to_float(dkv_float_to_bf16(w))
                              : dkv_f16_to_float(dkv_float_to_f16(w));
        cr_assert_eq(loaded.params.data[i], want);
      }
      EXPECT_OK(dkv_model_save(&loaded, directory, types[k])); /* over the old one */
      dkv_model_free(&saved);
      dkv_model_free(&loaded);
      remove_directory(directory);
    }
}

/** Saves a tiny model with some tensors changed by `edit`, loads it, expects one sentence with all fragments. */
static void expect_complaint(void (*edit)(dkv_tensor *tensors, int32_t *count), bool tied,
                             const char *const fragments[]) {
  const char *directory = new_directory();
  dkv_model model, loaded;
  tiny_model(&model, tied, 42, NULL);
  EXPECT_OK(dkv_model_save(&model, directory, DKV_F32));
  dkv_safetensors file;
  EXPECT_OK(dkv_safetensors_open(&file, inside(directory, "model.safetensors")));
  dkv_tensor *tensors = calloc((size_t)file.tensor_count + 4, sizeof *tensors);
  int32_t count = file.tensor_count;
  memcpy(tensors, file.tensors, (size_t)count * sizeof *tensors);
  edit(tensors, &count);
  EXPECT_OK(dkv_safetensors_write(inside(directory, "model.safetensors"), tensors, count, NULL, 0));
  dkv_safetensors_close(&file);
  EXPECT_FAIL(DKV_ERR_FORMAT, fragments[0], dkv_model_load(&loaded, directory, NULL));
  for (int i = 1; fragments[i] != NULL; ++i)
    cr_assert(strstr(dkv_last_error(), fragments[i]) != NULL, "\"%s\" lacks \"%s\"", dkv_last_error(), fragments[i]);
  cr_assert(loaded.params.data == NULL, "a failed load leaves nothing");
  free(tensors);
  dkv_model_free(&model);
  remove_directory(directory);
}

static dkv_tensor *find(dkv_tensor *tensors, int32_t count, const char *name) {
  for (int32_t i = 0; i < count; ++i)
    if (strcmp(tensors[i].name, name) == 0) return &tensors[i];
  cr_assert_fail("no %s", name);
  return NULL;
}

static void break_three_ways(dkv_tensor *tensors, int32_t *count) {
  dkv_tensor *norm = find(tensors, *count, "model.norm.weight"),
             *up = find(tensors, *count, "model.layers.1.mlp.up_proj.weight");
  dkv_tensor *q = find(tensors, *count, "model.layers.0.self_attn.q_proj.weight");
  norm->name = "model.norm.bias";
  up->name = "model.layers.1.mlp.up_proj.scale";
  q->shape[0] = 24;
  q->shape[1] = 32;
}

Test(checkpoint, names_everything_that_is_wrong_in_one_sentence) {
  const char *const fragments[] = {"2 missing, 2 unknown, 1 misshapen",
                                   "missing model.norm.weight",
                                   "missing model.layers.1.mlp.up_proj.weight",
                                   "unknown model.norm.bias",
                                   "unknown model.layers.1.mlp.up_proj.scale",
                                   "model.layers.0.self_attn.q_proj.weight is f32 of rank 2 [24, 32], not [32, 24]",
                                   NULL};
  expect_complaint(break_three_ways, true, fragments);
}

static void drop_head(dkv_tensor *tensors, int32_t *count) {
  *find(tensors, *count, "lm_head.weight") = tensors[*count - 1];
  --*count;
}

Test(checkpoint, an_untied_model_needs_its_head) {
  const char *const fragments[] = {"1 missing, 0 unknown, 0 misshapen", "missing lm_head.weight", NULL};
  expect_complaint(drop_head, false, fragments);
}

static const float not_a_number[24] = {[5] = NAN};
static void poison(dkv_tensor *tensors, int32_t *count) {
  find(tensors, *count, "model.norm.weight")->data = not_a_number;
}

Test(checkpoint, a_weight_that_is_no_number_is_refused) {
  const char *const fragments[] = {"element 5 of model.norm.weight", NULL};
  expect_complaint(poison, true, fragments);
}

static const double doubles[24];
static void widen(dkv_tensor *tensors, int32_t *count) {
  dkv_tensor *norm = find(tensors, *count, "model.norm.weight");
  norm->dtype = DKV_F64;
  norm->data = doubles;
}

Test(checkpoint, a_type_that_is_not_read_is_misshapen) {
  const char *const fragments[] = {"1 misshapen", "model.norm.weight is f64", NULL};
  expect_complaint(widen, true, fragments);
}

/* Some tied checkpoints store a head all the same. */
Test(checkpoint, a_tied_model_ignores_a_stored_head) {
  const char *directory = new_directory();
  dkv_model untied, tied;
  tiny_model(&untied, false, 43, NULL);
  EXPECT_OK(dkv_model_save(&untied, directory, DKV_F32));
  untied.config.tied = true;
  EXPECT_OK(dkv_model_config_save(&untied.config, inside(directory, "config.json"), DKV_F32));
  EXPECT_OK(dkv_model_load(&tied, directory, NULL));
  cr_assert_eq(tied.params.lm_head, tied.params.embed);
  dkv_model_free(&untied);
  dkv_model_free(&tied);
  remove_directory(directory);
}

Test(checkpoint, shards_are_plain_files_that_exist) {
  const char *directory = new_directory(), *index = "model.safetensors.index.json";
  dkv_model model, loaded;
  tiny_model(&model, true, 44, NULL);
  EXPECT_OK(dkv_model_config_save(&model.config, inside(directory, "config.json"), DKV_F32));
  EXPECT_FAIL(DKV_ERR_IO, "neither model.safetensors nor", dkv_model_load(&loaded, directory, NULL));
  write_text(inside(directory, index), "{\"weight_map\": {\"model.norm.weight\": \"../../etc/passwd\"}}");
  EXPECT_FAIL(DKV_ERR_FORMAT, "not a plain file name", dkv_model_load(&loaded, directory, NULL));
  write_text(inside(directory, index), "{\"weight_map\": {\"model.norm.weight\": \"a\"}}");
  EXPECT_FAIL(DKV_ERR_IO, "/a", dkv_model_load(&loaded, directory, NULL));
  write_text(inside(directory, index), "{\"weight_map\": []}");
  EXPECT_FAIL(DKV_ERR_FORMAT, "no weight_map", dkv_model_load(&loaded, directory, NULL));
  write_text(inside(directory, index), "{");
  EXPECT_FAIL(DKV_ERR_FORMAT, "not a JSON object", dkv_model_load(&loaded, directory, NULL));
  EXPECT_FAIL(DKV_ERR_UNSUPPORTED, "sharded checkpoint", dkv_model_save(&model, directory, DKV_F32));
  dkv_model_free(&model);
  remove_directory(directory);
}

Test(checkpoint, saving_refuses_and_leaves_nothing_half_written) {
  const char *directory = new_directory();
  dkv_model model, loaded;
  tiny_model(&model, true, 45, NULL);
  EXPECT_FAIL(DKV_ERR_UNSUPPORTED, "not as f64", dkv_model_save(&model, directory, DKV_F64));
  EXPECT_FAIL(DKV_ERR_IO, "cannot make the directory", dkv_model_save(&model, "/tmp/dkv_no_such_directory/x", DKV_F32));
  model.params.data[3] = 1e6f;
  EXPECT_FAIL(DKV_ERR_RANGE, "1e+06 does not fit f16", dkv_model_save(&model, directory, DKV_F16));
  cr_assert_neq(access(inside(directory, "config.json"), F_OK), 0);
  EXPECT_FAIL(DKV_ERR_NULL, "directory", dkv_model_save(&model, NULL, DKV_F32));
  EXPECT_FAIL(DKV_ERR_NULL, "directory", dkv_model_load(&loaded, NULL, NULL));
  EXPECT_FAIL(DKV_ERR_IO, "config.json", dkv_model_load(&loaded, directory, NULL));
  dkv_model_free(&model);
  remove_directory(directory);
}

/* --- config.json
 * ------------------------------------------------------------------------------------------------------- */
static dkv_status load_config(dkv_model_config *out, const char *text) {
  const char *directory = new_directory();
  write_text(inside(directory, "config.json"), text);
  dkv_status status = dkv_model_config_load(out, inside(directory, "config.json"));
  remove_directory(directory);
  return status;
}

Test(checkpoint, missing_keys_mean_the_defaults_of_the_class) {
  dkv_model_config c;
  EXPECT_OK(load_config(&c, "{\"model_type\": \"qwen3\"}"));
  cr_assert(c.vocabulary == 151936 && c.width == 4096 && c.mlp_width == 22016 && c.layers == 32 && c.heads == 32);
  cr_assert(c.kv_heads == 32 && c.head_dim == 128 && c.max_positions == 32768 && !c.tied && c.eos_count == 0);
  cr_assert(c.norm_epsilon == 1e-6 && c.rope_theta == 10000.0 && c.init_std == 0.02);
}

Test(checkpoint, both_spellings_of_rope_are_read) {
  dkv_model_config c;
  EXPECT_OK(load_config(
      &c, "{\"model_type\": \"qwen3\", \"rope_theta\": 1000000, \"rope_scaling\": null, \"torch_dtype\": \"bfloat16\", "
          "\"num_key_value_heads\": null, \"eos_token_id\": 151645}"));
  cr_assert(c.rope_theta == 1e6 && c.kv_heads == 32 && c.eos_count == 1 && c.eos[0] == 151645);
  EXPECT_OK(load_config(
      &c, "{\"model_type\": \"qwen3\", \"rope_parameters\": {\"rope_theta\": 5e6, \"rope_type\": \"default\"}}"));
  cr_assert_eq(c.rope_theta, 5e6);
}

Test(checkpoint, settings_that_are_not_built_are_refused_by_name) {
  const char *const cases[][2] = {
      {"\"model_type\": \"llama\"", "model_type is \"llama\""},
      {"\"hidden_act\": \"gelu\"", "hidden_act is \"gelu\""},
      {"\"attention_bias\": true", "attention_bias is set"},
      {"\"attention_dropout\": 0.1", "attention_dropout is set"},
      {"\"use_sliding_window\": true", "use_sliding_window is set"},
      {"\"quantization_config\": {\"bits\": 4}", "quantization_config is set"},
      {"\"layer_types\": [\"full_attention\", \"sliding_attention\"]", "layer_types has \"sliding_attention\""},
      {"\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4}", "type is \"yarn\""},
      {"\"rope_parameters\": {\"rope_type\": \"linear\"}", "rope_type is \"linear\""},
      {"\"rope_parameters\": {\"partial_rotary_factor\": 0.5}", "partial_rotary_factor is 0.5"},
      {"\"partial_rotary_factor\": 0.25", "partial_rotary_factor is 0.25"},
      {"\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"yarn\", \"rope_theta\": 1e6}}",
       "rope_parameters has a block full_attention"},
      {"\"eos_token_id\": [1, 2, 3, 4, 5, 6, 7, 8, 9]", "eos_token_id has 9 entries"},
  };
  dkv_model_config c;
  char text[256];
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    snprintf(text, sizeof text, "{%s%s}", i == 0 ? "" : "\"model_type\": \"qwen3\", ", cases[i][0]);
    EXPECT_FAIL(DKV_ERR_UNSUPPORTED, cases[i][1], load_config(&c, text));
    cr_assert_eq(c.layers, 0);
  }
}

Test(checkpoint, malformed_configurations_are_refused_by_name) {
  const char *const cases[][2] = {
      {"[]", "not a JSON object"},
      {"{", "not a JSON object"},
      {"{}", "model_type is missing"},
      {"{\"model_type\": 3}", "model_type is not a string"},
      {"{\"model_type\": \"qwen3\", \"hidden_size\": \"big\"}", "hidden_size is not a number"},
      {"{\"model_type\": \"qwen3\", \"hidden_size\": 1.5}", "hidden_size is 1.5"},
      {"{\"model_type\": \"qwen3\", \"num_hidden_layers\": -1}", "num_hidden_layers is -1"},
      {"{\"model_type\": \"qwen3\", \"tie_word_embeddings\": \"no\"}", "tie_word_embeddings is neither"},
      {"{\"model_type\": \"qwen3\", \"rope_parameters\": 3}", "rope_parameters is not an object"},
      {"{\"model_type\": \"qwen3\", \"rope_scaling\": {\"factor\": 4}}", "has a factor, but no rope_type"},
      {"{\"model_type\": \"qwen3\", \"layer_types\": \"sliding_attention\"}", "layer_types is not a list"},
      {"{\"model_type\": \"qwen3\", \"eos_token_id\": [1.5]}", "eos_token_id is neither"},
      {"{\"model_type\": \"qwen3\", \"rms_norm_eps\": []}", "rms_norm_eps is not a number"},
  };
  dkv_model_config c;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i)
    EXPECT_FAIL(DKV_ERR_FORMAT, cases[i][1], load_config(&c, cases[i][0]));
  EXPECT_FAIL(DKV_ERR_IO, "cannot open", dkv_model_config_load(&c, "/tmp/dkv_no_such_file.json"));
  EXPECT_FAIL(DKV_ERR_IO, "not a regular file", dkv_model_config_load(&c, "/tmp"));
  EXPECT_FAIL(DKV_ERR_RANGE, "num_hidden_layers is 65537",
              load_config(&c, "{\"model_type\": \"qwen3\", \"num_hidden_layers\": 65537}"));
  EXPECT_FAIL(DKV_ERR_RANGE, "eos_token_id is 99",
              load_config(&c, "{\"model_type\": \"qwen3\", \"vocab_size\": 50, \"eos_token_id\": 99}"));
}

/* Chat models stop at more ids than config.json says. */
Test(checkpoint, generation_config_names_the_end_of_sequence_ids) {
  const char *directory = new_directory();
  dkv_model_config c;
  write_text(inside(directory, "config.json"), "{\"model_type\": \"qwen3\", \"eos_token_id\": 5}");
  write_text(inside(directory, "generation_config.json"), "{\"eos_token_id\": [7, 8]}");
  EXPECT_OK(dkv_model_config_load(&c, inside(directory, "config.json")));
  cr_assert(c.eos_count == 2 && c.eos[0] == 7 && c.eos[1] == 8);
  write_text(inside(directory, "generation_config.json"), "{\"temperature\": 1}");
  EXPECT_OK(dkv_model_config_load(&c, inside(directory, "config.json")));
  cr_assert(c.eos_count == 1 && c.eos[0] == 5);
  remove_directory(directory);
}
