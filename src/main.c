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

static const struct {
  const char *name;
  enum command bit;
  int (*run)(const struct options *o);
  const char *usage, *what;
} commands[] = {
    {"serve", CMD_SERVE, cmd_serve, "cygnet serve -m MODEL [options]", "answer over HTTP: OpenAI's API and a chat page"},
    {"chat", CMD_CHAT, cmd_chat, "cygnet chat -m MODEL [options]", "talk to a model in the terminal"},
    {"complete", CMD_COMPLETE, cmd_complete, "cygnet complete -m MODEL (-p TEXT | -f FILE | --ids LIST) [options]", "continue a text"},
    {"logits", CMD_LOGITS, cmd_logits, "cygnet logits -m MODEL (--ids LIST | -p TEXT) --out FILE.safetensors [options]",
     "write the logits of every position of a prompt"},
    {"tokenize", CMD_TOKENIZE, cmd_tokenize, "cygnet tokenize -m MODEL < LINES",
     "JSON lines {\"text\": …, \"special\": bool, \"bos\": bool} in, {\"ids\": […], \"decoded\": …} out"},
    {"render", CMD_RENDER, cmd_render, "cygnet render -m MODEL < LINES",
     "JSON lines {\"messages\": […], \"tools\": […], \"options\": {…}} in, {\"ids\": […], \"text\": …} out"},
    {"parse", CMD_PARSE, cmd_parse, "cygnet parse -m MODEL < LINES",
     "JSON lines {\"chunks\": […], \"options\": {…}, \"finish\": …} in, {\"content\", \"reasoning_content\", \"tool_calls\", \"finish_reason\"} out"},
    {"preprocess", CMD_PREPROCESS, cmd_preprocess,
     "cygnet preprocess -m MODEL (--image FILE | --audio FILE) --out FILE.safetensors [options]",
     "write what the model's encoder gets of a picture or a sound"},
    {"bench", CMD_BENCH, cmd_bench, "cygnet bench -m MODEL [options]", "measure prefill and decode beside what the machine can do"},
    {"eval", CMD_EVAL, cmd_eval, "cygnet eval SUITE (-m MODEL | --url URL) --data PATH [--min SCORE] [options]",
     "judge a model by questions with known answers, a text, or a reference: gsm8k, aime, mmmu, mmmu-pro, perplexity, kl"},
    {"pull", CMD_PULL, cmd_pull, "cygnet pull ORG/NAME[@REVISION][:FILE] [--out FOLDER] [options]",
     "fetch a model from a Hugging Face-style hub: afterwards -m ORG/NAME[:FILE] finds it"},
    {"inspect", CMD_INSPECT, cmd_inspect, "cygnet inspect MODEL [options]", "architecture, tensors, memory plan of a model"},
};

static int usage(FILE *to) {
  fprintf(to, "cygnet %s: inference for language models with hybrid attention\n\nusage: cygnet COMMAND [options]\n\n", cygnet_version());
  for (size_t i = 0; i < ARRAY_LEN(commands); i++) fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].what);
  fprintf(to, "\n'cygnet COMMAND --help' lists a command's options. A first try:\n"
              "  cygnet complete -m model.gguf -p 'The capital of France is' -n 16\n");
  return to == stderr ? 2 : 0;
}

static int help(size_t i) {
  struct buf b;
  buf_init(&b, 0);
  buf_printf(&b, "%s\n%s\n", commands[i].usage, commands[i].what);
  opts_help(&options_table, commands[i].bit, &b);
  fputs(buf_cstr(&b), stdout);
  buf_free(&b);
  return 0;
}

static int run(int argc, char **argv) {
  if (argc < 2) return usage(stderr);
  if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) return usage(stdout);
  if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "version")) {
    printf("cygnet %s\n", cygnet_version());
    return 0;
  }
  size_t i = 0;
  while (i < ARRAY_LEN(commands) && strcmp(commands[i].name, argv[1])) i++;
  struct err e = {0};
  if (i == ARRAY_LEN(commands)) {
    err_set(&e, ERR_BAD_INPUT, "no command \"%s\": 'cygnet --help' lists them", argv[1]);
    return command_fail(&e);
  }
  struct options o = {0};
  const char *words[1];
  int n_words = 0, status;
  if (opts_parse(&options_table, commands[i].bit, argc - 2, argv + 2, &o, words,
                 commands[i].bit & (CMD_INSPECT | CMD_EVAL | CMD_PULL) ? 1 : 0, &n_words, &e))
    status = command_fail(&e);
  else if (o.help) status = help(i);
  else {
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
