/* run.c — keeps so many questions on their way, marks and notes what comes back. */
#include "eval/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

static int total(const struct eval_run *r) { return r->questions->n * r->samples; }

static void count(struct eval_run *r, const struct eval_mark *m) {
  r->n_done += m->state == EVAL_DONE;
  r->n_failed += m->state == EVAL_FAILED;
  r->n_right += m->right;
}

/* ---- the log ------------------------------------------------------------------------------------------------------------------------ */

static int whole_number(const json_t *line, const char *name) {
  const json_t *v = json_object_get(line, name);
  return json_is_integer(v) ? (int)MIN(MAX(json_integer_value(v), 0), INT32_MAX) : 0;
}

/* A line of an earlier run: what it answers is not asked again. Lines of questions that are not asked now are passed over. */
static int seen(void *ctx, const json_t *line, struct err *e) {
  struct eval_run *r = ctx;
  const char *id = json_string_value(json_object_get(line, "id")), *digest = json_string_value(json_object_get(line, "prompt"));
  const json_t *text = json_object_get(line, "text"), *seconds = json_object_get(line, "seconds");
  int sample = whole_number(line, "sample"), n = r->questions->n;
  if (!id || !digest) return err_set(e, ERR_BAD_INPUT, "expected \"id\" and \"prompt\"");
  if (!json_is_string(text) || sample >= r->samples) return 0; /* an error, or more than is asked now */
  bool other = false;
  for (int i = 0; i < n; i++) {
    int at = (r->resume_at + i) % n; /* the next line is mostly of the next question */
    const struct eval_question *q = &r->questions->v[at];
    if (strcmp(q->id, id)) continue;
    if (strcmp(q->digest, digest)) {
      other = true;
      continue;
    }
    struct eval_mark *m = &r->marks[at * r->samples + sample];
    if (m->state == EVAL_DONE) continue;
    char *found;
    m->right = answer_grade(&q->key, str_of(json_string_value(text), json_string_length(text)), &found);
    m->found = found != NULL;
    free(found);
    m->state = EVAL_DONE;
    m->known = true;
    m->cut = json_is_true(json_object_get(line, "cut"));
    m->prompt_tokens = whole_number(line, "prompt_tokens");
    m->completion_tokens = whole_number(line, "completion_tokens");
    m->seconds = json_is_number(seconds) ? json_number_value(seconds) : 0;
    count(r, m);
    r->n_known++;
    r->resume_at = (at + 1) % n;
    return 0;
  }
  return other ? err_set(e, ERR_BAD_INPUT, "question %.60s is worded otherwise than in --data: give another --log", id) : 0;
}

int eval_run_begin(struct eval_run *r, const char *log, const json_t *header, struct err *e) {
  r->log.fd = -1;
  r->marks = xcalloc((size_t)total(r), sizeof *r->marks);
  return journal_open(&r->log, log, header, seen, r, e);
}

void eval_run_end(struct eval_run *r) {
  journal_close(&r->log);
  free(r->marks);
  free(r->first_error);
  r->marks = NULL;
  r->first_error = NULL;
}

/* ---- one answer ---------------------------------------------------------------------------------------------------------------------- */

/* Text of a stranger as JSON takes it: what is no UTF-8 becomes U+FFFD. */
static json_t *json_of(const char *text, size_t n) {
  json_t *v = json_stringn(text, n);
  if (v) return v;
  struct buf b;
  buf_init(&b, 0);
  buf_putc(&b, '"');
  buf_json_escape(&b, text, n);
  buf_putc(&b, '"');
  v = json_loadb(b.data, b.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
  buf_free(&b);
  return v ? v : json_string("");
}

static json_t *expected_of(const struct answer_key *k) {
  if (k->n_expected == 1) return json_of(k->expected[0], strlen(k->expected[0]));
  json_t *list = json_array();
  for (int i = 0; i < k->n_expected; i++) json_array_append_new(list, json_of(k->expected[i], strlen(k->expected[i])));
  return list;
}

static int note(struct eval_run *r, const struct ask_answer *a, const struct eval_mark *m, const char *found, struct err *e) {
  const struct eval_question *q = &r->questions->v[a->number / r->samples];
  json_t *line = json_pack("{s:o, s:i, s:s}", "id", json_of(q->id, strlen(q->id)), "sample", a->number % r->samples, "prompt", q->digest);
  if (q->group) json_object_set_new(line, "group", json_of(q->group, strlen(q->group)));
  if (a->error) json_object_set_new(line, "error", json_of(a->error, strlen(a->error)));
  else {
    json_object_set_new(line, "text", json_of(a->text, a->n_text));
    json_object_set_new(line, "extracted", found ? json_of(found, strlen(found)) : json_null());
    json_object_set_new(line, "expected", expected_of(&q->key));
    json_object_set_new(line, "right", json_boolean(m->right));
    json_object_set_new(line, "cut", json_boolean(m->cut));
    json_object_set_new(line, "prompt_tokens", json_integer(m->prompt_tokens));
    json_object_set_new(line, "completion_tokens", json_integer(m->completion_tokens));
  }
  json_object_set_new(line, "seconds", json_real(round(m->seconds * 1000) / 1000));
  int status = journal_add(&r->log, line, e);
  json_decref(line);
  return status;
}

static int take(struct eval_run *r, struct ask_answer *a, struct err *e) {
  const struct eval_question *q = &r->questions->v[a->number / r->samples];
  struct eval_mark *m = &r->marks[a->number];
  char *found = NULL;
  *m = (struct eval_mark){.state = a->error ? EVAL_FAILED : EVAL_DONE,
                          .cut = a->cut,
                          .prompt_tokens = a->prompt_tokens,
                          .completion_tokens = a->completion_tokens,
                          .seconds = a->seconds};
  if (!a->error) m->right = answer_grade(&q->key, str_of(a->text, a->n_text), &found);
  m->found = found != NULL;
  count(r, m);
  if (a->error && !r->first_error) r->first_error = xstrdup(a->error);
  int status = note(r, a, m, found, e);
  free(found);
  free(a->text);
  free(a->error);
  return status;
}

/* ---- all of them --------------------------------------------------------------------------------------------------------------------- */

static void show(const struct eval_run *r, int64_t *last_ns, bool end) {
  int64_t now = clock_ns();
  if (!r->progress || (!end && now - *last_ns < 200000000)) return;
  *last_ns = now;
  int done = r->n_done + r->n_failed, fresh = done - r->n_known, left = total(r) - done;
  double elapsed = clock_ms_since(r->start_ns) / 1000;
  fprintf(stderr, "\r%s %d/%d, %.1f %% right", r->name, done, total(r), done ? 100.0 * r->n_right / done : 0.0);
  if (r->n_failed) fprintf(stderr, ", %d failed", r->n_failed);
  if (fresh > 0 && left > 0) fprintf(stderr, ", %.0f s left", elapsed / fresh * left);
  fputs("\033[K", stderr);
  if (end) fputc('\n', stderr);
}

int eval_run(struct eval_run *r, struct asker *a, struct err *e) {
  int at = 0, under_way = 0, status = 0;
  int64_t shown_ns = 0;
  r->start_ns = clock_ns();
  while (!status && !r->stopped()) {
    for (; at < total(r) && under_way < r->parallel && !r->stopped() && !status; at++) {
      struct err why = {0};
      if (r->marks[at].state == EVAL_DONE) continue;
      if (!a->begin(a, &r->questions->v[at / r->samples], at, r->seed + (uint64_t)at, &why)) {
        under_way++;
        continue;
      }
      struct ask_answer failed = {.number = at, .error = xstrdup(why.msg)};
      status = take(r, &failed, e);
    }
    if (under_way == 0 && at == total(r)) break;
    struct ask_answer answer;
    while (!status && under_way && a->next(a, &answer)) {
      under_way--;
      status = take(r, &answer, e);
      if (at < total(r)) break; /* the next question goes before more answers are read */
    }
    show(r, &shown_ns, false);
  }
  r->seconds = clock_ms_since(r->start_ns) / 1000;
  show(r, &shown_ns, true);
  return status;
}
