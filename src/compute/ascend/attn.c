/* attn.c — attention on the NPU: open, storage, prepare, and the way to the routes. The rules are in attn.h. */
#include "compute/ascend/attn.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"

enum {
  CAUSAL_SIDE = 2048,
  TABLE_ALIGN = 8,         /* int32s: what begins at a multiple of it is aligned as tensors must be */
  CROSS_WIDTH_MOST = 1024, /* pages of a bank in a line of tables; larger ones are sent with the run */
  WASTE_MORE = 32,         /* waste slots beside one for each sequence */
  LINES_MORE = 32,         /* single rows with lines beside one for each sequence: rows between pictures */
  TND_ENTRIES_MOST = 4096,
};

/* ---- sizes ---------------------------------------------------------------------------------------------------------------------- */

static int waste_slots(const struct attn_config *c) { return MIN(c->rows_max, c->seqs_max + WASTE_MORE); }

int attn_pool_pages(const struct attn_config *c, int kind) { return c->n_pages[kind] + 1 + div_up(waste_slots(c), c->page_tokens); }

static int aligned(int n) { return (int)align_up((size_t)n, TABLE_ALIGN); }

/* Line lengths and counts of a kind, from the configuration alone. */
static void kind_sizes(const struct attn_config *c, int kind, struct attn_kind *k) {
  const int P = c->page_tokens, text_pages = div_up(c->tokens_max, P);
  k->n_pages = c->n_pages[kind];
  k->lines_max = MIN(c->rows_max, c->seqs_max + LINES_MORE);
  int widest = text_pages; /* of any run */
  if (kind == BATCH_CROSS) {
    widest = MAX(k->n_pages, 1);
    k->width = aligned(MIN(widest, CROSS_WIDTH_MOST));
  } else if (kind == KV_SLIDING && c->window > 0) {
    k->window = MIN(c->window, c->tokens_max);
    k->keys_wide = aligned(k->window);
    k->width = aligned(MIN(text_pages, k->window / P + 2));
    widest = MIN(text_pages, (k->window + c->rows_max) / P + 2);
  } else {
    k->width = aligned(text_pages);
  }
  /* A table for each sequence's runs together, and the one of tnd. What finds no place is sent when it is needed. */
  k->more_max = 2 * (size_t)(MIN(c->seqs_max, c->rows_max) + TABLE_ALIGN) * (size_t)aligned(MIN(widest, text_pages + CROSS_WIDTH_MOST));
}

static bool store_bytes(const struct attn_config *c, const struct attn_layer *l, size_t *n_bytes) {
  size_t slots;
  return !size_mul_overflows((size_t)c->n_pages[l->kind] + 1 + (size_t)div_up(waste_slots(c), c->page_tokens), (size_t)c->page_tokens,
                             &slots) &&
         !size_mul_overflows(slots, 2 * (size_t)l->n_kv * (size_t)l->head_dim, n_bytes);
}

static size_t kind_bytes(const struct attn_config *c, const struct attn_kind *k) {
  size_t lines = (size_t)k->lines_max, line = (size_t)k->width * (sizeof(int32_t) + (k->has_masked ? (size_t)c->page_tokens : 0));
  if (k->has_window) line += (size_t)k->keys_wide * sizeof(int32_t);
  return lines * line + k->more_max * sizeof(int32_t) + (size_t)c->rows_max * (sizeof(int32_t) + 2 * sizeof(float));
}

/* What is known before a device is opened: chips of fp16 have no fused attention, and no chip's takes heads of other widths. */
static bool is_composed(const struct attn_config *c, const struct attn_layer *l) {
  return c->kv_dtype == DTYPE_F16 || l->head_dim % 16 != 0 || l->head_dim > 512;
}

static size_t ascend_bytes(const struct attn_config *c) {
  struct attn_kind kinds[BATCH_KINDS] = {0};
  size_t total = (size_t)CAUSAL_SIDE * CAUSAL_SIDE + (size_t)c->tokens_max * sizeof(float), store, scratch = 0;
  for (int i = 0; i < c->n_layers; i++) {
    const struct attn_layer *l = &c->layers[i];
    kinds[l->kind].used = true;
    if (is_composed(c, l)) scratch = MAX(scratch, attn_composed_most(c, l));
    if (l->owner != i) continue;
    if (!store_bytes(c, l, &store) || size_add_overflows(total, store, &total) || size_add_overflows(total, store, &total)) return SIZE_MAX;
  }
  if (size_add_overflows(total, scratch, &total)) return SIZE_MAX;
  for (int kind = 0; kind < BATCH_KINDS; kind++) {
    struct attn_kind *k = &kinds[kind];
    if (!k->used) continue;
    k->has_masked = k->has_window = kind == KV_SLIDING && c->window > 0;
    kind_sizes(c, kind, k);
    if (size_add_overflows(total, kind_bytes(c, k), &total)) return SIZE_MAX;
  }
  return total;
}

/* ---- open and close --------------------------------------------------------------------------------------------------------------- */

static void ascend_close(struct attn *a) {
  if (!a) return;
  struct ascend *d = a->d;
  for (int i = 0; a->stores && i < a->c.n_layers; i++) {
    ascend_free(d, a->stores[i].k);
    ascend_free(d, a->stores[i].v);
  }
  for (int kind = 0; kind < BATCH_KINDS; kind++) {
    struct attn_kind *k = &a->kinds[kind];
    void *const device[] = {k->slots, k->tables, k->more, k->keys, k->mask, k->lo, k->hi};
    for (size_t i = 0; i < ARRAY_LEN(device); i++) ascend_free(d, device[i]);
    for (int set = 0; set < 2; set++) {
      struct attn_staging *s = &k->staging[set];
      void *const host[] = {s->slots, s->tables, s->more, s->keys, s->lo, s->hi, s->mask};
      for (size_t i = 0; i < ARRAY_LEN(host); i++) ascend_free_host(d, host[i]);
    }
    free(k->runs);
    free(k->slot_of);
    free(k->paged);
    free(k->dense);
    free(k->tnd_rows);
    free(k->tnd_keys);
  }
  ascend_free(d, a->causal);
  ascend_free(d, a->count);
  ascend_free(d, a->scratch);
  for (int i = 0; i < a->n_shapes; i++) free(a->shapes[i].plan.calls);
  free(a->ends);
  free(a->shapes);
  free(a->stores);
  free(a->shape_of);
  free(a->layers);
  free(a);
}

static int shape_for(struct attn *a, const struct attn_layer *l) {
  int at = 0;
  for (; at < a->n_shapes; at++) {
    const struct attn_shape *s = &a->shapes[at];
    if (s->kind == l->kind && s->n_kv == l->n_kv && s->n_q == l->n_q && s->head_dim == l->head_dim) return at;
  }
  struct attn_shape *s = &a->shapes[a->n_shapes++];
  *s = (struct attn_shape){.kind = l->kind, .n_q = l->n_q, .n_kv = l->n_kv, .head_dim = l->head_dim};
  s->plan.calls = xcalloc((size_t)a->c.rows_max, sizeof *s->plan.calls);
  return at;
}

static struct attn_need need_of(const struct attn *a, const struct attn_shape *s, bool many_rows) {
  return (struct attn_need){.head_dim = s->head_dim,
                            .n_q = s->n_q,
                            .n_kv = s->n_kv,
                            .many_rows = many_rows,
                            .window = s->kind == KV_SLIDING,
                            .cross = s->kind == BATCH_CROSS,
                            .page_tokens = a->c.page_tokens,
                            .window_tokens = a->kinds[s->kind].window};
}

static const char *const kind_names[BATCH_KINDS] = {"full", "sliding", "cross-attention"};

/* The routes for one need, in order; each that stays out has its reason in why. */
static int choose(const struct attn *a, const struct attn_need *n, const struct attn_selftest *t, enum attn_route *order, char *why,
                  size_t why_bytes) {
  int n_chosen = 0;
  size_t at = 0;
  why[0] = 0;
  for (const enum attn_route *r = attn_route_order(n); *r != ROUTE_NONE; r++) {
    const char *reason = NULL;
    if (!(a->allowed & 1u << *r)) reason = "it is switched off by CYGNET_ASCEND_ROUTES";
    else if (attn_route_can(*r, &a->d->profile, n, &reason) && t && !t->right[*r]) reason = "its self-test failed";
    else if (attn_route_can(*r, &a->d->profile, n, &reason)) order[n_chosen++] = *r, reason = NULL;
    if (reason && at < why_bytes) {
      int more = snprintf(why + at, why_bytes - at, "%s%s: %s", at ? "; " : "", attn_route_name(*r), reason);
      at += more > 0 ? (size_t)more : 0;
    }
  }
  order[n_chosen] = ROUTE_NONE;
  return n_chosen;
}

static int choose_routes(struct attn *a, struct err *e) {
  struct attn_need needs[2];
  struct attn_selftest tests[2];
  char why[300];
  for (int i = 0; i < a->n_shapes; i++) {
    struct attn_shape *s = &a->shapes[i];
    struct attn_kind *k = &a->kinds[s->kind];
    needs[0] = need_of(a, s, false), needs[1] = need_of(a, s, true);
    if (!a->tests && attn_ascend_selftest(a->d, needs, 2, a->allowed, tests, e)) return -1;
    for (int many = 0; many < 2; many++) {
      if (choose(a, &needs[many], a->tests ? NULL : &tests[many], many ? s->many : s->one, why, sizeof why)) continue;
      if (a->tests && !many) continue; /* a route for many rows alone */
      if (a->tests && s->one[0] != ROUTE_NONE) continue;
      return err_set(e, ERR_UNSUPPORTED,
                     "attention: %s layers with heads of %d (%d over %d), pages of %d tokens, %s: there is no way on this NPU (%s)",
                     kind_names[s->kind], s->head_dim, s->n_q, s->n_kv, a->c.page_tokens, many ? "many rows" : "one row each", why);
    }
    for (int r = 0; s->one[r] != ROUTE_NONE; r++) {
      k->has_masked |= s->one[r] == ROUTE_MASKED;
      k->has_window |= s->one[r] == ROUTE_WINDOW;
    }
    k->has_tnd |= s->many[0] == ROUTE_TND;
    for (int many = 0; many < 2; many++) {
      for (const enum attn_route *r = many ? s->many : s->one; *r != ROUTE_NONE; r++) a->has_sparse |= *r == ROUTE_TND || *r == ROUTE_BSND;
    }
    needs[0].recorded = true;
    const char *reason;
    if (!a->no_records[0] && !attn_route_can(s->one[0], &a->d->profile, &needs[0], &reason)) {
      snprintf(a->no_records, sizeof a->no_records, "attention of %s layers goes by the route \"%s\": %s", kind_names[s->kind],
               attn_route_name(s->one[0]), reason);
    }
  }
  return 0;
}

static void *take(struct attn *a, size_t n_bytes, const char *what, struct err *e) {
  void *p = ascend_alloc(a->d, MAX(n_bytes, 64), what, e);
  if (!p) return NULL;
  a->n_bytes += n_bytes;
  if (!ascend_check(a->d, a->d->acl.aclrtMemsetAsync(p, MAX(n_bytes, 64), 0, MAX(n_bytes, 64), a->d->stream), "aclrtMemsetAsync of %s",
                    what)) {
    ascend_free(a->d, p);
    return NULL;
  }
  return p;
}

static int open_staging(struct attn *a, struct attn_kind *k, struct attn_staging *s, struct err *e) {
  struct ascend *d = a->d;
  const size_t rows = (size_t)a->c.rows_max, lines = (size_t)k->lines_max;
  if (!(s->slots = ascend_alloc_host(d, rows * sizeof *s->slots, "slots of keys", e)) ||
      !(s->tables = ascend_alloc_host(d, lines * (size_t)k->width * sizeof *s->tables, "tables of pages", e)) ||
      !(s->more = ascend_alloc_host(d, k->more_max * sizeof *s->more, "tables of pages", e)) ||
      !(s->lo = ascend_alloc_host(d, rows * sizeof *s->lo, "intervals", e)) ||
      !(s->hi = ascend_alloc_host(d, rows * sizeof *s->hi, "intervals", e)))
    return -1;
  if (k->has_masked && !(s->mask = ascend_alloc_host(d, lines * (size_t)a->c.page_tokens, "masks", e))) return -1;
  if (k->has_window && !(s->keys = ascend_alloc_host(d, lines * (size_t)k->keys_wide * sizeof *s->keys, "slots of windows", e))) return -1;
  return 0;
}

static int open_kind(struct attn *a, int kind, struct err *e) {
  struct attn_kind *k = &a->kinds[kind];
  const size_t rows = (size_t)a->c.rows_max, lines = (size_t)k->lines_max, P = (size_t)a->c.page_tokens;
  k->runs = xcalloc(rows, sizeof *k->runs);
  k->slot_of = xcalloc(rows, sizeof *k->slot_of);
  k->paged = xcalloc(lines, sizeof *k->paged);
  k->dense = xcalloc(lines, sizeof *k->dense);
  k->tnd_rows = xcalloc(rows, sizeof *k->tnd_rows);
  k->tnd_keys = xcalloc(rows, sizeof *k->tnd_keys);
  if (!(k->slots = take(a, rows * sizeof *k->slots, "slots of keys", e)) ||
      !(k->tables = take(a, lines * (size_t)k->width * sizeof *k->tables, "tables of pages", e)) ||
      !(k->more = take(a, k->more_max * sizeof *k->more, "tables of pages", e)) ||
      !(k->lo = take(a, rows * sizeof *k->lo, "intervals", e)) || !(k->hi = take(a, rows * sizeof *k->hi, "intervals", e)))
    return -1;
  if (k->has_masked && !(k->mask = take(a, lines * (size_t)k->width * P, "masks", e))) return -1;
  if (k->has_window && !(k->keys = take(a, lines * (size_t)k->keys_wide * sizeof *k->keys, "slots of windows", e))) return -1;
  return open_staging(a, k, &k->staging[0], e) || open_staging(a, k, &k->staging[1], e) ? -1 : 0;
}

static int open_store(struct attn *a, int layer, struct err *e) {
  const struct attn_layer *l = &a->layers[layer];
  struct attn_store *s = &a->stores[layer];
  size_t n_bytes;
  if (!store_bytes(&a->c, l, &n_bytes) || (int64_t)a->c.n_pages[l->kind] + a->c.rows_max > INT32_MAX / a->c.page_tokens - 2) {
    return err_set(e, ERR_TOO_LARGE, "attention: the keys of layer %d do not fit into memory: %d pages of %d tokens", layer,
                   a->c.n_pages[l->kind], a->c.page_tokens);
  }
  return (s->k = take(a, n_bytes, "keys", e)) && (s->v = take(a, n_bytes, "values", e)) ? 0 : -1;
}

/* What never changes: the mask of FIA's sparse modes, and 0, 1, 2, ... */
static int open_constants(struct attn *a, struct err *e) {
  const size_t n = (size_t)CAUSAL_SIDE * CAUSAL_SIDE, n_count = (size_t)a->c.tokens_max;
  struct ascend *d = a->d;
  int rc = -1;
  uint8_t *mask = a->has_sparse ? mem_try_alloc(n) : NULL;
  float *count = mem_try_alloc(n_count * sizeof *count);
  if ((a->has_sparse && !mask) || !count) {
    err_set(e, ERR_NO_MEMORY, "attention: no memory for a mask");
    goto done;
  }
  for (size_t i = 0; i < CAUSAL_SIDE && a->has_sparse; i++) {
    for (size_t j = 0; j < CAUSAL_SIDE; j++) mask[i * CAUSAL_SIDE + j] = j > i;
  }
  for (size_t i = 0; i < n_count; i++) count[i] = (float)i;
  if (a->has_sparse && !(a->causal = take(a, n, "attention's mask", e))) goto done;
  if (!(a->count = take(a, n_count * sizeof *count, "attention's counts", e))) goto done;
  if (!ascend_wait(d)) goto done; /* zeroed: what follows is not in the stream's order */
  if (a->causal && !ascend_check(d, d->acl.aclrtMemcpy(a->causal, n, mask, n, NPU_HOST_TO_DEVICE), "aclrtMemcpy of attention's mask"))
    goto done;
  rc = ascend_check(d, d->acl.aclrtMemcpy(a->count, n_count * sizeof *count, count, n_count * sizeof *count, NPU_HOST_TO_DEVICE),
                    "aclrtMemcpy of attention's counts")
           ? 0
           : -1;
done:
  free(mask);
  free(count);
  return rc;
}

/* A context that grows must not leave one smaller piece of temporary memory after the other behind. */
static int open_scratch(struct attn *a, struct err *e) {
  for (int i = 0; i < a->c.n_layers && !a->tests; i++)
    if (is_composed(&a->c, &a->layers[i])) a->scratch_bytes = MAX(a->scratch_bytes, attn_composed_most(&a->c, &a->layers[i]));
  if (a->scratch_bytes == 0) return 0;
  a->n_bytes += a->scratch_bytes;
  return (a->scratch = ascend_alloc(a->d, a->scratch_bytes, "attention's scores", e)) ? 0 : -1;
}

static void log_choice(void *ctx, const char *text) {
  (void)ctx;
  log_line(LOG_INFO, "attention", "%s", text);
}

static struct attn *open_with(const struct attn_config *c, unsigned allowed, bool tests, struct err *e) {
  if (attn_check(c, e)) return NULL;
  if (!c->device) {
    err_set(e, ERR_UNSUPPORTED, "attention: the route to an NPU was asked for, but the device is not one");
    return NULL;
  }
  struct attn *a = xcalloc(1, sizeof *a);
  struct ascend *d = a->d = ascend_of(c->device);
  a->c = *c;
  a->allowed = allowed, a->tests = tests;
  const size_t n = (size_t)c->n_layers;
  a->layers = xcalloc(n, sizeof *a->layers);
  a->shape_of = xcalloc(n, sizeof *a->shape_of);
  a->shapes = xcalloc(n, sizeof *a->shapes);
  a->stores = xcalloc(n, sizeof *a->stores);
  a->ends = xcalloc((size_t)c->rows_max, sizeof *a->ends);
  for (int i = 0; i < c->rows_max; i++) a->ends[i] = i + 1;
  if (c->kv_dtype != d->dtype) {
    err_set(e, ERR_UNSUPPORTED, "attention: on this NPU keys and values are of type %s, %s was asked for", dtype_info(d->dtype)->name,
            dtype_info(c->kv_dtype)->name);
    goto fail;
  }
  for (int i = 0; i < c->n_layers; i++) {
    a->layers[i] = c->layers[i];
    a->kinds[c->layers[i].kind].used = true;
  }
  a->c.layers = a->layers;
  for (int kind = 0; kind < BATCH_KINDS; kind++) {
    if (a->kinds[kind].used) kind_sizes(c, kind, &a->kinds[kind]);
  }
  for (int i = 0; i < c->n_layers; i++) a->shape_of[i] = shape_for(a, &c->layers[i]);
  if (!ascend_enter(d) || choose_routes(a, e)) goto fail;
  for (int i = 0; i < c->n_layers; i++) {
    if (a->layers[i].owner == i && open_store(a, i, e)) goto fail;
  }
  for (int kind = 0; kind < BATCH_KINDS; kind++) {
    if (a->kinds[kind].used && open_kind(a, kind, e)) goto fail;
  }
  if (open_constants(a, e) || open_scratch(a, e)) goto fail;
  if (!tests) attn_ascend_print(a, log_choice, NULL);
  return a;
fail:
  if (e && e->code == ERR_NONE) *e = d->failed;
  ascend_close(a);
  return NULL;
}

struct attn *attn_ascend_open_only(const struct attn_config *c, unsigned allowed, struct err *e) {
  return open_with(c, allowed, true, e);
}

static struct attn *ascend_open(const struct attn_config *c, struct err *e) {
  unsigned allowed;
  if (attn_routes_allowed(&allowed, e)) return NULL;
  return open_with(c, allowed, false, e);
}

void attn_ascend_print(const struct attn *a, void (*line)(void *ctx, const char *text), void *ctx) {
  for (int i = 0; i < a->n_shapes; i++) {
    const struct attn_shape *s = &a->shapes[i];
    for (int many = 0; many < 2; many++) {
      char text[256];
      int at = snprintf(text, sizeof text, "%s layers, heads of %d (%d over %d), %s:", kind_names[s->kind], s->head_dim, s->n_q, s->n_kv,
                        many ? "many rows" : "one row each");
      for (const enum attn_route *r = many ? s->many : s->one; *r != ROUTE_NONE && at > 0 && (size_t)at < sizeof text; r++) {
        at += snprintf(text + at, sizeof text - (size_t)at, " %s", attn_route_name(*r));
      }
      line(ctx, text);
    }
  }
}

static const char *no_records(const struct attn *a) { return a->no_records[0] ? a->no_records : NULL; }

/* ---- prepare: the host's side ------------------------------------------------------------------------------------------------------ */

/* How much of a kind's lines and tables this step uses. */
struct used {
  int pages, keys;
  size_t more;
  bool mask, windows, intervals;
};

/* A place for n numbers in more; where it begins, or SIZE_MAX. */
static size_t take_more(const struct attn_kind *k, struct used *u, size_t n) {
  size_t at = u->more;
  if (n > k->more_max - at) return SIZE_MAX;
  u->more = MIN(align_up(at + n, TABLE_ALIGN), k->more_max);
  return at;
}

/* Runs of one sequence that begin at the same page share a table, which grows as they do: they follow each other, and it is the last one. */
static void place_runs(const struct attn *a, struct attn_kind *k, struct used *u) {
  const struct attn_run *before = NULL; /* in more */
  size_t before_at = 0;
  for (int i = 0; i < k->n_runs; i++) {
    struct attn_run *run = &k->runs[i];
    if (run->line >= 0) {
      k->paged[run->line] = run->form == FORM_NOTHING ? 0 : run->hi - run->page * a->c.page_tokens;
      k->dense[run->line] = run->form == FORM_NOTHING ? 0 : run->hi - run->lo;
      run->on_device = k->tables + (size_t)run->line * (size_t)k->width;
      u->pages = MAX(u->pages, run->n_pages);
      u->keys = MAX(u->keys, run->hi - run->lo);
      continue;
    }
    if (run->form == FORM_NOTHING) continue;
    bool shares = before && before->seq == run->seq && before->page == run->page;
    if (shares && run->n_pages > before->n_pages) u->more = before_at;
    if (!shares || run->n_pages > before->n_pages) {
      size_t at = take_more(k, u, (size_t)run->n_pages);
      if (at == SIZE_MAX) {
        if (shares) u->more = MIN(align_up(before_at + (size_t)before->n_pages, TABLE_ALIGN), k->more_max);
        continue;
      }
      before_at = at, before = run;
    }
    run->on_device = k->more + before_at;
  }
}

/* One band, or none, that all runs of the step have. */
static bool same_band(const struct attn_kind *k, int *window) {
  *window = 0;
  for (int i = 0; i < k->n_runs; i++) {
    const struct attn_run *run = &k->runs[i];
    if (run->form == FORM_MIXED || (run->form == FORM_SAME && run->n_rows > 1)) return false;
    int w = run->form == FORM_BAND ? run->window : run->form == FORM_SAME && run->lo > 0 ? run->hi - run->lo : 0;
    if (w && *window && w != *window) return false;
    if (w) *window = w;
  }
  for (int i = 0; i < k->n_runs && *window; i++) {
    if (k->runs[i].lo == 0 && k->runs[i].form != FORM_BAND && k->runs[i].hi > *window) return false;
  }
  return true;
}

/* The table of the whole step by tnd, if there are longer runs and all can go by it. Where it begins in more, or SIZE_MAX. */
static size_t place_tnd(const struct attn *a, struct attn_kind *k, struct used *u) {
  k->tnd_table = NULL;
  bool longer = false;
  int most = 1;
  for (int i = 0; i < k->n_runs; i++) {
    longer |= k->runs[i].form != FORM_NOTHING && k->runs[i].n_rows > 1;
    most = MAX(most, k->runs[i].n_pages);
  }
  if (!k->has_tnd || k->by_row || !longer || k->n_runs > TND_ENTRIES_MOST || !same_band(k, &k->tnd_window)) return SIZE_MAX;
  if (k->tnd_window && !k->window && !a->d->profile.fused_wide_tnd) return SIZE_MAX; /* a band where none was expected */
  k->tnd_width = aligned(most);
  size_t at = take_more(k, u, (size_t)k->n_runs * (size_t)k->tnd_width);
  if (at == SIZE_MAX) return SIZE_MAX;
  k->tnd_table = k->more + at;
  for (int i = 0; i < k->n_runs; i++) {
    const struct attn_run *run = &k->runs[i];
    k->tnd_rows[i] = run->row + run->n_rows;
    k->tnd_keys[i] = run->form == FORM_NOTHING ? 0 : run->hi - run->page * a->c.page_tokens;
  }
  return at;
}

static void find_used(const struct attn *a, int kind, struct used *u) {
  for (int i = 0; i < a->n_shapes; i++) {
    if (a->shapes[i].kind != kind) continue;
    for (int j = 0; j < a->shapes[i].plan.n_calls; j++) {
      const struct attn_call *call = &a->shapes[i].plan.calls[j];
      u->mask |= call->route == ROUTE_MASKED;
      u->windows |= call->route == ROUTE_WINDOW;
      u->intervals |= call->route == ROUTE_COMPOSED && call->n_rows > 1;
    }
  }
}

/* ---- prepare: what is sent ----------------------------------------------------------------------------------------------------------- */

static void fill_line(const struct attn *a, const struct attn_kind *k, struct attn_staging *s, const struct attn_run *run,
                      const struct used *u) {
  const int P = a->c.page_tokens;
  int32_t *line = s->tables + (size_t)run->line * (size_t)k->width;
  for (int i = 0; i < u->pages; i++) line[i] = i < run->n_pages ? run->pages[i] : 0;
  if (u->mask) {
    uint8_t *mask = s->mask + (size_t)run->line * (size_t)P;
    for (int i = 0; i < P; i++) mask[i] = i < run->lo - run->page * P;
  }
  if (u->windows) {
    int32_t *keys = s->keys + (size_t)run->line * (size_t)k->keys_wide;
    for (int i = 0; i < u->keys && i < k->keys_wide; i++) {
      int at = run->lo - run->page * P + i;
      keys[i] = i < run->hi - run->lo ? run->pages[at / P] * P + at % P : 0;
    }
  }
}

static void fill_staging(const struct attn *a, const struct attn_kind *k, int kind, struct attn_staging *s, const struct used *u,
                         size_t tnd_at) {
  const struct batch *b = a->batch;
  for (int r = 0; r < b->n_rows; r++) s->slots[r] = (int32_t)k->slot_of[r];
  for (int r = 0; r < b->n_rows && u->intervals; r++) s->lo[r] = (float)b->lo[kind][r], s->hi[r] = (float)b->hi[kind][r];
  for (int i = 0; i < k->n_runs; i++) {
    const struct attn_run *run = &k->runs[i];
    if (run->line >= 0) fill_line(a, k, s, run, u);
    else if (run->on_device) memcpy(s->more + (run->on_device - k->more), run->pages, (size_t)run->n_pages * sizeof *s->more);
    if (!k->tnd_table) continue;
    int32_t *line = s->more + tnd_at + (size_t)i * (size_t)k->tnd_width;
    for (int j = 0; j < k->tnd_width; j++) line[j] = j < run->n_pages ? run->pages[j] : 0;
  }
}

static void send(struct attn *a, void *device, const void *host, size_t n_bytes) {
  if (n_bytes == 0 || !ascend_ok(a->d)) return;
  ascend_check(a->d, a->d->acl.aclrtMemcpyAsync(device, n_bytes, host, n_bytes, NPU_HOST_TO_DEVICE, a->d->stream),
               "aclrtMemcpyAsync of attention's tables");
}

/* The first width bytes of n lines. */
static void send_lines(struct attn *a, void *device, size_t device_line, const void *host, size_t host_line, size_t width, int n) {
  if (width == 0 || n == 0 || !ascend_ok(a->d)) return;
  ascend_check(a->d, a->d->acl.aclrtMemcpy2dAsync(device, device_line, host, host_line, width, (size_t)n, NPU_HOST_TO_DEVICE, a->d->stream),
               "aclrtMemcpy2dAsync of attention's tables");
}

/* A set that no copy reads any more. */
static struct attn_staging *free_staging(struct attn *a, struct attn_kind *k) {
  struct ascend *d = a->d;
  for (int i = 0; i < 2; i++) {
    if (k->staging[i].used_at != d->n_waits + 1) return &k->staging[i];
  }
  return ascend_wait(d) ? &k->staging[0] : NULL;
}

static void send_kind(struct attn *a, int kind, const struct used *u, size_t tnd_at) {
  struct attn_kind *k = &a->kinds[kind];
  struct attn_staging *s = free_staging(a, k);
  const size_t P = (size_t)a->c.page_tokens, width = (size_t)k->width;
  if (!s) return;
  fill_staging(a, k, kind, s, u, tnd_at);
  s->used_at = a->d->n_waits + 1;
  const size_t rows = (size_t)a->batch->n_rows;
  send(a, k->slots, s->slots, rows * sizeof *s->slots);
  send_lines(a, k->tables, width * sizeof *s->tables, s->tables, width * sizeof *s->tables, (size_t)u->pages * sizeof *s->tables,
             k->n_lines);
  send(a, k->more, s->more, u->more * sizeof *s->more);
  if (u->mask) send_lines(a, k->mask, width * P, s->mask, P, P, k->n_lines);
  if (u->windows) {
    const size_t line = (size_t)k->keys_wide * sizeof *s->keys;
    send_lines(a, k->keys, line, s->keys, line, (size_t)MIN(u->keys, k->keys_wide) * sizeof *s->keys, k->n_lines);
  }
  if (u->intervals) {
    send(a, k->lo, s->lo, rows * sizeof *s->lo);
    send(a, k->hi, s->hi, rows * sizeof *s->hi);
  }
}

static void find_slots(const struct attn *a, struct attn_kind *k, int kind) {
  const struct batch *b = a->batch;
  int n_nowhere = 0;
  for (int r = 0; r < b->n_rows; r++) {
    int64_t slot = kind < KV_KINDS && b->slot[kind] ? b->slot[kind][r] : 0;
    k->slot_of[r] = slot ? slot : attn_waste(&a->c, kind) + n_nowhere;
    n_nowhere += !slot;
  }
  k->leaves_out = n_nowhere > waste_slots(&a->c);
}

static void ascend_prepare(struct attn *a, const struct batch *b) {
  struct ascend *d = a->d;
  CHECK(b->n_rows <= a->c.rows_max && b->n_seqs <= a->c.seqs_max);
  a->batch = b;
  if (!ascend_ok(d) || !ascend_enter(d)) return;
  const bool by_row = b->n_rows > 0 && b->n_out == b->n_rows && b->n_soft == 0 && b->n_rows <= a->c.seqs_max;
  struct used used[BATCH_KINDS] = {0};
  size_t tnd_at[BATCH_KINDS];
  for (int kind = 0; kind < BATCH_KINDS; kind++) {
    struct attn_kind *k = &a->kinds[kind];
    if (!k->used || !b->lo[kind]) continue;
    find_slots(a, k, kind);
    attn_cut_runs(a, k, kind, by_row);
    place_runs(a, k, &used[kind]);
    tnd_at[kind] = place_tnd(a, k, &used[kind]);
  }
  for (int i = 0; i < a->n_shapes; i++) {
    struct attn_shape *s = &a->shapes[i];
    if (!b->lo[s->kind]) continue;
    attn_make_plan(a, s);
    if (by_row && a->recorded && !s->plan.by_row) {
      ascend_fail(d, "attention: recorded steps of %s layers go by the route \"%s\", which does not express what this step's rows see",
                  kind_names[s->kind], attn_route_name(s->one[0]));
    }
  }
  for (int kind = 0; kind < BATCH_KINDS && !d->record; kind++) { /* while recording all is there: the same batch ran before */
    if (!a->kinds[kind].used || !b->lo[kind] || !ascend_ok(d)) continue;
    if (kind == BATCH_CROSS && b->n_cross == 0) continue;
    find_used(a, kind, &used[kind]);
    send_kind(a, kind, &used[kind], tnd_at[kind]);
  }
}

/* ---- keys and values ------------------------------------------------------------------------------------------------------------------ */

static bool is_dense(const struct tensor *t) { return t->row_bytes == (size_t)t->cols * tensor_elem_bytes(t) || t->rows == 1; }

/* n rows of x, one behind the other: x itself, or a copy. */
static struct tensor dense_rows(struct ascend *d, const struct tensor *x, int n, bool copied) {
  struct tensor y = *x;
  y.rows = n;
  if (is_dense(&y)) return y;
  const struct tensor from = y;
  y.row_bytes = (size_t)y.cols * tensor_elem_bytes(&y);
  y.data = ascend_temp(d, y.row_bytes * (size_t)n);
  if (copied) ascend_assign(d, &y, &from);
  return y;
}

/* By copies: rows whose slots follow each other go together. */
static void store_by_copies(struct attn *a, char *pool, const struct tensor *x, const int64_t *slot, int n) {
  struct ascend *d = a->d;
  const size_t row = (size_t)x->cols * tensor_elem_bytes(x);
  if (d->record) {
    ascend_fail(d, "attention: on this chip keys are written by copies, which cannot be recorded");
    return;
  }
  for (int r = 0, m; r < n && ascend_ok(d); r += m) {
    for (m = 1; r + m < n && slot[r + m] == slot[r] + m;) m++;
    ascend_check(d,
                 d->acl.aclrtMemcpyAsync(pool + (size_t)slot[r] * row, row * (size_t)m, tensor_at(x, r, 0), row * (size_t)m,
                                         NPU_DEVICE_TO_DEVICE, d->stream),
                 "aclrtMemcpyAsync of keys");
  }
}

/* k, v [n, n_kv * head_dim], dense, to the slots; on_device: the same slots there. */
static void store_rows(struct attn *a, const struct attn_layer *l, const struct attn_store *s, const struct tensor *k,
                       const struct tensor *v, const int64_t *slot, const int32_t *on_device, int n) {
  struct ascend *d = a->d;
  const int64_t pages = attn_pool_pages(&a->c, l->kind), P = a->c.page_tokens, cols = (int64_t)l->n_kv * l->head_dim;
  const struct ascend_shape rows = {3, {n, l->n_kv, l->head_dim}, {0}}, pool = {4, {pages, P, l->n_kv, l->head_dim}, {0}};
  if (d->profile.has_scatter_paged) {
    char norm[] = "Norm";
    ASCEND_LAUNCH(d, ScatterPaKvCache, ascend_view(d, k->data, d->type, rows), ascend_view(d, s->k, d->type, pool),
                  ascend_array(d, on_device, NPU_INT32, n), ascend_view(d, v->data, d->type, rows), ascend_view(d, s->v, d->type, pool),
                  NULL, NULL, NULL, norm, NULL, NULL, NULL);
  } else if (d->profile.has_index_copy) {
    ASCEND_LAUNCH(d, InplaceIndexCopy, ascend_matrix(d, s->k, d->type, pages * P, cols), 0, ascend_array(d, on_device, NPU_INT32, n),
                  ascend_matrix(d, k->data, d->type, n, cols));
    ASCEND_LAUNCH(d, InplaceIndexCopy, ascend_matrix(d, s->v, d->type, pages * P, cols), 0, ascend_array(d, on_device, NPU_INT32, n),
                  ascend_matrix(d, v->data, d->type, n, cols));
  } else {
    store_by_copies(a, s->k, k, slot, n);
    store_by_copies(a, s->v, v, slot, n);
  }
}

/* Only the rows whose slots are below `end`, those that follow each other together. */
static void store_some(struct attn *a, const struct attn_layer *l, const struct attn_store *s, const struct tensor *k,
                       const struct tensor *v, const int64_t *slot, const int32_t *on_device, int n, int64_t end) {
  for (int r = 0, m; r < n; r += m) {
    bool writes = slot[r] < end;
    for (m = 1; r + m < n && (slot[r + m] < end) == writes;) m++;
    const struct tensor some_k = tensor_part(*k, r, m, 0, k->cols), some_v = tensor_part(*v, r, m, 0, v->cols);
    if (writes) store_rows(a, l, s, &some_k, &some_v, slot + r, on_device + r, m);
  }
}

static void ascend_fill(struct attn *a, int layer, const struct tensor *k, const struct tensor *v, const int64_t *slot) {
  const struct attn_layer *l = &a->layers[layer];
  struct ascend *d = a->d;
  CHECK(l->kind == BATCH_CROSS && l->owner == layer);
  CHECK(k->cols == l->n_kv * l->head_dim && v->cols == k->cols && v->rows == k->rows);
  if (!ascend_ok(d) || !ascend_enter(d)) return;
  enum { ROWS_AT_ONCE = 512 };
  int64_t where[ROWS_AT_ONCE];
  int32_t narrow[ROWS_AT_ONCE];
  for (int at = 0, n; at < k->rows && ascend_ok(d); at += n) {
    n = MIN(ROWS_AT_ONCE, k->rows - at);
    for (int i = 0; i < n; i++) {
      where[i] = slot[at + i] ? slot[at + i] : INT64_MAX;
      narrow[i] = (int32_t)slot[at + i];
    }
    ascend_temp_reset(d);
    struct tensor some_k = tensor_part(*k, at, n, 0, k->cols), some_v = tensor_part(*v, at, n, 0, v->cols);
    some_k = dense_rows(d, &some_k, n, true), some_v = dense_rows(d, &some_v, n, true);
    const int32_t *on_device = ascend_upload(d, narrow, (size_t)n * sizeof *narrow);
    if (on_device) store_some(a, l, &a->stores[layer], &some_k, &some_v, where, on_device, n, attn_waste(&a->c, l->kind));
  }
}

static void ascend_copy_page(struct attn *a, enum kv_kind kind, int32_t from, int32_t to) {
  struct ascend *d = a->d;
  if (!ascend_ok(d) || !ascend_enter(d)) return;
  for (int i = 0; i < a->c.n_layers && ascend_ok(d); i++) {
    const struct attn_layer *l = &a->layers[i];
    if (l->owner != i || l->kind != (int)kind) continue;
    const size_t n = (size_t)a->c.page_tokens * (size_t)l->n_kv * (size_t)l->head_dim * 2;
    char *const pools[] = {a->stores[i].k, a->stores[i].v};
    for (int j = 0; j < 2; j++) {
      ascend_check(d,
                   d->acl.aclrtMemcpyAsync(pools[j] + (size_t)to * n, n, pools[j] + (size_t)from * n, n, NPU_DEVICE_TO_DEVICE, d->stream),
                   "aclrtMemcpyAsync of page %d", (int)from);
    }
  }
}

/* ---- run -------------------------------------------------------------------------------------------------------------------------------- */

static void ascend_run(struct attn *a, int layer, const struct tensor *q, const struct tensor *k, const struct tensor *v,
                       struct tensor *out) {
  const struct attn_layer *l = &a->layers[layer];
  const struct attn_shape *s = &a->shapes[a->shape_of[layer]];
  struct ascend *d = a->d;
  const int n_rows = a->batch->n_rows;
  CHECK(l->kind != BATCH_CROSS || a->batch->n_cross > 0);
  CHECK((k != NULL) == (l->owner == layer && l->kind != BATCH_CROSS) && (v != NULL) == (k != NULL));
  CHECK(q->cols == l->n_q * l->head_dim && out->cols == q->cols && q->rows >= n_rows && out->rows >= n_rows);
  CHECK(!k || (k->cols == l->n_kv * l->head_dim && v->cols == k->cols && k->rows >= n_rows && v->rows >= n_rows));
  if (!ascend_ok(d)) return;
  CHECK(q->dtype == d->dtype && out->dtype == d->dtype);
  if (d->record) {
    if (!s->plan.by_row) {
      ascend_fail(d, "attention: this step cannot be recorded: %s", a->no_records[0] ? a->no_records : "not every row wants its logits");
      return;
    }
    a->recorded = true;
  }
  ascend_temp_reset(d);
  if (k) {
    struct tensor all_k = dense_rows(d, k, n_rows, true), all_v = dense_rows(d, v, n_rows, true);
    const struct attn_kind *kind = &a->kinds[l->kind];
    int64_t end = kind->leaves_out ? attn_waste(&a->c, l->kind) : INT64_MAX;
    store_some(a, l, &a->stores[layer], &all_k, &all_v, kind->slot_of, kind->slots, n_rows, end);
  }
  struct attn_work w = {.a = a, .layer = l, .shape = s, .store = &a->stores[l->owner]};
  w.q = dense_rows(d, q, n_rows, true), w.out = dense_rows(d, out, n_rows, false);
  w.scratch_bytes = attn_composed_bytes(&w);
  if (w.scratch_bytes) w.scratch = w.scratch_bytes <= a->scratch_bytes ? a->scratch : ascend_temp(d, w.scratch_bytes);
  for (int i = 0; i < s->plan.n_calls && ascend_ok(d); i++) {
    const struct attn_call *call = &s->plan.calls[i];
    if (call->route == ROUTE_NONE) {
      const struct tensor rows = tensor_part(w.out, call->row, call->n_rows, 0, w.out.cols);
      ASCEND_LAUNCH(d, InplaceZero, ascend_tensor(d, &rows));
    } else if (call->route == ROUTE_COMPOSED) {
      attn_run_composed(&w, call);
    } else {
      attn_run_fused(&w, call);
    }
  }
  struct tensor to = tensor_rows(*out, n_rows);
  if (w.out.data != out->data) ascend_assign(d, &to, &w.out);
}

const struct attn_ops attn_ascend_ops = {.name = "ascend",
                                         .open = ascend_open,
                                         .close = ascend_close,
                                         .bytes = ascend_bytes,
                                         .no_records = no_records,
                                         .prepare = ascend_prepare,
                                         .copy_page = ascend_copy_page,
                                         .fill = ascend_fill,
                                         .run = ascend_run};
