/* transcribe.c — OpenAI's /v1/audio/transcriptions: a sound file → what is said in it. For models that hear.
 *
 * A sound longer than the model hears at once is cut into pieces of equal length. Each is a prompt of its own, all in one job, so they are
 * computed side by side; their texts are joined with a blank in the order of the sound. A stream says of a later piece what it has when
 * those before it are over.
 *
 *   json           {"text", "usage"}          text           the text alone
 *   verbose_json   {"task", "language", "duration", "text", "segments": one for each piece, "usage"}
 *   stream         transcript.text.delta ..., transcript.text.done
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "server/media.h"
#include "server/multipart.h"
#include "server/parts.h"

enum { PARTS_MAX = 32, SECONDS_MAX = 1800, WORDS_BYTES_MAX = 4096, LANGUAGE_BYTES_MAX = 40, NEW_TOKENS_PER_SECOND = 16, NEW_TOKENS = 64 };

/* ---- the request ------------------------------------------------------------------------------------------------------------------ */

struct asked {
  struct str file, language, prompt;
  bool has_file, segments;
};

static void put_text_field(json_t *fields, const char *key, struct str v) { json_object_set_new(fields, key, json_stringn(v.p, v.n)); }

static void read_number(struct params *p, json_t *fields, const char *key, struct str v) {
  double number;
  if (!str_to_f64(v, &number)) params_fail(p, key, "expected a number");
  else json_object_set_new(fields, key, json_real(number));
}

static void read_seed(struct params *p, json_t *fields, struct str v) {
  int64_t seed;
  if (!str_to_i64(v, INT64_MIN, INT64_MAX, &seed)) params_fail(p, "seed", "expected a whole number");
  else json_object_set_new(fields, "seed", json_integer(seed));
}

static void read_flag(struct params *p, struct str v, const char *key, bool *out) {
  bool on = str_is(v, "true") || str_is(v, "True") || str_is(v, "1"),
       off = str_is(v, "false") || str_is(v, "False") || str_is(v, "0") || !v.n;
  if (!on && !off) params_fail(p, key, "expected true or false");
  *out = on;
}

static void read_format(struct params *p, struct job *j, struct str v) {
  char shown[40];
  j->as_text = str_is(v, "text");
  j->verbose = str_is(v, "verbose_json");
  if (!j->as_text && !j->verbose && !str_is(v, "json"))
    params_fail(p, "response_format", "expected json, text or verbose_json, found \"%s\"", str_escape(v, shown, sizeof shown));
}

/* One field of the form. What nobody here has heard of is ignored, as everywhere. */
static void read_part(struct params *p, struct job *j, json_t *fields, struct asked *k, const struct multipart_part *part) {
  static const char *const refused[] = {"include[]", "include", "chunking_strategy", "known_speaker_names[]", "known_speaker_references[]"};
  struct str name = part->name, v = part->data;
  if (str_is(name, "file")) {
    k->file = v;
    k->has_file = true;
    return;
  }
  if (v.n && (memchr(v.p, 0, v.n) || !utf8_valid(v.p, v.n))) {
    char shown[40];
    params_fail(p, str_escape(name, shown, sizeof shown), "expected text in UTF-8 without NUL");
    return;
  }
  if (str_is(name, "language")) k->language = v;
  else if (str_is(name, "prompt")) k->prompt = v;
  else if (str_is(name, "response_format") && v.n) read_format(p, j, v);
  else if (str_is(name, "temperature") && v.n) read_number(p, fields, "temperature", v);
  else if (str_is(name, "seed") && v.n) read_seed(p, fields, v);
  else if (str_is(name, "stream")) read_flag(p, v, "stream", &j->stream);
  else if (str_is(name, "cache_salt") && v.n) put_text_field(fields, "cache_salt", v);
  else if (str_is(name, "timestamp_granularities[]") || str_is(name, "timestamp_granularities")) {
    if (str_is(v, "segment")) k->segments = true;
    else params_fail(p, "timestamp_granularities", "expected \"segment\": this model tells no times of words");
  }
  for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
    char shown[40];
    if (str_is(name, refused[i]) && v.n && !(str_is(name, "chunking_strategy") && str_is(v, "auto")))
      params_refuse(p, str_escape(name, shown, sizeof shown), "not supported by this server");
  }
}

static void check_asked(struct params *p, const struct job *j, const struct asked *k) {
  if (p->failed) return;
  if (!k->has_file) params_missing(p, "file");
  else if (!k->file.n) params_fail(p, "file", "expected a sound, found nothing");
  if (k->segments && !j->verbose) params_fail(p, "timestamp_granularities", "only allowed with \"response_format\": \"verbose_json\"");
  if (j->stream && (j->verbose || j->as_text)) params_fail(p, "stream", "only allowed with \"response_format\": \"json\"");
  if (k->prompt.n > WORDS_BYTES_MAX) params_fail(p, "prompt", "expected at most %d bytes, found %zu", WORDS_BYTES_MAX, k->prompt.n);
  for (size_t i = 0; i < k->language.n; i++) {
    char c = k->language.p[i];
    bool good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || (unsigned char)c >= 0x80;
    if (!good || k->language.n > LANGUAGE_BYTES_MAX) {
      params_fail(p, "language", "expected a code of ISO 639-1, or the name of a language");
      break;
    }
  }
}

/* Codes that clients send most, as words that a model knows. */
static struct str language_name(struct str code) {
  static const char *const names[][2] = {
      {"en", "English"},    {"de", "German"},     {"fr", "French"},     {"es", "Spanish"}, {"it", "Italian"},
      {"pt", "Portuguese"}, {"nl", "Dutch"},      {"pl", "Polish"},     {"ru", "Russian"}, {"uk", "Ukrainian"},
      {"tr", "Turkish"},    {"ar", "Arabic"},     {"hi", "Hindi"},      {"zh", "Chinese"}, {"ja", "Japanese"},
      {"ko", "Korean"},     {"vi", "Vietnamese"}, {"id", "Indonesian"}, {"sv", "Swedish"}, {"da", "Danish"},
      {"fi", "Finnish"},    {"no", "Norwegian"},  {"cs", "Czech"},      {"el", "Greek"},   {"he", "Hebrew"}};
  for (size_t i = 0; i < ARRAY_LEN(names); i++)
    if (str_is(code, names[i][0])) return str_c(names[i][1]);
  return code;
}

/* What the model is told (docs/api.md has the words). */
static void put_instruction(struct buf *out, const struct asked *k) {
  struct str language = language_name(k->language);
  if (language.n)
    buf_printf(out, "Transcribe the following speech segment in %.*s into %.*s text.", (int)language.n, language.p, (int)language.n,
               language.p);
  else buf_puts(out, "Transcribe the following speech segment in its original language.");
  buf_puts(out, " Only output the transcription, with no newlines. Write numbers as digits.");
  if (k->prompt.n) buf_printf(out, " These words may help with names and spelling: %.*s", (int)k->prompt.n, k->prompt.p);
}

/* The conversation about one piece, the same for all. Returns owned. */
static char *conversation(const struct asked *k) {
  struct buf text, json;
  buf_init(&text, 0);
  buf_init(&json, 0);
  put_instruction(&text, k);
  json_t *messages = json_pack("[{s:s, s:[{s:s, s:s%}, {s:s}]}]", "role", "user", "content", "type", "text", "text", buf_cstr(&text),
                               text.len, "type", "input_audio");
  json_put(&json, messages);
  json_decref(messages);
  buf_free(&text);
  return buf_take(&json, NULL);
}

/* Pieces of equal length, none longer than the model hears. Returns their number, or -1. */
static int load_pieces(struct params *p, const struct api *a, struct call *c, const struct asked *k) {
  struct job *j = &c->job;
  int most = a->info.audio_seconds, n_max = MIN(a->choices_max, SECONDS_MAX / most);
  int n = media_load_pieces(a, c, k->file, most, n_max, "file", p->e);
  if (n > n_max) {
    params_fail(p, "file", "expected at most %d s of sound, found %.1f s", most * n_max, j->seconds);
    return -1;
  }
  return n;
}

static int make_prompts(struct params *p, const struct api *a, struct job *j, const struct asked *k, int n) {
  static const struct params_names names = {.max_tokens = "max_tokens", .min_tokens = "min_tokens", .seed = "seed"};
  char *messages = conversation(k);
  int32_t *ids = NULL;
  size_t n_ids = 0;
  int thought = 0;
  struct cygnet_error why = {0};
  int r = a->port.render(a->port.self, messages, NULL,
                         "{\"add_generation_prompt\":true,\"continue_final_message\":false,\"enable_thinking\":false}", &ids, &n_ids,
                         &thought, &why);
  free(messages);
  if (r < 0) return api_error_set(p->e, why.status >= 400 ? why.status : 400, "invalid_value", NULL, "%s", why.message);
  j->prompts = xcalloc((size_t)n, sizeof *j->prompts);
  for (int i = 0; i < n; i++) {
    api_add_ids(j, ids, n_ids);
    if (media_match(a, j, &j->prompts[i], i, 1, NULL, p->e)) break;
    int limit = NEW_TOKENS + (int)(NEW_TOKENS_PER_SECOND * MIN(j->seconds / n, (double)a->info.audio_seconds));
    params_fit(p, a, &names, "file", limit, 0, &j->prompts[i]);
  }
  a->port.release(ids);
  return j->n_prompts == n && j->prompts[n - 1].n_media == 1 ? params_end(p) : -1;
}

static int prepare(const struct api *a, struct call *c, const json_t *body, struct buf *reply, struct api_error *e) {
  static const struct params_names names = {.max_tokens = "max_tokens", .min_tokens = "min_tokens", .seed = "seed"};
  struct multipart_part parts[PARTS_MAX];
  struct job *j = &c->job;
  struct asked k = {0};
  struct err why;
  json_t *fields = json_object();
  struct params p = params_of(fields, "body", e);
  int r = -1, n = multipart_parse(str_of(buf_cstr(&c->body), c->body.len), c->boundary, parts, PARTS_MAX, &why);
  (void)body, (void)reply;
  if (n < 0) {
    api_error_set(e, err_http_status(why.code), "invalid_body", NULL, "%s", why.msg);
    goto done;
  }
  for (int i = 0; i < n; i++) read_part(&p, j, fields, &k, &parts[i]);
  if (!a->info.audio) params_fail(&p, "model", "expected a model that hears; this one takes no sound");
  check_asked(&p, j, &k);
  j->n = 1;
  j->logprobs = j->prompt_logprobs = -1;
  j->apart = true;
  params_sampling(&p, a, &names, j);
  params_service(&p, j);
  if (!json_object_get(fields, "temperature")) j->sampling.temperature = 0; /* as the API has it */
  if (p.failed || (n = load_pieces(&p, a, c, &k)) < 0) goto done;
  r = make_prompts(&p, a, j, &k, n);
done:
  json_decref(fields);
  return r;
}

/* ---- answers ---------------------------------------------------------------------------------------------------------------------- */

static struct str trimmed(const struct choice *o) {
  struct str s = str_of(buf_cstr(&o->text), o->text.len);
  while (s.n && strchr(" \n\r\t", s.p[0])) s = str_of(s.p + 1, s.n - 1);
  while (s.n && strchr(" \n\r\t", s.p[s.n - 1])) s.n--;
  return s;
}

static void put_whole_text(struct buf *out, const struct call *c) {
  for (int i = 0; i < c->n_choices; i++) {
    struct str s = trimmed(&c->choices[i]);
    if (s.n && out->len) buf_putc(out, ' ');
    buf_append(out, s.p, s.n);
  }
}

static void put_usage(struct buf *out, const struct call *c) {
  int64_t input = 0, output = 0, audio = 0;
  for (int i = 0; i < c->n_choices; i++) {
    input += (int64_t)job_prompt_tokens(&c->job.prompts[i]);
    audio += c->job.prompts[i].audio_tokens;
    output += c->choices[i].completion_tokens;
  }
  buf_printf(out,
             "\"usage\":{\"type\":\"tokens\",\"input_tokens\":%lld,\"input_token_details\":{\"text_tokens\":%lld,\"audio_tokens\":%lld},",
             (long long)input, (long long)(input - audio), (long long)audio);
  buf_printf(out, "\"output_tokens\":%lld,\"total_tokens\":%lld}", (long long)output, (long long)(input + output));
}

static void put_segments(struct buf *out, const struct call *c) {
  double each = c->job.seconds / c->n_choices;
  buf_puts(out, "\"segments\":[");
  for (int i = 0; i < c->n_choices; i++) {
    struct str s = trimmed(&c->choices[i]);
    buf_printf(out, "%s{\"id\":%d,\"start\":%.3f,\"end\":%.3f,\"text\":", i ? "," : "", i, i * each, (i + 1) * each);
    api_put_string(out, s.p, s.n);
    buf_putc(out, '}');
  }
  buf_puts(out, "],");
}

static void reply_whole(struct call *c) {
  struct http_exchange *x = c->x;
  struct buf text, out;
  buf_init(&text, 0);
  buf_init(&out, API_BODY_MAX);
  put_whole_text(&text, c);
  if (c->job.as_text) {
    c->x = NULL;
    buf_putc(&text, '\n');
    http_reply(x, 200, "text/plain; charset=utf-8", buf_cstr(&text), text.len);
    buf_free(&out);
  } else {
    buf_puts(&out, "{\"text\":");
    api_put_string(&out, buf_cstr(&text), text.len);
    buf_putc(&out, ',');
    if (c->job.verbose) buf_printf(&out, "\"task\":\"transcribe\",\"language\":null,\"duration\":%.3f,", c->job.seconds);
    if (c->job.verbose) put_segments(&out, c);
    put_usage(&out, c);
    buf_putc(&out, '}');
    api_reply_body(c, &out);
  }
  buf_free(&text);
}

/* What of the whole text is certain: pieces that are over, and of the first that is not what ends in no blank, which trimming might take
 * away. */
static void put_certain_text(struct buf *out, const struct call *c) {
  for (int i = 0; i < c->n_choices; i++) {
    struct str s = trimmed(&c->choices[i]);
    if (s.n && out->len) buf_putc(out, ' ');
    buf_append(out, s.p, s.n);
    if (!c->choices[i].finish) break;
  }
}

static void stream(struct call *c, bool last) {
  struct buf text, event;
  buf_init(&text, 0);
  buf_init(&event, 0);
  put_certain_text(&text, c);
  api_begin_stream(c);
  size_t sent = (size_t)c->n_events;
  bool open = true;
  if (text.len > sent) {
    buf_puts(&event, "{\"type\":\"transcript.text.delta\",\"delta\":");
    api_put_string(&event, text.data + sent, text.len - sent);
    buf_putc(&event, '}');
    open = http_sse_send(c->x, event.data, event.len);
    c->n_events = (int)text.len;
  }
  if (open && last) {
    buf_clear(&event);
    buf_puts(&event, "{\"type\":\"transcript.text.done\",\"text\":");
    api_put_string(&event, buf_cstr(&text), text.len);
    buf_putc(&event, ',');
    put_usage(&event, c);
    buf_putc(&event, '}');
    if (http_sse_send(c->x, event.data, event.len)) api_send_done(c);
  }
  buf_free(&text);
  buf_free(&event);
}

static void message(const struct api *a, struct call *c, const struct message *m) {
  if (api_take_whole(c, m)) return;
  parts_take(a, api_take_numbers(c, m), m, true);
  if (c->job.stream) stream(c, m->last);
  else if (m->last) reply_whole(c);
}

const struct dialect dialect_transcribe = {
    .name = "transcription", .id_prefix = "transcr-", .in_parts = true, .prepare = prepare, .message = message, .fail = openai_fail};
