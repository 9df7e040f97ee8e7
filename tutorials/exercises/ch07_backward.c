// caught: nothing was written
/*
 * Exercise 07, core: attention backward, one head, from the equations of the chapter.
 *
 *   make exercise CH=07        judges this file
 *
 * Everything is [rows][dim] in double, row by row, but lse [rows] and end [rows]; row i sees row j exactly when
 * j <= i && i < end[j].
 *
 *   given     q, k, v, the forward's o and lse, dout = the gradient with respect to o, the scale
 *   wanted    dq, dk, dv; they hold rubbish when you get them
 *
 * Target: each weight is computed once, from lse, without a second pass over its row.
 * Hint: delta_i = <dout_i, o_i>; the key's gradients are sums over all rows that see it.
 */
#include <math.h>
#include <stdint.h>

void student_backward(double *dq, double *dk, double *dv, const double *q, const double *k, const double *v,
                      const double *o, const double *lse, const double *dout, const int32_t *end, int rows, int dim,
                      double scale) {
  (void)dq, (void)dk, (void)dv, (void)q, (void)k, (void)v, (void)o; /* your code replaces these lines */
  (void)lse, (void)dout, (void)end, (void)rows, (void)dim, (void)scale;
}
