// caught: an element has `element` bytes, not always 2
/* The right answer for bf16 alone: the bytes of an element are typed in. */
#include <stdint.h>

struct bound {
  double loads, bytes, flops, seconds;
};

void student_bound(struct bound *out, const int32_t *end, int32_t rows, int32_t tile, int32_t heads, int32_t dim,
                   int32_t element, double bandwidth, double rate) {
  (void)element;
  double loads = 0, pairs = 0;
  for (int32_t i0 = 0; i0 < rows; i0 += tile) {
    const int32_t i1 = i0 + tile < rows ? i0 + tile : rows;
    for (int32_t j = 0; j < i1; ++j) loads += end[j] > i0;
  }
  for (int32_t j = 0; j < rows; ++j) pairs += end[j] - j;
  out->loads = loads;
  out->bytes = (2 * loads + 2 * (double)rows) * heads * dim * 2;
  out->flops = 4 * pairs * heads * dim;
  const double copying = out->bytes / bandwidth, computing = out->flops / rate;
  out->seconds = copying > computing ? copying : computing;
}
