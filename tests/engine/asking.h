/* asking.h — a tiny engine, requests put to it, and all that comes back, for t_engine and t_reuse. */
#ifndef TEST_ASKING_H
#define TEST_ASKING_H

#include "test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/engine.h"
#include "npu.h"

enum { N_TOP = SAMPLE_TOP_MAX, ANSWER_TOKENS_MAX = 128, VOCAB = 512, HIDDEN = 256, LAYERS = 8 }; /* of tiny() */

struct answer { /* all that comes back of one request */
  uint64_t number;
  int32_t ids[ANSWER_TOKENS_MAX];
  float logprob[ANSWER_TOKENS_MAX];
  struct cygnet_logprob top[ANSWER_TOKENS_MAX][N_TOP];
  int n, n_events;
  struct buf text;
  struct cygnet_mark marks[ANSWER_TOKENS_MAX]; /* at: of the whole text */
  int n_marks;
  float *logits; /* [n_prompt, vocab] when asked for */
  int n_rows, vocab;
  struct cygnet_event last;
  struct cygnet_token *prompt; /* [n_prompt], owned: prompt logprobs; their `top` is owned, too */
  int n_prompt;
  bool sampled; /* not greedy */
  bool over;
};

static inline void on_logits(void *ctx, int position, const float *logits, int vocab) {
  struct answer *a = ctx;
  assert_true(vocab <= VOCAB);
  assert_int_equal(position, a->n_rows); /* in order, each once */
  memcpy(a->logits + (size_t)position * (size_t)vocab, logits, (size_t)vocab * sizeof(float));
  a->vocab = vocab;
  a->n_rows++;
}

static inline void answer_init(struct answer *a, struct cygnet_request *r, bool logits) {
  memset(a, 0, sizeof *a);
  buf_init(&a->text, 0);
  a->sampled = r->sampling.temperature > 0;
  r->user = a;
  if (!logits) return;
  a->logits = calloc(r->n_prompt * VOCAB, sizeof(float));
  assert_non_null(a->logits);
  r->on_logits = on_logits;
  r->callback_ctx = a;
}

static inline void answer_free(struct answer *a) {
  buf_free(&a->text);
  free(a->logits);
  for (int i = 0; i < a->n_prompt; i++) free((void *)(uintptr_t)a->prompt[i].top);
  free(a->prompt);
}

static inline void drain(struct cygnet *c) {
  struct cygnet_event ev;
  while (cygnet_next_event(c, &ev)) {
    struct answer *a = ev.user;
    assert_false(a->over);
    assert_int_equal(ev.request, a->number);
    assert_true(utf8_valid(ev.text, ev.n_text) && ev.text[ev.n_text] == 0);
    for (size_t i = 0; i < ev.n_marks; i++) {
      assert_true(a->n_marks < ANSWER_TOKENS_MAX && ev.marks[i].at <= ev.n_text);
      if (i) assert_true(ev.marks[i].at >= ev.marks[i - 1].at);
      a->marks[a->n_marks++] = (struct cygnet_mark){.at = a->text.len + ev.marks[i].at, .id = ev.marks[i].id};
    }
    buf_append(&a->text, ev.text, ev.n_text);
    for (size_t i = 0; i < ev.n_tokens; i++) {
      assert_true(a->n < ANSWER_TOKENS_MAX);
      a->ids[a->n] = ev.tokens[i].id;
      a->logprob[a->n] = ev.tokens[i].logprob;
      for (int t = 0; t < ev.tokens[i].n_top; t++) a->top[a->n][t] = ev.tokens[i].top[t];
      a->n++;
    }
    if (ev.n_prompt) {
      assert_true(a->n_events == 0 && !a->prompt); /* all at once, in the first event */
      a->n_prompt = (int)ev.n_prompt;
      a->prompt = calloc(ev.n_prompt, sizeof *a->prompt);
      for (int i = 0; i < a->n_prompt; i++) {
        a->prompt[i] = ev.prompt[i];
        size_t n = (size_t)ev.prompt[i].n_top * sizeof *ev.prompt[i].top;
        struct cygnet_logprob *top = malloc(n + 1);
        if (n) memcpy(top, ev.prompt[i].top, n);
        a->prompt[i].top = top;
      }
    }
    a->n_events++;
    a->last = ev;
    a->over = ev.finish != CYGNET_FINISH_NONE;
  }
}

static inline void check(const struct cygnet *c) {
  struct err e = {0};
  if (!engine_check(c, &e)) fail_msg("%s", e.msg);
}

static inline void submit(struct cygnet *c, const struct cygnet_request *r) {
  struct cygnet_error e = {0};
  struct answer *a = r->user;
  a->number = cygnet_submit(c, r, &e);
  if (!a->number) fail_msg("%s", e.message);
}

static inline void run(struct cygnet *c) {
  while (cygnet_step(c)) {
    check(c);
    drain(c);
  }
  drain(c);
  struct cygnet_stats st;
  cygnet_stats(c, &st);
  assert_int_equal(st.n_running + st.n_waiting, 0);
  assert_int_equal(st.pool_full_used_tokens + st.pool_sliding_used_tokens, 0);
}

static inline void ask(struct cygnet *c, struct cygnet_request *r, struct answer *a, bool logits) {
  answer_init(a, r, logits);
  submit(c, r);
  run(c);
  assert_true(a->over);
}

static inline const char *tiny(void) { return test_path("golden/gemma3-text-tiny"); }
/* Narrower still (64 wide, window 5, vocabulary 320), for tests of many steps. */
static inline const char *narrow(void) { return test_path("golden/gemma3-text-ropescale/model-q8_0.gguf"); }
enum { NARROW_VOCAB = 320 };

/* On an emulated NPU (npu.h) what engines say is the same within rounding, and what a case assumes of the CPU alone is passed over. */
static inline bool on_npu(void) { return npu_asked(); }
#define CPU_ONLY(why)                                                                                                                      \
  do {                                                                                                                                     \
    if (on_npu()) {                                                                                                                        \
      printf("  not on an NPU: %s\n", why);                                                                                                \
      skip();                                                                                                                              \
    }                                                                                                                                      \
  } while (0)

/* Where a step takes twenty or a hundred times as long; of n roads, lengths or seeds so many are tried there. */
static inline bool few_roads(void) { return on_npu() || TEST_TSAN; }
static inline int fewer(int n) { return few_roads() ? MAX(1, n / 8) : n; }
/* Of n rounds that differ in what is said alone: races are found in the first of them. */
static inline int rounds(int n) { return TEST_TSAN ? MAX(1, n / 8) : n; }

static inline void choose_backend(struct cygnet_options *o) {
  if (!on_npu() || o->draft_model) return; /* drafters are the CPU's */
  npu_use();
  o->backend = "ascend";
  o->kv_type = o->isa = o->attn = NULL;
  o->page_tokens = MAX(o->page_tokens, 16); /* what its routes take */
}

static inline struct cygnet *open_with(struct cygnet_options o) {
  struct cygnet_error e = {0};
  choose_backend(&o);
  if (!o.model) o.model = tiny();
  if (!o.threads) o.threads = 1;
  if (!o.ctx_tokens) o.ctx_tokens = 128;
  o.quiet = 1;
  struct cygnet *c = cygnet_open(&o, &e);
  if (!c) fail_msg("%s", e.message);
  return c;
}

static inline int random_prompt(uint64_t *rng, int32_t *ids, int n) {
  for (int i = 0; i < n; i++) ids[i] = test_rand_int(rng, 3, NARROW_VOCAB - 1);
  ids[0] = 2;
  return n;
}

/* The same within bf16: tokens until the first choice between two that are about as probable, and how probable they are. */
static inline void assert_alike(const struct answer *want, const struct answer *got, const char *road) {
  enum { NEAR_PERCENT = 30 }; /* of a log-probability */
  if (got->last.finish != CYGNET_FINISH_STOP && want->last.finish != CYGNET_FINISH_STOP)
    assert_int_equal(want->last.finish, got->last.finish);
  for (int i = 0; i < MIN(want->n, got->n); i++) {
    float best = want->logprob[i];
    if (want->ids[i] == got->ids[i]) {
      if (!(fabsf(best - got->logprob[i]) <= NEAR_PERCENT / 100.f))
        fail_msg("%s: token %d: log-probability %g, expected %g", road, i, (double)got->logprob[i], (double)best);
      continue;
    }
    if (want->sampled) return;
    float second = -INFINITY;
    for (int t = 0; t < N_TOP; t++)
      if (want->top[i][t].id == got->ids[i]) second = want->top[i][t].logprob;
    if (second > -INFINITY && !(best - second <= 2 * NEAR_PERCENT / 100.f))
      fail_msg("%s: token %d is %d, expected %d: log-probabilities %g, %g", road, i, got->ids[i], want->ids[i], (double)second,
               (double)best);
    return; /* from here on they say different things */
  }
  if (want->n != got->n) fail_msg("%s: %d tokens, expected %d", road, got->n, want->n);
}

static inline void assert_same(const struct answer *a, const struct answer *b, const char *road) {
  if (on_npu()) {
    assert_alike(a, b, road);
    return;
  }
  if (a->n != b->n || memcmp(a->ids, b->ids, sizeof a->ids)) fail_msg("%s: other tokens", road);
  if (memcmp(a->logprob, b->logprob, sizeof a->logprob) || memcmp(a->top, b->top, sizeof a->top)) fail_msg("%s: other probabilities", road);
  if (a->text.len != b->text.len || memcmp(buf_cstr(&a->text), buf_cstr(&b->text), a->text.len)) fail_msg("%s: other text", road);
  if (a->n_rows != b->n_rows) fail_msg("%s: %d rows, expected %d", road, b->n_rows, a->n_rows);
  if (a->n_rows && memcmp(a->logits, b->logits, (size_t)a->n_rows * (size_t)a->vocab * sizeof(float))) fail_msg("%s: other logits", road);
  if (a->n_marks != b->n_marks || memcmp(a->marks, b->marks, sizeof a->marks)) fail_msg("%s: other marks", road);
  assert_int_equal(a->last.finish, b->last.finish);
  assert_int_equal(a->last.matched_id, b->last.matched_id);
  assert_int_equal(a->last.matched_stop, b->last.matched_stop);
  assert_int_equal(a->last.reasoning_tokens, b->last.reasoning_tokens);
  assert_int_equal(a->last.completion_tokens, b->last.completion_tokens);
}

#endif
