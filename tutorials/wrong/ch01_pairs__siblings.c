// caught: siblings do not see each other
/* Treats the packed rows as one causal sequence: responses see their elder siblings. */
#include <stdint.h>

int64_t student_pairs(int32_t prompt, int32_t responses, const int32_t *length) {
  int64_t rows = prompt;
  for (int32_t n = 0; n < responses; ++n) rows += length[n];
  return rows * (rows + 1) / 2;
}
