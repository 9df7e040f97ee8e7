// caught: overflow
/* Does not subtract the largest score: exp(2000) is infinite and infinity over infinity is not a number. */
#include <math.h>

static double score(const double *q, const double *k, int dim, double scale) {
  double s = 0;
  for (int d = 0; d < dim; ++d) s += q[d] * k[d];
  return scale * s;
}

double student_row(double *o, const double *q, const double *k, const double *v, int keys, int dim, double scale) {
  double top = -INFINITY, sum = 0;
  top = 0;
  for (int d = 0; d < dim; ++d) o[d] = 0;
  for (int j = 0; j < keys; ++j) {
    double w = exp(score(q, k + j * dim, dim, scale) - top);
    sum += w;
    for (int d = 0; d < dim; ++d) o[d] += w * v[j * dim + d];
  }
  for (int d = 0; d < dim; ++d) o[d] /= sum;
  return top + log(sum);
}
