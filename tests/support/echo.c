/**
 * @file echo.c
 * @brief The echo task; see echo.h.
 */
#include "echo.h"

#include <string.h>

#include "common/rng.h"
#include "expect.h"

static void generate(dkv_example *out, uint64_t seed, uint64_t index, double noise) {
  (void)noise; /* it has no warm-up */
  memset(out, 0, sizeof *out);
  out->prompt_length = 12;
  out->prompt[11] = (int32_t)(dkv_rng(seed, index, 0).word[0] % 2);
  out->answer[0] = out->prompt[11];
  out->answer[1] = 3;
  out->answer_length = 2;
}

static dkv_outcome verify(const dkv_example *example, const int32_t *response, int32_t length) {
  bool exact = length == 2 && response[0] == example->answer[0] && response[1] == 3;
  return (dkv_outcome){exact + 0.2 * (length > 0 && response[0] == example->answer[0]), exact};
}

const dkv_task echo = {.name = "echo",
                       .idea = "say it again",
                       .alphabet = "ab.$",
                       .vocabulary = 4,
                       .end = 3,
                       .max_prompt = 12,
                       .max_response = 3,
                       .generate = generate,
                       .verify = verify};

dkv_train_config echo_run(const char *algorithm) {
  dkv_train_config c;
  EXPECT_OK(dkv_train_defaults(&c, &echo, algorithm));
  c.groups = 4;
  c.responses = 6;
  c.groups_per_batch = 2;
  c.schedule.total = 40;
  c.schedule.peak = 2e-3;
  return c;
}
