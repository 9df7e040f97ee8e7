/**
 * @file bwd_5_step.cuh
 * @brief One step of a consumer warpgroup: 64 keys against `queries` query rows, five products and the softmax's
 * derivative.
 *
 *     S^T  = K Q^T          shared x shared       P^T  = exp2(c log2(e) S^T - lse log2(e))       in registers
 *     dP^T = V dO^T         shared x shared       dS^T = P^T (dP^T - delta)                      in registers
 *     dV  += P^T dO         registers x shared    accumulators are A fragments: nothing is moved
 *     dK  += dS^T Q         registers x shared
 *     dQ^T = K^T dS^T       shared x shared       dS goes to shared memory once: it needs the keys of both warpgroups
 *
 * The products are transposed so that keys are the rows of the accumulators.  lse and delta then belong to columns.
 *
 * Order, `|` a wait, so that arithmetic always has a product to hide behind:
 *
 *     issue S, dP | exp P | form dS, store it | issue dV | barrier | issue dQ, dK | send dQ |
 *                 S       dP                                                    dQ         dK
 *
 * Read before: bwd_5_config.cuh.  Read next: bwd_5_hopper.cu.
 */
#ifndef DKV_BWD_5_STEP_CUH
#define DKV_BWD_5_STEP_CUH

#include "gpu/attention/bwd_5_config.cuh"

/** What a consumer thread keeps across the steps of an item. */
template <class C> struct dkv_bwd5_state {
  float dk[C::D / 2], dv[C::D / 2]; /**< accumulators: 64 keys x D of this warpgroup */
  uint32_t shared;                  /**< start of the shared-memory map */
  uint32_t n;                       /**< steps done since the start: stage n & 1, parity (n >> 1) & 1 */
  int group;                        /**< 0 or 1: which 64 keys */
  int thread;                       /**< 0..127 inside the warpgroup */
};

/** exp2, 2 ulp, in one instruction. */
__device__ __forceinline__ float dkv_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/**
 * The same value, but the compiler does not know: what is computed from it is computed again in every step, in a few
 * uniform instructions, instead of being kept in registers that the accumulators need.
 */
__device__ __forceinline__ uint32_t dkv_opaque(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

/** Two neighbouring floats of shared memory. */
__device__ __forceinline__ float2 dkv_load_pair(uint32_t shared) {
  float2 r;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(r.x), "=f"(r.y) : "r"(shared));
  return r;
}

template <class C> __device__ __forceinline__ uint32_t dkv_bwd5_barrier(uint32_t shared, uint32_t index) {
  return shared + C::barriers_at + index * 8;
}

/** 64 keys x queries, summed over D: this warpgroup's rows of `keys` (K or V) times `rows` (Q or dO). */
template <class C>
__device__ __forceinline__ void dkv_bwd5_scores(float (&out)[C::queries / 2], uint32_t keys, uint32_t rows, int group) {
  const uint64_t a = dkv_descriptor(keys + group * 64 * DKV_PANEL_ROW_BYTES, 0), b = dkv_descriptor(rows, 0);
#pragma unroll
  for (int k = 0; k < C::D / 16; k++) {
    const uint32_t at_a = k / 4 * C::key_panel + k % 4 * 32, at_b = k / 4 * C::query_panel + k % 4 * 32;
    dkv_wgmma_ss<typename C::T, C::queries, DKV_K_MAJOR, DKV_K_MAJOR>(out, a + dkv_descriptor_step(at_a),
                                                                      b + dkv_descriptor_step(at_b), k > 0);
  }
}

/** 64 keys x D, summed over the step's queries: fragments P^T or dS^T times `rows` (dO or Q). */
template <class C>
__device__ __forceinline__ void dkv_bwd5_accumulate(float (&out)[C::D / 2], const uint32_t (&a)[C::queries / 4],
                                                    uint32_t rows) {
  const uint64_t b = dkv_descriptor(rows, C::query_panel);
#pragma unroll
  for (int k = 0; k < C::queries / 16; k++)
    dkv_wgmma_rs<typename C::T, C::D, DKV_MN_MAJOR>(out, a + 4 * k, b + dkv_descriptor_step(k * 2048), 1);
}

/** This warpgroup's share of dQ^T = K^T dS^T, summed over the tile's 128 keys: 64 of D (or all of 64) x dq_columns
 * queries. */
template <class C>
__device__ __forceinline__ void dkv_bwd5_dq_share(float (&out)[C::dq_columns / 2], uint32_t keys, uint32_t ds,
                                                  int group) {
  const uint32_t own_keys = C::D == 128 ? group * C::key_panel : 0;
  const uint32_t own_rows = C::D == 128 ? 0 : group * C::dq_columns * DKV_PANEL_ROW_BYTES;
  const uint64_t a = dkv_descriptor(keys + own_keys, C::key_panel), b = dkv_descriptor(ds + own_rows, 0);
#pragma unroll
  for (int k = 0; k < C::keys / 16; k++) {
    const uint32_t at_b = k / 4 * C::query_panel + k % 4 * 32;
    dkv_wgmma_ss<typename C::T, C::dq_columns, DKV_MN_MAJOR, DKV_K_MAJOR>(out, a + dkv_descriptor_step(k * 2048),
                                                                          b + dkv_descriptor_step(at_b), k > 0);
  }
}

/** Rows of the two keys of this thread's accumulators, relative to the query of column 0; and how many rows see each.
 */
struct dkv_bwd5_visible {
  int32_t start[2];
  uint32_t span[2];
};

/** Reads what the rule needs, in masked steps only, so that other steps keep no register for it. */
template <class C>
__device__ __forceinline__ dkv_bwd5_visible dkv_bwd5_look(const int32_t *end, int32_t tile, int32_t row0, int group,
                                                          int thread) {
  dkv_bwd5_visible v;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int32_t key = tile * C::keys + group * 64 + dkv_accumulator_row(thread, 2 * i);
    v.start[i] = key - row0 - 2 * (thread & 3);
    v.span[i] = (uint32_t)(end[key] - key);
  }
  return v;
}

/** s becomes P; rule j <= i < end[j] by selection, so that whatever an invisible score is (inf, NaN), its weight is 0.
 */
template <class C, bool masked>
__device__ __forceinline__ void dkv_bwd5_weights(float (&s)[C::queries / 2], uint32_t lse, const dkv_bwd5_parameters &p,
                                                 int thread, const dkv_bwd5_visible &visible) {
  const uint32_t own = dkv_opaque(lse + 8 * (thread & 3));
#pragma unroll
  for (int j = 0; j < C::queries / 8; j++) {
    const float2 minus_lse = dkv_load_pair(own + 32 * j);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float x = fmaf(s[4 * j + i], p.scale_log2, i % 2 ? minus_lse.y : minus_lse.x);
      if (masked) x = (uint32_t)(8 * j + i % 2 - visible.start[i / 2]) < visible.span[i / 2] ? x : -INFINITY;
      s[4 * j + i] = dkv_exp2(x);
    }
  }
}

/** dp becomes dS = P (dP - delta); a weight of 0 gives 0 whatever dP is. */
template <class C, bool masked>
__device__ __forceinline__ void dkv_bwd5_derivative(float (&dp)[C::queries / 2], const float (&p)[C::queries / 2],
                                                    uint32_t delta, int thread) {
  const uint32_t own = dkv_opaque(delta + 8 * (thread & 3));
#pragma unroll
  for (int j = 0; j < C::queries / 8; j++) {
    const float2 d = dkv_load_pair(own + 32 * j);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float ds = p[4 * j + i] * (dp[4 * j + i] - (i % 2 ? d.y : d.x));
      dp[4 * j + i] = masked && p[4 * j + i] == 0.0f ? 0.0f : ds;
    }
  }
}

/** Hands this warpgroup's share of dQ to the helper: thread t's registers 4i..4i+3 are float4 number 128 i + t. */
template <class C>
__device__ __forceinline__ void dkv_bwd5_send_dq(const float (&dq)[C::dq_columns / 2], const dkv_bwd5_state<C> &state) {
  const uint32_t shared = dkv_opaque(state.shared), even = state.n & 1, count = state.n + 1;
  const uint32_t mine = shared + C::dq_at + state.group * C::dq_share + state.thread * 16;
  const uint32_t previous = dkv_bwd5_barrier<C>(shared, C::dq_empty + 2 * (even ^ 1) + state.group);
  dkv_mbarrier_wait(previous, (count >> 1 & 1) ^ 1);
#pragma unroll
  for (int i = 0; i < C::dq_columns / 8; i++)
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(mine + i * 2048), "f"(dq[4 * i]), "f"(dq[4 * i + 1]),
                 "f"(dq[4 * i + 2]), "f"(dq[4 * i + 3])
                 : "memory");
  dkv_fence_async_proxy();
  dkv_mbarrier_arrive(dkv_bwd5_barrier<C>(shared, C::dq_full + 2 * even + state.group));
}

/** Rounds accumulators to fragments. */
template <class C>
__device__ __forceinline__ void dkv_bwd5_round(uint32_t (&fragment)[C::queries / 4], const float (&x)[C::queries / 2]) {
  dkv_fragment_a<typename C::T, C::queries / 2>(fragment, x);
  dkv_pin(fragment);
}

/** dS^T of this warpgroup to shared memory as [query][64 keys], visible to the products of both. */
template <class C>
__device__ __forceinline__ void dkv_bwd5_store_ds(const uint32_t (&ds)[C::queries / 4], uint32_t panel, int thread) {
  const uint32_t own = dkv_opaque(dkv_stmatrix_transposed_address(panel, thread, 0));
#pragma unroll
  for (int k = 0; k < C::queries / 16; k++) dkv_stmatrix_transposed(own + k * 2048, ds + 4 * k); /* 16 rows further */
}

/**
 * One step.
 * @tparam        masked apply the rule element by element
 * @param[in,out] state  dK, dV accumulate
 * @param[in]     tile   key tile
 * @param[in]     row0   first query row
 * @param[in]     p      parameters
 */
template <class C, bool masked>
__device__ __forceinline__ void dkv_bwd5_step(dkv_bwd5_state<C> &state, int32_t tile, int32_t row0,
                                              const dkv_bwd5_parameters &p) {
  const uint32_t stage = state.n & 1, parity = state.n >> 1 & 1;
  float s[C::queries / 2], dp[C::queries / 2], dq[C::dq_columns / 2];
  uint32_t p_fragment[C::queries / 4], ds_fragment[C::queries / 4];
  dkv_bwd5_visible visible;
  if (masked) visible = dkv_bwd5_look<C>(p.end, tile, row0, state.group, state.thread);

  uint32_t shared = dkv_opaque(state.shared);
  dkv_mbarrier_wait(dkv_bwd5_barrier<C>(shared, C::q_full + stage), parity);
  dkv_wgmma_fence();
  dkv_bwd5_scores<C>(s, shared + C::k_at, shared + C::q_at + stage * C::query_tile, state.group);
  dkv_wgmma_commit();
  dkv_mbarrier_wait(dkv_bwd5_barrier<C>(shared, C::do_full + stage), parity);
  dkv_wgmma_fence();
  dkv_bwd5_scores<C>(dp, shared + C::v_at, shared + C::do_at + stage * C::query_tile, state.group);
  dkv_wgmma_commit();

  dkv_wgmma_wait<1>(); /* S; dP goes on behind the exponentials */
  dkv_pin(s);
  shared = dkv_opaque(state.shared);
  dkv_bwd5_weights<C, masked>(s, shared + C::lse_at + stage * C::vector, p, state.thread, visible);
  dkv_wgmma_wait<0>(); /* dP */
  dkv_pin(dp);
  shared = dkv_opaque(state.shared);
  dkv_bwd5_derivative<C, masked>(dp, s, shared + C::delta_at + stage * C::vector, state.thread);
  dkv_bwd5_round<C>(p_fragment, s);
  dkv_bwd5_round<C>(ds_fragment, dp);
  dkv_bwd5_store_ds<C>(ds_fragment, shared + C::ds_at + stage * C::ds_tile + state.group * C::query_panel,
                       state.thread);

  shared = dkv_opaque(state.shared);
  dkv_wgmma_fence();
  dkv_bwd5_accumulate<C>(state.dv, p_fragment, shared + C::do_at + stage * C::query_tile);
  dkv_wgmma_commit();
  dkv_fence_async_proxy();
  dkv_named_sync(DKV_BWD5_BAR_DS, 256); /* dS of both warpgroups; dV hides the wait */
  dkv_wgmma_fence();
  dkv_bwd5_dq_share<C>(dq, shared + C::k_at, shared + C::ds_at + stage * C::ds_tile, state.group);
  dkv_wgmma_commit();
  dkv_bwd5_accumulate<C>(state.dk, ds_fragment, shared + C::q_at + stage * C::query_tile);
  dkv_wgmma_commit();
  dkv_wgmma_wait<1>(); /* dV and dQ; dK goes on behind the stores */
  dkv_pin(dq);
  shared = dkv_opaque(state.shared);
  if (state.thread == 0) dkv_mbarrier_arrive(dkv_bwd5_barrier<C>(shared, C::do_empty + stage));
  dkv_bwd5_send_dq<C>(dq, state);
  dkv_wgmma_wait<0>(); /* dK */
  dkv_pin(state.dk);
  dkv_pin(state.dv);
  if (state.thread == 0) dkv_mbarrier_arrive(dkv_bwd5_barrier<C>(shared, C::q_empty + stage));
  state.n++;
}

#endif
