/**
 * @file cpu.h
 * @brief The two backends that live on this floor: "ref", the definition in double, and "cpu", tiles and threads.
 *
 * Users find them by name with dkv_backend_find; the tables are declared here for the two files that define them.
 *
 * Read before: common/backend.h.  Read next: backend_cpu.c, attention/ref_fwd.c.
 */
#ifndef DKV_CPU_H
#define DKV_CPU_H

#include "common/backend.h"

DKV_BEGIN_C

/** The definition in double, no threads: what everything else is judged by. */
extern const dkv_backend dkv_backend_ref_table;

/** Tiled attention with OpenMP. */
extern const dkv_backend dkv_backend_cpu_table;

DKV_END_C
#endif
