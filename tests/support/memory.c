/**
 * @file memory.c
 * @brief RLIMIT_AS, set just above the present size: the next large allocation gets NULL from the operating system.
 *
 * Read before: memory.h.
 */
#include "tests/support/memory.h"

#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define UNDER_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define UNDER_SANITIZER 1
#endif
#endif
#ifndef UNDER_SANITIZER
#define UNDER_SANITIZER 0
#endif

bool under_sanitizer(void) { return UNDER_SANITIZER; }

bool limit_memory(size_t more) {
  unsigned long pages = 0;
  FILE *statm = fopen("/proc/self/statm", "r");
  if (UNDER_SANITIZER || statm == NULL) {
    if (statm != NULL) fclose(statm);
    return false;
  }
  int fields = fscanf(statm, "%lu", &pages);
  fclose(statm);
  size_t limit = pages * (size_t)sysconf(_SC_PAGESIZE) + more;
  return fields == 1 && setrlimit(RLIMIT_AS, &(struct rlimit){limit, limit}) == 0;
}
