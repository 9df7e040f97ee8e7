// caught: lie at the same place
/*
 * Exercise 09, core: where does a tile keep its chunks, so that no two threads meet in a bank?
 *
 *   make exercise CH=09        judges this file
 *
 * A tile is [64 rows][dim] of 16-bit numbers in shared memory; dim is 64, 96 or 128, and a row is dim / 8 chunks of 16
 * bytes.  Return the byte at which chunk `chunk` of row `row` begins.
 *
 * Shared memory has 32 banks of 4 bytes; byte b lies in bank b / 4 % 32.  Eight threads move 16 bytes each in one turn
 * when their 32 banks are different, else in more turns.
 *
 *   reading   ldmatrix: the same chunk of rows 8 n .. 8 n + 7
 *   writing   a copy: eight neighbouring chunks of one row (dim 96: four of each of two neighbouring rows)
 *
 * Target: one turn for each read and each write, in 64 dim 2 bytes and no more.
 * Hint: keep each chunk in its row, at another place; a chunk fills four banks, so its place alone decides which.
 */
#include <stdint.h>

int32_t student_place(int32_t row, int32_t chunk, int32_t dim) {
  (void)row, (void)chunk, (void)dim; /* your code replaces these lines */
  return 0;
}
