/* t_output.c — answers taken apart: the golden lines cut everywhere, markers as ids, mutations, junk in linear time. */
#include "test.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "files/json.h"
#include "sample.h"
#include "text/output_impl.h"

/* What came out: texts put together, calls in order. */
struct got {
  struct buf content, reasoning, calls; /* calls: "name arguments\n" */
  int n_calls, n_parts;
};

static void got_init(struct got *g) {
  *g = (struct got){0};
  buf_init(&g->content, 0);
  buf_init(&g->reasoning, 0);
  buf_init(&g->calls, 0);
}
static void got_free(struct got *g) {
  buf_free(&g->content);
  buf_free(&g->reasoning);
  buf_free(&g->calls);
}

static void take(void *ctx, const struct output_part *p) {
  struct got *g = ctx;
  g->n_parts++;
  if (p->kind == OUTPUT_CALL) {
    assert_int_equal(p->index, g->n_calls++);
    buf_append(&g->calls, p->name.p, p->name.n);
    buf_putc(&g->calls, ' ');
    buf_append(&g->calls, p->text.p, p->text.n);
    buf_putc(&g->calls, '\n');
    return;
  }
  assert_true(p->text.n > 0);
  assert_true(utf8_valid(p->text.p, p->text.n));
  buf_append(p->kind == OUTPUT_CONTENT ? &g->content : &g->reasoning, p->text.p, p->text.n);
}

static void expect_got(const char *name, const char *how, const struct got *g, struct str content, struct str reasoning, struct str calls) {
  struct str found[] = {str_of(buf_cstr(&g->content), g->content.len), str_of(buf_cstr(&g->reasoning), g->reasoning.len),
                        str_of(buf_cstr(&g->calls), g->calls.len)},
             wanted[] = {content, reasoning, calls};
  static const char *const what[] = {"content", "reasoning", "calls"};
  for (int i = 0; i < 3; i++)
    if (!str_eq(found[i], wanted[i]))
      fail_msg("%s, %s: %s is \"%.*s\", expected \"%.*s\"", name, how, what[i], (int)found[i].n, found[i].p, (int)wanted[i].n, wanted[i].p);
}

/* ---- golden lines -------------------------------------------------------------------------------------------------------------- */

struct line {
  const char *name;
  struct str text, content, reasoning;
  struct buf calls;
  struct output_options o;
  const char *names[16];
  const json_t *literal, *cuts, *deltas;
};

static void line_read(const json_t *json, enum tok_family family, struct line *l) {
  const json_t *options = json_object_get(json, "options"), *tools = json_object_get(options, "tools"), *call;
  size_t i;
  *l = (struct line){
      .name = json_string_value(json_object_get(json, "name")), .text = json_str(json, "text"), .content = json_str(json, "content")};
  if (json_is_string(json_object_get(json, "reasoning_content"))) l->reasoning = json_str(json, "reasoning_content");
  l->o.family = family;
  l->o.tools = !tools || json_is_true(tools) || json_array_size(tools);
  l->o.names = l->names;
  for (i = 0; i < json_array_size(tools); i++) l->names[l->o.n_names++] = json_string_value(json_array_get(tools, i));
  l->o.in_thought = json_object_get(options, "start") && !strcmp(json_string_value(json_object_get(options, "start")), "reasoning");
  buf_init(&l->calls, 0);
  json_array_foreach(json_object_get(json, "tool_calls"), i, call) buf_printf(
      &l->calls, "%s %s\n", json_string_value(json_object_get(call, "name")), json_string_value(json_object_get(call, "arguments")));
  l->literal = json_object_get(json, "literal");
  l->cuts = json_object_get(json, "cuts");
  l->deltas = json_object_get(json, "deltas");
}

static void line_check(const struct line *l, const char *how, struct got *g) {
  expect_got(l->name, how, g, l->content, l->reasoning, str_of(buf_cstr(&l->calls), l->calls.len));
  got_free(g);
}

static bool is_literal(const struct line *l, size_t at) {
  for (size_t i = 0; i < json_array_size(l->literal); i++) {
    const json_t *range = json_array_get(l->literal, i);
    if ((json_int_t)at >= json_integer_value(json_array_get(range, 0)) && (json_int_t)at < json_integer_value(json_array_get(range, 1)))
      return true;
  }
  return false;
}

/* Pieces of at most step bytes (0: random) that do not end within a character; markers that are not literal as such. */
static void feed_marked(const struct line *l, struct output *out, size_t step, uint64_t *rng) {
  const char *p = l->text.p, *end = p + l->text.n, *from = p;
  while (p < end) {
    enum output_marker m = MARKS;
    if (!is_literal(l, (size_t)(p - l->text.p)))
      for (m = 0; m < MARKS; m++)
        if (str_starts(str_of(p, (size_t)(end - p)), output_spellings[m]) && (m == MARK_PYTHON) == (l->o.family == TOK_LLAMA3)) break;
    size_t limit = step ? step : (size_t)test_rand_int(rng, 1, 9);
    if (m == MARKS && ((size_t)(p - from) < limit || ((unsigned char)*p & 0xc0) == 0x80)) {
      p++;
      continue;
    }
    if (p > from) output_text(out, from, (size_t)(p - from));
    from = p;
    if (m == MARKS) continue;
    output_take_marker(out, m);
    p = from = p + strlen(output_spellings[m]);
  }
  if (p > from) output_text(out, from, (size_t)(p - from));
}

static void check_marked(const struct line *l) {
  uint64_t rng = 5;
  for (int i = 0; i < 20; i++) {
    struct got g;
    got_init(&g);
    struct output *out = output_new(NULL, &l->o, take, &g);
    feed_marked(l, out, i == 0 ? 1 : i == 1 ? 1 << 20 : 0, &rng);
    output_finish(out);
    assert_int_equal(output_calls(out), g.n_calls);
    output_delete(out);
    line_check(l, "markers as ids", &g);
  }
}

static void check_cut(const struct line *l, size_t cut) {
  struct got g;
  got_init(&g);
  struct output *out = output_new(NULL, &l->o, take, &g);
  output_raw(out, l->text.p, cut);
  output_raw(out, l->text.p + cut, l->text.n - cut);
  output_finish(out);
  output_delete(out);
  line_check(l, "one cut", &g);
}

static void check_steps(const struct line *l, size_t step) {
  struct got g;
  got_init(&g);
  struct output *out = output_new(NULL, &l->o, take, &g);
  for (size_t at = 0; at < l->text.n; at += step) output_raw(out, l->text.p + at, MIN(step, l->text.n - at));
  output_finish(out);
  output_delete(out);
  line_check(l, step == 1 ? "byte by byte" : "in steps", &g);
}

/* What the golden line has shown after a chunk, beside what came out. */
static void check_delta(const struct line *l, size_t i, struct got *shown, const struct got *g) {
  const json_t *list = json_array_get(l->deltas, i), *item;
  size_t k;
  char how[40];
  json_array_foreach(list, k, item) {
    const char *kind = json_string_value(json_array_get(item, 0));
    const json_t *v = json_array_get(item, 1);
    if (!strcmp(kind, "tool_call"))
      buf_printf(&shown->calls, "%s %s\n", json_string_value(json_object_get(v, "name")),
                 json_string_value(json_object_get(v, "arguments")));
    else buf_append(!strcmp(kind, "content") ? &shown->content : &shown->reasoning, json_string_value(v), json_string_length(v));
  }
  snprintf(how, sizeof how, "after chunk %zu", i);
  expect_got(l->name, how, g, str_of(buf_cstr(&shown->content), shown->content.len),
             str_of(buf_cstr(&shown->reasoning), shown->reasoning.len), str_of(buf_cstr(&shown->calls), shown->calls.len));
}

static void check_deltas(const struct line *l) {
  struct got g, shown;
  got_init(&g);
  got_init(&shown);
  struct output *out = output_new(NULL, &l->o, take, &g);
  size_t from = 0, n = json_array_size(l->cuts);
  for (size_t i = 0; i <= n; i++) {
    size_t to = i < n ? (size_t)json_integer_value(json_array_get(l->cuts, i)) : l->text.n;
    output_raw(out, l->text.p + from, to - from);
    check_delta(l, i, &shown, &g);
    from = to;
  }
  output_finish(out);
  check_delta(l, n + 1, &shown, &g);
  output_delete(out);
  got_free(&shown);
  got_free(&g);
}

static void check_line(const json_t *json, void *ctx) {
  struct line l;
  line_read(json, *(enum tok_family *)ctx, &l);
  if (l.o.family == TOK_GEMMA3 && strstr(json_string_value(json_object_get(json, "text")), "<|python_tag|>")) { /* not one of its markers */
    buf_free(&l.calls);
    return;
  }
  check_marked(&l);
  if (!l.literal) {
    for (size_t cut = 0; cut <= l.text.n; cut++) check_cut(&l, cut);
    for (size_t step = 1; step < 8; step++) check_steps(&l, step);
    if (l.deltas) check_deltas(&l);
  }
  buf_free(&l.calls);
}

static void golden_gemma4(void **state) {
  (void)state;
  enum tok_family f = TOK_GEMMA4;
  assert_int_equal(each_line("parse_gemma4.jsonl", check_line, &f), 98);
}
static void golden_llama(void **state) {
  (void)state;
  enum tok_family f = TOK_LLAMA3;
  assert_int_equal(each_line("parse_llama32.jsonl", check_line, &f), 65);
}
/* Gemma 3 is asked for calls in Llama's form. */
static void golden_gemma3(void **state) {
  (void)state;
  enum tok_family f = TOK_GEMMA3;
  assert_int_equal(each_line("parse_llama32.jsonl", check_line, &f), 65);
}

/* ---- single cases ------------------------------------------------------------------------------------------------------------- */

static const char *const offered[] = {"f", "g"};

static void check_text(enum tok_family family, const char *text, const char *content, const char *reasoning, const char *calls) {
  struct output_options o = {.family = family, .tools = true, .names = offered, .n_names = 2};
  for (size_t step = 1; step < 6; step++) {
    struct got g;
    got_init(&g);
    struct output *out = output_new(NULL, &o, take, &g);
    size_t n = strlen(text);
    for (size_t at = 0; at < n; at += step) output_raw(out, text + at, MIN(step, n - at));
    output_finish(out);
    output_finish(out); /* nothing more comes */
    output_delete(out);
    expect_got(text, "", &g, str_c(content), str_c(reasoning), str_c(calls));
    got_free(&g);
  }
}

static void small_cases(void **state) {
  (void)state;
  static const struct {
    enum tok_family family;
    const char *text, *content, *reasoning, *calls;
  } cases[] = {
      /* ill-formed UTF-8 */
      {TOK_GEMMA4, "a\xff\xf0\x9f\x98z\xe2\x82", "a\xef\xbf\xbd\xef\xbf\xbdz\xef\xbf\xbd", "", ""},
      {TOK_GEMMA4, "<|tool_call>call:f{a:\xffx\xff}<tool_call|>", "", "", "f {\"a\":\"\xef\xbf\xbdx\xef\xbf\xbd\"}\n"},
      {TOK_GEMMA4, "<|channel>\xc3", "", "\xef\xbf\xbd", ""},
      /* halves of a pair */
      {TOK_LLAMA3, "{\"name\":\"f\",\"parameters\":{\"a\":\"\\ud83d\",\"b\":\"\\ude00\\ud83d\\u0041\"}}", "", "",
       "f {\"a\":\"\xef\xbf\xbd\",\"b\":\"\xef\xbf\xbd\xef\xbf\xbd"
       "A\"}\n"},
      {TOK_LLAMA3, "{\"name\":\"f\",\"parameters\":{\"a\":\"\\u0000\",\"a\":2,\"b\":1,\"a\":[]}}", "", "", "f {\"a\":[],\"b\":1}\n"},
      {TOK_LLAMA3, "{\"name\":\"f\",\"name\":\"g\"}", "", "", "g {}\n"},
      {TOK_LLAMA3, "{\"name\":\"f\",\"parameters\":\"{\\\"a\\\":1} x\"}", "{\"name\":\"f\",\"parameters\":\"{\\\"a\\\":1} x\"}", "", ""},
      {TOK_LLAMA3, "{\"name\":\"f\",\"parameters\":\" \"}", "", "", "f {}\n"},
      {TOK_LLAMA3, "{\"name\":\"\",\"parameters\":{}}", "{\"name\":\"\",\"parameters\":{}}", "", ""},
      {TOK_LLAMA3, "{\"name\":\"f\",}", "{\"name\":\"f\",}", "", ""},
      {TOK_LLAMA3, "[]", "[]", "", ""},
      {TOK_LLAMA3, "[f(a=1,),]", "", "", "f {\"a\":1}\n"},
      {TOK_LLAMA3, "[f(a=1_0)]", "[f(a=1_0)]", "", ""},
      {TOK_LLAMA3, "[f(a=- 1, b='\\x41\\u00e9\\101\\q')]", "", "",
       "f {\"a\":-1,\"b\":\"A\xc3\xa9"
       "A\\\\q\"}\n"},
      {TOK_LLAMA3, "[f(a='x\ny')]", "[f(a='x\ny')]", "", ""},
      {TOK_LLAMA3, "[f(a=1, a=2)]", "", "", "f {\"a\":2}\n"},
      {TOK_LLAMA3, "text <|python_tag|>[zz.top(a={'k': (1)})]", "text [zz.top(a={'k': (1)})]", "", ""},
      {TOK_LLAMA3, "<|python_tag|>a.b.call(query=\"x\")", "a.b.call(query=\"x\")", "", ""},
      {TOK_GEMMA3, "<|python_tag|>{\"name\":\"f\"}", "<|python_tag|>{\"name\":\"f\"}", "", ""},
      {TOK_GEMMA3, "\n{\"name\": \"g\", \"parameters\": {\"x\": 1}}", "", "", "g {\"x\":1}\n"},
      {TOK_GEMMA3, "<|tool_call>call:f{}<tool_call|>", "<|tool_call>call:f{}<tool_call|>", "", ""},
      {TOK_GEMMA4, "<|tool_call>call:f{a:\"x\"y,b:\"p\\\"q\",c:\"}<tool_call|>", "", "",
       "f {\"a\":\"\\\"x\\\"y\",\"b\":\"p\\\"q\",\"c\":\"\\\"\"}\n"},
      {TOK_GEMMA4, "<|tool_call>call:f{a:<|\"|>x<channel|>y<tool_response|>z<|\"|>}", "", "", "f {\"a\":\"xyz\"}\n"},
  };
  for (size_t i = 0; i < ARRAY_LEN(cases); i++)
    check_text(cases[i].family, cases[i].text, cases[i].content, cases[i].reasoning, cases[i].calls);
}

/* Text that can no longer become a call is shown while it comes. */
static void shown_early(void **state) {
  (void)state;
  static const struct {
    const char *text, *shown;
  } cases[] = {{"Hello", "Hello"}, {" {x", " {x"}, {"{\"na", ""}, {"[", ""}, {"[1, 2", "[1, 2"}, {"[f(", ""}, {"  ", ""}};
  struct output_options o = {.family = TOK_LLAMA3, .tools = true, .names = offered, .n_names = 2};
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    struct got g;
    got_init(&g);
    struct output *out = output_new(NULL, &o, take, &g);
    for (const char *p = cases[i].text; *p; p++) output_text(out, p, 1);
    assert_string_equal(buf_cstr(&g.content), cases[i].shown);
    output_finish(out);
    assert_string_equal(buf_cstr(&g.content), cases[i].text);
    output_delete(out);
    got_free(&g);
  }
}

static void nested(int depth, const char *expected) {
  struct buf text;
  buf_init(&text, 0);
  buf_puts(&text, "<|tool_call>call:f{a:");
  for (int i = 0; i < depth; i++) buf_putc(&text, '[');
  for (int i = 0; i < depth; i++) buf_putc(&text, ']');
  buf_puts(&text, "}<tool_call|>");
  struct output_options o = {.family = TOK_GEMMA4, .tools = true};
  struct got g;
  got_init(&g);
  struct output *out = output_new(NULL, &o, take, &g);
  output_raw(out, text.data, text.len);
  output_finish(out);
  output_delete(out);
  assert_int_equal(g.n_calls, expected != NULL);
  if (expected) assert_int_equal(g.calls.len, strlen(expected) + (size_t)depth * 2);
  else assert_int_equal(g.content.len, text.len - strlen("<|tool_call><tool_call|>"));
  got_free(&g);
  buf_free(&text);
}
static void depth_ends(void **state) {
  (void)state;
  nested(63, "f {\"a\":}\n");
  nested(64, "f {\"a\":}\n");
  nested(65, NULL);
  nested(100000, NULL);
}

/* ---- mutations ------------------------------------------------------------------------------------------------------------------ */

/* The text without markers, the string delimiter as ": what has to come out when nothing is a call. */
static void strip(const char *p, size_t n, enum tok_family f, struct buf *out) {
  while (n) {
    enum output_marker m = 0;
    while (m < MARKS && (!str_starts(str_of(p, n), output_spellings[m]) || (m == MARK_PYTHON) != (f == TOK_LLAMA3))) m++;
    if (m == MARK_QUOTE) buf_putc(out, '"');
    size_t step = m < MARKS ? strlen(output_spellings[m]) : 1;
    if (m == MARKS) buf_putc(out, *p);
    p += step;
    n -= step;
  }
}

static bool has_marker(const struct buf *text, enum tok_family f) {
  for (enum output_marker m = 0; m < MARKS; m++)
    if ((m == MARK_PYTHON) == (f == TOK_LLAMA3) && strstr(buf_cstr(text), output_spellings[m])) return true;
  return false;
}

static bool is_within(struct str small, struct str big) { /* in order, not in one piece */
  size_t at = 0;
  for (size_t i = 0; i < big.n && at < small.n; i++) at += big.p[i] == small.p[at];
  return at == small.n;
}

static void check_calls(const struct got *g) {
  for (const char *p = buf_cstr(&g->calls); *p;) {
    const char *space = strchr(p, ' '), *end = strchr(p, '\n');
    json_error_t error;
    json_t *v = json_loadb(space + 1, (size_t)(end - space - 1), JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!json_is_object(v)) fail_msg("no arguments: %s", p);
    json_decref(v);
    p = end + 1;
  }
}

static void run_raw(const struct buf *text, const struct output_options *o, uint64_t *rng, struct got *g) {
  got_init(g);
  struct output *out = output_new(NULL, o, take, g);
  for (size_t at = 0; at < text->len;) {
    size_t n = rng ? (size_t)test_rand_int(rng, 1, 12) : text->len;
    n = MIN(n, text->len - at);
    output_raw(out, text->data + at, n);
    at += n;
  }
  output_finish(out);
  output_delete(out);
}

static size_t border(const struct buf *text, size_t at) {
  while (at < text->len && ((unsigned char)text->data[at] & 0xc0) == 0x80) at++;
  return at;
}

static void mutate(struct buf *text, const char *const *pieces, int n_pieces, uint64_t *rng) {
  struct buf out;
  buf_init(&out, 0);
  size_t at = border(text, (size_t)test_rand_int(rng, 0, (int)text->len));
  size_t n = border(text, at + (size_t)test_rand_int(rng, 0, (int)MIN(text->len - at, (size_t)6))) - at;
  buf_append(&out, text->data, at);
  switch (test_rand_int(rng, 0, 3)) {
  case 0: at += n; break;                                                               /* leave out */
  case 1: buf_append(&out, text->data + at, n); break;                                  /* twice */
  case 2: buf_puts(&out, pieces[test_rand_int(rng, 0, n_pieces - 1)]); break;           /* put in */
  default: buf_puts(&out, pieces[test_rand_int(rng, 0, n_pieces - 1)]), at += n; break; /* instead */
  }
  buf_append(&out, text->data + at, text->len - at);
  buf_free(text);
  *text = out;
}

static void check_mutated(const struct buf *text, const struct output_options *o, uint64_t *rng, int *n_calls) {
  struct got whole, cut;
  struct buf left;
  buf_init(&left, 0);
  strip(text->data, text->len, o->family, &left);
  run_raw(text, o, NULL, &whole);
  run_raw(text, o, rng, &cut);
  expect_got(buf_cstr(text), "cut at random", &cut, str_of(buf_cstr(&whole.content), whole.content.len),
             str_of(buf_cstr(&whole.reasoning), whole.reasoning.len), str_of(buf_cstr(&whole.calls), whole.calls.len));
  struct str content = str_of(buf_cstr(&whole.content), whole.content.len), all = str_of(buf_cstr(&left), left.len);
  if (whole.n_calls ? !is_within(content, all) : !str_eq(content, all))
    fail_msg("\"%s\": content is \"%s\", of \"%s\"", buf_cstr(text), content.p, all.p);
  if (has_marker(&whole.content, o->family) && !has_marker(&left, o->family))
    fail_msg("\"%s\": a marker in \"%s\"", buf_cstr(text), content.p);
  check_calls(&whole);
  *n_calls += whole.n_calls;
  got_free(&whole);
  got_free(&cut);
  buf_free(&left);
}

enum { N_MUTATIONS = 10000 };

static void mutations(enum tok_family family, const char *const *seeds, int n_seeds, const char *const *pieces, int n_pieces) {
  uint64_t rng = 77;
  int n_calls = 0;
  struct output_options o = {.family = family, .tools = true, .names = offered, .n_names = 2};
  for (int i = 0; i < N_MUTATIONS; i++) {
    struct buf text;
    buf_init(&text, 0);
    buf_puts(&text, seeds[test_rand_int(&rng, 0, n_seeds - 1)]);
    for (int k = test_rand_int(&rng, 1, 4); k > 0; k--) mutate(&text, pieces, n_pieces, &rng);
    buf_puts(&text, "");
    check_mutated(&text, &o, &rng, &n_calls);
    buf_free(&text);
  }
  print_message("%d mutations, %d calls\n", N_MUTATIONS, n_calls);
  assert_true(n_calls > N_MUTATIONS / 10);
}

static void mutated_gemma4(void **state) {
  (void)state;
  static const char *const seeds[] = {
      "<|tool_call>call:f{city:<|\"|>Oslo<|\"|>,n:[1,2.5,{a:true}]}<tool_call|>",
      "Text.<|tool_call>call:g{}<tool_call|><|tool_call>call:f{\"a\":\"b\\\"c\",d:02139}<tool_call|> more",
      "<|tool_call> call: f { a : <|\"|>x{}[],:<|\"|> , b : null , }\n<tool_call|><|tool_response>",
  };
  static const char *const pieces[] = {"<|\"|>",
                                       "<|tool_call>",
                                       "<tool_call|>",
                                       "{",
                                       "}",
                                       "[",
                                       "]",
                                       ",",
                                       ":",
                                       "\"",
                                       "<",
                                       "|",
                                       "call:",
                                       " ",
                                       "\\",
                                       "7",
                                       "\xc3\xa9",
                                       "<|tool_response>",
                                       "<tool_response|>",
                                       "tool_call|>",
                                       "<|\"",
                                       "\n"};
  mutations(TOK_GEMMA4, seeds, ARRAY_LEN(seeds), pieces, ARRAY_LEN(pieces));
}

static void mutated_llama(void **state) {
  (void)state;
  static const char *const seeds[] = {
      "{\"name\": \"f\", \"parameters\": {\"city\": \"Oslo\", \"n\": [1, {\"a\": null}]}}; {\"name\":\"g\"}",
      "[f(a='x', b=[1, {'k': True}]), g()]",
      "So <|python_tag|>{\"type\":\"function\",\"function\":{\"name\":\"z\",\"arguments\":\"{}\"}}",
      "<|python_tag|>search.call(query=\"a \\\"b\\\"\")",
  };
  static const char *const pieces[] = {
      "<|python_tag|>", "{", "}",    "[",       "]",       ",", ":", "\"", "'", "\\", "(", ")", "=", ";", "f", "1", "-",
      "\xc3\xa9",       " ", "null", "\\u00e9", "\\ud83d", "<", "\n"};
  mutations(TOK_LLAMA3, seeds, ARRAY_LEN(seeds), pieces, ARRAY_LEN(pieces));
}

/* With thoughts among them: nothing is said about where text lands, but that it does not depend on cuts, shows no marker, and stays readable. */
static void mutated_thoughts(void **state) {
  (void)state;
  static const char seed[] = "<|channel>thought\nfirst\n<channel|>text<|tool_call>call:f{a:1}<tool_call|>\n<|channel>plan\nx<channel|>end";
  static const char *const pieces[] = {"<|channel>", "<channel|>", "thought", "\n", "<|tool_call>", "<tool_call|>", "<|\"|>",
                                       "}",          "<",          "<|chan",  "t"};
  struct output_options o = {.family = TOK_GEMMA4, .tools = true};
  uint64_t rng = 3;
  for (int i = 0; i < N_MUTATIONS; i++) {
    struct buf text, left;
    struct got whole, cut;
    buf_init(&text, 0);
    buf_init(&left, 0);
    buf_puts(&text, seed);
    for (int k = test_rand_int(&rng, 1, 4); k > 0; k--) mutate(&text, pieces, ARRAY_LEN(pieces), &rng);
    o.in_thought = i % 2;
    run_raw(&text, &o, NULL, &whole);
    run_raw(&text, &o, &rng, &cut);
    expect_got(buf_cstr(&text), "cut at random", &cut, str_of(buf_cstr(&whole.content), whole.content.len),
               str_of(buf_cstr(&whole.reasoning), whole.reasoning.len), str_of(buf_cstr(&whole.calls), whole.calls.len));
    strip(text.data, text.len, TOK_GEMMA4, &left);
    /* what is left of broken markers can stand side by side */
    if ((has_marker(&whole.content, TOK_GEMMA4) || has_marker(&whole.reasoning, TOK_GEMMA4)) && !strchr(buf_cstr(&left), '<'))
      fail_msg("\"%s\": a marker is shown", buf_cstr(&text));
    assert_true(whole.content.len + whole.reasoning.len <= left.len);
    got_free(&whole);
    got_free(&cut);
    buf_free(&left);
    buf_free(&text);
  }
}

/* ---- ids of markers ------------------------------------------------------------------------------------------------------------- */

/* Ids that mean nothing here are dropped, also without a vocabulary. */
static void unknown_ids(void **state) {
  (void)state;
  struct got g;
  got_init(&g);
  struct output_options o = {.family = TOK_GEMMA4, .tools = true};
  struct output *out = output_new(NULL, &o, take, &g);
  output_text(out, "a<|tool_call>", 13);
  for (int32_t id = -2; id < 200; id++) output_mark(out, id);
  output_text(out, "b", 1);
  output_finish(out);
  output_delete(out);
  assert_string_equal(buf_cstr(&g.content), "a<|tool_call>b");
  got_free(&g);
  output_delete(NULL);
}

/* A vocabulary with some of the markers. */
static struct tokenizer *small_vocabulary(const char *const *control, size_t n) {
  struct buf json;
  struct err e = {0};
  size_t size = 0;
  buf_init(&json, 0);
  char *all = test_read(test_path("golden/gemma4-e-tiny/tokenizer.json"), &size);
  json_error_t error;
  json_t *root = json_loadb(all, size, 0, &error), *added = json_object_get(root, "added_tokens");
  json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
  for (size_t i = 0; i < n; i++) {
    json_int_t id = (json_int_t)json_object_size(vocab);
    json_object_set_new(vocab, control[i], json_integer(id));
    json_array_append_new(added, json_pack("{s:I, s:s, s:b, s:b, s:b, s:b, s:b}", "id", id, "content", control[i], "special", 1,
                                           "normalized", 0, "lstrip", 0, "rstrip", 0, "single_word", 0));
  }
  json_put(&json, root);
  struct tokenizer *t = tok_from_json(json.data, json.len, "made up", &e);
  if (!t) fail_msg("%s", e.msg);
  json_decref(root);
  free(all);
  buf_free(&json);
  return t;
}

static void ids_of_a_vocabulary(void **state) {
  (void)state;
  static const char *const control[] = {"<|turn>",      "<turn|>", "<|channel>",       "<channel|>",      "<|tool_call>",
                                        "<tool_call|>", "<|\"|>",  "<|tool_response>", "<tool_response|>"};
  struct tokenizer *t = small_vocabulary(control, ARRAY_LEN(control));
  assert_int_equal(tok_family(t), TOK_GEMMA4);
  struct got g;
  got_init(&g);
  struct output_options o = {.family = TOK_GEMMA4, .tools = true};
  struct output *out = output_new(t, &o, take, &g);
  output_mark(out, tok_find(t, "<|channel>"));
  assert_true(output_in_thought(out));
  output_text(out, "thought\nhm<channel|>\n", 21);
  output_mark(out, tok_find(t, "<channel|>"));
  assert_false(output_in_thought(out));
  output_mark(out, tok_find(t, "<|tool_call>"));
  output_text(out, "call:f{a:", 9);
  output_mark(out, tok_find(t, "<|\"|>"));
  output_text(out, "<tool_call|>", 12);
  output_mark(out, tok_find(t, "<|\"|>"));
  output_text(out, "}", 1);
  output_mark(out, tok_find(t, "<tool_call|>"));
  assert_int_equal(output_calls(out), 1);
  output_mark(out, tok_find(t, "<|tool_response>"));
  output_mark(out, tok_find(t, "<turn|>"));
  output_finish(out);
  output_delete(out);
  expect_got("ids", "", &g, str_c(""), str_c("hm<channel|>"), str_c("f {\"a\":\"<tool_call|>\"}\n"));
  got_free(&g);
  tok_close(t);
}

/* What has no token is its spelling: all of them, or some. */
static void spelled_for_want_of_tokens(void **state) {
  (void)state;
  static const char text[] = "<|channel>thought\nhm\n<channel|>\xc3\xa9<|tool_call>call:f{a:<|\"|>x<|\"|>}<tool_call|>";
  static const char *const some[] = {"<|turn>", "<turn|>", "<|channel>", "<channel|>"};
  for (size_t n = 0; n <= ARRAY_LEN(some); n += 4)
    for (size_t step = 1; step < 9; step += 3) {
      struct tokenizer *t = small_vocabulary(some, n);
      struct got g;
      got_init(&g);
      struct output_options o = {.family = TOK_GEMMA4, .tools = true};
      struct output *out = output_new(t, &o, take, &g);
      for (size_t at = 0; at < strlen(text); at += step) output_text(out, text + at, MIN(step, strlen(text) - at));
      output_finish(out);
      output_delete(out);
      if (n) expect_got("some", "", &g, str_c("<|channel>thought\nhm\n<channel|>\xc3\xa9"), str_c(""), str_c("f {\"a\":\"x\"}\n"));
      else expect_got("none", "", &g, str_c("\xc3\xa9"), str_c("hm"), str_c("f {\"a\":\"x\"}\n"));
      got_free(&g);
      tok_close(t);
    }
}

/* ---- time ----------------------------------------------------------------------------------------------------------------------- */

#ifdef CYGNET_DEBUG
enum { JUNK_BYTES = 2 << 20 }; /* sanitizers take their time */
#else
enum { JUNK_BYTES = 10 << 20 };
#endif

static void timed(enum tok_family family, const char *front, const char *again) {
  struct output_options o = {.family = family, .tools = true, .names = offered, .n_names = 2};
  struct got g;
  struct buf text;
  buf_init(&text, 0);
  buf_puts(&text, front);
  while (text.len < JUNK_BYTES) buf_puts(&text, again);
  got_init(&g);
  clock_t begin = clock();
  struct output *out = output_new(NULL, &o, take, &g);
  for (size_t at = 0; at < text.len; at += 7) output_raw(out, text.data + at, MIN((size_t)7, text.len - at));
  output_finish(out);
  output_delete(out);
  double s = (double)(clock() - begin) / CLOCKS_PER_SEC;
  if (s > 8) fail_msg("%s%s...: %.1f s", front, again, s);
  print_message("  %.2f s: %s%.20s...\n", s, front, again);
  got_free(&g);
  buf_free(&text);
}

static void linear_time(void **state) {
  (void)state;
  static const struct {
    enum tok_family family;
    const char *front, *again;
  } cases[] = {
      {TOK_GEMMA4, "<|tool_call>call:f{a:", "["},
      {TOK_GEMMA4, "<|tool_call>call:f{a:", "[[[[[[{b:]]]]]]"},
      {TOK_GEMMA4, "<|tool_call>call:f{a:", "\"\\\",\\\""},
      {TOK_GEMMA4, "<|tool_call>call:f{a:[", "\"a,"},
      {TOK_GEMMA4, "<|tool_call>call:f{", "a:1,"},
      {TOK_GEMMA4, "<|tool_call>", "call:f{<|tool_call>"},
      {TOK_GEMMA4, "<|tool_call>call:f{}<tool_call|>", "     "},
      {TOK_GEMMA4, "<|tool_call>call:f{a:", "<|\"|>"},
      {TOK_GEMMA4, "", "<|channel>"},
      {TOK_GEMMA4, "<|channel>thought\n", "\n"},
      {TOK_GEMMA4, "", "<|channel<|"},
      {TOK_LLAMA3, "", "[{"},
      {TOK_LLAMA3, "{\"name\":\"f\",\"parameters\":{\"a\":[", "[],"},
      {TOK_LLAMA3, "", "{\"name\":\"f\",\"parameters\":\"{}\"}"},
      {TOK_LLAMA3, "", "                              "},
      {TOK_LLAMA3, "[f(a=[", "'x',"},
      {TOK_LLAMA3, "<|python_tag|>", "{\"name\":"},
  };
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) timed(cases[i].family, cases[i].front, cases[i].again);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(golden_gemma4),  cmocka_unit_test(golden_llama),        cmocka_unit_test(golden_gemma3),
    cmocka_unit_test(small_cases),    cmocka_unit_test(shown_early),         cmocka_unit_test(depth_ends),
    cmocka_unit_test(mutated_gemma4), cmocka_unit_test(mutated_llama),       cmocka_unit_test(mutated_thoughts),
    cmocka_unit_test(unknown_ids),    cmocka_unit_test(ids_of_a_vocabulary), cmocka_unit_test(spelled_for_want_of_tokens),
    cmocka_unit_test(linear_time),
};
TEST_MAIN(tests)
