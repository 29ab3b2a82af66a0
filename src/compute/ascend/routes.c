/* routes.c — which route can do what, how a step's rows are cut into runs, and which route each run takes. No device in here. */
#include <stdlib.h>

#include "compute/ascend/attn.h"

enum {
  ROWS_PER_CALL = 256,  /* kernels for one query each are known to be slow, or wrong, above */
  HEADS_MOST = 256,     /* of queries, in FIA */
  KV_COLS_MOST = 65535, /* n_kv * head_dim of a paged pool */
  HEAD_DIM_MOST = 512,
};

static const char *const route_names[ROUTE_COUNT] = {"none", "tnd", "bsnd", "decode", "masked", "window", "cross", "composed"};

const char *attn_route_name(enum attn_route r) { return r >= 0 && r < ROUTE_COUNT ? route_names[r] : "unknown"; }

/* ---- the table ------------------------------------------------------------------------------------------------------------------ */

/* What all of FIA's layouts ask for. NULL: nothing stands against it. */
static const char *fused_refuses(const struct ascend_profile *p, const struct attn_need *n) {
  if (p->fused == 0) return "this chip has no fused attention";
  if (n->head_dim % 16 != 0) return "fused attention wants heads whose width is a multiple of 16";
  if (n->head_dim > HEAD_DIM_MOST) return "heads above 512 are too wide for fused attention";
  if (n->n_q > HEADS_MOST) return "fused attention takes at most 256 query heads";
  if ((int64_t)n->n_kv * n->head_dim > KV_COLS_MOST) return "keys of a token are too wide for a paged pool: at most 65535 numbers";
  if (n->recorded && !p->has_scatter_paged && !p->has_index_copy) return "keys are written by copies here, which cannot be recorded";
  return NULL;
}

static const char *tnd_refuses(const struct ascend_profile *p, const struct attn_need *n) {
  if (n->cross) return "TND would put causality on a bank's keys";
  if (p->cann < 805) return "TND with pages wants CANN 8.5 or newer";
  if (!p->fused_wide_tnd) {
    if (n->window) return "this CANN's TND knows no band";
    if (n->head_dim != 128) return "this CANN's TND takes heads of 128 only";
    if (n->page_tokens != 128 && n->page_tokens != 512) return "this CANN's TND wants pages of 128 or 512 tokens";
    return NULL;
  }
  if (n->page_tokens % 16 != 0) return "TND wants pages of a multiple of 16 tokens";
  if (n->head_dim == 64 || n->head_dim == 128) return n->page_tokens > 1024 ? "TND takes pages of up to 1024 tokens" : NULL;
  if (n->head_dim > 256) return "heads above 256 are too wide for TND";
  if (n->n_q == n->n_kv) return "TND takes heads other than 64 and 128 only with grouped queries";
  return n->page_tokens > 128 ? "TND takes pages of up to 128 tokens for such heads" : NULL;
}

static const char *pages_refuse(const struct attn_need *n, bool many_rows) {
  if (many_rows) {
    return n->page_tokens % 128 != 0 || n->page_tokens > 512 ? "several queries over pages want pages of 128, 256, 384 or 512 tokens"
                                                             : NULL;
  }
  return n->page_tokens % 16 != 0 || n->page_tokens > 512 ? "one query over pages wants pages of a multiple of 16 tokens, up to 512" : NULL;
}

static const char *route_refuses(enum attn_route r, const struct ascend_profile *p, const struct attn_need *n) {
  if (r == ROUTE_COMPOSED) return n->recorded ? "composed attention has another shape in every step" : NULL;
  const char *why = fused_refuses(p, n);
  if (why) return why;
  switch (r) {
  case ROUTE_TND: return tnd_refuses(p, n);
  case ROUTE_BSND:
    if (n->cross) return "a sparse mode would put causality on a bank's keys";
    if (!n->many_rows) return "with one query the sparse mode is ignored";
    return pages_refuse(n, true);
  case ROUTE_DECODE:
    if (n->cross || n->many_rows) return "it is for one row each of text";
    if (n->window) return "without a mask a window would begin at a page's edge";
    return pages_refuse(n, false);
  case ROUTE_MASKED:
    if (n->cross || n->many_rows || !n->window) return "it is for one row each and windows";
    if (n->window_tokens < 1) return "the window is not known";
    return pages_refuse(n, false);
  case ROUTE_WINDOW:
    if (n->cross || n->many_rows || !n->window) return "it is for one row each and windows";
    return n->window_tokens < 1 ? "the window is not known" : NULL;
  case ROUTE_CROSS:
    if (!n->cross && !n->many_rows) return "it is for banks and pictures";
    return pages_refuse(n, n->many_rows);
  default: return "there is no such route";
  }
}

bool attn_route_can(enum attn_route r, const struct ascend_profile *p, const struct attn_need *n, const char **why) {
  const char *reason = route_refuses(r, p, n);
  if (why) *why = reason ? reason : "";
  return !reason;
}

const enum attn_route *attn_route_order(const struct attn_need *n) {
  static const enum attn_route cross[] = {ROUTE_CROSS, ROUTE_COMPOSED, ROUTE_NONE};
  static const enum attn_route many[] = {ROUTE_TND, ROUTE_BSND, ROUTE_CROSS, ROUTE_COMPOSED, ROUTE_NONE};
  static const enum attn_route full[] = {ROUTE_DECODE, ROUTE_TND, ROUTE_COMPOSED, ROUTE_NONE};
  static const enum attn_route window[] = {ROUTE_TND, ROUTE_MASKED, ROUTE_WINDOW, ROUTE_COMPOSED, ROUTE_NONE};
  return n->cross ? cross : n->many_rows ? many : n->window ? window : full;
}

int attn_routes_allowed(unsigned *allowed, struct err *e) {
  const char *text = getenv("CYGNET_ASCEND_ROUTES");
  *allowed = (1u << ROUTE_COUNT) - 1;
  if (!text || !*text) return 0;
  *allowed = 1u << ROUTE_COMPOSED;
  while (*text) {
    size_t n = strcspn(text, ",");
    bool minus = n > 0 && *text == '-', known = n == 0;
    for (int r = ROUTE_NONE + 1; r < ROUTE_COUNT; r++) {
      if (n - minus != strlen(route_names[r]) || strncmp(text + minus, route_names[r], n - minus) != 0) continue;
      *allowed = minus ? *allowed & ~(1u << r) : *allowed | 1u << r;
      known = true;
    }
    if (!known) {
      return err_set(e, ERR_BAD_INPUT,
                     "CYGNET_ASCEND_ROUTES: expected names of tnd, bsnd, decode, masked, window, cross, composed, found \"%.*s\"",
                     (int)MIN(n, 20), text);
    }
    text += n;
    if (*text == ',') text++;
  }
  return 0;
}

/* ---- runs ----------------------------------------------------------------------------------------------------------------------- */

/* How many rows from r on go together, and by which form: see attn.h. */
static int run_length(const int32_t *lo, const int32_t *hi, int r, int end, bool text, enum attn_form *form, int *window) {
  int at = r + 1;
  *window = 0;
  if (lo[r] >= hi[r]) {
    while (at < end && lo[at] >= hi[at]) at++;
    *form = FORM_NOTHING;
    return at - r;
  }
  *form = FORM_SAME;
  if (at < end && hi[at] == hi[r] && lo[at] < hi[at] && (text || lo[at] == lo[r])) {
    for (; at < end && hi[at] == hi[r] && lo[at] < hi[at]; at++) {
      if (lo[at] == lo[r]) continue;
      if (!text) break;
      *form = FORM_MIXED;
    }
    return at - r;
  }
  if (!text) return 1;
  *window = lo[r] > 0 ? hi[r] - lo[r] : 0;
  for (; at < end && hi[at] == hi[at - 1] + 1 && lo[at] < hi[at]; at++) {
    int w = hi[at] - lo[at];
    if (lo[at] == 0 ? *window > 0 : *window > 0 ? w != *window : hi[at - 1] > w) break;
    if (lo[at] > 0) *window = w;
  }
  if (at - r > 1) *form = *window ? FORM_BAND : FORM_CAUSAL;
  return at - r;
}

static void add_run(struct attn *a, struct attn_kind *k, int kind, int seq, int row, int n_rows, enum attn_form form, int window) {
  const struct batch *b = a->batch;
  const int P = a->c.page_tokens;
  struct attn_run *run = &k->runs[k->n_runs++];
  *run = (struct attn_run){.seq = seq, .row = row, .n_rows = n_rows, .line = -1, .form = form, .window = window};
  if (form == FORM_NOTHING) {
    if (n_rows == 1 && k->n_lines < k->lines_max) run->line = k->n_lines++;
    return;
  }
  run->lo = b->lo[kind][row], run->hi = b->hi[kind][row];
  for (int r = row + 1; r < row + n_rows; r++) {
    run->lo = MIN(run->lo, b->lo[kind][r]);
    run->hi = MAX(run->hi, b->hi[kind][r]);
  }
  run->page = run->lo / P;
  run->n_pages = div_up(run->hi, P) - run->page;
  run->pages = b->page[kind] + (size_t)seq * (size_t)b->pages_max[kind] + run->page;
  if (n_rows == 1 && k->n_lines < k->lines_max && run->n_pages <= k->width) run->line = k->n_lines++;
}

void attn_cut_runs(struct attn *a, struct attn_kind *k, int kind, bool by_row) {
  const struct batch *b = a->batch;
  const int32_t *lo = b->lo[kind], *hi = b->hi[kind];
  k->n_runs = k->n_lines = 0;
  k->by_row = by_row;
  int row = 0;
  for (int s = 0; s <= b->n_seqs; s++) { /* the last one: rows of no sequence */
    int end = s < b->n_seqs ? b->q_start[s + 1] : b->n_rows, seq = s < b->n_seqs ? s : -1;
    while (row < end) {
      enum attn_form form = FORM_NOTHING;
      int window = 0,
          n = seq < 0 ? (by_row ? 1 : end - row) : run_length(lo, hi, row, by_row ? row + 1 : end, kind != BATCH_CROSS, &form, &window);
      add_run(a, k, kind, seq, row, n, form, n > 1 ? window : 0);
      row += n;
    }
  }
}

/* ---- the choice ------------------------------------------------------------------------------------------------------------------- */

bool attn_route_expresses(const struct attn *a, const struct attn_kind *k, enum attn_route r, const struct attn_run *run) {
  const bool at_page = run->lo == run->page * a->c.page_tokens;
  switch (r) {
  case ROUTE_TND: /* single rows; of whole steps: attn_kind.tnd_table */
    if (run->line < 0) return false;
    return k->window == 0 ? run->lo == 0 : run->lo == 0 ? run->hi <= k->window : run->hi - run->lo == k->window;
  case ROUTE_BSND: return run->form == FORM_CAUSAL || run->form == FORM_BAND;
  case ROUTE_DECODE: return run->line >= 0 && at_page;
  case ROUTE_MASKED: return run->line >= 0;
  case ROUTE_WINDOW: return run->line >= 0 && run->hi - run->lo <= k->keys_wide;
  case ROUTE_CROSS: return run->form == FORM_SAME && at_page;
  case ROUTE_COMPOSED: return true;
  default: return false;
  }
}

static bool plan_by_row(struct attn *a, struct attn_shape *s, const struct attn_kind *k) {
  enum attn_route r = s->one[0];
  if (!k->by_row || r == ROUTE_COMPOSED || r == ROUTE_NONE) return false;
  for (int i = 0; i < k->n_runs; i++) {
    if (k->runs[i].line != i) return false;
    if (k->runs[i].form != FORM_NOTHING && !attn_route_expresses(a, k, r, &k->runs[i])) return false;
  }
  for (int row = 0; row < k->n_runs; row += ROWS_PER_CALL) {
    int n = MIN(k->n_runs - row, ROWS_PER_CALL);
    s->plan.calls[s->plan.n_calls++] = (struct attn_call){
        .route = r, .row = row, .n_rows = n, .run = row, .n_runs = n, .line = row, .window = r == ROUTE_TND ? k->window : 0};
  }
  return s->plan.by_row = true;
}

static bool plan_whole_step(struct attn_shape *s, const struct attn_kind *k, int n_rows) {
  if (s->many[0] != ROUTE_TND || !k->tnd_table) return false;
  s->plan.calls[s->plan.n_calls++] = (struct attn_call){
      .route = ROUTE_TND, .whole_step = true, .n_rows = n_rows, .n_runs = k->n_runs, .line = -1, .window = k->tnd_window};
  return true;
}

/* Does the single row continue the call? */
static bool joins(const struct attn_call *call, enum attn_route r, const struct attn_run *run) {
  if (call->line < 0 || run->line != call->line + call->n_rows || call->n_rows >= ROWS_PER_CALL) return false;
  return call->route == r || run->form == FORM_NOTHING;
}

void attn_make_plan(struct attn *a, struct attn_shape *s) {
  const struct attn_kind *k = &a->kinds[s->kind];
  struct attn_plan *plan = &s->plan;
  plan->n_calls = 0;
  plan->by_row = false;
  if (plan_by_row(a, s, k) || plan_whole_step(s, k, a->batch->n_rows)) return;
  for (int i = 0; i < k->n_runs; i++) {
    const struct attn_run *run = &k->runs[i];
    enum attn_route r = ROUTE_NONE;
    const enum attn_route *order = run->line < 0 ? s->many : s->one;
    if (run->form != FORM_NOTHING) {
      while ((r = *order) != ROUTE_NONE && !attn_route_expresses(a, k, r, run)) order++;
      if (r == ROUTE_NONE) { /* open saw to it that this cannot happen with composed attention allowed */
        ascend_fail(a->d, "attention: no route that is allowed expresses rows %d to %d of a step, which see keys %d to %d", run->row,
                    run->row + run->n_rows - 1, run->lo, run->hi);
        plan->n_calls = 0;
        return;
      }
    }
    struct attn_call *last = plan->n_calls ? &plan->calls[plan->n_calls - 1] : NULL;
    if (last && joins(last, r, run)) {
      last->n_rows++, last->n_runs++;
      continue;
    }
    struct attn_call *call = &plan->calls[plan->n_calls++];
    *call = (struct attn_call){.route = r, .row = run->row, .n_rows = run->n_rows, .run = i, .n_runs = 1};
    call->line = r == ROUTE_NONE || r == ROUTE_COMPOSED ? -1 : run->line;
    call->window = r == ROUTE_TND ? k->window : run->window;
  }
}
