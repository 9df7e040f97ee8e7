// caught: that is the packed batch again
/* Leaves out the prompt of the first response: with two responses that is the packed batch. */
#include <stdint.h>

void student_rows(int64_t *packed, int64_t *replicated, int32_t prompt, int32_t responses, const int32_t *length) {
  *packed = prompt;
  *replicated = -prompt;
  for (int32_t n = 0; n < responses; ++n) {
    *packed += length[n];
    *replicated += prompt + length[n];
  }
}
