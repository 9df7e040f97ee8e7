// caught: 64-bit
/* The formula is right, the arithmetic is not: int32 products overflow at P = 65536. */
#include <stdint.h>

int64_t student_pairs(int32_t prompt, int32_t responses, const int32_t *length) {
  uint32_t p = (uint32_t)prompt, pairs = p * (p + 1) / 2;
  for (int32_t n = 0; n < responses; ++n)
    pairs += (uint32_t)length[n] * p + (uint32_t)length[n] * ((uint32_t)length[n] + 1) / 2;
  return pairs;
}
