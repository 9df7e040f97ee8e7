// caught: rows r and r + 1 keep the same place
/* The key of dim 96, used for 64 and 128 as well. */
#include <stdint.h>

int32_t student_place(int32_t row, int32_t chunk, int32_t dim) { return row * dim * 2 + (chunk ^ row / 2 % 4) * 16; }
