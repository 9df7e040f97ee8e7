// caught: a row's chunks are 128 bytes apart
/* Eight rows of a chunk side by side: perfect for reading, and the copies that write pay for it. */
#include <stdint.h>

int32_t student_place(int32_t row, int32_t chunk, int32_t dim) {
  return row / 8 * 8 * dim * 2 + (chunk * 8 + row % 8) * 16;
}
