/* cygnet.c — the public functions over engine.h: error form, facts, requests. What concerns text is in cygnet_text.c. */
#include "cygnet.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "compute/floor.h"
#include "compute/shortlist.h"
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

static void set_media_info(const struct cygnet *c, struct cygnet_info *out) {
  const struct plan *p = &c->plan;
  const struct model *m = c->model;
  const struct vision_config *v = &c->config.vision;
  const int *budgets = media_budgets(&c->config);
  out->vision = m->vision ? m->vision->ops->name : NULL;
  out->audio = m->audio ? m->audio->ops->name : NULL;
  out->image_id = c->limits.media.image_id;
  out->video_id = c->limits.media.video_id;
  out->audio_id = c->limits.media.audio_id;
  if (m->vision && v->kind == VISION_SIGLIP) out->image_tokens = v->soft_tokens;
  if (m->vision && v->kind == VISION_MLLAMA) out->image_tokens = 1;
  for (size_t i = 0; m->vision && budgets[i] && i + 1 < ARRAY_LEN(out->image_budgets); i++) out->image_budgets[i] = budgets[i];
  out->audio_seconds = m->audio ? media_seconds_max(&c->config) : 0;
  out->media_rows = p->media_pages * p->media_page_rows;
  out->media_bytes = p->encoder_weight_bytes + p->encoder_scratch_bytes + (size_t)out->media_rows * p->media_row_bytes;
}

void cygnet_info(const struct cygnet *c, struct cygnet_info *out) {
  const struct plan *p = &c->plan;
  const struct model *m = c->model;
  const struct drafter *drafter = c->guesser.drafter;
  *out = (struct cygnet_info){.name = c->config.name,
                              .architecture = c->config.architecture,
                              .format = weights_format(c->weights),
                              .isa = m->dev->ops->is_near ? m->dev->kern->name : m->dev->ops->name,
                              .kv_type = p->kv_type,
                              .chat_family = chat_family_name(tok_family(c->tok)),
                              .chat_template = chat_template_name(c->chat_template),
                              .draft_model = c->guesser.drafter ? c->guesser.config->name : NULL,
                              .chat_thinks = chat_has_thinking(c->chat_template),
                              .chat_tools = chat_has_tools(c->chat_template),
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
                              .weight_bytes = weights_total_bytes(c->weights) + (drafter ? weights_total_bytes(c->guesser.weights) : 0),
                              .packed_bytes = m->packed_bytes + (drafter ? drafter_model(drafter)->packed_bytes : 0),
                              .kv_bytes = m->kv_bytes,
                              .scratch_bytes = p->scratch_bytes,
                              .kv_token_bytes_full = p->token_bytes[KV_FULL],
                              .kv_token_bytes_sliding = p->token_bytes[KV_SLIDING],
                              .products_per_token = m->products_per_row.all,
                              .products_per_logits = m->products_per_out.all,
                              .plain_per_token = m->products_per_row.plain,
                              .plain_per_logits = m->products_per_out.plain,
                              .decode_bytes = m->decode_bytes,
                              .shortlist_saves_bytes = m->shortlist_saves_bytes,
                              .shortlist_rows = SHORTLIST_ROWS_MAX,
                              .load_ms = c->load_ms};
  set_media_info(c, out);
  if (c->mmproj) out->weight_bytes += weights_total_bytes(c->mmproj);
  for (int n = 1; c->graph && n <= p->sched.max_running; n++) out->graph_buckets += graph_bucket(n, p->sched.max_running) == n;
  int last_owner = 0; /* layers behind it run for the rows whose logits are wanted (models/gemma4.c) */
  for (int l = 0; l < c->config.n_layers; l++)
    if (m->config.layers[l].kv_donor == l) last_owner = l;
  for (int l = 0; l < c->config.n_layers; l++) {
    const struct layer_config *y = &m->config.layers[l];
    out->n_layers_sliding += y->kind == LAYER_SLIDING;
    int64_t *key = l <= last_owner ? out->key_per_token : out->key_per_logits;
    if (y->kind != LAYER_CROSS) key[y->kind == LAYER_SLIDING] += 2 * y->n_q * y->head_dim;
  }
}

int cygnet_floor(const struct cygnet *c, struct cygnet_floor *out, struct cygnet_error *e) {
  struct err err = {0};
  struct machine_floor f;
  if (floor_measure(c->model->dev->kern, c->model->dev->workers, (size_t)c->model->decode_bytes, &f, &err)) {
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
  out->n_media = c->sched.counts.media;
  out->n_media_cached = c->sched.counts.media_cached;
  if (c->banks) {
    struct banks_stats media = banks_stats(c->banks);
    out->media_rows_used = media.n_rows_held;
    out->media_rows_cached = media.n_rows_idle;
  }
  out->n_fork_joins = workers_runs(c->model->dev->workers);
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
int cygnet_lost(const struct cygnet *c, struct cygnet_error *e) {
  if (c->lost.code) cygnet_error_set(e, &c->lost);
  return c->lost.code != ERR_NONE;
}
int cygnet_next_event(struct cygnet *c, struct cygnet_event *ev) { return engine_next_event(c, ev); }
