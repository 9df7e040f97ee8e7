/*
 * Judge of exercise 04: the student's row map against dkv_layout_replicate, then Theorem 2 itself: gradients of the
 * replicated batch, computed by the definition in double and folded by the student, against gradients of the packed
 * batch.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/execute.h"

void student_row_map(int32_t *row_map, int32_t prompt, int32_t responses, const int32_t *length);
void student_fold(double *packed, int32_t packed_rows, const double *replicated, int32_t width, const int32_t *row_map,
                  int32_t replicated_rows);

enum { MOST_WIDTH = 16, MOST_ROWS = 64, UNWRITTEN = -77 };

/** Elements of a row in the case at hand. */
static int32_t row_width = 8;

/** A group, packed and replicated, with the gradients of both. */
struct twins {
  const char *name;
  int32_t *row_map;
  dkv_problem packed, replicated;
  dkv_results once, copies;
};

/** Why is row_map[r] wrong? @param[in] got, want packed rows */
static const char *map_reason(int32_t got, int32_t want, int32_t r, int32_t prompt) {
  if (got == UNWRITTEN) return "nothing was written there";
  if (want < prompt && got == r) return "the second copy of the prompt is the same packed rows 0 .. P-1";
  if (want < prompt) return "this is a row of a prompt: every copy is the packed rows 0 .. P-1";
  if (got < prompt) return "this is a row of a response: its packed rows begin behind the prompt";
  return "responses may differ in length: each starts where the one before it ends";
}

static int judge_map(const struct twins *t, int32_t prompt, int32_t responses, const int32_t *length) {
  int32_t got[MOST_ROWS], rows = t->replicated.layout.rows;
  for (int32_t r = 0; r < MOST_ROWS; ++r) got[r] = UNWRITTEN;
  student_row_map(got, prompt, responses, length);
  for (int32_t r = 0; r < MOST_ROWS; ++r) {
    int32_t want = r < rows ? t->row_map[r] : UNWRITTEN;
    if (got[r] == want) continue;
    if (r >= rows) printf("%s, row_map[%d] was written, the last replicated row is %d\n", t->name, r, rows - 1);
    else
      printf("%s, row_map[%d]: yours is %d, it should be %d; %s\n", t->name, r, got[r], want,
             map_reason(got[r], want, r, prompt));
    return 1;
  }
  return 0;
}

/** What a row's folded gradient would be if copies were combined in a wrong way. */
static const char *fold_reason(const struct twins *t, const double *copies, int32_t row, int32_t d, double got) {
  double last = 0, first = 0, sum = 0;
  int32_t count = 0;
  if (isnan(got)) return "nothing was written, or it was added to what stood there: a sum starts from 0";
  for (int32_t r = 0; r < t->replicated.layout.rows; ++r) {
    if (t->row_map[r] != row) continue;
    last = copies[r * row_width + d];
    if (count++ == 0) first = last;
    sum += last;
  }
  if (fabs(got - last) < 1e-12) return "that is the gradient of its last copy alone: it is not summed over N";
  if (fabs(got - first) < 1e-12) return "that is the gradient of its first copy alone: it is not summed over N";
  if (fabs(got - sum / count) < 1e-12)
    return "that is the mean of its copies: the chain rule adds, it does not average";
  return "add up the gradients of all copies of the row; element d of row r is [r * width + d]";
}

static int judge_fold(const struct twins *t) {
  double got[MOST_ROWS * MOST_WIDTH];
  int32_t rows = t->packed.layout.rows;
  for (int what = DKV_DV; what >= DKV_DQ; --what) {
    const double *copies = t->copies.data[what], *want = t->once.data[what];
    for (int32_t i = 0; i < MOST_ROWS * row_width; ++i) got[i] = NAN;
    student_fold(got, rows, copies, row_width, t->row_map, t->replicated.layout.rows);
    for (int32_t i = 0; i < rows * row_width; ++i) {
      if (fabs(got[i] - want[i]) < 1e-12) continue;
      printf("%s, %s of row %d: folded it is %.6g, the packed batch says %.6g; %s\n", t->name,
             dkv_result_name((dkv_result)what), i / row_width, got[i], want[i],
             fold_reason(t, copies, i / row_width, i % row_width, got[i]));
      return 1;
    }
    for (int32_t i = rows * row_width; i < MOST_ROWS * row_width; ++i)
      if (!isnan(got[i]))
        return printf("%s: row %d was written, the last row is %d\n", t->name, i / row_width, rows - 1), 1;
  }
  return 0;
}

static int judge(const char *name, int32_t prompt, int32_t responses, const int32_t *length) {
  dkv_layout layout;
  const dkv_backend *ref;
  struct twins t = {.name = name};
  dkv_random_spec spec = {.heads = 1, .kv_heads = 1, .head_dim = row_width, .dtype = DKV_F64, .seed = 4};
  if (dkv_layout_group(&layout, prompt, responses, length) || dkv_problem_random(&t.packed, &layout, &spec) ||
      dkv_problem_replicate(&t.replicated, &t.row_map, &t.packed) || dkv_backend_find(&ref, "ref") ||
      dkv_execute(&t.once, ref, &t.packed, NULL) || dkv_execute(&t.copies, ref, &t.replicated, NULL)) {
    printf("the judge itself failed: %s\n", dkv_last_error());
    return 2;
  }
  int wrong = judge_map(&t, prompt, responses, length);
  if (!wrong) wrong = judge_fold(&t);
  dkv_results_free(&t.once);
  dkv_results_free(&t.copies);
  dkv_problem_free(&t.packed);
  dkv_problem_free(&t.replicated);
  dkv_layout_free(&layout);
  free(t.row_map);
  return wrong;
}

int main(void) {
  int wrong = judge("P=3, R={2,2}", 3, 2, (const int32_t[]){2, 2});
  if (!wrong) wrong = judge("P=5, R={4,0,1,7}", 5, 4, (const int32_t[]){4, 0, 1, 7});
  if (!wrong) wrong = judge("P=0, R={3,2}", 0, 2, (const int32_t[]){3, 2});
  row_width = 16;
  if (!wrong) wrong = judge("P=9, R={6}", 9, 1, (const int32_t[]){6});
  if (!wrong) printf("right: dq, dk, dv of four replicated groups, folded, are those of the packed groups\n");
  return wrong;
}
