/**
 * @file bench_time.c
 * @brief Times packed, replicated and the matrix product that is their ceiling, in turn.
 *
 * Read before: bench.h.  Read next: bench_print.c.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/bench.h"
#include "tools/twins.h"

/** Milliseconds that all timed calls together may take when no number of repeats is given. */
static const double time_budget = 6000;

/** Elements of o up to which packed and replicated are also compared at full size. */
static const double comparable = 6e7;

/** A layout on the backend, ready to be timed. */
struct side {
  dkv_problem problem;
  dkv_session session;
  int32_t *row_map; /* replicated only */
};

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double dkv_bench_median(const struct dkv_bench_times *times) {
  int32_t n = times->count;
  return n == 0 ? NAN : (times->milliseconds[(n - 1) / 2] + times->milliseconds[n / 2]) / 2;
}

/** Bytes that this machine can still give, as Linux sees it; infinite where it does not say. */
static double free_memory(void) {
  char line[128];
  double kib = INFINITY;
  FILE *file = fopen("/proc/meminfo", "r");
  if (file == NULL) return kib;
  while (fgets(line, sizeof line, file) != NULL)
    if (sscanf(line, "MemAvailable: %lf", &kib) == 1) break;
  fclose(file);
  return 1024 * kib;
}

/** Fails when the host cannot hold a problem of so many rows: inputs, and on a CPU backend its copy and the results
 * too. */
static dkv_status require_memory(const struct dkv_bench_request *request, const char *name, int64_t rows) {
  double inputs = (double)rows * 2 * (request->spec.heads + request->spec.kv_heads) * request->spec.head_dim *
                  (double)dkv_dtype_size(request->spec.dtype);
  bool host = strcmp(request->backend->name, "gpu") != 0;
  double need = host ? 3 * inputs : 1.1 * inputs, have = free_memory();
  char a[32], b[32];
  DKV_REQUIRE(need < 0.9 * have, DKV_ERR_NOMEM, "the %s layout needs %s of memory, and %s are free", name,
              dkv_tool_bytes(a, need), dkv_tool_bytes(b, have));
  return DKV_OK;
}

static void close_side(struct side *side) {
  dkv_session_close(&side->session);
  dkv_problem_free(&side->problem);
  free(side->row_map);
  *side = (struct side){0};
}

/** Opens, runs once, and notes what is known before timing. */
static dkv_status open_side(struct side *side, struct dkv_bench_side *out, const struct dkv_bench_request *request) {
  DKV_TRY(dkv_session_open(&side->session, request->backend, &side->problem, &request->options));
  DKV_TRY(dkv_session_run(&side->session));
  out->measured = true;
  out->peak_bytes = side->session.peak_bytes;
  return DKV_OK;
}

/** Replicates; a machine that is too small for it is a remark, not a failure. */
static dkv_status open_replicated(struct side *side, struct dkv_bench_side *out,
                                  const struct dkv_bench_request *request, const dkv_problem *packed) {
  dkv_status status =
      out->rows > DKV_MAX_ROWS
          ? dkv_fail(DKV_ERR_NOMEM, "%lld replicated rows are more than a layout holds", (long long)out->rows)
          : require_memory(request, "replicated", out->rows);
  dkv_tool_progress("building the replicated layout");
  if (status == DKV_OK) status = dkv_problem_replicate(&side->problem, &side->row_map, packed);
  if (status == DKV_OK) status = open_side(side, out, request);
  if (status != DKV_ERR_NOMEM) return status;
  snprintf(out->why, sizeof out->why, "%s", dkv_last_error());
  out->measured = false;
  close_side(side);
  return DKV_OK;
}

/** packed == fold(replicated) at the size that is timed. */
static dkv_status compare_at_size(const struct side *packed, const struct side *replicated) {
  dkv_results once = {0}, copies = {0};
  dkv_comparison twins[DKV_RESULTS];
  dkv_tool_progress("comparing packed and replicated at full size");
  dkv_status status = dkv_session_results(&packed->session, &once, &packed->problem);
  if (status == DKV_OK) status = dkv_session_results(&replicated->session, &copies, &replicated->problem);
  if (status == DKV_OK)
    status = dkv_twins_compare(twins, &packed->problem, &once, &replicated->problem, &copies, replicated->row_map);
  dkv_results_free(&once);
  dkv_results_free(&copies);
  DKV_TRY(status);
  const dkv_comparison *worst = dkv_twins_worst(twins, DKV_RESULTS);
  DKV_REQUIRE(worst->passed, DKV_ERR_MISMATCH,
              "not timed, because packed and replicated disagree: %s, error %.2e (bound %.1e) at row %lld, index %lld",
              dkv_result_name((dkv_result)(worst - twins)), worst->error, worst->bound, (long long)worst->worst_row,
              (long long)worst->worst_index);
  return DKV_OK;
}

/**
 * Gives every copy of a row that row's dout.  The comparison wants all but the first copy's to be 0, so that folding
 * adds nothing twice; but a GPU that multiplies zeros needs less power and is faster, so they are not what is timed.
 */
static dkv_status fill_copies(const struct side *packed, struct side *replicated) {
  const dkv_problem *from = &packed->problem;
  dkv_problem *to = &replicated->problem;
  size_t row = (size_t)from->heads * (size_t)from->head_dim * dkv_dtype_size(from->dtype);
  for (int32_t r = 0; r < to->layout.rows; ++r)
    memcpy((char *)to->dout + (size_t)r * row, (const char *)from->dout + (size_t)replicated->row_map[r] * row, row);
  return replicated->session.backend->upload((void *)replicated->session.backward_call.dout, to->dout,
                                             (size_t)to->layout.rows * row);
}

/** One call of each direction. */
static dkv_status time_once(const struct side *side, struct dkv_bench_side *out) {
  const dkv_session *s = &side->session;
  const dkv_kernel *kernel[2] = {s->forward, s->backward};
  const dkv_attention *call[2] = {&s->forward_call, &s->backward_call};
  for (int d = 0; d < 2; ++d) {
    struct dkv_bench_times *times = &out->direction[d];
    DKV_TRY(s->backend->time(kernel[d], call[d], 1, &times->milliseconds[times->count]));
    ++times->count;
  }
  return DKV_OK;
}

/** One product. */
static dkv_status time_product(double *flops, const struct dkv_bench_request *request) {
  return request->backend->matmul_rate((int32_t)request->matmul_size, request->spec.dtype, request->options.threads, 1,
                                       flops);
}

static double last_call(const struct dkv_bench_side *side) {
  double sum = 0;
  for (int d = 0; d < 2; ++d)
    if (side->direction[d].count > 0) sum += side->direction[d].milliseconds[side->direction[d].count - 1];
  return sum;
}

/** Sorts what the rounds gave, and takes the medians of the product. */
static void sort_times(struct dkv_bench_result *result, double *product, int32_t products) {
  struct dkv_bench_side *sides[2] = {&result->packed, &result->replicated};
  for (int s = 0; s < 2; ++s)
    for (int d = 0; d < 2; ++d)
      qsort(sides[s]->direction[d].milliseconds, (size_t)sides[s]->direction[d].count, sizeof(double), ascending);
  qsort(product, (size_t)products, sizeof *product, ascending);
  result->matmul_flops = (product[(products - 1) / 2] + product[products / 2]) / 2;
  result->matmul_best = product[products - 1];
}

/** Rounds of one call each until the number of repeats is reached, or enough time has gone and there are seven. */
static dkv_status time_in_turn(struct dkv_bench_result *result, const struct dkv_bench_request *request,
                               const struct side *packed, const struct side *replicated) {
  enum { LEAST = 7, PRODUCTS = 15 };
  double spent = 0, product[PRODUCTS];
  int32_t products = 0;
  DKV_TRY(time_product(&product[0], request)); /* the first one also wakes the library: it is timed again below */
  for (int32_t n = 0; n < DKV_BENCH_REPEATS; ++n) {
    bool enough = request->repeats > 0 ? n >= request->repeats : n >= LEAST && spent >= time_budget;
    if (enough) break;
    dkv_tool_progress("timing, round %d", n + 1);
    DKV_TRY(time_once(packed, &result->packed));
    spent += last_call(&result->packed);
    if (result->replicated.measured) {
      DKV_TRY(time_once(replicated, &result->replicated));
      spent += last_call(&result->replicated);
    }
    if (products < PRODUCTS) DKV_TRY(time_product(&product[products++], request));
  }
  sort_times(result, product, products);
  return DKV_OK;
}

/** Everything between opening and closing the two sides. */
static dkv_status measure(struct dkv_bench_result *result, const struct dkv_bench_request *request, struct side *packed,
                          struct side *replicated) {
  DKV_TRY(require_memory(request, "packed", result->packed.rows));
  dkv_tool_progress("building the packed layout");
  DKV_TRY(dkv_problem_random(&packed->problem, &request->layout, &request->spec));
  DKV_TRY(open_side(packed, &result->packed, request));
  result->kernel[0] = packed->session.forward->name;
  result->kernel[1] = packed->session.backward->name;
  for (int d = 0; d < 2; ++d) result->flops[d] = dkv_attention_flops(&packed->session.forward_call, (dkv_direction)d);
  if (request->packed_only)
    snprintf(result->replicated.why, sizeof result->replicated.why, "left out by --packed-only");
  else DKV_TRY(open_replicated(replicated, &result->replicated, request, &packed->problem));
  double elements = (double)result->replicated.rows * request->spec.heads * request->spec.head_dim;
  if (result->replicated.measured && elements <= comparable) {
    DKV_TRY(compare_at_size(packed, replicated));
    result->same_at_size = true;
  }
  if (result->replicated.measured) DKV_TRY(fill_copies(packed, replicated));
  return time_in_turn(result, request, packed, replicated);
}

dkv_status dkv_bench_time(struct dkv_bench_result *result, const struct dkv_bench_request *request) {
  struct side packed = {0}, replicated = {0};
  const dkv_model_shape one_layer = {1,
                                     1,
                                     1,
                                     1,
                                     request->spec.heads,
                                     request->spec.kv_heads,
                                     request->spec.head_dim,
                                     (int32_t)dkv_dtype_size(request->spec.dtype)};
  DKV_TRY(dkv_cost_saving(&result->saving, &request->layout, &one_layer));
  result->packed.rows = result->saving.packed.rows;
  result->packed.pairs = result->saving.packed.pairs;
  result->replicated.rows = result->saving.replicated.rows;
  result->replicated.pairs = result->saving.replicated.pairs;
  dkv_status status = measure(result, request, &packed, &replicated);
  close_side(&packed);
  close_side(&replicated);
  return status;
}
