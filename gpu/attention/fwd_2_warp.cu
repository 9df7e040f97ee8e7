/**
 * @file fwd_2_warp.cu
 * @brief Forward rung 2: a warp a row, one pass with an online softmax.
 *
 * Previous   fwd_1_naive.cu: a thread a row, three passes, scattered reads.
 * Idea       the 32 lanes of a warp share one row: each owns the elements d = lane, lane + 32, ... of q, k, v and o, so
 *            a key is read in consecutive addresses and o stays in registers.  One pass suffices when the sums follow
 *            the maximum:
 *                m' = max(m, s)    l' = l exp(m - m') + exp(s - m')    o' = o exp(m - m') + exp(s - m') v
 * Predict    1.5 to 2 times rung 1: a third of the scores, whole cache lines; but five shuffles follow each product
 *            sum.
 * Measured   4.66 TFLOP/s at N = 8, P = 2048, R = 512, H = 8/2, D = 128, bf16 (H200, 2026-11-30)
 *            20 times rung 1: registers for o were the larger gain.
 * Remains    every row fetches every key itself: a key is read from the cache T times.
 *
 * Mask: the plan is made for tiles of one row, whose spans hold exactly the visible keys: there is no mask code at all.
 * Roles: block = 8 warps = 8 consecutive rows of one head (they read the same keys, from L1); no shared memory.
 *
 * Read before: fwd_1_naive.cu, plan.h.  Read next: fwd_3_shared.cu.
 */
#include "gpu/attention/shape.h"
#include "gpu/runtime/launch.h"
#include "gpu/runtime/tile.cuh"
#include "gpu/runtime/warp.cuh"

namespace {

constexpr int warps = 8;
constexpr dkv_gpu_tiling tiling = {1, 1, 0, 0};

/** A lane's part of a row: elements lane, lane + 32, ...; zeros past D. */
template <int Parts, class T>
__device__ __forceinline__ void load_part(float part[Parts], const T *row, int lane, int dim) {
#pragma unroll
  for (int n = 0; n < Parts; ++n) {
    int d = lane + 32 * n;
    part[n] = d < dim ? dkv::to_float(row[d]) : 0.0f;
  }
}

/** Width: 64, 128 or 256, the smallest that holds D. */
template <class T, int Width>
__global__ void __launch_bounds__(32 * warps)
    fwd_warp(const T *q, const T *k, const T *v, T *o, float *lse, dkv_gpu_shape shape, dkv_gpu_plan plan) {
  constexpr int parts = Width / 32;
  int lane = (int)(threadIdx.x % 32), i = (int)blockIdx.x * warps + (int)(threadIdx.x / 32), h = (int)blockIdx.y;
  int dim = shape.dim;
  if (i >= shape.rows) return;
  float q_part[parts], k_part[parts], v_part[parts], sum[parts] = {};
  load_part<parts>(q_part, q + dkv_offset(i, h, shape.heads, dim), lane, dim);

  float m = -INFINITY, l = 0;
  for (int s = plan.span_first[i]; s < plan.span_first[i + 1]; ++s) {
    for (int j = plan.spans[s].begin; j < plan.spans[s].end; ++j) {
      int64_t at = dkv_offset(j, h / shape.group, shape.kv_heads, dim);
      load_part<parts>(k_part, k + at, lane, dim);
      load_part<parts>(v_part, v + at, lane, dim);
      float product = 0;
#pragma unroll
      for (int n = 0; n < parts; ++n) product += q_part[n] * k_part[n];
      float score = __fmul_rn(shape.scale, dkv::warp_sum<32>(product)); /* rounded, see fwd_1 */
      float m_new = fmaxf(m, score), shrink = expf(m - m_new), p = expf(score - m_new);
      m = m_new;
      l = l * shrink + p;
#pragma unroll
      for (int n = 0; n < parts; ++n) sum[n] = sum[n] * shrink + p * v_part[n];
    }
  }
  T *o_ih = o + dkv_offset(i, h, shape.heads, dim);
#pragma unroll
  for (int n = 0; n < parts; ++n) {
    int d = lane + 32 * n;
    if (d < dim) o_ih[d] = dkv::from_float<T>(sum[n] / l);
  }
  if (lane == 0) lse[(int64_t)h * shape.rows + i] = m + logf(l);
}

} // namespace

extern "C" dkv_status dkv_gpu_fwd_warp_workspace(const dkv_attention *p, size_t *bytes) {
  return dkv_gpu_workspace(bytes, p, 0, tiling);
}

extern "C" dkv_status dkv_gpu_fwd_warp_prepare(const dkv_attention *p) { return dkv_gpu_prepare(p, 0, tiling); }

extern "C" dkv_status dkv_gpu_fwd_warp_run(const dkv_attention *p) {
  DKV_TRY(dkv_gpu_check(p, DKV_FORWARD, 0, tiling));
  if (p->layout->rows == 0) return DKV_OK;
  dkv_gpu_shape shape = dkv_gpu_shape_of(p);
  dkv_gpu_plan plan = dkv_gpu_plan_of(p, 0, tiling);
  dim3 grid;
  DKV_TRY(dkv_gpu_grid(&grid, dkv_ceil_div(shape.rows, warps), shape.heads, 1));
  return dkv_gpu_by_dtype(p->dtype, [&](auto type) {
    return dkv_gpu_by_width(shape.dim, [&](auto width) {
      using T = decltype(type);
      fwd_warp<T, decltype(width)::value><<<grid, 32 * warps, 0, (cudaStream_t)p->stream>>>(
          (const T *)p->q, (const T *)p->k, (const T *)p->v, (T *)p->o, (float *)p->lse, shape, plan);
      return dkv_gpu_launched("fwd_warp");
    });
  });
}
