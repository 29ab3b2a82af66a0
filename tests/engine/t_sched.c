/* t_sched.c — who is computed when: random loads over tiny pools, and the rules of sched.h one by one. */
#include "engine/world.h"

static bool comes_before(const struct request *a, const struct request *b) {
  return a->priority != b->priority ? a->priority > b->priority : a->number < b->number;
}

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
  struct sched *s = &w->sched;
  bool ran[WORLD_REQUESTS_MAX], decoded[WORLD_REQUESTS_MAX];
  for (int i = 0; i < w->n_requests; i++) {
    const struct request *r = w->requests[i];
    ran[i] = r->state == REQUEST_RUNNING;
    decoded[i] = ran[i] && r->n_computed + 1 == r->n_tokens && r->n_tokens > r->n_prompt;
  }
  const struct request *first = s->running.first;
  int n_picks = sched_next(s);
  assert_int_equal(n_picks, s->n_picks);
  world_check(w);
  if (first) assert_int_equal(first->state, REQUEST_RUNNING); /* the first in the order is never retracted */

  int rows = 0, prompt_rows = 0, outs = 0;
  for (int i = 0; i < s->n_picks; i++) {
    const struct sched_pick *p = &s->picks[i];
    int at = (int)p->r->number - 1, end = p->r->n_computed + p->n;
    assert_int_equal(p->r->state, REQUEST_RUNNING);
    assert_true(p->n >= 1 && end <= p->r->n_tokens && p->r->kv.n_reserved >= end);
    rows += p->n;
    outs += p->n_out;
    if (!decoded[at]) prompt_rows += p->n;
    int want = 0; /* out rows by the slow definition */
    for (int pos = p->r->n_computed; pos < end; pos++)
      want += (p->r->on_logits && pos < p->r->n_prompt && pos >= p->r->n_reported) ||
              (pos == p->r->n_tokens - 1 && p->r->n_tokens < p->r->n_limit);
    assert_int_equal(p->n_out, want);
  }
  assert_true(rows <= s->config.rows_max && prompt_rows <= s->config.chunk_tokens && outs <= s->config.out_max);

  for (int i = 0; i < w->n_requests; i++) {
    struct request *r = w->requests[i];
    const struct sched_pick *p = pick_of(s, r);
    if (decoded[i] && r->state == REQUEST_RUNNING) {
      assert_non_null(p);
      assert_int_equal(p->n, 1);
    }
    if (ran[i] || r->state != REQUEST_RUNNING) continue;
    for (struct request *o = s->waiting.first; o; o = o->next) /* admitted past nobody but those that were retracted just now */
      assert_true(comes_before(r, o) || ran[o->number - 1]);
  }
  if (s->running.n || s->waiting.n) assert_true(s->n_picks > 0);
}

static void random_loads(void **state) {
  (void)state;
  uint64_t rng = 1, retracted = 0;
  for (int round = 0; round < 400; round++) {
    struct kv_config kc;
    struct sched_config sc;
    int tokens_max = test_rand_int(&rng, 4, 24);
    world_random(&rng, tokens_max, &kc, &sc);
    struct world w;
    world_open(&w, &kc, &sc);
    int n = test_rand_int(&rng, 1, 24), budget = 0, submitted = 0, aborted = 0;
    bool priorities = test_rand_int(&rng, 0, 1), aborts = test_rand_int(&rng, 0, 3) == 0;
    while (submitted < n || w.sched.running.n || w.sched.waiting.n) {
      while (submitted < n && test_rand_int(&rng, 0, 2)) {
        int prompt = test_rand_int(&rng, 1, tokens_max);
        struct request *r = world_request(&w, prompt, test_rand_int(&rng, 0, tokens_max - prompt),
                                          priorities ? test_rand_int(&rng, 0, 2) : 0, test_rand_int(&rng, 0, 3) == 0);
        assert_true(sched_fits(&w.sched, r, NULL));
        assert_true(sched_add(&w.sched, r));
        budget += r->n_limit;
        submitted++;
      }
      if (aborts && w.n_requests && test_rand_int(&rng, 0, 9) == 0) {
        struct request *r = w.requests[test_rand_int(&rng, 0, w.n_requests - 1)];
        if (r->state != REQUEST_DONE) sched_remove(&w.sched, r), aborted++;
      }
      if (w.sched.running.n && test_rand_int(&rng, 0, 19) == 0) sched_retract(&w.sched, w.sched.running.last);
      next(&w);
      world_compute(&w);
      world_finish_step(&w);
      world_check(&w);
      assert_true(w.n_steps < (uint64_t)(budget + 8) * 30); /* nobody starves, nothing turns in circles */
    }
    assert_int_equal(w.n_finished + aborted, n);
    for (int i = 0; i < n; i++) /* tokens went through retractions unharmed */
      for (int t = 0; t < w.requests[i]->n_tokens; t++) assert_int_equal(w.requests[i]->tokens[t], (i + 1) * 1000 + t);
    retracted += w.sched.n_retracted;
    world_close(&w);
  }
  assert_true(retracted > 200); /* the pools were small enough to matter */
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
  world_open(&w, &roomy, &plain);
  struct request *a = submit(&w, 5, 4, 0), *b = submit(&w, 9, 4, 0), *c = submit(&w, 2, 4, 0);
  next(&w);
  assert_int_equal(w.sched.n_picks, 2);
  assert_int_equal(pick_of(&w.sched, a)->n, 5);
  assert_int_equal(pick_of(&w.sched, b)->n, 3); /* cut where the chunk ends */
  assert_int_equal(pick_of(&w.sched, b)->n_out, 0);
  assert_int_equal(c->state, REQUEST_WAITING); /* this step has no row for it */
  world_compute(&w);
  world_finish_step(&w);
  next(&w);
  assert_int_equal(pick_of(&w.sched, a)->n, 1); /* decodes beside the others */
  assert_int_equal(pick_of(&w.sched, b)->n, 6);
  assert_int_equal(pick_of(&w.sched, c)->n, 2);
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
  world_open(&w, &roomy, &sc);
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
    world_open(&w, &kc, &plain);
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
    while (w.sched.running.n || w.sched.waiting.n) step(&w);
    assert_int_equal(w.n_finished, 2);
    assert_int_equal(keeps->n_retracted, 0);
    world_close(&w);
  }
}

/* Pool of 20 tokens: a prompt of 15 is under way, another of 6 must wait for it, whatever its priority. */
static void admission_counts_what_others_need(void **state) {
  (void)state;
  struct kv_config kc = {.page_tokens = 1, .n_pages = {20, 0}, .seqs_max = 4, .tokens_max = 20};
  struct sched_config sc = plain;
  sc.chunk_tokens = 4;
  struct world w;
  world_open(&w, &kc, &sc);
  struct request *a = submit(&w, 15, 1, 0);
  step(&w);
  struct request *six = submit(&w, 6, 1, 9);
  step(&w);
  assert_int_equal(a->n_computed, 8);
  assert_int_equal(six->state, REQUEST_WAITING);
  struct request *five = submit(&w, 5, 1, 10); /* this one does fit */
  step(&w);
  assert_int_equal(five->n_computed, 4);
  assert_int_equal(a->n_computed, 8);
  while (w.sched.running.n || w.sched.waiting.n) step(&w);
  assert_int_equal(w.sched.n_retracted, 0);
  world_close(&w);
}

/* A prompt takes the pages that there are, to the last token. */
static void short_prompts_take_what_is_left(void **state) {
  (void)state;
  struct kv_config kc = {.page_tokens = 4, .n_pages = {6, 0}, .seqs_max = 4, .tokens_max = 24};
  struct world w;
  world_open(&w, &kc, &plain);
  struct request *a = submit(&w, 8, 12, 0);
  while (a->n_tokens < 18) step(&w); /* holds 5 pages of 6 */
  struct request *b = submit(&w, 16, 1, 0);
  assert_true(kv_seq_open(w.kv, &b->kv)); /* as if it had been let in before a grew */
  w.sched.waiting = (struct request_list){0};
  w.sched.running = (struct request_list){.first = a, .last = b, .n = 2};
  a->next = b, b->prev = a;
  b->state = REQUEST_RUNNING;
  step(&w);
  assert_int_equal(b->n_computed, 4);
  while (w.sched.running.n || w.sched.waiting.n) step(&w);
  assert_int_equal(w.n_finished, 2);
  world_close(&w);
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
    world_open(&w, &kc, &sc);
    for (int k = 0; k < 30; k++) submit(&w, 4, 30, 0);
    while (w.sched.running.n || w.sched.waiting.n) step(&w);
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
  world_open(&w, &roomy, &sc);
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
  world_open(&w, &kc, &plain);
  assert_true(sched_fits(&w.sched, world_request(&w, 4, 29, 0, false), &e)); /* 32 computed tokens: the last is never computed */
  assert_false(sched_fits(&w.sched, world_request(&w, 4, 30, 0, false), &e));
  assert_int_equal(e.code, ERR_BAD_INPUT);
  assert_non_null(strstr(e.msg, "9 pages of the full cache, which has 8"));
  assert_true(sched_fits(&w.sched, world_request(&w, 32, 0, 0, false), &e));
  world_close(&w);
  kc.n_pages[KV_SLIDING] = 3;
  world_open(&w, &kc, &plain);
  assert_false(sched_fits(&w.sched, world_request(&w, 20, 1, 0, false), &e));
  assert_non_null(strstr(e.msg, "sliding"));
  world_close(&w);
}

static void all_logits_fit_the_batch(void **state) {
  (void)state;
  struct world w;
  world_open(&w, &roomy, &plain); /* out_max 4 */
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
  while (w.sched.running.n || w.sched.waiting.n) step(&w);
  world_close(&w);
}

static void init_reports_lack_of_memory(void **state) {
  (void)state;
  struct sched s;
  struct err e = {0};
  mem_fail_after(1);
  assert_int_equal(sched_init(&s, &plain, NULL, &e), -1);
  assert_int_equal(e.code, ERR_NO_MEMORY);
  sched_free(&s);
}

static void check_sees_damage(void **state) {
  (void)state;
  struct world w;
  struct err e;
  world_open(&w, &roomy, &plain);
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
    cmocka_unit_test(prompts_share_the_chunk),
    cmocka_unit_test(higher_priority_goes_first),
    cmocka_unit_test(shortage_retracts_the_last),
    cmocka_unit_test(admission_counts_what_others_need),
    cmocka_unit_test(short_prompts_take_what_is_left),
    cmocka_unit_test(ahead_tokens_spare_retractions),
    cmocka_unit_test(queue_has_an_end),
    cmocka_unit_test(what_never_fits_is_refused),
    cmocka_unit_test(all_logits_fit_the_batch),
    cmocka_unit_test(init_reports_lack_of_memory),
    cmocka_unit_test(check_sees_damage),
};
TEST_MAIN(tests)
