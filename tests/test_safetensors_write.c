/**
 * @file test_safetensors_write.c
 * @brief Writing safetensors: exact round trips, and a failure that leaves the old file and nothing else.
 *
 * Read before: tests/test_safetensors.c.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/safetensors.h"
#include "tests/support/expect.h"
#include "tests/support/files.h"

/** A small sound tensor. */
static dkv_tensor tensor(const char *name) {
  static const float values[6] = {0.0f, -1.5f, 3e38f, 1e-45f, 7.0f, 8.0f};
  return (dkv_tensor){.name = name, .dtype = DKV_F32, .rank = 2, .shape = {2, 3}, .data = values};
}

Test(safetensors_write, is_read_back_bit_for_bit) {
  static const unsigned char bytes[48] = {1, 2, 3, 255, 254, 253, 128, 127};
  const char *path = file_path("all.safetensors");
  dkv_tensor list[DKV_DTYPES + 2];
  char names[DKV_DTYPES][16];
  for (int type = 0; type < DKV_DTYPES; ++type) { /* an odd number of bytes first: what follows is unaligned */
    snprintf(names[type], sizeof names[type], "t%d", type);
    list[type] = (dkv_tensor){.name = names[type],
                              .dtype = (dkv_dtype)(DKV_DTYPES - 1 - type),
                              .rank = 1,
                              .shape = {3},
                              .data = bytes + type};
  }
  list[DKV_DTYPES] = (dkv_tensor){.name = "\xc3\xa9 \"quoted\"\n", .dtype = DKV_F64, .rank = 0, .data = bytes};
  list[DKV_DTYPES + 1] = (dkv_tensor){.name = "", .dtype = DKV_I64, .rank = 8, .shape = {7, 0, 7, 7, 7, 7, 7, 7}};
  dkv_metadata metadata[2] = {{"scale", "0.125"}, {"name", "\xe2\x88\x9e\t"}};
  EXPECT_OK(dkv_safetensors_write(path, list, DKV_DTYPES + 2, metadata, 2));
  dkv_safetensors file;
  EXPECT_OK(dkv_safetensors_open(&file, path));
  cr_assert(file.tensor_count == DKV_DTYPES + 2 && file.metadata_count == 2);
  for (int i = 0; i < DKV_DTYPES + 2; ++i) {
    const dkv_tensor *read = dkv_safetensors_find(&file, list[i].name);
    cr_assert(read != NULL && read->dtype == list[i].dtype && read->rank == list[i].rank, "tensor %d", i);
    cr_assert(memcmp(read->shape, list[i].shape, sizeof read->shape) == 0, "tensor %d", i);
    cr_assert(read->bytes == 0 || memcmp(read->data, list[i].data, (size_t)read->bytes) == 0, "tensor %d", i);
  }
  cr_assert_str_eq(dkv_safetensors_metadata(&file, "name"), "\xe2\x88\x9e\t");
  dkv_safetensors_close(&file);
}

Test(safetensors_write, begins_the_data_at_a_multiple_of_eight) {
  const char *path = file_path("padded.safetensors");
  for (int length = 1; length <= 9; ++length) {
    char name[10] = "";
    size_t size;
    memset(name, 'x', (size_t)length);
    dkv_tensor one = tensor(name);
    EXPECT_OK(dkv_safetensors_write(path, &one, 1, NULL, 0));
    unsigned char *bytes = file_read(path, &size);
    cr_assert(bytes[0] % 8 == 0 && size == 8u + bytes[0] + 256u * bytes[1] + 24u);
    free(bytes);
  }
}

Test(safetensors_write, writes_no_tensors_at_all) {
  dkv_safetensors file;
  EXPECT_OK(dkv_safetensors_write(file_path("empty"), NULL, 0, NULL, 0));
  EXPECT_OK(dkv_safetensors_open(&file, file_path("empty")));
  cr_assert(file.tensor_count == 0);
  dkv_safetensors_close(&file);
}

Test(safetensors_write, replaces_a_file_and_leaves_nothing_beside_it) {
  const char *path = file_path("twice");
  dkv_tensor one = tensor("a"), two = tensor("b");
  dkv_safetensors file;
  EXPECT_OK(dkv_safetensors_write(path, &one, 1, NULL, 0));
  EXPECT_OK(dkv_safetensors_write(path, &two, 1, NULL, 0));
  EXPECT_OK(dkv_safetensors_open(&file, path));
  cr_assert(file.tensor_count == 1 && dkv_safetensors_find(&file, "b") != NULL);
  dkv_safetensors_close(&file);
  cr_assert(file_count() == 1);
}

Test(safetensors_write, keeps_a_symbolic_link) {
  const char *path = file_path("target"), *link = file_path("link");
  struct stat info;
  dkv_tensor one = tensor("a");
  file_write(path, "old", 3);
  cr_assert(symlink(path, link) == 0);
  EXPECT_OK(dkv_safetensors_write(link, &one, 1, NULL, 0));
  cr_assert(lstat(link, &info) == 0 && S_ISLNK(info.st_mode));
  cr_assert(stat(path, &info) == 0 && info.st_size > 3);
}

/** A signal that ends the process in the middle of the content, like Ctrl-C or a kill, leaves nothing half written. */
Test(safetensors_write, leaves_the_old_file_when_the_process_is_killed) {
  const char *path = file_path("killed");
  void *zeros = calloc(1, 1 << 20);
  dkv_tensor large = {.name = "a", .dtype = DKV_U8, .rank = 1, .shape = {1 << 20}, .data = zeros};
  int how = 0;
  size_t size;
  file_write(path, "old", 3);
  pid_t child = fork();
  cr_assert(child >= 0);
  if (child == 0) { /* the limit's signal comes when 4096 bytes are out */
    signal(SIGXFSZ, SIG_DFL);
    (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    if (setrlimit(RLIMIT_FSIZE, &(struct rlimit){4096, 4096}) == 0)
      (void)dkv_safetensors_write(path, &large, 1, NULL, 0);
    _exit(0);
  }
  cr_assert(waitpid(child, &how, 0) == child && WIFSIGNALED(how) && WTERMSIG(how) == SIGXFSZ);
  char *bytes = file_read(path, &size);
  cr_assert(size == 3 && memcmp(bytes, "old", 3) == 0);
  cr_assert(file_count() == 1, "a temporary file was left behind");
  free(bytes);
  free(zeros);
}

/** The disk is full after 4096 bytes, as far as this process knows. */
Test(safetensors_write, leaves_the_old_file_when_the_disk_is_full) {
  const char *path = file_path("full");
  void *zeros = calloc(1, 1 << 20);
  dkv_tensor large = {.name = "a", .dtype = DKV_U8, .rank = 1, .shape = {1 << 20}, .data = zeros};
  size_t size;
  file_write(path, "old", 3);
  signal(SIGXFSZ, SIG_IGN);
  struct rlimit before;
  cr_assert(getrlimit(RLIMIT_FSIZE, &before) == 0);
  cr_assert(setrlimit(RLIMIT_FSIZE, &(struct rlimit){4096, before.rlim_max}) == 0);
  dkv_status status = dkv_safetensors_write(path, &large, 1, NULL, 0);
  cr_assert(setrlimit(RLIMIT_FSIZE, &before) == 0);
  cr_assert(status == DKV_ERR_IO && strstr(dkv_last_error(), "File too large") != NULL, "%s", dkv_last_error());
  char *bytes = file_read(path, &size);
  cr_assert(size == 3 && memcmp(bytes, "old", 3) == 0);
  cr_assert(file_count() == 1, "a temporary file was left behind");
  free(bytes);
  free(zeros);
}

Test(safetensors_write, refuses_places_that_are_no_regular_file) {
  const char *fifo = file_path("fifo"), *folder = file_path("folder"), *loop = file_path("loop");
  dkv_tensor one = tensor("a");
  cr_assert(mkfifo(fifo, 0600) == 0 && mkdir(folder, 0700) == 0);
  EXPECT_FAIL(DKV_ERR_IO, "not a regular file", dkv_safetensors_write(fifo, &one, 1, NULL, 0));
  EXPECT_FAIL(DKV_ERR_IO, "it is a directory", dkv_safetensors_write(folder, &one, 1, NULL, 0));
  EXPECT_FAIL(DKV_ERR_IO, "not a regular file", dkv_safetensors_write("/dev/null", &one, 1, NULL, 0));
  cr_assert(symlink(loop, loop) == 0);
  EXPECT_FAIL(DKV_ERR_IO, "symbolic links", dkv_safetensors_write(loop, &one, 1, NULL, 0));
  EXPECT_FAIL(DKV_ERR_IO, "its path is empty", dkv_safetensors_write("", &one, 1, NULL, 0));
  EXPECT_FAIL(DKV_ERR_IO, "No such file", dkv_safetensors_write(file_path("no/such/folder"), &one, 1, NULL, 0));
  cr_assert(file_count() == 3);
}

Test(safetensors_write, refuses_what_could_not_be_read_back) {
  const char *path = file_path("never");
  dkv_tensor list[2] = {tensor("a"), tensor("a")};
  dkv_metadata metadata[2] = {{"k", "1"}, {"k", "2"}};
  EXPECT_FAIL(DKV_ERR_RANGE, "the tensor \"a\" occurs twice", dkv_safetensors_write(path, list, 2, NULL, 0));
  EXPECT_FAIL(DKV_ERR_RANGE, "the metadata key \"k\" occurs twice", dkv_safetensors_write(path, list, 1, metadata, 2));
  list[0].name = "__metadata__";
  EXPECT_FAIL(DKV_ERR_RANGE, "__metadata__", dkv_safetensors_write(path, list, 1, NULL, 0));
  list[0] = tensor("a");
  list[0].rank = 9;
  EXPECT_FAIL(DKV_ERR_RANGE, "rank 9", dkv_safetensors_write(path, list, 1, NULL, 0));
  list[0].rank = -1;
  EXPECT_FAIL(DKV_ERR_RANGE, "rank -1", dkv_safetensors_write(path, list, 1, NULL, 0));
  list[0] = tensor("a");
  list[0].shape[1] = -3;
  EXPECT_FAIL(DKV_ERR_RANGE, "dimension 1 of tensor \"a\" is -3", dkv_safetensors_write(path, list, 1, NULL, 0));
  list[0].shape[0] = list[0].shape[1] = INT64_C(1) << 40;
  EXPECT_FAIL(DKV_ERR_RANGE, "more than 2^63 bytes", dkv_safetensors_write(path, list, 1, NULL, 0));
  list[0] = tensor("a");
  list[0].dtype = DKV_DTYPES;
  EXPECT_FAIL(DKV_ERR_RANGE, "unknown dtype", dkv_safetensors_write(path, list, 1, NULL, 0));
  EXPECT_FAIL(DKV_ERR_RANGE, "-1 tensors", dkv_safetensors_write(path, list, -1, NULL, 0));
  EXPECT_FAIL(DKV_ERR_RANGE, "-2 metadata", dkv_safetensors_write(path, list, 1, metadata, -2));
  cr_assert(file_count() == 0);
}

Test(safetensors_write, refuses_null_arguments) {
  const char *path = file_path("never");
  dkv_tensor one = tensor("a");
  dkv_metadata metadata = {NULL, "x"};
  EXPECT_FAIL(DKV_ERR_NULL, "path", dkv_safetensors_write(NULL, &one, 1, NULL, 0));
  EXPECT_FAIL(DKV_ERR_NULL, "tensors", dkv_safetensors_write(path, NULL, 1, NULL, 0));
  EXPECT_FAIL(DKV_ERR_NULL, "metadata", dkv_safetensors_write(path, &one, 1, NULL, 1));
  EXPECT_FAIL(DKV_ERR_NULL, "no key", dkv_safetensors_write(path, &one, 1, &metadata, 1));
  one.data = NULL;
  EXPECT_FAIL(DKV_ERR_NULL, "\"a\" has no data", dkv_safetensors_write(path, &one, 1, NULL, 0));
  one.name = NULL;
  EXPECT_FAIL(DKV_ERR_NULL, "name is NULL", dkv_safetensors_write(path, &one, 1, NULL, 0));
  cr_assert(file_count() == 0);
}
