/**
 * @file decoder.c
 * @brief The decoder, a function a line of decoder.h's drawing; each switch is read in exactly one place.
 *
 * Read before: decoder.h.  Read next: assumptions.c.
 */
#include "tests/support/decoder.h"

#include <math.h>
#include <string.h>

#include "common/mask.h"
#include "common/rng.h"

enum { C = DECODER_WIDTH, H = DECODER_HEADS, D = DECODER_DIM, F = DECODER_MLP, WINDOW = 3 };

void decoder_weights_draw(struct decoder_weights *out, uint64_t seed) {
  double *w = (double *)out;
  for (size_t i = 0; i < sizeof *out / sizeof *w; ++i) w[i] = 0.5 * (double)dkv_rng_normal(seed, 7, i);
}

/** out [height] = weight [height][width] in [width]. */
static void multiply(double *out, const double *weight, const double *in, int height, int width) {
  for (int i = 0; i < height; ++i) {
    out[i] = 0.0;
    for (int j = 0; j < width; ++j) out[i] += weight[i * width + j] * in[j];
  }
}

/** The root segment above a row: which sequence of a replicated batch, which group of a packed one. */
static int32_t root_of(const dkv_layout *l, int32_t row) {
  int32_t s = l->segment[row];
  while (l->parent[s] >= 0) s = l->parent[s];
  return s;
}

int32_t decoder_row_before(const dkv_layout *l, int32_t row) {
  int32_t s = l->segment[row];
  if (row > l->start[s]) return row - 1;
  for (s = l->parent[s]; s >= 0; s = l->parent[s])
    if (dkv_layout_length(l, s) > 0) return l->start[s + 1] - 1;
  return -1;
}

/** (A1) Does row i read row j? */
static bool sees(const struct decoder_batch *b, enum decoder_sight sight, int32_t i, int32_t j) {
  const dkv_layout *l = &b->layout;
  const int32_t *position = l->position;
  bool on_path = dkv_sees(i, j, l->end[j]), together = root_of(l, i) == root_of(l, j);
  switch (sight) {
  case SIGHT_PATH: return on_path;
  case SIGHT_PROMPT_BOTH_WAYS: return on_path || (together && position[i] < b->prompt && position[j] < b->prompt);
  case SIGHT_PROMPT_SEES_ALL: return on_path || (together && position[i] < b->prompt);
  case SIGHT_ROWS: return together && j <= i;
  case SIGHT_WINDOW: return on_path && position[i] - position[j] < WINDOW;
  default: return on_path && i - j < WINDOW;
  }
}

/** (A3) The step between two of the 255 values that an activation of row t may take. */
static double step_of(const double (*x)[C], const struct decoder_batch *b, enum decoder_quantise quantise, int32_t t) {
  double square = 0.0, largest = 0.0;
  for (int32_t r = 0; r < b->layout.rows; ++r) {
    if (quantise == QUANTISE_ROW && r != t) continue;
    if (quantise == QUANTISE_SEQUENCE && root_of(&b->layout, r) != root_of(&b->layout, t)) continue;
    for (int c = 0; c < C; ++c) {
      square += x[r][c] * x[r][c] / (C * b->layout.rows);
      largest = fmax(largest, fabs(x[r][c]));
    }
  }
  return (quantise == QUANTISE_MEAN ? 3.0 * sqrt(square) : largest) / 127.0;
}

/** out = x, rounded to 8 bits. */
static void quantise_rows(double (*out)[C], const double (*x)[C], const struct decoder_batch *b,
                          enum decoder_quantise quantise) {
  for (int32_t t = 0; t < b->layout.rows; ++t) {
    double step = quantise == QUANTISE_NONE ? 0.0 : step_of(x, b, quantise, t);
    for (int c = 0; c < C; ++c)
      out[t][c] = step == 0.0 ? x[t][c] : fmax(-127.0, fmin(127.0, round(x[t][c] / step))) * step;
  }
}

/** (A3) h = x over its root mean square: of the row, of the batch by channel, of the batch with copies counted. */
static void normalise(double (*h)[C], const double (*stream)[C], const struct decoder_batch *b,
                      const struct decoder_habits *habits) {
  double x[DECODER_ROWS][C];
  quantise_rows(x, stream, b, habits->quantise);
  for (int32_t t = 0; t < b->layout.rows; ++t)
    for (int c = 0; c < C; ++c) {
      double sum = 0.0, count = 0.0;
      for (int d = 0; d < C && habits->norm == NORM_ROW; ++d, count += 1.0) sum += x[t][d] * x[t][d];
      for (int32_t r = 0; r < b->layout.rows && habits->norm != NORM_ROW; ++r) {
        double weight = habits->norm == NORM_COPIES ? b->copies[r] : 1.0;
        sum += weight * x[r][c] * x[r][c];
        count += weight;
      }
      h[t][c] = x[t][c] / sqrt(sum / count + 1e-6);
    }
}

/** (A3) Adds half of the row before: a short convolution. */
static void mix_with_row_before(double (*h)[C], const dkv_layout *l, enum decoder_mix mix) {
  double old[DECODER_ROWS][C];
  memcpy(old, h, sizeof(double) * (size_t)l->rows * C);
  for (int32_t t = 0; t < l->rows; ++t) {
    int32_t before = mix == MIX_PATH ? decoder_row_before(l, t) : t - 1;
    if (before < 0 || root_of(l, before) != root_of(l, t)) continue;
    for (int c = 0; c < C; ++c) h[t][c] += 0.5 * old[before][c];
  }
}

/** (A2) Turns pairs of lanes by the position. */
static void turn(double *head, int32_t position) {
  for (int pair = 0; pair < D / 2; ++pair) {
    double a = position * pow(10.0, -pair), x = head[pair], y = head[pair + D / 2];
    head[pair] = x * cos(a) - y * sin(a);
    head[pair + D / 2] = y * cos(a) + x * sin(a);
  }
}

/** a [H][D] = softmax attention of row i over the rows that it sees. */
static void attend(double *a, const double *q, const double (*k)[D], const double (*v)[D],
                   const struct decoder_batch *b, enum decoder_sight sight, int32_t i) {
  memset(a, 0, sizeof(double) * H * D);
  for (int h = 0; h < H; ++h) {
    double sum = 0.0;
    for (int32_t j = 0; j < b->layout.rows; ++j) {
      if (!sees(b, sight, i, j)) continue;
      double s = 0.0;
      for (int d = 0; d < D; ++d) s += q[h * D + d] * k[j][d] / sqrt(D);
      double weight = exp(s);
      sum += weight;
      for (int d = 0; d < D; ++d) a[h * D + d] += weight * v[j][d];
    }
    for (int d = 0; d < D; ++d) a[h * D + d] /= sum;
  }
}

/** x += dropout(W_o attention). (A4) the coins of a row belong to the row itself, or to the packed row behind it. */
static void add_attention(double (*x)[C], const double (*h)[C], const struct decoder_weights *w, int layer,
                          const struct decoder_batch *b, const struct decoder_habits *habits) {
  double q[DECODER_ROWS][H * D], k[DECODER_ROWS][D], v[DECODER_ROWS][D], a[H * D], out[C];
  for (int32_t t = 0; t < b->layout.rows; ++t) {
    int32_t position = habits->position == POSITION_PATH ? b->layout.position[t] : t;
    multiply(q[t], &w->layer[layer].q[0][0], h[t], H * D, C);
    multiply(k[t], &w->layer[layer].k[0][0], h[t], D, C);
    multiply(v[t], &w->layer[layer].v[0][0], h[t], D, C);
    for (int head = 0; head < H; ++head) turn(q[t] + head * D, position);
    turn(k[t], position);
  }
  for (int32_t t = 0; t < b->layout.rows; ++t) {
    uint64_t coin = (uint64_t)(habits->dropout == DROPOUT_ROW ? b->packed_row[t] : t);
    attend(a, q[t], (const double(*)[D])k, (const double(*)[D])v, b, habits->sight, t);
    multiply(out, &w->layer[layer].o[0][0], a, C, H * D);
    for (int c = 0; c < C; ++c) {
      bool dropped =
          habits->dropout != DROPOUT_NONE && dkv_rng_uniform(5, (uint64_t)layer, coin * C + (uint64_t)c) < 0.25f;
      x[t][c] += dropped ? 0.0 : habits->dropout != DROPOUT_NONE ? out[c] / 0.75 : out[c];
    }
  }
}

/** x += mlp(h). (A3) with experts, a row goes to the one that it likes better, while that one has room. */
static void add_mlp(double (*x)[C], const double (*h)[C], const struct decoder_weights *w, int layer,
                    const struct decoder_batch *b, enum decoder_mlp mlp) {
  int32_t room = (int32_t)ceil(0.75 * b->layout.rows / DECODER_EXPERTS), taken[DECODER_EXPERTS] = {0};
  for (int32_t t = 0; t < b->layout.rows; ++t) {
    double likes[DECODER_EXPERTS], inner[F], out[C];
    multiply(likes, &w->layer[layer].router[0][0], h[t], DECODER_EXPERTS, C);
    int expert = mlp != MLP_DENSE && likes[1] > likes[0];
    if (mlp == MLP_EXPERTS_LIMITED && taken[expert]++ >= room) continue;
    multiply(inner, &w->layer[layer].up[expert][0][0], h[t], F, C);
    for (int f = 0; f < F; ++f) inner[f] = tanh(inner[f]);
    multiply(out, &w->layer[layer].down[expert][0][0], inner, C, F);
    for (int c = 0; c < C; ++c) x[t][c] += out[c];
  }
}

void decoder_forward(double (*x)[C], const struct decoder_weights *w, const struct decoder_batch *b,
                     const struct decoder_habits *habits) {
  double h[DECODER_ROWS][C];
  for (int32_t t = 0; t < b->layout.rows; ++t) memcpy(x[t], w->embed[b->id[t]], sizeof x[t]);
  for (int layer = 0; layer < DECODER_LAYERS; ++layer) {
    normalise(h, (const double(*)[C])x, b, habits);
    if (habits->mix != MIX_NONE) mix_with_row_before(h, &b->layout, habits->mix);
    add_attention(x, (const double(*)[C])h, w, layer, b, habits);
    normalise(h, (const double(*)[C])x, b, habits);
    add_mlp(x, (const double(*)[C])h, w, layer, b, habits->mlp);
  }
}

/** log softmax(E x)[id]. */
static double log_probability(const struct decoder_weights *w, const double *x, int32_t id) {
  double z[DECODER_IDS], sum = 0.0;
  multiply(z, &w->embed[0][0], x, DECODER_IDS, C);
  for (int i = 0; i < DECODER_IDS; ++i) sum += exp(z[i]);
  return z[id] - log(sum);
}

double decoder_loss(const struct decoder_weights *w, const struct decoder_batch *b,
                    const struct decoder_habits *habits) {
  double x[DECODER_ROWS][C], loss = 0.0, count = 0.0;
  decoder_forward(x, w, b, habits);
  if (habits->loss == LOSS_RESPONSES) { /* each token with a weight of its own, as advantages are */
    for (int32_t i = 0; i < b->pairs; ++i)
      loss += (i % 2 == 0 ? 1.0 : -0.6) * log_probability(w, x[b->pair[i].source], b->id[b->pair[i].target]);
    return loss;
  }
  for (int32_t t = 0; t < b->layout.rows; ++t) { /* the mean over all tokens that have one before them */
    int32_t before = decoder_row_before(&b->layout, t);
    double weight = habits->loss == LOSS_TOKENS_COPIES ? b->copies[t] : 1.0;
    if (before < 0) continue;
    loss += weight * log_probability(w, x[before], b->id[t]);
    count += weight;
  }
  return loss / count;
}
