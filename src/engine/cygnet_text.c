/* cygnet_text.c — the public functions that concern text: tokens, conversations, grammars, answers taken apart. All may be called from any thread. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cygnet.h"
#include "engine/engine.h"
#include "files/json.h"
#include "text/output.h"

/* ---- text ----------------------------------------------------------------------------------------------------------------- */

static void give_ids(struct tok_ids *from, int32_t **ids, size_t *n_ids) {
  *n_ids = from->n;
  *ids = from->v ? from->v : xcalloc(1, sizeof **ids); /* never NULL */
}

int cygnet_encode(const struct cygnet *c, const char *text, size_t n_text, int special, int bos, int32_t **ids, size_t *n_ids) {
  if (n_text > TOK_TEXT_BYTES_MAX) return -1;
  struct tok_ids out = {0};
  tok_encode(c->tok, str_of(text, n_text), special != 0, bos != 0, &out);
  give_ids(&out, ids, n_ids);
  return 0;
}

char *cygnet_decode(const struct cygnet *c, const int32_t *ids, size_t n_ids, int skip_special, size_t *n_text) {
  struct buf text;
  buf_init(&text, 0);
  tok_decode(c->tok, ids, n_ids, skip_special != 0, &text);
  return buf_take(&text, n_text);
}

const char *cygnet_piece(const struct cygnet *c, int32_t id, size_t *n) {
  struct str piece = tok_piece(c->tok, id);
  *n = piece.n;
  return piece.p;
}

/* Options of cygnet_render that are not the templates'. */
struct render_options {
  struct chat_options chat;
  bool raw, special;
};

static int read_render_options(const json_t *json, struct render_options *r, struct err *e) {
  struct chat_options *o = &r->chat;
  bool opens_turn = true, in_user = true;
  if (!json) return 0;
  if (!json_is_object(json)) return err_set(e, ERR_BAD_INPUT, "options: expected an object");
  const struct {
    const char *name;
    bool *value;
  } known[] = {{"add_generation_prompt", &opens_turn},
               {"continue_final_message", &o->continue_final_message},
               {"enable_thinking", &o->enable_thinking},
               {"preserve_thinking", &o->preserve_thinking},
               {"tools_in_user_message", &in_user},
               {"describe_tools", &o->describe_tools},
               {"raw", &r->raw},
               {"special", &r->special}};
  size_t n_known = json_object_get(json, "date") != NULL;
  if (json_get_string(json, "date", &o->date, NULL, "options", e) < 0) return -1;
  for (size_t i = 0; i < ARRAY_LEN(known); i++) {
    if (json_get_bool(json, known[i].name, known[i].value, "options", e) < 0) return -1;
    n_known += json_object_get(json, known[i].name) != NULL;
  }
  if (n_known != json_object_size(json))
    return err_set(e, ERR_BAD_INPUT,
                   "options: expected add_generation_prompt, continue_final_message, enable_thinking, preserve_thinking, "
                   "tools_in_user_message, describe_tools, date, raw, special");
  o->no_generation_prompt = !opens_turn;
  o->tools_in_system = !in_user;
  return 0;
}

static bool is_media_id(const struct cygnet_info *i, int32_t id) {
  return id >= 0 && (id == i->image_id || id == i->audio_id || id == i->video_id);
}

/* Text that comes out as a placeholder can only be that of a vocabulary in which it is no control token. */
static int check_placeholders(const struct cygnet_info *i, const struct chat_rendered *r, const struct tok_ids *ids, struct err *e) {
  size_t written = 0, found = 0;
  bool special = false;
  for (int k = 0; k < r->n_segments; k++) {
    written += is_media_id(i, r->segments[k].id);
    special |= r->segments[k].special;
  }
  for (size_t k = 0; k < ids->n; k++) found += is_media_id(i, ids->v[k]);
  if (special || found == written) return 0;
  return err_set(e, ERR_UNSUPPORTED, "messages: expected no text that is a placeholder of pictures or sound in this model's vocabulary");
}

static json_t *load_argument(const char *text, const char *what, struct err *e) {
  return json_load_text(text, strlen(text), true, what, e);
}

int cygnet_render(const struct cygnet *c, const char *messages_json, const char *tools_json, const char *options_json, int32_t **ids,
                  size_t *n_ids, char **text, int *thought, struct cygnet_error *e) {
  struct err err = {0};
  json_t *messages = NULL, *tools = NULL, *options = NULL;
  struct cygnet_info info;
  cygnet_info(c, &info);
  const struct chat_wrapping image = {c->config.boi, info.image_id, c->config.eoi, c->config.family == FAMILY_GEMMA3},
                             audio = {c->config.boa, info.audio_id, c->config.eoa, false};
  struct render_options o = {.chat = {.template = c->chat_template,
                                      .image = info.vision && info.image_id >= 0 ? &image : NULL,
                                      .audio = info.audio && info.audio_id >= 0 ? &audio : NULL}};
  struct chat_rendered rendered = {0};
  struct tok_ids out = {0};
  int rc = -1;
  if (tok_is_blank(c->tok)) { /* its words would be lost without a trace */
    err_set(&err, ERR_UNSUPPORTED, "messages: the model came without a vocabulary, it can only be asked with ids");
    goto done;
  }
  if (!(messages = load_argument(messages_json, "messages", &err))) goto done;
  if (tools_json && !(tools = load_argument(tools_json, "tools", &err))) goto done;
  if (options_json && !(options = load_argument(options_json, "options", &err))) goto done;
  if (read_render_options(options, &o, &err)) goto done;
  if (o.raw ? chat_raw(c->tok, messages, o.special, &o.chat, &rendered, &err)
            : chat_render(c->tok, messages, tools, &o.chat, &rendered, &err))
    goto done;
  chat_ids(c->tok, &rendered, &out);
  if (check_placeholders(&info, &rendered, &out, &err)) {
    tok_ids_free(&out);
    goto done;
  }
  give_ids(&out, ids, n_ids);
  if (text) {
    struct buf b;
    buf_init(&b, 0);
    chat_text(c->tok, &rendered, &b);
    *text = buf_take(&b, NULL);
  }
  if (thought) *thought = rendered.in_thought;
  rc = 0;
done:
  chat_rendered_free(&rendered);
  json_decref(messages);
  json_decref(tools);
  json_decref(options);
  if (rc) cygnet_error_set(e, &err);
  return rc;
}

/* ---- grammars --------------------------------------------------------------------------------------------------------------- */

_Static_assert((int)CYGNET_GRAMMAR_JSON_SCHEMA == GRAMMAR_JSON_SCHEMA && (int)CYGNET_GRAMMAR_REGEX == GRAMMAR_REGEX &&
                   (int)CYGNET_GRAMMAR_EBNF == GRAMMAR_EBNF && (int)CYGNET_GRAMMAR_TOOLS == GRAMMAR_TOOLS,
               "the public kinds are the room's");

/* struct cygnet_grammar is struct grammar under its public name. */
struct cygnet_grammar *cygnet_grammar_new(const struct cygnet *c, enum cygnet_grammar_kind kind, const char *text, size_t n_text,
                                          struct cygnet_error *e) {
  struct err err = {0};
  struct grammar *g = grammar_cache_get(c->grammars, (enum grammar_kind)kind, str_of(text, n_text), &err);
  if (!g) cygnet_error_set(e, &err);
  return (struct cygnet_grammar *)g;
}
void cygnet_grammar_free(struct cygnet_grammar *g) { grammar_unref((struct grammar *)g); }

/* ---- answers ---------------------------------------------------------------------------------------------------------------- */

struct cygnet_parser {
  struct output *output;
  void (*fn)(void *ctx, const struct cygnet_part *part);
  void *ctx;
};

static void give_part(void *ctx, const struct output_part *part) {
  struct cygnet_parser *p = ctx;
  struct cygnet_part out = {.kind = (enum cygnet_part_kind)part->kind,
                            .text = part->text.p,
                            .n_text = part->text.n,
                            .name = part->name.p,
                            .n_name = part->name.n,
                            .index = part->index};
  p->fn(p->ctx, &out);
}

struct cygnet_parser *cygnet_parser_new(const struct cygnet *c, const char *const *names, int n_names, int in_thought,
                                        void (*fn)(void *ctx, const struct cygnet_part *part), void *ctx) {
  struct cygnet_parser *p = xcalloc(1, sizeof *p);
  struct output_options o = {
      .family = tok_family(c->tok), .tools = n_names > 0, .names = names, .n_names = n_names, .in_thought = in_thought != 0};
  p->fn = fn;
  p->ctx = ctx;
  p->output = output_new(c->tok, &o, give_part, p);
  return p;
}

void cygnet_parser_free(struct cygnet_parser *p) {
  if (!p) return;
  output_delete(p->output);
  free(p);
}

void cygnet_parser_push(struct cygnet_parser *p, const char *text, size_t n_text, const struct cygnet_mark *marks, size_t n_marks) {
  size_t at = 0;
  for (size_t i = 0; i < n_marks; i++) {
    if (marks[i].at > at) output_text(p->output, text + at, marks[i].at - at);
    at = marks[i].at;
    output_mark(p->output, marks[i].id);
  }
  if (n_text > at) output_text(p->output, text + at, n_text - at);
}

void cygnet_parser_finish(struct cygnet_parser *p) { output_finish(p->output); }
