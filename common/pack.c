/**
 * @file pack.c
 * @brief Between the packed batch and its replicated twin: copy activations, add up gradients, compare token ids.
 *
 * Unpacking is a gather, so its transpose, folding, is a scatter-add: <unpack(x), y> = <x, fold(y)>.  That is all that
 * the chain rule asks of a shared prompt.  fold groups the replicated rows by packed row first (a stable counting
 * sort), so that every sum runs in ascending order in one double accumulator and is rounded once.
 *
 * Read before: pack.h.  Read next: tests/test_pack.c.
 */
#include "common/pack.h"

#include <stdlib.h>

/** malloc that never asks for zero bytes, so that NULL means failure only. */
static void *new_bytes(size_t bytes) { return malloc(bytes > 0 ? bytes : 1); }

/** Every entry of the map lies in 0 .. packed_rows - 1. */
static dkv_status check_map(const int32_t *row_map, int32_t replicated_rows, int32_t packed_rows) {
  DKV_REQUIRE(packed_rows >= 0 && replicated_rows >= 0, DKV_ERR_RANGE,
              "%d packed and %d replicated rows; both are >= 0", packed_rows, replicated_rows);
  DKV_REQUIRE(row_map != NULL || replicated_rows == 0, DKV_ERR_NULL, "row_map is NULL for %d replicated rows",
              replicated_rows);
  for (int32_t r = 0; r < replicated_rows; ++r)
    DKV_REQUIRE(row_map[r] >= 0 && row_map[r] < packed_rows, DKV_ERR_RANGE,
                "row_map[%d] is %d; a packed row is 0 to %d", r, row_map[r], packed_rows - 1);
  return DKV_OK;
}

/** Checks that all copies of a row carry one id and that every packed row has a copy; first[t] is its first copy. */
static dkv_status check_ids(int32_t *first, int32_t packed_rows, const int32_t *replicated, const int32_t *row_map,
                            int32_t replicated_rows) {
  for (int32_t t = 0; t < packed_rows; ++t) first[t] = -1;
  for (int32_t r = 0; r < replicated_rows; ++r) {
    int32_t t = row_map[r];
    if (first[t] < 0) first[t] = r;
    DKV_REQUIRE(
        replicated[r] == replicated[first[t]], DKV_ERR_MISMATCH,
        "replicated rows %d and %d are copies of packed row %d but hold ids %d and %d; a shared prompt is equal in "
        "every copy",
        first[t], r, t, replicated[first[t]], replicated[r]);
  }
  for (int32_t t = 0; t < packed_rows; ++t)
    DKV_REQUIRE(first[t] >= 0, DKV_ERR_RANGE, "no entry of row_map names packed row %d; every packed row has a copy",
                t);
  return DKV_OK;
}

dkv_status dkv_pack_ids(int32_t *packed, int32_t packed_rows, const int32_t *replicated, const int32_t *row_map,
                        int32_t replicated_rows) {
  DKV_TRY(check_map(row_map, replicated_rows, packed_rows));
  DKV_REQUIRE((packed != NULL || packed_rows == 0) && (replicated != NULL || replicated_rows == 0), DKV_ERR_NULL,
              "dkv_pack_ids: packed and replicated must not be NULL");
  int32_t *first = new_bytes((size_t)packed_rows * sizeof *first);
  DKV_REQUIRE(first != NULL, DKV_ERR_NOMEM, "no memory to pack %d rows", packed_rows);
  dkv_status status = check_ids(first, packed_rows, replicated, row_map, replicated_rows);
  if (status == DKV_OK)
    for (int32_t t = 0; t < packed_rows; ++t) packed[t] = replicated[first[t]];
  free(first);
  return status;
}

dkv_status dkv_unpack_rows(void *replicated, const void *packed, size_t row_bytes, const int32_t *row_map,
                           int32_t replicated_rows) {
  DKV_TRY(check_map(row_map, replicated_rows, INT32_MAX));
  if (replicated_rows == 0 || row_bytes == 0) return DKV_OK;
  DKV_REQUIRE(replicated != NULL && packed != NULL, DKV_ERR_NULL,
              "dkv_unpack_rows: replicated and packed must not be NULL");
  for (int32_t r = 0; r < replicated_rows; ++r)
    memcpy((char *)replicated + (size_t)r * row_bytes, (const char *)packed + (size_t)row_map[r] * row_bytes,
           row_bytes);
  return DKV_OK;
}

/** Lists the replicated rows by packed row: copies of t are list[from[t] .. from[t+1]-1], ascending. */
static void group_by_target(int32_t *from, int32_t *list, const int32_t *row_map, int32_t replicated_rows,
                            int32_t packed_rows) {
  memset(from, 0, ((size_t)packed_rows + 2) * sizeof *from);
  for (int32_t r = 0; r < replicated_rows; ++r) ++from[row_map[r] + 2];
  for (int32_t t = 0; t < packed_rows; ++t) from[t + 2] += from[t + 1];
  for (int32_t r = 0; r < replicated_rows; ++r) list[from[row_map[r] + 1]++] = r; /* leaves from[t+1] = end of t */
}

dkv_status dkv_fold_rows(void *packed, int32_t packed_rows, const void *replicated, int64_t width, dkv_dtype dtype,
                         const int32_t *row_map, int32_t replicated_rows) {
  size_t size = dkv_dtype_size(dtype);
  DKV_REQUIRE(dtype == DKV_F32 || dtype == DKV_BF16 || dtype == DKV_F16 || dtype == DKV_F64, DKV_ERR_UNSUPPORTED,
              "dkv_fold_rows: type %s; gradients are f32, bf16, f16 or f64", dkv_dtype_name(dtype));
  DKV_REQUIRE(width >= 0, DKV_ERR_RANGE, "rows of %lld elements; the number is >= 0", (long long)width);
  DKV_TRY(check_map(row_map, replicated_rows, packed_rows));
  if (packed_rows == 0 || width == 0) return DKV_OK;
  DKV_REQUIRE(packed != NULL && (replicated != NULL || replicated_rows == 0), DKV_ERR_NULL,
              "dkv_fold_rows: packed and replicated must not be NULL");
  int32_t *from = new_bytes(((size_t)packed_rows + 2) * sizeof *from);
  int32_t *list = new_bytes((size_t)replicated_rows * sizeof *list);
  double *sum = new_bytes((size_t)width * sizeof *sum);
  dkv_status status = DKV_OK;
  if (from == NULL || list == NULL || sum == NULL) {
    status = dkv_fail(DKV_ERR_NOMEM, "no memory to fold %d rows into %d", replicated_rows, packed_rows);
  } else {
    group_by_target(from, list, row_map, replicated_rows, packed_rows);
    for (int32_t t = 0; t < packed_rows && status == DKV_OK; ++t) {
      memset(sum, 0, (size_t)width * sizeof *sum);
      for (int32_t k = from[t]; k < from[t + 1]; ++k)
        for (int64_t d = 0; d < width; ++d) sum[d] += dkv_element(replicated, dtype, list[k] * width + d);
      status = dkv_convert((char *)packed + (size_t)t * (size_t)width * size, dtype, sum, DKV_F64, width);
    }
  }
  free(from);
  free(list);
  free(sum);
  return status;
}

/** last[s]: the last row on the path from the root to the end of segment s, -1 when all its segments are empty. */
static void fill_last_rows(int32_t *last, const dkv_layout *layout) {
  for (int32_t s = 0; s < layout->segments; ++s) {
    int32_t parent = layout->parent[s];
    last[s] = dkv_layout_length(layout, s) > 0 ? layout->start[s + 1] - 1 : parent < 0 ? -1 : last[parent];
  }
}

/** Number of predictions: the rows of all non-root segments that have a row before them on their path. */
static int32_t count_predictions(const dkv_layout *layout) {
  int32_t count = 0;
  for (int32_t s = 0; s < layout->segments; ++s) {
    int32_t rows = dkv_layout_length(layout, s);
    if (layout->parent[s] >= 0 && rows > 0) count += rows - (layout->base[s] == 0);
  }
  return count;
}

dkv_status dkv_predictions(dkv_prediction **out, int32_t *count, const dkv_layout *layout) {
  DKV_REQUIRE(out != NULL && count != NULL && layout != NULL, DKV_ERR_NULL,
              "dkv_predictions: out, count and layout must not be NULL");
  *out = NULL;
  *count = 0;
  int32_t pairs = count_predictions(layout), p = 0;
  if (pairs == 0) return DKV_OK;
  int32_t *last = new_bytes((size_t)layout->segments * sizeof *last);
  dkv_prediction *list = new_bytes((size_t)pairs * sizeof *list);
  if (last == NULL || list == NULL) {
    free(last);
    free(list);
    return dkv_fail(DKV_ERR_NOMEM, "no memory for %d predictions", pairs);
  }
  fill_last_rows(last, layout);
  for (int32_t s = 0; s < layout->segments; ++s) {
    if (layout->parent[s] < 0) continue;
    int32_t source = last[layout->parent[s]];
    for (int32_t t = layout->start[s]; t < layout->start[s + 1]; source = t++)
      if (source >= 0) list[p++] = (dkv_prediction){source, t, s};
  }
  free(last);
  *out = list;
  *count = pairs;
  return DKV_OK;
}
