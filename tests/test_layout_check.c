/**
 * @file test_layout_check.c
 * @brief dkv_layout_check finds any single wrong number in a layout; constructors say so when memory runs out.
 *
 * Read before: common/layout.h, tests/test_layout.c.
 */
#include <stdlib.h>

#include "common/layout.h"
#include "common/rng.h"
#include "tests/support/expect.h"
#include "tests/support/forest.h"
#include "tests/support/memory.h"

/** Changes one number, expects a refusal that names the array, puts it back. */
static void expect_found(const dkv_layout *l, int32_t *number, int32_t value, const char *array, uint64_t seed) {
  int32_t kept = *number;
  *number = value;
  dkv_status status = dkv_layout_check(l);
  cr_assert(status == DKV_ERR_LAYOUT, "seed %lu: %s %d instead of %d was accepted (%s)", (unsigned long)seed, array,
            value, kept, dkv_status_name(status));
  cr_assert(dkv_last_error()[0] != '\0');
  *number = kept;
}

Test(layout_check, finds_any_single_wrong_number) {
  static const int32_t WRONG[] = {1, -1, 7, -1000, INT32_MAX - 100};
  for (uint64_t seed = 0; seed < 600; ++seed) {
    struct forest f;
    dkv_layout l;
    forest_random(&f, seed);
    EXPECT_OK(dkv_layout_forest(&l, f.segments, f.parent, f.length));
    for (size_t w = 0; w < sizeof WRONG / sizeof *WRONG; ++w) {
      int32_t s = l.segments > 0 ? (int32_t)(dkv_rng(seed, w, 0).word[0] % (uint32_t)l.segments) : 0;
      int32_t t = l.rows > 0 ? (int32_t)(dkv_rng(seed, w, 1).word[0] % (uint32_t)l.rows) : 0;
      expect_found(&l, &l.start[s], l.start[s] + WRONG[w], "start", seed);
      expect_found(&l, &l.start[l.segments], l.rows + (w == 0 ? 1 : -(int32_t)w), "the last start", seed);
      expect_found(&l, &l.depth, l.depth + WRONG[w], "depth", seed);
      if (l.segments > 0) {
        expect_found(&l, &l.subtree_end[s], l.subtree_end[s] + WRONG[w], "subtree_end", seed);
        expect_found(&l, &l.base[s], l.base[s] + WRONG[w], "base", seed);
        expect_found(&l, &l.parent[s], s + (int32_t)w, "parent not earlier", seed);
        expect_found(&l, &l.parent[s], -2 - (int32_t)w, "parent below -1", seed);
      }
      if (l.rows > 0) {
        expect_found(&l, &l.segment[t], l.segment[t] + WRONG[w], "segment", seed);
        expect_found(&l, &l.end[t], l.end[t] + WRONG[w], "end", seed);
        expect_found(&l, &l.position[t], l.position[t] + WRONG[w], "position", seed);
      }
    }
    EXPECT_OK(dkv_layout_check(&l));
    dkv_layout_free(&l);
  }
}

Test(layout_check, finds_a_parent_that_is_a_valid_one_but_not_this_layouts) {
  dkv_layout l;
  EXPECT_OK(dkv_layout_forest(&l, 4, (const int32_t[]){-1, 0, 1, 0}, (const int32_t[]){2, 2, 2, 2}));
  l.parent[2] = 0;
  EXPECT_FAIL(DKV_ERR_LAYOUT, "subtree_end[1] is 6", dkv_layout_check(&l));
  l.parent[2] = -1;
  EXPECT_FAIL(DKV_ERR_LAYOUT, "subtree_end[1] is 6", dkv_layout_check(&l));
  l.parent[2] = 1;
  l.parent[3] = 1;
  EXPECT_FAIL(DKV_ERR_LAYOUT, "base[3] is 2", dkv_layout_check(&l));
  dkv_layout_free(&l);
}

Test(layout_check, refuses_sizes_out_of_range_and_missing_arrays) {
  dkv_layout l, broken;
  EXPECT_OK(dkv_layout_group(&l, 3, 1, (const int32_t[]){2}));
  EXPECT_FAIL(DKV_ERR_NULL, "layout", dkv_layout_check(NULL));
  EXPECT_FAIL(DKV_ERR_NULL, "start", dkv_layout_check(&(dkv_layout){0}));
  const struct {
    size_t field;
    const char *word;
  } ARRAYS[] = {{offsetof(dkv_layout, parent), "parent"},    {offsetof(dkv_layout, start), "start"},
                {offsetof(dkv_layout, base), "base"},        {offsetof(dkv_layout, subtree_end), "subtree_end"},
                {offsetof(dkv_layout, segment), "segment"},  {offsetof(dkv_layout, end), "end"},
                {offsetof(dkv_layout, position), "position"}};
  for (size_t i = 0; i < sizeof ARRAYS / sizeof *ARRAYS; ++i) {
    broken = l;
    memset((char *)&broken + ARRAYS[i].field, 0, sizeof(int32_t *));
    EXPECT_FAIL(DKV_ERR_NULL, ARRAYS[i].word, dkv_layout_check(&broken));
  }
  broken = l;
  broken.segments = -1;
  EXPECT_FAIL(DKV_ERR_LAYOUT, "-1 segments", dkv_layout_check(&broken));
  broken.segments = DKV_MAX_SEGMENTS + 1;
  EXPECT_FAIL(DKV_ERR_LAYOUT, "67108865 segments", dkv_layout_check(&broken));
  broken = l;
  broken.rows = -5;
  EXPECT_FAIL(DKV_ERR_LAYOUT, "-5 rows", dkv_layout_check(&broken));
  broken.rows = DKV_MAX_ROWS + 1;
  EXPECT_FAIL(DKV_ERR_LAYOUT, "2147480001 rows", dkv_layout_check(&broken));
  dkv_layout_free(&l);
}

Test(layout_check, constructors_report_memory_that_is_missing) {
  dkv_layout l, out;
  int32_t *map = NULL;
  EXPECT_OK(dkv_layout_group(&l, 3 << 20, 2, (const int32_t[]){1 << 20, 1 << 20})); /* 60 MiB of row arrays */
  if (!limit_memory(16 << 20)) cr_skip_test("memory cannot be limited under a sanitizer");
  EXPECT_FAIL(DKV_ERR_NOMEM, "1 segments and 2147480000 rows", dkv_layout_group(&out, DKV_MAX_ROWS, 0, NULL));
  EXPECT_FAIL(DKV_ERR_NOMEM, "replicated layout of 8388608 rows", dkv_layout_replicate(&out, &map, &l));
  cr_assert(map == NULL && out.rows == 0 && out.start == NULL);
  EXPECT_FAIL(DKV_ERR_NOMEM, "8388608 rows", dkv_layout_replicate(&out, NULL, &l));
  EXPECT_FAIL(DKV_ERR_NOMEM, "5242880 rows", dkv_layout_copy(&out, &l));
  cr_assert(out.rows == 0 && out.start == NULL);
  EXPECT_FAIL(DKV_ERR_NOMEM, "list of 4194305 segments",
              dkv_layout_groups(&out, 1, (const int32_t[]){0}, (const int32_t[]){1 << 22}, l.end));
  dkv_layout_free(&l);
}
