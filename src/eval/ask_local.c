/* ask_local.c — the model in this process: questions are submitted as they come, its scheduler batches them. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "eval/ask.h"
#include "files/map.h"

struct local {
  struct asker asker;
  struct cygnet *c;
  struct talk *first; /* of those on their way, in no order */
};

struct talk { /* a question on its way; the request's `user` */
  struct local *in;
  struct talk *next;
  uint64_t request;
  int number;
  int64_t start_ns;
  struct buf text;
  struct cygnet_parser *parser; /* of a conversation: thoughts are not the answer */
};

static void take_part(void *ctx, const struct cygnet_part *part) {
  struct talk *t = ctx;
  if (part->kind == CYGNET_PART_CONTENT) buf_append(&t->text, part->text, part->n_text);
}

static void free_talk(struct talk *t) {
  for (struct talk **at = &t->in->first; *at; at = &(*at)->next)
    if (*at == t) {
      *at = t->next;
      break;
    }
  cygnet_parser_free(t->parser);
  buf_free(&t->text);
  free(t);
}

static int from_public(const struct cygnet_error *why, struct err *e) {
  return err_set(e, why->exit_status == 1 ? ERR_INTERNAL : ERR_BAD_INPUT, "%s", why->message);
}

struct media {
  struct cygnet_media **v;
  size_t n;
};

static void free_media(struct media *m) {
  for (size_t i = 0; i < m->n; i++) cygnet_media_free(m->v[i]);
  free(m->v);
}

/* A conversation's pictures, and the conversation without their paths. NULL and *e. */
static json_t *load_media(struct local *l, const json_t *messages, struct media *m, struct err *e) {
  const struct cygnet_media_options mo = {.max_tokens = l->asker.settings->media_tokens};
  json_t *copy = json_deep_copy(messages);
  json_t *content = json_object_get(json_array_get(copy, 0), "content");
  for (size_t i = 0; json_is_array(content) && i < json_array_size(content); i++) {
    json_t *part = json_array_get(content, i);
    const char *path = json_string_value(json_object_get(part, "path"));
    if (!path) continue;
    struct cygnet_error why = {0};
    struct map map = {0};
    char label[200];
    struct cygnet_media *one = NULL;
    if (!map_open(&map, path, e)) {
      one = cygnet_media_new(l->c, CYGNET_IMAGE, map.data, map.n_bytes, &mo, &why);
      if (!one) err_set(e, ERR_BAD_FILE, "%s: %s", path_label(path, label), why.message);
      map_close(&map);
    }
    if (!one) {
      json_decref(copy);
      return NULL;
    }
    m->v = xrealloc(m->v, (m->n + 1) * sizeof *m->v);
    m->v[m->n++] = one;
    json_object_del(part, "path");
  }
  return copy;
}

/* Ids of what is asked. */
static int prepare(struct local *l, const struct eval_question *q, int32_t **ids, size_t *n, int *in_thought, struct media *m,
                   struct err *e) {
  struct cygnet_error why = {0};
  if (!q->messages)
    return cygnet_encode(l->c, q->prompt, strlen(q->prompt), 0, 1, ids, n) ? err_set(e, ERR_BAD_INPUT, "the prompt is too long") : 0;
  json_t *messages = load_media(l, q->messages, m, e);
  if (!messages) return -1;
  char *json = json_dumps(messages, JSON_COMPACT);
  json_decref(messages);
  int bad = cygnet_render(l->c, json, NULL, l->asker.settings->think ? "{\"enable_thinking\": true}" : NULL, ids, n, NULL, in_thought,
                          &why);
  free(json);
  return bad ? from_public(&why, e) : 0;
}

static int begin(struct asker *a, const struct eval_question *q, int number, uint64_t seed, struct err *e) {
  struct local *l = (struct local *)a;
  struct cygnet_error why = {0};
  struct media media = {0};
  int32_t *ids = NULL;
  size_t n = 0;
  int in_thought = 0;
  if (prepare(l, q, &ids, &n, &in_thought, &media, e)) {
    free_media(&media);
    return -1;
  }
  struct talk *t = xcalloc(1, sizeof *t);
  t->in = l;
  t->number = number;
  t->start_ns = clock_ns();
  buf_init(&t->text, 0);
  if (q->messages) t->parser = cygnet_parser_new(l->c, NULL, 0, in_thought, take_part, t);
  struct cygnet_request r = {.prompt = ids,
                             .n_prompt = n,
                             .media = (const struct cygnet_media *const *)media.v,
                             .n_media = media.n,
                             .max_tokens = a->settings->max_tokens,
                             .sampling = a->settings->sampling,
                             .stop = a->settings->stop,
                             .n_stop = (size_t)a->settings->n_stop,
                             .marks = q->messages != NULL,
                             .thoughts = in_thought ? CYGNET_THOUGHTS_OPEN : CYGNET_THOUGHTS_FREE,
                             .user = t};
  r.sampling.has_seed = 1;
  r.sampling.seed = seed;
  t->request = cygnet_submit(l->c, &r, &why);
  cygnet_free(ids);
  free_media(&media);
  if (t->request) {
    t->next = l->first;
    l->first = t;
    return 0;
  }
  free_talk(t);
  return from_public(&why, e);
}

static void finish(struct talk *t, const struct cygnet_event *ev, struct ask_answer *out) {
  *out = (struct ask_answer){.number = t->number,
                             .cut = ev->finish == CYGNET_FINISH_LENGTH,
                             .prompt_tokens = ev->prompt_tokens,
                             .completion_tokens = ev->completion_tokens,
                             .seconds = clock_ms_since(t->start_ns) / 1000};
  if (t->parser) cygnet_parser_finish(t->parser);
  if (ev->finish == CYGNET_FINISH_ERROR) out->error = xstrdup(ev->error.message);
  else if (ev->finish == CYGNET_FINISH_ABORT) out->error = xstrdup("given up");
  else out->text = buf_take(&t->text, &out->n_text);
  free_talk(t);
}

static bool next(struct asker *a, struct ask_answer *out) {
  struct local *l = (struct local *)a;
  struct cygnet_event ev;
  for (int round = 0; round < 2; round++) {
    while (cygnet_next_event(l->c, &ev)) {
      struct talk *t = ev.user;
      if (t->parser) cygnet_parser_push(t->parser, ev.text, ev.n_text, ev.marks, ev.n_marks);
      else buf_append(&t->text, ev.text, ev.n_text);
      if (!ev.finish) continue;
      finish(t, &ev, out);
      return true;
    }
    if (round == 0) cygnet_step(l->c);
  }
  return false;
}

static void close_local(struct asker *a) {
  struct local *l = (struct local *)a;
  struct ask_answer out;
  for (struct talk *t = l->first; t; t = t->next) cygnet_abort(l->c, t->request);
  for (int i = 0; l->first && i < 1000; i++)
    if (next(a, &out)) {
      free(out.text);
      free(out.error);
    }
  while (l->first) free_talk(l->first);
  free(l);
}

struct asker *ask_local_open(struct cygnet *c, const struct ask_settings *s) {
  struct local *l = xcalloc(1, sizeof *l);
  *l = (struct local){.asker = {.settings = s, .begin = begin, .next = next, .close = close_local}, .c = c};
  return &l->asker;
}
