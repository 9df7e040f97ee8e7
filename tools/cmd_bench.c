/**
 * @file cmd_bench.c
 * @brief `dualkv bench`: checks, then times packed and replicated with the same kernel, then says how it compares with
 * the prediction and with the machine's matrix product.
 *
 * Read before: bench.h.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tools/bench.h"

static const char about[] =
    "usage: dualkv bench --prompt P --responses N --response-length R [FLAGS]\n\n"
    "Compares the kernels with the definition first, and times nothing that is wrong.  Then packed and replicated\n"
    "in turn, the same kernel on both, medians with the smallest and the largest.  Useful FLOPs are 4 D H pairs\n"
    "forward, 2.5 times that backward, pairs counted on the packed layout for both.  The ceiling is the library's\n"
    "matrix product in the same run.\n\n"
    "  dualkv bench --prompt 2048 --responses 16 --response-length 128 --heads 8 --kv-heads 2 --head-dim 128\n"
    "  dualkv bench --backend gpu --dtype bf16 --prompt 8192 --responses 32 --response-length 1024 --heads 32 "
    "--kv-heads 8\n";

/** The command line. */
struct bench_flags {
  struct dkv_run_flags run;
  struct dkv_layout_flags where;
  int64_t heads, kv_heads, head_dim, repeats, matmul_size, seed;
  bool packed_only, json;
};

static dkv_status request_from_flags(struct dkv_bench_request *out, const struct bench_flags *f) {
  *out = (struct dkv_bench_request){.repeats = f->repeats, .packed_only = f->packed_only};
  DKV_TRY(dkv_backend_find(&out->backend, f->run.backend));
  bool gpu = strcmp(f->run.backend, "gpu") == 0;
  DKV_TRY(dkv_tool_options(&out->options, out->backend, &f->run));
  out->spec = (dkv_random_spec){.heads = (int32_t)f->heads,
                                .kv_heads = (int32_t)f->kv_heads,
                                .head_dim = (int32_t)f->head_dim,
                                .dtype = gpu ? DKV_BF16 : DKV_F32,
                                .seed = (uint64_t)f->seed};
  if (f->run.dtype != NULL) DKV_TRY(dkv_tool_dtype(&out->spec.dtype, f->run.dtype));
  out->matmul_size = f->matmul_size > 0 ? f->matmul_size : gpu ? 8192 : 2048;
  DKV_TRY(dkv_layout_from_flags(&out->layout, "bench", &f->where));
  DKV_REQUIRE(out->layout.rows > 0, DKV_ERR_RANGE, "dualkv bench: a layout without rows has nothing to time");
  return DKV_OK;
}

static dkv_status run(const struct bench_flags *f) {
  struct dkv_bench_request request = {0};
  struct dkv_bench_result *result = calloc(1, sizeof *result);
  dkv_status status = result != NULL ? DKV_OK : dkv_fail(DKV_ERR_NOMEM, "dualkv bench: no memory for the results");
  if (status == DKV_OK) status = request_from_flags(&request, f);
  if (status == DKV_OK) status = dkv_bench_check(result, &request);
  if (status == DKV_OK) status = dkv_bench_time(result, &request);
  dkv_tool_progress_end();
  if (status == DKV_OK && f->json) status = dkv_bench_print_json(result, &request);
  else if (status == DKV_OK) dkv_bench_print(result, &request);
  dkv_layout_free(&request.layout);
  free(result);
  return status;
}

int dkv_cmd_bench(int argc, char *const *argv) {
  struct bench_flags f = {
      .run = {.backend = "cpu"}, .where = DKV_NO_LAYOUT_FLAGS, .heads = 8, .kv_heads = 2, .head_dim = 128, .seed = 1};
  const struct dkv_flag flags[] = {
      DKV_LAYOUT_FLAGS(f.where),
      DKV_FOREST_FLAGS(f.where),
      {"heads", DKV_FLAG_INT, &f.heads, "H", "query heads (8)", 1, 65536},
      {"kv-heads", DKV_FLAG_INT, &f.kv_heads, "K", "key heads (2)", 1, 65536},
      {"head-dim", DKV_FLAG_INT, &f.head_dim, "D", "head size (128)", 1, 65536},
      DKV_RUN_FLAGS(f.run),
      {"repeats", DKV_FLAG_INT, &f.repeats, "N", "timed rounds; default: at least 7, a few seconds in all", 1,
       DKV_BENCH_REPEATS},
      {"matmul-size", DKV_FLAG_INT, &f.matmul_size, "N", "size of the ceiling's product (cpu 2048, gpu 8192)", 1,
       32768},
      {"seed", DKV_FLAG_INT, &f.seed, "N", "seed of the random inputs", 0, 9e15},
      {"packed-only", DKV_FLAG_SWITCH, &f.packed_only, NULL, "leave the replicated layout out", 0, 0},
      {"json", DKV_FLAG_SWITCH, &f.json, NULL, "print JSON (schema dualkv.bench.1)", 0, 0},
      {0},
  };
  if (dkv_args_help(about, flags, argc, argv)) return DKV_EXIT_OK;
  dkv_status status = dkv_args_parse("bench", flags, argc, argv, NULL);
  if (f.run.progress) dkv_tool_progress_always();
  if (status == DKV_OK) status = run(&f);
  return status == DKV_OK ? DKV_EXIT_OK : dkv_tool_fail(status);
}
