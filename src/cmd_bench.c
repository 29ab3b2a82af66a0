/* cmd_bench.c — how fast, beside how fast this machine could be. (A server is measured from outside: cmd_bench_serve.c.)
 *
 * Prefill at a depth: the time of the last `prompt` tokens of a prompt of depth + prompt tokens. Decode at a depth: `batch` sequences of that length
 * generate `gen` tokens each, without guesses unless --draft or --draft-model asks for them; counted from the moment all prompts are in. Each figure is the median of
 * --repeat runs on random tokens.
 *
 * Floors: a step takes at least as long as its operations, products at the int8 peak (with bf16, f16 and f32 weights: at the float peak) and attention
 * at the float peak; and at least as long as reading the weights once, of experts those of one row, and each sequence's visible keys and values. Which of
 * the two is the longer is the figure's bound. Peaks are measured before and after each run, for on a shared machine they change from second to second: a
 * run is held against the mean of the two, and a figure's floor and the share of it that was reached are medians, too.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "commands.h"

enum { LIST_MAX = 16 };

struct figure {
  const char *kind; /* "prefill", "decode" */
  int64_t depth, batch;
  double tokens_s, floor_tokens_s, reached; /* floor 0: not known */
  const char *bound;                        /* "operations", "bytes" */
};

static int32_t *random_prompt(int64_t n, int vocab, uint64_t seed) {
  int32_t *ids = xmalloc((size_t)n * sizeof *ids);
  for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(rng_uniform(seed, (uint64_t)i, 0) * (vocab - 1));
  return ids;
}

static int compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}
static double median(double *v, int n) {
  qsort(v, (size_t)n, sizeof *v, compare_doubles);
  return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static int drain(struct cygnet *c, int *n_done) {
  struct cygnet_event ev;
  while (cygnet_next_event(c, &ev)) {
    if (ev.finish == CYGNET_FINISH_ERROR) return command_fail_public(&ev.error);
    if (ev.finish) ++*n_done;
  }
  return 0;
}

/* Tokens per second of the last `prompt` tokens. */
static int time_prefill(struct cygnet *c, int64_t depth, int64_t prompt, int vocab, uint64_t seed, double *rate) {
  struct cygnet_error e;
  int32_t *ids = random_prompt(depth + prompt, vocab, seed);
  struct cygnet_request r = {.prompt = ids, .n_prompt = (size_t)(depth + prompt), .max_tokens = 1, .ignore_eos = 1};
  struct cygnet_stats before, now;
  cygnet_stats(c, &before);
  uint64_t number = cygnet_submit(c, &r, &e);
  free(ids);
  if (!number) return command_fail_public(&e);
  int n_done = 0, status = 0;
  uint64_t counted_from = 0;
  int64_t start = clock_ns();
  while (!status && !n_done) {
    cygnet_stats(c, &now);
    uint64_t done = now.computed_tokens - before.computed_tokens;
    if (done <= (uint64_t)depth) { /* the clock starts at the last chunk border at or before the depth */
      start = clock_ns();
      counted_from = done;
    }
    if (!cygnet_step(c)) break;
    status = drain(c, &n_done);
  }
  *rate = (double)((uint64_t)(depth + prompt) - counted_from) / ((double)(clock_ns() - start) / 1e9);
  return status;
}

/* Tokens per second of all sequences together. */
static int time_decode(struct cygnet *c, int64_t depth, int64_t batch, int64_t gen, int vocab, uint64_t seed, double *rate) {
  struct cygnet_error e;
  struct cygnet_stats s;
  cygnet_stats(c, &s);
  uint64_t first = s.generated_tokens, prompts = s.computed_tokens;
  int64_t n_prompt = depth > 0 ? depth : 1;
  for (int64_t i = 0; i < batch; i++) {
    int32_t *ids = random_prompt(n_prompt, vocab, seed + (uint64_t)i);
    struct cygnet_request r = {.prompt = ids, .n_prompt = (size_t)n_prompt, .max_tokens = (int)gen + 1, .ignore_eos = 1};
    uint64_t number = cygnet_submit(c, &r, &e);
    free(ids);
    if (!number) return command_fail_public(&e);
  }
  int n_done = 0, status = 0;
  while (!status && s.computed_tokens - prompts < (uint64_t)(batch * n_prompt) && cygnet_step(c)) {
    status = drain(c, &n_done);
    cygnet_stats(c, &s);
  }
  if (!status && n_done) {
    struct err fe = {0};
    err_set(&fe, ERR_NO_MEMORY, "--batch: %lld sequences do not run at once, the first ended before the last began: raise --gen or --mem",
            (long long)batch);
    status = command_fail(&fe);
  }
  first = s.generated_tokens;
  int64_t start = clock_ns();
  while (!status && !n_done && cygnet_step(c)) status = drain(c, &n_done);
  double seconds = (double)(clock_ns() - start) / 1e9;
  cygnet_stats(c, &s);
  *rate = (double)(s.generated_tokens - first) / seconds;
  while (!status && n_done < batch && cygnet_step(c)) status = drain(c, &n_done);
  return status;
}

/* ---- floors ------------------------------------------------------------------------------------------------------------- */

/* Rows of one sequence at positions [from, to): the keys that they see together, in full [0] and sliding [1] layers. */
static void visible_keys(const struct cygnet_info *i, int64_t from, int64_t to, double keys[2]) {
  keys[0] = keys[1] = 0;
  for (int64_t pos = from; pos < to; pos++) {
    keys[0] += (double)(pos + 1);
    keys[1] += (double)(i->window_tokens ? MIN(pos + 1, i->window_tokens) : pos + 1);
  }
}

/* Seconds of `rows` rows and `logits` of them wanted. keys, keys_wanted: what all of them, and the wanted ones, see together. */
static double operations_seconds(const struct cygnet_info *i, const struct cygnet_floor *f, double rows, double logits,
                                 const double keys[2], const double keys_wanted[2]) {
  double plain = rows * (double)i->plain_per_token + logits * (double)i->plain_per_logits;
  double codes = rows * (double)i->products_per_token + logits * (double)i->products_per_logits - plain;
  for (int kind = 0; kind < 2; kind++)
    plain += keys[kind] * (double)i->key_per_token[kind] + keys_wanted[kind] * (double)i->key_per_logits[kind];
  return 2e-9 * (codes / f->int8_gop_s + plain / f->float_gop_s);
}

static void set_floor(struct figure *v, const struct cygnet_floor *f, double tokens, double operations_s, double bytes) {
  if (f->int8_gop_s <= 0 || f->float_gop_s <= 0 || f->read_gb_s <= 0) return;
  double bytes_s = bytes / (f->read_gb_s * 1e9);
  v->floor_tokens_s = tokens / MAX(operations_s, bytes_s);
  v->bound = operations_s > bytes_s ? "operations" : "bytes";
}

static void prefill_floor(struct figure *v, const struct cygnet_info *i, const struct cygnet_floor *f, int64_t prompt) {
  double keys[2], keys_last[2];
  visible_keys(i, v->depth, v->depth + prompt, keys);
  visible_keys(i, v->depth + prompt - 1, v->depth + prompt, keys_last);
  set_floor(v, f, (double)prompt, operations_seconds(i, f, (double)prompt, 1, keys, keys_last), (double)i->decode_bytes);
}

static void decode_floor(struct figure *v, const struct cygnet_info *i, const struct cygnet_floor *f, int64_t gen) {
  double keys[2], steps = (double)gen, batch = (double)v->batch;
  int64_t first = MAX(v->depth, 1);
  visible_keys(i, first, first + gen, keys);
  for (int kind = 0; kind < 2; kind++) keys[kind] *= batch;
  size_t read_bytes = i->decode_bytes - (v->batch <= i->shortlist_rows ? i->shortlist_saves_bytes : 0); /* answers are greedy */
  set_floor(v, f, steps * batch, operations_seconds(i, f, steps * batch, steps * batch, keys, keys),
            steps * (double)read_bytes + keys[0] * (double)i->kv_token_bytes_full + keys[1] * (double)i->kv_token_bytes_sliding);
}

static int measure_peaks(struct cygnet *c, struct cygnet_floor *f) {
  struct cygnet_error e;
  return cygnet_floor(c, f, &e) ? command_fail_public(&e) : 0;
}

static struct cygnet_floor mean(const struct cygnet_floor *a, const struct cygnet_floor *b) {
  struct cygnet_floor f = *a;
  f.read_gb_s = (a->read_gb_s + b->read_gb_s) / 2;
  f.int8_gop_s = (a->int8_gop_s + b->int8_gop_s) / 2;
  f.float_gop_s = (a->float_gop_s + b->float_gop_s) / 2;
  return f;
}

/* --repeat runs. peaks: those measured last; best: of all. */
static int measure(struct cygnet *c, const struct cygnet_info *i, const struct options *o, struct figure *v, struct cygnet_floor *peaks,
                   struct cygnet_floor *best) {
  const int n = (int)o->repeat;
  bool is_prefill = !strcmp(v->kind, "prefill");
  double *rates = xmalloc(3 * (size_t)n * sizeof *rates), *floors = rates + n, *reached = floors + n;
  int status = 0;
  for (int r = 0; r < n && !status; r++) {
    struct cygnet_floor after, around;
    if (is_prefill) status = time_prefill(c, v->depth, o->bench_prompt, i->vocab, (uint64_t)r, &rates[r]);
    else status = time_decode(c, v->depth, v->batch, o->bench_gen, i->vocab, (uint64_t)r, &rates[r]);
    if (!status) status = measure_peaks(c, &after);
    if (status) break;
    around = mean(peaks, &after);
    *peaks = after;
    best->read_gb_s = MAX(best->read_gb_s, after.read_gb_s);
    best->int8_gop_s = MAX(best->int8_gop_s, after.int8_gop_s);
    best->float_gop_s = MAX(best->float_gop_s, after.float_gop_s);
    if (is_prefill) prefill_floor(v, i, &around, o->bench_prompt);
    else decode_floor(v, i, &around, o->bench_gen);
    floors[r] = v->floor_tokens_s;
    reached[r] = floors[r] > 0 ? rates[r] / floors[r] : 0;
  }
  if (!status) v->tokens_s = median(rates, n), v->floor_tokens_s = median(floors, n), v->reached = median(reached, n);
  free(rates);
  return status;
}

/* ---- output ------------------------------------------------------------------------------------------------------------- */

static void print_text(const struct cygnet_info *i, const struct cygnet_floor *f, const struct figure *v, int n) {
  char a[32], b[32];
  printf("%s, %s, %s kernels, %d thread%s, keys and values %s\n", i->name, i->format, i->isa, i->threads, i->threads == 1 ? "" : "s",
         i->kv_type);
  printf("  loaded in %.0f ms; resident %s; cache per token %zu B full + %zu B sliding\n", i->load_ms, mem_human(mem_resident_bytes(), a),
         i->kv_token_bytes_full, i->kv_token_bytes_sliding);
  printf("  machine: reads %.1f GB/s, int8 %.0f GOP/s, %s %.0f GFLOP/s; a decoding step reads %s of weights\n", f->read_gb_s, f->int8_gop_s,
         f->float_name, f->float_gop_s, mem_human(i->decode_bytes, b));
  printf("  %-8s %8s %6s %12s %12s %8s  %s\n", "", "depth", "batch", "tokens/s", "floor", "reached", "bound by");
  for (int k = 0; k < n; k++) {
    printf("  %-8s %8lld %6lld %12.1f ", v[k].kind, (long long)v[k].depth, (long long)v[k].batch, v[k].tokens_s);
    if (v[k].bound) printf("%12.1f %7.0f%%  %s\n", v[k].floor_tokens_s, 100 * v[k].reached, v[k].bound);
    else printf("%12s %8s\n", "-", "-");
  }
}

static void print_json(const struct cygnet_info *i, const struct cygnet_floor *f, const struct figure *v, int n) {
  json_t *runs = json_array();
  for (int k = 0; k < n; k++)
    json_array_append_new(runs, json_pack("{s:s, s:I, s:I, s:f, s:f, s:f, s:s*}", "kind", v[k].kind, "depth", (json_int_t)v[k].depth,
                                          "batch", (json_int_t)v[k].batch, "tokens_per_s", v[k].tokens_s, "floor_tokens_per_s",
                                          v[k].floor_tokens_s, "reached", v[k].reached, "bound", v[k].bound));
  json_t *o = json_pack("{s:s, s:s, s:i, s:s, s:f, s:I, s:I, s:I, s:I, s:{s:f, s:f, s:f, s:s}, s:o}", "model", i->name, "isa", i->isa,
                        "threads", i->threads, "kv_type", i->kv_type, "load_ms", i->load_ms, "resident_bytes",
                        (json_int_t)mem_resident_bytes(), "kv_token_bytes_full", (json_int_t)i->kv_token_bytes_full,
                        "kv_token_bytes_sliding", (json_int_t)i->kv_token_bytes_sliding, "decode_bytes", (json_int_t)i->decode_bytes,
                        "machine", "read_gb_per_s", f->read_gb_s, "int8_gop_per_s", f->int8_gop_s, "float_gop_per_s", f->float_gop_s,
                        "float_type", f->float_name, "runs", runs);
  char *text = json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
  puts(text);
  free(text);
  json_decref(o);
}

int cmd_bench(const struct options *o) {
  struct err e = {0};
  if (o->serve_url) return bench_serve(o);
  if (bench_check_local(o, &e)) return command_fail(&e);
  int64_t depths[LIST_MAX], batches[LIST_MAX];
  int n_depths = command_numbers(o->depths, "--depth", 0, 1 << 24, depths, LIST_MAX, &e), n_batches = 0;
  if (n_depths > 0) n_batches = command_numbers(o->batches, "--batch", 1, 4096, batches, LIST_MAX, &e);
  if (n_depths < 0 || n_batches < 0) return command_fail(&e);

  int status = 0;
  struct options sized = *o; /* room for what is going to be measured */
  int64_t deepest = 0, widest = 0;
  for (int i = 0; i < n_depths; i++) deepest = MAX(deepest, depths[i]);
  for (int i = 0; i < n_batches; i++) widest = MAX(widest, batches[i]);
  if (!sized.ctx) sized.ctx = deepest + MAX(o->bench_prompt, o->bench_gen) + 2;
  if (!sized.max_running) sized.max_running = widest;
  sized.no_prefix_cache = true;                                 /* what is timed is to be computed, */
  if (sized.draft == 0 && !sized.draft_model) sized.draft = -1; /* and not to depend on what random tokens make a model say */
  int64_t longest = deepest + MAX(o->bench_prompt, MAX(o->bench_gen, 1) + (deepest == 0));
  if (longest >= sized.ctx) {
    err_set(&e, ERR_BAD_INPUT, "--ctx: expected more than %lld tokens to hold --depth and --prompt or --gen, found %lld",
            (long long)longest, (long long)sized.ctx);
    return command_fail(&e);
  }
  if (widest > sized.max_running) {
    err_set(&e, ERR_BAD_INPUT, "--batch: expected at most --max-running-requests %lld sequences, found %lld", (long long)sized.max_running,
            (long long)widest);
    return command_fail(&e);
  }
  struct cygnet *c = command_open(&sized, &status);
  if (!c) return status;

  struct cygnet_info info;
  struct cygnet_floor peaks, best;
  cygnet_info(c, &info);
  struct figure figures[LIST_MAX * (LIST_MAX + 1)];
  int n = 0;
  status = measure_peaks(c, &peaks);
  best = peaks;
  for (int d = 0; d < n_depths && !status; d++) {
    figures[n] = (struct figure){.kind = "prefill", .depth = depths[d], .batch = 1};
    status = measure(c, &info, o, &figures[n++], &peaks, &best);
    for (int b = 0; b < n_batches && !status; b++) {
      figures[n] = (struct figure){.kind = "decode", .depth = depths[d], .batch = batches[b]};
      status = measure(c, &info, o, &figures[n++], &peaks, &best);
    }
  }
  if (!status) (o->json ? print_json : print_text)(&info, &best, figures, n);
  cygnet_close(c);
  return status;
}
