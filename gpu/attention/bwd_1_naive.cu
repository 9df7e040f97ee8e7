/**
 * @file bwd_1_naive.cu
 * @brief Backward rung 1: recompute each weight; dQ by rows, dK and dV by columns.
 *
 * Previous   cpu/attention/ref_bwd.c: one loop nest in double.
 * Idea       p_ij = exp(s_ij - lse_i) can be had again from q, k and the stored lse, so no T x T matrix is kept.  dq_i
 *            is a sum over the keys of row i: one thread a row.  dk_j and dv_j are sums over the queries of column j:
 *            one thread a column.  No two threads add to the same number, so there are no atomics and the bits repeat.
 * Predict    about 1 TFLOP/s, as fwd_1: the weights are computed twice, once by rows and once by columns.
 * Measured   0.0719 TFLOP/s at N = 8, P = 2048, R = 512, H = 8/2, D = 128, bf16 (H200, 2026-11-30)
 *            The longest column decides, and three arrays live in local memory.
 * Remains    scattered reads, gradients in local memory; a prompt column's thread walks over all rows of its group
 *            alone.
 *
 * Mask: a column j is seen by the rows j .. end[j] - 1, all of them: the shared prompt's gradient is a plain sum over
 *   one range (the prompt, then all responses) and over the query heads of its key head.
 *
 * Roles: row sums (fine.cu), then dq: block = 128 rows of a head, then dk, dv: block = 128 keys of a key head.
 * Workspace: delta [H][T] | in f32 fine rows [H][T] | plan.
 *
 * Read before: fwd_1_naive.cu, delta.h, fine.cuh.  Read next: bwd_2_shared.cu.
 */
#include "common/mask.h"
#include "gpu/attention/fine.cuh"
#include "gpu/runtime/launch.h"
#include "gpu/runtime/tile.cuh"

namespace {

constexpr int block_rows = 128;
constexpr dkv_gpu_tiling tiling = {0, 0, 0, 0};

/** The tensors of a backward problem. */
template <class T> struct tensors {
  const T *q, *k, *v, *dout;
  const float *lse;
  dkv_gpu_row_sums sums;
  T *dq, *dk, *dv;
};

/**
 * p_ij = exp(s_ij - lse_i) and ds_ij = p_ij (<do_i, v_j> - delta_i); rows with scores of hundreds as fine.cuh says.
 * @param[in] at_i, at_j first element of the query's and of the key's vectors
 * @param[in] at_row     the row in [H][T] arrays
 */
template <class T>
__device__ dkv::weight recompute(const tensors<T> &x, int64_t at_i, int64_t at_j, int64_t at_row,
                                 const dkv_gpu_shape &shape) {
  const T *q = x.q + at_i, *k = x.k + at_j, *v = x.v + at_j, *dout = x.dout + at_i;
  float lse = x.lse[at_row], s = 0, dp = 0;
  if constexpr (sizeof(T) == sizeof(float)) {
    if (dkv::is_fine<T>(lse)) return dkv::fine_weight(q, k, dout, v, shape.dim, shape.scale, x.sums.fine[at_row]);
  }
  for (int d = 0; d < shape.dim; ++d) {
    s += dkv::to_float(q[d]) * dkv::to_float(k[d]);
    dp += dkv::to_float(dout[d]) * dkv::to_float(v[d]);
  }
  float p = expf(shape.scale * s - lse);
  return dkv::weight{p, p * (dp - x.sums.delta[at_row])};
}

/** dq_i = c sum_j ds_ij k_j */
template <class T> __global__ void bwd_naive_rows(tensors<T> x, dkv_gpu_shape shape, dkv_gpu_plan plan) {
  int i = (int)(blockIdx.x * block_rows + threadIdx.x), h = (int)blockIdx.y, dim = shape.dim;
  if (i >= shape.rows) return;
  int64_t at_i = dkv_offset(i, h, shape.heads, dim), at_row = (int64_t)h * shape.rows + i;
  float sum[DKV_MAX_HEAD_DIM];
  for (int d = 0; d < dim; ++d) sum[d] = 0;
  for (int j = 0; j <= i; ++j) {
    if (!dkv_sees(i, j, plan.end[j])) continue;
    int64_t at_j = dkv_offset(j, h / shape.group, shape.kv_heads, dim);
    dkv::weight w = recompute(x, at_i, at_j, at_row, shape);
    for (int d = 0; d < dim; ++d) sum[d] += w.ds * dkv::to_float(x.k[at_j + d]);
  }
  for (int d = 0; d < dim; ++d) x.dq[at_i + d] = dkv::from_float<T>(shape.scale * sum[d]);
}

/** dk_j = c sum_h sum_i ds_ij q_i        dv_j = sum_h sum_i p_ij do_i */
template <class T> __global__ void bwd_naive_columns(tensors<T> x, dkv_gpu_shape shape, dkv_gpu_plan plan) {
  int j = (int)(blockIdx.x * block_rows + threadIdx.x), head = (int)blockIdx.y, dim = shape.dim;
  if (j >= shape.rows) return;
  int64_t at_j = dkv_offset(j, head, shape.kv_heads, dim);
  float dk_sum[DKV_MAX_HEAD_DIM], dv_sum[DKV_MAX_HEAD_DIM];
  for (int d = 0; d < dim; ++d) dk_sum[d] = dv_sum[d] = 0;
  for (int h = head * shape.group; h < (head + 1) * shape.group; ++h) {
    for (int i = j; i < plan.end[j]; ++i) {
      int64_t at_i = dkv_offset(i, h, shape.heads, dim), at_row = (int64_t)h * shape.rows + i;
      dkv::weight w = recompute(x, at_i, at_j, at_row, shape);
      for (int d = 0; d < dim; ++d) {
        dk_sum[d] += w.ds * dkv::to_float(x.q[at_i + d]);
        dv_sum[d] += w.p * dkv::to_float(x.dout[at_i + d]);
      }
    }
  }
  for (int d = 0; d < dim; ++d) {
    x.dk[at_j + d] = dkv::from_float<T>(shape.scale * dk_sum[d]);
    x.dv[at_j + d] = dkv::from_float<T>(dv_sum[d]);
  }
}

} // namespace

extern "C" dkv_status dkv_gpu_bwd_naive_workspace(const dkv_attention *p, size_t *bytes) {
  return dkv_gpu_workspace(bytes, p, dkv_gpu_row_sums_bytes(p), tiling);
}

extern "C" dkv_status dkv_gpu_bwd_naive_prepare(const dkv_attention *p) {
  return dkv_gpu_prepare(p, dkv_gpu_row_sums_bytes(p), tiling);
}

extern "C" dkv_status dkv_gpu_bwd_naive_run(const dkv_attention *p) {
  DKV_TRY(dkv_gpu_check(p, DKV_BACKWARD, dkv_gpu_row_sums_bytes(p), tiling));
  if (p->layout->rows == 0) return DKV_OK;
  dkv_gpu_shape shape = dkv_gpu_shape_of(p);
  dkv_gpu_plan plan = dkv_gpu_plan_of(p, dkv_gpu_row_sums_bytes(p), tiling);
  dkv_gpu_row_sums sums = dkv_gpu_row_sums_of(p);
  dim3 by_rows, by_columns;
  DKV_TRY(dkv_gpu_grid(&by_rows, dkv_ceil_div(shape.rows, block_rows), shape.heads, 1));
  DKV_TRY(dkv_gpu_grid(&by_columns, dkv_ceil_div(shape.rows, block_rows), shape.kv_heads, 1));
  DKV_TRY(dkv_gpu_row_sums_fill(sums, plan.end, p));
  return dkv_gpu_by_dtype(p->dtype, [&](auto type) {
    using T = decltype(type);
    tensors<T> x = {(const T *)p->q, (const T *)p->k, (const T *)p->v, (const T *)p->dout, (const float *)p->lse, sums,
                    (T *)p->dq,      (T *)p->dk,      (T *)p->dv};
    cudaStream_t stream = (cudaStream_t)p->stream;
    bwd_naive_rows<T><<<by_rows, block_rows, 0, stream>>>(x, shape, plan);
    DKV_TRY(dkv_gpu_launched("bwd_naive_rows"));
    bwd_naive_columns<T><<<by_columns, block_rows, 0, stream>>>(x, shape, plan);
    return dkv_gpu_launched("bwd_naive_columns");
  });
}
