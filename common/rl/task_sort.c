/**
 * @file task_sort.c
 * @brief "Sort as shown": ten worked examples tell whether digits go upwards or downwards; then comes a query.
 *
 *     ^4071325988>0123457889; ... 9 more ... ;5530298417>      answer 0123455789$      P = 232, R = 11
 *
 * The direction stands nowhere but in the examples, so the prompt is needed; and it is twenty times longer than the
 * answer, so sharing it pays.
 */
#include "common/rl/task_draw.h"

enum { DIGITS = 10, SHOWN = 10, ARROW = 10, SEMICOLON = 11, BEGIN = 12, END = 13 };

/** Draws ten digits and sorts them by counting; sign < 0 sorts downwards. Then swaps `mistakes` random pairs. */
static void draw_pair(dkv_dice *dice, int32_t sign, int32_t *query, int32_t *sorted, double noise) {
  int32_t count[10] = {0}, n = 0;
  for (int32_t i = 0; i < DIGITS; ++i) ++count[query[i] = dkv_roll(dice, 10)];
  for (int32_t d = 0; d < 10; ++d)
    for (int32_t c = count[sign > 0 ? d : 9 - d]; c > 0; --c) sorted[n++] = sign > 0 ? d : 9 - d;
  for (int32_t mistakes = noise > 0 ? dkv_roll_poisson(dice, noise) : 0; mistakes > 0; --mistakes) {
    int32_t a = dkv_roll(dice, DIGITS), b = dkv_roll(dice, DIGITS), held = sorted[a];
    sorted[a] = sorted[b];
    sorted[b] = held;
  }
}

static void generate(dkv_example *out, uint64_t seed, uint64_t index, double noise) {
  dkv_dice dice = {seed, index, 0};
  int32_t sign = dkv_roll(&dice, 2) ? 1 : -1, query[DIGITS], sorted[DIGITS];
  out->prompt_length = 0;
  dkv_example_push(out, BEGIN, false);
  for (int32_t shown = 0; shown <= SHOWN; ++shown) {
    draw_pair(&dice, sign, query, sorted, noise);
    for (int32_t i = 0; i < DIGITS; ++i) dkv_example_push(out, query[i], false);
    dkv_example_push(out, ARROW, false);
    if (shown == SHOWN) break;
    for (int32_t i = 0; i < DIGITS; ++i) dkv_example_push(out, sorted[i], true);
    dkv_example_push(out, SEMICOLON, false);
  }
  for (int32_t i = 0; i < DIGITS; ++i) out->answer[i] = sorted[i];
  out->answer[DIGITS] = END;
  out->answer_length = DIGITS + 1;
}

static dkv_outcome verify(const dkv_example *example, const int32_t *response, int32_t length) {
  int32_t right = 0;
  for (int32_t i = 0; i < DIGITS && i < length; ++i) right += response[i] == example->answer[i];
  bool exact = right == DIGITS && length == DIGITS + 1 && response[DIGITS] == END;
  return (dkv_outcome){(exact ? 1.0 : 0.0) + 0.2 * right / DIGITS, exact};
}

/** The sorting task. */
const dkv_task dkv_task_sort = {.name = "sort",
                                .idea = "sort ten digits in the direction that ten worked examples show",
                                .alphabet = "0123456789>;^$..",
                                .vocabulary = 16,
                                .end = END,
                                .max_prompt = 232,
                                .max_response = DIGITS + 1,
                                .noise = 1.2,
                                .generate = generate,
                                .verify = verify};
