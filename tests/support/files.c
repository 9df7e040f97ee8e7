/**
 * @file files.c
 * @brief The folder of a test, made by mkdtemp and removed at exit.
 *
 * Read before: files.h.
 */
#include "tests/support/files.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[64];
static pid_t owner;

static void remove_folder(void) {
  DIR *directory = getpid() == owner ? opendir(folder) : NULL;
  if (directory == NULL) return;
  for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
    if (entry->d_name[0] != '.') remove(path); /* files, links, FIFOs and empty folders */
  }
  closedir(directory);
  rmdir(folder);
}

const char *file_path(const char *name) {
  static char paths[8][512];
  static unsigned turn;
  if (owner != getpid()) {
    strcpy(folder, "/tmp/dkv_test_XXXXXX");
    cr_assert(mkdtemp(folder) != NULL, "cannot make a folder in /tmp");
    owner = getpid();
    atexit(remove_folder);
  }
  char *path = paths[turn++ % 8];
  snprintf(path, sizeof paths[0], "%s/%s", folder, name);
  return path;
}

int file_count(void) {
  int count = 0;
  (void)file_path("");
  DIR *directory = opendir(folder);
  cr_assert(directory != NULL);
  for (struct dirent *entry; (entry = readdir(directory)) != NULL;) count += entry->d_name[0] != '.';
  closedir(directory);
  return count;
}

void file_write(const char *path, const void *bytes, size_t size) {
  FILE *file = fopen(path, "wb");
  cr_assert(file != NULL, "cannot write %s", path);
  cr_assert(fwrite(bytes, 1, size, file) == size);
  cr_assert(fclose(file) == 0);
}

void file_write_header(const char *path, const char *header, const void *data, size_t size) {
  size_t length = strlen(header);
  uint8_t *bytes = calloc(8 + length + size + 1, 1);
  cr_assert(bytes != NULL);
  for (int i = 0; i < 8; ++i) bytes[i] = (uint8_t)((uint64_t)length >> (8 * i));
  memcpy(bytes + 8, header, length);
  if (data != NULL) memcpy(bytes + 8 + length, data, size);
  file_write(path, bytes, 8 + length + size);
  free(bytes);
}

void *file_read(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  cr_assert(file != NULL, "cannot read %s", path);
  cr_assert(fseek(file, 0, SEEK_END) == 0);
  *size = (size_t)ftell(file);
  rewind(file);
  void *bytes = malloc(*size + 1);
  cr_assert(bytes != NULL && fread(bytes, 1, *size, file) == *size);
  fclose(file);
  return bytes;
}
