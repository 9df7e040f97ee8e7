/**
 * @file tool_assumptions.c
 * @brief Prints the counter-examples of docs/equivalence.md: what packed and replicated differ by, broken and mended.
 *
 *     tool_assumptions          one line each; "equal" means equal to rounding
 *
 * Read before: tests/support/assumptions.h.
 */
#include <math.h>
#include <stdio.h>

#include "tests/support/assumptions.h"

/** A difference in two digits, or that there is none: rounding in double, and what central differences leave of it. */
static void show(double gap, double rounding, bool exists) {
  if (!exists) printf("%9s", "-");
  else if (gap <= rounding) printf("%9s", "equal");
  else printf("%9.2g", gap);
}

int main(void) {
  struct gap gap;
  if (assumption_gap(&gap, NULL, false) != DKV_OK) return 1;
  printf("%-40s%18s%18s\n", "relative difference", "broken", "mended");
  printf("%-40s%9s%9s%9s%9s  by\n", "", "forward", "gradient", "forward", "gradient");
  printf("%-40s", "--  nothing");
  show(gap.forward, 1e-12, true);
  show(gap.gradient, 1e-8, true);
  printf("\n");
  for (const struct assumption *a = assumptions; a->name != NULL; ++a) {
    printf("%-4s%-36s", a->breaks, a->name);
    for (int mended = 0; mended < 2; ++mended) {
      if (assumption_gap(&gap, a, mended == 1) != DKV_OK) return 1;
      show(gap.forward, 1e-12, true);
      show(gap.gradient, 1e-8, !a->steps);
    }
    printf("  %s\n", a->repair);
  }
  return 0;
}
