/**
 * @file cmd_attention.c
 * @brief `dualkv attention`: runs one case file forward, and backward when it holds `do`, and writes the results.
 *
 * Read before: tool.h, common/execute.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "tools/tool.h"

static const char about[] =
    "usage: dualkv attention CASE -o OUT [FLAGS]\n\n"
    "Runs the attention problem of CASE (safetensors: q, k, v, segment_parent, segment_length, and do for the "
    "backward) and\n"
    "writes o, lse and, when CASE holds do, dq, dk, dv to OUT, which appears whole or not at all.\n\n"
    "  dualkv attention case.safetensors -o out.safetensors --backend cpu\n"
    "  dualkv check case.safetensors --judge out.safetensors\n";

/** Do both paths name the same existing file? */
static bool same_file(const char *a, const char *b) {
  struct stat first, second;
  return stat(a, &first) == 0 && stat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

static dkv_status run(const char *path, const char *out_path, const struct dkv_run_flags *run_flags) {
  const dkv_backend *backend = NULL;
  dkv_execute_options options;
  dkv_problem problem;
  dkv_results results = {0};
  DKV_REQUIRE(!same_file(path, out_path), DKV_ERR_RANGE, "dualkv attention: -o %.200s would overwrite the case",
              out_path);
  DKV_TRY(dkv_backend_find(&backend, run_flags->backend));
  DKV_TRY(dkv_tool_options(&options, backend, run_flags));
  DKV_TRY(dkv_tool_problem(&problem, path, run_flags->dtype));
  dkv_tool_progress("%s on %s: T=%d H=%d Hkv=%d D=%d", dkv_tool_base_name(path), backend->name, problem.layout.rows,
                    problem.heads, problem.kv_heads, problem.head_dim);
  dkv_status status = dkv_execute(&results, backend, &problem, &options);
  if (status == DKV_OK) status = dkv_results_save(&results, &problem, out_path, dkv_tool_base_name(path));
  dkv_tool_progress_end();
  if (status == DKV_OK)
    printf("%s: o, lse%s in %s by %s; T=%d H=%d Hkv=%d D=%d\n", out_path, problem.dout != NULL ? ", dq, dk, dv" : "",
           dkv_dtype_name(problem.dtype), backend->name, problem.layout.rows, problem.heads, problem.kv_heads,
           problem.head_dim);
  dkv_results_free(&results);
  dkv_problem_free(&problem);
  return status;
}

int dkv_cmd_attention(int argc, char *const *argv) {
  struct dkv_run_flags run_flags = {.backend = "cpu"};
  struct dkv_text_list operands;
  const char *out_path = NULL;
  const struct dkv_flag flags[] = {
      {"o", DKV_FLAG_TEXT, &out_path, "OUT", "the file to write", 0, 0},
      DKV_RUN_FLAGS(run_flags),
      {0},
  };
  if (dkv_args_help(about, flags, argc, argv)) return DKV_EXIT_OK;
  dkv_status status = dkv_args_parse("attention", flags, argc, argv, &operands);
  if (status == DKV_OK && operands.count != 1)
    status = dkv_fail(DKV_ERR_RANGE, "dualkv attention: %d case files are given; it takes one", operands.count);
  if (status == DKV_OK && out_path == NULL) status = dkv_fail(DKV_ERR_RANGE, "dualkv attention: -o OUT is missing");
  if (run_flags.progress) dkv_tool_progress_always();
  if (status == DKV_OK) status = run(operands.text[0], out_path, &run_flags);
  return status == DKV_OK ? DKV_EXIT_OK : dkv_tool_fail(status);
}
