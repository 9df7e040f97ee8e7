// caught: was not rescaled
/* Adds the sums and forgets that the maximum moved. */
#include <math.h>

void student_merge(double *m, double *l, double *o, double m2, double l2, const double *o2, int dim) {
  const double top = fmax(*m, m2);
  for (int d = 0; d < dim; ++d) o[d] = o[d] + o2[d];
  *l = *l + l2;
  *m = top;
}
