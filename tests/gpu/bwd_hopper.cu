/**
 * @file bwd_hopper.cu
 * @brief Checks the Hopper backward rungs on many layouts, and times them.
 *
 *     bwd_hopper check    exit code 0 only when every case of every rung, type and head size is within tolerance
 *     bwd_hopper few      one layout of every rung, type and head size: for compute-sanitizer
 *     bwd_hopper memory   device memory over inputs, outputs, gradients and one fp32 dQ; no GPU is needed
 *     bwd_hopper bench [FILE [SHAPE]]   a table of ms and useful TFLOP/s, the card held at its power limit
 *
 * Read before: bwd_judge.cuh.
 */
#include "tests/gpu/bwd_judge.cuh"

#include "gpu/attention/bwd_4_hopper_plain.cu"
#include "gpu/attention/bwd_5_hopper.cu"

template <class C> static void attach(problem *x, bool deterministic) {
  x->a.deterministic = deterministic;
  const size_t bytes = dkv_bwd5_lay<C>(&x->a).bytes;
  CHECK(cudaFree(x->a.workspace));
  CHECK(cudaMalloc(&x->a.workspace, bytes));
  CHECK(cudaMemset(x->a.workspace, 0xff, bytes));
  x->a.workspace_bytes = bytes;
  CHECK(cudaMemset(x->a.dq, 0xff, (x->q_size + guard) * 2));
  CHECK(cudaMemset(x->a.dk, 0xff, (x->k_size + guard) * 2));
  CHECK(cudaMemset(x->a.dv, 0xff, (x->k_size + guard) * 2));
  MUST(dkv_bwd5_prepare<C>(&x->a));
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

template <class C, auto launch>
static bool run_cases(const char *variant, int heads, int kv_heads, bool deterministic) {
  using T = typename C::T;
  bool ok = true;
  for (const shape &s : shapes()) {
    problem x;
    char what[160];
    snprintf(what, sizeof what, "[%s %d/%d] %s", variant, heads, kv_heads, s.name);
    MUST(dkv_layout_forest(&x.layout, (int)s.parent.size(), s.parent.data(), s.length.data()));
    open_problem<T>(&x, heads, kv_heads, C::D, 7);
    attach<C>(&x, deterministic);
    MUST(dkv_bwd5_run_around<C>(&x.a, launch));
    CHECK(cudaDeviceSynchronize());
    ok &= judge<T>(what, &x, 3, 0, 0, 0);
    close_problem(&x);
  }
  return ok;
}

/* huge finite k, v (or q, do) in response B of a group: nothing of A or of the prompt may notice */
template <class C, auto launch> static bool run_isolation(const char *variant, bool deterministic) {
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
    MUST(dkv_bwd5_run_around<C>(&x.a, launch));
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
  for (int run = 0; run < 20; run++) {
    attach<C>(&x, true);
    MUST(dkv_bwd5_run_around<C>(&x.a, dkv_bwd5_launch<C>));
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

template <class C, auto launch = dkv_bwd5_launch<C>>
static bool check_variant(const char *variant, bool deterministic) {
  bool ok = run_cases<C, launch>(variant, 4, 2, deterministic) && run_cases<C, launch>(variant, 3, 3, deterministic) &&
            run_cases<C, launch>(variant, 8, 1, deterministic);
  if (ok) ok = run_isolation<C, launch>(variant, deterministic);
  if (ok && deterministic) ok = run_repeats<C>(variant);
  printf("%-28s %s\n", variant, ok ? "ok" : "WRONG");
  fflush(stdout);
  return ok;
}

/* more than 2^31 elements a tensor: offsets must be 64-bit */
template <class C> static bool run_huge(const char *variant) {
  problem x;
  std::vector<int32_t> parent(140, -1), length(140, 1900);
  MUST(dkv_layout_forest(&x.layout, 140, parent.data(), length.data()));
  open_problem<typename C::T>(&x, 64, 8, C::D, 5);
  attach<C>(&x, false);
  MUST(dkv_bwd5_run_around<C>(&x.a, dkv_bwd5_launch<C>));
  CHECK(cudaDeviceSynchronize());
  const bool ok = x.q_size > (size_t)1 << 31 && judge<typename C::T>(variant, &x, 40009, 0, 0, 0);
  printf("%-28s %s\n", variant, ok ? "ok" : "WRONG");
  close_problem(&x);
  return ok;
}

/* workspace against what the tensors take: q, o, dout, dq and k, v, dk, dv at 16 bits, lse, one fp32 dQ */
static double memory_over(const dkv_attention &a, size_t workspace) {
  const double q = (double)a.layout->rows * a.heads * a.head_dim, k = (double)a.layout->rows * a.kv_heads * a.head_dim;
  const double tensors = 8 * q + 8 * k + 4.0 * a.layout->rows * a.heads;
  return 100 * ((tensors + (double)workspace) / (tensors + 4 * q) - 1);
}

/* ---- timing ---- */
struct timing {
  float before, main, after;
};

/* the median of the second half of about `budget` ms of runs: by then the card has settled at its power limit */
template <class C, auto launch> static timing time_variant(problem *x, bool deterministic, float budget) {
  attach<C>(x, deterministic);
  const dkv_bwd5_parameters p = dkv_bwd5_fill<C>(&x->a, dkv_bwd5_lay<C>(&x->a));
  dkv_bwd5_maps maps;
  MUST(dkv_bwd5_map<C>(&maps, &x->a, p));
  cudaEvent_t e[4];
  for (cudaEvent_t &event : e) CHECK(cudaEventCreate(&event));
  std::vector<timing> all;
  int repeats = 1;
  for (int r = 0; r <= repeats; r++) {
    CHECK(cudaEventRecord(e[0]));
    MUST(dkv_bwd5_before<C>(&x->a, p));
    CHECK(cudaEventRecord(e[1]));
    MUST(launch(&x->a, p, maps));
    CHECK(cudaEventRecord(e[2]));
    MUST(dkv_bwd5_after<C>(&x->a, p));
    CHECK(cudaEventRecord(e[3]));
    CHECK(cudaDeviceSynchronize());
    timing t;
    CHECK(cudaEventElapsedTime(&t.before, e[0], e[1]));
    CHECK(cudaEventElapsedTime(&t.main, e[1], e[2]));
    CHECK(cudaEventElapsedTime(&t.after, e[2], e[3]));
    if (r == 0) repeats = (int)fmax(4, fmin(30, budget / (t.before + t.main + t.after)));
    if (2 * r > repeats) all.push_back(t);
  }
  for (cudaEvent_t &event : e) CHECK(cudaEventDestroy(event));
  std::sort(all.begin(), all.end(), [](const timing &a, const timing &b) { return a.main < b.main; });
  return all[all.size() / 2];
}

struct bench_shape {
  const char *name;
  int prompt;
  std::vector<int32_t> lengths;
};

/* one line for people, one JSON object in the file for results */
static FILE *json;
template <class C, auto launch = dkv_bwd5_launch<C>>
static void bench_variant(const char *variant, problem *x, const char *shape_name, bool deterministic) {
  const timing t = time_variant<C, launch>(x, deterministic, 250);
  dkv_bwd5_plan plan;
  MUST(dkv_bwd5_make_plan(&plan, &x->a, C::queries));
  int64_t steps = 0;
  for (const dkv_bwd5_item &item : plan.items) steps += item.last - item.first;
  steps *= x->a.heads;
  const double flops = 10.0 * C::D * x->a.heads * (double)dkv_layout_pairs(&x->layout),
               all = t.before + t.main + t.after;
  const double over = memory_over(x->a, x->a.workspace_bytes);
  const bool ok = judge<typename C::T>(variant, x, (int)((int64_t)x->layout.rows * x->a.heads / 160 + 1), 0, 0, 0);
  printf("%-18s %-20s %8.3f ms %6.1f TF/s  main %6.1f  before %.3f after %.3f  ns/step/SM %.0f  memory +%.2f%%  %s\n",
         shape_name, variant, all, flops / all * 1e-9, flops / t.main * 1e-9, t.before, t.after,
         t.main * 1e6 * 132 / steps, over, ok ? "ok" : "WRONG");
  fflush(stdout);
  if (json != NULL)
    fprintf(json,
            "    {\"shape\": \"%s\", \"kernel\": \"%s\", \"dtype\": \"%s\", \"head_dim\": %d, \"deterministic\": %s, "
            "\"ms\": %.4f, \"tflops\": %.1f, \"main_ms\": %.4f, \"main_tflops\": %.1f, \"before_ms\": %.4f, "
            "\"after_ms\": %.4f, \"steps\": %lld, \"memory_over_percent\": %.3f, \"correct\": %s},\n",
            shape_name, variant, dkv_is_bf16<typename C::T>::value ? "bf16" : "f16", C::D,
            deterministic ? "true" : "false", all, flops / all * 1e-9, t.main, flops / t.main * 1e-9, t.before, t.after,
            (long long)steps, over, ok ? "true" : "false");
}

static std::vector<int32_t> lognormal() {
  std::vector<int32_t> out;
  uint64_t state = 12345;
  for (int i = 0; i < 32; i++) {
    double u[2];
    for (double &w : u)
      state = state * 6364136223846793005ull + 1442695040888963407ull, w = ((state >> 11) + 1) * 0x1p-53;
    out.push_back((int32_t)fmax(1, fmin(4096, 540 * exp(0.9 * sqrt(-2 * log(u[0])) * cos(6.283185307179586 * u[1])))));
  }
  return out;
}

using bf = __nv_bfloat16;
template <typename T, int D> using plain = dkv_bwd4_choice<T, D, false>;
template <typename T, int D> using fast = dkv_bwd5_choice<T, D, false>;
template <typename T, int D> using ordered = dkv_bwd5_choice<T, D, true>;

static int check() {
  bool ok = check_variant<fast<bf, 128>>("hopper bf16 128", false);
  ok &= check_variant<fast<__half, 128>>("hopper f16 128", false);
  ok &= check_variant<fast<bf, 64>>("hopper bf16 64", false);
  ok &= check_variant<fast<__half, 64>>("hopper f16 64", false);
  ok &= check_variant<plain<bf, 128>, dkv_bwd4_launch<plain<bf, 128>>>("wgmma bf16 128", false);
  ok &= check_variant<plain<__half, 64>, dkv_bwd4_launch<plain<__half, 64>>>("wgmma f16 64", false);
  ok &= check_variant<ordered<bf, 128>>("ordered bf16 128", true);
  ok &= check_variant<ordered<__half, 128>>("ordered f16 128", true);
  ok &= check_variant<ordered<bf, 64>>("ordered bf16 64", true);
  ok &= check_variant<ordered<__half, 64>>("ordered f16 64", true);
  ok &= run_huge<fast<bf, 128>>("hopper, 64-bit offsets");
  printf(ok ? "all ok\n" : "WRONG\n");
  return !ok;
}

/* the rungs and modes on one layout with cut tiles */
template <class C, auto launch = dkv_bwd5_launch<C>> static bool few_variant(const char *variant, bool deterministic) {
  problem x;
  const shape s = group(variant, 700, {100, 61, 200});
  MUST(dkv_layout_forest(&x.layout, (int)s.parent.size(), s.parent.data(), s.length.data()));
  open_problem<typename C::T>(&x, 32, 16, C::D, 9);
  attach<C>(&x, deterministic);
  MUST(dkv_bwd5_run_around<C>(&x.a, launch));
  CHECK(cudaDeviceSynchronize());
  const bool ok = judge<typename C::T>(variant, &x, 211, 0, 0, 0);
  printf("%-28s %s\n", variant, ok ? "ok" : "WRONG");
  close_problem(&x);
  return ok;
}

static int few() {
  bool ok = few_variant<fast<bf, 128>>("hopper bf16 128", false);
  ok &= few_variant<fast<__half, 64>>("hopper f16 64", false);
  ok &= few_variant<ordered<bf, 128>>("ordered bf16 128", true);
  ok &= few_variant<ordered<__half, 64>>("ordered f16 64", true);
  ok &= few_variant<plain<bf, 128>, dkv_bwd4_launch<plain<bf, 128>>>("wgmma bf16 128", false);
  ok &= few_variant<plain<__half, 64>, dkv_bwd4_launch<plain<__half, 64>>>("wgmma f16 64", false);
  return !ok;
}

static int memory() {
  static const int sizes[][3] = {{28, 4096, 2048},  {32, 8192, 1024},  {28, 16384, 2048}, {16, 32768, 2048},
                                 {28, 32768, 2048}, {1, 131072, 4096}, {64, 3000, 540},   {8, 512, 128}};
  static const int heads[][2] = {{32, 8}, {32, 32}, {8, 8}, {32, 1}, {16, 8}, {1, 1}};
  for (const auto &n : sizes)
    for (const auto &h : heads) {
      dkv_layout layout;
      const std::vector<int32_t> lengths(n[0], n[2]);
      MUST(dkv_layout_group(&layout, n[1], n[0], lengths.data()));
      dkv_attention a = {};
      a.layout = &layout, a.heads = h[0], a.kv_heads = h[1];
      a.head_dim = 128;
      const double wide = memory_over(a, dkv_bwd5_lay<fast<bf, 128>>(&a).bytes);
      a.deterministic = true;
      const double repeatable = memory_over(a, dkv_bwd5_lay<ordered<bf, 128>>(&a).bytes);
      a.head_dim = 64;
      const double narrow = memory_over(a, dkv_bwd5_lay<ordered<bf, 64>>(&a).bytes);
      printf("N %3d P %6d R %5d H %2d Hkv %2d: D 128 +%.2f %%, deterministic +%.2f %%; D 64 deterministic +%.2f %%\n",
             n[0], n[1], n[2], h[0], h[1], wide, repeatable, narrow);
      dkv_layout_free(&layout);
    }
  return 0;
}

static void bench(const char *only) {
  const std::vector<bench_shape> list = {{"28,4096,2048", 4096, std::vector<int32_t>(28, 2048)},
                                         {"32,8192,1024", 8192, std::vector<int32_t>(32, 1024)},
                                         {"28,16384,2048", 16384, std::vector<int32_t>(28, 2048)},
                                         {"16,32768,2048", 32768, std::vector<int32_t>(16, 2048)},
                                         {"28,32768,2048", 32768, std::vector<int32_t>(28, 2048)},
                                         {"32 lognormal,3000", 3000, lognormal()},
                                         {"16,2048,512", 2048, std::vector<int32_t>(16, 512)},
                                         {"8,4096,512", 4096, std::vector<int32_t>(8, 512)},
                                         {"8,512,128", 512, std::vector<int32_t>(8, 128)}};
  for (const bench_shape &s : list) {
    if (only != NULL && strcmp(only, s.name) != 0) continue;
    problem x, y;
    MUST(dkv_layout_group(&x.layout, s.prompt, (int)s.lengths.size(), s.lengths.data()));
    open_problem<bf>(&x, 32, 8, 128, 3);
    bench_variant<fast<bf, 128>>("hopper", &x, s.name, false);
    bench_variant<ordered<bf, 128>>("hopper ordered", &x, s.name, true);
    if (s.prompt < 10000) bench_variant<plain<bf, 128>, dkv_bwd4_launch<plain<bf, 128>>>("wgmma", &x, s.name, false);
    close_problem(&x);
    if (s.prompt != 16384) continue;
    MUST(dkv_layout_group(&x.layout, s.prompt, (int)s.lengths.size(), s.lengths.data()));
    open_problem<__half>(&x, 32, 8, 128, 3);
    bench_variant<fast<__half, 128>>("hopper f16", &x, s.name, false);
    close_problem(&x);
    MUST(dkv_layout_group(&x.layout, s.prompt, (int)s.lengths.size(), s.lengths.data()));
    MUST(dkv_layout_group(&y.layout, s.prompt, (int)s.lengths.size(), s.lengths.data()));
    open_problem<bf>(&x, 32, 8, 64, 3);
    open_problem<__half>(&y, 32, 8, 64, 3);
    bench_variant<fast<bf, 64>>("hopper 64", &x, s.name, false);
    bench_variant<ordered<bf, 64>>("hopper ordered 64", &x, s.name, true);
    bench_variant<fast<__half, 64>>("hopper f16 64", &y, s.name, false);
    close_problem(&x), close_problem(&y);
  }
}

int main(int argc, char **argv) {
  if (argc > 1 && !strcmp(argv[1], "check")) return check();
  if (argc > 1 && !strcmp(argv[1], "few")) return few();
  if (argc > 1 && !strcmp(argv[1], "memory")) return memory();
  json = argc > 2 && argv[2][0] != '-' ? fopen(argv[2], "w") : NULL;
  cudaDeviceProp device;
  CHECK(cudaGetDeviceProperties(&device, 0));
  int driver = 0, runtime = 0;
  CHECK(cudaDriverGetVersion(&driver));
  CHECK(cudaRuntimeGetVersion(&runtime));
  if (json != NULL)
    fprintf(json, "{\n  \"device\": \"%s\", \"cuda_driver\": %d, \"cuda_runtime\": %d,\n  \"rows\": [\n", device.name,
            driver, runtime);
  bench(argc > 3 ? argv[3] : NULL);
  if (json != NULL) fprintf(json, "    null\n  ]\n}\n"), fclose(json);
  return 0;
}
