// caught: nothing was written
/*
 * Exercise 02, core: one row of attention.
 *
 *   make exercise CH=02        judges this file
 *
 *   o = sum over seen j of p_j v_j        p_j = exp(s_j) / sum of exp(s)        s_j = scale * <q, k_j>
 *
 * q [dim], k and v [keys][dim] row by row, so component d of key j is k[j * dim + d]; o [dim] holds rubbish when you
 * get it.  The row sees exactly the keys 0 .. keys-1.  Return lse = ln(sum of exp(s)).
 * Target: scores of 2000 must not overflow.
 * Hint: what may be subtracted from every score without changing o?  You may compute a score twice.
 */
#include <math.h>

double student_row(double *o, const double *q, const double *k, const double *v, int keys, int dim, double scale) {
  (void)o, (void)q, (void)k, (void)v, (void)keys, (void)dim, (void)scale; /* your code replaces this line */
  return 0;
}
