/**
 * @file ref_bwd.c
 * @brief The derivative of ref_fwd.c, in double, each line quoting the forward line that it differentiates.
 *
 * Given dout = d loss / d o, and the forward's o and lse:
 *
 *     o_i = sum_j p_ij v_j               dv_j += p_ij dout_i               dp_ij = <dout_i, v_j>
 *     p_ij = exp(s_ij) / sum_j exp(s_ij) ds_ij = p_ij (dp_ij - delta_i)    delta_i = sum_j p_ij dp_ij = <dout_i, o_i>
 *     s_ij = c <q_i, k_j>                dq_i += c ds_ij k_j               dk_j += c ds_ij q_i
 *
 * delta_i is short because sum_j p_ij <dout_i, v_j> = <dout_i, sum_j p_ij v_j>.  A key row collects from every row that
 * sees it and from all g query heads of its key head: for a prompt row that is the prompt and all responses, one plain
 * sum.
 *
 * Workspace, in doubles: k, v, dk, dv of one key head, [4][T][D].
 *
 * Read before: ref_fwd.c.  Read next: tiled_bwd.c.
 */
#include <math.h>
#include <string.h>

#include "common/mask.h"
#include "cpu/attention/ref.h"
#include "cpu/host.h"

DKV_DECLARE_KERNEL(ref, bwd, definition)

dkv_status dkv_ref_bwd_definition_workspace(const dkv_attention *problem, size_t *bytes) {
  DKV_REQUIRE(problem != NULL && bytes != NULL && problem->layout != NULL, DKV_ERR_NULL,
              "ref backward: problem, layout and bytes must not be NULL");
  *bytes = 4 * (size_t)problem->layout->rows * (size_t)problem->head_dim * sizeof(double);
  return DKV_OK;
}

dkv_status dkv_ref_bwd_definition_prepare(const dkv_attention *problem) {
  (void)problem; /* nothing depends on the layout alone */
  return DKV_OK;
}

/** k, v and their gradients of one key head, each [T][D]. */
struct key_head {
  double *k, *v, *dk, *dv;
};

/** One query row i of one head h: writes dq_i, adds to dk_j and dv_j of every j that it sees. */
static void differentiate(const dkv_attention *p, int32_t i, int32_t h, const struct key_head *key) {
  const int32_t D = p->head_dim;
  double q[DKV_MAX_HEAD_DIM], o[DKV_MAX_HEAD_DIM], dout[DKV_MAX_HEAD_DIM], dq[DKV_MAX_HEAD_DIM] = {0};
  load_row(q, p->q, p->dtype, i, h, p->heads, D);
  load_row(o, p->o, p->dtype, i, h, p->heads, D);
  load_row(dout, p->dout, p->dtype, i, h, p->heads, D);
  double lse = dkv_element(p->lse, lse_dtype(p->dtype), dkv_offset(h, i, p->layout->rows, 1));
  double delta = dot(dout, o, D);

  for (int32_t j = 0; j <= i; ++j) {
    if (!dkv_sees(i, j, p->layout->end[j])) continue;
    const size_t row = (size_t)j * (size_t)D;
    double weight = exp(p->scale * dot(q, key->k + row, D) - lse); /* s_ij = c <q_i, k_j>, p_ij = exp(s_ij - lse_i) */
    add_scaled(key->dv + row, weight, dout, D);                    /* o_i = sum_j p_ij v_j        by v_j  */
    double dp = dot(dout, key->v + row, D);                        /* o_i = sum_j p_ij v_j        by p_ij */
    double ds = weight * (dp - delta);                             /* p_ij = exp(s_ij - lse_i)    by s_ij */
    add_scaled(dq, p->scale * ds, key->k + row, D);                /* s_ij = c <q_i, k_j>         by q_i  */
    add_scaled(key->dk + row, p->scale * ds, q, D);                /* s_ij = c <q_i, k_j>         by k_j  */
  }
  store_row(p->dq, dq, p->dtype, i, h, p->heads, D);
}

dkv_status dkv_ref_bwd_definition_run(const dkv_attention *problem) {
  DKV_TRY(dkv_attention_check(problem, DKV_BACKWARD));
  size_t needed = 0;
  DKV_TRY(dkv_ref_bwd_definition_workspace(problem, &needed));
  if (needed == 0) return DKV_OK;
  DKV_REQUIRE(problem->workspace != NULL && problem->workspace_bytes >= needed, DKV_ERR_NOMEM,
              "ref backward: workspace of %zu bytes; %zu are needed", problem->workspace_bytes, needed);
  const int32_t T = problem->layout->rows, D = problem->head_dim, group = problem->heads / problem->kv_heads;
  const size_t elements = (size_t)T * (size_t)D;
  double *memory = problem->workspace;
  const struct key_head key = {memory, memory + elements, memory + 2 * elements, memory + 3 * elements};
  for (int32_t k_head = 0; k_head < problem->kv_heads; ++k_head) {
    load_head(key.k, problem->k, problem->dtype, T, k_head, problem->kv_heads, D);
    load_head(key.v, problem->v, problem->dtype, T, k_head, problem->kv_heads, D);
    memset(key.dk, 0, 2 * elements * sizeof(double)); /* dv follows dk */
    for (int32_t h = k_head * group; h < (k_head + 1) * group; ++h)
      for (int32_t i = 0; i < T; ++i) differentiate(problem, i, h, &key);
    store_head(problem->dk, key.dk, problem->dtype, T, k_head, problem->kv_heads, D);
    store_head(problem->dv, key.dv, problem->dtype, T, k_head, problem->kv_heads, D);
  }
  return DKV_OK;
}
