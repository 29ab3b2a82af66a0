/* schema_number.c — which numbers: ranges of decimals and multiples, as automata over their digits.
 *
 * A number is read digit by digit beside both bounds: less, equal or greater so far, the lengths of the whole parts deciding at their end. Whole numbers
 * are those of int64; numbers with bounds have at most DIGITS_MAX digits, so that no two are the same as a double and a bound holds for readers of doubles too.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/schema_impl.h"

enum { DIGITS_MAX = 15, WHOLE_DIGITS_MAX = 19, MULTIPLES_LISTED = 2000 };
enum { LESS, EQUAL, GREATER };

/* Where a number stands while its digits come. Everything that no longer matters is 0, so that equal places are the same. */
struct at {
  enum { AT_START, AT_ZERO, AT_WHOLE, AT_POINT, AT_FRACTION } phase;
  int digits;   /* of the whole part; behind the point: of all */
  int fraction; /* digits behind the point, while a bound is still equal */
  int lo, hi;   /* against the bounds */
  int64_t rest; /* of the division by `multiple` */
};

/* Numbers without sign from lo to hi. */
struct numbers {
  bool integer;
  int64_t multiple;
  struct bound lo, hi;
};

static int whole_length(const struct decimal *d) { return MAX(d->point, 1); }
static int digit_at(const struct decimal *d, int place) { return place >= 0 && place < d->n ? d->digits[place] - '0' : 0; }
static int whole_digit(const struct decimal *d, int i) { return d->point >= 1 ? digit_at(d, i) : 0; }
static int fraction_digit(const struct decimal *d, int i) { return digit_at(d, d->point + i); }
static bool more_fraction(const struct decimal *d, int from) { return d->point + from < d->n && d->n > 0; }

static int order_with(int order, int digit, int other) {
  return order != EQUAL ? order : digit < other ? LESS : digit > other ? GREATER : EQUAL;
}

/* The whole part is over: what it says. */
static int whole_verdict(const struct bound *at, int order, int digits) {
  int length = whole_length(&at->at);
  return digits < length ? LESS : digits > length ? GREATER : order;
}

static int verdict(const struct bound *at, const struct at *s, int order) {
  bool whole = s->phase == AT_ZERO || s->phase == AT_WHOLE;
  if (whole) order = whole_verdict(at, order, s->digits);
  return order == EQUAL && more_fraction(&at->at, whole ? 0 : s->fraction) ? LESS : order;
}

static bool may_end(const struct numbers *w, const struct at *s) {
  if (s->phase == AT_START || s->phase == AT_POINT || (w->multiple && s->rest)) return false;
  int lo = w->lo.set ? verdict(&w->lo, s, s->lo) : GREATER, hi = w->hi.set ? verdict(&w->hi, s, s->hi) : LESS;
  return (lo == GREATER || (lo == EQUAL && !w->lo.open)) && (hi == LESS || (hi == EQUAL && !w->hi.open));
}

/* One more digit, or the point (digit -1). False: not there. */
static bool step(const struct numbers *w, const struct at *s, int digit, struct at *to) {
  *to = *s;
  if (digit < 0) {
    if ((s->phase != AT_ZERO && s->phase != AT_WHOLE) || w->integer || s->digits >= DIGITS_MAX) return false;
    to->phase = AT_POINT;
    to->lo = w->lo.set ? whole_verdict(&w->lo, s->lo, s->digits) : EQUAL;
    to->hi = w->hi.set ? whole_verdict(&w->hi, s->hi, s->digits) : EQUAL;
    return true;
  }
  if (s->phase == AT_ZERO) return false;
  bool whole = s->phase == AT_START || s->phase == AT_WHOLE;
  if (s->digits >= (whole ? WHOLE_DIGITS_MAX : DIGITS_MAX)) return false;
  if (whole) {
    to->phase = s->phase == AT_START && !digit ? AT_ZERO : AT_WHOLE;
    if (w->lo.set) to->lo = order_with(s->lo, digit, whole_digit(&w->lo.at, s->digits));
    if (w->hi.set) to->hi = order_with(s->hi, digit, whole_digit(&w->hi.at, s->digits));
    if (w->multiple) to->rest = (int64_t)(((unsigned __int128)s->rest * 10 + (unsigned)digit) % (uint64_t)w->multiple);
  } else {
    to->phase = AT_FRACTION;
    if (w->lo.set) to->lo = order_with(s->lo, digit, fraction_digit(&w->lo.at, s->fraction));
    if (w->hi.set) to->hi = order_with(s->hi, digit, fraction_digit(&w->hi.at, s->fraction));
    bool open = (w->lo.set && to->lo == EQUAL) || (w->hi.set && to->hi == EQUAL);
    to->fraction = open ? s->fraction + 1 : 0;
  }
  to->digits++;
  return true;
}

struct places {
  struct lang_map map;
  struct at *v;
  int n, cap;
};

static int place_number(struct places *p, const struct at *s) {
  uint64_t key = (uint64_t)s->rest << 18 | (uint64_t)s->phase << 15 | (uint64_t)s->digits << 10 | (uint64_t)s->fraction << 5 |
                 (uint64_t)(s->lo * 3 + s->hi) << 1 | 1;
  int *at = lang_map_at(&p->map, key);
  if (*at >= 0) return *at;
  if (p->n == p->cap) p->v = xrealloc(p->v, (size_t)(p->cap = 2 * p->cap + 64) * sizeof *p->v);
  p->v[p->n] = *s;
  return *at = p->n++;
}

/* NULL: too large. */
static struct lang *digits_language(const struct numbers *w) {
  if (w->multiple > LANG_STATES_MAX) return NULL;
  struct places p = {0};
  struct lang *l = lang_new();
  place_number(&p, &(struct at){.lo = EQUAL, .hi = EQUAL});
  for (int i = 0; i < p.n && p.n <= LANG_STATES_MAX; i++) {
    struct at s = p.v[i], to;
    lang_state(l, may_end(w, &s));
    if (step(w, &s, -1, &to)) lang_edge(l, '.', '.', place_number(&p, &to));
    for (int digit = 0; digit < 10; digit++)
      if (step(w, &s, digit, &to)) lang_edge(l, (uint32_t)('0' + digit), (uint32_t)('0' + digit), place_number(&p, &to));
  }
  bool good = l->n_states == p.n;
  free(p.v);
  lang_map_free(&p.map);
  if (good) return lang_finish(l);
  lang_delete(l);
  return NULL;
}

/* The multiples between two whole bounds, one by one, when they are few. */
static struct lang *listed_multiples(const struct numbers *w) {
  int64_t lo, hi, m = w->multiple;
  if (!w->hi.set || !decimal_to_i64(&w->lo.at, &lo) || !decimal_to_i64(&w->hi.at, &hi)) return NULL;
  if (w->lo.open && lo == INT64_MAX) return lang_texts(NULL, 0);
  lo += w->lo.open, hi -= w->hi.open;
  int64_t first = lo / m + (lo % m != 0), last = hi < 0 ? -1 : hi / m;
  if (last - first >= MULTIPLES_LISTED) return NULL;
  struct str texts[MULTIPLES_LISTED];
  char *digits = xcalloc(MULTIPLES_LISTED, 24);
  int n = 0;
  for (int64_t k = first; k <= last; k++, n++) {
    struct buf text;
    buf_init(&text, 24);
    buf_printf(&text, "%lld", (long long)(k * m));
    memcpy(digits + 24 * n, buf_cstr(&text), text.len);
    texts[n] = str_of(digits + 24 * n, text.len);
    buf_free(&text);
  }
  struct lang *l = lang_texts(texts, n);
  free(digits);
  return l;
}

/* ---- excluded numbers --------------------------------------------------------------------------------------------------------------------- */

/* All ways to write this number without sign and exponent: 12, 12.0, 12.00. */
static struct lang *spellings(const struct decimal *d) {
  struct lang *l = lang_new();
  int whole = whole_length(d), n = 0, fraction = MAX(0, d->n - d->point);
  for (int i = 0; i < whole; i++, n++) {
    uint32_t c = (uint32_t)('0' + whole_digit(d, i));
    lang_state(l, false);
    lang_edge(l, c, c, n + 1);
  }
  lang_state(l, !fraction);
  n++;
  lang_edge(l, '.', '.', n);
  for (int i = 0; i < MAX(fraction, 1); i++, n++) {
    uint32_t c = (uint32_t)('0' + fraction_digit(d, i));
    lang_state(l, false);
    lang_edge(l, c, c, n + 1);
  }
  lang_state(l, true);
  lang_edge(l, '0', '0', n);
  return lang_finish(l);
}

static int without_excluded(struct schema_builder *b, const struct branch *x, bool negative, struct lang **l) {
  const json_t *v;
  for (int i = 0; i < x->excluded.n; i++)
    for (size_t k = 0; (v = schema_values(x->excluded.v[i], k)); k++) {
      if (!json_is_number(v) || !schema_lists(x->excluded.v[i], v)) continue;
      struct decimal d = decimal_of(v);
      if (d.negative != negative || abs(d.point) > 40) continue;
      struct lang *no = spellings(&d), *left = lang_without(*l, no);
      lang_delete(no);
      if (!left) return schema_fail(b, x->excluded.v[i], "enum", ": needs more than %d states", LANG_STATES_MAX);
      *l = schema_keep(b, left);
      if (b->work > SCHEMA_WORK_MAX) return schema_too_large(b);
    }
  return 0;
}

/* ---- both signs ----------------------------------------------------------------------------------------------------------------------- */

static int half(struct schema_builder *b, const struct branch *x, bool negative, struct lang **l) {
  struct numbers w = {.integer = x->integer, .multiple = x->multiple};
  struct bound from = negative ? x->hi : x->lo, to = negative ? x->lo : x->hi;
  from.at.negative = negative && from.at.n ? !from.at.negative : from.at.negative;
  to.at.negative = negative && to.at.n ? !to.at.negative : to.at.negative;
  *l = NULL;
  if (to.set && to.at.negative) return 0;
  if (!from.set || from.at.negative) from = (struct bound){.set = true, .at = {0}};
  if (negative && !from.at.n) from.open = true; /* -0 is written 0 */
  w.lo = from;
  w.hi = to;
  struct bound most = {.set = true, .at = decimal_of_i64(INT64_MAX)};
  if (x->integer && (!w.hi.set || decimal_order(&w.hi.at, &most.at) > 0)) w.hi = most;
  if (w.lo.at.point > WHOLE_DIGITS_MAX) return 0; /* beyond what is written */
  struct lang *made = w.multiple ? listed_multiples(&w) : NULL;
  if (!made) made = digits_language(&w);
  if (!made)
    return schema_fail(b, x->multiple_in ? x->multiple_in : b->root, "multipleOf",
                       ": multiples of %lld in so wide a range need more than %d states", (long long)x->multiple, LANG_STATES_MAX);
  *l = schema_keep(b, made);
  if (without_excluded(b, x, negative, l) != 0) return -1;
  if (lang_is_empty(*l)) *l = NULL;
  return 0;
}

/* With exponents only where no digit has to be looked at: d.ddde-NN is between 0 and 1, d.ddde+NN with NN from 10 on is 1e10 or more. */
static void exponents(struct form *f) {
  const struct bound *lo = &f->b.lo, *hi = &f->b.hi;
  struct decimal one = decimal_of_i64(1), minus_one = decimal_of_i64(-1), large = decimal_of_i64(10000000000),
                 minus_large = decimal_of_i64(-10000000000);
  bool above = !lo->set || lo->at.negative || !lo->at.n, below = !hi->set || !hi->at.negative; /* 0, or close to it, is within */
  f->small[0] = above && (!hi->set || decimal_order(&hi->at, &one) >= 0);
  f->small[1] = below && (!lo->set || decimal_order(&lo->at, &minus_one) <= 0);
  f->large[0] = !hi->set && (!lo->set || decimal_order(&lo->at, &large) <= 0);
  f->large[1] = !lo->set && (!hi->set || decimal_order(&hi->at, &minus_large) >= 0);
}

int schema_number(struct schema_builder *b, struct form *f) {
  const struct branch *x = &f->b;
  bool plain = !x->lo.set && !x->hi.set && !x->multiple && !x->excluded.n;
  if (plain && !x->integer) return 0; /* any_number of schema_emit.c */
  if (half(b, x, false, &f->positive) != 0 || half(b, x, true, &f->negative) != 0) return -1;
  f->empty = !f->positive && !f->negative;
  if (!x->integer && !x->excluded.n) exponents(f);
  return 0;
}
