/**
 * @file trainer.c
 * @brief The loop of reinforcement learning, from prompts to a step of AdamW; see trainer.h.
 *
 * Read before: trainer.h.  Read next: trainer_open.c (configuration), trainer_state.c (files).
 */
#include "common/rl/trainer.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/rl/seed.h"

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double dkv_overlong_penalty(int32_t length, int32_t cap, int32_t buffer) {
  int32_t over = length - (cap - buffer);
  if (buffer <= 0 || over <= 0) return 0;
  return over >= buffer ? -1 : -(double)over / buffer;
}

/** Judges every response of a group; adds to the sums that collect() divides at its end. */
static void judge(dkv_group *group, const dkv_train_config *c, dkv_train_stats *stats) {
  for (int32_t n = 0; n < group->responses; ++n) {
    dkv_outcome o =
        c->task->verify(&group->example, group->token + (int64_t)n * DKV_TASK_MAX_RESPONSE, group->length[n]);
    group->outcome[n] = o.exact ? 1 : 0;
    group->reward[n] = o.reward + dkv_overlong_penalty(group->length[n], c->max_length, c->overlong_buffer);
    group->active[n] = !(c->mask_truncated && group->truncated[n]);
    stats->reward += group->reward[n];
    stats->accuracy += group->outcome[n];
    stats->length += group->length[n];
    stats->truncated += group->truncated[n];
  }
}

/** Samples and judges groups[first .. config.groups-1] on fresh prompts. */
static dkv_status sample(dkv_trainer *t, int32_t first, uint64_t *next, dkv_train_stats *stats) {
  const dkv_train_config *c = &t->config;
  int32_t count = c->groups - first;
  for (int32_t g = first; g < c->groups; ++g) {
    t->groups[g].id = (*next)++;
    c->task->generate(&t->groups[g].example, dkv_seed(c->seed, DKV_SEED_PROMPTS), t->groups[g].id, 0);
  }
  dkv_sampler sampler = {.seed = dkv_seed(c->seed, DKV_SEED_SAMPLES),
                         .temperature = c->temperature,
                         .end = &c->task->end,
                         .end_count = 1,
                         .max_length = c->max_length};
  DKV_TRY(dkv_rollout(t->groups + first, count, &t->decoder, &sampler));
  for (int32_t g = first; g < c->groups; ++g) judge(&t->groups[g], c, stats);
  stats->sampled_groups += count;
  return DKV_OK;
}

/** Moves the living among groups[first ..] to the front, in their order. @return the first dead one's place. */
static int32_t keep_living(dkv_trainer *t, int32_t first, dkv_train_stats *stats) {
  int32_t living = first;
  for (int32_t g = first; g < t->config.groups; ++g) {
    if (dkv_group_is_dead(t->groups[g].outcome, t->groups[g].responses)) {
      stats->dead_groups += 1;
    } else {
      dkv_group held = t->groups[living];
      t->groups[living++] = t->groups[g];
      t->groups[g] = held;
    }
  }
  return living;
}

/** Rollout, verification, dead groups; *next is the number of the next unused prompt. */
static dkv_status collect(dkv_trainer *t, dkv_train_stats *stats, int32_t *used, uint64_t *next) {
  const dkv_train_config *c = &t->config;
  int32_t living = 0, rounds = c->dead == DKV_DEAD_RESAMPLE ? c->max_tries : 1;
  for (int32_t round = 0; round < rounds && living < c->groups; ++round) {
    if (round > 0) stats->resampled += c->groups - living;
    DKV_TRY(sample(t, living, next, stats));
    if (c->dead != DKV_DEAD_KEEP) {
      living = keep_living(t, living, stats);
      continue;
    }
    for (int32_t g = 0; g < c->groups; ++g) stats->dead_groups += dkv_group_is_dead(t->groups[g].outcome, c->responses);
    living = c->groups;
  }
  *used = living;
  for (int32_t g = 0; g < living; ++g)
    DKV_TRY(dkv_advantages(t->groups[g].advantage, t->groups[g].reward, c->responses, &c->advantage));
  double samples = (double)stats->sampled_groups * c->responses;
  stats->reward /= samples;
  stats->accuracy /= samples;
  stats->length /= samples;
  stats->truncated /= samples;
  return DKV_OK;
}

dkv_status dkv_trainer_collect(dkv_trainer *trainer, dkv_train_stats *stats, int32_t *used) {
  DKV_REQUIRE(trainer && stats && used, DKV_ERR_NULL, "dkv_trainer_collect: an argument is NULL");
  uint64_t next = trainer->next_example;
  *stats = (dkv_train_stats){.step = trainer->step};
  return collect(trainer, stats, used, &next);
}

/** Loss tokens and responses of the whole optimizer step, counted before any of it is divided. */
static dkv_status count_step(dkv_normaliser *total, const dkv_group *groups, int32_t used) {
  *total = (dkv_normaliser){0, 0};
  for (int32_t g = 0; g < used; ++g)
    for (int32_t n = 0; n < groups[g].responses; ++n) {
      const int32_t begin[2] = {0, groups[g].length[n]};
      dkv_policy_batch one = {.responses = 1, .begin = begin, .active = &groups[g].active[n]};
      DKV_TRY(dkv_normaliser_add(total, &one));
    }
  return DKV_OK;
}

/** The gradient of groups[first .. first+count-1]. */
static dkv_status micro_batch(dkv_trainer *t, int32_t first, int32_t count, bool replicated,
                              const dkv_normaliser *total, dkv_update_stats *stats) {
  const dkv_group **list = malloc((size_t)count * sizeof *list);
  DKV_REQUIRE(list != NULL, DKV_ERR_NOMEM, "no memory for a micro-batch of %d groups", count);
  for (int32_t g = 0; g < count; ++g) list[g] = &t->groups[first + g];
  dkv_update_batch batch = {0};
  dkv_status status = dkv_update_batch_make(&batch, list, count, replicated);
  if (status == DKV_OK && t->config.exact)
    status = dkv_update_gradient_exact(stats, &t->exact, &batch, &t->config.loss, total, t->config.temperature);
  else if (status == DKV_OK)
    status = dkv_update_gradient(stats, t->model, &t->pass, &batch, &t->config.loss, total, t->config.temperature,
                                 t->config.loss.kl_weight > 0 ? &t->reference : NULL);
  dkv_update_batch_free(&batch);
  free(list);
  return status;
}

dkv_status dkv_trainer_gradient(dkv_trainer *t, int32_t used, bool replicated, dkv_update_stats *stats,
                                dkv_normaliser *total) {
  DKV_REQUIRE(t && stats && total, DKV_ERR_NULL, "dkv_trainer_gradient: an argument is NULL");
  DKV_REQUIRE(used >= 0 && used <= t->config.groups, DKV_ERR_RANGE, "%d groups of %d cannot be used", used,
              t->config.groups);
  DKV_TRY(count_step(total, t->groups, used));
  for (int32_t first = 0; first < used && total->tokens > 0; first += t->config.groups_per_batch) {
    int32_t left = used - first, count = left < t->config.groups_per_batch ? left : t->config.groups_per_batch;
    DKV_TRY(micro_batch(t, first, count, replicated, total, stats));
  }
  return DKV_OK;
}

/** Copies the sums of all epochs and of the first one into a step's numbers. */
static void summarise(dkv_train_stats *out, const dkv_update_stats *all, const dkv_update_stats *first,
                      int32_t epochs) {
  double counted = all->policy.tokens > 0 ? (double)all->policy.tokens : 1;
  double tokens = first->tokens > 0 ? (double)first->tokens : 1;
  out->loss = all->policy.loss / epochs;
  out->kl = all->policy.kl / counted;
  out->clipped_low = (double)all->policy.clipped_low / counted;
  out->clipped_high = (double)all->policy.clipped_high / counted;
  out->clipped_dual = (double)all->policy.clipped_dual / counted;
  out->entropy = first->entropy_sum / tokens;
  out->mismatch_max = first->mismatch_max;
  out->mismatch_mean = first->mismatch_sum / tokens;
  out->tokens = first->tokens;
  out->rows = first->rows;
  out->replicated_rows = first->replicated_rows;
}

/** The second half: epochs of gradient and AdamW on the same samples. */
static dkv_status learn(dkv_trainer *t, int32_t used, dkv_train_stats *stats) {
  dkv_update_stats all = {0}, first = {0};
  stats->used_groups = used;
  stats->learning_rate = dkv_schedule_rate(&t->config.schedule, t->step);
  for (int32_t epoch = 0; epoch < t->config.epochs; ++epoch) {
    dkv_normaliser total;
    if (t->config.exact) memset(t->exact.grad, 0, (size_t)t->exact.count * sizeof *t->exact.grad);
    else DKV_TRY(dkv_model_zero_grads(t->model));
    DKV_TRY(dkv_trainer_gradient(t, used, t->config.replicated, &all, &total));
    if (epoch == 0) first = all;
    if (total.tokens == 0) break; /* nothing to learn from: momentum alone must not move the weights */
    if (t->config.exact)
      DKV_TRY(dkv_exact_step(&t->exact, &t->config.optimizer, stats->learning_rate, &stats->grad_norm));
    else DKV_TRY(dkv_optimizer_step(&t->optimizer, t->model, stats->learning_rate, &stats->grad_norm));
    stats->updated = true;
  }
  summarise(stats, &all, &first, t->config.epochs);
  return DKV_OK;
}

dkv_status dkv_trainer_step(dkv_trainer *t, dkv_train_stats *stats) {
  DKV_REQUIRE(t && stats, DKV_ERR_NULL, "dkv_trainer_step: an argument is NULL");
  int32_t used = 0;
  uint64_t next = t->next_example;
  *stats = (dkv_train_stats){.step = t->step};
  double begin = now();
  DKV_TRY(collect(t, stats, &used, &next));
  double sampled = now();
  DKV_TRY(learn(t, used, stats));
  double done = now();
  stats->rollout_seconds = sampled - begin;
  stats->update_seconds = done - sampled;
  double tokens = stats->length * stats->sampled_groups * t->config.responses;
  stats->tokens_per_second = done > begin ? tokens / (done - begin) : 0;
  t->seconds += done - begin;
  stats->total_seconds = t->seconds;
  t->next_example = next;
  t->step += 1;
  return DKV_OK;
}

dkv_status dkv_trainer_run(dkv_trainer *t, int64_t until, dkv_train_report report, void *user) {
  DKV_REQUIRE(t != NULL, DKV_ERR_NULL, "dkv_trainer_run: trainer is NULL");
  while (t->step < until) {
    dkv_train_stats stats;
    DKV_TRY(dkv_trainer_step(t, &stats));
    if (report != NULL && !report(user, &stats)) break;
  }
  return DKV_OK;
}
