/**
 * @file cmd_kernels.c
 * @brief `dualkv kernels`: the list of kernels.def, as text or as the Markdown table of the docs.
 *
 * Read before: tool.h, common/kernels.def.
 */
#include <stdio.h>

#include "tools/tool.h"

/** A line of kernels.def, without its functions: they exist only where the backend was built. */
struct entry {
  const char *backend, *direction, *name, *file, *idea;
  dkv_determinism determinism;
  uint32_t dtypes, head_dims;
};

#define DKV_KERNEL(backend, direction, name, file, determinism, dtypes, head_dims, idea)                               \
  {#backend, #direction, #name, file, idea, determinism, dtypes, head_dims},
static const struct entry entries[] = {
#include "common/kernels.def"
};
#undef DKV_KERNEL

enum { ENTRIES = sizeof entries / sizeof entries[0] };

static const char about[] =
    "usage: dualkv kernels [--markdown]\n\n"
    "Lists every attention kernel of common/kernels.def, from the simplest to the fastest, and says which\n"
    "can run here.\n";

static const char *repeats(dkv_determinism determinism) {
  return determinism == DKV_ALWAYS ? "always" : determinism == DKV_ON_REQUEST ? "on request" : "no";
}

/** "f32 bf16 f16" */
static void list_dtypes(char *out, size_t bytes, uint32_t set) {
  size_t used = 0;
  out[0] = '\0';
  for (int d = 0; d < DKV_DTYPES; ++d)
    if ((set & DKV_BIT((unsigned)d)) != 0 && used < bytes)
      used += (size_t)snprintf(out + used, bytes - used, used ? " %s" : "%s", dkv_dtype_name((dkv_dtype)d));
}

/** "64 96 128", or "8 to 256" for all of them. */
static void list_head_dims(char *out, size_t bytes, uint32_t set) {
  size_t used = 0;
  out[0] = '\0';
  if (set == DKV_HEAD_DIMS_ALL) {
    snprintf(out, bytes, "8 to 256");
    return;
  }
  for (int dim = 8; dim <= DKV_MAX_HEAD_DIM && used < bytes; dim += 8)
    if ((set & DKV_HEAD_DIM(dim)) != 0) used += (size_t)snprintf(out + used, bytes - used, used ? " %d" : "%d", dim);
}

/** "yes", or why the kernel cannot run on this machine. */
static const char *runs_here(const struct entry *entry) {
  const dkv_backend *backend = NULL;
  const dkv_kernel *kernel = NULL;
  dkv_direction direction = entry->direction[0] == 'f' ? DKV_FORWARD : DKV_BACKWARD;
  if (dkv_backend_find(&backend, entry->backend) != DKV_OK ||
      dkv_kernel_find(&kernel, backend, direction, entry->name, NULL) != DKV_OK ||
      (kernel->available != NULL && kernel->available() != DKV_OK))
    return "no";
  return "yes";
}

static void print_markdown(void) {
  printf("| backend | direction | kernel | types | head sizes | same bits | idea |\n|---|---|---|---|---|---|---|\n");
  for (int i = 0; i < ENTRIES; ++i) {
    const struct entry *e = &entries[i];
    char dtypes[64], dims[160];
    list_dtypes(dtypes, sizeof dtypes, e->dtypes);
    list_head_dims(dims, sizeof dims, e->head_dims);
    printf("| %s | %s | [%s](../%s) | %s | %s | %s | %s |\n", e->backend,
           e->direction[0] == 'f' ? "forward" : "backward", e->name, e->file, dtypes, dims, repeats(e->determinism),
           e->idea);
  }
}

/** The device of one backend, or why there is none. */
static void print_device(const char *name) {
  const struct dkv_style *style = dkv_tool_style();
  const dkv_backend *backend = NULL;
  char device[256];
  if (dkv_backend_find(&backend, name) == DKV_OK && backend->describe(device, sizeof device) == DKV_OK) {
    printf("%s: %s\n", name, device);
    return;
  }
  printf("%s%s%s\n", style->dim, dkv_last_error(), style->off); /* the sentence names its backend */
}

/** The devices, then the kernels; only those of one backend when it is named. */
static void print_text(const char *only) {
  const struct dkv_style *style = dkv_tool_style();
  for (int b = 0; dkv_backend_names[b] != NULL; ++b)
    if (only == NULL || strcmp(only, dkv_backend_names[b]) == 0) print_device(dkv_backend_names[b]);
  printf("\n%s%-8s %-10s %-11s%-6s%-18s%-12s%-12s%s%s\n", style->title, "backend", "direction", "kernel", "here",
         "types", "head sizes", "same bits", "idea", style->off);
  for (int i = 0; i < ENTRIES; ++i) {
    const struct entry *e = &entries[i];
    char dtypes[64], dims[160];
    if (only != NULL && strcmp(only, e->backend) != 0) continue;
    list_dtypes(dtypes, sizeof dtypes, e->dtypes);
    list_head_dims(dims, sizeof dims, e->head_dims);
    printf("%-8s %-10s %-11s%-6s%-18s%-12s%-12s%s\n", e->backend, e->direction[0] == 'f' ? "forward" : "backward",
           e->name, runs_here(e), dtypes, dims, repeats(e->determinism), e->idea);
  }
}

/** Is there a backend of this name, here or elsewhere? */
static dkv_status require_backend(const char *name) {
  for (int b = 0; name != NULL && dkv_backend_names[b] != NULL; ++b)
    if (strcmp(name, dkv_backend_names[b]) == 0) return DKV_OK;
  DKV_REQUIRE(name == NULL, DKV_ERR_RANGE, "there is no backend \"%.60s\"; there are ref, cpu and gpu", name);
  return DKV_OK;
}

int dkv_cmd_kernels(int argc, char *const *argv) {
  bool markdown = false;
  const char *backend = NULL;
  const struct dkv_flag flags[] = {
      {"backend", DKV_FLAG_TEXT, &backend, "NAME", "only this one: ref, cpu or gpu", 0, 0},
      {"markdown", DKV_FLAG_SWITCH, &markdown, NULL, "print the table of docs/adding_a_kernel.md", 0, 0},
      {0},
  };
  if (dkv_args_help(about, flags, argc, argv)) return DKV_EXIT_OK;
  dkv_status status = dkv_args_parse("kernels", flags, argc, argv, NULL);
  if (status == DKV_OK) status = require_backend(backend);
  if (status != DKV_OK) return dkv_tool_fail(status);
  if (markdown) print_markdown();
  else print_text(backend);
  return DKV_EXIT_OK;
}
