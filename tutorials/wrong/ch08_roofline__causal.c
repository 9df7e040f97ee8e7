// caught: siblings are loaded though nobody
/* Everything up to the last row, as in one causal sequence: the other responses are loaded too. */
#include <stdint.h>

struct bound {
  double loads, bytes, flops, seconds;
};

void student_bound(struct bound *out, const int32_t *end, int32_t rows, int32_t tile, int32_t heads, int32_t dim,
                   int32_t element, double bandwidth, double rate) {
  double loads = 0, pairs = 0;
  for (int32_t i0 = 0; i0 < rows; i0 += tile) {
    (void)end;
    const int32_t i1 = i0 + tile < rows ? i0 + tile : rows;
    for (int32_t j = 0; j < i1; ++j) loads += 1;
  }
  for (int32_t j = 0; j < rows; ++j) pairs += end[j] - j;
  out->loads = loads;
  out->bytes = (2 * loads + 2 * (double)rows) * heads * dim * element;
  out->flops = 4 * pairs * heads * dim;
  const double copying = out->bytes / bandwidth, computing = out->flops / rate;
  out->seconds = copying > computing ? copying : computing;
}
