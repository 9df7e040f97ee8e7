// caught: nothing was merged
/*
 * Exercise 05, core: merge the softmax of two parts of a row.
 *
 *   make exercise CH=05        judges this file
 *
 * A part is a set of keys with scores s_j and values v_j, kept as
 *   m = largest s_j       l = sum of exp(s_j - m)       o[dim] = sum of exp(s_j - m) v_j
 * A part without keys is m = -INFINITY, l = 0, o = 0.  Merge the second part (m2, l2, o2) into the first, in place.
 * Target: scores of 1e5 and parts without keys, on either side or both, give no NaN.
 * Hint: what is exp(-INFINITY - -INFINITY)?
 */
#include <math.h>

void student_merge(double *m, double *l, double *o, double m2, double l2, const double *o2, int dim) {
  (void)m, (void)l, (void)o, (void)m2, (void)l2, (void)o2, (void)dim; /* your code replaces this line */
}
