/* t_workload.c — what is asked: lengths, groups, conversations, files; the same from the same seed. */
#include "test.h"

#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "load/dataset.h"
#include "load/workload.h"

static int count_words(const char *s) {
  int n = *s != 0;
  for (; *s; s++) n += *s == ' ';
  return n;
}

static struct workload made(const struct workload_options *o) {
  struct workload w;
  struct err e = {0};
  if (workload_make(&w, o, &e)) fail_msg("%s", e.msg);
  return w;
}

static void words(void **state) {
  (void)state;
  for (int n = 0; n < 50; n++) {
    char *a = workload_words(3, 5, n), *b = workload_words(3, 5, n), *c = workload_words(3, 6, n), *d = workload_words(4, 5, n);
    assert_int_equal(count_words(a), n);
    assert_string_equal(a, b);
    if (n > 5 && (!strcmp(a, c) || !strcmp(a, d))) fail_msg("%d words of another number or seed are the same", n);
    for (const char *p = a; *p; p++)
      if (!((*p >= 'a' && *p <= 'z') || *p == ' ')) fail_msg("\"%s\"", a);
    free(a), free(b), free(c), free(d);
  }
}

/* Every length between the ends comes about as often as any other. */
static void lengths(void **state) {
  (void)state;
  enum { N = 30000 };
  int seen[101] = {0};
  for (int i = 0; i < N; i++) seen[workload_length(9, (uint64_t)i, 1, 100, 0.5)]++;
  for (int n = 0; n <= 100; n++)
    if (n < 50 ? seen[n] != 0 : seen[n] < N / 51 / 2 || seen[n] > N / 51 * 2) fail_msg("length %d came %d times", n, seen[n]);
  for (int i = 0; i < 100; i++) {
    assert_int_equal(workload_length(9, (uint64_t)i, 1, 100, 1), 100);
    assert_int_equal(workload_length(9, (uint64_t)i, 1, 1, 0), 1);
    assert_in_range(workload_length(9, (uint64_t)i, 1, 3, 0), 1, 3);
  }
}

static void random_requests(void **state) {
  (void)state;
  struct workload_options o = {
      .kind = WORKLOAD_RANDOM, .seed = 1, .requests = 40, .input_tokens = 30, .output_tokens = 20, .range_ratio = 0.5};
  struct workload a = made(&o), b = made(&o);
  o.seed = 2;
  struct workload c = made(&o);
  int other_lengths = 0;
  assert_int_equal(a.n, 40);
  for (int i = 0; i < a.n; i++) {
    assert_int_equal(count_words(a.v[i].text), a.v[i].input_tokens);
    assert_in_range(a.v[i].input_tokens, 15, 30);
    assert_in_range(a.v[i].output_tokens, 10, 20);
    assert_int_equal(a.v[i].next, -1);
    assert_string_equal(a.v[i].text, b.v[i].text);
    assert_string_not_equal(a.v[i].text, c.v[i].text);
    other_lengths += a.v[i].input_tokens - 15 != a.v[i].output_tokens - 10;
    for (int k = 0; k < i; k++) assert_string_not_equal(a.v[i].text, a.v[k].text);
  }
  assert_true(other_lengths > 20); /* one length does not follow from the other */
  workload_free(&a), workload_free(&b), workload_free(&c);
}

static void prefixes(void **state) {
  (void)state;
  struct workload w = made(&(struct workload_options){.kind = WORKLOAD_PREFIX,
                                                      .requests = 12,
                                                      .groups = 3,
                                                      .per_group = 4,
                                                      .system_tokens = 50,
                                                      .input_tokens = 5,
                                                      .output_tokens = 1,
                                                      .range_ratio = 1});
  for (int i = 0; i < w.n; i++) {
    assert_int_equal(w.v[i].group, i % 3);
    assert_int_equal(w.v[i].input_tokens, 55);
    assert_int_equal(count_words(w.v[i].system), 50);
    assert_int_equal(count_words(w.v[i].text), 5);
    for (int k = 0; k < i; k++) {
      assert_int_equal(strcmp(w.v[i].system, w.v[k].system) == 0, w.v[i].group == w.v[k].group);
      assert_string_not_equal(w.v[i].text, w.v[k].text);
    }
  }
  workload_free(&w);
}

static void conversations(void **state) {
  (void)state;
  struct workload w = made(&(struct workload_options){
      .kind = WORKLOAD_TURNS, .requests = 12, .turns = 3, .input_tokens = 5, .output_tokens = 1, .range_ratio = 1});
  for (int i = 0; i < w.n; i++) {
    assert_int_equal(w.v[i].group, i / 3);
    assert_int_equal(w.v[i].turn, i % 3);
    assert_int_equal(w.v[i].next, i % 3 == 2 ? -1 : i + 1);
  }
  workload_free(&w);
}

/* ---- files --------------------------------------------------------------------------------------------------------------------------- */

static void file_of_lines(void **state) {
  (void)state;
  const char text[] =
      "\n{\"prompt\": \"one\", \"output_len\": 7}\r\n\n  {\"prompt\": \"t\\u00e9n\", \"more\": [1]}\n{\"prompt\": \"three\", \"output_len\": null}";
  struct workload_options o = {.kind = WORKLOAD_FILE, .path = test_write("rows.jsonl", text, sizeof text - 1)};
  struct workload w = made(&o);
  assert_int_equal(w.n, 3);
  assert_string_equal(w.v[0].text, "one");
  assert_int_equal(w.v[0].output_tokens, 7);
  assert_string_equal(w.v[1].text, "t\xc3\xa9n");
  assert_int_equal(w.v[1].output_tokens, 256); /* nobody said */
  workload_free(&w);
  o.requests = 7; /* from the beginning again */
  o.output_tokens = 5;
  w = made(&o);
  assert_int_equal(w.n, 7);
  assert_string_equal(w.v[6].text, "one");
  assert_int_equal(w.v[6].output_tokens, 5);
  workload_free(&w);
}

static void sharegpt(void **state) {
  (void)state;
  struct buf b;
  struct dataset d, same, other;
  buf_init(&b, 0);
  buf_puts(&b, "[");
  for (int i = 0; i < 40; i++)
    buf_printf(
        &b,
        "{\"id\": \"%d\", \"conversations\": [{\"from\": \"human\", \"value\": \"question number %d\"}, {\"from\": \"gpt\", \"value\": \"%.*s\"}]}, ",
        i, i, 4 * (i + 1),
        "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
        "012345678901234567890123456789012345678901234567890");
  buf_puts(
      &b,
      "{\"conversations\": []}, {\"conversations\": [{\"value\": \"alone\"}]}, {\"x\": 1}, 7, {\"conversations\": [{\"value\": \"hi\"}, {\"value\": "
      "\"an answer to next to nothing\"}]}]");
  const char *path = test_write("sharegpt.json", buf_cstr(&b), b.len);
  struct err e = {0};
  if (dataset_read(&d, path, 1, &e) || dataset_read(&same, path, 1, &e) || dataset_read(&other, path, 2, &e)) fail_msg("%s", e.msg);
  assert_int_equal(d.n, 39); /* an answer of one token is none */
  int in_order = 0, alike = 0, sum = 0;
  for (int i = 0; i < d.n; i++) {
    int number = atoi(d.v[i].prompt + strlen("question number "));
    assert_int_equal(d.v[i].output_tokens, number + 1);
    assert_string_equal(d.v[i].prompt, same.v[i].prompt);
    alike += !strcmp(d.v[i].prompt, other.v[i].prompt);
    in_order += number == i + 1;
    sum += number;
  }
  assert_int_equal(sum, 39 * 40 / 2); /* each of 1 .. 39 once */
  assert_true(in_order < 10 && alike < 10);
  dataset_free(&d), dataset_free(&same), dataset_free(&other);
  buf_free(&b);
}

static void bad_files(void **state) {
  (void)state;
  static const struct {
    const char *text, *says;
  } rows[] = {{"", "found no prompt"},
              {"   \n\n", "found no prompt"},
              {"prompt one", "found no prompt"},
              {"[]", "found no prompt"},
              {"[{\"conversations\": [{\"value\": \"alone\"}]}]", "found no prompt"},
              {"[{\"conversations\": ", "line 1"},
              {"{\"prompt\": \"a\"}\n{\"prompt\": 7}", "line 2.prompt: expected"},
              {"{\"prompt\": \"\"}", "line 1: expected {\"prompt\""},
              {"{\"question\": \"a\"}", "line 1: expected {\"prompt\""},
              {"{\"prompt\": \"a\", \"output_len\": 0}", "output_len: expected"},
              {"{\"prompt\": \"a\"} x", "line 1"},
              {"{\"prompt\": \"a\"}\n[1]", "line 2"}};
  for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
    struct dataset d;
    struct err e = {0};
    const char *path = test_write("bad.json", rows[i].text, strlen(rows[i].text));
    if (!dataset_read(&d, path, 1, &e)) fail_msg("row %zu was taken", i);
    if (!strstr(e.msg, rows[i].says) || !strstr(e.msg, "bad.json")) fail_msg("row %zu: %s", i, e.msg);
  }
  struct dataset d;
  struct err e = {0};
  assert_int_equal(dataset_read(&d, "/no/such/file", 1, &e), -1);
  assert_int_equal(e.code, ERR_NOT_FOUND);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(words),    cmocka_unit_test(lengths),       cmocka_unit_test(random_requests),
                                          cmocka_unit_test(prefixes), cmocka_unit_test(conversations), cmocka_unit_test(file_of_lines),
                                          cmocka_unit_test(sharegpt), cmocka_unit_test(bad_files)};
TEST_MAIN(tests)
