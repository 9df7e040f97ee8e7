/**
 * @file linear.c
 * @brief y = x W^T: nearly all the FLOPs of the model, in one product forward and two backward.
 *
 *     forward    out[T][O] (+)= x[T][I] W[O][I]^T
 *     backward   dx[T][I]  (+)= dout[T][O] W[O][I]            dW[O][I] += dout[T][O]^T x[T][I]
 *
 * Here lies what sharing the prompt saves: T is the number of packed rows, P + N R instead of N (P + R).
 *
 * Each product is cut into tiles of the output, tiles are shared out among threads, and OpenBLAS computes a tile on one
 * thread with the whole inner dimension.  The cut depends on the shape alone, so the bits do not depend on the threads.
 * When the caller asks for tiles of `where->row_tile` rows, a row's bits do not even depend on how many other rows
 * there are: decoding relies on it.
 *
 * Read before: cpu/blas.h.  Read next: swiglu.c, lm_logprob.c.
 */
#include "cpu/blas.h"
#include "cpu/layers/layers_cpu.h"

/** The cut of a matrix into tiles. */
typedef struct tiling {
  int32_t rows;   /**< rows of a tile */
  int32_t cols;   /**< columns of a tile */
  int32_t across; /**< tiles side by side */
  int32_t count;  /**< all tiles */
} tiling;

/**
 * Multiply-adds up to which OpenBLAS 0.3.21 computes a product without packing its operands first (SkylakeX kernels), a
 * fifth faster than with packing; it does so well only if the second operand is not transposed.
 */
#define UNPACKED INT64_C(1000000)

/** `size` cut into at least `parts` even pieces of a multiple of 16, none below low (but the last) or above high. */
static int32_t piece(int32_t size, int32_t parts, int32_t low, int32_t high) {
  int64_t count = dkv_max(parts, dkv_ceil_div(size, high));
  return (int32_t)dkv_max(low, dkv_ceil_div(dkv_ceil_div(size, count), 16) * 16);
}

/** Tiles of rows x cols in a rows_all x cols_all output. */
static tiling tiles_of(int32_t rows_all, int32_t cols_all, int32_t rows, int32_t cols) {
  tiling t = {.rows = rows, .cols = cols, .across = (int32_t)dkv_ceil_div(cols_all, cols)};
  t.count = (int32_t)dkv_ceil_div(rows_all, rows) * t.across;
  return t;
}

/** Forward, x W^T: large tiles keep OpenBLAS fast, several can be shared out. */
static tiling cut_fwd(int32_t rows, int32_t cols, int32_t fixed_rows) {
  if (fixed_rows > 0) return tiles_of(rows, cols, fixed_rows, piece(cols, 2, 64, 512)); /* must not depend on rows */
  int32_t tile_rows = piece(rows, 4, 96, 384);
  return tiles_of(rows, cols, tile_rows, piece(cols, rows <= 2 * tile_rows ? 4 : 1, 64, 512));
}

/** dout W: the same, or tiles so small that OpenBLAS need not pack, when that leaves at least 48 rows. */
static tiling cut_dx(int32_t rows, int32_t cols, int32_t inner) {
  int64_t unpacked = UNPACKED / ((int64_t)cols * inner) / 16 * 16;
  if (unpacked < 48) return cut_fwd(rows, cols, 0);
  return tiles_of(rows, cols, (int32_t)dkv_min(unpacked, piece(rows, 4, 48, 384)), cols);
}

/** Tile `index` of a rows x cols output. */
typedef struct tile {
  int32_t r0, c0;     /**< its first row and column */
  int32_t rows, cols; /**< its size */
} tile;

static tile tile_at(const tiling *t, int32_t index, int32_t rows, int32_t cols) {
  tile out = {.r0 = index / t->across * t->rows, .c0 = index % t->across * t->cols};
  out.rows = rows - out.r0 < t->rows ? rows - out.r0 : t->rows;
  out.cols = cols - out.c0 < t->cols ? cols - out.c0 : t->cols;
  return out;
}

/** A product's work in the unit of dkv_where_threads: 16 multiply-adds take about the time of one float from memory. */
static int64_t work(int32_t rows, int32_t in, int32_t out_width) { return (int64_t)rows * in * out_width / 16; }

/** dW += dout^T x for one tile of dW.  A small tile takes its rows in runs that OpenBLAS need not pack. */
static void add_dw(float *dweight, const tile *y, const float *dout, const float *x, int32_t rows, int32_t in,
                   int32_t out_width) {
  int64_t run = UNPACKED / ((int64_t)y->rows * y->cols) / 16 * 16;
  if (run < 48) run = rows;
  for (int64_t t = 0; t < rows; t += run)
    dkv_sgemm(true, false, y->rows, y->cols, (int32_t)dkv_min(run, rows - t), 1.0f, dout + t * out_width + y->r0,
              out_width, x + t * in + y->c0, in, 1.0f, dweight + dkv_offset(y->r0, 0, 1, in) + y->c0, in);
}

dkv_status dkv_cpu_linear_fwd(const dkv_where *where, float *out, bool add, const float *x, const float *weight,
                              int32_t rows, int32_t in, int32_t out_width) {
  DKV_TRY(dkv_blas_open());
  tiling t = cut_fwd(rows, out_width, where->row_tile);
#pragma omp parallel for schedule(dynamic) num_threads(dkv_where_threads(where, work(rows, in, out_width)))
  for (int32_t i = 0; i < t.count; ++i) {
    tile y = tile_at(&t, i, rows, out_width);
    dkv_sgemm(false, true, y.rows, y.cols, in, 1.0f, x + dkv_offset(y.r0, 0, 1, in), in,
              weight + dkv_offset(y.c0, 0, 1, in), in, add ? 1.0f : 0.0f,
              out + dkv_offset(y.r0, 0, 1, out_width) + y.c0, out_width);
  }
  return DKV_OK;
}

dkv_status dkv_cpu_linear_bwd(const dkv_where *where, float *dx, bool add, float *dweight, const float *dout,
                              const float *x, const float *weight, int32_t rows, int32_t in, int32_t out_width) {
  DKV_TRY(dkv_blas_open());
  tiling of_dx = cut_dx(rows, in, out_width);
  tiling of_dw = tiles_of(out_width, in, piece(out_width, 2, 48, 256), piece(in, 1, 48, 512));
  int32_t dw_tiles = dweight != NULL ? of_dw.count : 0, dx_tiles = dx != NULL ? of_dx.count : 0;
  /* The tiles of dW are the longest: they go first. Both products run in one loop, so that no thread waits between
   * them. */
#pragma omp parallel for schedule(dynamic) num_threads(dkv_where_threads(where, work(rows, in, out_width)))
  for (int32_t i = 0; i < dw_tiles + dx_tiles; ++i) {
    if (i < dw_tiles) {
      tile y = tile_at(&of_dw, i, out_width, in);
      add_dw(dweight, &y, dout, x, rows, in, out_width);
    } else {
      tile y = tile_at(&of_dx, i - dw_tiles, rows, in);
      dkv_sgemm(false, false, y.rows, y.cols, out_width, 1.0f, dout + dkv_offset(y.r0, 0, 1, out_width), out_width,
                weight + y.c0, in, add ? 1.0f : 0.0f, dx + dkv_offset(y.r0, 0, 1, in) + y.c0, in);
    }
  }
  return DKV_OK;
}
