/**
 * @file checkpoint.c
 * @brief Hugging Face directories: config.json with model.safetensors, or with shards and their index.
 *
 *     load   open every file -> match tensors with views by name -> one sentence with all that is missing, unknown or
 * misshapen
 *            -> convert to float into the flat array
 *     save   the flat array, converted, cut into named tensors -> one file, written whole or not at all
 *
 * Read before: checkpoint.h, common/safetensors.h.  Read next: resume.c.
 */
#include "common/model/checkpoint.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/model/json_file.h"

#define MAX_PATH 4096
#define CHUNK 4096 /* elements converted at a time */

/** The open files of a checkpoint, and a growing sentence about what is wrong with it. */
typedef struct reader {
  const char *directory;
  dkv_safetensors *files;
  int32_t file_count;
  const dkv_tensor **found; /* [views] tensor of each view */
  int32_t missing, unknown, misshapen;
  char complaint[400];
} reader;

static dkv_status join(char path[MAX_PATH], const char *directory, const char *file) {
  int n = snprintf(path, MAX_PATH, "%s/%s", directory, file);
  DKV_REQUIRE(n > 0 && n < MAX_PATH, DKV_ERR_IO, "the path of %.60s in %.60s... is longer than %d bytes", file,
              directory, MAX_PATH - 1);
  return DKV_OK;
}

/** Adds to the complaint; what does not fit is counted in the sentence anyway. */
static void complain(reader *r, const char *format, ...) {
  size_t used = strlen(r->complaint);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(r->complaint + used, sizeof r->complaint - used, format, arguments);
  va_end(arguments);
}

/** Opens one file of the checkpoint. */
static dkv_status open_file(reader *r, const char *name) {
  char path[MAX_PATH];
  DKV_TRY(join(path, r->directory, name));
  dkv_safetensors *grown = realloc(r->files, (size_t)(r->file_count + 1) * sizeof *grown);
  DKV_REQUIRE(grown != NULL, DKV_ERR_NOMEM, "no memory to open %s", path);
  r->files = grown;
  DKV_TRY(dkv_safetensors_open(&r->files[r->file_count], path));
  r->file_count++;
  return DKV_OK;
}

/** Opens every distinct file that the index names. */
static dkv_status open_shards(reader *r, const cJSON *index) {
  const cJSON *map = cJSON_GetObjectItemCaseSensitive(index, "weight_map"), *entry, *earlier;
  DKV_REQUIRE(cJSON_IsObject(map) && map->child != NULL, DKV_ERR_FORMAT,
              "%s/model.safetensors.index.json has no weight_map", r->directory);
  cJSON_ArrayForEach(entry, map) {
    bool plain = cJSON_IsString(entry) && entry->valuestring[0] != '\0' && strchr(entry->valuestring, '/') == NULL &&
                 strcmp(entry->valuestring, "..") != 0;
    DKV_REQUIRE(plain, DKV_ERR_FORMAT, "%s/model.safetensors.index.json: the file of %.60s is not a plain file name",
                r->directory, entry->string);
    bool known = false;
    for (earlier = map->child; earlier != entry && !known; earlier = earlier->next)
      known = strcmp(earlier->valuestring, entry->valuestring) == 0;
    if (!known) DKV_TRY(open_file(r, entry->valuestring));
  }
  return DKV_OK;
}

static dkv_status open_all(reader *r) {
  char path[MAX_PATH];
  DKV_TRY(join(path, r->directory, "model.safetensors"));
  if (dkv_file_exists(path)) return open_file(r, "model.safetensors");
  DKV_TRY(join(path, r->directory, "model.safetensors.index.json"));
  DKV_REQUIRE(dkv_file_exists(path), DKV_ERR_IO, "%s has neither model.safetensors nor model.safetensors.index.json",
              r->directory);
  cJSON *index = NULL;
  DKV_TRY(dkv_json_load(&index, path));
  dkv_status status = open_shards(r, index);
  cJSON_Delete(index);
  return status;
}

/** Does a tensor have a view's shape and a type that can be read? */
static bool fits(const dkv_tensor *tensor, const dkv_param *view) {
  bool type = tensor->dtype == DKV_F32 || tensor->dtype == DKV_BF16 || tensor->dtype == DKV_F16;
  if (view->is_vector) return type && tensor->rank == 1 && tensor->shape[0] == view->cols;
  return type && tensor->rank == 2 && tensor->shape[0] == view->rows && tensor->shape[1] == view->cols;
}

/** Matches one tensor of a file with a view. */
static void match(reader *r, const dkv_params *params, const dkv_tensor *tensor, bool tied) {
  const dkv_param *view = dkv_params_find(params, tensor->name);
  if (view == NULL) {
    if (tied && strcmp(tensor->name, "lm_head.weight") == 0) return; /* a duplicate of the embedding */
    r->unknown++;
    complain(r, "; unknown %.60s", tensor->name);
    return;
  }
  const dkv_tensor **found = &r->found[view - params->view];
  if (*found != NULL) {
    r->unknown++;
    complain(r, "; twice %.60s", tensor->name);
  } else if (!fits(tensor, view)) {
    r->misshapen++;
    complain(r, "; %.60s is %s of rank %d [%lld, %lld], not [%lld, %lld]", tensor->name, dkv_dtype_name(tensor->dtype),
             tensor->rank, tensor->rank > 0 ? (long long)tensor->shape[0] : 1LL,
             tensor->rank > 1 ? (long long)tensor->shape[1] : 1LL,
             view->is_vector ? (long long)view->cols : (long long)view->rows,
             view->is_vector ? 1LL : (long long)view->cols);
  }
  *found = tensor;
}

/** Finds the tensor of every view, or says everything that is wrong. */
static dkv_status match_all(reader *r, const dkv_params *params, bool tied) {
  for (int32_t f = 0; f < r->file_count; ++f)
    for (int32_t i = 0; i < r->files[f].tensor_count; ++i) match(r, params, &r->files[f].tensors[i], tied);
  for (int32_t i = 0; i < params->view_count; ++i) {
    if (r->found[i] != NULL) continue;
    r->missing++;
    complain(r, "; missing %s", params->view[i].name);
  }
  DKV_REQUIRE(r->missing + r->unknown + r->misshapen == 0, DKV_ERR_FORMAT,
              "%.60s does not fit its config.json, %d missing, %d unknown, %d misshapen%s", r->directory, r->missing,
              r->unknown, r->misshapen, r->complaint);
  return DKV_OK;
}

/** One tensor to float; a NaN or an infinity is refused. */
static dkv_status read_tensor(float *out, const dkv_tensor *tensor, int64_t count) {
  size_t size = dkv_dtype_size(tensor->dtype);
  uint64_t aligned[CHUNK * sizeof(float) / sizeof(uint64_t)]; /* the file may hold the elements at any address */
  for (int64_t i = 0; i < count; i += CHUNK) {
    int64_t n = dkv_min(CHUNK, count - i);
    memcpy(aligned, (const char *)tensor->data + (size_t)i * size, (size_t)n * size);
    DKV_TRY(dkv_convert(out + i, DKV_F32, aligned, tensor->dtype, n));
    for (int64_t j = 0; j < n; ++j)
      DKV_REQUIRE(isfinite(out[i + j]), DKV_ERR_FORMAT, "element %lld of %.60s is %g; every weight must be a number",
                  (long long)(i + j), tensor->name, (double)out[i + j]);
  }
  return DKV_OK;
}

static dkv_status read_weights(reader *r, dkv_params *params, bool tied) {
  DKV_TRY(open_all(r));
  r->found = calloc((size_t)params->view_count, sizeof *r->found);
  DKV_REQUIRE(r->found != NULL, DKV_ERR_NOMEM, "no memory to read %s", r->directory);
  DKV_TRY(match_all(r, params, tied));
  for (int32_t i = 0; i < params->view_count; ++i) {
    const dkv_param *view = &params->view[i];
    DKV_TRY(read_tensor(params->data + view->offset, r->found[i], view->rows * view->cols));
  }
  return DKV_OK;
}

dkv_status dkv_model_load(dkv_model *out, const char *directory, const dkv_model_options *options) {
  DKV_REQUIRE(out != NULL && directory != NULL, DKV_ERR_NULL, "dkv_model_load: out and directory must not be NULL");
  memset(out, 0, sizeof *out);
  char path[MAX_PATH];
  dkv_model_config config;
  DKV_TRY(join(path, directory, "config.json"));
  DKV_TRY(dkv_model_config_load(&config, path));
  DKV_TRY(dkv_model_allocate(out, &config, options));
  reader r = {.directory = directory};
  dkv_status status = read_weights(&r, &out->params, config.tied);
  for (int32_t f = 0; f < r.file_count; ++f) dkv_safetensors_close(&r.files[f]);
  free(r.files);
  free(r.found);
  if (status != DKV_OK) dkv_model_free(out);
  return status;
}

void dkv_params_tensors(dkv_tensor *out, const dkv_params *params, const void *data, dkv_dtype dtype) {
  for (int32_t i = 0; i < params->view_count; ++i) {
    const dkv_param *view = &params->view[i];
    out[i] = (dkv_tensor){.name = view->name,
                          .dtype = dtype,
                          .rank = view->is_vector ? 1 : 2,
                          .data = (const char *)data + (size_t)view->offset * dkv_dtype_size(dtype)};
    out[i].shape[0] = view->is_vector ? view->cols : view->rows;
    out[i].shape[1] = view->cols;
  }
}

/** The weights in another type, malloc'd; f16's infinities are refused. */
static dkv_status convert_weights(void **out, const dkv_params *params, dkv_dtype dtype) {
  *out = malloc((size_t)params->count * dkv_dtype_size(dtype));
  DKV_REQUIRE(*out != NULL, DKV_ERR_NOMEM, "no memory to convert %lld weights", (long long)params->count);
  DKV_TRY(dkv_convert(*out, dtype, params->data, DKV_F32, params->count));
  for (int64_t i = 0; dtype == DKV_F16 && i < params->count; ++i)
    DKV_REQUIRE(isfinite(dkv_element(*out, dtype, i)), DKV_ERR_RANGE,
                "a weight of %g does not fit f16; save as bf16 or f32", (double)params->data[i]);
  return DKV_OK;
}

static dkv_status write_weights(const dkv_model *model, const char *path, dkv_dtype dtype) {
  const dkv_metadata metadata = {"format", "pt"};
  void *converted = NULL;
  dkv_tensor *tensors = calloc((size_t)model->params.view_count, sizeof *tensors);
  dkv_status status = DKV_OK;
  if (tensors == NULL) status = dkv_fail(DKV_ERR_NOMEM, "no memory to save %s", path);
  if (status == DKV_OK && dtype != DKV_F32) status = convert_weights(&converted, &model->params, dtype);
  if (status == DKV_OK) {
    dkv_params_tensors(tensors, &model->params, converted != NULL ? converted : model->params.data, dtype);
    status = dkv_safetensors_write(path, tensors, model->params.view_count, &metadata, 1);
  }
  free(tensors);
  free(converted);
  return status;
}

dkv_status dkv_model_save(const dkv_model *model, const char *directory, dkv_dtype dtype) {
  DKV_REQUIRE(model != NULL && directory != NULL, DKV_ERR_NULL, "dkv_model_save: model and directory must not be NULL");
  DKV_REQUIRE(dtype == DKV_F32 || dtype == DKV_BF16 || dtype == DKV_F16, DKV_ERR_UNSUPPORTED,
              "dkv_model_save: weights are stored as f32, bf16 or f16, not as %s", dkv_dtype_name(dtype));
  char path[MAX_PATH];
  DKV_TRY(join(path, directory, "model.safetensors.index.json"));
  DKV_REQUIRE(
      !dkv_file_exists(path), DKV_ERR_UNSUPPORTED,
      "%.300s holds a sharded checkpoint, which a model.safetensors would contradict; save to another directory",
      directory);
  DKV_REQUIRE(mkdir(directory, 0777) == 0 || errno == EEXIST, DKV_ERR_IO, "cannot make the directory %.300s: %s",
              directory, strerror(errno));
  DKV_TRY(join(path, directory, "model.safetensors"));
  DKV_TRY(write_weights(model, path, dtype));
  DKV_TRY(join(path, directory, "config.json"));
  return dkv_model_config_save(&model->config, path, dtype);
}
