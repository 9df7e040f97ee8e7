/**
 * @file fwd_mma.cuh
 * @brief One step of forward attention on tensor cores, for the 32 rows of a warp: what fwd_4 and fwd_5 have in common.
 *
 *     S = Q K^T    m' = max(m, S)    P = exp2(c S - c m')    l' = l exp2(c (m - m')) + sum P
 *                                                            O' = O exp2(c (m - m')) + P V
 *
 * A warp owns two pieces of 16 rows (index r below); a lane holds rows g and g + 8 of each (index half).  A row's keys
 * lie in the four lanes of a quad, so its maximum and sum are warp_max<4> and warp_sum<4>.  S stays in registers and
 * becomes P's operand in place (mma.cuh says why).  Two pieces a warp, not one, because then each K and V fragment read
 * from shared memory serves two instructions: with one, shared memory would be the limit.
 *
 * c > 0 here: a negative scale turns the sign of Q when it is loaded, a scale of zero clears Q.
 *
 * Read before: mma.cuh, plan.h.  Read next: fwd_4_mma.cu.
 */
#ifndef DKV_GPU_FWD_MMA_CUH
#define DKV_GPU_FWD_MMA_CUH

#include "common/mask.h"
#include "gpu/attention/shape.h"
#include "gpu/runtime/mma.cuh"
#include "gpu/runtime/warp.cuh"

namespace dkv {

constexpr int fwd_warps = 4, fwd_threads = 32 * fwd_warps;
constexpr int Br = 32 * fwd_warps; /**< query rows of a tile */
constexpr int Bc = 64;             /**< keys of a step */

/** Operands of the forward tensor-core kernels. */
template <class T> struct fwd_tensors {
  const T *q, *k, *v;
  T *o;
  float *lse;
  float c; /**< size of scale * log2(e), above 0; the sign goes into Q */
};

/** Running softmax and output of a warp's 32 rows. */
template <int D> struct fwd_state {
  float o[2][D / 8][4];   /**< [r][piece of 8 columns][as C in mma.cuh] */
  float m[2][2], l[2][2]; /**< [r][half]; l is this lane's share until the end */

  __device__ __forceinline__ fwd_state() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      m[r][0] = m[r][1] = -INFINITY;
      l[r][0] = l[r][1] = 0;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) o[r][n][0] = o[r][n][1] = o[r][n][2] = o[r][n][3] = 0;
    }
  }
};

/** Operands of a problem. */
template <class T> static inline fwd_tensors<T> fwd_tensors_of(const dkv_attention *p, const dkv_gpu_shape &shape) {
  return fwd_tensors<T>{(const T *)p->q, (const T *)p->k, (const T *)p->v,
                        (T *)p->o,       (float *)p->lse, fmaxf(fabsf(shape.scale_log2), FLT_MIN)};
}

/** Two 16-bit numbers times the sign of the scale (-1, 0, 1). */
__device__ __forceinline__ uint32_t times_sign(uint32_t pair, float scale) {
  return scale > 0 ? pair : scale < 0 ? pair ^ 0x80008000u : 0u;
}

/** Multiplies the Q tile by the sign of the scale; each thread takes what it will not share before the next barrier. */
template <int D> __device__ __forceinline__ void turn_sign(unsigned char *q_tile, float scale) {
  for (int n = (int)threadIdx.x; n < Br * D / 2; n += fwd_threads) {
    uint32_t *pair = reinterpret_cast<uint32_t *>(q_tile) + n;
    *pair = times_sign(*pair, scale);
  }
}

/** S = Q K^T for the warp's rows and Bc keys; the arguments are lane addresses (mma.cuh): q low, k high. */
template <class T, int D>
__device__ __forceinline__ void fwd_scores(float (&s)[2][Bc / 8][4], uint32_t q_lane, uint32_t k_lane) {
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int n = 0; n < Bc / 8; ++n) s[r][n][0] = s[r][n][1] = s[r][n][2] = s[r][n][3] = 0;
#pragma unroll
  for (int d = 0; d < D; d += 16) {
    uint32_t a[2][4];
    ldmatrix(a[0], lane_at<D>(q_lane, 0, d));
    ldmatrix(a[1], lane_at<D>(q_lane, 16, d));
#pragma unroll
    for (int n = 0; n < Bc; n += 16) {
      uint32_t b[4];
      ldmatrix(b, lane_at<D>(k_lane, n, d));
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        mma<T>(s[r][n / 8], a[r], b[0], b[1]);
        mma<T>(s[r][n / 8 + 1], a[r], b[2], b[3]);
      }
    }
  }
}

/** Which of a lane's scores are visible: bit 4 n + e of bits[r] for s[r][n][e]. */
typedef uint32_t fwd_bits[2];

/**
 * Rule dkv_sees for one step; computed before the scores, while registers are free. Keys from j_end on belong to
 * others.
 */
__device__ __forceinline__ void fwd_sees(fwd_bits &bits, const int *end, int i0, int j0, int j_end) {
  int lane = (int)(threadIdx.x % 32), i = i0 + lane / 4;
  bits[0] = bits[1] = 0;
#pragma unroll
  for (int n = 0; n < Bc / 8; ++n)
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      int j = j0 + 8 * n + 2 * (lane % 4) + column, end_j = j < j_end ? end[j] : 0;
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          bits[r] |= (uint32_t)dkv_sees(i + 16 * r + 8 * half, j, end_j) << (4 * n + 2 * half + column);
    }
}

/** Scores of keys that a row does not see become -infinity: selected, so their size never matters. */
__device__ __forceinline__ void fwd_mask(float (&s)[2][Bc / 8][4], const fwd_bits &bits) {
  if ((bits[0] & bits[1]) == 0xffffffffu) return;
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int n = 0; n < Bc / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (!(bits[r] >> (4 * n + e) & 1)) s[r][n][e] = -INFINITY;
}

/**
 * c m, and -infinity (no key seen yet) replaced by 0, for -inf minus -inf would be NaN.  Beyond 2^20 the rounding of c
 * m would show in exp2(c s - c m): there m is subtracted from the scores first, and the base is 0.  A row decides for
 * itself, so its bits do not depend on its neighbours.
 */
__device__ __forceinline__ float fwd_base(float (&s)[2][Bc / 8][4], float m, float c, int r, int half) {
  float base = m == -INFINITY ? 0.0f : m * c;
  bool far = fabsf(base) > 1048576.0f;
  if (__any_sync(all_lanes, far)) {
    float shift = far ? m : 0.0f;
#pragma unroll
    for (int n = 0; n < Bc / 8; ++n) {
      s[r][n][2 * half] -= shift;
      s[r][n][2 * half + 1] -= shift;
    }
  }
  return far ? 0.0f : base;
}

/** Follows the maximum; scores become weights (fp32). */
template <int D> __device__ __forceinline__ void fwd_softmax(fwd_state<D> &state, float (&s)[2][Bc / 8][4], float c) {
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float old = state.m[r][half], m = old, sum = 0;
#pragma unroll
      for (int n = 0; n < Bc / 8; ++n) m = fmaxf(m, fmaxf(s[r][n][2 * half], s[r][n][2 * half + 1]));
      m = warp_max<4>(m);
      float shrink = exp2_fast(m == -INFINITY ? 0.0f : (old - m) * c), base = fwd_base(s, m, c, r, half);
      state.m[r][half] = m;
#pragma unroll
      for (int n = 0; n < Bc / 8; ++n)
#pragma unroll
        for (int column = 0; column < 2; ++column) {
          float p = exp2_fast(s[r][n][2 * half + column] * c - base);
          s[r][n][2 * half + column] = p;
          sum += p;
        }
      state.l[r][half] = state.l[r][half] * shrink + sum;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        state.o[r][n][2 * half] *= shrink;
        state.o[r][n][2 * half + 1] *= shrink;
      }
    }
}

/** O += P V: the C pieces of 16 keys, rounded in pairs, are the A piece; v is a low lane address. */
template <class T, int D>
__device__ __forceinline__ void fwd_values(fwd_state<D> &state, const float (&p)[2][Bc / 8][4], uint32_t v_lane) {
#pragma unroll
  for (int j = 0; j < Bc; j += 16) {
    uint32_t a[2][4];
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int side = 0; side < 2; ++side)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          a[r][2 * side + half] = pack<T>(p[r][j / 8 + side][2 * half], p[r][j / 8 + side][2 * half + 1]);
#pragma unroll
    for (int d = 0; d < D; d += 16) {
      uint32_t b[4];
      ldmatrix_transposed(b, lane_at<D>(v_lane, j, d));
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        mma<T>(state.o[r][d / 8], a[r], b[0], b[1]);
        mma<T>(state.o[r][d / 8 + 1], a[r], b[2], b[3]);
      }
    }
  }
}

/**
 * Writes lse, and o by way of the warp's own rows of the Q tile, so that global memory sees 16-byte stores in order.
 */
template <class T, int D>
__device__ __forceinline__ void fwd_finish(fwd_state<D> &state, const fwd_tensors<T> &x, const dkv_gpu_shape &shape,
                                           unsigned char *q_tile, int row, int i0, int h) {
  int lane = (int)threadIdx.x % 32;
  __syncwarp(); /* the warp's queries were read: a lane writes where others' ldmatrix read */
#pragma unroll
  for (int r = 0; r < 2; ++r)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float l = warp_sum<4>(state.l[r][half]), inverse = 1.0f / l;
      int tile_row = row + 16 * r + 8 * half + lane / 4;
      if (lane % 4 == 0 && i0 + tile_row < shape.rows)
        x.lse[(int64_t)h * shape.rows + i0 + tile_row] = (state.m[r][half] * x.c + log2f(l)) * 0.6931471805599453f;
#pragma unroll
      for (int n = 0; n < D / 8; ++n)
        *reinterpret_cast<uint32_t *>(q_tile + chunk_offset<D>(tile_row, n) + 4 * (lane % 4)) =
            pack<T>(state.o[r][n][2 * half] * inverse, state.o[r][n][2 * half + 1] * inverse);
    }
  __syncwarp(); /* the warp's own rows only: no other warp reads or writes them */
#pragma unroll
  for (int n = 0; n < 32 * (D / 8) / 32; ++n) {
    int piece = 32 * n + lane, tile_row = row + piece / (D / 8), chunk = piece % (D / 8);
    if (i0 + tile_row < shape.rows)
      *reinterpret_cast<uint4 *>(x.o + dkv_offset(i0 + tile_row, h, shape.heads, D) + 8 * chunk) =
          *reinterpret_cast<const uint4 *>(q_tile + chunk_offset<D>(tile_row, chunk));
  }
}

/**
 * Walks over the steps of a query tile: the masked ones of all its spans first, then the full ones.  It holds only what
 * changes, for registers are scarce; the spans are looked up when a run of steps ends.
 */
struct fwd_walk {
  const dkv_gpu_plan &plan;
  int tile;    /**< query tile */
  int run;     /**< -count .. -1: masked part of a span; 0 .. count - 1: full part; then INT_MAX */
  int j, stop; /**< first key of the current step; end of the run */

  __device__ __forceinline__ fwd_walk(const dkv_gpu_plan &whole, int query_tile)
      : plan(whole), tile(query_tile), run(plan.span_first[tile] - plan.span_first[tile + 1] - 1), j(0), stop(0) {
    next_run();
  }
  __device__ __forceinline__ bool masked() const { return run < 0; }
  __device__ __forceinline__ bool done() const { return run == INT32_MAX; }

  /** To the next step. */
  __device__ __forceinline__ void next() {
    j += Bc;
    if (j >= stop) next_run();
  }

  /** To the first step of the next run that is not empty. */
  __device__ __forceinline__ void next_run() {
    int first = plan.span_first[tile], count = plan.span_first[tile + 1] - first;
    do {
      if (++run == count) {
        run = INT32_MAX;
        return;
      }
      dkv_gpu_span span = plan.spans[first + (masked() ? run + count : run)];
      j = masked() ? span.full_end : span.begin;
      stop = masked() ? span.end : span.full_end;
    } while (j >= stop);
  }
};

} // namespace dkv

#endif
