/**
 * @file pass.c
 * @brief Gets a batch ready: checks it, sorts the pairs by the row that predicts them, plans the memory, prepares the
 * kernels.
 *
 * Read before: model.h, plan.h.  Read next: forward.c.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/stack.h"

dkv_status dkv_batch_check(const dkv_model *model, const dkv_batch *batch) {
  const dkv_layout *layout = batch->layout;
  const dkv_model_config *config = &model->config;
  DKV_REQUIRE(layout != NULL, DKV_ERR_NULL, "dkv_pass_set: the batch has no layout");
  DKV_REQUIRE(batch->ids != NULL || layout->rows == 0, DKV_ERR_NULL, "dkv_pass_set: the batch has no token ids");
  DKV_REQUIRE(batch->pairs != NULL || batch->pair_count == 0, DKV_ERR_NULL, "dkv_pass_set: the batch has no pairs");
  DKV_REQUIRE(batch->pair_count >= 0, DKV_ERR_RANGE, "dkv_pass_set: pair_count is %d; it must be 0 or more",
              batch->pair_count);
  DKV_REQUIRE(isfinite(batch->temperature) && batch->temperature > 0.0f, DKV_ERR_RANGE,
              "dkv_pass_set: temperature is %g; it must be a positive number", (double)batch->temperature);
  for (int32_t t = 0; t < layout->rows; ++t) {
    DKV_REQUIRE(batch->ids[t] >= 0 && batch->ids[t] < config->vocabulary, DKV_ERR_RANGE,
                "dkv_pass_set: the token of row %d is %d; it must be 0 to %d", t, batch->ids[t],
                config->vocabulary - 1);
    DKV_REQUIRE(layout->position[t] < config->max_positions, DKV_ERR_RANGE,
                "dkv_pass_set: row %d has path position %d; the model has positions 0 to %d", t, layout->position[t],
                config->max_positions - 1);
  }
  for (int32_t i = 0; i < batch->pair_count; ++i) {
    const dkv_prediction *pair = &batch->pairs[i];
    DKV_REQUIRE(pair->source >= 0 && pair->source < layout->rows, DKV_ERR_RANGE,
                "dkv_pass_set: pair %d has source row %d; it must be 0 to %d", i, pair->source, layout->rows - 1);
    DKV_REQUIRE(batch->target_ids != NULL || (pair->target >= 0 && pair->target < layout->rows), DKV_ERR_RANGE,
                "dkv_pass_set: pair %d has target row %d; it must be 0 to %d", i, pair->target, layout->rows - 1);
    DKV_REQUIRE(batch->target_ids == NULL || (batch->target_ids[i] >= 0 && batch->target_ids[i] < config->vocabulary),
                DKV_ERR_RANGE, "dkv_pass_set: pair %d scores token %d; it must be 0 to %d", i, batch->target_ids[i],
                config->vocabulary - 1);
  }
  return DKV_OK;
}

/** Sorts the pairs by source, stably: a counting sort over rows. */
static dkv_status index_pairs(dkv_pass *pass) {
  const dkv_batch *batch = &pass->batch;
  size_t pairs = (size_t)batch->pair_count, rows = (size_t)batch->layout->rows, needed = 5 * pairs + 1 + rows + 1;
  if (needed > pass->index_count) {
    int32_t *grown = realloc(pass->index, needed * sizeof *grown);
    DKV_REQUIRE(grown != NULL, DKV_ERR_NOMEM, "no memory to sort %zu pairs", pairs);
    pass->index = grown;
    pass->index_count = needed;
  }
  int32_t *first = pass->index; /* [rows + 1] first place of each row's pairs, then, while filling, the next free one */
  pass->source_row = first + rows + 1;
  pass->source_position = pass->source_row + pairs;
  pass->source_begin = pass->source_position + pairs;
  pass->pair_order = pass->source_begin + pairs + 1;
  pass->pair_token = pass->pair_order + pairs;
  memset(first, 0, (rows + 1) * sizeof *first);
  for (size_t i = 0; i < pairs; ++i) first[batch->pairs[i].source + 1]++;
  pass->source_count = 0;
  pass->source_begin[0] = 0;
  for (size_t t = 0; t < rows; ++t) {
    int32_t here = first[t + 1];
    first[t + 1] += first[t];
    if (here == 0) continue;
    pass->source_position[pass->source_count] = batch->layout->position[t];
    pass->source_row[pass->source_count++] = (int32_t)t;
    pass->source_begin[pass->source_count] = first[t + 1];
  }
  for (size_t i = 0; i < pairs; ++i) {
    int32_t place = first[batch->pairs[i].source]++;
    pass->pair_order[place] = (int32_t)i;
    pass->pair_token[place] = batch->target_ids != NULL ? batch->target_ids[i] : batch->ids[batch->pairs[i].target];
  }
  return DKV_OK;
}

/** Path positions that a layout uses: one more than the largest. */
static int32_t positions_of(const dkv_layout *layout) {
  int32_t positions = 0;
  for (int32_t t = 0; t < layout->rows; ++t)
    if (layout->position[t] >= positions) positions = layout->position[t] + 1;
  return positions;
}

dkv_status dkv_pass_rope(dkv_pass *pass, const dkv_model *model, int32_t positions) {
  if (positions <= pass->rope_positions && pass->rope_theta == model->config.rope_theta) return DKV_OK;
  model->backend->release(pass->rope);
  pass->rope = NULL;
  pass->rope_positions = 0;
  void *memory = NULL;
  DKV_TRY(model->backend->allocate(&memory, (size_t)positions * (size_t)model->config.head_dim * sizeof(float)));
  pass->rope = memory;
  dkv_where where = {.threads = model->options.threads};
  DKV_TRY(model->layers->rope_table(&where, pass->rope, positions, model->config.head_dim, model->config.rope_theta));
  pass->rope_positions = positions;
  pass->rope_theta = model->config.rope_theta;
  return DKV_OK;
}

/** Chooses the attention kernels for a layout and asks for their workspaces, each rounded up to 256 bytes. */
static dkv_status choose_kernels(dkv_pass *pass, const dkv_model *model, const dkv_layout *layout, bool forward_only) {
  dkv_attention problem = {.layout = layout,
                           .heads = model->config.heads,
                           .kv_heads = model->config.kv_heads,
                           .head_dim = model->config.head_dim,
                           .scale = 1.0 / sqrt(model->config.head_dim),
                           .dtype = DKV_F32,
                           .deterministic = true,
                           .threads = model->options.threads};
  pass->attention_fwd = problem;
  pass->attention_bwd = problem;
  size_t bytes = 0;
  DKV_TRY(dkv_kernel_find(&pass->kernel_fwd, model->backend, DKV_FORWARD, model->options.forward, &problem));
  DKV_TRY(pass->kernel_fwd->workspace(&problem, &bytes));
  pass->attention_fwd.workspace_bytes = (bytes + 255) / 256 * 256;
  if (forward_only) return DKV_OK;
  DKV_TRY(dkv_kernel_find(&pass->kernel_bwd, model->backend, DKV_BACKWARD, model->options.backward, &problem));
  DKV_TRY(pass->kernel_bwd->workspace(&problem, &bytes));
  pass->attention_bwd.workspace_bytes = (bytes + 255) / 256 * 256;
  return DKV_OK;
}

static dkv_status make_plan(dkv_plan *out, const dkv_pass *pass, const dkv_model *model, int32_t rows, int32_t sources,
                            bool forward_only) {
  dkv_keep keep = forward_only ? DKV_KEEP_NOTHING : model->options.recompute ? DKV_KEEP_INPUTS : DKV_KEEP_ALL;
  return dkv_plan_make(out, &model->config, rows, sources, model->options.whole_last_layer, keep,
                       model->layers->lm_chunk(sources, model->config.vocabulary),
                       pass->attention_fwd.workspace_bytes + pass->attention_bwd.workspace_bytes);
}

static dkv_status make_room(dkv_pass *pass, const dkv_model *model) {
  if (pass->plan.total_bytes > pass->arena_bytes) {
    model->backend->release(pass->arena);
    pass->arena = NULL;
    pass->arena_bytes = 0;
    void *memory = NULL;
    DKV_TRY(model->backend->allocate(&memory, pass->plan.total_bytes));
    pass->arena = memory;
    pass->arena_bytes = pass->plan.total_bytes;
  }
  char *workspace = dkv_plan_workspace(&pass->plan, pass->arena);
  if (pass->attention_fwd.workspace_bytes > 0) pass->attention_fwd.workspace = workspace;
  if (pass->attention_bwd.workspace_bytes > 0)
    pass->attention_bwd.workspace = workspace + pass->attention_fwd.workspace_bytes;
  if (pass->kernel_fwd->prepare != NULL) DKV_TRY(pass->kernel_fwd->prepare(&pass->attention_fwd));
  if (!pass->batch.forward_only && pass->kernel_bwd->prepare != NULL)
    DKV_TRY(pass->kernel_bwd->prepare(&pass->attention_bwd));
  return DKV_OK;
}

dkv_status dkv_pass_set(dkv_pass *pass, const dkv_model *model, const dkv_batch *batch) {
  DKV_REQUIRE(pass != NULL && model != NULL && batch != NULL, DKV_ERR_NULL,
              "dkv_pass_set: pass, model and batch must not be NULL");
  pass->forward_done = false;
  pass->backend = model->backend;
  DKV_TRY(dkv_batch_check(model, batch));
  pass->batch = *batch;
  DKV_TRY(index_pairs(pass));
  DKV_TRY(dkv_pass_rope(pass, model, positions_of(batch->layout)));
  DKV_TRY(choose_kernels(pass, model, batch->layout, batch->forward_only));
  DKV_TRY(make_plan(&pass->plan, pass, model, batch->layout->rows, pass->source_count, batch->forward_only));
  return make_room(pass, model);
}

dkv_status dkv_pass_plan(dkv_plan *out, const dkv_model *model, const dkv_layout *layout, bool forward_only) {
  DKV_REQUIRE(out != NULL && model != NULL && layout != NULL, DKV_ERR_NULL,
              "dkv_pass_plan: out, model and layout must not be NULL");
  dkv_prediction *pairs = NULL;
  int32_t count = 0, sources = 0;
  DKV_TRY(dkv_predictions(&pairs, &count, layout));
  bool *predicts = calloc((size_t)layout->rows + 1, sizeof *predicts);
  dkv_status status = DKV_OK;
  if (predicts == NULL) status = dkv_fail(DKV_ERR_NOMEM, "no memory to count predicting rows");
  for (int32_t i = 0; status == DKV_OK && i < count; ++i) {
    sources += !predicts[pairs[i].source];
    predicts[pairs[i].source] = true;
  }
  free(predicts);
  free(pairs);
  dkv_pass pass = {0};
  if (status == DKV_OK) status = choose_kernels(&pass, model, layout, forward_only);
  if (status == DKV_OK) status = make_plan(out, &pass, model, layout->rows, sources, forward_only);
  return status;
}

void dkv_pass_free(dkv_pass *pass) {
  if (pass == NULL) return;
  free(pass->index);
  if (pass->backend != NULL) {
    pass->backend->release(pass->arena);
    pass->backend->release(pass->rope);
  }
  memset(pass, 0, sizeof *pass);
}
