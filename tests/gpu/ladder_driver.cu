/**
 * @file ladder_driver.cu
 * @brief Times and cross-checks rungs of the ladder on inputs that the device makes itself, so that large shapes start
 * at once.
 *
 *     ladder_driver time FORWARD BACKWARD DTYPE P N R H HKV D REPEATS   packed and replicated, useful TFLOP/s
 *     ladder_driver far FORWARD BACKWARD [P N R H HKV D]     T H D > 2^31, or a shape of one's own: against the rungs
 *         "shared", all elements; BACKWARD "-": forward alone
 *     ladder_driver planted                  errors planted into 2^31 elements: would "far" see them?
 *     ladder_driver bits FORWARD BACKWARD D  20 runs: equal bits where kernels.def promises them, and within bounds
 *     ladder_driver once FORWARD BACKWARD DTYPE D      a launch of each on 600 ragged rows: for compute-sanitizer
 *
 * Exit code 1 when a check failed.  Read before: on_device.cuh.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "tests/gpu/on_device.cuh"
#include "tests/gpu/sampled_reference.cuh"

/** A problem whose inputs are random and whose outputs are NaN. */
struct setup {
  dkv_layout layout;
  dkv_attention a;
  size_t q_bytes, kv_bytes, lse_bytes;
};

static const void *random_tensor(size_t bytes, dkv_dtype dtype, uint32_t seed) {
  void *p = memory(bytes);
  if (dtype == DKV_F32) fill_normal<<<2048, 256>>>((float *)p, (int64_t)(bytes / 4), seed, 1);
  if (dtype == DKV_BF16) fill_normal<<<2048, 256>>>((__nv_bfloat16 *)p, (int64_t)(bytes / 2), seed, 1);
  if (dtype == DKV_F16) fill_normal<<<2048, 256>>>((__half *)p, (int64_t)(bytes / 2), seed, 1);
  MUST(gpu->synchronize());
  return p;
}

static void make(setup *s, int heads, int kv_heads, int dim, dkv_dtype dtype, bool backward = true) {
  size_t rows = (size_t)s->layout.rows, size = dkv_dtype_size(dtype);
  s->q_bytes = rows * heads * dim * size;
  s->kv_bytes = rows * kv_heads * dim * size;
  s->lse_bytes = rows * heads * 4;
  s->a = {};
  s->a.layout = &s->layout;
  s->a.heads = heads;
  s->a.kv_heads = kv_heads;
  s->a.head_dim = dim;
  s->a.scale = 1 / sqrt(dim);
  s->a.dtype = dtype;
  s->a.q = random_tensor(s->q_bytes, dtype, 1);
  s->a.k = random_tensor(s->kv_bytes, dtype, 2);
  s->a.v = random_tensor(s->kv_bytes, dtype, 3);
  s->a.o = memory(s->q_bytes);
  s->a.lse = memory(s->lse_bytes);
  if (!backward) return;
  s->a.dout = random_tensor(s->q_bytes, dtype, 4);
  s->a.dq = memory(s->q_bytes);
  s->a.dk = memory(s->kv_bytes);
  s->a.dv = memory(s->kv_bytes);
}

static void drop(setup *s) {
  const void *all[] = {s->a.q, s->a.k, s->a.v, s->a.dout, s->a.o, s->a.lse, s->a.dq, s->a.dk, s->a.dv};
  for (const void *p : all) gpu->release(const_cast<void *>(p));
  dkv_layout_free(&s->layout);
}

/** workspace, prepare, and run; `repeats` > 0 also times: returns the median. */
static double run(setup *s, const dkv_kernel *kernel, int repeats) {
  double times[64] = {0};
  MUST(dkv_kernel_check(kernel, &s->a));
  MUST(kernel->workspace(&s->a, &s->a.workspace_bytes));
  s->a.workspace = memory(s->a.workspace_bytes);
  MUST(kernel->prepare(&s->a));
  MUST(kernel->run(&s->a));
  MUST(gpu->synchronize());
  if (repeats > 0) {
    MUST(gpu->time(kernel, &s->a, repeats, times));
    qsort(times, (size_t)repeats, sizeof(double), [](const void *a, const void *b) {
      return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
    });
  }
  gpu->release(s->a.workspace);
  return times[repeats / 2];
}

static dkv_layout group(int prompt, int responses, int length) {
  int32_t *lengths = (int32_t *)malloc((size_t)responses * sizeof *lengths);
  for (int n = 0; n < responses; ++n) lengths[n] = length;
  dkv_layout layout;
  MUST(dkv_layout_group(&layout, prompt, responses, lengths));
  free(lengths);
  return layout;
}

static int time_rungs(char **arg) {
  const dkv_kernel *kernels[2] = {find(DKV_FORWARD, arg[0]), find(DKV_BACKWARD, arg[1])};
  dkv_dtype dtype;
  MUST(dkv_dtype_parse(&dtype, arg[2]));
  int prompt = atoi(arg[3]), responses = atoi(arg[4]), length = atoi(arg[5]), repeats = atoi(arg[9]);
  double flops[2] = {0}, packed[2] = {0}, ms = 0;
  for (int copies = 0; copies < 2; ++copies) {
    setup s;
    s.layout = group(prompt, responses, length);
    double share = 1.0;
    if (copies) {
      dkv_layout replicated;
      double once = (double)dkv_layout_pairs(&s.layout);
      MUST(dkv_layout_replicate(&replicated, nullptr, &s.layout));
      dkv_layout_free(&s.layout);
      s.layout = replicated;
      share = (double)dkv_layout_pairs(&s.layout) / once;
    }
    make(&s, atoi(arg[6]), atoi(arg[7]), atoi(arg[8]), dtype);
    for (int d = 0; d < 2; ++d) {
      ms = run(&s, kernels[d], repeats);
      if (!copies) {
        packed[d] = ms;
        flops[d] = dkv_attention_flops(&s.a, (dkv_direction)d);
        printf("time %s %-9s %s P %d N %d R %d H %s/%s D %s  %9.3f ms  %7.1f TFLOP/s\n", d ? "bwd" : "fwd",
               kernels[d]->name, arg[2], prompt, responses, length, arg[6], arg[7], arg[8], ms, flops[d] / ms * 1e-9);
      } else {
        printf("time %s %-9s replicated %9.3f ms  ratio %.3f of A %.3f: %.3f\n", d ? "bwd" : "fwd", kernels[d]->name,
               ms, ms / packed[d], share, ms / packed[d] / share);
      }
      fflush(stdout);
    }
    drop(&s);
  }
  return 0;
}

/** sum[0] += (a - b)^2, sum[1] += b^2, sum[2] counts what is not finite. */
template <class T> __global__ void difference(const T *a, const T *b, int64_t n, double *sum) {
  double d2 = 0, b2 = 0, bad = 0;
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
    float x = (float)a[i], y = (float)b[i];
    if (!isfinite(x) || !isfinite(y)) bad += 1;
    d2 += (double)(x - y) * (x - y);
    b2 += (double)y * y;
  }
  atomicAdd(sum, d2);
  atomicAdd(sum + 1, b2);
  atomicAdd(sum + 2, bad);
}

/**
 * Relative Frobenius difference of two tensors of type T, of the whole and of every piece of up to 2^20 elements: a
 * wrong tile must not drown in 2^31 right elements.  A piece's elements count as at least a tenth of the tensor's usual
 * size: gradients that cancel to nothing are no measure.  Nothing may be NaN.
 */
template <class T> static int judge(const char *name, const void *a, const void *b, size_t bytes, double bound) {
  const int64_t n = (int64_t)(bytes / sizeof(T)), piece = 1 << 20, pieces = (n + piece - 1) / piece;
  double *sums = (double *)memory((size_t)pieces * 24), total[3] = {};
  std::vector<double> host((size_t)pieces * 3);
  MUST(gpu->fill(sums, 0, (size_t)pieces * 24));
  for (int64_t i = 0; i < pieces; ++i) {
    int64_t from = i * piece, count = n - from < piece ? n - from : piece;
    difference<<<64, 256>>>((const T *)a + from, (const T *)b + from, count, sums + 3 * i);
  }
  MUST(gpu->download(host.data(), sums, (size_t)pieces * 24));
  gpu->release(sums);
  for (size_t i = 0; i < host.size(); ++i) total[i % 3] += host[i];
  double worst = 0, all = sqrt(total[0] / total[1]);
  int64_t where = 0;
  for (int64_t i = 0; i < pieces; ++i) {
    double count = (double)(i + 1 < pieces ? piece : n - i * piece), usual = total[1] / (double)n * count;
    double error = sqrt(host[3 * i] / fmax(host[3 * i + 1], 0.01 * usual));
    if (!(error <= worst)) worst = isnan(error) ? INFINITY : error, where = i;
  }
  bool good = all <= bound && worst <= bound && total[2] == 0;
  printf("%s far %s %lld elements: error %.2e, worst of %lld pieces %.2e from %lld on (bound %.1e), %.0f not finite\n",
         good ? "pass" : "FAIL", name, (long long)n, all, (long long)pieces, worst, (long long)(where * piece), bound,
         total[2]);
  return !good;
}

/** Would judge() see one wrong tile of 128 x 128 among 2^31 elements, or one NaN? @return whether it would not. */
static int planted(void) {
  const size_t bytes = (size_t)2 << 31, middle = bytes / 2 + 4096;
  const void *right = random_tensor(bytes, DKV_BF16, 1);
  char *wrong = (char *)memory(bytes);
  CUDA_MUST(cudaMemcpy(wrong, right, bytes, cudaMemcpyDeviceToDevice));
  bool good = !judge<__nv_bfloat16>("nothing planted", wrong, right, bytes, 7e-3);
  MUST(gpu->fill(wrong + middle, 0, 128 * 128 * 2));
  good &= judge<__nv_bfloat16>("planted tile", wrong, right, bytes, 7e-3) == 1;
  CUDA_MUST(cudaMemcpy(wrong, right, bytes, cudaMemcpyDeviceToDevice));
  MUST(gpu->fill(wrong + middle, 0xff, 2));
  good &= judge<__nv_bfloat16>("planted NaN", wrong, right, bytes, 7e-3) == 1;
  gpu->release(wrong);
  gpu->release(const_cast<void *>(right));
  printf("%s planted: a right tensor passes, a wrong tile and a NaN do not\n", good ? "pass" : "FAIL");
  return !good;
}

/** Both directions of a layout whose q has more than 2^31 elements, against the rungs "shared" (other index
 * arithmetic). */
static int far(int count, char **arg) {
  int size[6] = {17, 4112, 128, 32, 8, 128}; /* P N R H Hkv D */
  for (int n = 2; n < count; ++n) size[n - 2] = atoi(arg[n]);
  const bool backward = strcmp(arg[1], "-") != 0;
  using bf = __nv_bfloat16;
  setup s;
  s.layout = group(size[0], size[1], size[2]);
  make(&s, size[3], size[4], size[5], DKV_BF16, backward);
  printf("far: T = %d, H T = %lld, T H D = %lld\n", s.layout.rows, (long long)(s.lse_bytes / 4),
         (long long)(s.q_bytes / 2));
  run(&s, find(DKV_FORWARD, "shared"), 0);
  void *o = s.a.o, *o2 = memory(s.q_bytes), *lse = s.a.lse, *lse2 = memory(s.lse_bytes);
  s.a.o = o2;
  s.a.lse = lse2;
  run(&s, find(DKV_FORWARD, arg[0]), 0);
  int failures = judge<bf>("o", o2, o, s.q_bytes, 2 * 3e-3) + judge<float>("lse", lse2, lse, s.lse_bytes, 2 * 2e-6);
  s.a.o = o;
  s.a.lse = lse;
  gpu->release(o2);
  gpu->release(lse2);
  if (backward) {
    run(&s, find(DKV_BACKWARD, "shared"), 0);
    void *want[3] = {s.a.dq, s.a.dk, s.a.dv};
    s.a.dq = memory(s.q_bytes);
    s.a.dk = memory(s.kv_bytes);
    s.a.dv = memory(s.kv_bytes);
    run(&s, find(DKV_BACKWARD, arg[1]), 0);
    failures += judge<bf>("dq", s.a.dq, want[0], s.q_bytes, 2 * 3.5e-3);
    failures += judge<bf>("dk", s.a.dk, want[1], s.kv_bytes, 2 * 3.5e-3);
    failures += judge<bf>("dv", s.a.dv, want[2], s.kv_bytes, 2 * 3.5e-3);
    for (void *p : want) gpu->release(p);
  }
  drop(&s);
  return failures;
}

/** Relative Frobenius difference of two bf16 tensors; infinite where something is not finite. */
static double distance(const void *a, const void *b, size_t bytes, double *sum) {
  double host[3];
  MUST(gpu->fill(sum, 0, 24));
  difference<<<512, 256>>>((const __nv_bfloat16 *)a, (const __nv_bfloat16 *)b, (int64_t)(bytes / 2), sum);
  MUST(gpu->download(host, sum, 24));
  return host[2] == 0 ? sqrt(host[0] / host[1]) : INFINITY;
}

/** The results of one direction, and a second set of the same sizes. */
struct outputs {
  void **at[3]; /* where the problem points to each */
  size_t bytes[3];
  void *other[3]; /* of the rung "shared" */
  int count;
};

static outputs outputs_of(setup *s, int direction) {
  outputs out = {{&s->a.o, (void **)&s->a.lse, nullptr}, {s->q_bytes, s->lse_bytes, 0}, {}, 2};
  if (direction == DKV_BACKWARD) out = {{&s->a.dq, &s->a.dk, &s->a.dv}, {s->q_bytes, s->kv_bytes, s->kv_bytes}, {}, 3};
  return out;
}

/**
 * 20 runs with outputs poisoned in between.  How many differ in a bit from the first; and how far is each from the rung
 * "shared"?  Both runs may use up their bound (design.md: 3e-3 forward, 3.5e-3 gradients in bf16).
 */
static int repeat(setup *s, const dkv_kernel *kernel, outputs *out) {
  const double bound = kernel->direction == DKV_FORWARD ? 2 * 3e-3 : 2 * 3.5e-3;
  const int judged = kernel->direction == DKV_FORWARD ? 1 : 3; /* lse is no bf16 tensor: its bits are compared */
  double *sum = (double *)memory(24), worst = 0;
  char *once[3] = {}, *again = (char *)malloc(s->q_bytes);
  int different = 0;
  for (int r = 0; r < 20; ++r) {
    for (int t = 0; t < out->count; ++t) MUST(gpu->fill(*out->at[t], 0xff, out->bytes[t]));
    run(s, kernel, 0);
    bool same = true;
    for (int t = 0; t < out->count; ++t) {
      if (r == 0) once[t] = (char *)malloc(out->bytes[t]);
      MUST(gpu->download(r == 0 ? once[t] : again, *out->at[t], out->bytes[t]));
      same = same && (r == 0 || memcmp(once[t], again, out->bytes[t]) == 0);
      if (t < judged) worst = fmax(worst, distance(*out->at[t], out->other[t], out->bytes[t], sum));
    }
    different += !same;
  }
  bool promised = kernel->determinism == DKV_ALWAYS || (kernel->determinism == DKV_ON_REQUEST && s->a.deterministic);
  bool good = worst <= bound && (!promised || different == 0);
  printf("%s bits %s %s%s: %d of 20 runs differ%s; error at most %.2e (bound %.1e)\n", good ? "pass" : "FAIL",
         kernel->direction == DKV_FORWARD ? "fwd" : "bwd", kernel->name, s->a.deterministic ? ", deterministic" : "",
         different, promised ? "" : " (equal bits are not promised)", worst, bound);
  for (char *p : once) free(p);
  free(again);
  gpu->release(sum);
  return !good;
}

/** In bf16: equal bits where kernels.def promises them, and results within bounds in every run, in every mode of a
 * kernel. */
static int bits(char **arg) {
  int failures = 0;
  for (int d = 0; d < 2; ++d) {
    const dkv_kernel *kernel = find((dkv_direction)d, arg[d]);
    setup s;
    s.layout = group(700, 9, 333);
    make(&s, 8, 2, atoi(arg[2]), DKV_BF16);
    run(&s, find(DKV_FORWARD, "shared"), 0);
    if (d) run(&s, find(DKV_BACKWARD, "shared"), 0);
    outputs out = outputs_of(&s, d);
    for (int t = 0; t < out.count; ++t) {
      out.other[t] = *out.at[t];
      if (d || t < 1) *out.at[t] = memory(out.bytes[t]);
    }
    failures += repeat(&s, kernel, &out);
    s.a.deterministic = kernel->determinism == DKV_ON_REQUEST;
    if (s.a.deterministic) failures += repeat(&s, kernel, &out);
    for (int t = 0; t < out.count; ++t)
      if (out.other[t] != *out.at[t]) gpu->release(out.other[t]);
    drop(&s);
  }
  return failures;
}

/** A launch of each direction on rows that straddle every tile; in deterministic mode too where there is one. */
static int once(char **arg) {
  const int32_t parent[] = {-1, 0, 0, 0, -1, 4, 5}, length[] = {150, 70, 0, 133, 1, 129, 117};
  setup s;
  MUST(dkv_layout_forest(&s.layout, 7, parent, length));
  dkv_dtype dtype;
  MUST(dkv_dtype_parse(&dtype, arg[2]));
  make(&s, 2, 1, atoi(arg[3]), dtype);
  const dkv_kernel *backward = find(DKV_BACKWARD, arg[1]);
  run(&s, find(DKV_FORWARD, arg[0]), 0);
  run(&s, backward, 0);
  s.a.deterministic = backward->determinism == DKV_ON_REQUEST;
  if (s.a.deterministic) run(&s, backward, 0);
  printf("once %s %s %s D %s: ran%s\n", arg[0], arg[1], arg[2], arg[3], s.a.deterministic ? ", both modes" : "");
  drop(&s);
  return 0;
}

int main(int argc, char **argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  MUST(dkv_gpu_backend(&gpu));
  if (argc == 12 && !strcmp(argv[1], "time")) return time_rungs(argv + 2);
  if ((argc == 4 || argc == 10) && !strcmp(argv[1], "far")) return far(argc - 2, argv + 2) != 0;
  if (argc == 5 && !strcmp(argv[1], "bits")) return bits(argv + 2) != 0;
  if (argc == 6 && !strcmp(argv[1], "once")) return once(argv + 2);
  if (argc == 2 && !strcmp(argv[1], "planted")) return planted();
  printf(
      "usage: ladder_driver time FORWARD BACKWARD DTYPE P N R H HKV D REPEATS |\n"
      "  far FORWARD BACKWARD [P N R H HKV D] | planted | bits FORWARD BACKWARD D | once FORWARD BACKWARD DTYPE D\n");
  return 2;
}
