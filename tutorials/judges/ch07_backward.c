/*
 * Judge of exercise 07: the student's gradients against the library's definition in double, on groups, two groups and a
 * tree.  When they differ it tries the usual mistakes one by one, and names the first that gives the student's number.
 */
#include <math.h>
#include <stdio.h>

#include "common/execute.h"
#include "common/mask.h"

void student_backward(double *dq, double *dk, double *dv, const double *q, const double *k, const double *v,
                      const double *o, const double *lse, const double *dout, const int32_t *end, int rows, int dim,
                      double scale);

enum { MOST_DIM = 16, MOST = 64 };

/** Components of a row in the case at hand; it varies, so that neither it nor the scale can be typed in. */
static int32_t head_dim = 8;

/** The mistakes that the judge knows, the frequent ones first. */
enum mistake {
  LAST_ROW,
  OWN_SEGMENT,
  NO_DELTA,
  NO_SCALE,
  ALL_ROWS,
  BARE_WEIGHT,
  KEYS_LSE,
  KEYS_DOUT,
  NO_DIAGONAL,
  NOT_CAUSAL,
  SIGN,
  SCALE_TWICE,
  SWAPPED,
  MISTAKES
};
static const char *const reason[MISTAKES] = {
    "that is the last row's share alone: the gradient is not summed over the rows that see the key",
    "that is the sum over the key's own segment: the prompt's gradient is not summed over all N responses",
    "delta is missing: the weights of a row sum to 1, so raising one score lowers the other weights",
    "the scale is missing: s = c <q, k> has a factor c in its derivatives",
    "rows that do not see the key are in the sum: siblings are visible",
    "the scale is missing in the weight: p_ij = exp(c <q_i, k_j> - lse_i)",
    "the weight has the lse of row j: it is row i whose weights sum to 1",
    "the dout of row j is in it: the gradient arrives at row i",
    "the row itself is missing: j <= i, not j < i",
    "rows before the key are in the sum: row i sees j only for j <= i",
    "the sign of ds is turned: ds_ij = p_ij (dp_ij - delta_i)",
    "the scale is in it twice: once for ds and dq or dk together",
    "q and k are swapped: the derivative of <q_i, k_j> by one is the other",
};

static double dot(const double *a, const double *b) {
  double s = 0;
  for (int d = 0; d < head_dim; ++d) s += a[d] * b[d];
  return s;
}

/** Element (row, d) of dq, dk or dv with one mistake in it. */
static double mistaken(const dkv_problem *p, const dkv_results *forward, int what, int row, int d,
                       enum mistake mistake) {
  const double *q = p->q, *k = p->k, *v = p->v, *dout = p->dout, *o = forward->data[DKV_O],
               *lse = forward->data[DKV_LSE];
  const dkv_layout *l = &p->layout;
  double sum = 0;
  for (int i = 0; i < l->rows; ++i)
    for (int j = 0; j <= (mistake == NOT_CAUSAL ? l->rows - 1 : i) - (mistake == NO_DIAGONAL); ++j) {
      if ((what == DKV_DQ ? i : j) != row) continue;
      if (mistake == NOT_CAUSAL ? i >= l->end[j] : mistake != ALL_ROWS && !dkv_sees(i, j, l->end[j])) continue;
      if (mistake == OWN_SEGMENT && l->segment[i] != l->segment[j]) continue;
      const double *qi = q + i * head_dim, *kj = k + j * head_dim,
                   *di = dout + (mistake == KEYS_DOUT ? j : i) * head_dim;
      const double weight =
          exp((mistake == BARE_WEIGHT ? 1 : p->scale) * dot(qi, kj) - lse[mistake == KEYS_LSE ? j : i]);
      const double delta = mistake == NO_DELTA ? 0 : dot(di, o + i * head_dim);
      const double factor = mistake == NO_SCALE ? 1 : mistake == SCALE_TWICE ? p->scale * p->scale : p->scale;
      const double ds = weight * (dot(di, v + j * head_dim) - delta) * (mistake == SIGN ? -factor : factor);
      const double *other = (what == DKV_DQ) != (mistake == SWAPPED) ? kj : qi;
      const double share = what == DKV_DV ? weight * di[d] : ds * other[d];
      sum = mistake == LAST_ROW ? share : sum + share;
    }
  return sum;
}

static const char *why(const dkv_problem *p, const dkv_results *forward, int what, int row, int d, double got) {
  if (isnan(got)) return "nothing was written, or it was added to what stood there: a sum starts from 0";
  for (int m = 0; m < MISTAKES; ++m)
    if (fabs(got - mistaken(p, forward, what, row, d, (enum mistake)m)) < 1e-12) return reason[m];
  if (what == DKV_DV) return "dv_j = sum over rows i that see j of p_ij dout_i: look at p_ij and at the two indices";
  if (what == DKV_DK) return "dv is right, so the weights are: look at delta_i, ds_ij and dk_j = c sum_i ds_ij q_i";
  return "dv and dk are right, so ds is: look at dq_i = c sum_j ds_ij k_j alone";
}

/** Compares [rows][head_dim] of one result. @return 1 when it is wrong */
static int compare(const char *name, const dkv_problem *p, const dkv_results *want, int what, const double *got) {
  const double *exact = want->data[what];
  for (int i = 0; i < MOST * head_dim; ++i) {
    const int row = i / head_dim;
    if (row >= p->layout.rows) {
      if (isnan(got[i])) continue;
      return printf("%s: row %d was written, the last row is %d\n", name, row, p->layout.rows - 1), 1;
    }
    if (fabs(got[i] - exact[i]) < 1e-10) continue;
    printf("%s, %s of row %d: yours is %.6g, it should be %.6g; %s\n", name, dkv_result_name((dkv_result)what), row,
           got[i], exact[i], why(p, want, what, row, i % head_dim, got[i]));
    return 1;
  }
  return 0;
}

static int judge(const char *name, int32_t segments, const int32_t *parent, const int32_t *length) {
  static double dq[MOST * MOST_DIM], dk[MOST * MOST_DIM], dv[MOST * MOST_DIM];
  dkv_layout layout;
  dkv_problem p;
  dkv_results want;
  const dkv_backend *ref;
  dkv_random_spec spec = {.heads = 1, .kv_heads = 1, .head_dim = head_dim, .dtype = DKV_F64, .seed = 7};
  if (dkv_layout_forest(&layout, segments, parent, length) || dkv_problem_random(&p, &layout, &spec) ||
      dkv_backend_find(&ref, "ref") || dkv_execute(&want, ref, &p, NULL)) {
    printf("the judge itself failed: %s\n", dkv_last_error());
    return 2;
  }
  for (int i = 0; i < MOST * MOST_DIM; ++i) dq[i] = dk[i] = dv[i] = NAN;
  student_backward(dq, dk, dv, p.q, p.k, p.v, want.data[DKV_O], want.data[DKV_LSE], p.dout, p.layout.end, p.layout.rows,
                   head_dim, p.scale);
  int wrong = compare(name, &p, &want, DKV_DV, dv) || compare(name, &p, &want, DKV_DK, dk) ||
              compare(name, &p, &want, DKV_DQ, dq);
  dkv_results_free(&want);
  dkv_problem_free(&p);
  dkv_layout_free(&layout);
  return wrong;
}

int main(void) {
  int wrong = judge("P=3, R={2,2}", 3, (const int32_t[]){-1, 0, 0}, (const int32_t[]){3, 2, 2});
  if (!wrong)
    wrong = judge("P=9, R={5,0,1,12}", 5, (const int32_t[]){-1, 0, 0, 0, 0}, (const int32_t[]){9, 5, 0, 1, 12});
  if (!wrong) wrong = judge("two groups", 5, (const int32_t[]){-1, 0, 0, -1, 3}, (const int32_t[]){4, 3, 6, 2, 5});
  head_dim = 16;
  if (!wrong)
    wrong = judge("a turn after a turn", 5, (const int32_t[]){-1, 0, 0, 2, 2}, (const int32_t[]){3, 2, 2, 1, 4});
  if (!wrong) printf("right: dq, dk, dv of a group, ragged responses, two groups and a tree\n");
  return wrong;
}
