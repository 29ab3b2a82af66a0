/* t_openai — transcripts: tests/server/http/NAME.txt holds requests and what must come back, run against the scripted engine of fake.h.
 *
 *   # comment                             (only before a request)
 *   POST /v1/completions                  or GET ..., or RAW: then the bytes as they stand, lines ended by CR LF, \xHH for odd bytes
 *   Header: value                         (optional; Host, Content-Type and Content-Length are added unless given)
 *                                         (an empty line, then the body, when there is one)
 *   {"prompt": "say:hi"}
 *   ---
 *   status 200                            what must hold, one a line:
 *   json choices.0.text "hi"                value at a path of the JSON body ("missing": no such key)
 *   has TEXT | lacks TEXT                   in the body
 *   header NAME VALUE | noheader NAME       in the head
 *   stream TEXT                             deltas of choice 0 put together, as a JSON string; "stream.1" of choice 1
 *   chunks N                                data lines before [DONE]
 *   chunk N PATH VALUE                      as json, of the N-th data line (negative: from the end)
 *   ====                                  the next request
 *
 * Each POST to a completion route that asks for no stream and gives 200 is sent again with "stream": true: the deltas must be its text.
 */
#include "test.h"

#include <dirent.h>

#include "fake.h"

/* ---- JSON by path ----------------------------------------------------------------------------------------------------- */

static const json_t *at_path(const json_t *v, const char *path) {
  while (v && *path) {
    char key[128];
    size_t n = strcspn(path, ".");
    snprintf(key, sizeof key, "%.*s", (int)n, path);
    path += n + (path[n] == '.');
    if (json_is_array(v)) v = json_array_get(v, (size_t)atoi(key));
    else v = json_object_get(v, key);
  }
  return v;
}

static void check_value(const char *where, const json_t *root, const char *path, const char *wanted) {
  const json_t *found = at_path(root, path);
  if (!strcmp(wanted, "missing")) {
    if (found) fail_msg("%s: %s should be missing", where, path);
    return;
  }
  json_error_t e;
  json_t *value = json_loads(wanted, JSON_DECODE_ANY, &e);
  if (!value) fail_msg("%s: bad expectation %s", where, wanted);
  if (!found || !json_equal(found, value)) {
    char *text = found ? json_dumps(found, JSON_ENCODE_ANY | JSON_COMPACT) : strdup("nothing");
    fail_msg("%s: %s: wanted %s, found %s", where, path, wanted, text);
  }
  json_decref(value);
}

/* ---- streams ---------------------------------------------------------------------------------------------------------- */

enum { CHUNKS_MAX = 2000 };
struct stream {
  json_t *chunks[CHUNKS_MAX];
  int n;
  bool done;
};

static void stream_parse(const char *where, const char *body, struct stream *s) {
  *s = (struct stream){0};
  while (*body) {
    const char *end = strstr(body, "\n\n");
    if (!end || strncmp(body, "data: ", 6)) fail_msg("%s: not an event stream: %.200s", where, body);
    if (s->done) fail_msg("%s: something after [DONE]", where);
    size_t n = (size_t)(end - body) - 6;
    if (n == 6 && !memcmp(body + 6, "[DONE]", 6)) s->done = true;
    else {
      json_error_t e;
      s->chunks[s->n] = json_loadb(body + 6, n, 0, &e);
      if (!s->chunks[s->n++]) fail_msg("%s: bad JSON in a chunk: %.*s", where, (int)n, body + 6);
    }
    body = end + 2;
  }
  if (!s->done) fail_msg("%s: the stream has no [DONE]", where);
}
static void stream_free(struct stream *s) {
  for (int i = 0; i < s->n; i++) json_decref(s->chunks[i]);
}

static void stream_text(const struct stream *s, int index, struct buf *out) {
  for (int i = 0; i < s->n; i++) {
    const json_t *choices = json_object_get(s->chunks[i], "choices"), *c;
    size_t k;
    json_array_foreach(choices, k, c) {
      if (json_integer_value(json_object_get(c, "index")) != index) continue;
      const json_t *text = json_object_get(c, "delta") ? json_object_get(json_object_get(c, "delta"), "content")
                                                       : json_object_get(c, "text");
      if (!text) continue;
      buf_append(out, json_string_value(text), json_string_length(text));
    }
  }
}

/* ---- one exchange ----------------------------------------------------------------------------------------------------- */

static void unescape(struct buf *out, const char *s, bool crlf) {
  for (; *s; s++) {
    unsigned byte;
    if (s[0] == '\\' && s[1] == 'x' && sscanf(s + 2, "%2x", &byte) == 1) {
      buf_putc(out, (char)byte);
      s += 3;
    } else {
      if (crlf && *s == '\n') buf_putc(out, '\r');
      buf_putc(out, *s);
    }
  }
}

struct request {
  struct buf bytes, body;
  char path[200];
  bool post, raw;
};

static void build_request(char *text, struct request *q) {
  buf_init(&q->bytes, 0);
  buf_init(&q->body, 0);
  q->raw = strncmp(text, "RAW\n", 4) == 0;
  if (q->raw) {
    unescape(&q->bytes, text + 4, true);
    return;
  }
  char *blank = strstr(text, "\n\n"), *line_end = strchr(text, '\n');
  if (blank) {
    blank[1] = 0;
    unescape(&q->body, blank + 2, false);
    while (q->body.len && q->body.data[q->body.len - 1] == '\n') q->body.len--;
    buf_append(&q->body, "", 0);
  }
  *line_end = 0;
  q->post = strncmp(text, "POST ", 5) == 0;
  snprintf(q->path, sizeof q->path, "%s", strchr(text, ' ') + 1);
  buf_printf(&q->bytes, "%s HTTP/1.1\r\n", text);
  char *headers = line_end + 1;
  if (!strcasestr(headers, "Host:")) buf_puts(&q->bytes, "Host: localhost\r\n");
  if (q->post && !strcasestr(headers, "Content-Type:")) buf_puts(&q->bytes, "Content-Type: application/json\r\n");
  if (!strcasestr(headers, "Content-Length:") && (q->post || q->body.len)) buf_printf(&q->bytes, "Content-Length: %zu\r\n", q->body.len);
  unescape(&q->bytes, headers, true);
  buf_puts(&q->bytes, "\r\n");
  buf_append(&q->bytes, q->body.data, q->body.len);
}

static void check_line(const char *where, char *line, const struct answer *a, const json_t *json, const struct stream *s) {
  char *rest = strchr(line, ' ');
  if (rest) *rest++ = 0;
  else rest = line + strlen(line);
  char value[256];
  const char *body = buf_cstr(&a->body);
  if (!strcmp(line, "status")) {
    if (a->status != atoi(rest)) fail_msg("%s: status %d, wanted %s: %.500s", where, a->status, rest, body);
  } else if (!strcmp(line, "has")) {
    if (!strstr(body, rest)) fail_msg("%s: no \"%s\" in %.900s", where, rest, body);
  } else if (!strcmp(line, "lacks")) {
    if (strstr(body, rest)) fail_msg("%s: found \"%s\"", where, rest);
  } else if (!strcmp(line, "noheader")) {
    if (answer_header(a, rest, value)) fail_msg("%s: header %s: %s", where, rest, value);
  } else if (!strcmp(line, "header")) {
    char *wanted = strchr(rest, ' ');
    *wanted++ = 0;
    if (!answer_header(a, rest, value) || strcmp(value, wanted))
      fail_msg("%s: header %s is \"%s\", wanted \"%s\"", where, rest, value, wanted);
  } else if (!strcmp(line, "json")) {
    char *wanted = strchr(rest, ' ');
    *wanted++ = 0;
    if (!json) fail_msg("%s: the body is no JSON: %.200s", where, body);
    check_value(where, json, rest, wanted);
  } else if (!strncmp(line, "stream", 6)) {
    struct buf text;
    buf_init(&text, 0);
    stream_text(s, line[6] == '.' ? atoi(line + 7) : 0, &text);
    json_t *found = json_stringn(buf_cstr(&text), text.len);
    check_value(where, found, "", rest);
    json_decref(found);
    buf_free(&text);
  } else if (!strcmp(line, "chunks")) {
    if (s->n != atoi(rest)) fail_msg("%s: %d chunks, wanted %s", where, s->n, rest);
  } else if (!strcmp(line, "chunk")) {
    char path[128];
    int index, used;
    if (sscanf(rest, "%d %127s %n", &index, path, &used) < 2) fail_msg("%s: bad line", where);
    if (index < 0) index += s->n;
    if (index < 0 || index >= s->n) fail_msg("%s: there are %d chunks only", where, s->n);
    check_value(where, s->chunks[index], path, rest + used);
  } else {
    fail_msg("%s: unknown check \"%s\"", where, line);
  }
}

/* Arrays of the log-probabilities of one choice, put together from its chunks: "content", or the four of the old shape. */
static json_t *stream_logprobs(const struct stream *s, int index) {
  json_t *all = json_object();
  for (int i = 0; i < s->n; i++) {
    const json_t *choices = json_object_get(s->chunks[i], "choices"), *c;
    size_t k;
    json_array_foreach(choices, k, c) {
      const char *key;
      json_t *v;
      if (json_integer_value(json_object_get(c, "index")) != index) continue;
      json_object_foreach(json_object_get(c, "logprobs"), key, v) {
        if (!json_is_array(v)) continue;
        if (!json_object_get(all, key)) json_object_set_new(all, key, json_array());
        json_array_extend(json_object_get(all, key), v);
      }
    }
  }
  return all;
}

static const json_t *stream_finish(const struct stream *s, int index, const char *key) {
  const json_t *found = NULL;
  for (int i = 0; i < s->n; i++) {
    const json_t *c = json_array_get(json_object_get(s->chunks[i], "choices"), 0);
    if (c && json_integer_value(json_object_get(c, "index")) == index && !json_is_null(json_object_get(c, "finish_reason")))
      found = json_object_get(c, key);
  }
  return found;
}

static void check_choice_streamed(const char *where, const struct stream *s, const json_t *c, int i) {
  const json_t *message = json_object_get(c, "message");
  const json_t *wanted = message ? json_object_get(message, "content") : json_object_get(c, "text");
  struct buf found;
  buf_init(&found, 0);
  stream_text(s, i, &found);
  if (strcmp(buf_cstr(&found), json_string_value(wanted)))
    fail_msg("%s: streamed \"%s\", whole \"%s\"", where, buf_cstr(&found), json_string_value(wanted));
  buf_free(&found);
  json_t *logprobs = stream_logprobs(s, i);
  const char *key;
  json_t *v;
  json_object_foreach(json_object_get(c, "logprobs"), key, v) {
    const json_t *streamed = json_object_get(logprobs, key);
    if (json_array_size(v) && !json_equal(streamed, v)) fail_msg("%s: logprobs.%s differ in the stream", where, key);
    if (!json_array_size(v) && json_array_size(streamed)) fail_msg("%s: logprobs.%s are in the stream only", where, key);
  }
  json_decref(logprobs);
  static const char *const ends[] = {"finish_reason", "matched_stop"};
  for (size_t k = 0; k < ARRAY_LEN(ends); k++)
    if (!json_equal(stream_finish(s, i, ends[k]), json_object_get(c, ends[k]))) fail_msg("%s: %s differs in the stream", where, ends[k]);
}

/* The same request as a stream: deltas put together = the whole answer, for each choice. */
static void check_streamed(const char *where, int port, const struct request *q, const json_t *whole) {
  json_error_t je;
  json_t *body = json_loadb(q->body.data, q->body.len, 0, &je);
  json_object_set_new(body, "stream", json_true());
  json_object_set_new(body, "stream_options", json_pack("{s:b}", "include_usage", 1));
  char *text = json_dumps(body, JSON_COMPACT);
  struct answer a;
  struct stream s;
  assert_int_equal(client_ask(port, q->path, text, &a), 200);
  stream_parse(where, buf_cstr(&a.body), &s);
  const json_t *choices = json_object_get(whole, "choices"), *c;
  size_t i;
  json_array_foreach(choices, i, c) check_choice_streamed(where, &s, c, (int)i);
  if (!json_equal(json_object_get(s.chunks[s.n - 1], "usage"), json_object_get(whole, "usage")))
    fail_msg("%s: usage differs in the stream", where);
  stream_free(&s);
  answer_free(&a);
  free(text);
  json_decref(body);
}

static void run_exchange(const char *where, int port, char *text) {
  char *checks = strstr(text, "\n---\n");
  if (!checks) fail_msg("%s: no --- line", where);
  checks[1] = 0;
  checks += 5;
  struct request q = {0};
  struct answer a;
  struct stream s = {0};
  build_request(text, &q);
  int fd = client_connect(port);
  client_send(fd, q.bytes.data, q.bytes.len);
  client_read(fd, &a);
  close(fd);
  json_error_t je;
  json_t *json = a.body.len ? json_loadb(a.body.data, a.body.len, JSON_REJECT_DUPLICATES, &je) : NULL;
  bool is_stream = a.body.len > 6 && !strncmp(a.body.data, "data: ", 6);
  if (is_stream) stream_parse(where, a.body.data, &s);
  if (a.status >= 400 && !at_path(json, "error.message") && a.body.len) fail_msg("%s: not an error object: %.300s", where, a.body.data);
  for (char *line = strtok(checks, "\n"); line; line = strtok(NULL, "\n")) check_line(where, line, &a, json, &s);
  if (q.post && a.status == 200 && !is_stream && json_object_get(json, "choices") && !strcasestr(q.bytes.data, "Authorization:"))
    check_streamed(where, port, &q, json);
  stream_free(&s);
  json_decref(json);
  answer_free(&a);
  buf_free(&q.bytes);
  buf_free(&q.body);
}

/* Texts, ends and log-probabilities in every mix, in both dialects. */
static void streams_are_whole(void **state) {
  (void)state;
  struct fixture *f = fixture_start(NULL, 8, 0);
  static const char *const texts[] = {"alpha beta gamma", "\xf0\x9f\x98\x80 caf\xc3\xa9 \xe2\x82\xac", "\\\\nUser: <|", "x",
                                      "e\xcc\x81\xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9"};
  static const char *const ends[] = {"",
                                     ",\"stop\":[\"beta gam\"]",
                                     ",\"stop\":[\"a b\",\"zzz\"],\"max_tokens\":9",
                                     ",\"stop\":[\"\\n\",\"gamma\"],\"n\":2",
                                     ",\"max_tokens\":3",
                                     ",\"stop\":\"\\nUser:\",\"max_tokens\":50",
                                     ",\"ignore_eos\":true,\"max_tokens\":20"};
  static const char *const logprobs[][2] = {{"", ""},
                                            {",\"logprobs\":2", ",\"logprobs\":true"},
                                            {",\"logprobs\":0,\"echo\":true", ",\"logprobs\":true,\"top_logprobs\":4"},
                                            {",\"echo\":true,\"n\":2", ""}};
  for (size_t i = 0; i < ARRAY_LEN(texts) * ARRAY_LEN(ends) * ARRAY_LEN(logprobs) * 2; i++) {
    bool chat = i % 2;
    const char *text = texts[i / 2 % ARRAY_LEN(texts)], *end = ends[i / 2 / ARRAY_LEN(texts) % ARRAY_LEN(ends)];
    const char *lp = logprobs[i / 2 / ARRAY_LEN(texts) / ARRAY_LEN(ends)][chat];
    struct request q = {.post = true};
    struct answer a;
    json_error_t je;
    if (strstr(end, "\"n\"") && strstr(lp, "\"n\"")) continue;
    buf_init(&q.body, 0);
    if (chat) buf_printf(&q.body, "{\"messages\":[{\"role\":\"user\",\"content\":\"say:%s\"}]%s%s}", text, end, lp);
    else buf_printf(&q.body, "{\"prompt\":\"say:%s\"%s%s}", text, end, lp);
    snprintf(q.path, sizeof q.path, chat ? "/v1/chat/completions" : "/v1/completions");
    if (client_ask(f->port, q.path, q.body.data, &a) != 200) fail_msg("%s: status %d: %s", q.body.data, a.status, buf_cstr(&a.body));
    json_t *whole = json_loadb(a.body.data, a.body.len, JSON_REJECT_DUPLICATES, &je);
    assert_non_null(whole);
    check_streamed(q.body.data, f->port, &q, whole);
    json_decref(whole);
    answer_free(&a);
    buf_free(&q.body);
  }
  fixture_stop(f);
}

/* A file beginning with "# options: key" is run against a server with those. */
static void run_file(const char *name) {
  char path[300], where[400];
  snprintf(path, sizeof path, "server/http/%s", name);
  size_t n;
  char *text = test_read(test_path(path), &n), *at = text;
  struct serve_options o = {.api_key = strncmp(text, "# options: key", 14) ? NULL : "sesame",
                            .cors_origin = strstr(text, "# options: cors\n") ? "https://app.test" : NULL};
  struct fixture *f = fixture_start(&o, 0, 0);
  for (int i = 1; at; i++) {
    char *next = strstr(at, "\n====\n");
    if (next) next[1] = 0;
    while (*at == '#' || *at == '\n') {
      at = strchr(at, '\n');
      if (!at) fail_msg("%s: ends in a comment", name);
      at++;
    }
    snprintf(where, sizeof where, "%s, exchange %d", name, i);
    run_exchange(where, f->port, at);
    at = next ? next + 6 : NULL;
  }
  fixture_stop(f);
  free(text);
}

static void transcripts(void **state) {
  (void)state;
  DIR *d = opendir(test_path("server/http"));
  assert_non_null(d);
  int n = 0;
  for (struct dirent *f; (f = readdir(d));) {
    size_t length = strlen(f->d_name);
    if (length < 5 || strcmp(f->d_name + length - 4, ".txt")) continue;
    run_file(f->d_name);
    n++;
  }
  closedir(d);
  assert_true(n >= 8);
}

/* Each field at, inside and outside of its range (the table of spec'd ranges is the oracle). */
static const struct range common_ranges[] = {
    {"temperature", {"0", "1", "2.5", "null"}, {"-1", "-0.001", "1e9", "\"1\"", "[]", "true", "NaN"}},
    {"top_p", {"1", "0.5", "1e-9", "null"}, {"0", "1.1", "-0.5", "\"x\""}},
    {"top_k", {"-1", "0", "1", "1000000"}, {"-2", "1.5", "\"4\"", "1e30"}},
    {"min_p", {"0", "1", "0.25"}, {"-0.1", "1.1"}},
    {"frequency_penalty", {"-2", "2", "0"}, {"-2.1", "3", "-3"}},
    {"presence_penalty", {"-2", "2", "0"}, {"2.0001", "3", "-3"}},
    {"repetition_penalty", {"1", "2", "0.1"}, {"0", "-1", "2.5"}},
    {"seed", {"0", "-1", "9223372036854775807"}, {"9223372036854775808", "1.5", "\"7\"", "1e999"}},
    {"n", {"1", "3", "null"}, {"0", "-1", "129", "1.5", "\"2\""}},
    {"max_tokens", {"1", "100", "5.0", "2147483647"}, {"0", "-1", "1e12", "\"5\"", "2.5", "4294967297"}},
    {"max_completion_tokens", {"1", "3", "null", "2147483647"}, {"0", "-1", "1e12", "\"5\"", "2.5"}},
    {"min_tokens", {"0", "1"}, {"-1", "\"1\"", "5000"}},
    {"stream", {"false", "null"}, {"1", "\"true\"", "{}"}},
    {"ignore_eos", {"false"}, {"1"}},
    {"skip_special_tokens", {"false", "true"}, {"0"}},
    {"stop", {"null", "\"x\"", "[]", "[\"a\",\"b\"]"}, {"\"\"", "[\"\"]", "[1]", "7", "{}", "[\"a\",null]"}},
    {"stop_token_ids", {"null", "[]", "[0,257]", "[null]"}, {"[258]", "[-1]", "[1.5]", "5"}},
    {"logit_bias",
     {"null", "{}", "{\"0\":5}", "{\"257\":-100}"},
     {"{\"258\":5}", "{\"-1\":5}", "{\"abc\":1}", "{\"5\":1e9}", "{\"5\":\"x\"}", "[]", "{\" 5\":1}"}},
    {"stream_options", {"null", "{}"}, {"{\"include_usage\":true}", "5"}},
    {"response_format",
     {"null", "{\"type\":\"text\"}", "{\"type\":\"json_object\"}", "{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{}}}"},
     {"{\"type\":\"structural_tag\"}", "{\"type\":\"json_schema\"}", "{}", "\"text\"", "{\"schema\":{}}",
      "{\"type\":\"text\",\"json_schema\":{\"name\":\"x\"}}", "{\"type\":\"text\",\"schema\":{\"type\":\"object\"}}"}},
    {"best_of", {"null", "1"}, {"2", "0"}},
    {"suffix", {"null", "\"\""}, {"\"x\""}},
    {"model", {"null", "\"anything\""}, {"5", "[]"}},
    {"tools", {"null", "[]"}, {"5", "[5]"}},
    {"tool_choice", {"null", "\"none\"", "\"auto\""}, {"\"required\"", "{\"type\":\"function\"}"}},
    {"regex", {"null", "\"a+\""}, {"\"!bad\"", "5"}},
    {"ebnf", {"null", "\"root ::= \\\"x\\\"\""}, {"\"!bad\"", "[]"}},
    {"json_schema", {"null", "\"{}\"", "{\"type\":\"object\"}", "\"true\""}, {"\"!bad\"", "\"5\"", "{\"!bad\":1}", "5"}},
    {"structural_tag", {"null"}, {"\"x\""}},
    {"prompt_logprobs", {"null"}, {"1"}},
    {"priority", {"0", "-7", "2147483647"}, {"1.5", "\"high\"", "2147483648", "[]"}},
    {"cache_salt", {"null", "\"\"", "\"tenant\""}, {"5", "[]", "true"}},
    {"extra_key", {"null", "\"\"", "\"tenant\""}, {"5", "[]"}},
    {"rid", {"null", "\"\"", "\"a b\\u00e9\""}, {"5", "[\"a\"]"}},
    {"return_cached_tokens_details", {"true", "false"}, {"1"}},
    {"lora_path", {"null", "\"\""}, {"\"x\""}},
    {"reasoning_effort", {"null", "\"none\""}, {"\"high\""}},
    {"user", {"\"me\""}, {NULL}},
    {"metadata", {"{\"a\":\"b\"}"}, {NULL}},
    {"store", {"true"}, {NULL}},
    {"some_field_from_the_future", {"{\"a\":[1,2]}"}, {NULL}},
};
static const struct range completion_ranges[] = {
    {"logprobs", {"0", "20", "null"}, {"21", "-1", "\"1\"", "true"}},
    {"echo", {"false", "true"}, {"1"}},
};
static const struct range chat_ranges[] = {
    {"logprobs", {"false", "true", "null"}, {"1", "\"x\""}},
    {"top_logprobs", {"0", "null"}, {"1", "20", "21", "-1", "true"}}, /* logprobs is not on */
    {"input_ids", {"null", "[]", "[5]"}, {"[258]", "[-1]", "[[1]]", "\"x\"", "[1.5]"}},
    {"echo", {"false", "null"}, {"true", "1"}},
    {"modalities", {"[\"text\"]", "null"}, {"[\"audio\"]", "\"text\""}},
    {"messages", {"[{\"role\":\"user\",\"content\":\"x\"}]"}, {"[]", "{}", "5", "\"hi\"", "[{\"role\":\"user\"}]", "[5]", "[{}]"}},
};

static void ranges(void **state) {
  (void)state;
  struct fixture *f = fixture_start(NULL, 0, 0);
  const char *const completion = "{\"prompt\":\"say:hi\",", *const chat = "{\"messages\":[{\"role\":\"user\",\"content\":\"say:hi\"}],";
  check_ranges(f->port, "/v1/completions", completion, "}", common_ranges, ARRAY_LEN(common_ranges));
  check_ranges(f->port, "/v1/chat/completions", chat, "}", common_ranges, ARRAY_LEN(common_ranges));
  check_ranges(f->port, "/v1/completions", completion, "}", completion_ranges, ARRAY_LEN(completion_ranges));
  check_ranges(f->port, "/v1/chat/completions", chat, "}", chat_ranges, 5);
  check_ranges(f->port, "/v1/chat/completions", "{", "}", chat_ranges + 5, 1);
  fixture_stop(f);
}

/* Bodies that are no requests: always an error object in valid UTF-8, and the server goes on. */
static void broken_bodies(void **state) {
  (void)state;
  struct fixture *f = fixture_start(NULL, 0, 0);
  static const struct {
    const char *bytes;
    size_t n;
  } table[] = {{"", 0},
               {"{", 1},
               {"\xef\xbb\xbf{}", 5},
               {"nil", 3},
               {"[]", 2},
               {"{} {}", 5},
               {"{\"prompt\":\"\xc4\xe3\xba\xc3\"}", 17},
               {"{\"prompt\":\"\\ud83d\"}", 19},
               {"{\"prompt\":\"a\\u0000b\"}", 21},
               {"{\"prompt\":\"a\",\"prompt\":\"b\"}", 27},
               {"{\"prompt\":\"a\",\"temperature\":1e999}", 34},
               {"{\"prompt\":\"a\0b\"}", 16},
               {"\0\0\0\0", 4},
               {"{\"prompt\":\"say:x\",}", 19}};
  for (size_t i = 0; i < ARRAY_LEN(table); i++) {
    char head[300];
    struct answer a;
    int fd = client_connect(f->port);
    snprintf(head, sizeof head, "POST /v1/%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
             i % 2 ? "chat/completions" : "completions", table[i].n);
    client_puts(fd, head);
    client_send(fd, table[i].bytes, table[i].n);
    client_read(fd, &a);
    if (a.status != 400 || !strstr(a.body.data, "{\"error\":{\"message\":") || !utf8_valid(a.body.data, a.body.len))
      fail_msg("case %zu: %d %s", i, a.status, buf_cstr(&a.body));
    answer_free(&a);
    close(fd);
  }
  /* ten million brackets */
  size_t n = 10 << 20;
  char *deep = malloc(n + 1);
  memset(deep, '[', n);
  deep[n] = 0;
  struct answer a;
  assert_int_equal(client_ask(f->port, "/v1/chat/completions", deep, &a), 400);
  assert_non_null(strstr(a.body.data, "nested deeper"));
  answer_free(&a);
  free(deep);
  assert_int_equal(client_get(f->port, "/health", &a), 200);
  answer_free(&a);
  fixture_stop(f);
}

/* Every method, odd spellings and bad keys: 401 everywhere except for /health. */
static void keys(void **state) {
  (void)state;
  struct serve_options o = {.api_key = "sesame"};
  struct fixture *f = fixture_start(&o, 0, 0);
  static const char *const paths[] = {
      "/",           "/v1/models",    "/v1/models/x", "/v1/models/",  "/v1/completions", "/v1/chat/completions",
      "//v1/models", "/v1/models?x",  "/V1/models",   "/health/",     "/Health",         "//health",
      "/healthz",    "/health%2f",    "/tokenize",    "/server_info", "/get_model_info", "/metrics",
      "/nothing",    "/v1/../health", "/./health"};
  static const char *const methods[] = {"GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW"};
  static const char *const keys[] = {"",
                                     "Authorization: Bearer sesam\r\n",
                                     "Authorization: Bearer sesamee\r\n",
                                     "Authorization: Bearer sesamesesame\r\n",
                                     "Authorization: Bearer \r\n",
                                     "Authorization: sesame\r\n",
                                     "Authorization: Basic c2VzYW1l\r\n",
                                     "Authorization: Bearer Sesame\r\n",
                                     "Authorization: Bearer sesame\r\nAuthorization: Bearer sesame\r\n",
                                     "X-Authorization: Bearer sesame\r\n"};
  uint64_t seed = 1;
  for (size_t p = 0; p < ARRAY_LEN(paths); p++)
    for (size_t m = 0; m < ARRAY_LEN(methods); m++) {
      const char *key = keys[test_rand_int(&seed, 0, (int)ARRAY_LEN(keys) - 1)];
      struct answer a;
      char head[400];
      int fd = client_connect(f->port);
      snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s\r\n", methods[m], paths[p], key);
      client_puts(fd, head);
      client_read(fd, &a);
      if (a.status != 401) fail_msg("%s %s with \"%s\": status %d", methods[m], paths[p], key, a.status);
      answer_free(&a);
      close(fd);
    }
  fixture_stop(f);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(transcripts), cmocka_unit_test(streams_are_whole), cmocka_unit_test(ranges),
                                          cmocka_unit_test(broken_bodies), cmocka_unit_test(keys)};
TEST_MAIN(tests)
