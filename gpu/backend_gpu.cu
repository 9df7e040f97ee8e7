/**
 * @file backend_gpu.cu
 * @brief The "gpu" table: device memory, device time, cuBLAS as the ceiling, and the attention kernels of kernels.def.
 *
 * The core opens this shared object at run time and calls dkv_gpu_backend, which gives the table or says in one
 * sentence why there is no GPU to use.
 *
 * Read before: common/backend.h, runtime/arena.h.  Read next: attention/fwd_1_naive.cu.
 */
#include "common/backend.h"

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdio.h>

#include "common/rng.h"
#include "gpu/runtime/arena.h"
#include "gpu/runtime/launch.h"
#include "gpu/runtime/tile.cuh"

extern "C" {
#define DKV_KERNEL(backend, direction, name, file, determinism, dtypes, head_dims, idea)                               \
  dkv_status dkv_##backend##_##direction##_##name##_workspace(const dkv_attention *, size_t *);                        \
  dkv_status dkv_##backend##_##direction##_##name##_prepare(const dkv_attention *);                                    \
  dkv_status dkv_##backend##_##direction##_##name##_run(const dkv_attention *);
#include "common/kernels.def"
#undef DKV_KERNEL
}

namespace {

/* Only the lines of this backend become entries: DKV_KERNEL hands each line to the macro named after its backend. */
#define DIRECTION_fwd DKV_FORWARD
#define DIRECTION_bwd DKV_BACKWARD
#define ENTRY_ref(...)
#define ENTRY_cpu(...)
#define ENTRY_gpu(direction, name, file, determinism, dtypes, head_dims, idea)                                         \
  {#name,                                                                                                              \
   file,                                                                                                               \
   idea,                                                                                                               \
   DIRECTION_##direction,                                                                                              \
   dtypes,                                                                                                             \
   head_dims,                                                                                                          \
   determinism,                                                                                                        \
   needs_hopper(file) ? dkv_gpu_available_hopper : dkv_gpu_available,                                                  \
   dkv_gpu_##direction##_##name##_workspace,                                                                           \
   dkv_gpu_##direction##_##name##_prepare,                                                                             \
   dkv_gpu_##direction##_##name##_run},
#define DKV_KERNEL(backend, ...) ENTRY_##backend(__VA_ARGS__)

/** Files with "hopper" in their name hold instructions that only compute capability 9.0 has. */
constexpr bool needs_hopper(const char *file) {
  constexpr char word[] = "hopper";
  for (; *file; ++file) {
    int same = 0;
    while (same < 6 && file[same] == word[same]) ++same;
    if (same == 6) return true;
  }
  return false;
}

const dkv_kernel kernels[] = {
#include "common/kernels.def"
};

dkv_status describe(char *out, size_t bytes) {
  dkv_gpu_device device;
  DKV_REQUIRE(out && bytes > 0, DKV_ERR_NULL, "gpu describe: out is NULL or has no room");
  DKV_TRY(dkv_gpu_device_find(&device));
  snprintf(out, bytes, "%s, %d SMs, %.1f GiB, compute capability %d.%d, driver %s (CUDA %d.%d), built with CUDA %d.%d",
           device.name, device.processors, (double)device.memory_bytes / 1073741824.0, device.major, device.minor,
           device.driver, device.driver_cuda / 1000, device.driver_cuda % 1000 / 10, device.runtime_cuda / 1000,
           device.runtime_cuda % 1000 / 10);
  return DKV_OK;
}

dkv_status upload(void *destination, const void *host, size_t bytes) {
  if (bytes == 0) return DKV_OK;
  DKV_CUDA(cudaMemcpy(destination, host, bytes, cudaMemcpyHostToDevice));
  DKV_CUDA(cudaStreamSynchronize(nullptr)); /* a small copy may return while it is still staged */
  return DKV_OK;
}

dkv_status download(void *host, const void *source, size_t bytes) {
  if (bytes == 0) return DKV_OK;
  DKV_CUDA(cudaMemcpy(host, source, bytes, cudaMemcpyDeviceToHost));
  return DKV_OK;
}

dkv_status fill(void *destination, int value, size_t bytes) {
  if (bytes == 0) return DKV_OK;
  DKV_CUDA(cudaMemset(destination, value, bytes));
  return DKV_OK;
}

/** A pair of events, and a buffer twice the size of L2 whose filling empties it; released on every way out. */
struct stopwatch {
  cudaEvent_t start = nullptr, stop = nullptr;
  void *flush = nullptr;
  size_t flush_bytes = 0;

  dkv_status open() {
    dkv_gpu_device device;
    DKV_TRY(dkv_gpu_device_find(&device));
    flush_bytes = 2 * (size_t)device.l2_bytes;
    DKV_CUDA(cudaEventCreate(&start));
    DKV_CUDA(cudaEventCreate(&stop));
    DKV_CUDA(cudaMalloc(&flush, flush_bytes));
    return DKV_OK;
  }
  ~stopwatch() {
    if (start) cudaEventDestroy(start);
    if (stop) cudaEventDestroy(stop);
    cudaFree(flush);
  }
};

dkv_status time_kernel(const dkv_kernel *kernel, const dkv_attention *problem, int32_t repeats, double *milliseconds) {
  DKV_REQUIRE(kernel && problem && milliseconds, DKV_ERR_NULL, "gpu time: kernel, problem or milliseconds is NULL");
  DKV_REQUIRE(repeats > 0, DKV_ERR_RANGE, "gpu time: %d repeats; there must be at least 1", repeats);
  stopwatch watch;
  DKV_TRY(watch.open());
  cudaStream_t stream = (cudaStream_t)problem->stream;
  for (int32_t r = 0; r < repeats; ++r) {
    float elapsed = 0;
    DKV_CUDA(cudaMemsetAsync(watch.flush, r, watch.flush_bytes, stream));
    DKV_CUDA(cudaEventRecord(watch.start, stream));
    DKV_TRY(kernel->run(problem));
    DKV_CUDA(cudaEventRecord(watch.stop, stream));
    DKV_CUDA(cudaEventSynchronize(watch.stop));
    DKV_CUDA(cudaEventElapsedTime(&elapsed, watch.start, watch.stop));
    milliseconds[r] = elapsed;
  }
  return DKV_OK;
}

/** Uniform on [-1, 1): zeros would run faster than real data. */
template <class T> __global__ void fill_random(T *out, int64_t count, uint64_t stream) {
  int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = dkv::from_float<T>(2.0f * dkv_rng_uniform(1, stream, (uint64_t)i) - 1.0f);
}

template <class T> dkv_status random_matrix(void *out, int64_t count, uint64_t stream) {
  dim3 grid;
  DKV_TRY(dkv_gpu_grid(&grid, dkv_ceil_div(count, 256), 1, 1));
  fill_random<<<grid, 256>>>((T *)out, count, stream);
  return dkv_gpu_launched("fill_random");
}

/** Three n x n matrices and a cuBLAS handle; released on every way out. */
struct product {
  cublasHandle_t handle = nullptr;
  void *matrix[3] = {};
  ~product() {
    if (handle) cublasDestroy(handle);
    for (void *m : matrix) dkv_gpu_release(m);
  }
};

/** Best time of `repeats` products, in milliseconds. */
dkv_status time_product(const product &product, int32_t n, cudaDataType_t type, int32_t repeats, double *best) {
  stopwatch watch;
  DKV_TRY(watch.open());
  const float one = 1.0f, zero = 0.0f;
  *best = 0;
  for (int32_t r = -2; r < repeats; ++r) { /* two unmeasured: the first loads the library's kernel */
    float elapsed = 0;
    DKV_CUDA(cudaEventRecord(watch.start));
    cublasStatus_t status = cublasGemmEx(product.handle, CUBLAS_OP_T, CUBLAS_OP_N, n, n, n, &one, product.matrix[0],
                                         type, n, product.matrix[1], type, n, &zero, product.matrix[2], type, n,
                                         CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    DKV_REQUIRE(status == CUBLAS_STATUS_SUCCESS, DKV_ERR_CUDA, "gpu: cublasGemmEx failed with %d (%s)", (int)status,
                cublasGetStatusString(status));
    DKV_CUDA(cudaEventRecord(watch.stop));
    DKV_CUDA(cudaEventSynchronize(watch.stop));
    DKV_CUDA(cudaEventElapsedTime(&elapsed, watch.start, watch.stop));
    if (r >= 0 && (*best == 0 || elapsed < *best)) *best = elapsed;
  }
  return DKV_OK;
}

dkv_status matmul_rate(int32_t n, dkv_dtype dtype, int32_t threads, int32_t repeats, double *flops) {
  (void)threads;
  DKV_REQUIRE(flops, DKV_ERR_NULL, "gpu matmul_rate: flops is NULL");
  DKV_REQUIRE(n > 0 && repeats > 0, DKV_ERR_RANGE, "gpu matmul_rate: n=%d, repeats=%d; both must be > 0", n, repeats);
  DKV_REQUIRE(dtype == DKV_F32 || dtype == DKV_BF16 || dtype == DKV_F16, DKV_ERR_UNSUPPORTED,
              "gpu matmul_rate: %s; it takes f32, bf16 and f16", dkv_dtype_name(dtype));
  product product;
  int64_t count = (int64_t)n * n;
  for (int m = 0; m < 3; ++m) {
    DKV_TRY(dkv_gpu_allocate(&product.matrix[m], (size_t)count * dkv_dtype_size(dtype)));
    if (dtype == DKV_F32) DKV_TRY(random_matrix<float>(product.matrix[m], count, (uint64_t)m));
    if (dtype == DKV_BF16) DKV_TRY(random_matrix<__nv_bfloat16>(product.matrix[m], count, (uint64_t)m));
    if (dtype == DKV_F16) DKV_TRY(random_matrix<__half>(product.matrix[m], count, (uint64_t)m));
  }
  cublasStatus_t status = cublasCreate(&product.handle);
  DKV_REQUIRE(status == CUBLAS_STATUS_SUCCESS, DKV_ERR_CUDA, "gpu: cublasCreate failed with %d (%s)", (int)status,
              cublasGetStatusString(status));
  cudaDataType_t type = dtype == DKV_F32 ? CUDA_R_32F : dtype == DKV_BF16 ? CUDA_R_16BF : CUDA_R_16F;
  double milliseconds = 0;
  DKV_TRY(time_product(product, n, type, repeats, &milliseconds));
  *flops = 2.0 * n * n * (double)n / (milliseconds * 1e-3);
  return DKV_OK;
}

const dkv_backend table = {
    "gpu",
    (int32_t)(sizeof kernels / sizeof kernels[0]),
    kernels,
    describe,
    dkv_gpu_allocate,
    dkv_gpu_release,
    upload,
    download,
    fill,
    dkv_gpu_guards_check,
    time_kernel,
    matmul_rate,
};

} // namespace

/**
 * The table, once a usable device is found.
 * @param[out] out overwritten with a static table; NULL on failure
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_NO_DEVICE; DKV_ERR_CUDA
 */
extern "C" dkv_status dkv_gpu_backend(const dkv_backend **out) {
  DKV_REQUIRE(out, DKV_ERR_NULL, "dkv_gpu_backend: out is NULL");
  *out = nullptr;
  DKV_TRY(dkv_gpu_available());
  *out = &table;
  return DKV_OK;
}
