// caught: nothing was written
/*
 * Exercise 10, core: who adds when, so that a sum has the same bits on every run.
 *
 *   make exercise CH=10        judges this file
 *
 * An item is a tile of keys; it visits the query steps first .. last - 1 in this order, and at each step adds its part
 * to the step's dq.  Workers take items from the front of the queue, items[0] first, and each works at its own speed.
 * A worker whose turn at a step is t waits until t others have added there.
 *
 *   turn     wanted: the turns of item 0 at its steps, then those of item 1, and so on, one after another.  The turns
 *            at a step are 0, 1, 2, ..., each once
 *   visits   [steps] room for you, one number a step; holds rubbish when you get it
 *
 * Target: the same bits on every run, and no worker ever waits for an item that nobody has taken.
 * Hint: an item in front of another in the queue has been taken before it.
 */
#include <stdint.h>

struct item {
  int32_t tile;        /* which keys */
  int32_t first, last; /* visits steps first .. last - 1 */
};

void student_turns(int32_t *turn, const struct item *items, int32_t count, int32_t *visits, int32_t steps) {
  (void)turn, (void)items, (void)count, (void)visits, (void)steps; /* your code replaces this line */
}
