/* t_thoughts.c — control tokens as marks beside the text, thoughts counted and held to a budget. The tiny models know no thoughts: two of their control
 * tokens are made into the borders of one. */
#include "test.h"

#include <string.h>

#include "engine/roads.h"

enum { EOS = 1, OPEN = 3, CLOSE = 4 };

static void know_thoughts(struct cygnet *c) {
  assert_true(tok_is_control(c->tok, OPEN) && tok_is_control(c->tok, CLOSE));
  c->limits.thought_open = OPEN;
  c->limits.thought_close = CLOSE;
}

/* ---- marks ------------------------------------------------------------------------------------------------------------------- */

/* Where a stop string is complete first in text, the longest of those; -1 = nowhere. */
static int twin_stop(const char *text, size_t n, const char *const *stop, int n_stop, size_t *end) {
  for (*end = 1; *end <= n; ++*end) {
    int found = -1;
    for (int i = 0; i < n_stop; i++) {
      size_t len = strlen(stop[i]);
      if (len <= *end && !memcmp(text + *end - len, stop[i], len) && (found < 0 || len > strlen(stop[found]))) found = i;
    }
    if (found >= 0) return found;
  }
  return -1;
}

/* What marks and stop strings make of ids: each stretch between control tokens by itself. */
static void twin(struct cygnet *c, const int32_t *ids, int n, const char *const *stop, int n_stop, struct answer *out) {
  memset(out, 0, sizeof *out);
  buf_init(&out->text, 0);
  for (int from = 0, i = 0; i <= n; i++) {
    if (i < n && !tok_is_control(c->tok, ids[i])) continue;
    size_t len, end;
    char *text = cygnet_decode(c, ids + from, (size_t)(i - from), 1, &len);
    int which = twin_stop(text, len, stop, n_stop, &end);
    buf_append(&out->text, text, which < 0 ? len : end - strlen(stop[which]));
    cygnet_free(text);
    if (which >= 0) return;
    if (i < n) out->marks[out->n_marks++] = (struct cygnet_mark){.at = out->text.len, .id = ids[i]};
    from = i + 1;
  }
}

static void control_tokens_are_marks(void **state) {
  (void)state;
  struct cygnet *c = open_with((struct cygnet_options){.model = narrow()});
  uint64_t rng = 4;
  int n_marks = 0, n_stopped = 0, n_across = 0;
  for (int round = 0; round < fewer(120); round++) {
    int32_t ids[6];
    struct answer whole, a, b, want;
    struct cygnet_bias bias[3] = {{.id = OPEN, .bias = 6}, {.id = CLOSE, .bias = 6}, {.id = EOS, .bias = 6}};
    struct cygnet_request r = {.prompt = ids,
                               .n_prompt = (size_t)random_prompt(&rng, ids, 6),
                               .max_tokens = 24,
                               .ignore_eos = 1,
                               .marks = 1,
                               .sampling = {.temperature = 1, .has_seed = 1, .seed = (uint64_t)round, .bias = bias, .n_bias = 3}};
    ask(c, &r, &whole, false);
    twin(c, whole.ids, whole.n, NULL, 0, &want);
    assert_int_equal(want.text.len, whole.text.len);
    assert_memory_equal(want.marks, whole.marks, sizeof want.marks);
    assert_memory_equal(buf_cstr(&want.text), buf_cstr(&whole.text), want.text.len);
    answer_free(&want);
    n_marks += whole.n_marks;

    char strings[2][8] = {{0}};
    const char *stop[2] = {strings[0], strings[1]};
    for (int i = 0; i < 2; i++) { /* bytes of the text, marks left out */
      size_t at = whole.text.len > 8 ? (size_t)test_rand_int(&rng, 0, (int)whole.text.len - 8) : 0, len = (size_t)test_rand_int(&rng, 1, 3);
      bool fine = whole.text.len > 8 && utf8_valid(whole.text.data + at, len) && !memchr(whole.text.data + at, 0, len);
      if (fine) memcpy(strings[i], whole.text.data + at, len);
      else strcpy(strings[i], "\x02");
      for (int k = 0; fine && k < whole.n_marks; k++) n_across += whole.marks[k].at > at && whole.marks[k].at < at + len;
    }
    r.stop = stop, r.n_stop = 2;
    ask(c, &r, &a, false);
    twin(c, whole.ids, whole.n, stop, 2, &want);
    assert_int_equal(a.text.len, want.text.len);
    assert_memory_equal(buf_cstr(&a.text), buf_cstr(&want.text), want.text.len);
    assert_int_equal(a.n_marks, want.n_marks);
    assert_memory_equal(a.marks, want.marks, sizeof a.marks);
    n_stopped += a.last.finish == CYGNET_FINISH_STOP;

    answer_init(&b, &r, false); /* nobody reads until the end: one event */
    submit(c, &r);
    while (cygnet_step(c)) check(c);
    drain(c);
    assert_int_equal(b.n_events, 1);
    assert_same(&a, &b, "joined");
    answer_free(&whole);
    answer_free(&a);
    answer_free(&b);
    answer_free(&want);
  }
  assert_true(n_marks > fewer(200) && n_stopped > fewer(20) && n_across > fewer(3) - few_roads());
  cygnet_close(c);
}

static void what_held_back_is_shown_before_a_mark(void **state) {
  (void)state;
  struct cygnet *c = open_with((struct cygnet_options){.model = narrow()});
  int32_t *ids;
  size_t n;
  assert_int_equal(cygnet_encode(c, "a", 1, 0, 0, &ids, &n), 0);
  int32_t a_id = ids[n - 1], prompt[] = {2, 300};
  cygnet_free(ids);
  struct cygnet_bias bias[] = {{.id = a_id, .bias = 100}, {.id = OPEN, .bias = 100}};
  const char *stop[] = {"aa"};
  int n_both = 0;
  for (uint64_t seed = 0; seed < 40; seed++) {
    struct answer a;
    struct cygnet_request r = {.prompt = prompt,
                               .n_prompt = 2,
                               .max_tokens = 5,
                               .ignore_eos = 1,
                               .marks = 1,
                               .stop = stop,
                               .n_stop = 1,
                               .sampling = {.temperature = 30, .has_seed = 1, .seed = seed, .bias = bias, .n_bias = 2}};
    ask(c, &r, &a, false);
    bool twice = false;
    for (int i = 0; i + 1 < a.n; i++) twice |= a.ids[i] == a_id && a.ids[i + 1] == a_id;
    struct buf all = {0}; /* with what was held back as the stop string: other tokens end or begin with an a, too */
    for (int i = 0; i < a.n; i++) {
      size_t len;
      const char *piece = cygnet_piece(c, a.ids[i], &len);
      if (a.ids[i] != OPEN) buf_append(&all, piece, len);
      else buf_append(&all, "|", 1); /* nothing stops across a mark */
    }
    const bool stops = twice || strstr(buf_cstr(&all), "aa"),
               last = stops && a.n == 5; /* the limit wins over a stop string in the same token */
    assert_true((a.last.finish == CYGNET_FINISH_STOP) == stops || (last && a.last.finish == CYGNET_FINISH_LENGTH));
    buf_free(&all);
    n_both += a.n_marks > 0 && a.text.len > 0 && !twice;
    answer_free(&a);
  }
  assert_true(n_both > 3);

  struct cygnet_error e = {0};
  struct cygnet_request r = {.prompt = prompt, .n_prompt = 2, .max_tokens = 5, .marks = 1, .show_special = 1};
  assert_int_equal(cygnet_submit(c, &r, &e), 0);
  assert_non_null(strstr(e.message, "show_special"));
  assert_int_equal(e.status, 400);
  r = (struct cygnet_request){.prompt = prompt, .n_prompt = 2, .max_tokens = 5, .thoughts = 3};
  assert_int_equal(cygnet_submit(c, &r, &e), 0);
  assert_non_null(strstr(e.message, "thoughts: expected 0 to 2, found 3"));
  r = (struct cygnet_request){.prompt = prompt, .n_prompt = 2, .max_tokens = 5, .thinking_budget = -1};
  assert_int_equal(cygnet_submit(c, &r, &e), 0);
  assert_non_null(strstr(e.message, "thinking_budget"));
  cygnet_close(c);
}

/* A token that ends the answer is a mark only where it is shown. */
static void ends_and_marks(void **state) {
  (void)state;
  struct cygnet *c = open_with((struct cygnet_options){.model = narrow()});
  int32_t prompt[] = {2, 300};
  struct cygnet_bias bias[] = {{.id = EOS, .bias = 100}};
  for (int keep = 0; keep < 2; keep++) {
    struct answer a;
    struct cygnet_request r = {
        .prompt = prompt, .n_prompt = 2, .max_tokens = 5, .marks = 1, .keep_stop = keep, .sampling = {.bias = bias, .n_bias = 1}};
    ask(c, &r, &a, false);
    assert_int_equal(a.last.finish, CYGNET_FINISH_STOP);
    assert_int_equal(a.n_marks, keep);
    if (keep) assert_int_equal(a.marks[0].id, EOS);
    answer_free(&a);
  }
  cygnet_close(c);
}

/* ---- thoughts ---------------------------------------------------------------------------------------------------------------- */

/* Follows an answer; fails when a budget of n_max (-1: none) was passed, or a thought begun after it was used up. Returns the tokens of thoughts. */
static int twin_thoughts(const int32_t *ids, int n, bool open, int n_max, int *n_closed) {
  int count = 0;
  for (int i = 0; i < n; i++) {
    if (open && n_max >= 0 && count >= n_max) {
      assert_int_equal(ids[i], CLOSE);
      ++*n_closed;
    }
    if (!open && n_max >= 0 && count >= n_max) assert_int_not_equal(ids[i], OPEN);
    count += open || ids[i] == OPEN;
    if (open && ids[i] == CLOSE) open = false;
    else if (ids[i] == OPEN) open = true;
  }
  return count;
}

static void opened(struct cygnet *c, struct roads *x) {
  (void)x;
  know_thoughts(c);
}

static void a_budget_closes_thoughts(void **state) {
  (void)state;
  enum { N = 12 };
  static struct trip trips[N];
  static int32_t prompts[N][20];
  static const struct cygnet_bias bias[] = {
      {.id = OPEN, .bias = 6}, {.id = CLOSE, .bias = 2}, {.id = 300, .bias = 6}, {.id = 301, .bias = 6}};
  int n_closed = 0, n_thoughts = 0, n_unlimited = 0;
  struct roads x = {.base = {.model = narrow()}, .trips = trips, .n = N, .n_roads = few_roads() ? 2 : 4, .opened = opened};
  for (uint64_t seed = 1; seed <= (uint64_t)fewer(3); seed++) {
    x.rng = seed;
    memset(trips, 0, sizeof trips);
    for (int i = 0; i < N; i++) {
      int n = random_prompt(&x.rng, prompts[i], test_rand_int(&x.rng, 1, 20));
      trips[i].r = (struct cygnet_request){.prompt = prompts[i],
                                           .n_prompt = (size_t)n,
                                           .max_tokens = 40,
                                           .ignore_eos = i % 2,
                                           .marks = i % 3 > 0,
                                           .logprobs = i % 2 ? 3 : 0,
                                           .thoughts = i % 3,
                                           .thinking_budget = i % 5 ? test_rand_int(&x.rng, 1, 9) : 0,
                                           .sampling = {.temperature = i % 4, .has_seed = 1, .seed = seed, .bias = bias, .n_bias = 4}};
    }
    struct cygnet *c = open_with((struct cygnet_options){.model = narrow()});
    know_thoughts(c);
    for (int i = 0; i < N; i++) {
      struct answer a;
      const struct cygnet_request *r = &trips[i].r;
      ask(c, &trips[i].r, &a, false);
      int n = twin_thoughts(a.ids, a.n, r->thoughts == CYGNET_THOUGHTS_OPEN, r->thinking_budget - 1, &n_closed);
      assert_in_range(a.last.reasoning_tokens - n, 0, 1); /* an end that is not shown may have been a thought */
      n_thoughts += n;
      n_unlimited += r->thinking_budget == 0;
      answer_free(&a);
    }
    cygnet_close(c);
    roads_travel(&x);
  }
  printf("  %d tokens of thoughts, %d closed by budget, %d guesses right\n", n_thoughts, n_closed, (int)x.n_accepted);
  assert_true(n_closed > (few_roads() ? 0 : 10) && n_thoughts > fewer(200) && n_unlimited > 1 &&
              (int)x.n_accepted > (few_roads() ? 0 : 50));
}

/* The token that was put there has the log-probability that the model gave it. */
static void forced_tokens_have_the_models_probability(void **state) {
  (void)state;
  struct cygnet *c = open_with((struct cygnet_options){.model = narrow()});
  know_thoughts(c);
  int32_t ids[40] = {2, 300, 301, 302};
  struct answer a, b;
  struct cygnet_request r = {.prompt = ids,
                             .n_prompt = 4,
                             .max_tokens = 12,
                             .ignore_eos = 1,
                             .logprobs = 3,
                             .thoughts = CYGNET_THOUGHTS_OPEN,
                             .thinking_budget = 1 + 5};
  ask(c, &r, &a, false);
  assert_int_equal(a.ids[5], CLOSE);
  assert_int_equal(a.last.reasoning_tokens, 6);
  assert_int_equal(a.n, 12);
  memcpy(ids + 4, a.ids, 12 * sizeof *ids);
  struct cygnet_request again = {.prompt = ids, .n_prompt = 16, .max_tokens = 0, .logprobs = 3, .prompt_logprobs = 1 + 4};
  ask(c, &again, &b, false);
  assert_int_equal(b.n_prompt, 12);
  for (int i = 0; i < 12; i++) {
    assert_int_equal(b.prompt[i].id, a.ids[i]);
    assert_memory_equal(&b.prompt[i].logprob, &a.logprob[i], sizeof(float));
    assert_memory_equal(b.prompt[i].top, a.top[i], 2 * sizeof(struct cygnet_logprob));
  }
  answer_free(&a);
  answer_free(&b);

  r.thinking_budget = 1; /* none at all: closed at once */
  ask(c, &r, &a, false);
  assert_int_equal(a.ids[0], CLOSE);
  assert_int_equal(a.last.reasoning_tokens, 1);
  answer_free(&a);
  r.max_tokens = 1;
  ask(c, &r, &a, false);
  assert_int_equal(a.last.finish, CYGNET_FINISH_LENGTH);
  answer_free(&a);
  cygnet_close(c);
}

/* A family without thoughts: the fields mean nothing. */
static void no_thoughts_without_tokens_for_them(void **state) {
  (void)state;
  struct cygnet *c = open_with((struct cygnet_options){.model = narrow()});
  assert_int_equal(c->limits.thought_open, -1);
  int32_t prompt[] = {2, 300, 301};
  struct answer want, a;
  struct cygnet_request r = {.prompt = prompt, .n_prompt = 3, .max_tokens = 12, .ignore_eos = 1};
  ask(c, &r, &want, false);
  for (int kind = 0; kind < 3; kind++) {
    r.thoughts = kind, r.thinking_budget = 1 + kind;
    ask(c, &r, &a, false);
    assert_same(&want, &a, "no thoughts");
    assert_int_equal(a.last.reasoning_tokens, 0);
    answer_free(&a);
  }
  answer_free(&want);
  cygnet_close(c);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(control_tokens_are_marks),
    cmocka_unit_test(what_held_back_is_shown_before_a_mark),
    cmocka_unit_test(ends_and_marks),
    cmocka_unit_test(a_budget_closes_thoughts),
    cmocka_unit_test(forced_tokens_have_the_models_probability),
    cmocka_unit_test(no_thoughts_without_tokens_for_them),
};
TEST_MAIN(tests)
