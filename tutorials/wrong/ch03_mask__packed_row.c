// caught: positions by packed row
/* Positions by packed row: the second response is turned as if the first came before it. */
#include <stdint.h>

enum { MOST_SEGMENTS = 64 };

void student_layout(int32_t *end, int32_t *position, int32_t segments, const int32_t *parent, const int32_t *length) {
  int32_t start[MOST_SEGMENTS], subtree_end[MOST_SEGMENTS], row = 0;
  for (int32_t s = 0; s < segments; ++s) {
    start[s] = row;
    row += length[s];
    subtree_end[s] = row;
  }
  for (int32_t s = segments - 1; s >= 0; --s)
    if (parent[s] >= 0 && subtree_end[parent[s]] < subtree_end[s]) subtree_end[parent[s]] = subtree_end[s];
  for (int32_t s = 0; s < segments; ++s)
    for (int32_t i = 0; i < length[s]; ++i) {
      end[start[s] + i] = subtree_end[s];
      position[start[s] + i] = start[s] + i;
    }
}
