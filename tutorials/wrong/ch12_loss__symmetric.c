// caught: clips higher
/* Clips symmetrically, with the lower bound's width. */
#include <math.h>
#include <stdint.h>

double student_loss(double *slope, const double *logprob, const double *old, const int32_t *begin,
                    const double *advantage, int32_t responses, int64_t step_tokens, double low, double high) {
  (void)high;
  double loss = 0;
  for (int32_t n = 0; n < responses; ++n)
    for (int32_t i = begin[n]; i < begin[n + 1]; ++i) {
      const double A = advantage[n], r = exp(logprob[i] - old[i]), w = 1.0 / (double)step_tokens;
      const double bounded = fmin(fmax(r, 1 - low), 1 + low);
      const int held = bounded * A < r * A;
      loss += -w * (held ? bounded : r) * A;
      slope[i] = held ? 0 : -w * r * A;
    }
  return loss;
}
