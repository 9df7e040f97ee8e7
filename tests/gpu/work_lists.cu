/**
 * @file work_lists.cu
 * @brief Checks the tile lists of gpu/hopper/work.cuh against dkv_tile_classify, on the host: needs nvcc to build, no
 * GPU.
 *
 * On random forests and two tile shapes: every key tile that holds a visible pair is visited exactly once, no other
 * tile of class FULL lacks a pair, masked tiles come first and include the diagonal, costs fall, reach says what
 * dkv_sees says. Exit code 0: all hold.
 *
 * Read before: gpu/hopper/work.cuh.
 */
#include <stdio.h>

#include "gpu/hopper/work.cuh"

static uint64_t state = 0x2545f4914f6cdd1d;
static uint32_t draw(uint32_t n) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (uint32_t)(state >> 24) % n;
}

static int failures = 0;
static void expect(bool holds, const char *what, int32_t a, int64_t b) {
  if (!holds && failures++ < 20) printf("FAIL %s: query tile at row %d, key tile or row %lld\n", what, a, (long long)b);
}

/** A random forest; its longest segment sets the scale. */
static dkv_layout random_layout(void) {
  int32_t parent[200], length[200];
  const int n = 1 + (int)draw(200);
  const uint32_t longest = 1 + draw(n < 20 ? 900 : 60);
  for (int i = 0; i < n; ++i) {
    int p = i - 1;
    while (p >= 0 && draw(3) == 0) p = parent[p];
    parent[i] = draw(8) == 0 ? -1 : p;
    if (parent[i] == -1 && i > 0 && draw(4) != 0) parent[i] = 0;
    length[i] = draw(6) == 0 ? 0 : (int32_t)draw(longest + 1);
  }
  dkv_layout layout;
  if (dkv_layout_forest(&layout, n, parent, length) != DKV_OK) layout = {};
  return layout;
}

/** All claims about one query tile. @param[in,out] visits [key tiles] zeroed; zeroed again on return */
static void check_tile(const dkv_layout *layout, const dkv_work *work, const dkv_query_tile *tile, int32_t rows,
                       int32_t keys, int32_t *visits) {
  const int64_t key_tiles = dkv_ceil_div(layout->rows, keys);
  const int32_t i0 = tile->row, i1 = (int32_t)dkv_min((int64_t)i0 + rows, layout->rows);
  const dkv_key_run *run = work->runs + tile->run;
  int32_t steps = 0;
  for (; steps < tile->masked + tile->full; steps += run->count, ++run) {
    expect(run->count > 0 && run->first >= 0 && run->first + run->count <= key_tiles, "run inside T", i0, run->first);
    expect(steps >= tile->masked || steps + run->count <= tile->masked, "runs do not mix classes", i0, run->first);
    for (int32_t t = run->first; t < run->first + run->count; ++t) visits[t] += steps < tile->masked ? 1 : 1000;
  }
  expect(steps == tile->masked + tile->full && tile->masked >= 1, "step counts", i0, steps);
  for (int64_t t = 0; t < key_tiles; ++t) {
    const int32_t j0 = (int32_t)(t * keys), j1 = (int32_t)dkv_min((int64_t)j0 + keys, layout->rows);
    const dkv_tile_class exact = dkv_tile_classify(layout, i0, i1, j0, j1);
    expect(exact == DKV_TILE_EMPTY ? visits[t] <= 1 : visits[t] == 1 || visits[t] == 1000, "visited once", i0, t);
    expect(visits[t] < 1000 || (exact == DKV_TILE_FULL && j1 - j0 == keys), "full is full", i0, t);
    expect(visits[t] == 1000 || exact != DKV_TILE_FULL || j1 - j0 < keys, "no needless mask", i0, t);
    visits[t] = 0;
  }
}

static void check_layout(const dkv_layout *layout, int32_t rows, int32_t keys) {
  const size_t bytes = dkv_work_bytes(layout, rows, keys);
  size_t used = 0;
  if (layout->rows == 0) {
    expect(bytes == 0, "no rows, no bytes", 0, (int64_t)bytes);
    return;
  }
  void *host = calloc(1, bytes + (1 << 20)); /* room to see a bound that does not hold */
  int32_t *visits = (int32_t *)calloc((size_t)dkv_ceil_div(layout->rows, keys), sizeof(int32_t));
  bool *seen = (bool *)calloc((size_t)dkv_ceil_div(layout->rows, rows), sizeof(bool));
  expect(host && visits && seen && dkv_work_fill(host, &used, layout, rows, keys) == DKV_OK, "fill", 0, 0);
  expect(used <= bytes, "within the bound from T and depth", (int64_t)used, (int64_t)bytes);
  const dkv_work work = dkv_work_view(host, layout->rows, rows, keys);
  expect(*work.counter == 0, "counter", 0, 0);
  for (int32_t t = 0; t < work.tile_count; ++t) {
    const dkv_query_tile *tile = work.tiles + t;
    expect(tile->row % rows == 0 && !seen[tile->row / rows], "each query tile once", tile->row, t);
    seen[tile->row / rows] = true;
    if (t > 0) expect(tile[-1].masked + tile[-1].full >= tile->masked + tile->full, "costs fall", tile->row, t);
    check_tile(layout, &work, tile, rows, keys, visits);
  }
  for (int n = 0; n < 2000; ++n) {
    const int32_t i = (int32_t)draw((uint32_t)layout->rows), j = (int32_t)draw((uint32_t)layout->rows);
    const uint32_t *vector = work.vectors + (int64_t)(j / keys) * (DKV_WORK_HEAD + keys);
    const uint32_t reach = vector[DKV_WORK_HEAD + j % keys];
    expect(vector[0] == (uint32_t)(j / keys * keys), "a vector begins with its tile's first row", i, j);
    expect(((uint32_t)(i - j) < reach) == dkv_sees(i, j, layout->end[j]), "reach is the rule", i, j);
  }
  for (int64_t j = layout->rows; j < dkv_ceil_div(layout->rows, keys) * keys; ++j)
    expect(work.vectors[(j / keys) * (DKV_WORK_HEAD + keys) + DKV_WORK_HEAD + j % keys] == 0, "no reach past T", 0, j);
  free(host);
  free(visits);
  free(seen);
}

int main(void) {
  int layouts = 0;
  for (; layouts < 400; ++layouts) {
    dkv_layout layout = random_layout();
    check_layout(&layout, 128, 128);
    check_layout(&layout, 192, 128);
    check_layout(&layout, 16, 8);
    dkv_layout_free(&layout);
  }
  printf("work lists: %d layouts, %d failures\n", layouts, failures);
  return failures != 0;
}
