// caught: nothing was written
/*
 * Exercise 04, core: the two arrows between packed and replicated.
 *
 *   make exercise CH=04        judges this file
 *
 * student_row_map   row_map[r] = the packed row that replicated row r is a copy of.  The packed rows are the prompt,
 *                   then the responses one after another; the replicated batch is (prompt, response 0), (prompt,
 *                   response 1), ...  Responses may have different lengths, also none.
 * student_fold      the transpose: the gradient of a packed row from those of its copies.  replicated
 *                   [replicated_rows][width] and packed [packed_rows][width] lie row by row; packed holds rubbish when
 *                   you get it.
 *
 * Target: each element of the replicated gradient is read once.
 * Hint: if x is used twice, how do its two derivatives make one?
 */
#include <stdint.h>

void student_row_map(int32_t *row_map, int32_t prompt, int32_t responses, const int32_t *length) {
  (void)row_map, (void)prompt, (void)responses, (void)length; /* your code replaces this line */
}

void student_fold(double *packed, int32_t packed_rows, const double *replicated, int32_t width, const int32_t *row_map,
                  int32_t replicated_rows) {
  (void)packed, (void)packed_rows, (void)replicated, (void)width; /* and this one */
  (void)row_map, (void)replicated_rows;
}
