/**
 * @file decode_attention.c
 * @brief One new token of each live response looks at its prompt, which all responses share, and at its own few tokens.
 *
 *     out_rh = sum_j p_j v_j / sum_j p_j,   p_j = exp(scale <q_rh, k_j> - m),   j over prompt rows, then own rows
 *
 * The sum is taken tile by tile with a running maximum m: when m grows, the sums so far are multiplied by exp(m_old -
 * m_new).
 *
 * A task is a block of ROWS rows and one key head.  It walks over the prompt in tiles of TILE keys and shows each tile
 * to all its rows while the tile is in the cache: the prompt's keys and values are fetched once per block instead of
 * once per response, and stored once instead of N times.  A row's arithmetic never depends on the other rows.
 *
 * Read before: common/layers.h, cpu/attention/tiled_fwd.c.  Read next: common/model/decode.c.
 */
#include <math.h>
#include <string.h>

#include "common/attention.h"
#include "cpu/exp.h"
#include "cpu/layers/layers_cpu.h"

#define TILE 64 /* keys of a tile: 64 of 64 floats are 16 KiB, half an L1 cache */
#define ROWS 8  /* decode rows of a task */

/** Running softmax of one query: maximum, sum of weights, weighted sum of values. */
typedef struct running {
  float largest;
  float sum;
  float value[DKV_MAX_HEAD_DIM];
} running;

/** Takes `count` <= TILE keys and values, `stride` floats apart, into the running softmax of query q. */
static void take_tile(running *state, const float *q, const float *k, const float *v, int32_t count, int64_t stride,
                      int32_t dim, float scale) {
  float p[TILE], largest = state->largest;
  for (int32_t j = 0; j < count; ++j) {
    const float *k_j = k + j * stride;
    float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
    for (int32_t d = 0; d < dim; ++d) dot += q[d] * k_j[d];
    p[j] = dot * scale;
    largest = p[j] > largest ? p[j] : largest;
  }
  float shrink = state->sum > 0.0f ? dkv_exp(state->largest - largest) : 0.0f, sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int32_t j = 0; j < count; ++j) {
    p[j] = dkv_exp(p[j] - largest);
    sum += p[j];
  }
#pragma omp simd
  for (int32_t d = 0; d < dim; ++d) state->value[d] *= shrink;
  for (int32_t j = 0; j < count; ++j) {
    const float *v_j = v + j * stride;
#pragma omp simd
    for (int32_t d = 0; d < dim; ++d) state->value[d] += p[j] * v_j[d];
  }
  state->sum = state->sum * shrink + sum;
  state->largest = largest;
}

/** What a task needs to know. */
typedef struct task {
  float *out;
  const float *q;
  const dkv_decode_cache *cache;
  const int32_t *slot;
  int32_t heads, kv_heads, dim;
  float scale;
} task;

/** The rows of one group, row numbers in `row`, against key head k. */
static void rows_of_group(const task *t, const int32_t *row, int32_t count, int32_t k) {
  const dkv_decode_cache *cache = t->cache;
  int32_t group = t->slot[row[0]] / cache->responses, shared = t->heads / t->kv_heads;
  int32_t first_prompt = cache->prompt_start[group], last_prompt = cache->prompt_start[group + 1];
  int64_t stride = (int64_t)t->kv_heads * t->dim;
  for (int32_t h = k * shared; h < (k + 1) * shared; ++h) {
    running state[ROWS];
    for (int32_t i = 0; i < count; ++i) state[i] = (running){.largest = -INFINITY};
    for (int32_t j = first_prompt; j < last_prompt; j += TILE) {
      int64_t tile = dkv_offset(j, k, t->kv_heads, t->dim);
      for (int32_t i = 0; i < count; ++i)
        take_tile(&state[i], t->q + dkv_offset(row[i], h, t->heads, t->dim), cache->prompt_k + tile,
                  cache->prompt_v + tile, (int32_t)dkv_min(TILE, last_prompt - j), stride, t->dim, t->scale);
    }
    for (int32_t i = 0; i < count; ++i) {
      int32_t slot = t->slot[row[i]];
      for (int32_t j = 0; j < cache->length[slot]; j += TILE) {
        int64_t tile = dkv_offset((int64_t)slot * cache->capacity + j, k, t->kv_heads, t->dim);
        take_tile(&state[i], t->q + dkv_offset(row[i], h, t->heads, t->dim), cache->response_k + tile,
                  cache->response_v + tile, (int32_t)dkv_min(TILE, cache->length[slot] - j), stride, t->dim, t->scale);
      }
      float *out = t->out + dkv_offset(row[i], h, t->heads, t->dim);
      for (int32_t d = 0; d < t->dim; ++d) out[d] = state[i].value[d] / state[i].sum;
    }
  }
}

/** Rows [r0, r1), which may belong to several groups or to nobody, against key head k. */
static void block_of_rows(const task *t, int32_t r0, int32_t r1, int32_t k) {
  int32_t row[ROWS], count = 0, group = -1, shared = t->heads / t->kv_heads;
  for (int32_t r = r0; r < r1; ++r) {
    if (t->slot[r] < 0) {
      memset(t->out + dkv_offset(r, (int64_t)k * shared, t->heads, t->dim), 0,
             sizeof(float) * (size_t)(shared * t->dim));
      continue;
    }
    int32_t own = t->slot[r] / t->cache->responses;
    if (count > 0 && own != group) {
      rows_of_group(t, row, count, k);
      count = 0;
    }
    group = own;
    row[count++] = r;
  }
  if (count > 0) rows_of_group(t, row, count, k);
}

dkv_status dkv_cpu_decode_attention(const dkv_where *where, float *out, const float *q, const dkv_decode_cache *cache,
                                    const int32_t *slot, int32_t rows, int32_t heads, int32_t kv_heads,
                                    int32_t head_dim, float scale) {
  task t = {out, q, cache, slot, heads, kv_heads, head_dim, scale};
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(dkv_where_threads(where))
  for (int32_t block = 0; block < (rows + ROWS - 1) / ROWS; ++block)
    for (int32_t k = 0; k < kv_heads; ++k)
      block_of_rows(&t, block * ROWS, (int32_t)dkv_min(rows, (block + 1) * ROWS), k);
  return DKV_OK;
}

dkv_status dkv_cpu_append_rows(const dkv_where *where, float *cache, const float *x, const int32_t *slot,
                               const int32_t *length, int32_t rows, int32_t capacity, int32_t width) {
#pragma omp parallel for num_threads(dkv_where_threads(where))
  for (int32_t r = 0; r < rows; ++r) {
    if (slot[r] < 0) continue;
    int64_t place = (int64_t)slot[r] * capacity + length[slot[r]] - 1;
    memcpy(cache + place * width, x + dkv_offset(r, 0, 1, width), (size_t)width * sizeof *x);
  }
  return DKV_OK;
}
