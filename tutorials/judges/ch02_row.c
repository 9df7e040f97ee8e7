/*
 * Judge of exercise 02: the student's row against the library's definition ("ref" backend, double), on the last row of
 * a causal sequence, which sees all rows.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/execute.h"

double student_row(double *o, const double *q, const double *k, const double *v, int keys, int dim, double scale);

enum { MOST_DIM = 16, UNWRITTEN = -77 };

/** Components of a row in the case at hand; it varies, so that neither it nor the scale can be typed in. */
static int32_t head_dim = 8;

static double largest_difference(const double *a, const double *b, int n) {
  double most = 0;
  for (int i = 0; i < n; ++i) most = isfinite(a[i]) ? fmax(most, fabs(a[i] - b[i])) : INFINITY;
  return most;
}

/** The mistakes that the judge knows. */
enum mistake { NO_SCALE, NO_LAST, NO_FIRST, UNFINISHED, SWAPPED_K, SWAPPED_V, SWAPPED, MISTAKES };
static const char *const reason[MISTAKES] = {
    "the scale is missing from the scores",
    "the mask is off by one, the last key is missing: row i sees itself",
    "the first key is missing: arrays begin at 0",
    "the sum of exp(s) is divided by before it is complete: divide after the last key",
    "rows and columns of k are swapped: component d of key j is k[j * dim + d]",
    "rows and columns of v are swapped: component d of value j is v[j * dim + d]",
    "rows and columns of k and v are swapped: component d of key j is k[j * dim + d]",
};

/** The row with one mistake in it. */
static void mistaken(double *o, const dkv_problem *p, enum mistake mistake) {
  const int keys = p->layout.rows;
  const double *q = (const double *)p->q + (long)(keys - 1) * head_dim, *k = p->k, *v = p->v;
  double sum = 0;
  for (int d = 0; d < head_dim; ++d) o[d] = 0;
  for (int j = mistake == NO_FIRST; j < keys - (mistake == NO_LAST); ++j) {
    double s = 0;
    const int swap_k = mistake == SWAPPED_K || mistake == SWAPPED, swap_v = mistake == SWAPPED_V || mistake == SWAPPED;
    for (int d = 0; d < head_dim; ++d) s += q[d] * k[swap_k ? d * keys + j : j * head_dim + d];
    const double weight = exp(s * (mistake == NO_SCALE ? 1 : p->scale));
    sum += weight;
    for (int d = 0; d < head_dim; ++d)
      o[d] += weight / (mistake == UNFINISHED ? sum : 1) * v[swap_v ? d * keys + j : j * head_dim + d];
  }
  for (int d = 0; d < head_dim; ++d) o[d] /= mistake == UNFINISHED ? 1 : sum;
}

/** Why is o wrong? */
static const char *why(const dkv_problem *p, const double *got, const double *want, double gain) {
  double suspect[MOST_DIM], times[MOST_DIM], plus[MOST_DIM];
  for (int d = 0; d < head_dim; ++d) times[d] = got[0] / want[0] * want[d], plus[d] = got[0] - want[0] + want[d];
  if (got[0] == UNWRITTEN && got[head_dim - 1] == UNWRITTEN) return "nothing was written there";
  if (gain > 100 && p->layout.rows == 1)
    return "the one score is below -700: exp underflows; the largest score is searched from -INFINITY, not from 0";
  if (gain > 100) return "the scores reach 2000: exp overflow; subtract the largest score first";
  if (largest_difference(got, plus, head_dim) < 1e-9)
    return "o holds rubbish when you get it: clear it before you add to it";
  if (largest_difference(got, times, head_dim) < 1e-9)
    return "every component is off by one factor: a weight is exp(s_j) over the sum of ALL exp(s), and they sum to 1";
  for (int m = 0; m < MISTAKES; ++m) {
    mistaken(suspect, p, (enum mistake)m);
    if (largest_difference(got, suspect, head_dim) < 1e-9) return reason[m];
  }
  if (got[head_dim - 1] == UNWRITTEN) return "not all of o[0] .. o[dim-1] are written";
  return "a key too few or too many? row i sees all keys 0 .. keys-1, itself among them; print s_j and p_j of each";
}

/** Why is lse wrong? */
static const char *lse_reason(double lse, double want) {
  if (fabs(lse - exp(want)) < 1e-9 * exp(want)) return "that is the sum itself: take its logarithm";
  if (fabs(lse * log(2) - want) < 1e-9 * fmax(1, fabs(want))) return "the logarithm is the natural one, log() in C";
  return "what was taken out of the exponent must come back";
}

static int judge(int rows, double gain) {
  dkv_layout layout;
  dkv_problem problem;
  dkv_results results;
  const dkv_backend *ref;
  dkv_random_spec spec = {.heads = 1, .kv_heads = 1, .head_dim = head_dim, .dtype = DKV_F64, .gain = gain, .seed = 2};
  if (dkv_layout_group(&layout, rows, 0, NULL) || dkv_problem_random(&problem, &layout, &spec) ||
      dkv_backend_find(&ref, "ref") || dkv_execute(&results, ref, &problem, NULL)) {
    printf("the judge itself failed: %s\n", dkv_last_error());
    return 2;
  }
  double o[MOST_DIM], want_lse = ((const double *)results.data[DKV_LSE])[rows - 1];
  for (int d = 0; d < head_dim; ++d) o[d] = UNWRITTEN;
  const double *q = (const double *)problem.q + (long)(rows - 1) * head_dim,
               *want = (const double *)results.data[DKV_O] + (long)(rows - 1) * head_dim;
  double lse = student_row(o, q, problem.k, problem.v, rows, head_dim, problem.scale);
  int wrong = 0, at = 0;
  while (at < head_dim - 1 && fabs(o[at] - want[at]) < 1e-9) ++at;
  if (!(largest_difference(o, want, head_dim) < 1e-9)) {
    printf("%d keys, dim %d: your o[%d] is %.6g, it should be %.6g; %s\n", rows, head_dim, at, o[at], want[at],
           why(&problem, o, want, gain));
    wrong = 1;
  } else if (!(fabs(lse - want_lse) < 1e-9 * fmax(1, fabs(want_lse)))) {
    printf("%d keys: o is right, but lse is %.6g, it should be %.6g: %s\n", rows, lse, want_lse,
           lse_reason(lse, want_lse));
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
    int32_t head_dim;
  } tries[] = {{17, 1, 8}, {2, 1, 8}, {1, 1, 8}, {64, 3, 16}, {40, 2000, 8}, {1, 2000, 8}};
  for (size_t i = 0; i < sizeof tries / sizeof tries[0]; ++i) {
    head_dim = tries[i].head_dim;
    int wrong = judge(tries[i].rows, tries[i].gain);
    if (wrong) return wrong;
  }
  printf("right: rows of 1 to 64 keys, scores of thousands of either sign\n");
  return 0;
}
