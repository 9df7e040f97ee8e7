// caught: exp overflows
/* Brings both parts to the maximum 0: the naive softmax. */
#include <math.h>

void student_merge(double *m, double *l, double *o, double m2, double l2, const double *o2, int dim) {
  const double top = 0;
  const double old = *m == -INFINITY ? 0 : exp(*m - top);
  const double new = m2 == -INFINITY ? 0 : exp(m2 - top);
  for (int d = 0; d < dim; ++d) o[d] = old * o[d] + new *o2[d];
  *l = old * *l + new *l2;
  *m = top;
}
