/**
 * @file train_check.c
 * @brief The same samples through both layouts: --self-check before the first step, --check-every along a whole run.
 *
 * Read before: common/rl/self_check.h.  Read next: train_compare.c.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/train.h"

enum { MOST = 99 };

static int compare_numbers(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double seconds[][2], int64_t count, int which) {
  double sorted[MOST];
  for (int64_t i = 0; i < count; ++i) sorted[i] = seconds[i][which];
  qsort(sorted, (size_t)count, sizeof *sorted, compare_numbers);
  return sorted[count / 2];
}

/* The first step both ways, in turns: packed, replicated, packed, ... */
dkv_status dkv_training_self_check(struct dkv_training *s) {
  dkv_self_check found = {0};
  double seconds[MOST][2] = {{0}};
  int64_t count = s->flags->repeats;
  for (int64_t i = 0; i < count; ++i) {
    DKV_TRY(dkv_trainer_self_check(s->trainer, s->flags->tolerance, &found));
    memcpy(seconds[i], found.seconds, sizeof seconds[i]);
  }
  printf("Self-check: the first step packed (%lld rows) and replicated (%lld rows): loss %.7f and %.7f, gradients of "
         "%d tensors equal\nto rounding, at worst %.1e of %s%s\n",
         (long long)found.rows[0], (long long)found.rows[1], found.loss[0], found.loss[1], found.parameters,
         found.worst, found.worst_parameter, found.drawn ? " (random advantages: the rewards gave no signal)" : "");
  double packed = median(seconds, count, 0), replicated = median(seconds, count, 1);
  printf("Gradient: packed %.3f s, replicated %.3f s, so %.2f times faster; rho, the ratio of rows, is %.2f\n\n",
         packed, replicated, replicated / packed, (double)found.rows[1] / (double)found.rows[0]);
  dkv_log_self_check(s, s->trainer->step, &found, seconds, count);
  return DKV_OK;
}

dkv_status dkv_training_check_step(struct dkv_training *s) {
  dkv_self_check found;
  DKV_TRY(dkv_trainer_self_check(s->trainer, s->flags->tolerance, &found));
  dkv_log_self_check(s, s->trainer->step, &found, &found.seconds, 1);
  s->checked += 1;
  s->worst_loss = fmax(s->worst_loss, fabs(found.loss[0] - found.loss[1]));
  if (found.worst < s->worst_gradient) return DKV_OK;
  s->worst_gradient = found.worst;
  snprintf(s->worst_parameter, sizeof s->worst_parameter, "%s", found.worst_parameter);
  return DKV_OK;
}

void dkv_training_report_checks(const struct dkv_training *s) {
  printf(
      "\nThe same samples packed and replicated, %lld steps: losses differ by %.1e at most, gradients by %.1e of the\n"
      "size of %s\n",
      (long long)s->checked, s->worst_loss, s->worst_gradient, s->worst_parameter);
}
