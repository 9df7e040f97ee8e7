/**
 * @file tile.h
 * @brief How the tiled kernels cut the problem: stacked query rows in panels of lanes, keys in tiles.
 *
 * The g = H / Hkv query heads of one key head read the same keys, so their rows are stacked: lane l = (i - i0) g +
 * head. A row of q holds these heads side by side, so the stack is contiguous per row.
 *
 *     query tile: rows [i0, i1)   lanes  0 .......................... (i1 - i0) g
 *                                 | panel 0   | panel 1   | ...                   |   DKV_PANEL lanes each: 3 vectors
 *     key tile: keys [j0, j1)     scores of a panel: [key][lane], a vector holds one key and 16 query rows
 *
 * With queries along the vector, the softmax needs no sum across a vector, K and V are read as they lie in memory, and
 * rule dkv_sees becomes one interval of lanes for each key.  Tiles are cut by size alone, never by the number of
 * threads.
 *
 * Everything inside a tile is f32; storage types are converted when a tile is loaded or written.
 *
 * Read before: product.h, common/tiles.h.  Read next: tiled_fwd.c.
 */
#ifndef DKV_TILE_H
#define DKV_TILE_H

#include <string.h>

#include "common/attention.h"
#include "common/tiles.h"
#include "cpu/attention/product.h"
#include "cpu/half.h"

/** Lanes of a panel. */
#define DKV_PANEL (DKV_NV * DKV_LANES)
/** Keys of a key tile; tiles start at multiples of it. */
#define DKV_KEYS 128
/** Stacked rows of a query tile, forward: many, so that loading a key tile costs little beside using it. */
#define DKV_FWD_LANES 480
/** The same, backward, which keeps five tensors per row: what a tile holds in f32 should stay in a 2 MiB cache. */
#define DKV_BWD_LANES 240

/** A query tile of one key head. */
struct query_tile {
  int32_t i0, i1; /**< rows */
  int32_t group;  /**< g, stacked heads */
  int32_t lanes;  /**< (i1 - i0) g */
  int32_t panels; /**< ceil(lanes / DKV_PANEL) */
};

/** Keys [first, last) of a key tile that a panel needs, counted from j0, in whole register blocks. */
struct key_span {
  int32_t first, last;
  bool masked; /**< some (key, lane) pairs inside are not visible */
};

/**
 * Rows of a query tile of about `lanes` stacked rows; of a small problem fewer, so that there are some 16 tiles to
 * share out.
 */
static inline int32_t rows_of_tile(const dkv_attention *p, int32_t lanes) {
  const int32_t group = p->heads / p->kv_heads;
  const int64_t share = dkv_max((int64_t)p->layout->rows * p->heads / 16, 3 * DKV_PANEL);
  return (int32_t)dkv_max(dkv_min(lanes, share) / group, 1);
}

/** Cuts out query tile `index` of tiles of `rows` rows. */
static inline struct query_tile cut_query_tile(const dkv_attention *p, int32_t rows, int64_t index) {
  struct query_tile tile = {.group = p->heads / p->kv_heads};
  tile.i0 = (int32_t)(index * rows);
  tile.i1 = (int32_t)dkv_min(index * rows + rows, p->layout->rows);
  tile.lanes = (tile.i1 - tile.i0) * tile.group;
  tile.panels = (tile.lanes + DKV_PANEL - 1) / DKV_PANEL;
  return tile;
}

/** Vectors that hold lanes of panel `panel`: 1 to DKV_NV. */
static inline int panel_vectors(const struct query_tile *tile, int32_t panel) {
  int32_t left = tile->lanes - panel * DKV_PANEL;
  return left >= DKV_PANEL ? DKV_NV : (left + DKV_LANES - 1) / DKV_LANES;
}

/** Lane interval [*lo, *hi) of panel `panel` that sees key j. A key is seen by consecutive rows, so by consecutive
 * lanes. */
static inline void visible_lanes(const struct query_tile *tile, int32_t panel, int32_t j, int32_t end_j, int32_t *lo,
                                 int32_t *hi) {
  const int32_t lane0 = panel * DKV_PANEL;
  const int32_t from = j > tile->i0 ? (j - tile->i0) * tile->group - lane0 : 0;
  const int32_t to = (end_j < tile->i1 ? (end_j - tile->i0) * tile->group : tile->lanes) - lane0;
  *lo = from > 0 ? from : 0;
  *hi = to < DKV_PANEL ? to : DKV_PANEL;
}

/** What panel `panel` needs of keys [j0, j1); an empty span when it sees none of them. */
static inline struct key_span span_of_keys(const dkv_layout *layout, const struct query_tile *tile, int32_t panel,
                                           int32_t j0, int32_t j1) {
  const int32_t lane0 = panel * DKV_PANEL;
  const int32_t lane1 = (int32_t)dkv_min(lane0 + DKV_PANEL, tile->lanes);
  const int32_t a = tile->i0 + lane0 / tile->group, b = tile->i0 + (lane1 - 1) / tile->group + 1; /* rows [a, b) */
  const dkv_tile_class class = dkv_tile_classify(layout, a, b, j0, j1);
  struct key_span span = {0, 0, false};
  if (class == DKV_TILE_EMPTY) return span;
  int32_t first = j0, last = j1;
  if (class == DKV_TILE_PARTIAL) {
    while (layout->end[first] <= a) ++first; /* some key is visible, so both loops stop */
    if (last > b) last = b;
    while (layout->end[last - 1] <= a) --last;
  }
  span.first = (first - j0) / DKV_MR * DKV_MR;
  span.last = (last - j0 + DKV_MR - 1) / DKV_MR * DKV_MR;
  span.masked = class == DKV_TILE_PARTIAL || (j1 - j0) % DKV_MR != 0; /* a ragged tile has made-up keys at its end */
  return span;
}

/** Floats of a row of `dim` elements in storage type `dtype`. @param[out] out [dim] */
static inline void load_floats(float *DKV_RESTRICT out, const void *data, dkv_dtype dtype, int64_t offset,
                               int32_t dim) {
  const uint16_t *half = (const uint16_t *)data + offset;
  if (dtype == DKV_F32) memcpy(out, (const float *)data + offset, (size_t)dim * sizeof(float));
  else if (dtype == DKV_BF16) bf16_to_floats(out, half, dim);
  else f16_to_floats(out, half, dim);
}

/** Rounds a row of floats to storage. @param[in] in [dim] */
static inline void store_floats(void *data, dkv_dtype dtype, int64_t offset, const float *DKV_RESTRICT in,
                                int32_t dim) {
  uint16_t *half = (uint16_t *)data + offset;
  if (dtype == DKV_F32) memcpy((float *)data + offset, in, (size_t)dim * sizeof(float));
  else if (dtype == DKV_BF16) floats_to_bf16(half, in, dim);
  else floats_to_f16(half, in, dim);
}

/** Offset of lane `lane`'s row in a [T][H][D] tensor. */
static inline int64_t lane_offset(const dkv_attention *p, const struct query_tile *tile, int32_t k_head, int32_t lane) {
  return dkv_offset(tile->i0 + lane / tile->group, k_head * tile->group + lane % tile->group, p->heads, p->head_dim);
}

/**
 * Stacked query rows, transposed: out[panel][d][lane] = factor * row(lane)[d].  Lanes past the end become 0.
 * @param[out] out [panels][D][DKV_PANEL]
 */
static inline void load_lanes(float *out, const void *tensor, const dkv_attention *p, const struct query_tile *tile,
                              int32_t k_head, float factor) {
  const int32_t D = p->head_dim;
  float row[DKV_MAX_HEAD_DIM];
  for (int32_t lane = 0; lane < tile->panels * DKV_PANEL; ++lane) {
    float *at = out + (size_t)(lane / DKV_PANEL) * (size_t)D * DKV_PANEL + lane % DKV_PANEL;
    if (lane < tile->lanes) load_floats(row, tensor, p->dtype, lane_offset(p, tile, k_head, lane), D);
    else memset(row, 0, sizeof row);
    for (int32_t d = 0; d < D; ++d) at[d * DKV_PANEL] = factor * row[d];
  }
}

/** The way back: row(lane)[d] = factor[lane] * in[panel][d][lane]. @param[in] factor [panels * DKV_PANEL] */
static inline void store_lanes(void *tensor, const float *in, const dkv_attention *p, const struct query_tile *tile,
                               int32_t k_head, const float *factor) {
  const int32_t D = p->head_dim;
  float row[DKV_MAX_HEAD_DIM];
  for (int32_t lane = 0; lane < tile->lanes; ++lane) {
    const float *at = in + (size_t)(lane / DKV_PANEL) * (size_t)D * DKV_PANEL + lane % DKV_PANEL;
    for (int32_t d = 0; d < D; ++d) row[d] = factor[lane] * at[d * DKV_PANEL];
    store_floats(tensor, p->dtype, lane_offset(p, tile, k_head, lane), row, D);
  }
}

/** Rows [j0, j1) of k or v as they lie: out[key][d]; zero rows up to a whole register block. @param[out] out
 * [DKV_KEYS][D] */
static inline void load_keys(float *out, const void *tensor, const dkv_attention *p, int32_t k_head, int32_t j0,
                             int32_t j1) {
  const int32_t D = p->head_dim, count = j1 - j0;
  for (int32_t j = 0; j < count; ++j)
    load_floats(out + (size_t)j * (size_t)D, tensor, p->dtype, dkv_offset(j0 + j, k_head, p->kv_heads, D), D);
  for (int32_t j = count; j % DKV_MR != 0; ++j) memset(out + (size_t)j * (size_t)D, 0, (size_t)D * sizeof(float));
}

/** Rows [j0, j1) of one key head of two [T][Hkv][D] tensors whose elements take `size` bytes, to be asked for ahead. */
static inline struct rows_ahead keys_ahead(const void *first, const void *second, size_t size, const dkv_attention *p,
                                           int32_t k_head, int32_t j0, int32_t j1) {
  const size_t at = (size_t)dkv_offset(j0, k_head, p->kv_heads, p->head_dim) * size;
  return (struct rows_ahead){.first = (const char *)first + at,
                             .second = (const char *)second + at,
                             .stride = (size_t)p->kv_heads * (size_t)p->head_dim * size,
                             .bytes = (size_t)p->head_dim * size,
                             .rows = j1 > j0 ? j1 - j0 : 0};
}

/** First row of the first key tile at or after j0 that the query tile sees; tile->i1 or more when there is none. */
static inline int32_t next_key_tile(const dkv_layout *layout, const struct query_tile *tile, int32_t j0) {
  while (j0 < tile->i1) {
    const int32_t j1 = (int32_t)dkv_min((int64_t)j0 + DKV_KEYS, layout->rows);
    if (dkv_query_range(layout, j0, j1).end > tile->i0) break;
    j0 += DKV_KEYS;
  }
  return j0;
}

/** Floats from one block of columns to the next: two keys more than a tile, or all blocks would meet in one cache set.
 */
#define DKV_COLUMN_BLOCK ((DKV_KEYS + 2) * DKV_MR)

/**
 * Columns of loaded keys in blocks, so that a product over keys reads one stream: block d / DKV_MR, [key][d % DKV_MR].
 * @param[out] out  [D / DKV_MR][DKV_COLUMN_BLOCK]
 * @param[in]  rows [count][D]
 */
static inline void block_columns(float *DKV_RESTRICT out, const float *DKV_RESTRICT rows, int32_t count, int32_t D) {
  for (int32_t j = 0; j < count; ++j)
    for (int32_t d = 0; d < D; d += DKV_MR)
      memcpy(out + (size_t)(d / DKV_MR) * DKV_COLUMN_BLOCK + (size_t)j * DKV_MR, rows + (size_t)j * (size_t)D + d,
             DKV_MR * sizeof(float));
}

#endif
