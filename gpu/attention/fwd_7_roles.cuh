/**
 * @file fwd_7_roles.cuh
 * @brief Rung 7's two roles: one thread that copies, and warpgroups that multiply. They meet at mbarriers only.
 *
 *     mbarriers of a stage    full: one arrival of the producer        empty: arrivals of the consumers
 *       q   2 buffers         and the bytes of Q                       one a thread that has read the item,
 *                                                                      one a warpgroup, once O has left
 *       k   2 stages          and the bytes of a key tile              one a warp
 *       v   2 stages          and the bytes of a value tile            one a warp
 *
 * What the consumers must know travels with the data: the item with Q; with K the vector of its tile (first row,
 * reach).
 *
 * Read before: fwd_hopper.cuh.  Read next: fwd_7_hopper.cu.
 */
#ifndef DKV_FWD_7_ROLES_CUH
#define DKV_FWD_7_ROLES_CUH

#include "gpu/attention/fwd_hopper.cuh"

namespace dkv_fwd {

/** Sizes for head size D. */
template <int D> struct shape {
  static constexpr int groups = D == 64 ? 3 : 2;   /**< consumer warpgroups */
  static constexpr int rows = groups * GROUP_ROWS; /**< query rows of a tile */
  static constexpr int threads = (groups + 1) * GROUP_THREADS;
  static constexpr int stages = 2; /**< of keys and of values */
  static constexpr int producer_registers = D == 64 ? 32 : 40, consumer_registers = D == 64 ? 160 : 232;
};

/** What the producer tells the consumers about an item. */
struct item {
  int32_t row;    /**< first query row; -1: no more items */
  int32_t head;   /**< query head */
  int32_t masked; /**< steps with mask code, >= 1 */
  int32_t full;   /**< steps without */
};

/** The CTA's shared memory; the tiles start on 1024-byte boundaries. */
template <int D> struct shared_memory {
  uint8_t q[2][shape<D>::groups][q_bytes<D>];
  uint8_t k[shape<D>::stages][kv_bytes<D>];
  uint8_t v[shape<D>::stages][kv_bytes<D>];
  alignas(128) uint32_t vectors[shape<D>::stages][(VECTOR + 31) / 32 * 32]; /**< of masked steps */
  item items[2];
  uint64_t q_full[2], q_empty[2];
  uint64_t k_full[shape<D>::stages], k_empty[shape<D>::stages];
  uint64_t v_full[shape<D>::stages], v_empty[shape<D>::stages];
};

/** A place in the rings; both roles start at the beginning and go through the same sequence. */
template <int D> struct rings {
  dkv_ring<2> q;
  dkv_ring<shape<D>::stages> k, v;
};

/** Prepares all barriers. One thread calls it. */
template <int D> __device__ void prepare_barriers(shared_memory<D> &shared) {
  for (int i = 0; i < 2; ++i) {
    dkv_mbarrier_init(dkv_shared_address(&shared.q_full[i]), 1);
    dkv_mbarrier_init(dkv_shared_address(&shared.q_empty[i]), shape<D>::groups * (GROUP_THREADS + 1));
  }
  for (int i = 0; i < shape<D>::stages; ++i) {
    dkv_mbarrier_init(dkv_shared_address(&shared.k_full[i]), 1);
    dkv_mbarrier_init(dkv_shared_address(&shared.k_empty[i]), 4 * shape<D>::groups);
    dkv_mbarrier_init(dkv_shared_address(&shared.v_full[i]), 1);
    dkv_mbarrier_init(dkv_shared_address(&shared.v_empty[i]), 4 * shape<D>::groups);
  }
  dkv_mbarrier_init_fence();
}

/* ------------------------------------------------ producer ------------------------------------------------ */

/** Walks through the key tiles of an item, run by run. */
struct key_walk {
  const dkv_key_run *next_run;
  int32_t tile, left;

  /** First row of the next key tile. */
  __device__ __forceinline__ int32_t next() {
    if (left == 0) {
      const dkv_key_run run = *next_run++;
      tile = run.first;
      left = run.count;
    }
    --left;
    return tile++ * KEYS;
  }
};

/** Loads one key tile and, for a masked step, its vector. */
template <int D>
__device__ __forceinline__ void load_keys(shared_memory<D> &shared, const arguments &a, rings<D> &ring, int32_t row,
                                          int32_t kv_head, bool masked) {
  const uint32_t stage = ring.k.stage, full = dkv_shared_address(&shared.k_full[stage]);
  dkv_mbarrier_wait(dkv_shared_address(&shared.k_empty[stage]), ring.k.parity ^ 1);
  dkv_mbarrier_arrive_expect(full, kv_bytes<D> + (masked ? VECTOR * 4 : 0));
  dkv_tma_load(dkv_shared_address(shared.k[stage]), &a.k, row, kv_head, full);
  if (masked) dkv_tma_load_vector(dkv_shared_address(shared.vectors[stage]), &a.vectors, 0, row / KEYS, full);
  ring.k.next();
}

/** Loads one tile of values. */
template <int D>
__device__ __forceinline__ void load_values(shared_memory<D> &shared, const arguments &a, rings<D> &ring, int32_t row,
                                            int32_t kv_head) {
  const uint32_t stage = ring.v.stage, full = dkv_shared_address(&shared.v_full[stage]);
  dkv_mbarrier_wait(dkv_shared_address(&shared.v_empty[stage]), ring.v.parity ^ 1);
  dkv_mbarrier_arrive_expect(full, kv_bytes<D>);
  dkv_tma_load(dkv_shared_address(shared.v[stage]), &a.v, row, kv_head, full);
  ring.v.next();
}

/** Tells the consumers of an item and loads its queries, into the free buffer of the Q ring. */
template <int D>
__device__ __forceinline__ void load_queries(shared_memory<D> &shared, const arguments &a, rings<D> &ring,
                                             const item &next) {
  const uint32_t stage = ring.q.stage, full = dkv_shared_address(&shared.q_full[stage]);
  shared.items[stage] = next;
  dkv_mbarrier_arrive_expect(full, shape<D>::groups * q_bytes<D>);
#pragma unroll 1
  for (int group = 0; group < shape<D>::groups; ++group)
    dkv_tma_load(dkv_shared_address(shared.q[stage][group]), &a.q, next.row + group * GROUP_ROWS, next.head, full);
  ring.q.next();
}

/**
 * The producer thread: item after item, always as far ahead as there are free stages, in the order K0 Q K1 V0 K2 V1 ...
 * The next item is drawn at the start of this one, its tile read before the last V: neither is waited for.
 */
template <int D> __device__ __forceinline__ void produce(shared_memory<D> &shared, const arguments &a) {
  rings<D> ring;
  const uint32_t sharing = (uint32_t)(a.heads / a.kv_heads), per_kv_head = (uint32_t)a.work.tile_count * sharing;
  uint32_t number = blockIdx.x;
  dkv_query_tile tile = a.work.tiles[number % per_kv_head / sharing];
  for (;;) {
    dkv_mbarrier_wait(dkv_shared_address(&shared.q_empty[ring.q.stage]), ring.q.parity ^ 1);
    if (number >= a.items) {
      shared.items[ring.q.stage].row = -1;
      dkv_mbarrier_arrive(dkv_shared_address(&shared.q_full[ring.q.stage]));
      return;
    }
    const int32_t kv_head = (int32_t)(number / per_kv_head);
    /* the first items are drawn by block number; all blocks together draw `items` times, which brings the counter to 0
     */
    const uint32_t following = gridDim.x + atomicInc(a.work.counter, a.items - 1);
    key_walk walk = {a.work.runs + tile.run, 0, 0};
    int32_t row = walk.next();
    load_keys(shared, a, ring, row, kv_head, true);
    load_queries(shared, a, ring,
                 {tile.row, kv_head * (int32_t)sharing + (int32_t)(number % sharing), tile.masked, tile.full});
#pragma unroll 1
    for (int32_t step = 1; step < tile.masked + tile.full; ++step) {
      const int32_t previous = row;
      row = walk.next();
      load_keys(shared, a, ring, row, kv_head, step < tile.masked);
      load_values(shared, a, ring, previous, kv_head);
    }
    number = following;
    tile = a.work.tiles[number % per_kv_head / sharing];
    load_values(shared, a, ring, row, kv_head);
  }
}

/* ------------------------------------------------ consumers ------------------------------------------------ */

/** Tells the producer that this warp is done with a stage. */
__device__ __forceinline__ void release(uint64_t *barrier) {
  if (threadIdx.x % 32 == 0) dkv_mbarrier_arrive(dkv_shared_address(barrier));
}

/** Masks the scores with the vector that came with the keys, and releases the keys. */
template <int D>
__device__ __forceinline__ void hide_and_release(shared_memory<D> &shared, state<D> &x, uint32_t stage, int32_t row) {
  hide(x, row, shared.vectors[stage]);
  __syncwarp();
  release(&shared.k_empty[stage]);
}

/** First step of an item: scores and weights; there is nothing to accumulate yet. */
template <class T, int D>
__device__ __forceinline__ void first_step(shared_memory<D> &shared, state<D> &x, rings<D> &ring, uint32_t q,
                                           int32_t row, float c) {
  const uint32_t stage = ring.k.stage;
  dkv_mbarrier_wait(dkv_shared_address(&shared.k_full[stage]), ring.k.parity);
  dkv_pin(x.s);
  dkv_wgmma_fence();
  issue_scores<T>(x, q, dkv_shared_address(shared.k[stage]));
  dkv_wgmma_wait<0>();
  dkv_pin(x.s);
  hide_and_release(shared, x, stage, row);
  ring.k.next();
  soften_first<T>(x, c);
}

/** A later step: scores of this key tile and values of the previous one go to the tensor cores together; then softmax.
 */
template <class T, int D, bool masked>
__device__ __forceinline__ void step(shared_memory<D> &shared, state<D> &x, rings<D> &ring, uint32_t q, int32_t row,
                                     float c) {
  const uint32_t k_stage = ring.k.stage, v_stage = ring.v.stage;
  dkv_mbarrier_wait(dkv_shared_address(&shared.k_full[k_stage]), ring.k.parity);
  pin(x);
  dkv_wgmma_fence();
  issue_scores<T>(x, q, dkv_shared_address(shared.k[k_stage]));
  dkv_mbarrier_wait(dkv_shared_address(&shared.v_full[v_stage]), ring.v.parity);
  dkv_wgmma_fence();
  issue_values<T>(x, dkv_shared_address(shared.v[v_stage]));
  dkv_wgmma_wait<1>(); /* the scores are there: the next keys may come while P V runs */
  dkv_pin(x.s);
  if constexpr (masked) hide_and_release(shared, x, k_stage, row);
  else release(&shared.k_empty[k_stage]);
  ring.k.next();
  dkv_wgmma_wait<0>();
  dkv_pin(x.p);
  dkv_pin(x.o);
  release(&shared.v_empty[v_stage]);
  ring.v.next();
  soften<T>(x, c);
}

/** Last product, lse, and O into the place of Q. */
template <class T, int D>
__device__ __forceinline__ void last_step(shared_memory<D> &shared, state<D> &x, rings<D> &ring, uint32_t q,
                                          int32_t row, float *lse, int32_t rows) {
  const uint32_t stage = ring.v.stage;
  dkv_mbarrier_wait(dkv_shared_address(&shared.v_full[stage]), ring.v.parity);
  dkv_pin(x.p);
  dkv_pin(x.o);
  dkv_wgmma_fence();
  issue_values<T>(x, dkv_shared_address(shared.v[stage]));
  float inverse[2];
  close_rows(x, row, lse, rows, inverse);
  dkv_wgmma_wait<0>();
  dkv_pin(x.o);
  release(&shared.v_empty[stage]);
  ring.v.next();
  stage_output<T>(x, inverse, q);
}

/** The item in the Q ring, known to be the same in all lanes: then loop counts and addresses stay in uniform registers.
 */
__device__ __forceinline__ item read_item(const item &from) {
  return {__shfl_sync(0xffffffffu, from.row, 0), from.head, __shfl_sync(0xffffffffu, from.masked, 0),
          __shfl_sync(0xffffffffu, from.full, 0)};
}

/** A consumer warpgroup: item after item, until the producer says that there is none. @param[in] group 0, 1, ... */
template <class T, int D>
__device__ __forceinline__ void consume(shared_memory<D> &shared, const arguments &a, int group) {
  rings<D> ring;
  state<D> x;
  const bool storer = threadIdx.x % GROUP_THREADS == 0;
  bool storing = false; /* is the output in the other Q buffer still being read? */
  for (;; ring.q.next()) {
    dkv_mbarrier_wait(dkv_shared_address(&shared.q_full[ring.q.stage]), ring.q.parity);
    const item now = read_item(shared.items[ring.q.stage]);
    if (now.row < 0) break;
    dkv_mbarrier_arrive(dkv_shared_address(&shared.q_empty[ring.q.stage])); /* the item has been read */
    uint8_t *q_rows = shared.q[ring.q.stage][group];
    const uint32_t q = dkv_shared_address(q_rows);
    if (a.keep != 0xffffffffu || a.flip != 0) change_sign<D>(q_rows, a.keep, a.flip, 1 + group);
    const int32_t first_row = now.row + group * GROUP_ROWS, row = thread_row(first_row);
    first_step<T>(shared, x, ring, q, row, a.c);
    if (storer && storing) {
      dkv_bulk_wait_read();
      dkv_mbarrier_arrive(dkv_shared_address(&shared.q_empty[ring.q.stage ^ 1]));
    }
    __syncwarp();
#pragma unroll 1
    for (int32_t i = 1; i < now.masked; ++i) step<T, D, true>(shared, x, ring, q, row, a.c);
#pragma unroll 1
    for (int32_t i = 0; i < now.full; ++i) step<T, D, false>(shared, x, ring, q, row, a.c);
    last_step<T>(shared, x, ring, q, row, a.lse + (int64_t)now.head * a.rows, a.rows);
    dkv_named_sync(1 + group, GROUP_THREADS);
    if (storer) dkv_tma_store(&a.o, first_row, now.head, q);
    storing = true;
  }
  if (storer) dkv_bulk_wait_read();
}

} // namespace dkv_fwd

#endif
