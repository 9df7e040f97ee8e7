/**
 * @file async.cuh
 * @brief Copies from global to shared memory that a thread starts and does not wait for (cp.async, compute capability
 *   8.0).
 *
 * A thread's copies are gathered into groups; wait<N> returns when all but its N newest groups have landed.  Other
 * threads' copies are seen only after a barrier:
 *
 *     start(tile 1) commit   start(tile 2) commit   wait<1>  __syncthreads()  use tile 1   wait<0>  __syncthreads()
 *     use tile 2
 *
 * Read before: launch.h.  Read next: mma.cuh, gpu/attention/fwd_5_pipeline.cu.
 */
#ifndef DKV_GPU_ASYNC_CUH
#define DKV_GPU_ASYNC_CUH

#include <stdint.h>

#include "gpu/runtime/mma.cuh"

namespace dkv {

/** Starts a copy of 16 bytes past the L1 cache; writes zeros instead when not `valid` (then `from` is not read). */
__device__ __forceinline__ void copy16_start(uint32_t to, const void *from, bool valid) {
  int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

/** Starts a copy of 4 bytes. */
__device__ __forceinline__ void copy4_start(uint32_t to, const void *from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

/** Closes this thread's group of copies. */
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/** Waits for all of this thread's copies, in groups or not. */
__device__ __forceinline__ void copy_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/** Waits until at most Pending of this thread's groups are still under way. */
template <int Pending> __device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

/**
 * A thread's part in copying tiles of [Rows][D] 16-bit numbers: 16-byte chunks of rows `height` apart.  Only what
 * differs between threads is kept, in 32 bits; what all share (tensor, stride, first row) comes with each call, from
 * constant memory.
 */
template <int Rows, int D, int Threads> struct tile_copy {
  static constexpr int width = D % 128 == 0 ? 16 : D % 64 == 0 ? 8 : 4; /**< threads side by side in a row */
  static constexpr int height = Threads / width;
  static_assert(Rows % height == 0 && height % 8 == 0, "a thread's rows have the same swizzle key");
  uint32_t to;     /**< address of the first chunk in the tile */
  uint32_t offset; /**< byte of the first chunk, from element (row0, 0, 0) of the tensor */

  /**
   * @param[in] tile   shared address of the tile
   * @param[in] head   element of the head within a row
   * @param[in] stride elements from a row to the next: heads * D
   */
  __device__ __forceinline__ tile_copy(uint32_t tile, int head, int64_t stride) {
    int row = (int)(threadIdx.x / width), chunk = (int)(threadIdx.x % width);
    to = tile + chunk_offset<D>(row, chunk);
    offset = ((uint32_t)row * (uint32_t)stride + (uint32_t)(head + chunk * 8)) * 2;
  }

  /**
   * Starts the copies of rows [row0, row0 + Rows) into the tile `bytes` after the first; zeros from row_end on.
   * @param[in] tensor a [T][heads][D] tensor
   */
  template <class T>
  __device__ __forceinline__ void start(int bytes, const T *tensor, int64_t stride, int row0, int row_end) const {
    const char *from = reinterpret_cast<const char *>(tensor + row0 * stride);
    asm volatile(""
                 : "+l"(from)); /* or the compiler adds `offset` first and keeps it in 64 bits, one register too many */
    from += offset;
    int left = row_end - row0 - (int)(threadIdx.x / width); /* of this thread's rows, those before `left` exist */
#pragma unroll
    for (int n = 0; n < Rows / height;
         ++n, from += height * 2 * stride) /* one pointer moves: eight would need 16 registers */
#pragma unroll
      for (int side = 0; side < D / (8 * width); ++side)
        copy16_start(to + bytes + n * height * D * 2 + side * width * 16, from + side * width * 16, n * height < left);
  }
};

} // namespace dkv

#endif
