/**
 * @file residual.c
 * @brief The residual sum, and the two row moves around the LM head: gather the rows that predict, scatter their
 * gradient back.
 *
 *     residual   out = x + y                 its backward is the identity twice: the model simply adds to dx
 *     gather     out_u = x[index_u]          backward: scatter, x[index_u] += y_u
 *
 * The index is ascending without repeats (a prompt's last row occurs once, however many responses start from it), so
 * threads never meet.
 *
 * Read before: common/layers.h.  Read next: lm_logprob.c.
 */
#include <string.h>

#include "cpu/layers/layers_cpu.h"

dkv_status dkv_cpu_residual(const dkv_where *where, float *out, const float *x, const float *y, int64_t elements) {
#pragma omp parallel for simd num_threads(dkv_where_threads(where, elements))
  for (int64_t i = 0; i < elements; ++i) out[i] = x[i] + y[i];
  return DKV_OK;
}

dkv_status dkv_cpu_gather_rows(const dkv_where *where, float *out, const float *x, const int32_t *index, int32_t rows,
                               int32_t width) {
#pragma omp parallel for num_threads(dkv_where_threads(where, (int64_t)rows *width))
  for (int32_t u = 0; u < rows; ++u)
    memcpy(out + dkv_offset(u, 0, 1, width), x + dkv_offset(index[u], 0, 1, width), (size_t)width * sizeof *out);
  return DKV_OK;
}

dkv_status dkv_cpu_scatter_rows(const dkv_where *where, float *x, const float *y, const int32_t *index, int32_t rows,
                                int32_t width) {
#pragma omp parallel for num_threads(dkv_where_threads(where, (int64_t)rows *width))
  for (int32_t u = 0; u < rows; ++u) {
    float *x_t = x + dkv_offset(index[u], 0, 1, width);
    const float *y_u = y + dkv_offset(u, 0, 1, width);
#pragma omp simd
    for (int32_t c = 0; c < width; ++c) x_t[c] += y_u[c];
  }
  return DKV_OK;
}
