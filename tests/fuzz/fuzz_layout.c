/**
 * @file fuzz_layout.c
 * @brief A libFuzzer target: any list of parents and lengths gives a layout that passes every check, or one sentence.
 *
 * The bytes are read as: one byte of switches, the number of segments, then a parent and a length for each.  Numbers
 * are single bytes or, when their switch is on, raw 32-bit values, so absurd ones come up often.  What is built is then
 * replicated, copied, drawn, tiled, and finally damaged in one place, where dkv_layout_check must say something and not
 * crash.  Layouts of more than 4096 valid rows are left out: they are only slow.
 *
 *     make fuzz            or            clang -fsanitize=fuzzer,address,undefined ...
 *
 * Read before: common/layout.h.  Read next: tests/test_layout.c.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/cost.h"
#include "common/layout.h"
#include "common/pack.h"
#include "common/tiles.h"

enum { MOST_SEGMENTS = 64, MOST_ROWS = 4096 };

/** libFuzzer's entry point. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/** Bytes still to be read. */
struct input {
  const uint8_t *data;
  size_t size;
};

/** The next number: four raw bytes when `raw`, else one signed byte; 0 at the end. */
static int32_t next(struct input *in, bool raw) {
  size_t want = raw ? 4 : 1;
  int32_t value = 0;
  if (in->size < want) {
    in->size = 0;
    return 0;
  }
  if (raw) memcpy(&value, in->data, sizeof value);
  else value = (int8_t)in->data[0];
  in->data += want;
  in->size -= want;
  return value;
}

/** A violated invariant is a crash to the fuzzer. */
static void must(bool holds) {
  if (!holds) abort();
}

/** A refusal has a code, a sentence, and leaves the layout zeroed. */
static void must_be_refused(dkv_status status, const dkv_layout *layout) {
  static const dkv_layout ZERO;
  must(status == DKV_ERR_RANGE || status == DKV_ERR_LAYOUT);
  must(dkv_last_error()[0] != '\0');
  must(memcmp(layout, &ZERO, sizeof ZERO) == 0);
}

/** Rows that a valid forest would have, or 0 if it must be refused for its lengths. */
static int64_t rows_of(const int32_t *length, int32_t segments) {
  int64_t rows = 0;
  for (int32_t s = 0; s < segments; ++s) {
    if (length[s] < 0) return 0;
    rows += length[s];
  }
  return rows > DKV_MAX_ROWS ? 0 : rows;
}

/** Counts of a tiling add up. */
static void tile(const dkv_layout *layout, int32_t rows, int32_t keys) {
  dkv_tile_count count;
  must(dkv_tile_counts(&count, layout, rows, keys) == (rows > 0 && keys > 0 ? DKV_OK : DKV_ERR_RANGE));
  if (rows <= 0 || keys <= 0) return;
  int64_t grid = dkv_ceil_div(layout->rows, rows) * dkv_ceil_div(layout->rows, keys);
  must(count.full + count.partial + count.empty_skipped == grid && count.empty_skipped >= 0);
  must(count.useful_pairs == dkv_layout_pairs(layout) && count.issued_pairs >= count.useful_pairs);
}

/** Everything that can be made of a valid layout. */
static void use(const dkv_layout *layout, int32_t rows, int32_t keys) {
  static const dkv_model_shape SHAPE = {1, 1, 1, 1, 1, 1, 8, 2};
  dkv_layout twin, copy;
  dkv_prediction *list;
  dkv_saving saving;
  int32_t *map, count;
  char *drawing;
  must(dkv_layout_check(layout) == DKV_OK);
  must(dkv_layout_replicate(&twin, &map, layout) == DKV_OK && dkv_layout_check(&twin) == DKV_OK);
  must(dkv_cost_saving(&saving, layout, &SHAPE) == DKV_OK);
  must(saving.replicated.rows == twin.rows && saving.replicated.pairs == dkv_layout_pairs(&twin));
  for (int32_t r = 0; r < twin.rows; ++r) must(layout->position[map[r]] == twin.position[r]);
  free(map);
  dkv_layout_free(&twin);
  must(dkv_layout_copy(&copy, layout) == DKV_OK && dkv_layout_check(&copy) == DKV_OK);
  dkv_layout_free(&copy);
  must(dkv_predictions(&list, &count, layout) == DKV_OK);
  for (int32_t p = 0; p < count; ++p)
    must(layout->position[list[p].source] + 1 == layout->position[list[p].target] && list[p].source < list[p].target);
  free(list);
  tile(layout, rows, keys);
  must(dkv_layout_draw(&drawing, layout, rows) == DKV_OK && drawing != NULL);
  free(drawing);
}

/** Changes one number of a valid layout: the check must return, whatever it says. */
static void damage(dkv_layout *layout, struct input *in) {
  int32_t *const arrays[] = {layout->parent,  layout->start, layout->subtree_end, layout->base,
                             layout->segment, layout->end,   layout->position};
  int32_t which = next(in, false) & 7, at = next(in, true), value = next(in, true);
  int32_t size = which < 4 ? layout->segments : layout->rows;
  if (which == 7) layout->depth = value;
  else if (size > 0) arrays[which][(uint32_t)at % (uint32_t)size] = value;
  must(dkv_layout_check(layout) == DKV_OK || dkv_last_error()[0] != '\0');
}

/** Reads the lists of dkv_layout_groups and builds them. */
static dkv_status build_groups(dkv_layout *layout, struct input *in, bool raw) {
  int32_t prompt[4], responses[4], length[MOST_SEGMENTS], groups = next(in, false) % 5, total = 0;
  int64_t rows = 0;
  for (int32_t g = 0; g < groups; ++g) {
    prompt[g] = next(in, raw);
    responses[g] = next(in, raw);
    /* More responses than lengths may only be asked for when they are too many for any layout. */
    if (responses[g] > MOST_SEGMENTS / 4 && responses[g] < DKV_MAX_SEGMENTS) responses[g] %= MOST_SEGMENTS / 4;
    if (responses[g] > 0 && responses[g] < DKV_MAX_SEGMENTS) total += responses[g];
    if (prompt[g] > 0) rows += prompt[g];
  }
  for (int32_t n = 0; n < total; ++n) {
    length[n] = next(in, raw);
    if (length[n] > 0) rows += length[n];
  }
  if (rows > MOST_ROWS && rows <= DKV_MAX_ROWS) {
    memset(layout, 0, sizeof *layout);
    return dkv_fail(DKV_ERR_RANGE, "left out");
  }
  return dkv_layout_groups(layout, groups, prompt, responses, length);
}

/** Reads the lists of dkv_layout_forest and builds them. */
static dkv_status build_forest(dkv_layout *layout, struct input *in, bool raw_count, bool raw_parent, bool raw_length) {
  int32_t parent[MOST_SEGMENTS], length[MOST_SEGMENTS], segments = next(in, raw_count);
  if (segments > MOST_SEGMENTS && segments <= DKV_MAX_SEGMENTS) segments %= MOST_SEGMENTS + 1;
  for (int32_t s = 0; s < segments && s < MOST_SEGMENTS; ++s) {
    parent[s] = next(in, raw_parent);
    length[s] = next(in, raw_length);
  }
  if (segments <= MOST_SEGMENTS && rows_of(length, segments) > MOST_ROWS) {
    memset(layout, 0, sizeof *layout);
    return dkv_fail(DKV_ERR_RANGE, "left out");
  }
  return dkv_layout_forest(layout, segments, parent, length);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct input in = {data, size};
  dkv_layout layout;
  int32_t switches = next(&in, false), rows = next(&in, (switches & 16) != 0), keys = next(&in, false);
  bool raw = (switches & 4) != 0;
  dkv_status status = switches & 1 ? build_groups(&layout, &in, raw)
                                   : build_forest(&layout, &in, (switches & 2) != 0, raw, (switches & 8) != 0);
  if (status == DKV_OK) {
    use(&layout, rows, keys);
    damage(&layout, &in);
  } else {
    must_be_refused(status, &layout);
  }
  dkv_layout_free(&layout);
  return 0;
}
