/* main.c — the program: find the subcommand, parse its options, run it, exit. The only file with exit(). */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "commands.h"
#include "hub.h"

static int run(int argc, char **argv) {
  if (argc < 2) {
    help_overview(stderr);
    return 2;
  }
  if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
    help_overview(stdout);
    return 0;
  }
  if (!strcmp(argv[1], "help")) return cmd_help(argc - 2, argv + 2);
  if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "version")) {
    printf("cygnet %s\n", cygnet_version());
    return 0;
  }
  int i = 0;
  while (i < n_commands && strcmp(commands[i].name, argv[1])) i++;
  struct err e = {0};
  if (i == n_commands) {
    err_set(&e, ERR_BAD_INPUT, "no command \"%s\": 'cygnet --help' lists them", argv[1]);
    return command_fail(&e);
  }
  struct options o = {0};
  const char *words[1];
  int n_words = 0, status;
  if (opts_parse(&options_table, commands[i].bit, argc - 2, argv + 2, &o, words,
                 commands[i].bit & (CMD_INSPECT | CMD_EVAL | CMD_PULL) ? 1 : 0, &n_words, &e))
    status = command_fail(&e);
  else if (o.help) {
    help_command(&commands[i]);
    status = 0;
  } else {
    const char **word = commands[i].bit == CMD_EVAL ? &o.suite : commands[i].bit == CMD_PULL ? &o.repo : &o.model;
    if (n_words && !*word) *word = strdup(words[0]);
    if (o.verbose) log_set_level(LOG_DEBUG);
    if (o.quiet) log_set_level(LOG_ERROR);
    if (hub_resolve(&o.model, &e) || hub_resolve(&o.draft_model, &e) || hub_resolve(&o.mmproj, &e)) status = command_fail(&e);
    else status = commands[i].run(&o);
  }
  opts_free(&options_table, &o);
  return status;
}

/* Rows of the embedding are read from the mapped file as they are needed: no answer can be right once it was cut. */
static void file_cut(int sig) {
  static const char message[] = "cygnet: a model file was cut short or its disk failed while it was in use\n";
  (void)sig;
  if (write(STDERR_FILENO, message, sizeof message - 1) < 0) {}
  _exit(1);
}

int main(int argc, char **argv) {
  signal(SIGBUS, file_cut);
  signal(SIGPIPE, SIG_IGN); /* a closed pipe is an error of that write, not the end of the process */
  int status = run(argc, argv);
  bool failed = fflush(stdout) != 0;
  if (failed && errno != EPIPE) fprintf(stderr, "cygnet: standard output: %s\n", strerror(errno)); /* a reader that left knows why */
  if (failed || ferror(stdout)) status = status ? status : 1;
  exit(status);
}
