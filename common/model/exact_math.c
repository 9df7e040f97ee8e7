/**
 * @file exact_math.c
 * @brief The layers of the exact model: loops as the formulas say; see exact_math.h.
 *
 * Read before: exact_math.h.  Read next: exact_forward.c.
 */
#include "common/model/exact_math.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/** <x, y> */
static double dot(const double *x, const double *y, int32_t width) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int32_t c = 0; c < width; ++c) sum += x[c] * y[c];
  return sum;
}

/** y += a x */
static void add_scaled(double *DKV_RESTRICT y, double a, const double *DKV_RESTRICT x, int32_t width) {
#pragma omp simd
  for (int32_t c = 0; c < width; ++c) y[c] += a * x[c];
}

void dkv_exact_linear(double *out, const double *x, const double *w, int32_t rows, int32_t in, int32_t out_width,
                      int threads) {
#pragma omp parallel for num_threads(threads)
  for (int32_t t = 0; t < rows; ++t)
    for (int32_t o = 0; o < out_width; ++o)
      out[dkv_offset(t, 0, 1, out_width) + o] = dot(x + dkv_offset(t, 0, 1, in), w + dkv_offset(o, 0, 1, in), in);
}

void dkv_exact_linear_bwd(double *dx, bool add, double *dw, const double *dout, const double *x, const double *w,
                          int32_t rows, int32_t in, int32_t out_width, int threads) {
#pragma omp parallel for num_threads(threads)
  for (int32_t t = 0; t < rows; ++t) {
    double *dx_t = dx + dkv_offset(t, 0, 1, in);
    if (!add) memset(dx_t, 0, (size_t)in * sizeof *dx_t);
    for (int32_t o = 0; o < out_width; ++o)
      add_scaled(dx_t, dout[dkv_offset(t, 0, 1, out_width) + o], w + dkv_offset(o, 0, 1, in), in);
  }
  enum { ROWS = 64, OUT = 16 }; /* blocks that fit a cache; each dw_o still takes its rows in ascending order */
#pragma omp parallel for num_threads(threads)
  for (int32_t o0 = 0; o0 < out_width; o0 += OUT)
    for (int32_t t0 = 0; t0 < rows; t0 += ROWS)
      for (int32_t o = o0; o < dkv_min(out_width, o0 + OUT); ++o)
        for (int32_t t = t0; t < dkv_min(rows, t0 + ROWS); ++t)
          add_scaled(dw + dkv_offset(o, 0, 1, in), dout[dkv_offset(t, 0, 1, out_width) + o],
                     x + dkv_offset(t, 0, 1, in), in);
}

void dkv_exact_norm(double *out, const double *x, const double *w, int64_t rows, int32_t width, double epsilon,
                    int threads) {
#pragma omp parallel for num_threads(threads)
  for (int64_t t = 0; t < rows; ++t) {
    const double *x_t = x + t * width;
    double r = 1 / sqrt(dot(x_t, x_t, width) / width + epsilon);
    for (int32_t c = 0; c < width; ++c) out[t * width + c] = x_t[c] * r * w[c];
  }
}

void dkv_exact_norm_bwd(double *dx, bool add, double *dw, const double *dout, const double *x, const double *w,
                        int64_t rows, int32_t width, double epsilon) {
  for (int64_t t = 0; t < rows; ++t) {
    const double *x_t = x + t * width, *dout_t = dout + t * width;
    double r = 1 / sqrt(dot(x_t, x_t, width) / width + epsilon), mean = 0;
    for (int32_t c = 0; c < width; ++c) mean += dout_t[c] * w[c] * x_t[c] * r / width;
    for (int32_t c = 0; c < width; ++c) {
      double n = x_t[c] * r, g = dout_t[c], *at = dx + t * width + c;
      dw[c] += g * n;
      *at = (add ? *at : 0) + r * (g * w[c] - n * mean);
    }
  }
}

void dkv_exact_rotate(double *x, const int32_t *position, int32_t rows, int32_t heads, int32_t dim, double theta,
                      double turn, int threads) {
  int32_t half = dim / 2;
#pragma omp parallel for num_threads(threads)
  for (int32_t t = 0; t < rows; ++t)
    for (int32_t j = 0; j < half; ++j) {
      double angle = turn * position[t] * pow(theta, -2.0 * j / dim), c = cos(angle), s = sin(angle);
      for (int32_t h = 0; h < heads; ++h) {
        double *low = x + dkv_offset(t, h, heads, dim) + j, *high = low + half, a = *low, b = *high;
        *low = a * c - b * s;
        *high = b * c + a * s;
      }
    }
}

/** A tensor of the whole layout, from some element on. */
static void *part(const void *tensor, int64_t doubles) { return tensor == NULL ? NULL : (double *)tensor + doubles; }

/** The tree of segments [s0, s1) of the whole layout. */
static dkv_status one_root(const dkv_attention *whole, const dkv_kernel *kernel, int32_t s0, int32_t s1) {
  const dkv_layout *layout = whole->layout;
  dkv_layout tree = {0};
  size_t segments = (size_t)(s1 - s0), bytes = 0;
  int32_t *parent = malloc(2 * segments * sizeof *parent), *length = parent == NULL ? NULL : parent + segments;
  dkv_status status = parent != NULL ? DKV_OK : DKV_ERR_NOMEM;
  for (int32_t s = s0; status == DKV_OK && s < s1; ++s) {
    parent[s - s0] = s == s0 ? -1 : layout->parent[s] - s0;
    length[s - s0] = dkv_layout_length(layout, s);
  }
  if (status == DKV_OK) status = dkv_layout_forest(&tree, s1 - s0, parent, length);
  free(parent);
  dkv_attention one = *whole;
  one.layout = &tree;
  if (status == DKV_OK) status = kernel->workspace(&one, &bytes);
  void *workspace = malloc(bytes + 1);
  if (status == DKV_OK && workspace == NULL) status = DKV_ERR_NOMEM;
  int64_t start = layout->start[s0], q = start * whole->heads * whole->head_dim,
          kv = start * whole->kv_heads * whole->head_dim;
  one.q = part(whole->q, q);
  one.k = part(whole->k, kv);
  one.v = part(whole->v, kv);
  one.o = part(whole->o, q);
  one.lse = part(whole->lse, start * whole->heads);
  one.dout = part(whole->dout, q);
  one.dq = part(whole->dq, q);
  one.dk = part(whole->dk, kv);
  one.dv = part(whole->dv, kv);
  one.workspace = workspace;
  one.workspace_bytes = bytes;
  if (status == DKV_OK) status = kernel->run(&one);
  free(workspace);
  dkv_layout_free(&tree);
  return status;
}

dkv_status dkv_exact_attention(const dkv_attention *problem, dkv_direction direction) {
  const dkv_backend *ref = NULL;
  const dkv_kernel *kernel = NULL;
  const dkv_layout *layout = problem->layout;
  DKV_TRY(dkv_backend_find(&ref, "ref"));
  DKV_TRY(dkv_kernel_find(&kernel, ref, direction, NULL, problem));
  dkv_status worst = DKV_OK;
#pragma omp parallel for schedule(dynamic) num_threads(problem->threads)
  for (int32_t s = 0; s < layout->segments; ++s) {
    if (layout->parent[s] >= 0) continue;
    int32_t last = s + 1;
    while (last < layout->segments && layout->parent[last] >= 0) ++last;
    dkv_status status = one_root(problem, kernel, s, last);
    if (status != DKV_OK) {
#pragma omp critical
      worst = status;
    }
  }
  /* a thread's sentence stays with the thread */
  return worst == DKV_OK ? DKV_OK : dkv_fail(worst, "attention in double failed: %s", dkv_status_name(worst));
}
