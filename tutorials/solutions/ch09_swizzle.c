/*
 * dim 64 and 128: a row is a whole number of times 128 bytes, so every row begins in bank 0, and eight rows need eight
 * different places among eight: chunk ^ (row % 8).  dim 96: a row has 192 bytes, so odd rows begin in bank 16, and only
 * the four rows of one parity have to differ, among four places: chunk ^ (row / 2 % 4).
 *
 * Rotating, (chunk + key) % (dim / 8), passes too.  Exclusive or is what the kernels use, because the place of another
 * chunk of the same row is then one more exclusive or: lane_at in gpu/runtime/mma.cuh.
 */
#include <stdint.h>

int32_t student_place(int32_t row, int32_t chunk, int32_t dim) {
  const int32_t key = dim % 64 == 0 ? row % 8 : row / 2 % 4;
  return row * dim * 2 + (chunk ^ key) * 16;
}
