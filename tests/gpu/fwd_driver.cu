/**
 * @file fwd_driver.cu
 * @brief Checks and times the Hopper forward kernel by itself, on the device, without the rest of the program.
 *
 *     fwd_driver check            many layouts, head counts, scales, types; isolation; equal bits; offsets past 2^31
 *     fwd_driver few              two layouts only: for compute-sanitizer
 *     fwd_driver bench [NAME]     useful TFLOP/s on the issue's shapes; a line of JSON each
 *
 * Exit code 1 when a check failed.  Read before: sampled_reference.cuh.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/runtime/device.h"
#include "tests/gpu/sampled_reference.cuh"

extern "C" {
dkv_status dkv_gpu_fwd_hopper_workspace(const dkv_attention *, size_t *);
dkv_status dkv_gpu_fwd_hopper_prepare(const dkv_attention *);
dkv_status dkv_gpu_fwd_hopper_run(const dkv_attention *);
}

extern "C" void dkv_x_report(void) __attribute__((weak));
static int failed = 0, passed = 0;

/** Ends the driver when a call that must work did not. */
static void must(dkv_status status, const char *what) {
  if (status == DKV_OK) return;
  printf("FAIL %s: %s\n", what, dkv_last_error());
  exit(1);
}
static void cuda_must(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return;
  printf("FAIL %s: %s\n", what, cudaGetErrorString(error));
  exit(1);
}
#define CUDA_MUST(x) cuda_must(x, #x)

enum { GUARD_ROWS = 40 };

/** A problem on the device, with NaN rows after every tensor. */
struct setup {
  dkv_layout layout;
  dkv_attention a;
  int32_t *end;
  size_t q_elements, kv_elements; /* without guards */
};

static void *device(size_t bytes) {
  void *p = nullptr;
  CUDA_MUST(cudaMalloc(&p, bytes + 16));
  CUDA_MUST(cudaMemset(p, 0xff, bytes + 16));
  return p;
}

static void fill(void *p, size_t n, dkv_dtype dtype, uint32_t seed, float size) {
  if (dtype == DKV_BF16) fill_normal<<<1024, 256>>>((__nv_bfloat16 *)p, (int64_t)n, seed, size);
  else fill_normal<<<1024, 256>>>((__half *)p, (int64_t)n, seed, size);
}

static void make(setup *s, int heads, int kv_heads, int dim, dkv_dtype dtype, double scale) {
  const int64_t rows = s->layout.rows;
  s->q_elements = (size_t)(rows * heads * dim);
  s->kv_elements = (size_t)(rows * kv_heads * dim);
  const size_t guard_q = (size_t)GUARD_ROWS * heads * dim, guard_kv = (size_t)GUARD_ROWS * kv_heads * dim;
  s->a = {};
  s->a.layout = &s->layout;
  s->a.heads = heads;
  s->a.kv_heads = kv_heads;
  s->a.head_dim = dim;
  s->a.scale = scale;
  s->a.dtype = dtype;
  void *q = device(2 * (s->q_elements + guard_q)), *k = device(2 * (s->kv_elements + guard_kv));
  void *v = device(2 * (s->kv_elements + guard_kv));
  fill(q, s->q_elements, dtype, 1, 1);
  fill(k, s->kv_elements, dtype, 2, 1);
  fill(v, s->kv_elements, dtype, 3, 1);
  s->a.q = q;
  s->a.k = k;
  s->a.v = v;
  s->a.o = device(2 * (s->q_elements + guard_q));
  s->a.lse = device(4 * (size_t)(rows * heads + GUARD_ROWS));
  s->end = (int32_t *)device(4 * (size_t)rows);
  CUDA_MUST(cudaMemcpy(s->end, s->layout.end, 4 * (size_t)rows, cudaMemcpyHostToDevice));
  must(dkv_gpu_fwd_hopper_workspace(&s->a, &s->a.workspace_bytes), "workspace");
  s->a.workspace = device(s->a.workspace_bytes);
  must(dkv_gpu_fwd_hopper_prepare(&s->a), "prepare");
}

static void drop(setup *s) {
  CUDA_MUST(cudaDeviceSynchronize());
  const void *all[] = {s->a.q, s->a.k, s->a.v, s->a.o, s->a.lse, s->end, s->a.workspace};
  for (const void *p : all) CUDA_MUST(cudaFree(const_cast<void *>(p)));
  dkv_layout_free(&s->layout);
}

static void run(setup *s) {
  must(dkv_gpu_fwd_hopper_run(&s->a), "run");
  CUDA_MUST(cudaDeviceSynchronize());
}

/** Random state of the driver. */
static uint64_t state = 88172645463325252u;
static uint32_t draw(void) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (uint32_t)(state >> 20);
}

static float element(const void *host, size_t i, dkv_dtype dtype) {
  const uint16_t bits = ((const uint16_t *)host)[i];
  return dtype == DKV_BF16 ? dkv_bf16_to_float(bits) : dkv_f16_to_float(bits);
}

/** Judges o and lse of `count` pairs against the reference; all rows and heads when count is 0. */
static void judge(setup *s, const char *name, int count) {
  const dkv_attention *a = &s->a;
  const int64_t rows = s->layout.rows;
  const int dim = a->head_dim, all = count == 0;
  if (all) count = (int)(rows * a->heads);
  reference_pair *pairs = (reference_pair *)malloc(sizeof(reference_pair) * (size_t)count);
  for (int p = 0; p < count; ++p) {
    if (all) pairs[p] = {(int32_t)(p / a->heads), p % a->heads};
    else pairs[p] = {p < count / 8 ? (int32_t)(rows - 1 - p * 3 % rows) : (int32_t)(draw() % rows), (int32_t)(draw() % a->heads)};
  }
  const int blocks = rows > 20000 ? 264 : 1056;
  reference_pair *d_pairs = (reference_pair *)device(sizeof(reference_pair) * (size_t)count);
  double *scratch = (double *)device(sizeof(double) * (size_t)(blocks * rows));
  double *d_o = (double *)device(sizeof(double) * (size_t)count * dim), *d_lse = (double *)device(sizeof(double) * (size_t)count);
  CUDA_MUST(cudaMemcpy(d_pairs, pairs, sizeof(reference_pair) * (size_t)count, cudaMemcpyHostToDevice));
  if (a->dtype == DKV_BF16)
    reference_forward<<<blocks, 128>>>((const __nv_bfloat16 *)a->q, (const __nv_bfloat16 *)a->k, (const __nv_bfloat16 *)a->v,
                                       s->end, d_pairs, count, a->heads, a->kv_heads, dim, a->scale, scratch, rows, d_o, d_lse);
  else
    reference_forward<<<blocks, 128>>>((const __half *)a->q, (const __half *)a->k, (const __half *)a->v, s->end, d_pairs,
                                       count, a->heads, a->kv_heads, dim, a->scale, scratch, rows, d_o, d_lse);
  double *o = (double *)malloc(sizeof(double) * (size_t)count * dim), *lse = (double *)malloc(sizeof(double) * (size_t)count);
  CUDA_MUST(cudaMemcpy(o, d_o, sizeof(double) * (size_t)count * dim, cudaMemcpyDeviceToHost));
  CUDA_MUST(cudaMemcpy(lse, d_lse, sizeof(double) * (size_t)count, cudaMemcpyDeviceToHost));
  uint16_t *got = (uint16_t *)malloc(2 * (size_t)count * dim);
  float *got_lse = (float *)malloc(4 * (size_t)count);
  if (all) {
    CUDA_MUST(cudaMemcpy(got, a->o, 2 * (size_t)count * dim, cudaMemcpyDeviceToHost));
    float *t = (float *)malloc(4 * (size_t)count);
    CUDA_MUST(cudaMemcpy(t, a->lse, 4 * (size_t)count, cudaMemcpyDeviceToHost));
    for (int p = 0; p < count; ++p) got_lse[p] = t[(int64_t)pairs[p].head * rows + pairs[p].row];
    free(t);
  } else
    for (int p = 0; p < count; ++p) {
      const int64_t at = dkv_offset(pairs[p].row, pairs[p].head, a->heads, dim);
      CUDA_MUST(cudaMemcpy(got + (int64_t)p * dim, (const uint16_t *)a->o + at, 2 * (size_t)dim, cudaMemcpyDeviceToHost));
      CUDA_MUST(cudaMemcpy(got_lse + p, (const float *)a->lse + (int64_t)pairs[p].head * rows + pairs[p].row, 4, cudaMemcpyDeviceToHost));
    }
  double error = 0, size = 0, worst = 0, worst_lse = 0;
  int worst_pair = 0, bad = 0;
  for (int p = 0; p < count; ++p) {
    double e = 0, n = 0;
    for (int d = 0; d < dim; ++d) {
      const double r = o[(int64_t)p * dim + d], g = element(got, (size_t)p * dim + d, a->dtype);
      if (!(fabs(g) < 1e30) && !bad++) worst_pair = p;
      e += (g - r) * (g - r);
      n += r * r;
    }
    error += e;
    size += n;
    if (!(sqrt(e / (n + 1e-30)) <= worst) && !bad) worst = sqrt(e / (n + 1e-30)), worst_pair = p;
    const double l = fabs(got_lse[p] - lse[p]) / (1 + fabs(lse[p]));
    if (!(l <= worst_lse)) worst_lse = l;
  }
  const double bound = a->dtype == DKV_BF16 ? 3e-3 : 4e-4, relative = sqrt(error / size);
  const int ok = !bad && relative <= bound && worst <= 10 * bound && worst_lse <= 1e-5;
  ok ? ++passed : ++failed;
  printf("%s %-34s T %7lld H %2d/%2d D %3d %s  error %.2e  row %.2e (row %d head %d)  lse %.1e%s\n", ok ? "pass" : "FAIL",
         name, (long long)rows, a->heads, a->kv_heads, dim, a->dtype == DKV_BF16 ? "bf16" : "f16", relative, worst,
         pairs[worst_pair].row, pairs[worst_pair].head, worst_lse, bad ? "  NaN or infinity" : "");
  void *host[] = {pairs, o, lse, got, got_lse};
  for (void *p : host) free(p);
  void *dev[] = {d_pairs, scratch, d_o, d_lse};
  for (void *p : dev) CUDA_MUST(cudaFree(p));
}

/** The guard rows after o and lse must still be NaN, bit for bit. */
static void guards(setup *s, const char *name) {
  const dkv_attention *a = &s->a;
  const size_t n = (size_t)GUARD_ROWS * a->heads * a->head_dim;
  uint8_t *host = (uint8_t *)malloc(2 * n);
  int bad = 0;
  CUDA_MUST(cudaMemcpy(host, (const uint16_t *)a->o + s->q_elements, 2 * n, cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < 2 * n; ++i) bad |= host[i] != 0xff;
  CUDA_MUST(cudaMemcpy(host, (const float *)a->lse + (size_t)s->layout.rows * a->heads, 4 * GUARD_ROWS, cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < 4 * GUARD_ROWS; ++i) bad |= host[i] != 0xff;
  free(host);
  bad ? ++failed : ++passed;
  if (bad) printf("FAIL %s: wrote past the last row\n", name);
}

/* ------------------------------------------------ layouts ------------------------------------------------ */

static dkv_layout group(int prompt, int n, int r0, int step) {
  int32_t length[512];
  for (int i = 0; i < n; ++i) length[i] = step < 0 ? (int32_t)(draw() % (uint32_t)r0) : r0 + i * step;
  dkv_layout out;
  must(dkv_layout_group(&out, prompt, n, length), "layout");
  return out;
}

static dkv_layout forest(int n, const int32_t *parent, const int32_t *length) {
  dkv_layout out;
  must(dkv_layout_forest(&out, n, parent, length), "layout");
  return out;
}

/** Random tree, depth first: every segment's parent is a proper ancestor-or-self of the previous one. */
static dkv_layout random_forest(int n, int longest) {
  int32_t parent[512], length[512];
  for (int i = 0; i < n; ++i) {
    int p = i - 1;
    while (p >= 0 && draw() % 2) p = parent[p];
    parent[i] = p;
    length[i] = draw() % 5 == 0 ? 0 : (int32_t)(draw() % (uint32_t)longest);
  }
  return forest(n, parent, length);
}

static dkv_layout small_layout(int which, const char **name) {
  static const int32_t chain_parent[] = {-1, 0, 1, 2, 2, 1, 5, 0, 7, 7}, chain_length[] = {70, 33, 150, 41, 260, 5, 90, 128, 0, 300};
  static const int32_t two_parent[] = {-1, 0, 0, -1, 3, 3, 3, -1}, two_length[] = {50, 100, 0, 130, 257, 1, 64, 90};
  switch (which) {
  case 0: *name = "one row"; return group(1, 0, 0, 0);
  case 1: *name = "3 + 2 x 2"; return group(3, 2, 2, 0);
  case 2: *name = "128 + 2 x 128"; return group(128, 2, 128, 0);
  case 3: *name = "ragged 127 + 9 x 3.."; return group(127, 9, 3, 37);
  case 4: *name = "300 + 7 random"; return group(300, 7, 700, -1);
  case 5: *name = "1000 + 64 x 3"; return group(1000, 64, 3, 0);
  case 6: *name = "no prompt, 5 x 200"; return group(0, 5, 200, 0);
  case 7: *name = "tree of depth 5"; return forest(10, chain_parent, chain_length);
  case 8: *name = "groups, ragged, empty"; return forest(8, two_parent, two_length);
  case 9: *name = "causal 1025"; return group(1025, 0, 0, 0);
  case 10: *name = "causal 1023"; return group(1023, 0, 0, 0);
  case 11: *name = "random forest"; return random_forest(60, 60);
  case 12: *name = "random forest, short"; return random_forest(300, 9);
  case 13: *name = "random forest, long"; return random_forest(12, 500);
  default: *name = "512 + 8 x 128"; return group(512, 8, 128, 0);
  }
}
enum { SMALL_LAYOUTS = 15 };

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

static void check_scales(void) {
  static const double scales[] = {-0.1, 0, 1e-60, 1e-3, 3, -2};
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
  const int different = memcmp(before, after, begin * row) != 0 ||
                        memcmp(before + end * row, after + end * row, bytes - end * row) != 0;
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

static void bench(const char *variant, const char *name, dkv_layout layout, int dim, dkv_dtype dtype, int check) {
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
    must(dkv_gpu_fwd_hopper_run(&s.a), "run");
    CUDA_MUST(cudaEventRecord(end));
    CUDA_MUST(cudaEventSynchronize(end));
    if (i >= 0) CUDA_MUST(cudaEventElapsedTime(&time[i], begin, end));
  }
  qsort(time, (size_t)repeats, sizeof *time, ascending);
  printf("{\"variant\": \"%s\", \"shape\": \"%s\", \"rows\": %d, \"D\": %d, \"dtype\": \"%s\", \"ms\": %.4f, \"ms_min\": %.4f, "
         "\"tflops\": %.1f}\n",
         variant, name, s.layout.rows, dim, dtype == DKV_BF16 ? "bf16" : "f16", time[repeats / 2], time[0],
         flops / time[repeats / 2] * 1e-9);
  fflush(stdout);
  if (dkv_x_report) dkv_x_report();
  if (check) judge(&s, name, 96);
  drop(&s);
}

/** 32 lognormal lengths with median 540 by a fixed rule (quantiles, shuffled). */
static dkv_layout lognormal(void) {
  int32_t length[32];
  for (int i = 0; i < 32; ++i) {
    const double z = ((i * 13 % 32) + 0.5) / 32; /* quantile; the inverse normal by a short rational fit */
    const double t = sqrt(-2 * log(z < 0.5 ? z : 1 - z));
    const double n = t - (2.515517 + 0.802853 * t + 0.010328 * t * t) / (1 + 1.432788 * t + 0.189269 * t * t + 0.001308 * t * t * t);
    length[i] = (int32_t)(540 * exp((z < 0.5 ? -n : n) * 0.7));
  }
  dkv_layout out;
  must(dkv_layout_group(&out, 3000, 32, length), "layout");
  return out;
}

static void bench_all(const char *variant, int check) {
  bench(variant, "28,4096,2048", group(4096, 28, 2048, 0), 128, DKV_BF16, check);
  bench(variant, "32,8192,1024", group(8192, 32, 1024, 0), 128, DKV_BF16, check);
  bench(variant, "28,16384,2048", group(16384, 28, 2048, 0), 128, DKV_BF16, check);
  bench(variant, "16,32768,2048", group(32768, 16, 2048, 0), 128, DKV_BF16, check);
  bench(variant, "28,32768,2048", group(32768, 28, 2048, 0), 128, DKV_BF16, check);
  bench(variant, "lognormal", lognormal(), 128, DKV_BF16, check);
  bench(variant, "8,512,128", group(512, 8, 128, 0), 128, DKV_BF16, check);
  bench(variant, "28,16384,2048", group(16384, 28, 2048, 0), 128, DKV_F16, check);
  bench(variant, "28,16384,2048", group(16384, 28, 2048, 0), 64, DKV_BF16, check);
  bench(variant, "28,16384,2048", group(16384, 28, 2048, 0), 64, DKV_F16, check);
}

static void bench_short(const char *variant) {
  bench(variant, "28,4096,2048", group(4096, 28, 2048, 0), 128, DKV_BF16, 0);
  bench(variant, "16,32768,2048", group(32768, 16, 2048, 0), 128, DKV_BF16, 0);
  bench(variant, "lognormal", lognormal(), 128, DKV_BF16, 0);
  bench(variant, "28,16384,2048", group(16384, 28, 2048, 0), 64, DKV_BF16, 1);
}

int main(int argc, char **argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const char *mode = argc > 1 ? argv[1] : "check", *variant = argc > 2 ? argv[2] : "";
  if (strcmp(mode, "check") == 0) {
    check_layouts(0, SMALL_LAYOUTS);
    check_scales();
    check_bits(128);
    check_bits(64);
    check_isolation(DKV_BF16, 128);
    check_isolation(DKV_F16, 128);
    check_isolation(DKV_BF16, 64);
    check_offsets();
  } else if (strcmp(mode, "few") == 0) check_layouts(3, 5);
  else if (strcmp(mode, "bench") == 0) bench_all(variant, 1);
  else bench_short(variant);
  printf("%d passed, %d failed\n", passed, failed);
  return failed != 0 || (strcmp(mode, "check") == 0 && passed == 0);
}
