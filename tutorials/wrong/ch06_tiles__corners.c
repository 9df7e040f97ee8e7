// caught: the corners of a tile say nothing
/* Asks the four corners, which is right for plain causal sequences. */
#include <stdint.h>

enum { EMPTY, FULL, PARTIAL };

static int sees(const int32_t *end, int32_t i, int32_t j) { return j <= i && i < end[j]; }

int student_classify(const int32_t *end, int32_t i0, int32_t i1, int32_t j0, int32_t j1) {
  const int seen = sees(end, i0, j0) + sees(end, i1 - 1, j0) + sees(end, i0, j1 - 1) + sees(end, i1 - 1, j1 - 1);
  return seen == 0 ? EMPTY : seen == 4 ? FULL : PARTIAL;
}
