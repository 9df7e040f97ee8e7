// caught: items that do not visit the step have turns there too
/* The item's number in the queue, though not every item visits every step. */
#include <stdint.h>

struct item {
  int32_t tile;        /* which keys */
  int32_t first, last; /* visits steps first .. last - 1 */
};

void student_turns(int32_t *turn, const struct item *items, int32_t count, int32_t *visits, int32_t steps) {
  (void)visits, (void)steps;
  for (int32_t n = 0; n < count; ++n)
    for (int32_t s = items[n].first; s < items[n].last; ++s) *turn++ = n;
}
