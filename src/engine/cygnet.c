/* cygnet.c — the public functions over engine.h: error form, facts, text. */
#include "cygnet.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "compute/floor.h"
#include "engine/engine.h"

void cygnet_error_set(struct cygnet_error *to, const struct err *from) {
  if (!to) return;
  *to = (struct cygnet_error){.status = err_http_status(from->code), .exit_status = err_exit_status(from->code)};
  _Static_assert(sizeof to->message == sizeof from->msg, "messages are copied whole");
  memcpy(to->message, from->msg, sizeof to->message);
}

struct cygnet *cygnet_open(const struct cygnet_options *o, struct cygnet_error *e) {
  struct err err = {0};
  struct cygnet *c = engine_open(o, &err);
  if (!c) cygnet_error_set(e, &err);
  return c;
}

void cygnet_close(struct cygnet *c) { engine_close(c); }
void cygnet_free(void *owned) { free(owned); }
const char *cygnet_version(void) { return CYGNET_VERSION; }

const char *cygnet_finish_name(enum cygnet_finish f) {
  static const char *const names[] = {"none", "stop", "length", "abort", "error"};
  return (size_t)f < ARRAY_LEN(names) ? names[f] : "none";
}

/* ---- facts --------------------------------------------------------------------------------------------------------------- */

static const char *chat_family_name(enum tok_family f) {
  static const char *const names[] = {[TOK_GEMMA3] = "gemma3", [TOK_GEMMA4] = "gemma4", [TOK_LLAMA3] = "llama3"};
  return names[f];
}

void cygnet_info(const struct cygnet *c, struct cygnet_info *out) {
  const struct plan *p = &c->plan;
  const struct model *m = c->model;
  *out = (struct cygnet_info){.name = c->config.name,
                              .architecture = c->config.architecture,
                              .format = weights_format(c->weights),
                              .isa = m->dev->kern->name,
                              .kv_type = p->kv_type,
                              .chat_family = chat_family_name(tok_family(c->tok)),
                              .vocab = c->config.vocab,
                              .hidden = c->config.hidden,
                              .n_layers = c->config.n_layers,
                              .ctx_tokens = p->ctx_tokens,
                              .ctx_tokens_model = c->config.ctx_tokens,
                              .window_tokens = p->kv.window_tokens,
                              .threads = workers_count(m->dev->workers),
                              .page_tokens = p->kv.page_tokens,
                              .chunk_tokens = p->sched.chunk_tokens,
                              .max_running = p->sched.max_running,
                              .pool_full_tokens = p->kv.n_pages[KV_FULL] * p->kv.page_tokens,
                              .pool_sliding_tokens = p->kv.n_pages[KV_SLIDING] * p->kv.page_tokens,
                              .prefix_cache = p->has_prefix_cache,
                              .resume_points = p->n_resume,
                              .weight_bytes = weights_total_bytes(c->weights),
                              .packed_bytes = m->packed_bytes,
                              .kv_bytes = m->kv_bytes,
                              .scratch_bytes = p->scratch_bytes,
                              .kv_token_bytes_full = p->token_bytes[KV_FULL],
                              .kv_token_bytes_sliding = p->token_bytes[KV_SLIDING],
                              .products_per_token = m->products_per_row,
                              .products_per_logits = m->products_per_out,
                              .decode_bytes = m->decode_bytes,
                              .load_ms = c->load_ms};
  for (int n = 1; c->graph && n <= p->sched.max_running; n++) out->graph_buckets += graph_bucket(n, p->sched.max_running) == n;
  for (int l = 0; l < c->config.n_layers; l++) out->n_layers_sliding += c->config.layers[l].kind == LAYER_SLIDING;
}

int cygnet_floor(const struct cygnet *c, struct cygnet_floor *out, struct cygnet_error *e) {
  struct err err = {0};
  struct machine_floor f;
  if (floor_measure(c->model->dev->kern, c->model->dev->workers, &f, &err)) {
    cygnet_error_set(e, &err);
    return -1;
  }
  *out = (struct cygnet_floor){
      .read_gb_s = f.read_gb_s, .int8_gop_s = f.int8_gop_s, .float_gop_s = f.float_gop_s, .float_name = f.float_name};
  return 0;
}

void cygnet_stats(const struct cygnet *c, struct cygnet_stats *out) {
  struct kv_stats kv = kv_stats(c->kv);
  struct radix_stats tree = c->radix ? radix_stats(c->radix) : (struct radix_stats){0};
  int page = c->plan.kv.page_tokens;
  *out = c->stats;
  out->n_requests = c->n_requests;
  out->n_running = c->sched.running.n;
  out->n_waiting = c->sched.waiting.n;
  out->pool_full_used_tokens = kv.n_used[KV_FULL] * page;
  out->pool_sliding_used_tokens = kv.n_used[KV_SLIDING] * page;
  out->pool_full_cached_tokens = kv.n_idle[KV_FULL] * page;
  out->pool_sliding_cached_tokens = kv.n_idle[KV_SLIDING] * page;
  out->n_graph_steps = c->graph ? graph_stats(c->graph).n_replayed : 0;
  out->n_retracted = c->sched.n_retracted;
  out->prompt_tokens = c->sched.counts.prompt;
  out->cached_tokens = c->sched.counts.cached;
  out->lost_window_tokens = c->sched.counts.lost_window;
  out->lost_wanted_tokens = c->sched.counts.lost_wanted;
  out->evicted_full_tokens = tree.n_evicted[KV_FULL] * (uint64_t)page;
  out->evicted_sliding_tokens = tree.n_evicted[KV_SLIDING] * (uint64_t)page;
  out->n_resume_points = tree.n_resume_points;
  out->n_fork_joins = workers_runs(c->model->dev->workers);
}

/* ---- text ----------------------------------------------------------------------------------------------------------------- */

static void give_ids(struct tok_ids *from, int32_t **ids, size_t *n_ids) {
  *n_ids = from->n;
  *ids = from->v ? from->v : xcalloc(1, sizeof **ids); /* never NULL */
}

int cygnet_encode(const struct cygnet *c, const char *text, size_t n_text, int special, int bos, int32_t **ids, size_t *n_ids) {
  if (n_text > TOK_TEXT_BYTES_MAX) return -1;
  struct tok_ids out = {0};
  tok_encode(c->tok, str_of(text, n_text), special != 0, bos != 0, &out);
  give_ids(&out, ids, n_ids);
  return 0;
}

char *cygnet_decode(const struct cygnet *c, const int32_t *ids, size_t n_ids, int skip_special, size_t *n_text) {
  struct buf text;
  buf_init(&text, 0);
  tok_decode(c->tok, ids, n_ids, skip_special != 0, &text);
  return buf_take(&text, n_text);
}

const char *cygnet_piece(const struct cygnet *c, int32_t id, size_t *n) {
  struct str piece = tok_piece(c->tok, id);
  *n = piece.n;
  return piece.p;
}

static int read_chat_options(const json_t *json, struct chat_options *o, struct err *e) {
  bool opens_turn = true;
  if (!json) return 0;
  if (!json_is_object(json)) return err_set(e, ERR_BAD_INPUT, "options: expected an object");
  const struct {
    const char *name;
    bool *value;
  } known[] = {{"add_generation_prompt", &opens_turn},
               {"continue_final_message", &o->continue_final_message},
               {"enable_thinking", &o->enable_thinking}};
  size_t n_known = 0;
  for (size_t i = 0; i < ARRAY_LEN(known); i++) {
    if (json_get_bool(json, known[i].name, known[i].value, "options", e) < 0) return -1;
    n_known += json_object_get(json, known[i].name) != NULL;
  }
  if (n_known != json_object_size(json))
    return err_set(e, ERR_BAD_INPUT, "options: expected add_generation_prompt, continue_final_message and enable_thinking only");
  o->no_generation_prompt = !opens_turn;
  return 0;
}

static json_t *load_argument(const char *text, const char *what, struct err *e) {
  return json_load_text(text, strlen(text), true, what, e);
}

int cygnet_render(const struct cygnet *c, const char *messages_json, const char *tools_json, const char *options_json, int32_t **ids,
                  size_t *n_ids, char **text, struct cygnet_error *e) {
  struct err err = {0};
  json_t *messages = NULL, *tools = NULL, *options = NULL;
  struct chat_options o = {0};
  struct chat_rendered rendered = {0};
  int rc = -1;
  if (!(messages = load_argument(messages_json, "messages", &err))) goto done;
  if (tools_json && !(tools = load_argument(tools_json, "tools", &err))) goto done;
  if (options_json && !(options = load_argument(options_json, "options", &err))) goto done;
  if (read_chat_options(options, &o, &err)) goto done;
  if (chat_render(c->tok, messages, tools, &o, &rendered, &err)) goto done;
  struct tok_ids out = {0};
  chat_ids(c->tok, &rendered, &out);
  give_ids(&out, ids, n_ids);
  if (text) {
    struct buf b;
    buf_init(&b, 0);
    chat_text(c->tok, &rendered, &b);
    *text = buf_take(&b, NULL);
  }
  rc = 0;
done:
  chat_rendered_free(&rendered);
  json_decref(messages);
  json_decref(tools);
  json_decref(options);
  if (rc) cygnet_error_set(e, &err);
  return rc;
}

/* ---- requests ---------------------------------------------------------------------------------------------------------------- */

uint64_t cygnet_submit(struct cygnet *c, const struct cygnet_request *r, struct cygnet_error *e) {
  struct err err = {0};
  uint64_t number = engine_submit(c, r, &err);
  if (!number) cygnet_error_set(e, &err);
  return number;
}

void cygnet_abort(struct cygnet *c, uint64_t request) { engine_abort(c, request); }
int cygnet_flush(struct cygnet *c) { return engine_flush(c) ? 0 : -1; }
int cygnet_step(struct cygnet *c) { return engine_step(c); }
int cygnet_next_event(struct cygnet *c, struct cygnet_event *ev) { return engine_next_event(c, ev); }
