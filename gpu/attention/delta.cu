/**
 * @file delta.cu
 * @brief delta, a warp a row: each lane takes 8 elements (D <= 256), 16 bytes a load.
 *
 * Bound by memory: reads o and do once.
 *
 * Read before: delta.h.
 */
#include "gpu/attention/delta.h"

#include "gpu/attention/shape.h"
#include "gpu/runtime/launch.h"
#include "gpu/runtime/tile.cuh"
#include "gpu/runtime/warp.cuh"

namespace {

constexpr int warps = 8;
constexpr float log2_e = 1.4426950408889634f;

template <class T>
__global__ void __launch_bounds__(32 * warps) row_delta(float *delta, float *lse_log2, int stride, const T *o,
                                                        const T *dout, const float *lse, dkv_gpu_shape shape) {
  int lane = (int)(threadIdx.x % 32), i = (int)blockIdx.x * warps + (int)(threadIdx.x / 32), h = (int)blockIdx.y;
  if (i >= stride) return;
  float sum = 0;
  if (i < shape.rows && 8 * lane < shape.dim) {
    float a[8], b[8];
    int64_t at = dkv_offset(i, h, shape.heads, shape.dim) + 8 * lane;
    dkv::load8(a, o + at);
    dkv::load8(b, dout + at);
#pragma unroll
    for (int e = 0; e < 8; ++e) sum += a[e] * b[e];
  }
  sum = dkv::warp_sum<32>(sum);
  if (lane != 0) return;
  delta[(int64_t)h * stride + i] = sum;
  if (lse_log2)
    lse_log2[(int64_t)h * stride + i] = i < shape.rows ? lse[(int64_t)h * shape.rows + i] * log2_e : INFINITY;
}

} // namespace

dkv_status dkv_gpu_delta(float *delta, float *lse_log2, int32_t stride, const dkv_attention *p) {
  dkv_gpu_shape shape = dkv_gpu_shape_of(p);
  dim3 grid;
  DKV_TRY(dkv_gpu_grid(&grid, dkv_ceil_div(stride, warps), shape.heads, 1));
  return dkv_gpu_by_dtype(p->dtype, [&](auto type) {
    using T = decltype(type);
    row_delta<T><<<grid, 32 * warps, 0, (cudaStream_t)p->stream>>>(delta, lse_log2, stride, (const T *)p->o,
                                                                   (const T *)p->dout, (const float *)p->lse, shape);
    return dkv_gpu_launched("row_delta");
  });
}
