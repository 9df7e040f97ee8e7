/**
 * @file cmd_sample.c
 * @brief `dualkv sample`: what a trained model answers to held-out prompts.
 *
 * Read before: train.h.  Read next: train_show.c.
 */
#include "tools/train.h"

static const char about[] =
    "usage: dualkv sample --checkpoint DIR --task sort [--count K] [--greedy] [--temperature T] [--seed S]\n\n"
    "Loads a model and shows its answers to held-out prompts, right or wrong.\n";

int dkv_cmd_sample(int argc, char *const *argv) {
  const char *checkpoint = NULL, *name = NULL;
  int64_t count = 5, seed = 1, threads = 0;
  double temperature = 1;
  bool greedy = false;
  const struct dkv_flag flags[] = {
      {"checkpoint", DKV_FLAG_TEXT, &checkpoint, "DIR", "config.json and model.safetensors", 0, 0},
      {"task", DKV_FLAG_TEXT, &name, "NAME", "sort or missing", 0, 0},
      {"count", DKV_FLAG_INT, &count, "K", "prompts (5)", 1, 100000},
      {"greedy", DKV_FLAG_SWITCH, &greedy, NULL, "the most likely answer instead of a sample", 0, 0},
      {"temperature", DKV_FLAG_REAL, &temperature, "T", "logits are divided by it (1)", 0.001, 1000},
      {"seed", DKV_FLAG_INT, &seed, "S", "of the samples (1)", 0, 9007199254740992.0},
      {"threads", DKV_FLAG_INT, &threads, "N", "CPU threads; default: all", 0, 4096},
      {0},
  };
  if (dkv_args_help(about, flags, argc, argv)) return DKV_EXIT_OK;
  const dkv_task *task = NULL;
  dkv_model model = {0};
  dkv_model_options options = {0};
  dkv_status status = dkv_args_parse("sample", flags, argc, argv, NULL);
  if (status == DKV_OK && (checkpoint == NULL || name == NULL))
    status = dkv_fail(DKV_ERR_RANGE, "dualkv sample: --checkpoint DIR and --task NAME are needed");
  if (status == DKV_OK) status = dkv_task_find(&task, name);
  options.threads = (int32_t)threads;
  if (status == DKV_OK) status = dkv_model_load(&model, checkpoint, &options);
  if (status == DKV_OK && (model.config.vocabulary < task->vocabulary ||
                           model.config.max_positions < task->max_prompt + task->max_response))
    status = dkv_fail(DKV_ERR_SHAPE, "%s has %d tokens and %d positions, but the task %s needs %d and %d", checkpoint,
                      model.config.vocabulary, model.config.max_positions, task->name, task->vocabulary,
                      task->max_prompt + task->max_response);
  if (status == DKV_OK)
    status = dkv_show_samples(&model, task, greedy ? "Most likely answers" : "Samples", (int32_t)count, temperature,
                              greedy, (uint64_t)seed);
  dkv_model_free(&model);
  return status == DKV_OK ? DKV_EXIT_OK : dkv_tool_fail(status);
}
