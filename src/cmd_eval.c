/* cmd_eval.c — judge a model: suites of questions with known answers, perplexity of a text, divergence from a reference. In this process, or
 * on a server. */
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "commands.h"
#include "eval/likelihood.h"
#include "eval/score.h"
#include "eval/url.h"

static volatile sig_atomic_t interrupted;
static void on_interrupt(int sig) {
  (void)sig;
  interrupted = 1;
}
static bool stopped(void) { return interrupted; }

struct judge { /* a run of this command */
  const struct options *o;
  const struct suite *suite;
  bool chats;
  struct cygnet *c; /* NULL: a server is asked */
  struct url u;
  char *model; /* name for logs and requests; owned */
};

/* ---- options ------------------------------------------------------------------------------------------------------------------------- */

/* A sentence for the first option that was given and means nothing here. */
static int check_options(const struct judge *j, struct err *e) {
  const struct options *o = j->o;
  bool asks = j->suite->asks, text = !strcmp(j->suite->name, "perplexity"), gsm8k = !strcmp(j->suite->name, "gsm8k");
  const struct {
    bool given, applies;
    const char *name, *where;
  } rules[] = {
      {o->min >= 0, asks, "min", "suites of questions; here it is --max"},
      {o->max >= 0, !asks, "max", "perplexity and kl; here it is --min"},
      {o->log != NULL, asks, "log", "suites of questions"},
      {o->parallel > 0, asks, "parallel", "suites of questions"},
      {o->samples > 0, asks, "samples", "suites of questions"},
      {o->n >= 0, asks, "n", "suites of questions"},
      {o->temp >= 0, asks, "temp", "suites of questions"},
      {o->top_k >= 0, asks, "top-k", "suites of questions"},
      {o->top_p >= 0, asks, "top-p", "suites of questions"},
      {o->min_p > 0, asks, "min-p", "suites of questions"},
      {o->seed >= 0, asks, "seed", "suites of questions"},
      {o->limit >= 0, asks || text, "limit", "suites of questions and perplexity"},
      {o->window > 0, text, "window", "perplexity"},
      {o->stride > 0, text, "stride", "perplexity"},
      {o->ids != NULL, text, "ids", "perplexity"},
      {o->shots >= 0, gsm8k, "shots", "gsm8k"},
      {o->eval_api > 0, gsm8k, "api", "gsm8k; the others are conversations"},
      {o->think, j->chats, "think", "conversations"},
      {o->media_tokens > 0, j->suite->pictures && !o->url, "media-tokens", "suites with pictures, with -m"},
  };
  for (size_t i = 0; i < ARRAY_LEN(rules); i++)
    if (rules[i].given && !rules[i].applies)
      return err_set(e, ERR_BAD_INPUT, "eval %s: --%s is for %s", j->suite->name, rules[i].name, rules[i].where);
  return 0;
}

static int check_usage(struct judge *j, struct err *e) {
  const struct options *o = j->o;
  char shown[60];
  if (!o->suite) return err_set(e, ERR_BAD_INPUT, "expected a suite: %s", suite_names());
  j->suite = suite_find(o->suite);
  if (!j->suite)
    return err_set(e, ERR_BAD_INPUT, "expected a suite (%s), found \"%s\"", suite_names(),
                   str_escape(str_c(o->suite), shown, sizeof shown));
  if (!o->model == !o->url) return err_set(e, ERR_BAD_INPUT, "expected -m MODEL or --url URL, found %s", o->model ? "both" : "neither");
  bool kl = !strcmp(j->suite->name, "kl");
  if (kl && o->url) return err_set(e, ERR_UNSUPPORTED, "eval kl needs all logits of each position, which no server gives: use -m MODEL");
  if (!o->data == !o->ids)
    return err_set(e, ERR_BAD_INPUT, "expected --data %s%s",
                   kl               ? "FILE.safetensors"
                   : j->suite->asks ? "FOLDER"
                                    : "FILE",
                   o->data ? " or --ids, found both" : ", found none");
  j->chats = j->suite->chats || o->eval_api == 2;
  return check_options(j, e) || (o->url && command_remote(o, "--url", o->url, &j->u, e)) ? -1 : 0;
}

/* ---- who answers ----------------------------------------------------------------------------------------------------------------------- */

/* The first of /v1/models, unless a name is given. */
static int open_url(struct judge *j, struct err *e) {
  const struct options *o = j->o;
  j->u.retries = (int)o->retries;
  j->u.stopped = stopped;
  j->model = o->served_name ? xstrdup(o->served_name) : url_model(&j->u, e);
  return j->model ? 0 : -1;
}

/* Returns 0 or the exit status, after printing why. parallel: requests at a time. */
static int open_answerer(struct judge *j, int parallel) {
  struct err e = {0};
  if (j->o->url) return open_url(j, &e) ? command_fail(&e) : 0;
  struct options own = *j->o;
  struct cygnet_info info;
  int status = 0;
  own.max_queued = MAX(parallel, 1);
  if (own.max_running == 0) own.max_running = MIN(parallel, 32);
  j->c = command_open(&own, &status);
  if (!j->c) return status;
  cygnet_info(j->c, &info);
  j->model = xstrdup(info.name);
  return 0;
}

static void print_json(json_t *o) {
  char *text = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(12));
  puts(text);
  free(text);
  json_decref(o);
}

/* --max, where it was given, and whether the value keeps to it. */
static void put_maximum(json_t *h, const struct options *o, double value) {
  if (o->max < 0) return;
  json_object_set_new(h, "max", json_real(o->max));
  json_object_set_new(h, "passed", json_boolean(value <= o->max));
}

/* What a log and a result say of the model. */
static json_t *describe(const struct judge *j) {
  json_t *h = json_pack("{s:s, s:s}", "eval", j->suite->name, "model", j->model);
  if (j->c) {
    struct cygnet_info info;
    cygnet_info(j->c, &info);
    json_object_set_new(h, "weight_bytes", json_integer((json_int_t)info.weight_bytes));
    json_object_set_new(h, "isa", json_string(info.isa));
    json_object_set_new(h, "kv_type", json_string(info.kv_type));
  }
  return h;
}

/* ---- questions ---------------------------------------------------------------------------------------------------------------------------- */

static void settings_of(const struct judge *j, const struct eval_questions *q, struct ask_settings *s) {
  const struct options *o = j->o;
  *s = (struct ask_settings){.max_tokens = o->n >= 0                      ? (int)o->n
                                           : j->chats && !j->suite->chats ? 2048
                                                                          : j->suite->max_tokens,
                             .stop = q->stop,
                             .n_stop = q->n_stop,
                             .think = o->think,
                             .media_tokens = (int)o->media_tokens};
  options_sampling(o, j->suite->sampled ? CMD_CHAT : CMD_COMPLETE, &s->sampling);
}

static json_t *header_of(const struct judge *j, const struct ask_settings *s, int shots, uint64_t seed) {
  json_t *h = describe(j);
  json_object_set_new(h, "api", json_string(j->chats ? "chat" : "completion"));
  if (shots) json_object_set_new(h, "shots", json_integer(shots));
  json_object_set_new(h, "max_tokens", json_integer(s->max_tokens));
  json_object_set_new(h, "temperature", json_real(s->sampling.temperature));
  if (s->sampling.temperature > 0) {
    json_object_set_new(h, "top_k", json_integer(s->sampling.top_k));
    json_object_set_new(h, "top_p", json_real(s->sampling.top_p));
    json_object_set_new(h, "min_p", json_real(s->sampling.min_p));
    json_object_set_new(h, "seed", json_integer((json_int_t)seed));
  }
  if (j->chats) json_object_set_new(h, "think", json_boolean(s->think));
  return h;
}

/* A run that is over, or was stopped → the exit status. */
static int report(const struct judge *j, const struct eval_run *r, const json_t *header) {
  struct score s;
  int all = r->questions->n * r->samples, over = r->n_done + r->n_failed;
  score_of(r, &s);
  if (over < all) {
    fprintf(stderr, "cygnet: stopped after %d of %d answers%s\n", over, all, j->o->log ? "; the same command goes on from there" : "");
    return 1;
  }
  if (s.failed == all) {
    fprintf(stderr, "cygnet: no question could be answered; the first: %s\n", r->first_error);
    return 1;
  }
  if (j->o->json) print_json(score_json(r, &s, header, j->o->min));
  else score_print(r, &s, j->o->min);
  return j->o->min >= 0 && s.share < j->o->min;
}

static int ask_all(struct judge *j, struct eval_run *r, const struct ask_settings *s, const json_t *header) {
  struct err e = {0};
  struct asker *a = j->c ? ask_local_open(j->c, s) : ask_url_open(&j->u, j->model, s);
  int bad = eval_run_begin(r, j->o->log, header, &e) || eval_run(r, a, &e);
  a->close(a);
  int status = bad ? command_fail(&e) : report(j, r, header);
  eval_run_end(r);
  return status;
}

static int ask(struct judge *j) {
  const struct options *o = j->o;
  const struct suite *suite = j->suite;
  struct err e = {0};
  struct eval_questions q;
  struct suite_options so = {.suite = suite,
                             .data = o->data,
                             .shots = o->shots >= 0 ? (int)o->shots : suite->shots,
                             .limit = o->limit >= 0 ? (int)o->limit : suite->limit,
                             .chats = j->chats};
  int samples = o->samples ? (int)o->samples : o->temp == 0 ? 1 : suite->samples;
  if (suite_load(&so, &q, &e)) return command_fail(&e);
  struct ask_settings s;
  settings_of(j, &q, &s);
  struct eval_run r = {.name = suite->name,
                       .questions = &q,
                       .samples = samples,
                       .parallel = o->parallel ? (int)o->parallel : suite->parallel,
                       .seed = o->seed >= 0 ? (uint64_t)o->seed : 0,
                       .progress = !o->quiet && isatty(STDERR_FILENO),
                       .stopped = stopped};
  int status = 0;
  if (samples > 1 && s.sampling.temperature == 0) {
    err_set(&e, ERR_BAD_INPUT, "--samples: %d answers to each question would be the same at temperature 0: add --temp 1", samples);
    status = command_fail(&e);
  } else status = open_answerer(j, MIN(r.parallel, q.n * samples));
  if (!status) {
    json_t *header = header_of(j, &s, so.shots, r.seed);
    status = ask_all(j, &r, &s, header);
    json_decref(header);
  }
  suite_free(&q);
  return status;
}

/* ---- perplexity ------------------------------------------------------------------------------------------------------------------------- */

static int report_perplexity(const struct judge *j, const struct perplexity *p, const struct perplexity_options *po, double seconds) {
  const struct options *o = j->o;
  double n = (double)p->tokens, nll = p->nll / n, deviation = sqrt(MAX(0, p->squares / n - nll * nll) / n), value = exp(nll);
  double low = exp(nll - 1.96 * deviation), high = exp(nll + 1.96 * deviation);
  if (o->json) {
    json_t *h = describe(j);
    json_object_set_new(h, "perplexity", json_real(value));
    json_object_set_new(h, "low", json_real(low));
    json_object_set_new(h, "high", json_real(high));
    json_object_set_new(h, "nll", json_real(nll));
    json_object_set_new(h, "tokens", json_integer(p->tokens));
    json_object_set_new(h, "windows", json_integer(p->windows));
    json_object_set_new(h, "window", json_integer(po->window));
    json_object_set_new(h, "stride", json_integer(po->stride));
    json_object_set_new(h, "seconds", json_real(seconds));
    put_maximum(h, o, value);
    print_json(h);
  } else {
    printf("perplexity: %.4f; 95 %% interval %.4f to %.4f; %.6f nats for each of %lld tokens\n", value, low, high, nll,
           (long long)p->tokens);
    printf("  %d windows of %d tokens, %d apart; %.1f s\n", p->windows, po->window, po->stride, seconds);
    if (o->max >= 0) printf("  maximum %g: %s\n", o->max, value <= o->max ? "kept" : "exceeded");
  }
  return o->max >= 0 && value > o->max;
}

/* The window: as asked, else 2048 or what the context holds. */
static int windows_of(const struct judge *j, struct perplexity_options *po, struct err *e) {
  struct cygnet_info info = {0};
  if (j->c) cygnet_info(j->c, &info);
  int most = j->c ? info.ctx_tokens : INT32_MAX;
  po->window = j->o->window ? (int)j->o->window : MIN(2048, most);
  po->stride = j->o->stride ? (int)j->o->stride : MAX(1, po->window / 2);
  if (po->window > most) return err_set(e, ERR_BAD_INPUT, "--window: expected at most the context's %d tokens, found %d", most, po->window);
  if (po->window < 2 || po->stride >= po->window)
    return err_set(e, ERR_BAD_INPUT, "--stride: expected less than --window %d, found %d", po->window, po->stride);
  return 0;
}

/* Ids of what is scored; 0, or -1 and *e. */
static int read_text(const struct judge *j, const struct scorer *s, int32_t **ids, size_t *n, int32_t *bos, struct err *e) {
  *bos = -1;
  if (j->o->ids) return command_ids(j->o->ids, ids, n, e);
  size_t n_text;
  char *text = perplexity_text(j->o->data, &n_text, e);
  if (!text) return -1;
  int bad = scorer_encode(s, text, n_text, ids, n, bos, e);
  free(text);
  return bad;
}

static int measure_perplexity(struct judge *j) {
  struct err e = {0};
  int status = open_answerer(j, 1);
  if (status) return status;
  struct scorer s = {.c = j->c, .u = &j->u};
  struct perplexity_options po = {.limit = (int)MAX(j->o->limit, 0), .progress = !j->o->quiet && isatty(STDERR_FILENO), .stopped = stopped};
  struct perplexity p;
  int32_t *ids = NULL;
  size_t n = 0;
  int64_t start = clock_ns();
  int bad = windows_of(j, &po, &e) || read_text(j, &s, &ids, &n, &po.bos, &e) || perplexity(&s, ids, n, &po, &p, &e);
  if (bad) status = command_fail(&e);
  else if (interrupted) {
    fprintf(stderr, "cygnet: stopped after %lld of %zu tokens\n", (long long)p.tokens, n);
    status = 1;
  } else status = report_perplexity(j, &p, &po, clock_ms_since(start) / 1000);
  free(ids);
  return status;
}

/* ---- divergence ---------------------------------------------------------------------------------------------------------------------------- */

static int report_kl(const struct judge *j, const struct kl *k, double seconds) {
  const struct options *o = j->o;
  double sum = 0, largest = 0;
  int positions = 0, same = 0;
  json_t *prompts = json_object();
  for (int i = 0; i < k->n; i++) {
    const struct kl_prompt *p = &k->prompts[i];
    double mean = p->sum / p->positions, best = (double)p->same_best / p->positions;
    sum += p->sum;
    largest = fmax(largest, p->largest);
    positions += p->positions;
    same += p->same_best;
    json_object_set_new(prompts, p->name,
                        json_pack("{s:f, s:f, s:f, s:i}", "kl", mean, "largest", p->largest, "top1", best, "positions", p->positions));
    if (!o->json && k->n > 1)
      printf("  %-24s KL %.6f, largest %.4f, same best token %.2f %%, %d positions\n", p->name, mean, p->largest, 100 * best, p->positions);
  }
  double mean = sum / positions, best = (double)same / positions;
  if (o->json) {
    json_t *h = describe(j);
    json_object_set_new(h, "kl", json_real(mean));
    json_object_set_new(h, "largest", json_real(largest));
    json_object_set_new(h, "top1", json_real(best));
    json_object_set_new(h, "positions", json_integer(positions));
    json_object_set(h, "prompts", prompts);
    json_object_set_new(h, "seconds", json_real(seconds));
    put_maximum(h, o, mean);
    print_json(h);
  } else {
    printf("kl: mean %.6f nats, largest %.4f; the same best token at %.2f %% of %d positions; %.1f s\n", mean, largest, 100 * best,
           positions, seconds);
    if (o->max >= 0) printf("  maximum %g: %s\n", o->max, mean <= o->max ? "kept" : "exceeded");
  }
  json_decref(prompts);
  return o->max >= 0 && !(mean <= o->max);
}

static int measure_kl(struct judge *j) {
  struct err e = {0};
  struct kl k;
  int64_t start = clock_ns();
  int status = open_answerer(j, 1);
  if (status) return status;
  if (kl_compare(j->c, j->o->data, stopped, &k, &e)) return command_fail(&e);
  if (interrupted) {
    fprintf(stderr, "cygnet: stopped\n");
    status = 1;
  } else status = report_kl(j, &k, clock_ms_since(start) / 1000);
  kl_free(&k);
  return status;
}

int cmd_eval(const struct options *o) {
  struct judge j = {.o = o};
  struct err e = {0};
  if (check_usage(&j, &e)) return command_fail(&e);
  struct sigaction sa = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND}; /* a second one ends it at once */
  sigaction(SIGINT, &sa, NULL);
  int status = j.suite->asks ? ask(&j) : !strcmp(j.suite->name, "perplexity") ? measure_perplexity(&j) : measure_kl(&j);
  url_free(&j.u);
  free(j.model);
  cygnet_close(j.c);
  return status;
}
