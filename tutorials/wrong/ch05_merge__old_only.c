// caught: only the first part is rescaled
/* Right as long as the second part holds the larger maximum, as in a loop over single keys with m' = max(m, s). */
#include <math.h>

void student_merge(double *m, double *l, double *o, double m2, double l2, const double *o2, int dim) {
  const double top = fmax(*m, m2);
  const double old = *m == -INFINITY ? 0 : exp(*m - top);
  for (int d = 0; d < dim; ++d) o[d] = old * o[d] + o2[d];
  *l = old * *l + l2;
  *m = top;
}
