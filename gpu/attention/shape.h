/**
 * @file shape.h
 * @brief What every rung does before its kernel: check the problem, put plain numbers into a struct, choose the
 *   template.
 *
 * A rung's workspace is [its own arrays | plan]: the arrays' sizes follow from T, H and D, so run() needs no layout
 * array.
 *
 * Read before: plan.h.  Read next: fwd_1_naive.cu.
 */
#ifndef DKV_GPU_SHAPE_H
#define DKV_GPU_SHAPE_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <float.h>

#include "common/attention.h"
#include "gpu/attention/plan.h"
#include "gpu/runtime/buffers.h"

/** The numbers of a problem, as kernels take them. */
struct dkv_gpu_shape {
  int32_t rows;      /**< T */
  int32_t heads;     /**< H */
  int32_t kv_heads;  /**< Hkv */
  int32_t group;     /**< H / Hkv query heads for each key head */
  int32_t dim;       /**< D */
  int64_t q_stride;  /**< H D: elements from a row of q, o, dout, dq to the next */
  int64_t kv_stride; /**< Hkv D: the same for k, v, dk, dv */
  float scale;       /**< c */
  float scale_log2;  /**< c log2(e): exp(c x) = exp2(scale_log2 x) */
};

/** double to float without becoming infinite: a scale is finite. */
static inline float dkv_gpu_clamp(double x) { return (float)(x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : x); }

/** The numbers of `p`. */
static inline dkv_gpu_shape dkv_gpu_shape_of(const dkv_attention *p) {
  dkv_gpu_shape shape;
  shape.rows = p->layout->rows;
  shape.heads = p->heads;
  shape.kv_heads = p->kv_heads;
  shape.group = p->heads / p->kv_heads;
  shape.dim = p->head_dim;
  shape.q_stride = (int64_t)p->heads * p->head_dim;
  shape.kv_stride = (int64_t)p->kv_heads * p->head_dim;
  shape.scale = dkv_gpu_clamp(p->scale);
  shape.scale_log2 = dkv_gpu_clamp(p->scale * 1.4426950408889634);
  return shape;
}

/** `bytes` rounded up to 256, so that the next array of a workspace is aligned for every use. */
static inline size_t dkv_gpu_rounded(size_t bytes) { return (bytes + 255) / 256 * 256; }

/**
 * workspace() of a rung: `own` bytes of arrays, then the plan. T = 0 needs none.
 * @param[out] bytes  overwritten
 * @param[in]  p      the problem
 * @param[in]  own    bytes of the rung's arrays
 * @param[in]  tiling its tiles
 * @return DKV_OK; DKV_ERR_NULL
 */
static inline dkv_status dkv_gpu_workspace(size_t *bytes, const dkv_attention *p, size_t own, dkv_gpu_tiling tiling) {
  DKV_REQUIRE(bytes && p && p->layout, DKV_ERR_NULL, "attention workspace: bytes, problem or layout is NULL");
  *bytes = 0;
  if (p->layout->rows == 0) return DKV_OK;
  *bytes = dkv_gpu_rounded(own) + dkv_gpu_plan_bytes(p->layout, tiling);
  return DKV_OK;
}

/** Is the workspace fit for use? Arguments as dkv_gpu_workspace. @return as dkv_gpu_space_check */
static inline dkv_status dkv_gpu_workspace_check(const dkv_attention *p, size_t own, dkv_gpu_tiling tiling) {
  size_t needed = 0;
  DKV_TRY(dkv_gpu_workspace(&needed, p, own, tiling));
  return dkv_gpu_space_check(p->workspace, p->workspace_bytes, needed);
}

/** prepare() of a rung: checks the workspace and uploads the plan. Arguments as dkv_gpu_workspace. */
static inline dkv_status dkv_gpu_prepare(const dkv_attention *p, size_t own, dkv_gpu_tiling tiling) {
  DKV_TRY(dkv_gpu_workspace_check(p, own, tiling));
  if (p->layout->rows == 0) return DKV_OK;
  return dkv_gpu_plan_upload(p->layout, tiling, (char *)p->workspace + dkv_gpu_rounded(own), p->stream);
}

/** The plan in the workspace of `p`. */
static inline dkv_gpu_plan dkv_gpu_plan_of(const dkv_attention *p, size_t own, dkv_gpu_tiling tiling) {
  return dkv_gpu_plan_view(p->layout->rows, tiling, (const char *)p->workspace + dkv_gpu_rounded(own));
}

/** run()'s first line: the shared checks, and the workspace. Arguments as dkv_gpu_workspace. */
static inline dkv_status dkv_gpu_check(const dkv_attention *p, dkv_direction direction, size_t own,
                                       dkv_gpu_tiling tiling) {
  DKV_TRY(dkv_gpu_problem_check(p, direction));
  return dkv_gpu_workspace_check(p, own, tiling);
}

/** Calls launch(T()) with the C++ type of a storage type that every rung takes. */
template <class Launch> static inline dkv_status dkv_gpu_by_dtype(dkv_dtype dtype, Launch launch) {
  switch (dtype) {
  case DKV_F32: return launch(float());
  case DKV_F16: return launch(__half());
  case DKV_BF16: return launch(__nv_bfloat16());
  default:
    return dkv_fail(DKV_ERR_UNSUPPORTED, "gpu: attention in %s; the kernels take f32, bf16 and f16",
                    dkv_dtype_name(dtype));
  }
}

/** The same for the types that tensor cores take. */
template <class Launch> static inline dkv_status dkv_gpu_by_half(dkv_dtype dtype, Launch launch) {
  switch (dtype) {
  case DKV_F16: return launch(__half());
  case DKV_BF16: return launch(__nv_bfloat16());
  default:
    return dkv_fail(DKV_ERR_UNSUPPORTED, "gpu: tensor-core attention in %s; it takes bf16 and f16",
                    dkv_dtype_name(dtype));
  }
}

/** A head size as a type, so that a lambda can use it as a template argument. */
template <int Size> struct dkv_gpu_size { static constexpr int value = Size; };

/** Calls launch(dkv_gpu_size<W>()) with the smallest W of 64, 128, 256 that holds D. */
template <class Launch> static inline dkv_status dkv_gpu_by_width(int32_t dim, Launch launch) {
  if (dim <= 64) return launch(dkv_gpu_size<64>());
  if (dim <= 128) return launch(dkv_gpu_size<128>());
  return launch(dkv_gpu_size<256>());
}

/** Calls launch(dkv_gpu_size<D>()) for the head sizes of the tensor-core rungs. */
template <class Launch> static inline dkv_status dkv_gpu_by_dim(int32_t dim, Launch launch) {
  switch (dim) {
  case 64: return launch(dkv_gpu_size<64>());
  case 96: return launch(dkv_gpu_size<96>());
  case 128: return launch(dkv_gpu_size<128>());
  default: return dkv_fail(DKV_ERR_UNSUPPORTED, "gpu: tensor-core attention with D=%d; it takes 64, 96 and 128", dim);
  }
}

#endif
