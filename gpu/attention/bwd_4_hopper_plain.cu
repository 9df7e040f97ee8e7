/**
 * @file bwd_4_hopper_plain.cu
 * @brief Backward, rung 4: the five products by wgmma on tiles that TMA brings, one thing after another.
 *
 * Previous: bwd_3_mma.cu multiplies 16 x 8 pieces from registers; its warps copy, convert and multiply in turn.
 * Idea:     a warpgroup multiplies 64 rows at a time straight from shared memory, and one instruction loads a whole
 * tile. Keys are the rows of the scores, so P^T and dS^T are already A fragments and dV, dK never leave the registers.
 *
 *     256 threads = two warpgroups of 64 keys.  A step: load the next tiles | S | P | dP | dS | dV, dK, dQ | add dQ
 *
 * Every `|` is a wait of everybody, so the tensor cores rest while the other units work: what rung 5 cures.
 * Predict:  S, dP and the three others are never hidden: half of the rate of rung 5, 300 TFLOP/s.
 * Measured: 452 TFLOP/s at N = 28, P = 16384, R = 2048, H = 32/8, D = 128, bf16 (H200, 2026-11-30)
 *           docs/worklog_backward.md has the other shapes.
 * Remains:  waits; dQ goes to the L2 cache in 16-byte pieces.
 *
 * Read before: bwd_5_step.cuh (both rungs share the pieces of a step), bwd_5_plan.cuh.  Read next: bwd_5_hopper.cu.
 */
#include "gpu/attention/bwd_5_host.cuh"

/** One thread: loads the tiles of step n: Q and dO, lse and delta, all on one barrier. */
template <class C>
__device__ __forceinline__ void dkv_bwd4_load(uint32_t shared, uint32_t n, int32_t step, int32_t head,
                                              const dkv_bwd5_maps &maps) {
  const uint32_t stage = n & 1, full = dkv_bwd5_barrier<C>(shared, C::q_full + stage);
  dkv_mbarrier_arrive_expect(full, 2 * (C::query_tile + C::queries * 4));
  dkv_tma_load(shared + C::q_at + stage * C::query_tile, &maps.q, step * C::queries, head, full);
  dkv_tma_load(shared + C::do_at + stage * C::query_tile, &maps.dout, step * C::queries, head, full);
  dkv_tma_load_vector(shared + C::lse_at + stage * C::vector, &maps.lse, step * C::queries, head, full);
  dkv_tma_load_vector(shared + C::delta_at + stage * C::vector, &maps.delta, step * C::queries, head, full);
}

/** Waits for the products issued so far. */
__device__ __forceinline__ void dkv_bwd4_finish_products() {
  dkv_wgmma_commit();
  dkv_wgmma_wait<0>();
}

/** One step: 64 keys of this warpgroup against `queries` rows; dQ is added to the fp32 sum at `sum`. */
template <class C>
__device__ __forceinline__ void dkv_bwd4_step(dkv_bwd5_state<C> &state, int32_t tile, int32_t row0, float *sum,
                                              const dkv_bwd5_parameters &p) {
  const uint32_t stage = state.n & 1, shared = dkv_opaque(state.shared);
  const uint32_t q = shared + C::q_at + stage * C::query_tile, dout = shared + C::do_at + stage * C::query_tile;
  const dkv_bwd5_visible visible = dkv_bwd5_look<C>(p.end, tile, row0, state.group, state.thread);
  float s[C::queries / 2], dp[C::queries / 2], dq[C::dq_columns / 2];
  uint32_t p_fragment[C::queries / 4], ds_fragment[C::queries / 4];
  dkv_wgmma_fence();
  dkv_bwd5_scores<C>(s, shared + C::k_at, q, state.group);
  dkv_bwd4_finish_products();
  dkv_pin(s);
  dkv_bwd5_weights<C, true>(s, shared + C::lse_at + stage * C::vector, p, state.thread, visible);
  dkv_bwd5_round<C>(p_fragment, s);
  dkv_wgmma_fence();
  dkv_bwd5_scores<C>(dp, shared + C::v_at, dout, state.group);
  dkv_bwd4_finish_products();
  dkv_pin(dp);
  dkv_bwd5_derivative<C, true>(dp, s, shared + C::delta_at + stage * C::vector, state.thread);
  dkv_bwd5_round<C>(ds_fragment, dp);
  dkv_bwd5_store_ds<C>(ds_fragment, shared + C::ds_at + state.group * C::query_panel, state.thread);
  dkv_fence_async_proxy();
  __syncthreads();
  dkv_wgmma_fence();
  dkv_bwd5_accumulate<C>(state.dv, p_fragment, dout);
  dkv_bwd5_accumulate<C>(state.dk, ds_fragment, q);
  dkv_bwd5_dq_share<C>(dq, shared + C::k_at, shared + C::ds_at, state.group);
  dkv_bwd4_finish_products();
  dkv_pin(dq);
  float *mine = sum + state.group * (C::dq_share / 4) + state.thread * 4;
#pragma unroll
  for (int i = 0; i < C::dq_columns / 8; i++)
    dkv_reduce_add4(mine + i * 512, dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
  state.n++;
}

/** One item: all steps of all query heads, then dK and dV. */
template <class C>
__device__ __forceinline__ void dkv_bwd4_item(dkv_bwd5_state<C> &state, const dkv_bwd5_item &item, int32_t kv_head,
                                              const dkv_bwd5_maps &maps, const dkv_bwd5_parameters &p) {
  const uint32_t first = state.n, steps = (uint32_t)(item.last - item.first), total = steps * p.group;
#pragma unroll
  for (int i = 0; i < C::D / 2; i++) state.dk[i] = state.dv[i] = 0.0f;
#pragma unroll 1
  for (uint32_t done = 0; done < total; done++) {
    const uint32_t coming = done + 1, head = kv_head * p.group + done / steps, step = item.first + done % steps;
    if (threadIdx.x == 0 && coming < total)
      dkv_bwd4_load<C>(state.shared, state.n + 1, item.first + coming % steps, kv_head * p.group + coming / steps,
                       maps);
    dkv_mbarrier_wait(dkv_bwd5_barrier<C>(state.shared, C::q_full + (state.n & 1)), state.n >> 1 & 1);
    float *sum = p.sum + ((int64_t)step * p.heads + head) * (C::queries * C::D);
    dkv_bwd4_step<C>(state, item.tile, (int32_t)step * C::queries, sum, p);
    __syncthreads(); /* everybody is done with this stage and with dS */
  }
  dkv_bwd5_finish<C>(state, maps, p, item, kv_head);
  __syncthreads(); /* ... and with K and V */
}

/** The kernel: each CTA takes every gridDim.x-th item. */
template <class C>
__global__ void __launch_bounds__(256, 1)
    dkv_bwd4_main(const __grid_constant__ dkv_bwd5_maps maps, const __grid_constant__ dkv_bwd5_parameters p) {
  extern __shared__ char raw[];
  dkv_bwd5_state<C> state;
  state.shared = (dkv_shared_address(raw) + 1023) & ~1023u;
  state.n = 0;
  state.group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
  state.thread = threadIdx.x % 128;
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::barriers; i++) dkv_mbarrier_init(dkv_bwd5_barrier<C>(state.shared, i), 1);
    dkv_mbarrier_init_fence();
  }
  __syncthreads();
  const uint32_t full = dkv_bwd5_barrier<C>(state.shared, C::kv_full);
  uint32_t round = 0;
  for (int32_t ticket = blockIdx.x;; ticket += gridDim.x, round++) {
    int32_t index = ticket, kv_head;
    dkv_bwd5_find_work(&index, &kv_head, p);
    if (kv_head >= p.kv_heads) break;
    const dkv_bwd5_item item = p.items[index];
    if (threadIdx.x == 0) {
      dkv_mbarrier_arrive_expect(full, 2 * C::key_tile);
      dkv_tma_load(state.shared + C::k_at, &maps.k, item.tile * C::keys, kv_head, full);
      dkv_tma_load(state.shared + C::v_at, &maps.v, item.tile * C::keys, kv_head, full);
      dkv_bwd4_load<C>(state.shared, state.n, item.first, kv_head * p.group, maps);
    }
    dkv_mbarrier_wait(full, round & 1);
    dkv_bwd4_item<C>(state, item, kv_head, maps, p);
  }
}

/** Launches it on every multiprocessor. */
template <class C>
static dkv_status dkv_bwd4_launch(const dkv_attention *a, const dkv_bwd5_parameters &p, const dkv_bwd5_maps &maps) {
  int device = 0, processors = 0;
  DKV_CUDA(cudaGetDevice(&device));
  DKV_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  DKV_TRY(dkv_gpu_shared(dkv_bwd4_main<C>, C::bytes));
  dkv_bwd4_main<C><<<processors, 256, C::bytes, static_cast<cudaStream_t>(a->stream)>>>(maps, p);
  return dkv_gpu_launched("dkv_bwd4_main");
}

/** The configuration of each dtype and head size; there is no ordered mode. */
template <typename T, int D, bool> using dkv_bwd4_choice = dkv_bwd5_config<T, D, D == 128 ? 64 : 128, false>;

DKV_BEGIN_C

dkv_status dkv_gpu_bwd_wgmma_workspace(const dkv_attention *problem, size_t *bytes) {
  DKV_REQUIRE(bytes != nullptr, DKV_ERR_NULL, "gpu bwd on Hopper: bytes is NULL");
  *bytes = 0;
  return dkv_bwd5_dispatch<dkv_bwd4_choice>(problem, [&](auto c) {
    *bytes = dkv_bwd5_lay<decltype(c)>(problem).bytes;
    return DKV_OK;
  });
}

dkv_status dkv_gpu_bwd_wgmma_prepare(const dkv_attention *problem) {
  return dkv_bwd5_dispatch<dkv_bwd4_choice>(problem, [&](auto c) { return dkv_bwd5_prepare<decltype(c)>(problem); });
}

dkv_status dkv_gpu_bwd_wgmma_run(const dkv_attention *problem) {
  DKV_TRY(dkv_gpu_problem_check(problem, DKV_BACKWARD));
  return dkv_bwd5_dispatch<dkv_bwd4_choice>(
      problem, [&](auto c) { return dkv_bwd5_run_around<decltype(c)>(problem, dkv_bwd4_launch<decltype(c)>); });
}

DKV_END_C
