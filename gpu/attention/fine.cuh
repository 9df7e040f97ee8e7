/**
 * @file fine.cuh
 * @brief Scores of hundreds in f32 storage: the backward takes such rows' scores, lse and delta in double.
 *
 * A score of 200 in a float is off by up to 8e-6, a sum of 128 products by more, and so is the stored lse.  The forward
 * does not mind, for its weights are divided by their own sum.  The backward has only lse and o to hold on to:
 * exp(s - lse) is off by 1e-5, and dp - delta magnifies what does not fit together.  So where 32 <= |lse| < 65536
 * (below, half a unit in the last place of lse is 1e-6 or less; beyond, nothing is left to save) a row is taken in
 * double:
 *
 *     w_j = exp(c <q_i, k_j> - lse_i)     lse'_i = lse_i + ln sum_j w_j    delta'_i = sum_j w_j <do_i, v_j> / sum_j w_j
 *     p_ij = exp(c <q_i, k_j> - lse'_i)   ds_ij = p_ij (<do_i, v_j> - delta'_i)
 *
 * Each row decides by its own lse, so its bits do not depend on its neighbours.  16-bit storage does not need it: that
 * code is not even compiled (is_fine is false at compile time) and no memory is taken.  cpu/attention/fine.h is the
 * same idea on the CPU.
 *
 * Read before: delta.h.  Read next: fine.cu, bwd_1_naive.cu.
 */
#ifndef DKV_GPU_FINE_CUH
#define DKV_GPU_FINE_CUH

#include "gpu/attention/shape.h"

/** What the backward holds on to in a row with large scores. */
struct dkv_gpu_fine_row {
  double lse;   /**< ln sum_j exp(s_ij) */
  double delta; /**< sum_j p_ij <do_i, v_j> */
};

/** The numbers of all rows that the backward needs before it starts, in a workspace: delta, then the fine rows. */
struct dkv_gpu_row_sums {
  float *delta;           /**< [H][T] */
  dkv_gpu_fine_row *fine; /**< [H][T], set where is_fine; NULL in 16-bit storage */
};

/**
 * Bytes of the row sums; looks at T, H and the type only.
 * @param[in] p a problem, or anything that a caller may have got wrong
 * @return bytes, 0 when p has no layout or no heads
 */
static inline size_t dkv_gpu_row_sums_bytes(const dkv_attention *p) {
  if (!p || !p->layout || p->heads <= 0) return 0;
  size_t rows = (size_t)p->heads * (size_t)p->layout->rows;
  return dkv_gpu_rounded(rows * sizeof(float)) + (p->dtype == DKV_F32 ? rows * sizeof(dkv_gpu_fine_row) : 0);
}

/** The row sums at the start of the workspace of a checked problem. */
static inline dkv_gpu_row_sums dkv_gpu_row_sums_of(const dkv_attention *p) {
  char *memory = (char *)p->workspace;
  size_t floats = dkv_gpu_rounded((size_t)p->heads * (size_t)p->layout->rows * sizeof(float));
  return dkv_gpu_row_sums{(float *)memory, p->dtype == DKV_F32 ? (dkv_gpu_fine_row *)(memory + floats) : nullptr};
}

/**
 * Launches the kernels that write delta, and in f32 the fine rows, on the problem's stream.
 * @param[out] sums of dkv_gpu_row_sums_of
 * @param[in]  end  [T] device, rule of mask.h
 * @param[in]  p    backward problem, checked, T > 0
 * @return DKV_OK; DKV_ERR_RANGE (too many heads for a grid); DKV_ERR_CUDA
 */
dkv_status dkv_gpu_row_sums_fill(dkv_gpu_row_sums sums, const int32_t *end, const dkv_attention *p);

namespace dkv {

/** A weight p_ij and its gradient ds_ij. */
struct weight {
  float p, ds;
};

/** Does this row have a fine row? T is the storage type. */
template <class T> __device__ __forceinline__ bool is_fine(float) { return false; }
template <> __device__ __forceinline__ bool is_fine<float>(float lse) {
  return fabsf(lse) >= 32.0f && fabsf(lse) < 65536.0f;
}

/** <a, b> in double. */
template <class T> __device__ __forceinline__ double fine_product(const T *a, const T *b, int dim) {
  double sum = 0;
#pragma unroll 1
  for (int d = 0; d < dim; ++d) sum += (double)a[d] * (double)b[d];
  return sum;
}

/** The weight of a pair (i, j) whose row is fine; q, k, dout, v are its four vectors, anywhere. */
template <class T>
__device__ __forceinline__ weight fine_weight(const T *q, const T *k, const T *dout, const T *v, int dim, float scale,
                                              const dkv_gpu_fine_row &row) {
  float p = expf((float)((double)scale * fine_product(q, k, dim) - row.lse));
  return weight{p, p * (float)(fine_product(dout, v, dim) - row.delta)};
}

} // namespace dkv

#endif
