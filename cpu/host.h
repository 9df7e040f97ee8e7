/**
 * @file host.h
 * @brief What both host backends share: memory, the clock, the matrix product that sets the ceiling, and the way a
 * table of kernels is cut out of kernels.def.
 *
 * Rules: everything here fills slots of dkv_backend; the contracts are written there.
 *
 * Read before: common/backend.h.  Read next: backend_ref.c, backend_cpu.c.
 */
#ifndef DKV_HOST_H
#define DKV_HOST_H

#include "common/backend.h"

/** Alignment of every allocation, in bytes. */
#define DKV_HOST_ALIGNMENT 256

/** Slot allocate. @param[out] out memory, NULL for 0 bytes. @param[in] bytes size. @return DKV_OK; DKV_ERR_NULL;
 * DKV_ERR_NOMEM */
dkv_status dkv_host_allocate(void **out, size_t bytes);

/** Slot release. @param[in] memory from dkv_host_allocate, or NULL */
void dkv_host_release(void *memory);

/** Slots upload and download: host memory is the backend's memory. @param[out] to
 * [bytes], disjoint from `from`. @param[in] from [bytes]. @param[in] bytes size.
 * @return DKV_OK; DKV_ERR_NULL (a NULL while bytes > 0) */
dkv_status dkv_host_copy(void *to, const void *from, size_t bytes);

/** Slot fill. @param[out] to memory. @param[in] value byte. @param[in] bytes size. @return DKV_OK; DKV_ERR_NULL */
dkv_status dkv_host_fill(void *to, int value, size_t bytes);

/** Slot synchronize: host kernels are done when run() returns. @return DKV_OK */
dkv_status dkv_host_synchronize(void);

/** Slot time. @param[in] kernel prepared. @param[in] problem its call. @param[in] repeats > 0. @param[out] milliseconds
 * [repeats] monotonic clock. @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE; what the kernel said */
dkv_status dkv_host_time(const dkv_kernel *kernel, const dkv_attention *problem, int32_t repeats, double *milliseconds);

/** Slot matmul_rate: one cblas_sgemm of n x n on `threads` threads (0 = all), whatever the dtype, best of `repeats`.
 * @param[in] n > 0. @param[in] dtype ignored: sums are f32 here. @param[in] threads >= 0. @param[in] repeats > 0.
 * @param[out] flops FLOP/s. @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE; DKV_ERR_NOMEM; DKV_ERR_UNSUPPORTED (no
 * OpenBLAS) */
dkv_status dkv_host_matmul_rate(int32_t n, dkv_dtype dtype, int32_t threads, int32_t repeats, double *flops);

/** Writes the processor's name as the system reports it, "unknown processor" if it does not. @param[out] out
 * [bytes] text. @param[in] bytes room */
void dkv_host_processor(char *out, size_t bytes);

/** Threads that a call uses. @param[in] threads a problem's field: 0 = what OpenMP gives. @return at least 1 */
int32_t dkv_host_threads(int32_t threads);

/** Direction fwd of a line of kernels.def. */
#define DKV_DIRECTION_fwd DKV_FORWARD
/** Direction bwd of a line of kernels.def. */
#define DKV_DIRECTION_bwd DKV_BACKWARD

/** Declares the three functions of a line of kernels.def. */
#define DKV_DECLARE_KERNEL(backend, direction, name)                                                                   \
  dkv_status dkv_##backend##_##direction##_##name##_workspace(const dkv_attention *problem, size_t *bytes);            \
  dkv_status dkv_##backend##_##direction##_##name##_prepare(const dkv_attention *problem);                             \
  dkv_status dkv_##backend##_##direction##_##name##_run(const dkv_attention *problem);

/** A line of kernels.def as a dkv_kernel; host kernels can always run. */
#define DKV_HOST_KERNEL(backend_, direction_, name_, file_, determinism_, dtypes_, head_dims_, idea_)                  \
  {.name = #name_,                                                                                                     \
   .file = file_,                                                                                                      \
   .idea = idea_,                                                                                                      \
   .direction = DKV_DIRECTION_##direction_,                                                                            \
   .dtypes = dtypes_,                                                                                                  \
   .head_dims = head_dims_,                                                                                            \
   .determinism = determinism_,                                                                                        \
   .available = dkv_host_available,                                                                                    \
   .workspace = dkv_##backend_##_##direction_##_##name_##_workspace,                                                   \
   .prepare = dkv_##backend_##_##direction_##_##name_##_prepare,                                                       \
   .run = dkv_##backend_##_##direction_##_##name_##_run},

/** A backend whose memory is the host's: `kernels` and `describe` are those of the file that says it. */
#define DKV_HOST_BACKEND(name_)                                                                                        \
  {                                                                                                                    \
    .name = name_, .kernel_count = (int32_t)(sizeof kernels / sizeof kernels[0]), .kernels = kernels,                  \
    .describe = describe, .allocate = dkv_host_allocate, .release = dkv_host_release, .upload = dkv_host_copy,         \
    .download = dkv_host_copy, .fill = dkv_host_fill, .synchronize = dkv_host_synchronize, .time = dkv_host_time,      \
    .matmul_rate = dkv_host_matmul_rate                                                                                \
  }

/** Slot available of a kernel. @return DKV_OK */
dkv_status dkv_host_available(void);

#endif
