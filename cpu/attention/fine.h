/**
 * @file fine.h
 * @brief Scores of hundreds in f32 storage: where a float would lose what the weights need, scores are taken in double.
 *
 * A score of 200 in a float is off by up to 8e-6, a sum of 64 products by more, and so is the weight exp(s - lse), and
 * the stored lse itself.  The forward does not mind: its weights are divided by their own sum.  The backward has only
 * lse and o to hold on to, and dP - delta magnifies what does not fit together.  So where |lse| is 32 or more
 * the backward takes s - lse in double, and the row's sums from these weights (dkv_mend_large_scores).  16-bit
 * storage does not need it.
 *
 * Read before: tiled_bwd.h.  Read next: fine.c.
 */
#ifndef DKV_FINE_H
#define DKV_FINE_H

#include "cpu/attention/tiled_bwd.h"

/** Is lse so large that a float shows (half a unit in its last place is 2e-6), yet small enough to mean something? */
static inline bool lse_is_coarse(float lse) {
  const float size = lse < 0.0f ? -lse : lse;
  return size >= 32.0f && size < 65536.0f;
}

/**
 * s - lse, summed in double, for the lanes of one panel whose shift is not their lse.
 * @param[in,out] s      [keys][stride] one panel of lanes; other lanes stay
 * @param[in]     stride floats from key to key
 * @param[in]     k      [keys][D]
 * @param[in]     q      [D][DKV_PANEL] scaled queries, transposed
 * @param[in]     keys   number of keys
 * @param[in]     D      head size
 * @param[in]     lse    [DKV_PANEL]
 * @param[in]     shift  [DKV_PANEL] lse, or 0 for a lane to be taken
 */
static inline void fine_scores(float *s, size_t stride, const float *k, const float *q, int32_t keys, int32_t D,
                               const float *lse, const float *shift) {
  for (int32_t key = 0; key < keys; ++key, s += stride, k += D) {
    double sum[DKV_PANEL];
    for (int lane = 0; lane < DKV_PANEL; ++lane) sum[lane] = -(double)lse[lane];
    for (int32_t d = 0; d < D; ++d)
      for (int lane = 0; lane < DKV_PANEL; ++lane) sum[lane] += (double)k[d] * (double)q[d * DKV_PANEL + lane];
    for (int lane = 0; lane < DKV_PANEL; ++lane)
      if (shift[lane] != lse[lane]) s[lane] = (float)sum[lane];
  }
}

/** S = K Q^T of one panel for `keys` keys; S - lse for rows with fine scores. @param[in] k, q first key and first lane
 */
static inline void score_panel(const struct bwd_call *call, const struct bwd_scratch *t, int nv, int32_t panel,
                               int32_t keys, const float *k, float *s, struct rows_ahead *ahead) {
  const int32_t D = call->p->head_dim;
  const float *q = t->q + (size_t)panel * (size_t)D * DKV_PANEL;
  product(nv, PRODUCT_SET, keys, (struct product_left){k, (size_t)D, 1}, DKV_MR * (size_t)D,
          (struct product_right){q, DKV_PANEL}, D, s, (size_t)call->lanes, NULL, ahead);
  const int lane = panel * DKV_PANEL;
  if (t->fine) fine_scores(s, (size_t)call->lanes, k, q, keys, D, t->lse + lane, t->shift + lane);
}

/**
 * Prepares the loaded rows of a query tile for large scores: sets shift and fine, and for the rows concerned takes the
 * sums that lse and o stand for again.  Called once the rows are loaded; uses the tiles of keys, scores and dq.
 * @param[in]     call   the call
 * @param[in]     tile   the query tile
 * @param[in]     k_head its key head
 * @param[in,out] t      shift, fine overwritten; dout, dout_rows, delta of the rows concerned mended
 */
void dkv_mend_large_scores(const struct bwd_call *call, const struct query_tile *tile, int32_t k_head,
                           struct bwd_scratch *t);

#endif
