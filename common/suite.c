/**
 * @file suite.c
 * @brief Runs every law over every kernel and storage type, one line each.
 *
 * Read before: suite.h.  Read next: suite/laws.h, suite/laws_definition.c.
 */
#include "common/suite.h"

#include <stdio.h>
#include <string.h>

#include "common/suite/laws.h"

const dkv_law dkv_suite_laws[] = {
    {"definition", "results equal the definition's, on every layout of the table"},
    {"scores", "scores in the hundreds neither overflow nor lose the answer"},
    {"scale", "the scale is free: large, small, negative, 0"},
    {"fold", "packed results equal the folded results of the replicated layout"},
    {"causal", "a prompt with one response is one causal sequence"},
    {"permute", "permuted responses give permuted results and the same prompt gradient"},
    {"groups", "groups in one batch do not feel each other"},
    {"constant", "constant values come out unchanged, and their gradients vanish before q and k"},
    {"shift", "one vector added to all keys shifts lse and changes nothing else"},
    {"heads", "grouped key heads equal repeated ones"},
    {"siblings", "huge values in siblings and other groups change nothing"},
    {"future", "huge values in later rows change nothing"},
    {"repeat", "the bits repeat as the kernel promises, for any thread count"},
    {"refuse", "broken calls are refused with the right status"},
    {NULL, NULL}};

/** In the order of dkv_suite_laws. */
static void (*const functions[])(dkv_check *) = {
    dkv_law_definition, dkv_law_scores, dkv_law_scale,    dkv_law_fold,  dkv_law_causal,
    dkv_law_permute,    dkv_law_groups, dkv_law_constant, dkv_law_shift, dkv_law_heads,
    dkv_law_siblings,   dkv_law_future, dkv_law_repeat,   dkv_law_refuse};

/** What one call of dkv_suite_run carries around. */
typedef struct suite {
  dkv_suite_total *total;
  const dkv_backend *backend, *against;
  const dkv_suite_options *options;
  dkv_suite_callback callback;
  void *context;
} suite;

/** Counts a line and hands it out. */
static void report(const suite *s, const dkv_suite_line *line) {
  if (line->verdict == DKV_PASSED) ++s->total->passed;
  if (line->verdict == DKV_FAILED) ++s->total->failed;
  if (line->verdict == DKV_SKIPPED) ++s->total->skipped;
  if (s->callback != NULL) s->callback(s->context, line);
}

/** One law, one kernel, one type. */
static dkv_status run_law(const suite *s, int32_t law, const dkv_kernel *kernel, dkv_dtype dtype) {
  dkv_check check = {.backend = s->backend,
                     .against = s->against,
                     .kernel = kernel,
                     .dtype = dtype,
                     .seed = s->options->seed,
                     .where = "no problem"};
  functions[law](&check);
  DKV_TRY(check.status);
  /* A law that ran nothing has shown nothing. */
  if (check.problems == 0) dkv_check_fail(&check, "no problem was run");
  dkv_suite_line line = {.law = dkv_suite_laws[law].name,
                         .backend = s->backend->name,
                         .kernel = kernel,
                         .dtype = dtype,
                         .verdict = check.failed ? DKV_FAILED : DKV_PASSED,
                         .problems = check.problems,
                         .error = check.error,
                         .bound = check.bound,
                         .text = check.text};
  report(s, &line);
  return DKV_OK;
}

/** All laws that are wanted, over all types of one kernel; one skipped line when it cannot run here. */
static dkv_status run_kernel(const suite *s, const dkv_kernel *kernel) {
  if (kernel->available != NULL && kernel->available() != DKV_OK) {
    dkv_suite_line line = {
        .law = "all", .backend = s->backend->name, .kernel = kernel, .verdict = DKV_SKIPPED, .text = dkv_last_error()};
    report(s, &line);
    return DKV_OK;
  }
  for (int32_t law = 0; dkv_suite_laws[law].name != NULL; ++law) {
    if (s->options->law != NULL && strcmp(s->options->law, dkv_suite_laws[law].name) != 0) continue;
    for (int dtype = 0; dtype < DKV_DTYPES; ++dtype) {
      if (kernel->dtypes & DKV_BIT(dtype)) DKV_TRY(run_law(s, law, kernel, (dkv_dtype)dtype));
    }
  }
  return DKV_OK;
}

/** Is there such a law? */
static dkv_status check_law(const char *name) {
  for (int32_t law = 0; dkv_suite_laws[law].name != NULL; ++law) {
    if (name == NULL || strcmp(name, dkv_suite_laws[law].name) == 0) return DKV_OK;
  }
  return dkv_fail(DKV_ERR_RANGE, "there is no law \"%.60s\"", name);
}

dkv_status dkv_suite_run(dkv_suite_total *total, const dkv_backend *backend, const dkv_backend *against,
                         const dkv_suite_options *options, dkv_suite_callback callback, void *context) {
  DKV_REQUIRE(total != NULL, DKV_ERR_NULL, "dkv_suite_run: total is NULL");
  *total = (dkv_suite_total){0};
  DKV_REQUIRE(backend != NULL && against != NULL, DKV_ERR_NULL, "dkv_suite_run: %s is NULL",
              backend == NULL ? "backend" : "against");
  const dkv_suite_options defaults = {0};
  suite s = {total, backend, against, options != NULL ? options : &defaults, callback, context};
  DKV_TRY(check_law(s.options->law));
  bool any = false;
  for (int32_t i = 0; i < backend->kernel_count; ++i) {
    const dkv_kernel *kernel = &backend->kernels[i];
    if (s.options->kernel != NULL && strcmp(s.options->kernel, kernel->name) != 0) continue;
    any = true;
    DKV_TRY(run_kernel(&s, kernel));
  }
  DKV_REQUIRE(any, DKV_ERR_RANGE, "backend %s has no kernel \"%.60s\"", backend->name,
              s.options->kernel != NULL ? s.options->kernel : "");
  return DKV_OK;
}
