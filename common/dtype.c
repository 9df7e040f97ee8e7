/**
 * @file dtype.c
 * @brief Conversions between storage types, each with exactly one rounding.
 *
 * Rounding twice is not rounding once.  1 + 2^-8 + 2^-40 in double lies just above the middle between two bf16 values
 * and must go up; rounded to float first it lands on the middle, and ties-to-even sends it down.  So double goes to
 * float "to odd": cut towards zero, and when anything was cut off, set the last bit.  That bit says "a little more than
 * this" to the second rounding, which is then right (float has more than two bits beyond bf16 and f16, subnormals
 * included).
 *
 * Elements are read and written through memcpy, because tensors of a mapped file need not be aligned.
 *
 * Read before: dtype.h.  Read next: compare.c.
 */
#include "common/dtype.h"

#include <math.h>

static const struct {
  const char *name;
  size_t size;
} TYPES[DKV_DTYPES] = {[DKV_F32] = {"f32", 4}, [DKV_BF16] = {"bf16", 2}, [DKV_F16] = {"f16", 2}, [DKV_F64] = {"f64", 8},
                       [DKV_I32] = {"i32", 4}, [DKV_I64] = {"i64", 8},   [DKV_U8] = {"u8", 1}};

static bool is_known(dkv_dtype dtype) { return (unsigned)dtype < (unsigned)DKV_DTYPES; }

static bool is_float(dkv_dtype dtype) {
  return dtype == DKV_F32 || dtype == DKV_BF16 || dtype == DKV_F16 || dtype == DKV_F64;
}

size_t dkv_dtype_size(dkv_dtype dtype) { return is_known(dtype) ? TYPES[dtype].size : 0; }

const char *dkv_dtype_name(dkv_dtype dtype) { return is_known(dtype) ? TYPES[dtype].name : "?"; }

dkv_status dkv_dtype_parse(dkv_dtype *out, const char *name) {
  DKV_REQUIRE(out != NULL && name != NULL, DKV_ERR_NULL, "dkv_dtype_parse: out and name must not be NULL");
  for (int i = 0; i < (int)DKV_DTYPES; ++i) {
    if (strcmp(name, TYPES[i].name) == 0) {
      *out = (dkv_dtype)i;
      return DKV_OK;
    }
  }
  return dkv_fail(DKV_ERR_RANGE, "\"%.40s\" is no element type; there are f32, bf16, f16, f64, i32, i64, u8", name);
}

/** The float next to x towards zero when x was rounded, with its last bit set: see the head of this file. */
static float round_to_odd(double x) {
  float nearest = (float)x;
  if (x != x || (double)nearest == x) return nearest;
  uint32_t bits = dkv_float_bits(nearest);
  if (fabs((double)nearest) > fabs(x)) --bits; /* sign and magnitude: one less is one step towards zero, from inf too */
  return dkv_bits_float(bits | 1u);
}

double dkv_element(const void *data, dkv_dtype dtype, int64_t i) {
  const char *at = (const char *)data + (size_t)i * dkv_dtype_size(dtype);
  union {
    float f32;
    double f64;
    uint16_t half;
    int32_t i32;
    int64_t i64;
  } u;
  switch (dtype) {
  case DKV_F32: memcpy(&u.f32, at, sizeof u.f32); return (double)u.f32;
  case DKV_BF16: memcpy(&u.half, at, sizeof u.half); return (double)dkv_bf16_to_float(u.half);
  case DKV_F16: memcpy(&u.half, at, sizeof u.half); return (double)dkv_f16_to_float(u.half);
  case DKV_F64: memcpy(&u.f64, at, sizeof u.f64); return u.f64;
  case DKV_I32: memcpy(&u.i32, at, sizeof u.i32); return (double)u.i32;
  case DKV_I64: memcpy(&u.i64, at, sizeof u.i64); return (double)u.i64;
  case DKV_U8: return (double)*(const unsigned char *)at;
  case DKV_DTYPES: break;
  }
  return (double)NAN;
}

enum { BLOCK = 256 }; /* elements that are widened before they are narrowed */

/** Widens n elements to double, exactly; one loop a type, so that the choice is made once. */
static void widen(double *out, const char *in, dkv_dtype from, int64_t n) {
  switch (from) {
  case DKV_F32:
    for (int64_t i = 0; i < n; ++i) out[i] = dkv_element(in, DKV_F32, i);
    return;
  case DKV_BF16:
    for (int64_t i = 0; i < n; ++i) out[i] = dkv_element(in, DKV_BF16, i);
    return;
  case DKV_F16:
    for (int64_t i = 0; i < n; ++i) out[i] = dkv_element(in, DKV_F16, i);
    return;
  default: memcpy(out, in, (size_t)n * sizeof *out); return;
  }
}

/** Rounds n doubles, each once. */
static void narrow(char *out, dkv_dtype to, const double *in, int64_t n) {
  float single[BLOCK];
  uint16_t half[BLOCK];
  switch (to) {
  case DKV_F32:
    for (int64_t i = 0; i < n; ++i) single[i] = (float)in[i];
    memcpy(out, single, (size_t)n * sizeof *single);
    return;
  case DKV_BF16:
    for (int64_t i = 0; i < n; ++i) half[i] = dkv_float_to_bf16(round_to_odd(in[i]));
    memcpy(out, half, (size_t)n * sizeof *half);
    return;
  case DKV_F16:
    for (int64_t i = 0; i < n; ++i) half[i] = dkv_float_to_f16(round_to_odd(in[i]));
    memcpy(out, half, (size_t)n * sizeof *half);
    return;
  default: memcpy(out, in, (size_t)n * sizeof *in); return;
  }
}

dkv_status dkv_convert(void *out, dkv_dtype to, const void *in, dkv_dtype from, int64_t n) {
  DKV_REQUIRE(is_float(to) && is_float(from), DKV_ERR_UNSUPPORTED,
              "dkv_convert: %s to %s; only f32, bf16, f16 and f64 are converted", dkv_dtype_name(from),
              dkv_dtype_name(to));
  if (n <= 0) return DKV_OK;
  DKV_REQUIRE(out != NULL && in != NULL, DKV_ERR_NULL, "dkv_convert: out and in must not be NULL");
  if (to == from) {
    memcpy(out, in, (size_t)n * dkv_dtype_size(to));
    return DKV_OK;
  }
  double wide[BLOCK];
  for (int64_t i = 0; i < n; i += BLOCK) {
    int64_t size = dkv_min(BLOCK, n - i);
    widen(wide, (const char *)in + (size_t)i * dkv_dtype_size(from), from, size);
    narrow((char *)out + (size_t)i * dkv_dtype_size(to), to, wide, size);
  }
  return DKV_OK;
}
