/**
 * @file test_mask.c
 * @brief Rule dkv_sees against the definition by ancestry, on thousands of forests.
 *
 *     row i sees row j   iff   segment(j) is a proper ancestor of segment(i), or they are equal and j <= i
 *
 * Read before: common/mask.h, tests/support/forest.h.
 */
#include "common/layout.h"
#include "common/mask.h"
#include "tests/support/expect.h"
#include "tests/support/forest.h"

Test(mask, of_the_seven_token_group_is_the_one_drawn_by_hand) {
  static const char *const HAND[7] = {"1......", "11.....", "111....", "1111...", "11111..", "111..1.", "111..11"};
  dkv_layout layout;
  EXPECT_OK(dkv_layout_group(&layout, 3, 2, (const int32_t[]){2, 2}));
  for (int32_t i = 0; i < 7; ++i)
    for (int32_t j = 0; j < 7; ++j)
      cr_assert(dkv_sees(i, j, layout.end[j]) == (HAND[i][j] == '1'), "row %d, key %d", i, j);
  dkv_layout_free(&layout);
}

Test(mask, is_ancestry_and_causality_on_any_forest) {
  int64_t compared = 0;
  for (uint64_t seed = 0; seed < 6000; ++seed) {
    struct forest f;
    dkv_layout layout;
    forest_random(&f, seed);
    EXPECT_OK(dkv_layout_forest(&layout, f.segments, f.parent, f.length));
    for (int32_t i = 0; i < f.rows; ++i)
      for (int32_t j = 0; j < f.rows; ++j, ++compared)
        cr_assert(dkv_sees(i, j, layout.end[j]) == forest_sees(&f, i, j), "seed %lu, %d rows: query %d, key %d",
                  (unsigned long)seed, f.rows, i, j);
    dkv_layout_free(&layout);
  }
  cr_assert(compared > 1000000, "the forests were too small to mean anything: %ld pairs", (long)compared);
}

Test(mask, lets_every_row_see_itself) {
  for (int32_t row = 0; row < 100; ++row) cr_assert(dkv_sees(row, row, row + 1));
}

Test(mask, keeps_siblings_and_groups_apart_and_shows_the_whole_prompt) {
  dkv_layout layout;
  EXPECT_OK(dkv_layout_groups(&layout, 2, (const int32_t[]){4, 3}, (const int32_t[]){3, 2},
                              (const int32_t[]){2, 0, 3, 1, 5}));
  for (int32_t i = 0; i < layout.rows; ++i) {
    for (int32_t j = 0; j < layout.rows; ++j) {
      int32_t si = layout.segment[i], sj = layout.segment[j];
      bool same_group = (i < 9) == (j < 9), is_prompt = layout.parent[sj] < 0;
      bool expected = same_group && (si == sj ? j <= i : is_prompt && layout.parent[si] >= 0);
      cr_assert(dkv_sees(i, j, layout.end[j]) == expected, "query %d, key %d", i, j);
    }
  }
  dkv_layout_free(&layout);
}
