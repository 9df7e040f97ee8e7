/**
 * @file product.cuh
 * @brief Matrix products of shared-memory tiles on the ordinary fp32 units, with a small tile of results in each
 *   thread.
 *
 * 256 threads stand in a 16 x 16 square, thread (y, x) = (t / 16, t % 16).  Who owns which result, for Rows = 4:
 *
 *     products    c[r][n]   row 4 y + r, column x + 16 n                (both operands row by row: "A B^T")
 *     accumulate  acc[r][e] row 4 y + r, elements 4 x + 64 (e / 4) + e % 4
 *
 * A row's results lie in 16 consecutive lanes, so its maximum and sum are warp_max<16> and warp_sum<16>.  Each value
 * read from shared memory serves Rows (or Width / 16) multiplications.  The order of additions is fixed: the bits
 * repeat.
 *
 * Read before: tile.cuh.  Read next: gpu/attention/fwd_3_shared.cu.
 */
#ifndef DKV_GPU_PRODUCT_CUH
#define DKV_GPU_PRODUCT_CUH

#include "gpu/runtime/tile.cuh"

namespace dkv {

constexpr int product_threads = 256;

/** This thread's place in the 16 x 16 square. */
__device__ __forceinline__ int square_y() { return (int)(threadIdx.x / 16); }
__device__ __forceinline__ int square_x() { return (int)(threadIdx.x % 16); }

__device__ __forceinline__ float4 read4(const float *from) { return *reinterpret_cast<const float4 *>(from); }

/**
 * c = A B^T over the first `dim` elements.  Four sums, of every fourth element each, added at the end: fewer roundings
 * than one long sum, which shows where scores are large (f32, the case huge_scores).
 * @param[out] c overwritten, see above
 * @param[in]  a [16 * Rows][Width + 4] shared tile
 * @param[in]  b [16 * Columns][Width + 4] shared tile
 */
template <int Rows, int Columns, int Width>
__device__ __forceinline__ void products(float (&c)[Rows][Columns], const float *a, const float *b, int dim) {
  constexpr int pitch = tile_pitch<Width>;
  float4 sum[Rows][Columns];
#pragma unroll
  for (int r = 0; r < Rows; ++r)
#pragma unroll
    for (int n = 0; n < Columns; ++n) sum[r][n] = make_float4(0, 0, 0, 0);
#pragma unroll 2
  for (int d = 0; d < dim; d += 4) {
    float4 x[Rows], y[Columns];
#pragma unroll
    for (int r = 0; r < Rows; ++r) x[r] = read4(a + (square_y() * Rows + r) * pitch + d);
#pragma unroll
    for (int n = 0; n < Columns; ++n) y[n] = read4(b + (square_x() + 16 * n) * pitch + d);
#pragma unroll
    for (int r = 0; r < Rows; ++r)
#pragma unroll
      for (int n = 0; n < Columns; ++n) {
        sum[r][n].x += x[r].x * y[n].x;
        sum[r][n].y += x[r].y * y[n].y;
        sum[r][n].z += x[r].z * y[n].z;
        sum[r][n].w += x[r].w * y[n].w;
      }
  }
#pragma unroll
  for (int r = 0; r < Rows; ++r)
#pragma unroll
    for (int n = 0; n < Columns; ++n) c[r][n] = (sum[r][n].x + sum[r][n].y) + (sum[r][n].z + sum[r][n].w);
}

/** Floats per row of a tile of weights with `Inner` columns. */
template <int Inner> constexpr int weight_pitch = Inner + 4;

/** Puts products() results where accumulate() reads them: w[row][column]. */
template <int Rows, int Columns>
__device__ __forceinline__ void store_weights(float *w, const float (&c)[Rows][Columns]) {
#pragma unroll
  for (int r = 0; r < Rows; ++r)
#pragma unroll
    for (int n = 0; n < Columns; ++n)
      w[(square_y() * Rows + r) * weight_pitch<16 * Columns> + square_x() + 16 * n] = c[r][n];
}

/**
 * acc += W X.
 * @param[in,out] acc see above
 * @param[in]     w   [16 * Rows][Inner + 4] shared weights
 * @param[in]     x   [Inner][Width + 4] shared tile
 */
template <int Rows, int Inner, int Width>
__device__ __forceinline__ void accumulate(float (&acc)[Rows][Width / 16], const float *w, const float *x) {
#pragma unroll 2
  for (int j = 0; j < Inner; j += 4) {
    float4 weight[Rows];
#pragma unroll
    for (int r = 0; r < Rows; ++r) weight[r] = read4(w + (square_y() * Rows + r) * weight_pitch<Inner> + j);
#pragma unroll
    for (int jj = 0; jj < 4; ++jj)
#pragma unroll
      for (int e = 0; e < Width / 64; ++e) {
        float4 value = read4(x + (j + jj) * tile_pitch<Width> + 4 * square_x() + 64 * e);
#pragma unroll
        for (int r = 0; r < Rows; ++r) {
          float factor = jj == 0 ? weight[r].x : jj == 1 ? weight[r].y : jj == 2 ? weight[r].z : weight[r].w;
          acc[r][4 * e] += factor * value.x;
          acc[r][4 * e + 1] += factor * value.y;
          acc[r][4 * e + 2] += factor * value.z;
          acc[r][4 * e + 3] += factor * value.w;
        }
      }
  }
}

/**
 * Writes acc, times a factor for each row, to rows [row0, row0 + 16 * Rows) of one head; nothing past T or D.
 * @param[out] tensor element (0, head, 0) of a [T][heads][dim] tensor
 * @param[in]  stride heads * dim
 */
template <int Rows, int Width, class T>
__device__ __forceinline__ void store_rows(T *tensor, int64_t stride, int row0, int row_end, int dim,
                                           const float (&acc)[Rows][Width / 16], const float (&factor)[Rows]) {
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
    int row = row0 + square_y() * Rows + r;
#pragma unroll
    for (int e = 0; e < Width / 16; ++e) {
      int d = 4 * square_x() + 64 * (e / 4) + e % 4;
      if (row < row_end && d < dim) tensor[row * stride + d] = from_float<T>(acc[r][e] * factor[r]);
    }
  }
}

} // namespace dkv

#endif
