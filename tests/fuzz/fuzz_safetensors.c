/**
 * @file fuzz_safetensors.c
 * @brief A libFuzzer target: any bytes are a safetensors file, and maybe a problem, or give one sentence.
 *
 * The first byte chooses how the rest becomes a file: as it is; as a header and data, with the right length in front,
 * so that the JSON is reached at once; or as edits of a sound case file, so that the rules behind the JSON are reached
 * at once.  What opens is read to the last element; what loads as a problem must be a sound one.
 *
 *     make fuzz            or            clang -fsanitize=fuzzer,address,undefined ...
 *
 * Read before: common/safetensors.h, common/problem.h.  Read next: tests/test_safetensors.c.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/problem.h"
#include "common/safetensors.h"

/** libFuzzer's entry point. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/** A sound case file: T=4, H=2, Hkv=1, D=8 in bf16, a prompt of 2 rows and responses of 2 and 0. */
static const char header[] = "{\"__metadata__\":{\"scale\":\"0.25\",\"name\":\"seed\"},"
                             "\"q\":{\"dtype\":\"BF16\",\"shape\":[4,2,8],\"data_offsets\":[0,128]},"
                             "\"k\":{\"dtype\":\"BF16\",\"shape\":[4,1,8],\"data_offsets\":[128,192]},"
                             "\"v\":{\"dtype\":\"BF16\",\"shape\":[4,1,8],\"data_offsets\":[192,256]},"
                             "\"do\":{\"dtype\":\"BF16\",\"shape\":[4,2,8],\"data_offsets\":[256,384]},"
                             "\"segment_parent\":{\"dtype\":\"I32\",\"shape\":[3],\"data_offsets\":[384,396]},"
                             "\"segment_length\":{\"dtype\":\"I64\",\"shape\":[3],\"data_offsets\":[396,420]},"
                             "\"lse\":{\"dtype\":\"F32\",\"shape\":[2,4],\"data_offsets\":[420,452]}}";
enum { HEADER = sizeof header - 1, DATA = 452, SEED = 8 + HEADER + DATA };

/** A violated invariant is a crash to the fuzzer. */
static void must(bool holds) {
  if (!holds) abort();
}

/** Writes the sound file. */
static void write_seed(uint8_t *out) {
  static const int32_t parent[3] = {-1, 0, 0};
  static const int64_t length[3] = {2, 2, 0};
  uint8_t *data = out + 8 + HEADER;
  memset(out, 0, SEED);
  for (int i = 0; i < 8; ++i) out[i] = (uint8_t)((uint64_t)HEADER >> (8 * i));
  memcpy(out + 8, header, HEADER);
  for (int i = 1; i < 384; i += 2) data[i] = (uint8_t)(0x3e + (i & 1)); /* bf16 near 0.2 */
  memcpy(data + 384, parent, sizeof parent);
  memcpy(data + 396, length, sizeof length);
}

/** Makes the file that an input stands for; free() it. */
static uint8_t *make_file(const uint8_t *data, size_t size, size_t *bytes) {
  int how = size > 0 ? data[0] % 3 : 0;
  const uint8_t *rest = data + (size > 0);
  size_t left = size - (size > 0);
  *bytes = how == 0 ? left : how == 1 ? left + 8 : SEED;
  uint8_t *file = malloc(*bytes + (*bytes == 0)); /* exactly that long, for the address sanitizer */
  must(file != NULL);
  if (how == 0 && left > 0) memcpy(file, rest, left);
  if (how == 1) {
    /* The first byte of the rest moves the border between header and data back from the end. */
    size_t behind = left == 0 ? 0 : rest[0] < left ? rest[0] : left, length = left - behind;
    for (int i = 0; i < 8; ++i) file[i] = (uint8_t)((uint64_t)length >> (8 * i));
    if (left > 0) memcpy(file + 8, rest, left);
    if (length > 0) file[8] = '{';
  }
  if (how == 2) {
    write_seed(file);
    for (; left >= 3; rest += 3, left -= 3) file[(size_t)(rest[0] << 8 | rest[1]) % SEED] = rest[2];
  }
  return file;
}

/** Tensors tile the data, and every element can be read. */
static void use(const dkv_safetensors *file, const uint8_t *begin, size_t bytes) {
  const uint8_t *at = NULL;
  double sum = 0.0;
  for (int32_t t = 0; t < file->tensor_count; ++t) {
    const dkv_tensor *tensor = &file->tensors[t];
    const uint8_t *data = tensor->data;
    must(at == NULL || data == at);
    must(data >= begin && tensor->bytes >= 0 && (size_t)tensor->bytes <= bytes - (size_t)(data - begin));
    int64_t n = tensor->bytes / (int64_t)dkv_dtype_size(tensor->dtype);
    for (int64_t i = 0; i < n; ++i) sum += dkv_element(data, tensor->dtype, i);
    must(dkv_safetensors_find(file, tensor->name) == tensor);
    at = data + tensor->bytes;
  }
  must(at == NULL || at == begin + bytes);
  for (int32_t m = 0; m < file->metadata_count; ++m) {
    must(dkv_safetensors_metadata(file, file->metadata[m].key) == file->metadata[m].value);
  }
  volatile double keep = sum; /* so that the reads stay */
  (void)keep;
}

/** A problem that loads is one that every kernel may be given. */
static void load(const dkv_safetensors *file) {
  dkv_problem problem;
  dkv_status status = dkv_problem_parse(&problem, file, "input");
  static const dkv_problem zero;
  if (status != DKV_OK) {
    must(dkv_last_error()[0] != '\0' && memcmp(&problem, &zero, sizeof zero) == 0);
    return;
  }
  must(dkv_layout_check(&problem.layout) == DKV_OK);
  must(problem.heads % problem.kv_heads == 0 && problem.head_dim % 8 == 0 && problem.q != NULL);
  dkv_problem copy;
  must(dkv_problem_cast(&copy, &problem, DKV_F32) == DKV_OK);
  dkv_problem_free(&copy);
  dkv_problem_free(&problem);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  size_t bytes;
  uint8_t *content = make_file(data, size, &bytes);
  dkv_safetensors file;
  dkv_status status = dkv_safetensors_parse(&file, content, bytes, "input");
  if (status == DKV_OK) {
    use(&file, content, bytes);
    load(&file);
  } else {
    must(status == DKV_ERR_FORMAT && dkv_last_error()[0] != '\0' && file.tensors == NULL && file.header == NULL);
  }
  dkv_safetensors_close(&file);
  free(content);
  return 0;
}
