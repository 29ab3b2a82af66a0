/* cmd_inspect.c — what a model file is: architecture, layers, tensors by type, and how much memory it would take. Without a model, what the NPU
 * is. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "commands.h"
#include "engine/engine.h"

struct type_total {
  size_t n, bytes;
};

static void by_type(const struct weights *w, struct type_total totals[DTYPE_COUNT]) {
  for (size_t i = 0; i < weights_count(w); i++) {
    struct weight_entry t = weights_at(w, i);
    totals[t.dtype].n++;
    totals[t.dtype].bytes += t.n_bytes;
  }
}

static size_t parameters(const struct weights *w) {
  size_t sum = 0;
  for (size_t i = 0; i < weights_count(w); i++) {
    struct weight_entry t = weights_at(w, i);
    size_t n = 1;
    for (int d = 0; d < t.n_dims; d++) n *= (size_t)t.shape[d];
    sum += n;
  }
  return sum;
}

static bool same_layer(const struct layer_config *a, const struct layer_config *b) {
  return a->kind == b->kind && a->n_q == b->n_q && a->n_kv == b->n_kv && a->head_dim == b->head_dim && a->ffn == b->ffn &&
         a->v_from_k == b->v_from_k;
}

/* Do two layers belong to one line of the table: alike, and both with keys of their own or both with those of the same layer. */
static bool same_line(const struct model_config *c, int a, int b) {
  const struct layer_config *x = &c->layers[a], *y = &c->layers[b];
  bool own = x->kv_donor == a;
  return same_layer(x, y) && own == (y->kv_donor == b) && (own || x->kv_donor == y->kv_donor);
}

static const char *kind_name(enum layer_kind kind) { return kind == LAYER_SLIDING ? "sliding" : kind == LAYER_CROSS ? "cross" : "full"; }

/* Numbers of the layers like this one: "0-4 6-10". */
static void put_numbers(struct buf *b, const struct model_config *c, int like) {
  for (int l = like, last; l < c->n_layers; l = last + 1) {
    for (last = l; last + 1 < c->n_layers && same_line(c, like, last + 1);) last++;
    if (!same_line(c, like, l)) {
      last = l;
      continue;
    }
    buf_printf(b, " %d", l);
    if (last > l) buf_printf(b, "-%d", last);
  }
}

static void print_layers(const struct model_config *c) {
  int n_sliding = 0, n_cross = 0, n_own = 0;
  for (int l = 0; l < c->n_layers; l++) {
    n_sliding += c->layers[l].kind == LAYER_SLIDING;
    n_cross += c->layers[l].kind == LAYER_CROSS;
    n_own += c->layers[l].kv_donor == l;
  }
  printf("  layers          %d: ", c->n_layers);
  if (n_sliding) printf("%d sliding (window %d tokens), ", n_sliding, c->window_tokens);
  if (n_cross) printf("%d cross (to pictures), ", n_cross);
  printf("%d full", c->n_layers - n_sliding - n_cross);
  if (n_own < c->n_layers) printf("; %d have keys and values of their own", n_own);
  printf("\n");
  for (int l = 0; l < c->n_layers; l++) {
    bool first = true;
    for (int k = 0; k < l && first; k++) first = !same_line(c, k, l);
    if (!first) continue;
    const struct layer_config *y = &c->layers[l];
    struct buf b;
    buf_init(&b, 0);
    buf_printf(&b, "    %-8s %d query heads, %d key/value, size %d, ffn %d", kind_name(y->kind), y->n_q, y->n_kv, y->head_dim, y->ffn);
    if (y->kv_donor != l) buf_printf(&b, ", keys and values of layer %d", y->kv_donor);
    if (y->v_from_k) buf_printf(&b, ", values are the keys");
    buf_printf(&b, ":");
    put_numbers(&b, c, l);
    puts(buf_cstr(&b));
    buf_free(&b);
  }
  if (c->n_experts) printf("  experts         %d in each layer, %d for a token, ffn %d\n", c->n_experts, c->n_experts_used, c->expert_ffn);
  if (c->ple) printf("  per-layer input %d wide, looked up for %d tokens\n", c->ple, c->ple_vocab);
}

static const char *vision_name(enum vision_kind kind) {
  switch (kind) {
  case VISION_SIGLIP: return "SigLIP";
  case VISION_GEMMA4: return "Gemma 4 ViT";
  case VISION_GEMMA4_BLOCKS: return "no encoder";
  case VISION_MLLAMA: return "mllama ViT";
  case VISION_NONE: break;
  }
  return "none";
}

static const char *audio_name(enum audio_kind kind) {
  return kind == AUDIO_GEMMA4 ? "Gemma 4 conformer" : kind == AUDIO_GEMMA4_FRAMES ? "no encoder" : "none";
}

static void print_encoders(const struct model_config *c) {
  const struct vision_config *v = &c->vision;
  const struct audio_config *a = &c->audio;
  if (v->kind == VISION_GEMMA4_BLOCKS)
    printf("  pictures        %s: blocks of %d x %d pixels", vision_name(v->kind), v->patch * v->pool, v->patch * v->pool);
  else if (v->kind != VISION_NONE) {
    printf("  pictures        %s: %d layers", vision_name(v->kind), v->n_layers);
    if (v->n_global_layers) printf(" and %d over all tiles", v->n_global_layers);
    printf(", hidden %d, ffn %d, patches of %d x %d pixels", v->hidden, v->ffn, v->patch, v->patch);
    if (v->kind == VISION_SIGLIP) printf(", pictures of %d x %d", v->image, v->image);
    if (v->kind == VISION_MLLAMA) printf(", up to %d tiles of %d x %d", v->n_tiles, v->image, v->image);
  }
  if (v->soft_tokens) printf("; %s%d tokens each", v->kind == VISION_SIGLIP ? "" : "up to ", v->soft_tokens);
  if (v->kind != VISION_NONE) printf("\n");
  if (a->kind == AUDIO_GEMMA4)
    printf("  sound           %s: %d layers, hidden %d, %d mel bands\n", audio_name(a->kind), a->n_layers, a->hidden, a->n_mel);
  if (a->kind == AUDIO_GEMMA4_FRAMES) printf("  sound           %s: frames of %d samples\n", audio_name(a->kind), a->hidden);
}

static void print_text(const struct model_config *c, const struct weights *w, const struct plan *p, bool verbose) {
  struct type_total totals[DTYPE_COUNT] = {0};
  by_type(w, totals);
  char human[32];
  printf("%s\n", c->name);
  printf("  architecture    %s, %s\n", c->architecture, weights_format(w));
  double n = (double)parameters(w);
  bool small = n < 1e8;
  printf("  parameters      %.3f %s in %zu tensors, %s\n", n / (small ? 1e6 : 1e9), small ? "million" : "billion", weights_count(w),
         mem_human(weights_total_bytes(w), human));
  printf("  hidden          %d, vocabulary %d, context %d tokens\n", c->hidden, c->vocab, c->ctx_tokens);
  print_layers(c);
  print_encoders(c);
  printf("  tensors\n");
  for (int t = 1; t < DTYPE_COUNT; t++)
    if (totals[t].n) printf("    %-8s %5zu   %s\n", dtype_info((enum dtype)t)->name, totals[t].n, mem_human(totals[t].bytes, human));
  struct buf b;
  buf_init(&b, 0);
  plan_print(p, c, &b);
  printf("  memory for context %d\n%s", p->ctx_tokens, buf_cstr(&b));
  buf_free(&b);
  if (!verbose) return;
  for (size_t i = 0; i < weights_count(w); i++) {
    struct weight_entry t = weights_at(w, i);
    printf("    %-48s %-7s [", t.name, dtype_info(t.dtype)->name);
    for (int d = 0; d < t.n_dims; d++) printf("%s%lld", d ? ", " : "", (long long)t.shape[d]);
    printf("]\n");
  }
}

static json_t *json_device(int number, const struct device_look *l) {
  return json_pack("{s:i, s:s, s:s, s:I, s:I}", "number", number, "description", l->text, "type", dtype_info(l->type)->name, "free_bytes",
                   (json_int_t)l->free_bytes, "total_bytes", (json_int_t)l->total_bytes);
}

static void print_object(json_t *o) {
  char *text = json_dumps(o, JSON_INDENT(2));
  puts(text);
  free(text);
  json_decref(o);
}

/* The device alone, when no model is given. */
static int inspect_device(const struct options *o, const struct device_ops *ops) {
  struct device_look l;
  struct err e = {0};
  char h[2][32];
  if (ops->look((int)o->device_id, &l, &e)) {
    err_prefix(&e, "--backend %s", ops->name);
    return command_fail(&e);
  }
  if (o->json) print_object(json_device((int)o->device_id, &l));
  else
    printf("%s %d\n  %s\n  memory          %s of %s free\n", ops->name, (int)o->device_id, l.text, mem_human(l.free_bytes, h[0]),
           mem_human(l.total_bytes, h[1]));
  return 0;
}

static void print_json(const struct model_config *c, const struct weights *w, const struct plan *p) {
  struct type_total totals[DTYPE_COUNT] = {0};
  by_type(w, totals);
  json_t *types = json_object(), *tensors = json_array();
  for (int t = 1; t < DTYPE_COUNT; t++)
    if (totals[t].n)
      json_object_set_new(types, dtype_info((enum dtype)t)->name,
                          json_pack("{s:I, s:I}", "tensors", (json_int_t)totals[t].n, "bytes", (json_int_t)totals[t].bytes));
  for (size_t i = 0; i < weights_count(w); i++) {
    struct weight_entry t = weights_at(w, i);
    json_t *dims = json_array();
    for (int d = 0; d < t.n_dims; d++) json_array_append_new(dims, json_integer(t.shape[d]));
    json_array_append_new(tensors, json_pack("{s:s, s:s, s:o, s:I}", "name", t.name, "type", dtype_info(t.dtype)->name, "shape", dims,
                                             "bytes", (json_int_t)t.n_bytes));
  }
  json_t *layers = json_array();
  for (int l = 0; l < c->n_layers; l++) {
    const struct layer_config *y = &c->layers[l];
    json_array_append_new(layers,
                          json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:b}", "kind", kind_name(y->kind), "n_q", y->n_q, "n_kv", y->n_kv,
                                    "head_dim", y->head_dim, "ffn", y->ffn, "kv_donor", y->kv_donor, "v_from_k", (int)y->v_from_k));
  }
  json_t *o = json_pack("{s:s, s:s, s:s, s:I, s:I, s:i, s:i, s:i, s:i, s:i, s:o, s:o, s:o, s:{s:i, s:I, s:I, s:I, s:I, s:I, s:i, s:i}}",
                        "name", c->name, "architecture", c->architecture, "format", weights_format(w), "parameters",
                        (json_int_t)parameters(w), "bytes", (json_int_t)weights_total_bytes(w), "n_layers", c->n_layers, "hidden",
                        c->hidden, "vocab", c->vocab, "context_tokens", c->ctx_tokens, "window_tokens", c->window_tokens, "types", types,
                        "layers", layers, "tensors", tensors, "memory", "ctx_tokens", p->ctx_tokens, "weight_bytes",
                        (json_int_t)p->weight_bytes, "lookup_bytes", (json_int_t)p->lookup_bytes, "kv_bytes", (json_int_t)p->kv_bytes,
                        "scratch_bytes", (json_int_t)p->scratch_bytes, "budget_bytes", (json_int_t)p->budget_bytes, "pages_full",
                        p->kv.n_pages[KV_FULL], "pages_sliding", p->kv.n_pages[KV_SLIDING]);
  json_object_set_new(o, "experts", json_pack("{s:i, s:i, s:i}", "n", c->n_experts, "n_used", c->n_experts_used, "ffn", c->expert_ffn));
  json_object_set_new(o, "per_layer_input", json_pack("{s:i, s:i}", "width", c->ple, "vocab", c->ple_vocab));
  json_object_set_new(o, "vision",
                      json_pack("{s:s, s:i, s:i, s:i, s:i}", "kind", vision_name(c->vision.kind), "n_layers", c->vision.n_layers, "hidden",
                                c->vision.hidden, "patch", c->vision.patch, "soft_tokens", c->vision.soft_tokens));
  json_object_set_new(
      o, "audio",
      json_pack("{s:s, s:i, s:i}", "kind", audio_name(c->audio.kind), "n_layers", c->audio.n_layers, "hidden", c->audio.hidden));
  json_t *memory = json_object_get(o, "memory");
  if (p->look.text[0]) json_object_set_new(o, "device", json_device(p->model.device_number, &p->look));
  json_object_set_new(memory, "host_bytes", json_integer((json_int_t)p->host_bytes));
  json_object_set_new(memory, "encoder_weight_bytes", json_integer((json_int_t)p->encoder_weight_bytes));
  json_object_set_new(memory, "encoder_scratch_bytes", json_integer((json_int_t)p->encoder_scratch_bytes));
  json_object_set_new(memory, "media_rows", json_integer((json_int_t)p->media_pages * p->media_page_rows));
  print_object(o);
}

int cmd_inspect(const struct options *o) {
  struct err e = {0};
  struct cygnet_options eo;
  options_engine(o, &eo);
  const struct device_ops *device = device_by_name(eo.backend);
  if (!o->model && device->look) return inspect_device(o, device);
  if (!o->model) {
    err_set(&e, ERR_BAD_INPUT, "no model given: cygnet inspect PATH, a GGUF file or a folder with config.json and safetensors");
    return command_fail(&e);
  }
  struct model_config *c = xcalloc(1, sizeof *c);
  int status = 0;
  struct weights *w = weights_open(o->model, c, &e), *projector = NULL;
  struct plan p = {0};
  bool bad = !w;
  if (!bad && eo.mmproj && !eo.disable_media) bad = !(projector = weights_open_mmproj(eo.mmproj, c, &e));
  if (bad || plan_make_beside(&p, &eo, c, w, &(struct plan_beside){.media_weights = projector}, &e)) status = command_fail(&e);
  else if (o->json) print_json(c, w, &p);
  else print_text(c, w, &p, o->verbose);
  weights_close(projector);
  weights_close(w);
  free(c);
  return status;
}
