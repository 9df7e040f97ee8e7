/**
 * @file test_task.c
 * @brief Tasks: prompts are what they say, answers are right, examples depend on (seed, index) alone.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "common/rl/task.h"

static dkv_example make(const dkv_task *task, uint64_t seed, uint64_t index, double noise) {
  static dkv_example example;
  memset(&example, 0xff, sizeof example); /* nothing may be read from a former example */
  task->generate(&example, seed, index, noise);
  return example;
}

Test(task, every_example_fits_its_task_and_its_answer_is_exact) {
  for (int t = 0; dkv_tasks[t] != NULL; ++t)
    for (uint64_t index = 0; index < 300; ++index) {
      const dkv_task *task = dkv_tasks[t];
      dkv_example e = make(task, 5, index, 0);
      cr_assert_eq(e.prompt_length, task->max_prompt, "%s %d: %d tokens", task->name, (int)index, e.prompt_length);
      cr_assert_eq(strlen(task->alphabet), (size_t)task->vocabulary);
      for (int i = 0; i < e.prompt_length; ++i)
        cr_assert(e.prompt[i] >= 0 && e.prompt[i] < task->vocabulary, "%s %d: token %d is %d", task->name, (int)index,
                  i, e.prompt[i]);
      dkv_outcome right = task->verify(&e, e.answer, e.answer_length);
      cr_assert(right.exact && right.reward == 1.2, "%s %d: the answer is worth %g", task->name, (int)index,
                right.reward);
      cr_assert_not(task->verify(&e, e.answer, e.answer_length - 1).exact, "an answer that does not end is not exact");
      e.answer[2] = (e.answer[2] + 1) % 10;
      dkv_example again = make(task, 5, index, 0);
      cr_assert_not(task->verify(&again, e.answer, e.answer_length).exact);
      cr_assert(task->verify(&again, e.answer, 0).reward == 0);
    }
}

Test(task, sort_answers_follow_the_direction_of_the_examples) {
  const dkv_task *task;
  cr_assert_eq(dkv_task_find(&task, "sort"), DKV_OK);
  int upwards = 0;
  for (uint64_t index = 0; index < 200; ++index) {
    dkv_example e = make(task, 9, index, 0);
    int sign = 0; /* of the shown answers, tokens 12 .. 21, 34 .. 43, ... */
    for (int i = 1; i < e.prompt_length; ++i)
      if (e.supervised[i] && e.supervised[i - 1])
        sign += (e.prompt[i] > e.prompt[i - 1]) - (e.prompt[i] < e.prompt[i - 1]);
    upwards += sign > 0;
    for (int i = 1; i < 10; ++i)
      cr_assert(sign > 0 ? e.answer[i] >= e.answer[i - 1] : e.answer[i] <= e.answer[i - 1], "example %d", (int)index);
  }
  cr_expect(upwards > 70 && upwards < 130, "%d of 200 go upwards", upwards);
}

Test(task, missing_letters_are_those_that_the_last_list_lacks) {
  const dkv_task *task;
  cr_assert_eq(dkv_task_find(&task, "missing"), DKV_OK);
  int upwards = 0;
  for (uint64_t index = 0; index < 200; ++index) {
    dkv_example e = make(task, 9, index, 0);
    int seen[26] = {0}, shown[2];
    for (int i = 0; i < 21; ++i) ++seen[e.prompt[e.prompt_length - 22 + i]];
    for (int i = 0; i < 5; ++i) ++seen[e.answer[i]];
    for (int letter = 0; letter < 26; ++letter) cr_assert_eq(seen[letter], 1, "example %d", (int)index);
    memcpy(shown, &e.prompt[23], sizeof shown); /* the first two letters of the first worked answer */
    int sign = shown[1] > shown[0] ? 1 : -1;
    upwards += sign > 0;
    for (int i = 1; i < 5; ++i) cr_assert(sign * (e.answer[i] - e.answer[i - 1]) > 0, "example %d", (int)index);
  }
  cr_expect(upwards > 70 && upwards < 130, "%d of 200 go upwards", upwards);
}

Test(task, examples_depend_on_seed_and_index_alone_and_noise_makes_mistakes) {
  for (int t = 0; dkv_tasks[t] != NULL; ++t) {
    dkv_example a = make(dkv_tasks[t], 1, 7, 0);
    make(dkv_tasks[t], 1, 8, 0.5);
    dkv_example b = make(dkv_tasks[t], 1, 7, 0), c = make(dkv_tasks[t], 2, 7, 0);
    cr_expect(memcmp(a.prompt, b.prompt, (size_t)a.prompt_length * sizeof(int32_t)) == 0);
    cr_expect(memcmp(a.prompt, c.prompt, (size_t)a.prompt_length * sizeof(int32_t)) != 0);
    int mistakes = 0;
    for (uint64_t index = 0; index < 100; ++index) { /* answers shown in the prompt: out of order or not in the list */
      dkv_example noisy = make(dkv_tasks[t], 3, index, 1.2), clean = make(dkv_tasks[t], 3, index, 0);
      mistakes += memcmp(noisy.prompt, clean.prompt, (size_t)clean.prompt_length * sizeof(int32_t)) != 0;
      for (int i = 0; i < noisy.answer_length; ++i)
        cr_assert(noisy.answer[i] >= 0 && noisy.answer[i] < dkv_tasks[t]->vocabulary);
    }
    cr_expect(mistakes > 95, "only %d of 100 noisy examples differ", mistakes);
  }
}

Test(task, unknown_names_are_refused_with_the_list) {
  const dkv_task *task;
  cr_expect_eq(dkv_task_find(&task, "countdown"), DKV_ERR_RANGE);
  cr_expect(strstr(dkv_last_error(), "sort, missing") != NULL, "%s", dkv_last_error());
  cr_expect_eq(dkv_task_find(&task, NULL), DKV_ERR_NULL);
  cr_expect_eq(dkv_task_find(NULL, "sort"), DKV_ERR_NULL);
}
