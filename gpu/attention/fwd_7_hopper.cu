/**
 * @file fwd_7_hopper.cu
 * @brief Forward rung 7: specialised warps.
 *
 * Previous   fwd_6_hopper_plain.cu: the same products and the same softmax, but every warp waits for every copy.
 * Idea       one thread does nothing but copy, always as far ahead as there are free stages; the other warpgroups each
 *            take 64 query rows and never wait for each other, so that while one is in its softmax another multiplies.
 *            CTAs are persistent: copies of the next work item run under the end of this one.
 *
 *              producer      K0 Q K1 V0 | K2 V1 | K3 V2 | ...             TMA into rings, waits for free stages
 *              consumer 0    S0 . softmax | S1, O += P0 V0 | softmax | S2, O += P1 V1 | softmax ...
 *              consumer 1         S0 . softmax      | S1, O += P0 V0 | softmax | S2, O += P1 V1 ...
 *
 * Predict    D = 128: 2400 cycles a step of 128 x 128, against 2048 of the products alone; 650 to 690 TFLOP/s.
 * Measured   788 TFLOP/s at N = 28, P = 16384, R = 2048, H = 32/8, D = 128, bf16 (H200, 2026-11-30)
 *            Single calls on a cool card; docs/worklog_forward.md has long runs.  There the power limit sets the clock,
 *            so work saved (no maxima, uniform descriptors) counts for more than waiting saved (taking turns brought
 *            nothing).
 * Remains    the start and the end of an item, about one step, when a warpgroup's products have nothing to hide behind.
 *
 *     role                    warps               registers (D = 128 | 64)    barriers
 *     producer, 1 thread      0                     40 | 32                   waits for empty, fills full
 *     consumers, 2 | 3 WGs    4 to 11 | 4 to 15    232 | 160                  wait for full, arrive at empty
 *
 *     a consumer thread holds s 64, p 32, o D/2, shift 2, sum 2 registers; about 30 more for addresses and exponents
 *
 *     shared memory            D = 128     D = 64
 *       Q, two buffers           64 KiB     48 KiB    O leaves through the rows that Q had
 *       K, two stages            64 KiB     32 KiB
 *       V, two stages            64 KiB     32 KiB
 *       vectors, barriers         2 KiB      2 KiB
 *
 * Persistent: one CTA a multiprocessor; work items (work.cuh) come longest first from a counter, the query heads that
 * share keys side by side, so that one key head's K and V stay in L2.  Masked steps come first within an item; the loop
 * after them has no mask code.
 *
 * Read before: fwd_hopper.cuh, fwd_7_roles.cuh.  Read next: bwd_1_naive.cu, docs/worklog_forward.md.
 */
#include "gpu/attention/fwd_7_roles.cuh"

namespace {

using namespace dkv_fwd;

/** Barriers, roles, registers. */
template <class T, int D>
__global__ void __launch_bounds__(shape<D>::threads, 1) forward_roles(const __grid_constant__ arguments a) {
  extern __shared__ uint8_t dynamic[];
  shared_memory<D> &shared = *reinterpret_cast<shared_memory<D> *>(((uintptr_t)dynamic + 1023) & ~(uintptr_t)1023);
  const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP_THREADS, 0);
  if (threadIdx.x == 0) {
    prepare_barriers(shared);
    dkv_tma_prefetch(&a.q);
    dkv_tma_prefetch(&a.k);
    dkv_tma_prefetch(&a.v);
    dkv_tma_prefetch(&a.o);
  }
  __syncthreads();
  if (group == 0) {
    dkv_registers_dec<shape<D>::producer_registers>();
    if (threadIdx.x == 0) produce(shared, a);
  } else {
    dkv_registers_inc<shape<D>::consumer_registers>();
    consume<T>(shared, a, group - 1);
  }
}

/** Launches the kernel for one type and head size. */
template <class T, int D> dkv_status launch(const dkv_attention *problem) {
  arguments a;
  DKV_TRY(make_arguments(&a, problem, shape<D>::rows));
  constexpr size_t bytes = sizeof(shared_memory<D>) + 1024; /* room to start on a 1024-byte boundary */
  int device = 0, processors = 0;
  DKV_CUDA(cudaGetDevice(&device));
  DKV_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  DKV_TRY(dkv_gpu_shared(forward_roles<T, D>, bytes));
  const unsigned grid = (unsigned)dkv_min(processors, a.items);
  forward_roles<T, D><<<grid, shape<D>::threads, bytes, static_cast<cudaStream_t>(problem->stream)>>>(a);
  return dkv_gpu_launched("forward_roles (hopper)");
}

/** Query rows of a tile for this head size. */
int32_t tile_rows(int32_t head_dim) { return head_dim == 64 ? shape<64>::rows : shape<128>::rows; }

} // namespace

extern "C" dkv_status dkv_gpu_fwd_hopper_workspace(const dkv_attention *problem, size_t *bytes) {
  DKV_REQUIRE(problem != nullptr && problem->layout != nullptr && bytes != nullptr, DKV_ERR_NULL,
              "hopper forward: problem, layout and bytes must not be NULL");
  *bytes = dkv_work_bytes(problem->layout, tile_rows(problem->head_dim), KEYS);
  return DKV_OK;
}

extern "C" dkv_status dkv_gpu_fwd_hopper_prepare(const dkv_attention *problem) {
  DKV_REQUIRE(problem != nullptr && problem->layout != nullptr, DKV_ERR_NULL,
              "hopper forward: problem and layout must not be NULL");
  if (problem->layout->rows == 0) return DKV_OK;
  return dkv_work_write(problem->workspace, problem->workspace_bytes, problem->layout, tile_rows(problem->head_dim),
                        KEYS, static_cast<cudaStream_t>(problem->stream));
}

extern "C" dkv_status dkv_gpu_fwd_hopper_run(const dkv_attention *problem) {
  DKV_TRY(check(problem));
  if (problem->layout->rows == 0) return DKV_OK;
  if (problem->dtype == DKV_BF16)
    return problem->head_dim == 64 ? launch<__nv_bfloat16, 64>(problem) : launch<__nv_bfloat16, 128>(problem);
  return problem->head_dim == 64 ? launch<__half, 64>(problem) : launch<__half, 128>(problem);
}
