/**
 * @file bench_print.c
 * @brief One benchmark, as text for people and as JSON for docs/results.
 *
 * Read before: bench.h.
 */
#include <cjson/cJSON.h>
#include <omp.h>
#include <stdio.h>

#include "cpu/blas.h"
#include "tools/bench.h"

static const char *const direction_name[2] = {"forward", "backward"};

static bool is_gpu(const struct dkv_bench_request *request) { return strcmp(request->backend->name, "gpu") == 0; }

static int32_t thread_count(const struct dkv_bench_request *request) {
  return request->options.threads > 0 ? request->options.threads : omp_get_max_threads();
}

/** The matrix product's name: what computes it. */
static const char *ceiling_name(const struct dkv_bench_request *request) {
  return is_gpu(request) ? "cuBLAS" : "sgemm";
}

/** Useful FLOP/s of one direction on one side; both sides are credited with the packed layout's pairs. */
static double useful(const struct dkv_bench_result *result, const struct dkv_bench_side *side, int d) {
  return result->flops[d] / (dkv_bench_median(&side->direction[d]) * 1e-3);
}

/** "12.3 (12.1 - 12.9)" */
static void print_times(const struct dkv_bench_times *times) {
  char text[64];
  snprintf(text, sizeof text, "%.4g (%.4g - %.4g)", dkv_bench_median(times), times->milliseconds[0],
           times->milliseconds[times->count - 1]);
  printf(" %26s", text);
}

static void print_direction(const struct dkv_bench_result *result, const struct dkv_bench_request *request, int d) {
  double unit = is_gpu(request) ? 1e12 : 1e9, rate = useful(result, &result->packed, d);
  printf("  %-9s %-11s", direction_name[d], result->kernel[d]);
  print_times(&result->packed.direction[d]);
  if (result->replicated.measured) {
    print_times(&result->replicated.direction[d]);
    printf(" %7.2f",
           dkv_bench_median(&result->replicated.direction[d]) / dkv_bench_median(&result->packed.direction[d]));
  } else {
    printf(" %26s %7s", "-", "-");
  }
  printf(" %9.2f %10.1f %6.1f %%\n", result->saving.pair_ratio, rate / unit, 100 * rate / result->matmul_flops);
}

static void print_memory(const struct dkv_bench_result *result) {
  char a[32], b[32];
  printf("memory on the backend: packed %s", dkv_tool_bytes(a, (double)result->packed.peak_bytes));
  if (result->replicated.measured) printf(", replicated %s", dkv_tool_bytes(b, (double)result->replicated.peak_bytes));
  putchar('\n');
}

void dkv_bench_print(const struct dkv_bench_result *result, const struct dkv_bench_request *request) {
  const struct dkv_style *style = dkv_tool_style();
  const dkv_random_spec *spec = &request->spec;
  char device[256] = "", a[32], b[32];
  bool gpu = is_gpu(request);
  (void)request->backend->describe(device, sizeof device); /* a remark: an empty one if it fails */
  printf("%s%s%s: %s\n", style->title, request->backend->name, style->off, device);
  printf("shape: H=%d Hkv=%d D=%d %s; %s rows packed, %s replicated\n", spec->heads, spec->kv_heads, spec->head_dim,
         dkv_dtype_name(spec->dtype), dkv_tool_count(a, result->packed.rows),
         dkv_tool_count(b, result->replicated.rows));
  printf("check: %d tensors against the definition, the worst at %.0f %% of its bound%s\n", result->checked,
         100 * result->worst_share, result->same_at_size ? "; packed == replicated at full size" : "");
  printf("ceiling: %s of %lld x %lld in the same rounds: %.1f %s (best %.1f)\n\n", ceiling_name(request),
         (long long)request->matmul_size, (long long)request->matmul_size, result->matmul_flops / (gpu ? 1e12 : 1e9),
         gpu ? "TFLOP/s" : "GFLOP/s", result->matmul_best / (gpu ? 1e12 : 1e9));
  printf("%s  %-9s %-11s %26s %26s %7s %9s %10s %8s%s\n", style->title, "", "kernel", "packed ms (min - max)",
         "replicated ms (min - max)", "ratio", "predicted", gpu ? "TFLOP/s" : "GFLOP/s", "share", style->off);
  for (int d = 0; d < 2; ++d) print_direction(result, request, d);
  if (!result->replicated.measured) printf("  replicated was not timed: %s\n", result->replicated.why);
  printf("\npredicted: A = %.3f (attention pairs), rho = %.3f (tokens); %d calls each, medians\n",
         result->saving.pair_ratio, result->saving.rho, result->packed.direction[0].count);
  print_memory(result);
}

static cJSON *times_json(const struct dkv_bench_result *result, const struct dkv_bench_side *side, int d) {
  const struct dkv_bench_times *times = &side->direction[d];
  cJSON *out = cJSON_CreateObject();
  cJSON_AddNumberToObject(out, "median", dkv_bench_median(times));
  cJSON_AddNumberToObject(out, "min", times->milliseconds[0]);
  cJSON_AddNumberToObject(out, "max", times->milliseconds[times->count - 1]);
  cJSON_AddNumberToObject(out, "calls", times->count);
  cJSON_AddNumberToObject(out, "useful_gflops", useful(result, side, d) * 1e-9);
  cJSON_AddNumberToObject(out, "share_of_matmul", useful(result, side, d) / result->matmul_flops);
  return out;
}

static cJSON *side_json(const struct dkv_bench_result *result, const struct dkv_bench_side *side) {
  cJSON *out = cJSON_CreateObject();
  cJSON_AddNumberToObject(out, "rows", (double)side->rows);
  cJSON_AddNumberToObject(out, "pairs", (double)side->pairs);
  if (!side->measured) {
    cJSON_AddStringToObject(out, "not_measured", side->why);
    return out;
  }
  cJSON_AddNumberToObject(out, "peak_bytes", (double)side->peak_bytes);
  cJSON_AddItemToObject(out, "forward_ms", times_json(result, side, 0));
  cJSON_AddItemToObject(out, "backward_ms", times_json(result, side, 1));
  return out;
}

static cJSON *shape_json(const struct dkv_bench_request *request) {
  const dkv_layout *layout = &request->layout;
  cJSON *out = cJSON_CreateObject(), *parents = cJSON_CreateArray(), *lengths = cJSON_CreateArray();
  for (int32_t s = 0; s < layout->segments && layout->segments <= 4096; ++s) {
    cJSON_AddItemToArray(parents, cJSON_CreateNumber(layout->parent[s]));
    cJSON_AddItemToArray(lengths, cJSON_CreateNumber(dkv_layout_length(layout, s)));
  }
  cJSON_AddNumberToObject(out, "segments", layout->segments);
  cJSON_AddItemToObject(out, "segment_parent", parents);
  cJSON_AddItemToObject(out, "segment_length", lengths);
  cJSON_AddNumberToObject(out, "prompt", layout->segments > 0 ? dkv_layout_length(layout, 0) : 0);
  cJSON_AddNumberToObject(out, "responses", layout->segments > 0 ? layout->segments - 1 : 0);
  cJSON_AddNumberToObject(out, "heads", request->spec.heads);
  cJSON_AddNumberToObject(out, "kv_heads", request->spec.kv_heads);
  cJSON_AddNumberToObject(out, "head_dim", request->spec.head_dim);
  cJSON_AddStringToObject(out, "dtype", dkv_dtype_name(request->spec.dtype));
  return out;
}

/** Where and when: device, threads, libraries, commit, date. */
static void add_origin(cJSON *root, const struct dkv_bench_request *request) {
  char device[256] = "", date[32], core[64] = "";
  (void)request->backend->describe(device, sizeof device);
  if (dkv_blas_open() == DKV_OK)
    snprintf(core, sizeof core, "%.*s", (int)strcspn(dkv_blas_describe(), ", "), dkv_blas_describe());
  cJSON_AddStringToObject(root, "schema", "dualkv.bench.1");
  cJSON_AddStringToObject(root, "commit", dkv_tool_commit());
  cJSON_AddStringToObject(root, "date", dkv_tool_date(date));
  cJSON_AddStringToObject(root, "backend", request->backend->name);
  cJSON_AddStringToObject(root, "device", device);
  cJSON_AddNumberToObject(root, "threads", thread_count(request));
  cJSON_AddStringToObject(root, "openblas_core", core);
}

dkv_status dkv_bench_print_json(const struct dkv_bench_result *result, const struct dkv_bench_request *request) {
  cJSON *root = cJSON_CreateObject(), *kernels = cJSON_CreateObject(), *check = cJSON_CreateObject();
  add_origin(root, request);
  cJSON_AddItemToObject(root, "shape", shape_json(request));
  for (int d = 0; d < 2; ++d) cJSON_AddStringToObject(kernels, direction_name[d], result->kernel[d]);
  cJSON_AddItemToObject(root, "kernels", kernels);
  cJSON_AddBoolToObject(root, "deterministic", request->options.deterministic);
  cJSON_AddNumberToObject(check, "tensors", result->checked);
  cJSON_AddNumberToObject(check, "worst_share_of_bound", result->worst_share);
  if (result->same_at_size) cJSON_AddTrueToObject(check, "packed_equals_replicated_at_size");
  else cJSON_AddNullToObject(check, "packed_equals_replicated_at_size"); /* too large to compare */
  cJSON_AddItemToObject(root, "check", check);
  cJSON_AddNumberToObject(root, "rho", result->saving.rho);
  cJSON_AddNumberToObject(root, "A", result->saving.pair_ratio);
  cJSON_AddNumberToObject(root, "matmul_size", (double)request->matmul_size);
  cJSON_AddNumberToObject(root, is_gpu(request) ? "matmul_gflops" : "sgemm_gflops", result->matmul_flops * 1e-9);
  cJSON_AddNumberToObject(root, is_gpu(request) ? "matmul_gflops_best" : "sgemm_gflops_best",
                          result->matmul_best * 1e-9);
  for (int d = 0; d < 2; ++d) {
    char key[32];
    snprintf(key, sizeof key, "%s_flops", direction_name[d]);
    cJSON_AddNumberToObject(root, key, result->flops[d]);
    if (!result->replicated.measured) continue;
    snprintf(key, sizeof key, "%s_ratio", direction_name[d]);
    cJSON_AddNumberToObject(
        root, key, dkv_bench_median(&result->replicated.direction[d]) / dkv_bench_median(&result->packed.direction[d]));
  }
  cJSON_AddItemToObject(root, "packed", side_json(result, &result->packed));
  cJSON_AddItemToObject(root, "replicated", side_json(result, &result->replicated));
  char *text = cJSON_Print(root);
  cJSON_Delete(root);
  DKV_REQUIRE(text != NULL, DKV_ERR_NOMEM, "dualkv bench: no memory for the JSON text");
  puts(text);
  cJSON_free(text);
  return DKV_OK;
}
