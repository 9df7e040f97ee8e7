/**
 * @file bwd_2_shared.cu
 * @brief Backward rung 2: two tiled kernels, sums in a fixed order.
 *
 * Previous   bwd_1_naive.cu: one thread a row, one thread a column.
 * Idea       both sums by tiles in shared memory: a tile of query rows walks over its keys and keeps dQ in registers; a
 *            tile of keys walks over its queries, for every query head of its key head, and keeps dK and dV.  Each
 *            output has one owner that adds in one order, so the bits repeat; the price is that the weights are
 *            recomputed twice, seven products for the five that one kernel would need.
 * Predict    8 to 15 TFLOP/s of useful work: fwd_3's rate times 5/7.
 * Measured   10.9 TFLOP/s at N = 8, P = 2048, R = 512, H = 8/2, D = 128, bf16 (H200, 2026-11-30)
 * Remains    the fp32 units, and the two products computed twice.
 *
 * Roles: block = 256 threads (16 x 16).  B = 64 rows (32 for D > 128) stay in registers, 32 rows of the other side at a
 *   time.
 * Shared memory, floats: x, y [B][W+4] | a, b [32][W+4] | w, u [B][36]       D = 128: 117 KiB
 *     rows:     x = q, y = do, a = k, b = v, w = ds
 *     columns:  x = k, y = v,  a = q, b = do, w = p^T, u = ds^T
 * Workspace: delta [H][T] | in f32 fine rows [H][T] | plan.
 *
 * Read before: bwd_1_naive.cu, fwd_3_shared.cu.  Read next: bwd_3_mma.cu.
 */
#include "common/mask.h"
#include "gpu/attention/fine.cuh"
#include "gpu/runtime/launch.h"
#include "gpu/runtime/product.cuh"

namespace {

constexpr int step = 32, columns = step / 16;
template <int Width> constexpr int own_rows = Width > 128 ? 32 : 64;
template <int Width> constexpr dkv_gpu_tiling tiling = {own_rows<Width>, step, own_rows<Width>, step};
template <int Width>
constexpr size_t shared_bytes = sizeof(float) * (2 * (own_rows<Width> + step) * dkv::tile_pitch<Width> +
                                                 2 * own_rows<Width> * dkv::weight_pitch<step>);

template <class T> struct tensors {
  const T *q, *k, *v, *dout;
  const float *lse;
  dkv_gpu_row_sums sums;
  T *dq, *dk, *dv;
};

/** The tiles of a block in shared memory, as the header names them. */
template <int Width> struct tiles {
  float *x, *y, *a, *b, *w, *u;
  __device__ explicit tiles(float *shared) {
    x = shared;
    y = x + own_rows<Width> * dkv::tile_pitch<Width>;
    a = y + own_rows<Width> * dkv::tile_pitch<Width>;
    b = a + step * dkv::tile_pitch<Width>;
    w = b + step * dkv::tile_pitch<Width>;
    u = w + own_rows<Width> * dkv::weight_pitch<step>;
  }
};

/**
 * Turns a score and a dp into weight and weight gradient, in place; both exactly 0 where the row does not see the key.
 */
__device__ __forceinline__ void weigh(float &s, float &dp, bool sees, float lse, float delta, float scale) {
  float p = expf(scale * s - lse);
  s = sees ? p : 0.0f;
  dp = sees ? p * (dp - delta) : 0.0f; /* selected: dp of a masked pair may be anything */
}

/**
 * Puts weight and gradient of one pair right when its row has scores of hundreds, which only f32 storage minds.
 * @param[in,out] s, dp of weigh()
 * @param[in]     q, k, dout, v the pair's vectors in shared memory
 * @param[in]     at_row the row in [H][T] arrays
 */
template <class T>
__device__ __forceinline__ void mend(float &s, float &dp, bool sees, float lse, const float *q, const float *k,
                                     const float *dout, const float *v, const tensors<T> &t, int64_t at_row,
                                     const dkv_gpu_shape &shape) {
  if (!sees || !dkv::is_fine<T>(lse)) return;
  dkv::weight w = dkv::fine_weight(q, k, dout, v, shape.dim, shape.scale, t.sums.fine[at_row]);
  s = w.p;
  dp = w.ds;
}

template <int Rows, int Width> __device__ __forceinline__ void clear(float (&acc)[Rows][Width / 16]) {
#pragma unroll
  for (int r = 0; r < Rows; ++r)
#pragma unroll
    for (int e = 0; e < Width / 16; ++e) acc[r][e] = 0;
}

/** dq of one tile of rows of one head. */
template <class T, int Width>
__global__ void __launch_bounds__(dkv::product_threads)
    bwd_shared_rows(tensors<T> t, dkv_gpu_shape shape, dkv_gpu_plan plan) {
  constexpr int own = own_rows<Width>, rows = own / 16, pitch = dkv::tile_pitch<Width>;
  extern __shared__ float shared[];
  tiles<Width> tile(shared);
  int number = plan.query_order[blockIdx.x], i0 = number * own, h = (int)blockIdx.y, dim = shape.dim;
  int64_t q_head = (int64_t)h * dim, kv_head = (int64_t)(h / shape.group) * dim;
  dkv::load_tile<own, Width, dkv::product_threads>(tile.x, t.q + q_head, shape.q_stride, i0, shape.rows, dim);
  dkv::load_tile<own, Width, dkv::product_threads>(tile.y, t.dout + q_head, shape.q_stride, i0, shape.rows, dim);
  float lse[rows], delta[rows], dq[rows][Width / 16], scales[rows];
  clear<rows, Width>(dq);
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    int i = i0 + dkv::square_y() * rows + r;
    lse[r] = i < shape.rows ? t.lse[(int64_t)h * shape.rows + i] : 0.0f;
    delta[r] = i < shape.rows ? t.sums.delta[(int64_t)h * shape.rows + i] : 0.0f;
    scales[r] = shape.scale;
  }
  for (int n = plan.span_first[number]; n < plan.span_first[number + 1]; ++n) {
    dkv_gpu_span span = plan.spans[n];
    for (int j0 = span.begin; j0 < span.end; j0 += step) {
      dkv::load_tile<step, Width, dkv::product_threads>(tile.a, t.k + kv_head, shape.kv_stride, j0, span.end, dim);
      dkv::load_tile<step, Width, dkv::product_threads>(tile.b, t.v + kv_head, shape.kv_stride, j0, span.end, dim);
      __syncthreads();
      float s[rows][columns], dp[rows][columns];
      dkv::products<rows, columns, Width>(s, tile.x, tile.a, dim);
      dkv::products<rows, columns, Width>(dp, tile.y, tile.b, dim);
      bool full = j0 < span.full_end;
#pragma unroll
      for (int c = 0; c < columns; ++c) {
        int j = j0 + dkv::square_x() + 16 * c, end_j = !full && j < span.end ? plan.end[j] : 0;
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          int own_row = dkv::square_y() * rows + r, row = own_row * pitch, key = (dkv::square_x() + 16 * c) * pitch;
          bool sees = full || dkv_sees(i0 + own_row, j, end_j);
          weigh(s[r][c], dp[r][c], sees, lse[r], delta[r], shape.scale);
          mend(s[r][c], dp[r][c], sees, lse[r], tile.x + row, tile.a + key, tile.y + row, tile.b + key, t,
               (int64_t)h * shape.rows + i0 + own_row, shape);
        }
      }
      dkv::store_weights(tile.w, dp);
      __syncthreads();
      dkv::accumulate<rows, step, Width>(dq, tile.w, tile.a);
      __syncthreads();
    }
  }
  dkv::store_rows<rows, Width>(t.dq + q_head, shape.q_stride, i0, shape.rows, dim, dq, scales);
}

/** dk and dv of one tile of keys of one key head: the transposed weights are computed directly, keys as rows. */
template <class T, int Width>
__global__ void __launch_bounds__(dkv::product_threads)
    bwd_shared_columns(tensors<T> t, dkv_gpu_shape shape, dkv_gpu_plan plan) {
  constexpr int own = own_rows<Width>, rows = own / 16, pitch = dkv::tile_pitch<Width>;
  extern __shared__ float shared[];
  tiles<Width> tile(shared);
  int number = plan.key_order[blockIdx.x], j0 = number * own, head = (int)blockIdx.y, dim = shape.dim;
  int64_t kv_head = (int64_t)head * dim;
  dkv::load_tile<own, Width, dkv::product_threads>(tile.x, t.k + kv_head, shape.kv_stride, j0, shape.rows, dim);
  dkv::load_tile<own, Width, dkv::product_threads>(tile.y, t.v + kv_head, shape.kv_stride, j0, shape.rows, dim);
  int end[rows];
  float dk[rows][Width / 16], dv[rows][Width / 16], scales[rows], ones[rows];
  clear<rows, Width>(dk);
  clear<rows, Width>(dv);
#pragma unroll
  for (int r = 0; r < rows; ++r) {
    int j = j0 + dkv::square_y() * rows + r;
    end[r] = j < shape.rows ? plan.end[j] : 0;
    scales[r] = shape.scale;
    ones[r] = 1.0f;
  }
  dkv_gpu_queries range = plan.queries[number];
  for (int h = head * shape.group; h < (head + 1) * shape.group; ++h) {
    for (int i0 = range.query_begin; i0 < range.query_end; i0 += step) {
      dkv::load_tile<step, Width, dkv::product_threads>(tile.a, t.q + (int64_t)h * dim, shape.q_stride, i0,
                                                        range.query_end, dim);
      dkv::load_tile<step, Width, dkv::product_threads>(tile.b, t.dout + (int64_t)h * dim, shape.q_stride, i0,
                                                        range.query_end, dim);
      __syncthreads();
      float s[rows][columns], dp[rows][columns];
      dkv::products<rows, columns, Width>(s, tile.x, tile.a, dim);
      dkv::products<rows, columns, Width>(dp, tile.y, tile.b, dim);
#pragma unroll
      for (int c = 0; c < columns; ++c) {
        int i = i0 + dkv::square_x() + 16 * c;
        int64_t at = (int64_t)h * shape.rows + i;
        float lse = i < shape.rows ? t.lse[at] : 0.0f, delta = i < shape.rows ? t.sums.delta[at] : 0.0f;
#pragma unroll
        for (int r = 0; r < rows; ++r) {
          int own_row = dkv::square_y() * rows + r, key = own_row * pitch, row = (dkv::square_x() + 16 * c) * pitch;
          bool sees = dkv_sees(i, j0 + own_row, end[r]);
          weigh(s[r][c], dp[r][c], sees, lse, delta, shape.scale);
          mend(s[r][c], dp[r][c], sees, lse, tile.a + row, tile.x + key, tile.b + row, tile.y + key, t, at, shape);
        }
      }
      dkv::store_weights(tile.w, s);
      dkv::store_weights(tile.u, dp);
      __syncthreads();
      dkv::accumulate<rows, step, Width>(dv, tile.w, tile.b);
      dkv::accumulate<rows, step, Width>(dk, tile.u, tile.a);
      __syncthreads();
    }
  }
  dkv::store_rows<rows, Width>(t.dk + kv_head, shape.kv_stride, j0, shape.rows, dim, dk, scales);
  dkv::store_rows<rows, Width>(t.dv + kv_head, shape.kv_stride, j0, shape.rows, dim, dv, ones);
}

dkv_gpu_tiling tiling_of(const dkv_attention *p) { return p && p->head_dim > 128 ? tiling<256> : tiling<128>; }

template <class T, int Width> dkv_status launch(const dkv_attention *p, dkv_gpu_shape shape, dkv_gpu_plan plan) {
  dkv_gpu_row_sums sums = dkv_gpu_row_sums_of(p);
  DKV_TRY(dkv_gpu_row_sums_fill(sums, plan.end, p));
  tensors<T> x = {(const T *)p->q, (const T *)p->k, (const T *)p->v, (const T *)p->dout, (const float *)p->lse, sums,
                  (T *)p->dq,      (T *)p->dk,      (T *)p->dv};
  dim3 by_rows, by_columns;
  DKV_TRY(dkv_gpu_grid(&by_rows, plan.query_tiles, shape.heads, 1));
  DKV_TRY(dkv_gpu_grid(&by_columns, plan.key_tiles, shape.kv_heads, 1));
  cudaStream_t stream = (cudaStream_t)p->stream;
  DKV_TRY(dkv_gpu_shared(bwd_shared_rows<T, Width>, shared_bytes<Width>));
  DKV_TRY(dkv_gpu_shared(bwd_shared_columns<T, Width>, shared_bytes<Width>));
  bwd_shared_rows<T, Width><<<by_rows, dkv::product_threads, shared_bytes<Width>, stream>>>(x, shape, plan);
  DKV_TRY(dkv_gpu_launched("bwd_shared_rows"));
  bwd_shared_columns<T, Width><<<by_columns, dkv::product_threads, shared_bytes<Width>, stream>>>(x, shape, plan);
  return dkv_gpu_launched("bwd_shared_columns");
}

} // namespace

extern "C" dkv_status dkv_gpu_bwd_shared_workspace(const dkv_attention *p, size_t *bytes) {
  return dkv_gpu_workspace(bytes, p, dkv_gpu_row_sums_bytes(p), tiling_of(p));
}

extern "C" dkv_status dkv_gpu_bwd_shared_prepare(const dkv_attention *p) {
  return dkv_gpu_prepare(p, dkv_gpu_row_sums_bytes(p), tiling_of(p));
}

extern "C" dkv_status dkv_gpu_bwd_shared_run(const dkv_attention *p) {
  DKV_TRY(dkv_gpu_check(p, DKV_BACKWARD, dkv_gpu_row_sums_bytes(p), tiling_of(p)));
  if (p->layout->rows == 0) return DKV_OK;
  dkv_gpu_shape shape = dkv_gpu_shape_of(p);
  dkv_gpu_plan plan = dkv_gpu_plan_of(p, dkv_gpu_row_sums_bytes(p), tiling_of(p));
  return dkv_gpu_by_dtype(p->dtype, [&](auto type) {
    return dkv_gpu_by_width(shape.dim,
                            [&](auto width) { return launch<decltype(type), decltype(width)::value>(p, shape, plan); });
  });
}
