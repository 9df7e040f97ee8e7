/**
 * @file fwd_bwd_types.cu
 * @brief bf16 against f16 at the power limit: rung hopper and cuBLAS in turn, round by round, times and clocks.
 *
 * Both types run the same instructions (compare their SASS), so what differs is the clock that the power limit leaves.
 * Five things take turns in every round: the kernel in bf16, in f16, and in f16 on inputs that have only the 8
 * significant bits of bf16; an 8192^3 product of cuBLAS in bf16 and in f16.  A turn lasts a quarter of a second, of
 * which the first half lets the clock settle and does not count.  Each round has another order, so that nobody always
 * follows the same one.  All multiprocessors' cycle counters are read before and after what counts: their mean over the
 * wall time is the clock.
 *
 *     fwd_bwd_types [ROUNDS]    a line a direction, head size and thing: medians over the rounds
 *
 * Read before: on_device.cuh.  Read next: docs/worklog_backward.md.
 */
#include <algorithm>
#include <cublas_v2.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <vector>

#include "tests/gpu/on_device.cuh"
#include "tests/gpu/sampled_reference.cuh"

static void cublas_must(cublasStatus_t status, const char *what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  printf("FAIL %s: %s\n", what, cublasGetStatusString(status));
  exit(1);
}
#define CUBLAS(x) cublas_must(x, #x)

/* ---- the clock ---- */
enum { SPOTS = 1024, HALF_TURN_MS = 125 };
struct reading {
  long long cycles[SPOTS], nanoseconds[SPOTS]; /* by multiprocessor; 0: not seen */
};

/** Every multiprocessor's cycle counter and the card's time. Many small blocks, so that each gets one. */
__global__ void read_clocks(reading *out) {
  unsigned spot;
  long long now;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(spot));
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  if (threadIdx.x != 0 || spot >= SPOTS) return;
  out->cycles[spot] = clock64();
  out->nanoseconds[spot] = now;
}

/** Mean cycles a nanosecond between two readings. */
static double clock_between(const reading &a, const reading &b) {
  double sum = 0;
  int seen = 0;
  for (int i = 0; i < SPOTS; ++i)
    if (a.nanoseconds[i] && b.nanoseconds[i])
      sum += (double)(b.cycles[i] - a.cycles[i]) / (double)(b.nanoseconds[i] - a.nanoseconds[i]), ++seen;
  return seen ? sum / seen : 0;
}

/* ---- the things that take turns ---- */
struct thing {
  const char *name;
  double flops; /* useful work of a call */
  dkv_attention a;
  const dkv_kernel *kernel;          /* NULL: a cuBLAS product */
  cudaDataType_t type;               /* its type */
  std::vector<double> ms, clock_ghz; /* a value a round */
};

/** The low 3 bits of every f16 significand become 0, rounded: what is left fits into bf16's 8 bits. */
__global__ void keep_8_bits(__half *x, int64_t n) {
  for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll)
    x[i] = __float2half((float)__float2bfloat16(__half2float(x[i])));
}

static void *tensor(int64_t n, dkv_dtype type, uint32_t seed, bool narrow) {
  void *p = memory((size_t)n * 2);
  if (type == DKV_BF16) fill_normal<<<2048, 256>>>((__nv_bfloat16 *)p, n, seed, 1);
  else fill_normal<<<2048, 256>>>((__half *)p, n, seed, 1);
  if (narrow) keep_8_bits<<<2048, 256>>>((__half *)p, n);
  CUDA_MUST(cudaDeviceSynchronize());
  return p;
}

/** A problem ready for `direction`; for the backward a forward run gives o and lse. */
static thing attention(const char *name, const dkv_layout *layout, dkv_direction direction, int dim, dkv_dtype type,
                       bool narrow) {
  thing t = {name, 0, {}, nullptr, CUDA_R_16BF, {}, {}};
  const int64_t q = (int64_t)layout->rows * 32 * dim, k = q / 4;
  dkv_attention &a = t.a;
  a.layout = layout, a.heads = 32, a.kv_heads = 8, a.head_dim = dim, a.scale = 1 / sqrt(dim), a.dtype = type;
  a.q = tensor(q, type, 1, narrow), a.k = tensor(k, type, 2, narrow), a.v = tensor(k, type, 3, narrow);
  a.dout = tensor(q, type, 4, narrow);
  a.o = memory((size_t)q * 2), a.dq = memory((size_t)q * 2), a.dk = memory((size_t)k * 2), a.dv = memory((size_t)k * 2);
  a.lse = memory((size_t)layout->rows * 32 * 4);
  for (int d = 0; d <= direction; ++d) {
    MUST(dkv_kernel_find(&t.kernel, gpu, (dkv_direction)d, "hopper", nullptr));
    if (a.workspace) gpu->release(a.workspace);
    MUST(t.kernel->workspace(&a, &a.workspace_bytes));
    a.workspace = memory(a.workspace_bytes);
    MUST(t.kernel->prepare(&a));
    MUST(t.kernel->run(&a));
    CUDA_MUST(cudaDeviceSynchronize());
  }
  t.flops = dkv_attention_flops(&a, direction);
  return t;
}

static void drop(const dkv_attention &a) {
  const void *all[] = {a.q, a.k, a.v, a.dout, a.o, a.dq, a.dk, a.dv, a.lse, a.workspace};
  for (const void *p : all) gpu->release(const_cast<void *>(p));
}

static thing product(const char *name, dkv_dtype type) {
  thing t = {name, 2.0 * 8192 * 8192 * 8192, {}, nullptr, type == DKV_BF16 ? CUDA_R_16BF : CUDA_R_16F, {}, {}};
  t.a.q = tensor(8192 * 8192, type, 5, false), t.a.k = tensor(8192 * 8192, type, 6, false);
  t.a.o = memory(8192 * 8192 * 2);
  return t;
}

static void call(const thing &t, cublasHandle_t blas) {
  const float one = 1, zero = 0;
  const int n = 8192;
  if (t.kernel) MUST(t.kernel->run(&t.a));
  else
    CUBLAS(cublasGemmEx(blas, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, t.a.q, t.type, n, t.a.k, t.type, n, &zero, t.a.o,
                        t.type, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

/** One turn: calls for HALF_TURN_MS, then as many that count; keeps their ms a call and the clock. */
static void turn(thing *t, cublasHandle_t blas, reading *device, cudaEvent_t begin, cudaEvent_t end) {
  static reading before, after;
  const int calls = std::max(1, (int)(HALF_TURN_MS * 1e-3 * 6e14 / t->flops));
  float ms = 0;
  CUDA_MUST(cudaMemset(device, 0, 2 * sizeof *device));
  for (int i = 0; i < calls; ++i) call(*t, blas);
  read_clocks<<<4096, 32>>>(device);
  CUDA_MUST(cudaEventRecord(begin));
  for (int i = 0; i < calls; ++i) call(*t, blas);
  CUDA_MUST(cudaEventRecord(end));
  read_clocks<<<4096, 32>>>(device + 1);
  CUDA_MUST(cudaMemcpy(&before, device, sizeof before, cudaMemcpyDeviceToHost));
  CUDA_MUST(cudaMemcpy(&after, device + 1, sizeof after, cudaMemcpyDeviceToHost));
  CUDA_MUST(cudaEventElapsedTime(&ms, begin, end));
  t->ms.push_back(ms / calls);
  t->clock_ghz.push_back(clock_between(before, after));
}

static double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

static void compare(dkv_direction direction, int dim, int rounds, cublasHandle_t blas) {
  const std::vector<int32_t> lengths(28, 2048);
  dkv_layout layout;
  MUST(dkv_layout_group(&layout, 16384, 28, lengths.data()));
  thing things[] = {product("cublas bf16", DKV_BF16), attention("bf16", &layout, direction, dim, DKV_BF16, false),
                    product("cublas f16", DKV_F16), attention("f16", &layout, direction, dim, DKV_F16, false),
                    attention("f16, 8-bit data", &layout, direction, dim, DKV_F16, true)};
  reading *device = (reading *)memory(2 * sizeof(reading));
  cudaEvent_t begin, end;
  CUDA_MUST(cudaEventCreate(&begin));
  CUDA_MUST(cudaEventCreate(&end));
  for (int r = 0; r < rounds; ++r)
    for (int i = 0; i < 5; ++i) turn(&things[(i * (r % 4 + 1) + r) % 5], blas, device, begin, end);
  for (const thing &t : things) {
    std::vector<double> share; /* of the bf16 rate of the same kind, round by round */
    const thing &like = t.kernel ? things[1] : things[0];
    for (int r = 0; r < rounds; ++r) share.push_back(like.ms[r] / t.ms[r]);
    printf("{\"direction\": \"%s\", \"D\": %d, \"what\": \"%s\", \"ms\": %.4f, \"tflops\": %.1f, \"clock_ghz\": %.3f, "
           "\"million_cycles\": %.4f, \"share_of_bf16\": %.4f}\n",
           direction == DKV_FORWARD ? "fwd" : "bwd", dim, t.name, median(t.ms), t.flops / median(t.ms) * 1e-9,
           median(t.clock_ghz), median(t.ms) * median(t.clock_ghz), median(share));
    if (t.kernel) drop(t.a);
    else gpu->release(const_cast<void *>(t.a.q)), gpu->release(const_cast<void *>(t.a.k)), gpu->release(t.a.o);
  }
  fflush(stdout);
  gpu->release(device);
  CUDA_MUST(cudaEventDestroy(begin));
  CUDA_MUST(cudaEventDestroy(end));
  dkv_layout_free(&layout);
}

int main(int argc, char **argv) {
  const int rounds = argc > 1 ? std::max(1, atoi(argv[1])) : 5;
  cublasHandle_t blas;
  MUST(dkv_gpu_backend(&gpu));
  CUBLAS(cublasCreate(&blas));
  for (int direction = 0; direction < 2; ++direction)
    for (int dim = 128; dim >= 64; dim -= 64) compare((dkv_direction)direction, dim, rounds, blas);
  CUBLAS(cublasDestroy(blas));
  return 0;
}
