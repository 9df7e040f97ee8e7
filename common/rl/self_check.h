/**
 * @file self_check.h
 * @brief Before a run: the gradient of its first step, packed and replicated, parameter by parameter.
 *
 * Packed == replicated is what sharing the prompt rests on.  It holds up to rounding: the sums are the same, their
 * order is not.  A parameter whose two gradients differ by more than the tolerance is named.
 *
 * Read before: trainer.h.
 */
#ifndef DKV_RL_SELF_CHECK_H
#define DKV_RL_SELF_CHECK_H

#include "common/rl/trainer.h"

DKV_BEGIN_C

/** Relative difference that rounding may make in float. */
#define DKV_SELF_CHECK_TOLERANCE 1e-4

/** What was found. */
typedef struct dkv_self_check {
  double loss[2];           /**< packed, replicated */
  int64_t rows[2];          /**< packed, replicated */
  double seconds[2];        /**< of the gradient, packed, replicated */
  double norm;              /**< of the packed gradient */
  int32_t parameters;       /**< tensors compared */
  double worst;             /**< largest |g_packed - g_replicated| / |g_packed|, Frobenius norms of one tensor */
  char worst_parameter[72]; /**< where */
  bool drawn;               /**< rewards gave no signal, so random advantages were used */
} dkv_self_check;

/**
 * Compares two gradients of the same parameters.
 * @param[in,out] out       norm, parameters, worst, worst_parameter overwritten
 * @param[in]     packed    one
 * @param[in]     other     [packed->count] the other
 * @param[in]     tolerance largest allowed relative difference of a tensor, and of what is absent in one of them
 * @return DKV_OK; DKV_ERR_NULL; DKV_ERR_MISMATCH (the parameter and the difference; also when everything is 0 or
 * something is not finite)
 */
dkv_status dkv_gradients_compare(dkv_self_check *out, const dkv_params *packed, const float *other, double tolerance);

/**
 * Samples the first step of the run and computes its gradient both ways.  The run itself is not advanced; weights and
 * moments stay as they are.
 * @param[in,out] trainer   the run; gradients and samples overwritten
 * @param[in]     tolerance DKV_SELF_CHECK_TOLERANCE
 * @param[out]    out       overwritten
 * @return DKV_OK; DKV_ERR_MISMATCH (a parameter or the loss, both values); as dkv_trainer_step
 */
dkv_status dkv_trainer_self_check(dkv_trainer *trainer, double tolerance, dkv_self_check *out);

DKV_END_C
#endif
