/**
 * @file tma.cuh
 * @brief The copy engine: one instruction moves a tile of one head between a [T][heads][D] tensor and shared memory.
 *
 * A map describes a tensor as four dimensions, so that one box is a tile in the form that wgmma reads: D/64 panels of
 * `rows` x 64 elements (128 bytes), the 16-byte chunks of a row XORed with the row number modulo 8 (128-byte swizzle):
 *
 *     dim 0  element in a panel   64       dense          box 64
 *     dim 1  row                  T        heads * D * 2  box rows
 *     dim 2  head                 heads    D * 2          box 1
 *     dim 3  panel                D / 64   128            box D / 64
 *
 * Rows at or past T read as zero and are not written; segments need no maps of their own.  The encoder comes from the
 * driver at run time (no link against libcuda).
 *
 * Read before: mbarrier.cuh.  Read next: wgmma.cuh, work.cuh.
 */
#ifndef DKV_GPU_HOPPER_TMA_CUH
#define DKV_GPU_HOPPER_TMA_CUH

#include <cuda.h> /* types only */
#include <cuda_runtime_api.h>

#include "common/dtype.h"
#include "gpu/hopper/fragment.cuh"

/** The driver's encoder, looked up once; NULL when the driver has none. */
static inline decltype(&cuTensorMapEncodeTiled) dkv_tma_encoder(void) {
  static void *const found = [] {
    void *entry = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &result);
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? entry : nullptr;
  }();
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
}

/**
 * Describes a tensor for the copy engine.
 * @param[out] map    overwritten; pass it to the kernel by value as a const __grid_constant__ parameter
 * @param[in]  tensor [rows][heads][dim] device memory, 16-byte aligned
 * @param[in]  dtype  DKV_BF16 or DKV_F16
 * @param[in]  rows   T >= 1
 * @param[in]  heads  heads of this tensor
 * @param[in]  dim    D, a multiple of 64
 * @param[in]  box    rows of a tile, 1 to 256
 * @return DKV_OK; DKV_ERR_CUDA when the driver has no encoder or refuses the shape
 */
static inline dkv_status dkv_tma_map(CUtensorMap *map, const void *tensor, dkv_dtype dtype, int64_t rows, int64_t heads,
                                     int64_t dim, uint32_t box) {
  const auto encode = dkv_tma_encoder();
  DKV_REQUIRE(encode != nullptr, DKV_ERR_CUDA,
              "the driver has no cuTensorMapEncodeTiled: it must serve CUDA 12.0 or later");
  const cuuint64_t size[4] = {DKV_PANEL, (cuuint64_t)rows, (cuuint64_t)heads, (cuuint64_t)(dim / DKV_PANEL)};
  const cuuint64_t stride[3] = {(cuuint64_t)(heads * dim * 2), (cuuint64_t)(dim * 2), DKV_PANEL_ROW_BYTES};
  const cuuint32_t tile[4] = {DKV_PANEL, box, 1, (cuuint32_t)(dim / DKV_PANEL)};
  const cuuint32_t step[4] = {1, 1, 1, 1};
  const CUresult result =
      encode(map, dtype == DKV_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
             const_cast<void *>(tensor), size, stride, tile, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  DKV_REQUIRE(result == CUDA_SUCCESS, DKV_ERR_CUDA,
              "the driver refuses a tensor map of %lld rows, %lld heads, head size %lld at %p (error %d)",
              (long long)rows, (long long)heads, (long long)dim, tensor, (int)result);
  return DKV_OK;
}

/**
 * Describes vectors of 4-byte numbers, one after another, to the copy engine.
 * @param[out] map    overwritten
 * @param[in]  vector [count][length] device memory, 16-byte aligned
 * @param[in]  length of each, a multiple of 4
 * @param[in]  count  number of vectors
 * @param[in]  box    elements of a load, a multiple of 4, 4 to 256
 * @return DKV_OK; DKV_ERR_CUDA as above
 */
static inline dkv_status dkv_tma_map_vectors(CUtensorMap *map, const void *vector, int64_t length, int64_t count,
                                             uint32_t box) {
  const auto encode = dkv_tma_encoder();
  DKV_REQUIRE(encode != nullptr, DKV_ERR_CUDA,
              "the driver has no cuTensorMapEncodeTiled: it must serve CUDA 12.0 or later");
  const cuuint64_t size[2] = {(cuuint64_t)length, (cuuint64_t)count}, stride[1] = {(cuuint64_t)length * 4};
  const cuuint32_t tile[2] = {box, 1}, step[2] = {1, 1};
  const CUresult result = encode(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, const_cast<void *>(vector), size, stride,
                                 tile, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  DKV_REQUIRE(result == CUDA_SUCCESS, DKV_ERR_CUDA,
              "the driver refuses a map of %lld vectors of %lld numbers (error %d)", (long long)count,
              (long long)length, (int)result);
  return DKV_OK;
}

/** Fetches the map into the copy engine's cache. One thread calls it, once. */
__device__ __forceinline__ void dkv_tma_prefetch(const CUtensorMap *map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/** Loads the box at (row, head) to `shared` (1024-byte aligned); `barrier` counts its bytes, clipped rows included. */
__device__ __forceinline__ void dkv_tma_load(uint32_t shared, const CUtensorMap *map, int32_t row, int32_t head,
                                             uint32_t barrier) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%3, %4, %5, %3}], [%2];" ::"r"(shared),
               "l"(map), "r"(barrier), "r"(0), "r"(row), "r"(head)
               : "memory");
}

/**
 * Loads a box of 4-byte numbers starting at element `at` of vector number `which` to `shared` (128-byte aligned).
 * Unlike a plain bulk load, racecheck follows it through the mbarrier, when ordinary loads read what it brought.
 */
__device__ __forceinline__ void dkv_tma_load_vector(uint32_t shared, const CUtensorMap *map, int32_t at, int32_t which,
                                                    uint32_t barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%3, %4}], [%2];" ::"r"(shared),
               "l"(map), "r"(barrier), "r"(at), "r"(which)
               : "memory");
}

/** Stores the box from `shared` to (row, head) and closes the bulk group. Writers called dkv_fence_async, then a
 * barrier. */
__device__ __forceinline__ void dkv_tma_store(const CUtensorMap *map, int32_t row, int32_t head, uint32_t shared) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %2}], [%1];\n"
               "cp.async.bulk.commit_group;" ::"l"(map),
               "r"(shared), "r"(0), "r"(row), "r"(head)
               : "memory");
}

/** Waits until this thread's bulk stores have read their shared memory, which may then be reused. */
__device__ __forceinline__ void dkv_bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

#endif
