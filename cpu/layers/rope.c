/**
 * @file rope.c
 * @brief Rotary positions: lane j of a head turns together with lane j + D/2, by an angle that grows with the position.
 *
 *     a_j = position theta^(-2 j / D), 0 <= j < D/2
 *     forward    (x_j, x_{j+D/2})  <-  (x_j cos a_j - x_{j+D/2} sin a_j,  x_{j+D/2} cos a_j + x_j sin a_j)
 *     backward   a rotation's transpose is the rotation by -a: the same function with `inverse`
 *
 * The position is that of the row on its path (layout->position), not its packed row number: the first row of every
 * response has position P, wherever it is packed.  So a prompt row needs one rotation, whoever reads it.
 *
 * Read before: rmsnorm.c.  Read next: cpu/attention/tiled_fwd.c.
 */
#include <math.h>

#include "cpu/layers/layers_cpu.h"

dkv_status dkv_cpu_rope_table(const dkv_where *where, float *table, int32_t positions, int32_t head_dim, double theta) {
  int32_t half = head_dim / 2;
#pragma omp parallel for num_threads(dkv_where_threads(where, (int64_t)positions *head_dim * 16))
  for (int32_t p = 0; p < positions; ++p) {
    float *table_p = table + dkv_offset(p, 0, 1, head_dim);
    for (int32_t j = 0; j < half; ++j) {
      double angle = p * pow(theta, -2.0 * j / head_dim);
      table_p[j] = (float)cos(angle);
      table_p[half + j] = (float)sin(angle);
    }
  }
  return DKV_OK;
}

dkv_status dkv_cpu_rope(const dkv_where *where, float *x, const float *table, const int32_t *position, int32_t rows,
                        int32_t heads, int32_t head_dim, bool inverse) {
  int32_t half = head_dim / 2;
  float turn = inverse ? -1.0f : 1.0f;
#pragma omp parallel for num_threads(dkv_where_threads(where, (int64_t)rows *heads *head_dim))
  for (int32_t t = 0; t < rows; ++t) {
    const float *cos_t = table + dkv_offset(position[t], 0, 1, head_dim), *sin_t = cos_t + half;
    for (int32_t h = 0; h < heads; ++h) {
      float *low = x + dkv_offset(t, h, heads, head_dim), *high = low + half;
#pragma omp simd
      for (int32_t j = 0; j < half; ++j) {
        float a = low[j], b = high[j], s = turn * sin_t[j];
        low[j] = a * cos_t[j] - b * s;
        high[j] = b * cos_t[j] + a * s;
      }
    }
  }
  return DKV_OK;
}
