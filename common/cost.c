/**
 * @file cost.c
 * @brief Counts what a layout costs and what its replicated twin would, without building the twin.
 *
 * The replicated batch has one copy of the path for every leaf segment.  A path of n rows costs n rows, n (n+1) / 2
 * pairs, and a prediction for each row below its root that has a row before it; so one walk over the leaves counts
 * everything.
 *
 * activation_bytes: what one layer of a Qwen3-style decoder keeps for its backward when nothing is recomputed, a row:
 *
 *     4 C        the residual stream before both norms, and both norms' outputs (inputs of the projections)
 *     3 H D      q before QK-norm, q after QK-norm and RoPE, o (input of the output projection)
 *     3 Hkv D    k before QK-norm, k after QK-norm and RoPE, v
 *     3 F        gate, up, and their SwiGLU product (input of the down projection)
 *
 * elements of element_bytes each, and in f32: lse (H), the inverse norms of both RMSNorms (2) and of QK-norm (H + Hkv).
 * Times L layers.  Embedding, final norm, LM head and parameters are not in it.
 *
 * attention_bytes: q, o, dq, dout (4 H D), k, v, dk, dv (4 Hkv D) a row, and lse in f32 (H).
 *
 * Read before: cost.h, pack.h.  Read next: tests/test_cost.c.
 */
#include "common/cost.h"

#include <stdlib.h>

/** a / b, where nothing over nothing saves nothing. */
static double ratio(double a, double b) { return a == 0 && b == 0 ? 1 : a / b; }

double dkv_cost_rho(double prompt, double responses, double response_length) {
  return ratio(responses * (prompt + response_length), prompt + responses * response_length);
}

double dkv_cost_pair_ratio(double prompt, double responses, double response_length) {
  double path = prompt + response_length;
  return ratio(responses * path * path, prompt * prompt + responses * response_length * (2 * prompt + response_length));
}

/** Rows of the packed layout whose logits are used, each once: the distinct sources of dkv_predictions. */
static dkv_status count_sources(int64_t *sources, const dkv_layout *layout) {
  int32_t segments = layout->segments;
  /* owner[s]: the segment that holds the last row of the path to the end of s, -1 when that path is empty. */
  int32_t *owner = malloc(((size_t)segments + 1) * sizeof *owner);
  bool *used = calloc((size_t)segments + 1, sizeof *used);
  dkv_status status = DKV_OK;
  *sources = 0;
  if (owner == NULL || used == NULL) {
    status = dkv_fail(DKV_ERR_NOMEM, "no memory to count the predictions of %d segments", segments);
  } else {
    for (int32_t s = 0; s < segments; ++s) {
      int32_t rows = dkv_layout_length(layout, s), parent = layout->parent[s];
      int32_t above = parent < 0 ? -1 : owner[parent];
      owner[s] = rows > 0 ? s : above;
      if (parent < 0 || rows == 0) continue;
      *sources += rows - 1; /* all but its last row predict inside the segment */
      if (above >= 0 && !used[above]) ++*sources;
      if (above >= 0) used[above] = true; /* the last row of `above` serves all first tokens below it */
    }
  }
  free(owner);
  free(used);
  return status;
}

/** Rows, pairs and predictions of the replicated twin. */
static dkv_status count_replicated(dkv_cost *cost, const dkv_layout *layout) {
  int32_t root_rows = 0;
  for (int32_t s = 0; s < layout->segments; ++s) {
    if (layout->parent[s] < 0) root_rows = dkv_layout_length(layout, s);
    if (!dkv_layout_is_leaf(layout, s)) continue;
    int64_t path = (int64_t)layout->base[s] + dkv_layout_length(layout, s), pairs = path * (path + 1) / 2;
    DKV_REQUIRE(
        cost->pairs <= INT64_MAX - pairs, DKV_ERR_RANGE,
        "the paths up to segment %d have more than 2^63 - 1 visible pairs when replicated; that cannot be counted", s);
    cost->rows += path;
    cost->pairs += pairs;
    cost->predictions += path - root_rows - (root_rows == 0 && path > 0); /* the first row of a path has no source */
  }
  return DKV_OK;
}

/** Turns counts into FLOPs and bytes. */
static void price(dkv_cost *cost, const dkv_model_shape *m) {
  double rows = (double)cost->rows, layers = m->layers, width = m->width, mlp = m->mlp_width, bytes = m->element_bytes;
  double heads = m->heads, kv_heads = m->kv_heads, q = heads * m->head_dim, kv = kv_heads * m->head_dim;
  cost->linear_flops = 2 * layers * rows * (2 * width * q + 2 * width * kv + 3 * width * mlp);
  cost->pair_flops = 4 * q * layers * (double)cost->pairs;
  cost->head_flops = 2 * width * m->vocabulary * (double)cost->predictions;
  cost->attention_bytes = rows * (bytes * (4 * q + 4 * kv) + 4 * heads);
  cost->activation_bytes =
      layers * rows * (bytes * (4 * width + 3 * q + 3 * kv + 3 * mlp) + 4 * (2 + 2 * heads + kv_heads));
}

/** FLOPs of a training step: backward is twice forward for a product with weights, 2.5 times for attention. */
static double step_flops(const dkv_cost *cost) {
  return 3 * (cost->linear_flops + cost->head_flops) + 3.5 * cost->pair_flops;
}

dkv_status dkv_cost_saving(dkv_saving *out, const dkv_layout *layout, const dkv_model_shape *shape) {
  DKV_REQUIRE(out != NULL && layout != NULL && shape != NULL, DKV_ERR_NULL,
              "dkv_cost_saving: out, layout and shape must not be NULL");
  *out = (dkv_saving){0};
  const struct {
    const char *name;
    int32_t value;
  } sizes[] = {{"layers", shape->layers},       {"width", shape->width},
               {"mlp_width", shape->mlp_width}, {"vocabulary", shape->vocabulary},
               {"heads", shape->heads},         {"kv_heads", shape->kv_heads},
               {"head_dim", shape->head_dim},   {"element_bytes", shape->element_bytes}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i)
    DKV_REQUIRE(sizes[i].value >= 1, DKV_ERR_RANGE, "the model's %s is %d; every size is >= 1", sizes[i].name,
                sizes[i].value);
  dkv_saving saving = {0};
  saving.packed.rows = layout->rows;
  saving.packed.pairs = dkv_layout_pairs(layout);
  DKV_TRY(count_sources(&saving.packed.predictions, layout));
  DKV_TRY(count_replicated(&saving.replicated, layout));
  price(&saving.packed, shape);
  price(&saving.replicated, shape);
  saving.rho = ratio((double)saving.replicated.rows, (double)saving.packed.rows);
  saving.pair_ratio = ratio((double)saving.replicated.pairs, (double)saving.packed.pairs);
  saving.step_ratio = ratio(step_flops(&saving.replicated), step_flops(&saving.packed));
  *out = saving;
  return DKV_OK;
}
