/* sched_media.c — what requests hold of encoded pictures and sounds: rules 2 and 5 of sched.h. */
#include <limits.h>
#include <string.h>

#include "engine/sched_impl.h"

static bool is_needed(const struct request_bank *b, int n) { return b->until > n; }

static void let_go(struct sched *s, struct request_bank *b) {
  if (b->entry) banks_release(s->banks, b->entry);
  b->entry = 0;
}

void sched_let_go(struct sched *s, struct request *r, int n) {
  for (int i = 0; i < r->n_banks && (n == INT_MAX || r->banks[i].from < n); i++)
    if (n == INT_MAX || !is_needed(&r->banks[i], n)) let_go(s, &r->banks[i]);
}

/* An earlier one that is needed, too, has the same key. */
static bool is_repeated(const struct request *r, int i, int n) {
  for (int k = 0; k < i; k++)
    if (is_needed(&r->banks[k], n) && memcmp(&r->banks[k].key, &r->banks[i].key, sizeof r->banks[i].key) == 0) return true;
  return false;
}

/* Those that exist first, so that making room for others does not take them. */
bool sched_hold(struct sched *s, struct request *r, int n) {
  int n_pages = 0;
  for (int i = 0; i < r->n_banks; i++) {
    struct request_bank *b = &r->banks[i];
    if (!is_needed(b, n)) continue;
    CHECK(!b->entry);
    if ((b->entry = banks_find(s->banks, &b->key))) banks_hold(s->banks, b->entry);
    else if (!is_repeated(r, i, n)) n_pages += banks_pages_for(s->banks, b->n_rows);
  }
  if (n_pages > banks_room(s->banks)) {
    sched_let_go(s, r, INT_MAX);
    return false;
  }
  for (int i = 0; i < r->n_banks; i++) {
    struct request_bank *b = &r->banks[i];
    if (!is_needed(b, n) || b->entry) continue;
    if ((b->entry = banks_find(s->banks, &b->key))) banks_hold(s->banks, b->entry); /* a repeated one */
    else b->entry = banks_add(s->banks, &b->key, b->n_rows);
    CHECK(b->entry);
  }
  return true;
}

static int64_t pages_needed(const struct sched *s, const struct request *r, int n) {
  int64_t n_pages = 0;
  for (int i = 0; i < r->n_banks; i++)
    if (is_needed(&r->banks[i], n) && !is_repeated(r, i, n)) n_pages += banks_pages_for(s->banks, r->banks[i].n_rows);
  return n_pages;
}

bool sched_fits_media(const struct sched *s, const struct request *r, struct err *e) {
  if (r->n_banks == 0) return true;
  int64_t need = pages_needed(s, r, 0), have = banks_stats(s->banks).n_pages, page = banks_page_rows(s->banks);
  if (need <= have) return true;
  err_set(e, ERR_BAD_INPUT,
          "request of %d pictures and sounds: needs %lld rows of the store for encoded ones, which has %lld (--media-mem)", r->n_spans,
          (long long)(need * page), (long long)(have * page));
  return false;
}

bool sched_has_bank_room(const struct sched *s, const struct request *w, int n, int priority) {
  if (w->n_banks == 0) return true;
  int64_t n_pages = pages_needed(s, w, n);
  for (const struct request *r = s->running.first; r; r = r->next)
    if (r->priority >= priority) n_pages += pages_needed(s, r, r->n_computed);
  return n_pages <= banks_stats(s->banks).n_pages;
}

int sched_rows_ready(const struct sched *s, const struct request *r) {
  for (int i = 0; i < r->n_banks; i++) {
    const struct request_bank *b = &r->banks[i];
    if (is_needed(b, r->n_computed) && !banks_is_filled(s->banks, b->entry)) return MAX(0, b->from - r->n_computed);
  }
  return INT_MAX;
}
