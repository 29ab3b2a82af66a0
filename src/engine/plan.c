/* plan.c — how memory is shared out before anything is loaded.
 *
 *   budget = weights (as packed) + scratch (activations, logits, tables, prefix tree, recorded steps) + keys and values
 *
 * Pages of the mapped file are not in it: rows of tables that are only looked up, such as per-layer embeddings, show in the resident size, but belong to
 * the page cache.
 *
 * Of the two pools of keys and values at least one longest sequence fits in each, and in the sliding one the window and rows of two whole
 * steps. Above that they grow together, as far as the budget goes, to
 *   full      max_running sequences of min(ctx, PLAN_TOKENS_EACH) tokens, or two of the longest
 *   sliding   max_running windows, and the prompt rows of one step: all that can be alive at once, however long the sequences are; and with
 *             a prefix cache PLAN_RESUME_EACH windows more per running request, of places to go on from, and PLAN_RESUME_ALONE for one alone
 * What nobody holds is the prefix cache's; it has no share of its own.
 * The store of what encoders made of pictures and sounds (rows, or banks of keys and values) holds the greatest one at least; beside it an
 * ordinary one for each running request at best, and PLAN_MEDIA_LEAST, PLAN_MEDIA_ROWS. --media-mem says another size.
 *
 * A far device (device.h) has memory of its own, and it is that which is shared out: keys and values, activations, weights and the rows of
 * embeddings. What stays with the host is told beside it (host_bytes). Scratch is counted in float32, twice what the device takes; the
 * rest is what its operations need for themselves, which nobody can say beforehand.
 *
 * Worst cases are counted that hardly ever come: logits of all places of a batch, every sampling thread's whole vocabulary. So the resident
 * size stays some percent below the plan.
 */
#include <math.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/workers.h"
#include "compute/shortlist.h"
#include "engine/engine.h"

enum {
  PLAN_PAGE_TOKENS = 16,
  PLAN_PAGE_TOKENS_FAR = 128, /* what every attention operator of an NPU takes */
  PLAN_FAR_BYTES = 8 << 20,   /* least that an NPU's operations take for themselves: masks, temporary memory, workspaces */
  PLAN_CHUNK_TOKENS = 512,
  PLAN_RUNNING = 32,
  PLAN_QUEUED = 1024,
  PLAN_OUT_ROWS = 32,      /* logits of so many rows at once at most, or of all running requests */
  PLAN_OUT_MORE = 12,      /* beside one for each of those: guesses, and tokens of prompts whose log-probabilities are wanted */
  PLAN_OUT_GROUP = 4,      /* rows that kernels take at once */
  PLAN_AHEAD_TOKENS = 64,  /* sched_config */
  PLAN_TOKENS_EACH = 4096, /* of the full pool per running request */
  PLAN_CTX_LEAST = 256,    /* the context is not halved below that by itself */
  PLAN_CHUNK_MOST = 1 << 16,
  PLAN_RUNNING_MOST = 4096,
  PLAN_QUEUED_MOST = 1 << 20,
  PLAN_RESUME_ALONE = 8, /* windows of resume points when one request runs, the others' included: the last turns of one user's long chat */
  PLAN_RESUME_EACH = 1,  /* windows of resume points per running request */
  PLAN_STEP_MS_MOST = 600000,
  PLAN_MEDIA_PAGE_ROWS = 16, /* of the store of soft rows */
  PLAN_MEDIA_LEAST = 16,     /* ordinary pictures beside the greatest one: of one user's long chat */
  PLAN_MEDIA_ROWS = 16384,   /* soft rows beside the greatest medium, if the context holds as many: of one long prompt */
  PLAN_MEDIA_PAGES_MOST = 1 << 26,
  PLAN_STEPS = 256,       /* sizes tried between least and best */
  PLAN_SAMPLE_BYTES = 33, /* per id of the vocabulary and sampling thread */
};

/* ---- options ---------------------------------------------------------------------------------------------------------------- */

static int option_int(const char *name, int value, int dflt, int most, int *out, struct err *e) {
  if (value < 0 || value > most)
    return err_set(e, ERR_BAD_INPUT, "--%s: expected 1 to %d, or 0 for the default, found %d", name, most, value);
  *out = value ? value : dflt;
  return 0;
}

static int option_isa(const char *name, enum isa *out, struct err *e) {
  static const char *const names[] = {[ISA_AUTO] = "auto", [ISA_REF] = "ref", [ISA_AVX2] = "avx2", [ISA_AVX512] = "avx512"};
  if (!name) name = "auto";
  for (size_t i = 0; i < ARRAY_LEN(names); i++)
    if (!strcmp(name, names[i])) return *out = (enum isa)i, 0;
  return err_set(e, ERR_BAD_INPUT, "--isa: expected auto, ref, avx2 or avx512, found \"%.40s\"", name);
}

/* A far device stores keys and values as its operators want to read them, and in no other way. */
static int option_kv_type(const char *name, struct plan *p, struct err *e) {
  static const struct {
    const char *name;
    enum dtype type;
  } types[] = {{"bf16", DTYPE_BF16}, {"f16", DTYPE_F16}, {"f32", DTYPE_F32}, {"q8_0", DTYPE_Q8_0}};
  enum dtype only = p->model.device->is_near ? DTYPE_NONE : p->look.type;
  bool is_auto = !name || !strcmp(name, "auto");
  for (size_t i = 0; i < ARRAY_LEN(types); i++)
    if (is_auto ? types[i].type == (only ? only : DTYPE_BF16) : !strcmp(name, types[i].name)) {
      p->kv_type = types[i].name;
      p->model.kv_dtype = types[i].type;
      if (!only || types[i].type == only) return 0;
      return err_set(e, ERR_UNSUPPORTED, "--kv-type: this NPU stores keys and values as %s, expected that or auto, found %s",
                     only == DTYPE_BF16 ? "bf16" : "f16", types[i].name);
    }
  return err_set(e, ERR_BAD_INPUT, "--kv-type: expected auto, bf16, f16, f32 or q8_0, found \"%.40s\"", name);
}

static int option_quant(const char *name, struct plan *p, struct err *e) {
  p->model.quant = DTYPE_NONE;
  if (!name) return 0;
  enum dtype t = dtype_by_name(name);
  if (t != DTYPE_Q8_0 && t != DTYPE_Q4_0) return err_set(e, ERR_BAD_INPUT, "--quant: expected q8_0 or q4_0, found \"%.40s\"", name);
  p->model.quant = t;
  return 0;
}

/* Each device has its own attention; the CPU's has an oracle beside it. */
static int option_attn(const char *name, struct model_plan *m, struct err *e) {
  const struct attn_ops *const all[] = {&attn_cpu_ops, &attn_ref_ops, &attn_ascend_ops};
  m->attn = m->device->attn;
  if (!name || !strcmp(name, "auto")) return 0;
  for (size_t i = 0; i < ARRAY_LEN(all); i++) {
    if (strcmp(name, all[i]->name)) continue;
    m->attn = all[i];
    if ((all[i] == &attn_ascend_ops) != m->device->is_near) return 0;
    return err_set(e, ERR_UNSUPPORTED, "--attn %s works on the memory of the %s, and the model runs on --backend %s; leave --attn out",
                   name, m->device->is_near ? "NPU" : "host", m->device->name);
  }
  return err_set(e, ERR_BAD_INPUT, "--attn: expected auto, cpu, ref or ascend, found \"%.40s\"", name);
}

/* What a far device has no use for is refused, not ignored. */
static int check_far(const struct plan *p, const struct cygnet_options *o, struct err *e) {
  const char *name = p->model.device->name;
  if (o->isa && strcmp(o->isa, "auto"))
    return err_set(e, ERR_UNSUPPORTED, "--isa %s chooses the CPU's kernels, which --backend %s does not use; leave it out", o->isa, name);
  if (o->draft_model && *o->draft_model && o->draft_tokens >= 0)
    return err_set(e, ERR_UNSUPPORTED, "--draft-model: drafters do not run on --backend %s; leave it out (--draft guesses from the text)",
                   name);
  return 0;
}

static int option_backend(struct plan *p, const struct cygnet_options *o, struct err *e) {
  struct model_plan *m = &p->model;
  if (!(m->device = device_by_name(o->backend ? o->backend : "cpu")))
    return err_set(e, ERR_UNSUPPORTED, "--backend: expected cpu, ascend or npu, found \"%.40s\"", o->backend);
  if (o->device_id < 0) return err_set(e, ERR_BAD_INPUT, "--device-id: expected 0 or more, found %d", o->device_id);
  if (m->device->is_near && o->device_id > 0)
    return err_set(e, ERR_BAD_INPUT, "--device-id: --backend %s has no numbers, found %d", m->device->name, o->device_id);
  m->device_number = o->device_id;
  return m->device->is_near ? 0 : check_far(p, o, e);
}

static int look_at_device(struct plan *p, struct err *e) {
  const struct device_ops *device = p->model.device;
  return device->is_near || !device->look(p->model.device_number, &p->look, e) ? 0 : err_prefix(e, "--backend %s", device->name);
}

int plan_check(const struct cygnet_options *o, struct err *e) {
  struct plan p = {0};
  return option_backend(&p, o, e) || option_attn(o->attn, &p.model, e) || option_isa(o->isa, &p.model.isa, e) ? -1 : 0;
}

static int read_options(struct plan *p, const struct cygnet_options *o, const struct model_config *c, struct err *e) {
  struct model_plan *m = &p->model;
  struct sched_config *s = &p->sched;
  if (option_backend(p, o, e) || option_attn(o->attn, m, e) || look_at_device(p, e)) return -1;
  m->quiet = o->quiet != 0;
  m->shortlist = !o->disable_shortlist;
  if (option_isa(o->isa, &m->isa, e) || option_kv_type(o->kv_type, p, e) || option_quant(o->quant, p, e)) return -1;
  if (option_int("threads", o->threads, 0, 1024, &m->n_threads, e)) return -1;
  if (option_int("page-size", o->page_tokens, m->device->is_near ? PLAN_PAGE_TOKENS : PLAN_PAGE_TOKENS_FAR, 256, &m->page_tokens, e))
    return -1;
  if (m->page_tokens & (m->page_tokens - 1))
    return err_set(e, ERR_BAD_INPUT, "--page-size: expected a power of two up to 256, found %d", m->page_tokens);
  if (option_int("chunk", o->chunk_tokens, PLAN_CHUNK_TOKENS, PLAN_CHUNK_MOST, &s->chunk_tokens, e)) return -1;
  if (option_int("max-running-requests", o->max_running, PLAN_RUNNING, PLAN_RUNNING_MOST, &s->max_running, e)) return -1;
  if (option_int("max-queued-requests", o->max_queued, PLAN_QUEUED, PLAN_QUEUED_MOST, &s->max_queued, e)) return -1;
  if (option_int("step-ms", o->step_ms, 0, PLAN_STEP_MS_MOST, &p->step_ms, e)) return -1;
  if (option_int("ctx", o->ctx_tokens, c->ctx_tokens, c->ctx_tokens, &p->ctx_tokens, e))
    return err_prefix(e, "the model reaches %d tokens", c->ctx_tokens);
  if (!(o->mem_fraction >= 0 && o->mem_fraction <= 1))
    return err_set(e, ERR_BAD_INPUT, "--mem-fraction-static: expected more than 0 and up to 1, found %g", o->mem_fraction);
  if (!(o->swa_full_ratio >= 0 && o->swa_full_ratio <= 1))
    return err_set(e, ERR_BAD_INPUT, "--swa-full-tokens-ratio: expected more than 0 and up to 1, found %g", o->swa_full_ratio);
  return 0;
}

/* Encoders that are opened, and how wide a step must be that no picture is cut. */
static void read_media(struct plan *p, const struct cygnet_options *o, const struct model_config *c) {
  struct model_plan *m = &p->model;
  struct sched_config *s = &p->sched;
  m->media = !o->disable_media && (encoder_ops_for(c, MEDIA_IMAGE) || encoder_ops_for(c, MEDIA_AUDIO));
  s->step_tokens = s->chunk_tokens;
  if (!m->media) return;
  if (c->both_ways_full || c->both_ways_sliding) s->step_tokens = MAX(s->step_tokens, media_tokens_max(c, MEDIA_IMAGE));
  p->encoder_scratch_bytes = encoder_scratch_bytes(c, MEDIA_IMAGE) + encoder_scratch_bytes(c, MEDIA_AUDIO);
  p->media_page_rows = config_has_cross(c) ? m->page_tokens : PLAN_MEDIA_PAGE_ROWS;
}

/* ---- sizes -------------------------------------------------------------------------------------------------------------------- */

/* Bytes of one tensor in memory: n_matrices of the same size as the instruction set or the device wants them, in the type that they are
 * computed in. *beside_bytes: those of a shortlist. */
static size_t matrix_bytes(const struct plan *p, const struct kern *kern, const struct weight_entry *f, enum dtype type, int64_t n_matrices,
                           size_t *beside_bytes) {
  int64_t rows = 1, cols = f->shape[f->n_dims - 1];
  const struct device_ops *ops = p->model.device;
  for (int d = 0; d + 1 < f->n_dims; d++) rows *= f->shape[d];
  rows /= MAX(n_matrices, 1);
  if (rows < 1 || rows > INT32_MAX || cols < 1 || cols > INT32_MAX) return f->n_bytes;
  struct weight t = {.dtype = type, .from = type == f->dtype ? DTYPE_NONE : f->dtype, .rows = (int)rows, .cols = (int)cols};
  if (ops->weight_bytes) return (size_t)n_matrices * align_up(ops->weight_bytes(&p->device, &t), 64);
  if (!gemm_supports(kern, type, (int)cols, NULL)) return f->n_bytes;
  if (beside_bytes) *beside_bytes = shortlist_bytes(kern, &t);
  return (size_t)n_matrices * align_up(gemm_packed_bytes(kern, &t), 64);
}

/* A table of which only rows are looked up: read where it is in the file, or held by the device. */
static size_t table_bytes(const struct plan *p, const struct weight_entry *f, int64_t n, size_t *lookup_bytes) {
  int64_t cols = f->shape[f->n_dims - 1];
  struct weight t = {.dtype = f->dtype, .rows = (int)MIN(n / MAX(cols, 1), INT32_MAX), .cols = (int)MIN(cols, INT32_MAX)};
  if (p->model.device->table_bytes) return align_up(p->model.device->table_bytes(&p->device, &t), 64);
  *lookup_bytes += f->n_bytes;
  return 0;
}

/* Vectors are float32; a far device holds them in its own type, too. */
static size_t vector_bytes(const struct plan *p, int64_t n) {
  return align_up((size_t)n * sizeof(float), 64) + (p->model.device->is_near ? 0 : align_up((size_t)n * 2, 64));
}

/* The same for encoders; kernels of convolutions count as matrices, tables of positions are read from the file. */
static size_t encoders_in_memory(const struct plan *p, const struct kern *kern, const struct weights *w, size_t *lookup_bytes) {
  size_t n_bytes = 0;
  for (size_t i = 0; i < weights_count(w) && p->model.media; i++) {
    struct weight_entry f = weights_at(w, i);
    if (!f.gguf_name || f.dtype == DTYPE_NONE || !f.media) continue;
    int64_t n = 1;
    for (int d = 0; d < f.n_dims; d++) n *= f.shape[d];
    if (f.n_dims < 2 || strstr(f.gguf_name, "position_embd.weight")) {
      n_bytes += f.n_dims < 2 ? vector_bytes(p, n) : table_bytes(p, &f, n, lookup_bytes);
      continue;
    }
    struct weight_entry flat = f;
    flat.n_dims = 2;
    flat.shape[1] = n / MAX(f.shape[0], 1);
    size_t here = matrix_bytes(p, kern, &flat, weights_type(f.gguf_name, f.dtype, flat.shape[1], p->model.quant), 1, NULL);
    n_bytes += here ? here : f.n_bytes;
  }
  return n_bytes;
}

/* Matrices are packed, or quantised, or used where they are in the file; vectors are converted to float32. Tables of which only rows are looked up
 * take no memory of their own. */
static size_t weights_in_memory(const struct plan *p, const struct kern *kern, const struct model_config *c, const struct weights *w,
                                size_t *lookup_bytes, size_t *shortlist_bytes) {
  size_t n_bytes = 0;
  *lookup_bytes = *shortlist_bytes = 0;
  for (size_t i = 0; i < weights_count(w); i++) {
    struct weight_entry f = weights_at(w, i);
    const char *name = f.gguf_name;
    if (f.skipped || f.media || !name || f.dtype == DTYPE_NONE) continue;
    if (f.n_dims < 2) {
      n_bytes += vector_bytes(p, f.n_dims ? f.shape[0] : 1);
      continue;
    }
    if (!strcmp(name, "per_layer_token_embd.weight") || (c->family == FAMILY_MLLAMA && !strcmp(name, "token_embd.weight"))) {
      n_bytes += table_bytes(p, &f, f.shape[0] * f.shape[1], lookup_bytes);
      continue;
    }
    enum dtype type = weights_type(name, f.dtype, f.shape[f.n_dims - 1], p->model.quant);
    if (str_ends(str_c(name), "ffn_gate_inp.weight")) type = DTYPE_F32; /* routers */
    int64_t n = f.n_dims == 3 ? f.shape[0] : 1;                         /* experts; gate and up in one tensor are two each */
    if (str_ends(str_c(name), "gate_up_exps.weight")) n *= 2;
    bool is_head = p->model.shortlist && !strcmp(name, c->tied_head ? "token_embd.weight" : "output.weight");
    size_t here = matrix_bytes(p, kern, &f, type, n, is_head ? shortlist_bytes : NULL);
    n_bytes += here ? here : f.n_bytes;
  }
  return n_bytes + *shortlist_bytes;
}

/* What sizing works with. */
struct sizing {
  struct attn_layer layers[MODEL_LAYERS_MAX];
  int n_layers;
  const struct kern *kern;
  struct workers *workers; /* attention's scratch depends on their number */
  struct kv *probe;        /* for its formula of pages; holds nothing */
  int window_tokens;
  double ratio; /* of the sliding pool to the full one; 0 = by itself */
};

static struct attn_config attn_config_of(const struct plan *p, const struct sizing *z) {
  const struct model_plan *m = &p->model;
  return (struct attn_config){.layers = z->layers,
                              .n_layers = z->n_layers,
                              .kv_dtype = m->kv_dtype,
                              .page_tokens = m->page_tokens,
                              .n_pages = {m->n_pages[KV_FULL], m->n_pages[KV_SLIDING], m->n_pages[BATCH_CROSS]},
                              .rows_max = m->rows_max,
                              .seqs_max = m->seqs_max,
                              .tokens_max = m->tokens_max,
                              .window = z->window_tokens,
                              .kern = z->kern,
                              .workers = z->workers};
}

/* Of the sliding pool: two whole steps and a window, when a sequence can be longer than that; and all that can be alive at once. */
static void size_sliding(struct plan *p, const struct sizing *z, int64_t *least, int64_t *best) {
  int page = p->model.page_tokens, chunk = p->sched.step_tokens, running = p->sched.max_running;
  int one = kv_pages_for(z->probe, p->ctx_tokens, chunk).pages[KV_SLIDING],
      window = kv_pages_for(z->probe, p->ctx_tokens, 1).pages[KV_SLIDING];
  *least = *best = one;
  if (one == 0) return;
  int64_t two_steps = 2 * (int64_t)chunk + kv_window_tokens(z->probe) + 2 * page;
  *least = MAX(*least, (MIN(two_steps, p->ctx_tokens) + page - 1) / page);
  /* each window, the step's prompt rows, and one page for each place where those are cut */
  int64_t alive = (int64_t)running * (window + 1) + div_up(chunk, page);
  int64_t resume = p->has_prefix_cache ? MAX(running * PLAN_RESUME_EACH, PLAN_RESUME_ALONE - (running - 1)) : 0;
  *best = MAX(*least, alive + resume * window);
}

/* How many windows there is room for beside all that can be alive at once. */
static int count_resume(const struct plan *p, const struct sizing *z) {
  int window = kv_pages_for(z->probe, p->ctx_tokens, 1).pages[KV_SLIDING], running = p->sched.max_running;
  if (!p->has_prefix_cache || window == 0) return 0;
  int64_t spare = p->model.n_pages[KV_SLIDING] - (int64_t)running * (window + 1) - div_up(p->sched.step_tokens, p->model.page_tokens);
  return spare > 0 ? (int)(spare / window) : 0;
}

/* Pages of the store for pictures and sounds, i of PLAN_STEPS parts of the way from the least to the best. */
static int media_pages(const struct plan *p, const struct cygnet_options *o, const struct model_config *c, int i) {
  int page = p->media_page_rows;
  if (!p->model.media) return 0;
  if (o->media_bytes) return (int)MIN(MAX(o->media_bytes / p->media_row_bytes / (size_t)page, 1), PLAN_MEDIA_PAGES_MOST);
  int most = MAX(media_rows_max(c, MEDIA_IMAGE), media_rows_max(c, MEDIA_AUDIO));
  int ordinary = config_has_cross(c) ? most / MAX(c->vision.n_tiles, 1) : c->vision.soft_tokens ? MIN(c->vision.soft_tokens, most) : most;
  int64_t least = div_up(most, page), more = (int64_t)MAX(p->sched.max_running, PLAN_MEDIA_LEAST) * div_up(ordinary, page);
  if (!config_has_cross(c)) more = MAX(more, div_up(MIN(p->ctx_tokens, PLAN_MEDIA_ROWS), page));
  return (int)MIN(least + more * i / PLAN_STEPS, PLAN_MEDIA_PAGES_MOST);
}

/* A far device's rotations of all positions, in tables that layers of a kind share. */
static size_t rope_bytes(const struct plan *p, const struct sizing *z) {
  struct device_config dc = p->device;
  int head_dim[BATCH_KINDS] = {0};
  size_t n_bytes = 0;
  dc.positions_max = p->ctx_tokens;
  for (int l = 0; l < z->n_layers; l++) head_dim[z->layers[l].kind] = MAX(head_dim[z->layers[l].kind], z->layers[l].head_dim);
  for (int k = 0; k < KV_KINDS; k++)
    if (head_dim[k]) n_bytes += p->model.device->rope_bytes(&dc, head_dim[k]);
  return n_bytes;
}

/* Give both pools i of PLAN_STEPS parts of what lies between the least and the best, and sum up. */
static void lay_out(struct plan *p, const struct cygnet_options *o, const struct model_config *c, const struct sizing *z, int i) {
  struct model_plan *m = &p->model;
  int page = m->page_tokens, running = p->sched.max_running;
  struct kv_short one = kv_pages_for(z->probe, p->ctx_tokens, p->sched.step_tokens);
  int64_t least[KV_KINDS], best[KV_KINDS];
  least[KV_FULL] = best[KV_FULL] = one.pages[KV_FULL];
  size_sliding(p, z, &least[KV_SLIDING], &best[KV_SLIDING]);
  int64_t full_tokens = MAX((int64_t)running * MIN(p->ctx_tokens, PLAN_TOKENS_EACH), (int64_t)MIN(running, 2) * p->ctx_tokens);
  if (one.pages[KV_FULL]) best[KV_FULL] = MAX(least[KV_FULL], (full_tokens + page - 1) / page);
  for (int k = 0; k < KV_KINDS; k++) m->n_pages[k] = (int)MIN(least[k] + (best[k] - least[k]) * i / PLAN_STEPS, INT32_MAX / 4);
  if (z->ratio > 0) m->n_pages[KV_SLIDING] = (int)MAX(least[KV_SLIDING], (int64_t)(z->ratio * m->n_pages[KV_FULL]));

  p->media_pages = media_pages(p, o, c, i);
  if (config_has_cross(c)) m->n_pages[BATCH_CROSS] = p->media_pages;
  else m->soft_rows = m->media ? (p->media_pages + 1) * p->media_page_rows : 0;

  m->tokens_max = p->ctx_tokens;
  p->batch = (struct batch_shape){.rows_max = m->rows_max,
                                  .seqs_max = m->seqs_max,
                                  .out_max = m->out_max,
                                  .tokens_max = m->tokens_max,
                                  .page_tokens = page,
                                  .cross_pages_max = m->n_pages[BATCH_CROSS]};
  struct attn_config ac = attn_config_of(p, z);
  p->kv_bytes = m->attn->bytes(&ac);
  p->n_resume = count_resume(p, z);
  p->tree_bytes = p->has_prefix_cache ? radix_bytes(m->n_pages[KV_FULL], m->n_pages[KV_SLIDING], page) : 0;
  size_t tables = (size_t)running * (size_t)div_up(m->tokens_max, page) * sizeof(struct kv_page);
  for (int k = 0; k < KV_KINDS; k++) tables += pages_bytes(m->n_pages[k]) + ((size_t)m->n_pages[k] + 1) * sizeof(int);
  size_t recorded = p->has_graph ? graph_bytes(c, p->model.device, running) : 0;
  size_t sampling = (size_t)p->n_samplers * (size_t)c->vocab * PLAN_SAMPLE_BYTES;
  size_t host = batch_bytes(&p->batch) + tables + p->tree_bytes + recorded + sampling +
                (m->media ? banks_bytes(p->media_pages) + names_bytes(NAMES_MAX) : 0);
  p->scratch_bytes = model_scratch_bytes(c, m) + guess_bytes(p) + p->encoder_scratch_bytes;
  if (m->device->is_near) {
    p->scratch_bytes += host;
    return;
  }
  p->scratch_bytes += rope_bytes(p, z) + PLAN_FAR_BYTES;
  p->host_bytes = host + (size_t)m->out_max * (size_t)c->vocab * (sizeof(float) + 2); /* logits, as they come and as they are read */
}

static size_t needed(const struct plan *p) {
  size_t sum;
  if (size_add_overflows(p->weight_bytes, p->scratch_bytes, &sum) || size_add_overflows(sum, p->kv_bytes, &sum)) return SIZE_MAX;
  return sum;
}

static int does_not_fit(const struct plan *p, const struct cygnet_options *o, struct err *e) {
  char h[5][32];
  return err_set(e, ERR_NO_MEMORY,
                 "%smemory: needs %s at least (weights %s, scratch %s, keys and values of one sequence of %d tokens %s), may use %s%s; "
                 "lower --ctx, --chunk or --max-running-requests%s%s, or raise %s",
                 p->model.device->is_near ? "" : "device ", mem_human(needed(p), h[0]), mem_human(p->weight_bytes, h[1]),
                 mem_human(p->scratch_bytes, h[2]), p->ctx_tokens, mem_human(p->kv_bytes, h[3]), mem_human(p->budget_bytes, h[4]),
                 o->mem_bytes ? "" : " of what is free", p->model.device->is_near ? ", take --kv-type q8_0" : ", take --quant q8_0",
                 o->media_bytes   ? " or a smaller --media-mem"
                 : p->model.media ? " or --disable-media"
                                  : "",
                 o->mem_bytes ? "--mem" : "--mem-fraction-static");
}

/* A ratio that gives the sliding layers less than they need is refused, not raised in silence. */
static int check_ratio(const struct plan *p, const struct sizing *z, struct err *e) {
  const struct model_plan *m = &p->model;
  double full = m->n_pages[KV_FULL], least = m->n_pages[KV_SLIDING];
  if (z->ratio <= 0 || (int64_t)(z->ratio * full) >= m->n_pages[KV_SLIDING]) return 0;
  return err_set(
      e, ERR_BAD_INPUT,
      "--swa-full-tokens-ratio: %g of the full pool's %.0f tokens are %.0f, the sliding layers need %.0f; raise it to %.4f, lower "
      "--chunk, or leave it out",
      z->ratio, full * m->page_tokens, z->ratio * full * m->page_tokens, least * m->page_tokens, ceil(least / full * 1e4) / 1e4);
}

/* Do without the shortlist, which only makes answers faster. False: there is none. */
static bool leave_shortlist_out(struct plan *p) {
  if (!p->shortlist_bytes) return false;
  p->weight_bytes -= p->shortlist_bytes;
  p->shortlist_bytes = 0;
  p->model.shortlist = false;
  return p->shortlist_left_out = true;
}

/* The longest context that fits when the caller named none, then the largest pools. */
static int share_out(struct plan *p, const struct cygnet_options *o, const struct model_config *c, const struct sizing *z, struct err *e) {
  for (;;) {
    lay_out(p, o, c, z, 0);
    if (needed(p) <= p->budget_bytes) break;
    if (leave_shortlist_out(p)) continue;
    if (o->ctx_tokens || p->ctx_tokens / 2 < PLAN_CTX_LEAST) return does_not_fit(p, o, e);
    p->ctx_tokens /= 2;
    p->ctx_reduced = true;
  }
  int fits = 0, does_not = PLAN_STEPS + 1;
  while (does_not - fits > 1) {
    int i = (fits + does_not) / 2;
    lay_out(p, o, c, z, i);
    *(needed(p) <= p->budget_bytes ? &fits : &does_not) = i;
  }
  lay_out(p, o, c, z, fits);
  return check_ratio(p, z, e);
}

static int sizing_open(struct sizing *z, struct plan *p, const struct cygnet_options *o, const struct model_config *c, struct err *e) {
  memset(z, 0, sizeof *z);
  z->ratio = o->swa_full_ratio;
  z->window_tokens = c->window_tokens;
  z->n_layers = model_attn_layers(c, z->layers);
  if (p->model.drafter) z->n_layers += drafter_attn_layers(p->model.drafter, c, z->layers + z->n_layers);
  struct attn_config ac = attn_config_of(p, z); /* before any size is asked for: those take sound layers for granted */
  if (attn_check(&ac, e)) return -1;
  struct kv_config kc = {.page_tokens = p->model.page_tokens, .seqs_max = 1, .tokens_max = 1};
  for (int l = 0; l < z->n_layers; l++)
    if (z->layers[l].kind < KV_KINDS) kc.n_pages[z->layers[l].kind] = 1;
  if (kc.n_pages[KV_SLIDING]) kc.window_tokens = c->window_tokens;
  p->has_prefix_cache = !o->disable_prefix_cache && kc.n_pages[KV_FULL];
  p->has_graph = !o->disable_graph;
  if (z->ratio > 0 && (!kc.n_pages[KV_SLIDING] || !kc.n_pages[KV_FULL]))
    return err_set(e, ERR_BAD_INPUT, "--swa-full-tokens-ratio: the model has %s layers only", kc.n_pages[KV_FULL] ? "full" : "sliding");
  return (z->kern = kern_select(p->model.isa, e)) && (z->workers = workers_new(p->model.n_threads, e)) && (z->probe = kv_new(&kc, e)) ? 0
                                                                                                                                      : -1;
}

static void sizing_close(struct sizing *z) {
  kv_delete(z->probe);
  workers_delete(z->workers);
}

/* What all threads read and write alike lies on all memory nodes in turn; weights go where they are packed (cpu.c). */
static void place_memory(const struct workers *w, bool quiet) {
  mem_big_spread(workers_memory_nodes(w));
  if (workers_nodes(w) > 1)
    log_line(LOG_INFO, "engine", "memory at %d nodes: each thread is bound to one and works on the weights there", workers_nodes(w));
  if (!mem_huge_pages("/sys") && !quiet)
    log_line(LOG_WARN, "engine",
             "this system gives no huge pages: weights are read some percent slower; "
             "/sys/kernel/mm/transparent_hugepage/enabled should be \"madvise\" or \"always\"");
}

int plan_make(struct plan *p, const struct cygnet_options *o, const struct model_config *c, const struct weights *w, struct err *e) {
  return plan_make_beside(p, o, c, w, &(struct plan_beside){0}, e);
}

/* Logits for every running request, and for what more a step may ask of some. */
static int out_rows(const struct sched_config *s, const struct cygnet_options *o) {
  int more = (int)align_up((size_t)s->max_running + (size_t)MIN(MAX(o->draft_tokens, PLAN_OUT_MORE), PLAN_OUT_ROWS), PLAN_OUT_GROUP);
  return MIN(MAX(s->max_running, MIN(more, PLAN_OUT_ROWS)), s->rows_max);
}

int plan_make_beside(struct plan *p, const struct cygnet_options *o, const struct model_config *c, const struct weights *w,
                     const struct plan_beside *beside, struct err *e) {
  memset(p, 0, sizeof *p);
  if (read_options(p, o, c, e)) return -1;
  read_media(p, o, c);
  p->model.drafter = beside->drafter;
  struct model_plan *m = &p->model;
  struct sched_config *s = &p->sched;
  m->rows_max = s->rows_max = s->step_tokens + s->max_running;
  m->out_max = s->out_max = out_rows(s, o);
  m->seqs_max = s->max_running;
  m->tokens_max = p->ctx_tokens;
  s->ahead_tokens = PLAN_AHEAD_TOKENS;

  size_t free_bytes = m->device->is_near ? mem_available_bytes() : p->look.free_bytes;
  double fraction = o->mem_fraction > 0 ? o->mem_fraction : 0.8;
  p->budget_bytes = o->mem_bytes ? o->mem_bytes : free_bytes ? (size_t)((double)free_bytes * fraction) : SIZE_MAX;

  p->device = (struct device_config){.number = m->device_number,
                                     .look = &p->look,
                                     .rows_max = m->rows_max,
                                     .experts = {m->rows_max, c->hidden, c->expert_ffn, c->n_experts, c->n_experts_used}};
  struct sizing z;
  int failed = sizing_open(&z, p, o, c, e);
  if (!failed) {
    place_memory(z.workers, p->model.quiet);
    p->n_samplers = MIN(s->max_running, workers_count(z.workers));
    size_t ignored;
    p->drafter_bytes = beside->drafter
                           ? weights_in_memory(p, z.kern, beside->drafter, beside->drafter_weights, &ignored, &p->shortlist_bytes)
                           : 0;
    p->drafter_bytes -= p->shortlist_bytes; /* it has none */
    p->weight_bytes = weights_in_memory(p, z.kern, c, w, &p->lookup_bytes, &p->shortlist_bytes) + p->drafter_bytes;
    p->encoder_weight_bytes = encoders_in_memory(p, z.kern, beside->media_weights ? beside->media_weights : w, &p->lookup_bytes);
    p->weight_bytes += p->encoder_weight_bytes;
    for (int l = 0; l < z.n_layers; l++) {
      const struct attn_layer *y = &z.layers[l];
      if (y->owner == l) p->token_bytes[y->kind] += attn_slot_bytes(m->kv_dtype, y->n_kv, y->head_dim);
    }
    size_t number_bytes = m->device->is_near ? sizeof(float) : 2;
    if (m->media) p->media_row_bytes = config_has_cross(c) ? p->token_bytes[BATCH_CROSS] : (size_t)c->hidden * number_bytes;
    failed = share_out(p, o, c, &z, e);
  }
  p->device.look = NULL; /* plans are copied */
  sizing_close(&z);
  if (failed) return -1;
  if (p->shortlist_left_out)
    log_line(LOG_WARN, "engine",
             "no memory for the copy of the output matrix that makes the likeliest tokens quicker to find; --mem gives more");
  if (p->ctx_reduced)
    log_line(LOG_WARN, "engine", "context reduced to %d tokens of the model's %d: more does not fit; --ctx or --mem decide otherwise",
             p->ctx_tokens, c->ctx_tokens);
  if (!p->has_prefix_cache && !o->disable_prefix_cache)
    log_line(LOG_WARN, "engine", "prefix cache off: the model has no layer that sees everything, a prefix tree needs one");
  p->kv = (struct kv_config){.page_tokens = m->page_tokens,
                             .n_pages = {m->n_pages[KV_FULL], m->n_pages[KV_SLIDING]},
                             .window_tokens = m->n_pages[KV_SLIDING] ? c->window_tokens : 0,
                             .seqs_max = s->max_running,
                             .tokens_max = p->ctx_tokens};
  return 0;
}

/* ---- for people ------------------------------------------------------------------------------------------------------------------ */

void plan_print(const struct plan *p, const struct model_config *c, struct buf *out) {
  char h[3][32];
  const struct model_plan *m = &p->model;
  if (!m->device->is_near)
    buf_printf(out, "device             %d: %s; %s of %s free\n", m->device_number, p->look.text, mem_human(p->look.free_bytes, h[0]),
               mem_human(p->look.total_bytes, h[1]));
  long long full = (long long)m->n_pages[KV_FULL] * m->page_tokens, sliding = (long long)m->n_pages[KV_SLIDING] * m->page_tokens;
  buf_printf(out, "weights            %s", mem_human(p->weight_bytes, h[0]));
  if (p->drafter_bytes) buf_printf(out, ", %s of them the drafter's", mem_human(p->drafter_bytes, h[1]));
  if (p->shortlist_bytes) buf_printf(out, ", %s of them to find the likeliest tokens sooner", mem_human(p->shortlist_bytes, h[1]));
  if (p->model.quant) buf_printf(out, "  (plain numbers become %s)", dtype_info(p->model.quant)->name);
  buf_printf(out, "\n");
  buf_printf(out, "keys and values    %s  (", mem_human(p->kv_bytes, h[0]));
  if (full) buf_printf(out, "%lld tokens full at %s", full, mem_human(p->token_bytes[KV_FULL], h[0]));
  if (sliding) buf_printf(out, "%s%lld sliding at %s", full ? ", " : "", sliding, mem_human(p->token_bytes[KV_SLIDING], h[0]));
  buf_printf(out, "; %s)\n", p->kv_type);
  if (!p->has_prefix_cache) buf_printf(out, "prefix cache       off\n");
  else if (sliding) buf_printf(out, "prefix cache       up to %lld tokens, room to go on from %d places when all run\n", full, p->n_resume);
  else buf_printf(out, "prefix cache       up to %lld tokens\n", full);
  if (m->media) {
    size_t n_rows = (size_t)p->media_pages * (size_t)p->media_page_rows;
    buf_printf(out, "pictures, sound    %s of the %s for %zu rows", mem_human(n_rows * p->media_row_bytes, h[0]),
               config_has_cross(c) ? "keys and values" : "scratch", n_rows);
    buf_printf(out, "; encoders %s of the weights, %s of the scratch\n", mem_human(p->encoder_weight_bytes, h[1]),
               mem_human(p->encoder_scratch_bytes, h[2]));
  }
  buf_printf(out, "scratch            %s\n", mem_human(p->scratch_bytes, h[0]));
  buf_printf(out, "together           %s", mem_human(needed(p), h[0]));
  if (p->budget_bytes != SIZE_MAX) buf_printf(out, " of %s", mem_human(p->budget_bytes, h[1]));
  if (p->host_bytes) buf_printf(out, " of the device; %s of the host's", mem_human(p->host_bytes, h[2]));
  if (p->lookup_bytes)
    buf_printf(out, "\nand of the file     up to %s, rows of the embeddings: cached, the system takes them back when it needs to",
               mem_human(p->lookup_bytes, h[0]));
  buf_printf(out, "\ncontext            %d tokens", p->ctx_tokens);
  if (p->ctx_tokens < c->ctx_tokens) buf_printf(out, " of the model's %d", c->ctx_tokens);
  if (c->window_tokens) buf_printf(out, ", window %d", c->window_tokens);
  buf_printf(out, "\nrequests           %d running, %d waiting; %d prompt tokens a step\n", p->sched.max_running, p->sched.max_queued,
             p->sched.chunk_tokens);
}
