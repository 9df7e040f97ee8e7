/*
 * Row t (from 0) of a segment that starts at path position b sees b + t + 1 keys.  So a segment of n rows has
 * n b + n (n + 1) / 2 pairs: with b = 0 for the prompt, b = P for each response.
 */
#include <stdint.h>

int64_t student_pairs(int32_t prompt, int32_t responses, const int32_t *length) {
  int64_t pairs = (int64_t)prompt * (prompt + 1) / 2;
  for (int32_t n = 0; n < responses; ++n)
    pairs += (int64_t)length[n] * prompt + (int64_t)length[n] * (length[n] + 1) / 2;
  return pairs;
}
