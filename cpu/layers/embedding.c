/**
 * @file embedding.c
 * @brief A token's row of the table, and the gradient added back to that row.
 *
 *     forward    out_tc = E[ids_t, c]                 out [T][C], E [V][C]
 *     backward   dE[v, c] += sum over t with ids_t = v of dout_tc
 *
 * Two rows with the same token write to the same place, so threads share out the channels, not the rows: each adds its
 * own channels in ascending t.
 *
 * Read before: common/layers.h.  Read next: rmsnorm.c.
 */
#include <string.h>

#include "cpu/layers/layers_cpu.h"

/** Channels that one thread adds up at a time: a cache line, so that no two threads share one. */
#define CHANNELS 16

dkv_status dkv_cpu_embedding_fwd(const dkv_where *where, float *out, const float *table, const int32_t *ids,
                                 int32_t rows, int32_t width) {
#pragma omp parallel for num_threads(dkv_where_threads(where, (int64_t)rows *width))
  for (int32_t t = 0; t < rows; ++t)
    memcpy(out + dkv_offset(t, 0, 1, width), table + dkv_offset(ids[t], 0, 1, width), (size_t)width * sizeof *out);
  return DKV_OK;
}

dkv_status dkv_cpu_embedding_bwd(const dkv_where *where, float *dtable, const float *dout, const int32_t *ids,
                                 int32_t rows, int32_t width) {
#pragma omp parallel for num_threads(dkv_where_threads(where, (int64_t)rows *width))
  for (int32_t c0 = 0; c0 < width; c0 += CHANNELS) {
    int32_t channels = width - c0 < CHANNELS ? width - c0 : CHANNELS;
    for (int32_t t = 0; t < rows; ++t) {
      const float *dout_t = dout + dkv_offset(t, 0, 1, width) + c0;
      float *dtable_v = dtable + dkv_offset(ids[t], 0, 1, width) + c0;
#pragma omp simd
      for (int32_t c = 0; c < channels; ++c) dtable_v[c] += dout_t[c];
    }
  }
  return DKV_OK;
}
