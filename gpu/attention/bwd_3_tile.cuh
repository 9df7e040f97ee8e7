/**
 * @file bwd_3_tile.cuh
 * @brief The five products of one backward step on tensor cores, shared among eight warps: 64 query rows by 128 keys.
 *
 *     S = Q K^T     dP = dO V^T     dV += P^T dO     dK += dS^T Q     dQ = dS K
 *
 * Who owns what (w = warp 0..7), chosen so that each fragment read from shared memory serves two or more instructions:
 *
 *     S, dP     rows 32 (w / 4) ..      keys 32 (w % 4) ..                          32 x 32
 *     dV, dK    keys 32 (w / 2) ..      16-column blocks w % 2, w % 2 + 2, ...      32 x D/2
 *     dQ        rows 32 (w / 4) ..      16-column blocks w % 4, w % 4 + 4, ...      32 x D/4      (D = 64, 128)
 *               rows 16 (w / 2) ..      16-column blocks w % 2, w % 2 + 2, ...      16 x D/2      (D = 96)
 *
 * P and dS change owners between the products, so they go through shared memory, as [64 queries][128 keys]; read
 * transposed they are P^T and dS^T.
 *
 * Read before: mma.cuh.  Read next: bwd_3_mma.cu.
 */
#ifndef DKV_GPU_BWD_3_TILE_CUH
#define DKV_GPU_BWD_3_TILE_CUH

#include "common/mask.h"
#include "gpu/runtime/mma.cuh"

namespace dkv {

constexpr int bwd_threads = 256;
constexpr int bwd_rows = 64;  /**< query rows of a step */
constexpr int bwd_keys = 128; /**< keys of a tile */

/** A warp's 32 x 32 scores: [16 rows][8 keys][as C in mma.cuh]. */
typedef float bwd_scores_tile[2][4][4];

__device__ __forceinline__ int warp_index() { return (int)(threadIdx.x / 32); }
__device__ __forceinline__ int lane_index() { return (int)(threadIdx.x % 32); }

/** s = X Y^T over D: X the low lane address of 32 rows, Y the high one of 32 keys. */
template <class T, int D>
__device__ __forceinline__ void bwd_scores(bwd_scores_tile &s, uint32_t x_lane, uint32_t y_lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int n = 0; n < 4; ++n) s[r][n][0] = s[r][n][1] = s[r][n][2] = s[r][n][3] = 0;
#pragma unroll
  for (int d = 0; d < D; d += 16) {
    uint32_t a[2][4], b[2][4];
    ldmatrix(a[0], lane_at<D>(x_lane, 0, d));
    ldmatrix(a[1], lane_at<D>(x_lane, 16, d));
    ldmatrix(b[0], lane_at<D>(y_lane, 0, d));
    ldmatrix(b[1], lane_at<D>(y_lane, 16, d));
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int n = 0; n < 4; ++n) mma<T>(s[r][n], a[r], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
  }
}

/**
 * acc += W^T X: this warp's 32 keys by D/2 columns, over the 64 query rows.
 * @param[in] w_lane high lane address in a [64][128] tile, at the warp's keys
 * @param[in] x_lane low lane address in a [64][D] tile, at the warp's first block of columns
 */
template <class T, int D>
__device__ __forceinline__ void bwd_add_keys(float (&acc)[2][D / 16][4], uint32_t w_lane, uint32_t x_lane) {
#pragma unroll
  for (int i = 0; i < bwd_rows; i += 16) {
    uint32_t a[2][4];
    ldmatrix_transposed(a[0], lane_at<bwd_keys>(w_lane, i, 0));
    ldmatrix_transposed(a[1], lane_at<bwd_keys>(w_lane, i, 16));
#pragma unroll
    for (int block = 0; block < D / 32; ++block) {
      uint32_t b[4];
      ldmatrix_transposed(b, lane_at<D>(x_lane, i, 32 * block));
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        mma<T>(acc[r][2 * block], a[r], b[0], b[1]);
        mma<T>(acc[r][2 * block + 1], a[r], b[2], b[3]);
      }
    }
  }
}

/** How the warps divide dQ, 64 x D. */
template <int D> struct bwd_dq_share {
  static constexpr int pieces = D == 96 ? 1 : 2;        /**< 16-row pieces of a warp */
  static constexpr int across = D == 96 ? 2 : 4;        /**< warps side by side */
  static constexpr int blocks = D / 16 / across;        /**< 16-column blocks of a warp */
  static constexpr int fragments = pieces * blocks * 2; /**< C pieces of a warp */
  static_assert(8 * fragments * 128 == bwd_rows * D, "the eight warps cover the tile once");
  __device__ static __forceinline__ int row() { return warp_index() / across * 16 * pieces; }
  __device__ static __forceinline__ int column() { return warp_index() % across * 16; }
};

/**
 * dq = dS K for this warp's share: dS the low lane address of its rows, K the low one of its first block of columns.
 */
template <class T, int D>
__device__ __forceinline__ void bwd_dq(float (&dq)[bwd_dq_share<D>::fragments][4], uint32_t ds_lane, uint32_t k_lane) {
  using share = bwd_dq_share<D>;
#pragma unroll
  for (int f = 0; f < share::fragments; ++f) dq[f][0] = dq[f][1] = dq[f][2] = dq[f][3] = 0;
#pragma unroll
  for (int j = 0; j < bwd_keys; j += 16) {
    uint32_t a[share::pieces][4];
#pragma unroll
    for (int r = 0; r < share::pieces; ++r) ldmatrix(a[r], lane_at<bwd_keys>(ds_lane, 16 * r, j));
#pragma unroll
    for (int block = 0; block < share::blocks; ++block) {
      uint32_t b[4];
      ldmatrix_transposed(b, lane_at<D>(k_lane, j, 16 * share::across * block));
#pragma unroll
      for (int r = 0; r < share::pieces; ++r) {
        mma<T>(dq[(r * share::blocks + block) * 2], a[r], b[0], b[1]);
        mma<T>(dq[(r * share::blocks + block) * 2 + 1], a[r], b[2], b[3]);
      }
    }
  }
}

/** Adds four floats to global memory, 16-byte aligned: one instruction where the device has it. */
__device__ __forceinline__ void add4(float *to, const float (&value)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to), "f"(value[0]), "f"(value[1]), "f"(value[2]),
               "f"(value[3])
               : "memory");
#else
#pragma unroll
  for (int e = 0; e < 4; ++e) atomicAdd(to + e, value[e]);
#endif
}

/** Which of a lane's 32 scores are visible: bit 16 r + 4 n + e for s[r][n][e]. Keys from T on are seen by nobody. */
__device__ __forceinline__ uint32_t bwd_sees(const int *end, int rows, int i0, int j0) {
  int i = i0 + warp_index() / 4 * 32 + lane_index() / 4, j = j0 + warp_index() % 4 * 32 + 2 * (lane_index() % 4);
  uint32_t bits = 0;
#pragma unroll
  for (int n = 0; n < 4; ++n)
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      int key = j + 8 * n + column, end_j = key < rows ? end[key] : 0;
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          bits |= (uint32_t)dkv_sees(i + 16 * r + 8 * half, key, end_j) << (16 * r + 4 * n + 2 * half + column);
    }
  return bits;
}

/** Zeros where a row does not see a key: selected, never multiplied. */
__device__ __forceinline__ void bwd_mask(bwd_scores_tile &s, uint32_t bits) {
  if (bits == 0xffffffffu) return;
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (!(bits >> (16 * r + 4 * n + e) & 1)) s[r][n][e] = 0;
}

/** Rounds this warp's 32 x 32 scores into its place of a [64][128] tile. */
template <class T> __device__ __forceinline__ void bwd_store(unsigned char *tile, const bwd_scores_tile &s) {
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int row = warp_index() / 4 * 32 + 16 * r + 8 * half + lane_index() / 4, chunk = warp_index() % 4 * 4 + n;
        *reinterpret_cast<uint32_t *>(tile + chunk_offset<bwd_keys>(row, chunk) + 4 * (lane_index() % 4)) =
            pack<T>(s[r][n][2 * half], s[r][n][2 * half + 1]);
      }
}

} // namespace dkv

#endif
