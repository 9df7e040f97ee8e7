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

/** `size` cut into about `parts` pieces of a multiple of 16, between low and high. */
static int32_t piece(int32_t size, int32_t parts, int32_t low, int32_t high) {
  int64_t wanted = dkv_ceil_div(dkv_ceil_div(size, parts), 16) * 16;
  return (int32_t)dkv_min(high, dkv_max(low, wanted));
}

/** Tiles of a rows x cols output: large enough to keep OpenBLAS fast, enough to share out. fixed_rows = 0: choose. */
static tiling cut(int32_t rows, int32_t cols, int32_t fixed_rows) {
  tiling t;
  t.rows = fixed_rows > 0 ? fixed_rows : piece(rows, 8, 96, 256);
  int32_t parts = fixed_rows > 0 ? 2 : rows <= 2 * t.rows ? 4 : 1; /* fixed: must not depend on rows */
  t.cols = piece(cols, parts, 64, 512);
  t.across = (int32_t)dkv_ceil_div(cols, t.cols);
  t.count = (int32_t)dkv_ceil_div(rows, t.rows) * t.across;
  return t;
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

dkv_status dkv_cpu_linear_fwd(const dkv_where *where, float *out, bool add, const float *x, const float *weight,
                              int32_t rows, int32_t in, int32_t out_width) {
  DKV_TRY(dkv_blas_open());
  tiling t = cut(rows, out_width, where->row_tile);
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
  tiling of_dx = cut(rows, in, 0), of_dw = {.rows = piece(out_width, 4, 48, 256), .cols = piece(in, 1, 48, 512)};
  of_dw.across = (int32_t)dkv_ceil_div(in, of_dw.cols);
  of_dw.count = (int32_t)dkv_ceil_div(out_width, of_dw.rows) * of_dw.across;
  int32_t dw_tiles = dweight != NULL ? of_dw.count : 0, dx_tiles = dx != NULL ? of_dx.count : 0;
  /* The tiles of dW are the longest: they go first. Both products run in one loop, so that no thread waits between
   * them. */
#pragma omp parallel for schedule(dynamic) num_threads(dkv_where_threads(where, work(rows, in, out_width)))
  for (int32_t i = 0; i < dw_tiles + dx_tiles; ++i) {
    if (i < dw_tiles) {
      tile y = tile_at(&of_dw, i, out_width, in);
      dkv_sgemm(true, false, y.rows, y.cols, rows, 1.0f, dout + y.r0, out_width, x + y.c0, in, 1.0f,
                dweight + dkv_offset(y.r0, 0, 1, in) + y.c0, in);
    } else {
      tile y = tile_at(&of_dx, i - dw_tiles, rows, in);
      dkv_sgemm(false, false, y.rows, y.cols, out_width, 1.0f, dout + dkv_offset(y.r0, 0, 1, out_width), out_width,
                weight + y.c0, in, add ? 1.0f : 0.0f, dx + dkv_offset(y.r0, 0, 1, in) + y.c0, in);
    }
  }
  return DKV_OK;
}
