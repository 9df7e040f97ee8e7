/**
 * @file exact_math.h
 * @brief The layers of the exact model in double, each as its formula says. Private to common/model.
 *
 * Formulas and shapes are those of common/layers.h; `threads` never changes a result, since every output element is
 * summed by one thread in ascending order.
 *
 * Read before: exact.h.  Read next: exact_math.c.
 */
#ifndef DKV_MODEL_EXACT_MATH_H
#define DKV_MODEL_EXACT_MATH_H

#include "common/backend.h"

/** out = x w^T. @param[out] out [rows][out_width]. @param[in] x [rows][in]. @param[in] w [out_width][in]. @param[in]
 * rows,in,out_width sizes. @param[in] threads threads. */
void dkv_exact_linear(double *out, const double *x, const double *w, int32_t rows, int32_t in, int32_t out_width,
                      int threads);

/** dx (+)= dout w, dw += dout^T x. @param[in,out] dx [rows][in]. @param[in] add += for dx. @param[in,out] dw
 * [out_width][in]. @param[in] dout [rows][out_width]. @param[in] x,w,rows,in,out_width,threads as the forward. */
void dkv_exact_linear_bwd(double *dx, bool add, double *dw, const double *dout, const double *x, const double *w,
                          int32_t rows, int32_t in, int32_t out_width, int threads);

/** out = x / sqrt(mean x^2 + epsilon) w. @param[out] out [rows][width]. @param[in] x [rows][width]. @param[in] w
 * [width]. @param[in] rows,width,epsilon,threads sizes and constants. */
void dkv_exact_norm(double *out, const double *x, const double *w, int64_t rows, int32_t width, double epsilon,
                    int threads);

/** The derivative of dkv_exact_norm; dx may be dout when add is false. @param[in,out] dx [rows][width]. @param[in] add
 * += for dx. @param[in,out] dw [width] added. @param[in] dout [rows][width]. @param[in] x,w,rows,width,epsilon as the
 * forward. */
void dkv_exact_norm_bwd(double *dx, bool add, double *dw, const double *dout, const double *x, const double *w,
                        int64_t rows, int32_t width, double epsilon);

/** Rotates heads by their position, in place. @param[in,out] x [rows][heads][dim]. @param[in] position [rows].
 * @param[in] rows,heads,dim sizes. @param[in] theta base. @param[in] turn 1, or -1 for the backward. @param[in] threads
 * threads. */
void dkv_exact_rotate(double *x, const int32_t *position, int32_t rows, int32_t heads, int32_t dim, double theta,
                      double turn, int threads);

/**
 * Attention by the "ref" backend, root by root: rows of different roots never see each other.
 * @param[in] problem   layout, shape, scale and tensors in f64; lse as dkv_exact_layer says; no workspace
 * @param[in] direction which
 * @return DKV_OK; DKV_ERR_NOMEM; what the kernel said
 */
dkv_status dkv_exact_attention(const dkv_attention *problem, dkv_direction direction);

#endif
