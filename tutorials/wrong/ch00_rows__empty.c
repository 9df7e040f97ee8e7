// caught: an empty response still has its prompt
/* Leaves out the copy of the prompt that an empty response has. */
#include <stdint.h>

void student_rows(int64_t *packed, int64_t *replicated, int32_t prompt, int32_t responses, const int32_t *length) {
  *packed = prompt;
  *replicated = 0;
  for (int32_t n = 0; n < responses; ++n) {
    *packed += length[n];
    if (length[n] > 0) *replicated += prompt + length[n];
  }
}
