/* world.h — a scheduler with requests and no model, for t_sched and t_batch.
 *
 * The "model" is a memory of what was written where: every slot remembers which request's position it holds. A row that reads a slot
 * of its window and finds somebody else's value there has found a page that was given away too early.
 */
#ifndef TEST_WORLD_H
#define TEST_WORLD_H

#include "test.h"

#include <string.h>

#include "base/mem.h"
#include "engine/engine.h"

enum { WORLD_REQUESTS_MAX = 64 };

struct cell {
  uint64_t number;
  int pos;
};

struct world {
  struct kv_config kc;
  struct sched_config sc;
  struct kv *kv;
  struct sched sched;
  struct cell *memory[KV_KINDS]; /* [(n_pages + 1) * page_tokens] */
  struct request *requests[WORLD_REQUESTS_MAX];
  int n_requests, n_finished;
  uint64_t n_steps;
};

static inline void world_open(struct world *w, const struct kv_config *kc, const struct sched_config *sc) {
  struct err e = {0};
  memset(w, 0, sizeof *w);
  w->kc = *kc;
  w->sc = *sc;
  w->kv = kv_new(kc, &e);
  if (!w->kv) fail_msg("%s", e.msg);
  assert_int_equal(sched_init(&w->sched, sc, w->kv, &e), 0);
  for (int k = 0; k < KV_KINDS; k++) w->memory[k] = xcalloc((size_t)((kc->n_pages[k] + 1) * kc->page_tokens), sizeof(struct cell));
}

static inline void world_on_logits(void *ctx, int position, const float *logits, int vocab) {
  (void)ctx, (void)position, (void)logits, (void)vocab;
}

/* A request of n_prompt tokens that generates up to n_more; not yet submitted. */
static inline struct request *world_request(struct world *w, int n_prompt, int n_more, int priority, bool all_logits) {
  assert_true(w->n_requests < WORLD_REQUESTS_MAX);
  struct request *r = xcalloc(1, sizeof *r);
  r->number = (uint64_t)++w->n_requests;
  r->priority = priority;
  r->n_prompt = r->n_tokens = n_prompt;
  r->n_limit = n_prompt + n_more;
  r->tokens = xcalloc((size_t)r->n_limit, sizeof *r->tokens);
  for (int i = 0; i < n_prompt; i++) r->tokens[i] = (int32_t)r->number * 1000 + i;
  if (all_logits) r->on_logits = world_on_logits;
  r->state = REQUEST_DONE;
  w->requests[w->n_requests - 1] = r;
  return r;
}

static inline void world_check(const struct world *w) {
  struct err e = {0};
  if (!sched_check(&w->sched, &e)) fail_msg("step %llu: %s", (unsigned long long)w->n_steps, e.msg);
}

/* Write every picked row, then read every row's window. */
static inline void world_compute(struct world *w) {
  for (int i = 0; i < w->sched.n_picks; i++) {
    const struct sched_pick *p = &w->sched.picks[i];
    for (int pos = p->r->n_computed; pos < p->r->n_computed + p->n; pos++)
      for (int k = 0; k < KV_KINDS; k++) {
        if (!w->kc.n_pages[k]) continue;
        int64_t slot = kv_slot(w->kv, &p->r->kv, k, pos);
        assert_true(slot >= w->kc.page_tokens);
        w->memory[k][slot] = (struct cell){p->r->number, pos};
      }
  }
  for (int i = 0; i < w->sched.n_picks; i++) {
    const struct sched_pick *p = &w->sched.picks[i];
    for (int q = p->r->n_computed; q < p->r->n_computed + p->n; q++)
      for (int k = 0; k < KV_KINDS; k++) {
        if (!w->kc.n_pages[k]) continue;
        for (int pos = 0; pos <= q; pos++) {
          if (k == KV_SLIDING && q - pos >= w->kc.window_tokens) continue;
          int64_t slot = kv_slot(w->kv, &p->r->kv, k, pos);
          assert_true(slot >= w->kc.page_tokens);
          assert_int_equal(w->memory[k][slot].number, p->r->number);
          assert_int_equal(w->memory[k][slot].pos, pos);
        }
      }
  }
}

/* What the engine does after the forward: commit, one more token for whoever wants one, finish at the limit. */
static inline void world_finish_step(struct world *w) {
  struct sched *s = &w->sched;
  for (int i = 0; i < s->n_picks; i++) sched_commit(s, &s->picks[i]);
  for (int i = 0; i < s->n_picks; i++) {
    struct request *r = s->picks[i].r;
    if (r->on_logits) r->n_reported = MAX(r->n_reported, MIN(r->n_computed, r->n_prompt));
    if (r->n_computed < r->n_tokens) continue;
    if (r->n_tokens < r->n_limit) {
      r->tokens[r->n_tokens] = (int32_t)r->number * 1000 + r->n_tokens; /* the same whenever it is asked */
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
    free(w->requests[i]);
  }
  struct kv_stats st = kv_stats(w->kv);
  assert_int_equal(st.n_used[KV_FULL], 0);
  assert_int_equal(st.n_used[KV_SLIDING], 0);
  assert_int_equal(st.n_seqs, 0);
  sched_free(&w->sched);
  kv_delete(w->kv);
  for (int k = 0; k < KV_KINDS; k++) free(w->memory[k]);
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
