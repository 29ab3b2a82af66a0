/* t_kv.c — the hybrid cache: an operation fuzzer beside a naive twin, the window, sizes, a worked trace.
 *
 * The twin knows nothing of pages as the cache counts them. It keeps, per sequence and position, a stamp (what was computed there) and
 * whether the sliding pool still has to hold it; and, per slot of either pool, the stamp that was last written there. A cache that hands a
 * slot to two owners, frees a page too early or forgets one is seen as a stamp that is not where it should be.
 */
#include "test.h"

#include <string.h>

#include "base/mem.h"
#include "kv/kv.h"

enum { SEQS = 5, TOKENS = 64, PAGES = 80, PAGE_MAX = 16 };

struct twin_seq {
  bool open;
  int n_tokens, n_reserved;
  uint64_t stamp[TOKENS];
  bool swa_held[TOKENS]; /* by the rule of pages: the whole page goes when its last position is out of every window to come */
};

struct world {
  struct kv *kv;
  struct kv_config c;
  struct kv_seq seq[SEQS];
  struct twin_seq twin[SEQS];
  uint64_t content[KV_KINDS][(PAGES + 1) * PAGE_MAX];
  uint64_t next_stamp;
  int n_ok, n_short, n_adopted, n_cut, n_cut_refused, n_dropped, n_cancelled, n_open_refused;
};

/* The window rule once more, in the words of the definition. */
static bool visible(const struct kv_config *c, int key, int q) { return key <= q && (c->window_tokens == 0 || q - key < c->window_tokens); }

static void check_all(struct world *w) {
  struct kv_seq *open[SEQS];
  int n_open = 0, n_used[KV_KINDS] = {0};
  static uint8_t used[KV_KINDS][PAGES + 1];
  memset(used, 0, sizeof used);
  int P = w->c.page_tokens;
  for (int i = 0; i < SEQS; i++) {
    struct twin_seq *t = &w->twin[i];
    struct kv_seq *s = &w->seq[i];
    assert_int_equal(s->pairs != NULL, t->open);
    if (!t->open) continue;
    open[n_open++] = s;
    assert_int_equal(s->n_tokens, t->n_tokens);
    assert_int_equal(s->n_reserved, t->n_reserved);
    for (int pos = -1; pos < w->c.tokens_max; pos++) {
      bool in = pos >= 0 && pos < t->n_reserved, committed = pos >= 0 && pos < t->n_tokens;
      for (int k = 0; k < KV_KINDS; k++) {
        int64_t slot = kv_slot(w->kv, s, k, pos);
        bool expect = in && w->c.n_pages[k] && (k == KV_FULL || t->swa_held[pos]);
        assert_int_equal(slot != 0, expect);
        if (!expect) continue;
        assert_in_range(slot, P, (int64_t)(w->c.n_pages[k] + 1) * P - 1);
        assert_int_equal(slot % P, pos % P);
        n_used[k] += !used[k][slot / P];
        used[k][slot / P] = 1;
        if (committed) assert_int_equal(w->content[k][slot], t->stamp[pos]);
      }
    }
    /* every key that any query to come sees is held */
    if (w->c.n_pages[KV_SLIDING])
      for (int q = t->n_tokens; q < w->c.tokens_max; q++) {
        int64_t lo = kv_window_lo(q, w->c.window_tokens);
        for (int key = 0; key < w->c.tokens_max; key++) assert_int_equal(visible(&w->c, key, q), key >= lo && key <= q);
        for (int64_t key = lo; key < t->n_tokens; key++) assert_true(kv_slot(w->kv, s, KV_SLIDING, (int)key) != 0);
        if (q > t->n_tokens + 1) break;
      }
  }
  struct err e = {0};
  if (!kv_check(w->kv, open, n_open, &e)) fail_msg("%s", e.msg);
  struct kv_stats st = kv_stats(w->kv);
  assert_int_equal(st.n_seqs, n_open);
  for (int k = 0; k < KV_KINDS; k++) {
    assert_int_equal(st.n_used[k], n_used[k]);
    assert_true(st.n_used[k] <= st.n_used_peak[k] && st.n_used_peak[k] <= st.n_pages[k]);
  }
}

/* Compute rows at positions from .. from+n-1: write their stamps where the cache says. */
static void write_rows(struct world *w, int i, int from, int n) {
  for (int pos = from; pos < from + n; pos++) {
    uint64_t stamp = ++w->next_stamp;
    w->twin[i].stamp[pos] = stamp;
    for (int k = 0; k < KV_KINDS; k++)
      if (w->c.n_pages[k]) {
        int64_t slot = kv_slot(w->kv, &w->seq[i], k, pos);
        assert_true(slot > 0);
        w->content[k][slot] = stamp;
      }
  }
}

static void do_reserve(struct world *w, int i, uint64_t *seed) {
  struct twin_seq *t = &w->twin[i];
  int reach = test_rand_int(seed, 1, 20), n = test_rand_int(seed, 0, MIN(w->c.tokens_max - t->n_tokens, reach));
  int have = (t->n_reserved + w->c.page_tokens - 1) / w->c.page_tokens, target = MAX(t->n_reserved, t->n_tokens + n);
  int n_new = (target + w->c.page_tokens - 1) / w->c.page_tokens - have;
  struct kv_stats before = kv_stats(w->kv);
  struct kv_short lack = kv_reserve(w->kv, &w->seq[i], n);
  bool ok = true;
  for (int k = 0; k < KV_KINDS; k++) {
    int expected = w->c.n_pages[k] ? MAX(0, n_new - (before.n_pages[k] - before.n_used[k])) : 0;
    assert_int_equal(lack.pages[k], expected);
    ok &= expected == 0;
  }
  if (!ok) {
    w->n_short++;
    return;
  }
  w->n_ok++;
  for (int pos = have * w->c.page_tokens; pos < MIN(w->c.tokens_max, (have + n_new) * w->c.page_tokens); pos++) t->swa_held[pos] = true;
  t->n_reserved = target;
}

static void do_drop(struct world *w, int i, uint64_t *seed) {
  struct twin_seq *t = &w->twin[i];
  int next_q = test_rand_int(seed, 0, 3) ? t->n_tokens : test_rand_int(seed, 0, t->n_tokens), P = w->c.page_tokens;
  kv_drop_window(w->kv, &w->seq[i], next_q);
  for (int page = 0; page * P < t->n_tokens; page++) {
    bool seen = false; /* by a query from next_q on; the first one sees the most of the past, a few more make sure */
    for (int q = next_q; q <= next_q + P + w->c.window_tokens; q++)
      for (int key = page * P; key < (page + 1) * P; key++) seen |= visible(&w->c, key, q) || key > q;
    if (seen || !w->c.n_pages[KV_SLIDING]) continue;
    for (int key = page * P; key < MIN((page + 1) * P, TOKENS); key++) w->n_dropped += t->swa_held[key], t->swa_held[key] = false;
  }
}

static bool shared_page(struct world *w, int i, int pos) {
  int page = pos / w->c.page_tokens;
  for (int j = 0; j < SEQS; j++)
    for (int p = 0; j != i && w->twin[j].open && p < w->seq[j].n_pairs; p++) {
      const struct kv_page *a = &w->seq[i].pairs[page], *b = &w->seq[j].pairs[p];
      if ((a->full && a->full == b->full) || (a->swa && a->swa == b->swa)) return true;
    }
  return false;
}

static void do_truncate(struct world *w, int i, uint64_t *seed) {
  struct twin_seq *t = &w->twin[i];
  int P = w->c.page_tokens, back = test_rand_int(seed, 0, test_rand_int(seed, 0, 2) ? 5 : TOKENS), n = MAX(0, t->n_tokens - back);
  bool possible = true;
  if (w->c.n_pages[KV_SLIDING])
    for (int key = 0; key < n; key++) /* what query n sees, and the page it is written to */
      if ((visible(&w->c, key, n) || key / P == n / P) && !t->swa_held[key]) possible = false;
  if (n % P && shared_page(w, i, n)) possible = false;
  assert_int_equal(kv_truncate(w->kv, &w->seq[i], n), possible);
  if (!possible) {
    w->n_cut_refused++;
    return;
  }
  w->n_cut++;
  t->n_tokens = t->n_reserved = n;
  for (int pos = (n + P - 1) / P * P; pos < TOKENS; pos++) t->swa_held[pos] = false;
  /* the rest of a page that stays is held with it */
}

static void do_adopt(struct world *w, int i, int from, uint64_t *seed) {
  struct twin_seq *t = &w->twin[i], *d = &w->twin[from];
  int P = w->c.page_tokens, whole = d->n_tokens / P;
  int n = P * (test_rand_int(seed, 0, 1) ? whole : test_rand_int(seed, 0, whole)), swa_from = 0;
  if (w->c.n_pages[KV_SLIDING]) {
    swa_from = (int)kv_window_lo(n, w->c.window_tokens) / P * P;
    for (int pos = swa_from; pos < n; pos++)
      if (!d->swa_held[pos]) return; /* a holder that has let go of this window: no match */
    while (swa_from > 0 && d->swa_held[swa_from - 1] && test_rand_int(seed, 0, 1)) swa_from -= P;
  }
  kv_seq_adopt(w->kv, &w->seq[i], w->seq[from].pairs, n, swa_from);
  w->n_adopted += n > 0;
  memcpy(t->stamp, d->stamp, sizeof t->stamp);
  for (int pos = 0; pos < n; pos++) t->swa_held[pos] = w->c.n_pages[KV_SLIDING] && pos >= swa_from;
  t->n_tokens = t->n_reserved = n;
  assert_int_equal(w->seq[i].own_from, n);
}

static void one_operation(struct world *w, uint64_t *seed) {
  int i = test_rand_int(seed, 0, SEQS - 1), what = test_rand_int(seed, 0, 99);
  struct twin_seq *t = &w->twin[i];
  struct kv_seq *s = &w->seq[i];
  if (!t->open) {
    int n_open = 0;
    for (int j = 0; j < SEQS; j++) n_open += w->twin[j].open;
    kv_seq_close(w->kv, s); /* fine on a closed one */
    bool expected = n_open < w->c.seqs_max;
    assert_int_equal(kv_seq_open(w->kv, s), expected);
    w->n_open_refused += !expected;
    if (!expected) return;
    *t = (struct twin_seq){.open = true};
    int from = test_rand_int(seed, 0, SEQS - 1); /* the longest, mostly */
    for (int j = 0; j < SEQS && test_rand_int(seed, 0, 7); j++)
      if (w->twin[j].n_tokens > w->twin[from].n_tokens) from = j;
    if (from != i && w->twin[from].open) do_adopt(w, i, from, seed);
  } else if (what < 35) {
    do_reserve(w, i, seed);
  } else if (what < 65) {
    int n = test_rand_int(seed, 0, 3) ? t->n_reserved - t->n_tokens : test_rand_int(seed, 0, t->n_reserved - t->n_tokens);
    write_rows(w, i, t->n_tokens, n);
    kv_commit(w->kv, s, n);
    t->n_tokens += n;
  } else if (what < 72) { /* a step that fails: rows were written, nobody may notice */
    uint64_t kept[TOKENS];
    memcpy(kept, t->stamp, sizeof kept);
    write_rows(w, i, t->n_tokens, t->n_reserved - t->n_tokens);
    memcpy(t->stamp, kept, sizeof kept);
    kv_cancel(w->kv, s);
    w->n_cancelled += t->n_reserved > t->n_tokens;
    int P = w->c.page_tokens;
    for (int pos = (t->n_tokens + P - 1) / P * P; pos < TOKENS; pos++) t->swa_held[pos] = false;
    t->n_reserved = t->n_tokens;
  } else if (what < 88) {
    do_drop(w, i, seed);
  } else if (what < 94) {
    do_truncate(w, i, seed);
  } else {
    kv_seq_close(w->kv, s);
    *t = (struct twin_seq){0};
  }
}

static void random_config(struct kv_config *c, uint64_t *seed) {
  static const int sizes[] = {1, 2, 4, 8, 16};
  int P = sizes[test_rand_int(seed, 0, 4)], shape = test_rand_int(seed, 0, 5);
  int pages_max = test_rand_int(seed, 0, 3) ? MIN(PAGES, 3 * TOKENS / P + 1) : 6;
  *c = (struct kv_config){.page_tokens = P,
                          .seqs_max = test_rand_int(seed, 0, 3) ? SEQS : test_rand_int(seed, 1, SEQS),
                          .tokens_max = test_rand_int(seed, 0, 3) ? TOKENS : test_rand_int(seed, 1, TOKENS),
                          .window_tokens = shape == 0 ? 0 : test_rand_int(seed, 1, 3 * P + 1)};
  if (shape != 1) c->n_pages[KV_FULL] = test_rand_int(seed, 1, pages_max); /* 1: every layer slides */
  if (shape != 0) c->n_pages[KV_SLIDING] = test_rand_int(seed, 1, pages_max);
}

static void test_operations(void **unused) {
  (void)unused;
  uint64_t seed = 5;
  static struct world w;
  int total[8] = {0}, n_ops = 0;
  for (int round = 0; round < 3000; round++) {
    memset(&w, 0, sizeof w);
    random_config(&w.c, &seed);
    struct err e = {0};
    w.kv = kv_new(&w.c, &e);
    if (!w.kv) fail_msg("%s", e.msg);
    assert_int_equal(kv_page_tokens(w.kv), w.c.page_tokens);
    assert_int_equal(kv_window_tokens(w.kv), w.c.window_tokens);
    for (int step = test_rand_int(&seed, 5, 120); step > 0; step--, n_ops++) {
      one_operation(&w, &seed);
      check_all(&w);
    }
    for (int i = 0; i < SEQS; i++) kv_seq_close(w.kv, &w.seq[i]), w.twin[i].open = false;
    check_all(&w); /* all pages are back: no sequence, none used */
    const int counts[8] = {w.n_ok, w.n_short, w.n_adopted, w.n_cut, w.n_cut_refused, w.n_dropped, w.n_cancelled, w.n_open_refused};
    for (int i = 0; i < 8; i++) total[i] += counts[i];
    kv_delete(w.kv);
  }
  print_message("%d operations: reserved %d, short %d, adopted %d, truncated %d (refused %d), slots dropped %d, cancelled %d, full %d\n",
                n_ops, total[0], total[1], total[2], total[3], total[4], total[5], total[6], total[7]);
  for (int i = 0; i < 8; i++) assert_true(total[i] > 200); /* the fuzzer reaches everything */
}

static void test_window_rule(void **unused) {
  (void)unused;
  for (int W = 0; W < 20; W++)
    for (int q = 0; q < 60; q++) {
      struct kv_config c = {.window_tokens = W};
      int first = 0;
      while (!visible(&c, first, q)) first++;
      assert_int_equal(kv_window_lo(q, W), first);
      if (W) assert_int_equal(q - first + 1, MIN(W, q + 1)); /* W keys, the query's own included */
    }
  assert_int_equal(kv_window_lo(INT32_MAX, INT32_MAX), 1);
  assert_int_equal(kv_window_lo((int64_t)1 << 40, 1), (int64_t)1 << 40);
}

/* Window 8 (own key included), pages of 4, prompt of 21 in chunks of 8, then single tokens; sliding pages held during each step. */
static void test_worked_trace(void **unused) {
  (void)unused;
  static const struct {
    int n, swa_from, n_swa_pages, first_visible; /* of the step's last query */
  } steps[] = {
      {8, 0, 2, 0},   {8, 0, 4, 8},   {5, 8, 4, 13}, /* 21 tokens */
      {1, 12, 3, 14}, {1, 12, 3, 15}, {1, 16, 2, 16}, {1, 16, 3, 17}, {1, 16, 3, 18}, {1, 16, 3, 19}, {1, 20, 2, 20}, {1, 20, 3, 21},
  };
  struct kv_config c = {.page_tokens = 4, .n_pages = {20, 4}, .window_tokens = 8, .seqs_max = 1, .tokens_max = 64};
  struct kv *kv = kv_new(&c, NULL);
  assert_non_null(kv);
  assert_int_equal(kv_pages_for(kv, 21, 8).pages[KV_SLIDING], 5); /* for the worst alignment; here chunks are aligned */
  struct kv_seq s = {0}, *open[] = {&s};
  assert_true(kv_seq_open(kv, &s));
  for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
    kv_drop_window(kv, &s, s.n_tokens);
    struct kv_short lack = kv_reserve(kv, &s, steps[i].n);
    assert_int_equal(lack.pages[KV_FULL] + lack.pages[KV_SLIDING], 0);
    assert_int_equal(s.swa_from, steps[i].swa_from);
    assert_int_equal(kv_stats(kv).n_used[KV_SLIDING], steps[i].n_swa_pages);
    assert_int_equal(kv_window_lo(s.n_reserved - 1, c.window_tokens), steps[i].first_visible);
    for (int pos = 0; pos < s.n_reserved; pos++) assert_int_equal(kv_slot(kv, &s, KV_SLIDING, pos) != 0, pos >= steps[i].swa_from);
    kv_commit(kv, &s, steps[i].n);
    assert_true(kv_check(kv, open, 1, NULL));
  }
  assert_int_equal(kv_stats(kv).n_used_peak[KV_SLIDING], 4);
  kv_seq_close(kv, &s);
  kv_delete(kv);
}

/* Slots continue a page that is partly full: 6 tokens, then 9 more, on pages that others hold in between. */
static void test_placement(void **unused) {
  (void)unused;
  struct kv_config c = {.page_tokens = 4, .n_pages = {20, 20}, .window_tokens = 64, .seqs_max = 2, .tokens_max = 64};
  struct kv *kv = kv_new(&c, NULL);
  struct kv_seq a = {0}, b = {0}, *open[] = {&a, &b};
  assert_true(kv_seq_open(kv, &a) && kv_seq_open(kv, &b));
  kv_reserve(kv, &b, 13); /* pages 1 to 4 */
  kv_reserve(kv, &a, 6);  /* 5, 6 */
  kv_commit(kv, &a, 6);
  kv_reserve(kv, &b, 20); /* 7 */
  kv_reserve(kv, &a, 9);  /* 8, 9 */
  static const int expected[15] = {20, 21, 22, 23, 24, 25, 26, 27, 32, 33, 34, 35, 36, 37, 38};
  for (int pos = 0; pos < 15; pos++)
    for (int k = 0; k < KV_KINDS; k++) assert_int_equal(kv_slot(kv, &a, k, pos), expected[pos]);
  assert_true(kv_check(kv, open, 2, NULL));
  kv_delete(kv);
}

/* Greatest number of sliding pages that any step at any position needs, by going through them all. */
static int pages_by_search(int n, int chunk, int W, int P) {
  int most = 0;
  for (int t = 0; t < n; t++)
    for (int m = 1; m <= chunk && t + m <= n; m++) {
      int first = t;
      while (first > 0 && t - (first - 1) < W) first--;
      most = MAX(most, (t + m - 1) / P - first / P + 1);
    }
  return most;
}

static void test_pages_for_is_exact(void **unused) {
  (void)unused;
  uint64_t seed = 9;
  for (int round = 0; round < 6000; round++) {
    int P = 1 << test_rand_int(&seed, 0, 4), W = test_rand_int(&seed, 1, 3 * P + 2), n = test_rand_int(&seed, 0, 60);
    int chunk = test_rand_int(&seed, 1, 24);
    struct kv_config c = {.page_tokens = P, .n_pages = {100, 100}, .window_tokens = W, .seqs_max = 1, .tokens_max = 64};
    struct kv *kv = kv_new(&c, NULL);
    struct kv_short need = kv_pages_for(kv, n, chunk);
    assert_int_equal(need.pages[KV_FULL], (n + P - 1) / P);
    assert_int_equal(need.pages[KV_SLIDING], pages_by_search(n, chunk, W, P));
    kv_delete(kv);
    if (n == 0) continue;

    /* a pool of exactly that size serves it, however it is cut */
    memcpy(c.n_pages, need.pages, sizeof c.n_pages);
    kv = kv_new(&c, NULL);
    struct kv_seq s = {0};
    assert_true(kv_seq_open(kv, &s));
    while (s.n_tokens < n) {
      int m = test_rand_int(&seed, 1, MIN(chunk, n - s.n_tokens));
      kv_drop_window(kv, &s, s.n_tokens);
      struct kv_short lack = kv_reserve(kv, &s, m);
      assert_int_equal(lack.pages[KV_FULL] + lack.pages[KV_SLIDING], 0);
      kv_commit(kv, &s, m);
    }
    kv_seq_close(kv, &s);
    assert_int_equal(kv_stats(kv).n_used[KV_FULL] + kv_stats(kv).n_used[KV_SLIDING], 0);
    kv_delete(kv);
  }
  struct kv_config only_full = {.page_tokens = 4, .n_pages = {9, 0}, .seqs_max = 1, .tokens_max = 64};
  struct kv *kv = kv_new(&only_full, NULL);
  assert_int_equal(kv_pages_for(kv, 33, 8).pages[KV_FULL], 9);
  assert_int_equal(kv_pages_for(kv, 33, 8).pages[KV_SLIDING], 0);
  kv_delete(kv);
}

static void test_config_is_checked(void **unused) {
  (void)unused;
  const struct kv_config good = {.page_tokens = 4, .n_pages = {8, 8}, .window_tokens = 5, .seqs_max = 2, .tokens_max = 32};
  for (int i = 0; i < 14; i++) {
    struct kv_config c = good;
    if (i == 0) c.page_tokens = 0;
    if (i == 1) c.page_tokens = 3;
    if (i == 2) c.page_tokens = 512;
    if (i == 3) c.n_pages[KV_FULL] = -1;
    if (i == 4) c.n_pages[KV_SLIDING] = -1;
    if (i == 5) c.n_pages[KV_FULL] = c.n_pages[KV_SLIDING] = c.window_tokens = 0;
    if (i == 6) c.window_tokens = 0;
    if (i == 7) c.window_tokens = -2;
    if (i == 8) c.n_pages[KV_SLIDING] = 0;
    if (i == 9) c.seqs_max = 0;
    if (i == 10) c.seqs_max = 65535;
    if (i == 11) c.tokens_max = 0;
    if (i == 12) c.tokens_max = INT32_MAX;
    if (i == 13) c.n_pages[KV_FULL] = INT32_MAX;
    struct err e = {0};
    assert_null(kv_new(&c, &e));
    assert_int_equal(e.code, ERR_BAD_INPUT);
    assert_true(strstr(e.msg, "expected") && strlen(e.msg) > 20);
  }
  kv_delete(NULL);
}

static void test_memory_runs_out(void **unused) {
  (void)unused;
  const struct kv_config c = {.page_tokens = 4, .n_pages = {8, 8}, .window_tokens = 5, .seqs_max = 2, .tokens_max = 32};
  int n_failed = 0;
  for (int64_t n = 1;; n++) {
    struct err e = {0};
    mem_fail_after(n);
    struct kv *kv = kv_new(&c, &e);
    bool pending = mem_fail_pending();
    mem_fail_after(0);
    if (kv) {
      assert_true(pending);
      kv_delete(kv);
      break;
    }
    assert_int_equal(e.code, ERR_NO_MEMORY);
    n_failed++;
  }
  assert_true(n_failed >= 10);
}

/* Each broken rule must be seen by kv_check. */
static void test_check_sees_damage(void **unused) {
  (void)unused;
  for (int damage = 0; damage < 15; damage++) {
    struct kv_config c = {.page_tokens = 4, .n_pages = {12, 12}, .window_tokens = 5, .seqs_max = 3, .tokens_max = 32};
    struct kv *kv = kv_new(&c, NULL);
    struct kv_seq a = {0}, b = {0}, *open[] = {&a, &b};
    assert_true(kv_seq_open(kv, &a) && kv_seq_open(kv, &b));
    kv_reserve(kv, &a, 14);
    kv_commit(kv, &a, 14);
    kv_drop_window(kv, &a, 14); /* lo = 10: pages of 8..15 stay */
    kv_seq_adopt(kv, &b, a.pairs, 12, 8);
    assert_true(kv_check(kv, open, 2, NULL));
    int n_open = 2;
    if (damage == 0) a.pairs[0].full = 0;                 /* lost */
    if (damage == 1) a.pairs[0].swa = 1;                  /* a page that was freed */
    if (damage == 2) a.pairs[3].full = a.pairs[2].full;   /* one page for two places */
    if (damage == 3) b.pairs[2].swa = a.pairs[3].swa;     /* another sequence's page */
    if (damage == 4) a.n_tokens = 17;                     /* more than reserved */
    if (damage == 5) a.swa_from = 12, a.pairs[2].swa = 0; /* the window is gone */
    if (damage == 6) a.swa_from = 9;                      /* alignment */
    if (damage == 7) b.own_from = 16;                     /* past its tokens */
    if (damage == 8) a.pairs[4].full = 9;                 /* past its end */
    if (damage == 9) a.n_pairs = 3;                       /* count */
    if (damage == 10) n_open = 1;                         /* a sequence is missing */
    if (damage == 11) open[1] = &a;                       /* one twice */
    if (damage == 12) a.pairs[3].full = 77;               /* range */
    if (damage == 13) b.n_entered = 16;                   /* more than it may share */
    if (damage == 14) b.n_entered = 3;                    /* alignment */
    struct err e = {0};
    if (kv_check(kv, open, n_open, &e)) fail_msg("damage %d was not seen", damage);
    assert_int_equal(e.code, ERR_INTERNAL);
    kv_delete(kv);
  }
}

/* A holder may not cut into a page that somebody adopted, and may again when the other has gone. */
static void test_shared_pages_are_not_written(void **unused) {
  (void)unused;
  struct kv_config c = {.page_tokens = 4, .n_pages = {12, 12}, .window_tokens = 64, .seqs_max = 2, .tokens_max = 32};
  struct kv *kv = kv_new(&c, NULL);
  struct kv_seq a = {0}, b = {0};
  assert_true(kv_seq_open(kv, &a) && kv_seq_open(kv, &b));
  kv_reserve(kv, &a, 14);
  kv_commit(kv, &a, 14);
  kv_seq_adopt(kv, &b, a.pairs, 8, 0);
  assert_true(kv_truncate(kv, &a, 9)); /* its own page */
  assert_false(kv_truncate(kv, &a, 7));
  assert_false(kv_truncate(kv, &b, 5));
  assert_int_equal(a.n_tokens, 9);
  assert_true(kv_truncate(kv, &b, 4)); /* whole pages can go */
  assert_int_equal(b.own_from, 4);
  assert_true(kv_truncate(kv, &a, 7)); /* nobody else has that page now */
  assert_false(kv_truncate(kv, &a, 3));
  kv_seq_close(kv, &a);
  assert_true(kv_truncate(kv, &b, 3)); /* the last owner may write */
  assert_int_equal(b.own_from, 0);
  struct kv_seq *open[] = {&b};
  assert_true(kv_check(kv, open, 1, NULL));
  kv_seq_close(kv, &b);
  kv_seq_close(kv, &b);
  assert_int_equal(kv_stats(kv).n_used[KV_FULL], 0);
  kv_delete(kv);
}

/* Pages that the tree owns as well: a shortage counts them as missing while they are idle, nobody cuts into them, and taking them up again counts as
 * use. */
static void test_kept_pages(void **unused) {
  (void)unused;
  struct kv_config c = {.page_tokens = 4, .n_pages = {6, 6}, .window_tokens = 4, .seqs_max = 2, .tokens_max = 32};
  struct kv *kv = kv_new(&c, NULL);
  struct kv_seq a = {0}, b = {0};
  assert_true(kv_seq_open(kv, &a));
  kv_reserve(kv, &a, 14);
  kv_commit(kv, &a, 14);
  struct kv_page pairs[4];
  memcpy(pairs, a.pairs, sizeof pairs);
  for (int i = 0; i < 4; i++) {
    pages_keep(kv_pool(kv, KV_FULL), pairs[i].full, PAGES_LOOSE);
    pages_keep(kv_pool(kv, KV_SLIDING), pairs[i].swa, PAGES_WORTHY);
  }
  a.n_entered = a.own_from = 12;
  assert_true(kv_check(kv, (struct kv_seq *[]){&a}, 1, NULL));
  assert_true(kv_truncate(kv, &a, 14)); /* nothing is cut */
  assert_false(kv_truncate(kv, &a, 13));
  assert_int_equal(a.n_entered, 12);
  assert_true(kv_truncate(kv, &a, 8));
  assert_int_equal(a.n_entered, 8);
  assert_false(kv_truncate(kv, &a, 6));
  assert_true(kv_truncate(kv, &a, 0));
  assert_int_equal(a.n_entered, 0);
  kv_seq_close(kv, &a);
  for (int k = 0; k < KV_KINDS; k++) {
    assert_int_equal(kv_stats(kv).n_used[k], 0);
    assert_int_equal(kv_stats(kv).n_idle[k], 4);
  }
  assert_int_equal(pages_oldest(kv_pool(kv, KV_FULL), PAGES_LOOSE), pairs[3].full); /* from the end */
  assert_int_equal(pages_oldest(kv_pool(kv, KV_SLIDING), PAGES_WORTHY), pairs[3].swa);

  /* going on at 15 one sees 12 to 14, which are copied: no older sliding page is needed */
  assert_true(kv_seq_open(kv, &a) && kv_seq_open(kv, &b));
  kv_seq_adopt(kv, &a, pairs, 12, 12);
  kv_reserve(kv, &a, 3);
  kv_commit(kv, &a, 3);
  assert_true(kv_check(kv, (struct kv_seq *[]){&a, &b}, 2, NULL));
  assert_int_equal(kv_stats(kv).n_used[KV_FULL], 4);
  assert_int_equal(kv_stats(kv).n_used[KV_SLIDING], 1);
  assert_int_equal(kv_reserve(kv, &b, 8).pages[KV_FULL], 1); /* idle ones are missing */
  assert_int_equal(kv_reserve(kv, &b, 8).pages[KV_SLIDING], 1);
  kv_reserve(kv, &b, 4);                             /* the last free ones */
  kv_seq_replace(kv, &b, 0, KV_FULL, pairs[3].full); /* an idle page becomes used, and b's own one free */
  assert_int_equal(b.pairs[0].full, pairs[3].full);
  assert_int_equal(kv_stats(kv).n_used[KV_FULL], 5);
  assert_int_equal(kv_stats(kv).n_idle[KV_FULL], 0);
  assert_int_equal(kv_pool(kv, KV_FULL)->n_free, 1);
  assert_true(kv_check(kv, (struct kv_seq *[]){&a, &b}, 2, NULL));
  kv_seq_close(kv, &b);
  assert_true(kv_check(kv, (struct kv_seq *[]){&a}, 1, NULL));
  kv_seq_close(kv, &a);
  kv_delete(kv);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_operations),      cmocka_unit_test(test_window_rule),        cmocka_unit_test(test_worked_trace),
    cmocka_unit_test(test_placement),       cmocka_unit_test(test_pages_for_is_exact), cmocka_unit_test(test_config_is_checked),
    cmocka_unit_test(test_memory_runs_out), cmocka_unit_test(test_check_sees_damage),  cmocka_unit_test(test_shared_pages_are_not_written),
    cmocka_unit_test(test_kept_pages),
};
TEST_MAIN(tests)
