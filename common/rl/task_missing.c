/**
 * @file task_missing.c
 * @brief "Who is missing": 21 of 26 letters in random order; say the five that are not there, in the order that ten
 * worked examples show: a to z, or z to a.
 *
 *     ^qzkdf...>behmy; ... 9 more ... ;tnaxw...>      answer cgjsu$      P = 303, R = 6
 *
 * The prompt is fifty times longer than the answer, and every letter of the last list counts: the case for which
 * sharing was made.
 */
#include "common/rl/task_draw.h"

enum { LETTERS = 26, MISSING = 5, SHOWN = 10, ARROW = 26, SEMICOLON, BEGIN, END, VOCABULARY = 32 };

/** Draws a list and what it lacks; sign < 0: from z to a. Then replaces `mistakes` answers by random letters. */
static void draw_list(dkv_dice *dice, int32_t sign, int32_t *present, int32_t *missing, double noise) {
  int32_t order[LETTERS], n = 0;
  bool gone[LETTERS] = {false};
  for (int32_t i = 0; i < LETTERS; ++i) { /* a random order of all letters, built by insertion */
    int32_t place = dkv_roll(dice, i + 1);
    order[i] = order[place];
    order[place] = i;
  }
  for (int32_t i = 0; i < MISSING; ++i) gone[order[i]] = true;
  for (int32_t i = MISSING; i < LETTERS; ++i) present[i - MISSING] = order[i];
  for (int32_t i = 0; i < LETTERS; ++i) {
    int32_t letter = sign > 0 ? i : LETTERS - 1 - i;
    if (gone[letter]) missing[n++] = letter;
  }
  for (int32_t mistakes = noise > 0 ? dkv_roll_poisson(dice, noise) : 0; mistakes > 0; --mistakes) {
    int32_t place = dkv_roll(dice, MISSING);
    missing[place] = dkv_roll(dice, LETTERS);
  }
}

static void generate(dkv_example *out, uint64_t seed, uint64_t index, double noise) {
  dkv_dice dice = {seed, index, 0};
  int32_t sign = dkv_roll(&dice, 2) ? 1 : -1, present[LETTERS], missing[MISSING];
  out->prompt_length = 0;
  dkv_example_push(out, BEGIN, false);
  for (int32_t shown = 0; shown <= SHOWN; ++shown) {
    draw_list(&dice, sign, present, missing, noise);
    for (int32_t i = 0; i < LETTERS - MISSING; ++i) dkv_example_push(out, present[i], false);
    dkv_example_push(out, ARROW, false);
    if (shown == SHOWN) break;
    for (int32_t i = 0; i < MISSING; ++i) dkv_example_push(out, missing[i], true);
    dkv_example_push(out, SEMICOLON, false);
  }
  for (int32_t i = 0; i < MISSING; ++i) out->answer[i] = missing[i];
  out->answer[MISSING] = END;
  out->answer_length = MISSING + 1;
}

static dkv_outcome verify(const dkv_example *example, const int32_t *response, int32_t length) {
  int32_t right = 0;
  for (int32_t i = 0; i < MISSING && i < length; ++i) right += response[i] == example->answer[i];
  bool exact = right == MISSING && length == MISSING + 1 && response[MISSING] == END;
  return (dkv_outcome){(exact ? 1.0 : 0.0) + 0.2 * right / MISSING, exact};
}

/** The task of the missing letters. */
const dkv_task dkv_task_missing = {.name = "missing",
                                   .idea = "name the five letters that a long list lacks, in the order shown",
                                   .alphabet = "abcdefghijklmnopqrstuvwxyz>;^$..",
                                   .vocabulary = VOCABULARY,
                                   .end = END,
                                   .max_prompt = 303,
                                   .max_response = MISSING + 1,
                                   .noise = 0.9,
                                   .generate = generate,
                                   .verify = verify};
