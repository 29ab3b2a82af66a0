/* parts.c — a message's text → parts. */
#include "server/parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static void add_part(struct choice *o, enum cygnet_part_kind kind, const char *text, size_t n, int call) {
  struct part *last = o->n_parts ? &o->parts[o->n_parts - 1] : NULL;
  size_t at = o->part_text.len;
  buf_append(&o->part_text, text, n);
  if (last && last->kind == kind && kind != CYGNET_PART_CALL) {
    last->n += n;
    return;
  }
  if (o->n_parts == o->cap_parts) {
    o->cap_parts = o->cap_parts ? 2 * o->cap_parts : 4;
    o->parts = xrealloc(o->parts, (size_t)o->cap_parts * sizeof *o->parts);
  }
  o->parts[o->n_parts++] = (struct part){.kind = kind, .at = at, .n = n, .call = call};
}

static void add_call(struct choice *o, const struct cygnet_part *p) {
  if (o->n_calls == o->cap_calls) {
    o->cap_calls = o->cap_calls ? 2 * o->cap_calls : 4;
    o->calls = xrealloc(o->calls, (size_t)o->cap_calls * sizeof *o->calls);
  }
  struct answer_call *c = &o->calls[o->n_calls];
  *c = (struct answer_call){.name = xstrndup(p->name, p->n_name), .arguments = xstrndup(p->text, p->n_text), .n_arguments = p->n_text};
  call_random_id(c->id, sizeof c->id, "call_");
  add_part(o, CYGNET_PART_CALL, "", 0, o->n_calls++);
}

/* Thoughts that were held back for being whole. */
static void end_thought(struct choice *o) {
  if (!o->held_reasoning.len) return;
  add_part(o, CYGNET_PART_REASONING, o->held_reasoning.data, o->held_reasoning.len, -1);
  buf_clear(&o->held_reasoning);
}

static void take_part(void *ctx, const struct cygnet_part *p) {
  struct choice *o = ctx;
  const struct job *j = &o->call->job;
  enum cygnet_part_kind kind = p->kind == CYGNET_PART_REASONING && j->merge_thoughts ? CYGNET_PART_CONTENT : p->kind;
  if (kind == CYGNET_PART_REASONING) {
    buf_append(&o->reasoning, p->text, p->n_text);
    if (j->hold_thoughts) buf_append(&o->held_reasoning, p->text, p->n_text);
    else add_part(o, kind, p->text, p->n_text, -1);
    return;
  }
  end_thought(o);
  if (kind == CYGNET_PART_CALL) add_call(o, p);
  else add_part(o, kind, p->text, p->n_text, -1);
}

void parts_take(const struct api *a, struct choice *o, const struct message *m, bool keep_text) {
  const struct job *j = &o->call->job;
  o->n_parts = 0;
  buf_clear(&o->part_text);
  if (!j->apart) {
    if (m->text.len) add_part(o, CYGNET_PART_CONTENT, m->text.data, m->text.len, -1);
  } else {
    if (!o->parser) o->parser = a->port.parser_new(a->port.self, (const char *const *)j->names, j->n_names, j->in_thought, take_part, o);
    if (m->text.len || m->n_marks) a->port.parser_push(o->parser, buf_cstr(&m->text), m->text.len, m->marks, m->n_marks);
    if (m->finish) a->port.parser_finish(o->parser);
    if (m->finish) end_thought(o);
  }
  for (int i = 0; keep_text && i < o->n_parts; i++) {
    struct str text = parts_text(o, &o->parts[i]);
    if (o->parts[i].kind == CYGNET_PART_CONTENT) buf_append(&o->text, text.p, text.n);
  }
  if (m->finish == CYGNET_FINISH_STOP && o->n_calls) o->finish = "tool_calls";
}

int parts_block(struct choice *o, const struct part *p, bool *begun) {
  struct str text = p ? parts_text(o, p) : (struct str){0};
  enum cygnet_part_kind kind = p ? p->kind : CYGNET_PART_CONTENT;
  *begun = !o->n_blocks || kind == CYGNET_PART_CALL || o->blocks[o->n_blocks - 1].kind != kind;
  if (*begun) {
    if (o->n_blocks == o->cap_blocks) {
      o->cap_blocks = o->cap_blocks ? 2 * o->cap_blocks : 4;
      o->blocks = xrealloc(o->blocks, (size_t)o->cap_blocks * sizeof *o->blocks);
    }
    o->blocks[o->n_blocks] = (struct block){.kind = kind, .call = p ? p->call : -1};
    buf_init(&o->blocks[o->n_blocks].text, 0);
    buf_init(&o->blocks[o->n_blocks].logprobs, 0);
    o->n_blocks++;
  }
  buf_append(&o->blocks[o->n_blocks - 1].text, text.p, text.n);
  return o->n_blocks - 1;
}
