/* opts.h — options as data: one table gives parsing, --help, environment, config file and /server_info.
 *
 * A table row names a field of the caller's struct by offset. Sources, weakest first: the row's default, the
 * environment (CYGNET_THREADS for --threads), --config FILE (JSON object of long names), the command line.
 * Spelling: --name VALUE, --name=VALUE, -x VALUE; booleans are bare --name, or --name=false. Aliases are the same
 * option under a second name. An unknown name is an error that suggests the nearest one; an option that does not apply
 * to the command is refused, never ignored (but the environment is shared by all commands: there it is passed over).
 * Once a stronger source names an option that may be given several times, the weaker sources' values are gone.
 *
 * --config works where the table has a row "config" of kind OPT_STRING that the command takes. The file is one flat JSON
 * object: strings (for any kind), numbers, true/false, arrays of strings for OPT_STRINGS, null = leave as it is.
 */
#ifndef CYGNET_OPTS_H
#define CYGNET_OPTS_H

#include "base/base.h"
#include "base/buf.h"
#include "base/err.h"

enum opt_kind {
  OPT_BOOL,    /* bool */
  OPT_INT,     /* int64_t */
  OPT_FLOAT,   /* double */
  OPT_BYTES,   /* size_t, "8GiB" */
  OPT_STRING,  /* const char *, owned by the table's struct: freed by opts_free */
  OPT_STRINGS, /* struct opt_strings: may be given several times */
  OPT_CHOICE,  /* int: index into choices, "a|b|c" */
};

struct opt_strings {
  char **v;
  int n;
};

struct opt {
  const char *name;  /* "threads"; NULL name with a group = heading of the help page */
  const char *alias; /* second long spelling, or NULL; several separated by a blank */
  char letter;       /* 'm' for -m, or 0 */
  enum opt_kind kind;
  size_t offset;       /* offsetof(struct ..., field) */
  unsigned commands;   /* bit per command that takes it */
  const char *value;   /* "N", "FILE": how help shows the value; NULL for booleans */
  const char *choices; /* OPT_CHOICE: "bf16|f16|f32|q8_0" */
  const char *dflt;    /* default as text, NULL = zero/none */
  double lo, hi;       /* inclusive range of numbers when lo < hi; hi INFINITY = no upper end */
  const char *help;    /* one sentence; "\n" allowed */
  const char *group;   /* heading it stands under; NULL = the last heading row's */
  bool secret;         /* opts_dump_json and messages show "***" */
};

struct opts_table {
  const struct opt *opts;
  int n_opts;
  const char *env_prefix; /* "CYGNET_" or NULL */
};

/* Fill *out (a zeroed struct) with defaults, then environment, config file, then argv[0..argc). Words that are not
 * options go to positional[] (borrowed), at most max_positional; more is an error. "--" ends options.
 * command: one bit. Returns 0, or -1 and *e with a sentence that ends in what to type. Either way opts_free clears *out. */
int opts_parse(const struct opts_table *t, unsigned command, int argc, char **argv, void *out, const char **positional, int max_positional,
               int *n_positional, struct err *e);
/* Does the environment give this option a value? */
bool opts_in_environment(const struct opts_table *t, const char *name);
/* Set one option from text, as a config file would. */
int opts_set(const struct opts_table *t, void *out, const char *name, const char *value, struct err *e);
void opts_help(const struct opts_table *t, unsigned command, struct buf *out); /* wrapped at 100 columns */
void opts_put_text(struct buf *out, const char *text, int indent);             /* a paragraph of such a page; "\n" breaks */
/* The same table for other readers (opts_pages.c): Markdown of all commands at once, names[i] being that of bit i; and the items of a man page. */
void opts_markdown(const struct opts_table *t, const char *const *names, int n_names, struct buf *out);
void opts_man(const struct opts_table *t, unsigned command, struct buf *out);
/* Text with what these two formats would take for markup escaped. */
void opts_put_markdown(struct buf *out, const char *text);
void opts_put_man(struct buf *out, const char *text);                                                   /* as it is, in one line */
void opts_put_man_text(struct buf *out, const char *text);                                              /* a paragraph, over several */
void opts_dump_json(const struct opts_table *t, unsigned command, const void *values, struct buf *out); /* {"threads": 2, ...} */
void opts_free(const struct opts_table *t, void *values);

#endif
