/**
 * @file counted.h
 * @brief The loops of the tiled kernels, counting what they would do instead of doing it: arithmetic, and bytes from
 * memory.
 *
 * Count a packed layout and its replicated twin: the same loop, so the difference is what sharing the prompt saves.  In
 * the packed layout a key tile of the prompt is loaded by the query tiles of all responses, but it exists once; in the
 * replicated one each copy is loaded by its own response.
 *
 * Bytes are those of a machine whose cache holds one thread's tiles and nothing else: what a tile loads comes from
 * memory.
 *
 * Read before: tile.h.  Read next: tests/test_counted.c.
 */
#ifndef DKV_COUNTED_H
#define DKV_COUNTED_H

#include "common/attention.h"

DKV_BEGIN_C

/** What one call does, over all heads. */
typedef struct dkv_counted {
  int64_t query_tiles;   /**< tasks: (key head, query tile) */
  int64_t key_loads;     /**< (query tile, key tile) pairs visited: times that a key tile is loaded */
  int64_t full_panels;   /**< panels met by a key tile without mask code */
  int64_t masked_panels; /**< panels met with mask code */
  int64_t useful_pairs;  /**< visible (query row, key) pairs of all H heads */
  int64_t issued_pairs;  /**< pairs that the score product computes, masked ones included */
  double useful_flops;   /**< dkv_attention_flops */
  double issued_flops;   /**< of all products, masked pairs included */
  double query_bytes;    /**< what belongs to query rows: q, o, lse; backward: dout and dq too */
  double key_bytes;      /**< k and v, once for each key_load */
  double sum_bytes;      /**< backward: dk and dv in f32, read and written at each turn, and their last rounding */
} dkv_counted;

/**
 * Walks the loop of the tiled kernel of one direction.  Of the problem the layout, sizes and type are read, no tensor.
 * @param[out] out       overwritten
 * @param[out] reads     [ceil(T / 128)] overwritten: how many query tiles of one key head load each key tile; NULL
 * allowed
 * @param[in]  problem   shapes; dtype f32, bf16 or f16
 * @param[in]  direction forward or backward
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE, DKV_ERR_SHAPE (as dkv_attention_check); DKV_ERR_UNSUPPORTED
 */
dkv_status dkv_count_tiled(dkv_counted *out, int64_t *reads, const dkv_attention *problem, dkv_direction direction);

DKV_END_C
#endif
