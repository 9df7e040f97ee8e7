/**
 * @file fuzz_case.cuh
 * @brief One random problem for the GPU: drawn from a seed, its tensors on the device, and the answer in f32.
 *
 * What is drawn is what kernels trip over: segments of no rows, lengths around every tile size, one row, no row, deep
 * chains, thousands of tiny segments, head ratios that are no power of two, scales of 0 and below, tensors that start
 * nowhere but on the grid that they must (buffers.h).
 *
 * The answer is computed in f32 by another rung (which the laws hold to the definition in double) from the same rounded
 * inputs; the backward's from the same stored o and lse.  So a kernel is judged by the bounds of its own type.
 *
 * Read before: on_device.cuh.  Read next: fuzz_driver.cu.
 */
#ifndef DKV_TESTS_FUZZ_CASE_CUH
#define DKV_TESTS_FUZZ_CASE_CUH

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "common/compare.h"
#include "tests/gpu/on_device.cuh"
#include "tests/gpu/sampled_reference.cuh"

/** Random numbers of one case. */
struct dice {
  uint64_t state;
  explicit dice(uint64_t seed) : state(seed * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u) {}
  uint32_t draw(uint32_t below) {
    state += 0x9e3779b97f4a7c15u;
    uint64_t x = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((x ^ (x >> 31)) >> 16) % below;
  }
  template <class T, size_t N> T pick(const T (&from)[N]) { return from[draw((uint32_t)N)]; }
};

/** A forest as a caller of dkv_layout_forest has it. */
struct forest {
  std::vector<int32_t> parent, length;
  int32_t kind;
};

/** A length: often one beside a tile's edge. */
static int32_t draw_length(dice &d, int32_t longest) {
  static const int32_t edges[] = {0,  0,  1,  2,  7,   8,   15,  16,  31,  33,  63, 64,
                                  65, 79, 80, 81, 127, 128, 129, 191, 192, 193, 257};
  int32_t n = d.draw(2) ? d.pick(edges) : (int32_t)d.draw((uint32_t)longest + 1);
  return n < longest ? n : longest;
}

/** A forest of at most `most` rows. */
static forest draw_forest(dice &d, int32_t most) {
  forest f;
  f.kind = (int32_t)d.draw(8);
  int32_t segments = 1 + (int32_t)d.draw(14), longest = 1 + (int32_t)d.draw(400), left = most;
  if (f.kind == 4) segments = 100 + (int32_t)d.draw(3000), longest = 2;                  /* very many, very short */
  if (f.kind == 5) segments = 20 + (int32_t)d.draw(d.draw(4) ? 200 : 3000), longest = 9; /* a chain, deep */
  if (f.kind == 6) longest = 1 + (int32_t)d.draw(2);                                     /* hardly any rows */
  for (int32_t s = 0; s < segments; ++s) {
    int32_t parent = s - 1;
    if (f.kind <= 1 || f.kind == 4 || f.kind == 6)
      for (int32_t up = (int32_t)d.draw(4); up > 0 && parent >= 0; --up) parent = f.parent[(size_t)parent];
    if (f.kind == 2 || f.kind == 7) parent = s == 0 ? -1 : 0; /* a group; 7: whose responses are empty */
    if (f.kind == 3)
      parent = d.draw(4) == 0 || s == 0 ? -1 : f.parent[(size_t)s - 1] < 0 ? s - 1 : f.parent[(size_t)s - 1];
    int32_t length = f.kind == 7 && s > 0 ? 0 : draw_length(d, longest);
    if (s == 0 && d.draw(3) == 0) length = (int32_t)d.draw((uint32_t)most / 2 + 1);
    if (length > left) length = left;
    left -= length;
    f.parent.push_back(parent);
    f.length.push_back(length);
  }
  return f;
}

static volatile uint64_t last_seed; /* of any thread: for a kernel that never ends */

static void told_to_end(int) {
  char text[64];
  int n = snprintf(text, sizeof text, "FAIL still at seed %llu\n", (unsigned long long)last_seed);
  if (write(1, text, (size_t)n) == n) _exit(1);
  _exit(2);
}

/** Device memory full of NaN, released with its owner. */
struct buffer {
  char *at = nullptr; /**< `offset` bytes into the allocation, which ends where the buffer ends */
  size_t bytes = 0, offset = 0;
  buffer() = default;
  buffer(const buffer &) = delete;
  buffer &operator=(const buffer &) = delete;
  ~buffer() { drop(); }
  void drop() {
    gpu->release(at ? at - offset : nullptr);
    at = nullptr;
  }
  void make(size_t size, size_t start = 0) {
    void *base = nullptr;
    drop();
    bytes = size;
    offset = size ? start : 0;
    must(gpu->allocate(&base, offset + size), "allocate");
    if (base) at = (char *)base + offset;
    spoil();
  }
  void spoil() { must(gpu->fill(at, 0xff, bytes), "fill"); }
};

enum { Q, K, V, DOUT, O, LSE, DQ, DK, DV, TENSORS };
static const char *const tensor_names[] = {"q", "k", "v", "dout", "o", "lse", "dq", "dk", "dv"};

/** A problem and its buffers. */
struct problem {
  dkv_layout layout = {};
  dkv_attention a = {};
  buffer tensor[TENSORS], space;
  problem() = default;
  problem(const problem &) = delete;
  problem &operator=(const problem &) = delete;
  ~problem() { dkv_layout_free(&layout); }

  int64_t width(int t) const { return t == LSE ? 1 : a.head_dim; }
  int64_t rows(int t) const {
    bool key = t == K || t == V || t == DK || t == DV;
    return (int64_t)layout.rows * (key ? a.kv_heads : a.heads);
  }
  dkv_dtype dtype(int t) const { return t == LSE ? DKV_F32 : a.dtype; }

  /**
   * @param[in] d    every second tensor lies off its allocation's start; before the others is a guard zone
   * @param[in] grid those start at a multiple of these bytes, lse at one of 4
   */
  void make(dkv_dtype type, dice &d, size_t grid) {
    a.layout = &layout;
    a.dtype = type;
    for (int t = 0; t < TENSORS; ++t)
      tensor[t].make((size_t)(rows(t) * width(t)) * dkv_dtype_size(dtype(t)),
                     (t == LSE ? 4 : grid) * d.draw(2) * d.draw(32));
    a.q = tensor[Q].at, a.k = tensor[K].at, a.v = tensor[V].at, a.dout = tensor[DOUT].at;
    a.o = tensor[O].at, a.lse = tensor[LSE].at, a.dq = tensor[DQ].at, a.dk = tensor[DK].at, a.dv = tensor[DV].at;
  }
};

/** to = from, element by element. */
template <class To, class From> __global__ void convert(To *to, const From *from, int64_t n) {
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x)
    to[i] = (To)(float)from[i];
}

/** Copies a tensor between problems that differ in type; one of them is f32. */
static void copy_tensor(problem &to, const problem &from, int t) {
  int64_t n = to.rows(t) * to.width(t);
  dkv_dtype types[2] = {to.dtype(t), from.dtype(t)};
  void *out = to.tensor[t].at;
  const void *in = from.tensor[t].at;
  if (types[0] == types[1]) cuda_must(cudaMemcpy(out, in, to.tensor[t].bytes, cudaMemcpyDeviceToDevice), "copy");
  else if (types[0] == DKV_BF16) convert<<<256, 256>>>((__nv_bfloat16 *)out, (const float *)in, n);
  else if (types[0] == DKV_F16) convert<<<256, 256>>>((__half *)out, (const float *)in, n);
  else if (types[1] == DKV_BF16) convert<<<256, 256>>>((float *)out, (const __nv_bfloat16 *)in, n);
  else convert<<<256, 256>>>((float *)out, (const __half *)in, n);
  cuda_must(cudaGetLastError(), "convert");
}

/** Normal numbers in q, k, v, dout of an f32 problem. */
static void fill_inputs(problem &p, uint32_t seed) {
  for (int t = Q; t <= DOUT; ++t) {
    fill_normal<<<256, 256>>>((float *)p.tensor[t].at, p.rows(t) * p.width(t), seed * 4 + (uint32_t)t, 1.0f);
    cuda_must(cudaGetLastError(), "fill_normal");
  }
}

/** Workspace (spoilt first), prepare, `runs` times run in the same workspace, and wait. */
static void launch(problem &p, const dkv_kernel *kernel, int runs) {
  must(dkv_kernel_check(kernel, &p.a), "kernel_check");
  must(kernel->workspace(&p.a, &p.a.workspace_bytes), "workspace");
  p.space.make(p.a.workspace_bytes);
  p.a.workspace = p.space.at;
  cuda_must(cudaStreamSynchronize(nullptr), "fills"); /* the kernel's stream does not wait for the default one */
  must(kernel->prepare(&p.a), "prepare");
  for (int r = 0; r < runs; ++r) must(kernel->run(&p.a), "run");
  cuda_must(cudaStreamSynchronize((cudaStream_t)p.a.stream), "the kernel");
}

/** The rung that answers: "shared", and for itself "naive". */
static const dkv_kernel *judge_of(const dkv_kernel *kernel) {
  return find(kernel->direction, strcmp(kernel->name, "shared") == 0 ? "naive" : "shared");
}

/** A tensor in host memory. */
static std::vector<char> fetch(const problem &p, int t) {
  std::vector<char> host(p.tensor[t].bytes);
  if (!host.empty()) must(gpu->download(host.data(), p.tensor[t].at, host.size()), "download");
  return host;
}

#endif
