/* sched.c — choosing the rows of a step. The rules are in sched.h. */
#include "engine/sched.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* ---- lists ---------------------------------------------------------------------------------------------------------------- */

static bool comes_before(const struct request *a, const struct request *b) {
  return a->priority != b->priority ? a->priority > b->priority : a->number < b->number;
}

static void list_insert(struct request_list *l, struct request *r) {
  struct request *after = l->last; /* most arrive at the end */
  while (after && comes_before(r, after)) after = after->prev;
  r->prev = after;
  r->next = after ? after->next : l->first;
  *(r->prev ? &r->prev->next : &l->first) = r;
  *(r->next ? &r->next->prev : &l->last) = r;
  l->n++;
}

static void list_remove(struct request_list *l, struct request *r) {
  *(r->prev ? &r->prev->next : &l->first) = r->next;
  *(r->next ? &r->next->prev : &l->last) = r->prev;
  r->prev = r->next = NULL;
  l->n--;
}

/* ---- life ----------------------------------------------------------------------------------------------------------------- */

int sched_init(struct sched *s, const struct sched_config *c, struct kv *kv, struct radix *radix, struct err *e) {
  memset(s, 0, sizeof *s);
  CHECK(c->chunk_tokens >= 1 && c->max_running >= 1 && c->max_queued >= 0 && c->ahead_tokens >= 0);
  CHECK(c->rows_max >= c->chunk_tokens + c->max_running && c->out_max >= c->max_running);
  s->config = *c;
  s->kv = kv;
  s->radix = radix;
  s->chunk_rows = s->beside_rows = c->chunk_tokens;
  s->picks = mem_try_alloc((size_t)c->max_running * sizeof *s->picks);
  if (!s->picks) return err_set(e, ERR_NO_MEMORY, "scheduler: no memory for %d running requests", c->max_running);
  return 0;
}

void sched_free(struct sched *s) {
  CHECK(s->running.n == 0 && s->waiting.n == 0);
  free(s->picks);
  memset(s, 0, sizeof *s);
}

bool sched_fits(const struct sched *s, const struct request *r, struct err *e) {
  static const char *const kinds[KV_KINDS] = {"full", "sliding"};
  struct kv_short need = kv_pages_for(s->kv, request_kv_tokens(r), s->config.chunk_tokens);
  struct kv_stats have = kv_stats(s->kv);
  for (int k = 0; k < KV_KINDS; k++) {
    if (need.pages[k] <= have.n_pages[k]) continue;
    err_set(e, ERR_BAD_INPUT, "request of up to %d tokens: needs %d pages of the %s cache, which has %d", r->n_limit, need.pages[k],
            kinds[k], have.n_pages[k]);
    return false;
  }
  return true;
}

bool sched_add(struct sched *s, struct request *r) {
  int places = s->config.max_queued + s->config.max_running - s->running.n; /* a free running place is as good as one in the queue */
  if (s->waiting.n >= places) return false;
  r->state = REQUEST_WAITING;
  list_insert(&s->waiting, r);
  return true;
}

void sched_remove(struct sched *s, struct request *r) {
  CHECK(r->state != REQUEST_DONE);
  list_remove(r->state == REQUEST_RUNNING ? &s->running : &s->waiting, r);
  kv_seq_close(s->kv, &r->kv);
  r->state = REQUEST_DONE;
}

void sched_retract(struct sched *s, struct request *r) {
  CHECK(r->state == REQUEST_RUNNING);
  list_remove(&s->running, r);
  kv_seq_close(s->kv, &r->kv);
  r->n_computed = 0;
  r->n_retracted++;
  s->n_retracted++;
  r->state = REQUEST_WAITING;
  list_insert(&s->waiting, r);
}

/* ---- one step --------------------------------------------------------------------------------------------------------------- */

static void pick(struct sched *s, struct request *r, int n) {
  CHECK(s->n_picks < s->config.max_running);
  s->picks[s->n_picks++] = (struct sched_pick){.r = r, .n = n, .n_out = request_out_rows(r, n)};
}

static bool reserve(struct sched *s, struct request *r, int n) {
  struct kv_short lack = kv_reserve(s->kv, &r->kv, n);
  return lack.pages[KV_FULL] == 0 && lack.pages[KV_SLIDING] == 0;
}

/* Reserve n rows or as many as there are pages for; returns their number. */
static int reserve_some(struct sched *s, struct request *r, int n) {
  struct kv_short lack = kv_reserve(s->kv, &r->kv, n);
  int missing = MAX(lack.pages[KV_FULL], lack.pages[KV_SLIDING]);
  if (missing == 0) return n;
  int page = kv_page_tokens(s->kv);
  int fit = (div_up(r->n_computed + n, page) - missing) * page - r->n_computed; /* up to the end of the last page that there is */
  if (fit <= 0) return 0;
  CHECK(reserve(s, r, fit));
  return fit;
}

static void pick_decoding(struct sched *s) {
  for (struct request *r = s->running.first; r; r = r->next) {
    if (!request_decodes(r)) continue;
    while (!reserve(s, r, 1)) {
      struct request *victim = s->running.last; /* never one that is picked already: those come before r */
      CHECK(victim != s->running.first);        /* alone it fits: sched_fits */
      sched_retract(s, victim);
      if (victim == r) return; /* it was the last */
    }
    pick(s, r, 1);
  }
}

/* Pages that r needs for what is known of it and room to grow. */
static struct kv_short pages_wanted(const struct sched *s, const struct request *r) {
  int n = MIN(r->n_tokens + s->config.ahead_tokens, MAX(request_kv_tokens(r), r->n_tokens));
  return kv_pages_for(s->kv, n, request_decodes(r) ? 1 : s->config.chunk_tokens);
}

static int pages_held(const struct sched *s, const struct request *r, enum kv_kind kind) {
  return kind == KV_FULL ? r->kv.n_pairs : r->kv.n_pairs - r->kv.swa_from / kv_page_tokens(s->kv);
}

static bool fits_beside_running(const struct sched *s, const struct request *newcomer) {
  struct kv_stats st = kv_stats(s->kv);
  struct kv_short need = pages_wanted(s, newcomer);
  for (const struct request *r = s->running.first; r; r = r->next) {
    struct kv_short wanted = pages_wanted(s, r);
    for (int k = 0; k < KV_KINDS; k++) need.pages[k] += MAX(0, wanted.pages[k] - pages_held(s, r, k));
  }
  for (int k = 0; k < KV_KINDS; k++)
    if (st.n_pages[k] > 0 && need.pages[k] > st.n_pages[k] - st.n_used[k]) return false;
  return true;
}

/* The first waiting request may run now. */
static bool may_admit(const struct sched *s) {
  return s->running.n < s->config.max_running && (s->running.n == 0 || fits_beside_running(s, s->waiting.first));
}

static struct request *admit(struct sched *s) {
  struct request *r = s->waiting.first;
  CHECK(kv_seq_open(s->kv, &r->kv));
  list_remove(&s->waiting, r);
  r->state = REQUEST_RUNNING;
  list_insert(&s->running, r);
  return r;
}

/* The most rows of r whose wanted logits find a place in the batch; one place is kept for everybody who may still come in this step. */
static int limit_to_out(const struct sched *s, const struct request *r, int n) {
  int places = s->config.out_max - (MIN(s->running.n + s->waiting.n, s->config.max_running) - s->n_picks - 1);
  for (int i = 0; i < s->n_picks; i++) places -= s->picks[i].n_out;
  int excess = request_out_rows(r, n) - places;
  return excess > 0 ? n - excess : n;
}

/* Pick up to n rows of r; returns how many there were pages for. */
static int pick_prompt(struct sched *s, struct request *r, int n) {
  n = limit_to_out(s, r, MIN(n, r->n_tokens - r->n_computed));
  int got = reserve_some(s, r, n);
  while (got == 0 && s->n_picks == 0) { /* r is the first of all, and nobody is going to free a page */
    struct request *victim = s->running.last;
    CHECK(victim != r); /* alone it fits: sched_fits */
    sched_retract(s, victim);
    got = reserve_some(s, r, n);
  }
  if (got > 0) pick(s, r, got);
  return got;
}

/* Running prompts and newcomers in one order. Once one must wait, the door is shut: nobody passes it, and nobody is inserted before a
 * prompt that is picked already. */
static void pick_prompts(struct sched *s) {
  int left = s->config.chunk_tokens;
  bool door_open = true;
  for (struct request *r = s->running.first; left > 0; r = r->next) {
    while (r && request_decodes(r)) r = r->next; /* picked already */
    const struct request *newcomer = door_open ? s->waiting.first : NULL;
    if (newcomer && (!r || comes_before(newcomer, r))) {
      door_open = may_admit(s);
      if (door_open) r = admit(s);
    }
    if (!r) return;
    left -= pick_prompt(s, r, left);
  }
}

int sched_next(struct sched *s) {
  s->n_picks = 0;
  for (struct request *r = s->running.first; r; r = r->next) kv_drop_window(s->kv, &r->kv, r->n_computed);
  pick_decoding(s);
  pick_prompts(s);
  CHECK(s->n_picks > 0 || (s->running.n == 0 && s->waiting.n == 0)); /* a step without rows would repeat for ever */
  return s->n_picks;
}

void sched_commit(struct sched *s, const struct sched_pick *p) {
  kv_commit(s->kv, &p->r->kv, p->n);
  p->r->n_computed += p->n;
}

/* ---- invariants --------------------------------------------------------------------------------------------------------------- */

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
  if (state == REQUEST_WAITING && (r->kv.pairs || r->n_computed)) return bad(e, r, "waits and holds a cache", r->n_computed);
  if (state == REQUEST_RUNNING && !r->kv.pairs) return bad(e, r, "runs without a cache", r->n_computed);
  return 0;
}

static int check_list(const struct request_list *l, enum request_state state, struct err *e) {
  int n = 0;
  const struct request *prev = NULL;
  for (const struct request *r = l->first; r; prev = r, r = r->next, n++) {
    if (check_request(r, state, e)) return -1;
    if (r->prev != prev) return bad(e, r, "its list is torn", n);
    if (prev && !comes_before(prev, r)) return bad(e, r, "its list is out of order", n);
  }
  if (l->last != prev || l->n != n) return err_set(e, ERR_INTERNAL, "scheduler: a list counts %d requests and has %d", l->n, n);
  return 0;
}

bool sched_check(const struct sched *s, struct err *e) {
  if (check_list(&s->running, REQUEST_RUNNING, e) || check_list(&s->waiting, REQUEST_WAITING, e)) return false;
  if (s->running.n > s->config.max_running)
    return err_set(e, ERR_INTERNAL, "scheduler: %d requests run, expected at most %d", s->running.n, s->config.max_running), false;
  struct kv_seq **seqs = xcalloc((size_t)s->running.n + 1, sizeof *seqs);
  int n = 0;
  for (struct request *r = s->running.first; r; r = r->next) seqs[n++] = &r->kv;
  bool ok = kv_check(s->kv, seqs, n, e);
  free(seqs);
  return ok;
}
