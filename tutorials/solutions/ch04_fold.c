/*
 * The map copies: each response is preceded by the prompt's rows again.  Its transpose adds: what reads a row N times
 * sends N gradients back to it.
 */
#include <stdint.h>

void student_row_map(int32_t *row_map, int32_t prompt, int32_t responses, const int32_t *length) {
  int32_t r = 0, start = prompt;
  for (int32_t n = 0; n < responses; ++n) {
    for (int32_t i = 0; i < prompt; ++i) row_map[r++] = i;
    for (int32_t i = 0; i < length[n]; ++i) row_map[r++] = start + i;
    start += length[n];
  }
}

void student_fold(double *packed, int32_t packed_rows, const double *replicated, int32_t width, const int32_t *row_map,
                  int32_t replicated_rows) {
  for (int32_t i = 0; i < packed_rows * width; ++i) packed[i] = 0;
  for (int32_t r = 0; r < replicated_rows; ++r)
    for (int32_t d = 0; d < width; ++d) packed[row_map[r] * width + d] += replicated[r * width + d];
}
