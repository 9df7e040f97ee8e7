/**
 * @file cmd_layout.c
 * @brief `dualkv layout`: draws who sees whom, for a layout given by flags or by a case file.
 *
 * Read before: tool.h, common/layout.h.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/pack.h"
#include "common/tiles.h"
#include "tools/tool.h"

static const char about[] = "usage: dualkv layout [CASE] [FLAGS]\n\n"
                            "Draws the segments of a packed layout, their rows and positions, and for up to 64 rows "
                            "the mask: which query (down)\n"
                            "sees which key (across).  The layout comes from a case file or from flags:\n\n"
                            "  dualkv layout --prompt 3 --responses 2 --response-length 2\n"
                            "  dualkv layout --group 3:2,2 --group 2:1,0,3 --tile 4\n"
                            "  dualkv layout --tree -1:3,0:2,1:2,1:1,0:4\n";

static dkv_status draw(const dkv_layout *layout, int32_t tile) {
  char *text = NULL, a[32], b[32];
  dkv_prediction *predictions = NULL;
  int32_t predicted = 0;
  DKV_TRY(dkv_layout_draw(&text, layout, tile));
  fputs(text, stdout);
  free(text);
  DKV_TRY(dkv_predictions(&predictions, &predicted, layout));
  free(predictions);
  printf("\n%s rows, %s visible pairs, %d predicted tokens\n", dkv_tool_count(a, layout->rows),
         dkv_tool_count(b, dkv_layout_pairs(layout)), predicted);
  if (tile == 0) return DKV_OK;
  dkv_tile_count count;
  char c[32], d[32];
  DKV_TRY(dkv_tile_counts(&count, layout, tile, tile));
  printf("tiles of %d x %d: %s full, %s partial, %s empty and skipped; %s of %s pairs computed are useful (%.1f %%)\n",
         tile, tile, dkv_tool_count(a, count.full), dkv_tool_count(b, count.partial),
         dkv_tool_count(c, count.empty_skipped), dkv_tool_count(d, count.useful_pairs),
         dkv_tool_count((char[32]){0}, count.issued_pairs),
         count.issued_pairs > 0 ? 100.0 * (double)count.useful_pairs / (double)count.issued_pairs : 100.0);
  return DKV_OK;
}

int dkv_cmd_layout(int argc, char *const *argv) {
  struct dkv_layout_flags where = DKV_NO_LAYOUT_FLAGS;
  struct dkv_text_list operands;
  int64_t tile = 0;
  bool replicated = false;
  const struct dkv_flag flags[] = {
      DKV_LAYOUT_FLAGS(where),
      DKV_FOREST_FLAGS(where),
      {"tile", DKV_FLAG_INT, &tile, "B", "also draw and count tiles of B x B", 1, 1 << 20},
      {"replicated", DKV_FLAG_SWITCH, &replicated, NULL, "also draw the replicated layout", 0, 0},
      {0},
  };
  if (dkv_args_help(about, flags, argc, argv)) return DKV_EXIT_OK;
  dkv_layout layout = {0}, copies = {0};
  dkv_status status = dkv_args_parse("layout", flags, argc, argv, &operands);
  if (status == DKV_OK) status = dkv_tool_layout(&layout, "layout", &operands, &where);
  if (status == DKV_OK) status = draw(&layout, (int32_t)tile);
  if (status == DKV_OK && replicated) {
    printf("\nreplicated: a copy of the path for every leaf\n\n");
    status = dkv_layout_replicate(&copies, NULL, &layout);
    if (status == DKV_OK) status = draw(&copies, (int32_t)tile);
  }
  dkv_layout_free(&layout);
  dkv_layout_free(&copies);
  return status == DKV_OK ? DKV_EXIT_OK : dkv_tool_fail(status);
}
