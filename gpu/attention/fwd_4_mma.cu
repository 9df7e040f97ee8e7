/**
 * @file fwd_4_mma.cu
 * @brief Forward rung 4: tensor cores.
 *
 * Previous   fwd_3_shared.cu: fp32 units, operands from shared memory, scores through shared memory.
 * Idea       both products by mma.sync on 16-bit operands with fp32 sums; ldmatrix feeds it from swizzled tiles, and
 *            the weights pass from the first product to the second in registers.
 * Predict    200 to 260 TFLOP/s: a block's tensor-core work waits while its tiles are copied; only the other block goes
 *            on.
 * Measured   380 TFLOP/s at N = 28, P = 16384, R = 2048, H = 32/8, D = 128, bf16 (H200, 2026-11-30)
 *            More than predicted: two blocks a multiprocessor already hide most of the copies.
 * Remains    the copies' latency, in every step.
 *
 * Roles: block = 4 warps, 128 rows of one head; 2 blocks a multiprocessor, so that one computes while the other copies.
 * Shared memory, 16-bit, swizzled (mma.cuh): q [128][D] | k [64][D] | v [64][D]      D = 128: 64 KiB
 * Barriers: 2 a step: old keys and values read; new ones there.
 *
 * Read before: fwd_3_shared.cu, fwd_mma.cuh.  Read next: fwd_5_pipeline.cu.
 */
#include "gpu/attention/fwd_mma.cuh"
#include "gpu/runtime/async.cuh"
#include "gpu/runtime/launch.h"

namespace {

using namespace dkv;

constexpr dkv_gpu_tiling tiling = {Br, Bc, 0, 0};
template <int D> constexpr size_t shared_bytes = sizeof(uint16_t) * (Br + 2 * Bc) * D;

template <class T, int D>
__global__ void __launch_bounds__(fwd_threads, 2) fwd_mma(fwd_tensors<T> x, dkv_gpu_shape shape, dkv_gpu_plan plan) {
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char *q_tile = shared;
  uint32_t q_address = shared_address(q_tile), k_address = q_address + sizeof(T) * Br * D;
  constexpr int kv_bytes = sizeof(T) * Bc * D;
  int tile = plan.query_order[blockIdx.x], h = (int)blockIdx.y;
  int row = (int)(threadIdx.x / 32) * 32; /* of this warp in the tile */
  uint32_t q_lane = lane_low<D>(q_address, row), k_lane = lane_high<D>(k_address, 0);
  uint32_t v_lane = lane_low<D>(k_address + kv_bytes, 0);

  fwd_state<D> state;
  fwd_walk walk(plan, tile);
  tile_copy<Bc, D, fwd_threads> copy(k_address, h / shape.group * D, shape.kv_stride);
  tile_copy<Br, D, fwd_threads>(q_address, h * D, shape.q_stride).start(0, x.q, shape.q_stride, tile * Br, shape.rows);
  copy_wait_all();
  __syncthreads();
  if (shape.scale <= 0) turn_sign<D>(q_tile, shape.scale);
  while (!walk.done()) {
    float s[2][Bc / 8][4];
    fwd_bits sees = {0xffffffffu, 0xffffffffu};
    if (walk.masked()) fwd_sees(sees, plan.end, tile * Br + row, walk.j, walk.stop);
    __syncthreads(); /* keys and values of the previous step were read (at first: the sign of q is turned) */
    copy.start(0, x.k, shape.kv_stride, walk.j, walk.stop);
    copy.start(kv_bytes, x.v, shape.kv_stride, walk.j, walk.stop);
    copy_wait_all();
    __syncthreads(); /* keys and values are there */
    walk.next();
    fwd_scores<T, D>(s, q_lane, k_lane);
    fwd_mask(s, sees);
    fwd_softmax(state, s, x.c);
    fwd_values<T>(state, s, v_lane);
  }
  fwd_finish<T, D>(state, x, shape, q_tile, row, tile * Br, h);
}

} // namespace

extern "C" dkv_status dkv_gpu_fwd_mma_workspace(const dkv_attention *p, size_t *bytes) {
  return dkv_gpu_workspace(bytes, p, 0, tiling);
}

extern "C" dkv_status dkv_gpu_fwd_mma_prepare(const dkv_attention *p) { return dkv_gpu_prepare(p, 0, tiling); }

extern "C" dkv_status dkv_gpu_fwd_mma_run(const dkv_attention *p) {
  DKV_TRY(dkv_gpu_check(p, DKV_FORWARD, 0, tiling));
  if (p->layout->rows == 0) return DKV_OK;
  dkv_gpu_shape shape = dkv_gpu_shape_of(p);
  dkv_gpu_plan plan = dkv_gpu_plan_of(p, 0, tiling);
  dim3 grid;
  DKV_TRY(dkv_gpu_grid(&grid, plan.query_tiles, shape.heads, 1));
  return dkv_gpu_by_half(p->dtype, [&](auto type) {
    return dkv_gpu_by_dim(shape.dim, [&](auto dim) {
      using T = decltype(type);
      constexpr int D = decltype(dim)::value;
      DKV_TRY(dkv_gpu_shared(fwd_mma<T, D>, shared_bytes<D>));
      fwd_mma<T, D>
          <<<grid, fwd_threads, shared_bytes<D>, (cudaStream_t)p->stream>>>(fwd_tensors_of<T>(p, shape), shape, plan);
      return dkv_gpu_launched("fwd_mma");
    });
  });
}
