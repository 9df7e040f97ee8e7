// caught: position by packed row
/* Positions by packed row. */
#include <math.h>
#include <stdint.h>

static void turn(float *x, int32_t position, int32_t dim, double theta) {
  const int32_t half = dim / 2;
  for (int32_t j = 0; j < half; ++j) {
    const double a = position * pow(theta, -2.0 * j / dim);
    const double first = x[j], second = x[j + half];
    x[j] = (float)(first * cos(a) - second * sin(a));
    x[j + half] = (float)(second * cos(a) + first * sin(a));
  }
}

void student_rope(float *x, int32_t prompt, int32_t responses, const int32_t *length, int32_t dim, double theta) {
  int32_t row = 0;
  for (int32_t i = 0; i < prompt; ++i) turn(x + dim * row++, i, dim, theta);
  for (int32_t n = 0; n < responses; ++n)
    for (int32_t i = 0; i < length[n]; ++i) turn(x + dim * row, row, dim, theta), ++row;
}
