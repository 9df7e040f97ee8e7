/**
 * @file bwd_5_passes.cuh
 * @brief The light kernels around the Hopper backward: delta and zeroes before, rounding of the fp32 sums after.
 *
 * All are limited by memory: delta reads o and dout once; rounding reads 4 and writes 2 bytes an element.
 *
 * Read before: bwd_5_config.cuh.  Read next: bwd_5_hopper.cu.
 */
#ifndef DKV_BWD_5_PASSES_CUH
#define DKV_BWD_5_PASSES_CUH

#include "gpu/attention/bwd_5_config.cuh"

/** <a, b> of eight 16-bit elements each, in fp32. */
template <typename T> __device__ __forceinline__ float dkv_dot8(uint4 a, uint4 b) {
  const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float2 u, v;
    if constexpr (dkv_is_bf16<T>::value) {
      u = make_float2(__uint_as_float(x[i] << 16), __uint_as_float(x[i] & 0xffff0000u));
      v = make_float2(__uint_as_float(y[i] << 16), __uint_as_float(y[i] & 0xffff0000u));
    } else {
      u = __half22float2(*reinterpret_cast<const __half2 *>(&x[i]));
      v = __half22float2(*reinterpret_cast<const __half2 *>(&y[i]));
    }
    sum = fmaf(u.x, v.x, fmaf(u.y, v.y, sum));
  }
  return sum;
}

/** Zeroes this block's even share, one stretch, of `count` elements. */
template <typename V>
__device__ __forceinline__ void dkv_bwd5_clear(V *out, int64_t block, int64_t blocks, int64_t count) {
  const int64_t share = (count + blocks - 1) / blocks, end = dkv_min(count, (block + 1) * share);
  for (int64_t i = block * share + threadIdx.x; i < end; i += blockDim.x) out[i] = V();
}

/** delta = <dout, o> and -lse log2(e) of 64 rows of one head, zeros past row T. D/8 lanes share a row, 16 bytes each.
 */
template <typename T, int D>
__device__ __forceinline__ void dkv_bwd5_delta(const T *o, const T *dout, const float *lse, int32_t padded,
                                               const dkv_bwd5_parameters &p) {
  constexpr int lanes = D / 8, at_once = 256 / lanes;
  const int32_t head = blockIdx.y, lane = threadIdx.x % lanes;
#pragma unroll
  for (int pass = 0; pass < 64 / at_once; pass++) {
    const int32_t row = blockIdx.x * 64 + pass * at_once + threadIdx.x / lanes;
    float sum = 0.0f;
    if (row < p.rows) {
      const int64_t at = dkv_offset(row, head, p.heads, D) + lane * 8;
      sum = dkv_dot8<T>(*reinterpret_cast<const uint4 *>(o + at), *reinterpret_cast<const uint4 *>(dout + at));
    }
#pragma unroll
    for (int step = lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0 && row < padded) {
      p.delta[(int64_t)head * padded + row] = sum;
      p.minus_lse[(int64_t)head * padded + row] =
          row < p.rows ? -1.44269504f * lse[(int64_t)head * p.rows + row] : 0.0f;
    }
  }
}

/** All that the main kernel finds: sums, slots, turns and the ticket at zero, delta and -lse log2(e). Grid (padded
 * rows / 64, H), 256 threads. */
template <class C>
__global__ void __launch_bounds__(256)
    dkv_bwd5_begin(const typename C::T *o, const typename C::T *dout, const float *lse, dkv_bwd5_parameters p) {
  const int32_t padded = p.blocks * C::queries;
  const int64_t block = (int64_t)blockIdx.y * gridDim.x + blockIdx.x, blocks = (int64_t)gridDim.y * gridDim.x;
  if (block == 0 && threadIdx.x == 0) *p.ticket = 0;
  dkv_bwd5_clear(reinterpret_cast<float4 *>(p.sum), block, blocks, (int64_t)padded * p.heads * (C::D / 4));
  dkv_bwd5_clear(reinterpret_cast<float4 *>(p.slots), block, blocks,
                 p.header->slots * dkv_bwd5_slot_size<C> / 4 * p.kv_heads);
  if constexpr (C::ordered) dkv_bwd5_clear(p.turns, block, blocks, p.turn_count);
  dkv_bwd5_delta<typename C::T, C::D>(o, dout, lse, padded, p);
}

/** 64-row panels of shared memory, un-swizzled, to rows [row0, row0 + count) of a [T][heads][D] tensor at `out`. */
template <typename T, int D>
__device__ __forceinline__ void dkv_bwd5_write_rows(T *out, const char *panels, uint32_t panel_bytes, int64_t row0,
                                                    int count, int64_t heads, int64_t head) {
  for (int i = threadIdx.x; i < count * (D / 8); i += blockDim.x) {
    const int row = i / (D / 8), column = i % (D / 8) * 8;
    const char *from = panels + column / 64 * panel_bytes + dkv_panel_offset(row, column % 64);
    *reinterpret_cast<uint4 *>(out + dkv_offset(row0 + row, head, heads, D) + column) =
        *reinterpret_cast<const uint4 *>(from);
  }
}

/** Four packed pairs, the fragment of 16 columns, from two float4 of a fragment-ordered block. */
template <typename T> __device__ __forceinline__ void dkv_bwd5_pack(uint32_t (&r)[4], float4 a, float4 b, float scale) {
  r[0] = dkv_pack<T>(a.x * scale, a.y * scale);
  r[1] = dkv_pack<T>(a.z * scale, a.w * scale);
  r[2] = dkv_pack<T>(b.x * scale, b.y * scale);
  r[3] = dkv_pack<T>(b.z * scale, b.w * scale);
}

/** dq = scale times the fp32 sums. Grid (blocks, H), 256 threads: a block of `queries` rows of one head. */
template <class C> __global__ void __launch_bounds__(256) dkv_bwd5_round_dq(typename C::T *dq, dkv_bwd5_parameters p) {
  __shared__ __align__(1024) char panels[C::query_tile];
  const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
  const int64_t block = blockIdx.x;
  const float *share = p.sum + (block * p.heads + blockIdx.y) * (C::queries * C::D) + group * (C::dq_share / 4);
  const float4 *from = reinterpret_cast<const float4 *>(share) + thread;
  const uint32_t own = group * (C::D == 128 ? C::query_panel : C::dq_columns * DKV_PANEL_ROW_BYTES);
#pragma unroll
  for (int k = 0; k < C::dq_columns / 16; k++) {
    uint32_t r[4];
    dkv_bwd5_pack<typename C::T>(r, from[2 * k * 128], from[(2 * k + 1) * 128], p.scale);
    dkv_stmatrix_transposed(dkv_stmatrix_transposed_address(dkv_shared_address(panels) + own, thread, k), r);
  }
  __syncthreads();
  const int64_t row0 = block * C::queries;
  dkv_bwd5_write_rows<typename C::T, C::D>(dq, panels, C::query_panel, row0, (int)dkv_min(C::queries, p.rows - row0),
                                           p.heads, blockIdx.y);
}

/** dK and dV of the cut tiles from their slots. Any grid, 256 threads. */
template <class C>
__global__ void __launch_bounds__(256)
    dkv_bwd5_round_slots(typename C::T *dk, typename C::T *dv, dkv_bwd5_parameters p) {
  __shared__ __align__(1024) char panels[C::key_tile];
  const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
  const int64_t count = 2 * (int64_t)p.header->slots * p.kv_heads;
  for (int64_t job = blockIdx.x; job < count; job += gridDim.x) {
    const int64_t index = job / 2;
    const float *slot = p.slots + index * dkv_bwd5_slot_size<C> + job % 2 * (C::keys * C::D);
    const float4 *from = reinterpret_cast<const float4 *>(slot + group * 64 * C::D) + thread;
#pragma unroll
    for (int k = 0; k < C::D / 16; k++) {
      const uint32_t panel = dkv_shared_address(panels) + k / 4 * C::key_panel;
      uint32_t r[4];
      dkv_bwd5_pack<typename C::T>(r, from[2 * k * 128], from[(2 * k + 1) * 128], 1.0f);
      dkv_stmatrix(dkv_stmatrix_address(panel, group * 64, thread, k % 4), r);
    }
    __syncthreads();
    const int64_t row0 = (int64_t)p.tiles[index / p.kv_heads] * C::keys;
    dkv_bwd5_write_rows<typename C::T, C::D>(job % 2 ? dv : dk, panels, C::key_panel, row0,
                                             (int)dkv_min(C::keys, p.rows - row0), p.kv_heads, index % p.kv_heads);
    __syncthreads();
  }
}

#endif
