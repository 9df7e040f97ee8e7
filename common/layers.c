/**
 * @file layers.c
 * @brief Finds a backend's layers by name.
 *
 * Read before: layers.h.  Read next: cpu/layers/table.c.
 */
#include "common/layers.h"

#include <string.h>

dkv_status dkv_layers_find(const dkv_layers **out, const char *name) {
  DKV_REQUIRE(out != NULL && name != NULL, DKV_ERR_NULL, "dkv_layers_find: out and name must not be NULL");
  *out = NULL;
  DKV_REQUIRE(strcmp(name, "cpu") == 0, DKV_ERR_UNSUPPORTED,
              "backend \"%.40s\" has no layers: the model runs on \"cpu\" only, attention alone on the others", name);
  *out = &dkv_cpu_layers;
  return DKV_OK;
}
