/* t_grammar_engine.c — answers that must have a form: they have it, by every road the same; jump-ahead, ends, thoughts before them, what cannot be. */
#include "test.h"

#include <jansson.h>
#include <string.h>

#include "base/mem.h"
#include "engine/roads.h"

enum { EOS = 1, OPEN = 3, CLOSE = 4 };

static struct cygnet_grammar *grammar_of(struct cygnet *c, enum cygnet_grammar_kind kind, const char *text) {
  struct cygnet_error e = {0};
  struct cygnet_grammar *g = cygnet_grammar_new(c, kind, text, strlen(text), &e);
  if (!g) fail_msg("%s: %s", text, e.message);
  return g;
}

/* ---- does an answer have its form? ------------------------------------------------------------------------------------------- */

static bool is_choice(const char *s) { return !strcmp(s, "yes") || !strcmp(s, "no") || !strcmp(s, "not at all"); }
static bool is_letters(const char *s) { return strlen(s) >= 2 && strlen(s) <= 5 && strspn(s, "abc") == strlen(s); }
static bool is_sentence(const char *s) { return !strncmp(s, "the answer to it: ", 18) && strspn(s + 18, "ade") == strlen(s + 18) && s[18]; }
static bool is_list(const char *s) { /* (letters)(-letters)* */
  for (;; s++) {
    size_t n = strspn(s, "no");
    s += n;
    if (n == 0 || (*s && *s != '-')) return false;
    if (!*s) return true;
  }
}
static bool is_person(const char *s) {
  json_t *o = json_loads(s, JSON_REJECT_DUPLICATES, NULL), *name = json_object_get(o, "name"), *old = json_object_get(o, "old");
  bool ok = json_object_size(o) == 2 && json_is_string(name) && json_is_boolean(old);
  json_decref(o);
  return ok;
}
static bool is_nested(const char *s) { /* a^n b^n */
  size_t a = strspn(s, "a");
  return a > 0 && strspn(s + a, "b") == a && !s[2 * a];
}

static const struct form {
  enum cygnet_grammar_kind kind;
  const char *text;
  bool (*fits)(const char *s);
} forms[] = {
    {CYGNET_GRAMMAR_REGEX, "yes|no|not at all", is_choice},
    {CYGNET_GRAMMAR_REGEX, "[abc]{2,5}", is_letters},
    {CYGNET_GRAMMAR_EBNF, "root ::= \"the answer to it: \" [ade]+", is_sentence},
    {CYGNET_GRAMMAR_EBNF, "root ::= w (\"-\" w)*\nw ::= [no]+", is_list},
    {CYGNET_GRAMMAR_EBNF, "root ::= \"ab\" | \"a\" root \"b\"", is_nested},
    {CYGNET_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":8},\"old\":{\"type\":\"boolean\"}},"
     "\"required\":[\"name\",\"old\"],\"additionalProperties\":false}",
     is_person},
};
enum { N_FORMS = ARRAY_LEN(forms) };

/* What the answer says when its thoughts, and the end if it is shown, are left out. */
static void answer_text(struct cygnet *c, const struct answer *a, bool open, struct buf *out) {
  buf_init(out, 0);
  for (int i = 0; i < a->n; i++) {
    if (open ? a->ids[i] == CLOSE : a->ids[i] == OPEN) open = !open;
    else if (!open && !tok_is_control(c->tok, a->ids[i])) buf_append(out, tok_piece(c->tok, a->ids[i]).p, tok_piece(c->tok, a->ids[i]).n);
  }
}

static void know_thoughts(struct cygnet *c) {
  c->limits.thought_open = OPEN;
  c->limits.thought_close = CLOSE;
}

static void every_answer_has_its_form(void **state) {
  (void)state;
  struct cygnet *c = open_with((struct cygnet_options){.model = narrow()});
  know_thoughts(c);
  int32_t prompt[] = {2, 300, 301, 302};
  static const struct cygnet_bias bias[] = {
      {.id = OPEN, .bias = 9}, {.id = 290, .bias = 6}, {.id = EOS, .bias = 8}, {.id = CLOSE, .bias = 5}};
  int n_stopped = 0, n_thoughts = 0, n = 0;
  for (int f = 0; f < (int)N_FORMS; f++) {
    struct cygnet_grammar *g = grammar_of(c, forms[f].kind, forms[f].text);
    for (uint64_t seed = 0; seed < (uint64_t)fewer(40); seed++) {
      struct answer a;
      struct cygnet_request r = {
          .prompt = prompt,
          .n_prompt = 1 + seed % 4,
          .max_tokens = 60,
          .grammar = g,
          .thoughts = (int)(seed / 4 % 3),
          .thinking_budget = seed % 2 ? 6 : 20,
          .ignore_eos = seed % 5 == 4,
          .logprobs = seed % 7 == 6,
          .sampling = {.temperature = 0.5 * (double)(seed % 3), .has_seed = 1, .seed = seed, .bias = bias, .n_bias = 4}};
      ask(c, &r, &a, false);
      n++;
      n_thoughts += a.last.reasoning_tokens;
      if (a.last.finish == CYGNET_FINISH_STOP) {
        struct buf text;
        answer_text(c, &a, r.thoughts == CYGNET_THOUGHTS_OPEN, &text);
        if (!forms[f].fits(buf_cstr(&text))) fail_msg("form %d, seed %d: %s", f, (int)seed, buf_cstr(&text));
        buf_free(&text);
        n_stopped++;
      } else {
        assert_int_equal(a.last.finish, CYGNET_FINISH_LENGTH);
        assert_int_equal(a.last.completion_tokens, 60);
      }
      answer_free(&a);
    }
    cygnet_grammar_free(g);
  }
  printf("  %d of %d answers ended by themselves; %d tokens of thoughts, %d forced\n", n_stopped, n, n_thoughts,
         (int)c->stats.forced_tokens);
  assert_true(n_stopped > n / 2 && n_thoughts > fewer(100) && (int)c->stats.forced_tokens > fewer(100));
  cygnet_close(c);
}

/* ---- by every road ------------------------------------------------------------------------------------------------------------ */

enum { N_TRIPS = 12 };
static struct cygnet_grammar *grammars[N_TRIPS];

static void opened(struct cygnet *c, struct roads *x) {
  know_thoughts(c);
  for (int i = 0; i < x->n; i++)
    x->trips[i].r.grammar = grammars[i] = i % 4 == 3 ? NULL : grammar_of(c, forms[i % N_FORMS].kind, forms[i % N_FORMS].text);
}
static void closing(struct cygnet *c, struct roads *x) {
  (void)c;
  for (int i = 0; i < x->n; i++) cygnet_grammar_free(grammars[i]);
}

static void same_answers_by_every_road(void **state) {
  (void)state;
  static struct trip trips[N_TRIPS];
  static int32_t prompts[N_TRIPS][20];
  static const struct cygnet_bias bias[] = {
      {.id = OPEN, .bias = 9}, {.id = 290, .bias = 6}, {.id = EOS, .bias = 6}, {.id = 5, .bias = -100}};
  static const char *const stop[] = {"wer", "e\":"};
  struct roads x = {
      .base = {.model = narrow()}, .trips = trips, .n = N_TRIPS, .n_roads = few_roads() ? 2 : 6, .opened = opened, .closing = closing};
  for (uint64_t seed = 1; seed <= (uint64_t)fewer(4); seed++) {
    x.rng = seed;
    memset(trips, 0, sizeof trips);
    for (int i = 0; i < N_TRIPS; i++) {
      int n = random_prompt(&x.rng, prompts[i], test_rand_int(&x.rng, 1, 20));
      trips[i].r = (struct cygnet_request){.prompt = prompts[i],
                                           .n_prompt = (size_t)n,
                                           .max_tokens = test_rand_int(&x.rng, 1, 50),
                                           .ignore_eos = test_rand_int(&x.rng, 0, 2) == 0,
                                           .keep_stop = test_rand_int(&x.rng, 0, 1),
                                           .marks = test_rand_int(&x.rng, 0, 1),
                                           .logprobs = test_rand_int(&x.rng, 0, 3),
                                           .thoughts = test_rand_int(&x.rng, 0, 2),
                                           .thinking_budget = test_rand_int(&x.rng, 0, 9),
                                           .stop = stop,
                                           .n_stop = (size_t)test_rand_int(&x.rng, 0, 2),
                                           .sampling = {.temperature = test_rand_int(&x.rng, 0, 2),
                                                        .frequency_penalty = test_rand_int(&x.rng, 0, 3) ? 0 : 0.5,
                                                        .has_seed = 1,
                                                        .seed = seed,
                                                        .bias = bias,
                                                        .n_bias = (size_t)test_rand_int(&x.rng, 0, 4)}};
      if (test_rand_int(&x.rng, 0, 2) == 0) trips[i].r.sampling.min_tokens = test_rand_int(&x.rng, 0, trips[i].r.max_tokens);
    }
    roads_travel(&x);
  }
  printf("  %d tokens forced, %d guesses right, %d retractions\n", (int)x.n_forced, (int)x.n_accepted, (int)x.n_retracted);
  assert_true(x.n_forced > (few_roads() ? 10 : 500) && x.n_accepted > (few_roads() ? 0 : 20) && x.n_retracted > (few_roads() ? 0 : 100));
}

/* ---- jump-ahead ---------------------------------------------------------------------------------------------------------------- */

/* Whether log-probabilities are asked for changes nothing; those of certain tokens are the model's; and there are fewer steps than tokens. */
static void certain_tokens_come_together(void **state) {
  (void)state;
  struct cygnet *c = open_with((struct cygnet_options){.model = narrow(), .draft_tokens = -1});
  struct cygnet_grammar *g = grammar_of(c, CYGNET_GRAMMAR_EBNF, "root ::= \"the quick one and the other\"");
  int32_t ids[64] = {2, 300, 301, 302};
  struct answer a, b, p;
  struct cygnet_request r = {.prompt = ids, .n_prompt = 4, .max_tokens = 50, .grammar = g};
  struct cygnet_stats before, st;
  ask(c, &r, &a, false);
  cygnet_stats(c, &before);
  assert_string_equal(buf_cstr(&a.text), "the quick one and the other");
  assert_int_equal(a.last.finish, CYGNET_FINISH_STOP);
  assert_int_equal(before.forced_tokens, a.n); /* all but the end, which is the model's */
  assert_int_equal(before.generated_tokens, a.n + 1);
  assert_int_equal(before.n_steps, 2);
  int32_t *whole;
  size_t n_whole;
  cygnet_encode(c, "the quick one and the other", 27, 0, 0, &whole, &n_whole);
  assert_int_equal(n_whole, a.n);
  assert_memory_equal(whole, a.ids, n_whole * sizeof *whole);
  cygnet_free(whole);

  r.logprobs = 1 + 4;
  ask(c, &r, &b, false);
  assert_int_equal(a.n, b.n);
  assert_memory_equal(a.ids, b.ids, sizeof a.ids);
  memcpy(ids + 4, a.ids, (size_t)a.n * sizeof *ids);
  struct cygnet_request again = {.prompt = ids, .n_prompt = 4 + (size_t)a.n, .max_tokens = 0, .logprobs = 1 + 4, .prompt_logprobs = 1 + 4};
  ask(c, &again, &p, false);
  for (int i = 0; i < a.n; i++) {
    assert_memory_equal(&p.prompt[i].logprob, &b.logprob[i], sizeof(float));
    assert_memory_equal(p.prompt[i].top, b.top[i], 4 * sizeof(struct cygnet_logprob));
  }
  answer_free(&p);
  answer_free(&b);

  for (int most = 1; most <= a.n + 1; most++) { /* a limit in the middle of them */
    r.logprobs = 0, r.max_tokens = most;
    cygnet_stats(c, &before);
    ask(c, &r, &b, false);
    cygnet_stats(c, &st);
    assert_int_equal(b.last.finish, CYGNET_FINISH_LENGTH);
    assert_int_equal(b.last.completion_tokens, most);
    assert_memory_equal(a.ids, b.ids, (size_t)MIN(most, a.n) * sizeof *a.ids);
    answer_free(&b);
  }
  answer_free(&a);
  cygnet_grammar_free(g);
  cygnet_close(c);
}

/* What is taken as certain is what the tokenizer makes of the whole, whatever follows. */
static void certain_tokens_do_not_depend_on_what_follows(void **state) {
  (void)state;
  static const char letters[] = "abcdefghijklmnopqrstuvwxyz  ,.:{}\"";
  uint64_t rng = 8;
  int n_certain = 0, n_left = 0;
  const char *const models[] = {narrow(), tiny()};
  for (size_t m = 0; m < 2; m++) {
    struct cygnet *c = open_with((struct cygnet_options){.model = models[m]});
    say_model_prepare(&c->say);
    for (int round = 0; round < 150; round++) {
      char literal[24], rule[128];
      int n = test_rand_int(&rng, 1, 20), at = 0;
      for (int i = 0; i < n; i++) literal[i] = letters[test_rand_int(&rng, 0, (int)sizeof letters - 2)];
      literal[n] = 0;
      at += snprintf(rule, sizeof rule, "root ::= \"");
      for (int i = 0; i < n; i++) at += snprintf(rule + at, sizeof rule - (size_t)at, literal[i] == '"' ? "\\\"" : "%c", literal[i]);
      snprintf(rule + at, sizeof rule - (size_t)at, "\" [a-z .:{}]*");
      struct cygnet_grammar *g = grammar_of(c, CYGNET_GRAMMAR_EBNF, rule);
      struct cygnet_request from = {.prompt = (int32_t[]){2}, .n_prompt = 1, .max_tokens = 100, .grammar = g};
      struct request *r = request_new(&from, &c->limits, NULL);
      say_expect(&c->say, &c->sayers[0], r, 1);
      n_certain += r->n_forced;
      for (int k = 0; k < 40; k++) {
        char whole[64];
        int more = test_rand_int(&rng, 0, 12);
        memcpy(whole, literal, (size_t)n);
        for (int i = 0; i < more; i++) whole[n + i] = letters[test_rand_int(&rng, 0, (int)sizeof letters - 3)];
        struct tok_ids ids = {0};
        tok_encode(c->tok, str_of(whole, (size_t)(n + more)), false, false, &ids);
        assert_true(ids.n >= (size_t)r->n_forced);
        assert_memory_equal(ids.v, r->ahead, (size_t)r->n_forced * sizeof *ids.v);
        n_left += ids.n > (size_t)r->n_forced;
        tok_ids_free(&ids);
      }
      request_delete(r);
      cygnet_grammar_free(g);
    }
    cygnet_close(c);
  }
  printf("  %d tokens certain\n", n_certain);
  assert_true(n_certain > 300 && n_left > 1000);
}

/* ---- ends ------------------------------------------------------------------------------------------------------------------------ */

static void a_complete_answer_ends(void **state) {
  (void)state;
  struct cygnet *c = open_with((struct cygnet_options){.model = narrow()});
  int32_t prompt[] = {2, 300, 301};
  const struct {
    const char *regex;
    int ignore_eos, min_tokens, max_tokens;
    const char *text; /* NULL: longer than min_tokens */
    int matched_id;
    enum cygnet_finish finish;
  } cases[] = {
      {"ten", 0, 0, 50, "ten", EOS, CYGNET_FINISH_STOP},
      {"ten", 1, 0, 50, "ten", -1, CYGNET_FINISH_STOP},  /* nothing else may come, and the end may not be said */
      {"ten", 0, 20, 50, "ten", -1, CYGNET_FINISH_STOP}, /* likewise */
      {"t*", 1, 0, 12, NULL, -1, CYGNET_FINISH_LENGTH},  /* it may go on, so it does */
      {"", 0, 0, 50, "", EOS, CYGNET_FINISH_STOP},
      {"", 1, 0, 50, "", -1, CYGNET_FINISH_STOP},
      {"t*", 0, 9, 50, NULL, EOS, CYGNET_FINISH_STOP},
  };
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    struct cygnet_grammar *g = grammar_of(c, CYGNET_GRAMMAR_REGEX, cases[i].regex);
    struct cygnet_bias to_eos = {.id = EOS, .bias = 50};
    struct answer a;
    struct cygnet_request r = {.prompt = prompt,
                               .n_prompt = 3,
                               .max_tokens = cases[i].max_tokens,
                               .grammar = g,
                               .ignore_eos = cases[i].ignore_eos,
                               .sampling = {.min_tokens = cases[i].min_tokens, .bias = &to_eos, .n_bias = 1}};
    ask(c, &r, &a, false);
    assert_int_equal(a.last.finish, cases[i].finish);
    assert_int_equal(a.last.matched_id, cases[i].matched_id);
    if (cases[i].text) assert_string_equal(buf_cstr(&a.text), cases[i].text);
    else assert_true(a.n >= cases[i].min_tokens);
    answer_free(&a);
    cygnet_grammar_free(g);
  }
  cygnet_close(c);
}

/* A stop string or id cuts nothing that is not whole before it; in thoughts strings are not looked for. */
static void stops_leave_answers_whole(void **state) {
  (void)state;
  struct cygnet *c = open_with((struct cygnet_options){.model = narrow()});
  int32_t prompt[] = {2, 300, 301};
  const char *stop[] = {"}", "nam"};
  const struct form *person = &forms[N_FORMS - 1];
  struct cygnet_grammar *json = grammar_of(c, person->kind, person->text), *free_text = grammar_of(c, CYGNET_GRAMMAR_REGEX, "[a-z}]*");
  struct answer a;
  int n_whole = 0, n_stopped = 0;
  int32_t brace = tok_find(c->tok, "}");
  for (uint64_t seed = 0; seed < 30; seed++) {
    struct cygnet_bias bias = {.id = brace, .bias = 5};
    struct cygnet_request r = {.prompt = prompt,
                               .n_prompt = 3,
                               .max_tokens = 100,
                               .grammar = json,
                               .stop = stop,
                               .n_stop = 2,
                               .stop_ids = &brace,
                               .n_stop_ids = brace >= 0,
                               .sampling = {.temperature = 1, .has_seed = 1, .seed = seed}};
    ask(c, &r, &a, false);
    if (a.last.finish == CYGNET_FINISH_STOP) {
      assert_true(is_person(buf_cstr(&a.text)));
      assert_int_equal(a.last.matched_stop, -1);
      n_whole++;
    }
    answer_free(&a);
    r.grammar = free_text, r.n_stop_ids = 0, r.sampling.bias = &bias, r.sampling.n_bias = brace >= 0;
    ask(c, &r, &a, false);
    assert_null(strchr(buf_cstr(&a.text), '}'));
    if (a.last.matched_stop >= 0) n_stopped++;
    answer_free(&a);
  }
  assert_true(n_whole > 15 && (n_stopped > 5 || brace < 0));

  know_thoughts(c);
  const char *letters[] = {"a", "e", "t", "o"};
  int n_with_letters = 0, n_ended = 0, n_thoughtful = 0; /* a random model may leave letters out for once, or stop thinking by itself */
  for (int i = 0; i < 6; i++) {
    int kind = i % 3;
    struct cygnet_request r = {.prompt = prompt,
                               .n_prompt = 3,
                               .max_tokens = 40,
                               .ignore_eos = 1,
                               .marks = 1,
                               .stop = letters,
                               .n_stop = 4,
                               .thoughts = kind,
                               .thinking_budget = 1 + 20,
                               .sampling = {.temperature = 1, .has_seed = 1, .seed = 1 + (uint64_t)i}};
    ask(c, &r, &a, false);
    if (kind == CYGNET_THOUGHTS_OPEN) {
      assert_true(a.n_marks >= 1);
      n_thoughtful += a.last.completion_tokens > 20;
      n_with_letters += strpbrk(buf_cstr(&a.text), "aeto") != NULL;
      assert_null(strpbrk(buf_cstr(&a.text) + a.marks[0].at, "aeto"));
    } else {
      n_ended += a.last.finish == CYGNET_FINISH_STOP;
      assert_null(strpbrk(buf_cstr(&a.text), "aeto"));
    }
    answer_free(&a);
  }
  assert_true((n_with_letters > 0 && n_ended > 0 && n_thoughtful > 0) || on_npu());
  cygnet_grammar_free(json);
  cygnet_grammar_free(free_text);
  cygnet_close(c);
}

/* Wishes that contradict each other fail the one request, with a sentence; a bias brings nothing back that the grammar bans. */
static void what_nothing_is_left_of_fails(void **state) {
  (void)state;
  struct cygnet *c = open_with((struct cygnet_options){.model = narrow()});
  struct cygnet_grammar *g = grammar_of(c, CYGNET_GRAMMAR_REGEX, "[ab]+");
  int32_t prompt[] = {2, 300, 301};
  struct cygnet_bias bias[64];
  size_t n = 0;
  for (int32_t id = 0; id < NARROW_VOCAB; id++) {
    struct str s = tok_piece(c->tok, id);
    bool fits = s.n && !tok_is_control(c->tok, id);
    for (size_t i = 0; i < s.n; i++) fits &= s.p[i] == 'a' || s.p[i] == 'b';
    if (fits) bias[n++] = (struct cygnet_bias){.id = id, .bias = -100};
  }
  assert_true(n >= 2);
  struct answer a, other;
  struct cygnet_request r = {.prompt = prompt, .n_prompt = 3, .max_tokens = 9, .grammar = g, .sampling = {.bias = bias, .n_bias = n}};
  struct cygnet_request fine = {.prompt = prompt, .n_prompt = 3, .max_tokens = 9, .ignore_eos = 1};
  answer_init(&a, &r, false);
  submit(c, &r);
  answer_init(&other, &fine, false);
  submit(c, &fine);
  while (cygnet_step(c)) {
    struct cygnet_event ev;
    check(c);
    while (cygnet_next_event(c, &ev)) {
      struct answer *of = ev.user;
      of->over = ev.finish != CYGNET_FINISH_NONE;
      of->last = ev;
    }
  }
  assert_true(a.over && other.over);
  assert_int_equal(a.last.finish, CYGNET_FINISH_ERROR);
  assert_non_null(strstr(a.last.error.message, "grammar: expected a token that it allows"));
  assert_int_equal(a.last.error.status, 400);
  assert_int_equal(other.last.finish, CYGNET_FINISH_LENGTH);
  answer_free(&a);
  answer_free(&other);

  struct cygnet_bias up = {.id = 290, .bias = 100};
  r.sampling.bias = &up, r.sampling.n_bias = 1;
  ask(c, &r, &a, false);
  for (int i = 0; i < a.n; i++) assert_int_not_equal(a.ids[i], 290);
  assert_int_equal(strspn(buf_cstr(&a.text), "ab"), a.text.len);
  answer_free(&a);
  cygnet_grammar_free(g);
  cygnet_close(c);
}

/* A grammar with too many readings of what was said so far fails its request, with a sentence; the others go on. */
static void too_many_readings_fail_alone(void **state) {
  (void)state;
  struct cygnet *c = open_with((struct cygnet_options){.model = narrow()});
  struct cygnet_grammar *g = grammar_of(c, CYGNET_GRAMMAR_EBNF,
                                        "root ::= [ab] [ab] [ab] x\n"
                                        "x ::= (\"a\" | [a-z]) x x x | [a-z] | \"ca\"");
  int32_t prompt[] = {2, 300, 301};
  struct answer a, other;
  struct cygnet_request r = {.prompt = prompt, .n_prompt = 3, .max_tokens = 90, .grammar = g};
  struct cygnet_request fine = {.prompt = prompt, .n_prompt = 3, .max_tokens = 90, .ignore_eos = 1};
  answer_init(&a, &r, false);
  submit(c, &r);
  answer_init(&other, &fine, false);
  submit(c, &fine);
  run(c);
  assert_true(a.over && other.over);
  assert_int_equal(other.last.finish, CYGNET_FINISH_LENGTH);
  assert_int_equal(other.n, 90);
  assert_int_equal(a.last.finish, CYGNET_FINISH_ERROR);
  assert_int_equal(a.last.error.status, 400);
  assert_non_null(strstr(a.last.error.message, "too many readings of the text so far"));
  assert_true(a.text.len >= 3 && strspn(buf_cstr(&a.text), "abcdefghijklmnopqrstuvwxyz") == a.text.len);
  answer_free(&a);
  answer_free(&other);
  cygnet_grammar_free(g);
  cygnet_close(c);
}

/* A grammar outlives its public handle as long as a request uses it; requests that are dropped let go of it. */
static void requests_keep_their_grammar(void **state) {
  (void)state;
  struct cygnet *c = open_with((struct cygnet_options){.model = narrow()});
  int32_t prompt[] = {2, 300, 301};
  struct answer a, b;
  struct cygnet_grammar *g = grammar_of(c, CYGNET_GRAMMAR_REGEX, "one (two )+three");
  struct cygnet_request r = {.prompt = prompt, .n_prompt = 3, .max_tokens = 100, .grammar = g};
  answer_init(&a, &r, false);
  submit(c, &r);
  answer_init(&b, &r, false);
  submit(c, &r);
  cygnet_grammar_free(g);
  cygnet_step(c);
  cygnet_abort(c, b.number);
  run(c);
  assert_true(a.over && b.over);
  assert_memory_equal(buf_cstr(&a.text), "one two ", 8);
  answer_free(&a);
  answer_free(&b);
  g = grammar_of(c, CYGNET_GRAMMAR_REGEX, "one (two )+three");
  r.grammar = g;
  answer_init(&a, &r, false);
  submit(c, &r);
  cygnet_grammar_free(g);
  answer_free(&a);
  cygnet_close(c); /* with the request in it */
}

/* Whatever allocation fails when a request comes in, it is refused and nothing of it stays. */
static void memory_runs_out_at_submission(void **state) {
  (void)state;
  struct cygnet *c = open_with((struct cygnet_options){.model = narrow()});
  know_thoughts(c);
  int32_t prompt[] = {2, 300, 301}, stop_id = 299;
  struct cygnet_bias bias = {.id = 290, .bias = 1};
  const char *stop[] = {"zz"};
  struct cygnet_grammar *g = grammar_of(c, CYGNET_GRAMMAR_REGEX, "(the ten)+");
  struct cygnet_request r = {.prompt = prompt,
                             .n_prompt = 3,
                             .max_tokens = 12,
                             .grammar = g,
                             .thoughts = CYGNET_THOUGHTS_OPEN,
                             .thinking_budget = 1,
                             .marks = 1,
                             .stop = stop,
                             .n_stop = 1,
                             .stop_ids = &stop_id,
                             .n_stop_ids = 1,
                             .sampling = {.frequency_penalty = 1, .bias = &bias, .n_bias = 1}};
  int n_failed = 0;
  for (int64_t n = 1;; n++) {
    struct answer a;
    struct cygnet_error e = {0};
    answer_init(&a, &r, false);
    mem_fail_after(n);
    a.number = cygnet_submit(c, &r, &e);
    bool pending = mem_fail_pending();
    mem_fail_after(0);
    if (!a.number) assert_int_equal(e.status, 500), n_failed++;
    check(c);
    run(c);
    assert_int_equal(a.over, a.number != 0);
    answer_free(&a);
    if (pending) break;
  }
  assert_true(n_failed >= 4);
  cygnet_grammar_free(g);
  cygnet_close(c);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_answer_has_its_form),     cmocka_unit_test(same_answers_by_every_road),
    cmocka_unit_test(certain_tokens_come_together),  cmocka_unit_test(certain_tokens_do_not_depend_on_what_follows),
    cmocka_unit_test(a_complete_answer_ends),        cmocka_unit_test(stops_leave_answers_whole),
    cmocka_unit_test(what_nothing_is_left_of_fails), cmocka_unit_test(too_many_readings_fail_alone),
    cmocka_unit_test(requests_keep_their_grammar),   cmocka_unit_test(memory_runs_out_at_submission),
};
TEST_MAIN(tests)
