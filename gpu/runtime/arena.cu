/**
 * @file arena.cu
 * @brief Device allocations, and the list of those that have guard zones.
 *
 * Read before: arena.h.
 */
#include "gpu/runtime/arena.h"

#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace {

constexpr size_t guard_bytes = 4096;
constexpr int guard_value = 0xff;

/** A guarded allocation. */
struct block {
  block *next;  /**< list link */
  char *base;   /**< start of the front guard */
  size_t bytes; /**< the caller's bytes */
};

std::mutex mutex;
block *blocks = nullptr; /**< live guarded allocations; under mutex */
char damage[160] = "";   /**< first damage seen on a release; under mutex */

bool guards_wanted() {
  const char *value = getenv("DKV_GPU_GUARD");
  return value && *value && strcmp(value, "0") != 0;
}

/** First damaged byte of a guard zone, relative to its start; -1 when whole, -2 when it cannot be read. */
int damaged_byte(const char *zone) {
  unsigned char host[guard_bytes];
  if (cudaMemcpy(host, zone, guard_bytes, cudaMemcpyDeviceToHost) != cudaSuccess) return -2;
  for (size_t i = 0; i < guard_bytes; ++i)
    if (host[i] != guard_value) return (int)i;
  return -1;
}

/** Describes the damage of one allocation in `out`; false when there is none. */
bool describe_damage(const block *b, char *out, size_t bytes) {
  int front = damaged_byte(b->base), back = damaged_byte(b->base + guard_bytes + b->bytes);
  if (front == -1 && back == -1) return false;
  const char *side = front != -1 ? "before" : "after";
  long long distance = front != -1 ? (long long)guard_bytes - front : (long long)back + 1;
  snprintf(out, bytes, "gpu: a kernel wrote %lld bytes %s an allocation of %zu bytes", distance, side, b->bytes);
  return true;
}

} // namespace

dkv_status dkv_gpu_allocate(void **out, size_t bytes) {
  DKV_REQUIRE(out, DKV_ERR_NULL, "dkv_gpu_allocate: out is NULL");
  *out = nullptr;
  if (bytes == 0) return DKV_OK;
  bool guarded = guards_wanted();
  size_t total = bytes + (guarded ? 2 * guard_bytes : 0);
  char *base = nullptr;
  cudaError_t error = cudaMalloc((void **)&base, total);
  if (error == cudaErrorMemoryAllocation) {
    size_t free_bytes = 0, all_bytes = 0;
    (void)cudaGetLastError();
    (void)cudaMemGetInfo(&free_bytes, &all_bytes);
    return dkv_fail(DKV_ERR_NOMEM, "gpu: %.2f GiB wanted, %.2f of %.2f GiB are free", (double)total / 1073741824.0,
                    (double)free_bytes / 1073741824.0, (double)all_bytes / 1073741824.0);
  }
  if (error != cudaSuccess) return dkv_gpu_fail(error, "cudaMalloc");
  if (!guarded) {
    *out = base;
    return DKV_OK;
  }
  block *b = (block *)malloc(sizeof *b);
  error = cudaMemset(base, guard_value, guard_bytes);
  if (error == cudaSuccess) error = cudaMemset(base + guard_bytes + bytes, guard_value, guard_bytes);
  if (!b || error != cudaSuccess) {
    cudaFree(base);
    free(b);
    return b ? dkv_gpu_fail(error, "cudaMemset of the guards") : dkv_fail(DKV_ERR_NOMEM, "gpu: out of host memory");
  }
  std::lock_guard<std::mutex> lock(mutex);
  *b = block{blocks, base, bytes};
  blocks = b;
  *out = base + guard_bytes;
  return DKV_OK;
}

void dkv_gpu_release(void *memory) {
  if (!memory) return;
  std::lock_guard<std::mutex> lock(mutex);
  for (block **link = &blocks; *link; link = &(*link)->next) {
    block *b = *link;
    if (b->base + guard_bytes != memory) continue;
    char text[sizeof damage];
    if (describe_damage(b, text, sizeof text) && !damage[0]) memcpy(damage, text, sizeof damage);
    *link = b->next;
    cudaFree(b->base);
    free(b);
    return;
  }
  cudaFree(memory);
}

dkv_status dkv_gpu_guards_check(void) {
  DKV_CUDA(cudaDeviceSynchronize());
  std::lock_guard<std::mutex> lock(mutex);
  char text[sizeof damage];
  memcpy(text, damage, sizeof text);
  damage[0] = '\0';
  for (const block *b = blocks; b && !text[0]; b = b->next)
    if (!describe_damage(b, text, sizeof text)) text[0] = '\0';
  return text[0] ? dkv_fail(DKV_ERR_CUDA, "%s", text) : DKV_OK;
}
