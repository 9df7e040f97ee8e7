// caught: P=3, R={2,2}
/*
 * Exercise 00, core: how many rows does a batch have, packed and replicated?
 *
 *   make exercise CH=00        judges this file
 *
 * One prompt of `prompt` rows, `responses` responses of length[n] rows.
 *   *packed       rows when the prompt is stored once
 *   *replicated   rows when every response has a prompt of its own
 * Hint: a response that was cut to nothing is a sequence all the same.
 */
#include <stdint.h>

void student_rows(int64_t *packed, int64_t *replicated, int32_t prompt, int32_t responses, const int32_t *length) {
  (void)prompt, (void)responses, (void)length; /* your code replaces this line */
  *packed = *replicated = 0;
}
