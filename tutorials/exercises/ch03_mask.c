// caught: nothing was written
/*
 * Exercise 03, core: from a list of segments to end[] and position[].
 *
 *   make exercise CH=03        judges this file
 *
 * Segment s has length[s] >= 0 rows and parent[s] < s, or -1 for a root.  The segments are listed depth first: the
 * descendants of s come right after it.  The rows lie in the order of the segments.  Fill, for each row j of segment t,
 *
 *   end[j]        one past the last row of t and of all descendants of t
 *   position[j]   how many rows come before row j on its path: rows of all ancestors of t, then of t itself
 *
 * Target: O(rows + segments) work.
 * Hint: walk the segments backwards for end[]; a segment passes what it found on to its parent.  You may keep arrays of
 * MOST_SEGMENTS numbers; the judge has no more segments than that.
 */
#include <stdint.h>

enum { MOST_SEGMENTS = 64 };

void student_layout(int32_t *end, int32_t *position, int32_t segments, const int32_t *parent, const int32_t *length) {
  (void)end, (void)position, (void)segments, (void)parent, (void)length; /* your code replaces this line */
}
