/**
 * @file state.c
 * @brief Settings, counters and a reference policy as tensors beside the model's own; see state.h.
 */
#include "common/rl/state.h"

#include <stdlib.h>
#include <string.h>

static dkv_tensor vector(const char *name, dkv_dtype dtype, int64_t count, const void *data) {
  dkv_tensor t = {.name = name, .dtype = dtype, .rank = 1, .data = data};
  t.shape[0] = count;
  return t;
}

/** All setting names, one after another with their NULs: U8 tensors are not built, so as I32, a character each. */
static int32_t *spell(const char *kind, const dkv_setting *setting, int32_t count, int64_t *length) {
  *length = (int64_t)strlen(kind) + 1;
  for (int32_t i = 0; i < count; ++i) *length += (int64_t)strlen(setting[i].name) + 1;
  int32_t *out = malloc((size_t)*length * sizeof *out);
  int64_t at = 0;
  for (int32_t i = -1; out != NULL && i < count; ++i)
    for (const char *c = i < 0 ? kind : setting[i].name;; ++c) {
      out[at++] = (unsigned char)*c;
      if (*c == '\0') break;
    }
  return out;
}

dkv_status dkv_state_save(const char *path, const char *kind, const dkv_model *model, const dkv_optimizer *optimizer,
                          const dkv_setting *setting, int32_t setting_count, const dkv_counters *counters,
                          const dkv_model *reference) {
  int64_t whole[2] = {counters->step, counters->next_example}, length = 0;
  double *values = malloc((size_t)setting_count * sizeof *values + 1);
  int32_t *names = spell(kind, setting, setting_count, &length);
  dkv_status status = values && names ? DKV_OK : dkv_fail(DKV_ERR_NOMEM, "no memory to save %s", path);
  if (status == DKV_OK) {
    for (int32_t i = 0; i < setting_count; ++i) values[i] = setting[i].value;
    dkv_tensor extra[5] = {vector("counters", DKV_I64, 2, whole), vector("seconds", DKV_F64, 1, &counters->seconds),
                           vector("settings", DKV_F64, setting_count, values),
                           vector("setting_names", DKV_I32, length, names)};
    if (reference != NULL) extra[4] = vector("reference", DKV_F32, reference->params.count, reference->params.data);
    status = dkv_resume_save(path, model, optimizer, extra, reference != NULL ? 5 : 4);
  }
  free(values);
  free(names);
  return status;
}

/** A tensor of the run, of exactly this size. */
static dkv_status get(const void **out, const dkv_safetensors *file, const char *name, dkv_dtype dtype, int64_t count,
                      const char *path) {
  const dkv_tensor *t = dkv_safetensors_find(file, name);
  DKV_REQUIRE(t != NULL && t->dtype == dtype && t->bytes == count * (int64_t)dkv_dtype_size(dtype), DKV_ERR_FORMAT,
              "%s has no tensor \"%s\" of %lld elements of type %s: it is not the saved state of such a run", path,
              name, (long long)count, dkv_dtype_name(dtype));
  *out = t->data;
  return DKV_OK;
}

/** Compares kind, names and values with what was saved. */
static dkv_status compare(const dkv_safetensors *file, const char *path, const char *kind, const dkv_setting *setting,
                          int32_t count, const int32_t *names, int64_t length) {
  const void *saved_names = NULL, *saved_values = NULL;
  DKV_TRY(get(&saved_names, file, "run.setting_names", DKV_I32, length, path));
  DKV_REQUIRE(memcmp(saved_names, names, (size_t)length * sizeof *names) == 0, DKV_ERR_FORMAT,
              "%s does not hold the state of a %s run of this version", path, kind);
  DKV_TRY(get(&saved_values, file, "run.settings", DKV_F64, count, path));
  for (int32_t i = 0; i < count; ++i) {
    double saved;
    memcpy(&saved, (const char *)saved_values + (size_t)i * sizeof saved, sizeof saved);
    DKV_REQUIRE(saved == setting[i].value, DKV_ERR_RANGE,
                "%s was saved with %s = %.10g, but this run has %.10g; a run continues with the settings it began with",
                path, setting[i].name, saved, setting[i].value);
  }
  return DKV_OK;
}

static dkv_status restore(const dkv_safetensors *file, const char *path, dkv_model *model, dkv_optimizer *optimizer,
                          dkv_counters *counters, dkv_model *reference) {
  const void *whole = NULL, *seconds = NULL, *frozen = NULL;
  int64_t pair[2];
  DKV_TRY(get(&whole, file, "run.counters", DKV_I64, 2, path));
  DKV_TRY(get(&seconds, file, "run.seconds", DKV_F64, 1, path));
  if (reference != NULL) DKV_TRY(get(&frozen, file, "run.reference", DKV_F32, reference->params.count, path));
  memcpy(pair, whole, sizeof pair);
  DKV_REQUIRE(pair[0] >= 0 && pair[1] >= 0, DKV_ERR_FORMAT, "%s counts %lld steps and %lld prompts", path,
              (long long)pair[0], (long long)pair[1]);
  DKV_TRY(dkv_resume_load(path, model, optimizer, NULL));
  if (reference != NULL)
    memcpy(reference->params.data, frozen, (size_t)reference->params.count * sizeof *reference->params.data);
  *counters = (dkv_counters){.step = pair[0], .next_example = pair[1]};
  memcpy(&counters->seconds, seconds, sizeof counters->seconds);
  return DKV_OK;
}

dkv_status dkv_state_load(const char *path, const char *kind, dkv_model *model, dkv_optimizer *optimizer,
                          const dkv_setting *setting, int32_t setting_count, dkv_counters *counters,
                          dkv_model *reference) {
  int64_t length = 0;
  dkv_safetensors file = {0};
  DKV_TRY(dkv_safetensors_open(&file, path));
  int32_t *names = spell(kind, setting, setting_count, &length);
  dkv_status status = names != NULL ? DKV_OK : dkv_fail(DKV_ERR_NOMEM, "no memory to read %s", path);
  if (status == DKV_OK) status = compare(&file, path, kind, setting, setting_count, names, length);
  if (status == DKV_OK) status = restore(&file, path, model, optimizer, counters, reference);
  free(names);
  dkv_safetensors_close(&file);
  return status;
}
