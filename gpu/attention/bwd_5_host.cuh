/**
 * @file bwd_5_host.cuh
 * @brief Host side of the Hopper backward rungs: workspace, tensor maps, and the light kernels before and after the
 * main one.
 *
 *     workspace   header | ticket | turns | end | -lse, delta | fp32 dQ | item list | slot tiles | ranks | slots
 *                 known from T and the heads, so that run() needs no plan     | lengths are in the header, on the
 * device
 *
 * Peak memory is inputs, outputs, gradients and one fp32 dQ, plus about 1 %: the fp32 sums of cut tiles live in the dq
 * output, which nobody needs before the end (2 T H D bytes hold the dK and dV of every key as soon as H >= 4 Hkv).
 *
 * Read before: bwd_5_passes.cuh.  Read next: bwd_5_hopper.cu.
 */
#ifndef DKV_BWD_5_HOST_CUH
#define DKV_BWD_5_HOST_CUH

#include "gpu/attention/bwd_5_passes.cuh"
#include "gpu/attention/bwd_5_roles.cuh"
#include "gpu/runtime/launch.h"

/** Where things lie in the workspace, in bytes from its start; all known from T and the heads but the last three. */
struct dkv_bwd5_space {
  size_t turns, end, minus_lse, delta, sum; /**< the header is at 0, the ticket at 128 */
  size_t turns_bytes, sum_bytes;
  size_t items, tiles, rank, slots; /**< needs the plan */
  size_t bytes;                     /**< in all; without a plan, up to `items` */
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
              "gpu bwd on Hopper: a workspace of %zu bytes; this layout needs %zu", a->workspace_bytes, s.bytes);
  dkv_bwd5_header header = {};
  header.items = (int32_t)plan.items.size();
  header.parts = plan.parts;
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

/**
 * The whole backward around a main kernel.
 * @param[in] a    checked problem, T > 0
 * @param[in] main launches the main kernel: (problem, parameters, maps) -> status
 */
template <class C, class Main> static dkv_status dkv_bwd5_run_around(const dkv_attention *a, Main main) {
  const dkv_bwd5_space s = dkv_bwd5_lay<C>(a, nullptr);
  DKV_REQUIRE(a->workspace != nullptr && a->workspace_bytes >= s.bytes, DKV_ERR_NOMEM,
              "gpu bwd on Hopper: a workspace of %zu bytes; this problem needs more than %zu", a->workspace_bytes,
              s.bytes);
  const dkv_bwd5_parameters p = dkv_bwd5_fill<C>(a, s);
  dkv_bwd5_maps maps;
  DKV_TRY(dkv_bwd5_map<C>(&maps, a));
  DKV_TRY(dkv_bwd5_before<C>(a, s, p));
  DKV_TRY(main(a, p, maps));
  return dkv_bwd5_after<C>(a, p);
}

/** Workspace of this problem. */
template <class C> static dkv_status dkv_bwd5_size(const dkv_attention *a, size_t *bytes) {
  dkv_bwd5_plan plan;
  DKV_TRY(dkv_bwd5_make_plan(&plan, a, C::queries));
  *bytes = dkv_bwd5_lay<C>(a, &plan).bytes;
  return DKV_OK;
}

/** Calls `act` with a value of the configuration Choice<T, D, ordered> that the problem's head size and mode ask for.
 */
template <template <typename, int, bool> class Choice, typename T, class Act>
static dkv_status dkv_bwd5_choose(const dkv_attention *a, Act act) {
  if (a->head_dim == 64) return a->deterministic ? act(Choice<T, 64, true>()) : act(Choice<T, 64, false>());
  return a->deterministic ? act(Choice<T, 128, true>()) : act(Choice<T, 128, false>());
}

/** The same, and for its dtype. @return what act returns; DKV_ERR_UNSUPPORTED for any other dtype or head size. */
template <template <typename, int, bool> class Choice, class Act>
static dkv_status dkv_bwd5_dispatch(const dkv_attention *a, Act act) {
  DKV_REQUIRE(a->dtype == DKV_BF16 || a->dtype == DKV_F16, DKV_ERR_UNSUPPORTED,
              "gpu bwd on Hopper: dtype %s; this kernel takes bf16 and f16", dkv_dtype_name(a->dtype));
  DKV_REQUIRE(a->head_dim == 64 || a->head_dim == 128, DKV_ERR_UNSUPPORTED,
              "gpu bwd on Hopper: head_dim %d; this kernel takes 64 and 128", a->head_dim);
  return a->dtype == DKV_BF16 ? dkv_bwd5_choose<Choice, __nv_bfloat16>(a, act)
                              : dkv_bwd5_choose<Choice, __half>(a, act);
}

#endif
