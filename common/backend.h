/**
 * @file backend.h
 * @brief A backend is a table: memory, time, one matrix product, and the attention kernels of kernels.def.
 *
 * Three exist: "ref" (the definition in double), "cpu" (OpenMP), "gpu" (CUDA, a shared object opened at run time, so
 * that one build of the program runs on a machine without CUDA and says so in one sentence).
 *
 * Read before: attention.h.  Read next: execute.h, cpu/backend_cpu.c, gpu/backend_gpu.cu.
 */
#ifndef DKV_BACKEND_H
#define DKV_BACKEND_H

#include "common/attention.h"

DKV_BEGIN_C

/** A place to compute. Functions return DKV_OK or fail with a sentence. Memory is the backend's own (device memory). */
typedef struct dkv_backend {
  const char *name;          /**< "ref", "cpu" or "gpu" */
  int32_t kernel_count;      /**< number of kernels */
  const dkv_kernel *kernels; /**< in the order of kernels.def: simplest first within a direction */

  /** One line about the device: model, memory, driver or threads. Writes at most `bytes`, NUL included. */
  dkv_status (*describe)(char *out, size_t bytes);
  /** Allocates 256-byte aligned memory. 0 bytes give a NULL. DKV_ERR_NOMEM. */
  dkv_status (*allocate)(void **out, size_t bytes);
  /** Releases; NULL is allowed. */
  void (*release)(void *memory);
  /** Copies from host memory; returns when done. */
  dkv_status (*upload)(void *destination, const void *host, size_t bytes);
  /** Copies to host memory; waits for the default stream. */
  dkv_status (*download)(void *host, const void *source, size_t bytes);
  /** Sets every byte. 0xff fills every float type with NaN. */
  dkv_status (*fill)(void *destination, int value, size_t bytes);
  /** Waits for everything submitted and reports asynchronous errors. */
  dkv_status (*synchronize)(void);
  /**
   * Milliseconds of each of `repeats` calls of kernel->run (device events on the GPU, the monotonic clock on the CPU);
   * the GPU empties its L2 between calls. prepare() must have been called.
   */
  dkv_status (*time)(const dkv_kernel *kernel, const dkv_attention *problem, int32_t repeats, double *milliseconds);
  /**
   * The ceiling: FLOP/s of the backend's library matrix product of two random n x n matrices (CPU: cblas_sgemm in f32;
   * GPU: cuBLAS in `dtype` with fp32 accumulation), best of `repeats`. `threads` as in dkv_attention.
   */
  dkv_status (*matmul_rate)(int32_t n, dkv_dtype dtype, int32_t threads, int32_t repeats, double *flops);
} dkv_backend;

/** Names of all backends, whether present or not: "ref", "cpu", "gpu", NULL. */
extern const char *const dkv_backend_names[];

/**
 * Finds a backend, opening the GPU's shared object (libdualkv_gpu.so beside the running library, or $DKV_GPU_LIBRARY)
 * the first time it is asked for.  Safe to call from several threads.
 * @param[out] out  overwritten with a static table
 * @param[in]  name "ref", "cpu" or "gpu"
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE (no such name); DKV_ERR_UNSUPPORTED (the shared object was not built);
 *         DKV_ERR_NO_DEVICE (no driver, no GPU, too old a GPU)
 */
dkv_status dkv_backend_find(const dkv_backend **out, const char *name);

/**
 * Finds a kernel by name, or the default: the last of the list that takes the problem.
 * @param[out] out       overwritten
 * @param[in]  backend   the table
 * @param[in]  direction forward or backward
 * @param[in]  name      a kernel's name, or NULL for the default
 * @param[in]  problem   shape, dtype; with `deterministic` set the default is a kernel that can be. May be NULL when a
 *                       name is given; otherwise the kernel found also passes dkv_kernel_check
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE (no such name: the sentence lists those there are); DKV_ERR_UNSUPPORTED
 */
dkv_status dkv_kernel_find(const dkv_kernel **out, const dkv_backend *backend, dkv_direction direction,
                           const char *name, const dkv_attention *problem);

/** The symbol that the GPU's shared object exports: `dkv_status dkv_gpu_backend(const dkv_backend **out)`. */
#define DKV_GPU_ENTRY "dkv_gpu_backend"

DKV_END_C
#endif
