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
                                "  /think         let the model think before it answers, or no longer\n"
                                "  /image FILE    a picture for your next message; again for more\n"
                                "  /audio FILE    a sound for your next message\n"
                                "  /system TEXT   instructions before the conversation; starts anew\n"
                                "  /quit          end (or Ctrl-D)\n"
                                "  a line that ends in \\ goes on in the next; Ctrl-C stops an answer\n";

struct chat {
  struct cygnet *c;
  const struct options *o;
  json_t *messages;
  json_t *parts;              /* of the next message: what stands for its pictures and sounds */
  struct command_media media; /* of all messages, then of the next one */
  char *system;
  bool terminal, thinks; /* thoughts are asked for */
};

static void say(json_t *messages, const char *role, const char *text, size_t n) {
  json_t *m = json_object();
  json_object_set_new(m, "role", json_string(role));
  json_object_set_new(m, "content", json_stringn(text, n));
  json_array_append_new(messages, m);
}

/* The user's, with what was put to it. */
static void ask(struct chat *h, const char *text, size_t n) {
  if (!json_array_size(h->parts)) {
    say(h->messages, "user", text, n);
    return;
  }
  json_array_append_new(h->parts, json_pack("{s:s, s:s%}", "type", "text", "text", text, n));
  json_array_append_new(h->messages, json_pack("{s:s, s:O}", "role", "user", "content", h->parts));
  json_decref(h->parts);
  h->parts = json_array();
}

/* Pictures and sounds of the messages that are there. */
static size_t count_media(const json_t *messages) {
  size_t count = 0;
  for (size_t i = 0; i < json_array_size(messages); i++) {
    const json_t *content = json_object_get(json_array_get(messages, i), "content");
    if (json_is_array(content)) count += json_array_size(content) - 1; /* and the text */
  }
  return count;
}

/* Messages from n on are taken back, with what belongs to them. */
static void take_back(struct chat *h, size_t n) {
  while (json_array_size(h->messages) > n) json_array_remove(h->messages, json_array_size(h->messages) - 1);
  json_array_clear(h->parts);
  command_media_cut(&h->media, count_media(h->messages));
}

static bool attach(struct chat *h, enum cygnet_media_kind kind, const char *path) {
  struct err e = {0};
  while (*path == ' ') path++;
  if (command_media_add(&h->media, h->o, h->c, kind, path, &e)) {
    command_fail(&e);
    return false;
  }
  json_array_append_new(h->parts, json_pack("{s:s}", "type", kind == CYGNET_AUDIO ? "input_audio" : "image_url"));
  if (h->terminal) fprintf(stderr, "goes with your next message: %d tokens\n", cygnet_media_tokens(h->media.v[h->media.n - 1]));
  return true;
}

static void start_anew(struct chat *h) {
  take_back(h, 0);
  if (h->system && h->system[0]) say(h->messages, "system", h->system, strlen(h->system));
}

/* An answer on its way to the terminal: thoughts dimmed where there is one, left out elsewhere. */
struct shown {
  const struct chat *h;
  struct buf answer; /* for the conversation: thoughts are not part of it */
  bool dim;
};

static void set_dim(struct shown *s, bool dim) {
  if (s->dim == dim) return;
  s->dim = dim;
  if (s->h->terminal) fputs(dim ? "\033[2m" : "\033[0m\n", stdout);
}

static void show_part(void *ctx, const struct cygnet_part *part) {
  struct shown *s = ctx;
  bool thought = part->kind == CYGNET_PART_REASONING;
  if (part->n_text == 0) return;
  if (!thought) buf_append(&s->answer, part->text, part->n_text);
  if (thought && !s->h->terminal) return;
  set_dim(s, thought);
  fwrite(part->text, 1, part->n_text, stdout);
  fflush(stdout);
}

static int render(struct chat *h, int32_t **ids, size_t *n, int *in_thought, struct cygnet_error *e) {
  char *json = json_dumps(h->messages, 0);
  int bad = cygnet_render(h->c, json, NULL, h->thinks ? "{\"enable_thinking\": true}" : NULL, ids, n, NULL, in_thought, e);
  free(json);
  return bad;
}

/* Steps until the answer is over or was stopped. Returns 0, or an exit status after printing why. */
static int stream(struct chat *h, uint64_t number, struct cygnet_parser *parser) {
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
      cygnet_parser_push(parser, ev.text, ev.n_text, ev.marks, ev.n_marks);
      if (ev.finish) done = true;
      if (ev.finish == CYGNET_FINISH_ERROR) status = command_fail_public(&ev.error);
      if (ev.finish == CYGNET_FINISH_LENGTH && h->terminal) fprintf(stderr, "\n[the answer reached its limit]");
    }
    if (!busy && !events && !done) break;
  }
  cygnet_parser_finish(parser);
  if (aborted && h->terminal) fprintf(stderr, "\n[stopped]");
  interrupted = 0;
  return status;
}

/* One answer, streamed; appended to the conversation. Returns 0, or an exit status after printing why. */
static int answer(struct chat *h) {
  struct cygnet_error e = {0};
  int32_t *ids = NULL;
  size_t n = 0;
  int in_thought = 0;
  if (render(h, &ids, &n, &in_thought, &e)) return command_fail_public(&e);
  struct cygnet_request r = {.prompt = ids,
                             .n_prompt = n,
                             .media = (const struct cygnet_media *const *)h->media.v,
                             .n_media = h->media.n,
                             .max_tokens = h->o->n >= 0 ? (int)h->o->n : -1,
                             .stop = (const char *const *)h->o->stop.v,
                             .n_stop = (size_t)h->o->stop.n,
                             .ignore_eos = h->o->ignore_eos,
                             .marks = 1,
                             .thoughts = in_thought ? CYGNET_THOUGHTS_OPEN : CYGNET_THOUGHTS_FREE};
  options_sampling(h->o, CMD_CHAT, &r.sampling);
  uint64_t number = cygnet_submit(h->c, &r, &e);
  cygnet_free(ids);
  if (!number) return command_fail_public(&e);

  struct shown shown = {.h = h};
  buf_init(&shown.answer, 0);
  struct cygnet_parser *parser = cygnet_parser_new(h->c, NULL, 0, in_thought, show_part, &shown);
  int status = stream(h, number, parser);
  cygnet_parser_free(parser);
  set_dim(&shown, false);
  putchar('\n');
  say(h->messages, "assistant", buf_cstr(&shown.answer), shown.answer.len);
  buf_free(&shown.answer);
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

static void switch_thinking(struct chat *h) {
  struct cygnet_info info;
  cygnet_info(h->c, &info);
  h->thinks = !h->thinks && info.chat_thinks;
  fprintf(stderr, "%s\n", h->thinks ? "thinks before it answers" : info.chat_thinks ? "answers at once" : "this model knows no thoughts");
}

/* True when the program should end. */
static bool command(struct chat *h, const char *text) {
  if (!strcmp(text, "/quit") || !strcmp(text, "/exit")) return true;
  if (!strcmp(text, "/new")) start_anew(h);
  else if (!strcmp(text, "/think")) switch_thinking(h);
  else if (!strcmp(text, "/undo")) {
    size_t n = json_array_size(h->messages), keep = h->system && h->system[0] ? 1 : 0;
    take_back(h, n > keep + 2 ? n - 2 : keep);
  } else if (!strncmp(text, "/image ", 7)) {
    attach(h, CYGNET_IMAGE, text + 7);
  } else if (!strncmp(text, "/audio ", 7)) {
    attach(h, CYGNET_AUDIO, text + 7);
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
  for (int i = 0; i < h->o->images.n; i++)
    if (!attach(h, CYGNET_IMAGE, h->o->images.v[i])) return 2;
  for (int i = 0; i < h->o->sounds.n; i++)
    if (!attach(h, CYGNET_AUDIO, h->o->sounds.v[i])) return 2;
  if (h->o->prompt) {
    ask(h, h->o->prompt, strlen(h->o->prompt));
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
      ask(h, text, strlen(text));
      status = answer(h);
      if (status) take_back(h, before);
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
  h.parts = json_array();
  h.thinks = o->think;
  h.system = o->system ? strdup(o->system) : NULL;
  start_anew(&h);
  status = converse(&h);
  json_decref(h.messages);
  json_decref(h.parts);
  command_media_cut(&h.media, 0);
  free(h.system);
  cygnet_close(h.c);
  return status;
}
