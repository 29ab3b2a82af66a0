/* sched.c — choosing the rows of a step. The rules are in sched.h. */
#include "engine/sched.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/sched_impl.h"

enum { BESIDE_ROWS_LEAST = 32 };

/* ---- lists ---------------------------------------------------------------------------------------------------------------- */

void sched_list_insert(struct request_list *l, struct request *r) {
  struct request *after = l->last; /* most arrive at the end */
  while (after && sched_before(r, after)) after = after->prev;
  r->prev = after;
  r->next = after ? after->next : l->first;
  *(r->prev ? &r->prev->next : &l->first) = r;
  *(r->next ? &r->next->prev : &l->last) = r;
  l->n++;
}

void sched_list_remove(struct request_list *l, struct request *r) {
  *(r->prev ? &r->prev->next : &l->first) = r->next;
  *(r->next ? &r->next->prev : &l->last) = r->prev;
  r->prev = r->next = NULL;
  l->n--;
}

/* ---- life ----------------------------------------------------------------------------------------------------------------- */

int sched_init(struct sched *s, const struct sched_config *c, struct kv *kv, struct radix *radix, struct err *e) {
  memset(s, 0, sizeof *s);
  CHECK(c->chunk_tokens >= 1 && c->max_running >= 1 && c->max_queued >= 0 && c->ahead_tokens >= 0);
  s->config = *c;
  s->config.step_tokens = MAX(c->step_tokens, c->chunk_tokens);
  CHECK(c->rows_max >= s->config.step_tokens + c->max_running && c->out_max >= c->max_running);
  s->kv = kv;
  s->radix = radix;
  s->chunk_rows = c->chunk_tokens;
  s->beside_rows = MIN(c->chunk_tokens, MAX(BESIDE_ROWS_LEAST, c->chunk_tokens / 4));
  s->picks = mem_try_alloc((size_t)c->max_running * sizeof *s->picks);
  s->copies = mem_try_alloc((size_t)c->max_running * KV_KINDS * sizeof *s->copies);
  if (s->picks && s->copies) return 0;
  sched_free(s);
  return err_set(e, ERR_NO_MEMORY, "scheduler: no memory for %d running requests", c->max_running);
}

void sched_free(struct sched *s) {
  CHECK(s->running.n == 0 && s->waiting.n == 0);
  free(s->picks);
  free(s->copies);
  memset(s, 0, sizeof *s);
}

bool sched_fits(const struct sched *s, const struct request *r, struct err *e) {
  static const char *const kinds[KV_KINDS] = {"full", "sliding"};
  struct kv_short need = kv_pages_for(s->kv, request_kv_tokens(r), s->config.step_tokens);
  struct kv_stats have = kv_stats(s->kv);
  for (int k = 0; k < KV_KINDS; k++) {
    if (need.pages[k] <= have.n_pages[k]) continue;
    err_set(e, ERR_BAD_INPUT, "request of up to %d tokens: needs %d pages of the %s cache, which has %d", r->n_limit, need.pages[k],
            kinds[k], have.n_pages[k]);
    return false;
  }
  return sched_fits_media(s, r, e);
}

bool sched_add(struct sched *s, struct request *r) {
  int places = s->config.max_queued + s->config.max_running - s->running.n; /* a free running place is as good as one in the queue */
  if (s->waiting.n >= places) return false;
  r->state = REQUEST_WAITING;
  sched_list_insert(&s->waiting, r);
  return true;
}

/* Give back what r holds. The tree keeps it as far as it has room, and its end as a place to go on from. */
static void give_back(struct sched *s, struct request *r, bool resumable) {
  if (r->state == REQUEST_RUNNING && s->radix && resumable && r->n_computed > r->n_adopted) {
    kv_cancel(s->kv, &r->kv);
    radix_mark(s->radix, r->space, &r->kv, r->tokens);
  }
  kv_seq_close(s->kv, &r->kv);
  sched_let_go(s, r, INT_MAX);
  r->n_picked = r->n_late = r->n_draft = 0;
}

void sched_remove(struct sched *s, struct request *r) {
  CHECK(r->state != REQUEST_DONE);
  give_back(s, r, r->finish != CYGNET_FINISH_ERROR);
  sched_list_remove(r->state == REQUEST_RUNNING ? &s->running : &s->waiting, r);
  r->state = REQUEST_DONE;
}

void sched_retract(struct sched *s, struct request *r) {
  CHECK(r->state == REQUEST_RUNNING);
  give_back(s, r, true);
  sched_list_remove(&s->running, r);
  r->n_computed = 0;
  r->n_retracted++;
  s->n_retracted++;
  r->state = REQUEST_WAITING;
  sched_list_insert(&s->waiting, r);
}

/* ---- pages ------------------------------------------------------------------------------------------------------------------ */

/* Hold pages for n rows of r, evicting what only the tree keeps; returns how many pages are missing, of the kind that lacks more. */
static int reserve(struct sched *s, struct request *r, int n) {
  struct kv_short lack = kv_reserve(s->kv, &r->kv, n);
  if (s->radix && (lack.pages[KV_FULL] || lack.pages[KV_SLIDING])) {
    radix_evict(s->radix, lack);
    lack = kv_reserve(s->kv, &r->kv, n);
  }
  return MAX(lack.pages[KV_FULL], lack.pages[KV_SLIDING]);
}

/* n rows, or as many as there are pages for, no picture cut; returns their number. */
static int reserve_some(struct sched *s, struct request *r, int n) {
  int missing = reserve(s, r, n), page = kv_page_tokens(s->kv);
  if (missing == 0) return n;
  int fit = (div_up(r->n_computed + n, page) - missing) * page - r->n_computed; /* up to the end of the last page that there is */
  if (fit > 0) fit = request_uncut(r, r->n_computed + fit) - r->n_computed;
  if (fit <= 0) return 0;
  CHECK(reserve(s, r, fit) == 0);
  return fit;
}

/* ---- one step --------------------------------------------------------------------------------------------------------------- */

static bool is_blocked(const struct sched *s, const struct request *r) { return sched_rows_ready(s, r) == 0; }

static void pick_decoding(struct sched *s) {
  for (struct request *r = s->running.first; r; r = r->next) {
    if (!request_decodes(r) || is_blocked(s, r)) continue;
    while (reserve(s, r, 1) > 0) {
      struct request *victim = s->running.last; /* never one that is picked already: those come before r */
      CHECK(victim != s->running.first);        /* alone it fits: sched_fits */
      sched_retract(s, victim);
      if (victim == r) return; /* it was the last */
    }
    r->n_picked = 1;
  }
}

static int rows_left(const struct request *r) { return r->n_tokens - r->n_computed; }
static int places_taken(const struct request *r, int n) { return n ? request_out_rows(r, n) - r->n_late : 1; }

/* How many of r's next rows, `had` of which it has, when there may be n and that many want logits. With is_first a picture comes whole. */
static int rows_to_give(struct request *r, int had, int n, int places, bool is_first) {
  int excess = request_out_rows(r, n) - places;
  if (excess > 0) n -= excess;
  const struct request_span *cut = request_cut_at(r, r->n_computed + n);
  if (!cut) return n;
  if (cut->first > r->n_computed + had || !is_first) return cut->first - r->n_computed;
  n = cut->first + cut->n - r->n_computed;
  r->n_late = MAX(0, request_out_rows(r, n) - places);
  return n;
}

/* Up to n rows more for r, as far as they are ready and there are pages and places for logits; returns how many. */
static int give_rows(struct sched *s, struct request *r, int n, bool is_first) {
  int had = r->n_picked, had_out = places_taken(r, had);
  n = MIN(n, MIN(rows_left(r), sched_rows_ready(s, r)) - had);
  if (n <= 0 || r->n_late) return 0;
  n = rows_to_give(r, had, had + n, s->config.out_max - (s->n_out - had_out), is_first && had == 0);
  int has = n > had ? reserve_some(s, r, n) : 0;
  if (has < n) r->n_late = 0;
  if (has <= had) return 0;
  r->n_picked = has;
  s->n_out += places_taken(r, has) - had_out;
  return has - had;
}

/* The first prompt goes on, at the others' expense if nobody decodes, who would free pages some day. It may be the last itself, when those
 * before it wait for an encoder: then it waits for them. */
static int give_first(struct sched *s, struct request *first, int n, bool somebody_decodes) {
  int got = give_rows(s, first, n, true);
  while (got == 0 && !somebody_decodes) {
    struct request *victim = s->running.last;
    CHECK(victim != first || s->n_blocked > 0); /* alone it fits: sched_fits */
    if (victim == first) return 0;
    s->n_blocked -= is_blocked(s, victim);
    sched_retract(s, victim);
    s->n_out--;
    got = give_rows(s, first, n, true);
  }
  return got;
}

static bool is_shorter(const struct request *a, const struct request *b) {
  return rows_left(a) != rows_left(b) ? rows_left(a) < rows_left(b) : sched_before(a, b);
}

/* The next prompt after `last` (NULL: the very first) in the order of rows left, of those of first's priority with fewer rows than it. */
static struct request *next_shortest(const struct sched *s, const struct request *first, const struct request *last) {
  struct request *best = NULL;
  for (struct request *r = s->running.first; r; r = r->next) {
    if (r == first || r->n_picked || is_blocked(s, r) || r->priority != first->priority || rows_left(r) >= rows_left(first)) continue;
    if (last && !is_shorter(last, r)) continue;
    if (!best || is_shorter(r, best)) best = r;
  }
  return best;
}

static void pick_prompts(struct sched *s) {
  struct request *first = NULL;
  int n_prompts = 0;
  for (struct request *r = s->running.first; r; r = r->next) {
    if (r->n_picked) continue;
    n_prompts++;
    if (is_blocked(s, r)) s->n_blocked++;
    else if (!first) first = r;
  }
  if (!first) return;
  bool somebody_decodes = n_prompts < s->running.n, alone = s->running.n == 1;
  int left = MIN(alone ? s->chunk_rows : s->beside_rows, s->config.chunk_tokens);
  int others = alone ? 0 : left / 2;
  s->n_out = s->running.n;
  int got = give_first(s, first, left - others, somebody_decodes);
  left -= got;
  others = MIN(others, s->config.step_tokens - got);
  for (struct request *r = NULL; others > 0 && (r = next_shortest(s, first, r));) {
    got = give_rows(s, r, others, false);
    others -= got;
    left -= got;
  }
  for (struct request *r = s->running.first; r && left > 0; r = r->next) left -= give_rows(s, r, left, false);
}

/* Rows behind the last known token, for what is expected there. */
static void pick_ahead(struct sched *s) {
  int rows_left = s->config.rows_max, out_left = s->config.out_max;
  for (const struct request *r = s->running.first; r; r = r->next) {
    if (r->n_picked == 0) continue;
    rows_left -= r->n_picked;
    out_left -= request_out_rows(r, r->n_picked) - r->n_late;
  }
  for (struct request *r = s->running.first; r; r = r->next) {
    if (r->n_picked == 0) r->n_draft = 0;
    if (!request_decodes(r) || r->n_picked == 0) continue;
    int n = MIN(MIN(r->n_forced + r->n_draft, rows_left), r->n_limit - 1 - r->n_tokens), had_out = request_out_rows(r, 1);
    while (n > 0 && request_out_rows(r, 1 + n) - had_out > out_left) n--;
    if (n > 0) n = reserve_some(s, r, 1 + n) - 1;
    r->n_draft = MAX(0, n - r->n_forced);
    if (n <= 0) continue;
    r->n_picked = 1 + n;
    rows_left -= n;
    out_left -= request_out_rows(r, 1 + n) - had_out;
  }
}

int sched_next(struct sched *s) {
  s->n_picks = s->n_copies = s->n_blocked = 0;
  for (struct request *r = s->running.first; r; r = r->next) {
    r->n_picked = r->n_late = 0;
    kv_drop_window(s->kv, &r->kv, r->n_computed);
  }
  pick_decoding(s);
  sched_admit(s);
  pick_prompts(s);
  pick_ahead(s);
  for (struct request *r = s->running.first; r; r = r->next)
    if (r->n_picked)
      s->picks[s->n_picks++] = (struct sched_pick){.r = r,
                                                   .first = r->n_computed,
                                                   .n = r->n_picked,
                                                   .n_out = request_out_rows(r, r->n_picked) - r->n_late,
                                                   .n_late = r->n_late,
                                                   .is_decoding = request_decodes(r)};
  CHECK(s->n_picks > 0 || s->n_blocked > 0 || (s->running.n == 0 && s->waiting.n == 0)); /* a step without rows would repeat for ever */
  return s->n_picks;
}

void sched_commit(struct sched *s, const struct sched_pick *p) {
  struct request *r = p->r;
  if (p->n_late) {
    kv_cancel(s->kv, &r->kv);
    return;
  }
  kv_commit(s->kv, &r->kv, p->n);
  r->n_computed += p->n;
  if (r->n_banks) sched_let_go(s, r, r->n_computed);
  if (!s->radix) return;
  if (r->n_computed == r->n_prompt) radix_mark(s->radix, r->space, &r->kv, r->tokens);
  else radix_insert(s->radix, r->space, &r->kv, r->tokens);
}
