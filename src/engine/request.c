/* request.c — a request from the caller's description to its own memory. */
#include "engine/request.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/digest.h"
#include "base/mem.h"
#include "base/rng.h"

/* ---- checks ----------------------------------------------------------------------------------------------------------------- */

static const struct media *medium_at(const struct cygnet_request *from, size_t i) { return (const struct media *)from->media[i]; }

int request_placeholder(const struct media_rules *m, int32_t id) {
  if (id < 0 || !m->takes) return -1;
  return id == m->image_id ? MEDIA_IMAGE : id == m->video_id ? MEDIA_FRAME : id == m->audio_id ? MEDIA_AUDIO : -1;
}

static int check_medium(const struct media_rules *rules, const struct media *m, size_t i, struct err *e) {
  int most = rules->patches_max[m->kind == MEDIA_AUDIO];
  if (m->n_tokens < 1 || m->n_rows < 1 || (rules->cross && m->n_tokens != 1) || (!rules->cross && m->n_rows != m->n_tokens) ||
      m->n_patches < 1 || m->n_patches > most)
    return err_set(e, ERR_BAD_INPUT, "media[%zu]: expected a %s made for this model, found one of %d rows from %d patches", i,
                   media_kind_name(m->kind), m->n_rows, m->n_patches);
  return 0;
}

/* One placeholder for each medium, of its kind and in order. *n_prompt: tokens of the prompt with all rows. */
static int check_media(const struct cygnet_request *from, const struct media_rules *rules, size_t *n_prompt, struct err *e) {
  size_t n_media = 0;
  *n_prompt = from->n_prompt;
  if (from->n_media && !from->media) return err_set(e, ERR_BAD_INPUT, "media: expected %zu, found none", from->n_media);
  if (from->n_media > REQUEST_MEDIA_MAX)
    return err_set(e, ERR_BAD_INPUT, "media: expected at most %d, found %zu", REQUEST_MEDIA_MAX, from->n_media);
  if (from->n_media && !rules->takes) return err_set(e, ERR_BAD_INPUT, "media: this model takes neither pictures nor sound");
  for (size_t i = 0; i < from->n_prompt; i++) {
    int kind = request_placeholder(rules, from->prompt[i]);
    if (kind < 0) continue;
    if (n_media == from->n_media)
      return err_set(e, ERR_BAD_INPUT, "prompt[%zu]: the place of a %s (id %d), and the request has %zu pictures and sounds only", i,
                     media_kind_name((enum media_kind)kind), from->prompt[i], n_media);
    const struct media *m = medium_at(from, n_media);
    if (!m) return err_set(e, ERR_BAD_INPUT, "media[%zu]: expected a %s, found none", n_media, media_kind_name((enum media_kind)kind));
    if ((int)m->kind != kind)
      return err_set(e, ERR_BAD_INPUT, "prompt[%zu]: the place of a %s (id %d), and media[%zu] is a %s", i,
                     media_kind_name((enum media_kind)kind), from->prompt[i], n_media, media_kind_name(m->kind));
    if (check_medium(rules, m, n_media, e)) return -1;
    *n_prompt += (size_t)m->n_tokens - 1;
    n_media++;
  }
  if (n_media == from->n_media) return 0;
  return err_set(e, ERR_BAD_INPUT, "media: %zu are given, and the prompt has places for %zu", from->n_media, n_media);
}

static int check_prompt(const struct cygnet_request *from, const struct request_limits *limits, size_t *n_prompt, struct err *e) {
  int ctx = limits->ctx_tokens;
  if (from->n_prompt == 0 || !from->prompt) return err_set(e, ERR_BAD_INPUT, "prompt: expected 1 token or more, found none");
  if (check_media(from, &limits->media, n_prompt, e)) return -1;
  if (from->max_tokens < -1)
    return err_set(e, ERR_BAD_INPUT, "max_tokens: expected 0 or more, or -1 for as many as fit, found %d", from->max_tokens);
  const char *rows = from->n_media ? ", rows of pictures and sounds included" : "";
  if (*n_prompt > (size_t)ctx) return err_set(e, ERR_BAD_INPUT, "prompt: has %zu tokens%s, the context holds %d", *n_prompt, rows, ctx);
  if (*n_prompt == (size_t)ctx && from->max_tokens != 0)
    return err_set(e, ERR_BAD_INPUT, "prompt: has %zu tokens%s, the context holds %d and needs room for an answer", *n_prompt, rows, ctx);
  for (size_t i = 0; i < from->n_prompt; i++)
    if ((from->prompt[i] < 0 || from->prompt[i] >= limits->vocab) && request_placeholder(&limits->media, from->prompt[i]) < 0)
      return err_set(e, ERR_BAD_INPUT, "prompt[%zu]: expected an id from 0 to %d, found %d", i, limits->vocab - 1, from->prompt[i]);
  return 0;
}

static int check_counts(const struct cygnet_request *from, size_t n_prompt, struct err *e) {
  if (from->n_stop > STOP_STRINGS_MAX)
    return err_set(e, ERR_BAD_INPUT, "stop: expected at most %d strings, found %zu", STOP_STRINGS_MAX, from->n_stop);
  if (from->n_stop_ids > REQUEST_STOP_IDS_MAX)
    return err_set(e, ERR_BAD_INPUT, "stop_token_ids: expected at most %d ids, found %zu", REQUEST_STOP_IDS_MAX, from->n_stop_ids);
  if (from->sampling.n_bias > SAMPLE_BIAS_MAX)
    return err_set(e, ERR_BAD_INPUT, "logit_bias: expected at most %d entries, found %zu", SAMPLE_BIAS_MAX, from->sampling.n_bias);
  if (from->logprobs < 0 || from->logprobs > 1 + SAMPLE_TOP_MAX)
    return err_set(e, ERR_BAD_INPUT, "top_logprobs: expected 0 to %d, found %d", SAMPLE_TOP_MAX, from->logprobs - 1);
  if (from->prompt_logprobs < 0 || (size_t)from->prompt_logprobs > n_prompt)
    return err_set(e, ERR_BAD_INPUT, "prompt_logprobs: expected to begin at token 0 to %zu of the prompt, found %d", n_prompt - 1,
                   from->prompt_logprobs - 1);
  if (from->marks && from->show_special)
    return err_set(e, ERR_BAD_INPUT, "marks: expected control tokens beside the text or in it, found show_special too");
  if (from->thoughts < CYGNET_THOUGHTS_FREE || from->thoughts > CYGNET_THOUGHTS_OPEN)
    return err_set(e, ERR_BAD_INPUT, "thoughts: expected 0 to %d, found %d", CYGNET_THOUGHTS_OPEN, from->thoughts);
  if (from->thinking_budget < 0)
    return err_set(e, ERR_BAD_INPUT, "thinking_budget: expected 0 or more, found %d", from->thinking_budget - 1);
  return 0;
}

/* ---- parts ------------------------------------------------------------------------------------------------------------------- */

static int set_sampling(struct request *r, const struct cygnet_request *from, const struct request_limits *limits, struct err *e) {
  const struct cygnet_sampling *s = &from->sampling;
  struct sample_bias bias[SAMPLE_BIAS_MAX];
  for (size_t i = 0; i < s->n_bias; i++) bias[i] = (struct sample_bias){.id = s->bias[i].id, .bias = s->bias[i].bias};
  int32_t stop_ids[REQUEST_STOP_IDS_MAX + 2 * CONFIG_EOS_MAX];
  int n_stop_ids = (int)from->n_stop_ids;
  for (int i = 0; i < n_stop_ids; i++) stop_ids[i] = from->stop_ids[i];
  for (int i = 0; i < limits->n_eos && !from->ignore_eos; i++) stop_ids[n_stop_ids++] = limits->eos[i];
  int n_eog;
  const int32_t *eog = tok_eog(limits->tok, &n_eog);
  for (int i = 0; i < MIN(n_eog, CONFIG_EOS_MAX) && from->grammar && !from->ignore_eos; i++)
    if (eog[i] >= 0 && eog[i] < limits->vocab) stop_ids[n_stop_ids++] = eog[i];

  struct sample_params p = {.temperature = s->temperature,
                            .top_p = s->top_p != 0 ? s->top_p : 1,
                            .min_p = s->min_p,
                            .frequency_penalty = s->frequency_penalty,
                            .presence_penalty = s->presence_penalty,
                            .repetition_penalty = s->repetition_penalty != 0 ? s->repetition_penalty : 1,
                            .top_k = s->top_k != 0 ? s->top_k : -1,
                            .min_tokens = s->min_tokens,
                            .max_tokens = from->max_tokens,
                            .n_logprobs = from->logprobs - 1,
                            .seed = s->has_seed ? s->seed : rng_system_seed(),
                            .bias = bias,
                            .n_bias = (int)s->n_bias,
                            .stop_ids = stop_ids,
                            .n_stop_ids = n_stop_ids};
  r->top_max = MAX(0, p.n_logprobs);
  return sample_state_init(&r->sampling, &p, limits->vocab, r->n_limit - r->n_prompt, e);
}

static int set_stop(struct request *r, const struct cygnet_request *from, struct err *e) {
  if (from->n_stop == 0) return 0;
  struct str strings[STOP_STRINGS_MAX];
  for (size_t i = 0; i < from->n_stop; i++) strings[i] = str_c(from->stop[i]);
  r->stop = stop_new(strings, (int)from->n_stop, from->keep_stop != 0, e);
  return r->stop ? 0 : -1;
}

static void set_thoughts(struct request *r, const struct cygnet_request *from, const struct request_limits *limits) {
  bool has = limits->thought_open >= 0 && limits->thought_close >= 0;
  r->thoughts = (struct thoughts){.kind = has ? (enum cygnet_thoughts)from->thoughts : CYGNET_THOUGHTS_FREE,
                                  .open_id = has ? limits->thought_open : -1,
                                  .close_id = has ? limits->thought_close : -1,
                                  .n_max = from->thinking_budget - 1};
  r->thoughts.open = r->thoughts.kind == CYGNET_THOUGHTS_OPEN;
}

/* What the request may take from the prefix tree, and whose it is. */
static void set_reuse(struct request *r, const struct cygnet_request *from) {
  r->n_cached = -1;
  r->n_reuse_max = from->on_logits || from->on_hidden ? 0 : INT_MAX;
  if (from->cache_salt) {
    unsigned char digest[DIGEST_BYTES];
    digest_sha256(from->cache_salt, from->n_cache_salt, digest);
    memcpy(&r->space.a, digest, sizeof r->space.a);
    memcpy(&r->space.b, digest + sizeof r->space.a, sizeof r->space.b);
  }
}

static void set_prompt_logprobs(struct request *r, const struct cygnet_request *from) {
  int first = r->prompt_logprobs_from = from->prompt_logprobs - 1;
  if (first < 0) return;
  size_t n = (size_t)(r->n_prompt - first);
  r->prompt_tokens = xcalloc(n, sizeof *r->prompt_tokens);
  if (r->top_max) r->prompt_top = xcalloc(n * (size_t)r->top_max, sizeof *r->prompt_top);
  if (first == 0) r->prompt_tokens[0] = (struct cygnet_token){.id = r->tokens[0], .logprob = NAN}; /* nothing is before it */
  for (int i = 0; i < r->n_spans; i++) {                                                           /* nobody says rows of a picture */
    const struct request_span *y = &r->spans[i];
    for (int p = MAX(y->first, first); p < y->first + y->n; p++)
      r->prompt_tokens[p - first] = (struct cygnet_token){.id = y->id, .logprob = NAN};
  }
  r->n_reuse_max = MIN(r->n_reuse_max, MAX(0, first - 1));
}

/* ---- pictures and sounds -------------------------------------------------------------------------------------------------------- */

/* Of one medium, in the request's namespace. */
static struct bank_key key_of(const struct request *r, const struct media *m) {
  struct {
    struct radix_space space;
    uint64_t is_sound;
    uint8_t digest[sizeof m->digest];
  } from = {.space = r->space, .is_sound = m->kind == MEDIA_AUDIO};
  struct bank_key key;
  memcpy(from.digest, m->digest, sizeof from.digest);
  digest_sha256(&from, sizeof from, key.digest);
  return key;
}

/* The prompt's tokens, and spans where media stand. keys[i]: of media[i]. */
static int set_tokens(struct request *r, const struct cygnet_request *from, const struct media_rules *rules, const struct bank_key *keys,
                      struct err *e) {
  int at = 0;
  r->spans = from->n_media ? xcalloc(from->n_media, sizeof *r->spans) : NULL;
  for (size_t i = 0; i < from->n_prompt; i++) {
    if (request_placeholder(rules, from->prompt[i]) < 0) {
      r->tokens[at++] = from->prompt[i];
      continue;
    }
    const struct media *m = medium_at(from, (size_t)r->n_spans);
    int32_t number = names_number(rules->names, &keys[r->n_spans]);
    if (number < 0) return err_set(e, ERR_BUSY, "media: numbers for pictures and sounds are used up, the program must be started again");
    media_retain(m);
    r->spans[r->n_spans++] = (struct request_span){.first = at,
                                                   .n = m->n_tokens,
                                                   .media = m,
                                                   .id = from->prompt[i],
                                                   .whole = m->kind != MEDIA_AUDIO &&
                                                            (rules->both_ways[KV_FULL] || rules->both_ways[KV_SLIDING])};
    for (int k = 0; k < m->n_tokens; k++) r->tokens[at++] = -2 - number;
  }
  return 0;
}

/* Neighbouring pictures share a bank. Banks with the same key lie in the same place of the sequence's table. */
static void group_pictures(struct request *r, const struct bank_key *keys, int page_rows) {
  int64_t rows = 0;
  for (int i = 0, n; i < r->n_spans; i += n) {
    struct request_bank *b = &r->banks[r->n_banks++];
    *b = (struct request_bank){.key = keys[i], .first_span = i, .from = r->spans[i].first, .until = INT_MAX};
    for (n = 0; i + n < r->n_spans && r->spans[i + n].first == b->from + n; n++) {
      b->n_rows += r->spans[i + n].media->n_rows;
      r->spans[i + n].bank = r->n_banks - 1;
      r->spans[i + n].bank_end = b->n_rows;
    }
    b->n_spans = n;
    if (i) b[-1].until = b->from;
    if (n > 1) digest_sha256(keys + i, (size_t)n * sizeof *keys, b->key.digest);
    int same = 0;
    while (memcmp(&r->banks[same].key, &b->key, sizeof b->key) != 0) same++;
    b->first_row = &r->banks[same] == b ? (int)rows : r->banks[same].first_row;
    if (&r->banks[same] == b) rows += (b->n_rows + page_rows - 1) / page_rows * page_rows;
  }
}

static int set_media(struct request *r, const struct cygnet_request *from, const struct media_rules *rules, struct err *e) {
  struct bank_key *keys = xcalloc(from->n_media + 1, sizeof *keys);
  for (size_t i = 0; i < from->n_media; i++) keys[i] = key_of(r, medium_at(from, i));
  int rc = set_tokens(r, from, rules, keys, e);
  if (rc == 0 && r->n_spans) {
    r->banks = xcalloc((size_t)r->n_spans, sizeof *r->banks);
    if (rules->cross) group_pictures(r, keys, rules->page_rows);
    for (int i = 0; i < r->n_spans && !rules->cross; i++) {
      struct request_span *y = &r->spans[i];
      y->bank = r->n_banks++;
      y->bank_end = y->n;
      r->banks[i] = (struct request_bank){
          .key = keys[i], .first_span = i, .n_spans = 1, .n_rows = y->n, .from = y->first, .until = y->first + y->n};
    }
  }
  free(keys);
  return rc;
}

const struct request_span *request_span_at(const struct request *r, int position) {
  int lo = 0, hi = r->n_spans; /* the last span that begins at or before position is hi - 1 */
  while (lo < hi) {
    int mid = (lo + hi) / 2;
    if (r->spans[mid].first <= position) lo = mid + 1;
    else hi = mid;
  }
  const struct request_span *y = hi ? &r->spans[hi - 1] : NULL;
  return y && position < y->first + y->n ? y : NULL;
}

const struct request_span *request_cut_at(const struct request *r, int n) {
  const struct request_span *y = r->n_spans ? request_span_at(r, n) : NULL;
  return y && y->whole && y->first < n ? y : NULL;
}

/* ---- life -------------------------------------------------------------------------------------------------------------------- */

struct request *request_new(const struct cygnet_request *from, const struct request_limits *limits, struct err *e) {
  size_t n_prompt = 0;
  if (check_prompt(from, limits, &n_prompt, e) || check_counts(from, n_prompt, e)) return NULL;
  struct request *r = xcalloc(1, sizeof *r);
  draft_trust_init(&r->drafter_trust);
  r->state = REQUEST_DONE; /* in no list yet */
  r->priority = from->priority;
  r->n_prompt = r->n_tokens = r->tokens_cap = (int)n_prompt;
  int room = limits->ctx_tokens - r->n_prompt;
  r->n_limit = r->n_prompt + (from->max_tokens < 0 ? room : MIN(from->max_tokens, room));
  r->tokens = xmalloc(n_prompt * sizeof *r->tokens);
  set_reuse(r, from);
  if (set_media(r, from, &limits->media, e)) goto fail;

  if (set_sampling(r, from, limits, e) || set_stop(r, from, e)) goto fail;
  detok_init(&r->detok, limits->tok, !from->show_special);
  buf_init(&r->text, 0);
  r->keep_stop = from->keep_stop != 0;
  r->ignore_eos = from->ignore_eos != 0;
  r->marks = from->marks != 0;
  set_thoughts(r, from, limits);
  if (from->grammar)
    r->grammar = grammar_state_new((struct grammar *)(uintptr_t)from->grammar); /* its count of references changes, no more */
  r->matched_stop = -1;
  r->matched_id = -1;
  set_prompt_logprobs(r, from);
  r->on_logits = from->on_logits;
  r->on_hidden = from->on_hidden;
  r->callback_ctx = from->callback_ctx;
  r->user = from->user;
  r->arrived_ns = clock_ns();
  return r;
fail:
  request_delete(r);
  return NULL;
}

void request_delete(struct request *r) {
  if (!r) return;
  CHECK(!r->kv.pairs);
  for (int i = 0; i < r->n_banks; i++) CHECK(!r->banks[i].entry);
  for (int i = 0; i < r->n_spans; i++) media_release(r->spans[i].media);
  free(r->spans);
  free(r->banks);
  sample_state_free(&r->sampling);
  grammar_state_delete(r->grammar);
  draft_free(&r->draft);
  stop_delete(r->stop);
  buf_free(&r->text);
  free(r->marks_new);
  free(r->tokens);
  free(r->new_tokens);
  free(r->new_top);
  free(r->prompt_tokens);
  free(r->prompt_top);
  free(r);
}

/* ---- tokens ------------------------------------------------------------------------------------------------------------------- */

void request_reserve(struct request *r, int n) {
  CHECK(n <= MAX(r->n_limit, r->n_prompt));
  if (n <= r->tokens_cap) return; /* grows by half: a long limit that is never reached costs nothing */
  r->tokens_cap = MAX(n, MIN(r->n_limit, r->tokens_cap + r->tokens_cap / 2 + 32));
  r->tokens = xrealloc(r->tokens, (size_t)r->tokens_cap * sizeof *r->tokens);
}

void request_push(struct request *r, int32_t id) {
  CHECK(r->n_tokens < r->n_limit);
  request_reserve(r, r->n_tokens + 1);
  r->tokens[r->n_tokens++] = id;
}

void request_put_mark(struct request *r, int32_t id) {
  if (r->n_marks == r->marks_cap) {
    r->marks_cap = r->marks_cap ? 2 * r->marks_cap : 4;
    r->marks_new = xrealloc(r->marks_new, (size_t)r->marks_cap * sizeof *r->marks_new);
  }
  r->marks_new[r->n_marks++] = (struct cygnet_mark){.at = r->text.len, .id = id};
}

static void fill_token(struct cygnet_token *t, struct cygnet_logprob *top, int top_max, const struct sample_result *from) {
  t->logprob = from->logprob;
  t->n_top = MIN(from->n_top, top_max);
  for (int i = 0; i < t->n_top; i++) top[i] = (struct cygnet_logprob){.id = from->top[i].id, .logprob = from->top[i].logprob};
}

void request_put_token(struct request *r, const struct sample_result *from) {
  if (r->n_new_tokens == r->new_tokens_cap) {
    r->new_tokens_cap = r->new_tokens_cap ? 2 * r->new_tokens_cap : 1; /* one is enough for whoever reads after each step */
    size_t n = (size_t)r->new_tokens_cap;
    r->new_tokens = xrealloc(r->new_tokens, n * sizeof *r->new_tokens);
    if (r->top_max) r->new_top = xrealloc(r->new_top, n * (size_t)r->top_max * sizeof *r->new_top);
  }
  struct cygnet_token *t = &r->new_tokens[r->n_new_tokens];
  *t = (struct cygnet_token){.id = from->id};
  if (r->sampling.params.n_logprobs >= 0) fill_token(t, r->new_top + (size_t)r->n_new_tokens * (size_t)r->top_max, r->top_max, from);
  r->n_new_tokens++;
}

void request_put_prompt_token(struct request *r, int position, const struct sample_result *from) {
  int i = position - r->prompt_logprobs_from;
  CHECK(i >= 0 && position < r->n_prompt && r->prompt_tokens);
  struct cygnet_token *t = &r->prompt_tokens[i];
  struct cygnet_logprob *top = r->top_max ? r->prompt_top + (size_t)i * (size_t)r->top_max : NULL;
  *t = (struct cygnet_token){.id = r->tokens[position], .top = top};
  fill_token(t, top, r->top_max, from);
}

void request_link_top(struct request *r) {
  for (int i = 0; i < r->n_new_tokens; i++) r->new_tokens[i].top = r->top_max ? r->new_top + (size_t)i * (size_t)r->top_max : NULL;
}

void request_clear_output(struct request *r) {
  buf_clear(&r->text);
  r->n_new_tokens = r->n_marks = 0;
  if (!r->prompt_shown) return;
  free(r->prompt_tokens);
  free(r->prompt_top);
  r->prompt_tokens = NULL;
  r->prompt_top = NULL;
}
