/**
 * @file laws_conduct.c
 * @brief Laws of conduct: a kernel repeats its bits as its determinism flag says, and refuses broken calls by name.
 *
 * Read before: laws.h, attention.h.
 */
#include <math.h>
#include <stdlib.h>

#include "common/suite/laws.h"

/** One thread, two, three, all, and two more runs into buffers that already hold results. */
static const dkv_manner manners[] = {{.threads = 1}, {.threads = 2}, {.threads = 3}, {.threads = 0, .repeats = 2}};

/** Same bits, or, for a kernel that never promises them, near. */
static bool repeats(dkv_check *check, const dkv_problem *p, const dkv_results *first, const dkv_results *again) {
  if (check->kernel->determinism == DKV_NEVER) return dkv_check_all_near(check, p, again, first);
  bool fine = true;
  for (int r = 0; r < DKV_RESULTS && fine; ++r) {
    dkv_result result = (dkv_result)r;
    if (first->data[r] == NULL) continue;
    fine = dkv_check_same(check, result, again->data[r], first->data[r], dkv_result_dtype(first, result),
                          dkv_check_rows(p, result));
  }
  return fine;
}

static bool repeats_on(dkv_check *check, int32_t index, int32_t head_shape) {
  dkv_layout layout = {0};
  dkv_problem p = {0};
  dkv_results stored = {0}, first = {0};
  const char *name;
  dkv_manner manner = {.deterministic = check->kernel->determinism == DKV_ON_REQUEST};
  bool fine = dkv_check_ok(check, dkv_suite_layout(&layout, &name, index, check->seed)) &&
              dkv_check_problem(check, &p, &layout, name, dkv_suite_heads(check, head_shape), 0.0, 0.0) &&
              dkv_check_stored(check, &stored, &p) && dkv_check_run(check, &first, &p, &stored, &manner);
  for (size_t m = 0; m < sizeof manners / sizeof manners[0] && fine; ++m) {
    dkv_results again = {0};
    manner.threads = manners[m].threads;
    manner.repeats = manners[m].repeats;
    fine = dkv_check_run(check, &again, &p, &stored, &manner) && repeats(check, &p, &first, &again);
    dkv_results_free(&again);
  }
  dkv_results_free(&first);
  dkv_results_free(&stored);
  dkv_problem_free(&p);
  dkv_layout_free(&layout);
  return fine;
}

void dkv_law_repeat(dkv_check *check) {
  static const int32_t layouts[] = {6, 11, 17};
  for (int32_t n = 0; n < 3; ++n) {
    if (!repeats_on(check, layouts[n], n)) return;
  }
}

/** A broken call and the status it must give. */
typedef struct broken {
  const char *what;
  dkv_status status;
} broken;

static const broken cases[] = {
    {"q is NULL", DKV_ERR_NULL},
    {"an output is NULL", DKV_ERR_NULL},
    {"lse is NULL", DKV_ERR_NULL},
    {"the layout is NULL", DKV_ERR_NULL},
    {"H=5 with Hkv=2", DKV_ERR_SHAPE},
    {"Hkv=0", DKV_ERR_RANGE},
    {"D is 4 too large", DKV_ERR_SHAPE},
    {"D=264", DKV_ERR_RANGE},
    {"the scale is NaN", DKV_ERR_RANGE},
    {"the dtype is i32", DKV_ERR_UNSUPPORTED},
    {"the workspace is one byte short", DKV_ERR_NOMEM},
    {"the workspace is NULL", DKV_ERR_NOMEM},
};
enum { BROKEN = sizeof cases / sizeof cases[0] };

/** Breaks a sound call in the n-th way; false when the way does not apply. */
static bool break_call(dkv_attention *call, int n, dkv_direction direction) {
  switch (n) {
  case 0: call->q = NULL; return true;
  case 1:
    if (direction == DKV_FORWARD) call->o = NULL;
    else call->dk = NULL;
    return true;
  case 2: call->lse = NULL; return true;
  case 3: call->layout = NULL; return true;
  case 4:
    call->heads = 5;
    call->kv_heads = 2;
    return true;
  case 5: call->kv_heads = 0; return true;
  case 6: call->head_dim = call->head_dim < DKV_MAX_HEAD_DIM ? call->head_dim + 4 : call->head_dim - 4; return true;
  case 7: call->head_dim = 264; return true;
  case 8: call->scale = (double)NAN; return true;
  case 9: call->dtype = DKV_I32; return true;
  case 10:
    if (call->workspace_bytes == 0) return false;
    --call->workspace_bytes;
    return true;
  default:
    if (call->workspace_bytes == 0) return false;
    call->workspace = NULL;
    return true;
  }
}

/** Allocates every pointer of the call, each with room for the largest tensor. */
static bool fill_call(dkv_check *check, dkv_attention *call, void **memory, size_t bytes) {
  for (int i = 0; i < 9; ++i) {
    if (!dkv_check_ok(check, check->backend->allocate(&memory[i], bytes)) ||
        !dkv_check_ok(check, check->backend->fill(memory[i], 0, bytes)))
      return false;
  }
  call->q = memory[0];
  call->k = memory[1];
  call->v = memory[2];
  call->o = memory[3];
  call->lse = memory[4];
  call->dout = memory[5];
  call->dq = memory[6];
  call->dk = memory[7];
  call->dv = memory[8];
  if (!dkv_check_ok(check, check->kernel->workspace(call, &call->workspace_bytes)) ||
      !dkv_check_ok(check, check->backend->allocate(&memory[9], call->workspace_bytes)))
    return false;
  call->workspace = memory[9];
  return check->kernel->prepare == NULL || dkv_check_ok(check, check->kernel->prepare(call));
}

/** Every broken call is refused with its status, and a NULL call too. */
void dkv_law_refuse(dkv_check *check) {
  static const int32_t length[] = {5, 6};
  dkv_layout layout = {0};
  dkv_heads heads = dkv_suite_heads(check, 0);
  dkv_attention call = {.layout = &layout,
                        .heads = heads.heads,
                        .kv_heads = heads.kv_heads,
                        .head_dim = heads.head_dim,
                        .scale = 0.125,
                        .dtype = check->dtype,
                        .threads = 1}; /* with more, a kernel may make do with fewer threads */
  void *memory[10] = {NULL};
  dkv_problem unused = {0};
  size_t room = (size_t)32 * 8 * (DKV_MAX_HEAD_DIM + 8) * 8;
  bool fine = dkv_check_ok(check, dkv_layout_group(&layout, 7, 2, length)) &&
              dkv_check_problem(check, &unused, &layout, "broken calls", heads, 0.0, 0.0) &&
              fill_call(check, &call, memory, room);
  for (int n = 0; n <= BROKEN && fine; ++n) {
    dkv_attention bad = call;
    const char *what = n < BROKEN ? cases[n].what : "the problem is NULL";
    dkv_status want = n < BROKEN ? cases[n].status : DKV_ERR_NULL;
    if (n < BROKEN && !break_call(&bad, n, check->kernel->direction)) continue;
    dkv_status got = check->kernel->run(n < BROKEN ? &bad : NULL);
    ++check->problems;
    if (got != want)
      fine = dkv_check_fail(check, "%s, and run() gives %s instead of %s", what, dkv_status_name(got),
                            dkv_status_name(want));
  }
  for (int i = 0; i < 10; ++i) check->backend->release(memory[i]);
  dkv_problem_free(&unused);
  dkv_layout_free(&layout);
}
