/* ask_url.c — a server answers: as many requests on their way as the caller begins, through libcurl's multi interface. */
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "eval/ask.h"
#include "eval/url.h"
#include "files/json.h"
#include "files/map.h"

enum { WAIT_MS = 100 };

struct talk {
  struct transfer t;
  char *body; /* what is asked, for the next try; owned */
  size_t n_body;
  int number, tries;
  int64_t start_ns, again_ns; /* again: not before; 0: it is on its way */
  bool chat;
};

struct remote {
  struct asker asker;
  const struct url *u;
  const char *model;
  CURLM *multi;
  struct talk **talks; /* owned, and each */
  int n, cap;
};

/* ---- what is asked ---------------------------------------------------------------------------------------------------------------- */

/* "data:image/png;base64,..." of a file; NULL and *e. */
static json_t *data_url(const char *path, struct err *e) {
  static const struct {
    const char *magic;
    size_t at, n;
    const char *type;
  } types[] = {{"\x89PNG", 0, 4, "png"}, {"\xff\xd8", 0, 2, "jpeg"}, {"GIF8", 0, 4, "gif"}, {"WEBP", 8, 4, "webp"}, {"BM", 0, 2, "bmp"}};
  struct map m = {0};
  if (map_open(&m, path, e)) return NULL;
  const char *type = "png";
  for (size_t i = 0; i < ARRAY_LEN(types); i++)
    if (m.n_bytes >= types[i].at + types[i].n && !memcmp(m.data + types[i].at, types[i].magic, types[i].n)) {
      type = types[i].type;
      break;
    }
  if (m.n_bytes > (size_t)512 << 20) {
    map_close(&m);
    err_set(e, ERR_TOO_LARGE, "a picture has more than 512 MiB");
    return NULL;
  }
  struct buf b;
  buf_init(&b, 0);
  buf_printf(&b, "data:image/%s;base64,", type);
  enum { PIECE = 3 << 16 };
  unsigned char *out = xmalloc(PIECE / 3 * 4 + 1);
  for (size_t i = 0; i < m.n_bytes; i += PIECE) {
    int n = EVP_EncodeBlock(out, m.data + i, (int)MIN(m.n_bytes - i, PIECE));
    buf_append(&b, out, (size_t)n);
  }
  free(out);
  map_close(&m);
  json_t *v = json_stringn(buf_cstr(&b), b.len);
  buf_free(&b);
  return v;
}

/* The conversation with its pictures in it; NULL and *e. */
static json_t *with_pictures(const json_t *messages, struct err *e) {
  json_t *copy = json_deep_copy(messages), *content = json_object_get(json_array_get(copy, 0), "content");
  for (size_t i = 0; json_is_array(content) && i < json_array_size(content); i++) {
    json_t *part = json_array_get(content, i);
    const char *path = json_string_value(json_object_get(part, "path"));
    if (!path) continue;
    json_t *url = data_url(path, e);
    if (!url) {
      json_decref(copy);
      return NULL;
    }
    json_object_set_new(part, "image_url", json_pack("{s:o}", "url", url));
    json_object_del(part, "path");
  }
  return copy;
}

/* Only what differs from the API's defaults is sent: servers refuse fields that they do not know. */
static json_t *request_of(const struct remote *r, const struct eval_question *q, uint64_t seed, struct err *e) {
  const struct ask_settings *s = r->asker.settings;
  json_t *o = json_pack("{s:s, s:i, s:f}", "model", r->model, "max_tokens", s->max_tokens, "temperature", s->sampling.temperature);
  if (q->messages) {
    json_t *messages = with_pictures(q->messages, e);
    if (!messages) {
      json_decref(o);
      return NULL;
    }
    json_object_set_new(o, "messages", messages);
    if (s->think) json_object_set_new(o, "chat_template_kwargs", json_pack("{s:b}", "enable_thinking", 1));
  } else json_object_set_new(o, "prompt", json_string(q->prompt));
  if (s->sampling.temperature > 0) {
    json_object_set_new(o, "seed", json_integer((json_int_t)(seed & INT32_MAX)));
    if (s->sampling.top_p > 0 && s->sampling.top_p < 1) json_object_set_new(o, "top_p", json_real(s->sampling.top_p));
    if (s->sampling.top_k > 0) json_object_set_new(o, "top_k", json_integer(s->sampling.top_k));
    if (s->sampling.min_p > 0) json_object_set_new(o, "min_p", json_real(s->sampling.min_p));
  }
  if (s->n_stop) {
    json_t *stop = json_array();
    for (int i = 0; i < s->n_stop; i++) json_array_append_new(stop, json_string(s->stop[i]));
    json_object_set_new(o, "stop", stop);
  }
  return o;
}

static void send_off(struct remote *r, struct talk *t) {
  struct buf b;
  buf_init(&b, 0);
  buf_append(&b, t->body, t->n_body);
  t->again_ns = 0;
  t->tries++;
  transfer_open(&t->t, r->u, t->chat ? "/v1/chat/completions" : "/v1/completions", &b);
  curl_easy_setopt(t->t.curl, CURLOPT_PRIVATE, t);
  CHECK(curl_multi_add_handle(r->multi, t->t.curl) == CURLM_OK);
}

static int begin(struct asker *a, const struct eval_question *q, int number, uint64_t seed, struct err *e) {
  struct remote *r = (struct remote *)a;
  json_t *request = request_of(r, q, seed, e);
  if (!request) return -1;
  struct talk *t = xcalloc(1, sizeof *t);
  struct buf b;
  buf_init(&b, 0);
  json_put(&b, request);
  json_decref(request);
  t->body = buf_take(&b, &t->n_body);
  t->number = number;
  t->chat = q->messages != NULL;
  t->start_ns = clock_ns();
  if (r->n == r->cap) r->talks = xrealloc(r->talks, (size_t)(r->cap = r->cap ? 2 * r->cap : 64) * sizeof *r->talks);
  r->talks[r->n++] = t;
  send_off(r, t);
  return 0;
}

/* ---- what comes back ---------------------------------------------------------------------------------------------------------------- */

static void free_talk(struct talk *t) {
  if (t->t.curl) transfer_close(&t->t);
  free(t->body);
  free(t);
}

static int count_of(const json_t *usage, const char *name) {
  const json_t *v = json_object_get(usage, name);
  return json_is_integer(v) ? (int)MIN(MAX(json_integer_value(v), 0), INT32_MAX) : 0;
}

static int read_reply(const json_t *reply, bool chat, struct ask_answer *out, struct err *e) {
  const json_t *choice = json_array_get(json_object_get(reply, "choices"), 0), *usage = json_object_get(reply, "usage");
  const json_t *message = json_object_get(choice, "message");
  const json_t *text = chat ? json_object_get(message, "content") : json_object_get(choice, "text");
  const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
  if (!json_is_object(choice) || (!json_is_string(text) && !(chat && json_is_object(message) && (!text || json_is_null(text)))))
    return err_set(e, ERR_BAD_INPUT, "the server's answer: expected choices[0].%s", chat ? "message.content" : "text");
  out->n_text = json_string_length(text);
  out->text = xstrndup(json_is_string(text) ? json_string_value(text) : "", out->n_text);
  out->cut = finish && !strcmp(finish, "length");
  out->prompt_tokens = count_of(usage, "prompt_tokens");
  out->completion_tokens = count_of(usage, "completion_tokens");
  return 0;
}

/* One transfer is over: true and *out, or it will be tried again. */
static bool finish(struct remote *r, struct talk *t, CURLcode code, struct ask_answer *out) {
  struct err e = {0};
  json_t *reply;
  int pause, went = transfer_result(&t->t, code, &reply, &pause, &e);
  curl_multi_remove_handle(r->multi, t->t.curl);
  transfer_close(&t->t);
  if (went == 0 && t->tries <= r->u->retries) {
    t->again_ns = clock_ns() + url_pause_ms(t->tries, pause) * INT64_C(1000000);
    return false;
  }
  *out = (struct ask_answer){.number = t->number, .seconds = clock_ms_since(t->start_ns) / 1000};
  if (went == 1 && read_reply(reply, t->chat, out, &e)) went = -1;
  if (went != 1) out->error = xstrdup(e.msg);
  json_decref(reply);
  for (int i = 0; i < r->n; i++)
    if (r->talks[i] == t) {
      r->talks[i] = r->talks[--r->n];
      break;
    }
  free_talk(t);
  return true;
}

static bool next(struct asker *a, struct ask_answer *out) {
  struct remote *r = (struct remote *)a;
  for (int round = 0; round < 2; round++) {
    int running, left;
    for (int i = 0; i < r->n; i++)
      if (r->talks[i]->again_ns && r->talks[i]->again_ns <= clock_ns()) send_off(r, r->talks[i]);
    curl_multi_perform(r->multi, &running);
    for (CURLMsg *m; (m = curl_multi_info_read(r->multi, &left)) != NULL;) {
      if (m->msg != CURLMSG_DONE) continue;
      char *t = NULL;
      CURLcode code = m->data.result;
      curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &t);
      if (finish(r, (struct talk *)(void *)t, code, out)) return true;
    }
    if (round == 0) curl_multi_poll(r->multi, NULL, 0, WAIT_MS, NULL);
  }
  return false;
}

static void close_remote(struct asker *a) {
  struct remote *r = (struct remote *)a;
  for (int i = 0; i < r->n; i++) {
    if (r->talks[i]->t.curl) curl_multi_remove_handle(r->multi, r->talks[i]->t.curl);
    free_talk(r->talks[i]);
  }
  curl_multi_cleanup(r->multi);
  free(r->talks);
  free(r);
}

struct asker *ask_url_open(const struct url *u, const char *model, const struct ask_settings *s) {
  struct remote *r = xcalloc(1, sizeof *r);
  *r = (struct remote){.asker = {.settings = s, .begin = begin, .next = next, .close = close_remote}, .u = u, .model = model};
  r->multi = curl_multi_init();
  CHECK(r->multi);
  return &r->asker;
}
