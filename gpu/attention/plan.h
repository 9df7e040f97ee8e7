/**
 * @file plan.h
 * @brief The layout as a kernel sees it: for a tile of query rows its key spans, for a tile of keys its one query
 *   range.
 *
 * Query tile [i0, i1): the keys are a few contiguous spans (a group: the prompt, then the own response up to i1; a
 * tree: one for each ancestor that does not touch the next).  Going up a chain of ancestors `end` never decreases, so
 * the keys that every row of the tile sees are a prefix of the spans: each span is a run of full steps, then a run of
 * masked ones.
 *
 *     span   begin ........ full_end ........ end
 *            | no mask code | rule dkv_sees |             full_end - begin is a multiple of the key step
 *
 * Key tile [j0, j1): the queries are one range, on a fixed grid of query tiles; the full ones lie in the middle.
 *
 *     query_begin ... full_begin ........... full_end ... query_end
 *     | masked        | no mask code         | masked   |
 *
 * Tiles straddle segments and groups freely; no row is padded.  The plan is built on the host by prepare() and copied
 * into the workspace; sizes and addresses follow from T and the depth alone, since a tile has at most one span for each
 * segment on its first row's path.
 *
 * Read before: common/tiles.h.  Read next: fwd_3_shared.cu.
 */
#ifndef DKV_GPU_PLAN_H
#define DKV_GPU_PLAN_H

#include "common/layout.h"
#include "gpu/runtime/device.h"

/** Tile sizes of a kernel. Zero rows (or zero keys) leaves that half of the plan out. */
struct dkv_gpu_tiling {
  int32_t query_rows; /**< rows of a query tile */
  int32_t query_step; /**< keys that such a tile takes at a time */
  int32_t key_rows;   /**< keys of a key tile */
  int32_t key_step;   /**< query rows that such a tile takes at a time; the grid starts at row 0 */
};

/** A contiguous range of keys of a query tile. */
struct dkv_gpu_span {
  int32_t begin;    /**< first key */
  int32_t full_end; /**< end of the keys that every row of the tile sees, a whole number of steps from begin */
  int32_t end;      /**< end of the span: from full_end on, rule dkv_sees decides */
};

/** The queries of a key tile; all but query_end on the grid of key_step. */
struct dkv_gpu_queries {
  int32_t query_begin; /**< first grid row */
  int32_t full_begin;  /**< first row of the steps without mask code */
  int32_t full_end;    /**< end of those */
  int32_t query_end;   /**< one past the last row that sees a key of the tile */
};

/** The plan in device memory. */
struct dkv_gpu_plan {
  const int32_t *end;             /**< [T] rule of mask.h */
  const dkv_gpu_queries *queries; /**< [key_tiles] */
  const int32_t *key_order;       /**< [key_tiles] key tiles, longest range first */
  const int32_t *span_first;      /**< [query_tiles + 1] spans of tile t: span_first[t] .. span_first[t + 1] */
  const int32_t *query_order;     /**< [query_tiles] query tiles, most keys first */
  const dkv_gpu_span *spans;      /**< all spans */
  int32_t query_tiles;            /**< number of query tiles */
  int32_t key_tiles;              /**< number of key tiles */
};

/**
 * Bytes of a plan; looks at T and the depth only.
 * @param[in] layout any layout
 * @param[in] tiling the kernel's tiles
 * @return bytes
 */
size_t dkv_gpu_plan_bytes(const dkv_layout *layout, dkv_gpu_tiling tiling);

/**
 * Builds a plan and copies it to the device; returns when it is there.
 * @param[in]  layout any layout with T > 0
 * @param[in]  tiling the kernel's tiles
 * @param[out] memory device memory of dkv_gpu_plan_bytes bytes, 16-byte aligned
 * @param[in]  stream a cudaStream_t
 * @return DKV_OK; DKV_ERR_NOMEM (host); DKV_ERR_RANGE (more than 2^31 spans); DKV_ERR_CUDA
 */
dkv_status dkv_gpu_plan_upload(const dkv_layout *layout, dkv_gpu_tiling tiling, void *memory, void *stream);

/**
 * Addresses of a plan's arrays.
 * @param[in] rows   T of the layout that it was built from
 * @param[in] tiling the kernel's tiles
 * @param[in] memory its start
 * @return the view
 */
dkv_gpu_plan dkv_gpu_plan_view(int32_t rows, dkv_gpu_tiling tiling, const void *memory);

#endif
