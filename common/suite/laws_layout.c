/**
 * @file laws_layout.c
 * @brief Laws about the layout: replicated, split, permuted and regrouped batches hold the same answers.
 *
 *     packed   p p p a a b b            fold    results of the replicated layout, copies averaged (o, lse) or summed
 * (d.) replica  p p p a a p p p b b      permute p p p b b a a
 *
 * Read before: laws.h, pack.h.  Read next: laws_values.c.
 */
#include <stdlib.h>
#include <string.h>

#include "common/pack.h"
#include "common/suite/laws.h"

/** Bytes of one row of a result with T rows (not lse). */
static size_t row_bytes(const dkv_problem *problem, dkv_result result) {
  return (size_t)dkv_check_rows(problem, result).width * dkv_dtype_size(problem->dtype);
}

/**
 * Problem `other` holds row row_map[r] of `problem` in its row r.  Rewrites results of `problem` into the row order of
 * `other`, so that both can be compared there.
 */
static bool spread(dkv_check *check, dkv_results *out, const dkv_problem *problem, const dkv_results *from,
                   const int32_t *row_map, int32_t rows) {
  *out = (dkv_results){.dtype = from->dtype, .lse_dtype = from->lse_dtype};
  for (int r = 0; r < DKV_RESULTS; ++r) {
    if (from->data[r] == NULL) continue;
    size_t lse = dkv_dtype_size(from->lse_dtype), width = r == DKV_LSE ? lse : row_bytes(problem, (dkv_result)r);
    int32_t strips = r == DKV_LSE ? problem->heads : 1; /* lse is [H][T]: one strip of T rows per head */
    out->data[r] = malloc((size_t)strips * (size_t)rows * width + 1);
    if (out->data[r] == NULL) return dkv_check_ok(check, dkv_fail(DKV_ERR_NOMEM, "suite: no memory"));
    for (int32_t h = 0; h < strips && rows > 0; ++h) {
      const char *source = (const char *)from->data[r] + (size_t)h * (size_t)problem->layout.rows * width;
      char *target = (char *)out->data[r] + (size_t)h * (size_t)rows * width;
      if (!dkv_check_ok(check, dkv_unpack_rows(target, source, width, row_map, rows))) return false;
    }
  }
  return true;
}

/** Gradients of replicated rows summed per packed row, in f64 so that the sum adds no rounding of its own. */
static bool fold(dkv_check *check, dkv_results *out, const dkv_problem *packed, const dkv_results *from,
                 const int32_t *row_map, int32_t rows) {
  *out = (dkv_results){.dtype = DKV_F64, .lse_dtype = DKV_F64};
  for (int r = DKV_DQ; r <= DKV_DV; ++r) {
    int64_t width = dkv_check_rows(packed, (dkv_result)r).width;
    double *wide = malloc((size_t)(rows * width) * sizeof *wide + 1);
    out->data[r] = malloc((size_t)dkv_result_elements(packed, (dkv_result)r) * sizeof(double) + 1);
    bool fine = wide != NULL && out->data[r] != NULL;
    if (!fine) dkv_check_ok(check, dkv_fail(DKV_ERR_NOMEM, "suite: no memory"));
    fine = fine && dkv_check_ok(check, dkv_convert(wide, DKV_F64, from->data[r], from->dtype, rows * width)) &&
           dkv_check_ok(check, dkv_fold_rows(out->data[r], packed->layout.rows, wide, width, DKV_F64, row_map, rows));
    free(wide);
    if (!fine) return false;
  }
  return true;
}

/** packed == fold(replicated), on one layout. */
static bool folds(dkv_check *check, int32_t index) {
  dkv_layout layout = {0};
  dkv_problem packed = {0}, replicated = {0};
  dkv_results x = {0}, y = {0}, mapped = {0};
  int32_t *row_map = NULL;
  const char *name;
  bool fine = dkv_check_ok(check, dkv_suite_layout(&layout, &name, index, check->seed)) &&
              dkv_check_problem(check, &packed, &layout, name, dkv_suite_heads(check, index), 0.0, 0.0) &&
              dkv_check_ok(check, dkv_problem_replicate(&replicated, &row_map, &packed)) &&
              dkv_check_run(check, &x, &packed, NULL, NULL) && dkv_check_run(check, &y, &replicated, NULL, NULL);
  int32_t rows = replicated.layout.rows;
  if (fine && check->kernel->direction == DKV_FORWARD) {
    fine = spread(check, &mapped, &packed, &x, row_map, rows) && dkv_check_all_near(check, &replicated, &mapped, &y);
  } else if (fine) {
    fine = fold(check, &mapped, &packed, &y, row_map, rows) && dkv_check_all_near(check, &packed, &x, &mapped);
  }
  free(row_map);
  dkv_results_free(&mapped);
  dkv_results_free(&x);
  dkv_results_free(&y);
  dkv_problem_free(&packed);
  dkv_problem_free(&replicated);
  dkv_layout_free(&layout);
  return fine;
}

void dkv_law_fold(dkv_check *check) {
  /* Layouts of a moderate replica: 200 one-token responses would repeat their prompt 200 times. */
  static const int32_t layouts[] = {2, 4, 5, 7, 8, 11, 12, 13, 15, 18};
  for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; ++i) {
    if (!folds(check, layouts[i])) return;
  }
}

/** Rows of `from` gathered into a problem on another layout: out row r is from row row_map[r]. */
static bool rearrange(dkv_check *check, dkv_problem *out, const dkv_problem *from, const dkv_layout *layout,
                      const int32_t *row_map) {
  dkv_heads heads = {from->heads, from->kv_heads, from->head_dim};
  char where[sizeof check->where];
  memcpy(where, check->where, sizeof where);
  bool fine = dkv_check_problem(check, out, layout, "", heads, 0.0, from->scale);
  memcpy(check->where, where, sizeof where);
  size_t query = row_bytes(from, DKV_DQ), key = row_bytes(from, DKV_DK);
  int32_t rows = layout->rows;
  return fine && dkv_check_ok(check, dkv_unpack_rows(out->q, from->q, query, row_map, rows)) &&
         dkv_check_ok(check, dkv_unpack_rows(out->k, from->k, key, row_map, rows)) &&
         dkv_check_ok(check, dkv_unpack_rows(out->v, from->v, key, row_map, rows)) &&
         dkv_check_ok(check, dkv_unpack_rows(out->dout, from->dout, query, row_map, rows));
}

/** Runs a problem on `first`, its rearrangement on `second`, and demands rearranged results. */
static bool rearranges(dkv_check *check, const char *name, const dkv_layout *first, const dkv_layout *second,
                       const int32_t *row_map, int32_t head_shape) {
  dkv_problem one = {0}, two = {0};
  dkv_results x = {0}, y = {0}, mapped = {0};
  bool fine = dkv_check_problem(check, &one, first, name, dkv_suite_heads(check, head_shape), 0.0, 0.0) &&
              rearrange(check, &two, &one, second, row_map) && dkv_check_run(check, &x, &one, NULL, NULL) &&
              dkv_check_run(check, &y, &two, NULL, NULL) && spread(check, &mapped, &one, &x, row_map, second->rows) &&
              dkv_check_all_near(check, &two, &y, &mapped);
  dkv_results_free(&x);
  dkv_results_free(&y);
  dkv_results_free(&mapped);
  dkv_problem_free(&one);
  dkv_problem_free(&two);
  return fine;
}

/** A prompt with one response is one causal sequence. */
void dkv_law_causal(dkv_check *check) {
  static const int32_t sizes[][2] = {{1, 1}, {63, 66}, {128, 128}, {100, 1}, {0, 77}, {200, 61}};
  int32_t row_map[512];
  for (int32_t i = 0; i < 512; ++i) row_map[i] = i;
  bool fine = true;
  for (int i = 0; i < 6 && fine; ++i) {
    int32_t root = -1, all = sizes[i][0] + sizes[i][1];
    dkv_layout group = {0}, causal = {0};
    fine = dkv_check_ok(check, dkv_layout_group(&group, sizes[i][0], 1, &sizes[i][1])) &&
           dkv_check_ok(check, dkv_layout_forest(&causal, 1, &root, &all)) &&
           rearranges(check, "one response", &group, &causal, row_map, i);
    dkv_layout_free(&group);
    dkv_layout_free(&causal);
  }
}

/** Responses in another order give the results in that order, and the same prompt gradient. */
void dkv_law_permute(dkv_check *check) {
  enum { P = 75, N = 6, T = P + 41 + 1 + 0 + 64 + 13 + 90 };
  static const int32_t length[N] = {41, 1, 0, 64, 13, 90}, order[N] = {3, 5, 2, 0, 4, 1};
  int32_t start[N], permuted[N], row_map[T], row = 0;
  for (int32_t n = 0, at = P; n < N; at += length[n++]) start[n] = at;
  for (; row < P; ++row) row_map[row] = row;
  for (int32_t n = 0; n < N; ++n) {
    permuted[n] = length[order[n]];
    for (int32_t i = 0; i < permuted[n]; ++i) row_map[row++] = start[order[n]] + i;
  }
  dkv_layout first = {0}, second = {0};
  bool fine = dkv_check_ok(check, dkv_layout_group(&first, P, N, length)) &&
              dkv_check_ok(check, dkv_layout_group(&second, P, N, permuted));
  for (int32_t shape = 0; shape < 2 && fine; ++shape) {
    fine = rearranges(check, "permuted responses", &first, &second, row_map, shape);
  }
  dkv_layout_free(&first);
  dkv_layout_free(&second);
}

/** Two groups in one batch do not feel each other: swapped, they give swapped results. */
void dkv_law_groups(dkv_check *check) {
  enum { A = 30 + 20 + 41, B = 67 + 5 + 9 };
  static const int32_t prompt[2] = {30, 67}, responses[2] = {2, 2}, length[4] = {20, 41, 5, 9};
  static const int32_t swapped_prompt[2] = {67, 30}, swapped_length[4] = {5, 9, 20, 41};
  int32_t row_map[A + B];
  for (int32_t i = 0; i < A + B; ++i) row_map[i] = i < B ? A + i : i - B;
  dkv_layout first = {0}, second = {0};
  if (dkv_check_ok(check, dkv_layout_groups(&first, 2, prompt, responses, length)) &&
      dkv_check_ok(check, dkv_layout_groups(&second, 2, swapped_prompt, responses, swapped_length))) {
    rearranges(check, "swapped groups", &first, &second, row_map, 1);
  }
  dkv_layout_free(&first);
  dkv_layout_free(&second);
}
