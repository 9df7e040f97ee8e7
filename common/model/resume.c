/**
 * @file resume.c
 * @brief One safetensors file from which a run continues bit for bit: weights, moments, step, and what the caller adds.
 *
 *     config  I64 [8]        weights, adamw.m, adamw.v  F32 [count]        adamw.step  I64 [1]        adamw.constants
 * F64 [5] run.*   the caller's tensors: counters, seeds, cursors
 *
 * One file, renamed into place whole: there is no moment at which weights and moments on the disk belong to different
 * steps.
 *
 * Read before: optimizer.h.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/optimizer.h"

#define FIXED 6  /* tensors besides the caller's */
#define SHAPE 8  /* numbers in "config" */
#define NAME 128 /* bytes of a stored name */

static const char *const shape_names[SHAPE] = {"layers",      "width",     "MLP width", "vocabulary",
                                               "query heads", "key heads", "head size", "tied head"};

static void shape_of(int64_t out[SHAPE], const dkv_model_config *c) {
  const int64_t shape[SHAPE] = {c->layers, c->width,    c->mlp_width, c->vocabulary,
                                c->heads,  c->kv_heads, c->head_dim,  c->tied};
  memcpy(out, shape, sizeof shape);
}

static dkv_tensor vector(const char *name, dkv_dtype dtype, int64_t count, const void *data) {
  dkv_tensor t = {.name = name, .dtype = dtype, .rank = 1, .data = data};
  t.shape[0] = count;
  return t;
}

/** A diverged run must not replace its last good state, and a file damaged on the disk is found when it is read, not
 * some steps later as a model that "has diverged". */
static dkv_status require_finite(const dkv_tensor *tensor, int64_t count, const char *path) {
  for (int64_t i = 0; i < count; ++i) {
    float value;
    memcpy(&value, (const char *)tensor->data + (size_t)i * sizeof value, sizeof value);
    DKV_REQUIRE(isfinite(value), DKV_ERR_FORMAT, "%s: element %lld of \"%s\" is %g; every one must be a number", path,
                (long long)i, tensor->name, (double)value);
  }
  return DKV_OK;
}

dkv_status dkv_resume_save(const char *path, const dkv_model *model, const dkv_optimizer *optimizer,
                           const dkv_tensor *extra, int32_t extra_count) {
  DKV_REQUIRE(path != NULL && model != NULL && optimizer != NULL && (extra != NULL || extra_count == 0), DKV_ERR_NULL,
              "dkv_resume_save: path, model, optimizer and extra must not be NULL");
  DKV_REQUIRE(extra_count >= 0, DKV_ERR_RANGE, "dkv_resume_save: extra_count is %d; it must be 0 or more", extra_count);
  DKV_REQUIRE(optimizer->count == model->params.count, DKV_ERR_SHAPE,
              "dkv_resume_save: the moments have %lld elements, the parameters %lld", (long long)optimizer->count,
              (long long)model->params.count);
  dkv_tensor *tensors = calloc((size_t)(FIXED + extra_count), sizeof *tensors);
  char(*names)[NAME] = calloc((size_t)extra_count + 1, sizeof *names);
  dkv_status status = DKV_OK;
  if (tensors == NULL || names == NULL) status = dkv_fail(DKV_ERR_NOMEM, "no memory to save %s", path);
  int64_t shape[SHAPE], count = optimizer->count;
  shape_of(shape, &model->config);
  if (status == DKV_OK) {
    tensors[0] = vector("config", DKV_I64, SHAPE, shape);
    tensors[1] = vector("weights", DKV_F32, count, model->params.data);
    tensors[2] = vector("adamw.m", DKV_F32, count, optimizer->m);
    tensors[3] = vector("adamw.v", DKV_F32, count, optimizer->v);
    tensors[4] = vector("adamw.step", DKV_I64, 1, &optimizer->step);
    tensors[5] =
        vector("adamw.constants", DKV_F64, (int64_t)(sizeof optimizer->config / sizeof(double)), &optimizer->config);
  }
  for (int32_t i = 0; status == DKV_OK && i < extra_count; ++i) {
    int n = extra[i].name == NULL ? -1 : snprintf(names[i], NAME, "run.%s", extra[i].name);
    if (n < 0 || n >= NAME)
      status = dkv_fail(DKV_ERR_RANGE, "dkv_resume_save: tensor %d has no name, or one too long", i);
    tensors[FIXED + i] = extra[i];
    tensors[FIXED + i].name = names[i];
  }
  for (int32_t i = 1; status == DKV_OK && i <= 3; ++i) status = require_finite(&tensors[i], count, path);
  const dkv_metadata metadata = {"format", "dualkv resume 1"};
  if (status == DKV_OK) status = dkv_safetensors_write(path, tensors, FIXED + extra_count, &metadata, 1);
  free(tensors);
  free(names);
  return status;
}

/** Finds a tensor and checks its type and length. */
static dkv_status get(const dkv_tensor **out, const dkv_safetensors *file, const char *name, dkv_dtype dtype,
                      int64_t count, const char *path) {
  const dkv_tensor *t = dkv_safetensors_find(file, name);
  DKV_REQUIRE(t != NULL, DKV_ERR_FORMAT, "%s has no tensor \"%s\"", path, name);
  DKV_REQUIRE(t->dtype == dtype && t->bytes == count * (int64_t)dkv_dtype_size(dtype), DKV_ERR_SHAPE,
              "%s: \"%s\" has %lld bytes of %s; this model needs %lld of %s", path, name, (long long)t->bytes,
              dkv_dtype_name(t->dtype), (long long)count * (long long)dkv_dtype_size(dtype), dkv_dtype_name(dtype));
  *out = t;
  return DKV_OK;
}

static dkv_status restore(const dkv_safetensors *file, const char *path, dkv_model *model, dkv_optimizer *optimizer) {
  const char *format = dkv_safetensors_metadata(file, "format");
  DKV_REQUIRE(format != NULL && strcmp(format, "dualkv resume 1") == 0, DKV_ERR_FORMAT,
              "%s is not the saved state of a run", path);
  const dkv_tensor *config, *weights, *m, *v, *step, *constants;
  int64_t count = model->params.count, saved[SHAPE], own[SHAPE];
  DKV_TRY(get(&config, file, "config", DKV_I64, SHAPE, path));
  memcpy(saved, config->data, sizeof saved);
  shape_of(own, &model->config);
  for (int i = 0; i < SHAPE; ++i)
    DKV_REQUIRE(saved[i] == own[i], DKV_ERR_SHAPE, "%s was saved by another model: %s is %lld there and %lld here",
                path, shape_names[i], (long long)saved[i], (long long)own[i]);
  DKV_TRY(get(&weights, file, "weights", DKV_F32, count, path));
  DKV_TRY(get(&m, file, "adamw.m", DKV_F32, count, path));
  DKV_TRY(get(&v, file, "adamw.v", DKV_F32, count, path));
  DKV_TRY(get(&step, file, "adamw.step", DKV_I64, 1, path));
  DKV_TRY(
      get(&constants, file, "adamw.constants", DKV_F64, (int64_t)(sizeof optimizer->config / sizeof(double)), path));
  DKV_TRY(require_finite(weights, count, path));
  DKV_TRY(require_finite(m, count, path));
  DKV_TRY(require_finite(v, count, path));
  memcpy(model->params.data, weights->data, (size_t)count * sizeof(float));
  memcpy(optimizer->m, m->data, (size_t)count * sizeof(float));
  memcpy(optimizer->v, v->data, (size_t)count * sizeof(float));
  memcpy(&optimizer->step, step->data, sizeof optimizer->step);
  memcpy(&optimizer->config, constants->data, sizeof optimizer->config);
  return DKV_OK;
}

dkv_status dkv_resume_load(const char *path, dkv_model *model, dkv_optimizer *optimizer, dkv_safetensors *file) {
  DKV_REQUIRE(path != NULL && model != NULL && optimizer != NULL, DKV_ERR_NULL,
              "dkv_resume_load: path, model and optimizer must not be NULL");
  DKV_REQUIRE(optimizer->count == model->params.count, DKV_ERR_SHAPE,
              "dkv_resume_load: the moments have %lld elements, the parameters %lld", (long long)optimizer->count,
              (long long)model->params.count);
  dkv_safetensors opened = {0};
  DKV_TRY(dkv_safetensors_open(&opened, path));
  dkv_status status = restore(&opened, path, model, optimizer);
  if (status == DKV_OK && file != NULL) *file = opened;
  else dkv_safetensors_close(&opened);
  return status;
}
