/**
 * @file dtype.h
 * @brief Storage types and the conversions between them, with the same bits from gcc and nvcc.
 *
 * Kernels store in one of these and accumulate in f32 (the reference: in double).  Rounding is to nearest, ties to
 * even; NaN stays NaN; overflow gives infinity.
 *
 * Read before: base.h.
 */
#ifndef DKV_DTYPE_H
#define DKV_DTYPE_H

#include <string.h>

#include "common/status.h"

DKV_BEGIN_C

/** Element types of tensors and files. */
typedef enum dkv_dtype { DKV_F32, DKV_BF16, DKV_F16, DKV_F64, DKV_I32, DKV_I64, DKV_U8, DKV_DTYPES } dkv_dtype;

/** One bit per dtype, for sets. @param[in] dtype a type below DKV_DTYPES. */
#define DKV_BIT(dtype) (1u << (dtype))

/** Bytes of one element. @param[in] dtype a type. @return 1, 2, 4 or 8; 0 for an unknown value. */
size_t dkv_dtype_size(dkv_dtype dtype);

/** Lower-case name, "bf16". @param[in] dtype a type. @return a static string; "?" for an unknown value. */
const char *dkv_dtype_name(dkv_dtype dtype);

/**
 * Reads a lower-case name.
 * @param[out] out  overwritten; untouched on failure
 * @param[in]  name e.g. "bf16"
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE
 */
dkv_status dkv_dtype_parse(dkv_dtype *out, const char *name);

/** The bits of a float. @param[in] x any. @return its bits. */
DKV_HD static inline uint32_t dkv_float_bits(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}

/** The float with these bits. @param[in] u any bits. @return the float. */
DKV_HD static inline float dkv_bits_float(uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}

/** bf16 bits to float: exact. @param[in] h any bits. @return the value. */
DKV_HD static inline float dkv_bf16_to_float(uint16_t h) { return dkv_bits_float((uint32_t)h << 16); }

/** float to bf16, nearest even; NaN keeps its sign and becomes quiet. @param[in] x any. @return bf16 bits. */
DKV_HD static inline uint16_t dkv_float_to_bf16(float x) {
  uint32_t u = dkv_float_bits(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
  return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/** f16 bits to float: exact. @param[in] h any bits. @return the value. */
DKV_HD static inline float dkv_f16_to_float(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, fraction = h & 0x3ffu;
  if (exponent == 31) return dkv_bits_float(sign | 0x7f800000u | (fraction << 13));
  if (exponent != 0) return dkv_bits_float(sign | ((exponent + 112u) << 23) | (fraction << 13));
  float magnitude = (float)fraction * 5.9604644775390625e-8f; /* subnormal: fraction * 2^-24 */
  return dkv_bits_float(sign | dkv_float_bits(magnitude));
}

/** float to f16, nearest even, with subnormals; |x| >= 65520 becomes infinity. @param[in] x any. @return f16 bits. */
DKV_HD static inline uint16_t dkv_float_to_f16(float x) {
  uint32_t u = dkv_float_bits(x), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
  if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
  if (a < 0x38800000u) { /* below 2^-14: add 0.5, whose ulp is 2^-24, so the FPU rounds to a multiple of 2^-24 */
    float shifted = dkv_bits_float(a) + 0.5f;
    return (uint16_t)(sign | (dkv_float_bits(shifted) - 0x3f000000u));
  }
  return (uint16_t)(sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13));
}

/**
 * Converts n elements from one type to another (f32, bf16, f16, f64 in any combination), each rounded exactly
 * once: f64 does not pass through f32 on its way to a 16-bit type.  Neither tensor need be aligned.
 * @param[out] out  n elements of type to; must not overlap in
 * @param[in]  to   type of out
 * @param[in]  in   n elements of type from
 * @param[in]  from type of in
 * @param[in]  n    elements; nothing is done when n <= 0
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_UNSUPPORTED for an integer type
 */
dkv_status dkv_convert(void *out, dkv_dtype to, const void *in, dkv_dtype from, int64_t n);

/**
 * One element as a double.
 * @param[in] data  a tensor of any type, aligned or not
 * @param[in] dtype its type
 * @param[in] i     index
 * @return its value (an i64 beyond 2^53 is rounded); NaN for an unknown type
 */
double dkv_element(const void *data, dkv_dtype dtype, int64_t i);

DKV_END_C
#endif
