/**
 * @file device.h
 * @brief Which GPU this is, and how a CUDA error becomes a status with one sentence.
 *
 * Rules of this floor: library code never prints or exits; every CUDA call goes through DKV_CUDA; the device is the
 * calling thread's current one (CUDA_VISIBLE_DEVICES chooses among several).
 *
 * Read before: common/status.h.  Read next: arena.h, launch.h.
 */
#ifndef DKV_GPU_DEVICE_H
#define DKV_GPU_DEVICE_H

#include <cuda_runtime.h>

#include "common/status.h"

/** What the kernels and the tool want to know about the device. */
struct dkv_gpu_device {
  char name[96];        /**< "NVIDIA H200" */
  char driver[48];      /**< the driver's own version, "?" when the system does not tell */
  int32_t driver_cuda;  /**< newest CUDA version the driver serves: 1000 * major + 10 * minor */
  int32_t runtime_cuda; /**< CUDA version of this build, same form */
  int32_t major;        /**< compute capability, 9 of 9.0 */
  int32_t minor;        /**< its second number */
  int32_t processors;   /**< streaming multiprocessors (SMs) */
  int32_t block_shared; /**< most shared memory of one block, bytes */
  int64_t l2_bytes;     /**< size of the L2 cache */
  int64_t memory_bytes; /**< size of the device memory */
};

/**
 * The current device.
 * @param[out] out overwritten with its properties
 * @return DKV_OK; DKV_ERR_NO_DEVICE (no driver, a driver older than this build, no GPU, compute capability below 8.0);
 *         DKV_ERR_CUDA
 */
dkv_status dkv_gpu_device_find(dkv_gpu_device *out);

/**
 * Is a device new enough for the portable rungs?
 * @param[in] device its properties; major, minor and name are read
 * @return DKV_OK; DKV_ERR_NO_DEVICE (compute capability below 8.0)
 */
dkv_status dkv_gpu_device_check(const dkv_gpu_device *device);

/**
 * Has a device the instructions of the Hopper rungs (wgmma, TMA)?
 * @param[in] device its properties; major, minor and name are read
 * @return DKV_OK; DKV_ERR_NO_DEVICE (compute capability is not 9.x)
 */
dkv_status dkv_gpu_device_check_hopper(const dkv_gpu_device *device);

/** Can the portable rungs run here (compute capability 8.0 or newer)? @return as dkv_gpu_device_find. */
dkv_status dkv_gpu_available(void);

/** Can the Hopper rungs run here (compute capability 9.x: wgmma and TMA)? @return as dkv_gpu_device_find. */
dkv_status dkv_gpu_available_hopper(void);

/**
 * Turns a CUDA error into a status and this thread's sentence; clears CUDA's own last error.
 * @param[in] error not cudaSuccess
 * @param[in] what  the expression or kernel that failed
 * @return DKV_ERR_NOMEM for a failed allocation, DKV_ERR_NO_DEVICE for a missing device or driver, else DKV_ERR_CUDA
 */
dkv_status dkv_gpu_fail(cudaError_t error, const char *what);

/** Returns the enclosing function with a status unless the CUDA call succeeded. */
#define DKV_CUDA(expression)                                                                                           \
  do {                                                                                                                 \
    cudaError_t dkv_cuda_error_ = (expression);                                                                        \
    if (dkv_cuda_error_ != cudaSuccess) return dkv_gpu_fail(dkv_cuda_error_, #expression);                             \
  } while (0)

#endif
