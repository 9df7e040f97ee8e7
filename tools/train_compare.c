/**
 * @file train_compare.c
 * @brief `dualkv train --compare`: the same run packed and replicated.  By step the curves coincide; by second they do
 * not.
 *
 * Read before: train_session.c.  Read next: curves.c.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/train.h"

/** What one layout did. */
struct side {
  double seconds;                /* of all updates */
  int64_t rows, replicated_rows; /* of all steps */
  char log[1200];                /* its metrics */
};

/** How long the two runs were the same. */
static void print_equality(const dkv_train_stats *a, const dkv_train_stats *b, int64_t steps) {
  int64_t same = 0;
  double loss = 0, norm = 0;
  while (same < steps && a[same].reward == b[same].reward && a[same].tokens == b[same].tokens) {
    loss = fmax(loss, fabs(a[same].loss - b[same].loss));
    if (a[same].updated) norm = fmax(norm, fabs(a[same].grad_norm - b[same].grad_norm) / a[same].grad_norm);
    ++same;
  }
  printf("\nRewards are equal at the first %lld of %lld steps; there losses differ by %.1e at most, gradient norms by "
         "%.1e of themselves\n",
         (long long)same, (long long)steps, loss, norm);
}

/** One layout, from the given weights, with its own log. */
static dkv_status run_side(struct dkv_training *s, struct side *side, bool replicated, const float *weights,
                           dkv_train_stats *kept) {
  s->kept = kept;
  memcpy(s->model.params.data, weights, (size_t)s->model.params.count * sizeof *weights);
  s->config.replicated = replicated;
  s->first_update_seconds = 0;
  s->rows = s->replicated_rows = 0;
  dkv_training_path(s, replicated ? "replicated.jsonl" : "packed.jsonl", side->log);
  DKV_TRY(dkv_log_open(&s->log, side->log, false, 0, 0));
  dkv_log_run(s);
  printf("%s\n", replicated ? "\nReplicated: every response behind its own copy of the prompt" : "Packed");
  dkv_status status = dkv_training_learn(s);
  fclose(s->log);
  s->log = NULL;
  side->seconds = s->first_update_seconds;
  side->rows = s->rows;
  side->replicated_rows = s->replicated_rows;
  return status;
}

dkv_status dkv_training_compare(struct dkv_training *s) {
  struct side packed, replicated;
  char picture[1200];
  size_t bytes = (size_t)s->model.params.count * sizeof(float);
  int64_t steps = s->config.schedule.total;
  float *weights = malloc(bytes);
  dkv_train_stats *kept = calloc(2 * (size_t)steps + 1, sizeof *kept);
  dkv_status status = weights && kept ? DKV_OK : dkv_fail(DKV_ERR_NOMEM, "no memory for a copy of the weights");
  if (status == DKV_OK) memcpy(weights, s->model.params.data, bytes);
  if (status == DKV_OK) status = run_side(s, &packed, false, weights, kept);
  if (status == DKV_OK && !dkv_training_interrupted()) status = run_side(s, &replicated, true, weights, kept + steps);
  bool whole = status == DKV_OK && !dkv_training_interrupted();
  if (whole) print_equality(kept, kept + steps, steps);
  s->kept = NULL;
  free(weights);
  free(kept);
  if (!whole) return status;
  double rho = (double)packed.replicated_rows / (double)packed.rows, measured = replicated.seconds / packed.seconds;
  printf("\nUpdates: packed %.2f s, replicated %.2f s: %.2f times faster; rho, the ratio of rows, is %.2f\n",
         packed.seconds, replicated.seconds, measured, rho);
  const char *const logs[] = {packed.log, replicated.log};
  dkv_training_path(s, "curves.svg", picture);
  DKV_TRY(dkv_curves_draw(picture, "Packed and replicated: the same steps, not the same seconds", logs, 2));
  printf("Curves by step and by second: %s\n", picture);
  return DKV_OK;
}
