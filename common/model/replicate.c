/**
 * @file replicate.c
 * @brief The scored pairs of a packed layout, found again in its replicated layout.
 *
 *     packed      P P P a a b b          pair (2 -> 5): the last prompt row predicts b's first token
 *     replicated  P P P a a | P P P b b       becomes (7 -> 8): the prompt row of b's own copy
 *
 * A replicated root holds one path in path order, so a row's place inside it is its path position.
 *
 * Read before: model.h, common/layout.h.
 */
#include <stdlib.h>

#include "common/model/model.h"

/** [S] number of the first path (leaf) at or below each segment. */
static int32_t *first_paths(const dkv_layout *layout) {
  int32_t *path = malloc((size_t)layout->segments * sizeof *path + 1), leaves = 0;
  for (int32_t s = 0; path != NULL && s < layout->segments; ++s) {
    path[s] = leaves; /* leaves before s: the next leaf, at s or below it, has this number */
    leaves += dkv_layout_is_leaf(layout, s);
  }
  return path;
}

static dkv_status replicate(dkv_prediction *out, const dkv_prediction *pair, const dkv_layout *packed,
                            const dkv_layout *replicated, const int32_t *path) {
  DKV_REQUIRE(pair->segment >= 0 && pair->segment < packed->segments, DKV_ERR_RANGE,
              "dkv_predictions_replicate: a pair has segment %d; it must be 0 to %d", pair->segment,
              packed->segments - 1);
  DKV_REQUIRE(pair->source >= 0 && pair->source < packed->rows, DKV_ERR_RANGE,
              "dkv_predictions_replicate: a pair has source row %d; it must be 0 to %d", pair->source,
              packed->rows - 1);
  bool has_target = pair->target >= 0 && pair->target < packed->rows;
  int32_t copy = path[pair->segment],
          last = has_target ? packed->position[pair->target] : packed->position[pair->source];
  DKV_REQUIRE(copy < replicated->segments && last < dkv_layout_length(replicated, copy), DKV_ERR_MISMATCH,
              "dkv_predictions_replicate: path %d has no row %d: this is not the replicated layout of the packed one",
              copy, last);
  out->source = replicated->start[copy] + packed->position[pair->source];
  out->target = has_target ? replicated->start[copy] + last : -1;
  out->segment = copy;
  return DKV_OK;
}

dkv_status dkv_predictions_replicate(dkv_prediction *out, const dkv_prediction *pairs, int32_t count,
                                     const dkv_layout *packed, const dkv_layout *replicated) {
  DKV_REQUIRE(((out != NULL && pairs != NULL) || count == 0) && packed != NULL && replicated != NULL, DKV_ERR_NULL,
              "dkv_predictions_replicate: out, pairs and the layouts must not be NULL");
  int32_t *path = first_paths(packed);
  DKV_REQUIRE(path != NULL, DKV_ERR_NOMEM, "no memory for the paths of %d segments", packed->segments);
  dkv_status status = DKV_OK;
  for (int32_t i = 0; status == DKV_OK && i < count; ++i)
    status = replicate(&out[i], &pairs[i], packed, replicated, path);
  free(path);
  return status;
}
