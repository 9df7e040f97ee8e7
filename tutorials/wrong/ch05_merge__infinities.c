// caught: not a number
/* The factor of a part without keys is exp(-infinity + infinity). */
#include <math.h>

void student_merge(double *m, double *l, double *o, double m2, double l2, const double *o2, int dim) {
  const double top = fmax(*m, m2);
  const double old = exp(*m - top);
  const double new = exp(m2 - top);
  for (int d = 0; d < dim; ++d) o[d] = old * o[d] + new *o2[d];
  *l = old * *l + new *l2;
  *m = top;
}
