/*
 * One visit to each visible pair (i, j).  The row's dq is a sum over j, the key's dk and dv are sums over i; both run
 * through the same loop, so everything is cleared first and added to.
 */
#include <math.h>
#include <stdint.h>

static double dot(const double *a, const double *b, int dim) {
  double s = 0;
  for (int d = 0; d < dim; ++d) s += a[d] * b[d];
  return s;
}

void student_backward(double *dq, double *dk, double *dv, const double *q, const double *k, const double *v,
                      const double *o, const double *lse, const double *dout, const int32_t *end, int rows, int dim,
                      double scale) {
  for (int i = 0; i < rows * dim; ++i) dq[i] = dk[i] = dv[i] = 0;
  for (int i = 0; i < rows; ++i) {
    const double delta = dot(dout + i * dim, o + i * dim, dim);
    for (int j = 0; j <= i; ++j) {
      if (i >= end[j]) continue;
      const double p = exp(scale * dot(q + i * dim, k + j * dim, dim) - lse[i]);
      const double dp = dot(dout + i * dim, v + j * dim, dim);
      const double ds = p * (dp - delta);
      for (int d = 0; d < dim; ++d) {
        dv[j * dim + d] += p * dout[i * dim + d];
        dq[i * dim + d] += scale * ds * k[j * dim + d];
        dk[j * dim + d] += scale * ds * q[i * dim + d];
      }
    }
  }
}
