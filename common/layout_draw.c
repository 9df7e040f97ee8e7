/**
 * @file layout_draw.c
 * @brief A layout as text that a person likes to read: the segments as a tree, and for small layouts the mask itself.
 *
 *     segment  rows  first   last  positions
 *     p 0         3      0      2  0 .. 2
 *       a 1       2      3      4  3 .. 4
 *       b 2       2      5      6  3 .. 4
 *
 *          row   0  1  2  3  4  5  6
 *     position   0  1  2  3  4  3  4
 *          end   7  7  7  5  5  7  7
 *                p  p  p  a  a  b  b
 *          0 p   p  .  .  .  .  .  .
 *          3 a   p  p  p  a  .  .  .         queries down, keys across: the key's letter where the query
 *          6 b   p  p  p  .  .  b  b         sees it, a dot where it does not
 *
 * A letter says whose row it is: p for a single root; P, Q, R ... for several; a, b, c ... for everything below.
 *
 * Read before: layout.h, tiles.h.
 */
#include "common/layout.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/tiles.h"

enum {
  MASK_ROWS = 64,      /* largest layout whose mask is drawn, and most tiles a side */
  TABLE_SEGMENTS = 40, /* longest table; of more segments the first 30 and the last 5 are shown */
  TABLE_HEAD = 30,
  TABLE_TAIL = 5,
  WIDE_ROWS = 28,   /* up to here a column of the mask is 3 wide and holds numbers too */
  MEDIUM_ROWS = 42, /* up to here it is 2 wide */
  INDENTS = 8       /* levels of a tree that are indented */
};

/** A growing string; `failed` once memory ran out. */
struct text {
  char *data;
  size_t size, capacity;
  bool failed;
};

__attribute__((format(printf, 2, 3))) static void put(struct text *text, const char *format, ...) {
  char line[256];
  va_list arguments;
  va_start(arguments, format);
  int n = vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  if (n < 0 || text->failed) return;
  size_t bytes = (size_t)n < sizeof line ? (size_t)n : sizeof line - 1;
  if (text->size + bytes + 1 > text->capacity) {
    size_t capacity = 2 * text->capacity + sizeof line;
    char *data = realloc(text->data, capacity);
    if (data == NULL) {
      text->failed = true;
      return;
    }
    text->data = data;
    text->capacity = capacity;
  }
  memcpy(text->data + text->size, line, bytes + 1);
  text->size += bytes;
  text->data[text->size] = '\0';
}

/** Gives every segment its letter: see the head of this file. */
static void assign_letters(char *letters, const dkv_layout *layout) {
  static const char CHILDREN[] = "abcdefghijklmnopqrstuvwxyz", WITHOUT_P[] = "abcdefghijklmnoqrstuvwxyz";
  static const char ROOTS[] = "PQRSTUVWXYZABCDEFGHIJKLMNO";
  int32_t roots = 0, root = 0, child = 0;
  for (int32_t s = 0; s < layout->segments; ++s) roots += layout->parent[s] < 0;
  for (int32_t s = 0; s < layout->segments; ++s) {
    if (layout->parent[s] < 0) letters[s] = roots == 1 ? 'p' : ROOTS[root++ % 26];
    else letters[s] = roots == 1 ? WITHOUT_P[child++ % 25] : CHILDREN[child++ % 26];
  }
}

/** Number of proper ancestors of s, counted no further than is indented. */
static int level_of(const dkv_layout *layout, int32_t s) {
  int level = 0;
  for (int32_t a = layout->parent[s]; a >= 0 && level < INDENTS; a = layout->parent[a]) ++level;
  return level;
}

/** Letter and number of a segment, indented by its level in the tree. */
static int name_segment(char *name, size_t size, const dkv_layout *layout, const char *letters, int32_t s) {
  return snprintf(name, size, "%*s%c %d", 2 * level_of(layout, s), "", letters[s], s);
}

/** Is segment s one that the table shows? */
static bool is_shown(const dkv_layout *layout, int32_t s) {
  return layout->segments <= TABLE_SEGMENTS || s < TABLE_HEAD || s >= layout->segments - TABLE_TAIL;
}

/** The table of segments, its middle left out when it is long. */
static void put_table(struct text *text, const dkv_layout *layout, const char *letters) {
  char name[64];
  int width = 7, digits = snprintf(NULL, 0, "%d", layout->rows), column = digits > 5 ? digits : 5;
  for (int32_t s = 0; s < layout->segments; ++s) {
    int length = is_shown(layout, s) ? name_segment(name, sizeof name, layout, letters, s) : 0;
    if (length > width) width = length;
  }
  put(text, "\n%-*s  %*s  %*s  %*s  positions\n", width, "segment", column, "rows", column, "first", column, "last");
  for (int32_t s = 0; s < layout->segments; ++s) {
    int32_t rows = dkv_layout_length(layout, s), first = layout->start[s], base = layout->base[s];
    if (!is_shown(layout, s)) {
      put(text, "  ... %d more segments ...\n", layout->segments - TABLE_HEAD - TABLE_TAIL);
      s = layout->segments - TABLE_TAIL - 1;
      continue;
    }
    name_segment(name, sizeof name, layout, letters, s);
    if (rows == 0) put(text, "%-*s  %*d  %*s  %*s  none\n", width, name, column, 0, column, "-", column, "-");
    else
      put(text, "%-*s  %*d  %*d  %*d  %d .. %d\n", width, name, column, rows, column, first, column, first + rows - 1,
          base, base + rows - 1);
  }
}

/** A label and a number for each row. */
static void put_numbers(struct text *text, const char *label, const int32_t *numbers, int32_t rows) {
  put(text, "%10s  ", label);
  for (int32_t t = 0; t < rows; ++t) put(text, "%3d", numbers == NULL ? t : numbers[t]);
  put(text, "\n");
}

/** The mask, with row numbers, positions and end[] above it when there is room for numbers. */
static void put_mask(struct text *text, const dkv_layout *layout, const char *letters) {
  int32_t rows = layout->rows;
  int column = rows <= WIDE_ROWS ? 3 : rows <= MEDIUM_ROWS ? 2 : 1;
  put(text, "\nThe mask: queries down, keys across; the key's letter where the query sees it.\n\n");
  if (rows <= WIDE_ROWS) {
    put_numbers(text, "row", NULL, rows);
    put_numbers(text, "position", layout->position, rows);
    put_numbers(text, "end", layout->end, rows);
  }
  put(text, "%12s", "");
  for (int32_t j = 0; j < rows; ++j) put(text, "%*c", column, letters[layout->segment[j]]);
  put(text, "\n");
  for (int32_t i = 0; i < rows; ++i) {
    put(text, "%8d %c  ", i, letters[layout->segment[i]]);
    for (int32_t j = 0; j < rows; ++j)
      put(text, "%*c", column, dkv_sees(i, j, layout->end[j]) ? letters[layout->segment[j]] : '.');
    put(text, "\n");
  }
}

/** Counts of the tile classes, and for up to 64 tiles a side their map. */
static dkv_status put_tiles(struct text *text, const dkv_layout *layout, int32_t tile) {
  static const char CLASSES[] = {[DKV_TILE_EMPTY] = '.', [DKV_TILE_FULL] = '#', [DKV_TILE_PARTIAL] = '+'};
  dkv_tile_count count;
  DKV_TRY(dkv_tile_counts(&count, layout, tile, tile));
  put(text, "\nTiles of %d x %d: %lld full (#), %lld partial (+), %lld empty (.)", tile, tile, (long long)count.full,
      (long long)count.partial, (long long)count.empty_skipped);
  put(text, "\nOf the pairs in full and partial tiles, %.1f%% are visible.\n\n",
      100 * (double)count.useful_pairs / (double)count.issued_pairs);
  int64_t side = dkv_ceil_div(layout->rows, tile);
  if (side > MASK_ROWS) {
    put(text, "(%lld tiles a side are too many to draw; up to %d are drawn)\n", (long long)side, MASK_ROWS);
    return DKV_OK;
  }
  const char *gap = side <= MEDIUM_ROWS ? " " : "";
  for (int64_t a = 0; a < side; ++a) {
    int32_t i0 = (int32_t)(a * tile), i1 = (int32_t)dkv_min((int64_t)i0 + tile, layout->rows);
    put(text, "%10d  ", i0);
    for (int64_t b = 0; b < side; ++b) {
      int32_t j0 = (int32_t)(b * tile), j1 = (int32_t)dkv_min((int64_t)j0 + tile, layout->rows);
      put(text, "%s%c", gap, CLASSES[dkv_tile_classify(layout, i0, i1, j0, j1)]);
    }
    put(text, "\n");
  }
  return DKV_OK;
}

dkv_status dkv_layout_draw(char **out, const dkv_layout *layout, int32_t tile) {
  DKV_REQUIRE(out != NULL && layout != NULL, DKV_ERR_NULL, "dkv_layout_draw: out and layout must not be NULL");
  *out = NULL;
  struct text text = {NULL, 0, 0, false};
  char *letters = malloc((size_t)layout->segments + 1);
  DKV_REQUIRE(letters != NULL, DKV_ERR_NOMEM, "no memory for the letters of %d segments", layout->segments);
  assign_letters(letters, layout);
  int64_t pairs = dkv_layout_pairs(layout), causal = (int64_t)layout->rows * ((int64_t)layout->rows + 1) / 2;
  put(&text, "%d rows in %d segments, depth %d\n%lld visible pairs of %lld in a causal square\n", layout->rows,
      layout->segments, layout->depth, (long long)pairs, (long long)causal);
  if (layout->segments > 0) put_table(&text, layout, letters);
  dkv_status status = DKV_OK;
  if (layout->rows > 0) {
    if (layout->rows <= MASK_ROWS) put_mask(&text, layout, letters);
    if (tile > 0) status = put_tiles(&text, layout, tile);
  }
  free(letters);
  if (status == DKV_OK && text.failed) status = dkv_fail(DKV_ERR_NOMEM, "no memory for the drawing of a layout");
  if (status != DKV_OK) free(text.data);
  else *out = text.data;
  return status;
}
