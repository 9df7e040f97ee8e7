/**
 * @file fwd_7_hopper.cu
 * @brief Forward, rung 7: specialised warps. One warp copies, the others multiply, and softmax hides behind the products.
 *
 *     S = Q K^T     m = max S     P = exp2(c S - c m)     l = sum P     O = P V     o = O / l     lse = (c m + log2 l) ln 2
 *
 * A CTA is one producer warpgroup (one thread of it works) and `groups` consumer warpgroups of 64 query rows each:
 *
 *     producer     K0  Q  K1  V0  K2  V1 ...           by TMA into rings; waits only for free stages
 *     consumer 0   S1, PV0 | softmax 1 | S2, PV1 | softmax 2 | ...
 *     consumer 1             S1, PV0   | softmax 1 | S2, PV1 | ...       while 0 is in its softmax (named barriers "turn")
 *
 * Two overlaps: within a warpgroup the product P V of the previous step runs beside the scores of this one; between
 * warpgroups a turn barrier lets one issue products while another computes exponentials.  Both are needed.
 *
 *     shared memory, D = 128                registers of a consumer thread
 *     Q   2 x 64 rows x groups   64 KB      scores S    64 floats: 64 rows x 128 keys of the warpgroup
 *         then O, in the same place         weights P   32, two 16-bit each (A operand of P V)
 *     K   stages x 128 rows      64 KB      output O    D / 2 floats
 *     V   stages x 128 rows      64 KB      max, sum    2 + 2
 *     reach of the keys of a stage, barriers
 *
 * Persistent: work items (work.cuh) come longest first from a counter; masked steps come first within an item, so the second
 * loop has no mask code.  Row i sees key j when (uint32_t)(i - j) < reach[j].  The weights of hidden keys are exactly 0.
 *
 * A scale below zero changes the sign of Q in shared memory, a scale of zero clears Q; then c > 0 and max S is max c S.
 *
 * Previous: fwd_5_pipeline.cu, where one warp does everything in turn.
 * Idea: the tensor cores never wait for a copy, an exponential or an epilogue.
 * Read before: gpu/hopper/{fragment,wgmma,mbarrier,tma,work}.cuh.  Read next: bwd_5_hopper.cu, docs/worklog_forward.md.
 */
#include <math.h>

#include "common/attention.h"
#include "gpu/hopper/fragment.cuh"
#include "gpu/hopper/mbarrier.cuh"
#include "gpu/hopper/tma.cuh"
#include "gpu/hopper/wgmma.cuh"
#include "gpu/hopper/work.cuh"
#include "gpu/runtime/launch.h"

/** Keys of a tile, rows of a consumer warpgroup, threads of a warpgroup. */
enum { KEYS = 128, GROUP_ROWS = 64, GROUP_THREADS = 128 };

/** Named barrier of the first consumer warpgroup, for its own 128 threads; the next ones follow. */
enum { BARRIER_GROUP = 1 };

/** How far a score may lie above its row's shift, in powers of two; the shift of a row that has seen no key. */
#define SLACK 8.0f
#define UNSEEN -1e30f


/** Sizes for head size D. */
template <int D> struct forward_shape {
  static constexpr int groups = D == 64 ? 3 : 2;            /**< consumer warpgroups */
  static constexpr int rows = groups * GROUP_ROWS;          /**< query rows of a tile */
  static constexpr int threads = (groups + 1) * GROUP_THREADS;
  static constexpr int k_stages = D == 64 ? 4 : 2;
  static constexpr int v_stages = D == 64 ? 4 : 2;
  static constexpr int producer_registers = groups == 3 ? 32 : 40;
  static constexpr int consumer_registers = groups == 3 ? 160 : 232;
  static constexpr int q_bytes = GROUP_ROWS * D * 2;        /**< of one warpgroup */
  static constexpr int kv_bytes = KEYS * D * 2;             /**< of one stage */
};

/** What the producer tells the consumers about an item. */
struct forward_item {
  int32_t row;    /**< first query row; -1: no more items */
  int32_t head;   /**< query head */
  int32_t masked; /**< steps with mask code, >= 1 */
  int32_t full;   /**< steps without */
};

/** The CTA's shared memory; the tiles start on 1024-byte boundaries. */
template <int D> struct forward_shared {
  using shape = forward_shape<D>;
  uint8_t q[2][shape::groups][shape::q_bytes];
  uint8_t k[shape::k_stages][shape::kv_bytes];
  uint8_t v[shape::v_stages][shape::kv_bytes];
  uint32_t reach[shape::k_stages][KEYS];
  int32_t key_row[shape::k_stages]; /**< first key row of a stage, for the mask */
  forward_item item[2];
  uint64_t q_full[2], q_empty[2];
  uint64_t k_full[shape::k_stages], k_empty[shape::k_stages];
  uint64_t v_full[shape::v_stages], v_empty[shape::v_stages];
};

/** Kernel arguments. */
struct forward_arguments {
  CUtensorMap q, k, v, o;
  dkv_work work;
  float *lse;
  int32_t rows;      /**< T */
  int32_t heads;     /**< H */
  int32_t kv_heads;  /**< Hkv */
  uint32_t items;    /**< query tiles x H */
  float c;           /**< |scale| log2(e), or 1 when scale is 0 */
  uint32_t keep;     /**< Q's bits are (q & keep) ^ flip, two elements at a time */
  uint32_t flip;
};

/* ------------------------------------------------ producer ------------------------------------------------ */

/** Walks through the key tiles of an item, run by run. */
struct forward_walk {
  const dkv_key_run *next_run;
  int32_t tile, left;

  __device__ __forceinline__ int32_t next() {
    if (left == 0) {
      const dkv_key_run run = *next_run++;
      tile = run.first;
      left = run.count;
    }
    --left;
    return tile++;
  }
};

/** The producer's place in the rings. */
template <int D> struct forward_rings {
  dkv_ring<2> q;
  dkv_ring<forward_shape<D>::k_stages> k;
  dkv_ring<forward_shape<D>::v_stages> v;
};

/** Loads one key tile and, for a masked step, the reach of its keys. */
template <int D>
__device__ __forceinline__ void load_keys(forward_shared<D> &shared, const forward_arguments &a, forward_rings<D> &ring,
                                          int32_t row, int32_t kv_head, bool masked) {
  const uint32_t stage = ring.k.stage, full = dkv_shared_address(&shared.k_full[stage]);
  dkv_mbarrier_wait(dkv_shared_address(&shared.k_empty[stage]), ring.k.parity ^ 1);
  shared.key_row[stage] = row;
  dkv_mbarrier_arrive_expect(full, forward_shape<D>::kv_bytes + (masked ? KEYS * 4 : 0));
  dkv_tma_load(dkv_shared_address(shared.k[stage]), &a.k, row, kv_head, full);
  if (masked) dkv_bulk_load(dkv_shared_address(shared.reach[stage]), a.work.reach + row, KEYS * 4, full);
  ring.k.next();
}

/** Loads one tile of values. */
template <int D>
__device__ __forceinline__ void load_values(forward_shared<D> &shared, const forward_arguments &a, forward_rings<D> &ring,
                                            int32_t row, int32_t kv_head) {
  const uint32_t stage = ring.v.stage, full = dkv_shared_address(&shared.v_full[stage]);
  dkv_mbarrier_wait(dkv_shared_address(&shared.v_empty[stage]), ring.v.parity ^ 1);
  dkv_mbarrier_arrive_expect(full, forward_shape<D>::kv_bytes);
  dkv_tma_load(dkv_shared_address(shared.v[stage]), &a.v, row, kv_head, full);
  ring.v.next();
}

/** The producer thread: item after item, always as far ahead as there are free stages. */
template <int D> __device__ __forceinline__ void produce(forward_shared<D> &shared, const forward_arguments &a) {
  using shape = forward_shape<D>;
  forward_rings<D> ring;
  const uint32_t sharing = (uint32_t)(a.heads / a.kv_heads), per_kv_head = (uint32_t)a.work.tile_count * sharing;
  for (uint32_t item = blockIdx.x;;) {
    const uint32_t q_full = dkv_shared_address(&shared.q_full[ring.q.stage]);
    dkv_mbarrier_wait(dkv_shared_address(&shared.q_empty[ring.q.stage]), ring.q.parity ^ 1);
    if (item >= a.items) {
      shared.item[ring.q.stage].row = -1;
      dkv_mbarrier_arrive(q_full);
      return;
    }
    const int32_t kv_head = (int32_t)(item / per_kv_head), head = kv_head * (int32_t)sharing + (int32_t)(item % sharing);
    const dkv_query_tile tile = a.work.tiles[item % per_kv_head / sharing];
    const int32_t steps = tile.masked + tile.full;
    forward_walk walk = {a.work.runs + tile.run, 0, 0};
    int32_t row = walk.next() * KEYS;
    load_keys(shared, a, ring, row, kv_head, true);
    shared.item[ring.q.stage] = {tile.row, head, tile.masked, tile.full};
    dkv_mbarrier_arrive_expect(q_full, shape::groups * shape::q_bytes);
#pragma unroll 1
    for (int group = 0; group < shape::groups; ++group)
      dkv_tma_load(dkv_shared_address(shared.q[ring.q.stage][group]), &a.q, tile.row + group * GROUP_ROWS, head, q_full);
    ring.q.next();
#pragma unroll 1
    for (int32_t step = 1; step < steps; ++step) {
      const int32_t previous = row;
      row = walk.next() * KEYS;
      load_keys(shared, a, ring, row, kv_head, step < tile.masked);
      load_values(shared, a, ring, previous, kv_head);
    }
    item = gridDim.x + atomicInc(a.work.counter, a.items - 1); /* all CTAs together draw `items` times: back to 0 */
    load_values(shared, a, ring, row, kv_head);
  }
}

/* ------------------------------------------------ consumers ------------------------------------------------ */

/** What a consumer thread carries through an item: two rows of scores, weights and outputs. */
template <int D> struct forward_state {
  float s[KEYS / 2];    /**< scores, then weights in fp32 */
  uint32_t p[KEYS / 4]; /**< weights of the previous step in 16 bits */
  float o[D / 2];
  float shift[2]; /**< rows r and r + 8: weights are exp2(c s - shift) */
  float sum[2];   /**< this thread's share of the weights */
};

/** The descriptor `bytes` further on: only the low word changes (addresses end below 2^18, so there is no carry). */
__device__ __forceinline__ uint64_t advance(uint64_t descriptor, uint32_t bytes) {
  return (descriptor & 0xffffffff00000000u) | (uint32_t)((uint32_t)descriptor + (bytes >> 4));
}

/** Issues S = Q K^T of this warpgroup's 64 rows. */
template <class T, int D> __device__ __forceinline__ void issue_scores(float (&s)[KEYS / 2], uint32_t q, uint32_t k) {
  const uint64_t a = dkv_descriptor(q, 16), b = dkv_descriptor(k, 16);
#pragma unroll
  for (int i = 0; i < D / 16; ++i)
    dkv_wgmma_ss<T, KEYS, DKV_K_MAJOR, DKV_K_MAJOR>(
        s, advance(a, i / 4 * GROUP_ROWS * DKV_PANEL_ROW_BYTES + i % 4 * 32),
        advance(b, i / 4 * KEYS * DKV_PANEL_ROW_BYTES + i % 4 * 32), i > 0);
  dkv_wgmma_commit();
}

/** Issues O += P V. */
template <class T, int D>
__device__ __forceinline__ void issue_values(float (&o)[D / 2], const uint32_t (&p)[KEYS / 4], uint32_t v) {
  const uint64_t b = dkv_descriptor(v, KEYS * DKV_PANEL_ROW_BYTES);
#pragma unroll
  for (int i = 0; i < KEYS / 16; ++i)
    dkv_wgmma_rs<T, D, DKV_MN_MAJOR>(o, p + 4 * i, advance(b, i * 16 * DKV_PANEL_ROW_BYTES), 1);
  dkv_wgmma_commit();
}

/** Scores of hidden keys become -inf. @param[in] distance row r of this thread minus the tile's first key and its column. */
__device__ __forceinline__ void hide(float (&s)[KEYS / 2], const uint32_t *reach, int32_t distance) {
#pragma unroll
  for (int i = 0; i < KEYS / 2; i += 4) {
    const uint2 two = *reinterpret_cast<const uint2 *>(reach + 2 * i);
    const int32_t d = distance - 2 * i;
    s[i] = (uint32_t)d < two.x ? s[i] : -INFINITY;
    s[i + 1] = (uint32_t)(d - 1) < two.y ? s[i + 1] : -INFINITY;
    s[i + 2] = (uint32_t)(d + 8) < two.x ? s[i + 2] : -INFINITY;
    s[i + 3] = (uint32_t)(d + 7) < two.y ? s[i + 3] : -INFINITY;
  }
}

/** 2^x, 2^-inf = 0. */
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/**
 * Keeps the shift of each row within 2^8 of the largest score so far.  A shift that is a little low does no harm, so most
 * steps pass without exchanging maxima between the lanes of a row and without touching what was accumulated.
 * @param[out] rescale set when true is returned: factors for what was accumulated under the old shift
 * @return has this warp raised a shift? The same in all its lanes
 */
__device__ __forceinline__ bool raise(const float (&s)[KEYS / 2], float (&shift)[2], float (&sum)[2], float (&rescale)[2],
                                      float c) {
  float top[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float even = fmaxf(s[2 * r], s[2 * r + 1]), odd = fmaxf(s[4 + 2 * r], s[5 + 2 * r]);
#pragma unroll
    for (int i = 8; i < KEYS / 2; i += 8) {
      even = fmaxf(even, fmaxf(s[i + 2 * r], s[i + 2 * r + 1]));
      odd = fmaxf(odd, fmaxf(s[i + 4 + 2 * r], s[i + 5 + 2 * r]));
    }
    top[r] = fmaxf(even, odd) * c;
  }
  if (!__any_sync(0xffffffffu, top[0] > shift[0] + SLACK || top[1] > shift[1] + SLACK)) return false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 1));
    top[r] = fmaxf(top[r], __shfl_xor_sync(0xffffffffu, top[r], 2));
    if (!(top[r] > shift[r] + SLACK)) top[r] = shift[r]; /* every row decides for itself: neighbours change no bit */
    rescale[r] = exp2_fast(shift[r] - top[r]);
    sum[r] *= rescale[r];
    shift[r] = top[r];
  }
  return true;
}

/** Scores to weights in place, s = exp2(c s - shift), and their sums. */
__device__ __forceinline__ void weigh(float (&s)[KEYS / 2], const float (&shift)[2], float (&sum)[2], float c) {
#pragma unroll
  for (int i = 0; i < KEYS / 2; i += 4) {
#pragma unroll
    for (int j = 0; j < 4; ++j) s[i + j] = exp2_fast(fmaf(s[i + j], c, -shift[j / 2]));
    sum[0] += s[i] + s[i + 1];
    sum[1] += s[i + 2] + s[i + 3];
  }
}

/** Tells the producer that this warp is done with a stage. */
__device__ __forceinline__ void release(uint64_t *barrier) {
  if (threadIdx.x % 32 == 0) dkv_mbarrier_arrive(dkv_shared_address(barrier));
}

/** First step of an item: scores and weights; there is nothing to accumulate yet. */
template <class T, int D>
__device__ __forceinline__ void first_step(forward_shared<D> &shared, forward_state<D> &x, forward_rings<D> &ring,
                                           uint32_t q, int32_t row, float c) {
  const uint32_t stage = ring.k.stage;
  dkv_mbarrier_wait(dkv_shared_address(&shared.k_full[stage]), ring.k.parity);
  dkv_pin(x.s);
  dkv_wgmma_fence();
  issue_scores<T, D>(x.s, q, dkv_shared_address(shared.k[stage]));
  dkv_wgmma_wait<0>();
  dkv_pin(x.s);
  const int32_t column = 2 * (threadIdx.x % 4);
  hide(x.s, shared.reach[stage] + column, row - shared.key_row[stage] - column);
  __syncwarp();
  release(&shared.k_empty[stage]);
  ring.k.next();
  float rescale[2];
  x.shift[0] = x.shift[1] = UNSEEN;
  x.sum[0] = x.sum[1] = 0.0f;
  raise(x.s, x.shift, x.sum, rescale, c);
  weigh(x.s, x.shift, x.sum, c);
  dkv_fragment_a<T>(x.p, x.s);
#pragma unroll
  for (int i = 0; i < D / 2; ++i) x.o[i] = 0.0f;
}

/** A later step: scores of this key tile and values of the previous one in flight together, then softmax. */
template <class T, int D, bool masked>
__device__ __forceinline__ void step(forward_shared<D> &shared, forward_state<D> &x, forward_rings<D> &ring, uint32_t q,
                                     int32_t row, float c) {
  const uint32_t k_stage = ring.k.stage, v_stage = ring.v.stage;
  dkv_mbarrier_wait(dkv_shared_address(&shared.k_full[k_stage]), ring.k.parity);
  dkv_pin(x.s);
  dkv_pin(x.p);
  dkv_pin(x.o);
  dkv_wgmma_fence();
  issue_scores<T, D>(x.s, q, dkv_shared_address(shared.k[k_stage]));
  dkv_mbarrier_wait(dkv_shared_address(&shared.v_full[v_stage]), ring.v.parity);
  dkv_wgmma_fence();
  issue_values<T, D>(x.o, x.p, dkv_shared_address(shared.v[v_stage]));
  dkv_wgmma_wait<1>();
  dkv_pin(x.s);
  if constexpr (masked) {
    const int32_t column = 2 * (threadIdx.x % 4);
    hide(x.s, shared.reach[k_stage] + column, row - shared.key_row[k_stage] - column);
    __syncwarp();
  }
  release(&shared.k_empty[k_stage]);
  ring.k.next();
  float rescale[2];
  const bool raised = raise(x.s, x.shift, x.sum, rescale, c);
  dkv_wgmma_wait<0>();
  dkv_pin(x.o);
  dkv_pin(x.p);
  release(&shared.v_empty[v_stage]);
  ring.v.next();
  if (raised) {
#pragma unroll
    for (int i = 0; i < D / 2; ++i) x.o[i] *= rescale[i / 2 % 2];
  }
  weigh(x.s, x.shift, x.sum, c);
  dkv_fragment_a<T>(x.p, x.s);
}

/** Last product, division by the sum, lse, and O into the rows of Q that only this warpgroup uses. */
template <class T, int D>
__device__ __forceinline__ void finish(forward_shared<D> &shared, forward_state<D> &x, forward_rings<D> &ring, uint32_t q,
                                       int32_t row, float *lse, int32_t rows) {
  const uint32_t stage = ring.v.stage;
  dkv_mbarrier_wait(dkv_shared_address(&shared.v_full[stage]), ring.v.parity);
  dkv_pin(x.p);
  dkv_pin(x.o);
  dkv_wgmma_fence();
  issue_values<T, D>(x.o, x.p, dkv_shared_address(shared.v[stage]));
  float inverse[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = x.sum[r] + __shfl_xor_sync(0xffffffffu, x.sum[r], 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    inverse[r] = 1.0f / sum; /* rows at and past T see no key: their lse and o are never written */
    if (threadIdx.x % 4 == 0 && row + 8 * r < rows) lse[row + 8 * r] = (x.shift[r] + log2f(sum)) * 0.69314718055994531f;
  }
  dkv_wgmma_wait<0>();
  dkv_pin(x.o);
  release(&shared.v_empty[stage]);
  ring.v.next();
  const int thread = threadIdx.x % GROUP_THREADS;
#pragma unroll
  for (int i = 0; i < D / 16; ++i) {
    uint32_t packed[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      packed[j] = dkv_pack<T>(x.o[8 * i + 2 * j] * inverse[j % 2], x.o[8 * i + 2 * j + 1] * inverse[j % 2]);
    dkv_stmatrix(dkv_stmatrix_address(q + i / 4 * GROUP_ROWS * DKV_PANEL_ROW_BYTES, 0, thread, i % 4), packed);
  }
  dkv_fence_async_proxy();
}

/** Changes the sign of this warpgroup's rows of Q, or clears them (see the file's header). */
template <int D> __device__ __forceinline__ void change_sign(uint8_t *q, uint32_t keep, uint32_t flip, int group) {
  uint4 *word = reinterpret_cast<uint4 *>(q);
#pragma unroll 1
  for (int i = threadIdx.x % GROUP_THREADS; i < forward_shape<D>::q_bytes / 16; i += GROUP_THREADS) {
    uint4 w = word[i];
    word[i] = make_uint4((w.x & keep) ^ flip, (w.y & keep) ^ flip, (w.z & keep) ^ flip, (w.w & keep) ^ flip);
  }
  dkv_fence_async_proxy();
  dkv_named_sync(BARRIER_GROUP + group, GROUP_THREADS);
}

/** A consumer warpgroup: item after item, until the producer says that there is none. */
template <class T, int D>
__device__ __forceinline__ void consume(forward_shared<D> &shared, const forward_arguments &a, int group) {
  forward_rings<D> ring;
  forward_state<D> x;
  const int thread = threadIdx.x % GROUP_THREADS;
  const bool storer = thread == 0;
  bool storing = false; /* is an output of the other Q buffer still being read? */
  for (;; ring.q.next()) {
    dkv_mbarrier_wait(dkv_shared_address(&shared.q_full[ring.q.stage]), ring.q.parity);
    forward_item item = shared.item[ring.q.stage];
    item.masked = __shfl_sync(0xffffffffu, item.masked, 0); /* the same in all lanes, and now the compiler knows */
    item.full = __shfl_sync(0xffffffffu, item.full, 0);
    item.row = __shfl_sync(0xffffffffu, item.row, 0);
    if (item.row < 0) break;
    uint8_t *q_tile = shared.q[ring.q.stage][group];
    const uint32_t q = dkv_shared_address(q_tile);
    if (a.keep != 0xffffffffu || a.flip != 0) change_sign<D>(q_tile, a.keep, a.flip, group);
    const int32_t first_row = item.row + group * GROUP_ROWS, row = first_row + thread / 32 * 16 + thread % 32 / 4;
    first_step<T, D>(shared, x, ring, q, row, a.c);
    if (storer && storing) {
      dkv_bulk_wait_read();
      dkv_mbarrier_arrive(dkv_shared_address(&shared.q_empty[ring.q.stage ^ 1]));
    }
    __syncwarp();
#pragma unroll 1
    for (int32_t i = 1; i < item.masked; ++i) step<T, D, true>(shared, x, ring, q, row, a.c);
#pragma unroll 1
    for (int32_t i = 0; i < item.full; ++i) step<T, D, false>(shared, x, ring, q, row, a.c);
    finish<T, D>(shared, x, ring, q, row, a.lse + (int64_t)item.head * a.rows, a.rows);
    dkv_named_sync(BARRIER_GROUP + group, GROUP_THREADS);
    if (storer) dkv_tma_store(&a.o, first_row, item.head, q);
    storing = true;
  }
  if (storer) dkv_bulk_wait_read();
}

/** Barriers, roles, registers. */
template <class T, int D>
__global__ void __launch_bounds__(forward_shape<D>::threads, 1) forward_kernel(const __grid_constant__ forward_arguments a) {
  using shape = forward_shape<D>;
  extern __shared__ uint8_t dynamic[];
  forward_shared<D> &shared = *reinterpret_cast<forward_shared<D> *>(((uintptr_t)dynamic + 1023) & ~(uintptr_t)1023);
  const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP_THREADS, 0);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      dkv_mbarrier_init(dkv_shared_address(&shared.q_full[i]), 1);
      dkv_mbarrier_init(dkv_shared_address(&shared.q_empty[i]), shape::groups);
    }
    for (int i = 0; i < shape::k_stages; ++i) {
      dkv_mbarrier_init(dkv_shared_address(&shared.k_full[i]), 1);
      dkv_mbarrier_init(dkv_shared_address(&shared.k_empty[i]), 4 * shape::groups);
    }
    for (int i = 0; i < shape::v_stages; ++i) {
      dkv_mbarrier_init(dkv_shared_address(&shared.v_full[i]), 1);
      dkv_mbarrier_init(dkv_shared_address(&shared.v_empty[i]), 4 * shape::groups);
    }
    dkv_mbarrier_init_fence();
    dkv_tma_prefetch(&a.q);
    dkv_tma_prefetch(&a.k);
    dkv_tma_prefetch(&a.v);
    dkv_tma_prefetch(&a.o);
  }
  __syncthreads();
  if (group == 0) {
    dkv_registers_dec<shape::producer_registers>();
    if (threadIdx.x == 0) produce<D>(shared, a);
  } else {
    dkv_registers_inc<shape::consumer_registers>();
    consume<T, D>(shared, a, group - 1);
  }
}

/* ------------------------------------------------ host ------------------------------------------------ */

/** Query rows of a tile for this head size. */
static int32_t tile_rows(int32_t head_dim) { return head_dim == 64 ? forward_shape<64>::rows : forward_shape<128>::rows; }

/** Launches the kernel for one type and head size. */
template <class T, int D> static dkv_status launch(const forward_arguments &arguments, cudaStream_t stream) {
  constexpr size_t bytes = sizeof(forward_shared<D>) + 1024;
  int device = 0, processors = 0;
  DKV_CUDA(cudaGetDevice(&device));
  DKV_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  DKV_TRY(dkv_gpu_shared(forward_kernel<T, D>, bytes));
  const unsigned grid = (unsigned)dkv_min(processors, arguments.items);
  forward_kernel<T, D><<<grid, forward_shape<D>::threads, bytes, stream>>>(arguments);
  return dkv_gpu_launched("forward_kernel (hopper)");
}

extern "C" dkv_status dkv_gpu_fwd_hopper_workspace(const dkv_attention *problem, size_t *bytes) {
  DKV_REQUIRE(problem != nullptr && bytes != nullptr, DKV_ERR_NULL, "hopper forward: problem and bytes must not be NULL");
  return dkv_work_bytes(bytes, problem->layout, tile_rows(problem->head_dim), KEYS);
}

extern "C" dkv_status dkv_gpu_fwd_hopper_prepare(const dkv_attention *problem) {
  DKV_REQUIRE(problem != nullptr, DKV_ERR_NULL, "hopper forward: problem must not be NULL");
  if (problem->layout->rows == 0) return DKV_OK;
  return dkv_work_write(problem->workspace, problem->workspace_bytes, problem->layout, tile_rows(problem->head_dim), KEYS,
                        static_cast<cudaStream_t>(problem->stream));
}

extern "C" dkv_status dkv_gpu_fwd_hopper_run(const dkv_attention *problem) {
  DKV_TRY(dkv_attention_check(problem, DKV_FORWARD));
  const int32_t rows = problem->layout->rows, dim = problem->head_dim, tile = tile_rows(dim);
  if (rows == 0) return DKV_OK;
  DKV_REQUIRE(problem->workspace != nullptr, DKV_ERR_NULL, "hopper forward: no workspace; call workspace() and prepare()");
  forward_arguments a;
  a.work = dkv_work_view(problem->workspace, rows, tile, KEYS);
  const int64_t items = (int64_t)a.work.tile_count * problem->heads;
  DKV_REQUIRE(items <= INT32_MAX, DKV_ERR_UNSUPPORTED, "hopper forward: %lld query tiles times heads; at most %d",
              (long long)items, INT32_MAX);
  DKV_REQUIRE(fabs(problem->scale) <= 1e30, DKV_ERR_UNSUPPORTED,
              "hopper forward: scale %g; products are kept in fp32, so its size must be at most 1e30", problem->scale);
  DKV_TRY(dkv_tma_map(&a.q, problem->q, problem->dtype, rows, problem->heads, dim, GROUP_ROWS));
  DKV_TRY(dkv_tma_map(&a.o, problem->o, problem->dtype, rows, problem->heads, dim, GROUP_ROWS));
  DKV_TRY(dkv_tma_map(&a.k, problem->k, problem->dtype, rows, problem->kv_heads, dim, KEYS));
  DKV_TRY(dkv_tma_map(&a.v, problem->v, problem->dtype, rows, problem->kv_heads, dim, KEYS));
  a.lse = static_cast<float *>(problem->lse);
  a.rows = rows;
  a.heads = problem->heads;
  a.kv_heads = problem->kv_heads;
  a.items = (uint32_t)items;
  a.c = (float)(fabs(problem->scale) * 1.4426950408889634);
  a.keep = a.c == 0.0f ? 0 : 0xffffffffu;
  a.flip = a.c != 0.0f && problem->scale < 0 ? 0x80008000u : 0;
  if (a.c == 0.0f) a.c = 1.0f;
  const cudaStream_t stream = static_cast<cudaStream_t>(problem->stream);
  if (problem->dtype == DKV_BF16) return dim == 64 ? launch<__nv_bfloat16, 64>(a, stream) : launch<__nv_bfloat16, 128>(a, stream);
  return dim == 64 ? launch<__half, 64>(a, stream) : launch<__half, 128>(a, stream);
}

