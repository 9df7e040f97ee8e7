/**
 * @file tiles.h
 * @brief From the mask to tiles: which key ranges a tile of query rows needs, which query range a tile of keys needs,
 * and which (query tile, key tile) pairs are empty, full or partial.
 *
 * A tile of consecutive query rows [i0, i1) sees: the rows of the ancestors of its first row's segment (for a group:
 * the prompt), and the rows from the start of that segment to i1.  So for groups there are at most two contiguous key
 * ranges, for trees at most depth.  Tiles may straddle responses and groups; no response is padded.  A tile of keys
 * [j0, j1) is seen by queries of one contiguous range, [j0, largest end[j]).
 *
 * Read before: mask.h.  Read next: cpu/attention/tiled_fwd.c.
 */
#ifndef DKV_TILES_H
#define DKV_TILES_H

#include "common/layout.h"
#include "common/mask.h"

DKV_BEGIN_C

/** What a kernel must do with one (query tile, key tile) pair. */
typedef enum dkv_tile_class {
  DKV_TILE_EMPTY,  /**< no pair is visible: skip it */
  DKV_TILE_FULL,   /**< every pair is visible: no mask code */
  DKV_TILE_PARTIAL /**< some are: apply rule dkv_sees element by element */
} dkv_tile_class;

/** A contiguous range of rows, [begin, end). */
typedef struct dkv_range {
  int32_t begin; /**< first row */
  int32_t end;   /**< one past the last row */
} dkv_range;

/**
 * Class of the tile pair query rows [i0, i1) x key rows [j0, j1), exact for any layout, in O(segments inside the key
 * tile).
 * @param[in] layout the layout
 * @param[in] i0     first query row, 0 <= i0 < i1
 * @param[in] i1     one past the last query row, <= T
 * @param[in] j0     first key row, 0 <= j0 < j1
 * @param[in] j1     one past the last key row, <= T
 * @return the class
 */
dkv_tile_class dkv_tile_classify(const dkv_layout *layout, int32_t i0, int32_t i1, int32_t j0, int32_t j1);

/**
 * Key ranges that a tile of query rows needs, ascending, disjoint, adjacent ones merged; every visible key lies in one,
 * and every range holds at least one visible key.
 * @param[in]  layout   the layout
 * @param[in]  i0       first query row, 0 <= i0 < i1
 * @param[in]  i1       one past the last query row, <= T
 * @param[out] ranges   [capacity] overwritten
 * @param[in]  capacity layout->depth + 1 always suffices; with less, the earliest ranges are joined across the gap
 *                      between them, so that every visible key still lies in one (0: nothing is written)
 * @return number of ranges written
 */
int32_t dkv_key_ranges(const dkv_layout *layout, int32_t i0, int32_t i1, dkv_range *ranges, int32_t capacity);

/**
 * Query range that sees at least one key of the tile: [j0, max end[j]).
 * @param[in] layout the layout
 * @param[in] j0     first key row, 0 <= j0 < j1
 * @param[in] j1     one past the last key row, <= T
 * @return the range
 */
dkv_range dkv_query_range(const dkv_layout *layout, int32_t j0, int32_t j1);

/** How much work a tiling of a layout does, counted exactly. */
typedef struct dkv_tile_count {
  int64_t full;          /**< tile pairs without mask code */
  int64_t partial;       /**< tile pairs with mask code */
  int64_t empty_skipped; /**< tile pairs of the T x T square that are never visited */
  int64_t issued_pairs;  /**< (query, key) pairs inside visited tile pairs, masked or not */
  int64_t useful_pairs;  /**< visible pairs, = dkv_layout_pairs */
} dkv_tile_count;

/**
 * Counts the tile pairs that a kernel with query tiles of `rows` and key tiles of `keys` visits.
 * @param[out] out    overwritten
 * @param[in]  layout the layout
 * @param[in]  rows   query rows of a tile, > 0
 * @param[in]  keys   keys of a tile, > 0
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE; DKV_ERR_NOMEM
 */
dkv_status dkv_tile_counts(dkv_tile_count *out, const dkv_layout *layout, int32_t rows, int32_t keys);

DKV_END_C
#endif
