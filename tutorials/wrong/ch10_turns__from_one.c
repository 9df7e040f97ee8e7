// caught: turns begin at 0
/* Counts itself among those who have added: everybody waits for one more than will ever come before. */
#include <stdint.h>

struct item {
  int32_t tile;        /* which keys */
  int32_t first, last; /* visits steps first .. last - 1 */
};

void student_turns(int32_t *turn, const struct item *items, int32_t count, int32_t *visits, int32_t steps) {
  for (int32_t s = 0; s < steps; ++s) visits[s] = 0;
  for (int32_t n = 0; n < count; ++n)
    for (int32_t s = items[n].first; s < items[n].last; ++s) *turn++ = ++visits[s];
}
