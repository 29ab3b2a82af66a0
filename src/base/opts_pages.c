/* opts_pages.c — the options table as Markdown and as the items of a man page.
 *
 *   ### Heading                                                    .SS Heading
 *   | Option | Commands | |                                        .TP
 *   | `-m`, `--model PATH` | all | What it is. (default 2) |       \fB\-m\fR, \fB\-\-model\fR \fIPATH\fR
 *                                                                  What it is. (default 2; CYGNET_MODEL)
 *
 * Markdown names the commands of an option and leaves its variable out (one rule gives them all); a man page belongs to one command.
 */
#include <string.h>

#include "base/opts_impl.h"

enum { MAN_COLUMNS = 72 }; /* of a line's source, escapes aside */

void opts_put_markdown(struct buf *out, const char *text) {
  for (const char *p = text; *p; p++) {
    if (strchr("|*_<>[]`\\", *p)) buf_putc(out, '\\');
    buf_putc(out, *p == '\n' ? ' ' : *p);
  }
}

/* A hyphen is escaped, or it may be printed as another character that nobody can search for. */
static void put_man_char(struct buf *out, char c, bool first) {
  if (first && (c == '.' || c == '\'')) buf_puts(out, "\\&");
  if (c == '\\') buf_puts(out, "\\e");
  else if (c == '-') buf_puts(out, "\\-");
  else buf_putc(out, c);
}

void opts_put_man(struct buf *out, const char *text) {
  for (const char *p = text; *p; p++) put_man_char(out, *p, p == text);
}

void opts_put_man_text(struct buf *out, const char *text) {
  size_t start = out->len; /* of this line */
  for (const char *p = text; *p;) {
    size_t n = strcspn(p, " \n");
    if (out->len > start && out->len + 1 + n > start + MAN_COLUMNS) {
      buf_putc(out, '\n');
      start = out->len;
    } else if (out->len > start) {
      buf_putc(out, ' ');
    }
    for (size_t i = 0; i < n; i++) put_man_char(out, p[i], out->len == start);
    p += n;
    p += strspn(p, " \n");
  }
}

/* "help text (facts)" in one line; the caller frees it. */
static void text_of(const struct opts_table *t, const struct opt *o, bool with_env, struct buf *text) {
  struct buf facts;
  buf_init(text, 0);
  buf_init(&facts, 0);
  if (o->help) buf_puts(text, o->help);
  opts_put_facts(t, o, with_env, &facts);
  if (facts.len > 0) buf_printf(text, "%s%s", text->len > 0 ? " " : "", buf_cstr(&facts));
  buf_free(&facts);
}

/* What heading rows say of a group, each with `put`. */
static void put_heading_help(const struct opts_table *t, const char *group, struct buf *out, void (*put)(struct buf *, const char *),
                             const char *end) {
  for (int i = 0; i < t->n_opts; i++) {
    const struct opt *o = &t->opts[i];
    if (o->name || !o->help || !o->group || strcmp(o->group, group) != 0) continue;
    put(out, o->help);
    buf_puts(out, end);
  }
}

/* ---- Markdown --------------------------------------------------------------------------------------------------------- */

/* "`-m`, `--model`, `--model-path FILE`" */
static void put_spelling(struct buf *out, const struct opt *o) {
  struct str word;
  if (o->letter) buf_printf(out, "`-%c`, ", o->letter);
  buf_printf(out, "`--%s", o->name);
  for (const char *at = o->alias; opts_next_word(&at, ' ', &word);)
    if (word.n > 0) buf_printf(out, "`, `--%.*s", (int)word.n, word.p);
  if (o->kind != OPT_BOOL) {
    buf_putc(out, ' ');
    for (const char *p = o->value ? o->value : "VALUE"; *p; p++) { /* a bar ends a cell, in code as well */
      if (*p == '|') buf_putc(out, '\\');
      buf_putc(out, *p);
    }
  }
  buf_putc(out, '`');
}

static void put_commands(struct buf *out, unsigned commands, const char *const *names, int n_names) {
  const char *comma = "";
  if ((commands & ((1u << n_names) - 1)) == (1u << n_names) - 1) {
    buf_puts(out, "all");
    return;
  }
  for (int i = 0; i < n_names; i++) {
    if (!(commands & 1u << i)) continue;
    buf_printf(out, "%s%s", comma, names[i]);
    comma = ", ";
  }
}

void opts_markdown(const struct opts_table *t, const char *const *names, int n_names, struct buf *out) {
  const char *group;
  struct buf text;
  for (int at = 0; (group = opts_next_group(t, ~0u, &at));) {
    buf_printf(out, "### %s\n\n", group);
    put_heading_help(t, group, out, opts_put_markdown, "\n\n");
    buf_puts(out, "| Option | Commands | |\n|---|---|---|\n");
    for (int i = 0; i < t->n_opts; i++) {
      if (!opts_in_group(t, i, group, ~0u)) continue;
      buf_puts(out, "| ");
      put_spelling(out, &t->opts[i]);
      buf_puts(out, " | ");
      put_commands(out, t->opts[i].commands, names, n_names);
      buf_puts(out, " | ");
      text_of(t, &t->opts[i], false, &text);
      opts_put_markdown(out, buf_cstr(&text));
      buf_free(&text);
      buf_puts(out, " |\n");
    }
    buf_putc(out, '\n');
  }
}

/* ---- man page ----------------------------------------------------------------------------------------------------------- */

static void put_bold(struct buf *out, const char *dashes, struct str name) {
  struct buf copy;
  buf_init(&copy, 0);
  buf_printf(&copy, "%s%.*s", dashes, (int)name.n, name.p);
  buf_puts(out, "\\fB");
  opts_put_man(out, buf_cstr(&copy));
  buf_puts(out, "\\fR");
  buf_free(&copy);
}

static void put_item(const struct opts_table *t, const struct opt *o, struct buf *out) {
  struct str word;
  struct buf text;
  buf_puts(out, ".TP\n");
  if (o->letter) {
    put_bold(out, "-", str_of(&o->letter, 1));
    buf_puts(out, ", ");
  }
  put_bold(out, "--", str_c(o->name));
  for (const char *at = o->alias; opts_next_word(&at, ' ', &word);) {
    if (word.n == 0) continue;
    buf_puts(out, ", ");
    put_bold(out, "--", word);
  }
  if (o->kind != OPT_BOOL) {
    buf_puts(out, " \\fI");
    opts_put_man(out, o->value ? o->value : "VALUE");
    buf_puts(out, "\\fR");
  }
  buf_putc(out, '\n');
  text_of(t, o, true, &text);
  opts_put_man_text(out, buf_cstr(&text));
  buf_putc(out, '\n');
  buf_free(&text);
}

void opts_man(const struct opts_table *t, unsigned command, struct buf *out) {
  const char *group;
  for (int at = 0; (group = opts_next_group(t, command, &at));) {
    buf_printf(out, ".SS %s\n", group);
    put_heading_help(t, group, out, opts_put_man_text, "\n");
    for (int i = 0; i < t->n_opts; i++)
      if (opts_in_group(t, i, group, command)) put_item(t, &t->opts[i], out);
  }
}
