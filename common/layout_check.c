/**
 * @file layout_check.c
 * @brief Every invariant of a layout, checked: what layout.c promises, and what a caller from another language must
 * keep.
 *
 * The arrays are redundant on purpose (kernels read them, nobody recomputes), so each is compared with the definition.
 * Nothing is read before the numbers that bound it have been checked.
 *
 * Read before: layout.c.
 */
#include "common/layout.h"

/** Sizes in range and no array missing. */
static dkv_status check_sizes(const dkv_layout *layout) {
  int32_t segments = layout->segments, rows = layout->rows;
  DKV_REQUIRE(segments >= 0 && segments <= DKV_MAX_SEGMENTS, DKV_ERR_LAYOUT,
              "the layout has %d segments; the number is 0 to %d", segments, DKV_MAX_SEGMENTS);
  DKV_REQUIRE(rows >= 0 && rows <= DKV_MAX_ROWS, DKV_ERR_LAYOUT, "the layout has %d rows; the number is 0 to %d", rows,
              DKV_MAX_ROWS);
  DKV_REQUIRE(layout->start != NULL, DKV_ERR_NULL, "the layout's array start is NULL");
  DKV_REQUIRE(segments == 0 || (layout->parent != NULL && layout->subtree_end != NULL && layout->base != NULL),
              DKV_ERR_NULL, "parent, subtree_end or base is NULL in a layout of %d segments", segments);
  DKV_REQUIRE(rows == 0 || (layout->segment != NULL && layout->end != NULL && layout->position != NULL), DKV_ERR_NULL,
              "segment, end or position is NULL in a layout of %d rows", rows);
  return DKV_OK;
}

/** start[] rises from 0 to T. */
static dkv_status check_starts(const dkv_layout *layout) {
  int32_t segments = layout->segments;
  DKV_REQUIRE(layout->start[0] == 0, DKV_ERR_LAYOUT, "start[0] is %d; the first row is 0", layout->start[0]);
  for (int32_t s = 0; s < segments; ++s)
    DKV_REQUIRE(layout->start[s + 1] >= layout->start[s], DKV_ERR_LAYOUT,
                "start[%d] is %d, less than start[%d] = %d; segments follow each other", s + 1, layout->start[s + 1], s,
                layout->start[s]);
  DKV_REQUIRE(layout->start[segments] == layout->rows, DKV_ERR_LAYOUT, "start[%d] is %d; it must be the %d rows",
              segments, layout->start[segments], layout->rows);
  return DKV_OK;
}

/** The segments from `from` up to, not including, `to` on a path are finished: their subtrees end at row `end`. */
static dkv_status check_finished(const dkv_layout *layout, int32_t from, int32_t to, int32_t end, int32_t *level) {
  for (int32_t s = from; s != to; s = layout->parent[s], --*level) {
    DKV_REQUIRE(s >= 0, DKV_ERR_LAYOUT,
                "segment %d has parent %d, whose subtree ended before; segments are listed depth first", from + 1, to);
    DKV_REQUIRE(layout->subtree_end[s] == end, DKV_ERR_LAYOUT,
                "subtree_end[%d] is %d; its last descendant ends at row %d", s, layout->subtree_end[s], end);
  }
  return DKV_OK;
}

/** parent, base, subtree_end and depth. */
static dkv_status check_tree(const dkv_layout *layout) {
  int32_t deepest = 0, level = 0;
  for (int32_t s = 0; s < layout->segments; ++s) {
    int32_t parent = layout->parent[s];
    DKV_REQUIRE(parent >= -1 && parent < s, DKV_ERR_LAYOUT,
                "segment %d has parent %d; a parent is -1 (a root) or an earlier segment", s, parent);
    DKV_TRY(check_finished(layout, s - 1, parent, layout->start[s], &level));
    if (++level > deepest) deepest = level;
    int32_t base = parent < 0 ? 0 : layout->base[parent] + dkv_layout_length(layout, parent);
    DKV_REQUIRE(layout->base[s] == base, DKV_ERR_LAYOUT, "base[%d] is %d; its ancestors have %d rows", s,
                layout->base[s], base);
  }
  DKV_TRY(check_finished(layout, layout->segments - 1, -1, layout->rows, &level));
  DKV_REQUIRE(layout->depth == deepest, DKV_ERR_LAYOUT, "depth is %d; the longest path has %d segments", layout->depth,
              deepest);
  return DKV_OK;
}

/** segment, end and position of every row. */
static dkv_status check_rows(const dkv_layout *layout) {
  for (int32_t s = 0; s < layout->segments; ++s) {
    for (int32_t t = layout->start[s]; t < layout->start[s + 1]; ++t) {
      int32_t position = layout->base[s] + (t - layout->start[s]);
      DKV_REQUIRE(layout->segment[t] == s, DKV_ERR_LAYOUT, "segment[%d] is %d; row %d lies in segment %d", t,
                  layout->segment[t], t, s);
      DKV_REQUIRE(layout->end[t] == layout->subtree_end[s], DKV_ERR_LAYOUT,
                  "end[%d] is %d; the subtree of segment %d ends at row %d", t, layout->end[t], s,
                  layout->subtree_end[s]);
      DKV_REQUIRE(layout->position[t] == position, DKV_ERR_LAYOUT, "position[%d] is %d; on its path row %d is at %d", t,
                  layout->position[t], t, position);
    }
  }
  return DKV_OK;
}

dkv_status dkv_layout_check(const dkv_layout *layout) {
  DKV_REQUIRE(layout != NULL, DKV_ERR_NULL, "dkv_layout_check: layout must not be NULL");
  DKV_TRY(check_sizes(layout));
  DKV_TRY(check_starts(layout));
  DKV_TRY(check_tree(layout));
  return check_rows(layout);
}
