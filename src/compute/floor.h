/* floor.h — what this machine can do at best, measured: the floors that `bench` holds the engine against.
 *
 * read bandwidth: all threads read disjoint parts of a buffer, as large as what is read by the work that will be held against it (up to 1 GiB: last-level
 *   caches have 300 MiB, and what they keep of a smaller buffer comes a third faster); the median of passes over it.
 * int8 peak: the level's multiply-add of 8-bit numbers on registers only (2 operations per product); 0 for the reference level.
 * float peak: bf16 products where the level has them, else float32 fused multiply-adds.
 * Each takes about 0.2 s; the two peaks are the best of several tries.
 */
#ifndef CYGNET_FLOOR_H
#define CYGNET_FLOOR_H

#include "base/workers.h"
#include "compute/kern.h"

struct machine_floor {
  double read_gb_s;  /* 1e9 bytes */
  double int8_gop_s; /* 1e9 operations */
  double float_gop_s;
  const char *float_name; /* "bf16", "f32" */
};
int floor_measure(const struct kern *k, struct workers *w, size_t read_bytes, struct machine_floor *out, struct err *e);

/* Sum of what lies there, n_bytes a multiple of 64, in the widest loads; so far ahead to the first-level cache, and so far to the second: as products of one
 * row do it. Some bytes behind the end are asked for, too. */
enum { FLOOR_READ_NEAR = 2048, FLOOR_READ_FAR = 8192 };
uint64_t floor_read_avx2(const void *p, size_t n_bytes), floor_read_avx512(const void *p, size_t n_bytes);

/* Register-only loops: n rounds; return the operations done. One set per level. */
double floor_int8_avx2(int n), floor_float_avx2(int n);
double floor_int8_avxvnni(int n);
double floor_int8_avx512(int n), floor_float_avx512(int n);
double floor_bf16_avx512(int n);
double floor_int8_amx(int n), floor_bf16_amx(int n);

#endif
