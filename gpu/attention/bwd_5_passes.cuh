/**
 * @file bwd_5_passes.cuh
 * @brief The light kernels around the Hopper backward: delta before, rounding of the fp32 sums after.
 *
 * Both are limited by memory: delta reads o and dout once; rounding reads 4 and writes 2 bytes an element.
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

/**
 * delta = <dout, o> and -lse log2(e), both [H][padded] with zeros past row T. Grid (padded rows / 64, H), 256 threads.
 * D/8 lanes share a row, 16 bytes each.
 */
template <typename T, int D>
__global__ void __launch_bounds__(256) dkv_bwd5_delta(const T *o, const T *dout, const float *lse, float *delta,
                                                      float *minus_lse, int32_t rows, int32_t padded, int32_t heads) {
  constexpr int lanes = D / 8, at_once = 256 / lanes;
  const int32_t head = blockIdx.y, lane = threadIdx.x % lanes;
#pragma unroll
  for (int pass = 0; pass < 64 / at_once; pass++) {
    const int32_t row = blockIdx.x * 64 + pass * at_once + threadIdx.x / lanes;
    float sum = 0.0f;
    if (row < rows) {
      const int64_t at = dkv_offset(row, head, heads, D) + lane * 8;
      sum = dkv_dot8<T>(*reinterpret_cast<const uint4 *>(o + at), *reinterpret_cast<const uint4 *>(dout + at));
    }
#pragma unroll
    for (int step = lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0 && row < padded) {
      delta[(int64_t)head * padded + row] = sum;
      minus_lse[(int64_t)head * padded + row] = row < rows ? -1.44269504f * lse[(int64_t)head * rows + row] : 0.0f;
    }
  }
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

/** Zeroes the slots. Any grid. */
template <class C> __global__ void __launch_bounds__(256) dkv_bwd5_clear_slots(dkv_bwd5_parameters p) {
  const int64_t count = (int64_t)dkv_bwd5_head(p).slots * p.kv_heads;
  for (int64_t index = blockIdx.x; index < count; index += gridDim.x) {
    float4 *slot = reinterpret_cast<float4 *>(dkv_bwd5_slot<C>(p, index));
    for (int i = threadIdx.x; i < 2 * C::keys * C::D / 4; i += 256) slot[i] = make_float4(0, 0, 0, 0);
  }
}

/** dK and dV of the cut tiles from their slots. Any grid, 256 threads. */
template <class C>
__global__ void __launch_bounds__(256)
    dkv_bwd5_round_slots(typename C::T *dk, typename C::T *dv, dkv_bwd5_parameters p) {
  __shared__ __align__(1024) char panels[C::key_tile];
  const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
  const int32_t *tiles = reinterpret_cast<const int32_t *>(p.workspace + dkv_bwd5_head(p).tiles_at);
  const int64_t count = 2 * (int64_t)dkv_bwd5_head(p).slots * p.kv_heads;
  for (int64_t job = blockIdx.x; job < count; job += gridDim.x) {
    const int64_t index = job / 2;
    const float *slot = dkv_bwd5_slot<C>(p, index) + job % 2 * (C::keys * C::D);
    const float4 *from = reinterpret_cast<const float4 *>(slot + group * 64 * C::D) + thread;
#pragma unroll
    for (int k = 0; k < C::D / 16; k++) {
      const uint32_t panel = dkv_shared_address(panels) + k / 4 * C::key_panel;
      uint32_t r[4];
      dkv_bwd5_pack<typename C::T>(r, from[2 * k * 128], from[(2 * k + 1) * 128], 1.0f);
      dkv_stmatrix(dkv_stmatrix_address(panel, group * 64, thread, k % 4), r);
    }
    __syncthreads();
    const int64_t row0 = (int64_t)tiles[index / p.kv_heads] * C::keys;
    dkv_bwd5_write_rows<typename C::T, C::D>(job % 2 ? dv : dk, panels, C::key_panel, row0,
                                             (int)dkv_min(C::keys, p.rows - row0), p.kv_heads, index % p.kv_heads);
    __syncthreads();
  }
}

#endif
