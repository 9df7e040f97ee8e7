/**
 * @file test_suite.c
 * @brief The judge judged: kernels with planted errors, and the laws that must catch them.
 *
 * Each planted kernel calls the definition and then spoils something, as real kernels have been seen to do: a mask that
 * forgets siblings, an element never written, a write past the end, a sum that depends on the weather.
 *
 * Read before: common/suite.h, tests/test_attention_laws.c.
 */
#include "common/suite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/expect.h"

/** The definition's two kernels, which the planted ones call. */
static const dkv_kernel *ref_forward, *ref_backward;

/** Elements of q's kind. */
static int64_t query_elements(const dkv_attention *p) { return (int64_t)p->layout->rows * p->heads * p->head_dim; }

/** Calls the definition in the right direction. */
static dkv_status define(const dkv_attention *p) {
  return p != NULL && p->dq != NULL ? ref_backward->run(p) : ref_forward->run(p);
}

static dkv_status leave_last_element(const dkv_attention *p) {
  DKV_TRY(define(p));
  if (query_elements(p) > 0) ((float *)p->o)[query_elements(p) - 1] = NAN;
  return DKV_OK;
}

static dkv_status write_past_the_end(const dkv_attention *p) {
  DKV_TRY(define(p));
  ((float *)p->o)[query_elements(p)] = 0.0f;
  return DKV_OK;
}

static dkv_status read_past_the_end(const dkv_attention *p) {
  DKV_TRY(define(p));
  if (query_elements(p) > 0)
    ((float *)p->o)[0] += 0.0f * ((const float *)p->k)[(int64_t)p->layout->rows * p->kv_heads * p->head_dim];
  return DKV_OK;
}

static dkv_status change_an_input(const dkv_attention *p) {
  DKV_TRY(define(p));
  if (query_elements(p) > 0) ((float *)(uintptr_t)p->v)[0] += 1.0f;
  return DKV_OK;
}

static dkv_status forget_siblings(const dkv_attention *p) {
  if (p == NULL || p->layout == NULL) return define(p);
  dkv_attention plain = *p;
  dkv_layout layout = *p->layout;
  layout.end = malloc((size_t)layout.rows * sizeof *layout.end + 1);
  for (int32_t j = 0; j < layout.rows; ++j) layout.end[j] = layout.rows; /* causal, and nothing else */
  plain.layout = &layout;
  dkv_status status = define(&plain);
  free(layout.end);
  return status;
}

static dkv_status assume_the_usual_scale(const dkv_attention *p) {
  if (p == NULL || !isfinite(p->scale) || p->head_dim < 1) return define(p);
  dkv_attention usual = *p;
  usual.scale = 1.0 / sqrt(p->head_dim);
  return define(&usual);
}

static dkv_status write_lse_in_base_2(const dkv_attention *p) {
  DKV_TRY(define(p));
  for (int64_t i = 0; i < (int64_t)p->layout->rows * p->heads; ++i) ((float *)p->lse)[i] *= 1.44269504f;
  return DKV_OK;
}

static dkv_status differ_in_a_bit(const dkv_attention *p) {
  static int calls;
  DKV_TRY(define(p));
  if (query_elements(p) > 0 && calls++ % 2) ((float *)p->o)[0] = nextafterf(((float *)p->o)[0], 10.0f);
  return DKV_OK;
}

static dkv_status add_to_what_is_there(const dkv_attention *p) {
  if (p == NULL || p->layout == NULL || p->o == NULL) return define(p);
  float before = query_elements(p) > 0 ? ((float *)p->o)[0] : NAN;
  DKV_TRY(define(p));
  if (isfinite(before)) ((float *)p->o)[0] += before;
  return DKV_OK;
}

static dkv_status accept_anything(const dkv_attention *p) {
  if (p != NULL && p->layout != NULL && p->layout->rows == 0) return DKV_OK;
  dkv_status status = define(p);
  return status == DKV_ERR_NULL ? DKV_OK : status;
}

/** Weights that do not quite sum to one. */
static dkv_status weigh_too_much(const dkv_attention *p) {
  DKV_TRY(define(p));
  for (int64_t i = 0; i < query_elements(p); ++i) ((float *)p->o)[i] *= 1.001f;
  return DKV_OK;
}

/** A softmax with a sink, exp(s) / (1 + sum exp(s)): a fine function, but not this one, and not free of shifts. */
static dkv_status add_a_sink(const dkv_attention *p) {
  DKV_TRY(define(p));
  int64_t width = (int64_t)p->heads * p->head_dim;
  for (int64_t i = 0; i < query_elements(p); ++i) {
    float lse = ((const float *)p->lse)[i % width / p->head_dim * p->layout->rows + i / width];
    ((float *)p->o)[i] /= 1.0f + expf(-lse);
  }
  return DKV_OK;
}

/** exp of a score from which no maximum was taken. */
static dkv_status overflow(const dkv_attention *p) {
  DKV_TRY(define(p));
  for (int64_t i = 0; i < (int64_t)p->layout->rows * p->heads; ++i) {
    if (!isfinite(expf(((const float *)p->lse)[i]))) ((float *)p->lse)[i] = INFINITY;
  }
  return DKV_OK;
}

/** A mask that is off by one: the first row peeks at the second. */
static dkv_status peek_ahead(const dkv_attention *p) {
  DKV_TRY(define(p));
  if (p->layout->rows > 1) ((float *)p->o)[0] += 1e-3f * ((const float *)p->v)[(int64_t)p->kv_heads * p->head_dim];
  return DKV_OK;
}

/** A seam: the first row of a response is treated like none. */
static dkv_status show_the_seam(const dkv_attention *p) {
  DKV_TRY(define(p));
  if (p->layout->segments > 1 && dkv_layout_length(p->layout, 1) > 0) {
    ((float *)p->o)[(int64_t)p->layout->start[1] * p->heads * p->head_dim] += 0.01f;
  }
  return DKV_OK;
}

/** Query head h reads key head h mod Hkv instead of h / (H / Hkv): run on reordered heads, then put back. */
static dkv_status interleave_heads(const dkv_attention *p) {
  if (p == NULL || p->layout == NULL || p->q == NULL || p->o == NULL || p->lse == NULL || p->kv_heads < 1)
    return define(p);
  int64_t n = query_elements(p), D = p->head_dim, H = p->heads, group = H / p->kv_heads, T = p->layout->rows;
  float *q = malloc((size_t)n * 4 + 1), *o = malloc((size_t)n * 4 + 1), *lse = malloc((size_t)(H * T) * 4 + 1);
  dkv_attention moved = *p;
  moved.q = q, moved.o = o, moved.lse = lse;
  for (int64_t i = 0; i < n; ++i) {
    int64_t row = i / (H * D), h = i / D % H, to = h % p->kv_heads * group + h / p->kv_heads;
    q[(row * H + to) * D + i % D] = ((const float *)p->q)[i];
  }
  dkv_status status = define(&moved);
  for (int64_t i = 0; i < n && status == DKV_OK; ++i) {
    int64_t row = i / (H * D), h = i / D % H, from = h % p->kv_heads * group + h / p->kv_heads;
    ((float *)p->o)[i] = o[(row * H + from) * D + i % D];
    ((float *)p->lse)[h * T + row] = lse[from * T + row];
  }
  free(q);
  free(o);
  free(lse);
  return status;
}

/** Backward: the prompt's gradient without the last response's share, the classic lost sum. */
static dkv_status lose_the_last_response(const dkv_attention *p) {
  if (p == NULL || p->layout == NULL || p->layout->segments < 2 || p->dq == NULL || p->dout == NULL) return define(p);
  int64_t n = query_elements(p), width = (int64_t)p->heads * p->head_dim;
  int64_t last = (int64_t)p->layout->start[p->layout->segments - 1] * width;
  float *dout = malloc((size_t)n * sizeof *dout + 1);
  for (int64_t i = 0; i < n; ++i) dout[i] = i < last ? ((const float *)p->dout)[i] : 0.0f;
  dkv_attention less = *p;
  less.dout = dout;
  dkv_status status = define(&less);
  free(dout);
  return status;
}

/** A backend that is "ref" with one planted kernel. */
static dkv_backend plant(dkv_kernel *kernel, dkv_direction direction, dkv_status (*run)(const dkv_attention *)) {
  const dkv_backend *ref;
  EXPECT_OK(dkv_backend_find(&ref, "ref"));
  EXPECT_OK(dkv_kernel_find(&ref_forward, ref, DKV_FORWARD, "definition", NULL));
  EXPECT_OK(dkv_kernel_find(&ref_backward, ref, DKV_BACKWARD, "definition", NULL));
  *kernel = direction == DKV_FORWARD ? *ref_forward : *ref_backward;
  kernel->name = "planted";
  kernel->dtypes = DKV_BIT(DKV_F32);
  kernel->run = run;
  dkv_backend backend = *ref;
  backend.name = "planted";
  backend.kernels = kernel;
  backend.kernel_count = 1;
  return backend;
}

/** Keeps the text of the last failed line. */
static void keep(void *context, const dkv_suite_line *line) {
  if (line->verdict == DKV_FAILED) snprintf(context, 640, "%s", line->text);
}

/** The law must fail on the planted kernel, with a sentence that contains `fragment`. */
static void expect_caught(dkv_direction direction, dkv_status (*run)(const dkv_attention *), const char *law,
                          const char *fragment) {
  const dkv_backend *ref;
  dkv_kernel kernel;
  dkv_backend backend = plant(&kernel, direction, run);
  dkv_suite_total total;
  char text[640] = "";
  EXPECT_OK(dkv_backend_find(&ref, "ref"));
  EXPECT_OK(dkv_suite_run(&total, &backend, ref, &(dkv_suite_options){.law = law}, keep, text));
  cr_assert(total.failed == 1 && total.passed == 0, "law %s let the planted error pass", law);
  cr_assert(strstr(text, fragment) != NULL, "law %s says \"%s\", without \"%s\"", law, text, fragment);
}

Test(suite, passes_the_definition_itself) {
  const dkv_backend *ref;
  dkv_kernel kernel;
  dkv_backend backend = plant(&kernel, DKV_FORWARD, define);
  dkv_suite_total total;
  char text[640] = "";
  EXPECT_OK(dkv_backend_find(&ref, "ref"));
  EXPECT_OK(dkv_suite_run(&total, &backend, ref, &(dkv_suite_options){.law = "causal"}, keep, text));
  cr_assert(total.failed == 0 && total.passed == 1 && total.skipped == 0, "%s", text);
}

Test(suite, catches_an_element_that_is_never_written) {
  expect_caught(DKV_FORWARD, leave_last_element, "definition", "never written");
}

Test(suite, catches_a_write_past_the_end) {
  expect_caught(DKV_FORWARD, write_past_the_end, "causal", "the kernel wrote byte");
}

Test(suite, catches_a_read_past_the_end) { expect_caught(DKV_FORWARD, read_past_the_end, "causal", "o is "); }

Test(suite, catches_a_changed_input) {
  expect_caught(DKV_FORWARD, change_an_input, "definition", "changed its input v");
}

Test(suite, catches_a_mask_that_forgets_siblings) {
  expect_caught(DKV_FORWARD, forget_siblings, "definition", "off by");
  expect_caught(DKV_FORWARD, forget_siblings, "siblings", "changed its bits");
  expect_caught(DKV_FORWARD, forget_siblings, "fold", "off by");
  expect_caught(DKV_FORWARD, forget_siblings, "groups", "off by");
  expect_caught(DKV_FORWARD, forget_siblings, "permute", "off by");
  expect_caught(DKV_BACKWARD, forget_siblings, "definition", "off by");
}

Test(suite, catches_a_scale_that_is_not_the_callers) {
  expect_caught(DKV_FORWARD, assume_the_usual_scale, "scale", "off by");
}

Test(suite, catches_lse_in_the_wrong_base) {
  expect_caught(DKV_FORWARD, write_lse_in_base_2, "definition", "lse is off");
}

Test(suite, catches_bits_that_do_not_repeat) {
  expect_caught(DKV_FORWARD, differ_in_a_bit, "repeat", "changed its bits: row 0, index 0");
}

Test(suite, catches_accumulation_into_an_old_result) {
  expect_caught(DKV_FORWARD, add_to_what_is_there, "repeat", "changed its bits: row 0, index 0");
}

Test(suite, catches_weights_that_do_not_sum_to_one) {
  expect_caught(DKV_FORWARD, weigh_too_much, "constant", "off by");
}

Test(suite, catches_a_softmax_that_is_not_free_of_shifts) {
  expect_caught(DKV_FORWARD, add_a_sink, "shift", "o is off by");
}

Test(suite, catches_an_overflow) { expect_caught(DKV_FORWARD, overflow, "scores", "lse is inf"); }

Test(suite, catches_a_row_that_sees_the_next) {
  expect_caught(DKV_FORWARD, peek_ahead, "future", "changed its bits: row 0, index 0");
}

Test(suite, catches_a_seam_between_prompt_and_response) {
  expect_caught(DKV_FORWARD, show_the_seam, "causal", "off by");
}

Test(suite, catches_key_heads_that_are_interleaved) {
  expect_caught(DKV_FORWARD, interleave_heads, "heads", "off by");
  expect_caught(DKV_FORWARD, interleave_heads, "definition", "off by");
}

Test(suite, catches_a_kernel_that_accepts_broken_calls) {
  expect_caught(DKV_FORWARD, accept_anything, "refuse", "q is NULL, and run() gives DKV_OK instead of DKV_ERR_NULL");
}

Test(suite, catches_a_lost_share_of_the_prompts_gradient) {
  expect_caught(DKV_BACKWARD, lose_the_last_response, "definition", "off by");
  expect_caught(DKV_BACKWARD, lose_the_last_response, "fold", "off by");
  expect_caught(DKV_BACKWARD, lose_the_last_response, "permute", "off by");
}

static dkv_status no_device(void) { return dkv_fail(DKV_ERR_NO_DEVICE, "no such device here"); }

Test(suite, skips_a_kernel_that_is_not_available_and_says_why) {
  const dkv_backend *ref;
  dkv_kernel kernel;
  dkv_backend backend = plant(&kernel, DKV_FORWARD, define);
  dkv_suite_total total;
  kernel.available = no_device;
  EXPECT_OK(dkv_backend_find(&ref, "ref"));
  EXPECT_OK(dkv_suite_run(&total, &backend, ref, NULL, NULL, NULL));
  cr_assert(total.skipped == 1 && total.passed == 0 && total.failed == 0);
}

Test(suite, refuses_what_it_does_not_know) {
  const dkv_backend *ref;
  dkv_suite_total total;
  EXPECT_OK(dkv_backend_find(&ref, "ref"));
  EXPECT_FAIL(DKV_ERR_NULL, "total", dkv_suite_run(NULL, ref, ref, NULL, NULL, NULL));
  EXPECT_FAIL(DKV_ERR_NULL, "backend", dkv_suite_run(&total, NULL, ref, NULL, NULL, NULL));
  EXPECT_FAIL(DKV_ERR_NULL, "against", dkv_suite_run(&total, ref, NULL, NULL, NULL, NULL));
  EXPECT_FAIL(DKV_ERR_RANGE, "no law \"gravity\"",
              dkv_suite_run(&total, ref, ref, &(dkv_suite_options){.law = "gravity"}, NULL, NULL));
  EXPECT_FAIL(DKV_ERR_RANGE, "no kernel \"warp\"",
              dkv_suite_run(&total, ref, ref, &(dkv_suite_options){.kernel = "warp"}, NULL, NULL));
}
