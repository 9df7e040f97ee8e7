/**
 * @file test_update.c
 * @brief From groups to a gradient: packed == replicated, no matter how the step is split, and the odd cases.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/rl/self_check.h"
#include "support/expect.h"
#include "support/groups.h"

enum { MOST = 4 };

static const dkv_task *sort(void) {
  const dkv_task *task = NULL;
  EXPECT_OK(dkv_task_find(&task, "sort"));
  return task;
}

/** Counts of all groups. */
static dkv_normaliser count_all(const dkv_group *groups, int32_t count) {
  dkv_normaliser total = {0, 0};
  const dkv_group *list[MOST];
  dkv_update_batch batch;
  for (int32_t g = 0; g < count; ++g) list[g] = &groups[g];
  EXPECT_OK(dkv_update_batch_make(&batch, list, count, false));
  dkv_policy_batch view = dkv_update_policy_view(&batch);
  EXPECT_OK(dkv_normaliser_add(&total, &view));
  dkv_update_batch_free(&batch);
  return total;
}

/** Loss of the groups, `at_a_time` in a micro-batch; the gradient ends up in the model. */
static double gradient(dkv_model *model, const dkv_group *groups, int32_t count, int32_t at_a_time, bool replicated,
                       const char *method) {
  dkv_policy_config loss;
  dkv_update_stats stats = {0};
  dkv_pass pass = {0};
  dkv_normaliser total = count_all(groups, count);
  EXPECT_OK(dkv_policy_preset(&loss, method));
  EXPECT_OK(dkv_model_zero_grads(model));
  for (int32_t first = 0; first < count; first += at_a_time) {
    const dkv_group *list[MOST];
    int32_t some = count - first < at_a_time ? count - first : at_a_time;
    dkv_update_batch batch;
    for (int32_t g = 0; g < some; ++g) list[g] = &groups[first + g];
    EXPECT_OK(dkv_update_batch_make(&batch, list, some, replicated));
    EXPECT_OK(dkv_update_gradient(&stats, model, &pass, &batch, &loss, &total, 0.9f, NULL));
    dkv_update_batch_free(&batch);
  }
  dkv_pass_free(&pass);
  cr_assert(isfinite(stats.policy.loss));
  return stats.policy.loss;
}

/** Relative differences between two ways of computing the same gradient. */
struct gap {
  double tensor; /* of the worst tensor */
  double whole;  /* of the gradient as one vector */
};

/** Computes both ways; losses are compared here. */
static struct gap difference(const dkv_group *groups, int32_t count, int32_t split_a, bool replicated_a,
                             int32_t split_b, bool replicated_b, const char *method) {
  dkv_model model;
  dkv_self_check found = {0};
  groups_model(&model, sort(), 9, 2);
  double loss_a = gradient(&model, groups, count, split_a, replicated_a, method);
  float *kept = malloc((size_t)model.grads.count * sizeof *kept);
  memcpy(kept, model.grads.data, (size_t)model.grads.count * sizeof *kept);
  double loss_b = gradient(&model, groups, count, split_b, replicated_b, method);
  cr_expect(fabs(loss_a - loss_b) <= 1e-6 * fmax(1, fabs(loss_a)), "%s: losses %.9g and %.9g", method, loss_a, loss_b);
  EXPECT_OK(dkv_gradients_compare(&found, &model.grads, kept, 1e-3));
  cr_assert(found.parameters > 20);
  struct gap gap = {.tensor = found.worst};
  for (int64_t i = 0; i < model.grads.count; ++i) gap.whole += pow((double)model.grads.data[i] - (double)kept[i], 2);
  gap.whole = sqrt(gap.whole) / found.norm;
  free(kept);
  dkv_model_free(&model);
  return gap;
}

static void close_all(dkv_group *groups, int32_t count) {
  for (int32_t g = 0; g < count; ++g) dkv_group_close(&groups[g]);
}

static const char *const methods[] = {"grpo", "dapo", "dr_grpo", "gspo", "cispo"};

/* Ragged, empty, of one token. */
static const int32_t ragged[MOST * 3] = {5, 0, 11, 1, 1, 7, 3, 16, 2, 9, 4, 1};

Test(update, packed_and_replicated_give_the_same_loss_and_gradients) {
  dkv_group groups[MOST];
  groups_random(groups, MOST, 29, ragged, 3, 4);
  for (int m = 0; m < 5; ++m) {
    struct gap gap = difference(groups, MOST, MOST, false, MOST, true, methods[m]);
    cr_expect(gap.tensor < 2e-5 && gap.whole < 2e-6, "%s: %g, %g", methods[m], gap.tensor, gap.whole);
  }
  close_all(groups, MOST);
}

/* The gradient is the same to 1e-6. One small tensor alone may be off a little more: the weights of the heads' norms
 * are sums that nearly cancel, and attention adds up a row in other tiles when other groups come before it. In double
 * the split changes nothing but the thirteenth digit of any tensor: test_exact_training.c. */
Test(update, the_micro_batch_split_changes_nothing) {
  dkv_group groups[MOST];
  groups_random(groups, MOST, 29, ragged, 3, 5);
  for (int m = 0; m < 5; ++m)
    for (int32_t split = 1; split < MOST; ++split) {
      struct gap gap = difference(groups, MOST, MOST, false, split, false, methods[m]);
      cr_expect(gap.whole < 1e-6, "%s, %d groups at a time: %g", methods[m], split, gap.whole);
      cr_expect(gap.tensor < 2e-6, "%s, %d groups at a time: %g", methods[m], split, gap.tensor);
    }
  close_all(groups, MOST);
}

Test(update, one_response_one_token_and_a_prompt_of_one_token_train) {
  static const int32_t shapes[][3] = {{1, 20, 6}, {4, 20, 1}, {3, 1, 5}, {1, 1, 1}, {1, 1, 2}}; /* N, P, R */
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; ++i) {
    dkv_group group;
    int32_t length[4] = {shapes[i][2], shapes[i][2], shapes[i][2], shapes[i][2]};
    groups_random(&group, 1, shapes[i][1], length, shapes[i][0], 6);
    struct gap gap = difference(&group, 1, 1, false, 1, true, "dapo");
    cr_expect(gap.tensor < 2e-5, "shape %d: %g", (int)i, gap.tensor);
    dkv_group_close(&group);
  }
}

Test(update, rows_and_pairs_are_those_of_the_layouts) {
  dkv_group group;
  const int32_t length[3] = {4, 0, 2};
  const dkv_group *list[1] = {&group};
  dkv_update_batch packed, replicated;
  groups_random(&group, 1, 5, length, 3, 7);
  EXPECT_OK(dkv_update_batch_make(&packed, list, 1, false));
  EXPECT_OK(dkv_update_batch_make(&replicated, list, 1, true));
  cr_expect_eq(packed.layout.rows, 5 + 3 + 0 + 1);
  cr_expect_eq(replicated.layout.rows, 3 * 5 + 3 + 0 + 1);
  cr_expect_eq(packed.replicated_rows, replicated.layout.rows);
  cr_expect_eq(packed.tokens, 6);
  cr_expect_eq(packed.begin[1], 4);
  cr_expect_eq(packed.begin[2], 4);
  cr_expect_eq(packed.begin[3], 6);
  cr_expect(packed.pairs[0].source == 4 && packed.pairs[4].source == 4,
            "both first tokens come from the last prompt row");
  cr_expect(packed.pairs[1].source == 5 && packed.pairs[5].source == 8);
  for (int i = 0; i < 6; ++i) {
    cr_expect_eq(packed.target_ids[i], replicated.target_ids[i]);
    cr_expect_eq(packed.layout.position[packed.pairs[i].source],
                 replicated.layout.position[replicated.pairs[i].source]);
  }
  dkv_update_batch_free(&packed);
  dkv_update_batch_free(&replicated);
  dkv_group_close(&group);
}

/* With an identity-free check: the head's gradient at the shared row is the sum over responses of what each gives
 * alone. */
Test(update, the_last_prompt_row_receives_a_contribution_from_every_response) {
  enum { N = 6 };
  dkv_group group;
  dkv_model model;
  int32_t length[N];
  for (int n = 0; n < N; ++n) length[n] = 1; /* every token is a first token */
  groups_random(&group, 1, 12, length, N, 8);
  groups_model(&model, sort(), 9, 1);
  size_t bytes = (size_t)model.params.count * sizeof(float);
  double *sum = calloc((size_t)model.params.count, sizeof *sum);
  float *together = malloc(bytes);
  gradient(&model, &group, 1, 1, false, "dapo");
  memcpy(together, model.grads.data, bytes);
  for (int n = 0; n < N; ++n) {
    for (int k = 0; k < N; ++k) group.length[k] = k == n ? 1 : 0;
    gradient(&model, &group, 1, 1, false, "dapo"); /* alone, so divided by 1 instead of N */
    for (int64_t i = 0; i < model.params.count; ++i) sum[i] += (double)model.grads.data[i] / N;
  }
  double gap = 0, size = 0;
  for (int64_t i = 0; i < model.params.count; ++i) {
    gap += pow(sum[i] - (double)together[i], 2);
    size += sum[i] * sum[i];
  }
  cr_expect(size > 0 && sqrt(gap / size) < 1e-5, "%g", sqrt(gap / size));
  free(sum);
  free(together);
  dkv_group_close(&group);
  dkv_model_free(&model);
}

Test(update, masked_responses_change_nothing_but_the_rows) {
  dkv_group groups[2];
  dkv_model model;
  static const int32_t length[6] = {5, 3, 4, 5, 0, 4};
  groups_random(groups, 2, 15, length, 3, 10);
  groups[1].example = groups[0].example;
  for (int n = 0; n < 3; n += 2) { /* group 1: the same responses 0 and 2, an empty one between */
    memcpy(groups[1].token + n * DKV_TASK_MAX_RESPONSE, groups[0].token + n * DKV_TASK_MAX_RESPONSE, 16 * 4);
    memcpy(groups[1].logprob + n * DKV_TASK_MAX_RESPONSE, groups[0].logprob + n * DKV_TASK_MAX_RESPONSE, 16 * 4);
    groups[1].advantage[n] = groups[0].advantage[n];
  }
  groups[0].active[1] = false;
  groups_model(&model, sort(), 9, 1);
  double masked = gradient(&model, &groups[0], 1, 1, false, "grpo");
  float *kept = malloc((size_t)model.grads.count * sizeof *kept);
  memcpy(kept, model.grads.data, (size_t)model.grads.count * sizeof *kept);
  double without = gradient(&model, &groups[1], 1, 1, false, "grpo");
  dkv_self_check found;
  cr_expect(fabs(masked - without) < 1e-6, "%g and %g", masked, without);
  EXPECT_OK(dkv_gradients_compare(&found, &model.grads, kept, 1e-5));
  for (int n = 0; n < 3; ++n) groups[0].active[n] = false;
  cr_expect_eq(gradient(&model, &groups[0], 1, 1, false, "dapo"), 0); /* all masked: no loss, no division by 0 */
  for (int64_t i = 0; i < model.grads.count; ++i) cr_assert_eq(model.grads.data[i], 0);
  free(kept);
  close_all(groups, 2);
  dkv_model_free(&model);
}

Test(update, a_gradient_that_differs_in_one_tensor_is_named) {
  dkv_model model;
  dkv_group group;
  dkv_self_check found;
  static const int32_t length[2] = {4, 6};
  groups_random(&group, 1, 15, length, 2, 11);
  groups_model(&model, sort(), 9, 1);
  gradient(&model, &group, 1, 1, false, "dapo");
  size_t bytes = (size_t)model.grads.count * sizeof(float);
  float *other = malloc(bytes);
  const dkv_param *view = dkv_params_find(&model.grads, "model.layers.1.self_attn.k_proj.weight");
  cr_assert_not_null(view);
  static const float errors[] = {0.5f, NAN, INFINITY};
  for (int e = 0; e < 3; ++e) {
    memcpy(other, model.grads.data, bytes);
    EXPECT_OK(dkv_gradients_compare(&found, &model.grads, other, 1e-4));
    other[view->offset + 3] += errors[e];
    EXPECT_FAIL(DKV_ERR_MISMATCH, "model.layers.1.self_attn.k_proj.weight",
                dkv_gradients_compare(&found, &model.grads, other, 1e-4));
  }
  EXPECT_OK(dkv_model_zero_grads(&model));
  memset(other, 0, bytes);
  EXPECT_FAIL(DKV_ERR_MISMATCH, "nothing was compared", dkv_gradients_compare(&found, &model.grads, other, 1e-4));
  free(other);
  dkv_group_close(&group);
  dkv_model_free(&model);
}

Test(update, no_group_no_prompt_and_no_reference_are_refused) {
  dkv_update_batch batch;
  dkv_group group;
  dkv_model model;
  static const int32_t length[2] = {2, 2};
  const dkv_group *list[1] = {&group};
  groups_random(&group, 1, 5, length, 2, 3);
  EXPECT_FAIL(DKV_ERR_RANGE, "0 groups", dkv_update_batch_make(&batch, list, 0, false));
  group.example.prompt_length = 0;
  EXPECT_FAIL(DKV_ERR_RANGE, "0 tokens", dkv_update_batch_make(&batch, list, 1, false));
  group.example.prompt_length = 5;
  EXPECT_OK(dkv_update_batch_make(&batch, list, 1, false));
  groups_model(&model, sort(), 9, 1);
  EXPECT_OK(dkv_model_zero_grads(&model));
  dkv_policy_config loss;
  dkv_update_stats stats = {0};
  dkv_pass pass = {0};
  dkv_normaliser total = {4, 2};
  EXPECT_OK(dkv_policy_preset(&loss, "grpo"));
  loss.kl_weight = 0.1;
  EXPECT_FAIL(DKV_ERR_NULL, "no reference", dkv_update_gradient(&stats, &model, &pass, &batch, &loss, &total, 1, NULL));
  loss.kl_weight = 0;
  batch.old[1] = NAN;
  EXPECT_FAIL(DKV_ERR_RANGE, "token 1 of response 0",
              dkv_update_gradient(&stats, &model, &pass, &batch, &loss, &total, 1, NULL));
  batch.old[1] = -1;
  batch.advantage[1] = INFINITY;
  EXPECT_FAIL(DKV_ERR_RANGE, "advantage of response 1",
              dkv_update_gradient(&stats, &model, &pass, &batch, &loss, &total, 1, NULL));
  dkv_pass_free(&pass);
  dkv_update_batch_free(&batch);
  dkv_group_close(&group);
  dkv_model_free(&model);
}

/* ---- sequences of the caller's own */

/** Two groups: prompts of 3 and 2 tokens; responses of 2, 0 and 3 tokens, then of 1. */
static const int32_t prompt_length[] = {3, 2}, responses[] = {3, 1}, begin[] = {0, 5, 8, 14, 17};
static const int32_t ids[] = {7, 8, 9, 1, 2, 7, 8, 9, 7, 8, 9, 3, 4, 5, 6, 6, 10};
static const double advantage[] = {1, -1, 0.5, 2};

static dkv_sequences own_data(const int32_t *tokens, const float *old) {
  return (dkv_sequences){2, prompt_length, responses, begin, tokens, old, advantage, NULL};
}

Test(update, sequences_of_a_caller_are_packed_and_train) {
  float old[17];
  dkv_update_batch packed, replicated;
  for (int i = 0; i < 17; ++i) old[i] = -2 - 0.1f * (float)i;
  dkv_sequences sequences = own_data(ids, old);
  EXPECT_OK(dkv_update_batch_from_sequences(&packed, &sequences, false));
  EXPECT_OK(dkv_update_batch_from_sequences(&replicated, &sequences, true));
  static const int32_t rows[] = {7, 8, 9, 1, 3, 4, 6, 6};
  cr_assert_eq(packed.layout.rows, 8);
  cr_expect(memcmp(packed.ids, rows, sizeof rows) == 0);
  cr_expect_eq(replicated.layout.rows, 4 + 3 + 5 + 2);
  cr_expect_eq(packed.tokens, 6);
  cr_expect(packed.old[0] == old[3] && packed.old[2] == old[11] && packed.old[5] == old[16]);
  cr_expect(packed.target_ids[1] == 2 && packed.target_ids[5] == 10);
  dkv_model model;
  dkv_policy_config loss;
  dkv_normaliser total = {0, 0};
  dkv_update_stats stats[2] = {{.rows = 0}, {.rows = 0}};
  dkv_pass pass = {0};
  groups_model(&model, sort(), 9, 1);
  EXPECT_OK(dkv_policy_preset(&loss, "dapo"));
  dkv_policy_batch view = dkv_update_policy_view(&packed);
  EXPECT_OK(dkv_normaliser_add(&total, &view));
  cr_expect(total.tokens == 6 && total.responses == 3, "the empty response carries no loss");
  EXPECT_OK(dkv_model_zero_grads(&model));
  EXPECT_OK(dkv_update_gradient(&stats[0], &model, &pass, &packed, &loss, &total, 1, NULL));
  EXPECT_OK(dkv_update_gradient(&stats[1], &model, &pass, &replicated, &loss, &total, 1, NULL));
  cr_expect_float_eq(stats[0].policy.loss, stats[1].policy.loss, 1e-6);
  dkv_pass_free(&pass);
  dkv_model_free(&model);
  dkv_update_batch_free(&packed);
  dkv_update_batch_free(&replicated);
}

Test(update, prompts_that_are_not_equal_are_refused_by_name) {
  float old[17] = {0};
  int32_t changed[17];
  dkv_update_batch batch;
  memcpy(changed, ids, sizeof changed);
  changed[9] = 11; /* row 1 of the third copy of the first prompt */
  dkv_sequences sequences = own_data(changed, old);
  EXPECT_FAIL(DKV_ERR_MISMATCH, "9", dkv_update_batch_from_sequences(&batch, &sequences, false));
  EXPECT_FAIL(DKV_ERR_MISMATCH, "11", dkv_update_batch_from_sequences(&batch, &sequences, true));
  cr_expect_null(batch.ids);
}

Test(update, sequences_with_impossible_ranges_are_refused) {
  float old[17] = {0};
  dkv_update_batch batch;
  static const int32_t short_begin[] = {0, 5, 7, 14, 17}, late[] = {1, 5, 8, 14, 17}, none[] = {0, 2}, zero[] = {3, 0};
  dkv_sequences s = own_data(ids, old);
  s.begin = short_begin;
  EXPECT_FAIL(DKV_ERR_RANGE, "sequence 1 has 2 tokens", dkv_update_batch_from_sequences(&batch, &s, false));
  s.begin = late;
  EXPECT_FAIL(DKV_ERR_RANGE, "begins at 1", dkv_update_batch_from_sequences(&batch, &s, false));
  s = own_data(ids, old);
  s.responses = zero;
  EXPECT_FAIL(DKV_ERR_RANGE, "group 1 has 0", dkv_update_batch_from_sequences(&batch, &s, false));
  s = own_data(ids, old);
  s.prompt_length = none;
  EXPECT_FAIL(DKV_ERR_RANGE, "0 tokens", dkv_update_batch_from_sequences(&batch, &s, false));
  s = own_data(ids, old);
  s.groups = 0;
  EXPECT_FAIL(DKV_ERR_RANGE, "0 groups", dkv_update_batch_from_sequences(&batch, &s, false));
  s = own_data(NULL, old);
  EXPECT_FAIL(DKV_ERR_NULL, "NULL", dkv_update_batch_from_sequences(&batch, &s, false));
}
