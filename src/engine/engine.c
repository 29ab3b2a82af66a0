/* engine.c — one model, its cache, its requests, and the step that moves them. The rules are in engine.h and cygnet.h.
 *
 * A request is in exactly one place: waiting or running (sched), or DONE and only in the queue of events. What the caller reads of an event
 * belongs to the request, so the request that was handed out last (`lent`) is cleared, or deleted when it is over, at the next call.
 */
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/workers.h"
#include "compute/head.h"

/* ---- life ----------------------------------------------------------------------------------------------------------------- */

/* A checkpoint without a vocabulary can still be asked by ids. */
static struct tokenizer *open_tokenizer(const struct cygnet *c, const char *path, struct err *e) {
  const struct gguf *g = weights_gguf(c->weights);
  if (g) return tok_from_gguf(g, e);
  struct err why = {0};
  struct tokenizer *t = tok_open(path, &why);
  if (t || why.code != ERR_NOT_FOUND) {
    if (!t) *e = why;
    return t;
  }
  log_line(LOG_WARN, "engine", "%s: the model is asked by ids alone, and answers in them", why.msg);
  return tok_blank(c->config.vocab);
}

/* Asked for by name, else what the file's own template is, else the family's. */
static int choose_template(struct cygnet *c, const char *name, struct err *e) {
  bool exact = false;
  enum chat_template asked = CHAT_AUTO;
  if (name && !chat_template_by_name(name, &asked))
    return err_set(e, ERR_BAD_INPUT, "chat_template: expected auto, gemma3, gemma4-large, gemma4-small or llama32v, found \"%s\"", name);
  struct str text = tok_chat_template(c->tok);
  enum chat_template own = text.n ? chat_template_find(text, &exact) : CHAT_AUTO, family = chat_template_default(c->tok, c->config.ple > 0);
  if (own == CHAT_GEMMA4_LARGE && !exact) own = family; /* an older text says nothing of the size, the shape does */
  c->chat_template = asked != CHAT_AUTO ? asked : own != CHAT_AUTO ? own : family;
  if (text.n && asked == CHAT_AUTO && !exact)
    log_line(LOG_WARN, "engine", "the model's chat template is not a known one: conversations are written as %s does (--chat-template)",
             chat_template_name(c->chat_template));
  return 0;
}

/* What the model's own files call an end; the tokenizer family's when they say nothing. */
static void set_limits(struct cygnet *c) {
  struct request_limits *l = &c->limits;
  *l = (struct request_limits){.vocab = c->config.vocab, .ctx_tokens = c->plan.ctx_tokens, .tok = c->tok};
  int n = c->config.n_eos;
  const int32_t *eos = n > 0 ? c->config.eos : tok_eog(c->tok, &n);
  for (int i = 0; i < n && l->n_eos < CONFIG_EOS_MAX; i++)
    if (eos[i] >= 0 && eos[i] < l->vocab) l->eos[l->n_eos++] = eos[i];
  l->thought_open = l->thought_close = -1;
  if (tok_family(c->tok) != TOK_GEMMA4) return;
  int32_t open = tok_find(c->tok, "<|channel>"), close = tok_find(c->tok, "<channel|>");
  if (tok_is_control(c->tok, open) && tok_is_control(c->tok, close) && MAX(open, close) < l->vocab)
    l->thought_open = open, l->thought_close = close;
}

/* Which placeholders stand for something, and what they mean to the scheduler and the batch. */
static void set_media_rules(struct cygnet *c) {
  const struct model *m = c->model;
  const struct model_config *mc = &c->config;
  c->limits.media = (struct media_rules){.image_id = m->vision ? mc->image_id : -1,
                                         .video_id = m->vision ? mc->video_id : -1,
                                         .audio_id = m->audio ? mc->audio_id : -1,
                                         .takes = m->vision || m->audio,
                                         .cross = config_has_cross(mc),
                                         .both_ways = {[KV_FULL] = mc->both_ways_full, [KV_SLIDING] = mc->both_ways_sliding},
                                         .token = config_has_cross(mc) ? mc->image_id : 0, /* Gemma: pad */
                                         .patches_max = {m->vision ? m->vision->rows_max : 0, m->audio ? m->audio->rows_max : 0},
                                         .page_rows = c->plan.media_page_rows,
                                         .names = c->names};
}

static int open_media(struct cygnet *c, struct err *e) {
  if (!c->plan.model.media) return 0;
  if (model_open_media(c->model, c->mmproj ? c->mmproj : c->weights, e) || (c->mmproj && weights_unchanged(c->mmproj, e))) return -1;
  if (!(c->banks = banks_new(c->plan.media_page_rows, c->plan.media_pages, e)) || !(c->names = names_new(NAMES_MAX, e))) return -1;
  c->sched.banks = c->banks;
  return encode_open(c, e);
}

static int open_samplers(struct cygnet *c, struct err *e) {
  size_t n_samples = (size_t)c->plan.sched.out_max + (size_t)c->plan.sched.max_running;
  int n = c->plan.n_samplers;
  c->samples = mem_try_alloc(n_samples * sizeof *c->samples);
  c->said = mem_try_alloc((size_t)c->plan.batch.rows_max * sizeof *c->said);
  c->sayers = mem_try_alloc((size_t)n * sizeof *c->sayers);
  if (!c->samples || !c->said || !c->sayers) return err_set(e, ERR_NO_MEMORY, "engine: no memory to sample from %zu rows", n_samples);
  if (say_model_init(&c->say, &c->limits, e)) return -1;
  for (c->n_sayers = 0; c->n_sayers < n; c->n_sayers++)
    if (say_scratch_init(&c->sayers[c->n_sayers], &c->say, c->config.vocab, e)) return -1;
  return 0;
}

static int whole_steps(double rows, int most) {
  if (rows >= most) return most;
  int n = (int)(rows / ENGINE_ROWS_STEP + 0.5) * ENGINE_ROWS_STEP;
  return MIN(MAX(n, ENGINE_ROWS_STEP), most);
}

/* Prompt rows may take what decoding leaves of the aim, or as long as decoding takes itself: where that alone takes too long, a trickle of
 * rows would help nobody. While nothing is known, few are taken. */
static void set_pace(struct cygnet *c) {
  if (c->plan.step_ms == 0) return;
  double aim = c->plan.step_ms, beside = ENGINE_ROWS_UNKNOWN, alone = 4 * ENGINE_ROWS_UNKNOWN;
  if (c->row_ms > 0) {
    beside = MAX(aim - c->decode_ms, c->decode_ms) / c->row_ms;
    alone = 4 * aim / c->row_ms;
  }
  c->sched.beside_rows = whole_steps(beside, c->sched.config.chunk_tokens);
  c->sched.chunk_rows = MAX(whole_steps(alone, c->sched.config.chunk_tokens), c->sched.beside_rows);
}

static int open_cache(struct cygnet *c, struct err *e) {
  if (!(c->kv = kv_new(&c->plan.kv, e))) return -1;
  return c->plan.has_prefix_cache && !(c->radix = radix_new(c->kv, e)) ? -1 : 0;
}

static const char *why_no_graph(const struct model *m) {
  const char *why = m->dev->ops->no_records(m->dev);
  return why || !m->attn_ops->no_records ? why : m->attn_ops->no_records(m->attn);
}

static int open_steps(struct cygnet *c, struct err *e) {
  if (sched_init(&c->sched, &c->plan.sched, c->kv, c->radix, e) || batch_init(&c->batch, &c->plan.batch, e) || open_samplers(c, e))
    return -1;
  if (c->model->dev->ops->hold_batch(c->model->dev, &c->batch, e)) return -1;
  const char *no_graph = c->plan.has_graph ? why_no_graph(c->model) : NULL;
  if (no_graph) log_line(LOG_INFO, "engine", "graph mode is off: %s", no_graph);
  c->plan.has_graph &= !no_graph;
  if (c->plan.has_graph && !(c->graph = graph_new(c->model, &c->batch, c->plan.sched.max_running, e))) return -1;
  set_pace(c);
  return 0;
}

/* Gemma's residual stream goes beyond 65504 in released checkpoints. */
static void warn_of_range(const struct cygnet *c) {
  bool half = !c->model->dev->ops->is_near && c->plan.look.type == DTYPE_F16;
  if (!half || (c->config.family != FAMILY_GEMMA3 && c->config.family != FAMILY_GEMMA4)) return;
  log_line(LOG_WARN, "engine", "this chip computes in fp16, whose range Gemma's hidden states leave: expect requests that end with \"%s\"",
           "logits that are no finite numbers");
}

struct cygnet *engine_open(const struct cygnet_options *o, struct err *e) {
  if (!o->model || !*o->model) {
    err_set(e, ERR_BAD_INPUT, "model: expected a GGUF file, a .safetensors file or a folder, found nothing");
    return NULL;
  }
  if (plan_check(o, e)) return NULL;
  int64_t start_ns = clock_ns();
  mem_big_take_at_once(o->take_memory != 0);
  workers_ignore_nodes(o->ignore_numa != 0);
  struct cygnet *c = xcalloc(1, sizeof *c);
  c->image_pixels = o->image_pixels;
  c->weights = weights_open(o->model, &c->config, e);
  if (!c->weights) goto fail;
  if (o->mmproj && *o->mmproj && !o->disable_media && !(c->mmproj = weights_open_mmproj(o->mmproj, &c->config, e))) goto fail;
  c->tok = open_tokenizer(c, o->model, e);
  if (!c->tok || choose_template(c, o->chat_template, e)) goto fail;
  c->grammars = grammar_cache_new(c->tok);
  if (o->draft_model && *o->draft_model && o->draft_tokens >= 0 && guess_open_file(&c->guesser, o->draft_model, &c->config, e)) goto fail;
  struct plan_beside beside = {.drafter = c->guesser.config, .drafter_weights = c->guesser.weights, .media_weights = c->mmproj};
  if (plan_make_beside(&c->plan, o, &c->config, c->weights, &beside, e)) goto fail;
  if (open_cache(c, e)) goto fail;
  c->model = model_open(&c->config, c->weights, &c->plan.model, e);
  if (!c->model || weights_unchanged(c->weights, e)) goto fail;
  warn_of_range(c);
  set_limits(c);
  if (open_steps(c, e) || open_media(c, e) || guess_open(c, e)) goto fail;
  weights_rest(c->weights);
  if (c->mmproj) weights_rest(c->mmproj);
  set_media_rules(c);
  if (o->draft_tokens >= 0) c->draft_tokens = MIN(o->draft_tokens ? o->draft_tokens : ENGINE_DRAFT_TOKENS, DRAFT_TOKENS_MAX);
  c->worth_from_ms = 1;
  buf_init(&c->piece, 0);
  c->load_ms = clock_ms_since(start_ns);
  log_line(LOG_INFO, "engine", "loaded arch=%s isa=%s threads=%d ctx=%d load_ms=%.0f", c->config.architecture, c->model->dev->kern->name,
           workers_count(c->model->dev->workers), c->plan.ctx_tokens, c->load_ms);
  return c;
fail:
  engine_close(c);
  return NULL;
}

static void settle(struct cygnet *c) {
  struct request *r = c->lent;
  c->lent = NULL;
  if (!r) return;
  request_clear_output(r);
  if (r->state == REQUEST_DONE) request_delete(r);
}

void engine_close(struct cygnet *c) {
  if (!c) return;
  settle(c);
  for (struct request *r; (r = c->ready_first);) { /* running ones are found again below */
    c->ready_first = r->next_ready;
    if (r->state == REQUEST_DONE) request_delete(r);
  }
  for (struct request *r; (r = c->sched.running.first ? c->sched.running.first : c->sched.waiting.first);) {
    sched_remove(&c->sched, r);
    request_delete(r);
  }
  if (c->banks) encode_settle(c, true);
  for (int i = 0; i < c->n_sayers; i++) say_scratch_free(&c->sayers[i]);
  free(c->sayers);
  free(c->samples);
  free(c->said);
  say_model_free(&c->say);
  buf_free(&c->piece);
  graph_delete(c->graph);
  batch_free(&c->batch);
  sched_free(&c->sched);
  radix_delete(c->radix);
  banks_delete(c->banks);
  names_delete(c->names);
  guess_close(&c->guesser);
  encode_close(c);
  model_close(c->model);
  kv_delete(c->kv);
  grammar_cache_delete(c->grammars);
  tok_close(c->tok);
  weights_close(c->mmproj);
  weights_close(c->weights);
  free(c);
}

/* ---- events ------------------------------------------------------------------------------------------------------------------- */

static void make_ready(struct cygnet *c, struct request *r) {
  if (r->is_ready) return;
  r->is_ready = true;
  r->next_ready = NULL;
  *(c->ready_last ? &c->ready_last->next_ready : &c->ready_first) = r;
  c->ready_last = r;
}

/* Text of one token through the stop strings; returns the index of the one that matched, or -1. */
static int show_text(struct cygnet *c, struct request *r, bool may_stop) {
  int generated = r->n_tokens - r->n_prompt;
  if (r->stop && !may_stop) stop_finish(r->stop, &r->text);
  else if (r->stop && generated >= r->sampling.params.min_tokens) return stop_push(r->stop, c->piece.data, c->piece.len, &r->text);
  buf_append(&r->text, c->piece.data, c->piece.len);
  return -1;
}

/* The request is over: show what was held back, give everything back but what its last event needs. */
static void finish(struct cygnet *c, struct request *r, enum cygnet_finish why) {
  r->finish = why;
  if (r->matched_stop < 0) {
    buf_clear(&c->piece);
    detok_finish(&r->detok, &c->piece);
    show_text(c, r, true);
    if (r->stop) stop_finish(r->stop, &r->text);
  }
  sched_remove(&c->sched, r);
  make_ready(c, r);
  *(why == CYGNET_FINISH_ABORT ? &c->stats.n_aborted : why == CYGNET_FINISH_ERROR ? &c->stats.n_failed : &c->stats.n_finished) += 1;
}

static double ms_between(int64_t from_ns, int64_t to_ns) { return from_ns && to_ns > from_ns ? (double)(to_ns - from_ns) / 1e6 : 0; }

bool engine_next_event(struct cygnet *c, struct cygnet_event *ev) {
  settle(c);
  struct request *r = c->ready_first;
  if (!r) return false;
  c->ready_first = r->next_ready;
  if (!c->ready_first) c->ready_last = NULL;
  r->is_ready = false;
  c->lent = r;
  request_link_top(r);
  bool shows_prompt = r->prompt_tokens && !r->prompt_shown && r->n_reported == r->n_prompt;
  r->prompt_shown |= shows_prompt;
  *ev = (struct cygnet_event){.request = r->number,
                              .user = r->user,
                              .text = buf_cstr(&r->text),
                              .n_text = r->text.len,
                              .marks = r->marks_new,
                              .n_marks = (size_t)r->n_marks,
                              .tokens = r->new_tokens,
                              .n_tokens = (size_t)r->n_new_tokens,
                              .prompt = shows_prompt ? r->prompt_tokens : NULL,
                              .n_prompt = shows_prompt ? (size_t)(r->n_prompt - r->prompt_logprobs_from) : 0,
                              .finish = r->finish,
                              .matched_stop = r->finish == CYGNET_FINISH_STOP ? r->matched_stop : -1,
                              .matched_id = r->matched_id,
                              .seed = r->sampling.params.seed,
                              .reasoning_tokens = r->n_reasoning,
                              .prompt_tokens = r->n_prompt,
                              .cached_tokens = MAX(0, r->n_cached),
                              .n_media = r->n_spans,
                              .n_media_cached = r->n_media_cached,
                              .encode_ms = r->encode_ms,
                              .n_retractions = r->n_retracted,
                              .completion_tokens = r->n_tokens - r->n_prompt,
                              .queue_ms = ms_between(r->arrived_ns, r->started_ns ? r->started_ns : clock_ns()),
                              .prefill_ms = ms_between(r->started_ns, r->first_token_ns),
                              .decode_ms = ms_between(r->first_token_ns, r->last_token_ns)};
  if (r->finish == CYGNET_FINISH_ERROR) cygnet_error_set(&ev->error, &r->error);
  return true;
}

/* ---- coming and going --------------------------------------------------------------------------------------------------------- */

uint64_t engine_submit(struct cygnet *c, const struct cygnet_request *from, struct err *e) {
  settle(c);
  if (c->lost.code) {
    *e = c->lost;
    return 0;
  }
  if (from->grammar) say_model_prepare(&c->say);
  struct request *r = request_new(from, &c->limits, e);
  if (!r) return 0;
  say_expect(&c->say, &c->sayers[0], r, r->n_prompt);
  r->number = c->n_requests + 1;
  if (!sched_fits(&c->sched, r, e)) goto fail;
  if (!sched_add(&c->sched, r)) {
    err_set(e, ERR_BUSY, "queue: %d requests are waiting, no more are taken now", c->sched.waiting.n);
    goto fail;
  }
  return c->n_requests = r->number;
fail:
  request_delete(r);
  return 0;
}

static struct request *find_request(const struct request_list *l, uint64_t number) {
  struct request *r = l->first;
  while (r && r->number != number) r = r->next;
  return r;
}

struct request *engine_find(struct cygnet *c, uint64_t number) {
  struct request *r = find_request(&c->sched.running, number);
  return r ? r : find_request(&c->sched.waiting, number);
}

void engine_fail_bank(struct cygnet *c, int32_t entry, const char *what) {
  for (struct request *r = c->sched.running.first, *next; r; r = next) {
    next = r->next;
    int i = 0;
    while (i < r->n_banks && r->banks[i].entry != entry) i++;
    if (i == r->n_banks) continue;
    err_set(&r->error, ERR_INTERNAL, "position %d: %s", r->banks[i].from, what);
    finish(c, r, CYGNET_FINISH_ERROR);
  }
}

void engine_abort(struct cygnet *c, uint64_t number) {
  settle(c);
  struct request *r = engine_find(c, number);
  if (!r) return;
  finish(c, r, CYGNET_FINISH_ABORT);
  c->has_news = true;
}

bool engine_flush(struct cygnet *c) {
  if (c->sched.running.n || c->sched.waiting.n) return false;
  if (c->radix) radix_flush(c->radix);
  if (c->banks) banks_flush(c->banks);
  return true;
}

/* ---- one step ------------------------------------------------------------------------------------------------------------------ */

/* In debug builds an allocation between guard(true) and guard(false) ends the program with the name of the phase. */
static void guard(bool up) {
#ifdef CYGNET_DEBUG
  if (up) mem_guard_begin("forward");
  else mem_guard_end();
#else
  (void)up;
#endif
}

static bool wants_hidden(const struct request *r) { return r->on_hidden && r->n_reported < r->n_prompt; }

/* model_tap_fn: hidden states for the callback of the request that the row belongs to. */
static void tap_hidden(void *ctx, const char *name, int layer, int row, const float *x, int cols) {
  struct cygnet *c = ctx;
  if (strcmp(name, "embed") && strcmp(name, "layer_out")) return;
  const struct sched_pick *p = &c->sched.picks[c->batch.seq[row]];
  const struct request *r = p->r;
  int pos = c->batch.pos[row];
  if (!r->on_hidden || pos < r->n_reported || pos >= r->n_prompt || pos >= p->first + p->n - p->n_late) return;
  guard(false); /* the callback may do as it likes */
  r->on_hidden(r->callback_ctx, layer + 1, pos, x, cols);
  guard(true);
}

static void copy_pages(struct cygnet *c) {
  for (int i = 0; i < c->sched.n_copies; i++) {
    const struct kv_copy *copy = &c->sched.copies[i];
    c->model->attn_ops->copy_page(c->model->attn, copy->kind, copy->from, copy->to);
  }
}

static struct tensor forward(struct cygnet *c) {
  struct model *m = c->model;
  model_tap_fn tap = m->tap;
  void *tap_ctx = m->tap_ctx;
  for (int i = 0; i < c->sched.n_picks; i++)
    if (wants_hidden(c->sched.picks[i].r)) m->tap = tap_hidden, m->tap_ctx = c;
  guard(true);
  batch_build(&c->batch, c->kv, (struct batch_media){&c->limits.media, c->banks}, c->sched.picks, c->sched.n_picks);
  struct tensor logits = graph_forward(c->graph, m, &c->batch);
  guard(false);
  m->tap = tap;
  m->tap_ctx = tap_ctx;
  return logits;
}

static void fail_not_a_number(struct request *r, int position) {
  err_set(&r->error, ERR_INTERNAL, "position %d: the model computed logits that are no finite numbers", position);
}

/* Prompt rows to their callback: n_out rows of logits from first_out on, of positions from `first` on. False: the request must end. */
static bool report_logits(const struct cygnet *c, struct request *r, int first, int first_out, int n_out) {
  const struct tensor *logits = &c->logits;
  int vocab = c->config.vocab;
  for (int i = 0; i < n_out; i++) {
    int pos = first + i;
    if (!r->on_logits || pos < r->n_reported || pos >= r->n_prompt) continue;
    const float *row = tensor_row(logits, first_out + i);
    bool not_finite = false;
    c->model->dev->kern->argmax(row, vocab, &not_finite);
    if (not_finite) return fail_not_a_number(r, pos), false;
    r->on_logits(r->callback_ctx, pos, row, vocab);
  }
  return true;
}

static void sample_one(void *ctx, int item, int worker) {
  struct cygnet *c = ctx;
  struct engine_sample *s = &c->samples[item];
  struct say_rows *rows = &s->rows;
  if (!s->prompt_token) {
    say_tokens(&c->say, &c->sayers[worker], &c->logits, &c->model->peaks, rows);
    return;
  }
  const struct request *r = rows->r;
  rows->failed = sample_logprobs(&c->sayers[worker].sampler, tensor_row(&c->logits, rows->first_out),
                                 head_peaks(&c->model->peaks, rows->first_out), r->tokens[s->prompt_token], r->top_max,
                                 &rows->said[0].result, &rows->error) != 0;
}

/* Text of one token; a control token ends what a stop string could reach across. Returns the index of the stop string that matched, or -1. */
static int show_token(struct cygnet *c, struct request *r, const struct said *said) {
  int32_t id = said->result.id;
  buf_clear(&c->piece);
  detok_push(&r->detok, id, &c->piece);
  int matched = show_text(c, r, said->may_stop);
  if (matched >= 0 || !r->marks || !tok_is_control(c->tok, id)) return matched;
  if (r->stop) stop_finish(r->stop, &r->text);
  request_put_mark(r, id);
  return -1;
}

/* One more token of r: the conditions for an end, in the order in which they win. */
static void take_token(struct cygnet *c, struct request *r, const struct said *said) {
  const struct sample_result *from = &said->result;
  if (!r->first_token_ns) r->first_token_ns = clock_ns();
  r->last_token_ns = clock_ns();
  if (from->id < 0) { /* the empty answer is complete */
    finish(c, r, CYGNET_FINISH_STOP);
    return;
  }
  request_push(r, from->id);
  r->n_reasoning = said->n_reasoning;
  c->stats.generated_tokens++;
  c->stats.forced_tokens += said->certain;

  bool at_limit = r->n_tokens == r->n_limit;
  bool is_stop = !at_limit && said->is_stop;
  if (!is_stop || r->keep_stop) {
    request_put_token(r, from);
    r->matched_stop = show_token(c, r, said);
  }
  make_ready(c, r);
  if (at_limit) {
    finish(c, r, CYGNET_FINISH_LENGTH);
  } else if (is_stop) {
    r->matched_id = from->id;
    finish(c, r, CYGNET_FINISH_STOP);
  } else if (said->complete || r->matched_stop >= 0) {
    finish(c, r, CYGNET_FINISH_STOP);
  }
}

/* What r said in this step. The row that a token comes from is committed before it: its own tokens are known by then. */
static void take_tokens(struct cygnet *c, const struct say_rows *rows) {
  struct request *r = rows->r;
  int n_taken = 0;
  while (n_taken < rows->n_said && r->state != REQUEST_DONE) {
    if (n_taken > 0) sched_commit(&c->sched, &(struct sched_pick){.r = r, .n = 1});
    take_token(c, r, &rows->said[n_taken++]);
  }
  int n_guessed = rows->n_rows - 1 - rows->n_certain, n_right = MAX(0, MIN(n_taken, rows->n_right) - rows->n_certain);
  if (n_guessed > 0) guess_learn(c, r, n_guessed, n_right);
  if (r->state == REQUEST_DONE) return;
  int last = n_taken - 1 - (rows->n_rows - rows->n_out); /* row of logits that its newest token came from */
  if (last >= 0) guess_keep(c, r, rows->first_out + last);
  r->n_draft = 0;
  if (rows->n_rows > 1) kv_cancel(c->kv, &r->kv);
  if (!rows->failed) return;
  r->error = rows->error;
  finish(c, r, CYGNET_FINISH_ERROR);
}

/* Of a decoding request only the row of its last token: whether those ahead of it are of any use is known later. */
static void commit_rows(struct cygnet *c) {
  for (int i = 0; i < c->sched.n_picks; i++) {
    struct sched_pick p = c->sched.picks[i];
    int before = MIN(p.r->n_computed, p.r->n_prompt);
    p.n = MIN(p.n, p.r->n_tokens - p.r->n_computed);
    sched_commit(&c->sched, &p);
    c->stats.computed_tokens += (uint64_t)(MIN(p.r->n_computed, p.r->n_prompt) - before);
  }
}

static struct engine_sample *add_sample(struct cygnet *c, int *n_samples, int *n_said, const struct say_rows *rows) {
  struct engine_sample *s = &c->samples[(*n_samples)++];
  s->prompt_token = 0;
  s->rows = *rows;
  s->rows.said = c->said + *n_said;
  *n_said += rows->n_rows;
  return s;
}

/* Of n_out rows of logits from first_out on, of positions from `first` on: those that say how probable the next prompt token was, and the
 * one to choose the next token from. */
static void collect_prompt(struct cygnet *c, struct request *r, int first, int first_out, int n_out, int *n_samples, int *n_said) {
  int wanted_from = r->prompt_tokens ? request_wanted_from(r) : r->n_prompt;
  for (int i = 0; i < n_out; i++) {
    int next = first + i + 1; /* position of the token that the row speaks of */
    bool of_prompt = next > wanted_from && next < r->n_prompt && next >= r->prompt_logprobs_from && !request_span_at(r, next);
    if (!of_prompt && !(next == r->n_tokens && request_samples(r))) continue;
    struct say_rows rows = {.r = r, .n_rows = 1, .n_out = 1, .first_out = first_out + i};
    add_sample(c, n_samples, n_said, &rows)->prompt_token = of_prompt ? next : 0;
  }
}

static void collect_decoding(struct cygnet *c, const struct sched_pick *p, int first_out, int *n_samples, int *n_said) {
  struct request *r = p->r;
  struct say_rows rows = {.r = r, .n_rows = p->n, .n_out = p->n_out, .first_out = first_out, .n_certain = MIN(r->n_forced, p->n - 1)};
  memcpy(rows.ahead, r->ahead, (size_t)(p->n - 1) * sizeof *rows.ahead);
  add_sample(c, n_samples, n_said, &rows);
}

/* Call back for prompt rows, and collect who wants a token or its probability. Returns how many samples. */
static int settle_rows(struct cygnet *c) {
  int n_samples = 0, n_said = 0, first_out = 0;
  for (int i = 0; i < c->sched.n_picks; i++) {
    struct sched_pick p = c->sched.picks[i];
    struct request *r = p.r;
    int at = first_out;
    first_out += p.n_out;
    if (p.is_decoding) {
      collect_decoding(c, &p, at, &n_samples, &n_said);
      continue;
    }
    int end = p.first + p.n - p.n_late;
    bool ok = report_logits(c, r, end - p.n_out, at, p.n_out);
    if (ok) collect_prompt(c, r, end - p.n_out, at, p.n_out, &n_samples, &n_said);
    if (r->on_logits || r->on_hidden || r->prompt_tokens) r->n_reported = MAX(r->n_reported, MIN(end, r->n_prompt));
    if (!ok) finish(c, r, CYGNET_FINISH_ERROR);
  }
  return n_samples;
}

static void settle_samples(struct cygnet *c, int n_samples) {
  for (int i = 0; i < n_samples; i++) {
    struct engine_sample *s = &c->samples[i];
    struct request *r = s->rows.r;
    if (r->state == REQUEST_DONE) continue; /* an earlier row of it failed */
    if (!s->prompt_token) {
      take_tokens(c, &s->rows);
    } else if (s->rows.failed) {
      r->error = s->rows.error;
      finish(c, r, CYGNET_FINISH_ERROR);
    } else {
      request_put_prompt_token(r, s->prompt_token, &s->rows.said[0].result);
    }
  }
  for (int i = 0; i < c->sched.n_picks; i++) { /* prompts that want no answer */
    struct request *r = c->sched.picks[i].r;
    if (r->state == REQUEST_DONE || r->n_computed < r->n_tokens) continue;
    r->first_token_ns = r->last_token_ns = clock_ns();
    finish(c, r, CYGNET_FINISH_LENGTH);
  }
}

/* ---- pace ------------------------------------------------------------------------------------------------------------------------- */

static void average(double *lately, double now) { *lately = *lately > 0 ? *lately + (now - *lately) / 4 : now; }

struct step_rows {
  int n_prompt, n_ahead, n_decoding;
};

/* What a step with prompt rows, or with rows ahead of decoding ones, took longer than one that only decodes is the rows' time. What the latter cost is
 * forgotten slowly while there are none, so that they are tried again. */
static void measure_pace(struct cygnet *c, int64_t start_ns, const struct step_rows *n) {
  double ms = clock_ms_since(start_ns);
  if (n->n_prompt == 0 && n->n_ahead == 0) {
    average(&c->decode_ms, ms);
    c->ahead_ms -= c->ahead_ms / 64;
  }
  if (n->n_prompt == 0 && n->n_ahead > 0 && c->decode_ms > 0) average(&c->ahead_ms, MAX(ms - c->decode_ms, ms / 64) / n->n_ahead);
  if (n->n_prompt >= ENGINE_ROWS_STEP)
    average(&c->row_ms, MAX(ms - (n->n_decoding ? c->decode_ms : 0), ms / 4) / (n->n_prompt + n->n_ahead));
  set_pace(c);
}

static void check_step(const struct cygnet *c) {
#ifdef CYGNET_DEBUG
  struct err e = {0};
  bool ok = engine_check(c, &e);
  if (!ok) log_line(LOG_ERROR, "engine", "%s", e.msg);
  CHECK(ok);
#else
  (void)c;
#endif
}

/* Units of encoders, as long as prompt rows would be given. */
static bool encode_some(struct cygnet *c, int64_t start_ns, bool beside_decoding) {
  double aim = beside_decoding ? MAX((double)c->plan.step_ms, 2 * c->decode_ms) : c->plan.step_ms;
  if (!c->banks) return false;
  for (int n = 0; !c->lost.code; n++) {
    if (n > 0 && clock_ms_since(start_ns) + c->unit_ms > aim) return true;
    int64_t unit_ns = clock_ns();
    if (!encode_unit(c)) return n > 0;
    average(&c->unit_ms, clock_ms_since(unit_ns));
    if (c->plan.step_ms == 0) return true;
  }
  return true;
}

/* ---- a device that fails --------------------------------------------------------------------------------------------------------- */

static void fail(struct cygnet *c, struct request *r, const struct err *why) {
  r->error = *why;
  finish(c, r, CYGNET_FINISH_ERROR);
}

bool engine_finish_device(struct cygnet *c, struct err *e) {
  struct device *d = c->model->dev;
  if (!d->ops->finish(d, e)) return true;
  c->stats.n_failed_steps++;
  log_line(LOG_ERROR, "engine", "%s", e->msg);
  if (d->lost && !c->lost.code) err_set(&c->lost, ERR_BUSY, "%s; the program must be started again", e->msg);
  if (d->lost) *e = c->lost;
  return false;
}

/* The device is lost: nobody gets an answer any more. */
static void fail_all(struct cygnet *c) {
  for (struct request *r; (r = c->sched.running.first ? c->sched.running.first : c->sched.waiting.first);) fail(c, r, &c->lost);
}

static bool got_copy(const struct cygnet *c, const struct request *r) {
  for (int i = 0; i < c->sched.n_copies; i++) {
    const struct kv_copy *copy = &c->sched.copies[i];
    for (int k = 0; k < r->kv.n_pairs; k++)
      if ((copy->kind == KV_FULL ? r->kv.pairs[k].full : r->kv.pairs[k].swa) == copy->to) return true;
  }
  return false;
}

/* What the step wrote is worth nothing, and whoever had rows in it, or took over a copied page, ends here: nothing of it was committed, so
 * nothing of it gets into the prefix tree. What earlier steps wrote is good. */
static void fail_step(struct cygnet *c, const struct err *why) {
  for (int i = 0; i < c->sched.n_picks; i++) fail(c, c->sched.picks[i].r, why);
  for (struct request *r = c->sched.running.first, *next; r; r = next) {
    next = r->next;
    if (got_copy(c, r)) fail(c, r, why);
  }
}

/* The rows of the step that was put together. Whether anybody decodes. */
static bool compute(struct cygnet *c) {
  int64_t start_ns = clock_ns();
  struct step_rows n = {0};
  c->stats.n_steps++;
  for (int i = 0; i < c->sched.n_picks; i++) {
    const struct sched_pick *p = &c->sched.picks[i];
    if (!p->r->started_ns) p->r->started_ns = start_ns;
    n.n_decoding += p->is_decoding;
    *(p->is_decoding ? &n.n_ahead : &n.n_prompt) += p->n - p->is_decoding;
  }
  c->logits = forward(c);
  struct err why = {0};
  if (!engine_finish_device(c, &why)) {
    fail_step(c, &why);
    return n.n_decoding > 0;
  }
  commit_rows(c);
  int n_samples = settle_rows(c);
  workers_run(n_samples > 1 && c->n_sayers == workers_count(c->model->dev->workers) ? c->model->dev->workers : NULL, sample_one, c,
              n_samples);
  settle_samples(c, n_samples);
  measure_pace(c, start_ns, &n);
  return n.n_decoding > 0;
}

/* Copies of a step without rows: those who were let in may have to wait for an encoder first. False: they failed. */
static bool finish_copies(struct cygnet *c) {
  struct err why = {0};
  if (c->sched.n_copies == 0 || engine_finish_device(c, &why)) return true;
  fail_step(c, &why);
  return false;
}

bool engine_step(struct cygnet *c) {
  settle(c);
  bool news = c->has_news;
  c->has_news = false;
  if (c->lost.code) return news;
  guess_offer(c);
  int64_t start_ns = clock_ns();
  bool has_rows = sched_next(&c->sched) > 0;
  copy_pages(c);
  for (struct request *r = c->sched.running.first; r; r = r->next) /* encoding is a part of the prompt's time */
    if (r->n_spans && !r->started_ns) r->started_ns = start_ns;
  bool failed = !has_rows && !finish_copies(c), decodes = has_rows && compute(c), encoded = encode_some(c, start_ns, decodes);
  if (c->lost.code) fail_all(c);
  if (!has_rows && !encoded && !failed) {
    CHECK(c->sched.running.n + c->sched.waiting.n == 0); /* somebody would wait for ever */
    return news;
  }
  check_step(c);
  return true;
}

/* ---- invariants ------------------------------------------------------------------------------------------------------------------ */

static bool bad(struct err *e, const struct request *r, const char *what) {
  err_set(e, ERR_INTERNAL, "request %llu: %s", (unsigned long long)r->number, what);
  return false;
}

static bool check_event(const struct cygnet *c, const struct request *r, struct err *e) {
  if (!r->is_ready || r == c->lent) return bad(e, r, "expected one event in one place");
  if ((r->finish != CYGNET_FINISH_NONE) != (r->state == REQUEST_DONE)) return bad(e, r, "expected its last event exactly when it is done");
  if (r->n_marks && !r->marks) return bad(e, r, "has marks and did not ask for them");
  for (int i = 0; i < r->n_marks; i++)
    if (r->marks_new[i].at > r->text.len || (i && r->marks_new[i].at < r->marks_new[i - 1].at))
      return bad(e, r, "its marks are out of order");
  return true;
}

static bool check_ahead(const struct request *r, struct err *e) {
  const struct thoughts *t = &r->thoughts;
  if (r->n_draft) return bad(e, r, "has guesses after a step");
  if (r->n_forced < 0 || r->n_forced > REQUEST_AHEAD_MAX || r->n_tokens + r->n_forced > r->n_limit)
    return bad(e, r, "expects more than fits");
  if (request_decodes(r) && r->kv.n_reserved != r->kv.n_tokens) return bad(e, r, "holds pages for rows that were given up");
  if (t->kind != CYGNET_THOUGHTS_FREE && t->open_id < 0) return bad(e, r, "has thoughts without tokens for them");
  if (t->n_tokens != r->n_reasoning || t->n_tokens > r->n_tokens - r->n_prompt) return bad(e, r, "its thoughts are miscounted");
  if (!r->grammar || r->n_forced == 0 || !request_in_grammar(r)) return true;
  struct grammar_state *s = grammar_state_copy(r->grammar);
  bool ok = true;
  for (int i = 0; i < r->n_forced && ok; i++) ok = grammar_accept(s, r->ahead[i]);
  grammar_state_delete(s);
  return ok || bad(e, r, "its grammar does not take what is certain");
}

bool engine_check(const struct cygnet *c, struct err *e) {
  if (!sched_check(&c->sched, e)) return false;
  const struct request *last = NULL;
  for (const struct request *r = c->ready_first; r; last = r, r = r->next_ready)
    if (!check_event(c, r, e)) return false;
  if (last != c->ready_last) return err_set(e, ERR_INTERNAL, "engine: the queue of events is torn"), false;
  const struct request_list *lists[] = {&c->sched.running, &c->sched.waiting};
  for (size_t i = 0; i < ARRAY_LEN(lists); i++)
    for (const struct request *r = lists[i]->first; r; r = r->next) {
      if (r->finish != CYGNET_FINISH_NONE || r->n_tokens > r->tokens_cap || r->n_limit > c->limits.ctx_tokens)
        return bad(e, r, "is scheduled with more tokens than it may have");
      if (!check_ahead(r, e)) return false;
    }
  return true;
}
