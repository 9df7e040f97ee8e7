// caught: P=3, R={2,2}
/*
 * Exercise 01, core: count the visible (query, key) pairs of one group without visiting them.
 *
 *   make exercise CH=01        judges this file
 *
 * A group has a prompt of `prompt` rows and `responses` responses of length[n] rows.  A row sees itself and every row
 * before it on its path: its own prompt and its own response.  Target: O(responses) work, 64-bit sums. Hint: how many
 * keys does row t of a response see?  Sum over t.
 */
#include <stdint.h>

int64_t student_pairs(int32_t prompt, int32_t responses, const int32_t *length) {
  int64_t pairs = 0;
  (void)prompt, (void)responses, (void)length; /* your code replaces this line */
  return pairs;
}
