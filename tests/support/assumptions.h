/**
 * @file assumptions.h
 * @brief The counter-examples of docs/equivalence.md, section 6: what breaks an assumption, by how much packed and
 * replicated then differ, and what mends it.
 *
 * All of them run on the group of seven tokens (P=3, N=2, R=2) and its replica of ten.  tests/test_assumptions.c holds
 * the numbers to bounds; tests/tool_assumptions.c prints them.
 *
 * Read before: decoder.h.
 */
#ifndef DKV_TESTS_ASSUMPTIONS_H
#define DKV_TESTS_ASSUMPTIONS_H

#include "tests/support/decoder.h"

/** Relative Frobenius differences of packed and replicated. */
struct gap {
  double forward;  /* activations of the last layer, all ten rows */
  double gradient; /* of the loss, by the embedding of the prompt's first token and by W_q of the first layer; central
                      differences */
};

/** One counter-example. */
struct assumption {
  const char *name;             /* unique */
  const char *breaks;           /* "A1" to "A6" */
  struct decoder_habits broken; /* differs from the zeroed habits in one switch */
  struct decoder_habits mended; /* the same wish, in a way that keeps the assumption */
  const char *repair;           /* what was done, in a few words */
  bool steps;                   /* piecewise constant (rounding): no gradient to compare */
  bool unequal_prompts;         /* the second copy of the prompt differs in its last token */
};

/** All of them; the last has a NULL name. */
extern const struct assumption assumptions[];

/**
 * Measures what separates the two layouts.
 * @param[out] out    overwritten
 * @param[in]  a      the counter-example; NULL: the decoder of the proof
 * @param[in]  mended false: as broken; true: as mended
 * @return DKV_OK, or what a constructor said
 */
dkv_status assumption_gap(struct gap *out, const struct assumption *a, bool mended);

#endif
