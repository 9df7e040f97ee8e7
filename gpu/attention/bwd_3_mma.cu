/**
 * @file bwd_3_mma.cu
 * @brief Backward rung 3: one kernel on tensor cores; dQ is added up in fp32 by atomics.
 *
 * Previous   bwd_2_shared.cu: two kernels on the fp32 units, seven products.
 * Idea       a tile of 128 keys stays in shared memory and walks over its queries, 64 rows at a time, for every query
 *            head of its key head: dK and dV stay in registers, so a shared prompt's gradient is summed in fp32 over
 *            the prompt, all responses and all heads, and rounded once.  A query row meets many key tiles, so its dQ is
 *            added in global memory.  The weights are computed once: five products.
 * Predict    260 to 310 TFLOP/s, what the best kernels of this instruction class reach.
 * Measured   325 TFLOP/s at N = 28, P = 16384, R = 2048, H = 32/8, D = 128, bf16 (H200, 2026-11-30)
 * Remains    the order of the additions to dQ is not fixed (DKV_NEVER); P, dS and all operands pass through shared
 *            memory.
 *
 *     p = exp2(c s - lse2)    ds = p (dp - delta)    dv += p^T do    dk += ds^T q    dq += ds k    (scaled at the end)
 *
 * dQ is kept as the warps hold it (bwd_3_tile.cuh), four floats a lane side by side, so that an addition is one 16-byte
 * instruction and a warp's is 512 bytes in a row; a last kernel puts it into rows and rounds.
 *
 * Roles: block = 8 warps, one key tile of one key head; 1 block a multiprocessor.  Longest tiles first: prompt tiles of
 *   one key head run side by side over the same queries, which they find in L2.
 * Shared memory: k, v [128][D] | q, do [2][64][D] | p, ds [64][128], 16-bit | lse2, delta [2][64], float
 *   D = 128: 161 KiB
 * Barriers: 2 a step: queries there, and the old p, ds, queries read; p and ds there.
 * Workspace: lse2, delta [H][T'] | dq [H][T'/64][64 D] floats, T' = T rounded up to 64 | plan.
 *
 * Read before: bwd_2_shared.cu, bwd_3_tile.cuh, async.cuh.  Read next: bwd_4_hopper_plain.cu.
 */
#include "gpu/attention/bwd_3_tile.cuh"
#include "gpu/attention/delta.h"
#include "gpu/attention/shape.h"
#include "gpu/runtime/async.cuh"
#include "gpu/runtime/launch.h"

namespace {

using namespace dkv;

constexpr dkv_gpu_tiling tiling = {0, 0, bwd_keys, bwd_rows};

/** Operands and workspace. */
template <class T> struct tensors {
  const T *q, *k, *v, *dout;
  const float *lse_log2, *delta; /* [H][padded] */
  float *dq_sums;                /* [H][padded / 64][64 D] */
  T *dq, *dk, *dv;
  int32_t padded; /* T rounded up to 64 */
};

/** Byte offsets of the shared-memory map. */
template <int D> struct map {
  static constexpr int kv = bwd_keys * D * 2, queries = bwd_rows * D * 2, weights = bwd_rows * bwd_keys * 2;
  static constexpr int k = 0, v = kv, q = 2 * kv, dout = q + 2 * queries, p = dout + 2 * queries, ds = p + weights;
  static constexpr int lse = ds + weights, delta = lse + 2 * bwd_rows * 4, bytes = delta + 2 * bwd_rows * 4;
};

/** Where a block stands: query head, first row of the step. */
struct walk {
  int h, i0;
  __device__ __forceinline__ void next(const dkv_gpu_queries &range) {
    i0 += bwd_rows;
    if (i0 < range.query_end) return;
    i0 = range.query_begin;
    ++h;
  }
};

/** Starts the copies of a step's queries, do, lse and delta into buffer `side`. */
template <class T, int D>
__device__ __forceinline__ void load_queries(uint32_t shared, int side, const tensors<T> &x, const dkv_gpu_shape &shape,
                                             walk at) {
  tile_copy<bwd_rows, D, bwd_threads> copy(shared, at.h * D, shape.q_stride);
  copy.start(map<D>::q + side * map<D>::queries, x.q, shape.q_stride, at.i0, shape.rows);
  copy.start(map<D>::dout + side * map<D>::queries, x.dout, shape.q_stride, at.i0, shape.rows);
  int row = (int)threadIdx.x % bwd_rows;
  int64_t from = (int64_t)at.h * x.padded + at.i0 + row;
  uint32_t to = shared + (side * bwd_rows + row) * 4;
  if (threadIdx.x < bwd_rows) copy4_start(to + map<D>::lse, x.lse_log2 + from);
  else if (threadIdx.x < 2 * bwd_rows) copy4_start(to + map<D>::delta, x.delta + from);
  copy_commit();
}

/** Rounds this warp's share of dK or dV into its rows. */
template <class T, int D>
__device__ __forceinline__ void store_keys(T *to, const float (&acc)[2][D / 16][4], float factor,
                                           const dkv_gpu_shape &shape, int j0, int head) {
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int j = j0 + warp_index() / 2 * 32 + 16 * r + 8 * half + lane_index() / 4;
      if (j >= shape.rows) continue;
#pragma unroll
      for (int n = 0; n < D / 16; ++n) {
        int d = n / 2 * 32 + warp_index() % 2 * 16 + n % 2 * 8 + 2 * (lane_index() % 4);
        *reinterpret_cast<uint32_t *>(to + dkv_offset(j, head, shape.kv_heads, D) + d) =
            pack<T>(acc[r][n][2 * half] * factor, acc[r][n][2 * half + 1] * factor);
      }
    }
}

template <class T, int D>
__global__ void __launch_bounds__(bwd_threads, 1) bwd_mma(tensors<T> x, dkv_gpu_shape shape, dkv_gpu_plan plan) {
  using m = map<D>;
  using share = bwd_dq_share<D>;
  extern __shared__ __align__(1024) unsigned char memory[];
  uint32_t shared = shared_address(memory);
  int tile = plan.key_order[blockIdx.x], j0 = tile * bwd_keys, head = (int)blockIdx.y, warp = warp_index();
  dkv_gpu_queries range = plan.queries[tile];
  walk now = {head * shape.group, range.query_begin};
  tile_copy<bwd_keys, D, bwd_threads> copy(shared, head * D, shape.kv_stride);
  copy.start(m::k, x.k, shape.kv_stride, j0, shape.rows);
  copy.start(m::v, x.v, shape.kv_stride, j0, shape.rows);
  load_queries<T, D>(shared, 0, x, shape, now);

  float dk[2][D / 16][4] = {}, dv[2][D / 16][4] = {};
  uint32_t k_high = lane_high<D>(shared + m::k, warp % 4 * 32), q_low = lane_low<D>(shared + m::q, warp / 4 * 32);
  uint32_t p_high = lane_high<bwd_keys>(shared + m::p, 0, warp / 2 * 32);
  uint32_t q_turned = lane_low<D>(shared + m::q, 0, warp % 2 * 16);
  uint32_t ds_low = lane_low<bwd_keys>(shared + m::ds, share::row()),
           k_low = lane_low<D>(shared + m::k, 0, share::column());
  for (int side = 0; now.h < (head + 1) * shape.group; side ^= 1) {
    walk next = now;
    next.next(range);
    copy_wait<0>();
    __syncthreads(); /* queries are there; p, ds and the other queries of the previous step were read */
    if (next.h < (head + 1) * shape.group) load_queries<T, D>(shared, side ^ 1, x, shape, next);
    uint32_t bits = 0xffffffffu;
    if (now.i0 < range.full_begin || now.i0 >= range.full_end) bits = bwd_sees(plan.end, shape.rows, now.i0, j0);

    bwd_scores_tile p, ds;
    const float *lse =
        reinterpret_cast<const float *>(memory + m::lse) + side * bwd_rows + warp / 4 * 32 + lane_index() / 4;
    const float *delta = lse + 2 * bwd_rows;
    bwd_scores<T, D>(p, q_low + side * m::queries, k_high);
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) p[r][n][e] = exp2_fast(p[r][n][e] * shape.scale_log2 - lse[16 * r + e / 2 * 8]);
    bwd_mask(p, bits);
    bwd_store<T>(memory + m::p, p);
    bwd_scores<T, D>(ds, q_low + m::dout - m::q + side * m::queries, k_high + m::v - m::k);
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) ds[r][n][e] = p[r][n][e] * (ds[r][n][e] - delta[16 * r + e / 2 * 8]);
    bwd_mask(ds, bits); /* 0 times an infinite dp would not be 0 */
    bwd_store<T>(memory + m::ds, ds);
    __syncthreads(); /* p and ds are there */

    float dq[share::fragments][4];
    bwd_add_keys<T, D>(dv, p_high, q_turned + m::dout - m::q + side * m::queries);
    bwd_dq<T, D>(dq, ds_low, k_low);
    int64_t dq_tile = ((int64_t)now.h * (x.padded / bwd_rows) + now.i0 / bwd_rows) * (bwd_rows * D);
    float *dq_sums = x.dq_sums + dq_tile + (warp * share::fragments * 32 + lane_index()) * 4;
#pragma unroll
    for (int f = 0; f < share::fragments; ++f) add4(dq_sums + f * 128, dq[f]);
    bwd_add_keys<T, D>(dk, p_high + m::ds - m::p, q_turned + side * m::queries);
    now = next;
  }
  store_keys<T, D>(x.dk, dk, shape.scale, shape, j0, head);
  store_keys<T, D>(x.dv, dv, 1.0f, shape, j0, head);
}

/** Puts the sums of one 64-row tile of one head into rows: the inverse of the warps' order in bwd_mma. */
template <class T, int D> __global__ void __launch_bounds__(bwd_threads) bwd_mma_dq(tensors<T> x, dkv_gpu_shape shape) {
  using share = bwd_dq_share<D>;
  int h = (int)blockIdx.y, i0 = (int)blockIdx.x * bwd_rows;
  const float *sums = x.dq_sums + ((int64_t)h * (x.padded / bwd_rows) + blockIdx.x) * (bwd_rows * D);
#pragma unroll
  for (int f = 0; f < share::fragments; ++f) {
    float4 c =
        *reinterpret_cast<const float4 *>(sums + ((warp_index() * share::fragments + f) * 32 + lane_index()) * 4);
    int piece = f / (2 * share::blocks), block = f / 2 % share::blocks;
    int row = i0 + share::row() + 16 * piece + lane_index() / 4;
    int d = share::column() + 16 * share::across * block + f % 2 * 8 + 2 * (lane_index() % 4);
    uint32_t *to = reinterpret_cast<uint32_t *>(x.dq + dkv_offset(row, h, shape.heads, D) + d);
    if (row < shape.rows) *to = pack<T>(c.x * shape.scale, c.y * shape.scale);
    if (row + 8 < shape.rows) to[4 * shape.q_stride] = pack<T>(c.z * shape.scale, c.w * shape.scale);
  }
}

/** T rounded up to whole steps. */
int64_t padded_rows(const dkv_attention *p) { return dkv_ceil_div(p->layout->rows, bwd_rows) * bwd_rows; }

/** Bytes of lse2, delta and dq; each array is a whole number of 256 bytes. */
size_t own_bytes(const dkv_attention *p) {
  return p && p->layout && p->heads > 0
             ? sizeof(float) * (size_t)p->heads * (size_t)padded_rows(p) * (size_t)(2 + p->head_dim)
             : 0;
}

template <class T, int D> dkv_status launch(const dkv_attention *p, dkv_gpu_shape shape, dkv_gpu_plan plan) {
  int64_t row_count = shape.heads * padded_rows(p);
  float *lse_log2 = (float *)p->workspace, *delta = lse_log2 + row_count, *dq_sums = delta + row_count;
  tensors<T> x = {(const T *)p->q, (const T *)p->k, (const T *)p->v, (const T *)p->dout,     lse_log2, delta, dq_sums,
                  (T *)p->dq,      (T *)p->dk,      (T *)p->dv,      (int32_t)padded_rows(p)};
  cudaStream_t stream = (cudaStream_t)p->stream;
  dim3 by_keys, by_rows;
  DKV_TRY(dkv_gpu_grid(&by_keys, plan.key_tiles, shape.kv_heads, 1));
  DKV_TRY(dkv_gpu_grid(&by_rows, x.padded / bwd_rows, shape.heads, 1));
  DKV_TRY(dkv_gpu_shared(bwd_mma<T, D>, map<D>::bytes));
  DKV_TRY(dkv_gpu_delta(delta, lse_log2, x.padded, p));
  DKV_CUDA(cudaMemsetAsync(dq_sums, 0, sizeof(float) * (size_t)row_count * D, stream));
  bwd_mma<T, D><<<by_keys, bwd_threads, map<D>::bytes, stream>>>(x, shape, plan);
  DKV_TRY(dkv_gpu_launched("bwd_mma"));
  bwd_mma_dq<T, D><<<by_rows, bwd_threads, 0, stream>>>(x, shape);
  return dkv_gpu_launched("bwd_mma_dq");
}

} // namespace

extern "C" dkv_status dkv_gpu_bwd_mma_workspace(const dkv_attention *p, size_t *bytes) {
  return dkv_gpu_workspace(bytes, p, own_bytes(p), tiling);
}

extern "C" dkv_status dkv_gpu_bwd_mma_prepare(const dkv_attention *p) {
  return dkv_gpu_prepare(p, own_bytes(p), tiling);
}

extern "C" dkv_status dkv_gpu_bwd_mma_run(const dkv_attention *p) {
  DKV_TRY(dkv_gpu_check(p, DKV_BACKWARD, own_bytes(p), tiling));
  if (p->layout->rows == 0) return DKV_OK;
  dkv_gpu_shape shape = dkv_gpu_shape_of(p);
  dkv_gpu_plan plan = dkv_gpu_plan_of(p, own_bytes(p), tiling);
  return dkv_gpu_by_half(p->dtype, [&](auto type) {
    return dkv_gpu_by_dim(shape.dim,
                          [&](auto dim) { return launch<decltype(type), decltype(dim)::value>(p, shape, plan); });
  });
}
