/**
 * @file cmd_check.c
 * @brief `dualkv check`: is a kernel right, on case files; or is somebody else's output; or, without a case, do all the
 * laws hold?
 *
 * Read before: tool.h, report.c.  Read next: common/suite.h.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/safetensors.h"
#include "common/suite.h"
#include "tools/tool.h"

static const char about[] =
    "usage: dualkv check [CASE...] [FLAGS]\n\n"
    "Runs each case and compares every result with the answers in the file, or with the definition in double\n"
    "when it holds none.  A line per tensor: relative error, its bound, the largest error of a row (10 times\n"
    "the bound is allowed) and where to look; --against also names the tensor and row that differ most of all.\n"
    "In 16-bit types the backward reads an o that was rounded; gradients that are exact for that o are right too.\n"
    "Without a case: the built-in suite of laws, on every backend that is here.\n\n"
    "  dualkv check tests/cases/*.safetensors --backend cpu\n"
    "  dualkv check case.safetensors --backend gpu --kernel mma --against cpu\n"
    "  dualkv check case.safetensors --judge out.safetensors     judges outputs that somebody else wrote\n"
    "  dualkv check --backend cpu --law fold\n";

/** The tensor that came closest to its bound, or went farthest beyond it; the first of equal ones. */
struct difference {
  char subject[64];
  const char *tensor; /* NULL: nothing was compared */
  dkv_comparison verdict;
};

/** The command line, the counts, and what differs most. */
struct check {
  struct dkv_run_flags run;
  const char *against, *judge, *law;
  int64_t seed;
  struct dkv_tally tally;
  struct difference most;
};

/** What is judged: five results somewhere in memory. */
struct candidate {
  const void *data[DKV_RESULTS];
  dkv_dtype dtype[DKV_RESULTS];
};

/** Is this result part of the problem's answer? */
static bool is_expected(const dkv_problem *problem, int r) { return r < DKV_DQ || problem->dout != NULL; }

static bool has_answers(const dkv_problem *problem) {
  for (int r = 0; r < DKV_RESULTS; ++r)
    if (is_expected(problem, r) && problem->answer.data[r] == NULL) return false;
  return true;
}

/** The case's name: its file without folder and ".safetensors". */
static void subject_of(char out[64], const char *path) {
  snprintf(out, 64, "%s", dkv_tool_base_name(path));
  char *dot = strstr(out, ".safetensors");
  if (dot != NULL) *dot = '\0';
}

/** Multiplications up to which the gradients for the stored o are worth computing: about ten seconds of the definition.
 */
static const double affordable = 6e9;

/** Are there gradients in a 16-bit type, of a problem that the definition can do again? */
static bool wants_stored(const dkv_problem *problem, const dkv_results *answer) {
  double work = 5.0 * (double)dkv_layout_pairs(&problem->layout) * problem->heads * problem->head_dim;
  return problem->dout != NULL && dkv_dtype_size(problem->dtype) == 2 && answer->dtype == DKV_F64 && work <= affordable;
}

/** Error as a share of its bound; a NaN is larger than every number. */
static double share(const dkv_comparison *v) {
  double by_bound = v->error / v->bound;
  return v->not_finite > 0 || isnan(by_bound) ? INFINITY : by_bound;
}

static void note_difference(struct difference *most, const char *subject, const char *tensor, const dkv_comparison *v) {
  if (most->tensor != NULL && !(share(v) > share(&most->verdict))) return;
  snprintf(most->subject, sizeof most->subject, "%s", subject);
  most->tensor = tensor;
  most->verdict = *v;
}

/** One sentence: which tensor differs most between two backends, and where. */
static void print_difference(const struct difference *most) {
  const dkv_comparison *v = &most->verdict;
  if (most->tensor == NULL) return;
  printf("differs most: %s %s, %.1e of the allowed %.1e, most of all in row %lld, index %lld: %.9g against %.9g\n",
         most->subject, most->tensor, v->error, v->bound, (long long)v->worst_row, (long long)v->worst_index,
         v->worst_got, v->worst_want);
}

static dkv_status judge_all(struct check *check, const char *subject, const char *who, const dkv_problem *problem,
                            const struct candidate *x, const dkv_results *answer, double slack) {
  dkv_results stored = {0};
  dkv_comparison o;
  dkv_status status = dkv_judge(&o, problem, DKV_O, x->data[DKV_O], x->dtype[DKV_O], answer, slack);
  if (status == DKV_OK && o.passed && wants_stored(problem, answer))
    status = dkv_stored_gradients(&stored, problem, x->data[DKV_O], x->dtype[DKV_O], answer);
  for (int r = 0; r < DKV_RESULTS && status == DKV_OK; ++r) {
    if (!is_expected(problem, r)) continue;
    dkv_comparison verdict;
    const dkv_results *other = stored.data[r] != NULL ? &stored : NULL;
    status = dkv_judge_closely(&verdict, problem, (dkv_result)r, x->data[r], x->dtype[r], answer, other, slack);
    if (status != DKV_OK) break;
    dkv_tool_progress_end();
    dkv_report(&check->tally, subject, who, dkv_result_name((dkv_result)r), &verdict);
    note_difference(&check->most, subject, dkv_result_name((dkv_result)r), &verdict);
  }
  dkv_results_free(&stored);
  return status;
}

/** Compares the candidate with the case's own answers, with the definition, or with another backend. */
static dkv_status judge_candidate(struct check *check, const char *subject, const char *who, const dkv_problem *problem,
                                  const struct candidate *x) {
  dkv_results answer = {0};
  dkv_status status = DKV_OK;
  if (check->against == NULL && has_answers(problem))
    return judge_all(check, subject, who, problem, x, &problem->answer, 1);
  bool exact = check->against == NULL || strcmp(check->against, "ref") == 0;
  dkv_tool_progress("%s: computing the answer on %s", subject, exact ? "ref" : check->against);
  if (exact) {
    status = dkv_exact_results(&answer, problem);
  } else {
    const dkv_backend *other = NULL;
    DKV_TRY(dkv_backend_find(&other, check->against));
    status = dkv_execute(&answer, other, problem, NULL);
  }
  if (status == DKV_OK) status = judge_all(check, subject, who, problem, x, &answer, exact ? 1 : 2);
  dkv_results_free(&answer);
  return status;
}

/** Runs the case on the chosen backend and judges what comes out. */
static dkv_status check_case(struct check *check, const char *path, const dkv_problem *problem) {
  const dkv_backend *backend = NULL;
  dkv_execute_options options;
  dkv_results results;
  char subject[64], who[64];
  subject_of(subject, path);
  DKV_TRY(dkv_backend_find(&backend, check->run.backend));
  DKV_TRY(dkv_tool_options(&options, backend, &check->run));
  snprintf(who, sizeof who, "%s %s %s", backend->name, check->run.kernel != NULL ? check->run.kernel : "default",
           dkv_dtype_name(problem->dtype));
  dkv_tool_progress("%s: running on %s", subject, backend->name);
  DKV_TRY(dkv_execute(&results, backend, problem, &options));
  struct candidate x;
  for (int r = 0; r < DKV_RESULTS; ++r) {
    x.data[r] = results.data[r];
    x.dtype[r] = r == DKV_LSE ? results.lse_dtype : results.dtype;
  }
  dkv_status status = judge_candidate(check, subject, who, problem, &x);
  dkv_results_free(&results);
  return status;
}

/** Significant bits of a float type. */
static int precision(dkv_dtype dtype) {
  return dtype == DKV_BF16 ? 8 : dtype == DKV_F16 ? 11 : dtype == DKV_F32 ? 24 : 53;
}

/** Finds the five tensors of an outputs file; demands each that the case has an answer for. */
static dkv_status find_outputs(struct candidate *x, dkv_dtype *narrowest, const dkv_safetensors *file,
                               const dkv_problem *problem, const char *path) {
  *narrowest = DKV_F64;
  for (int r = 0; r < DKV_RESULTS; ++r) {
    if (!is_expected(problem, r)) continue;
    const char *name = dkv_result_name((dkv_result)r);
    const dkv_tensor *tensor = dkv_safetensors_find(file, name);
    DKV_REQUIRE(tensor != NULL, DKV_ERR_FORMAT, "%.200s: there is no tensor %s; the case %s", path, name,
                problem->dout != NULL ? "holds do, so o, lse, dq, dk and dv are judged"
                                      : "holds no do, so o and lse are judged");
    DKV_REQUIRE(r != DKV_LSE || tensor->dtype == DKV_F32 || tensor->dtype == DKV_F64, DKV_ERR_FORMAT,
                "%.200s: lse is %s; it is stored as f32 or f64", path, dkv_dtype_name(tensor->dtype));
    x->data[r] = tensor->data;
    x->dtype[r] = tensor->dtype;
    if (r != DKV_LSE && precision(tensor->dtype) < precision(*narrowest)) *narrowest = tensor->dtype;
  }
  return DKV_OK;
}

/**
 * Judges an outputs file.  Outputs that are stored more coarsely than the case's inputs come from inputs rounded to
 * that type, so they are compared with the definition on those.
 */
static dkv_status judge_file(struct check *check, const char *path, const dkv_problem *problem) {
  dkv_results widened;
  dkv_safetensors file;
  struct candidate x;
  dkv_dtype narrowest;
  char subject[64], who[64];
  subject_of(subject, path);
  DKV_TRY(dkv_results_load(&widened, problem, check->judge)); /* shapes and types, with a sentence for each mistake */
  dkv_results_free(&widened);
  DKV_TRY(dkv_safetensors_open(&file, check->judge));
  dkv_status status = find_outputs(&x, &narrowest, &file, problem, check->judge);
  if (status == DKV_OK) {
    snprintf(who, sizeof who, "%.20s %s", dkv_tool_base_name(check->judge), dkv_dtype_name(narrowest));
    if (precision(narrowest) < precision(problem->dtype)) {
      dkv_problem rounded;
      status = dkv_problem_cast(&rounded, problem, narrowest);
      if (status == DKV_OK) {
        printf("outputs are %s: judged by the definition on inputs rounded to it\n", dkv_dtype_name(narrowest));
        status = judge_candidate(check, subject, who, &rounded, &x);
        dkv_problem_free(&rounded);
      }
    } else {
      status = judge_candidate(check, subject, who, problem, &x);
    }
  }
  dkv_safetensors_close(&file);
  return status;
}

static void print_suite_line(void *context, const dkv_suite_line *line) {
  const struct dkv_style *style = dkv_tool_style();
  const char *verdict = line->verdict == DKV_PASSED ? "pass" : line->verdict == DKV_FAILED ? "FAIL" : "skip";
  const char *colour = line->verdict == DKV_PASSED   ? style->good
                       : line->verdict == DKV_FAILED ? style->bad
                                                     : style->dim;
  (void)context;
  dkv_tool_progress_end();
  printf("%-22s %-4s %-8s %-10s %-5s %5d %9.1e %9.1e  %s%s%s%s%s\n", line->law, line->backend,
         line->kernel->direction == DKV_FORWARD ? "forward" : "backward", line->kernel->name,
         dkv_dtype_name(line->dtype), line->problems, line->error, line->bound, colour, verdict, style->off,
         line->text[0] != '\0' ? ": " : "", line->text);
  fflush(stdout);
  dkv_tool_progress("the laws on %s ...", line->backend);
}

/** Runs the suite on one backend; `skipped` counts up. */
static dkv_status run_suite(struct check *check, const char *name, int32_t *skipped) {
  const dkv_backend *backend = NULL, *against = NULL;
  dkv_suite_options options = {check->run.kernel, check->law, (uint64_t)check->seed};
  dkv_suite_total total;
  DKV_TRY(dkv_backend_find(&backend, name));
  DKV_TRY(dkv_backend_find(&against, check->against != NULL ? check->against : "ref"));
  dkv_tool_progress("the laws on %s ...", name);
  DKV_TRY(dkv_suite_run(&total, backend, against, &options, print_suite_line, NULL));
  check->tally.passed += total.passed;
  check->tally.failed += total.failed;
  *skipped += total.skipped;
  return DKV_OK;
}

/** Are the backends here that were named, with the kernel?  Said before the heading, so that a refusal stands alone. */
static dkv_status backends_here(const struct check *check) {
  const dkv_backend *backend = NULL;
  dkv_execute_options options;
  if (check->run.backend != NULL) {
    DKV_TRY(dkv_backend_find(&backend, check->run.backend));
    DKV_TRY(dkv_tool_options(&options, backend, &check->run));
  }
  return check->against != NULL ? dkv_backend_find(&backend, check->against) : DKV_OK;
}

/** Can the laws be asked this way? */
static dkv_status laws_askable(const struct check *check) {
  DKV_REQUIRE(check->run.dtype == NULL, DKV_ERR_RANGE,
              "dualkv check: --dtype goes with a case; the suite runs every type");
  DKV_REQUIRE(check->judge == NULL, DKV_ERR_RANGE, "dualkv check: --judge needs the case that it is judged by");
  DKV_REQUIRE(check->run.kernel == NULL || check->run.backend != NULL, DKV_ERR_RANGE,
              "dualkv check: --kernel %.60s needs the --backend that has it; dualkv kernels lists them",
              check->run.kernel);
  return backends_here(check);
}

/** No case is given: every law, on the backend that was named or on all that are here. */
static int check_laws(struct check *check) {
  const struct dkv_style *style = dkv_tool_style();
  int32_t skipped = 0;
  dkv_status status = laws_askable(check);
  if (status != DKV_OK) return dkv_tool_fail(status);
  printf("%s%-22s %-4s %-8s %-10s %-5s %5s %9s %9s%s\n", style->title, "law", "on", "", "kernel", "type", "runs",
         "error", "bound", style->off);
  if (check->run.backend != NULL) status = run_suite(check, check->run.backend, &skipped);
  for (int b = 0; check->run.backend == NULL && dkv_backend_names[b] != NULL && status == DKV_OK; ++b) {
    const dkv_backend *backend = NULL;
    if (dkv_backend_find(&backend, dkv_backend_names[b]) != DKV_OK)
      printf("%s%s%s\n", style->dim, dkv_last_error(), style->off); /* the sentence names its backend */
    else status = run_suite(check, dkv_backend_names[b], &skipped);
  }
  dkv_tool_progress_end();
  if (status != DKV_OK) return dkv_tool_fail(status);
  if (skipped > 0) printf("%d skipped, each for the reason in its line\n", skipped);
  return dkv_report_total(&check->tally);
}

/** Each case in turn; a file that cannot be read is reported, and the others are still checked. */
static int check_cases(struct check *check, const struct dkv_text_list *cases) {
  bool broken = false;
  if (check->run.backend == NULL) check->run.backend = "cpu";
  if (check->law != NULL) return dkv_tool_fail(dkv_fail(DKV_ERR_RANGE, "dualkv check: --law goes without a case"));
  if (check->judge != NULL && (cases->count != 1 || check->run.dtype != NULL))
    return dkv_tool_fail(
        dkv_fail(DKV_ERR_RANGE, "dualkv check: --judge takes one case, and no --dtype: the outputs have theirs"));
  dkv_status here = backends_here(check);
  if (here != DKV_OK) return dkv_tool_fail(here);
  dkv_report_heading();
  for (int32_t i = 0; i < cases->count; ++i) {
    dkv_problem problem;
    dkv_status status = dkv_tool_problem(&problem, cases->text[i], check->run.dtype);
    if (status == DKV_OK) {
      status = check->judge != NULL ? judge_file(check, cases->text[i], &problem)
                                    : check_case(check, cases->text[i], &problem);
      dkv_problem_free(&problem);
    }
    if (status != DKV_OK) {
      dkv_tool_fail(status);
      broken = true;
    }
  }
  if (check->against != NULL) print_difference(&check->most);
  int code = dkv_report_total(&check->tally);
  return broken ? DKV_EXIT_USAGE : code;
}

int dkv_cmd_check(int argc, char *const *argv) {
  struct check check = {.seed = 1};
  struct dkv_text_list cases;
  const struct dkv_flag flags[] = {
      DKV_RUN_FLAGS(check.run),
      {"against", DKV_FLAG_TEXT, &check.against, "BACKEND",
       "answer by this backend, not by the file; ref is the definition", 0, 0},
      {"judge", DKV_FLAG_TEXT, &check.judge, "OUT", "judge these outputs instead of running a kernel", 0, 0},
      {"law", DKV_FLAG_TEXT, &check.law, "NAME", "without a case: only this law", 0, 0},
      {"seed", DKV_FLAG_INT, &check.seed, "N", "without a case: seed of the random problems", 0, 9e15},
      {0},
  };
  if (dkv_args_help(about, flags, argc, argv)) return DKV_EXIT_OK;
  dkv_status status = dkv_args_parse("check", flags, argc, argv, &cases);
  if (status != DKV_OK) return dkv_tool_fail(status);
  if (check.run.progress) dkv_tool_progress_always();
  return cases.count > 0 ? check_cases(&check, &cases) : check_laws(&check);
}
