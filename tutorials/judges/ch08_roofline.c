/*
 * Judge of exercise 08: the student's counts for groups, two groups and a tree, in tiles of several heights, against
 * the library's key ranges (dkv_key_ranges) and pairs (dkv_layout_pairs).  When a number is wrong it is compared with
 * the numbers of the usual mistakes.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "common/layout.h"
#include "common/tiles.h"

enum { MOST_RANGES = 16 };

/** A kernel's shape and a machine: they differ from case to case, so that no number can be typed in. */
struct setting {
  int32_t heads, dim, element;
  double bandwidth, rate;
};
static const struct setting round_numbers = {8, 128, 2, 4e12, 6e13}, single = {3, 64, 4, 4e12, 6e13},
                            slow_memory = {5, 24, 2, 1e10, 6e13}, slow_arithmetic = {2, 96, 4, 1e13, 1e9};

struct bound {
  double loads, bytes, flops, seconds;
};

void student_bound(struct bound *out, const int32_t *end, int32_t rows, int32_t tile, int32_t heads, int32_t dim,
                   int32_t element, double bandwidth, double rate);

/** Keys that a tile of query rows [i0, i1) loads, with one of the usual mistakes or none. */
enum mistake { NONE, EVERY_ROW, CAUSAL, FIRST_ROW, LAST_ROW, MISTAKES };
static const char *const reason[MISTAKES] = {
    NULL,
    "that is a load for every visible pair: the rows of a tile share what is loaded",
    "that is every key up to the tile's last row: siblings are loaded though nobody in the tile sees them",
    "that is what the tile's first row sees: the keys of the rows after it are missing",
    "that is what the tile's last row sees: the rows before it may belong to another response",
};

static double row_sees(const dkv_layout *l, int32_t i) {
  double n = 0;
  for (int32_t j = 0; j <= i; ++j) n += l->end[j] > i;
  return n;
}

static double loads_of(const dkv_layout *l, int32_t tile, enum mistake mistake) {
  double loads = 0;
  for (int32_t i0 = 0; i0 < l->rows; i0 += tile) {
    const int32_t i1 = (int32_t)dkv_min((int64_t)i0 + tile, l->rows);
    dkv_range range[MOST_RANGES];
    const int32_t count = dkv_key_ranges(l, i0, i1, range, MOST_RANGES);
    if (mistake == NONE)
      for (int32_t r = 0; r < count; ++r) loads += range[r].end - range[r].begin;
    if (mistake == EVERY_ROW)
      for (int32_t i = i0; i < i1; ++i) loads += row_sees(l, i);
    if (mistake == CAUSAL) loads += i1;
    if (mistake == FIRST_ROW) loads += row_sees(l, i0);
    if (mistake == LAST_ROW) loads += row_sees(l, i1 - 1);
  }
  return loads;
}

static bool same(double a, double b) { return fabs(a - b) <= 1e-9 * fabs(b); }

static const char *why_loads(const dkv_layout *l, int32_t tile, double got) {
  if (got == 0) return "nothing was counted";
  for (int m = EVERY_ROW; m < MISTAKES; ++m)
    if (same(got, loads_of(l, tile, (enum mistake)m))) return reason[m];
  return "count, tile by tile, the keys that at least one of its rows sees";
}

static const char *why_bytes(const dkv_layout *l, const struct setting *s, double loads, double got) {
  const double row = (double)s->dim * s->element, qo = 2.0 * l->rows;
  if (same(got, (2 * loads + qo) * row)) return "that is one head; every query head has its own tiles";
  if (same(got, (loads + qo) * row * s->heads)) return "v is missing: it is loaded with k";
  if (same(got, 2 * loads * row * s->heads)) return "q and o are missing";
  if (same(got, (2 * loads + qo) * s->dim * 2 * s->heads)) return "an element has `element` bytes, not always 2";
  return "(2 loads + 2 rows) rows of dim elements, for every head";
}

static const char *why_flops(const dkv_layout *l, const struct setting *s, int32_t tile, double loads, double got) {
  const double product = 2.0 * s->dim * s->heads;
  if (same(got, 2 * product * loads * tile) || same(got, 2 * product * l->rows * l->rows))
    return "masked pairs are in it: they are computed perhaps, but they are no useful work";
  if (same(got, product * (double)dkv_layout_pairs(l))) return "there are two products: Q K^T and P V";
  return "4 dim operations for each visible pair of each head";
}

static const char *why_seconds(double copying, double computing, double got) {
  if (same(got, copying + computing))
    return "the times were added: copies run beside the arithmetic, the longer decides";
  if (same(got, fmin(copying, computing))) return "that is the shorter of the two times: the longer decides";
  if (same(got, copying)) return "that is the time of the bytes; the arithmetic takes longer here";
  if (same(got, computing)) return "that is the time of the arithmetic; the bytes take longer here";
  return "the longer of bytes / bandwidth and flops / rate";
}

/** Compares one number. @return 1 when it is wrong */
static int differs(const char *name, int32_t tile, const char *what, double got, double want, const char *why) {
  if (same(got, want)) return 0;
  printf("%s, tiles of %d: %s: you have %.6g, it should be %.6g; %s\n", name, tile, what, got, want, why);
  return 1;
}

static int judge_setting(const char *name, int32_t segments, const int32_t *parent, const int32_t *length, int32_t tile,
                         const struct setting *s) {
  dkv_layout l;
  if (dkv_layout_forest(&l, segments, parent, length))
    return printf("the judge itself failed: %s\n", dkv_last_error()), 2;
  struct bound got;
  student_bound(&got, l.end, l.rows, tile, s->heads, s->dim, s->element, s->bandwidth, s->rate);
  const double loads = loads_of(&l, tile, NONE), bytes = (2 * loads + 2.0 * l.rows) * s->heads * s->dim * s->element;
  const double flops = 4.0 * s->dim * s->heads * (double)dkv_layout_pairs(&l);
  const double copying = bytes / s->bandwidth, computing = flops / s->rate;
  int wrong = differs(name, tile, "loads", got.loads, loads, why_loads(&l, tile, got.loads));
  if (!wrong) wrong = differs(name, tile, "bytes", got.bytes, bytes, why_bytes(&l, s, loads, got.bytes));
  if (!wrong) wrong = differs(name, tile, "flops", got.flops, flops, why_flops(&l, s, tile, loads, got.flops));
  if (!wrong)
    wrong = differs(name, tile, "seconds", got.seconds, fmax(copying, computing),
                    why_seconds(copying, computing, got.seconds));
  dkv_layout_free(&l);
  return wrong;
}

/** One layout, in every setting. */
static int judge(const char *name, int32_t segments, const int32_t *parent, const int32_t *length, int32_t tile) {
  const struct setting *const all[] = {&round_numbers, &single, &slow_memory, &slow_arithmetic};
  int wrong = 0;
  for (int s = 0; s < 4 && !wrong; ++s) wrong = judge_setting(name, segments, parent, length, tile, all[s]);
  return wrong;
}

/** The shape of the first three rungs: what each n may hope for. */
static int judge_large(void) {
  static const int32_t parent[] = {-1, 0, 0, 0, 0, 0, 0, 0, 0},
                       length[] = {2048, 512, 512, 512, 512, 512, 512, 512, 512}, tile[] = {1, 4, 16, 64};
  for (int t = 0; t < 4; ++t)
    if (judge_setting("P=2048, N=8, R=512", 9, parent, length, tile[t], &round_numbers)) return 1;
  dkv_layout l;
  if (dkv_layout_forest(&l, 9, parent, length)) return 2;
  printf("right: loads, bytes, flops and seconds of every tile; P=2048, N=8, R=512, 8 heads, 4 TB/s, 60 TFLOP/s:");
  for (int t = 0; t < 4; ++t) {
    struct bound b;
    const struct setting *const s = &round_numbers;
    student_bound(&b, l.end, l.rows, tile[t], s->heads, s->dim, s->element, s->bandwidth, s->rate);
    printf("%s tiles of %d %.3g ms", t == 0 ? "" : ",", tile[t], 1e3 * b.seconds);
  }
  putchar('\n');
  dkv_layout_free(&l);
  return 0;
}

int main(void) {
  int wrong = 0;
  for (int32_t tile = 1; tile <= 7 && !wrong; ++tile) {
    wrong = judge("P=3, R={2,2}", 3, (const int32_t[]){-1, 0, 0}, (const int32_t[]){3, 2, 2}, tile);
    if (!wrong)
      wrong = judge("P=9, R={5,0,1,12}", 5, (const int32_t[]){-1, 0, 0, 0, 0}, (const int32_t[]){9, 5, 0, 1, 12}, tile);
    if (!wrong)
      wrong = judge("two groups", 5, (const int32_t[]){-1, 0, 0, -1, 3}, (const int32_t[]){4, 3, 6, 2, 5}, tile);
    if (!wrong)
      wrong =
          judge("a turn after a turn", 5, (const int32_t[]){-1, 0, 0, 2, 2}, (const int32_t[]){3, 2, 2, 1, 4}, tile);
  }
  return wrong ? wrong : judge_large();
}
