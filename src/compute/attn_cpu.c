/* attn_cpu.c — paged attention over intervals on the CPU.
 *
 * Storage, per layer that owns keys and values, once for keys and once for values:
 *
 *   page 0        page 1        ...  page n_pages
 *   [n_kv][P][w]  [n_kv][P][w]       [n_kv][P][w]        w = head_dim rounded up to ATTN_PAD numbers, the padding is zero
 *
 * Work. prepare cuts the rows of each sequence into blocks, once per shape of layer. All query heads of a block's rows that use the same key
 * head are its lines and share one pass over the keys. A block walks its segments (ATTN_SEGMENT keys), each from a
 * fresh state, tile by tile, and folds each finished segment into the total:
 *
 *   segment 0      1          2          3                   total = ((s0 ⊕ s1) ⊕ s2) ⊕ s3      always, so that
 *   |··········|··········|··········|··········|            a costly block may be split over threads by segments:
 *    \__ piece 0 ________/ \__ piece 1 ________/             pieces leave their segments' states in `parts`, and a second
 *                                                            launch folds them in the same order.
 *
 * An item is a strip of neighbouring pieces × one key head: a single dear piece, or several cheap ones, such as rows that decode.
 *
 * Kernels that take whole segments at once (struct attn_whole) are used where there are any for the type and the width, for every number of lines.
 *
 * Positions are counted from a block's origin: 0 in text, the first key of its rows in banks (rows with another one are another block).
 * How rows are cut into blocks and blocks into pieces depends on threads and on company, and may: no result depends on it.
 */
#include <float.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/record.h"
#include "compute/attn.h"
#include "compute/attn_kern.h"

enum {
  LINES_PER_ITEM = 96,         /* of 256 wide heads; state and tile then stay in a second-level cache */
  LINES_PER_ITEM_LEAST = 16,   /* below this a block is not cut further to make work for more threads */
  ITEMS_PER_THREAD = 4,        /* enough to even out items of different cost */
  SPLIT_ITEMS_PER_THREAD = 2,  /* of the least size: there is memory to split so many, which is enough where there are no more */
  PARTS_FLOATS_MOST = 4 << 20, /* 16 MiB for the states of split blocks, however long sequences are; what does not fit is not split */
  TILE_SKEW = 16, /* floats between rows of an expanded tile, so that a column of it does not fall into few sets of the cache */
  SPREAD_STORE_ELEMS = 16 << 10, /* numbers to convert that are worth a fork-join */
};

struct attn_store {
  char *k, *v;
  size_t n_bytes, row_bytes; /* of each of the two; of one head's row */
};

struct attn_block { /* neighbouring rows of one sequence, or of none: padding */
  int seq, row, n_rows;
  int origin;        /* position from which all others are counted */
  int lo, hi;        /* what its rows see together */
  ptrdiff_t part_at; /* first float of its states in parts, -1 when not split */
};

struct attn_piece {
  int block;
  int segment, segment_end;
};

struct attn_shape {                 /* layers that have all this in common share their cutting */
  int kind;                         /* as in struct attn_layer */
  int n_kv, group, head_dim, width; /* group = query heads per key head; width = padded head_dim */
  int rows_per_block;               /* at most */
  const struct attn_whole *whole;   /* kernels of whole segments, or NULL: tile by tile */
  struct attn_block *blocks;
  struct attn_piece *pieces; /* dearest first, roughly */
  int *strips;               /* [n_strips + 1]: first pieces of strips */
  int *split;                /* blocks that are split */
  int n_blocks, n_pieces, n_strips, n_split, blocks_max, pieces_max;
  int strip_items, split_items; /* strips and split blocks × key heads: what launches read when they begin */
};

struct attn_place { /* where an item is: keys of one segment for one key head of one block */
  int block, head, segment;
};

struct attn_found { /* where the rows of keys and values of a place are; the zero row for those that nobody sees */
  uint64_t run;     /* which run found them (attn_run_number); 0: none */
  struct attn_place place;
  int lo, hi; /* of the segment's rows, those that somebody sees */
  const void *k[ATTN_SEGMENT], *v[ATTN_SEGMENT];
};

struct attn_scratch { /* of one worker; carved from one block of memory */
  struct attn_found
      *found; /* [2]: the place that is worked on, and the one that is expected to be next; first, and the same in all shapes */
  float *q, *acc, *total_acc; /* [lines, width] */
  float *max, *sum, *total_max, *total_sum;
  int *lo, *hi, *from, *to; /* [lines] */
  float *k, *v;             /* [ATTN_TILE, width + TILE_SKEW], a tile expanded to float32 */
  void *whole;              /* scratch of kernels of whole segments */
};

struct attn {
  struct attn_config c;
  struct attn_layer *layers;
  int *shape_of; /* [n_layers] */
  struct attn_store *stores;
  struct attn_shape *shapes;
  int n_shapes, n_workers;
  char *scratch;
  size_t scratch_bytes; /* of one worker */
  float *parts;         /* [parts_floats] */
  size_t parts_floats;
  float *zero_row; /* stands for every key that nobody sees: zero in every dtype */
  size_t zero_row_bytes;
  const struct batch *batch;
  uint64_t n_prepared;
};

/* --- sizes -------------------------------------------------------------------------------------------------------------- */

static int attn_width(int head_dim) { return (int)align_up((size_t)head_dim, ATTN_PAD); }

static size_t attn_row_bytes(enum dtype t, int head_dim) {
  size_t n_bytes = 0;
  CHECK(dtype_row_bytes(t, t == DTYPE_Q8_0 ? (size_t)head_dim : (size_t)attn_width(head_dim), &n_bytes));
  return n_bytes;
}

size_t attn_slot_bytes(enum dtype kv_dtype, int n_kv, int head_dim) { return 2 * (size_t)n_kv * attn_row_bytes(kv_dtype, head_dim); }

/* Bytes of a layer's keys (its values take the same). */
static bool attn_store_bytes(const struct attn_config *c, const struct attn_layer *l, size_t *n_bytes) {
  size_t slots;
  return !size_mul_overflows((size_t)c->n_pages[l->kind] + 1, (size_t)c->page_tokens, &slots) &&
         !size_mul_overflows(slots, (size_t)l->n_kv * attn_row_bytes(c->kv_dtype, l->head_dim), n_bytes);
}

static const struct attn_whole *attn_whole_for(const struct attn_config *c, int width) {
  const struct attn_whole *w = c->kern && c->kv_dtype == DTYPE_BF16 ? c->kern->attn->whole_bf16 : NULL;
  return w && width % w->head_dim_step == 0 ? w : NULL;
}

static int attn_rows_per_block(const struct attn_whole *w, int group, int width) {
  int most = w ? w->lines_most : LINES_PER_ITEM;
  int lines = MIN(MAX(most * 256 / width, LINES_PER_ITEM_LEAST), most);
  return MAX(lines / group, 1);
}

static void *attn_carve(char *base, size_t *at, size_t n_bytes) {
  void *p = base ? base + *at : NULL;
  *at += align_up(n_bytes, 64);
  return p;
}

/* The parts of one worker's scratch; base NULL only counts. */
static size_t attn_scratch_at(struct attn_scratch *s, char *base, const struct attn_whole *w, int n_lines, int width) {
  size_t at = 0, line = sizeof(float) * (size_t)width, n = (size_t)n_lines, tile = ATTN_TILE * (line + TILE_SKEW * sizeof(float));
  s->found = attn_carve(base, &at, 2 * sizeof *s->found);
  s->q = attn_carve(base, &at, n * line);
  s->acc = attn_carve(base, &at, n * line);
  s->total_acc = attn_carve(base, &at, n * line);
  s->k = attn_carve(base, &at, w ? 0 : tile);
  s->v = attn_carve(base, &at, w ? 0 : tile);
  s->whole = attn_carve(base, &at, w ? w->scratch_bytes(width) : 0);
  s->max = attn_carve(base, &at, n * sizeof(float));
  s->sum = attn_carve(base, &at, n * sizeof(float));
  s->total_max = attn_carve(base, &at, n * sizeof(float));
  s->total_sum = attn_carve(base, &at, n * sizeof(float));
  s->lo = attn_carve(base, &at, n * sizeof(int));
  s->hi = attn_carve(base, &at, n * sizeof(int));
  s->from = attn_carve(base, &at, n * sizeof(int));
  s->to = attn_carve(base, &at, n * sizeof(int));
  return at;
}

static size_t attn_layer_scratch(const struct attn_config *c, const struct attn_layer *l) {
  struct attn_scratch s;
  int width = attn_width(l->head_dim), group = l->n_q / l->n_kv;
  const struct attn_whole *w = attn_whole_for(c, width);
  return attn_scratch_at(&s, NULL, w, attn_rows_per_block(w, group, width) * group, width);
}

/* Floats of one line's state of one segment: max, sum and acc. */
static size_t attn_part_floats(int width) { return (size_t)width + ATTN_PAD; }

/* A state for each segment of as many lines as are in so many of the least items as keep all threads busy: where there are more of them, or larger
 * ones, threads have enough to share out without splitting. None for one thread. */
static size_t attn_layer_parts(const struct attn_config *c, const struct attn_layer *l) {
  size_t keys = attn_keys_max(c, l->kind);
  if (workers_count(c->workers) == 1 || keys <= ATTN_SEGMENT) return 0;
  double segments = (double)((keys + ATTN_SEGMENT - 1) / ATTN_SEGMENT);
  int group = l->n_q / l->n_kv, item = div_up(LINES_PER_ITEM_LEAST, group) * group;
  double lines = MIN((double)c->rows_max * l->n_q, (double)SPLIT_ITEMS_PER_THREAD * workers_count(c->workers) * item);
  double all = lines * segments * (double)attn_part_floats(attn_width(l->head_dim));
  return all < PARTS_FLOATS_MOST ? (size_t)all : PARTS_FLOATS_MOST;
}

static void attn_work_sizes(const struct attn_config *c, size_t *scratch_bytes, size_t *parts_floats, size_t *zero_row_bytes) {
  *scratch_bytes = *parts_floats = *zero_row_bytes = 0;
  for (int i = 0; i < c->n_layers; i++) {
    const struct attn_layer *l = &c->layers[i];
    *scratch_bytes = MAX(*scratch_bytes, attn_layer_scratch(c, l));
    *parts_floats = MAX(*parts_floats, attn_layer_parts(c, l));
    *zero_row_bytes = MAX(*zero_row_bytes, sizeof(float) * (size_t)attn_width(l->head_dim));
  }
}

size_t attn_bytes(const struct attn_config *c) {
  size_t scratch, parts, zero_row, total, store;
  attn_work_sizes(c, &scratch, &parts, &zero_row);
  total = scratch * (size_t)workers_count(c->workers) + parts * sizeof(float) + zero_row;
  for (int i = 0; i < c->n_layers; i++) {
    const struct attn_layer *l = &c->layers[i];
    if (l->owner != i) continue;
    if (!attn_store_bytes(c, l, &store) || size_add_overflows(total, store, &total) || size_add_overflows(total, store, &total)) {
      return SIZE_MAX;
    }
  }
  return total;
}

/* --- open and close ------------------------------------------------------------------------------------------------------ */

static void cpu_close(struct attn *a) {
  if (!a) return;
  for (int i = 0; a->stores && i < a->c.n_layers; i++) {
    mem_big_free(a->stores[i].k, a->stores[i].n_bytes);
    mem_big_free(a->stores[i].v, a->stores[i].n_bytes);
  }
  for (int i = 0; i < a->n_shapes; i++) {
    free(a->shapes[i].blocks);
    free(a->shapes[i].pieces);
    free(a->shapes[i].strips);
    free(a->shapes[i].split);
  }
  mem_big_free(a->scratch, a->scratch_bytes * (size_t)a->n_workers);
  mem_big_free(a->parts, a->parts_floats * sizeof(float));
  mem_big_free(a->zero_row, a->zero_row_bytes);
  free(a->shapes);
  free(a->stores);
  free(a->shape_of);
  free(a->layers);
  free(a);
}

/* Index of the layer's shape, which is made when it is new. */
static int attn_shape_for(struct attn *a, const struct attn_layer *l) {
  int group = l->n_q / l->n_kv, at = 0;
  for (; at < a->n_shapes; at++) {
    const struct attn_shape *s = &a->shapes[at];
    if (s->kind == l->kind && s->n_kv == l->n_kv && s->group == group && s->head_dim == l->head_dim) return at;
  }
  struct attn_shape *s = &a->shapes[a->n_shapes++];
  s->kind = l->kind, s->n_kv = l->n_kv, s->group = group;
  s->head_dim = l->head_dim, s->width = attn_width(l->head_dim);
  s->whole = attn_whole_for(&a->c, s->width);
  s->rows_per_block = attn_rows_per_block(s->whole, group, s->width);
  /* Smaller blocks and splitting are for few items only: each adds no more than twice ITEMS_PER_THREAD per thread (see the functions below). */
  int extra = 2 * ITEMS_PER_THREAD * a->n_workers;
  s->blocks_max = s->kind == BATCH_CROSS ? a->c.rows_max : div_up(a->c.rows_max, s->rows_per_block) + extra + a->c.seqs_max + 1;
  s->pieces_max = s->blocks_max + extra;
  s->blocks = xcalloc((size_t)s->blocks_max, sizeof *s->blocks);
  s->pieces = xcalloc((size_t)s->pieces_max, sizeof *s->pieces);
  s->strips = xcalloc((size_t)s->pieces_max + 1, sizeof *s->strips);
  s->split = xcalloc((size_t)s->blocks_max, sizeof *s->split);
  return at;
}

static int attn_open_store(struct attn *a, int layer, struct err *e) {
  struct attn_store *s = &a->stores[layer];
  const struct attn_layer *l = &a->layers[layer];
  s->row_bytes = attn_row_bytes(a->c.kv_dtype, l->head_dim);
  if (!attn_store_bytes(&a->c, l, &s->n_bytes)) {
    return err_set(e, ERR_TOO_LARGE, "attention: the keys of layer %d do not fit into memory: %d pages of %d tokens", layer,
                   a->c.n_pages[l->kind], a->c.page_tokens);
  }
  if (!(s->k = mem_big_alloc(s->n_bytes, "keys", e)) || !(s->v = mem_big_alloc(s->n_bytes, "values", e))) return -1;
  return 0;
}

static struct attn *cpu_open(const struct attn_config *c, struct err *e) {
  if (attn_check(c, e)) return NULL;
  struct attn *a = xcalloc(1, sizeof *a);
  size_t n = (size_t)c->n_layers;
  a->c = *c;
  a->n_workers = workers_count(c->workers);
  a->layers = xcalloc(n, sizeof *a->layers);
  a->shape_of = xcalloc(n, sizeof *a->shape_of);
  a->stores = xcalloc(n, sizeof *a->stores);
  a->shapes = xcalloc(n, sizeof *a->shapes);
  for (int i = 0; i < c->n_layers; i++) {
    a->layers[i] = c->layers[i];
    a->shape_of[i] = attn_shape_for(a, &c->layers[i]);
  }
  a->c.layers = a->layers;
  for (int i = 0; i < c->n_layers; i++) {
    if (a->layers[i].owner == i && attn_open_store(a, i, e)) goto fail;
  }
  attn_work_sizes(c, &a->scratch_bytes, &a->parts_floats, &a->zero_row_bytes);
  if (a->scratch_bytes > 0 && !(a->scratch = mem_big_alloc(a->scratch_bytes * (size_t)a->n_workers, "attention scratch", e))) goto fail;
  if (a->parts_floats > 0 && !(a->parts = mem_big_alloc(a->parts_floats * sizeof(float), "attention scratch", e))) goto fail;
  if (a->zero_row_bytes > 0 && !(a->zero_row = mem_big_alloc(a->zero_row_bytes, "attention scratch", e))) goto fail;
  return a;
fail:
  cpu_close(a);
  return NULL;
}

/* --- prepare: cutting the step into pieces --------------------------------------------------------------------------------- */

static int segment_of(int pos) { return pos / ATTN_SEGMENT; }
static int block_segments(const struct attn_block *b) { return b->lo < b->hi ? segment_of(b->hi - 1) - segment_of(b->lo) + 1 : 0; }
static int64_t block_cost(const struct attn_block *b) { return (int64_t)b->n_rows * (b->hi - b->lo + ATTN_TILE); }

static void attn_add_block(const struct attn *a, struct attn_shape *s, int seq, int row, int n_rows) {
  CHECK(s->n_blocks < s->blocks_max);
  const int32_t *lo = a->batch->lo[s->kind], *hi = a->batch->hi[s->kind];
  struct attn_block *b = &s->blocks[s->n_blocks++];
  *b = (struct attn_block){.seq = seq, .row = row, .n_rows = n_rows, .lo = INT32_MAX, .part_at = -1};
  for (int r = row; r < row + n_rows; r++) {
    if (lo[r] >= hi[r]) continue;
    b->lo = MIN(b->lo, lo[r]);
    b->hi = MAX(b->hi, hi[r]);
  }
  if (b->hi == 0) b->lo = 0;
  if (s->kind != BATCH_CROSS) return;
  b->origin = b->lo;
  b->hi -= b->lo;
  b->lo = 0;
}

/* How many rows of those before `end` go into one block: in banks, those that see the same first key or nothing. */
static int attn_rows_together(const struct attn *a, const struct attn_shape *s, int start, int end, int most) {
  const int32_t *lo = a->batch->lo[s->kind], *hi = a->batch->hi[s->kind];
  int row = MAX(start, end - most), origin = -1;
  if (s->kind != BATCH_CROSS) return end - row;
  for (int r = end - 1; r >= row; r--) {
    if (lo[r] >= hi[r]) continue;
    if (origin >= 0 && lo[r] != origin) return end - 1 - r;
    origin = lo[r];
  }
  return end - row;
}

/* Blocks from the last row to the first: later rows see more, and dear items should start early. */
static void attn_cut_blocks(struct attn *a, struct attn_shape *s) {
  const struct batch *b = a->batch;
  int wanted = div_up(ITEMS_PER_THREAD * a->n_workers, s->n_kv);
  int rows = MAX(div_up(b->n_rows, wanted), div_up(LINES_PER_ITEM_LEAST, s->group));
  if (a->n_workers == 1 || rows > s->rows_per_block) rows = s->rows_per_block;
  s->n_blocks = 0;
  int in_sequences = b->n_seqs > 0 ? b->q_start[b->n_seqs] : 0;
  if (in_sequences < b->n_rows) {
    for (int r = in_sequences; r < b->n_rows; r += s->rows_per_block) attn_add_block(a, s, -1, r, MIN(b->n_rows - r, s->rows_per_block));
  }
  for (int seq = b->n_seqs - 1; seq >= 0; seq--) {
    int start = b->q_start[seq];
    for (int end = b->q_start[seq + 1], n; end > start; end -= n) {
      n = attn_rows_together(a, s, start, end, rows);
      attn_add_block(a, s, seq, end - n, n);
    }
  }
}

/* What an item may cost, so that threads have several each. */
static int64_t attn_share(const struct attn *a, const struct attn_shape *s, int64_t total) {
  return total * s->n_kv / (ITEMS_PER_THREAD * a->n_workers) + 1;
}

/* A block that is dearer than its share of the threads' time is split by segments, while there is room for the states. */
static int attn_pieces_for(const struct attn *a, const struct attn_shape *s, struct attn_block *b, int64_t total, size_t *parts_used) {
  int n_segments = block_segments(b);
  if (a->parts_floats == 0 || n_segments < 2) return 1;
  int n = (int)MIN((int64_t)n_segments, block_cost(b) / attn_share(a, s, total) + 1);
  size_t floats = (size_t)(b->n_rows * s->group) * (size_t)s->n_kv * (size_t)n_segments * attn_part_floats(s->width);
  if (n < 2 || floats > a->parts_floats - *parts_used) return 1;
  b->part_at = (ptrdiff_t)*parts_used;
  *parts_used += floats;
  return n;
}

/* Neighbouring pieces that cost no more than a share together are done by one thread: it knows then which keys to fetch ahead. */
static void attn_join_pieces(const struct attn *a, struct attn_shape *s, int64_t total) {
  const int64_t share = attn_share(a, s, total);
  int64_t sum = 0;
  s->n_strips = 0;
  for (int i = 0; i < s->n_pieces; i++) {
    const struct attn_piece *p = &s->pieces[i];
    const struct attn_block *b = &s->blocks[p->block];
    int64_t cost = block_cost(b) * (p->segment_end - p->segment) / MAX(block_segments(b), 1);
    if (i == 0 || sum + cost > share) s->strips[s->n_strips++] = i, sum = 0;
    sum += cost;
  }
  s->strips[s->n_strips] = s->n_pieces;
}

static void attn_cut_pieces(struct attn *a, struct attn_shape *s) {
  int64_t total = 0;
  size_t parts_used = 0;
  s->n_pieces = s->n_split = 0;
  for (int i = 0; i < s->n_blocks; i++) total += block_cost(&s->blocks[i]);
  for (int i = 0; i < s->n_blocks; i++) {
    struct attn_block *b = &s->blocks[i];
    int n = attn_pieces_for(a, s, b, total, &parts_used), n_segments = block_segments(b), first = segment_of(b->lo);
    if (b->part_at >= 0) s->split[s->n_split++] = i;
    for (int p = 0; p < n; p++) {
      CHECK(s->n_pieces < s->pieces_max);
      s->pieces[s->n_pieces++] = (struct attn_piece){i, first + n_segments * p / n, first + n_segments * (p + 1) / n};
    }
  }
  attn_join_pieces(a, s, total);
  s->strip_items = s->n_strips * s->n_kv;
  s->split_items = s->n_split * s->n_kv;
}

static void cpu_prepare(struct attn *a, const struct batch *b) {
  CHECK(b->n_rows <= a->c.rows_max && b->n_seqs <= a->c.seqs_max);
  a->batch = b;
  a->n_prepared++;
  for (int i = 0; i < a->n_shapes; i++) {
    if (a->shapes[i].kind == BATCH_CROSS && b->n_cross == 0) continue; /* nobody will run such a layer */
    attn_cut_blocks(a, &a->shapes[i]);
    attn_cut_pieces(a, &a->shapes[i]);
  }
}

/* --- run ------------------------------------------------------------------------------------------------------------------- */

/* What the launches of one run share. Recorded by value; all that a step changes is behind its pointers: the shape's cutting, the batch. */
struct attn_step {
  const struct attn *a;
  const struct attn_layer *l;
  const struct attn_shape *shape;
  const struct attn_store *store;
  struct tensor q, k, v, out;
  const int64_t *slot;     /* of rows to store */
  int n_store, store_rows; /* rows to store; of one item */
};

static size_t attn_row_at(const struct attn_step *st, int64_t page, int head, int offset) {
  size_t P = (size_t)st->a->c.page_tokens;
  return (((size_t)page * (size_t)st->l->n_kv + (size_t)head) * P + (size_t)offset) * st->store->row_bytes;
}

static void attn_store_rows(void *ctx, int item, int worker) {
  (void)worker;
  const struct attn_step *st = ctx;
  const struct attn *a = st->a;
  const int d = st->l->head_dim, P = a->c.page_tokens;
  int first = item * st->store_rows;
  for (int r = first; r < MIN(first + st->store_rows, st->n_store); r++) {
    int64_t slot = st->slot[r];
    if (slot == 0) continue;
    DCHECK(slot >= P && slot / P <= a->c.n_pages[st->l->kind]);
    for (int h = 0; h < st->l->n_kv; h++) {
      size_t at = attn_row_at(st, slot / P, h, (int)(slot % P));
      a->c.kern->attn->store(st->store->k + at, tensor_row(&st->k, r) + h * d, a->c.kv_dtype, d);
      a->c.kern->attn->store(st->store->v + at, tensor_row(&st->v, r) + h * d, a->c.kv_dtype, d);
    }
  }
}

/* Rows of k and v to their slots, [n_rows, n_kv * head_dim]. */
static void attn_store_all(struct attn_step *st, const struct tensor *k, const struct tensor *v, const int64_t *slot, int n_rows) {
  const struct attn *a = st->a;
  bool spread = a->n_workers > 1 && n_rows > 1 && (int64_t)n_rows * k->cols >= SPREAD_STORE_ELEMS;
  st->k = *k, st->v = *v, st->slot = slot, st->n_store = n_rows;
  st->store_rows = spread ? div_up(n_rows, ITEMS_PER_THREAD * a->n_workers) : n_rows;
  workers_launch(a->c.workers, attn_store_rows, st, sizeof *st, div_up(n_rows, st->store_rows), NULL);
}

struct attn_tile { /* where the rows of a tile's keys and values are */
  const void *k[ATTN_TILE], *v[ATTN_TILE];
  int from, to; /* of the tile's keys, those that somebody sees; the others stand at the zero row */
};

/* Rows of keys and values of positions [lo, hi) of a block, to k and v from the first on. */
static void attn_find_rows(const struct attn_step *st, const struct attn_block *b, int head, int lo, int hi, const void **k,
                           const void **v) {
  const struct attn *a = st->a;
  const int P = a->c.page_tokens;
  const int32_t *pages = a->batch->page[st->l->kind] + (size_t)b->seq * (size_t)a->batch->pages_max[st->l->kind];
  int page = (b->origin + lo) / P, offset = (b->origin + lo) % P;
  size_t at = 0;
  for (int j = 0; j < hi - lo; j++, offset++, at += st->store->row_bytes) {
    if (offset == P) page++, offset = 0;
    if (offset == 0 || j == 0) {
      DCHECK(pages[page] > 0 && pages[page] <= a->c.n_pages[st->l->kind]);
      at = attn_row_at(st, pages[page], head, offset);
    }
    k[j] = st->store->k + at;
    v[j] = st->store->v + at;
  }
}

/* Positions [lo, hi) of a block, all in one tile. */
static void attn_find_tile(const struct attn_step *st, const struct attn_block *b, int head, int lo, int hi, struct attn_tile *t) {
  t->from = lo % ATTN_TILE, t->to = t->from + hi - lo;
  for (int j = 0; j < ATTN_TILE; j++) t->k[j] = t->v[j] = st->a->zero_row;
  attn_find_rows(st, b, head, lo, hi, t->k + t->from, t->v + t->from);
}

static void attn_expand_tile(const struct attn_step *st, const struct attn_scratch *s, const struct attn_tile *t) {
  const struct attn_kern *kern = st->a->c.kern->attn;
  const int width = st->shape->width;
  for (int j = t->from; j < t->to; j++) {
    kern->expand(s->k + j * (width + TILE_SKEW), t->k[j], st->a->c.kv_dtype, width);
    kern->expand(s->v + j * (width + TILE_SKEW), t->v[j], st->a->c.kv_dtype, width);
  }
}

static uint64_t attn_run_number(const struct attn_step *st) {
  return st->a->n_prepared * (uint64_t)st->a->c.n_layers + (uint64_t)(st->l - st->a->layers);
}

static void attn_find_place(const struct attn_step *st, const struct attn_place *place, struct attn_found *f) {
  const struct attn_block *b = &st->shape->blocks[place->block];
  const int start = place->segment * ATTN_SEGMENT;
  f->run = attn_run_number(st);
  f->place = *place;
  f->lo = MAX(b->lo - start, 0), f->hi = MIN(b->hi - start, ATTN_SEGMENT);
  for (int j = 0; j < f->lo; j++) f->k[j] = f->v[j] = st->a->zero_row;
  attn_find_rows(st, b, place->head, start + f->lo, start + f->hi, f->k + f->lo, f->v + f->lo);
  for (int j = f->hi; j < ATTN_SEGMENT; j++) f->k[j] = f->v[j] = st->a->zero_row;
}

/* Whether the rows of a place were looked up by this worker, as what was expected to be next. */
static bool attn_is_found(const struct attn_step *st, const struct attn_place *place, const struct attn_found *f) {
  const struct attn_place *p = &f->place;
  return f->run == attn_run_number(st) && p->block == place->block && p->head == place->head && p->segment == place->segment;
}

/* The lines' states over the keys of one segment, by the kernels of whole segments. next: whose keys are to be fetched meanwhile, or NULL. */
static void attn_whole_segment(const struct attn_step *st, const struct attn_scratch *s, const struct attn_place *place,
                               const struct attn_place *next, const struct attn_lines *lines) {
  const int start = place->segment * ATTN_SEGMENT;
  const int known = attn_is_found(st, place, &s->found[1]) ? 1 : 0;
  const bool asked = known || attn_is_found(st, place, &s->found[0]);
  struct attn_found *now = &s->found[known], *then = &s->found[!known];
  if (!asked) attn_find_place(st, place, now);
  struct attn_seen seen = {.k = now->k, .v = now->v, .lo = now->lo, .hi = now->hi, .from = s->from, .to = s->to, .asked = asked};
  seen.row_bytes = st->store->row_bytes, seen.zero_row = st->a->zero_row, seen.scratch = s->whole;
  if (next) {
    attn_find_place(st, next, then);
    seen.next_k = then->k + then->lo, seen.n_next = then->hi - then->lo;
  }
  for (int l = 0; l < lines->n; l++) {
    s->from[l] = MAX(s->lo[l] - start, 0);
    s->to[l] = MIN(s->hi[l] - start, ATTN_SEGMENT);
  }
  st->shape->whole->segment(lines, &seen);
}

/* The same tile by tile. */
static void attn_tiled_segment(const struct attn_step *st, const struct attn_scratch *s, const struct attn_place *place,
                               const struct attn_lines *lines) {
  const struct attn_block *b = &st->shape->blocks[place->block];
  const struct attn *a = st->a;
  const struct attn_kern *kern = a->c.kern->attn;
  const bool many = lines->n >= kern->many_lines;
  const int head = place->head, start = place->segment * ATTN_SEGMENT;
  const int lo = MAX(b->lo, start), hi = b->hi - start < ATTN_SEGMENT ? b->hi : start + ATTN_SEGMENT;
  struct attn_tile tiles[2]; /* this one and the next */
  for (int i = 0; i < lines->n; i++) lines->max[i] = -FLT_MAX, lines->sum[i] = 0;
  memset(lines->acc, 0, sizeof(float) * (size_t)lines->n * (size_t)lines->head_dim);
  attn_find_tile(st, b, head, lo, MIN(hi, (lo / ATTN_TILE + 1) * ATTN_TILE), &tiles[0]);
  for (int at = lo / ATTN_TILE * ATTN_TILE, i = 0; at < hi; at += ATTN_TILE, i ^= 1) {
    struct attn_tile *t = &tiles[i], *next = &tiles[i ^ 1];
    const struct attn_ahead ahead = {next->k, next->v, st->store->row_bytes};
    const bool last = at + ATTN_TILE >= hi;
    if (!last) attn_find_tile(st, b, head, at + ATTN_TILE, MIN(hi, at + 2 * ATTN_TILE), next);
    for (int l = 0; l < lines->n; l++) {
      s->from[l] = MAX(s->lo[l] - at, 0);
      s->to[l] = MIN(s->hi[l] - at, ATTN_TILE);
    }
    if (many) {
      attn_expand_tile(st, s, t);
      kern->many(lines, s->from, s->to, s->k, s->v, (size_t)(lines->head_dim + TILE_SKEW), last ? NULL : &ahead);
    } else {
      kern->tile(lines, s->from, s->to, a->c.kv_dtype, t->k, t->v, last ? NULL : &ahead);
    }
  }
}

/* What this worker is expected to do after a segment of a piece of an item: the piece's next one, what the strip's next piece begins with, or, as
 * workers take items by turns, what another item begins with. False: nothing. */
static bool attn_next_place(const struct attn_step *st, int item, int piece, int segment, struct attn_place *next) {
  const struct attn_shape *shape = st->shape;
  if (++segment == shape->pieces[piece].segment_end) {
    if (++piece == shape->strips[item / shape->n_kv + 1]) {
      item += st->a->n_workers;
      if (item >= shape->strip_items) return false;
      piece = shape->strips[item / shape->n_kv];
    }
    segment = shape->pieces[piece].segment;
  }
  *next = (struct attn_place){shape->pieces[piece].block, item % shape->n_kv, segment};
  return segment < shape->pieces[piece].segment_end;
}

static void attn_segment(const struct attn_step *st, const struct attn_scratch *s, int item, int piece, int segment,
                         const struct attn_lines *lines) {
  const struct attn_shape *shape = st->shape;
  const struct attn_place place = {shape->pieces[piece].block, item % shape->n_kv, segment};
  struct attn_place next;
  if (shape->whole) attn_whole_segment(st, s, &place, attn_next_place(st, item, piece, segment, &next) ? &next : NULL, lines);
  else attn_tiled_segment(st, s, &place, lines);
}

static struct attn_scratch attn_scratch_of(const struct attn_step *st, int worker) {
  struct attn_scratch s;
  const struct attn_shape *shape = st->shape;
  attn_scratch_at(&s, st->a->scratch + st->a->scratch_bytes * (size_t)worker, shape->whole, shape->rows_per_block * shape->group,
                  shape->width);
  return s;
}

/* Intervals of a block's lines, row by row. */
static void attn_load_lines(const struct attn_step *st, const struct attn_scratch *s, const struct attn_block *b) {
  const struct batch *batch = st->a->batch;
  const int group = st->shape->group;
  for (int i = 0; i < b->n_rows * group; i++) {
    s->lo[i] = batch->lo[st->l->kind][b->row + i / group] - b->origin;
    s->hi[i] = batch->hi[st->l->kind][b->row + i / group] - b->origin;
  }
}

static void attn_load_q(const struct attn_step *st, const struct attn_scratch *s, const struct attn_block *b, int head) {
  const int group = st->shape->group, width = st->shape->width, d = st->l->head_dim;
  const struct attn_whole *whole = st->shape->whole;
  for (int i = 0; i < b->n_rows * group; i++) {
    float *q = s->q + (size_t)i * (size_t)width;
    const float *src = tensor_row(&st->q, b->row + i / group) + (head * group + i % group) * d;
    if (whole) {
      whole->load_q(q, src, st->l->scale, d, width);
      continue;
    }
    st->a->c.kern->attn->load_q(q, src, st->l->scale, d);
    for (int j = d; j < width; j++) q[j] = 0;
  }
}

static bool line_sees(const struct attn_scratch *s, int i, int segment) {
  return s->lo[i] < s->hi[i] && segment_of(s->lo[i]) <= segment && segment <= segment_of(s->hi[i] - 1);
}

/* Totals of a block, one segment's states after the other; a line's first is its total so far. */
static void attn_fold(const struct attn_step *st, const struct attn_scratch *s, const struct attn_lines *lines, int segment) {
  const int width = lines->head_dim;
  for (int i = 0; i < lines->n; i++) {
    float *total = s->total_acc + (size_t)i * (size_t)width, *acc = lines->acc + (size_t)i * (size_t)width;
    if (!line_sees(s, i, segment)) continue;
    if (segment > segment_of(s->lo[i])) {
      st->a->c.kern->attn->merge(&s->total_max[i], &s->total_sum[i], total, lines->max[i], lines->sum[i], acc, width);
      continue;
    }
    s->total_max[i] = lines->max[i], s->total_sum[i] = lines->sum[i];
    if (total != acc) memcpy(total, acc, sizeof(float) * (size_t)width);
  }
}
static void attn_end_total(const struct attn_step *st, const struct attn_scratch *s, const struct attn_block *b, int head) {
  const int group = st->shape->group, width = st->shape->width, d = st->l->head_dim;
  void (*finish)(float *, const float *, float, int) = st->shape->whole ? st->shape->whole->finish : st->a->c.kern->attn->finish;
  for (int i = 0; i < b->n_rows * group; i++) {
    float *out = tensor_row(&st->out, b->row + i / group) + (head * group + i % group) * d;
    if (s->lo[i] < s->hi[i]) finish(out, s->total_acc + (size_t)i * (size_t)width, s->total_sum[i], d);
    else memset(out, 0, sizeof(float) * (size_t)d);
  }
}

/* States of a split block's lines for one key head and segment, in parts. */
static struct attn_lines attn_part(const struct attn_step *st, const struct attn_block *b, int head, int segment, float *q) {
  const int width = st->shape->width, n_segments = block_segments(b);
  struct attn_lines lines = {.n = b->n_rows * st->shape->group, .head_dim = width, .q = q};
  size_t floats = (size_t)lines.n * attn_part_floats(width);
  lines.acc = st->a->parts + b->part_at + ((size_t)head * (size_t)n_segments + (size_t)(segment - segment_of(b->lo))) * floats;
  lines.max = lines.acc + (size_t)lines.n * (size_t)width;
  lines.sum = lines.max + lines.n;
  return lines;
}

static void attn_do_piece(const struct attn_step *st, const struct attn_scratch *s, int item, int piece_at) {
  const struct attn_piece *piece = &st->shape->pieces[piece_at];
  const struct attn_block *b = &st->shape->blocks[piece->block];
  const int head = item % st->shape->n_kv;
  struct attn_lines lines = {b->n_rows * st->shape->group, st->shape->width, s->q, s->acc, s->max, s->sum};
  attn_load_lines(st, s, b);
  if (b->lo < b->hi) attn_load_q(st, s, b, head);
  if (b->part_at >= 0) {
    for (int segment = piece->segment; segment < piece->segment_end; segment++) {
      struct attn_lines part = attn_part(st, b, head, segment, s->q);
      attn_segment(st, s, item, piece_at, segment, &part);
    }
    return;
  }
  if (piece->segment + 1 == piece->segment_end) lines.acc = s->total_acc; /* there is nothing to fold */
  for (int segment = piece->segment; segment < piece->segment_end; segment++) {
    attn_segment(st, s, item, piece_at, segment, &lines);
    attn_fold(st, s, &lines, segment);
  }
  attn_end_total(st, s, b, head);
}

static void attn_do_strip(void *ctx, int item, int worker) {
  const struct attn_step *st = ctx;
  const int *strip = &st->shape->strips[item / st->shape->n_kv];
  const struct attn_scratch s = attn_scratch_of(st, worker);
  for (int piece = strip[0]; piece < strip[1]; piece++) attn_do_piece(st, &s, item, piece);
}

static void attn_join_split(void *ctx, int item, int worker) {
  const struct attn_step *st = ctx;
  const struct attn_block *b = &st->shape->blocks[st->shape->split[item / st->shape->n_kv]];
  const int head = item % st->shape->n_kv, first = segment_of(b->lo);
  struct attn_scratch s = attn_scratch_of(st, worker);
  attn_load_lines(st, &s, b);
  for (int segment = first; segment < first + block_segments(b); segment++) {
    struct attn_lines part = attn_part(st, b, head, segment, NULL);
    attn_fold(st, &s, &part, segment);
  }
  attn_end_total(st, &s, b, head);
}

static void cpu_run(struct attn *a, int layer, const struct tensor *q, const struct tensor *k, const struct tensor *v, struct tensor *out) {
  const struct attn_layer *l = &a->layers[layer];
  const int n_rows = a->batch->n_rows;
  CHECK(l->kind != BATCH_CROSS || a->batch->n_cross > 0);
  CHECK((k != NULL) == (l->owner == layer && l->kind != BATCH_CROSS) && (v != NULL) == (k != NULL));
  CHECK(q->cols == l->n_q * l->head_dim && out->cols == q->cols && q->rows >= n_rows && out->rows >= n_rows);
  CHECK(!k || (k->cols == l->n_kv * l->head_dim && v->cols == k->cols && k->rows >= n_rows && v->rows >= n_rows));
  const struct attn_shape *s = &a->shapes[a->shape_of[layer]];
  struct attn_step st = {.a = a, .l = l, .shape = s, .store = &a->stores[l->owner], .q = *q, .out = *out};
  if (k) attn_store_all(&st, k, v, a->batch->slot[l->kind], n_rows);
  workers_launch(a->c.workers, attn_do_strip, &st, sizeof st, s->strip_items, &s->strip_items);
  if (a->parts_floats > 0) workers_launch(a->c.workers, attn_join_split, &st, sizeof st, s->split_items, &s->split_items);
}

static void cpu_fill(struct attn *a, int layer, const struct tensor *k, const struct tensor *v, const int64_t *slot) {
  const struct attn_layer *l = &a->layers[layer];
  CHECK(l->kind == BATCH_CROSS && l->owner == layer);
  CHECK(k->cols == l->n_kv * l->head_dim && v->cols == k->cols && v->rows == k->rows);
  struct attn_step st = {.a = a, .l = l, .store = &a->stores[layer]};
  if (k->rows > 0) attn_store_all(&st, k, v, slot, k->rows);
}

static void cpu_copy_page(struct attn *a, enum kv_kind kind, int32_t from, int32_t to) {
  for (int i = 0; i < a->c.n_layers; i++) {
    const struct attn_layer *l = &a->layers[i];
    const struct attn_store *s = &a->stores[i];
    if (l->owner != i || l->kind != (int)kind) continue;
    size_t n_bytes = (size_t)l->n_kv * (size_t)a->c.page_tokens * s->row_bytes;
    memcpy(s->k + (size_t)to * n_bytes, s->k + (size_t)from * n_bytes, n_bytes);
    memcpy(s->v + (size_t)to * n_bytes, s->v + (size_t)from * n_bytes, n_bytes);
  }
}

const struct attn_ops attn_cpu_ops = {.name = "cpu",
                                      .open = cpu_open,
                                      .close = cpu_close,
                                      .bytes = attn_bytes,
                                      .prepare = cpu_prepare,
                                      .copy_page = cpu_copy_page,
                                      .fill = cpu_fill,
                                      .run = cpu_run};
