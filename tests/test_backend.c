/**
 * @file test_backend.c
 * @brief Finding backends and kernels, the shared checks of attention, and the sentences when something is not there.
 *
 * Read before: common/backend.h, common/attention.h.  Read next: tests/test_execute.c.
 */
#include "common/backend.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "tests/support/expect.h"
#include "tests/support/files.h"

static dkv_status present(void) { return DKV_OK; }
static dkv_status absent(void) { return dkv_fail(DKV_ERR_NO_DEVICE, "no device of the year 2040"); }

/** A backend whose kernels differ in what they take: simplest first, as in kernels.def. */
static const dkv_kernel kernels[] = {
    {.name = "any", .direction = DKV_FORWARD, .dtypes = 7, .head_dims = DKV_HEAD_DIMS_ALL, .available = present},
    {.name = "half",
     .direction = DKV_FORWARD,
     .dtypes = DKV_BIT(DKV_BF16) | DKV_BIT(DKV_F16),
     .head_dims = DKV_HEAD_DIM(64) | DKV_HEAD_DIM(128)},
    {.name = "loose",
     .direction = DKV_BACKWARD,
     .dtypes = 7,
     .head_dims = DKV_HEAD_DIMS_ALL,
     .determinism = DKV_ON_REQUEST},
    {.name = "loosest",
     .direction = DKV_BACKWARD,
     .dtypes = 7,
     .head_dims = DKV_HEAD_DIMS_ALL,
     .determinism = DKV_NEVER},
    {.name = "future", .direction = DKV_BACKWARD, .dtypes = 7, .head_dims = DKV_HEAD_DIM(64), .available = absent},
};
static const dkv_backend fake = {.name = "fake", .kernel_count = 5, .kernels = kernels};
static const dkv_layout no_rows;

/** H=4, Hkv=2 of the given type and head size; no pointers. */
static dkv_attention shape(dkv_dtype dtype, int32_t head_dim) {
  return (dkv_attention){
      .layout = &no_rows, .heads = 4, .kv_heads = 2, .head_dim = head_dim, .scale = 0.125, .dtype = dtype};
}

/** Name of the kernel that is found. */
static const char *found(dkv_direction direction, const char *name, const dkv_attention *problem) {
  const dkv_kernel *kernel;
  EXPECT_OK(dkv_kernel_find(&kernel, &fake, direction, name, problem));
  return kernel->name;
}

Test(backend, lists_ref_cpu_and_gpu) {
  cr_assert_str_eq(dkv_backend_names[0], "ref");
  cr_assert_str_eq(dkv_backend_names[1], "cpu");
  cr_assert_str_eq(dkv_backend_names[2], "gpu");
  cr_assert(dkv_backend_names[3] == NULL);
}

Test(backend, ref_and_cpu_are_always_there_and_complete) {
  for (int i = 0; i < 2; ++i) {
    const dkv_backend *b;
    char text[200];
    EXPECT_OK(dkv_backend_find(&b, dkv_backend_names[i]));
    cr_assert_str_eq(b->name, dkv_backend_names[i]);
    cr_assert(b->describe && b->allocate && b->release && b->upload && b->download && b->fill && b->synchronize);
    EXPECT_OK(b->describe(text, sizeof text));
    cr_assert(strlen(text) > 5 && strchr(text, '\n') == NULL, "%s", text);
    int directions[2] = {0, 0};
    for (int32_t k = 0; k < b->kernel_count; ++k) {
      cr_assert(b->kernels[k].workspace && b->kernels[k].run && b->kernels[k].idea[0] && b->kernels[k].file[0]);
      ++directions[b->kernels[k].direction];
    }
    cr_assert(directions[0] > 0 && directions[1] > 0);
  }
}

Test(backend, memory_is_aligned_filled_and_copied) {
  for (int i = 0; i < 2; ++i) {
    const dkv_backend *b;
    void *memory, *nothing;
    unsigned char bytes[5] = {1, 2, 3, 4, 5}, back[5];
    EXPECT_OK(dkv_backend_find(&b, dkv_backend_names[i]));
    EXPECT_OK(b->allocate(&nothing, 0));
    cr_assert(nothing == NULL);
    b->release(NULL);
    EXPECT_OK(b->allocate(&memory, 5));
    cr_assert((uintptr_t)memory % 256 == 0);
    EXPECT_OK(b->fill(memory, 0xff, 5));
    EXPECT_OK(b->upload(memory, bytes, 2));
    EXPECT_OK(b->download(back, memory, 5));
    cr_assert(back[0] == 1 && back[1] == 2 && back[2] == 0xff && back[4] == 0xff);
    EXPECT_OK(b->synchronize());
    b->release(memory);
  }
}

Test(backend, find_refuses_what_it_does_not_know) {
  const dkv_backend *b = &fake;
  EXPECT_FAIL(DKV_ERR_NULL, "out", dkv_backend_find(NULL, "ref"));
  EXPECT_FAIL(DKV_ERR_NULL, "name", dkv_backend_find(&b, NULL));
  EXPECT_FAIL(DKV_ERR_RANGE, "no backend \"tpu\"; there are ref, cpu and gpu", dkv_backend_find(&b, "tpu"));
  cr_assert(b == NULL);
}

Test(backend, without_a_gpu_library_says_where_it_looked) {
  const dkv_backend *b;
  setenv("DKV_GPU_LIBRARY", "/no/such/libdualkv_gpu.so", 1);
  for (int i = 0; i < 2; ++i) /* the second answer is the kept one */
    EXPECT_FAIL(DKV_ERR_UNSUPPORTED, "there is no /no/such/libdualkv_gpu.so", dkv_backend_find(&b, "gpu"));
  cr_assert(b == NULL);
}

Test(backend, with_a_gpu_library_that_is_none_says_so) {
  const dkv_backend *b;
  const char *path = file_path("libdualkv_gpu.so");
  file_write(path, "not an ELF file", 15);
  setenv("DKV_GPU_LIBRARY", path, 1);
  EXPECT_FAIL(DKV_ERR_UNSUPPORTED, path, dkv_backend_find(&b, "gpu"));
}

/** Opening a FIFO would wait for somebody to write to it. */
Test(backend, with_a_gpu_library_that_is_no_regular_file_says_so) {
  const dkv_backend *b;
  const char *path = file_path("fifo");
  cr_assert(mkfifo(path, 0600) == 0);
  setenv("DKV_GPU_LIBRARY", path, 1);
  EXPECT_FAIL(DKV_ERR_UNSUPPORTED, "is not a regular file", dkv_backend_find(&b, "gpu"));
}

Test(backend, with_a_library_without_the_entry_says_so) {
  const dkv_backend *b;
  Dl_info info;
  cr_assert(dladdr(dlsym(RTLD_DEFAULT, "malloc"), &info) != 0); /* the C library: surely a library */
  setenv("DKV_GPU_LIBRARY", info.dli_fname, 1);
  EXPECT_FAIL(DKV_ERR_UNSUPPORTED, "does not define dkv_gpu_backend", dkv_backend_find(&b, "gpu"));
}

/** One of the threads below. */
static void *ask(void *out) {
  const dkv_backend *b;
  *(dkv_status *)out = dkv_backend_find(&b, "gpu");
  if (*(dkv_status *)out != DKV_ERR_UNSUPPORTED || strstr(dkv_last_error(), "/no/such") == NULL)
    *(dkv_status *)out = DKV_OK;
  return NULL;
}

/** The library is opened once, and every thread gets the sentence. */
Test(backend, may_be_asked_for_by_many_threads_at_once) {
  enum { THREADS = 8 };
  pthread_t thread[THREADS];
  dkv_status status[THREADS];
  setenv("DKV_GPU_LIBRARY", "/no/such/library", 1);
  for (int i = 0; i < THREADS; ++i) cr_assert(pthread_create(&thread[i], NULL, ask, &status[i]) == 0);
  for (int i = 0; i < THREADS; ++i) {
    cr_assert(pthread_join(thread[i], NULL) == 0);
    cr_assert(status[i] == DKV_ERR_UNSUPPORTED, "thread %d", i);
  }
}

Test(kernel_find, takes_the_last_that_takes_the_problem) {
  dkv_attention f32 = shape(DKV_F32, 64), bf16 = shape(DKV_BF16, 64), odd = shape(DKV_BF16, 72);
  cr_assert_str_eq(found(DKV_FORWARD, NULL, &f32), "any");
  cr_assert_str_eq(found(DKV_FORWARD, NULL, &bf16), "half");
  cr_assert_str_eq(found(DKV_FORWARD, NULL, &odd), "any");
  cr_assert_str_eq(found(DKV_BACKWARD, NULL, &bf16), "loosest"); /* "future" is not available */
  bf16.deterministic = true;
  cr_assert_str_eq(found(DKV_BACKWARD, NULL, &bf16), "loose"); /* "loosest" never is deterministic */
}

Test(kernel_find, takes_the_one_that_is_named) {
  dkv_attention bf16 = shape(DKV_BF16, 64);
  cr_assert_str_eq(found(DKV_FORWARD, "any", &bf16), "any");
  cr_assert_str_eq(found(DKV_FORWARD, "half", NULL), "half");
}

Test(kernel_find, refuses_by_name) {
  const dkv_kernel *k = kernels;
  dkv_attention f32 = shape(DKV_F32, 64), f64 = shape(DKV_F64, 64), odd = shape(DKV_BF16, 72);
  EXPECT_FAIL(DKV_ERR_RANGE, "no forward kernel \"loose\"; it has any, half",
              dkv_kernel_find(&k, &fake, DKV_FORWARD, "loose", &f32));
  cr_assert(k == NULL);
  EXPECT_FAIL(DKV_ERR_UNSUPPORTED, "kernel half does not take f32; it takes bf16, f16",
              dkv_kernel_find(&k, &fake, DKV_FORWARD, "half", &f32));
  EXPECT_FAIL(DKV_ERR_UNSUPPORTED, "kernel half does not take D=72; it takes 64, 128",
              dkv_kernel_find(&k, &fake, DKV_FORWARD, "half", &odd));
  EXPECT_FAIL(DKV_ERR_NO_DEVICE, "2040", dkv_kernel_find(&k, &fake, DKV_BACKWARD, "future", &f32));
  EXPECT_FAIL(DKV_ERR_UNSUPPORTED, "no forward kernel for f64, D=64",
              dkv_kernel_find(&k, &fake, DKV_FORWARD, NULL, &f64));
  f32.deterministic = true;
  EXPECT_FAIL(DKV_ERR_UNSUPPORTED, "kernel loosest cannot be deterministic",
              dkv_kernel_find(&k, &fake, DKV_BACKWARD, "loosest", &f32));
  f32.heads = 5;
  EXPECT_FAIL(DKV_ERR_SHAPE, "H=5 is not a multiple of Hkv=2", dkv_kernel_find(&k, &fake, DKV_FORWARD, NULL, &f32));
  const dkv_backend empty = {.name = "empty"};
  EXPECT_FAIL(DKV_ERR_RANGE, "it has none", dkv_kernel_find(&k, &empty, DKV_FORWARD, NULL, &odd));
  const dkv_backend away = {.name = "away", .kernel_count = 1, .kernels = kernels + 4};
  dkv_attention bf16 = shape(DKV_BF16, 64);
  EXPECT_FAIL(DKV_ERR_NO_DEVICE, "2040", dkv_kernel_find(&k, &away, DKV_BACKWARD, NULL, &bf16));
}

Test(kernel_find, refuses_null_arguments) {
  const dkv_kernel *k;
  dkv_attention f32 = shape(DKV_F32, 64);
  EXPECT_FAIL(DKV_ERR_NULL, "out", dkv_kernel_find(NULL, &fake, DKV_FORWARD, NULL, &f32));
  EXPECT_FAIL(DKV_ERR_NULL, "backend", dkv_kernel_find(&k, NULL, DKV_FORWARD, NULL, &f32));
  EXPECT_FAIL(DKV_ERR_NULL, "neither a name nor a problem", dkv_kernel_find(&k, &fake, DKV_FORWARD, NULL, NULL));
}

Test(kernel_check, names_kernel_value_and_what_it_takes) {
  dkv_attention f64 = shape(DKV_F64, 64), f32 = shape(DKV_F32, 64);
  EXPECT_OK(dkv_kernel_check(&kernels[0], &f32));
  EXPECT_FAIL(DKV_ERR_UNSUPPORTED, "kernel any does not take f64; it takes f32, bf16, f16",
              dkv_kernel_check(&kernels[0], &f64));
  EXPECT_FAIL(DKV_ERR_NULL, "kernel", dkv_kernel_check(NULL, &f32));
  EXPECT_FAIL(DKV_ERR_NULL, "problem", dkv_kernel_check(&kernels[0], NULL));
  EXPECT_FAIL(DKV_ERR_NO_DEVICE, "2040", dkv_kernel_check(&kernels[4], &f32));
}

/** One field of a sound shape changed. */
#define EXPECT_BAD_SHAPE(status, fragment, change)                                                                     \
  do {                                                                                                                 \
    dkv_attention p = shape(DKV_F32, 64);                                                                              \
    change;                                                                                                            \
    EXPECT_FAIL(status, fragment, dkv_attention_check(&p, DKV_FORWARD));                                               \
    EXPECT_FAIL(status, fragment, dkv_kernel_check(&kernels[0], &p));                                                  \
  } while (0)

Test(attention_check, refuses_impossible_shapes) {
  EXPECT_BAD_SHAPE(DKV_ERR_NULL, "layout is NULL", p.layout = NULL);
  EXPECT_BAD_SHAPE(DKV_ERR_RANGE, "H=0", p.heads = 0);
  EXPECT_BAD_SHAPE(DKV_ERR_RANGE, "Hkv=-2", p.kv_heads = -2);
  EXPECT_BAD_SHAPE(DKV_ERR_SHAPE, "H=4 is not a multiple of Hkv=3", p.kv_heads = 3);
  EXPECT_BAD_SHAPE(DKV_ERR_SHAPE, "H=4 is not a multiple of Hkv=8", p.kv_heads = 8);
  EXPECT_BAD_SHAPE(DKV_ERR_RANGE, "D=0", p.head_dim = 0);
  EXPECT_BAD_SHAPE(DKV_ERR_RANGE, "D=-8", p.head_dim = -8);
  EXPECT_BAD_SHAPE(DKV_ERR_RANGE, "D=264", p.head_dim = 264);
  EXPECT_BAD_SHAPE(DKV_ERR_SHAPE, "D=60 is not a multiple of 8", p.head_dim = 60);
  EXPECT_BAD_SHAPE(DKV_ERR_RANGE, "scale is nan", p.scale = (double)NAN);
  EXPECT_BAD_SHAPE(DKV_ERR_RANGE, "scale is inf", p.scale = (double)INFINITY);
  EXPECT_BAD_SHAPE(DKV_ERR_RANGE, "scale is -1e+300; with bf16 it is 0 or", (p.scale = -1e300, p.dtype = DKV_BF16));
  EXPECT_BAD_SHAPE(DKV_ERR_RANGE, "scale is 1e-45; with f32", (p.scale = 1e-45, p.dtype = DKV_F32));
  EXPECT_BAD_SHAPE(DKV_ERR_RANGE, "threads=-1", p.threads = -1);
  EXPECT_BAD_SHAPE(DKV_ERR_UNSUPPORTED, "dtype i32", p.dtype = DKV_I32);
  EXPECT_BAD_SHAPE(DKV_ERR_UNSUPPORTED, "dtype ?", p.dtype = (dkv_dtype)77);
  dkv_attention p = shape(DKV_F32, 64);
  EXPECT_FAIL(DKV_ERR_NULL, "problem is NULL", dkv_attention_check(NULL, DKV_FORWARD));
  EXPECT_FAIL(DKV_ERR_RANGE, "direction 7", dkv_attention_check(&p, (dkv_direction)7));
}

Test(attention_check, names_the_missing_tensor_unless_there_are_no_rows) {
  dkv_attention p = shape(DKV_F32, 64);
  dkv_layout one;
  float x[1];
  EXPECT_OK(dkv_attention_check(&p, DKV_BACKWARD)); /* T = 0 needs no pointers */
  EXPECT_OK(dkv_layout_group(&one, 1, 0, NULL));
  p.layout = &one;
  EXPECT_FAIL(DKV_ERR_NULL, "forward: q is NULL", dkv_attention_check(&p, DKV_FORWARD));
  p.q = p.k = p.v = x, p.o = x;
  EXPECT_FAIL(DKV_ERR_NULL, "forward: lse is NULL", dkv_attention_check(&p, DKV_FORWARD));
  p.lse = x;
  EXPECT_OK(dkv_attention_check(&p, DKV_FORWARD));
  EXPECT_FAIL(DKV_ERR_NULL, "backward: dout is NULL", dkv_attention_check(&p, DKV_BACKWARD));
  p.dout = x, p.dq = p.dk = x;
  EXPECT_FAIL(DKV_ERR_NULL, "backward: dv is NULL", dkv_attention_check(&p, DKV_BACKWARD));
  p.dv = x;
  EXPECT_OK(dkv_attention_check(&p, DKV_BACKWARD));
  dkv_layout_free(&one);
}

/** P=3, R={2,2}: 24 visible pairs, counted by hand in test_layout.c. */
Test(attention_flops, counts_useful_pairs_only) {
  dkv_attention p = shape(DKV_F32, 64);
  dkv_layout seven;
  EXPECT_OK(dkv_layout_group(&seven, 3, 2, (const int32_t[]){2, 2}));
  p.layout = &seven;
  cr_assert(fabs(dkv_attention_flops(&p, DKV_FORWARD) - 4.0 * 64 * 4 * 24) < 0.5);
  cr_assert(fabs(dkv_attention_flops(&p, DKV_BACKWARD) - 10.0 * 64 * 4 * 24) < 0.5);
  dkv_layout_free(&seven);
}
