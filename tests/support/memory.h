/**
 * @file memory.h
 * @brief Makes malloc fail in this process, so that "no memory" is tested and not only written.
 *
 * Read before: expect.h.
 */
#ifndef DKV_TESTS_MEMORY_H
#define DKV_TESTS_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/**
 * Limits this process's address space to what it has now and `more` bytes.
 * @param[in] more bytes that can still be allocated
 * @return false where that cannot be done (under a sanitizer, whose allocator would end the process)
 */
bool limit_memory(size_t more);

/** Was this built with the address sanitizer? Then everything is some ten times slower. @return the answer */
bool under_sanitizer(void);

#endif
