/**
 * @file rig.c
 * @brief Runs one kernel on one problem between guard zones, and looks at everything that it should not have touched.
 *
 *     | guard: NaN | tensor: input, or NaN for an output | guard: NaN |        for every tensor and the workspace
 *
 * A guard is at least 128 rows long, more than a tile, so that a kernel that reads past the last row and multiplies
 * what it found by a zero weight gets NaN, and one that writes there is seen.
 *
 * Read before: laws.h, backend.h.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/suite/laws.h"

enum { REGIONS = 10, GUARD_ROWS = 128, GUARD_LEAST = 4096, NAN_BYTE = 0xff };

/** One tensor on the backend with its guards. */
typedef struct region {
  const char *name;
  const void *host; /* content of an input; NULL for an output and for the workspace */
  void *base;       /* on the backend: guard, bytes, padding to 256, guard */
  size_t guard, bytes;
} region;

/** All regions of a run. */
struct rig {
  region region[REGIONS];
  int32_t count;
  unsigned char *host; /* a downloaded region */
};

static size_t round_up(size_t bytes) { return (bytes + 255) / 256 * 256; }
static size_t whole(const region *r) { return 2 * r->guard + round_up(r->bytes); }

/** Allocates and fills one region; returns where its tensor begins. */
static bool add(dkv_check *check, struct rig *rig, const void **out, const char *name, const void *host, size_t bytes,
                size_t row_bytes) {
  region *r = &rig->region[rig->count++];
  *r = (region){.name = name, .host = host, .bytes = bytes};
  r->guard = round_up(row_bytes * GUARD_ROWS < GUARD_LEAST ? GUARD_LEAST : row_bytes * GUARD_ROWS);
  const dkv_backend *b = check->backend;
  if (!dkv_check_ok(check, b->allocate(&r->base, whole(r))) ||
      !dkv_check_ok(check, b->fill(r->base, NAN_BYTE, whole(r))))
    return false;
  char *tensor = (char *)r->base + r->guard;
  *out = tensor;
  return host == NULL || bytes == 0 || dkv_check_ok(check, b->upload(tensor, host, bytes));
}

/** The same for memory that the kernel may write. */
static bool add_output(dkv_check *check, struct rig *rig, void **out, const char *name, size_t bytes,
                       size_t row_bytes) {
  const void *tensor = NULL;
  bool fine = add(check, rig, &tensor, name, NULL, bytes, row_bytes);
  *out = (void *)tensor;
  return fine;
}

/** Downloads a region into rig->host and demands NaN guards, and that an input still is what it was. */
static bool inspect(dkv_check *check, struct rig *rig, const region *r) {
  free(rig->host);
  rig->host = malloc(whole(r));
  if (rig->host == NULL)
    return dkv_check_ok(check, dkv_fail(DKV_ERR_NOMEM, "suite: no memory for %zu bytes", whole(r)));
  if (!dkv_check_ok(check, check->backend->download(rig->host, r->base, whole(r)))) return false;
  for (size_t i = 0; i < whole(r); ++i) {
    if (i == r->guard) i += r->bytes; /* over the tensor */
    if (i < whole(r) && rig->host[i] != NAN_BYTE) {
      return dkv_check_fail(check, "the kernel wrote byte %lld of %s, which has %zu bytes",
                            (long long)i - (long long)r->guard, r->name, r->bytes);
    }
  }
  if (r->host != NULL && r->bytes > 0 && memcmp(rig->host + r->guard, r->host, r->bytes) != 0) {
    return dkv_check_fail(check, "the kernel changed its input %s", r->name);
  }
  return true;
}

/** Copies a result out of rig->host and demands that every element is finite. */
static bool collect(dkv_check *check, const struct rig *rig, const region *r, dkv_results *out, dkv_result result,
                    dkv_rows rows) {
  dkv_dtype dtype = dkv_result_dtype(out, result);
  out->data[result] = malloc(r->bytes + 1);
  if (out->data[result] == NULL) {
    return dkv_check_ok(check, dkv_fail(DKV_ERR_NOMEM, "suite: no memory for %zu bytes", r->bytes));
  }
  memcpy(out->data[result], rig->host + r->guard, r->bytes);
  for (int64_t i = 0; i < rows.rows * rows.width; ++i) {
    double x = dkv_element(out->data[result], dtype, i);
    if (isfinite(x)) continue;
    return dkv_check_fail(check, "%s is %g at row %lld, index %lld (NaN also means: never written)", r->name, x,
                          (long long)(i / rows.width), (long long)(i % rows.width));
  }
  return true;
}

static bool fill_regions(dkv_check *check, struct rig *rig, dkv_attention *call, const dkv_problem *p,
                         const dkv_results *stored) {
  size_t size = dkv_dtype_size(p->dtype), rows = (size_t)p->layout.rows;
  size_t query_row = (size_t)p->heads * (size_t)p->head_dim * size;
  size_t key_row = (size_t)p->kv_heads * (size_t)p->head_dim * size;
  size_t lse = rows * (size_t)p->heads * (p->dtype == DKV_F64 ? 8 : 4);
  const void *o = NULL, *kept_lse = NULL;
  if (!add(check, rig, &call->q, "q", p->q, rows * query_row, query_row) ||
      !add(check, rig, &call->k, "k", p->k, rows * key_row, key_row) ||
      !add(check, rig, &call->v, "v", p->v, rows * key_row, key_row))
    return false;
  if (check->kernel->direction == DKV_FORWARD) {
    return add_output(check, rig, &call->o, "o", rows * query_row, query_row) &&
           add_output(check, rig, &call->lse, "lse", lse, 0);
  }
  bool fine = add(check, rig, &o, "o", stored->data[DKV_O], rows * query_row, query_row) &&
              add(check, rig, &kept_lse, "lse", stored->data[DKV_LSE], lse, 0) &&
              add(check, rig, &call->dout, "dout", p->dout, rows * query_row, query_row) &&
              add_output(check, rig, &call->dq, "dq", rows * query_row, query_row) &&
              add_output(check, rig, &call->dk, "dk", rows * key_row, key_row) &&
              add_output(check, rig, &call->dv, "dv", rows * key_row, key_row);
  call->o = (void *)o;
  call->lse = (void *)kept_lse;
  return fine;
}

/** Turns a kernel's error into a broken law. */
static bool kernel_ok(dkv_check *check, const char *what, dkv_status status) {
  return status == DKV_OK ||
         dkv_check_fail(check, "%s failed with %s: %s", what, dkv_status_name(status), dkv_last_error());
}

static bool call_kernel(dkv_check *check, struct rig *rig, dkv_attention *call, int32_t repeats) {
  const dkv_kernel *kernel = check->kernel;
  if (!kernel_ok(check, "workspace()", kernel->workspace(call, &call->workspace_bytes))) return false;
  if (call->workspace_bytes > 0 && !add_output(check, rig, &call->workspace, "the workspace", call->workspace_bytes, 0))
    return false;
  if (kernel->prepare != NULL && !kernel_ok(check, "prepare()", kernel->prepare(call))) return false;
  for (int32_t i = 0; i <= repeats; ++i) {
    if (!kernel_ok(check, "run()", kernel->run(call))) return false;
  }
  return kernel_ok(check, "run()", check->backend->synchronize());
}

static bool run_in_rig(dkv_check *check, dkv_results *out, const dkv_problem *p, const dkv_results *stored,
                       const dkv_manner *manner, struct rig *rig) {
  dkv_attention call = {.layout = &p->layout,
                        .heads = p->heads,
                        .kv_heads = p->kv_heads,
                        .head_dim = p->head_dim,
                        .scale = p->scale,
                        .dtype = p->dtype,
                        .deterministic = manner->deterministic,
                        .threads = manner->threads};
  if (!fill_regions(check, rig, &call, p, stored) || !call_kernel(check, rig, &call, manner->repeats)) return false;
  for (int32_t i = 0; i < rig->count; ++i) {
    const region *r = &rig->region[i];
    if (!inspect(check, rig, r)) return false;
    for (int result = 0; result < DKV_RESULTS && r->host == NULL; ++result) {
      bool wanted = strcmp(r->name, dkv_result_name((dkv_result)result)) == 0;
      if (wanted && !collect(check, rig, r, out, (dkv_result)result, dkv_check_rows(p, (dkv_result)result)))
        return false;
    }
  }
  return true;
}

bool dkv_check_run(dkv_check *check, dkv_results *out, const dkv_problem *problem, const dkv_results *stored,
                   const dkv_manner *manner) {
  const dkv_manner defaults = {0};
  dkv_results own = {0};
  struct rig rig = {0};
  bool fine = true;
  *out = (dkv_results){.dtype = problem->dtype, .lse_dtype = problem->dtype == DKV_F64 ? DKV_F64 : DKV_F32};
  if (check->kernel->direction == DKV_BACKWARD && stored == NULL) {
    fine = dkv_check_stored(check, &own, problem);
    stored = &own;
  }
  fine = fine && run_in_rig(check, out, problem, stored, manner != NULL ? manner : &defaults, &rig);
  ++check->problems;
  for (int32_t i = 0; i < rig.count; ++i) check->backend->release(rig.region[i].base);
  free(rig.host);
  dkv_results_free(&own);
  if (!fine) dkv_results_free(out);
  return fine;
}
