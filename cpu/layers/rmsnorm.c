/**
 * @file rmsnorm.c
 * @brief Root-mean-square normalisation of rows: of hidden states over C channels, and of every head of q and k over D
 * lanes.
 *
 *     forward    r_t = 1 / sqrt( mean_c x_tc^2 + eps )      n_tc = x_tc r_t      out_tc = n_tc w_c
 *     backward   g_tc = dout_tc w_c       dx_tc = r_t ( g_tc - n_tc mean_c(g_tc n_tc) )       dw_c += sum_t dout_tc
 * n_tc
 *
 * Where dx comes from: d r / d x_c = -r^3 x_c / C, so d n_c' / d x_c = r [c = c'] - r n_c n_c' / C; multiply by g and
 * sum over c'.
 *
 * QK-norm is this same function with rows = T H: the heads of [T][H][D] lie one after another.
 *
 * Read before: common/layers.h.  Read next: rope.c, linear.c.
 */
#include <math.h>
#include <string.h>

#include "cpu/layers/layers_cpu.h"

dkv_status dkv_cpu_rmsnorm_fwd(const dkv_where *where, float *out, float *rstd, const float *x, const float *weight,
                               int64_t rows, int32_t width, float epsilon) {
#pragma omp parallel for num_threads(dkv_where_threads(where, rows *width))
  for (int64_t t = 0; t < rows; ++t) {
    const float *x_t = x + t * width;
    float *out_t = out + t * width;
    float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
    for (int32_t c = 0; c < width; ++c) squares += x_t[c] * x_t[c];
    float r = 1.0f / sqrtf(squares / (float)width + epsilon);
#pragma omp simd
    for (int32_t c = 0; c < width; ++c) out_t[c] = x_t[c] * r * weight[c];
    rstd[t] = r;
  }
  return DKV_OK;
}

/** Backward of one row; adds its share of dweight to `partial`. dx_t may be dout_t. */
static void row_bwd(float *dx_t, bool add, float *DKV_RESTRICT partial, const float *dout_t,
                    const float *DKV_RESTRICT x_t, float r, const float *DKV_RESTRICT weight, int32_t width) {
  float dot = 0.0f; /* sum_c g_c n_c */
#pragma omp simd reduction(+ : dot)
  for (int32_t c = 0; c < width; ++c) dot += dout_t[c] * weight[c] * (x_t[c] * r);
  float mean = dot / (float)width;
  if (add) {
#pragma omp simd
    for (int32_t c = 0; c < width; ++c) {
      float n = x_t[c] * r;
      partial[c] += dout_t[c] * n;
      dx_t[c] += r * (dout_t[c] * weight[c] - n * mean);
    }
  } else {
#pragma omp simd
    for (int32_t c = 0; c < width; ++c) {
      float n = x_t[c] * r, d = dout_t[c];
      partial[c] += d * n;
      dx_t[c] = r * (d * weight[c] - n * mean);
    }
  }
}

dkv_status dkv_cpu_rmsnorm_bwd(const dkv_where *where, float *dx, bool add, float *dweight, const float *dout,
                               const float *x, const float *rstd, const float *weight, int64_t rows, int32_t width) {
  dkv_row_blocks cut = dkv_cut_rows(rows);
#pragma omp parallel for num_threads(dkv_where_threads(where, rows *width))
  for (int64_t block = 0; block < cut.count; ++block) {
    float *partial = where->scratch + block * width;
    memset(partial, 0, (size_t)width * sizeof *partial);
    int64_t last = dkv_min(rows, (block + 1) * cut.size);
    for (int64_t t = block * cut.size; t < last; ++t)
      row_bwd(dx + t * width, add, partial, dout + t * width, x + t * width, rstd[t], weight, width);
  }
  for (int64_t block = 0; block < cut.count; ++block) /* in block order, on one thread: the bits never change */
    for (int32_t c = 0; c < width; ++c) dweight[c] += where->scratch[block * width + c];
  return DKV_OK;
}
