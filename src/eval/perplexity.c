/* perplexity.c — log-probabilities of a text's tokens, window by window. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "eval/likelihood.h"
#include "eval/rows.h"
#include "eval/suites.h"

/* ---- a model in this process ------------------------------------------------------------------------------------------------------- */

static int score_local(struct cygnet *c, const int32_t *ids, int n, int from, double *out, struct err *e) {
  struct cygnet_error why = {0};
  struct cygnet_event ev;
  struct cygnet_request r = {.prompt = ids, .n_prompt = (size_t)n, .logprobs = 1, .prompt_logprobs = 1 + from};
  if (!cygnet_submit(c, &r, &why)) return err_set(e, why.exit_status == 1 ? ERR_INTERNAL : ERR_BAD_INPUT, "%s", why.message);
  int got = 0;
  for (bool done = false; !done;) {
    cygnet_step(c);
    while (cygnet_next_event(c, &ev)) {
      for (size_t i = 0; i < ev.n_prompt && got < n - from; i++) out[got++] = ev.prompt[i].logprob;
      if (!ev.finish) continue;
      done = true;
      if (ev.finish == CYGNET_FINISH_ERROR) return err_set(e, ERR_INTERNAL, "%s", ev.error.message);
    }
  }
  return got == n - from ? 0 : err_set(e, ERR_INTERNAL, "expected %d log-probabilities, found %d", n - from, got);
}

static int encode_local(struct cygnet *c, const char *text, size_t n_text, int32_t **ids, size_t *n, int32_t *bos, struct err *e) {
  int32_t *got, *empty;
  size_t n_empty;
  if (cygnet_encode(c, text, n_text, 0, 0, &got, n)) return err_set(e, ERR_TOO_LARGE, "the text is longer than 128 MiB");
  *ids = xmalloc((*n + 1) * sizeof **ids);
  memcpy(*ids, got, *n * sizeof **ids);
  cygnet_free(got);
  *bos = -1;
  if (!cygnet_encode(c, "", 0, 0, 1, &empty, &n_empty)) {
    if (n_empty == 1) *bos = empty[0];
    cygnet_free(empty);
  }
  return 0;
}

/* ---- a server ------------------------------------------------------------------------------------------------------------------------- */

static int score_remote(const struct url *u, const int32_t *ids, int n, int from, double *out, struct err *e) {
  json_t *list = json_array();
  for (int i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
  json_t *body = json_pack("{s:o, s:{s:i, s:i}, s:b, s:i}", "input_ids", list, "sampling_params", "max_new_tokens", 0, "temperature", 0,
                           "return_logprob", 1, "logprob_start_len", 0);
  json_t *reply = url_call(u, "/generate", body, e);
  json_decref(body);
  if (!reply) return -1;
  const json_t *one = json_is_array(reply) ? json_array_get(reply, 0) : reply;
  const json_t *found = json_object_get(json_object_get(one, "meta_info"), "input_token_logprobs");
  size_t have = json_array_size(found), want = (size_t)(n - from);
  int status = have < want
                   ? err_set(e, ERR_BAD_INPUT, "%s/generate: expected %d log-probabilities of the prompt, found %zu", u->base, n, have)
                   : 0;
  for (size_t i = 0; i < want && !status; i++) {
    const json_t *v = json_array_get(json_array_get(found, have - want + i), 0);
    if (json_is_number(v)) out[i] = json_number_value(v);
    else status = err_set(e, ERR_BAD_INPUT, "%s/generate: expected a log-probability of every token", u->base);
  }
  json_decref(reply);
  return status;
}

static int tokens_remote(const struct url *u, const char *text, size_t n_text, bool special, int32_t **ids, size_t *n, struct err *e) {
  json_t *body = json_pack("{s:s%, s:b}", "prompt", text, n_text, "add_special_tokens", special), *reply;
  if (!body) return err_set(e, ERR_BAD_INPUT, "expected text in UTF-8");
  reply = url_call(u, "/tokenize", body, e);
  json_decref(body);
  if (!reply) return -1;
  const json_t *list = json_object_get(reply, "tokens");
  *n = json_array_size(list);
  *ids = xmalloc((*n + 1) * sizeof **ids);
  int status = json_is_array(list) ? 0 : err_set(e, ERR_BAD_INPUT, "%s/tokenize: expected tokens", u->base);
  for (size_t i = 0; i < *n && !status; i++) {
    const json_t *v = json_array_get(list, i);
    if (json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) <= INT32_MAX) (*ids)[i] = (int32_t)json_integer_value(v);
    else status = err_set(e, ERR_BAD_INPUT, "%s/tokenize: expected token ids", u->base);
  }
  json_decref(reply);
  if (status) free(*ids);
  return status;
}

/* BOS is what a letter has in front with special tokens, and has not without. */
static int encode_remote(const struct url *u, const char *text, size_t n_text, int32_t **ids, size_t *n, int32_t *bos, struct err *e) {
  int32_t *with, *without;
  size_t n_with, n_without;
  *bos = -1;
  if (tokens_remote(u, "a", 1, true, &with, &n_with, e)) return -1;
  int status = tokens_remote(u, "a", 1, false, &without, &n_without, e);
  if (!status) {
    if (n_with > n_without) *bos = with[0];
    free(without);
    status = tokens_remote(u, text, n_text, false, ids, n, e);
  }
  free(with);
  return status;
}

int scorer_score(const struct scorer *s, const int32_t *ids, int n, int from, double *out, struct err *e) {
  return s->c ? score_local(s->c, ids, n, from, out, e) : score_remote(s->u, ids, n, from, out, e);
}

int scorer_encode(const struct scorer *s, const char *text, size_t n_text, int32_t **ids, size_t *n, int32_t *bos, struct err *e) {
  return s->c ? encode_local(s->c, text, n_text, ids, n, bos, e) : encode_remote(s->u, text, n_text, ids, n, bos, e);
}

/* ---- windows --------------------------------------------------------------------------------------------------------------------------- */

int perplexity(const struct scorer *s, const int32_t *ids, size_t n, const struct perplexity_options *o, struct perplexity *out,
               struct err *e) {
  *out = (struct perplexity){0};
  size_t front = o->bos >= 0, room = (size_t)o->window - front, scored = front ? 0 : 1;
  if (n <= scored) return err_set(e, ERR_BAD_INPUT, "expected a text of %d tokens at least, found %zu", front ? 1 : 2, n);
  int32_t *window = xmalloc((size_t)o->window * sizeof *window);
  double *logprobs = xmalloc((size_t)o->window * sizeof *logprobs);
  int status = 0;
  for (size_t begin = 0; !status && scored < n && !o->stopped(); begin += (size_t)o->stride) {
    size_t end = MIN(begin + room, n);
    if (o->limit && out->windows == o->limit) break;
    if (front) window[0] = o->bos;
    memcpy(window + front, ids + begin, (end - begin) * sizeof *ids);
    int from = (int)(scored - begin + front);
    status = scorer_score(s, window, (int)(end - begin + front), from, logprobs, e);
    for (size_t i = 0; !status && i < end - scored; i++) {
      if (!isfinite(logprobs[i])) {
        status = err_set(e, ERR_INTERNAL, "token %zu: its log-probability is not finite", scored + i);
        break;
      }
      out->nll -= logprobs[i];
      out->squares += logprobs[i] * logprobs[i];
      out->tokens++;
    }
    scored = end;
    out->windows++;
    if (o->progress)
      fprintf(stderr, "\rperplexity %zu/%zu tokens: %.4f\033[K%s", scored, n, exp(out->nll / (double)out->tokens), scored == n ? "\n" : "");
  }
  free(window);
  free(logprobs);
  return status;
}

/* ---- texts ------------------------------------------------------------------------------------------------------------------------------ */

static int put_file(const char *path, struct buf *b, struct err *e) {
  if (str_ends(str_c(path), ".jsonl")) {
    struct rows r;
    int got = 0;
    const char *text;
    if (rows_open(&r, path, "perplexity", e)) return -1;
    while ((got = rows_next(&r, e)) > 0 && (got = rows_text(&r, "text", &text, e)) == 0) {
      if (b->len) buf_puts(b, "\n\n");
      buf_puts(b, text);
    }
    rows_close(&r);
    return got;
  }
  struct map m = {0};
  if (map_open(&m, path, e)) return -1;
  buf_append(b, m.data, m.n_bytes);
  map_close(&m);
  return 0;
}

char *perplexity_text(const char *path, size_t *n, struct err *e) {
  static const char *const endings[] = {".jsonl", ".raw", ".txt"};
  struct buf b;
  char **files = NULL;
  int n_files = 0, status = 0;
  buf_init(&b, 128 << 20);
  for (size_t i = 0; i < ARRAY_LEN(endings) && n_files == 0; i++)
    if ((n_files = rows_files(path, endings[i], &files, e)) < 0) return NULL;
  if (n_files == 0) status = err_set(e, ERR_BAD_FILE, "--data: %.200s: expected .txt, .raw or .jsonl files, found none", path);
  for (int i = 0; i < n_files && !status; i++) status = put_file(files[i], &b, e);
  suite_free_strings(files, n_files);
  if (!status && b.overflow) status = err_set(e, ERR_TOO_LARGE, "--data: more than 128 MiB of text");
  if (status) {
    buf_free(&b);
    return NULL;
  }
  return buf_take(&b, n);
}
