/* str.c — slices of bytes, numbers from text, UTF-8 one step at a time.
 *
 * Every function looks at the n bytes it was given and no further: a slice may end at the edge of mapped memory.
 */
#include "base/str.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct str str_c(const char *cstr) {
  return (struct str){cstr, strlen(cstr)};
}

bool str_eq(struct str a, struct str b) { return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0); }

bool str_is(struct str a, const char *cstr) { return str_eq(a, str_c(cstr)); }

bool str_starts(struct str a, const char *prefix) {
  size_t n = strlen(prefix);
  return n == 0 || (a.n >= n && memcmp(a.p, prefix, n) == 0);
}

bool str_ends(struct str a, const char *suffix) {
  size_t n = strlen(suffix);
  return n == 0 || (a.n >= n && memcmp(a.p + a.n - n, suffix, n) == 0);
}

bool str_starts_nocase(struct str a, const char *prefix) {
  size_t n = strlen(prefix);
  return n == 0 || (a.n >= n && strncasecmp(a.p, prefix, n) == 0);
}

bool str_is_nocase(struct str a, const char *cstr) { return a.n == strlen(cstr) && str_starts_nocase(a, cstr); }

struct str str_trim_blanks(struct str s) {
  while (s.n && (s.p[0] == ' ' || s.p[0] == '\t')) s = str_of(s.p + 1, s.n - 1);
  while (s.n && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\t')) s.n--;
  return s;
}

/* --- numbers ----------------------------------------------------------------------------------------------------- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static size_t count_digits(const char *p, size_t n) {
  size_t k = 0;
  while (k < n && is_digit(p[k])) k++;
  return k;
}

bool str_to_i64(struct str s, int64_t lo, int64_t hi, int64_t *out) {
  size_t at = 0;
  bool negative = s.n > 0 && s.p[0] == '-';
  if (negative) {
    if (lo >= 0) return false;
    at = 1;
  }
  if (at == s.n) return false;
  int64_t v = 0; /* built on the negative side, which reaches one further than the positive */
  for (; at < s.n; at++) {
    if (!is_digit(s.p[at])) return false;
    if (__builtin_mul_overflow(v, 10, &v) || __builtin_sub_overflow(v, s.p[at] - '0', &v)) return false;
  }
  if (!negative && __builtin_sub_overflow(0, v, &v)) return false;
  if (v < lo || v > hi) return false;
  *out = v;
  return true;
}

/* [-] digits [. digits] [e [+-] digits], with a digit on at least one side of the point. */
static bool is_decimal(const char *p, size_t n) {
  size_t at = n > 0 && p[0] == '-' ? 1 : 0;
  size_t whole = count_digits(p + at, n - at), fraction = 0;
  at += whole;
  if (at < n && p[at] == '.') {
    at++;
    fraction = count_digits(p + at, n - at);
    at += fraction;
  }
  if (whole + fraction == 0) return false;
  if (at < n && (p[at] == 'e' || p[at] == 'E')) {
    at++;
    if (at < n && (p[at] == '+' || p[at] == '-')) at++;
    size_t exponent = count_digits(p + at, n - at);
    if (exponent == 0) return false;
    at += exponent;
  }
  return at == n;
}

bool str_to_f64(struct str s, double *out) {
  char copy[512]; /* no double needs more digits to be told from its neighbours in practice; longer text is refused */
  if (s.n == 0 || s.n >= sizeof copy || !is_decimal(s.p, s.n)) return false;
  memcpy(copy, s.p, s.n);
  copy[s.n] = 0;
  /* The program that links us may have set a locale whose decimal point is a comma. "C" is static: nothing to free. */
  locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  double v = c_locale ? strtod_l(copy, NULL, c_locale) : strtod(copy, NULL);
  if (!isfinite(v)) return false;
  *out = v;
  return true;
}

/* "", "B", "K", "KiB", ... "T", "TiB", in either case. "KB" is refused: it would be 1000 to some and 1024 to others. */
static bool parse_unit(struct str s, uint64_t *unit) {
  static const char letters[] = "BKMGT";
  *unit = 1;
  if (s.n == 0) return true;
  char c = s.p[0] >= 'a' && s.p[0] <= 'z' ? (char)(s.p[0] - 'a' + 'A') : s.p[0];
  const char *found = c ? strchr(letters, c) : NULL;
  if (!found) return false;
  *unit = (uint64_t)1 << (10 * (found - letters));
  if (s.n == 1) return true;
  return c != 'B' && s.n == 3 && (s.p[1] == 'i' || s.p[1] == 'I') && (s.p[2] == 'b' || s.p[2] == 'B');
}

bool str_to_bytes(struct str s, size_t *out) {
  size_t n_whole = count_digits(s.p, s.n), n_fraction = 0, at = n_whole;
  int64_t whole = 0, fraction = 0;
  uint64_t unit, scale = 1;
  if (n_whole == 0 || !str_to_i64(str_of(s.p, n_whole), 0, INT64_MAX, &whole)) return false;
  if (at < s.n && s.p[at] == '.') {
    at++;
    n_fraction = count_digits(s.p + at, s.n - at);
    if (n_fraction == 0 || n_fraction > 6 || !str_to_i64(str_of(s.p + at, n_fraction), 0, INT64_MAX, &fraction)) return false;
    for (size_t i = 0; i < n_fraction; i++) scale *= 10;
    at += n_fraction;
  }
  if (!parse_unit(str_of(s.p + at, s.n - at), &unit)) return false;
  if (n_fraction > 0 && unit == 1) return false; /* half a byte */
  size_t bytes;
  if (size_mul_overflows((size_t)whole, unit, &bytes) || size_add_overflows(bytes, (size_t)fraction * unit / scale, &bytes)) return false;
  *out = bytes;
  return true;
}

const char *str_escape(struct str s, char *buf, size_t buf_bytes) {
  static const char hex[] = "0123456789abcdef";
  if (buf_bytes == 0) return "";
  size_t at = 0, fits = 0; /* fits: the last length after which "..." still has room */
  for (size_t i = 0; i < s.n; i++) {
    unsigned char c = (unsigned char)s.p[i];
    bool plain = c >= 0x20 && c < 0x7f;
    size_t need = plain ? 1 : 4;
    if (at + need + 1 > buf_bytes) {
      at = fits;
      for (int dots = 0; dots < 3 && at + 1 < buf_bytes; dots++) buf[at++] = '.';
      break;
    }
    if (plain) {
      buf[at] = (char)c;
    } else {
      buf[at] = '\\';
      buf[at + 1] = 'x';
      buf[at + 2] = hex[c >> 4];
      buf[at + 3] = hex[c & 15];
    }
    at += need;
    if (at + 3 + 1 <= buf_bytes) fits = at;
  }
  buf[at] = 0;
  return buf;
}

/* --- UTF-8 (Unicode 3.9, table 3-7) ------------------------------------------------------------------------------ */

/* Length that a lead byte announces, and the range of the byte after it; 0 when c cannot start a sequence. */
static int utf8_lead(unsigned char c, unsigned char *lo, unsigned char *hi) {
  *lo = 0x80;
  *hi = 0xbf;
  if (c < 0x80) return 1;
  if (c < 0xc2) return 0;
  if (c < 0xe0) return 2;
  if (c < 0xf0) {
    if (c == 0xe0) *lo = 0xa0; /* shorter form exists */
    if (c == 0xed) *hi = 0x9f; /* surrogates */
    return 3;
  }
  if (c < 0xf5) {
    if (c == 0xf0) *lo = 0x90;
    if (c == 0xf4) *hi = 0x8f; /* above U+10FFFF */
    return 4;
  }
  return 0;
}

/* How many bytes at p agree with the sequence its first byte announces (0 if it announces none); *want is its length. */
static int utf8_match(const char *p, size_t n, int *want) {
  unsigned char lo, hi;
  *want = utf8_lead((unsigned char)p[0], &lo, &hi);
  if (*want == 0) return 0;
  int got = 1;
  for (; got < *want && (size_t)got < n; got++) {
    unsigned char c = (unsigned char)p[got];
    if (c < lo || c > hi) break;
    lo = 0x80;
    hi = 0xbf;
  }
  return got;
}

int utf8_step(const char *p, size_t n, uint32_t *cp, bool *bad) {
  int want, got = utf8_match(p, n, &want);
  if (want == 0 || got < want) {
    *cp = 0xfffd;
    if (bad) *bad = true;
    return MAX(got, 1);
  }
  static const unsigned char lead_mask[5] = {0, 0x7f, 0x1f, 0x0f, 0x07};
  uint32_t v = (unsigned char)p[0] & lead_mask[want];
  for (int i = 1; i < want; i++) v = v << 6 | ((unsigned char)p[i] & 0x3f);
  *cp = v;
  return want;
}

int utf8_put(uint32_t cp, char out[4]) {
  if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000)) cp = 0xfffd;
  if (cp < 0x80) {
    out[0] = (char)cp;
    return 1;
  }
  int n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
  static const unsigned char lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
  for (int i = n - 1; i > 0; i--) {
    out[i] = (char)(0x80 | (cp & 0x3f));
    cp >>= 6;
  }
  out[0] = (char)(lead[n] | cp);
  return n;
}

bool utf8_valid(const char *p, size_t n) {
  for (size_t at = 0; at < n;) {
    int want, got = utf8_match(p + at, n - at, &want);
    if (want == 0 || got < want) return false;
    at += (size_t)want;
  }
  return true;
}

int utf8_incomplete_tail(const char *p, size_t n) {
  for (size_t tail = 1; tail <= 3 && tail <= n; tail++) {
    int want, got = utf8_match(p + n - tail, tail, &want);
    if (want == 0) continue; /* a continuation byte or one that never starts anything: look further back */
    return want > got && (size_t)got == tail ? (int)tail : 0;
  }
  return 0;
}

uint64_t hash_bytes(const void *p, size_t n, uint64_t seed) {
  const unsigned char *bytes = p;
  uint64_t h = 0xcbf29ce484222325u ^ seed;
  for (size_t i = 0; i < n; i++) h = (h ^ bytes[i]) * 0x100000001b3u;
  return h;
}
