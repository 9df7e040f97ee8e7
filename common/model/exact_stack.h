/**
 * @file exact_stack.h
 * @brief What forward and backward of the exact model share. Private to common/model.
 *
 * Read before: exact.h.  Read next: exact_forward.c.
 */
#ifndef DKV_MODEL_EXACT_STACK_H
#define DKV_MODEL_EXACT_STACK_H

#include <string.h>

#include "common/model/exact.h"
#include "common/model/stack.h"

/** Threads of the model. @param[in] exact the twin. @return at least 1. */
int dkv_exact_threads(const dkv_exact *exact);

/** A layer's attention with the forward's tensors. @param[in] exact the twin. @param[in] layer its tensors. @return the
 * problem. */
dkv_attention dkv_exact_problem(const dkv_exact *exact, const dkv_exact_layer *layer);

/** The token that pair i scores. @param[in] exact after a forward. @param[in] i pair. @return token. */
int32_t dkv_exact_token(const dkv_exact *exact, int32_t i);

/** The softmax of pair i's source row. @param[in] exact with logits. @param[in] i pair. @param[out] entropy nats.
 * @return lse of the logits over the temperature. */
double dkv_exact_softmax(const dkv_exact *exact, int32_t i, double *entropy);

#endif
