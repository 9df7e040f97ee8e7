/**
 * @file cmd_plot.c
 * @brief `dualkv plot`: a picture of training runs from their files of metrics.
 *
 * Read before: train.h.  Read next: curves.c.
 */
#include "tools/train.h"

static const char about[] = "usage: dualkv plot METRICS.jsonl... -o OUT.svg [--title TEXT]\n\n"
                            "Draws accuracy by step and by second, a curve for every file that `dualkv train` wrote.\n";

int dkv_cmd_plot(int argc, char *const *argv) {
  const char *out = NULL, *title = "Accuracy during training";
  struct dkv_text_list files;
  const struct dkv_flag flags[] = {
      {"o", DKV_FLAG_TEXT, &out, "OUT.svg", "where the picture goes", 0, 0},
      {"title", DKV_FLAG_TEXT, &title, "TEXT", "heading", 0, 0},
      {0},
  };
  if (dkv_args_help(about, flags, argc, argv)) return DKV_EXIT_OK;
  dkv_status status = dkv_args_parse("plot", flags, argc, argv, &files);
  if (status == DKV_OK && out == NULL) status = dkv_fail(DKV_ERR_RANGE, "dualkv plot: -o OUT.svg is missing");
  if (status == DKV_OK && files.count == 0)
    status = dkv_fail(DKV_ERR_RANGE, "dualkv plot: no file of metrics is given; dualkv train --output DIR writes one");
  if (status == DKV_OK) status = dkv_curves_draw(out, title, files.text, files.count);
  if (status == DKV_OK)
    printf("Wrote %s: accuracy by step and by second, %d curve%s\n", out, files.count, files.count > 1 ? "s" : "");
  return status == DKV_OK ? DKV_EXIT_OK : dkv_tool_fail(status);
}
