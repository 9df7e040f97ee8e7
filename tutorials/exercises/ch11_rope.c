// caught: nothing was turned
/*
 * Exercise 11, core: the rotary embedding of a packed group.
 *
 *   make exercise CH=11        judges this file
 *
 * x [rows][dim] holds one head of q: the rows of a prompt, then of `responses` responses of length[n] rows.  Turn each
 * row in place by its position ON ITS PATH.  With half = dim / 2, for j = 0 .. half-1 and the angle
 * a = position theta^(-2 j / dim):
 *
 *   x_j         <-  x_j cos a - x_{j+half} sin a
 *   x_{j+half}  <-  x_{j+half} cos a + x_j sin a
 *
 * Target: agrees with the library to 1e-5.
 * Hint: both new numbers need both old ones.
 */
#include <math.h>
#include <stdint.h>

void student_rope(float *x, int32_t prompt, int32_t responses, const int32_t *length, int32_t dim, double theta) {
  (void)x, (void)prompt, (void)responses, (void)length, (void)dim, (void)theta; /* your code replaces this line */
}
