/**
 * @file test_layers.c
 * @brief Every layer against itself in double: the forward directly, the backward by central differences of the double
 * forward, and the law packed = fold(replicated).
 *
 *     L(inputs) = sum dout * out        dL/dx ~ (L(x + h) - L(x - h)) / 2h, in double, h = 1e-5: exact to about 1e-9
 *
 * A layer is described once (struct layer below): its inputs, its double forward, how to run it.  The same judge then
 * takes them all.  Outputs are filled with NaN before, and gradients that accumulate start from a known number.
 *
 * Read before: common/layers.h.  Read next: test_layer_details.c, test_model.c.
 */
#include <math.h>
#include <stdlib.h>

#include "common/compare.h"
#include "common/layers.h"
#include "common/layout.h"
#include "common/pack.h"
#include "common/rng.h"
#include "tests/support/expect.h"

#define INPUTS 2
#define START 0.25f /* what accumulated gradients hold before */
#define PAIRS 2     /* scored tokens of a row of the LM head */
#define VOCABULARY 33
#define TEMPERATURE 0.7f
#define EPSILON 1e-5f

/** One input: rows x width when it is per row, height x width when it is a parameter. */
struct input {
  bool per_row;
  int32_t height, width;
  bool accumulates; /* its gradient is added, not overwritten */
};

struct layer {
  const char *name;
  struct input input[INPUTS]; /* width 0: there is none */
  int32_t out_width;
  void (*forward)(int32_t rows, const int32_t *tag, double *const in[INPUTS], double *out);
  void (*run)(int32_t rows, const int32_t *tag, float *const in[INPUTS], float *out, const float *dout,
              float *const grad[INPUTS]);
};

/* `tag` is a number per row that copies share: token, path position or scored token, as the layer likes. */
static float scratch[DKV_ROW_BLOCKS * 512];
static const dkv_where where = {.scratch = scratch};
static const dkv_layers *const f = &dkv_cpu_layers;

/* --- embedding: out_t = E[tag_t] -------------------------------------------------------------------------------------
 */
static void embedding(int32_t rows, const int32_t *tag, double *const in[INPUTS], double *out) {
  for (int32_t t = 0; t < rows; ++t)
    for (int c = 0; c < 20; ++c) out[t * 20 + c] = in[0][tag[t] * 20 + c];
}
static void run_embedding(int32_t rows, const int32_t *tag, float *const in[INPUTS], float *out, const float *dout,
                          float *const grad[INPUTS]) {
  EXPECT_OK(f->embedding_fwd(&where, out, in[0], tag, rows, 20));
  EXPECT_OK(f->embedding_bwd(&where, grad[0], dout, tag, rows, 20));
}

/* --- rmsnorm
 * ----------------------------------------------------------------------------------------------------------- */
static void rmsnorm(int32_t rows, const int32_t *tag, double *const in[INPUTS], double *out) {
  (void)tag;
  for (int32_t t = 0; t < rows; ++t) {
    double squares = 0.0;
    for (int c = 0; c < 23; ++c) squares += in[0][t * 23 + c] * in[0][t * 23 + c];
    for (int c = 0; c < 23; ++c) out[t * 23 + c] = in[0][t * 23 + c] / sqrt(squares / 23 + (double)EPSILON) * in[1][c];
  }
}
static void run_rmsnorm(int32_t rows, const int32_t *tag, float *const in[INPUTS], float *out, const float *dout,
                        float *const grad[INPUTS]) {
  (void)tag;
  float *rstd = malloc((size_t)rows * sizeof *rstd);
  EXPECT_OK(f->rmsnorm_fwd(&where, out, rstd, in[0], in[1], rows, 23, EPSILON));
  EXPECT_OK(f->rmsnorm_bwd(&where, grad[0], false, grad[1], dout, in[0], rstd, in[1], rows, 23));
  free(rstd);
}
static void run_rmsnorm_add(int32_t rows, const int32_t *tag, float *const in[INPUTS], float *out, const float *dout,
                            float *const grad[INPUTS]) {
  (void)tag;
  float *rstd = malloc((size_t)rows * sizeof *rstd);
  EXPECT_OK(f->rmsnorm_fwd(&where, out, rstd, in[0], in[1], rows, 23, EPSILON));
  EXPECT_OK(f->rmsnorm_bwd(&where, grad[0], true, grad[1], dout, in[0], rstd, in[1], rows, 23));
  free(rstd);
}

/* --- rope: two heads of 8
 * ------------------------------------------------------------------------------------------------ */
static void rope(int32_t rows, const int32_t *tag, double *const in[INPUTS], double *out) {
  for (int32_t t = 0; t < rows; ++t)
    for (int h = 0; h < 2; ++h)
      for (int j = 0; j < 4; ++j) {
        double a = tag[t] * pow(10000.0, -2.0 * j / 8), x = in[0][t * 16 + h * 8 + j],
               y = in[0][t * 16 + h * 8 + j + 4];
        out[t * 16 + h * 8 + j] = x * cos(a) - y * sin(a);
        out[t * 16 + h * 8 + j + 4] = y * cos(a) + x * sin(a);
      }
}
static void run_rope(int32_t rows, const int32_t *tag, float *const in[INPUTS], float *out, const float *dout,
                     float *const grad[INPUTS]) {
  float table[64 * 8];
  EXPECT_OK(f->rope_table(&where, table, 64, 8, 10000.0));
  memcpy(out, in[0], (size_t)rows * 16 * sizeof *out);
  EXPECT_OK(f->rope(&where, out, table, tag, rows, 2, 8, false));
  memcpy(grad[0], dout, (size_t)rows * 16 * sizeof *out);
  EXPECT_OK(f->rope(&where, grad[0], table, tag, rows, 2, 8, true));
}

/* --- linear: 19 -> 21
 * ------------------------------------------------------------------------------------------------- */
static void linear(int32_t rows, const int32_t *tag, double *const in[INPUTS], double *out) {
  (void)tag;
  for (int32_t t = 0; t < rows; ++t)
    for (int o = 0; o < 21; ++o) {
      out[t * 21 + o] = 0.0;
      for (int i = 0; i < 19; ++i) out[t * 21 + o] += in[0][t * 19 + i] * in[1][o * 19 + i];
    }
}
static void run_linear(int32_t rows, const int32_t *tag, float *const in[INPUTS], float *out, const float *dout,
                       float *const grad[INPUTS]) {
  (void)tag;
  EXPECT_OK(f->linear_fwd(&where, out, false, in[0], in[1], rows, 19, 21));
  EXPECT_OK(f->linear_bwd(&where, grad[0], false, grad[1], dout, in[0], in[1], rows, 19, 21));
}

/* --- swiglu
 * ------------------------------------------------------------------------------------------------------------ */
static void swiglu(int32_t rows, const int32_t *tag, double *const in[INPUTS], double *out) {
  (void)tag;
  for (int32_t i = 0; i < rows * 27; ++i) out[i] = in[0][i] / (1.0 + exp(-in[0][i])) * in[1][i];
}
static void run_swiglu(int32_t rows, const int32_t *tag, float *const in[INPUTS], float *out, const float *dout,
                       float *const grad[INPUTS]) {
  (void)tag;
  EXPECT_OK(f->swiglu_fwd(&where, out, in[0], in[1], rows, 27));
  for (int k = 0; k < 2; ++k) memcpy(grad[k], in[k], (size_t)rows * 27 * sizeof *out);
  EXPECT_OK(f->swiglu_bwd(&where, grad[0], grad[1], dout, rows, 27));
}

/* --- residual
 * ----------------------------------------------------------------------------------------------------------- */
static void residual(int32_t rows, const int32_t *tag, double *const in[INPUTS], double *out) {
  (void)tag;
  for (int32_t i = 0; i < rows * 11; ++i) out[i] = in[0][i] + in[1][i];
}
static void run_residual(int32_t rows, const int32_t *tag, float *const in[INPUTS], float *out, const float *dout,
                         float *const grad[INPUTS]) {
  (void)tag;
  EXPECT_OK(f->residual(&where, out, in[0], in[1], (int64_t)rows * 11));
  for (int k = 0; k < 2; ++k) memcpy(grad[k], dout, (size_t)rows * 11 * sizeof *out);
}

/* --- LM head: two scored tokens a row; out = their log-probabilities, then their entropies
 * ------------------------------- */
static int32_t scored_token(int32_t tag, int i) { return (tag * 7 + i * 5) % VOCABULARY; }

static void lm_logprob(int32_t rows, const int32_t *tag, double *const in[INPUTS], double *out) {
  for (int32_t t = 0; t < rows; ++t) {
    double z[VOCABULARY], sum = 0.0, entropy = 0.0;
    for (int v = 0; v < VOCABULARY; ++v) {
      z[v] = 0.0;
      for (int c = 0; c < 17; ++c) z[v] += in[0][t * 17 + c] * in[1][v * 17 + c] / (double)TEMPERATURE;
      sum += exp(z[v]);
    }
    for (int v = 0; v < VOCABULARY; ++v) entropy -= exp(z[v]) / sum * (z[v] - log(sum));
    for (int i = 0; i < PAIRS; ++i) {
      out[t * 2 * PAIRS + i] = z[scored_token(tag[t], i)] - log(sum);
      out[t * 2 * PAIRS + PAIRS + i] = entropy;
    }
  }
}
static void run_lm_logprob(int32_t rows, const int32_t *tag, float *const in[INPUTS], float *out, const float *dout,
                           float *const grad[INPUTS]) {
  size_t n = (size_t)rows * PAIRS;
  int32_t *begin = malloc(((size_t)rows + 1) * sizeof *begin), *token = malloc(n * sizeof *token),
          *pair = malloc(n * sizeof *pair);
  float *lse = malloc((size_t)rows * sizeof *lse), *chunk = malloc(f->lm_chunk(rows, VOCABULARY) * sizeof *chunk);
  float *logprob = malloc(n * sizeof(float)), *entropy = malloc(n * sizeof(float)), *dl = malloc(n * sizeof(float)),
        *de = malloc(n * sizeof(float));
  for (int32_t i = 0; i <= rows; ++i) begin[i] = i * PAIRS;
  for (int32_t i = 0; i < rows * PAIRS; ++i) {
    token[i] = scored_token(tag[i / PAIRS], i % PAIRS);
    pair[i] = rows * PAIRS - 1 - i; /* any order */
    dl[pair[i]] = dout[i / PAIRS * 2 * PAIRS + i % PAIRS];
    de[pair[i]] = dout[i / PAIRS * 2 * PAIRS + PAIRS + i % PAIRS];
  }
  dkv_scored scored = {rows, begin, token, pair, TEMPERATURE};
  EXPECT_OK(f->lm_logprob_fwd(&where, logprob, entropy, lse, chunk, &scored, in[0], in[1], 17, VOCABULARY));
  for (int32_t i = 0; i < rows * PAIRS; ++i) {
    out[i / PAIRS * 2 * PAIRS + i % PAIRS] = logprob[pair[i]];
    out[i / PAIRS * 2 * PAIRS + PAIRS + i % PAIRS] = entropy[pair[i]];
  }
  EXPECT_OK(f->lm_logprob_bwd(&where, grad[0], grad[1], chunk, &scored, dl, de, lse, in[0], in[1], 17, VOCABULARY));
  void *owned[] = {begin, token, pair, lse, chunk, logprob, entropy, dl, de};
  for (size_t i = 0; i < sizeof owned / sizeof owned[0]; ++i) free(owned[i]);
}

static const struct layer layers[] = {
    {"embedding", {{false, 12, 20, true}}, 20, embedding, run_embedding},
    {"rmsnorm", {{true, 0, 23, false}, {false, 1, 23, true}}, 23, rmsnorm, run_rmsnorm},
    {"rmsnorm adding", {{true, 0, 23, true}, {false, 1, 23, true}}, 23, rmsnorm, run_rmsnorm_add},
    {"rope", {{true, 0, 16, false}}, 16, rope, run_rope},
    {"linear", {{true, 0, 19, false}, {false, 21, 19, true}}, 21, linear, run_linear},
    {"swiglu", {{true, 0, 27, false}, {true, 0, 27, false}}, 27, swiglu, run_swiglu},
    {"residual", {{true, 0, 11, false}, {true, 0, 11, false}}, 11, residual, run_residual},
    {"lm_logprob", {{true, 0, 17, false}, {false, VOCABULARY, 17, true}}, 2 * PAIRS, lm_logprob, run_lm_logprob},
};
#define LAYERS (sizeof layers / sizeof layers[0])

static int32_t height(const struct layer *l, int k, int32_t rows) {
  return l->input[k].per_row ? rows : l->input[k].height;
}

/** Everything of one run in float: inputs, dout, out, gradients. */
struct ran {
  int32_t rows;
  float *in[INPUTS], *grad[INPUTS], *out, *dout;
};

static float *filled(int64_t n, float value) {
  float *x = malloc((size_t)n * sizeof *x + 1);
  for (int64_t i = 0; i < n; ++i) x[i] = value;
  return x;
}

/** Allocates with NaN where the layer must write; random inputs and dout unless the caller puts others. */
static struct ran prepare(const struct layer *l, int32_t rows, uint64_t seed) {
  struct ran r = {.rows = rows};
  for (int k = 0; k < INPUTS; ++k) {
    int64_t n = (int64_t)height(l, k, rows) * l->input[k].width;
    r.in[k] = filled(n, 0.0f);
    r.grad[k] = filled(n, l->input[k].accumulates ? START : NAN);
    for (int64_t i = 0; i < n; ++i) r.in[k][i] = dkv_rng_normal(seed, (uint64_t)k, (uint64_t)i);
  }
  r.out = filled((int64_t)rows * l->out_width, NAN);
  r.dout = filled((int64_t)rows * l->out_width, 0.0f);
  for (int64_t i = 0; i < (int64_t)rows * l->out_width; ++i) r.dout[i] = dkv_rng_normal(seed, 9, (uint64_t)i);
  return r;
}

static void release(struct ran *r) {
  for (int k = 0; k < INPUTS; ++k) {
    free(r->in[k]);
    free(r->grad[k]);
  }
  free(r->out);
  free(r->dout);
}

static void expect_close(const char *layer, const char *what, const void *got, const void *want, dkv_dtype want_type,
                         int64_t rows, int64_t width, double bound) {
  dkv_comparison c;
  EXPECT_OK(dkv_compare(&c, got, DKV_F32, want, want_type, rows, width, bound));
  cr_assert(c.passed, "%s, %s: error %.3g, row error %.3g (row %lld, index %lld: %.9g, not %.9g)", layer, what, c.error,
            c.row_error, (long long)c.worst_row, (long long)c.worst_index, c.worst_got, c.worst_want);
}

static const char *const gradient_names[INPUTS] = {"gradient of input 0", "gradient of input 1"};

Test(layers, forward_equals_double_and_backward_equals_its_differences) {
  int32_t tag[37];
  for (int32_t t = 0; t < 37; ++t) tag[t] = (t * 5) % 12;
  for (size_t n = 0; n < LAYERS; ++n) {
    const struct layer *l = &layers[n];
    int32_t outs = 37 * l->out_width;
    struct ran r = prepare(l, 37, 40 + n);
    l->run(37, tag, r.in, r.out, r.dout, r.grad);
    double *in[INPUTS], *out = malloc((size_t)outs * sizeof *out);
    for (int k = 0; k < INPUTS; ++k) {
      int32_t size = height(l, k, 37) * l->input[k].width;
      in[k] = malloc((size_t)size * sizeof(double) + 1);
      for (int32_t i = 0; i < size; ++i) in[k][i] = (double)r.in[k][i];
    }
    l->forward(37, tag, in, out);
    expect_close(l->name, "forward", r.out, out, DKV_F64, 37, l->out_width, 2e-6);
    for (int k = 0; k < INPUTS && l->input[k].width > 0; ++k) {
      int32_t high = height(l, k, 37), size = high * l->input[k].width;
      double *want = malloc((size_t)size * sizeof *want);
      for (int32_t i = 0; i < size; ++i) {
        double x = in[k][i], loss[2] = {0.0, 0.0};
        for (int side = 0; side < 2; ++side) {
          in[k][i] = side == 0 ? x + 1e-5 : x - 1e-5;
          l->forward(37, tag, in, out);
          for (int32_t j = 0; j < outs; ++j) loss[side] += (double)r.dout[j] * out[j];
        }
        in[k][i] = x;
        want[i] = (loss[0] - loss[1]) / 2e-5 + (l->input[k].accumulates ? (double)START : 0.0);
      }
      expect_close(l->name, gradient_names[k], r.grad[k], want, DKV_F64, high, l->input[k].width, 5e-6);
      free(want);
    }
    for (int k = 0; k < INPUTS; ++k) free(in[k]);
    free(out);
    release(&r);
  }
}

/* out_rep[r] = out[map r];  d in = sum over copies of d in_rep;  d parameter is the same. */
Test(layers, packed_equals_folded_replicated) {
  const int32_t length[] = {5, 0, 9, 1, 30};
  dkv_layout packed, replicated;
  int32_t *map = NULL;
  EXPECT_OK(dkv_layout_group(&packed, 70, 5, length));
  EXPECT_OK(dkv_layout_replicate(&replicated, &map, &packed));
  int32_t *tag = malloc((size_t)packed.rows * sizeof *tag),
          *tag_rep = malloc((size_t)replicated.rows * sizeof *tag_rep);
  for (int32_t t = 0; t < packed.rows; ++t) tag[t] = packed.position[t] % 12;
  for (int32_t r = 0; r < replicated.rows; ++r) tag_rep[r] = tag[map[r]];
  for (size_t n = 0; n < LAYERS; ++n) {
    const struct layer *l = &layers[n];
    struct ran p = prepare(l, packed.rows, 60 + n), r = prepare(l, replicated.rows, 60 + n);
    bool *seen = calloc((size_t)packed.rows, sizeof *seen);
    for (int32_t row = 0; row < replicated.rows; ++row) {
      for (int k = 0; k < INPUTS; ++k)
        for (int32_t c = 0; l->input[k].per_row && c < l->input[k].width; ++c)
          r.in[k][row * l->input[k].width + c] = p.in[k][map[row] * l->input[k].width + c];
      for (int32_t c = 0; c < l->out_width; ++c) /* dout rests on the first copy */
        r.dout[row * l->out_width + c] = seen[map[row]] ? 0.0f : p.dout[map[row] * l->out_width + c];
      seen[map[row]] = true;
    }
    for (int k = 0; k < INPUTS; ++k)
      for (int64_t i = 0; l->input[k].per_row && i < (int64_t)replicated.rows * l->input[k].width; ++i)
        if (l->input[k].accumulates) r.grad[k][i] = 0.0f;
    for (int k = 0; k < INPUTS; ++k)
      for (int64_t i = 0; l->input[k].per_row && i < (int64_t)packed.rows * l->input[k].width; ++i)
        if (l->input[k].accumulates) p.grad[k][i] = 0.0f;
    l->run(packed.rows, tag, p.in, p.out, p.dout, p.grad);
    l->run(replicated.rows, tag_rep, r.in, r.out, r.dout, r.grad);
    for (int32_t row = 0; row < replicated.rows; ++row)
      expect_close(l->name, "replicated row", r.out + row * l->out_width, p.out + map[row] * l->out_width, DKV_F32, 1,
                   l->out_width, 2e-6);
    for (int k = 0; k < INPUTS && l->input[k].width > 0; ++k) {
      int32_t width = l->input[k].width;
      float *folded = r.grad[k];
      if (l->input[k].per_row) {
        folded = filled((int64_t)packed.rows * width, NAN);
        EXPECT_OK(dkv_fold_rows(folded, packed.rows, r.grad[k], width, DKV_F32, map, replicated.rows));
      }
      expect_close(l->name, gradient_names[k], folded, p.grad[k], DKV_F32, height(l, k, packed.rows), width, 5e-6);
      if (folded != r.grad[k]) free(folded);
    }
    free(seen);
    release(&p);
    release(&r);
  }
  free(map);
  free(tag);
  free(tag_rep);
  dkv_layout_free(&packed);
  dkv_layout_free(&replicated);
}

/* Zero rows are legal: nothing is written but what is accumulated stays. */
Test(layers, zero_rows_do_nothing) {
  for (size_t n = 0; n < LAYERS; ++n) {
    struct ran r = prepare(&layers[n], 0, 3);
    int32_t none = 0;
    layers[n].run(0, &none, r.in, r.out, r.dout, r.grad);
    for (int k = 0; k < INPUTS; ++k)
      for (int32_t i = 0; i < height(&layers[n], k, 0) * layers[n].input[k].width; ++i)
        cr_assert_eq(r.grad[k][i], START, "%s", layers[n].name);
    release(&r);
  }
}
