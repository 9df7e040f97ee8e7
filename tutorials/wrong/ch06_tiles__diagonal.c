// caught: a tile on the diagonal is not full
/* Looks at the last row only: off by one tile, the diagonal. */
#include <stdint.h>

enum { EMPTY, FULL, PARTIAL };

int student_classify(const int32_t *end, int32_t i0, int32_t i1, int32_t j0, int32_t j1) {
  int all = 1, none = 1;
  for (int32_t j = j0; j < j1; ++j) {
    const int32_t first = j > i0 ? j : i0, last = end[j] < i1 ? end[j] : i1;
    if (end[j] < i1) all = 0;
    if (first < last) none = 0;
  }
  return none ? EMPTY : all ? FULL : PARTIAL;
}
