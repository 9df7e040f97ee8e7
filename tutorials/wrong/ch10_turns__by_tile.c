// caught: items are taken in the order of the queue
/* A fixed order, the one of the definition: but an item may then wait for one that nobody has taken. */
#include <stdint.h>

struct item {
  int32_t tile;        /* which keys */
  int32_t first, last; /* visits steps first .. last - 1 */
};

void student_turns(int32_t *turn, const struct item *items, int32_t count, int32_t *visits, int32_t steps) {
  (void)visits, (void)steps;
  for (int32_t n = 0; n < count; ++n)
    for (int32_t s = items[n].first; s < items[n].last; ++s) {
      *turn = 0;
      for (int32_t m = 0; m < count; ++m)
        *turn += items[m].tile < items[n].tile && items[m].first <= s && s < items[m].last;
      ++turn;
    }
}
