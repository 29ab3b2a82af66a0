/* answers.c — answers in texts. Patterns are written out: there are few, and what each takes is visible. */
#include "eval/answers.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"

enum { LETTERS_MAX = 26 };

/* ---- text ------------------------------------------------------------------------------------------------------------------ */

/* The code point at p and its length; bytes that are not UTF-8 are one each, and no character that any rule knows. */
static int32_t char_at(const char *p, const char *end, size_t *n) {
  utf8proc_int32_t c;
  utf8proc_ssize_t got = utf8proc_iterate((const utf8proc_uint8_t *)p, end - p, &c);
  *n = got > 0 ? (size_t)got : 1;
  return got > 0 ? c : -1;
}

/* White space as the harnesses' language strips and splits it. */
static bool is_space(int32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
         c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static struct str strip(struct str s) {
  size_t n;
  const char *end = s.p + s.n;
  while (s.p < end && is_space(char_at(s.p, end, &n))) s.p += n;
  while (end > s.p) {
    const char *last = end - 1;
    while (last > s.p && ((unsigned char)*last & 0xc0) == 0x80) last--;
    if (!is_space(char_at(last, end, &n)) || last + n != end) break;
    end = last;
  }
  return str_of(s.p, (size_t)(end - s.p));
}

static struct str strip_byte(struct str s, char c) {
  while (s.n && s.p[0] == c) s.p++, s.n--;
  while (s.n && s.p[s.n - 1] == c) s.n--;
  return s;
}

static size_t count_chars(struct str s) {
  size_t count = 0, n;
  for (const char *p = s.p, *end = s.p + s.n; p < end; p += n, count++) char_at(p, end, &n);
  return count;
}

static int count_words(struct str s) {
  int words = 0;
  bool inside = false;
  size_t n;
  for (const char *p = s.p, *end = s.p + s.n; p < end; p += n) {
    bool space = is_space(char_at(p, end, &n));
    words += !space && !inside;
    inside = !space;
  }
  return words;
}

static void put_lower(struct buf *b, struct str s) {
  size_t n;
  for (const char *p = s.p, *end = s.p + s.n; p < end; p += n) {
    int32_t c = char_at(p, end, &n);
    utf8proc_uint8_t out[4];
    if (c < 0) buf_append(b, p, n);
    else buf_append(b, out, (size_t)utf8proc_encode_char(utf8proc_tolower(c), out));
  }
}

/* Where part begins last; -1: nowhere. An empty part begins at the end. */
static int64_t find_last(struct str s, const char *part, size_t n) {
  for (size_t i = s.n + 1; i-- > 0;)
    if (n <= s.n - i && !memcmp(s.p + i, part, n)) return (int64_t)i;
  return -1;
}
static bool contains(struct str s, const char *part, size_t n) { return n == 0 || (s.n && memmem(s.p, s.n, part, n)); }

/* The text without its commas. */
static void put_without_commas(struct buf *b, struct str s) {
  for (size_t i = 0; i < s.n; i++)
    if (s.p[i] != ',') buf_putc(b, s.p[i]);
}

/* ---- numbers --------------------------------------------------------------------------------------------------------------- */

static bool is_any_digit(int32_t c) { return c >= 0 && utf8proc_category(c) == UTF8PROC_CATEGORY_ND; }

char *answer_last_integer(struct str text) {
  struct str last = {NULL, 0};
  bool foreign = false; /* digits of other scripts are digits, but make no number */
  struct buf b;
  buf_init(&b, 0);
  put_without_commas(&b, text);
  size_t n;
  for (const char *p = buf_cstr(&b), *end = p + b.len; p < end;) {
    if (!is_any_digit(char_at(p, end, &n))) {
      p += n;
      continue;
    }
    last.p = p;
    foreign = false;
    while (p < end && is_any_digit(char_at(p, end, &n))) {
      foreign |= n > 1;
      p += n;
    }
    last.n = (size_t)(p - last.p);
  }
  size_t zeros = 0;
  while (zeros < last.n && last.p[zeros] == '0') zeros++;
  char *found = NULL;
  if (last.n && !foreign) {
    if (zeros == last.n) found = xstrdup("0");
    else if (zeros == 0) found = xstrndup(last.p, last.n);
  }
  buf_free(&b);
  return found;
}

/* -?digits(.digits)? at p: its length, 0: none. */
static size_t number_at(const char *p, const char *end) {
  const char *start = p;
  if (p < end && *p == '-') p++;
  const char *digits = p;
  while (p < end && is_digit(*p)) p++;
  if (p == digits) return 0;
  if (p + 1 < end && *p == '.' && is_digit(p[1]))
    for (p++; p < end && is_digit(*p);) p++;
  return (size_t)(p - start);
}

/* Sign, digits without zeros in front, fraction without zeros behind. */
static char *canonical_number(struct str s) {
  struct buf b;
  buf_init(&b, 0);
  bool negative = s.n && s.p[0] == '-';
  if (negative) s.p++, s.n--;
  size_t whole = 0;
  while (whole < s.n && s.p[whole] != '.') whole++;
  size_t n = s.n;
  if (whole < n) {
    while (n > whole + 1 && s.p[n - 1] == '0') n--;
    if (n == whole + 1) n = whole;
  }
  size_t from = 0;
  while (from + 1 < whole && s.p[from] == '0') from++;
  if (negative && !(n == whole && whole - from == 1 && s.p[from] == '0')) buf_putc(&b, '-');
  buf_append(&b, s.p + from, n - from);
  return buf_take(&b, NULL);
}

static char *last_number(struct str text) {
  struct str last = {NULL, 0};
  struct buf b;
  buf_init(&b, 0);
  put_without_commas(&b, text);
  for (const char *p = buf_cstr(&b), *end = p + b.len; p < end;) {
    size_t n = number_at(p, end);
    if (n) last = str_of(p, n);
    p += n ? n : 1;
  }
  char *found = last.n ? canonical_number(last) : NULL;
  buf_free(&b);
  return found;
}

/* A number as the harnesses' language reads one from text: signs, exponents, infinity, digits with _ between. */
static bool read_float(struct str s, double *out) {
  char text[512];
  size_t n = 0;
  s = strip(s);
  if (s.n == 0 || s.n >= sizeof text) return false;
  for (size_t i = 0; i < s.n; i++) {
    char c = s.p[i];
    if (c == '_' && i && i + 1 < s.n && is_digit(s.p[i - 1]) && is_digit(s.p[i + 1])) continue;
    if (!is_digit(c) && !strchr("+-.eEinfatyINFATY", c)) return false; /* no hexadecimal, no NUL */
    text[n++] = c;
  }
  text[n] = 0;
  char *end;
  errno = 0;
  *out = strtod(text, &end);
  return end == text + n;
}

/* ---- the line of an answer ----------------------------------------------------------------------------------------------------- */

/* What follows "answer", blanks, ":" and blanks, up to the end of its line: the first such place, or the last. */
static bool answer_line(struct str text, struct str *line) {
  const char *end = text.p + text.n;
  size_t n;
  for (const char *p = text.p; p + 6 <= end; p++) {
    if (strncasecmp(p, "answer", 6)) continue;
    const char *q = p + 6;
    while (q < end && is_space(char_at(q, end, &n))) q += n;
    if (q == end || *q != ':') continue;
    q++;
    while (q < end && is_space(char_at(q, end, &n))) q += n;
    if (q == end) return false; /* later ones have less behind them */
    const char *stop = memchr(q, '\n', (size_t)(end - q));
    *line = str_of(q, (size_t)((stop ? stop : end) - q));
    return true;
  }
  return false;
}

/* Without the marks that set an answer off: **42**, $42$, `42`, \(42\), \boxed{42}, a full stop. */
static struct str peel(struct str s) {
  for (struct str before = {NULL, 0}; before.n != s.n || before.p != s.p;) {
    before = s;
    s = strip(s);
    for (const char *c = "*$`_."; *c; c++)
      if (*c != '.') s = strip_byte(s, *c);
      else if (s.n > 1 && s.p[s.n - 1] == '.') s.n--;
    static const struct { const char *open, *close; } pairs[] = {{"\\boxed{", "}"}, {"\\(", "\\)"}, {"\\[", "\\]"}, {"\\text{", "}"}};
    for (size_t i = 0; i < ARRAY_LEN(pairs); i++)
      if (str_starts(s, pairs[i].open) && str_ends(s, pairs[i].close) && s.n >= strlen(pairs[i].open) + strlen(pairs[i].close)) {
        s.p += strlen(pairs[i].open);
        s.n -= strlen(pairs[i].open) + strlen(pairs[i].close);
      }
  }
  return s;
}

/* 42, 042 and 42.0 are 42; what is no integer from 0 to 999 stays as it is. */
static char *contest_integer(struct str s) {
  double v;
  char text[32];
  if (read_float(s, &v) && isfinite(v) && trunc(v) >= 0 && trunc(v) <= 999) {
    snprintf(text, sizeof text, "%d", (int)v);
    return xstrdup(text);
  }
  return xstrndup(s.p, s.n);
}

/* ---- letters ------------------------------------------------------------------------------------------------------------------ */

/* The last of the options that were found; where[i] is what it is ordered by. The first of equals. */
static int latest(const bool *found, const int64_t *where, int n) {
  int best = -1;
  for (int i = 0; i < n; i++)
    if (found[i] && (best < 0 || where[i] > where[best])) best = i;
  return best;
}

/* Options whose letter stands between two pieces of text; ordered by where it does between blanks or brackets. */
static int find_letters(struct str s, int n, const char *before, const char *after) {
  bool found[LETTERS_MAX] = {0};
  int64_t where[LETTERS_MAX];
  bool brackets = before[0] == '(';
  int any = 0;
  for (int i = 0; i < n; i++) {
    char piece[8], ordered[8];
    snprintf(piece, sizeof piece, "%s%c%s", before, 'A' + i, after);
    snprintf(ordered, sizeof ordered, brackets ? "(%c)" : " %c ", 'A' + i);
    found[i] = contains(s, piece, strlen(piece));
    where[i] = find_last(s, ordered, 3);
    any += found[i];
  }
  return any ? latest(found, where, n) : -1;
}

static int find_option_text(const struct answer_key *k, struct str s) {
  bool found[LETTERS_MAX] = {0};
  int64_t where[LETTERS_MAX];
  struct buf lower, option;
  buf_init(&lower, 0);
  buf_init(&option, 0);
  put_lower(&lower, s);
  for (int i = 0; i < k->n_options; i++) {
    buf_clear(&option);
    put_lower(&option, str_c(k->options[i]));
    struct str in = str_of(buf_cstr(&lower), lower.len);
    found[i] = contains(in, buf_cstr(&option), option.len);
    where[i] = find_last(in, buf_cstr(&option), option.len);
  }
  buf_free(&lower);
  buf_free(&option);
  return latest(found, where, k->n_options);
}

static int find_letter(const struct answer_key *k, struct str text) {
  for (const char *c = ",.!?;:'"; *c; c++) text = strip_byte(text, *c);
  struct buf b;
  buf_init(&b, 0);
  buf_putc(&b, ' ');
  buf_append(&b, text.p, text.n);
  buf_putc(&b, ' ');
  struct str s = str_of(b.data, b.len);
  int found = find_letters(s, k->n_options, "(", ")");
  if (found < 0) found = find_letters(s, k->n_options, "", " ");
  if (found < 0) found = find_letters(s, k->n_options, "", ".");
  if (found < 0 && count_words(s) > 5) found = find_option_text(k, s);
  buf_free(&b);
  return found;
}

static int find_letter_line(const struct answer_key *k, struct str text) {
  int64_t at = find_last(text, "Answer:", 7);
  int found = -1, n = 0;
  if (at >= 0)
    for (int i = 0; i < k->n_options; i++)
      if (memchr(text.p + at + 7, 'A' + i, text.n - (size_t)at - 7)) found = i, n++;
  return n == 1 ? found : find_letter(k, text);
}

/* ---- open answers -------------------------------------------------------------------------------------------------------------- */

struct said { /* one thing that a text may mean by its answer: a number rounded to two places, or words */
  bool number;
  double value;
  char *words; /* owned */
};
struct saids {
  struct said *v;
  int n, cap;
};

static void add_said(struct saids *a, bool number, double value, char *words) {
  if (a->n == a->cap) a->v = xrealloc(a->v, (size_t)(a->cap = a->cap ? 2 * a->cap : 8) * sizeof *a->v);
  a->v[a->n++] = (struct said){number, value, words};
}

static void free_saids(struct saids *a) {
  for (int i = 0; i < a->n; i++) free(a->v[i].words);
  free(a->v);
}

/* One character alone must have a blank beside it, or it would be found in anything. */
static void add_normal(struct saids *a, struct str s) {
  s = strip(s);
  struct buf b;
  double v;
  char text[400];
  buf_init(&b, 0);
  put_without_commas(&b, s);
  if (read_float(str_of(buf_cstr(&b), b.len), &v)) {
    snprintf(text, sizeof text, "%.2f", v);
    add_said(a, true, strtod(text, NULL), NULL);
    buf_free(&b);
    return;
  }
  buf_clear(&b);
  put_lower(&b, s);
  if (count_chars(str_of(buf_cstr(&b), b.len)) == 1) {
    struct buf front;
    buf_init(&front, 0);
    buf_printf(&front, " %s", buf_cstr(&b));
    buf_putc(&b, ' ');
    add_said(a, false, 0, buf_take(&front, NULL));
  }
  add_said(a, false, 0, buf_take(&b, NULL));
}

static bool is_word(int32_t c) {
  if (c == '_') return true;
  utf8proc_category_t k = c < 0 ? UTF8PROC_CATEGORY_CN : utf8proc_category(c);
  return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) || (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO);
}
static bool word_at(const char *p, const char *end) {
  size_t n;
  return p < end && is_word(char_at(p, end, &n));
}
static bool word_before(const char *start, const char *p) {
  if (p == start) return false;
  const char *q = p - 1;
  size_t n;
  while (q > start && ((unsigned char)*q & 0xc0) == 0x80) q--;
  return is_word(char_at(q, p, &n));
}
static const char *skip_digits(const char *p, const char *end) {
  while (p < end && is_digit(*p)) p++;
  return p;
}

/* e, a sign or none, a digit. */
static bool exponent_at(const char *p, const char *end) {
  if (p == end || (*p != 'e' && *p != 'E')) return false;
  p++;
  if (p < end && (*p == '+' || *p == '-')) p++;
  return p < end && is_digit(*p);
}

/* Each of these: the end of a number that begins at p, after its sign; NULL: none does. start: of the text. */

/* 1,234,567 between what are no letters or digits */
static const char *number_with_commas(const char *start, const char *p, const char *end) {
  const char *q = skip_digits(p, end), *last = NULL;
  if (q == p || q - p > 3 || word_before(start, p)) return NULL;
  while (end - q >= 4 && q[0] == ',' && is_digit(q[1]) && is_digit(q[2]) && is_digit(q[3])) {
    q += 4;
    if (!word_at(q, end)) last = q;
  }
  return last;
}

/* 1e-9, 2.5E10 */
static const char *number_with_exponent(const char *start, const char *p, const char *end) {
  (void)start;
  const char *q = skip_digits(p, end);
  if (q == p) return NULL;
  if (q + 1 < end && *q == '.' && is_digit(q[1])) q = skip_digits(q + 1, end);
  if (!exponent_at(q, end)) return NULL;
  q++;
  if (!is_digit(*q)) q++;
  return skip_digits(q, end);
}

/* 3.14, .5, 42: not before an exponent, a comma or a digit */
static const char *number_plain(const char *start, const char *p, const char *end) {
  (void)start;
  const char *q = skip_digits(p, end);
  if (q + 1 < end && *q == '.' && is_digit(q[1])) {
    const char *r = skip_digits(q + 1, end);
    if (!exponent_at(r, end) && !(r < end && *r == ',')) return r;
  }
  if (q == p || word_at(q, end)) return NULL;
  return q < end && *q == ',' ? NULL : q;
}

static void add_numbers(struct saids *a, struct str s) {
  static const char *(*const kinds[])(const char *, const char *, const char *) = {number_with_commas, number_with_exponent, number_plain};
  const char *end = s.p + s.n;
  for (size_t k = 0; k < ARRAY_LEN(kinds); k++)
    for (const char *p = s.p; p < end;) {
      const char *digits = p + (*p == '-'), *stop = digits < end ? kinds[k](s.p, digits, end) : NULL;
      if (stop) {
        add_normal(a, str_of(p, (size_t)(stop - p)));
        p = stop;
      } else if (is_digit(*p)) p = skip_digits(p, end); /* what is no number from its first digit on is none from the next one */
      else p++;
    }
}

/* The shortest end of a line after one of the words that announce an answer; n 0: there is none. */
static struct str announced(struct str line, bool last) {
  static const char *const words[] = {"could be ", "so ", "is ", "thus ", "therefore ", "final ", "answer ", "result ", "="};
  struct str best = {NULL, 0};
  for (size_t i = 0; i < ARRAY_LEN(words) - !last; i++) {
    size_t n = strlen(words[i]);
    int64_t at = find_last(line, words[i], n);
    if (at < 0) continue;
    struct str tail = strip(str_of(line.p + at + n, line.n - (size_t)at - n));
    if (best.n == 0 || count_chars(tail) < count_chars(best)) best = tail;
  }
  if (best.n == 1 && strchr(":,.!?;'", best.p[0])) best.n = 0;
  return best;
}

static void read_open(struct saids *a, struct str text) {
  struct buf b;
  buf_init(&b, 0);
  put_lower(&b, strip_byte(strip(text), '.'));
  struct str all = str_of(buf_cstr(&b), b.len), *keys = NULL;
  int n = 0;
  for (const char *p = all.p, *end = all.p + all.n; p <= end;) {
    const char *stop = p < end ? memchr(p, '\n', (size_t)(end - p)) : NULL;
    if (!stop) stop = end;
    struct str key = announced(str_of(p, (size_t)(stop - p)), stop == end);
    if (key.n) {
      keys = xrealloc(keys, (size_t)(n + 1) * sizeof *keys);
      keys[n++] = key;
    }
    p = stop + 1;
  }
  if (n == 0) {
    keys = xrealloc(keys, sizeof *keys);
    keys[n++] = all;
  }
  for (int i = 0; i < n; i++) add_normal(a, keys[i]);
  for (int i = 0; i < n; i++) add_numbers(a, keys[i]);
  free(keys);
  buf_free(&b);
}

static bool grade_open(const struct answer_key *k, struct str text, char **found) {
  struct saids said = {0}, right = {0};
  bool good = false;
  struct buf shown;
  buf_init(&shown, 0);
  read_open(&said, text);
  for (int i = 0; i < k->n_expected; i++) add_normal(&right, str_c(k->expected[i]));
  for (int i = 0; i < said.n; i++) {
    const struct said *s = &said.v[i];
    if (s->number) buf_printf(&shown, "%s%.12g", i ? " | " : "", s->value);
    else buf_printf(&shown, "%s%s", i ? " | " : "", s->words);
    for (int j = 0; j < right.n && !good; j++) {
      const struct said *r = &right.v[j];
      good = s->number == r->number && (s->number ? s->value == r->value : strstr(s->words, r->words) != NULL);
    }
  }
  free_saids(&said);
  free_saids(&right);
  *found = strip(text).n ? buf_take(&shown, NULL) : NULL;
  buf_free(&shown);
  return good && *found;
}

/* ---- all rules ------------------------------------------------------------------------------------------------------------------- */

bool answer_grade(const struct answer_key *k, struct str text, char **found) {
  struct str line;
  int letter;
  *found = NULL;
  switch (k->rule) {
  case ANSWER_LAST_INTEGER: *found = answer_last_integer(text); break;
  case ANSWER_LAST_NUMBER: *found = last_number(text); break;
  case ANSWER_LINE:
    if (answer_line(text, &line)) *found = contest_integer(peel(line));
    break;
  case ANSWER_LETTER:
  case ANSWER_LETTER_LINE:
    letter = k->rule == ANSWER_LETTER ? find_letter(k, text) : find_letter_line(k, text);
    if (letter >= 0) *found = xstrndup((const char[]){(char)('A' + letter)}, 1);
    break;
  case ANSWER_OPEN: return grade_open(k, text, found);
  }
  for (int i = 0; *found && i < k->n_expected; i++)
    if (!strcmp(*found, k->expected[i])) return true;
  return false;
}
