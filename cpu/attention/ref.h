/**
 * @file ref.h
 * @brief Helpers of the definition: a head's rows as doubles, back to storage, and the two loops over a row.
 *
 * Whatever the storage type, the definition computes in double: rows are converted when they are read, and rounded once
 * when they are written.
 *
 * Read before: common/attention.h.  Read next: ref_fwd.c.
 */
#ifndef DKV_REF_H
#define DKV_REF_H

#include "common/attention.h"

/** Reads row `row`, head `head` of a [T][heads][dim] tensor. @param[out] out [dim] */
static inline void load_row(double *out, const void *tensor, dkv_dtype dtype, int32_t row, int32_t head, int32_t heads,
                            int32_t dim) {
  size_t offset = (size_t)dkv_offset(row, head, heads, dim) * dkv_dtype_size(dtype);
  (void)dkv_convert(out, DKV_F64, (const char *)tensor + offset, dtype, dim);
}

/** Writes row `row`, head `head` of a [T][heads][dim] tensor. @param[in] in [dim] */
static inline void store_row(void *tensor, const double *in, dkv_dtype dtype, int32_t row, int32_t head, int32_t heads,
                             int32_t dim) {
  size_t offset = (size_t)dkv_offset(row, head, heads, dim) * dkv_dtype_size(dtype);
  (void)dkv_convert((char *)tensor + offset, dtype, in, DKV_F64, dim);
}

/** Reads all rows of head `head` of a [rows][heads][dim] tensor. @param[out] out [rows][dim] */
static inline void load_head(double *out, const void *tensor, dkv_dtype dtype, int32_t rows, int32_t head,
                             int32_t heads, int32_t dim) {
  for (int32_t row = 0; row < rows; ++row)
    load_row(out + (size_t)row * (size_t)dim, tensor, dtype, row, head, heads, dim);
}

/** Writes all rows of head `head`. @param[in] in [rows][dim] */
static inline void store_head(void *tensor, const double *in, dkv_dtype dtype, int32_t rows, int32_t head,
                              int32_t heads, int32_t dim) {
  for (int32_t row = 0; row < rows; ++row)
    store_row(tensor, in + (size_t)row * (size_t)dim, dtype, row, head, heads, dim);
}

/** <x, y> */
static inline double dot(const double *x, const double *y, int32_t dim) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int32_t d = 0; d < dim; ++d) sum += x[d] * y[d];
  return sum;
}

/** y += a x */
static inline void add_scaled(double *y, double a, const double *x, int32_t dim) {
#pragma omp simd
  for (int32_t d = 0; d < dim; ++d) y[d] += a * x[d];
}

/** Type of lse. */
static inline dkv_dtype lse_dtype(dkv_dtype dtype) { return dtype == DKV_F64 ? DKV_F64 : DKV_F32; }

#endif
