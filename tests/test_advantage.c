/**
 * @file test_advantage.c
 * @brief Advantages: golden values of the conventions in use, and what must hold for any rewards.
 */
#include <criterion/criterion.h>
#include <math.h>

#include "common/rl/advantage.h"
#include "common/rng.h"

static void expect_hit_and_miss(dkv_advantage_config config, double hit, double miss) {
  double reward[8] = {1}, advantage[8];
  cr_assert_eq(dkv_advantages(advantage, reward, 8, &config), DKV_OK, "%s", dkv_last_error());
  cr_expect_float_eq(advantage[0], hit, 5e-8, "hit: got %.8f, want %.8f", advantage[0], hit);
  for (int n = 1; n < 8; ++n) cr_expect_float_eq(advantage[n], miss, 5e-8, "miss %d: got %.8f", n, advantage[n]);
}

Test(advantage, golden_values_of_each_convention) {
  expect_hit_and_miss((dkv_advantage_config){true, false, 1e-4}, 2.4741739, -0.3534534); /* TRL: n-1, 1e-4 */
  expect_hit_and_miss((dkv_advantage_config){true, false, 1e-6}, 2.4748667, -0.3535524); /* verl: n-1, 1e-6 */
  expect_hit_and_miss((dkv_advantage_config){true, true, 1e-4}, 2.6449516, -0.3778502);  /* n, 1e-4 */
  expect_hit_and_miss((dkv_advantage_config){false, false, 0}, 0.875, -0.125);           /* Dr.GRPO */
}

Test(advantage, sums_to_zero_and_ignores_a_shift_for_any_rewards) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    int32_t count = 2 + (int32_t)(seed % 31);
    double reward[40], shifted[40], a[40], b[40], sum = 0;
    for (int32_t n = 0; n < count; ++n) {
      reward[n] = (double)dkv_rng_normal(seed, 1, (uint64_t)n);
      shifted[n] = reward[n] + 100;
    }
    dkv_advantage_config config = {seed % 2 == 0, seed % 3 == 0, 1e-6};
    cr_assert_eq(dkv_advantages(a, reward, count, &config), DKV_OK);
    cr_assert_eq(dkv_advantages(b, shifted, count, &config), DKV_OK);
    for (int32_t n = 0; n < count; ++n) {
      sum += a[n];
      cr_assert(fabs(a[n] - b[n]) < 1e-9, "seed %d: a shift by 100 moved response %d from %g to %g", (int)seed, n, a[n],
                b[n]);
    }
    cr_assert(fabs(sum) < 1e-10, "seed %d: the advantages sum to %g", (int)seed, sum);
  }
}

Test(advantage, a_group_without_variance_gives_exact_zeros) {
  double reward[7], advantage[7];
  for (int n = 0; n < 7; ++n) reward[n] = 0.1; /* 0.1 * 7 / 7 is not 0.1 in floating point */
  dkv_advantage_config config = {true, false, 0};
  cr_assert_eq(dkv_advantages(advantage, reward, 7, &config), DKV_OK);
  for (int n = 0; n < 7; ++n) cr_expect(advantage[n] == 0, "response %d has %g", n, advantage[n]);
  cr_expect(dkv_group_is_dead(reward, 7));
  reward[3] = nextafter(0.1, 1);
  cr_expect_not(dkv_group_is_dead(reward, 7), "the smallest difference is a signal");
}

Test(advantage, a_group_of_one_has_nothing_to_compare_with) {
  double reward = 3, advantage = NAN;
  dkv_advantage_config config = {true, false, 1e-6};
  cr_assert_eq(dkv_advantages(&advantage, &reward, 1, &config), DKV_OK);
  cr_expect(advantage == 0);
  cr_expect(dkv_group_is_dead(&reward, 1));
  cr_expect_eq(dkv_advantages(NULL, NULL, 0, &config), DKV_OK);
}

Test(advantage, refuses_what_it_documents) {
  double reward[2] = {0, NAN}, advantage[2];
  dkv_advantage_config config = {true, false, 1e-6}, bad = {true, false, -1};
  cr_expect_eq(dkv_advantages(advantage, reward, 2, &config), DKV_ERR_RANGE);
  cr_expect(strstr(dkv_last_error(), "response 1") != NULL, "%s", dkv_last_error());
  cr_expect_eq(dkv_advantages(advantage, reward, -1, &config), DKV_ERR_RANGE);
  cr_expect_eq(dkv_advantages(advantage, reward, 1, &bad), DKV_ERR_RANGE);
  cr_expect_eq(dkv_advantages(advantage, NULL, 1, &config), DKV_ERR_NULL);
  cr_expect_eq(dkv_advantages(NULL, reward, 1, &config), DKV_ERR_NULL);
  cr_expect_eq(dkv_advantages(advantage, reward, 1, NULL), DKV_ERR_NULL);
}
