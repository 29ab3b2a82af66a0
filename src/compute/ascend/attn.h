/* attn.h — attention on the NPU: one storage of keys and values, several routes to the result.
 *
 * Storage: for each owning layer two pools of pages, [pages, page_tokens, n_kv * head_dim] (CANN's "BnBsH") of the device's type. Page 0 is
 * the one that nobody is given: all zeros, for good, so that its slots may stand for keys that nobody sees. Behind the last page of a pool
 * there are waste slots, one for each row of a step that may be recorded and some more: rows that write nowhere write there, each to its own,
 * because an operator's behaviour with two writes to one slot is not specified. Where a step has more such rows, those are left out.
 *
 * Runs. prepare cuts the rows of every sequence into runs, by their intervals and by nothing else, once for each kind of layer:
 *
 *   nothing    rows that see nothing, padding                       zeros
 *   causal     lo = 0, hi one more from row to row
 *   band       the same with lo = max(0, hi - W)                    W is what rows with lo > 0 see
 *   same       one [lo, hi) for all rows; every single row          a picture in a layer whose rows see each other; banks
 *   mixed      one hi, several lo                                   a picture longer than what is left of the window
 *
 * Routes. A call takes neighbouring runs by one route, and only when it expresses exactly their intervals.
 *
 *   name      call                                       one row each   many rows            runs it can express
 *   tnd       FIA, TND, paged, sparse 3 or 4             all rows of the step at once        causal; band; single rows of the two
 *   bsnd      FIA, BSND, paged, sparse 3 or 4            —              a call for each run  causal; band
 *   decode    FIA, BSH, one query, paged, no mask        yes            —                    [lo, hi), lo at a page's first key
 *   masked    the same with a mask over the window's     yes            —                    [lo, hi) within the window
 *             pages
 *   window    the window's keys gathered by slot to      yes            —                    [lo, hi) within the window
 *             dense memory, then the same without mask
 *   cross     FIA, BSND, paged, no mask; one row each    yes            a call for each run  same, lo at a page's first key
 *             as in decode
 *   composed  keys gathered, products, mask, softmax:    a call each    a call for each run  any
 *             from the first key that a row of the run
 *             sees to the last, query as it is
 *
 * A FIA with one query ignores its sparse mode and its window: so those rows never go by bsnd. A mask is as wide as the window's pages, and what
 * it excludes is less than a page at its beginning: the report of masks that are ignored behind key 512 does not touch it, and
 * the self-test refuses such a stack nevertheless.
 * Tables of pages begin at the page of the first key that is seen, in all routes; a sliding layer's are never wider than the window asks for.
 *
 * Which route is tried first for a kind of layer and number of rows is decided in open, from the profile, the shapes and the routes' own tests
 * (attn_ascend_selftest), and logged; runs that the first cannot express take the next one that can, at last the composed one.
 *
 * Recorded steps: a step in which every row wants its logits (batch n_out = n_rows <= seqs_max) is one run for each row, whatever sequence
 * it belongs to; all rows go by the first route for one row each. Tables, slots, masks lie in static memory, a line for each row of the
 * batch; what the host passes by value (lengths of keys) is given anew for every replay through capture.h. A padding row has 0 keys. Only what
 * is in use is sent: the host's work for a replay grows with rows and pages in use, not with the longest possible sequence. The composed
 * route is not recorded (its shapes are the contents'), nor is anything on chips without a scatter operator.
 *
 * Order: prepare's copies are on the stream, in order with the launches before and after it, from pinned memory of which there are two sets; a
 * third prepare without a wait waits. While recording prepare copies nothing: the same batch was prepared before.
 */
#ifndef CYGNET_ASCEND_ATTN_H
#define CYGNET_ASCEND_ATTN_H

#include "compute/ascend/ascend.h"

enum attn_route { ROUTE_NONE, ROUTE_TND, ROUTE_BSND, ROUTE_DECODE, ROUTE_MASKED, ROUTE_WINDOW, ROUTE_CROSS, ROUTE_COMPOSED, ROUTE_COUNT };

struct attn_need { /* what a route is asked for */
  int head_dim, n_q, n_kv;
  bool many_rows; /* of one sequence; else one row each */
  bool window;    /* lo may be above 0 */
  bool cross;
  bool recorded;
  int page_tokens;
  int window_tokens; /* window: most keys of a row; 0 = not known */
};

const char *attn_route_name(enum attn_route r);
/* THE table. Whether the route can do it on this chip and CANN; if not, *why (may be NULL) is a sentence's end: "heads of 512 are too wide for
 * TND". */
bool attn_route_can(enum attn_route r, const struct ascend_profile *p, const struct attn_need *n, const char **why);
/* In which order routes are tried for a need; ROUTE_NONE ends it. */
const enum attn_route *attn_route_order(const struct attn_need *n);

/* CYGNET_ASCEND_ROUTES in the environment, "tnd,decode,...": only those (and the composed one unless "-composed" is there); for tests and
 * for finding faults. Parsed in open. *allowed: bits 1 << route. */
int attn_routes_allowed(unsigned *allowed, struct err *e);

/* Small problems with known answers (float64 on the host), for each route that this model would use: lengths around 1, W - 1, W, W + 1, 512, page
 * ends. A route that fails is not used, and a warning says so. What was found is kept for the process, by chip, CANN and need. */
struct attn_selftest {
  bool tried[ROUTE_COUNT], right[ROUTE_COUNT];
  double worst[ROUTE_COUNT]; /* difference, of outputs of size 1 */
};
/* out: one for each need. allowed: bits of routes that may be tried. -1: the device failed in another way than a route's. */
int attn_ascend_selftest(struct ascend *d, const struct attn_need *needs, int n_needs, unsigned allowed, struct attn_selftest *out,
                         struct err *e);

/* What was chosen, for a person: one line for each kind of layer and number of rows. */
void attn_ascend_print(const struct attn *a, void (*line)(void *ctx, const char *text), void *ctx);

/* ---- what the files of attention share ---------------------------------------------------------------------------------------- */

enum attn_form { FORM_NOTHING, FORM_CAUSAL, FORM_BAND, FORM_SAME, FORM_MIXED };

struct attn_run {
  int seq, row, n_rows; /* seq -1: of no sequence */
  int line;             /* of tables, mask, keys: a single row's; -1 = it has none */
  enum attn_form form;
  int lo, hi;               /* from the first key that a row sees to the last one, + 1 */
  int window;               /* band: W */
  int page, n_pages;        /* of those keys, counted in the sequence */
  const int32_t *pages;     /* the host's ids of them */
  const int32_t *on_device; /* the same there; NULL: they found no place and are sent when they are needed */
};

struct attn_call {
  enum attn_route route;
  bool whole_step; /* tnd: by runs, else by single rows */
  int row, n_rows;
  int run, n_runs;
  int line;   /* of the first row, when it is one of single rows with lines; else -1 */
  int window; /* tnd: W of the band, 0 = causal */
};

struct attn_plan {
  struct attn_call *calls;
  int n_calls;
  bool by_row; /* one run for each row, all by the first route: may be recorded */
};

struct attn_shape { /* layers that have all this in common share their calls */
  int kind, n_q, n_kv, head_dim;
  enum attn_route one[ROUTE_COUNT], many[ROUTE_COUNT]; /* in order of trying; ROUTE_NONE ends */
  struct attn_plan plan;
};

/* One set of the host's side of what prepare sends; pinned. */
struct attn_staging {
  int32_t *slots, *tables, *more, *keys;
  float *lo, *hi;
  uint8_t *mask;
  uint64_t used_at; /* waits of the device when it was sent, + 1; 0: free */
};

/* A kind of layer: what its rows see, and where that lies on the device. Single rows have a line each in tables, mask and keys, in order; those
 * of a step that may be recorded by number of the row. */
struct attn_kind {
  bool used, has_masked, has_window, has_tnd;
  bool leaves_out; /* this step has more rows that write nowhere than there are waste slots */
  int n_pages;     /* of a pool, without page 0 */
  int lines_max, n_lines;
  int width;             /* of a line of tables, in pages; a multiple of 8 */
  int window, keys_wide; /* sliding: most keys of a row, 0 = not known; the line of keys, a multiple of 8 */
  size_t more_max;       /* numbers in more */
  struct attn_run *runs; /* [rows_max] */
  int n_runs;
  bool by_row;
  /* on the device */
  int32_t *slots;  /* [rows_max] where keys go */
  int32_t *tables; /* [lines_max, width] pages of single rows */
  int32_t *more;   /* pages of longer runs, one after the other, each at a multiple of 8; and the table of tnd */
  int32_t *keys;   /* [lines_max, keys_wide] slots of the window's keys */
  uint8_t *mask;   /* [lines_max, width * page_tokens] 1 = excluded */
  float *lo, *hi;  /* [rows_max] as numbers, for the masks of the composed route */
  struct attn_staging staging[2];
  /* on the host */
  int64_t *slot_of;             /* [rows_max] the same as slots */
  int64_t *paged;               /* [lines_max] keys of a line's row, counted from the first key of its first page */
  int64_t *dense;               /* [lines_max] keys of a line's row */
  int64_t *tnd_rows, *tnd_keys; /* [rows_max] ends of the entries' rows; their keys, counted as in paged */
  const int32_t *tnd_table;     /* [n_runs, tnd_width] on the device; NULL: this step has none */
  int tnd_width, tnd_window;
};

struct attn_store {
  char *k, *v; /* [pages, page_tokens, n_kv * head_dim] */
};

struct attn {
  struct attn_config c;
  struct attn_layer *layers;
  struct ascend *d;
  int *shape_of; /* [n_layers] */
  struct attn_shape *shapes;
  int n_shapes;
  struct attn_store *stores;
  struct attn_kind kinds[BATCH_KINDS];
  const struct batch *batch;
  bool has_sparse; /* some route wants the next one */
  uint8_t *causal; /* [2048, 2048] 1 above the diagonal: what FIA's sparse modes want */
  int64_t *ends;   /* [rows_max] 1, 2, 3, ...: of single rows in TND; on the host */
  float *count;    /* [tokens_max] 0, 1, 2, ...: for the masks of the composed route */
  char *scratch;   /* of the composed route where a layer has no other; else it is temporary memory, when it is needed */
  size_t scratch_bytes;
  size_t n_bytes;   /* of device memory */
  unsigned allowed; /* routes */
  bool recorded;    /* something has been */
  bool tests;       /* this is a self-test's own: none in open, no lines */
  char no_records[160];
};

/* The first waste slot. */
static inline int64_t attn_waste(const struct attn_config *c, int kind) { return ((int64_t)c->n_pages[kind] + 1) * c->page_tokens; }
/* Pages of a pool, with page 0 and the waste slots. */
int attn_pool_pages(const struct attn_config *c, int kind);
/* attn_config c with the routes of `allowed` only, without self-test and without a word: what the self-test opens. */
struct attn *attn_ascend_open_only(const struct attn_config *c, unsigned allowed, struct err *e);

/* A layer at work: tensors are contiguous. */
struct attn_work {
  struct attn *a;
  const struct attn_layer *layer;
  const struct attn_shape *shape;
  const struct attn_store *store;
  struct tensor q, out;
  char *scratch; /* of the composed route: one call after the other */
  size_t scratch_bytes;
};

/* routes.c: cuts the batch into runs, and runs into calls. */
void attn_cut_runs(struct attn *a, struct attn_kind *k, int kind, bool by_row);
bool attn_route_expresses(const struct attn *a, const struct attn_kind *k, enum attn_route r, const struct attn_run *run);
void attn_make_plan(struct attn *a, struct attn_shape *s);

/* route_fused.c, route_composed.c */
void attn_run_fused(const struct attn_work *w, const struct attn_call *call);
void attn_run_composed(const struct attn_work *w, const struct attn_call *call);
size_t attn_composed_most(const struct attn_config *c, const struct attn_layer *l); /* scratch that no call of the layer exceeds */
size_t attn_composed_bytes(const struct attn_work *w); /* most scratch of a call of the layer's plan; 0: there is none by this route */

#endif
