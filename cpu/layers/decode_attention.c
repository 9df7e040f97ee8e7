/**
 * @file decode_attention.c
 * @brief One new token of each live response looks at its prompt, which all responses share, and at its own few tokens.
 *
 *     out_rh = sum_j p_j v_j / sum_j p_j,   p_j = exp(scale <q_rh, k_j> - m),   j over prompt rows, then own rows
 *
 * The sum is taken tile by tile with a running maximum m: when m grows, the sums so far are multiplied by exp(m_old -
 * m_new).
 *
 * A task is a block of ROWS rows and one key head.  It stacks the queries of its rows and of up to HEADS query heads
 * into a panel and walks over the prompt in tiles of TILE keys: scores = panel tile^T and values = weights tile are two
 * small matrix products, so the prompt's keys and values are fetched once per block instead of once per response, and
 * they are stored once instead of N times.  The panel always has the same height, and a row always the same place in
 * it: its bits do not depend on the other rows.  A response's own few tokens follow, one query at a time.
 *
 * Read before: common/layers.h, cpu/attention/tiled_fwd.c.  Read next: common/model/decode.c.
 */
#include <math.h>
#include <string.h>

#include "common/attention.h"
#include "cpu/blas.h"
#include "cpu/exp.h"
#include "cpu/layers/layers_cpu.h"

#define TILE 64              /* keys of a tile: 64 of 64 floats are 16 KiB, half an L1 cache */
#define ROWS 8               /* decode rows of a task */
#define HEADS 8              /* query heads of a panel: what shares a key head, or a part of it */
#define PANEL (ROWS * HEADS) /* most queries of a panel */

/** What a task needs to know. */
typedef struct task {
  float *out;
  const float *q;
  const dkv_decode_cache *cache;
  const int32_t *slot;
  int32_t heads, kv_heads, dim;
  float scale;
} task;

/** Stacked queries with their running softmaxes: query i * heads + h is head h0 + h of row r0 + i. */
typedef struct panel {
  int32_t r0, h0, heads, height; /* height = ROWS * heads */
  bool live[ROWS];               /* rows of the group at hand */
  float largest[PANEL], sum[PANEL];
  float q[PANEL * DKV_MAX_HEAD_DIM];
  float value[PANEL * DKV_MAX_HEAD_DIM];
  float weight[PANEL * TILE];
} panel;

/** One query takes `count` <= TILE scores: they become weights, what it has so far shrinks. */
static void take_scores(panel *p, int32_t query, float *score, int32_t count, int32_t dim, float scale) {
  float largest = p->largest[query], sum = 0.0f, *value = p->value + (int64_t)query * dim;
  for (int32_t j = 0; j < count; ++j) {
    score[j] *= scale;
    largest = score[j] > largest ? score[j] : largest;
  }
  float shrink = p->sum[query] > 0.0f ? dkv_exp(p->largest[query] - largest) : 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int32_t j = 0; j < count; ++j) {
    score[j] = dkv_exp(score[j] - largest);
    sum += score[j];
  }
#pragma omp simd
  for (int32_t d = 0; d < dim; ++d) value[d] *= shrink;
  p->sum[query] = p->sum[query] * shrink + sum;
  p->largest[query] = largest;
}

/** All live queries take `count` rows of the prompt: two matrix products. */
static void take_prompt_tile(panel *p, const task *t, const float *k, const float *v, int32_t count) {
  int64_t stride = (int64_t)t->kv_heads * t->dim;
  dkv_sgemm(false, true, p->height, count, t->dim, 1.0f, p->q, t->dim, k, stride, 0.0f, p->weight, TILE);
  for (int32_t i = 0; i < p->height; ++i) {
    if (p->live[i / p->heads]) take_scores(p, i, p->weight + i * TILE, count, t->dim, t->scale);
    else memset(p->weight + i * TILE, 0, (size_t)count * sizeof(float)); /* takes nothing, disturbs nobody */
  }
  dkv_sgemm(false, false, p->height, t->dim, count, 1.0f, p->weight, TILE, v, stride, 1.0f, p->value, t->dim);
}

/** One query takes `count` <= TILE rows of its response's own cache. */
static void take_own_tile(panel *p, const task *t, int32_t query, const float *k, const float *v, int32_t count) {
  float weight[TILE], *value = p->value + (int64_t)query * t->dim;
  const float *q = p->q + (int64_t)query * t->dim;
  int64_t stride = (int64_t)t->kv_heads * t->dim;
  for (int32_t j = 0; j < count; ++j) {
    const float *k_j = k + j * stride;
    float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
    for (int32_t d = 0; d < t->dim; ++d) dot += q[d] * k_j[d];
    weight[j] = dot;
  }
  take_scores(p, query, weight, count, t->dim, t->scale);
  for (int32_t j = 0; j < count; ++j) {
    const float *v_j = v + j * stride;
#pragma omp simd
    for (int32_t d = 0; d < t->dim; ++d) value[d] += weight[j] * v_j[d];
  }
}

/** The live rows of one group against key head k. */
static void group_of_rows(panel *p, const task *t, int32_t group, int32_t k) {
  const dkv_decode_cache *cache = t->cache;
  int32_t last_prompt = cache->prompt_start[group + 1];
  for (int32_t i = 0; i < p->height; ++i) {
    p->largest[i] = -INFINITY;
    p->sum[i] = 0.0f;
  }
  memset(p->value, 0, (size_t)p->height * (size_t)t->dim * sizeof(float));
  for (int32_t j = cache->prompt_start[group]; j < last_prompt; j += TILE) {
    int64_t tile = dkv_offset(j, k, t->kv_heads, t->dim);
    take_prompt_tile(p, t, cache->prompt_k + tile, cache->prompt_v + tile, (int32_t)dkv_min(TILE, last_prompt - j));
  }
  for (int32_t i = 0; i < p->height; ++i) {
    int32_t row = p->r0 + i / p->heads, slot = p->live[i / p->heads] ? t->slot[row] : -1;
    for (int32_t j = 0; slot >= 0 && j < cache->length[slot]; j += TILE) {
      int64_t tile = dkv_offset((int64_t)slot * cache->capacity + j, k, t->kv_heads, t->dim);
      take_own_tile(p, t, i, cache->response_k + tile, cache->response_v + tile,
                    (int32_t)dkv_min(TILE, cache->length[slot] - j));
    }
    float *out = t->out + dkv_offset(row, p->h0 + i % p->heads, t->heads, t->dim);
    for (int32_t d = 0; slot >= 0 && d < t->dim; ++d) out[d] = p->value[(int64_t)i * t->dim + d] / p->sum[i];
  }
}

/** Rows [r0, r1), which may belong to several groups or to nobody, and heads [h0, h0 + heads) of key head k. */
static void block_of_rows(const task *t, int32_t r0, int32_t r1, int32_t k, int32_t h0, int32_t heads) {
  panel p = {.r0 = r0, .h0 = h0, .heads = heads, .height = ROWS * heads};
  size_t row_bytes = (size_t)heads * (size_t)t->dim * sizeof(float);
  memset(p.q, 0, ROWS * row_bytes);
  for (int32_t r = r0; r < r1; ++r) {
    int64_t at = dkv_offset(r, h0, t->heads, t->dim);
    if (t->slot[r] >= 0) memcpy(p.q + (int64_t)(r - r0) * heads * t->dim, t->q + at, row_bytes);
    else memset(t->out + at, 0, row_bytes);
  }
  int32_t done = -1; /* groups up to this one; slots ascend, so groups do */
  for (int32_t r = r0; r < r1; ++r) {
    if (t->slot[r] < 0 || t->slot[r] / t->cache->responses <= done) continue;
    done = t->slot[r] / t->cache->responses;
    for (int32_t i = 0; i < ROWS; ++i)
      p.live[i] = r0 + i < r1 && t->slot[r0 + i] >= 0 && t->slot[r0 + i] / t->cache->responses == done;
    group_of_rows(&p, t, done, k);
  }
}

dkv_status dkv_cpu_decode_attention(const dkv_where *where, float *out, const float *q, const dkv_decode_cache *cache,
                                    const int32_t *slot, int32_t rows, int32_t heads, int32_t kv_heads,
                                    int32_t head_dim, float scale) {
  DKV_TRY(dkv_blas_open());
  task t = {out, q, cache, slot, heads, kv_heads, head_dim, scale};
  int32_t shared = heads / kv_heads;
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(dkv_where_threads(where, DKV_SMALL_WORK))
  for (int32_t block = 0; block < (rows + ROWS - 1) / ROWS; ++block)
    for (int32_t k = 0; k < kv_heads; ++k)
      for (int32_t h = 0; h < shared; h += HEADS)
        block_of_rows(&t, block * ROWS, (int32_t)dkv_min(rows, (block + 1) * ROWS), k, k * shared + h,
                      (int32_t)dkv_min(HEADS, shared - h));
  return DKV_OK;
}

dkv_status dkv_cpu_append_rows(const dkv_where *where, float *cache, const float *x, const int32_t *slot,
                               const int32_t *length, int32_t rows, int32_t capacity, int32_t width) {
#pragma omp parallel for num_threads(dkv_where_threads(where, (int64_t)rows *width))
  for (int32_t r = 0; r < rows; ++r) {
    if (slot[r] < 0) continue;
    int64_t place = (int64_t)slot[r] * capacity + length[slot[r]] - 1;
    memcpy(cache + place * width, x + dkv_offset(r, 0, 1, width), (size_t)width * sizeof *x);
  }
  return DKV_OK;
}
