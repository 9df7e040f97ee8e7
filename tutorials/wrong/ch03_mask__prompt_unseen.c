// caught: do not see their prompt
/* end[j] is the end of the own segment: responses are isolated from their prompt too. */
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
  for (int32_t s = 0; s < segments; ++s)
    for (int32_t i = 0; i < length[s]; ++i) {
      end[start[s] + i] = subtree_end[s];
      position[start[s] + i] = base[s] + i;
    }
}
