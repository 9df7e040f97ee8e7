/**
 * @file bwd_5_hopper.cu
 * @brief Backward, rung 5: key-stationary with wgmma and TMA, specialised warps, one queue of work.
 *
 * Previous: bwd_4_hopper_plain.cu issues the same products, but the threads that multiply also load, add dQ and wait.
 * Idea:     a CTA keeps 128 keys of a key head and lets all queries that see them pass by, for all g query heads: dK
 * and dV stay in registers, the prompt's sums over every response included.  Other warps load ahead and carry dQ away.
 *
 *     warpgroup 0   24 registers a thread   warp 0: producer     TMA: K, V; then Q + lse, dO + delta, two stages each
 *                                           warp 1 (2): helper   dQ: shared memory -> bulk add to the fp32 sum in L2
 *     warpgroup 1  240 registers            keys 0..63           dK, dV 128 registers, S and dP 80, P and dS packed
 *     warpgroup 2  240 registers            keys 64..127
 *
 *     a step (80 queries, D = 128), one consumer warpgroup; `|` is a wait
 *
 *       tensor cores   S    dP                        dV      dQ        dK
 *       arithmetic        |  exp -> P  | P (dP - delta) -> dS       |       send dQ
 *                                                     dS of both: barrier
 *
 * Shared memory is drawn in bwd_5_config.cuh, the step in bwd_5_step.cuh, the plan of the queue in bwd_5_plan.cuh.
 *
 * Ordered mode (dkv_attention.deterministic): every (item, step) has a turn at its dQ block, every part of a cut tile
 * one at its slot.  Turns follow the order of the queue, so whoever is waited for has started: no deadlock.  Two
 * helpers alternate, to hide the way to L2 and back.
 *
 * Predict:  80 queries a step need 3200 cycles of products and move 436 KB through shared memory (3400 cycles at 128
 * bytes a cycle); with the exponentials behind dP about 4000, so 650 TFLOP/s of useful work at 1.6 GHz.
 * Measured: 579 TFLOP/s at N = 28, P = 16384, R = 2048, H = 32/8, D = 128, bf16 (H200, 2026-11-30)
 *           docs/worklog_backward.md has the other shapes and the deterministic mode.
 * Remains:  the card is at its 700 W limit in long runs; time follows energy more than cycles.  Halving the traffic of
 * dQ into L2 (two CTAs of a cluster adding up first) is the next thing to try.
 *
 * Read before: bwd_4_hopper_plain.cu, bwd_5_roles.cuh.  Read next: docs/worklog_backward.md.
 */
#include "gpu/attention/bwd_5_host.cuh"

/** The kernel: one resident CTA a multiprocessor; a producer warpgroup and two consumer warpgroups. */
template <class C>
__global__ void __launch_bounds__(C::threads, 1)
    dkv_bwd5_main(const __grid_constant__ dkv_bwd5_maps maps, const __grid_constant__ dkv_bwd5_parameters p) {
  extern __shared__ char raw[];
  const uint32_t shared = (dkv_shared_address(raw) + 1023) & ~1023u;
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::barriers; i++) dkv_mbarrier_init(dkv_bwd5_barrier<C>(shared, i), C::arrivals(i));
    dkv_mbarrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    dkv_registers_dec<C::producer_registers>();
    const int warp = threadIdx.x / 32;
    if (threadIdx.x == 0) dkv_bwd5_produce<C>(shared, maps, p);
    if (threadIdx.x % 32 == 0 && warp >= 1 && warp <= C::helpers) dkv_bwd5_add_dq<C>(shared, p, warp - 1);
  } else {
    dkv_registers_inc<C::consumer_registers>();
    dkv_bwd5_consume<C>(shared, maps, p);
  }
}

/** The main kernel. */
template <class C>
static dkv_status dkv_bwd5_launch(const dkv_attention *a, const dkv_bwd5_parameters &p, const dkv_bwd5_maps &maps) {
  int device = 0, processors = 0;
  DKV_CUDA(cudaGetDevice(&device));
  DKV_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  DKV_TRY(dkv_gpu_shared(dkv_bwd5_main<C>, C::bytes));
  dkv_bwd5_main<C><<<processors, C::threads, C::bytes, static_cast<cudaStream_t>(a->stream)>>>(maps, p);
  return dkv_gpu_launched("dkv_bwd5_main");
}

/** The configuration of each dtype, head size and mode. */
template <typename T, int D, bool ordered> using dkv_bwd5_choice = dkv_bwd5_config<T, D, D == 128 ? 80 : 128, ordered>;

DKV_BEGIN_C

dkv_status dkv_gpu_bwd_hopper_workspace(const dkv_attention *problem, size_t *bytes) {
  DKV_REQUIRE(bytes != nullptr, DKV_ERR_NULL, "gpu bwd on Hopper: bytes is NULL");
  *bytes = 0;
  return dkv_bwd5_dispatch<dkv_bwd5_choice>(problem, [&](auto c) {
    *bytes = dkv_bwd5_lay<decltype(c)>(problem).bytes;
    return DKV_OK;
  });
}

dkv_status dkv_gpu_bwd_hopper_prepare(const dkv_attention *problem) {
  return dkv_bwd5_dispatch<dkv_bwd5_choice>(problem, [&](auto c) { return dkv_bwd5_prepare<decltype(c)>(problem); });
}

dkv_status dkv_gpu_bwd_hopper_run(const dkv_attention *problem) {
  DKV_TRY(dkv_gpu_problem_check(problem, DKV_BACKWARD));
  return dkv_bwd5_dispatch<dkv_bwd5_choice>(
      problem, [&](auto c) { return dkv_bwd5_run_around<decltype(c)>(problem, dkv_bwd5_launch<decltype(c)>); });
}

DKV_END_C
