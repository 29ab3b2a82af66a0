/* str.h — slices of bytes, numbers from text, UTF-8 one step at a time.
 */
#ifndef CYGNET_STR_H
#define CYGNET_STR_H

#include "base/base.h"
#include "base/err.h"

struct str { /* borrows; not NUL terminated */
  const char *p;
  size_t n;
};

static inline struct str str_of(const char *p, size_t n) { return (struct str){p, n}; }
struct str str_c(const char *cstr);
bool str_eq(struct str a, struct str b);
bool str_is(struct str a, const char *cstr);
bool str_starts(struct str a, const char *prefix);
bool str_ends(struct str a, const char *suffix);
/* ASCII letters of either case are the same. */
bool str_is_nocase(struct str a, const char *cstr);
bool str_starts_nocase(struct str a, const char *prefix);
struct str str_trim_blanks(struct str s); /* without blanks and tabs at both ends */

/* Whole-string numbers: no blanks, no sign unless allowed by lo, no trailing bytes. Return false on anything else. */
bool str_to_i64(struct str s, int64_t lo, int64_t hi, int64_t *out);
bool str_to_f64(struct str s, double *out); /* finite decimal only */
/* "8", "8GiB", "512MiB", "1.5G", "4096K": bytes, binary units. */
bool str_to_bytes(struct str s, size_t *out);

/* Printable ASCII form for messages: other bytes as \xHH, cut to fit with "...". Returns buf. */
const char *str_escape(struct str s, char *buf, size_t buf_bytes);

/* Value of a hexadecimal digit in either case, -1 for any other byte. */
static inline int str_hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Decode the code point at p. Returns its length 1..4 and sets *cp; for ill-formed input returns the length of the
 * maximal subpart (>= 1, Unicode 3.9 / W3C) and sets *cp = 0xFFFD and *bad = true. n > 0. bad may be NULL. */
int utf8_step(const char *p, size_t n, uint32_t *cp, bool *bad);
int utf8_put(uint32_t cp, char out[4]); /* number of bytes written */
bool utf8_valid(const char *p, size_t n);
/* Number of trailing bytes that begin a sequence which could still become valid; 0..3. */
int utf8_incomplete_tail(const char *p, size_t n);

/* FNV-1a, for hash tables inside one process; never for keys that cross users. */
uint64_t hash_bytes(const void *p, size_t n, uint64_t seed);

#endif
