/**
 * @file fwd_driver.cu
 * @brief Checks and times the Hopper forward kernels by themselves, on the device, without the rest of the program.
 *
 *     fwd_driver check [wgmma]    many layouts, head counts, scales, types; isolation; equal bits; offsets past 2^31
 *     fwd_driver few [wgmma]      both head sizes, some items a multiprocessor: for compute-sanitizer
 *     fwd_driver once [wgmma]     one launch on 28,4096,2048: for a profiler
 *     fwd_driver types [wgmma]    bf16 and f16 in turn on one shape: the same work at the same heat
 *     fwd_driver small [wgmma]    a small problem: time of a call on the host and on the device
 *     fwd_driver bench [wgmma]    useful TFLOP/s on the issue's shapes; a line of JSON each
 *
 * Exit code 1 when a check failed.  Read before: fwd_setup.cuh.
 */
#include "tests/gpu/fwd_setup.cuh"

/* ------------------------------------------------ checks ------------------------------------------------ */

static void check_layouts(int from, int to) {
  static const int heads[][2] = {{4, 4}, {4, 1}, {8, 2}, {6, 2}, {5, 1}, {32, 8}};
  for (int dim = 64; dim <= 128; dim += 64)
    for (int type = 0; type < 2; ++type)
      for (int which = from; which < to; ++which) {
        const char *name;
        setup s;
        s.layout = small_layout(which, &name);
        const int *h = heads[(which + type * 2 + dim / 64) % 6];
        make(&s, h[0], h[1], dim, type ? DKV_F16 : DKV_BF16, 1 / sqrt(dim));
        run(&s);
        judge(&s, name, 0);
        guards(&s, name);
        drop(&s);
      }
}

static void check_few(void) {
  for (int dim = 64; dim <= 128; dim += 64) {
    setup s;
    s.layout = group(600, 10, 100, 7);
    make(&s, 32, 8, dim, DKV_BF16, 1 / sqrt(dim));
    run(&s);
    judge(&s, "some items a multiprocessor", 7);
    drop(&s);
  }
}

static void check_scales(void) {
  static const double scales[] = {-0.1, 0, 1e-37, 1e-3, 3, -2};
  for (double scale : scales) {
    setup s;
    s.layout = group(200, 5, 90, 11);
    make(&s, 4, 2, scale == 3 ? 64 : 128, DKV_BF16, scale);
    run(&s);
    char name[64];
    snprintf(name, sizeof name, "scale %g", scale);
    judge(&s, name, 0);
    drop(&s);
  }
}

/** Equal bits over 20 runs, also with outputs poisoned in between. */
static void check_bits(int dim) {
  setup s;
  s.layout = group(700, 40, 1, 13);
  make(&s, 8, 2, dim, DKV_BF16, 0.1);
  run(&s);
  const size_t bytes = 2 * s.q_elements;
  void *first = malloc(bytes), *again = malloc(bytes);
  CUDA_MUST(cudaMemcpy(first, s.a.o, bytes, cudaMemcpyDeviceToHost));
  int different = 0;
  for (int i = 0; i < 20; ++i) {
    CUDA_MUST(cudaMemset(s.a.o, 0xff, bytes));
    run(&s);
    CUDA_MUST(cudaMemcpy(again, s.a.o, bytes, cudaMemcpyDeviceToHost));
    different += memcmp(first, again, bytes) != 0;
  }
  different ? ++failed : ++passed;
  printf("%s 20 runs, D %d: %d differ\n", different ? "FAIL" : "pass", dim, different);
  free(first);
  free(again);
  drop(&s);
}

/** Huge values in response 1 must not change one bit of the prompt and of the other responses. */
static void check_isolation(dkv_dtype dtype, int dim) {
  setup s;
  s.layout = group(200, 4, 150, 21);
  make(&s, 4, 2, dim, dtype, 1 / sqrt(dim));
  run(&s);
  const size_t bytes = 2 * s.q_elements, row = (size_t)4 * dim * 2;
  uint8_t *before = (uint8_t *)malloc(bytes), *after = (uint8_t *)malloc(bytes);
  CUDA_MUST(cudaMemcpy(before, s.a.o, bytes, cudaMemcpyDeviceToHost));
  const int32_t begin = s.layout.start[2], end = s.layout.start[3];
  const size_t at = (size_t)begin * 2 * dim, n = (size_t)(end - begin) * 2 * dim;
  const uint16_t huge = dtype == DKV_BF16 ? dkv_float_to_bf16(3e38f) : dkv_float_to_f16(65504.0f);
  uint16_t *host = (uint16_t *)malloc(2 * n);
  for (size_t i = 0; i < n; ++i) host[i] = (uint16_t)(huge | (draw() % 2 ? 0x8000 : 0));
  CUDA_MUST(cudaMemcpy((uint16_t *)s.a.k + at, host, 2 * n, cudaMemcpyHostToDevice));
  CUDA_MUST(cudaMemcpy((uint16_t *)s.a.v + at, host, 2 * n, cudaMemcpyHostToDevice));
  run(&s);
  CUDA_MUST(cudaMemcpy(after, s.a.o, bytes, cudaMemcpyDeviceToHost));
  const int different =
      memcmp(before, after, begin * row) != 0 || memcmp(before + end * row, after + end * row, bytes - end * row) != 0;
  different ? ++failed : ++passed;
  printf("%s isolation, D %d %s\n", different ? "FAIL" : "pass", dim, dtype == DKV_BF16 ? "bf16" : "f16");
  free(before);
  free(after);
  free(host);
  drop(&s);
}

/** T H D past 2^31 elements, judged at the end. */
static void check_offsets(void) {
  setup s;
  int32_t *parent = (int32_t *)malloc(4 * 300), *length = (int32_t *)malloc(4 * 300);
  for (int i = 0; i < 300; ++i) parent[i] = -1, length[i] = 1900 + i;
  s.layout = forest(300, parent, length);
  free(parent);
  free(length);
  make(&s, 32, 8, 128, DKV_BF16, 0.09);
  run(&s);
  judge(&s, "offsets past 2^31", 256);
  guards(&s, "offsets past 2^31");
  drop(&s);
}

/* ------------------------------------------------ times ------------------------------------------------ */

static int ascending(const void *a, const void *b) {
  const float x = *(const float *)a, y = *(const float *)b;
  return x < y ? -1 : x > y;
}

static void bench(const char *name, dkv_layout layout, int dim, dkv_dtype dtype, int check) {
  setup s;
  s.layout = layout;
  make(&s, 32, 8, dim, dtype, 1 / sqrt(dim));
  run(&s);
  const double flops = 4.0 * dim * 32 * (double)dkv_layout_pairs(&s.layout);
  int repeats = (int)(0.25 / (flops / 6e14)) + 1; /* about a quarter of a second a shape */
  if (repeats > 40) repeats = 40;
  if (repeats < 5) repeats = 5;
  float time[64];
  cudaEvent_t begin, end;
  CUDA_MUST(cudaEventCreate(&begin));
  CUDA_MUST(cudaEventCreate(&end));
  for (int i = -2; i < repeats; ++i) {
    CUDA_MUST(cudaEventRecord(begin));
    must(kernel.run(&s.a), "run");
    CUDA_MUST(cudaEventRecord(end));
    CUDA_MUST(cudaEventSynchronize(end));
    if (i >= 0) CUDA_MUST(cudaEventElapsedTime(&time[i], begin, end));
  }
  qsort(time, (size_t)repeats, sizeof *time, ascending);
  printf("{\"kernel\": \"%s\", \"shape\": \"%s\", \"rows\": %d, \"D\": %d, \"dtype\": \"%s\", \"ms\": %.4f, "
         "\"ms_min\": %.4f, "
         "\"tflops\": %.1f}\n",
         kernel.name, name, s.layout.rows, dim, dtype == DKV_BF16 ? "bf16" : "f16", time[repeats / 2], time[0],
         flops / time[repeats / 2] * 1e-9);
  fflush(stdout);
  if (check) judge(&s, name, 96);
  drop(&s);
}

/** 32 lognormal lengths with median 540 by a fixed rule (quantiles, shuffled). */
static dkv_layout lognormal(void) {
  int32_t length[32];
  for (int i = 0; i < 32; ++i) {
    const double z = ((i * 13 % 32) + 0.5) / 32; /* quantile; the inverse normal by a short rational fit */
    const double t = sqrt(-2 * log(z < 0.5 ? z : 1 - z));
    const double n =
        t - (2.515517 + 0.802853 * t + 0.010328 * t * t) / (1 + 1.432788 * t + 0.189269 * t * t + 0.001308 * t * t * t);
    length[i] = (int32_t)(540 * exp((z < 0.5 ? -n : n) * 0.7));
  }
  dkv_layout out;
  must(dkv_layout_group(&out, 3000, 32, length), "layout");
  return out;
}

static void bench_all(int check) {
  bench("28,4096,2048", group(4096, 28, 2048, 0), 128, DKV_BF16, check);
  bench("32,8192,1024", group(8192, 32, 1024, 0), 128, DKV_BF16, check);
  bench("28,16384,2048", group(16384, 28, 2048, 0), 128, DKV_BF16, check);
  bench("16,32768,2048", group(32768, 16, 2048, 0), 128, DKV_BF16, check);
  bench("28,32768,2048", group(32768, 28, 2048, 0), 128, DKV_BF16, check);
  bench("lognormal", lognormal(), 128, DKV_BF16, check);
  bench("8,512,128", group(512, 8, 128, 0), 128, DKV_BF16, check);
  bench("28,16384,2048", group(16384, 28, 2048, 0), 128, DKV_F16, check);
  bench("28,16384,2048", group(16384, 28, 2048, 0), 64, DKV_BF16, check);
  bench("28,16384,2048", group(16384, 28, 2048, 0), 64, DKV_F16, check);
}

/** A small problem, launched many times without waiting: what a call costs the host, and what it costs the device. */
static void bench_small(void) {
  enum { CALLS = 400 };
  setup s;
  s.layout = group(512, 8, 128, 0);
  make(&s, 32, 8, 128, DKV_BF16, 0.09);
  run(&s);
  cudaEvent_t begin, end;
  CUDA_MUST(cudaEventCreate(&begin));
  CUDA_MUST(cudaEventCreate(&end));
  struct timespec from, to;
  CUDA_MUST(cudaEventRecord(begin));
  clock_gettime(CLOCK_MONOTONIC, &from);
  for (int i = 0; i < CALLS; ++i) must(kernel.run(&s.a), "run");
  clock_gettime(CLOCK_MONOTONIC, &to);
  CUDA_MUST(cudaEventRecord(end));
  CUDA_MUST(cudaEventSynchronize(end));
  float ms = 0;
  CUDA_MUST(cudaEventElapsedTime(&ms, begin, end));
  const double host = (double)(to.tv_sec - from.tv_sec) * 1e6 + (double)(to.tv_nsec - from.tv_nsec) * 1e-3;
  printf("{\"kernel\": \"%s\", \"shape\": \"8,512,128\", \"calls\": %d, \"host_us\": %.2f, \"device_us\": %.2f}\n",
         kernel.name, CALLS, host / CALLS, ms * 1e3 / CALLS);
  judge(&s, "8,512,128", 96);
  drop(&s);
}

int main(int argc, char **argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const char *mode = argc > 1 ? argv[1] : "check";
  if (argc > 2 && strcmp(argv[2], "wgmma") == 0)
    kernel = {"wgmma", dkv_gpu_fwd_wgmma_workspace, dkv_gpu_fwd_wgmma_prepare, dkv_gpu_fwd_wgmma_run};
  if (strcmp(mode, "bench") == 0) bench_all(1);
  else if (strcmp(mode, "few") == 0) check_few();
  else if (strcmp(mode, "types") == 0)
    for (int i = 0; i < 3; ++i) {
      bench("28,16384,2048", group(16384, 28, 2048, 0), 128, DKV_BF16, 1);
      bench("28,16384,2048", group(16384, 28, 2048, 0), 128, DKV_F16, 1);
    }
  else if (strcmp(mode, "small") == 0) bench_small();
  else if (strcmp(mode, "once") == 0) {
    setup s;
    s.layout = group(4096, 28, 2048, 0);
    make(&s, 32, 8, 128, DKV_BF16, 0.088);
    run(&s);
    judge(&s, "28,4096,2048", 96);
    drop(&s);
  } else {
    check_layouts(0, SMALL_LAYOUTS);
    check_scales();
    check_bits(128);
    check_bits(64);
    check_isolation(DKV_BF16, 128);
    check_isolation(DKV_F16, 128);
    check_isolation(DKV_BF16, 64);
    check_offsets();
  }
  printf("%d passed, %d failed\n", passed, failed);
  return failed != 0 || passed == 0;
}
