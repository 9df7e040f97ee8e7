/**
 * @file test_cost.c
 * @brief Closed forms against counts, counts against layouts that are really built, A <= rho everywhere.
 *
 * Read before: common/cost.h, tests/support/forest.h.
 */
#include "common/cost.h"

#include <math.h>
#include <stdlib.h>

#include "common/pack.h"
#include "common/rng.h"
#include "tests/support/expect.h"
#include "tests/support/forest.h"
#include "tests/support/memory.h"

static const dkv_model_shape SMALL = {2, 3, 5, 7, 4, 2, 8, 2}; /* L C F V H Hkv D bytes */

/** One group of n equal responses. */
static void group_open(dkv_layout *l, int32_t prompt, int32_t n, int32_t response) {
  int32_t length[64];
  for (int32_t i = 0; i < n; ++i) length[i] = response;
  EXPECT_OK(dkv_layout_group(l, prompt, n, length));
}

Test(cost, closed_forms_give_the_numbers_of_the_seven_token_group) {
  cr_assert(fabs(dkv_cost_rho(3, 2, 2) - 10.0 / 7) < 1e-15);
  cr_assert(fabs(dkv_cost_pair_ratio(3, 2, 2) - 50.0 / 41) < 1e-15); /* 2 * 25 over 9 + 4 * (6 + 2) */
}

Test(cost, pairs_never_shrink_more_than_tokens_and_as_much_at_one_response) {
  for (int n = 1; n <= 64; n += n < 8 ? 1 : 7)
    for (int p = 0; p <= 4096; p = 3 * p + 1)
      for (int r = 0; r <= 4096; r = 3 * r + 1) {
        double a = dkv_cost_pair_ratio(p, n, r), rho = dkv_cost_rho(p, n, r);
        cr_assert(a <= rho * (1 + 1e-14), "P=%d N=%d R=%d: A %g, rho %g", p, n, r, a, rho);
        cr_assert(a >= 1 - 1e-14 && rho <= n + 1e-12, "P=%d N=%d R=%d: A %g, rho %g", p, n, r, a, rho);
        if (n == 1) cr_assert(a == 1 && rho == 1, "P=%d R=%d: A %g, rho %g", p, r, a, rho);
        if (n > 1 && p > 0 && r > 0) cr_assert(a < rho, "P=%d N=%d R=%d: equal at %g", p, n, r, a);
      }
}

Test(cost, ratios_tend_to_n_for_long_prompts_and_to_1_for_long_responses) {
  cr_assert(fabs(dkv_cost_rho(1e12, 16, 1) - 16) < 1e-6 && fabs(dkv_cost_pair_ratio(1e12, 16, 1) - 16) < 1e-6);
  cr_assert(fabs(dkv_cost_rho(1, 16, 1e12) - 1) < 1e-6 && fabs(dkv_cost_pair_ratio(1, 16, 1e12) - 1) < 1e-6);
}

/* The other columns of the table of limits in docs/equivalence.md. */
Test(cost, ratios_of_very_many_responses_depend_on_prompt_over_response_alone) {
  for (double x = 0.25; x <= 1024; x *= 2) {
    double rho = x + 1, a = (x + 1) * (x + 1) / (2 * x + 1);
    cr_assert(fabs(dkv_cost_rho(x * 64, 1e15, 64) / rho - 1) < 1e-10, "P/R=%g", x);
    cr_assert(fabs(dkv_cost_pair_ratio(x * 64, 1e15, 64) / a - 1) < 1e-10, "P/R=%g", x);
    cr_assert(a > x / 2 + 0.75 && a <= x / 2 + 0.75 + 1 / (8 * x + 4) + 1e-9, "P/R=%g: A %g", x, a);
  }
}

/* A - 1 = (N-1) P (P+1) / (2 pairs) and rho - 1 = (N-1) P / rows, counted, for responses of any lengths. */
Test(cost, one_prompt_saves_no_more_pairs_than_tokens_whatever_its_responses) {
  int strictly = 0;
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    int32_t length[12], n = 1 + (int32_t)(dkv_rng(seed, 1, 0).word[0] % 12), rows = 0;
    int32_t p = (int32_t)(dkv_rng(seed, 1, 0).word[1] % (seed % 2 == 0 ? 40 : 4000));
    for (int32_t i = 0; i < n; ++i)
      rows += length[i] = (int32_t)(dkv_rng(seed, 2, (uint64_t)i).word[0] % (1 << seed % 12));
    dkv_layout l;
    dkv_saving s;
    EXPECT_OK(dkv_layout_group(&l, p, n, length));
    EXPECT_OK(dkv_cost_saving(&s, &l, &SMALL));
    double gain = (n - 1.0) * p, packed = (double)s.packed.pairs;
    if (p + rows > 0) {
      cr_assert(fabs(s.rho - 1 - gain / (p + rows)) < 1e-12 * s.rho, "seed %lu: rho %g", (unsigned long)seed, s.rho);
      cr_assert(fabs(s.pair_ratio - 1 - gain * (p + 1) / (2 * packed)) < 1e-12 * s.pair_ratio, "seed %lu: A %g",
                (unsigned long)seed, s.pair_ratio);
    }
    cr_assert(s.pair_ratio <= s.rho, "seed %lu: A %g, rho %g", (unsigned long)seed, s.pair_ratio, s.rho);
    bool shared = n > 1 && p > 0 && rows > 0;
    cr_assert((s.pair_ratio < s.rho) == shared, "seed %lu: A %g, rho %g", (unsigned long)seed, s.pair_ratio, s.rho);
    strictly += shared;
    dkv_layout_free(&l);
  }
  cr_assert(strictly > 2000);
}

/* One long prompt that saves much among short ones that save nothing: pairs weigh the long one more than rows do. */
Test(cost, unlike_prompts_or_branches_together_may_save_more_pairs_than_tokens) {
  int32_t prompt[101] = {100}, responses[101] = {10}, length[110], parent[121] = {-1, 0}, tree[121] = {1, 100};
  for (int32_t g = 1; g <= 100; ++g) prompt[g] = responses[g] = 1;
  for (int32_t i = 0; i < 110; ++i) length[i] = 1;
  for (int32_t s = 2; s < 121; ++s) parent[s] = s < 12 ? 1 : 0, tree[s] = 1; /* ten leaves deep down, the rest near */
  for (int tried = 0; tried < 2; ++tried) {
    dkv_layout l;
    dkv_saving s;
    if (tried == 0) EXPECT_OK(dkv_layout_groups(&l, 101, prompt, responses, length));
    else EXPECT_OK(dkv_layout_forest(&l, 121, parent, tree));
    EXPECT_OK(dkv_cost_saving(&s, &l, &SMALL));
    cr_assert(s.pair_ratio > 1.2 * s.rho, "A %g, rho %g", s.pair_ratio, s.rho);
    dkv_layout_free(&l);
  }
}

/* A step saves what its parts save, weighted: so between the least and the most of rho, A and the LM head's ratio. */
Test(cost, a_step_lies_between_its_parts_and_below_pairs_where_the_head_outweighs) {
  int below = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    int32_t size[7], length[8];
    for (int i = 0; i < 7; ++i) size[i] = 1 << dkv_rng(seed, 3, (uint64_t)i).word[0] % 12;
    for (int i = 0; i < 8; ++i) length[i] = 1 + (int32_t)(dkv_rng(seed, 4, (uint64_t)i).word[0] % 500);
    dkv_model_shape shape = {size[0], size[1], size[2], 32 * size[3], size[4], 1, size[5], 4};
    dkv_layout l;
    dkv_saving s;
    EXPECT_OK(dkv_layout_group(&l, size[6], 8, length));
    EXPECT_OK(dkv_cost_saving(&s, &l, &shape));
    double head = (double)s.replicated.predictions / (double)s.packed.predictions;
    double least = fmin(head, fmin(s.rho, s.pair_ratio)), most = fmax(head, fmax(s.rho, s.pair_ratio));
    cr_assert(s.step_ratio >= least - 1e-12 && s.step_ratio <= most + 1e-12, "seed %lu: %g, not between %g and %g",
              (unsigned long)seed, s.step_ratio, least, most);
    below += s.step_ratio < s.pair_ratio;
    dkv_layout_free(&l);
  }
  cr_assert(below > 0, "no step saved less than its pairs");
}

Test(cost, counted_tokens_and_pairs_are_the_discrete_closed_forms) {
  for (int32_t n = 1; n <= 40; n += 3)
    for (int32_t p = 0; p <= 700; p = 4 * p + 1)
      for (int32_t r = 0; r <= 700; r = 4 * r + 1) {
        dkv_layout l;
        dkv_saving s;
        group_open(&l, p, n, r);
        EXPECT_OK(dkv_cost_saving(&s, &l, &SMALL));
        int64_t path = p + r, pairs = (int64_t)p * (p + 1) / 2 + n * ((int64_t)r * p + (int64_t)r * (r + 1) / 2);
        cr_assert(s.packed.rows == p + n * r && s.replicated.rows == n * path, "P=%d N=%d R=%d: rows", p, n, r);
        cr_assert(s.packed.pairs == pairs && s.replicated.pairs == n * path * (path + 1) / 2, "P=%d N=%d R=%d: pairs",
                  p, n, r);
        cr_assert(fabs(s.rho - dkv_cost_rho(p, n, r)) <= 1e-14 * s.rho, "P=%d N=%d R=%d: rho %g", p, n, r, s.rho);
        double a = dkv_cost_pair_ratio(p, n, r); /* the continuous form leaves out the diagonal: 1 row in P + R */
        cr_assert(fabs(s.pair_ratio - a) <= n * a / (double)(path + 1), "P=%d N=%d R=%d: %g, A = %g", p, n, r,
                  s.pair_ratio, a);
        if (n == 1 || p == 0 || r == 0) /* nothing is shared, or nothing but the prompt: exact */
          cr_assert(fabs(s.pair_ratio - a) <= 1e-14 * a, "P=%d N=%d R=%d: %g, A = %g", p, n, r, s.pair_ratio, a);
        dkv_layout_free(&l);
      }
}

/** Distinct sources of the packed predictions. */
static int64_t distinct_sources(const dkv_prediction *list, int32_t count) {
  bool used[FOREST_ROWS] = {false};
  int64_t distinct = 0;
  for (int32_t p = 0; p < count; ++p) {
    distinct += !used[list[p].source];
    used[list[p].source] = true;
  }
  return distinct;
}

Test(cost, counts_are_those_of_the_layouts_when_they_are_built) {
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    struct forest f;
    dkv_layout l, twin;
    dkv_saving s;
    dkv_prediction *list;
    int32_t *map, count;
    int64_t supervised = 0;
    forest_random(&f, seed);
    EXPECT_OK(dkv_layout_forest(&l, f.segments, f.parent, f.length));
    EXPECT_OK(dkv_layout_replicate(&twin, &map, &l));
    EXPECT_OK(dkv_predictions(&list, &count, &l));
    EXPECT_OK(dkv_cost_saving(&s, &l, &SMALL));
    for (int32_t r = 0; r < twin.rows; ++r) /* copies of supervised rows with a row before them */
      supervised += f.parent[f.owner[map[r]]] >= 0 && twin.position[r] > 0;
    cr_assert(s.packed.rows == l.rows && s.replicated.rows == twin.rows, "seed %lu: rows", (unsigned long)seed);
    cr_assert(s.packed.pairs == dkv_layout_pairs(&l) && s.replicated.pairs == dkv_layout_pairs(&twin),
              "seed %lu: pairs", (unsigned long)seed);
    cr_assert(s.packed.predictions == distinct_sources(list, count), "seed %lu: %ld sources, not %ld",
              (unsigned long)seed, (long)s.packed.predictions, (long)distinct_sources(list, count));
    cr_assert(s.replicated.predictions == supervised, "seed %lu: %ld replicated predictions, not %ld",
              (unsigned long)seed, (long)s.replicated.predictions, (long)supervised);
    cr_assert(s.rho >= 1 && s.pair_ratio >= 1, "seed %lu: %g %g", (unsigned long)seed, s.rho, s.pair_ratio);
    free(list);
    free(map);
    dkv_layout_free(&l);
    dkv_layout_free(&twin);
  }
}

Test(cost, flops_and_bytes_are_those_computed_by_hand) {
  dkv_layout l;
  dkv_saving s;
  group_open(&l, 3, 2, 2);
  EXPECT_OK(dkv_cost_saving(&s, &l, &SMALL));
  /* 7 rows, 24 pairs, 3 sources (row 2 counted once); 10 rows, 30 pairs, 4 sources. H D = 32, Hkv D = 16. */
  cr_assert(s.packed.predictions == 3 && s.replicated.predictions == 4);
  cr_assert(s.packed.linear_flops == 2 * 2 * 7 * (2 * 3 * 32 + 2 * 3 * 16 + 3 * 3 * 5));
  cr_assert(s.packed.pair_flops == 4 * 8 * 4 * 2 * 24);
  cr_assert(s.packed.head_flops == 2 * 3 * 7 * 3);
  cr_assert(s.packed.attention_bytes == 7 * (2 * (4 * 32 + 4 * 16) + 4 * 4));
  cr_assert(s.packed.activation_bytes == 2 * 7 * (2 * (4 * 3 + 3 * 32 + 3 * 16 + 3 * 5) + 4 * (4 + 2 + 4 + 2)));
  cr_assert(s.replicated.linear_flops * 7 == s.packed.linear_flops * 10);
  double packed = 3 * (s.packed.linear_flops + s.packed.head_flops) + 3.5 * s.packed.pair_flops;
  double replicated = 3 * (s.replicated.linear_flops + s.replicated.head_flops) + 3.5 * s.replicated.pair_flops;
  cr_assert(fabs(s.step_ratio - replicated / packed) < 1e-15);
  dkv_layout_free(&l);
}

Test(cost, of_nothing_saves_nothing) {
  dkv_layout l;
  dkv_saving s;
  EXPECT_OK(dkv_layout_forest(&l, 0, NULL, NULL));
  EXPECT_OK(dkv_cost_saving(&s, &l, &SMALL));
  cr_assert(s.rho == 1 && s.pair_ratio == 1 && s.step_ratio == 1 && s.packed.linear_flops == 0);
  cr_assert(dkv_cost_rho(0, 4, 0) == 1 && dkv_cost_pair_ratio(0, 4, 0) == 1);
  dkv_layout_free(&l);
}

Test(cost, of_a_long_group_does_not_overflow) {
  /* 2 * 10^9 rows of prompt, never built: only the segment arrays are read. */
  int32_t parent[9] = {-1, 0, 0, 0, 0, 0, 0, 0, 0}, start[10] = {0}, end[9], base[9] = {0};
  for (int s = 0; s < 9; ++s) start[s + 1] = end[s] = 2000000000, base[s] = s == 0 ? 0 : 2000000000;
  dkv_layout l = {.segments = 5,
                  .rows = 2000000000,
                  .depth = 2,
                  .parent = parent,
                  .start = start,
                  .subtree_end = end,
                  .base = base};
  dkv_saving s;
  EXPECT_OK(dkv_cost_saving(&s, &l, &SMALL));
  cr_assert(s.packed.pairs == INT64_C(2000000001000000000) && s.replicated.pairs == INT64_C(8000000004000000000));
  cr_assert(s.rho == 4 && s.replicated.rows == INT64_C(8000000000));
  l.segments = 9;
  EXPECT_FAIL(DKV_ERR_RANGE, "segment 5 have more than 2^63 - 1 visible pairs", dkv_cost_saving(&s, &l, &SMALL));
  cr_assert(s.rho == 0 && s.packed.rows == 0);
}

Test(cost, refuses_null_and_sizes_below_1_and_reports_missing_memory) {
  static const char *const NAMES[] = {"layers", "width",    "mlp_width", "vocabulary",
                                      "heads",  "kv_heads", "head_dim",  "element_bytes"};
  dkv_layout l;
  dkv_saving s;
  group_open(&l, 3, 2, 2);
  EXPECT_FAIL(DKV_ERR_NULL, "out", dkv_cost_saving(NULL, &l, &SMALL));
  EXPECT_FAIL(DKV_ERR_NULL, "layout", dkv_cost_saving(&s, NULL, &SMALL));
  EXPECT_FAIL(DKV_ERR_NULL, "shape", dkv_cost_saving(&s, &l, NULL));
  for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; ++i)
    for (int32_t value = 0; value >= -1; --value) {
      int32_t sizes[8] = {2, 3, 5, 7, 4, 2, 8, 2};
      sizes[i] = value;
      dkv_model_shape shape = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6], sizes[7]};
      EXPECT_FAIL(DKV_ERR_RANGE, NAMES[i], dkv_cost_saving(&s, &l, &shape));
      cr_assert(s.rho == 0);
    }
  dkv_layout_free(&l);
  static int32_t parent[8 << 20], length[8 << 20];
  memset(parent, 0xff, sizeof parent);
  EXPECT_OK(dkv_layout_forest(&l, 8 << 20, parent, length));
  if (!limit_memory(16 << 20)) cr_skip_test("memory cannot be limited under a sanitizer");
  EXPECT_FAIL(DKV_ERR_NOMEM, "8388608 segments", dkv_cost_saving(&s, &l, &SMALL));
  dkv_layout_free(&l);
}
