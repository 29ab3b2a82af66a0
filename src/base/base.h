/* base.h — the words every room uses: fixed types, sizes with checked arithmetic, checks.
 *
 * Glossary, for the whole tree
 *   row        one token in a batch: one line of every activation matrix
 *   slot       one token's place in a pool of keys and values
 *   page       P consecutive slots, the unit that is allocated
 *   position   absolute index of a token in its sequence, from 0
 *   n_q, n_kv  number of query heads and of key/value heads;  head_dim  width of a head
 *   window_tokens  number of keys a sliding layer sees, the query's own included
 * Shapes are written outermost first: [rows, n_q, head_dim].
 * Sizes: size_t for bytes, int for counts that fit, int64_t for products, int32_t for token and page ids.
 */
#ifndef CYGNET_BASE_H
#define CYGNET_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARRAY_LEN(a)           (sizeof(a) / sizeof((a)[0]))
#define MIN(a, b)              ((a) < (b) ? (a) : (b))
#define MAX(a, b)              ((a) > (b) ? (a) : (b))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))
#define ALWAYS_INLINE          inline __attribute__((always_inline))

/* align must be a power of two. */
static inline size_t align_up(size_t n, size_t align) { return (n + align - 1) & ~(align - 1); }
static inline int div_up(int n, int by) { return (n + by - 1) / by; }
/* The smallest power of two that is n at least. */
static inline size_t power_of_two(size_t n) {
  size_t p = 1;
  while (p < n) p *= 2;
  return p;
}

/* Sizes that come from outside are only ever combined with these: true when the result did not fit. */
static inline bool size_mul_overflows(size_t a, size_t b, size_t *out) { return __builtin_mul_overflow(a, b, out); }
static inline bool size_add_overflows(size_t a, size_t b, size_t *out) { return __builtin_add_overflow(a, b, out); }

/* CHECK stays in every build and is for broken invariants of the program itself, never for bad input.
 * DCHECK is compiled out unless CYGNET_DEBUG is set (test builds set it). */
_Noreturn void check_failed(const char *file, int line, const char *what);
#define CHECK(cond) ((cond) ? (void)0 : check_failed(__FILE__, __LINE__, #cond))
#ifdef CYGNET_DEBUG
#define DCHECK(cond) CHECK(cond)
#else
#define DCHECK(cond) ((void)sizeof(cond))
#endif

#endif
