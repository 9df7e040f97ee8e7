/**
 * @file test_layout.c
 * @brief Layouts: the hand numbers, the invariants on thousands of forests, the replicated twin, every documented
 * error.
 *
 * Read before: common/layout.h, tests/support/forest.h.
 */
#include "common/layout.h"

#include <stdlib.h>

#include "common/mask.h"
#include "tests/support/expect.h"
#include "tests/support/forest.h"

/** Every array of `got` is the hand-written one. */
#define EXPECT_ARRAY(n, got, ...)                                                                                      \
  do {                                                                                                                 \
    const int32_t want_[] = {__VA_ARGS__};                                                                             \
    for (int i_ = 0; i_ < (n); ++i_) cr_assert((got)[i_] == want_[i_], "%s[%d] is %d", #got, i_, (got)[i_]);           \
  } while (0)

static bool is_zeroed(const dkv_layout *layout) {
  static const dkv_layout ZERO;
  return memcmp(layout, &ZERO, sizeof ZERO) == 0;
}

Test(layout, of_the_seven_token_group_has_the_numbers_computed_by_hand) {
  dkv_layout l;
  EXPECT_OK(dkv_layout_group(&l, 3, 2, (const int32_t[]){2, 2}));
  cr_assert(l.segments == 3 && l.rows == 7 && l.depth == 2);
  EXPECT_ARRAY(3, l.parent, -1, 0, 0);
  EXPECT_ARRAY(4, l.start, 0, 3, 5, 7);
  EXPECT_ARRAY(3, l.subtree_end, 7, 5, 7);
  EXPECT_ARRAY(3, l.base, 0, 3, 3);
  EXPECT_ARRAY(7, l.segment, 0, 0, 0, 1, 1, 2, 2);
  EXPECT_ARRAY(7, l.end, 7, 7, 7, 5, 5, 7, 7);
  EXPECT_ARRAY(7, l.position, 0, 1, 2, 3, 4, 3, 4);
  cr_assert(dkv_layout_pairs(&l) == 24); /* rows see 1 2 3, 4 5, 4 5 */
  cr_assert(!dkv_layout_is_leaf(&l, 0) && dkv_layout_is_leaf(&l, 1) && dkv_layout_is_leaf(&l, 2));
  dkv_layout_free(&l);
}

Test(layout, of_two_groups_is_two_roots_with_their_children) {
  dkv_layout l;
  EXPECT_OK(dkv_layout_groups(&l, 2, (const int32_t[]){2, 0}, (const int32_t[]){1, 2}, (const int32_t[]){3, 0, 4}));
  cr_assert(l.segments == 5 && l.rows == 9 && l.depth == 2);
  EXPECT_ARRAY(5, l.parent, -1, 0, -1, 2, 2);
  EXPECT_ARRAY(6, l.start, 0, 2, 5, 5, 5, 9);
  EXPECT_ARRAY(5, l.subtree_end, 5, 5, 9, 5, 9);
  EXPECT_ARRAY(9, l.position, 0, 1, 2, 3, 4, 0, 1, 2, 3);
  EXPECT_OK(dkv_layout_check(&l));
  dkv_layout_free(&l);
}

Test(layout, of_nothing_is_legal) {
  dkv_layout l, twin;
  int32_t *map;
  EXPECT_OK(dkv_layout_forest(&l, 0, NULL, NULL));
  cr_assert(l.rows == 0 && l.depth == 0 && dkv_layout_pairs(&l) == 0);
  EXPECT_OK(dkv_layout_check(&l));
  EXPECT_OK(dkv_layout_replicate(&twin, &map, &l));
  cr_assert(twin.rows == 0 && map != NULL);
  free(map);
  dkv_layout_free(&l);
  dkv_layout_free(&twin);
  EXPECT_OK(dkv_layout_groups(&l, 0, NULL, NULL, NULL));
  cr_assert(l.segments == 0);
  dkv_layout_free(&l);
  EXPECT_OK(dkv_layout_group(&l, 0, 0, NULL));
  cr_assert(l.segments == 1 && l.rows == 0 && l.depth == 1);
  dkv_layout_free(&l);
}

/** Every fact about `l` follows from ancestry in `f`. */
static void compare_with_ancestry(const dkv_layout *l, const struct forest *f) {
  unsigned long seed = (unsigned long)f->seed;
  int64_t pairs = 0;
  int32_t depth = 0;
  for (int32_t s = 0; s < f->segments; ++s) {
    int32_t levels = 0, base = 0, last = l->start[s + 1];
    for (int32_t a = 0; a < f->segments; ++a) {
      if (!forest_is_on_path(f, a, s)) continue;
      ++levels;
      if (a != s) base += f->length[a];
    }
    if (levels > depth) depth = levels;
    for (int32_t d = 0; d < f->segments; ++d)
      if (forest_is_on_path(f, s, d)) last = l->start[d + 1];
    cr_assert(dkv_layout_length(l, s) == f->length[s] && l->parent[s] == f->parent[s], "seed %lu, segment %d", seed, s);
    cr_assert(l->base[s] == base && l->subtree_end[s] == last, "seed %lu, segment %d: base, subtree_end", seed, s);
    cr_assert(dkv_layout_is_leaf(l, s) == forest_is_leaf(f, s), "seed %lu, segment %d: leaf", seed, s);
  }
  for (int32_t i = 0; i < f->rows; ++i) {
    int32_t seen = 0;
    for (int32_t j = 0; j < f->rows; ++j) seen += forest_sees(f, i, j);
    pairs += seen;
    cr_assert(l->segment[i] == f->owner[i], "seed %lu, row %d: segment", seed, i);
    cr_assert(l->end[i] == l->subtree_end[f->owner[i]], "seed %lu, row %d: end", seed, i);
    cr_assert(l->position[i] == seen - 1, "seed %lu: row %d sees %d rows, so its position is not %d", seed, i, seen,
              l->position[i]);
  }
  cr_assert(l->depth == depth, "seed %lu: depth %d, not %d", seed, l->depth, depth);
  cr_assert(dkv_layout_pairs(l) == pairs, "seed %lu: %ld pairs", seed, (long)pairs);
}

Test(layout, of_any_forest_agrees_with_ancestry) {
  for (uint64_t seed = 0; seed < 5000; ++seed) {
    struct forest f;
    dkv_layout l;
    forest_random(&f, seed);
    EXPECT_OK(dkv_layout_forest(&l, f.segments, f.parent, f.length));
    cr_assert(l.segments == f.segments && l.rows == f.rows, "seed %lu", (unsigned long)seed);
    compare_with_ancestry(&l, &f);
    cr_assert(dkv_layout_check(&l) == DKV_OK, "seed %lu: %s", (unsigned long)seed, dkv_last_error());
    dkv_layout_free(&l);
  }
}

Test(layout, copy_is_deep_and_equal) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    struct forest f;
    dkv_layout l, copy;
    forest_random(&f, seed);
    EXPECT_OK(dkv_layout_forest(&l, f.segments, f.parent, f.length));
    EXPECT_OK(dkv_layout_copy(&copy, &l));
    memset(l.start, 0x55, ((size_t)l.segments + 1) * sizeof *l.start);
    dkv_layout_free(&l);
    EXPECT_OK(dkv_layout_check(&copy));
    compare_with_ancestry(&copy, &f);
    dkv_layout_free(&copy);
  }
  dkv_layout zeroed = {0}, copy;
  EXPECT_OK(dkv_layout_copy(&copy, &zeroed));
  EXPECT_OK(dkv_layout_check(&copy));
  dkv_layout_free(&copy);
}

Test(layout, replicated_is_one_root_for_every_path_to_a_leaf) {
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    struct forest f;
    dkv_layout l, twin;
    int32_t *map, root = 0, row = 0;
    forest_random(&f, seed);
    EXPECT_OK(dkv_layout_forest(&l, f.segments, f.parent, f.length));
    EXPECT_OK(dkv_layout_replicate(&twin, &map, &l));
    EXPECT_OK(dkv_layout_check(&twin));
    for (int32_t leaf = 0; leaf < f.segments; ++leaf) {
      if (!forest_is_leaf(&f, leaf)) continue;
      cr_assert(root < twin.segments && twin.parent[root] == -1 && twin.start[root] == row, "seed %lu",
                (unsigned long)seed);
      for (int32_t t = 0; t < f.rows; ++t) /* the path's rows, in packed order */
        if (forest_is_on_path(&f, f.owner[t], leaf)) {
          cr_assert(map[row] == t && twin.position[row] == l.position[t], "seed %lu: replicated row %d is %d, not %d",
                    (unsigned long)seed, row, map[row], t);
          ++row;
        }
      ++root;
    }
    cr_assert(root == twin.segments && row == twin.rows, "seed %lu: %d roots, %d rows", (unsigned long)seed, root, row);
    free(map);
    dkv_layout_free(&l);
    dkv_layout_free(&twin);
  }
}

Test(layout, replicating_twice_changes_nothing_more) {
  dkv_layout l, once, twice;
  EXPECT_OK(dkv_layout_group(&l, 5, 3, (const int32_t[]){2, 0, 7}));
  EXPECT_OK(dkv_layout_replicate(&once, NULL, &l));
  EXPECT_OK(dkv_layout_replicate(&twice, NULL, &once));
  EXPECT_ARRAY(4, once.start, 0, 7, 12, 24); /* the empty response keeps its copy of the prompt */
  cr_assert(twice.segments == once.segments && memcmp(twice.start, once.start, 4 * sizeof(int32_t)) == 0);
  dkv_layout_free(&l);
  dkv_layout_free(&once);
  dkv_layout_free(&twice);
}

Test(layout, free_accepts_null_zeroed_and_freed) {
  dkv_layout l = {0};
  dkv_layout_free(NULL);
  dkv_layout_free(&l);
  EXPECT_OK(dkv_layout_group(&l, 1, 0, NULL));
  dkv_layout_free(&l);
  cr_assert(is_zeroed(&l));
  dkv_layout_free(&l);
}

/** The forest must be refused and out zeroed. */
#define EXPECT_REFUSED(status, fragment, call)                                                                         \
  do {                                                                                                                 \
    memset(&out, 0x5a, sizeof out);                                                                                    \
    EXPECT_FAIL(status, fragment, call);                                                                               \
    cr_assert(is_zeroed(&out), "%s left something in out", #call);                                                     \
  } while (0)

Test(layout, forest_refuses_bad_numbers_and_names_them) {
  dkv_layout out;
  const int32_t roots[3] = {-1, -1, -1}, one[3] = {1, 1, 1};
  EXPECT_FAIL(DKV_ERR_NULL, "out", dkv_layout_forest(NULL, 1, roots, one));
  EXPECT_REFUSED(DKV_ERR_NULL, "parent", dkv_layout_forest(&out, 1, NULL, one));
  EXPECT_REFUSED(DKV_ERR_NULL, "length", dkv_layout_forest(&out, 1, roots, NULL));
  EXPECT_REFUSED(DKV_ERR_RANGE, "-1 segments", dkv_layout_forest(&out, -1, roots, one));
  EXPECT_REFUSED(DKV_ERR_RANGE, "67108865", dkv_layout_forest(&out, DKV_MAX_SEGMENTS + 1, roots, one));
  EXPECT_REFUSED(DKV_ERR_RANGE, "segment 1 has length -4",
                 dkv_layout_forest(&out, 3, roots, (const int32_t[]){1, -4, 1}));
  EXPECT_REFUSED(DKV_ERR_RANGE, "segment 0 has length -2147483648",
                 dkv_layout_forest(&out, 1, roots, (const int32_t[]){INT32_MIN}));
  EXPECT_REFUSED(DKV_ERR_RANGE, "2147480001", dkv_layout_forest(&out, 3, roots, (const int32_t[]){DKV_MAX_ROWS, 0, 1}));
  EXPECT_REFUSED(DKV_ERR_RANGE, "4294963647 rows",
                 dkv_layout_forest(&out, 2, roots, (const int32_t[]){DKV_MAX_ROWS, INT32_MAX}));
}

Test(layout, forest_refuses_what_is_not_depth_first_and_names_it) {
  dkv_layout out;
  const int32_t one[6] = {1, 1, 1, 1, 1, 1};
  EXPECT_REFUSED(DKV_ERR_LAYOUT, "segment 0 has parent 0; a parent is -1 (a root) or an earlier",
                 dkv_layout_forest(&out, 1, (const int32_t[]){0}, one));
  EXPECT_REFUSED(DKV_ERR_LAYOUT, "segment 1 has parent 1; a parent is -1 (a root) or an earlier",
                 dkv_layout_forest(&out, 2, (const int32_t[]){-1, 1}, one));
  EXPECT_REFUSED(DKV_ERR_LAYOUT, "segment 1 has parent 2; a parent is -1 (a root) or an earlier",
                 dkv_layout_forest(&out, 3, (const int32_t[]){-1, 2, 0}, one));
  EXPECT_REFUSED(DKV_ERR_LAYOUT, "segment 1 has parent -2; a parent is -1 (a root) or an earlier",
                 dkv_layout_forest(&out, 2, (const int32_t[]){-1, -2}, one));
  EXPECT_REFUSED(DKV_ERR_LAYOUT, "segment 1 has parent 2147483647; a parent is -1 (a root) or an earlier",
                 dkv_layout_forest(&out, 2, (const int32_t[]){-1, INT32_MAX}, one));
  EXPECT_REFUSED(DKV_ERR_LAYOUT,
                 "segment 2 has parent 0, whose subtree ended before", /* a second root closed the first tree */
                 dkv_layout_forest(&out, 3, (const int32_t[]){-1, -1, 0}, one));
  EXPECT_REFUSED(DKV_ERR_LAYOUT, "segment 3 has parent 1, whose subtree ended before", /* a sibling closed segment 1 */
                 dkv_layout_forest(&out, 4, (const int32_t[]){-1, 0, 0, 1}, one));
  EXPECT_REFUSED(DKV_ERR_LAYOUT, "segment 5 has parent 3, whose subtree ended before",
                 dkv_layout_forest(&out, 6, (const int32_t[]){-1, 0, 1, 2, 1, 3}, one));
}

Test(layout, forest_accepts_exactly_the_depth_first_lists) {
  /* All parent lists of five segments: depth first if and only if every subtree is one contiguous run of segments. */
  const int32_t one[5] = {1, 1, 1, 1, 1};
  int accepted = 0;
  for (int code = 0; code < 1 * 2 * 3 * 4 * 5; ++code) {
    struct forest f = {.segments = 5};
    bool contiguous = true;
    for (int s = 0, rest = code; s < 5; rest /= ++s) f.parent[s] = rest % (s + 1) - 1;
    for (int a = 0; a < 5; ++a)
      for (int s = a + 1, left = 0; s < 5; ++s) {
        bool inside = forest_is_on_path(&f, a, s);
        if (inside && left) contiguous = false;
        if (!inside) left = 1;
      }
    dkv_layout out;
    dkv_status status = dkv_layout_forest(&out, 5, f.parent, one);
    cr_assert(status == (contiguous ? DKV_OK : DKV_ERR_LAYOUT), "parents %d %d %d %d %d: %s", f.parent[0], f.parent[1],
              f.parent[2], f.parent[3], f.parent[4], dkv_status_name(status));
    accepted += status == DKV_OK;
    dkv_layout_free(&out);
  }
  cr_assert(accepted == 42, "%d lists accepted; ordered forests of 5 nodes are Catalan(5) = 42", accepted);
}

Test(layout, group_and_groups_refuse_bad_numbers_and_name_them) {
  dkv_layout out;
  const int32_t one[2] = {1, 1}, bad[2] = {1, -6};
  EXPECT_FAIL(DKV_ERR_NULL, "out", dkv_layout_group(NULL, 1, 1, one));
  EXPECT_FAIL(DKV_ERR_NULL, "out", dkv_layout_groups(NULL, 1, one, one, one));
  EXPECT_REFUSED(DKV_ERR_RANGE, "prompt of -2 rows", dkv_layout_group(&out, -2, 2, one));
  EXPECT_REFUSED(DKV_ERR_RANGE, "-1 responses", dkv_layout_group(&out, 3, -1, one));
  EXPECT_REFUSED(DKV_ERR_NULL, "length", dkv_layout_group(&out, 3, 2, NULL));
  EXPECT_REFUSED(DKV_ERR_RANGE, "response 1 has length -6", dkv_layout_group(&out, 3, 2, bad));
  EXPECT_REFUSED(DKV_ERR_RANGE, "67108865", dkv_layout_group(&out, 3, DKV_MAX_SEGMENTS, one));
  EXPECT_REFUSED(DKV_ERR_RANGE, "2147480001 rows", dkv_layout_group(&out, DKV_MAX_ROWS, 2, one));
  EXPECT_REFUSED(DKV_ERR_RANGE, "-3 prompt groups", dkv_layout_groups(&out, -3, one, one, one));
  EXPECT_REFUSED(DKV_ERR_NULL, "prompt", dkv_layout_groups(&out, 1, NULL, one, one));
  EXPECT_REFUSED(DKV_ERR_NULL, "responses", dkv_layout_groups(&out, 1, one, NULL, one));
  EXPECT_REFUSED(DKV_ERR_NULL, "length", dkv_layout_groups(&out, 1, one, one, NULL));
  EXPECT_REFUSED(DKV_ERR_RANGE, "group 1 has a prompt of -6", dkv_layout_groups(&out, 2, bad, one, one));
  EXPECT_REFUSED(DKV_ERR_RANGE, "group 1 has -6 responses", dkv_layout_groups(&out, 2, one, bad, one));
  EXPECT_REFUSED(DKV_ERR_RANGE, "response 1 has length -6", dkv_layout_groups(&out, 2, one, one, bad));
  EXPECT_REFUSED(DKV_ERR_RANGE, "2147483650 prompts",
                 dkv_layout_groups(&out, 2, one, (const int32_t[]){1, INT32_MAX}, one));
}

Test(layout, replicate_and_copy_refuse_null_and_too_many_rows) {
  dkv_layout out, l;
  int32_t *map = (int32_t *)&out, zeros[2200] = {0};
  EXPECT_OK(dkv_layout_group(&l, 1 << 20, 2200, zeros));
  EXPECT_FAIL(DKV_ERR_NULL, "out", dkv_layout_replicate(NULL, NULL, &l));
  EXPECT_FAIL(DKV_ERR_NULL, "packed", dkv_layout_replicate(&out, NULL, NULL));
  EXPECT_FAIL(DKV_ERR_NULL, "from", dkv_layout_copy(&out, NULL));
  EXPECT_FAIL(DKV_ERR_NULL, "out", dkv_layout_copy(NULL, &l));
  EXPECT_REFUSED(DKV_ERR_RANGE, "the first 2048 paths", dkv_layout_replicate(&out, &map, &l));
  cr_assert(map == NULL);
  dkv_layout_free(&l);
}
