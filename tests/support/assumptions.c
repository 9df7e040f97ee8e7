/**
 * @file assumptions.c
 * @brief The list of counter-examples and the ruler that they are measured with.
 *
 * Read before: assumptions.h.
 */
#include "tests/support/assumptions.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/model.h"

const struct assumption assumptions[] = {
    {"prompt sees the responses",
     "A1",
     {.sight = SIGHT_PROMPT_SEES_ALL},
     {.sight = SIGHT_PROMPT_BOTH_WAYS},
     "both ways inside the prompt alone",
     false,
     false},
    {"mask by packed order", "A1", {.sight = SIGHT_ROWS}, {.sight = SIGHT_PATH}, "rule dkv_sees", false, false},
    {"window in packed rows",
     "A1",
     {.sight = SIGHT_ROW_WINDOW},
     {.sight = SIGHT_WINDOW},
     "window in path positions",
     false,
     false},
    {"positions by packed row",
     "A2",
     {.position = POSITION_ROW},
     {.position = POSITION_PATH},
     "path positions",
     false,
     false},
    {"norm over the batch",
     "A3",
     {.norm = NORM_BATCH},
     {.norm = NORM_COPIES},
     "each row counted with its copies",
     false,
     false},
    {"experts with a capacity",
     "A3",
     {.mlp = MLP_EXPERTS_LIMITED},
     {.mlp = MLP_EXPERTS},
     "experts without a limit",
     false,
     false},
    {"row before in memory", "A3", {.mix = MIX_ROWS}, {.mix = MIX_PATH}, "row before on the path", false, false},
    {"int8 scale by mean square",
     "A3",
     {.quantise = QUANTISE_MEAN},
     {.quantise = QUANTISE_LARGEST},
     "scale by the largest",
     true,
     false},
    {"int8 scale by sequence",
     "A3",
     {.quantise = QUANTISE_SEQUENCE},
     {.quantise = QUANTISE_ROW},
     "a scale a row",
     true,
     false},
    {"dropout by copy",
     "A4",
     {.dropout = DROPOUT_COPY},
     {.dropout = DROPOUT_ROW},
     "coins of the packed row",
     false,
     false},
    {"prompts that differ", "A5", {0}, {0}, "share the common prefix only", false, true},
    {"mean over all tokens",
     "A6",
     {.loss = LOSS_TOKENS},
     {.loss = LOSS_TOKENS_COPIES},
     "each row counted with its copies",
     false,
     false},
    {NULL, NULL, {0}, {0}, NULL, false, false},
};

enum { P = 3, N = 2, R = 2, GRADIENTS = 2 * DECODER_WIDTH };

/** Tokens of the two sequences; they share the first P. */
static const int32_t SEQUENCE[N][P + R] = {{4, 9, 2, 7, 1}, {4, 9, 2, 3, 8}};

/** The packed batch and its replica, with the pairs of the responses on both. @return DKV_OK or what failed */
static dkv_status open_batches(struct decoder_batch *packed, struct decoder_batch *replicated, const dkv_layout *layout,
                               int32_t prompt, const int32_t (*sequence)[P + R]) {
  int32_t *map = NULL, count = 0;
  dkv_prediction *pairs = NULL;
  *packed = (struct decoder_batch){.layout = *layout, .prompt = prompt};
  *replicated = (struct decoder_batch){.prompt = prompt};
  dkv_status status = dkv_layout_replicate(&replicated->layout, &map, layout);
  for (int32_t r = 0; status == DKV_OK && r < replicated->layout.rows; ++r) {
    replicated->id[r] = sequence[r / (P + R)][r % (P + R)];
    replicated->packed_row[r] = map[r];
    replicated->copies[r] = 1.0;
    packed->copies[map[r]] += 1.0;
    if (packed->copies[map[r]] < 1.5) packed->id[map[r]] = replicated->id[r]; /* the first copy decides */
  }
  for (int32_t t = 0; t < layout->rows; ++t) packed->packed_row[t] = t;
  if (status == DKV_OK) status = dkv_predictions(&pairs, &count, layout);
  /* Inner segments of a tree predict too; the loss is that of the responses' R tokens. */
  for (int32_t i = 0; status == DKV_OK && i < count; ++i)
    if (layout->position[pairs[i].target] >= P) packed->pair[packed->pairs++] = pairs[i];
  replicated->pairs = packed->pairs;
  if (status == DKV_OK)
    status = dkv_predictions_replicate(replicated->pair, packed->pair, packed->pairs, layout, &replicated->layout);
  free(map);
  free(pairs);
  return status;
}

/** dJ / dE[first token], dJ / dW_q[0], by central differences. */
static void differentiate(double *out, struct decoder_weights *w, const struct decoder_batch *b,
                          const struct decoder_habits *habits) {
  const double step = 1e-4;
  for (int i = 0; i < GRADIENTS; ++i) {
    double *at = i < DECODER_WIDTH ? &w->embed[b->id[0]][i] : &w->layer[0].q[0][i - DECODER_WIDTH], was = *at;
    *at = was + step;
    out[i] = decoder_loss(w, b, habits);
    *at = was - step;
    out[i] = (out[i] - decoder_loss(w, b, habits)) / (2.0 * step);
    *at = was;
  }
}

static double relative(const double *x, const double *y, int count) {
  double difference = 0.0, size = 0.0;
  for (int i = 0; i < count; ++i) {
    difference += (x[i] - y[i]) * (x[i] - y[i]);
    size += y[i] * y[i];
  }
  return sqrt(difference / size);
}

static void measure(struct gap *out, const struct decoder_batch *packed, const struct decoder_batch *replicated,
                    const struct decoder_habits *habits) {
  struct decoder_weights w;
  double x[DECODER_ROWS][DECODER_WIDTH], y[DECODER_ROWS][DECODER_WIDTH], unpacked[DECODER_ROWS][DECODER_WIDTH];
  double dx[GRADIENTS], dy[GRADIENTS];
  decoder_weights_draw(&w, 1);
  decoder_forward(x, &w, packed, habits);
  decoder_forward(y, &w, replicated, habits);
  for (int32_t r = 0; r < replicated->layout.rows; ++r)
    memcpy(unpacked[r], x[replicated->packed_row[r]], sizeof unpacked[r]);
  out->forward = relative(&unpacked[0][0], &y[0][0], replicated->layout.rows * DECODER_WIDTH);
  differentiate(dx, &w, packed, habits);
  differentiate(dy, &w, replicated, habits);
  out->gradient = relative(dx, dy, GRADIENTS);
}

dkv_status assumption_gap(struct gap *out, const struct assumption *a, bool mended) {
  static const int32_t length[N] = {R, R}, parent[3] = {-1, 0, 0}, tree[3] = {P - 1, 1 + R, 1 + R};
  int32_t sequence[N][P + R];
  bool unequal = a != NULL && a->unequal_prompts;
  struct decoder_habits habits = {0};
  if (a != NULL) habits = mended ? a->mended : a->broken;
  memcpy(sequence, SEQUENCE, sizeof sequence);
  if (unequal) sequence[1][P - 1] = 5;
  dkv_layout layout = {0};
  struct decoder_batch packed, replicated = {0};
  if (unequal && mended) DKV_TRY(dkv_layout_forest(&layout, 3, parent, tree));
  else DKV_TRY(dkv_layout_group(&layout, P, N, length));
  dkv_status status = open_batches(&packed, &replicated, &layout, P, (const int32_t(*)[P + R]) sequence);
  if (status == DKV_OK) measure(out, &packed, &replicated, &habits);
  dkv_layout_free(&layout);
  dkv_layout_free(&replicated.layout);
  return status;
}
