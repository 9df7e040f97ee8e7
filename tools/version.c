/**
 * @file version.c
 * @brief The commit of this build; the only file that is compiled again when only the commit has changed.
 *
 * Read before: tool.h.
 */
#include "tools/tool.h"

#ifndef DKV_COMMIT
#define DKV_COMMIT "unknown"
#endif

const char *dkv_tool_commit(void) { return DKV_COMMIT; }
