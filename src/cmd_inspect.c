/* cmd_inspect.c — what a model file is: architecture, layers, tensors by type, and how much memory it would take. */
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

static void print_text(const struct model_config *c, const struct weights *w, const struct plan *p, bool verbose) {
  struct type_total totals[DTYPE_COUNT] = {0};
  by_type(w, totals);
  char human[32];
  int n_sliding = 0;
  for (int l = 0; l < c->n_layers; l++) n_sliding += c->layers[l].kind == LAYER_SLIDING;
  printf("%s\n", c->name);
  printf("  architecture    %s, %s\n", c->architecture, weights_format(w));
  printf("  parameters      %.3f billion in %zu tensors, %s\n", (double)parameters(w) / 1e9, weights_count(w),
         mem_human(weights_total_bytes(w), human));
  printf("  layers          %d: %d sliding (window %d tokens), %d full\n", c->n_layers, n_sliding, c->window_tokens,
         c->n_layers - n_sliding);
  printf("  hidden          %d, vocabulary %d, context %d tokens\n", c->hidden, c->vocab, c->ctx_tokens);
  const struct layer_config *y = &c->layers[0];
  printf("  first layer     %d query heads, %d key/value heads, head size %d, ffn %d\n", y->n_q, y->n_kv, y->head_dim, y->ffn);
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
    json_array_append_new(layers, json_pack("{s:s, s:i, s:i, s:i, s:i}", "kind", y->kind == LAYER_SLIDING ? "sliding" : "full", "n_q",
                                            y->n_q, "n_kv", y->n_kv, "head_dim", y->head_dim, "ffn", y->ffn));
  }
  json_t *o = json_pack("{s:s, s:s, s:s, s:I, s:I, s:i, s:i, s:i, s:i, s:i, s:o, s:o, s:o, s:{s:i, s:I, s:I, s:I, s:I, s:I, s:i, s:i}}",
                        "name", c->name, "architecture", c->architecture, "format", weights_format(w), "parameters",
                        (json_int_t)parameters(w), "bytes", (json_int_t)weights_total_bytes(w), "n_layers", c->n_layers, "hidden",
                        c->hidden, "vocab", c->vocab, "context_tokens", c->ctx_tokens, "window_tokens", c->window_tokens, "types", types,
                        "layers", layers, "tensors", tensors, "memory", "ctx_tokens", p->ctx_tokens, "weight_bytes",
                        (json_int_t)p->weight_bytes, "lookup_bytes", (json_int_t)p->lookup_bytes, "kv_bytes", (json_int_t)p->kv_bytes,
                        "scratch_bytes", (json_int_t)p->scratch_bytes, "budget_bytes", (json_int_t)p->budget_bytes, "pages_full",
                        p->kv.n_pages[KV_FULL], "pages_sliding", p->kv.n_pages[KV_SLIDING]);
  char *text = json_dumps(o, JSON_INDENT(2));
  puts(text);
  free(text);
  json_decref(o);
}

int cmd_inspect(const struct options *o) {
  struct err e = {0};
  if (!o->model) {
    err_set(&e, ERR_BAD_INPUT, "no model given: cygnet inspect PATH, a GGUF file or a folder with config.json and safetensors");
    return command_fail(&e);
  }
  struct model_config *c = xcalloc(1, sizeof *c);
  int status = 0;
  struct weights *w = weights_open(o->model, c, &e);
  struct cygnet_options eo;
  options_engine(o, &eo);
  struct plan p = {0};
  if (!w || plan_make(&p, &eo, c, w, &e)) status = command_fail(&e);
  else if (o->json) print_json(c, w, &p);
  else print_text(c, w, &p, o->verbose);
  weights_close(w);
  free(c);
  return status;
}
