/* native.c — SGLang's own /generate: one prompt or a batch, each with its own parameters if it likes. Requests on the prep thread, answers on the io
 * thread.
 *
 * A batch is one job. Where a field is a list, prompt i is asked with its i-th element; job_prompt.own then holds that prompt's parameters.
 */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "server/form.h"
#include "server/media.h"

enum { LOGPROBS_MAX = 20, NEW_TOKENS = 128, RID_BYTES = 256 };

static const struct params_names names = {.max_tokens = "max_new_tokens", .min_tokens = "min_new_tokens", .seed = "sampling_seed"};

/* ---- requests ------------------------------------------------------------------------------------------------------------- */

static const char *const unsupported[] = {
    "input_embeds",           "video_data",           "session_params",    "lora_path",      "lora_id",
    "custom_logit_processor", "require_reasoning",    "token_ids_logprob", "bootstrap_host", "return_hidden_states",
    "bootstrap_room",         "return_routed_experts"};
static const char *const unsupported_sampling[] = {"structural_tag", "stop_regex", "custom_params", "response_format", "tools"};

/* Names of the other dialect: taking them for unknown ones would drop a limit silently. */
static const char *const foreign[][2] = {{"max_tokens", "max_new_tokens"},
                                         {"max_completion_tokens", "max_new_tokens"},
                                         {"min_tokens", "min_new_tokens"},
                                         {"seed", "sampling_seed"}};

static void parse_sampling(struct params *p, const struct api *a, struct job *j, int *max_tokens) {
  for (size_t i = 0; i < ARRAY_LEN(foreign); i++)
    if (params_is_given(json_object_get(p->object, foreign[i][0]))) params_fail(p, foreign[i][0], "is called %s here", foreign[i][1]);
  params_refuse_all(p, unsupported_sampling, ARRAY_LEN(unsupported_sampling));
  const json_t *limit = json_object_get(p->object, "max_new_tokens");
  *max_tokens = json_is_null(limit) ? -1 : NEW_TOKENS;
  params_int(p, "max_new_tokens", 0, INT_MAX, max_tokens);
  params_sampling(p, a, &names, j);
  params_stop(p, a, j);
  j->n = 1;
  params_int(p, "n", 1, a->choices_max, &j->n);
  struct form form;
  form_init(&form);
  form_read_format(p, &form);
  form_compile(p, a, &form, j);
  form_free(&form);
}

/* One set of parameters → *j. item: the fields for it; i: its number in a list of them, -1: there is no list. */
static void parse_item(struct params *p, const struct api *a, const json_t *item, int i, struct job *j, int *max_tokens) {
  const json_t *sampling = NULL;
  char where[2][40] = {"body", "body: sampling_params"};
  bool logprobs = false;
  int top = 0, start = -1;
  if (i >= 0) snprintf(where[0], sizeof where[0], "body: prompt %d", i);
  if (i >= 0) snprintf(where[1], sizeof where[1], "body: sampling_params[%d]", i);
  struct params q = params_of(item, where[0], p->e);
  params_bool(&q, "return_logprob", &logprobs);
  params_int(&q, "top_logprobs_num", 0, LOGPROBS_MAX, &top);
  params_int(&q, "logprob_start_len", -1, INT_MAX, &start);
  params_object(&q, "sampling_params", &sampling);
  j->logprobs = logprobs ? top : -1;
  j->prompt_logprobs = logprobs ? start : -1;
  struct params s = params_of(sampling, where[1], p->e);
  s.failed = q.failed;
  parse_sampling(&s, a, j, max_tokens);
  p->failed = s.failed;
}

static void fit_item(struct params *p, const struct api *a, const struct job *j, int max_tokens, struct job_prompt *t) {
  size_t n = job_prompt_tokens(t);
  if (j->prompt_logprobs >= 0 && (size_t)j->prompt_logprobs >= n)
    params_fail(p, "logprob_start_len", "expected less than the prompt's %zu tokens, found %d", n, j->prompt_logprobs);
  params_fit(p, a, &names, params_is_given(json_object_get(p->object, "input_ids")) ? "input_ids" : "text", max_tokens,
             j->sampling.min_tokens, t);
}

static const char *const item_fields[] = {"sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num"};

/* The fields of prompt i: of each that is a list, its element. Returns owned. */
static json_t *item_of(struct params *p, size_t i, size_t n) {
  json_t *item = json_object();
  for (size_t k = 0; k < ARRAY_LEN(item_fields); k++) {
    json_t *v = json_object_get(p->object, item_fields[k]);
    if (json_is_array(v) && json_array_size(v) != n)
      params_fail(p, item_fields[k], "expected one for each of the %zu prompts, found %zu", n, json_array_size(v));
    else if (v) json_object_set(item, item_fields[k], json_is_array(v) ? json_array_get(v, i) : v);
  }
  return item;
}

static void parse_items(struct params *p, const struct api *a, struct job *j) {
  bool lists = false;
  int max_tokens = 0;
  for (size_t k = 0; k < ARRAY_LEN(item_fields); k++) lists |= json_is_array(json_object_get(p->object, item_fields[k]));
  for (int i = 0; i < j->n_prompts && !p->failed; i++) {
    struct job_prompt *t = &j->prompts[i];
    if (lists) t->own = xcalloc(1, sizeof *t->own);
    struct job *mine = lists ? t->own : j;
    if (lists || i == 0) {
      json_t *item = item_of(p, (size_t)i, (size_t)j->n_prompts);
      if (!p->failed) parse_item(p, a, item, lists ? i : -1, mine, &max_tokens);
      json_decref(item);
    }
    fit_item(p, a, mine, max_tokens, t);
    if (i > 0 && mine->n != j->n) params_fail(p, "n", "expected the same for all prompts, found %d and %d", j->n, mine->n);
    j->n = mine->n;
  }
}

/* A list that is not empty, of one type. */
static bool all_are(const json_t *v, json_type type) {
  for (size_t i = 0; i < json_array_size(v); i++)
    if (json_typeof(json_array_get(v, i)) != type) return false;
  return json_array_size(v) > 0;
}

/* ---- pictures and sounds --------------------------------------------------------------------------------------------------------- */

/* What belongs to prompt i of n: a string or {"url"} for the only prompt, a list for the only prompt, or one of either for each. */
static const json_t *data_of(struct params *p, const char *field, size_t i, size_t n, bool batch) {
  const json_t *v = json_object_get(p->object, field);
  if (!params_is_given(v)) return NULL;
  if (!batch) {
    const json_t *inner = json_array_size(v) == 1 ? json_array_get(v, 0) : NULL;
    return json_is_array(inner) ? inner : v;
  }
  if (!json_is_array(v) || json_array_size(v) != n) {
    params_fail(p, field, "expected a list with one for each of the %zu prompts, null where there is none", n);
    return NULL;
  }
  return json_array_get(v, i);
}

static void collect_data(struct params *p, const struct api *a, const char *field, enum cygnet_media_kind kind, size_t i, size_t n,
                         bool batch, int budget, struct media_list *list) {
  const json_t *v = data_of(p, field, i, n, batch);
  char place[60];
  if (!params_is_given(v)) return;
  for (size_t k = 0; k < (json_is_array(v) ? json_array_size(v) : 1); k++) {
    const json_t *one = json_is_array(v) ? json_array_get(v, k) : v;
    if (json_is_object(one) && json_object_get(one, "image_url")) one = json_object_get(one, "image_url");
    if (batch) snprintf(place, sizeof place, "%s[%zu][%zu]", field, i, k);
    else snprintf(place, sizeof place, json_is_array(v) ? "%s[%zu]" : "%s", field, k);
    media_add(p, a, kind, one, budget, field, place, list);
  }
}

/* Those of prompt i are loaded; how many they are. */
static int load_data(struct params *p, const struct api *a, struct call *c, size_t i, size_t n, bool batch, int budget) {
  struct media_list list = {0};
  int before = c->job.n_media;
  collect_data(p, a, "image_data", CYGNET_IMAGE, i, n, batch, budget, &list);
  collect_data(p, a, "audio_data", CYGNET_AUDIO, i, n, batch, budget, &list);
  if (!p->failed && before + list.n > a->media->limits.items && before)
    params_fail(p, "image_data", "expected at most %d pictures and sounds in a request", a->media->limits.items);
  if (!p->failed) p->failed = media_load(a, c, &list, list.n && list.v[0].kind == CYGNET_AUDIO ? "audio_data" : "image_data", p->e) < 0;
  media_list_free(&list);
  return c->job.n_media - before;
}

static bool has_data(const struct params *p) {
  return params_is_given(json_object_get(p->object, "image_data")) || params_is_given(json_object_get(p->object, "audio_data"));
}

/* Texts with pictures and sounds: at their markers, or in front. */
static void parse_texts(struct params *p, const struct api *a, struct call *c, const json_t *text, int budget) {
  struct job *j = &c->job;
  bool batch = json_is_array(text);
  size_t n = batch ? json_array_size(text) : 1;
  if (n > (size_t)a->choices_max) params_fail(p, "text", "expected at most %d prompts, found %zu", a->choices_max, n);
  if (p->failed) return;
  j->as_list = batch;
  j->prompts = xcalloc(n, sizeof *j->prompts);
  for (size_t i = 0; i < n && !p->failed; i++) {
    const json_t *one = batch ? json_array_get(text, i) : text;
    int first = j->n_media, found = load_data(p, a, c, i, n, batch, budget);
    if (!p->failed) p->failed = api_media_prompt(a, j, json_string_value(one), json_string_length(one), first, found, "text", p->e) < 0;
  }
}

/* Ids as they are: placeholders and media have to fit, also where there are none. */
static void match_ids(struct params *p, const struct api *a, struct call *c, int budget) {
  struct job *j = &c->job;
  for (int i = 0; i < j->n_prompts && !p->failed; i++) {
    int first = j->n_media, found = load_data(p, a, c, (size_t)i, (size_t)j->n_prompts, j->as_list, budget);
    if (!p->failed) p->failed = media_match(a, j, &j->prompts[i], first, found, found ? "input_ids" : NULL, p->e) < 0;
  }
}

/* Exactly one of text and input_ids; a list of either is a batch, even of one. */
static void parse_prompts(struct params *p, const struct api *a, struct call *c) {
  struct job *j = &c->job;
  int budget = 0;
  media_budget(p, a, &budget);
  const json_t *text = json_object_get(p->object, "text"), *ids = json_object_get(p->object, "input_ids");
  if (json_is_null(text)) text = NULL;
  if (json_is_null(ids)) ids = NULL;
  if (p->failed) return;
  if (!text && !ids) {
    p->failed = true;
    api_error_set(p->e, 400, "missing_required_parameter", "text", "body: text: expected, or input_ids; not found");
  } else if (text && ids) {
    params_fail(p, "input_ids", "not allowed together with text");
  } else if (text && !json_is_string(text) && !all_are(text, JSON_STRING)) {
    params_fail(p, "text", "expected a string or an array of strings");
  } else if (ids && !all_are(ids, JSON_INTEGER) && !all_are(ids, JSON_ARRAY)) {
    params_fail(p, "input_ids", "expected an array of token ids, or an array of such arrays");
  } else if (text && has_data(p)) {
    parse_texts(p, a, c, text, budget);
  } else {
    j->as_list = text ? json_is_array(text) : json_is_array(json_array_get(ids, 0));
    p->failed = api_prompts(a, text ? text : ids, text ? "text" : "input_ids", j, p->e) < 0;
    match_ids(p, a, c, budget);
  }
}

static void copy_rid(struct params *p, struct job *j, int i, const json_t *v) {
  size_t n = json_string_length(v);
  if (n < 1 || n > RID_BYTES) params_fail(p, "rid", "[%d]: expected a string of 1 to %d bytes", i, RID_BYTES);
  for (int k = 0; k < i && !p->failed; k++)
    if (!strcmp(j->prompts[k].rid, json_string_value(v))) params_fail(p, "rid", "[%d]: is the same as [%d]", i, k);
  if (!p->failed) j->prompts[i].rid = xstrndup(json_string_value(v), n);
}

/* One name for each prompt, or one for all: then those of a batch get numbers behind it. */
static void parse_rids(struct params *p, struct call *c) {
  const json_t *list = json_object_get(p->object, "rid");
  struct job *j = &c->job;
  if (!json_is_array(list)) {
    params_rid(p, &c->rid);
    for (int i = 0; i < j->n_prompts && j->n_prompts > 1; i++) {
      struct buf name;
      buf_init(&name, 0);
      buf_printf(&name, "%s_%d", c->rid ? c->rid : c->id, i);
      j->prompts[i].rid = buf_take(&name, NULL);
    }
    return;
  }
  if (json_array_size(list) != (size_t)j->n_prompts)
    params_fail(p, "rid", "expected one for each of the %d prompts, found %zu", j->n_prompts, json_array_size(list));
  for (int i = 0; i < j->n_prompts && !p->failed; i++) copy_rid(p, j, i, json_array_get(list, (size_t)i));
}

static int prepare(const struct api *a, struct call *c, const json_t *body, struct buf *reply, struct api_error *e) {
  struct params p = params_of(body, "body", e);
  struct job *j = &c->job;
  (void)reply;
  j->want_ids = true;
  params_refuse_all(&p, unsupported, ARRAY_LEN(unsupported));
  params_bool(&p, "stream", &j->stream);
  params_bool(&p, "incremental_streaming_output", &j->incremental);
  params_bool(&p, "return_text_in_logprobs", &j->text_in_logprobs);
  params_bool(&p, "return_prompt_token_ids", &j->return_prompt_ids);
  params_service(&p, j);
  parse_prompts(&p, a, c);
  parse_items(&p, a, j);
  parse_rids(&p, c);
  if (p.failed) return -1;
  j->as_list |= j->n > 1;
  return api_check_choices(a, j, e);
}

/* ---- answers -------------------------------------------------------------------------------------------------------------- */

/* [logprob, id, text or null] */
static void put_triple(const struct api *a, struct buf *out, const struct job *j, int32_t id, float logprob) {
  buf_putc(out, '[');
  api_put_logprob(out, logprob);
  buf_printf(out, ",%d,", id);
  if (j->text_in_logprobs) api_put_token(a, out, id);
  else buf_puts(out, "null");
  buf_putc(out, ']');
}

static void add_token(const struct api *a, const struct job *j, const struct message_token *t, const struct cygnet_logprob *tops,
                      struct buf *logprobs, struct buf *alternatives) {
  api_put_comma(logprobs);
  put_triple(a, logprobs, j, t->id, t->logprob);
  api_put_comma(alternatives);
  if (isnan(t->logprob)) {
    buf_puts(alternatives, "null");
    return;
  }
  buf_putc(alternatives, '[');
  for (int k = 0; k < t->n_top; k++) {
    if (k) buf_putc(alternatives, ',');
    put_triple(a, alternatives, j, tops[t->first_top + k].id, tops[t->first_top + k].logprob);
  }
  buf_putc(alternatives, ']');
}

static void add_event(const struct api *a, struct choice *o, const struct message *m) {
  const struct job *j = &o->call->job;
  bool logprobs = job_of_prompt(j, o->prompt)->logprobs >= 0;
  buf_append(&o->text, m->text.data, m->text.len);
  for (int i = 0; i < m->n_prompt; i++) add_token(a, j, &m->prompt[i], m->prompt_tops, &o->input_logprobs, &o->input_tops);
  for (int i = 0; i < m->n_tokens; i++) {
    api_put_comma(&o->output_ids);
    buf_printf(&o->output_ids, "%d", m->tokens[i].id);
    if (logprobs) add_token(a, j, &m->tokens[i], m->tops, &o->logprobs, &o->top_logprobs);
  }
  o->n_output_ids += m->n_tokens;
}

static void put_finish(struct buf *out, const struct choice *o) {
  buf_puts(out, ",\"finish_reason\":");
  if (!o->finish) {
    buf_puts(out, "null");
  } else if (!strcmp(o->finish, "length")) {
    buf_printf(out, "{\"type\":\"length\",\"length\":%d}", o->completion_tokens);
  } else if (!strcmp(o->finish, "abort")) {
    buf_puts(out, "{\"type\":\"abort\",\"message\":\"Aborted\",\"status_code\":null,\"err_type\":null}");
  } else {
    buf_puts(out, "{\"type\":\"stop\",\"matched\":");
    api_put_matched(out, o);
    buf_putc(out, '}');
  }
}

/* What the client calls this answer. */
static void put_id(struct buf *out, const struct choice *o) {
  const struct call *c = o->call;
  const char *own = c->job.prompts[o->prompt].rid, *name = own ? own : c->rid ? c->rid : c->id;
  buf_puts(out, "\"id\":\"");
  buf_json_escape(out, name, strlen(name));
  if (c->job.n > 1) buf_printf(out, "_%d", o->index % c->job.n);
  buf_putc(out, '"');
}

static void put_logprobs(struct buf *out, const struct choice *o) {
  const struct job *j = job_of_prompt(&o->call->job, o->prompt);
  if (j->logprobs < 0) return;
  buf_printf(out, ",\"input_token_logprobs\":[%s],\"output_token_logprobs\":[%s],\"output_token_logprobs_length\":%d",
             buf_cstr(&o->input_logprobs), buf_cstr(&o->logprobs), o->n_output_ids);
  if (j->logprobs > 0)
    buf_printf(out, ",\"input_top_logprobs\":[%s],\"output_top_logprobs\":[%s]", buf_cstr(&o->input_tops), buf_cstr(&o->top_logprobs));
}

static void put_answer(struct buf *out, const struct choice *o, bool with_index) {
  const struct call *c = o->call;
  const struct job_prompt *t = &c->job.prompts[o->prompt];
  buf_putc(out, '{');
  if (with_index) buf_printf(out, "\"index\":%d,", o->index);
  buf_puts(out, "\"text\":");
  api_put_string(out, buf_cstr(&o->text), o->text.len);
  buf_printf(out, ",\"output_ids\":[%s],", buf_cstr(&o->output_ids));
  if (c->job.return_prompt_ids) {
    buf_puts(out, "\"prompt_token_ids\":");
    api_put_ids(out, t->ids, t->n_ids);
    buf_putc(out, ',');
  }
  buf_puts(out, "\"meta_info\":{");
  put_id(out, o);
  put_finish(out, o);
  buf_printf(out, ",\"prompt_tokens\":%zu,\"completion_tokens\":%d,\"cached_tokens\":%d", job_prompt_tokens(t), o->completion_tokens,
             o->cached_tokens);
  buf_printf(out, ",\"cached_tokens_details\":{\"device\":%d,\"host\":0},\"reasoning_tokens\":%d", o->cached_tokens, o->reasoning_tokens);
  if (t->n_media)
    buf_printf(out, ",\"image_tokens\":%d,\"audio_tokens\":%d,\"media\":%d,\"media_cached\":%d,\"encode_time\":%.6f", t->image_tokens,
               t->audio_tokens, t->n_media, o->n_media_cached, o->encode_ms / 1e3);
  buf_printf(out, ",\"weight_version\":\"default\",\"num_retractions\":%d", o->n_retractions);
  buf_printf(out, ",\"queue_time\":%.6f,\"prefill_time\":%.6f,\"decode_time\":%.6f", o->queue_ms / 1e3, o->prefill_ms / 1e3,
             o->decode_ms / 1e3);
  put_logprobs(out, o);
  if (o->finish) buf_printf(out, ",\"e2e_latency\":%.6f", clock_ms_since(c->arrived_ns) / 1e3);
  buf_puts(out, "}}");
}

static void stream_answer(struct call *c, struct choice *o, bool last) {
  struct buf item;
  api_begin_stream(c);
  buf_init(&item, 0);
  put_answer(&item, o, c->job.as_list);
  bool sent = http_sse_send(c->x, item.data, item.len);
  buf_free(&item);
  if (c->job.incremental) {
    struct buf *const parts[] = {&o->text, &o->output_ids, &o->logprobs, &o->top_logprobs, &o->input_logprobs, &o->input_tops};
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) buf_clear(parts[i]);
    o->n_output_ids = 0;
  }
  if (sent && last) api_send_done(c);
}

static void message(const struct api *a, struct call *c, const struct message *m) {
  if (api_take_whole(c, m)) return;
  struct choice *o = api_take_numbers(c, m);
  add_event(a, o, m);
  if (c->job.stream) {
    stream_answer(c, o, m->last);
    return;
  }
  if (!m->last) return;
  struct buf out;
  buf_init(&out, API_BODY_MAX);
  if (c->job.as_list) buf_putc(&out, '[');
  for (int i = 0; i < c->n_choices; i++) {
    if (i) buf_putc(&out, ',');
    put_answer(&out, &c->choices[i], false);
  }
  if (c->job.as_list) buf_putc(&out, ']');
  api_reply_body(c, &out);
}

const struct dialect dialect_generate = {.name = "generate", .id_prefix = "", .prepare = prepare, .message = message, .fail = openai_fail};
