/*
 * Two passes over the keys: the largest score, then the sums.  Subtracting the largest score multiplies numerator and
 * denominator by the same exp(-max), and no exponent is positive any more.
 */
#include <math.h>

static double score(const double *q, const double *k, int dim, double scale) {
  double s = 0;
  for (int d = 0; d < dim; ++d) s += q[d] * k[d];
  return scale * s;
}

double student_row(double *o, const double *q, const double *k, const double *v, int keys, int dim, double scale) {
  double top = -INFINITY, sum = 0;
  for (int j = 0; j < keys; ++j) top = fmax(top, score(q, k + j * dim, dim, scale));
  for (int d = 0; d < dim; ++d) o[d] = 0;
  for (int j = 0; j < keys; ++j) {
    double w = exp(score(q, k + j * dim, dim, scale) - top);
    sum += w;
    for (int d = 0; d < dim; ++d) o[d] += w * v[j * dim + d];
  }
  for (int d = 0; d < dim; ++d) o[d] /= sum;
  return top + log(sum);
}
