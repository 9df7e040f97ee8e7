/**
 * @file reduce.cuh
 * @brief Adding to global memory in fp32 without waiting: from registers, or in bulk from shared memory; and turns.
 *
 * The order of such adds is free, so their sum differs in the last bits from run to run.  A turn counter fixes the
 * order: whoever has turn n waits until the counter is n, adds, waits until the adds are done, and sets it to n + 1.
 *
 * Read before: mbarrier.cuh.  Read next: gpu/attention/bwd_5_hopper.cu.
 */
#ifndef DKV_REDUCE_CUH
#define DKV_REDUCE_CUH

#include <stdint.h>

/** Adds four floats to 16-byte aligned global memory; each of the four is one atomic add at the L2 cache. */
__device__ __forceinline__ void dkv_reduce_add4(float *global, float x, float y, float z, float w) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(global), "f"(x), "f"(y), "f"(z), "f"(w)
               : "memory");
}

/**
 * Adds `bytes` (a multiple of 16) of floats from shared to global memory and closes the bulk group.  Writers of the
 * shared memory called dkv_fence_async_proxy, then a barrier.
 */
__device__ __forceinline__ void dkv_bulk_reduce_add(float *global, uint32_t shared, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n"
               "cp.async.bulk.commit_group;" ::"l"(global),
               "r"(shared), "r"(bytes)
               : "memory");
}

/** Waits until all but the `pending` newest bulk groups of this thread have read their shared memory. */
template <int pending> __device__ __forceinline__ void dkv_bulk_wait_read_but() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

/** Waits until all bulk groups of this thread are done, writes included. */
__device__ __forceinline__ void dkv_bulk_wait_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

/** Waits until the turn counter is `turn`. One thread calls it. */
__device__ __forceinline__ void dkv_turn_wait(const int32_t *counter, int32_t turn) {
  int32_t now;
  do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
  while (now != turn);
}

/**
 * Ends a turn: the release makes everything this thread did before (what it waited for, and what other threads did
 * before a barrier with it) seen by the next one.
 */
__device__ __forceinline__ void dkv_turn_end(int32_t *counter, int32_t turn) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(counter), "r"(turn + 1) : "memory");
}

#endif
