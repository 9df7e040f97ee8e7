/**
 * @file fuzz_driver.cu
 * @brief Random problems (fuzz_case.cuh) for rungs of the GPU backend, for as many seconds as one likes.
 *
 *     fuzz_driver rungs FORWARD BACKWARD SECONDS SEED [ROWS]   problem after problem; 0 seconds: that seed alone;
 *                                                              "all all": each problem draws its own pair of rungs
 *     fuzz_driver streams SECONDS SEED                         the same from two host threads, each with its own stream
 *     fuzz_driver planted                                      errors planted into either direction: each must be found
 *
 * Outputs and workspace start as NaN.  Every result is compared with the answer; a second run in the same, uncleared
 * workspace must give equal bits where kernels.def promises them, and else a right answer too; inputs must stay as they
 * were; and with DKV_GPU_GUARD=1 so must the memory around every tensor.  The first failure ends the driver with its
 * seed and shape.
 *
 * Exit code 1 when something failed.  Read before: fuzz_case.cuh.
 */
#include "tests/gpu/fuzz_case.cuh"

#include <atomic>
#include <chrono>
#include <thread>

/** What is planted into a run, to see that it is found. */
enum plant { NOTHING, MASK, UNWRITTEN, PAST_THE_END, INPUT, BITS, PLANTS };
static const char *const plant_names[] = {"nothing",
                                          "a row in the wrong segment",
                                          "a row not written",
                                          "a byte past the end",
                                          "an input overwritten",
                                          "bits of a second run"};

/** Kernels, limits and what is planted. */
struct manner {
  const dkv_kernel *kernel[2];
  int32_t rows;
  void *stream;
  plant planted;
  int direction = DKV_FORWARD; /**< in which it is planted */
};

/** The first thing that was wrong; empty when nothing was. */
typedef std::string finding;

/** Values as doubles. */
static std::vector<double> values(const problem &p, int t) {
  std::vector<char> host = fetch(p, t);
  std::vector<double> out((size_t)(p.rows(t) * p.width(t)));
  if (!out.empty()) must(dkv_convert(out.data(), DKV_F64, host.data(), p.dtype(t), (int64_t)out.size()), "convert");
  return out;
}

/**
 * Ordinary size of an element, under which a tensor's own size does not count.  Rows that see one key have dq = 0, and
 * their share of dk is 0: there ds is the difference of two equal sums of D products, each rounded in another order, in
 * two rungs.  That leaves about 2^-21 sqrt(D), times scale and a key (dq), or a query for each head of the group (dk):
 * which is f32's doubled bound of 0.05 sqrt(D) times the same.
 */
static double floor_of(const problem &p, int t) {
  if (t == LSE) return 1;
  double heads = t == DK ? sqrt((double)p.a.heads / (double)p.a.kv_heads) : 1;
  return t == DQ || t == DK ? 0.05 * fabs(p.a.scale) * sqrt(p.a.head_dim) * heads + 1e-30 : 0.01;
}

/** Is a result within the suite's bounds of the answer (twice those in f32, where the answer has an error of its own,
 * and where so few elements are judged that their errors do not average out)? */
static finding near(const problem &p, const problem &answer, int t) {
  std::vector<double> x = values(p, t), y = values(answer, t);
  int64_t width = p.width(t), rows = p.rows(t);
  double bound = dkv_error_bound(t == LSE ? DKV_F32 : p.a.dtype, t >= DQ), floor = floor_of(p, t), all = 0, size = 0;
  if (t == LSE || p.a.dtype == DKV_F32 || x.size() < 65536) bound *= 2;
  std::vector<double> error((size_t)rows), own((size_t)rows);
  char text[200];
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t d = 0; d < width; ++d) {
      double got = x[(size_t)(r * width + d)], want = y[(size_t)(r * width + d)];
      if (!isfinite(got) || !isfinite(want)) {
        snprintf(text, sizeof text, "%s row %lld, index %lld is %g, not %g", tensor_names[t], (long long)r,
                 (long long)d, got, want);
        return text;
      }
      error[(size_t)r] += (got - want) * (got - want);
      own[(size_t)r] += want * want;
    }
    all += error[(size_t)r];
    size += own[(size_t)r];
  }
  double ordinary = fmax(sqrt(size / (double)rows), floor * sqrt((double)width));
  double whole = sqrt(all / (double)rows) / ordinary;
  snprintf(text, sizeof text, "%s is off by %.2e (bound %.1e)", tensor_names[t], whole, bound);
  if (!(whole <= bound)) return text;
  for (int64_t r = 0; r < rows; ++r) {
    double off = sqrt(error[(size_t)r]) / fmax(sqrt(own[(size_t)r]), ordinary);
    snprintf(text, sizeof text, "%s row %lld is off by %.2e (bound %.1e)", tensor_names[t], (long long)r, off,
             10 * bound);
    if (!(off <= 10 * bound)) return text;
  }
  return "";
}

/** The layout with one row moved from a segment to its next; rows and depth stay. False when no segment has a row. */
static bool move_a_row(dkv_layout *out, const dkv_layout *from) {
  std::vector<int32_t> parent(from->parent, from->parent + from->segments), length;
  for (int32_t s = 0; s < from->segments; ++s) length.push_back(dkv_layout_length(from, s));
  for (int32_t s = 0; s + 1 < from->segments; ++s) {
    if (length[(size_t)s] < 2 || length[(size_t)s + 1] < 1 || parent[(size_t)s + 1] == s) continue;
    --length[(size_t)s];
    ++length[(size_t)s + 1];
    return dkv_layout_forest(out, from->segments, parent.data(), length.data()) == DKV_OK;
  }
  return false;
}

/**
 * Runs one direction of `p` twice and judges everything but the second run's nearness.
 * @param[in] answer what a first run must be near to when the second may have other bits; NULL: not judged
 */
static finding conduct(problem &p, const problem *answer, const manner &m, int direction) {
  const int first = direction == DKV_FORWARD ? O : DQ, last = direction == DKV_FORWARD ? LSE : DV;
  const dkv_kernel *kernel = m.kernel[direction];
  const bool promised =
      kernel->determinism == DKV_ALWAYS || (kernel->determinism == DKV_ON_REQUEST && p.a.deterministic);
  const plant planted = direction == m.direction ? m.planted : NOTHING;
  finding wrong_at_first;
  std::vector<char> before[TENSORS], once[TENSORS];
  for (int t = 0; t < first; ++t) before[t] = fetch(p, t);
  for (int t = first; t <= last; ++t) p.tensor[t].spoil();
  dkv_layout wrong = {};
  if (planted == MASK && move_a_row(&wrong, &p.layout)) p.a.layout = &wrong;
  launch(p, kernel, m.stream ? 4 : 1);
  for (int t = first; t <= last; ++t) once[t] = fetch(p, t);
  for (int t = first; t <= last && answer && !promised && wrong_at_first.empty(); ++t)
    wrong_at_first = near(p, *answer, t);
  for (int t = first; t <= last; ++t) p.tensor[t].spoil();
  cuda_must(cudaStreamSynchronize(nullptr), "fills");
  must(kernel->run(&p.a), "a second run");
  cuda_must(cudaStreamSynchronize((cudaStream_t)p.a.stream), "the second run");
  p.a.layout = &p.layout;
  dkv_layout_free(&wrong);
  if (!wrong_at_first.empty()) return "first run: " + wrong_at_first;
  size_t row = (size_t)p.width(first) * dkv_dtype_size(p.dtype(first)), bytes = p.tensor[first].bytes;
  if (planted == UNWRITTEN && bytes) must(gpu->fill((char *)p.tensor[first].at + bytes - row, 0xff, row), "plant");
  if (planted == PAST_THE_END && bytes) must(gpu->fill((char *)p.tensor[first].at + bytes, 0, 1), "plant");
  if (planted == INPUT && bytes) must(gpu->fill(p.tensor[K].at, 0, 2), "plant");
  for (int t = first; t <= last && promised && planted != UNWRITTEN; ++t) {
    if (planted == BITS && !once[t].empty()) once[t][once[t].size() / 2] ^= 1;
    if (fetch(p, t) != once[t]) return std::string(tensor_names[t]) + " has other bits in a second run";
  }
  for (int t = 0; t < first; ++t)
    if (fetch(p, t) != before[t]) return std::string("input ") + tensor_names[t] + " was overwritten";
  return gpu->synchronize() == DKV_OK ? "" : dkv_last_error();
}

/** Shape of a problem from its dice: types and head sizes that both kernels take. */
static void draw_shape(problem &p, dice &d, const manner &m, dkv_dtype *type) {
  static const int32_t heads[][2] = {{1, 1}, {2, 1}, {4, 2}, {6, 2},  {7, 1},   {3, 3},   {5, 5},  {12, 4}, {9, 3},
                                     {8, 8}, {8, 1}, {4, 4}, {64, 8}, {64, 64}, {128, 1}, {30, 6}, {4, 1},  {8, 2}};
  static const dkv_dtype types[] = {DKV_BF16, DKV_F16, DKV_F32};
  static const double scales[] = {1, 1, 1, 1, -1, 0.5, 2, 0};
  uint32_t dims = m.kernel[0]->head_dims & m.kernel[1]->head_dims;
  do *type = d.pick(types);
  while (!(m.kernel[0]->dtypes & m.kernel[1]->dtypes & DKV_BIT(*type)));
  do p.a.head_dim = 8 * (1 + (int32_t)d.draw(32));
  while (!(dims & DKV_HEAD_DIM(p.a.head_dim)));
  uint32_t ratio = d.draw(sizeof heads / sizeof heads[0]);
  p.a.heads = heads[ratio][0];
  p.a.kv_heads = heads[ratio][1];
  p.a.scale = d.pick(scales) / sqrt(p.a.head_dim);
  p.a.deterministic = m.kernel[1]->determinism == DKV_ON_REQUEST && d.draw(2);
  p.a.stream = m.stream;
}

static std::string name_shape(const problem &p, const manner &m, uint64_t seed, const forest &f) {
  char text[300];
  snprintf(text, sizeof text,
           "seed %llu, %s/%s %s%s, T=%d S=%d depth=%d H=%d Hkv=%d D=%d scale=%g, forest %d:", (unsigned long long)seed,
           m.kernel[0]->name, m.kernel[1]->name, dkv_dtype_name(p.a.dtype), p.a.deterministic ? " deterministic" : "",
           p.layout.rows, p.layout.segments, p.layout.depth, p.a.heads, p.a.kv_heads, p.a.head_dim, p.a.scale, f.kind);
  std::string out = text;
  for (size_t s = 0; s < f.parent.size() && s < 24; ++s)
    out += " " + std::to_string(f.parent[s]) + ":" + std::to_string(f.length[s]);
  return out;
}

/** NaN in a few places of an input: results are then anybody's, but a run must end, and repeat its bits. */
static void poison(problem &p, int t, dice &d) {
  size_t bytes = p.tensor[t].bytes, at = bytes ? d.draw((uint32_t)bytes) / 16 * 16 : 0;
  if (bytes) must(gpu->fill((char *)p.tensor[t].at + at, 0xff, 16), "poison");
}

/** One problem, both directions. @return "" or what was wrong, with the shape. */
static finding one(uint64_t seed, const manner &m) {
  last_seed = seed;
  snprintf(whereabouts, sizeof whereabouts, ", seed %llu", (unsigned long long)seed);
  dice d(seed);
  problem p, answer;
  dkv_dtype type;
  draw_shape(p, d, m, &type);
  int32_t most = (int32_t)dkv_min(m.rows, 3000000 / (p.a.heads * p.a.head_dim));
  forest f = draw_forest(d, most);
  must(dkv_layout_forest(&p.layout, (int32_t)f.parent.size(), f.parent.data(), f.length.data()), "layout");
  must(dkv_layout_copy(&answer.layout, &p.layout), "layout copy");
  answer.a = p.a;
  answer.a.deterministic = false;
  dice places(~seed); /* not of `d`: a seed's problem is the same wherever its tensors lie */
  p.make(type, places, 16);
  answer.make(DKV_F32, places, 256);
  fill_inputs(answer, (uint32_t)seed);
  for (int t = Q; t <= DOUT; ++t) copy_tensor(p, answer, t), copy_tensor(answer, p, t);
  bool poisoned = d.draw(16) == 0;
  for (int t = Q; t <= DOUT && poisoned; ++t) poison(p, t, d), copy_tensor(answer, p, t);
  const bool judged = p.layout.rows > 0 && !poisoned;
  finding wrong;
  for (int direction = 0; direction < 2 && wrong.empty(); ++direction) {
    launch(answer, judge_of(m.kernel[direction]), 1);
    wrong = conduct(p, judged ? &answer : nullptr, m, direction);
    const int first = direction == DKV_FORWARD ? O : DQ, last = direction == DKV_FORWARD ? LSE : DV;
    for (int t = first; t <= last && wrong.empty() && judged; ++t) wrong = near(p, answer, t);
    for (int t = O; t <= LSE && direction == DKV_FORWARD; ++t) copy_tensor(p, answer, t), copy_tensor(answer, p, t);
    if (!wrong.empty()) wrong = (direction ? "backward: " : "forward: ") + wrong + "; " + name_shape(p, m, seed, f);
  }
  return wrong;
}

static double now(void) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/** The kernel of a direction that a seed draws. */
static const dkv_kernel *any_kernel(dkv_direction direction, uint64_t seed) {
  std::vector<const dkv_kernel *> some;
  for (int32_t n = 0; n < gpu->kernel_count; ++n)
    if (gpu->kernels[n].direction == direction && gpu->kernels[n].available() == DKV_OK)
      some.push_back(&gpu->kernels[n]);
  dice d(seed + (direction == DKV_FORWARD ? 0 : 1u << 30));
  return some[d.draw((uint32_t)some.size())];
}

/**
 * Problems with seeds seed, seed + 1, ... until the time is over or one fails.
 * @param[in] m kernels NULL: each problem draws them
 * @return failures
 */
static int run_for(double seconds, uint64_t seed, const manner &m, const char *name) {
  double end = now() + seconds;
  long problems = 0;
  do {
    manner now_with = m;
    for (int direction = 0; direction < 2; ++direction)
      if (!m.kernel[direction]) now_with.kernel[direction] = any_kernel((dkv_direction)direction, seed);
    finding wrong = one(seed++, now_with);
    ++problems;
    if (wrong.empty()) continue;
    printf("FAIL %s, problem %ld: %s\n", name, problems, wrong.c_str());
    return 1;
  } while (now() < end);
  printf("pass %s: %ld problems\n", name, problems);
  return 0;
}

/** Two host threads, each with its own stream, buffers and sequence of those rungs that this device has. */
static int streams(double seconds, uint64_t seed) {
  static const char *const rungs[][2] = {
      {"hopper", "hopper"}, {"pipeline", "mma"}, {"wgmma", "wgmma"}, {"warp", "shared"}};
  std::atomic<int> failures(0);
  std::thread threads[2];
  for (int t = 0; t < 2; ++t)
    threads[t] = std::thread([&, t] {
      cudaStream_t stream;
      cuda_must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
      for (int n = 0; n < 8 && failures == 0; ++n) {
        const char *const *pair = rungs[(n + t * (n / 4)) % 4];
        if (find(DKV_FORWARD, pair[0])->available() != DKV_OK) continue;
        manner m = {{find(DKV_FORWARD, pair[0]), find(DKV_BACKWARD, pair[1])}, 1500, stream, NOTHING};
        std::string name = "thread " + std::to_string(t) + " " + pair[0] + "/" + pair[1];
        failures += run_for(seconds / 8, seed + (uint64_t)(1000000 * t + 10000 * n), m, name.c_str());
      }
      cuda_must(cudaStreamDestroy(stream), "stream");
    });
  for (std::thread &thread : threads) thread.join();
  return failures;
}

/** Each kind of error, in each direction, must be found there by a few problems. @return kinds that were not. */
static int planted(void) {
  int failures = 0;
  setenv("DKV_GPU_GUARD", "1", 1);
  for (int n = 0; n < 2 * (PLANTS - MASK); ++n) {
    const int kind = MASK + n / 2, direction = n % 2;
    const char *const where = direction ? "backward" : "forward";
    manner m = {{find(DKV_FORWARD, "shared"), find(DKV_BACKWARD, "shared")}, 500, nullptr, (plant)kind, direction};
    finding found;
    uint64_t seed = 1;
    for (; seed < 40 && found.empty(); ++seed) found = one(seed, m);
    const bool good = found.rfind(where, 0) == 0; /* a finding begins with its direction */
    failures += !good;
    (void)gpu->synchronize(); /* tells of what was planted past the end once more */
    printf("%s %s, planted %s: %s\n", good ? "pass" : "FAIL", where, plant_names[kind],
           found.empty() ? "not found" : found.substr(0, 90).c_str());
  }
  return failures;
}

int main(int argc, char **argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  signal(SIGTERM, told_to_end);
  must(dkv_gpu_backend(&gpu), "the backend");
  if (argc == 2 && !strcmp(argv[1], "planted")) return planted() != 0;
  if (argc == 4 && !strcmp(argv[1], "streams")) return streams(atof(argv[2]), strtoull(argv[3], nullptr, 10)) != 0;
  if ((argc == 6 || argc == 7) && !strcmp(argv[1], "rungs")) {
    bool all = !strcmp(argv[2], "all");
    manner m = {{all ? nullptr : find(DKV_FORWARD, argv[2]), all ? nullptr : find(DKV_BACKWARD, argv[3])},
                argc == 7 ? atoi(argv[6]) : 3000,
                nullptr,
                NOTHING};
    std::string name = std::string(argv[2]) + "/" + argv[3];
    return run_for(atof(argv[4]), strtoull(argv[5], nullptr, 10), m, name.c_str()) != 0;
  }
  printf("usage: fuzz_driver rungs FORWARD BACKWARD SECONDS SEED [ROWS] | streams SECONDS SEED | planted\n");
  return 2;
}
