/**
 * @file test_problem_file.c
 * @brief Case files and result files: round trips, and one sentence for every file that is not a problem.
 *
 * The bad files here are sound safetensors files: what is wrong is what they say.  (What is no safetensors file at all
 * is in tests/test_safetensors.c.)  All are refused under a memory limit, so none costs a large allocation.
 *
 * Read before: common/problem.h, tests/support/files.h.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/problem.h"
#include "tests/support/expect.h"
#include "tests/support/files.h"
#include "tests/support/memory.h"

/** T=7 (a prompt of 3, responses of 2 and 2), H=2, Hkv=1, D=8. */
enum { T = 7, H = 2, D = 8, Q, K, V, DOUT, PARENT, LENGTH, O, LSE, DQ, DK, DV, TENSORS = DV - Q + 1 };

/** A case file in memory, to be spoiled in one place. */
struct draft {
  float query[T * H * D], key[T * D], lse[H * T];
  int32_t parent[3], length[3];
  dkv_tensor tensor[TENSORS];
  dkv_metadata metadata[2];
};

/** The tensor of a draft by its letter. */
static dkv_tensor *at(struct draft *draft, int which) { return &draft->tensor[which - Q]; }

/** A sound draft, all numbers 0.5. */
static void begin(struct draft *d) {
  for (int i = 0; i < T * H * D; ++i) d->query[i] = 0.5f;
  for (int i = 0; i < T * D; ++i) d->key[i] = 0.5f;
  for (int i = 0; i < H * T; ++i) d->lse[i] = 0.5f;
  memcpy(d->parent, (int32_t[]){-1, 0, 0}, sizeof d->parent);
  memcpy(d->length, (int32_t[]){3, 2, 2}, sizeof d->length);
  static const char *const names[TENSORS] = {"q",   "k",  "v",  "do", "segment_parent", "segment_length", "o",
                                             "lse", "dq", "dk", "dv"};
  for (int i = 0; i < TENSORS; ++i) {
    bool keys = i == K - Q || i == V - Q || i == DK - Q || i == DV - Q;
    d->tensor[i] = (dkv_tensor){.name = names[i],
                                .dtype = DKV_F32,
                                .rank = 3,
                                .shape = {T, keys ? 1 : H, D},
                                .data = keys ? (const void *)d->key : d->query};
  }
  *at(d, LSE) = (dkv_tensor){.name = "lse", .dtype = DKV_F32, .rank = 2, .shape = {H, T}, .data = d->lse};
  *at(d, PARENT) = (dkv_tensor){.name = "segment_parent", .dtype = DKV_I32, .rank = 1, .shape = {3}, .data = d->parent};
  *at(d, LENGTH) = (dkv_tensor){.name = "segment_length", .dtype = DKV_I32, .rank = 1, .shape = {3}, .data = d->length};
  d->metadata[0] = (dkv_metadata){"scale", "0.25"};
  d->metadata[1] = (dkv_metadata){"name", "draft"};
}

/** Writes the draft and loads it. */
static dkv_status load(dkv_problem *out, const struct draft *d) {
  const char *path = file_path("case.safetensors");
  EXPECT_OK(dkv_safetensors_write(path, d->tensor, TENSORS, d->metadata, 2));
  return dkv_problem_load(out, path);
}

/** The draft must be refused, in one line that names the file; *out is zeroed. Then the draft is made sound again. */
static void expect_refused(struct draft *d, dkv_status status, const char *fragment) {
  static const dkv_problem zero;
  dkv_problem p;
  memset(&p, 0xff, sizeof p);
  EXPECT_FAIL(status, fragment, load(&p, d));
  cr_assert(strchr(dkv_last_error(), '\n') == NULL && memcmp(&p, &zero, sizeof zero) == 0);
  begin(d);
}

Test(problem_file, loads_a_sound_case) {
  struct draft d;
  dkv_problem p;
  begin(&d);
  EXPECT_OK(load(&p, &d));
  cr_assert(p.layout.rows == T && p.layout.segments == 3 && p.layout.end[3] == 5);
  cr_assert(p.heads == H && p.kv_heads == 1 && p.head_dim == D && p.dtype == DKV_F32 && fabs(p.scale - 0.25) < 1e-15);
  cr_assert(memcmp(p.q, d.query, sizeof d.query) == 0 && memcmp(p.v, d.key, sizeof d.key) == 0 && p.dout != NULL);
  cr_assert(p.answer.dtype == DKV_F64 && p.answer.lse_dtype == DKV_F64);
  for (int r = 0; r < DKV_RESULTS; ++r) cr_assert(fabs(((double *)p.answer.data[r])[0] - 0.5) < 1e-15);
  dkv_problem_free(&p);
}

Test(problem_file, loads_without_do_and_answers) {
  struct draft d;
  dkv_problem p;
  begin(&d);
  for (int i = DOUT; i <= DV; ++i) {
    if (i != PARENT && i != LENGTH)
      at(&d, i)->name = (const char *[]){"x1", "", "", "x2", "x3", "x4", "x5", "x6"}[i - DOUT];
  }
  EXPECT_OK(load(&p, &d));
  cr_assert(p.dout == NULL);
  for (int r = 0; r < DKV_RESULTS; ++r) cr_assert(p.answer.data[r] == NULL);
  dkv_problem_free(&p);
}

Test(problem_file, loads_segments_in_64_bits) {
  const int64_t parent[3] = {-1, 0, 0}, length[3] = {3, 2, 2};
  struct draft d;
  dkv_problem p;
  begin(&d);
  at(&d, PARENT)->dtype = at(&d, LENGTH)->dtype = DKV_I64;
  at(&d, PARENT)->data = parent;
  at(&d, LENGTH)->data = length;
  EXPECT_OK(load(&p, &d));
  cr_assert(p.layout.segments == 3 && p.layout.rows == T);
  dkv_problem_free(&p);
}

Test(problem_file, loads_no_rows) {
  struct draft d;
  dkv_problem p;
  begin(&d);
  memset(d.length, 0, sizeof d.length);
  for (int i = Q; i <= DV; ++i) {
    if (i != PARENT && i != LENGTH) at(&d, i)->shape[i == LSE] = 0;
  }
  EXPECT_OK(load(&p, &d));
  cr_assert(p.layout.rows == 0 && p.layout.segments == 3 && p.q != NULL);
  dkv_problem_free(&p);
}

Test(problem_file, refuses_missing_tensors) {
  struct draft d;
  begin(&d);
  for (int i = Q; i <= LENGTH; ++i) {
    char want[64];
    if (i == DOUT) continue;
    snprintf(want, sizeof want, "tensor \"%s\" is missing", at(&d, i)->name);
    at(&d, i)->name = "elsewhere";
    expect_refused(&d, DKV_ERR_FORMAT, want);
  }
}

Test(problem_file, refuses_a_scale_that_is_no_number) {
  struct draft d;
  begin(&d);
  d.metadata[0].key = "skale", expect_refused(&d, DKV_ERR_FORMAT, "metadata \"scale\" is missing");
  d.metadata[0].value = "", expect_refused(&d, DKV_ERR_FORMAT, "\"scale\" is \"\", which is no number");
  d.metadata[0].value = "fast", expect_refused(&d, DKV_ERR_FORMAT, "is \"fast\"");
  d.metadata[0].value = "0.25x", expect_refused(&d, DKV_ERR_FORMAT, "is \"0.25x\"");
  d.metadata[0].value = "nan", expect_refused(&d, DKV_ERR_RANGE, "is nan; it must be finite");
  d.metadata[0].value = "-inf", expect_refused(&d, DKV_ERR_RANGE, "must be finite");
  d.metadata[0].value = "1e999", expect_refused(&d, DKV_ERR_RANGE, "must be finite");
}

Test(problem_file, refuses_wrong_types) {
  struct draft d;
  begin(&d);
  at(&d, Q)->dtype = DKV_I32, expect_refused(&d, DKV_ERR_FORMAT, "tensor \"q\" is i32");
  at(&d, K)->dtype = DKV_I32, expect_refused(&d, DKV_ERR_FORMAT, "tensor \"k\" is i32");
  at(&d, V)->dtype = DKV_BF16, expect_refused(&d, DKV_ERR_FORMAT, "tensor \"v\" is bf16, but q is f32");
  at(&d, DOUT)->dtype = DKV_F16, expect_refused(&d, DKV_ERR_FORMAT, "tensor \"do\" is f16, but q is f32");
  at(&d, DQ)->dtype = DKV_I32, expect_refused(&d, DKV_ERR_FORMAT, "tensor \"dq\" is i32");
  at(&d, PARENT)->dtype = DKV_F32,
         expect_refused(&d, DKV_ERR_FORMAT, "\"segment_parent\" is f32; it must be i32 or i64");
  at(&d, LENGTH)->dtype = DKV_U8, expect_refused(&d, DKV_ERR_FORMAT, "\"segment_length\" is u8; it must be i32 or i64");
}

Test(problem_file, refuses_wrong_shapes) {
  struct draft d;
  begin(&d);
  at(&d, Q)->rank = 2, expect_refused(&d, DKV_ERR_SHAPE, "tensor \"q\" has 2 dimensions; it must have 3");
  at(&d, K)->rank = 0, expect_refused(&d, DKV_ERR_SHAPE, "tensor \"k\" has 0 dimensions");
  at(&d, LSE)->rank = 1, expect_refused(&d, DKV_ERR_SHAPE, "tensor \"lse\" has 1 dimensions; it must have 2");
  at(&d, PARENT)->rank = 0, expect_refused(&d, DKV_ERR_SHAPE, "\"segment_parent\" has 0 dimensions; it must have 1");
  at(&d, K)->shape[0] = 6, expect_refused(&d, DKV_ERR_SHAPE, "dimension 0 of tensor \"k\" is 6");
  at(&d, V)->shape[2] = 4, expect_refused(&d, DKV_ERR_SHAPE, "dimension 2 of tensor \"v\" is 4");
  at(&d, DOUT)->shape[1] = 1, expect_refused(&d, DKV_ERR_SHAPE, "dimension 1 of tensor \"do\" is 1");
  at(&d, O)->shape[0] = 1, expect_refused(&d, DKV_ERR_SHAPE, "dimension 0 of tensor \"o\" is 1");
  at(&d, LSE)->shape[0] = 1, expect_refused(&d, DKV_ERR_SHAPE, "dimension 0 of tensor \"lse\" is 1");
  at(&d, DK)->shape[1] = 0, expect_refused(&d, DKV_ERR_SHAPE, "dimension 1 of tensor \"dk\" is 0");
  at(&d, Q)->shape[2] = 4, expect_refused(&d, DKV_ERR_RANGE, "D=4");
  at(&d, Q)->shape[2] = 0, expect_refused(&d, DKV_ERR_RANGE, "D=0");
  at(&d, Q)->shape[1] = 0, expect_refused(&d, DKV_ERR_RANGE, "H=0");
  at(&d, K)->shape[1] = 0, expect_refused(&d, DKV_ERR_RANGE, "Hkv=0");
  at(&d, Q)->shape[1] = 1, at(&d, K)->shape[1] = 2, at(&d, K)->shape[2] = 4;
  expect_refused(&d, DKV_ERR_SHAPE, "H=1 is not a multiple of Hkv=2");
  at(&d, Q)->shape[0] = 4, at(&d, Q)->shape[2] = 12;
  expect_refused(&d, DKV_ERR_SHAPE, "D=12 is not a multiple of 8");
  at(&d, Q)->shape[0] = 0, at(&d, Q)->shape[1] = INT64_C(1) << 33;
  expect_refused(&d, DKV_ERR_RANGE, "dimension 1 of tensor \"q\" is 8589934592");
  at(&d, Q)->shape[0] = 1, at(&d, Q)->shape[2] = 56;
  expect_refused(&d, DKV_ERR_SHAPE, "the segment lengths sum to 7 rows, but q has 1");
}

Test(problem_file, refuses_segments_that_are_no_forest) {
  struct draft d;
  begin(&d);
  limit_memory((size_t)64 << 20);
  at(&d, LENGTH)->shape[0] = 2, expect_refused(&d, DKV_ERR_SHAPE, "3 segment parents, but 2 segment lengths");
  d.length[2] = 3, expect_refused(&d, DKV_ERR_SHAPE, "sum to 8 rows, but q has 7");
  d.length[1] = -2, expect_refused(&d, DKV_ERR_RANGE, "segment 1 has length -2");
  d.length[0] = d.length[1] = d.length[2] = INT32_MAX; /* an allocation of 77 GB if believed */
  expect_refused(&d, DKV_ERR_SHAPE, "sum to 6442450941 rows");
  d.parent[1] = 2, expect_refused(&d, DKV_ERR_LAYOUT, "segment 1");
  d.parent[0] = 0, expect_refused(&d, DKV_ERR_LAYOUT, "segment 0");
  d.parent[2] = -2, expect_refused(&d, DKV_ERR_LAYOUT, "segment 2");
  d.parent[2] = 7, expect_refused(&d, DKV_ERR_LAYOUT, "segment 2");
  const int64_t wide[3] = {-1, INT64_C(1) << 40, 0};
  at(&d, PARENT)->dtype = DKV_I64;
  at(&d, PARENT)->data = wide;
  expect_refused(&d, DKV_ERR_RANGE, "is 1099511627776 at segment 1, which does not fit 32 bits");
}

Test(problem_file, refuses_numbers_that_are_not_finite_and_says_where) {
  struct draft d;
  begin(&d);
  d.query[2 * H * D + 5] = NAN, expect_refused(&d, DKV_ERR_RANGE, "tensor \"q\" is NaN at row 2, index 5");
  d.key[6 * D + 7] = INFINITY, expect_refused(&d, DKV_ERR_RANGE, "tensor \"k\" is infinity at row 6, index 7");
  d.lse[T + 1] = -INFINITY, expect_refused(&d, DKV_ERR_RANGE, "tensor \"lse\" is -infinity at row 1, index 1");
}

/** 10^12 rows, without the bytes: the reader itself refuses, before problem.h sees a shape. */
Test(problem_file, refuses_a_trillion_rows) {
  const char *path = file_path("absurd.safetensors");
  dkv_problem p;
  file_write_header(path,
                    "{\"__metadata__\":{\"scale\":\"1\"},"
                    "\"q\":{\"dtype\":\"F32\",\"shape\":[1000000000000,1,8],\"data_offsets\":[0,32000000000000]}}",
                    NULL, 64);
  limit_memory((size_t)64 << 20);
  EXPECT_FAIL(DKV_ERR_FORMAT, "the file has only 64", dkv_problem_load(&p, path));
}

Test(problem_file, keeps_everything_through_save_and_load) {
  struct draft d;
  dkv_problem p, again;
  begin(&d);
  d.metadata[0].value = "0.1"; /* no binary fraction: 17 digits are needed */
  EXPECT_OK(load(&p, &d));
  EXPECT_OK(dkv_problem_save(&p, file_path("copy"), "copy"));
  EXPECT_OK(dkv_problem_load(&again, file_path("copy")));
  cr_assert(memcmp(&again.scale, &p.scale, sizeof p.scale) == 0 && again.layout.rows == T);
  cr_assert(memcmp(again.q, p.q, sizeof d.query) == 0 && memcmp(again.dout, p.dout, sizeof d.query) == 0);
  for (int r = 0; r < DKV_RESULTS; ++r) {
    size_t bytes = (size_t)dkv_result_elements(&p, (dkv_result)r) * 8;
    cr_assert(memcmp(again.answer.data[r], p.answer.data[r], bytes) == 0);
  }
  dkv_problem_free(&p);
  dkv_problem_free(&again);
}

Test(problem_file, keeps_results_and_lets_nan_through_for_the_judge) {
  struct draft d;
  dkv_problem p;
  dkv_results read;
  begin(&d);
  EXPECT_OK(load(&p, &d));
  float o[T * H * D] = {NAN, 2.0f}, lse[H * T] = {3.0f};
  dkv_results results = {.dtype = DKV_F32, .lse_dtype = DKV_F32, .data = {o, lse, NULL, NULL, NULL}};
  EXPECT_OK(dkv_results_save(&results, &p, file_path("results"), "mine"));
  EXPECT_OK(dkv_results_load(&read, &p, file_path("results")));
  cr_assert(read.dtype == DKV_F64 && read.lse_dtype == DKV_F64 && read.data[DKV_DQ] == NULL);
  cr_assert(isnan(((double *)read.data[DKV_O])[0]) && fabs(((double *)read.data[DKV_O])[1] - 2.0) < 1e-15);
  cr_assert(fabs(((double *)read.data[DKV_LSE])[0] - 3.0) < 1e-15);
  dkv_results_free(&read);
  p.heads = 1; /* results of another problem */
  EXPECT_FAIL(DKV_ERR_SHAPE, "dimension 1 of tensor \"o\" is 2", dkv_results_load(&read, &p, file_path("results")));
  dkv_problem_free(&p);
}

Test(problem_file, refuses_results_that_hold_none) {
  struct draft d;
  dkv_problem p;
  dkv_results read;
  begin(&d);
  EXPECT_OK(load(&p, &d));
  EXPECT_OK(dkv_safetensors_write(file_path("none"), at(&d, Q), 3, NULL, 0));
  EXPECT_FAIL(DKV_ERR_FORMAT, "none of o, lse, dq, dk and dv", dkv_results_load(&read, &p, file_path("none")));
  EXPECT_FAIL(DKV_ERR_IO, "No such file", dkv_results_load(&read, &p, file_path("missing")));
  at(&d, LSE)->dtype = DKV_I32;
  EXPECT_OK(dkv_safetensors_write(file_path("none"), at(&d, LSE), 1, NULL, 0));
  EXPECT_FAIL(DKV_ERR_FORMAT, "tensor \"lse\" is i32", dkv_results_load(&read, &p, file_path("none")));
  dkv_problem_free(&p);
}

Test(problem_file, refuses_null_arguments_and_missing_files) {
  dkv_problem p = {0};
  dkv_results results = {0};
  dkv_safetensors file = {0};
  EXPECT_FAIL(DKV_ERR_NULL, "out", dkv_problem_load(NULL, "x"));
  EXPECT_FAIL(DKV_ERR_NULL, "path", dkv_problem_load(&p, NULL));
  EXPECT_FAIL(DKV_ERR_IO, "No such file", dkv_problem_load(&p, file_path("missing")));
  EXPECT_FAIL(DKV_ERR_NULL, "out", dkv_problem_parse(NULL, &file, "x"));
  EXPECT_FAIL(DKV_ERR_NULL, "file", dkv_problem_parse(&p, NULL, "x"));
  EXPECT_FAIL(DKV_ERR_NULL, "name", dkv_problem_parse(&p, &file, NULL));
  EXPECT_FAIL(DKV_ERR_NULL, "NULL", dkv_problem_save(NULL, "x", "x"));
  EXPECT_FAIL(DKV_ERR_NULL, "NULL", dkv_problem_save(&p, NULL, "x"));
  EXPECT_FAIL(DKV_ERR_NULL, "NULL", dkv_problem_save(&p, "x", NULL));
  EXPECT_FAIL(DKV_ERR_IO, "No such file", dkv_problem_save(&p, file_path("no/folder"), "x"));
  EXPECT_FAIL(DKV_ERR_NULL, "out", dkv_results_load(NULL, &p, "x"));
  EXPECT_FAIL(DKV_ERR_NULL, "problem", dkv_results_load(&results, NULL, "x"));
  EXPECT_FAIL(DKV_ERR_NULL, "NULL", dkv_results_save(NULL, &p, "x", "x"));
  EXPECT_FAIL(DKV_ERR_NULL, "NULL", dkv_results_save(&results, NULL, "x", "x"));
  EXPECT_FAIL(DKV_ERR_NULL, "NULL", dkv_results_save(&results, &p, NULL, "x"));
  EXPECT_FAIL(DKV_ERR_NULL, "NULL", dkv_results_save(&results, &p, "x", NULL));
}
