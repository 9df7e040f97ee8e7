/**
 * @file shapes.c
 * @brief The named layouts and head shapes of the suite: small, and chosen where tiled kernels break.
 *
 * Lengths straddle the tile sizes 16, 32, 64 and 128; segments are empty at the front, in the middle and at the end;
 * prompts and responses are missing; trees are deep; responses are so short that a tile holds dozens of them.
 *
 * Read before: laws.h, layout.h.
 */
#include <stdlib.h>

#include "common/rng.h"
#include "common/suite/laws.h"

/** A layout written down by hand. */
typedef struct written {
  const char *name;
  int32_t segments;
  int32_t parent[12];
  int32_t length[12];
} written;

static const written table[] = {
    {"one row", 1, {-1}, {1}},
    {"one of each", 2, {-1, 0}, {1, 1}},
    {"seven rows", 3, {-1, 0, 0}, {3, 2, 2}},
    {"no rows", 3, {-1, 0, 0}, {0, 0, 0}},
    {"plain group", 5, {-1, 0, 0, 0, 0}, {37, 11, 11, 11, 11}},
    {"ragged with empty", 5, {-1, 0, 0, 0, 0}, {65, 3, 0, 64, 1}},
    {"tile edges", 5, {-1, 0, 0, 0, 0}, {128, 127, 1, 128, 129}},
    {"past the edges", 4, {-1, 0, 0, 0}, {129, 65, 63, 33}},
    {"no prompt", 4, {-1, 0, 0, 0}, {0, 17, 5, 70}},
    {"no response", 1, {-1}, {70}},
    {"all responses empty", 4, {-1, 0, 0, 0}, {33, 0, 0, 0}},
    {"two groups", 8, {-1, 0, 0, -1, 3, 3, 3, 3}, {50, 20, 30, 7, 5, 0, 9, 40}},
    {"tree of two turns", 6, {-1, 0, 1, 1, 0, 4}, {20, 10, 6, 7, 9, 5}},
    {"empty inner turns", 9, {-1, 0, 1, 2, 2, 0, -1, 6, -1}, {5, 0, 0, 21, 34, 13, 0, 19, 0}},
    {"lone roots", 6, {-1, -1, -1, -1, -1, -1}, {1, 0, 1, 40, 1, 2}},
};

enum { WRITTEN = sizeof table / sizeof table[0], MADE = 6 };

/** A draw in 0 .. below-1. */
static int32_t draw(uint64_t seed, uint64_t stream, uint64_t index, int32_t below) {
  return (int32_t)(dkv_rng(seed, stream, index).word[0] % (uint32_t)below);
}

/** A chain of `depth` segments of 3 rows, each with a sibling of 2 rows after it: the deepest paths per row. */
static dkv_status deep_tree(dkv_layout *out, int32_t depth) {
  enum { MOST = 64 };
  int32_t parent[2 * MOST], length[2 * MOST];
  /* depth first: down the whole chain, then the siblings from the deepest to the shallowest */
  for (int32_t s = 0; s < depth; ++s) {
    parent[s] = s - 1;
    length[s] = 3;
    parent[depth + s] = depth - 2 - s >= 0 ? depth - 2 - s : -1;
    length[depth + s] = 2;
  }
  return dkv_layout_forest(out, 2 * depth, parent, length);
}

/** `responses` responses of 1 to `longest` rows after `prompt` rows. */
static dkv_status many(dkv_layout *out, int32_t prompt, int32_t responses, int32_t longest, uint64_t seed) {
  int32_t *length = malloc((size_t)responses * sizeof *length);
  DKV_REQUIRE(length != NULL, DKV_ERR_NOMEM, "suite: no memory for %d responses", responses);
  for (int32_t n = 0; n < responses; ++n) length[n] = 1 + draw(seed, 101, (uint64_t)n, longest);
  dkv_status status = dkv_layout_group(out, prompt, responses, length);
  free(length);
  return status;
}

/** A random forest: each segment hangs below the one before it or one of that one's ancestors, or is a root. */
static dkv_status random_forest(dkv_layout *out, int32_t segments, int32_t longest, uint64_t seed) {
  enum { MOST = 64 };
  int32_t parent[MOST], length[MOST];
  for (int32_t s = 0; s < segments; ++s) {
    int32_t up = draw(seed, 102, (uint64_t)s, 4);
    int32_t p = s - 1;
    for (; up > 0 && p >= 0; --up) p = parent[p];
    parent[s] = p;
    length[s] = draw(seed, 103, (uint64_t)s, 3) == 0 ? 0 : draw(seed, 104, (uint64_t)s, longest);
  }
  return dkv_layout_forest(out, segments, parent, length);
}

int32_t dkv_suite_layout_count(void) { return WRITTEN + MADE; }

dkv_status dkv_suite_layout(dkv_layout *out, const char **name, int32_t index, uint64_t seed) {
  if (index < WRITTEN) {
    *name = table[index].name;
    return dkv_layout_forest(out, table[index].segments, table[index].parent, table[index].length);
  }
  static const char *const made[MADE] = {"deep tree",     "one-token responses", "short responses",
                                         "random forest", "random forest 2",     "long group"};
  static const int32_t long_lengths[] = {150, 70, 211};
  *name = made[index - WRITTEN];
  switch (index - WRITTEN) {
  case 0: return deep_tree(out, 24);
  case 1: return many(out, 33, 200, 1, seed);
  case 2: return many(out, 70, 16, 24, seed);
  case 3: return random_forest(out, 30, 30, seed);
  case 4: return random_forest(out, 20, 60, seed + 1);
  default: return dkv_layout_group(out, 400, 3, long_lengths);
  }
}

dkv_heads dkv_suite_heads(const dkv_check *check, int32_t n) {
  static const dkv_heads shapes[] = {{4, 2, 64},  {3, 1, 128}, {3, 3, 40}, {6, 2, 96}, {5, 1, 8}, {2, 2, 128},
                                     {2, 1, 256}, {8, 1, 64},  {2, 1, 72}, {3, 3, 64}, {1, 1, 16}};
  enum { COUNT = sizeof shapes / sizeof shapes[0] };
  int32_t taken[COUNT], count = 0;
  for (int32_t i = 0; i < COUNT; ++i) {
    if (check->kernel->head_dims & DKV_HEAD_DIM(shapes[i].head_dim)) taken[count++] = i;
  }
  if (count > 0) return shapes[taken[n % count]];
  /* A kernel for head sizes that the table lacks: its smallest one. */
  int32_t dim = 8;
  while (dim < DKV_MAX_HEAD_DIM && !(check->kernel->head_dims & DKV_HEAD_DIM(dim))) dim += 8;
  return (dkv_heads){4, 2, dim};
}
