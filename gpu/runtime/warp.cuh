/**
 * @file warp.cuh
 * @brief Sums and maxima over the lanes of a warp, by butterflies: after log2(Width) exchanges every lane has the
 *   result.
 *
 * The order of additions is fixed, so the bits repeat.
 *
 * Read next: tile.cuh, gpu/attention/fwd_2_warp.cu.
 */
#ifndef DKV_GPU_WARP_CUH
#define DKV_GPU_WARP_CUH

namespace dkv {

constexpr unsigned all_lanes = 0xffffffffu;

/** Sum over groups of Width consecutive lanes (a power of two, at most 32); every lane gets its group's sum. */
template <int Width, class Real> __device__ __forceinline__ Real warp_sum(Real x) {
#pragma unroll
  for (int distance = Width / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(all_lanes, x, distance);
  return x;
}

/** Maximum over groups of Width consecutive lanes. */
template <int Width> __device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int distance = Width / 2; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(all_lanes, x, distance));
  return x;
}

} // namespace dkv

#endif
