/**
 * @file fwd_3_shared.cu
 * @brief Forward rung 3: tiles in shared memory.
 *
 * Previous   fwd_2_warp.cu: each row fetches each key itself.
 * Idea       64 rows walk over their keys together, 32 at a time: a key is fetched once for 64 rows, and each value
 *            read from shared memory serves a whole row of results in registers.  The scores exist only as a 64 x 32
 *            tile.
 * Predict    10 to 20 TFLOP/s: the fp32 units (about 60) now wait for shared memory only.
 * Measured   23.9 TFLOP/s at N = 8, P = 2048, R = 512, H = 8/2, D = 128, bf16 (H200, 2026-11-30)
 *            5 times rung 2.
 * Remains    the fp32 units: the tensor cores do 16 times as many multiplications in a cycle.
 *
 * Keys come from the plan: full steps without mask code, masked ones with rule dkv_sees; the prompt is one span, the
 * own response another, and nothing is copied or padded.
 *
 * Roles: block = 256 threads (16 x 16, see product.cuh), one tile of 64 rows of one head.
 * Shared memory, floats, W = 64, 128 or 256 >= D:
 *     q [64][W+4] | k [32][W+4] | v [32][W+4] | p [64][36]            D = 128: 75 KiB
 * Barriers: 3 a step: tiles loaded; p written; both read (before the next load).
 *
 * Read before: fwd_2_warp.cu, product.cuh, plan.h.  Read next: fwd_4_mma.cu.
 */
#include "common/mask.h"
#include "gpu/attention/shape.h"
#include "gpu/runtime/launch.h"
#include "gpu/runtime/product.cuh"
#include "gpu/runtime/warp.cuh"

namespace {

constexpr int Br = 64, Bc = 32, rows = Br / 16, columns = Bc / 16;
constexpr dkv_gpu_tiling tiling = {Br, Bc, 0, 0};

template <int Width>
constexpr size_t shared_bytes = sizeof(float) * ((Br + 2 * Bc) * dkv::tile_pitch<Width> + Br * dkv::weight_pitch<Bc>);

/** The running softmax of a thread's rows; the 16 threads of a row hold equal m and l. */
template <int Width> struct state { float m[rows], l[rows], o[rows][Width / 16]; };

/** Follows the maximum: scores become weights, sums shrink. */
template <int Width> __device__ __forceinline__ void softmax_step(state<Width> &state, float (&s)[rows][columns]) {
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    float largest = state.m[r];
#pragma unroll
    for (int n = 0; n < columns; ++n) largest = fmaxf(largest, s[r][n]);
    largest = dkv::warp_max<16>(largest);
    float base =
        largest == -INFINITY ? 0.0f : largest; /* no key seen yet: exp(-inf - 0) = 0, where -inf - -inf is NaN */
    float shrink = expf(state.m[r] - base), sum = 0;
#pragma unroll
    for (int n = 0; n < columns; ++n) {
      s[r][n] = expf(s[r][n] - base);
      sum += s[r][n];
    }
    state.m[r] = largest;
    state.l[r] = state.l[r] * shrink + dkv::warp_sum<16>(sum);
#pragma unroll
    for (int e = 0; e < Width / 16; ++e) state.o[r][e] *= shrink;
  }
}

/** Sets the scores of keys that a row does not see to -infinity: selected, never multiplied. */
__device__ __forceinline__ void mask_step(float (&s)[rows][columns], const int *end, int i0, int j0, int j_end) {
#pragma unroll
  for (int n = 0; n < columns; ++n) {
    int j = j0 + dkv::square_x() + 16 * n, end_j = j < j_end ? end[j] : 0;
#pragma unroll
    for (int r = 0; r < rows; ++r)
      if (!dkv_sees(i0 + dkv::square_y() * rows + r, j, end_j)) s[r][n] = -INFINITY;
  }
}

template <class T, int Width>
__global__ void __launch_bounds__(dkv::product_threads)
    fwd_shared(const T *q, const T *k, const T *v, T *o, float *lse, dkv_gpu_shape shape, dkv_gpu_plan plan) {
  extern __shared__ float shared[];
  float *q_tile = shared, *k_tile = q_tile + Br * dkv::tile_pitch<Width>,
        *v_tile = k_tile + Bc * dkv::tile_pitch<Width>;
  float *p_tile = v_tile + Bc * dkv::tile_pitch<Width>;
  int tile = plan.query_order[blockIdx.x], i0 = tile * Br, h = (int)blockIdx.y, dim = shape.dim;
  int64_t q_head = (int64_t)h * dim, kv_head = (int64_t)(h / shape.group) * dim;
  dkv::load_tile<Br, Width, dkv::product_threads>(q_tile, q + q_head, shape.q_stride, i0, shape.rows, dim);

  state<Width> state;
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    state.m[r] = -INFINITY;
    state.l[r] = 0;
#pragma unroll
    for (int e = 0; e < Width / 16; ++e) state.o[r][e] = 0;
  }
  for (int n = plan.span_first[tile]; n < plan.span_first[tile + 1]; ++n) {
    dkv_gpu_span span = plan.spans[n];
    for (int j0 = span.begin; j0 < span.end; j0 += Bc) {
      dkv::load_tile<Bc, Width, dkv::product_threads>(k_tile, k + kv_head, shape.kv_stride, j0, span.end, dim);
      dkv::load_tile<Bc, Width, dkv::product_threads>(v_tile, v + kv_head, shape.kv_stride, j0, span.end, dim);
      __syncthreads(); /* k, v (and at first q) are there */
      float s[rows][columns];
      dkv::products<rows, columns, Width>(s, q_tile, k_tile, dim);
#pragma unroll
      for (int r = 0; r < rows; ++r)
#pragma unroll
        for (int c = 0; c < columns; ++c) s[r][c] = __fmul_rn(shape.scale, s[r][c]); /* rounded, see fwd_1 */
      if (j0 >= span.full_end) mask_step(s, plan.end, i0, j0, span.end);
      softmax_step<Width>(state, s);
      dkv::store_weights(p_tile, s);
      __syncthreads(); /* p is there */
      dkv::accumulate<rows, Bc, Width>(state.o, p_tile, v_tile);
      __syncthreads(); /* k, v and p may be overwritten */
    }
  }
  float factor[rows];
#pragma unroll
  for (int r = 0; r < rows; ++r) factor[r] = 1.0f / state.l[r];
  dkv::store_rows<rows, Width>(o + q_head, shape.q_stride, i0, shape.rows, dim, state.o, factor);
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    int i = i0 + dkv::square_y() * rows + r;
    if (dkv::square_x() == 0 && i < shape.rows) lse[(int64_t)h * shape.rows + i] = state.m[r] + logf(state.l[r]);
  }
}

} // namespace

extern "C" dkv_status dkv_gpu_fwd_shared_workspace(const dkv_attention *p, size_t *bytes) {
  return dkv_gpu_workspace(bytes, p, 0, tiling);
}

extern "C" dkv_status dkv_gpu_fwd_shared_prepare(const dkv_attention *p) { return dkv_gpu_prepare(p, 0, tiling); }

extern "C" dkv_status dkv_gpu_fwd_shared_run(const dkv_attention *p) {
  DKV_TRY(dkv_gpu_check(p, DKV_FORWARD, 0, tiling));
  if (p->layout->rows == 0) return DKV_OK;
  dkv_gpu_shape shape = dkv_gpu_shape_of(p);
  dkv_gpu_plan plan = dkv_gpu_plan_of(p, 0, tiling);
  dim3 grid;
  DKV_TRY(dkv_gpu_grid(&grid, plan.query_tiles, shape.heads, 1));
  return dkv_gpu_by_dtype(p->dtype, [&](auto type) {
    return dkv_gpu_by_width(shape.dim, [&](auto width) {
      using T = decltype(type);
      constexpr int W = decltype(width)::value;
      DKV_TRY(dkv_gpu_shared(fwd_shared<T, W>, shared_bytes<W>));
      fwd_shared<T, W><<<grid, dkv::product_threads, shared_bytes<W>, (cudaStream_t)p->stream>>>(
          (const T *)p->q, (const T *)p->k, (const T *)p->v, (T *)p->o, (float *)p->lse, shape, plan);
      return dkv_gpu_launched("fwd_shared");
    });
  });
}
