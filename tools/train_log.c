/**
 * @file train_log.c
 * @brief Metrics of a run, one JSON object a line: "run", then "warmup", "evaluation" and "step" lines.
 *
 * Everything that the pictures and tables of the documentation show is read back from such a file.
 *
 * Read before: train.h.  Read next: curves.c.
 */
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/model/json_file.h"
#include "cpu/host.h"
#include "tools/train.h"

/** May this line of an older file stay? Lines of steps that will run again may not. */
static bool keeps(const char *line, int64_t warmup_step, int64_t step) {
  cJSON *object = cJSON_Parse(line);
  const cJSON *kind = cJSON_GetObjectItemCaseSensitive(object, "kind");
  const cJSON *number = cJSON_GetObjectItemCaseSensitive(object, "step");
  bool keep = cJSON_IsString(kind); /* a line cut off by a crash is none */
  if (keep && cJSON_IsNumber(number)) {
    if (strcmp(kind->valuestring, "warmup") == 0) keep = number->valuedouble < (double)warmup_step;
    else keep = number->valuedouble <= (double)step; /* steps are numbered from 1: steps done */
  }
  cJSON_Delete(object);
  return keep;
}

/** Copies the lines that stay into a new file that takes the old one's place. */
static dkv_status trim(const char *path, int64_t warmup_step, int64_t step) {
  struct stat info;
  if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) return DKV_OK; /* a pipe or a device keeps no lines */
  FILE *old = fopen(path, "r");
  if (old == NULL && errno == ENOENT) return DKV_OK;
  DKV_REQUIRE(old != NULL, DKV_ERR_IO, "cannot read %s: %s", path, strerror(errno));
  char *line = NULL, *kept = NULL;
  size_t room = 0, bytes = 0;
  FILE *new = open_memstream(&kept, &bytes);
  while (new != NULL && getline(&line, &room, old) > 0)
    if (keeps(line, warmup_step, step)) fputs(line, new);
  free(line);
  fclose(old);
  bool whole = new != NULL &&fclose(new) == 0;
  dkv_status status = whole ? DKV_OK : dkv_fail(DKV_ERR_NOMEM, "no memory to read %s", path);
  if (status == DKV_OK && bytes > 0 && kept[bytes - 1] == '\n') kept[bytes - 1] = '\0'; /* saving adds the last one */
  if (status == DKV_OK) status = dkv_text_save(path, kept);
  free(kept);
  return status;
}

dkv_status dkv_log_open(FILE **out, const char *path, bool resume, int64_t warmup_step, int64_t step) {
  *out = NULL;
  if (resume) DKV_TRY(trim(path, warmup_step, step));
  *out = fopen(path, resume ? "a" : "w");
  DKV_REQUIRE(*out != NULL, DKV_ERR_IO, "cannot write %s: %s", path, strerror(errno));
  return DKV_OK;
}

dkv_status dkv_log_check(FILE *log) {
  DKV_REQUIRE(log == NULL || (fflush(log) == 0 && !ferror(log)), DKV_ERR_IO,
              "not all metrics could be written; is the disk full?");
  return DKV_OK;
}

void dkv_log_run(const struct dkv_training *s) {
  const dkv_train_config *c = &s->config;
  char date[32], processor[128];
  if (s->log == NULL) return;
  cJSON *o = cJSON_CreateObject();
  dkv_host_processor(processor, sizeof processor);
  cJSON_AddStringToObject(o, "kind", "run");
  cJSON_AddStringToObject(o, "task", s->task->name);
  cJSON_AddStringToObject(o, "algorithm", s->flags->algorithm);
  cJSON_AddStringToObject(o, "layout", c->replicated ? "replicated" : "packed");
  cJSON_AddNumberToObject(o, "seed", (double)c->seed);
  cJSON_AddNumberToObject(o, "steps", (double)c->schedule.total);
  cJSON_AddNumberToObject(o, "groups", c->groups);
  cJSON_AddNumberToObject(o, "responses", c->responses);
  cJSON_AddNumberToObject(o, "groups_per_batch", c->groups_per_batch);
  cJSON_AddNumberToObject(o, "epochs", c->epochs);
  cJSON_AddNumberToObject(o, "temperature", (double)c->temperature);
  cJSON_AddNumberToObject(o, "learning_rate", c->schedule.peak);
  cJSON_AddNumberToObject(o, "kl", c->loss.kl_weight);
  cJSON_AddBoolToObject(o, "exact", c->exact);
  cJSON_AddBoolToObject(o, "whole_last_layer", s->flags->whole);
  cJSON_AddStringToObject(o, "dead", s->flags->dead);
  cJSON_AddNumberToObject(o, "prompt", s->task->max_prompt);
  cJSON_AddNumberToObject(o, "parameters", (double)dkv_params_elements(&s->model.params));
  cJSON_AddNumberToObject(o, "threads", dkv_host_threads((int32_t)s->flags->threads));
  cJSON_AddStringToObject(o, "device", processor);
  cJSON_AddStringToObject(o, "date", dkv_tool_date(date));
  cJSON_AddStringToObject(o, "commit", dkv_tool_commit());
  char *text = cJSON_PrintUnformatted(o);
  if (text != NULL) fprintf(s->log, "%s\n", text);
  fflush(s->log);
  cJSON_free(text);
  cJSON_Delete(o);
}

void dkv_log_warmup(FILE *log, const dkv_warmup_stats *x) {
  if (log == NULL) return;
  fprintf(log,
          "{\"kind\":\"warmup\",\"step\":%lld,\"loss\":%.9g,\"grad_norm\":%.6g,\"learning_rate\":%.6g,"
          "\"tokens\":%lld,\"rows\":%lld,\"seconds\":%.6g}\n",
          (long long)x->step, x->loss, x->grad_norm, x->learning_rate, (long long)x->tokens, (long long)x->rows,
          x->total_seconds);
  fflush(log);
}

void dkv_log_self_check(const struct dkv_training *s, int64_t step, const dkv_self_check *x, double seconds[][2],
                        int64_t count) {
  if (s->log == NULL) return;
  fprintf(s->log,
          "{\"kind\":\"self_check\",\"step\":%lld,\"packed_rows\":%lld,\"replicated_rows\":%lld,\"packed_loss\":%.9g,"
          "\"replicated_loss\":%.9g,\"worst\":%.4g,\"worst_parameter\":\"%s\"",
          (long long)step, (long long)x->rows[0], (long long)x->rows[1], x->loss[0], x->loss[1], x->worst,
          x->worst_parameter);
  for (int way = 0; way < 2; ++way) {
    fprintf(s->log, ",\"%s_seconds\":[", way ? "replicated" : "packed");
    for (int64_t i = 0; i < count; ++i) fprintf(s->log, i ? ",%.6g" : "%.6g", seconds[i][way]);
    fprintf(s->log, "]");
  }
  fprintf(s->log, "}\n");
  fflush(s->log);
}

void dkv_log_step(const struct dkv_training *s, const dkv_train_stats *x) {
  if (s->log == NULL) return;
  fprintf(s->log,
          "{\"kind\":\"step\",\"step\":%lld,\"seconds\":%.6g,\"reward\":%.9g,\"accuracy\":%.9g,\"length\":%.6g,"
          "\"truncated\":%.6g,\"sampled_groups\":%d,\"dead_groups\":%d,\"resampled\":%d,\"used_groups\":%d,",
          (long long)x->step + 1, x->total_seconds, x->reward, x->accuracy, x->length, x->truncated, x->sampled_groups,
          x->dead_groups, x->resampled, x->used_groups);
  fprintf(s->log,
          "\"loss\":%.9g,\"kl\":%.6g,\"entropy\":%.6g,\"clipped_low\":%.6g,\"clipped_high\":%.6g,\"clipped_dual\":%.6g,"
          "\"grad_norm\":%.12g,\"learning_rate\":%.6g,\"updated\":%s,",
          x->loss, x->kl, x->entropy, x->clipped_low, x->clipped_high, x->clipped_dual, x->grad_norm, x->learning_rate,
          x->updated ? "true" : "false");
  fprintf(s->log,
          "\"mismatch_max\":%.4g,\"mismatch_mean\":%.4g,\"tokens\":%lld,\"rows\":%lld,\"replicated_rows\":%lld,"
          "\"rollout_seconds\":%.6g,\"update_seconds\":%.6g,\"tokens_per_second\":%.6g}\n",
          x->mismatch_max, x->mismatch_mean, (long long)x->tokens, (long long)x->rows, (long long)x->replicated_rows,
          x->rollout_seconds, x->update_seconds, x->tokens_per_second);
  fflush(s->log);
}

void dkv_log_evaluation(const struct dkv_training *s, int64_t step, double seconds, const dkv_evaluation *x) {
  if (s->log == NULL) return;
  fprintf(s->log,
          "{\"kind\":\"evaluation\",\"step\":%lld,\"seconds\":%.6g,\"sampled\":%.6g,\"greedy\":%.6g,\"pass\":%.6g,"
          "\"reward\":%.6g,\"length\":%.6g,\"truncated\":%.6g}\n",
          (long long)step, seconds, x->sampled, x->greedy, x->pass, x->reward, x->length, x->truncated);
  fflush(s->log);
}
