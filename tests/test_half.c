/**
 * @file test_half.c
 * @brief The row conversions give the bits of common/dtype.h: every 16-bit number, and floats of every kind.
 *
 * Read before: cpu/half.h.
 */
#include "cpu/half.h"

#include <criterion/criterion.h>

enum { N = 1 << 16 };
static uint16_t halves[N], back[N];
static float floats[N];

static void expect_same(const char *what, uint32_t got, uint32_t want, uint32_t from) {
  cr_assert(got == want, "%s of %#x: %#x, not %#x", what, from, got, want);
}

Test(half, to_float_is_right_for_all_65536) {
  for (uint32_t i = 0; i < N; ++i) halves[i] = (uint16_t)i;
  f16_to_floats(floats, halves, N);
  for (uint32_t i = 0; i < N; ++i)
    expect_same("f16", dkv_float_bits(floats[i]), dkv_float_bits(dkv_f16_to_float((uint16_t)i)), i);
  bf16_to_floats(floats, halves, N);
  for (uint32_t i = 0; i < N; ++i)
    expect_same("bf16", dkv_float_bits(floats[i]), dkv_float_bits(dkv_bf16_to_float((uint16_t)i)), i);
}

Test(half, from_float_is_right_for_every_255th_float_and_around_every_tie) {
  for (uint32_t block = 0; block < 256; ++block) {
    for (uint32_t i = 0; i < N; ++i) floats[i] = dkv_bits_float((block * N + i) * 255u);
    floats_to_f16(back, floats, N);
    for (uint32_t i = 0; i < N; ++i)
      expect_same("f16", back[i], dkv_float_to_f16(floats[i]), dkv_float_bits(floats[i]));
    floats_to_bf16(back, floats, N);
    for (uint32_t i = 0; i < N; ++i)
      expect_same("bf16", back[i], dkv_float_to_bf16(floats[i]), dkv_float_bits(floats[i]));
  }
  for (uint32_t offset = 0; offset < 3; ++offset) { /* halfway between two f16 numbers, just below and just above */
    for (uint32_t i = 0; i < N; ++i)
      floats[i] = dkv_bits_float(dkv_float_bits(dkv_f16_to_float((uint16_t)i)) + 0xfffu + offset);
    floats_to_f16(back, floats, N);
    for (uint32_t i = 0; i < N; ++i)
      expect_same("f16", back[i], dkv_float_to_f16(floats[i]), dkv_float_bits(floats[i]));
  }
}
