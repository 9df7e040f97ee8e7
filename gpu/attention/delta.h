/**
 * @file delta.h
 * @brief delta_ih = <do_ih, o_ih>: the one number of a row that every backward rung needs before it starts.
 *
 * It is sum_j p_ij dp_ij, the part of the softmax's derivative that all keys of a row share, and it comes from the
 * stored (rounded) o, as the definition says.
 *
 * Read next: bwd_1_naive.cu.
 */
#ifndef DKV_GPU_DELTA_H
#define DKV_GPU_DELTA_H

#include "common/attention.h"

/**
 * Launches the kernel that writes delta, and lse in base 2, on the problem's stream.
 * @param[out] delta    [H][stride] device; zeros past T
 * @param[out] lse_log2 [H][stride] device, lse * log2(e); +infinity past T, where every weight exp2(x - inf) is 0. May
 *   be NULL
 * @param[in]  stride   >= T
 * @param[in]  p        backward problem, checked, T > 0
 * @return DKV_OK; DKV_ERR_RANGE (too many heads for a grid); DKV_ERR_CUDA
 */
dkv_status dkv_gpu_delta(float *delta, float *lse_log2, int32_t stride, const dkv_attention *p);

#endif
