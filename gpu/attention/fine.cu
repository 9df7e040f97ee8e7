/**
 * @file fine.cu
 * @brief The row sums of the backward: delta of all rows, and of rows with large scores lse and delta again, in double.
 *
 * Roles: a warp a row, as in delta.cu; a row that is not fine has nothing to do.  Of a fine row's keys every lane takes
 *   one in 32, and the two sums of the lanes are added in a fixed order.
 *
 * Read before: fine.cuh, delta.cu.
 */
#include "gpu/attention/fine.cuh"

#include "common/mask.h"
#include "gpu/attention/delta.h"
#include "gpu/runtime/launch.h"
#include "gpu/runtime/warp.cuh"

namespace {

constexpr int warps = 8;

/** The inputs of a backward problem in f32. */
struct tensors {
  const float *q, *k, *v, *dout, *lse;
};

__global__ void __launch_bounds__(32 * warps)
    row_fine(dkv_gpu_fine_row *fine, tensors x, const int32_t *end, dkv_gpu_shape shape) {
  int lane = (int)(threadIdx.x % 32), i = (int)blockIdx.x * warps + (int)(threadIdx.x / 32), h = (int)blockIdx.y;
  if (i >= shape.rows) return;
  int64_t at_row = (int64_t)h * shape.rows + i, at_i = dkv_offset(i, h, shape.heads, shape.dim);
  float lse = x.lse[at_row];
  if (!dkv::is_fine<float>(lse)) return;
  double sum = 0, sum_dp = 0;
  for (int j = lane; j <= i; j += 32) {
    if (!dkv_sees(i, j, end[j])) continue;
    int64_t at_j = dkv_offset(j, h / shape.group, shape.kv_heads, shape.dim);
    double s = (double)shape.scale * dkv::fine_product(x.q + at_i, x.k + at_j, shape.dim);
    double w = exp(s - (double)lse);
    sum += w;
    sum_dp += w * dkv::fine_product(x.dout + at_i, x.v + at_j, shape.dim);
  }
  sum = dkv::warp_sum<32>(sum);
  sum_dp = dkv::warp_sum<32>(sum_dp);
  if (lane == 0) fine[at_row] = dkv_gpu_fine_row{(double)lse + log(sum), sum_dp / sum};
}

} // namespace

dkv_status dkv_gpu_row_sums_fill(dkv_gpu_row_sums sums, const int32_t *end, const dkv_attention *p) {
  dkv_gpu_shape shape = dkv_gpu_shape_of(p);
  DKV_TRY(dkv_gpu_delta(sums.delta, nullptr, shape.rows, p));
  if (!sums.fine) return DKV_OK;
  dim3 grid;
  DKV_TRY(dkv_gpu_grid(&grid, dkv_ceil_div(shape.rows, warps), shape.heads, 1));
  tensors x = {(const float *)p->q, (const float *)p->k, (const float *)p->v, (const float *)p->dout,
               (const float *)p->lse};
  row_fine<<<grid, 32 * warps, 0, (cudaStream_t)p->stream>>>(sums.fine, x, end, shape);
  return dkv_gpu_launched("row_fine");
}
