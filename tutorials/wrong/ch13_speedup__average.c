// caught: ratios do not average
/* Averages the two ratios. */
#include <stdint.h>

static double triangle(double n) { return n * (n + 1) / 2; }

void student_speedup(double *update, double *loop, int32_t prompt, int32_t responses, const int32_t *length,
                     double row_cost, double pair_cost, double rest) {
  double rows = prompt, pairs = triangle(prompt), copy_rows = 0, copy_pairs = 0;
  for (int32_t n = 0; n < responses; ++n) {
    rows += length[n];
    pairs += triangle(prompt + length[n]) - triangle(prompt);
    copy_rows += prompt + length[n];
    copy_pairs += triangle(prompt + length[n]);
  }
  const double packed = rows * row_cost + pairs * pair_cost;
  const double copies = copy_rows * row_cost + copy_pairs * pair_cost;
  *update = (copy_rows / rows + copy_pairs / pairs) / 2;
  *loop = (copies + rest) / (packed + rest);
}
