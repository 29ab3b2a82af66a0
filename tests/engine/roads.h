/* roads.h — the same requests by many roads: one at a time without anything clever, then together in random company, chunks, pages, with guesses,
 * prefix cache, graph mode, retraction, threads. Whatever comes back must be the same to the bit. */
#ifndef TEST_ROADS_H
#define TEST_ROADS_H

#include "engine/asking.h"

enum { ROADS_RETRACTIONS = 25 };

struct trip {
  struct cygnet_request r;
  struct answer want, got;
};

struct roads {
  struct cygnet_options base;
  struct trip *trips; /* [n] */
  int n, n_roads;
  uint64_t rng;
  void (*opened)(struct cygnet *c, struct roads *x);  /* an engine is there: requests get what belongs to it; may be NULL */
  void (*closing)(struct cygnet *c, struct roads *x); /* may be NULL */
  void (*asked)(struct cygnet *c,
                struct roads *x); /* all `want` are known, the first of two times: requests may be made harder; may be NULL */
  void *ctx;
  uint64_t n_drafted, n_accepted, n_forced, n_replayed, n_retracted; /* in all */
};

static inline struct cygnet *roads_open(struct roads *x, struct cygnet_options o) {
  struct cygnet *c = open_with(o);
  c->worth_from_ms = INFINITY; /* guesses do not depend on the clock */
  if (x->opened) x->opened(c, x);
  return c;
}
static inline void roads_close(struct cygnet *c, struct roads *x) {
  if (x->closing) x->closing(c, x);
  cygnet_close(c);
}

/* All at once, some of them a little earlier; where `retract` is set a running one is sent back now and then. */
static inline void roads_ask_all(struct cygnet *c, struct roads *x, bool retract) {
  for (int i = 0; i < x->n; i++) {
    answer_init(&x->trips[i].got, &x->trips[i].r, false);
    submit(c, &x->trips[i].r);
    if (i % 3 == 0) cygnet_step(c), check(c), drain(c);
  }
  for (int left = retract ? ROADS_RETRACTIONS : 0; cygnet_step(c);) {
    check(c);
    if (test_rand_int(&x->rng, 0, 2)) drain(c); /* else joined */
    if (left > 0 && c->sched.running.n && test_rand_int(&x->rng, 0, 5) == 0) {
      left--;
      sched_retract(&c->sched, test_rand_int(&x->rng, 0, 1) ? c->sched.running.last : c->sched.running.first);
      check(c);
    }
  }
  run(c);
}

static inline void roads_travel(struct roads *x) {
  struct cygnet_options plain = x->base;
  plain.draft_tokens = -1;
  plain.disable_prefix_cache = plain.disable_graph = 1;
  struct cygnet *c = roads_open(x, plain);
  for (int pass = x->asked ? 0 : 1; pass < 2; pass++) {
    for (int i = 0; i < x->n; i++) ask(c, &x->trips[i].r, &x->trips[i].want, false);
    if (pass == 1) continue;
    x->asked(c, x);
    for (int i = 0; i < x->n; i++) answer_free(&x->trips[i].want);
  }
  assert_int_equal(c->stats.drafted_tokens, 0);
  roads_close(c, x);
  for (int i = 0; i < x->n_roads; i++) {
    char road[192];
    struct cygnet_options o = x->base;
    o.draft_tokens = (int[]){0, 1, 3, 16, 64}[test_rand_int(&x->rng, 0, 4)];
    if (i % 5 == 4) o.draft_tokens = -1;
    o.chunk_tokens = test_rand_int(&x->rng, 1, 50);
    o.page_tokens = (int[]){1, 2, 4, 16}[test_rand_int(&x->rng, 0, 3)];
    o.threads = i % 4 == 3 || (few_roads() && i == 1) ? 2 : 1;
    o.max_running = test_rand_int(&x->rng, 1, 6);
    o.disable_graph = test_rand_int(&x->rng, 0, 1);
    o.disable_prefix_cache = test_rand_int(&x->rng, 0, 2) == 0;
    c = roads_open(x, o);
    for (int pass = 0; pass < 2; pass++) { /* the second time the prefix tree knows all of it */
      roads_ask_all(c, x, i % 2);
      for (int k = 0; k < x->n; k++) {
        snprintf(road, sizeof road, "request %d, draft %d, chunk %d, page %d, threads %d, running %d%s%s%s", k, o.draft_tokens,
                 o.chunk_tokens, o.page_tokens, o.threads, o.max_running, o.disable_graph ? "" : ", graph",
                 o.disable_prefix_cache ? "" : ", prefix cache", i % 2 ? ", retraction" : "");
        assert_true(x->trips[k].got.over);
        assert_same(&x->trips[k].want, &x->trips[k].got, road);
        answer_free(&x->trips[k].got);
      }
    }
    struct cygnet_stats st;
    cygnet_stats(c, &st);
    x->n_drafted += st.drafted_tokens, x->n_accepted += st.accepted_tokens, x->n_forced += st.forced_tokens;
    x->n_replayed += st.n_graph_steps, x->n_retracted += st.n_retracted;
    roads_close(c, x);
  }
  for (int i = 0; i < x->n; i++) answer_free(&x->trips[i].want);
}

#endif
