/**
 * @file host.c
 * @brief Memory, clock and ceiling of the host, shared by the tables "ref" and "cpu".
 *
 * The ceiling is what a good library reaches on this machine today: a large product of random matrices (zeros would let
 * the processor run cooler and faster), by OpenBLAS with kernels that fit this processor (blas.h).
 *
 * Read before: host.h.
 */
#include "cpu/host.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/rng.h"
#include "cpu/blas.h"
#include "cpu/blas.h"

dkv_status dkv_host_allocate(void **out, size_t bytes) {
  DKV_REQUIRE(out != NULL, DKV_ERR_NULL, "allocate: out must not be NULL");
  *out = NULL;
  if (bytes == 0) return DKV_OK;
  DKV_REQUIRE(bytes <= SIZE_MAX - DKV_HOST_ALIGNMENT, DKV_ERR_NOMEM, "no host memory for %zu bytes", bytes);
  size_t whole = (bytes + DKV_HOST_ALIGNMENT - 1) / DKV_HOST_ALIGNMENT * DKV_HOST_ALIGNMENT;
  *out = aligned_alloc(DKV_HOST_ALIGNMENT, whole);
  DKV_REQUIRE(*out != NULL, DKV_ERR_NOMEM, "no host memory for %zu bytes", bytes);
  return DKV_OK;
}

void dkv_host_release(void *memory) { free(memory); }

dkv_status dkv_host_copy(void *to, const void *from, size_t bytes) {
  if (bytes == 0) return DKV_OK;
  DKV_REQUIRE(to != NULL && from != NULL, DKV_ERR_NULL, "copy of %zu bytes: a pointer is NULL", bytes);
  memcpy(to, from, bytes);
  return DKV_OK;
}

dkv_status dkv_host_fill(void *to, int value, size_t bytes) {
  if (bytes == 0) return DKV_OK;
  DKV_REQUIRE(to != NULL, DKV_ERR_NULL, "fill of %zu bytes: the pointer is NULL", bytes);
  memset(to, value, bytes);
  return DKV_OK;
}

dkv_status dkv_host_synchronize(void) { return DKV_OK; }

dkv_status dkv_host_available(void) { return DKV_OK; }

int32_t dkv_host_threads(int32_t threads) { return threads > 0 ? threads : omp_get_max_threads(); }

/** Seconds on the clock that nobody sets. */
static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

dkv_status dkv_host_time(const dkv_kernel *kernel, const dkv_attention *problem, int32_t repeats,
                         double *milliseconds) {
  DKV_REQUIRE(kernel != NULL && problem != NULL && milliseconds != NULL, DKV_ERR_NULL,
              "time: kernel, problem and milliseconds must not be NULL");
  DKV_REQUIRE(repeats > 0, DKV_ERR_RANGE, "time: repeats=%d; it must be at least 1", repeats);
  for (int32_t r = 0; r < repeats; ++r) {
    double start = seconds();
    DKV_TRY(kernel->run(problem));
    milliseconds[r] = (seconds() - start) * 1e3;
  }
  return DKV_OK;
}

/** Best FLOP/s of `repeats` products c = a b. */
static double best_product_rate(int32_t n, int32_t threads, int32_t repeats, const float *a, const float *b, float *c) {
  double best = 0;
  for (int32_t r = 0; r < repeats; ++r) {
    double start = seconds();
    dkv_sgemm_ceiling(n, a, b, c, threads);
    double rate = 2.0 * n * n * n / (seconds() - start);
    if (rate > best) best = rate;
  }
  return best;
}

dkv_status dkv_host_matmul_rate(int32_t n, dkv_dtype dtype, int32_t threads, int32_t repeats, double *flops) {
  (void)dtype;
  DKV_REQUIRE(flops != NULL, DKV_ERR_NULL, "matmul_rate: flops must not be NULL");
  DKV_REQUIRE(n > 0 && repeats > 0 && threads >= 0, DKV_ERR_RANGE,
              "matmul_rate: n=%d, repeats=%d, threads=%d; the first two are > 0, the last >= 0", n, repeats, threads);
  DKV_TRY(dkv_blas_open());
  DKV_TRY(dkv_blas_open());
  size_t elements = (size_t)n * (size_t)n;
  void *memory = NULL;
  DKV_TRY(dkv_host_allocate(&memory, 3 * elements * sizeof(float)));
  float *a = memory, *b = a + elements, *c = b + elements;
  for (size_t i = 0; i < elements; ++i) {
    dkv_rng_block word = dkv_rng(1, 0, i);
    a[i] = (float)word.word[0] * 4.656612873077393e-10f - 1.0f;
    b[i] = (float)word.word[1] * 4.656612873077393e-10f - 1.0f;
    c[i] = 0.0f;
  }
  *flops = best_product_rate(n, dkv_host_threads(threads), repeats, a, b, c);
  dkv_host_release(memory);
  return DKV_OK;
}

void dkv_host_processor(char *out, size_t bytes) {
  snprintf(out, bytes, "unknown processor");
  FILE *file = fopen("/proc/cpuinfo", "r");
  if (file == NULL) return;
  char line[512];
  while (fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, "model name", 10) != 0) continue;
    const char *colon = strchr(line, ':');
    if (colon == NULL) continue;
    line[strcspn(line, "\n")] = '\0';
    snprintf(out, bytes, "%s", colon + 1 + strspn(colon + 1, " \t"));
    break;
  }
  fclose(file);
}
