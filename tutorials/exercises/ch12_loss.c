// caught: nothing was written
/*
 * Exercise 12, core: the clipped policy loss of DAPO for one micro-batch, and its slope by every log-probability.
 *
 *   make exercise CH=12        judges this file
 *
 * Response n owns tokens begin[n] .. begin[n+1]-1 and has the advantage A = advantage[n].  For each token
 *   r = exp(logprob - old)        l = -min( r A, clip(r, 1 - low, 1 + high) A )
 * Return the sum of w l over the tokens of this micro-batch, and write slope = w dl / dlogprob, [tokens].
 * w = 1 / step_tokens, where step_tokens counts the tokens of the WHOLE step, of which this micro-batch is a part.
 * Target: the sum over micro-batches does not depend on how the step was cut.
 * Hint: the min has two branches; which of them depends on logprob?
 */
#include <math.h>
#include <stdint.h>

double student_loss(double *slope, const double *logprob, const double *old, const int32_t *begin,
                    const double *advantage, int32_t responses, int64_t step_tokens, double low, double high) {
  (void)slope, (void)logprob, (void)old, (void)begin; /* your code replaces these lines */
  (void)advantage, (void)responses, (void)step_tokens, (void)low, (void)high;
  return 0;
}
