/**
 * @file bwd_5_config.cuh
 * @brief Tile sizes, shared-memory map, and the parameters of the Hopper backward kernel.
 *
 *     shared memory, D = 128, 80 queries a step         bytes     who writes -> who reads
 *       K, V        128 keys, once a work item        2 x 32 K    TMA -> products
 *       Q, dO       80 queries, two stages each       4 x 20 K    TMA -> products
 *       dS          [query][key], two buffers         2 x 20 K    consumers -> product dQ
 *       dQ          one share of each warpgroup       2 x 20 K    consumers -> bulk reduce
 *       lse, delta  per query, two stages each        4 x 384     TMA -> consumers
 *       mbarriers, the work item
 *
 * Read before: gpu/hopper/wgmma.cuh, bwd_5_plan.cuh.  Read next: bwd_5_step.cuh.
 */
#ifndef DKV_BWD_5_CONFIG_CUH
#define DKV_BWD_5_CONFIG_CUH

#include "gpu/attention/bwd_5_plan.cuh"
#include "gpu/hopper/fragment.cuh"
#include "gpu/hopper/mbarrier.cuh"
#include "gpu/hopper/reduce.cuh"
#include "gpu/hopper/tma.cuh"
#include "gpu/hopper/wgmma.cuh"

/**
 * Everything known at compile time.
 * @tparam T       __nv_bfloat16 or __half
 * @tparam D       head size, 64 or 128
 * @tparam queries query rows of a step
 * @tparam ordered key tiles take turns at adding to dQ: bitwise repeatable
 */
template <typename T_, int D_, int queries_, bool ordered_> struct dkv_bwd5_config {
  using T = T_;
  static constexpr int D = D_;
  static constexpr int queries = queries_;
  static constexpr bool ordered = ordered_;
  static constexpr int keys = DKV_BWD5_KEYS; /**< keys of a tile: 64 for each of the two consumer warpgroups */
  static constexpr int dq_columns = D == 128 ? queries : queries / 2; /**< N of a warpgroup's share of dQ^T */
  static constexpr int panels = D / DKV_PANEL;
  static constexpr int threads = 384, producer_registers = 24, consumer_registers = 240; /**< 3 x 168 in all */

  static constexpr uint32_t key_panel = keys * DKV_PANEL_ROW_BYTES;      /**< bytes of a panel of K or V */
  static constexpr uint32_t query_panel = queries * DKV_PANEL_ROW_BYTES; /**< bytes of a panel of Q, dO or dS */
  static constexpr uint32_t key_tile = panels * key_panel;
  static constexpr uint32_t query_tile = panels * query_panel;
  static constexpr uint32_t ds_tile = 2 * query_panel;      /**< 128 keys are two panels */
  static constexpr uint32_t dq_share = 64 * dq_columns * 4; /**< one warpgroup's fp32 part of dQ^T */
  static constexpr uint32_t vector = (queries * 4 + 127) / 128 * 128;

  static constexpr uint32_t k_at = 0, v_at = k_at + key_tile;
  static constexpr uint32_t q_at = v_at + key_tile, do_at = q_at + 2 * query_tile;
  static constexpr uint32_t ds_at = do_at + 2 * query_tile;
  static constexpr uint32_t dq_at = ds_at + 2 * ds_tile;
  static constexpr uint32_t lse_at = dq_at + 2 * dq_share;
  static constexpr uint32_t delta_at = lse_at + 2 * vector;
  static constexpr uint32_t barriers_at = delta_at + 2 * vector;
  static constexpr uint32_t work_at = barriers_at + 24 * 8;
  static constexpr uint32_t bytes = work_at + 64 + 1024; /**< 1024: to align the start ourselves */
  static_assert(bytes <= 232448, "more shared memory than a block may have");
  static_assert(queries % 16 == 0 && queries <= 128 && (D == 64 || D == 128), "");

  /* mbarriers, as indices from barriers_at: of Q and dO one a stage, of dQ one for [even or odd step][warpgroup] */
  static constexpr int kv_full = 0, q_full = 1, q_empty = 3, do_full = 5, do_empty = 7, dq_full = 9, dq_empty = 13;
  static constexpr int kv_empty = 17, barriers = 18;
  static constexpr int helpers = ordered ? 2 : 1; /**< threads that add dQ */

  /** Arrivals that end a phase of mbarrier i: data has one announcer; a freed buffer hears both warpgroups. */
  static __device__ __forceinline__ uint32_t arrivals(int i) {
    if (i == kv_empty) return 256 + helpers; /* whoever has read the item, and K and V */
    if (i >= dq_full && i < dq_full + 4) return 128;
    return i == q_empty || i == q_empty + 1 || i == do_empty || i == do_empty + 1 ? 2 : 1;
  }
};

/** Named barriers. */
enum { DKV_BWD5_BAR_DS = 1, DKV_BWD5_BAR_GROUP = 2 /* and 3: one a consumer warpgroup */ };

/** Start of the workspace, written by prepare(): the lengths of the layout's lists. */
struct dkv_bwd5_header {
  int32_t items; /**< length of the item list */
  int32_t early; /**< how many of them, the first ones, are handed out for every key head before the others */
  int32_t slots; /**< key tiles that are cut */
};

/** What the kernels are given besides the tensor maps. */
struct dkv_bwd5_parameters {
  const dkv_bwd5_header *header;
  const dkv_bwd5_item *items; /**< [items] */
  const int32_t *tiles;       /**< [slots] key tile of each slot */
  const int32_t *rank;        /**< ordered: turn of each (item, step) at the step's dQ block */
  const int32_t *end;         /**< [tiles * 128] end[j]; j itself for j >= T, so that nobody sees those */
  int32_t *ticket;            /**< next item of the queue */
  int32_t *turns;     /**< ordered: [blocks][H] turn counters of dQ, then [slots][Hkv][2 warpgroups] of cut tiles */
  int64_t turn_count; /**< counters to clear */
  float *minus_lse;   /**< [H][blocks * queries] -lse log2(e) */
  float *delta;       /**< [H][blocks * queries] sum of do o */
  float *sum;         /**< [blocks][H] blocks of queries x D sums of dQ, in fragment order */
  float *slots; /**< [slots][Hkv] sums of dK, then dV, in fragment order: the dq output, which nobody needs before the
                   end, when they have been rounded */
  int32_t rows, blocks;           /**< T; ceil(T / queries) */
  int32_t heads, kv_heads, group; /**< H, Hkv, H / Hkv */
  float scale;                    /**< c */
  float scale_log2;               /**< c log2(e) */
};

/** Floats of a slot and key head: dK, then dV. */
template <class C> constexpr int64_t dkv_bwd5_slot_size = 2 * C::keys *C::D;

#endif
