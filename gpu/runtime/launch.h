/**
 * @file launch.h
 * @brief Launching a kernel so that nothing is taken on trust: grid limits before, shared-memory limit before, error
 *   after.
 *
 * Rules: the last statement of a launch is always DKV_TRY(dkv_gpu_launched("name")).
 *
 * Read before: device.h.  Read next: gpu/attention/fwd_1_naive.cu.
 */
#ifndef DKV_GPU_LAUNCH_H
#define DKV_GPU_LAUNCH_H

#include "gpu/runtime/device.h"

/**
 * Builds a grid, checking CUDA's limits (x below 2^31, y and z at most 65535).
 * @param[out] out   overwritten
 * @param[in]  x,y,z blocks, each > 0
 * @return DKV_OK; DKV_ERR_RANGE
 */
static inline dkv_status dkv_gpu_grid(dim3 *out, int64_t x, int64_t y, int64_t z) {
  DKV_REQUIRE(x > 0 && x <= INT32_MAX, DKV_ERR_RANGE, "gpu: a grid of %lld blocks in x; CUDA takes 1 to %d",
              (long long)x, INT32_MAX);
  DKV_REQUIRE(y > 0 && y <= 65535 && z > 0 && z <= 65535, DKV_ERR_RANGE,
              "gpu: a grid of %lld by %lld blocks in y and z (heads); CUDA takes 1 to 65535", (long long)y,
              (long long)z);
  *out = dim3((unsigned)x, (unsigned)y, (unsigned)z);
  return DKV_OK;
}

/**
 * Lets a kernel use more than 48 KiB of dynamic shared memory.
 * @param[in] kernel the __global__ function
 * @param[in] bytes  dynamic shared memory of the launch
 * @return DKV_OK; DKV_ERR_UNSUPPORTED (more than a block of this device may have); DKV_ERR_CUDA
 */
template <class Kernel> static inline dkv_status dkv_gpu_shared(Kernel *kernel, size_t bytes) {
  int device = 0, limit = 0;
  DKV_CUDA(cudaGetDevice(&device));
  DKV_CUDA(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  DKV_REQUIRE(bytes <= (size_t)limit, DKV_ERR_UNSUPPORTED,
              "gpu: this kernel needs %zu bytes of shared memory a block; the device has %d", bytes, limit);
  DKV_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
  return DKV_OK;
}

/** Did the launch just made fail? @param[in] kernel its name. @return DKV_OK; DKV_ERR_CUDA with the kernel named. */
static inline dkv_status dkv_gpu_launched(const char *kernel) {
  cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? DKV_OK : dkv_gpu_fail(error, kernel);
}

#endif
