/* cmd_bench_serve.c — bench --serve: load on a server, by the definitions of load/stats.h. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "commands.h"
#include "load/plot.h"

enum { API_AUTO, API_OPENAI, API_CHAT, API_SGLANG }; /* choices of --api */
enum { REQUESTS = 100, INPUT_TOKENS = 512, OUTPUT_TOKENS = 128, GROUPS = 8, PER_GROUP = 8, SYSTEM_TOKENS = 2048, TURNS = 4 };
enum { REQUESTS_MAX = 10000000, FLUSH_TRIES = 10, FLUSH_PAUSE_MS = 200 };

static volatile sig_atomic_t interrupted;
static void on_interrupt(int sig) {
  (void)sig;
  interrupted = 1;
}
static bool stopped(void) { return interrupted; }

struct bench { /* a run of this command */
  const struct options *o;
  struct url u;
  char *model; /* owned */
  struct load_settings settings;
  struct workload_options options;
  struct load_limits limits;
  FILE *csv, *svg; /* opened before the work, so that a path with a mistake in it costs no measurement */
};

/* ---- options ------------------------------------------------------------------------------------------------------------------------- */

/* A sentence for the first option that was given and means nothing here. */
static int check_options(const struct options *o, struct err *e) {
  int kind = o->workload;
  const struct {
    bool given, applies;
    const char *name, *where;
  } rules[] = {
      {o->model != NULL, false, "model", "bench without --serve: a server has its own"},
      {o->bench_prompt != 512, false, "prompt", "bench -m; with --serve it is --input-len"},
      {o->bench_gen != 128, false, "gen", "bench -m; with --serve it is --output-len"},
      {strcmp(o->depths, "0") != 0, false, "depth", "bench -m"},
      {strcmp(o->batches, "1") != 0, false, "batch", "bench -m; with --serve it is --concurrency"},
      {o->repeat != 3, false, "repeat", "bench -m; with --serve it is --requests"},
      {o->concurrency && o->rate, false, "rate", "arrivals in their own time; --concurrency is a closed loop: give one of them"},
      {o->concurrency && o->max_concurrency, false, "max-concurrency",
       "arrivals by --rate; --concurrency is a limit already: give one of them"},
      {o->requests > 0, kind != WORKLOAD_PREFIX, "requests", "the other workloads; shared-prefix sends --groups times --prompts-per-group"},
      {o->input_len > 0, kind != WORKLOAD_FILE, "input-len", "the other workloads; a file has its own prompts"},
      {o->range_ratio >= 0, kind != WORKLOAD_FILE, "range-ratio", "the other workloads; a file has its own lengths"},
      {o->groups > 0, kind == WORKLOAD_PREFIX, "groups", "--workload shared-prefix"},
      {o->per_group > 0, kind == WORKLOAD_PREFIX, "prompts-per-group", "--workload shared-prefix"},
      {o->system_len > 0, kind == WORKLOAD_PREFIX, "system-len", "--workload shared-prefix"},
      {o->turns > 0, kind == WORKLOAD_TURNS, "turns", "--workload multi-turn"},
      {o->image_count > 0, kind == WORKLOAD_IMAGE, "image-count", "--workload image"},
      {o->image_size != NULL, kind == WORKLOAD_IMAGE, "image-size", "--workload image"},
      {o->image_format > 0, kind == WORKLOAD_IMAGE, "image-format", "--workload image"},
      {o->dataset != NULL, kind == WORKLOAD_FILE, "dataset", "--workload file"},
      {o->load_api == API_OPENAI || o->load_api == API_SGLANG, kind != WORKLOAD_IMAGE, "api",
       "texts; pictures go to --api openai-chat alone"},
  };
  for (size_t i = 0; i < ARRAY_LEN(rules); i++)
    if (command_given(rules[i].given, rules[i].name) && !rules[i].applies)
      return err_set(e, ERR_BAD_INPUT, "bench --serve: --%s is for %s", rules[i].name, rules[i].where);
  if (kind == WORKLOAD_FILE && !o->dataset) return err_set(e, ERR_BAD_INPUT, "bench --serve: --workload file needs --dataset FILE");
  return 0;
}

int bench_check_local(const struct options *o, struct err *e) {
  const struct {
    bool given;
    const char *name;
  } load[] = {{o->workload, "workload"},
              {o->dataset != NULL, "dataset"},
              {o->load_api, "api"},
              {o->rate != NULL, "rate"},
              {o->concurrency, "concurrency"},
              {o->max_concurrency, "max-concurrency"},
              {o->requests, "requests"},
              {o->warmup >= 0, "warmup"},
              {o->load_seed >= 0, "seed"},
              {o->input_len, "input-len"},
              {o->output_len, "output-len"},
              {o->range_ratio >= 0, "range-ratio"},
              {o->groups, "groups"},
              {o->per_group, "prompts-per-group"},
              {o->system_len, "system-len"},
              {o->turns, "turns"},
              {o->image_count, "image-count"},
              {o->image_size != NULL, "image-size"},
              {o->image_format, "image-format"},
              {!o->load_ignore_eos, "ignore-eos"},
              {o->flush_cache, "flush-cache"},
              {o->slo_ttft > 0, "slo-ttft-ms"},
              {o->slo_tpot > 0, "slo-tpot-ms"},
              {o->slo_e2e > 0, "slo-e2e-ms"},
              {o->csv != NULL, "csv"},
              {o->svg != NULL, "svg"},
              {o->served_name != NULL, "served-model-name"},
              {o->timeout_s != 600, "timeout"}};
  for (size_t i = 0; i < ARRAY_LEN(load); i++)
    if (command_given(load[i].given, load[i].name))
      return err_set(e, ERR_BAD_INPUT, "bench -m: --%s is for load on a server: give --serve URL instead of -m", load[i].name);
  return 0;
}

static int read_rate(const char *text, double *rate, struct err *e) {
  char shown[40];
  *rate = INFINITY;
  if (!text || !strcmp(text, "inf")) return 0;
  if (str_to_f64(str_c(text), rate) && *rate > 0) return 0;
  return err_set(e, ERR_BAD_INPUT, "--rate: expected requests per second above 0, or inf, found \"%s\"",
                 str_escape(str_c(text), shown, sizeof shown));
}

/* "1280x720" */
static int read_size(const char *text, int *width, int *height, struct err *e) {
  enum { SIDE_MAX = 8192 };
  char shown[40];
  struct str s = str_c(text ? text : "1280x720");
  const char *x = memchr(s.p, 'x', s.n);
  int64_t w, h;
  if (!x || !str_to_i64(str_of(s.p, (size_t)(x - s.p)), 1, SIDE_MAX, &w) ||
      !str_to_i64(str_of(x + 1, s.n - (size_t)(x + 1 - s.p)), 1, SIDE_MAX, &h))
    return err_set(e, ERR_BAD_INPUT, "--image-size: expected WIDTHxHEIGHT, each from 1 to %d, found \"%s\"", SIDE_MAX,
                   str_escape(s, shown, sizeof shown));
  *width = (int)w;
  *height = (int)h;
  return 0;
}

static int or_else(int64_t given, int otherwise) { return given > 0 ? (int)given : otherwise; }

static int workload_of(const struct options *o, struct workload_options *w, struct err *e) {
  *w = (struct workload_options){.kind = (enum workload_kind)o->workload,
                                 .seed = o->load_seed >= 0 ? (uint64_t)o->load_seed : 1,
                                 .requests = or_else(o->requests, o->workload == WORKLOAD_FILE ? 0 : REQUESTS),
                                 .input_tokens = or_else(o->input_len, INPUT_TOKENS),
                                 .output_tokens = or_else(o->output_len, o->workload == WORKLOAD_FILE ? 0 : OUTPUT_TOKENS),
                                 .range_ratio = o->range_ratio >= 0 ? o->range_ratio : 1,
                                 .groups = or_else(o->groups, GROUPS),
                                 .per_group = or_else(o->per_group, PER_GROUP),
                                 .system_tokens = or_else(o->system_len, SYSTEM_TOKENS),
                                 .turns = or_else(o->turns, TURNS),
                                 .pictures = or_else(o->image_count, 1),
                                 .jpeg = o->image_format == 0,
                                 .path = o->dataset};
  int64_t in_groups = (int64_t)w->groups * w->per_group;
  if (w->kind == WORKLOAD_PREFIX && in_groups > REQUESTS_MAX)
    return err_set(e, ERR_TOO_LARGE, "--groups times --prompts-per-group: expected at most %d requests, found %lld", REQUESTS_MAX,
                   (long long)in_groups);
  if (w->kind == WORKLOAD_PREFIX) w->requests = (int)in_groups;
  if (w->kind == WORKLOAD_TURNS && w->requests % w->turns)
    return err_set(e, ERR_BAD_INPUT, "--requests: expected a multiple of --turns %d, as each turn is a request, found %d", w->turns,
                   w->requests);
  return read_size(o->image_size, &w->width, &w->height, e);
}

static int settings_of(struct bench *b, struct err *e) {
  const struct options *o = b->o;
  bool chats = o->load_api == API_CHAT || (o->load_api == API_AUTO && (o->workload == WORKLOAD_TURNS || o->workload == WORKLOAD_IMAGE));
  b->limits = (struct load_limits){o->slo_ttft, o->slo_tpot, o->slo_e2e};
  b->settings = (struct load_settings){.u = &b->u,
                                       .api = chats                       ? LOAD_CHAT
                                              : o->load_api == API_SGLANG ? LOAD_SGLANG
                                                                          : LOAD_OPENAI,
                                       .ignore_eos = o->load_ignore_eos,
                                       .parallel = (int)MAX(o->concurrency, o->max_concurrency),
                                       .progress = !o->quiet && isatty(STDERR_FILENO),
                                       .stopped = stopped};
  if (read_rate(o->rate, &b->settings.rate, e) || workload_of(o, &b->options, e)) return -1;
  b->settings.seed = b->options.seed;
  return 0;
}

static FILE *open_output(const char *path, struct err *e) {
  FILE *f = fopen(path, "we");
  if (!f) err_set(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "%s: %s", path, strerror(errno));
  return f;
}

static int open_outputs(struct bench *b, struct err *e) {
  if (b->o->csv && !(b->csv = open_output(b->o->csv, e))) return -1;
  return b->o->svg && !(b->svg = open_output(b->o->svg, e)) ? -1 : 0;
}

/* ---- before the clock starts --------------------------------------------------------------------------------------------------------- */

/* Requests whose texts come from another seed, so that the server's prefix cache learns nothing of those that count; one after another. */
static int warm_up(const struct bench *b, struct err *e) {
  enum { MOST_TOKENS = 32 }; /* of an answer, and of a prompt where the others come from a file */
  struct workload_options wo = b->options;
  struct load_settings s = b->settings;
  struct workload w;
  struct load_run r;
  wo.requests = b->o->warmup >= 0 ? (int)b->o->warmup : 1;
  if (wo.requests == 0) return 0;
  if (wo.kind == WORKLOAD_FILE) wo.input_tokens = MOST_TOKENS;
  if (wo.kind != WORKLOAD_IMAGE) wo.kind = WORKLOAD_RANDOM;
  wo.seed ^= UINT64_C(1) << 63;
  wo.output_tokens = MIN(wo.output_tokens ? wo.output_tokens : MOST_TOKENS, MOST_TOKENS);
  s.rate = INFINITY;
  s.parallel = 1;
  s.progress = false;
  if (workload_make(&w, &wo, e)) return -1;
  int bad = load_run(&r, &s, &w, e);
  for (int i = 0; i < w.n && !bad; i++)
    if (r.results[i].state == LOAD_FAILED)
      bad = err_set(e, ERR_BUSY, "%s: the warm-up failed, nothing was measured: %s: %s", b->u.base, r.results[i].kind,
                    r.results[i].message);
  load_free(&r);
  workload_free(&w);
  return bad;
}

/* A server that is not idle yet refuses with 400: it is asked again. */
static int flush_cache(const struct bench *b, struct err *e) {
  for (int n = 1; !stopped(); n++) {
    struct transfer t;
    struct buf body;
    json_t *reply;
    long status = 0;
    int pause;
    buf_init(&body, 0);
    transfer_open(&t, &b->u, "/flush_cache", &body);
    CURLcode code = curl_easy_perform(t.curl);
    curl_easy_getinfo(t.curl, CURLINFO_RESPONSE_CODE, &status);
    bool fine = code == CURLE_OK && status == 200;
    if (!fine) transfer_result(&t, code, &reply, &pause, e);
    transfer_close(&t);
    if (fine) return 0;
    if (status != 400 || n == FLUSH_TRIES) return err_prefix(e, "--flush-cache: %s/flush_cache", b->u.base);
    nanosleep(&(struct timespec){.tv_nsec = FLUSH_PAUSE_MS * 1000000}, NULL);
  }
  return 0;
}

/* ---- after it ------------------------------------------------------------------------------------------------------------------------ */

static int write_output(FILE *f, const char *path, const struct buf *b, struct err *e) {
  if (b->overflow) return err_set(e, ERR_TOO_LARGE, "%s: more than 1 GiB", path);
  if (fwrite(buf_cstr(b), 1, b->len, f) != b->len || fflush(f)) return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
  return 0;
}

static int write_outputs(const struct bench *b, const struct load_report *report, struct err *e) {
  struct buf text;
  int bad = 0;
  buf_init(&text, 0);
  if (b->csv) {
    report_csv(report, &text);
    bad = write_output(b->csv, b->o->csv, &text, e);
  }
  buf_clear(&text);
  if (b->svg && !bad) {
    plot_svg(report, &text);
    bad = write_output(b->svg, b->o->svg, &text, e);
  }
  buf_free(&text);
  return bad;
}

static int report(const struct bench *b, const struct load_run *r) {
  struct load_summary s;
  struct err e = {0};
  struct load_report report = {r, &s, &b->options, &b->limits};
  load_summarise(&s, r, &b->limits);
  if (b->o->json) {
    json_t *o = report_json(&report);
    char *text = json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
    puts(text);
    free(text);
    json_decref(o);
  } else report_table(&report, stdout);
  int status = write_outputs(b, &report, &e) ? command_fail(&e) : s.failed || r->interrupted;
  load_summary_free(&s);
  return status;
}

static int run(struct bench *b) {
  struct err e = {0};
  struct workload w;
  struct load_run r;
  if (workload_make(&w, &b->options, &e)) return command_fail(&e);
  b->model = b->o->served_name ? xstrdup(b->o->served_name) : b->settings.api == LOAD_SGLANG ? NULL : url_model(&b->u, &e);
  b->settings.model = b->model;
  int status = 0;
  if (!b->model && b->settings.api != LOAD_SGLANG) status = command_fail(&e);
  else if (warm_up(b, &e) || (b->o->flush_cache && flush_cache(b, &e))) status = command_fail(&e);
  else if (load_run(&r, &b->settings, &w, &e)) status = command_fail(&e);
  else {
    status = report(b, &r);
    load_free(&r);
  }
  workload_free(&w);
  return status;
}

int bench_serve(const struct options *o) {
  struct bench b = {.o = o};
  struct err e = {0};
  int status;
  if (check_options(o, &e) || command_remote(o, "--serve", o->serve_url, &b.u, &e)) return command_fail(&e);
  b.u.stopped = stopped;
  b.u.retries = 0;
  if (settings_of(&b, &e) || open_outputs(&b, &e)) status = command_fail(&e);
  else {
    struct sigaction sa = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND}; /* a second one ends it at once */
    sigaction(SIGINT, &sa, NULL);
    status = run(&b);
  }
  if (b.csv) fclose(b.csv);
  if (b.svg) fclose(b.svg);
  url_free(&b.u);
  free(b.model);
  return status;
}
