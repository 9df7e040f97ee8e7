/*
 * Judge of exercise 01: the student's closed count against dkv_layout_pairs, which is itself checked by brute force
 * (tests/test_layout.c).
 */
#include <inttypes.h>
#include <stdio.h>

#include "common/layout.h"

int64_t student_pairs(int32_t prompt, int32_t responses, const int32_t *length);

static int64_t library_pairs(int32_t prompt, int32_t responses, const int32_t *length) {
  dkv_layout layout;
  if (dkv_layout_group(&layout, prompt, responses, length) != DKV_OK) return -1;
  int64_t pairs = dkv_layout_pairs(&layout);
  dkv_layout_free(&layout);
  return pairs;
}

/** Says why an answer is wrong, when the reason can be told from the number. */
static const char *reason(int32_t prompt, int32_t responses, const int32_t *length, int64_t got, int64_t want) {
  int64_t rows = prompt, across = 0, copies = 0;
  for (int32_t n = 0; n < responses; ++n) {
    const int64_t path = (int64_t)prompt + length[n];
    rows += length[n], across += (int64_t)prompt * length[n], copies += path * (path + 1) / 2;
  }
  if (got == want - rows) return "a row sees itself: the diagonal is missing";
  if (got == rows * (rows + 1) / 2) return "siblings do not see each other: this is one long causal sequence";
  if (got == (int64_t)(uint32_t)want || got == (int64_t)(int32_t)want)
    return "use 64-bit products: the sum passes 2^32 here";
  if (got == copies) return "that is the replicated batch: the prompt's own pairs count once";
  if (got == want - across) return "responses read the prompt too";
  if (got == want - (int64_t)prompt * (prompt + 1) / 2) return "the prompt reads itself too";
  return "count the keys that row t of a response sees, then sum over t";
}

int main(void) {
  static const int32_t two[] = {2, 2}, ragged[] = {5, 0, 1, 9}, none[] = {0}, large[] = {2048, 70000, 131};
  const struct {
    const char *name;
    int32_t prompt, responses;
    const int32_t *length;
  } groups[] = {{"P=3, R={2,2}", 3, 2, two},
                {"P=7, R={5,0,1,9}", 7, 4, ragged},
                {"P=4, no response", 4, 0, none},
                {"P=0, R={5,0,1,9}", 0, 4, ragged},
                {"P=65536, R={2048,70000,131}", 65536, 3, large}};
  for (size_t i = 0; i < sizeof groups / sizeof groups[0]; ++i) {
    int64_t got = student_pairs(groups[i].prompt, groups[i].responses, groups[i].length);
    int64_t want = library_pairs(groups[i].prompt, groups[i].responses, groups[i].length);
    if (got != want) {
      printf("%s: you count %" PRId64 " pairs, there are %" PRId64 "; %s\n", groups[i].name, got, want,
             reason(groups[i].prompt, groups[i].responses, groups[i].length, got, want));
      return 1;
    }
  }
  printf("right: five groups counted, the largest without visiting its %" PRId64 " pairs\n",
         library_pairs(65536, 3, large));
  return 0;
}
