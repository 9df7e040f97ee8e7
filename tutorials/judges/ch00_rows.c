/*
 * Judge of exercise 00: the student's rows against the layouts that the library builds, packed and replicated.
 */
#include <inttypes.h>
#include <stdio.h>

#include "common/layout.h"

void student_rows(int64_t *packed, int64_t *replicated, int32_t prompt, int32_t responses, const int32_t *length);

enum { UNWRITTEN = -77 };

/** Why is the count of the packed (which = 0) or replicated (1) batch wrong? */
static const char *reason(int which, const int64_t *got, const int64_t *want, int32_t prompt, int32_t responses,
                          const int32_t *length) {
  int64_t all = 0, none = 0;
  for (int32_t n = 0; n < responses; ++n) all += length[n], none += length[n] == 0;
  if (got[which] == UNWRITTEN) return "nothing was written there";
  if (got[which] < 0 || got[which] == UNWRITTEN + all || got[which] == UNWRITTEN + want[which])
    return "what you add to was not set to anything before";
  if (got[0] == want[1] && got[1] == want[0]) return "the two numbers are swapped";
  if (which && got[1] == want[1] - none * prompt) return "an empty response still has its prompt";
  if (which && got[1] == want[0]) return "that is the packed batch again";
  if (!which && got[0] == prompt + (int64_t)responses * length[0]) return "responses differ in length: add them up";
  return which ? "every response brings a prompt of its own" : "the prompt once, then all responses";
}

static int judge(const char *name, int32_t prompt, int32_t responses, const int32_t *length) {
  dkv_layout packed, copies;
  int64_t got[2] = {UNWRITTEN, UNWRITTEN};
  if (dkv_layout_group(&packed, prompt, responses, length) || dkv_layout_replicate(&copies, NULL, &packed)) {
    printf("the judge itself failed: %s\n", dkv_last_error());
    return 2;
  }
  const int64_t want[2] = {packed.rows, copies.rows};
  student_rows(&got[0], &got[1], prompt, responses, length);
  dkv_layout_free(&packed);
  dkv_layout_free(&copies);
  if (got[0] == want[0] && got[1] == want[1]) return 0;
  const int which = got[0] == want[0];
  printf("%s: you say %" PRId64 " rows %s, there are %" PRId64 "; %s\n", name, got[which],
         which ? "replicated" : "packed", want[which], reason(which, got, want, prompt, responses, length));
  return 1;
}

int main(void) {
  int wrong = judge("P=3, R={2,2}", 3, 2, (const int32_t[]){2, 2});
  if (!wrong) wrong = judge("P=1000, R={100,20,300}", 1000, 3, (const int32_t[]){100, 20, 300});
  if (!wrong) wrong = judge("P=7, R={5,0,1,9}", 7, 4, (const int32_t[]){5, 0, 1, 9});
  if (!wrong) printf("right: three batches counted, packed and replicated\n");
  return wrong;
}
