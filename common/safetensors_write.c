/**
 * @file safetensors_write.c
 * @brief Writes a safetensors file so that a reader sees the old file or the whole new one, never half of it.
 *
 * The content goes to a file without a name in the target's folder, which vanishes with its process whatever ends it;
 * once whole and flushed to the disk it gets a temporary name and is renamed over the target.  Where the file system
 * has no nameless files, the temporary name is there from the start, and any failure but a kill removes it.
 *
 * Read before: safetensors.c.
 */
#include "common/safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const type_names[DKV_DTYPES] = {"F32", "BF16", "F16", "F64", "I32", "I64", "U8"};

/** Bytes of a tensor from its shape; refuses what the header file says. */
static dkv_status tensor_bytes(const dkv_tensor *tensor, int64_t *bytes) {
  DKV_REQUIRE(tensor->name != NULL, DKV_ERR_NULL, "dkv_safetensors_write: a tensor's name is NULL");
  DKV_REQUIRE(strcmp(tensor->name, "__metadata__") != 0, DKV_ERR_RANGE,
              "dkv_safetensors_write: a tensor may not be called __metadata__");
  DKV_REQUIRE(tensor->rank >= 0 && tensor->rank <= DKV_MAX_RANK, DKV_ERR_RANGE,
              "dkv_safetensors_write: tensor \"%.60s\" has rank %d; it must be 0 to %d", tensor->name, tensor->rank,
              DKV_MAX_RANK);
  DKV_REQUIRE(dkv_dtype_size(tensor->dtype) > 0, DKV_ERR_RANGE,
              "dkv_safetensors_write: tensor \"%.60s\" has an unknown dtype %d", tensor->name, (int)tensor->dtype);
  *bytes = (int64_t)dkv_dtype_size(tensor->dtype);
  for (int32_t d = 0; d < tensor->rank; ++d) {
    DKV_REQUIRE(tensor->shape[d] >= 0, DKV_ERR_RANGE,
                "dkv_safetensors_write: dimension %d of tensor \"%.60s\" is %" PRId64, d, tensor->name,
                tensor->shape[d]);
    DKV_REQUIRE(!__builtin_mul_overflow(*bytes, tensor->shape[d], bytes), DKV_ERR_RANGE,
                "dkv_safetensors_write: the shape of tensor \"%.60s\" has more than 2^63 bytes", tensor->name);
  }
  DKV_REQUIRE(tensor->data != NULL || *bytes == 0, DKV_ERR_NULL, "dkv_safetensors_write: tensor \"%.60s\" has no data",
              tensor->name);
  return DKV_OK;
}

static int by_name(const void *a, const void *b) {
  const char *const *x = a, *const *y = b;
  return strcmp(*x, *y);
}

static dkv_status check_unique(const char **names, int32_t count, const char *what) {
  if (count > 1) qsort(names, (size_t)count, sizeof *names, by_name);
  for (int32_t i = 1; i < count; ++i) {
    DKV_REQUIRE(strcmp(names[i - 1], names[i]) != 0, DKV_ERR_RANGE,
                "dkv_safetensors_write: the %s \"%.60s\" occurs twice", what, names[i]);
  }
  return DKV_OK;
}

static dkv_status check_names(const dkv_tensor *tensors, int32_t count, const dkv_metadata *metadata, int32_t entries) {
  const char **names = calloc((size_t)dkv_max(count, entries) + 1, sizeof *names);
  DKV_REQUIRE(names != NULL, DKV_ERR_NOMEM, "dkv_safetensors_write: no memory for the names");
  for (int32_t i = 0; i < count; ++i) names[i] = tensors[i].name;
  dkv_status status = check_unique(names, count, "tensor");
  if (status == DKV_OK) {
    for (int32_t i = 0; i < entries; ++i) names[i] = metadata[i].key;
    status = check_unique(names, entries, "metadata key");
  }
  free(names);
  return status;
}

/** Appends a whole number with all its digits (cJSON would print large ones with an exponent). */
static bool append_number(cJSON *array, int64_t value) {
  char text[24];
  snprintf(text, sizeof text, "%" PRId64, value);
  return cJSON_AddItemToArray(array, cJSON_CreateRaw(text));
}

/** Adds {"dtype", "shape", "data_offsets"} of one tensor; false when memory ran out. */
static bool append_tensor(cJSON *root, const dkv_tensor *tensor, int64_t begin, int64_t end) {
  cJSON *entry = cJSON_AddObjectToObject(root, tensor->name);
  bool fine = entry != NULL && cJSON_AddStringToObject(entry, "dtype", type_names[tensor->dtype]) != NULL;
  cJSON *shape = fine ? cJSON_AddArrayToObject(entry, "shape") : NULL;
  cJSON *offsets = shape != NULL ? cJSON_AddArrayToObject(entry, "data_offsets") : NULL;
  fine = offsets != NULL;
  for (int32_t d = 0; d < tensor->rank && fine; ++d) fine = append_number(shape, tensor->shape[d]);
  return fine && append_number(offsets, begin) && append_number(offsets, end);
}

/** Builds the header text, padded with blanks to a multiple of 8 so that the data begins aligned. free() it. */
static dkv_status build_header(char **out, size_t *size, const dkv_tensor *tensors, int32_t tensor_count,
                               const dkv_metadata *metadata, int32_t metadata_count) {
  cJSON *root = cJSON_CreateObject();
  bool fine = root != NULL;
  if (fine && metadata_count > 0) {
    cJSON *entries = cJSON_AddObjectToObject(root, "__metadata__");
    fine = entries != NULL;
    for (int32_t i = 0; i < metadata_count && fine; ++i) {
      fine = cJSON_AddStringToObject(entries, metadata[i].key, metadata[i].value) != NULL;
    }
  }
  int64_t at = 0;
  dkv_status status = DKV_OK;
  for (int32_t i = 0; i < tensor_count && fine && status == DKV_OK; ++i) {
    int64_t bytes = 0, end = 0;
    status = tensor_bytes(&tensors[i], &bytes);
    if (status == DKV_OK && __builtin_add_overflow(at, bytes, &end)) {
      status = dkv_fail(DKV_ERR_RANGE, "dkv_safetensors_write: the tensors have more than 2^63 bytes");
    }
    fine = status != DKV_OK || append_tensor(root, &tensors[i], at, end);
    at = end;
  }
  char *text = fine && status == DKV_OK ? cJSON_PrintUnformatted(root) : NULL;
  cJSON_Delete(root);
  if (status != DKV_OK) return status;
  size_t length = text != NULL ? strlen(text) : 0, padded = (length + 7) / 8 * 8;
  char *grown = text != NULL ? realloc(text, padded + 1) : NULL;
  if (grown == NULL) {
    free(text);
    return dkv_fail(DKV_ERR_NOMEM, "dkv_safetensors_write: no memory for the header of %d tensors", tensor_count);
  }
  memset(grown + length, ' ', padded - length);
  *out = grown;
  *size = padded;
  return DKV_OK;
}

/** write() until everything is out. */
static bool write_all(int descriptor, const void *bytes, size_t size) {
  const char *at = bytes;
  while (size > 0) {
    ssize_t written = write(descriptor, at, size < ((size_t)1 << 30) ? size : (size_t)1 << 30);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    at += written;
    size -= (size_t)written;
  }
  return true;
}

static bool write_content(int descriptor, const char *header, size_t header_size, const dkv_tensor *tensors,
                          int32_t tensor_count) {
  unsigned char length[8];
  for (int i = 0; i < 8; ++i) length[i] = (unsigned char)((uint64_t)header_size >> (8 * i));
  bool fine = write_all(descriptor, length, sizeof length) && write_all(descriptor, header, header_size);
  for (int32_t i = 0; i < tensor_count && fine; ++i) {
    int64_t bytes = 0;
    fine = tensor_bytes(&tensors[i], &bytes) == DKV_OK && write_all(descriptor, tensors[i].data, (size_t)bytes);
  }
  return fine && fsync(descriptor) == 0;
}

/** Bytes of the longest temporary name of `path`. */
static size_t temporary_size(const char *path) { return strlen(path) + 48; }

/** The number-th temporary name: path + ".tmp-<process>-<number>". */
static void name_temporary(char *temporary, const char *path, int number) {
  snprintf(temporary, temporary_size(path), "%s.tmp-%ld-%d", path, (long)getpid(), number);
}

/** Opens a new file under a temporary name. */
static int open_named(char *temporary, const char *path) {
  int descriptor = -1;
  for (int number = 0; number < 1000 && descriptor < 0; ++number) {
    name_temporary(temporary, path, number);
    descriptor = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor < 0 && errno != EEXIST) break;
  }
  return descriptor;
}

/** Opens a file without a name in the folder of `path`; -1 where that cannot be. `temporary` is room for a name. */
static int open_nameless(char *temporary, const char *path) {
  const char *slash = strrchr(path, '/');
  if (slash == NULL) strcpy(temporary, ".");
  else snprintf(temporary, temporary_size(path), "%.*s", (int)(slash - path) + 1, path);
  return open(temporary, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
}

/** Gives a nameless file a temporary name. */
static bool give_name(char *temporary, int descriptor, const char *path) {
  char self[64];
  bool named = false;
  snprintf(self, sizeof self, "/proc/self/fd/%d", descriptor);
  for (int number = 0; number < 1000 && !named; ++number) {
    name_temporary(temporary, path, number);
    named = linkat(AT_FDCWD, self, AT_FDCWD, temporary, AT_SYMLINK_FOLLOW) == 0;
    if (!named && errno != EEXIST) break;
  }
  return named;
}

/** What a file is to hold. */
struct content {
  const char *header;
  size_t header_size;
  const dkv_tensor *tensors;
  int32_t tensor_count;
};

/** Writes beside `path`, whole and closed, under the name `temporary`; leaves nothing on failure. */
static dkv_status write_beside(char *temporary, const char *path, const struct content *c, bool nameless) {
  int descriptor = nameless ? open_nameless(temporary, path) : open_named(temporary, path);
  DKV_REQUIRE(descriptor >= 0, nameless ? DKV_ERR_UNSUPPORTED : DKV_ERR_IO, "cannot write beside %s: %s", path,
              strerror(errno));
  dkv_status status = DKV_OK;
  bool named = !nameless;
  if (!write_content(descriptor, c->header, c->header_size, c->tensors, c->tensor_count)) {
    status = dkv_fail(DKV_ERR_IO, "cannot write %s: %s", path, strerror(errno));
  } else if (nameless) {
    named = give_name(temporary, descriptor, path);
    if (!named) status = dkv_fail(DKV_ERR_UNSUPPORTED, "cannot write beside %s: %s", path, strerror(errno));
  }
  if (close(descriptor) != 0 && status == DKV_OK) {
    status = dkv_fail(DKV_ERR_IO, "cannot finish %s: %s", path, strerror(errno));
  }
  if (status != DKV_OK && named) unlink(temporary);
  return status;
}

/** Writes beside `path`, then renames; nothing is left behind on failure. */
static dkv_status replace_file(const char *path, const struct content *content) {
  char *temporary = malloc(temporary_size(path));
  DKV_REQUIRE(temporary != NULL, DKV_ERR_NOMEM, "dkv_safetensors_write: no memory for a file name");
  dkv_status status = write_beside(temporary, path, content, true);
  if (status == DKV_ERR_UNSUPPORTED) status = write_beside(temporary, path, content, false);
  if (status == DKV_OK && rename(temporary, path) != 0) {
    status = dkv_fail(DKV_ERR_IO, "cannot put %s in its place: %s", path, strerror(errno));
    unlink(temporary);
  }
  free(temporary);
  return status;
}

dkv_status dkv_safetensors_write(const char *path, const dkv_tensor *tensors, int32_t tensor_count,
                                 const dkv_metadata *metadata, int32_t metadata_count) {
  DKV_REQUIRE(path != NULL, DKV_ERR_NULL, "dkv_safetensors_write: path is NULL");
  DKV_REQUIRE(tensor_count >= 0 && metadata_count >= 0, DKV_ERR_RANGE,
              "dkv_safetensors_write: %d tensors and %d metadata entries; neither may be negative", tensor_count,
              metadata_count);
  DKV_REQUIRE(tensors != NULL || tensor_count == 0, DKV_ERR_NULL, "dkv_safetensors_write: tensors is NULL");
  DKV_REQUIRE(metadata != NULL || metadata_count == 0, DKV_ERR_NULL, "dkv_safetensors_write: metadata is NULL");
  DKV_REQUIRE(path[0] != '\0', DKV_ERR_IO, "cannot write a file: its path is empty");
  for (int32_t i = 0; i < tensor_count; ++i) {
    int64_t bytes;
    DKV_TRY(tensor_bytes(&tensors[i], &bytes));
  }
  for (int32_t i = 0; i < metadata_count; ++i) {
    DKV_REQUIRE(metadata[i].key != NULL && metadata[i].value != NULL, DKV_ERR_NULL,
                "dkv_safetensors_write: metadata entry %d has no key or no value", i);
  }
  DKV_TRY(check_names(tensors, tensor_count, metadata, metadata_count));
  struct stat info;
  bool exists = stat(path, &info) == 0;
  DKV_REQUIRE(exists || errno == ENOENT, DKV_ERR_IO, "cannot write %s: %s", path, strerror(errno));
  DKV_REQUIRE(!exists || S_ISREG(info.st_mode), DKV_ERR_IO, "cannot write %s: %s", path,
              S_ISDIR(info.st_mode) ? "it is a directory" : "it is not a regular file");
  char *header = NULL;
  size_t header_size = 0;
  DKV_TRY(build_header(&header, &header_size, tensors, tensor_count, metadata, metadata_count));
  char *resolved = exists ? realpath(path, NULL) : NULL; /* so that a symbolic link survives */
  const struct content content = {header, header_size, tensors, tensor_count};
  dkv_status status = replace_file(resolved != NULL ? resolved : path, &content);
  free(resolved);
  free(header);
  return status;
}
