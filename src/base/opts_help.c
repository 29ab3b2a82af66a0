/* opts_help.c — the options table as a help page and as JSON.
 *
 *   Heading
 *     -m, --model FILE          What it is, wrapped at column 100 and indented under itself.
 *                               (default 4096; 1 to 131072; CYGNET_CTX)
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/opts_impl.h"

enum { WIDTH = 100, TEXT_COLUMN = 30 };

/* --- help ----------------------------------------------------------------------------------------------------------- */

static void spaces(struct buf *out, int n) {
  for (int i = 0; i < n; i++) buf_putc(out, ' ');
}

/* Append text from column `at`, broken between words at WIDTH; new lines start at `indent`. "\n" breaks. Ends the line. */
static void put_wrapped(struct buf *out, const char *text, int at, int indent) {
  int start = at; /* column where this line's text starts */
  for (const char *p = text; *p;) {
    if (*p == '\n' || *p == ' ') {
      if (*p == '\n') {
        buf_putc(out, '\n');
        spaces(out, indent);
        at = start = indent;
      }
      p++;
      continue;
    }
    int n = (int)strcspn(p, " \n"), blank = at > start;
    if (blank && at + blank + n > WIDTH) {
      buf_putc(out, '\n');
      spaces(out, indent);
      at = start = indent;
      blank = 0;
    }
    if (blank) buf_putc(out, ' ');
    buf_append(out, p, (size_t)n);
    at += blank + n;
    p += n;
  }
  buf_putc(out, '\n');
}

/* "-m, --model, --model-path FILE" */
static void put_spelling(struct buf *out, const struct opt *o) {
  if (o->letter) buf_printf(out, "  -%c, --%s", o->letter, o->name);
  else buf_printf(out, "      --%s", o->name);
  struct str word;
  for (const char *at = o->alias; opts_next_word(&at, ' ', &word);) {
    if (word.n > 0) buf_printf(out, ", --%.*s", (int)word.n, word.p);
  }
  if (o->kind != OPT_BOOL) buf_printf(out, " %s", o->value ? o->value : "VALUE");
}

static void put_bound(struct buf *out, const struct opt *o, double v) {
  char human[32];
  if (o->kind == OPT_BYTES) buf_puts(out, mem_human((size_t)v, human));
  else buf_printf(out, "%.15g", v);
}

void opts_put_text(struct buf *out, const char *text, int indent) {
  spaces(out, indent);
  put_wrapped(out, text, indent, indent);
}

void opts_put_facts(const struct opts_table *t, const struct opt *o, bool with_env, struct buf *out) {
  char env[OPTS_ENV_BYTES];
  const char *open = "(";
  if (o->dflt && o->kind != OPT_BOOL) {
    buf_printf(out, "%sdefault %s", open, o->dflt);
    open = "; ";
  }
  if (o->lo < o->hi) {
    buf_puts(out, open);
    if (isinf(o->hi)) buf_puts(out, "at least ");
    put_bound(out, o, o->lo);
    if (!isinf(o->hi)) {
      buf_puts(out, " to ");
      put_bound(out, o, o->hi);
    }
    open = "; ";
  }
  if (o->kind == OPT_CHOICE) {
    struct str word;
    const char *comma = "one of ";
    buf_puts(out, open);
    for (const char *at = o->choices; opts_next_word(&at, '|', &word); comma = ", ") buf_printf(out, "%s%.*s", comma, (int)word.n, word.p);
    open = "; ";
  }
  if (o->kind == OPT_STRINGS) {
    buf_printf(out, "%smay be repeated", open);
    open = "; ";
  }
  if (with_env && opts_env_name(t, o, env)) {
    buf_printf(out, "%s%s", open, env);
    open = "; ";
  }
  if (open[0] == ';') buf_putc(out, ')');
}

static void put_option(const struct opts_table *t, const struct opt *o, struct buf *out) {
  size_t line_start = out->len;
  struct buf text;
  buf_init(&text, 0);
  put_spelling(out, o);
  int column = (int)(out->len - line_start);
  if (column + 2 > TEXT_COLUMN) {
    buf_putc(out, '\n');
    column = 0;
  }
  if (o->help) buf_printf(&text, "%s\n", o->help);
  opts_put_facts(t, o, true, &text);
  if (text.len > 0 && text.data[text.len - 1] == '\n') text.data[--text.len] = 0;
  if (text.len > 0) spaces(out, TEXT_COLUMN - column);
  put_wrapped(out, buf_cstr(&text), TEXT_COLUMN, TEXT_COLUMN);
  buf_free(&text);
}

/* The heading that row i stands under: its own, or that of the last heading row. */
static const char *group_of(const struct opts_table *t, int i) {
  for (int k = i; k >= 0; k--) {
    if (t->opts[k].group && (k == i || !t->opts[k].name)) return t->opts[k].group;
  }
  return "Options";
}

bool opts_in_group(const struct opts_table *t, int i, const char *group, unsigned command) {
  return t->opts[i].name && (t->opts[i].commands & command) && strcmp(group_of(t, i), group) == 0;
}

const char *opts_next_group(const struct opts_table *t, unsigned command, int *at) {
  for (; *at < t->n_opts; (*at)++) {
    const char *group = group_of(t, *at);
    bool seen = false, has = false;
    for (int k = 0; k < *at && !seen; k++) seen = strcmp(group_of(t, k), group) == 0;
    for (int k = *at; k < t->n_opts && !has; k++) has = opts_in_group(t, k, group, command);
    if (seen || !has) continue;
    (*at)++;
    return group;
  }
  return NULL;
}

static void put_heading(const struct opts_table *t, const char *group, struct buf *out) {
  buf_printf(out, "%s%s\n", out->len > 0 ? "\n" : "", group);
  for (int i = 0; i < t->n_opts; i++) {
    const struct opt *o = &t->opts[i];
    if (o->name || !o->help || !o->group || strcmp(o->group, group) != 0) continue;
    buf_puts(out, "  ");
    put_wrapped(out, o->help, 2, 2);
  }
}

void opts_help(const struct opts_table *t, unsigned command, struct buf *out) {
  const char *group;
  for (int at = 0; (group = opts_next_group(t, command, &at));) {
    put_heading(t, group, out);
    for (int k = 0; k < t->n_opts; k++)
      if (opts_in_group(t, k, group, command)) put_option(t, &t->opts[k], out);
  }
}

/* --- JSON ------------------------------------------------------------------------------------------------------------ */

static void put_json_string(struct buf *out, const char *s, size_t n) {
  buf_putc(out, '"');
  buf_json_escape(out, s, n);
  buf_putc(out, '"');
}

/* The shortest decimal that reads back as v. */
static void put_json_number(struct buf *out, double v) {
  char text[40];
  if (!isfinite(v)) {
    buf_puts(out, "null");
    return;
  }
  for (int digits = 1; digits <= 17; digits++) {
    double back;
    snprintf(text, sizeof text, "%.*g", digits, v);
    for (char *comma = strchr(text, ','); comma; comma = NULL) *comma = '.'; /* a locale set by the host program */
    if (str_to_f64(str_c(text), &back) && back == v) break;
  }
  buf_puts(out, text);
}

static void put_json_value(const struct opt *o, const void *values, struct buf *out) {
  const void *from = (const char *)values + o->offset;
  const char *string;
  const struct opt_strings *list;
  struct str word = {0};
  const char *at;
  switch (o->kind) {
  case OPT_BOOL: buf_puts(out, *(const bool *)from ? "true" : "false"); break;
  case OPT_INT: buf_printf(out, "%lld", (long long)*(const int64_t *)from); break;
  case OPT_FLOAT: put_json_number(out, *(const double *)from); break;
  case OPT_BYTES: buf_printf(out, "%zu", *(const size_t *)from); break;
  case OPT_STRING:
    string = *(const char *const *)from;
    if (!string) buf_puts(out, "null");
    else if (o->secret) buf_puts(out, "\"***\"");
    else put_json_string(out, string, strlen(string));
    break;
  case OPT_STRINGS:
    list = from;
    buf_putc(out, '[');
    for (int i = 0; i < list->n; i++) {
      string = o->secret ? "***" : list->v[i];
      if (i > 0) buf_puts(out, ", ");
      put_json_string(out, string, strlen(string));
    }
    buf_putc(out, ']');
    break;
  case OPT_CHOICE:
    at = o->choices;
    for (int i = 0; i <= *(const int *)from && opts_next_word(&at, '|', &word); i++) {}
    put_json_string(out, word.p, word.n);
    break;
  }
}

void opts_dump_json(const struct opts_table *t, unsigned command, const void *values, struct buf *out) {
  const char *comma = "";
  buf_putc(out, '{');
  for (int i = 0; i < t->n_opts; i++) {
    const struct opt *o = &t->opts[i];
    if (!o->name || !(o->commands & command)) continue;
    buf_puts(out, comma);
    put_json_string(out, o->name, strlen(o->name));
    buf_puts(out, ": ");
    put_json_value(o, values, out);
    comma = ", ";
  }
  buf_putc(out, '}');
}
