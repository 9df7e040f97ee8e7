/**
 * @file test_dtype.c
 * @brief bf16 and f16 against a table of all their values: nearest, ties to even, from float and from double, rounded
 * once.
 *
 * The judge is a sorted list of every finite value as a double.  The right answer is the neighbour that is nearer; at
 * equal distance the one with an even last bit; beyond the middle between the largest value and the next that there
 * would be, infinity.  Distances between doubles this close are exact.
 *
 * Read before: common/dtype.h.
 */
#include "common/dtype.h"

#include <math.h>

#include "common/rng.h"
#include "tests/support/expect.h"

/** A 16-bit format. */
struct format {
  dkv_dtype dtype;
  int fraction_bits, max_exponent; /* largest value: (2 - 2^-fraction_bits) 2^max_exponent */
  uint16_t infinity;
  float (*widen)(uint16_t);
  uint16_t (*round_float)(float);
};

static float widen_bf16(uint16_t h) { return dkv_bf16_to_float(h); }
static float widen_f16(uint16_t h) { return dkv_f16_to_float(h); }
static uint16_t round_bf16(float x) { return dkv_float_to_bf16(x); }
static uint16_t round_f16(float x) { return dkv_float_to_f16(x); }

static const struct format FORMATS[] = {{DKV_BF16, 7, 127, 0x7f80, widen_bf16, round_bf16},
                                        {DKV_F16, 10, 15, 0x7c00, widen_f16, round_f16}};

/** The value of 16 bits, computed from their fields by the definition of the format. */
static double value_of(const struct format *f, uint16_t bits) {
  int fraction = bits & ((1 << f->fraction_bits) - 1), exponent = (bits & 0x7fff) >> f->fraction_bits;
  int bias = f->max_exponent;
  double magnitude = exponent == 0 ? ldexp(fraction, 1 - bias - f->fraction_bits)
                                   : ldexp(fraction + (1 << f->fraction_bits), exponent - bias - f->fraction_bits);
  return bits & 0x8000 ? -magnitude : magnitude;
}

/** Nearest, ties to even, by search: magnitudes of finite values ascend with their bits. */
static uint16_t nearest(const struct format *f, double x) {
  uint16_t sign = signbit(x) ? 0x8000 : 0, low = 0, high = f->infinity;
  double a = fabs(x);
  if (a >= ldexp(2 - ldexp(1, -f->fraction_bits - 1), f->max_exponent)) return sign | f->infinity;
  while (high - low > 1) { /* value(low) <= a < value(high) */
    uint16_t middle = (uint16_t)((low + high) / 2);
    if (value_of(f, middle) <= a) low = middle;
    else high = middle;
  }
  double below = a - value_of(f, low), above = value_of(f, high) - a; /* the infinity's bits read as the next value */
  return (uint16_t)(sign | (below < above || (below == above && low % 2 == 0) ? low : high));
}

/** Rounds x from float (when it is one) and from double and expects what the table says. */
static void expect_nearest(const struct format *f, double x) {
  uint16_t expected = nearest(f, x), half;
  EXPECT_OK(dkv_convert(&half, f->dtype, &x, DKV_F64, 1));
  cr_assert(half == expected, "%s: %a gives %04x, not %04x", dkv_dtype_name(f->dtype), x, half, expected);
  float single = (float)x;
  if ((double)single != x) return;
  cr_assert(f->round_float(single) == expected, "%s: float %a gives %04x, not %04x", dkv_dtype_name(f->dtype), x,
            f->round_float(single), expected);
}

Test(dtype, every_16_bit_value_widens_to_its_definition_and_comes_back) {
  for (size_t k = 0; k < 2; ++k) {
    const struct format *f = &FORMATS[k];
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      uint16_t half = (uint16_t)bits, back;
      double wide, element = dkv_element(&half, f->dtype, 0);
      EXPECT_OK(dkv_convert(&wide, DKV_F64, &half, f->dtype, 1));
      EXPECT_OK(dkv_convert(&back, f->dtype, &wide, DKV_F64, 1));
      if ((half & 0x7fff) > f->infinity) { /* NaN stays NaN and keeps its sign */
        cr_assert(isnan(f->widen(half)) && isnan(wide) && isnan(element), "%04x", half);
        cr_assert((back & 0x7fff) > f->infinity, "%04x came back as %04x", half, back);
        cr_assert((f->round_float(f->widen(half)) ^ half) < 0x8000, "%04x lost its sign", half);
        continue;
      }
      double expected = (half & 0x7fff) == f->infinity ? copysign(INFINITY, half & 0x8000 ? -1 : 1) : value_of(f, half);
      cr_assert(wide == expected && element == expected && (double)f->widen(half) == expected, "%s %04x is %g, not %g",
                dkv_dtype_name(f->dtype), half, wide, expected);
      cr_assert(signbit(wide) == signbit(expected) && back == half && f->round_float(f->widen(half)) == half,
                "%s %04x came back as %04x", dkv_dtype_name(f->dtype), half, back);
    }
  }
}

Test(dtype, middles_between_neighbours_go_to_the_even_one_and_anything_beside_to_the_nearer) {
  for (size_t k = 0; k < 2; ++k) {
    const struct format *f = &FORMATS[k];
    for (uint32_t bits = 0; bits < f->infinity; ++bits) {
      double low = value_of(f, (uint16_t)bits), high = value_of(f, (uint16_t)(bits + 1)), middle = (low + high) / 2;
      const double points[] = {middle,
                               nextafter(middle, low),
                               nextafter(middle, high),
                               nextafter(low, high),
                               nextafter(high, low),
                               (double)nextafterf((float)middle, 0),
                               (double)nextafterf((float)middle, INFINITY)};
      for (size_t p = 0; p < sizeof points / sizeof *points; ++p) {
        expect_nearest(f, points[p]);
        expect_nearest(f, -points[p]);
      }
    }
  }
}

Test(dtype, random_floats_and_doubles_round_to_the_nearest) {
  for (uint64_t i = 0; i < 300000; ++i) {
    dkv_rng_block b = dkv_rng(7, 7, i);
    uint64_t bits = (uint64_t)b.word[0] << 32 | b.word[1];
    float single = dkv_bits_float(b.word[2]);
    double x;
    memcpy(&x, &bits, sizeof x);
    double inside = ldexp((double)b.word[1] + ldexp((double)b.word[0], -32), (int)(b.word[3] % 64) - 64);
    for (size_t k = 0; k < 2; ++k) {
      if (isfinite(x)) expect_nearest(&FORMATS[k], x);
      if (isfinite(single)) expect_nearest(&FORMATS[k], (double)single);
      expect_nearest(&FORMATS[k], inside);
    }
  }
}

Test(dtype, double_is_rounded_once_where_two_roundings_would_go_wrong) {
  /* Just above the middle of 1 and 1 + 2^-7: through float it would fall on the middle and then to the even 1. */
  double x = 1 + ldexp(1, -8) + ldexp(1, -40);
  uint16_t half;
  EXPECT_OK(dkv_convert(&half, DKV_BF16, &x, DKV_F64, 1));
  cr_assert(half == dkv_float_to_bf16(1 + 0x1p-7f), "%04x", half);
  cr_assert(dkv_float_to_bf16((float)x) == dkv_float_to_bf16(1), "the example does not show what it should");
}

Test(dtype, overflow_gives_infinity_and_nan_stays_nan) {
  const double huge[] = {1e39, -1e39, 1e308, INFINITY, -INFINITY};
  for (size_t k = 0; k < 2; ++k)
    for (size_t i = 0; i < sizeof huge / sizeof *huge; ++i) {
      uint16_t half;
      EXPECT_OK(dkv_convert(&half, FORMATS[k].dtype, &huge[i], DKV_F64, 1));
      cr_assert(half == (FORMATS[k].infinity | (huge[i] < 0 ? 0x8000 : 0)), "%g gives %04x", huge[i], half);
    }
  double nan = NAN;
  float single;
  EXPECT_OK(dkv_convert(&single, DKV_F32, &nan, DKV_F64, 1));
  cr_assert(isnan(single));
  for (int bit = 0; bit < 23; ++bit)
    for (uint32_t sign = 0; sign < 2; ++sign) { /* every payload bit, quiet or signalling */
      uint32_t bits = 0x7f800000u | 1u << bit | sign << 31;
      uint16_t b = dkv_float_to_bf16(dkv_bits_float(bits)), h = dkv_float_to_f16(dkv_bits_float(bits));
      cr_assert((b & 0x7fff) > 0x7f80 && (h & 0x7fff) > 0x7c00, "NaN %08x gives %04x and %04x", bits, b, h);
      cr_assert(b >> 15 == (int)sign && h >> 15 == (int)sign, "NaN %08x lost its sign", bits);
    }
  cr_assert(dkv_float_to_f16(65519.99f) == 0x7bff && dkv_float_to_f16(65520) == 0x7c00);
}

Test(dtype, every_pair_of_float_types_converts_exact_values_exactly_at_any_alignment) {
  static const dkv_dtype TYPES[] = {DKV_F32, DKV_BF16, DKV_F16, DKV_F64};
  const double values[7] = {0, -1, 1.5, -3.25, 96, 0x1p-10, -240};
  for (size_t a = 0; a < 4; ++a)
    for (size_t b = 0; b < 4; ++b) {
      unsigned char from[7 * 8 + 1], to[7 * 8 + 1]; /* one byte off: a tensor in a mapped file may lie anywhere */
      EXPECT_OK(dkv_convert(from + 1, TYPES[a], values, DKV_F64, 7));
      EXPECT_OK(dkv_convert(to + 1, TYPES[b], from + 1, TYPES[a], 7));
      for (int64_t i = 0; i < 7; ++i)
        cr_assert(dkv_element(to + 1, TYPES[b], i) == values[i], "%s to %s: element %ld", dkv_dtype_name(TYPES[a]),
                  dkv_dtype_name(TYPES[b]), (long)i);
    }
}

Test(dtype, elements_of_integer_types_are_read_too) {
  const int32_t i32[2] = {1, -70000};
  const int64_t i64[2] = {1, -INT64_C(70000000000)};
  const unsigned char u8[2] = {1, 200};
  cr_assert(dkv_element(i32, DKV_I32, 1) == -70000 && dkv_element(i64, DKV_I64, 1) == -70000000000.0);
  cr_assert(dkv_element(u8, DKV_U8, 1) == 200 && isnan(dkv_element(u8, DKV_DTYPES, 0)));
}

Test(dtype, names_and_sizes_are_known_and_names_are_read_back) {
  static const size_t SIZES[DKV_DTYPES] = {4, 2, 2, 8, 4, 8, 1};
  for (int d = 0; d < (int)DKV_DTYPES; ++d) {
    dkv_dtype back = DKV_DTYPES;
    EXPECT_OK(dkv_dtype_parse(&back, dkv_dtype_name((dkv_dtype)d)));
    cr_assert((int)back == d && dkv_dtype_size((dkv_dtype)d) == SIZES[d], "%s", dkv_dtype_name((dkv_dtype)d));
  }
  cr_assert(dkv_dtype_size(DKV_DTYPES) == 0 && strcmp(dkv_dtype_name(DKV_DTYPES), "?") == 0);
  cr_assert(dkv_dtype_size((dkv_dtype)-1) == 0 && strcmp(dkv_dtype_name((dkv_dtype)-1), "?") == 0);
}

Test(dtype, refuses_unknown_names_integer_conversions_and_null) {
  dkv_dtype dtype = DKV_F16;
  double x = 0;
  EXPECT_FAIL(DKV_ERR_RANGE, "\"fp8\"", dkv_dtype_parse(&dtype, "fp8"));
  EXPECT_FAIL(DKV_ERR_RANGE, "\"BF16\"", dkv_dtype_parse(&dtype, "BF16"));
  EXPECT_FAIL(DKV_ERR_RANGE, "\"\"", dkv_dtype_parse(&dtype, ""));
  cr_assert(dtype == DKV_F16);
  EXPECT_FAIL(DKV_ERR_NULL, "out", dkv_dtype_parse(NULL, "f32"));
  EXPECT_FAIL(DKV_ERR_NULL, "name", dkv_dtype_parse(&dtype, NULL));
  EXPECT_FAIL(DKV_ERR_UNSUPPORTED, "i32 to f64", dkv_convert(&x, DKV_F64, &x, DKV_I32, 1));
  EXPECT_FAIL(DKV_ERR_UNSUPPORTED, "f64 to u8", dkv_convert(&x, DKV_U8, &x, DKV_F64, 1));
  EXPECT_FAIL(DKV_ERR_UNSUPPORTED, "i64 to i64", dkv_convert(&x, DKV_I64, &x, DKV_I64, 1));
  EXPECT_FAIL(DKV_ERR_UNSUPPORTED, "?", dkv_convert(&x, DKV_DTYPES, &x, DKV_F64, 1));
  EXPECT_FAIL(DKV_ERR_NULL, "out", dkv_convert(NULL, DKV_F32, &x, DKV_F64, 1));
  EXPECT_FAIL(DKV_ERR_NULL, "in", dkv_convert(&x, DKV_F32, NULL, DKV_F64, 1));
  EXPECT_OK(dkv_convert(NULL, DKV_F32, NULL, DKV_F64, 0));
  EXPECT_OK(dkv_convert(NULL, DKV_F32, NULL, DKV_F64, -1));
}
