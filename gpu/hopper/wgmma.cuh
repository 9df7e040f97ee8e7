/**
 * @file wgmma.cuh
 * @brief Hopper's warpgroup matrix product, m64nNk16: descriptors, the two instruction forms, their ordering.
 *
 *     D[64 x N] += A[64 x 16] B[16 x N]        issued by the 128 threads of a warpgroup, finished later
 *
 * D lives in registers (N/2 floats a thread), B in shared memory, A in shared memory ("ss") or in registers ("rs").
 * Tiles of [rows][D] are stored as D/64 panels; a panel is rows x 128 bytes with the 128-byte swizzle that TMA writes
 * (fragment.cuh).  The same bytes serve both directions:
 *
 *     K-major    the product sums over D      next k16: +32 bytes, four times, then the next panel
 *     MN-major   the product sums over rows   next k16: +2048 bytes (16 rows); next 64 of M or N: next panel
 *
 * Ordering: dkv_wgmma_fence() before the first product of a group and after touching any of its registers;
 * dkv_wgmma_commit() closes a group; dkv_wgmma_wait<n>() waits until at most n groups are pending (they finish in
 * order). Shared memory written by ordinary stores needs dkv_fence_async_proxy() in each writer and then a barrier.
 *
 * Read before: fragment.cuh, mbarrier.cuh, tma.cuh.  Read next: gpu/attention/fwd_7_hopper.cu.
 */
#ifndef DKV_WGMMA_CUH
#define DKV_WGMMA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

/** Which dimension of a shared-memory operand is contiguous: the summed one (K) or the kept one (M or N). */
enum dkv_major { DKV_K_MAJOR = 0, DKV_MN_MAJOR = 1 };

/**
 * 64-bit descriptor of a swizzled operand.
 * @param[in] address      shared address (32-bit) of its first element; panels start on 1024-byte boundaries
 * @param[in] panel_stride bytes from one panel to the next; read by MN-major operands wider than 64, else ignored
 * @return descriptor; add dkv_descriptor_step(bytes) to move its start
 */
__device__ __forceinline__ uint64_t dkv_descriptor(uint32_t address, uint32_t panel_stride) {
  uint32_t low = ((address & 0x3ffffu) >> 4) | ((panel_stride >> 4) << 16);
  uint32_t high = (1024u >> 4) | (1u << 30); /* eight rows to the next block; 128-byte swizzle */
  return ((uint64_t)high << 32) | low;
}

/** What to add to a descriptor to start `bytes` (a multiple of 16) later. */
__device__ __forceinline__ constexpr uint64_t dkv_descriptor_step(uint32_t bytes) { return bytes >> 4; }

/** Makes this warpgroup's earlier register writes visible to the products that follow. */
__device__ __forceinline__ void dkv_wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

/** Closes a group: all products issued since the last commit. */
__device__ __forceinline__ void dkv_wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/** Waits until at most `pending` groups of this warpgroup are unfinished. */
template <int pending> __device__ __forceinline__ void dkv_wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/** Keeps the compiler from moving uses of accumulators or fragments across this point. Costs no instruction. */
template <int n> __device__ __forceinline__ void dkv_pin(float (&registers)[n]) {
#pragma unroll
  for (int i = 0; i < n; i++) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int n> __device__ __forceinline__ void dkv_pin(uint32_t (&registers)[n]) {
#pragma unroll
  for (int i = 0; i < n; i++) asm volatile("" : "+r"(registers[i])::"memory");
}

/** Orders this thread's ordinary shared-memory stores before later reads by wgmma and TMA. A barrier must follow. */
__device__ __forceinline__ void dkv_fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/** Gives up (dec) or takes (inc) registers, n a multiple of 8, executed by a whole warpgroup. */
template <int n> __device__ __forceinline__ void dkv_registers_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
}
template <int n> __device__ __forceinline__ void dkv_registers_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
}

/** Named barrier 1..15 (0 is __syncthreads): waits until `threads` threads have synced or arrived. */
__device__ __forceinline__ void dkv_named_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/** Counts this thread in without waiting. */
__device__ __forceinline__ void dkv_named_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* The instruction, once per N and type. Placeholders: accumulators first, then A, B, scale-d, transposes. */
#define DKV_D4_(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define DKV_D32_(i)                                                                                                    \
  DKV_D4_(i), DKV_D4_((i) + 4), DKV_D4_((i) + 8), DKV_D4_((i) + 12), DKV_D4_((i) + 16), DKV_D4_((i) + 20),             \
      DKV_D4_((i) + 24), DKV_D4_((i) + 28)
#define DKV_R32_                                                                                                       \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"     \
  "%30,%31"
#define DKV_R40_ DKV_R32_ ",%32,%33,%34,%35,%36,%37,%38,%39"
#define DKV_R64_                                                                                                       \
  DKV_R40_ ",%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"

#define DKV_SS_(n, type, regs, outs, a_, b_, p_, ta_, tb_)                                                             \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #p_ ", 0;\n"                                                         \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" regs "}, %" #a_ ", %" #b_          \
               ", p, 1, 1, %" #ta_ ", %" #tb_ "; }\n"                                                                  \
               : outs                                                                                                  \
               : "l"(a), "l"(b), "r"(accumulate), "n"(major_a), "n"(major_b))
#define DKV_RS_(n, type, regs, outs, a0_, a1_, a2_, a3_, b_, p_, tb_)                                                  \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #p_ ", 0;\n"                                                         \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" regs "}, {%" #a0_ ",%" #a1_        \
               ",%" #a2_ ",%" #a3_ "}, %" #b_ ", p, 1, 1, %" #tb_ "; }\n"                                              \
               : outs                                                                                                  \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(major_b))

#define DKV_OUT64_ DKV_D32_(0)
#define DKV_OUT80_ DKV_D32_(0), DKV_D4_(32), DKV_D4_(36)
#define DKV_OUT128_ DKV_D32_(0), DKV_D32_(32)

/** Element types that the products take. */
template <typename T> struct dkv_is_bf16 { static constexpr bool value = false; };
template <> struct dkv_is_bf16<__nv_bfloat16> { static constexpr bool value = true; };

/**
 * D (+)= A B with both operands in shared memory.
 * @tparam    T          __nv_bfloat16 or __half
 * @tparam    n          N: 64, 80 or 128
 * @param[in,out] d      [N/2] accumulators of this thread
 * @param[in] a,b        descriptors
 * @param[in] accumulate 0: D = A B; else D += A B
 */
template <typename T, int n, int major_a, int major_b>
__device__ __forceinline__ void dkv_wgmma_ss(float (&d)[n / 2], uint64_t a, uint64_t b, int accumulate) {
  static_assert(n == 64 || n == 80 || n == 128, "add the N you need");
  constexpr bool bf16 = dkv_is_bf16<T>::value;
  if constexpr (n == 64 && bf16) DKV_SS_(64, "bf16", DKV_R32_, DKV_OUT64_, 32, 33, 34, 35, 36);
  if constexpr (n == 64 && !bf16) DKV_SS_(64, "f16", DKV_R32_, DKV_OUT64_, 32, 33, 34, 35, 36);
  if constexpr (n == 80 && bf16) DKV_SS_(80, "bf16", DKV_R40_, DKV_OUT80_, 40, 41, 42, 43, 44);
  if constexpr (n == 80 && !bf16) DKV_SS_(80, "f16", DKV_R40_, DKV_OUT80_, 40, 41, 42, 43, 44);
  if constexpr (n == 128 && bf16) DKV_SS_(128, "bf16", DKV_R64_, DKV_OUT128_, 64, 65, 66, 67, 68);
  if constexpr (n == 128 && !bf16) DKV_SS_(128, "f16", DKV_R64_, DKV_OUT128_, 64, 65, 66, 67, 68);
}

/**
 * D (+)= A B with A in registers (K-major by nature).
 * @tparam    T          __nv_bfloat16 or __half
 * @tparam    n          N: 64, 80 or 128
 * @param[in,out] d      [N/2] accumulators of this thread
 * @param[in] a          four registers, two elements each: dkv_fragment_a (fragment.cuh)
 * @param[in] b          descriptor
 * @param[in] accumulate 0: D = A B; else D += A B
 */
template <typename T, int n, int major_b>
__device__ __forceinline__ void dkv_wgmma_rs(float (&d)[n / 2], const uint32_t *a, uint64_t b, int accumulate) {
  static_assert(n == 64 || n == 80 || n == 128, "add the N you need");
  constexpr bool bf16 = dkv_is_bf16<T>::value;
  if constexpr (n == 64 && bf16) DKV_RS_(64, "bf16", DKV_R32_, DKV_OUT64_, 32, 33, 34, 35, 36, 37, 38);
  if constexpr (n == 64 && !bf16) DKV_RS_(64, "f16", DKV_R32_, DKV_OUT64_, 32, 33, 34, 35, 36, 37, 38);
  if constexpr (n == 80 && bf16) DKV_RS_(80, "bf16", DKV_R40_, DKV_OUT80_, 40, 41, 42, 43, 44, 45, 46);
  if constexpr (n == 80 && !bf16) DKV_RS_(80, "f16", DKV_R40_, DKV_OUT80_, 40, 41, 42, 43, 44, 45, 46);
  if constexpr (n == 128 && bf16) DKV_RS_(128, "bf16", DKV_R64_, DKV_OUT128_, 64, 65, 66, 67, 68, 69, 70);
  if constexpr (n == 128 && !bf16) DKV_RS_(128, "f16", DKV_R64_, DKV_OUT128_, 64, 65, 66, 67, 68, 69, 70);
}

#endif
