/**
 * @file blas.h
 * @brief The one door to OpenBLAS: opened at run time, because it must be told which CPU it runs on before it loads.
 *
 * OpenBLAS chooses its kernels once, while it loads, by the CPU's model number; a CPU that is newer than the library
 * gets the kernels of 2004 (SSE3), measured five times slower here.  So nothing links to it: dkv_blas_open() looks at
 * what the CPU can do, sets OPENBLAS_CORETYPE unless the user has, and opens the library.
 *
 * OpenBLAS itself is kept to one thread; callers cut a product into tiles inside their own OpenMP loop.  A tiling that
 * depends on the shape alone gives the same bits for any number of threads.
 *
 * Read before: common/status.h.  Read next: cpu/layers/linear.c.
 */
#ifndef DKV_CPU_BLAS_H
#define DKV_CPU_BLAS_H

#include "common/status.h"

DKV_BEGIN_C

/**
 * Opens OpenBLAS, once per process; safe to call from several threads and cheap to call again.
 * @return DKV_OK; DKV_ERR_UNSUPPORTED (no libopenblas.so.0, or one without the functions needed)
 */
dkv_status dkv_blas_open(void);

/** What dkv_blas_open chose, for people: "SkylakeX, OpenBLAS 0.3.21 ...". @return a static string, "" before it is
 * open. */
const char *dkv_blas_describe(void);

/**
 * C = alpha op(A) op(B) + beta C, row-major, on the calling thread; callable from several threads at once.  After
 * dkv_blas_open only.  With beta = 0 C is not read.
 * @param[in]     transpose_a op(A) = A^T, stored [k][m]; otherwise A is [m][k]
 * @param[in]     transpose_b op(B) = B^T, stored [n][k]; otherwise B is [k][n]
 * @param[in]     m,n,k       C is [m][n], the sum runs over k; a zero size is legal
 * @param[in]     alpha       factor of the product
 * @param[in]     a,lda       A and its row stride in elements
 * @param[in]     b,ldb       B and its row stride
 * @param[in]     beta        factor of the old C
 * @param[in,out] c,ldc       C and its row stride
 */
void dkv_sgemm(bool transpose_a, bool transpose_b, int32_t m, int32_t n, int32_t k, float alpha, const float *a,
               int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

/**
 * OpenBLAS's own product of two n x n matrices on `threads` threads, C = A B: the ceiling that benchmarks name.  Not
 * while another thread computes.
 * @param[in]  n       size
 * @param[in]  a,b     [n][n]
 * @param[out] c       [n][n]
 * @param[in]  threads >= 1; 0 = what OpenMP gives
 */
void dkv_sgemm_ceiling(int32_t n, const float *a, const float *b, float *c, int32_t threads);

DKV_END_C
#endif
