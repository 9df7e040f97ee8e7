/**
 * @file fine.c
 * @brief The backward's extra pass over rows with large scores: their sums again, from scores taken in double.
 *
 * Read before: fine.h, tiled_bwd.c.
 */
#include "cpu/attention/fine.h"

#include "cpu/vector_exp.h"

/** Adds the weights of one panel against the loaded keys [j0, j1), and weights times dP, to the lanes' two sums. */
static void add_weights(const struct bwd_call *call, const struct query_tile *tile, int32_t panel, int32_t j0,
                        int32_t j1, const struct bwd_scratch *t, float *sums, struct rows_ahead *ahead) {
  const struct key_span span = span_of_keys(call->p->layout, tile, panel, j0, j1);
  if (span.first == span.last) return;
  const int nv = panel_vectors(tile, panel);
  const size_t D = (size_t)call->p->head_dim, L = (size_t)call->lanes, first = (size_t)span.first;
  const size_t transposed = (size_t)panel * D * DKV_PANEL, corner = first * L + (size_t)panel * DKV_PANEL;
  const int32_t keys = span.last - span.first;
  score_panel(call, t, nv, panel, keys, t->k + first * D, t->s + corner, ahead);
  product(nv, PRODUCT_SET, keys, (struct product_left){t->v + first * D, D, 1}, DKV_MR * D,
          (struct product_right){t->dout + transposed, DKV_PANEL}, (int32_t)D, t->ds + corner, L, NULL, ahead);
  for (int32_t key = span.first; key < span.last; ++key) {
    int32_t lo = 0, hi = DKV_PANEL, j = j0 + key;
    if (j >= call->p->layout->rows) hi = 0;
    else if (span.masked) visible_lanes(tile, panel, j, call->p->layout->end[j], &lo, &hi);
    for (int v = 0; v < nv; ++v) {
      const size_t lane = (size_t)(panel * DKV_PANEL + v * DKV_LANES), at = (size_t)key * L + lane;
      const dkv_vec zero = vec_set(0.0f), dp = vec_load(t->ds + at);
      const dkv_vec weight = vec_keep(vec_exp(vec_sub(vec_load(t->s + at), vec_load(t->shift + lane))),
                                      lo - v * DKV_LANES, hi - v * DKV_LANES, zero);
      vec_store(sums + lane, vec_add(vec_load(sums + lane), weight));
      vec_store(sums + L + lane,
                vec_fma(weight, vec_keep(dp, lo - v * DKV_LANES, hi - v * DKV_LANES, zero), vec_load(sums + L + lane)));
    }
  }
}

/**
 * For rows with large scores, one more pass takes the row's sums from the fine scores: of P, by which dout and delta
 * are divided (which divides every weight and costs nothing in the loop over keys), and of P dP, which is delta.
 */
void dkv_mend_large_scores(const struct bwd_call *call, const struct query_tile *tile, int32_t k_head,
                           struct bwd_scratch *t) {
  const dkv_attention *p = call->p;
  const int32_t D = p->head_dim, L = call->lanes;
  float *const sums = t->dq; /* not in use yet */
  t->fine = false;
  for (int32_t lane = 0; lane < tile->panels * DKV_PANEL; ++lane) {
    const bool fine = p->dtype == DKV_F32 && lse_is_coarse(t->lse[lane]);
    t->shift[lane] = fine ? 0.0f : t->lse[lane];
    t->fine |= fine;
  }
  if (!t->fine) return;
  memset(sums, 0, 2 * (size_t)L * sizeof(float));
  for (int32_t j0 = next_key_tile(p->layout, tile, 0); j0 < tile->i1;
       j0 = next_key_tile(p->layout, tile, j0 + DKV_KEYS)) {
    const int32_t j1 = (int32_t)dkv_min((int64_t)j0 + DKV_KEYS, p->layout->rows);
    struct rows_ahead ahead = {.rows = 0};
    load_keys(t->k, p->k, p, k_head, j0, j1);
    load_keys(t->v, p->v, p, k_head, j0, j1);
    for (int32_t panel = 0; panel < tile->panels; ++panel) add_weights(call, tile, panel, j0, j1, t, sums, &ahead);
  }
  for (int32_t lane = 0; lane < tile->lanes; ++lane) {
    if (t->shift[lane] == t->lse[lane]) continue; /* bits do not depend on the rows beside it */
    const float factor = 1.0f / sums[lane];
    float *column = t->dout + (size_t)(lane / DKV_PANEL) * (size_t)D * DKV_PANEL + lane % DKV_PANEL;
    for (int32_t d = 0; d < D; ++d) column[d * DKV_PANEL] *= factor;
    for (int32_t chunk = 0; chunk < call->chunks; ++chunk)
      for (int32_t d = 0; d < DKV_CHUNK; ++d)
        t->dout_rows[((size_t)chunk * (size_t)L + (size_t)lane) * DKV_CHUNK + (size_t)d] *= factor;
    t->delta[lane] = sums[L + lane] * factor * factor;
  }
}
