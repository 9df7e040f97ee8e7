// caught: nothing is ever computed
/*
 * Exercise 06, core: must a kernel compute this tile, and does it need the mask there?
 *
 *   make exercise CH=06        judges this file
 *
 * A tile is the query rows [i0, i1) against the keys [j0, j1), neither of them empty.  Row i sees key j exactly when
 * j <= i && i < end[j].
 *   EMPTY    no row of the tile sees any key of it: skip it
 *   FULL     every row sees every key: no mask code
 *   PARTIAL  anything else
 * Target: a number of steps that grows with the keys of the tile, not with rows times keys.
 * Hint: the rows of the tile that see key j are one run.  Where does it begin, where does it end?
 */
#include <stdint.h>

enum { EMPTY, FULL, PARTIAL };

int student_classify(const int32_t *end, int32_t i0, int32_t i1, int32_t j0, int32_t j1) {
  (void)end, (void)i0, (void)i1, (void)j0, (void)j1; /* your code replaces this line */
  return EMPTY;
}
