/* params.c — request fields with their types and ranges. Runs on the prep thread. */
#include "server/params.h"

#include <limits.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"

/* The engine's own limits: it would refuse more, too, but knows no names of fields. */
enum { STOP_MAX = 16, STOP_BYTES = 1024, STOP_IDS_MAX = 256, BIAS_MAX = 1024, NAME_BYTES = 256 };

struct params params_of(const json_t *object, const char *where, struct api_error *e) {
  return (struct params){.object = object, .where = where, .e = e};
}

int params_end(const struct params *p) { return p->failed ? -1 : 0; }

/* ---- errors --------------------------------------------------------------------------------------------------------------- */

static void fail_as(struct params *p, const char *code, const char *key, const char *text) {
  if (p->failed) return;
  p->failed = true;
  api_error_set(p->e, 400, code, key, "%s%s%s: %s", p->where, strchr(p->where, ':') ? "." : ": ", key, text);
}

void params_fail(struct params *p, const char *key, const char *fmt, ...) {
  char text[400];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  fail_as(p, "invalid_value", key, text);
}

void params_refuse(struct params *p, const char *key, const char *why) { fail_as(p, "unsupported_parameter", key, why); }

void params_missing(struct params *p, const char *key) {
  if (p->failed) return;
  p->failed = true;
  api_error_set(p->e, 400, "missing_required_parameter", key, "%s: %s: expected, not found", p->where, key);
}

void params_refuse_all(struct params *p, const char *const *keys, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (params_is_given(json_object_get(p->object, keys[i]))) params_refuse(p, keys[i], "not supported by this server");
}

bool params_is_given(const json_t *v) {
  if (!v || json_is_null(v) || json_is_false(v)) return false;
  if (json_is_string(v)) return json_string_length(v) > 0;
  if (json_is_array(v)) return json_array_size(v) > 0;
  if (json_is_object(v)) return json_object_size(v) > 0;
  return true;
}

/* ---- getters -------------------------------------------------------------------------------------------------------------- */

/* r: what a getter of json.h returned. */
static bool took(struct params *p, const char *key, int r, const struct err *why) {
  if (r < 0) {
    p->failed = true;
    api_error_set(p->e, 400, "invalid_value", key, "%s", why->msg);
  }
  return r > 0;
}

bool params_int(struct params *p, const char *key, int64_t lo, int64_t hi, int *out) {
  struct err why;
  int64_t v = 0;
  if (p->failed || !took(p, key, json_get_int(p->object, key, lo, hi, &v, p->where, &why), &why)) return false;
  *out = (int)v;
  return true;
}
bool params_i64(struct params *p, const char *key, int64_t *out) {
  struct err why;
  return !p->failed && took(p, key, json_get_int(p->object, key, INT64_MIN, INT64_MAX, out, p->where, &why), &why);
}
bool params_float(struct params *p, const char *key, double lo, double hi, double *out) {
  struct err why;
  return !p->failed && took(p, key, json_get_float(p->object, key, lo, hi, out, p->where, &why), &why);
}
bool params_bool(struct params *p, const char *key, bool *out) {
  struct err why;
  return !p->failed && took(p, key, json_get_bool(p->object, key, out, p->where, &why), &why);
}
bool params_array(struct params *p, const char *key, const json_t **out) {
  struct err why;
  return !p->failed && took(p, key, json_get_array(p->object, key, out, p->where, &why), &why);
}
bool params_object(struct params *p, const char *key, const json_t **out) {
  struct err why;
  return !p->failed && took(p, key, json_get_object(p->object, key, out, p->where, &why), &why);
}
bool params_string(struct params *p, const char *key, size_t max_bytes, const char **out, size_t *n) {
  struct err why;
  const char *s = NULL;
  size_t len = 0;
  if (p->failed || !took(p, key, json_get_string(p->object, key, &s, &len, p->where, &why), &why) || len == 0) return false;
  if (len > max_bytes) {
    params_fail(p, key, "expected at most %zu bytes, found %zu", max_bytes, len);
    return false;
  }
  *out = s;
  *n = len;
  return true;
}

/* ---- what is known and refused -------------------------------------------------------------------------------------------- */

static bool asks_for_effort(const json_t *v) { return params_is_given(v) && !(json_is_string(v) && !strcmp(json_string_value(v), "none")); }

void params_refuse_reasoning(struct params *p, const char *why) {
  const json_t *reasoning = json_object_get(p->object, "reasoning");
  if (asks_for_effort(json_object_get(p->object, "reasoning_effort"))) params_refuse(p, "reasoning_effort", why);
  if (asks_for_effort(json_object_get(reasoning, "effort")) || params_is_given(json_object_get(reasoning, "enabled")))
    params_refuse(p, "reasoning", why);
}

/* ---- sampling ------------------------------------------------------------------------------------------------------------- */

/* Numbers that every dialect calls by the same name. 0 is the engine's word for "default", so where a client may not say 0 it is refused. */
static const struct {
  const char *name;
  double lo, hi;
  bool above_lo; /* lo itself is not allowed */
  size_t offset;
} reals[] = {
    {"temperature", 0, 100, false, offsetof(struct cygnet_sampling, temperature)},
    {"top_p", 0, 1, true, offsetof(struct cygnet_sampling, top_p)},
    {"min_p", 0, 1, false, offsetof(struct cygnet_sampling, min_p)},
    {"frequency_penalty", -2, 2, false, offsetof(struct cygnet_sampling, frequency_penalty)},
    {"presence_penalty", -2, 2, false, offsetof(struct cygnet_sampling, presence_penalty)},
    {"repetition_penalty", 0, 2, true, offsetof(struct cygnet_sampling, repetition_penalty)},
};

/* {"50256": -100, ...} */
static void parse_bias(struct params *p, const struct api *a, struct job *j) {
  const json_t *map = NULL, *v;
  const char *key;
  if (!params_object(p, "logit_bias", &map)) return;
  size_t n = json_object_size(map);
  if (n > BIAS_MAX) params_fail(p, "logit_bias", "expected at most %d entries, found %zu", BIAS_MAX, n);
  if (!n || p->failed) return;
  j->bias = xcalloc(n, sizeof *j->bias);
  json_object_foreach((json_t *)(uintptr_t)map, key, v) {
    int64_t id = 0;
    char shown[40];
    str_escape(str_c(key), shown, sizeof shown);
    if (!str_to_i64(str_c(key), 0, a->info.vocab - 1, &id))
      params_fail(p, "logit_bias", "\"%s\": expected a token id of this model's vocabulary as key", shown);
    if (!json_is_number(v) || !(json_number_value(v) >= -100 && json_number_value(v) <= 100))
      params_fail(p, "logit_bias", "\"%s\": expected a number from -100 to 100", shown);
    j->bias[j->sampling.n_bias++] = (struct cygnet_bias){(int32_t)id, (float)json_number_value(v)};
  }
  j->sampling.bias = j->bias;
}

void params_sampling(struct params *p, const struct api *a, const struct params_names *names, struct job *j) {
  struct cygnet_sampling *s = &j->sampling;
  *s = a->defaults;
  for (size_t i = 0; i < ARRAY_LEN(reals); i++) {
    double *out = (double *)((char *)s + reals[i].offset);
    if (params_float(p, reals[i].name, reals[i].lo, reals[i].hi, out) && reals[i].above_lo && *out <= reals[i].lo)
      params_fail(p, reals[i].name, "expected a number above %g", reals[i].lo);
  }
  params_int(p, "top_k", -1, INT_MAX, &s->top_k);
  params_int(p, names->min_tokens, 0, INT_MAX, &s->min_tokens);
  int64_t seed;
  if (params_i64(p, names->seed, &seed)) {
    s->has_seed = 1;
    s->seed = (uint64_t)seed;
  }
  if (s->temperature < 1e-6) s->temperature = 0;
  if (s->top_k < 0) s->top_k = 0;
  parse_bias(p, a, j);
}

/* ---- ends ----------------------------------------------------------------------------------------------------------------- */

static void add_stop(struct params *p, struct job *j, const json_t *v) {
  size_t n = json_string_length(v);
  if (!n) params_fail(p, "stop", "expected a string that is not empty, or an array of them");
  else if (n > STOP_BYTES) params_fail(p, "stop", "expected at most %d bytes in one string, found %zu", STOP_BYTES, n);
  else if (!p->failed) j->stop[j->n_stop++] = xstrndup(json_string_value(v), n);
}

void params_stop(struct params *p, const struct api *a, struct job *j) {
  const json_t *stop = json_object_get(p->object, "stop"), *ids = NULL;
  size_t n = json_array_size(stop);
  if (n > STOP_MAX) params_fail(p, "stop", "expected at most %d strings, found %zu", STOP_MAX, n);
  if (p->failed) return;
  j->stop = xcalloc(STOP_MAX, sizeof *j->stop);
  if (stop && !json_is_array(stop) && !json_is_null(stop)) add_stop(p, j, stop);
  for (size_t i = 0; i < n; i++) add_stop(p, j, json_array_get(stop, i));

  params_array(p, "stop_token_ids", &ids);
  if (json_array_size(ids) > STOP_IDS_MAX) params_fail(p, "stop_token_ids", "expected at most %d ids", STOP_IDS_MAX);
  if (p->failed) return;
  j->stop_ids = xcalloc(STOP_IDS_MAX, sizeof *j->stop_ids);
  for (size_t i = 0; i < json_array_size(ids); i++) {
    const json_t *v = json_array_get(ids, i);
    if (json_is_null(v)) continue; /* as tokenizers without such a token write it */
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= a->info.vocab)
      params_fail(p, "stop_token_ids", "[%zu]: expected a token id from 0 to %d", i, a->info.vocab - 1);
    else j->stop_ids[j->n_stop_ids++] = (int32_t)json_integer_value(v);
  }
  bool skip_special = true, keep[2] = {false, false};
  params_bool(p, "ignore_eos", &j->ignore_eos);
  params_bool(p, "skip_special_tokens", &skip_special);
  params_bool(p, "no_stop_trim", &keep[0]);
  params_bool(p, "include_stop_str_in_output", &keep[1]);
  j->show_special = !skip_special;
  j->keep_stop = keep[0] || keep[1];
}

/* ---- the rest ------------------------------------------------------------------------------------------------------------- */

void params_stream(struct params *p, struct job *j) {
  const json_t *options = NULL;
  params_bool(p, "stream", &j->stream);
  params_object(p, "stream_options", &options);
  if (params_is_given(options) && !j->stream) params_fail(p, "stream_options", "only allowed together with \"stream\": true");
  if (!options || p->failed) return;
  struct params o = params_of(options, "body: stream_options", p->e);
  params_bool(&o, "include_usage", &j->include_usage);
  params_bool(&o, "continuous_usage_stats", &j->continuous_usage);
  p->failed = o.failed;
}

/* Two names for one thing: prompts share cached work only where both agree. The length in front keeps ("ab", "c") and ("a", "bc") apart. */
void params_service(struct params *p, struct job *j) {
  const char *salt = "", *extra = "";
  size_t n_salt = 0, n_extra = 0;
  params_int(p, "priority", INT_MIN, INT_MAX, &j->priority);
  params_string(p, "cache_salt", NAME_BYTES, &salt, &n_salt);
  params_string(p, "extra_key", NAME_BYTES, &extra, &n_extra);
  if (p->failed || !(n_salt + n_extra)) return;
  struct buf name;
  buf_init(&name, 0);
  buf_printf(&name, "%zu:%s%s", n_salt, salt, extra);
  free(j->cache_salt);
  j->cache_salt = buf_take(&name, NULL);
}

void params_rid(struct params *p, char **rid) {
  const char *s;
  size_t n;
  if (!params_string(p, "rid", NAME_BYTES, &s, &n)) return;
  free(*rid);
  *rid = xstrndup(s, n);
}

int32_t *params_ids(struct params *p, const char *key, const json_t *list, const struct api *a, size_t *n) {
  *n = json_array_size(list);
  int32_t *ids = xcalloc(*n + 1, sizeof *ids);
  for (size_t i = 0; i < *n && !p->failed; i++) {
    const json_t *v = json_array_get(list, i);
    json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
    bool placeholder = id >= 0 && (id == a->info.image_id || id == a->info.audio_id); /* may lie behind the vocabulary */
    if (id < 0 || (id >= a->info.vocab && !placeholder))
      params_fail(p, key, "[%zu]: expected a token id from 0 to %d", i, a->info.vocab - 1);
    else ids[i] = (int32_t)id;
  }
  if (!p->failed) return ids;
  free(ids);
  return NULL;
}

/* The phrase is what clients look for before they shorten a conversation. */
static const char too_long[] =
    "This model's maximum context length is %d tokens. However, your %s resulted in %zu tokens, and one more is needed for the answer. "
    "Please reduce the length of the %s.";

void params_fit(struct params *p, const struct api *a, const struct params_names *names, const char *prompt, int max_tokens, int min_tokens,
                struct job_prompt *t) {
  size_t ctx = (size_t)a->info.ctx_tokens, n_ids = job_prompt_tokens(t);
  if (p->failed) return;
  if (n_ids > ctx || (n_ids == ctx && max_tokens != 0)) {
    p->failed = true;
    api_error_set(p->e, 400, "context_length_exceeded", prompt, too_long, a->info.ctx_tokens, prompt, n_ids, prompt);
    return;
  }
  int room = (int)(ctx - n_ids);
  t->max_tokens = max_tokens < 0 || max_tokens > room ? room : max_tokens;
  if (min_tokens <= t->max_tokens) return;
  if (t->max_tokens == max_tokens)
    params_fail(p, names->min_tokens, "expected at most %d, which is %s, found %d", max_tokens, names->max_tokens, min_tokens);
  else params_fail(p, names->min_tokens, "expected at most %d, the room left in the context, found %d", t->max_tokens, min_tokens);
}
