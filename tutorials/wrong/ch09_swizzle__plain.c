// caught: lies in the same banks
/* Rows one after another, as in global memory. */
#include <stdint.h>

int32_t student_place(int32_t row, int32_t chunk, int32_t dim) { return row * dim * 2 + chunk * 16; }
