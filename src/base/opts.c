/* opts.c — options from four sources into the caller's struct.
 *
 * All values arrive as text and go through store(), whatever their source, so a bad value gives the same sentence from
 * the environment, a file and the command line; only the words that say where it stood differ.
 */
#include "base/opts.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "base/opts_impl.h"

enum { CONFIG_FILE_BYTES = 1 << 20, NAME_BYTES = 64, SHOWN_BYTES = 96 };

enum source { FROM_NOWHERE, FROM_DEFAULT, FROM_ENVIRONMENT, FROM_CONFIG, FROM_ARGUMENTS };

struct parse {
  const struct opts_table *t;
  unsigned command;
  void *out;
  unsigned char *given; /* [n_opts] strongest source so far (enum source) */
  struct err *e;
};

/* --- looking up ----------------------------------------------------------------------------------------------------- */

bool opts_next_word(const char **at, char separator, struct str *word) {
  if (!*at) return false;
  const char *start = *at, *stop = strchr(start, separator);
  *word = stop ? str_of(start, (size_t)(stop - start)) : str_c(start);
  *at = stop ? stop + 1 : NULL;
  return word->n > 0 || stop;
}

static bool has_name(const struct opt *o, struct str name) {
  if (!o->name) return false;
  if (str_is(name, o->name)) return true;
  struct str word;
  for (const char *at = o->alias; opts_next_word(&at, ' ', &word);) {
    if (word.n > 0 && str_eq(word, name)) return true;
  }
  return false;
}

/* The row of that name; among several the one that this command takes. */
static const struct opt *find_name(const struct opts_table *t, unsigned command, struct str name) {
  const struct opt *other = NULL;
  for (int i = 0; i < t->n_opts; i++) {
    if (!has_name(&t->opts[i], name)) continue;
    if (t->opts[i].commands & command) return &t->opts[i];
    other = &t->opts[i];
  }
  return other;
}

static const struct opt *find_letter(const struct opts_table *t, unsigned command, char letter) {
  const struct opt *other = NULL;
  for (int i = 0; i < t->n_opts; i++) {
    if (!t->opts[i].name || t->opts[i].letter != letter) continue;
    if (t->opts[i].commands & command) return &t->opts[i];
    other = &t->opts[i];
  }
  return other;
}

/* Edits (insert, delete, change, swap two neighbours) that make b of a; both shorter than NAME_BYTES. */
static int edit_distance(struct str a, struct str b) {
  int row[3][NAME_BYTES + 1]; /* last but one, last, this */
  for (int k = 0; k <= (int)b.n; k++) row[1][k] = k;
  for (int i = 1; i <= (int)a.n; i++) {
    row[2][0] = i;
    for (int k = 1; k <= (int)b.n; k++) {
      int best = row[1][k - 1] + (a.p[i - 1] != b.p[k - 1]);
      best = MIN(best, MIN(row[1][k], row[2][k - 1]) + 1);
      if (i > 1 && k > 1 && a.p[i - 1] == b.p[k - 2] && a.p[i - 2] == b.p[k - 1]) best = MIN(best, row[0][k - 2] + 1);
      row[2][k] = best;
    }
    memmove(row[0], row[1], 2 * sizeof row[0]);
  }
  return row[1][b.n];
}

/* The name nearest to what was typed among those the command takes, in *best; false when nothing is near. */
static bool nearest_name(const struct opts_table *t, unsigned command, struct str typed, struct str *best) {
  if (typed.n == 0 || typed.n > NAME_BYTES) return false;
  int least = (int)MAX(typed.n / 3, (size_t)1) + 1;
  for (int i = 0; i < t->n_opts; i++) {
    const struct opt *o = &t->opts[i];
    if (!o->name || !(o->commands & command)) continue;
    const char *at = o->alias;
    struct str word = str_c(o->name);
    do {
      int distance = word.n == 0 || word.n > NAME_BYTES ? least : edit_distance(typed, word);
      if (distance < least) {
        least = distance;
        *best = word;
      }
    } while (opts_next_word(&at, ' ', &word));
  }
  return best->n > 0;
}

static int unknown_option(const struct parse *p, const char *dashes, struct str name) {
  char shown[SHOWN_BYTES];
  struct str best = {0};
  str_escape(name, shown, sizeof shown);
  /* One letter is near to every other. More of them behind one dash were meant to stand behind two. */
  if (name.n > 1 && nearest_name(p->t, p->command, name, &best)) {
    return err_set(p->e, ERR_BAD_INPUT, "unknown option %s%s: did you mean %s%.*s?", dashes, shown, dashes[0] ? "--" : "", (int)best.n,
                   best.p);
  }
  return err_set(p->e, ERR_BAD_INPUT, "unknown option %s%s: type --help for those there are", dashes, shown);
}

const char *opts_env_name(const struct opts_table *t, const struct opt *o, char name[OPTS_ENV_BYTES]) {
  if (!t->env_prefix || !o->name) return NULL;
  size_t at = 0, n_prefix = strlen(t->env_prefix);
  if (n_prefix + strlen(o->name) >= OPTS_ENV_BYTES) return NULL;
  memcpy(name, t->env_prefix, n_prefix);
  for (at = n_prefix; o->name[at - n_prefix]; at++) {
    char c = o->name[at - n_prefix];
    name[at] = c == '-' ? '_' : (char)toupper((unsigned char)c);
  }
  name[at] = 0;
  return name;
}

/* What the environment says of an option, under a name of OPTS_ENV_BYTES; NULL: nothing, as an empty variable does. */
static const char *environment_of(const struct opts_table *t, const struct opt *o, char name[OPTS_ENV_BYTES]) {
  const char *value = opts_env_name(t, o, name) ? getenv(name) : NULL;
  return value && *value ? value : NULL;
}

bool opts_in_environment(const struct opts_table *t, const char *name) {
  char variable[OPTS_ENV_BYTES];
  const struct opt *o = find_name(t, ~0u, str_c(name));
  return o && environment_of(t, o, variable);
}

/* --- storing -------------------------------------------------------------------------------------------------------- */

static void *field(const struct opt *o, void *out) { return (char *)out + o->offset; }

static void clear_strings(struct opt_strings *list) {
  for (int i = 0; i < list->n; i++) free(list->v[i]);
  free(list->v);
  *list = (struct opt_strings){0};
}

static void add_string(struct opt_strings *list, const char *value) {
  list->v = xrealloc(list->v, (size_t)(list->n + 1) * sizeof *list->v);
  list->v[list->n++] = xstrdup(value);
}

static bool parse_bool(const char *value, bool *out) {
  static const char *const words[] = {"false", "true", "0", "1", "no", "yes", "off", "on"};
  for (size_t i = 0; i < ARRAY_LEN(words); i++) {
    if (strcasecmp(value, words[i]) == 0) {
      *out = i % 2;
      return true;
    }
  }
  return false;
}

static bool parse_choice(const char *choices, const char *value, int *out) {
  struct str word;
  int i = 0;
  for (const char *at = choices; opts_next_word(&at, '|', &word); i++) {
    if (word.n == strlen(value) && strncasecmp(word.p, value, word.n) == 0) {
      *out = i;
      return true;
    }
  }
  return false;
}

static bool in_range(const struct opt *o, double v) { return !(o->lo < o->hi) || (v >= o->lo && v <= o->hi); }

/* Convert and store; false when the text is not such a value. */
static bool store(const struct opt *o, void *out, const char *value) {
  struct str text = str_c(value);
  void *to = field(o, out);
  bool b;
  int choice;
  int64_t i;
  double f;
  size_t bytes;
  switch (o->kind) {
  case OPT_BOOL:
    if (!parse_bool(value, &b)) return false;
    *(bool *)to = b;
    return true;
  case OPT_INT:
    if (!str_to_i64(text, INT64_MIN, INT64_MAX, &i) || !in_range(o, (double)i)) return false;
    *(int64_t *)to = i;
    return true;
  case OPT_FLOAT:
    if (!str_to_f64(text, &f) || !in_range(o, f)) return false;
    *(double *)to = f;
    return true;
  case OPT_BYTES:
    if (!str_to_bytes(text, &bytes) || !in_range(o, (double)bytes)) return false;
    *(size_t *)to = bytes;
    return true;
  case OPT_STRING:
    free(*(char **)to);
    *(char **)to = xstrdup(value);
    return true;
  case OPT_STRINGS: add_string(to, value); return true;
  case OPT_CHOICE:
    if (!parse_choice(o->choices, value, &choice)) return false;
    *(int *)to = choice;
    return true;
  }
  return false;
}

/* "a whole number from 1 to 64", into text. */
static const char *expected(const struct opt *o, char *text, size_t n) {
  static const char *const nouns[] = {
      [OPT_BOOL] = "true or false",     [OPT_INT] = "a whole number", [OPT_FLOAT] = "a number",
      [OPT_BYTES] = "a size like 8GiB", [OPT_STRING] = "text",        [OPT_STRINGS] = "text",
  };
  if (o->kind == OPT_CHOICE) snprintf(text, n, "one of %s", o->choices);
  else if (!(o->lo < o->hi)) snprintf(text, n, "%s", nouns[o->kind]);
  else if (isinf(o->hi)) snprintf(text, n, "%s, at least %.15g", nouns[o->kind], o->lo);
  else snprintf(text, n, "%s from %.15g to %.15g", nouns[o->kind], o->lo, o->hi);
  return text;
}

static int bad_value(const struct opt *o, const char *where, const char *value, struct err *e) {
  char shown[SHOWN_BYTES], wish[256];
  str_escape(str_c(o->secret ? "***" : value), shown, sizeof shown);
  return err_set(e, ERR_BAD_INPUT, "%s: expected %s, found \"%s\": type --%s%s%s", where, expected(o, wish, sizeof wish), shown, o->name,
                 o->kind == OPT_BOOL ? "" : " ", o->kind == OPT_BOOL ? "" : (o->value ? o->value : "VALUE"));
}

/* Store and remember the source; where is how the message begins. */
static int give(struct parse *p, const struct opt *o, enum source source, const char *value, const char *where) {
  unsigned char *given = &p->given[o - p->t->opts];
  if (o->kind == OPT_STRINGS && *given < source) clear_strings(field(o, p->out));
  if (!store(o, p->out, value)) return bad_value(o, where, value, p->e);
  *given = (unsigned char)source;
  return 0;
}

int opts_set(const struct opts_table *t, void *out, const char *name, const char *value, struct err *e) {
  struct parse p = {.t = t, .command = ~0u, .out = out, .e = e};
  const struct opt *o = find_name(t, ~0u, str_c(name));
  if (!o) return unknown_option(&p, "", str_c(name));
  return store(o, out, value) ? 0 : bad_value(o, o->name, value, e);
}

/* --- defaults and environment --------------------------------------------------------------------------------------- */

/* Rows of other commands first: if two rows share a field, this command's default stays. */
static void give_defaults(struct parse *p) {
  for (int own = 0; own <= 1; own++) {
    for (int i = 0; i < p->t->n_opts; i++) {
      const struct opt *o = &p->t->opts[i];
      if (!o->name || !o->dflt || !!(o->commands & p->command) != own) continue;
      if (o->kind == OPT_STRINGS) clear_strings(field(o, p->out));
      CHECK(store(o, p->out, o->dflt));
      p->given[i] = FROM_DEFAULT;
    }
  }
}

static int give_environment(struct parse *p) {
  for (int i = 0; i < p->t->n_opts; i++) {
    char name[OPTS_ENV_BYTES];
    const struct opt *o = &p->t->opts[i];
    const char *value = o->commands & p->command ? environment_of(p->t, o, name) : NULL;
    if (value && give(p, o, FROM_ENVIRONMENT, value, name) != 0) return -1;
  }
  return 0;
}

/* --- config file ---------------------------------------------------------------------------------------------------- */

static int config_member(void *ctx, const char *name, enum opts_config_kind kind, const char *value, struct err *e) {
  struct parse *p = ctx;
  const struct opt *o = find_name(p->t, p->command, str_c(name));
  if (!o) return unknown_option(p, "", str_c(name));
  if (!(o->commands & p->command))
    return err_set(e, ERR_BAD_INPUT, "option %s does not apply to this command: type --help for those that do", o->name);
  if (strcmp(o->name, "config") == 0) return err_set(e, ERR_BAD_INPUT, "option config has no place in a config file");
  bool number = o->kind == OPT_INT || o->kind == OPT_FLOAT || o->kind == OPT_BYTES;
  bool fits = true;
  switch (kind) {
  case OPTS_CONFIG_NULL: return 0;
  case OPTS_CONFIG_LIST:
    fits = o->kind == OPT_STRINGS;
    if (fits) {
      clear_strings(field(o, p->out));
      p->given[o - p->t->opts] = FROM_CONFIG;
      return 0;
    }
    break;
  case OPTS_CONFIG_STRING:
  case OPTS_CONFIG_ITEM: break;
  case OPTS_CONFIG_NUMBER: fits = number; break;
  case OPTS_CONFIG_BOOL: fits = o->kind == OPT_BOOL; break;
  }
  if (strlen(value) == 0 && kind == OPTS_CONFIG_STRING && number) fits = false;
  return fits ? give(p, o, FROM_CONFIG, value, o->name) : bad_value(o, o->name, kind == OPTS_CONFIG_LIST ? "[" : value, e);
}

static int read_config_file(const char *path, struct buf *text, struct err *e) {
  char chunk[4096];
  FILE *f = fopen(path, "re");
  if (!f) return err_set(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_BAD_INPUT, "cannot read it: %s", strerror(errno));
  for (size_t n; (n = fread(chunk, 1, sizeof chunk, f)) > 0 && buf_append(text, chunk, n);) {}
  int why = ferror(f) ? errno : 0;
  fclose(f);
  if (why) return err_set(e, ERR_BAD_INPUT, "cannot read it: %s", strerror(why));
  if (text->overflow) return err_set(e, ERR_TOO_LARGE, "expected at most %d bytes", CONFIG_FILE_BYTES);
  return 0;
}

static int give_config(struct parse *p, const char *path) {
  struct buf text;
  char shown[SHOWN_BYTES];
  buf_init(&text, CONFIG_FILE_BYTES);
  int code = read_config_file(path, &text, p->e);
  if (code == 0) code = opts_config_parse(buf_cstr(&text), text.len, config_member, p, p->e);
  if (code != 0) err_prefix(p->e, "--config %s", str_escape(str_c(path), shown, sizeof shown));
  buf_free(&text);
  return code;
}

/* --- command line --------------------------------------------------------------------------------------------------- */

struct argument {
  const struct opt *opt;      /* NULL: a positional word */
  const char *value;          /* the option's value, or the word */
  char shown[NAME_BYTES + 8]; /* the option as it was typed */
};

/* Is the word an option of this table, so that it is hardly meant as a value? */
static bool names_option(const struct parse *p, const char *word) {
  return strncmp(word, "--", 2) == 0 && word[2] && find_name(p->t, p->command, str_of(word + 2, strcspn(word + 2, "=")));
}

static int find_argument(struct parse *p, const char *word, struct argument *a) {
  bool is_long = word[1] == '-';
  struct str name = is_long ? str_of(word + 2, strcspn(word + 2, "=")) : str_c(word + 1);
  a->opt = is_long ? find_name(p->t, p->command, name) : name.n == 1 ? find_letter(p->t, p->command, word[1]) : NULL;
  if (!a->opt) return unknown_option(p, is_long ? "--" : "-", name);
  snprintf(a->shown, sizeof a->shown, "%s%.*s", is_long ? "--" : "-", (int)MIN(name.n, (size_t)NAME_BYTES), name.p);
  if (!(a->opt->commands & p->command))
    return err_set(p->e, ERR_BAD_INPUT, "option %s does not apply to this command: type --help for those that do", a->shown);
  a->value = is_long && name.p[name.n] == '=' ? name.p + name.n + 1 : NULL;
  return 0;
}

/* Read the argument at argv[*at] and step over it. *only_words is set by "--". */
static int next_argument(struct parse *p, int argc, char **argv, int *at, bool *only_words, struct argument *a) {
  const char *word = argv[(*at)++];
  *a = (struct argument){.value = word};
  if (*only_words || word[0] != '-' || word[1] == 0) return 0;
  if (find_argument(p, word, a) != 0) return -1;
  if (a->value) return 0;
  if (a->opt->kind == OPT_BOOL) {
    a->value = "true";
    return 0;
  }
  if (*at == argc || names_option(p, argv[*at]))
    return err_set(p->e, ERR_BAD_INPUT, "option %s needs a value: type %s %s", a->shown, a->shown, a->opt->value ? a->opt->value : "VALUE");
  a->value = argv[(*at)++];
  return 0;
}

static bool ends_options(const char *word, bool only_words) { return !only_words && strcmp(word, "--") == 0; }

/* The config file's name must be known before the arguments count. NULL: none. Borrows. */
static int find_config(struct parse *p, int argc, char **argv, const char **path) {
  const struct opt *config = find_name(p->t, p->command, str_c("config"));
  *path = NULL;
  if (!config || config->kind != OPT_STRING || !(config->commands & p->command)) return 0;
  *path = *(char **)field(config, p->out);
  bool only_words = false;
  for (int at = 0; at < argc;) {
    struct argument a;
    if (ends_options(argv[at], only_words)) break;
    if (next_argument(p, argc, argv, &at, &only_words, &a) != 0) return -1;
    if (a.opt == config) *path = a.value;
  }
  return 0;
}

static int give_arguments(struct parse *p, int argc, char **argv, const char **positional, int max_positional, int *n_positional) {
  bool only_words = false;
  int n_words = 0;
  for (int at = 0; at < argc;) {
    struct argument a;
    char shown[SHOWN_BYTES];
    if (ends_options(argv[at], only_words)) {
      only_words = true;
      at++;
      continue;
    }
    if (next_argument(p, argc, argv, &at, &only_words, &a) != 0) return -1;
    if (a.opt) {
      if (give(p, a.opt, FROM_ARGUMENTS, a.value, a.shown) != 0) return -1;
    } else if (n_words == max_positional) {
      return err_set(p->e, ERR_BAD_INPUT, "unexpected word \"%s\": type --help for what this command takes",
                     str_escape(str_c(a.value), shown, sizeof shown));
    } else {
      positional[n_words++] = a.value;
    }
  }
  if (n_positional) *n_positional = n_words;
  return 0;
}

int opts_parse(const struct opts_table *t, unsigned command, int argc, char **argv, void *out, const char **positional, int max_positional,
               int *n_positional, struct err *e) {
  struct parse p = {.t = t, .command = command, .out = out, .e = e};
  const char *config = NULL;
  if (n_positional) *n_positional = 0;
  p.given = xcalloc((size_t)t->n_opts, 1);
  give_defaults(&p);
  int code = give_environment(&p);
  if (code == 0) code = find_config(&p, argc, argv, &config);
  if (code == 0 && config) code = give_config(&p, config);
  if (code == 0) code = give_arguments(&p, argc, argv, positional, max_positional, n_positional);
  free(p.given);
  return code;
}

void opts_free(const struct opts_table *t, void *values) {
  for (int i = 0; i < t->n_opts; i++) {
    const struct opt *o = &t->opts[i];
    if (!o->name) continue;
    if (o->kind == OPT_STRING) {
      char **string = field(o, values);
      free(*string);
      *string = NULL;
    }
    if (o->kind == OPT_STRINGS) clear_strings(field(o, values));
  }
}
