/* tokens.c — text ↔ tokens over HTTP: /tokenize, /detokenize, /apply-template. Answered by the prep thread alone. */
#include <stdlib.h>

#include "server/media.h"
#include "server/translate.h"

/* ---- conversations ----------------------------------------------------------------------------------------------------------- */

/* The prompt of a chat completion with these messages, or NULL. Only what shapes it is looked at, and it need not fit in the context. */
static const struct job_prompt *render(struct params *p, const struct api *a, struct call *c) {
  static const char *const fields[] = {"messages",
                                       "tools",
                                       "tool_choice",
                                       "documents",
                                       "chat_template",
                                       "chat_template_kwargs",
                                       "add_generation_prompt",
                                       "continue_final_message",
                                       "enable_thinking",
                                       "reasoning_effort",
                                       "functions",
                                       "function_call",
                                       "reasoning",
                                       "preserve_thinking",
                                       "tools_in_user_message",
                                       "max_soft_tokens",
                                       "mm_processor_kwargs"};
  if (p->failed) return NULL;
  json_t *chat = json_object();
  for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
    json_t *v = json_object_get(p->object, fields[i]);
    if (v) json_object_set(chat, fields[i], v);
  }
  p->failed = openai_prepare_chat(a, c, chat, p->e) < 0 && !translate_too_long(p->e);
  json_decref(chat);
  return p->failed ? NULL : &c->job.prompts[0];
}

/* {"messages", what a chat completion has to shape the prompt} → {"prompt": its text with the control tokens spelt out, "tokens"}. The text is
 * that of the tokens; encoding it again need not give them, for a user may have typed the spelling of a control token. */
static int prepare_apply_template(const struct api *a, struct call *c, const json_t *body, struct buf *reply, struct api_error *e) {
  struct params p = params_of(body, "body", e);
  const struct job_prompt *prompt = render(&p, a, c);
  size_t n = 0;
  if (!prompt) return -1;
  char *text = a->port.decode(a->port.self, prompt->ids, prompt->n_ids, 0, &n);
  buf_puts(reply, "{\"prompt\":");
  api_put_string(reply, text ? text : "", text ? n : 0);
  buf_puts(reply, ",\"tokens\":");
  api_put_ids(reply, prompt->ids, prompt->n_ids);
  buf_putc(reply, '}');
  a->port.release(text);
  return 1;
}

/* ---- text to tokens ----------------------------------------------------------------------------------------------------------- */

struct encoding {
  bool bos, special; /* special: spellings of control tokens become those tokens */
};

/* Tokens of one text → ids, number of them → counts. */
static void put_encoded(struct params *p, const struct api *a, const json_t *text, struct encoding how, struct buf *ids,
                        struct buf *counts) {
  int32_t *found = NULL;
  size_t n = 0;
  if (!json_is_string(text)) params_fail(p, "prompt", "expected a string or an array of strings");
  if (p->failed) return;
  if (a->port.encode(a->port.self, json_string_value(text), json_string_length(text), how.special, how.bos, &found, &n) < 0)
    params_fail(p, "prompt", "the text could not be tokenised");
  api_put_ids(ids, found, n);
  buf_printf(counts, "%zu", n);
  a->port.release(found);
}

static void tokenize_prompt(struct params *p, const struct api *a, struct encoding how, struct buf *ids, struct buf *counts) {
  const json_t *prompt = json_object_get(p->object, "prompt");
  if (!json_is_array(prompt)) {
    put_encoded(p, a, prompt, how, ids, counts);
    return;
  }
  buf_putc(ids, '[');
  buf_putc(counts, '[');
  for (size_t i = 0; i < json_array_size(prompt) && !p->failed; i++) {
    if (i) buf_putc(ids, ',');
    if (i) buf_putc(counts, ',');
    put_encoded(p, a, json_array_get(prompt, i), how, ids, counts);
  }
  buf_putc(ids, ']');
  buf_putc(counts, ']');
}

/* The prompt with all rows of its pictures and sounds. */
static void put_rows(struct params *p, const struct api *a, const struct job_prompt *t, struct buf *ids, struct buf *counts) {
  struct cygnet_error why = {0};
  int32_t *all = NULL;
  size_t n = t->n_ids;
  if (t->n_media && a->port.expand(a->port.self, t->ids, t->n_ids, t->media, (size_t)t->n_media, &all, &n, &why) < 0)
    params_fail(p, "messages", "%s", why.message);
  api_put_ids(ids, all ? all : t->ids, n);
  buf_printf(counts, "%zu", n);
  a->port.release(all);
}

/* {"prompt": text or texts} or {"messages": ...} → {"tokens", "count", "max_model_len"}. Messages have the special tokens that their template
 * writes: add_special_tokens is about prompts alone. */
static int prepare_tokenize(const struct api *a, struct call *c, const json_t *body, struct buf *reply, struct api_error *e) {
  struct params p = params_of(body, "body", e);
  struct encoding how = {.bos = true};
  struct buf ids, counts;
  const json_t *messages = json_object_get(body, "messages"), *prompt = json_object_get(body, "prompt");
  bool rendered = messages && !json_is_null(messages);
  buf_init(&ids, 0);
  buf_init(&counts, 0);
  params_bool(&p, "add_special_tokens", &how.bos);
  params_bool(&p, "special", &how.special);
  if (rendered && prompt && !json_is_null(prompt)) params_fail(&p, "messages", "expected either prompt or messages, found both");
  if (!rendered) {
    tokenize_prompt(&p, a, how, &ids, &counts);
  } else {
    const struct job_prompt *found = render(&p, a, c);
    if (found) put_rows(&p, a, found, &ids, &counts);
  }
  if (!p.failed)
    buf_printf(reply, "{\"tokens\":%s,\"count\":%s,\"max_model_len\":%d}", buf_cstr(&ids), buf_cstr(&counts), a->info.ctx_tokens);
  buf_free(&ids);
  buf_free(&counts);
  return p.failed ? -1 : 1;
}

/* ---- tokens to text ----------------------------------------------------------------------------------------------------------- */

static void put_decoded(struct params *p, const struct api *a, const json_t *list, bool skip_special, struct buf *out) {
  size_t n, n_text = 0;
  if (!json_is_array(list)) params_fail(p, "tokens", "expected an array of token ids or an array of such arrays");
  int32_t *ids = p->failed ? NULL : params_ids(p, "tokens", list, a, &n);
  if (!ids) return;
  char *text = a->port.decode(a->port.self, ids, n, skip_special, &n_text);
  free(ids);
  api_put_string(out, text ? text : "", text ? n_text : 0);
  a->port.release(text);
}

/* {"tokens": ids or lists of ids, "skip_special_tokens": true} → {"text": one or as many} */
static int prepare_detokenize(const struct api *a, struct call *c, const json_t *body, struct buf *reply, struct api_error *e) {
  struct params p = params_of(body, "body", e);
  bool skip_special = true;
  const json_t *tokens = json_object_get(body, "tokens");
  bool many = json_array_size(tokens) && json_is_array(json_array_get(tokens, 0));
  (void)c;
  params_bool(&p, "skip_special_tokens", &skip_special);
  buf_puts(reply, many ? "{\"text\":[" : "{\"text\":");
  for (size_t i = 0; many && i < json_array_size(tokens) && !p.failed; i++) {
    if (i) buf_putc(reply, ',');
    put_decoded(&p, a, json_array_get(tokens, i), skip_special, reply);
  }
  if (!many) put_decoded(&p, a, tokens, skip_special, reply);
  buf_puts(reply, many ? "]}" : "}");
  return p.failed ? -1 : 1;
}

const struct dialect dialect_tokenize = {
    .name = "tokenize", .id_prefix = "", .prepare = prepare_tokenize, .message = api_reply_message, .fail = openai_fail};
const struct dialect dialect_detokenize = {
    .name = "detokenize", .id_prefix = "", .prepare = prepare_detokenize, .message = api_reply_message, .fail = openai_fail};
const struct dialect dialect_apply_template = {
    .name = "apply-template", .id_prefix = "", .prepare = prepare_apply_template, .message = api_reply_message, .fail = openai_fail};
