/**
 * @file test_layer_details.c
 * @brief What test_layers.c's judge does not reach: tiles of large products, bits against threads and row counts,
 * chunks of the LM head, AdamW, the vectorised exp, row moves, and attention at decode.
 *
 * Read before: test_layers.c, common/layers.h.
 */
#include <math.h>
#include <stdlib.h>

#include "common/compare.h"
#include "common/layers.h"
#include "common/rng.h"
#include "cpu/exp.h"
#include "tests/support/expect.h"

static float scratch[DKV_ROW_BLOCKS * 1024];
static const dkv_layers *const f = &dkv_cpu_layers;

static float *normal(int64_t n, uint64_t seed) {
  float *x = malloc((size_t)n * sizeof *x);
  for (int64_t i = 0; i < n; ++i) x[i] = dkv_rng_normal(seed, 4, (uint64_t)i);
  return x;
}

static void expect_close(const char *what, const float *got, const double *want, int64_t rows, int64_t width,
                         double bound) {
  dkv_comparison c;
  EXPECT_OK(dkv_compare(&c, got, DKV_F32, want, DKV_F64, rows, width, bound));
  cr_assert(c.passed, "%s: error %.3g, row error %.3g (row %lld: %.9g, not %.9g)", what, c.error, c.row_error,
            (long long)c.worst_row, c.worst_got, c.worst_want);
}

/* Relative error below 2e-7 where floats are normal; 0 -> 1; NaN stays; far below and far above: finite, tiny and huge.
 */
Test(layer_details, vectorised_exp_is_exp) {
  double worst = 0.0;
  for (int64_t i = -8730000; i <= 8830000; i += 7) {
    float x = (float)i * 1e-5f;
    double error = fabs((double)dkv_exp(x) / exp((double)x) - 1.0);
    if (error > worst) worst = error;
  }
  cr_assert_lt(worst, 2e-7, "%g", worst);
  cr_assert_eq(dkv_exp(0.0f), 1.0f);
  cr_assert(isnan(dkv_exp(NAN)));
  cr_assert(dkv_exp(-1e30f) < 1.3e-38f && dkv_exp(-INFINITY) >= 0.0f);
  cr_assert(dkv_exp(1e30f) > 1e38f && isfinite(dkv_exp(INFINITY)));
}

/* Shapes on both sides of every tile edge; forward plain and adding, both gradients. */
Test(layer_details, products_of_many_tiles) {
  const int32_t shapes[][3] = {{1, 70, 520}, {95, 33, 65}, {97, 513, 7}, {700, 60, 530}, {257, 130, 48}};
  const dkv_where where = {.scratch = scratch};
  for (int s = 0; s < 5; ++s) {
    int32_t rows = shapes[s][0], in = shapes[s][1], out = shapes[s][2];
    float *x = normal((int64_t)rows * in, 1), *w = normal((int64_t)out * in, 2), *y = normal((int64_t)rows * out, 3);
    double *want = malloc(sizeof(double) * (size_t)rows * (size_t)out),
           *dx = calloc((size_t)rows * (size_t)in, sizeof(double)),
           *dw = calloc((size_t)out * (size_t)in, sizeof(double));
    float *dout = normal((int64_t)rows * out, 5), *dx_got = normal((int64_t)rows * in, 6),
          *dw_got = normal((int64_t)out * in, 7);
    for (int32_t t = 0; t < rows; ++t)
      for (int32_t o = 0; o < out; ++o) {
        double sum = (double)y[t * out + o], d = (double)dout[t * out + o];
        for (int32_t i = 0; i < in; ++i) {
          sum += (double)x[t * in + i] * (double)w[o * in + i];
          dx[t * in + i] += d * (double)w[o * in + i];
          dw[o * in + i] += d * (double)x[t * in + i];
        }
        want[t * out + o] = sum;
      }
    for (int32_t i = 0; i < rows * in; ++i) dx[i] += (double)dx_got[i];
    for (int32_t i = 0; i < out * in; ++i) dw[i] += (double)dw_got[i];
    EXPECT_OK(f->linear_fwd(&where, y, true, x, w, rows, in, out));
    EXPECT_OK(f->linear_bwd(&where, dx_got, true, dw_got, dout, x, w, rows, in, out));
    expect_close("forward", y, want, rows, out, 2e-6);
    expect_close("dx", dx_got, dx, rows, in, 5e-6);
    expect_close("dw", dw_got, dw, out, in, 5e-6);
    void *owned[] = {x, w, y, want, dx, dw, dout, dx_got, dw_got};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; ++i) free(owned[i]);
  }
}

Test(layer_details, either_gradient_of_a_product_can_be_left_out) {
  const dkv_where where = {.scratch = scratch};
  float *x = normal(40 * 30, 1), *w = normal(20 * 30, 2), *dout = normal(40 * 20, 3);
  float both_dx[1200], both_dw[600] = {0}, dx[1200], dw[600] = {0};
  EXPECT_OK(f->linear_bwd(&where, both_dx, false, both_dw, dout, x, w, 40, 30, 20));
  EXPECT_OK(f->linear_bwd(&where, dx, false, NULL, dout, x, w, 40, 30, 20));
  EXPECT_OK(f->linear_bwd(&where, NULL, false, dw, dout, x, w, 40, 30, 20));
  cr_assert_eq(memcmp(dx, both_dx, sizeof dx), 0);
  cr_assert_eq(memcmp(dw, both_dw, sizeof dw), 0);
  free(x);
  free(w);
  free(dout);
}

/* With a fixed row tile, a row at a fixed place of its tile has the same bits whatever stands in the other rows. */
Test(layer_details, a_fixed_row_tile_makes_rows_independent) {
  const dkv_where where = {.scratch = scratch, .row_tile = 16};
  const int32_t shapes[][2] = {{96, 96}, {96, 16}, {64, 300}, {512, 512}};
  for (int s = 0; s < 4; ++s) {
    int32_t in = shapes[s][0], out = shapes[s][1];
    float *x = normal(48 * in, 1), *w = normal(out * in, 2), *all = malloc(48 * (size_t)out * 4),
          *one = malloc(16 * (size_t)out * 4);
    EXPECT_OK(f->linear_fwd(&where, all, false, x, w, 48, in, out));
    for (int32_t row = 0; row < 48; row += 5) {
      float *alone = calloc(16 * (size_t)in, sizeof *alone);
      memcpy(alone + row % 16 * in, x + row * in, (size_t)in * 4);
      EXPECT_OK(f->linear_fwd(&where, one, false, alone, w, 16, in, out));
      cr_assert_eq(memcmp(one + row % 16 * out, all + row * out, (size_t)out * 4), 0, "shape %d, row %d", s, row);
      free(alone);
    }
    free(x);
    free(w);
    free(all);
    free(one);
  }
}

/* Sums over rows are cut by the shape alone. */
Test(layer_details, threads_change_no_bit) {
  float *x = normal(3000 * 40, 1), *dout = normal(3000 * 40, 2), *w = normal(40, 3), rstd[3000];
  float *dx[2] = {malloc(480000), malloc(480000)}, dw[2][40] = {{0}}, de[2][400] = {{0}};
  int32_t ids[3000];
  double squares[2];
  for (int t = 0; t < 3000; ++t) ids[t] = t * 7 % 10;
  for (int i = 0; i < 2; ++i) {
    const dkv_where where = {.threads = 1 + 3 * i, .scratch = scratch};
    EXPECT_OK(f->rmsnorm_fwd(&where, dx[i], rstd, x, w, 3000, 40, 1e-6f));
    EXPECT_OK(f->rmsnorm_bwd(&where, dx[i], false, dw[i], dout, x, rstd, w, 3000, 40));
    EXPECT_OK(f->embedding_bwd(&where, de[i], dout, ids, 3000, 40));
    EXPECT_OK(f->sum_squares(&where, &squares[i], x, 120000));
  }
  cr_assert_eq(memcmp(dx[0], dx[1], 480000), 0);
  cr_assert_eq(memcmp(dw[0], dw[1], sizeof dw[0]), 0);
  cr_assert_eq(memcmp(de[0], de[1], sizeof de[0]), 0);
  cr_assert_eq(squares[0], squares[1]);
  double exact = 0.0;
  for (int i = 0; i < 120000; ++i) exact += (double)x[i] * (double)x[i];
  cr_assert_lt(fabs(squares[0] / exact - 1.0), 1e-12);
  void *owned[] = {x, dout, w, dx[0], dx[1]};
  for (int i = 0; i < 5; ++i) free(owned[i]);
}

/* A vocabulary so large that a chunk holds 5 of 13 rows gives what one row at a time gives; no dentropy means zeros. */
Test(layer_details, chunks_of_the_head_do_not_show) {
  enum { ROWS = 13, V = 200000, WIDTH = 8 };
  const dkv_where where = {.scratch = scratch};
  size_t floats = f->lm_chunk(ROWS, V);
  cr_assert_eq(floats, (size_t)5 * V);
  cr_assert_eq(f->lm_chunk(3, 10000000), (size_t)10000000);
  float *x = normal(ROWS * WIDTH, 1), *w = normal(V * WIDTH, 2), *chunk = malloc(floats * 4),
        *dw = calloc(V * WIDTH, 4);
  int32_t begin[ROWS + 1], token[ROWS], pair[ROWS];
  float logprob[ROWS], entropy[ROWS], lse[ROWS], dl[ROWS], de[ROWS], dx[ROWS * WIDTH], dx_again[ROWS * WIDTH];
  for (int i = 0; i <= ROWS; ++i) begin[i] = i;
  for (int i = 0; i < ROWS; ++i) {
    token[i] = i * 15000;
    pair[i] = i;
    dl[i] = 1.0f + (float)i;
    de[i] = 0.0f;
  }
  dkv_scored all = {ROWS, begin, token, pair, 2.0f};
  EXPECT_OK(f->lm_logprob_fwd(&where, logprob, entropy, lse, chunk, &all, x, w, WIDTH, V));
  EXPECT_OK(f->lm_logprob_bwd(&where, dx, dw, chunk, &all, dl, NULL, lse, x, w, WIDTH, V));
  EXPECT_OK(f->lm_logprob_bwd(&where, dx_again, dw, chunk, &all, dl, de, lse, x, w, WIDTH, V));
  cr_assert_eq(memcmp(dx, dx_again, sizeof dx), 0);
  for (int u = 0; u < ROWS; ++u) {
    double sum = 0.0, moment = 0.0, score = 0.0;
    for (int v = 0; v < V; ++v) {
      double z = 0.0;
      for (int c = 0; c < WIDTH; ++c) z += (double)x[u * WIDTH + c] * (double)w[v * WIDTH + c] / 2.0;
      sum += exp(z);
      moment += z * exp(z);
      if (v == token[u]) score = z;
    }
    cr_assert_lt(fabs((double)logprob[u] - (score - log(sum))), 1e-5, "row %d", u);
    cr_assert_lt(fabs((double)entropy[u] - (log(sum) - moment / sum)), 1e-5, "row %d", u);
  }
  free(x);
  free(w);
  free(chunk);
  free(dw);
}

Test(layer_details, adamw_equals_its_formula_in_double) {
  enum { N = 1001 };
  const dkv_where where = {.threads = 3};
  float *w = normal(N, 1), *g = normal(N, 2), m[N] = {0}, v[N] = {0};
  double w64[N], m64[N] = {0}, v64[N] = {0};
  for (int i = 0; i < N; ++i) w64[i] = (double)w[i];
  for (int step = 1; step <= 5; ++step) {
    dkv_adamw c = {.lr = 0.01f,
                   .beta1 = 0.9f,
                   .beta2 = 0.95f,
                   .epsilon = 1e-8f,
                   .weight_decay = 0.1f,
                   .grad_scale = 0.5f,
                   .step = step};
    EXPECT_OK(f->adamw(&where, w, m, v, g, N, &c));
    for (int i = 0; i < N; ++i) {
      double x = 0.5 * (double)g[i];
      m64[i] = 0.9 * m64[i] + 0.1 * x;
      v64[i] = 0.95 * v64[i] + 0.05 * x * x;
      w64[i] -=
          0.01 * (m64[i] / (1.0 - pow(0.9, step)) / (sqrt(v64[i] / (1.0 - pow(0.95, step))) + 1e-8) + 0.1 * w64[i]);
    }
  }
  expect_close("weights", w, w64, 1, N, 2e-6);
  expect_close("m", m, m64, 1, N, 2e-6);
  expect_close("v", v, v64, 1, N, 2e-6);
  free(w);
  free(g);
}

Test(layer_details, rows_are_gathered_and_scattered) {
  const dkv_where where = {.scratch = scratch};
  float *x = normal(9 * 5, 1), y[15], sum[45];
  const int32_t index[] = {0, 4, 8};
  EXPECT_OK(f->gather_rows(&where, y, x, index, 3, 5));
  for (int i = 0; i < 15; ++i) cr_assert_eq(y[i], x[index[i / 5] * 5 + i % 5]);
  memcpy(sum, x, sizeof sum);
  EXPECT_OK(f->scatter_rows(&where, sum, y, index, 3, 5));
  for (int i = 0; i < 45; ++i) cr_assert_eq(sum[i], i / 5 % 4 == 0 ? 2.0f * x[i] : x[i]);
  free(x);
}

/* 2 groups of 3 responses, prompts of 150 and 1 rows, caches of 0 to 70 rows (tiles of 64), one dead row. */
Test(layer_details, decode_attention_equals_its_formula_in_double) {
  enum { H = 4, K = 2, D = 16, N = 3, CAPACITY = 70 };
  const int32_t start[] = {0, 150, 151}, length[] = {1, 64, 65, 2, 70, 1}, slot[] = {0, -1, 1, 2, 4, 5};
  const dkv_where where = {.threads = 2, .scratch = scratch};
  float *q = normal(6 * H * D, 1), *pk = normal(151 * K * D, 2), *pv = normal(151 * K * D, 3);
  float *rk = normal(6 * CAPACITY * K * D, 4), *rv = normal(6 * CAPACITY * K * D, 5), out[6 * H * D];
  double want[6 * H * D] = {0};
  dkv_decode_cache cache = {N, CAPACITY, start, length, pk, pv, rk, rv};
  for (int r = 0; r < 6; ++r)
    for (int h = 0; h < H && slot[r] >= 0; ++h) {
      int g = slot[r] / N, prompt = start[g + 1] - start[g], rows = prompt + length[slot[r]];
      double sum = 0.0, acc[D] = {0};
      for (int j = 0; j < rows; ++j) {
        int64_t at = j < prompt ? (int64_t)(start[g] + j) * K * D : ((int64_t)slot[r] * CAPACITY + j - prompt) * K * D;
        const float *k = (j < prompt ? pk : rk) + at + h / 2 * D, *v = (j < prompt ? pv : rv) + at + h / 2 * D;
        double dot = 0.0;
        for (int d = 0; d < D; ++d) dot += (double)q[(r * H + h) * D + d] * (double)k[d];
        double p = exp(0.25 * dot);
        sum += p;
        for (int d = 0; d < D; ++d) acc[d] += p * (double)v[d];
      }
      for (int d = 0; d < D; ++d) want[(r * H + h) * D + d] = acc[d] / sum;
    }
  for (int i = 0; i < 6 * H * D; ++i) out[i] = NAN;
  EXPECT_OK(f->decode_attention(&where, out, q, &cache, slot, 6, H, K, D, 0.25f));
  expect_close("out", out, want, 6, H * D, 2e-6);
  for (int i = H * D; i < 2 * H * D; ++i) cr_assert_eq(out[i], 0.0f, "a dead row is 0");
  float row[K * D];
  for (int i = 0; i < K * D; ++i) row[i] = (float)i;
  const int32_t second[] = {1}, held[] = {1, 64};
  EXPECT_OK(f->append_rows(&where, rk, row, second, held, 1, CAPACITY, K * D));
  cr_assert_eq(memcmp(rk + (CAPACITY + 63) * K * D, row, sizeof row), 0);
  void *owned[] = {q, pk, pv, rk, rv};
  for (int i = 0; i < 5; ++i) free(owned[i]);
}

Test(layer_details, only_the_cpu_has_layers) {
  const dkv_layers *found;
  EXPECT_OK(dkv_layers_find(&found, "cpu"));
  cr_assert_eq(found, &dkv_cpu_layers);
  EXPECT_FAIL(DKV_ERR_UNSUPPORTED, "\"ref\" has no layers", dkv_layers_find(&found, "ref"));
  EXPECT_FAIL(DKV_ERR_NULL, "must not be NULL", dkv_layers_find(NULL, "cpu"));
}
