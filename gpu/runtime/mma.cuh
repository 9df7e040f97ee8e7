/**
 * @file mma.cuh
 * @brief Tensor cores by mma.sync: which lane holds what, tiles in shared memory that ldmatrix reads without bank
 *   conflicts.
 *
 * One instruction multiplies a 16 x 16 by a 16 x 8 piece of 16-bit numbers into 16 x 8 floats, spread over a
 * warp.  With g = lane / 4 and t = lane % 4, each register pair holding two neighbouring elements:
 *
 *        A (16 x 16)                       B (16 x 8), by columns              C (16 x 8), floats
 *              k 2t,2t+1   k 8+2t..            n = g                                n 2t   2t+1
 *     row g      a[0]        a[2]        k 2t,2t+1   b[0]                  row g     c[0]  c[1]
 *     row g+8    a[1]        a[3]        k 8+2t..    b[1]                  row g+8   c[2]  c[3]
 *
 * C has A's shape: two C pieces side by side, rounded to 16 bits in pairs, are an A piece (a[0], a[1] from the left
 * one, a[2], a[3] from the right one).  So weights go from the first product to the second without leaving registers.
 *
 * Tiles.  A tile is [rows][D] of 16-bit numbers; a row is D / 8 chunks of 16 bytes.  ldmatrix reads 8 rows of one chunk
 *   at a time, and would find them all in the same banks; so chunk c of row r is kept at place c ^ key(r):
 *
 *     D = 64, 128   key = r % 8          8 rows, 8 different places: all 32 banks once
 *     D = 96        key = r / 2 % 4      a row is 192 bytes, so odd and even rows lie in different banks already
 *
 * Read before: async.cuh.  Read next: gpu/attention/fwd_mma.cuh.
 */
#ifndef DKV_GPU_MMA_CUH
#define DKV_GPU_MMA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace dkv {

/** c += a b on the tensor cores. */
template <class T> __device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
__device__ __forceinline__ void mma<__half>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void mma<__nv_bfloat16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/** Two floats rounded to 16 bits each, the first in the low half. */
template <class T> __device__ __forceinline__ uint32_t pack(float low, float high);

template <> __device__ __forceinline__ uint32_t pack<__half>(float low, float high) {
  __half2 both = __floats2half2_rn(low, high);
  return *reinterpret_cast<uint32_t *>(&both);
}

template <> __device__ __forceinline__ uint32_t pack<__nv_bfloat16>(float low, float high) {
  __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<uint32_t *>(&both);
}

/** Shared-memory address as the instructions below take it. */
__device__ __forceinline__ uint32_t shared_address(const void *pointer) {
  return (uint32_t)__cvta_generic_to_shared(pointer);
}

/** Byte offset of 16-byte chunk `chunk` of row `row` in a tile with rows of D 16-bit numbers. */
template <int D> __device__ __forceinline__ uint32_t chunk_offset(int row, int chunk) {
  static_assert(D % 32 == 0, "a row is a multiple of 64 bytes");
  int key = D % 64 == 0 ? row % 8 : row / 2 % 4;
  return (uint32_t)(row * (D * 2) + ((chunk ^ key) << 4));
}

/** Four 8 x 8 pieces of 16-bit numbers; lane l gives the address of row l % 8 of piece l / 8. */
__device__ __forceinline__ void ldmatrix(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/** The same, each piece transposed. */
__device__ __forceinline__ void ldmatrix_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/*
 * The four ways to read a 16 x 16 block of a tile.  A `b` result holds two B pieces: r[0], r[1] for the first eight n
 * and r[2], r[3] for the next eight.  Two of the four share their lane address, which a kernel computes once for each
 * tile:
 *
 *     operand   the tile is   address     instruction            used for
 *     a         [m][k]        lane_low    ldmatrix               Q, dO, dS as left operands
 *     b         [k][n]        lane_low    ldmatrix_transposed    V, dO, Q, K in products over rows
 *     b         [n][k]        lane_high   ldmatrix               K, V in products over D
 *     a         [k][m]        lane_high   ldmatrix_transposed    P^T, dS^T as left operands
 */

/** Pieces in the order rows 0-7 and 8-15 of the first chunk, then of the second. */
template <int D> __device__ __forceinline__ uint32_t lane_low(uint32_t tile, int row, int column = 0) {
  int lane = (int)(threadIdx.x % 32);
  return tile + chunk_offset<D>(row + lane % 16, column / 8 + lane / 16);
}

/** Pieces in the order first and second chunk of rows 0-7, then of rows 8-15. */
template <int D> __device__ __forceinline__ uint32_t lane_high(uint32_t tile, int row, int column = 0) {
  int lane = (int)(threadIdx.x % 32);
  return tile + chunk_offset<D>(row + lane % 8 + lane / 16 * 8, column / 8 + lane / 8 % 2);
}

/**
 * The lane address `row` rows and `column` columns further on (multiples of 16; column is a constant after unrolling):
 * the column goes in by exclusive or, because chunks are permuted, so one register serves a whole tile.  The tile must
 * start at a multiple of 512 bytes, and the lane address at a column with which `column` has no binary digit in common.
 */
template <int D> __device__ __forceinline__ uint32_t lane_at(uint32_t lane, int row, int column) {
  constexpr int permuted = D % 64 == 0 ? D : 32; /* columns among which chunks are permuted */
  return (lane ^ (uint32_t)(column % permuted * 2)) + (uint32_t)(column / permuted * permuted * 2 + row * (D * 2));
}

/** 2^x on the special-function unit (about 2 units in the last place). */
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

} // namespace dkv

#endif
