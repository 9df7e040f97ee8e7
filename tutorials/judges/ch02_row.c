/*
 * Judge of exercise 02: the student's row against the library's definition ("ref" backend, double), on the last row of
 * a causal sequence, which sees all rows.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/execute.h"

double student_row(double *o, const double *q, const double *k, const double *v, int keys, int dim, double scale);

enum { DIM = 8 };

static double largest_difference(const double *a, const double *b, int n) {
  double most = 0;
  for (int i = 0; i < n; ++i) most = isfinite(a[i]) ? fmax(most, fabs(a[i] - b[i])) : INFINITY;
  return most;
}

/** Why is it wrong? Tries the usual suspects on the same row. */
static const char *reason(const dkv_problem *p, const double *got, double gain) {
  int last = p->layout.rows - 1;
  const double *q = (const double *)p->q + (long)last * DIM, *k = p->k, *v = p->v;
  double suspect[DIM], sum = 0;
  if (got[0] == 0 && got[1] == 0) return "nothing was written";
  if (gain > 100) return "the scores reach 2000: exp overflow; subtract the largest score first";
  for (int d = 0; d < DIM; ++d) suspect[d] = 0;
  for (int j = 0; j <= last; ++j) {
    double s = 0;
    for (int d = 0; d < DIM; ++d) s += q[d] * k[j * DIM + d];
    sum += exp(s);
    for (int d = 0; d < DIM; ++d) suspect[d] += exp(s) * v[j * DIM + d];
  }
  for (int d = 0; d < DIM; ++d) suspect[d] /= sum;
  if (largest_difference(got, suspect, DIM) < 1e-9) return "the scale is missing from the scores";
  return "a key too few or too many? the mask may be off by one: row i sees itself";
}

static int judge(int rows, double gain) {
  dkv_layout layout;
  dkv_problem problem;
  dkv_results results;
  const dkv_backend *ref;
  dkv_random_spec spec = {.heads = 1, .kv_heads = 1, .head_dim = DIM, .dtype = DKV_F64, .gain = gain, .seed = 2};
  if (dkv_layout_group(&layout, rows, 0, NULL) || dkv_problem_random(&problem, &layout, &spec) ||
      dkv_backend_find(&ref, "ref") || dkv_execute(&results, ref, &problem, NULL)) {
    printf("the judge itself failed: %s\n", dkv_last_error());
    return 2;
  }
  double o[DIM] = {0}, want_lse = ((const double *)results.data[DKV_LSE])[rows - 1];
  const double *q = (const double *)problem.q + (long)(rows - 1) * DIM,
               *want = (const double *)results.data[DKV_O] + (long)(rows - 1) * DIM;
  double lse = student_row(o, q, problem.k, problem.v, rows, DIM, problem.scale);
  int wrong = 0;
  if (!(largest_difference(o, want, DIM) < 1e-9)) {
    printf("%d keys: your o[0] is %.6g, it should be %.6g; %s\n", rows, o[0], want[0], reason(&problem, o, gain));
    wrong = 1;
  } else if (!(fabs(lse - want_lse) < 1e-9 * fmax(1, fabs(want_lse)))) {
    printf(
        "%d keys: o is right, but lse is %.6g, it should be %.6g: what was taken out of the exponent must come back\n",
        rows, lse, want_lse);
    wrong = 1;
  }
  dkv_results_free(&results);
  dkv_problem_free(&problem);
  dkv_layout_free(&layout);
  return wrong;
}

int main(void) {
  const struct {
    int rows;
    double gain;
  } tries[] = {{17, 1}, {2, 1}, {1, 1}, {64, 3}, {40, 2000}};
  for (size_t i = 0; i < sizeof tries / sizeof tries[0]; ++i) {
    int wrong = judge(tries[i].rows, tries[i].gain);
    if (wrong) return wrong;
  }
  printf("right: rows of 1 to 64 keys, scores up to 2000\n");
  return 0;
}
