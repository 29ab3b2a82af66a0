/* ops.c — what operators and routers ask for: health, models, facts, tokens. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/serve_impl.h"

/* A step that takes longer than this is taken for stuck. */
static const double stuck_ms = 120e3;

static void reply_json(struct http_exchange *x, struct buf *body) {
  http_reply(x, 200, "application/json", buf_cstr(body), body->len);
  buf_free(body);
}

void ops_health(struct serve *s, struct http_exchange *x) {
  struct cygnet_stats stats;
  double step_ms;
  threads_stats(s->threads, &stats, &step_ms);
  if (s->draining) serve_reply_error(x, 503, "busy", "the server is shutting down");
  else if (step_ms > stuck_ms) serve_reply_error(x, 503, "busy", "the engine has not finished a step for %.0f s", step_ms / 1e3);
  else http_reply(x, 200, "application/json", "{\"status\":\"ok\"}", 15);
}

static void put_model(const struct serve *s, struct buf *out) {
  const char *name = buf_cstr(&s->api.model_json);
  buf_printf(
      out,
      "{\"id\":\"%s\",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"cygnet\",\"root\":\"%s\",\"parent\":null,\"max_model_len\":%d}",
      name, (long long)s->api.created, name, s->api.info.ctx_tokens);
}

void ops_models(struct serve *s, struct http_exchange *x) {
  struct buf body;
  buf_init(&body, 0);
  buf_puts(&body, "{\"object\":\"list\",\"data\":[");
  put_model(s, &body);
  buf_puts(&body, "]}");
  reply_json(x, &body);
}

static int hex(char c) {
  const char *digits = "0123456789abcdef", *at = c ? strchr(digits, c | 0x20) : NULL;
  return at ? (int)(at - digits) : -1;
}

/* Names of models often have a slash in them; clients send it as it is or as %2F. */
static bool path_is(struct str path, const char *name) {
  while (path.n) {
    char c = path.p[0];
    size_t n = 1;
    if (c == '%' && path.n >= 3 && hex(path.p[1]) >= 0 && hex(path.p[2]) >= 0) {
      c = (char)(hex(path.p[1]) << 4 | hex(path.p[2]));
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
  buf_puts(
      &body,
      "\"is_generation\":true,\"preferred_sampling_params\":null,\"has_image_understanding\":false,\"has_audio_understanding\":false,\"architectures\":[\"");
  buf_json_escape(&body, i->architecture ? i->architecture : "", strlen(i->architecture ? i->architecture : ""));
  buf_puts(&body, "\"]}");
  reply_json(x, &body);
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
  put_named(&body, "served_model_name", s->api.model);
  put_named(&body, "architecture", i->architecture);
  put_named(&body, "format", i->format);
  put_named(&body, "isa", i->isa);
  put_named(&body, "kv_cache_dtype", i->kv_type);
  buf_printf(&body, "\"threads\":%d,\"context_length\":%d,\"page_size\":%d,\"chunked_prefill_size\":%d,\"max_running_requests\":%d,",
             i->threads, i->ctx_tokens, i->page_tokens, i->chunk_tokens, i->max_running);
  buf_printf(&body, "\"max_total_num_tokens\":%d,\"swa_max_total_num_tokens\":%d,\"max_req_input_len\":%d,", i->pool_full_tokens,
             i->pool_sliding_tokens, i->ctx_tokens - 1);
  buf_printf(&body, "\"memory_usage\":{\"weight_bytes\":%zu,\"kv_bytes\":%zu,\"scratch_bytes\":%zu,\"resident_bytes\":%zu},",
             i->weight_bytes, i->kv_bytes, i->scratch_bytes, mem_resident_bytes());
  buf_printf(&body, "\"internal_states\":[{\"n_running\":%d,\"n_waiting\":%d,\"full_used_tokens\":%d,\"swa_used_tokens\":%d,", t.n_running,
             t.n_waiting, t.pool_full_used_tokens, t.pool_sliding_used_tokens);
  buf_printf(&body, "\"n_steps\":%llu,\"n_finished\":%llu,\"n_aborted\":%llu,\"n_failed\":%llu,\"n_retracted\":%llu,",
             (unsigned long long)t.n_steps, (unsigned long long)t.n_finished, (unsigned long long)t.n_aborted,
             (unsigned long long)t.n_failed, (unsigned long long)t.n_retracted);
  buf_printf(&body, "\"prompt_tokens\":%llu,\"generated_tokens\":%llu,\"cached_tokens\":%llu}],", (unsigned long long)t.prompt_tokens,
             (unsigned long long)t.generated_tokens, (unsigned long long)t.cached_tokens);
  if (s->options.options_json) buf_printf(&body, "\"options\":%s,", s->options.options_json);
  buf_printf(&body, "\"http\":{\"connections\":%d,\"exchanges\":%d,\"calls\":%d,\"requests\":%llu,\"dropped\":%llu}}", h.connections,
             h.exchanges, s->n_calls, (unsigned long long)h.n_requests, (unsigned long long)h.n_dropped);
  reply_json(x, &body);
}

void ops_page(struct serve *s, struct http_exchange *x) {
  size_t n = strlen(x->extra);
  (void)s;
  snprintf(
      x->extra + n, sizeof x->extra - n,
      "Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n");
  http_reply(x, 200, "text/html; charset=utf-8", page_html, strlen(page_html));
}

void ops_ping(struct serve *s, struct http_exchange *x) {
  (void)s;
  http_reply(x, 200, NULL, NULL, 0);
}
void ops_metrics(struct serve *s, struct http_exchange *x) { ops_ping(s, x); }
void ops_loads(struct serve *s, struct http_exchange *x) { ops_ping(s, x); }
void ops_abort(struct serve *s, struct http_exchange *x) { ops_ping(s, x); }
