/*
 * Judge of exercise 12: a step of five responses in three micro-batches, each against dkv_policy_loss with the "dapo"
 * preset.  When a slope differs, it is compared with what the usual mistakes give.
 */
#include <math.h>
#include <stdio.h>

#include "common/rl/policy_loss.h"
#include "common/rng.h"

double student_loss(double *slope, const double *logprob, const double *old, const int32_t *begin,
                    const double *advantage, int32_t responses, int64_t step_tokens, double low, double high);

enum { RESPONSES = 5, TOKENS = 40, BATCHES = 3 };

static const int32_t begin[RESPONSES + 1] = {0, 3, 14, 20, 33, 40}; /* tokens of each response */
static const int32_t cut[BATCHES + 1] = {0, 2, 3, 5};               /* responses of each micro-batch */

/** Tokens of the whole step; more than there are here when others hold the rest of it. */
static int32_t step_total = TOKENS;

struct step {
  double advantage[RESPONSES];
  float logprob[TOKENS], old[TOKENS];
};

static struct step draw_step(uint64_t seed) {
  struct step s;
  for (int n = 0; n < RESPONSES; ++n) s.advantage[n] = (double)dkv_rng_normal(seed, 1, (uint64_t)n);
  for (int i = 0; i < TOKENS; ++i) {
    s.old[i] = -0.05f - 2 * dkv_rng_uniform(seed, 2, (uint64_t)i);
    s.logprob[i] = s.old[i] + 0.4f * dkv_rng_normal(seed, 3, (uint64_t)i);
  }
  return s;
}

static int near(double a, double b) { return fabs(a - b) <= 1e-6 * (fabs(a) + fabs(b)) + 1e-12; }

/** Why is a slope wrong? r and A of the token, its response's length, the tokens of its micro-batch. */
static const char *reason(double got, double want, double r, double A, double length, double local) {
  if (isnan(got)) return "nothing was written";
  if (near(got, -r * A / local) || near(got * local, want * step_total))
    return "the normaliser is that of the micro-batch: the loss would change with the way a step is cut";
  if (near(got, want * step_total / (RESPONSES * length)))
    return "that is GRPO's weight, 1 / (responses length): here all tokens weigh the same";
  if (want != 0 && near(got, -A / step_total)) return "r is missing: its derivative by logprob is r itself";
  if (want == 0 && near(got, -r * A / step_total)) return "the clip is missing: this token has no slope any more";
  if (near(got, -want)) return "the sign is turned: l = -min( r A, clip(r) A )";
  if (want != 0 && near(got, want * step_total)) return "w is missing: the slope is w dl / dlogprob";
  if (want != 0 && near(got, -A / r / step_total)) return "r is upside down: r = exp(logprob - old)";
  if (want != 0 && near(got, -r / step_total)) return "A is missing";
  if (want != 0 && got == 0 && fabs(r - 1) < 0.2)
    return "r lies between the bounds, where r A counts (is 1 / step_tokens a division of two integers in C?)";
  if (want != 0 && got == 0 && A > 0 && r > 1) return "the upper bound is 1 + high, not 1 + low: DAPO clips higher";
  if (want != 0 && got == 0) return "the min is missing: a clip alone also frees the tokens that should be corrected";
  return "compare with the table of the four cases";
}

/** One micro-batch. @param[in] first, last responses */
static int judge_batch(const struct step *s, int32_t first, int32_t last, const dkv_policy_config *dapo) {
  const int32_t t0 = begin[first], tokens = begin[last] - t0, responses = last - first;
  int32_t local[RESPONSES + 1];
  float want[TOKENS];
  double logprob[TOKENS], old[TOKENS], got[TOKENS];
  for (int32_t n = 0; n <= responses; ++n) local[n] = begin[first + n] - t0;
  for (int32_t i = 0; i < tokens; ++i)
    logprob[i] = (double)s->logprob[t0 + i], old[i] = (double)s->old[t0 + i], got[i] = NAN;
  dkv_policy_batch batch = {responses, local, s->advantage + first, NULL, s->logprob + t0, s->old + t0, NULL, NULL};
  dkv_policy_stats stats = {0};
  const dkv_normaliser total = {step_total, RESPONSES};
  if (dkv_policy_loss(&stats, want, NULL, &batch, dapo, &total))
    return printf("the judge itself failed: %s\n", dkv_last_error()), 2;
  const double loss = student_loss(got, logprob, old, local, s->advantage + first, responses, step_total,
                                   dapo->clip_low, dapo->clip_high);
  for (int32_t n = 0; n < responses; ++n)
    for (int32_t i = local[n]; i < local[n + 1]; ++i) {
      const double r = exp(logprob[i] - old[i]), A = s->advantage[first + n];
      if (near(got[i], (double)want[i])) continue;
      printf("low %g, high %g, token with r = %.3f, A = %.3f: your slope is %.6g, it should be %.6g; %s\n",
             dapo->clip_low, dapo->clip_high, r, A, got[i], (double)want[i],
             reason(got[i], (double)want[i], r, A, local[n + 1] - local[n], tokens));
      return 1;
    }
  if (near(loss, stats.loss)) return 0;
  dkv_policy_config symmetric = *dapo;
  symmetric.clip_high = dapo->clip_low;
  dkv_policy_stats other = {0};
  if (dkv_policy_loss(&other, want, NULL, &batch, &symmetric, &total))
    return printf("the judge itself failed: %s\n", dkv_last_error()), 2;
  printf("the slopes are right, the loss is %.6g and should be %.6g; %s\n", loss, stats.loss,
         near(loss, -stats.loss)  ? "the sign is turned: l = -min( r A, clip(r) A )"
         : near(loss, other.loss) ? "the upper bound is 1 + high, not 1 + low: DAPO clips higher"
                                  : "the same branch of the min must go into both");
  return 1;
}

int main(void) {
  dkv_policy_config dapo;
  if (dkv_policy_preset(&dapo, "dapo")) return printf("the judge itself failed: %s\n", dkv_last_error()), 2;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    if (seed == 40) dapo.clip_low = 0.1, dapo.clip_high = 0.4, step_total = 2 * TOKENS;
    const struct step s = draw_step(seed);
    for (int b = 0; b < BATCHES; ++b) {
      const int wrong = judge_batch(&s, cut[b], cut[b + 1], &dapo);
      if (wrong) return wrong;
    }
  }
  printf("right: 50 steps, each in three micro-batches, every slope and every loss\n");
  return 0;
}
