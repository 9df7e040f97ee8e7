/**
 * @file tile.cuh
 * @brief Tiles of a [rows][heads][dim] tensor in shared memory as floats, 16 bytes a load, zeros past the edges.
 *
 * Who loads what (Threads = 256, Width = 128: 16 pieces of 8 elements a row, so 16 rows at a time):
 *
 *     thread    0 .. 15   row 0, elements 0..7, 8..15, ..., 120..127
 *     thread   16 .. 31   row 1
 *     ...
 *     thread  240 .. 255  row 15, then all go on with rows 16 .. 31
 *
 * A row of the shared tile has Width + 4 floats: rows that a warp reads together then start 4 banks apart, so that
 * eight 16-byte reads cover all 32 banks.
 *
 * Read before: warp.cuh, launch.h.  Read next: product.cuh.
 */
#ifndef DKV_GPU_TILE_CUH
#define DKV_GPU_TILE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace dkv {

/** Any storage type to float. */
__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

/** float to a storage type, to nearest even. */
template <class T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ __half from_float<__half>(float x) { return __float2half_rn(x); }
template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

/** Eight consecutive elements, 16-byte aligned, as floats. */
template <class T> __device__ __forceinline__ void load8(float out[8], const T *from) {
  constexpr int vectors = sizeof(T) * 8 / 16;
  uint4 raw[vectors];
#pragma unroll
  for (int i = 0; i < vectors; ++i) raw[i] = reinterpret_cast<const uint4 *>(from)[i];
  const T *element = reinterpret_cast<const T *>(raw);
#pragma unroll
  for (int i = 0; i < 8; ++i) out[i] = to_float(element[i]);
}

/** Floats per row of a shared tile. */
template <int Width> constexpr int tile_pitch = Width + 4;

/**
 * Loads rows [row0, row0 + Rows) of one head; rows from `row_end` on, and elements from `dim` on, become 0.
 * @param[out] tile    [Rows][Width + 4] shared
 * @param[in]  tensor  element (0, head, 0) of a [T][heads][dim] tensor
 * @param[in]  stride  heads * dim
 */
template <int Rows, int Width, int Threads, class T>
__device__ __forceinline__ void load_tile(float *tile, const T *tensor, int64_t stride, int row0, int row_end,
                                          int dim) {
  constexpr int pieces = Width / 8;
  for (int piece = (int)threadIdx.x; piece < Rows * pieces; piece += Threads) {
    int row = piece / pieces, d = piece % pieces * 8;
    float value[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (row0 + row < row_end && d < dim) load8(value, tensor + (row0 + row) * stride + d);
    float4 *to = reinterpret_cast<float4 *>(tile + row * tile_pitch<Width> + d);
    to[0] = make_float4(value[0], value[1], value[2], value[3]);
    to[1] = make_float4(value[4], value[5], value[6], value[7]);
  }
}

} // namespace dkv

#endif
