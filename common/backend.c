/**
 * @file backend.c
 * @brief Finds backends and kernels by name.  "ref" and "cpu" are linked in; "gpu" is a shared object opened once, on
 * demand.
 *
 * The two tables below are defined by cpu/backend_ref.c and cpu/backend_cpu.c.  They are declared here, by name only,
 * because common/ includes nothing from the floors above it; this is the one place where the linker has to fill a gap
 * upwards.
 *
 * Read before: backend.h.  Read next: execute.c, cpu/backend_cpu.c.
 */
#include "common/backend.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern const dkv_backend dkv_backend_ref_table; /* cpu/backend_ref.c */
extern const dkv_backend dkv_backend_cpu_table; /* cpu/backend_cpu.c */

const char *const dkv_backend_names[] = {"ref", "cpu", "gpu", NULL};

/** What opening the GPU's shared object gave, kept for every later caller. */
static struct {
  pthread_once_t once;
  const dkv_backend *table;
  dkv_status status;
  char sentence[512];
} gpu = {.once = PTHREAD_ONCE_INIT};

/** Its address tells dladdr which library (or program) this code is part of. */
static const char anchor = 0;

/** Path of the GPU's shared object: $DKV_GPU_LIBRARY, or beside the file that holds this code. */
static void gpu_library_path(char *out, size_t bytes) {
  static const char name[] = "libdualkv_gpu.so";
  const char *chosen = getenv("DKV_GPU_LIBRARY");
  Dl_info info;
  if (chosen != NULL && chosen[0] != '\0') {
    snprintf(out, bytes, "%s", chosen);
    return;
  }
  char *self = dladdr(&anchor, &info) != 0 && info.dli_fname != NULL ? realpath(info.dli_fname, NULL) : NULL;
  const char *slash = self != NULL ? strrchr(self, '/') : NULL;
  /* A path without a slash would make dlopen search the system's folders, so "." is spelt out. */
  if (slash == NULL) snprintf(out, bytes, "./%s", name);
  else snprintf(out, bytes, "%.*s/%s", (int)(slash - self), self, name);
  free(self);
}

static dkv_status open_gpu_library(void) {
  char path[4096];
  gpu_library_path(path, sizeof path);
  DKV_REQUIRE(access(path, F_OK) == 0, DKV_ERR_UNSUPPORTED,
              "the gpu backend was not built: there is no %s (make gpu builds it where nvcc is found)", path);
  struct stat info;
  DKV_REQUIRE(stat(path, &info) == 0 && S_ISREG(info.st_mode), DKV_ERR_UNSUPPORTED, /* dlopen would wait at a FIFO */
              "the gpu backend cannot be opened: %s is not a regular file", path);
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    const char *why = dlerror();
    return dkv_fail(DKV_ERR_UNSUPPORTED, "the gpu backend cannot be opened: %s", why != NULL ? why : path);
  }
  dkv_status (*entry)(const dkv_backend **) = NULL;
  void *symbol = dlsym(library, DKV_GPU_ENTRY);
  memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast from an object pointer to a function pointer */
  dkv_status status = DKV_OK;
  if (entry == NULL) {
    status = dkv_fail(DKV_ERR_UNSUPPORTED, "%s is no gpu backend: it does not define %s", path, DKV_GPU_ENTRY);
  } else {
    status = entry(&gpu.table);
    if (status == DKV_OK && gpu.table == NULL) {
      status = dkv_fail(DKV_ERR_UNSUPPORTED, "%s is no gpu backend: %s gave no table", path, DKV_GPU_ENTRY);
    }
  }
  if (status != DKV_OK) {
    gpu.table = NULL;
    dlclose(library);
  }
  return status;
}

/** Runs once per process; the sentence is copied because dkv_last_error belongs to the thread that got here first. */
static void open_gpu_once(void) {
  gpu.status = open_gpu_library();
  if (gpu.status != DKV_OK) snprintf(gpu.sentence, sizeof gpu.sentence, "%s", dkv_last_error());
}

dkv_status dkv_backend_find(const dkv_backend **out, const char *name) {
  DKV_REQUIRE(out != NULL, DKV_ERR_NULL, "dkv_backend_find: out is NULL");
  *out = NULL;
  DKV_REQUIRE(name != NULL, DKV_ERR_NULL, "dkv_backend_find: name is NULL");
  if (strcmp(name, "ref") == 0) *out = &dkv_backend_ref_table;
  if (strcmp(name, "cpu") == 0) *out = &dkv_backend_cpu_table;
  if (*out != NULL) return DKV_OK;
  DKV_REQUIRE(strcmp(name, "gpu") == 0, DKV_ERR_RANGE, "there is no backend \"%.60s\"; there are ref, cpu and gpu",
              name);
  pthread_once(&gpu.once, open_gpu_once);
  if (gpu.status != DKV_OK) return dkv_fail(gpu.status, "%s", gpu.sentence);
  *out = gpu.table;
  return DKV_OK;
}

/** Fails with the names that the backend has in this direction. */
static dkv_status no_such_kernel(const dkv_backend *backend, dkv_direction direction, const char *name) {
  char list[256] = "none";
  size_t used = 0;
  for (int32_t i = 0; i < backend->kernel_count && used < sizeof list; ++i) {
    if (backend->kernels[i].direction != direction) continue;
    int wrote = snprintf(list + used, sizeof list - used, used ? ", %s" : "%s", backend->kernels[i].name);
    used += (size_t)wrote;
  }
  return dkv_fail(DKV_ERR_RANGE, "backend %s has no %s kernel \"%.60s\"; it has %s", backend->name,
                  direction == DKV_FORWARD ? "forward" : "backward", name, list);
}

dkv_status dkv_kernel_find(const dkv_kernel **out, const dkv_backend *backend, dkv_direction direction,
                           const char *name, const dkv_attention *problem) {
  DKV_REQUIRE(out != NULL, DKV_ERR_NULL, "dkv_kernel_find: out is NULL");
  *out = NULL;
  DKV_REQUIRE(backend != NULL, DKV_ERR_NULL, "dkv_kernel_find: backend is NULL");
  DKV_REQUIRE(name != NULL || problem != NULL, DKV_ERR_NULL, "dkv_kernel_find: neither a name nor a problem is given");
  dkv_status status = DKV_ERR_RANGE; /* stays when no kernel is even a candidate */
  for (int32_t i = backend->kernel_count - 1; i >= 0; --i) {
    const dkv_kernel *kernel = &backend->kernels[i];
    if (kernel->direction != direction || (name != NULL && strcmp(kernel->name, name) != 0)) continue;
    status = problem != NULL ? dkv_kernel_check(kernel, problem) : DKV_OK;
    if (status == DKV_OK) {
      *out = kernel;
      return DKV_OK;
    }
    /* A broken shape is the caller's; only what another kernel may take is worth another look. */
    if (name != NULL || (status != DKV_ERR_UNSUPPORTED && status != DKV_ERR_NO_DEVICE)) return status;
  }
  if (status == DKV_ERR_RANGE) return no_such_kernel(backend, direction, name != NULL ? name : "default");
  return status == DKV_ERR_NO_DEVICE
             ? status
             : dkv_fail(DKV_ERR_UNSUPPORTED, "backend %s has no %s kernel for %s, D=%d%s", backend->name,
                        direction == DKV_FORWARD ? "forward" : "backward", dkv_dtype_name(problem->dtype),
                        problem->head_dim, problem->deterministic ? ", deterministic" : "");
}
