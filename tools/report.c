/**
 * @file report.c
 * @brief Verdicts: the exact answer, the bound, a line per tensor, the closing line and the exit code.
 *
 * Bounds are those of the storage type; lse is stored in f32 whatever the other tensors are, and held to f32's bound.
 *
 * Read before: tool.h, common/compare.h.
 */
#include <stdio.h>

#include "tools/tool.h"

void dkv_report_heading(void) {
  const struct dkv_style *style = dkv_tool_style();
  printf("%s%-20s %-28s %-6s %9s %9s %9s %7s %7s%s\n", style->title, "case", "kernel", "tensor", "error", "bound",
         "worst row", "row", "index", style->off);
}

void dkv_report(struct dkv_tally *tally, const char *subject, const char *kernel, const char *tensor,
                const dkv_comparison *v) {
  const struct dkv_style *style = dkv_tool_style();
  if (v->passed) ++tally->passed;
  else ++tally->failed;
  printf("%-20s %-28s %-6s %9.1e %9.1e %9.1e %7lld %7lld  %s%s%s", subject, kernel, tensor, v->error, v->bound,
         v->row_error, (long long)v->worst_row, (long long)v->worst_index, v->passed ? style->good : style->bad,
         v->passed ? "pass" : "FAIL", style->off);
  if (!v->passed) {
    if (v->elements == 0) printf(": there was nothing to compare");
    else
      printf(": %s row %lld, index %lld is %.9g, the answer is %.9g", tensor, (long long)v->worst_row,
             (long long)v->worst_index, v->worst_got, v->worst_want);
    if (v->not_finite > 0) printf(" (%lld not finite)", (long long)v->not_finite);
    if (v->stands_alone) printf(" (this element alone)");
  }
  putchar('\n');
  fflush(stdout);
}

int dkv_report_total(const struct dkv_tally *tally) {
  printf("%d passed, %d failed\n", tally->passed, tally->failed);
  return tally->failed == 0 && tally->passed > 0 ? DKV_EXIT_OK : DKV_EXIT_MISMATCH;
}

dkv_status dkv_judge(dkv_comparison *out, const dkv_problem *problem, dkv_result which, const void *x,
                     dkv_dtype x_dtype, const dkv_results *answer, double slack) {
  int64_t rows, width;
  dkv_result_shape(problem, which, &rows, &width);
  dkv_dtype held_to = which != DKV_LSE ? problem->dtype : problem->dtype == DKV_F64 ? DKV_F64 : DKV_F32;
  double bound = slack * dkv_error_bound(held_to, which >= DKV_DQ);
  return dkv_compare(out, x, x_dtype, answer->data[which], which == DKV_LSE ? answer->lse_dtype : answer->dtype, rows,
                     width, bound);
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
