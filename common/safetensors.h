/**
 * @file safetensors.h
 * @brief Reads and writes safetensors: 8 bytes of header length, a JSON header, raw little-endian tensors.
 *
 * Reading maps the file, so a tensor costs no copy and no allocation; the header is parsed by cJSON.  A file that is
 * truncated, oversized, overlapping, wrongly typed or absurd gives one sentence, before anything large is allocated.
 *
 * Ownership: dkv_safetensors owns the mapping and the tensor table; tensors point into it.
 *
 * Read before: dtype.h.  Read next: problem.h.
 */
#ifndef DKV_SAFETENSORS_H
#define DKV_SAFETENSORS_H

#include "common/dtype.h"

DKV_BEGIN_C

/** Most dimensions of a tensor. */
#define DKV_MAX_RANK 8
/** Most bytes of a header. */
#define DKV_MAX_HEADER (INT64_C(100) << 20)

/** One tensor: a name, a type, a shape, the bytes. */
typedef struct dkv_tensor {
  const char *name;            /**< NUL-terminated */
  dkv_dtype dtype;             /**< element type */
  int32_t rank;                /**< dimensions, 0 to DKV_MAX_RANK */
  int64_t shape[DKV_MAX_RANK]; /**< sizes, each >= 0 */
  const void *data; /**< row-major elements (aligned as the file has them: read through memcpy or dkv_element) */
  int64_t bytes;    /**< product of shape times element size */
} dkv_tensor;

/** A key and a value of the file's metadata. */
typedef struct dkv_metadata {
  const char *key;   /**< NUL-terminated */
  const char *value; /**< NUL-terminated */
} dkv_metadata;

/** An open file. */
typedef struct dkv_safetensors {
  int32_t tensor_count;   /**< number of tensors */
  dkv_tensor *tensors;    /**< in order of their offsets */
  int32_t metadata_count; /**< number of metadata entries */
  dkv_metadata *metadata; /**< the __metadata__ entries */
  void *mapping;          /**< the whole file, read-only */
  size_t mapping_bytes;   /**< its size */
  void *header;           /**< the parsed header (private) */
} dkv_safetensors;

/**
 * Opens a file for reading.
 * @param[out] out  overwritten; zeroed on failure
 * @param[in]  path the file
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_IO (cannot open, not a regular file); DKV_ERR_FORMAT (what, which tensor, which
 * rule); DKV_ERR_NOMEM
 */
dkv_status dkv_safetensors_open(dkv_safetensors *out, const char *path);

/**
 * The same from memory, which must outlive *out (for tests and the fuzzer).
 * @param[out] out   overwritten; zeroed on failure
 * @param[in]  bytes the file's content
 * @param[in]  size  its size
 * @param[in]  name  what sentences call it
 * @return as dkv_safetensors_open
 */
dkv_status dkv_safetensors_parse(dkv_safetensors *out, const void *bytes, size_t size, const char *name);

/** Unmaps and frees; accepts a zeroed struct. @param[in,out] file zeroed afterwards. */
void dkv_safetensors_close(dkv_safetensors *file);

/** Finds a tensor by name. @param[in] file an open file. @param[in] name its name. @return it, or NULL. */
const dkv_tensor *dkv_safetensors_find(const dkv_safetensors *file, const char *name);

/** Finds a metadata value. @param[in] file an open file. @param[in] key its key. @return the value, or NULL. */
const char *dkv_safetensors_metadata(const dkv_safetensors *file, const char *key);

/**
 * Writes a file atomically: a temporary file beside it, fsync, rename.  On failure the old file is untouched.
 * @param[in] path           where
 * @param[in] tensors        [tensor_count] name, dtype, rank, shape, data (bytes is computed)
 * @param[in] tensor_count   number of tensors
 * @param[in] metadata       [metadata_count], may be NULL when 0
 * @param[in] metadata_count number of entries
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE (rank, negative size, two tensors of one name); DKV_ERR_IO; DKV_ERR_NOMEM
 */
dkv_status dkv_safetensors_write(const char *path, const dkv_tensor *tensors, int32_t tensor_count,
                                 const dkv_metadata *metadata, int32_t metadata_count);

DKV_END_C
#endif
