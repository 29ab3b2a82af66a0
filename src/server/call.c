/* call.c — calls, messages and the error object. */
#include "server/media.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/mem.h"

enum { MESSAGE_TEXT_MAX = 64 << 20 };

void call_random_id(char *out, size_t size, const char *prefix) {
  unsigned char random[12] = {0};
  if (getrandom(random, sizeof random, 0) < 0) { /* ids only have to be different */
    int64_t now = clock_ns();
    for (size_t i = 0; i < sizeof random; i++) random[i] = (unsigned char)(now >> (i * 5));
  }
  int at = snprintf(out, size, "%s", prefix);
  for (size_t i = 0; i < sizeof random; i++) at += snprintf(out + at, size - (size_t)at, "%02x", random[i]);
}

struct call *call_new(const struct dialect *dialect) {
  struct call *c = xcalloc(1, sizeof *c);
  c->dialect = dialect;
  atomic_init(&c->cancelled, false);
  atomic_init(&c->abort_wanted, false);
  c->created = clock_unix_s();
  c->arrived_ns = clock_ns();
  call_random_id(c->id, sizeof c->id, dialect->id_prefix);
  return c;
}

static void job_free(struct job *j, const struct api *a) {
  for (int i = 0; i < j->n_prompts; i++) {
    struct job_prompt *p = &j->prompts[i];
    if (p->own) job_free(p->own, a);
    free(p->own);
    free(p->ids);
    free(p->media);
    free(p->text);
    free(p->rid);
  }
  free(j->prompts);
  if (j->media) media_free(a, j);
  for (int i = 0; i < j->n_stop; i++) free(j->stop[i]);
  free(j->stop);
  free(j->stop_ids);
  free(j->bias);
  free(j->cache_salt);
  free(j->repeated);
  if (j->grammar) a->port.grammar_free(j->grammar);
  for (int i = 0; i < j->n_names; i++) free(j->names[i]);
  free(j->names);
}

static void calls_free(struct choice *o) {
  for (int i = 0; i < o->n_calls; i++) {
    free(o->calls[i].name);
    free(o->calls[i].arguments);
  }
  free(o->calls);
}

void call_free(struct call *c) {
  if (!c) return;
  for (int i = 0; i < c->n_choices; i++) {
    struct choice *o = &c->choices[i];
    buf_free(&o->text);
    buf_free(&o->logprobs);
    buf_free(&o->token_logprobs);
    buf_free(&o->top_logprobs);
    buf_free(&o->text_offsets);
    buf_free(&o->output_ids);
    buf_free(&o->input_logprobs);
    buf_free(&o->input_tops);
    buf_free(&o->unsent_logprobs);
    if (o->parser) c->api->port.parser_free(o->parser);
    buf_free(&o->part_text);
    buf_free(&o->reasoning);
    buf_free(&o->held_reasoning);
    free(o->parts);
    for (int k = 0; k < o->n_blocks; k++) {
      buf_free(&o->blocks[k].text);
      buf_free(&o->blocks[k].logprobs);
    }
    free(o->blocks);
    calls_free(o);
  }
  free(c->choices);
  job_free(&c->job, c->api);
  buf_free(&c->body);
  free(c->rid);
  free(c);
}

struct message *message_new(struct call *c, enum message_kind kind) {
  struct message *m = xcalloc(1, sizeof *m);
  m->call = c;
  m->kind = kind;
  buf_init(&m->text, MESSAGE_TEXT_MAX);
  return m;
}

void message_free(struct message *m) {
  if (!m) return;
  buf_free(&m->text);
  free(m->marks);
  free(m->tokens);
  free(m->tops);
  free(m->prompt);
  free(m->prompt_tops);
  free(m);
}

int api_error_set(struct api_error *e, int status, const char *code, const char *param, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  e->status = status;
  e->code = code;
  e->placed = false;
  snprintf(e->param, sizeof e->param, "%s", param ? param : "");
  vsnprintf(e->message, sizeof e->message, fmt, args);
  va_end(args);
  return -1;
}

static const char *type_of(int status) {
  if (status == 401) return "authentication_error";
  if (status == 403) return "permission_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

static void put_nullable(struct buf *out, const char *name, const char *value) {
  if (!value || !*value) {
    buf_printf(out, ",\"%s\":null", name);
    return;
  }
  buf_printf(out, ",\"%s\":\"", name);
  buf_json_escape(out, value, strlen(value));
  buf_putc(out, '"');
}

void api_error_put(struct buf *out, const struct api_error *e) {
  buf_puts(out, "{\"error\":{\"message\":\"");
  buf_json_escape(out, e->message, strlen(e->message));
  buf_printf(out, "\",\"type\":\"%s\"", type_of(e->status));
  put_nullable(out, "param", e->param);
  put_nullable(out, "code", e->code);
  buf_puts(out, "}}");
}
