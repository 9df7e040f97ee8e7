/**
 * @file sampled_reference.cuh
 * @brief The forward definition in double on the GPU, for chosen (row, head) pairs: judges runs too large for the CPU.
 *
 * One block a pair, three passes over the keys of the row by rule dkv_sees; nothing is tiled, nothing is fast.
 *
 * Read before: common/mask.h.  Read next: fwd_driver.cu.
 */
#ifndef DKV_TESTS_SAMPLED_REFERENCE_CUH
#define DKV_TESTS_SAMPLED_REFERENCE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/attention.h"
#include "common/mask.h"

/** One thing to check. */
struct reference_pair {
  int32_t row, head;
};

/** Sum or maximum over a block of 128 threads; every thread gets it. */
template <bool maximum> __device__ double reference_reduce(double x) {
  __shared__ double slot[128];
  slot[threadIdx.x] = x;
  __syncthreads();
  for (int half = 64; half > 0; half /= 2) {
    if ((int)threadIdx.x < half) {
      const double y = slot[threadIdx.x + half];
      slot[threadIdx.x] = maximum ? fmax(slot[threadIdx.x], y) : slot[threadIdx.x] + y;
    }
    __syncthreads();
  }
  x = slot[0];
  __syncthreads();
  return x;
}

/**
 * Reference o and lse of the pairs.
 * @param[in]  end     [T] device
 * @param[in]  scratch [blocks][T] device
 * @param[out] o       [pairs][D] double
 * @param[out] lse     [pairs] double
 */
template <class T>
__global__ void __launch_bounds__(128)
    reference_forward(const T *q, const T *k, const T *v, const int32_t *end, const reference_pair *pairs, int count,
                      int heads, int kv_heads, int dim, double scale, double *scratch, int64_t rows, double *o,
                      double *lse) {
  double *weight = scratch + (int64_t)blockIdx.x * rows;
  for (int p = blockIdx.x; p < count; p += gridDim.x) {
    const int64_t i = pairs[p].row;
    const int kv = pairs[p].head / (heads / kv_heads);
    const T *qi = q + dkv_offset(i, pairs[p].head, heads, dim);
    double top = -INFINITY, sum = 0;
    for (int64_t j = threadIdx.x; j <= i; j += 128) {
      double s = -INFINITY;
      if (dkv_sees((int32_t)i, (int32_t)j, end[j])) {
        const T *kj = k + dkv_offset(j, kv, kv_heads, dim);
        s = 0;
        for (int d = 0; d < dim; ++d) s += (double)(float)qi[d] * (double)(float)kj[d];
        s *= scale;
      }
      weight[j] = s;
      top = fmax(top, s);
    }
    top = reference_reduce<true>(top);
    for (int64_t j = threadIdx.x; j <= i; j += 128) {
      weight[j] = exp(weight[j] - top);
      sum += weight[j];
    }
    sum = reference_reduce<false>(sum);
    for (int d = threadIdx.x; d < dim; d += 128) {
      double out = 0;
      for (int64_t j = 0; j <= i; ++j)
        if (weight[j] != 0) out += weight[j] * (double)(float)v[dkv_offset(j, kv, kv_heads, dim) + d];
      o[(int64_t)p * dim + d] = out / sum;
    }
    if (threadIdx.x == 0) lse[p] = top + log(sum);
    __syncthreads();
  }
}

/** Fills with normal random numbers from a counter, times `size`. */
template <class T> __global__ void fill_normal(T *out, int64_t n, uint32_t seed, float size) {
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
    uint64_t x = ((uint64_t)seed << 40) + (uint64_t)i + 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    const float u = ((uint32_t)x >> 8) * 5.9604645e-8f + 2.9802322e-8f, w = (float)(x >> 40) * 5.9604645e-8f;
    out[i] = (T)(sqrtf(-2.0f * logf(u)) * cospif(2.0f * w) * size);
  }
}

#endif
