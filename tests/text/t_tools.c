/* t_tools.c — tools on offer to grammars: what is generated reads back (output.h) as calls that are known and valid, in each family's form.
 *
 * CYGNET_SCHEMA_DUMP=file: the arguments as JSON lines, for tools/schema_check.py.
 */
#include "t_schema_oracle.h"

#include "files/json.h"
#include "text/output.h"
#include "text/schema.h"

enum which { GEMMA3, GEMMA4, GEMMA4_TEXT /* no tokens for calls: their spelling */, WHICH };

static struct tokenizer *tokenizers[WHICH];
static struct grammar_vocab *vocabs[WHICH];

static void open_all(void) {
  for (int i = 0; i < WHICH; i++) {
    tokenizers[i] = oracle_tokenizer(i != GEMMA3, i != GEMMA4_TEXT);
    vocabs[i] = grammar_vocab_new(tokenizers[i]);
  }
}
static void close_all(void) {
  for (int i = 0; i < WHICH; i++) {
    grammar_vocab_delete(vocabs[i]);
    tok_close(tokenizers[i]);
  }
}

static struct grammar *compile(enum which w, const json_t *tools, enum tools_choice choice, const char *named, bool parallel,
                               struct err *e) {
  struct grammar_rules *r = grammar_rules_new();
  *e = (struct err){0};
  if (tools_build(r, tokenizers[w], tools, choice, named, parallel, e) != 0) {
    assert_true(e->code != ERR_NONE && e->msg[0]);
    grammar_rules_delete(r);
    return NULL;
  }
  return grammar_compile(vocabs[w], r, e);
}

static json_t *parse(const char *text) {
  json_error_t error;
  json_t *v = json_loads(text, JSON_DECODE_ANY, &error);
  if (!v) fail_msg("%s: %s", error.text, text);
  return v;
}

static FILE *dump_file(void) {
  static FILE *f;
  const char *path = getenv("CYGNET_SCHEMA_DUMP");
  if (!f && path && *path) f = fopen(path, "a");
  return f;
}

/* ---- what an answer reads as ------------------------------------------------------------------------------------------------------------- */

struct answer {
  const json_t *tools;
  const char *text; /* for messages */
  struct buf content;
  int n_calls;
  bool openapi;
};

static void take_part(void *ctx, const struct output_part *part) {
  struct answer *a = ctx;
  if (part->kind != OUTPUT_CALL) {
    buf_append(&a->content, part->text.p, part->text.n);
    return;
  }
  const json_t *parameters = NULL;
  size_t i;
  json_t *tool;
  bool known = false;
  json_array_foreach((json_t *)a->tools, i, tool) {
    const json_t *f = json_object_get(tool, "function");
    if (!str_is(part->name, json_string_value(json_object_get(f, "name")))) continue;
    known = true;
    parameters = json_object_get(f, "parameters");
  }
  if (!known) fail_msg("a tool that is not on offer: %s", a->text);
  json_error_t error;
  json_t *v = json_loadb(part->text.p, part->text.n, JSON_ALLOW_NUL, &error);
  if (!v) fail_msg("arguments are no JSON (%s): %.*s: %s", error.text, (int)part->text.n, part->text.p, a->text);
  struct oracle o = {.whole = parameters, .openapi = a->openapi};
  if (!json_is_object(v) || (parameters && !oracle_valid(&o, parameters, v)))
    fail_msg("arguments are not valid: %.*s: %s", (int)part->text.n, part->text.p, a->text);
  if (dump_file() && parameters && !a->openapi) {
    json_t *line = json_pack("{s:s, s:O, s:s%}", "name", "arguments", "schema", (json_t *)parameters, "text", part->text.p, part->text.n);
    json_dumpf(line, dump_file(), JSON_COMPACT);
    fputc('\n', dump_file());
    json_decref(line);
  }
  json_decref(v);
  a->n_calls++;
}

/* Text and marks as the engine gives them. */
static void read_answer(enum which w, const struct tok_ids *ids, struct answer *a) {
  const struct tokenizer *t = tokenizers[w];
  const char *names[64];
  int n_names = 0;
  for (size_t i = 0; i < json_array_size(a->tools) && n_names < 64; i++)
    names[n_names++] = json_string_value(json_object_get(json_object_get(json_array_get(a->tools, i), "function"), "name"));
  struct output_options options = {.family = tok_family(t), .tools = n_names > 0, .names = names, .n_names = n_names};
  struct output *o = output_new(t, &options, take_part, a);
  struct buf run;
  buf_init(&run, 0);
  for (size_t i = 0; i <= ids->n; i++) {
    bool mark = i < ids->n && tok_is_control(t, ids->v[i]);
    if (i < ids->n && !mark) {
      struct str piece = tok_piece(t, ids->v[i]);
      buf_append(&run, piece.p, piece.n);
      continue;
    }
    if (run.len && w == GEMMA4_TEXT) output_raw(o, run.data, run.len);
    else if (run.len) output_text(o, run.data, run.len);
    buf_clear(&run);
    if (mark) output_mark(o, ids->v[i]);
  }
  output_finish(o);
  output_delete(o);
  buf_free(&run);
}

/* ---- every schema of the cases as the parameters of a tool ------------------------------------------------------------------------------------- */

static int generate(enum which w, struct grammar *g, const json_t *tools, bool openapi, int times, uint64_t *seed, int most_calls) {
  struct tok_ids ids = {0};
  int n = 0;
  for (int i = 0; i < times; i++) {
    ids.n = 0;
    if (!oracle_walk(g, tokenizers[w], seed, test_rand_int(seed, 0, 60), 1500, &ids)) continue;
    struct buf text;
    buf_init(&text, 0);
    tok_decode(tokenizers[w], ids.v, ids.n, false, &text);
    struct answer a = {.tools = tools, .text = buf_cstr(&text), .openapi = openapi};
    buf_init(&a.content, 0);
    read_answer(w, &ids, &a);
    if (a.content.len || a.n_calls < 1 || a.n_calls > most_calls)
      fail_msg("%d calls, and \"%s\" beside them: %s", a.n_calls, buf_cstr(&a.content), a.text);
    n += a.n_calls;
    buf_free(&a.content);
    buf_free(&text);
  }
  tok_ids_free(&ids);
  return n;
}

static void test_cases(void **state) {
  (void)state;
  int n_schemas = 0, n_calls = 0;
  uint64_t seed = 4;
  size_t n;
  char *all = test_read(test_path("golden/schema/cases.jsonl"), &n), *from = all;
  for (char *end; (end = memchr(from, '\n', (size_t)(all + n - from))); from = end + 1) {
    struct err e;
    json_t *line = json_load_text(from, (size_t)(end - from), true, "cases.jsonl", &e);
    if (!line) fail_msg("%s", e.msg);
    const json_t *schema = json_object_get(line, "schema");
    const char *name = json_string_value(json_object_get(line, "name"));
    if (json_is_object(schema)) {
      json_t *tools = json_pack("[{s:s, s:{s:s, s:O}}]", "type", "function", "function", "name", "f", "parameters", schema);
      for (int w = 0; w < WHICH; w++) {
        struct grammar *g = compile((enum which)w, tools, TOOLS_REQUIRED, NULL, true, &e);
        if (!g && json_object_get(line, "error") && !strstr(e.msg, "tools[0].function.parameters")) fail_msg("%s: %s", name, e.msg);
        if (!g && !json_object_get(line, "error") && !strstr(e.msg, "no value satisfies this schema")) fail_msg("%s: %s", name, e.msg);
        if (!g) continue;
        n_schemas++;
        n_calls += generate((enum which)w, g, tools, json_is_true(json_object_get(line, "openapi")), 8, &seed, 1 << 20);
        grammar_unref(g);
      }
      json_decref(tools);
    }
    json_decref(line);
  }
  free(all);
  print_message("%d grammars, %d calls\n", n_schemas, n_calls);
}

static void test_random_schemas(void **state) {
  (void)state;
  int n_built = 0, n_refused = 0, n_calls = 0;
  const char *rounds = getenv("CYGNET_SCHEMA_ROUNDS"), *first = getenv("CYGNET_SCHEMA_FIRST");
  int from = first ? atoi(first) : 0, to = from + (rounds ? atoi(rounds) : 600);
  for (int i = from; i < to; i++) {
    uint64_t s = 500000 + (uint64_t)i;
    enum which w = (enum which)(i % WHICH);
    json_t *schema = json_pack("{s:{s:o, s:o, s:o}, s:[s], s:{s:o, s:o}}", "properties", "v", random_schema(&s, 3), "a b",
                               random_schema(&s, 1), ":", random_schema(&s, 2), "required", "v", "$defs", "x", random_schema(&s, 2), "y",
                               random_schema(&s, 2));
    json_t *tools = json_pack("[{s:{s:s, s:o}}]", "function", "name", "f", "parameters", schema);
    struct err e;
    struct grammar *g = compile(w, tools, TOOLS_REQUIRED, NULL, true, &e);
    n_built += g != NULL;
    n_refused += !g;
    if (g) n_calls += generate(w, g, tools, false, 4, &s, 1 << 20);
    grammar_unref(g);
    json_decref(tools);
  }
  print_message("%d schemas built, %d refused; %d calls\n", n_built, n_refused, n_calls);
}

/* ---- choices ------------------------------------------------------------------------------------------------------------------------------------ */

static const char three_tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_tide\",\"description\":\"Tide\",\"parameters\":{\"type\":\"object\",\"properties\":{\"port\":{\"type\":\"string\"},"
    "\"hours\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":48},\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}}},\"required\":[\"port\"],\"additionalProperties\":false}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"now\"}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"a.b-c\",\"strict\":true,\"parameters\":{\"properties\":{\"x\":{\"enum\":[1,\"1\",null]}},\"required\":[\"x\"],\"additionalProperties\":false}}}]";

static void push_text(enum which w, struct tok_ids *ids, const char *text) {
  for (; *text; text++) tok_ids_push(ids, oracle_byte(tokenizers[w], (unsigned char)*text));
}
/* The call's marker as a token where there is one. */
static void push_marker(enum which w, struct tok_ids *ids, const char *spelling) {
  int32_t id = tok_find(tokenizers[w], spelling);
  if (id >= 0) tok_ids_push(ids, id);
  else push_text(w, ids, spelling);
}
static void push_begin(enum which w, struct tok_ids *ids) {
  if (w == GEMMA3) push_text(w, ids, "{\"name\": \"");
  else push_marker(w, ids, "<|tool_call>");
}

static bool lets_through(enum which w, struct grammar *g, const struct tok_ids *ids, bool whole) {
  struct grammar_state *s = grammar_state_new(g);
  bool good = true;
  for (size_t i = 0; i < ids->n && good; i++) good = grammar_accept(s, ids->v[i]);
  int n_eog;
  const int32_t *eog = tok_eog(tokenizers[w], &n_eog);
  if (good && whole)
    for (int i = 0; i < n_eog; i++) good &= grammar_accept(s, eog[i]);
  grammar_state_delete(s);
  return good;
}

static void test_choices(void **state) {
  (void)state;
  json_t *tools = parse(three_tools);
  uint64_t seed = 9;
  struct err e;
  for (int i = 0; i < WHICH; i++) {
    enum which w = (enum which)i;
    struct grammar *g = compile(w, tools, TOOLS_REQUIRED, NULL, true, &e);
    if (!g) fail_msg("%s", e.msg);
    int n = generate(w, g, tools, false, 300, &seed, 1 << 20);
    print_message("300 answers: %d calls\n", n);
    assert_true(n > 200);
    grammar_unref(g);
    g = compile(w, tools, TOOLS_REQUIRED, NULL, false, &e);
    assert_in_range(generate(w, g, tools, false, 200, &seed, 1), w == GEMMA4_TEXT ? 100 : 190, 200);
    grammar_unref(g);
    json_t *one = json_pack("[O]", json_array_get(tools, 1));
    g = compile(w, tools, TOOLS_NAMED, "now", true, &e);
    assert_in_range(generate(w, g, one, false, 200, &seed, 1), w == GEMMA4_TEXT ? 100 : 190, 200);
    grammar_unref(g);
    json_decref(one);
    assert_null(compile(w, tools, TOOLS_NAMED, "later", true, &e));
    assert_string_equal(e.msg, "tool_choice: no tool is called \"later\"");
  }
  json_t *none = json_array();
  assert_null(compile(GEMMA4, none, TOOLS_REQUIRED, NULL, true, &e));
  assert_string_equal(e.msg, "tool_choice: \"required\" needs tools");
  json_decref(none);
  json_decref(tools);
}

/* auto: text as the model likes; calls that are begun are known and valid, and nothing comes after them. */
static void test_auto(void **state) {
  (void)state;
  json_t *tools = parse(three_tools);
  uint64_t seed = 10;
  struct err e;
  for (int i = 0; i < 2 * WHICH; i++) {
    enum which w = (enum which)(i / 2);
    bool parallel = i & 1;
    struct grammar *g = compile(w, tools, TOOLS_AUTO, NULL, parallel, &e);
    if (!g) fail_msg("%s", e.msg);
    struct tok_ids ids = {0};
    int n_calls = 0, n_texts = 0;
    for (int k = 0; k < 400; k++) {
      ids.n = 0;
      if (k % 4 == 1 && w != GEMMA3) push_text(w, &ids, "Let me see. ");
      if (k % 2) push_begin(w, &ids);
      if (!oracle_walk(g, tokenizers[w], &seed, test_rand_int(&seed, 0, 40), 1500, &ids)) continue;
      struct buf text;
      buf_init(&text, 0);
      tok_decode(tokenizers[w], ids.v, ids.n, false, &text);
      struct answer a = {.tools = tools, .text = buf_cstr(&text)};
      buf_init(&a.content, 0);
      read_answer(w, &ids, &a);
      if ((k % 2 && !a.n_calls) || (!parallel && a.n_calls > 1)) fail_msg("%d calls: %s", a.n_calls, a.text);
      n_calls += a.n_calls;
      n_texts += !a.n_calls;
      buf_free(&a.content);
      buf_free(&text);
    }
    print_message("400 answers: %d calls, %d without\n", n_calls, n_texts);
    assert_true(n_calls > 100 && n_texts > 100);
    tok_ids_free(&ids);
    grammar_unref(g);
  }
  json_decref(tools);
}

struct line {
  const char *text;
  bool good;
};

/* {tool_call} stands for the markers. */
static void push_line(enum which w, struct tok_ids *ids, const char *text) {
  ids->n = 0;
  while (*text) {
    static const char *const marks[] = {"<|tool_call>", "<tool_call|>", "<|\"|>", "<|channel>", "<channel|>", "<|tool_response>"};
    bool marked = false;
    for (size_t i = 0; i < 6 && !marked; i++) {
      if (strncmp(text, marks[i], strlen(marks[i])) != 0) continue;
      push_marker(w, ids, marks[i]);
      text += strlen(marks[i]);
      marked = true;
    }
    if (!marked) push_text(w, ids, (char[]){*text++, 0});
  }
}

static void check_lines(enum which w, enum tools_choice choice, bool parallel, const struct line *lines, size_t n) {
  json_t *tools = parse(three_tools);
  struct err e;
  struct grammar *g = compile(w, tools, choice, NULL, parallel, &e);
  if (!g) fail_msg("%s", e.msg);
  struct tok_ids ids = {0};
  for (size_t i = 0; i < n; i++) {
    push_line(w, &ids, lines[i].text);
    if (lets_through(w, g, &ids, true) != lines[i].good) fail_msg("%s: %s", lines[i].good ? "refused" : "let through", lines[i].text);
  }
  tok_ids_free(&ids);
  grammar_unref(g);
  json_decref(tools);
}

#define NOW  "<|tool_call>call:now{}<tool_call|>"
#define TIDE "<|tool_call>call:get_tide{port:<|\"|>Brest<|\"|>,hours:3,tags:[<|\"|>a, \"b\"}<|\"|>]}<tool_call|>"

static void test_gemma4_lines(void **state) {
  (void)state;
  static const struct line automatic[] = {
      {"", true},
      {"Hello.", true},
      {"{\"name\": \"now\"}", true},
      {NOW, true},
      {TIDE, true},
      {NOW TIDE NOW, true},
      {"<|channel>thought\nI need it.\n<channel|>" NOW, true},
      {"<|channel>thought\nI need it." NOW, true},
      {"<|channel>thought\n<channel|>It is noon.", true},
      {"I look." NOW, true},
      {NOW "Done.", false},
      {NOW "\n", false},
      {NOW "<|tool_response>", true}, /* an end of generation: what comes behind it is not looked at */
      {"<|tool_call>", false},
      {"<|tool_call>call:later{}<tool_call|>", false},
      {"<|tool_call> call:now{}<tool_call|>", false},
      {"<|tool_call>call:now{}", false},
      {"<|tool_call>call:get_tide{}<tool_call|>", false},
      {"<|tool_call>call:get_tide{port:<|\"|>Brest<|\"|>,hours:49}<tool_call|>", false},
      {"<|tool_call>call:get_tide{port:Brest}<tool_call|>", false},
      {"<|tool_call>call:get_tide{port:<|\"|>B<|\"|>,more:1}<tool_call|>", false},
      {"<|tool_call>call:now{any:{b:[1,null,true]},c:<|\"|><|\"|>}<tool_call|>", true},
      {"<|tool_call>call:a.b-c{x:<|\"|>1<|\"|>}<tool_call|>", true},
      {"<|tool_call>call:a.b-c{x:1}<tool_call|>", true},
      {"<|tool_call>call:a.b-c{x:null}<tool_call|>", true},
      {"<|tool_call>call:a.b-c{x:2}<tool_call|>", false},
  };
  static const struct line required[] = {{"", false}, {"Hello.", false}, {NOW, true}, {NOW NOW, true}, {"x" NOW, false}};
  static const struct line alone[] = {{NOW, true}, {NOW NOW, false}, {"Hello." NOW, true}, {"Hello.", true}};
  static const struct line none[] = {{"", true}, {"Hello.", true}, {NOW, false}, {"<|channel>thought\nno\n<channel|>x", true}};
  check_lines(GEMMA4, TOOLS_AUTO, true, automatic, ARRAY_LEN(automatic));
  check_lines(GEMMA4, TOOLS_REQUIRED, true, required, ARRAY_LEN(required));
  check_lines(GEMMA4, TOOLS_AUTO, false, alone, ARRAY_LEN(alone));
  check_lines(GEMMA4, TOOLS_NONE, true, none, ARRAY_LEN(none));
}

#define J_NOW  "{\"name\": \"now\", \"parameters\": {}}"
#define J_TIDE "{\"name\": \"get_tide\", \"parameters\": {\"port\": \"Brest\", \"hours\": 3}}"

static void test_json_lines(void **state) {
  (void)state;
  static const struct line automatic[] = {
      {"", true},
      {"Hello {\"name\": \"now\"}", true},
      {"{\"city\": \"Oslo\"}", true},
      {"{", true},
      {"[1, 2]", true},
      {"[nowhere(", true},
      {"{\"names\": 1}", true},
      {J_NOW, true},
      {J_NOW "; " J_TIDE, true},
      {J_NOW J_NOW, false},
      {J_NOW " ", false},
      {"{\"name\": \"later\", \"parameters\": {}}", false},
      {"{\"name\": \"get_tide\", \"parameters\": {}}", false},
      {"{\"name\": \"now\"}", false},
      {"{\"name\":\"now\", \"parameters\": {}}", false},
      {" \n{ \"name\" : 1", false},
      {"[{\"name\": \"now\", \"parameters\": {}}]", false},
      {"{\"parameters\": {}, \"name\": \"now\"}", false},
      {"{\"type\": \"function\", \"function\": {}}", false},
      {"{\"type\": \"table\"}", true},
      {"[now()]", false},
      {"[ a.b-c (x=2)]", false},
      {"[axb-c(x=2)]", true},
  };
  static const struct line required[] = {{"", false}, {"Hello.", false}, {J_NOW, true}, {J_TIDE "; " J_NOW, true}};
  static const struct line none[] = {{"", true}, {J_NOW, true}, {"Hello.", true}};
  check_lines(GEMMA3, TOOLS_AUTO, true, automatic, ARRAY_LEN(automatic));
  check_lines(GEMMA3, TOOLS_REQUIRED, true, required, ARRAY_LEN(required));
  check_lines(GEMMA3, TOOLS_NONE, true, none, ARRAY_LEN(none));
}

/* ---- the field ------------------------------------------------------------------------------------------------------------------------------------- */

static void test_check(void **state) {
  (void)state;
  static const struct {
    const char *tools, *message;
  } bad[] = {
      {"{}", "tools: expected an array"},
      {"[1]", "tools[0]: expected an object"},
      {"[{\"type\":\"file\"}]", "tools[0].type: expected \"function\""},
      {"[{\"type\":\"function\"}]", "tools[0].function: expected an object"},
      {"[{\"function\":{}}]", "tools[0].function.name: expected a string"},
      {"[{\"function\":{\"name\":\"\"}}]", "tools[0].function.name: expected up to 64 letters, digits, _ - and ., found \"\""},
      {"[{\"function\":{\"name\":\"a b\"}}]", "tools[0].function.name: expected up to 64 letters, digits, _ - and ., found \"a b\""},
      {"[{\"function\":{\"name\":\"a\"}},{\"function\":{\"name\":\"a\"}}]", "tools[1].function.name: \"a\" is the name of tools[0], too"},
      {"[{\"function\":{\"name\":\"a\",\"description\":1}}]", "tools[0].function.description: expected a string"},
      {"[{\"function\":{\"name\":\"a\",\"parameters\":[]}}]", "tools[0].function.parameters: expected a JSON schema, an object"},
      {"[{\"function\":{\"name\":\"a\",\"strict\":1}}]", "tools[0].function.strict: expected true or false"},
      {"[{\"function\":{\"name\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}}]",
       "tools[0].function.name: expected up to 64 letters, digits, _ - and ., found \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\""},
  };
  struct err e;
  for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
    json_t *tools = parse(bad[i].tools);
    e = (struct err){0};
    assert_int_equal(tools_check(tools, "tools", &e), -1);
    assert_string_equal(e.msg, bad[i].message);
    assert_int_equal(e.code, ERR_BAD_INPUT);
    json_decref(tools);
  }
  json_t *tools = parse(three_tools);
  assert_int_equal(tools_check(tools, "tools", &e), 0);
  json_decref(tools);
  tools = parse("[{\"function\":{\"name\":\"a\",\"description\":null,\"parameters\":null,\"strict\":null}}]");
  assert_int_equal(tools_check(tools, "tools", &e), 0);
  json_decref(tools);
  tools = parse(
      "[{\"function\":{\"name\":\"a\"}},{\"function\":{\"name\":\"b\",\"parameters\":{\"properties\":{\"x\":{\"type\":\"array\",\"contains\":{}}}}}}]");
  assert_null(compile(GEMMA4, tools, TOOLS_AUTO, NULL, true, &e));
  assert_string_equal(e.msg, "tools[1].function.parameters.properties.x: keyword \"contains\" is not supported");
  json_decref(tools);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_check),          cmocka_unit_test(test_gemma4_lines), cmocka_unit_test(test_json_lines),
      cmocka_unit_test(test_choices),        cmocka_unit_test(test_auto),         cmocka_unit_test(test_cases),
      cmocka_unit_test(test_random_schemas),
  };
  const char *filter = getenv("CYGNET_TEST_FILTER");
  if (filter && *filter) cmocka_set_test_filter(filter);
  open_all();
  int rc = cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
  close_all();
  if (dump_file()) fclose(dump_file());
  return rc;
}
