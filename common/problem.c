/**
 * @file problem.c
 * @brief Makes attention problems: random ones, the same one in another type, its replicated twin.
 *
 * Read before: problem.h, pack.h.  Read next: problem_file.c.
 */
#include "common/problem.h"

#include <stdlib.h>
#include <string.h>

#include "common/pack.h"
#include "common/rng.h"

const char *dkv_result_name(dkv_result result) {
  static const char *const names[DKV_RESULTS] = {"o", "lse", "dq", "dk", "dv"};
  return (unsigned)result < DKV_RESULTS ? names[result] : "?";
}

void dkv_result_shape(const dkv_problem *problem, dkv_result result, int64_t *rows, int64_t *width) {
  bool keys = result == DKV_DK || result == DKV_DV;
  *rows = problem->layout.rows;
  *width = (int64_t)(keys ? problem->kv_heads : problem->heads) * problem->head_dim;
  if (result == DKV_LSE) {
    *rows = problem->heads;
    *width = problem->layout.rows;
  }
}

int64_t dkv_result_elements(const dkv_problem *problem, dkv_result result) {
  int64_t rows, width;
  dkv_result_shape(problem, result, &rows, &width);
  return rows * width;
}

void dkv_results_free(dkv_results *results) {
  if (results == NULL) return;
  for (int r = 0; r < DKV_RESULTS; ++r) free(results->data[r]);
  *results = (dkv_results){0};
}

void dkv_problem_free(dkv_problem *problem) {
  if (problem == NULL) return;
  dkv_layout_free(&problem->layout);
  free(problem->q);
  free(problem->k);
  free(problem->v);
  free(problem->dout);
  dkv_results_free(&problem->answer);
  *problem = (dkv_problem){0};
}

/** Memory for n elements; one byte at least, so that NULL always means failure. */
static void *elements(int64_t n, dkv_dtype dtype) {
  size_t size = dkv_dtype_size(dtype);
  return (uint64_t)n > SIZE_MAX / 16 ? NULL : malloc((size_t)n * size + 1);
}

/** Width of a row of q (or dout) and of k (or v), in elements. */
static int64_t query_width(const dkv_problem *p) { return (int64_t)p->heads * p->head_dim; }
static int64_t key_width(const dkv_problem *p) { return (int64_t)p->kv_heads * p->head_dim; }

/** Allocates q, k, v and, when asked, dout, for the shape already stored in the problem. */
static dkv_status allocate_inputs(dkv_problem *p, bool with_dout) {
  int64_t query, key, rows = p->layout.rows;
  bool overflow =
      __builtin_mul_overflow(rows, query_width(p), &query) || __builtin_mul_overflow(rows, key_width(p), &key);
  if (!overflow) {
    p->q = elements(query, p->dtype);
    p->k = elements(key, p->dtype);
    p->v = elements(key, p->dtype);
    if (with_dout) p->dout = elements(query, p->dtype);
  }
  DKV_REQUIRE(!overflow && p->q != NULL && p->k != NULL && p->v != NULL && (!with_dout || p->dout != NULL),
              DKV_ERR_NOMEM, "no memory for a problem of %d rows, %d query heads and %d key heads of size %d in %s",
              p->layout.rows, p->heads, p->kv_heads, p->head_dim, dkv_dtype_name(p->dtype));
  return DKV_OK;
}

/** n standard normals of one stream times gain, rounded to the type. */
static dkv_status fill_normal(void *out, dkv_dtype dtype, int64_t n, uint64_t seed, uint64_t stream, double gain) {
  enum { CHUNK = 4096 };
  dkv_status status = DKV_OK;
#pragma omp parallel for schedule(static) reduction(max : status)
  for (int64_t chunk = 0; chunk < dkv_ceil_div(n, CHUNK); ++chunk) {
    double values[CHUNK];
    int64_t begin = chunk * CHUNK, count = dkv_min(CHUNK, n - begin);
    for (int64_t i = 0; i < count; ++i) {
      values[i] = gain * (double)dkv_rng_normal(seed, stream, (uint64_t)(begin + i));
    }
    dkv_status converted =
        dkv_convert((char *)out + (size_t)begin * dkv_dtype_size(dtype), dtype, values, DKV_F64, count);
    if (converted != DKV_OK) status = converted;
  }
  return status;
}

/** A problem's shape as an attention call, for the shared checks. */
static dkv_attention shape_of(const dkv_layout *layout, const dkv_random_spec *spec) {
  return (dkv_attention){.layout = layout,
                         .heads = spec->heads,
                         .kv_heads = spec->kv_heads,
                         .head_dim = spec->head_dim,
                         .scale = spec->scale,
                         .dtype = spec->dtype};
}

/** The rules about shape, without the pointers: those of a layout of no rows. */
static dkv_status check_spec(const dkv_random_spec *spec) {
  dkv_layout none = {0};
  dkv_attention shape = shape_of(&none, spec);
  DKV_TRY(dkv_attention_check(&shape, DKV_FORWARD));
  DKV_REQUIRE(isfinite(spec->gain), DKV_ERR_RANGE, "random problem: gain is %g; it must be finite", spec->gain);
  return DKV_OK;
}

dkv_status dkv_problem_random(dkv_problem *out, const dkv_layout *layout, const dkv_random_spec *spec) {
  DKV_REQUIRE(out != NULL, DKV_ERR_NULL, "dkv_problem_random: out is NULL");
  *out = (dkv_problem){0};
  DKV_REQUIRE(layout != NULL && spec != NULL, DKV_ERR_NULL, "dkv_problem_random: %s is NULL",
              layout == NULL ? "layout" : "spec");
  DKV_TRY(check_spec(spec));
  double gain = spec->gain == 0.0 ? 1.0 : spec->gain;
  dkv_status status = dkv_layout_copy(&out->layout, layout);
  if (status == DKV_OK) {
    out->heads = spec->heads;
    out->kv_heads = spec->kv_heads;
    out->head_dim = spec->head_dim;
    out->scale = spec->scale == 0.0 ? 1.0 / sqrt((double)spec->head_dim) : spec->scale;
    out->dtype = spec->dtype;
    status = allocate_inputs(out, true);
  }
  int64_t query = (int64_t)layout->rows * query_width(out), key = (int64_t)layout->rows * key_width(out);
  if (status == DKV_OK) status = fill_normal(out->q, spec->dtype, query, spec->seed, 0, gain);
  if (status == DKV_OK) status = fill_normal(out->k, spec->dtype, key, spec->seed, 1, 1.0);
  if (status == DKV_OK) status = fill_normal(out->v, spec->dtype, key, spec->seed, 2, 1.0);
  if (status == DKV_OK) status = fill_normal(out->dout, spec->dtype, query, spec->seed, 3, 1.0);
  if (status != DKV_OK) dkv_problem_free(out);
  return status;
}

/** Copies layout and shape, allocates inputs of type dtype. */
static dkv_status copy_shape(dkv_problem *out, const dkv_problem *from, const dkv_layout *layout, dkv_dtype dtype) {
  DKV_TRY(dkv_layout_copy(&out->layout, layout));
  out->heads = from->heads;
  out->kv_heads = from->kv_heads;
  out->head_dim = from->head_dim;
  out->scale = from->scale;
  out->dtype = dtype;
  return allocate_inputs(out, from->dout != NULL);
}

static dkv_status copy_answer(dkv_problem *out, const dkv_problem *from) {
  out->answer.dtype = from->answer.dtype;
  out->answer.lse_dtype = from->answer.lse_dtype;
  for (int r = 0; r < DKV_RESULTS; ++r) {
    if (from->answer.data[r] == NULL) continue;
    dkv_dtype dtype = r == DKV_LSE ? from->answer.lse_dtype : from->answer.dtype;
    int64_t n = dkv_result_elements(from, (dkv_result)r);
    out->answer.data[r] = elements(n, dtype);
    DKV_REQUIRE(out->answer.data[r] != NULL, DKV_ERR_NOMEM, "no memory for a copy of answer %s",
                dkv_result_name((dkv_result)r));
    memcpy(out->answer.data[r], from->answer.data[r], (size_t)n * dkv_dtype_size(dtype));
  }
  return DKV_OK;
}

dkv_status dkv_problem_cast(dkv_problem *out, const dkv_problem *from, dkv_dtype dtype) {
  DKV_REQUIRE(out != NULL, DKV_ERR_NULL, "dkv_problem_cast: out is NULL");
  *out = (dkv_problem){0};
  DKV_REQUIRE(from != NULL, DKV_ERR_NULL, "dkv_problem_cast: from is NULL");
  DKV_REQUIRE(dtype == DKV_F32 || dtype == DKV_BF16 || dtype == DKV_F16 || dtype == DKV_F64, DKV_ERR_UNSUPPORTED,
              "dkv_problem_cast: dtype %s; inputs are f32, bf16, f16 or f64", dkv_dtype_name(dtype));
  int64_t query = (int64_t)from->layout.rows * query_width(from), key = (int64_t)from->layout.rows * key_width(from);
  dkv_status status = copy_shape(out, from, &from->layout, dtype);
  if (status == DKV_OK) status = dkv_convert(out->q, dtype, from->q, from->dtype, query);
  if (status == DKV_OK) status = dkv_convert(out->k, dtype, from->k, from->dtype, key);
  if (status == DKV_OK) status = dkv_convert(out->v, dtype, from->v, from->dtype, key);
  if (status == DKV_OK && from->dout != NULL) status = dkv_convert(out->dout, dtype, from->dout, from->dtype, query);
  if (status == DKV_OK && dtype == from->dtype) status = copy_answer(out, from);
  if (status != DKV_OK) dkv_problem_free(out);
  return status;
}

/** dout of a packed row goes to its first copy; the other copies get zero, so that folding adds nothing twice. */
static dkv_status scatter_dout(dkv_problem *out, const dkv_problem *packed, const int32_t *row_map) {
  size_t row_bytes = (size_t)query_width(packed) * dkv_dtype_size(packed->dtype);
  bool *seen = calloc((size_t)packed->layout.rows + 1, sizeof *seen);
  DKV_REQUIRE(seen != NULL, DKV_ERR_NOMEM, "no memory to mark %d rows", packed->layout.rows);
  for (int32_t r = 0; r < out->layout.rows; ++r) {
    char *row = (char *)out->dout + (size_t)r * row_bytes;
    if (seen[row_map[r]]) memset(row, 0, row_bytes); /* zero bits are +0 in every type */
    else memcpy(row, (const char *)packed->dout + (size_t)row_map[r] * row_bytes, row_bytes);
    seen[row_map[r]] = true;
  }
  free(seen);
  return DKV_OK;
}

dkv_status dkv_problem_replicate(dkv_problem *out, int32_t **row_map, const dkv_problem *packed) {
  DKV_REQUIRE(out != NULL && row_map != NULL, DKV_ERR_NULL, "dkv_problem_replicate: %s is NULL",
              out == NULL ? "out" : "row_map");
  *out = (dkv_problem){0};
  *row_map = NULL;
  DKV_REQUIRE(packed != NULL, DKV_ERR_NULL, "dkv_problem_replicate: packed is NULL");
  dkv_layout layout = {0};
  DKV_TRY(dkv_layout_replicate(&layout, row_map, &packed->layout));
  size_t size = dkv_dtype_size(packed->dtype);
  size_t query_bytes = (size_t)query_width(packed) * size, key_bytes = (size_t)key_width(packed) * size;
  int32_t rows = layout.rows;
  dkv_status status = copy_shape(out, packed, &layout, packed->dtype);
  if (status == DKV_OK && rows > 0) status = dkv_unpack_rows(out->q, packed->q, query_bytes, *row_map, rows);
  if (status == DKV_OK && rows > 0) status = dkv_unpack_rows(out->k, packed->k, key_bytes, *row_map, rows);
  if (status == DKV_OK && rows > 0) status = dkv_unpack_rows(out->v, packed->v, key_bytes, *row_map, rows);
  if (status == DKV_OK && rows > 0 && packed->dout != NULL) status = scatter_dout(out, packed, *row_map);
  dkv_layout_free(&layout);
  if (status != DKV_OK) {
    dkv_problem_free(out);
    free(*row_map);
    *row_map = NULL;
  }
  return status;
}
