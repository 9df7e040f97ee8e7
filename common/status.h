/**
 * @file status.h
 * @brief How a function says that it could not do what was asked: a code for programs, one sentence for people.
 *
 * Every fallible function returns a dkv_status.  The sentence (what, which value, which rule) is kept per thread and is
 * read with dkv_last_error(); it stays until the next failure on that thread.  Nothing here prints or exits.
 *
 * Read before: base.h.  Read next: layout.h.
 */
#ifndef DKV_STATUS_H
#define DKV_STATUS_H

#include "common/base.h"

DKV_BEGIN_C

/** What went wrong; DKV_OK is 0. Invalid (SHAPE, RANGE, LAYOUT) is kept apart from valid, not built (UNSUPPORTED). */
typedef enum dkv_status {
  DKV_OK = 0,          /**< done */
  DKV_ERR_NULL,        /**< a required pointer is NULL */
  DKV_ERR_SHAPE,       /**< sizes that contradict each other or a rule (H not a multiple of Hkv, ...) */
  DKV_ERR_RANGE,       /**< a number outside its range */
  DKV_ERR_LAYOUT,      /**< segments that are no forest in depth-first order */
  DKV_ERR_NOMEM,       /**< memory, or a workspace that is too small */
  DKV_ERR_UNSUPPORTED, /**< valid, but this kernel or build does not do it */
  DKV_ERR_NO_DEVICE,   /**< no GPU, no driver, or a GPU that is too old */
  DKV_ERR_CUDA,        /**< the CUDA runtime reported an error */
  DKV_ERR_IO,          /**< the operating system refused a file operation */
  DKV_ERR_FORMAT,      /**< a file that is not what it should be */
  DKV_ERR_MISMATCH     /**< two things that must be equal are not (unequal shared prompts, a failed comparison) */
} dkv_status;

/** The code's name, for example "DKV_ERR_SHAPE". @param[in] status a code. @return a static string, never NULL. */
const char *dkv_status_name(dkv_status status);

/** The sentence of this thread's latest failure, "" if there was none. @return a thread-local string, never NULL. */
const char *dkv_last_error(void);

/**
 * Records this thread's sentence and returns the code, so that a failing function can end in one statement.
 * @param[in] status the code to return
 * @param[in] format printf format of one sentence: what, which value, which rule (cut at 511 bytes)
 * @return status
 */
dkv_status dkv_fail(dkv_status status, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

/** Returns the enclosing function with the status of `expression` unless that is DKV_OK. */
#define DKV_TRY(expression)                                                                                            \
  do {                                                                                                                 \
    dkv_status dkv_try_status_ = (expression);                                                                         \
    if (dkv_try_status_ != DKV_OK) return dkv_try_status_;                                                             \
  } while (0)

/** Returns the enclosing function with dkv_fail(status, sentence) unless `condition` holds. */
#define DKV_REQUIRE(condition, ...)                                                                                    \
  do {                                                                                                                 \
    if (!(condition)) return dkv_fail(__VA_ARGS__);                                                                    \
  } while (0)

DKV_END_C
#endif
