/**
 * @file policy_loss.c
 * @brief One token at a time: ratio, surrogate, weight, derivative. The equations are in policy_loss.h.
 *
 * The derivative is exact, ties included: at r = 1 both branches of the min tie with equal slope, and the token is
 * active (a strict comparison there would switch learning off in the first epoch).
 */
#include "common/rl/policy_loss.h"

#include <math.h>
#include <string.h>

/** Bound on |lp - old| inside exp: e^20 is far outside every clip range, and e^88 would overflow a float. */
#define MAX_LOG_RATIO 20.0

static const struct {
  const char *name;
  dkv_policy_config config;
} presets[] = {
    {"grpo", {DKV_SURROGATE_CLIP, DKV_SEQUENCE_TOKEN_MEAN, 0.2, 0.2, 0, 0, 0, 0}},
    {"dapo", {DKV_SURROGATE_CLIP, DKV_TOKEN_MEAN, 0.2, 0.28, 0, 0, 0, 0}},
    {"dr_grpo", {DKV_SURROGATE_CLIP, DKV_SEQUENCE_CONSTANT, 0.2, 0.2, 0, 0, 0, 512}},
    {"gspo", {DKV_SURROGATE_GSPO, DKV_SEQUENCE_TOKEN_MEAN, 3e-4, 4e-4, 0, 0, 0, 0}},
    {"cispo", {DKV_SURROGATE_CISPO, DKV_TOKEN_MEAN, 1, 4, 0, 0, 0, 0}},
};

dkv_status dkv_policy_preset(dkv_policy_config *out, const char *method) {
  DKV_REQUIRE(out != NULL && method != NULL, DKV_ERR_NULL, "dkv_policy_preset: an argument is NULL");
  for (size_t i = 0; i < sizeof presets / sizeof presets[0]; ++i)
    if (strcmp(method, presets[i].name) == 0) {
      *out = presets[i].config;
      return DKV_OK;
    }
  return dkv_fail(DKV_ERR_RANGE, "the algorithm is \"%s\", but it must be one of grpo, dapo, dr_grpo, gspo, cispo",
                  method);
}

dkv_status dkv_policy_check(const dkv_policy_config *c) {
  DKV_REQUIRE(c != NULL, DKV_ERR_NULL, "dkv_policy_check: config is NULL");
  DKV_REQUIRE(c->clip_low >= 0 && c->clip_low <= 1, DKV_ERR_RANGE, "clip_low is %g, but it must lie in 0 .. 1",
              c->clip_low);
  DKV_REQUIRE(c->clip_high >= 0 && isfinite(c->clip_high), DKV_ERR_RANGE,
              "clip_high is %g, but it must be a number >= 0", c->clip_high);
  DKV_REQUIRE(c->dual_clip == 0 || (c->dual_clip > 1 && isfinite(c->dual_clip)), DKV_ERR_RANGE,
              "dual_clip is %g, but it must be 0 (off) or above 1", c->dual_clip);
  DKV_REQUIRE(c->kl_weight >= 0 && isfinite(c->kl_weight), DKV_ERR_RANGE,
              "kl_weight is %g, but it must be a number >= 0", c->kl_weight);
  DKV_REQUIRE(c->entropy_weight >= 0 && isfinite(c->entropy_weight), DKV_ERR_RANGE,
              "entropy_weight is %g, but it must be a number >= 0", c->entropy_weight);
  DKV_REQUIRE(c->aggregation != DKV_SEQUENCE_CONSTANT || (c->max_length > 0 && isfinite(c->max_length)), DKV_ERR_RANGE,
              "max_length is %g, but Dr.GRPO divides by it and needs it above 0", c->max_length);
  return DKV_OK;
}

/** Does response n carry loss? Masked and empty responses do not. */
static bool counts(const dkv_policy_batch *batch, int32_t n) {
  return batch->begin[n + 1] > batch->begin[n] && (batch->active == NULL || batch->active[n]);
}

static dkv_status check_ranges(const dkv_policy_batch *batch) {
  DKV_REQUIRE(batch != NULL && batch->begin != NULL, DKV_ERR_NULL, "policy batch: begin is NULL");
  DKV_REQUIRE(batch->responses >= 0 && batch->begin[0] == 0, DKV_ERR_SHAPE,
              "policy batch: %d responses from token %d, but it needs 0 or more, from token 0", batch->responses,
              batch->begin[0]);
  for (int32_t n = 0; n < batch->responses; ++n)
    DKV_REQUIRE(batch->begin[n + 1] >= batch->begin[n], DKV_ERR_SHAPE,
                "policy batch: response %d begins at token %d and ends at %d, but ranges must ascend", n,
                batch->begin[n], batch->begin[n + 1]);
  return DKV_OK;
}

dkv_status dkv_normaliser_add(dkv_normaliser *total, const dkv_policy_batch *batch) {
  DKV_REQUIRE(total != NULL, DKV_ERR_NULL, "dkv_normaliser_add: total is NULL");
  DKV_TRY(check_ranges(batch));
  for (int32_t n = 0; n < batch->responses; ++n)
    if (counts(batch, n)) {
      total->responses += 1;
      total->tokens += batch->begin[n + 1] - batch->begin[n];
    }
  return DKV_OK;
}

/** The weight w of each token of response n. */
static double token_weight(const dkv_policy_config *config, const dkv_normaliser *total, int32_t length) {
  switch (config->aggregation) {
  case DKV_TOKEN_MEAN: return 1.0 / (double)total->tokens;
  case DKV_SEQUENCE_TOKEN_MEAN: return 1.0 / ((double)total->responses * length);
  case DKV_SEQUENCE_CONSTANT: return 1.0 / ((double)total->responses * config->max_length);
  }
  return 0;
}

static double clamp(double x, double low, double high) { return x < low ? low : x > high ? high : x; }

/** The exponent as it enters exp, and whether it is held there: then what comes out is constant, with derivative 0. */
static double hold(double x) { return clamp(x, -MAX_LOG_RATIO, MAX_LOG_RATIO); }
static bool is_held(double x) { return fabs(x) > MAX_LOG_RATIO; }

/** A token's surrogate and its derivative by log r (which is the derivative by lp). */
typedef struct term {
  double value, slope;
} term;

/** The clipped surrogate at ratio r; counts the tokens that lose their gradient. */
static term clipped(double r, double advantage, const dkv_policy_config *config, dkv_policy_stats *stats) {
  double low = 1 - config->clip_low, high = 1 + config->clip_high;
  if (advantage > 0 && r > high) {
    stats->clipped_high += 1;
    return (term){-high * advantage, 0};
  }
  if (advantage < 0 && r < low) {
    stats->clipped_low += 1;
    return (term){-low * advantage, 0};
  }
  if (advantage < 0 && config->dual_clip > 0 && r > config->dual_clip) {
    stats->clipped_dual += 1;
    return (term){-config->dual_clip * advantage, 0};
  }
  return (term){-r * advantage, -r * advantage}; /* dr / d lp = r */
}

/** The surrogate of token i under the configured method; `sequence` is GSPO's log-ratio of the whole response. */
static term surrogate(const dkv_policy_batch *batch, int32_t i, double advantage, double sequence,
                      const dkv_policy_config *config, dkv_policy_stats *stats) {
  double lp = (double)batch->logprob[i];
  double own = lp - (double)batch->old[i], r = exp(hold(own));
  stats->ratio += r;
  if (config->surrogate != DKV_SURROGATE_CISPO) {
    double gap = config->surrogate == DKV_SURROGATE_GSPO ? sequence : own;
    term token = clipped(exp(hold(gap)), advantage, config, stats);
    if (is_held(gap)) token.slope = 0;
    return token;
  }
  double weight = clamp(r, 1 - config->clip_low, 1 + config->clip_high);
  stats->clipped_high += r > 1 + config->clip_high;
  stats->clipped_low += r < 1 - config->clip_low;
  return (term){-weight * advantage * lp, -weight * advantage};
}

/** GSPO's log-ratio: the mean of those of the response. The derivative of its exp by each lp is ratio / length, and
 * the sequence's loss is repeated on `length` tokens of weight w, so each token's slope is the plain one. */
static double sequence_log_ratio(const dkv_policy_batch *batch, int32_t n) {
  double sum = 0;
  for (int32_t i = batch->begin[n]; i < batch->begin[n + 1]; ++i)
    sum += (double)batch->logprob[i] - (double)batch->old[i];
  return sum / (batch->begin[n + 1] - batch->begin[n]);
}

static dkv_status check_values(const dkv_policy_batch *batch, const dkv_policy_config *config) {
  for (int32_t n = 0; n < batch->responses; ++n) {
    if (!counts(batch, n)) continue;
    DKV_REQUIRE(isfinite(batch->advantage[n]), DKV_ERR_RANGE,
                "the advantage of response %d is %g, but it must be finite", n, batch->advantage[n]);
    for (int32_t i = batch->begin[n]; i < batch->begin[n + 1]; ++i) {
      bool finite = isfinite(batch->logprob[i]) && isfinite(batch->old[i]);
      finite = finite && (config->kl_weight == 0 || isfinite(batch->reference[i]));
      finite = finite && (config->entropy_weight == 0 || isfinite(batch->entropy[i]));
      DKV_REQUIRE(
          finite, DKV_ERR_RANGE,
          "token %d of response %d has log-probability %g (sampled with %g), but all terms of the loss must be finite",
          i - batch->begin[n], n, (double)batch->logprob[i], (double)batch->old[i]);
    }
  }
  return DKV_OK;
}

/** Everything of response n: adds to the sums, writes its derivatives. */
static void response_loss(dkv_policy_stats *stats, float *dlogprob, float *dentropy, const dkv_policy_batch *batch,
                          int32_t n, const dkv_policy_config *config, const dkv_normaliser *total) {
  double w = token_weight(config, total, batch->begin[n + 1] - batch->begin[n]);
  double sequence = config->surrogate == DKV_SURROGATE_GSPO ? sequence_log_ratio(batch, n) : 0;
  for (int32_t i = batch->begin[n]; i < batch->begin[n + 1]; ++i) {
    term token = surrogate(batch, i, batch->advantage[n], sequence, config, stats);
    double loss = token.value, slope = token.slope;
    if (config->kl_weight > 0) {
      double far = (double)batch->reference[i] - (double)batch->logprob[i], gap = hold(far);
      double k3 = expm1(gap) - gap; /* expm1: near 0 the three terms of k3 cancel */
      stats->kl += k3;
      loss += config->kl_weight * k3;
      slope -= is_held(far) ? 0 : config->kl_weight * expm1(gap);
    }
    if (config->entropy_weight > 0) loss -= config->entropy_weight * (double)batch->entropy[i];
    if (batch->entropy != NULL) stats->entropy += (double)batch->entropy[i];
    stats->loss += w * loss;
    stats->policy += w * token.value;
    stats->max_log_ratio = fmax(stats->max_log_ratio, fabs((double)batch->logprob[i] - (double)batch->old[i]));
    stats->tokens += 1;
    dlogprob[i] = (float)(w * slope);
    if (dentropy != NULL) dentropy[i] = (float)(-w * config->entropy_weight);
  }
}

dkv_status dkv_policy_loss(dkv_policy_stats *stats, float *dlogprob, float *dentropy, const dkv_policy_batch *batch,
                           const dkv_policy_config *config, const dkv_normaliser *total) {
  DKV_REQUIRE(stats != NULL && total != NULL, DKV_ERR_NULL, "dkv_policy_loss: stats or total is NULL");
  DKV_TRY(dkv_policy_check(config));
  DKV_TRY(check_ranges(batch));
  int32_t tokens = batch->begin[batch->responses];
  DKV_REQUIRE(tokens == 0 || (dlogprob && batch->logprob && batch->old && batch->advantage), DKV_ERR_NULL,
              "dkv_policy_loss: an array is NULL while there are %d tokens", tokens);
  DKV_REQUIRE(tokens == 0 || config->kl_weight == 0 || batch->reference, DKV_ERR_NULL,
              "dkv_policy_loss: kl_weight is %g, but there are no reference log-probabilities", config->kl_weight);
  DKV_REQUIRE(tokens == 0 || config->entropy_weight == 0 || (batch->entropy && dentropy), DKV_ERR_NULL,
              "dkv_policy_loss: entropy_weight is %g, but entropy or dentropy is NULL", config->entropy_weight);
  dkv_normaliser own = {0, 0};
  DKV_TRY(dkv_normaliser_add(&own, batch));
  DKV_REQUIRE(
      total->tokens >= own.tokens && total->responses >= own.responses, DKV_ERR_RANGE,
      "dkv_policy_loss: the step counts %lld tokens, but this micro-batch alone has %lld; count the whole step first",
      (long long)total->tokens, (long long)own.tokens);
  DKV_TRY(check_values(batch, config));
  for (int32_t n = 0; n < batch->responses; ++n) {
    if (counts(batch, n)) {
      response_loss(stats, dlogprob, dentropy, batch, n, config, total);
      continue;
    }
    for (int32_t i = batch->begin[n]; i < batch->begin[n + 1]; ++i) {
      dlogprob[i] = 0;
      if (dentropy != NULL) dentropy[i] = 0;
    }
  }
  return DKV_OK;
}
