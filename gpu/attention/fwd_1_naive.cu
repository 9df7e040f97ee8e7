/**
 * @file fwd_1_naive.cu
 * @brief Forward rung 1: the definition in parallel.
 *
 * Previous   cpu/attention/ref_fwd.c: one loop nest in double.
 * Idea       rows do not depend on each other: one thread for each (query row, query head), and the loop nest inside it
 *            is the definition, word for word: three passes over the keys, for the maximum, the sum and the output.
 * Predict    about 1 TFLOP/s: each product fetches its two operands from the L1 cache, and every score is computed
 *            three times.
 * Measured   0.228 TFLOP/s at N = 8, P = 2048, R = 512, H = 8/2, D = 128, bf16 (H200, 2026-11-30)
 *            A quarter of the prediction: o is read and written in local memory for every key.
 * Remains    the three passes; neighbouring threads read neighbouring rows, far apart in memory; o lives in local
 *            memory.
 *
 *     m = max_j s_ij      l = sum_j exp(s_ij - m)      o_i = sum_j exp(s_ij - m) / l v_j      lse_i = m + ln l
 *
 * Roles: block = 128 consecutive rows of one head, no shared memory, no barrier.
 *
 * Read before: shape.h, common/mask.h.  Read next: fwd_2_warp.cu.
 */
#include "common/mask.h"
#include "gpu/attention/shape.h"
#include "gpu/runtime/launch.h"
#include "gpu/runtime/tile.cuh"

namespace {

constexpr int block_rows = 128;
constexpr dkv_gpu_tiling tiling = {0, 0, 0, 0}; /* of the plan only end[] is used */

/** s = c <q, k>, rounded: were the product fused with the subtraction of m, the largest weight would not be exp(0). */
template <class T> __device__ float score(const T *q, const T *k, dkv_gpu_shape shape) {
  float sum = 0;
  for (int d = 0; d < shape.dim; ++d) sum += dkv::to_float(q[d]) * dkv::to_float(k[d]);
  return __fmul_rn(shape.scale, sum);
}

template <class T>
__global__ void fwd_naive(const T *q, const T *k, const T *v, T *o, float *lse, dkv_gpu_shape shape,
                          dkv_gpu_plan plan) {
  int i = (int)(blockIdx.x * block_rows + threadIdx.x), h = (int)blockIdx.y, dim = shape.dim;
  if (i >= shape.rows) return;
  const T *q_ih = q + dkv_offset(i, h, shape.heads, dim);
  auto key = [&](const T *tensor, int j) { return tensor + dkv_offset(j, h / shape.group, shape.kv_heads, dim); };

  float m = -INFINITY, l = 0;
  for (int j = 0; j <= i; ++j)
    if (dkv_sees(i, j, plan.end[j])) m = fmaxf(m, score(q_ih, key(k, j), shape));
  for (int j = 0; j <= i; ++j)
    if (dkv_sees(i, j, plan.end[j])) l += expf(score(q_ih, key(k, j), shape) - m);

  float sum[DKV_MAX_HEAD_DIM];
  for (int d = 0; d < dim; ++d) sum[d] = 0;
  for (int j = 0; j <= i; ++j) {
    if (!dkv_sees(i, j, plan.end[j])) continue;
    float p = expf(score(q_ih, key(k, j), shape) - m) / l;
    for (int d = 0; d < dim; ++d) sum[d] += p * dkv::to_float(key(v, j)[d]);
  }
  for (int d = 0; d < dim; ++d) o[dkv_offset(i, h, shape.heads, dim) + d] = dkv::from_float<T>(sum[d]);
  lse[(int64_t)h * shape.rows + i] = m + logf(l);
}

} // namespace

extern "C" dkv_status dkv_gpu_fwd_naive_workspace(const dkv_attention *p, size_t *bytes) {
  return dkv_gpu_workspace(bytes, p, 0, tiling);
}

extern "C" dkv_status dkv_gpu_fwd_naive_prepare(const dkv_attention *p) { return dkv_gpu_prepare(p, 0, tiling); }

extern "C" dkv_status dkv_gpu_fwd_naive_run(const dkv_attention *p) {
  DKV_TRY(dkv_gpu_check(p, DKV_FORWARD, 0, tiling));
  if (p->layout->rows == 0) return DKV_OK;
  dkv_gpu_shape shape = dkv_gpu_shape_of(p);
  dkv_gpu_plan plan = dkv_gpu_plan_of(p, 0, tiling);
  dim3 grid;
  DKV_TRY(dkv_gpu_grid(&grid, dkv_ceil_div(shape.rows, block_rows), shape.heads, 1));
  return dkv_gpu_by_dtype(p->dtype, [&](auto type) {
    using T = decltype(type);
    fwd_naive<T><<<grid, block_rows, 0, (cudaStream_t)p->stream>>>((const T *)p->q, (const T *)p->k, (const T *)p->v,
                                                                   (T *)p->o, (float *)p->lse, shape, plan);
    return dkv_gpu_launched("fwd_naive");
  });
}
