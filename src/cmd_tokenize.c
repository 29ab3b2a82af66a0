/* cmd_tokenize.c — tokenize and render: JSON lines in, JSON lines out (command_lines.c). A vocabulary is enough; no weights are touched. */
#include "commands.h"
#include "files/json.h"
#include "text/chat.h"

static json_t *ids_json(const struct tok_ids *ids) {
  json_t *a = json_array();
  for (size_t i = 0; i < ids->n; i++) json_array_append_new(a, json_integer(ids->v[i]));
  return a;
}

static json_t *tokenize_line(void *ctx, const json_t *in, struct err *e) {
  const struct tokenizer *t = ctx;
  const char *text;
  size_t n;
  bool special = false, bos = false;
  int found = json_get_string(in, "text", &text, &n, "line", e);
  if (found == 0) err_set(e, ERR_BAD_INPUT, "line: expected a string \"text\", found none");
  if (found != 1) return NULL;
  if (json_get_bool(in, "special", &special, "line", e) < 0 || json_get_bool(in, "bos", &bos, "line", e) < 0) return NULL;
  struct tok_ids ids = {0};
  struct buf decoded;
  buf_init(&decoded, 0);
  tok_encode(t, str_of(text, n), special, bos, &ids);
  tok_decode(t, ids.v, ids.n, false, &decoded);
  json_t *out = json_object();
  json_object_set_new(out, "ids", ids_json(&ids));
  json_object_set_new(out, "decoded", json_stringn(buf_cstr(&decoded), decoded.len));
  tok_ids_free(&ids);
  buf_free(&decoded);
  return out;
}

/* o->template is what holds where the line does not name one. */
static int read_render_options(const json_t *options, struct chat_options *o, struct err *e) {
  bool opens_turn = true, in_user = true;
  const struct {
    const char *name;
    bool *value;
  } known[] = {{"add_generation_prompt", &opens_turn},   {"continue_final_message", &o->continue_final_message},
               {"enable_thinking", &o->enable_thinking}, {"preserve_thinking", &o->preserve_thinking},
               {"tools_in_user_message", &in_user},      {"describe_tools", &o->describe_tools}};
  if (!options) return 0;
  const char *template = NULL;
  size_t n_known = json_object_get(options, "date") != NULL;
  n_known += json_object_get(options, "template") != NULL;
  if (json_get_string(options, "date", &o->date, NULL, "options", e) < 0 ||
      json_get_string(options, "template", &template, NULL, "options", e) < 0)
    return -1;
  for (size_t i = 0; i < ARRAY_LEN(known); i++) {
    if (json_get_bool(options, known[i].name, known[i].value, "options", e) < 0) return -1;
    n_known += json_object_get(options, known[i].name) != NULL;
  }
  if (n_known != json_object_size(options))
    return err_set(e, ERR_BAD_INPUT,
                   "options: expected add_generation_prompt, continue_final_message, enable_thinking, preserve_thinking, "
                   "tools_in_user_message, describe_tools, date, template");
  if (template && !chat_template_by_name(template, &o->template)) {
    char shown[60];
    return err_set(e, ERR_BAD_INPUT, "options.template: expected auto, gemma3, gemma4-large, gemma4-small or llama32v, found \"%s\"",
                   str_escape(str_c(template), shown, sizeof shown));
  }
  o->no_generation_prompt = !opens_turn;
  o->tools_in_system = !in_user;
  o->allow_media = true; /* rendering shows where media stand; running them is another matter */
  return 0;
}

struct renderer {
  struct tokenizer *tok;
  enum chat_template template; /* where a line names none */
};

static json_t *render_line(void *ctx, const json_t *in, struct err *e) {
  const struct renderer *w = ctx;
  const struct tokenizer *t = w->tok;
  const json_t *messages = json_object_get(in, "messages"), *tools = json_object_get(in, "tools"), *options = NULL;
  struct chat_options o = {.template = w->template, .allow_media = true};
  if (json_get_object(in, "options", &options, "line", e) < 0 || read_render_options(options, &o, e) != 0) return NULL;
  struct chat_rendered r = {0};
  if (chat_render(t, messages, tools, &o, &r, e)) return NULL;
  struct tok_ids ids = {0};
  struct buf text;
  buf_init(&text, 0);
  chat_ids(t, &r, &ids);
  chat_text(t, &r, &text);
  json_t *out = json_object();
  json_object_set_new(out, "ids", ids_json(&ids));
  json_object_set_new(out, "text", json_stringn(buf_cstr(&text), text.len));
  tok_ids_free(&ids);
  buf_free(&text);
  chat_rendered_free(&r);
  return out;
}

/* Asked for by name, else the file's own if it is a known one, else the default of the tokenizer's family. */
static enum chat_template template_of(const struct options *o, const struct tokenizer *t) {
  struct cygnet_options named = {0};
  enum chat_template template = CHAT_AUTO;
  bool exact;
  options_engine(o, &named);
  if (named.chat_template) chat_template_by_name(named.chat_template, &template);
  if (template == CHAT_AUTO) template = chat_template_find(tok_chat_template(t), &exact);
  return template == CHAT_AUTO ? chat_template_default(t, false) : template;
}

int cmd_tokenize(const struct options *o) {
  int status = 0;
  struct tokenizer *t = command_tokenizer(o, &status);
  if (t) status = command_lines(tokenize_line, t);
  tok_close(t);
  return status;
}

int cmd_render(const struct options *o) {
  int status = 0;
  struct renderer w = {.tok = command_tokenizer(o, &status)};
  if (w.tok) {
    w.template = template_of(o, w.tok);
    status = command_lines(render_line, &w);
  }
  tok_close(w.tok);
  return status;
}
