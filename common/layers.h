/**
 * @file layers.h
 * @brief The contract of every layer besides attention: equation, shapes, what is overwritten and what is accumulated;
 * and the table through which the model calls them.
 *
 * All tensors are float, row-major, in the backend's memory; rows are packed rows.  Activations and their gradients are
 * overwritten unless the line says "+="; gradients of weights are always accumulated.  No pointer may alias another
 * unless the line says so. Zero rows are legal: nothing is done.  Layers allocate nothing; `where->scratch` holds their
 * partial sums.
 *
 * A sum over rows (a weight's gradient) is cut into blocks that depend on the shape alone and added up in block order,
 * and matrix products are cut into tiles likewise: the bits do not depend on the number of threads.
 *
 * Read before: status.h.  Read next: cpu/layers/rmsnorm.c, cpu/layers/linear.c, common/model/forward.c.
 */
#ifndef DKV_LAYERS_H
#define DKV_LAYERS_H

#include "common/status.h"

DKV_BEGIN_C

/** Most blocks into which a sum over rows is cut. */
#define DKV_ROW_BLOCKS 64

/** Where and with what a layer runs. */
typedef struct dkv_where {
  int32_t threads;  /**< CPU threads; 0 = what OpenMP gives */
  int32_t row_tile; /**< linear_fwd: rows of a tile, so that a row's bits do not depend on the number of rows; 0 = by
                       shape */
  void *stream;     /**< GPU: a cudaStream_t */
  float *scratch;   /**< partial sums, at least dkv_layer_scratch(widest vector) floats */
} dkv_where;

/**
 * Floats of scratch that layers need: a partial sum per row block.
 * @param[in] width elements of the widest vector parameter
 * @return floats
 */
static inline size_t dkv_layer_scratch(int32_t width) { return (size_t)DKV_ROW_BLOCKS * (size_t)width; }

/** The scored rows of a batch: U rows of hidden states, each with a run of pairs. */
typedef struct dkv_scored {
  int32_t rows;         /**< U */
  const int32_t *begin; /**< [U+1] first entry of each row in token and pair */
  const int32_t *token; /**< [begin[U]] token that each entry scores */
  const int32_t
      *pair;         /**< [begin[U]] the caller's number of each entry: where its logprob goes, where its gradient is */
  float temperature; /**< logits are divided by it */
} dkv_scored;

/** Constants of one AdamW step. */
typedef struct dkv_adamw {
  float lr;           /**< step size */
  float beta1;        /**< decay of the first moment */
  float beta2;        /**< decay of the second moment */
  float epsilon;      /**< added to the root of the second moment */
  float weight_decay; /**< decoupled: w -= lr weight_decay w */
  float grad_scale;   /**< multiplies every gradient first (global-norm clipping) */
  int64_t step;       /**< 1 for the first step: bias correction */
} dkv_adamw;

/** K and V of one layer as a decoding step sees them. */
typedef struct dkv_decode_cache {
  int32_t responses; /**< slots of a group */
  int32_t capacity;  /**< rows of a slot in response_k */
  const int32_t
      *prompt_start;       /**< [groups+1] first row of each group in prompt_k; the last entry ends the last group */
  const int32_t *length;   /**< [slots] rows that each slot holds, the newest included */
  const float *prompt_k;   /**< [prompt rows][Hkv][D] */
  const float *prompt_v;   /**< likewise */
  const float *response_k; /**< [slots][capacity][Hkv][D] */
  const float *response_v; /**< likewise */
} dkv_decode_cache;

/** A table of layers: one per backend. Every function returns DKV_OK, or a backend's failure with a sentence. */
typedef struct dkv_layers {
  const char *name; /**< the backend's name */

  /** out[t] = table[ids[t]].  out [rows][width], table [vocabulary][width], ids in range (checked by the caller). */
  dkv_status (*embedding_fwd)(const dkv_where *where, float *out, const float *table, const int32_t *ids, int32_t rows,
                              int32_t width);
  /** dtable[ids[t]] += dout[t], in ascending t. */
  dkv_status (*embedding_bwd)(const dkv_where *where, float *dtable, const float *dout, const int32_t *ids,
                              int32_t rows, int32_t width);

  /** rstd[t] = 1 / sqrt(mean_c x[t][c]^2 + epsilon);  out[t][c] = x[t][c] rstd[t] weight[c].  x, out [rows][width]. */
  dkv_status (*rmsnorm_fwd)(const dkv_where *where, float *out, float *rstd, const float *x, const float *weight,
                            int64_t rows, int32_t width, float epsilon);
  /**
   * With n = x rstd and g = dout weight:  dx (+)= rstd (g - n mean_c(g n));  dweight += sum_t dout n.
   * `add` chooses += for dx; dx may be dout itself when it is not.
   */
  dkv_status (*rmsnorm_bwd)(const dkv_where *where, float *dx, bool add, float *dweight, const float *dout,
                            const float *x, const float *rstd, const float *weight, int64_t rows, int32_t width);

  /**
   * Rotates each head of x [rows][heads][head_dim] in place by its position: with half = head_dim / 2, angle
   * a = position theta^(-2 j / head_dim):  (x_j, x_{j+half}) <- (x_j cos a - x_{j+half} sin a, x_{j+half} cos a + x_j
   * sin a). `inverse` turns the other way: the backward of a rotation.  table [max position + 1][head_dim]: cos, then
   * sin, from rope_table.
   */
  dkv_status (*rope)(const dkv_where *where, float *x, const float *table, const int32_t *position, int32_t rows,
                     int32_t heads, int32_t head_dim, bool inverse);
  /** table [positions][head_dim]: cos a_j for j < half, then sin a_j; angles in double, rounded once. */
  dkv_status (*rope_table)(const dkv_where *where, float *table, int32_t positions, int32_t head_dim, double theta);

  /** out (+)= x weight^T.  x [rows][in], weight [out_width][in], out [rows][out_width]; `add` chooses +=. */
  dkv_status (*linear_fwd)(const dkv_where *where, float *out, bool add, const float *x, const float *weight,
                           int32_t rows, int32_t in, int32_t out_width);
  /** dx (+)= dout weight, left out when dx is NULL;  dweight += dout^T x, left out when dweight is NULL. */
  dkv_status (*linear_bwd)(const dkv_where *where, float *dx, bool add, float *dweight, const float *dout,
                           const float *x, const float *weight, int32_t rows, int32_t in, int32_t out_width);

  /** out = silu(gate) up, silu(z) = z / (1 + exp(-z)).  [rows][width] each; out may be gate. */
  dkv_status (*swiglu_fwd)(const dkv_where *where, float *out, const float *gate, const float *up, int64_t rows,
                           int32_t width);
  /**
   * In place: gate <- dout up silu'(gate), up <- dout silu(gate), with s = 1 / (1 + exp(-gate)) and
   * silu' = s (1 + gate (1 - s)).  dout is read only.
   */
  dkv_status (*swiglu_bwd)(const dkv_where *where, float *gate, float *up, const float *dout, int64_t rows,
                           int32_t width);

  /** out = x + y, elementwise; out may be x or y. */
  dkv_status (*residual)(const dkv_where *where, float *out, const float *x, const float *y, int64_t elements);

  /** out[u] = x[index[u]], index [rows]. */
  dkv_status (*gather_rows)(const dkv_where *where, float *out, const float *x, const int32_t *index, int32_t rows,
                            int32_t width);
  /** x[index[u]] += y[u]; index ascending and distinct. */
  dkv_status (*scatter_rows)(const dkv_where *where, float *x, const float *y, const int32_t *index, int32_t rows,
                             int32_t width);

  /** Floats of a chunk of logits for U rows of a vocabulary: at least one row, at most about 4 MiB. */
  size_t (*lm_chunk)(int32_t rows, int32_t vocabulary);
  /**
   * For every entry i of row u, with z = x[u] weight^T / temperature:  lse[u] = log sum_v exp z_v;
   * logprob[pair[i]] = z_token[i] - lse[u];  entropy[pair[i]] = lse[u] - sum_v p_v z_v (NULL: not wanted).
   * x [U][width], weight [vocabulary][width].  A chunk of rows at a time: chunk has lm_chunk floats.
   */
  dkv_status (*lm_logprob_fwd)(const dkv_where *where, float *logprob, float *entropy, float *lse, float *chunk,
                               const dkv_scored *scored, const float *x, const float *weight, int32_t width,
                               int32_t vocabulary);
  /**
   * Recomputes the chunk, then with p = exp(z - lse), H the entropy, and sums over the entries i of row u:
   *   dz_v = sum_i dlogprob[pair[i]] (1[v = token[i]] - p_v) - sum_i dentropy[pair[i]] p_v (log p_v + H)
   *   dx[u] = dz weight / temperature (overwritten);   dweight += dz^T x / temperature.   dentropy may be NULL.
   */
  dkv_status (*lm_logprob_bwd)(const dkv_where *where, float *dx, float *dweight, float *chunk,
                               const dkv_scored *scored, const float *dlogprob, const float *dentropy, const float *lse,
                               const float *x, const float *weight, int32_t width, int32_t vocabulary);

  /**
   * One AdamW step over n elements, moments in float:  g = grad_scale grad;  m = beta1 m + (1 - beta1) g;
   * v = beta2 v + (1 - beta2) g^2;  w -= lr ( (m / c1) / (sqrt(v / c2) + epsilon) + weight_decay w ),  c_k = 1 -
   * beta_k^step.
   */
  dkv_status (*adamw)(const dkv_where *where, float *w, float *m, float *v, const float *grad, int64_t n,
                      const dkv_adamw *constants);
  /** *out = sum of squares of n elements, in double, in a fixed order. */
  dkv_status (*sum_squares)(const dkv_where *where, double *out, const float *x, int64_t n);

  /** cache[slot[r]][length[slot[r]] - 1] = x[r] for rows with slot[r] >= 0: the newest row of each cache.  x
   * [rows][width], cache [slots][capacity][width]. */
  dkv_status (*append_rows)(const dkv_where *where, float *cache, const float *x, const int32_t *slot,
                            const int32_t *length, int32_t rows, int32_t capacity, int32_t width);
  /**
   * Attention of one decoding step over a shared prompt: row r of q [rows][H][D] belongs to response slot[r] of group
   * slot[r] / responses; it sees its group's prompt rows and the length[slot[r]] rows of its own cache.  A row with
   * slot[r] < 0 belongs to nobody and becomes 0.  out [rows][H][D].  A row's result does not depend on the other rows.
   */
  dkv_status (*decode_attention)(const dkv_where *where, float *out, const float *q, const dkv_decode_cache *cache,
                                 const int32_t *slot, int32_t rows, int32_t heads, int32_t kv_heads, int32_t head_dim,
                                 float scale);
} dkv_layers;

/** The CPU's table. */
extern const dkv_layers dkv_cpu_layers;

/**
 * Finds a backend's layers.
 * @param[out] out  overwritten with a static table
 * @param[in]  name "cpu"
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_UNSUPPORTED (a backend without layers)
 */
dkv_status dkv_layers_find(const dkv_layers **out, const char *name);

DKV_END_C
#endif
