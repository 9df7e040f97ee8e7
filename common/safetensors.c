/**
 * @file safetensors.c
 * @brief Opens, checks and closes a safetensors file; the file is mapped, tensors point into the mapping.
 *
 *     byte 0        8              8 + n                        end of file
 *          | n: u64 | JSON header n | tensor | tensor | tensor |
 *                                   ^ data_offsets count from here
 *
 * The rules that the data must keep: tensors in the order of their offsets start at 0, follow each other without a gap
 * or an overlap, and end with the file; each is as long as its shape and type say.  The header is untrusted, so a cheap
 * scan bounds its depth and its number of values before cJSON builds a tree from it.
 *
 * Read before: safetensors.h.  Read next: safetensors_write.c, problem_file.c.
 */
#include "common/safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/** Deepest nesting of a legal header: { name: { "shape": [ ] } }. */
#define MAX_DEPTH 3
/** Most JSON values in a header: some 100000 tensors, and at most 150 MB of cJSON nodes. */
#define MAX_VALUES (1 << 20)
/** Largest integer up to which a double holds every integer. */
#define MAX_EXACT 9007199254740992.0

/** A name from the file, made fit for a sentence: at most 60 printable bytes. */
typedef struct shown {
  char text[64];
} shown;

static shown show(const char *name) {
  shown out;
  size_t n = 0;
  for (; name[n] != '\0' && n < 60; ++n) {
    unsigned char c = (unsigned char)name[n];
    out.text[n] = (char)(c >= 0x20 && c != 0x7f ? c : '?');
  }
  if (name[n] != '\0') {
    memcpy(out.text + 57, "...", 3);
  }
  out.text[n] = '\0';
  return out;
}

/** Inside a JSON string at byte i: refuses NUL (plain or escaped) and control bytes, which would cut a C string short.
 */
static dkv_status scan_string_byte(const char *json, size_t size, size_t i, const char *file) {
  unsigned char c = (unsigned char)json[i];
  DKV_REQUIRE(c >= 0x20, DKV_ERR_FORMAT, "%s: byte %zu of the header is a control character (%d) inside a string", file,
              i, c);
  DKV_REQUIRE(size - i < 6 || memcmp(json + i, "\\u0000", 6) != 0, DKV_ERR_FORMAT,
              "%s: byte %zu of the header is an escaped NUL inside a string", file, i);
  return DKV_OK;
}

/**
 * One pass over the header's bytes, outside cJSON: bounds depth and number of values, and finds the end of the one
 * object that the header is, behind which only blanks may follow.  So cJSON never meets the end of its buffer inside a
 * value.
 */
static dkv_status scan_header(size_t *json_size, const char *json, size_t size, const char *file) {
  int depth = 0;
  int64_t values = 0;
  bool in_string = false;
  size_t i = 0;
  do {
    DKV_REQUIRE(i < size, DKV_ERR_FORMAT, "%s: the header's %zu bytes end inside its JSON object", file, size);
    char c = json[i++];
    if (in_string) {
      DKV_TRY(scan_string_byte(json, size, i - 1, file));
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    in_string = c == '"';
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (c == ',' || c == ':' || c == '[') ++values;
    DKV_REQUIRE(depth <= MAX_DEPTH, DKV_ERR_FORMAT, "%s: the header nests deeper than %d levels at byte %zu", file,
                MAX_DEPTH, i - 1);
    DKV_REQUIRE(values <= MAX_VALUES, DKV_ERR_FORMAT, "%s: the header has more than %d values", file, MAX_VALUES);
  } while (depth > 0);
  *json_size = i;
  for (; i < size; ++i) {
    DKV_REQUIRE(json[i] == ' ' || json[i] == '\n' || json[i] == '\r' || json[i] == '\t', DKV_ERR_FORMAT,
                "%s: byte %zu of the header follows the end of its JSON object and is no blank", file, i);
  }
  return DKV_OK;
}

/** Reads a JSON number that must be a whole number from 0 to 2^53. */
static bool whole_number(const cJSON *item, int64_t *out) {
  if (!cJSON_IsNumber(item)) return false;
  double x = item->valuedouble;
  if (!(x >= 0.0 && x <= MAX_EXACT)) return false; /* also refuses NaN */
  *out = (int64_t)x;
  return (double)*out == x;
}

static dkv_status read_dtype(dkv_tensor *tensor, const cJSON *item, const char *file) {
  static const struct {
    const char *name;
    dkv_dtype dtype;
  } types[] = {{"F32", DKV_F32}, {"BF16", DKV_BF16}, {"F16", DKV_F16}, {"F64", DKV_F64},
               {"I32", DKV_I32}, {"I64", DKV_I64},   {"U8", DKV_U8}};
  DKV_REQUIRE(cJSON_IsString(item), DKV_ERR_FORMAT, "%s: tensor \"%s\" has a dtype that is no string", file,
              show(tensor->name).text);
  for (size_t i = 0; i < sizeof types / sizeof types[0]; ++i) {
    if (strcmp(item->valuestring, types[i].name) == 0) {
      tensor->dtype = types[i].dtype;
      return DKV_OK;
    }
  }
  return dkv_fail(DKV_ERR_FORMAT, "%s: tensor \"%s\" has dtype \"%s\"; read are F32, BF16, F16, F64, I32, I64 and U8",
                  file, show(tensor->name).text, show(item->valuestring).text);
}

static dkv_status read_shape(dkv_tensor *tensor, const cJSON *item, const char *file) {
  DKV_REQUIRE(cJSON_IsArray(item), DKV_ERR_FORMAT, "%s: tensor \"%s\" has a shape that is no array", file,
              show(tensor->name).text);
  const cJSON *size;
  cJSON_ArrayForEach(size, item) {
    DKV_REQUIRE(tensor->rank < DKV_MAX_RANK, DKV_ERR_FORMAT, "%s: tensor \"%s\" has more than %d dimensions", file,
                show(tensor->name).text, DKV_MAX_RANK);
    DKV_REQUIRE(whole_number(size, &tensor->shape[tensor->rank]), DKV_ERR_FORMAT,
                "%s: dimension %d of tensor \"%s\" is not a whole number from 0 to 2^53", file, tensor->rank,
                show(tensor->name).text);
    ++tensor->rank;
  }
  return DKV_OK;
}

/** Reads begin and end; `*begin` is kept apart because a tensor stores a pointer. */
static dkv_status read_offsets(dkv_tensor *tensor, int64_t *begin, const cJSON *item, const char *file) {
  int64_t end = 0;
  DKV_REQUIRE(cJSON_IsArray(item) && cJSON_GetArraySize(item) == 2 && whole_number(item->child, begin) &&
                  whole_number(item->child->next, &end),
              DKV_ERR_FORMAT, "%s: tensor \"%s\" has data_offsets that are not two whole numbers from 0 to 2^53", file,
              show(tensor->name).text);
  DKV_REQUIRE(*begin <= end, DKV_ERR_FORMAT, "%s: tensor \"%s\" ends at byte %lld before it begins at byte %lld", file,
              show(tensor->name).text, (long long)end, (long long)*begin);
  tensor->bytes = end - *begin;
  return DKV_OK;
}

/** Does the shape need exactly the bytes that the offsets give? Overflow of the product means no. */
static dkv_status check_bytes(const dkv_tensor *tensor, const char *file) {
  int64_t bytes = (int64_t)dkv_dtype_size(tensor->dtype);
  bool overflow = false, empty = false;
  for (int32_t d = 0; d < tensor->rank; ++d) {
    if (tensor->shape[d] == 0) empty = true;
    else overflow = overflow || __builtin_mul_overflow(bytes, tensor->shape[d], &bytes);
  }
  DKV_REQUIRE(!overflow, DKV_ERR_FORMAT, "%s: the shape of tensor \"%s\" has more than 2^63 bytes", file,
              show(tensor->name).text);
  if (empty) bytes = 0;
  DKV_REQUIRE(bytes == tensor->bytes, DKV_ERR_FORMAT,
              "%s: tensor \"%s\" has %lld bytes, but its shape and dtype need %lld", file, show(tensor->name).text,
              (long long)tensor->bytes, (long long)bytes);
  return DKV_OK;
}

/** One entry of the header: exactly the keys dtype, shape and data_offsets. */
static dkv_status read_tensor(dkv_tensor *tensor, int64_t *begin, const cJSON *entry, const char *file) {
  tensor->name = entry->string;
  DKV_REQUIRE(cJSON_IsObject(entry), DKV_ERR_FORMAT, "%s: tensor \"%s\" is described by something that is no object",
              file, show(tensor->name).text);
  const cJSON *part[3] = {NULL, NULL, NULL};
  const cJSON *item;
  cJSON_ArrayForEach(item, entry) {
    int which = strcmp(item->string, "dtype") == 0 ? 0 : strcmp(item->string, "shape") == 0 ? 1 : 2;
    DKV_REQUIRE(which != 2 || strcmp(item->string, "data_offsets") == 0, DKV_ERR_FORMAT,
                "%s: tensor \"%s\" has a key \"%s\" besides dtype, shape and data_offsets", file,
                show(tensor->name).text, show(item->string).text);
    DKV_REQUIRE(part[which] == NULL, DKV_ERR_FORMAT, "%s: tensor \"%s\" has the key \"%s\" twice", file,
                show(tensor->name).text, show(item->string).text);
    part[which] = item;
  }
  DKV_REQUIRE(part[0] != NULL && part[1] != NULL && part[2] != NULL, DKV_ERR_FORMAT,
              "%s: tensor \"%s\" lacks one of dtype, shape and data_offsets", file, show(tensor->name).text);
  DKV_TRY(read_dtype(tensor, part[0], file));
  DKV_TRY(read_shape(tensor, part[1], file));
  DKV_TRY(read_offsets(tensor, begin, part[2], file));
  return check_bytes(tensor, file);
}

static dkv_status read_metadata(dkv_safetensors *out, const cJSON *entry, const char *file) {
  DKV_REQUIRE(cJSON_IsObject(entry), DKV_ERR_FORMAT, "%s: __metadata__ is no object of strings", file);
  DKV_REQUIRE(out->metadata == NULL, DKV_ERR_FORMAT, "%s: the header has __metadata__ twice", file);
  int count = cJSON_GetArraySize(entry);
  out->metadata = calloc((size_t)count + 1, sizeof *out->metadata);
  DKV_REQUIRE(out->metadata != NULL, DKV_ERR_NOMEM, "%s: no memory for %d metadata entries", file, count);
  const cJSON *item;
  cJSON_ArrayForEach(item, entry) {
    DKV_REQUIRE(cJSON_IsString(item), DKV_ERR_FORMAT, "%s: the value of metadata \"%s\" is no string", file,
                show(item->string).text);
    out->metadata[out->metadata_count++] = (dkv_metadata){item->string, item->valuestring};
  }
  return DKV_OK;
}

/** A tensor and where it begins, for sorting. */
typedef struct placed {
  dkv_tensor tensor;
  int64_t begin;
} placed;

static int by_offset(const void *a, const void *b) {
  const placed *x = a, *y = b;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  if (x->tensor.bytes != y->tensor.bytes) return x->tensor.bytes < y->tensor.bytes ? -1 : 1;
  return strcmp(x->tensor.name, y->tensor.name);
}

static int by_name(const void *a, const void *b) {
  const char *const *x = a, *const *y = b;
  return strcmp(*x, *y);
}

/** No two equal names among the `count` names, which get sorted. */
static dkv_status check_unique(const char **names, int64_t count, const char *what, const char *file) {
  if (count > 1) qsort(names, (size_t)count, sizeof *names, by_name);
  for (int64_t i = 1; i < count; ++i) {
    DKV_REQUIRE(strcmp(names[i - 1], names[i]) != 0, DKV_ERR_FORMAT, "%s: the %s \"%s\" occurs twice", file, what,
                show(names[i]).text);
  }
  return DKV_OK;
}

static dkv_status check_names(const dkv_safetensors *out, const char *file) {
  int64_t most = dkv_max(out->tensor_count, out->metadata_count);
  const char **names = calloc((size_t)most + 1, sizeof *names);
  DKV_REQUIRE(names != NULL, DKV_ERR_NOMEM, "%s: no memory for %lld names", file, (long long)most);
  for (int32_t i = 0; i < out->tensor_count; ++i) names[i] = out->tensors[i].name;
  dkv_status status = check_unique(names, out->tensor_count, "tensor", file);
  if (status == DKV_OK) {
    for (int32_t i = 0; i < out->metadata_count; ++i) names[i] = out->metadata[i].key;
    status = check_unique(names, out->metadata_count, "metadata key", file);
  }
  free(names);
  return status;
}

/** Tensors sorted by offset must tile the data: no gap, no overlap, ending with the file. Sets their data pointers. */
static dkv_status place_tensors(dkv_safetensors *out, placed *sorted, const char *data, size_t data_bytes,
                                const char *file) {
  int64_t at = 0;
  if (out->tensor_count > 1) qsort(sorted, (size_t)out->tensor_count, sizeof *sorted, by_offset);
  for (int32_t i = 0; i < out->tensor_count; ++i) {
    dkv_tensor *tensor = &sorted[i].tensor;
    DKV_REQUIRE(sorted[i].begin == at, DKV_ERR_FORMAT,
                "%s: tensor \"%s\" begins at byte %lld of the data, but %lld is %s", file, show(tensor->name).text,
                (long long)sorted[i].begin, (long long)at,
                sorted[i].begin < at ? "still taken by the tensor before it" : "where the tensor before it ended");
    DKV_REQUIRE((uint64_t)tensor->bytes <= data_bytes - (uint64_t)at, DKV_ERR_FORMAT,
                "%s: tensor \"%s\" ends at byte %lld of the data, but the file has only %zu", file,
                show(tensor->name).text, (long long)(at + tensor->bytes), data_bytes);
    tensor->data = data + at;
    at += tensor->bytes;
    out->tensors[i] = *tensor;
  }
  DKV_REQUIRE((uint64_t)at == data_bytes, DKV_ERR_FORMAT,
              "%s: the tensors end at byte %lld of the data, but the file has %zu", file, (long long)at, data_bytes);
  return DKV_OK;
}

/** Reads every entry of the parsed header. */
static dkv_status read_entries(dkv_safetensors *out, const char *data, size_t data_bytes, const char *file) {
  const cJSON *root = out->header;
  int count = cJSON_GetArraySize(root);
  placed *sorted = calloc((size_t)count + 1, sizeof *sorted);
  out->tensors = calloc((size_t)count + 1, sizeof *out->tensors);
  dkv_status status = DKV_OK;
  if (sorted == NULL || out->tensors == NULL) {
    status = dkv_fail(DKV_ERR_NOMEM, "%s: no memory for a table of %d tensors", file, count);
  }
  for (const cJSON *entry = root->child; entry != NULL && status == DKV_OK; entry = entry->next) {
    if (strcmp(entry->string, "__metadata__") == 0) {
      status = read_metadata(out, entry, file);
    } else {
      placed *next = &sorted[out->tensor_count++];
      status = read_tensor(&next->tensor, &next->begin, entry, file);
    }
  }
  if (status == DKV_OK) status = place_tensors(out, sorted, data, data_bytes, file);
  if (status == DKV_OK) status = check_names(out, file);
  free(sorted);
  return status;
}

static dkv_status parse(dkv_safetensors *out, const unsigned char *bytes, size_t size, const char *file) {
  DKV_REQUIRE(size >= 8, DKV_ERR_FORMAT, "%s: %zu bytes are no safetensors file; the header's length alone takes 8",
              file, size);
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | bytes[i];
  DKV_REQUIRE(length <= (uint64_t)DKV_MAX_HEADER, DKV_ERR_FORMAT,
              "%s: the header claims %llu bytes; more than %lld are not read", file, (unsigned long long)length,
              (long long)DKV_MAX_HEADER);
  DKV_REQUIRE(length <= size - 8, DKV_ERR_FORMAT, "%s: the header claims %llu bytes, but only %zu follow", file,
              (unsigned long long)length, size - 8);
  const char *json = (const char *)bytes + 8, *parsed_end = json;
  DKV_REQUIRE(length > 0 && json[0] == '{', DKV_ERR_FORMAT, "%s: the header does not begin with '{'", file);
  size_t json_size = 0;
  DKV_TRY(scan_header(&json_size, json, (size_t)length, file));
  out->header = cJSON_ParseWithLengthOpts(json, json_size, &parsed_end, 0);
  DKV_REQUIRE(out->header != NULL, DKV_ERR_FORMAT, "%s: the header is not JSON from byte %lld on (or memory ran out)",
              file, (long long)(parsed_end - json));
  return read_entries(out, json + length, size - 8 - (size_t)length, file);
}

dkv_status dkv_safetensors_parse(dkv_safetensors *out, const void *bytes, size_t size, const char *name) {
  DKV_REQUIRE(out != NULL, DKV_ERR_NULL, "dkv_safetensors_parse: out is NULL");
  *out = (dkv_safetensors){0};
  DKV_REQUIRE(name != NULL, DKV_ERR_NULL, "dkv_safetensors_parse: name is NULL");
  DKV_REQUIRE(bytes != NULL || size == 0, DKV_ERR_NULL, "dkv_safetensors_parse: bytes is NULL");
  dkv_status status = parse(out, bytes, size, name);
  if (status != DKV_OK) dkv_safetensors_close(out);
  return status;
}

/** Maps the regular file behind an open descriptor. */
static dkv_status map_file(void **mapping, size_t *bytes, int descriptor, const char *path) {
  struct stat info;
  DKV_REQUIRE(fstat(descriptor, &info) == 0, DKV_ERR_IO, "cannot look at %s: %s", path, strerror(errno));
  DKV_REQUIRE(S_ISREG(info.st_mode), DKV_ERR_IO, "cannot read %s: %s", path,
              S_ISDIR(info.st_mode) ? "it is a directory" : "it is not a regular file");
  *bytes = (size_t)info.st_size;
  if (*bytes == 0) return DKV_OK;
  void *memory = mmap(NULL, *bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
  DKV_REQUIRE(memory != MAP_FAILED, DKV_ERR_IO, "cannot map %s (%zu bytes): %s", path, *bytes, strerror(errno));
  *mapping = memory;
  return DKV_OK;
}

dkv_status dkv_safetensors_open(dkv_safetensors *out, const char *path) {
  DKV_REQUIRE(out != NULL, DKV_ERR_NULL, "dkv_safetensors_open: out is NULL");
  *out = (dkv_safetensors){0};
  DKV_REQUIRE(path != NULL, DKV_ERR_NULL, "dkv_safetensors_open: path is NULL");
  DKV_REQUIRE(path[0] != '\0', DKV_ERR_IO, "cannot open a file: its path is empty");
  int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not block us */
  DKV_REQUIRE(descriptor >= 0, DKV_ERR_IO, "cannot open %s: %s", path, strerror(errno));
  void *mapping = NULL;
  size_t bytes = 0;
  dkv_status status = map_file(&mapping, &bytes, descriptor, path);
  close(descriptor);
  if (status != DKV_OK) return status;
  status = parse(out, mapping, bytes, path);
  out->mapping = mapping;
  out->mapping_bytes = bytes;
  if (status != DKV_OK) dkv_safetensors_close(out);
  return status;
}

void dkv_safetensors_close(dkv_safetensors *file) {
  if (file == NULL) return;
  if (file->mapping != NULL) munmap(file->mapping, file->mapping_bytes);
  cJSON_Delete(file->header);
  free(file->tensors);
  free(file->metadata);
  *file = (dkv_safetensors){0};
}

const dkv_tensor *dkv_safetensors_find(const dkv_safetensors *file, const char *name) {
  if (file == NULL || name == NULL) return NULL;
  for (int32_t i = 0; i < file->tensor_count; ++i) {
    if (strcmp(file->tensors[i].name, name) == 0) return &file->tensors[i];
  }
  return NULL;
}

const char *dkv_safetensors_metadata(const dkv_safetensors *file, const char *key) {
  if (file == NULL || key == NULL) return NULL;
  for (int32_t i = 0; i < file->metadata_count; ++i) {
    if (strcmp(file->metadata[i].key, key) == 0) return file->metadata[i].value;
  }
  return NULL;
}
