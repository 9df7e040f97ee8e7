/**
 * @file buffers.h
 * @brief What a kernel may take for granted about the caller's device memory, checked on the host before every launch.
 *
 * Kernels read and write 16 bytes at a time, and lay their own arrays into the workspace at multiples of 256.  A
 * pointer off these grids would end in a CUDA error that the process cannot recover from, so it is refused with a
 * sentence.
 *
 * Read before: common/attention.h, device.h.  Read next: gpu/attention/shape.h.
 */
#ifndef DKV_GPU_BUFFERS_H
#define DKV_GPU_BUFFERS_H

#include "common/attention.h"

/**
 * The first check of every run(): what all backends ask for, and where the tensors start.
 * @param[in] p         the problem
 * @param[in] direction which pointers are looked at
 * @return as dkv_attention_check; DKV_ERR_RANGE for a tensor that does not start at a multiple of 16 bytes (lse: 4)
 */
static inline dkv_status dkv_gpu_problem_check(const dkv_attention *p, dkv_direction direction) {
  DKV_TRY(dkv_attention_check(p, direction));
  if (p->layout->rows == 0) return DKV_OK;
  const struct {
    const char *name;
    const void *pointer;
    unsigned multiple;
  } tensors[] = {{"q", p->q, 16},   {"k", p->k, 16},       {"v", p->v, 16},   {"o", p->o, 16},  {"lse", p->lse, 4},
                 {"dq", p->dq, 16}, {"dout", p->dout, 16}, {"dk", p->dk, 16}, {"dv", p->dv, 16}};
  for (int t = 0; t < (direction == DKV_FORWARD ? 5 : 9); ++t) {
    DKV_REQUIRE((uintptr_t)tensors[t].pointer % tensors[t].multiple == 0, DKV_ERR_RANGE,
                "gpu attention: %s is at %p; it must start at a multiple of %u bytes", tensors[t].name,
                tensors[t].pointer, tensors[t].multiple);
  }
  return DKV_OK;
}

/**
 * Is the workspace there, large enough, and on its grid?
 * @param[in] workspace the caller's
 * @param[in] given     its bytes
 * @param[in] needed    what workspace() said
 * @return DKV_OK, always when nothing is needed; DKV_ERR_NOMEM (NULL, too small); DKV_ERR_RANGE (not a multiple of 256)
 */
static inline dkv_status dkv_gpu_space_check(const void *workspace, size_t given, size_t needed) {
  if (needed == 0) return DKV_OK;
  DKV_REQUIRE(workspace, DKV_ERR_NOMEM, "gpu attention: workspace is NULL; this kernel needs %zu bytes", needed);
  DKV_REQUIRE(given >= needed, DKV_ERR_NOMEM, "gpu attention: a workspace of %zu bytes; this kernel needs %zu", given,
              needed);
  DKV_REQUIRE((uintptr_t)workspace % 256 == 0, DKV_ERR_RANGE,
              "gpu attention: the workspace is at %p; it must start at a multiple of 256 bytes", workspace);
  return DKV_OK;
}

#endif
