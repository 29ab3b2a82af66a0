/* url.c — one request: made, read, judged. */
#include "eval/url.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/web.h"
#include "cygnet.h"
#include "files/json.h"

enum { REPLY_BYTES_MAX = 256 << 20, PAUSE_MS_MAX = 60000, CONNECT_S = 10 };

static pthread_once_t curl_once = PTHREAD_ONCE_INIT;
static void curl_begin(void) { curl_global_init(CURL_GLOBAL_DEFAULT); }

int url_init(struct url *u, const char *option, const char *address, struct err *e) {
  struct str s = str_c(address);
  char shown[100];
  *u = (struct url){.timeout_s = 600, .retries = 3};
  if (!str_starts_nocase(s, "http://") && !str_starts_nocase(s, "https://"))
    return err_set(e, ERR_BAD_INPUT, "%s: expected http://HOST:PORT or https://HOST, found \"%s\"", option,
                   str_escape(s, shown, sizeof shown));
  while (s.n && s.p[s.n - 1] == '/') s.n--;
  if (str_ends(s, "/v1")) s.n -= 3;
  u->base = xstrndup(s.p, s.n);
  pthread_once(&curl_once, curl_begin);
  return 0;
}

void url_free(struct url *u) {
  free(u->base);
  u->base = NULL;
}

static size_t take(char *p, size_t size, size_t n, void *ctx) {
  struct transfer *t = ctx;
  return buf_append(&t->reply, p, size * n) ? size * n : 0;
}

void transfer_open(struct transfer *t, const struct url *u, const char *path, struct buf *body) {
  struct buf b;
  *t = (struct transfer){.curl = curl_easy_init()};
  CHECK(t->curl);
  buf_init(&t->reply, REPLY_BYTES_MAX);
  buf_init(&b, 0);
  buf_printf(&b, "%s%s", u->base, path);
  CURL *c = t->curl;
  web_begin(c, buf_cstr(&b));
  curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)MIN(CONNECT_S, u->timeout_s));
  curl_easy_setopt(c, CURLOPT_TIMEOUT, (long)u->timeout_s);
  curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take);
  curl_easy_setopt(c, CURLOPT_WRITEDATA, t);
  curl_easy_setopt(c, CURLOPT_ERRORBUFFER, t->error);
  if (body) {
    t->body = *body;
    *body = (struct buf){0};
    t->headers = curl_slist_append(t->headers, "Content-Type: application/json");
    t->headers = curl_slist_append(t->headers, "Expect:"); /* or libcurl waits a second for leave to send a large one */
    curl_easy_setopt(c, CURLOPT_POSTFIELDS, buf_cstr(&t->body));
    curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)t->body.len);
  }
  if (u->key && *u->key) {
    buf_clear(&b);
    buf_printf(&b, "Authorization: Bearer %s", u->key);
    t->headers = curl_slist_append(t->headers, buf_cstr(&b));
  }
  curl_easy_setopt(c, CURLOPT_HTTPHEADER, t->headers);
  buf_free(&b);
}

void transfer_close(struct transfer *t) {
  curl_easy_cleanup(t->curl);
  curl_slist_free_all(t->headers);
  buf_free(&t->body);
  buf_free(&t->reply);
  *t = (struct transfer){0};
}

/* The sentence in a refusal, by any of the fields that servers put it in; else its first bytes. */
static void put_reason(const struct transfer *t, char *out, size_t n) {
  json_t *v = json_loadb(buf_cstr(&t->reply), t->reply.len, 0, NULL);
  const json_t *error = json_object_get(v, "error"), *text = json_is_object(error) ? json_object_get(error, "message") : error;
  if (!json_is_string(text)) text = json_object_get(v, "message");
  if (!json_is_string(text)) text = json_object_get(v, "detail");
  struct str s = json_is_string(text) ? str_c(json_string_value(text)) : str_of(buf_cstr(&t->reply), t->reply.len);
  str_escape(s, out, n);
  json_decref(v);
}

int transfer_result(struct transfer *t, CURLcode code, json_t **reply, int *pause_ms, struct err *e) {
  char shown[300];
  long status = 0;
  curl_off_t after = 0;
  *reply = NULL;
  *pause_ms = 0;
  if (code == CURLE_OUT_OF_MEMORY || code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_WRITE_ERROR ||
      code == CURLE_PEER_FAILED_VERIFICATION)
    return err_set(e, code == CURLE_WRITE_ERROR ? ERR_TOO_LARGE : ERR_BAD_INPUT, "%s", *t->error ? t->error : curl_easy_strerror(code));
  if (code) {
    err_set(e, ERR_IO, "%s", *t->error ? t->error : curl_easy_strerror(code));
    return 0;
  }
  curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &status);
  if (status == 200) {
    *reply = json_load_text(buf_cstr(&t->reply), t->reply.len, true, "the server's answer", e);
    return *reply ? 1 : -1;
  }
  curl_easy_getinfo(t->curl, CURLINFO_RETRY_AFTER, &after);
  *pause_ms = (int)(MIN(MAX(after, 0), PAUSE_MS_MAX / 1000) * 1000);
  put_reason(t, shown, sizeof shown);
  err_set(e, status == 404 ? ERR_NOT_FOUND : status >= 500 || status == 429 ? ERR_BUSY : ERR_BAD_INPUT, "HTTP %ld: %s", status, shown);
  return status == 408 || status == 429 || status >= 500 ? 0 : -1;
}

int url_pause_ms(int n, int at_least_ms) {
  int ms = 500 << MIN(n - 1, 6);
  return MIN(MAX(ms, at_least_ms), PAUSE_MS_MAX);
}

static void wait_ms(const struct url *u, int ms) {
  for (int64_t end = clock_ns() + ms * INT64_C(1000000); clock_ns() < end && !(u->stopped && u->stopped());)
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
}

json_t *url_call(const struct url *u, const char *path, const json_t *body, struct err *e) {
  for (int n = 1;; n++) {
    struct transfer t;
    struct buf b;
    json_t *reply;
    int pause;
    buf_init(&b, 0);
    if (body) json_put(&b, body);
    transfer_open(&t, u, path, body ? &b : NULL);
    int went = transfer_result(&t, curl_easy_perform(t.curl), &reply, &pause, e);
    transfer_close(&t);
    if (went == 1) return reply;
    if (went < 0 || n > u->retries || (u->stopped && u->stopped())) {
      err_prefix(e, "%s%s", u->base, path);
      return NULL;
    }
    wait_ms(u, url_pause_ms(n, pause));
  }
}

char *url_model(const struct url *u, struct err *e) {
  json_t *reply = url_call(u, "/v1/models", NULL, e);
  const char *id = json_string_value(json_object_get(json_array_get(json_object_get(reply, "data"), 0), "id"));
  char *name = id ? xstrdup(id) : NULL;
  if (!name && reply) err_set(e, ERR_BAD_INPUT, "%s/v1/models: expected data[0].id: give --served-model-name", u->base);
  json_decref(reply);
  return name;
}
