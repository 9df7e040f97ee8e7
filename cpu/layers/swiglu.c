/**
 * @file swiglu.c
 * @brief The gate of the MLP: silu(gate) times up.
 *
 *     s(z) = 1 / (1 + exp(-z))        forward    out = z s(z) u            z = gate, u = up
 *                                     backward   dz = dout u s (1 + z (1 - s))      du = dout z s
 *
 * The backward writes the gradients over z and u, which nothing reads afterwards: two tensors of T F floats less.
 *
 * Read before: common/layers.h.  Read next: residual.c.
 */
#include "cpu/exp.h"
#include "cpu/layers/layers_cpu.h"

dkv_status dkv_cpu_swiglu_fwd(const dkv_where *where, float *out, const float *gate, const float *up, int64_t rows,
                              int32_t width) {
#pragma omp parallel for num_threads(dkv_where_threads(where, 4 * rows * width))
  for (int64_t t = 0; t < rows; ++t) {
    const float *z = gate + t * width, *u = up + t * width;
    float *out_t = out + t * width;
#pragma omp simd
    for (int32_t f = 0; f < width; ++f) out_t[f] = z[f] / (1.0f + dkv_exp(-z[f])) * u[f];
  }
  return DKV_OK;
}

dkv_status dkv_cpu_swiglu_bwd(const dkv_where *where, float *gate, float *up, const float *dout, int64_t rows,
                              int32_t width) {
#pragma omp parallel for num_threads(dkv_where_threads(where, 4 * rows * width))
  for (int64_t t = 0; t < rows; ++t) {
    float *z = gate + t * width, *u = up + t * width;
    const float *d = dout + t * width;
#pragma omp simd
    for (int32_t f = 0; f < width; ++f) {
      float s = 1.0f / (1.0f + dkv_exp(-z[f])), zs = z[f] * s;
      float dz = d[f] * u[f] * s * (1.0f + z[f] - zs);
      u[f] = d[f] * zs;
      z[f] = dz;
    }
  }
  return DKV_OK;
}
