/**
 * @file test_counted.c
 * @brief The counted loop against the mask and against closed forms, packed beside replicated.
 *
 * Read before: cpu/attention/counted.h.
 */
#include "cpu/attention/counted.h"

#include <stdlib.h>

#include "common/tiles.h"
#include "cpu/attention/tile.h"
#include "tests/support/expect.h"

static dkv_attention shapes(const dkv_layout *layout) {
  return (dkv_attention){.layout = layout, .heads = 8, .kv_heads = 2, .head_dim = 64, .scale = 1, .dtype = DKV_F32};
}

/** N equal responses. */
static void open_group(dkv_layout *layout, int32_t prompt, int32_t responses, int32_t length) {
  int32_t lengths[64] = {0};
  for (int32_t i = 0; i < responses; ++i) lengths[i] = length;
  EXPECT_OK(dkv_layout_group(layout, prompt, responses, lengths));
}

/* P = 1200, no response: query tile t of 120 rows loads key tiles 0 .. (its last row) / 128 */
Test(counted, of_one_causal_sequence_is_a_triangle) {
  dkv_layout layout;
  dkv_counted c;
  int64_t reads[10], loads = 0;
  open_group(&layout, 1200, 0, 0);
  dkv_attention problem = shapes(&layout);
  EXPECT_OK(dkv_count_tiled(&c, reads, &problem, DKV_FORWARD));
  cr_assert(c.query_tiles == 2 * 10 && c.useful_pairs == 8 * 1200 * 1201 / 2);
  for (int64_t t = 0; t < 10; ++t) loads += (120 * t + 119) / DKV_KEYS + 1;
  cr_assert(c.key_loads == 2 * loads, "%ld loads, not %ld", (long)c.key_loads, (long)(2 * loads));
  for (int64_t s = 0; s < 10; ++s) cr_assert(reads[s] == 10 - s * DKV_KEYS / 120, "key tile %ld", (long)s);
  cr_assert(c.query_bytes == 1200.0 * 8 * (2 * 64 * 4 + 4));
  cr_assert(c.sum_bytes == 0);
  dkv_layout_free(&layout);
}

Test(counted, issues_little_more_than_the_mask_asks_for) {
  static const int32_t CASES[][3] = {{2048, 16, 128}, {1024, 64, 20}, {100, 1, 900}, {0, 64, 30}};
  for (int i = 0; i < 4; ++i)
    for (int d = DKV_FORWARD; d <= DKV_BACKWARD; ++d) {
      dkv_layout layout;
      dkv_counted c;
      open_group(&layout, CASES[i][0], CASES[i][1], CASES[i][2]);
      dkv_attention problem = shapes(&layout);
      EXPECT_OK(dkv_count_tiled(&c, NULL, &problem, (dkv_direction)d));
      const double waste = c.issued_flops / c.useful_flops;
      cr_assert(c.issued_pairs >= c.useful_pairs && waste >= 1.0);
      cr_assert(waste < (i == 3 ? 2.0 : 1.08), "case %d: %g times the useful work", i, waste);
      dkv_layout_free(&layout);
    }
}

/* the same loop on the replicated twin: pairs grow by A; the prompt's keys exist N times, each read by one response */
Test(counted, packed_saves_what_the_layout_says) {
  dkv_layout packed, replicated;
  dkv_counted p, r;
  int64_t reads[64];
  open_group(&packed, 1024, 8, 128);
  EXPECT_OK(dkv_layout_replicate(&replicated, NULL, &packed));
  dkv_attention problem = shapes(&packed), twin = shapes(&replicated);
  for (int d = DKV_FORWARD; d <= DKV_BACKWARD; ++d) {
    EXPECT_OK(dkv_count_tiled(&p, reads, &problem, (dkv_direction)d));
    EXPECT_OK(dkv_count_tiled(&r, NULL, &twin, (dkv_direction)d));
    const double A = (double)dkv_layout_pairs(&replicated) / (double)dkv_layout_pairs(&packed);
    cr_assert((double)r.useful_pairs == A * (double)p.useful_pairs);
    cr_assert(r.issued_flops / p.issued_flops > 0.95 * A && r.issued_flops / p.issued_flops < 1.05 * A);
    cr_assert(r.key_bytes > 2 * p.key_bytes && r.query_bytes > 4 * p.query_bytes);
    const int64_t rows = rows_of_tile(&problem, d == DKV_FORWARD ? DKV_FWD_LANES : DKV_BWD_LANES);
    cr_assert(reads[0] == dkv_ceil_div(packed.rows, rows), "the first prompt tile is read by every query tile");
    cr_assert(reads[15] <= 128 / rows + 2, "the last response's tile is read by its own query tiles");
  }
  cr_assert(p.sum_bytes > 0 && r.sum_bytes > p.sum_bytes);
  dkv_layout_free(&packed);
  dkv_layout_free(&replicated);
}

Test(counted, refuses_what_the_kernels_refuse) {
  dkv_layout layout;
  dkv_counted c;
  open_group(&layout, 5, 1, 2);
  dkv_attention problem = shapes(&layout);
  EXPECT_FAIL(DKV_ERR_NULL, "must not be NULL", dkv_count_tiled(NULL, NULL, &problem, DKV_FORWARD));
  problem.dtype = DKV_F64;
  EXPECT_FAIL(DKV_ERR_UNSUPPORTED, "f64", dkv_count_tiled(&c, NULL, &problem, DKV_FORWARD));
  problem.dtype = DKV_F32;
  problem.head_dim = 12;
  EXPECT_FAIL(DKV_ERR_SHAPE, "multiple of 8", dkv_count_tiled(&c, NULL, &problem, DKV_BACKWARD));
  problem = shapes(&layout);
  problem.layout = NULL;
  EXPECT_FAIL(DKV_ERR_NULL, "layout", dkv_count_tiled(&c, NULL, &problem, DKV_FORWARD));
  dkv_layout_free(&layout);
}
