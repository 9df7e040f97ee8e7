/**
 * @file problem_file.c
 * @brief Reads and writes case files and result files: safetensors with the tensors that problem.h names.
 *
 * Sizes are checked against each other before anything is allocated, so a file can claim only what it really contains:
 * the row count of q, which has bytes behind it, must equal the sum of the segment lengths, which are mere numbers.
 *
 * Read before: problem.h, safetensors.h.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/problem.h"

static bool is_float(dkv_dtype dtype) {
  return dtype == DKV_F32 || dtype == DKV_BF16 || dtype == DKV_F16 || dtype == DKV_F64;
}

/** Finds a tensor that must be there. */
static dkv_status require_tensor(const dkv_tensor **out, const dkv_safetensors *file, const char *tensor,
                                 const char *name) {
  *out = dkv_safetensors_find(file, tensor);
  DKV_REQUIRE(*out != NULL, DKV_ERR_FORMAT, "%s: tensor \"%s\" is missing", name, tensor);
  return DKV_OK;
}

/** Demands a float tensor of exactly this shape. */
static dkv_status require_shape(const dkv_tensor *tensor, int32_t rank, const int64_t *shape, const char *name) {
  DKV_REQUIRE(is_float(tensor->dtype), DKV_ERR_FORMAT, "%s: tensor \"%s\" is %s; it must be f32, bf16, f16 or f64",
              name, tensor->name, dkv_dtype_name(tensor->dtype));
  DKV_REQUIRE(tensor->rank == rank, DKV_ERR_SHAPE, "%s: tensor \"%s\" has %d dimensions; it must have %d", name,
              tensor->name, tensor->rank, rank);
  for (int32_t d = 0; d < rank; ++d) {
    DKV_REQUIRE(tensor->shape[d] == shape[d], DKV_ERR_SHAPE,
                "%s: dimension %d of tensor \"%s\" is %lld; the other tensors make it %lld", name, d, tensor->name,
                (long long)tensor->shape[d], (long long)shape[d]);
  }
  return DKV_OK;
}

/** Demands finite values; names the first that is not. */
static dkv_status require_finite(const dkv_tensor *tensor, const char *name) {
  int64_t n = tensor->bytes / (int64_t)dkv_dtype_size(tensor->dtype);
  for (int64_t i = 0; i < n; ++i) {
    double x = dkv_element(tensor->data, tensor->dtype, i);
    if (isfinite(x)) continue;
    int64_t width = n / tensor->shape[0];
    return dkv_fail(DKV_ERR_RANGE, "%s: tensor \"%s\" is %s at row %lld, index %lld; every value must be finite", name,
                    tensor->name,
                    isnan(x) ? "NaN"
                    : x > 0  ? "infinity"
                             : "-infinity",
                    (long long)(i / width), (long long)(i % width));
  }
  return DKV_OK;
}

/** Copies a segment tensor, i32 or i64, into int32. */
static dkv_status read_segments(int32_t *out, const dkv_tensor *tensor, const char *name) {
  for (int64_t s = 0; s < tensor->shape[0]; ++s) {
    int64_t value = 0;
    if (tensor->dtype == DKV_I64) {
      memcpy(&value, (const char *)tensor->data + 8 * s, sizeof value);
    } else {
      int32_t narrow;
      memcpy(&narrow, (const char *)tensor->data + 4 * s, sizeof narrow);
      value = narrow;
    }
    DKV_REQUIRE(value >= INT32_MIN && value <= INT32_MAX, DKV_ERR_RANGE,
                "%s: tensor \"%s\" is %lld at segment %lld, which does not fit 32 bits", name, tensor->name,
                (long long)value, (long long)s);
    out[s] = (int32_t)value;
  }
  return DKV_OK;
}

/** Finds one of the two segment tensors and checks its type and rank. */
static dkv_status find_segments(const dkv_tensor **out, const dkv_safetensors *file, const char *tensor,
                                const char *name) {
  DKV_TRY(require_tensor(out, file, tensor, name));
  DKV_REQUIRE((*out)->dtype == DKV_I32 || (*out)->dtype == DKV_I64, DKV_ERR_FORMAT,
              "%s: tensor \"%s\" is %s; it must be i32 or i64", name, tensor, dkv_dtype_name((*out)->dtype));
  DKV_REQUIRE((*out)->rank == 1, DKV_ERR_SHAPE, "%s: tensor \"%s\" has %d dimensions; it must have 1", name, tensor,
              (*out)->rank);
  return DKV_OK;
}

/** Builds the layout once the lengths are known to sum to `rows`. */
static dkv_status build_layout(dkv_layout *out, int32_t segments, const int32_t *parent, const int32_t *length,
                               int64_t rows, const char *name) {
  int64_t sum = 0;
  for (int32_t s = 0; s < segments; ++s) {
    DKV_REQUIRE(length[s] >= 0, DKV_ERR_RANGE, "%s: segment %d has length %d; it must be 0 or more", name, s,
                length[s]);
    sum += length[s];
  }
  DKV_REQUIRE(sum == rows, DKV_ERR_SHAPE, "%s: the segment lengths sum to %lld rows, but q has %lld", name,
              (long long)sum, (long long)rows);
  return dkv_layout_forest(out, segments, parent, length);
}

static dkv_status load_layout(dkv_problem *out, const dkv_safetensors *file, int64_t rows, const char *name) {
  const dkv_tensor *parent, *length;
  DKV_TRY(find_segments(&parent, file, "segment_parent", name));
  DKV_TRY(find_segments(&length, file, "segment_length", name));
  int64_t segments = parent->shape[0];
  DKV_REQUIRE(length->shape[0] == segments, DKV_ERR_SHAPE, "%s: %lld segment parents, but %lld segment lengths", name,
              (long long)segments, (long long)length->shape[0]);
  DKV_REQUIRE(segments <= DKV_MAX_SEGMENTS, DKV_ERR_RANGE, "%s: %lld segments; there may be %d", name,
              (long long)segments, DKV_MAX_SEGMENTS);
  int32_t *parents = malloc((size_t)segments * sizeof *parents + 1),
          *lengths = malloc((size_t)segments * sizeof *lengths + 1);
  dkv_status status = DKV_OK;
  if (parents == NULL || lengths == NULL) status = dkv_fail(DKV_ERR_NOMEM, "%s: no memory for the segments", name);
  if (status == DKV_OK) status = read_segments(parents, parent, name);
  if (status == DKV_OK) status = read_segments(lengths, length, name);
  if (status == DKV_OK) status = build_layout(&out->layout, (int32_t)segments, parents, lengths, rows, name);
  free(parents);
  free(lengths);
  return status;
}

/** Metadata "scale": a finite number and nothing else. */
static dkv_status load_scale(dkv_problem *out, const dkv_safetensors *file, const char *name) {
  const char *text = dkv_safetensors_metadata(file, "scale");
  DKV_REQUIRE(text != NULL, DKV_ERR_FORMAT, "%s: metadata \"scale\" is missing", name);
  char *end = NULL;
  out->scale = strtod(text, &end);
  DKV_REQUIRE(end != text && *end == '\0', DKV_ERR_FORMAT, "%s: metadata \"scale\" is \"%.40s\", which is no number",
              name, text);
  DKV_REQUIRE(isfinite(out->scale), DKV_ERR_RANGE, "%s: metadata \"scale\" is %.40s; it must be finite", name, text);
  return DKV_OK;
}

/** Copies one input. */
static dkv_status load_input(void **out, const dkv_tensor *tensor, int32_t heads, const dkv_problem *problem,
                             int64_t rows, const char *name) {
  int64_t shape[3] = {rows, heads, problem->head_dim};
  DKV_TRY(require_shape(tensor, 3, shape, name));
  DKV_REQUIRE(tensor->dtype == problem->dtype, DKV_ERR_FORMAT,
              "%s: tensor \"%s\" is %s, but q is %s; inputs have one type", name, tensor->name,
              dkv_dtype_name(tensor->dtype), dkv_dtype_name(problem->dtype));
  DKV_TRY(require_finite(tensor, name));
  *out = malloc((size_t)tensor->bytes + 1);
  DKV_REQUIRE(*out != NULL, DKV_ERR_NOMEM, "%s: no memory for tensor \"%s\"", name, tensor->name);
  memcpy(*out, tensor->data, (size_t)tensor->bytes);
  return DKV_OK;
}

/** Reads H, Hkv, D, the type and T from q and k, and applies the rules of attention.h to them. */
static dkv_status load_sizes(dkv_problem *out, const dkv_tensor *q, const dkv_tensor *k, const char *name) {
  for (int i = 0; i < 2; ++i) {
    const dkv_tensor *tensor = i == 0 ? q : k;
    DKV_REQUIRE(is_float(tensor->dtype), DKV_ERR_FORMAT, "%s: tensor \"%s\" is %s; it must be f32, bf16, f16 or f64",
                name, tensor->name, dkv_dtype_name(tensor->dtype));
    DKV_REQUIRE(tensor->rank == 3, DKV_ERR_SHAPE, "%s: tensor \"%s\" has %d dimensions; it must have 3", name,
                tensor->name, tensor->rank);
    for (int d = 0; d < 3; ++d) {
      DKV_REQUIRE(tensor->shape[d] <= INT32_MAX, DKV_ERR_RANGE,
                  "%s: dimension %d of tensor \"%s\" is %lld; it may be %d", name, d, tensor->name,
                  (long long)tensor->shape[d], INT32_MAX);
    }
  }
  out->heads = (int32_t)q->shape[1];
  out->kv_heads = (int32_t)k->shape[1];
  out->head_dim = (int32_t)q->shape[2];
  out->dtype = q->dtype;
  dkv_layout none = {0};
  dkv_attention shape = {.layout = &none,
                         .heads = out->heads,
                         .kv_heads = out->kv_heads,
                         .head_dim = out->head_dim,
                         .scale = out->scale,
                         .dtype = out->dtype};
  return dkv_attention_check(&shape, DKV_FORWARD);
}

/** Widens one result to f64. */
static dkv_status load_result(dkv_results *out, const dkv_problem *problem, dkv_result result, const dkv_tensor *tensor,
                              const char *name) {
  int64_t shape[3] = {problem->layout.rows, problem->heads, problem->head_dim};
  if (result == DKV_DK || result == DKV_DV) shape[1] = problem->kv_heads;
  if (result == DKV_LSE) {
    shape[0] = problem->heads;
    shape[1] = problem->layout.rows;
  }
  DKV_TRY(require_shape(tensor, result == DKV_LSE ? 2 : 3, shape, name));
  int64_t n = dkv_result_elements(problem, result);
  out->data[result] = malloc((size_t)n * sizeof(double) + 1);
  DKV_REQUIRE(out->data[result] != NULL, DKV_ERR_NOMEM, "%s: no memory for tensor \"%s\"", name, tensor->name);
  return dkv_convert(out->data[result], DKV_F64, tensor->data, tensor->dtype, n);
}

/** Loads the results that the file has; with `finite` their values must be. */
static dkv_status load_results(dkv_results *out, const dkv_problem *problem, const dkv_safetensors *file, bool finite,
                               const char *name) {
  out->dtype = DKV_F64;
  out->lse_dtype = DKV_F64;
  for (int r = 0; r < DKV_RESULTS; ++r) {
    const dkv_tensor *tensor = dkv_safetensors_find(file, dkv_result_name((dkv_result)r));
    if (tensor == NULL) continue;
    DKV_TRY(load_result(out, problem, (dkv_result)r, tensor, name));
    if (finite) DKV_TRY(require_finite(tensor, name));
  }
  return DKV_OK;
}

static dkv_status parse_problem(dkv_problem *out, const dkv_safetensors *file, const char *name) {
  const dkv_tensor *q, *k, *v, *dout = dkv_safetensors_find(file, "do");
  DKV_TRY(require_tensor(&q, file, "q", name));
  DKV_TRY(require_tensor(&k, file, "k", name));
  DKV_TRY(require_tensor(&v, file, "v", name));
  DKV_TRY(load_scale(out, file, name));
  DKV_TRY(load_sizes(out, q, k, name));
  int64_t rows = q->shape[0];
  DKV_TRY(load_layout(out, file, rows, name));
  DKV_TRY(load_input(&out->q, q, out->heads, out, rows, name));
  DKV_TRY(load_input(&out->k, k, out->kv_heads, out, rows, name));
  DKV_TRY(load_input(&out->v, v, out->kv_heads, out, rows, name));
  if (dout != NULL) DKV_TRY(load_input(&out->dout, dout, out->heads, out, rows, name));
  return load_results(&out->answer, out, file, true, name);
}

dkv_status dkv_problem_parse(dkv_problem *out, const dkv_safetensors *file, const char *name) {
  DKV_REQUIRE(out != NULL, DKV_ERR_NULL, "dkv_problem_parse: out is NULL");
  *out = (dkv_problem){0};
  DKV_REQUIRE(file != NULL && name != NULL, DKV_ERR_NULL, "dkv_problem_parse: %s is NULL",
              file == NULL ? "file" : "name");
  dkv_status status = parse_problem(out, file, name);
  if (status != DKV_OK) dkv_problem_free(out);
  return status;
}

dkv_status dkv_problem_load(dkv_problem *out, const char *path) {
  DKV_REQUIRE(out != NULL, DKV_ERR_NULL, "dkv_problem_load: out is NULL");
  *out = (dkv_problem){0};
  dkv_safetensors file;
  DKV_TRY(dkv_safetensors_open(&file, path));
  dkv_status status = dkv_problem_parse(out, &file, path);
  dkv_safetensors_close(&file);
  return status;
}

dkv_status dkv_results_load(dkv_results *out, const dkv_problem *problem, const char *path) {
  DKV_REQUIRE(out != NULL, DKV_ERR_NULL, "dkv_results_load: out is NULL");
  *out = (dkv_results){0};
  DKV_REQUIRE(problem != NULL, DKV_ERR_NULL, "dkv_results_load: problem is NULL");
  dkv_safetensors file;
  DKV_TRY(dkv_safetensors_open(&file, path));
  dkv_status status = load_results(out, problem, &file, false, path);
  bool any = false;
  for (int r = 0; r < DKV_RESULTS; ++r) any = any || out->data[r] != NULL;
  if (status == DKV_OK && !any) status = dkv_fail(DKV_ERR_FORMAT, "%s: it holds none of o, lse, dq, dk and dv", path);
  dkv_safetensors_close(&file);
  if (status != DKV_OK) dkv_results_free(out);
  return status;
}

/** Appends the results that are present. */
static int32_t list_results(dkv_tensor *list, const dkv_results *results, const dkv_problem *problem) {
  int32_t count = 0;
  for (int r = 0; r < DKV_RESULTS; ++r) {
    if (results->data[r] == NULL) continue;
    bool keys = r == DKV_DK || r == DKV_DV, lse = r == DKV_LSE;
    list[count++] = (dkv_tensor){.name = dkv_result_name((dkv_result)r),
                                 .dtype = lse ? results->lse_dtype : results->dtype,
                                 .rank = lse ? 2 : 3,
                                 .shape = {lse ? problem->heads : problem->layout.rows,
                                           lse    ? problem->layout.rows
                                           : keys ? problem->kv_heads
                                                  : problem->heads,
                                           problem->head_dim},
                                 .data = results->data[r]};
  }
  return count;
}

dkv_status dkv_results_save(const dkv_results *results, const dkv_problem *problem, const char *path,
                            const char *name) {
  DKV_REQUIRE(results != NULL && problem != NULL && path != NULL && name != NULL, DKV_ERR_NULL,
              "dkv_results_save: an argument is NULL");
  dkv_tensor list[DKV_RESULTS];
  dkv_metadata metadata = {"name", name};
  return dkv_safetensors_write(path, list, list_results(list, results, problem), &metadata, 1);
}

dkv_status dkv_problem_save(const dkv_problem *problem, const char *path, const char *name) {
  DKV_REQUIRE(problem != NULL && path != NULL && name != NULL, DKV_ERR_NULL, "dkv_problem_save: an argument is NULL");
  int64_t rows = problem->layout.rows, segments = problem->layout.segments;
  int32_t *lengths = malloc((size_t)segments * sizeof *lengths + 1);
  DKV_REQUIRE(lengths != NULL, DKV_ERR_NOMEM, "dkv_problem_save: no memory for the segment lengths");
  for (int32_t s = 0; s < segments; ++s) lengths[s] = dkv_layout_length(&problem->layout, s);
  dkv_tensor list[6 + DKV_RESULTS] = {
      {"q", problem->dtype, 3, {rows, problem->heads, problem->head_dim}, problem->q, 0},
      {"k", problem->dtype, 3, {rows, problem->kv_heads, problem->head_dim}, problem->k, 0},
      {"v", problem->dtype, 3, {rows, problem->kv_heads, problem->head_dim}, problem->v, 0},
      {"segment_parent", DKV_I32, 1, {segments}, problem->layout.parent, 0},
      {"segment_length", DKV_I32, 1, {segments}, lengths, 0},
      {"do", problem->dtype, 3, {rows, problem->heads, problem->head_dim}, problem->dout, 0}};
  int32_t count = problem->dout != NULL ? 6 : 5;
  count += list_results(list + count, &problem->answer, problem);
  char scale[40];
  snprintf(scale, sizeof scale, "%.17g", problem->scale);
  dkv_metadata metadata[2] = {{"scale", scale}, {"name", name}};
  dkv_status status = dkv_safetensors_write(path, list, count, metadata, 2);
  free(lengths);
  return status;
}
