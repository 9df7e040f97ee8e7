// caught: delta is missing
/* Forgets that the weights of a row sum to 1: ds = p dp. */
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
    for (int j = 0; j <= i; ++j) {
      if (i >= end[j]) continue;
      const double p = exp(scale * dot(q + i * dim, k + j * dim, dim) - lse[i]);
      const double dp = dot(dout + i * dim, v + j * dim, dim);
      const double ds = p * dp;
      for (int d = 0; d < dim; ++d) {
        dv[j * dim + d] += p * dout[i * dim + d];
        dq[i * dim + d] += scale * ds * k[j * dim + d];
        dk[j * dim + d] += scale * ds * q[i * dim + d];
      }
    }
  }
}
