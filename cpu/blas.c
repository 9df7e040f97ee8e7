/**
 * @file blas.c
 * @brief Opens OpenBLAS at run time with kernels that fit the CPU.
 *
 * Read before: blas.h.  Read next: cpu/layers/linear.c.
 */
#include "cpu/blas.h"

#include <cblas.h>
#include <dlfcn.h>
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void sgemm_function(const enum CBLAS_ORDER, const enum CBLAS_TRANSPOSE, const enum CBLAS_TRANSPOSE,
                            const blasint, const blasint, const blasint, const float, const float *, const blasint,
                            const float *, const blasint, const float, float *, const blasint);
typedef void set_threads_function(int);
typedef char *text_function(void);

static struct {
  pthread_once_t once;
  sgemm_function *sgemm;
  set_threads_function *set_threads;
  char failure[256]; /* empty when open */
  char description[256];
} blas = {.once = PTHREAD_ONCE_INIT};

/** The kernels to ask for: the newest set that OpenBLAS has had for years and that this CPU can run. NULL: let it
 * choose. */
static const char *core_type(void) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd"))
    return "SkylakeX";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "Haswell";
#endif
  return NULL;
}

/** Finds a function; POSIX promises that dlsym's pointer may be read as a function's, ISO C needs the detour. */
static bool find(void *library, const char *name, void *function_pointer) {
  void *address = dlsym(library, name);
  memcpy(function_pointer, &address, sizeof address);
  return address != NULL;
}

static void open_once(void) {
  const char *core = core_type();
  if (core != NULL) setenv("OPENBLAS_CORETYPE", core, 0); /* 0: the user's own choice stays */
  void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    snprintf(blas.failure, sizeof blas.failure, "cannot open OpenBLAS: %s", dlerror());
    return;
  }
  text_function *core_name = NULL, *config = NULL;
  if (!find(library, "cblas_sgemm", &blas.sgemm) || !find(library, "openblas_set_num_threads", &blas.set_threads) ||
      !find(library, "openblas_get_corename", &core_name) || !find(library, "openblas_get_config", &config)) {
    snprintf(blas.failure, sizeof blas.failure, "libopenblas.so.0 lacks cblas_sgemm or OpenBLAS's own functions");
    return;
  }
  blas.set_threads(1);
  snprintf(blas.description, sizeof blas.description, "%s, %s", core_name(), config());
}

dkv_status dkv_blas_open(void) {
  pthread_once(&blas.once, open_once);
  if (blas.failure[0] != '\0') return dkv_fail(DKV_ERR_UNSUPPORTED, "%s", blas.failure);
  return DKV_OK;
}

const char *dkv_blas_describe(void) { return blas.description; }

void dkv_sgemm(bool transpose_a, bool transpose_b, int32_t m, int32_t n, int32_t k, float alpha, const float *a,
               int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
  if (m == 0 || n == 0) return;
  blas.sgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans, transpose_b ? CblasTrans : CblasNoTrans, m, n, k,
             alpha, a, (blasint)lda, b, (blasint)ldb, beta, c, (blasint)ldc);
}

void dkv_sgemm_ceiling(int32_t n, const float *a, const float *b, float *c, int32_t threads) {
  blas.set_threads(threads > 0 ? threads : omp_get_max_threads());
  blas.sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1.0f, a, n, b, n, 0.0f, c, n);
  blas.set_threads(1);
}
