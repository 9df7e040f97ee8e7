/**
 * @file execute.c
 * @brief Host memory in, host memory out: allocates on a backend, uploads, fills outputs with NaN, prepares, runs,
 * downloads.
 *
 * Read before: execute.h, backend.h.
 */
#include "common/execute.h"

#include <stdlib.h>

/** A buffer of the session: allocate, remember its size, then upload `host` or, when there is none, fill with NaN. */
static dkv_status make_buffer(dkv_session *session, void **out, const void *host, size_t bytes) {
  DKV_TRY(session->backend->allocate(out, bytes));
  session->peak_bytes += bytes;
  if (bytes == 0) return DKV_OK;
  return host != NULL ? session->backend->upload(*out, host, bytes) : session->backend->fill(*out, 0xff, bytes);
}

/** The same for an input, which a call holds as a pointer to const. */
static dkv_status make_input(dkv_session *session, const void **out, const void *host, size_t bytes) {
  void *memory = NULL;
  dkv_status status = make_buffer(session, &memory, host, bytes);
  *out = memory;
  return status;
}

/** Asks for workspace, gives it, prepares. */
static dkv_status prepare(dkv_session *session, const dkv_kernel *kernel, dkv_attention *call) {
  DKV_TRY(kernel->workspace(call, &call->workspace_bytes));
  DKV_TRY(make_buffer(session, &call->workspace, NULL, call->workspace_bytes));
  return kernel->prepare != NULL ? kernel->prepare(call) : DKV_OK;
}

/** Type of lse beside tensors of type dtype. */
static dkv_dtype lse_type(dkv_dtype dtype) { return dtype == DKV_F64 ? DKV_F64 : DKV_F32; }

static dkv_status open_session(dkv_session *out, const dkv_problem *problem, const dkv_execute_options *options) {
  dkv_attention *call = &out->forward_call;
  *call = (dkv_attention){.layout = &problem->layout,
                          .heads = problem->heads,
                          .kv_heads = problem->kv_heads,
                          .head_dim = problem->head_dim,
                          .scale = problem->scale,
                          .dtype = problem->dtype,
                          .deterministic = options->deterministic,
                          .threads = options->threads};
  bool backward = problem->dout != NULL;
  DKV_TRY(dkv_kernel_find(&out->forward, out->backend, DKV_FORWARD, options->forward, call));
  if (backward) DKV_TRY(dkv_kernel_find(&out->backward, out->backend, DKV_BACKWARD, options->backward, call));
  size_t size = dkv_dtype_size(problem->dtype);
  size_t query = (size_t)dkv_result_elements(problem, DKV_O) * size;
  size_t key = (size_t)dkv_result_elements(problem, DKV_DK) * size;
  size_t lse = (size_t)dkv_result_elements(problem, DKV_LSE) * dkv_dtype_size(lse_type(problem->dtype));
  DKV_TRY(make_input(out, &call->q, problem->q, query));
  DKV_TRY(make_input(out, &call->k, problem->k, key));
  DKV_TRY(make_input(out, &call->v, problem->v, key));
  DKV_TRY(make_buffer(out, &call->o, NULL, query));
  DKV_TRY(make_buffer(out, &call->lse, NULL, lse));
  if (backward) {
    DKV_TRY(make_input(out, &call->dout, problem->dout, query));
    DKV_TRY(make_buffer(out, &call->dq, NULL, query));
    DKV_TRY(make_buffer(out, &call->dk, NULL, key));
    DKV_TRY(make_buffer(out, &call->dv, NULL, key));
    out->backward_call = *call; /* the same buffers; only the workspaces differ */
    DKV_TRY(prepare(out, out->backward, &out->backward_call));
  }
  DKV_TRY(prepare(out, out->forward, call));
  return out->backend->synchronize();
}

dkv_status dkv_session_open(dkv_session *out, const dkv_backend *backend, const dkv_problem *problem,
                            const dkv_execute_options *options) {
  DKV_REQUIRE(out != NULL, DKV_ERR_NULL, "dkv_session_open: out is NULL");
  *out = (dkv_session){0};
  DKV_REQUIRE(backend != NULL && problem != NULL, DKV_ERR_NULL, "dkv_session_open: %s is NULL",
              backend == NULL ? "backend" : "problem");
  const dkv_execute_options defaults = {0};
  out->backend = backend;
  dkv_status status = open_session(out, problem, options != NULL ? options : &defaults);
  if (status != DKV_OK) dkv_session_close(out);
  return status;
}

dkv_status dkv_session_run(const dkv_session *session) {
  DKV_REQUIRE(session != NULL && session->forward != NULL, DKV_ERR_NULL, "dkv_session_run: the session is not open");
  DKV_TRY(session->forward->run(&session->forward_call));
  if (session->backward != NULL) DKV_TRY(session->backward->run(&session->backward_call));
  return session->backend->synchronize();
}

dkv_status dkv_session_results(const dkv_session *session, dkv_results *results, const dkv_problem *problem) {
  DKV_REQUIRE(results != NULL, DKV_ERR_NULL, "dkv_session_results: results is NULL");
  *results = (dkv_results){0};
  DKV_REQUIRE(session != NULL && session->forward != NULL && problem != NULL, DKV_ERR_NULL, "dkv_session_results: %s",
              problem == NULL ? "problem is NULL" : "the session is not open");
  const dkv_attention *call = session->backward != NULL ? &session->backward_call : &session->forward_call;
  const void *source[DKV_RESULTS] = {call->o, call->lse, call->dq, call->dk, call->dv};
  results->dtype = call->dtype;
  results->lse_dtype = lse_type(call->dtype);
  dkv_status status = DKV_OK;
  for (int r = 0; r < (session->backward != NULL ? DKV_RESULTS : 2) && status == DKV_OK; ++r) {
    size_t size = dkv_dtype_size(r == DKV_LSE ? results->lse_dtype : results->dtype);
    size_t bytes = (size_t)dkv_result_elements(problem, (dkv_result)r) * size;
    results->data[r] = malloc(bytes + 1);
    if (results->data[r] == NULL) {
      status = dkv_fail(DKV_ERR_NOMEM, "no memory for result %s (%zu bytes)", dkv_result_name((dkv_result)r), bytes);
    } else if (bytes > 0) {
      status = session->backend->download(results->data[r], source[r], bytes);
    }
  }
  if (status != DKV_OK) dkv_results_free(results);
  return status;
}

void dkv_session_close(dkv_session *session) {
  if (session == NULL) return;
  if (session->backend != NULL) {
    /* forward_call owns the tensors: backward_call is a copy of it with a workspace of its own. */
    const dkv_attention *call = &session->forward_call;
    const void *const owned[] = {call->q,
                                 call->k,
                                 call->v,
                                 call->o,
                                 call->lse,
                                 call->dout,
                                 call->dq,
                                 call->dk,
                                 call->dv,
                                 call->workspace,
                                 session->backward_call.workspace};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; ++i) session->backend->release((void *)owned[i]);
  }
  *session = (dkv_session){0};
}

dkv_status dkv_execute(dkv_results *results, const dkv_backend *backend, const dkv_problem *problem,
                       const dkv_execute_options *options) {
  DKV_REQUIRE(results != NULL, DKV_ERR_NULL, "dkv_execute: results is NULL");
  *results = (dkv_results){0};
  dkv_session session;
  DKV_TRY(dkv_session_open(&session, backend, problem, options));
  dkv_status status = dkv_session_run(&session);
  if (status == DKV_OK) status = dkv_session_results(&session, results, problem);
  dkv_session_close(&session);
  return status;
}
