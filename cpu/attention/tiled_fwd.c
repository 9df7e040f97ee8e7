/**
 * @file tiled_fwd.c
 * @brief Attention without ever storing the scores: tiles, a running softmax, and no work on empty tiles.
 *
 * For each query tile, over the key tiles that it sees, each panel of lanes does
 *
 *     S = K Q^T                            m' = max(m, max_j S_j)      alpha = exp(m - m')
 *     P = exp(S - m')                      l' = alpha l + sum_j P_j
 *     O' = alpha O + V^T P                 and in the end  o = O / l,  lse = m + log l
 *
 * When the maximum moves, what was summed so far is too large by exp(m' - m): one factor alpha per row mends it.  A row
 * that has seen nothing yet has m = -infinity; its P is exp(-infinity - 0) = 0, never exp(-infinity + infinity).
 *
 * Work is shared out over (key head, query tile), the longest first.  A tile is computed by one thread from start to
 * end and cut by size alone, so the bits do not depend on the threads.
 *
 * Workspace: tiles of each thread, nothing that grows with T.
 *
 * Read before: tile.h, cpu/vector_exp.h, ref_fwd.c.  Read next: tiled_bwd.c, counted.c.
 */
#include <math.h>
#include <omp.h>

#include "cpu/attention/tile.h"
#include "cpu/host.h"
#include "cpu/vector_exp.h"

DKV_DECLARE_KERNEL(cpu, fwd, tiled)

/** One thread's tiles. */
struct scratch {
  float *q; /**< [panels][D][DKV_PANEL] c q, transposed */
  float *o; /**< [panels][D][DKV_PANEL] sum so far, transposed */
  float *m; /**< [panels][DKV_PANEL] maximum so far */
  float *l; /**< [panels][DKV_PANEL] sum of weights so far */
  float *k; /**< [DKV_KEYS][D] */
  float *v; /**< [D / DKV_MR][DKV_COLUMN_BLOCK] columns in blocks */
  float *s; /**< [DKV_KEYS][DKV_PANEL] scores, then weights; holds the rows of v while they are loaded */
};

/** Cuts a thread's memory into tiles. @return bytes used (with memory NULL: bytes needed) */
static size_t cut_scratch(struct scratch *out, float *memory, const dkv_attention *p) {
  const int64_t stacked = (int64_t)rows_of_tile(p, DKV_FWD_LANES) * (p->heads / p->kv_heads);
  const size_t D = (size_t)p->head_dim, lanes = (size_t)dkv_ceil_div(stacked, DKV_PANEL) * DKV_PANEL;
  const struct {
    float **part;
    size_t floats;
  } cuts[] = {{&out->q, lanes * D},
              {&out->o, lanes * D},
              {&out->m, lanes},
              {&out->l, lanes},
              {&out->k, DKV_KEYS * D},
              {&out->v, D / DKV_MR * DKV_COLUMN_BLOCK},
              {&out->s, DKV_KEYS * (D > DKV_PANEL ? D : DKV_PANEL)}};
  size_t used = 0;
  for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; ++i) {
    *cuts[i].part = memory == NULL ? NULL : memory + used;
    used += (cuts[i].floats + 63) / 64 * 64;
  }
  return used * sizeof(float);
}

dkv_status dkv_cpu_fwd_tiled_workspace(const dkv_attention *problem, size_t *bytes) {
  DKV_REQUIRE(problem != NULL && bytes != NULL && problem->layout != NULL, DKV_ERR_NULL,
              "tiled forward: problem, layout and bytes must not be NULL");
  struct scratch scratch;
  *bytes = problem->layout->rows == 0
               ? 0
               : (size_t)dkv_host_threads(problem->threads) * cut_scratch(&scratch, NULL, problem);
  return DKV_OK;
}

dkv_status dkv_cpu_fwd_tiled_prepare(const dkv_attention *problem) {
  (void)problem; /* the layout is read as the tiles go by */
  return DKV_OK;
}

/** Scores that the rule forbids become -infinity. @param[in,out] s [keys][DKV_PANEL], keys counted from j0 */
static void mask_scores(float *s, const dkv_layout *layout, const struct query_tile *tile, int32_t panel, int32_t j0,
                        struct key_span span) {
  const dkv_vec minus_infinity = vec_set(-INFINITY);
  for (int32_t key = span.first; key < span.last; ++key) {
    int32_t lo = 0, hi = 0, j = j0 + key;
    if (j < layout->rows) visible_lanes(tile, panel, j, layout->end[j], &lo, &hi);
    for (int v = 0; v < DKV_NV; ++v) {
      float *at = s + (size_t)key * DKV_PANEL + v * DKV_LANES;
      vec_store(at, vec_keep(vec_load(at), lo - v * DKV_LANES, hi - v * DKV_LANES, minus_infinity));
    }
  }
}

/**
 * One step of the running softmax for one vector of lanes.
 * @param[in,out] s     [keys][DKV_PANEL] scores, then weights
 * @param[in,out] m,l   [DKV_LANES] running maximum and sum
 * @param[out]    alpha [DKV_LANES] factor for what was summed before
 * @param[in]     keys  a multiple of DKV_MR, > 0
 */
static void softmax_step(float *s, int32_t keys, float *m, float *l, float *alpha) {
  const dkv_vec old = vec_load(m);
  dkv_vec top[4] = {old, old, old, old};
  for (int32_t key = 0; key < keys; key += 4)
    for (int u = 0; u < 4; ++u) top[u] = vec_max(vec_load(s + (size_t)(key + u) * DKV_PANEL), top[u]);
  const dkv_vec now = vec_max(vec_max(top[0], top[1]), vec_max(top[2], top[3]));
  const dkv_vec shift = vec_max(now, vec_set(-3.4e38f)); /* -infinity, nothing seen yet, must not meet -infinity */
  dkv_vec sum = vec_set(0.0f);
  for (int32_t key = 0; key < keys; ++key) {
    const dkv_vec weight = vec_exp(vec_sub(vec_load(s + (size_t)key * DKV_PANEL), shift));
    vec_store(s + (size_t)key * DKV_PANEL, weight);
    sum = vec_add(sum, weight);
  }
  const dkv_vec factor = vec_exp(vec_sub(old, shift));
  vec_store(alpha, factor);
  vec_store(l, vec_fma(vec_load(l), factor, sum));
  vec_store(m, now);
}

/** One panel against the loaded keys [j0, j1). */
static void attend_panel(const dkv_attention *p, const struct query_tile *tile, int32_t panel, int32_t j0, int32_t j1,
                         const struct scratch *t, struct rows_ahead *ahead) {
  const struct key_span span = span_of_keys(p->layout, tile, panel, j0, j1);
  if (span.first == span.last) return;
  const int nv = panel_vectors(tile, panel);
  const size_t D = (size_t)p->head_dim, first = (size_t)span.first;
  const int32_t keys = span.last - span.first;
  float *const s = t->s + first * DKV_PANEL;
  float alpha[DKV_PANEL];

  /* S = K Q^T */
  product(nv, PRODUCT_SET, keys, (struct product_left){t->k + first * D, D, 1}, DKV_MR * D,
          (struct product_right){t->q + (size_t)panel * D * DKV_PANEL, DKV_PANEL}, p->head_dim, s, DKV_PANEL, NULL,
          ahead);
  if (span.masked) mask_scores(t->s, p->layout, tile, panel, j0, span);
  for (int v = 0; v < nv; ++v) {
    const int lane = panel * DKV_PANEL + v * DKV_LANES;
    softmax_step(s + v * DKV_LANES, keys, t->m + lane, t->l + lane, alpha + v * DKV_LANES);
  }
  /* O = alpha O + V^T P */
  product(nv, PRODUCT_SCALE, p->head_dim, (struct product_left){t->v + first * DKV_MR, 1, DKV_MR}, DKV_COLUMN_BLOCK,
          (struct product_right){s, DKV_PANEL}, keys, t->o + (size_t)panel * D * DKV_PANEL, DKV_PANEL, alpha, ahead);
}

/** One query tile of one key head, from q to o and lse. */
static void attend_tile(const dkv_attention *p, const struct query_tile *tile, int32_t k_head,
                        const struct scratch *t) {
  const int32_t D = p->head_dim, lanes = tile->panels * DKV_PANEL;
  load_lanes(t->q, p->q, p, tile, k_head, (float)p->scale);
  memset(t->o, 0, (size_t)lanes * (size_t)D * sizeof(float));
  memset(t->l, 0, (size_t)lanes * sizeof(float));
  for (int32_t lane = 0; lane < lanes; ++lane) t->m[lane] = -INFINITY;

  for (int32_t next, j0 = next_key_tile(p->layout, tile, 0); j0 < tile->i1; j0 = next) {
    const int32_t j1 = (int32_t)dkv_min((int64_t)j0 + DKV_KEYS, p->layout->rows);
    next = next_key_tile(p->layout, tile, j0 + DKV_KEYS);
    struct rows_ahead ahead = keys_ahead(p->k, p->v, dkv_dtype_size(p->dtype), p, k_head, next,
                                         (int32_t)dkv_min((int64_t)next + DKV_KEYS, tile->i1));
    load_keys(t->k, p->k, p, k_head, j0, j1);
    load_keys(t->s, p->v, p, k_head, j0, j1);
    block_columns(t->v, t->s, (j1 - j0 + DKV_MR - 1) / DKV_MR * DKV_MR, D);
    for (int32_t panel = 0; panel < tile->panels; ++panel) attend_panel(p, tile, panel, j0, j1, t, &ahead);
  }

  float *const lse = p->lse;
  for (int32_t lane = 0; lane < tile->lanes; ++lane) {
    const int32_t head = k_head * tile->group + lane % tile->group;
    lse[dkv_offset(head, tile->i0 + lane / tile->group, p->layout->rows, 1)] = t->m[lane] + logf(t->l[lane]);
    t->l[lane] = 1.0f / t->l[lane];
  }
  store_lanes(p->o, t->o, p, tile, k_head, t->l);
}

dkv_status dkv_cpu_fwd_tiled_run(const dkv_attention *problem) {
  DKV_TRY(dkv_attention_check(problem, DKV_FORWARD));
  if (problem->layout->rows == 0) return DKV_OK;
  struct scratch whole;
  const size_t bytes = cut_scratch(&whole, NULL, problem);
  DKV_REQUIRE(problem->workspace != NULL && problem->workspace_bytes >= bytes, DKV_ERR_NOMEM,
              "tiled forward: workspace of %zu bytes; a thread needs %zu", problem->workspace_bytes, bytes);
  const int32_t threads =
      (int32_t)dkv_min(dkv_host_threads(problem->threads), (int64_t)(problem->workspace_bytes / bytes));
  const int32_t rows = rows_of_tile(problem, DKV_FWD_LANES);
  const int64_t tiles = dkv_ceil_div(problem->layout->rows, rows), tasks = tiles * problem->kv_heads;
  int64_t next = 0;
#pragma omp parallel num_threads(threads)
  {
    struct scratch mine;
    cut_scratch(&mine, (float *)problem->workspace + (size_t)omp_get_thread_num() * (bytes / sizeof(float)), problem);
    for (;;) {
      int64_t task;
#pragma omp atomic capture
      task = next++;
      if (task >= tasks) break;
      /* the last rows see most keys: longest first, so that no thread waits long at the end */
      const struct query_tile tile = cut_query_tile(problem, rows, tiles - 1 - task / problem->kv_heads);
      attend_tile(problem, &tile, (int32_t)(task % problem->kv_heads), &mine);
    }
  }
  return DKV_OK;
}
