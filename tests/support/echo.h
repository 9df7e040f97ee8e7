/**
 * @file echo.h
 * @brief A task that a tiny model learns in forty steps, so that tests of the training loop take seconds.
 *
 * Read before: common/rl/trainer.h.  Read next: tests/test_trainer.c.
 */
#ifndef DKV_TESTS_ECHO_H
#define DKV_TESTS_ECHO_H

#include "common/rl/trainer.h"

/** Say the last token of the prompt (0 or 1) again, then end: twelve tokens of prompt, a cap of three. */
extern const dkv_task echo;

/** 40 steps of 4 groups of 6, two groups in a micro-batch. */
dkv_train_config echo_run(const char *algorithm);

#endif
