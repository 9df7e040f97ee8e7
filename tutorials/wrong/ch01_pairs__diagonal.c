// caught: a row sees itself
/* Counts only the keys before a row: the diagonal is missing. */
#include <stdint.h>

int64_t student_pairs(int32_t prompt, int32_t responses, const int32_t *length) {
  int64_t pairs = (int64_t)prompt * (prompt - 1) / 2;
  for (int32_t n = 0; n < responses; ++n)
    pairs += (int64_t)length[n] * prompt + (int64_t)length[n] * (length[n] - 1) / 2;
  return pairs;
}
