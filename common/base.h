/**
 * @file base.h
 * @brief The few words that every other header needs: one macro that lets gcc and nvcc compile the same inline
 * function, the storage types, and index helpers whose offsets are 64-bit.
 *
 * Rules of this floor: `common/` says WHAT is computed (layout, mask, contracts); it never includes from `cpu/` or
 * `gpu/`.  Library code never prints, exits or aborts.
 *
 * Read next: status.h, then layout.h.
 */
#ifndef DKV_BASE_H
#define DKV_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Marks an inline function that runs on the host and on the device: nvcc gets both, gcc and clang see nothing. */
#ifdef __CUDACC__
#define DKV_HD __host__ __device__
#else
#define DKV_HD
#endif

/** A pointer that no other pointer of the same call aliases. */
#ifdef __cplusplus
#define DKV_RESTRICT __restrict__
#else
#define DKV_RESTRICT restrict
#endif

#ifdef __cplusplus
#define DKV_BEGIN_C extern "C" {
#define DKV_END_C }
#else
/** From here to DKV_END_C names have C linkage, whichever compiler reads them. */
#define DKV_BEGIN_C
/** Ends what DKV_BEGIN_C began. */
#define DKV_END_C
#endif

/**
 * Offset of a row and head in a row-major [T][heads][dim] tensor, in elements; 64-bit, since T*H*D passes 2^31.
 * @param[in] row   0 to T-1
 * @param[in] head  0 to heads-1
 * @param[in] heads heads of a row
 * @param[in] dim   elements of a head
 * @return the offset
 */
DKV_HD static inline int64_t dkv_offset(int64_t row, int64_t head, int64_t heads, int64_t dim) {
  return (row * heads + head) * dim;
}

/** ceil(a / b). @param[in] a >= 0. @param[in] b > 0. @return the quotient, rounded up. */
DKV_HD static inline int64_t dkv_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/** The smaller of two 64-bit integers. @param[in] a one. @param[in] b the other. @return the smaller. */
DKV_HD static inline int64_t dkv_min(int64_t a, int64_t b) { return a < b ? a : b; }

/** The larger of two 64-bit integers. @param[in] a one. @param[in] b the other. @return the larger. */
DKV_HD static inline int64_t dkv_max(int64_t a, int64_t b) { return a > b ? a : b; }

#endif
