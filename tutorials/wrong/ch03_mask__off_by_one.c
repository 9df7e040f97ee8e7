// caught: off by one
/* The mask is off by one: end[j] is the last row, so the last row of a leaf does not see itself. */
#include <stdint.h>

enum { MOST_SEGMENTS = 64 };

void student_layout(int32_t *end, int32_t *position, int32_t segments, const int32_t *parent, const int32_t *length) {
  int32_t start[MOST_SEGMENTS], base[MOST_SEGMENTS], subtree_end[MOST_SEGMENTS], row = 0;
  for (int32_t s = 0; s < segments; ++s) {
    start[s] = row;
    base[s] = parent[s] < 0 ? 0 : base[parent[s]] + length[parent[s]];
    row += length[s];
    subtree_end[s] = row;
  }
  for (int32_t s = segments - 1; s >= 0; --s)
    if (parent[s] >= 0 && subtree_end[parent[s]] < subtree_end[s]) subtree_end[parent[s]] = subtree_end[s];
  for (int32_t s = 0; s < segments; ++s)
    for (int32_t i = 0; i < length[s]; ++i) {
      end[start[s] + i] = subtree_end[s] - 1;
      position[start[s] + i] = base[s] + i;
    }
}
