/* graph.c — buckets of recorded decoding steps. The rules are in graph.h. */
#include "engine/graph.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

enum {
  BUCKETS_EXACT = 8, /* up to so many rows there is a bucket for each number */
  BUCKET_STEP = 4,   /* beyond: products of 4 rows cost little more than those of fewer (gemm.h) */
  /* Room in a record. A plain transformer layer is some 20 launches, a step 10 more; contexts take 200 bytes, those of products of three weights 350. */
  LAUNCHES_PER_LAYER = 40,
  LAUNCHES_BESIDE = 24,
  CTX_BYTES_EACH = 256,
};

struct graph {
  struct model *m;
  struct batch *b;
  int rows_max, n_buckets;
  struct graph_stats stats;
  bool gave_up;                    /* a recording failed: what is not recorded stays eager */
  int n_roads;                     /* records of a bucket: without cross-attention, and with it where the model has some */
  struct device_record *records[]; /* [n_buckets, n_roads]; without launches: not recorded yet */
};

int graph_bucket(int n_rows, int rows_max) {
  if (n_rows < 1 || n_rows > rows_max) return 0;
  if (n_rows <= BUCKETS_EXACT) return n_rows;
  return (int)MIN(align_up((size_t)n_rows, BUCKET_STEP), (size_t)rows_max);
}

/* Index of a bucket; the last one need not be a multiple of the step. */
static int bucket_index(int bucket) {
  return bucket <= BUCKETS_EXACT ? bucket - 1 : BUCKETS_EXACT - 1 + div_up(bucket - BUCKETS_EXACT, BUCKET_STEP);
}

static int bucket_count(int rows_max) { return bucket_index(rows_max) + 1; }

static int road_count(const struct model_config *c) { return config_has_cross(c) ? 2 : 1; }

static int launches_max(const struct model_config *c) { return c->n_layers * LAUNCHES_PER_LAYER + LAUNCHES_BESIDE; }
static size_t ctx_bytes_max(const struct model_config *c) { return (size_t)launches_max(c) * CTX_BYTES_EACH; }

size_t graph_bytes(const struct model_config *c, const struct device_ops *ops, int rows_max) {
  if (rows_max < 1) return 0;
  size_t n = (size_t)(bucket_count(rows_max) * road_count(c));
  return sizeof(struct graph) + n * (sizeof(struct device_record *) + align_up(ops->record_bytes(launches_max(c), ctx_bytes_max(c)), 4096));
}

struct graph *graph_new(struct model *m, struct batch *b, int rows_max, struct err *e) {
  const struct model_plan *p = &m->plan;
  const int capacities[] = {b->rows_max, b->out_max, p->rows_max, p->out_max};
  for (size_t i = 0; i < ARRAY_LEN(capacities); i++) rows_max = MIN(rows_max, capacities[i]);
  CHECK(rows_max >= 1);
  int n_roads = road_count(&m->config), n = bucket_count(rows_max) * n_roads;
  struct graph *g = xcalloc(1, sizeof *g + (size_t)n * sizeof g->records[0]);
  g->m = m;
  g->b = b;
  g->rows_max = rows_max;
  g->n_buckets = n / n_roads;
  g->n_roads = n_roads;
  for (int i = 0; i < n; i++) {
    g->records[i] = m->dev->ops->record_new(m->dev, launches_max(&m->config), ctx_bytes_max(&m->config), e);
    if (!g->records[i]) {
      graph_delete(g);
      return NULL;
    }
  }
  return g;
}

void graph_delete(struct graph *g) {
  if (!g) return;
  for (int i = 0; i < g->n_buckets * g->n_roads; i++) g->m->dev->ops->record_delete(g->m->dev, g->records[i]);
  free(g);
}

struct graph_stats graph_stats(const struct graph *g) {
  return g->stats;
}

/* Every row is a token and wants its logits. */
static bool is_decoding(const struct batch *b) { return b->n_rows == b->n_out /* ascending, so out[i] is i */ && b->n_soft == 0; }

/* Rows [b->n_rows, n_rows) see nothing, write nowhere, and belong to no sequence. */
static void pad(struct batch *b, int n_rows) {
  for (int r = b->n_rows; r < n_rows; r++) {
    b->token[r] = b->pos[r] = 0;
    b->seq[r] = 0;
    b->out[r] = r;
    if (b->n_best) b->n_best[r] = -1;
    if (b->soft) b->soft[r] = -1;
    for (int k = 0; k < BATCH_KINDS; k++)
      if (b->lo[k]) b->lo[k][r] = b->hi[k][r] = 0;
    for (int k = 0; k < KV_KINDS; k++) b->slot[k][r] = 0;
  }
  b->n_rows = b->n_out = n_rows;
}

/* The step once more, into r: nothing is computed. It was run before, so all of its memory is there. */
static void record_after(struct graph *g, struct model *m, const struct batch *b, struct device_record *r) {
  const struct device_ops *d = m->dev->ops;
  struct tensor logits = tensor_rows(m->logits, b->n_out);
  d->record_begin(m->dev, r);
  m->ops->forward(m, b, &logits);
  d->record_end(m->dev, r);
  g->gave_up = d->record_launches(r) == 0;
}

/* The first step of a bucket: logits of its first n_live rows. */
static struct tensor record(struct graph *g, struct model *m, const struct batch *b, struct device_record *r, int n_live) {
  const struct device_ops *d = m->dev->ops;
  struct tensor logits;
  if (d->record_runs) d->record_begin(m->dev, r);
  model_launch(m, b);
  if (d->record_runs) d->record_end(m->dev, r);
  logits = model_fetch(m, n_live);
  if (!d->record_runs && !isnan(tensor_row(&logits, 0)[0])) record_after(g, m, b, r); /* what failed is not recorded */
  g->stats.n_recorded += d->record_launches(r) > 0;
  return logits;
}

static struct tensor replay(struct graph *g, struct model *m, const struct batch *b, struct device_record *r, int n_live) {
  const struct device_ops *d = m->dev->ops;
  d->step(m->dev, b);
  m->attn_ops->prepare(m->attn, b);
  d->record_replay(m->dev, r);
  g->stats.n_replayed++;
  g->stats.n_launches = d->record_launches(r);
  return model_fetch(m, n_live);
}

struct tensor graph_forward(struct graph *g, struct model *m, struct batch *b) {
  int bucket = g && !m->tap && is_decoding(b) ? graph_bucket(b->n_rows, g->rows_max) : 0;
  if (!bucket) return model_forward(m, b);
  CHECK(m == g->m && b == g->b);
  CHECK(b->n_cross == 0 || g->n_roads == 2);
  struct device_record *r = g->records[bucket_index(bucket) * g->n_roads + (b->n_cross > 0)];
  bool is_recorded = m->dev->ops->record_launches(r) > 0;
  if (!is_recorded && g->gave_up) return model_forward(m, b);
  int n_live = b->n_rows;
  pad(b, bucket);
  struct tensor logits = is_recorded ? replay(g, m, b, r, n_live) : record(g, m, b, r, n_live);
  b->n_rows = b->n_out = n_live;
  return tensor_rows(logits, n_live);
}
