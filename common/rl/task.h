/**
 * @file task.h
 * @brief A task is two functions: generate a prompt with its answer, and verify a response.
 *
 *     sort     ten worked examples "8315...>1358...;" show whether to sort upwards or downwards, then a query;
 *              answer: its ten digits, sorted
 *     missing  ten worked lists of 21 letters "qzk...>behmy;" show in which order to name the five letters that a list
 *              lacks, then a list; answer: its five missing letters
 *
 * Tokens are small integers with one printable character each (dkv_task.alphabet), so the prompt can be read.
 * Everything is a pure function of (seed, index): the same example whatever was skipped before it.
 *
 * For the supervised warm-up, demonstrations may be noisy: `noise` is the mean number of random mistakes (Poisson) in
 * each answer shown.  The model learns format and rule but imitates the noise, which is what reinforcement learning
 * then removes.
 *
 * Read before: common/rng.h.  Read next: task_sort.c, rollout.h.
 */
#ifndef DKV_RL_TASK_H
#define DKV_RL_TASK_H

#include "common/status.h"

DKV_BEGIN_C

/** Most tokens of a prompt and of a response of any task. */
#define DKV_TASK_MAX_PROMPT 1024
/** Most tokens of a response, end token included. */
#define DKV_TASK_MAX_RESPONSE 16

/** One example: what is asked and what is right. */
typedef struct dkv_example {
  int32_t prompt_length;                 /**< P */
  int32_t prompt[DKV_TASK_MAX_PROMPT];   /**< [P] tokens */
  bool supervised[DKV_TASK_MAX_PROMPT];  /**< [P] prompt tokens that are answers themselves: targets of the warm-up */
  int32_t answer_length;                 /**< R, end token included */
  int32_t answer[DKV_TASK_MAX_RESPONSE]; /**< [R] a right answer (with mistakes when noise > 0) */
} dkv_example;

/** What a response is worth. */
typedef struct dkv_outcome {
  double reward; /**< what training maximises: 1 for an exact answer plus at most 0.2 of partial credit */
  bool exact; /**< entirely right and ended: the raw outcome, by which dead groups are found and accuracy is measured */
} dkv_outcome;

/** A task. */
typedef struct dkv_task {
  const char *name;     /**< "sort" */
  const char *idea;     /**< one sentence */
  const char *alphabet; /**< [vocabulary] the character that prints token i */
  int32_t vocabulary;   /**< V */
  int32_t end;          /**< token that ends a response */
  int32_t max_prompt;   /**< longest prompt */
  int32_t max_response; /**< longest response, end token included */
  double noise;         /**< mistakes in each answer shown that make a good warm-up: samples right three times in ten */
  /** Writes example `index` of stream `seed`; noise >= 0 is the mean number of mistakes in each answer shown. */
  void (*generate)(dkv_example *out, uint64_t seed, uint64_t index, double noise);
  /** Judges `length` response tokens (end token included when there is one) against the example (made with noise 0). */
  dkv_outcome (*verify)(const dkv_example *example, const int32_t *response, int32_t length);
} dkv_task;

/** All tasks; the last entry is NULL. */
extern const dkv_task *const dkv_tasks[];

/**
 * Finds a task.
 * @param[out] out  overwritten
 * @param[in]  name its name
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_RANGE (no such task: the sentence lists them)
 */
dkv_status dkv_task_find(const dkv_task **out, const char *name);

DKV_END_C
#endif
