/**
 * @file update_sequences.c
 * @brief A caller's own data: sequences whose prompts are said to be equal, which is checked before they are packed.
 *
 * Read before: update.h, common/pack.h.
 */
#include <stdlib.h>
#include <string.h>

#include "common/rl/update.h"

/** Checks ranges; *total becomes the number of sequences. */
static dkv_status check(const dkv_sequences *s, int32_t *total) {
  DKV_REQUIRE(s && s->prompt_length && s->responses && s->begin && s->ids && s->old && s->advantage, DKV_ERR_NULL,
              "dkv_update_batch_from_sequences: an array is NULL");
  DKV_REQUIRE(s->groups >= 1, DKV_ERR_RANGE, "an update of %d groups; it needs at least one", s->groups);
  DKV_REQUIRE(s->begin[0] == 0, DKV_ERR_RANGE, "the first sequence begins at %d, not at 0", s->begin[0]);
  *total = 0;
  for (int32_t g = 0; g < s->groups; ++g) {
    DKV_REQUIRE(s->responses[g] >= 1, DKV_ERR_RANGE, "group %d has %d sequences; it needs at least one", g,
                s->responses[g]);
    DKV_REQUIRE(s->prompt_length[g] >= 1, DKV_ERR_RANGE,
                "the prompt of group %d has %d tokens; without one nothing predicts the first token", g,
                s->prompt_length[g]);
    for (int32_t n = 0; n < s->responses[g]; ++n, ++*total) {
      int64_t length = (int64_t)s->begin[*total + 1] - s->begin[*total];
      DKV_REQUIRE(length >= s->prompt_length[g], DKV_ERR_RANGE,
                  "sequence %d has %lld tokens, fewer than the %d of the prompt that it shares with group %d", *total,
                  (long long)length, s->prompt_length[g], g);
    }
  }
  return DKV_OK;
}

/** Packs the ids of all whole sequences, which dkv_pack_ids refuses when two copies of a prompt row differ. */
static dkv_status require_equal_prompts(const dkv_sequences *s, int32_t total) {
  int32_t *length = malloc((size_t)total * sizeof *length), *packed_ids = NULL, *map = NULL;
  dkv_layout packed = {0}, replicated = {0};
  dkv_status status = length ? DKV_OK : dkv_fail(DKV_ERR_NOMEM, "no memory for %d lengths", total);
  for (int32_t g = 0, i = 0; status == DKV_OK && g < s->groups; ++g)
    for (int32_t n = 0; n < s->responses[g]; ++n, ++i) length[i] = s->begin[i + 1] - s->begin[i] - s->prompt_length[g];
  if (status == DKV_OK) status = dkv_layout_groups(&packed, s->groups, s->prompt_length, s->responses, length);
  if (status == DKV_OK) status = dkv_layout_replicate(&replicated, &map, &packed);
  if (status == DKV_OK && (packed_ids = malloc((size_t)packed.rows * sizeof *packed_ids)) == NULL)
    status = dkv_fail(DKV_ERR_NOMEM, "no memory for %d rows", packed.rows);
  if (status == DKV_OK) status = dkv_pack_ids(packed_ids, packed.rows, s->ids, map, replicated.rows);
  free(length);
  free(packed_ids);
  free(map);
  dkv_layout_free(&packed);
  dkv_layout_free(&replicated);
  return status;
}

dkv_status dkv_update_batch_from_sequences(dkv_update_batch *out, const dkv_sequences *s, bool replicated) {
  DKV_REQUIRE(out != NULL, DKV_ERR_NULL, "dkv_update_batch_from_sequences: out is NULL");
  memset(out, 0, sizeof *out);
  int32_t total = 0;
  DKV_TRY(check(s, &total));
  DKV_TRY(require_equal_prompts(s, total));
  dkv_asked *asked = malloc((size_t)s->groups * sizeof *asked);
  dkv_said *said = malloc((size_t)total * sizeof *said);
  dkv_status status = asked && said ? DKV_OK : dkv_fail(DKV_ERR_NOMEM, "no memory for %d sequences", total);
  for (int32_t g = 0, i = 0; status == DKV_OK && g < s->groups; ++g) {
    int32_t prompt = s->prompt_length[g];
    asked[g] = (dkv_asked){s->ids + s->begin[i], prompt, s->responses[g]};
    for (int32_t n = 0; n < s->responses[g]; ++n, ++i) {
      int32_t first = s->begin[i] + prompt;
      said[i] = (dkv_said){s->ids + first, s->old + first, s->begin[i + 1] - first, s->advantage[i],
                           s->active == NULL || s->active[i]};
    }
  }
  if (status == DKV_OK) status = dkv_update_batch_assemble(out, asked, s->groups, said, replicated);
  free(asked);
  free(said);
  return status;
}
