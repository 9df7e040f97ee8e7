/**
 * @file test_safetensors.c
 * @brief Safetensors files: what is written is read back, and every broken file gets one sentence and no memory.
 *
 * Read before: common/safetensors.h, tests/support/files.h.  Read next: tests/test_safetensors_write.c.
 */
#include "common/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/expect.h"
#include "tests/support/files.h"
#include "tests/support/memory.h"

/** Opens a file that must be refused as DKV_ERR_FORMAT, in one line that names the file, and leaves *out zeroed. */
static void expect_refused(const char *path, const char *fragment) {
  static const dkv_safetensors zero;
  dkv_safetensors file;
  memset(&file, 0xff, sizeof file);
  dkv_status status = dkv_safetensors_open(&file, path);
  cr_assert(status == DKV_ERR_FORMAT, "expected \"%s\", got %s: %s", fragment, dkv_status_name(status),
            status == DKV_OK ? "it opened" : dkv_last_error());
  cr_assert(strstr(dkv_last_error(), fragment) != NULL, "the sentence \"%s\" lacks \"%s\"", dkv_last_error(), fragment);
  cr_assert(strncmp(dkv_last_error(), path, strlen(path)) == 0 && strchr(dkv_last_error(), '\n') == NULL);
  cr_assert(memcmp(&file, &zero, sizeof zero) == 0);
}

/** A broken file: header text, bytes of data behind it, a piece of the sentence. */
struct broken {
  const char *header;
  size_t data;
  const char *fragment;
};

/** Writes and opens each. */
static void expect_all_refused(const struct broken *list, size_t count) {
  const char *path = file_path("broken.safetensors");
  for (size_t i = 0; i < count; ++i) {
    file_write_header(path, list[i].header, NULL, list[i].data);
    expect_refused(path, list[i].fragment);
  }
}
#define EXPECT_ALL_REFUSED(list) expect_all_refused(list, sizeof list / sizeof list[0])

Test(safetensors, reads_every_type_rank_and_size) {
  const char *path = file_path("all.safetensors"),
             *header = "{\"__metadata__\":{\"a\":\"1\",\"\\u00e9\":\"\"},"
                       "\"f32\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                       "\"bf16\":{\"dtype\":\"BF16\",\"shape\":[1,1,1,1,1,1,1,3],\"data_offsets\":[8,14]},"
                       "\"f16\":{\"data_offsets\":[14,16],\"shape\":[],\"dtype\":\"F16\"},"
                       "\"none\":{\"dtype\":\"I64\",\"shape\":[0,4294967296],\"data_offsets\":[16,16]},"
                       "\"f64\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[16,24]},"
                       "\"i32\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[24,28]},"
                       "\"i64\":{\"dtype\":\"I64\",\"shape\":[1e0],\"data_offsets\":[28,36]},"
                       "\"u8\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[36,39]}}   \n";
  dkv_safetensors file;
  file_write_header(path, header, NULL, 39);
  EXPECT_OK(dkv_safetensors_open(&file, path));
  cr_assert(file.tensor_count == 8 && file.metadata_count == 2);
  cr_assert_str_eq(dkv_safetensors_metadata(&file, "a"), "1");
  cr_assert_str_eq(dkv_safetensors_metadata(&file, "\xc3\xa9"), "");
  cr_assert(dkv_safetensors_metadata(&file, "b") == NULL && dkv_safetensors_find(&file, "f8") == NULL);
  const dkv_tensor *bf16 = dkv_safetensors_find(&file, "bf16"), *f16 = dkv_safetensors_find(&file, "f16");
  cr_assert(bf16->dtype == DKV_BF16 && bf16->rank == 8 && bf16->shape[7] == 3 && bf16->bytes == 6);
  cr_assert(f16->rank == 0 && f16->bytes == 2 && dkv_safetensors_find(&file, "none")->bytes == 0);
  dkv_safetensors_close(&file);
  dkv_safetensors_close(&file); /* a closed file may be closed again */
}

Test(safetensors, lists_tensors_in_the_order_of_their_data) {
  const char *path = file_path("order.safetensors");
  dkv_safetensors file;
  file_write_header(path,
                    "{\"last\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[3,5]},"
                    "\"first\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}",
                    "abcde", 5);
  EXPECT_OK(dkv_safetensors_open(&file, path));
  cr_assert_str_eq(file.tensors[0].name, "first");
  cr_assert_str_eq(file.tensors[1].name, "last");
  cr_assert(memcmp(file.tensors[1].data, "de", 2) == 0);
  dkv_safetensors_close(&file);
}

/** The data begin where the header ends: at any address. Under UBSan a plain load would end this test. */
Test(safetensors, reads_unaligned_data) {
  const double pi = 3.14159265358979;
  char data[9] = {7};
  dkv_safetensors file;
  memcpy(data + 1, &pi, sizeof pi);
  file_write_header(file_path("odd.safetensors"),
                    "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                    "\"pi\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[1,9]}}",
                    data, sizeof data);
  EXPECT_OK(dkv_safetensors_open(&file, file_path("odd.safetensors")));
  double read = dkv_element(dkv_safetensors_find(&file, "pi")->data, DKV_F64, 0);
  cr_assert(memcmp(&read, &pi, sizeof pi) == 0);
  dkv_safetensors_close(&file);
}

Test(safetensors, opens_a_file_without_tensors) {
  dkv_safetensors file;
  file_write_header(file_path("none.safetensors"), "{}", NULL, 0);
  EXPECT_OK(dkv_safetensors_open(&file, file_path("none.safetensors")));
  cr_assert(file.tensor_count == 0 && file.metadata_count == 0);
  dkv_safetensors_close(&file);
}

Test(safetensors, refuses_truncated_files) {
  const char *path = file_path("short.safetensors"), *cut = file_path("cut.safetensors");
  size_t size;
  file_write_header(path, "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", NULL, 8);
  char *bytes = file_read(path, &size);
  for (size_t keep = 0; keep < size; ++keep) { /* every length: sizes, header and data cut anywhere */
    file_write(cut, bytes, keep);
    expect_refused(cut, "");
  }
  free(bytes);
}

Test(safetensors, refuses_headers_of_absurd_length) {
  const char *path = file_path("long.safetensors");
  static const unsigned char lengths[][8] = {{0, 0, 0, 0, 0, 0, 0, 0x80},
                                             {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
                                             {0, 0, 0, 0, 0, 0, 0, 0x7f},
                                             {1, 0, 0x40, 6, 0, 0, 0, 0}};
  limit_memory((size_t)64 << 20);
  for (size_t i = 0; i < 4; ++i) {
    file_write(path, lengths[i], 8);
    expect_refused(path, "the header claims");
  }
  static const unsigned char behind_the_end[10] = {3, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
  file_write(path, behind_the_end, 10);
  expect_refused(path, "only 2 follow");
  static const unsigned char empty[8] = {0};
  file_write(path, empty, 8);
  expect_refused(path, "does not begin with '{'");
}

Test(safetensors, refuses_headers_that_are_no_json_object) {
  static const struct broken list[] = {
      {"[]", 0, "does not begin with '{'"},
      {" {}", 0, "does not begin with '{'"},
      {"\xef\xbb\xbf{}", 0, "does not begin with '{'"},
      {"{", 0, "end inside"},
      {"{\"a", 0, "end inside"},
      {"{\"a\\", 0, "end inside"},
      {"{\"1\":1,", 0, "end inside"},
      {"{]", 0, "not JSON"},
      {"{}x", 0, "no blank"},
      {"{}}", 0, "no blank"},
      {"{}{}", 0, "no blank"},
      {"{a:1}", 0, "not JSON"},
      {"{\"a\":}", 0, "not JSON"},
      {"{\"a\":NaN}", 0, "not JSON"},
      {"{\"a\":1,}", 0, "not JSON"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[[[[1]]]],\"data_offsets\":[0,4]}}", 4, "nests deeper than 3"},
      {"{\"a\\u0000b\":{}}", 0, "escaped NUL"},
      {"{\"a\nb\":{}}", 0, "control character"},
      {"{\"a\":\"\\ud800\"}", 0, "not JSON"},
  };
  EXPECT_ALL_REFUSED(list);
}

Test(safetensors, refuses_deep_and_long_headers_without_memory) {
  enum { SIZE = 8 << 20 };
  char *header = malloc(SIZE + 1);
  const char *path = file_path("deep.safetensors");
  memset(header, '[', SIZE);
  memcpy(header, "{\"a\":", 5);
  header[SIZE] = '\0';
  file_write_header(path, header, NULL, 0);
  bool limited = limit_memory((size_t)64 << 20);
  expect_refused(path, "nests deeper");
  for (int i = 6; i < SIZE; i += 2) memcpy(header + i, "0,", 2); /* four million numbers, 300 MB as a tree */
  header[5] = '[';
  file_write_header(path, header, NULL, 0);
  expect_refused(path, "more than 1048576 values");
  if (!limited) fprintf(stderr, "the memory limit was not set\n");
  free(header);
}

Test(safetensors, refuses_wrong_entries) {
  static const struct broken list[] = {
      {"{\"a\":1}", 0, "no object"},
      {"{\"a\":{}}", 0, "lacks one of"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "lacks one of"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, "a key \"x\""},
      {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "\"dtype\" twice"},
      {"{\"a\":{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype that is no string"},
      {"{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "dtype \"F8_E4M3\""},
      {"{\"a\":{\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype \"f32\""},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":4,\"data_offsets\":[0,4]}}", 4, "shape that is no array"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1, "more than 8 dimensions"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[-4],\"data_offsets\":[0,4]}}", 4, "dimension 0 of tensor \"a\""},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,2.5],\"data_offsets\":[0,4]}}", 4, "dimension 1 of tensor \"a\""},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1e300],\"data_offsets\":[0,4]}}", 4, "is not a whole number"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1e999],\"data_offsets\":[0,4]}}", 4, "is not a whole number"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[\"4\"],\"data_offsets\":[0,4]}}", 4, "is not a whole number"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[null],\"data_offsets\":[0,4]}}", 4, "is not a whole number"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4]}}", 4, "not two whole numbers"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,2,4]}}", 4, "not two whole numbers"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[-1,3]}}", 4, "not two whole numbers"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0.5,4.5]}}", 4, "not two whole numbers"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,0]}}", 4, "before it begins"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, "need 16"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1000000000000],\"data_offsets\":[0,4]}}", 4, "need 4000000000000"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1000000000000],\"data_offsets\":[0,4000000000000]}}", 4, "has only 4"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,4]}}", 4, "more than 2^63"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0,4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, "more than 2^63"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[9007199254740993],\"data_offsets\":[0,4]}}", 4, "need "},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,4]}}", 4, "need 0"},
  };
  limit_memory((size_t)64 << 20);
  EXPECT_ALL_REFUSED(list);
}

Test(safetensors, refuses_gaps_overlaps_and_leftovers) {
  static const struct broken list[] = {
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[1,5]}}", 5, "begins at byte 1 of the data, but 0"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
       "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[3,5]}}",
       5, "begins at byte 3 of the data, but 2"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
       "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
       4, "still taken"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
       "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
       4, "still taken"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 3, "the file has only 3"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 5, "the file has 5"},
      {"{}", 1, "the file has 1"},
  };
  EXPECT_ALL_REFUSED(list);
}

Test(safetensors, refuses_names_and_metadata_that_are_wrong) {
  static const struct broken list[] = {
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
       "\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
       0, "the tensor \"a\" occurs twice"},
      {"{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "the metadata key \"k\" occurs twice"},
      {"{\"__metadata__\":{\"k\":1}}", 0, "the value of metadata \"k\" is no string"},
      {"{\"__metadata__\":{\"k\":null}}", 0, "is no string"},
      {"{\"__metadata__\":[]}", 0, "no object of strings"},
      {"{\"__metadata__\":\"scale\"}", 0, "no object of strings"},
      {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ twice"},
  };
  EXPECT_ALL_REFUSED(list);
}

/** A name may hold a terminal's control sequences; the sentence must not. */
Test(safetensors, shows_no_control_characters_of_a_name) {
  const char *path = file_path("escape.safetensors");
  file_write_header(path, "{\"\\u001b[31m red and very long, so long that it must be cut somewhere, or else\":1}", NULL,
                    0);
  expect_refused(path, "?[31m red");
  cr_assert(strchr(dkv_last_error(), '\x1b') == NULL && strstr(dkv_last_error(), "...") != NULL);
}

Test(safetensors, refuses_what_is_not_a_regular_file) {
  dkv_safetensors file;
  const char *fifo = file_path("fifo"), *folder = file_path("folder");
  cr_assert(mkfifo(fifo, 0600) == 0 && mkdir(folder, 0700) == 0);
  EXPECT_FAIL(DKV_ERR_IO, "not a regular file", dkv_safetensors_open(&file, fifo)); /* and does not wait for a writer */
  EXPECT_FAIL(DKV_ERR_IO, "it is a directory", dkv_safetensors_open(&file, folder));
  EXPECT_FAIL(DKV_ERR_IO, "not a regular file", dkv_safetensors_open(&file, "/dev/zero"));
  EXPECT_FAIL(DKV_ERR_IO, "its path is empty", dkv_safetensors_open(&file, ""));
  EXPECT_FAIL(DKV_ERR_IO, "No such file", dkv_safetensors_open(&file, file_path("missing")));
  EXPECT_FAIL(DKV_ERR_IO, "Not a directory", dkv_safetensors_open(&file, "/dev/null/x"));
}

Test(safetensors, parses_memory_like_a_file) {
  static const char bytes[] =
      "\x40\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}           hi";
  dkv_safetensors file;
  cr_assert(sizeof bytes - 1 == 8 + 64 + 2);
  EXPECT_OK(dkv_safetensors_parse(&file, bytes, sizeof bytes - 1, "memory"));
  cr_assert(file.mapping == NULL && file.tensors[0].data == bytes + 72);
  dkv_safetensors_close(&file);
  EXPECT_FAIL(DKV_ERR_FORMAT, "memory: 3 bytes", dkv_safetensors_parse(&file, bytes, 3, "memory"));
  EXPECT_FAIL(DKV_ERR_FORMAT, "memory: 0 bytes", dkv_safetensors_parse(&file, NULL, 0, "memory"));
}

Test(safetensors, refuses_null_arguments) {
  dkv_safetensors file;
  EXPECT_FAIL(DKV_ERR_NULL, "out", dkv_safetensors_open(NULL, "x"));
  EXPECT_FAIL(DKV_ERR_NULL, "path", dkv_safetensors_open(&file, NULL));
  EXPECT_FAIL(DKV_ERR_NULL, "out", dkv_safetensors_parse(NULL, "x", 1, "x"));
  EXPECT_FAIL(DKV_ERR_NULL, "bytes", dkv_safetensors_parse(&file, NULL, 1, "x"));
  EXPECT_FAIL(DKV_ERR_NULL, "name", dkv_safetensors_parse(&file, "x", 1, NULL));
  cr_assert(dkv_safetensors_find(NULL, "a") == NULL && dkv_safetensors_metadata(NULL, "a") == NULL);
  dkv_safetensors_close(NULL);
}
