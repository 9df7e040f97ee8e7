/**
 * @file task.c
 * @brief The list of tasks; to add one, write its two functions in a file of its own and put its name here.
 */
#include "common/rl/task.h"

#include <string.h>

extern const dkv_task dkv_task_sort, dkv_task_missing;

const dkv_task *const dkv_tasks[] = {&dkv_task_sort, &dkv_task_missing, NULL};

dkv_status dkv_task_find(const dkv_task **out, const char *name) {
  DKV_REQUIRE(out != NULL && name != NULL, DKV_ERR_NULL, "dkv_task_find: an argument is NULL");
  for (int32_t i = 0; dkv_tasks[i] != NULL; ++i)
    if (strcmp(dkv_tasks[i]->name, name) == 0) {
      *out = dkv_tasks[i];
      return DKV_OK;
    }
  return dkv_fail(DKV_ERR_RANGE, "the task is \"%s\", but it must be one of sort, missing", name);
}
