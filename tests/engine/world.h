/* world.h — a scheduler with requests, a prefix tree if wanted, and no model, for t_sched and t_batch.
 *
 * The "model" is a memory of what was written where: every slot holds a digest of all tokens up to its position, which is what keys and
 * values are a function of. A row that reads a slot of its window and finds another digest there has found a page that was given away too
 * early, shared wrongly or copied wrongly. The next token is a function of that digest, too.
 */
#ifndef TEST_WORLD_H
#define TEST_WORLD_H

#include "test.h"

#include <limits.h>
#include <string.h>

#include "base/mem.h"
#include "engine/engine.h"

enum { WORLD_REQUESTS_MAX = 1100 };

struct world {
  struct kv_config kc;
  struct sched_config sc;
  struct kv *kv;
  struct radix *radix;
  struct sched sched;
  uint64_t *memory[KV_KINDS]; /* [(n_pages + 1) * page_tokens] */
  uint64_t *digests;          /* [tokens_max] scratch */
  struct request *requests[WORLD_REQUESTS_MAX];
  int n_requests, n_finished;
  uint64_t n_steps, n_rows; /* prompt rows computed */
};

static inline void world_open(struct world *w, const struct kv_config *kc, const struct sched_config *sc, bool tree) {
  struct err e = {0};
  memset(w, 0, sizeof *w);
  w->kc = *kc;
  w->sc = *sc;
  w->kv = kv_new(kc, &e);
  if (!w->kv) fail_msg("%s", e.msg);
  if (tree && kc->n_pages[KV_FULL]) {
    w->radix = radix_new(w->kv, &e);
    if (!w->radix) fail_msg("%s", e.msg);
  }
  assert_int_equal(sched_init(&w->sched, sc, w->kv, w->radix, &e), 0);
  for (int k = 0; k < KV_KINDS; k++) w->memory[k] = xcalloc((size_t)((kc->n_pages[k] + 1) * kc->page_tokens), sizeof(uint64_t));
  w->digests = xcalloc((size_t)kc->tokens_max, sizeof *w->digests);
}

static inline void world_on_logits(void *ctx, int position, const float *logits, int vocab) {
  (void)ctx, (void)position, (void)logits, (void)vocab;
}

/* A request of n_prompt tokens of its own that generates up to n_more; not yet submitted. */
static inline struct request *world_request(struct world *w, int n_prompt, int n_more, int priority, bool all_logits) {
  assert_true(w->n_requests < WORLD_REQUESTS_MAX);
  struct request *r = xcalloc(1, sizeof *r);
  r->number = (uint64_t)++w->n_requests;
  r->priority = priority;
  r->n_prompt = r->n_tokens = n_prompt;
  r->n_limit = n_prompt + n_more;
  r->n_cached = r->prompt_logprobs_from = -1;
  r->n_reuse_max = all_logits ? 0 : INT_MAX;
  r->tokens = xcalloc((size_t)r->n_limit, sizeof *r->tokens);
  for (int i = 0; i < n_prompt; i++) r->tokens[i] = (int32_t)r->number * 100000 + i;
  if (all_logits) r->on_logits = world_on_logits;
  r->state = REQUEST_DONE;
  w->requests[w->n_requests - 1] = r;
  return r;
}

/* r begins with the first n tokens of another, known by now. */
static inline void world_begin_like(struct request *r, const struct request *other, int n) {
  n = MIN(n, MIN(r->n_prompt, other->n_tokens));
  memcpy(r->tokens, other->tokens, (size_t)n * sizeof *r->tokens);
  r->space = other->space;
}

static inline uint64_t world_mix(uint64_t h, uint64_t x) {
  h = (h ^ x) * 0x9e3779b97f4a7c15u;
  return h ^ h >> 29;
}
/* Digests of r's tokens: [n_tokens] in w->digests. */
static inline const uint64_t *world_digests(const struct world *w, const struct request *r) {
  uint64_t h = r->space.a + 1;
  for (int i = 0; i < r->n_tokens && i < w->kc.tokens_max; i++) w->digests[i] = h = world_mix(h, (uint64_t)r->tokens[i]);
  return w->digests;
}
static inline int32_t world_next_token(uint64_t digest) { return -1 - (int32_t)(digest % 1000); }

static inline void world_check(const struct world *w) {
  struct err e = {0};
  if (!sched_check(&w->sched, &e)) fail_msg("step %llu: %s", (unsigned long long)w->n_steps, e.msg);
}

/* Copy, write every picked row, then read every row's window. */
static inline void world_compute(struct world *w) {
  struct sched *s = &w->sched;
  size_t page = (size_t)w->kc.page_tokens;
  assert_true(s->n_copies <= s->config.max_running * KV_KINDS);
  for (int i = 0; i < s->n_copies; i++) {
    const struct kv_copy *c = &s->copies[i];
    assert_true(c->from >= 1 && c->from <= w->kc.n_pages[c->kind] && c->to >= 1 && c->to <= w->kc.n_pages[c->kind]);
    memcpy(w->memory[c->kind] + (size_t)c->to * page, w->memory[c->kind] + (size_t)c->from * page, page * sizeof(uint64_t));
  }
  for (int i = 0; i < s->n_picks; i++) {
    const struct sched_pick *p = &s->picks[i];
    const uint64_t *digests = world_digests(w, p->r);
    for (int pos = p->r->n_computed; pos < p->r->n_computed + p->n; pos++)
      for (int k = 0; k < KV_KINDS; k++) {
        if (!w->kc.n_pages[k]) continue;
        int64_t slot = kv_slot(w->kv, &p->r->kv, k, pos);
        assert_true(slot >= w->kc.page_tokens);
        w->memory[k][slot] = digests[pos];
      }
  }
  for (int i = 0; i < s->n_picks; i++) {
    const struct sched_pick *p = &s->picks[i];
    const uint64_t *digests = world_digests(w, p->r);
    for (int k = 0; k < KV_KINDS; k++) {
      if (!w->kc.n_pages[k]) continue;
      int64_t from = kv_window_lo(p->r->n_computed,
                                  k == KV_SLIDING ? w->kc.window_tokens : 0); /* the first row's; later rows see less of it */
      for (int pos = (int)from; pos < p->r->n_computed + p->n; pos++) {
        int64_t slot = kv_slot(w->kv, &p->r->kv, k, pos);
        assert_true(slot >= w->kc.page_tokens);
        if (w->memory[k][slot] != digests[pos])
          fail_msg("request %d, position %d of %d: foreign contents", (int)p->r->number, pos, p->r->n_computed);
      }
    }
  }
}

/* What the engine does after the forward: commit, one more token for whoever wants one, finish at the limit. */
static inline void world_finish_step(struct world *w) {
  struct sched *s = &w->sched;
  for (int i = 0; i < s->n_picks; i++) {
    struct request *r = s->picks[i].r;
    w->n_rows += (uint64_t)MAX(0, MIN(r->n_computed + s->picks[i].n, r->n_prompt) - r->n_computed);
    sched_commit(s, &s->picks[i]);
  }
  for (int i = 0; i < s->n_picks; i++) {
    struct request *r = s->picks[i].r;
    const struct sched_pick *p = &s->picks[i];
    if (r->on_logits) r->n_reported = MAX(r->n_reported, MIN(p->first + p->n - p->n_late, r->n_prompt));
    if (r->n_computed < r->n_tokens) continue;
    if (r->n_tokens < r->n_limit) {
      r->tokens[r->n_tokens] = world_next_token(world_digests(w, r)[r->n_tokens - 1]);
      r->n_tokens++;
    }
    if (r->n_tokens < r->n_limit) continue;
    sched_remove(s, r);
    w->n_finished++;
  }
  w->n_steps++;
}

static inline void world_close(struct world *w) {
  for (int i = 0; i < w->n_requests; i++) {
    if (w->requests[i]->state != REQUEST_DONE) sched_remove(&w->sched, w->requests[i]);
    free(w->requests[i]->tokens);
    free(w->requests[i]->spans);
    free(w->requests[i]->banks);
    free(w->requests[i]);
  }
  struct kv_stats st = kv_stats(w->kv);
  for (int k = 0; k < KV_KINDS; k++) { /* nobody holds anything: what is not free is idle */
    assert_int_equal(st.n_used[k], 0);
    assert_int_equal(kv_pool(w->kv, k)->n_free + st.n_idle[k], st.n_pages[k]);
    if (!w->radix) assert_int_equal(st.n_idle[k], 0);
  }
  assert_int_equal(st.n_seqs, 0);
  sched_free(&w->sched);
  radix_delete(w->radix);
  for (int k = 0; k < KV_KINDS; k++) assert_int_equal(kv_pool(w->kv, k)->n_free, w->kc.n_pages[k]);
  kv_delete(w->kv);
  for (int k = 0; k < KV_KINDS; k++) free(w->memory[k]);
  free(w->digests);
}

/* Tiny random numbers: pools between what one longest request needs and what everybody needs. */
static inline void world_random(uint64_t *rng, int tokens_max, struct kv_config *kc, struct sched_config *sc) {
  static const int pages[] = {1, 2, 4}, windows[] = {1, 3, 5};
  int kinds = test_rand_int(rng, 0, 5); /* 0: full only, 1: sliding only, else both */
  sc->chunk_tokens = test_rand_int(rng, 1, 6);
  sc->max_running = test_rand_int(rng, 1, 4);
  sc->max_queued = 100;
  sc->rows_max = sc->chunk_tokens + sc->max_running;
  sc->out_max = test_rand_int(rng, sc->max_running, sc->rows_max);
  sc->ahead_tokens = test_rand_int(rng, 0, 4);
  *kc = (struct kv_config){.page_tokens = pages[test_rand_int(rng, 0, 2)], .seqs_max = sc->max_running, .tokens_max = tokens_max};
  if (kinds != 0) kc->window_tokens = windows[test_rand_int(rng, 0, 2)];
  kc->n_pages[KV_FULL] = kinds != 1;
  kc->n_pages[KV_SLIDING] = kinds != 0;
  struct kv *probe = kv_new(kc, NULL);
  assert_non_null(probe);
  struct kv_short one = kv_pages_for(probe, tokens_max, sc->chunk_tokens);
  kv_delete(probe);
  bool brim = test_rand_int(rng, 0, 1);
  for (int k = 0; k < KV_KINDS; k++)
    if (kc->n_pages[k]) kc->n_pages[k] = brim ? one.pages[k] : test_rand_int(rng, one.pages[k], one.pages[k] * sc->max_running);
}

#endif
