/**
 * @file state.h
 * @brief What a saved run holds beside weights and moments: its settings, which must agree when it is continued, and
 * its counters.
 *
 * Read before: common/model/optimizer.h.  Read next: trainer_state.c, warmup.c.
 */
#ifndef DKV_RL_STATE_H
#define DKV_RL_STATE_H

#include "common/model/optimizer.h"

DKV_BEGIN_C

/** A number that a continued run must share with the saved one. */
typedef struct dkv_setting {
  const char *name; /**< as sentences say it: "learning rate" */
  double value;     /**< whole numbers up to 2^53 are exact */
} dkv_setting;

/** Counters of a run. */
typedef struct dkv_counters {
  int64_t step;         /**< steps done */
  int64_t next_example; /**< number of the next prompt */
  double seconds;       /**< spent in steps */
} dkv_counters;

/**
 * Saves a run in one file that appears whole or not at all.
 * @param[in] path          where
 * @param[in] kind          "training" or "warm-up"
 * @param[in] model         weights
 * @param[in] optimizer     moments
 * @param[in] setting       [setting_count]
 * @param[in] setting_count settings
 * @param[in] counters      counters
 * @param[in] reference     a second model's weights (the KL term's), or NULL
 * @return as dkv_resume_save
 */
dkv_status dkv_state_save(const char *path, const char *kind, const dkv_model *model, const dkv_optimizer *optimizer,
                          const dkv_setting *setting, int32_t setting_count, const dkv_counters *counters,
                          const dkv_model *reference);

/**
 * Continues a saved run.  Settings are compared first: nothing changes on failure.
 * @param[in]     path,kind,setting,setting_count as dkv_state_save
 * @param[in,out] model,optimizer overwritten
 * @param[out]    counters        overwritten
 * @param[in,out] reference       weights overwritten, or NULL
 * @return DKV_OK; DKV_ERR_RANGE (a setting: its name and both values); DKV_ERR_FORMAT; as dkv_resume_load
 */
dkv_status dkv_state_load(const char *path, const char *kind, dkv_model *model, dkv_optimizer *optimizer,
                          const dkv_setting *setting, int32_t setting_count, dkv_counters *counters,
                          dkv_model *reference);

DKV_END_C
#endif
