/* t_metrics — /metrics: the text is valid, histograms are what a slow twin counts, counters never go down, labels stay few. */
#include "test.h"

#include <math.h>

#include "fake.h"
#include "server/api.h"
#include "server/metrics.h"

/* ---- a strict reader of Prometheus' text format ------------------------------------------------------------------------- */

enum { SAMPLES_MAX = 4000 };

struct sample {
  char name[100], labels[400]; /* labels without braces, as written */
  const char *type;            /* of its family */
  double value;
};
struct page {
  struct sample samples[SAMPLES_MAX];
  int n;
};

static bool name_char(char c, bool first) {
  bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  return letter || c == '_' || c == ':' || (!first && c >= '0' && c <= '9');
}

static size_t name_length(const char *p) {
  size_t n = 0;
  while (name_char(p[n], n == 0)) n++;
  return n;
}

/* p after '{' → after '}'. */
static const char *read_labels(const char *p) {
  for (;;) {
    size_t n = name_length(p);
    if (!n || memchr(p, ':', n)) fail_msg("a label's name: %.40s", p);
    p += n;
    if (*p++ != '=' || *p++ != '"') fail_msg("a label's value: %.40s", p);
    for (; *p != '"'; p++) {
      if (*p == '\n' || !*p) fail_msg("a label's value does not end");
      if (*p == '\\' && *++p != '\\' && *p != '"' && *p != 'n') fail_msg("an unknown escape \\%c", *p);
    }
    p++;
    if (*p == '}') return p + 1;
    if (*p++ != ',') fail_msg("after a label: %.40s", p);
  }
}

static bool in_family(const char *name, const char *family, const char *type) {
  size_t n = strlen(family);
  if (strncmp(name, family, n)) return false;
  if (strcmp(type, "histogram")) return name[n] == 0;
  return !strcmp(name + n, "_bucket") || !strcmp(name + n, "_sum") || !strcmp(name + n, "_count");
}

static void read_page(const char *text, struct page *page) {
  static const char *const types[] = {"counter", "gauge", "histogram"};
  char family[100] = "", helped[100] = "", seen[20000] = "\n";
  const char *type = NULL, *p = text;
  page->n = 0;
  assert_true(utf8_valid(text, strlen(text)));
  while (*p) {
    const char *end = strchr(p, '\n');
    if (!end) fail_msg("the last line has no end: %s", p);
    if (!strncmp(p, "# HELP ", 7)) {
      size_t n = name_length(p + 7);
      assert_true(n > 0 && n < sizeof helped && p[7 + n] == ' ' && p + 8 + n < end);
      snprintf(helped, sizeof helped, "%.*s", (int)n, p + 7);
    } else if (!strncmp(p, "# TYPE ", 7)) {
      char once[110];
      size_t n = name_length(p + 7);
      snprintf(family, sizeof family, "%.*s", (int)n, p + 7);
      assert_string_equal(family, helped); /* HELP stands right before */
      snprintf(once, sizeof once, "\n%s\n", family);
      if (strstr(seen, once)) fail_msg("%s comes twice", family);
      snprintf(seen + strlen(seen), sizeof seen - strlen(seen), "%s\n", family);
      type = NULL;
      for (size_t i = 0; i < ARRAY_LEN(types); i++)
        if (str_is(str_of(p + 8 + n, (size_t)(end - p) - 8 - n), types[i])) type = types[i];
      if (!type) fail_msg("the type of %s", family);
    } else {
      struct sample *s = &page->samples[page->n++];
      assert_true(page->n < SAMPLES_MAX && type);
      size_t n = name_length(p);
      snprintf(s->name, sizeof s->name, "%.*s", (int)n, p);
      s->type = type;
      if (!in_family(s->name, family, type)) fail_msg("%s among those of %s", s->name, family);
      const char *at = p + n;
      if (*at == '{') {
        const char *after = read_labels(at + 1);
        snprintf(s->labels, sizeof s->labels, "%.*s", (int)(after - at) - 2, at + 1);
        at = after;
      }
      assert_true(*at == ' ');
      char *rest;
      s->value = strtod(at + 1, &rest);
      if (rest != end || !isfinite(s->value)) fail_msg("a value: %.*s", (int)(end - p), p);
      for (int i = 0; i < page->n - 1; i++)
        if (!strcmp(page->samples[i].name, s->name) && !strcmp(page->samples[i].labels, s->labels))
          fail_msg("%s{%s} comes twice", s->name, s->labels);
    }
    p = end + 1;
  }
}

/* The one sample of that name whose labels contain `label`; NaN: none. */
static double value_of(const struct page *page, const char *name, const char *label) {
  double found = NAN;
  for (int i = 0; i < page->n; i++) {
    if (strcmp(page->samples[i].name, name) || !strstr(page->samples[i].labels, label)) continue;
    if (!isnan(found)) fail_msg("two of %s with %s", name, label);
    found = page->samples[i].value;
  }
  return found;
}

/* Buckets rise to +Inf, which is the count. */
static void check_histograms(const struct page *page) {
  int n_histograms = 0;
  for (int i = 0; i < page->n; i++) {
    const struct sample *s = &page->samples[i];
    const char *le = strstr(s->labels, "le=\"");
    if (strcmp(s->type, "histogram") || !le) continue;
    const char *before = i && !strcmp(page->samples[i - 1].name, s->name) ? strstr(page->samples[i - 1].labels, "le=\"") : NULL;
    double bound = !strcmp(le, "le=\"+Inf\"") ? INFINITY : atof(le + 4);
    if (before) {
      assert_true(atof(before + 4) < bound);
      assert_true(page->samples[i - 1].value <= s->value);
    }
    if (bound == INFINITY) {
      char name[110];
      snprintf(name, sizeof name, "%.*s", (int)strlen(s->name) - 7, s->name);
      strcat(name, "_count");
      assert_true(value_of(page, name, "") == s->value);
      n_histograms++;
    }
  }
  assert_int_equal(n_histograms, 7);
}

static void put_page(const struct metrics *m, const struct metrics_now *now, struct page *page) {
  struct buf text;
  buf_init(&text, 0);
  metrics_put(m, now, &text);
  read_page(buf_cstr(&text), page);
  check_histograms(page);
  buf_free(&text);
}

/* ---- random traffic against a slow twin ------------------------------------------------------------------------------------ */

enum { OBSERVED_MAX = 100000 };
struct observed { /* all that was ever observed */
  double v[OBSERVED_MAX], sum;
  int n;
};
static struct observed first_token, between, prompts, uncached, answers;

static void note(struct observed *o, double v) {
  assert_true(o->n < OBSERVED_MAX);
  o->v[o->n++] = v;
}

static void same_histogram(const struct page *page, const char *name, const struct observed *o) {
  char full[120];
  double sum = 0;
  int n_buckets = 0;
  for (int i = 0; i < o->n; i++) sum += o->v[i];
  snprintf(full, sizeof full, "%s_bucket", name);
  for (int i = 0; i < page->n; i++) {
    const struct sample *s = &page->samples[i];
    if (strcmp(s->name, full)) continue;
    const char *le = strstr(s->labels, "le=\"") + 4;
    double bound = *le == '+' ? INFINITY : atof(le);
    int below = 0;
    for (int k = 0; k < o->n; k++) below += o->v[k] <= bound;
    if (s->value != below) fail_msg("%s up to %g: %g, expected %d of %d", name, bound, s->value, below, o->n);
    n_buckets++;
  }
  assert_true(n_buckets > 15);
  snprintf(full, sizeof full, "%s_count", name);
  assert_true(value_of(page, full, "") == o->n);
  snprintf(full, sizeof full, "%s_sum", name);
  assert_true(fabs(value_of(page, full, "") - sum) <= 1e-6 * (1 + sum));
}

static void never_less(const struct page *now, const struct page *before) {
  for (int i = 0; i < before->n; i++) {
    const struct sample *b = &before->samples[i];
    if (!strcmp(b->type, "gauge")) continue;
    int k = 0;
    while (k < now->n && (strcmp(now->samples[k].name, b->name) || strcmp(now->samples[k].labels, b->labels))) k++;
    if (k == now->n) fail_msg("%s{%s} is gone", b->name, b->labels);
    if (now->samples[k].value < b->value) fail_msg("%s went from %g to %g", b->name, b->value, now->samples[k].value);
  }
}

/* One call of random shape, all its messages, and what the twin makes of them. Times are whole binary fractions of seconds: sums are exact. */
static void random_call(struct metrics *m, uint64_t *seed, double *generated) {
  static const struct dialect *const dialects[] = {&dialect_chat, &dialect_completion, &dialect_generate, &dialect_tokenize};
  struct call *c = call_new(dialects[test_rand_int(seed, 0, 3)]);
  int n = test_rand_int(seed, 1, 3), n_prompts = test_rand_int(seed, 1, 3);
  bool begun = false;
  c->arrived_ns = clock_ns() - 1000000000000 + test_rand_int(seed, 0, 1000) * (1000000000ll / 64);
  c->job.n = n;
  c->job.n_prompts = n_prompts;
  c->job.prompts = xcalloc((size_t)n_prompts, sizeof *c->job.prompts);
  c->n_choices = n * n_prompts;
  c->choices = xcalloc((size_t)c->n_choices, sizeof *c->choices);
  for (int i = 0; i < c->n_choices; i++) c->choices[i] = (struct choice){.call = c, .index = i, .prompt = i / n};
  int64_t at = c->arrived_ns;
  for (int i = 0; i < c->n_choices; i++) {
    int made = 0, n_messages = test_rand_int(seed, 1, 6), n_prompt = test_rand_int(seed, 1, 3000),
        cached = test_rand_int(seed, 0, n_prompt);
    int64_t last = 0;
    if (i % n == 0) {
      note(&prompts, n_prompt);
      note(&uncached, n_prompt - cached);
    }
    for (int k = 0; k < n_messages; k++) {
      struct message *msg = message_new(c, MESSAGE_EVENT);
      int fresh = test_rand_int(seed, 0, 1) << test_rand_int(seed, 0, 3); /* a power of two: the share of the gap is exact */
      at += test_rand_int(seed, 0, 40) * (1000000000ll / 64);
      made += fresh;
      msg->choice = i;
      msg->at_ns = at;
      msg->prompt_tokens = n_prompt;
      msg->cached_tokens = cached;
      msg->completion_tokens = made;
      msg->finish = k + 1 == n_messages ? CYGNET_FINISH_STOP : CYGNET_FINISH_NONE;
      if (fresh && !last && !begun) note(&first_token, (double)(at - c->arrived_ns) / 1e9);
      for (int t = 0; fresh && last && t < fresh; t++) note(&between, (double)(at - last) / 1e9 / fresh);
      if (fresh) last = at, begun = true;
      if (msg->finish) note(&answers, made);
      *generated += fresh;
      metrics_message(m, c, msg);
      message_free(msg);
    }
    assert_int_equal(c->choices[i].completion_tokens, made);
    assert_int_equal(c->choices[i].cached_tokens, cached);
  }
  metrics_call_done(m, c, 200, test_rand_int(seed, 0, 9) == 0);
  call_free(c);
}

static void like_the_twin(void **state) {
  (void)state;
  static struct page now_page, before;
  struct cygnet_info info = {.pool_full_tokens = 1000, .pool_sliding_tokens = 100, .max_running = 4, .page_tokens = 16, .ctx_tokens = 500};
  struct metrics_now now = {.info = &info};
  struct metrics *m = metrics_new("org/model");
  uint64_t seed = 3;
  double generated = 0;
  put_page(m, &now, &before); /* also when nothing has happened */
  for (int round = 0; round < 25; round++) {
    for (int i = 0; i < 40; i++) random_call(m, &seed, &generated);
    now.stats.n_steps += (uint64_t)test_rand_int(&seed, 0, 9);
    now.stats.evicted_full_tokens += (uint64_t)test_rand_int(&seed, 0, 9);
    put_page(m, &now, &now_page);
    never_less(&now_page, &before);
    before = now_page;
  }
  same_histogram(&now_page, "sglang:time_to_first_token_seconds", &first_token);
  same_histogram(&now_page, "sglang:inter_token_latency_seconds", &between);
  same_histogram(&now_page, "sglang:prompt_tokens_histogram", &prompts);
  same_histogram(&now_page, "sglang:uncached_prompt_tokens_histogram", &uncached);
  same_histogram(&now_page, "sglang:generation_tokens_histogram", &answers);
  assert_true(value_of(&now_page, "sglang:generation_tokens_total", "") == generated);
  double n_prompt = 0, n_uncached = 0;
  for (int i = 0; i < prompts.n; i++) n_prompt += prompts.v[i];
  for (int i = 0; i < uncached.n; i++) n_uncached += uncached.v[i];
  assert_true(value_of(&now_page, "sglang:prompt_tokens_total", "") == n_prompt);
  assert_true(value_of(&now_page, "sglang:cached_tokens_total", "cache_source=\"device\"") == n_prompt - n_uncached);
  assert_true(value_of(&now_page, "sglang:num_requests_total", "") == 1000);
  double aborted = value_of(&now_page, "sglang:num_aborted_requests_total", "");
  assert_true(aborted > 50 && aborted < 200);
  assert_true(value_of(&now_page, "sglang:e2e_request_latency_seconds_count", "") == 1000 - aborted);
  metrics_delete(m);
}

static void gauges(void **state) { /* SGLang's names for what cygnet.h counts */
  (void)state;
  static struct page page;
  struct cygnet_info info = {
      .pool_full_tokens = 1000, .pool_sliding_tokens = 100, .max_running = 4, .page_tokens = 16, .ctx_tokens = 500, .load_ms = 1500};
  struct cygnet_stats stats = {.n_running = 3,
                               .n_waiting = 7,
                               .pool_full_used_tokens = 250,
                               .pool_full_cached_tokens = 600,
                               .pool_sliding_used_tokens = 60,
                               .pool_sliding_cached_tokens = 30,
                               .n_steps = 100,
                               .n_graph_steps = 80,
                               .n_retracted = 2,
                               .prompt_tokens = 4000,
                               .cached_tokens = 1000,
                               .lost_window_tokens = 11,
                               .lost_wanted_tokens = 12,
                               .evicted_full_tokens = 13,
                               .evicted_sliding_tokens = 14};
  struct metrics_now now = {.info = &info, .stats = stats, .n_calls = 12, .n_preparing = 2, .connections = 9, .uptime_s = 2.5};
  struct metrics *m = metrics_new("org/model");
  put_page(m, &now, &page);
  static const struct {
    const char *name, *label;
    double value;
  } wanted[] = {
      {"sglang:num_running_reqs", "model_name=\"org/model\",engine_type=\"unified\"", 3},
      {"sglang:num_queue_reqs", "", 7},
      {"sglang:token_usage", "", 0.6}, /* of the fuller pool */
      {"sglang:full_token_usage", "", 0.25},
      {"sglang:swa_token_usage", "", 0.6},
      {"sglang:kv_available_tokens", "", 150},
      {"sglang:kv_evictable_tokens", "", 600},
      {"sglang:kv_used_tokens", "", 250},
      {"sglang:swa_available_tokens", "", 10},
      {"sglang:swa_evictable_tokens", "", 30},
      {"sglang:swa_used_tokens", "", 60},
      {"sglang:num_used_tokens", "", 250},
      {"sglang:cache_hit_rate", "", 0.25},
      {"sglang:gen_throughput", "", 0},
      {"sglang:num_retracted_reqs", "", 2},
      {"sglang:num_retracted_requests_total", "", 2},
      {"sglang:utilization", "", 0.75},
      {"sglang:max_total_num_tokens", "", 1000},
      {"sglang:context_len", "", 500},
      {"sglang:page_size", "", 16},
      {"sglang:num_pages", "", 62},
      {"sglang:engine_load_weights_time", "", 1.5},
      {"sglang:cuda_graph_passes_total", "mode=\"decode_cuda_graph\"", 80},
      {"sglang:cuda_graph_passes_total", "mode=\"none\"", 20},
      {"sglang:evicted_tokens_total", "pool=\"full\"", 13},
      {"sglang:evicted_tokens_total", "pool=\"swa\"", 14},
      {"cygnet:lost_prefix_tokens_total", "reason=\"window\"", 11},
      {"cygnet:lost_prefix_tokens_total", "reason=\"logprobs\"", 12},
      {"cygnet:num_calls", "", 12},
      {"cygnet:num_preparing_reqs", "", 2},
      {"cygnet:http_connections", "", 9},
      {"cygnet:uptime_seconds", "", 2.5},
  };
  for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
    double found = value_of(&page, wanted[i].name, wanted[i].label);
    if (!(fabs(found - wanted[i].value) < 1e-9)) fail_msg("%s: %g, expected %g", wanted[i].name, found, wanted[i].value);
  }
  struct cygnet_info empty = {0}; /* no pools: no division by zero */
  struct metrics_now nothing = {.info = &empty};
  put_page(m, &nothing, &page);
  metrics_delete(m);
}

static void names_are_escaped(void **state) {
  (void)state;
  static struct page page;
  static const struct {
    const char *model, *label;
  } cases[] = {
      {"a\"b\\c\nd", "model_name=\"a\\\"b\\\\c\\nd\","},
      {"caf\xc3\xa9", "model_name=\"caf\xc3\xa9\","},
      {"bad\xff\xc3", "model_name=\"bad\xef\xbf\xbd\xef\xbf\xbd\","},
      {"", "model_name=\"\","},
      {"{x=\"1\"}", "model_name=\"{x=\\\"1\\\"}\","},
  };
  struct cygnet_info info = {0};
  struct metrics_now now = {.info = &info};
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    struct metrics *m = metrics_new(cases[i].model);
    put_page(m, &now, &page);
    assert_true(value_of(&page, "sglang:num_running_reqs", cases[i].label) == 0);
    metrics_delete(m);
  }
}

static void labels_stay_few(void **state) { /* whatever statuses come */
  (void)state;
  static struct page page;
  struct cygnet_info info = {0};
  struct metrics_now now = {.info = &info};
  struct metrics *m = metrics_new("m");
  struct call *c = call_new(&dialect_chat);
  for (int status = 100; status < 1000; status++) metrics_call_done(m, c, status, false);
  call_free(c);
  put_page(m, &now, &page);
  double sum = 0;
  int n = 0;
  for (int i = 0; i < page.n; i++) {
    if (strcmp(page.samples[i].name, "cygnet:calls_total")) continue;
    sum += page.samples[i].value;
    n++;
  }
  assert_true(sum == 900);
  assert_true(n < 20);
  assert_true(value_of(&page, "cygnet:calls_total", "status=\"499\"") == 1);
  assert_true(value_of(&page, "sglang:num_requests_total", "") == 0); /* nothing was to be generated */
  metrics_delete(m);
}

static void rates(void **state) {
  (void)state;
  struct metrics *m = metrics_new("m");
  struct call *c = call_new(&dialect_chat);
  c->job.n = 1;
  c->job.prompts = xcalloc(1, sizeof *c->job.prompts);
  c->job.n_prompts = c->n_choices = 1;
  c->choices = xcalloc(1, sizeof *c->choices);
  c->choices[0].call = c;
  assert_true(metrics_gen_throughput(m) == 0);
  assert_int_equal(metrics_retry_s(m, 50), 1); /* nothing is known */
  struct message *msg = message_new(c, MESSAGE_EVENT);
  msg->prompt_tokens = 5;
  int64_t now = clock_ns();
  for (int i = 100; i > 0; i--) { /* ten a second for the last ten seconds */
    msg->at_ns = now - i * 100000000ll;
    msg->completion_tokens++;
    if (i == 1) msg->finish = CYGNET_FINISH_STOP;
    metrics_message(m, c, msg);
  }
  double rate = metrics_gen_throughput(m);
  if (rate < 8 || rate > 11) fail_msg("%g tokens per second", rate);
  int retry = metrics_retry_s(m, 2); /* two answers of 100 tokens */
  if (retry < 18 || retry > 25) fail_msg("again after %d s", retry);
  assert_int_equal(metrics_retry_s(m, 0), 1);
  assert_int_equal(metrics_retry_s(m, 100000), 60);
  msg->at_ns = now - 3600000000000ll; /* a straggler does no harm */
  metrics_message(m, c, msg);
  message_free(msg);
  call_free(c);
  metrics_delete(m);
}

/* ---- through the server ---------------------------------------------------------------------------------------------------- */

static void read_server(int port, struct page *page) {
  struct answer a;
  char value[256];
  assert_int_equal(client_get(port, "/metrics", &a), 200);
  assert_string_equal(answer_header(&a, "Content-Type", value), "text/plain; version=0.0.4; charset=utf-8");
  read_page(buf_cstr(&a.body), page);
  check_histograms(page);
  answer_free(&a);
}

static bool metric_becomes(int port, const char *name, double wanted) {
  static struct page page;
  for (int i = 0; i < 500; i++) {
    read_server(port, &page);
    if (value_of(&page, name, "") == wanted) return true;
    usleep(4000);
  }
  return false;
}

static void of_a_server(void **state) {
  (void)state;
  static struct page page;
  struct serve_options o = {.model_name = "the \"model\""};
  struct fixture *f = fixture_start(&o, 4, 16);
  struct answer a;
  /* 11 prompt bytes and BOS, of which half are cached; 5 tokens */
  for (int i = 0; i < 3; i++) {
    assert_int_equal(
        client_ask(f->port, "/v1/completions", i % 2 ? "{\"prompt\":\"x say:abcde\",\"stream\":true}" : "{\"prompt\":\"x say:abcde\"}", &a),
        200);
    answer_free(&a);
  }
  assert_int_equal(client_ask(f->port, "/v1/completions", "{\"prompt\":\"x say:abcde\",\"n\":2}", &a), 200);
  answer_free(&a);
  assert_int_equal(client_ask(f->port, "/v1/completions", "{\"prompt\":3}", &a), 400);
  answer_free(&a);
  assert_int_equal(client_ask(f->port, "/v1/completions", "{\"prompt\":\"!fail=2 say:abcde\"}", &a), 500);
  answer_free(&a);
  int fd = client_post(f->port, "/v1/completions", "{\"prompt\":\"!hold=100000 !delay=2\"}");
  assert_true(becomes(&f->fake.running, 1));
  read_server(f->port, &page);
  assert_true(value_of(&page, "cygnet:num_calls", "") == 1);
  close(fd);
  assert_true(metric_becomes(f->port, "sglang:num_requests_total", 6));
  assert_true(metric_becomes(f->port, "cygnet:num_calls", 0));
  read_server(f->port, &page);
  assert_true(value_of(&page, "sglang:num_requests_total", "model_name=\"the \\\"model\\\"\"") == 6);
  assert_true(value_of(&page, "sglang:num_aborted_requests_total", "") == 1);
  assert_true(value_of(&page, "cygnet:calls_total", "status=\"200\"") == 4);
  assert_true(value_of(&page, "cygnet:calls_total", "api=\"completion\",status=\"400\"") == 1);
  assert_true(value_of(&page, "cygnet:calls_total", "status=\"500\"") == 1);
  assert_true(value_of(&page, "cygnet:calls_total", "status=\"499\"") == 1);
  assert_true(value_of(&page, "sglang:generation_tokens_total", "") == 5 * 5 + 2);
  assert_true(value_of(&page, "sglang:prompt_tokens_total", "") == 4 * 12 + 18);
  assert_true(value_of(&page, "sglang:cached_tokens_total", "") == 4 * 6 + 9);
  assert_true(value_of(&page, "sglang:time_to_first_token_seconds_count", "") == 5);
  assert_true(value_of(&page, "sglang:inter_token_latency_seconds_count", "") == 5 * 4 + 1);
  assert_true(value_of(&page, "sglang:e2e_request_latency_seconds_count", "") == 4);
  assert_true(value_of(&page, "sglang:generation_tokens_histogram_count", "") == 5); /* what failed has no length */
  assert_true(value_of(&page, "sglang:gen_throughput", "") > 0);
  fixture_stop(f);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(like_the_twin),   cmocka_unit_test(gauges), cmocka_unit_test(names_are_escaped),
    cmocka_unit_test(labels_stay_few), cmocka_unit_test(rates),  cmocka_unit_test(of_a_server),
};
TEST_MAIN(tests)
