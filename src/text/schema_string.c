/* schema_string.c — which strings: patterns, formats, lengths, all as one automaton. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/schema_impl.h"

/* ---- formats ------------------------------------------------------------------------------------------------------------------------ */

#define YEAR "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
#define LEAP "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
#define DATE                                                                                                                               \
  "(" YEAR "-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define HOUR   "([01][0-9]|2[0-3])"
#define TIME   HOUR ":[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]" HOUR ":[0-5][0-9])"
#define PERIOD "T([0-9]{1,9}H([0-9]{1,9}M([0-9]{1,9}S)?)?|[0-9]{1,9}M([0-9]{1,9}S)?|[0-9]{1,9}S)"
#define DAYS   "([0-9]{1,9}D|[0-9]{1,9}M([0-9]{1,9}D)?|[0-9]{1,9}Y([0-9]{1,9}M([0-9]{1,9}D)?)?)"
#define LABEL  "[A-Za-z0-9]{1,30}(-[A-Za-z0-9]{1,15}){0,2}"
#define LAST   "[A-Za-z][A-Za-z0-9]{0,29}(-[A-Za-z0-9]{1,15}){0,2}"
#define HOST   "(" LABEL "\\.){0,3}" LAST
#define ATOM   "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
#define OCTET  "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4   OCTET "(\\." OCTET "){3}"
#define HEX4   "[0-9A-Fa-f]{1,4}"
#define IPV6                                                                                                                               \
  "((" HEX4 ":){7}" HEX4 "|(" HEX4 ":){1,6}:" HEX4 "|(" HEX4 ":){1,5}(:" HEX4 "){2}|(" HEX4 ":){1,4}(:" HEX4 "){3}|(" HEX4                 \
  ":){1,3}(:" HEX4 "){4}|(" HEX4 ":){1,2}(:" HEX4 "){5}|" HEX4 ":(:" HEX4 "){6}|:(:" HEX4 "){1,7}|(" HEX4 ":){1,7}:|::)"
#define PCHAR   "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
#define POINTER "(/([^/~]|~[01])*)*"
#define TAIL    "(\\?([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*)?(#([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*)?"

/* Each is narrower than its standard where the standards' readers do not agree: years from 1, no second 60, names of hosts up to four labels without "--". */
static const struct format {
  const char *name, *pattern;
} formats[] = {
    {"date-time", DATE "T" TIME},
    {"date", DATE},
    {"time", TIME},
    {"duration", "P(" DAYS "(" PERIOD ")?|" PERIOD "|[0-9]{1,9}W)"},
    {"email", ATOM "{1,32}(\\." ATOM "{1,15}){0,2}@(" LABEL "\\.){1,3}" LAST},
    {"hostname", HOST},
    {"ipv4", IPV4},
    {"ipv6", IPV6},
    {"json-pointer", POINTER},
    {"relative-json-pointer", "(0|[1-9]{1,4})(#|" POINTER ")"},
    {"uri-reference", "(//" HOST "|[A-Za-z0-9._~!$&'()*+,;=@-]+)?(/([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+)*/?" TAIL},
    {"uri-template", "([A-Za-z0-9._~!$&()*+,;=:@/?#-]|%[0-9A-Fa-f]{2}|\\{[+#./;?&]?[A-Za-z0-9_]{1,30}(,[A-Za-z0-9_]{1,30}){0,4}\\})*"},
    {"uri", "[A-Za-z][A-Za-z0-9+.-]{0,30}:(//(" HOST "|" IPV4 ")(:[1-9][0-9]{0,3})?(/" PCHAR "*)*|" PCHAR "+(/" PCHAR "*)*)" TAIL},
    {"uuid", "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"},
};

static const struct format *format_find(const char *name) {
  static const char *const wider[][2] = {
      {"idn-email", "email"}, {"idn-hostname", "hostname"}, {"iri", "uri"}, {"iri-reference", "uri-reference"}};
  for (size_t i = 0; name && i < sizeof wider / sizeof *wider; i++)
    if (!strcmp(wider[i][0], name)) name = wider[i][1]; /* of these, what is ASCII */
  for (size_t i = 0; name && i < sizeof formats / sizeof *formats; i++)
    if (!strcmp(formats[i].name, name)) return &formats[i];
  return NULL;
}
bool schema_format_known(const char *format) { return format_find(format) != NULL; }

/* ---- patterns ------------------------------------------------------------------------------------------------------------------------ */

struct lang *schema_keep(struct schema_builder *b, struct lang *l) {
  if (!l) return NULL;
  if (b->n_langs == b->cap_langs) {
    b->cap_langs = b->cap_langs ? 2 * b->cap_langs : 16;
    b->langs = xrealloc(b->langs, (size_t)b->cap_langs * sizeof *b->langs);
  }
  b->work += l->n_states;
  return b->langs[b->n_langs++] = l;
}

static int pattern_language(struct schema_builder *b, struct str text, bool whole, const struct lang **l, struct err *e) {
  uint64_t key = hash_bytes(text.p, text.n, whole) | 1;
  for (;; key += 2) { /* another pattern with the same hash: the next number */
    int *at = lang_map_at(&b->pattern_of, key | 1);
    if (*at < 0) {
      struct lang *made = lang_pattern(text, whole, e);
      if (!made && e->code != ERR_TOO_LARGE) return -1;
      *e = (struct err){0};
      if (b->n_patterns == b->cap_patterns) {
        b->cap_patterns = b->cap_patterns ? 2 * b->cap_patterns : 16;
        b->patterns = xrealloc(b->patterns, (size_t)b->cap_patterns * sizeof *b->patterns);
      }
      *at = b->n_patterns;
      b->patterns[b->n_patterns++] = (struct pattern){text.p, text.n, whole, schema_keep(b, made)};
    }
    const struct pattern *p = &b->patterns[*at];
    if (p->n != text.n || memcmp(p->text, text.p, text.n) != 0 || p->whole != whole) continue;
    *l = p->l;
    return 0;
  }
}

int schema_pattern(struct schema_builder *b, const json_t *schema, const char *keyword, struct str text, const struct lang **l) {
  struct err e = {0};
  char shown[120];
  if (pattern_language(b, text, false, l, &e) == 0) return 0;
  str_escape(text, shown, sizeof shown);
  return schema_fail(b, schema, keyword, ": \"%s\": %s", shown, e.msg);
}

/* ---- all of it ------------------------------------------------------------------------------------------------------------------------- */

static int too_many_states(struct schema_builder *b, const struct branch *x, const char *keyword) {
  const json_t *schema = x->texts.n ? x->texts.v[0] : x->excluded.n ? x->excluded.v[0] : b->root;
  return schema_fail(b, schema, keyword, ": together with the keywords beside it, it needs more than %d states", LANG_STATES_MAX);
}

/* *l and also `more`. */
static int narrow_text(struct schema_builder *b, const struct branch *x, const char *keyword, const struct lang *more, struct lang **l) {
  if (!more) return too_many_states(b, x, keyword);
  struct lang *both = *l ? lang_both(*l, more) : NULL;
  if (*l && !both) return too_many_states(b, x, keyword);
  if (both) *l = schema_keep(b, both);
  else *l = (struct lang *)(uintptr_t)more; /* kept already; only read from now on */
  return b->work > SCHEMA_WORK_MAX ? schema_too_large(b) : 0;
}

/* Patterns and formats of one schema. */
static int narrow_by_schema(struct schema_builder *b, const struct branch *x, const json_t *schema, struct lang **l) {
  const json_t *pattern = json_object_get(schema, "pattern");
  const struct format *format = format_find(json_string_value(json_object_get(schema, "format")));
  const struct lang *more;
  struct err e = {0};
  if (pattern) {
    struct str text = str_of(json_string_value(pattern), json_string_length(pattern));
    if (schema_pattern(b, schema, "pattern", text, &more) != 0 || narrow_text(b, x, "pattern", more, l) != 0) return -1;
  }
  if (format) {
    if (pattern_language(b, str_c(format->pattern), true, &more, &e) != 0) return schema_fail(b, schema, "format", ": %s", e.msg);
    if (narrow_text(b, x, "format", more, l) != 0) return -1;
  }
  return 0;
}

static int without_excluded(struct schema_builder *b, const struct branch *x, struct lang **l) {
  int n = 0, cap = 0;
  struct str *texts = NULL;
  const json_t *v;
  for (int i = 0; i < x->excluded.n; i++)
    for (size_t k = 0; (v = schema_values(x->excluded.v[i], k)); k++) {
      if (!json_is_string(v) || !schema_lists(x->excluded.v[i], v)) continue;
      if (n == cap) texts = xrealloc(texts, (size_t)(cap = 2 * cap + 16) * sizeof *texts);
      texts[n++] = str_of(json_string_value(v), json_string_length(v));
    }
  struct lang *no = lang_texts(texts, n), *all = *l ? NULL : lang_lengths(0, -1), *left = no ? lang_without(*l ? *l : all, no) : NULL;
  lang_delete(no);
  lang_delete(all);
  free(texts);
  if (!left) return too_many_states(b, x, "not");
  *l = schema_keep(b, left);
  return 0;
}

/* Tokens of the delimiter's text are all there is where the vocabulary has no token for it: it must not come within a string. */
static int without_delimiter(struct schema_builder *b, const struct branch *x, struct lang **l) {
  struct err e = {0};
  const struct lang *quoted;
  if (pattern_language(b, str_c("<\\|\"\\|>"), false, &quoted, &e) != 0) return err_set(b->e, ERR_UNSUPPORTED, "%s: %s", b->where, e.msg);
  struct lang *all = *l ? NULL : lang_lengths(0, -1), *left = quoted ? lang_without(*l ? *l : all, quoted) : NULL;
  lang_delete(all);
  if (!left) return too_many_states(b, x, "pattern");
  *l = schema_keep(b, left);
  return 0;
}

/* *l of x->min..x->max code points. Where counting that far needs too many states, as far as it goes: fewer strings, all valid. */
static int narrow_lengths(struct schema_builder *b, const struct branch *x, struct lang **l) {
  int64_t min = x->min, max = x->max, shortest, longest;
  if (lang_is_empty(*l)) return 0;
  lang_extent(*l, &shortest, &longest);
  if (shortest >= min) min = 0;
  if (longest >= 0 && max >= longest) max = -1;
  if (min <= 0 && max < 0) return 0;
  int64_t least = MAX(x->min, shortest); /* a maximum below this would leave nothing */
  if (max > LANG_STATES_MAX / 2) max = MAX(LANG_STATES_MAX / 2, least);
  for (;; max = MAX(max / 2, least)) {
    struct lang *lengths = lang_lengths(min, max), *both = lengths ? lang_both(*l, lengths) : NULL;
    lang_delete(lengths);
    b->work += LANG_STATES_MAX / 16;
    if (both) *l = schema_keep(b, both);
    if (both && (max == x->max || max < 0 || !lang_is_empty(*l))) break;
    if (both || max <= least || b->work > SCHEMA_WORK_MAX) return too_many_states(b, x, x->texts.n ? "pattern" : "not");
  }
  return b->work > SCHEMA_WORK_MAX ? schema_too_large(b) : 0;
}

/* *l NULL: any string of x->min..x->max code points. */
int schema_text(struct schema_builder *b, const struct branch *x, struct lang **l, bool *empty) {
  *l = NULL;
  *empty = false;
  for (int i = 0; i < x->texts.n; i++)
    if (narrow_by_schema(b, x, x->texts.v[i], l) != 0) return -1;
  if (x->excluded.n && without_excluded(b, x, l) != 0) return -1;
  if (b->style == SCHEMA_GEMMA4_CALL && b->quote < 0 && without_delimiter(b, x, l) != 0) return -1;
  if (!*l) {
    if (x->min > RULES_REPEAT_MAX) return err_set(b->e, ERR_BAD_INPUT, "%s: minLength: expected at most %d", b->where, RULES_REPEAT_MAX);
    return 0;
  }
  if (narrow_lengths(b, x, l) != 0) return -1;
  *empty = lang_is_empty(*l);
  return 0;
}

int schema_text_accepts(struct schema_builder *b, const struct branch *x, struct str text, bool *yes) {
  int64_t n = 0;
  for (size_t i = 0; i < text.n; i++) n += ((unsigned char)text.p[i] & 0xc0) != 0x80;
  *yes = n >= x->min && (x->max < 0 || n <= x->max);
  for (int i = 0; i < x->texts.n && *yes; i++) {
    struct lang *l = NULL;
    if (narrow_by_schema(b, x, x->texts.v[i], &l) != 0) return -1;
    *yes = !l || lang_has(l, text);
  }
  return 0;
}
