/* metrics.c — counters, histograms, and how they are written. What they mean is in metrics.h.
 *
 * Histograms count each observation in one bucket; they are summed up when written. A counter here never goes down; those taken from the engine's
 * statistics never do either (cygnet.h: "since the start").
 */
#include "server/metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "server/api.h"

enum { BUCKETS_MAX = 40, WINDOW_S = 8, DIALECTS_MAX = 16 };

struct bounds { /* upper ends of the buckets, rising; the last bucket is +Inf */
  const double *v;
  int n;
};

static const double first_token_s[] = {0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400};
static const double between_tokens_s[] = {0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06,
                                          0.08,  0.1,   0.2,   0.4,   0.6,  0.8,   1,    2,     4,    6,     8};
static const double whole_s[] = {0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400, 600, 1200, 1800, 2400};
static const double queue_s[] = {0,   0.001, 0.005, 0.01, 0.05, 0.1,  0.2,  0.5,  1,    2,    3,    4,   5,   10,
                                 15,  20,    30,    40,   50,   60,   70,   80,   90,   100,  200,  300, 400, 500,
                                 600, 700,   800,   900,  1000, 1200, 1400, 1600, 1800, 2000, 2500, 3000};
static const double tokens[] = {100,   300,   500,   700,   1000,  1500,  2000,  3000,  4000,  5000,  6000,  7000,
                                8000,  9000,  10000, 12500, 15000, 17500, 20000, 22500, 25000, 27500, 30000, 35000,
                                40000, 60000, 80000, 1e5,   2e5,   3e5,   4e5,   6e5,   8e5,   1e6,   1.1e6};

enum histogram_id { FIRST_TOKEN, BETWEEN_TOKENS, WHOLE, QUEUE, PROMPT, UNCACHED_PROMPT, GENERATION, N_HISTOGRAMS };

static const struct histogram_kind {
  const char *name, *help;
  struct bounds bounds;
} kinds[N_HISTOGRAMS] = {
    [FIRST_TOKEN] = {"sglang:time_to_first_token_seconds",
                     "Arrival of a request to its first token.",
                     {first_token_s, ARRAY_LEN(first_token_s)}},
    [BETWEEN_TOKENS] = {"sglang:inter_token_latency_seconds",
                        "Time between two tokens of one answer.",
                        {between_tokens_s, ARRAY_LEN(between_tokens_s)}},
    [WHOLE] = {"sglang:e2e_request_latency_seconds", "Arrival of a request to its last token.", {whole_s, ARRAY_LEN(whole_s)}},
    [QUEUE] = {"sglang:queue_time_seconds", "Time that an answer waited for the engine.", {queue_s, ARRAY_LEN(queue_s)}},
    [PROMPT] = {"sglang:prompt_tokens_histogram", "Tokens in a prompt.", {tokens, ARRAY_LEN(tokens)}},
    [UNCACHED_PROMPT] = {"sglang:uncached_prompt_tokens_histogram",
                         "Tokens in a prompt that the prefix cache did not have.",
                         {tokens, ARRAY_LEN(tokens)}},
    [GENERATION] = {"sglang:generation_tokens_histogram", "Tokens in an answer.", {tokens, ARRAY_LEN(tokens)}},
};

struct histogram {
  uint64_t counts[BUCKETS_MAX + 1]; /* of each bucket alone; the last is +Inf */
  double sum;
  uint64_t n;
};

static const int statuses[] = {200, 400, 401, 403, 404, 408, 413, 429, 499, 500, 501, 503, 0}; /* 0: any other */

struct metrics {
  struct buf labels; /* of every sample, without braces */
  struct histogram histograms[N_HISTOGRAMS];
  uint64_t prompt_tokens, image_tokens, audio_tokens, generation_tokens, cached_tokens, reasoning_tokens, n_requests, n_aborted,
      n_tool_calls, n_forms;
  struct {
    const char *dialect; /* static */
    uint64_t by_status[ARRAY_LEN(statuses)];
  } calls[DIALECTS_MAX];
  int n_dialects;
  struct {
    int64_t second; /* of the monotonic clock */
    int tokens;
  } recent[WINDOW_S];
};

/* A label's value: backslash, quote and line feed are escaped, what is not UTF-8 is replaced. */
static void put_escaped(struct buf *out, const char *s) {
  for (size_t n = strlen(s), i = 0; i < n;) {
    uint32_t cp;
    char put[4];
    i += (size_t)utf8_step(s + i, n - i, &cp, NULL);
    if (cp == '\n') buf_puts(out, "\\n");
    else if (cp == '\\' || cp == '"') buf_printf(out, "\\%c", (char)cp);
    else buf_append(out, put, (size_t)utf8_put(cp, put));
  }
}

struct metrics *metrics_new(const char *model) {
  struct metrics *m = xcalloc(1, sizeof *m);
  buf_init(&m->labels, 0);
  buf_puts(&m->labels, "model_name=\"");
  put_escaped(&m->labels, model);
  buf_puts(&m->labels, "\",engine_type=\"unified\"");
  return m;
}

void metrics_delete(struct metrics *m) {
  if (!m) return;
  buf_free(&m->labels);
  free(m);
}

/* ---- counting --------------------------------------------------------------------------------------------------------- */

/* n observations of value each; sum: all of them together. */
static void observe_many(struct metrics *m, enum histogram_id id, double value, int n, double sum) {
  const struct bounds *b = &kinds[id].bounds;
  struct histogram *h = &m->histograms[id];
  int i = 0;
  while (i < b->n && value > b->v[i]) i++;
  h->counts[i] += (uint64_t)n;
  h->n += (uint64_t)n;
  h->sum += sum;
}
static void observe(struct metrics *m, enum histogram_id id, double value) { observe_many(m, id, value, 1, value); }

static double seconds(int64_t from_ns, int64_t to_ns) { return to_ns > from_ns ? (double)(to_ns - from_ns) / 1e9 : 0; }

static void count_recent(struct metrics *m, int64_t at_ns, int n) {
  int64_t second = at_ns / 1000000000;
  int i = (int)(second % WINDOW_S);
  if (m->recent[i].second != second) {
    if (m->recent[i].second > second) return; /* older than the window */
    m->recent[i].second = second;
    m->recent[i].tokens = 0;
  }
  m->recent[i].tokens += n;
}

static bool has_begun(const struct call *c) {
  for (int i = 0; i < c->n_choices; i++)
    if (c->choices[i].first_token_ns) return true;
  return false;
}

static void count_tokens(struct metrics *m, struct call *c, struct choice *o, const struct message *msg, int n) {
  m->generation_tokens += (uint64_t)n;
  count_recent(m, msg->at_ns, n);
  if (o->first_token_ns) {
    double gap = seconds(o->last_token_ns, msg->at_ns);
    observe_many(m, BETWEEN_TOKENS, gap / n, n, gap);
  } else {
    if (!has_begun(c)) observe(m, FIRST_TOKEN, seconds(c->arrived_ns, msg->at_ns));
    o->first_token_ns = msg->at_ns;
  }
  o->last_token_ns = msg->at_ns;
}

void metrics_message(struct metrics *m, struct call *c, const struct message *msg) {
  if (msg->kind != MESSAGE_EVENT) return;
  struct choice *o = &c->choices[msg->choice];
  bool first_of_prompt = c->job.n <= 1 || o->index % c->job.n == 0;
  int fresh = msg->completion_tokens - o->completion_tokens;
  if (o->prompt_tokens == 0 && msg->prompt_tokens > 0) { /* its first message */
    o->prompt_tokens = msg->prompt_tokens;
    observe(m, QUEUE, msg->queue_ms / 1e3);
    if (first_of_prompt) {
      m->prompt_tokens += (uint64_t)msg->prompt_tokens;
      m->cached_tokens += (uint64_t)MAX(msg->cached_tokens, 0);
      m->image_tokens += (uint64_t)c->job.prompts[o->prompt].image_tokens;
      m->audio_tokens += (uint64_t)c->job.prompts[o->prompt].audio_tokens;
      observe(m, PROMPT, msg->prompt_tokens);
      observe(m, UNCACHED_PROMPT, MAX(msg->prompt_tokens - msg->cached_tokens, 0));
    }
  }
  if (fresh > 0) count_tokens(m, c, o, msg, fresh);
  o->cached_tokens = msg->cached_tokens;
  o->completion_tokens = msg->completion_tokens;
  if (msg->finish) m->reasoning_tokens += (uint64_t)MAX(msg->reasoning_tokens, 0);
  if (msg->finish) observe(m, GENERATION, msg->completion_tokens);
}

static void count_call(struct metrics *m, const char *dialect, int status) {
  int i = 0;
  size_t k = 0;
  while (i < m->n_dialects && m->calls[i].dialect != dialect) i++;
  if (i == DIALECTS_MAX) return;
  if (i == m->n_dialects) m->calls[m->n_dialects++].dialect = dialect;
  while (statuses[k] && statuses[k] != status) k++;
  m->calls[i].by_status[k]++;
}

void metrics_call_done(struct metrics *m, const struct call *c, int status, bool aborted) {
  count_call(m, c->dialect->name, status);
  if (c->n_choices == 0) return; /* nothing was to be generated */
  m->n_requests++;
  m->n_aborted += aborted;
  for (int i = 0; i < c->n_choices; i++) {
    m->n_tool_calls += (uint64_t)c->choices[i].n_calls;
    m->n_forms += job_of_prompt(&c->job, c->choices[i].prompt)->grammar != NULL;
  }
  if (!aborted && status == 200) observe(m, WHOLE, seconds(c->arrived_ns, clock_ns()));
}

double metrics_gen_throughput(const struct metrics *m) {
  int64_t now_ns = clock_ns(), now = now_ns / 1000000000, oldest = now;
  int n = 0;
  for (int i = 0; i < WINDOW_S; i++) {
    if (m->recent[i].second <= now - WINDOW_S || m->recent[i].tokens == 0) continue;
    n += m->recent[i].tokens;
    oldest = MIN(oldest, m->recent[i].second);
  }
  return n / MAX(seconds(oldest * 1000000000, now_ns), 1.0);
}

int metrics_retry_s(const struct metrics *m, int n_waiting) {
  const struct histogram *h = &m->histograms[GENERATION];
  double rate = metrics_gen_throughput(m);
  if (h->n == 0 || rate <= 0 || n_waiting <= 0) return 1;
  double wait_s = n_waiting * (h->sum / (double)h->n) / rate;
  return wait_s >= 60 ? 60 : MAX((int)ceil(wait_s), 1);
}

static double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

double metrics_token_usage(const struct cygnet_info *info, const struct cygnet_stats *stats) {
  return MAX(share(stats->pool_full_used_tokens, info->pool_full_tokens),
             share(stats->pool_sliding_used_tokens, info->pool_sliding_tokens));
}

double metrics_hit_rate(const struct cygnet_stats *stats) { return share((double)stats->cached_tokens, (double)stats->prompt_tokens); }

/* ---- writing ---------------------------------------------------------------------------------------------------------- */

static void put_head(struct buf *out, const char *name, const char *type, const char *help) {
  buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void put_gauge(const struct metrics *m, struct buf *out, const char *name, double value, const char *help) {
  put_head(out, name, "gauge", help);
  buf_printf(out, "%s{%s} %.10g\n", name, buf_cstr(&m->labels), value);
}

/* A sample of a counter; label: a further one with its comma, or "". */
static void put_count(const struct metrics *m, struct buf *out, const char *name, const char *label, uint64_t value) {
  buf_printf(out, "%s{%s%s} %llu\n", name, buf_cstr(&m->labels), label, (unsigned long long)value);
}

static void put_counter(const struct metrics *m, struct buf *out, const char *name, const char *label, uint64_t value, const char *help) {
  put_head(out, name, "counter", help);
  put_count(m, out, name, label, value);
}

static void put_histogram(const struct metrics *m, struct buf *out, enum histogram_id id) {
  const struct histogram_kind *k = &kinds[id];
  const struct histogram *h = &m->histograms[id];
  const char *labels = buf_cstr(&m->labels);
  uint64_t below = 0;
  put_head(out, k->name, "histogram", k->help);
  for (int i = 0; i < k->bounds.n; i++) {
    below += h->counts[i];
    buf_printf(out, "%s_bucket{%s,le=\"%.10g\"} %llu\n", k->name, labels, k->bounds.v[i], (unsigned long long)below);
  }
  buf_printf(out, "%s_bucket{%s,le=\"+Inf\"} %llu\n", k->name, labels, (unsigned long long)h->n);
  buf_printf(out, "%s_sum{%s} %.10g\n", k->name, labels, h->sum);
  buf_printf(out, "%s_count{%s} %llu\n", k->name, labels, (unsigned long long)h->n);
}

static void put_requests(const struct metrics *m, const struct metrics_now *now, struct buf *out) {
  put_gauge(m, out, "sglang:num_running_reqs", now->stats.n_running, "Requests that the engine computes.");
  put_gauge(m, out, "sglang:num_queue_reqs", now->stats.n_waiting, "Requests that wait for the engine.");
  put_gauge(m, out, "sglang:num_retracted_reqs", (double)now->stats.n_retracted, "Requests put back into the queue since the start.");
  put_gauge(m, out, "sglang:gen_throughput", metrics_gen_throughput(m), "Tokens generated per second over the last seconds.");
  put_gauge(m, out, "cygnet:num_calls", now->n_calls, "Requests in the house, in whatever state.");
  put_gauge(m, out, "cygnet:num_preparing_reqs", now->n_preparing, "Requests being parsed, rendered and tokenised, or waiting for that.");
  put_counter(m, out, "sglang:num_requests_total", "", m->n_requests, "Requests that ended.");
  put_counter(m, out, "sglang:num_aborted_requests_total", "", m->n_aborted, "Requests that ended because somebody wanted it, or left.");
  put_counter(m, out, "sglang:num_retracted_requests_total", "", now->stats.n_retracted, "Times a request was put back into the queue.");
  put_counter(m, out, "cygnet:failed_requests_total", "", now->stats.n_failed, "Requests whose computation failed.");
  put_counter(m, out, "cygnet:failed_steps_total", "", now->stats.n_failed_steps, "Steps in which the device failed.");
  put_counter(m, out, "cygnet:tool_calls_total", "", m->n_tool_calls, "Calls of functions in answers.");
  put_counter(m, out, "cygnet:grammar_answers_total", "", m->n_forms, "Answers that had to have a form: a schema, a grammar, calls.");
  put_head(out, "cygnet:calls_total", "counter", "Calls that ended, by API and status of the answer.");
  for (int i = 0; i < m->n_dialects; i++) {
    for (size_t k = 0; k < ARRAY_LEN(statuses); k++) {
      char label[100], status[16] = "other";
      if (!m->calls[i].by_status[k]) continue;
      if (statuses[k]) snprintf(status, sizeof status, "%d", statuses[k]);
      snprintf(label, sizeof label, ",api=\"%s\",status=\"%s\"", m->calls[i].dialect, status);
      put_count(m, out, "cygnet:calls_total", label, m->calls[i].by_status[k]);
    }
  }
}

static void put_tokens(const struct metrics *m, const struct metrics_now *now, struct buf *out) {
  const struct cygnet_stats *s = &now->stats;
  put_counter(m, out, "sglang:prompt_tokens_total", "", m->prompt_tokens, "Prompt tokens of requests that have begun.");
  put_counter(m, out, "sglang:generation_tokens_total", "", m->generation_tokens, "Tokens generated.");
  put_counter(m, out, "cygnet:reasoning_tokens_total", "", m->reasoning_tokens, "Tokens generated inside thoughts.");
  put_counter(m, out, "cygnet:forced_tokens_total", "", s->forced_tokens, "Tokens that a grammar left no choice about.");
  put_counter(m, out, "cygnet:drafted_tokens_total", "", s->drafted_tokens, "Tokens guessed ahead and computed.");
  put_counter(m, out, "cygnet:accepted_tokens_total", "", s->accepted_tokens, "Of those, the ones that the model then said.");
  put_counter(m, out, "sglang:cached_tokens_total", ",cache_source=\"device\"", m->cached_tokens,
              "Prompt tokens that the prefix cache had.");
  put_counter(m, out, "cygnet:computed_tokens_total", "", s->computed_tokens,
              "Prompt tokens computed, those again after a retraction included.");
  put_head(out, "cygnet:lost_prefix_tokens_total", "counter", "Prompt tokens computed although their beginning was known, by reason.");
  put_count(m, out, "cygnet:lost_prefix_tokens_total", ",reason=\"window\"", s->lost_window_tokens);
  put_count(m, out, "cygnet:lost_prefix_tokens_total", ",reason=\"logprobs\"", s->lost_wanted_tokens);
  put_head(out, "sglang:evicted_tokens_total", "counter", "Tokens that the prefix cache gave up, by pool.");
  put_count(m, out, "sglang:evicted_tokens_total", ",pool=\"full\"", s->evicted_full_tokens);
  put_count(m, out, "sglang:evicted_tokens_total", ",pool=\"swa\"", s->evicted_sliding_tokens);
  put_gauge(m, out, "sglang:cache_hit_rate", metrics_hit_rate(s), "Cached tokens per prompt token since the start.");
}

static void put_pools(const struct metrics *m, const struct metrics_now *now, struct buf *out) {
  const struct cygnet_info *i = now->info;
  const struct cygnet_stats *s = &now->stats;
  int full_free = i->pool_full_tokens - s->pool_full_used_tokens - s->pool_full_cached_tokens;
  int swa_free = i->pool_sliding_tokens - s->pool_sliding_used_tokens - s->pool_sliding_cached_tokens;
  double usage = metrics_token_usage(i, s);
  put_gauge(m, out, "sglang:token_usage", usage, "Share of the fuller pool that requests hold.");
  put_gauge(m, out, "sglang:full_token_usage", share(s->pool_full_used_tokens, i->pool_full_tokens),
            "Share of the full pool that requests hold.");
  put_gauge(m, out, "sglang:swa_token_usage", share(s->pool_sliding_used_tokens, i->pool_sliding_tokens),
            "Share of the sliding pool that requests hold.");
  put_gauge(m, out, "sglang:num_used_tokens", s->pool_full_used_tokens, "Tokens of the full pool that requests hold.");
  put_gauge(m, out, "sglang:kv_used_tokens", s->pool_full_used_tokens, "Tokens of the full pool that requests hold.");
  put_gauge(m, out, "sglang:kv_evictable_tokens", s->pool_full_cached_tokens, "Tokens of the full pool that the prefix cache alone holds.");
  put_gauge(m, out, "sglang:kv_available_tokens", MAX(full_free, 0), "Free tokens of the full pool.");
  put_gauge(m, out, "sglang:swa_used_tokens", s->pool_sliding_used_tokens, "Tokens of the sliding pool that requests hold.");
  put_gauge(m, out, "sglang:swa_evictable_tokens", s->pool_sliding_cached_tokens,
            "Tokens of the sliding pool that the prefix cache alone holds.");
  put_gauge(m, out, "sglang:swa_available_tokens", MAX(swa_free, 0), "Free tokens of the sliding pool.");
  put_gauge(m, out, "cygnet:resume_points", s->n_resume_points, "Places in the prefix cache whose window is kept.");
  put_gauge(m, out, "cygnet:max_resume_points", i->resume_points, "Places whose window can be kept beside those of running requests.");
  put_gauge(m, out, "sglang:utilization", MAX(usage, share(s->n_running, i->max_running)),
            "Share of places or of tokens in use, the larger one.");
}

/* Only where the model takes any. */
static void put_media(const struct metrics *m, const struct metrics_now *now, struct buf *out) {
  const struct cygnet_stats *s = &now->stats;
  if (!now->info->vision && !now->info->audio) return;
  put_counter(m, out, "cygnet:image_tokens_total", "", m->image_tokens, "Prompt tokens that are rows of pictures.");
  put_counter(m, out, "cygnet:audio_tokens_total", "", m->audio_tokens, "Prompt tokens that are rows of sounds.");
  put_counter(m, out, "cygnet:media_total", "", s->n_media, "Pictures and sounds of requests that have begun.");
  put_counter(m, out, "cygnet:media_cached_total", "", s->n_media_cached, "Of those, the ones that were encoded before.");
  put_counter(m, out, "cygnet:media_encoded_total", "", s->n_encoded, "Pictures and sounds encoded.");
  put_counter(m, out, "cygnet:media_rows_encoded_total", "", s->media_rows_encoded, "Rows that the encoders made.");
  put_counter(m, out, "cygnet:media_fetched_total", "", now->media_fetched, "Addresses that pictures and sounds were fetched from.");
  put_gauge(m, out, "cygnet:media_encode_seconds", s->encode_ms / 1e3, "Seconds that encoding took since the start.");
  put_gauge(m, out, "cygnet:media_rows_used", s->media_rows_used, "Encoded rows that requests hold.");
  put_gauge(m, out, "cygnet:media_rows_cached", s->media_rows_cached, "Encoded rows that are kept for others.");
  put_gauge(m, out, "cygnet:media_rows_max", now->info->media_rows, "Encoded rows that have room.");
  put_gauge(m, out, "cygnet:media_held_bytes", (double)now->media_held_bytes, "Bytes of pictures and sounds of requests in the house.");
}

static void put_engine(const struct metrics *m, const struct metrics_now *now, struct buf *out) {
  const struct cygnet_info *i = now->info;
  const struct cygnet_stats *s = &now->stats;
  uint64_t eager = s->n_steps > s->n_graph_steps ? s->n_steps - s->n_graph_steps : 0;
  put_head(out, "sglang:cuda_graph_passes_total", "counter", "Steps, by whether they replayed a recorded list.");
  put_count(m, out, "sglang:cuda_graph_passes_total", ",mode=\"decode_cuda_graph\"", s->n_graph_steps);
  put_count(m, out, "sglang:cuda_graph_passes_total", ",mode=\"none\"", eager);
  put_counter(m, out, "cygnet:fork_joins_total", "", s->n_fork_joins, "Times the worker threads were started on something together.");
  put_gauge(m, out, "sglang:max_total_num_tokens", i->pool_full_tokens, "Tokens of the full pool.");
  put_gauge(m, out, "cygnet:swa_max_total_num_tokens", i->pool_sliding_tokens, "Tokens of the sliding pool.");
  put_gauge(m, out, "sglang:max_running_requests_under_SLO", i->max_running, "Requests computed at the same time at most.");
  put_gauge(m, out, "sglang:context_len", i->ctx_tokens, "Longest sequence in tokens.");
  put_gauge(m, out, "sglang:page_size", i->page_tokens, "Tokens in a page.");
  put_gauge(m, out, "sglang:num_pages", i->page_tokens ? i->pool_full_tokens / i->page_tokens : 0, "Pages of the full pool.");
  put_gauge(m, out, "sglang:engine_load_weights_time", i->load_ms / 1e3, "Seconds that loading took.");
  put_gauge(m, out, "cygnet:uptime_seconds", now->uptime_s, "Seconds since the server began to listen.");
  put_gauge(m, out, "cygnet:resident_memory_bytes", (double)mem_resident_bytes(), "Memory of the process that is in use.");
  put_gauge(m, out, "cygnet:http_connections", now->connections, "Open connections.");
  put_counter(m, out, "cygnet:http_requests_total", "", now->http_requests, "HTTP requests read.");
  put_counter(m, out, "cygnet:http_dropped_total", "", now->http_dropped, "Connections that the server gave up.");
}

void metrics_put(const struct metrics *m, const struct metrics_now *now, struct buf *out) {
  put_requests(m, now, out);
  put_tokens(m, now, out);
  put_pools(m, now, out);
  put_media(m, now, out);
  put_engine(m, now, out);
  for (int id = 0; id < N_HISTOGRAMS; id++) put_histogram(m, out, id);
}
