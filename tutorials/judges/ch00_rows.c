/*
 * Judge of exercise 00: the student's rows against the layouts that the library builds, packed and replicated.
 */
#include <inttypes.h>
#include <stdio.h>

#include "common/layout.h"

void student_rows(int64_t *packed, int64_t *replicated, int32_t prompt, int32_t responses, const int32_t *length);

static int judge(const char *name, int32_t prompt, int32_t responses, const int32_t *length) {
  dkv_layout packed, copies;
  int64_t got[2] = {-1, -1}, none = 0;
  if (dkv_layout_group(&packed, prompt, responses, length) || dkv_layout_replicate(&copies, NULL, &packed)) {
    printf("the judge itself failed: %s\n", dkv_last_error());
    return 2;
  }
  const int64_t want[2] = {packed.rows, copies.rows};
  for (int32_t n = 0; n < responses; ++n) none += length[n] == 0;
  student_rows(&got[0], &got[1], prompt, responses, length);
  dkv_layout_free(&packed);
  dkv_layout_free(&copies);
  if (got[0] == want[0] && got[1] == want[1]) return 0;
  const int which = got[0] == want[0];
  const char *why = which ? "every response brings a prompt of its own" : "the prompt once, then all responses";
  if (which && got[1] == want[1] - none * prompt) why = "an empty response still has its prompt";
  else if (which && got[1] == want[0]) why = "that is the packed batch again";
  else if (responses > 0 && got[0] == prompt + (int64_t)responses * length[0])
    why = "responses differ in length: add them up";
  printf("%s: you say %" PRId64 " rows %s, there are %" PRId64 "; %s\n", name, got[which],
         which ? "replicated" : "packed", want[which], why);
  return 1;
}

int main(void) {
  int wrong = judge("P=3, R={2,2}", 3, 2, (const int32_t[]){2, 2});
  if (!wrong) wrong = judge("P=1000, R={100,20,300}", 1000, 3, (const int32_t[]){100, 20, 300});
  if (!wrong) wrong = judge("P=7, R={5,0,1,9}", 7, 4, (const int32_t[]){5, 0, 1, 9});
  if (!wrong) printf("right: three batches counted, packed and replicated\n");
  return wrong;
}
