/* ops.c — what operators and routers ask for: health, models, facts, loads, metrics, aborts. Answered on the io thread at once. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "server/page.h"
#include "server/serve_impl.h"

enum { ABORT_BODY_MAX = 8 << 10 };

/* A step that takes longer than this is taken for stuck. */
static const double stuck_ms = 120e3;
static const double gb = 1e9;

/* Rows of the embeddings that are looked up in the file are not memory; a level that packs nothing works from the file's bytes. */
static size_t weights_in_memory(const struct cygnet_info *i) { return i->packed_bytes ? i->packed_bytes : i->weight_bytes; }

static void reply_json(struct http_exchange *x, struct buf *body) {
  http_reply(x, 200, "application/json", buf_cstr(body), body->len);
  buf_free(body);
}

/* Probes come every second, day and night: they are logged only when something is wrong. */
static void reply_probe(struct http_exchange *x, const char *type, const char *body, size_t n) {
  x->no_line = true;
  http_reply(x, 200, type, body, n);
}

void ops_health(struct serve *s, struct http_exchange *x) {
  struct cygnet_stats stats;
  struct cygnet_error lost;
  double step_ms;
  threads_stats(s->threads, &stats, &step_ms);
  if (threads_lost(s->threads, &lost)) serve_reply_error(x, 503, "unhealthy", "%s", lost.message);
  else if (s->draining) serve_reply_error(x, 503, "busy", "the server is shutting down");
  else if (step_ms > stuck_ms) serve_reply_error(x, 503, "busy", "the engine has not finished a step for %.0f s", step_ms / 1e3);
  else reply_probe(x, "application/json", "{\"status\":\"ok\"}", 15);
}

static const char *word_of(const char *encoder) { return encoder ? "true" : "false"; }

static void put_model(const struct serve *s, struct buf *out) {
  const char *name = buf_cstr(&s->api.model_json);
  buf_printf(
      out,
      "{\"id\":\"%s\",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"cygnet\",\"root\":\"%s\",\"parent\":null,\"max_model_len\":%d,"
      "\"supports_thinking\":%s,\"supports_tools\":true,\"supports_vision\":%s,\"supports_audio\":%s,\"input_modalities\":[\"text\"%s%s],"
      "\"output_modalities\":[\"text\"]}",
      name, (long long)s->api.created, name, s->api.info.ctx_tokens, s->api.info.chat_thinks ? "true" : "false",
      word_of(s->api.info.vision), word_of(s->api.info.audio), s->api.info.vision ? ",\"image\"" : "",
      s->api.info.audio ? ",\"audio\"" : "");
}

void ops_models(struct serve *s, struct http_exchange *x) {
  struct buf body;
  buf_init(&body, 0);
  buf_puts(&body, "{\"object\":\"list\",\"data\":[");
  put_model(s, &body);
  buf_puts(&body, "]}");
  reply_json(x, &body);
}

/* Names of models often have a slash in them; clients send it as it is or as %2F. */
static bool path_is(struct str path, const char *name) {
  while (path.n) {
    char c = path.p[0];
    size_t n = 1;
    if (c == '%' && path.n >= 3 && str_hex_digit(path.p[1]) >= 0 && str_hex_digit(path.p[2]) >= 0) {
      c = (char)(str_hex_digit(path.p[1]) << 4 | str_hex_digit(path.p[2]));
      n = 3;
    }
    if (!*name || *name++ != c) return false;
    path = str_of(path.p + n, path.n - n);
  }
  return !*name;
}

void ops_model(struct serve *s, struct http_exchange *x) {
  struct str id = str_of(x->head.path.p + strlen("/v1/models/"), x->head.path.n - strlen("/v1/models/"));
  if (!path_is(id, s->api.model)) {
    char shown[200];
    struct api_error e;
    api_error_set(&e, 404, "model_not_found", "model", "The model '%s' does not exist", str_escape(id, shown, sizeof shown));
    api_reply_error(x, &e);
    return;
  }
  struct buf body;
  buf_init(&body, 0);
  put_model(s, &body);
  reply_json(x, &body);
}

static void put_named(struct buf *out, const char *name, const char *value) {
  buf_printf(out, "\"%s\":\"", name);
  buf_json_escape(out, value ? value : "", strlen(value ? value : ""));
  buf_puts(out, "\",");
}

void ops_model_info(struct serve *s, struct http_exchange *x) {
  const struct cygnet_info *i = &s->api.info;
  struct buf body;
  buf_init(&body, 0);
  buf_putc(&body, '{');
  put_named(&body, "model_path", s->api.model);
  put_named(&body, "tokenizer_path", s->api.model);
  put_named(&body, "model_type", i->architecture);
  put_named(&body, "weight_version", "default");
  buf_printf(&body,
             "\"is_generation\":true,\"preferred_sampling_params\":null,\"has_image_understanding\":%s,\"has_audio_understanding\":%s,",
             word_of(i->vision), word_of(i->audio));
  buf_puts(&body, "\"architectures\":[\"");
  buf_json_escape(&body, i->architecture ? i->architecture : "", strlen(i->architecture ? i->architecture : ""));
  buf_puts(&body, "\"]}");
  reply_json(x, &body);
}

/* The engine's numbers of this moment, with SGLang's names where it has them. */
static void put_state(struct serve *s, struct buf *body, const struct cygnet_stats *t) {
  const struct cygnet_info *i = &s->api.info;
  buf_printf(body, "{\"n_running\":%d,\"n_waiting\":%d,\"last_gen_throughput\":%.3f,\"effective_max_running_requests_per_dp\":%d,",
             t->n_running, t->n_waiting, metrics_gen_throughput(s->metrics), i->max_running);
  buf_printf(body, "\"memory_usage\":{\"weight\":%.3f,\"kvcache\":%.3f,\"token_capacity\":%d,\"graph\":0},",
             (double)weights_in_memory(i) / gb, (double)i->kv_bytes / gb, i->pool_full_tokens);
  buf_printf(body,
             "\"token_usage\":%.4f,\"full_used_tokens\":%d,\"swa_used_tokens\":%d,\"full_cached_tokens\":%d,\"swa_cached_tokens\":%d,",
             metrics_token_usage(i, t), t->pool_full_used_tokens, t->pool_sliding_used_tokens, t->pool_full_cached_tokens,
             t->pool_sliding_cached_tokens);
  buf_printf(body, "\"n_steps\":%llu,\"n_graph_steps\":%llu,\"n_failed_steps\":%llu,\"n_fork_joins\":%llu,", (unsigned long long)t->n_steps,
             (unsigned long long)t->n_graph_steps, (unsigned long long)t->n_failed_steps, (unsigned long long)t->n_fork_joins);
  buf_printf(body, "\"n_requests\":%llu,\"n_finished\":%llu,\"n_aborted\":%llu,\"n_failed\":%llu,\"n_retracted\":%llu,",
             (unsigned long long)t->n_requests, (unsigned long long)t->n_finished, (unsigned long long)t->n_aborted,
             (unsigned long long)t->n_failed, (unsigned long long)t->n_retracted);
  buf_printf(body, "\"prompt_tokens\":%llu,\"generated_tokens\":%llu,\"computed_tokens\":%llu,", (unsigned long long)t->prompt_tokens,
             (unsigned long long)t->generated_tokens, (unsigned long long)t->computed_tokens);
  buf_printf(body, "\"cached_tokens\":%llu,\"cache_hit_rate\":%.4f,\"lost_window_tokens\":%llu,\"lost_wanted_tokens\":%llu,",
             (unsigned long long)t->cached_tokens, metrics_hit_rate(t), (unsigned long long)t->lost_window_tokens,
             (unsigned long long)t->lost_wanted_tokens);
  buf_printf(body, "\"evicted_full_tokens\":%llu,\"evicted_swa_tokens\":%llu,\"n_resume_points\":%d}",
             (unsigned long long)t->evicted_full_tokens, (unsigned long long)t->evicted_sliding_tokens, t->n_resume_points);
}

void ops_server_info(struct serve *s, struct http_exchange *x) {
  const struct cygnet_info *i = &s->api.info;
  struct cygnet_stats t;
  struct http_counts h;
  double step_ms;
  threads_stats(s->threads, &t, &step_ms);
  http_counts(s->http, &h);
  struct buf body;
  buf_init(&body, 0);
  buf_putc(&body, '{');
  put_named(&body, "version", CYGNET_VERSION);
  put_named(&body, "model_path", s->api.model);
  put_named(&body, "served_model_name", s->api.model);
  put_named(&body, "architecture", i->architecture);
  put_named(&body, "format", i->format);
  put_named(&body, "isa", i->isa);
  put_named(&body, "kv_cache_dtype", i->kv_type);
  buf_printf(&body, "\"threads\":%d,\"prep_threads\":%d,\"context_length\":%d,\"page_size\":%d,", i->threads, s->options.prep_threads,
             i->ctx_tokens, i->page_tokens);
  buf_printf(&body, "\"chunked_prefill_size\":%d,\"max_running_requests\":%d,\"sliding_window\":%d,", i->chunk_tokens, i->max_running,
             i->window_tokens);
  buf_printf(&body, "\"disable_radix_cache\":%s,\"max_resume_points\":%d,\"graph_buckets\":%d,", i->prefix_cache ? "false" : "true",
             i->resume_points, i->graph_buckets);
  buf_printf(&body, "\"max_total_num_tokens\":%d,\"swa_max_total_num_tokens\":%d,\"max_req_input_len\":%d,", i->pool_full_tokens,
             i->pool_sliding_tokens, i->ctx_tokens - 1);
  buf_printf(&body, "\"memory_usage\":{\"weight_bytes\":%zu,\"kv_bytes\":%zu,\"scratch_bytes\":%zu,\"resident_bytes\":%zu,",
             weights_in_memory(i), i->kv_bytes, i->scratch_bytes, mem_resident_bytes());
  buf_printf(&body, "\"kv_token_bytes_full\":%zu,\"kv_token_bytes_swa\":%zu},", i->kv_token_bytes_full, i->kv_token_bytes_sliding);
  if (i->vision || i->audio) {
    const struct media_limits *l = &s->media.limits;
    buf_putc(&body, '"');
    buf_puts(&body, "media\":{");
    put_named(&body, "vision", i->vision);
    put_named(&body, "audio", i->audio);
    buf_printf(&body, "\"image_tokens\":%d,\"audio_seconds\":%d,\"media_bytes\":%zu,\"media_rows\":%d,\"items_max\":%d,", i->image_tokens,
               i->audio_seconds, i->media_bytes, i->media_rows, l->items);
    buf_printf(&body, "\"item_bytes_max\":%zu,\"total_bytes_max\":%zu,\"held_bytes\":%zu},", l->item_bytes, l->total_bytes,
               atomic_load(&s->media.held_bytes));
  }
  buf_printf(&body, "\"uptime_s\":%.3f,\"step_ms\":%.3f,\"internal_states\":[", clock_ms_since(s->started_ns) / 1e3, step_ms);
  put_state(s, &body, &t);
  buf_puts(&body, "],");
  if (s->options.options_json) buf_printf(&body, "\"options\":%s,", s->options.options_json);
  buf_printf(&body, "\"http\":{\"connections\":%d,\"exchanges\":%d,\"calls\":%d,\"requests\":%llu,\"dropped\":%llu}}", h.connections,
             h.exchanges, s->n_calls, (unsigned long long)h.n_requests, (unsigned long long)h.n_dropped);
  reply_json(x, &body);
}

static void reply_page(struct http_exchange *x, int status) {
  char policy[PAGE_POLICY_MAX];
  page_policy(policy);
  http_add_header(x, "Content-Security-Policy: %s", policy);
  http_reply(x, status, "text/html; charset=utf-8", page_html, strlen(page_html));
}
void ops_page(struct serve *s, struct http_exchange *x) {
  (void)s;
  reply_page(x, 200);
}
void ops_page_locked(struct serve *s, struct http_exchange *x) {
  (void)s;
  reply_page(x, 401);
}

void ops_ping(struct serve *s, struct http_exchange *x) {
  (void)s;
  reply_probe(x, NULL, NULL, 0);
}

/* ---- metrics and loads -------------------------------------------------------------------------------------------------- */

void ops_metrics(struct serve *s, struct http_exchange *x) {
  struct metrics_now now = {.info = &s->api.info,
                            .media_held_bytes = atomic_load(&s->media.held_bytes),
                            .media_fetched = atomic_load(&s->media.n_fetched),
                            .n_calls = s->n_calls,
                            .uptime_s = clock_ms_since(s->started_ns) / 1e3};
  struct http_counts h;
  double step_ms;
  threads_stats(s->threads, &now.stats, &step_ms);
  http_counts(s->http, &h);
  now.connections = h.connections;
  now.http_requests = h.n_requests;
  now.http_dropped = h.n_dropped;
  for (const struct call *c = s->calls; c; c = c->next) now.n_preparing += !atomic_load(&c->prepared);
  struct buf body;
  buf_init(&body, 0);
  metrics_put(s->metrics, &now, &body);
  reply_probe(x, "text/plain; version=0.0.4; charset=utf-8", buf_cstr(&body), body.len);
  buf_free(&body);
}

bool ops_query(const char *query, size_t n, const char *name, struct str *value) {
  size_t n_name = strlen(name);
  if (!n) return false;
  for (const char *at = query, *end = query + n; at < end;) {
    const char *stop = memchr(at, '&', (size_t)(end - at));
    if (!stop) stop = end;
    if ((size_t)(stop - at) > n_name && at[n_name] == '=' && memcmp(at, name, n_name) == 0) {
      *value = str_of(at + n_name + 1, (size_t)(stop - at) - n_name - 1);
      return true;
    }
    at = stop + 1;
  }
  return false;
}

enum { SECTION_CORE = 1, SECTION_MEMORY = 2, SECTION_QUEUES = 4, SECTION_OTHER = 8 }; /* OTHER: known to SGLang, empty here */

static const struct {
  const char *name;
  int sections;
} section_names[] = {{"core", SECTION_CORE},     {"memory", SECTION_MEMORY},
                     {"queues", SECTION_QUEUES}, {"all", SECTION_CORE | SECTION_MEMORY | SECTION_QUEUES},
                     {"spec", SECTION_OTHER},    {"lora", SECTION_OTHER},
                     {"disagg", SECTION_OTHER}};

/* "core,queues" → bits; 0: a word that is none. */
static int sections_of(struct str list) {
  int sections = 0;
  for (size_t at = 0; at <= list.n;) {
    const char *comma = at < list.n ? memchr(list.p + at, ',', list.n - at) : NULL;
    size_t n = comma ? (size_t)(comma - list.p) - at : list.n - at;
    int found = 0;
    for (size_t i = 0; i < ARRAY_LEN(section_names); i++)
      if (str_is(str_of(list.p + at, n), section_names[i].name)) found = section_names[i].sections;
    if (!found) return 0;
    sections |= found;
    at += n + 1;
  }
  return sections;
}

static void put_load(struct serve *s, struct buf *out, const struct cygnet_stats *t, int sections) {
  const struct cygnet_info *i = &s->api.info;
  double usage = metrics_token_usage(i, t), running = i->max_running ? (double)t->n_running / i->max_running : 0;
  /* the core stands in every answer: it is what balancers read */
  buf_printf(out, "{\"dp_rank\":0,\"timestamp\":%lld,\"num_running_reqs\":%d,\"num_waiting_reqs\":%d,\"num_total_reqs\":%d,",
             (long long)clock_unix_s(), t->n_running, t->n_waiting, t->n_running + t->n_waiting);
  buf_printf(out, "\"num_used_tokens\":%d,\"max_total_num_tokens\":%d,\"token_usage\":%.4f,\"gen_throughput\":%.3f,",
             t->pool_full_used_tokens, i->pool_full_tokens, usage, metrics_gen_throughput(s->metrics));
  buf_printf(out, "\"cache_hit_rate\":%.4f,\"utilization\":%.4f,\"max_running_requests\":%d", metrics_hit_rate(t), MAX(usage, running),
             i->max_running);
  if (sections & SECTION_MEMORY)
    buf_printf(out, ",\"memory\":{\"weight_gb\":%.3f,\"kv_cache_gb\":%.3f,\"graph_gb\":0,\"token_capacity\":%d}",
               (double)weights_in_memory(i) / gb, (double)i->kv_bytes / gb, i->pool_full_tokens);
  if (sections & SECTION_QUEUES)
    buf_printf(out, ",\"queues\":{\"waiting\":%d,\"grammar\":0,\"paused\":0,\"retracted\":%llu}", t->n_waiting,
               (unsigned long long)t->n_retracted);
  buf_putc(out, '}');
}

/* /v1/loads?include=core,memory,queues|all&format=json|prometheus&dp_rank=0, and the old /get_load: a list without sections. */
void ops_loads(struct serve *s, struct http_exchange *x) {
  struct str query = x->head.query, include = str_c("all"), format = str_c("json"), rank = str_c("0");
  struct cygnet_stats t;
  double step_ms;
  threads_stats(s->threads, &t, &step_ms);
  struct buf body;
  buf_init(&body, 0);
  if (str_is(x->head.path, "/get_load")) {
    buf_printf(&body, "[{\"dp_rank\":0,\"num_reqs\":%d,\"num_waiting_reqs\":%d,\"num_tokens\":%d}]", t.n_running + t.n_waiting, t.n_waiting,
               t.pool_full_used_tokens);
    reply_json(x, &body);
    return;
  }
  ops_query(query.p, query.n, "include", &include);
  ops_query(query.p, query.n, "format", &format);
  ops_query(query.p, query.n, "dp_rank", &rank);
  int sections = sections_of(include);
  const char *wrong = !sections ? "include: expected core, memory, queues or all, comma between"
                      : !str_is(format, "json") && !str_is(format, "prometheus") ? "format: expected json or prometheus"
                      : !str_is(rank, "0")                                       ? "dp_rank: there is rank 0 alone"
                                                                                 : NULL;
  if (wrong) {
    serve_reply_error(x, 400, "invalid_value", "%s", wrong);
    return;
  }
  if (str_is(format, "prometheus")) {
    ops_metrics(s, x);
    return;
  }
  time_t now = (time_t)clock_unix_s();
  struct tm utc;
  char stamp[32];
  strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
  buf_printf(&body, "{\"timestamp\":\"%s\",\"version\":\"%s\",\"dp_rank_count\":1,\"loads\":[", stamp, CYGNET_VERSION);
  put_load(s, &body, &t, sections);
  buf_printf(&body, "],\"aggregate\":{\"total_running_reqs\":%d,\"total_waiting_reqs\":%d,\"total_reqs\":%d,\"avg_token_usage\":%.4f}}",
             t.n_running, t.n_waiting, t.n_running + t.n_waiting, metrics_token_usage(&s->api.info, &t));
  reply_json(x, &body);
}

/* ---- aborts --------------------------------------------------------------------------------------------------------------- */

static bool rid_is(const char *rid, const char *wanted, bool prefix) {
  if (!rid) return false;
  return prefix ? strncmp(rid, wanted, strlen(wanted)) == 0 : strcmp(rid, wanted) == 0;
}

/* The call is prepared, so its rids stay. */
static void abort_matching(struct threads *t, struct call *c, const char *rid, bool prefix) {
  if (rid_is(c->rid, rid, prefix)) {
    threads_abort(t, &c->abort_wanted);
    return;
  }
  for (int i = 0; i < c->n_choices; i++) /* several prompts may have a name each */
    if (rid_is(c->job.prompts[c->choices[i].prompt].rid, rid, prefix)) threads_abort(t, &c->choices[i].abort_wanted);
}

/* Either the one who aborts sees the call prepared, or the one who prepares it sees the wish. */
void ops_prepared(struct serve *s, struct call *c) {
  pthread_mutex_lock(&s->rid_mutex);
  uint64_t kept = MIN(s->n_wishes, (uint64_t)ABORT_WISHES);
  for (uint64_t i = s->n_wishes - kept; i < s->n_wishes; i++) {
    const struct abort_wish *w = &s->wishes[i % ABORT_WISHES];
    if (w->at_ns >= c->arrived_ns) abort_matching(s->threads, c, w->rid, w->prefix);
  }
  atomic_store(&c->prepared, true);
  pthread_mutex_unlock(&s->rid_mutex);
}

static void abort_rid(struct serve *s, const char *rid, bool prefix) {
  bool unknown = false;
  pthread_mutex_lock(&s->rid_mutex);
  for (struct call *c = s->calls; c; c = c->next) {
    if (rid_is(c->id, rid, prefix)) threads_abort(s->threads, &c->abort_wanted);
    else if (atomic_load(&c->prepared)) abort_matching(s->threads, c, rid, prefix);
    else unknown = true;
  }
  if (unknown) {
    struct abort_wish *w = &s->wishes[s->n_wishes++ % ABORT_WISHES];
    free(w->rid);
    *w = (struct abort_wish){.rid = xstrdup(rid), .prefix = prefix, .at_ns = clock_ns()};
  }
  pthread_mutex_unlock(&s->rid_mutex);
}

/* 0, or -1 and *e. */
static int abort_request(struct serve *s, const json_t *body, struct api_error *e) {
  bool all = false, prefix = false;
  struct err why;
  const json_t *rid = json_object_get(body, "rid");
  if (!json_is_object(body)) return api_error_set(e, 400, "invalid_json", NULL, "body: expected a JSON object");
  if (json_get_bool(body, "abort_all", &all, "body", &why) < 0) return api_error_set(e, 400, "invalid_value", "abort_all", "%s", why.msg);
  if (json_get_bool(body, "prefix", &prefix, "body", &why) < 0) return api_error_set(e, 400, "invalid_value", "prefix", "%s", why.msg);
  if (rid && !json_is_null(rid) && !json_is_string(rid))
    return api_error_set(e, 400, "invalid_value", "rid", "body: rid: expected a string");
  if (all) {
    for (struct call *c = s->calls; c; c = c->next)
      if (c != s->health_probe) threads_abort(s->threads, &c->abort_wanted);
    return 0;
  }
  if (json_string_length(rid) == 0)
    return api_error_set(e, 400, "missing_required_parameter", "rid", "body: rid: expected a string that is not empty, or abort_all");
  abort_rid(s, json_string_value(rid), prefix);
  return 0;
}

void ops_abort(struct serve *s, struct http_exchange *x) {
  struct api_error e = {0};
  struct err why;
  json_t *body = NULL;
  int r = -1;
  if (x->body.len > ABORT_BODY_MAX) api_error_set(&e, 413, "request_too_large", NULL, "body: expected at most %d bytes", ABORT_BODY_MAX);
  else if (!(body = json_load_text(buf_cstr(&x->body), x->body.len, false, "body", &why)))
    api_error_set(&e, err_http_status(why.code), "invalid_json", NULL, "%s", why.msg);
  else r = abort_request(s, body, &e);
  json_decref(body);
  if (r) api_reply_error(x, &e);
  else http_reply(x, 200, NULL, NULL, 0);
}
