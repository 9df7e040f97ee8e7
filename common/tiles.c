/**
 * @file tiles.c
 * @brief Which blocks of the mask hold work: exact, and without looking at rows one by one.
 *
 * A query tile [i0, i1) sees a key row j when j < i1 and end[j] > i0 for some query, and is seen by all of them when
 * j <= i0 and end[j] >= i1.  end[] is constant inside a segment, so a key tile is judged by its segments.
 *
 *                    key tile (prompt)   key tile (a)     key tile (b)
 *     queries of a        FULL              PARTIAL          EMPTY
 *     queries of b        FULL              EMPTY            PARTIAL
 *
 * Key ranges: a key row before the first row's segment that any query of the tile sees must have its end beyond i0, so
 * the first row sees it too: it belongs to an ancestor.  Hence "the ancestors of the first row's segment, and the rows
 * from that segment's start to i1" is everything.
 *
 * Read before: tiles.h.  Read next: cpu/attention/tiled_fwd.c.
 */
#include "common/tiles.h"

#include <stdlib.h>
#include <string.h>

/** First row of the next non-empty segment after the segment of row j. */
static int32_t next_segment_row(const dkv_layout *layout, int32_t j) { return layout->start[layout->segment[j] + 1]; }

dkv_tile_class dkv_tile_classify(const dkv_layout *layout, int32_t i0, int32_t i1, int32_t j0, int32_t j1) {
  bool any = false, all = j1 - 1 <= i0;
  for (int32_t j = j0; j < j1; j = next_segment_row(layout, j)) {
    int32_t end = layout->end[j];
    if (j < i1 && end > i0) any = true; /* row j is the earliest of its segment in the tile: enough for "any" */
    if (end < i1) all = false;
    if (any && !all) return DKV_TILE_PARTIAL;
  }
  return all ? DKV_TILE_FULL : DKV_TILE_EMPTY;
}

int32_t dkv_key_ranges(const dkv_layout *layout, int32_t i0, int32_t i1, dkv_range *ranges, int32_t capacity) {
  if (capacity < 1) return 0;
  int32_t s = layout->segment[i0], count = 1;
  ranges[0] = (dkv_range){layout->start[s], i1};
  for (int32_t a = layout->parent[s]; a >= 0; a = layout->parent[a]) { /* upwards: ranges come in descending order */
    int32_t begin = layout->start[a], end = layout->start[a + 1];
    if (begin == end) continue;
    if (end == ranges[count - 1].begin || count == capacity) ranges[count - 1].begin = begin;
    else ranges[count++] = (dkv_range){begin, end};
  }
  for (int32_t a = 0, b = count - 1; a < b; ++a, --b) {
    dkv_range swap = ranges[a];
    ranges[a] = ranges[b];
    ranges[b] = swap;
  }
  return count;
}

dkv_range dkv_query_range(const dkv_layout *layout, int32_t j0, int32_t j1) {
  dkv_range range = {j0, j0};
  for (int32_t j = j0; j < j1; j = next_segment_row(layout, j))
    if (layout->end[j] > range.end) range.end = layout->end[j];
  return range;
}

/** Adds `tiles` key tiles of `width` keys and one class, met by `queries` query rows. */
static void add_tiles(dkv_tile_count *out, dkv_tile_class class, int64_t tiles, int64_t width, int64_t queries) {
  if (class == DKV_TILE_EMPTY) return;
  *(class == DKV_TILE_FULL ? &out->full : &out->partial) += tiles;
  out->issued_pairs += tiles * width * queries;
}

/**
 * Counts the key tiles of a grid from tile `first` to the one that holds row `end - 1`, for one query tile.  Tiles that
 * lie inside one segment and not after i0 all have one class, so they are counted at once.
 */
static void count_range(dkv_tile_count *out, const dkv_layout *layout, dkv_range query, int64_t first, int32_t end,
                        int32_t keys) {
  for (int64_t tile = first; tile * keys < end;) {
    int32_t j0 = (int32_t)(tile * keys), j1 = (int32_t)dkv_min((int64_t)j0 + keys, layout->rows);
    int64_t same = (dkv_min(next_segment_row(layout, j0), (int64_t)query.begin + 1) - j0) / keys;
    dkv_tile_class class = dkv_tile_classify(layout, query.begin, query.end, j0, j1);
    if (same < 1) same = 1;
    add_tiles(out, class, same, j1 - j0, query.end - query.begin);
    tile += same;
  }
}

dkv_status dkv_tile_counts(dkv_tile_count *out, const dkv_layout *layout, int32_t rows, int32_t keys) {
  DKV_REQUIRE(out != NULL && layout != NULL, DKV_ERR_NULL, "dkv_tile_counts: out and layout must not be NULL");
  memset(out, 0, sizeof *out);
  DKV_REQUIRE(rows > 0 && keys > 0, DKV_ERR_RANGE, "tiles of %d rows x %d keys; both sizes are > 0", rows, keys);
  dkv_range *ranges = malloc(((size_t)layout->depth + 1) * sizeof *ranges);
  DKV_REQUIRE(ranges != NULL, DKV_ERR_NOMEM, "no memory for %d key ranges", layout->depth + 1);
  for (int64_t i0 = 0; i0 < layout->rows; i0 += rows) {
    dkv_range query = {(int32_t)i0, (int32_t)dkv_min(i0 + rows, layout->rows)};
    int32_t count = dkv_key_ranges(layout, query.begin, query.end, ranges, layout->depth + 1);
    int64_t next = 0; /* first key tile not counted yet: two ranges may share a tile */
    for (int32_t r = 0; r < count; ++r) {
      next = dkv_max(next, ranges[r].begin / keys);
      count_range(out, layout, query, next, ranges[r].end, keys);
      next = dkv_max(next, dkv_ceil_div(ranges[r].end, keys));
    }
  }
  free(ranges);
  out->empty_skipped = dkv_ceil_div(layout->rows, rows) * dkv_ceil_div(layout->rows, keys) - out->full - out->partial;
  out->useful_pairs = dkv_layout_pairs(layout);
  return DKV_OK;
}
