/*
 * The only difference is how often the prompt is added: once, or once for each response.
 */
#include <stdint.h>

void student_rows(int64_t *packed, int64_t *replicated, int32_t prompt, int32_t responses, const int32_t *length) {
  *packed = prompt;
  *replicated = 0;
  for (int32_t n = 0; n < responses; ++n) {
    *packed += length[n];
    *replicated += prompt + length[n];
  }
}
