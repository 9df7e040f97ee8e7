/**
 * @file bwd_judge.cuh
 * @brief Test support for backward kernels on the card: random problems, plain sums to judge them by, and the
 * comparison.
 *
 * The backward is a function of q, k, v, do, o and lse; o and lse need not come from a forward pass, so none is run:
 * lse is near log(visible keys) and o is small noise.  The judge sums in double over fp32 products, for all rows or for
 * a sample.
 *
 * Read before: common/attention.h.  Read next: bwd_hopper.cu.
 */
#ifndef DKV_TESTS_BWD_JUDGE_CUH
#define DKV_TESTS_BWD_JUDGE_CUH

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "common/attention.h"
#include "gpu/hopper/wgmma.cuh"

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
  const T *q = (const T *)p.q + dkv_offset(i, h, p.heads, p.dim),
          *d_o = (const T *)p.dout + dkv_offset(i, h, p.heads, p.dim);
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
  const T *k = (const T *)p.k + dkv_offset(j, kh, p.kv_heads, p.dim),
          *v = (const T *)p.v + dkv_offset(j, kh, p.kv_heads, p.dim);
  double sk = 0, sv = 0;
  for (int h = kh * g; h < (kh + 1) * g; h++)
    for (int i0 = j; i0 < p.end[j]; i0 += 128) {
      const int i = i0 + t;
      __syncthreads();
      weight[t] = derivative[t] = 0;
      if (i < p.end[j]) {
        const T *q = (const T *)p.q + dkv_offset(i, h, p.heads, p.dim),
                *d_o = (const T *)p.dout + dkv_offset(i, h, p.heads, p.dim);
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
  const void *all[] = {x->a.q,  x->a.k,  x->a.v,   x->a.o, x->a.dout,   x->a.dq,
                       x->a.dk, x->a.dv, x->a.lse, x->end, x->position, x->a.workspace};
  for (const void *p : all) CHECK(cudaFree((void *)p));
  dkv_layout_free(&x->layout);
}
/* ---- comparison ---- */
template <typename T>
static bool compare(const char *what, const char *name, const double *ref, const void *got_device, size_t size, int dim,
                    int samples, const int32_t *row, const int32_t *head, int heads, double tolerance, bool all) {
  const bool whole = size < (size_t)1 << 30; /* else only the sampled rows come back */
  T *got = (T *)malloc((whole ? size + guard : dim) * 2);
  if (whole) CHECK(cudaMemcpy(got, got_device, (size + guard) * 2, cudaMemcpyDeviceToHost));
  double norm = 0, error = 0, worst = 0;
  int worst_at = 0, bad = 0;
  for (int s = 0; s < samples; s++) {
    double n = 0, e = 0;
    const int64_t at = dkv_offset(row[s], head[s], heads, dim);
    if (!whole) CHECK(cudaMemcpy(got, (const T *)got_device + at, dim * 2, cudaMemcpyDeviceToHost));
    const T *mine = whole ? got + at : got;
    for (int d = 0; d < dim; d++) {
      double r = ref[(size_t)s * dim + d], g = (double)float(mine[d]);
      n += r * r, e += (r - g) * (r - g);
      if (!(g == g) || !(r == r)) bad++;
    }
    norm += n, error += e;
    if (e / (n + 1e-30) > worst) worst = e / (n + 1e-30), worst_at = s;
  }
  for (size_t i = 0; whole && all && i < size; i++)
    if (!(float(got[i]) == float(got[i]))) bad++; /* unwritten anywhere */
  for (int i = 0; whole && i < guard; i++)
    if (((uint16_t *)got)[size + i] != 0xffff) bad++;
  const double relative = sqrt(error / (norm + 1e-300));
  const bool ok = bad == 0 && samples > 0 && norm > 0 && relative <= tolerance && sqrt(worst) <= 10 * tolerance;
  if (!ok)
    printf("FAIL %s %s: error %.3e, worst row %.3e at (row %d, head %d), bad %d, samples %d\n", what, name, relative,
           sqrt(worst), row[worst_at], head[worst_at], bad, samples);
  free(got);
  return ok;
}

/* rows [skip0, skip1) are left out (and may hold NaN); `every`: take each n-th (row, head) */
template <typename T> static bool judge(const char *what, problem *x, int every, int skip0, int skip1, int skip_keys) {
  const dkv_attention *a = &x->a;
  const int rows = x->layout.rows, dim = a->head_dim;
  view v = {a->q,   a->k, a->v,     a->o,        a->dout, (const float *)a->lse,
            x->end, rows, a->heads, a->kv_heads, dim,     (float)a->scale};
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
    if (pass == 0)
      ok &= compare<T>(what, "dq", out.data(), a->dq, x->q_size, dim, n, row.data(), head.data(), heads, tolerance,
                       skip0 == skip1);
    else {
      ok &= compare<T>(what, "dk", out.data(), a->dk, x->k_size, dim, n, row.data(), head.data(), heads, tolerance,
                       skip0 == skip1);
      ok &= compare<T>(what, "dv", out.data() + (size_t)n * dim, a->dv, x->k_size, dim, n, row.data(), head.data(),
                       heads, tolerance, skip0 == skip1);
    }
    cudaFree(d_row), cudaFree(d_head), cudaFree(d_out);
  }
  return ok;
}

#endif
