/**
 * @file backend_cpu.c
 * @brief Table "cpu": attention in tiles, OpenMP threads, f32 sums; storage f32, bf16 or f16.
 *
 * Read before: host.h.  Read next: attention/tiled_fwd.c.
 */
#include <stdio.h>
#include <string.h>

#include "cpu/blas.h"
#include "cpu/cpu.h"
#include "cpu/host.h"
#include "cpu/simd.h"

/* Lines of kernels.def that belong to other backends become nothing. */
#define DKV_LINE_ref(...)
#define DKV_LINE_gpu(...)
#define DKV_KERNEL(backend, ...) DKV_LINE_##backend(__VA_ARGS__)

#define DKV_LINE_cpu(direction, name, ...) DKV_DECLARE_KERNEL(cpu, direction, name)
#include "common/kernels.def"
#undef DKV_LINE_cpu

#define DKV_LINE_cpu(...) DKV_HOST_KERNEL(cpu, __VA_ARGS__)
static const dkv_kernel kernels[] = {
#include "common/kernels.def"
};

static dkv_status describe(char *out, size_t bytes) {
  DKV_REQUIRE(out != NULL, DKV_ERR_NULL, "describe: out must not be NULL");
  char processor[128];
  DKV_TRY(dkv_blas_open());
  dkv_host_processor(processor, sizeof processor);
  snprintf(out, bytes, "%s, %d threads, vectors of %d floats (%s), OpenBLAS %.*s", processor, dkv_host_threads(0),
           DKV_LANES, DKV_SIMD_NAME, (int)strcspn(dkv_blas_describe(), ","), dkv_blas_describe());
  return DKV_OK;
}

const dkv_backend dkv_backend_cpu_table = DKV_HOST_BACKEND("cpu");
