/* t_tools.c — tools, thoughts and forms of answers over HTTP, in every dialect, against a scripted engine that writes as Gemma 4 does. */
#include "events.h"

#define CHAT      "/v1/chat/completions"
#define ASK(text) "\"messages\":[{\"role\":\"user\",\"content\":\"" text "\"}]"
#define FUNCTION(name)                                                                                                                     \
  "{\"name\":\"" name "\",\"description\":\"d\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}}}}"
#define TOOL(name) "{\"type\":\"function\",\"function\":" FUNCTION(name) "}"
#define TOOLS      "\"tools\":[" TOOL("f") "," TOOL("g") "]"
#define THOUGHT    "<|channel>thought\\\\nhm\\\\n<channel|>"
#define CALL_F     "<|tool_call>call:f{a:1}<tool_call|>"
#define CALL_G     "<|tool_call>call:g{b:<|\\\"|>x<|\\\"|>}<tool_call|>"

/* ---- a renderer that remembers ----------------------------------------------------------------------------------------- */

static pthread_mutex_t seen_mutex = PTHREAD_MUTEX_INITIALIZER;
static char seen_messages[8192], seen_tools[4096], seen_options[1024];

static int seeing_render(void *self, const char *messages, const char *tools, const char *options, int32_t **ids, size_t *n_ids,
                         int *thought, struct cygnet_error *e) {
  pthread_mutex_lock(&seen_mutex);
  snprintf(seen_messages, sizeof seen_messages, "%s", messages);
  snprintf(seen_tools, sizeof seen_tools, "%s", tools ? tools : "");
  snprintf(seen_options, sizeof seen_options, "%s", options);
  pthread_mutex_unlock(&seen_mutex);
  return fake_render(self, messages, tools, options, ids, n_ids, thought, e);
}

static struct fake model;

static struct fixture *start(enum tok_family family) {
  memset(&model, 0, sizeof model);
  model.family = family;
  model.thinks = model.tools = family == TOK_GEMMA4;
  struct port port = fake_port(&model);
  port.render = seeing_render;
  return fixture_start_port(&port, NULL, 0, 0);
}

static void stop(struct fixture *f) {
  fixture_stop(f);
  assert_int_equal(atomic_load(&fake_grammars), 0); /* all given back */
}

static const char *text_at(const json_t *v, const char *path) {
  const char *s = json_string_value(value_at(v, path));
  return s ? s : "";
}

/* ---- streams of chunks ------------------------------------------------------------------------------------------------- */

struct streamed { /* of one choice */
  struct buf content, reasoning, names, logprobs;
  struct buf arguments[8];
  char ids[8][40];
  int n_calls, n_chunks;
  char finish[24];
  bool opened, ended;
};

static void streamed_free(struct streamed *s) {
  buf_free(&s->content);
  buf_free(&s->reasoning);
  buf_free(&s->names);
  buf_free(&s->logprobs);
  for (int i = 0; i < 8; i++) buf_free(&s->arguments[i]);
}

static void take_delta(const char *where, struct streamed *s, const json_t *choice) {
  const json_t *delta = json_object_get(choice, "delta"), *call;
  size_t i;
  if (s->ended) fail_msg("%s: a chunk after the end", where);
  if (!s->opened) value_check(where, delta, "role", "\"assistant\"");
  s->opened = true;
  s->n_chunks++;
  buf_puts(&s->content, text_at(delta, "content"));
  buf_puts(&s->reasoning, text_at(delta, "reasoning_content"));
  json_array_foreach(json_object_get(delta, "tool_calls"), i, call) {
    int k = (int)json_integer_value(json_object_get(call, "index"));
    if (k < s->n_calls) {
      if (json_object_get(call, "id")) fail_msg("%s: an id again", where);
    } else {
      assert_int_equal(k, s->n_calls);
      s->n_calls++;
      snprintf(s->ids[k], sizeof s->ids[k], "%s", value_string(where, call, "id"));
      value_check(where, call, "type", "\"function\"");
      value_check(where, call, "function.arguments", "\"\"");
      buf_printf(&s->names, "%s ", value_string(where, call, "function.name"));
    }
    buf_puts(&s->arguments[k], value_string(where, call, "function.arguments"));
  }
  const json_t *logprob;
  json_array_foreach(value_at(choice, "logprobs.content"), i, logprob) buf_puts(&s->logprobs, text_at(logprob, "token"));
  if (json_is_string(json_object_get(choice, "finish_reason"))) {
    snprintf(s->finish, sizeof s->finish, "%s", text_at(choice, "finish_reason"));
    s->ended = true;
  }
}

/* n choices; *usage: of the last chunk. */
static void stream_chat(struct fixture *f, const char *body, struct streamed *choices, int n, json_t **usage) {
  struct answer a;
  json_error_t je;
  json_t *o = json_loads(body, 0, &je);
  if (!o) fail_msg("%s: %s", body, je.text);
  json_object_set_new(o, "stream", json_true());
  json_object_set_new(o, "stream_options", json_pack("{s:b}", "include_usage", 1));
  char *text = json_dumps(o, JSON_COMPACT);
  client_ask(f->port, CHAT, text, &a);
  if (a.status != 200 || a.truncated) fail_msg("%s: status %d: %.500s", text, a.status, buf_cstr(&a.body));
  memset(choices, 0, (size_t)n * sizeof *choices);
  *usage = NULL;
  for (char *p = a.body.data; *p;) {
    char *end = strstr(p, "\n\n");
    if (!end || strncmp(p, "data: ", 6)) fail_msg("%s: %.100s", body, p);
    if (strncmp(p, "data: [DONE]", 12)) {
      json_t *chunk = json_loadb(p + 6, (size_t)(end - p - 6), JSON_REJECT_DUPLICATES, &je), *choice = value_at(chunk, "choices.0");
      if (!chunk) fail_msg("%s: no JSON: %.300s", body, p);
      if (choice) take_delta(body, &choices[json_integer_value(json_object_get(choice, "index"))], choice);
      else *usage = json_incref(json_object_get(chunk, "usage"));
      json_decref(chunk);
    }
    p = end + 2;
  }
  answer_free(&a);
  json_decref(o);
  free(text);
}

/* The stream and the whole answer say the same, choice by choice. Returns the whole one. */
static json_t *ask_both(struct fixture *f, const char *body, int n) {
  struct streamed s[4];
  json_t *usage, *v = ask(f, CHAT, body, 200);
  stream_chat(f, body, s, n, &usage);
  for (int i = 0; i < n; i++) {
    const json_t *choice = json_array_get(json_object_get(v, "choices"), (size_t)i), *calls = value_at(choice, "message.tool_calls");
    assert_string_equal(buf_cstr(&s[i].content), text_at(choice, "message.content"));
    assert_string_equal(buf_cstr(&s[i].reasoning), text_at(choice, "message.reasoning_content"));
    assert_string_equal(s[i].finish, text_at(choice, "finish_reason"));
    assert_int_equal(s[i].n_calls, json_array_size(calls));
    struct buf names, logprobs;
    buf_init(&names, 0);
    buf_init(&logprobs, 0);
    for (int k = 0; k < s[i].n_calls; k++) {
      const json_t *call = json_array_get(calls, (size_t)k);
      buf_printf(&names, "%s ", value_string(body, call, "function.name"));
      assert_string_equal(buf_cstr(&s[i].arguments[k]), value_string(body, call, "function.arguments"));
    }
    const json_t *token;
    size_t k;
    json_array_foreach(value_at(choice, "logprobs.content"), k, token) buf_puts(&logprobs, text_at(token, "token"));
    assert_string_equal(buf_cstr(&s[i].names), buf_cstr(&names));
    assert_string_equal(buf_cstr(&s[i].logprobs), buf_cstr(&logprobs));
    buf_free(&names);
    buf_free(&logprobs);
    streamed_free(&s[i]);
  }
  if (!json_equal(usage, json_object_get(v, "usage"))) fail_msg("%s: usage differs", body);
  json_decref(usage);
  return v;
}

/* ---- answers ----------------------------------------------------------------------------------------------------------- */

/* Thoughts, text and calls where they belong, in every mix (cases E6, and F6 of finish reasons). */
static void answers(void **state) {
  (void)state;
  static const struct {
    const char *say, *fields, *content, *reasoning, *calls, *finish;
    int n_reasoning;
  } table[] = {
      {"plain", "", "plain", NULL, "", "stop", 0},
      {THOUGHT "42", "", "42", "hm", "", "stop", 13},
      {THOUGHT, "", "", "hm", "", "stop", 13},
      {"<|channel>thought\\\\n<channel|>42", "", "42", NULL, "", "stop", 10},
      {THOUGHT "one" THOUGHT "two", "", "onetwo", "hmhm", "", "stop", 26},
      {"a<channel|>b", "", "ab", NULL, "", "stop", 0},
      {THOUGHT "42", "\"max_tokens\":11,", "", "hm", "", "length", 11},
      {THOUGHT "42", "\"max_tokens\":1,", "", NULL, "", "length", 1},
      {CALL_F, TOOLS ",", "", NULL, "f {\"a\":1};", "tool_calls", 0},
      {CALL_F CALL_G "<|tool_response>", TOOLS ",", "", NULL, "f {\"a\":1};g {\"b\":\"x\"};", "tool_calls", 0},
      {THOUGHT "See:" CALL_G, TOOLS ",", "See:", "hm", "g {\"b\":\"x\"};", "tool_calls", 13},
      {CALL_F, TOOLS ",\"tool_choice\":\"none\",", "call:f{a:1}", NULL, "", "stop", 0},
      {CALL_F, "", "call:f{a:1}", NULL, "", "stop", 0},
      {CALL_F, TOOLS ",\"max_tokens\":9,", "call:f{a", NULL, "", "length", 0},
      {CALL_F "x", TOOLS ",\"max_tokens\":13,", "", NULL, "f {\"a\":1};", "length", 0},
      {"<|tool_call>oops<tool_call|>", TOOLS ",", "oops", NULL, "", "stop", 0},
      {THOUGHT "42", "\"separate_reasoning\":false,", "hm42", NULL, "", "stop", 13},
      {THOUGHT "42", "\"stream_reasoning\":false,", "42", "hm", "", "stop", 13},
      {THOUGHT "42", "\"skip_special_tokens\":false,", "<|channel>thought\nhm\n<channel|>42", NULL, "", "stop", 0},
      {THOUGHT CALL_F, TOOLS ",\"skip_special_tokens\":false,", "", "hm", "f {\"a\":1};", "tool_calls", 13},
      {"a|b", "\"stop\":\"|\",", "a", NULL, "", "stop", 0},
      {"ab\\\\nUs", "\"stop\":\"\\nUser:\",", "ab\nUs", NULL, "", "stop", 0},
      {THOUGHT "42", "\"stop\":\"m\",", "", "h", "", "stop", 10},
      {CALL_F, TOOLS ",\"stop\":\"a:\",", "call:f{", NULL, "", "stop", 0},
      {CALL_F "END", TOOLS ",\"stop\":\"END\",", "", NULL, "f {\"a\":1};", "tool_calls", 0},
  };
  struct fixture *f = start(TOK_GEMMA4);
  for (size_t i = 0; i < ARRAY_LEN(table); i++)
    for (int logprobs = 0; logprobs < 2; logprobs++) {
      char body[2000];
      struct buf calls;
      buf_init(&calls, 0);
      char say[512];
      snprintf(say, sizeof say, "%s", table[i].say);
      snprintf(body, sizeof body, "{%s%s\"messages\":[{\"role\":\"user\",\"content\":\"say:%s\"}]}", table[i].fields,
               logprobs ? "\"logprobs\":true," : "", say);
      json_t *v = ask_both(f, body, 1), *message = value_at(v, "choices.0.message"), *call;
      size_t k;
      assert_string_equal(value_string(body, message, "content"), table[i].content);
      if (table[i].reasoning) assert_string_equal(value_string(body, message, "reasoning_content"), table[i].reasoning);
      else value_check(body, message, "reasoning_content", "null");
      json_array_foreach(json_object_get(message, "tool_calls"), k, call)
          buf_printf(&calls, "%s %s;", value_string(body, call, "function.name"), value_string(body, call, "function.arguments"));
      if (strcmp(buf_cstr(&calls), table[i].calls)) fail_msg("%s: calls are %s", body, buf_cstr(&calls));
      if (!*table[i].calls && json_object_get(message, "tool_calls")) fail_msg("%s: a list of no calls", body);
      assert_string_equal(text_at(v, "choices.0.finish_reason"), table[i].finish);
      if (table[i].n_reasoning) {
        assert_int_equal(json_integer_value(value_at(v, "usage.reasoning_tokens")), table[i].n_reasoning);
        assert_int_equal(json_integer_value(value_at(v, "usage.completion_tokens_details.reasoning_tokens")), table[i].n_reasoning);
      }
      buf_free(&calls);
      json_decref(v);
    }
  stop(f);
}

/* Each choice has a parser of its own. */
static void several_choices(void **state) {
  (void)state;
  struct fixture *f = start(TOK_GEMMA4);
  json_t *v = ask_both(f, "{\"n\":3,\"logprobs\":true," TOOLS "," ASK("say:" THOUGHT "a" CALL_F CALL_G) "}", 3);
  for (int i = 0; i < 3; i++) {
    const json_t *message = value_at(json_array_get(json_object_get(v, "choices"), (size_t)i), "message");
    assert_int_equal(json_array_size(json_object_get(message, "tool_calls")), 2);
    value_check("n", message, "reasoning_content", "\"hm\"");
    value_check("n", message, "content", "\"a\"");
  }
  json_decref(v);
  stop(f);
}

static bool is_id(const char *s, const char *prefix) {
  size_t n = strlen(prefix);
  return !strncmp(s, prefix, n) && strlen(s) == n + 24 && strspn(s + n, "0123456789abcdef") == 24;
}

/* Case E10: never empty, never twice, in both shapes. */
static void ids(void **state) {
  (void)state;
  static char seen[200][40];
  int n = 0;
  struct fixture *f = start(TOK_GEMMA4);
  for (int i = 0; i < 50; i++) {
    struct streamed s;
    json_t *usage, *v = ask(f, CHAT, "{" TOOLS "," ASK("say:" CALL_F CALL_G) "}", 200);
    stream_chat(f, "{" TOOLS "," ASK("say:" CALL_F CALL_G) "}", &s, 1, &usage);
    for (int k = 0; k < 2; k++) {
      const json_t *call = json_array_get(value_at(v, "choices.0.message.tool_calls"), (size_t)k);
      snprintf(seen[n++], 40, "%s", value_string("whole", call, "id"));
      value_check("whole", call, "type", "\"function\"");
      snprintf(seen[n++], 40, "%s", s.ids[k]);
    }
    json_decref(usage);
    json_decref(v);
    streamed_free(&s);
  }
  for (int i = 0; i < n; i++) {
    if (!is_id(seen[i], "call_")) fail_msg("id %s", seen[i]);
    for (int k = 0; k < i; k++) assert_string_not_equal(seen[i], seen[k]);
  }
  stop(f);
}

/* Models that have no markers of their own are read by Llama's rule, when tools are on offer. */
static void other_families(void **state) {
  (void)state;
  struct fixture *f = start(TOK_GEMMA3);
  json_t *v = ask_both(f, "{" TOOLS "," ASK("say:{\\\"name\\\": \\\"f\\\", \\\"parameters\\\": {\\\"a\\\": 1}}") "}", 1);
  value_check("Gemma 3", v, "choices.0.message.tool_calls.0.function", "{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}");
  value_check("Gemma 3", v, "choices.0.finish_reason", "\"tool_calls\"");
  assert_non_null(strstr(seen_options, "\"describe_tools\":true"));
  json_decref(v);
  v = ask_both(f, "{" ASK("say:{\\\"name\\\": \\\"f\\\"}") "}", 1);
  value_check("Gemma 3", v, "choices.0.message.content", "\"{\\\"name\\\": \\\"f\\\"}\"");
  assert_null(strstr(seen_options, "describe_tools"));
  json_decref(v);
  stop(f);
}

/* ---- what is asked of the engine ---------------------------------------------------------------------------------------- */

#define ALL_TOOLS "{\"tools\":[" TOOL("f") "," TOOL("g") "],\"choice\":"

/* The form that each request stands for, as the engine gets it: KIND TEXT thoughts=N budget=N marks=N (cases E2, E3). */
static void forms(void **state) {
  (void)state;
  static const struct {
    const char *fields, *wanted;
  } table[] = {
      {"", "-1  thoughts=0 budget=0 marks=1"},
      {TOOLS, "3 " ALL_TOOLS "\"auto\",\"parallel\":true} thoughts=0 budget=0 marks=1"},
      {TOOLS ",\"tool_choice\":\"required\"", "3 " ALL_TOOLS "\"required\",\"parallel\":true} thoughts=0 budget=0 marks=1"},
      {TOOLS ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false",
       "3 " ALL_TOOLS "\"required\",\"parallel\":false} thoughts=0 budget=0 marks=1"},
      {TOOLS ",\"tool_choice\":\"none\"", "3 " ALL_TOOLS "\"none\",\"parallel\":true} thoughts=0 budget=0 marks=1"},
      {TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}}",
       "3 " ALL_TOOLS "{\"name\":\"g\"},\"parallel\":true} thoughts=0 budget=0 marks=1"},
      {TOOLS ",\"tool_choice\":{\"type\":\"function\",\"name\":\"g\"}",
       "3 " ALL_TOOLS "{\"name\":\"g\"},\"parallel\":true} thoughts=0 budget=0 marks=1"},
      {"\"functions\":[" FUNCTION("f") "," FUNCTION("g") "],\"function_call\":{\"name\":\"f\"}",
       "3 " ALL_TOOLS "{\"name\":\"f\"},\"parallel\":true} thoughts=0 budget=0 marks=1"},
      {"\"functions\":[" FUNCTION("f") "," FUNCTION("g") "]", "3 " ALL_TOOLS "\"auto\",\"parallel\":true} thoughts=0 budget=0 marks=1"},
      {"\"response_format\":{\"type\":\"text\"}", "-1  thoughts=0 budget=0 marks=1"},
      {"\"response_format\":{\"type\":\"json_object\"}", "0 {\"type\":\"object\"} thoughts=0 budget=0 marks=1"},
      {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"strict\":true,\"schema\":{\"type\":\"integer\"}}}",
       "0 {\"type\":\"integer\"} thoughts=0 budget=0 marks=1"},
      {"\"regex\":\"a+\"", "1 a+ thoughts=0 budget=0 marks=1"},
      {"\"ebnf\":\"root ::= x\"", "2 root ::= x thoughts=0 budget=0 marks=1"},
      {"\"json_schema\":\"{\\\"type\\\": \\\"null\\\"}\"", "0 {\"type\":\"null\"} thoughts=0 budget=0 marks=1"},
      {"\"json_schema\":false", "0 false thoughts=0 budget=0 marks=1"},
      {"\"json_schema\":{}", "0 {} thoughts=0 budget=0 marks=1"},
      {"\"regex\":\"a+\"," TOOLS ",\"tool_choice\":\"none\"", "1 a+ thoughts=0 budget=0 marks=1"},
      {"\"regex\":\"a+\"," TOOLS ",\"tool_choice\":\"required\"",
       "3 " ALL_TOOLS "\"required\",\"parallel\":true} thoughts=0 budget=0 marks=1"},
      {"\"enable_thinking\":true,\"regex\":\"a+\"", "1 a+ thoughts=1 budget=0 marks=1"},
      {"\"chat_template_kwargs\":{\"enable_thinking\":true}", "-1  thoughts=1 budget=0 marks=1"},
      {"\"reasoning_effort\":\"low\"", "-1  thoughts=1 budget=1025 marks=1"},
      {"\"reasoning_effort\":\"high\"", "-1  thoughts=1 budget=0 marks=1"},
      {"\"reasoning_effort\":\"high\",\"thinking_budget\":7", "-1  thoughts=1 budget=8 marks=1"},
      {"\"reasoning_effort\":\"none\"", "-1  thoughts=0 budget=0 marks=1"},
      {"\"reasoning\":{\"max_tokens\":5}", "-1  thoughts=1 budget=6 marks=1"},
      {"\"reasoning\":{\"enabled\":true,\"effort\":\"medium\"}", "-1  thoughts=1 budget=4097 marks=1"},
      {"\"reasoning\":{\"enabled\":false}", "-1  thoughts=0 budget=0 marks=1"},
      {"\"custom_params\":{\"thinking_budget\":0},\"enable_thinking\":true", "-1  thoughts=1 budget=1 marks=1"},
      {"\"thinking_budget\":-1", "-1  thoughts=0 budget=0 marks=1"},
      {"\"skip_special_tokens\":false", "-1  thoughts=0 budget=0 marks=0"},
  };
  struct fixture *f = start(TOK_GEMMA4);
  for (size_t i = 0; i < ARRAY_LEN(table); i++) {
    char body[2000];
    snprintf(body, sizeof body, "{%s%s" ASK("!form") "}", table[i].fields, *table[i].fields ? "," : "");
    json_t *v = ask(f, CHAT, body, 200);
    const char *found = value_string(body, v, "choices.0.message.content");
    if (strcmp(found, table[i].wanted)) fail_msg("%s: asked for %s, wanted %s", body, found, table[i].wanted);
    json_decref(v);
  }
  json_t *v = ask(f, CHAT, "{\"enable_thinking\":true," ASK("!form !open") "}", 200);
  value_check("open", v, "choices.0.message.content", "\"\"");
  value_check("open", v, "choices.0.message.reasoning_content", "\"-1  thoughts=2 budget=0 marks=1\"");
  json_decref(v);
  /* raw text: a form, no tools, no marks */
  v = ask(f, "/v1/completions", "{\"prompt\":\"!form\",\"max_tokens\":99,\"response_format\":{\"type\":\"json_object\"}}", 200);
  value_check("completions", v, "choices.0.text", "\"0 {\\\"type\\\":\\\"object\\\"} thoughts=0 budget=0 marks=0\"");
  json_decref(v);
  v = ask(f, "/generate", "{\"text\":[\"!form\",\"!form\"],\"sampling_params\":[{\"regex\":\"a\"},{\"json_schema\":\"{}\"}]}", 200);
  value_check("generate", v, "0.text", "\"1 a thoughts=0 budget=0 marks=0\"");
  value_check("generate", v, "1.text", "\"0 {} thoughts=0 budget=0 marks=0\"");
  json_decref(v);
  stop(f);
}

/* A function that is not strict may have parameters that no grammar can hold, as long as the model may choose. */
static void loose_schemas(void **state) {
  (void)state;
#define ODD(strict) "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"!bad\":1}" strict "}}]"
  struct fixture *f = start(TOK_GEMMA4);
  json_t *v = ask(f, CHAT, "{" ODD("") "," ASK("!form") "}", 200);
  value_check(
      "auto", v, "choices.0.message.content",
      "\"3 {\\\"tools\\\":[{\\\"type\\\":\\\"function\\\",\\\"function\\\":{\\\"name\\\":\\\"f\\\"}}],\\\"choice\\\":\\\"auto\\\",\\\"parallel\\\":true} "
      "thoughts=0 budget=0 marks=1\"");
  assert_non_null(strstr(seen_tools, "!bad")); /* the model sees it */
  json_decref(v);
  static const char *const refused[] = {"{" ODD(",\"strict\":true") "," ASK("x") "}",
                                        "{" ODD("") ",\"tool_choice\":\"required\"," ASK("x") "}",
                                        "{" ODD("") ",\"tool_choice\":{\"type\":\"function\",\"name\":\"f\"}," ASK("x") "}"};
  for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
    v = ask(f, CHAT, refused[i], 400);
    value_check(refused[i], v, "error.param", "\"tools\"");
    if (!strstr(value_string(refused[i], v, "error.message"), "keyword \"!bad\"")) fail_msg("%s", text_at(v, "error.message"));
    json_decref(v);
  }
  stop(f);
}

/* Nothing is computed for a request that is wrong; the field is named. */
static void refused(void **state) {
  (void)state;
  static const struct {
    const char *fields, *param;
  } table[] = {
      {"\"tools\":5", "tools"},
      {"\"tools\":[5]", "tools"},
      {"\"tools\":[{\"type\":\"web_search\"}]", "tools"},
      {"\"tools\":[{\"type\":\"function\"}]", "tools"},
      {"\"tools\":[{\"type\":\"function\",\"function\":{}}]", "tools"},
      {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"\"}}]", "tools"},
      {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}]", "tools"},
      {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":[]}}]", "tools"},
      {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":1}}]", "tools"},
      {"\"tools\":[" TOOL("f") "," TOOL("f") "]", "tools"},
      {TOOLS ",\"functions\":[" FUNCTION("h") "]", "functions"},
      {"\"functions\":[{\"name\":5}]", "functions"},
      {TOOLS ",\"tool_choice\":\"sometimes\"", "tool_choice"},
      {TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"h\"}}", "tool_choice"},
      {TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\"}", "tool_choice"},
      {TOOLS ",\"tool_choice\":{\"type\":\"function\"}", "tool_choice"},
      {TOOLS ",\"tool_choice\":5", "tool_choice"},
      {TOOLS ",\"tool_choice\":\"\"", "tool_choice"},
      {TOOLS ",\"tool_choice\":{}", "tool_choice"},
      {TOOLS ",\"tool_choice\":false", "tool_choice"},
      {TOOLS ",\"tool_choice\":\"auto\",\"function_call\":\"auto\"", "function_call"},
      {"\"tool_choice\":\"required\"", "tool_choice"},
      {"\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}", "tool_choice"},
      {"\"function_call\":{\"name\":\"f\"}", "function_call"},
      {TOOLS ",\"parallel_tool_calls\":1", "parallel_tool_calls"},
      {TOOLS ",\"response_format\":{\"type\":\"json_object\"}", "response_format"},
      {TOOLS ",\"regex\":\"a\"", "regex"},
      {"\"regex\":\"\"", "regex"},
      {"\"ebnf\":\"\"", "ebnf"},
      {"\"json_schema\":\"\"", "json_schema"},
      {"\"json_schema\":5", "json_schema"},
      {"\"regex\":\"a\",\"ebnf\":\"b\"", "ebnf"},
      {"\"regex\":\"a\",\"response_format\":{\"type\":\"json_object\"}", "regex"},
      {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\"}}", "response_format"},
      {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":\"x\"}}", "response_format"},
      {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{},\"strict\":5}}", "response_format"},
      {"\"response_format\":{\"type\":\"structural_tag\",\"structures\":[]}", "response_format"},
      {"\"structural_tag\":\"x\"", "structural_tag"},
      {"\"regex\":\"a\",\"ignore_eos\":true", "ignore_eos"},
      {"\"json_schema\":\"{}\",\"stop\":\"}\"", "stop"},
      {TOOLS ",\"tool_choice\":\"required\",\"stop\":\"}\"", "stop"},
      {"\"reasoning_effort\":\"loud\"", "reasoning_effort"},
      {"\"reasoning_effort\":\"high\",\"enable_thinking\":false", "reasoning_effort"},
      {"\"reasoning\":{\"effort\":\"none\",\"enabled\":true}", "reasoning"},
      {"\"thinking_budget\":-2", "thinking_budget"},
      {"\"custom_params\":{\"other\":1}", "custom_params"},
      {"\"separate_reasoning\":1", "separate_reasoning"},
  };
  struct fixture *f = start(TOK_GEMMA4);
  for (size_t i = 0; i < ARRAY_LEN(table); i++) {
    char body[2000], param[60];
    snprintf(body, sizeof body, "{%s," ASK("say:hi") "}", table[i].fields);
    json_t *v = ask(f, CHAT, body, 400);
    snprintf(param, sizeof param, "\"%s\"", table[i].param);
    value_check(body, v, "error.param", param);
    json_decref(v);
  }
  static const char *const raw[] = {"tools", "functions"};
  for (size_t i = 0; i < ARRAY_LEN(raw); i++) {
    char body[300];
    snprintf(body, sizeof body, "{\"prompt\":\"x\",\"%s\":[" TOOL("f") "]}", raw[i]);
    json_decref(ask(f, "/v1/completions", body, 400));
  }
  assert_int_equal(atomic_load(&model.submits), 0);
  stop(f);
}

/* A model that does not think says so, unless it is asked not to. */
static void not_thinking(void **state) {
  (void)state;
  static const char *const fields[] = {"\"enable_thinking\":true", "\"reasoning_effort\":\"low\"", "\"reasoning\":{\"enabled\":true}",
                                       "\"reasoning\":{\"max_tokens\":5}", "\"chat_template_kwargs\":{\"enable_thinking\":true}"};
  static const char *const off[] = {"\"enable_thinking\":false", "\"reasoning_effort\":\"none\"", "\"reasoning\":{\"effort\":\"none\"}",
                                    "\"chat_template_kwargs\":{\"enable_thinking\":false}"};
  struct fixture *f = start(TOK_GEMMA3);
  for (size_t i = 0; i < ARRAY_LEN(fields) + ARRAY_LEN(off); i++) {
    char body[300];
    bool bad = i < ARRAY_LEN(fields);
    snprintf(body, sizeof body, "{%s," ASK("say:hi") "}", bad ? fields[i] : off[i - ARRAY_LEN(fields)]);
    json_t *v = ask(f, CHAT, body, bad ? 400 : 200);
    if (bad) value_check(body, v, "error.code", "\"unsupported_parameter\"");
    json_decref(v);
  }
  json_decref(ask(f, "/v1/messages", "{\"max_tokens\":9,\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024}," ASK("x") "}", 400));
  json_decref(ask(f, "/v1/responses", "{\"input\":\"x\",\"reasoning\":{\"effort\":\"high\"}}", 400));
  stop(f);
}

/* ---- what is given to the renderer --------------------------------------------------------------------------------------- */

/* Case E7: the switch reaches the template, under all its names. */
static void switch_reaches_template(void **state) {
  (void)state;
  static const struct {
    const char *fields;
    bool on;
  } table[] = {{"", false},
               {"\"enable_thinking\":true,", true},
               {"\"enable_thinking\":false,", false},
               {"\"chat_template_kwargs\":{\"enable_thinking\":true},", true},
               {"\"chat_template_kwargs\":{\"thinking\":true},", true},
               {"\"chat_template_kwargs\":{\"enable_thinking\":false},", false},
               {"\"reasoning_effort\":\"minimal\",", true},
               {"\"reasoning_effort\":\"none\",", false}};
  struct fixture *f = start(TOK_GEMMA4);
  for (size_t i = 0; i < ARRAY_LEN(table); i++) {
    char body[300];
    snprintf(body, sizeof body, "{%s" ASK("say:hi") "}", table[i].fields);
    json_decref(ask(f, CHAT, body, 200));
    if (!strstr(seen_options, table[i].on ? "\"enable_thinking\":true" : "\"enable_thinking\":false"))
      fail_msg("%s: %s", body, seen_options);
    assert_null(strstr(seen_options, "preserve"));
    json_decref(ask(f, "/apply-template", body, 200));
    if (!strstr(seen_options, table[i].on ? "\"enable_thinking\":true" : "\"enable_thinking\":false"))
      fail_msg("template: %s", seen_options);
  }
  json_decref(ask(f, CHAT, "{\"chat_template_kwargs\":{\"preserve_thinking\":true}," ASK("x") "}", 200));
  assert_non_null(strstr(seen_options, "\"preserve_thinking\":true"));
  stop(f);
}

/* The tools are shown unless none may be called. */
static void tools_are_shown(void **state) {
  (void)state;
  struct fixture *f = start(TOK_GEMMA4);
  json_decref(ask(f, CHAT, "{" TOOLS "," ASK("x") "}", 200));
  assert_string_equal(seen_tools, "[" TOOL("f") "," TOOL("g") "]");
  json_decref(ask(f, CHAT, "{" TOOLS ",\"tool_choice\":\"none\"," ASK("x") "}", 200));
  assert_string_equal(seen_tools, "");
  json_decref(ask(f, "/v1/messages/count_tokens",
                  "{\"tools\":[{\"name\":\"f\",\"description\":\"d\",\"input_schema\":{\"type\":\"object\"}}]," ASK("x") "}", 200));
  assert_string_equal(seen_tools,
                      "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\",\"parameters\":{\"type\":\"object\"}}}]");
  stop(f);
}

/* Case E9, and the same conversation in the other dialects' words. */
static void history(void **state) {
  (void)state;
#define CALLED(content, id)                                                                                                                \
  "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\"" content ",\"tool_calls\":[{" id                           \
  "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"r\"}]}"
  static const struct {
    const char *path, *body;
    int status;
    const char *rendered; /* NULL: not looked at */
  } table[] = {
      {CHAT, CALLED(",\"content\":null", "\"id\":\"c1\","), 200, NULL},
      {CHAT, CALLED("", "\"id\":\"c1\","), 200, NULL},
      {CHAT, CALLED(",\"content\":\"\"", ""), 200, NULL},
      {CHAT, CALLED("", "\"id\":null,"), 200, NULL},
      {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\"}]}", 400, NULL},
      {CHAT,
       "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"ASSISTANT\",\"content\":\"a\",\"reasoning\":\"t\"},{\"role\":\"user\","
       "\"content\":\"p\"}]}",
       200,
       "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":\"t\"},{\"role\":\"user\",\"content\":"
       "\"p\"}]"},
      {CHAT,
       "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"function_call\":{\"name\":\"f\",\"arguments\":\"{}\"}},{\"role\":\"function\",\"name\":"
       "\"f\",\"content\":\"r\"}]}",
       200,
       "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},{\"role\":"
       "\"function\",\"name\":\"f\",\"content\":\"r\"}]"},
      {"/v1/messages",
       "{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"t\","
       "\"signature\":\"s\"},{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"tool_use\",\"id\":\"u1\",\"name\":\"f\",\"input\":{\"x\":1}}]},"
       "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"u1\",\"content\":[{\"type\":\"text\",\"text\":\"r\"}]},"
       "{\"type\":\"tool_result\",\"tool_use_id\":\"u2\",\"content\":\"no\",\"is_error\":true},{\"type\":\"text\",\"text\":\"and?\"}]}]}",
       200,
       "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"reasoning_content\":\"t\",\"content\":\"a\",\"tool_calls\":[{\"type\":\"function\","
       "\"function\":{\"name\":\"f\",\"arguments\":{\"x\":1}},\"id\":\"u1\"}]},{\"role\":\"tool\",\"content\":\"r\",\"tool_call_id\":\"u1\"},{\"role\":"
       "\"tool\",\"content\":\"Error: no\",\"tool_call_id\":\"u2\"},{\"role\":\"user\",\"content\":\"and?\"}]"},
      {"/v1/responses",
       "{\"input\":[{\"role\":\"user\",\"content\":\"q\"},{\"type\":\"reasoning\",\"id\":\"rs_1\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\","
       "\"text\":\"t\"}]},{\"type\":\"function_call\",\"call_id\":\"c1\",\"name\":\"f\",\"arguments\":\"{}\"},{\"type\":\"function_call\",\"call_id\":\"c2\","
       "\"name\":\"g\",\"arguments\":\"{}\"},{\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":\"r\"},"
       "{\"type\":\"function_call_output\",\"call_id\":\"c2\",\"output\":[{\"type\":\"input_text\",\"text\":\"s\"}]},{\"type\":\"message\",\"role\":"
       "\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"a\"}]},{\"role\":\"user\",\"content\":\"p\"}]}",
       200,
       "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"reasoning_content\":\"t\",\"tool_calls\":[{\"type\":\"function\",\"function\":{"
       "\"name\":\"f\",\"arguments\":\"{}\"},\"id\":\"c1\"},{\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"{}\"},\"id\":\"c2\"}]},"
       "{\"role\":\"tool\",\"content\":\"r\",\"tool_call_id\":\"c1\"},{\"role\":\"tool\",\"content\":\"s\",\"tool_call_id\":\"c2\"},{\"role\":\"assistant\","
       "\"content\":\"a\"},{\"role\":\"user\",\"content\":\"p\"}]"},
  };
  struct fixture *f = start(TOK_GEMMA4);
  for (size_t i = 0; i < ARRAY_LEN(table); i++) {
    json_decref(ask(f, table[i].path, table[i].body, table[i].status));
    if (table[i].rendered && strcmp(seen_messages, table[i].rendered)) fail_msg("%s: rendered %s", table[i].body, seen_messages);
  }
  stop(f);
}

/* ---- other dialects ------------------------------------------------------------------------------------------------------- */

#define ALL_OF_IT "say:" THOUGHT "See:" CALL_F CALL_G

static void anthropic_blocks(void **state) {
  (void)state;
  static const char body[] =
      "{\"max_tokens\":200,\"tools\":[{\"name\":\"f\",\"input_schema\":{\"type\":\"object\"}},{\"name\":\"g\",\"input_schema\":{"
      "\"type\":\"object\"}}],\"tool_choice\":{\"type\":\"auto\",\"disable_parallel_tool_use\":true},\"thinking\":{\"type\":"
      "\"enabled\",\"budget_tokens\":1024}," ASK(ALL_OF_IT) "}";
  struct fixture *f = start(TOK_GEMMA4);
  json_t *v = ask(f, "/v1/messages", body, 200);
  value_check("whole", v, "content.0", "{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\"\"}");
  value_check("whole", v, "content.1", "{\"type\":\"text\",\"text\":\"See:\"}");
  value_check("whole", v, "content.2.type", "\"tool_use\"");
  value_check("whole", v, "content.2.input", "{\"a\":1}");
  value_check("whole", v, "content.3.name", "\"g\"");
  value_check("whole", v, "stop_reason", "\"tool_use\"");
  if (!is_id(text_at(v, "content.2.id"), "toolu_")) fail_msg("%s", text_at(v, "content.2.id"));
  struct events s;
  events_ask(f, "/v1/messages", body, &s);
  events_order("blocks", &s,
               "message_start content_block_start ping content_block_delta content_block_stop content_block_start content_block_delta "
               "content_block_stop content_block_start content_block_delta content_block_stop content_block_start content_block_delta "
               "content_block_stop message_delta message_stop");
  struct buf parts[4];
  for (int i = 0; i < 4; i++) buf_init(&parts[i], 0);
  for (int i = 0; i < s.n; i++) {
    const json_t *delta = json_object_get(s.data[i], "delta");
    if (strcmp(s.names[i], "content_block_delta")) continue;
    int at = (int)json_integer_value(json_object_get(s.data[i], "index"));
    static const char *const fields[] = {"thinking", "text", "partial_json", "partial_json"};
    buf_puts(&parts[at], value_string("delta", delta, fields[at]));
  }
  assert_string_equal(buf_cstr(&parts[0]), "hm");
  assert_string_equal(buf_cstr(&parts[1]), "See:");
  assert_string_equal(buf_cstr(&parts[2]), "{\"a\":1}");
  assert_string_equal(buf_cstr(&parts[3]), "{\"b\":\"x\"}");
  for (int i = 0; i < 4; i++) buf_free(&parts[i]);
  events_free(&s);
  json_decref(v);
  v = ask(f, "/v1/messages",
          "{\"max_tokens\":2000,\"tools\":[{\"name\":\"f\",\"input_schema\":{}}],\"tool_choice\":{\"type\":\"tool\",\"name\":\"f\","
          "\"disable_parallel_tool_use\":true},\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024}," ASK("!form") "}",
          200);
  value_check(
      "form", v, "content.0.text",
      "\"3 {\\\"tools\\\":[{\\\"type\\\":\\\"function\\\",\\\"function\\\":{\\\"name\\\":\\\"f\\\",\\\"parameters\\\":{}}}],\\\"choice\\\":{"
      "\\\"name\\\":\\\"f\\\"},\\\"parallel\\\":false} thoughts=1 budget=1025 marks=1\"");
  json_decref(v);
  v = ask(
      f, "/v1/messages",
      "{\"max_tokens\":2000,\"output_config\":{\"effort\":\"low\",\"format\":{\"type\":\"json_schema\",\"schema\":{\"type\":\"object\"}}},"
      "\"thinking\":{\"type\":\"adaptive\"}," ASK("!form") "}",
      200);
  value_check("format", v, "content.0.text", "\"0 {\\\"type\\\":\\\"object\\\"} thoughts=1 budget=1025 marks=1\"");
  json_decref(v);
  stop(f);
}

static void responses_items(void **state) {
  (void)state;
  static const char body[] =
      "{\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{}},{\"type\":\"function\",\"name\":\"g\"}],\"include\":["
      "\"message.output_text.logprobs\"],\"reasoning\":{\"effort\":\"high\"},\"input\":\"" ALL_OF_IT "\"}";
  struct fixture *f = start(TOK_GEMMA4);
  json_t *v = ask(f, "/v1/responses", body, 200);
  value_check("whole", v, "status", "\"completed\"");
  value_check("whole", v, "output.0.type", "\"reasoning\"");
  value_check("whole", v, "output.0.content", "[{\"type\":\"reasoning_text\",\"text\":\"hm\"}]");
  value_check("whole", v, "output.1.content.0.text", "\"See:\"");
  value_check("whole", v, "output.2.type", "\"function_call\"");
  value_check("whole", v, "output.2.name", "\"f\"");
  value_check("whole", v, "output.2.arguments", "\"{\\\"a\\\":1}\"");
  value_check("whole", v, "output.3.status", "\"completed\"");
  value_check("whole", v, "reasoning", "{\"effort\":\"high\",\"summary\":null}");
  assert_int_equal(json_array_size(json_object_get(v, "tools")), 2);
  if (!is_id(text_at(v, "output.2.call_id"), "call_")) fail_msg("%s", text_at(v, "output.2.call_id"));
  struct events s;
  events_ask(f, "/v1/responses", body, &s);
  events_order("items", &s,
               "response.created response.in_progress response.output_item.added response.content_part.added response.reasoning_text.delta "
               "response.reasoning_text.done response.content_part.done response.output_item.done response.output_item.added "
               "response.content_part.added response.output_text.delta response.output_text.done response.content_part.done "
               "response.output_item.done response.output_item.added response.function_call_arguments.delta "
               "response.function_call_arguments.done response.output_item.done response.output_item.added "
               "response.function_call_arguments.delta response.function_call_arguments.done response.output_item.done response.completed");
  char *reasoning = events_join(&s, "response.reasoning_text.delta", "delta"),
       *text = events_join(&s, "response.output_text.delta", "delta");
  char *arguments = events_join(&s, "response.function_call_arguments.delta", "delta");
  assert_string_equal(reasoning, "hm");
  assert_string_equal(text, "See:");
  assert_string_equal(arguments, "{\"a\":1}{\"b\":\"x\"}");
  free(reasoning);
  free(text);
  free(arguments);
  /* the items that were done are those of the whole */
  const json_t *last = value_at(s.data[s.n - 1], "response.output");
  int n = 0;
  for (int i = 0; i < s.n; i++)
    if (!strcmp(s.names[i], "response.output_item.done")) {
      assert_int_equal(json_integer_value(json_object_get(s.data[i], "output_index")), n);
      if (!json_equal(json_object_get(s.data[i], "item"), json_array_get(last, (size_t)n))) fail_msg("item %d differs", n);
      n++;
    }
  assert_int_equal(n, 4);
  events_free(&s);
  json_decref(v);
  v = ask(
      f, "/v1/responses",
      "{\"input\":\"!form\",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n\",\"strict\":true,\"schema\":{\"type\":\"null\"}}}}",
      200);
  value_check("format", v, "output.0.content.0.text", "\"0 {\\\"type\\\":\\\"null\\\"} thoughts=0 budget=0 marks=1\"");
  value_check("format", v, "text.format.name", "\"n\"");
  json_decref(v);
  stop(f);
}

/* Case E8: a thought shows nowhere as the answer. Raw text is what the model wrote, by definition. */
static void thoughts_everywhere(void **state) {
  (void)state;
  struct fixture *f = start(TOK_GEMMA4);
  json_t *v = ask(f, CHAT, "{" ASK("say:" THOUGHT "42") "}", 200);
  value_check("chat", v, "choices.0.message.content", "\"42\"");
  json_decref(v);
  v = ask(f, "/v1/responses", "{\"input\":\"say:" THOUGHT "42\"}", 200);
  value_check("responses", v, "output.1.content.0.text", "\"42\"");
  json_decref(v);
  v = ask(f, "/v1/messages", "{\"max_tokens\":99," ASK("say:" THOUGHT "42") "}", 200);
  value_check("messages", v, "content.1.text", "\"42\"");
  json_decref(v);
  v = ask(f, "/v1/completions", "{\"max_tokens\":99,\"prompt\":\"say:" THOUGHT "42\"}", 200);
  value_check("completions", v, "choices.0.text", "\"thought\\nhm\\n42\"");
  json_decref(v);
  v = ask(f, "/generate", "{\"text\":\"say:" THOUGHT "42\"}", 200);
  value_check("generate", v, "text", "\"thought\\nhm\\n42\"");
  json_decref(v);
  stop(f);
}

static void counted(void **state) {
  (void)state;
  static const char *const wanted[] = {"cygnet:tool_calls_total{model_name=\"fake/model\",engine_type=\"unified\"} 2\n",
                                       "cygnet:grammar_answers_total{model_name=\"fake/model\",engine_type=\"unified\"} 1\n",
                                       "cygnet:reasoning_tokens_total{model_name=\"fake/model\",engine_type=\"unified\"} 13\n"};
  struct fixture *f = start(TOK_GEMMA4);
  struct answer a;
  json_decref(ask(f, CHAT, "{" TOOLS "," ASK(ALL_OF_IT) "}", 200));
  client_get(f->port, "/metrics", &a);
  for (size_t i = 0; i < ARRAY_LEN(wanted); i++)
    if (!strstr(buf_cstr(&a.body), wanted[i])) fail_msg("%s is not in %s", wanted[i], buf_cstr(&a.body));
  answer_free(&a);
  json_t *v = NULL;
  client_get(f->port, "/v1/models", &a);
  json_error_t je;
  v = json_loads(buf_cstr(&a.body), 0, &je);
  value_check("models", v, "data.0.supports_thinking", "true");
  json_decref(v);
  answer_free(&a);
  stop(f);
}

/* Who leaves in the middle, and what fails in the middle, leaves nothing behind. */
static void leaving(void **state) {
  (void)state;
  struct fixture *f = start(TOK_GEMMA4);
  for (int i = 0; i < 20; i++) {
    int fd = client_post(f->port, i % 2 ? CHAT : "/v1/responses",
                         i % 2 ? "{\"stream\":true," TOOLS "," ASK("!delay=2 say:" THOUGHT CALL_F "and more text than is read") "}"
                               : "{\"stream\":true,\"text\":{\"format\":{\"type\":\"json_object\"}},\"input\":\"!delay=2 say:" THOUGHT
                                 "abcdefghijkl\"}");
    usleep(1000u * (unsigned)(i * 3));
    close(fd);
  }
  json_t *v = ask(f, CHAT, "{" TOOLS "," ASK("!fail=3 say:" CALL_F) "}", 500);
  json_decref(v);
  assert_true(becomes(&model.running, 0));
  stop(f);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(answers),
    cmocka_unit_test(several_choices),
    cmocka_unit_test(ids),
    cmocka_unit_test(other_families),
    cmocka_unit_test(forms),
    cmocka_unit_test(loose_schemas),
    cmocka_unit_test(refused),
    cmocka_unit_test(not_thinking),
    cmocka_unit_test(switch_reaches_template),
    cmocka_unit_test(tools_are_shown),
    cmocka_unit_test(history),
    cmocka_unit_test(anthropic_blocks),
    cmocka_unit_test(responses_items),
    cmocka_unit_test(thoughts_everywhere),
    cmocka_unit_test(counted),
    cmocka_unit_test(leaving),
};
TEST_MAIN(tests)
