/* events.h — for the tests of dialects with named events: a server whose renderer shows what it was given, streams of events, values by path. */
#ifndef CYGNET_TEST_EVENTS_H
#define CYGNET_TEST_EVENTS_H

#include "fake.h"

/* ---- a renderer that can be looked at ----------------------------------------------------------------------------------- */

/* <role>part|part\n ..., without the last newline when the last message is to be continued. The conversation rendered last stays in talk_text. */
static pthread_mutex_t talk_mutex = PTHREAD_MUTEX_INITIALIZER;
static char talk_text[8192];

static int talk_render(void *self, const char *messages, const char *tools, const char *options, int32_t **ids, size_t *n_ids, int *thought,
                       struct cygnet_error *e) {
  struct err why;
  json_t *list = json_load_text(messages, strlen(messages), false, "messages", &why), *m;
  struct buf text;
  size_t i;
  int r = 0;
  (void)tools;
  *thought = 0;
  buf_init(&text, 0);
  json_array_foreach(list, i, m) {
    const char *role = json_string_value(json_object_get(m, "role"));
    const json_t *content = json_object_get(m, "content");
    buf_printf(&text, "<%s>", role);
    if (json_is_string(content)) buf_append(&text, json_string_value(content), json_string_length(content));
    for (size_t k = 0; k < json_array_size(content); k++)
      buf_printf(&text, k ? "|%s" : "%s", json_string_value(json_object_get(json_array_get(content, k), "text")));
    if (strstr(buf_cstr(&text), "!norender")) {
      *e = (struct cygnet_error){.status = 400};
      snprintf(e->message, sizeof e->message, "messages[%zu].role: expected \"nobody\", found \"%s\"", i, role);
      r = -1;
      break;
    }
    if (i + 1 < json_array_size(list) || !strstr(options, "\"continue_final_message\":true")) buf_putc(&text, '\n');
  }
  if (r == 0) fake_encode(self, buf_cstr(&text), text.len, 0, 1, ids, n_ids);
  pthread_mutex_lock(&talk_mutex);
  snprintf(talk_text, sizeof talk_text, "%s", buf_cstr(&text));
  pthread_mutex_unlock(&talk_mutex);
  buf_free(&text);
  json_decref(list);
  return r;
}

static UNUSED void talk_check(const char *where, const char *wanted) {
  pthread_mutex_lock(&talk_mutex);
  if (strcmp(talk_text, wanted)) fail_msg("%s: rendered \"%s\", wanted \"%s\"", where, talk_text, wanted);
  pthread_mutex_unlock(&talk_mutex);
}

static struct fake talk_fake;
static UNUSED struct fixture *talk_start(void) {
  memset(&talk_fake, 0, sizeof talk_fake);
  struct port port = fake_port(&talk_fake);
  port.render = talk_render;
  return fixture_start_port(&port, NULL, 0, 0);
}

/* ---- values ------------------------------------------------------------------------------------------------------------- */

/* "output.0.content.0.text"; "" is the value itself. */
static json_t *value_at(const json_t *v, const char *path) {
  char word[64];
  while (v && *path) {
    size_t n = strcspn(path, ".");
    snprintf(word, sizeof word, "%.*s", (int)n, path);
    v = json_is_array(v) ? json_array_get(v, (size_t)atoi(word)) : json_object_get(v, word);
    path += n + (path[n] == '.');
  }
  return (json_t *)(uintptr_t)v;
}

static void value_check(const char *where, const json_t *v, const char *path, const char *wanted) {
  json_error_t je;
  const json_t *found = value_at(v, path);
  json_t *right = json_loads(wanted, JSON_DECODE_ANY, &je);
  if (!right) fail_msg("%s: bad value %s", where, wanted);
  if (!found || !json_equal(found, right)) {
    char *text = found ? json_dumps(found, JSON_ENCODE_ANY | JSON_COMPACT) : strdup("nothing");
    fail_msg("%s: %s is %s, wanted %s", where, path, text, wanted);
  }
  json_decref(right);
}

static const char *value_string(const char *where, const json_t *v, const char *path) {
  const char *s = json_string_value(value_at(v, path));
  if (!s) fail_msg("%s: %s is no string", where, path);
  return s;
}

/* The fields are these and no others. */
static UNUSED void value_keys(const char *where, const json_t *v, const char *path, const char *const *keys, size_t n) {
  const json_t *o = value_at(v, path);
  for (size_t i = 0; i < n; i++)
    if (!json_object_get(o, keys[i])) fail_msg("%s: %s has no %s", where, path, keys[i]);
  if (json_object_size(o) != n) fail_msg("%s: %s has %zu fields, wanted %zu", where, path, json_object_size(o), n);
}

static UNUSED json_t *ask(struct fixture *f, const char *path, const char *body, int status) {
  struct answer a;
  json_error_t je;
  client_ask(f->port, path, body, &a);
  if (a.status != status) fail_msg("%s %s: status %d: %.500s", path, body, a.status, buf_cstr(&a.body));
  if (!utf8_valid(buf_cstr(&a.body), a.body.len)) fail_msg("%s: not UTF-8", body);
  json_t *v = json_loads(buf_cstr(&a.body), JSON_REJECT_DUPLICATES, &je);
  if (!v) fail_msg("%s: no JSON: %.500s", body, buf_cstr(&a.body));
  answer_free(&a);
  return v;
}

/* ---- events ------------------------------------------------------------------------------------------------------------- */

enum { EVENTS_MAX = 512 };
struct events {
  int n;
  char names[EVENTS_MAX][48];
  json_t *data[EVENTS_MAX];
};

static UNUSED void events_free(struct events *s) {
  for (int i = 0; i < s->n; i++) json_decref(s->data[i]);
  s->n = 0;
}

/* "event: NAME\ndata: JSON\n\n" ... and nothing else; each name is the type of its data. */
static UNUSED void events_parse(const char *where, const char *text, struct events *s) {
  json_error_t je;
  s->n = 0;
  for (const char *p = text; *p;) {
    const char *name_end = strchr(p, '\n'), *data = name_end ? name_end + 1 : NULL, *end = data ? strstr(data, "\n\n") : NULL;
    if (!end || strncmp(p, "event: ", 7) || strncmp(data, "data: ", 6) || s->n == EVENTS_MAX) fail_msg("%s: no event: %.200s", where, p);
    snprintf(s->names[s->n], sizeof s->names[0], "%.*s", (int)(name_end - p - 7), p + 7);
    if (memchr(data, '\n', (size_t)(end - data)) || !utf8_valid(data, (size_t)(end - data))) fail_msg("%s: %.200s", where, data);
    s->data[s->n] = json_loadb(data + 6, (size_t)(end - data - 6), JSON_REJECT_DUPLICATES, &je);
    if (!s->data[s->n]) fail_msg("%s: no JSON: %.200s", where, data);
    if (strcmp(value_string(where, s->data[s->n], "type"), s->names[s->n])) fail_msg("%s: event %s of another type", where, s->names[s->n]);
    s->n++;
    p = end + 2;
  }
}

static UNUSED void events_ask(struct fixture *f, const char *path, const char *body, struct events *s) {
  struct answer a;
  char value[256];
  json_error_t je;
  json_t *o = json_loads(body, 0, &je);
  json_object_set_new(o, "stream", json_true());
  char *text = json_dumps(o, JSON_COMPACT);
  client_ask(f->port, path, text, &a);
  if (a.status != 200 || a.truncated) fail_msg("%s: status %d: %.500s", text, a.status, buf_cstr(&a.body));
  if (!answer_header(&a, "Content-Type", value) || strncmp(value, "text/event-stream", 17)) fail_msg("%s: %s", text, value);
  events_parse(body, buf_cstr(&a.body), s);
  answer_free(&a);
  json_decref(o);
  free(text);
}

/* Names in order, those that follow themselves once. */
static UNUSED void events_order(const char *where, const struct events *s, const char *wanted) {
  struct buf found;
  buf_init(&found, 0);
  for (int i = 0; i < s->n; i++)
    if (!i || strcmp(s->names[i], s->names[i - 1])) buf_printf(&found, i ? " %s" : "%s", s->names[i]);
  if (strcmp(buf_cstr(&found), wanted)) fail_msg("%s: events are %s, wanted %s", where, buf_cstr(&found), wanted);
  buf_free(&found);
}

/* All strings at path of the events called name. */
static UNUSED char *events_join(const struct events *s, const char *name, const char *path) {
  struct buf text;
  buf_init(&text, 0);
  buf_puts(&text, "");
  for (int i = 0; i < s->n; i++)
    if (!strcmp(s->names[i], name)) buf_puts(&text, value_string(name, s->data[i], path));
  char *joined = buf_take(&text, NULL);
  return joined ? joined : xstrdup("");
}

#endif
