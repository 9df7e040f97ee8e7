/**
 * @file bwd_5_host.cuh
 * @brief Host side of the Hopper backward rungs: workspace, tensor maps, and the light kernels before and after the
 * main one.
 *
 *     workspace   header | ticket | turns | end | -lse, delta | fp32 dQ | item list | slot tiles | ranks
 *
 * Every part has a size known from T and the heads (the lists have bounds), so that run() checks the same number of
 * bytes that the caller was told, and needs no plan.  Peak memory is inputs, outputs, gradients and one fp32 dQ, plus
 * about 1 %: the fp32 sums of cut tiles live in the dq output, which nobody needs before the end.
 *
 * Read before: bwd_5_passes.cuh.  Read next: bwd_5_hopper.cu.
 */
#ifndef DKV_BWD_5_HOST_CUH
#define DKV_BWD_5_HOST_CUH

#include "gpu/attention/bwd_5_passes.cuh"
#include "gpu/attention/bwd_5_roles.cuh"
#include "gpu/attention/shape.h"
#include "gpu/runtime/launch.h"

/** Where things lie in the workspace, in bytes from its start; the header is at 0, the ticket at 128. */
struct dkv_bwd5_space {
  size_t turns, end, minus_lse, delta, sum, items, tiles, rank;
  int64_t turn_count;
  size_t bytes; /**< in all */
};

/** Takes the next `bytes` of the workspace, 256-byte aligned. */
static size_t dkv_bwd5_take(size_t *total, int64_t bytes) {
  const size_t at = *total;
  *total = at + ((size_t)bytes + 255) / 256 * 256;
  return at;
}

/** Lays out the workspace. */
template <class C> static dkv_bwd5_space dkv_bwd5_lay(const dkv_attention *a) {
  dkv_bwd5_space s = {};
  const int64_t rows = a->layout->rows, heads = a->heads, kv_heads = a->kv_heads;
  const int64_t blocks = dkv_ceil_div(rows, C::queries), tiles = dkv_ceil_div(rows, C::keys);
  const int64_t items = dkv_bwd5_most_items(rows, C::queries, a->heads, a->kv_heads);
  size_t total = 256;
  s.turn_count = a->deterministic ? blocks * heads + 2 * tiles * kv_heads : 0;
  s.turns = dkv_bwd5_take(&total, s.turn_count * 4);
  s.end = dkv_bwd5_take(&total, tiles * C::keys * 4);
  s.minus_lse = dkv_bwd5_take(&total, heads * blocks * C::queries * 4);
  s.delta = dkv_bwd5_take(&total, heads * blocks * C::queries * 4);
  s.sum = dkv_bwd5_take(&total, heads * blocks * C::queries * C::D * 4);
  s.items = dkv_bwd5_take(&total, items * (int64_t)sizeof(dkv_bwd5_item));
  s.tiles = dkv_bwd5_take(&total, tiles * 4);
  s.rank = dkv_bwd5_take(&total, a->deterministic ? dkv_bwd5_most_steps(rows, C::queries) * 4 : 0);
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
  const dkv_bwd5_space s = dkv_bwd5_lay<C>(a);
  DKV_TRY(dkv_gpu_space_check(a->workspace, a->workspace_bytes, s.bytes));
  dkv_bwd5_plan plan;
  DKV_TRY(dkv_bwd5_make_plan(&plan, a, C::queries));
  const dkv_bwd5_header header = {(int32_t)plan.items.size(), plan.early, plan.slots};
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
  p.header = reinterpret_cast<const dkv_bwd5_header *>(base);
  p.items = reinterpret_cast<const dkv_bwd5_item *>(base + s.items);
  p.tiles = reinterpret_cast<const int32_t *>(base + s.tiles);
  p.rank = reinterpret_cast<const int32_t *>(base + s.rank);
  p.end = reinterpret_cast<const int32_t *>(base + s.end);
  p.ticket = reinterpret_cast<int32_t *>(base + 128);
  p.turns = reinterpret_cast<int32_t *>(base + s.turns);
  p.turn_count = s.turn_count;
  p.minus_lse = reinterpret_cast<float *>(base + s.minus_lse);
  p.delta = reinterpret_cast<float *>(base + s.delta);
  p.sum = reinterpret_cast<float *>(base + s.sum);
  p.slots = static_cast<float *>(a->dq);
  p.rows = a->layout->rows;
  p.blocks = (int32_t)dkv_ceil_div(p.rows, C::queries);
  p.heads = a->heads;
  p.kv_heads = a->kv_heads;
  p.group = a->heads / a->kv_heads;
  p.scale = dkv_gpu_clamp(a->scale);
  p.scale_log2 = dkv_gpu_clamp(a->scale * 1.4426950408889634);
  return p;
}

/** Describes the tensors to the copy engine. */
template <class C>
static dkv_status dkv_bwd5_map(dkv_bwd5_maps *m, const dkv_attention *a, const dkv_bwd5_parameters &p) {
  const int64_t rows = a->layout->rows, padded = (int64_t)p.blocks * C::queries;
  DKV_TRY(dkv_tma_map(&m->q, a->q, a->dtype, rows, a->heads, C::D, C::queries));
  DKV_TRY(dkv_tma_map(&m->dout, a->dout, a->dtype, rows, a->heads, C::D, C::queries));
  DKV_TRY(dkv_tma_map(&m->k, a->k, a->dtype, rows, a->kv_heads, C::D, C::keys));
  DKV_TRY(dkv_tma_map(&m->v, a->v, a->dtype, rows, a->kv_heads, C::D, C::keys));
  DKV_TRY(dkv_tma_map(&m->dk, a->dk, a->dtype, rows, a->kv_heads, C::D, 64));
  DKV_TRY(dkv_tma_map(&m->dv, a->dv, a->dtype, rows, a->kv_heads, C::D, 64));
  DKV_TRY(dkv_tma_map_vectors(&m->lse, p.minus_lse, padded, a->heads, C::queries));
  return dkv_tma_map_vectors(&m->delta, p.delta, padded, a->heads, C::queries);
}

/** Before: delta and zeroes, in one launch, since a small problem's time is mostly launches. */
template <class C> static dkv_status dkv_bwd5_before(const dkv_attention *a, const dkv_bwd5_parameters &p) {
  using T = typename C::T;
  dim3 grid;
  DKV_TRY(dkv_gpu_grid(&grid, dkv_ceil_div((int64_t)p.blocks * C::queries, 64), p.heads, 1));
  dkv_bwd5_begin<C><<<grid, 256, 0, static_cast<cudaStream_t>(a->stream)>>>(
      static_cast<const T *>(a->o), static_cast<const T *>(a->dout), static_cast<const float *>(a->lse), p);
  return dkv_gpu_launched("dkv_bwd5_begin");
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
  const dkv_bwd5_space s = dkv_bwd5_lay<C>(a);
  DKV_TRY(dkv_gpu_space_check(a->workspace, a->workspace_bytes, s.bytes));
  const dkv_bwd5_parameters p = dkv_bwd5_fill<C>(a, s);
  dkv_bwd5_maps maps;
  DKV_TRY(dkv_bwd5_map<C>(&maps, a, p));
  DKV_TRY(dkv_bwd5_before<C>(a, p));
  DKV_TRY(main(a, p, maps));
  return dkv_bwd5_after<C>(a, p);
}

/** Calls `act` with a value of the configuration Choice<T, D, ordered> that the problem's head size and mode ask for.
 */
template <template <typename, int, bool> class Choice, typename T, class Act>
static dkv_status dkv_bwd5_choose(const dkv_attention *a, Act act) {
  if (a->head_dim == 64) return a->deterministic ? act(Choice<T, 64, true>()) : act(Choice<T, 64, false>());
  return a->deterministic ? act(Choice<T, 128, true>()) : act(Choice<T, 128, false>());
}

/**
 * The same, and for its dtype; act is not called when T = 0.
 * @return what act returns; DKV_ERR_NULL; DKV_ERR_RANGE (no heads); DKV_ERR_UNSUPPORTED for any other dtype or head
 * size
 */
template <template <typename, int, bool> class Choice, class Act>
static dkv_status dkv_bwd5_dispatch(const dkv_attention *a, Act act) {
  DKV_REQUIRE(a != nullptr && a->layout != nullptr, DKV_ERR_NULL,
              "gpu bwd on Hopper: problem and layout must not be NULL");
  if (a->layout->rows == 0) return DKV_OK;
  DKV_REQUIRE(a->heads >= 1 && a->kv_heads >= 1, DKV_ERR_RANGE, "gpu bwd on Hopper: H=%d, Hkv=%d; both must be > 0",
              a->heads, a->kv_heads);
  DKV_REQUIRE(a->dtype == DKV_BF16 || a->dtype == DKV_F16, DKV_ERR_UNSUPPORTED,
              "gpu bwd on Hopper: dtype %s; this kernel takes bf16 and f16", dkv_dtype_name(a->dtype));
  DKV_REQUIRE(a->head_dim == 64 || a->head_dim == 128, DKV_ERR_UNSUPPORTED,
              "gpu bwd on Hopper: head_dim %d; this kernel takes 64 and 128", a->head_dim);
  return a->dtype == DKV_BF16 ? dkv_bwd5_choose<Choice, __nv_bfloat16>(a, act)
                              : dkv_bwd5_choose<Choice, __half>(a, act);
}

#endif
