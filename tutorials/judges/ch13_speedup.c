/*
 * Judge of exercise 13: the student's speedups against rows and pairs of the library's layouts.
 */
#include <math.h>
#include <stdio.h>

#include "common/cost.h"
#include "common/layout.h"

void student_speedup(double *update, double *loop, int32_t prompt, int32_t responses, const int32_t *length,
                     double row_cost, double pair_cost, double rest);

static int near(double a, double b) { return fabs(a - b) <= 1e-9 * fabs(b); }

static int judge(const char *name, int32_t prompt, int32_t responses, const int32_t *length, double row_cost,
                 double pair_cost, double rest) {
  dkv_layout packed, copies;
  double update = NAN, loop = NAN;
  if (dkv_layout_group(&packed, prompt, responses, length) || dkv_layout_replicate(&copies, NULL, &packed)) {
    printf("the judge itself failed: %s\n", dkv_last_error());
    return 2;
  }
  const double packed_rows = packed.rows, packed_pairs = (double)dkv_layout_pairs(&packed);
  const double copied_rows = copies.rows, copied_pairs = (double)dkv_layout_pairs(&copies);
  const double rho = copied_rows / packed_rows, A = copied_pairs / packed_pairs;
  const double once = packed_rows * row_cost + packed_pairs * pair_cost;
  const double many = copied_rows * row_cost + copied_pairs * pair_cost;
  dkv_layout_free(&packed);
  dkv_layout_free(&copies);
  student_speedup(&update, &loop, prompt, responses, length, row_cost, pair_cost, rest);
  const double want = many / once, want_loop = (many + rest) / (once + rest);
  const double closed = dkv_cost_pair_ratio(prompt, responses, length[0]);
  const double closed_pairs =
      (double)prompt * prompt / 2 + responses * (double)length[0] * (2.0 * prompt + length[0]) / 2;
  const double closed_once = (prompt + (double)responses * length[0]) * row_cost + closed_pairs * pair_cost;
  const double closed_many = responses * ((double)prompt + length[0]) * row_cost + closed * closed_pairs * pair_cost;
  if (!near(update, want)) {
    const char *why = "count rows and pairs of both layouts, then divide once";
    const double swapped_once = packed_rows * pair_cost + packed_pairs * row_cost;
    const double swapped_many = copied_rows * pair_cost + copied_pairs * row_cost;
    if (near(update, 1 / want)) why = "that is the other way round: replicated over packed";
    else if (near(update, swapped_many / swapped_once))
      why = "row_cost and pair_cost are swapped";
    else if (near(update, (rho + A) / 2)) why = "ratios do not average: weigh them with the time that each part takes";
    else if (near(update, rho)) why = "attention is missing: pairs shrink by A, not by rho";
    else if (near(update, closed_many / closed_once))
      why = "that is the closed form: it leaves out half a diagonal, and takes all lengths to be equal";
    printf("%s: your update is %.6g times faster, it should be %.6g; %s\n", name, update, want, why);
    return 1;
  }
  if (near(loop, want_loop)) return 0;
  printf("%s: the update is right, your loop is %.6g times faster, it should be %.6g; %s\n", name, loop, want_loop,
         near(loop, 1 / want_loop) ? "that is the other way round"
         : loop > want_loop        ? "the rest of the loop gains nothing"
                                   : "add the rest to both sides, then divide");
  return 1;
}

int main(void) {
  int wrong = judge("P=3, R={2,2}", 3, 2, (const int32_t[]){2, 2}, 1, 0.5, 4);
  if (!wrong) wrong = judge("P=1000, R={100,20,0,300}", 1000, 4, (const int32_t[]){100, 20, 0, 300}, 2, 1e-3, 500);
  if (!wrong) wrong = judge("P=500, R={40}", 500, 1, (const int32_t[]){40}, 1, 1e-2, 100);
  if (!wrong) printf("right: two groups that gain, and one response, which gains nothing\n");
  return wrong;
}
