/**
 * @file layout.h
 * @brief The packed layout: T rows that belong to S segments, which form a forest listed depth first.
 *
 *     group(P=3, R={2,2})         segment   parent  length  start  subtree_end
 *       row   0 1 2 3 4 5 6          0        -1      3       0        7
 *       what  p p p a a b b          1         0      2       3        5
 *       end   7 7 7 5 5 7 7          2         0      2       5        7
 *       pos   0 1 2 3 4 3 4
 *
 * A prompt is a root; its responses are its children.  Several prompt groups are several roots.  Deeper trees (a shared
 * turn, then branches) are the same structure.  A segment's descendants come right after it (depth-first order), so the
 * subtree of a segment is one contiguous range of rows.  Lengths are free: zero is legal.
 *
 * "Replicated", the ordinary N(P+R) batch, is a layout too: one root for every path from a root to a leaf.  Nothing but
 * the layout differs between the two; every kernel runs both.
 *
 * Ownership: a dkv_layout owns its arrays; initialise with one of the constructors, release with dkv_layout_free, which
 * accepts a zeroed struct.  A constructor that fails leaves *out zeroed.
 *
 * Read before: status.h.  Read next: mask.h, pack.h.
 */
#ifndef DKV_LAYOUT_H
#define DKV_LAYOUT_H

#include "common/status.h"

DKV_BEGIN_C

/** Most segments that a layout may have. */
#define DKV_MAX_SEGMENTS (1 << 26)
/** Most rows: row numbers are int32 with room for a tile beyond the last; offsets are 64-bit. */
#define DKV_MAX_ROWS INT32_C(2147480000)

/** A forest of segments over T packed rows. All arrays are owned; see dkv_layout_free. */
typedef struct dkv_layout {
  int32_t segments;     /**< S, number of segments */
  int32_t rows;         /**< T, number of packed rows */
  int32_t depth;        /**< segments on the longest path from a root (1 = roots only; 0 = no segment) */
  int32_t *parent;      /**< [S] parent segment, -1 for a root; parent[s] < s */
  int32_t *start;       /**< [S+1] first row of segment s; start[S] = T */
  int32_t *subtree_end; /**< [S] one past the last row of the subtree of segment s */
  int32_t *base;        /**< [S] position of the first row of segment s on its path: rows of all proper ancestors */
  int32_t *segment;     /**< [T] segment of each row */
  int32_t *end;         /**< [T] end[j] = subtree_end[segment[j]]: the whole mask, see mask.h */
  int32_t *position;    /**< [T] path position of each row, for RoPE: base of its segment + index inside it */
} dkv_layout;

/**
 * Builds a layout from any forest in depth-first order.
 * @param[out] out      overwritten; zeroed on failure
 * @param[in]  segments S >= 0
 * @param[in]  parent   [S] parent of each segment or -1; must be < its own index, and every subtree must be contiguous:
 *                      parent[s] is s-1 or a proper ancestor-or-self of it, or -1
 * @param[in]  length   [S] rows of each segment, >= 0
 * @return DKV_OK; DKV_ERR_NULL (an array is NULL while S > 0); DKV_ERR_RANGE (S < 0 or > DKV_MAX_SEGMENTS, a negative
 *         length, more than DKV_MAX_ROWS rows); DKV_ERR_LAYOUT (a parent that is not earlier, or not depth first);
 *         DKV_ERR_NOMEM
 */
dkv_status dkv_layout_forest(dkv_layout *out, int32_t segments, const int32_t *parent, const int32_t *length);

/**
 * Builds one prompt group: a root of `prompt` rows with `responses` children.
 * @param[out] out       overwritten; zeroed on failure
 * @param[in]  prompt    P >= 0, rows of the prompt
 * @param[in]  responses N >= 0
 * @param[in]  length    [N] rows of each response, >= 0
 * @return as dkv_layout_forest
 */
dkv_status dkv_layout_group(dkv_layout *out, int32_t prompt, int32_t responses, const int32_t *length);

/**
 * Builds several prompt groups, one after another.
 * @param[out] out       overwritten; zeroed on failure
 * @param[in]  groups    G >= 0
 * @param[in]  prompt    [G] prompt rows of each group
 * @param[in]  responses [G] number of responses of each group
 * @param[in]  length    [sum of responses] rows of each response, group by group
 * @return as dkv_layout_forest
 */
dkv_status dkv_layout_groups(dkv_layout *out, int32_t groups, const int32_t *prompt, const int32_t *responses,
                             const int32_t *length);

/**
 * Builds the replicated layout of `packed`: one root for every path from a root to a leaf segment, in leaf order,
 * holding the rows of the whole path.  A leaf of zero length still gets its copy of the path.
 * @param[out] out     the replicated layout; zeroed on failure
 * @param[out] row_map on success a malloc'd [out->rows] array: packed row behind each replicated row; free() it.
 *                     May be NULL if not wanted.
 * @param[in]  packed  any layout
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE (more than DKV_MAX_ROWS replicated rows); DKV_ERR_NOMEM
 */
dkv_status dkv_layout_replicate(dkv_layout *out, int32_t **row_map, const dkv_layout *packed);

/**
 * Deep copy.
 * @param[out] out  overwritten; zeroed on failure
 * @param[in]  from any layout; a zeroed struct counts as the empty one
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_NOMEM
 */
dkv_status dkv_layout_copy(dkv_layout *out, const dkv_layout *from);

/**
 * Checks every invariant of an existing layout (for layouts that crossed a language border).
 * @param[in] layout the layout
 * @return DKV_OK; DKV_ERR_NULL (the layout or an array it needs); DKV_ERR_LAYOUT with the first violated invariant,
 *         segment or row named
 */
dkv_status dkv_layout_check(const dkv_layout *layout);

/** Releases the arrays and zeroes the struct. @param[in,out] layout a built or zeroed layout, or NULL. */
void dkv_layout_free(dkv_layout *layout);

/** Rows of a segment. @param[in] layout any. @param[in] s 0 to S-1. @return its length. */
static inline int32_t dkv_layout_length(const dkv_layout *layout, int32_t s) {
  return layout->start[s + 1] - layout->start[s];
}

/**
 * Does segment s have no child? Children come right after their parent, so one comparison tells.
 * @param[in] layout any
 * @param[in] s      0 to S-1
 * @return true for a leaf
 */
static inline bool dkv_layout_is_leaf(const dkv_layout *layout, int32_t s) {
  return s + 1 == layout->segments || layout->parent[s + 1] != s;
}

/**
 * Exact number of visible (query, key) pairs, sum over rows j of end[j] - j, in O(S) without visiting pairs.
 * @param[in] layout any layout
 * @return pairs
 */
int64_t dkv_layout_pairs(const dkv_layout *layout);

/**
 * Draws segments, positions and (for T <= 64) the mask as text, for people.
 * @param[out] out   a malloc'd NUL-terminated string; free() it
 * @param[in] layout any layout
 * @param[in] tile   > 0 also draws the tile classes of tile x tile blocks; 0 leaves them out
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_NOMEM
 */
dkv_status dkv_layout_draw(char **out, const dkv_layout *layout, int32_t tile);

DKV_END_C
#endif
