/**
 * @file test_attention_hand.c
 * @brief Attention of seven tokens, forward and backward, worked out on paper and held against every host kernel.
 *
 *     P = 3, N = 2, R = 2, one head.  Only component 0 of the D = 8 is used; the rest are zeros.  c = 1.
 *
 *     row        0   1   2   3   4   5   6           q_i = 1, k_j = ln w_j:  s_ij = ln w_j, so weights are w_j / sum
 *     segment    p   p   p   a   a   b   b
 *     w          1   1   2   4   8   4   8
 *     sum_i      1   2   4   8  16   8  16           of the w that row i sees: lse_i = ln sum_i
 *     v          8   0   4  16   2  -8   6
 *     o          8   4   4  10   6  -2   2           o_3 = (8 + 0 + 8 + 64) / 8,  o_6 = (8 + 0 + 8 - 32 + 48) / 16
 *     dout       1   2   4   8  16   8  16           = sum_i, so that p_ij dout_i = w_j for every visible pair
 *     dv         7   6  10   8   8   8   8           = w_j times the number of rows that see j
 *     dk        24 -24   0  64 -32 -64  32           = w_j sum over those rows of (v_j - o_i)
 *     dq / ln 2  0   0   0  36 -20 -36  20           = sum_j w_j (v_j - o_i) log2 w_j
 *
 * Row 0 of the prompt is seen by all seven rows, so its dv is 7: the responses' gradients meet in the shared prompt.
 * Read before: cpu/attention/ref_fwd.c, ref_bwd.c.  Read next: test_attention_ref.c.
 */
#include <math.h>
#include <stdlib.h>

#include "common/backend.h"
#include "tests/support/expect.h"

enum { T = 7, D = 8 };

static const double W[T] = {1, 1, 2, 4, 8, 4, 8};
static const double V[T] = {8, 0, 4, 16, 2, -8, 6};
static const double SUM[T] = {1, 2, 4, 8, 16, 8, 16};
static const double O[T] = {8, 4, 4, 10, 6, -2, 2};
static const double DV[T] = {7, 6, 10, 8, 8, 8, 8};
static const double DK[T] = {24, -24, 0, 64, -32, -64, 32};
static const double DQ[T] = {0, 0, 0, 36, -20, -36, 20}; /* times ln 2 */

/** The seven tokens in one storage type, outputs filled with NaN. */
struct seven {
  dkv_layout layout;
  dkv_attention call;
  unsigned char memory[9][T * D * sizeof(double)];
};

static void put(struct seven *s, int tensor, int32_t row, double value) {
  char *at = (char *)s->memory[tensor] + (size_t)(row * D) * dkv_dtype_size(s->call.dtype);
  EXPECT_OK(dkv_convert(at, s->call.dtype, &value, DKV_F64, 1));
}

static void seven_open(struct seven *s, dkv_dtype dtype) {
  EXPECT_OK(dkv_layout_group(&s->layout, 3, 2, (const int32_t[]){2, 2}));
  memset(s->memory, 0, sizeof s->memory);
  memset(s->memory[4], 0xff, 5 * sizeof s->memory[4]);
  s->call = (dkv_attention){.layout = &s->layout,
                            .heads = 1,
                            .kv_heads = 1,
                            .head_dim = D,
                            .scale = 1.0,
                            .dtype = dtype,
                            .q = s->memory[0],
                            .k = s->memory[1],
                            .v = s->memory[2],
                            .dout = s->memory[3],
                            .o = s->memory[4],
                            .lse = s->memory[5],
                            .dq = s->memory[6],
                            .dk = s->memory[7],
                            .dv = s->memory[8]};
  for (int32_t i = 0; i < T; ++i) {
    put(s, 0, i, 1.0);
    put(s, 1, i, log(W[i]));
    put(s, 2, i, V[i]);
    put(s, 3, i, SUM[i]);
  }
}

static void run(const dkv_backend *backend, const dkv_kernel *kernel, struct seven *s) {
  EXPECT_OK(kernel->workspace(&s->call, &s->call.workspace_bytes));
  EXPECT_OK(backend->allocate(&s->call.workspace, s->call.workspace_bytes));
  EXPECT_OK(backend->fill(s->call.workspace, 0xff, s->call.workspace_bytes));
  EXPECT_OK(kernel->prepare(&s->call));
  EXPECT_OK(kernel->run(&s->call));
  backend->release(s->call.workspace);
  s->call.workspace = NULL;
}

/** Component 0 of each row must be the number on paper, the others exactly 0. */
static void expect_rows(const struct seven *s, const void *data, const double *want, double unit, double tolerance,
                        const char *what) {
  for (int32_t i = 0; i < T; ++i)
    for (int32_t d = 0; d < D; ++d) {
      double got = dkv_element(data, s->call.dtype, i * D + d), exact = d == 0 ? want[i] * unit : 0.0;
      cr_assert(fabs(got - exact) <= (d == 0 ? tolerance * 64 : 0.0), "%s of row %d, component %d: %.9g, on paper %.9g",
                what, i, d, got, exact);
    }
}

/** Both directions of a backend, each kernel against the paper. */
static void expect_paper(const char *name, dkv_dtype dtype, double tolerance) {
  const dkv_backend *backend;
  EXPECT_OK(dkv_backend_find(&backend, name));
  int32_t judged = 0;
  for (int32_t n = 0; n < backend->kernel_count; ++n) {
    const dkv_kernel *kernel = &backend->kernels[n];
    if (!(kernel->dtypes & DKV_BIT(dtype))) continue;
    struct seven s;
    seven_open(&s, dtype);
    if (kernel->direction == DKV_FORWARD) {
      run(backend, kernel, &s);
      expect_rows(&s, s.call.o, O, 1.0, tolerance, "o");
      for (int32_t i = 0; i < T; ++i) {
        double got = dkv_element(s.call.lse, dtype == DKV_F64 ? DKV_F64 : DKV_F32, i);
        cr_assert(fabs(got - log(SUM[i])) <= 4 * tolerance, "lse of row %d: %.9g, on paper ln %g", i, got, SUM[i]);
      }
    } else {
      for (int32_t i = 0; i < T; ++i) {
        double lse = log(SUM[i]);
        memset((char *)s.call.o + (size_t)(i * D) * dkv_dtype_size(dtype), 0, D * dkv_dtype_size(dtype));
        put(&s, 4, i, O[i]);
        if (dtype == DKV_F64) ((double *)s.call.lse)[i] = lse;
        else ((float *)s.call.lse)[i] = (float)lse;
      }
      run(backend, kernel, &s);
      expect_rows(&s, s.call.dv, DV, 1.0, tolerance, "dv");
      expect_rows(&s, s.call.dk, DK, 1.0, tolerance, "dk");
      expect_rows(&s, s.call.dq, DQ, log(2.0), tolerance, "dq");
    }
    ++judged;
    dkv_layout_free(&s.layout);
  }
  cr_assert(judged >= 2, "%s: only %d kernels were judged", name, judged);
}

Test(attention_hand, the_definition_gives_the_numbers_on_paper) {
  expect_paper("ref", DKV_F64, 1e-15);
  expect_paper("ref", DKV_F32, 1e-7);
}

Test(attention_hand, the_tiles_give_the_numbers_on_paper) { expect_paper("cpu", DKV_F32, 2e-7); }

Test(attention_hand, what_is_on_paper_adds_up) {
  double dk = 0, dv = 0, dout = 0;
  for (int32_t i = 0; i < T; ++i) dk += DK[i], dv += DV[i], dout += SUM[i];
  cr_assert(dv == dout, "weights of a row sum to 1, so dv and dout have one sum: %g, %g", dv, dout);
  cr_assert(dk == 0.0, "the ds of a row sum to 0, and all q are equal, so dk sums to 0: %g", dk);
}
