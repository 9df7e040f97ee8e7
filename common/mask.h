/**
 * @file mask.h
 * @brief Who may see whom, in one line; gcc and nvcc compile the same line, so the CPU tests prove what the GPU runs.
 *
 * `end[j]` is one past the last packed row of the subtree of row j's segment.  Row i sees row j exactly when j is not
 * later than i and i lies inside that subtree.  This is causality, isolation of sibling responses, isolation of groups
 * and tree ancestry at once (the proof is in docs/equivalence.md; tests/test_mask.c checks it against ancestry by
 * brute force).
 *
 * Read before: layout.h.  Read next: tiles.h, cpu/attention/ref_fwd.c.
 */
#ifndef DKV_MASK_H
#define DKV_MASK_H

#include "common/base.h"

/**
 * The visibility rule: does packed row i see packed row j?
 * @param[in] i     query row, 0 to T-1
 * @param[in] j     key row, 0 to T-1
 * @param[in] end_j end[j] of the layout: one past the last row of the subtree of j's segment
 * @return whether key j belongs to the softmax of query i
 */
DKV_HD static inline bool dkv_sees(int32_t i, int32_t j, int32_t end_j) { return j <= i && i < end_j; }

#endif
