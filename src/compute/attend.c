/* attend.c — cutting encoders' attention into heads in flight and blocks of rows, and spreading them over workers. */
#include "compute/attend.h"

#include "base/record.h"

enum { HEADS_MOST = 16, PACK_TILES = 4 /* tiles of keys per item of packing */ };

/* With so many heads at once there are a few blocks for each worker in a call of some hundred rows. */
static int heads_in_flight(int n_workers) { return MIN(MAX(n_workers, 2), HEADS_MOST); }
static size_t worker_floats(int head_dim_max) { return align_up(attend_block_floats(head_dim_max), 16); }

size_t attend_scratch_bytes(int keys_max, int head_dim_max, int n_workers) {
  if (keys_max < 1 || head_dim_max < 1) return 0;
  size_t panels = 2 * (size_t)heads_in_flight(n_workers) * attend_panel_floats(keys_max, head_dim_max);
  return (panels + (size_t)n_workers * worker_floats(head_dim_max)) * sizeof(float);
}

struct attend_call {
  const struct kern *kern;
  struct tensor out, q, k, v;
  const int32_t *lo, *hi;
  float scale;
  int head_dim, first_head, n_heads; /* of this launch */
  int n_blocks, n_packs;             /* per head */
  float *panels, *workers;
  size_t panel_floats, worker_floats;
};

static float *panels_of(const struct attend_call *c, int head, int which) {
  return c->panels + (2 * (size_t)head + (size_t)which) * c->panel_floats;
}
/* A head's part of a row; head counts from the launch's first. */
static float *head_of(const struct attend_call *c, const struct tensor *t, int row, int head) {
  return tensor_row(t, row) + (size_t)(c->first_head + head) * (size_t)c->head_dim;
}

static void pack_item(void *ctx, int item, int worker) {
  const struct attend_call *c = ctx;
  int head = item / c->n_packs, from = item % c->n_packs * PACK_TILES * ATTEND_TILE, to = MIN(from + PACK_TILES * ATTEND_TILE, c->k.rows);
  (void)worker;
  c->kern->attend->pack(panels_of(c, head, 0), panels_of(c, head, 1), head_of(c, &c->k, 0, head), c->k.row_bytes,
                        head_of(c, &c->v, 0, head), c->v.row_bytes, c->head_dim, c->k.rows, from, to);
}

static void block_item(void *ctx, int item, int worker) {
  const struct attend_call *c = ctx;
  const struct attend_kern *kern = c->kern->attend;
  int head = item / c->n_blocks, row = item % c->n_blocks * ATTEND_ROWS, end = MIN(row + ATTEND_ROWS, c->q.rows);
  struct attend_block b = {.head_dim = c->head_dim,
                           .scale = c->scale,
                           .q_bytes = c->q.row_bytes,
                           .out_bytes = c->out.row_bytes,
                           .k = kern->packs ? panels_of(c, head, 0) : head_of(c, &c->k, 0, head),
                           .v = kern->packs ? panels_of(c, head, 1) : head_of(c, &c->v, 0, head),
                           .k_bytes = c->k.row_bytes,
                           .v_bytes = c->v.row_bytes,
                           .n_keys = c->k.rows,
                           .scratch = c->workers + (size_t)worker * c->worker_floats};
  for (; row < end; row += b.n_rows) {
    b.lo = c->lo[row], b.hi = c->hi[row];
    for (b.n_rows = 1; row + b.n_rows < end && c->lo[row + b.n_rows] == b.lo && c->hi[row + b.n_rows] == b.hi;) b.n_rows++;
    b.q = head_of(c, &c->q, row, head);
    b.out = head_of(c, &c->out, row, head);
    if (b.lo < b.hi) {
      CHECK(b.lo >= 0 && b.hi <= c->k.rows);
      kern->block(&b);
    } else {
      for (int r = row; r < row + b.n_rows; r++) memset(head_of(c, &c->out, r, head), 0, (size_t)c->head_dim * sizeof(float));
    }
  }
}

void attend(const struct kern *kern, struct workers *workers, const struct attend_scratch *s, struct tensor *out, const struct tensor *q,
            const struct tensor *k, const struct tensor *v, int n_heads, float scale, const int32_t *lo, const int32_t *hi) {
  CHECK(n_heads > 0 && q->cols % n_heads == 0 && k->cols == q->cols && v->cols == q->cols && out->cols == q->cols);
  CHECK(v->rows == k->rows && out->rows >= q->rows && k->rows <= s->keys_max && workers_count(workers) <= s->n_workers);
  struct attend_call c = {
      .kern = kern, .out = *out, .q = *q, .k = *k, .v = *v, .lo = lo, .hi = hi, .scale = scale, .head_dim = q->cols / n_heads};
  CHECK(c.head_dim <= s->head_dim_max && c.head_dim <= ATTEND_HEAD_DIM_MAX);
  int in_flight = heads_in_flight(s->n_workers);
  c.n_blocks = div_up(q->rows, ATTEND_ROWS);
  c.n_packs = div_up(k->rows, PACK_TILES * ATTEND_TILE);
  c.panels = s->data;
  c.panel_floats = attend_panel_floats(s->keys_max, s->head_dim_max);
  c.worker_floats = worker_floats(s->head_dim_max);
  c.workers = c.panels + 2 * (size_t)in_flight * c.panel_floats;
  for (; c.first_head < n_heads; c.first_head += c.n_heads) {
    c.n_heads = MIN(in_flight, n_heads - c.first_head);
    if (kern->attend->packs) workers_launch(workers, pack_item, &c, sizeof c, c.n_heads * c.n_packs, NULL);
    workers_launch(workers, block_item, &c, sizeof c, c.n_heads * c.n_blocks, NULL);
  }
}
