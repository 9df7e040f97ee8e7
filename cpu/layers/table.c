/**
 * @file table.c
 * @brief The CPU's layers as a table: what the model calls.
 *
 * Read before: common/layers.h.  Read next: common/model/forward.c.
 */
#include "cpu/layers/layers_cpu.h"

const dkv_layers dkv_cpu_layers = {
    .name = "cpu",
    .embedding_fwd = dkv_cpu_embedding_fwd,
    .embedding_bwd = dkv_cpu_embedding_bwd,
    .rmsnorm_fwd = dkv_cpu_rmsnorm_fwd,
    .rmsnorm_bwd = dkv_cpu_rmsnorm_bwd,
    .rope = dkv_cpu_rope,
    .rope_table = dkv_cpu_rope_table,
    .linear_fwd = dkv_cpu_linear_fwd,
    .linear_bwd = dkv_cpu_linear_bwd,
    .swiglu_fwd = dkv_cpu_swiglu_fwd,
    .swiglu_bwd = dkv_cpu_swiglu_bwd,
    .residual = dkv_cpu_residual,
    .gather_rows = dkv_cpu_gather_rows,
    .scatter_rows = dkv_cpu_scatter_rows,
    .lm_chunk = dkv_cpu_lm_chunk,
    .lm_logprob_fwd = dkv_cpu_lm_logprob_fwd,
    .lm_logprob_bwd = dkv_cpu_lm_logprob_bwd,
    .adamw = dkv_cpu_adamw,
    .sum_squares = dkv_cpu_sum_squares,
    .append_rows = dkv_cpu_append_rows,
    .decode_attention = dkv_cpu_decode_attention,
};
