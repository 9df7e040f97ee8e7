/**
 * @file test_model.c
 * @brief Laws of the whole transformer: packed equals folded replicated, gradients equal differences, bits do not
 * depend on threads or recomputation, and exactly the rows that predict go through the head.
 *
 * Read before: tests/support/tiny.h.  Read next: test_decode.c, test_parity.c.
 */
#include <math.h>
#include <stdlib.h>

#include "common/compare.h"
#include "common/rng.h"
#include "tests/support/expect.h"
#include "tests/support/forest.h"
#include "tests/support/tiny.h"

/**
 * Two ways to compute one gradient in float: products of other heights round otherwise, and three layers of a model
 * with large weights enlarge that to 3e-6 (measured with OpenBLAS's Haswell kernels).
 */
#define BOUND 1e-5

static void expect_close(const char *what, uint64_t seed, const float *got, const float *want, int64_t rows,
                         int64_t width, double bound) {
  dkv_comparison c;
  EXPECT_OK(dkv_compare(&c, got, DKV_F32, want, DKV_F32, rows, width, bound));
  cr_assert(c.passed, "%s, seed %llu: error %.3g, row error %.3g (row %lld: %.9g, not %.9g)", what,
            (unsigned long long)seed, c.error, c.row_error, (long long)c.worst_row, c.worst_got, c.worst_want);
}

static float *copy_of(const float *data, int64_t count) {
  float *out = malloc((size_t)count * sizeof *out);
  memcpy(out, data, (size_t)count * sizeof *out);
  return out;
}

/** Log-probabilities, entropies and every gradient of a batch, packed against replicated. */
static void expect_packed_equals_replicated(struct tiny *packed, uint64_t seed) {
  if (packed->pair_count == 0) return;
  dkv_model model;
  tiny_model(&model, seed % 2 == 0, seed, NULL);
  tiny_gradient(packed, &model);
  float *want = copy_of(model.grads.data, model.grads.count);
  struct tiny replicated;
  tiny_replicate(&replicated, packed);
  tiny_gradient(&replicated, &model);
  expect_close("logprob", seed, packed->logprob, replicated.logprob, 1, packed->pair_count, BOUND);
  expect_close("entropy", seed, packed->entropy, replicated.entropy, 1, packed->pair_count, BOUND);
  for (int32_t i = 0; i < model.grads.view_count; ++i) {
    const dkv_param *v = &model.grads.view[i];
    expect_close(v->name, seed, model.grads.data + v->offset, want + v->offset, v->rows, v->cols, BOUND);
  }
  tiny_free(&replicated);
  free(want);
  dkv_model_free(&model);
}

/* packed(loss) = replicated(loss) and d packed = fold(d replicated), which for parameters is plain equality. */
Test(model, packed_equals_replicated_for_groups) {
  const int32_t length[] = {7, 1, 0, 12, 3, 5};
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    struct tiny group;
    tiny_group(&group, 9 * (int32_t)seed, 6, length, seed);
    expect_packed_equals_replicated(&group, seed);
    tiny_free(&group);
  }
}

Test(model, packed_equals_replicated_for_random_forests) {
  int tested = 0;
  for (uint64_t seed = 100; seed < 116; ++seed) {
    struct forest forest;
    forest_random(&forest, seed);
    dkv_layout layout;
    EXPECT_OK(dkv_layout_forest(&layout, forest.segments, forest.parent, forest.length));
    struct tiny batch;
    tiny_batch(&batch, layout, seed);
    tested += batch.pair_count > 0;
    expect_packed_equals_replicated(&batch, seed);
    tiny_free(&batch);
  }
  cr_assert_gt(tested, 8);
}

Test(model, packed_equals_replicated_for_a_deep_tree) {
  const int32_t parent[] = {-1, 0, 1, 2, 3, 3, 2, 1, 7, 7, 0}, length[] = {5, 4, 3, 2, 4, 1, 6, 2, 3, 3, 8};
  dkv_layout layout;
  EXPECT_OK(dkv_layout_forest(&layout, 11, parent, length));
  struct tiny tree;
  tiny_batch(&tree, layout, 77);
  expect_packed_equals_replicated(&tree, 77);
  tiny_free(&tree);
}

/* Along its own gradient g a view's loss changes by |g| per unit; along one random element by that element of g. */
Test(model, gradients_equal_finite_differences_of_the_loss) {
  const int32_t length[] = {6, 3, 1};
  struct tiny group;
  tiny_group(&group, 8, 3, length, 5);
  dkv_model model;
  tiny_model(&model, false, 5, NULL);
  tiny_gradient(&group, &model);
  float *weights = copy_of(model.params.data, model.params.count);
  for (int32_t i = 0; i < model.params.view_count; ++i) {
    const dkv_param *v = &model.params.view[i];
    const float *g = model.grads.data + v->offset;
    int64_t n = v->rows * v->cols;
    double norm = 0.0, loss[2];
    for (int64_t j = 0; j < n; ++j) norm += (double)g[j] * (double)g[j];
    norm = sqrt(norm);
    cr_assert_gt(norm, 1e-3, "%s has no gradient", v->name);
    const double h = 2e-3;
    for (int side = 0; side < 2; ++side) {
      for (int64_t j = 0; j < n; ++j)
        model.params.data[v->offset + j] = weights[v->offset + j] + (float)((side == 0 ? h : -h) * (double)g[j] / norm);
      loss[side] = tiny_loss(&group, &model);
    }
    memcpy(model.params.data, weights, (size_t)model.params.count * sizeof(float));
    double slope = (loss[0] - loss[1]) / (2.0 * h);
    cr_assert_lt(fabs(slope - norm), 4e-3 * norm + 1e-3, "%s: slope %.6g, gradient's norm %.6g", v->name, slope, norm);
  }
  free(weights);
  tiny_free(&group);
  dkv_model_free(&model);
}

Test(model, recomputation_and_threads_change_no_bit) {
  const int32_t length[] = {11, 4, 30, 2};
  const dkv_model_options options[] = {
      {.threads = 1}, {.threads = 2}, {.threads = 5}, {.threads = 2, .recompute = true}};
  struct tiny group;
  tiny_group(&group, 90, 4, length, 6);
  float *want = NULL, *logprob = NULL;
  size_t arena[4];
  for (int i = 0; i < 4; ++i) {
    dkv_model model;
    tiny_model(&model, true, 6, &options[i]);
    dkv_pass_free(&group.pass);
    tiny_gradient(&group, &model);
    arena[i] = group.pass.arena_bytes;
    if (i == 0) {
      want = copy_of(model.grads.data, model.grads.count);
      logprob = copy_of(group.logprob, group.pair_count);
    }
    cr_assert_eq(memcmp(want, model.grads.data, (size_t)model.grads.count * sizeof(float)), 0, "gradients, case %d", i);
    cr_assert_eq(memcmp(logprob, group.logprob, (size_t)group.pair_count * sizeof(float)), 0, "logprob, case %d", i);
    dkv_model_free(&model);
  }
  cr_assert_lt(arena[3], arena[1], "recomputation must save memory");
  free(want);
  free(logprob);
  tiny_free(&group);
}

/* Sum of R_i pairs; the shared prompt row goes through the head once. */
Test(model, exactly_the_rows_that_predict_go_through_the_head) {
  const int32_t length[] = {4, 1, 0, 3};
  struct tiny packed, replicated;
  dkv_model model;
  tiny_model(&model, true, 8, NULL);
  tiny_group(&packed, 5, 4, length, 8);
  tiny_forward(&packed, &model);
  cr_assert_eq(packed.pair_count, 8);
  cr_assert_eq(packed.pass.source_count, 1 + 3 + 0 + 2);
  tiny_replicate(&replicated, &packed);
  tiny_forward(&replicated, &model);
  cr_assert_eq(replicated.pass.source_count, 8);
  cr_assert_gt(replicated.pass.plan.total_bytes, packed.pass.plan.total_bytes);
  tiny_free(&packed);
  tiny_free(&replicated);
  dkv_model_free(&model);
}

/* In the last layer only rows that predict are computed, unless the whole layer is asked for or, with a pair of weight
 * 0 added for every row, all of them predict: the same values and gradients, but for the order in which a taller
 * product adds. */
Test(model, rows_that_do_not_predict_are_spared_in_the_last_layer_alone) {
  const int32_t length[] = {9, 1, 0, 4};
  for (int way = 0; way < 8; ++way) {
    const dkv_model_options options = {.threads = 2, .recompute = way / 2 % 2 == 1};
    struct tiny group, all;
    dkv_model model;
    tiny_model(&model, way % 2 == 0, 18, &options);
    tiny_group(&group, 33, 4, length, 18);
    tiny_group(&all, 33, 4, length, 18);
    int32_t rows = all.layout.rows, own = all.pair_count, count = own + rows;
    all.pairs = realloc(all.pairs, (size_t)count * sizeof *all.pairs);
    float **part[] = {&all.dlogprob, &all.dentropy, &all.logprob, &all.entropy};
    for (int i = 0; i < 4; ++i) *part[i] = realloc(*part[i], (size_t)count * sizeof(float));
    if (way >= 4) count = own;
    for (int32_t r = 0; r < count - own; ++r) {
      all.pairs[own + r] = (dkv_prediction){.source = r, .target = rows - 1 - r};
      all.dlogprob[own + r] = all.dentropy[own + r] = 0.0f;
    }
    all.pair_count = all.batch.pair_count = count;
    all.batch.pairs = all.pairs;
    model.options.whole_last_layer = way >= 4;
    tiny_gradient(&all, &model);
    model.options.whole_last_layer = false;
    float *want = copy_of(model.grads.data, model.grads.count);
    tiny_gradient(&group, &model);
    cr_assert(group.pass.source_count < rows / 2 && all.pass.plan.last_active == rows);
    cr_assert(group.pass.plan.last_bytes < all.pass.plan.last_bytes);
    cr_assert(group.pass.plan.total_bytes < all.pass.plan.total_bytes);
    expect_close("logprob", 18, group.logprob, all.logprob, 1, own, BOUND);
    expect_close("entropy", 18, group.entropy, all.entropy, 1, own, BOUND);
    for (int32_t i = 0; i < model.grads.view_count; ++i) {
      const dkv_param *v = &model.grads.view[i];
      expect_close(v->name, 18, model.grads.data + v->offset, want + v->offset, v->rows, v->cols, BOUND);
    }
    free(want);
    tiny_free(&group);
    tiny_free(&all);
    dkv_model_free(&model);
  }
}

/* The same for forests: rows that predict the first rows of several children, segments of one row, trees in which
 * nothing predicts beside trees in which something does; and a batch in which no row predicts at all. */
Test(model, the_spared_last_layer_of_forests_equals_the_whole_one) {
  int none = 0, shared = 0;
  for (uint64_t seed = 100; seed < 124; ++seed) {
    const dkv_model_options options = {.threads = 1 + (int32_t)(seed % 3), .recompute = seed % 2 == 1};
    struct forest forest;
    struct tiny batch;
    dkv_model model;
    dkv_layout layout;
    forest_random(&forest, seed);
    EXPECT_OK(dkv_layout_forest(&layout, forest.segments, forest.parent, forest.length));
    tiny_batch(&batch, layout, seed);
    tiny_model(&model, seed % 2 == 0, seed, &options);
    if (seed % 6 == 0) batch.pair_count = batch.batch.pair_count = 0;
    model.options.whole_last_layer = true;
    tiny_gradient(&batch, &model);
    float *want = copy_of(model.grads.data, model.grads.count);
    float *logprob = copy_of(batch.logprob, batch.pair_count);
    model.options.whole_last_layer = false;
    tiny_gradient(&batch, &model);
    none += batch.pair_count == 0 && batch.layout.rows > 0;
    shared += batch.pass.source_count < batch.pair_count;
    for (int64_t j = 0; batch.pair_count == 0 && j < model.grads.count; ++j)
      cr_assert(model.grads.data[j] == 0.0f && want[j] == 0.0f, "seed %llu: a gradient from nothing",
                (unsigned long long)seed);
    if (batch.pair_count > 0) expect_close("logprob", seed, batch.logprob, logprob, 1, batch.pair_count, BOUND);
    for (int32_t i = 0; batch.pair_count > 0 && i < model.grads.view_count; ++i) {
      const dkv_param *v = &model.grads.view[i];
      expect_close(v->name, seed, model.grads.data + v->offset, want + v->offset, v->rows, v->cols, BOUND);
    }
    free(want);
    free(logprob);
    tiny_free(&batch);
    dkv_model_free(&model);
  }
  cr_assert(none > 2 && shared > 4, "%d without a row that predicts, %d with one that predicts several", none, shared);
}

/* The last token of a response need not be a row: its id is given instead. */
Test(model, target_ids_spare_the_last_row_of_each_response) {
  const int32_t whole[] = {4, 1, 3}, spared[] = {3, 0, 2};
  struct tiny a, b;
  dkv_model model;
  tiny_model(&model, false, 9, NULL);
  tiny_group(&a, 6, 3, whole, 9);
  tiny_gradient(&a, &model);
  float *want = copy_of(model.grads.data, model.grads.count);
  tiny_group(&b, 6, 3, spared, 9);
  cr_assert_eq(b.pair_count, 5);
  /* rows of a: 0-5 prompt, 6-9, 10, 11-13; rows of b: 0-5, 6-8, none, 9-10 */
  const int32_t row_of_b[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12},
                packed_row[14] = {0, 1, 2, 3, 4, 5, 6, 7, 8, -1, -1, 9, 10, -1};
  for (int r = 0; r < 11; ++r) b.ids[r] = a.ids[row_of_b[r]];
  dkv_prediction pairs[8];
  int32_t targets[8];
  for (int i = 0; i < 8; ++i) {
    pairs[i] = (dkv_prediction){.source = packed_row[a.pairs[i].source], .target = -1, .segment = a.pairs[i].segment};
    targets[i] = a.ids[a.pairs[i].target];
  }
  float logprob[8];
  dkv_batch batch = {&b.layout, b.ids, pairs, 8, targets, a.batch.temperature, false};
  EXPECT_OK(dkv_pass_set(&b.pass, &model, &batch));
  EXPECT_OK(dkv_model_forward(&model, &b.pass, logprob, NULL));
  EXPECT_OK(dkv_model_zero_grads(&model));
  EXPECT_OK(dkv_model_backward(&model, &b.pass, a.dlogprob, a.dentropy));
  expect_close("logprob", 9, logprob, a.logprob, 1, 8, BOUND);
  for (int32_t i = 0; i < model.grads.view_count; ++i) {
    const dkv_param *v = &model.grads.view[i];
    expect_close(v->name, 9, model.grads.data + v->offset, want + v->offset, v->rows, v->cols, BOUND);
  }
  free(want);
  tiny_free(&a);
  tiny_free(&b);
  dkv_model_free(&model);
}

/* Gradients accumulate: two groups in one batch, or one after the other. */
Test(model, gradients_do_not_depend_on_the_split_into_batches) {
  const int32_t prompt[] = {7, 4}, responses[] = {2, 3}, length[] = {3, 5, 2, 0, 6};
  dkv_layout both;
  struct tiny all;
  dkv_model model;
  tiny_model(&model, true, 10, NULL);
  EXPECT_OK(dkv_layout_groups(&both, 2, prompt, responses, length));
  tiny_batch(&all, both, 10);
  tiny_gradient(&all, &model);
  float *want = copy_of(model.grads.data, model.grads.count);
  EXPECT_OK(dkv_model_zero_grads(&model));
  int32_t first_row = 0, first_pair = 0;
  for (int g = 0; g < 2; ++g) {
    struct tiny one;
    tiny_group(&one, prompt[g], responses[g], g == 0 ? length : length + 2, 10);
    memcpy(one.ids, all.ids + first_row, (size_t)one.layout.rows * sizeof *one.ids);
    tiny_forward(&one, &model);
    EXPECT_OK(dkv_model_backward(&model, &one.pass, all.dlogprob + first_pair, all.dentropy + first_pair));
    first_row += one.layout.rows;
    first_pair += one.pair_count;
    tiny_free(&one);
  }
  for (int32_t i = 0; i < model.grads.view_count; ++i) {
    const dkv_param *v = &model.grads.view[i];
    expect_close(v->name, 10, model.grads.data + v->offset, want + v->offset, v->rows, v->cols, BOUND);
  }
  free(want);
  tiny_free(&all);
  dkv_model_free(&model);
}

Test(model, forward_only_gives_the_same_bits_in_less_memory) {
  const int32_t length[] = {5, 9};
  struct tiny group;
  dkv_model model;
  tiny_model(&model, true, 11, NULL);
  tiny_group(&group, 12, 2, length, 11);
  tiny_forward(&group, &model);
  float *want = copy_of(group.logprob, group.pair_count);
  size_t bytes = group.pass.plan.total_bytes;
  group.batch.forward_only = true;
  tiny_forward(&group, &model);
  cr_assert_eq(memcmp(want, group.logprob, (size_t)group.pair_count * sizeof(float)), 0);
  cr_assert_lt(group.pass.plan.total_bytes, bytes);
  EXPECT_FAIL(DKV_ERR_RANGE, "forward_only", dkv_model_backward(&model, &group.pass, group.dlogprob, NULL));
  free(want);
  tiny_free(&group);
  dkv_model_free(&model);
}

/* Nothing may fall over at the edges: N = 1, R = 1, P = 1, no response, no pair, no row. */
Test(model, edges_run) {
  const int32_t one[] = {1}, none[] = {0};
  dkv_model model;
  tiny_model(&model, true, 12, NULL);
  struct tiny edge[4];
  tiny_group(&edge[0], 1, 1, one, 12);
  tiny_group(&edge[1], 1, 1, none, 12);
  tiny_group(&edge[2], 0, 1, one, 12);
  tiny_group(&edge[3], 0, 0, NULL, 12);
  const int32_t pairs[] = {1, 0, 0, 0};
  for (int i = 0; i < 4; ++i) {
    tiny_gradient(&edge[i], &model);
    cr_assert_eq(edge[i].pair_count, pairs[i]);
    double squares = 0.0;
    for (int64_t j = 0; j < model.grads.count; ++j)
      squares += (double)model.grads.data[j] * (double)model.grads.data[j];
    cr_assert(isfinite(squares) && (squares > 0.0) == (pairs[i] > 0), "edge %d", i);
    tiny_free(&edge[i]);
  }
  dkv_model_free(&model);
}
