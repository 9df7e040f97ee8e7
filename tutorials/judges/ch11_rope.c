/*
 * Judge of exercise 11: the student's rotation against the library's layer `rope`, fed with the positions of the
 * layout.  When a row differs, the library turns it in the usual wrong ways too, and the judge says which of them fits.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/layers.h"
#include "common/layout.h"
#include "common/rng.h"

void student_rope(float *x, int32_t prompt, int32_t responses, const int32_t *length, int32_t dim, double theta);

enum { MOST_DIM = 32, MOST = 64 };

/** Of the case at hand; they vary, so that they cannot be typed in. */
static int32_t head_dim = 16;
static double base = 10000;

static float most_apart(const float *a, const float *b) {
  float most = 0;
  for (int d = 0; d < head_dim; ++d) most = isfinite(a[d]) ? fmaxf(most, fabsf(a[d] - b[d])) : INFINITY;
  return most;
}

/** One row turned by hand. @param[in] stride distance of the partners: half, or 1 for neighbours @param[in] power of
 * theta */
static void turn(float *out, const float *x, double position, int32_t stride, double power, int overwrite) {
  memcpy(out, x, (size_t)head_dim * sizeof *out);
  for (int32_t j = 0; j < head_dim / 2; ++j) {
    const int32_t at = stride == 1 ? 2 * j : j;
    const double a = position * pow(base, power * j / head_dim), first = x[at], second = x[at + stride];
    out[at] = (float)(first * cos(a) - second * sin(a));
    out[at + stride] = (float)(second * cos(a) + (overwrite ? (double)out[at] : first) * sin(a));
  }
}

/** @param[in] inside the row's place in its own segment */
static const char *reason(const float *got, const float *x, int32_t row, int32_t position, int32_t inside) {
  const struct {
    double position;
    int32_t stride;
    double power;
    int overwrite;
    const char *text;
  } mistakes[] = {
      {0, head_dim / 2, -2, 0, "nothing was turned here; row r begins at x[r * dim]"},
      {row, head_dim / 2, -2, 0,
       "that is its position by packed row: it was turned by the lengths of its siblings too"},
      {inside, head_dim / 2, -2, 0, "counted from the start of the response: on its path the prompt comes first"},
      {position + 1, head_dim / 2, -2, 0, "positions begin at 0: row 0 is not turned at all"},
      {position, head_dim / 2, 0, 0, "the angle is the same for all j: -2 * j / dim is a division of integers in C"},
      {position, head_dim / 2, 2, 0, "the exponent of theta is negative: later components turn more slowly"},
      {position, 1, -2, 0, "the partner of x_j is x_{j+half}, not its neighbour"},
      {-position, head_dim / 2, -2, 0, "turned the other way: that is the backward of a rotation"},
      {position, head_dim / 2, -1, 0, "the exponent is -2 j / dim: j runs over half of the dimensions"},
      {position, head_dim / 2, -2, 1, "x_j was overwritten before x_{j+half} could use it"},
  };
  for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; ++i) {
    float wrong[MOST_DIM];
    turn(wrong, x, mistakes[i].position, mistakes[i].stride, mistakes[i].power, mistakes[i].overwrite);
    if (most_apart(got, wrong) < 1e-5f) return mistakes[i].text;
  }
  return "turn each pair (x_j, x_{j+half}) by position theta^(-2 j / dim)";
}

static int judge(const char *name, int32_t prompt, int32_t responses, const int32_t *length) {
  static float x[MOST * MOST_DIM], want[MOST * MOST_DIM], got[MOST * MOST_DIM], table[MOST * MOST_DIM];
  dkv_layout layout;
  const dkv_layers *layers;
  const dkv_where where = {.threads = 1};
  for (int i = 0; i < MOST * MOST_DIM; ++i) x[i] = want[i] = got[i] = dkv_rng_normal(11, 1, (uint64_t)i);
  if (dkv_layout_group(&layout, prompt, responses, length) || dkv_layers_find(&layers, "cpu") ||
      layers->rope_table(&where, table, MOST, head_dim, base) ||
      layers->rope(&where, want, table, layout.position, layout.rows, 1, head_dim, false)) {
    printf("the judge itself failed: %s\n", dkv_last_error());
    return 2;
  }
  student_rope(got, prompt, responses, length, head_dim, base);
  int wrong = 0;
  for (int32_t row = layout.rows - 1; row >= 0 && !wrong; --row) { /* late rows tell more: row 0 is turned by nothing */
    wrong = !(most_apart(got + row * head_dim, want + row * head_dim) < 1e-5f);
    const int32_t inside = row - layout.start[layout.segment[row]];
    int at = row * head_dim;
    while (at < row * head_dim + head_dim - 1 && fabsf(got[at] - want[at]) < 1e-5f) ++at;
    if (wrong)
      printf("%s, row %d, position %d: x[%d] is %.6g, it should be %.6g; %s\n", name, row, layout.position[row],
             at - row * head_dim, (double)got[at], (double)want[at],
             reason(got + row * head_dim, x + row * head_dim, row, layout.position[row], inside));
  }
  if (!wrong && memcmp(got + layout.rows * head_dim, x + layout.rows * head_dim,
                       (size_t)((MOST - layout.rows) * head_dim) * sizeof *x) != 0)
    wrong = printf("%s: something behind the last row was turned, there are %d rows\n", name, layout.rows) > 0;
  dkv_layout_free(&layout);
  return wrong;
}

int main(void) {
  int wrong = judge("P=3, R={2,2}", 3, 2, (const int32_t[]){2, 2});
  if (!wrong) wrong = judge("P=9, R={5,0,1,12}", 9, 4, (const int32_t[]){5, 0, 1, 12});
  head_dim = 32, base = 1e6;
  if (!wrong) wrong = judge("P=0, R={3,4}, dim 32, theta 1e6", 0, 2, (const int32_t[]){3, 4});
  if (!wrong) printf("right: three packed groups turned by path position\n");
  return wrong;
}
