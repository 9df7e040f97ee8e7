/**
 * @file test_optimizer.c
 * @brief Clipping by the global norm, decay where it belongs, schedules, refusals, and runs that continue bit for bit.
 *
 * Read before: common/model/optimizer.h, tests/support/tiny.h.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/model/optimizer.h"
#include "tests/support/expect.h"
#include "tests/support/tiny.h"

static void fill_grads(dkv_model *model, float value) {
  EXPECT_OK(dkv_model_zero_grads(model));
  for (int32_t i = 0; i < model->grads.view_count; ++i)
    for (int64_t j = 0; j < model->grads.view[i].rows * model->grads.view[i].cols; ++j)
      model->grads.data[model->grads.view[i].offset + j] = value;
}

/* The first step of AdamW is lr sign(g), whatever the clip; the moments tell the clipped gradient. */
Test(optimizer, clips_by_the_global_norm_and_decays_matrices_only) {
  dkv_model model;
  dkv_optimizer optimizer;
  dkv_optimizer_config config = dkv_optimizer_defaults();
  config.weight_decay = 0.5;
  tiny_model(&model, false, 31, NULL);
  EXPECT_OK(dkv_optimizer_create(&optimizer, &model, &config));
  float *before = malloc((size_t)model.params.count * sizeof *before);
  memcpy(before, model.params.data, (size_t)model.params.count * sizeof *before);
  fill_grads(&model, 2.0f);
  double norm, elements = (double)dkv_params_elements(&model.params);
  EXPECT_OK(dkv_optimizer_step(&optimizer, &model, 0.01, &norm));
  cr_assert_lt(fabs(norm / (2.0 * sqrt(elements)) - 1.0), 1e-6);
  for (int32_t i = 0; i < model.params.view_count; ++i) {
    const dkv_param *v = &model.params.view[i];
    bool matrix = strstr(v->name, "norm") == NULL && strstr(v->name, "embed") == NULL;
    cr_assert_eq(v->decays, matrix, "%s", v->name);
    for (int64_t j = v->offset; j < v->offset + v->rows * v->cols; ++j) {
      double want = (double)before[j] - 0.01 * (1.0 + (matrix ? 0.5 * (double)before[j] : 0.0));
      cr_assert_lt(fabs((double)model.params.data[j] - want), 2e-6, "%s", v->name);
      cr_assert_lt(fabs((double)optimizer.m[j] * sqrt(elements) / 0.1 - 1.0), 1e-5, "clipped to norm 1");
    }
  }
  cr_assert_eq(optimizer.step, 1);
  free(before);
  dkv_optimizer_free(&optimizer);
  dkv_model_free(&model);
}

Test(optimizer, takes_no_step_from_a_gradient_that_is_not_finite) {
  dkv_model model, other;
  dkv_optimizer optimizer;
  dkv_model_config c = tiny_config(true);
  tiny_model(&model, true, 32, NULL);
  EXPECT_OK(dkv_optimizer_create(&optimizer, &model, NULL));
  EXPECT_FAIL(DKV_ERR_NULL, "no gradients", dkv_optimizer_step(&optimizer, &model, 0.1, NULL));
  fill_grads(&model, 1.0f);
  float *before = malloc((size_t)model.params.count * sizeof *before);
  memcpy(before, model.params.data, (size_t)model.params.count * sizeof *before);
  const float bad[] = {NAN, INFINITY};
  for (int i = 0; i < 2; ++i) {
    model.grads.data[100] = bad[i];
    EXPECT_FAIL(DKV_ERR_RANGE, "no step is taken", dkv_optimizer_step(&optimizer, &model, 0.1, NULL));
  }
  cr_assert_eq(memcmp(before, model.params.data, (size_t)model.params.count * sizeof *before), 0);
  cr_assert_eq(optimizer.step, 0);
  model.grads.data[100] = 1.0f;
  EXPECT_FAIL(DKV_ERR_RANGE, "learning rate is -1", dkv_optimizer_step(&optimizer, &model, -1.0, NULL));
  EXPECT_FAIL(DKV_ERR_RANGE, "learning rate is", dkv_optimizer_step(&optimizer, &model, (double)NAN, NULL));
  c.layers = 1;
  EXPECT_OK(dkv_model_create(&other, &c, 0, NULL));
  EXPECT_OK(dkv_model_zero_grads(&other));
  EXPECT_FAIL(DKV_ERR_SHAPE, "moments", dkv_optimizer_step(&optimizer, &other, 0.1, NULL));
  free(before);
  dkv_optimizer_free(&optimizer);
  dkv_model_free(&model);
  dkv_model_free(&other);
}

Test(optimizer, refuses_constants_outside_their_range) {
  dkv_model model;
  dkv_optimizer o;
  tiny_model(&model, true, 33, NULL);
  dkv_optimizer_config c = dkv_optimizer_defaults();
  c.beta1 = 1.0;
  EXPECT_FAIL(DKV_ERR_RANGE, "beta1 is 1", dkv_optimizer_create(&o, &model, &c));
  c = dkv_optimizer_defaults();
  c.beta2 = -0.1;
  EXPECT_FAIL(DKV_ERR_RANGE, "beta2 is -0.1", dkv_optimizer_create(&o, &model, &c));
  c = dkv_optimizer_defaults();
  c.epsilon = 0.0;
  EXPECT_FAIL(DKV_ERR_RANGE, "epsilon is 0", dkv_optimizer_create(&o, &model, &c));
  c = dkv_optimizer_defaults();
  c.weight_decay = (double)NAN;
  EXPECT_FAIL(DKV_ERR_RANGE, "weight_decay", dkv_optimizer_create(&o, &model, &c));
  c = dkv_optimizer_defaults();
  c.max_norm = -1.0;
  EXPECT_FAIL(DKV_ERR_RANGE, "max_norm is -1", dkv_optimizer_create(&o, &model, &c));
  dkv_model_free(&model);
}

Test(optimizer, schedules_pass_through_their_corners) {
  dkv_schedule s = {DKV_SCHEDULE_LINEAR, 2.0, 4, 11, 0.1};
  const double linear[] = {0.5, 1.0, 1.5, 2.0, 2.0, 1.7, 1.4, 1.1, 0.8, 0.5, 0.2, 0.2};
  for (int i = 0; i < 12; ++i) cr_assert_float_eq(dkv_schedule_rate(&s, i), linear[i], 1e-12, "step %d", i);
  s.shape = DKV_SCHEDULE_COSINE;
  cr_assert_float_eq(dkv_schedule_rate(&s, 4), 2.0, 1e-12);
  cr_assert_float_eq(dkv_schedule_rate(&s, 7), 1.1, 1e-12);
  cr_assert_float_eq(dkv_schedule_rate(&s, 10), 0.2, 1e-12);
  s.shape = DKV_SCHEDULE_CONSTANT;
  cr_assert_float_eq(dkv_schedule_rate(&s, 1000), 2.0, 0.0);
  s.warmup = 0;
  cr_assert_float_eq(dkv_schedule_rate(&s, 0), 2.0, 0.0);
}

/** `steps` steps of training on a fixed batch. */
static void train(dkv_model *model, dkv_optimizer *optimizer, struct tiny *batch, int steps) {
  for (int i = 0; i < steps; ++i) {
    tiny_gradient(batch, model);
    EXPECT_OK(dkv_optimizer_step(optimizer, model, 0.003, NULL));
  }
}

Test(optimizer, a_resumed_run_continues_bit_for_bit) {
  const int32_t length[] = {5, 3, 8};
  char path[] = "/tmp/dkv_resume_XXXXXX";
  cr_assert_geq(mkstemp(path), 0);
  struct tiny batch;
  dkv_model model, again;
  dkv_optimizer optimizer, optimizer_again;
  dkv_optimizer_config config = {.beta1 = 0.8, .beta2 = 0.9, .epsilon = 1e-7, .weight_decay = 0.01, .max_norm = 0.5};
  tiny_group(&batch, 10, 3, length, 34);
  tiny_model(&model, false, 34, NULL);
  EXPECT_OK(dkv_optimizer_create(&optimizer, &model, &config));
  train(&model, &optimizer, &batch, 3);
  int64_t cursor[] = {7, INT64_C(1) << 60};
  dkv_tensor extra = {.name = "cursor", .dtype = DKV_I64, .rank = 1, .shape = {2}, .data = cursor};
  EXPECT_OK(dkv_resume_save(path, &model, &optimizer, &extra, 1));
  train(&model, &optimizer, &batch, 4);

  tiny_model(&again, false, 99, NULL);
  EXPECT_OK(dkv_optimizer_create(&optimizer_again, &again, NULL));
  dkv_safetensors file;
  EXPECT_OK(dkv_resume_load(path, &again, &optimizer_again, &file));
  const dkv_tensor *found = dkv_safetensors_find(&file, "run.cursor");
  cr_assert(found != NULL && memcmp(found->data, cursor, sizeof cursor) == 0);
  dkv_safetensors_close(&file);
  cr_assert_eq(optimizer_again.step, 3);
  train(&again, &optimizer_again, &batch, 4);
  size_t bytes = (size_t)model.params.count * sizeof(float);
  cr_assert_eq(memcmp(model.params.data, again.params.data, bytes), 0, "weights");
  cr_assert_eq(memcmp(optimizer.m, optimizer_again.m, bytes), 0, "m");
  cr_assert_eq(memcmp(optimizer.v, optimizer_again.v, bytes), 0, "v");
  cr_assert_eq(optimizer_again.step, 7);
  unlink(path);
  dkv_optimizer_free(&optimizer);
  dkv_optimizer_free(&optimizer_again);
  dkv_model_free(&model);
  dkv_model_free(&again);
  tiny_free(&batch);
}

Test(optimizer, resuming_refuses_what_does_not_fit_and_changes_nothing) {
  char path[] = "/tmp/dkv_resume_XXXXXX";
  cr_assert_geq(mkstemp(path), 0);
  dkv_model tied, untied;
  dkv_optimizer a, b;
  tiny_model(&tied, true, 35, NULL);
  tiny_model(&untied, false, 35, NULL);
  EXPECT_OK(dkv_optimizer_create(&a, &tied, NULL));
  EXPECT_OK(dkv_optimizer_create(&b, &untied, NULL));
  EXPECT_OK(dkv_resume_save(path, &tied, &a, NULL, 0));
  float first = untied.params.data[0];
  EXPECT_FAIL(DKV_ERR_SHAPE, "tied head is 1 there and 0 here", dkv_resume_load(path, &untied, &b, NULL));
  EXPECT_FAIL(DKV_ERR_IO, "cannot", dkv_resume_load("/tmp/dkv_no_such_file", &untied, &b, NULL));
  EXPECT_FAIL(DKV_ERR_FORMAT, "not the saved state",
              dkv_resume_load("tests/parity/tied/model.safetensors", &untied, &b, NULL));
  EXPECT_FAIL(DKV_ERR_SHAPE, "moments", dkv_resume_load(path, &tied, &b, NULL));
  EXPECT_FAIL(DKV_ERR_SHAPE, "moments", dkv_resume_save(path, &tied, &b, NULL, 0));
  EXPECT_FAIL(DKV_ERR_IO, "/tmp/dkv_no_such_directory",
              dkv_resume_save("/tmp/dkv_no_such_directory/x", &tied, &a, NULL, 0));
  dkv_tensor nameless = {.dtype = DKV_I64, .rank = 0, .data = &first};
  EXPECT_FAIL(DKV_ERR_RANGE, "no name", dkv_resume_save(path, &tied, &a, &nameless, 1));
  cr_assert_eq(untied.params.data[0], first);
  a.v[3] = NAN; /* diverged: the last good state stays */
  EXPECT_FAIL(DKV_ERR_FORMAT, "element 3 of \"adamw.v\" is", dkv_resume_save(path, &tied, &a, NULL, 0));
  a.v[3] = 0;
  EXPECT_OK(dkv_resume_load(path, &tied, &a, NULL)); /* the failed saves left the old file whole */
  dkv_safetensors file;                              /* a weight damaged on the disk */
  EXPECT_OK(dkv_safetensors_open(&file, path));
  long at = (long)((const char *)dkv_safetensors_find(&file, "weights")->data - (const char *)file.mapping);
  dkv_safetensors_close(&file);
  FILE *damaged = fopen(path, "r+b");
  const float infinite = INFINITY;
  cr_assert(fseek(damaged, at, SEEK_SET) == 0 && fwrite(&infinite, sizeof infinite, 1, damaged) == 1);
  fclose(damaged);
  EXPECT_FAIL(DKV_ERR_FORMAT, "element 0 of \"weights\" is inf", dkv_resume_load(path, &tied, &a, NULL));
  unlink(path);
  dkv_optimizer_free(&a);
  dkv_optimizer_free(&b);
  dkv_model_free(&tied);
  dkv_model_free(&untied);
}
