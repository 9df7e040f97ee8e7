/**
 * @file files.h
 * @brief Files for tests: a folder of its own that disappears, and safetensors files with any header, sound or not.
 *
 * Read before: common/safetensors.h.
 */
#ifndef DKV_TESTS_FILES_H
#define DKV_TESTS_FILES_H

#include <stddef.h>

/**
 * Path of a file in this test's own folder, which is made on first use and removed with all it holds when the test's
 * process ends.
 * @param[in] name a file name
 * @return one of eight static buffers, used in turn
 */
const char *file_path(const char *name);

/** Number of files in that folder. */
int file_count(void);

/**
 * Writes bytes.
 * @param[in] path  where
 * @param[in] bytes content
 * @param[in] size  its size
 */
void file_write(const char *path, const void *bytes, size_t size);

/**
 * Writes header length, header, and `size` bytes of data (zeros when data is NULL).
 * @param[in] path   where
 * @param[in] header JSON text, sound or not
 * @param[in] data   may be NULL
 * @param[in] size   bytes of data
 */
void file_write_header(const char *path, const char *header, const void *data, size_t size);

/** Reads a whole file. @param[in] path which. @param[out] size its size. @return malloc'd content. */
void *file_read(const char *path, size_t *size);

#endif
