/**
 * @file update_batch.c
 * @brief Lays out prompts and responses as rows and prediction pairs, packed or replicated; see update.h.
 *
 * Read before: update.h, common/pack.h.  Read next: update.c.
 */
#include <stdlib.h>
#include <string.h>

#include "common/rl/update.h"

/** Input rows of a response of `length` tokens: all but the last, which predicts nothing. */
static int32_t input_rows(int32_t length) { return length > 0 ? length - 1 : 0; }

/** The packed layout. */
static dkv_status pack(dkv_layout *out, const dkv_asked *asked, int32_t count, const dkv_said *said,
                       int32_t responses) {
  int32_t *prompt = malloc((size_t)count * sizeof *prompt), *number = malloc((size_t)count * sizeof *number);
  int32_t *length = malloc((size_t)responses * sizeof *length + 1);
  dkv_status status =
      prompt && number && length ? DKV_OK : dkv_fail(DKV_ERR_NOMEM, "no memory for the lengths of %d groups", count);
  for (int32_t g = 0; status == DKV_OK && g < count; ++g) {
    prompt[g] = asked[g].length;
    number[g] = asked[g].responses;
  }
  for (int32_t n = 0; status == DKV_OK && n < responses; ++n) length[n] = input_rows(said[n].length);
  if (status == DKV_OK) status = dkv_layout_groups(out, count, prompt, number, length);
  free(prompt);
  free(number);
  free(length);
  return status;
}

/** Response n of segment `segment`: its rows, and a pair for each of its tokens; the first is predicted by the last row
 * of its prompt, as the first of all its siblings is. */
static void fill_response(dkv_update_batch *b, int32_t n, const dkv_said *said, const dkv_layout *packed,
                          int32_t segment, int32_t last_prompt_row, int32_t *ids) {
  int32_t first = packed->start[segment], token = b->begin[n];
  if (said->length > 0) memcpy(ids + first, said->token, (size_t)input_rows(said->length) * sizeof *ids);
  b->advantage[n] = said->advantage;
  b->active[n] = said->active;
  for (int32_t t = 0; t < said->length; ++t, ++token) {
    int32_t target = t + 1 < said->length ? first + t : -1; /* the last token has no row of its own */
    b->pairs[token] = (dkv_prediction){t == 0 ? last_prompt_row : first + t - 1, target, segment};
    b->target_ids[token] = said->token[t];
    b->old[token] = said->old[t];
  }
  b->begin[n + 1] = token;
}

/** Fills everything that is counted by response and token; rows are those of the packed layout. */
static void fill(dkv_update_batch *b, const dkv_asked *asked, int32_t count, const dkv_said *said,
                 const dkv_layout *packed, int32_t *ids) {
  int32_t segment = 0, response = 0;
  for (int32_t g = 0; g < count; ++g) {
    int32_t first = packed->start[segment++], last = first + asked[g].length - 1;
    memcpy(ids + first, asked[g].token, (size_t)asked[g].length * sizeof *ids);
    for (int32_t n = 0; n < asked[g].responses; ++n, ++segment, ++response)
      fill_response(b, response, &said[response], packed, segment, last, ids);
  }
}

static dkv_status allocate(dkv_update_batch *b) {
  size_t tokens = (size_t)b->tokens + 1, responses = (size_t)b->responses + 1;
  b->pairs = malloc(tokens * sizeof *b->pairs);
  b->target_ids = malloc(tokens * sizeof *b->target_ids);
  b->old = malloc(tokens * sizeof *b->old);
  b->begin = calloc(responses, sizeof *b->begin);
  b->advantage = malloc(responses * sizeof *b->advantage);
  b->active = malloc(responses * sizeof *b->active);
  bool ok = b->pairs && b->target_ids && b->old && b->begin && b->advantage && b->active;
  return ok ? DKV_OK : dkv_fail(DKV_ERR_NOMEM, "no memory for %d response tokens", b->tokens);
}

/** Moves rows and pairs of the packed layout to the replicated one. */
static dkv_status spread(dkv_update_batch *b, const dkv_layout *packed, const int32_t *packed_ids) {
  int32_t *map = NULL;
  DKV_TRY(dkv_layout_replicate(&b->layout, &map, packed));
  b->ids = malloc((size_t)b->layout.rows * sizeof *b->ids + 1);
  dkv_status status = b->ids ? DKV_OK : dkv_fail(DKV_ERR_NOMEM, "no memory for %d replicated rows", b->layout.rows);
  if (status == DKV_OK) status = dkv_unpack_rows(b->ids, packed_ids, sizeof *b->ids, map, b->layout.rows);
  if (status == DKV_OK) status = dkv_predictions_replicate(b->pairs, b->pairs, b->tokens, packed, &b->layout);
  free(map);
  return status;
}

/** Checks lengths; counts responses, tokens and replicated rows. */
static dkv_status count_all(dkv_update_batch *b, const dkv_asked *asked, int32_t count, const dkv_said *said) {
  int64_t tokens = 0, responses = 0;
  for (int32_t g = 0; g < count; ++g) {
    DKV_REQUIRE(asked[g].length >= 1 && asked[g].token != NULL, DKV_ERR_RANGE,
                "the prompt of group %d has %d tokens; without one nothing predicts the first token", g,
                asked[g].length);
    DKV_REQUIRE(asked[g].responses >= 0, DKV_ERR_RANGE, "group %d has %d responses", g, asked[g].responses);
    for (int32_t n = 0; n < asked[g].responses; ++n) {
      const dkv_said *one = &said[responses + n];
      DKV_REQUIRE(one->length >= 0, DKV_ERR_RANGE, "response %d of group %d has %d tokens", n, g, one->length);
      DKV_REQUIRE(one->length == 0 || (one->token && one->old), DKV_ERR_NULL,
                  "response %d of group %d has %d tokens, but no token or no log-probability array", n, g, one->length);
      tokens += one->length;
      b->replicated_rows += asked[g].length + input_rows(one->length);
    }
    responses += asked[g].responses;
    DKV_REQUIRE(tokens <= DKV_MAX_ROWS && responses <= DKV_MAX_SEGMENTS, DKV_ERR_RANGE,
                "a micro-batch of %lld responses and %lld tokens; at most %d and %d fit", (long long)responses,
                (long long)tokens, DKV_MAX_SEGMENTS, DKV_MAX_ROWS);
  }
  b->tokens = (int32_t)tokens;
  b->responses = (int32_t)responses;
  return DKV_OK;
}

dkv_status dkv_update_batch_assemble(dkv_update_batch *out, const dkv_asked *asked, int32_t count, const dkv_said *said,
                                     bool replicated) {
  DKV_REQUIRE(out != NULL, DKV_ERR_NULL, "dkv_update_batch_assemble: out is NULL");
  memset(out, 0, sizeof *out);
  DKV_REQUIRE(count >= 1, DKV_ERR_RANGE, "an update of %d groups; it needs at least one", count);
  DKV_REQUIRE(asked && said, DKV_ERR_NULL, "dkv_update_batch_assemble: prompts or responses are NULL");
  dkv_layout packed = {0};
  int32_t *ids = NULL;
  dkv_status status = count_all(out, asked, count, said);
  if (status == DKV_OK) status = allocate(out);
  if (status == DKV_OK) status = pack(&packed, asked, count, said, out->responses);
  if (status == DKV_OK && (ids = malloc((size_t)packed.rows * sizeof *ids + 1)) == NULL)
    status = dkv_fail(DKV_ERR_NOMEM, "no memory for %d packed rows", packed.rows);
  if (status == DKV_OK) fill(out, asked, count, said, &packed, ids);
  if (status == DKV_OK && replicated) status = spread(out, &packed, ids);
  if (status == DKV_OK && !replicated) {
    out->layout = packed;
    out->ids = ids;
    return DKV_OK;
  }
  free(ids);
  dkv_layout_free(&packed);
  if (status != DKV_OK) dkv_update_batch_free(out);
  return status;
}

dkv_status dkv_update_batch_make(dkv_update_batch *out, const dkv_group *const *groups, int32_t count,
                                 bool replicated) {
  DKV_REQUIRE(out != NULL, DKV_ERR_NULL, "dkv_update_batch_make: out is NULL");
  memset(out, 0, sizeof *out);
  DKV_REQUIRE(groups != NULL, DKV_ERR_NULL, "dkv_update_batch_make: groups is NULL");
  DKV_REQUIRE(count >= 1, DKV_ERR_RANGE, "an update of %d groups; it needs at least one", count);
  size_t responses = 0, next = 0;
  for (int32_t g = 0; g < count; ++g) {
    DKV_REQUIRE(groups[g] != NULL, DKV_ERR_NULL, "dkv_update_batch_make: group %d is NULL", g);
    responses += (size_t)groups[g]->responses;
  }
  dkv_asked *asked = malloc((size_t)count * sizeof *asked);
  dkv_said *said = malloc(responses * sizeof *said + 1);
  dkv_status status = asked && said ? DKV_OK : dkv_fail(DKV_ERR_NOMEM, "no memory for %d groups", count);
  for (int32_t g = 0; status == DKV_OK && g < count; ++g) {
    const dkv_group *group = groups[g];
    asked[g] = (dkv_asked){group->example.prompt, group->example.prompt_length, group->responses};
    for (int32_t n = 0; n < group->responses; ++n) {
      int64_t at = (int64_t)n * DKV_TASK_MAX_RESPONSE;
      said[next++] =
          (dkv_said){group->token + at, group->logprob + at, group->length[n], group->advantage[n], group->active[n]};
    }
  }
  if (status == DKV_OK) status = dkv_update_batch_assemble(out, asked, count, said, replicated);
  free(asked);
  free(said);
  return status;
}

void dkv_update_batch_free(dkv_update_batch *batch) {
  if (batch == NULL) return;
  dkv_layout_free(&batch->layout);
  free(batch->ids);
  free(batch->pairs);
  free(batch->target_ids);
  free(batch->begin);
  free(batch->advantage);
  free(batch->active);
  free(batch->old);
  memset(batch, 0, sizeof *batch);
}

dkv_policy_batch dkv_update_policy_view(const dkv_update_batch *b) {
  return (dkv_policy_batch){
      .responses = b->responses, .begin = b->begin, .advantage = b->advantage, .active = b->active, .old = b->old};
}
