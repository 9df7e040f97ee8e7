/**
 * @file arena.h
 * @brief Device memory with guard zones: a kernel that writes past its buffer is caught.
 *
 *     | 4096 guard bytes | the caller's bytes ... | 4096 guard bytes |        every guard byte is 0xff: NaN in every
 *     float type
 *
 * Guards are on when the environment variable DKV_GPU_GUARD is set to anything but 0 (tests/run_gpu.sh sets it);
 * otherwise an allocation is one plain cudaMalloc.  A read past the end then gives NaN, which no comparison lets pass,
 * and a write is found by dkv_gpu_guards_check (every synchronize) and on release.
 *
 * Read before: device.h.  Read next: gpu/backend_gpu.cu.
 */
#ifndef DKV_GPU_ARENA_H
#define DKV_GPU_ARENA_H

#include "gpu/runtime/device.h"

/**
 * Allocates device memory, 256-byte aligned.
 * @param[out] out   overwritten; NULL for 0 bytes and on failure
 * @param[in]  bytes wanted
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_NOMEM; DKV_ERR_CUDA
 */
dkv_status dkv_gpu_allocate(void **out, size_t bytes);

/**
 * Releases memory. A damaged guard is reported by the next dkv_gpu_guards_check.
 * @param[in] memory of dkv_gpu_allocate, or NULL
 */
void dkv_gpu_release(void *memory);

/**
 * Waits for the device and checks the guards of every live allocation, and whether a released one was damaged.
 * @return DKV_OK; DKV_ERR_CUDA naming the allocation's size, the side and the byte
 */
dkv_status dkv_gpu_guards_check(void);

#endif
