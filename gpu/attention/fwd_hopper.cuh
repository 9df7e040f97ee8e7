/**
 * @file fwd_hopper.cuh
 * @brief The forward arithmetic of one warpgroup: 64 query rows against tiles of 128 keys. Shared by rungs 6 and 7.
 *
 *     S = Q K^T      P = exp2(c S - shift)      l = sum P      O = P V      o = O / l      lse = (shift + log2 l) ln 2
 *
 * Thread t holds parts of two rows, r and r + 8, of every matrix (fragment.cuh):
 *
 *     s[64]    scores, 64 rows x 128 keys          p[32]     weights, two 16-bit each: the A operand of P V
 *     o[D/2]   outputs, not yet divided            shift[2], sum[2]   one a row; the sum is this thread's share
 *
 * The textbook takes each row's new maximum m before any exponential and rescales O by exp2(m_old - m_new).  But any
 * shift near the maximum will do: the result is the same, only overflow must not happen.  So the shift of earlier steps
 * is used at once; only when a thread's 32 weights of a row add up to more than LIMIT = 32 x 2^8 (one of them is then
 * above 2^8, its score c s more than 8 above the shift) the warp takes maxima, corrects, and computes the weights
 * again.  On most tiles no maximum is taken, no lane waits for another, O is not touched.  LIMIT keeps weights inside
 * f16.  A row decides from its own scores alone, so its bits do not depend on its neighbours.  Where scores are so
 * large that rounding the shift would show (FAR), every step goes the careful way: c s is rounded as the shift was, and
 * the largest weight is exactly 1.
 *
 * Row i sees key j when (uint32_t)(i - j) < reach[j] (work.cuh).  Hidden scores become -inf, their weights exactly 0.
 * A scale below zero turns the sign of Q, a scale of zero clears Q; after that c > 0.
 *
 * Read before: gpu/hopper/fragment.cuh, wgmma.cuh, work.cuh.  Read next: fwd_6_hopper_plain.cu, fwd_7_hopper.cu.
 */
#ifndef DKV_FWD_HOPPER_CUH
#define DKV_FWD_HOPPER_CUH

#include <math.h>

#include "common/attention.h"
#include "gpu/hopper/fragment.cuh"
#include "gpu/hopper/mbarrier.cuh"
#include "gpu/hopper/tma.cuh"
#include "gpu/hopper/wgmma.cuh"
#include "gpu/hopper/work.cuh"
#include "gpu/runtime/launch.h"

namespace dkv_fwd {

/** Keys of a tile, query rows and threads of a warpgroup. */
constexpr int KEYS = 128, GROUP_ROWS = 64, GROUP_THREADS = 128;

/** Numbers in the vector of a key tile. */
constexpr int VECTOR = DKV_WORK_HEAD + KEYS;

/** Largest sum of 32 weights that is let pass (below 65504 / 2), and the shift of a row that has seen no key. */
constexpr float LIMIT = 8192.0f, UNSEEN = -3e38f;

/** A shift beyond this is rounded by more than 2^-4: exp2 of c s - shift in one operation would show it. */
constexpr float FAR = 1048576.0f;

/** Bytes of the Q rows of a warpgroup, and of a tile of keys or values. */
template <int D> constexpr int q_bytes = GROUP_ROWS *D * 2;
template <int D> constexpr int kv_bytes = KEYS *D * 2;

/** Kernel arguments of both rungs. */
struct arguments {
  CUtensorMap q, k, v, o; /**< boxes: Q and O 64 rows, K and V 128 rows */
  CUtensorMap vectors;    /**< of the key tiles, one a box; rung 7 only */
  dkv_work work;
  float *lse;       /**< [H][T] */
  int32_t rows;     /**< T */
  int32_t heads;    /**< H */
  int32_t kv_heads; /**< Hkv */
  uint32_t items;   /**< query tiles x H */
  float c;          /**< |scale| log2(e), or 1 when scale is 0 */
  uint32_t keep;    /**< the bits of Q to use are (q & keep) ^ flip, for two elements at a time */
  uint32_t flip;
};

/** What a thread carries through a query tile. */
template <int D> struct state {
  float s[KEYS / 2];
  uint32_t p[KEYS / 4];
  float o[D / 2];
  float shift[2], sum[2];
  float limit; /**< LIMIT; -1 while a row of the warp is far, so that each step takes the careful way */
};

/** The descriptor `bytes` further on: only the low word changes (addresses end below 2^18, so there is no carry). */
__device__ __forceinline__ uint64_t advance(uint64_t descriptor, uint32_t bytes) {
  return (descriptor & 0xffffffff00000000u) | (uint32_t)((uint32_t)descriptor + (bytes >> 4));
}

/** Issues S = Q K^T. @param[in] q,k shared addresses of this warpgroup's Q and of a key tile. */
template <class T, int D> __device__ __forceinline__ void issue_scores(state<D> &x, uint32_t q, uint32_t k) {
  const uint64_t a = dkv_descriptor(q, 16), b = dkv_descriptor(k, 16);
#pragma unroll
  for (int i = 0; i < D / 16; ++i)
    dkv_wgmma_ss<T, KEYS, DKV_K_MAJOR, DKV_K_MAJOR>(x.s,
                                                    advance(a, i / 4 * GROUP_ROWS * DKV_PANEL_ROW_BYTES + i % 4 * 32),
                                                    advance(b, i / 4 * KEYS * DKV_PANEL_ROW_BYTES + i % 4 * 32), i > 0);
  dkv_wgmma_commit();
}

/** Issues O += P V. @param[in] v shared address of a tile of values. */
template <class T, int D> __device__ __forceinline__ void issue_values(state<D> &x, uint32_t v) {
  const uint64_t b = dkv_descriptor(v, KEYS * DKV_PANEL_ROW_BYTES);
#pragma unroll
  for (int i = 0; i < KEYS / 16; ++i)
    dkv_wgmma_rs<T, D, DKV_MN_MAJOR>(x.o, x.p + 4 * i, advance(b, i * 16 * DKV_PANEL_ROW_BYTES), 1);
  dkv_wgmma_commit();
}

/** Keeps uses of the operands on their side of this point. */
template <int D> __device__ __forceinline__ void pin(state<D> &x) {
  dkv_pin(x.s);
  dkv_pin(x.p);
  dkv_pin(x.o);
}

/** Query row of this thread's row r, given the warpgroup's first row. */
__device__ __forceinline__ int32_t thread_row(int32_t first_row) {
  return first_row + (int32_t)(threadIdx.x % GROUP_THREADS / 32 * 16 + threadIdx.x % 32 / 4);
}

/** Scores of hidden keys become -inf. @param[in] row query row r; @param[in] vector of the key tile (work.cuh) */
template <int D> __device__ __forceinline__ void hide(state<D> &x, int32_t row, const uint32_t *vector) {
  const int32_t column = 2 * (threadIdx.x % 4), distance = row - (int32_t)vector[0] - column;
  const uint32_t *reach = vector + DKV_WORK_HEAD;
#pragma unroll
  for (int i = 0; i < KEYS / 2; i += 4) {
    const uint2 two = *reinterpret_cast<const uint2 *>(reach + column + 2 * i);
    const int32_t d = distance - 2 * i;
    x.s[i] = (uint32_t)d < two.x ? x.s[i] : -INFINITY;
    x.s[i + 1] = (uint32_t)(d - 1) < two.y ? x.s[i + 1] : -INFINITY;
    x.s[i + 2] = (uint32_t)(d + 8) < two.x ? x.s[i + 2] : -INFINITY;
    x.s[i + 3] = (uint32_t)(d + 7) < two.y ? x.s[i + 3] : -INFINITY;
  }
}

/** 2^x; 2^-inf is 0. */
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/** Is a row's shift so large that c s must be rounded as the shift was, before the difference is taken? */
__device__ __forceinline__ bool is_far(float shift) { return fabsf(shift) > FAR && shift != UNSEEN; }

/** Weights of this tile under the present shifts, packed. @param[out] part their sums over this thread's keys. */
template <class T, int D, bool careful> __device__ __forceinline__ void weigh(state<D> &x, float (&part)[2], float c) {
  part[0] = part[1] = 0.0f;
  const bool far[2] = {careful && is_far(x.shift[0]), careful && is_far(x.shift[1])};
#pragma unroll
  for (int i = 0; i < KEYS / 2; i += 4)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float a = fmaf(x.s[i + 2 * r], c, -x.shift[r]), b = fmaf(x.s[i + 2 * r + 1], c, -x.shift[r]);
      if constexpr (careful) {
        a = far[r] ? __fmul_rn(x.s[i + 2 * r], c) - x.shift[r] : a;
        b = far[r] ? __fmul_rn(x.s[i + 2 * r + 1], c) - x.shift[r] : b;
      }
      a = exp2_fast(a);
      b = exp2_fast(b);
      part[r] += a + b;
      x.p[i / 2 + r] = dkv_pack<T>(a, b);
    }
}

/** Rows whose weights have outgrown LIMIT get their largest score as shift; sum and O are brought in line. */
template <int D> __device__ __forceinline__ void raise(state<D> &x, const float (&part)[2], float c) {
  float rescale[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float top = fmaxf(x.s[2 * r], x.s[2 * r + 1]), grown = part[r];
#pragma unroll
    for (int i = 4; i < KEYS / 2; i += 4) top = fmaxf(top, fmaxf(x.s[i + 2 * r], x.s[i + 2 * r + 1]));
#pragma unroll
    for (int lane = 1; lane < 4; lane *= 2) { /* the four lanes of a row agree */
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, lane));
      grown = fmaxf(grown, __shfl_xor_sync(0xffffffffu, grown, lane));
    }
    const float shift = grown > LIMIT ? fmaxf(__fmul_rn(top, c), x.shift[r]) : x.shift[r];
    rescale[r] = exp2_fast(x.shift[r] - shift);
    x.sum[r] *= rescale[r];
    x.shift[r] = shift;
  }
#pragma unroll
  for (int i = 0; i < D / 2; ++i) x.o[i] *= rescale[i / 2 % 2];
}

/** Weights under new shifts. How a row's are computed depends on its own shift alone. */
template <class T, int D> __device__ __forceinline__ void weigh_again(state<D> &x, float (&part)[2], float c) {
  const bool far = __any_sync(0xffffffffu, is_far(x.shift[0]) || is_far(x.shift[1]));
  x.limit = far ? -1.0f : LIMIT;
  if (far) weigh<T, D, true>(x, part, c);
  else weigh<T, D, false>(x, part, c);
}

/** Softmax of one step: s to p and sum; a rare step also corrects what earlier steps left. */
template <class T, int D> __device__ __forceinline__ void soften(state<D> &x, float c) {
  float part[2];
  weigh<T, D, false>(x, part, c);
  if (__any_sync(0xffffffffu, part[0] > x.limit || part[1] > x.limit)) {
    raise(x, part, c);
    weigh_again<T, D>(x, part, c);
  }
  x.sum[0] += part[0];
  x.sum[1] += part[1];
}

/** Softmax of the first step, which finds no shift to start from. */
template <class T, int D> __device__ __forceinline__ void soften_first(state<D> &x, float c) {
  const float begin[2] = {INFINITY, INFINITY};
  x.shift[0] = x.shift[1] = UNSEEN;
  x.sum[0] = x.sum[1] = 0.0f;
#pragma unroll
  for (int i = 0; i < D / 2; ++i) x.o[i] = 0.0f;
  raise(x, begin, c);
  weigh_again<T, D>(x, x.sum, c);
}

/**
 * Adds up the rows' sums over their four lanes and writes lse.  Rows at and past T have seen no key: nothing of them is
 * written, here or by the store of O.
 * @param[in]  row     query row r
 * @param[out] lse     [T] of this head
 * @param[in]  rows    T
 * @param[out] inverse 1 / sum of rows r and r + 8
 */
template <int D>
__device__ __forceinline__ void close_rows(state<D> &x, int32_t row, float *lse, int32_t rows, float (&inverse)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = x.sum[r] + __shfl_xor_sync(0xffffffffu, x.sum[r], 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    inverse[r] = 1.0f / sum;
    if (threadIdx.x % 4 == 0 && row + 8 * r < rows) lse[row + 8 * r] = (x.shift[r] + log2f(sum)) * 0.69314718055994531f;
  }
}

/** O / sum, rounded, over this warpgroup's rows of Q in shared memory: no other warpgroup reads them. A barrier must
 * follow. */
template <class T, int D>
__device__ __forceinline__ void stage_output(const state<D> &x, const float (&inverse)[2], uint32_t q) {
#pragma unroll
  for (int i = 0; i < D / 16; ++i) {
    uint32_t packed[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      packed[j] = dkv_pack<T>(x.o[8 * i + 2 * j] * inverse[j % 2], x.o[8 * i + 2 * j + 1] * inverse[j % 2]);
    const uint32_t panel = q + i / 4 * GROUP_ROWS * DKV_PANEL_ROW_BYTES;
    dkv_stmatrix(dkv_stmatrix_address(panel, 0, (int)threadIdx.x % GROUP_THREADS, i % 4), packed);
  }
  dkv_fence_async_proxy();
}

/** (q & keep) ^ flip over this warpgroup's rows of Q, then a barrier of its threads. @param[in] barrier its named
 * barrier. */
template <int D> __device__ __forceinline__ void change_sign(uint8_t *q, uint32_t keep, uint32_t flip, int barrier) {
  uint4 *word = reinterpret_cast<uint4 *>(q);
#pragma unroll 1
  for (int i = (int)threadIdx.x % GROUP_THREADS; i < q_bytes<D> / 16; i += GROUP_THREADS) {
    const uint4 w = word[i];
    word[i] = make_uint4((w.x & keep) ^ flip, (w.y & keep) ^ flip, (w.z & keep) ^ flip, (w.w & keep) ^ flip);
  }
  dkv_fence_async_proxy();
  dkv_named_sync(barrier, GROUP_THREADS);
}

/** The first line of both rungs' run(). @return as dkv_gpu_problem_check; DKV_ERR_UNSUPPORTED (type, head size) */
static inline dkv_status check(const dkv_attention *problem) {
  DKV_TRY(dkv_gpu_problem_check(problem, DKV_FORWARD));
  DKV_REQUIRE(problem->dtype == DKV_BF16 || problem->dtype == DKV_F16, DKV_ERR_UNSUPPORTED,
              "gpu fwd on Hopper: dtype %s; this kernel takes bf16 and f16", dkv_dtype_name(problem->dtype));
  DKV_REQUIRE(problem->head_dim == 64 || problem->head_dim == 128, DKV_ERR_UNSUPPORTED,
              "gpu fwd on Hopper: head_dim %d; this kernel takes 64 and 128", problem->head_dim);
  return DKV_OK;
}

/**
 * Arguments of a launch.
 * @param[out] a       overwritten
 * @param[in]  problem passed check(); T >= 1; workspace prepared with query tiles of `tile` rows
 * @return DKV_OK; DKV_ERR_NOMEM, DKV_ERR_RANGE (workspace); DKV_ERR_UNSUPPORTED (too many items, |scale| > 1e30);
 *         DKV_ERR_CUDA
 */
static inline dkv_status make_arguments(arguments *a, const dkv_attention *problem, int32_t tile) {
  const int32_t rows = problem->layout->rows, heads = problem->heads, kv_heads = problem->kv_heads;
  const int32_t dim = problem->head_dim;
  DKV_TRY(dkv_work_check(problem->workspace, problem->workspace_bytes, problem->layout, tile, KEYS));
  a->work = dkv_work_view(problem->workspace, rows, tile, KEYS);
  const int64_t items = (int64_t)a->work.tile_count * heads;
  DKV_REQUIRE(items <= INT32_MAX, DKV_ERR_UNSUPPORTED, "hopper forward: %lld query tiles times heads; at most %d",
              (long long)items, INT32_MAX);
  DKV_REQUIRE(fabs(problem->scale) <= 1e30, DKV_ERR_UNSUPPORTED,
              "hopper forward: scale %g; scores are kept in fp32, so |scale| must be at most 1e30", problem->scale);
  DKV_TRY(dkv_tma_map(&a->q, problem->q, problem->dtype, rows, heads, dim, GROUP_ROWS));
  DKV_TRY(dkv_tma_map(&a->o, problem->o, problem->dtype, rows, heads, dim, GROUP_ROWS));
  DKV_TRY(dkv_tma_map(&a->k, problem->k, problem->dtype, rows, kv_heads, dim, KEYS));
  DKV_TRY(dkv_tma_map(&a->v, problem->v, problem->dtype, rows, kv_heads, dim, KEYS));
  DKV_TRY(dkv_tma_map_vectors(&a->vectors, a->work.vectors, VECTOR, dkv_ceil_div(rows, KEYS), VECTOR));
  a->lse = static_cast<float *>(problem->lse);
  a->rows = rows;
  a->heads = heads;
  a->kv_heads = kv_heads;
  a->items = (uint32_t)items;
  a->c = (float)(fabs(problem->scale) * 1.4426950408889634);
  a->keep = a->c == 0.0f ? 0 : 0xffffffffu;
  a->flip = a->c != 0.0f && problem->scale < 0 ? 0x80008000u : 0;
  if (a->c == 0.0f) a->c = 1.0f;
  return DKV_OK;
}

} // namespace dkv_fwd

#endif
