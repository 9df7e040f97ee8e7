/**
 * @file bwd_5_hopper.cu
 * @brief Key-stationary backward with wgmma, TMA and specialised warps.
 */
#include "gpu/attention/bwd_5_passes.cuh"
#include "gpu/attention/bwd_5_roles.cuh"
#include "gpu/runtime/launch.h"

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
    if (C::helpers > 0 && threadIdx.x % 32 == 0 && warp >= 1 && warp <= C::helpers)
      dkv_bwd5_add_dq<C>(shared, p, warp - 1);
  } else {
    dkv_registers_inc<C::consumer_registers>();
    dkv_bwd5_consume<C>(shared, maps, p);
  }
}

/** Where things lie in the workspace, in bytes from its start; all known from T and the heads but the last three. */
struct dkv_bwd5_space {
  size_t turns, end, minus_lse, delta, sum; /**< the header is at 0, the ticket at 128 */
  size_t turns_bytes, sum_bytes;
  size_t items, tiles, rank, slots;         /**< needs the plan */
  size_t bytes;                             /**< in all; without a plan, up to `items` */
};

/** Takes the next `bytes` of the workspace, 256-byte aligned. */
static size_t dkv_bwd5_take(size_t *total, size_t bytes) {
  const size_t at = *total;
  *total = at + (bytes + 255) / 256 * 256;
  return at;
}

/** Lays out the workspace. @param[in] plan NULL: only what needs no plan. */
template <class C> static dkv_bwd5_space dkv_bwd5_lay(const dkv_attention *a, const dkv_bwd5_plan *plan) {
  dkv_bwd5_space s = {};
  const size_t rows = (size_t)a->layout->rows, heads = (size_t)a->heads, kv_heads = (size_t)a->kv_heads;
  const size_t blocks = (rows + C::queries - 1) / C::queries, tiles = (rows + C::keys - 1) / C::keys;
  size_t total = 256;
  s.turns_bytes = a->deterministic ? (blocks * heads + tiles * kv_heads) * 4 : 0;
  s.sum_bytes = blocks * heads * C::queries * C::D * 4;
  s.turns = dkv_bwd5_take(&total, s.turns_bytes);
  s.end = dkv_bwd5_take(&total, tiles * C::keys * 4);
  s.minus_lse = dkv_bwd5_take(&total, heads * blocks * C::queries * 4);
  s.delta = dkv_bwd5_take(&total, heads * blocks * C::queries * 4);
  s.sum = dkv_bwd5_take(&total, s.sum_bytes);
  if (plan != nullptr) {
    const size_t pairs = (size_t)plan->slots * kv_heads, low = rows * heads / (4 * C::keys);
    s.items = dkv_bwd5_take(&total, plan->items.size() * sizeof(dkv_bwd5_item));
    s.tiles = dkv_bwd5_take(&total, (size_t)plan->slots * 4);
    s.rank = dkv_bwd5_take(&total, plan->rank.size() * 4);
    s.slots = dkv_bwd5_take(&total, pairs > low ? (pairs - low) * 2 * C::keys * C::D * 4 : 0);
  }
  s.bytes = total;
  return s;
}

/** Copies host memory into the workspace, in stream order, and returns when the host memory may go. */
static dkv_status dkv_bwd5_upload(const dkv_attention *a, size_t at, const void *from, size_t bytes) {
  if (bytes == 0) return DKV_OK;
  const cudaStream_t stream = static_cast<cudaStream_t>(a->stream);
  DKV_CUDA(cudaMemcpyAsync(static_cast<char *>(a->workspace) + at, from, bytes, cudaMemcpyHostToDevice, stream));
  DKV_CUDA(cudaStreamSynchronize(stream));
  return DKV_OK;
}

/** Writes header, lists and end[] into the workspace. */
template <class C> static dkv_status dkv_bwd5_prepare(const dkv_attention *a) {
  dkv_bwd5_plan plan;
  DKV_TRY(dkv_bwd5_make_plan(&plan, a, C::queries));
  const dkv_bwd5_space s = dkv_bwd5_lay<C>(a, &plan);
  DKV_REQUIRE(a->workspace != nullptr && a->workspace_bytes >= s.bytes, DKV_ERR_NOMEM,
              "gpu bwd hopper: a workspace of %zu bytes; this layout needs %zu", a->workspace_bytes, s.bytes);
  dkv_bwd5_header header = {};
  header.items = (int32_t)plan.items.size();
  header.slots = plan.slots;
  header.items_at = (int64_t)s.items;
  header.tiles_at = (int64_t)s.tiles;
  header.rank_at = (int64_t)s.rank;
  header.slots_at = (int64_t)s.slots;
  DKV_TRY(dkv_bwd5_upload(a, 0, &header, sizeof header));
  DKV_TRY(dkv_bwd5_upload(a, s.items, plan.items.data(), plan.items.size() * sizeof plan.items[0]));
  DKV_TRY(dkv_bwd5_upload(a, s.tiles, plan.slot_tiles.data(), plan.slot_tiles.size() * 4));
  DKV_TRY(dkv_bwd5_upload(a, s.rank, plan.rank.data(), plan.rank.size() * 4));
  return dkv_bwd5_upload(a, s.end, plan.end.data(), plan.end.size() * 4);
}

/** Fills the kernels' parameters. */
template <class C> static dkv_bwd5_parameters dkv_bwd5_fill(const dkv_attention *a, const dkv_bwd5_space &s) {
  char *const base = static_cast<char *>(a->workspace);
  dkv_bwd5_parameters p = {};
  p.workspace = base;
  p.ticket = reinterpret_cast<int32_t *>(base + 128);
  p.turns = reinterpret_cast<int32_t *>(base + s.turns);
  p.end = reinterpret_cast<const int32_t *>(base + s.end);
  p.minus_lse = reinterpret_cast<float *>(base + s.minus_lse);
  p.delta = reinterpret_cast<float *>(base + s.delta);
  p.sum = reinterpret_cast<float *>(base + s.sum);
  p.low = static_cast<float *>(a->dq);
  p.rows = a->layout->rows;
  p.blocks = (int32_t)dkv_ceil_div(p.rows, C::queries);
  p.heads = a->heads;
  p.kv_heads = a->kv_heads;
  p.group = a->heads / a->kv_heads;
  p.low_slots = (int32_t)dkv_min((int64_t)p.rows * p.heads / (4 * C::keys), INT32_MAX);
  p.scale = (float)a->scale;
  p.scale_log2 = (float)(a->scale * 1.4426950408889634);
  return p;
}

/** Describes the tensors to the copy engine. */
template <class C> static dkv_status dkv_bwd5_map(dkv_bwd5_maps *m, const dkv_attention *a) {
  const int64_t rows = a->layout->rows;
  DKV_TRY(dkv_tma_map(&m->q, a->q, a->dtype, rows, a->heads, C::D, C::queries));
  DKV_TRY(dkv_tma_map(&m->dout, a->dout, a->dtype, rows, a->heads, C::D, C::queries));
  DKV_TRY(dkv_tma_map(&m->k, a->k, a->dtype, rows, a->kv_heads, C::D, C::keys));
  DKV_TRY(dkv_tma_map(&m->v, a->v, a->dtype, rows, a->kv_heads, C::D, C::keys));
  DKV_TRY(dkv_tma_map(&m->dk, a->dk, a->dtype, rows, a->kv_heads, C::D, 64));
  return dkv_tma_map(&m->dv, a->dv, a->dtype, rows, a->kv_heads, C::D, 64);
}

/** Before: delta, zeroed sums, counters and slots. */
template <class C>
static dkv_status dkv_bwd5_before(const dkv_attention *a, const dkv_bwd5_space &s, const dkv_bwd5_parameters &p) {
  using T = typename C::T;
  const cudaStream_t stream = static_cast<cudaStream_t>(a->stream);
  const int32_t padded = p.blocks * C::queries;
  dim3 grid;
  DKV_TRY(dkv_gpu_grid(&grid, dkv_ceil_div(padded, 64), p.heads, 1));
  DKV_CUDA(cudaMemsetAsync(p.ticket, 0, 4, stream));
  if (s.turns_bytes > 0) DKV_CUDA(cudaMemsetAsync(p.turns, 0, s.turns_bytes, stream));
  DKV_CUDA(cudaMemsetAsync(p.sum, 0, s.sum_bytes, stream));
  dkv_bwd5_delta<T, C::D><<<grid, 256, 0, stream>>>(static_cast<const T *>(a->o), static_cast<const T *>(a->dout),
                                                    static_cast<const float *>(a->lse), p.delta, p.minus_lse, p.rows,
                                                    padded, p.heads);
  DKV_TRY(dkv_gpu_launched("dkv_bwd5_delta"));
  dkv_bwd5_clear_slots<C><<<1024, 256, 0, stream>>>(p);
  return dkv_gpu_launched("dkv_bwd5_clear_slots");
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

/** After: slots first, since they may lie in dq, then dq itself. */
template <class C> static dkv_status dkv_bwd5_after(const dkv_attention *a, const dkv_bwd5_parameters &p) {
  using T = typename C::T;
  const cudaStream_t stream = static_cast<cudaStream_t>(a->stream);
  dim3 grid;
  DKV_TRY(dkv_gpu_grid(&grid, p.blocks, p.heads, 1));
  dkv_bwd5_round_slots<C><<<1024, 256, 0, stream>>>(static_cast<T *>(a->dk), static_cast<T *>(a->dv), p);
  DKV_TRY(dkv_gpu_launched("dkv_bwd5_round_slots"));
  dkv_bwd5_round_dq<C><<<grid, 256, 0, stream>>>(static_cast<T *>(a->dq), p);
  return dkv_gpu_launched("dkv_bwd5_round_dq");
}

/** The whole backward. */
template <class C> static dkv_status dkv_bwd5_run(const dkv_attention *a) {
  const dkv_bwd5_space s = dkv_bwd5_lay<C>(a, nullptr);
  DKV_REQUIRE(a->workspace != nullptr && a->workspace_bytes >= s.bytes, DKV_ERR_NOMEM,
              "gpu bwd hopper: a workspace of %zu bytes; this problem needs more than %zu", a->workspace_bytes, s.bytes);
  const dkv_bwd5_parameters p = dkv_bwd5_fill<C>(a, s);
  dkv_bwd5_maps maps;
  DKV_TRY(dkv_bwd5_map<C>(&maps, a));
  DKV_TRY(dkv_bwd5_before<C>(a, s, p));
  DKV_TRY(dkv_bwd5_launch<C>(a, p, maps));
  return dkv_bwd5_after<C>(a, p);
}

/** Workspace of this problem. */
template <class C> static dkv_status dkv_bwd5_size(const dkv_attention *a, size_t *bytes) {
  dkv_bwd5_plan plan;
  DKV_TRY(dkv_bwd5_make_plan(&plan, a, C::queries));
  *bytes = dkv_bwd5_lay<C>(a, &plan).bytes;
  return DKV_OK;
}

/* The configuration of each dtype, head size and mode. */
template <typename T, int D, bool ordered>
using dkv_bwd5_choice =
    dkv_bwd5_config<T, D, D == 128 ? 80 : 128, ordered ? DKV_DQ_ORDERED : DKV_DQ_STAGED, false, false>;

/** Calls `act` (with a value of the chosen configuration's type) for the problem's dtype, head size and mode. */
template <typename T, class Act> static dkv_status dkv_bwd5_choose(const dkv_attention *a, Act act) {
  if (a->head_dim == 64) return a->deterministic ? act(dkv_bwd5_choice<T, 64, true>()) : act(dkv_bwd5_choice<T, 64, false>());
  return a->deterministic ? act(dkv_bwd5_choice<T, 128, true>()) : act(dkv_bwd5_choice<T, 128, false>());
}

template <class Act> static dkv_status dkv_bwd5_dispatch(const dkv_attention *a, Act act) {
  DKV_REQUIRE(a->dtype == DKV_BF16 || a->dtype == DKV_F16, DKV_ERR_UNSUPPORTED,
              "gpu bwd hopper: dtype %s; this kernel takes bf16 and f16", dkv_dtype_name(a->dtype));
  DKV_REQUIRE(a->head_dim == 64 || a->head_dim == 128, DKV_ERR_UNSUPPORTED,
              "gpu bwd hopper: head_dim %d; this kernel takes 64 and 128", a->head_dim);
  return a->dtype == DKV_BF16 ? dkv_bwd5_choose<__nv_bfloat16>(a, act) : dkv_bwd5_choose<__half>(a, act);
}

DKV_BEGIN_C

dkv_status dkv_gpu_bwd_hopper_workspace(const dkv_attention *problem, size_t *bytes) {
  *bytes = 0;
  if (problem->layout->rows == 0) return DKV_OK;
  return dkv_bwd5_dispatch(problem, [&](auto c) { return dkv_bwd5_size<decltype(c)>(problem, bytes); });
}

dkv_status dkv_gpu_bwd_hopper_prepare(const dkv_attention *problem) {
  if (problem->layout->rows == 0) return DKV_OK;
  return dkv_bwd5_dispatch(problem, [&](auto c) { return dkv_bwd5_prepare<decltype(c)>(problem); });
}

dkv_status dkv_gpu_bwd_hopper_run(const dkv_attention *problem) {
  DKV_TRY(dkv_attention_check(problem, DKV_BACKWARD));
  if (problem->layout->rows == 0) return DKV_OK;
  return dkv_bwd5_dispatch(problem, [&](auto c) { return dkv_bwd5_run<decltype(c)>(problem); });
}

DKV_END_C
