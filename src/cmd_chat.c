/* cmd_chat.c — talk in the terminal. Ctrl-C stops the answer, not the program; Ctrl-D or /quit ends it. */
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/str.h"
#include "commands.h"

static volatile sig_atomic_t interrupted;
static void on_interrupt(int sig) {
  (void)sig;
  interrupted = 1;
}

static const char help_text[] = "  /help          this list\n"
                                "  /new           forget the conversation\n"
                                "  /undo          take back the last question and its answer\n"
                                "  /system TEXT   instructions before the conversation; starts anew\n"
                                "  /quit          end (or Ctrl-D)\n"
                                "  a line that ends in \\ goes on in the next; Ctrl-C stops an answer\n";

struct chat {
  struct cygnet *c;
  const struct options *o;
  json_t *messages;
  char *system;
  bool terminal;
};

static void say(json_t *messages, const char *role, const char *text, size_t n) {
  json_t *m = json_object();
  json_object_set_new(m, "role", json_string(role));
  json_object_set_new(m, "content", json_stringn(text, n));
  json_array_append_new(messages, m);
}

static void start_anew(struct chat *h) {
  json_array_clear(h->messages);
  if (h->system && h->system[0]) say(h->messages, "system", h->system, strlen(h->system));
}

/* One answer, streamed; appended to the conversation. Returns 0, or an exit status after printing why. */
static int answer(struct chat *h) {
  struct cygnet_error e = {0};
  int32_t *ids = NULL;
  size_t n = 0;
  char *json = json_dumps(h->messages, 0);
  int bad = cygnet_render(h->c, json, NULL, NULL, &ids, &n, NULL, NULL, &e);
  free(json);
  if (bad) return command_fail_public(&e);
  struct cygnet_request r = {.prompt = ids,
                             .n_prompt = n,
                             .max_tokens = h->o->n >= 0 ? (int)h->o->n : -1,
                             .stop = (const char *const *)h->o->stop.v,
                             .n_stop = (size_t)h->o->stop.n,
                             .ignore_eos = h->o->ignore_eos};
  options_sampling(h->o, CMD_CHAT, &r.sampling);
  uint64_t number = cygnet_submit(h->c, &r, &e);
  cygnet_free(ids);
  if (!number) return command_fail_public(&e);

  struct buf text;
  buf_init(&text, 0);
  struct cygnet_event ev = {0};
  bool done = false, aborted = false;
  int status = 0;
  while (!done) {
    if (interrupted && !aborted) {
      cygnet_abort(h->c, number);
      aborted = true;
    }
    int busy = cygnet_step(h->c), events = 0;
    while (cygnet_next_event(h->c, &ev)) {
      events++;
      fwrite(ev.text, 1, ev.n_text, stdout);
      fflush(stdout);
      buf_append(&text, ev.text, ev.n_text);
      if (ev.finish) done = true;
      if (ev.finish == CYGNET_FINISH_ERROR) status = command_fail_public(&ev.error);
      if (ev.finish == CYGNET_FINISH_LENGTH && h->terminal) fprintf(stderr, "\n[the answer reached its limit]");
    }
    if (!busy && !events && !done) break;
  }
  putchar('\n');
  if (aborted && h->terminal) fprintf(stderr, "[stopped]\n");
  interrupted = 0;
  say(h->messages, "assistant", buf_cstr(&text), text.len);
  buf_free(&text);
  return status;
}

/* A line, or several joined by a backslash at the end. NULL at the end of input. Owned. */
static char *read_message(const struct chat *h) {
  struct buf b;
  buf_init(&b, 64 << 20);
  char *line = NULL;
  size_t cap = 0;
  bool any = false, more = true;
  while (more) {
    if (h->terminal) {
      fputs(any ? "… " : "> ", stderr);
      fflush(stderr);
    }
    ssize_t n = getline(&line, &cap, stdin);
    if (n < 0) {
      if (interrupted) { /* Ctrl-C at the prompt: a fresh line */
        interrupted = 0;
        clearerr(stdin);
        fputc('\n', stderr);
        buf_clear(&b);
        any = false;
        continue;
      }
      break;
    }
    any = true;
    while (n && (line[n - 1] == '\n' || line[n - 1] == '\r')) n--;
    more = n && line[n - 1] == '\\';
    buf_append(&b, line, (size_t)(more ? n - 1 : n));
    if (more) buf_putc(&b, '\n');
  }
  free(line);
  if (!any) {
    buf_free(&b);
    return NULL;
  }
  size_t n;
  buf_append(&b, "", 0);
  return buf_take(&b, &n);
}

/* True when the program should end. */
static bool command(struct chat *h, const char *text) {
  if (!strcmp(text, "/quit") || !strcmp(text, "/exit")) return true;
  if (!strcmp(text, "/new")) start_anew(h);
  else if (!strcmp(text, "/undo")) {
    size_t n = json_array_size(h->messages), keep = h->system && h->system[0] ? 1 : 0;
    for (int i = 0; i < 2 && n > keep; i++) json_array_remove(h->messages, --n);
  } else if (!strncmp(text, "/system ", 8)) {
    free(h->system);
    h->system = strdup(text + 8);
    start_anew(h);
  } else {
    if (strcmp(text, "/help")) fprintf(stderr, "no command \"%s\"\n", text);
    fputs(help_text, stderr);
  }
  return false;
}

static int converse(struct chat *h) {
  if (h->o->prompt) {
    say(h->messages, "user", h->o->prompt, strlen(h->o->prompt));
    return answer(h);
  }
  if (h->terminal && !h->o->quiet) {
    struct cygnet_info info;
    cygnet_info(h->c, &info);
    fprintf(stderr, "%s, context %d tokens, %s, %d thread%s. /help lists commands.\n", info.name, info.ctx_tokens, info.isa, info.threads,
            info.threads == 1 ? "" : "s");
  }
  int status = 0;
  bool end = false;
  while (!end) {
    char *text = read_message(h);
    if (!text) break;
    if (text[0] == '/') end = command(h, text);
    else if (text[0]) {
      size_t before = json_array_size(h->messages);
      say(h->messages, "user", text, strlen(text));
      status = answer(h);
      while (status && json_array_size(h->messages) > before) json_array_remove(h->messages, json_array_size(h->messages) - 1);
      if (h->terminal) status = 0; /* a person saw the message and can go on */
      end = status != 0;
    }
    free(text);
  }
  return status;
}

int cmd_chat(const struct options *o) {
  int status = 0;
  struct chat h = {.o = o, .terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)};
  struct options alone = *o;
  alone.max_running = 1;
  h.c = command_open(&alone, &status);
  if (!h.c) return status;
  struct sigaction act = {.sa_handler = on_interrupt}; /* no SA_RESTART: reading a line ends */
  sigaction(SIGINT, &act, NULL);
  h.messages = json_array();
  h.system = o->system ? strdup(o->system) : NULL;
  start_anew(&h);
  status = converse(&h);
  json_decref(h.messages);
  free(h.system);
  cygnet_close(h.c);
  return status;
}
