/* sched_check.c — the scheduler's invariants, slowly. */
#include <stdlib.h>

#include "base/mem.h"
#include "engine/sched_impl.h"

static int bad(struct err *e, const struct request *r, const char *what, int found) {
  return err_set(e, ERR_INTERNAL, "request %llu: %s (found %d)", (unsigned long long)r->number, what, found);
}

static int check_request(const struct request *r, enum request_state state, struct err *e) {
  if (r->state != state) return bad(e, r, "expected the state of its list", r->state);
  if (r->n_prompt < 1 || r->n_tokens < r->n_prompt || r->n_limit < r->n_tokens)
    return bad(e, r, "expected prompt <= tokens <= limit", r->n_tokens);
  if (r->n_tokens > r->n_prompt && r->n_tokens == r->n_limit) return bad(e, r, "expected it to have ended at its limit", r->n_tokens);
  if (r->n_computed < 0 || r->n_computed >= r->n_tokens) return bad(e, r, "expected something to compute", r->n_computed);
  if (r->n_reported < 0 || r->n_reported > r->n_prompt) return bad(e, r, "expected reported rows inside the prompt", r->n_reported);
  if (r->kv.n_tokens != r->n_computed) return bad(e, r, "expected the computed tokens in the cache", r->kv.n_tokens);
  if (r->n_cached >= r->n_prompt) return bad(e, r, "expected less than the prompt from the prefix tree", r->n_cached);
  if (state == REQUEST_WAITING && (r->kv.pairs || r->n_computed)) return bad(e, r, "waits and holds a cache", r->n_computed);
  if (state == REQUEST_RUNNING && !r->kv.pairs) return bad(e, r, "runs without a cache", r->n_computed);
  if (state == REQUEST_RUNNING && (r->n_adopted > r->n_computed || r->n_cached < 0))
    return bad(e, r, "expected what it took over to be computed", r->n_adopted);
  if (r->n_spans && r->n_banks == 0) return bad(e, r, "has pictures and no place for them", r->n_spans);
  if (request_cut_at(r, r->n_computed)) return bad(e, r, "expected no picture to be cut", r->n_computed);
  for (int i = 0; i < r->n_banks; i++)
    if ((r->banks[i].entry != 0) != (state == REQUEST_RUNNING && r->banks[i].until > r->n_computed))
      return bad(e, r, "expected it to hold what its pictures and sounds need, and no more", i);
  return 0;
}

static int check_list(const struct request_list *l, enum request_state state, struct err *e) {
  int n = 0;
  const struct request *prev = NULL;
  for (const struct request *r = l->first; r; prev = r, r = r->next, n++) {
    if (check_request(r, state, e)) return -1;
    if (r->prev != prev) return bad(e, r, "its list is torn", n);
    if (prev && !sched_before(prev, r)) return bad(e, r, "its list is out of order", n);
  }
  if (l->last != prev || l->n != n) return err_set(e, ERR_INTERNAL, "scheduler: a list counts %d requests and has %d", l->n, n);
  return 0;
}

static bool check_banks(const struct sched *s, struct err *e) {
  int n = 0;
  for (const struct request *r = s->running.first; r; r = r->next) n += r->n_banks;
  int32_t *held = xcalloc((size_t)n + 1, sizeof *held);
  n = 0;
  for (const struct request *r = s->running.first; r; r = r->next)
    for (int i = 0; i < r->n_banks; i++)
      if (r->banks[i].entry) held[n++] = r->banks[i].entry;
  bool ok = banks_check(s->banks, held, n, e);
  free(held);
  return ok;
}

bool sched_check(const struct sched *s, struct err *e) {
  if (check_list(&s->running, REQUEST_RUNNING, e) || check_list(&s->waiting, REQUEST_WAITING, e)) return false;
  if (s->running.n > s->config.max_running)
    return err_set(e, ERR_INTERNAL, "scheduler: %d requests run, expected at most %d", s->running.n, s->config.max_running), false;
  if (s->banks && !check_banks(s, e)) return false;
  struct kv_seq **seqs = xcalloc((size_t)s->running.n + 1, sizeof *seqs);
  const int32_t **tokens = xcalloc((size_t)s->running.n + 1, sizeof *tokens);
  int n = 0;
  for (struct request *r = s->running.first; r; r = r->next) {
    seqs[n] = &r->kv;
    tokens[n++] = r->tokens;
  }
  bool ok = s->radix ? radix_check(s->radix, seqs, tokens, n, e) : kv_check(s->kv, seqs, n, e);
  free(seqs);
  free(tokens);
  return ok;
}
