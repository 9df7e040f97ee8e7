/**
 * @file cmd_count.c
 * @brief `dualkv count`: what attention kernels load and compute on a layout, counted without running one.
 *
 * Two machines are counted.  The first is the simplest that shares loads: a tile of n query rows of one head loads each
 * key that one of its rows sees, once; n = 1 is a kernel in which rows share nothing.  The second is the CPU's tiled
 * kernel itself, walked by dkv_count_tiled.
 *
 * Read before: tool.h, common/tiles.h, cpu/attention/counted.h.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/tiles.h"
#include "cpu/attention/counted.h"
#include "tools/tool.h"

static const char about[] =
    "usage: dualkv count [CASE] [FLAGS]\n\n"
    "Counts what attention kernels would load and compute, packed beside replicated; nothing is run.  First a kernel "
    "in which n\n"
    "query rows share the keys that they load, for several n, then the tiled kernels of the CPU:\n\n"
    "  dualkv count --prompt 2048 --responses 8 --response-length 512 --dtype bf16\n"
    "  dualkv count --prompt 3 --responses 2 --response-length 2 --heads 1 --kv-heads 1 --rows 1,2,4\n";

enum { MOST_ROWS = 16 };

/** The flags, wide enough for the parser. */
struct count_flags {
  int64_t heads, kv_heads, head_dim;
  const char *dtype, *rows;
};

/** A number in powers of 1000, so that it divides by a rate: "47.3 GB". */
static const char *scaled(char out[32], double number, const char *unit) {
  static const char *const prefix[] = {"", "k", "M", "G", "T", "P"};
  int u = 0;
  for (; number >= 999.5 && u < 5; ++u) number /= 1000;
  snprintf(out, 32, u == 0 ? "%.0f %s%s" : "%.3g %s%s", number, prefix[u], unit);
  return out;
}

static double ratio_of(double packed, double replicated) { return packed > 0 ? replicated / packed : 1; }

/** Keys that the tiles of one head load: the lengths of their key ranges. */
static dkv_status keys_loaded(int64_t *out, const dkv_layout *layout, int32_t rows) {
  const int32_t capacity = layout->depth + 1;
  dkv_range *ranges = malloc((size_t)capacity * sizeof *ranges);
  DKV_REQUIRE(ranges != NULL, DKV_ERR_NOMEM, "dualkv count: no memory for %d key ranges", capacity);
  *out = 0;
  for (int64_t i0 = 0; i0 < layout->rows; i0 += rows) {
    const int32_t i1 = (int32_t)dkv_min(i0 + rows, layout->rows);
    const int32_t count = dkv_key_ranges(layout, (int32_t)i0, i1, ranges, capacity);
    for (int32_t r = 0; r < count; ++r) *out += ranges[r].end - ranges[r].begin;
  }
  free(ranges);
  return DKV_OK;
}

/** The table over n. */
static dkv_status print_sharing(const dkv_attention *packed, const dkv_attention *copies, const int32_t *rows,
                                int32_t count) {
  char a[32], b[32], c[32];
  const double key_bytes = 2.0 * packed->head_dim * (double)dkv_dtype_size(packed->dtype) * packed->heads;
  const double flops = dkv_attention_flops(packed, DKV_FORWARD);
  puts("n query rows of one head load each key that one of them sees, once:");
  printf("  %5s %22s %16s %7s %12s %10s\n", "n", "keys of a head, packed", "replicated", "ratio", "k and v",
         "FLOP/byte");
  for (int32_t i = 0; i < count; ++i) {
    int64_t own = 0, other = 0;
    DKV_TRY(keys_loaded(&own, packed->layout, rows[i]));
    DKV_TRY(keys_loaded(&other, copies->layout, rows[i]));
    printf("  %5d %22s %16s %7.2f %12s %10.3g\n", rows[i], dkv_tool_count(a, own), dkv_tool_count(b, other),
           ratio_of((double)own, (double)other), scaled(c, key_bytes * (double)own, "B"),
           own > 0 ? flops / (key_bytes * (double)own) : 0);
  }
  return DKV_OK;
}

static void bytes_line(const char *name, double packed, double replicated) {
  char a[32], b[32];
  printf("  %-26s %16s %16s %7.2f\n", name, scaled(a, packed, "B"), scaled(b, replicated, "B"),
         ratio_of(packed, replicated));
}

static void count_line(const char *name, int64_t packed, int64_t replicated) {
  char a[32], b[32];
  printf("  %-26s %16s %16s %7.2f\n", name, dkv_tool_count(a, packed), dkv_tool_count(b, replicated),
         ratio_of((double)packed, (double)replicated));
}

/** The CPU's kernel of one direction. */
static dkv_status print_tiled(const dkv_attention *packed, const dkv_attention *copies, dkv_direction direction) {
  dkv_counted p, r;
  DKV_TRY(dkv_count_tiled(&p, NULL, packed, direction));
  DKV_TRY(dkv_count_tiled(&r, NULL, copies, direction));
  puts(direction == DKV_FORWARD ? "forward" : "backward");
  count_line("key tiles loaded", p.key_loads, r.key_loads);
  bytes_line("k and v loaded", p.key_bytes, r.key_bytes);
  bytes_line(direction == DKV_FORWARD ? "q, o, lse" : "q, o, lse, dout, dq", p.query_bytes, r.query_bytes);
  if (direction == DKV_BACKWARD) bytes_line("sums of dk and dv", p.sum_bytes, r.sum_bytes);
  count_line("pairs computed, all heads", p.issued_pairs, r.issued_pairs);
  printf("  %-26s %14.1f %% %14.1f %%\n", "of these useful",
         100 / ratio_of((double)p.useful_pairs, (double)p.issued_pairs),
         100 / ratio_of((double)r.useful_pairs, (double)r.issued_pairs));
  return DKV_OK;
}

static dkv_status print_all(const dkv_layout *layout, const dkv_layout *copies, const dkv_attention *shape,
                            const int32_t *rows, int32_t count) {
  dkv_attention packed = *shape, replicated = *shape;
  dkv_counted unused;
  char a[32], b[32], c[32];
  packed.layout = layout;
  replicated.layout = copies;
  DKV_TRY(dkv_count_tiled(&unused, NULL, &packed, DKV_FORWARD)); /* refuses a bad shape before anything is printed */
  printf("%s rows packed, %s replicated; H=%d Hkv=%d D=%d %s; %s useful forward, 2.5 times that backward\n\n",
         dkv_tool_count(a, layout->rows), dkv_tool_count(b, copies->rows), packed.heads, packed.kv_heads,
         packed.head_dim, dkv_dtype_name(packed.dtype), scaled(c, dkv_attention_flops(&packed, DKV_FORWARD), "FLOP"));
  DKV_TRY(print_sharing(&packed, &replicated, rows, count));
  printf("\nthe tiled kernels of the CPU:\n  %-26s %16s %16s %7s\n", "", "packed", "replicated", "ratio");
  DKV_TRY(print_tiled(&packed, &replicated, DKV_FORWARD));
  return print_tiled(&packed, &replicated, DKV_BACKWARD);
}

int dkv_cmd_count(int argc, char *const *argv) {
  struct dkv_layout_flags where = DKV_NO_LAYOUT_FLAGS;
  struct dkv_text_list operands;
  struct count_flags f = {32, 8, 128, "bf16", "1,16,64,128"};
  const struct dkv_flag flags[] = {
      DKV_LAYOUT_FLAGS(where),
      DKV_FOREST_FLAGS(where),
      {"heads", DKV_FLAG_INT, &f.heads, "H", "query heads", 1, 1 << 16},
      {"kv-heads", DKV_FLAG_INT, &f.kv_heads, "K", "key heads", 1, 1 << 16},
      {"head-dim", DKV_FLAG_INT, &f.head_dim, "D", "head size", 1, DKV_MAX_HEAD_DIM},
      {"dtype", DKV_FLAG_TEXT, &f.dtype, "TYPE", "storage type: f32, bf16 or f16", 0, 0},
      {"rows", DKV_FLAG_TEXT, &f.rows, "N1,N2,...", "query rows that share a load; default 1,16,64,128", 0, 0},
      {0},
  };
  if (dkv_args_help(about, flags, argc, argv)) return DKV_EXIT_OK;
  dkv_layout layout = {0}, copies = {0};
  int32_t rows[MOST_ROWS], count = 0;
  dkv_attention shape = {.scale = 1};
  dkv_status status = dkv_args_parse("count", flags, argc, argv, &operands);
  if (status == DKV_OK) status = dkv_tool_dtype(&shape.dtype, f.dtype);
  if (status == DKV_OK) status = dkv_args_numbers(rows, MOST_ROWS, &count, "--rows", f.rows);
  for (int32_t i = 0; i < count && status == DKV_OK; ++i)
    if (rows[i] < 1) status = dkv_fail(DKV_ERR_RANGE, "dualkv count: --rows holds %d; a tile has at least 1", rows[i]);
  shape.heads = (int32_t)f.heads, shape.kv_heads = (int32_t)f.kv_heads, shape.head_dim = (int32_t)f.head_dim;
  if (status == DKV_OK) status = dkv_tool_layout(&layout, "count", &operands, &where);
  if (status == DKV_OK) status = dkv_layout_replicate(&copies, NULL, &layout);
  if (status == DKV_OK) status = print_all(&layout, &copies, &shape, rows, count);
  dkv_layout_free(&layout);
  dkv_layout_free(&copies);
  return status == DKV_OK ? DKV_EXIT_OK : dkv_tool_fail(status);
}
