/**
 * @file tiled_bwd.c
 * @brief The backward in tiles: weights are recomputed from lse, and a key's gradient is summed in the order of its
 * queries.
 *
 * For each query tile, over the key tiles that it sees (ref_bwd.c has the same lines, one pair at a time):
 *
 *     S = K Q^T     P = exp(S - lse)     dP = V dO^T     dS = P (dP - delta)           panel by panel, transposed
 *     dQ^T += K^T dS                                                                   stays with the query tile
 *     dV = P dO     dK = dS Q                                                          one contribution per key tile
 *
 * dq belongs to the query tile; dk and dv of a prompt belong to everybody.  Each query tile works out its contribution
 * alone and then adds it when it is its turn: turn[key tile] counts up through the query tiles that see the key tile.
 *
 *     key tile 0:  query tile 0, then 1, then 2, ...       a fixed order of additions: the same bits for any number of
 *     key tile 1:                query tile 1, then 2, ... threads, and no copy of dk and dv per thread
 *
 * Tiles are handed out in ascending order, so the tile that somebody waits for is always being worked on: no deadlock.
 * Workspace: tiles of each thread, the turns, and for 16-bit storage dk and dv in f32 (rounded once, by the last).
 *
 * Read before: tiled_fwd.c, ref_bwd.c, tiled_bwd.h.  Read next: fine.h, counted.c.
 */
#include <math.h>
#include <omp.h>
#include <sched.h>
#include <stdatomic.h>

#include "cpu/attention/fine.h"
#include "cpu/attention/tiled_bwd.h"
#include "cpu/host.h"
#include "cpu/vector_exp.h"

DKV_DECLARE_KERNEL(cpu, bwd, tiled)

/** Cuts a thread's memory into tiles. @return floats used (with memory NULL: floats needed) */
static size_t cut_scratch(struct bwd_scratch *out, float *memory, const struct bwd_call *call) {
  const size_t D = (size_t)call->p->head_dim, L = (size_t)call->lanes, width = (size_t)call->chunks * DKV_CHUNK;
  const struct {
    float **part;
    size_t floats;
  } cuts[] = {{&out->q, L * D},
              {&out->dout, L * D},
              {&out->q_rows, L * width},
              {&out->dout_rows, L * width},
              {&out->dq, L * D},
              {&out->lse, L},
              {&out->delta, L},
              {&out->shift, L},
              {&out->k, DKV_KEYS * D},
              {&out->v, DKV_KEYS * D},
              {&out->k_columns, D / DKV_MR * DKV_COLUMN_BLOCK},
              {&out->s, DKV_KEYS * L},
              {&out->ds, DKV_KEYS * L},
              {&out->dk, DKV_KEYS * width},
              {&out->dv, DKV_KEYS * width}};
  size_t used = 0;
  for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; ++i) {
    *cuts[i].part = memory == NULL ? NULL : memory + used;
    used += (cuts[i].floats + 63) / 64 * 64;
  }
  return used;
}

/** Works out the sizes; pointers are set when the problem has a workspace. */
static struct bwd_call plan(const dkv_attention *p) {
  const int32_t group = p->heads / p->kv_heads, T = p->layout->rows;
  struct bwd_call call = {.p = p, .rows = rows_of_tile(p, DKV_BWD_LANES), .dk = p->dk, .dv = p->dv};
  call.lanes = (int32_t)dkv_ceil_div((int64_t)call.rows * group, DKV_PANEL) * DKV_PANEL;
  call.key_tiles = (int32_t)dkv_ceil_div(T, DKV_KEYS);
  call.chunks = (int32_t)dkv_ceil_div(p->head_dim, DKV_CHUNK);
  struct bwd_scratch scratch;
  call.scratch_floats = cut_scratch(&scratch, NULL, &call);
  const size_t turns = ((size_t)p->kv_heads * (size_t)call.key_tiles + 63) / 64 * 64;
  const size_t sums = p->dtype == DKV_F32 ? 0 : (size_t)dkv_offset(T, 0, p->kv_heads, p->head_dim);
  call.fixed_bytes = (turns + 2 * sums) * sizeof(float);
  if (p->workspace != NULL) {
    call.turn = p->workspace;
    if (sums > 0) {
      call.dk = (float *)p->workspace + turns;
      call.dv = call.dk + sums;
    }
  }
  return call;
}

dkv_status dkv_cpu_bwd_tiled_workspace(const dkv_attention *problem, size_t *bytes) {
  DKV_REQUIRE(problem != NULL && bytes != NULL && problem->layout != NULL, DKV_ERR_NULL,
              "tiled backward: problem, layout and bytes must not be NULL");
  const struct bwd_call call = plan(problem);
  const size_t threads = (size_t)dkv_host_threads(problem->threads);
  *bytes = problem->layout->rows == 0 ? 0 : call.fixed_bytes + threads * call.scratch_floats * sizeof(float);
  return DKV_OK;
}

dkv_status dkv_cpu_bwd_tiled_prepare(const dkv_attention *problem) {
  (void)problem; /* the layout is read as the tiles go by */
  return DKV_OK;
}

/** Stacked rows as they are, in chunks of DKV_CHUNK columns, zeros behind column D. @param[out] out [C][L][DKV_CHUNK]
 */
static void load_row_chunks(float *out, const void *tensor, const struct bwd_call *call, const struct query_tile *tile,
                            int32_t k_head, float factor) {
  const int32_t D = call->p->head_dim;
  float row[DKV_MAX_HEAD_DIM + DKV_CHUNK] = {0};
  for (int32_t lane = 0; lane < tile->lanes; ++lane) {
    load_floats(row, tensor, call->p->dtype, lane_offset(call->p, tile, k_head, lane), D);
    for (int32_t chunk = 0; chunk < call->chunks; ++chunk) {
      float *at = out + ((size_t)chunk * (size_t)call->lanes + (size_t)lane) * DKV_CHUNK;
      for (int32_t d = 0; d < DKV_CHUNK; ++d) at[d] = factor * row[chunk * DKV_CHUNK + d];
    }
  }
}

/**
 * delta = <dout, o> and lse of each lane; lanes past the end get lse = infinity, so that their weights are 0.  delta is
 * summed over d one by one, as the product dP is: a row that sees one key has o = v, hence dP - delta = 0 to the last
 * bit.
 */
static void load_row_numbers(const struct bwd_call *call, const struct query_tile *tile, int32_t k_head,
                             const struct bwd_scratch *t) {
  const dkv_attention *p = call->p;
  const size_t D = (size_t)p->head_dim;
  float *const o = t->dq; /* not in use yet */
  load_lanes(o, p->o, p, tile, k_head, 1.0f);
  for (int32_t lane = 0; lane < tile->panels * DKV_PANEL; lane += DKV_LANES) {
    const size_t column = (size_t)(lane / DKV_PANEL) * D * DKV_PANEL + (size_t)(lane % DKV_PANEL);
    dkv_vec sum = vec_set(0.0f);
    for (size_t d = 0; d < D; ++d)
      sum = vec_fma(vec_load(o + column + d * DKV_PANEL), vec_load(t->dout + column + d * DKV_PANEL), sum);
    vec_store(t->delta + lane, sum);
  }
  for (int32_t lane = 0; lane < tile->panels * DKV_PANEL; ++lane) {
    const int32_t head = k_head * tile->group + lane % tile->group, i = tile->i0 + lane / tile->group;
    t->lse[lane] = INFINITY;
    if (lane < tile->lanes) t->lse[lane] = ((const float *)p->lse)[dkv_offset(head, i, p->layout->rows, 1)];
  }
}

/** P = exp(S - lse), dS = P (dP - delta) for one vector of lanes. @param[in] shift lse, or 0 where it is off already */
static void weights_and_ds(float *s, float *ds, size_t stride, int32_t keys, const float *shift, const float *delta) {
  const dkv_vec row_shift = vec_load(shift), row_delta = vec_load(delta);
  for (int32_t key = 0; key < keys; ++key, s += stride, ds += stride) {
    const dkv_vec weight = vec_exp(vec_sub(vec_load(s), row_shift));
    vec_store(s, weight);
    vec_store(ds, vec_mul(weight, vec_sub(vec_load(ds), row_delta)));
  }
}

/** P and dS of pairs that the rule forbids become 0, whatever they were. */
static void mask_weights(const struct bwd_call *call, const struct query_tile *tile, int32_t panel, int32_t j0,
                         struct key_span span, const struct bwd_scratch *t) {
  const dkv_layout *layout = call->p->layout;
  const dkv_vec zero = vec_set(0.0f);
  for (int32_t key = span.first; key < span.last; ++key) {
    int32_t lo = 0, hi = 0, j = j0 + key;
    if (j < layout->rows) visible_lanes(tile, panel, j, layout->end[j], &lo, &hi);
    const size_t at = (size_t)key * (size_t)call->lanes + (size_t)panel * DKV_PANEL;
    for (int v = 0; v < DKV_NV; ++v) {
      float *s = t->s + at + v * DKV_LANES, *ds = t->ds + at + v * DKV_LANES;
      vec_store(s, vec_keep(vec_load(s), lo - v * DKV_LANES, hi - v * DKV_LANES, zero));
      vec_store(ds, vec_keep(vec_load(ds), lo - v * DKV_LANES, hi - v * DKV_LANES, zero));
    }
  }
}

/** One panel against the loaded keys [j0, j1): leaves P and dS, adds to dQ^T. */
static void differentiate_panel(const struct bwd_call *call, const struct query_tile *tile, int32_t panel, int32_t j0,
                                int32_t j1, const struct bwd_scratch *t, struct rows_ahead *ahead) {
  const struct key_span span = span_of_keys(call->p->layout, tile, panel, j0, j1);
  if (span.first == span.last) return;
  const int nv = panel_vectors(tile, panel);
  const size_t D = (size_t)call->p->head_dim, L = (size_t)call->lanes, first = (size_t)span.first;
  const size_t transposed = (size_t)panel * D * DKV_PANEL, corner = first * L + (size_t)panel * DKV_PANEL;
  const int32_t keys = span.last - span.first, dim = call->p->head_dim;

  /* S = K Q^T,  dP = V dO^T */
  score_panel(call, t, nv, panel, keys, t->k + first * D, t->s + corner, ahead);
  product(nv, PRODUCT_SET, keys, (struct product_left){t->v + first * D, D, 1}, DKV_MR * D,
          (struct product_right){t->dout + transposed, DKV_PANEL}, dim, t->ds + corner, L, NULL, ahead);
  for (int v = 0; v < nv; ++v) {
    const size_t column = corner + (size_t)v * DKV_LANES;
    const int lane = panel * DKV_PANEL + v * DKV_LANES;
    weights_and_ds(t->s + column, t->ds + column, L, keys, t->shift + lane, t->delta + lane);
  }
  if (span.masked) mask_weights(call, tile, panel, j0, span, t);
  /* dQ^T += K^T dS */
  product(nv, PRODUCT_ADD, dim, (struct product_left){t->k_columns + first * DKV_MR, 1, DKV_MR}, DKV_COLUMN_BLOCK,
          (struct product_right){t->ds + corner, L}, keys, t->dq + transposed, DKV_PANEL, NULL, ahead);
}

/** dV = P dO, dK = dS Q: what this query tile adds to keys [j0, j1). Each block of keys has one interval of lanes. */
static void contribute(const struct bwd_call *call, const struct query_tile *tile, int32_t k_head, int32_t j0,
                       int32_t j1, const struct bwd_scratch *t) {
  struct rows_ahead ahead = keys_ahead(call->dk, call->dv, sizeof(float), call->p, k_head, j0, j1);
  const size_t L = (size_t)call->lanes, width = (size_t)call->chunks * DKV_CHUNK;
  for (int32_t j = j0; j < j1; j += DKV_MR) {
    const dkv_range seen_by = dkv_query_range(call->p->layout, j, (int32_t)dkv_min((int64_t)j + DKV_MR, j1));
    const int64_t from = dkv_max(seen_by.begin, tile->i0), to = dkv_min(seen_by.end, tile->i1);
    const size_t lane = from < to ? (size_t)(from - tile->i0) * (size_t)tile->group : 0;
    const int32_t depth = from < to ? (int32_t)(to - from) * tile->group : 0;
    const size_t corner = (size_t)(j - j0) * L + lane, out = (size_t)(j - j0) * width;
    for (int32_t chunk = 0; chunk < call->chunks; ++chunk) {
      const int nv = call->p->head_dim - chunk * DKV_CHUNK > DKV_LANES ? 2 : 1;
      const size_t rows = ((size_t)chunk * L + lane) * DKV_CHUNK, column = out + (size_t)chunk * DKV_CHUNK;
      product(nv, PRODUCT_SET, DKV_MR, (struct product_left){t->s + corner, L, 1}, 0,
              (struct product_right){t->dout_rows + rows, DKV_CHUNK}, depth, t->dv + column, width, NULL, &ahead);
      product(nv, PRODUCT_SET, DKV_MR, (struct product_left){t->ds + corner, L, 1}, 0,
              (struct product_right){t->q_rows + rows, DKV_CHUNK}, depth, t->dk + column, width, NULL, &ahead);
    }
  }
}

/** Adds a contribution to the sums: the first overwrites, the last rounds to storage. @param[in] part [keys][width] */
static void add_rows(const struct bwd_call *call, float *sum, void *out, const float *part, int32_t k_head, int32_t j0,
                     int32_t j1, bool first, bool last) {
  const int32_t D = call->p->head_dim;
  for (int32_t j = j0; j < j1; ++j, part += (size_t)call->chunks * DKV_CHUNK) {
    const int64_t offset = dkv_offset(j, k_head, call->p->kv_heads, D);
    float *DKV_RESTRICT at = sum + offset;
    if (first) memcpy(at, part, (size_t)D * sizeof(float));
    else
      for (int32_t d = 0; d < D; ++d) at[d] += part[d];
    if (last && call->p->dtype != DKV_F32) store_floats(out, call->p->dtype, offset, at, D);
  }
}

/** One query tile of one key head: dq, and its turn at every key tile that it sees. */
static void differentiate_tile(const struct bwd_call *call, int32_t index, int32_t k_head, struct bwd_scratch *t) {
  const dkv_attention *p = call->p;
  const struct query_tile tile = cut_query_tile(p, call->rows, index);
  const int32_t D = p->head_dim, L = tile.panels * DKV_PANEL;
  load_lanes(t->q, p->q, p, &tile, k_head, (float)p->scale);
  load_lanes(t->dout, p->dout, p, &tile, k_head, 1.0f);
  load_row_chunks(t->q_rows, p->q, call, &tile, k_head, (float)p->scale);
  load_row_chunks(t->dout_rows, p->dout, call, &tile, k_head, 1.0f);
  load_row_numbers(call, &tile, k_head, t);
  dkv_mend_large_scores(call, &tile, k_head, t);
  memset(t->dq, 0, (size_t)L * (size_t)D * sizeof(float));

  for (int32_t next, j0 = next_key_tile(p->layout, &tile, 0); j0 < tile.i1; j0 = next) {
    const int32_t j1 = (int32_t)dkv_min((int64_t)j0 + DKV_KEYS, p->layout->rows);
    const int32_t seen_until = dkv_query_range(p->layout, j0, j1).end;
    next = next_key_tile(p->layout, &tile, j0 + DKV_KEYS);
    struct rows_ahead ahead = keys_ahead(p->k, p->v, dkv_dtype_size(p->dtype), p, k_head, next,
                                         (int32_t)dkv_min((int64_t)next + DKV_KEYS, tile.i1));
    load_keys(t->k, p->k, p, k_head, j0, j1);
    load_keys(t->v, p->v, p, k_head, j0, j1);
    block_columns(t->k_columns, t->k, (j1 - j0 + DKV_MR - 1) / DKV_MR * DKV_MR, D);
    for (int32_t panel = 0; panel < tile.panels; ++panel) differentiate_panel(call, &tile, panel, j0, j1, t, &ahead);
    contribute(call, &tile, k_head, j0, j1, t);

    _Atomic int32_t *turn = call->turn + (size_t)k_head * (size_t)call->key_tiles + j0 / DKV_KEYS;
    for (int spin = 0; atomic_load_explicit(turn, memory_order_acquire) != index; ++spin)
      if (spin > 1000) sched_yield();
    const bool first = j0 / call->rows == index, last = (seen_until - 1) / call->rows == index;
    add_rows(call, call->dk, p->dk, t->dk, k_head, j0, j1, first, last);
    add_rows(call, call->dv, p->dv, t->dv, k_head, j0, j1, first, last);
    atomic_store_explicit(turn, index + 1, memory_order_release);
  }
  for (int32_t lane = 0; lane < L; ++lane) t->delta[lane] = (float)p->scale;
  store_lanes(p->dq, t->dq, p, &tile, k_head, t->delta);
}

dkv_status dkv_cpu_bwd_tiled_run(const dkv_attention *problem) {
  DKV_TRY(dkv_attention_check(problem, DKV_BACKWARD));
  if (problem->layout->rows == 0) return DKV_OK;
  const struct bwd_call call = plan(problem);
  const size_t bytes = call.scratch_floats * sizeof(float);
  DKV_REQUIRE(problem->workspace != NULL && problem->workspace_bytes >= call.fixed_bytes + bytes, DKV_ERR_NOMEM,
              "tiled backward: workspace of %zu bytes; one thread needs %zu", problem->workspace_bytes,
              call.fixed_bytes + bytes);
  const int32_t Hkv = problem->kv_heads;
  const size_t fit = (problem->workspace_bytes - call.fixed_bytes) / bytes;
  const int32_t threads = (int32_t)dkv_min(dkv_host_threads(problem->threads), (int64_t)fit);
  for (int32_t i = 0; i < Hkv * call.key_tiles; ++i)
    atomic_init(call.turn + i, i % call.key_tiles * DKV_KEYS / call.rows); /* the tile of its own first row begins */

  const int64_t tasks = dkv_ceil_div(problem->layout->rows, call.rows) * Hkv;
  int64_t next = 0;
#pragma omp parallel num_threads(threads)
  {
    struct bwd_scratch mine;
    float *const tiles = (float *)problem->workspace + call.fixed_bytes / sizeof(float);
    cut_scratch(&mine, tiles + (size_t)omp_get_thread_num() * call.scratch_floats, &call);
    for (;;) {
      int64_t task;
#pragma omp atomic capture
      task = next++;
      if (task >= tasks) break;
      differentiate_tile(&call, (int32_t)(task / Hkv), (int32_t)(task % Hkv), &mine);
    }
  }
  return DKV_OK;
}
