/**
 * @file refusals.cu
 * @brief One sentence for every way in which there is no GPU to use, or not enough of one; runs with and without a GPU.
 *
 *     refusals         too old a device, one that is not Hopper, no driver or no device
 *     refusals card    needs a device: too little memory, unsupported shapes, and that a damaged guard zone is found
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

static void on_the_card(const dkv_backend *gpu) {
  void *memory = nullptr;
  refused("too little memory", gpu->allocate(&memory, (size_t)1 << 42), DKV_ERR_NOMEM, "4096.00 GiB wanted",
          "are free");
  accepted("the device still works", gpu->synchronize());
  unsupported(gpu, "mma", DKV_BF16, 32, "mma", "D=32");
  unsupported(gpu, "hopper", DKV_BF16, 96, "hopper", "D=96");
  unsupported(gpu, "pipeline", DKV_F32, 64, "pipeline", "f32");
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
