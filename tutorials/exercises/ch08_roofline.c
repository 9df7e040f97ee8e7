// caught: nothing was counted
/*
 * Exercise 08, core: how fast may a kernel be, before anybody writes it?
 *
 *   make exercise CH=08        judges this file
 *
 * The kernel: `tile` consecutive query rows of one head work together; the last tile may have fewer.  A tile loads each
 * key that at least one of its rows sees, once, and its value with it.  Row i sees key j exactly when
 * j <= i && i < end[j].  There are `heads` query heads, each with tiles of its own; an element has `element` bytes.
 *
 *   loads     keys that the tiles of ONE head load
 *   bytes     of all heads: k and v of every load, and q read and o written once
 *   flops     of all heads: 4 dim for each visible pair; masked pairs are no useful work
 *   seconds   no kernel of this kind is faster on a machine that moves `bandwidth` bytes and does `rate` operations a
 *             second, both at the same time
 *
 * Target: right for tiles that straddle responses and groups.
 * Hint: the rows that see key j are j .. end[j] - 1.  When does a tile hold one of them?
 */
#include <stdint.h>

struct bound {
  double loads, bytes, flops, seconds;
};

void student_bound(struct bound *out, const int32_t *end, int32_t rows, int32_t tile, int32_t heads, int32_t dim,
                   int32_t element, double bandwidth, double rate) {
  *out = (struct bound){0}; /* your code replaces these lines */
  (void)end, (void)rows, (void)tile, (void)heads, (void)dim, (void)element, (void)bandwidth, (void)rate;
}
