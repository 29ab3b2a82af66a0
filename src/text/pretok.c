/* pretok.c — the Llama 3 split by hand; pretok.h has the pattern. */
#include "text/pretok.h"

#include <utf8proc.h>

#include "text/tok_work.h"

/* Letters and numbers of Unicode 15.1 and 16, which an older utf8proc does not know. Sorted. */
static const struct {
  uint32_t first, last;
  enum pretok_class class;
} newer[] = {
    {0x1c89, 0x1c8a, PRETOK_LETTER},   {0xa7cb, 0xa7cd, PRETOK_LETTER},   {0xa7da, 0xa7dc, PRETOK_LETTER},
    {0x105c0, 0x105f3, PRETOK_LETTER}, {0x10d40, 0x10d49, PRETOK_NUMBER}, {0x10d4a, 0x10d65, PRETOK_LETTER},
    {0x10d6f, 0x10d85, PRETOK_LETTER}, {0x10ec2, 0x10ec4, PRETOK_LETTER}, {0x11380, 0x11389, PRETOK_LETTER},
    {0x1138b, 0x1138b, PRETOK_LETTER}, {0x1138e, 0x1138e, PRETOK_LETTER}, {0x11390, 0x113b5, PRETOK_LETTER},
    {0x113b7, 0x113b7, PRETOK_LETTER}, {0x113d1, 0x113d1, PRETOK_LETTER}, {0x113d3, 0x113d3, PRETOK_LETTER},
    {0x116d0, 0x116e3, PRETOK_NUMBER}, {0x11bc0, 0x11be0, PRETOK_LETTER}, {0x11bf0, 0x11bf9, PRETOK_NUMBER},
    {0x13460, 0x143fa, PRETOK_LETTER}, {0x16100, 0x1611d, PRETOK_LETTER}, {0x16130, 0x16139, PRETOK_NUMBER},
    {0x16d40, 0x16d6c, PRETOK_LETTER}, {0x16d70, 0x16d79, PRETOK_NUMBER}, {0x18cff, 0x18cff, PRETOK_LETTER},
    {0x1ccf0, 0x1ccf9, PRETOK_NUMBER}, {0x1e5d0, 0x1e5ed, PRETOK_LETTER}, {0x1e5f0, 0x1e5f0, PRETOK_LETTER},
    {0x1e5f1, 0x1e5fa, PRETOK_NUMBER}, {0x2ebf0, 0x2ee5d, PRETOK_LETTER},
};

static enum pretok_class class_of_unassigned(uint32_t cp) {
  size_t lo = 0, hi = ARRAY_LEN(newer);
  while (lo < hi) {
    size_t mid = (lo + hi) / 2;
    if (newer[mid].last < cp) lo = mid + 1;
    else hi = mid;
  }
  return lo < ARRAY_LEN(newer) && newer[lo].first <= cp ? newer[lo].class : PRETOK_OTHER;
}

static bool is_space(uint32_t cp) {
  return (cp >= 0x09 && cp <= 0x0D) || cp == 0x20 || cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) ||
         cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

enum pretok_class pretok_class(uint32_t cp) {
  if (cp < 0x80) {
    if ((cp | 0x20) - 'a' < 26) return PRETOK_LETTER;
    if (cp - '0' < 10) return PRETOK_NUMBER;
    return is_space(cp) ? PRETOK_SPACE : PRETOK_OTHER;
  }
  switch (utf8proc_category((utf8proc_int32_t)cp)) {
  case UTF8PROC_CATEGORY_LU:
  case UTF8PROC_CATEGORY_LL:
  case UTF8PROC_CATEGORY_LT:
  case UTF8PROC_CATEGORY_LM:
  case UTF8PROC_CATEGORY_LO: return PRETOK_LETTER;
  case UTF8PROC_CATEGORY_ND:
  case UTF8PROC_CATEGORY_NL:
  case UTF8PROC_CATEGORY_NO: return PRETOK_NUMBER;
  case UTF8PROC_CATEGORY_CN: return class_of_unassigned(cp);
  default: return is_space(cp) ? PRETOK_SPACE : PRETOK_OTHER;
  }
}

struct character {
  uint32_t cp;
  enum pretok_class class;
  size_t end; /* offset of the next one */
};

/* The character at p + at, at < n; the text is known to be well formed. */
static inline struct character character_at(const char *p, size_t at) {
  const unsigned char *s = (const unsigned char *)p + at;
  TOK_WORK(1);
  uint32_t cp = s[0];
  size_t len = cp < 0x80 ? 1 : cp < 0xE0 ? 2 : cp < 0xF0 ? 3 : 4;
  if (len == 2) cp = (cp & 0x1F) << 6 | (s[1] & 0x3F);
  else if (len == 3) cp = (cp & 0x0F) << 12 | (uint32_t)(s[1] & 0x3F) << 6 | (s[2] & 0x3F);
  else if (len == 4) cp = (cp & 0x07) << 18 | (uint32_t)(s[1] & 0x3F) << 12 | (uint32_t)(s[2] & 0x3F) << 6 | (s[3] & 0x3F);
  return (struct character){.cp = cp, .class = pretok_class(cp), .end = at + len};
}

static bool is_line_end(char c) { return c == '\r' || c == '\n'; }

/* End of the run of one class that goes on at `at`. */
static size_t run_end(const char *p, size_t n, size_t at, enum pretok_class class) {
  while (at < n) {
    struct character c = character_at(p, at);
    if (c.class != class) break;
    at = c.end;
  }
  return at;
}

/* Bytes of a contraction without its apostrophe, 0 = none. */
static size_t contraction(const char *p, size_t n) {
  char a = n > 0 ? (char)(p[0] | 0x20) : 0, b = n > 1 ? (char)(p[1] | 0x20) : 0;
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 1;
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 2;
  return n > 1 && p[0] == '\xC5' && p[1] == '\xBF' ? 2 : 0;
}

/* White space that begins a word. */
static size_t space_word(const char *p, size_t n) {
  size_t at = 0, last = 0, line = 0; /* last: where the last character begins; line: behind the last line end */
  while (at < n) {
    struct character c = character_at(p, at);
    if (c.class != PRETOK_SPACE) break;
    last = at;
    at = c.end;
    if (c.cp == '\r' || c.cp == '\n') line = at;
  }
  if (line) return line;
  return at == n || !last ? at : last;
}

size_t pretok_llama3(const char *p, size_t n) {
  if (!n) return 0;
  struct character first = character_at(p, 0), second = {0};
  if (first.cp == '\'') {
    size_t more = contraction(p + 1, n - 1);
    if (more) return 1 + more;
  }
  if (first.class == PRETOK_LETTER) return run_end(p, n, first.end, PRETOK_LETTER);
  bool followed = first.end < n;
  if (followed) second = character_at(p, first.end);
  if (first.class == PRETOK_NUMBER) {
    if (!followed || second.class != PRETOK_NUMBER) return first.end;
    return second.end < n && character_at(p, second.end).class == PRETOK_NUMBER ? character_at(p, second.end).end : second.end;
  }
  if (followed && second.class == PRETOK_LETTER && !is_line_end(p[0])) return run_end(p, n, second.end, PRETOK_LETTER);
  if (first.class == PRETOK_OTHER || (first.cp == ' ' && followed && second.class == PRETOK_OTHER)) {
    size_t end = run_end(p, n, first.end, PRETOK_OTHER);
    for (; end < n && is_line_end(p[end]); end++) TOK_WORK(1);
    return end;
  }
  return space_word(p, n);
}
