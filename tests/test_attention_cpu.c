/**
 * @file test_attention_cpu.c
 * @brief The tiled kernels against the definition: sizes around every tile edge, every head size, group ratio and type,
 * random forests; and the same bits for any number of threads.
 *
 * The backward is judged as its contract says: o and lse are inputs, so the definition gets the same stored ones
 * (rounded, for 16-bit types).  The whole way from q to dk is judged too, on problems of ordinary size.
 *
 * Read before: cpu/attention/tiled_fwd.c, tiled_bwd.c, test_attention_ref.c.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/compare.h"
#include "common/execute.h"
#include "common/rng.h"
#include "tests/support/expect.h"

static const dkv_backend *find(const char *name) {
  const dkv_backend *backend;
  EXPECT_OK(dkv_backend_find(&backend, name));
  return backend;
}

/** What is being judged, for messages. */
static char what[160];

static void name_it(const dkv_problem *p, int32_t threads, const char *kind, int64_t number) {
  snprintf(what, sizeof what, "%s %ld: T=%d S=%d H=%d Hkv=%d D=%d %s, %d threads", kind, (long)number, p->layout.rows,
           p->layout.segments, p->heads, p->kv_heads, p->head_dim, dkv_dtype_name(p->dtype), threads);
}

/** Result `r` of `got`, of type `dtype`, against the exact one. */
static void expect_close(const dkv_problem *p, dkv_result r, const void *got, dkv_dtype dtype, const void *want) {
  int64_t rows, width;
  dkv_comparison c;
  dkv_result_shape(p, r, &rows, &width);
  EXPECT_OK(dkv_compare(&c, got, dtype, want, DKV_F64, rows, width, dkv_error_bound(dtype, r >= DKV_DQ)));
  cr_assert(c.passed, "%s: %s is off by %.2g (row %ld: %.2g), %ld not finite; worst got %.9g, want %.9g", what,
            dkv_result_name(r), c.error, (long)c.worst_row, c.row_error, (long)c.not_finite, c.worst_got, c.worst_want);
}

/** The definition's backward given the o and lse that `from` stored. @param[out] out f64 */
static void define_backward(dkv_results *out, const dkv_problem *exact, const dkv_results *from) {
  dkv_session s;
  EXPECT_OK(dkv_session_open(&s, find("ref"), exact, NULL));
  EXPECT_OK(dkv_convert(s.backward_call.o, DKV_F64, from->data[DKV_O], from->dtype, dkv_result_elements(exact, DKV_O)));
  EXPECT_OK(dkv_convert(s.backward_call.lse, DKV_F64, from->data[DKV_LSE], from->lse_dtype,
                        dkv_result_elements(exact, DKV_LSE)));
  EXPECT_OK(s.backward->run(&s.backward_call));
  EXPECT_OK(dkv_session_results(&s, out, exact));
  dkv_session_close(&s);
}

static void free_all(dkv_results *a, dkv_results *b, dkv_problem *p) {
  dkv_results_free(a);
  dkv_results_free(b);
  dkv_problem_free(p);
}

/** Forward against the definition, backward against the definition of the same stored o and lse. */
static void expect_right(const dkv_problem *p, int32_t threads, const char *kind, int64_t number) {
  dkv_problem exact;
  dkv_results got, want;
  const dkv_execute_options options = {.threads = threads};
  name_it(p, threads, kind, number);
  EXPECT_OK(dkv_problem_cast(&exact, p, DKV_F64));
  EXPECT_OK(dkv_execute(&got, find("cpu"), p, &options));
  EXPECT_OK(dkv_execute(&want, find("ref"), &exact, NULL));
  expect_close(p, DKV_O, got.data[DKV_O], got.dtype, want.data[DKV_O]);
  expect_close(p, DKV_LSE, got.data[DKV_LSE], got.lse_dtype, want.data[DKV_LSE]);
  dkv_results_free(&want);
  define_backward(&want, &exact, &got);
  for (int r = DKV_DQ; r < DKV_RESULTS; ++r) expect_close(p, (dkv_result)r, got.data[r], got.dtype, want.data[r]);
  free_all(&got, &want, &exact);
}

/** A random problem on a group. */
static void open_group(dkv_problem *p, int32_t prompt, int32_t responses, int32_t length, const dkv_random_spec *spec) {
  dkv_layout layout;
  int32_t lengths[64];
  for (int32_t i = 0; i < responses; ++i) lengths[i] = length;
  EXPECT_OK(dkv_layout_group(&layout, prompt, responses, lengths));
  EXPECT_OK(dkv_problem_random(p, &layout, spec));
  dkv_layout_free(&layout);
}

Test(attention_cpu, is_right_on_both_sides_of_every_tile_edge) {
  /* register blocks of 4 and 8 keys, panels of 12 rows (4 heads of 48 lanes), query tiles of 60 and 120, key tiles of
   * 128 */
  const int32_t prompts[] = {0, 1, 7, 8, 9, 59, 60, 61, 119, 121, 127, 128, 129, 257},
                lengths[] = {0, 1, 11, 12, 13, 70};
  int64_t number = 0;
  for (size_t a = 0; a < sizeof prompts / sizeof prompts[0]; ++a)
    for (size_t b = 0; b < sizeof lengths / sizeof lengths[0]; ++b, ++number) {
      dkv_random_spec spec = {.heads = 4, .kv_heads = 1, .head_dim = 16, .dtype = DKV_F32, .seed = (uint64_t)number};
      dkv_problem p;
      open_group(&p, prompts[a], 3, lengths[b], &spec);
      if (p.layout.rows > 0) expect_right(&p, 2, "group", number);
      dkv_problem_free(&p);
    }
}

Test(attention_cpu, takes_every_head_size_ratio_and_type) {
  static const int32_t HEADS[][2] = {{1, 1}, {4, 4}, {6, 2}, {12, 3}, {5, 1}, {7, 7}};
  static const dkv_dtype TYPES[] = {DKV_F32, DKV_BF16, DKV_F16};
  for (int32_t dim = 8; dim <= DKV_MAX_HEAD_DIM; dim += dim < 104 ? 8 : dim < 136 ? 24 : 128)
    for (int h = 0; h < 6; ++h)
      for (int t = 0; t < 3; ++t) {
        dkv_random_spec spec = {.heads = HEADS[h][0],
                                .kv_heads = HEADS[h][1],
                                .head_dim = dim,
                                .dtype = TYPES[t],
                                .seed = (uint64_t)(dim + h)};
        dkv_problem p;
        if ((dim / 8 + h + t) % 3 != 0 && dim != 64 && dim != 128 && dim != 256)
          continue; /* a third, and all of these */
        open_group(&p, 37, 3, 9, &spec);
        expect_right(&p, 2, "shape", dim);
        dkv_problem_free(&p);
      }
}

/** A forest of up to `most` segments of up to `longest` rows, zero lengths often. */
static void random_layout(dkv_layout *layout, uint64_t seed, int32_t most, int32_t longest) {
  int32_t parent[512], length[512], segments = 1 + (int32_t)(dkv_rng(seed, 0, 0).word[0] % (uint32_t)most);
  for (int32_t s = 0; s < segments; ++s) {
    dkv_rng_block r = dkv_rng(seed, 1, (uint64_t)s);
    int32_t up = (int32_t)(r.word[0] % 4);
    parent[s] = r.word[1] % 16 == 0 ? -1 : s - 1;
    while (up-- > 0 && parent[s] >= 0) parent[s] = parent[parent[s]];
    length[s] = r.word[2] % 5 == 0 ? 0 : (int32_t)(r.word[3] % (uint32_t)longest);
  }
  EXPECT_OK(dkv_layout_forest(layout, segments, parent, length));
}

Test(attention_cpu, is_right_on_random_forests) {
  static const int32_t HEADS[][2] = {{1, 1}, {4, 2}, {6, 2}, {5, 1}};
  static const dkv_dtype TYPES[] = {DKV_F32, DKV_F32, DKV_BF16, DKV_F16};
  int64_t judged = 0;
  for (uint64_t seed = 0; seed < 90; ++seed) {
    const int kind = (int)(seed % 4);
    dkv_layout layout;
    dkv_problem p;
    random_layout(&layout, seed, (const int32_t[]){4, 12, 40, 500}[kind], (const int32_t[]){150, 60, 14, 3}[kind]);
    dkv_random_spec spec = {.heads = HEADS[seed / 4 % 4][0],
                            .kv_heads = HEADS[seed / 4 % 4][1],
                            .seed = seed,
                            .head_dim = (const int32_t[]){8, 24, 64, 40}[seed / 16 % 4],
                            .dtype = TYPES[seed % 3 + seed % 2]};
    EXPECT_OK(dkv_problem_random(&p, &layout, &spec));
    dkv_layout_free(&layout);
    if (p.layout.rows > 0) expect_right(&p, 1 + (int32_t)(seed % 3), "forest", (int64_t)seed), ++judged;
    dkv_problem_free(&p);
  }
  cr_assert(judged > 70);
}

Test(attention_cpu, is_right_on_a_thousand_responses_of_one_token) {
  static int32_t length[1000];
  dkv_layout layout;
  dkv_problem p;
  dkv_random_spec spec = {.heads = 2, .kv_heads = 1, .head_dim = 8, .dtype = DKV_F32, .seed = 8};
  for (int i = 0; i < 1000; ++i) length[i] = i % 7 != 0;
  EXPECT_OK(dkv_layout_group(&layout, 100, 1000, length));
  EXPECT_OK(dkv_problem_random(&p, &layout, &spec));
  expect_right(&p, 2, "one-token responses", 1000);
  dkv_problem_free(&p);
  dkv_layout_free(&layout);
}

Test(attention_cpu, is_within_the_bounds_from_q_to_dk) {
  static const dkv_dtype TYPES[] = {DKV_F32, DKV_BF16, DKV_F16};
  for (int t = 0; t < 3; ++t)
    for (int32_t dim = 64; dim <= 128; dim += 64) {
      dkv_random_spec spec = {.heads = 4, .kv_heads = 2, .head_dim = dim, .dtype = TYPES[t], .seed = 4};
      dkv_problem p, exact;
      dkv_results got, want;
      open_group(&p, 200, 4, 50, &spec);
      name_it(&p, 0, "whole way", t);
      EXPECT_OK(dkv_problem_cast(&exact, &p, DKV_F64));
      EXPECT_OK(dkv_execute(&got, find("cpu"), &p, NULL));
      EXPECT_OK(dkv_execute(&want, find("ref"), &exact, NULL));
      for (int r = 0; r < DKV_RESULTS; ++r)
        expect_close(&p, (dkv_result)r, got.data[r], r == DKV_LSE ? got.lse_dtype : got.dtype, want.data[r]);
      free_all(&got, &want, &exact);
      dkv_problem_free(&p);
    }
}

/** All results of both must have the same bits. */
static void expect_same_bits(const dkv_problem *p, const dkv_results *a, const dkv_results *b) {
  for (int r = 0; r < DKV_RESULTS; ++r) {
    size_t size = dkv_dtype_size(r == DKV_LSE ? a->lse_dtype : a->dtype);
    size_t bytes = (size_t)dkv_result_elements(p, (dkv_result)r) * size;
    cr_assert(memcmp(a->data[r], b->data[r], bytes) == 0, "%s: the bits of %s differ", what,
              dkv_result_name((dkv_result)r));
  }
}

Test(attention_cpu, gives_the_same_bits_for_any_number_of_threads_and_twice) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    dkv_layout layout;
    dkv_problem p;
    dkv_results first;
    dkv_random_spec spec = {.heads = 4,
                            .kv_heads = seed % 2 ? 1 : 2,
                            .head_dim = 32,
                            .seed = seed,
                            .dtype = seed % 3 == 0 ? DKV_BF16 : DKV_F32};
    random_layout(&layout, seed + 1000, seed % 2 ? 30 : 6, seed % 2 ? 40 : 300);
    EXPECT_OK(dkv_problem_random(&p, &layout, &spec));
    EXPECT_OK(dkv_execute(&first, find("cpu"), &p, &(dkv_execute_options){.threads = 1}));
    for (int32_t threads = 1; threads <= 5; ++threads) {
      dkv_results again;
      name_it(&p, threads, "bits", (int64_t)seed);
      EXPECT_OK(dkv_execute(&again, find("cpu"), &p, &(dkv_execute_options){.threads = threads}));
      expect_same_bits(&p, &first, &again);
      dkv_results_free(&again);
    }
    dkv_results_free(&first);
    dkv_problem_free(&p);
    dkv_layout_free(&layout);
  }
}

/** Fills segment s of a [T][heads][D] f32 tensor. */
static void fill_segment(const dkv_problem *p, void *tensor, int32_t heads, int32_t s, float value) {
  const int64_t width = (int64_t)heads * p->head_dim;
  for (int64_t i = p->layout.start[s] * width; i < p->layout.start[s + 1] * width; ++i)
    ((float *)tensor)[i] = i % 2 ? value : -value;
}

/* scores of the huge rows overflow to infinity and NaN; to everybody else they are masked, and 0 * huge is 0 */
Test(attention_cpu, ignores_a_sibling_of_huge_numbers_to_the_last_bit) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    dkv_random_spec spec = {.heads = 4, .kv_heads = 2, .head_dim = 24, .dtype = DKV_F32, .seed = seed};
    dkv_problem p;
    dkv_results before, after;
    open_group(&p, seed % 2 ? 130 : 3, 5, seed % 3 ? 9 : 61, &spec);
    name_it(&p, 2, "huge sibling", (int64_t)seed);
    EXPECT_OK(dkv_execute(&before, find("cpu"), &p, NULL));
    fill_segment(&p, p.q, 4, 3, 1e30f);
    fill_segment(&p, p.k, 2, 3, 1e30f);
    fill_segment(&p, p.v, 2, 3, 3e38f);
    EXPECT_OK(dkv_execute(&after, find("cpu"), &p, NULL));
    for (int32_t i = p.layout.start[1]; i < p.layout.rows; ++i) {
      if (p.layout.segment[i] == 3) continue;
      for (int r = 0; r < DKV_RESULTS; ++r) {
        const size_t row = (size_t)(r == DKV_O || r == DKV_DQ ? 4 : 2) * 24 * sizeof(float);
        const char *a = (const char *)before.data[r] + (size_t)i * row,
                   *b = (const char *)after.data[r] + (size_t)i * row;
        cr_assert(r == DKV_LSE || memcmp(a, b, row) == 0, "%s: %s of row %d noticed", what,
                  dkv_result_name((dkv_result)r), i);
      }
    }
    free_all(&before, &after, &p);
  }
}

/* From q to dk, scores up to 150: f32 gradients keep their bound although neither scores nor lse fit a float. */
Test(attention_cpu, keeps_the_bound_of_f32_gradients_at_scores_of_hundreds) {
  const dkv_random_spec specs[] = {
      {2, 1, 64, 0, DKV_F32, 40, 6}, {6, 2, 40, 0, DKV_F32, 40, 7}, {2, 2, 128, 0, DKV_F32, 30, 8}};
  for (size_t i = 0; i < sizeof specs / sizeof specs[0]; ++i) {
    dkv_layout layout;
    dkv_problem p, exact;
    dkv_results got, want;
    EXPECT_OK(dkv_layout_group(&layout, 40 + 100 * (int32_t)i, 2, (const int32_t[]){25, 130}));
    EXPECT_OK(dkv_problem_random(&p, &layout, &specs[i]));
    EXPECT_OK(dkv_problem_cast(&exact, &p, DKV_F64));
    name_it(&p, 0, "large scores", (int64_t)i);
    EXPECT_OK(dkv_execute(&got, find("cpu"), &p, NULL));
    EXPECT_OK(dkv_execute(&want, find("ref"), &exact, NULL));
    for (dkv_result r = DKV_DQ; r <= DKV_DV; ++r) expect_close(&p, r, got.data[r], p.dtype, want.data[r]);
    free_all(&got, &want, &p);
    dkv_problem_free(&exact);
    dkv_layout_free(&layout);
  }
}

Test(attention_cpu, survives_scores_of_1e30) {
  dkv_random_spec spec = {.heads = 2, .kv_heads = 1, .head_dim = 16, .dtype = DKV_F32, .gain = 1e30, .seed = 5};
  dkv_problem p;
  dkv_results got;
  open_group(&p, 140, 3, 20, &spec);
  name_it(&p, 0, "huge scores", 0);
  for (int64_t i = 0; i < dkv_result_elements(&p, DKV_DK); ++i) ((float *)p.k)[i] *= 0.1f; /* dk stays a float */
  EXPECT_OK(dkv_execute(&got, find("cpu"), &p, NULL));
  for (int32_t i = 0; i < p.layout.rows; ++i)
    for (int r = DKV_O; r <= DKV_DQ; r += DKV_DQ) /* softmax is a choice of one key: o is its v, dq is 0 */
      for (int32_t d = 0; d < 32; ++d) cr_assert(isfinite(((float *)got.data[r])[i * 32 + d]), "%s: row %d", what, i);
  dkv_problem exact;
  dkv_results want;
  EXPECT_OK(dkv_problem_cast(&exact, &p, DKV_F64));
  EXPECT_OK(dkv_execute(&want, find("ref"), &exact, NULL));
  expect_close(&p, DKV_O, got.data[DKV_O], DKV_F32, want.data[DKV_O]);
  expect_close(&p, DKV_LSE, got.data[DKV_LSE], DKV_F32, want.data[DKV_LSE]);
  expect_close(&p, DKV_DV, got.data[DKV_DV], DKV_F32, want.data[DKV_DV]);
  free_all(&got, &want, &exact);
  dkv_problem_free(&p);
}

/** Asks each kernel of the cpu table; `tokens` rows in 8 responses after a prompt of half of them. */
static void workspace_of(size_t bytes[2], int32_t tokens, int32_t threads, dkv_dtype dtype) {
  dkv_layout layout;
  int32_t length[8];
  for (int i = 0; i < 8; ++i) length[i] = tokens / 16;
  EXPECT_OK(dkv_layout_group(&layout, tokens / 2, 8, length));
  const dkv_attention call = {
      .layout = &layout, .heads = 8, .kv_heads = 2, .head_dim = 64, .scale = 1, .dtype = dtype, .threads = threads};
  for (int32_t n = 0; n < find("cpu")->kernel_count; ++n) {
    const dkv_kernel *kernel = &find("cpu")->kernels[n];
    EXPECT_OK(kernel->workspace(&call, &bytes[kernel->direction]));
  }
  dkv_layout_free(&layout);
}

Test(attention_cpu, needs_tiles_for_each_thread_and_nothing_like_the_scores) {
  size_t small[2], large[2], more[2];
  const int32_t T = 1 << 20, H = 8;
  workspace_of(small, 1 << 10, 2, DKV_F32);
  workspace_of(large, T, 2, DKV_F32);
  workspace_of(more, T, 3, DKV_F32);
  for (int d = DKV_FORWARD; d <= DKV_BACKWARD; ++d) {
    cr_assert(large[d] - small[d] <= (size_t)T * (size_t)H * sizeof(float), "%zu bytes more", large[d] - small[d]);
    cr_assert(more[d] > large[d] && more[d] - large[d] < 8 << 20, "a thread needs %zu bytes", more[d] - large[d]);
  }
}

/* a call gets less memory than its threads would need: it uses fewer threads and gives the same bits; nothing is
 * written behind the workspace */
Test(attention_cpu, stays_inside_its_workspace_and_says_when_it_is_too_small) {
  for (int t = 0; t < 2; ++t) {
    dkv_random_spec spec = {.heads = 4, .kv_heads = 2, .head_dim = 40, .dtype = t ? DKV_BF16 : DKV_F32, .seed = 6};
    dkv_problem p;
    dkv_session s;
    dkv_results first, again;
    open_group(&p, 150, 3, 33, &spec);
    name_it(&p, 3, "workspace", t);
    EXPECT_OK(dkv_session_open(&s, find("cpu"), &p, &(dkv_execute_options){.threads = 3}));
    EXPECT_OK(dkv_session_run(&s));
    EXPECT_OK(dkv_session_results(&s, &first, &p));
    dkv_attention *calls[2] = {&s.forward_call, &s.backward_call};
    for (int c = 0; c < 2; ++c) {
      const dkv_kernel *kernel = c ? s.backward : s.forward;
      size_t bytes;
      calls[c]->threads = 1;
      EXPECT_OK(kernel->workspace(calls[c], &bytes));
      memset(calls[c]->workspace, 0xff, calls[c]->workspace_bytes);
      char *guard = (char *)calls[c]->workspace + bytes;
      calls[c]->threads = 3;
      calls[c]->workspace_bytes = bytes - 1;
      EXPECT_FAIL(DKV_ERR_NOMEM, "needs", kernel->run(calls[c]));
      calls[c]->workspace_bytes = bytes;
      EXPECT_OK(kernel->run(calls[c]));
      for (int i = 0; i < 4096; ++i) cr_assert(guard[i] == -1, "%s: byte %d behind the workspace", what, i);
    }
    EXPECT_OK(dkv_session_results(&s, &again, &p));
    expect_same_bits(&p, &first, &again);
    dkv_session_close(&s);
    free_all(&first, &again, &p);
  }
}

Test(attention_cpu, does_nothing_for_no_rows) {
  dkv_layout layout;
  EXPECT_OK(dkv_layout_group(&layout, 0, 0, NULL));
  const dkv_attention call = {
      .layout = &layout, .heads = 1, .kv_heads = 1, .head_dim = 8, .scale = 1, .dtype = DKV_F32};
  for (int32_t n = 0; n < find("cpu")->kernel_count; ++n) {
    const dkv_kernel *kernel = &find("cpu")->kernels[n];
    size_t bytes = 1;
    EXPECT_OK(kernel->workspace(&call, &bytes));
    cr_assert(bytes == 0);
    EXPECT_OK(kernel->prepare(&call));
    EXPECT_OK(kernel->run(&call));
  }
  dkv_layout_free(&layout);
}
