/**
 * @file test_policy_loss.c
 * @brief Policy losses: golden values of each aggregation, exact derivatives, and invariance under the micro-batch
 * split.
 *
 * Golden values are those of TRL's and verl's formulas for two responses of 2 and 8 tokens with A = +1 and -1 at r = 1.
 * The two projects agree on them where their modes correspond: token mean = TRL "dapo" = verl "token-mean"; sequence
 * mean of token means = TRL "grpo" = verl "seq-mean-token-mean" (verl adds 1e-8 to each length); constant = TRL
 * "dr_grpo" = verl "seq-mean-token-sum-norm" with width 10.  They differ in the deviation's epsilon (test_advantage.c)
 * and in the dual clip, which verl has on (c = 3) and TRL off.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "common/rl/policy_loss.h"
#include "common/rng.h"

enum { RESPONSES = 6, TOKENS = 40 };

/** A random step: ragged responses (one empty, one masked), ratios on both sides of every clip. */
typedef struct step {
  int32_t begin[RESPONSES + 1];
  double advantage[RESPONSES];
  bool active[RESPONSES];
  float logprob[TOKENS], old[TOKENS], reference[TOKENS], entropy[TOKENS];
} step;

static step make_step(uint64_t seed, double spread) {
  step s = {.begin = {0, 3, 3, 14, 20, 33, 40}, .active = {true, true, true, false, true, true}};
  for (int n = 0; n < RESPONSES; ++n) s.advantage[n] = (double)dkv_rng_normal(seed, 1, (uint64_t)n);
  for (int i = 0; i < TOKENS; ++i) {
    s.old[i] = -0.05f - 2 * dkv_rng_uniform(seed, 2, (uint64_t)i);
    s.logprob[i] = s.old[i] + (float)spread * dkv_rng_normal(seed, 3, (uint64_t)i);
    s.reference[i] = s.old[i] + 0.3f * dkv_rng_normal(seed, 4, (uint64_t)i);
    s.entropy[i] = dkv_rng_uniform(seed, 5, (uint64_t)i);
  }
  return s;
}

static dkv_policy_batch view(const step *s) {
  return (dkv_policy_batch){RESPONSES, s->begin, s->advantage, s->active, s->logprob, s->old, s->reference, s->entropy};
}

static const char *const methods[] = {"grpo", "dapo", "dr_grpo", "gspo", "cispo"};

static dkv_policy_config preset(const char *method) {
  dkv_policy_config config;
  cr_assert_eq(dkv_policy_preset(&config, method), DKV_OK, "%s", dkv_last_error());
  return config;
}

static void expect_golden(dkv_aggregation aggregation, double short_weight, double long_weight, double value) {
  int32_t begin[3] = {0, 2, 10};
  double advantage[2] = {1, -1};
  float logprob[10], slope[10];
  for (int i = 0; i < 10; ++i) logprob[i] = -1;
  dkv_policy_batch batch = {2, begin, advantage, NULL, logprob, logprob, NULL, NULL};
  dkv_policy_config config = preset("dapo");
  config.aggregation = aggregation;
  config.max_length = 10;
  dkv_normaliser total = {0, 0};
  dkv_policy_stats stats = {0};
  cr_assert_eq(dkv_normaliser_add(&total, &batch), DKV_OK);
  cr_assert_eq(dkv_policy_loss(&stats, slope, NULL, &batch, &config, &total), DKV_OK, "%s", dkv_last_error());
  cr_expect_float_eq(stats.loss, value, 1e-12, "aggregation %d: loss %.12f, want %.12f", (int)aggregation, stats.loss,
                     value);
  cr_expect_float_eq(slope[0], -short_weight, 1e-8, "aggregation %d: a short token has %g", (int)aggregation,
                     (double)slope[0]);
  cr_expect_float_eq(slope[9], long_weight, 1e-8, "aggregation %d: a long token has %g", (int)aggregation,
                     (double)slope[9]);
}

Test(policy_loss, golden_values_of_each_aggregation) {
  expect_golden(DKV_TOKEN_MEAN, 0.1, 0.1, 0.6);
  expect_golden(DKV_SEQUENCE_TOKEN_MEAN, 0.25, 0.0625, 0);
  expect_golden(DKV_SEQUENCE_CONSTANT, 0.05, 0.05, 0.3);
}

/** loss(lp) of a step, for finite differences. */
static double loss_of(const step *s, const dkv_policy_config *config) {
  dkv_policy_batch batch = view(s);
  dkv_normaliser total = {0, 0};
  dkv_policy_stats stats = {0};
  float slope[TOKENS], entropy_slope[TOKENS];
  cr_assert_eq(dkv_normaliser_add(&total, &batch), DKV_OK);
  cr_assert_eq(dkv_policy_loss(&stats, slope, entropy_slope, &batch, config, &total), DKV_OK, "%s", dkv_last_error());
  return stats.loss;
}

Test(policy_loss, derivative_matches_finite_differences_for_every_method) {
  for (size_t m = 0; m < sizeof methods / sizeof methods[0]; ++m)
    for (uint64_t seed = 0; seed < 20; ++seed) {
      dkv_policy_config config = preset(methods[m]);
      config.kl_weight = 0.1;
      config.entropy_weight = 0.01;
      config.dual_clip = seed % 2 ? 1.5 : 0;
      step s = make_step(seed, strcmp(methods[m], "gspo") == 0 ? 1e-3 : 0.4);
      dkv_policy_batch batch = view(&s);
      dkv_normaliser total = {0, 0};
      dkv_policy_stats stats = {0};
      float slope[TOKENS], entropy_slope[TOKENS];
      cr_assert_eq(dkv_normaliser_add(&total, &batch), DKV_OK);
      cr_assert_eq(dkv_policy_loss(&stats, slope, entropy_slope, &batch, &config, &total), DKV_OK);
      for (int i = 0; i < TOKENS; ++i) {
        step up = s, down = s;
        up.logprob[i] += 1e-4f;
        down.logprob[i] -= 1e-4f;
        double numeric =
            (loss_of(&up, &config) - loss_of(&down, &config)) / ((double)up.logprob[i] - (double)down.logprob[i]);
        if (config.surrogate ==
            DKV_SURROGATE_CISPO) { /* its weight is a constant by definition: differentiate lp alone */
          double r = exp((double)s.logprob[i] - (double)s.old[i]), w = r > 5 ? 5 : r;
          int n = 0;
          while (i >= s.begin[n + 1]) ++n;
          double gap = (double)s.reference[i] - (double)s.logprob[i];
          numeric = s.active[n] ? (-w * s.advantage[n] - config.kl_weight * expm1(gap)) / (double)total.tokens : 0;
        }
        double scale = 1.0 / (double)total.tokens;
        bool kink = fabs(numeric - (double)slope[i]) > 2e-3 * scale; /* a clip edge inside the difference */
        if (kink) {
          double at = loss_of(&s, &config),
                 right = (loss_of(&up, &config) - at) / ((double)up.logprob[i] - (double)s.logprob[i]);
          double left = (at - loss_of(&down, &config)) / ((double)s.logprob[i] - (double)down.logprob[i]);
          kink = fabs(right - (double)slope[i]) < 2e-3 * scale || fabs(left - (double)slope[i]) < 2e-3 * scale;
          cr_assert(kink, "%s, seed %d, token %d: derivative %g, differences %g and %g", methods[m], (int)seed, i,
                    (double)slope[i], left, right);
        }
        up = down = s;
        up.entropy[i] += 0.5f; /* the loss is linear in the entropy */
        down.entropy[i] -= 0.5f;
        numeric = loss_of(&up, &config) - loss_of(&down, &config);
        cr_assert(fabs(numeric - (double)entropy_slope[i]) < 1e-6 * scale,
                  "%s, seed %d, token %d: entropy derivative %g, difference %g", methods[m], (int)seed, i,
                  (double)entropy_slope[i], numeric);
      }
    }
}

/* A ratio of e^25 is held at e^20 and k3 likewise: constants, so their derivative is 0, as differences say; a slope of
 * e^20 there would drown every other token of the step. */
Test(policy_loss, a_held_exponent_has_no_derivative) {
  const int32_t begin[] = {0, 1};
  const double advantage = -1;
  const float old = -26, reference[] = {-26, -3}, entropy = 1;
  for (size_t m = 0; m < sizeof methods / sizeof methods[0]; ++m)
    for (int far = 0; far < 2; ++far) {
      dkv_policy_config config = preset(methods[m]);
      const dkv_normaliser total = {1, 1};
      double loss[3], size = config.aggregation == DKV_SEQUENCE_CONSTANT ? config.max_length : 1;
      float slope = 0, dentropy;
      config.kl_weight = 0.5;
      for (int i = 0; i < 3; ++i) {
        const float logprob[] = {-1.25f, -0.75f, -1};
        dkv_policy_stats stats = {0};
        dkv_policy_batch batch = {1, begin, &advantage, NULL, &logprob[i], &old, &reference[far], &entropy};
        cr_assert_eq(dkv_policy_loss(&stats, &slope, &dentropy, &batch, &config, &total), DKV_OK);
        loss[i] = stats.loss;
      }
      double kl = far == 0 ? 0 : -0.5 * expm1(-2); /* at lp = -1 */
      double want = ((config.surrogate == DKV_SURROGATE_CISPO ? 5 : 0) + kl) / size;
      cr_assert(fabs((double)slope - want) <= 1e-6 * fabs(want), "%s: slope %g, not %g", methods[m], (double)slope,
                want);
      cr_assert(fabs((loss[1] - loss[0]) / 0.5 - want) < 0.02, "%s: difference %g, slope %g", methods[m],
                (loss[1] - loss[0]) / 0.5, want);
    }
}

Test(policy_loss, unchanged_by_micro_batch_split) {
  for (size_t m = 0; m < sizeof methods / sizeof methods[0]; ++m) {
    dkv_policy_config config = preset(methods[m]);
    config.kl_weight = 0.05;
    step s = make_step(7, 0.3);
    dkv_policy_batch whole = view(&s);
    dkv_normaliser total = {0, 0};
    dkv_policy_stats one = {0}, split = {0};
    float a[TOKENS], b[TOKENS];
    cr_assert_eq(dkv_normaliser_add(&total, &whole), DKV_OK);
    cr_assert_eq(dkv_policy_loss(&one, a, NULL, &whole, &config, &total), DKV_OK);
    for (int n = 0; n < RESPONSES; ++n) {
      int32_t first = s.begin[n], begin[2] = {0, s.begin[n + 1] - first};
      dkv_policy_batch part = {
          1, begin, s.advantage + n, s.active + n, s.logprob + first, s.old + first, s.reference + first, NULL};
      cr_assert_eq(dkv_policy_loss(&split, b + first, NULL, &part, &config, &total), DKV_OK, "%s", dkv_last_error());
    }
    cr_expect(fabs(one.loss - split.loss) <= 1e-12 * fabs(one.loss), "%s: %.15g whole, %.15g split", methods[m],
              one.loss, split.loss);
    cr_expect(memcmp(a, b, sizeof a) == 0, "%s: the derivative changed with the split", methods[m]);
  }
}

Test(policy_loss, at_ratio_one_it_is_reinforce) {
  for (size_t m = 0; m < sizeof methods / sizeof methods[0]; ++m) {
    dkv_policy_config config = preset(methods[m]);
    config.aggregation = DKV_TOKEN_MEAN;
    step s = make_step(3, 0);
    dkv_policy_batch batch = view(&s);
    dkv_normaliser total = {0, 0};
    dkv_policy_stats stats = {0};
    float slope[TOKENS];
    cr_assert_eq(dkv_normaliser_add(&total, &batch), DKV_OK);
    cr_assert_eq(dkv_policy_loss(&stats, slope, NULL, &batch, &config, &total), DKV_OK);
    for (int n = 0; n < RESPONSES; ++n)
      for (int32_t i = s.begin[n]; i < s.begin[n + 1]; ++i) {
        double want = s.active[n] ? -s.advantage[n] / (double)total.tokens : 0;
        cr_expect(fabs((double)slope[i] - want) < 1e-7, "%s, token %d: %g, want -A/Z = %g", methods[m], i,
                  (double)slope[i], want);
      }
  }
}

Test(policy_loss, the_clipped_side_has_no_gradient_and_only_that_side) {
  int32_t begin[2] = {0, 1};
  struct {
    double log_ratio, advantage, dual;
    bool moves;
  } table[] = {{0.5, 1, 0, false},  {0.5, -1, 0, true}, {-0.5, 1, 0, true}, {-0.5, -1, 0, false},
               {1.5, -1, 3, false}, {1.0, -1, 3, true}, {0.1, 1, 0, true},  {-0.1, -1, 0, true}};
  for (size_t i = 0; i < sizeof table / sizeof table[0]; ++i) {
    float old = -3, logprob = (float)(-3 + table[i].log_ratio), slope;
    dkv_policy_batch batch = {1, begin, &table[i].advantage, NULL, &logprob, &old, NULL, NULL};
    dkv_policy_config config = preset("dapo");
    config.dual_clip = table[i].dual;
    dkv_normaliser total = {1, 1};
    dkv_policy_stats stats = {0};
    cr_assert_eq(dkv_policy_loss(&stats, &slope, NULL, &batch, &config, &total), DKV_OK);
    cr_expect((slope != 0) == table[i].moves, "log ratio %g, A %g: derivative %g", table[i].log_ratio,
              table[i].advantage, (double)slope);
    int64_t clipped = stats.clipped_low + stats.clipped_high + stats.clipped_dual;
    cr_expect_eq(clipped, table[i].moves ? 0 : 1);
  }
}

Test(policy_loss, k3_is_never_negative_and_zero_at_equality) {
  int32_t begin[2] = {0, 1};
  double advantage = 0;
  for (int i = -40; i <= 40; ++i) {
    float logprob = -2, reference = -2 + 0.1f * (float)i, slope;
    dkv_policy_batch batch = {1, begin, &advantage, NULL, &logprob, &logprob, &reference, NULL};
    dkv_policy_config config = preset("dapo");
    config.kl_weight = 1;
    dkv_normaliser total = {1, 1};
    dkv_policy_stats stats = {0};
    cr_assert_eq(dkv_policy_loss(&stats, &slope, NULL, &batch, &config, &total), DKV_OK);
    cr_expect(i == 0 ? stats.kl == 0 : stats.kl > 0, "k3 is %g at a gap of %g", stats.kl, 0.1 * i);
  }
}

Test(policy_loss, a_step_without_active_tokens_is_zero_not_nan) {
  step s = make_step(1, 0.2);
  memset(s.active, 0, sizeof s.active);
  dkv_policy_batch batch = view(&s);
  for (size_t m = 0; m < sizeof methods / sizeof methods[0]; ++m) {
    dkv_policy_config config = preset(methods[m]);
    dkv_normaliser total = {0, 0};
    dkv_policy_stats stats = {0};
    float slope[TOKENS];
    memset(slope, 0xff, sizeof slope);
    cr_assert_eq(dkv_normaliser_add(&total, &batch), DKV_OK);
    cr_expect_eq(total.tokens, 0);
    cr_assert_eq(dkv_policy_loss(&stats, slope, NULL, &batch, &config, &total), DKV_OK);
    cr_expect(stats.loss == 0);
    for (int i = 0; i < TOKENS; ++i) cr_expect(slope[i] == 0, "token %d has %g", i, (double)slope[i]);
  }
}

Test(policy_loss, refuses_what_it_documents) {
  step s = make_step(1, 0.2);
  dkv_policy_batch batch = view(&s), broken = batch;
  dkv_policy_config config = preset("dapo"), bad = config;
  dkv_normaliser total = {0, 0}, small = {1, 1};
  dkv_policy_stats stats = {0};
  float slope[TOKENS];
  cr_assert_eq(dkv_normaliser_add(&total, &batch), DKV_OK);
  cr_expect_eq(dkv_policy_preset(&bad, "ppo"), DKV_ERR_RANGE);
  cr_expect(strstr(dkv_last_error(), "dapo") != NULL, "%s", dkv_last_error());
  cr_expect_eq(dkv_policy_preset(NULL, "dapo"), DKV_ERR_NULL);
  cr_expect_eq(dkv_policy_loss(&stats, slope, NULL, &batch, &config, &small), DKV_ERR_RANGE);
  cr_expect_eq(dkv_policy_loss(NULL, slope, NULL, &batch, &config, &total), DKV_ERR_NULL);
  cr_expect_eq(dkv_policy_loss(&stats, NULL, NULL, &batch, &config, &total), DKV_ERR_NULL);
  int32_t backwards[RESPONSES + 1] = {0, 3, 2, 14, 20, 33, 40};
  broken.begin = backwards;
  cr_expect_eq(dkv_policy_loss(&stats, slope, NULL, &broken, &config, &total), DKV_ERR_SHAPE);
  broken = batch;
  broken.reference = NULL;
  bad = config;
  bad.kl_weight = 0.1;
  cr_expect_eq(dkv_policy_loss(&stats, slope, NULL, &broken, &bad, &total), DKV_ERR_NULL);
  s.logprob[5] = NAN;
  cr_expect_eq(dkv_policy_loss(&stats, slope, NULL, &batch, &config, &total), DKV_ERR_RANGE);
  cr_expect(strstr(dkv_last_error(), "token 2 of response 2") != NULL, "%s", dkv_last_error());
  double *fields[] = {&bad.clip_low, &bad.clip_high, &bad.dual_clip, &bad.kl_weight, &bad.entropy_weight};
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; ++i) {
    bad = config;
    *fields[i] = -1;
    cr_expect_eq(dkv_policy_check(&bad), DKV_ERR_RANGE, "field %d", (int)i);
  }
  bad = preset("dr_grpo");
  bad.max_length = 0;
  cr_expect_eq(dkv_policy_check(&bad), DKV_ERR_RANGE);
}
