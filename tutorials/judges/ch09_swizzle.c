/*
 * Judge of exercise 09: puts every chunk of a tile where the student says, looks for two that meet, and counts the
 * turns that reads and writes of eight threads take.  Last it writes a tile through the student's places and reads it
 * back.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "common/rng.h"

enum { ROWS = 64, MOST_DIM = 128, CHUNK = 16, MOST_BYTES = ROWS * MOST_DIM * 2 };

int32_t student_place(int32_t row, int32_t chunk, int32_t dim);

typedef int32_t place_rule(int32_t row, int32_t chunk, int32_t dim);

static int32_t plain(int32_t row, int32_t chunk, int32_t dim) { return row * dim * 2 + chunk * CHUNK; }
static int32_t key_of_8(int32_t row, int32_t chunk, int32_t dim) { return row * dim * 2 + (chunk ^ row % 8) * CHUNK; }
static int32_t key_of_4(int32_t row, int32_t chunk, int32_t dim) {
  return row * dim * 2 + (chunk ^ row / 2 % 4) * CHUNK;
}
static int32_t padded(int32_t row, int32_t chunk, int32_t dim) { return row * (dim * 2 + CHUNK) + chunk * CHUNK; }
static int32_t by_chunk(int32_t row, int32_t chunk, int32_t dim) {
  return row / 8 * 8 * dim * 2 + (chunk * 8 + row % 8) * CHUNK;
}

static const struct {
  place_rule *rule;
  const char *reason;
} mistakes[] = {
    {plain, "plain rows: the same chunk of eight rows lies in the same banks"},
    {key_of_8, "the key row % 8 needs eight places to permute, and 12 chunks are not a multiple of eight"},
    {key_of_4, "the key row / 2 % 4 has four values: rows r and r + 1 keep the same place"},
    {padded, "padded rows: the tile has no byte to spare"},
    {by_chunk, "chunk by chunk: one read is 128 bytes in a row, but a row's chunks are 128 bytes apart"},
};

static const char *why(int32_t dim) {
  for (size_t m = 0; m < sizeof mistakes / sizeof mistakes[0]; ++m) {
    bool same = true;
    for (int32_t row = 0; row < ROWS; ++row)
      for (int32_t chunk = 0; chunk < dim / 8; ++chunk)
        same = same && student_place(row, chunk, dim) == mistakes[m].rule(row, chunk, dim);
    if (same) return mistakes[m].reason;
  }
  return "permute the chunks within each row";
}

/** Inside the tile, whole chunks, no two at one place. */
static int judge_places(int32_t dim) {
  static int32_t owner[MOST_BYTES / CHUNK];
  memset(owner, 0xff, sizeof owner);
  for (int32_t row = 0; row < ROWS; ++row)
    for (int32_t chunk = 0; chunk < dim / 8; ++chunk) {
      const int32_t at = student_place(row, chunk, dim);
      if (at % CHUNK != 0)
        return printf("dim %d: chunk %d of row %d begins at byte %d, no multiple of 16\n", dim, chunk, row, at), 1;
      if (at < 0 || at >= ROWS * dim * 2)
        return printf("dim %d: chunk %d of row %d begins at byte %d, outside the tile of %d bytes; %s\n", dim, chunk,
                      row, at, ROWS * dim * 2, why(dim)),
               1;
      if (owner[at / CHUNK] >= 0)
        return printf("dim %d: chunk %d of row %d and chunk %d of row %d lie at the same place, byte %d; %s\n", dim,
                      owner[at / CHUNK] % 64, owner[at / CHUNK] / 64, chunk, row, at, why(dim)),
               1;
      owner[at / CHUNK] = row * 64 + chunk;
    }
  return 0;
}

/** Turns of eight threads that move 16 bytes each: how many of them meet in the banks that are asked for most. */
static int turns(const int32_t at[8]) {
  int meet[8] = {0}, most = 0;
  for (int i = 0; i < 8; ++i) {
    const int n = ++meet[at[i] / CHUNK % 8];
    most = n > most ? n : most;
  }
  return most;
}

/** The slowest access of one kind. */
static int slowest(place_rule *rule, int32_t dim, bool write) {
  const int32_t wide = !write ? 1 : dim == 96 ? 4 : 8, high = 8 / wide;
  int most = 0;
  for (int32_t row = 0; row + high <= ROWS; row += high)
    for (int32_t chunk = 0; chunk + wide <= dim / 8; chunk += wide) {
      int32_t at[8];
      for (int32_t i = 0; i < 8; ++i) at[i] = rule(row + i / wide, chunk + i % wide, dim);
      const int n = turns(at);
      most = n > most ? n : most;
    }
  return most;
}

static int judge_turns(int32_t dim) {
  const int reads = slowest(student_place, dim, false), writes = slowest(student_place, dim, true);
  if (reads > 1)
    return printf("dim %d: ldmatrix reads eight rows of a chunk in %d turns, 1 will do; %s\n", dim, reads, why(dim)), 1;
  if (writes > 1)
    return printf("dim %d: eight neighbouring threads of a copy write in %d turns, 1 will do; %s\n", dim, writes,
                  why(dim)),
           1;
  return 0;
}

/** Writes a tile through the student's places and reads it back. */
static int judge_contents(int32_t dim) {
  static unsigned char tile[MOST_BYTES];
  for (int32_t row = 0; row < ROWS; ++row)
    for (int32_t chunk = 0; chunk < dim / 8; ++chunk) {
      const uint32_t word = dkv_rng(9, (uint64_t)row, (uint64_t)chunk).word[0];
      memcpy(tile + student_place(row, chunk, dim), &word, sizeof word);
    }
  for (int32_t row = 0; row < ROWS; ++row)
    for (int32_t chunk = 0; chunk < dim / 8; ++chunk) {
      uint32_t word;
      memcpy(&word, tile + student_place(row, chunk, dim), sizeof word);
      if (word != dkv_rng(9, (uint64_t)row, (uint64_t)chunk).word[0])
        return printf("dim %d: chunk %d of row %d is not what was written: the place must depend on nothing else\n",
                      dim, chunk, row),
               1;
    }
  return 0;
}

int main(void) {
  static const int32_t dims[] = {64, 128, 96};
  for (int i = 0; i < 3; ++i)
    if (judge_places(dims[i]) || judge_turns(dims[i]) || judge_contents(dims[i])) return 1;
  printf("right: every read and write in 1 turn for dim 64, 128, 96; plain rows read in %d, %d, %d turns\n",
         slowest(plain, 64, false), slowest(plain, 128, false), slowest(plain, 96, false));
  return 0;
}
