// caught: siblings see each other
/* Siblings visible: end[j] = T leaves causality alone, one long sequence. */
#include <stdint.h>

enum { MOST_SEGMENTS = 64 };

void student_layout(int32_t *end, int32_t *position, int32_t segments, const int32_t *parent, const int32_t *length) {
  int32_t start[MOST_SEGMENTS], base[MOST_SEGMENTS], row = 0;
  for (int32_t s = 0; s < segments; ++s) {
    start[s] = row;
    base[s] = parent[s] < 0 ? 0 : base[parent[s]] + length[parent[s]];
    row += length[s];
  }
  for (int32_t s = 0; s < segments; ++s)
    for (int32_t i = 0; i < length[s]; ++i) {
      end[start[s] + i] = row;
      position[start[s] + i] = base[s] + i;
    }
}
