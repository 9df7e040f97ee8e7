/**
 * @file execute.h
 * @brief Runs a whole problem, host memory to host memory, on any backend and kernel: what the tool, the tests and the
 * Python binding call.
 *
 * It allocates on the backend, uploads, fills every output and the workspace with NaN, prepares, runs, downloads.  It
 * is meant for checking, not for speed: training and benchmarks keep their buffers.
 *
 * Read before: problem.h, backend.h.
 */
#ifndef DKV_EXECUTE_H
#define DKV_EXECUTE_H

#include "common/backend.h"
#include "common/problem.h"

DKV_BEGIN_C

/** Which kernels, and how. Zeroed means: default kernels, all threads. */
typedef struct dkv_execute_options {
  const char *forward;  /**< kernel name, NULL = default */
  const char *backward; /**< kernel name, NULL = default */
  bool deterministic;   /**< see dkv_attention */
  int32_t threads;      /**< see dkv_attention */
} dkv_execute_options;

/** A problem's buffers on a backend, filled and prepared: for timing and for repeated runs. */
typedef struct dkv_session {
  const dkv_backend *backend;  /**< where */
  const dkv_kernel *forward;   /**< kernel */
  const dkv_kernel *backward;  /**< kernel; NULL when the problem has no dout */
  dkv_attention forward_call;  /**< ready for forward->run */
  dkv_attention backward_call; /**< ready for backward->run */
  size_t peak_bytes;           /**< bytes allocated on the backend */
} dkv_session;

/**
 * Allocates, uploads, NaN-fills, prepares.
 * @param[out] out     overwritten; zeroed on failure
 * @param[in]  backend where
 * @param[in]  problem must outlive *out (its layout is used)
 * @param[in]  options NULL = defaults
 * @return DKV_OK or what the backend, dkv_kernel_find or the kernel said
 */
dkv_status dkv_session_open(dkv_session *out, const dkv_backend *backend, const dkv_problem *problem,
                            const dkv_execute_options *options);

/**
 * Runs forward, and backward when there is one, and waits.
 * @param[in] session an open session
 * @return DKV_OK; DKV_ERR_NULL (not open); the first failure
 */
dkv_status dkv_session_run(const dkv_session *session);

/**
 * Downloads the results.
 * @param[in]  session an open session
 * @param[out] results overwritten; owned by the caller
 * @param[in]  problem the session's problem
 * @return DKV_OK; DKV_ERR_NOMEM; what the backend said
 */
dkv_status dkv_session_results(const dkv_session *session, dkv_results *results, const dkv_problem *problem);

/** Frees; accepts a zeroed struct. @param[in,out] session zeroed afterwards. */
void dkv_session_close(dkv_session *session);

/**
 * All of the above in one call.
 * @param[out] results overwritten; owned by the caller; zeroed on failure
 * @param[in]  backend where
 * @param[in]  problem what
 * @param[in]  options NULL = defaults
 * @return the first failure
 */
dkv_status dkv_execute(dkv_results *results, const dkv_backend *backend, const dkv_problem *problem,
                       const dkv_execute_options *options);

DKV_END_C
#endif
