/**
 * @file counted.c
 * @brief tiled_fwd.c and tiled_bwd.c without the arithmetic: the same tiles, spans and turns, counted.
 *
 * The key heads do the same work, so one is walked and the counts are multiplied.
 *
 * Read before: counted.h, tiled_fwd.c, tiled_bwd.c.
 */
#include "cpu/attention/counted.h"

#include "cpu/attention/tile.h"

/** Sizes of one element and of a row of one key head, in bytes. */
struct row_bytes {
  double query; /**< what a stacked row reads and writes */
  double key;   /**< a row of k and of v */
  double sum;   /**< a row of dk and of dv in f32, one way */
  double store; /**< the same rounded to storage; 0 when storage is f32 */
};

static struct row_bytes bytes_of_rows(const dkv_attention *p, dkv_direction direction) {
  const double row = (double)p->head_dim * (double)dkv_dtype_size(p->dtype);
  struct row_bytes bytes = {.query = 2 * row + sizeof(float), .key = 2 * row};
  if (direction == DKV_BACKWARD) {
    bytes.query = 4 * row + sizeof(float); /* q, o, dout, lse in; dq out */
    bytes.sum = 2.0 * p->head_dim * sizeof(float);
    bytes.store = p->dtype == DKV_F32 ? 0 : 2 * row;
  }
  return bytes;
}

/** Panels of a query tile against keys [j0, j1). @return lanes x keys of the score product */
static int64_t count_panels(dkv_counted *out, const dkv_layout *layout, const struct query_tile *tile, int32_t j0,
                            int32_t j1) {
  int64_t issued = 0;
  for (int32_t panel = 0; panel < tile->panels; ++panel) {
    const struct key_span span = span_of_keys(layout, tile, panel, j0, j1);
    if (span.first == span.last) continue;
    *(span.masked ? &out->masked_panels : &out->full_panels) += 1;
    issued += (int64_t)panel_vectors(tile, panel) * DKV_LANES * (span.last - span.first);
  }
  return issued;
}

/** Lanes x keys of the products that make dk and dv: each block of keys has one interval of lanes. */
static int64_t count_contribution(const dkv_layout *layout, const struct query_tile *tile, int32_t j0, int32_t j1) {
  int64_t issued = 0;
  for (int32_t j = j0; j < j1; j += DKV_MR) {
    const dkv_range seen_by = dkv_query_range(layout, j, (int32_t)dkv_min((int64_t)j + DKV_MR, j1));
    const int64_t rows = dkv_min(seen_by.end, tile->i1) - dkv_max(seen_by.begin, tile->i0);
    if (rows > 0) issued += rows * tile->group * DKV_MR;
  }
  return issued;
}

/** One query tile: its row bytes, and each key tile that it loads. */
static void count_tile(dkv_counted *out, int64_t *reads, const dkv_attention *p, const struct query_tile *tile,
                       dkv_direction direction, const struct row_bytes *bytes) {
  const dkv_layout *layout = p->layout;
  const double D = p->head_dim;
  out->query_tiles += 1;
  out->query_bytes += bytes->query * tile->lanes;
  for (int32_t j0 = next_key_tile(layout, tile, 0); j0 < tile->i1; j0 = next_key_tile(layout, tile, j0 + DKV_KEYS)) {
    const int32_t j1 = (int32_t)dkv_min((int64_t)j0 + DKV_KEYS, layout->rows), keys = j1 - j0;
    const int64_t issued = count_panels(out, layout, tile, j0, j1);
    out->key_loads += 1;
    out->key_bytes += bytes->key * keys;
    out->issued_pairs += issued;
    out->issued_flops += (direction == DKV_FORWARD ? 4 : 6) * D * (double)issued; /* S, O; or S, dP, dQ */
    if (reads != NULL) ++reads[j0 / DKV_KEYS];
    if (direction == DKV_FORWARD) continue;
    const bool first = j0 >= tile->i0, last = dkv_query_range(layout, j0, j1).end <= tile->i1;
    out->issued_flops += 4 * D * (double)count_contribution(layout, tile, j0, j1); /* dV, dK */
    out->sum_bytes += keys * (bytes->sum * (first ? 1 : 2) + (last ? bytes->store : 0));
  }
}

dkv_status dkv_count_tiled(dkv_counted *out, int64_t *reads, const dkv_attention *problem, dkv_direction direction) {
  DKV_REQUIRE(out != NULL && problem != NULL, DKV_ERR_NULL, "count: out and problem must not be NULL");
  dkv_attention shapes = *problem; /* the check wants pointers; they are never followed */
  shapes.q = shapes.k = shapes.v = shapes.dout = shapes.o = shapes.lse = shapes.dq = shapes.dk = shapes.dv = out;
  DKV_TRY(dkv_attention_check(&shapes, direction));
  DKV_REQUIRE(problem->dtype != DKV_F64, DKV_ERR_UNSUPPORTED,
              "count: dtype f64; the tiled kernels take f32, bf16, f16");
  const int32_t T = problem->layout->rows;
  const int32_t rows = rows_of_tile(problem, direction == DKV_FORWARD ? DKV_FWD_LANES : DKV_BWD_LANES);
  const struct row_bytes bytes = bytes_of_rows(problem, direction);
  dkv_counted one = {0};
  if (reads != NULL) memset(reads, 0, (size_t)dkv_ceil_div(T, DKV_KEYS) * sizeof *reads);
  for (int64_t index = 0; index * rows < T; ++index) {
    const struct query_tile tile = cut_query_tile(problem, rows, index);
    count_tile(&one, reads, problem, &tile, direction, &bytes);
  }
  const int64_t Hkv = problem->kv_heads;
  *out = (dkv_counted){.query_tiles = one.query_tiles * Hkv,
                       .key_loads = one.key_loads * Hkv,
                       .full_panels = one.full_panels * Hkv,
                       .masked_panels = one.masked_panels * Hkv,
                       .useful_pairs = dkv_layout_pairs(problem->layout) * problem->heads,
                       .issued_pairs = one.issued_pairs * Hkv,
                       .useful_flops = dkv_attention_flops(problem, direction),
                       .issued_flops = one.issued_flops * (double)Hkv,
                       .query_bytes = one.query_bytes * (double)Hkv,
                       .key_bytes = one.key_bytes * (double)Hkv,
                       .sum_bytes = one.sum_bytes * (double)Hkv};
  return DKV_OK;
}
