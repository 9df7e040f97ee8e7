/**
 * @file plan.h
 * @brief Where every activation lives, known before anything runs: so that memory can be printed, packed beside
 * replicated.
 *
 *     arena  [ x_0 x_1 ... | layer 0 | layer 1 | ... | head | passing tensors | workspaces ]
 *
 * T is the number of rows, U that of the rows that predict.  Nothing reads the last layer's output at any other row, so
 * the last layer has A = U active rows: keys and values of all T rows, queries and everything above them of U.  Every
 * other layer has A = T.  The last layer writes its output straight to the head's x.  (On request it has A = T too, and
 * the head's x is gathered from x_L: what most programs do, to compare with.)
 *
 * A layer keeps what a matrix product or the attention kernel made: q and k before their norm, v, o, lse, x_mid, gate,
 * up.  What is cheap to make again (the norms, rotated q and k, silu(gate) up) is made again in the backward pass and
 * lives in the passing tensors, which all layers share.  With DKV_KEEP_INPUTS a layer keeps x_l only, and its forward
 * runs twice; with DKV_KEEP_NOTHING (no backward) even x_l is overwritten two layers later.
 *
 * Read before: params.h.  Read next: pass.c, forward.c.
 */
#ifndef DKV_MODEL_PLAN_H
#define DKV_MODEL_PLAN_H

#include "common/layout.h"
#include "common/model/config.h"

DKV_BEGIN_C

/** What a forward leaves for the backward. */
typedef enum dkv_keep {
  DKV_KEEP_ALL,    /**< every product */
  DKV_KEEP_INPUTS, /**< the input of each layer: recomputation */
  DKV_KEEP_NOTHING /**< no backward follows */
} dkv_keep;

/** Tensors that a layer keeps. */
typedef struct dkv_layer_tensors {
  float *q_raw; /**< [A][H D] before norm and rotation */
  float *k_raw; /**< [T][Hkv D] before norm and rotation */
  float *v;     /**< [T][Hkv D] */
  float *o;     /**< [T][H D] attention's output; rows that are not active hold nothing that is used */
  float *lse;   /**< [H][T] */
  float *x_mid; /**< [A][C] after the attention's residual */
  float *gate;  /**< [A][F] */
  float *up;    /**< [A][F] */
  float *q;     /**< [T][H D] normed and rotated, 0 in rows that are not active: a passing tensor */
  float *k;     /**< [T][Hkv D] normed and rotated: a passing tensor */
} dkv_layer_tensors;

/** Tensors around the LM head: U rows. */
typedef struct dkv_head_tensors {
  float *x;     /**< [U][C] the last layer's output, x_L, at the rows that predict */
  float *h;     /**< [U][C] after the final norm */
  float *rstd;  /**< [U] */
  float *lse;   /**< [U] */
  float *dh;    /**< [U][C] */
  float *chunk; /**< a chunk of logits */
} dkv_head_tensors;

/** Tensors that pass: alive inside one layer's forward or backward. */
typedef struct dkv_passing_tensors {
  float *h;       /**< [T][C] a norm's output */
  float *dh;      /**< [T][C] */
  float *dx;      /**< [T][C] gradient of the residual stream */
  float *rstd;    /**< [T] */
  float *rstd_q;  /**< [A H] of the norms of q's heads */
  float *rstd_k;  /**< [T Hkv] of the norms of k's heads */
  float *few_h;   /**< [U][C] rows of h that are active, in a layer where some are not */
  float *few_dh;  /**< [U][C] likewise of dh */
  float *few_dx;  /**< [U][C] likewise of dx */
  float *few_q;   /**< [U][H D] likewise of q, o or dq */
  float *few_do;  /**< [U][H D] likewise of dout */
  float *act;     /**< [A][F] silu(gate) up; shares its place with what follows */
  float *dact;    /**< [A][F] */
  float *dout;    /**< [T][H D] gradient of o */
  float *dq;      /**< [T][H D] */
  float *dk;      /**< [T][Hkv D] */
  float *dv;      /**< [T][Hkv D] */
  float *scratch; /**< the layers' partial sums */
} dkv_passing_tensors;

/** Bytes of one pass by purpose, and where things start. */
typedef struct dkv_plan {
  int32_t rows;           /**< T */
  int32_t sources;        /**< U rows that go through the LM head */
  dkv_keep keep;          /**< what is kept */
  int32_t layers;         /**< L */
  int32_t last_active;    /**< A of the last layer: U, or T when all its rows were asked for */
  int32_t input_copies;   /**< L, or 2 at most; one more when x_L has all rows */
  int32_t layer_copies;   /**< L, or 1 */
  size_t input_bytes;     /**< one x_l */
  size_t layer_bytes;     /**< the kept tensors of one layer with A = T, besides x_l */
  size_t last_bytes;      /**< the kept tensors of the last layer, A = U */
  size_t layers_bytes;    /**< the kept tensors of all layers */
  size_t head_bytes;      /**< the tensors around the LM head */
  size_t passing_bytes;   /**< the passing tensors */
  size_t workspace_bytes; /**< attention workspaces, forward and backward together */
  size_t total_bytes;     /**< all of it: what dkv_pass_set allocates */
} dkv_plan;

/**
 * Plans a pass without running it.
 * @param[out] out       overwritten
 * @param[in]  config    the model
 * @param[in]  rows      T >= 0
 * @param[in]  sources   distinct rows that predict, 0 to T
 * @param[in]  whole     compute the last layer at all rows
 * @param[in]  keep      what the forward leaves
 * @param[in]  chunk     floats of a chunk of logits (dkv_layers.lm_chunk)
 * @param[in]  workspace bytes of the attention kernels' workspaces
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE
 */
dkv_status dkv_plan_make(dkv_plan *out, const dkv_model_config *config, int32_t rows, int32_t sources, bool whole,
                         dkv_keep keep, size_t chunk, size_t workspace);

/**
 * Input of layer l; l = L: the last layer's output, when it has all rows.
 * @param[in] plan  plan
 * @param[in] arena its memory
 * @param[in] l     0 to L
 * @return [T][C]
 */
float *dkv_plan_input(const dkv_plan *plan, char *arena, int32_t l);

/** A: the active rows of layer l. @param[in] plan plan. @param[in] l layer. @return last_active or T. */
static inline int32_t dkv_plan_active(const dkv_plan *plan, int32_t l) {
  return l == plan->layers - 1 ? plan->last_active : plan->rows;
}

/**
 * Tensors of layer l.
 * @param[in] plan   plan
 * @param[in] config the model
 * @param[in] arena  its memory
 * @param[in] l      layer
 * @return pointers into the arena
 */
dkv_layer_tensors dkv_plan_layer(const dkv_plan *plan, const dkv_model_config *config, char *arena, int32_t l);

/**
 * Tensors around the LM head.
 * @param[in] plan   plan
 * @param[in] config the model
 * @param[in] arena  its memory
 * @return pointers into the arena
 */
dkv_head_tensors dkv_plan_head(const dkv_plan *plan, const dkv_model_config *config, char *arena);

/**
 * Passing tensors.
 * @param[in] plan   plan
 * @param[in] config the model
 * @param[in] arena  its memory
 * @return pointers into the arena
 */
dkv_passing_tensors dkv_plan_passing(const dkv_plan *plan, const dkv_model_config *config, char *arena);

/** Attention workspaces. @param[in] plan plan. @param[in] arena memory. @return their first byte, 256-byte aligned. */
char *dkv_plan_workspace(const dkv_plan *plan, char *arena);

/**
 * One line for people: rows, MiB by purpose, total.
 * @param[in]  plan  a plan
 * @param[out] out   text, NUL-terminated
 * @param[in]  bytes room in out; 200 suffice
 */
void dkv_plan_describe(const dkv_plan *plan, char *out, size_t bytes);

DKV_END_C
#endif
