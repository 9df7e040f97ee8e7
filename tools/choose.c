/**
 * @file choose.c
 * @brief From flags to a layout, a storage type and kernels.
 *
 * Read before: tool.h.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tools/tool.h"

bool dkv_layout_flags_given(const struct dkv_layout_flags *flags) {
  return flags->prompt >= 0 || flags->responses >= 0 || flags->response_length >= 0 || flags->lengths != NULL ||
         flags->groups.count > 0 || flags->tree != NULL;
}

/** Numbers in a comma-separated text, at most. */
static int32_t commas(const char *text) {
  int32_t count = 1;
  for (; *text != '\0'; ++text) count += *text == ',';
  return count;
}

/** --prompt with --responses and --response-length, or with --lengths. */
static dkv_status one_group(dkv_layout *out, const char *command, const struct dkv_layout_flags *flags) {
  bool equal = flags->responses >= 0 || flags->response_length >= 0;
  DKV_REQUIRE(flags->prompt >= 0, DKV_ERR_RANGE, "dualkv %s: --prompt is missing", command);
  DKV_REQUIRE(!(equal && flags->lengths != NULL), DKV_ERR_RANGE,
              "dualkv %s: --lengths says it all; it goes without --responses and --response-length", command);
  DKV_REQUIRE(flags->lengths != NULL || (flags->responses >= 0 && flags->response_length >= 0), DKV_ERR_RANGE,
              "dualkv %s: --prompt goes with --responses and --response-length, or with --lengths", command);
  int64_t rows = flags->lengths == NULL ? flags->prompt + flags->responses * flags->response_length : 0;
  DKV_REQUIRE(rows <= DKV_MAX_ROWS, DKV_ERR_RANGE, "dualkv %s: %lld rows; %d are the most", command, (long long)rows,
              DKV_MAX_ROWS);
  int32_t count = flags->lengths != NULL ? commas(flags->lengths) : (int32_t)flags->responses;
  int32_t *length = malloc((size_t)count * sizeof *length + 1);
  DKV_REQUIRE(length != NULL, DKV_ERR_NOMEM, "dualkv %s: no memory for %d response lengths", command, count);
  dkv_status status = DKV_OK;
  if (flags->lengths != NULL) status = dkv_args_numbers(length, count, &count, "--lengths", flags->lengths);
  else
    for (int32_t n = 0; n < count; ++n) length[n] = (int32_t)flags->response_length;
  if (status == DKV_OK) status = dkv_layout_group(out, (int32_t)flags->prompt, count, length);
  free(length);
  return status;
}

/** Every --group P:R1,R2,... */
static dkv_status several_groups(dkv_layout *out, const struct dkv_text_list *groups) {
  int32_t prompt[DKV_MAX_TEXTS], responses[DKV_MAX_TEXTS], capacity = 0, used = 0;
  for (int32_t g = 0; g < groups->count; ++g) capacity += commas(groups->text[g]);
  int32_t *length = malloc((size_t)capacity * sizeof *length);
  DKV_REQUIRE(length != NULL, DKV_ERR_NOMEM, "--group: no memory for %d response lengths", capacity);
  dkv_status status = DKV_OK;
  for (int32_t g = 0; g < groups->count && status == DKV_OK; ++g) {
    const char *text = groups->text[g], *colon = strchr(text, ':');
    char head[16] = "";
    int32_t one = 0;
    if (colon != NULL && colon - text < (ptrdiff_t)sizeof head)
      snprintf(head, sizeof head, "%.*s", (int)(colon - text), text);
    if (head[0] == '\0') {
      status = dkv_fail(DKV_ERR_RANGE,
                        "--group is a prompt, a colon and response lengths, as in 50:20,30; not \"%.60s\"", text);
    } else {
      status = dkv_args_numbers(&prompt[g], 1, &one, "--group", head);
      if (status == DKV_OK)
        status = dkv_args_numbers(length + used, capacity - used, &responses[g], "--group", colon + 1);
      if (status == DKV_OK) used += responses[g];
    }
  }
  if (status == DKV_OK) status = dkv_layout_groups(out, groups->count, prompt, responses, length);
  free(length);
  return status;
}

/** --tree PARENT:LEN,... */
static dkv_status tree(dkv_layout *out, const char *text) {
  int32_t segments = commas(text), used = 0;
  int32_t *parent = malloc(2 * (size_t)segments * sizeof *parent), *length = parent + segments;
  DKV_REQUIRE(parent != NULL, DKV_ERR_NOMEM, "--tree: no memory for %d segments", segments);
  dkv_status status = DKV_OK;
  for (const char *at = text; status == DKV_OK && used < segments; ++used) {
    char *colon = NULL, *rest = NULL;
    long up = strtol(at, &colon, 10), rows = *colon == ':' ? strtol(colon + 1, &rest, 10) : 0;
    bool fits = up >= -1 && up < segments && rows >= 0 && rows <= DKV_MAX_ROWS;
    if (rest == NULL || colon == at || rest == colon + 1 || (*rest != ',' && *rest != '\0') || !fits) {
      status =
          dkv_fail(DKV_ERR_RANGE, "--tree is PARENT:LENGTH for each segment, as in -1:3,0:2,0:2; not \"%.60s\"", at);
      break;
    }
    parent[used] = (int32_t)up;
    length[used] = (int32_t)rows;
    at = rest + 1;
  }
  if (status == DKV_OK) status = dkv_layout_forest(out, segments, parent, length);
  free(parent);
  return status;
}

dkv_status dkv_layout_from_flags(dkv_layout *out, const char *command, const struct dkv_layout_flags *flags) {
  *out = (dkv_layout){0};
  bool group = flags->prompt >= 0 || flags->responses >= 0 || flags->response_length >= 0 || flags->lengths != NULL;
  int kinds = group + (flags->groups.count > 0) + (flags->tree != NULL);
  DKV_REQUIRE(kinds > 0, DKV_ERR_RANGE,
              "dualkv %s: no layout is given; --prompt P --responses N --response-length R does it", command);
  DKV_REQUIRE(kinds == 1, DKV_ERR_RANGE, "dualkv %s: --prompt, --group and --tree are three ways to say it; give one",
              command);
  if (flags->tree != NULL) return tree(out, flags->tree);
  if (flags->groups.count > 0) return several_groups(out, &flags->groups);
  return one_group(out, command, flags);
}

dkv_status dkv_tool_layout(dkv_layout *out, const char *command, const struct dkv_text_list *operands,
                           const struct dkv_layout_flags *flags) {
  *out = (dkv_layout){0};
  if (operands->count == 0) return dkv_layout_from_flags(out, command, flags);
  DKV_REQUIRE(operands->count == 1, DKV_ERR_RANGE, "dualkv %s: one case file at a time; \"%.60s\" is the second",
              command, operands->text[1]);
  DKV_REQUIRE(!dkv_layout_flags_given(flags), DKV_ERR_RANGE,
              "dualkv %s: the layout comes from %.200s or from flags, not from both", command, operands->text[0]);
  dkv_problem problem;
  DKV_TRY(dkv_problem_load(&problem, operands->text[0]));
  dkv_status status = dkv_layout_copy(out, &problem.layout);
  dkv_problem_free(&problem);
  return status;
}

dkv_status dkv_tool_dtype(dkv_dtype *out, const char *name) {
  DKV_TRY(dkv_dtype_parse(out, name));
  DKV_REQUIRE(*out == DKV_F32 || *out == DKV_BF16 || *out == DKV_F16, DKV_ERR_RANGE,
              "--dtype is f32, bf16 or f16, not %s", name);
  return DKV_OK;
}

dkv_status dkv_tool_problem(dkv_problem *out, const char *path, const char *dtype_name) {
  dkv_dtype dtype;
  *out = (dkv_problem){0};
  if (dtype_name != NULL) DKV_TRY(dkv_tool_dtype(&dtype, dtype_name));
  DKV_TRY(dkv_problem_load(out, path));
  if (dtype_name == NULL || dtype == out->dtype) return DKV_OK;
  dkv_problem as_stored = *out;
  dkv_status status = dkv_problem_cast(out, &as_stored, dtype);
  dkv_problem_free(&as_stored);
  return status;
}

const char *dkv_tool_base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash != NULL ? slash + 1 : path;
}

dkv_status dkv_tool_options(dkv_execute_options *out, const dkv_backend *backend, const struct dkv_run_flags *flags) {
  *out = (dkv_execute_options){.deterministic = flags->deterministic, .threads = (int32_t)flags->threads};
  if (flags->kernel == NULL) return DKV_OK;
  const dkv_kernel *forward = NULL, *backward = NULL;
  dkv_status f = dkv_kernel_find(&forward, backend, DKV_FORWARD, flags->kernel, NULL);
  dkv_status b = dkv_kernel_find(&backward, backend, DKV_BACKWARD, flags->kernel, NULL);
  DKV_REQUIRE(f == DKV_OK || b == DKV_OK, DKV_ERR_RANGE,
              "there is no kernel \"%.60s\" on %s; dualkv kernels lists them", flags->kernel, backend->name);
  if (f == DKV_OK) out->forward = flags->kernel;
  if (b == DKV_OK) out->backward = flags->kernel;
  return DKV_OK;
}
