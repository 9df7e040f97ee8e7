/**
 * @file forest.c
 * @brief Random forests and their ancestry, by the slowest and plainest means.
 *
 * Read before: forest.h.
 */
#include "tests/support/forest.h"

#include <string.h>

#include "common/rng.h"

/** Draws from 0 .. n-1 and advances. */
static int32_t draw(uint64_t seed, uint64_t *index, int32_t n) {
  return (int32_t)(dkv_rng(seed, 77, (*index)++).word[0] % (uint32_t)n);
}

/** A parent that keeps depth-first order: the previous segment, one of its ancestors, or none. */
static int32_t draw_parent(const struct forest *f, int32_t s, int32_t kind, uint64_t *index) {
  int32_t root = s - 1;
  if (s == 0 || kind == 4) return -1;
  if (kind == 3) return s - 1;
  while (root > 0 && f->parent[root] >= 0) root = f->parent[root];
  if (kind == 1) return 0;
  if (kind == 2) return draw(f->seed, index, 4) == 0 ? -1 : root;
  int32_t parent = s - 1;
  while (parent >= 0 && draw(f->seed, index, 3) == 0) parent = f->parent[parent];
  return parent;
}

void forest_random(struct forest *forest, uint64_t seed) {
  uint64_t index = 0;
  memset(forest, 0, sizeof *forest);
  forest->seed = seed;
  int32_t kind = (int32_t)(seed % 5), empties = (int32_t)(seed / 5 % 3);
  int32_t longest = 1 + draw(seed, &index, 9);
  forest->segments = draw(seed, &index, FOREST_SEGMENTS + 1);
  for (int32_t s = 0; s < forest->segments; ++s) {
    forest->parent[s] = draw_parent(forest, s, kind, &index);
    int32_t rows = draw(seed, &index, longest + 1);
    if (empties == 2 && draw(seed, &index, 2) == 0) rows = 0;
    if (empties == 1 && rows == 0) rows = 1;
    if (forest->rows + rows > FOREST_ROWS) rows = 0;
    forest->length[s] = rows;
    for (int32_t i = 0; i < rows; ++i) forest->owner[forest->rows++] = s;
  }
}

bool forest_is_on_path(const struct forest *forest, int32_t a, int32_t b) {
  while (b >= 0 && b != a) b = forest->parent[b];
  return b == a;
}

bool forest_sees(const struct forest *forest, int32_t i, int32_t j) {
  int32_t si = forest->owner[i], sj = forest->owner[j];
  return si == sj ? j <= i : forest_is_on_path(forest, sj, si);
}

bool forest_is_leaf(const struct forest *forest, int32_t s) {
  for (int32_t c = 0; c < forest->segments; ++c)
    if (forest->parent[c] == s) return false;
  return true;
}
