/* say.c — what a request says, row by row. The rules are in say.h. */
#include "engine/say.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "compute/head.h"

enum { FORCED_BYTES = 256 }; /* asked of a grammar at once */

/* ---- life ----------------------------------------------------------------------------------------------------------------- */

static bool mask_has(const uint32_t *mask, int32_t id) { return mask[id >> 5] >> (id & 31) & 1; }
static void mask_set(uint32_t *mask, int32_t id) { mask[id >> 5] |= 1u << (id & 31); }
static void mask_clear(uint32_t *mask, int32_t id) { mask[id >> 5] &= ~(1u << (id & 31)); }
static size_t mask_bytes(const struct say_model *m) { return grammar_mask_words(m->n_ids) * sizeof(uint32_t); }

static void clear_ends(const struct say_model *m, uint32_t *mask) {
  int n;
  const int32_t *eog = tok_eog(m->tok, &n);
  for (int i = 0; i < n; i++)
    if (eog[i] >= 0 && eog[i] < m->n_ids) mask_clear(mask, eog[i]);
}

int say_model_init(struct say_model *m, const struct request_limits *limits, struct err *e) {
  memset(m, 0, sizeof *m);
  m->tok = limits->tok;
  m->n_ids = tok_vocab(m->tok);
  m->not_ends = mem_try_alloc(mask_bytes(m));
  if (!m->not_ends) return err_set(e, ERR_NO_MEMORY, "engine: no memory for a mask of %d ids", m->n_ids);
  for (int32_t id = 0; id < m->n_ids; id++) mask_set(m->not_ends, id);
  clear_ends(m, m->not_ends);
  for (int i = 0; i < limits->n_eos; i++)
    if (limits->eos[i] < m->n_ids) mask_clear(m->not_ends, limits->eos[i]);
  return 0;
}

void say_model_free(struct say_model *m) {
  free(m->not_ends);
  memset(m, 0, sizeof *m);
}

static bool continues(char c) { return ((unsigned char)c & 0xc0) == 0x80; } /* a byte inside a UTF-8 character */

void say_model_prepare(struct say_model *m) {
  if (m->has_joins) return;
  m->has_joins = true;
  for (int32_t id = 0; id < m->n_ids; id++) {
    if (tok_is_control(m->tok, id)) continue;
    struct str s = tok_piece(m->tok, id);
    for (size_t i = 1; i < s.n; i++)
      if (!continues(s.p[i])) m->joins[(unsigned char)s.p[i - 1]][(unsigned char)s.p[i] >> 6] |= 1ull << ((unsigned char)s.p[i] & 63);
  }
}

int say_scratch_init(struct say_scratch *sc, const struct say_model *m, int vocab, struct err *e) {
  memset(sc, 0, sizeof *sc);
  buf_init(&sc->text, 0);
  sc->mask = mem_try_alloc(mask_bytes(m));
  if (!sc->mask) return err_set(e, ERR_NO_MEMORY, "engine: no memory for a mask of %d ids", m->n_ids);
  if (sample_scratch_init(&sc->sampler, vocab, e) == 0) return 0;
  say_scratch_free(sc);
  return -1;
}

void say_scratch_free(struct say_scratch *sc) {
  sample_scratch_free(&sc->sampler);
  free(sc->mask);
  buf_free(&sc->text);
  tok_ids_free(&sc->ids);
  memset(sc, 0, sizeof *sc);
}

/* ---- thoughts -------------------------------------------------------------------------------------------------------------- */

/* The budget is used up: the thought is to be closed, unless a grammar that covers it has it otherwise. */
static bool must_close(struct request *r) {
  const struct thoughts *t = &r->thoughts;
  if (!t->open || t->n_max < 0 || t->n_tokens < t->n_max) return false;
  if (!request_in_grammar(r)) return true;
  const uint32_t *mask = grammar_mask(r->grammar);
  return mask && mask_has(mask, t->close_id);
}

static void follow_thoughts(struct thoughts *t, int32_t id) {
  if (t->open) {
    t->n_tokens++;
    if (id == t->close_id) t->open = false, t->over = true;
  } else if (id == t->open_id) { /* never with -1 */
    t->open = true;
    t->n_tokens++;
  } else {
    t->over = true;
  }
}

/* id is one of those that the grammar speaks of. */
static bool grammar_covers(const struct request *r, int32_t id) {
  const struct thoughts *t = &r->thoughts;
  return request_in_grammar(r) || (r->grammar && !t->open && id != t->open_id);
}

/* ---- what is certain -------------------------------------------------------------------------------------------------------- */

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static bool is_border(const struct say_model *m, const char *text, size_t at) {
  unsigned char last = (unsigned char)text[at - 1], first = (unsigned char)text[at];
  return !continues(text[at]) && !is_space(text[at - 1]) && !(m->joins[last][first >> 6] >> (first & 63) & 1);
}

/* Nothing but a control token or an end can follow the n tokens. Where the grammar gives up over that, the request's has given up. */
static bool is_closed(struct request *r, const int32_t *ids, size_t n) {
  struct grammar_state *s = grammar_state_copy(r->grammar);
  bool accepted = true, closed = false;
  for (size_t i = 0; i < n && accepted; i++) accepted = grammar_accept(s, ids[i]);
  if (accepted) {
    struct buf text;
    int32_t id = -1;
    buf_init(&text, 0);
    grammar_forced(s, 1, &text, &id);
    closed = grammar_must_end(s) || (text.len == 0 && id >= 0);
    buf_free(&text);
  }
  if (grammar_gave_up(s)) grammar_state_set(r->grammar, s);
  closed &= !grammar_gave_up(s);
  grammar_state_delete(s);
  return closed;
}

/* Bytes of the first of ids whose pieces are text, at most n_max ids. *n_ids: how many those are. */
static size_t spelled(const struct say_model *m, const struct buf *text, const struct tok_ids *ids, size_t *n_ids) {
  size_t at = 0, n = 0;
  for (; n < ids->n; n++) {
    struct str s = tok_piece(m->tok, ids->v[n]);
    if (s.n == 0 || s.n > text->len - at || memcmp(text->data + at, s.p, s.n)) break;
    at += s.n;
  }
  *n_ids = n;
  return at;
}

/* How many of the tokens of text are certain. */
static size_t certain_tokens(const struct say_model *m, const struct say_scratch *sc, struct request *r) {
  size_t n, end = spelled(m, &sc->text, &sc->ids, &n);
  if (n == sc->ids.n && end == sc->text.len && is_closed(r, sc->ids.v, n)) return n;
  size_t border = MIN(end, sc->text.len - 1); /* what follows the last byte is not known */
  while (border > 0 && !is_border(m, sc->text.data, border)) border--;
  for (; n > 0 && end > border; n--) end -= tok_piece(m->tok, sc->ids.v[n - 1]).n;
  return n;
}

void say_expect(const struct say_model *m, struct say_scratch *sc, struct request *r, int position) {
  int room = MIN(r->n_limit - position, REQUEST_AHEAD_MAX);
  if (r->n_forced > 0 || room <= 0) return;
  if (must_close(r)) {
    r->ahead[r->n_forced++] = r->thoughts.close_id;
    return;
  }
  if (!request_in_grammar(r)) return;
  int32_t id = -1;
  buf_clear(&sc->text);
  sc->ids.n = 0;
  grammar_forced(r->grammar, FORCED_BYTES, &sc->text, &id);
  size_t n = 1;
  if (sc->text.len > 0) {
    tok_encode(m->tok, str_of(sc->text.data, sc->text.len), false, false, &sc->ids);
    n = certain_tokens(m, sc, r);
    if (grammar_gave_up(r->grammar)) return; /* its next token says so */
  } else if (id >= 0) {
    tok_ids_push(&sc->ids, id);
  } else {
    return;
  }
  for (size_t i = 0; i < n && r->n_forced < room && !sample_bans(&r->sampling, sc->ids.v[i]); i++) r->ahead[r->n_forced++] = sc->ids.v[i];
}

/* ---- one token -------------------------------------------------------------------------------------------------------------- */

/* The budget is used up between thoughts: no other one may begin. */
static bool is_spent(const struct thoughts *t) { return t->open_id >= 0 && !t->open && t->n_max >= 0 && t->n_tokens >= t->n_max; }

/* Everything but the beginning of a thought. */
static const uint32_t *all_but_thoughts(const struct say_model *m, struct say_scratch *sc, const struct thoughts *t) {
  memset(sc->mask, 0xff, mask_bytes(m));
  mask_clear(sc->mask, t->open_id);
  return sc->mask;
}

static int too_ambiguous(int position, struct err *e) {
  return err_set(e, ERR_BAD_INPUT, "position %d: grammar: too many readings of the text so far; make it less ambiguous", position);
}

/* Into *mask what the token at position may be; NULL = anything. Lives until the grammar goes on. */
static int allowed(const struct say_model *m, struct say_scratch *sc, struct request *r, int position, const uint32_t **mask,
                   struct err *e) {
  const struct thoughts *t = &r->thoughts;
  *mask = NULL;
  if (!r->grammar) {
    if (is_spent(t)) *mask = all_but_thoughts(m, sc, t);
    return 0;
  }
  if (!request_in_grammar(r) && t->open) {
    *mask = m->not_ends; /* what is to come must have its form */
    return 0;
  }
  *mask = grammar_mask(r->grammar);
  if (!*mask) return too_ambiguous(position, e);
  bool may_open = !request_in_grammar(r) && !is_spent(t);
  if (!may_open && !r->ignore_eos) return 0;
  memcpy(sc->mask, *mask, mask_bytes(m));
  if (may_open) mask_set(sc->mask, t->open_id);
  if (r->ignore_eos) clear_ends(m, sc->mask);
  *mask = sc->mask;
  return 0;
}

/* The answer is what the grammar wants, and the request does not let the model say so. */
static bool is_complete(const struct say_model *m, struct request *r) {
  if (!request_in_grammar(r) || r->thoughts.open || !grammar_must_end(r->grammar)) return false;
  int n;
  const int32_t *eog = tok_eog(m->tok, &n);
  for (int i = 0; i < n && !r->ignore_eos; i++)
    if (!sample_bans(&r->sampling, eog[i])) return false;
  return true;
}

static void take_certain(struct request *r, struct said *out) {
  out->result = (struct sample_result){.id = r->ahead[0]};
  out->certain = !must_close(r);
  r->n_forced--;
  memmove(r->ahead, r->ahead + 1, (size_t)r->n_forced * sizeof *r->ahead);
}

/* The token at position, from the row of logits before it (NULL only where it is certain and no log-probability is wanted). */
static int say_one(const struct say_model *m, struct say_scratch *sc, struct request *r, float *row, const float *peaks, int position,
                   struct said *out, struct err *e) {
  *out = (struct said){0};
  int rc = 0;
  if (r->n_forced > 0) {
    take_certain(r, out);
    if (r->sampling.params.n_logprobs >= 0) rc = sample_logprobs(&sc->sampler, row, peaks, out->result.id, r->top_max, &out->result, e);
  } else {
    if (allowed(m, sc, r, position, &r->sampling.allowed, e)) return -1;
    r->sampling.n_allowed = m->n_ids;
    rc = sample_token(&sc->sampler, &r->sampling, row, peaks, (uint64_t)position, &out->result, e);
    r->sampling.allowed = NULL;
  }
  if (rc) return -1;
  int32_t id = out->result.id;
  bool covered = grammar_covers(r, id), whole = !covered || grammar_may_end(r->grammar);
  out->is_stop = whole && request_is_stop_id(r, id);
  out->may_stop = whole && !r->thoughts.open && id != r->thoughts.open_id;
  if (covered && !grammar_accept(r->grammar, id)) {
    if (grammar_gave_up(r->grammar)) return too_ambiguous(position, e);
    return err_set(e, ERR_INTERNAL, "position %d: the grammar does not take token %d, which it allowed", position, id);
  }
  follow_thoughts(&r->thoughts, id);
  sample_state_add(&r->sampling, id);
  out->n_reasoning = r->thoughts.n_tokens;
  out->complete = is_complete(m, r);
  return 0;
}

void say_tokens(const struct say_model *m, struct say_scratch *sc, const struct tensor *logits, const struct tensor *peaks,
                struct say_rows *rows) {
  struct request *r = rows->r;
  rows->n_said = rows->n_right = 0;
  if (r->n_tokens == r->n_prompt && is_complete(m, r)) {
    rows->said[rows->n_said++] = (struct said){.result = {.id = -1}, .complete = true};
    return;
  }
  for (int i = 0; i < rows->n_rows; i++) {
    struct said *said = &rows->said[rows->n_said];
    int position = r->n_tokens + i, out = i - (rows->n_rows - rows->n_out);
    float *row = out >= 0 ? tensor_row(logits, rows->first_out + out) : NULL;
    const float *row_peaks = out >= 0 ? head_peaks(peaks, rows->first_out + out) : NULL;
    if (say_one(m, sc, r, row, row_peaks, position, said, &rows->error)) {
      rows->failed = true;
      return;
    }
    rows->n_said++;
    int32_t id = said->result.id;
    if (position + 1 == r->n_limit || said->complete || said->is_stop) return;
    say_expect(m, sc, r, position + 1);
    if (i + 1 == rows->n_rows || rows->ahead[i] != id) return;
    rows->n_right++;
  }
}
