/* mem.h — four lifetimes of memory, and hooks that let tests make each of them fail.
 *
 *   process   weights, pools, scratch     mem_big_alloc, at start only; failing is an error for the caller
 *   step      what one engine step needs  arena of fixed size, reset at the start of each step
 *   request   what one request needs      small allocations, all freed at its end
 *   message   one message in or out       struct buf (buf.h) with a hard cap
 *
 * Small allocations (xmalloc and friends) abort the process when the system has no memory left: nothing sensible
 * can be done then, and no caller has to check. Sizes that come from outside must be bounded before they get here.
 */
#ifndef CYGNET_MEM_H
#define CYGNET_MEM_H

#include "base/base.h"
#include "base/err.h"

void *xmalloc(size_t n_bytes);
void *xcalloc(size_t n, size_t elem_bytes); /* zeroed; a product that overflows aborts */
void *xrealloc(void *p, size_t n_bytes);
char *xstrdup(const char *s);
char *xstrndup(const char *s, size_t n); /* copies exactly n bytes and adds NUL */

/* For sizes that depend on outside data: NULL instead of an abort. Zeroed. Freed with free(). */
void *mem_try_alloc(size_t n_bytes);

/* Page-aligned zeroed memory straight from the system, huge pages where it gives them. `what` goes into the message:
 *   "weights: cannot get 2.3 GiB: Cannot allocate memory"
 * n_bytes 0 gives NULL and no error. mem_big_free takes the same n_bytes. */
void *mem_big_alloc(size_t n_bytes, const char *what, struct err *e);
/* The same for a block that is written at once, and whole, by those who will read it later: each page lies on the memory node of whoever writes it first,
 * and the two switches below are not heeded. */
void *mem_big_alloc_local(size_t n_bytes, const char *what, struct err *e);
/* From now on blocks get their memory from the system when they are allocated, not when they are first written: what a server has taken at start nobody
 * can take away later, and its resident size does not grow. One switch for the process. */
void mem_big_take_at_once(bool on);
/* From now on pages of blocks lie in turn on the memory nodes whose bits are set, for what all threads read and write alike; 0: where they are first written.
 * One switch for the process, too. */
void mem_big_spread(uint64_t nodes);
void mem_big_free(void *p, size_t n_bytes);

/* A bump allocator over one fixed block. arena_alloc never fails softly: asking for more than was planned is a broken
 * invariant (CHECK), because every plan is made at start. */
struct arena {
  unsigned char *base;
  size_t n_bytes; /* capacity */
  size_t used_bytes;
  size_t peak_bytes; /* highest used_bytes ever */
};
int arena_init(struct arena *a, size_t n_bytes, const char *what, struct err *e);
void arena_free(struct arena *a);
void *arena_alloc(struct arena *a, size_t n_bytes); /* 64-byte aligned, not zeroed */
static inline size_t arena_mark(const struct arena *a) { return a->used_bytes; }
static inline void arena_reset(struct arena *a, size_t mark) { a->used_bytes = mark; }

/* Bytes for people: "253 MB" style is never used; always binary: "1.2 GiB", "253.1 MiB", "640 B". buf of 32 bytes. */
const char *mem_human(size_t n_bytes, char buf[32]);
size_t mem_resident_bytes(void);           /* this process now, from /proc/self/statm; 0 if unknown */
size_t mem_peak_resident_bytes(void);      /* VmHWM */
bool mem_huge_pages(const char *sys_root); /* false: the system is told never to give huge pages. sys_root replaces "/sys" */
size_t mem_available_bytes(void);          /* what may still be taken: min(MemAvailable, cgroup limit - usage) */

/* Test hooks. After mem_fail_after(n) the n-th next call (1 = the very next) of mem_try_alloc, mem_big_alloc or
 * arena_init fails as if memory were short, once; 0 disarms. mem_fail_pending tells whether it is still to come. */
void mem_fail_after(int64_t n);
bool mem_fail_pending(void);
/* While a guard is up on a thread, any allocation through this header on that thread aborts with the phase's name. */
void mem_guard_begin(const char *phase);
void mem_guard_end(void);

#endif
