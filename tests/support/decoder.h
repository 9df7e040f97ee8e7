/**
 * @file decoder.h
 * @brief A two-layer decoder in double, with a switch for each assumption of the proof in docs/equivalence.md.
 *
 *     x_0 = E[id]
 *     layer   h = mix(norm(quantise(x)))     q, k, v = W h     turn q and k by position     attend to what `sight`
 * allows x = x + dropout(W_o a)         x = x + mlp(norm(quantise(x))) J = sum over pairs (source, target) of  weight *
 * log softmax(E x_source)[id_target]
 *
 * It is not the library's model, which offers none of these ways to be wrong; it is small, and every switch changes one
 * line of it.  A zeroed struct decoder_habits is the decoder of the proof.
 *
 * Read before: common/layout.h, common/pack.h.  Read next: decoder.c, assumptions.h.
 */
#ifndef DKV_TESTS_DECODER_H
#define DKV_TESTS_DECODER_H

#include "common/pack.h"

enum {
  DECODER_LAYERS = 2,
  DECODER_WIDTH = 8,   /* C */
  DECODER_HEADS = 2,   /* H, on one key head */
  DECODER_DIM = 4,     /* D */
  DECODER_MLP = 12,    /* F */
  DECODER_IDS = 11,    /* V */
  DECODER_EXPERTS = 2, /* of a mixture of experts */
  DECODER_ROWS = 16,   /* most rows of a batch */
  DECODER_PAIRS = 16   /* most pairs of a loss */
};

/** (A1) What the attention of row i reads. */
enum decoder_sight {
  SIGHT_PATH,
  SIGHT_PROMPT_BOTH_WAYS,
  SIGHT_PROMPT_SEES_ALL,
  SIGHT_ROWS,
  SIGHT_WINDOW,
  SIGHT_ROW_WINDOW
};
/** (A2) What turns q and k. */
enum decoder_position { POSITION_PATH, POSITION_ROW };
/** (A3) What a row is divided by. */
enum decoder_norm { NORM_ROW, NORM_BATCH, NORM_COPIES };
/** (A3) What a row is added to before its projections: nothing, half of the row before it. */
enum decoder_mix { MIX_NONE, MIX_PATH, MIX_ROWS };
/** (A3) The MLP: one for all; the better of two experts, with or without a limit of rows for each. */
enum decoder_mlp { MLP_DENSE, MLP_EXPERTS, MLP_EXPERTS_LIMITED };
/** (A3) Rounding of activations to 8 bits, by a scale that comes from: a row; all rows' mean square, their largest. */
enum decoder_quantise { QUANTISE_NONE, QUANTISE_ROW, QUANTISE_MEAN, QUANTISE_LARGEST, QUANTISE_SEQUENCE };
/** (A4) Whose coin decides what is dropped. */
enum decoder_dropout { DROPOUT_NONE, DROPOUT_COPY, DROPOUT_ROW };
/** (A6) What is summed: log-probabilities of responses; the mean over all tokens, prompt too, copies counted or not. */
enum decoder_loss { LOSS_RESPONSES, LOSS_TOKENS, LOSS_TOKENS_COPIES };

/** One switch an assumption. */
struct decoder_habits {
  enum decoder_sight sight;
  enum decoder_position position;
  enum decoder_norm norm;
  enum decoder_mix mix;
  enum decoder_mlp mlp;
  enum decoder_quantise quantise;
  enum decoder_dropout dropout;
  enum decoder_loss loss;
};

/** Weights, all drawn from one seed. */
struct decoder_weights {
  double embed[DECODER_IDS][DECODER_WIDTH];
  struct {
    double q[DECODER_HEADS * DECODER_DIM][DECODER_WIDTH], k[DECODER_DIM][DECODER_WIDTH], v[DECODER_DIM][DECODER_WIDTH];
    double o[DECODER_WIDTH][DECODER_HEADS * DECODER_DIM];
    double up[DECODER_EXPERTS][DECODER_MLP][DECODER_WIDTH], down[DECODER_EXPERTS][DECODER_WIDTH][DECODER_MLP];
    double router[DECODER_EXPERTS][DECODER_WIDTH];
  } layer[DECODER_LAYERS];
};

/** Rows of one layout, packed or replicated. */
struct decoder_batch {
  dkv_layout layout;
  int32_t prompt;                     /* positions below it are the prompt's */
  int32_t id[DECODER_ROWS];           /* token of each row */
  int32_t packed_row[DECODER_ROWS];   /* the packed row of which this one is a copy; itself when packed */
  double copies[DECODER_ROWS];        /* rows of the replicated layout that this row stands for; 1 when replicated */
  dkv_prediction pair[DECODER_PAIRS]; /* of the responses; the same order on both layouts */
  int32_t pairs;
};

/** Draws all weights. */
void decoder_weights_draw(struct decoder_weights *out, uint64_t seed);

/**
 * The decoder.
 * @param[out] x      [rows][DECODER_WIDTH] activations after the last layer
 * @param[in]  w      weights
 * @param[in]  batch  rows
 * @param[in]  habits what it does
 */
void decoder_forward(double (*x)[DECODER_WIDTH], const struct decoder_weights *w, const struct decoder_batch *batch,
                     const struct decoder_habits *habits);

/** J of a fresh forward. */
double decoder_loss(const struct decoder_weights *w, const struct decoder_batch *batch,
                    const struct decoder_habits *habits);

/** The row before `row` on its path, or -1. */
int32_t decoder_row_before(const dkv_layout *layout, int32_t row);

#endif
