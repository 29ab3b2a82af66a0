/* sched_admit.c — who of the waiting may run: step 2 of sched.h. */
#include <limits.h>

#include "engine/sched_impl.h"

/* Waiting requests looked at afresh in one step: each costs a look-up in the tree and a comparison with the running prompts. */
enum { LOOKS_PER_STEP = 64 };

/* ---- room in both pools ----------------------------------------------------------------------------------------------------- */

/* Pages that requests may come to need, of the full pool beside what they hold. There those that are shared stay shared, but in the sliding
 * pool every request ends up with pages of its own; what all hold there at once has two bounds. */
struct demand {
  int full;
  int steps;   /* sliding: the longest step of each by itself */
  int windows; /* sliding: each one's window and a page where its rows are cut; the rows of one step, for all together, come on top */
};

static void add_demand(struct demand *d, const struct sched *s, const struct request *r, int full_held) {
  int known = MIN(r->n_tokens + s->config.ahead_tokens, MAX(request_kv_tokens(r), r->n_tokens)); /* with room to grow */
  struct kv_short step = kv_pages_for(s->kv, known, request_decodes(r) ? 1 : s->config.step_tokens), row = kv_pages_for(s->kv, known, 1);
  d->full += MAX(0, step.pages[KV_FULL] - full_held);
  d->steps += step.pages[KV_SLIDING];
  d->windows += MIN(row.pages[KV_SLIDING] + 1, div_up(known, kv_page_tokens(s->kv)));
}

/* Is there room for w, which holds or would hold that many full pages, beside the running ones of at least that priority? What the others
 * hold counts as free, although some of it may be shared. */
static bool has_room(const struct sched *s, const struct request *w, int full_held, int priority) {
  struct kv_stats st = kv_stats(s->kv);
  struct demand d = {0};
  int n_beside = 0, full_free = st.n_pages[KV_FULL] - st.n_used[KV_FULL];
  for (const struct request *r = s->running.first; r; r = r->next) {
    if (r->priority < priority) {
      full_free += r->kv.n_pairs;
    } else {
      add_demand(&d, s, r, r->kv.n_pairs);
      n_beside++;
    }
  }
  if (n_beside == 0) return true; /* alone it fits: sched_fits */
  add_demand(&d, s, w, full_held);
  int sliding = MIN(d.steps, d.windows + div_up(s->config.step_tokens, kv_page_tokens(s->kv)));
  return (!st.n_pages[KV_FULL] || d.full <= full_free) && (!st.n_pages[KV_SLIDING] || sliding <= st.n_pages[KV_SLIDING]);
}

/* ---- followers ---------------------------------------------------------------------------------------------------------------- */

static bool same_space(const struct request *a, const struct request *b) { return a->space.a == b->space.a && a->space.b == b->space.b; }

/* w is known to follow a request that has not come to the end of what they share. */
static bool still_follows(const struct sched *s, const struct request *w) {
  if (!w->leader) return false;
  for (const struct request *r = s->running.first; r; r = r->next)
    if (r->number == w->leader) return r->n_computed < w->n_shared;
  return false;
}

/* Does w begin like a running prompt before it, further than the n_usable tokens that the tree has for it? Fills the memo. */
static bool begins_to_follow(const struct sched *s, struct request *w, int n_usable) {
  int page = kv_page_tokens(s->kv), limit = request_reuse_max(w);
  for (const struct request *r = s->running.first; r && sched_before(r, w); r = r->next) {
    int most = MIN(limit, r->n_tokens);
    if (most < n_usable + page || most <= r->n_computed || !same_space(r, w)) continue;
    int n = 0;
    while (n < most && r->tokens[n] == w->tokens[n]) n++;
    n = request_uncut(w, n);
    if (n < n_usable + page || n <= r->n_computed) continue;
    w->leader = r->number;
    w->n_shared = n;
    return true;
  }
  w->leader = 0;
  return false;
}

/* ---- admission ---------------------------------------------------------------------------------------------------------------- */

/* What the tree has of w's first `limit` tokens, not ending inside a picture that may not be cut. */
static struct radix_match match_to(const struct sched *s, const struct request *w, int limit) {
  for (;;) {
    struct radix_match m = s->radix ? radix_match(s->radix, w->space, w->tokens, limit) : (struct radix_match){0};
    if ((limit = request_uncut(w, m.n_usable)) == m.n_usable) return m;
  }
}

static struct radix_match match(const struct sched *s, const struct request *w) { return match_to(s, w, request_reuse_max(w)); }

/* Pictures and sounds that need not be encoded for w: held and filled, or wholly in the tree. */
static int count_known_media(const struct sched *s, const struct request *w) {
  int n = 0;
  for (int i = 0; i < w->n_spans; i++) {
    int32_t entry = w->banks[w->spans[i].bank].entry;
    n += !entry || banks_is_filled(s->banks, entry);
  }
  return n;
}

/* Once for each request, when its prompt begins. */
static void count_prompt(struct sched *s, struct request *w, const struct radix_match *m) {
  struct sched_counts *c = &s->counts;
  int limit = request_reuse_max(w);
  w->n_cached = w->n_computed;
  w->n_media_cached = count_known_media(s, w);
  c->prompt += (uint64_t)w->n_prompt;
  c->cached += (uint64_t)w->n_cached;
  c->media += (uint64_t)w->n_spans;
  c->media_cached += (uint64_t)w->n_media_cached;
  c->lost_window += (uint64_t)(m->n_known - m->n_usable);
  if (s->radix && limit < w->n_tokens - 1)
    c->lost_wanted += (uint64_t)MAX(0, radix_match(s->radix, w->space, w->tokens, w->n_tokens - 1).n_known - limit);
}

/* Open w's sequence with what m says, or with less where no page is free for the rest. Returns the number of copies. */
static int take_over(struct sched *s, struct request *w, struct radix_match *m) {
  for (;;) {
    CHECK(kv_seq_open(s->kv, &w->kv));
    int n_copies = m->n_known > 0 ? radix_adopt(s->radix, m, &w->kv, s->copies + s->n_copies) : 0, n = request_uncut(w, w->kv.n_tokens);
    if (n == w->kv.n_tokens) return n_copies;
    kv_seq_close(s->kv, &w->kv); /* it would begin inside a picture */
    *m = match_to(s, w, n);
  }
}

/* Let w in with what m says; false, and nothing has changed, when there is no room for it then. */
static bool take_in(struct sched *s, struct request *w, struct radix_match *m) {
  if (w->n_banks && !sched_hold(s, w, m->n_usable)) return false;
  int held_from = m->n_usable, n_copies = take_over(s, w, m), n = w->kv.n_tokens;
  bool fits = has_room(s, w, w->kv.n_pairs, INT_MIN);
  if (fits && w->n_banks && n < held_from) {
    sched_let_go(s, w, INT_MAX);
    fits = sched_hold(s, w, n);
  }
  if (!fits) {
    kv_seq_close(s->kv, &w->kv);
    sched_let_go(s, w, INT_MAX);
    return false;
  }
  s->n_copies += n_copies;
  sched_list_remove(&s->waiting, w);
  sched_list_insert(&s->running, w);
  w->state = REQUEST_RUNNING;
  w->n_computed = w->n_adopted = n;
  w->n_picked = w->n_late = 0;
  if (w->n_cached < 0) count_prompt(s, w, m);
  kv_drop_window(s->kv, &w->kv, w->n_computed);
  return true;
}

/* If need be in the place of running ones of lower priority. */
static bool try_admit(struct sched *s, struct request *w, struct radix_match m) {
  for (;;) {
    int full_held = m.n_usable / kv_page_tokens(s->kv); /* at least; what is taken over may not be free any more */
    if (s->running.n < s->config.max_running && has_room(s, w, full_held, INT_MIN) && take_in(s, w, &m)) return true;
    struct request *victim = s->running.last;
    if (!victim || victim->priority >= w->priority || !has_room(s, w, full_held, w->priority) ||
        !sched_has_bank_room(s, w, m.n_usable, w->priority))
      return false;
    sched_retract(s, victim);
    m = match(s, w);
  }
}

void sched_admit(struct sched *s) {
  struct request *passed = NULL; /* the last follower so far */
  for (int n_looks = 0; n_looks < LOOKS_PER_STEP;) {
    struct request *w = passed ? passed->next : s->waiting.first;
    if (!w) return;
    if (s->running.n == s->config.max_running && s->running.last->priority >= w->priority) return;
    if (!still_follows(s, w)) {
      struct radix_match m = match(s, w);
      n_looks++;
      if (!s->radix || !begins_to_follow(s, w, m.n_usable)) {
        if (!try_admit(s, w, m)) return; /* nobody else passes it */
        continue;
      }
    }
    passed = w;
  }
}
