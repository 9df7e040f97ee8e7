/**
 * @file pack.h
 * @brief Packed and replicated hold the same information: gather rows one way, add up gradients the other way.
 *
 * `row_map[r]` is the packed row behind replicated row r (dkv_layout_replicate).  Activations are copied (unpack),
 * gradients of copies are summed (fold), token ids are checked to agree (pack).  Also here: which row predicts which
 * token.
 *
 * Read before: layout.h.
 */
#ifndef DKV_PACK_H
#define DKV_PACK_H

#include "common/dtype.h"
#include "common/layout.h"

DKV_BEGIN_C

/**
 * Token ids: replicated to packed, refusing prompts that are not equal.
 * @param[out] packed          [packed_rows] overwritten
 * @param[in]  packed_rows     T
 * @param[in]  replicated      [replicated_rows] token ids
 * @param[in]  row_map         [replicated_rows]
 * @param[in]  replicated_rows rows of the replicated layout
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE (a map entry outside 0..T-1, or a packed row that no entry names);
 *         DKV_ERR_MISMATCH (two copies of a row differ: rows and ids named); DKV_ERR_NOMEM.  On failure packed is
 *         untouched
 */
dkv_status dkv_pack_ids(int32_t *packed, int32_t packed_rows, const int32_t *replicated, const int32_t *row_map,
                        int32_t replicated_rows);

/**
 * Rows of any kind: packed to replicated, replicated[r] = packed[row_map[r]].
 * @param[out] replicated      [replicated_rows][row_bytes] overwritten
 * @param[in]  packed          [T][row_bytes]
 * @param[in]  row_bytes       bytes of one row
 * @param[in]  row_map         [replicated_rows]
 * @param[in]  replicated_rows rows
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE (replicated_rows < 0, or a negative map entry: nothing is written)
 */
dkv_status dkv_unpack_rows(void *replicated, const void *packed, size_t row_bytes, const int32_t *row_map,
                           int32_t replicated_rows);

/**
 * Gradients: packed[t] = sum over r with row_map[r] = t of replicated[r], in double, in ascending r, rounded once.
 * @param[out] packed          [T][width] of type `dtype`, overwritten (rows that nothing maps to become 0)
 * @param[in]  packed_rows     T
 * @param[in]  replicated      [replicated_rows][width] of type `dtype`
 * @param[in]  width           elements of one row
 * @param[in]  dtype           f32, bf16, f16 or f64
 * @param[in]  row_map         [replicated_rows]
 * @param[in]  replicated_rows rows
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE (a negative size, or a map entry outside 0..T-1: nothing is written);
 *         DKV_ERR_UNSUPPORTED (integer dtype); DKV_ERR_NOMEM
 */
dkv_status dkv_fold_rows(void *packed, int32_t packed_rows, const void *replicated, int64_t width, dkv_dtype dtype,
                         const int32_t *row_map, int32_t replicated_rows);

/** One supervised token: the logits of row `source` predict the token of row `target`. */
typedef struct dkv_prediction {
  int32_t source;  /**< packed row whose logits are used: the previous row on the path */
  int32_t target;  /**< packed row whose token is predicted */
  int32_t segment; /**< segment of target: the response */
} dkv_prediction;

/**
 * The prediction pairs of all non-root segments, in row order of the targets: exactly R_i per response.  The last
 * prompt row is the source of the first token of every response, so it occurs N times and its gradient is a sum of N.
 * A segment whose ancestors are all empty has no source for its first token; that one pair is left out.
 * @param[out] out    a malloc'd [*count] array, NULL when there is none; free() it
 * @param[out] count  pairs
 * @param[in]  layout any layout
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_NOMEM
 */
dkv_status dkv_predictions(dkv_prediction **out, int32_t *count, const dkv_layout *layout);

DKV_END_C
#endif
