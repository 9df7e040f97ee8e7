/**
 * @file refusals.cu
 * @brief One sentence for every way in which there is no GPU to use, or not enough of one; runs with and without a GPU.
 *
 *     refusals         too old a device, one that is not Hopper, no driver or no device
 *     refusals card    needs a device: too little memory, unsupported shapes, and that a damaged guard zone is found;
 *                      and from every rung calls that no check went before: pointers off their grid, a short workspace,
 *                      no layout, shapes that it never takes; after which the device must still work
 *
 * Exit code 1 when a sentence is missing or does not name what it must.  Read before: gpu/runtime/device.h, arena.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/backend.h"
#include "gpu/runtime/device.h"

extern "C" dkv_status dkv_gpu_backend(const dkv_backend **out);

static int passed = 0, failed = 0;

/** The call must have failed with this status, in one sentence that names these words. */
static void refused(const char *what, dkv_status got, dkv_status want, const char *word, const char *other) {
  const char *sentence = dkv_last_error();
  bool good = got == want && strstr(sentence, word) && strstr(sentence, other) && !strchr(sentence, '\n');
  ++(good ? passed : failed);
  printf("%s %s: %s, \"%s\"\n", good ? "pass" : "FAIL", what, dkv_status_name(got), got == DKV_OK ? "" : sentence);
}

static void accepted(const char *what, dkv_status got) {
  ++(got == DKV_OK ? passed : failed);
  printf("%s %s%s%s\n", got == DKV_OK ? "pass" : "FAIL", what, got == DKV_OK ? "" : ": ",
         got == DKV_OK ? "" : dkv_last_error());
}

static dkv_gpu_device made_up(const char *name, int major, int minor) {
  dkv_gpu_device device = {};
  snprintf(device.name, sizeof device.name, "%s", name);
  device.major = major;
  device.minor = minor;
  return device;
}

static void devices(void) {
  dkv_gpu_device volta = made_up("Volta", 7, 0), ampere = made_up("Ampere", 8, 0), hopper = made_up("Hopper", 9, 0),
                 blackwell = made_up("Blackwell", 10, 0);
  refused("too old a device", dkv_gpu_device_check(&volta), DKV_ERR_NO_DEVICE, "Volta", "7.0; this build needs 8.0");
  accepted("the portable rungs on 8.0", dkv_gpu_device_check(&ampere));
  accepted("the portable rungs on 10.0", dkv_gpu_device_check(&blackwell));
  accepted("the Hopper rungs on 9.0", dkv_gpu_device_check_hopper(&hopper));
  refused("older than Hopper", dkv_gpu_device_check_hopper(&ampere), DKV_ERR_NO_DEVICE, "Ampere", "8.0; the Hopper");
  refused("newer than Hopper", dkv_gpu_device_check_hopper(&blackwell), DKV_ERR_NO_DEVICE, "Blackwell", "10.0");
}

/** Hides every device before the first CUDA call of the process. */
static void no_device(void) {
  const dkv_backend *gpu = nullptr;
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  dkv_status status = dkv_gpu_backend(&gpu);
  int loaded = 0;
  if (cudaDriverGetVersion(&loaded) != cudaSuccess) loaded = 0;
  refused(loaded ? "no device" : "no driver", status, DKV_ERR_NO_DEVICE,
          loaded ? "shows no CUDA device" : "no NVIDIA driver", "gpu: ");
  ++(gpu == nullptr ? passed : failed);
}

/** A problem of T = 64 rows without pointers: what dkv_kernel_find looks at. */
static void unsupported(const dkv_backend *gpu, const char *name, dkv_dtype dtype, int dim, const char *word,
                        const char *other) {
  const dkv_kernel *kernel = nullptr;
  int32_t parent = -1, length = 64;
  dkv_layout layout;
  accepted("a layout", dkv_layout_forest(&layout, 1, &parent, &length));
  dkv_attention problem = {};
  problem.layout = &layout;
  problem.heads = problem.kv_heads = 1;
  problem.head_dim = dim;
  problem.scale = 0.125;
  problem.dtype = dtype;
  refused(name, dkv_kernel_find(&kernel, gpu, DKV_FORWARD, name, &problem), DKV_ERR_UNSUPPORTED, word, other);
  dkv_layout_free(&layout);
}

/** A refusal that must also leave no CUDA error behind for whoever calls next. */
static void refused_cleanly(const dkv_kernel *kernel, const char *what, dkv_status got, dkv_status want,
                            const char *word) {
  char name[96];
  snprintf(name, sizeof name, "%s %s, %s", kernel->direction == DKV_FORWARD ? "fwd" : "bwd", kernel->name, what);
  refused(name, got, want, word, "");
  cudaError_t left = cudaGetLastError();
  if (left != cudaSuccess) printf("FAIL %s: it left %s\n", name, cudaGetErrorName(left));
  failed += left != cudaSuccess;
}

/** Pointers that are off their grid, in every place of a sound call. */
static void off_the_grid(const dkv_kernel *kernel, const dkv_attention *call) {
  using input = const void *dkv_attention::*;
  using output = void *dkv_attention::*;
  const input in[] = {&dkv_attention::q, &dkv_attention::k, &dkv_attention::v, &dkv_attention::dout};
  const output out[] = {&dkv_attention::o, &dkv_attention::dq, &dkv_attention::dk, &dkv_attention::dv};
  for (int n = 0; n < 4; ++n) {
    dkv_attention bad = *call;
    if (kernel->direction == DKV_FORWARD && n == 3) continue;
    bad.*in[n] = (const char *)(bad.*in[n]) + 2;
    refused_cleanly(kernel, "an input at 2 bytes past", kernel->run(&bad), DKV_ERR_RANGE, "multiple of 16 bytes");
  }
  for (int n = 0; n < (kernel->direction == DKV_FORWARD ? 1 : 4); ++n) {
    dkv_attention bad = *call;
    bad.*out[n] = (char *)(bad.*out[n]) + 8;
    refused_cleanly(kernel, "an output at 8 bytes past", kernel->run(&bad), DKV_ERR_RANGE, "multiple of 16 bytes");
  }
  dkv_attention bad = *call;
  bad.lse = (char *)bad.lse + 2;
  refused_cleanly(kernel, "lse at 2 bytes past", kernel->run(&bad), DKV_ERR_RANGE, "multiple of 4 bytes");
  bad = *call;
  bad.workspace = (char *)bad.workspace + 128;
  refused_cleanly(kernel, "run, workspace at 128 past", kernel->run(&bad), DKV_ERR_RANGE, "multiple of 256 bytes");
  refused_cleanly(kernel, "prepare, the same", kernel->prepare(&bad), DKV_ERR_RANGE, "multiple of 256 bytes");
}

/** Calls that are short of something, and shapes that the rung's line in kernels.def does not name. */
static void broken_calls(const dkv_kernel *kernel, const dkv_attention *call) {
  size_t bytes = 0;
  dkv_attention bad = *call;
  --bad.workspace_bytes;
  refused_cleanly(kernel, "run, a byte short", kernel->run(&bad), DKV_ERR_NOMEM, "this kernel needs");
  refused_cleanly(kernel, "prepare, a byte short", kernel->prepare(&bad), DKV_ERR_NOMEM, "this kernel needs");
  bad = *call;
  bad.layout = nullptr;
  refused_cleanly(kernel, "workspace without layout", kernel->workspace(&bad, &bytes), DKV_ERR_NULL, "NULL");
  refused_cleanly(kernel, "prepare without layout", kernel->prepare(&bad), DKV_ERR_NULL, "NULL");
  bad = *call;
  bad.dtype = DKV_F32;
  bad.workspace_bytes *= 8; /* it is not looked into before the type */
  if (!(kernel->dtypes & DKV_BIT(DKV_F32)))
    refused_cleanly(kernel, "run in f32", kernel->run(&bad), DKV_ERR_UNSUPPORTED, "f32");
  bad.dtype = DKV_BF16;
  bad.head_dim = 32;
  if (!(kernel->head_dims & DKV_HEAD_DIM(32)))
    refused_cleanly(kernel, "run with D=32", kernel->run(&bad), DKV_ERR_UNSUPPORTED, "32");
}

/** Every rung: what it refuses, and that a sound call works afterwards. */
static void every_rung(const dkv_backend *gpu) {
  int32_t parent[] = {-1, 0, 0}, length[] = {100, 0, 150};
  dkv_layout layout;
  accepted("a layout", dkv_layout_forest(&layout, 3, parent, length));
  void *tensor[9] = {};
  for (void *&t : tensor) {
    accepted("a tensor", gpu->allocate(&t, 250 * 2 * 64 * 2 + 256));
    accepted("zeros", gpu->fill(t, 0, 250 * 2 * 64 * 2 + 256));
  }
  dkv_attention call = {};
  call.layout = &layout;
  call.heads = call.kv_heads = 2;
  call.head_dim = 64;
  call.scale = 0.125;
  call.dtype = DKV_BF16;
  call.q = tensor[0], call.k = tensor[1], call.v = tensor[2], call.dout = tensor[3];
  call.o = tensor[4], call.lse = tensor[5], call.dq = tensor[6], call.dk = tensor[7], call.dv = tensor[8];
  for (int32_t n = 0; n < gpu->kernel_count; ++n) {
    const dkv_kernel *kernel = &gpu->kernels[n];
    if (kernel->available() != DKV_OK) continue;
    accepted(kernel->name, kernel->workspace(&call, &call.workspace_bytes));
    accepted("its workspace", gpu->allocate(&call.workspace, call.workspace_bytes + 256));
    accepted("prepare", kernel->prepare(&call));
    off_the_grid(kernel, &call);
    broken_calls(kernel, &call);
    accepted("a sound call afterwards", kernel->run(&call));
    accepted("its end", gpu->synchronize());
    gpu->release(call.workspace);
  }
  for (void *t : tensor) gpu->release(t);
  dkv_layout_free(&layout);
}

static void on_the_card(const dkv_backend *gpu) {
  void *memory = nullptr;
  refused("too little memory", gpu->allocate(&memory, (size_t)1 << 42), DKV_ERR_NOMEM, "4096.00 GiB wanted",
          "are free");
  accepted("the device still works", gpu->synchronize());
  unsupported(gpu, "mma", DKV_BF16, 32, "mma", "D=32");
  unsupported(gpu, "hopper", DKV_BF16, 96, "hopper", "D=96");
  unsupported(gpu, "pipeline", DKV_F32, 64, "pipeline", "f32");
  every_rung(gpu);
  setenv("DKV_GPU_GUARD", "1", 1);
  accepted("a guarded allocation", gpu->allocate(&memory, 1000));
  accepted("a whole guard", gpu->synchronize());
  accepted("a write past the end", gpu->fill(memory, 0, 1001));
  refused("a damaged guard", gpu->synchronize(), DKV_ERR_CUDA, "1 bytes after", "1000 bytes");
  gpu->release(memory);
  refused("a damaged guard, after release", gpu->synchronize(), DKV_ERR_CUDA, "1 bytes after", "1000 bytes");
  accepted("told once", gpu->synchronize());
}

int main(int argc, char **argv) {
  const dkv_backend *gpu = nullptr;
  setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc > 1 && strcmp(argv[1], "card") == 0) {
    accepted("the backend", dkv_gpu_backend(&gpu));
    if (gpu) on_the_card(gpu);
  } else {
    devices();
    no_device();
  }
  printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
