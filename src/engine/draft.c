/* draft.c — an index of n-grams over one request's tokens. The rules are in draft.h. */
#include "engine/draft.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { TRIED_MOST = 32 }; /* the counts of lately are halved there */

/* Memory for tokens_max tokens, nothing indexed. */
static bool take_room(struct draft *d, int tokens_max) {
  size_t n_last = power_of_two((size_t)MAX(16, tokens_max));
  int32_t *last = mem_try_alloc(n_last * sizeof *last), *before = mem_try_alloc(((size_t)tokens_max + 1) * sizeof *before);
  if (!last || !before) {
    free(last);
    free(before);
    return false;
  }
  free(d->last);
  free(d->before);
  d->last = last;
  d->before = before;
  d->mask = (uint32_t)(n_last - 1);
  d->tokens_max = tokens_max;
  d->n_indexed = 0;
  return true;
}

int draft_init(struct draft *d, int tokens_max, struct err *e) {
  memset(d, 0, sizeof *d);
  draft_trust_init(&d->trust);
  return take_room(d, MAX(1, tokens_max)) ? 0 : err_set(e, ERR_NO_MEMORY, "drafts: no memory for %d tokens", tokens_max);
}

void draft_free(struct draft *d) {
  free(d->last);
  free(d->before);
  memset(d, 0, sizeof *d);
}

/* Of the n-gram that ends right before `end`. */
static uint32_t key_of(const int32_t *tokens, int end) {
  uint64_t h = 0;
  for (int i = end - DRAFT_KEY; i < end; i++) h = (h ^ (uint32_t)tokens[i]) * 0x9e3779b97f4a7c15u, h ^= h >> 32;
  return (uint32_t)h;
}

static void add_until(struct draft *d, const int32_t *tokens, int end) {
  for (int i = MAX(d->n_indexed + 1, DRAFT_KEY); i <= end; i++) {
    int32_t *slot = &d->last[key_of(tokens, i) & d->mask];
    d->before[i] = *slot;
    *slot = i;
  }
  d->n_indexed = MAX(d->n_indexed, end);
}

/* How many tokens before `at` are those before n. */
static int match_length(const int32_t *tokens, int at, int n) {
  int len = 0;
  while (len < DRAFT_MATCH_MAX && len < at && tokens[at - 1 - len] == tokens[n - 1 - len]) len++;
  return len;
}

int draft_next(struct draft *d, const int32_t *tokens, int n, int n_max, int32_t *out) {
  if (n_max <= 0 || !d->last) return 0;
  int n_offer = draft_offer(&d->trust);
  if (n_offer == 0) return 0;
  if (n <= DRAFT_KEY || (n > d->tokens_max && !take_room(d, n + n / 2 + 16))) return 0;
  add_until(d, tokens, n - 1);
  int best = 0, longest = DRAFT_KEY - 1;
  int32_t at = d->last[key_of(tokens, n) & d->mask];
  for (int looks = 0; at && looks < DRAFT_LOOKS; looks++, at = d->before[at]) {
    int len = match_length(tokens, at, n);
    if (len > longest) longest = len, best = at;
  }
  if (!best) return 0;
  int n_out = MIN(n_offer, n_max);
  for (int i = 0; i < n_out; i++) out[i] = best + i < n ? tokens[best + i] : out[best + i - n];
  return n_out;
}

/* ---- trust ---------------------------------------------------------------------------------------------------------------- */

void draft_trust_init(struct draft_trust *t) { *t = (struct draft_trust){.n_offer = DRAFT_OFFER_FIRST}; }

int draft_offer(struct draft_trust *t) {
  if (t->n_offer > 0) return t->n_offer;
  if (++t->n_quiet < DRAFT_QUIET) return 0;
  t->n_quiet = 0;
  return t->n_offer = 1;
}

void draft_learn(struct draft_trust *t, int n_drafted, int n_accepted) {
  CHECK(n_drafted >= 0 && n_accepted >= 0 && n_accepted <= n_drafted);
  if (n_drafted == 0) return;
  bool all = n_accepted == n_drafted;
  t->n_hit += n_accepted;
  t->n_tried += n_accepted + !all; /* those behind the first wrong one say nothing */
  if (t->n_tried >= TRIED_MOST) t->n_tried /= 2, t->n_hit /= 2;
  if (!all) t->n_offer = (n_drafted + n_accepted) / 2;
  else if (n_drafted >= t->n_offer) t->n_offer = MIN(2 * t->n_offer, DRAFT_TOKENS_MAX);
}

int draft_chance(const struct draft_trust *t) { return 256 * (t->n_hit + 1) / (t->n_tried + 2); }
