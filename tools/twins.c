/**
 * @file twins.c
 * @brief packed == fold(replicated), tensor by tensor.
 *
 * Read before: twins.h.
 */
#include "tools/twins.h"

#include <stdlib.h>

#include "common/pack.h"
#include "tools/tool.h"

/** Two kernels' outputs, each within the bound of the truth, are within twice the bound of each other. */
static const double slack = 2;

/** o or lse: spreads the packed rows over their copies and compares those. */
static dkv_status compare_outputs(dkv_comparison *out, dkv_result which, const dkv_problem *packed,
                                  const dkv_results *once, const dkv_problem *replicated, const dkv_results *copies,
                                  const int32_t *row_map) {
  int32_t rows = packed->layout.rows, copied = replicated->layout.rows;
  bool lse = which == DKV_LSE;
  dkv_dtype dtype = lse ? once->lse_dtype : once->dtype;
  size_t size = dkv_dtype_size(dtype);
  size_t row_bytes = lse ? size : size * (size_t)packed->heads * (size_t)packed->head_dim;
  int32_t slices = lse ? packed->heads : 1; /* lse is [H][T]: its rows are spread head by head */
  dkv_results spread = {.dtype = once->dtype, .lse_dtype = once->lse_dtype};
  char *data = malloc((size_t)copied * row_bytes * (size_t)slices + 1);
  DKV_REQUIRE(data != NULL, DKV_ERR_NOMEM, "no memory to compare %d replicated rows", copied);
  dkv_status status = DKV_OK;
  for (int32_t s = 0; s < slices && status == DKV_OK; ++s)
    status = dkv_unpack_rows(data + (size_t)s * (size_t)copied * row_bytes,
                             (const char *)once->data[which] + (size_t)s * (size_t)rows * row_bytes, row_bytes, row_map,
                             copied);
  spread.data[which] = data;
  if (status == DKV_OK) status = dkv_judge(out, replicated, which, copies->data[which], dtype, &spread, slack);
  free(data);
  return status;
}

/** dq, dk or dv: adds up the copies' gradients and compares the sums. */
static dkv_status compare_gradients(dkv_comparison *out, dkv_result which, const dkv_problem *packed,
                                    const dkv_results *once, const dkv_problem *replicated, const dkv_results *copies,
                                    const int32_t *row_map) {
  int64_t rows, width;
  dkv_result_shape(packed, which, &rows, &width);
  void *sum = malloc((size_t)(rows * width) * dkv_dtype_size(once->dtype) + 1);
  DKV_REQUIRE(sum != NULL, DKV_ERR_NOMEM, "no memory to fold the gradients of %d rows", replicated->layout.rows);
  dkv_results folded = {.dtype = once->dtype, .lse_dtype = once->lse_dtype};
  folded.data[which] = sum;
  dkv_status status = dkv_fold_rows(sum, packed->layout.rows, copies->data[which], width, once->dtype, row_map,
                                    replicated->layout.rows);
  if (status == DKV_OK) status = dkv_judge(out, packed, which, once->data[which], once->dtype, &folded, slack);
  free(sum);
  return status;
}

dkv_status dkv_twins_compare(dkv_comparison out[DKV_RESULTS], const dkv_problem *packed, const dkv_results *once,
                             const dkv_problem *replicated, const dkv_results *copies, const int32_t *row_map) {
  for (int r = 0; r < DKV_RESULTS; ++r) {
    out[r] = (dkv_comparison){0};
    if (once->data[r] == NULL || copies->data[r] == NULL) continue;
    if (r < DKV_DQ) DKV_TRY(compare_outputs(&out[r], (dkv_result)r, packed, once, replicated, copies, row_map));
    else DKV_TRY(compare_gradients(&out[r], (dkv_result)r, packed, once, replicated, copies, row_map));
  }
  return DKV_OK;
}

const dkv_comparison *dkv_twins_worst(const dkv_comparison of[DKV_RESULTS], int32_t results) {
  const dkv_comparison *worst = &of[0];
  for (int32_t r = 0; r < results; ++r) {
    if (!of[r].passed) return &of[r];
    if (of[r].error > worst->error) worst = &of[r];
  }
  return worst;
}
