/**
 * @file forest.h
 * @brief Random forests of segments, and what they mean, computed from ancestry alone: the judge of layout, mask and
 * tiles.
 *
 * Nothing here uses end[], subtree_end[] or any function of the library, so an error there cannot hide itself.
 *
 * Read before: common/layout.h.  Read next: tests/test_mask.c.
 */
#ifndef DKV_TESTS_FOREST_H
#define DKV_TESTS_FOREST_H

#include <stdbool.h>
#include <stdint.h>

/** Largest random forest. */
enum { FOREST_SEGMENTS = 24, FOREST_ROWS = 96 };

/** The lists a caller of dkv_layout_forest would have. */
struct forest {
  uint64_t seed;                   /**< what it was made from, for failure messages */
  int32_t segments;                /**< 0 to FOREST_SEGMENTS */
  int32_t rows;                    /**< 0 to FOREST_ROWS */
  int32_t parent[FOREST_SEGMENTS]; /**< -1 or an earlier segment, depth first */
  int32_t length[FOREST_SEGMENTS]; /**< zero often */
  int32_t owner[FOREST_ROWS];      /**< segment of each row */
};

/**
 * Makes a forest.  Seeds cycle through kinds: anything, one group, several groups, a chain, roots only; a third of them
 * with many empty segments.
 * @param[out] forest overwritten
 * @param[in]  seed   any
 */
void forest_random(struct forest *forest, uint64_t seed);

/** Is segment a the same as b or one of its ancestors? Walks up parent[]. */
bool forest_is_on_path(const struct forest *forest, int32_t a, int32_t b);

/** The mask by ancestry: j's segment is a proper ancestor of i's, or the segment is the same and j is not later. */
bool forest_sees(const struct forest *forest, int32_t i, int32_t j);

/** Does no segment name s as its parent? */
bool forest_is_leaf(const struct forest *forest, int32_t s);

#endif
