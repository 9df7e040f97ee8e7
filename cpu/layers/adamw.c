/**
 * @file adamw.c
 * @brief One AdamW step over a flat array, and the sum of squares from which the global norm comes.
 *
 *     g = clip grad        m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
 *     w = w - lr ( (m / (1 - b1^step)) / ( sqrt(v / (1 - b2^step)) + eps )  +  decay w )
 *
 * Elementwise, so any cut among threads gives the same bits; the sum of squares is cut into fixed blocks, added in
 * double.
 *
 * Read before: common/layers.h.  Read next: common/model/optimizer.c.
 */
#include <math.h>

#include "cpu/layers/layers_cpu.h"

dkv_status dkv_cpu_adamw(const dkv_where *where, float *w, float *m, float *v, const float *grad, int64_t n,
                         const dkv_adamw *constants) {
  const float beta1 = constants->beta1, beta2 = constants->beta2, epsilon = constants->epsilon;
  const float lr = constants->lr, decay = constants->weight_decay, scale = constants->grad_scale;
  const float correct_m = (float)(1.0 / (1.0 - pow(beta1, (double)constants->step)));
  const float correct_v = (float)(1.0 / (1.0 - pow(beta2, (double)constants->step)));
#pragma omp parallel for simd num_threads(dkv_where_threads(where, 4 * n))
  for (int64_t i = 0; i < n; ++i) {
    float g = grad[i] * scale;
    float m_i = beta1 * m[i] + (1.0f - beta1) * g, v_i = beta2 * v[i] + (1.0f - beta2) * g * g;
    m[i] = m_i;
    v[i] = v_i;
    w[i] -= lr * (m_i * correct_m / (sqrtf(v_i * correct_v) + epsilon) + decay * w[i]);
  }
  return DKV_OK;
}

dkv_status dkv_cpu_sum_squares(const dkv_where *where, double *out, const float *x, int64_t n) {
  double partial[DKV_ROW_BLOCKS] = {0};
  dkv_row_blocks cut = dkv_cut_rows(n);
#pragma omp parallel for num_threads(dkv_where_threads(where, n))
  for (int64_t block = 0; block < cut.count; ++block) {
    double sum = 0.0;
    int64_t last = dkv_min(n, (block + 1) * cut.size);
#pragma omp simd reduction(+ : sum)
    for (int64_t i = block * cut.size; i < last; ++i) sum += (double)x[i] * (double)x[i];
    partial[block] = sum;
  }
  *out = 0.0;
  for (int64_t block = 0; block < cut.count; ++block) *out += partial[block];
  return DKV_OK;
}
