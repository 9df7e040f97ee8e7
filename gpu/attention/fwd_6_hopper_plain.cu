/**
 * @file fwd_6_hopper_plain.cu
 * @brief Forward rung 6: Hopper's two engines, TMA and wgmma, used in turn.
 *
 * Previous   fwd_5_pipeline.cu: a warp multiplies 16 x 8 tiles from registers that it has to fill itself.
 * Idea       one thread orders a whole tile from the copy engine; a warpgroup's product of 64 x 128 reads it where it
 *            lands.  No thread loads an operand, no thread computes an address of one.
 *
 *              copies         K0 V0 K1 V1                                 | K2 V2   ordered by thread 0, two stages
 *              2 x 64 rows    S0 = Q K0 . softmax . O += P0 V0 . barrier | S1 = Q K1 . softmax . O += P1 V1 . ...
 *                             every product is waited for (.)
 *
 * Predict    D = 128: 350 to 450 TFLOP/s: alone on its multiprocessor, a block leaves the tensor cores idle in softmax.
 * Measured   569 TFLOP/s at N = 28, P = 16384, R = 2048, H = 32/8, D = 128, bf16 (H200, 2026-11-30)
 *            docs/worklog_forward.md has the other shapes.
 * Remains    that idleness, and the barrier at which everybody waits before a stage is loaded again (rung 7).
 *
 * Roles: block = 2 warpgroups, 128 query rows of one head; thread 0 also copies.
 * Registers: s 64, p 32, o D/2 a thread, as in rung 7.
 * Shared memory: Q 2 x 64 rows | K, V 2 stages of 128 rows | barriers     D = 128: 160 KiB     D = 64: 80 KiB
 * Barriers: an mbarrier for Q and one a stage, filled by TMA; __syncthreads before a stage is loaded again.
 *
 * Read before: fwd_hopper.cuh.  Read next: fwd_7_hopper.cu.
 */
#include "gpu/attention/fwd_hopper.cuh"

namespace {

using namespace dkv_fwd;

constexpr int GROUPS = 2, ROWS = GROUPS * GROUP_ROWS, THREADS = GROUPS * GROUP_THREADS, STAGES = 2;

/** The block's shared memory; the tiles start on 1024-byte boundaries. */
template <int D> struct plain_memory {
  uint8_t q[GROUPS][q_bytes<D>];
  uint8_t k[STAGES][kv_bytes<D>];
  uint8_t v[STAGES][kv_bytes<D>];
  uint64_t q_full, kv_full[STAGES];
};

/** First key row of step `step` of a query tile: a walk over its runs, which are few. */
__device__ __forceinline__ int32_t key_row(const dkv_key_run *run, int32_t step) {
  while (step >= run->count) step -= (run++)->count;
  return (run->first + step) * KEYS;
}

/** Orders keys and values of one step. One thread calls it. */
template <int D>
__device__ __forceinline__ void load_step(plain_memory<D> &shared, const arguments &a, int stage, int32_t row,
                                          int32_t kv_head) {
  const uint32_t full = dkv_shared_address(&shared.kv_full[stage]);
  dkv_mbarrier_arrive_expect(full, 2 * kv_bytes<D>);
  dkv_tma_load(dkv_shared_address(shared.k[stage]), &a.k, row, kv_head, full);
  dkv_tma_load(dkv_shared_address(shared.v[stage]), &a.v, row, kv_head, full);
}

/** Orders the queries and the first stages. One thread calls it. */
template <int D>
__device__ __forceinline__ void begin(plain_memory<D> &shared, const arguments &a, const dkv_query_tile &tile,
                                      const dkv_key_run *runs, int32_t head, int32_t kv_head) {
  dkv_mbarrier_init(dkv_shared_address(&shared.q_full), 1);
  for (int i = 0; i < STAGES; ++i) dkv_mbarrier_init(dkv_shared_address(&shared.kv_full[i]), 1);
  dkv_mbarrier_init_fence();
  const uint32_t full = dkv_shared_address(&shared.q_full);
  dkv_mbarrier_arrive_expect(full, GROUPS * q_bytes<D>);
  for (int i = 0; i < GROUPS; ++i)
    dkv_tma_load(dkv_shared_address(shared.q[i]), &a.q, tile.row + i * GROUP_ROWS, head, full);
  for (int i = 0; i < STAGES && i < tile.masked + tile.full; ++i) load_step(shared, a, i, key_row(runs, i), kv_head);
}

/** One step: scores, softmax, values, each waited for. */
template <class T, int D>
__device__ __forceinline__ void plain_step(plain_memory<D> &shared, state<D> &x, const arguments &a, uint32_t q,
                                           int stage, int32_t row, int32_t key, bool first, bool masked) {
  pin(x);
  dkv_wgmma_fence();
  issue_scores<T>(x, q, dkv_shared_address(shared.k[stage]));
  dkv_wgmma_wait<0>();
  dkv_pin(x.s);
  if (masked) hide(x, row, a.work.vectors + (int64_t)(key / KEYS) * VECTOR);
  if (first) soften_first<T>(x, a.c);
  else soften<T>(x, a.c);
  pin(x);
  dkv_wgmma_fence();
  issue_values<T>(x, dkv_shared_address(shared.v[stage]));
  dkv_wgmma_wait<0>();
  dkv_pin(x.o);
}

template <class T, int D>
__global__ void __launch_bounds__(THREADS, 1) forward_plain(const __grid_constant__ arguments a) {
  extern __shared__ uint8_t dynamic[];
  plain_memory<D> &shared = *reinterpret_cast<plain_memory<D> *>(((uintptr_t)dynamic + 1023) & ~(uintptr_t)1023);
  const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP_THREADS, 0);
  const int32_t head = (int32_t)(blockIdx.x % (uint32_t)a.heads), kv_head = head / (a.heads / a.kv_heads);
  const dkv_query_tile tile = a.work.tiles[blockIdx.x / (uint32_t)a.heads];
  const dkv_key_run *runs = a.work.runs + tile.run;
  const int32_t steps = tile.masked + tile.full, row = thread_row(tile.row + group * GROUP_ROWS);
  const uint32_t q = dkv_shared_address(shared.q[group]);
  if (threadIdx.x == 0) begin(shared, a, tile, runs, head, kv_head);
  __syncthreads();
  dkv_mbarrier_wait(dkv_shared_address(&shared.q_full), 0);
  if (a.keep != 0xffffffffu || a.flip != 0) change_sign<D>(shared.q[group], a.keep, a.flip, 1 + group);
  state<D> x;
  dkv_ring<STAGES> ring;
#pragma unroll 1
  for (int32_t step = 0; step < steps; ++step, ring.next()) {
    dkv_mbarrier_wait(dkv_shared_address(&shared.kv_full[ring.stage]), ring.parity);
    plain_step<T>(shared, x, a, q, (int)ring.stage, row, key_row(runs, step), step == 0, step < tile.masked);
    __syncthreads(); /* everybody has read this stage */
    if (threadIdx.x == 0 && step + STAGES < steps)
      load_step(shared, a, (int)ring.stage, key_row(runs, step + STAGES), kv_head);
  }
  float inverse[2];
  close_rows(x, row, a.lse + (int64_t)head * a.rows, a.rows, inverse);
  stage_output<T>(x, inverse, q);
  dkv_named_sync(1 + group, GROUP_THREADS);
  if (threadIdx.x % GROUP_THREADS == 0) {
    dkv_tma_store(&a.o, tile.row + group * GROUP_ROWS, head, q);
    dkv_bulk_wait_read();
  }
}

/** Launches the kernel for one type and head size: the longest query tiles first. */
template <class T, int D> dkv_status launch(const dkv_attention *problem) {
  arguments a;
  DKV_TRY(make_arguments(&a, problem, ROWS));
  constexpr size_t bytes = sizeof(plain_memory<D>) + 1024;
  DKV_TRY(dkv_gpu_shared(forward_plain<T, D>, bytes));
  forward_plain<T, D><<<a.items, THREADS, bytes, static_cast<cudaStream_t>(problem->stream)>>>(a);
  return dkv_gpu_launched("forward_plain (wgmma)");
}

} // namespace

extern "C" dkv_status dkv_gpu_fwd_wgmma_workspace(const dkv_attention *problem, size_t *bytes) {
  DKV_REQUIRE(problem != nullptr && problem->layout != nullptr && bytes != nullptr, DKV_ERR_NULL,
              "wgmma forward: problem, layout and bytes must not be NULL");
  *bytes = dkv_work_bytes(problem->layout, ROWS, KEYS);
  return DKV_OK;
}

extern "C" dkv_status dkv_gpu_fwd_wgmma_prepare(const dkv_attention *problem) {
  DKV_REQUIRE(problem != nullptr && problem->layout != nullptr, DKV_ERR_NULL,
              "wgmma forward: problem and layout must not be NULL");
  if (problem->layout->rows == 0) return DKV_OK;
  return dkv_work_write(problem->workspace, problem->workspace_bytes, problem->layout, ROWS, KEYS,
                        static_cast<cudaStream_t>(problem->stream));
}

extern "C" dkv_status dkv_gpu_fwd_wgmma_run(const dkv_attention *problem) {
  DKV_TRY(check(problem));
  if (problem->layout->rows == 0) return DKV_OK;
  if (problem->dtype == DKV_BF16)
    return problem->head_dim == 64 ? launch<__nv_bfloat16, 64>(problem) : launch<__nv_bfloat16, 128>(problem);
  return problem->head_dim == 64 ? launch<__half, 64>(problem) : launch<__half, 128>(problem);
}
