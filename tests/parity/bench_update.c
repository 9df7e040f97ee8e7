/**
 * @file bench_update.c
 * @brief Times one policy update (forward, backward, clip, AdamW) on a group, packed or replicated, and says where the
 * time goes.
 *
 *     bench_update LAYERS WIDTH MLP VOCABULARY HEADS KV_HEADS HEAD_DIM PROMPT RESPONSES RESPONSE_LENGTH LAYOUT REPEATS
 *
 * LAYOUT is packed or replicated, with "-whole" behind it when the last layer is computed at all rows.  Before each
 * update it waits for a line on its input, unless that has ended, and after it prints an empty one, so that several
 * programs can take turns; in the end it prints one JSON object.  The table of layers is wrapped: every call is timed,
 * so "products" is the time inside linear layers and nothing else, "attention" that inside the attention kernels,
 * "head" that of LM head and softmax.  bench_torch.py builds this, runs it, and runs the same update in PyTorch.
 *
 * Read before: common/model/optimizer.h.  Read next: bench_torch.py.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "common/model/optimizer.h"
#include "common/rng.h"

/** Where an update's time goes. */
enum part { PRODUCTS, ATTENTION, HEAD, ADAMW, REST, PARTS };
static const char *const part_names[PARTS] = {"products", "attention", "head", "adamw", "rest"};
static double spent[PARTS];

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/** Stops with the library's sentence when a call fails. */
static void need(dkv_status status) {
  if (status == DKV_OK) return;
  fprintf(stderr, "bench_update: %s\n", dkv_last_error());
  exit(2);
}

/* --- the table again, with a clock around what matters
 * ----------------------------------------------------------------- */
static dkv_status linear_fwd(const dkv_where *w, float *out, bool add, const float *x, const float *weight,
                             int32_t rows, int32_t in, int32_t out_width) {
  double start = now();
  dkv_status status = dkv_cpu_layers.linear_fwd(w, out, add, x, weight, rows, in, out_width);
  spent[PRODUCTS] += now() - start;
  return status;
}

static dkv_status linear_bwd(const dkv_where *w, float *dx, bool add, float *dweight, const float *dout, const float *x,
                             const float *weight, int32_t rows, int32_t in, int32_t out_width) {
  double start = now();
  dkv_status status = dkv_cpu_layers.linear_bwd(w, dx, add, dweight, dout, x, weight, rows, in, out_width);
  spent[PRODUCTS] += now() - start;
  return status;
}

static dkv_status lm_fwd(const dkv_where *w, float *logprob, float *entropy, float *lse, float *chunk,
                         const dkv_scored *scored, const float *x, const float *weight, int32_t width,
                         int32_t vocabulary) {
  double start = now();
  dkv_status status =
      dkv_cpu_layers.lm_logprob_fwd(w, logprob, entropy, lse, chunk, scored, x, weight, width, vocabulary);
  spent[HEAD] += now() - start;
  return status;
}

static dkv_status lm_bwd(const dkv_where *w, float *dx, float *dweight, float *chunk, const dkv_scored *scored,
                         const float *dlogprob, const float *dentropy, const float *lse, const float *x,
                         const float *weight, int32_t width, int32_t vocabulary) {
  double start = now();
  dkv_status status = dkv_cpu_layers.lm_logprob_bwd(w, dx, dweight, chunk, scored, dlogprob, dentropy, lse, x, weight,
                                                    width, vocabulary);
  spent[HEAD] += now() - start;
  return status;
}

static dkv_kernel real_fwd, real_bwd, timed_fwd, timed_bwd;

static dkv_status attention_fwd(const dkv_attention *problem) {
  double start = now();
  dkv_status status = real_fwd.run(problem);
  spent[ATTENTION] += now() - start;
  return status;
}

static dkv_status attention_bwd(const dkv_attention *problem) {
  double start = now();
  dkv_status status = real_bwd.run(problem);
  spent[ATTENTION] += now() - start;
  return status;
}

/** Puts the clock around the kernels of a pass that has been set. */
static void wrap_kernels(dkv_pass *pass) {
  real_fwd = *pass->kernel_fwd;
  real_bwd = *pass->kernel_bwd;
  timed_fwd = real_fwd;
  timed_bwd = real_bwd;
  timed_fwd.run = attention_fwd;
  timed_bwd.run = attention_bwd;
  pass->kernel_fwd = &timed_fwd;
  pass->kernel_bwd = &timed_bwd;
}

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
  if (argc != 13) return fprintf(stderr, "bench_update: 12 arguments, see the head of the file\n"), 2;
  int32_t a[13] = {0};
  for (int i = 1; i < 13; ++i) a[i] = atoi(argv[i]);
  dkv_model_config config = {.layers = a[1],
                             .width = a[2],
                             .mlp_width = a[3],
                             .vocabulary = a[4],
                             .heads = a[5],
                             .kv_heads = a[6],
                             .head_dim = a[7],
                             .max_positions = 1 << 20,
                             .norm_epsilon = 1e-6,
                             .rope_theta = 1e4,
                             .tied = true,
                             .init_std = 0.02};
  int32_t prompt = a[8], responses = a[9], length = a[10], repeats = a[12], count = 0;
  bool replicated = strncmp(argv[11], "replicated", 10) == 0;
  dkv_model_options options = {.whole_last_layer = strstr(argv[11], "-whole") != NULL};
  dkv_model model;
  dkv_optimizer optimizer;
  need(dkv_model_create(&model, &config, 1, &options));
  need(dkv_optimizer_create(&optimizer, &model, NULL));
  dkv_layers timed = *model.layers;
  timed.linear_fwd = linear_fwd;
  timed.linear_bwd = linear_bwd;
  timed.lm_logprob_fwd = lm_fwd;
  timed.lm_logprob_bwd = lm_bwd;
  model.layers = &timed;

  dkv_layout packed, twin, *layout = &packed;
  dkv_prediction *pairs = NULL;
  int32_t *lengths = malloc((size_t)responses * sizeof *lengths), *map = NULL;
  for (int32_t n = 0; n < responses; ++n) lengths[n] = length;
  need(dkv_layout_group(&packed, prompt, responses, lengths));
  need(dkv_predictions(&pairs, &count, &packed));
  int32_t *ids = malloc((size_t)packed.rows * sizeof *ids);
  for (int32_t t = 0; t < packed.rows; ++t)
    ids[t] = (int32_t)(dkv_rng(3, 0, (uint64_t)t).word[0] % (uint32_t)config.vocabulary);
  if (replicated) {
    need(dkv_layout_replicate(&twin, &map, &packed));
    need(dkv_predictions_replicate(pairs, pairs, count, &packed, &twin));
    int32_t *copies = malloc((size_t)twin.rows * sizeof *copies);
    for (int32_t r = 0; r < twin.rows; ++r) copies[r] = ids[map[r]];
    ids = copies;
    layout = &twin;
  }
  float *logprob = malloc((size_t)count * sizeof *logprob), *dlogprob = malloc((size_t)count * sizeof *dlogprob);
  for (int32_t i = 0; i < count; ++i) dlogprob[i] = dkv_rng_normal(3, 1, (uint64_t)i) / (float)count;
  dkv_batch batch = {.layout = layout, .ids = ids, .pairs = pairs, .pair_count = count, .temperature = 1.0f};
  dkv_pass pass = {0};
  double *seconds = malloc((size_t)repeats * sizeof *seconds);
  for (int32_t i = -2; i < repeats; ++i) { /* two to warm up */
    if (i == 0) memset(spent, 0, sizeof spent);
    for (int c = getchar(); c != '\n' && c != EOF; c = getchar()) {
    }
    double start = now();
    need(dkv_pass_set(&pass, &model, &batch));
    wrap_kernels(&pass);
    need(dkv_model_forward(&model, &pass, logprob, NULL));
    need(dkv_model_zero_grads(&model));
    need(dkv_model_backward(&model, &pass, dlogprob, NULL));
    double step = now();
    need(dkv_optimizer_step(&optimizer, &model, 1e-4, NULL));
    spent[ADAMW] += now() - step;
    if (i >= 0) seconds[i] = now() - start;
    printf("\n");
    fflush(stdout);
  }
  double total = 0.0;
  for (int32_t i = 0; i < repeats; ++i) total += seconds[i];
  spent[REST] = total;
  for (int p = 0; p < REST; ++p) spent[REST] -= spent[p];
  qsort(seconds, (size_t)repeats, sizeof *seconds, by_value);
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  printf("{\"rows\": %d, \"pairs\": %d, \"parameters\": %lld, \"median_ms\": %.3f, \"fastest_ms\": %.3f, \"peak_mib\": "
         "%.1f, "
         "\"planned_mib\": %.1f",
         layout->rows, count, (long long)dkv_params_elements(&model.params), 1e3 * seconds[repeats / 2],
         1e3 * seconds[0], (double)usage.ru_maxrss / 1024.0, (double)pass.plan.total_bytes / (1 << 20));
  for (int p = 0; p < PARTS; ++p) printf(", \"share_%s\": %.3f", part_names[p], spent[p] / total);
  printf("}\n");
  return 0;
}
