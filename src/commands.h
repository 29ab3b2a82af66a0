/* commands.h — the subcommands. Each takes the parsed options and returns the exit status: 0 done, 1 the work failed, 2 wrong usage or input file. */
#ifndef CYGNET_COMMANDS_H
#define CYGNET_COMMANDS_H

#include <jansson.h>
#include <stdio.h>

#include "base/err.h"
#include "options.h"
#include "text/tok.h"

int cmd_serve(const struct options *o);
int cmd_chat(const struct options *o);
int cmd_complete(const struct options *o);
int cmd_logits(const struct options *o);
int cmd_tokenize(const struct options *o);
int cmd_render(const struct options *o);
int cmd_parse(const struct options *o);
int cmd_preprocess(const struct options *o);
int cmd_bench(const struct options *o);
int cmd_eval(const struct options *o);
int cmd_inspect(const struct options *o);
int cmd_pull(const struct options *o);

/* commands.c: all of them, in the order of the help page. */
struct command_example {
  const char *line, *what; /* a shell command, and what it is for */
};
struct command_info {
  const char *name;
  enum command bit;
  int (*run)(const struct options *o);
  const char *usage, *what;           /* one line each */
  const char *about;                  /* a paragraph: what to know before the options; "\n" begins another */
  struct command_example examples[6]; /* ends with line NULL */
};
extern const struct command_info commands[];
extern const int n_commands;

/* cmd_help.c. The page of all commands, on a stream; and of one, on the standard output. */
void help_overview(FILE *to);
void help_command(const struct command_info *c);
/* cygnet help [COMMAND] [--markdown | --man]. Returns the exit status. */
int cmd_help(int argc, char **argv);

/* cmd_bench_serve.c: bench with --serve, the whole of it; and what bench without it refuses. */
int bench_serve(const struct options *o);
int bench_check_local(const struct options *o, struct err *e);

/* Shared by the commands (command_input.c, command_media.c, command_lines.c, command_remote.c). */

/* Print "cygnet: message" and return the status it asks for. */
int command_fail(const struct err *e);
int command_fail_public(const struct cygnet_error *e);
/* Open the model of the options; NULL after printing why, with *status set. */
struct cygnet *command_open(const struct options *o, int *status);
/* Prompt ids from --ids, --prompt or --file, exactly one of which must be given. *ids is owned (cygnet_free). Returns 0 or the exit status. */
int command_prompt(const struct options *o, const struct cygnet *c, int32_t **ids, size_t *n);
/* Pictures and sounds of a conversation or prompt, in the order of their placeholders. */
struct command_media {
  struct cygnet_media **v; /* owned, and each */
  size_t n;
};
/* One more, from a file. 0, or -1 and *e. */
int command_media_add(struct command_media *m, const struct options *o, const struct cygnet *c, enum cygnet_media_kind kind,
                      const char *path, struct err *e);
void command_media_cut(struct command_media *m, size_t n); /* forgets all but the first n */
/* command_prompt, and --image and --audio: each belongs to a placeholder of its kind, in order. Returns 0 or the exit status. */
int command_prompt_media(const struct options *o, const struct cygnet *c, int32_t **ids, size_t *n, struct command_media *m);
/* As command_read_all, from a file of the caller's: that it cannot be read is the caller's mistake, whatever the reason. "-": standard
 * input. */
char *command_read_file(const char *path, size_t *n, struct err *e);
/* "1, 2 3" or "@FILE" to ids (owned, free()). */
int command_ids(const char *list, int32_t **ids, size_t *n, struct err *e);
/* "0,4096": at most max numbers. Returns their count, or -1 and *e. */
int command_numbers(const char *list, const char *option, int64_t lo, int64_t hi, int64_t *out, int max, struct err *e);
/* Everything a stream has, owned, NUL terminated; at most max_bytes. */
char *command_read_all(int fd, const char *what, size_t max_bytes, size_t *n, struct err *e);

struct url; /* eval/url.h */
/* An option was given, and not by the environment: that is for all commands, and what means nothing to one of them is passed over. */
bool command_given(bool given, const char *name);
/* The server of --url or --serve, with the options' key and timeout. Options of an engine are refused: the server has its own already. */
int command_remote(const struct options *o, const char *option, const char *address, struct url *u, struct err *e);

/* Open the vocabulary of the options' model (owned, tok_close); NULL after printing why, with *status set. */
struct tokenizer *command_tokenizer(const struct options *o, int *status);
/* fn's answer to each line of standard input, on a line of standard output. Returns owned; NULL and *e gives {"error": "..."} in its place, so that
 * line numbers keep matching. Blank lines are passed over. Returns the exit status: 2 when a line could not be done. */
typedef json_t *(*command_line_fn)(void *ctx, const json_t *in, struct err *e);
int command_lines(command_line_fn fn, void *ctx);

#endif
