/**
 * @file backend_ref.c
 * @brief Table "ref": the definition in double, one thread, no tricks.  It is what every other backend is judged by.
 *
 * Read before: host.h.  Read next: attention/ref_fwd.c.
 */
#include <stdio.h>

#include "cpu/cpu.h"
#include "cpu/host.h"

/* Lines of kernels.def that belong to other backends become nothing. */
#define DKV_LINE_cpu(...)
#define DKV_LINE_gpu(...)
#define DKV_KERNEL(backend, ...) DKV_LINE_##backend(__VA_ARGS__)

#define DKV_LINE_ref(direction, name, ...) DKV_DECLARE_KERNEL(ref, direction, name)
#include "common/kernels.def"
#undef DKV_LINE_ref

#define DKV_LINE_ref(...) DKV_HOST_KERNEL(ref, __VA_ARGS__)
static const dkv_kernel kernels[] = {
#include "common/kernels.def"
};

static dkv_status describe(char *out, size_t bytes) {
  DKV_REQUIRE(out != NULL, DKV_ERR_NULL, "describe: out must not be NULL");
  char processor[128];
  dkv_host_processor(processor, sizeof processor);
  snprintf(out, bytes, "%s, the definition in double, 1 thread", processor);
  return DKV_OK;
}

const dkv_backend dkv_backend_ref_table = DKV_HOST_BACKEND("ref");
