/**
 * @file layout.c
 * @brief Builds the forest of segments: checks the caller's lists first, allocates afterwards, then fills seven arrays.
 *
 * Depth-first order means that the segments met so far always form one path from a root, the way a finger walks down a
 * family tree.  The next segment hangs itself below some member of that path; the members below that one are finished,
 * and the row where the new segment starts is where their subtrees end:
 *
 *     path 0 > 1 > 2, next segment 3 with parent 0:   subtrees of 2 and 1 end at start[3];   path 0 > 3
 *
 * Each segment leaves the path once, so walking up parent[] costs O(S) in all and no stack is needed.
 *
 * Read before: layout.h.  Read next: layout_check.c, layout_draw.c, tiles.c.
 */
#include "common/layout.h"

#include <stdlib.h>
#include <string.h>

/** malloc of n int32, never of zero bytes, so that NULL means failure only. */
static int32_t *new_array(int64_t n) { return malloc((size_t)(n > 0 ? n : 1) * sizeof(int32_t)); }

/** Checks parents and lengths of a forest in depth-first order; counts rows and depth. Allocates nothing. */
static dkv_status check_forest(int32_t segments, const int32_t *parent, const int32_t *length, int32_t *rows,
                               int32_t *depth) {
  int64_t total = 0;
  int32_t deepest = 0, level = 0; /* level: segments on the path that ends in the latest segment */
  for (int32_t s = 0; s < segments; ++s) {
    DKV_REQUIRE(length[s] >= 0, DKV_ERR_RANGE, "segment %d has length %d; a length is >= 0", s, length[s]);
    total += length[s];
    DKV_REQUIRE(total <= DKV_MAX_ROWS, DKV_ERR_RANGE,
                "segments 0 to %d have %lld rows together; a layout has at most %d", s, (long long)total, DKV_MAX_ROWS);
    DKV_REQUIRE(parent[s] >= -1 && parent[s] < s, DKV_ERR_LAYOUT,
                "segment %d has parent %d; a parent is -1 (a root) or an earlier segment", s, parent[s]);
    int32_t above = s - 1;
    if (parent[s] < 0) {
      level = 0;
    } else {
      while (above >= 0 && above != parent[s]) above = parent[above], --level;
      DKV_REQUIRE(above >= 0, DKV_ERR_LAYOUT,
                  "segment %d has parent %d, whose subtree ended before; segments are listed depth first", s,
                  parent[s]);
    }
    if (++level > deepest) deepest = level;
  }
  *rows = (int32_t)total;
  *depth = deepest;
  return DKV_OK;
}

/** Allocates the arrays for out->segments and out->rows; on failure frees what it got. */
static dkv_status allocate(dkv_layout *out) {
  int32_t segments = out->segments, rows = out->rows;
  out->parent = new_array(segments);
  out->start = new_array((int64_t)segments + 1);
  out->subtree_end = new_array(segments);
  out->base = new_array(segments);
  out->segment = new_array(rows);
  out->end = new_array(rows);
  out->position = new_array(rows);
  if (out->parent && out->start && out->subtree_end && out->base && out->segment && out->end && out->position)
    return DKV_OK;
  dkv_layout_free(out);
  return dkv_fail(DKV_ERR_NOMEM, "no memory for a layout of %d segments and %d rows", segments, rows);
}

/** Fills parent, start, base, subtree_end from a checked forest. */
static void fill_segments(dkv_layout *out, const int32_t *parent, const int32_t *length) {
  int32_t segments = out->segments, row = 0;
  for (int32_t s = 0; s < segments; ++s) {
    out->parent[s] = parent[s];
    out->start[s] = row;
    out->base[s] = parent[s] < 0 ? 0 : out->base[parent[s]] + length[parent[s]];
    /* Everything on the path below the new segment's parent is finished. */
    for (int32_t above = s - 1; above != parent[s]; above = parent[above]) out->subtree_end[above] = row;
    row += length[s];
  }
  out->start[segments] = row;
  for (int32_t above = segments - 1; above >= 0; above = parent[above]) out->subtree_end[above] = row;
}

/** Fills segment, end, position, row by row. */
static void fill_rows(dkv_layout *out) {
  for (int32_t s = 0; s < out->segments; ++s) {
    for (int32_t t = out->start[s]; t < out->start[s + 1]; ++t) {
      out->segment[t] = s;
      out->end[t] = out->subtree_end[s];
      out->position[t] = out->base[s] + (t - out->start[s]);
    }
  }
}

dkv_status dkv_layout_forest(dkv_layout *out, int32_t segments, const int32_t *parent, const int32_t *length) {
  DKV_REQUIRE(out != NULL, DKV_ERR_NULL, "dkv_layout_forest: out must not be NULL");
  memset(out, 0, sizeof *out);
  DKV_REQUIRE(segments >= 0 && segments <= DKV_MAX_SEGMENTS, DKV_ERR_RANGE,
              "a layout of %d segments; the number is 0 to %d", segments, DKV_MAX_SEGMENTS);
  DKV_REQUIRE(segments == 0 || (parent != NULL && length != NULL), DKV_ERR_NULL,
              "dkv_layout_forest: parent and length must not be NULL for %d segments", segments);
  int32_t rows = 0, depth = 0;
  DKV_TRY(check_forest(segments, parent, length, &rows, &depth));
  out->segments = segments;
  out->rows = rows;
  out->depth = depth;
  DKV_TRY(allocate(out));
  fill_segments(out, parent, length);
  fill_rows(out);
  return DKV_OK;
}

dkv_status dkv_layout_group(dkv_layout *out, int32_t prompt, int32_t responses, const int32_t *length) {
  return dkv_layout_groups(out, 1, &prompt, &responses, length);
}

/** Checks the numbers of dkv_layout_groups that no forest shows; counts segments. */
static dkv_status check_groups(int32_t groups, const int32_t *prompt, const int32_t *responses, const int32_t *length,
                               int32_t *segments) {
  DKV_REQUIRE(groups >= 0, DKV_ERR_RANGE, "%d prompt groups; the number is >= 0", groups);
  DKV_REQUIRE(groups == 0 || (prompt != NULL && responses != NULL), DKV_ERR_NULL,
              "dkv_layout_groups: prompt and responses must not be NULL for %d groups", groups);
  int64_t total = 0;
  for (int32_t g = 0; g < groups; ++g) {
    DKV_REQUIRE(prompt[g] >= 0, DKV_ERR_RANGE, "group %d has a prompt of %d rows; a length is >= 0", g, prompt[g]);
    DKV_REQUIRE(responses[g] >= 0, DKV_ERR_RANGE, "group %d has %d responses; the number is >= 0", g, responses[g]);
    total += 1 + (int64_t)responses[g];
    DKV_REQUIRE(total <= DKV_MAX_SEGMENTS, DKV_ERR_RANGE,
                "groups 0 to %d have %lld prompts and responses together; a layout has at most %d segments", g,
                (long long)total, DKV_MAX_SEGMENTS);
  }
  DKV_REQUIRE(total == groups || length != NULL, DKV_ERR_NULL,
              "dkv_layout_groups: length must not be NULL for %lld responses", (long long)(total - groups));
  for (int64_t n = 0; n < total - groups; ++n)
    DKV_REQUIRE(length[n] >= 0, DKV_ERR_RANGE, "response %lld has length %d; a length is >= 0", (long long)n,
                length[n]);
  *segments = (int32_t)total;
  return DKV_OK;
}

dkv_status dkv_layout_groups(dkv_layout *out, int32_t groups, const int32_t *prompt, const int32_t *responses,
                             const int32_t *length) {
  DKV_REQUIRE(out != NULL, DKV_ERR_NULL, "dkv_layout_groups: out must not be NULL");
  memset(out, 0, sizeof *out);
  int32_t segments = 0;
  DKV_TRY(check_groups(groups, prompt, responses, length, &segments));
  int32_t *parent = new_array(segments), *rows = new_array(segments);
  dkv_status status = DKV_OK;
  if (parent == NULL || rows == NULL) {
    status = dkv_fail(DKV_ERR_NOMEM, "no memory for the list of %d segments", segments);
  } else {
    int32_t s = 0;
    for (int32_t g = 0; g < groups; ++g) {
      int32_t root = s;
      parent[s] = -1;
      rows[s++] = prompt[g];
      for (int32_t n = 0; n < responses[g]; ++n) {
        parent[s] = root;
        rows[s++] = *length++;
      }
    }
    status = dkv_layout_forest(out, segments, parent, rows);
  }
  free(parent);
  free(rows);
  return status;
}

/** Writes the packed row behind every row of the copy of the path that ends in `leaf`. */
static void map_path(int32_t *map, const dkv_layout *packed, int32_t leaf) {
  for (int32_t s = leaf; s >= 0; s = packed->parent[s])
    for (int32_t i = 0; i < dkv_layout_length(packed, s); ++i) map[packed->base[s] + i] = packed->start[s] + i;
}

/** Counts the leaves and the rows of all root-to-leaf paths, refusing too many. */
static dkv_status count_paths(const dkv_layout *packed, int32_t *leaves, int64_t *rows) {
  *leaves = 0;
  *rows = 0;
  for (int32_t s = 0; s < packed->segments; ++s) {
    if (!dkv_layout_is_leaf(packed, s)) continue;
    *rows += (int64_t)packed->base[s] + dkv_layout_length(packed, s);
    ++*leaves;
    DKV_REQUIRE(*rows <= DKV_MAX_ROWS, DKV_ERR_RANGE,
                "the first %d paths of %d packed rows hold %lld rows when replicated; a layout has at most %d", *leaves,
                packed->rows, (long long)*rows, DKV_MAX_ROWS);
  }
  return DKV_OK;
}

dkv_status dkv_layout_replicate(dkv_layout *out, int32_t **row_map, const dkv_layout *packed) {
  DKV_REQUIRE(out != NULL && packed != NULL, DKV_ERR_NULL, "dkv_layout_replicate: out and packed must not be NULL");
  memset(out, 0, sizeof *out);
  if (row_map != NULL) *row_map = NULL;
  int32_t leaves;
  int64_t rows;
  DKV_TRY(count_paths(packed, &leaves, &rows));
  int32_t *parent = new_array(leaves), *length = new_array(leaves), *map = row_map != NULL ? new_array(rows) : NULL;
  dkv_status status = DKV_OK;
  if (parent == NULL || length == NULL || (row_map != NULL && map == NULL)) {
    status = dkv_fail(DKV_ERR_NOMEM, "no memory for a replicated layout of %lld rows", (long long)rows);
  } else {
    int32_t n = 0;
    int64_t row = 0;
    for (int32_t s = 0; s < packed->segments; ++s) {
      if (!dkv_layout_is_leaf(packed, s)) continue;
      parent[n] = -1;
      length[n] = packed->base[s] + dkv_layout_length(packed, s);
      if (map != NULL) map_path(map + row, packed, s);
      row += length[n++];
    }
    status = dkv_layout_forest(out, leaves, parent, length);
  }
  free(parent);
  free(length);
  if (status != DKV_OK) free(map);
  else if (row_map != NULL) *row_map = map;
  return status;
}

dkv_status dkv_layout_copy(dkv_layout *out, const dkv_layout *from) {
  DKV_REQUIRE(out != NULL && from != NULL, DKV_ERR_NULL, "dkv_layout_copy: out and from must not be NULL");
  if (from->start == NULL) return dkv_layout_forest(out, 0, NULL, NULL); /* a zeroed struct: the empty layout */
  memset(out, 0, sizeof *out);
  out->segments = from->segments;
  out->rows = from->rows;
  out->depth = from->depth;
  DKV_TRY(allocate(out));
  size_t segments = (size_t)from->segments * sizeof(int32_t), rows = (size_t)from->rows * sizeof(int32_t);
  memcpy(out->start, from->start, segments + sizeof(int32_t));
  if (segments > 0) {
    memcpy(out->parent, from->parent, segments);
    memcpy(out->subtree_end, from->subtree_end, segments);
    memcpy(out->base, from->base, segments);
  }
  if (rows > 0) {
    memcpy(out->segment, from->segment, rows);
    memcpy(out->end, from->end, rows);
    memcpy(out->position, from->position, rows);
  }
  return DKV_OK;
}

void dkv_layout_free(dkv_layout *layout) {
  if (layout == NULL) return;
  free(layout->parent);
  free(layout->start);
  free(layout->subtree_end);
  free(layout->base);
  free(layout->segment);
  free(layout->end);
  free(layout->position);
  memset(layout, 0, sizeof *layout);
}

int64_t dkv_layout_pairs(const dkv_layout *layout) {
  int64_t pairs = 0;
  for (int32_t s = 0; s < layout->segments; ++s) {
    int64_t n = dkv_layout_length(layout, s), seen = layout->subtree_end[s] - layout->start[s];
    pairs += n * seen - n * (n - 1) / 2; /* row j of the segment is seen by end - j rows: seen, seen - 1, ... */
  }
  return pairs;
}
