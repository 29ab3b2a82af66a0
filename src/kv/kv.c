/* kv.c — sequences over two page pools. The rules are in kv.h.
 *
 * A sequence's state is a staircase of page indices, which every function below keeps:
 *
 *      0 ........ swa_from/P ........ n_tokens ........ n_reserved ........ pairs_max
 *      full:  held, held, ...                               ] 0, 0, ...
 *      swa:   0, 0 [held, held, ...                         ] 0, 0, ...
 */
#include "kv/kv.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct kv {
  struct kv_config c;
  int shift;     /* page_tokens = 1 << shift */
  int pairs_max; /* pages that tokens_max tokens span */
  struct pages pool[KV_KINDS];
  int n_used_peak[KV_KINDS];
  struct kv_page *tables; /* [seqs_max, pairs_max]; unused entries are 0 */
  int *free_rows;         /* [seqs_max]: a stack, the first n_free_rows of it */
  int n_free_rows;
  int *n_owners[KV_KINDS]; /* [n_pages + 1] scratch of kv_check */
  uint8_t *row_seen;       /* [seqs_max] scratch of kv_check */
};

static const char *const kind_names[KV_KINDS] = {"full", "sliding"};

/* --- life ---------------------------------------------------------------------------------------------------------- */

static int config_check(const struct kv_config *c, struct err *e) {
  int p = c->page_tokens;
  if (p < 1 || p > 256 || (p & (p - 1))) return err_set(e, ERR_BAD_INPUT, "page size: expected a power of two from 1 to 256, found %d", p);
  for (int k = 0; k < KV_KINDS; k++)
    if (c->n_pages[k] < 0) return err_set(e, ERR_BAD_INPUT, "%s pages: expected 0 or more, found %d", kind_names[k], c->n_pages[k]);
  if (!c->n_pages[KV_FULL] && !c->n_pages[KV_SLIDING]) return err_set(e, ERR_BAD_INPUT, "cache: expected pages in one pool at least");
  if (c->window_tokens < 0 || (c->window_tokens == 0) != (c->n_pages[KV_SLIDING] == 0))
    return err_set(e, ERR_BAD_INPUT, "window: expected %s with %d sliding pages, found %d tokens",
                   c->n_pages[KV_SLIDING] ? "1 or more tokens" : "0", c->n_pages[KV_SLIDING], c->window_tokens);
  if (c->seqs_max < 1 || c->seqs_max >= UINT16_MAX)
    return err_set(e, ERR_BAD_INPUT, "sequences: expected 1 to %d, found %d", UINT16_MAX - 1, c->seqs_max);
  if (c->tokens_max < 1 || c->tokens_max > INT32_MAX / 2)
    return err_set(e, ERR_BAD_INPUT, "longest sequence: expected 1 to %d tokens, found %d", INT32_MAX / 2, c->tokens_max);
  return 0;
}

struct kv *kv_new(const struct kv_config *c, struct err *e) {
  if (config_check(c, e)) return NULL;
  struct kv *kv = xcalloc(1, sizeof *kv);
  kv->c = *c;
  while (1 << kv->shift < c->page_tokens) kv->shift++;
  kv->pairs_max = div_up(c->tokens_max, c->page_tokens);
  for (int k = 0; k < KV_KINDS; k++) {
    if (pages_init(&kv->pool[k], c->n_pages[k], e)) {
      err_prefix(e, "%s ", kind_names[k]);
      goto fail;
    }
    kv->n_owners[k] = mem_try_alloc(((size_t)c->n_pages[k] + 1) * sizeof *kv->n_owners[k]);
    if (!kv->n_owners[k]) goto no_memory;
  }
  size_t n_pairs, n_bytes;
  if (size_mul_overflows((size_t)c->seqs_max, (size_t)kv->pairs_max, &n_pairs) || size_mul_overflows(n_pairs, sizeof *kv->tables, &n_bytes))
    goto no_memory;
  kv->tables = mem_try_alloc(n_bytes);
  kv->free_rows = mem_try_alloc((size_t)c->seqs_max * sizeof *kv->free_rows);
  kv->row_seen = mem_try_alloc((size_t)c->seqs_max);
  if (!kv->tables || !kv->free_rows || !kv->row_seen) goto no_memory;
  kv->n_free_rows = c->seqs_max;
  for (int i = 0; i < c->seqs_max; i++) kv->free_rows[i] = c->seqs_max - 1 - i; /* row 0 first */
  return kv;
no_memory:
  err_set(e, ERR_NO_MEMORY, "cache: no memory for the page tables of %d sequences of %d tokens", c->seqs_max, c->tokens_max);
fail:
  kv_delete(kv);
  return NULL;
}

void kv_delete(struct kv *kv) {
  if (!kv) return;
  for (int k = 0; k < KV_KINDS; k++) {
    pages_free(&kv->pool[k]);
    free(kv->n_owners[k]);
  }
  free(kv->tables);
  free(kv->free_rows);
  free(kv->row_seen);
  free(kv);
}

/* --- one sequence -------------------------------------------------------------------------------------------------- */

static int floor_page(const struct kv *kv, int64_t pos) { return (int)(pos >> kv->shift << kv->shift); }
static int pages_spanned(const struct kv *kv, int n_tokens) { return div_up(n_tokens, kv->c.page_tokens); }
static bool has_kind(const struct kv *kv, enum kv_kind kind) { return kv->c.n_pages[kind] > 0; }

static void unref_pair(struct kv *kv, struct kv_page *pair) {
  if (pair->full) pages_unref(&kv->pool[KV_FULL], pair->full);
  if (pair->swa) pages_unref(&kv->pool[KV_SLIDING], pair->swa);
  *pair = (struct kv_page){0};
}

static void note_peak(struct kv *kv) {
  for (int k = 0; k < KV_KINDS; k++) kv->n_used_peak[k] = MAX(kv->n_used_peak[k], pages_used(&kv->pool[k]));
}

/* Keep the pages of the first n tokens, reserve nothing beyond them. */
static void cut(struct kv *kv, struct kv_seq *s, int n) {
  int keep = pages_spanned(kv, n);
  while (s->n_pairs > keep) unref_pair(kv, &s->pairs[--s->n_pairs]);
  s->n_reserved = n;
}

bool kv_seq_open(struct kv *kv, struct kv_seq *s) {
  CHECK(!s->pairs);
  if (kv->n_free_rows == 0) return false;
  int row = kv->free_rows[--kv->n_free_rows];
  *s = (struct kv_seq){.pairs = kv->tables + (size_t)row * (size_t)kv->pairs_max, .row = row};
  return true;
}

void kv_seq_close(struct kv *kv, struct kv_seq *s) {
  if (!s->pairs) return;
  cut(kv, s, 0);
  CHECK(kv->n_free_rows < kv->c.seqs_max);
  kv->free_rows[kv->n_free_rows++] = s->row;
  *s = (struct kv_seq){0};
}

struct kv_short kv_reserve(struct kv *kv, struct kv_seq *s, int n) {
  CHECK(s->pairs && n >= 0 && n <= kv->c.tokens_max - s->n_tokens);
  struct kv_short lack = {{0}};
  int target = s->n_tokens + n;
  if (target <= s->n_reserved) return lack;
  int n_new = pages_spanned(kv, target) - s->n_pairs;
  for (int k = 0; k < KV_KINDS; k++)
    if (has_kind(kv, k)) lack.pages[k] = MAX(0, n_new - kv->pool[k].n_free);
  if (lack.pages[KV_FULL] || lack.pages[KV_SLIDING]) return lack;

  for (; n_new > 0; n_new--)
    s->pairs[s->n_pairs++] = (struct kv_page){.full = pages_take(&kv->pool[KV_FULL]), .swa = pages_take(&kv->pool[KV_SLIDING])};
  s->n_reserved = target;
  note_peak(kv);
  return lack;
}

void kv_commit(struct kv *kv, struct kv_seq *s, int n) {
  (void)kv;
  CHECK(s->pairs && n >= 0 && n <= s->n_reserved - s->n_tokens);
  s->n_tokens += n;
}

void kv_cancel(struct kv *kv, struct kv_seq *s) {
  CHECK(s->pairs);
  cut(kv, s, s->n_tokens);
}

void kv_drop_window(struct kv *kv, struct kv_seq *s, int next_q) {
  CHECK(s->pairs && next_q >= 0 && next_q <= s->n_tokens);
  if (!has_kind(kv, KV_SLIDING)) return;
  int from = floor_page(kv, kv_window_lo(next_q, kv->c.window_tokens));
  for (; s->swa_from < from; s->swa_from += kv->c.page_tokens) {
    struct kv_page *pair = &s->pairs[s->swa_from >> kv->shift];
    pages_unref(&kv->pool[KV_SLIDING], pair->swa);
    pair->swa = 0;
  }
}

static bool is_shared(const struct kv *kv, const struct kv_page *pair) {
  return kv->pool[KV_FULL].refs[pair->full] > 1 || kv->pool[KV_SLIDING].refs[pair->swa] > 1; /* page 0 has no owners */
}

bool kv_truncate(struct kv *kv, struct kv_seq *s, int n) {
  CHECK(s->pairs && n >= 0 && n <= s->n_tokens);
  bool inside_page = n & (kv->c.page_tokens - 1);
  int64_t lo = kv_window_lo(n, kv->c.window_tokens);
  /* A query at an aligned n that sees only itself (n = 0, or a window of one) needs nothing of what was: its page comes anew. */
  bool sees_nothing_old = !inside_page && lo == n;
  if (has_kind(kv, KV_SLIDING) && lo < s->swa_from && !sees_nothing_old) return false;
  if (n < s->n_tokens && inside_page && is_shared(kv, &s->pairs[n >> kv->shift])) return false;
  s->n_tokens = n;
  cut(kv, s, n);
  s->swa_from = MIN(s->swa_from, floor_page(kv, n));
  s->own_from = MIN(s->own_from, floor_page(kv, n));
  s->n_entered = MIN(s->n_entered, floor_page(kv, n));
  return true;
}

void kv_seq_adopt(struct kv *kv, struct kv_seq *s, const struct kv_page *pairs, int n, int swa_from) {
  CHECK(s->pairs && s->n_reserved == 0);
  CHECK(n >= 0 && n <= kv->c.tokens_max && floor_page(kv, n) == n);
  CHECK(swa_from >= 0 && floor_page(kv, swa_from) == swa_from);
  int64_t lo_max = kv_window_lo((int64_t)n + kv->c.page_tokens - 1, kv->c.window_tokens); /* of where it may go on */
  CHECK(has_kind(kv, KV_SLIDING) ? swa_from <= MIN(n, lo_max) : swa_from == 0);
  for (int i = 0; i < n >> kv->shift; i++) {
    if (has_kind(kv, KV_FULL)) pages_ref(&kv->pool[KV_FULL], s->pairs[i].full = pairs[i].full);
    if (has_kind(kv, KV_SLIDING) && i >= swa_from >> kv->shift) pages_ref(&kv->pool[KV_SLIDING], s->pairs[i].swa = pairs[i].swa);
  }
  s->n_pairs = n >> kv->shift;
  s->n_tokens = s->n_reserved = s->own_from = n;
  s->swa_from = swa_from;
  note_peak(kv);
}

void kv_seq_replace(struct kv *kv, struct kv_seq *s, int i, enum kv_kind kind, int32_t id) {
  CHECK(s->pairs && i >= 0 && i < s->n_pairs);
  int32_t *held = kind == KV_FULL ? &s->pairs[i].full : &s->pairs[i].swa;
  CHECK(*held);
  if (*held == id) return;
  pages_ref(&kv->pool[kind], id);
  pages_unref(&kv->pool[kind], *held);
  *held = id;
}

/* --- observers ----------------------------------------------------------------------------------------------------- */

int64_t kv_slot(const struct kv *kv, const struct kv_seq *s, enum kv_kind kind, int pos) {
  if (pos < 0 || pos >= s->n_reserved) return 0;
  const struct kv_page *pair = &s->pairs[pos >> kv->shift];
  int32_t page = kind == KV_FULL ? pair->full : pair->swa;
  return page ? ((int64_t)page << kv->shift) + (pos & (kv->c.page_tokens - 1)) : 0;
}

/* A step of c tokens at position t holds what lies between the window of its first query and its last token: W - 1 + c tokens, however
 * they are aligned, and never more than the whole sequence. */
struct kv_short kv_pages_for(const struct kv *kv, int n, int chunk) {
  CHECK(n >= 0 && chunk >= 1);
  struct kv_short need = {{0}};
  int whole = pages_spanned(kv, n);
  if (has_kind(kv, KV_FULL)) need.pages[KV_FULL] = whole;
  if (has_kind(kv, KV_SLIDING) && n > 0) {
    int64_t span = (int64_t)kv->c.window_tokens - 1 + chunk; /* >= 1 */
    int64_t spanned = ((span + kv->c.page_tokens - 2) >> kv->shift) + 1;
    need.pages[KV_SLIDING] = (int)MIN(spanned, whole);
  }
  return need;
}

struct kv_stats kv_stats(const struct kv *kv) {
  struct kv_stats st = {.n_seqs = kv->c.seqs_max - kv->n_free_rows};
  for (int k = 0; k < KV_KINDS; k++) {
    st.n_pages[k] = kv->c.n_pages[k];
    st.n_used[k] = pages_used(&kv->pool[k]);
    st.n_used_peak[k] = kv->n_used_peak[k];
    st.n_idle[k] = pages_idle(&kv->pool[k]);
  }
  return st;
}

struct pages *kv_pool(struct kv *kv, enum kv_kind kind) {
  return &kv->pool[kind];
}
int kv_page_tokens(const struct kv *kv) { return kv->c.page_tokens; }
int kv_window_tokens(const struct kv *kv) { return kv->c.window_tokens; }

static int bad(struct err *e, int seq, const char *what, int64_t found) {
  return err_set(e, ERR_INTERNAL, "cache: sequence %d: %s (found %lld)", seq, what, (long long)found);
}

/* The numbers of one sequence, without its pages. */
static int check_numbers(const struct kv *kv, const struct kv_seq *s, int seq, struct err *e) {
  if (!s->pairs || s->row < 0 || s->row >= kv->c.seqs_max || s->pairs != kv->tables + (size_t)s->row * (size_t)kv->pairs_max)
    return bad(e, seq, "expected a table of this cache", s->row);
  if (kv->row_seen[s->row]++) return bad(e, seq, "its table belongs to another sequence too", s->row);
  if (s->n_tokens < 0 || s->n_tokens > s->n_reserved) return bad(e, seq, "expected no more tokens than are reserved", s->n_tokens);
  if (s->n_reserved > kv->c.tokens_max) return bad(e, seq, "expected at most tokens_max reserved tokens", s->n_reserved);
  if (s->n_pairs != pages_spanned(kv, s->n_reserved)) return bad(e, seq, "expected the pages that its reserved tokens span", s->n_pairs);
  if (s->swa_from < 0 || s->swa_from != floor_page(kv, s->swa_from)) return bad(e, seq, "expected a page-aligned swa_from", s->swa_from);
  if (s->swa_from > (has_kind(kv, KV_SLIDING) ? kv_window_lo(s->n_tokens, kv->c.window_tokens) : 0))
    return bad(e, seq, "the window of its next query has been dropped", s->swa_from);
  if (s->own_from < 0 || s->own_from > s->n_tokens || s->own_from != floor_page(kv, s->own_from))
    return bad(e, seq, "expected a page-aligned own_from up to its tokens", s->own_from);
  if (s->n_entered < 0 || s->n_entered > s->own_from || s->n_entered != floor_page(kv, s->n_entered))
    return bad(e, seq, "expected a page-aligned n_entered up to own_from", s->n_entered);
  return 0;
}

static int check_pages(const struct kv *kv, const struct kv_seq *s, int seq, struct err *e) {
  for (int i = 0; i < kv->pairs_max; i++) {
    const int32_t page[KV_KINDS] = {s->pairs[i].full, s->pairs[i].swa};
    const bool held[KV_KINDS] = {i<s->n_pairs, i<s->n_pairs && i >= s->swa_from>> kv->shift};
    for (int k = 0; k < KV_KINDS; k++) {
      bool expect = held[k] && has_kind(kv, k);
      if (!page[k] && !expect) continue;
      if (!page[k] || !expect || page[k] < 0 || page[k] > kv->c.n_pages[k])
        return bad(e, seq, expect ? "a page is missing" : "a page is held that should not be", i);
      kv->n_owners[k][page[k]]++;
      bool is_written_next = (i + 1) << kv->shift > s->n_tokens;
      if (is_written_next && kv->pool[k].refs[page[k]] != 1 + pages_is_kept(&kv->pool[k], page[k]))
        return bad(e, seq, "a page that it may write is held by another sequence", i);
    }
  }
  return 0;
}

bool kv_check(const struct kv *kv, struct kv_seq *const *seqs, int n_seqs, struct err *e) {
  for (int k = 0; k < KV_KINDS; k++) {
    if (!pages_check(&kv->pool[k], e)) return err_prefix(e, "%s ", kind_names[k]), false;
    memset(kv->n_owners[k], 0, ((size_t)kv->c.n_pages[k] + 1) * sizeof *kv->n_owners[k]);
  }
  memset(kv->row_seen, 0, (size_t)kv->c.seqs_max);
  for (int i = 0; i < n_seqs; i++)
    if (check_numbers(kv, seqs[i], i, e) || check_pages(kv, seqs[i], i, e)) return false;

  if (n_seqs != kv->c.seqs_max - kv->n_free_rows)
    return err_set(e, ERR_INTERNAL, "cache: expected %d open sequences, found %d", kv->c.seqs_max - kv->n_free_rows, n_seqs), false;
  for (int i = 0; i < kv->n_free_rows; i++)
    if (kv->row_seen[kv->free_rows[i]]++) return err_set(e, ERR_INTERNAL, "cache: table %d is free and in use", kv->free_rows[i]), false;
  for (int k = 0; k < KV_KINDS; k++)
    for (int32_t id = 1; id <= kv->c.n_pages[k]; id++)
      if (kv->n_owners[k][id] + pages_is_kept(&kv->pool[k], id) != kv->pool[k].refs[id])
        return err_set(e, ERR_INTERNAL, "cache: %s page %d has %d references, expected %d", kind_names[k], id, kv->pool[k].refs[id],
                       kv->n_owners[k][id] + pages_is_kept(&kv->pool[k], id)),
               false;
  return true;
}
