/* chat.c — reading messages, writing segments, and which family's template to follow. */
#include "text/chat.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/chat_impl.h"
#include "text/vocab.h"

/* --- reading ------------------------------------------------------------------------------------------------------------------------- */

static const struct {
  const char *name;
  enum chat_role role;
} roles[] = {{"system", CHAT_SYSTEM},       {"developer", CHAT_DEVELOPER}, {"user", CHAT_USER},
             {"assistant", CHAT_ASSISTANT}, {"tool", CHAT_TOOL},           {"function", CHAT_TOOL}};

const char *chat_role_name(enum chat_role r) {
  for (size_t i = 0; i < ARRAY_LEN(roles); i++)
    if (roles[i].role == r) return roles[i].name;
  return "";
}

/* Keys with null are as good as absent. */
static const json_t *get(const json_t *object, const char *key) {
  const json_t *v = json_object_get(object, key);
  return json_is_null(v) ? NULL : v;
}
static struct str string_of(const json_t *s) { return str_of(json_string_value(s), json_string_length(s)); }

static bool holds_object(const json_t *arguments) {
  if (!arguments || json_is_object(arguments)) return true;
  if (!json_is_string(arguments)) return false;
  struct str s = string_of(arguments);
  if (!chat_trim(s).n) return true;
  json_t *v = json_loadb(s.p, s.n, JSON_ALLOW_NUL, NULL);
  bool ok = json_is_object(v);
  json_decref(v);
  return ok;
}

static int check_calls(const json_t *message, size_t i, struct err *e) {
  const json_t *calls = get(message, "tool_calls");
  if (!calls) return 0;
  if (!json_is_array(calls)) return err_set(e, ERR_BAD_INPUT, "messages[%zu].tool_calls: expected an array", i);
  size_t k;
  json_t *call;
  json_array_foreach(calls, k, call) {
    const json_t *function = json_object_get(call, "function");
    if (!json_is_object(function) || !json_is_string(json_object_get(function, "name")))
      return err_set(e, ERR_BAD_INPUT, "messages[%zu].tool_calls[%zu]: expected an object with function.name", i, k);
    if (!holds_object(get(function, "arguments")))
      return err_set(e, ERR_BAD_INPUT,
                     "messages[%zu].tool_calls[%zu].function.arguments: expected a JSON object or a string that holds one", i, k);
  }
  return 0;
}

int chat_message_read(const json_t *messages, size_t i, struct chat_message *m, struct err *e) {
  char shown[60];
  const json_t *message = json_array_get(messages, i);
  const json_t *role = json_object_get(message, "role"), *content = get(message, "content");
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

void chat_write(struct chat_writer *w, struct str text) { buf_append(&w->text, text.p, text.n); }

void chat_write_end(struct chat_writer *w) {
  if (!w->text.len) return;
  struct chat_segment s = {.id = -1};
  s.text = buf_take(&w->text, &s.n);
  add_segment(w, s);
}

void chat_write_control(struct chat_writer *w, const char *spelling) {
  int32_t id = tok_find(w->tok, spelling);
  if (!tok_is_control(w->tok, id)) {
    chat_write(w, str_c(spelling));
    return;
  }
  chat_write_end(w);
  add_segment(w, (struct chat_segment){.id = id});
}

/* --- entry points -------------------------------------------------------------------------------------------------------------------- */

int chat_render(const struct tokenizer *t, const json_t *messages, const json_t *tools, const struct chat_options *o,
                struct chat_rendered *out, struct err *e) {
  *out = (struct chat_rendered){0};
  if (!json_is_array(messages) || !json_array_size(messages)) return err_set(e, ERR_BAD_INPUT, "messages: expected at least one message");
  if (tools && !json_is_null(tools) && !json_is_array(tools)) return err_set(e, ERR_BAD_INPUT, "tools: expected an array");
  struct chat_writer w = {.tok = t, .out = out};
  buf_init(&w.text, TOK_TEXT_BYTES_MAX);
  int rc = -1;
  switch (tok_family(t)) {
  case TOK_GEMMA3: rc = chat_gemma3(&w, messages, o, e); break; /* its template has no place for tools */
  case TOK_GEMMA4:
  case TOK_LLAMA3:
    err_set(e, ERR_UNSUPPORTED, "messages: this build cannot write conversations for %s", family_info(tok_family(t))->name);
    break;
  }
  if (rc == 0 && w.text.overflow)
    rc = err_set(e, ERR_TOO_LARGE, "messages: expected at most %d bytes of text between two control tokens", TOK_TEXT_BYTES_MAX);
  if (rc == 0) chat_write_end(&w);
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
    else tok_encode(t, str_of(s->text, s->n), false, false, out);
  }
}

void chat_text(const struct tokenizer *t, const struct chat_rendered *r, struct buf *out) {
  for (int i = 0; i < r->n_segments; i++) {
    const struct chat_segment *s = &r->segments[i];
    struct str text = s->id >= 0 ? tok_piece(t, s->id) : str_of(s->text, s->n);
    buf_append(out, text.p, text.n);
  }
}

enum chat_template chat_template_find(struct str text, bool *exact) {
  while (text.n && text.p[text.n - 1] == '\n') text.n--;
  *exact = text.n == 1531 && hash_bytes(text.p, text.n, 0) == 0xd19b6ff3a49deea5u;
  return *exact ? CHAT_GEMMA3 : CHAT_AUTO;
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
  for (size_t i = 0; i < CHAT_TEMPLATES; i++)
    if (!strcmp(template_names[i], name)) {
      *t = (enum chat_template)i;
      return true;
    }
  return false;
}
bool chat_has_thinking(enum chat_template t) { return t == CHAT_GEMMA4_LARGE || t == CHAT_GEMMA4_SMALL; }
bool chat_has_tools(enum chat_template t) { return t != CHAT_GEMMA3; }
