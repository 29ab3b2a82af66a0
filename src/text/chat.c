/* chat.c — reading messages, writing segments, and which family's template to follow. */
#include "text/chat.h"

#include <stdlib.h>
#include <string.h>

#include "base/digest.h"
#include "base/mem.h"
#include "text/chat_impl.h"
#include "text/vocab.h"

/* --- reading ------------------------------------------------------------------------------------------------------------------------- */

static const struct {
  const char *name;
  enum chat_role role;
} roles[] = {{"system", CHAT_SYSTEM}, {"developer", CHAT_DEVELOPER}, {"user", CHAT_USER},   {"assistant", CHAT_ASSISTANT},
             {"tool", CHAT_TOOL},     {"function", CHAT_TOOL},       {"model", CHAT_MODEL}, {"ipython", CHAT_IPYTHON}};

const char *chat_role_name(enum chat_role r) {
  for (size_t i = 0; i < ARRAY_LEN(roles); i++)
    if (roles[i].role == r) return roles[i].name;
  return "";
}

const json_t *chat_get(const json_t *object, const char *key) {
  const json_t *v = json_object_get(object, key);
  return json_is_null(v) ? NULL : v;
}
static struct str string_of(const json_t *s) { return str_of(json_string_value(s), json_string_length(s)); }

/* jansson and the writers recurse. */
static bool deeper_than(const json_t *v, int levels) {
  size_t i;
  const char *key;
  json_t *inner, *value = (json_t *)(uintptr_t)v; /* the macros take no const */
  if (!json_is_array(v) && !json_is_object(v)) return false;
  if (levels == 0) return true;
  json_array_foreach(value, i, inner) if (deeper_than(inner, levels - 1)) return true;
  json_object_foreach(value, key, inner) if (deeper_than(inner, levels - 1)) return true;
  return false;
}

json_t *chat_arguments(const json_t *call) {
  const json_t *arguments = chat_get(json_object_get(call, "function"), "arguments");
  if (!arguments) return json_object();
  json_t *v = NULL;
  if (json_is_string(arguments)) {
    struct str s = string_of(arguments);
    if (!chat_trim(s).n) return json_object();
    v = chat_load_values(s);
  } else {
    v = json_incref((json_t *)(uintptr_t)arguments);
  }
  if (json_is_object(v) && !deeper_than(v, JSON_DEPTH_MAX)) return v;
  json_decref(v);
  return NULL;
}

/* A map, so that thousands of results to thousands of calls take linear time. */
static const char *callee_key(const json_t *id, struct buf *b) {
  buf_clear(b);
  if (id) buf_printf(b, "=%s", json_string_value(id)); /* none: a key that no id has */
  return buf_cstr(b);
}

json_t *chat_callees(const json_t *calls) {
  json_t *callees = json_object();
  struct buf key;
  buf_init(&key, 0);
  for (size_t k = 0; k < json_array_size(calls); k++) {
    const json_t *call = json_array_get(calls, k), *id = chat_get(call, "id");
    if (!id || json_is_string(id))
      json_object_set(callees, callee_key(id, &key), json_object_get(json_object_get(call, "function"), "name"));
  }
  buf_free(&key);
  return callees;
}

int chat_callee(const json_t *callees, const json_t *message, size_t i, const json_t **name, struct err *e) {
  const json_t *id = chat_get(message, "tool_call_id"), *own = chat_get(message, "name");
  struct buf key;
  buf_init(&key, 0);
  *name = !id || json_is_string(id) ? json_object_get(callees, callee_key(id, &key)) : NULL;
  buf_free(&key);
  if (*name || !chat_truthy(own)) return 0;
  if (!json_is_string(own)) return err_set(e, ERR_BAD_INPUT, "messages[%zu].name: expected a string", i);
  *name = own;
  return 0;
}

static int check_calls(const json_t *message, size_t i, struct err *e) {
  const json_t *calls = chat_get(message, "tool_calls");
  if (!calls) return 0;
  if (!json_is_array(calls)) return err_set(e, ERR_BAD_INPUT, "messages[%zu].tool_calls: expected an array", i);
  size_t k;
  json_t *call;
  json_array_foreach(calls, k, call) {
    const json_t *function = json_object_get(call, "function");
    if (!json_is_object(function) || !json_is_string(json_object_get(function, "name")))
      return err_set(e, ERR_BAD_INPUT, "messages[%zu].tool_calls[%zu]: expected an object with function.name", i, k);
    json_t *arguments = chat_arguments(call);
    json_decref(arguments);
    if (!arguments)
      return err_set(e, ERR_BAD_INPUT,
                     "messages[%zu].tool_calls[%zu].function.arguments: expected a JSON object or a string that holds one", i, k);
  }
  return 0;
}

int chat_message_read(const json_t *messages, size_t i, struct chat_message *m, struct err *e) {
  char shown[60];
  const json_t *message = json_array_get(messages, i);
  const json_t *role = json_object_get(message, "role"), *content = chat_get(message, "content");
  if (!json_is_object(message) || !json_is_string(role))
    return err_set(e, ERR_BAD_INPUT, "messages[%zu]: expected an object with a role", i);
  size_t r = 0;
  while (r < ARRAY_LEN(roles) && !str_is(string_of(role), roles[r].name)) r++;
  if (r == ARRAY_LEN(roles))
    return err_set(e, ERR_BAD_INPUT, "messages[%zu].role: expected system, developer, user, assistant or tool, found \"%s\"", i,
                   str_escape(string_of(role), shown, sizeof shown));
  if (content && !json_is_string(content) && !json_is_array(content))
    return err_set(e, ERR_BAD_INPUT, "messages[%zu].content: expected a string or an array of parts", i);
  m->role = roles[r].role;
  m->content = content;
  m->n_parts = !content ? 0 : json_is_array(content) ? (int)json_array_size(content) : 1;
  return check_calls(message, i, e);
}

int chat_part_read(const struct chat_message *m, size_t i, int part, struct chat_part *out, struct err *e) {
  static const struct {
    const char *type;
    enum chat_part_kind kind;
  } kinds[] = {{"text", CHAT_TEXT},       {"input_text", CHAT_TEXT},   {"image_url", CHAT_IMAGE}, {"input_image", CHAT_IMAGE},
               {"image", CHAT_IMAGE},     {"input_audio", CHAT_AUDIO}, {"audio_url", CHAT_AUDIO}, {"audio", CHAT_AUDIO},
               {"video_url", CHAT_VIDEO}, {"video", CHAT_VIDEO}};
  char shown[60];
  *out = (struct chat_part){.kind = CHAT_TEXT};
  if (json_is_string(m->content)) {
    out->text = string_of(m->content);
    return 0;
  }
  const json_t *p = json_array_get(m->content, (size_t)part), *type = json_object_get(p, "type");
  if (!json_is_string(type)) return err_set(e, ERR_BAD_INPUT, "messages[%zu].content[%d]: expected an object with a type", i, part);
  size_t k = 0;
  while (k < ARRAY_LEN(kinds) && !str_is(string_of(type), kinds[k].type)) k++;
  if (k == ARRAY_LEN(kinds))
    return err_set(e, ERR_BAD_INPUT, "messages[%zu].content[%d].type: expected text, image_url or input_audio, found \"%s\"", i, part,
                   str_escape(string_of(type), shown, sizeof shown));
  out->kind = kinds[k].kind;
  if (out->kind != CHAT_TEXT) return 0;
  const json_t *text = json_object_get(p, "text");
  if (!json_is_string(text)) return err_set(e, ERR_BAD_INPUT, "messages[%zu].content[%d].text: expected a string", i, part);
  out->text = string_of(text);
  return 0;
}

int chat_text_only(const struct chat_message *m, size_t i, struct buf *out, struct err *e) {
  for (int k = 0; k < m->n_parts; k++) {
    struct chat_part part;
    if (chat_part_read(m, i, k, &part, e) != 0) return -1;
    if (part.kind != CHAT_TEXT)
      return err_set(e, ERR_BAD_INPUT, "messages[%zu].content[%d]: expected text only in a %s message", i, k, chat_role_name(m->role));
    if (!buf_append(out, part.text.p, part.text.n))
      return err_set(e, ERR_TOO_LARGE, "messages[%zu].content: expected at most %d bytes", i, TOK_TEXT_BYTES_MAX);
  }
  return 0;
}

int chat_last_text(const struct chat_message *m, size_t i, int *last, struct err *e) {
  *last = -1;
  for (int k = 0; k < m->n_parts; k++) {
    struct chat_part part;
    if (chat_part_read(m, i, k, &part, e) != 0) return -1;
    if (part.kind == CHAT_TEXT) *last = k;
  }
  if (*last < 0) return err_set(e, ERR_BAD_INPUT, "messages[%zu].content: expected text that can be continued", i);
  return 0;
}

int chat_refuse_part(enum chat_part_kind kind, size_t i, int part, struct err *e) {
  static const char *const what[] = {[CHAT_TEXT] = "text", [CHAT_IMAGE] = "pictures", [CHAT_AUDIO] = "sound", [CHAT_VIDEO] = "video"};
  return err_set(e, ERR_UNSUPPORTED, "messages[%zu].content[%d]: expected text, this model takes no %s", i, part, what[kind]);
}

/* --- white space --------------------------------------------------------------------------------------------------------------------- */

static bool is_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

struct str chat_trim_right(struct str s) {
  while (s.n) {
    size_t at = s.n - 1;
    while (at > 0 && ((unsigned char)s.p[at] & 0xC0) == 0x80) at--;
    uint32_t c;
    utf8_step(s.p + at, s.n - at, &c, NULL);
    if (!is_space(c)) break;
    s.n = at;
  }
  return s;
}

struct str chat_trim(struct str s) {
  while (s.n) {
    uint32_t c;
    int step = utf8_step(s.p, s.n, &c, NULL);
    if (!is_space(c)) break;
    s.p += step;
    s.n -= (size_t)step;
  }
  return chat_trim_right(s);
}

/* --- writing ------------------------------------------------------------------------------------------------------------------------- */

static void add_segment(struct chat_writer *w, struct chat_segment s) {
  if (w->out->n_segments == w->cap) {
    w->cap = w->cap ? 2 * w->cap : 16;
    w->out->segments = xrealloc(w->out->segments, (size_t)w->cap * sizeof *w->out->segments);
  }
  w->out->segments[w->out->n_segments++] = s;
}

void chat_write(struct chat_writer *w, struct str text) {
  if (!w->stopped && !buf_append(&w->text, text.p, text.n)) w->too_long = true;
}
void chat_write_c(struct chat_writer *w, const char *text) { chat_write(w, str_c(text)); }

void chat_stop(struct chat_writer *w, bool trim) {
  if (!w->stopped && trim && w->text.len) {
    w->text.len = chat_trim_right(str_of(w->text.data, w->text.len)).n;
    w->text.data[w->text.len] = 0;
  }
  w->stopped = true;
}

void chat_write_end(struct chat_writer *w) {
  if (!w->text.len) return;
  struct chat_segment s = {.id = -1};
  s.text = buf_take(&w->text, &s.n);
  add_segment(w, s);
}

void chat_write_control(struct chat_writer *w, const char *spelling) {
  if (w->stopped) return;
  int32_t id = tok_find(w->tok, spelling);
  if (!tok_is_control(w->tok, id)) {
    chat_write(w, str_c(spelling));
    return;
  }
  chat_write_end(w);
  add_segment(w, (struct chat_segment){.id = id});
}

static void write_id(struct chat_writer *w, int32_t id) {
  if (id < 0) return;
  chat_write_end(w);
  add_segment(w, (struct chat_segment){.id = id});
}

static void write_wrapped(struct chat_writer *w, const struct chat_wrapping *m) {
  if (m->newlines) chat_write_c(w, "\n\n");
  write_id(w, m->begin);
  write_id(w, m->placeholder);
  write_id(w, m->end);
  if (m->newlines) chat_write_c(w, "\n\n");
}

int chat_write_media(struct chat_writer *w, const struct chat_options *o, enum chat_part_kind kind, const char *spelling, size_t i, int k,
                     struct err *e) {
  const struct chat_wrapping *m = kind == CHAT_IMAGE ? o->image : kind == CHAT_AUDIO ? o->audio : NULL;
  if (!m && !(o->allow_media && spelling)) return chat_refuse_part(kind, i, k, e);
  if (w->stopped) return 0;
  if (!m) {
    chat_write_control(w, spelling);
    return 0;
  }
  const struct chat_place *last = w->n_media ? &w->media[w->n_media - 1] : NULL;
  if (last && (last->message > i || (last->message == i && last->part >= k)))
    return err_set(e, ERR_UNSUPPORTED,
                   "messages[%zu].content[%d]: expected text only in a message whose calls have results with pictures or sound", i, k);
  if (w->n_media == w->cap_media) {
    w->cap_media = w->cap_media ? 2 * w->cap_media : 8;
    w->media = xrealloc(w->media, (size_t)w->cap_media * sizeof *w->media);
  }
  w->media[w->n_media++] = (struct chat_place){i, k};
  write_wrapped(w, m);
  return 0;
}

/* --- entry points -------------------------------------------------------------------------------------------------------------------- */

static int check_tools(const json_t **tools, struct err *e) {
  size_t i;
  json_t *tool;
  if (json_is_null(*tools)) *tools = NULL;
  if (!*tools) return 0;
  if (!json_is_array(*tools)) return err_set(e, ERR_BAD_INPUT, "tools: expected an array");
  json_array_foreach(*tools, i, tool) {
    if (!json_is_string(json_object_get(json_object_get(tool, "function"), "name")))
      return err_set(e, ERR_BAD_INPUT, "tools[%zu]: expected an object with function.name", i);
    if (deeper_than(tool, JSON_DEPTH_MAX)) return err_set(e, ERR_BAD_INPUT, "tools[%zu]: nested deeper than %d levels", i, JSON_DEPTH_MAX);
  }
  if (!json_array_size(*tools)) *tools = NULL;
  return 0;
}

static int render(struct chat_writer *w, const json_t *messages, const json_t *tools, const struct chat_options *o, struct err *e) {
  enum chat_template template = o->template == CHAT_AUTO ? chat_template_default(w->tok, false) : o->template;
  switch (template) {
  case CHAT_GEMMA4_LARGE: return chat_gemma4(w, messages, tools, o, false, e);
  case CHAT_GEMMA4_SMALL: return chat_gemma4(w, messages, tools, o, true, e);
  case CHAT_LLAMA32V: return chat_llama(w, messages, tools, o, e);
  default: return chat_gemma3(w, messages, tools, o, e);
  }
}

/* None may be lost: who is asked about a picture that the model was not shown answers nonsense. */
static int check_media(const struct chat_writer *w, const json_t *messages, struct err *e) {
  int seen = 0;
  for (size_t i = 0; i < json_array_size(messages); i++) {
    struct chat_message m;
    struct chat_part part;
    if (chat_message_read(messages, i, &m, e) != 0) return -1;
    for (int k = 0; k < m.n_parts; k++) {
      if (chat_part_read(&m, i, k, &part, e) != 0) return -1;
      if (part.kind == CHAT_TEXT) continue;
      if (seen == w->n_media || w->media[seen].message != i || w->media[seen].part != k)
        return err_set(e, ERR_UNSUPPORTED, "messages[%zu].content[%d]: expected text, the template of this model leaves this part out", i,
                       k);
      seen++;
    }
  }
  return 0;
}

int chat_render(const struct tokenizer *t, const json_t *messages, const json_t *tools, const struct chat_options *o,
                struct chat_rendered *out, struct err *e) {
  *out = (struct chat_rendered){0};
  if (!json_is_array(messages) || !json_array_size(messages)) return err_set(e, ERR_BAD_INPUT, "messages: expected at least one message");
  if (check_tools(&tools, e) != 0) return -1;
  struct chat_writer w = {.tok = t, .out = out};
  buf_init(&w.text, TOK_TEXT_BYTES_MAX);
  int rc = render(&w, messages, tools, o, e);
  if (rc == 0 && o->continue_final_message && !w.stopped)
    rc = err_set(e, ERR_BAD_INPUT, "messages[%zu]: expected a message that can be continued; the template leaves out its text",
                 json_array_size(messages) - 1);
  if (rc == 0 && w.too_long)
    rc = err_set(e, ERR_TOO_LARGE, "messages: expected at most %d bytes of text between two control tokens", TOK_TEXT_BYTES_MAX);
  if (rc == 0 && (o->image || o->audio)) rc = check_media(&w, messages, e);
  if (rc == 0) chat_write_end(&w);
  buf_free(&w.text);
  free(w.media);
  if (rc != 0) chat_rendered_free(out);
  return rc;
}

/* --- text without turns -------------------------------------------------------------------------------------------------------------- */

/* How long the marker of a picture or sound at the beginning of s is; 0: there is none. *whole: it has all that belongs to it. Only control
 * tokens mark. */
static size_t marker_at(const struct tokenizer *t, const struct chat_wrapping *m, struct str s, bool *whole) {
  struct str begin = tok_is_control(t, m->begin) ? tok_piece(t, m->begin) : str_of("", 0),
             placeholder = tok_is_control(t, m->placeholder) ? tok_piece(t, m->placeholder) : str_of("", 0),
             end = tok_is_control(t, m->end) ? tok_piece(t, m->end) : str_of("", 0);
  size_t n = 0, n_placeholders = 0;
  bool begun = begin.n && s.n >= begin.n && !memcmp(s.p, begin.p, begin.n);
  if (begun) n = begin.n;
  while (placeholder.n && s.n - n >= placeholder.n && !memcmp(s.p + n, placeholder.p, placeholder.n)) {
    n += placeholder.n;
    n_placeholders++;
    if (!begun) break; /* bare ones count singly */
  }
  *whole = begun && n_placeholders;
  if (!n_placeholders) return begun && m->newlines ? n : 0; /* as Gemma 3's template leaves it */
  if (begun && end.n && s.n - n >= end.n && !memcmp(s.p + n, end.p, end.n)) n += end.n;
  return n;
}

static void end_special(struct chat_writer *w, bool special) {
  int before = w->out->n_segments;
  chat_write_end(w);
  if (w->out->n_segments > before) w->out->segments[before].special = special;
}

/* Counts the markers of each kind in text; writes the text, if write. */
static void walk_text(struct chat_writer *w, struct str text, bool special, const struct chat_options *o, bool write, int found[2]) {
  const struct chat_wrapping *kinds[2] = {o->image, o->audio};
  for (size_t at = 0; at < text.n;) {
    size_t n = 0;
    bool whole = false;
    for (int k = 0; k < 2 && special && !n && text.p[at] == '<'; k++) {
      if (!kinds[k] || !(n = marker_at(w->tok, kinds[k], str_of(text.p + at, text.n - at), &whole))) continue;
      found[k]++;
      if (!write) continue;
      if (kinds[k]->newlines && !whole) chat_write_c(w, "\n\n");
      end_special(w, special);
      write_id(w, kinds[k]->begin);
      write_id(w, kinds[k]->placeholder);
      write_id(w, kinds[k]->end);
      if (kinds[k]->newlines && !whole) chat_write_c(w, "\n\n");
    }
    if (!n) { /* up to where the next one may begin */
      const char *next = special && text.n - at > 1 ? memchr(text.p + at + 1, '<', text.n - at - 1) : NULL;
      n = next ? (size_t)(next - text.p) - at : text.n - at;
      if (write) chat_write(w, str_of(text.p + at, n));
    }
    at += n;
  }
}

/* The text of the message and how many pictures and sounds it has. */
static int read_raw(const json_t *messages, const struct chat_options *o, struct buf *text, int asked[2], struct err *e) {
  struct chat_message m;
  struct chat_part part;
  if (json_array_size(messages) != 1) return err_set(e, ERR_BAD_INPUT, "messages: expected one message");
  if (chat_message_read(messages, 0, &m, e) != 0) return -1;
  for (int k = 0; k < m.n_parts; k++) {
    if (chat_part_read(&m, 0, k, &part, e) != 0) return -1;
    bool image = part.kind == CHAT_IMAGE && o->image, audio = part.kind == CHAT_AUDIO && o->audio;
    if (part.kind == CHAT_TEXT && !buf_append(text, part.text.p, part.text.n))
      return err_set(e, ERR_TOO_LARGE, "messages[0].content: expected at most %d bytes", TOK_TEXT_BYTES_MAX);
    if (part.kind != CHAT_TEXT && !image && !audio) return chat_refuse_part(part.kind, 0, k, e);
    asked[0] += image;
    asked[1] += audio;
  }
  return 0;
}

int chat_raw(const struct tokenizer *t, const json_t *messages, bool special, const struct chat_options *o, struct chat_rendered *out,
             struct err *e) {
  *out = (struct chat_rendered){0};
  static const char *const names[2] = {"pictures", "sounds"};
  const struct chat_wrapping *kinds[2] = {o->image, o->audio};
  struct chat_writer w = {.tok = t, .out = out};
  struct buf text;
  int asked[2] = {0}, found[2] = {0}, again[2] = {0};
  buf_init(&text, TOK_TEXT_BYTES_MAX);
  buf_init(&w.text, TOK_TEXT_BYTES_MAX);
  int rc = read_raw(messages, o, &text, asked, e);
  struct str s = str_of(buf_cstr(&text), text.len);
  if (rc == 0) walk_text(&w, s, special, o, false, found);
  for (int k = 0; k < 2 && rc == 0; k++)
    if (found[k] && found[k] != asked[k])
      rc = err_set(e, ERR_BAD_INPUT, "the text: expected a marker for each of the %d %s, or none at all, found %d", asked[k], names[k],
                   found[k]);
  if (rc == 0) {
    write_id(&w, tok_bos(t));
    for (int k = 0; k < 2; k++)
      for (int i = 0; i < asked[k] && !found[k]; i++) write_wrapped(&w, kinds[k]);
    walk_text(&w, s, special, o, true, again);
    end_special(&w, special);
    if (w.too_long) rc = err_set(e, ERR_TOO_LARGE, "the text: expected at most %d bytes", TOK_TEXT_BYTES_MAX);
  }
  buf_free(&text);
  buf_free(&w.text);
  if (rc != 0) chat_rendered_free(out);
  return rc;
}

void chat_rendered_free(struct chat_rendered *r) {
  for (int i = 0; i < r->n_segments; i++) free(r->segments[i].text);
  free(r->segments);
  *r = (struct chat_rendered){0};
}

void chat_ids(const struct tokenizer *t, const struct chat_rendered *r, struct tok_ids *out) {
  for (int i = 0; i < r->n_segments; i++) {
    const struct chat_segment *s = &r->segments[i];
    if (s->id >= 0) tok_ids_push(out, s->id);
    else tok_encode(t, str_of(s->text, s->n), s->special, false, out);
  }
}

void chat_text(const struct tokenizer *t, const struct chat_rendered *r, struct buf *out) {
  for (int i = 0; i < r->n_segments; i++) {
    const struct chat_segment *s = &r->segments[i];
    struct str text = s->id >= 0 ? tok_piece(t, s->id) : str_of(s->text, s->n);
    buf_append(out, text.p, text.n);
  }
}

/* --- which template ------------------------------------------------------------------------------------------------------------------ */

/* Released texts by SHA-256, or how it begins where no more is known. What differs from the text that is followed: docs/chat.md. */
static const struct {
  const char *sha256;
  enum chat_template template;
  bool exact;
} released[] = {
    {"7de1c58e208eda46e9c7f86397df37ec49883aeece39fb961e0a6b24088dd3c4", CHAT_GEMMA3, true},
    {"ae53464bf3be25802b3a5b37def7fd89667067d7577049b3b2d74c4d8de4c6d4", CHAT_GEMMA4_LARGE, true},  /* 2026-07 */
    {"df269903ea2e27a6426bf65f34f530a571cc04bf9b92ad8928ffa909eb46ecc5", CHAT_GEMMA4_LARGE, true},  /* another dash in a comment */
    {"845f1ee48e39fc942fe190da9df6a1c5db229e17a96ea08966ad1c9274e73d1b", CHAT_GEMMA4_LARGE, true},  /* Unsloth */
    {"0a2c8073c878ab1da004bee933a998606537bbb62016310352c7285c3f01c5b5", CHAT_GEMMA4_SMALL, true},  /* 2026-07 */
    {"3beb16a140a78c7bf71cd86609f58e56f1594e670e95fe58bd6022f941d1cb1e", CHAT_GEMMA4_SMALL, true},  /* another dash in a comment */
    {"241c50d86bdfe5e43307da87f559cd2416aacd67a8de46c15acc0105ef2200b7", CHAT_GEMMA4_SMALL, true},  /* Unsloth */
    {"2dfbfc7d538912f4ea11d29d85b4e25d7bc26386e53f57529f1d707c28b5828c", CHAT_GEMMA4_LARGE, false}, /* 2026-04-02 */
    {"85a08664d16d8f3be4416c92427b3ac10df1024ac566cc0b4bc3bab409393f98", CHAT_GEMMA4_LARGE, false}, /* 2026-04-10 */
    {"94899c0f", CHAT_GEMMA4_LARGE, false},                                                         /* 2026-04-28 */
    {"36e3a42e", CHAT_GEMMA4_LARGE, false},                                                         /* 2026-05-18 */
    {"e407323269d15bba92fc431b5b7d757e66d920d01b45cae58149a692d7697d3c", CHAT_LLAMA32V, true},
};

static enum chat_template find_exactly(struct str text, bool *exact) {
  unsigned char digest[DIGEST_BYTES];
  char hex[2 * DIGEST_BYTES];
  digest_sha256(text.p, text.n, digest);
  for (int i = 0; i < 2 * DIGEST_BYTES; i++) hex[i] = "0123456789abcdef"[(digest[i / 2] >> (i % 2 ? 0 : 4)) & 15];
  for (size_t i = 0; i < ARRAY_LEN(released); i++)
    if (!memcmp(hex, released[i].sha256, strlen(released[i].sha256))) {
      *exact = released[i].exact;
      return released[i].template;
    }
  return CHAT_AUTO;
}

/* Files are copied with and without a newline at the end. */
enum chat_template chat_template_find(struct str text, bool *exact) {
  *exact = false;
  while (text.n && text.p[text.n - 1] == '\n') text.n--;
  enum chat_template t = find_exactly(text, exact);
  if (t != CHAT_AUTO || !text.n) return t;
  char *ended = xmalloc(text.n + 1);
  memcpy(ended, text.p, text.n);
  ended[text.n] = '\n';
  t = find_exactly(str_of(ended, text.n + 1), exact);
  free(ended);
  return t;
}

enum chat_template chat_template_default(const struct tokenizer *t, bool small) {
  switch (tok_family(t)) {
  case TOK_GEMMA4: return small ? CHAT_GEMMA4_SMALL : CHAT_GEMMA4_LARGE;
  case TOK_LLAMA3: return CHAT_LLAMA32V;
  case TOK_GEMMA3: break;
  }
  return CHAT_GEMMA3;
}

static const char *const template_names[CHAT_TEMPLATES] = {"auto", "gemma3", "gemma4-large", "gemma4-small", "llama32v"};
const char *chat_template_name(enum chat_template t) { return template_names[t]; }
bool chat_template_by_name(const char *name, enum chat_template *t) {
  static const struct {
    const char *name;
    enum chat_template template;
  } others[] = {{"gemma4", CHAT_AUTO},
                {"gemma4-large-unsloth", CHAT_GEMMA4_LARGE},
                {"gemma4-small-unsloth", CHAT_GEMMA4_SMALL},
                {"llama3.2", CHAT_LLAMA32V}};
  for (size_t i = 0; i < CHAT_TEMPLATES; i++)
    if (!strcmp(template_names[i], name)) {
      *t = (enum chat_template)i;
      return true;
    }
  for (size_t i = 0; i < ARRAY_LEN(others); i++)
    if (!strcmp(others[i].name, name)) {
      *t = others[i].template;
      return true;
    }
  return false;
}
bool chat_has_thinking(enum chat_template t) { return t == CHAT_GEMMA4_LARGE || t == CHAT_GEMMA4_SMALL; }
bool chat_has_tools(enum chat_template t) { return chat_has_thinking(t) || t == CHAT_LLAMA32V; }
