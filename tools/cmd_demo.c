/**
 * @file cmd_demo.c
 * @brief `dualkv demo`: the tour.  A group of seven tokens and its mask; packed == replicated on every backend that is
 * here; what that saves, predicted and measured; where it saves nothing.
 *
 * Read before: tool.h, common/layout.h.  Read next: twins.c, bench.h.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tools/bench.h"
#include "tools/train.h"
#include "tools/twins.h"

static const char about[] =
    "usage: dualkv demo\n\n"
    "The tour: draws a group of seven tokens and its mask, runs it packed and replicated, forward and backward, on "
    "every backend\n"
    "that is here, compares both with each other and with the definition, then times both where it matters.\n"
    "Exit code 1 when anything disagrees.\n";

static void heading(const char *text) {
  const struct dkv_style *style = dkv_tool_style();
  printf("\n%s%s%s\n\n", style->title, text, style->off);
  fflush(stdout);
}

/** Prints a drawing; on a terminal the letters of the mask get the colour of their segment, and blind dots fade. */
static void print_drawing(const char *text) {
  static const char *const hue[] = {"\033[33m", "\033[35m", "\033[36m"}; /* a, b, c */
  const bool colour = dkv_tool_style()->off[0] != '\0';
  const char *mask = strstr(text, "The mask:");
  for (const char *at = text; *at != '\0'; ++at) {
    bool lone = at > text && at[-1] == ' ' && (at[1] == ' ' || at[1] == '\n');
    bool letter = (*at >= 'a' && *at <= 'c') || *at == 'p' || *at == '.';
    if (!colour || mask == NULL || at < mask || !lone || !letter) {
      putchar(*at);
      continue;
    }
    printf("%s%c\033[0m", *at == 'p' ? "\033[34m" : *at == '.' ? "\033[2m" : hue[*at - 'a'], *at);
  }
}

/** 1. The layout and its mask. */
static dkv_status draw_group(const dkv_layout *layout) {
  char *text = NULL;
  heading("1. One prompt, two responses: seven rows, not ten");
  printf("A prompt of 3 tokens (p) with two responses of 2 tokens (a, b).  Training on copies would hold the prompt "
         "twice,\n"
         "2 x (3 + 2) = 10 rows in every layer; packed it is held once, 3 + 2 x 2 = 7 rows.  Row i sees row j exactly "
         "when\n"
         "j <= i and i < end[j]: no response sees its sibling, both see the prompt.\n\n");
  DKV_TRY(dkv_layout_draw(&text, layout, 0));
  print_drawing(text);
  free(text);
  return DKV_OK;
}

/** Prints five errors and says whether all are within their bounds. */
static bool print_errors(const char *what, const dkv_comparison v[DKV_RESULTS]) {
  const struct dkv_style *style = dkv_tool_style();
  bool all = true;
  printf("  %-28s", what);
  for (int r = 0; r < DKV_RESULTS; ++r) {
    printf(" %9.1e", v[r].error);
    all = all && v[r].passed;
  }
  printf("   %s%s%s\n", all ? style->good : style->bad, all ? "equal" : "DIFFERENT", style->off);
  return all;
}

/** One backend: packed against the definition, replicated against packed. */
static dkv_status show_backend(const dkv_backend *backend, const dkv_problem *packed, const dkv_results *exact,
                               bool *equal) {
  dkv_problem copies = {0};
  dkv_results once = {0}, many = {0};
  dkv_comparison by_definition[DKV_RESULTS], by_twin[DKV_RESULTS];
  int32_t *row_map = NULL;
  char label[64];
  dkv_status status = dkv_execute(&once, backend, packed, NULL);
  if (status == DKV_OK) status = dkv_problem_replicate(&copies, &row_map, packed);
  if (status == DKV_OK) status = dkv_execute(&many, backend, &copies, NULL);
  for (int r = 0; r < DKV_RESULTS && status == DKV_OK; ++r)
    status = dkv_judge(&by_definition[r], packed, (dkv_result)r, once.data[r],
                       r == DKV_LSE ? once.lse_dtype : once.dtype, exact, 1);
  if (status == DKV_OK) status = dkv_twins_compare(by_twin, packed, &once, &copies, &many, row_map);
  if (status == DKV_OK) {
    snprintf(label, sizeof label, "%s: packed, definition", backend->name);
    bool right = print_errors(label, by_definition);
    snprintf(label, sizeof label, "%s: packed, replicated", backend->name);
    bool same = print_errors(label, by_twin);
    *equal = *equal && right && same;
  }
  dkv_results_free(&once);
  dkv_results_free(&many);
  dkv_problem_free(&copies);
  free(row_map);
  return status;
}

/** 2. The same numbers, on every backend. */
static dkv_status show_agreement(const dkv_layout *layout, bool *equal) {
  const struct dkv_style *style = dkv_tool_style();
  const dkv_random_spec spec = {.heads = 4, .kv_heads = 2, .head_dim = 64, .dtype = DKV_F32, .seed = 7};
  dkv_problem problem;
  dkv_results exact = {0};
  heading("2. The same numbers come out, forward and backward");
  printf("Random q, k, v and upstream gradient, H=4, Hkv=2, D=64, f32.  Relative differences; a gradient of the "
         "replicated layout\n"
         "is the sum over the copies of its row.\n\n");
  printf("%s  %-28s %9s %9s %9s %9s %9s%s\n", style->title, "", "o", "lse", "dq", "dk", "dv", style->off);
  DKV_TRY(dkv_problem_random(&problem, layout, &spec));
  dkv_status status = dkv_exact_results(&exact, &problem);
  for (int b = 0; dkv_backend_names[b] != NULL && status == DKV_OK; ++b) {
    const dkv_backend *backend = NULL;
    if (dkv_backend_find(&backend, dkv_backend_names[b]) == DKV_OK)
      status = show_backend(backend, &problem, &exact, equal);
    else printf("  %s%s: %s%s\n", style->dim, dkv_backend_names[b], dkv_last_error(), style->off);
  }
  dkv_results_free(&exact);
  dkv_problem_free(&problem);
  return status;
}

/** What the times say, in a sentence. */
static void conclude(const struct dkv_bench_result *result) {
  const struct dkv_style *style = dkv_tool_style();
  double packed = 0, replicated = 0;
  if (!result->replicated.measured) return;
  for (int d = 0; d < 2; ++d) {
    packed += dkv_bench_median(&result->packed.direction[d]);
    replicated += dkv_bench_median(&result->replicated.direction[d]);
  }
  printf("\n%sForward and backward take %.3g ms instead of %.3g ms: %.2f times less, %.2f predicted.%s\n", style->good,
         packed, replicated, replicated / packed, result->saving.pair_ratio, style->off);
}

/** 3. One backend, timed at a size where sharing matters. */
static dkv_status show_speed(const char *name, int32_t prompt, int32_t response_length, int32_t heads,
                             dkv_dtype dtype) {
  enum { RESPONSES = 16 };
  int32_t length[RESPONSES];
  struct dkv_bench_request request = {.matmul_size = dtype == DKV_F32 ? 1024 : 8192, .repeats = 7};
  struct dkv_bench_result *result = calloc(1, sizeof *result);
  DKV_REQUIRE(result != NULL, DKV_ERR_NOMEM, "dualkv demo: no memory for the results");
  for (int n = 0; n < RESPONSES; ++n) length[n] = response_length;
  request.spec = (dkv_random_spec){.heads = heads, .kv_heads = heads / 4, .head_dim = 64, .dtype = dtype, .seed = 1};
  dkv_status status = dkv_backend_find(&request.backend, name);
  if (status == DKV_OK) status = dkv_layout_group(&request.layout, prompt, RESPONSES, length);
  if (status == DKV_OK) status = dkv_bench_check(result, &request);
  if (status == DKV_OK) status = dkv_bench_time(result, &request);
  dkv_tool_progress_end();
  if (status == DKV_OK) {
    printf("Prompt of %d rows, %d responses of %d: the same kernels on both layouts.\n\n", prompt, RESPONSES,
           response_length);
    dkv_bench_print(result, &request);
    conclude(result);
  }
  dkv_layout_free(&request.layout);
  free(result);
  return status;
}

/** 4. Where sharing pays, and where it does not. */
static void show_where_it_pays(void) {
  static const int32_t cases[][3] = {
      {1, 4096, 1024}, {16, 128, 2048}, {16, 2048, 2048}, {16, 8192, 1024}, {32, 16384, 512}};
  const struct dkv_style *style = dkv_tool_style();
  heading("4. Where it pays: long prompts, short responses, many of them");
  printf("%s  %9s %9s %9s   %24s %24s%s\n", style->title, "responses", "prompt", "response", "rho: tokens, per layer",
         "A: attention pairs", style->off);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
    int32_t n = cases[i][0], p = cases[i][1], r = cases[i][2];
    printf("  %9d %9d %9d   %22.2f x %22.2f x\n", n, p, r, dkv_cost_rho(p, n, r), dkv_cost_pair_ratio(p, n, r));
  }
  printf("\nWith one response nothing is shared and nothing is saved.\n");
}

static void show_next(void) {
  heading("Next (dualkv is build/dualkv, or put build/ on your PATH)");
  printf("  dualkv layout --prompt 3 --responses 2 --response-length 2   draw other groups and trees\n"
         "  dualkv cost --prompt 8192 --responses 32 --response-length 1024   what a real model saves\n"
         "  dualkv check   every law on every kernel here      dualkv --help   all commands\n");
}

static dkv_status tour(bool *equal) {
  const dkv_backend *gpu = NULL;
  const int32_t two[] = {2, 2};
  dkv_layout layout;
  printf("DualKV: a prompt shared by many responses, computed once\n");
  DKV_TRY(dkv_layout_group(&layout, 3, 2, two));
  dkv_status status = draw_group(&layout);
  if (status == DKV_OK) status = show_agreement(&layout, equal);
  dkv_layout_free(&layout);
  if (status != DKV_OK) return status;
  heading("3. What that saves here, predicted and measured");
  DKV_TRY(show_speed("cpu", 1024, 64, 4, DKV_F32));
  if (dkv_backend_find(&gpu, "gpu") == DKV_OK) {
    putchar('\n');
    DKV_TRY(show_speed("gpu", 8192, 512, 32, DKV_BF16));
  }
  show_where_it_pays();
  heading("5. What it is for: reinforcement learning");
  DKV_TRY(dkv_demo_train());
  show_next();
  return DKV_OK;
}

int dkv_cmd_demo(int argc, char *const *argv) {
  bool progress = false, equal = true;
  const struct dkv_flag flags[] = {
      {"progress", DKV_FLAG_SWITCH, &progress, NULL, "show progress even when stderr is no terminal", 0, 0},
      {0},
  };
  if (dkv_args_help(about, flags, argc, argv)) return DKV_EXIT_OK;
  dkv_status status = dkv_args_parse("demo", flags, argc, argv, NULL);
  if (progress) dkv_tool_progress_always();
  if (status == DKV_OK) status = tour(&equal);
  if (status != DKV_OK) return dkv_tool_fail(status);
  return equal ? DKV_EXIT_OK : DKV_EXIT_MISMATCH;
}
