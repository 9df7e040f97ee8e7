/**
 * @file mbarrier.cuh
 * @brief Who may go on: memory barriers say that data has landed or that a buffer is free.
 *
 * A ring of shared-memory stages has two mbarriers a stage:
 *
 *     producer:  wait(empty[s])  arrive_expect(full[s], bytes)  copies...           then the next stage
 *     consumer:  wait(full[s])   ... reads ...                  arrive(empty[s])    then the next stage
 *
 * An mbarrier starts in phase 0; a wait names the parity of the phase whose end it waits for.  Use u of a stage is
 * phase u: the consumer waits for parity u & 1 of `full`, the producer for parity (u & 1) ^ 1 of `empty`, which is true
 * at once the first time.  dkv_ring carries (stage, parity); it runs on across the work items of a persistent kernel
 * and is never reset.
 *
 * Rules: addresses are 32-bit shared-memory addresses (dkv_shared_address, fragment.cuh); counts are arrivals per
 * phase; arrive releases and wait acquires at CTA scope, so ordinary stores before an arrive are seen after the
 * matching wait.
 *
 * Read before: fragment.cuh.  Read next: tma.cuh, wgmma.cuh.
 */
#ifndef DKV_GPU_HOPPER_MBARRIER_CUH
#define DKV_GPU_HOPPER_MBARRIER_CUH

#include <stdint.h>

/** Prepares a barrier for phase 0. @param[in] count arrivals that end a phase. One thread calls it. */
__device__ __forceinline__ void dkv_mbarrier_init(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

/** Makes the inits visible to the copy engine; then a __syncthreads makes them visible to the CTA. */
__device__ __forceinline__ void dkv_mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/** One arrival. */
__device__ __forceinline__ void dkv_mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/** One arrival that also announces bytes: the phase ends when all arrivals came and all announced bytes have landed. */
__device__ __forceinline__ void dkv_mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/** Waits until the phase of this parity has ended. */
__device__ __forceinline__ void dkv_mbarrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile("{\n"
               ".reg .pred done;\n"
               "again:\n"
               "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
               "@done bra over;\n"
               "bra again;\n"
               "over:\n"
               "}" ::"r"(barrier),
               "r"(parity)
               : "memory");
}

/** A place in a ring of `stages` buffers: which one is next, and the parity of its current use. */
template <int stages> struct dkv_ring {
  uint32_t stage = 0;  /**< index of the next buffer */
  uint32_t parity = 0; /**< parity that the consumer waits for; the producer waits for parity ^ 1 */

  /** Goes on to the next buffer. */
  __device__ __forceinline__ void next() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

#endif
