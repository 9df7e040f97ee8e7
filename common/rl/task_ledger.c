/**
 * @file task_ledger.c
 * @brief "Look it up": a long list of keys with their numbers, eight worked questions, then one more question.
 *
 *     ^q41730;B99214;... 52 entries ...;k>30718;  ... 8 worked questions ... ;q>      answer 41730$     P = 431, R = 6
 *
 * The numbers are random, so nothing can be answered without reading the prompt, which is seventy times longer than the
 * answer: the case for which sharing was made.
 */
#include "common/rl/task_draw.h"

enum { KEYS = 52, NUMBER = 5, WORKED = 8, ARROW = 10, SEMICOLON = 11, BEGIN = 12, END = 13, FIRST_KEY = 14 };

/** Appends "key>number", the number with random mistakes; the digits are supervised. */
static void push_question(dkv_example *out, dkv_dice *dice, int32_t key, const int32_t *number, double noise) {
  int32_t shown[NUMBER];
  for (int32_t i = 0; i < NUMBER; ++i) shown[i] = number[i];
  for (int32_t mistakes = noise > 0 ? dkv_roll_poisson(dice, noise) : 0; mistakes > 0; --mistakes)
    shown[dkv_roll(dice, NUMBER)] = dkv_roll(dice, 10);
  dkv_example_push(out, FIRST_KEY + key, false);
  dkv_example_push(out, ARROW, false);
  for (int32_t i = 0; i < NUMBER; ++i) dkv_example_push(out, shown[i], true);
}

static void generate(dkv_example *out, uint64_t seed, uint64_t index, double noise) {
  dkv_dice dice = {seed, index, 0};
  int32_t order[KEYS], number[KEYS][NUMBER];
  out->prompt_length = 0;
  dkv_example_push(out, BEGIN, false);
  for (int32_t i = 0; i < KEYS; ++i) { /* a random order of all keys, built by insertion */
    int32_t place = dkv_roll(&dice, i + 1);
    order[i] = order[place];
    order[place] = i;
  }
  for (int32_t i = 0; i < KEYS; ++i) {
    dkv_example_push(out, FIRST_KEY + order[i], false);
    for (int32_t d = 0; d < NUMBER; ++d) dkv_example_push(out, number[order[i]][d] = dkv_roll(&dice, 10), false);
    dkv_example_push(out, SEMICOLON, false);
  }
  for (int32_t w = 0; w <= WORKED; ++w) {
    int32_t key = dkv_roll(&dice, KEYS);
    push_question(out, &dice, key, number[key], noise);
    if (w < WORKED) dkv_example_push(out, SEMICOLON, false);
  }
  for (int32_t i = 0; i < NUMBER; ++i) out->answer[i] = out->prompt[out->prompt_length - NUMBER + i];
  out->prompt_length -= NUMBER; /* the last number is the answer, not part of the prompt */
  out->answer[NUMBER] = END;
  out->answer_length = NUMBER + 1;
}

static dkv_outcome verify(const dkv_example *example, const int32_t *response, int32_t length) {
  int32_t right = 0;
  for (int32_t i = 0; i < NUMBER && i < length; ++i) right += response[i] == example->answer[i];
  bool exact = right == NUMBER && length == NUMBER + 1 && response[NUMBER] == END;
  return (dkv_outcome){(exact ? 1.0 : 0.0) + 0.2 * right / NUMBER, exact};
}

/** The look-up task. */
const dkv_task dkv_task_ledger = {.name = "ledger",
                                  .idea = "look up a key's number in a list of 52 entries",
                                  .alphabet = "0123456789>;^$abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
                                  .vocabulary = FIRST_KEY + KEYS,
                                  .end = END,
                                  .max_prompt = 431,
                                  .max_response = NUMBER + 1,
                                  .generate = generate,
                                  .verify = verify};
