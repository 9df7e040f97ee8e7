/**
 * @file expect.h
 * @brief How a test says that a function must refuse: the code, and a word that its sentence must contain.
 *
 * A status alone is half a promise: the sentence has to name the value that was wrong.  So every test of an error gives
 * a fragment of the sentence too.
 *
 * Read before: common/status.h.
 */
#ifndef DKV_TESTS_EXPECT_H
#define DKV_TESTS_EXPECT_H

#include <criterion/criterion.h>
#include <string.h>

#include "common/status.h"

/** The call must succeed; the failure message shows its sentence. */
#define EXPECT_OK(call)                                                                                                \
  do {                                                                                                                 \
    dkv_status got_ = (call);                                                                                          \
    cr_assert(got_ == DKV_OK, "%s: %s: %s", #call, dkv_status_name(got_), dkv_last_error());                           \
  } while (0)

/** The call must fail with `status`, and its sentence must contain `fragment`. */
#define EXPECT_FAIL(status, fragment, call)                                                                            \
  do {                                                                                                                 \
    dkv_status got_ = (call);                                                                                          \
    cr_assert(got_ == (status), "%s gave %s, not %s: %s", #call, dkv_status_name(got_), dkv_status_name(status),       \
              dkv_last_error());                                                                                       \
    cr_assert(strstr(dkv_last_error(), (fragment)) != NULL, "%s: the sentence \"%s\" lacks \"%s\"", #call,             \
              dkv_last_error(), (fragment));                                                                           \
  } while (0)

#endif
