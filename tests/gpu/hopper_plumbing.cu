/**
 * @file hopper_plumbing.cu
 * @brief Small tests, on the card, of what both Hopper kernels stand on: boxes and their swizzle, every product form,
 * the fragments' ways into shared memory, and adding to global memory.
 *
 * Every test counts elements that differ from plain arithmetic; all must be zero. Exit code 0: all passed.
 *
 * Read before: gpu/hopper/wgmma.cuh.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <vector>

#include "gpu/hopper/fragment.cuh"
#include "gpu/hopper/mbarrier.cuh"
#include "gpu/hopper/reduce.cuh"
#include "gpu/hopper/tma.cuh"
#include "gpu/hopper/wgmma.cuh"

#define CHECK(x)                                                                                                       \
  do {                                                                                                                 \
    cudaError_t e_ = (x);                                                                                              \
    if (e_ != cudaSuccess) printf("CUDA: %s: %s\n", #x, cudaGetErrorString(e_)), exit(3);                              \
  } while (0)

__device__ int wrong;

/** Small integers, exact in every type, different for neighbours. */
__host__ __device__ static float value(int row, int column) {
  return (float)((row * 7 + column * 3 + row * column) % 13 - 6);
}

__device__ static void expect(bool ok) {
  if (!ok) atomicAdd(&wrong, 1);
}

/** Dynamic shared memory, from the first 1024-byte boundary. */
__device__ static char *aligned(char *raw) { return raw + ((1024 - (dkv_shared_address(raw) & 1023)) & 1023); }

/** Element (row, column) of a tile stored as panels of `rows` rows. */
template <typename T> __device__ static T *element(char *tile, int rows, int row, int column) {
  return reinterpret_cast<T *>(tile + column / DKV_PANEL * rows * DKV_PANEL_ROW_BYTES +
                               dkv_panel_offset(row, column % 64));
}

/** Fills a tile [rows][columns] with value(row + shift, column). */
template <typename T> __device__ static void fill(char *tile, int rows, int columns, int shift) {
  for (int i = threadIdx.x; i < rows * columns; i += blockDim.x)
    *element<T>(tile, rows, i / columns, i % columns) = T(value(i / columns + shift, i % columns));
}

/** A box of 80 rows of head 1 that hangs over the end of a [100][3][128] tensor: swizzled rows, zeros past the end. */
__global__ void test_box(const __grid_constant__ CUtensorMap map) {
  extern __shared__ char raw[];
  __shared__ uint64_t barrier;
  char *tile = aligned(raw);
  if (threadIdx.x == 0) {
    dkv_mbarrier_init(dkv_shared_address(&barrier), 1);
    dkv_mbarrier_init_fence();
    dkv_mbarrier_arrive_expect(dkv_shared_address(&barrier), 80 * 256);
    dkv_tma_load(dkv_shared_address(tile), &map, 60, 1, dkv_shared_address(&barrier));
  }
  __syncthreads();
  dkv_mbarrier_wait(dkv_shared_address(&barrier), 0);
  for (int i = threadIdx.x; i < 80 * 128; i += blockDim.x) {
    const int row = 60 + i / 128, column = i % 128;
    expect(float(*element<__half>(tile, 80, i / 128, column)) == (row < 100 ? value(row * 3 + 1, column) : 0.0f));
  }
}

/** D = A B with both operands in shared memory; K-major operands hold [M or N][k], MN-major ones [k][M or N]. */
template <typename T, int n, int major_a, int major_b> __global__ void test_ss() {
  extern __shared__ char raw[];
  char *a = aligned(raw), *b = a + 128 * 256;
  const int rows_a = major_a ? 128 : 64, rows_b = major_b ? 128 : n, t = threadIdx.x;
  fill<T>(a, rows_a, major_a ? 64 : 128, 1);
  fill<T>(b, rows_b, major_b ? n : 128, 5);
  dkv_fence_async_proxy();
  __syncthreads();
  float d[n / 2];
  const uint64_t from_a = dkv_descriptor(dkv_shared_address(a), rows_a * 128);
  const uint64_t from_b = dkv_descriptor(dkv_shared_address(b), rows_b * 128);
  dkv_wgmma_fence();
#pragma unroll
  for (int k = 0; k < 8; k++) {
    const uint32_t at_a = major_a ? k * 2048 : k / 4 * rows_a * 128 + k % 4 * 32;
    const uint32_t at_b = major_b ? k * 2048 : k / 4 * rows_b * 128 + k % 4 * 32;
    dkv_wgmma_ss<T, n, major_a, major_b>(d, from_a + dkv_descriptor_step(at_a), from_b + dkv_descriptor_step(at_b),
                                         k > 0);
  }
  dkv_wgmma_commit();
  dkv_wgmma_wait<0>();
  dkv_pin(d);
#pragma unroll
  for (int i = 0; i < n / 2; i++) {
    const int row = dkv_accumulator_row(t, i), column = dkv_accumulator_column(t, i);
    float sum = 0;
    for (int k = 0; k < 128; k++)
      sum +=
          (major_a ? value(k + 1, row) : value(row + 1, k)) * (major_b ? value(k + 5, column) : value(column + 5, k));
    expect(d[i] == sum);
  }
}

/** D = A B with A from accumulators rounded to 16 bits: the way P and dS go; then the fragments by both stmatrix forms.
 */
template <typename T, int n> __global__ void test_rs() {
  extern __shared__ char raw[];
  char *b = aligned(raw), *plain = b + 64 * 256, *transposed = plain + 64 * 128;
  const int t = threadIdx.x;
  float a[32], d[n / 2];
  uint32_t fragment[16];
  for (int i = 0; i < 32; i++) a[i] = value(dkv_accumulator_row(t, i) + 3, dkv_accumulator_column(t, i));
  fill<T>(b, 64, n, 5);
  dkv_fragment_a<T, 32>(fragment, a);
#pragma unroll
  for (int k = 0; k < 4; k++) {
    dkv_stmatrix(dkv_stmatrix_address(dkv_shared_address(plain), 0, t, k), fragment + 4 * k);
    dkv_stmatrix_transposed(dkv_stmatrix_transposed_address(dkv_shared_address(transposed), t, k), fragment + 4 * k);
  }
  dkv_fence_async_proxy();
  __syncthreads();
  const uint64_t from_b = dkv_descriptor(dkv_shared_address(b), 64 * 128);
  dkv_pin(fragment);
  dkv_wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; k++)
    dkv_wgmma_rs<T, n, DKV_MN_MAJOR>(d, fragment + 4 * k, from_b + dkv_descriptor_step(k * 2048), k > 0);
  dkv_wgmma_commit();
  dkv_wgmma_wait<0>();
  dkv_pin(d);
#pragma unroll
  for (int i = 0; i < n / 2; i++) {
    const int row = dkv_accumulator_row(t, i), column = dkv_accumulator_column(t, i);
    float sum = 0;
    for (int k = 0; k < 64; k++) sum += value(row + 3, k) * value(k + 5, column);
    expect(d[i] == sum);
  }
  for (int i = t; i < 64 * 64; i += 128) {
    expect(float(*element<T>(plain, 64, i / 64, i % 64)) == value(i / 64 + 3, i % 64));
    expect(float(*element<T>(transposed, 64, i / 64, i % 64)) == value(i % 64 + 3, i / 64));
  }
}

/** 16 blocks add the same 512 numbers, in bulk and from registers. */
__global__ void test_reduce(float *sum) {
  __shared__ __align__(128) float mine[512];
  const int t = threadIdx.x;
  for (int i = t; i < 512; i += 128) mine[i] = value(i, 2);
  dkv_fence_async_proxy();
  __syncthreads();
  dkv_reduce_add4(sum + 4 * t, mine[4 * t], mine[4 * t + 1], mine[4 * t + 2], mine[4 * t + 3]);
  if (t == 0) {
    dkv_bulk_reduce_add(sum, dkv_shared_address(mine), sizeof mine);
    dkv_bulk_wait_done();
  }
}

/** Turns: block b multiplies by 3 and adds b, in the order of b, whatever order the blocks start in. */
__global__ void test_turns(int32_t *turn, double *x) {
  if (threadIdx.x != 0) return;
  const int mine = gridDim.x - 1 - blockIdx.x;
  dkv_turn_wait(turn, mine);
  *(volatile double *)x = fmod(*(volatile double *)x * 3 + mine, 65521.0);
  dkv_turn_end(turn, mine);
}

static int finish(const char *what) {
  int count = -1;
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaMemcpyFromSymbol(&count, wrong, sizeof count));
  const int zero = 0;
  CHECK(cudaMemcpyToSymbol(wrong, &zero, sizeof zero));
  printf("%-44s %s\n", what, count == 0 ? "ok" : "WRONG");
  return count != 0;
}

static int boxes(void) {
  std::vector<__half> host(100 * 3 * 128);
  for (int row = 0; row < 300; row++)
    for (int column = 0; column < 128; column++) host[row * 128 + column] = __half(value(row, column));
  __half *tensor;
  CUtensorMap map;
  CHECK(cudaMalloc(&tensor, host.size() * 2));
  CHECK(cudaMemcpy(tensor, host.data(), host.size() * 2, cudaMemcpyHostToDevice));
  if (dkv_tma_map(&map, tensor, DKV_F16, 100, 3, 128, 80) != DKV_OK) return printf("box: %s\n", dkv_last_error()), 1;
  test_box<<<1, 128, 22 * 1024>>>(map);
  const int bad = finish("a box past the last row, swizzled");
  CHECK(cudaFree(tensor));
  return bad;
}

static int sums(void) {
  float *sum, host[512];
  int bad = 0;
  CHECK(cudaMalloc(&sum, 4096));
  CHECK(cudaMemset(sum, 0, 4096));
  test_reduce<<<16, 128>>>(sum);
  CHECK(cudaMemcpy(host, sum, sizeof host, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 512; i++) bad += host[i] != 32 * value(i, 2);
  printf("%-44s %s\n", "adding in bulk and from registers", bad == 0 ? "ok" : "WRONG");
  double x = 0, expected = 1;
  CHECK(cudaMemset(sum, 0, 4096));
  CHECK(cudaMemcpy(sum, &expected, 8, cudaMemcpyHostToDevice));
  test_turns<<<64, 32>>>(reinterpret_cast<int32_t *>(sum) + 256, reinterpret_cast<double *>(sum));
  CHECK(cudaMemcpy(&x, sum, 8, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 64; i++) expected = fmod(expected * 3 + i, 65521.0);
  printf("%-44s %s\n", "turns", x == expected ? "ok" : "WRONG");
  CHECK(cudaFree(sum));
  return bad + (x != expected);
}

template <typename T> static int products(const char *type) {
  const int bytes = 72 * 1024;
  int bad = 0;
  char what[80];
#define DKV_TEST(name, ...)                                                                                            \
  CHECK(cudaFuncSetAttribute(__VA_ARGS__, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));                        \
  __VA_ARGS__<<<1, 128, bytes>>>();                                                                                    \
  snprintf(what, sizeof what, "%s %s", type, name);                                                                    \
  bad += finish(what)
  DKV_TEST("shared x shared, N 64", test_ss<T, 64, 0, 0>);
  DKV_TEST("shared x shared, N 80", test_ss<T, 80, 0, 0>);
  DKV_TEST("shared x shared, N 128", test_ss<T, 128, 0, 0>);
  DKV_TEST("shared (transposed) x shared, N 64", test_ss<T, 64, 1, 0>);
  DKV_TEST("shared (transposed) x shared, N 80", test_ss<T, 80, 1, 0>);
  DKV_TEST("shared x shared (transposed), N 128", test_ss<T, 128, 0, 1>);
  DKV_TEST("registers x shared (transposed), N 64", test_rs<T, 64>);
  DKV_TEST("registers x shared (transposed), N 128", test_rs<T, 128>);
#undef DKV_TEST
  return bad;
}

int main(void) {
  int bad = boxes() + products<__nv_bfloat16>("bf16") + products<__half>("f16") + sums();
  printf(bad == 0 ? "all ok\n" : "WRONG\n");
  return bad != 0;
}
