/**
 * @file bwd_5_roles.cuh
 * @brief The warps around the products: the producer that loads, the helpers that add dQ, and what consumers do last.
 *
 * Read before: bwd_5_step.cuh.  Read next: bwd_5_hopper.cu.
 */
#ifndef DKV_BWD_5_ROLES_CUH
#define DKV_BWD_5_ROLES_CUH

#include "gpu/attention/bwd_5_step.cuh"

/** The four input tensors as the copy engine sees them, and the two outputs that whole tiles are stored to. */
struct dkv_bwd5_maps {
  CUtensorMap q, k, v, dout; /**< boxes: `queries` rows of q and dout, 128 of k and v */
  CUtensorMap dk, dv;        /**< boxes of 64 rows */
  CUtensorMap lse, delta;    /**< boxes of `queries` elements of one head */
};

/** Producer: tells the others which item comes next; kv_head -1: none. The announcing arrive on kv_full follows. */
__device__ __forceinline__ void dkv_bwd5_send_work(uint32_t at, int32_t index, int32_t kv_head) {
  asm volatile("st.shared.v2.s32 [%0], {%1, %2};" ::"r"(at), "r"(index), "r"(kv_head) : "memory");
}

/** Reads what dkv_bwd5_send_work wrote. */
__device__ __forceinline__ void dkv_bwd5_read_work(uint32_t at, int32_t *index, int32_t *kv_head) {
  asm volatile("ld.shared.v2.s32 {%0, %1}, [%2];" : "=r"(*index), "=r"(*kv_head) : "r"(at) : "memory");
}

/**
 * Loads a step's tile of Q or dO, with its vector lse or delta, as soon as the consumers have left the stage.
 * @param[in] tile,vector,full,empty where in shared memory: stage 0 of each
 */
template <class C>
__device__ __forceinline__ void dkv_bwd5_load_queries(uint32_t tile, uint32_t vector, uint32_t full, uint32_t empty,
                                                      uint32_t n, const CUtensorMap *map, const CUtensorMap *vectors,
                                                      int32_t step, int32_t head) {
  const uint32_t stage = n & 1;
  full += stage * 8;
  dkv_mbarrier_wait(empty + stage * 8, (n >> 1 & 1) ^ 1);
  dkv_mbarrier_arrive_expect(full, C::query_tile + C::queries * 4);
  dkv_tma_load(tile + stage * C::query_tile, map, step * C::queries, head, full);
  dkv_tma_load_vector(vector + stage * C::vector, vectors, step * C::queries, head, full);
}

/** Loads Q with lse and dO with delta for every step of an item and one head. @return steps done since the start. */
template <class C>
__device__ __forceinline__ uint32_t dkv_bwd5_produce_head(uint32_t start, uint32_t n, const dkv_bwd5_item &item,
                                                          int32_t head, const dkv_bwd5_maps &maps) {
  const int32_t stop = item.last;
#pragma unroll 1
  for (int32_t step = item.first; step < stop; step++, n++) {
    uint32_t shared = dkv_opaque(start), barriers = shared + C::barriers_at;
    dkv_bwd5_load_queries<C>(shared + C::q_at, shared + C::lse_at, barriers + C::q_full * 8, barriers + C::q_empty * 8,
                             n, &maps.q, &maps.lse, step, head);
    shared = dkv_opaque(start), barriers = shared + C::barriers_at;
    dkv_bwd5_load_queries<C>(shared + C::do_at, shared + C::delta_at, barriers + C::do_full * 8,
                             barriers + C::do_empty * 8, n, &maps.dout, &maps.delta, step, head);
  }
  return n;
}

/**
 * Which item a ticket stands for: the early items of key head 0, of key head 1, ..., then the late ones of each.
 * @param[in,out] index   in: the ticket; out: place in the item list
 * @param[out]    kv_head key head; >= Hkv when the queue is empty
 */
__device__ __forceinline__ void dkv_bwd5_find_work(int32_t *index, int32_t *kv_head, const dkv_bwd5_parameters &p) {
  const int32_t early = p.header->early, late = p.header->items - early;
  const int32_t ticket = *index, rest = ticket - early * p.kv_heads;
  if (rest < 0) {
    *kv_head = ticket / early;
    *index = ticket % early;
  } else {
    *kv_head = late == 0 ? p.kv_heads : rest / late;
    *index = late == 0 ? 0 : early + rest % late;
  }
}

/** One thread: takes tickets from the queue, announces the item, loads K and V, then everything for its steps. */
template <class C>
__device__ __forceinline__ void dkv_bwd5_produce(uint32_t start, const dkv_bwd5_maps &maps,
                                                 const dkv_bwd5_parameters &p) {
  int32_t index = atomicAdd(p.ticket, 1), kv_head;
  uint32_t n = 0; /* steps since the start; its highest bit counts the items */
  for (;; n ^= 1u << 31) {
    const uint32_t shared = dkv_opaque(start), full = dkv_bwd5_barrier<C>(shared, C::kv_full);
    dkv_bwd5_find_work(&index, &kv_head, p);
    dkv_mbarrier_wait(dkv_bwd5_barrier<C>(shared, C::kv_empty), (n >> 31) ^ 1);
    if (kv_head >= p.kv_heads) break;
    dkv_bwd5_send_work(shared + C::work_at, index, kv_head);
    dkv_mbarrier_arrive_expect(full, 2 * C::key_tile);
    const int32_t row = p.items[index].tile * C::keys;
    dkv_tma_load(shared + C::k_at, &maps.k, row, kv_head, full);
    dkv_tma_load(shared + C::v_at, &maps.v, row, kv_head, full);
#pragma unroll 1
    for (int32_t g = 0; g < p.group; g++) {
      dkv_bwd5_read_work(shared + C::work_at, &index, &kv_head);
      n = dkv_bwd5_produce_head<C>(start, n, p.items[index], kv_head * p.group + g, maps);
    }
    index = atomicAdd(p.ticket, 1); /* the answer arrives while the last two steps are computed */
  }
  dkv_bwd5_send_work(start + C::work_at, 0, -1);
  dkv_mbarrier_arrive(dkv_bwd5_barrier<C>(start, C::kv_full));
}

/** Adds one step's two shares of dQ to their block of the fp32 sum, each as soon as its warpgroup has written it. */
template <class C> __device__ __forceinline__ void dkv_bwd5_add_step(uint32_t shared, uint32_t n, float *sum) {
  const uint32_t pair = 2 * (n & 1);
#pragma unroll
  for (uint32_t w = 0; w < 2; w++) {
    dkv_mbarrier_wait(dkv_bwd5_barrier<C>(shared, C::dq_full + pair + w), n >> 1 & 1);
    dkv_bulk_reduce_add(sum + w * (C::dq_share / 4), shared + C::dq_at + w * C::dq_share, C::dq_share);
  }
  dkv_bulk_wait_read_but<1>();
  dkv_mbarrier_arrive(dkv_bwd5_barrier<C>(shared, C::dq_empty + pair));
  dkv_bulk_wait_read_but<0>();
  dkv_mbarrier_arrive(dkv_bwd5_barrier<C>(shared, C::dq_empty + pair + 1));
}

/** Ordered: the turn of item number `index` at the dQ block of a step. */
__device__ __forceinline__ int32_t dkv_bwd5_turn(const dkv_bwd5_parameters &p, int32_t index, int32_t step) {
  const volatile dkv_bwd5_item &item = p.items[(int32_t)dkv_opaque(index)];
  return p.rank[item.rank + step];
}

/** Number of a step's dQ block. Unsigned: one instruction, where a signed product would take four and three registers.
 */
__device__ __forceinline__ uint64_t dkv_bwd5_block(const dkv_bwd5_parameters &p, int32_t step, int32_t head) {
  return (uint64_t)dkv_opaque(step) * (uint32_t)p.heads + (uint32_t)head;
}

/** The steps of one head of item number `index`. Ordered, helper 0 takes the even steps and helper 1 the odd ones.
 * @return steps so far. */
template <class C>
__device__ __forceinline__ uint32_t dkv_bwd5_add_head(uint32_t start, uint32_t n, int32_t index, int32_t head,
                                                      const dkv_bwd5_parameters &p, uint32_t helper) {
  const int32_t stop = p.items[index].last;
#pragma unroll 1
  for (int32_t step = p.items[index].first; step < stop; step++, n++) {
    float *sum = p.sum + dkv_bwd5_block(p, step, head) * (C::queries * C::D);
    if constexpr (C::ordered) {
      if ((n & 1) != helper) continue;
      const int32_t turn = dkv_bwd5_turn(p, index, step);
      dkv_turn_wait(p.turns + dkv_bwd5_block(p, step, head), turn);
      dkv_bwd5_add_step<C>(dkv_opaque(start), n, sum);
      dkv_bulk_wait_done();
      dkv_turn_end(p.turns + dkv_bwd5_block(p, step, head), turn);
    } else {
      dkv_bwd5_add_step<C>(dkv_opaque(start), n, sum);
    }
  }
  return n;
}

/** One thread: adds the staged dQ to the fp32 sum, item after item. */
template <class C>
__device__ __forceinline__ void dkv_bwd5_add_dq(uint32_t start, const dkv_bwd5_parameters &p, uint32_t helper) {
  uint32_t n = 0; /* steps since the start; its highest bit counts the items */
  for (;; n ^= 1u << 31) {
    int32_t index, kv_head;
    dkv_mbarrier_wait(dkv_bwd5_barrier<C>(start, C::kv_full), n >> 31);
    dkv_bwd5_read_work(start + C::work_at, &index, &kv_head);
    if (kv_head < 0) break;
#pragma unroll 1
    for (int32_t g = 0; g < p.group; g++) {
      dkv_bwd5_read_work(start + C::work_at, &index, &kv_head);
      n = dkv_bwd5_add_head<C>(start, n, index, kv_head * p.group + g, p, helper);
    }
    dkv_mbarrier_arrive(dkv_bwd5_barrier<C>(start, C::kv_empty));
  }
  dkv_bulk_wait_done();
}

/** A whole tile: rounds this warpgroup's 64 keys of dK or dV once, through shared memory that only it uses, and stores
 * them. */
template <class C>
__device__ __forceinline__ void dkv_bwd5_store(const float (&sum)[C::D / 2], float scale, uint32_t stage,
                                               const CUtensorMap *map, int32_t row, int32_t kv_head,
                                               const dkv_bwd5_state<C> &state) {
#pragma unroll
  for (int k = 0; k < C::D / 16; k++) {
    uint32_t r[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
      r[i] = dkv_pack<typename C::T>(sum[8 * k + 2 * i] * scale, sum[8 * k + 2 * i + 1] * scale);
    dkv_stmatrix(dkv_stmatrix_address(stage + k / 4 * 64 * DKV_PANEL_ROW_BYTES, 0, state.thread, k % 4), r);
  }
  dkv_fence_async_proxy();
  dkv_named_sync(DKV_BWD5_BAR_GROUP + state.group, 128);
  if (state.thread == 0) dkv_tma_store(map, row, kv_head, stage);
}

/** A part of a cut tile: adds this warpgroup's 64 keys of dK or dV to the slot, in fragment order. */
template <class C>
__device__ __forceinline__ void dkv_bwd5_add(const float (&sum)[C::D / 2], float scale, float *slot,
                                             const dkv_bwd5_state<C> &state) {
  float *mine = slot + state.group * 64 * C::D + state.thread * 4;
#pragma unroll
  for (int i = 0; i < C::D / 8; i++)
    dkv_reduce_add4(mine + i * 512, sum[4 * i] * scale, sum[4 * i + 1] * scale, sum[4 * i + 2] * scale,
                    sum[4 * i + 3] * scale);
}

/** Writes dK and dV of the item. */
template <class C>
__device__ __forceinline__ void dkv_bwd5_finish(dkv_bwd5_state<C> &state, const dkv_bwd5_maps &maps,
                                                const dkv_bwd5_parameters &p, const dkv_bwd5_item &item,
                                                int32_t kv_head) {
  dkv_named_sync(DKV_BWD5_BAR_DS, 256); /* the other warpgroup's last dQ has read K */
  if (item.slot < 0) {
    const uint32_t half = state.group * C::key_tile / 2;
    const int32_t row = item.tile * C::keys + state.group * 64;
    dkv_bwd5_store<C>(state.dv, 1.0f, state.shared + C::v_at + half, &maps.dv, row, kv_head, state);
    dkv_bwd5_store<C>(state.dk, p.scale, state.shared + C::k_at + half, &maps.dk, row, kv_head, state);
    if (state.thread == 0) dkv_bulk_wait_read();
    return;
  }
  const int64_t index = (int64_t)item.slot * p.kv_heads + kv_head;
  float *slot = p.slots + index * dkv_bwd5_slot_size<C>;
  int32_t *turn = p.turns + (int64_t)p.blocks * p.heads + 2 * index + state.group; /* the halves of a slot are apart */
  if constexpr (C::ordered) {
    if (state.thread == 0) dkv_turn_wait(turn, item.part);
    dkv_named_sync(DKV_BWD5_BAR_GROUP + state.group, 128);
  }
  dkv_bwd5_add<C>(state.dk, p.scale, slot, state);
  dkv_bwd5_add<C>(state.dv, 1.0f, slot + C::keys * C::D, state);
  if constexpr (C::ordered) {
    dkv_named_sync(DKV_BWD5_BAR_GROUP + state.group, 128);
    if (state.thread == 0) dkv_turn_end(turn, item.part);
  }
}

/** One run of steps [step, stop) of a key tile and a query head. */
template <class C, bool masked>
__device__ __forceinline__ void dkv_bwd5_steps(dkv_bwd5_state<C> &state, int32_t tile, int32_t step, int32_t stop,
                                               const dkv_bwd5_parameters &p) {
#pragma unroll 1
  for (; step < stop; step++) dkv_bwd5_step<C, masked>(state, tile, step * C::queries, p);
}

/** A consumer warpgroup: item after item, from the first score to the last gradient. */
template <class C>
__device__ __forceinline__ void dkv_bwd5_consume(uint32_t shared, const dkv_bwd5_maps &maps,
                                                 const dkv_bwd5_parameters &p) {
  dkv_bwd5_state<C> state;
  state.shared = shared;
  state.n = 0; /* steps since the start; its highest bit counts the items */
  state.group = __shfl_sync(0xffffffffu, threadIdx.x / 128 - 1, 0);
  state.thread = threadIdx.x % 128;
  for (;; state.n ^= 1u << 31) {
    int32_t index, kv_head;
    dkv_mbarrier_wait(dkv_bwd5_barrier<C>(shared, C::kv_full), state.n >> 31);
    dkv_bwd5_read_work(shared + C::work_at, &index, &kv_head);
    if (kv_head < 0) break;
#pragma unroll
    for (int i = 0; i < C::D / 2; i++) state.dk[i] = state.dv[i] = 0.0f;
#pragma unroll 1
    for (int32_t left = 3 * p.group; left > 0; left--) { /* for each head a partial, a full and a partial run */
      dkv_bwd5_read_work(dkv_opaque(shared) + C::work_at, &index, &kv_head);
      const volatile dkv_bwd5_item &item = p.items[index];
      const int run = left % 3;
      if (run == 2) dkv_bwd5_steps<C, false>(state, item.tile, item.full, item.full_end, p);
      else dkv_bwd5_steps<C, true>(state, item.tile, run ? item.full_end : item.first, run ? item.last : item.full, p);
    }
    dkv_bwd5_finish<C>(state, maps, p, p.items[index], kv_head);
    dkv_mbarrier_arrive(dkv_bwd5_barrier<C>(shared, C::kv_empty));
  }
  if (state.thread == 0) dkv_bulk_wait_done();
}

#endif
