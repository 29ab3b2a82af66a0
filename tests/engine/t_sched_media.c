/* t_sched_media.c — the scheduler and the batch with pictures and sounds in prompts, over the world of world.h: stores too small for all,
 * encoders that take their time, pictures that must not be cut, banks for cross-attention. Every row is held against the definitions of
 * compute/batch.h. */
#include "engine/sched_impl.h"
#include "engine/world.h"

enum { CONTENTS = 6, TOKENS_MAX = 40 };

struct scene {
  struct world w;
  struct media_rules rules;
  struct banks *banks;
  struct batch batch;
  struct batch_shape shape;
  struct media media[CONTENTS]; /* n_tokens, n_rows, kind */
  uint64_t n_fills, n_late, n_blocked, n_whole, n_soft, n_cross;
};

static struct bank_key key_of(int content) {
  struct bank_key key;
  memset(&key, 0, sizeof key);
  key.digest[3] = (uint8_t)content;
  key.digest[0] = 1;
  return key;
}

static bool takes_whole(const struct scene *x, int content) {
  return x->media[content].kind != MEDIA_AUDIO && (x->rules.both_ways[KV_FULL] || x->rules.both_ways[KV_SLIDING]);
}

/* Replace what is at `at` by content, if it fits. Returns rows. */
static int put_medium(const struct scene *x, struct request *r, int at, int content) {
  const struct media *m = &x->media[content];
  if (at + m->n_tokens > r->n_prompt) return 0;
  r->spans[r->n_spans++] = (struct request_span){
      .first = at, .n = m->n_tokens, .media = m, .id = 7, .whole = takes_whole(x, content), .bank_end = m->n_rows};
  for (int i = 0; i < m->n_tokens; i++) r->tokens[at + i] = -2 - content - 5000;
  return m->n_tokens;
}

/* The slow way to what request.c makes: a bank for each run of neighbours, or for each medium. */
static void make_banks(const struct scene *x, struct request *r) {
  int page = banks_page_rows(x->banks);
  for (int i = 0; i < r->n_spans; i++) {
    struct request_span *y = &r->spans[i];
    int content = (int)(y->media - x->media);
    bool joins = x->rules.cross && i && r->spans[i - 1].first + 1 == y->first;
    if (!joins) {
      r->banks[r->n_banks++] = (struct request_bank){
          .key = key_of(content), .first_span = i, .from = y->first, .until = x->rules.cross ? INT_MAX : y->first + y->n};
      if (x->rules.cross && r->n_banks > 1) r->banks[r->n_banks - 2].until = y->first;
    }
    struct request_bank *b = &r->banks[r->n_banks - 1];
    b->n_spans++;
    b->n_rows += y->media->n_rows;
    if (joins) { /* the key of a list */
      memmove(b->key.digest + 4, b->key.digest + 3, 20);
      b->key.digest[3] = (uint8_t)(content + 1);
      b->key.digest[2]++;
    }
    y->bank = r->n_banks - 1;
    y->bank_end = b->n_rows;
  }
  int rows = 0;
  for (int i = 0; i < r->n_banks && x->rules.cross; i++) {
    int same = 0;
    while (memcmp(&r->banks[same].key, &r->banks[i].key, sizeof(struct bank_key)) != 0) same++;
    r->banks[i].first_row = same < i ? r->banks[same].first_row : rows;
    if (same == i) rows += div_up(r->banks[i].n_rows, page) * page;
  }
}

static struct request *random_request(struct scene *x, uint64_t *rng) {
  struct world *w = &x->w;
  int prompt = test_rand_int(rng, 1, w->kc.tokens_max);
  struct request *r = world_request(w, prompt, test_rand_int(rng, 0, w->kc.tokens_max - prompt), test_rand_int(rng, 0, 5) ? 0 : 1,
                                    test_rand_int(rng, 0, 3) == 0);
  const struct request *like = r->number > 1 && test_rand_int(rng, 0, 2) ? w->requests[test_rand_int(rng, 0, (int)r->number - 2)] : NULL;
  r->spans = xcalloc((size_t)prompt, sizeof *r->spans);
  r->banks = xcalloc((size_t)prompt, sizeof *r->banks);
  int n_like = like ? test_rand_int(rng, 0, like->n_prompt) : 0, at = 0;
  if (like) world_begin_like(r, like, n_like);
  n_like = MIN(n_like, prompt);
  for (int i = 0; like && i < like->n_spans && like->spans[i].first + like->spans[i].n <= n_like; i++) {
    at = like->spans[i].first;
    at += put_medium(x, r, at, (int)(like->spans[i].media - x->media));
  }
  for (int i = at; i < n_like; i++) /* no half of a picture */
    if (r->tokens[i] <= -5000) r->tokens[i] = 99;
  for (at = MAX(at, n_like); at < prompt; at++)
    while (test_rand_int(rng, 0, 4) == 0 && at < prompt) {
      int n = put_medium(x, r, at, test_rand_int(rng, 0, CONTENTS - 1));
      if (!n) break;
      at += n;
    }
  make_banks(x, r);
  return r;
}

static int pages_of(const struct scene *x, const struct request *r) {
  int n = 0;
  for (int i = 0; i < r->n_banks; i++) {
    int same = 0;
    while (memcmp(&r->banks[same].key, &r->banks[i].key, sizeof(struct bank_key)) != 0) same++;
    if (same == i) n += banks_pages_for(x->banks, r->banks[i].n_rows);
  }
  return n;
}

/* ---- one scene ------------------------------------------------------------------------------------------------------------ */

static void scene_open(struct scene *x, uint64_t *rng) {
  struct kv_config kc;
  struct sched_config sc;
  memset(x, 0, sizeof *x);
  int tokens_max = test_rand_int(rng, 6, TOKENS_MAX), picture_most = MIN(9, tokens_max);
  world_random(rng, tokens_max, &kc, &sc);
  x->rules = (struct media_rules){.takes = true, .cross = test_rand_int(rng, 0, 2) == 0, .token = 3};
  for (int k = 0; k < KV_KINDS; k++) x->rules.both_ways[k] = !x->rules.cross && test_rand_int(rng, 0, 2);
  int page_rows = x->rules.cross ? kc.page_tokens : test_rand_int(rng, 1, 4), rows_most = 0, n = picture_most;
  for (int i = 0; i < CONTENTS; i++) {
    struct media *m = &x->media[i];
    m->kind = i % 3 == 2 && !x->rules.cross ? MEDIA_AUDIO : MEDIA_IMAGE;
    m->n_tokens = x->rules.cross ? 1 : test_rand_int(rng, 1, picture_most);
    m->n_rows = x->rules.cross ? test_rand_int(rng, 1, 9) : m->n_tokens;
    rows_most = MAX(rows_most, m->n_rows);
  }
  if (x->rules.both_ways[KV_FULL] || x->rules.both_ways[KV_SLIDING]) sc.step_tokens = MAX(n, sc.chunk_tokens);
  else n = sc.chunk_tokens;
  sc.rows_max = MAX(sc.step_tokens, sc.chunk_tokens) + sc.max_running;
  sc.out_max = test_rand_int(rng, sc.max_running, sc.rows_max);
  struct kv_config one = kc;
  for (int k = 0; k < KV_KINDS; k++) one.n_pages[k] = kc.n_pages[k] > 0;
  struct kv *probe = kv_new(&one, NULL);
  struct kv_short need = kv_pages_for(probe, tokens_max, MAX(sc.step_tokens, sc.chunk_tokens));
  kv_delete(probe);
  for (int k = 0; k < KV_KINDS; k++) kc.n_pages[k] = MAX(kc.n_pages[k], need.pages[k]);
  world_open(&x->w, &kc, &sc, test_rand_int(rng, 0, 3) > 0);
  x->banks = x->w.sched.banks = banks_new(page_rows, test_rand_int(rng, div_up(rows_most, page_rows), 30), NULL);
  x->shape = (struct batch_shape){.rows_max = sc.rows_max,
                                  .seqs_max = sc.max_running,
                                  .out_max = sc.out_max,
                                  .tokens_max = tokens_max,
                                  .page_tokens = kc.page_tokens,
                                  .cross_pages_max = x->rules.cross ? banks_stats(x->banks).n_pages : 0};
  assert_int_equal(batch_init(&x->batch, &x->shape, NULL), 0);
}

static void scene_close(struct scene *x) {
  world_close(&x->w);
  assert_int_equal(banks_stats(x->banks).n_rows_held, 0);
  banks_delete(x->banks);
  batch_free(&x->batch);
}

static int content_of(const struct scene *x, const struct request_span *y) { return (int)(y->media - x->media); }

/* One row by the slow definitions. */
static void check_row(struct scene *x, int row) {
  const struct batch *b = &x->batch;
  const struct sched_pick *p = &x->w.sched.picks[b->seq[row]];
  const struct request *r = p->r;
  int pos = p->first + row - b->q_start[b->seq[row]];
  assert_int_equal(b->pos[row], pos);
  const struct request_span *y = NULL;
  for (int i = 0; i < r->n_spans; i++)
    if (r->spans[i].first <= pos && pos < r->spans[i].first + r->spans[i].n) y = &r->spans[i];
  assert_int_equal(b->token[row], y ? x->rules.token : r->tokens[pos]);
  if (y && !x->rules.cross) {
    int64_t slot;
    int32_t entry = banks_find(x->banks, &(struct bank_key[]){key_of(content_of(x, y))}[0]);
    assert_true(entry && banks_is_filled(x->banks, entry) && banks_is_held(x->banks, entry));
    banks_slots(x->banks, entry, pos - y->first, 1, &slot);
    assert_int_equal(b->soft[row], slot);
    x->n_soft++;
  } else {
    assert_int_equal(b->soft[row], -1);
  }
  for (int k = 0; k < KV_KINDS; k++) {
    if (!x->w.kc.n_pages[k]) continue;
    bool both = y && y->media->kind != MEDIA_AUDIO && x->rules.both_ways[k];
    int lo = 0;
    while (k == KV_SLIDING && pos - lo >= x->w.kc.window_tokens) lo++;
    assert_int_equal(b->lo[k][row], lo);
    assert_int_equal(b->hi[k][row], both ? y->first + y->n : pos + 1);
    const int32_t *table = b->page[k] + b->seq[row] * b->pages_max[k];
    for (int key = lo; key < b->hi[k][row]; key++)
      assert_int_equal((int64_t)table[key / x->w.kc.page_tokens] * x->w.kc.page_tokens + key % x->w.kc.page_tokens,
                       kv_slot(x->w.kv, &r->kv, k, key));
  }
  /* the pictures of the last run of neighbours that has begun, up to this position */
  int last = r->n_spans - 1, first;
  while (last >= 0 && (!x->rules.cross || r->spans[last].first > pos)) last--;
  int lo = b->lo[BATCH_CROSS][row], hi = b->hi[BATCH_CROSS][row];
  if (last < 0) {
    assert_int_equal(lo, hi);
    return;
  }
  x->n_cross++;
  for (first = last; first && r->spans[first - 1].first + 1 == r->spans[first].first;) first--;
  int rows = 0, n_before = 0, page = banks_page_rows(x->banks);
  for (int i = first; i <= last; i++) rows += r->spans[i].media->n_rows;
  assert_int_equal(hi - lo, rows);
  assert_int_equal(lo % page, 0);
  int32_t entry = r->banks[r->spans[last].bank].entry, pages[64];
  assert_true(entry && banks_is_filled(x->banks, entry));
  int n = banks_pages(x->banks, entry, pages);
  for (; n_before < n; n_before++)
    assert_int_equal(b->page[BATCH_CROSS][b->seq[row] * b->pages_max[BATCH_CROSS] + lo / page + n_before], pages[n_before]);
}

static void check_picks(struct scene *x) {
  struct sched *s = &x->w.sched;
  int prompt_rows = 0, outs = 0;
  for (int i = 0; i < s->n_picks; i++) {
    const struct sched_pick *p = &s->picks[i];
    const struct request *r = p->r;
    int end = p->first + p->n;
    assert_int_equal(p->first, r->n_computed);
    if (!p->is_decoding) prompt_rows += p->n;
    outs += p->n_out;
    for (int k = 0; k < r->n_spans; k++) {
      const struct request_span *y = &r->spans[k];
      if (!y->whole) continue;
      for (int cut = y->first + 1; cut < y->first + y->n; cut++) assert_true(p->first != cut && end != cut);
      if (y->first >= p->first && y->first + y->n <= end && y->n > 1) x->n_whole++;
    }
    if (p->n_late) {
      x->n_late++;
      assert_true(r->on_logits && p->n_out > 0 && p->first == r->n_computed);
    }
    if (r->on_logits && p->n_out && r->n_reported < r->n_prompt)
      assert_int_equal(end - p->n_late - p->n_out, r->n_reported); /* each once, in order */
  }
  assert_true(prompt_rows <= s->config.step_tokens && outs <= s->config.out_max);
}

/* The encoder: one of those that are waited for, not always. */
static bool encode_one(struct scene *x, uint64_t *rng) {
  int32_t waiting[256];
  int n = 0;
  for (const struct request *r = x->w.sched.running.first; r; r = r->next)
    for (int i = 0; i < r->n_banks; i++)
      if (r->banks[i].entry && !banks_is_filled(x->banks, r->banks[i].entry) && n < 256) waiting[n++] = r->banks[i].entry;
  if (n == 0) return false;
  banks_fill(x->banks, waiting[test_rand_int(rng, 0, n - 1)]);
  x->n_fills++;
  return true;
}

static void step(struct scene *x, uint64_t *rng) {
  struct world *w = &x->w;
  bool has_rows = sched_next(&w->sched) > 0;
  world_check(w);
  check_picks(x);
  if (has_rows) {
    batch_build(&x->batch, w->kv, (struct batch_media){&x->rules, x->banks}, w->sched.picks, w->sched.n_picks);
    for (int row = 0; row < x->batch.n_rows; row++) check_row(x, row);
    int n_soft = 0, n_cross = 0;
    for (int row = 0; row < x->batch.n_rows; row++) {
      n_soft += x->batch.soft[row] >= 0;
      n_cross += x->batch.lo[BATCH_CROSS][row] < x->batch.hi[BATCH_CROSS][row];
    }
    assert_int_equal(x->batch.n_soft, n_soft);
    assert_int_equal(x->batch.n_cross, n_cross);
  }
  world_compute(w);
  if (has_rows) world_finish_step(w);
  x->n_blocked += w->sched.n_blocked > 0;
  if (!has_rows && w->sched.running.n + w->sched.waiting.n > 0) assert_true(encode_one(x, rng)); /* that is what all wait for */
  else if (test_rand_int(rng, 0, 3)) encode_one(x, rng);
  world_check(w);
}

static void random_scenes(void **state) {
  (void)state;
  uint64_t rng = 11, n_fills = 0, n_late = 0, n_blocked = 0, n_whole = 0, n_soft = 0, n_cross = 0, n_cached = 0, n_retracted = 0;
  for (int round = 0; round < 1500; round++) {
    struct scene x;
    scene_open(&x, &rng);
    struct world *w = &x.w;
    int n = test_rand_int(&rng, 1, 16), submitted = 0, gone = 0, steps = 0, budget = 0;
    while (submitted < n || w->sched.running.n + w->sched.waiting.n > 0) {
      while (submitted < n && test_rand_int(&rng, 0, 2)) {
        struct request *r = random_request(&x, &rng);
        struct err e = {0};
        bool fits = pages_of(&x, r) <= banks_stats(x.banks).n_pages;
        assert_int_equal(sched_fits(&w->sched, r, &e), fits);
        if (fits) assert_true(sched_add(&w->sched, r));
        else gone++, assert_non_null(strstr(e.msg, "--media-mem"));
        budget += r->n_limit;
        submitted++;
      }
      if (test_rand_int(&rng, 0, 30) == 0 && w->n_requests) {
        struct request *r = w->requests[test_rand_int(&rng, 0, w->n_requests - 1)];
        if (r->state != REQUEST_DONE) sched_remove(&w->sched, r), gone++;
      }
      if (w->sched.running.n && test_rand_int(&rng, 0, 19) == 0)
        sched_retract(&w->sched, test_rand_int(&rng, 0, 1) ? w->sched.running.last : w->sched.running.first);
      step(&x, &rng);
      assert_true(++steps < (budget + 8) * 60);
    }
    assert_int_equal(w->n_finished + gone, n);
    assert_true(w->sched.counts.media_cached <= w->sched.counts.media);
    n_cached += w->sched.counts.media_cached;
    n_retracted += w->sched.n_retracted;
    n_fills += x.n_fills, n_late += x.n_late, n_blocked += x.n_blocked, n_whole += x.n_whole, n_soft += x.n_soft, n_cross += x.n_cross;
    scene_close(&x);
  }
  print_message("filled %d, late %d, blocked %d, whole %d, soft %d, cross %d, cached %d, retracted %d\n", (int)n_fills, (int)n_late,
                (int)n_blocked, (int)n_whole, (int)n_soft, (int)n_cross, (int)n_cached, (int)n_retracted);
  assert_true(n_fills > 5000 && n_late > 200 && n_blocked > 2000 && n_whole > 2000 && n_soft > 20000 && n_cross > 20000);
  assert_true(n_cached > 2000 && n_retracted > 500);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(random_scenes),
};
TEST_MAIN(tests)
