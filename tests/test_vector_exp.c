/**
 * @file test_vector_exp.c
 * @brief The vector exp against the double one: its stated error, its exact points, and what it does outside its range.
 *
 * Read before: cpu/vector_exp.h.
 */
#include "cpu/vector_exp.h"

#include <criterion/criterion.h>
#include <math.h>

#include "common/dtype.h"

/** exp of one number, by way of a whole vector whose other lanes hold something else. */
static float exp_of(float x) {
  float lanes[DKV_LANES];
  for (int l = 0; l < DKV_LANES; ++l) lanes[l] = l == 1 ? x : (float)l - 3.0f;
  vec_store(lanes, vec_exp(vec_load(lanes)));
  return lanes[1];
}

/** Difference in units of the last place of the exact result, which must be a normal float. */
static double ulps(float got, double exact) {
  int exponent;
  (void)frexp(exact, &exponent);
  return fabs((double)got - exact) / ldexp(1.0, exponent - 24);
}

Test(vector_exp, stays_within_its_stated_error) {
  const uint32_t step = 61; /* of 2^31 bit patterns on each side; the bound was found with step 1 */
  double worst = 0;
  float where = 0;
  for (uint32_t sign = 0; sign <= 1; ++sign) {
    const float limit = sign ? 87.3f : 88.72f;
    for (uint32_t bits = 0; dkv_bits_float(bits) < limit;) {
      float x[DKV_LANES], y[DKV_LANES];
      for (int l = 0; l < DKV_LANES; ++l, bits += step) x[l] = dkv_bits_float(bits | sign << 31);
      vec_store(y, vec_exp(vec_load(x)));
      for (int l = 0; l < DKV_LANES; ++l) {
        if (fabsf(x[l]) >= limit) continue;
        double error = ulps(y[l], exp((double)x[l]));
        if (error > worst) worst = error, where = x[l];
      }
    }
  }
  cr_assert(worst <= (DKV_LANES > 4 ? 0.9 : 1.2), "exp(%a) is off by %g units in the last place", (double)where, worst);
  cr_assert(worst > 0.5, "%g: nothing was measured", worst);
}

Test(vector_exp, of_zero_is_one_exactly) {
  cr_assert(exp_of(0.0f) == 1.0f);
  cr_assert(exp_of(-0.0f) == 1.0f);
}

Test(vector_exp, of_a_masked_score_is_zero_exactly) {
  cr_assert(exp_of(-INFINITY) == 0.0f);
  cr_assert(exp_of(-3.4e38f) == 0.0f);
  cr_assert(exp_of(-104.0f) == 0.0f);
  cr_assert(exp_of(-1e30f) == 0.0f);
}

Test(vector_exp, ends_at_zero_and_at_the_largest_float) {
  cr_assert(exp_of(-87.3f) > 1.18e-38f);
  for (float x = -87.31f; x > -200.0f; x -= 0.01f) cr_assert(exp_of(x) == 0.0f, "exp(%g)", (double)x);
  for (float x = 88.72f; x < 1e6f; x *= 1.01f) cr_assert(exp_of(x) == exp_of(88.72f) && exp_of(x) > 3.3e38f);
  cr_assert(exp_of(3.4e38f) == exp_of(88.72f));
  cr_assert(exp_of(INFINITY) == exp_of(88.72f));
}

Test(vector_exp, passes_nan_on) {
  cr_assert(isnan(exp_of(NAN)));
  cr_assert(isnan(exp_of(-NAN)));
}

Test(vector_exp, does_not_let_lanes_touch_each_other) {
  float x[DKV_LANES], y[DKV_LANES];
  for (int l = 0; l < DKV_LANES; ++l) x[l] = l % 3 == 0 ? NAN : l % 3 == 1 ? -INFINITY : (float)l * 0.25f;
  vec_store(y, vec_exp(vec_load(x)));
  for (int l = 0; l < DKV_LANES; ++l) {
    if (l % 3 == 0) cr_assert(isnan(y[l]));
    else if (l % 3 == 1) cr_assert(y[l] == 0.0f);
    else cr_assert(y[l] == exp_of(x[l]));
  }
}

Test(simd, keep_is_an_interval_of_lanes) {
  float a[DKV_LANES], out[DKV_LANES];
  for (int l = 0; l < DKV_LANES; ++l) a[l] = (float)l;
  for (int32_t lo = -2; lo <= DKV_LANES + 1; ++lo)
    for (int32_t hi = -2; hi <= DKV_LANES + 1; ++hi) {
      vec_store(out, vec_keep(vec_load(a), lo, hi, vec_set(-1.0f)));
      for (int l = 0; l < DKV_LANES; ++l)
        cr_assert(out[l] == (lo <= l && l < hi ? (float)l : -1.0f), "[%d, %d) lane %d: %g", lo, hi, l, (double)out[l]);
    }
}

Test(simd, max_and_min_take_the_second_when_one_is_nan) {
  float out[DKV_LANES];
  vec_store(out, vec_max(vec_set(NAN), vec_set(2.0f)));
  cr_assert(out[0] == 2.0f);
  vec_store(out, vec_max(vec_set(2.0f), vec_set(NAN)));
  cr_assert(isnan(out[0]));
  vec_store(out, vec_min(vec_set(NAN), vec_set(2.0f)));
  cr_assert(out[DKV_LANES - 1] == 2.0f);
  vec_store(out, vec_min(vec_set(2.0f), vec_set(NAN)));
  cr_assert(isnan(out[DKV_LANES - 1]));
}
