/**
 * @file json_file.h
 * @brief Small JSON files: read whole, written whole or not at all.
 *
 * Read before: common/status.h.  Read next: config.c, checkpoint.c.
 */
#ifndef DKV_MODEL_JSON_FILE_H
#define DKV_MODEL_JSON_FILE_H

#include <cjson/cJSON.h>

#include "common/status.h"

/** Largest JSON file that is read: an index of a thousand shards is far below it. */
#define DKV_MAX_JSON (INT64_C(64) << 20)

/** Is there something at this path? @param[in] path a path. @return true when stat succeeds. */
bool dkv_file_exists(const char *path);

/**
 * Reads and parses a JSON file whose root is an object.
 * @param[out] out  the tree, cJSON_Delete() it; NULL on failure
 * @param[in]  path the file
 * @return DKV_OK; DKV_ERR_IO; DKV_ERR_FORMAT (too large, not JSON, not an object); DKV_ERR_NOMEM
 */
dkv_status dkv_json_load(cJSON **out, const char *path);

/**
 * Writes a text file atomically: a temporary file beside it, fsync, rename. A device, a pipe or a folder is refused:
 * the rename would take its place.
 * @param[in] path where
 * @param[in] text NUL-terminated; a newline is added
 * @return DKV_OK; DKV_ERR_IO; DKV_ERR_NOMEM
 */
dkv_status dkv_text_save(const char *path, const char *text);

#endif
