/**
 * @file test_attention_laws.c
 * @brief Every kernel of every backend on this machine obeys every law of the suite; one test per law.
 *
 * The laws are in common/suite/, because `dualkv check` runs them too, on machines that have no Criterion.  A failure
 * names kernel, type, layout, head shape, seed, tensor, row and index.
 *
 * Read before: common/suite.h.  Read next: tests/test_suite.c, which plants errors that the laws must find.
 */
#include "common/suite.h"

#include <stdio.h>

#include "tests/support/expect.h"
#include "tests/support/memory.h"

/** Prints what was skipped and what failed, and remembers the failures. */
static void note(void *context, const dkv_suite_line *line) {
  (void)context;
  if (line->verdict == DKV_PASSED) return;
  fprintf(stderr, "%s %s: kernel %s/%s/%s %s: %s\n", line->verdict == DKV_FAILED ? "FAILED" : "skipped", line->law,
          line->backend, line->kernel->direction == DKV_FORWARD ? "forward" : "backward", line->kernel->name,
          line->verdict == DKV_FAILED ? dkv_dtype_name(line->dtype) : "", line->text);
}

/** Seed of the random problems: another one than `dualkv check` takes. */
enum { SEED = 1 };

/** Runs one law over all backends that are present. */
static void obey(const char *law) {
  const dkv_backend *ref, *backend;
  EXPECT_OK(dkv_backend_find(&ref, "ref"));
  for (int i = 0; dkv_backend_names[i] != NULL; ++i) {
    if (dkv_backend_find(&backend, dkv_backend_names[i]) != DKV_OK) continue; /* the last test says why */
    bool slow = backend == ref && under_sanitizer(); /* the definition has one loop nest: one law walks all of it */
    if (slow && strcmp(law, "definition") != 0 && strcmp(law, "refuse") != 0) continue;
    dkv_suite_total total;
    EXPECT_OK(dkv_suite_run(&total, backend, ref, &(dkv_suite_options){.law = law, .seed = SEED}, note, NULL));
    cr_assert(total.failed == 0, "%s: %d of %d checks failed on %s, seed %d; see the lines above", law, total.failed,
              total.failed + total.passed, backend->name, SEED);
    cr_assert(total.passed > 0, "%s: nothing ran on %s", law, backend->name);
  }
}

Test(laws, results_equal_the_definition_on_every_layout) { obey("definition"); }
Test(laws, scores_in_the_hundreds_neither_overflow_nor_lose_the_answer) { obey("scores"); }
Test(laws, the_scale_is_free) { obey("scale"); }
Test(laws, packed_equals_the_folded_replicated) { obey("fold"); }
Test(laws, one_response_is_one_causal_sequence) { obey("causal"); }
Test(laws, permuted_responses_give_permuted_results) { obey("permute"); }
Test(laws, groups_do_not_feel_each_other) { obey("groups"); }
Test(laws, constant_values_come_out_unchanged) { obey("constant"); }
Test(laws, a_shift_of_all_keys_changes_only_lse) { obey("shift"); }
Test(laws, grouped_key_heads_equal_repeated_ones) { obey("heads"); }
Test(laws, huge_values_in_siblings_change_nothing) { obey("siblings"); }
Test(laws, huge_values_in_later_rows_change_nothing) { obey("future"); }
Test(laws, bits_repeat_as_promised_for_any_thread_count) { obey("repeat"); }
Test(laws, broken_calls_are_refused_by_name) { obey("refuse"); }

Test(laws, are_all_tested_here) {
  int laws = 0;
  while (dkv_suite_laws[laws].name != NULL) ++laws;
  cr_assert(laws == 14, "the suite has %d laws, and this file tests 14", laws);
}

/** The GPU's laws run inside the tests above; this line says loudly whether they did. */
Test(laws, include_the_gpu_or_say_why_not) {
  const dkv_backend *gpu;
  if (dkv_backend_find(&gpu, "gpu") != DKV_OK) {
    fprintf(stderr, "SKIP the laws on gpu: %s\n", dkv_last_error());
    cr_skip_test("%s", dkv_last_error());
  }
  cr_assert(gpu->kernel_count > 0);
}
