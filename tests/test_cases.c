/**
 * @file test_cases.c
 * @brief Ten files with exact answers from an oracle that never heard of packing, on every backend, every kernel.
 *
 * The files are made by tests/cases/make_cases.py (float64 NumPy, one path of the tree after another) and committed, so
 * the tests need no Python.  The bounds are dkv_error_bound's; lse is stored in f32 and judged as f32.
 *
 * Read before: common/problem.h, tests/cases/make_cases.py.
 */
#include <dirent.h>
#include <stdio.h>

#include "common/compare.h"
#include "common/execute.h"
#include "tests/support/expect.h"
#include "tests/support/files.h"

/** Where the files are, seen from the repository's root, where tests run. */
static const char folder[] = "tests/cases";

/** Calls `visit` for each case file; returns how many there are. */
static int each_case(void (*visit)(const char *path, void *context), void *context) {
  DIR *directory = opendir(folder);
  cr_assert(directory != NULL, "there is no folder %s; run tests from the repository's root", folder);
  int count = 0;
  for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
    const char *dot = strrchr(entry->d_name, '.');
    char path[512];
    if (dot == NULL || strcmp(dot, ".safetensors") != 0) continue;
    snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    visit(path, context);
    ++count;
  }
  closedir(directory);
  return count;
}

/** Compares every result that both have. */
static void expect_answers(const dkv_problem *problem, const dkv_results *got, const char *what) {
  for (int r = 0; r < DKV_RESULTS; ++r) {
    int64_t rows, width;
    dkv_comparison c;
    if (got->data[r] == NULL) continue;
    cr_assert(problem->answer.data[r] != NULL, "%s: no answer for %s", what, dkv_result_name((dkv_result)r));
    dkv_result_shape(problem, (dkv_result)r, &rows, &width);
    double bound = dkv_error_bound(r == DKV_LSE ? DKV_F32 : problem->dtype, r >= DKV_DQ);
    EXPECT_OK(dkv_compare(&c, got->data[r], r == DKV_LSE ? got->lse_dtype : got->dtype, problem->answer.data[r],
                          DKV_F64, rows, width, bound));
    cr_expect(c.passed, "%s: %s is off by %.2e (worst row %.2e, bound %.1e) at row %lld, index %lld: %.9g, not %.9g",
              what, dkv_result_name((dkv_result)r), c.error, c.row_error, bound, (long long)c.worst_row,
              (long long)c.worst_index, c.worst_got, c.worst_want);
  }
}

/** One file, one backend: every forward with the default backward, then every backward with the default forward. */
static void run_case(const char *path, void *context) {
  const dkv_backend *backend = context;
  dkv_problem problem;
  EXPECT_OK(dkv_problem_load(&problem, path));
  for (int32_t i = 0; i < backend->kernel_count; ++i) {
    const dkv_kernel *kernel = &backend->kernels[i];
    dkv_attention shape = {.layout = &problem.layout,
                           .heads = problem.heads,
                           .kv_heads = problem.kv_heads,
                           .head_dim = problem.head_dim,
                           .scale = problem.scale,
                           .dtype = problem.dtype};
    if (dkv_kernel_check(kernel, &shape) != DKV_OK) continue; /* a type or head size that it does not take */
    dkv_execute_options options = {0};
    *(kernel->direction == DKV_FORWARD ? &options.forward : &options.backward) = kernel->name;
    dkv_results results;
    char what[640];
    snprintf(what, sizeof what, "%s on %s, %s %s", path, backend->name,
             kernel->direction == DKV_FORWARD ? "forward" : "backward", kernel->name);
    EXPECT_OK(dkv_execute(&results, backend, &problem, &options));
    expect_answers(&problem, &results, what);
    dkv_results_free(&results);
  }
  dkv_problem_free(&problem);
}

static void run_all(const char *name) {
  const dkv_backend *backend;
  if (dkv_backend_find(&backend, name) != DKV_OK) {
    fprintf(stderr, "SKIP the cases on %s: %s\n", name, dkv_last_error());
    cr_skip_test("%s", dkv_last_error());
  }
  int count = each_case(run_case, (void *)(uintptr_t)backend);
  cr_assert(count == 10, "%s holds %d case files, not 10", folder, count);
}

Test(cases, are_solved_by_the_definition) { run_all("ref"); }
Test(cases, are_solved_by_the_cpu) { run_all("cpu"); }
Test(cases, are_solved_by_the_gpu) { run_all("gpu"); }

/** Saving and loading again gives the same bytes. */
static void save_and_load(const char *path, void *context) {
  (void)context;
  dkv_problem first, again;
  const char *copy = file_path("copy.safetensors");
  EXPECT_OK(dkv_problem_load(&first, path));
  EXPECT_OK(dkv_problem_save(&first, copy, "copy"));
  EXPECT_OK(dkv_problem_load(&again, copy));
  size_t query = (size_t)dkv_result_elements(&first, DKV_O), size = dkv_dtype_size(first.dtype);
  cr_assert(again.layout.rows == first.layout.rows && again.layout.segments == first.layout.segments);
  cr_assert(again.heads == first.heads && again.kv_heads == first.kv_heads && again.head_dim == first.head_dim);
  cr_assert(again.dtype == first.dtype && !(again.scale < first.scale) && !(again.scale > first.scale));
  cr_assert(memcmp(again.q, first.q, query * size) == 0 && memcmp(again.dout, first.dout, query * size) == 0);
  cr_assert(memcmp(again.answer.data[DKV_DQ], first.answer.data[DKV_DQ], query * sizeof(double)) == 0);
  dkv_problem_free(&first);
  dkv_problem_free(&again);
}

Test(cases, survive_saving_and_loading) { cr_assert(each_case(save_and_load, NULL) == 10); }

/** The committed files hold what they promise: all five answers, finite and not all zero. */
static void hold_answers(const char *path, void *context) {
  (void)context;
  dkv_problem problem;
  EXPECT_OK(dkv_problem_load(&problem, path));
  cr_assert(problem.dout != NULL, "%s has no do", path);
  for (int r = 0; r < DKV_RESULTS; ++r) {
    double sum = 0.0;
    cr_assert(problem.answer.data[r] != NULL, "%s has no %s", path, dkv_result_name((dkv_result)r));
    for (int64_t i = 0; i < dkv_result_elements(&problem, (dkv_result)r); ++i) {
      double x = dkv_element(problem.answer.data[r], DKV_F64, i);
      sum += x * x;
    }
    cr_assert(sum > 0.0, "%s: %s is all zero", path, dkv_result_name((dkv_result)r));
  }
  dkv_problem_free(&problem);
}

Test(cases, hold_all_five_answers) { cr_assert(each_case(hold_answers, NULL) == 10); }
