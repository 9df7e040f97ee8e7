/**
 * @file ref_fwd.c
 * @brief THE DEFINITION of packed attention, forward: in double, O(T^2), one loop nest, straight from the visibility
 * rule.
 *
 *     s_ij = c <q_i, k_j>      m_i = max_j s_ij      lse_i = m_i + log sum_j exp(s_ij - m_i)
 *     p_ij = exp(s_ij - lse_i)                       o_i = sum_j p_ij v_j           j over all rows that i sees
 *
 * Packed and replicated differ in nothing but the layout's `end`.  The maximum is taken out so that exp cannot
 * overflow; it cancels exactly in the formulas above.  Every row sees itself, so no sum is empty.
 *
 * Workspace, in doubles: the scores of one row [T]; k and v of one key head [2][T][D].
 *
 * Read before: common/mask.h, common/attention.h.  Read next: ref_bwd.c, tiled_fwd.c.
 */
#include <math.h>

#include "common/mask.h"
#include "cpu/attention/ref.h"
#include "cpu/host.h"

DKV_DECLARE_KERNEL(ref, fwd, definition)

dkv_status dkv_ref_fwd_definition_workspace(const dkv_attention *problem, size_t *bytes) {
  DKV_REQUIRE(problem != NULL && bytes != NULL && problem->layout != NULL, DKV_ERR_NULL,
              "ref forward: problem, layout and bytes must not be NULL");
  *bytes = (size_t)problem->layout->rows * (1 + 2 * (size_t)problem->head_dim) * sizeof(double);
  return DKV_OK;
}

dkv_status dkv_ref_fwd_definition_prepare(const dkv_attention *problem) {
  (void)problem; /* nothing depends on the layout alone */
  return DKV_OK;
}

/** One query row i of one head h. @param[in] k, v [T][D] its key head. @param[out] s [T] scratch: the row's scores */
static void attend(const dkv_attention *p, int32_t i, int32_t h, const double *k, const double *v, double *s) {
  const int32_t *end = p->layout->end;
  const int32_t D = p->head_dim;
  double q[DKV_MAX_HEAD_DIM], o[DKV_MAX_HEAD_DIM] = {0};
  load_row(q, p->q, p->dtype, i, h, p->heads, D);

  /* s_ij = c <q_i, k_j>,  m_i = max_j s_ij */
  double m = -INFINITY;
  for (int32_t j = 0; j <= i; ++j) {
    if (!dkv_sees(i, j, end[j])) continue;
    s[j] = p->scale * dot(q, k + (size_t)j * (size_t)D, D);
    if (s[j] > m) m = s[j];
  }

  /* lse_i = m_i + log sum_j exp(s_ij - m_i) */
  double sum = 0;
  for (int32_t j = 0; j <= i; ++j)
    if (dkv_sees(i, j, end[j])) sum += exp(s[j] - m);
  double lse = m + log(sum);

  /* o_i = sum_j p_ij v_j,  p_ij = exp(s_ij - lse_i) = exp(s_ij - m_i) / sum: a huge m cancels without rounding */
  for (int32_t j = 0; j <= i; ++j)
    if (dkv_sees(i, j, end[j])) add_scaled(o, exp(s[j] - m) / sum, v + (size_t)j * (size_t)D, D);

  store_row(p->o, o, p->dtype, i, h, p->heads, D);
  store_row(p->lse, &lse, lse_dtype(p->dtype), h, i, p->layout->rows, 1);
}

dkv_status dkv_ref_fwd_definition_run(const dkv_attention *problem) {
  DKV_TRY(dkv_attention_check(problem, DKV_FORWARD));
  size_t needed = 0;
  DKV_TRY(dkv_ref_fwd_definition_workspace(problem, &needed));
  if (needed == 0) return DKV_OK;
  DKV_REQUIRE(problem->workspace != NULL && problem->workspace_bytes >= needed, DKV_ERR_NOMEM,
              "ref forward: workspace of %zu bytes; %zu are needed", problem->workspace_bytes, needed);
  const int32_t T = problem->layout->rows, D = problem->head_dim, group = problem->heads / problem->kv_heads;
  double *k = problem->workspace, *v = k + (size_t)T * (size_t)D, *scores = v + (size_t)T * (size_t)D;
  for (int32_t k_head = 0; k_head < problem->kv_heads; ++k_head) {
    load_head(k, problem->k, problem->dtype, T, k_head, problem->kv_heads, D);
    load_head(v, problem->v, problem->dtype, T, k_head, problem->kv_heads, D);
    for (int32_t h = k_head * group; h < (k_head + 1) * group; ++h)
      for (int32_t i = 0; i < T; ++i) attend(problem, i, h, k, v, scores);
  }
  return DKV_OK;
}
