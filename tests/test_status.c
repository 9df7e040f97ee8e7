/**
 * @file test_status.c
 * @brief A code for programs, a sentence for people, one sentence per thread.
 *
 * Read before: common/status.h.
 */
#include <pthread.h>
#include <stdio.h>

#include "tests/support/expect.h"

Test(status, starts_without_a_sentence) { cr_assert(dkv_last_error()[0] == '\0'); }

Test(status, names_every_code_differently) {
  for (int a = DKV_OK; a <= DKV_ERR_MISMATCH; ++a) {
    const char *name = dkv_status_name((dkv_status)a);
    cr_assert(strncmp(name, a == DKV_OK ? "DKV_OK" : "DKV_ERR_", a == DKV_OK ? 7 : 8) == 0, "%d is \"%s\"", a, name);
    for (int b = DKV_OK; b < a; ++b) cr_assert(strcmp(name, dkv_status_name((dkv_status)b)) != 0, "%d and %d", a, b);
  }
  cr_assert(strcmp(dkv_status_name((dkv_status)999), "unknown status") == 0);
}

Test(status, fail_returns_the_code_and_keeps_the_formatted_sentence) {
  cr_assert(dkv_fail(DKV_ERR_SHAPE, "H=%d is not a multiple of Hkv=%d", 6, 4) == DKV_ERR_SHAPE);
  cr_assert_str_eq(dkv_last_error(), "H=6 is not a multiple of Hkv=4");
  cr_assert(dkv_fail(DKV_ERR_RANGE, "second") == DKV_ERR_RANGE);
  cr_assert_str_eq(dkv_last_error(), "second");
}

Test(status, a_sentence_may_quote_the_one_before) {
  dkv_fail(DKV_ERR_RANGE, "segment %d has length %d", 3, -1);
  dkv_fail(DKV_ERR_FORMAT, "case.safetensors: %s", dkv_last_error());
  cr_assert_str_eq(dkv_last_error(), "case.safetensors: segment 3 has length -1");
}

Test(status, cuts_a_sentence_at_511_bytes) {
  char longer[2000];
  memset(longer, 'x', sizeof longer - 1);
  longer[sizeof longer - 1] = '\0';
  dkv_fail(DKV_ERR_IO, "%s", longer);
  cr_assert(strlen(dkv_last_error()) == 511, "%zu bytes", strlen(dkv_last_error()));
  dkv_fail(DKV_ERR_IO, "short again");
  cr_assert_str_eq(dkv_last_error(), "short again");
}

Test(status, is_one_line_whatever_a_name_holds) {
  dkv_fail(DKV_ERR_FORMAT, "no tensor \"%s\"", "a\nb\x1b[31m\x7f\t\xc3\xa9");
  cr_assert_str_eq(dkv_last_error(), "no tensor \"a?b?[31m??\xc3\xa9\"");
}

/** Fails with a sentence of its own and reports whether it kept it. */
static void *fail_in_a_thread(void *kept) {
  bool was_empty = dkv_last_error()[0] == '\0';
  dkv_fail(DKV_ERR_CUDA, "from the other thread");
  *(bool *)kept = was_empty && strcmp(dkv_last_error(), "from the other thread") == 0;
  return NULL;
}

Test(status, threads_do_not_see_each_others_sentences) {
  pthread_t thread;
  bool kept = false;
  dkv_fail(DKV_ERR_SHAPE, "from this thread");
  cr_assert(pthread_create(&thread, NULL, fail_in_a_thread, &kept) == 0);
  cr_assert(pthread_join(thread, NULL) == 0);
  cr_assert(kept);
  cr_assert_str_eq(dkv_last_error(), "from this thread");
}

/** Refuses negative numbers; counts how far it came. */
static dkv_status refuse_negative(int value, int *steps) {
  DKV_REQUIRE(value >= 0, DKV_ERR_RANGE, "value %d; it is >= 0", value);
  ++*steps;
  return DKV_OK;
}

/** Refuses when either is negative. */
static dkv_status refuse_either(int a, int b, int *steps) {
  DKV_TRY(refuse_negative(a, steps));
  DKV_TRY(refuse_negative(b, steps));
  ++*steps;
  return DKV_OK;
}

Test(status, require_and_try_leave_at_the_first_failure) {
  int steps = 0;
  EXPECT_OK(refuse_either(1, 2, &steps));
  cr_assert(steps == 3);
  EXPECT_FAIL(DKV_ERR_RANGE, "value -7", refuse_either(1, -7, &steps));
  cr_assert(steps == 4);
  EXPECT_FAIL(DKV_ERR_RANGE, "value -1", refuse_either(-1, -7, &steps));
  cr_assert(steps == 4);
}
