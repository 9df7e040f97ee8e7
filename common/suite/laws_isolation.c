/**
 * @file laws_isolation.c
 * @brief Laws of isolation: what a row may not see cannot move a single bit of its output.
 *
 * Keys and values that the row may not see are made huge, but finite.  (NaN would be unfair: a tiled kernel multiplies
 * what it masks by a weight of exactly 0, and 0 times NaN is NaN, while 0 times 1e30 is 0.)  Forward results must keep
 * their bits; gradients of what nobody else touches must stay near.
 *
 * Read before: laws.h, mask.h.  Read next: laws_conduct.c.
 */
#include <math.h>
#include <stdlib.h>

#include "common/mask.h"
#include "common/suite/laws.h"

/**
 * As large as the type allows.  A backward gets smaller keys: it recomputes p from scores and an lse that is stored in
 * f32, and exp(s - lse) of scores near 1e12 would be off by exp of their rounding; in f16 its own gradients must not
 * overflow.
 */
static double huge(const dkv_check *check, bool key) {
  bool forward = check->kernel->direction == DKV_FORWARD;
  if (check->dtype == DKV_F16) return forward ? 1e4 : 30.0;
  return forward ? 1e30 : key ? 1e4 : 1e12;
}

/** Makes k and v huge, with the sign they had, in the rows with poison[row]. */
static void poison_rows(const dkv_check *check, dkv_problem *p, const bool *poison) {
  int64_t width = (int64_t)p->kv_heads * p->head_dim;
  size_t bytes = dkv_dtype_size(p->dtype);
  for (int64_t i = 0; i < p->layout.rows * width; ++i) {
    if (!poison[i / width]) continue;
    double k = copysign(huge(check, true), dkv_element(p->k, p->dtype, i));
    double v = copysign(huge(check, false), dkv_element(p->v, p->dtype, i));
    (void)dkv_convert((char *)p->k + (size_t)i * bytes, p->dtype, &k, DKV_F64, 1);
    (void)dkv_convert((char *)p->v + (size_t)i * bytes, p->dtype, &v, DKV_F64, 1);
  }
}

/** Rows that are compared: `query` for o, lse and dq, `key` for dk and dv (NULL: not at all). */
struct kept {
  const bool *query;
  const bool *key;
};

/** Compares one result of the clean and the poisoned run in the kept rows. */
static bool unmoved(dkv_check *check, const dkv_problem *p, dkv_result r, const dkv_results *clean,
                    const dkv_results *poisoned, struct kept kept) {
  dkv_rows rows = dkv_check_rows(p, r);
  rows.keep = r == DKV_DK || r == DKV_DV ? kept.key : kept.query;
  if (rows.keep == NULL) return true;
  dkv_dtype dtype = dkv_result_dtype(clean, r);
  if (r >= DKV_DQ) {
    return dkv_check_near(check, r, poisoned->data[r], dtype, clean->data[r], dtype, rows, dkv_check_floor(p));
  }
  if (r == DKV_O) return dkv_check_same(check, r, poisoned->data[r], clean->data[r], dtype, rows);
  /* lse is [H][T]: look at each head as T rows of one element. */
  rows.rows = p->layout.rows;
  rows.width = 1;
  bool fine = true;
  for (int64_t h = 0; h < p->heads && fine; ++h) {
    size_t offset = (size_t)h * (size_t)rows.rows * dkv_dtype_size(dtype);
    fine = dkv_check_same(check, r, (const char *)poisoned->data[r] + offset, (const char *)clean->data[r] + offset,
                          dtype, rows);
  }
  return fine;
}

/** Runs with and without poison and compares. `problem` is left poisoned. */
static bool isolated(dkv_check *check, dkv_problem *problem, const dkv_results *clean, const bool *poison,
                     struct kept kept) {
  dkv_results poisoned = {0};
  poison_rows(check, problem, poison);
  bool fine = dkv_check_run(check, &poisoned, problem, NULL, NULL);
  for (int r = 0; r < DKV_RESULTS && fine; ++r) {
    if (clean->data[r] != NULL) fine = unmoved(check, problem, (dkv_result)r, clean, &poisoned, kept);
  }
  dkv_results_free(&poisoned);
  return fine;
}

/** Poisons everything off the path from a root to segment s; rows on the path must not move. */
static bool isolates_segment(dkv_check *check, const dkv_problem *p, const dkv_results *clean, int32_t s) {
  int32_t T = p->layout.rows, row = p->layout.start[s];
  bool *poison = calloc(3 * (size_t)T + 1, sizeof *poison), *path = poison + T, *own = path + T;
  if (poison == NULL) return dkv_check_ok(check, dkv_fail(DKV_ERR_NOMEM, "suite: no memory for %d rows", T));
  for (int32_t j = 0; j < T; ++j) {
    own[j] = p->layout.segment[j] == s;
    path[j] = own[j] || dkv_sees(row, j, p->layout.end[j]);
    poison[j] = !path[j];
  }
  dkv_problem copy = {0};
  struct kept kept = {path, dkv_layout_is_leaf(&p->layout, s) ? own : NULL};
  bool fine = dkv_check_ok(check, dkv_problem_cast(&copy, p, p->dtype)) && isolated(check, &copy, clean, poison, kept);
  dkv_problem_free(&copy);
  free(poison);
  return fine;
}

/** Poisons every row after `cut`; rows up to it must not move, nor their dq. */
static bool isolates_future(dkv_check *check, const dkv_problem *p, const dkv_results *clean, int32_t cut) {
  int32_t T = p->layout.rows;
  bool *poison = calloc(2 * (size_t)T + 1, sizeof *poison), *past = poison + T;
  if (poison == NULL) return dkv_check_ok(check, dkv_fail(DKV_ERR_NOMEM, "suite: no memory for %d rows", T));
  for (int32_t j = 0; j < T; ++j) {
    past[j] = j <= cut;
    poison[j] = !past[j];
  }
  dkv_problem copy = {0};
  bool fine = dkv_check_ok(check, dkv_problem_cast(&copy, p, p->dtype)) &&
              isolated(check, &copy, clean, poison, (struct kept){past, NULL});
  dkv_problem_free(&copy);
  free(poison);
  return fine;
}

/** Makes the problem on layout `index` and its clean results. */
static bool begin(dkv_check *check, dkv_problem *p, dkv_results *clean, int32_t index, int32_t head_shape) {
  dkv_layout layout = {0};
  const char *name;
  bool fine = dkv_check_ok(check, dkv_suite_layout(&layout, &name, index, check->seed)) &&
              dkv_check_problem(check, p, &layout, name, dkv_suite_heads(check, head_shape), 0.0, 0.0) &&
              dkv_check_run(check, clean, p, NULL, NULL);
  dkv_layout_free(&layout);
  return fine;
}

void dkv_law_siblings(dkv_check *check) {
  static const int32_t layouts[] = {5, 11, 12, 17};
  bool fine = true;
  for (int32_t n = 0; n < 4 && fine; ++n) {
    dkv_problem p = {0};
    dkv_results clean = {0};
    fine = begin(check, &p, &clean, layouts[n], n);
    int32_t step = fine && p.layout.segments > 9 ? 5 : 1;
    for (int32_t s = 0; fine && s < p.layout.segments; s += step) {
      if (dkv_layout_length(&p.layout, s) > 0) fine = isolates_segment(check, &p, &clean, s);
    }
    dkv_results_free(&clean);
    dkv_problem_free(&p);
  }
}

void dkv_law_future(dkv_check *check) {
  static const int32_t layouts[] = {6, 12, 9};
  bool fine = true;
  for (int32_t n = 0; n < 3 && fine; ++n) {
    dkv_problem p = {0};
    dkv_results clean = {0};
    fine = begin(check, &p, &clean, layouts[n], n);
    for (int32_t cut = 0; fine && cut + 1 < p.layout.rows; cut += 1 + p.layout.rows / 6) {
      fine = isolates_future(check, &p, &clean, cut);
    }
    dkv_results_free(&clean);
    dkv_problem_free(&p);
  }
}
