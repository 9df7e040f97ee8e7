/**
 * @file device.cu
 * @brief Finds the device; one sentence for every way there can be none.
 *
 * Read before: device.h.  Read next: arena.cu.
 */
#include "gpu/runtime/device.h"

#include <stdio.h>
#include <string.h>

dkv_status dkv_gpu_fail(cudaError_t error, const char *what) {
  (void)cudaGetLastError();
  dkv_status status = DKV_ERR_CUDA;
  if (error == cudaErrorMemoryAllocation) status = DKV_ERR_NOMEM;
  if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver) status = DKV_ERR_NO_DEVICE;
  return dkv_fail(status, "gpu: %s failed: %s (%s)", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

/** Why there is no device, from the error of the first CUDA call. */
static dkv_status no_device(cudaError_t error) {
  int driver = 0, runtime = 0;
  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&runtime);
  (void)cudaGetLastError();
  if (error == cudaErrorInsufficientDriver && driver == 0)
    return dkv_fail(DKV_ERR_NO_DEVICE, "gpu: no NVIDIA driver is loaded; the GPU backend needs one for CUDA %d.%d",
                    runtime / 1000, runtime % 1000 / 10);
  if (error == cudaErrorInsufficientDriver)
    return dkv_fail(DKV_ERR_NO_DEVICE, "gpu: the driver serves CUDA %d.%d; this build needs a driver for %d.%d",
                    driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
  if (error == cudaSuccess || error == cudaErrorNoDevice)
    return dkv_fail(DKV_ERR_NO_DEVICE, "gpu: the driver shows no CUDA device; is one installed and visible?");
  return dkv_fail(DKV_ERR_NO_DEVICE, "gpu: the CUDA driver does not start: %s", cudaGetErrorString(error));
}

/** The driver's own version, which the CUDA runtime does not tell. */
static void driver_version(char *out, size_t bytes) {
  snprintf(out, bytes, "?");
  FILE *file = fopen("/sys/module/nvidia/version", "r");
  if (!file) return;
  if (fgets(out, (int)bytes, file)) out[strcspn(out, "\n")] = '\0';
  fclose(file);
}

dkv_status dkv_gpu_device_find(dkv_gpu_device *out) {
  DKV_REQUIRE(out, DKV_ERR_NULL, "dkv_gpu_device_find: out is NULL");
  memset(out, 0, sizeof *out);
  int count = 0, index = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) return no_device(error);
  DKV_CUDA(cudaGetDevice(&index));
  cudaDeviceProp properties;
  DKV_CUDA(cudaGetDeviceProperties(&properties, index));
  snprintf(out->name, sizeof out->name, "%.95s", properties.name);
  driver_version(out->driver, sizeof out->driver);
  DKV_CUDA(cudaDriverGetVersion(&out->driver_cuda));
  DKV_CUDA(cudaRuntimeGetVersion(&out->runtime_cuda));
  out->major = properties.major;
  out->minor = properties.minor;
  out->processors = properties.multiProcessorCount;
  out->block_shared = (int32_t)properties.sharedMemPerBlockOptin;
  out->l2_bytes = properties.l2CacheSize;
  out->memory_bytes = (int64_t)properties.totalGlobalMem;
  return dkv_gpu_device_check(out);
}

dkv_status dkv_gpu_device_check(const dkv_gpu_device *device) {
  DKV_REQUIRE(device->major >= 8, DKV_ERR_NO_DEVICE,
              "gpu: %s has compute capability %d.%d; this build needs 8.0 or newer", device->name, device->major,
              device->minor);
  return DKV_OK;
}

dkv_status dkv_gpu_device_check_hopper(const dkv_gpu_device *device) {
  DKV_REQUIRE(device->major == 9, DKV_ERR_NO_DEVICE,
              "gpu: %s has compute capability %d.%d; the Hopper kernels need 9.0 exactly (wgmma)", device->name,
              device->major, device->minor);
  return DKV_OK;
}

dkv_status dkv_gpu_available(void) {
  dkv_gpu_device device;
  return dkv_gpu_device_find(&device);
}

dkv_status dkv_gpu_available_hopper(void) {
  dkv_gpu_device device;
  DKV_TRY(dkv_gpu_device_find(&device));
  return dkv_gpu_device_check_hopper(&device);
}
