/* output.c — the states an answer goes through, and markers in text that spells them out. */
#include "text/output.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/output_impl.h"

const char *const output_spellings[MARKS] = {"<|channel>",       "<channel|>",       "<|tool_call>", "<tool_call|>",
                                             "<|tool_response>", "<tool_response|>", "<|\"|>",       "<|python_tag|>"};

enum { BEGINNING_MAX = 64 }; /* a longer beginning that still says nothing is kept to the end */

static const char frame[] = "thought\n"; /* after <|channel>; belongs to the thought's frame */

enum state {
  STATE_CONTENT,
  STATE_NAME, /* after <|channel>: what of the frame has come */
  STATE_REASONING,
  STATE_CALL,  /* between <|tool_call> and its end */
  STATE_WHOLE, /* Llama: everything is kept, to be looked at when it is whole */
};

struct output {
  struct output_options o; /* names are owned */
  output_fn fn;
  void *ctx;
  int32_t ids[MARKS];  /* -1: this vocabulary has none, or the family does not use it */
  bool used[MARKS];    /* by the family */
  bool in_text[MARKS]; /* used, and the vocabulary has no token for it: its spelling is all that there can be */
  bool any_in_text;
  enum state state;
  int n_calls;
  int name_n;         /* STATE_NAME: bytes of the frame so far */
  bool line_held;     /* STATE_REASONING: a line feed that may belong to the frame */
  bool after_call;    /* STATE_CONTENT: blanks are held, they matter only if text follows */
  bool tagged;        /* Llama: after the tag */
  struct buf held;    /* blanks after a call; STATE_CALL: the call; STATE_WHOLE: the answer so far */
  struct buf pending; /* output_raw: what may be the beginning of a marker or of a character */
  struct buf shown;   /* on its way to fn */
  enum output_kind shown_kind;
  struct values scratch;
};

/* ---- life -------------------------------------------------------------------------------------------------------------------- */

static bool uses(enum tok_family f, enum output_marker m) {
  return f == TOK_GEMMA4 ? m != MARK_PYTHON : f == TOK_LLAMA3 && m == MARK_PYTHON;
}

struct output *output_new(const struct tokenizer *t, const struct output_options *o, output_fn fn, void *ctx) {
  struct output *out = xcalloc(1, sizeof *out);
  out->o = *o;
  out->fn = fn;
  out->ctx = ctx;
  char **names = xcalloc((size_t)o->n_names + 1, sizeof *names);
  for (int i = 0; i < o->n_names; i++) names[i] = xstrdup(o->names[i]);
  out->o.names = (const char *const *)names;
  for (enum output_marker m = 0; m < MARKS; m++) {
    out->used[m] = uses(o->family, m);
    out->ids[m] = t && out->used[m] ? tok_find(t, output_spellings[m]) : -1;
    out->in_text[m] = t && out->used[m] && out->ids[m] < 0;
    out->any_in_text |= out->in_text[m];
  }
  buf_init(&out->held, 0);
  buf_init(&out->pending, 0);
  buf_init(&out->shown, 0);
  values_init(&out->scratch);
  if (o->family == TOK_GEMMA4) out->state = o->in_thought ? STATE_REASONING : STATE_CONTENT;
  else out->state = o->tools && o->n_names ? STATE_WHOLE : STATE_CONTENT;
  return out;
}

void output_delete(struct output *o) {
  if (!o) return;
  for (int i = 0; i < o->o.n_names; i++) free((char *)(uintptr_t)o->o.names[i]);
  free((void *)(uintptr_t)o->o.names);
  buf_free(&o->held);
  buf_free(&o->pending);
  buf_free(&o->shown);
  values_free(&o->scratch);
  free(o);
}

int output_calls(const struct output *o) { return o->n_calls; }
bool output_in_thought(const struct output *o) { return o->state == STATE_NAME || o->state == STATE_REASONING; }

/* ---- parts ------------------------------------------------------------------------------------------------------------------- */

static void flush(struct output *o) {
  if (o->shown.len) {
    struct output_part part = {.kind = o->shown_kind, .text = str_of(o->shown.data, o->shown.len)};
    o->fn(o->ctx, &part);
  }
  buf_clear(&o->shown);
}

static void show(struct output *o, enum output_kind kind, const char *p, size_t n) {
  if (!n) return;
  if (kind != o->shown_kind) flush(o);
  o->shown_kind = kind;
  buf_append(&o->shown, p, n);
}

static void give_call(void *ctx, struct str name, struct str arguments) {
  struct output *o = ctx;
  struct output_part part = {.kind = OUTPUT_CALL, .text = arguments, .name = name, .index = o->n_calls++};
  flush(o);
  o->fn(o->ctx, &part);
}

/* ---- text -------------------------------------------------------------------------------------------------------------------- */

static void show_reasoning(struct output *o, const char *p, size_t n) {
  if (!n) return;
  if (o->line_held) show(o, OUTPUT_REASONING, "\n", 1);
  o->line_held = p[n - 1] == '\n';
  show(o, OUTPUT_REASONING, p, n - o->line_held);
}

/* Up to where text and frame agree; from there on it is a thought under another name, or the thought itself. */
static void take_name(struct output *o, const char *p, size_t n) {
  const int whole = (int)strlen(frame);
  size_t i = 0;
  while (i < n && o->name_n < whole && p[i] == frame[o->name_n]) i++, o->name_n++;
  if (i == n && o->name_n < whole) return;
  int other = o->name_n < whole ? o->name_n : 0;
  o->state = STATE_REASONING;
  o->line_held = false;
  show_reasoning(o, frame, (size_t)other);
  show_reasoning(o, p + i, n - i);
}

static void show_content(struct output *o, const char *p, size_t n) {
  if (o->after_call) {
    buf_append(&o->held, p, n);
    if (output_all_blank(str_of(p, n))) return;
    show(o, OUTPUT_CONTENT, o->held.data, o->held.len);
    buf_clear(&o->held);
    o->after_call = false;
    return;
  }
  show(o, OUTPUT_CONTENT, p, n);
}

/* Llama: the beginning may say that no call can come without a tag. */
static void keep_whole(struct output *o, const char *p, size_t n) {
  bool early = !o->tagged && o->held.len < BEGINNING_MAX;
  buf_append(&o->held, p, n);
  if (!early || !output_llama_hopeless(str_of(o->held.data, o->held.len))) return;
  show(o, OUTPUT_CONTENT, o->held.data, o->held.len);
  buf_clear(&o->held);
  o->state = STATE_CONTENT;
}

static void take_text(struct output *o, const char *p, size_t n) {
  if (!n) return;
  switch (o->state) {
  case STATE_CONTENT: show_content(o, p, n); return;
  case STATE_NAME: take_name(o, p, n); return;
  case STATE_REASONING: show_reasoning(o, p, n); return;
  case STATE_CALL: buf_append(&o->held, p, n); return;
  case STATE_WHOLE: keep_whole(o, p, n); return;
  }
}

/* ---- markers ----------------------------------------------------------------------------------------------------------------- */

/* A thought that ended where its frame was still being written: nothing, or the beginning of another name. */
static void end_name(struct output *o) {
  if (o->name_n < (int)strlen(frame) - 1) show(o, OUTPUT_REASONING, frame, (size_t)o->name_n);
  o->name_n = 0;
}

static void end_call(struct output *o) {
  bool call = output_gemma4_call(str_of(buf_cstr(&o->held), o->held.len), &o->scratch, give_call, o);
  if (!call)
    for (size_t i = 0; i < o->held.len; i++)
      if (o->held.data[i] == OUTPUT_QUOTE) o->held.data[i] = '"';
  if (!call) show(o, OUTPUT_CONTENT, o->held.data, o->held.len);
  o->state = STATE_CONTENT;
  o->after_call = call;
  buf_clear(&o->held);
}

/* What is held in the state that a thought or a call interrupts. */
static void leave(struct output *o) {
  if (o->state == STATE_NAME) end_name(o);
  if (o->state == STATE_REASONING && o->line_held) show(o, OUTPUT_REASONING, "\n", 1);
  o->line_held = o->after_call = false;
  buf_clear(&o->held);
}

static void take_gemma4(struct output *o, enum output_marker m) {
  if (o->state == STATE_CALL) {
    if (m == MARK_QUOTE) buf_putc(&o->held, OUTPUT_QUOTE);
    if (m == MARK_QUOTE || m == MARK_CHANNEL_END || m == MARK_RESPONSE_END) return;
    end_call(o);
  }
  switch (m) {
  case MARK_QUOTE: take_text(o, "\"", 1); return;
  case MARK_CHANNEL:
    leave(o);
    o->state = STATE_NAME;
    o->name_n = 0;
    return;
  case MARK_CHANNEL_END:
    if (!output_in_thought(o)) return;
    o->line_held = false; /* the frame's own */
    leave(o);
    o->state = STATE_CONTENT;
    return;
  case MARK_CALL:
    if (!o->o.tools) return;
    leave(o);
    o->state = STATE_CALL;
    return;
  case MARK_CALL_END:
  case MARK_RESPONSE:
  case MARK_RESPONSE_END:
  case MARK_PYTHON:
  case MARKS: return;
  }
}

/* Everything before the tag is content, whatever it looks like. */
static void take_tag(struct output *o) {
  if (!o->o.tools || !o->o.n_names || o->tagged) return;
  show(o, OUTPUT_CONTENT, buf_cstr(&o->held), o->held.len);
  buf_clear(&o->held);
  o->state = STATE_WHOLE;
  o->tagged = true;
}

static void take_mark(struct output *o, enum output_marker m) {
  if (m == MARK_PYTHON) take_tag(o);
  else take_gemma4(o, m);
}

/* ---- ways in ----------------------------------------------------------------------------------------------------------------- */

/* How much of the text at p is marker m: all of it, or the text ends within. */
static size_t common(enum output_marker m, const char *p, size_t n) {
  size_t i = 0;
  while (i < n && output_spellings[m][i] && output_spellings[m][i] == p[i]) i++;
  return i;
}

/* A marker at p, or MARKS. known: which ones are looked for. *open: there may be one when more text comes. */
static enum output_marker marker_at(const bool known[MARKS], const char *p, size_t n, bool *open) {
  *open = false;
  for (enum output_marker m = 0; m < MARKS; m++) {
    if (!known[m]) continue;
    size_t same = common(m, p, n);
    if (!output_spellings[m][same]) return m;
    *open |= same == n;
  }
  return MARKS;
}

/* Text with markers spelled out; returns how many bytes were taken, the rest may be the beginning of one. '<' is where all begin and nowhere else
 * in them. */
static size_t take_spelled(struct output *o, const bool known[MARKS], const char *p, size_t n) {
  size_t from = 0, i = 0;
  while (i < n) {
    const char *next = memchr(p + i, '<', n - i);
    bool open;
    if (!next) break;
    i = (size_t)(next - p);
    enum output_marker m = marker_at(known, next, n - i, &open);
    if (m == MARKS && !open) {
      i++;
      continue;
    }
    take_text(o, p + from, i - from);
    if (m == MARKS) return i;
    take_mark(o, m);
    from = i += strlen(output_spellings[m]);
  }
  take_text(o, p + from, n - from);
  return n;
}

/* Well-formed UTF-8 in any case: nothing else may stand in a call's text (OUTPUT_QUOTE). */
static void clean(const char *p, size_t n, struct buf *out) {
  for (size_t i = 0; i < n;) {
    uint32_t cp;
    char put[4];
    i += (size_t)utf8_step(p + i, n - i, &cp, NULL);
    buf_append(out, put, (size_t)utf8_put(cp, put));
  }
}

static void take_plain(struct output *o, const char *text, size_t n) {
  if (utf8_valid(text, n)) {
    take_text(o, text, n);
    return;
  }
  struct buf b;
  buf_init(&b, 0);
  clean(text, n, &b);
  take_text(o, b.data, b.len);
  buf_free(&b);
}

static void end_pending(struct output *o) {
  take_plain(o, buf_cstr(&o->pending), o->pending.len);
  buf_clear(&o->pending);
}

void output_take_marker(struct output *o, enum output_marker m) {
  if (o->pending.len) end_pending(o);
  if (o->used[m]) take_mark(o, m);
  flush(o);
}

void output_mark(struct output *o, int32_t id) {
  for (enum output_marker m = 0; m < MARKS; m++)
    if (id >= 0 && o->ids[m] == id) output_take_marker(o, m);
}

/* The first n bytes of what is pending become well-formed; how many they are then. */
static size_t clean_pending(struct output *o, size_t n) {
  struct buf b;
  if (utf8_valid(buf_cstr(&o->pending), n)) return n;
  buf_init(&b, 0);
  clean(o->pending.data, n, &b);
  size_t whole = b.len;
  buf_append(&b, o->pending.data + n, o->pending.len - n);
  buf_free(&o->pending);
  o->pending = b;
  return whole;
}

static void take_raw(struct output *o, const bool known[MARKS], const char *text, size_t n) {
  buf_append(&o->pending, text, n);
  size_t whole = o->pending.len - (size_t)utf8_incomplete_tail(buf_cstr(&o->pending), o->pending.len);
  whole = clean_pending(o, whole);
  buf_drop_front(&o->pending, take_spelled(o, known, buf_cstr(&o->pending), whole));
  flush(o);
}

void output_raw(struct output *o, const char *text, size_t n) { take_raw(o, o->used, text, n); }

void output_text(struct output *o, const char *text, size_t n) {
  if (o->any_in_text) {
    take_raw(o, o->in_text, text, n);
    return;
  }
  if (o->pending.len) end_pending(o);
  take_plain(o, text, n);
  flush(o);
}

void output_finish(struct output *o) {
  struct str rest = {0};
  if (o->pending.len) end_pending(o);
  switch (o->state) {
  case STATE_CONTENT:
  case STATE_NAME: break; /* blanks after a call, an unfinished frame */
  case STATE_REASONING:
    if (o->line_held) show(o, OUTPUT_REASONING, "\n", 1);
    break;
  case STATE_CALL: end_call(o); break;
  case STATE_WHOLE:
    output_llama_calls(str_of(buf_cstr(&o->held), o->held.len), o->tagged, &o->o, &o->scratch, give_call, o, &rest);
    show(o, OUTPUT_CONTENT, rest.p, rest.n);
    break;
  }
  flush(o);
  o->state = STATE_CONTENT;
  o->after_call = o->line_held = false;
  buf_clear(&o->held);
}
