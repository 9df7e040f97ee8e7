/**
 * @file test_layout_draw.c
 * @brief The drawing says what the layout is: the small one letter by letter, the large ones within a page.
 *
 * Read before: common/layout.h.
 */
#include <stdlib.h>

#include "common/layout.h"
#include "common/tiles.h"
#include "tests/support/expect.h"
#include "tests/support/forest.h"
#include "tests/support/memory.h"

/** Length of the longest line; and no line may end in a space. */
static size_t longest_line(const char *text) {
  size_t longest = 0;
  while (*text != '\0') {
    size_t length = strcspn(text, "\n");
    if (length > longest) longest = length;
    cr_assert(length == 0 || text[length - 1] != ' ', "a line ends in a space: \"%.*s\"", (int)length, text);
    text += length + (text[length] == '\n');
  }
  return longest;
}

Test(layout_draw, shows_the_seven_token_group_as_it_is_drawn_by_hand) {
  static const char *const HAND = "7 rows in 3 segments, depth 2\n"
                                  "24 visible pairs of 28 in a causal square\n"
                                  "\n"
                                  "segment   rows  first   last  positions\n"
                                  "p 0          3      0      2  0 .. 2\n"
                                  "  a 1        2      3      4  3 .. 4\n"
                                  "  b 2        2      5      6  3 .. 4\n"
                                  "\n"
                                  "The mask: queries down, keys across; the key's letter where the query sees it.\n"
                                  "\n"
                                  "       row    0  1  2  3  4  5  6\n"
                                  "  position    0  1  2  3  4  3  4\n"
                                  "       end    7  7  7  5  5  7  7\n"
                                  "              p  p  p  a  a  b  b\n"
                                  "       0 p    p  .  .  .  .  .  .\n"
                                  "       1 p    p  p  .  .  .  .  .\n"
                                  "       2 p    p  p  p  .  .  .  .\n"
                                  "       3 a    p  p  p  a  .  .  .\n"
                                  "       4 a    p  p  p  a  a  .  .\n"
                                  "       5 b    p  p  p  .  .  b  .\n"
                                  "       6 b    p  p  p  .  .  b  b\n"
                                  "\n"
                                  "Tiles of 2 x 2: 4 full (#), 6 partial (+), 6 empty (.)\n"
                                  "Of the pairs in full and partial tiles, 77.4% are visible.\n"
                                  "\n"
                                  "         0   + . . .\n"
                                  "         2   # + . .\n"
                                  "         4   # + + .\n"
                                  "         6   # + + #\n";
  dkv_layout l;
  char *text;
  EXPECT_OK(dkv_layout_group(&l, 3, 2, (const int32_t[]){2, 2}));
  EXPECT_OK(dkv_layout_draw(&text, &l, 2));
  cr_assert(strcmp(text, HAND) == 0, "drawn:\n%s\nby hand:\n%s", text, HAND);
  free(text);
  EXPECT_OK(dkv_layout_draw(&text, &l, 0));
  cr_assert(strncmp(text, HAND, strlen(text)) == 0 && strstr(text, "Tiles") == NULL, "%s", text);
  free(text);
  dkv_layout_free(&l);
}

Test(layout_draw, marks_empty_segments_and_gives_each_root_its_own_letter) {
  dkv_layout l;
  char *text;
  EXPECT_OK(dkv_layout_groups(&l, 2, (const int32_t[]){2, 3}, (const int32_t[]){2, 1}, (const int32_t[]){0, 4, 1}));
  EXPECT_OK(dkv_layout_draw(&text, &l, 0));
  cr_assert(strstr(text, "  a 1        0      -      -  none\n") != NULL, "%s", text);
  cr_assert(strstr(text, "P 0          2      0      1  0 .. 1\n") != NULL, "%s", text);
  cr_assert(strstr(text, "Q 3          3      6      8  0 .. 2\n") != NULL, "%s", text);
  free(text);
  dkv_layout_free(&l);
}

Test(layout_draw, fits_a_page_for_any_layout) {
  dkv_layout l;
  char *text;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    struct forest f;
    forest_random(&f, seed);
    EXPECT_OK(dkv_layout_forest(&l, f.segments, f.parent, f.length));
    EXPECT_OK(dkv_layout_draw(&text, &l, 1 + (int32_t)(seed % 9)));
    cr_assert(longest_line(text) <= 100, "seed %lu: %zu columns\n%s", (unsigned long)seed, longest_line(text), text);
    cr_assert((strstr(text, "The mask") != NULL) == (f.rows > 0 && f.rows <= 64), "seed %lu", (unsigned long)seed);
    free(text);
    dkv_layout_free(&l);
  }
}

Test(layout_draw, leaves_out_the_middle_of_long_tables_and_large_tile_maps) {
  enum { SEGMENTS = 5000 };
  static int32_t parent[SEGMENTS], length[SEGMENTS];
  dkv_layout l;
  char *text;
  for (int32_t s = 0; s < SEGMENTS; ++s) parent[s] = s - 1, length[s] = 40; /* one chain, 200 thousand rows */
  EXPECT_OK(dkv_layout_forest(&l, SEGMENTS, parent, length));
  EXPECT_OK(dkv_layout_draw(&text, &l, 128));
  cr_assert(strstr(text, "... 4965 more segments ...") != NULL && strstr(text, "1563 tiles a side") != NULL, "%s",
            text);
  cr_assert(strstr(text, "n 4999") != NULL || strstr(text, " 4999 ") != NULL, "the last segment is missing:\n%s", text);
  cr_assert(longest_line(text) <= 100 && strlen(text) < 5000, "%zu columns, %zu bytes", longest_line(text),
            strlen(text));
  free(text);
  dkv_layout_free(&l);
}

Test(layout_draw, refuses_null_and_reports_missing_memory) {
  dkv_layout l;
  char *text = (char *)&l;
  EXPECT_OK(dkv_layout_group(&l, 3, 0, NULL));
  EXPECT_FAIL(DKV_ERR_NULL, "out", dkv_layout_draw(NULL, &l, 0));
  EXPECT_FAIL(DKV_ERR_NULL, "layout", dkv_layout_draw(&text, NULL, 0));
  dkv_layout_free(&l);
  static int32_t parent[1 << 22];
  memset(parent, 0xff, sizeof parent); /* four million roots: their letters need 4 MiB */
  static int32_t length[1 << 22];
  EXPECT_OK(dkv_layout_forest(&l, 1 << 22, parent, length));
  if (!limit_memory(1 << 20)) cr_skip_test("memory cannot be limited under a sanitizer");
  EXPECT_FAIL(DKV_ERR_NOMEM, "letters of 4194304 segments", dkv_layout_draw(&text, &l, 0));
  cr_assert(text == NULL);
  dkv_layout_free(&l);
}
