/* report.c — the same figures in three forms. */
#include "load/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const kinds[] = {"random", "shared-prefix", "multi-turn", "image", "file"};
static const char *const apis[] = {"openai", "openai-chat", "sglang"};

/* ---- what was sent ------------------------------------------------------------------------------------------------------------------- */

static void describe_lengths(const struct workload_options *o, struct buf *b) {
  const char *at_most = o->range_ratio < 1 ? "up to " : "";
  switch (o->kind) {
  case WORKLOAD_RANDOM: buf_printf(b, " of %s%d + %d tokens", at_most, o->input_tokens, o->output_tokens); break;
  case WORKLOAD_PREFIX:
    buf_printf(b, " in %d groups, of %d + %s%d + %d tokens", o->groups, o->system_tokens, at_most, o->input_tokens, o->output_tokens);
    break;
  case WORKLOAD_TURNS: buf_printf(b, ", %d turns each, of %s%d + %d tokens", o->turns, at_most, o->input_tokens, o->output_tokens); break;
  case WORKLOAD_IMAGE:
    buf_printf(b, " with %d %s of %dx%d, %s%d + %d tokens", o->pictures, o->pictures == 1 ? "picture" : "pictures", o->width, o->height,
               at_most, o->input_tokens, o->output_tokens);
    break;
  case WORKLOAD_FILE: break;
  }
}

void report_describe(const struct load_report *r, struct buf *b) {
  const struct load_settings *s = r->run->settings;
  buf_printf(b, "%s, %d requests", kinds[r->options->kind], r->run->work->n);
  describe_lengths(r->options, b);
  if (!isinf(s->rate)) buf_printf(b, ", %g per second", s->rate);
  if (s->parallel) buf_printf(b, ", %d at a time", s->parallel);
  else if (isinf(s->rate)) buf_puts(b, ", all at once");
}

/* ---- table --------------------------------------------------------------------------------------------------------------------------- */

static void row(FILE *to, const char *name, const struct stat *s) {
  if (!s->n) fprintf(to, "  %-10s %9s\n", name, "-");
  else fprintf(to, "  %-10s %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f\n", name, s->mean, s->median, s->std, s->p90, s->p95, s->p99, s->max);
}

static void print_goodput(const struct load_report *r, FILE *to) {
  const struct load_limits *l = r->limits;
  const struct {
    double ms;
    const char *name;
  } limits[] = {{l->ttft_ms, "TTFT"}, {l->tpot_ms, "TPOT"}, {l->e2e_ms, "E2E"}};
  const char *before = "with ";
  fprintf(to, "  goodput      %.2f requests/s: %d of %d answers ", r->summary->goodput_s, r->summary->good, r->summary->done);
  for (size_t i = 0; i < ARRAY_LEN(limits); i++)
    if (limits[i].ms > 0) {
      fprintf(to, "%s%s up to %g ms", before, limits[i].name, limits[i].ms);
      before = ", ";
    }
  fputc('\n', to);
}

static void print_failures(const struct load_summary *s, FILE *to) {
  if (s->failed) fprintf(to, "  failed       %d of %d\n", s->failed, s->total);
  for (int i = 0; i < s->n_kinds; i++) fprintf(to, "    %6d  %s; the first: %s\n", s->kinds[i].n, s->kinds[i].kind, s->kinds[i].message);
  if (s->unsent) fprintf(to, "  stopped      %d of %d requests were not sent, or had no whole answer yet\n", s->unsent, s->total);
  if (s->without_usage)
    fprintf(to, "  estimated    %d answers came without usage: each piece of text counts as a token, their prompts as none\n",
            s->without_usage);
  if (s->shorter) fprintf(to, "  shorter      %d answers have fewer tokens than were asked for\n", s->shorter);
}

void report_table(const struct load_report *r, FILE *to) {
  const struct load_summary *s = r->summary;
  const struct load_settings *settings = r->run->settings;
  struct buf b;
  buf_init(&b, 0);
  report_describe(r, &b);
  fprintf(to, "%s, %s API%s%s\n  %s\n", settings->u->base, apis[settings->api], settings->model ? ", " : "",
          settings->model ? settings->model : "", buf_cstr(&b));
  buf_free(&b);
  fprintf(to, "  answers      %d of %d in %.2f s\n", s->done, s->total, s->duration_s);
  fprintf(to, "  rates        %.2f requests/s; %.1f input + %.1f output = %.1f tokens/s\n", s->requests_s, s->input_s, s->output_s,
          s->all_s);
  fprintf(to, "  peak         %.0f output tokens in one second, %d requests at a time; %.2f on average\n", s->peak_output_s,
          s->peak_requests, s->concurrency);
  fprintf(to, "  tokens       %" PRId64 " input, %" PRId64 " of them cached; %" PRId64 " output\n", s->prompt_tokens, s->cached_tokens,
          s->completion_tokens);
  if (s->has_limits) print_goodput(r, to);
  fprintf(to, "\n  %-10s %9s %9s %9s %9s %9s %9s %9s\n", "ms", "mean", "median", "std", "p90", "p95", "p99", "max");
  row(to, "TTFT", &s->ttft);
  row(to, "TPOT", &s->tpot);
  row(to, "ITL", &s->itl);
  row(to, "E2E", &s->e2e);
  if (!isinf(settings->rate)) row(to, "held", &s->held);
  if (s->failed || s->unsent || s->without_usage || s->shorter) fputc('\n', to);
  print_failures(s, to);
}

/* ---- JSON ---------------------------------------------------------------------------------------------------------------------------- */

static json_t *json_of_stat(const struct stat *s) {
  if (!s->n) return json_null();
  return json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "n", s->n, "mean", s->mean, "median", s->median, "std", s->std, "p90",
                   s->p90, "p95", s->p95, "p99", s->p99, "max", s->max);
}

static json_t *json_of_options(const struct load_report *r) {
  const struct workload_options *o = r->options;
  const struct load_settings *s = r->run->settings;
  json_t *v = json_pack("{s:s, s:i, s:I, s:i, s:f, s:b, s:i}", "workload", kinds[o->kind], "requests", r->run->work->n, "seed",
                        (json_int_t)s->seed, "output_tokens", o->output_tokens, "range_ratio", o->range_ratio, "ignore_eos", s->ignore_eos,
                        "parallel", s->parallel);
  json_object_set_new(v, "rate", isinf(s->rate) ? json_null() : json_real(s->rate)); /* null: all at once */
  if (o->kind == WORKLOAD_FILE) json_object_set_new(v, "file", json_string(o->path));
  else json_object_set_new(v, "input_tokens", json_integer(o->input_tokens));
  if (o->kind == WORKLOAD_PREFIX) {
    json_object_set_new(v, "groups", json_integer(o->groups));
    json_object_set_new(v, "system_tokens", json_integer(o->system_tokens));
  }
  if (o->kind == WORKLOAD_TURNS) json_object_set_new(v, "turns", json_integer(o->turns));
  if (o->kind == WORKLOAD_IMAGE) {
    json_object_set_new(v, "pictures", json_integer(o->pictures));
    json_object_set_new(v, "size", json_sprintf("%dx%d", o->width, o->height));
    json_object_set_new(v, "format", json_string(o->jpeg ? "jpeg" : "png"));
  }
  return v;
}

json_t *report_json(const struct load_report *r) {
  const struct load_summary *s = r->summary;
  const struct load_settings *settings = r->run->settings;
  json_t *errors = json_object();
  for (int i = 0; i < s->n_kinds; i++)
    json_object_set_new(errors, s->kinds[i].kind, json_pack("{s:i, s:s}", "count", s->kinds[i].n, "first", s->kinds[i].message));
  json_t *o = json_pack("{s:s, s:s*, s:s, s:o, s:b}", "server", settings->u->base, "model", settings->model, "api", apis[settings->api],
                        "options", json_of_options(r), "interrupted", r->run->interrupted);
  json_object_update_new(o, json_pack("{s:i, s:i, s:i, s:o, s:i, s:i, s:f}", "completed", s->done, "failed", s->failed, "unsent", s->unsent,
                                      "errors", errors, "without_usage", s->without_usage, "shorter", s->shorter, "duration_s",
                                      s->duration_s));
  json_object_update_new(o, json_pack("{s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:i}", "prompt_tokens", (json_int_t)s->prompt_tokens,
                                      "cached_tokens", (json_int_t)s->cached_tokens, "completion_tokens", (json_int_t)s->completion_tokens,
                                      "requests_per_s", s->requests_s, "input_tokens_per_s", s->input_s, "output_tokens_per_s", s->output_s,
                                      "total_tokens_per_s", s->all_s, "concurrency", s->concurrency, "peak_output_tokens_per_s",
                                      s->peak_output_s, "peak_requests", s->peak_requests));
  if (s->has_limits)
    json_object_set_new(o, "goodput",
                        json_pack("{s:f, s:i, s:f, s:f, s:f}", "requests_per_s", s->goodput_s, "good", s->good, "slo_ttft_ms",
                                  r->limits->ttft_ms, "slo_tpot_ms", r->limits->tpot_ms, "slo_e2e_ms", r->limits->e2e_ms));
  json_object_set_new(o, "ttft_ms", json_of_stat(&s->ttft));
  json_object_set_new(o, "tpot_ms", json_of_stat(&s->tpot));
  json_object_set_new(o, "itl_ms", json_of_stat(&s->itl));
  json_object_set_new(o, "e2e_ms", json_of_stat(&s->e2e));
  json_object_set_new(o, "held_ms", json_of_stat(&s->held));
  return o;
}

/* ---- CSV ----------------------------------------------------------------------------------------------------------------------------- */

/* RFC 4180: a field in quotes, quotes doubled. */
static void put_quoted(struct buf *b, const char *text) {
  buf_putc(b, '"');
  for (; *text; text++) {
    if (*text == '"') buf_putc(b, '"');
    buf_putc(b, *text);
  }
  buf_putc(b, '"');
}

static void put_answer(const struct load_result *x, struct buf *b) {
  buf_printf(b, "%.6f,", load_ttft_ms(x));
  if (load_tpot_ms(x) >= 0) buf_printf(b, "%.6f", load_tpot_ms(x));
  buf_printf(b, ",%.6f,", load_e2e_ms(x));
  if (x->has_usage) buf_printf(b, "%d,%d", x->prompt_tokens, x->cached_tokens);
  else buf_putc(b, ',');
  buf_printf(b, ",%d,", x->completion_tokens);
}

static void put_itls(const struct load_result *x, struct buf *b) {
  struct stat_values itls = {0};
  load_itls_ms(x, &itls);
  for (int i = 0; i < itls.n; i++) buf_printf(b, "%s%.6f", i ? " " : "", itls.v[i]);
  free(itls.v);
}

void report_csv(const struct load_report *r, struct buf *b) {
  static const char *const states[] = {"unsent", "unsent", "done", "failed"};
  buf_puts(
      b,
      "request,group,turn,state,error,due_s,sent_s,ttft_ms,tpot_ms,e2e_ms,prompt_tokens,cached_tokens,completion_tokens,asked_tokens,good,"
      "itl_ms,message\r\n");
  for (int i = 0; i < r->run->work->n; i++) {
    const struct load_result *x = &r->run->results[i];
    const struct load_request *q = &r->run->work->v[i];
    bool done = x->state == LOAD_DONE;
    buf_printf(b, "%d,", i);
    if (q->group >= 0) buf_printf(b, "%d", q->group);
    buf_printf(b, ",%d,%s,%s,", q->turn, states[x->state], x->kind);
    if (x->state == LOAD_UNSENT) buf_putc(b, ',');
    else buf_printf(b, "%.6f,%.6f", (double)x->due_ns / 1e9, (double)x->sent_ns / 1e9);
    buf_putc(b, ',');
    if (done) put_answer(x, b);
    else buf_puts(b, ",,,,,,");
    buf_printf(b, "%d,%s,", q->output_tokens, !done ? "" : load_is_good(x, r->limits) ? "1" : "0");
    if (done) put_itls(x, b);
    buf_putc(b, ',');
    if (x->message) put_quoted(b, x->message);
    buf_puts(b, "\r\n");
  }
}
