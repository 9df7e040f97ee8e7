/**
 * @file test_exact.c
 * @brief The model in double: it is the derivative of itself, equal in both layouts to twelve digits, and what the
 * float model computes to float's rounding.
 *
 * It computes every row of every layer, so it also judges the float model's last layer, where only rows that predict
 * are computed.
 *
 * Read before: common/model/exact.h.  Read next: test_exact_training.c.
 */
#include <math.h>
#include <stdlib.h>

#include "common/compare.h"
#include "common/model/exact.h"
#include "common/rng.h"
#include "tests/support/expect.h"
#include "tests/support/forest.h"
#include "tests/support/tiny.h"

static void expect_close(const char *what, uint64_t seed, const void *got, dkv_dtype dtype, const double *want,
                         int64_t rows, int64_t width, double bound) {
  dkv_comparison c;
  EXPECT_OK(dkv_compare(&c, got, dtype, want, DKV_F64, rows, width, bound));
  cr_assert(c.passed, "%s, seed %llu: error %.3g, row error %.3g (row %lld: %.9g, not %.9g)", what,
            (unsigned long long)seed, c.error, c.row_error, (long long)c.worst_row, c.worst_got, c.worst_want);
}

/** Values and gradients of a batch in double. */
struct answer {
  dkv_exact exact;
  double *logprob, *entropy;
};

static void answer_open(struct answer *a, dkv_model *model, struct tiny *t) {
  size_t pairs = (size_t)t->pair_count + 1;
  a->logprob = calloc(pairs, sizeof(double));
  a->entropy = calloc(pairs, sizeof(double));
  t->batch.layout = &t->layout;
  EXPECT_OK(dkv_exact_open(&a->exact, model));
  EXPECT_OK(dkv_exact_forward(&a->exact, &t->batch, a->logprob, a->entropy));
  EXPECT_OK(dkv_exact_backward(&a->exact, t->dlogprob, t->dentropy));
}

static void answer_close(struct answer *a) {
  free(a->logprob);
  free(a->entropy);
  dkv_exact_close(&a->exact);
}

/** Float against double, packed double against replicated double. */
static void expect_layouts_and_float(struct tiny *packed, uint64_t seed) {
  struct tiny replicated;
  struct answer a, b;
  dkv_model model;
  if (packed->pair_count == 0) return;
  tiny_model(&model, seed % 2 == 0, seed, NULL);
  tiny_replicate(&replicated, packed);
  answer_open(&a, &model, packed);
  answer_open(&b, &model, &replicated);
  tiny_gradient(packed, &model);
  expect_close("log-probability, layouts", seed, b.logprob, DKV_F64, a.logprob, 1, packed->pair_count, 1e-12);
  expect_close("log-probability, float", seed, packed->logprob, DKV_F32, a.logprob, 1, packed->pair_count, 1e-5);
  expect_close("entropy, float", seed, packed->entropy, DKV_F32, a.entropy, 1, packed->pair_count, 1e-5);
  for (int32_t i = 0; i < model.params.view_count; ++i) {
    const dkv_param *v = &model.params.view[i];
    const double *want = a.exact.grad + v->offset;
    expect_close(v->name, seed, b.exact.grad + v->offset, DKV_F64, want, v->rows, v->cols, 1e-12);
    expect_close(v->name, seed, model.grads.data + v->offset, DKV_F32, want, v->rows, v->cols, 1e-5);
  }
  answer_close(&a);
  answer_close(&b);
  tiny_free(&replicated);
  dkv_model_free(&model);
}

Test(exact, layouts_agree_to_twelve_digits_and_float_to_five_for_groups) {
  const int32_t length[] = {7, 1, 0, 12, 3, 5};
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    struct tiny group;
    tiny_group(&group, 9 * (int32_t)seed, 6, length, seed);
    expect_layouts_and_float(&group, seed);
    tiny_free(&group);
  }
}

Test(exact, layouts_agree_to_twelve_digits_and_float_to_five_for_forests) {
  for (uint64_t seed = 200; seed < 208; ++seed) {
    struct forest forest;
    struct tiny batch;
    dkv_layout layout;
    forest_random(&forest, seed);
    EXPECT_OK(dkv_layout_forest(&layout, forest.segments, forest.parent, forest.length));
    tiny_batch(&batch, layout, seed);
    expect_layouts_and_float(&batch, seed);
    tiny_free(&batch);
  }
}

/** The loss in double. */
static double loss_of(dkv_exact *e, const struct tiny *t, double *logprob, double *entropy) {
  double loss = 0;
  EXPECT_OK(dkv_exact_forward(e, &t->batch, logprob, entropy));
  for (int32_t i = 0; i < t->pair_count; ++i)
    loss += (double)t->dlogprob[i] * logprob[i] + (double)t->dentropy[i] * entropy[i];
  return loss;
}

/* Three elements of every tensor: central differences of the loss are exact to about h^2 = 1e-10 here. */
Test(exact, gradients_are_differences_of_the_loss) {
  const int32_t length[] = {6, 3, 1};
  struct tiny group;
  struct answer a;
  dkv_model model;
  tiny_model(&model, false, 5, NULL);
  tiny_group(&group, 8, 3, length, 5);
  answer_open(&a, &model, &group);
  dkv_exact *e = &a.exact;
  for (int32_t i = 0; i < model.params.view_count; ++i) {
    const dkv_param *v = &model.params.view[i];
    double largest = 0;
    for (int64_t j = 0; j < v->rows * v->cols; ++j) largest = fmax(largest, fabs(e->grad[v->offset + j]));
    for (uint64_t pick = 0; pick < 3; ++pick) {
      int64_t at = v->offset + (int64_t)(dkv_rng(5, (uint64_t)i, pick).word[0] % (uint64_t)(v->rows * v->cols));
      const double h = 1e-5, kept = e->weight[at];
      e->weight[at] = kept + h;
      double above = loss_of(e, &group, a.logprob, a.entropy);
      e->weight[at] = kept - h;
      double below = loss_of(e, &group, a.logprob, a.entropy), slope = (above - below) / (2 * h);
      e->weight[at] = kept;
      cr_assert(fabs(slope - e->grad[at]) <= 1e-7 * largest, "%s[%lld]: slope %.12g, gradient %.12g", v->name,
                (long long)(at - v->offset), slope, e->grad[at]);
    }
  }
  answer_close(&a);
  tiny_free(&group);
  dkv_model_free(&model);
}

/* Both optimizers from the same float gradient: the same step to float's rounding. */
Test(exact, steps_as_the_float_optimizer_does) {
  dkv_model model, twin;
  dkv_exact e;
  dkv_optimizer optimizer;
  dkv_optimizer_config config = dkv_optimizer_defaults();
  config.weight_decay = 0.1;
  tiny_model(&model, true, 6, NULL);
  tiny_model(&twin, true, 6, NULL);
  EXPECT_OK(dkv_optimizer_create(&optimizer, &model, &config));
  EXPECT_OK(dkv_exact_open(&e, &twin));
  EXPECT_OK(dkv_model_zero_grads(&model));
  for (uint64_t step = 0; step < 3; ++step) {
    double norm, exact_norm;
    for (int64_t i = 0; i < model.params.count; ++i) e.grad[i] = 0;
    for (int32_t i = 0; i < model.params.view_count; ++i)
      for (int64_t j = 0; j < model.params.view[i].rows * model.params.view[i].cols; ++j) {
        int64_t at = model.params.view[i].offset + j;
        model.grads.data[at] = dkv_rng_normal(6, step, (uint64_t)at);
        e.grad[at] = (double)model.grads.data[at];
      }
    EXPECT_OK(dkv_optimizer_step(&optimizer, &model, 1e-2, &norm));
    EXPECT_OK(dkv_exact_step(&e, &config, 1e-2, &exact_norm));
    cr_assert_float_eq(norm, exact_norm, 1e-9 * norm);
  }
  double moved = 0;
  for (int64_t i = 0; i < model.params.count; ++i) {
    cr_assert_float_eq((double)model.params.data[i], e.weight[i], 1e-6, "element %lld", (long long)i);
    cr_assert_eq(twin.params.data[i], (float)e.weight[i]);
    moved += fabs((double)e.weight[i]);
  }
  cr_assert_gt(moved, 1);
  e.grad[3] = NAN;
  double norm, before = e.weight[3];
  EXPECT_FAIL(DKV_ERR_RANGE, "no step is taken", dkv_exact_step(&e, &config, 1e-2, &norm));
  cr_assert(e.weight[3] == before && e.step == 3);
  dkv_exact_close(&e);
  dkv_optimizer_free(&optimizer);
  dkv_model_free(&model);
  dkv_model_free(&twin);
}

Test(exact, refuses_what_the_float_model_refuses) {
  const int32_t length[] = {2, 2};
  struct tiny g;
  struct answer a;
  dkv_model model;
  tiny_model(&model, true, 14, NULL);
  tiny_group(&g, 3, 2, length, 14);
  answer_open(&a, &model, &g);
  EXPECT_FAIL(DKV_ERR_RANGE, "consumes", dkv_exact_backward(&a.exact, g.dlogprob, NULL));
  g.ids[1] = 1000;
  EXPECT_FAIL(DKV_ERR_RANGE, "row 1 is 1000", dkv_exact_forward(&a.exact, &g.batch, a.logprob, NULL));
  g.ids[1] = 1;
  a.exact.weight[0] = NAN;
  g.ids[0] = 0;
  EXPECT_FAIL(DKV_ERR_RANGE, "log-probability of pair", dkv_exact_forward(&a.exact, &g.batch, a.logprob, NULL));
  answer_close(&a);
  tiny_free(&g);
  dkv_model_free(&model);
}
