/**
 * @file judge.c
 * @brief Is this result right?  The exact answer, the bound, and a closer look for the one element that is not.
 *
 * Bounds are those of the storage type; lse is stored in f32 whatever the other tensors are, and held to f32's bound.
 *
 * Read before: tool.h, common/compare.h, common/outlier.h.
 */
#include <stdlib.h>

#include "common/outlier.h"
#include "tools/tool.h"

/** The bound that one result is held to. */
static double bound_of(const dkv_problem *problem, dkv_result which, double slack) {
  dkv_dtype held_to = which != DKV_LSE ? problem->dtype : problem->dtype == DKV_F64 ? DKV_F64 : DKV_F32;
  return slack * dkv_error_bound(held_to, which >= DKV_DQ);
}

static dkv_dtype type_of(const dkv_results *results, dkv_result which) {
  return which == DKV_LSE ? results->lse_dtype : results->dtype;
}

dkv_status dkv_judge(dkv_comparison *out, const dkv_problem *problem, dkv_result which, const void *x,
                     dkv_dtype x_dtype, const dkv_results *answer, double slack) {
  int64_t rows, width;
  dkv_result_shape(problem, which, &rows, &width);
  return dkv_compare(out, x, x_dtype, answer->data[which], type_of(answer, which), rows, width,
                     bound_of(problem, which, slack));
}

dkv_status dkv_judge_closely(dkv_comparison *out, const dkv_problem *problem, dkv_result which, const void *x,
                             dkv_dtype x_dtype, const dkv_results *answer, const dkv_results *stored, double slack) {
  DKV_TRY(dkv_judge(out, problem, which, x, x_dtype, answer, slack));
  dkv_dtype dtype = type_of(answer, which);
  const void *other = stored != NULL ? stored->data[which] : NULL;
  if (!out->passed && other != NULL) {
    dkv_comparison second;
    DKV_TRY(dkv_judge(&second, problem, which, x, x_dtype, stored, slack));
    if (second.passed) *out = second;
  }
  if (!out->passed || dtype != DKV_F64) return DKV_OK; /* two roundings have gaps between them */
  int64_t rows, width;
  dkv_result_shape(problem, which, &rows, &width);
  int64_t alone =
      dkv_outlier(x, x_dtype, answer->data[which], dtype, other, rows, width, bound_of(problem, which, slack));
  if (alone < 0) return DKV_OK;
  out->passed = false;
  out->stands_alone = true;
  out->worst_row = alone / width;
  out->worst_index = alone % width;
  out->worst_got = dkv_element(x, x_dtype, alone);
  out->worst_want = dkv_element(answer->data[which], dtype, alone);
  return DKV_OK;
}

dkv_status dkv_exact_results(dkv_results *out, const dkv_problem *problem) {
  const dkv_backend *ref = NULL;
  dkv_problem exact;
  *out = (dkv_results){0};
  DKV_TRY(dkv_backend_find(&ref, "ref"));
  DKV_TRY(dkv_problem_cast(&exact, problem, DKV_F64));
  dkv_status status = dkv_execute(out, ref, &exact, NULL);
  dkv_problem_free(&exact);
  return status;
}

/** Runs the reference's backward on an f64 problem with a given o and lse. */
static dkv_status differentiate(dkv_results *out, const dkv_problem *exact, void *o, void *lse) {
  const dkv_backend *ref = NULL;
  const dkv_kernel *kernel = NULL;
  void *workspace = NULL;
  for (int r = DKV_DQ; r < DKV_RESULTS; ++r) {
    out->data[r] = malloc((size_t)dkv_result_elements(exact, (dkv_result)r) * sizeof(double) + 1);
    DKV_REQUIRE(out->data[r] != NULL, DKV_ERR_NOMEM, "no memory for %s in double", dkv_result_name((dkv_result)r));
  }
  dkv_attention call = {.layout = &exact->layout,
                        .heads = exact->heads,
                        .kv_heads = exact->kv_heads,
                        .head_dim = exact->head_dim,
                        .scale = exact->scale,
                        .dtype = DKV_F64,
                        .q = exact->q,
                        .k = exact->k,
                        .v = exact->v,
                        .o = o,
                        .lse = lse,
                        .dout = exact->dout,
                        .dq = out->data[DKV_DQ],
                        .dk = out->data[DKV_DK],
                        .dv = out->data[DKV_DV]};
  DKV_TRY(dkv_backend_find(&ref, "ref"));
  DKV_TRY(dkv_kernel_find(&kernel, ref, DKV_BACKWARD, NULL, &call));
  DKV_TRY(kernel->workspace(&call, &call.workspace_bytes));
  DKV_TRY(ref->allocate(&workspace, call.workspace_bytes));
  call.workspace = workspace;
  dkv_status status = kernel->prepare != NULL ? kernel->prepare(&call) : DKV_OK;
  if (status == DKV_OK) status = kernel->run(&call);
  ref->release(workspace);
  return status;
}

dkv_status dkv_stored_gradients(dkv_results *out, const dkv_problem *problem, const void *o, dkv_dtype dtype,
                                const dkv_results *answer) {
  dkv_problem exact;
  *out = (dkv_results){.dtype = DKV_F64, .lse_dtype = DKV_F64};
  int64_t elements = dkv_result_elements(problem, DKV_O), rows = dkv_result_elements(problem, DKV_LSE);
  double *o64 = malloc((size_t)elements * sizeof *o64 + 1), *lse64 = malloc((size_t)rows * sizeof *lse64 + 1);
  dkv_status status = o64 != NULL && lse64 != NULL ? DKV_OK : dkv_fail(DKV_ERR_NOMEM, "no memory for o in double");
  if (status == DKV_OK) status = dkv_convert(o64, DKV_F64, o, dtype, elements);
  if (status == DKV_OK) status = dkv_convert(lse64, DKV_F64, answer->data[DKV_LSE], answer->lse_dtype, rows);
  if (status == DKV_OK) status = dkv_problem_cast(&exact, problem, DKV_F64);
  if (status == DKV_OK) {
    status = differentiate(out, &exact, o64, lse64);
    dkv_problem_free(&exact);
  }
  free(o64);
  free(lse64);
  if (status != DKV_OK) dkv_results_free(out);
  return status;
}
