/**
 * @file bwd_5_step.cuh
 * @brief One step of a consumer warpgroup: 64 keys against `queries` query rows, five products and the softmax's derivative.
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
 *     issue dP | exp P | issue dV | wait dP, form dS, store dS | barrier | issue dQ, dK | wait dQ, send it | wait dK
 *
 * Read before: bwd_5_config.cuh.  Read next: bwd_5_hopper.cu.
 */
#ifndef DKV_BWD_5_STEP_CUH
#define DKV_BWD_5_STEP_CUH

#include "gpu/attention/bwd_5_config.cuh"

/** What a consumer thread keeps across the steps of an item. */
template <class C> struct dkv_bwd5_state {
  float dk[C::D / 2], dv[C::D / 2]; /**< accumulators: 64 keys x D of this warpgroup */
  float s[C::queries / 2];          /**< scores; with C::ahead those of the coming step */
  uint32_t shared;                  /**< start of the shared-memory map */
  uint32_t n;                       /**< steps done since the start: stage n & 1, parity (n >> 1) & 1 */
  uint32_t stop;                    /**< n at the end of this item */
  int group;                        /**< 0 or 1: which 64 keys */
  int thread;                       /**< 0..127 inside the warpgroup */
  int32_t key[2];                   /**< rows of the two accumulator rows of this thread ... */
  uint32_t span[2];                 /**< ... and how many rows, from itself on, see each: end[j] - j */
};

/** exp2, 2 ulp, in one instruction. */
__device__ __forceinline__ float dkv_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/**
 * The same value, but the compiler does not know: what is computed from it is computed again in every step, in a few uniform
 * instructions, instead of being kept in registers that the accumulators need.
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

/** 64 keys x D, summed over queries: fragments P^T or dS^T times `rows` (dO or Q). */
template <class C>
__device__ __forceinline__ void dkv_bwd5_accumulate(float (&out)[C::D / 2], const uint32_t (&a)[C::queries / 4],
                                                    uint32_t rows) {
  const uint64_t b = dkv_descriptor(rows, C::query_panel);
#pragma unroll
  for (int k = 0; k < C::queries / 16; k++)
    dkv_wgmma_rs<typename C::T, C::D, DKV_MN_MAJOR>(out, a + 4 * k, b + dkv_descriptor_step(k * 2048), 1);
}

/** This warpgroup's share of dQ^T = K^T dS^T, summed over the tile's 128 keys: 64 of D (or all of 64) x dq_columns queries. */
template <class C>
__device__ __forceinline__ void dkv_bwd5_dq_share(float (&out)[C::dq_columns / 2], uint32_t keys, uint32_t ds, int group) {
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

/** s becomes P; rule j <= i < end[j] by selection, so that whatever an invisible score is (inf, NaN), its weight is 0. */
template <class C, bool masked>
__device__ __forceinline__ void dkv_bwd5_weights(float (&s)[C::queries / 2], uint32_t lse, float scale_log2,
                                                 const dkv_bwd5_state<C> &state, int32_t row0) {
  const int32_t column0 = 2 * (state.thread & 3);
  const int32_t start[2] = {state.key[0] - row0 - column0, state.key[1] - row0 - column0};
#pragma unroll
  for (int j = 0; j < C::queries / 8; j++) {
    const float2 minus_lse = dkv_load_pair(lse + (8 * j + column0) * 4);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float x = fmaf(s[4 * j + i], scale_log2, i % 2 ? minus_lse.y : minus_lse.x);
      if (masked) x = (uint32_t)(8 * j + i % 2 - start[i / 2]) < state.span[i / 2] ? x : -INFINITY;
      s[4 * j + i] = dkv_exp2(x);
    }
  }
}

/** dp becomes dS = P (dP - delta); a weight of 0 gives 0 whatever dP is. */
template <class C, bool masked>
__device__ __forceinline__ void dkv_bwd5_derivative(float (&dp)[C::queries / 2], const float (&p)[C::queries / 2],
                                                    uint32_t delta, int thread) {
#pragma unroll
  for (int j = 0; j < C::queries / 8; j++) {
    const float2 d = dkv_load_pair(delta + (8 * j + 2 * (thread & 3)) * 4);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float ds = p[4 * j + i] * (dp[4 * j + i] - (i % 2 ? d.y : d.x));
      dp[4 * j + i] = masked && p[4 * j + i] == 0.0f ? 0.0f : ds;
    }
  }
}

/** Sends a warpgroup's share of dQ on its way: thread t's registers 4i..4i+3 are float4 number 128 i + t of the share. */
template <class C>
__device__ __forceinline__ void dkv_bwd5_send_dq(const float (&dq)[C::dq_columns / 2], float *global,
                                                 const dkv_bwd5_state<C> &state) {
  if constexpr (C::dq == DKV_DQ_DIRECT) {
    float *mine = global + state.group * (C::dq_share / 4) + state.thread * 4;
#pragma unroll
    for (int i = 0; i < C::dq_columns / 8; i++)
      dkv_reduce_add4(mine + i * 512, dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
  } else {
    const uint32_t shared = dkv_opaque(state.shared);
    const uint32_t mine = shared + C::dq_at + state.group * C::dq_share + state.thread * 16;
    const uint32_t own = 2 * (state.n & 1) + state.group, before = 2 * (state.n + 1 & 1) + state.group;
    dkv_mbarrier_wait(dkv_bwd5_barrier<C>(shared, C::dq_empty + before), (state.n + 1 >> 1 & 1) ^ 1);
#pragma unroll
    for (int i = 0; i < C::dq_columns / 8; i++)
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(mine + i * 2048), "f"(dq[4 * i]), "f"(dq[4 * i + 1]),
                   "f"(dq[4 * i + 2]), "f"(dq[4 * i + 3])
                   : "memory");
    dkv_fence_async_proxy();
    dkv_mbarrier_arrive(dkv_bwd5_barrier<C>(shared, C::dq_full + own));
  }
}

/** dS^T of this warpgroup to shared memory as [query][64 keys], visible to the products of both. */
template <class C>
__device__ __forceinline__ void dkv_bwd5_store_ds(const uint32_t (&ds)[C::queries / 4], uint32_t panel, int thread) {
#pragma unroll
  for (int k = 0; k < C::queries / 16; k++)
    dkv_stmatrix_transposed(dkv_stmatrix_transposed_address(panel, thread, k), ds + 4 * k);
  dkv_fence_async_proxy();
}

/** Waits for Q of step n and issues its scores. */
template <class C> __device__ __forceinline__ void dkv_bwd5_issue_scores(dkv_bwd5_state<C> &state, uint32_t n) {
  const uint32_t stage = n & 1, shared = dkv_opaque(state.shared);
  if (n != state.stop) dkv_mbarrier_wait(dkv_bwd5_barrier<C>(shared, C::q_full + stage), n >> 1 & 1);
  dkv_pin(state.s);
  dkv_wgmma_fence();
  dkv_bwd5_scores<C>(state.s, shared + C::k_at, shared + C::q_at + stage * C::query_tile, state.group);
  dkv_wgmma_commit();
}

/**
 * One step.
 * @tparam        masked apply the rule element by element
 * @param[in,out] state  dK, dV accumulate; with C::ahead the scores of this step come in and those of the next go out
 * @param[in]     row0   first query row
 * @param[in,out] dq     the step's block of the fp32 sum
 */
template <class C, bool masked>
__device__ __forceinline__ void dkv_bwd5_step(dkv_bwd5_state<C> &state, int32_t row0, float *dq, float scale_log2) {
  const uint32_t stage = state.n & 1, parity = state.n >> 1 & 1;
  const uint32_t shared = dkv_opaque(state.shared);
  const uint32_t q = shared + C::q_at + stage * C::query_tile;
  const uint32_t dout = shared + C::do_at + stage * C::query_tile;
  const uint32_t ds_buffer = shared + C::ds_at + stage * C::ds_tile;
  float dp[C::queries / 2], share[C::dq_columns / 2];
  uint32_t p_fragment[C::queries / 4], ds_fragment[C::queries / 4];

  if constexpr (!C::ahead) dkv_bwd5_issue_scores(state, state.n);
  dkv_mbarrier_wait(dkv_bwd5_barrier<C>(shared, C::do_full + stage), parity);
  dkv_wgmma_fence();
  dkv_bwd5_scores<C>(dp, shared + C::v_at, dout, state.group);
  dkv_wgmma_commit();
  if constexpr (!C::ahead) dkv_wgmma_wait<1>();
  dkv_pin(state.s);
  dkv_bwd5_weights<C, masked>(state.s, shared + C::lse_at + stage * C::vector, scale_log2, state, row0);
  dkv_fragment_a<typename C::T, C::queries / 2>(p_fragment, state.s);
  if constexpr (C::early) {
    dkv_pin(p_fragment);
    dkv_wgmma_fence();
    dkv_bwd5_accumulate<C>(state.dv, p_fragment, dout);
    dkv_wgmma_commit();
    dkv_wgmma_wait<1>();
  } else {
    dkv_wgmma_wait<0>();
  }
  dkv_pin(dp);
  dkv_bwd5_derivative<C, masked>(dp, state.s, shared + C::delta_at + stage * C::vector, state.thread);
  dkv_fragment_a<typename C::T, C::queries / 2>(ds_fragment, dp);
  dkv_bwd5_store_ds<C>(ds_fragment, ds_buffer + state.group * C::query_panel, state.thread);
  if constexpr (!C::early) {
    dkv_pin(p_fragment);
    dkv_wgmma_fence();
    dkv_bwd5_accumulate<C>(state.dv, p_fragment, dout);
    dkv_wgmma_commit();
  }
  dkv_named_sync(DKV_BWD5_BAR_DS, 256);
  dkv_pin(ds_fragment);
  dkv_wgmma_fence();
  dkv_bwd5_dq_share<C>(share, shared + C::k_at, ds_buffer, state.group);
  dkv_wgmma_commit();
  dkv_bwd5_accumulate<C>(state.dk, ds_fragment, q);
  dkv_wgmma_commit();
  if constexpr (C::ahead) dkv_bwd5_issue_scores(state, state.n + 1);
  dkv_wgmma_wait<C::ahead ? 2 : 1>(); /* dV and dQ are done */
  dkv_pin(share);
  if (state.thread == 0) dkv_mbarrier_arrive(dkv_bwd5_barrier<C>(shared, C::do_empty + stage));
  dkv_bwd5_send_dq<C>(share, dq, state);
  dkv_wgmma_wait<0>();
  dkv_pin(state.dk);
  dkv_pin(state.dv);
  dkv_pin(state.s);
  if (state.thread == 0) dkv_mbarrier_arrive(dkv_bwd5_barrier<C>(shared, C::q_empty + stage));
  state.n++;
}

#endif
