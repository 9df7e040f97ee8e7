// caught: the tile has no byte to spare
/* Sixteen more bytes a row: no conflicts, but the tile no longer fits where it should. */
#include <stdint.h>

int32_t student_place(int32_t row, int32_t chunk, int32_t dim) { return row * (dim * 2 + 16) + chunk * 16; }
