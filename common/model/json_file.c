/**
 * @file json_file.c
 * @brief Reads a JSON file whole, writes a text file whole or not at all.
 *
 * Read before: json_file.h.  Read next: config.c.
 */
#include "common/model/json_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool dkv_file_exists(const char *path) {
  struct stat info;
  return stat(path, &info) == 0;
}

/** The file's bytes with a NUL behind them. */
static dkv_status read_all(char **out, const char *path) {
  struct stat info;
  FILE *file = fopen(path, "rb");
  DKV_REQUIRE(file != NULL, DKV_ERR_IO, "cannot open %s: %s", path, strerror(errno));
  dkv_status status = DKV_OK;
  char *text = NULL;
  if (fstat(fileno(file), &info) != 0 || !S_ISREG(info.st_mode)) {
    status = dkv_fail(DKV_ERR_IO, "%s is not a regular file", path);
  } else if (info.st_size > DKV_MAX_JSON) {
    status = dkv_fail(DKV_ERR_FORMAT, "%s has %lld bytes; a JSON file may have %lld", path, (long long)info.st_size,
                      (long long)DKV_MAX_JSON);
  } else if ((text = malloc((size_t)info.st_size + 1)) == NULL) {
    status = dkv_fail(DKV_ERR_NOMEM, "no memory for %s", path);
  } else {
    size_t got = fread(text, 1, (size_t)info.st_size, file);
    if (got != (size_t)info.st_size) status = dkv_fail(DKV_ERR_IO, "cannot read all of %s", path);
    text[got] = '\0';
  }
  fclose(file);
  if (status != DKV_OK) {
    free(text);
    text = NULL;
  }
  *out = text;
  return status;
}

dkv_status dkv_json_load(cJSON **out, const char *path) {
  char *text = NULL;
  *out = NULL;
  DKV_TRY(read_all(&text, path));
  cJSON *root = cJSON_Parse(text);
  free(text);
  if (!cJSON_IsObject(root)) {
    cJSON_Delete(root);
    return dkv_fail(DKV_ERR_FORMAT, "%s is not a JSON object", path);
  }
  *out = root;
  return DKV_OK;
}

/** Writes beside `path`, then renames. */
static dkv_status replace_file(const char *path, const char *text) {
  size_t length = strlen(path);
  char *temporary = malloc(length + 8);
  DKV_REQUIRE(temporary != NULL, DKV_ERR_NOMEM, "no memory for a file name");
  memcpy(temporary, path, length);
  memcpy(temporary + length, ".XXXXXX", 8);
  int descriptor = mkstemp(temporary);
  FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "wb");
  bool written = file != NULL && fchmod(descriptor, 0644) == 0 && fputs(text, file) >= 0 && fputc('\n', file) != EOF &&
                 fflush(file) == 0 && fsync(descriptor) == 0;
  int reason = errno;
  if (file != NULL ? fclose(file) != 0 : descriptor >= 0 && close(descriptor) != 0) written = false;
  if (written && rename(temporary, path) != 0) {
    reason = errno;
    written = false;
  }
  if (!written && descriptor >= 0) unlink(temporary);
  free(temporary);
  DKV_REQUIRE(written, DKV_ERR_IO, "cannot write %s: %s", path, strerror(reason));
  return DKV_OK;
}

dkv_status dkv_text_save(const char *path, const char *text) {
  struct stat info;
  bool exists = stat(path, &info) == 0;
  DKV_REQUIRE(!exists || S_ISREG(info.st_mode), DKV_ERR_IO, "cannot write %s: %s", path,
              S_ISDIR(info.st_mode) ? "it is a directory" : "it is not a regular file");
  char *resolved = exists ? realpath(path, NULL) : NULL; /* so that a symbolic link survives */
  dkv_status status = replace_file(resolved != NULL ? resolved : path, text);
  free(resolved);
  return status;
}
