/**
 * @file train_show.c
 * @brief What people see of a training run.
 *
 * Read before: train.h.
 */
#include <string.h>

#include "common/rl/seed.h"
#include "tools/train.h"

/** The plan of one layout, as one line. */
static dkv_status show_plan(const struct dkv_training *s, const dkv_layout *layout, const char *name, size_t *bytes) {
  dkv_plan plan;
  char total[32], rows[32];
  DKV_TRY(dkv_pass_plan(&plan, &s->model, layout, false));
  *bytes = plan.total_bytes;
  printf("  %-12s %9s rows   %s\n", name, dkv_tool_count(rows, plan.rows),
         dkv_tool_bytes(total, (double)plan.total_bytes));
  return DKV_OK;
}

dkv_status dkv_show_memory(const struct dkv_training *s) {
  enum { MOST = 1 << 16 };
  const dkv_train_config *c = &s->config;
  static int32_t length[MOST];
  int32_t count = c->groups_per_batch < c->groups ? c->groups_per_batch : c->groups;
  int64_t all = (int64_t)count * c->responses;
  if (all > MOST) return DKV_OK;
  static int32_t prompt[MOST / 2], number[MOST / 2]; /* every group has two responses or more */
  for (int64_t n = 0; n < all; ++n) length[n] = c->max_length - 1;
  for (int32_t g = 0; g < count; ++g) {
    prompt[g] = c->task->max_prompt;
    number[g] = c->responses;
  }
  printf("Activations planned for a micro-batch of %d groups, prompts of %d tokens, %d responses of %d:\n", count,
         c->task->max_prompt, c->responses, c->max_length);
  dkv_layout packed, replicated;
  size_t bytes[2] = {0, 0};
  DKV_TRY(dkv_layout_groups(&packed, count, prompt, number, length));
  dkv_status status = dkv_layout_replicate(&replicated, NULL, &packed);
  if (status == DKV_OK) status = show_plan(s, &packed, "packed", &bytes[0]);
  if (status == DKV_OK) status = show_plan(s, &replicated, "replicated", &bytes[1]);
  if (status == DKV_OK)
    printf("  %-12s %9.2f x      %.2f x\n\n", "saved", (double)replicated.rows / packed.rows,
           (double)bytes[1] / (double)bytes[0]);
  dkv_layout_free(&replicated);
  dkv_layout_free(&packed);
  return status;
}

/** Prints tokens as the task's characters, a "?" for one that the model knows and the task does not. */
static void print_tokens(const dkv_task *task, const int32_t *token, int32_t from, int32_t to) {
  for (int32_t i = from < 0 ? 0 : from; i < to; ++i) {
    int32_t t = token[i];
    putchar(t < task->vocabulary ? task->alphabet[t] : '?');
  }
}

/** Prints a group's answers. @return how many are right. */
static int32_t show_group(const dkv_group *group, const dkv_task *task) {
  int32_t right = 0;
  const struct dkv_style *style = dkv_tool_style();
  enum { TAIL = 44 };
  const dkv_example *e = &group->example;
  for (int32_t n = 0; n < group->responses; ++n) {
    const int32_t *said = group->token + (int64_t)n * DKV_TASK_MAX_RESPONSE;
    bool exact = task->verify(e, said, group->length[n]).exact;
    right += exact;
    printf("  %s", e->prompt_length > TAIL ? "..." : "");
    print_tokens(task, e->prompt, e->prompt_length - TAIL, e->prompt_length);
    printf("  %s", exact ? style->good : style->bad);
    print_tokens(task, said, 0, group->length[n]);
    printf("%s%*s", style->off, DKV_TASK_MAX_RESPONSE + 1 - group->length[n], "");
    if (exact) printf("right\n");
    else {
      printf("wrong: ");
      print_tokens(task, e->answer, 0, e->answer_length);
      putchar('\n');
    }
  }
  return right;
}

dkv_status dkv_show_samples(const dkv_model *model, const dkv_task *task, const char *title, int32_t count,
                            double temperature, bool greedy, uint64_t seed) {
  const struct dkv_style *style = dkv_tool_style();
  enum { SHORT = 3 }; /* so many are counted at a glance */
  int32_t right = 0;
  dkv_decoder decoder = {0};
  dkv_group group = {0};
  dkv_sampler sampler = {.seed = dkv_seed(seed, DKV_SEED_HELD_OUT_SAMPLES),
                         .temperature = (float)temperature,
                         .greedy = greedy,
                         .end = &task->end,
                         .end_count = 1,
                         .max_length = task->max_response};
  printf("%s%s%s\n", style->title, title, style->off);
  dkv_status status = dkv_decoder_open(&decoder, model, 1, 1, task->max_prompt, task->max_response);
  if (status == DKV_OK) status = dkv_group_open(&group, 1);
  for (int32_t i = 0; status == DKV_OK && i < count; ++i) {
    group.id = (uint64_t)i;
    task->generate(&group.example, dkv_seed(2026, DKV_SEED_HELD_OUT), group.id, 0);
    status = dkv_rollout(&group, 1, &decoder, &sampler);
    if (status == DKV_OK) right += show_group(&group, task);
  }
  if (status == DKV_OK && count > SHORT) printf("  %d of %d right\n", right, count);
  if (status == DKV_OK) putchar('\n');
  fflush(stdout);
  dkv_group_close(&group);
  dkv_decoder_close(&decoder);
  return status;
}

void dkv_show_heading(void) {
  const struct dkv_style *style = dkv_tool_style();
  printf("%s  step  reward  accuracy  held out: sampled  greedy  entropy  dead groups  mismatch   update  tokens/s%s\n",
         style->title, style->off);
}

void dkv_show_step(const dkv_train_stats *x, const dkv_evaluation *held_out) {
  char sampled[16] = "", greedy[16] = "", entropy[16] = "-", mismatch[16] = "-";
  if (held_out != NULL) {
    snprintf(sampled, sizeof sampled, "%.3f", held_out->sampled);
    snprintf(greedy, sizeof greedy, "%.3f", held_out->greedy);
  }
  if (x->tokens > 0) { /* otherwise no log-probability was computed, and 0 would look like one */
    snprintf(entropy, sizeof entropy, "%.3f", x->entropy);
    snprintf(mismatch, sizeof mismatch, "%.1e", x->mismatch_max);
  }
  printf("  %4lld  %6.3f  %8.3f  %17s  %6s  %7s  %6d of %2d   %7s  %5.3f s  %8.0f\n", (long long)x->step + 1, x->reward,
         x->accuracy, sampled, greedy, entropy, x->dead_groups, x->sampled_groups, mismatch, x->update_seconds,
         x->tokens_per_second);
  fflush(stdout);
}
