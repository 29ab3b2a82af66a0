/* cmd_help.c — pages about the program, from its own tables: on the terminal, as a man page, and as docs/reference.md.
 *
 * What a page says of commands is in commands.c, of options in options.c, of routes in server/route.c, of metrics in server/metrics.c. Nothing is
 * written twice, so no page can be older than the program; tests/docs.py compares docs/reference.md with what is printed here.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "commands.h"
#include "server/metrics.h"
#include "server/serve.h"

static const char pages_date[] = "2026-11-30"; /* of the last revision of what man pages say beside the tables */

static const struct {
  const char *name, *what;
} variables[] = {
    {"CYGNET_OPTION",
     "The default of any option by its long name: CYGNET_THREADS=4 is --threads 4. A config file and the command line are stronger."},
    {"XDG_CACHE_HOME", "Pulled models are below its cygnet/models, otherwise below ~/.cache/cygnet/models."},
    {"HF_TOKEN, HF_TOKEN_PATH, HF_HOME", "The token of 'cygnet pull', or where the file with it is."},
    {"HF_ENDPOINT", "Another hub, or a mirror, for 'cygnet pull'."},
    {"https_proxy, no_proxy", "A proxy for 'cygnet pull'."},
    {"ASCEND_HOME_PATH", "The folder of CANN, for --backend ascend."},
    {"CYGNET_ASCEND_SYNC", "1: wait after every operator of an NPU, so that one that fails is named. Slow."},
    {"CYGNET_ASCEND_ROUTES", "Only these routes of attention on an NPU, separated by commas."},
};
static const struct {
  int status;
  const char *what;
} statuses[] = {
    {0, "Done."},
    {1, "The work failed: not enough memory, a lost device, a score below --min."},
    {2, "Wrong usage, or an input that cannot be used. Nothing was computed."},
};

/* ---- terminal --------------------------------------------------------------------------------------------------------- */

void help_overview(FILE *to) {
  fprintf(to, "cygnet %s: inference for language models with hybrid attention\n\nusage: cygnet COMMAND [options]\n\n", cygnet_version());
  for (int i = 0; i < n_commands; i++) fprintf(to, "  %-11s %s\n", commands[i].name, commands[i].what);
  fprintf(to, "  %-11s %s\n", "help", "this page; 'cygnet help COMMAND' is that of a command; --markdown, --man: in that form");
  fprintf(to, "\n'cygnet COMMAND --help' explains a command, with examples and all its options. A first try:\n"
              "  cygnet complete -m model.gguf -p 'The capital of France is' -n 16\n");
}

/* The first letter of a one-line text is small in the overview, and large where it is a sentence. */
static void put_sentence(struct buf *out, const char *text, void (*put)(struct buf *, const char *)) {
  struct buf copy;
  buf_init(&copy, 0);
  buf_printf(&copy, "%c%s.", toupper((unsigned char)text[0]), text + 1);
  put(out, buf_cstr(&copy));
  buf_free(&copy);
}

static void put_line(struct buf *out, const char *text) { buf_printf(out, "%s\n", text); }

void help_command(const struct command_info *c) {
  struct buf b;
  buf_init(&b, 0);
  buf_printf(&b, "%s\n", c->usage);
  put_sentence(&b, c->what, put_line);
  buf_putc(&b, '\n');
  opts_put_text(&b, c->about, 2);
  buf_puts(&b, "\nExamples\n");
  for (const struct command_example *x = c->examples; x->line; x++) {
    buf_printf(&b, "  %s\n", x->line);
    opts_put_text(&b, x->what, 6);
  }
  opts_help(&options_table, c->bit, &b);
  fputs(buf_cstr(&b), stdout);
  buf_free(&b);
}

/* ---- Markdown --------------------------------------------------------------------------------------------------------- */

static void put_commands(struct buf *out) {
  buf_puts(out, "## Commands\n\n");
  for (int i = 0; i < n_commands; i++) {
    const struct command_info *c = &commands[i];
    buf_printf(out, "### cygnet %s\n\n", c->name);
    put_sentence(out, c->what, opts_put_markdown);
    buf_puts(out, " ");
    opts_put_markdown(out, c->about);
    buf_printf(out, "\n\n```text\n%s\n```\n\n```sh\n", c->usage);
    for (const struct command_example *x = c->examples; x->line; x++) buf_printf(out, "# %s\n%s\n", x->what, x->line);
    buf_puts(out, "```\n\n");
  }
  buf_puts(out, "### Exit status\n\n| | |\n|---|---|\n");
  for (size_t i = 0; i < ARRAY_LEN(statuses); i++) buf_printf(out, "| %d | %s |\n", statuses[i].status, statuses[i].what);
  buf_puts(out, "\n### Environment\n\n| | |\n|---|---|\n");
  for (size_t i = 0; i < ARRAY_LEN(variables); i++) buf_printf(out, "| `%s` | %s |\n", variables[i].name, variables[i].what);
}

static void put_options(struct buf *out) {
  const char *names[8 * sizeof(unsigned)];
  for (int i = 0; i < n_commands; i++)
    for (int bit = 0; bit < n_commands; bit++)
      if (commands[i].bit == 1u << bit) names[bit] = commands[i].name;
  buf_puts(out, "\n## Options\n\nA value comes from the command line, else from the file of `--config`, else from the environment "
                "(`CYGNET_THREADS` is `--threads`), else it is the default. Where several names stand, they are one option.\n\n");
  opts_markdown(&options_table, names, n_commands, out);
}

static void put_routes(struct buf *out) {
  struct serve_route r;
  buf_puts(out, "## Routes of the server\n\n| Method | Path | Key | |\n|---|---|---|---|\n");
  for (int i = 0; serve_route(i, &r); i++) buf_printf(out, "| %s | `%s` | %s | %s |\n", r.methods, r.path, r.key, r.what);
  buf_puts(
      out,
      "\nKey: what a request must show where the server has keys ([security.md](security.md)). A path that ends in / stands for all below it. "
      "What bodies contain: [api.md](api.md).\n\n");
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* /metrics of a server that has done nothing, with a model that sees and hears; its "# HELP" and "# TYPE" lines are the table. */
static void put_metrics(struct buf *out) {
  struct cygnet_info info = {.vision = "", .audio = ""};
  struct metrics_now now = {.info = &info};
  struct metrics *m = metrics_new("");
  struct buf page, row;
  char *rows[256], *at;
  size_t n = 0;
  buf_init(&page, 0);
  metrics_put(m, &now, &page);
  buf_puts(
      out,
      "## Metrics\n\nOf `GET /metrics`; how to read them: [operations.md](operations.md#metrics).\n\n| Name | Type | |\n|---|---|---|\n");
  buf_putc(&page, 0);
  for (char *line = strtok_r(page.data, "\n", &at); line; line = strtok_r(NULL, "\n", &at)) {
    static const char help[] = "# HELP ", type[] = "# TYPE ";
    char *type_line = strncmp(line, help, sizeof help - 1) ? NULL : strtok_r(NULL, "\n", &at);
    char *words = line + sizeof help - 1, *what = type_line ? strchr(words, ' ') : NULL;
    if (!what || strncmp(type_line, type, sizeof type - 1) || n == ARRAY_LEN(rows)) continue;
    *what++ = 0;
    buf_init(&row, 0);
    buf_printf(&row, "| `%s` | %s | %s |\n", words, strrchr(type_line, ' ') + 1, what);
    rows[n++] = buf_take(&row, NULL);
  }
  qsort(rows, n, sizeof *rows, by_name);
  for (size_t i = 0; i < n; i++) {
    buf_puts(out, rows[i]);
    free(rows[i]);
  }
  buf_free(&page);
  metrics_delete(m);
}

static void put_reference(struct buf *out) {
  buf_puts(out, "# Reference\n\nEvery command, option, route and metric, as the program itself lists them: `make man` writes this page "
                "(`cygnet help --markdown`), and a test compares the two.\n\n");
  put_commands(out);
  put_options(out);
  put_routes(out);
  put_metrics(out);
}

/* ---- man pages --------------------------------------------------------------------------------------------------------- */

static void put_title(struct buf *out, const char *name) {
  buf_puts(out, ".TH ");
  for (const char *p = name; *p; p++) buf_putc(out, (char)toupper((unsigned char)*p));
  buf_printf(out, " 1 %s \"cygnet %s\" \"User Commands\"\n", pages_date, cygnet_version());
}

static void put_paragraphs(struct buf *out, const char *text) {
  for (const char *p = text; *p;) {
    size_t n = strcspn(p, "\n");
    struct buf copy;
    buf_init(&copy, 0);
    buf_append(&copy, p, n);
    if (p > text) buf_puts(out, ".PP\n");
    opts_put_man_text(out, buf_cstr(&copy));
    buf_putc(out, '\n');
    buf_free(&copy);
    p += n + (p[n] == '\n');
  }
}

static void put_ends(struct buf *out) {
  buf_puts(out, ".SH EXIT STATUS\n");
  for (size_t i = 0; i < ARRAY_LEN(statuses); i++) {
    buf_printf(out, ".TP\n%d\n", statuses[i].status);
    opts_put_man_text(out, statuses[i].what);
    buf_putc(out, '\n');
  }
  buf_puts(out, ".SH ENVIRONMENT\n");
  for (size_t i = 0; i < ARRAY_LEN(variables); i++) {
    buf_printf(out, ".TP\n\\fB%s\\fR\n", variables[i].name);
    opts_put_man_text(out, variables[i].what);
    buf_putc(out, '\n');
  }
}

static void put_see_also(struct buf *out, const struct command_info *but) {
  buf_puts(out, ".SH SEE ALSO\n");
  if (but) buf_printf(out, ".BR cygnet (1)%s\n", n_commands > 1 ? "," : "");
  for (int i = 0, left = n_commands - (but != NULL); i < n_commands; i++)
    if (&commands[i] != but) buf_printf(out, ".BR cygnet\\-%s (1)%s\n", commands[i].name, --left ? "," : "");
}

static void man_overview(struct buf *out) {
  put_title(out, "cygnet");
  buf_puts(
      out,
      ".SH NAME\ncygnet \\- inference for language models with hybrid attention\n.SH SYNOPSIS\n.B cygnet\n.I COMMAND\n[options]\n.SH COMMANDS\n");
  for (int i = 0; i < n_commands; i++) {
    buf_printf(out, ".TP\n.BR cygnet\\-%s (1)\n", commands[i].name);
    put_sentence(out, commands[i].what, opts_put_man_text);
    buf_putc(out, '\n');
  }
  buf_puts(out, ".TP\n\\fBcygnet help\\fR [\\fICOMMAND\\fR] [\\fB\\-\\-markdown\\fR | \\fB\\-\\-man\\fR]\n"
                "The pages of \\-\\-help, all of them as one Markdown document, or as man pages.\n");
  put_ends(out);
  buf_puts(out, ".SH EXAMPLES\n.nf\n");
  for (int i = 0; i < n_commands; i++) {
    opts_put_man(out, commands[i].examples[0].line);
    buf_putc(out, '\n');
  }
  buf_puts(out, ".fi\n");
  put_see_also(out, NULL);
}

static void man_command(struct buf *out, const struct command_info *c) {
  struct buf name;
  buf_init(&name, 0);
  buf_printf(&name, "cygnet-%s", c->name);
  put_title(out, buf_cstr(&name));
  buf_printf(out, ".SH NAME\ncygnet\\-%s \\-\n", c->name);
  opts_put_man_text(out, c->what);
  buf_puts(out, "\n.SH SYNOPSIS\n");
  opts_put_man_text(out, c->usage);
  buf_puts(out, "\n.SH DESCRIPTION\n");
  put_paragraphs(out, c->about);
  buf_puts(out, ".SH OPTIONS\n");
  opts_man(&options_table, c->bit, out);
  put_ends(out);
  buf_puts(out, ".SH EXAMPLES\n");
  for (const struct command_example *x = c->examples; x->line; x++) {
    put_sentence(out, x->what, opts_put_man_text);
    buf_puts(out, "\n.PP\n.nf\n.RS\n");
    opts_put_man(out, x->line);
    buf_printf(out, "\n.RE\n.fi\n%s", x[1].line ? ".PP\n" : "");
  }
  put_see_also(out, c);
  buf_free(&name);
}

/* ---- the command ------------------------------------------------------------------------------------------------------ */

static const struct command_info *find(const char *name) {
  for (int i = 0; i < n_commands; i++)
    if (!strcmp(commands[i].name, name)) return &commands[i];
  return NULL;
}

int cmd_help(int argc, char **argv) {
  static const char usage[] = "cygnet help [COMMAND] [--markdown | --man]";
  const struct command_info *command = NULL;
  const char *form = NULL;
  struct err e = {0};
  for (int i = 0; i < argc; i++) {
    bool is_form = !strcmp(argv[i], "--markdown") || !strcmp(argv[i], "--man"), again = is_form ? form != NULL : command != NULL;
    if (!is_form && !(command = find(argv[i])))
      err_set(&e, ERR_BAD_INPUT, "no command \"%s\": 'cygnet --help' lists them; usage: %s", argv[i], usage);
    else if (again) err_set(&e, ERR_BAD_INPUT, "one command and one form at most, found also \"%s\"; usage: %s", argv[i], usage);
    if (e.code) return command_fail(&e);
    if (is_form) form = argv[i];
  }
  if (form && !strcmp(form, "--markdown") && command) {
    err_set(&e, ERR_BAD_INPUT, "--markdown is one page of all commands; usage: %s", usage);
    return command_fail(&e);
  }
  if (!form && !command) help_overview(stdout);
  else if (!form) help_command(command);
  if (!form) return 0;
  struct buf b;
  buf_init(&b, 0);
  if (!strcmp(form, "--markdown")) put_reference(&b);
  else if (command) man_command(&b, command);
  else man_overview(&b);
  fputs(buf_cstr(&b), stdout);
  buf_free(&b);
  return 0;
}
