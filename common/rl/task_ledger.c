/**
 * @file task_ledger.c
 * @brief "Look it up": a long ledger of keys with one digit each, twelve worked questions of five keys, then one more.
 *
 *     ^q4;B9;m1; ... 52 entries ... ;mqZaB>14720; ... 12 worked questions ... ;Bqzkm>      answer 94031$
 *                                                                                          P = 307, R = 6
 *
 * The digits are random, so nothing can be answered without reading the prompt, which is fifty times longer than the
 * answer: the case for which sharing was made.
 */
#include "common/rl/task_draw.h"

enum { KEYS = 52, ASKED = 5, WORKED = 12, ARROW = 10, SEMICOLON = 11, BEGIN = 12, END = 13, FIRST_KEY = 14 };

/** Appends "keys>digits", the digits with random mistakes; the digits are supervised. */
static void push_question(dkv_example *out, dkv_dice *dice, const int32_t *digit, double noise) {
  int32_t shown[ASKED];
  for (int32_t i = 0; i < ASKED; ++i) {
    int32_t key = dkv_roll(dice, KEYS);
    dkv_example_push(out, FIRST_KEY + key, false);
    shown[i] = digit[key];
  }
  for (int32_t mistakes = noise > 0 ? dkv_roll_poisson(dice, noise) : 0; mistakes > 0; --mistakes)
    shown[dkv_roll(dice, ASKED)] = dkv_roll(dice, 10);
  dkv_example_push(out, ARROW, false);
  for (int32_t i = 0; i < ASKED; ++i) dkv_example_push(out, shown[i], true);
}

static void generate(dkv_example *out, uint64_t seed, uint64_t index, double noise) {
  dkv_dice dice = {seed, index, 0};
  int32_t order[KEYS], digit[KEYS];
  out->prompt_length = 0;
  dkv_example_push(out, BEGIN, false);
  for (int32_t i = 0; i < KEYS; ++i) { /* a random order of all keys, built by insertion */
    int32_t place = dkv_roll(&dice, i + 1);
    order[i] = order[place];
    order[place] = i;
  }
  for (int32_t i = 0; i < KEYS; ++i) {
    dkv_example_push(out, FIRST_KEY + order[i], false);
    dkv_example_push(out, digit[order[i]] = dkv_roll(&dice, 10), false);
    dkv_example_push(out, SEMICOLON, false);
  }
  for (int32_t w = 0; w <= WORKED; ++w) {
    push_question(out, &dice, digit, noise);
    if (w < WORKED) dkv_example_push(out, SEMICOLON, false);
  }
  for (int32_t i = 0; i < ASKED; ++i) out->answer[i] = out->prompt[out->prompt_length - ASKED + i];
  out->prompt_length -= ASKED; /* the last digits are the answer, not part of the prompt */
  out->answer[ASKED] = END;
  out->answer_length = ASKED + 1;
}

static dkv_outcome verify(const dkv_example *example, const int32_t *response, int32_t length) {
  int32_t right = 0;
  for (int32_t i = 0; i < ASKED && i < length; ++i) right += response[i] == example->answer[i];
  bool exact = right == ASKED && length == ASKED + 1 && response[ASKED] == END;
  return (dkv_outcome){(exact ? 1.0 : 0.0) + 0.2 * right / ASKED, exact};
}

/** The look-up task. */
const dkv_task dkv_task_ledger = {.name = "ledger",
                                  .idea = "look up the digits of five keys in a ledger of 52 entries",
                                  .alphabet = "0123456789>;^$abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
                                  .vocabulary = FIRST_KEY + KEYS,
                                  .end = END,
                                  .max_prompt = 307,
                                  .max_response = ASKED + 1,
                                  .generate = generate,
                                  .verify = verify};
