/**
 * @file laws_definition.c
 * @brief Laws that compare with the definition: on every layout, with large scores, with unusual scales.
 *
 * Read before: laws.h.  Read next: laws_layout.c.
 */
#include "common/suite/laws.h"

/** Runs one problem and compares everything with the exact answer; scale NULL = 1/sqrt(D). */
static bool agrees(dkv_check *check, const dkv_layout *layout, const char *name, dkv_heads heads, double gain,
                   const double *scale) {
  dkv_problem problem = {0};
  dkv_results stored = {0}, answer = {0}, got = {0};
  bool fine = dkv_check_problem(check, &problem, layout, name, heads, gain, 0.0);
  if (scale != NULL) problem.scale = *scale;
  if (fine && check->kernel->direction == DKV_FORWARD) {
    fine = dkv_check_forward(check, &answer, &problem);
  } else if (fine) {
    fine = dkv_check_stored(check, &stored, &problem) && dkv_check_backward(check, &answer, &problem, &stored);
  }
  fine = fine && dkv_check_run(check, &got, &problem, check->kernel->direction == DKV_FORWARD ? NULL : &stored, NULL) &&
         dkv_check_all_near(check, &problem, &got, &answer);
  dkv_results_free(&got);
  dkv_results_free(&answer);
  dkv_results_free(&stored);
  dkv_problem_free(&problem);
  return fine;
}

/** The same on a named layout, with the usual scale. */
static bool agrees_on(dkv_check *check, int32_t index, dkv_heads heads) {
  dkv_layout layout = {0};
  const char *name;
  bool fine = dkv_check_ok(check, dkv_suite_layout(&layout, &name, index, check->seed)) &&
              agrees(check, &layout, name, heads, 0.0, NULL);
  dkv_layout_free(&layout);
  return fine;
}

/** Every layout of the table, head shapes taken in turn. */
void dkv_law_definition(dkv_check *check) {
  for (int32_t i = 0; i < dkv_suite_layout_count(); ++i) {
    if (!agrees_on(check, i, dkv_suite_heads(check, i))) return;
  }
}

/**
 * Queries 60 times as long: scores in the hundreds, one key takes nearly all the weight, exp must not overflow.
 * A score s in f32 is rounded by |s| 2^-24 at least, and exp turns an absolute error of the score into a relative error
 * of the weight: near 250, which the largest score reaches, no f32 arithmetic can promise less than 250 * 2^-23.
 */
void dkv_law_scores(dkv_check *check) {
  static const int32_t group[] = {25, 30};
  dkv_layout layout = {0};
  if (check->dtype != DKV_F64) check->slack = 250.0 / 8388608.0;
  if (dkv_check_ok(check, dkv_layout_group(&layout, 40, 2, group))) {
    agrees(check, &layout, "large scores", dkv_suite_heads(check, 0), 60.0, NULL);
  }
  dkv_layout_free(&layout);
}

/** c is free: larger and smaller than 1/sqrt(D), negative, and 0, which makes all weights of a row equal. */
void dkv_law_scale(dkv_check *check) {
  static const struct {
    double scale;
    const char *name;
  } scales[] = {{0.25, "large scale"}, {1e-3, "small scale"}, {-0.125, "negative scale"}, {0.0, "scale 0"}};
  static const int32_t group[] = {20, 0, 33};
  dkv_layout layout = {0};
  bool fine = dkv_check_ok(check, dkv_layout_group(&layout, 45, 3, group));
  for (int i = 0; i < 4 && fine; ++i) {
    fine = agrees(check, &layout, scales[i].name, dkv_suite_heads(check, i), 0.0, &scales[i].scale);
  }
  dkv_layout_free(&layout);
}
