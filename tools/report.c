/**
 * @file report.c
 * @brief Verdicts as text: a line per tensor, the closing line and the exit code.
 *
 * Read before: tool.h, judge.c.
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
