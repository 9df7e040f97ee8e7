/*
 * Judge of exercise 03: the student's end[] and position[] against dkv_layout_forest, on a group, two groups, trees and
 * a hundred random forests.
 */
#include <stdio.h>

#include "common/layout.h"
#include "common/rng.h"

void student_layout(int32_t *end, int32_t *position, int32_t segments, const int32_t *parent, const int32_t *length);

enum { SEGMENTS = 12, ROWS = SEGMENTS * 5, GUARD = 8, UNWRITTEN = -77 };

/** Are all rows of `got` equal to those of `want` moved by `shift`? */
static int is_shifted(const int32_t *got, const int32_t *want, int32_t rows, int32_t shift) {
  for (int32_t j = 0; j < rows; ++j)
    if (got[j] != want[j] + shift) return 0;
  return rows > 0;
}

/** Were only the first rows written, as many as there are segments? */
static int by_segment(const dkv_layout *l, const int32_t *got) {
  for (int32_t j = 0; j < l->rows; ++j)
    if ((got[j] == UNWRITTEN) != (j >= l->segments)) return 0;
  return l->segments < l->rows;
}

/** Why is end[] wrong? */
static const char *end_reason(const dkv_layout *l, const int32_t *end, const int32_t *position, int32_t row) {
  int all_rows = 1, own = 1, child = 1, first = 1;
  if (by_segment(l, end)) return "one number for each row, not for each segment: only the first rows were written";
  if (end[row] == UNWRITTEN) return "nothing was written there";
  if (is_shifted(end, l->position, l->rows, 0) && is_shifted(position, l->end, l->rows, 0))
    return "that is its position: the two arrays are swapped";
  if (is_shifted(end, l->end, l->rows, -1))
    return "off by one: end[j] is one PAST the last row, else a segment's last row does not see itself";
  for (int32_t j = 0; j < l->rows; ++j) {
    int32_t s = l->segment[j], last = l->start[s + 1], eldest = s;
    all_rows &= end[j] == l->rows;
    own &= end[j] == last;
    for (int32_t t = s + 1; t < l->segments; ++t) {
      if (l->parent[t] == s) last = l->start[t + 1];
      if (l->parent[t] == eldest) eldest = t; /* the first child of the first child */
    }
    child &= end[j] == last;
    first &= end[j] == l->start[eldest + 1];
  }
  if (all_rows) return "with end[j] = T siblings see each other, and groups too: this is one long causal sequence";
  if (own) return "the end of its own segment: the responses do not see their prompt";
  if (first) return "that is where its FIRST child ends: the last one ends later, so keep the larger";
  if (child) return "children are counted, but not their children: a subtree has any depth";
  return "it is one past the last row of the whole subtree of its segment";
}

/** Why is position[] wrong? */
static const char *position_reason(const dkv_layout *l, const int32_t *position, int32_t row) {
  int packed = 1, inside = 1, parent = 1;
  if (position[row] == UNWRITTEN) return "nothing was written there";
  for (int32_t j = 0; j < l->rows; ++j) {
    packed &= position[j] == j;
    const int32_t s = l->segment[j], up = l->parent[s], own = j - l->start[s];
    inside &= position[j] == own;
    parent &= position[j] == own + (up < 0 ? 0 : l->start[up + 1] - l->start[up]);
  }
  if (is_shifted(position, l->position, l->rows, 1)) return "positions begin at 0: the row itself does not count";
  if (packed) return "these are positions by packed row: a response would be turned by the lengths of its siblings";
  if (inside) return "counted from the start of the segment: the rows of its ancestors come before it on the path";
  if (parent) return "its parent's rows are counted, but not those of the parent's parent";
  return "count the rows of all ancestors, then those of its own segment before it";
}

static int judge(const char *name, int32_t segments, const int32_t *parent, const int32_t *length) {
  dkv_layout layout;
  int32_t end[ROWS + GUARD], position[ROWS + GUARD], wrong = 0;
  if (dkv_layout_forest(&layout, segments, parent, length)) {
    printf("the judge itself failed: %s\n", dkv_last_error());
    return 2;
  }
  for (int32_t j = 0; j < ROWS + GUARD; ++j) end[j] = position[j] = UNWRITTEN;
  student_layout(end, position, segments, parent, length);
  for (int32_t j = 0; j < layout.rows && !wrong; ++j) {
    wrong = end[j] != layout.end[j] || position[j] != layout.position[j];
    if (end[j] != layout.end[j])
      printf("%s, row %d: your end is %d, it should be %d; %s\n", name, j, end[j], layout.end[j],
             end_reason(&layout, end, position, j));
    else if (wrong)
      printf("%s, row %d: end is right, your position is %d, it should be %d; %s\n", name, j, position[j],
             layout.position[j], position_reason(&layout, position, j));
  }
  for (int32_t j = layout.rows; j < ROWS + GUARD && !wrong; ++j)
    if ((wrong = end[j] != UNWRITTEN || position[j] != UNWRITTEN))
      printf("%s: row %d was written, the last row is %d\n", name, j, layout.rows - 1);
  dkv_layout_free(&layout);
  return wrong;
}

/** A random forest in depth-first order: each parent is the segment before or one of its ancestors, or there is none.
 */
static int judge_random(uint64_t seed) {
  int32_t parent[SEGMENTS], length[SEGMENTS];
  char name[40];
  for (int32_t s = 0; s < SEGMENTS; ++s) {
    uint32_t up = dkv_rng(seed, 1, (uint64_t)s).word[0] % 4;
    parent[s] = s - 1;
    while (up-- > 0 && parent[s] >= 0) parent[s] = parent[parent[s]];
    length[s] = (int32_t)(dkv_rng(seed, 2, (uint64_t)s).word[0] % 5);
  }
  snprintf(name, sizeof name, "random forest %d", (int)seed);
  return judge(name, SEGMENTS, parent, length);
}

int main(void) {
  int wrong = judge("P=3, R={2,2}", 3, (const int32_t[]){-1, 0, 0}, (const int32_t[]){3, 2, 2});
  if (!wrong)
    wrong = judge("two groups, one with an empty response", 7, (const int32_t[]){-1, 0, 0, -1, 3, 3, 3},
                  (const int32_t[]){3, 2, 2, 2, 1, 0, 3});
  if (!wrong)
    wrong = judge("a turn after a turn", 5, (const int32_t[]){-1, 0, 0, 2, 2}, (const int32_t[]){3, 2, 2, 1, 4});
  for (uint64_t seed = 0; seed < 100 && !wrong; ++seed) wrong = judge_random(seed);
  if (!wrong) printf("right: a group, two groups, a turn after a turn and 100 random forests\n");
  return wrong;
}
