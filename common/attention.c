/**
 * @file attention.c
 * @brief The checks that every attention kernel shares, so that inner loops stay bare, and the count of useful FLOPs.
 *
 * Read before: attention.h.  Read next: backend.c.
 */
#include "common/attention.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

/** Rules about sizes, scale and type: everything but pointers. */
static dkv_status check_shape(const dkv_attention *p) {
  DKV_REQUIRE(p->layout != NULL, DKV_ERR_NULL, "attention: layout is NULL");
  DKV_REQUIRE(p->heads >= 1, DKV_ERR_RANGE, "attention: H=%d heads; there must be at least 1", p->heads);
  DKV_REQUIRE(p->kv_heads >= 1, DKV_ERR_RANGE, "attention: Hkv=%d key heads; there must be at least 1", p->kv_heads);
  DKV_REQUIRE(p->heads % p->kv_heads == 0, DKV_ERR_SHAPE,
              "attention: H=%d is not a multiple of Hkv=%d; each key head serves H/Hkv query heads", p->heads,
              p->kv_heads);
  DKV_REQUIRE(p->head_dim >= 8 && p->head_dim <= DKV_MAX_HEAD_DIM, DKV_ERR_RANGE,
              "attention: D=%d; a head size is from 8 to %d", p->head_dim, DKV_MAX_HEAD_DIM);
  DKV_REQUIRE(p->head_dim % 8 == 0, DKV_ERR_SHAPE, "attention: D=%d is not a multiple of 8", p->head_dim);
  DKV_REQUIRE(isfinite(p->scale), DKV_ERR_RANGE, "attention: scale is %g; it must be finite", p->scale);
  double size = fabs(p->scale);
  DKV_REQUIRE(p->dtype == DKV_F64 || size == 0 || (size >= (double)FLT_MIN && size <= (double)FLT_MAX), DKV_ERR_RANGE,
              "attention: scale is %g; with %s it is 0 or, up to its sign, from %g to %g, as f32 holds it", p->scale,
              dkv_dtype_name(p->dtype), (double)FLT_MIN, (double)FLT_MAX);
  DKV_REQUIRE(p->threads >= 0, DKV_ERR_RANGE, "attention: threads=%d; it must be 0 (all) or more", p->threads);
  DKV_REQUIRE(p->dtype == DKV_F32 || p->dtype == DKV_BF16 || p->dtype == DKV_F16 || p->dtype == DKV_F64,
              DKV_ERR_UNSUPPORTED, "attention: dtype %s; tensors are f32, bf16, f16 or f64", dkv_dtype_name(p->dtype));
  return DKV_OK;
}

dkv_status dkv_attention_check(const dkv_attention *problem, dkv_direction direction) {
  DKV_REQUIRE(problem != NULL, DKV_ERR_NULL, "attention: problem is NULL");
  DKV_REQUIRE(direction == DKV_FORWARD || direction == DKV_BACKWARD, DKV_ERR_RANGE,
              "attention: direction %d is neither forward nor backward", (int)direction);
  DKV_TRY(check_shape(problem));
  if (problem->layout->rows == 0) return DKV_OK;
  const struct {
    const char *name;
    const void *pointer;
  } needed[] = {{"q", problem->q},   {"k", problem->k},     {"v", problem->v},
                {"o", problem->o},   {"lse", problem->lse}, {"dout", problem->dout},
                {"dq", problem->dq}, {"dk", problem->dk},   {"dv", problem->dv}};
  size_t count = direction == DKV_FORWARD ? 5 : 9;
  for (size_t i = 0; i < count; ++i) {
    DKV_REQUIRE(needed[i].pointer != NULL, DKV_ERR_NULL, "attention %s: %s is NULL",
                direction == DKV_FORWARD ? "forward" : "backward", needed[i].name);
  }
  return DKV_OK;
}

/** Writes the head sizes of a set, "64, 96, 128", or "every multiple of 8 up to 256". */
static void name_head_dims(char *out, size_t bytes, uint32_t set) {
  if (set == DKV_HEAD_DIMS_ALL) {
    snprintf(out, bytes, "every multiple of 8 up to %d", DKV_MAX_HEAD_DIM);
    return;
  }
  size_t used = 0;
  out[0] = '\0';
  for (int dim = 8; dim <= DKV_MAX_HEAD_DIM && used + 8 < bytes; dim += 8) {
    if (set & DKV_HEAD_DIM(dim)) used += (size_t)snprintf(out + used, bytes - used, used ? ", %d" : "%d", dim);
  }
}

/** Writes the types of a set, "bf16, f16". */
static void name_dtypes(char *out, size_t bytes, uint32_t set) {
  size_t used = 0;
  out[0] = '\0';
  for (int type = 0; type < DKV_DTYPES && used + 8 < bytes; ++type) {
    if (set & DKV_BIT(type)) {
      used += (size_t)snprintf(out + used, bytes - used, used ? ", %s" : "%s", dkv_dtype_name((dkv_dtype)type));
    }
  }
}

dkv_status dkv_kernel_check(const dkv_kernel *kernel, const dkv_attention *problem) {
  DKV_REQUIRE(kernel != NULL, DKV_ERR_NULL, "attention: kernel is NULL");
  DKV_REQUIRE(problem != NULL, DKV_ERR_NULL, "attention: problem is NULL");
  DKV_TRY(check_shape(problem));
  char takes[256];
  if (!(kernel->dtypes & DKV_BIT(problem->dtype))) {
    name_dtypes(takes, sizeof takes, kernel->dtypes);
    return dkv_fail(DKV_ERR_UNSUPPORTED, "kernel %s does not take %s; it takes %s", kernel->name,
                    dkv_dtype_name(problem->dtype), takes);
  }
  if (!(kernel->head_dims & DKV_HEAD_DIM(problem->head_dim))) {
    name_head_dims(takes, sizeof takes, kernel->head_dims);
    return dkv_fail(DKV_ERR_UNSUPPORTED, "kernel %s does not take D=%d; it takes %s", kernel->name, problem->head_dim,
                    takes);
  }
  DKV_REQUIRE(!problem->deterministic || kernel->determinism != DKV_NEVER, DKV_ERR_UNSUPPORTED,
              "kernel %s cannot be deterministic: it adds in no fixed order", kernel->name);
  return kernel->available != NULL ? kernel->available() : DKV_OK;
}

double dkv_attention_flops(const dkv_attention *problem, dkv_direction direction) {
  double forward = 4.0 * problem->head_dim * problem->heads * (double)dkv_layout_pairs(problem->layout);
  return direction == DKV_FORWARD ? forward : 2.5 * forward;
}
