/* cpu.c — device.h on the CPU: one short function per operation.
 *
 * An operation whose rows are independent is a struct cpu_job: a function over a rectangle [row, row_end) × [col, col_end) and what it needs.
 * cpu_spread launches it, cut over the workers when there is enough to do. Where it cuts changes no bit: kernels work row by row, and those that
 * are cut by columns work number by number.
 *
 * A job is recorded by value (base/record.h): it holds tensors, not pointers to them, and what its function reads through pointers is there for
 * as long as the model is. An operation's own code looks at shapes only; at ids and positions the job's function does.
 */
#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/record.h"
#include "compute/attend.h"
#include "compute/attend_near.h"
#include "compute/device.h"
#include "compute/gemm_quant.h"
#include "compute/head.h"
#include "compute/rope.h"
#include "compute/shortlist.h"

enum {
  SPREAD_ELEMS = 16 << 10, /* numbers whose arithmetic is worth a fork-join */
  ITEMS_PER_WORKER = 4,
  COLS_PER_ITEM_LEAST = 4096, /* a multiple of every vector, and several cache lines */
  ROPE_ELEM_COST = 8,         /* a sine and a cosine, in plain numbers' arithmetic */
};

struct cpu_block { /* memory that alloc gave out; tensors change their rows, so their sizes are kept here */
  void *data;
  size_t n_bytes;
};

struct cpu {
  struct device device;
  const struct device_link *link;
  struct gemm_scratch gemm;
  struct moe_scratch moe;
  struct attend_scratch attend;
  struct cpu_block *blocks;
  int n_blocks, blocks_cap;
};

struct cpu_job {
  void (*fn)(const struct cpu_job *j, int row, int row_end, int col, int col_end);
  const struct kern *kern;
  struct tensor y, x, up;
  const float *w, *b;
  float f, most; /* eps, factor, cap or least */
  enum act act;
  int groups; /* or taps, heads, rows that are pooled */
  const struct weight *table;
  int from; /* column of the table */
  const struct rope_table *rope, *rope_y;
  const int32_t *ids, *hi; /* tokens, positions, rows; or intervals [ids, hi) */
  int rows, cols, rows_per_item, cols_per_item;
};

static struct cpu *cpu_of(struct device *d) { return (struct cpu *)d; }

static void cpu_job_item(void *ctx, int item, int worker) {
  (void)worker;
  const struct cpu_job *j = ctx;
  int across = div_up(j->cols, j->cols_per_item);
  int row = item / across * j->rows_per_item, col = item % across * j->cols_per_item;
  j->fn(j, row, MIN(row + j->rows_per_item, j->rows), col, MIN(col + j->cols_per_item, j->cols));
}

/* cost: arithmetic per number, 1 = that of an addition or two. by_cols: the function can do part of a row. */
static void cpu_spread(struct device *d, struct cpu_job *j, int rows, int cols, int cost, bool by_cols) {
  int n_workers = workers_count(d->workers);
  j->kern = d->kern;
  j->rows = j->rows_per_item = rows;
  j->cols = j->cols_per_item = cols;
  if (rows < 1 || cols < 1) return;
  if (n_workers > 1 && (int64_t)rows * cols * cost >= SPREAD_ELEMS) {
    j->rows_per_item = div_up(rows, ITEMS_PER_WORKER * n_workers);
    if (by_cols && rows < ITEMS_PER_WORKER * n_workers) {
      int wanted = div_up(ITEMS_PER_WORKER * n_workers, rows);
      j->cols_per_item = (int)align_up((size_t)div_up(cols, wanted), COLS_PER_ITEM_LEAST);
    }
  }
  workers_launch(d->workers, cpu_job_item, j, sizeof *j, div_up(rows, j->rows_per_item) * div_up(cols, j->cols_per_item), NULL);
}

/* --- life --------------------------------------------------------------------------------------------------------------- */

static void cpu_close(struct device *d) {
  if (!d) return;
  struct cpu *c = cpu_of(d);
  for (int i = 0; i < c->n_blocks; i++) mem_big_free(c->blocks[i].data, c->blocks[i].n_bytes);
  free(c->blocks);
  mem_big_free(c->gemm.data, c->gemm.n_bytes);
  mem_big_free(c->attend.data, c->attend.n_bytes);
  moe_scratch_free(&c->moe);
  workers_delete(d->workers);
  free(c);
}

static struct device *cpu_open(const struct device_config *config, struct err *e) {
  struct cpu *c = xcalloc(1, sizeof *c);
  c->device.ops = &device_cpu_ops;
  c->device.kern = kern_select(config->isa, e);
  if (!c->device.kern) goto fail;
  c->device.workers = workers_new(config->n_threads, e);
  if (!c->device.workers) goto fail;
  c->link = config->link;
  c->gemm.rows_max = config->rows_max;
  c->gemm.cols_max = config->cols_max;
  c->gemm.n_workers = workers_count(c->device.workers);
  c->gemm.n_bytes = gemm_scratch_bytes(config->rows_max, config->cols_max, c->gemm.n_workers);
  if (c->gemm.n_bytes > 0 && !(c->gemm.data = mem_big_alloc(c->gemm.n_bytes, "scratch of products", e))) goto fail;
  if (moe_scratch_init(&c->moe, &config->experts, c->gemm.n_workers, e)) goto fail;
  c->attend.keys_max = config->keys_max;
  c->attend.head_dim_max = config->head_dim_max;
  c->attend.n_workers = c->gemm.n_workers;
  c->attend.n_bytes = attend_scratch_bytes(config->keys_max, config->head_dim_max, c->attend.n_workers);
  if (c->attend.n_bytes > 0 && !(c->attend.data = mem_big_alloc(c->attend.n_bytes, "scratch of attention", e))) goto fail;
  return &c->device;
fail:
  cpu_close(&c->device);
  return NULL;
}

/* --- memory ------------------------------------------------------------------------------------------------------------- */

/* An odd number of cache lines: products write 16 columns of many rows at a time, and rows a power of two apart would all fall into the same few
 * sets of the cache. */
static size_t cpu_row_bytes(int cols) {
  size_t lines = align_up((size_t)cols * sizeof(float), 64) / 64;
  return (lines | 1) * 64;
}

static int cpu_alloc(struct device *d, struct tensor *t, int rows, int cols, const char *what, struct err *e) {
  struct cpu *c = cpu_of(d);
  CHECK(rows >= 0 && cols >= 0);
  *t = (struct tensor){.dtype = DTYPE_F32, .rows = rows, .cols = cols, .row_bytes = cpu_row_bytes(cols)};
  size_t n_bytes;
  if (size_mul_overflows((size_t)rows, t->row_bytes, &n_bytes))
    return err_set(e, ERR_TOO_LARGE, "%s: %d x %d numbers are too many", what, rows, cols);
  if (n_bytes == 0) return 0;
  t->data = mem_big_alloc(n_bytes, what, e);
  if (!t->data) return -1;
  if (c->n_blocks == c->blocks_cap) {
    c->blocks_cap = MAX(2 * c->blocks_cap, 64);
    c->blocks = xrealloc(c->blocks, (size_t)c->blocks_cap * sizeof *c->blocks);
  }
  c->blocks[c->n_blocks++] = (struct cpu_block){t->data, n_bytes};
  return 0;
}

static void cpu_free(struct device *d, struct tensor *t) {
  struct cpu *c = cpu_of(d);
  for (int i = c->n_blocks - 1; t->data && i >= 0; i--) {
    if (c->blocks[i].data != t->data) continue;
    mem_big_free(t->data, c->blocks[i].n_bytes);
    c->blocks[i] = c->blocks[--c->n_blocks];
    t->data = NULL;
  }
  CHECK(!t->data); /* not from alloc, or only a part of what alloc gave */
  *t = (struct tensor){0};
}

/* --- near: nothing is moved ------------------------------------------------------------------------------------------------ */

static int cpu_host_alloc(struct device *d, struct tensor *host, int rows, int cols, const char *what, struct err *e) {
  (void)d, (void)what, (void)e;
  *host = (struct tensor){.dtype = DTYPE_F32, .rows = rows, .cols = cols};
  return 0;
}
static void cpu_host_free(struct device *d, struct tensor *host) {
  (void)d;
  *host = (struct tensor){0};
}
static void cpu_fetch(struct device *d, struct tensor *host, const struct tensor *x) {
  (void)d;
  *host = *x;
}
static struct tensor cpu_stage(struct device *d, const struct tensor *t) {
  (void)d;
  return *t;
}
static void cpu_send(struct device *d, const struct tensor *t, const struct tensor *staged) {
  (void)d;
  CHECK(t->data == staged->data);
}
static int cpu_table_bind(struct device *d, struct weight *w, const char *name, struct err *e) {
  (void)d, (void)name, (void)e;
  w->packed = NULL;
  w->packed_bytes = 0;
  return 0;
}
static int cpu_hold(struct device *d, const float *w, size_t n, struct err *e) {
  (void)d, (void)w, (void)n, (void)e;
  return 0;
}
static void cpu_drop(struct device *d, const float *w) { (void)d, (void)w; }
static int cpu_hold_batch(struct device *d, const struct batch *b, struct err *e) {
  (void)d, (void)b, (void)e;
  return 0;
}
static void cpu_step(struct device *d, const struct batch *b) { (void)d, (void)b; }
static int cpu_finish(struct device *d, struct err *e) {
  (void)d, (void)e;
  return 0;
}

/* --- records: base/record.h ------------------------------------------------------------------------------------------------- */

static struct record *record_of(const struct device_record *r) { return (struct record *)(uintptr_t)r; }

static const char *cpu_no_records(const struct device *d) {
  (void)d;
  return NULL;
}
static struct device_record *cpu_record_new(struct device *d, int launches_max, size_t ctx_bytes_max, struct err *e) {
  (void)d;
  return (struct device_record *)record_new(launches_max, ctx_bytes_max, e);
}
static void cpu_record_delete(struct device *d, struct device_record *r) {
  (void)d;
  record_delete(record_of(r));
}
static void cpu_record_begin(struct device *d, struct device_record *r) { workers_record(d->workers, record_of(r)); }
static void cpu_record_end(struct device *d, struct device_record *r) {
  (void)r;
  workers_record(d->workers, NULL);
}
static int cpu_record_launches(const struct device_record *r) { return record_launches(record_of(r)); }
static void cpu_record_replay(struct device *d, struct device_record *r) { workers_replay(d->workers, record_of(r)); }

/* --- weights ------------------------------------------------------------------------------------------------------------- */

static int cpu_shortlist_bind(struct device *d, struct weight *w, const char *name, struct err *e) {
  size_t n_bytes = w->is_head ? shortlist_bytes(d->kern, w) : 0;
  if (n_bytes == 0) return 0;
  w->shortlist = mem_big_alloc_local(n_bytes, name, e);
  if (!w->shortlist) return -1;
  w->shortlist_bytes = n_bytes;
  return shortlist_make(d->kern, d->workers, w, e);
}

static void cpu_weight_free(struct device *d, struct weight *w, int n) {
  size_t n_bytes = 0;
  (void)d;
  for (int i = 0; i < n; i++) {
    n_bytes += w[i].packed_bytes;
    mem_big_free(w[i].shortlist, w[i].shortlist_bytes);
  }
  if (n > 0) mem_big_free(w[0].packed, n_bytes);
  for (int i = 0; i < n; i++) w[i] = (struct weight){0};
}

static int cpu_weight_bind(struct device *d, struct weight *w, int n, const char *name, struct err *e) {
  size_t n_bytes = 0;
  for (int i = 0; i < n; i++) {
    w[i].packed = w[i].shortlist = NULL;
    w[i].packed_bytes = w[i].shortlist_bytes = 0;
    w[i].layout = 0;
    if (!gemm_supports(d->kern, w[i].dtype, w[i].cols, e)) return err_prefix(e, "tensor %s", name);
    n_bytes += align_up(gemm_packed_bytes(d->kern, &w[i]), 64);
  }
  if (n_bytes == 0) return 0;
  char *block = mem_big_alloc_local(n_bytes, name, e); /* packing writes all of it, in the shares in which products read it */
  if (!block) return -1;
  for (int i = 0; i < n; i++) {
    w[i].packed = block;
    w[i].packed_bytes = align_up(gemm_packed_bytes(d->kern, &w[i]), 64);
    block += w[i].packed_bytes;
    gemm_pack(d->kern, d->workers, &w[i]);
  }
  for (int i = 0; i < n; i++)
    if (cpu_shortlist_bind(d, &w[i], name, e)) {
      cpu_weight_free(d, w, n);
      return -1;
    }
  return 0;
}

static int cpu_rope_init(struct device *d, struct rope_table *t, int head_dim, double theta, double factor, double rotated, struct err *e) {
  int half = head_dim / 2, rows = cpu_of(d)->gemm.rows_max;
  if (rope_angles_init(t, head_dim, theta, factor, rotated, e)) return -1;
  if (d->ops->alloc(d, &t->cos, rows, half, "rope", e) || d->ops->alloc(d, &t->sin, rows, half, "rope", e)) {
    d->ops->rope_free(d, t);
    return -1;
  }
  return 0;
}

static void cpu_rope_bands(struct device *d, struct rope_table *t, double factor, double low, double high, int tokens) {
  (void)d;
  rope_angles_bands(t, factor, low, high, tokens);
}

static void cpu_rope_divide(struct device *d, struct rope_table *t, const float *divisors) {
  (void)d;
  rope_angles_divide(t, divisors);
}

static void cpu_rope_free(struct device *d, struct rope_table *t) {
  cpu_free(d, &t->cos);
  cpu_free(d, &t->sin);
  rope_angles_free(t);
}

/* --- arithmetic --------------------------------------------------------------------------------------------------------- */

static void embed_rows(const struct cpu_job *j, int row, int row_end, int col, int col_end) { /* whole rows */
  (void)col;
  const struct weight *t = j->table;
  for (int r = row; r < row_end; r++) {
    CHECK(j->ids[r] >= 0 && j->ids[r] < t->rows);
    gemm_weight_row(j->kern, t, j->ids[r], tensor_row(&j->y, r));
    if (j->f != 1) j->kern->scale(tensor_row(&j->y, r), tensor_row(&j->y, r), j->f, col_end);
  }
}
static void cpu_embed(struct device *d, struct tensor *y, const struct weight *table, const int32_t *ids, float scale) {
  CHECK(y->cols == table->cols);
  struct cpu_job j = {.fn = embed_rows, .y = *y, .table = table, .ids = ids, .f = scale};
  cpu_spread(d, &j, y->rows, y->cols, 4, false);
}

/* A row may be far longer than what is worth keeping: it is gone through in pieces, each dequantised from where its first block begins. */
static void embed_add_rows(const struct cpu_job *j, int row, int row_end, int col, int col_end) {
  enum { PIECE = 1024 };
  const struct weight *t = j->table;
  const struct dtype_info *info = dtype_info(t->dtype);
  float piece[PIECE];
  for (int r = row; r < row_end; r++) {
    uint32_t id = (uint32_t)j->ids[r], known = 0u - (uint32_t)(id < (uint32_t)t->rows);
    const char *from = (const char *)t->source + (size_t)(id & known) * t->row_bytes;
    for (int c = col, n; c < col_end; c += n) {
      int at = j->from + c, skip = at % info->block_elems;
      n = MIN(PIECE - skip, col_end - c);
      dtype_to_f32(t->dtype, from + (size_t)(at / info->block_elems) * (size_t)info->block_bytes, piece,
                   align_up((size_t)(skip + n), (size_t)info->block_elems));
      j->kern->scale(piece + skip, piece + skip, j->f, n);
      j->kern->add(tensor_row(&j->y, r) + c, piece + skip, n);
    }
  }
}
static void cpu_embed_add(struct device *d, struct tensor *y, const struct weight *table, int from, const int32_t *ids, float scale) {
  CHECK(from >= 0 && y->cols <= table->cols - from && table->rows > 0 && !table->from);
  struct cpu_job j = {.fn = embed_add_rows, .y = *y, .table = table, .from = from, .ids = ids, .f = scale};
  cpu_spread(d, &j, y->rows, y->cols, 4, true);
}

static void cpu_linear(struct device *d, int n_w, const struct weight *const *w, struct tensor *const *y, const struct tensor *x) {
  for (int i = 0; i < n_w; i++) CHECK(w[i]->cols == x->cols && y[i]->cols == w[i]->rows && y[i]->rows == x->rows);
  CHECK(x->rows <= cpu_of(d)->gemm.rows_max && x->cols <= cpu_of(d)->gemm.cols_max);
  gemm(d->kern, d->workers, &cpu_of(d)->gemm, n_w, w, y, x);
}

static void cpu_moe(struct device *d, const struct moe *m, struct tensor *y, const struct tensor *x, const struct tensor *logits,
                    enum act act) {
  moe(d->kern, d->workers, &cpu_of(d)->moe, m, y, x, logits, act);
}

static void rmsnorm_rows(const struct cpu_job *j, int row, int row_end, int col, int col_end) {
  (void)col, (void)col_end;
  int n = j->x.cols / j->groups;
  for (int r = row; r < row_end; r++) {
    for (int g = 0; g < j->groups; g++) j->kern->rmsnorm(tensor_row(&j->y, r) + g * n, tensor_row(&j->x, r) + g * n, j->w, n, j->f);
  }
}
static void cpu_rmsnorm(struct device *d, struct tensor *y, const struct tensor *x, const float *w, int groups, float eps) {
  CHECK(y->cols == x->cols && y->rows >= x->rows && groups > 0 && x->cols % groups == 0);
  struct cpu_job j = {.fn = rmsnorm_rows, .y = *y, .x = *x, .w = w, .groups = groups, .f = eps};
  cpu_spread(d, &j, x->rows, x->cols, 1, false);
}

static void add_rmsnorm_rows(const struct cpu_job *j, int row, int row_end, int col, int col_end) {
  (void)col;
  for (int r = row; r < row_end; r++) j->kern->add_rmsnorm(tensor_row(&j->y, r), tensor_row(&j->x, r), j->w, col_end, j->f);
}
static void cpu_add_rmsnorm(struct device *d, struct tensor *y, const struct tensor *x, const float *w, float eps) {
  CHECK(y->cols == x->cols && y->rows >= x->rows);
  struct cpu_job j = {.fn = add_rmsnorm_rows, .y = *y, .x = *x, .w = w, .f = eps};
  cpu_spread(d, &j, x->rows, x->cols, 1, false);
}

static void add_rows(const struct cpu_job *j, int row, int row_end, int col, int col_end) {
  for (int r = row; r < row_end; r++) j->kern->add(tensor_row(&j->y, r) + col, tensor_row(&j->x, r) + col, col_end - col);
}
static void cpu_add(struct device *d, struct tensor *y, const struct tensor *x) {
  CHECK(y->cols == x->cols && y->rows >= x->rows);
  struct cpu_job j = {.fn = add_rows, .y = *y, .x = *x};
  cpu_spread(d, &j, x->rows, x->cols, 1, true);
}

static void scale_rows(const struct cpu_job *j, int row, int row_end, int col, int col_end) {
  for (int r = row; r < row_end; r++) j->kern->scale(tensor_row(&j->y, r) + col, tensor_row(&j->x, r) + col, j->f, col_end - col);
}
static void cpu_scale(struct device *d, struct tensor *y, const struct tensor *x, float s) {
  CHECK(y->cols == x->cols && y->rows >= x->rows);
  struct cpu_job j = {.fn = scale_rows, .y = *y, .x = *x, .f = s};
  cpu_spread(d, &j, x->rows, x->cols, 1, true);
}

static void gated_rows(const struct cpu_job *j, int row, int row_end, int col, int col_end) {
  for (int r = row; r < row_end; r++) {
    j->kern->gated(tensor_row(&j->y, r) + col, tensor_row(&j->x, r) + col, tensor_row(&j->up, r) + col, j->act, col_end - col);
  }
}
static void cpu_gated(struct device *d, struct tensor *y, const struct tensor *gate, const struct tensor *up, enum act act) {
  CHECK(y->cols == gate->cols && up->cols == gate->cols && y->rows >= gate->rows && up->rows >= gate->rows);
  struct cpu_job j = {.fn = gated_rows, .y = *y, .x = *gate, .up = *up, .act = act};
  cpu_spread(d, &j, gate->rows, gate->cols, 4, true);
}

static void cpu_linear_gated(struct device *d, struct tensor *y, const struct weight *gate, const struct weight *up, const struct tensor *x,
                             enum act act, struct tensor *up_room) {
  CHECK(gate->rows == up->rows && y->data != x->data && y->data != up_room->data && up_room->data != x->data);
  if (gemm_gated_supports(d->kern, gate, up, x->rows)) {
    gemm_gated(d->kern, d->workers, &cpu_of(d)->gemm, gate, up, y, x, act);
    return;
  }
  cpu_linear(d, 2, (const struct weight *[]){gate, up}, (struct tensor *[]){y, up_room}, x);
  cpu_gated(d, y, y, up_room, act);
}

static void rope_step_rows(const struct cpu_job *j, int row, int row_end, int col, int col_end) {
  (void)col;
  for (int r = row; r < row_end; r++) {
    float *cos = tensor_row(&j->rope->cos, r), *sin = tensor_row(&j->rope->sin, r), p = (float)j->ids[r];
    for (int i = 0; i < col_end; i++) sincosf(p * j->rope->inv_freq[i], &sin[i], &cos[i]);
  }
}
static void cpu_rope_step(struct device *d, struct rope_table *t, const int32_t *pos, int rows) {
  CHECK(rows <= cpu_of(d)->gemm.rows_max);
  t->cos.rows = t->sin.rows = rows;
  struct cpu_job j = {.fn = rope_step_rows, .rope = t, .ids = pos};
  cpu_spread(d, &j, rows, t->head_dim / 2, ROPE_ELEM_COST, false);
}

static void rope_rows(const struct cpu_job *j, int row, int row_end, int col, int col_end) {
  (void)col;
  const struct rope_table *t = j->rope;
  for (int r = row; r < row_end; r++) {
    float *x = tensor_row(&j->y, r);
    for (int c = 0; c < col_end; c += t->head_dim) j->kern->rope(x + c, tensor_row(&t->cos, r), tensor_row(&t->sin, r), t->head_dim);
  }
}
static void cpu_rope(struct device *d, struct tensor *x, const struct rope_table *t) {
  CHECK(x->cols % t->head_dim == 0 && x->rows <= t->cos.rows);
  struct cpu_job j = {.fn = rope_rows, .y = *x, .rope = t};
  cpu_spread(d, &j, x->rows, x->cols, 1, false);
}

static void softcap_rows(const struct cpu_job *j, int row, int row_end, int col, int col_end) {
  for (int r = row; r < row_end; r++) j->kern->softcap(tensor_row(&j->y, r) + col, tensor_row(&j->x, r) + col, j->f, col_end - col);
}
static void cpu_softcap(struct device *d, struct tensor *y, const struct tensor *x, float cap) {
  CHECK(y->cols == x->cols && y->rows >= x->rows);
  struct cpu_job j = {.fn = softcap_rows, .y = *y, .x = *x, .f = cap};
  cpu_spread(d, &j, x->rows, x->cols, 4, true);
}

static void cpu_head(struct device *d, struct tensor *y, struct tensor *peaks, const struct weight *w, const struct tensor *x, float cap,
                     const int32_t *n_best) {
  head_product(d->kern, d->workers, &cpu_of(d)->gemm, w, y, peaks, x, cap, n_best);
}

static void gather_rows(const struct cpu_job *j, int row, int row_end, int col, int col_end) {
  (void)col;
  for (int r = row; r < row_end; r++) {
    CHECK(j->ids[r] >= 0 && j->ids[r] < j->x.rows);
    memcpy(tensor_row(&j->y, r), tensor_row(&j->x, j->ids[r]), sizeof(float) * (size_t)col_end);
  }
}
static void cpu_gather(struct device *d, struct tensor *y, const struct tensor *x, const int32_t *rows) {
  CHECK(y->cols == x->cols && y->data != x->data);
  struct cpu_job j = {.fn = gather_rows, .y = *y, .x = *x, .ids = rows};
  cpu_spread(d, &j, y->rows, y->cols, 1, false);
}

static void copy_rows(const struct cpu_job *j, int row, int row_end, int col, int col_end) {
  for (int r = row; r < row_end; r++)
    memcpy(tensor_row(&j->y, r) + col, tensor_row(&j->x, r) + col, sizeof(float) * (size_t)(col_end - col));
}
static void cpu_copy(struct device *d, struct tensor *y, const struct tensor *x) {
  CHECK(y->cols == x->cols && y->rows >= x->rows);
  struct cpu_job j = {.fn = copy_rows, .y = *y, .x = *x};
  cpu_spread(d, &j, x->rows, x->cols, 1, true);
}

struct argmax_job {
  const struct kern *kern;
  struct tensor x;
  int32_t *ids;
};
static void argmax_row(void *ctx, int row, int worker) {
  struct argmax_job *j = ctx;
  bool not_finite;
  (void)worker;
  j->ids[row] = j->kern->argmax(tensor_row(&j->x, row), j->x.cols, &not_finite);
}
static void cpu_argmax(struct device *d, int32_t *ids, const struct tensor *x) {
  struct argmax_job j = {d->kern, *x, ids};
  workers_run(x->rows > 1 ? d->workers : NULL, argmax_row, &j, x->rows);
}

struct sum_job {
  const struct device_link *link;
  struct tensor y;
};
static void sum_item(void *ctx, int item, int worker) {
  struct sum_job *j = ctx;
  (void)item, (void)worker;
  j->link->sum(j->link->ctx, &j->y);
}
static void cpu_sum_shards(struct device *d, struct tensor *y) {
  struct sum_job j = {cpu_of(d)->link, *y};
  if (j.link) workers_launch(d->workers, sum_item, &j, sizeof j, 1, NULL);
}

static void put_rows_rows(const struct cpu_job *j, int row, int row_end, int col, int col_end) {
  for (int r = row; r < row_end; r++) {
    if (j->ids[r] < 0) continue;
    CHECK(j->ids[r] < j->x.rows);
    memcpy(tensor_row(&j->y, r) + col, tensor_row(&j->x, j->ids[r]) + col, sizeof(float) * (size_t)(col_end - col));
  }
}
static void cpu_put_rows(struct device *d, struct tensor *y, const struct tensor *x, const int32_t *from) {
  CHECK(y->cols == x->cols && y->data != x->data);
  struct cpu_job j = {.fn = put_rows_rows, .y = *y, .x = *x, .ids = from};
  cpu_spread(d, &j, y->rows, y->cols, 1, true);
}

static void add_scaled_rows(const struct cpu_job *j, int row, int row_end, int col, int col_end) {
  for (int r = row; r < row_end; r++) {
    if (j->ids && j->ids[r] >= j->hi[r]) continue;
    j->kern->add_scaled(tensor_row(&j->y, r) + col, tensor_row(&j->x, r) + col, j->f, col_end - col);
  }
}
static void cpu_add_scaled(struct device *d, struct tensor *y, const struct tensor *x, float s, const int32_t *lo, const int32_t *hi) {
  CHECK(y->cols == x->cols && y->rows >= x->rows && (lo != NULL) == (hi != NULL));
  struct cpu_job j = {.fn = add_scaled_rows, .y = *y, .x = *x, .f = s, .ids = lo, .hi = hi};
  cpu_spread(d, &j, x->rows, x->cols, 1, true);
}

/* --- of encoders -------------------------------------------------------------------------------------------------------- */

static void layernorm_rows(const struct cpu_job *j, int row, int row_end, int col, int col_end) {
  (void)col;
  for (int r = row; r < row_end; r++) j->kern->layernorm(tensor_row(&j->y, r), tensor_row(&j->x, r), j->w, j->b, col_end, j->f);
}
static void cpu_layernorm(struct device *d, struct tensor *y, const struct tensor *x, const float *w, const float *b, float eps) {
  CHECK(y->cols == x->cols && y->rows >= x->rows);
  struct cpu_job j = {.fn = layernorm_rows, .y = *y, .x = *x, .w = w, .b = b, .f = eps};
  cpu_spread(d, &j, x->rows, x->cols, 1, false);
}

static void bias_act_rows(const struct cpu_job *j, int row, int row_end, int col, int col_end) {
  for (int r = row; r < row_end; r++) j->kern->bias_act(tensor_row(&j->y, r) + col, j->b ? j->b + col : NULL, j->act, col_end - col);
}
static void cpu_bias_act(struct device *d, struct tensor *y, const float *b, enum act act) {
  struct cpu_job j = {.fn = bias_act_rows, .y = *y, .b = b, .act = act};
  cpu_spread(d, &j, y->rows, y->cols, act == ACT_NONE || act == ACT_RELU ? 1 : 4, true);
}

static void clamp_rows(const struct cpu_job *j, int row, int row_end, int col, int col_end) {
  for (int r = row; r < row_end; r++) j->kern->clamp(tensor_row(&j->y, r) + col, tensor_row(&j->x, r) + col, j->f, j->most, col_end - col);
}
static void cpu_clamp(struct device *d, struct tensor *y, const struct tensor *x, float least, float most) {
  CHECK(y->cols == x->cols && y->rows >= x->rows);
  struct cpu_job j = {.fn = clamp_rows, .y = *y, .x = *x, .f = least, .most = most};
  cpu_spread(d, &j, x->rows, x->cols, 1, true);
}

static void rope2d_rows(const struct cpu_job *j, int row, int row_end, int col, int col_end) {
  (void)col;
  const struct rope_table *a = j->rope, *b = j->rope_y;
  const int n = a->head_dim; /* half of a head */
  for (int r = row; r < row_end; r++) {
    float *x = tensor_row(&j->y, r);
    for (int c = 0; c < col_end; c += 2 * n) {
      j->kern->rope(x + c, tensor_row(&a->cos, r), tensor_row(&a->sin, r), n);
      j->kern->rope(x + c + n, tensor_row(&b->cos, r), tensor_row(&b->sin, r), n);
    }
  }
}
static void cpu_rope2d(struct device *d, struct tensor *q, int n_heads, const struct rope_table *x, const struct rope_table *y) {
  CHECK(n_heads > 0 && q->cols == 2 * n_heads * x->head_dim && y->head_dim == x->head_dim && q->rows <= MIN(x->cos.rows, y->cos.rows));
  struct cpu_job j = {.fn = rope2d_rows, .y = *q, .rope = x, .rope_y = y};
  cpu_spread(d, &j, q->rows, q->cols, 1, false);
}

static void cpu_attend(struct device *d, struct tensor *out, const struct tensor *q, const struct tensor *k, const struct tensor *v,
                       int n_heads, float scale, const int32_t *lo, const int32_t *hi) {
  attend(d->kern, d->workers, &cpu_of(d)->attend, out, q, k, v, n_heads, scale, lo, hi);
}

static void cpu_attend_near(struct device *d, struct tensor *q, const struct tensor *k, const struct tensor *v,
                            const struct tensor *relative, const float *head_scale, const int32_t *first, const struct attend_near *n) {
  attend_near(d->workers, q, k, v, relative, head_scale, first, n);
}

static void pool_rows_rows(const struct cpu_job *j, int row, int row_end, int col, int col_end) {
  for (int r = row; r < row_end; r++) {
    float *y = tensor_row(&j->y, r) + col;
    memset(y, 0, sizeof(float) * (size_t)(col_end - col));
    for (int i = 0; i < j->groups; i++) {
      int from = j->ids[(size_t)r * (size_t)j->groups + (size_t)i];
      CHECK(from >= 0 && from < j->x.rows);
      j->kern->add(y, tensor_row(&j->x, from) + col, col_end - col);
    }
    j->kern->scale(y, y, j->f, col_end - col);
    if (j->b) j->kern->bias_act(y, j->b + col, ACT_NONE, col_end - col);
    for (int c = col; j->w && c < col_end; c++) y[c - col] *= j->w[c];
  }
}
static void cpu_pool_rows(struct device *d, struct tensor *y, const struct tensor *x, const int32_t *index, int n, float scale,
                          const float *b, const float *w) {
  CHECK(y->cols == x->cols && y->data != x->data && n > 0);
  struct cpu_job j = {.fn = pool_rows_rows, .y = *y, .x = *x, .ids = index, .groups = n, .f = scale, .b = b, .w = w};
  cpu_spread(d, &j, y->rows, y->cols, MIN(n, 64), true);
}

static void conv_rows_rows(const struct cpu_job *j, int row, int row_end, int col, int col_end) {
  const int taps = j->groups;
  for (int r = row; r < row_end; r++) {
    float *y = tensor_row(&j->y, r);
    int from = MAX(j->ids[r], r - taps + 1);
    CHECK(j->ids[r] >= 0);
    for (int c = col; c < col_end; c++) y[c] = 0;
    for (int i = from; i <= r; i++) {
      const float *x = tensor_row(&j->x, i), *w = j->w + (i - r + taps - 1);
      for (int c = col; c < col_end; c++) y[c] += w[(size_t)c * (size_t)taps] * x[c];
    }
  }
}
static void cpu_conv_rows(struct device *d, struct tensor *y, const struct tensor *x, const float *w, int taps, const int32_t *first) {
  CHECK(y->cols == x->cols && y->rows >= x->rows && y->data != x->data && taps > 0);
  struct cpu_job j = {.fn = conv_rows_rows, .y = *y, .x = *x, .w = w, .groups = taps, .ids = first};
  cpu_spread(d, &j, x->rows, x->cols, MIN(taps, 64), true);
}

const struct device_ops device_cpu_ops = {
    .name = "cpu",
    .attn = &attn_cpu_ops,
    .is_near = true,
    .record_runs = true,
    .open = cpu_open,
    .close = cpu_close,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .host_alloc = cpu_host_alloc,
    .host_free = cpu_host_free,
    .fetch = cpu_fetch,
    .stage = cpu_stage,
    .send = cpu_send,
    .copy = cpu_copy,
    .table_bind = cpu_table_bind,
    .hold = cpu_hold,
    .drop = cpu_drop,
    .hold_batch = cpu_hold_batch,
    .step = cpu_step,
    .finish = cpu_finish,
    .no_records = cpu_no_records,
    .record_new = cpu_record_new,
    .record_delete = cpu_record_delete,
    .record_bytes = record_bytes,
    .record_begin = cpu_record_begin,
    .record_end = cpu_record_end,
    .record_launches = cpu_record_launches,
    .record_replay = cpu_record_replay,
    .weight_bind = cpu_weight_bind,
    .weight_free = cpu_weight_free,
    .rope_init = cpu_rope_init,
    .rope_bands = cpu_rope_bands,
    .rope_divide = cpu_rope_divide,
    .rope_free = cpu_rope_free,
    .embed = cpu_embed,
    .embed_add = cpu_embed_add,
    .linear = cpu_linear,
    .linear_gated = cpu_linear_gated,
    .moe = cpu_moe,
    .rmsnorm = cpu_rmsnorm,
    .add_rmsnorm = cpu_add_rmsnorm,
    .add = cpu_add,
    .scale = cpu_scale,
    .gated = cpu_gated,
    .rope_step = cpu_rope_step,
    .rope = cpu_rope,
    .softcap = cpu_softcap,
    .head = cpu_head,
    .gather = cpu_gather,
    .argmax = cpu_argmax,
    .sum_shards = cpu_sum_shards,
    .put_rows = cpu_put_rows,
    .add_scaled = cpu_add_scaled,
    .layernorm = cpu_layernorm,
    .bias_act = cpu_bias_act,
    .clamp = cpu_clamp,
    .rope2d = cpu_rope2d,
    .attend = cpu_attend,
    .attend_near = cpu_attend_near,
    .pool_rows = cpu_pool_rows,
    .conv_rows = cpu_conv_rows,
};
