/**
 * @file on_device.cuh
 * @brief What the drivers of a GPU machine begin with: calls that must work, the backend, a kernel by its name, memory.
 *
 * A driver ends with exit code 1 and one line when a call fails that is not what it tests.
 *
 * Read before: common/backend.h.  Read next: ladder_driver.cu, fuzz_case.cuh.
 */
#ifndef DKV_TESTS_ON_DEVICE_CUH
#define DKV_TESTS_ON_DEVICE_CUH

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/backend.h"

extern "C" dkv_status dkv_gpu_backend(const dkv_backend **out);

/** The backend under test; main() asks dkv_gpu_backend() for it. */
static const dkv_backend *gpu;

/** Where a thread is, for the line that ends it: "" or ", seed 7". */
static thread_local char whereabouts[40];

static inline void must(dkv_status status, const char *what) {
  if (status == DKV_OK) return;
  printf("FAIL %s%s: %s\n", what, whereabouts, dkv_last_error());
  exit(1);
}

static inline void cuda_must(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return;
  printf("FAIL %s%s: %s\n", what, whereabouts, cudaGetErrorString(error));
  exit(1);
}

#define MUST(x) must(x, #x)
#define CUDA_MUST(x) cuda_must(x, #x)

static inline const dkv_kernel *find(dkv_direction direction, const char *name) {
  const dkv_kernel *kernel = nullptr;
  must(dkv_kernel_find(&kernel, gpu, direction, name, nullptr), name);
  return kernel;
}

/** Device memory full of NaN; gpu->release() gives it back. */
static inline void *memory(size_t bytes) {
  void *p = nullptr;
  must(gpu->allocate(&p, bytes), "allocate");
  must(gpu->fill(p, 0xff, bytes), "fill");
  return p;
}

#endif
