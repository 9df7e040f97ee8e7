// caught: P=3, R={2,2}
/*
 * Exercise 13, core: how much faster does a training loop become?
 *
 *   make exercise CH=13        judges this file
 *
 * A prompt of `prompt` tokens, `responses` responses of length[n] tokens.  The update takes row_cost seconds for each
 * row (projections, MLP, norms) and pair_cost seconds for each visible pair (attention); the rest of the loop
 * (sampling, rewards) takes `rest` seconds, whatever the layout.
 *
 *   *update   time of the replicated update / time of the packed one
 *   *loop     the same for update and rest together
 *
 * Target: exact counts, as in chapter 01, not the closed form.
 */
#include <stdint.h>

void student_speedup(double *update, double *loop, int32_t prompt, int32_t responses, const int32_t *length,
                     double row_cost, double pair_cost, double rest) {
  (void)prompt, (void)responses, (void)length; /* your code replaces these lines */
  (void)row_cost, (void)pair_cost, (void)rest;
  *update = *loop = 0;
}
