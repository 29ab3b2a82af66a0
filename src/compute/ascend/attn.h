/* attn.h — attention on the NPU: one storage of keys and values, several routes to the result.
 *
 * Storage: for each owning layer two pools of pages, [pages, page_tokens, n_kv * head_dim] (CANN's "BnBsH") of the device's type; page 0 is the one that nobody
 * is given. Behind the last page of a pool there are rows_max waste slots: rows that write nowhere write there, each to its own, because
 * an operator's behaviour with two writes to one slot is not specified.
 *
 * Routes. Rows of a step come in runs: the rows of a sequence, or one row each of consecutive sequences. prepare looks at every run's intervals
 * and at nothing else, once for each kind of layer; a route is taken only when it expresses exactly those intervals.
 *
 *   name      call                                       one row each   many rows        intervals it can express
 *   tnd       FIA, TND, paged, sparse 3 or 4             all rows of the step at once    causal; band of W
 *   bsnd      FIA, BSND, paged, sparse 3 or 4, one       —              yes              causal; band of W
 *             call for each sequence
 *   decode    FIA, BSH, one query, paged, no mask        yes            —                [0, n)
 *   masked    the same with a mask over the pages of     yes            —                [lo, n)
 *             the window
 *   window    the window's keys gathered by slot to      yes            —                [lo, n), n - lo <= the window
 *             dense memory, then the same without mask
 *   cross     FIA, BSND, dense or paged banks, no mask   yes            yes              one [lo, hi) for all rows of the run
 *   composed  keys gathered, products, mask, softmax:    yes            yes              any
 *             works from the first key that a row of
 *             the run sees to the last, query as it is
 *
 * Which is tried first for a kind of layer and number of rows is decided in open, from the profile, head_dim, page_tokens and the routes' own
 * tests (attn_ascend_selftest), and printed; runs that the first cannot express take the next one that can, at last the composed one.
 * The window is one rule: [lo, hi) of the batch. A band of FIA has pre_tokens = W - 1, next_tokens = 0, where W = hi - lo of rows whose lo
 * is above 0.
 *
 * Recorded steps: every run is one row each, tables and lengths are static memory; what the host passes by value (lengths of keys) is given anew for every
 * replay through capture.h. A padding row has 0 keys. Tables are as wide as the longest sequence, but only what is in use is sent: the
 * host's work for a replay grows with rows and pages in use, not with the longest possible sequence.
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
};

const char *attn_route_name(enum attn_route r);
/* THE table. Whether the route can do it on this chip and CANN; if not, *why (may be NULL) is a sentence's end: "heads of 512 are too wide for
 * TND". */
bool attn_route_can(enum attn_route r, const struct ascend_profile *p, const struct attn_need *n, const char **why);

/* CYGNET_ASCEND_ROUTES in the environment, "tnd,decode,...": only those (and the composed one unless "-composed" is there); for tests and
 * for finding faults. Parsed once, in open. */

/* Small problems with known answers (float64 on the host), for each route that this model would use: lengths around 1, W - 1, W, W + 1, 512, page
 * ends. A route that fails is not used, and a warning says so. */
struct attn_selftest {
  bool tried[ROUTE_COUNT], right[ROUTE_COUNT];
  double worst[ROUTE_COUNT]; /* difference, of outputs of size 1 */
};
int attn_ascend_selftest(struct ascend *d, const struct attn_need *needs, int n_needs, int window, struct attn_selftest *out,
                         struct err *e);

/* What was chosen, for a person: one line for each kind of layer and number of rows. */
void attn_ascend_print(const struct attn *a, void (*line)(void *ctx, const char *text), void *ctx);

#endif
