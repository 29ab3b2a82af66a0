/* t_sched.c — who is computed when: random loads over tiny pools, and the rules of sched.h one by one. */
#include "engine/sched_impl.h"
#include "engine/world.h"

static const struct sched_pick *pick_of(const struct sched *s, const struct request *r) {
  const struct sched_pick *found = NULL;
  for (int i = 0; i < s->n_picks; i++)
    if (s->picks[i].r == r) {
      assert_null(found); /* once at most */
      found = &s->picks[i];
    }
  return found;
}

/* sched_next, and everything its header promises about one step. */
static void next(struct world *w) {
  static bool ran[WORLD_REQUESTS_MAX], decoded[WORLD_REQUESTS_MAX];
  static int n_retracted[WORLD_REQUESTS_MAX];
  struct sched *s = &w->sched;
  for (int i = 0; i < w->n_requests; i++) {
    const struct request *r = w->requests[i];
    ran[i] = r->state == REQUEST_RUNNING;
    decoded[i] = ran[i] && r->n_computed + 1 == r->n_tokens && r->n_tokens > r->n_prompt;
    n_retracted[i] = r->n_retracted;
  }
  const struct request *first = s->running.first;
  int n_picks = sched_next(s);
  assert_int_equal(n_picks, s->n_picks);
  world_check(w);
  if (first && first->n_retracted != n_retracted[first->number - 1]) /* the first in the order makes room for nobody but its betters */
    assert_true(s->running.first->priority > first->priority);

  int rows = 0, prompt_rows = 0, outs = 0;
  for (int i = 0; i < s->n_picks; i++) {
    const struct sched_pick *p = &s->picks[i];
    int at = (int)p->r->number - 1, end = p->r->n_computed + p->n;
    assert_int_equal(p->r->state, REQUEST_RUNNING);
    assert_true(p->n >= 1 && end <= p->r->n_tokens && p->r->kv.n_reserved >= end);
    rows += p->n;
    outs += p->n_out;
    if (!decoded[at] || p->r->n_retracted != n_retracted[at]) prompt_rows += p->n;
    int want = 0; /* out rows by the slow definition */
    for (int pos = p->r->n_computed; pos < end; pos++)
      want += (p->r->on_logits && pos < p->r->n_prompt && pos >= p->r->n_reported) ||
              (pos == p->r->n_tokens - 1 && p->r->n_tokens < p->r->n_limit);
    assert_int_equal(p->n_out, want);
    if (p->r->on_logits && p->r->n_reported < p->r->n_prompt) assert_true(p->r->n_computed <= p->r->n_reported); /* none was skipped */
  }
  assert_true(rows <= s->config.rows_max && prompt_rows <= s->chunk_rows && outs <= s->config.out_max);

  for (int i = 0; i < w->n_requests; i++) {
    struct request *r = w->requests[i];
    const struct sched_pick *p = pick_of(s, r);
    if (decoded[i] && r->state == REQUEST_RUNNING && r->n_retracted == n_retracted[i]) {
      assert_non_null(p);
      assert_int_equal(p->n, 1);
    }
    if (ran[i] || r->state != REQUEST_RUNNING) continue;
    for (struct request *o = s->waiting.first; o;
         o = o->next) /* admitted past nobody but followers and those that were retracted just now */
      assert_true(sched_before(r, o) || ran[o->number - 1] || o->leader);
  }
  if (s->running.n || s->waiting.n) assert_true(s->n_picks > 0);
}

static bool is_over(const struct world *w) { return w->sched.running.n + w->sched.waiting.n == 0; }

/* A request that may begin like an older one, with its answer or a part of it. */
static struct request *random_request(struct world *w, uint64_t *rng, int tokens_max, bool priorities, bool shares) {
  int prompt = test_rand_int(rng, 1, tokens_max);
  struct request *r = world_request(w, prompt, test_rand_int(rng, 0, tokens_max - prompt), priorities ? test_rand_int(rng, 0, 2) : 0,
                                    test_rand_int(rng, 0, 3) == 0);
  if (shares && r->number > 1 && test_rand_int(rng, 0, 3))
    world_begin_like(r, w->requests[test_rand_int(rng, 0, (int)r->number - 2)], test_rand_int(rng, 1, prompt));
  if (shares && test_rand_int(rng, 0, 5) == 0) r->space.a = (uint64_t)test_rand_int(rng, 0, 1);
  return r;
}

static void random_world(uint64_t *rng, bool tree, uint64_t *n_retracted, uint64_t *n_cached) {
  struct kv_config kc;
  struct sched_config sc;
  int tokens_max = test_rand_int(rng, 4, 24);
  world_random(rng, tokens_max, &kc, &sc);
  struct world w;
  world_open(&w, &kc, &sc, tree);
  int n = test_rand_int(rng, 1, 24), budget = 0, submitted = 0, aborted = 0;
  bool priorities = test_rand_int(rng, 0, 1), aborts = test_rand_int(rng, 0, 3) == 0;
  while (submitted < n || !is_over(&w)) {
    while (submitted < n && test_rand_int(rng, 0, 2)) {
      struct request *r = random_request(&w, rng, tokens_max, priorities, tree);
      assert_true(sched_fits(&w.sched, r, NULL));
      assert_true(sched_add(&w.sched, r));
      budget += r->n_limit;
      submitted++;
    }
    if (aborts && w.n_requests && test_rand_int(rng, 0, 9) == 0) {
      struct request *r = w.requests[test_rand_int(rng, 0, w.n_requests - 1)];
      if (r->state != REQUEST_DONE) sched_remove(&w.sched, r), aborted++;
    }
    if (w.sched.running.n && test_rand_int(rng, 0, 19) == 0) sched_retract(&w.sched, w.sched.running.last);
    if (test_rand_int(rng, 0, 3) == 0) {
      w.sched.chunk_rows = test_rand_int(rng, 1, sc.chunk_tokens);
      w.sched.beside_rows = test_rand_int(rng, 1, w.sched.chunk_rows);
    }
    next(&w);
    world_compute(&w);
    world_finish_step(&w);
    world_check(&w);
    assert_true(w.n_steps < (uint64_t)(budget + 8) * 30); /* nobody starves, nothing turns in circles */
  }
  assert_int_equal(w.n_finished + aborted, n);
  for (int i = 0; i < n; i++) { /* tokens went through retractions unharmed */
    const struct request *r = w.requests[i];
    const uint64_t *digests = world_digests(&w, r);
    for (int t = r->n_prompt; t < r->n_tokens; t++) assert_int_equal(r->tokens[t], world_next_token(digests[t - 1]));
  }
  const struct sched_counts *c = &w.sched.counts;
  assert_true(c->cached + c->lost_window <= c->prompt && c->lost_wanted <= c->prompt);
  *n_retracted += w.sched.n_retracted;
  *n_cached += c->cached;
  world_close(&w);
}

static void random_loads(void **state) {
  (void)state;
  uint64_t rng = 1, n_retracted = 0, n_cached = 0;
  for (int round = 0; round < 400; round++) random_world(&rng, false, &n_retracted, &n_cached);
  assert_true(n_retracted > 200); /* the pools were small enough to matter */
  assert_int_equal(n_cached, 0);
}

static void random_loads_with_a_tree(void **state) {
  (void)state;
  uint64_t rng = 2, n_retracted = 0, n_cached = 0;
  for (int round = 0; round < 1200; round++) random_world(&rng, true, &n_retracted, &n_cached);
  assert_true(n_retracted > 2000);
  assert_true(n_cached > 5000);
}

static const struct sched_config plain = {.chunk_tokens = 8, .max_running = 4, .max_queued = 4, .rows_max = 12, .out_max = 4};
static const struct kv_config roomy = {.page_tokens = 4, .n_pages = {64, 64}, .window_tokens = 5, .seqs_max = 4, .tokens_max = 64};

static void step(struct world *w) {
  next(w);
  world_compute(w);
  world_finish_step(w);
  world_check(w);
}

static struct request *submit(struct world *w, int n_prompt, int n_more, int priority) {
  struct request *r = world_request(w, n_prompt, n_more, priority, false);
  assert_true(sched_add(&w->sched, r));
  return r;
}

static void prompts_share_the_chunk(void **state) {
  (void)state;
  struct world w;
  world_open(&w, &roomy, &plain, false);
  struct request *a = submit(&w, 5, 4, 0), *b = submit(&w, 9, 4, 0), *c = submit(&w, 2, 4, 0);
  next(&w);
  assert_int_equal(w.sched.n_picks, 3);
  assert_int_equal(pick_of(&w.sched, a)->n, 5); /* its half, and first of what is left over */
  assert_int_equal(pick_of(&w.sched, c)->n, 2); /* shorter than a */
  assert_int_equal(pick_of(&w.sched, b)->n, 1); /* cut where the chunk ends */
  assert_int_equal(pick_of(&w.sched, b)->n_out, 0);
  world_compute(&w);
  world_finish_step(&w);
  next(&w);
  assert_int_equal(pick_of(&w.sched, a)->n, 1); /* decodes beside the others */
  assert_int_equal(pick_of(&w.sched, b)->n, 8);
  assert_int_equal(pick_of(&w.sched, c)->n, 1);
  world_compute(&w);
  world_finish_step(&w);
  for (int i = 0; i < 3; i++) step(&w);
  assert_int_equal(w.n_finished, 3);
  assert_int_equal(w.sched.n_retracted, 0);
  assert_int_equal(w.n_steps, 5); /* prompt, then one token each step for everybody */
  world_close(&w);
}

static void higher_priority_goes_first(void **state) {
  (void)state;
  struct world w;
  struct sched_config sc = plain;
  sc.max_running = 1;
  world_open(&w, &roomy, &sc, false);
  struct request *low = submit(&w, 3, 2, 0), *high = submit(&w, 3, 2, 5), *mid = submit(&w, 3, 2, 1);
  step(&w);
  assert_int_equal(high->state, REQUEST_RUNNING);
  step(&w);
  step(&w);
  assert_int_equal(high->state, REQUEST_DONE);
  assert_int_equal(mid->state, REQUEST_RUNNING);
  assert_int_equal(low->state, REQUEST_WAITING);
  world_close(&w);
}

/* Pool of 8 full pages of 4 tokens; two requests that grow to 32 and to 24 tokens. */
static void shortage_retracts_the_last(void **state) {
  (void)state;
  struct kv_config kc = {.page_tokens = 4, .n_pages = {8, 0}, .seqs_max = 4, .tokens_max = 33};
  for (int higher = 0; higher < 2; higher++) {
    struct world w;
    world_open(&w, &kc, &plain, false);
    struct request *a = submit(&w, 4, 29, 0), *b = submit(&w, 4, 20, higher);
    struct request *keeps = higher ? b : a, *gives = higher ? a : b;
    int n_before = 0;
    while (w.sched.n_retracted == 0) {
      n_before = gives->n_tokens;
      step(&w);
    }
    assert_int_equal(gives->state, REQUEST_WAITING);
    assert_int_equal(gives->n_tokens, n_before);
    assert_int_equal(gives->n_computed, 0);
    assert_int_equal(keeps->state, REQUEST_RUNNING);
    while (!is_over(&w)) step(&w);
    assert_int_equal(w.n_finished, 2);
    assert_int_equal(keeps->n_retracted, 0);
    world_close(&w);
  }
}

/* Pool of 20 tokens: a prompt of 15 is under way, another of 6 must wait for it. */
static void admission_counts_what_others_need(void **state) {
  (void)state;
  struct kv_config kc = {.page_tokens = 1, .n_pages = {20, 0}, .seqs_max = 4, .tokens_max = 20};
  struct sched_config sc = plain;
  sc.chunk_tokens = 4;
  struct world w;
  world_open(&w, &kc, &sc, false);
  struct request *a = submit(&w, 15, 1, 3);
  step(&w);
  struct request *six = submit(&w, 6, 1, 1);
  step(&w);
  assert_int_equal(a->n_computed, 8);
  assert_int_equal(six->state, REQUEST_WAITING);
  struct request *five = submit(&w, 5, 1, 2); /* this one does fit */
  step(&w);
  assert_int_equal(five->state, REQUEST_RUNNING);
  assert_int_equal(six->state, REQUEST_WAITING);
  assert_int_equal(a->n_computed, 12);
  while (!is_over(&w)) step(&w);
  assert_int_equal(w.sched.n_retracted, 0);
  world_close(&w);
}

/* A prompt takes the pages that there are, to the last token. */
static void short_prompts_take_what_is_left(void **state) {
  (void)state;
  struct kv_config kc = {.page_tokens = 4, .n_pages = {6, 0}, .seqs_max = 4, .tokens_max = 24};
  struct world w;
  world_open(&w, &kc, &plain, false);
  struct request *a = submit(&w, 8, 12, 0);
  while (a->n_tokens < 18) step(&w); /* holds 5 pages of 6 */
  struct request *b = submit(&w, 16, 1, 0);
  assert_true(kv_seq_open(w.kv, &b->kv)); /* as if it had been let in before a grew */
  w.sched.waiting = (struct request_list){0};
  w.sched.running = (struct request_list){.first = a, .last = b, .n = 2};
  a->next = b, b->prev = a;
  b->state = REQUEST_RUNNING;
  b->n_cached = 0;
  step(&w);
  assert_int_equal(b->n_computed, 4);
  while (!is_over(&w)) step(&w);
  assert_int_equal(w.n_finished, 2);
  world_close(&w);
}

/* A sliding pool of all windows, a page for each cut and the rows of one step: many long prompts run side by side, and none is sent back. */
static void long_prompts_share_the_sliding_pool(void **state) {
  (void)state;
  for (int tree = 0; tree < 2; tree++) {
    struct kv_config kc = {.page_tokens = 4, .n_pages = {400, 8 * (4 + 1) + 6}, .window_tokens = 10, .seqs_max = 8, .tokens_max = 160};
    struct sched_config sc = {.chunk_tokens = 24, .max_running = 8, .max_queued = 9, .rows_max = 32, .out_max = 8, .ahead_tokens = 8};
    struct world w;
    world_open(&w, &kc, &sc, tree);
    assert_int_equal(kv_pages_for(w.kv, 160, 1).pages[KV_SLIDING], 4);
    for (int i = 0; i < 8; i++) submit(&w, 100 + 3 * i, 20 + i, 0);
    step(&w);
    assert_int_equal(w.sched.running.n, 8);
    while (!is_over(&w)) step(&w);
    assert_int_equal(w.sched.n_retracted, 0);
    world_close(&w);
  }
}

static void ahead_tokens_spare_retractions(void **state) {
  (void)state;
  uint64_t n_retracted[2];
  struct kv_config kc = {.page_tokens = 1, .n_pages = {60, 0}, .seqs_max = 4, .tokens_max = 40};
  for (int i = 0; i < 2; i++) {
    struct world w;
    struct sched_config sc = plain;
    sc.max_queued = 40;
    sc.ahead_tokens = i * 20;
    world_open(&w, &kc, &sc, false);
    for (int k = 0; k < 30; k++) submit(&w, 4, 30, 0);
    while (!is_over(&w)) step(&w);
    n_retracted[i] = w.sched.n_retracted;
    world_close(&w);
  }
  assert_true(n_retracted[1] < n_retracted[0]);
}

static void queue_has_an_end(void **state) {
  (void)state;
  struct world w;
  struct sched_config sc = plain;
  sc.max_running = 2, sc.max_queued = 1;
  world_open(&w, &roomy, &sc, false);
  for (int i = 0; i < 3; i++) submit(&w, 8, 9, 0); /* two places to run, one to wait */
  assert_false(sched_add(&w.sched, world_request(&w, 8, 9, 9, false)));
  step(&w);
  step(&w);
  assert_int_equal(w.sched.running.n, 2);
  assert_false(sched_add(&w.sched, world_request(&w, 8, 9, 0, false)));
  sched_remove(&w.sched, w.requests[2]);
  assert_true(sched_add(&w.sched, w.requests[3]));
  sched_retract(&w.sched, w.requests[1]); /* whoever ran once is never refused */
  assert_int_equal(w.sched.waiting.n, 2);
  assert_ptr_equal(w.sched.waiting.last, w.requests[1]); /* priority 9 is before it */
  world_close(&w);
}

static void what_never_fits_is_refused(void **state) {
  (void)state;
  struct kv_config kc = {.page_tokens = 4, .n_pages = {8, 5}, .window_tokens = 5, .seqs_max = 4, .tokens_max = 100};
  struct world w;
  struct err e = {0};
  world_open(&w, &kc, &plain, false);
  assert_true(sched_fits(&w.sched, world_request(&w, 4, 29, 0, false), &e)); /* 32 computed tokens: the last is never computed */
  assert_false(sched_fits(&w.sched, world_request(&w, 4, 30, 0, false), &e));
  assert_int_equal(e.code, ERR_BAD_INPUT);
  assert_non_null(strstr(e.msg, "9 pages of the full cache, which has 8"));
  assert_true(sched_fits(&w.sched, world_request(&w, 32, 0, 0, false), &e));
  world_close(&w);
  kc.n_pages[KV_SLIDING] = 3;
  world_open(&w, &kc, &plain, false);
  assert_false(sched_fits(&w.sched, world_request(&w, 20, 1, 0, false), &e));
  assert_non_null(strstr(e.msg, "sliding"));
  world_close(&w);
}

static void all_logits_fit_the_batch(void **state) {
  (void)state;
  struct world w;
  world_open(&w, &roomy, &plain, false); /* out_max 4 */
  struct request *all = world_request(&w, 20, 2, 0, true), *other = world_request(&w, 3, 6, 0, false);
  assert_true(sched_add(&w.sched, all) && sched_add(&w.sched, other));
  for (int i = 0; i < 2; i++) {
    next(&w);
    assert_int_equal(pick_of(&w.sched, all)->n, 3); /* one place is for the other */
    assert_int_equal(pick_of(&w.sched, all)->n_out, 3);
    assert_int_equal(pick_of(&w.sched, other)->n, i == 0 ? 3 : 1);
    assert_int_equal(pick_of(&w.sched, other)->n_out, 1);
    world_compute(&w);
    world_finish_step(&w);
  }
  sched_remove(&w.sched, other);
  next(&w);
  assert_int_equal(pick_of(&w.sched, all)->n, 4);
  world_compute(&w);
  world_finish_step(&w);
  int reported = all->n_reported;
  assert_true(reported > 4);
  sched_retract(&w.sched, all);
  next(&w); /* what was reported needs no logits again, so the chunk is whole */
  assert_int_equal(pick_of(&w.sched, all)->n, 8);
  assert_int_equal(pick_of(&w.sched, all)->n_out, MAX(0, 8 - reported));
  world_compute(&w);
  world_finish_step(&w);
  while (!is_over(&w)) step(&w);
  world_close(&w);
}

/* ---- prompt rows ------------------------------------------------------------------------------------------------------------ */

struct share {
  struct request *r;
  int left, n; /* rows to compute; rows of this step */
};

static int by_left(const void *pa, const void *pb) {
  const struct share *a = pa, *b = pb;
  return a->left != b->left ? a->left - b->left : sched_before(a->r, b->r) ? -1 : 1;
}
static int by_order(const void *pa, const void *pb) {
  return sched_before(((const struct share *)pa)->r, ((const struct share *)pb)->r) ? -1 : 1;
}

/* Rows of every running request by the words of the header, when there are pages and places for all. */
static int expected_rows(const struct sched *s, struct share *v) {
  int n = 0, n_prompts = 0;
  for (struct request *r = s->running.first; r; r = r->next) {
    v[n] = (struct share){.r = r, .left = r->n_tokens - r->n_computed};
    if (request_decodes(r)) v[n].n = 1;
    else n_prompts++;
    n++;
  }
  if (n_prompts == 0) return n;
  int budget = n == 1 ? s->chunk_rows : s->beside_rows, first = 0;
  while (v[first].n) first++;
  const struct request *head = v[first].r;
  int head_left = v[first].left;
  v[first].n = MIN(head_left, n == 1 ? budget : (budget + 1) / 2);
  int others = n == 1 ? 0 : budget / 2, used = v[first].n;
  qsort(v, (size_t)n, sizeof *v, by_left);
  for (int i = 0; i < n; i++) {
    if (v[i].n || v[i].r == head || v[i].r->priority != head->priority || v[i].left >= head_left) continue;
    v[i].n = MIN(others, v[i].left);
    others -= v[i].n;
    used += v[i].n;
  }
  qsort(v, (size_t)n, sizeof *v, by_order);
  for (int i = 0; i < n; i++) {
    int more = MIN(v[i].left - v[i].n, budget - used);
    v[i].n += more;
    used += more;
  }
  return n;
}

static void rows_are_shared_by_the_rule(void **state) {
  (void)state;
  struct kv_config kc = {.page_tokens = 4, .n_pages = {800, 800}, .window_tokens = 20, .seqs_max = 8, .tokens_max = 200};
  uint64_t rng = 4;
  for (int round = 0; round < 60; round++) {
    struct sched_config sc = {.chunk_tokens = test_rand_int(&rng, 1, 40), .max_running = 8, .max_queued = 100};
    sc.rows_max = sc.chunk_tokens + 8, sc.out_max = 8;
    struct world w;
    world_open(&w, &kc, &sc, round % 2);
    for (int i = 0; i < 30 || !is_over(&w); i++) {
      for (int k = test_rand_int(&rng, -1, 2); k > 0 && w.n_requests < 40; k--)
        submit(&w, test_rand_int(&rng, 1, test_rand_int(&rng, 0, 1) ? 12 : 150), test_rand_int(&rng, 1, 30),
               round % 2 == 0 && test_rand_int(&rng, 0, 3) == 0); /* with a tree a retracted one comes back decoding: another rule */
      w.sched.chunk_rows = test_rand_int(&rng, 1, sc.chunk_tokens);
      w.sched.beside_rows = test_rand_int(&rng, 1, w.sched.chunk_rows);
      next(&w);
      struct share v[8];
      int n = expected_rows(&w.sched, v), n_picked = 0; /* who runs is known now, and nobody has advanced */
      for (int k = 0; k < n; k++) {
        const struct sched_pick *p = pick_of(&w.sched, v[k].r);
        assert_int_equal(p ? p->n : 0, v[k].n);
        n_picked += p != NULL;
      }
      assert_int_equal(n_picked, w.sched.n_picks);
      world_finish_step(&w);
    }
    world_close(&w);
  }
}

/* A book among people who talk, and a short question. */
static void a_book_holds_up_nobody(void **state) {
  (void)state;
  enum { BOOK = 30000 };
  struct kv_config kc = {.page_tokens = 16, .n_pages = {3000, 1200}, .window_tokens = 512, .seqs_max = 16, .tokens_max = 32768};
  struct sched_config sc = {.chunk_tokens = 512, .max_running = 16, .max_queued = 100, .rows_max = 528, .out_max = 32, .ahead_tokens = 64};
  struct world w;
  world_open(&w, &kc, &sc, true);
  struct request *talk[10];
  for (int i = 0; i < 10; i++) talk[i] = submit(&w, 20, 300, 0);
  for (int i = 0; i < 3; i++) {
    next(&w);
    world_finish_step(&w);
  }
  for (int i = 0; i < 10; i++) assert_true(request_decodes(talk[i]));
  struct request *book = submit(&w, BOOK, 10, 0), *question = NULL;
  int from = 0;
  for (int i = 0; i < 60; i++) {
    if (i == 7) question = submit(&w, 10, 20, 0);
    next(&w);
    int rows = 0;
    for (int k = 0; k < w.sched.n_picks; k++) rows += w.sched.picks[k].n;
    for (int k = 0; k < 10; k++) assert_int_equal(pick_of(&w.sched, talk[k])->n, 1); /* each in every step */
    assert_true(rows <= 10 + w.sched.beside_rows + 1);
    if (i == 7) assert_int_equal(pick_of(&w.sched, question)->n, 10); /* whole, at once */
    if (i == 7) assert_int_equal(pick_of(&w.sched, book)->n, w.sched.beside_rows - 10);
    if (i == 20) from = book->n_computed;
    world_finish_step(&w);
  }
  assert_int_equal(book->n_computed - from, 40 * w.sched.beside_rows); /* and the book goes on */
  for (int i = 0; i < 10; i++) sched_remove(&w.sched, talk[i]);
  assert_int_equal(question->state, REQUEST_DONE);
  next(&w);
  assert_int_equal(pick_of(&w.sched, book)->n, 512); /* alone it has the whole step */
  world_finish_step(&w);
  world_close(&w);
}

/* ---- the prefix tree ---------------------------------------------------------------------------------------------------------- */

static const struct kv_config wide = {.page_tokens = 4, .n_pages = {600, 600}, .window_tokens = 10, .seqs_max = 20, .tokens_max = 200};
static const struct sched_config many = {
    .chunk_tokens = 16, .max_running = 20, .max_queued = 1000, .rows_max = 36, .out_max = 20, .ahead_tokens = 4};

static struct request *submit_like(struct world *w, const struct request *other, int n_same, int n_prompt, int n_more, int priority) {
  struct request *r = world_request(w, n_prompt, n_more, priority, false);
  world_begin_like(r, other, n_same);
  assert_true(sched_add(&w->sched, r));
  return r;
}

/* 16 users with one system prompt: it is computed once, whenever the others come. */
static void followers_wait_for_their_leader(void **state) {
  (void)state;
  for (int late = 0; late < 2; late++)
    for (int tail = 0; tail < 12; tail += 3) {
      struct world w;
      world_open(&w, &wide, &many, true);
      struct request *leader = submit(&w, 100 + tail, 5, 0);
      if (late) step(&w), step(&w);
      for (int i = 0; i < 15; i++) submit_like(&w, leader, 100, 100 + tail, 5, 0);
      step(&w);
      assert_int_equal(w.sched.running.n, 1);
      while (!is_over(&w)) step(&w);
      for (int i = 1; i < 16; i++) assert_int_equal(w.requests[i]->n_cached, tail ? 100 : 99);
      assert_int_equal(w.n_rows, 100 + tail + 15 * (tail ? tail : 1));
      assert_int_equal(w.sched.counts.prompt, 16 * (100 + tail));
      assert_int_equal(w.sched.counts.cached, 15 * (tail ? 100 : 99));
      assert_int_equal(w.sched.counts.lost_window + w.sched.counts.lost_wanted, 0);
      world_close(&w);
    }
}

/* Others are not held up by those who wait for a leader, and less than a page is not worth waiting for. */
static void followers_are_passed(void **state) {
  (void)state;
  struct world w;
  world_open(&w, &wide, &many, true);
  struct request *leader = submit(&w, 150, 2, 0);
  step(&w);
  struct request *follower = submit_like(&w, leader, 140, 150, 2, 0);
  struct request *other = submit(&w, 20, 2, 0), *hardly = submit_like(&w, leader, 19, 30, 2, 0); /* 16 are computed */
  struct request *stranger = world_request(&w, 150, 2, 0, false), *better = world_request(&w, 150, 2, 1, false);
  world_begin_like(stranger, leader, 150);
  stranger->space.b = 7; /* somebody else's: shares nothing */
  assert_true(sched_add(&w.sched, stranger));
  world_begin_like(better, leader, 150); /* waits for nobody of lower priority */
  assert_true(sched_add(&w.sched, better));
  step(&w);
  assert_int_equal(follower->state, REQUEST_WAITING);
  assert_int_equal(better->state, REQUEST_RUNNING);
  assert_int_equal(other->state, REQUEST_RUNNING);
  assert_int_equal(hardly->state, REQUEST_RUNNING);
  assert_int_equal(stranger->state, REQUEST_RUNNING);
  while (!is_over(&w)) step(&w);
  assert_int_equal(stranger->n_cached, 0);
  assert_int_equal(follower->n_cached, 140);
  assert_int_equal(better->n_cached, 16);
  world_close(&w);
}

/* Requests that want their logits never reuse anything; a stream of them must not keep a follower waiting for ever. */
static void a_follower_does_not_starve(void **state) {
  (void)state;
  struct world w;
  world_open(&w, &wide, &many, true);
  struct request *leader = submit(&w, 100, 2, 0), *follower = submit_like(&w, leader, 100, 120, 2, 0);
  for (int i = 0; i < 200 && follower->state != REQUEST_DONE; i++) {
    struct request *r = world_request(&w, 120, 0, 0, true);
    world_begin_like(r, follower, 120);
    assert_true(sched_add(&w.sched, r));
    step(&w);
  }
  assert_int_equal(follower->state, REQUEST_DONE);
  assert_true(w.sched.counts.lost_wanted > 0);
  world_close(&w);
}

/* A thousand followers are told apart once, not in every step. */
static void a_long_queue_costs_little(void **state) {
  (void)state;
  struct kv_config kc = wide;
  struct sched_config sc = many;
  kc.tokens_max = 2000, kc.n_pages[KV_FULL] = 3000;
  struct world w;
  world_open(&w, &kc, &sc, true);
  struct request *leader = submit(&w, 1900, 2, 0);
  for (int i = 0; i < 900; i++) submit_like(&w, leader, 1800, 1900, 2, 0);
  for (int i = 0; i < 20; i++) {
    next(&w);
    world_finish_step(&w);
    int n_known = 0;
    for (struct request *r = w.sched.waiting.first; r; r = r->next) n_known += r->leader == leader->number && r->n_shared == 1800;
    assert_int_equal(n_known,
                     MIN(900, (i + 1) * 64 - 1)); /* a bounded number is looked at in each step; the first one looks at the leader, too */
    if (n_known == 900) w.requests[900]->tokens[5]--; /* would be seen if it were compared again */
  }
  assert_int_equal(w.requests[900]->leader, leader->number);
  w.requests[900]->tokens[5]++;
  world_close(&w);
}

static void what_is_lost_is_counted(void **state) {
  (void)state;
  struct world w;
  world_open(&w, &wide, &many, true);
  const struct sched_counts *c = &w.sched.counts;
  struct request *a = submit(&w, 61, 1, 0);
  while (!is_over(&w)) step(&w);
  struct request *all = world_request(&w, 61, 1, 0, true); /* the same prompt, but its logits are wanted */
  world_begin_like(all, a, 61);
  assert_true(sched_add(&w.sched, all));
  while (!is_over(&w)) step(&w);
  assert_int_equal(c->lost_wanted, 60);
  assert_int_equal(all->n_cached, 0);
  struct request *from = world_request(&w, 61, 1, 0, false); /* from row 30 on they are wanted */
  world_begin_like(from, a, 61);
  from->n_reuse_max = 30;
  assert_true(sched_add(&w.sched, from));
  while (!is_over(&w)) step(&w);
  assert_int_equal(from->n_cached, 30);
  assert_int_equal(c->lost_wanted, 60 + 30);
  assert_int_equal(c->lost_window, 0);
  struct kv_short sliding = {.pages = {0, 600}};
  radix_evict(w.radix, sliding); /* no window is left anywhere: tombstones go with their leaves */
  struct request *b = submit_like(&w, a, 61, 70, 1, 0);
  while (!is_over(&w)) step(&w);
  assert_int_equal(b->n_cached, 0);
  assert_int_equal(c->prompt, 61 * 3 + 70);
  assert_int_equal(c->cached, 30);
  world_close(&w);

  struct kv_config kc = wide; /* parting far before the end, when everything but the end's window has been evicted */
  kc.n_pages[KV_SLIDING] = 15;
  world_open(&w, &kc, &many, true);
  a = submit(&w, 120, 1, 0);
  while (!is_over(&w)) step(&w);
  b = submit_like(&w, a, 60, 80, 1, 0);
  while (!is_over(&w)) step(&w);
  assert_int_equal(b->n_cached, 0);
  assert_int_equal(w.sched.counts.lost_window, 60);
  struct request *again = submit_like(&w, a, 120, 130, 1, 0);
  while (!is_over(&w)) step(&w);
  assert_int_equal(again->n_cached, 120);
  world_close(&w);
}

/* Nothing is computed twice because of a retraction while there is room, and cached_tokens stay what they were. */
static void retraction_costs_nothing_with_a_tree(void **state) {
  (void)state;
  struct world w;
  world_open(&w, &wide, &many, true);
  struct request *a = submit(&w, 50, 30, 0);
  uint64_t n_rows = 0;
  for (int i = 0; !is_over(&w); i++) {
    if (a->state == REQUEST_RUNNING && i % 3 == 2) {
      int had = a->n_computed;
      sched_retract(&w.sched, a);
      next(&w);
      assert_int_equal(a->n_computed, MIN(had, a->n_tokens - 1)); /* picked up to the token */
      world_compute(&w);
      world_finish_step(&w);
    } else {
      step(&w);
    }
    n_rows = w.n_rows;
  }
  assert_true(a->n_retracted > 5);
  assert_int_equal(n_rows, 50);
  assert_int_equal(a->n_cached, 0);
  assert_int_equal(w.sched.counts.prompt, 50);
  assert_int_equal(w.sched.counts.cached, 0);
  struct request *next_turn = submit_like(&w, a, 80, 90, 3, 0); /* all that was computed of the first turn; the last token was not */
  while (!is_over(&w)) step(&w);
  assert_int_equal(next_turn->n_cached, 79);
  world_close(&w);
}

/* ---- priorities, shortage ------------------------------------------------------------------------------------------------------- */

static void higher_priority_takes_a_place(void **state) {
  (void)state;
  for (int tree = 0; tree < 2; tree++) {
    struct world w;
    struct sched_config sc = plain;
    sc.max_running = 2;
    world_open(&w, &roomy, &sc, tree);
    struct request *a = submit(&w, 3, 12, 0), *b = submit(&w, 3, 12, 0);
    step(&w), step(&w);
    struct request *equal = submit(&w, 3, 2, 0), *high = submit(&w, 3, 2, 1);
    step(&w);
    assert_int_equal(high->state, REQUEST_RUNNING);
    assert_int_equal(a->state, REQUEST_RUNNING);
    assert_int_equal(b->state, REQUEST_WAITING);
    assert_int_equal(equal->state, REQUEST_WAITING);
    assert_int_equal(b->n_tokens, 5); /* its row of this step was given back */
    while (!is_over(&w)) step(&w);
    assert_int_equal(w.sched.n_retracted, 1);
    assert_int_equal(w.n_finished, 4);
    world_close(&w);
  }
}

/* Nobody is sent away for one who would not fit anyway. */
static void no_place_is_taken_in_vain(void **state) {
  (void)state;
  struct kv_config kc = {.page_tokens = 1, .n_pages = {40, 0}, .seqs_max = 4, .tokens_max = 40};
  struct world w;
  world_open(&w, &kc, &plain, true);
  struct request *keeps = submit(&w, 20, 15, 5), *low = submit(&w, 3, 5, 0);
  step(&w), step(&w), step(&w), step(&w);
  assert_true(low->state == REQUEST_RUNNING && keeps->state == REQUEST_RUNNING);
  struct request *big = submit(&w, 30, 1, 3);
  step(&w);
  assert_int_equal(low->state, REQUEST_RUNNING);
  assert_int_equal(big->state, REQUEST_WAITING);
  while (!is_over(&w)) step(&w);
  assert_int_equal(low->n_retracted, 0);
  world_close(&w);
}

/* More clients than pages: some wait, some are refused, all the others finish. */
static void more_requests_than_pages(void **state) {
  (void)state;
  struct kv_config kc = {.page_tokens = 4, .n_pages = {20, 10}, .window_tokens = 5, .seqs_max = 4, .tokens_max = 40};
  for (int tree = 0; tree < 2; tree++) {
    struct world w;
    world_open(&w, &kc, &plain, tree);
    int n_refused = 0, n_taken = 0;
    for (int i = 0; i < 40; i++) {
      struct request *r = world_request(&w, 24, 16, 0, false);
      if (i % 2 && tree) world_begin_like(r, w.requests[0], 20);
      *(sched_add(&w.sched, r) ? &n_taken : &n_refused) += 1;
      step(&w);
    }
    while (!is_over(&w)) step(&w);
    assert_int_equal(w.n_finished, n_taken);
    assert_true(n_refused > 5 && n_taken > 8);
    world_close(&w);
  }
}

static void init_reports_lack_of_memory(void **state) {
  (void)state;
  for (int n = 1; n <= 2; n++) {
    struct sched s;
    struct err e = {0};
    mem_fail_after(n);
    assert_int_equal(sched_init(&s, &plain, NULL, NULL, &e), -1);
    assert_int_equal(e.code, ERR_NO_MEMORY);
    sched_free(&s);
  }
}

static void check_sees_damage(void **state) {
  (void)state;
  struct world w;
  struct err e;
  world_open(&w, &roomy, &plain, false);
  struct request *a = submit(&w, 4, 9, 0), *b = submit(&w, 4, 9, 0);
  step(&w);
  assert_true(sched_check(&w.sched, &e));
  a->n_computed--;
  assert_false(sched_check(&w.sched, &e));
  a->n_computed++;
  b->priority = 1;
  assert_false(sched_check(&w.sched, &e));
  b->priority = 0;
  w.sched.running.n++;
  assert_false(sched_check(&w.sched, &e));
  w.sched.running.n--;
  a->state = REQUEST_WAITING;
  assert_false(sched_check(&w.sched, &e));
  a->state = REQUEST_RUNNING;
  int limit = a->n_limit;
  a->n_limit = a->n_tokens;
  assert_false(sched_check(&w.sched, &e));
  a->n_limit = limit;
  assert_true(sched_check(&w.sched, &e));
  world_close(&w);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(random_loads),
    cmocka_unit_test(random_loads_with_a_tree),
    cmocka_unit_test(prompts_share_the_chunk),
    cmocka_unit_test(higher_priority_goes_first),
    cmocka_unit_test(shortage_retracts_the_last),
    cmocka_unit_test(admission_counts_what_others_need),
    cmocka_unit_test(short_prompts_take_what_is_left),
    cmocka_unit_test(long_prompts_share_the_sliding_pool),
    cmocka_unit_test(ahead_tokens_spare_retractions),
    cmocka_unit_test(queue_has_an_end),
    cmocka_unit_test(what_never_fits_is_refused),
    cmocka_unit_test(all_logits_fit_the_batch),
    cmocka_unit_test(rows_are_shared_by_the_rule),
    cmocka_unit_test(a_book_holds_up_nobody),
    cmocka_unit_test(followers_wait_for_their_leader),
    cmocka_unit_test(followers_are_passed),
    cmocka_unit_test(a_follower_does_not_starve),
    cmocka_unit_test(a_long_queue_costs_little),
    cmocka_unit_test(what_is_lost_is_counted),
    cmocka_unit_test(retraction_costs_nothing_with_a_tree),
    cmocka_unit_test(higher_priority_takes_a_place),
    cmocka_unit_test(no_place_is_taken_in_vain),
    cmocka_unit_test(more_requests_than_pages),
    cmocka_unit_test(init_reports_lack_of_memory),
    cmocka_unit_test(check_sees_damage),
};
TEST_MAIN(tests)
