/**
 * @file bwd_hopper.cu
 * @brief Checks the Hopper backward on many layouts against plain fp32 sums on the same GPU, and times its variants.
 *
 *     bwd_hopper check            exit code 0 only when every case is within tolerance
 *     bwd_hopper bench [N,P,R...] a table of ms and TFLOP/s for each variant
 *
 * The backward is a function of q, k, v, do, o and lse; o and lse need not come from a forward pass, so none is run here: lse is
 * near log(visible keys) and o is small noise.  Sums of the judge are in double over fp32 products.
 *
 * Read before: gpu/attention/bwd_5_hopper.cu.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int chunk_limit = 256; /* a knob of the plan that the table of variants turns */
#define DKV_BWD5_CHUNK chunk_limit
#include "gpu/attention/bwd_5_hopper.cu"

#define CHECK(x)                                                                                                       \
  do {                                                                                                                 \
    cudaError_t e_ = (x);                                                                                              \
    if (e_ != cudaSuccess) printf("CUDA: %s: %s\n", #x, cudaGetErrorString(e_)), exit(3);                              \
  } while (0)
#define MUST(x)                                                                                                        \
  do {                                                                                                                 \
    if ((x) != DKV_OK) printf("FAILED: %s: %s\n", #x, dkv_last_error()), exit(3);                                      \
  } while (0)

static const int guard = 4096; /* elements of a known pattern after every output */

/* ---- data ---- */
__device__ static uint32_t mix(uint64_t x) {
  x ^= x >> 33, x *= 0xff51afd7ed558ccdull, x ^= x >> 33, x *= 0xc4ceb9fe1a85ec53ull, x ^= x >> 33;
  return (uint32_t)x;
}
template <typename T> __global__ void fill_normal(T *out, int64_t n, uint64_t seed, float sigma) {
  for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll) {
    float u = (mix(i * 2 + seed * 0x9e3779b97f4a7c15ull) + 1.0f) * 2.3283064e-10f;
    float w = mix(i * 2 + 1 + seed * 0x9e3779b97f4a7c15ull) * 2.3283064e-10f;
    out[i] = T(sigma * sqrtf(-2.0f * logf(fminf(u, 1.0f))) * cospif(2.0f * w));
  }
}
template <typename T> __global__ void fill_rows(T *out, int64_t row0, int64_t rows, int64_t width, float value) {
  for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < rows * width; i += gridDim.x * 256ll)
    out[row0 * width + i] = T(mix(i) & 1 ? value : -value);
}
__global__ void fill_lse(float *lse, const int32_t *position, int32_t rows) {
  for (int i = blockIdx.x * 256 + threadIdx.x; i < rows; i += gridDim.x * 256)
    lse[(int64_t)blockIdx.y * rows + i] = logf(position[i] + 1.0f) + 0.5f;
}

/* ---- the judge ---- */
template <typename T> __device__ float dot(const T *a, const T *b, int dim) {
  float s = 0;
  for (int d = 0; d < dim; d++) s += float(a[d]) * float(b[d]);
  return s;
}
struct view {
  const void *q, *k, *v, *o, *dout;
  const float *lse;
  const int32_t *end;
  int rows, heads, kv_heads, dim;
  float scale;
};
/* block: one (query row, head); out [samples][dim] */
template <typename T> __global__ void judge_dq(double *out, view p, const int32_t *row, const int32_t *head) {
  __shared__ float weight[128];
  __shared__ float delta;
  const int i = row[blockIdx.x], h = head[blockIdx.x], kh = h / (p.heads / p.kv_heads), t = threadIdx.x;
  const T *q = (const T *)p.q + dkv_offset(i, h, p.heads, p.dim), *d_o = (const T *)p.dout + dkv_offset(i, h, p.heads, p.dim);
  if (t == 0) delta = dot(d_o, (const T *)p.o + dkv_offset(i, h, p.heads, p.dim), p.dim);
  const float lse = p.lse[(int64_t)h * p.rows + i];
  double sum = 0;
  for (int j0 = 0; j0 <= i; j0 += 128) {
    const int j = j0 + t;
    const bool sees = j <= i && i < p.end[min(j, p.rows - 1)];
    __syncthreads();
    weight[t] = 0;
    if (sees) {
      float s = dot(q, (const T *)p.k + dkv_offset(j, kh, p.kv_heads, p.dim), p.dim);
      float dp = dot(d_o, (const T *)p.v + dkv_offset(j, kh, p.kv_heads, p.dim), p.dim);
      weight[t] = expf(s * p.scale - lse) * (dp - delta);
    }
    __syncthreads();
    if (t < p.dim)
      for (int c = 0; c < 128 && j0 + c < p.rows; c++)
        if (weight[c] != 0) sum += weight[c] * float(((const T *)p.k)[dkv_offset(j0 + c, kh, p.kv_heads, p.dim) + t]);
  }
  if (t < p.dim) out[(int64_t)blockIdx.x * p.dim + t] = sum * p.scale;
}
/* block: one (key row, key head); out dk [samples][dim], dv [samples][dim] */
template <typename T>
__global__ void judge_dkdv(double *dk, double *dv, view p, const int32_t *row, const int32_t *head) {
  __shared__ float weight[128], derivative[128];
  const int j = row[blockIdx.x], kh = head[blockIdx.x], g = p.heads / p.kv_heads, t = threadIdx.x;
  const T *k = (const T *)p.k + dkv_offset(j, kh, p.kv_heads, p.dim), *v = (const T *)p.v + dkv_offset(j, kh, p.kv_heads, p.dim);
  double sk = 0, sv = 0;
  for (int h = kh * g; h < (kh + 1) * g; h++)
    for (int i0 = j; i0 < p.end[j]; i0 += 128) {
      const int i = i0 + t;
      __syncthreads();
      weight[t] = derivative[t] = 0;
      if (i < p.end[j]) {
        const T *q = (const T *)p.q + dkv_offset(i, h, p.heads, p.dim), *d_o = (const T *)p.dout + dkv_offset(i, h, p.heads, p.dim);
        float delta = dot(d_o, (const T *)p.o + dkv_offset(i, h, p.heads, p.dim), p.dim);
        weight[t] = expf(dot(q, k, p.dim) * p.scale - p.lse[(int64_t)h * p.rows + i]);
        derivative[t] = weight[t] * (dot(d_o, v, p.dim) - delta);
      }
      __syncthreads();
      if (t < p.dim)
        for (int c = 0; c < 128 && i0 + c < p.end[j]; c++) {
          sk += derivative[c] * float(((const T *)p.q)[dkv_offset(i0 + c, h, p.heads, p.dim) + t]);
          sv += weight[c] * float(((const T *)p.dout)[dkv_offset(i0 + c, h, p.heads, p.dim) + t]);
        }
    }
  if (t < p.dim) dk[(int64_t)blockIdx.x * p.dim + t] = sk * p.scale, dv[(int64_t)blockIdx.x * p.dim + t] = sv;
}

/* ---- a problem on the device ---- */
struct problem {
  dkv_layout layout;
  dkv_attention a;
  int32_t *end, *position;
  size_t q_size, k_size;
};
template <typename T> static void open_problem(problem *x, int heads, int kv_heads, int dim, uint64_t seed) {
  const int64_t rows = x->layout.rows;
  x->q_size = rows * heads * dim, x->k_size = rows * kv_heads * dim;
  dkv_attention *a = &x->a;
  memset(a, 0, sizeof *a);
  a->layout = &x->layout, a->heads = heads, a->kv_heads = kv_heads, a->head_dim = dim, a->scale = 1 / sqrt((double)dim);
  a->dtype = dkv_is_bf16<T>::value ? DKV_BF16 : DKV_F16;
  void **in[5] = {(void **)&a->q, (void **)&a->k, (void **)&a->v, &a->o, (void **)&a->dout};
  for (int i = 0; i < 5; i++) {
    const size_t n = i == 1 || i == 2 ? x->k_size : x->q_size;
    CHECK(cudaMalloc(in[i], (n + guard) * 2));
    CHECK(cudaMemset(*in[i], 0xff, (n + guard) * 2));
    fill_normal<T><<<4096, 256>>>((T *)*in[i], n, seed * 8 + i, i == 3 ? 0.1f : 1.0f);
  }
  void **out[3] = {&a->dq, &a->dk, &a->dv};
  for (int i = 0; i < 3; i++) CHECK(cudaMalloc(out[i], ((i ? x->k_size : x->q_size) + guard) * 2));
  CHECK(cudaMalloc(&a->lse, rows * heads * 4));
  CHECK(cudaMalloc(&x->end, rows * 4));
  CHECK(cudaMalloc(&x->position, rows * 4));
  CHECK(cudaMemcpy(x->end, x->layout.end, rows * 4, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(x->position, x->layout.position, rows * 4, cudaMemcpyHostToDevice));
  fill_lse<<<dim3(64, heads), 256>>>((float *)a->lse, x->position, (int)rows);
  CHECK(cudaDeviceSynchronize());
}
static void close_problem(problem *x) {
  const void *all[] = {x->a.q, x->a.k, x->a.v, x->a.o, x->a.dout, x->a.dq, x->a.dk, x->a.dv, x->a.lse, x->end, x->position,
                       x->a.workspace};
  for (const void *p : all) CHECK(cudaFree((void *)p));
  dkv_layout_free(&x->layout);
}
template <class C> static void attach(problem *x, bool deterministic) {
  x->a.deterministic = deterministic;
  size_t bytes = 0;
  MUST(dkv_bwd5_size<C>(&x->a, &bytes));
  CHECK(cudaFree(x->a.workspace));
  CHECK(cudaMalloc(&x->a.workspace, bytes));
  CHECK(cudaMemset(x->a.workspace, 0xff, bytes));
  x->a.workspace_bytes = bytes;
  CHECK(cudaMemset(x->a.dq, 0xff, (x->q_size + guard) * 2));
  CHECK(cudaMemset(x->a.dk, 0xff, (x->k_size + guard) * 2));
  CHECK(cudaMemset(x->a.dv, 0xff, (x->k_size + guard) * 2));
  MUST(dkv_bwd5_prepare<C>(&x->a));
}

/* ---- comparison ---- */
template <typename T>
static bool compare(const char *what, const char *name, const double *ref, const void *got_device, size_t size, int dim,
                    int samples, const int32_t *row, const int32_t *head, int heads, double tolerance, bool all) {
  T *got = (T *)malloc((size + guard) * 2);
  CHECK(cudaMemcpy(got, got_device, (size + guard) * 2, cudaMemcpyDeviceToHost));
  double norm = 0, error = 0, worst = 0;
  int worst_at = 0, bad = 0;
  for (int s = 0; s < samples; s++) {
    double n = 0, e = 0;
    for (int d = 0; d < dim; d++) {
      double r = ref[(size_t)s * dim + d], g = (double)float(got[dkv_offset(row[s], head[s], heads, dim) + d]);
      n += r * r, e += (r - g) * (r - g);
      if (!(g == g) || !(r == r)) bad++;
    }
    norm += n, error += e;
    if (e / (n + 1e-30) > worst) worst = e / (n + 1e-30), worst_at = s;
  }
  for (size_t i = 0; all && i < size; i++)
    if (!(float(got[i]) == float(got[i]))) bad++; /* unwritten anywhere */
  for (int i = 0; i < guard; i++)
    if (((uint16_t *)got)[size + i] != 0xffff) bad++;
  const double relative = sqrt(error / (norm + 1e-300));
  const bool ok = bad == 0 && samples > 0 && norm > 0 && relative <= tolerance && sqrt(worst) <= 10 * tolerance;
  if (!ok)
    printf("FAIL %s %s: error %.3e, worst row %.3e at (row %d, head %d), bad %d, samples %d\n", what, name, relative, sqrt(worst),
           row[worst_at], head[worst_at], bad, samples);
  free(got);
  return ok;
}

/* rows [skip0, skip1) are left out (and may hold NaN); `every`: take each n-th (row, head) */
template <typename T> static bool judge(const char *what, problem *x, int every, int skip0, int skip1, int skip_keys) {
  const dkv_attention *a = &x->a;
  const int rows = x->layout.rows, dim = a->head_dim;
  view v = {a->q, a->k, a->v, a->o, a->dout, (const float *)a->lse, x->end, rows, a->heads, a->kv_heads, dim, (float)a->scale};
  /* a sum of a few terms does not average its roundings: there, half an ulp of dS and half an ulp of the output */
  const double usual = dkv_is_bf16<T>::value ? 3.5e-3 : 5e-4, few = dkv_is_bf16<T>::value ? 0x1p-7 : 0x1p-10;
  const double tolerance = rows < 8 ? few : usual;
  bool ok = true;
  for (int pass = 0; pass < 2; pass++) {
    const int heads = pass ? a->kv_heads : a->heads;
    std::vector<int32_t> row, head;
    for (int64_t s = 0; s < (int64_t)rows * heads; s += every) {
      const int r = (int)(s / heads);
      if (r >= skip0 && r < skip1) continue;
      if (pass == 1 && r < skip_keys) continue;
      row.push_back(r), head.push_back((int)(s % heads));
    }
    const int n = (int)row.size();
    int32_t *d_row, *d_head;
    double *d_out;
    CHECK(cudaMalloc(&d_row, n * 4 + 4));
    CHECK(cudaMalloc(&d_head, n * 4 + 4));
    CHECK(cudaMalloc(&d_out, (size_t)n * dim * 16 + 16));
    CHECK(cudaMemcpy(d_row, row.data(), n * 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(d_head, head.data(), n * 4, cudaMemcpyHostToDevice));
    if (pass == 0) judge_dq<T><<<n, 128>>>(d_out, v, d_row, d_head);
    else judge_dkdv<T><<<n, 128>>>(d_out, d_out + (size_t)n * dim, v, d_row, d_head);
    std::vector<double> out((size_t)n * dim * 2);
    CHECK(cudaMemcpy(out.data(), d_out, out.size() * 8, cudaMemcpyDeviceToHost));
    if (pass == 0) ok &= compare<T>(what, "dq", out.data(), a->dq, x->q_size, dim, n, row.data(), head.data(), heads, tolerance,
                                     skip0 == skip1);
    else {
      ok &= compare<T>(what, "dk", out.data(), a->dk, x->k_size, dim, n, row.data(), head.data(), heads, tolerance,
                       skip0 == skip1);
      ok &= compare<T>(what, "dv", out.data() + (size_t)n * dim, a->dv, x->k_size, dim, n, row.data(), head.data(), heads,
                       tolerance, skip0 == skip1);
    }
    cudaFree(d_row), cudaFree(d_head), cudaFree(d_out);
  }
  return ok;
}

/* ---- cases ---- */
struct shape {
  const char *name;
  std::vector<int32_t> parent, length;
};
static shape group(const char *name, int prompt, std::vector<int32_t> lengths) {
  shape s = {name, {-1}, {prompt}};
  for (int32_t r : lengths) s.parent.push_back(0), s.length.push_back(r);
  return s;
}
static std::vector<shape> shapes() {
  std::vector<shape> all = {
      group("one row", 1, {}),
      group("63 rows", 63, {}),
      group("exact tiles", 256, {128, 128, 128}),
      group("plain 700", 700, {}),
      group("ragged", 333, {1, 0, 77, 200, 0, 5, 129, 64}),
      group("no prompt", 0, {130, 0, 61, 257}),
      group("prompt 1", 1, std::vector<int32_t>(100, 3)),
      group("long prompt", 1200, {300, 11, 517}),
      group("one token each", 500, std::vector<int32_t>(300, 1)),
      group("cut tiles", 2100, {700, 900, 33, 1100}),
      {"two turns", {-1, 0, 1, 1, 0, 4, 4, -1, 7}, {100, 70, 33, 90, 65, 1, 129, 200, 140}},
      {"deep chain", {-1, 0, 1, 2, 3, 4, 4, 3, 2}, {90, 40, 0, 100, 60, 70, 31, 128, 64}},
      {"groups", {-1, 0, 0, -1, 3, -1, -1, 6, 6, 6}, {50, 30, 40, 129, 64, 3, 200, 1, 90, 7}},
  };
  return all;
}

template <class C> static bool run_cases(const char *variant, int heads, int kv_heads, bool deterministic) {
  using T = typename C::T;
  bool ok = true;
  for (const shape &s : shapes()) {
    problem x;
    char what[160];
    snprintf(what, sizeof what, "[%s %d/%d] %s", variant, heads, kv_heads, s.name);
    MUST(dkv_layout_forest(&x.layout, (int)s.parent.size(), s.parent.data(), s.length.data()));
    open_problem<T>(&x, heads, kv_heads, C::D, 7);
    attach<C>(&x, deterministic);
    MUST(dkv_bwd5_run<C>(&x.a));
    CHECK(cudaDeviceSynchronize());
    ok &= judge<T>(what, &x, 3, 0, 0, 0);
    close_problem(&x);
  }
  return ok;
}

/* huge finite k, v (or q, do) in response B of a group: nothing of A or of the prompt may notice */
template <class C> static bool run_isolation(const char *variant, bool deterministic) {
  using T = typename C::T;
  bool ok = true;
  const float huge = dkv_is_bf16<T>::value ? 3e38f : 6e4f;
  for (int which = 0; which < 2; which++) {
    const shape s = group("isolation", 150, {100, 61, 200});
    problem x;
    MUST(dkv_layout_forest(&x.layout, (int)s.parent.size(), s.parent.data(), s.length.data()));
    open_problem<T>(&x, 4, 2, C::D, 9);
    const int b0 = 250, b1 = 311, heads = which ? 4 : 2;
    fill_rows<T><<<64, 256>>>((T *)(which ? x.a.q : x.a.k), b0, b1 - b0, heads * C::D, huge);
    fill_rows<T><<<64, 256>>>((T *)(which ? x.a.dout : x.a.v), b0, b1 - b0, heads * C::D, huge);
    attach<C>(&x, deterministic);
    MUST(dkv_bwd5_run<C>(&x.a));
    CHECK(cudaDeviceSynchronize());
    ok &= judge<T>(which ? "[isolation q, do]" : "[isolation k, v]", &x, 1, b0, b1, which ? 150 : 0);
    close_problem(&x);
  }
  if (!ok) printf("isolation failed: %s\n", variant);
  return ok;
}

/* the same bits from every run */
template <class C> static bool run_repeats(const char *variant) {
  problem x;
  const std::vector<int32_t> lengths = {700, 900, 33, 1100, 5};
  MUST(dkv_layout_group(&x.layout, 3100, 5, lengths.data()));
  open_problem<typename C::T>(&x, 8, 2, C::D, 11);
  std::vector<uint16_t> first, again;
  bool ok = true;
  for (int run = 0; run < 12; run++) {
    attach<C>(&x, true);
    MUST(dkv_bwd5_run<C>(&x.a));
    CHECK(cudaDeviceSynchronize());
    again.resize(x.q_size + 2 * x.k_size);
    CHECK(cudaMemcpy(again.data(), x.a.dq, x.q_size * 2, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(again.data() + x.q_size, x.a.dk, x.k_size * 2, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(again.data() + x.q_size + x.k_size, x.a.dv, x.k_size * 2, cudaMemcpyDeviceToHost));
    if (run == 0) first = again;
    size_t differ = 0;
    for (size_t i = 0; i < first.size(); i++) differ += first[i] != again[i];
    if (differ) ok = false, printf("FAIL [%s] run %d: %zu of %zu values differ\n", variant, run, differ, first.size());
  }
  close_problem(&x);
  return ok;
}

template <class C> static bool check_variant(const char *variant, bool deterministic) {
  bool ok = run_cases<C>(variant, 4, 2, deterministic) && run_cases<C>(variant, 3, 3, deterministic) &&
            run_cases<C>(variant, 8, 1, deterministic);
  if (ok) ok = run_isolation<C>(variant, deterministic);
  if (ok && deterministic) ok = run_repeats<C>(variant);
  printf("%-28s %s\n", variant, ok ? "ok" : "WRONG");
  fflush(stdout);
  return ok;
}

/* ---- timing ---- */
struct timing { float before, main, after; };
template <class C> static timing time_variant(problem *x, bool deterministic, int repeats) {
  attach<C>(x, deterministic);
  const dkv_bwd5_space s = dkv_bwd5_lay<C>(&x->a, nullptr);
  const dkv_bwd5_parameters p = dkv_bwd5_fill<C>(&x->a, s);
  dkv_bwd5_maps maps;
  MUST(dkv_bwd5_map<C>(&maps, &x->a));
  cudaEvent_t e[4];
  for (cudaEvent_t &event : e) CHECK(cudaEventCreate(&event));
  std::vector<timing> all;
  for (int r = 0; r <= repeats; r++) {
    CHECK(cudaEventRecord(e[0]));
    MUST(dkv_bwd5_before<C>(&x->a, s, p));
    CHECK(cudaEventRecord(e[1]));
    MUST(dkv_bwd5_launch<C>(&x->a, p, maps));
    CHECK(cudaEventRecord(e[2]));
    MUST(dkv_bwd5_after<C>(&x->a, p));
    CHECK(cudaEventRecord(e[3]));
    CHECK(cudaDeviceSynchronize());
    timing t;
    CHECK(cudaEventElapsedTime(&t.before, e[0], e[1]));
    CHECK(cudaEventElapsedTime(&t.main, e[1], e[2]));
    CHECK(cudaEventElapsedTime(&t.after, e[2], e[3]));
    if (r > 0) all.push_back(t);
  }
  for (cudaEvent_t &event : e) CHECK(cudaEventDestroy(event));
  std::sort(all.begin(), all.end(), [](const timing &a, const timing &b) { return a.main < b.main; });
  return all[all.size() / 2];
}

struct bench_shape { const char *name; int prompt; std::vector<int32_t> lengths; };

template <class C> static void bench_variant(const char *variant, problem *x, const char *shape_name, bool deterministic) {
  const timing t = time_variant<C>(x, deterministic, 5);
  dkv_bwd5_plan plan;
  MUST(dkv_bwd5_make_plan(&plan, &x->a, C::queries));
  int64_t steps = 0;
  for (const dkv_bwd5_item &item : plan.items) steps += item.last - item.first;
  steps *= x->a.heads;
  const double flops = 10.0 * C::D * x->a.heads * (double)dkv_layout_pairs(&x->layout), all = t.before + t.main + t.after;
  const bool ok = judge<typename C::T>(variant, x, (int)((int64_t)x->layout.rows * x->a.heads / 160 + 1), 0, 0, 0);
  printf("%-26s %-22s %8.3f ms  %6.1f TF/s  main %6.1f TF/s  before %.3f after %.3f  ns/step/SM %.1f  %s\n", shape_name, variant,
         all, flops / all * 1e-9, flops / t.main * 1e-9, t.before, t.after, t.main * 1e6 * 132 / steps, ok ? "ok" : "WRONG");
  fflush(stdout);
}

static void open_bench(problem *x, const bench_shape &s) {
  MUST(dkv_layout_group(&x->layout, s.prompt, (int)s.lengths.size(), s.lengths.data()));
}
static std::vector<int32_t> lognormal() {
  std::vector<int32_t> out;
  uint64_t state = 12345;
  for (int i = 0; i < 32; i++) {
    double u[2];
    for (double &w : u) state = state * 6364136223846793005ull + 1442695040888963407ull, w = ((state >> 11) + 1) * 0x1p-53;
    out.push_back((int32_t)fmax(1, fmin(4096, 540 * exp(0.9 * sqrt(-2 * log(u[0])) * cos(6.283185307179586 * u[1])))));
  }
  return out;
}
#include "variants.inc"
