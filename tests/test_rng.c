/**
 * @file test_rng.c
 * @brief Philox4x32-10 against the published known answers, and the two distributions against their moments.
 *
 * Read before: common/rng.h.
 */
#include "common/rng.h"

#include <criterion/criterion.h>

Test(rng, gives_the_published_answers_of_philox4x32_10) {
  /* Known answers of the generator's authors: counter and key of zeros, of ones, of the digits of pi. */
  static const struct {
    uint64_t seed, stream, index;
    uint32_t word[4];
  } KNOWN[] = {
      {0, 0, 0, {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}},
      {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}},
      {0x299f31d0a4093822u,
       0x0370734413198a2eu,
       0x85a308d3243f6a88u,
       {0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}},
  };
  for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; ++i) {
    dkv_rng_block block = dkv_rng(KNOWN[i].seed, KNOWN[i].stream, KNOWN[i].index);
    for (int w = 0; w < 4; ++w)
      cr_assert(block.word[w] == KNOWN[i].word[w], "answer %zu, word %d: %08x, not %08x", i, w, block.word[w],
                KNOWN[i].word[w]);
  }
}

Test(rng, uniform_uses_all_four_words_and_24_bits_of_each) {
  for (uint64_t index = 0; index < 4000; ++index) {
    uint32_t word = dkv_rng(9, 2, index / 4).word[index % 4];
    double expected = (double)(word / 256u) / 16777216.0;
    cr_assert((double)dkv_rng_uniform(9, 2, index) == expected, "index %lu", (unsigned long)index);
  }
}

Test(rng, uniform_fills_0_to_1_evenly) {
  enum { DRAWS = 200000, CELLS = 20 };
  int count[CELLS] = {0};
  for (uint64_t i = 0; i < DRAWS; ++i) {
    float u = dkv_rng_uniform(1, 3, i);
    cr_assert(u >= 0 && u < 1, "draw %lu is %g", (unsigned long)i, (double)u);
    ++count[(int)(u * CELLS)];
  }
  double chi = 0, each = (double)DRAWS / CELLS;
  for (int c = 0; c < CELLS; ++c) chi += (count[c] - each) * (count[c] - each) / each;
  cr_assert(chi < 43.8, "chi square %g with 19 degrees of freedom; 43.8 is passed once in a thousand", chi);
}

Test(rng, normal_has_the_moments_of_a_standard_normal) {
  enum { DRAWS = 200000 };
  double sum[5] = {0};
  for (uint64_t i = 0; i < DRAWS; ++i) {
    double x = (double)dkv_rng_normal(5, 1, i), power = x;
    cr_assert(fabs(x) <= 6.77, "draw %lu is %g; no draw passes sqrt(2 log 2^33)", (unsigned long)i, x);
    for (int k = 1; k <= 4; ++k, power *= x) sum[k] += power / DRAWS;
  }
  cr_assert(fabs(sum[1]) < 0.01 && fabs(sum[2] - 1) < 0.02 && fabs(sum[3]) < 0.05 && fabs(sum[4] - 3) < 0.1,
            "moments %g %g %g %g", sum[1], sum[2], sum[3], sum[4]);
}

Test(rng, neighbouring_normals_seeds_and_streams_are_uncorrelated) {
  enum { DRAWS = 100000 };
  double pair = 0, seeds = 0, streams = 0;
  for (uint64_t i = 0; i < DRAWS; ++i) {
    double x = (double)dkv_rng_normal(5, 1, i);
    pair += x * (double)dkv_rng_normal(5, 1, i + 1) / DRAWS;
    seeds += x * (double)dkv_rng_normal(6, 1, i) / DRAWS;
    streams += x * (double)dkv_rng_normal(5, 2, i) / DRAWS;
  }
  cr_assert(fabs(pair) < 0.015 && fabs(seeds) < 0.015 && fabs(streams) < 0.015, "%g %g %g", pair, seeds, streams);
}

Test(rng, a_draw_does_not_depend_on_the_draws_before_it) {
  float forwards[64];
  for (uint64_t i = 0; i < 64; ++i) forwards[i] = dkv_rng_normal(11, 0, i);
  for (uint64_t i = 64; i-- > 0;) cr_assert(dkv_rng_normal(11, 0, i) == forwards[i], "draw %lu", (unsigned long)i);
}
