/**
 * @file attention.h
 * @brief The contract of packed attention, forward and backward: one struct in, the same for every kernel everywhere.
 *
 * With c = scale, group ratio g = H / Hkv, k = h / g, and rule dkv_sees (mask.h) for the sum over visible j:
 *
 *     forward    s_ij = c <q_ih, k_jk>        lse_hi = log sum_j exp(s_ij)       p_ij = exp(s_ij - lse_hi)
 *                o_ih = sum_j p_ij v_jk
 *     backward   delta_ih = <do_ih, o_ih>     dp_ij = <do_ih, v_jk>              ds_ij = p_ij (dp_ij - delta_ih)
 *                dq_ih = c sum_j ds_ij k_jk
 *                dk_jk = c sum_{h in k} sum_i ds_ij q_ih       dv_jk = sum_{h in k} sum_i p_ij do_ih
 *
 * The last line is the whole backward of a shared prompt: j is a prompt row, and i runs over the prompt, all responses
 * and all query heads of the key head, accumulated in fp32 and rounded once.
 *
 * Shapes, row-major: q, o, dout, dq [T][H][D]; k, v, dk, dv [T][Hkv][D]; lse [H][T] in natural log.
 * Types: all of q, k, v, o, dout, dq, dk, dv in `dtype`; lse f32 (f64 when dtype is DKV_F64).  Outputs are overwritten,
 * never accumulated, and every element is written.  T = 0 is legal: nothing is done.  No pointer may alias another.
 *
 * Ownership: the caller owns every buffer, workspace included; kernels allocate nothing.  On the GPU the tensors and
 * the workspace are device memory and the layout stays in host memory; there a tensor starts at a multiple of 16 bytes.
 *
 * Call order: workspace() -> give that many bytes -> prepare() once per (layout, shape, dtype, deterministic,
 * workspace) -> run() any number of times, one at a time in a workspace.  prepare() writes what depends only on the
 * layout (tile lists) into the workspace; run() never reads the layout's arrays again on the GPU.
 *
 * Read before: layout.h, mask.h.  Read next: cpu/attention/ref_fwd.c.
 */
#ifndef DKV_ATTENTION_H
#define DKV_ATTENTION_H

#include "common/dtype.h"
#include "common/layout.h"

DKV_BEGIN_C

/** Largest head size. */
#define DKV_MAX_HEAD_DIM 256

/** Which way a kernel goes. */
typedef enum dkv_direction { DKV_FORWARD, DKV_BACKWARD } dkv_direction;

/** When the same inputs give the same bits. */
typedef enum dkv_determinism {
  DKV_ALWAYS,     /**< every run, any thread count */
  DKV_ON_REQUEST, /**< when dkv_attention.deterministic is set, at a measured cost */
  DKV_NEVER       /**< floating-point atomics in no fixed order */
} dkv_determinism;

/** One attention problem: what to compute, on which buffers. */
typedef struct dkv_attention {
  const dkv_layout *layout; /**< host; must outlive prepare() (CPU: run() too) */
  int32_t heads;            /**< H >= 1, a multiple of kv_heads */
  int32_t kv_heads;         /**< Hkv >= 1 */
  int32_t head_dim;         /**< D, a multiple of 8, 8 to DKV_MAX_HEAD_DIM */
  double scale;             /**< c, usually 1/sqrt(D); finite, and 0 or a normal f32 unless dtype is f64 */
  dkv_dtype dtype;          /**< storage type of every tensor but lse */
  bool deterministic;       /**< backward: ask a DKV_ON_REQUEST kernel for repeatable bits */
  int32_t threads;          /**< CPU threads; 0 = what OpenMP gives */
  void *stream;             /**< GPU: a cudaStream_t; NULL = the default stream. run() does not wait for it */

  const void *q;    /**< [T][H][D] */
  const void *k;    /**< [T][Hkv][D] */
  const void *v;    /**< [T][Hkv][D] */
  void *o;          /**< [T][H][D] forward: out; backward: in (the stored forward output) */
  void *lse;        /**< [H][T] forward: out; backward: in */
  const void *dout; /**< [T][H][D] backward: gradient of the loss with respect to o */
  void *dq;         /**< [T][H][D] backward: out */
  void *dk;         /**< [T][Hkv][D] backward: out */
  void *dv;         /**< [T][Hkv][D] backward: out */

  void *workspace;        /**< 256-byte aligned, NULL allowed when 0 bytes are needed */
  size_t workspace_bytes; /**< size of workspace */
} dkv_attention;

/** A registered kernel: one line of kernels.def. */
typedef struct dkv_kernel {
  const char *name;            /**< "tiled", "naive", "hopper", ...: unique within backend and direction */
  const char *file;            /**< where to read it */
  const char *idea;            /**< its one idea, a sentence */
  dkv_direction direction;     /**< forward or backward */
  uint32_t dtypes;             /**< set of DKV_BIT(dtype) */
  uint32_t head_dims;          /**< set: bit D/8 - 1 for each head size D it takes */
  dkv_determinism determinism; /**< when its bits repeat */
  /** Can it run here (device present, new enough)? DKV_OK or a sentence. dkv_kernel_check asks it last. */
  dkv_status (*available)(void);
  /** Bytes of workspace for this problem. Pointers of the problem are not read, the layout is. */
  dkv_status (*workspace)(const dkv_attention *problem, size_t *bytes);
  /** Writes the layout's tile lists into the workspace. NULL when there is nothing to prepare. */
  dkv_status (*prepare)(const dkv_attention *problem);
  /** Computes. */
  dkv_status (*run)(const dkv_attention *problem);
} dkv_kernel;

/** Set of every multiple of 8 up to 256. */
#define DKV_HEAD_DIMS_ALL UINT32_C(0xffffffff)
/** Set of one head size. */
#define DKV_HEAD_DIM(dim) (UINT32_C(1) << ((dim) / 8 - 1))

/**
 * Checks everything that does not depend on the kernel: shape rules, required pointers for the direction (unless there
 * are no rows), scale as above, dtype a float type.  Every kernel's run() starts with it.
 * @param[in] problem   the problem
 * @param[in] direction forward needs q k v o lse; backward needs those and dout dq dk dv
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_SHAPE; DKV_ERR_RANGE; DKV_ERR_UNSUPPORTED (an integer dtype)
 */
dkv_status dkv_attention_check(const dkv_attention *problem, dkv_direction direction);

/**
 * Checks that `kernel` takes this problem: dtype, head size, availability.  Pointers are not looked at.
 * @param[in] kernel  the kernel
 * @param[in] problem the problem
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_SHAPE, DKV_ERR_RANGE (shape rules); DKV_ERR_UNSUPPORTED naming kernel, value
 * and what it takes (a kernel without a fixed order is not deterministic on request); whatever available() says
 */
dkv_status dkv_kernel_check(const dkv_kernel *kernel, const dkv_attention *problem);

/**
 * Useful FLOPs: forward 4 D H pairs; backward 2.5 times that (five products for two).
 * @param[in] problem   shape and layout; pointers are not read
 * @param[in] direction which
 * @return FLOPs
 */
double dkv_attention_flops(const dkv_attention *problem, dkv_direction direction);

DKV_END_C
#endif
