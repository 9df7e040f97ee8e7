/**
 * @file layers_cpu.h
 * @brief The CPU's layers, one file each; their contracts are the slots of dkv_layers in common/layers.h.
 *
 * Here also: how a sum over rows is cut.  `blocks` depends on the number of rows alone, so the order of the additions,
 * and with it every bit of the sum, is the same for one thread and for sixty-four.
 *
 * Read before: common/layers.h.  Read next: embedding.c, rmsnorm.c, rope.c, linear.c, swiglu.c, residual.c,
 * lm_logprob.c, adamw.c.
 */
#ifndef DKV_LAYERS_CPU_H
#define DKV_LAYERS_CPU_H

#include "common/layers.h"
#include "cpu/host.h"

/** Rows cut into blocks of equal size (the last may be shorter). */
typedef struct dkv_row_blocks {
  int64_t size;  /**< rows of a block */
  int64_t count; /**< blocks, at most DKV_ROW_BLOCKS */
} dkv_row_blocks;

/** Cuts rows into at most DKV_ROW_BLOCKS blocks of at least 16. @param[in] rows >= 0. @return the cut. */
static inline dkv_row_blocks dkv_cut_rows(int64_t rows) {
  int64_t size = dkv_max(16, dkv_ceil_div(rows, DKV_ROW_BLOCKS));
  dkv_row_blocks cut = {size, dkv_ceil_div(rows, size)};
  return cut;
}

/** Floats that one thread handles sooner than it could wake another: a few microseconds. */
#define DKV_SMALL_WORK (1 << 14)

/**
 * Threads of a call: one when the work is small, so that a decoding step does not spend its time at barriers.
 * @param[in] where where
 * @param[in] work  floats read or written, roughly; never changes a result
 * @return at least 1
 */
static inline int dkv_where_threads(const dkv_where *where, int64_t work) {
  return work < DKV_SMALL_WORK ? 1 : (int)dkv_host_threads(where->threads);
}

dkv_status dkv_cpu_embedding_fwd(const dkv_where *where, float *out, const float *table, const int32_t *ids,
                                 int32_t rows, int32_t width);
dkv_status dkv_cpu_embedding_bwd(const dkv_where *where, float *dtable, const float *dout, const int32_t *ids,
                                 int32_t rows, int32_t width);
dkv_status dkv_cpu_rmsnorm_fwd(const dkv_where *where, float *out, float *rstd, const float *x, const float *weight,
                               int64_t rows, int32_t width, float epsilon);
dkv_status dkv_cpu_rmsnorm_bwd(const dkv_where *where, float *dx, bool add, float *dweight, const float *dout,
                               const float *x, const float *rstd, const float *weight, int64_t rows, int32_t width);
dkv_status dkv_cpu_rope(const dkv_where *where, float *x, const float *table, const int32_t *position, int32_t rows,
                        int32_t heads, int32_t head_dim, bool inverse);
dkv_status dkv_cpu_rope_table(const dkv_where *where, float *table, int32_t positions, int32_t head_dim, double theta);
dkv_status dkv_cpu_linear_fwd(const dkv_where *where, float *out, bool add, const float *x, const float *weight,
                              int32_t rows, int32_t in, int32_t out_width);
dkv_status dkv_cpu_linear_bwd(const dkv_where *where, float *dx, bool add, float *dweight, const float *dout,
                              const float *x, const float *weight, int32_t rows, int32_t in, int32_t out_width);
dkv_status dkv_cpu_swiglu_fwd(const dkv_where *where, float *out, const float *gate, const float *up, int64_t rows,
                              int32_t width);
dkv_status dkv_cpu_swiglu_bwd(const dkv_where *where, float *gate, float *up, const float *dout, int64_t rows,
                              int32_t width);
dkv_status dkv_cpu_residual(const dkv_where *where, float *out, const float *x, const float *y, int64_t elements);
dkv_status dkv_cpu_gather_rows(const dkv_where *where, float *out, const float *x, const int32_t *index, int32_t rows,
                               int32_t width);
dkv_status dkv_cpu_scatter_rows(const dkv_where *where, float *x, const float *y, const int32_t *index, int32_t rows,
                                int32_t width);
size_t dkv_cpu_lm_chunk(int32_t rows, int32_t vocabulary);
dkv_status dkv_cpu_lm_logprob_fwd(const dkv_where *where, float *logprob, float *entropy, float *lse, float *chunk,
                                  const dkv_scored *scored, const float *x, const float *weight, int32_t width,
                                  int32_t vocabulary);
dkv_status dkv_cpu_lm_logprob_bwd(const dkv_where *where, float *dx, float *dweight, float *chunk,
                                  const dkv_scored *scored, const float *dlogprob, const float *dentropy,
                                  const float *lse, const float *x, const float *weight, int32_t width,
                                  int32_t vocabulary);
dkv_status dkv_cpu_adamw(const dkv_where *where, float *w, float *m, float *v, const float *grad, int64_t n,
                         const dkv_adamw *constants);
dkv_status dkv_cpu_sum_squares(const dkv_where *where, double *out, const float *x, int64_t n);
dkv_status dkv_cpu_append_rows(const dkv_where *where, float *cache, const float *x, const int32_t *slot,
                               const int32_t *length, int32_t rows, int32_t capacity, int32_t width);
dkv_status dkv_cpu_decode_attention(const dkv_where *where, float *out, const float *q, const dkv_decode_cache *cache,
                                    const int32_t *slot, int32_t rows, int32_t heads, int32_t kv_heads,
                                    int32_t head_dim, float scale);

#endif
