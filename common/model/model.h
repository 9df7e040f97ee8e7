/**
 * @file model.h
 * @brief The public face of the transformer: create or load, log-probabilities of a packed batch, their gradient,
 * AdamW, decoding with a shared prompt, and files.
 *
 *     training                                      rollout
 *     dkv_model_load / dkv_model_create             dkv_decoder_open(groups, responses, ...)
 *     dkv_pass_set(batch)        any layout         dkv_decoder_prefill(prompts)    K, V of each prompt computed once
 *     dkv_model_forward  -> logprob, entropy        dkv_decoder_step(one token per live response) -> logits [n][V]
 *     (the loss: d logprob, d entropy)                  ... until all are done
 *     dkv_model_backward -> gradients +=            dkv_decoder_close
 *     dkv_optimizer_step
 *
 * Packed and replicated run this same code: only the layout of the batch differs.  Every per-token computation runs
 * once per row of the layout; RoPE uses layout->position; only rows that predict go through what lies above the last
 * layer's keys and values: its queries, its MLP, the final norm and the LM head.
 *
 * Threads: one model may be used by one thread at a time; inside, OpenMP.  The same inputs give the same bits for any
 * number of threads: matrix products are cut into tiles that do not depend on it, sums run in a fixed order.
 *
 * Read before: params.h, common/pack.h, common/layers.h.  Read next: forward.c, backward.c, decode.c.
 */
#ifndef DKV_MODEL_H
#define DKV_MODEL_H

#include "common/backend.h"
#include "common/layers.h"
#include "common/model/params.h"
#include "common/model/plan.h"
#include "common/pack.h"
#include "common/safetensors.h"

DKV_BEGIN_C

/** How to run a model. Zeroed means: CPU, default kernels, all threads, keep all activations. */
typedef struct dkv_model_options {
  const char *backend;   /**< "cpu" (NULL = "cpu"); others are refused while only the CPU has layers */
  const char *forward;   /**< attention kernel by name, NULL = default */
  const char *backward;  /**< attention kernel by name, NULL = default */
  int32_t threads;       /**< OpenMP threads; 0 = what OpenMP gives */
  bool recompute;        /**< keep only each layer's input; run the layer's forward again in the backward pass */
  bool whole_last_layer; /**< compute the last layer at all rows, though only those that predict are read */
} dkv_model_options;

/** A model: configuration, parameters, gradients, and where it runs. */
typedef struct dkv_model {
  dkv_model_config config;   /**< shape and constants */
  dkv_model_options options; /**< as given (names point to static strings of the kernel tables) */
  dkv_params params;         /**< weights */
  dkv_params grads; /**< gradients, same views; accumulated by dkv_model_backward; data NULL until first needed */
  const dkv_backend *backend; /**< attention kernels and memory */
  const dkv_layers *layers;   /**< everything else */
} dkv_model;

/**
 * A fresh random model.
 * @param[out] out     overwritten; zeroed on failure
 * @param[in]  config  shape
 * @param[in]  seed    seed of the weights
 * @param[in]  options NULL = defaults
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE, DKV_ERR_SHAPE (config); DKV_ERR_UNSUPPORTED; DKV_ERR_NOMEM
 */
dkv_status dkv_model_create(dkv_model *out, const dkv_model_config *config, uint64_t seed,
                            const dkv_model_options *options);

/**
 * Loads a Hugging Face directory: config.json and model.safetensors, or the shards of model.safetensors.index.json;
 * weights in f32, bf16 or f16 become f32.  With a tied head a stored lm_head.weight is ignored.
 * @param[out] out       overwritten; zeroed on failure
 * @param[in]  directory path
 * @param[in]  options   NULL = defaults
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_IO; DKV_ERR_FORMAT (also: every missing, unknown and misshapen tensor in one
 * sentence); DKV_ERR_UNSUPPORTED; DKV_ERR_NOMEM
 */
dkv_status dkv_model_load(dkv_model *out, const char *directory, const dkv_model_options *options);

/**
 * Saves config.json and model.safetensors in `directory`, which is made when missing; each file appears whole or not at
 * all. A directory that holds a model.safetensors.index.json is refused: its shards would contradict the new file.
 * @param[in] model     the model
 * @param[in] directory path
 * @param[in] dtype     f32, bf16 or f16
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_UNSUPPORTED (another dtype, a sharded directory); DKV_ERR_IO; DKV_ERR_NOMEM
 */
dkv_status dkv_model_save(const dkv_model *model, const char *directory, dkv_dtype dtype);

/** Frees; accepts a zeroed struct. @param[in,out] model zeroed afterwards. */
void dkv_model_free(dkv_model *model);

/** Sets all gradients to zero (allocates them the first time). @param[in,out] model the model. @return DKV_OK;
 * DKV_ERR_NOMEM. */
dkv_status dkv_model_zero_grads(dkv_model *model);

/* ---- log-probabilities and their gradient
 * ------------------------------------------------------------------------------- */

/** What to compute on: rows, their tokens, and which (row, token) pairs to score. Nothing here is owned. */
typedef struct dkv_batch {
  const dkv_layout *layout; /**< packed, replicated or any other forest; T rows */
  const int32_t *ids;       /**< [T] token of each row, 0 <= id < V */
  const dkv_prediction
      *pairs;         /**< [pair_count] from dkv_predictions, or any others (prompt rows too, for supervised steps) */
  int32_t pair_count; /**< pairs */
  const int32_t *target_ids; /**< [pair_count] token that each pair scores; NULL: ids[pairs[i].target]. When given,
                                pairs[i].target is not read, so that the last token of a response needs no row */
  float temperature;         /**< logits are divided by it; > 0 */
  bool forward_only;         /**< no backward follows: nothing is kept for it */
} dkv_batch;

/**
 * Buffers of one forward (and backward) over one batch; they grow when a larger batch comes, and are kept.  Fields are
 * private.
 */
typedef struct dkv_pass {
  dkv_batch batch;              /**< what dkv_pass_set was given */
  const dkv_backend *backend;   /**< whose memory arena and rope are */
  dkv_plan plan;                /**< what is where in the arena */
  char *arena;                  /**< every activation */
  size_t arena_bytes;           /**< its size */
  int32_t source_count;         /**< U: distinct source rows: what goes through the LM head */
  int32_t *index;               /**< one allocation behind the five arrays that follow */
  size_t index_count;           /**< its elements */
  int32_t *source_row;          /**< [U] ascending */
  int32_t *source_position;     /**< [U] path position of each source row */
  int32_t *source_begin;        /**< [U+1] first entry of each source in pair_order */
  int32_t *pair_order;          /**< [pair_count] pairs sorted by source */
  int32_t *pair_token;          /**< [pair_count] token of pair_order[i] */
  float *rope;                  /**< [rope_positions][D] cosines and sines */
  int32_t rope_positions;       /**< positions in rope */
  double rope_theta;            /**< base for which rope was made */
  const dkv_kernel *kernel_fwd; /**< attention kernel */
  const dkv_kernel *kernel_bwd; /**< attention kernel */
  dkv_attention attention_fwd;  /**< prepared, but for the tensors */
  dkv_attention attention_bwd;  /**< prepared, but for the tensors */
  bool forward_done;            /**< backward is legal */
} dkv_pass;

/**
 * Sets the batch of a pass: checks it, plans the activations and makes room for them.
 * @param[in,out] pass  zeroed or used before
 * @param[in]     model the model
 * @param[in]     batch copied; what it points to must outlive the pass's use
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE (an id outside 0..V-1, a pair outside 0..T-1, a path longer than
 * max_positions, a temperature that is not a positive number); DKV_ERR_NOMEM
 */
dkv_status dkv_pass_set(dkv_pass *pass, const dkv_model *model, const dkv_batch *batch);

/**
 * The same pairs on the replicated layout: pair i becomes the one copy of it that belongs to the first path through its
 * segment, so that the order, the count and the loss stay as they are.  A target outside the layout (see target_ids)
 * stays outside.
 * @param[out] out        [count] overwritten
 * @param[in]  pairs      [count] pairs of the packed layout, each with its segment
 * @param[in]  count      pairs
 * @param[in]  packed     the packed layout
 * @param[in]  replicated from dkv_layout_replicate
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE (a segment or source outside the layout); DKV_ERR_MISMATCH (not its
 * replicated layout); DKV_ERR_NOMEM
 */
dkv_status dkv_predictions_replicate(dkv_prediction *out, const dkv_prediction *pairs, int32_t count,
                                     const dkv_layout *packed, const dkv_layout *replicated);

/**
 * The plan of a layout with its dkv_predictions, without allocating or running anything: for printing before a run.
 * @param[out] out          overwritten
 * @param[in]  model        the model
 * @param[in]  layout       the layout
 * @param[in]  forward_only no backward follows
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_NOMEM; what a kernel said
 */
dkv_status dkv_pass_plan(dkv_plan *out, const dkv_model *model, const dkv_layout *layout, bool forward_only);

/** Frees; accepts a zeroed struct. @param[in,out] pass zeroed afterwards. */
void dkv_pass_free(dkv_pass *pass);

/**
 * Log-probabilities (nats) of the batch's pairs: log softmax(logits[source] / temperature)[token].
 * @param[in]     model    the model
 * @param[in,out] pass     after dkv_pass_set
 * @param[out]    logprob  [pair_count] overwritten
 * @param[out]    entropy  [pair_count] overwritten: entropy (nats) of that softmax; NULL when not wanted
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE (a result that is not finite); whatever a kernel said
 */
dkv_status dkv_model_forward(const dkv_model *model, dkv_pass *pass, float *logprob, float *entropy);

/**
 * Adds to model->grads the gradient of  sum_i dlogprob[i] logprob[i] + dentropy[i] entropy[i].  One backward per
 * forward: the activations are consumed.
 * @param[in,out] model    gradients accumulated
 * @param[in,out] pass     after dkv_model_forward
 * @param[in]     dlogprob [pair_count]
 * @param[in]     dentropy [pair_count], NULL = zeros
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE (no forward before); DKV_ERR_NOMEM; whatever a kernel said
 */
dkv_status dkv_model_backward(dkv_model *model, dkv_pass *pass, const float *dlogprob, const float *dentropy);

/**
 * Full logits of the pass's distinct source rows, for tests and inspection, after dkv_model_forward and before
 * backward. Not divided by the temperature.
 * @param[in]  model  the model
 * @param[in]  pass   after dkv_model_forward
 * @param[out] logits [source_count][V] overwritten; row u belongs to packed row pass->source_row[u]
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE (no forward before); DKV_ERR_NOMEM
 */
dkv_status dkv_model_logits(const dkv_model *model, dkv_pass *pass, float *logits);

/* ---- decoding with a shared prompt
 * -------------------------------------------------------------------------------------- */

/**
 * K and V caches for several prompt groups: each prompt's K and V are stored once and read by all its responses; each
 * response owns only what it generated.  Slot s = group * responses + n is response n of a group.  length may be read;
 * the other fields are private.
 */
typedef struct dkv_decoder {
  const dkv_model *model;  /**< must outlive the decoder */
  int32_t groups;          /**< most prompts */
  int32_t responses;       /**< N slots of each prompt */
  int32_t prompt_capacity; /**< rows of all prompts together */
  int32_t new_capacity;    /**< tokens that each response may be fed */
  int32_t live_groups;     /**< prompts of the latest prefill */
  int32_t *prompt_start;   /**< [groups+1] first prompt row of each group */
  int32_t *length;         /**< [groups N] tokens fed to each slot so far */
  int32_t *row_slot;       /**< [step rows] slot of each row of a step, -1 for a row without one */
  int32_t *live_row;       /**< [groups N] row of each live slot of a step */
  float *prompt_k;         /**< [L][prompt_capacity][Hkv][D] */
  float *prompt_v;         /**< [L][prompt_capacity][Hkv][D] */
  float *response_k;       /**< [L][groups N][new_capacity][Hkv][D] */
  float *response_v;       /**< [L][groups N][new_capacity][Hkv][D] */
  size_t cache_bytes;      /**< bytes of the four caches */
  char *arena;             /**< activations of one step */
  size_t arena_bytes;      /**< its size */
  dkv_pass pass;           /**< buffers of the prefill; its rope table serves the steps too */
} dkv_decoder;

/**
 * Makes room. One decoder serves any number of rollouts: prefill starts the next one.
 * @param[out] out             overwritten; zeroed on failure
 * @param[in]  model           the model; its weights may change between rollouts
 * @param[in]  groups          G >= 1, most prompts at a time
 * @param[in]  responses       N >= 1 of each prompt
 * @param[in]  prompt_capacity >= 1, most prompt rows of all groups together
 * @param[in]  new_capacity    >= 1, most tokens fed to one response
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE; DKV_ERR_NOMEM
 */
dkv_status dkv_decoder_open(dkv_decoder *out, const dkv_model *model, int32_t groups, int32_t responses,
                            int32_t prompt_capacity, int32_t new_capacity);

/**
 * Runs the prompts, once each, and forgets all responses.
 * @param[in,out] decoder the decoder
 * @param[in]     ids     prompts one after another
 * @param[in]     length  [groups] rows of each prompt, >= 1
 * @param[in]     groups  prompts, 1 to decoder->groups
 * @param[out]    logits  [groups][V] overwritten: logits (not divided by a temperature) after each prompt, from which
 * the first token of all its responses is drawn
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE (too many prompts or rows, an empty prompt, an id outside 0..V-1, too
 * long a path); whatever a kernel said
 */
dkv_status dkv_decoder_prefill(dkv_decoder *decoder, const int32_t *ids, const int32_t *length, int32_t groups,
                               float *logits);

/**
 * Feeds one token to each of `count` live responses.  A response's logits do not depend on which others are live.
 * @param[in,out] decoder after dkv_decoder_prefill
 * @param[in]     slots   [count] distinct slots, ascending; leave finished responses out
 * @param[in]     ids     [count] token fed to each: the one drawn last
 * @param[in]     count   0 to groups * responses
 * @param[out]    logits  [count][V] overwritten: what each predicts next, not divided by a temperature
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE (slots not ascending or outside, a full response, an id outside 0..V-1)
 */
dkv_status dkv_decoder_step(dkv_decoder *decoder, const int32_t *slots, const int32_t *ids, int32_t count,
                            float *logits);

/** Frees; accepts a zeroed struct. @param[in,out] decoder zeroed afterwards. */
void dkv_decoder_close(dkv_decoder *decoder);

DKV_END_C
#endif
