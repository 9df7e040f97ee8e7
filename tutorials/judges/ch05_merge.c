/*
 * Judge of exercise 05: cuts a row's keys into parts, lets the student merge them, and compares o / l and m + log l
 * with the library's definition in double.  When they differ it merges the same parts with the usual mistakes and says
 * which fits.
 */
#include <math.h>
#include <stdio.h>

#include "common/execute.h"

void student_merge(double *m, double *l, double *o, double m2, double l2, const double *o2, int dim);

enum { MOST_DIM = 16, MOST_PARTS = 12 };

/** Components of a row in the case at hand. */
static int32_t head_dim = 8;

struct part {
  double m, l, o[MOST_DIM];
};

typedef void merger(double *m, double *l, double *o, double m2, double l2, const double *o2, int dim);

/** Brings neither part to a common maximum. */
static void no_rescale(double *m, double *l, double *o, double m2, double l2, const double *o2, int dim) {
  for (int d = 0; d < dim; ++d) o[d] += o2[d];
  *l += l2;
  *m = fmax(*m, m2);
}

/** Brings only what was summed before to the new maximum. */
static void old_only(double *m, double *l, double *o, double m2, double l2, const double *o2, int dim) {
  const double top = fmax(*m, m2), factor = *m == -INFINITY ? 0 : exp(*m - top);
  for (int d = 0; d < dim; ++d) o[d] = factor * o[d] + o2[d];
  *l = factor * *l + l2;
  *m = top;
}

/** Mends l and forgets o. */
static void sum_only(double *m, double *l, double *o, double m2, double l2, const double *o2, int dim) {
  const double top = fmax(*m, m2), f = *m == -INFINITY ? 0 : exp(*m - top), g = m2 == -INFINITY ? 0 : exp(m2 - top);
  for (int d = 0; d < dim; ++d) o[d] += o2[d];
  *l = f * *l + g * l2;
  *m = top;
}

/** Moves the maximum before the factor of the old sums is computed. */
static void moved_early(double *m, double *l, double *o, double m2, double l2, const double *o2, int dim) {
  *m = fmax(*m, m2);
  const double g = m2 == -INFINITY ? 0 : exp(m2 - *m);
  for (int d = 0; d < dim; ++d) o[d] += g * o2[d];
  *l += g * l2;
}

/** Gives each part the other's factor. */
static void crossed(double *m, double *l, double *o, double m2, double l2, const double *o2, int dim) {
  const double top = fmax(*m, m2), f = *m == -INFINITY ? 0 : exp(*m - top), g = m2 == -INFINITY ? 0 : exp(m2 - top);
  for (int d = 0; d < dim; ++d) o[d] = g * o[d] + f * o2[d];
  *l = g * *l + f * l2;
  *m = top;
}

/** Divides by l at every merge. */
static void divided(double *m, double *l, double *o, double m2, double l2, const double *o2, int dim) {
  const double top = fmax(*m, m2), f = *m == -INFINITY ? 0 : exp(*m - top), g = m2 == -INFINITY ? 0 : exp(m2 - top);
  *l = f * *l + g * l2;
  for (int d = 0; d < dim; ++d) o[d] = (f * o[d] + g * o2[d]) / *l;
  *m = top;
}

/** Sums rightly and leaves m where it was. */
static void maximum_kept(double *m, double *l, double *o, double m2, double l2, const double *o2, int dim) {
  const double top = fmax(*m, m2), f = *m == -INFINITY ? 0 : exp(*m - top), g = m2 == -INFINITY ? 0 : exp(m2 - top);
  for (int d = 0; d < dim; ++d) o[d] = f * o[d] + g * o2[d];
  *l = f * *l + g * l2;
}

static void nothing(double *m, double *l, double *o, double m2, double l2, const double *o2, int dim) {
  (void)m, (void)l, (void)o, (void)m2, (void)l2, (void)o2, (void)dim;
}

static const struct {
  merger *merge;
  const char *reason;
} mistakes[] = {
    {nothing, "nothing was merged; a row begins as a part without keys, m = -infinity, l = 0"},
    {no_rescale, "the maximum moved, and what was summed before was not rescaled by exp(m - m')"},
    {old_only, "only the first part is rescaled; the new part's maximum may be the smaller one"},
    {moved_early, "m was overwritten before exp(m - m') of the old sums was computed"},
    {crossed, "the two factors are swapped: each part's own is exp(its m - the common m)"},
    {divided, "o was divided by l at a merge: o = O / l only once, in the end"},
    {maximum_kept, "the sums are right, but m is still that of the first part"},
    {sum_only, "l is rescaled, o is not: both hold exp(s - m)"},
};

/** The part of keys [begin, end). */
static struct part part_of(const dkv_problem *p, const double *q, int begin, int end) {
  const double *k = p->k, *v = p->v;
  struct part part = {.m = -INFINITY};
  double s[64] = {0};
  for (int j = begin; j < end; ++j) {
    for (int d = 0; d < head_dim; ++d) s[j] += p->scale * q[d] * k[j * head_dim + d];
    part.m = fmax(part.m, s[j]);
  }
  for (int j = begin; j < end; ++j) {
    part.l += exp(s[j] - part.m);
    for (int d = 0; d < head_dim; ++d) part.o[d] += exp(s[j] - part.m) * v[j * head_dim + d];
  }
  return part;
}

/** Merges the parts one after another, from a part without keys. */
static struct part merge_all(merger *merge, const struct part *parts, int count) {
  struct part all = {.m = -INFINITY};
  for (int i = 0; i < count; ++i) merge(&all.m, &all.l, all.o, parts[i].m, parts[i].l, parts[i].o, head_dim);
  return all;
}

/** Largest difference of o / l and of lse; infinite when something is not a number. */
static double difference(const struct part *got, const double *o, double lse) {
  double most = fabs(got->m + log(got->l) - lse) / fmax(1, fabs(lse));
  for (int d = 0; d < head_dim; ++d) most = fmax(most, fabs(got->o[d] / got->l - o[d]));
  for (int d = 0; d < head_dim; ++d)
    if (!isfinite(got->o[d] / got->l)) return INFINITY;
  return isfinite(got->m + log(got->l)) ? most : INFINITY;
}

/** Are two results the same but for rounding, NaN equal to NaN? */
static int alike(const struct part *a, const struct part *b) {
  const double x[3] = {a->m, a->l, a->o[0]}, y[3] = {b->m, b->l, b->o[0]};
  for (int i = 0; i < 3; ++i)
    if (!(x[i] == y[i] || (isnan(x[i]) && isnan(y[i])) || fabs(x[i] - y[i]) < 1e-9 * fabs(y[i]))) return 0;
  return 1;
}

static int verdict(const char *name, const struct part *parts, int count, const double *o, double lse) {
  const struct part got = merge_all(student_merge, parts, count);
  if (difference(&got, o, lse) < 1e-9) return 0;
  const char *reason = "bring both parts to the larger maximum, then add";
  int empty = 0;
  for (int i = 0; i < count; ++i) empty += parts[i].l == 0;
  if (isnan(got.o[0]) && empty > 0) reason = "a part without keys: -infinity minus -infinity is not a number";
  else if (!isfinite(got.o[0])) reason = "exp overflows: no exponent may be positive";
  for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; ++i) {
    const struct part same = merge_all(mistakes[i].merge, parts, count);
    if (alike(&same, &got)) reason = mistakes[i].reason;
  }
  printf("%s: o[0] is %.6g, it should be %.6g; %s\n", name, got.o[0] / got.l, o[0], reason);
  return 1;
}

static int judge(const char *name, int rows, double gain, int count, const int *cuts) {
  dkv_layout layout;
  dkv_problem p;
  dkv_results want;
  const dkv_backend *ref;
  dkv_random_spec spec = {.heads = 1, .kv_heads = 1, .head_dim = head_dim, .dtype = DKV_F64, .gain = gain, .seed = 5};
  if (dkv_layout_group(&layout, rows, 0, NULL) || dkv_problem_random(&p, &layout, &spec) ||
      dkv_backend_find(&ref, "ref") || dkv_execute(&want, ref, &p, NULL)) {
    printf("the judge itself failed: %s\n", dkv_last_error());
    return 2;
  }
  struct part parts[MOST_PARTS];
  for (int i = 0; i < count; ++i)
    parts[i] = part_of(&p, (const double *)p.q + (rows - 1) * head_dim, cuts[i], cuts[i + 1]);
  int wrong = verdict(name, parts, count, (const double *)want.data[DKV_O] + (rows - 1) * head_dim,
                      ((const double *)want.data[DKV_LSE])[rows - 1]);
  dkv_results_free(&want);
  dkv_problem_free(&p);
  dkv_layout_free(&layout);
  return wrong;
}

int main(void) {
  int wrong = judge("seven ragged parts", 40, 3, 7, (const int[]){0, 1, 9, 10, 20, 22, 39, 40});
  if (!wrong) wrong = judge("two parts of 8 keys", 16, 1, 2, (const int[]){0, 8, 16});
  if (!wrong) wrong = judge("scores of 1e5", 40, 1e5, 3, (const int[]){0, 13, 26, 40});
  if (!wrong) wrong = judge("a part without keys", 16, 1, 3, (const int[]){0, 8, 8, 16});
  head_dim = 16;
  if (!wrong) wrong = judge("two parts without keys first", 16, 1, 4, (const int[]){0, 0, 0, 8, 16});
  if (!wrong) printf("right: up to seven parts, empty ones, scores of 1e5\n");
  return wrong;
}
