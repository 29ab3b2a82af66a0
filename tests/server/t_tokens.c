/* /tokenize, /detokenize, /apply-template; and bodies at random for all dialects that translate. */
#include "events.h"

#define TALK "\"messages\":[{\"role\":\"user\",\"content\":\"ab\"},{\"role\":\"assistant\",\"content\":\"c\"}]"

static void answers(void **state) {
  (void)state;
  static const struct {
    const char *path, *body, *answer;
  } table[] = {
      {"/tokenize", "{\"prompt\":\"ab\"}", "{\"tokens\":[256,97,98],\"count\":3,\"max_model_len\":4096}"},
      {"/v1/tokenize", "{\"prompt\":\"ab\",\"add_special_tokens\":false}", "{\"tokens\":[97,98],\"count\":2,\"max_model_len\":4096}"},
      {"/tokenize", "{\"prompt\":\"\"}", "{\"tokens\":[256],\"count\":1,\"max_model_len\":4096}"},
      {"/tokenize", "{\"prompt\":[\"a\",\"\",\"\\u00e9\"]}",
       "{\"tokens\":[[256,97],[256],[256,195,169]],\"count\":[2,1,3],\"max_model_len\":4096}"},
      {"/tokenize", "{\"prompt\":[]}", "{\"tokens\":[],\"count\":[],\"max_model_len\":4096}"},
      {"/tokenize", "{\"prompt\":\"a\",\"messages\":null,\"model\":\"m\"}", "{\"tokens\":[256,97],\"count\":2,\"max_model_len\":4096}"},
      /* <bos><user>ab\n<assistant>c\n */
      {"/tokenize", "{" TALK "}",
       "{\"tokens\":[256,60,117,115,101,114,62,97,98,10,60,97,115,115,105,115,116,97,110,116,62,99,10],\"count\":23,\"max_model_len\":4096}"},
      {"/tokenize", "{" TALK ",\"prompt\":null,\"add_special_tokens\":true,\"continue_final_message\":true}",
       "{\"tokens\":[256,60,117,115,101,114,62,97,98,10,60,97,115,115,105,115,116,97,110,116,62,99],\"count\":22,\"max_model_len\":4096}"},
      {"/tokenize", "{" TALK ",\"chat_template_kwargs\":{\"continue_final_message\":true}}",
       "{\"tokens\":[256,60,117,115,101,114,62,97,98,10,60,97,115,115,105,115,116,97,110,116,62,99],\"count\":22,\"max_model_len\":4096}"},
      {"/detokenize", "{\"tokens\":[256,97,98]}", "{\"text\":\"ab\"}"},
      {"/v1/detokenize", "{\"tokens\":[256,97,98],\"skip_special_tokens\":false}", "{\"text\":\"<bos>ab\"}"},
      {"/detokenize", "{\"tokens\":[]}", "{\"text\":\"\"}"},
      {"/detokenize", "{\"tokens\":[[97],[],[256,98,99]]}", "{\"text\":[\"a\",\"\",\"bc\"]}"},
      {"/detokenize", "{\"tokens\":[[]]}", "{\"text\":[\"\"]}"},
      {"/detokenize", "{\"tokens\":[[256],[257]],\"skip_special_tokens\":false}", "{\"text\":[\"<bos>\",\"<eos>\"]}"},
      {"/detokenize", "{\"tokens\":[195]}", "{\"text\":\"\\ufffd\"}"},
      {"/detokenize", "{\"tokens\":[195,169,10,34]}", "{\"text\":\"\\u00e9\\n\\\"\"}"},
      {"/apply-template", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\\\"\"}]}",
       "{\"prompt\":\"<bos><user>a\\\"\\n\",\"tokens\":[256,60,117,115,101,114,62,97,34,10]}"},
      {"/apply-template",
       "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}],\"tools\":[],"
       "\"chat_template_kwargs\":{\"continue_final_message\":true},\"temperature\":\"no matter\"}",
       "{\"prompt\":\"<bos><user>a\\n<assistant>b\",\"tokens\":[256,60,117,115,101,114,62,97,10,60,97,115,115,105,115,116,97,110,116,62,98]}"},
  };
  struct fixture *f = talk_start();
  for (size_t i = 0; i < ARRAY_LEN(table); i++) {
    json_t *v = ask(f, table[i].path, table[i].body, 200);
    value_check(table[i].body, v, "", table[i].answer);
    json_decref(v);
  }
  fixture_stop(f);
}

static void errors(void **state) {
  (void)state;
  static const struct {
    const char *path, *body, *param;
  } table[] = {
      {"/tokenize", "{}", "prompt"},
      {"/tokenize", "{\"prompt\":5}", "prompt"},
      {"/tokenize", "{\"prompt\":[\"a\",5]}", "prompt"},
      {"/tokenize", "{\"prompt\":\"a\",\"add_special_tokens\":1}", "add_special_tokens"},
      {"/tokenize", "{\"prompt\":\"a\",\"special\":\"x\"}", "special"},
      {"/tokenize", "{\"prompt\":\"a\"," TALK "}", "messages"},
      {"/tokenize", "{\"prompt\":\"\"," TALK "}", "messages"},
      {"/tokenize", "{\"messages\":[]}", "messages"},
      {"/tokenize", "{\"messages\":5}", "messages"},
      {"/tokenize", "{\"messages\":[{\"role\":\"user\"}]}", "messages"},
      {"/tokenize", "{" TALK ",\"chat_template_kwargs\":5}", "chat_template_kwargs"},
      {"/tokenize", "{" TALK ",\"continue_final_message\":5}", "continue_final_message"},
      {"/tokenize", "{" TALK ",\"add_generation_prompt\":\"x\"}", "add_generation_prompt"},
      {"/detokenize", "{}", "tokens"},
      {"/detokenize", "{\"tokens\":5}", "tokens"},
      {"/detokenize", "{\"tokens\":\"ab\"}", "tokens"},
      {"/detokenize", "{\"tokens\":[258]}", "tokens"},
      {"/detokenize", "{\"tokens\":[-1]}", "tokens"},
      {"/detokenize", "{\"tokens\":[1.5]}", "tokens"},
      {"/detokenize", "{\"tokens\":[1,[2]]}", "tokens"},
      {"/detokenize", "{\"tokens\":[[1],2]}", "tokens"},
      {"/detokenize", "{\"tokens\":[[1],[[2]]]}", "tokens"},
      {"/detokenize", "{\"tokens\":[[1],[258]]}", "tokens"},
      {"/detokenize", "{\"tokens\":[1],\"skip_special_tokens\":1}", "skip_special_tokens"},
      {"/apply-template", "{}", "messages"},
      {"/apply-template", "{\"messages\":[]}", "messages"},
      {"/apply-template", "{\"messages\":[{\"role\":\"user\",\"content\":\"!norender\"}]}", "messages"},
      {"/apply-template", "{" TALK ",\"chat_template\":\"{{ x }}\"}", "chat_template"},
  };
  struct fixture *f = talk_start();
  for (size_t i = 0; i < ARRAY_LEN(table); i++) {
    json_t *v = ask(f, table[i].path, table[i].body, 400);
    if (strcmp(value_string(table[i].body, v, "error.param"), table[i].param)) fail_msg("%s: %s", table[i].body, json_dumps(v, 0));
    json_decref(v);
  }
  fixture_stop(f);
}

/* Counting is how one finds out that a conversation is too long. */
static void too_long(void **state) {
  (void)state;
  struct fixture *f = talk_start();
  struct buf body;
  buf_init(&body, 0);
  buf_puts(&body, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
  for (int i = 0; i < 2 * FAKE_CTX; i++) buf_putc(&body, 'x');
  buf_puts(&body, "\"}]}");
  json_t *v = ask(f, "/tokenize", body.data, 200);
  value_check("long", v, "count", "8200");
  assert_int_equal(json_array_size(json_object_get(v, "tokens")), 8200);
  json_decref(v);
  v = ask(f, "/apply-template", body.data, 200);
  assert_int_equal(json_array_size(json_object_get(v, "tokens")), 8200);
  json_decref(v);
  buf_free(&body);
  fixture_stop(f);
}

/* ---- whatever comes, an answer comes ------------------------------------------------------------------------------------ */

static void put_random(struct buf *out, uint64_t *seed, int depth) {
  static const char *const leaves[] = {"null",        "true",        "false",        "0",        "-1",       "1.5",           "1e300",
                                       "99999999999", "\"\"",        "\"say:hi\"",   "\"user\"", "\"auto\"", "\"assistant\"", "\"system\"",
                                       "\"message\"", "\"\\u00e9\"", "\"disabled\"", "[]",       "{}",       "256",           "5",
                                       "\"text\""};
  static const char *const keys[] = {"role", "content", "type", "text", "id", "format", "effort", "user_id", "name", "verbosity"};
  static const char *const shapes[] = {"{\"role\":\"user\",\"content\":\"say:x\"}", "{\"type\":\"text\",\"text\":\"say:y\"}",
                                       "{\"type\":\"input_text\",\"text\":\"say:y\"}", "[{\"role\":\"user\",\"content\":\"say:z\"}]"};
  int kind = test_rand_int(seed, 0, 9);
  if (depth == 0 || kind < 5) {
    if (kind == 0) buf_puts(out, shapes[test_rand_int(seed, 0, (int)ARRAY_LEN(shapes) - 1)]);
    else buf_puts(out, leaves[test_rand_int(seed, 0, (int)ARRAY_LEN(leaves) - 1)]);
    return;
  }
  int n = test_rand_int(seed, 0, 3), first = test_rand_int(seed, 0, (int)ARRAY_LEN(keys) - 4);
  buf_putc(out, kind < 8 ? '[' : '{');
  for (int i = 0; i < n; i++) {
    if (i) buf_putc(out, ',');
    if (kind >= 8) buf_printf(out, "\"%s\":", keys[first + i]);
    put_random(out, seed, depth - 1);
  }
  buf_putc(out, kind < 8 ? ']' : '}');
}

static void random_bodies(void **state) {
  (void)state;
  static const char *const paths[] = {"/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
                                      "/tokenize",     "/detokenize",  "/apply-template"};
  static const char *const fields[] = {"input",
                                       "instructions",
                                       "messages",
                                       "system",
                                       "prompt",
                                       "tokens",
                                       "text",
                                       "tools",
                                       "tool_choice",
                                       "reasoning",
                                       "include",
                                       "metadata",
                                       "truncation",
                                       "thinking",
                                       "stream",
                                       "stream_options",
                                       "temperature",
                                       "max_output_tokens",
                                       "store",
                                       "user",
                                       "max_tokens",
                                       "stop_sequences",
                                       "model",
                                       "top_logprobs",
                                       "chat_template_kwargs"};
  struct fixture *f = talk_start();
  uint64_t seed = 7;
  int n_good = 0;
  for (int i = 0; i < 1500; i++) {
    const char *path = paths[i % (int)ARRAY_LEN(paths)];
    bool used[ARRAY_LEN(fields)] = {false};
    struct buf body;
    struct answer a;
    json_error_t je;
    buf_init(&body, 0);
    buf_puts(&body, "{\"nothing\":0");
    if (i % 2)
      buf_puts(&body, i % 4 == 1 ? ",\"input\":\"say:a\",\"max_tokens\":9" : ",\"messages\":[{\"role\":\"user\",\"content\":\"say:a\"}]");
    used[0] = used[20] = i % 4 == 1;
    used[2] = i % 4 == 3;
    for (int k = test_rand_int(&seed, 0, 4); k > 0; k--) {
      int field = test_rand_int(&seed, 0, (int)ARRAY_LEN(fields) - 1);
      if (used[field]) continue;
      used[field] = true;
      buf_printf(&body, ",\"%s\":", fields[field]);
      put_random(&body, &seed, 3);
    }
    buf_putc(&body, '}');
    client_ask(f->port, path, body.data, &a);
    if ((a.status != 200 && a.status != 400) || a.truncated || !utf8_valid(buf_cstr(&a.body), a.body.len))
      fail_msg("%s %s: %d %s", path, body.data, a.status, buf_cstr(&a.body));
    json_t *v = a.body.len && a.body.data[0] == '{' ? json_loads(a.body.data, JSON_REJECT_DUPLICATES, &je) : NULL;
    if (!v && strncmp(buf_cstr(&a.body), "event: ", 7)) fail_msg("%s %s: %s", path, body.data, buf_cstr(&a.body));
    if (a.status == 400 && !strlen(value_string(body.data, v, "error.message"))) fail_msg("%s", body.data);
    n_good += a.status == 200;
    json_decref(v);
    answer_free(&a);
    buf_free(&body);
  }
  assert_true(n_good > 150 && n_good < 1350);
  fixture_stop(f);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(answers), cmocka_unit_test(errors), cmocka_unit_test(too_long),
                                          cmocka_unit_test(random_bodies)};
TEST_MAIN(tests)
