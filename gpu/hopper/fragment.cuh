/**
 * @file fragment.cuh
 * @brief Which thread holds which element: accumulators, A fragments, and the swizzled panels they are stored to.
 *
 * Thread t of a warpgroup, warp w = t / 32, lane l = t % 32.  Of a 64 x N accumulator, register i is the element
 *
 *     row    16 w + l/4 + 8 ((i/2) % 2)              column  8 (i/4) + 2 (l%4) + i % 2
 *
 * Of a 64 x 16 A operand, register r packs columns 2 (l%4) + {0, 1} + 8 (r/2) of row 16 w + l/4 + 8 (r%2).  So eight
 * consecutive accumulators, packed in pairs, are the A fragment of one k16: a product feeds the next one for free.
 *
 * A panel is R rows x 64 elements (128 bytes); the eight 16-byte chunks of row r sit at chunk ^ (r % 8):
 *
 *     row 0   0 1 2 3 4 5 6 7        row 1   1 0 3 2 5 4 7 6        row 2   2 3 0 1 6 7 4 5      ...
 *
 * so that eight rows of one chunk column touch all 32 banks once.  TMA writes this order (128-byte swizzle) when the
 * panel starts on a 1024-byte boundary.
 *
 * Read before: common/dtype.h.  Read next: mbarrier.cuh, tma.cuh, wgmma.cuh.
 */
#ifndef DKV_FRAGMENT_CUH
#define DKV_FRAGMENT_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

/** Elements of a panel row, and its bytes. */
#define DKV_PANEL 64
#define DKV_PANEL_ROW_BYTES 128

/** 32-bit shared-memory address of a generic pointer, as PTX wants it. */
__device__ __forceinline__ uint32_t dkv_shared_address(const void *pointer) {
  return (uint32_t)__cvta_generic_to_shared(pointer);
}

/** Byte offset of element (row, column) in a panel, column 0..63. */
__device__ __forceinline__ uint32_t dkv_panel_offset(uint32_t row, uint32_t column) {
  return row * DKV_PANEL_ROW_BYTES + (((column >> 3) ^ (row & 7)) << 4) + (column & 7) * 2;
}

/** Row of accumulator register i of thread t of a warpgroup. */
__device__ __forceinline__ int dkv_accumulator_row(int t, int i) { return t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8; }

/** Column of accumulator register i of thread t of a warpgroup. */
__device__ __forceinline__ int dkv_accumulator_column(int t, int i) { return i / 4 * 8 + t % 4 * 2 + i % 2; }

/** Two floats rounded to nearest even, `low` in the lower half. */
template <typename T> __device__ __forceinline__ uint32_t dkv_pack(float low, float high);
template <> __device__ __forceinline__ uint32_t dkv_pack<__nv_bfloat16>(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
template <> __device__ __forceinline__ uint32_t dkv_pack<__half>(float low, float high) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

/**
 * Rounds accumulators to 16 bits: registers 4k..4k+3 of the result are the A fragment of the k-th k16.
 * @tparam     T  __nv_bfloat16 or __half
 * @tparam     n  accumulators, N/2
 * @param[out] a  [n/2] overwritten
 * @param[in]  d  [n]
 */
template <typename T, int n> __device__ __forceinline__ void dkv_fragment_a(uint32_t (&a)[n / 2], const float (&d)[n]) {
#pragma unroll
  for (int i = 0; i < n / 2; i++) a[i] = dkv_pack<T>(d[2 * i], d[2 * i + 1]);
}

/** Stores four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8. */
__device__ __forceinline__ void dkv_stmatrix(uint32_t address, const uint32_t *r) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}

/** The same with every 8x8 matrix transposed. */
__device__ __forceinline__ void dkv_stmatrix_transposed(uint32_t address, const uint32_t *r) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

/**
 * Address for dkv_stmatrix of columns 16k..16k+15 of a packed 64-row accumulator, into a panel of its own rows:
 * panel row = `row0` + accumulator row, panel column = accumulator column % 64.
 * @param[in] panel shared address of the panel that holds column 16k
 * @param[in] row0  panel row of accumulator row 0, a multiple of 8
 * @param[in] t     thread of the warpgroup
 * @param[in] k     which 16 columns, within the panel: 0..3
 */
__device__ __forceinline__ uint32_t dkv_stmatrix_address(uint32_t panel, int row0, int t, int k) {
  int q = t % 32 / 8, row = row0 + t / 32 * 16 + q % 2 * 8 + t % 8;
  return panel + dkv_panel_offset((uint32_t)row, (uint32_t)(16 * k + q / 2 * 8));
}

/**
 * Address for dkv_stmatrix_transposed of columns 16k..16k+15 of a packed 64-row accumulator, into a panel whose rows
 * are the accumulator's columns: panel row = 16k + column, panel column = accumulator row (0..63).
 * @param[in] panel shared address of the panel
 * @param[in] t     thread of the warpgroup
 * @param[in] k     which 16 columns of the accumulator
 */
__device__ __forceinline__ uint32_t dkv_stmatrix_transposed_address(uint32_t panel, int t, int k) {
  int q = t % 32 / 8, row = 16 * k + q / 2 * 8 + t % 8;
  return panel + dkv_panel_offset((uint32_t)row, (uint32_t)(t / 32 * 16 + q % 2 * 8));
}

#endif
