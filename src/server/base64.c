/* base64.c — bytes that came as text. */
#include "server/base64.h"

#include <string.h>
#include <strings.h>

enum { PIECE = 3 << 10 };

static int digit_of(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+' || c == '-') return 62;
  return c == '/' || c == '_' ? 63 : -1;
}

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/* The character at *at, percent-encoding undone; *at goes behind it. */
static int next_char(struct str s, size_t *at) {
  unsigned char c = (unsigned char)s.p[(*at)++];
  if (c != '%') return c;
  int high = *at < s.n ? str_hex_digit(s.p[*at]) : -1, low = *at + 1 < s.n ? str_hex_digit(s.p[*at + 1]) : -1;
  if (high < 0 || low < 0) return -1;
  *at += 2;
  return high << 4 | low;
}

static bool flush(struct buf *out, unsigned char *piece, size_t *n) {
  bool fits = buf_append(out, piece, *n);
  *n = 0;
  return fits;
}

int base64_decode(struct str s, struct buf *out, struct err *e) {
  unsigned char piece[PIECE];
  size_t n = 0, n_digits = 0, n_padding = 0;
  uint32_t bits = 0;
  bool fits = true;
  for (size_t at = 0; at < s.n && fits;) {
    size_t from = at;
    int c = next_char(s, &at), digit = c >= 0 && c < 0x80 ? digit_of((char)c) : -1;
    if (c >= 0 && is_space((char)c)) continue;
    if (c == '=' && (n_padding || n_digits % 4 >= 2) && n_padding < 2) {
      n_padding++;
      continue;
    }
    if (digit < 0 || n_padding)
      return err_set(e, ERR_BAD_INPUT, "expected base64, found %s at byte %zu",
                     n_padding ? "something behind its end" : "a character that is none of it", from);
    bits = bits << 6 | (uint32_t)digit;
    if (++n_digits % 4) continue;
    piece[n++] = (unsigned char)(bits >> 16);
    piece[n++] = (unsigned char)(bits >> 8);
    piece[n++] = (unsigned char)bits;
    if (n == sizeof piece) fits = flush(out, piece, &n);
  }
  if (n_digits % 4 == 1 || (n_padding && (n_digits + n_padding) % 4))
    return err_set(e, ERR_BAD_INPUT, "expected base64, found its end missing");
  if (n_digits % 4 >= 2) piece[n++] = (unsigned char)(n_digits % 4 == 2 ? bits >> 4 : bits >> 10);
  if (n_digits % 4 == 3) piece[n++] = (unsigned char)(bits >> 2);
  if (!fits || !flush(out, piece, &n)) return err_set(e, ERR_TOO_LARGE, "expected at most %zu bytes", out->max_bytes);
  return 0;
}

int base64_percent_decode(struct str s, struct buf *out, struct err *e) {
  for (size_t at = 0; at < s.n;) {
    size_t plain = 0, from = at;
    while (at + plain < s.n && s.p[at + plain] != '%') plain++;
    bool fits = buf_append(out, s.p + at, plain);
    at += plain;
    if (fits && at < s.n) {
      int c = next_char(s, &at);
      if (c < 0) return err_set(e, ERR_BAD_INPUT, "expected two hexadecimal digits after %% at byte %zu", from + plain);
      fits = buf_putc(out, (char)c);
    }
    if (!fits) return err_set(e, ERR_TOO_LARGE, "expected at most %zu bytes", out->max_bytes);
  }
  return 0;
}

bool base64_is_data_url(struct str s) { return str_starts_nocase(s, "data:"); }

int base64_data_url(struct str s, struct buf *out, struct err *e) {
  static const char mark[] = "base64";
  const char *comma = memchr(s.p, ',', s.n);
  if (!comma) return err_set(e, ERR_BAD_INPUT, "expected a comma between the type and the data of a data: address");
  struct str head = str_of(s.p, (size_t)(comma - s.p)), data = str_of(comma + 1, s.n - head.n - 1);
  while (head.n && is_space(head.p[head.n - 1])) head.n--;
  bool base64 = head.n >= sizeof mark - 1 && !strncasecmp(head.p + head.n - (sizeof mark - 1), mark, sizeof mark - 1);
  if (base64) head.n -= sizeof mark - 1; /* "; base64" is also said so */
  while (base64 && head.n && head.p[head.n - 1] == ' ') head.n--;
  base64 = base64 && head.n && head.p[head.n - 1] == ';';
  return base64 ? base64_decode(data, out, e) : base64_percent_decode(data, out, e);
}
