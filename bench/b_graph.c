/* b_graph.c — decoding steps eager and in graph mode, and what lies between two loops as fork-joins and in a list.
 *
 * Usage: b_graph [model file [threads [pairs [depth]]]]
 * Steps of 1, 4 and 16 sequences at the given depth (their keys are zeros: no prompt is computed). Both modes take turns, and each pair changes their
 * order; medians of all, the least of all, and the median of the pairs' ratios. Without a model: the loops alone.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/record.h"
#include "engine/graph.h"

enum { ROWS_MOST = 16, PAGE = 16 };

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}
static double median(double *x, int n) {
  qsort(x, (size_t)n, sizeof *x, compare);
  return n ? x[n / 2] : 0;
}

static void die(const struct err *e) {
  fprintf(stderr, "%s\n", e->msg);
  exit(1);
}

/* --- loops ---------------------------------------------------------------------------------------------------------------- */

enum { LOOPS = 500, ROUNDS = 40, ITEM_NS = 4000 };

static struct {
  int64_t start_ns, end_ns;
  int worker;
} seen[LOOPS][2];

static void busy_item(void *ctx, int item, int worker) {
  int loop = *(int *)ctx;
  int64_t start = clock_ns(), now;
  do now = clock_ns();
  while (now - start < ITEM_NS);
  seen[loop][item].start_ns = start;
  seen[loop][item].end_ns = now;
  seen[loop][item].worker = worker;
}
static void serial_item(void *ctx, int item, int worker) { (void)ctx, (void)item, (void)worker; }

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

/* From the end of a loop's last item to the start of the next loop's later item, where two workers shared both loops. */
static int add_gaps(double *gaps, int n) {
  for (int i = 0; i + 1 < LOOPS; i++) {
    if (seen[i][0].worker == seen[i][1].worker || seen[i + 1][0].worker == seen[i + 1][1].worker) continue;
    gaps[n++] = (double)(later(seen[i + 1][0].start_ns, seen[i + 1][1].start_ns) - later(seen[i][0].end_ns, seen[i][1].end_ns));
  }
  return n;
}

static void launch_all(struct workers *w, int n_serial) {
  for (int i = 0; i < LOOPS; i++) {
    workers_launch(w, busy_item, &i, sizeof i, 2, NULL);
    for (int j = 0; j < n_serial; j++) workers_launch(w, serial_item, &i, sizeof i, 1, NULL);
  }
}

static void bench_loops(int n_serial) {
  static double eager[LOOPS * ROUNDS], list[LOOPS * ROUNDS];
  struct err e;
  int n_eager = 0, n_list = 0;
  struct workers *w = workers_new(2, &e);
  if (!w) die(&e);
  struct record *r = record_new(LOOPS * (1 + n_serial), (size_t)LOOPS * (size_t)(1 + n_serial) * sizeof(int), &e);
  if (!r) die(&e);
  workers_record(w, r);
  launch_all(w, n_serial);
  workers_record(w, NULL);
  for (int i = 0; i < ROUNDS; i++) {
    for (int j = 0; j < 2; j++) {
      if ((i + j) % 2) launch_all(w, n_serial), n_eager = add_gaps(eager, n_eager);
      else workers_replay(w, r), n_list = add_gaps(list, n_list);
    }
  }
  printf(
      "2 threads, between two loops, %d launches of one item in between: %4.0f ns as fork-joins, %4.0f ns in a list (medians of %d and %d)\n",
      n_serial, median(eager, n_eager), median(list, n_list), n_eager, n_list);
  record_delete(r);
  workers_delete(w);
}

/* --- a model --------------------------------------------------------------------------------------------------------------- */

static void batch_new(struct batch *b, int pages_max) {
  *b = (struct batch){.rows_max = ROWS_MOST, .seqs_max = ROWS_MOST, .out_max = ROWS_MOST};
  b->token = xcalloc(ROWS_MOST, sizeof *b->token);
  b->pos = xcalloc(ROWS_MOST, sizeof *b->pos);
  b->seq = xcalloc(ROWS_MOST, sizeof *b->seq);
  b->q_start = xcalloc(ROWS_MOST + 1, sizeof *b->q_start);
  b->out = xcalloc(ROWS_MOST, sizeof *b->out);
  for (int k = 0; k < KV_KINDS; k++) {
    b->lo[k] = xcalloc(ROWS_MOST, sizeof *b->lo[k]);
    b->hi[k] = xcalloc(ROWS_MOST, sizeof *b->hi[k]);
    b->slot[k] = xcalloc(ROWS_MOST, sizeof *b->slot[k]);
    b->pages_max[k] = pages_max;
    b->page[k] = xcalloc((size_t)ROWS_MOST * (size_t)pages_max, sizeof *b->page[k]);
  }
}

static void batch_fill(struct batch *b, const struct model_config *c, int n, int pos) {
  b->n_rows = b->n_seqs = b->n_out = n;
  for (int r = 0; r < n; r++) {
    b->token[r] = 100 + r, b->pos[r] = pos, b->seq[r] = b->out[r] = r, b->q_start[r + 1] = r + 1;
    for (int k = 0; k < KV_KINDS; k++) {
      const int pages = b->pages_max[k];
      for (int i = 0; i < pages; i++) b->page[k][r * pages + i] = 1 + r * pages + i;
      b->lo[k][r] = k == KV_SLIDING ? (int32_t)kv_window_lo(pos, c->window_tokens) : 0;
      b->hi[k][r] = pos + 1;
      b->slot[k][r] = (int64_t)b->page[k][r * pages + pos / PAGE] * PAGE + pos % PAGE;
    }
  }
}

static double step_ms(struct graph *g, struct model *m, struct batch *b, uint64_t *fork_joins) {
  uint64_t before = workers_runs(m->dev->workers);
  int64_t start = clock_ns();
  graph_forward(g, m, b);
  int64_t end = clock_ns();
  *fork_joins = workers_runs(m->dev->workers) - before;
  return (double)(end - start) * 1e-6;
}

static void bench_model(const char *path, int threads, int n_pairs, int depth) {
  struct err e = {0};
  struct model_config *c = xcalloc(1, sizeof *c);
  struct weights *w = weights_open(path, c, &e);
  if (!w) die(&e);
  int pages_max = div_up(depth + 1, PAGE);
  struct model_plan plan = {.n_threads = threads, .kv_dtype = DTYPE_BF16, .page_tokens = PAGE, .quiet = true};
  plan.rows_max = plan.out_max = plan.seqs_max = ROWS_MOST, plan.tokens_max = depth + 1;
  plan.n_pages[KV_FULL] = plan.n_pages[KV_SLIDING] = ROWS_MOST * pages_max;
  struct model *m = model_open(c, w, &plan, &e);
  if (!m) die(&e);
  struct batch b;
  batch_new(&b, pages_max);
  struct graph *g = graph_new(m, &b, ROWS_MOST, &e);
  if (!g) die(&e);
  double *eager = xcalloc((size_t)n_pairs, sizeof *eager), *replay = xcalloc((size_t)n_pairs, sizeof *replay);
  double *ratio = xcalloc((size_t)n_pairs, sizeof *ratio);
  static const int rows[] = {1, 4, 16};
  for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
    uint64_t joins_eager = 0, joins_replay = 0;
    batch_fill(&b, c, rows[i], depth);
    for (int j = 0; j < 3; j++) graph_forward(g, m, &b); /* recorded by the first */
    for (int j = 0; j < n_pairs; j++) {
      for (int k = 0; k < 2; k++) {
        if ((j + k) % 2) eager[j] = step_ms(NULL, m, &b, &joins_eager);
        else replay[j] = step_ms(g, m, &b, &joins_replay);
      }
      ratio[j] = replay[j] / eager[j];
    }
    double ms[2] = {median(eager, n_pairs), median(replay, n_pairs)}; /* sorted now: the fastest is the first */
    printf(
        "%d threads, %2d rows, depth %d: eager %8.3f ms (least %8.3f), %3d fork-joins; graph %8.3f ms (least %8.3f), %d, of %d launches; "
        "graph / eager %.4f\n",
        workers_count(m->dev->workers), rows[i], depth, ms[0], eager[0], (int)joins_eager, ms[1], replay[0], (int)joins_replay,
        graph_stats(g).n_launches, median(ratio, n_pairs));
    fflush(stdout);
  }
  free(eager);
  free(replay);
  free(ratio);
  graph_delete(g);
  model_close(m);
  weights_close(w);
  free(c);
  free(b.token);
  free(b.pos);
  free(b.seq);
  free(b.q_start);
  free(b.out);
  for (int k = 0; k < KV_KINDS; k++) {
    free(b.lo[k]);
    free(b.hi[k]);
    free(b.slot[k]);
    free(b.page[k]);
  }
}

int main(int argc, char **argv) {
  bench_loops(0);
  bench_loops(5);
  if (argc < 2) {
    printf("no model: name a file for whole steps\n");
    return 0;
  }
  int threads = argc > 2 ? atoi(argv[2]) : 0, n_pairs = argc > 3 ? atoi(argv[3]) : 100, depth = argc > 4 ? atoi(argv[4]) : 256;
  if (threads < 0 || n_pairs < 1 || depth < 1) {
    fprintf(stderr, "b_graph: expected threads from 0, pairs from 1, a depth from 1\n");
    return 2;
  }
  bench_model(argv[1], threads, n_pairs, depth);
  return 0;
}
