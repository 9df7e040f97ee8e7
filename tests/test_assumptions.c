/**
 * @file test_assumptions.c
 * @brief Every assumption of the proof is needed: broken, packed and replicated differ by a lot; mended, by rounding.
 *
 * A test an assumption (A1 to A6), over the list in tests/support/assumptions.c; then what the library itself says to
 * whoever breaks one.
 *
 * Read before: docs/equivalence.md, tests/support/assumptions.h.  Read next: test_model.c, which holds the library's
 * model to both theorems.
 */
#include <math.h>
#include <stdlib.h>

#include "tests/support/assumptions.h"
#include "tests/support/expect.h"
#include "tests/support/tiny.h"

/** Rounding in double; what central differences leave of it; and what nobody would call rounding. */
#define ROUNDING 1e-12
#define DIFFERENCES 1e-8
#define LARGE 0.01

static void expect_equal(const char *name, struct gap gap, bool steps) {
  cr_assert(gap.forward <= ROUNDING, "%s: forward differs by %.3g", name, gap.forward);
  cr_assert(steps || gap.gradient <= DIFFERENCES, "%s: gradients differ by %.3g", name, gap.gradient);
}

/** All counter-examples of one assumption; `count` says how many there must be. */
static void expect_needed(const char *assumption, int count) {
  struct gap gap;
  EXPECT_OK(assumption_gap(&gap, NULL, false));
  expect_equal("as assumed", gap, false);
  for (const struct assumption *a = assumptions; a->name != NULL; ++a) {
    if (strcmp(a->breaks, assumption) != 0) continue;
    EXPECT_OK(assumption_gap(&gap, a, false));
    bool forward = strcmp(assumption, "A6") != 0; /* the loss comes after the last activation */
    if (forward) cr_assert(gap.forward >= LARGE, "%s: forward differs by only %.3g", a->name, gap.forward);
    else cr_assert(gap.forward <= ROUNDING, "%s: forward differs by %.3g", a->name, gap.forward);
    if (!a->steps) cr_assert(gap.gradient >= LARGE, "%s: gradients differ by only %.3g", a->name, gap.gradient);
    EXPECT_OK(assumption_gap(&gap, a, true));
    expect_equal(a->name, gap, a->steps);
    --count;
  }
  cr_assert_eq(count, 0, "%s: %d counter-examples too few", assumption, count);
}

Test(assumptions, a1_a_row_reads_its_path_and_nothing_else) { expect_needed("A1", 3); }
Test(assumptions, a2_positions_are_those_of_the_path) { expect_needed("A2", 1); }
Test(assumptions, a3_everything_else_is_done_row_by_row) { expect_needed("A3", 5); }
Test(assumptions, a4_copies_draw_the_same_numbers) { expect_needed("A4", 1); }
Test(assumptions, a5_the_prompts_are_equal) { expect_needed("A5", 1); }
Test(assumptions, a6_the_loss_is_the_same_function_of_the_copies) { expect_needed("A6", 1); }

Test(assumptions, are_all_counted_here) {
  int count = 0;
  while (assumptions[count].name != NULL) ++count;
  cr_assert_eq(count, 3 + 1 + 5 + 1 + 1 + 1);
}

/* The library's model, given the rows' numbers as positions, is wrong in its log-probabilities... */
Test(assumptions, a2_of_the_librarys_model) {
  const int32_t length[] = {2, 2};
  struct tiny group;
  dkv_model model;
  tiny_model(&model, true, 3, NULL);
  tiny_group(&group, 3, 2, length, 3);
  tiny_forward(&group, &model);
  float right[4], worst[2] = {0.0f, 0.0f};
  memcpy(right, group.logprob, sizeof right);
  for (int32_t t = 0; t < 7; ++t) group.layout.position[t] = t;
  tiny_forward(&group, &model);
  for (int i = 0; i < 4; ++i) /* the first response stands where it always stood */
    worst[group.pairs[i].segment - 1] = fmaxf(worst[group.pairs[i].segment - 1], fabsf(group.logprob[i] - right[i]));
  cr_assert(worst[0] <= 1e-5f && worst[1] >= 0.01f, "first response %g, second %g", (double)worst[0], (double)worst[1]);
  tiny_free(&group);
  dkv_model_free(&model);
}

/* ... and a table of positions that holds every path is too short for them. */
Test(assumptions, a2_a_table_of_positions_need_only_hold_a_path) {
  const int32_t length[] = {2, 2};
  struct tiny group;
  dkv_model model;
  dkv_model_config config = tiny_config(true);
  config.max_positions = 5;
  EXPECT_OK(dkv_model_create(&model, &config, 3, NULL));
  tiny_group(&group, 3, 2, length, 3);
  tiny_forward(&group, &model);
  for (int32_t t = 0; t < 7; ++t) group.layout.position[t] = t;
  EXPECT_FAIL(DKV_ERR_RANGE, "row 5 has path position 5; the model has positions 0 to 4",
              dkv_pass_set(&group.pass, &model, &group.batch));
  tiny_free(&group);
  dkv_model_free(&model);
}

Test(assumptions, a5_unequal_prompts_are_refused_by_name) {
  const int32_t length[] = {2, 2}, ids[10] = {4, 9, 2, 7, 1, 4, 9, 5, 3, 8};
  int32_t *map, packed[7];
  dkv_layout layout, replicated;
  EXPECT_OK(dkv_layout_group(&layout, 3, 2, length));
  EXPECT_OK(dkv_layout_replicate(&replicated, &map, &layout));
  EXPECT_FAIL(DKV_ERR_MISMATCH, "5", dkv_pack_ids(packed, 7, ids, map, 10));
  free(map);
  dkv_layout_free(&layout);
  dkv_layout_free(&replicated);
}

/* A loss on the prompt's own tokens: N copies of each in the replica, so N times the weight when packed. */
Test(assumptions, a6_of_the_librarys_model) {
  const int32_t length[] = {2, 2};
  const float times[] = {1.0f, 2.0f}; /* that each prompt token is counted */
  struct tiny packed, replicated;
  dkv_model model;
  tiny_model(&model, true, 4, NULL);
  tiny_group(&packed, 3, 2, length, 4);
  tiny_replicate(&replicated, &packed);
  double gap[2] = {0.0, 0.0}, size = 0.0;
  dkv_prediction pairs[8];
  float ones[8] = {1, 1, 1, 1, 1, 1, 1, 1}, logprob[8];
  /* every token of the replica that has one before it: four in each of two sequences of five */
  for (int i = 0; i < 8; ++i) pairs[i] = (dkv_prediction){i / 4 * 5 + i % 4, i / 4 * 5 + i % 4 + 1, i / 4};
  dkv_batch all = replicated.batch;
  all.layout = &replicated.layout, all.pairs = pairs, all.pair_count = 8;
  EXPECT_OK(dkv_pass_set(&replicated.pass, &model, &all));
  EXPECT_OK(dkv_model_forward(&model, &replicated.pass, logprob, NULL));
  EXPECT_OK(dkv_model_zero_grads(&model));
  EXPECT_OK(dkv_model_backward(&model, &replicated.pass, ones, NULL));
  float *want = malloc((size_t)model.grads.count * sizeof *want);
  memcpy(want, model.grads.data, (size_t)model.grads.count * sizeof *want);
  for (int try = 0; try < 2; ++try) {
    const dkv_prediction mine[6] = {{0, 1, 0}, {1, 2, 0}, {2, 3, 1}, {3, 4, 1}, {2, 5, 2}, {5, 6, 2}};
    float weight[6] = {times[try], times[try], 1, 1, 1, 1};
    dkv_batch batch = packed.batch;
    batch.layout = &packed.layout, batch.pairs = mine, batch.pair_count = 6;
    EXPECT_OK(dkv_pass_set(&packed.pass, &model, &batch));
    EXPECT_OK(dkv_model_forward(&model, &packed.pass, logprob, NULL));
    EXPECT_OK(dkv_model_zero_grads(&model));
    EXPECT_OK(dkv_model_backward(&model, &packed.pass, weight, NULL));
    for (int64_t i = 0; i < model.grads.count; ++i) gap[try] += pow((double)model.grads.data[i] - (double)want[i], 2.0);
  }
  for (int64_t i = 0; i < model.grads.count; ++i) size += pow((double)want[i], 2.0);
  cr_assert(sqrt(gap[0] / size) >= 0.05, "each prompt token once: %g", sqrt(gap[0] / size));
  cr_assert(sqrt(gap[1] / size) <= 1e-5, "each prompt token N times: %g", sqrt(gap[1] / size));
  free(want);
  tiny_free(&packed);
  tiny_free(&replicated);
  dkv_model_free(&model);
}
