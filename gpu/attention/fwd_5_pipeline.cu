/**
 * @file fwd_5_pipeline.cu
 * @brief Forward rung 5: asynchronous copies.
 *
 * Previous   fwd_4_mma.cu: copy, wait, multiply, in turn.
 * Idea       cp.async writes shared memory while the warps compute: the values of a step arrive during its scores, the
 *            keys of the next step during the softmax and the second product.  Nothing else changes.
 *
 *                tensor cores    | Q K^T (j) |  softmax, P V (j)  | Q K^T (j+1) | ...
 *                copies          |   V (j)   |      K (j+1)       |   V (j+1)   | ...
 *
 * Predict    310 to 350 TFLOP/s, what the best kernels of this instruction class reach.
 * Measured   346 TFLOP/s at N = 28, P = 16384, R = 2048, H = 32/8, D = 128, bf16 (H200, 2026-11-30)
 *            No gain over rung 4 in the same run: there a second block's products hide the copies already.
 * Remains    each warp's softmax: its tensor-core instructions wait for it (rung 7, with another instruction class,
 *            hides it).
 *
 * Roles: block = 4 warps, 128 rows of one head; 2 blocks a multiprocessor.
 * Shared memory, 16-bit, swizzled (mma.cuh): q [128][D] | k [64][D] | v [64][D]      D = 128: 64 KiB
 * Barriers: 2 a step: keys there, and the old values read; values there, and the keys read.
 *
 * Read before: fwd_4_mma.cu, async.cuh.  Read next: fwd_6_hopper_plain.cu.
 */
#include "gpu/attention/fwd_mma.cuh"
#include "gpu/runtime/async.cuh"
#include "gpu/runtime/launch.h"

namespace {

using namespace dkv;

constexpr dkv_gpu_tiling tiling = {Br, Bc, 0, 0};
template <int D> constexpr size_t shared_bytes = sizeof(uint16_t) * (Br + 2 * Bc) * D;

template <class T, int D>
__global__ void __launch_bounds__(fwd_threads, 2)
    fwd_pipeline(fwd_tensors<T> x, dkv_gpu_shape shape, dkv_gpu_plan plan) {
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char *q_tile = shared;
  uint32_t q_address = shared_address(q_tile), k_address = q_address + sizeof(T) * Br * D;
  constexpr int kv_bytes = sizeof(T) * Bc * D;
  int tile = plan.query_order[blockIdx.x], h = (int)blockIdx.y;
  int row = (int)(threadIdx.x / 32) * 32; /* of this warp in the tile */
  uint32_t q_lane = lane_low<D>(q_address, row), k_lane = lane_high<D>(k_address, 0),
           v_lane = lane_low<D>(k_address + kv_bytes, 0);

  fwd_state<D> state;
  fwd_walk walk(plan, tile);
  tile_copy<Br, D, fwd_threads>(q_address, h * D, shape.q_stride).start(0, x.q, shape.q_stride, tile * Br, shape.rows);
  tile_copy<Bc, D, fwd_threads> copy(k_address, h / shape.group * D, shape.kv_stride);
  copy.start(0, x.k, shape.kv_stride, walk.j, walk.stop);
  copy_commit();
  if (shape.scale <= 0) {
    copy_wait<0>();
    __syncthreads();
    turn_sign<D>(q_tile, shape.scale);
  }
  while (!walk.done()) {
    float s[2][Bc / 8][4];
    fwd_bits sees = {0xffffffffu, 0xffffffffu};
    if (walk.masked()) fwd_sees(sees, plan.end, tile * Br + row, walk.j, walk.stop);
    copy_wait<0>();
    __syncthreads(); /* keys are there; the values of the previous step were read */
    copy.start(kv_bytes, x.v, shape.kv_stride, walk.j, walk.stop);
    copy_commit();
    walk.next();
    fwd_scores<T, D>(s, q_lane, k_lane);
    copy_wait<0>();
    __syncthreads(); /* values are there; the keys were read */
    if (!walk.done()) copy.start(0, x.k, shape.kv_stride, walk.j, walk.stop);
    copy_commit();
    fwd_mask(s, sees);
    fwd_softmax(state, s, x.c);
    fwd_values<T>(state, s, v_lane);
  }
  fwd_finish<T, D>(state, x, shape, q_tile, row, tile * Br, h);
}

} // namespace

extern "C" dkv_status dkv_gpu_fwd_pipeline_workspace(const dkv_attention *p, size_t *bytes) {
  return dkv_gpu_workspace(bytes, p, 0, tiling);
}

extern "C" dkv_status dkv_gpu_fwd_pipeline_prepare(const dkv_attention *p) { return dkv_gpu_prepare(p, 0, tiling); }

extern "C" dkv_status dkv_gpu_fwd_pipeline_run(const dkv_attention *p) {
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
      DKV_TRY(dkv_gpu_shared(fwd_pipeline<T, D>, shared_bytes<D>));
      fwd_pipeline<T, D>
          <<<grid, fwd_threads, shared_bytes<D>, (cudaStream_t)p->stream>>>(fwd_tensors_of<T>(p, shape), shape, plan);
      return dkv_gpu_launched("fwd_pipeline");
    });
  });
}
