/**
 * @file fwd_setup.cuh
 * @brief What the forward driver stands on: problems on the device with NaN after every tensor, a judge, small layouts.
 *
 * Read before: on_device.cuh, sampled_reference.cuh.  Read next: fwd_driver.cu.
 */
#ifndef DKV_TESTS_FWD_SETUP_CUH
#define DKV_TESTS_FWD_SETUP_CUH

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu/runtime/device.h"
#include "tests/gpu/on_device.cuh"
#include "tests/gpu/sampled_reference.cuh"

extern "C" {
dkv_status dkv_gpu_fwd_hopper_workspace(const dkv_attention *, size_t *);
dkv_status dkv_gpu_fwd_hopper_prepare(const dkv_attention *);
dkv_status dkv_gpu_fwd_hopper_run(const dkv_attention *);
dkv_status dkv_gpu_fwd_wgmma_workspace(const dkv_attention *, size_t *);
dkv_status dkv_gpu_fwd_wgmma_prepare(const dkv_attention *);
dkv_status dkv_gpu_fwd_wgmma_run(const dkv_attention *);
}

/** The kernel under test: rung 7, or rung 6 when asked for. */
static struct {
  const char *name;
  dkv_status (*workspace)(const dkv_attention *, size_t *);
  dkv_status (*prepare)(const dkv_attention *);
  dkv_status (*run)(const dkv_attention *);
} kernel = {"hopper", dkv_gpu_fwd_hopper_workspace, dkv_gpu_fwd_hopper_prepare, dkv_gpu_fwd_hopper_run};

static int failed = 0, passed = 0;

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
  must(kernel.workspace(&s->a, &s->a.workspace_bytes), "workspace");
  s->a.workspace = device(s->a.workspace_bytes);
  must(kernel.prepare(&s->a), "prepare");
}

static void drop(setup *s) {
  CUDA_MUST(cudaDeviceSynchronize());
  const void *all[] = {s->a.q, s->a.k, s->a.v, s->a.o, s->a.lse, s->end, s->a.workspace};
  for (const void *p : all) CUDA_MUST(cudaFree(const_cast<void *>(p)));
  dkv_layout_free(&s->layout);
}

static void run(setup *s) {
  must(kernel.run(&s->a), "run");
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

/** The pairs to judge, what the kernel gave for them, and what the reference says. */
struct verdicts {
  int count;
  reference_pair *pairs;
  uint16_t *got;   /**< [count][D] */
  float *got_lse;  /**< [count] */
  double *o, *lse; /**< [count][D], [count] */
};

/** Chooses `count` pairs, an eighth of them at the end of T; all rows and heads when count is 0. */
static void choose_pairs(verdicts *v, const setup *s, int count) {
  const int64_t rows = s->layout.rows;
  const int heads = s->a.heads, dim = s->a.head_dim;
  v->count = count == 0 ? (int)(rows * heads) : count;
  const size_t n = (size_t)v->count;
  v->pairs = (reference_pair *)malloc(sizeof(reference_pair) * n);
  v->got = (uint16_t *)malloc(2 * n * dim);
  v->got_lse = (float *)malloc(4 * n);
  v->o = (double *)malloc(sizeof(double) * n * dim);
  v->lse = (double *)malloc(sizeof(double) * n);
  for (int p = 0; p < v->count; ++p) {
    const int64_t late = rows - 1 - p * 3 % rows;
    if (count == 0) v->pairs[p] = {p / heads, p % heads};
    else v->pairs[p] = {(int32_t)(p < count / 8 ? late : draw() % rows), (int32_t)(draw() % heads)};
  }
}

/** Runs the reference on the pairs. */
static void refer(verdicts *v, const setup *s) {
  const dkv_attention *a = &s->a;
  const int64_t rows = s->layout.rows;
  const int blocks = rows > 20000 ? 264 : 1056, dim = a->head_dim;
  const size_t n = (size_t)v->count;
  reference_pair *pairs = (reference_pair *)device(sizeof(reference_pair) * n);
  double *scratch = (double *)device(sizeof(double) * (size_t)(blocks * rows));
  double *o = (double *)device(sizeof(double) * n * dim), *lse = (double *)device(sizeof(double) * n);
  CUDA_MUST(cudaMemcpy(pairs, v->pairs, sizeof(reference_pair) * n, cudaMemcpyHostToDevice));
  if (a->dtype == DKV_BF16) {
    typedef const __nv_bfloat16 *in;
    reference_forward<<<blocks, 128>>>((in)a->q, (in)a->k, (in)a->v, s->end, pairs, v->count, a->heads, a->kv_heads,
                                       dim, a->scale, scratch, rows, o, lse);
  } else {
    typedef const __half *in;
    reference_forward<<<blocks, 128>>>((in)a->q, (in)a->k, (in)a->v, s->end, pairs, v->count, a->heads, a->kv_heads,
                                       dim, a->scale, scratch, rows, o, lse);
  }
  CUDA_MUST(cudaMemcpy(v->o, o, sizeof(double) * n * dim, cudaMemcpyDeviceToHost));
  CUDA_MUST(cudaMemcpy(v->lse, lse, sizeof(double) * n, cudaMemcpyDeviceToHost));
  void *all[] = {pairs, scratch, o, lse};
  for (void *p : all) CUDA_MUST(cudaFree(p));
}

/** Copies what the kernel gave for the pairs; in one piece when they are all pairs in order. */
static void fetch(verdicts *v, const setup *s) {
  const dkv_attention *a = &s->a;
  const int64_t rows = s->layout.rows;
  const size_t dim = (size_t)a->head_dim;
  const float *lse = (const float *)a->lse;
  const bool all = (int64_t)v->count == rows * a->heads;
  if (all) CUDA_MUST(cudaMemcpy(v->got, a->o, 2 * (size_t)v->count * dim, cudaMemcpyDeviceToHost));
  float *table = (float *)malloc(4 * (size_t)v->count);
  if (all) CUDA_MUST(cudaMemcpy(table, lse, 4 * (size_t)v->count, cudaMemcpyDeviceToHost));
  for (int p = 0; p < v->count; ++p) {
    const int64_t at = dkv_offset(v->pairs[p].row, v->pairs[p].head, a->heads, a->head_dim);
    const int64_t lse_at = (int64_t)v->pairs[p].head * rows + v->pairs[p].row;
    if (all) {
      v->got_lse[p] = table[lse_at];
      continue;
    }
    CUDA_MUST(cudaMemcpy(v->got + p * dim, (const uint16_t *)a->o + at, 2 * dim, cudaMemcpyDeviceToHost));
    CUDA_MUST(cudaMemcpy(v->got_lse + p, lse + lse_at, 4, cudaMemcpyDeviceToHost));
  }
  free(table);
}

/** Judges o and lse of `count` pairs against the reference; all rows and heads when count is 0. */
static void judge(setup *s, const char *name, int count) {
  const int dim = s->a.head_dim;
  verdicts v;
  choose_pairs(&v, s, count);
  refer(&v, s);
  fetch(&v, s);
  double error = 0, size = 0, worst = 0, worst_lse = 0;
  int worst_pair = 0, bad = 0;
  for (int p = 0; p < v.count; ++p) {
    double e = 0, n = 0;
    for (int d = 0; d < dim; ++d) {
      const double r = v.o[(int64_t)p * dim + d], g = element(v.got, (size_t)p * dim + d, s->a.dtype);
      if (!(fabs(g) < 1e30) && !bad++) worst_pair = p;
      e += (g - r) * (g - r);
      n += r * r;
    }
    error += e;
    size += n;
    if (!(sqrt(e / (n + 1e-30)) <= worst) && !bad) worst = sqrt(e / (n + 1e-30)), worst_pair = p;
    const double l = fabs(v.got_lse[p] - v.lse[p]) / (1 + fabs(v.lse[p]));
    if (!(l <= worst_lse)) worst_lse = l;
  }
  const double bound = s->a.dtype == DKV_BF16 ? 3e-3 : 4e-4, relative = sqrt(error / size);
  const int ok = !bad && relative <= bound && worst <= 10 * bound && worst_lse <= 1e-5;
  ok ? ++passed : ++failed;
  printf("%s %-34s T %7d H %2d/%2d D %3d %s  error %.2e  row %.2e (row %d head %d)  lse %.1e%s\n", ok ? "pass" : "FAIL",
         name, s->layout.rows, s->a.heads, s->a.kv_heads, dim, s->a.dtype == DKV_BF16 ? "bf16" : "f16", relative, worst,
         v.pairs[worst_pair].row, v.pairs[worst_pair].head, worst_lse, bad ? "  NaN or infinity" : "");
  void *all[] = {v.pairs, v.got, v.got_lse, v.o, v.lse};
  for (void *p : all) free(p);
}

/** The guard rows after o and lse must still be NaN, bit for bit. */
static void guards(setup *s, const char *name) {
  const dkv_attention *a = &s->a;
  const size_t n = (size_t)GUARD_ROWS * a->heads * a->head_dim;
  uint8_t *host = (uint8_t *)malloc(2 * n);
  int bad = 0;
  CUDA_MUST(cudaMemcpy(host, (const uint16_t *)a->o + s->q_elements, 2 * n, cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < 2 * n; ++i) bad |= host[i] != 0xff;
  CUDA_MUST(cudaMemcpy(host, (const float *)a->lse + (size_t)s->layout.rows * a->heads, 4 * GUARD_ROWS,
                       cudaMemcpyDeviceToHost));
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
  static const int32_t chain_parent[] = {-1, 0, 1, 2, 2, 1, 5, 0, 7, 7},
                       chain_length[] = {70, 33, 150, 41, 260, 5, 90, 128, 0, 300};
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

#endif
