/**
 * @file bench_check.c
 * @brief No speed without correctness: the kernels are compared with the definition before they are timed.
 *
 * Read before: bench.h.  Read next: bench_time.c.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tools/bench.h"
#include "tools/twins.h"

/** Multiplications that the definition, one plain loop in double, does in about a second. */
static const double affordable = 6e8;

/** Fails unless a verdict is good; otherwise counts it. */
static dkv_status demand(struct dkv_bench_result *result, const dkv_comparison *v, const char *layout,
                         const char *tensor) {
  DKV_REQUIRE(
      v->passed, DKV_ERR_MISMATCH,
      "not timed, because it is wrong: %s %s has error %.2e (bound %.1e), at row %lld, index %lld: %.9g, not %.9g",
      layout, tensor, v->error, v->bound, (long long)v->worst_row, (long long)v->worst_index, v->worst_got,
      v->worst_want);
  ++result->checked;
  if (v->error / v->bound > result->worst_share) result->worst_share = v->error / v->bound;
  return DKV_OK;
}

/** Both layouts of one problem against the definition. */
static dkv_status check_problem(struct dkv_bench_result *result, const struct dkv_bench_request *request,
                                const dkv_problem *packed) {
  dkv_problem replicated = {0};
  dkv_results exact = {0}, once = {0}, copies = {0};
  dkv_comparison twins[DKV_RESULTS];
  int32_t *row_map = NULL;
  dkv_status status = dkv_exact_results(&exact, packed);
  if (status == DKV_OK) status = dkv_execute(&once, request->backend, packed, &request->options);
  for (int r = 0; r < DKV_RESULTS && status == DKV_OK; ++r) {
    dkv_comparison v;
    status = dkv_judge(&v, packed, (dkv_result)r, once.data[r], r == DKV_LSE ? once.lse_dtype : once.dtype, &exact, 1);
    if (status == DKV_OK) status = demand(result, &v, "packed", dkv_result_name((dkv_result)r));
  }
  if (status == DKV_OK) status = dkv_problem_replicate(&replicated, &row_map, packed);
  if (status == DKV_OK) status = dkv_execute(&copies, request->backend, &replicated, &request->options);
  if (status == DKV_OK) status = dkv_twins_compare(twins, packed, &once, &replicated, &copies, row_map);
  for (int r = 0; r < DKV_RESULTS && status == DKV_OK; ++r)
    status = demand(result, &twins[r], "replicated", dkv_result_name((dkv_result)r));
  dkv_results_free(&exact);
  dkv_results_free(&once);
  dkv_results_free(&copies);
  dkv_problem_free(&replicated);
  free(row_map);
  return status;
}

static dkv_status check_layout(struct dkv_bench_result *result, const struct dkv_bench_request *request,
                               const dkv_layout *layout) {
  dkv_problem problem;
  DKV_TRY(dkv_problem_random(&problem, layout, &request->spec));
  dkv_status status = check_problem(result, request, &problem);
  dkv_problem_free(&problem);
  return status;
}

/** The same forest with every length divided by `divisor`, rounded up. */
static dkv_status shrink(dkv_layout *out, const dkv_layout *layout, int32_t divisor) {
  int32_t *length = malloc((size_t)layout->segments * sizeof *length + 1);
  DKV_REQUIRE(length != NULL, DKV_ERR_NOMEM, "no memory for %d segment lengths", layout->segments);
  for (int32_t s = 0; s < layout->segments; ++s)
    length[s] = (int32_t)dkv_ceil_div(dkv_layout_length(layout, s), divisor);
  dkv_status status = dkv_layout_forest(out, layout->segments, layout->parent, length);
  free(length);
  return status;
}

/** The largest scaled-down version of the layout that the definition can afford. */
static dkv_status affordable_layout(dkv_layout *out, const struct dkv_bench_request *request) {
  double per_pair = 7.0 * request->spec.heads * request->spec.head_dim; /* two products forward, five backward */
  for (int32_t divisor = 1;; divisor *= 2) {
    DKV_TRY(shrink(out, &request->layout, divisor));
    if ((double)dkv_layout_pairs(out) * per_pair <= affordable || divisor > (1 << 24)) return DKV_OK;
    dkv_layout_free(out);
  }
}

dkv_status dkv_bench_check(struct dkv_bench_result *result, const struct dkv_bench_request *request) {
  static const int32_t ragged[] = {11, 0, 64, 1};
  dkv_layout layout;
  dkv_tool_progress("checking a small ragged group");
  DKV_TRY(dkv_layout_group(&layout, 37, 4, ragged));
  dkv_status status = check_layout(result, request, &layout);
  dkv_layout_free(&layout);
  if (status != DKV_OK) return status;
  DKV_TRY(affordable_layout(&layout, request));
  dkv_tool_progress("checking the shape scaled down to %d rows", layout.rows);
  status = layout.rows > 0 ? check_layout(result, request, &layout) : DKV_OK;
  dkv_layout_free(&layout);
  return status;
}
