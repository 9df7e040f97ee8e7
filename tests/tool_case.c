/**
 * @file tool_case.c
 * @brief A helper of the shell checks: reads and damages tensors of safetensors files, one at a time.
 *
 *     tool_case shape FILE TENSOR                      prints its sizes
 *     tool_case print FILE TENSOR INDEX                prints one element
 *     tool_case set IN OUT TENSOR INDEX VALUE          VALUE: a number, nan, inf, or double (twice what it was)
 *     tool_case drop IN OUT TENSOR                     leaves one tensor out
 *     tool_case cast IN OUT TENSOR DTYPE               stores one tensor in another type
 *     tool_case reshape IN OUT TENSOR A,B,C            gives one tensor another shape of as many elements
 *
 * Exit code 0, or 1 with a sentence.
 *
 * Read before: common/safetensors.h.  Read next: test_cli.sh.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/safetensors.h"

static int64_t elements_of(const dkv_tensor *tensor) {
  int64_t count = 1;
  for (int32_t r = 0; r < tensor->rank; ++r) count *= tensor->shape[r];
  return count;
}

/** Finds a tensor and an element of it. */
static dkv_status find(const dkv_tensor **out, int64_t *index, const dkv_safetensors *file, const char *name,
                       const char *at) {
  *out = dkv_safetensors_find(file, name);
  DKV_REQUIRE(*out != NULL, DKV_ERR_RANGE, "there is no tensor %s", name);
  *index = strtoll(at, NULL, 10);
  DKV_REQUIRE(*index >= 0 && *index < elements_of(*out), DKV_ERR_RANGE, "%s has no element %s", name, at);
  return DKV_OK;
}

static dkv_status print(const dkv_safetensors *file, const char *name, const char *at) {
  const dkv_tensor *tensor;
  int64_t index;
  DKV_TRY(find(&tensor, &index, file, name, at));
  printf("%.17g\n", dkv_element(tensor->data, tensor->dtype, index));
  return DKV_OK;
}

/** Replaces one tensor of the file and writes all of them. */
static dkv_status write_with(const dkv_safetensors *file, const dkv_tensor *replaced, const char *path, bool drop) {
  dkv_tensor *list = malloc((size_t)file->tensor_count * sizeof *list);
  DKV_REQUIRE(list != NULL, DKV_ERR_NOMEM, "no memory for the table");
  int32_t count = 0;
  for (int32_t t = 0; t < file->tensor_count; ++t) {
    bool same = strcmp(file->tensors[t].name, replaced->name) == 0;
    if (!(same && drop)) list[count++] = same ? *replaced : file->tensors[t];
  }
  dkv_status status = dkv_safetensors_write(path, list, count, file->metadata, file->metadata_count);
  free(list);
  return status;
}

static dkv_status set(const dkv_safetensors *file, const char *path, const char *name, const char *at,
                      const char *text) {
  const dkv_tensor *tensor;
  int64_t index;
  DKV_TRY(find(&tensor, &index, file, name, at));
  double value = strcmp(text, "double") == 0 ? 2 * dkv_element(tensor->data, tensor->dtype, index) : strtod(text, NULL);
  char *copy = malloc((size_t)tensor->bytes);
  DKV_REQUIRE(copy != NULL, DKV_ERR_NOMEM, "no memory for a copy");
  memcpy(copy, tensor->data, (size_t)tensor->bytes);
  char *element = copy + (size_t)index * dkv_dtype_size(tensor->dtype);
  dkv_status status = DKV_OK;
  if (tensor->dtype == DKV_I32) {
    int32_t whole = (int32_t)value;
    memcpy(element, &whole, sizeof whole);
  } else {
    status = dkv_convert(element, tensor->dtype, &value, DKV_F64, 1);
  }
  dkv_tensor changed = *tensor;
  changed.data = copy;
  if (status == DKV_OK) status = write_with(file, &changed, path, false);
  free(copy);
  return status;
}

static dkv_status cast(const dkv_safetensors *file, const char *path, const char *name, const char *type) {
  const dkv_tensor *tensor;
  int64_t index;
  dkv_dtype dtype;
  DKV_TRY(find(&tensor, &index, file, name, "0"));
  DKV_TRY(dkv_dtype_parse(&dtype, type));
  void *copy = calloc((size_t)elements_of(tensor), 8); /* an integer type gets zeros: it is refused before it is read */
  DKV_REQUIRE(copy != NULL, DKV_ERR_NOMEM, "no memory for a copy");
  bool whole = dtype == DKV_I32 || dtype == DKV_I64 || dtype == DKV_U8;
  dkv_status status = whole ? DKV_OK : dkv_convert(copy, dtype, tensor->data, tensor->dtype, elements_of(tensor));
  dkv_tensor changed = *tensor;
  changed.dtype = dtype;
  changed.data = copy;
  if (status == DKV_OK) status = write_with(file, &changed, path, false);
  free(copy);
  return status;
}

static dkv_status reshape(const dkv_safetensors *file, const char *path, const char *name, const char *shape) {
  const dkv_tensor *tensor;
  int64_t index;
  DKV_TRY(find(&tensor, &index, file, name, "0"));
  dkv_tensor changed = *tensor;
  changed.rank = 0;
  for (char *rest = NULL; *shape != '\0' && changed.rank < DKV_MAX_RANK; shape = *rest == ',' ? rest + 1 : rest)
    changed.shape[changed.rank++] = strtoll(shape, &rest, 10);
  return write_with(file, &changed, path, false);
}

static dkv_status run(const dkv_safetensors *file, int argc, char **argv) {
  const char *verb = argv[1];
  if (strcmp(verb, "shape") == 0 && argc == 4) {
    const dkv_tensor *tensor = dkv_safetensors_find(file, argv[3]);
    for (int32_t r = 0; tensor != NULL && r < tensor->rank; ++r) printf("%lld\n", (long long)tensor->shape[r]);
    return DKV_OK;
  }
  if (strcmp(verb, "print") == 0 && argc == 5) return print(file, argv[3], argv[4]);
  if (strcmp(verb, "set") == 0 && argc == 7) return set(file, argv[3], argv[4], argv[5], argv[6]);
  if (strcmp(verb, "cast") == 0 && argc == 6) return cast(file, argv[3], argv[4], argv[5]);
  if (strcmp(verb, "reshape") == 0 && argc == 6) return reshape(file, argv[3], argv[4], argv[5]);
  if (strcmp(verb, "drop") == 0 && argc == 5) return write_with(file, &(dkv_tensor){.name = argv[4]}, argv[3], true);
  return dkv_fail(DKV_ERR_RANGE, "tool_case: \"%s\" with %d arguments is not in the list at the top of tool_case.c",
                  verb, argc - 2);
}

int main(int argc, char **argv) {
  dkv_safetensors file;
  dkv_status status = argc < 3 ? dkv_fail(DKV_ERR_RANGE, "tool_case: VERB FILE ...") : DKV_OK;
  if (status == DKV_OK) status = dkv_safetensors_open(&file, argv[2]);
  if (status == DKV_OK) {
    status = run(&file, argc, argv);
    dkv_safetensors_close(&file);
  }
  if (status != DKV_OK) fprintf(stderr, "%s\n", dkv_last_error());
  return status == DKV_OK ? 0 : 1;
}
