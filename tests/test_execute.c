/**
 * @file test_execute.c
 * @brief Sessions: what they run, what they report, and that no failure on the way leaks memory.
 *
 * Read before: common/execute.h.
 */
#include "common/execute.h"

#include <math.h>
#include <stdlib.h>

#include "tests/support/expect.h"

/** A small random problem: P=6, R={3,2}. */
static dkv_problem make(dkv_dtype dtype) {
  dkv_layout layout;
  dkv_problem problem;
  EXPECT_OK(dkv_layout_group(&layout, 6, 2, (const int32_t[]){3, 2}));
  EXPECT_OK(dkv_problem_random(
      &problem, &layout, &(dkv_random_spec){.heads = 2, .kv_heads = 1, .head_dim = 16, .dtype = dtype, .seed = 3}));
  dkv_layout_free(&layout);
  return problem;
}

static const dkv_backend *backend(const char *name) {
  const dkv_backend *out;
  EXPECT_OK(dkv_backend_find(&out, name));
  return out;
}

/** Is every element finite? */
static bool all_finite(const void *data, dkv_dtype dtype, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (!isfinite(dkv_element(data, dtype, i))) return false;
  }
  return true;
}

Test(execute, gives_all_five_results_in_the_problems_type) {
  for (int type = 0; type < 3; ++type) {
    dkv_problem p = make((dkv_dtype[]){DKV_F32, DKV_BF16, DKV_F16}[type]);
    for (int b = 0; b < 2; ++b) {
      dkv_results results;
      EXPECT_OK(dkv_execute(&results, backend(dkv_backend_names[b]), &p, NULL));
      cr_assert(results.dtype == p.dtype && results.lse_dtype == DKV_F32);
      for (int r = 0; r < DKV_RESULTS; ++r) {
        dkv_dtype dtype = r == DKV_LSE ? DKV_F32 : p.dtype;
        cr_assert(all_finite(results.data[r], dtype, dkv_result_elements(&p, (dkv_result)r)));
      }
      dkv_results_free(&results);
    }
    dkv_problem_free(&p);
  }
}

Test(execute, keeps_lse_in_f64_beside_f64) {
  dkv_problem p = make(DKV_F64);
  dkv_results results;
  EXPECT_OK(dkv_execute(&results, backend("ref"), &p, NULL));
  cr_assert(results.lse_dtype == DKV_F64 && all_finite(results.data[DKV_LSE], DKV_F64, 2 * 11));
  dkv_results_free(&results);
  dkv_problem_free(&p);
}

Test(execute, runs_forward_only_without_dout) {
  dkv_problem p = make(DKV_F32);
  dkv_session session;
  dkv_results results;
  free(p.dout);
  p.dout = NULL;
  EXPECT_OK(dkv_session_open(&session, backend("cpu"), &p, NULL));
  cr_assert(session.backward == NULL && session.forward != NULL);
  EXPECT_OK(dkv_session_run(&session));
  EXPECT_OK(dkv_session_results(&session, &results, &p));
  cr_assert(results.data[DKV_O] != NULL && results.data[DKV_LSE] != NULL && results.data[DKV_DQ] == NULL);
  dkv_results_free(&results);
  dkv_session_close(&session);
  dkv_session_close(&session); /* a closed session may be closed again */
  dkv_problem_free(&p);
}

/** Before a run, every result is NaN: an element that a kernel forgets cannot look right. */
Test(execute, fills_outputs_with_nan_before_the_run) {
  dkv_problem p = make(DKV_BF16);
  dkv_session session;
  dkv_results results;
  EXPECT_OK(dkv_session_open(&session, backend("cpu"), &p, NULL));
  EXPECT_OK(dkv_session_results(&session, &results, &p));
  for (int r = 0; r < DKV_RESULTS; ++r) {
    dkv_dtype dtype = r == DKV_LSE ? DKV_F32 : DKV_BF16;
    for (int64_t i = 0; i < dkv_result_elements(&p, (dkv_result)r); ++i) {
      cr_assert(isnan(dkv_element(results.data[r], dtype, i)));
    }
  }
  dkv_results_free(&results);
  dkv_session_close(&session);
  dkv_problem_free(&p);
}

Test(execute, may_run_a_session_again_with_the_same_bits) {
  dkv_problem p = make(DKV_F32);
  dkv_session session;
  dkv_results first, second;
  EXPECT_OK(dkv_session_open(&session, backend("cpu"), &p, &(dkv_execute_options){.threads = 1}));
  EXPECT_OK(dkv_session_run(&session));
  EXPECT_OK(dkv_session_results(&session, &first, &p));
  EXPECT_OK(dkv_session_run(&session));
  EXPECT_OK(dkv_session_results(&session, &second, &p));
  for (int r = 0; r < DKV_RESULTS; ++r) {
    cr_assert(memcmp(first.data[r], second.data[r], 4 * (size_t)dkv_result_elements(&p, (dkv_result)r)) == 0);
  }
  /* q, k, v, o, dout, dq, dk, dv and lse, at least */
  cr_assert(session.peak_bytes >= (size_t)(11 * 16 * 4 * (4 * 2 + 4 * 1) + 4 * 11 * 2));
  dkv_results_free(&first);
  dkv_results_free(&second);
  dkv_session_close(&session);
  dkv_problem_free(&p);
}

Test(execute, runs_no_rows) {
  dkv_layout none;
  dkv_problem p;
  dkv_results results;
  EXPECT_OK(dkv_layout_group(&none, 0, 1, (const int32_t[]){0}));
  EXPECT_OK(
      dkv_problem_random(&p, &none, &(dkv_random_spec){.heads = 1, .kv_heads = 1, .head_dim = 8, .dtype = DKV_F32}));
  for (int b = 0; b < 2; ++b) {
    EXPECT_OK(dkv_execute(&results, backend(dkv_backend_names[b]), &p, NULL));
    cr_assert(results.data[DKV_DV] != NULL);
    dkv_results_free(&results);
  }
  dkv_problem_free(&p);
  dkv_layout_free(&none);
}

/* A backend that is "ref" but counts its allocations and refuses the one numbered `refused`. */
static int allocations, releases, refused;
static dkv_status counting_allocate(void **out, size_t bytes) {
  *out = NULL;
  DKV_REQUIRE(allocations != refused, DKV_ERR_NOMEM, "allocation %d is refused", refused);
  DKV_TRY(backend("ref")->allocate(out, bytes));
  ++allocations;
  return DKV_OK;
}
static void counting_release(void *memory) {
  releases += memory != NULL;
  backend("ref")->release(memory);
}

Test(execute, leaks_nothing_when_any_allocation_fails) {
  dkv_problem p = make(DKV_F32);
  dkv_backend counting = *backend("ref");
  static const dkv_session zero;
  counting.allocate = counting_allocate;
  counting.release = counting_release;
  for (refused = 0; refused < 11; ++refused) { /* nine tensors and two workspaces */
    dkv_session session;
    allocations = releases = 0;
    EXPECT_FAIL(DKV_ERR_NOMEM, "is refused", dkv_session_open(&session, &counting, &p, NULL));
    cr_assert(allocations == refused && releases == refused, "%d allocated, %d released", allocations, releases);
    cr_assert(memcmp(&session, &zero, sizeof zero) == 0);
  }
  dkv_results results;
  allocations = releases = 0, refused = -1;
  EXPECT_OK(dkv_execute(&results, &counting, &p, NULL));
  cr_assert(allocations == 11 && releases == 11, "%d allocated, %d released", allocations, releases);
  dkv_results_free(&results);
  dkv_problem_free(&p);
}

static dkv_status failing_run(const dkv_attention *problem) {
  (void)problem;
  return dkv_fail(DKV_ERR_CUDA, "the kernel stumbled");
}

Test(execute, passes_on_what_a_kernel_says) {
  dkv_problem p = make(DKV_F32);
  dkv_backend stumbling = *backend("ref");
  dkv_kernel kernels[2] = {stumbling.kernels[0], stumbling.kernels[1]};
  dkv_results results;
  kernels[1].run = failing_run;
  stumbling.kernels = kernels;
  EXPECT_FAIL(DKV_ERR_CUDA, "stumbled", dkv_execute(&results, &stumbling, &p, NULL));
  cr_assert(results.data[DKV_O] == NULL);
  dkv_problem_free(&p);
}

Test(execute, refuses_kernels_that_are_not_there) {
  dkv_problem p = make(DKV_F32);
  dkv_results results;
  EXPECT_FAIL(DKV_ERR_RANGE, "no forward kernel \"warp\"",
              dkv_execute(&results, backend("cpu"), &p, &(dkv_execute_options){.forward = "warp"}));
  EXPECT_FAIL(DKV_ERR_RANGE, "no backward kernel \"warp\"",
              dkv_execute(&results, backend("cpu"), &p, &(dkv_execute_options){.backward = "warp"}));
  EXPECT_FAIL(DKV_ERR_RANGE, "threads=-2",
              dkv_execute(&results, backend("cpu"), &p, &(dkv_execute_options){.threads = -2}));
  dkv_problem_free(&p);
  p = make(DKV_F64);
  EXPECT_FAIL(DKV_ERR_UNSUPPORTED, "f64", dkv_execute(&results, backend("cpu"), &p, NULL));
  dkv_problem_free(&p);
}

Test(execute, refuses_null_arguments) {
  dkv_problem p = make(DKV_F32);
  dkv_session session;
  dkv_results results;
  EXPECT_FAIL(DKV_ERR_NULL, "out", dkv_session_open(NULL, backend("ref"), &p, NULL));
  EXPECT_FAIL(DKV_ERR_NULL, "backend", dkv_session_open(&session, NULL, &p, NULL));
  EXPECT_FAIL(DKV_ERR_NULL, "problem", dkv_session_open(&session, backend("ref"), NULL, NULL));
  EXPECT_FAIL(DKV_ERR_NULL, "not open", dkv_session_run(&session));
  EXPECT_FAIL(DKV_ERR_NULL, "not open", dkv_session_run(NULL));
  EXPECT_FAIL(DKV_ERR_NULL, "results", dkv_session_results(&session, NULL, &p));
  EXPECT_FAIL(DKV_ERR_NULL, "not open", dkv_session_results(&session, &results, &p));
  EXPECT_FAIL(DKV_ERR_NULL, "results", dkv_execute(NULL, backend("ref"), &p, NULL));
  EXPECT_OK(dkv_session_open(&session, backend("ref"), &p, NULL));
  EXPECT_FAIL(DKV_ERR_NULL, "problem", dkv_session_results(&session, &results, NULL));
  dkv_session_close(&session);
  dkv_session_close(NULL);
  dkv_problem_free(&p);
}
