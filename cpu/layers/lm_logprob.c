/**
 * @file lm_logprob.c
 * @brief LM head, softmax, log-probability and entropy in one pass over a chunk of rows: T x V logits never exist.
 *
 *     z_v = <x_u, W_v> / temperature      lse = log sum_v e^{z_v}      p_v = e^{z_v - lse}
 *     forward    logprob_i = z_{token i} - lse                          H = lse - sum_v p_v z_v
 *     backward   dz_v = sum_i g_i (1[v = token i] - p_v)  -  (sum_i e_i) p_v (log p_v + H)
 *                dx_u = dz W / temperature          dW += dz^T x / temperature          g = dlogprob, e = dentropy
 *
 * Only rows that predict come here.  The last prompt row comes once, with N entries: its softmax is computed once and
 * its gradient is the sum of N, which is all that prompt sharing changes in the loss.  The backward recomputes a
 * chunk's logits, since keeping them would be the T x V buffer again; dz overwrites them.
 *
 * Read before: linear.c.  Read next: adamw.c, common/model/forward.c.
 */
#include <math.h>

#include "cpu/exp.h"
#include "cpu/layers/layers_cpu.h"

/** Floats of logits in a chunk: 4 MiB. */
#define CHUNK_FLOATS (1 << 20)
/** Logits that are added up in float before the sum goes on in double: a vocabulary may have 150 000. */
#define BLOCK 512

/** Rows of a chunk: at least one; a multiple of 16 if several. */
static int32_t chunk_rows(int32_t rows, int32_t vocabulary) {
  int32_t fit = CHUNK_FLOATS / vocabulary;
  if (fit >= 16) fit -= fit % 16;
  return fit < 1 ? 1 : fit < rows ? fit : rows;
}

size_t dkv_cpu_lm_chunk(int32_t rows, int32_t vocabulary) {
  return (size_t)chunk_rows(rows, vocabulary) * (size_t)vocabulary;
}

/** Divides one row of logits by the temperature; returns its lse and its entropy. */
static float row_softmax(float *z, int32_t vocabulary, float inverse_temperature, float *entropy) {
  float largest = -INFINITY;
#pragma omp simd reduction(max : largest)
  for (int32_t v = 0; v < vocabulary; ++v) {
    z[v] *= inverse_temperature;
    largest = z[v] > largest ? z[v] : largest;
  }
  double sum = 0.0, moment = 0.0; /* sum of e^d and of d e^d, d = z - largest <= 0: nothing overflows */
  for (int32_t v0 = 0; v0 < vocabulary; v0 += BLOCK) {
    int32_t last = vocabulary - v0 < BLOCK ? vocabulary : v0 + BLOCK;
    float block_sum = 0.0f, block_moment = 0.0f;
#pragma omp simd reduction(+ : block_sum, block_moment)
    for (int32_t v = v0; v < last; ++v) {
      float d = z[v] - largest, e = dkv_exp(d);
      block_sum += e;
      block_moment += d * e;
    }
    sum += (double)block_sum;
    moment += (double)block_moment;
  }
  double log_sum = log(sum);
  *entropy = (float)(log_sum - moment / sum);
  return (float)((double)largest + log_sum);
}

dkv_status dkv_cpu_lm_logprob_fwd(const dkv_where *where, float *logprob, float *entropy, float *lse, float *chunk,
                                  const dkv_scored *scored, const float *x, const float *weight, int32_t width,
                                  int32_t vocabulary) {
  int32_t step = chunk_rows(scored->rows, vocabulary);
  float inverse_temperature = 1.0f / scored->temperature;
  for (int32_t u0 = 0; u0 < scored->rows; u0 += step) {
    int32_t rows = scored->rows - u0 < step ? scored->rows - u0 : step;
    DKV_TRY(dkv_cpu_linear_fwd(where, chunk, false, x + dkv_offset(u0, 0, 1, width), weight, rows, width, vocabulary));
#pragma omp parallel for num_threads(dkv_where_threads(where, 4 * (int64_t)rows * vocabulary))
    for (int32_t u = u0; u < u0 + rows; ++u) {
      float *z = chunk + dkv_offset(u - u0, 0, 1, vocabulary), row_entropy;
      lse[u] = row_softmax(z, vocabulary, inverse_temperature, &row_entropy);
      for (int32_t i = scored->begin[u]; i < scored->begin[u + 1]; ++i) {
        logprob[scored->pair[i]] = z[scored->token[i]] - lse[u];
        if (entropy != NULL) entropy[scored->pair[i]] = row_entropy;
      }
    }
  }
  return DKV_OK;
}

/** Turns one row of raw logits into the gradient of the raw logits, the factor 1 / temperature included. */
static void row_bwd(float *z, const dkv_scored *scored, int32_t u, float lse, const float *dlogprob,
                    const float *dentropy, int32_t vocabulary) {
  float inverse_temperature = 1.0f / scored->temperature, g = 0.0f, e = 0.0f, entropy = 0.0f;
  for (int32_t i = scored->begin[u]; i < scored->begin[u + 1]; ++i) {
    g += dlogprob[scored->pair[i]];
    if (dentropy != NULL) e += dentropy[scored->pair[i]];
  }
  if (e != 0.0f) row_softmax(z, vocabulary, inverse_temperature, &entropy);
  float scale = e != 0.0f ? 1.0f : inverse_temperature; /* row_softmax has divided by the temperature already */
#pragma omp simd
  for (int32_t v = 0; v < vocabulary; ++v) {
    float log_p = z[v] * scale - lse, p = dkv_exp(log_p);
    z[v] = -inverse_temperature * p * (g + e * (log_p + entropy));
  }
  for (int32_t i = scored->begin[u]; i < scored->begin[u + 1]; ++i)
    z[scored->token[i]] += inverse_temperature * dlogprob[scored->pair[i]];
}

dkv_status dkv_cpu_lm_logprob_bwd(const dkv_where *where, float *dx, float *dweight, float *chunk,
                                  const dkv_scored *scored, const float *dlogprob, const float *dentropy,
                                  const float *lse, const float *x, const float *weight, int32_t width,
                                  int32_t vocabulary) {
  int32_t step = chunk_rows(scored->rows, vocabulary);
  for (int32_t u0 = 0; u0 < scored->rows; u0 += step) {
    int32_t rows = scored->rows - u0 < step ? scored->rows - u0 : step;
    const float *x_u0 = x + dkv_offset(u0, 0, 1, width);
    DKV_TRY(dkv_cpu_linear_fwd(where, chunk, false, x_u0, weight, rows, width, vocabulary));
#pragma omp parallel for num_threads(dkv_where_threads(where, 4 * (int64_t)rows * vocabulary))
    for (int32_t u = u0; u < u0 + rows; ++u)
      row_bwd(chunk + dkv_offset(u - u0, 0, 1, vocabulary), scored, u, lse[u], dlogprob, dentropy, vocabulary);
    DKV_TRY(dkv_cpu_linear_bwd(where, dx + dkv_offset(u0, 0, 1, width), false, dweight, chunk, x_u0, weight, rows,
                               width, vocabulary));
  }
  return DKV_OK;
}
