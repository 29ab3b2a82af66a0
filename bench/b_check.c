/* b_check.c — have the fast kernels stayed fast? Ratios only, so that a slow or busy machine does not matter: `make bench-check`.
 *
 * Usage: b_check [part of a line's name]
 * Each line sets a kernel of a fast level against a yardstick on the same data, by processor time of one thread, in turns; the median of the turns'
 * ratios counts. Yardsticks: the reference level; a loop over bytes in plain C that no compiler vectorises; the processor's peak on registers
 * (floor.h); memcpy. A line fails when its ratio is below its limit three times over. Limits are about half of what is usual on AVX2 without VNNI: noise
 * stays above them, a kernel that got lost (another one chosen, vectors gone, weights unpacked for each row) does not.
 * Exit status 1 when a line failed; the last line is "N passed, N failed".
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/mem.h"
#include "compute/attn.h"
#include "compute/floor.h"
#include "compute/gemm.h"
#include "compute/shortlist.h"

enum { TURNS = 7, TRIES = 3, TURN_NS = 1000000 };

static const char *wanted = "";
static int n_passed, n_failed;

static double cpu_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* ---- contests ----------------------------------------------------------------------------------------------------------- */

struct side {
  void (*run)(void *ctx);
  void *ctx;
  double work; /* of one run, in whatever both sides count */
  int runs;    /* in a turn, once known */
};

static double rate(struct side *s) {
  if (!s->runs) { /* the first call warms up, the second says how many fill a turn */
    s->run(s->ctx);
    double start = cpu_ns();
    s->run(s->ctx);
    s->runs = 1 + (int)(TURN_NS / MAX(cpu_ns() - start, 100));
  }
  double start = cpu_ns();
  for (int i = 0; i < s->runs; i++) s->run(s->ctx);
  return s->work * s->runs / (cpu_ns() - start);
}

static int compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void check(const char *level, const char *what, const char *yardstick, struct side fast, struct side slow, double limit) {
  char name[96];
  snprintf(name, sizeof name, "%s %s / %s", level, what, yardstick);
  if (!strstr(name, wanted)) return;
  double best = 0;
  for (int t = 0; t < TRIES && best < limit; t++) {
    double ratios[TURNS];
    for (int i = 0; i < TURNS; i++) {
      double f = rate(&fast);
      ratios[i] = f / rate(&slow);
    }
    qsort(ratios, TURNS, sizeof *ratios, compare_doubles);
    best = MAX(best, ratios[TURNS / 2]);
  }
  printf("%-50s %8.2f  at least %6.2f  %s\n", name, best, limit, best < limit ? "FAILED" : "ok");
  fflush(stdout);
  if (best < limit) n_failed++;
  else n_passed++;
}

static void *big(size_t n_bytes) {
  struct err e;
  void *p = mem_big_alloc(n_bytes, "bench-check", &e);
  if (!p) {
    fprintf(stderr, "bench-check: %s\n", e.msg);
    exit(1);
  }
  return p;
}

static uint32_t state = 1;
static float next_float(void) {
  state = state * 1664525 + 1013904223;
  return ((float)(state >> 8) - 0x1p23f) * 0x1p-23f;
}

static struct tensor tensor_new(int rows, int cols) {
  struct tensor t = {.dtype = DTYPE_F32, .rows = rows, .cols = cols, .row_bytes = align_up((size_t)cols * 4, 64)};
  t.data = big((size_t)rows * t.row_bytes);
  for (int r = 0; r < rows; r++)
    for (int c = 0; c < cols; c++) tensor_row(&t, r)[c] = next_float();
  return t;
}
static void tensor_free(struct tensor *t) { mem_big_free(t->data, (size_t)t->rows * t->row_bytes); }

/* ---- yardsticks --------------------------------------------------------------------------------------------------------- */

enum { LOOP_COLS = 1024, LOOP_ROWS = 64, COPY_BYTES = 32 << 20 };
static int8_t loop_x[LOOP_COLS], loop_w[LOOP_ROWS][LOOP_COLS];
static int32_t loop_y[LOOP_ROWS];

/* One byte after the other; the empty statement keeps the sums in ordinary registers. */
static void byte_loop(void *ctx) {
  (void)ctx;
  for (int r = 0; r < LOOP_ROWS; r++) {
    int32_t a = 0, b = 0, c = 0, d = 0;
    for (int k = 0; k < LOOP_COLS; k += 4) {
      a += loop_x[k] * loop_w[r][k];
      b += loop_x[k + 1] * loop_w[r][k + 1];
      c += loop_x[k + 2] * loop_w[r][k + 2];
      d += loop_x[k + 3] * loop_w[r][k + 3];
#if defined(__GNUC__)
      __asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d));
#endif
    }
    loop_y[r] = a + b + c + d;
  }
}

static uint8_t *copy_from, *copy_to;
static void copy(void *ctx) {
  (void)ctx;
  memcpy(copy_to, copy_from, COPY_BYTES);
  loop_x[0] ^= (int8_t)copy_to[loop_y[0] & 0xff]; /* it is looked at */
}

#if defined(__x86_64__)
enum { PEAK_ROUNDS = 20000 };
static void int8_peak(void *ctx) { *(double *)ctx = floor_int8_avx2(PEAK_ROUNDS); }
static void float_peak(void *ctx) { *(double *)ctx = floor_float_avx2(PEAK_ROUNDS); }
#endif
static double peak_work;

static struct side side_loop(void) { return (struct side){byte_loop, NULL, 2.0 * LOOP_ROWS * LOOP_COLS, 0}; }
static struct side side_copy(void) { return (struct side){copy, NULL, COPY_BYTES, 0}; }
#if defined(__x86_64__)
static struct side side_peak(bool plain) {
  void (*run)(void *ctx) = plain ? float_peak : int8_peak;
  run(&peak_work);
  return (struct side){run, &peak_work, peak_work, 0};
}
#endif

/* ---- products ----------------------------------------------------------------------------------------------------------- */

enum { COLS = 1024, PANEL_ROWS = 512, X_ROWS = 128, REF_ROWS = 4, COLD_BYTES = 40 << 20 };

struct limits {
  enum dtype dtype;
  double ref, loop, peak; /* many rows */
  double few;             /* four rows, against the loop */
  double one;             /* one row, against memcpy */
};
static const struct limits limits[] = {
    {DTYPE_Q4_0, 10, 20, .25, 15, .7}, {DTYPE_Q4_1, 10, 20, .25, 15, .7},  {DTYPE_Q5_0, 12, 18, .22, 14, .7},
    {DTYPE_Q5_1, 12, 16, .2, 14, .7},  {DTYPE_Q8_0, 9, 12, .16, 11, .7},   {DTYPE_Q2_K, 10, 16, .2, 12, .6},
    {DTYPE_Q3_K, 14, 17, .2, 14, .6},  {DTYPE_Q4_K, 16, 20, .25, 15, .7},  {DTYPE_Q5_K, 18, 19, .22, 14, .6},
    {DTYPE_Q6_K, 25, 15, .18, 13, .7}, {DTYPE_IQ4_NL, 8, 14, .16, 10, .7}, {DTYPE_IQ4_XS, 7.5, 13, .16, 10, .7},
    {DTYPE_BF16, 4, 8, .27, 7.5, .7},  {DTYPE_F16, 14, 8, .27, 8, .7},     {DTYPE_F32, 2.2, 6, .33, 6, .9},
};

struct product {
  const struct kern *k;
  struct weight w;
  struct tensor x, y;
  struct gemm_scratch s;
};
static void product_run(void *ctx) {
  struct product *p = ctx;
  const struct weight *w = &p->w;
  struct tensor *y = &p->y;
  gemm(p->k, NULL, &p->s, 1, &w, &y, &p->x);
}
static struct side side_product(struct product *p) { return (struct side){product_run, p, 2.0 * p->w.rows * p->w.cols * p->x.rows, 0}; }

/* A row as a file would have it, of random numbers: any bytes will do but for the scales (f16), which must be finite. */
static void fill_row(enum dtype t, uint8_t *row) {
  static const int halves[DTYPE_COUNT][2] = {
      [DTYPE_Q4_1] = {0, 2},   [DTYPE_Q5_1] = {0, 2},     [DTYPE_Q4_K] = {0, 2},    [DTYPE_Q5_K] = {0, 2},
      [DTYPE_Q2_K] = {80, 82}, [DTYPE_Q3_K] = {108, 108}, [DTYPE_Q6_K] = {208, 208}};
  const struct dtype_info *info = dtype_info(t);
  for (int i = 0; i < COLS; i += info->block_elems, row += info->block_bytes) {
    float v = next_float();
    if (!info->quantised) dtype_from_f32(t, &v, row, 1);
    else {
      for (int j = 0; j < info->block_bytes; j++) next_float(), row[j] = (uint8_t)(state >> 24);
      for (int h = 0; h < 2; h++) memcpy(row + halves[t][h], &(uint16_t){0x1c00}, 2);
    }
  }
}

enum { FEW_ROWS = 16 };

/* n_different rows, again and again. */
static struct weight weight_new(enum dtype t, int rows, int n_different) {
  struct weight w = {.dtype = t, .rows = rows, .cols = COLS};
  dtype_row_bytes(t, COLS, &w.row_bytes);
  uint8_t *p = big((size_t)rows * w.row_bytes);
  for (int r = 0; r < rows; r++) {
    uint8_t *row = p + (size_t)r * w.row_bytes;
    if (r < n_different) fill_row(t, row);
    else memcpy(row, row - (size_t)n_different * w.row_bytes, w.row_bytes);
  }
  w.source = p;
  return w;
}
static void weight_pack(const struct kern *k, struct weight *w) {
  w->packed_bytes = gemm_packed_bytes(k, w);
  if (!w->packed_bytes) return;
  w->packed = big(w->packed_bytes);
  gemm_pack(k, NULL, w);
}
static void weight_drop(struct weight *w) {
  if (w->packed) mem_big_free(w->packed, w->packed_bytes);
  w->packed = NULL, w->packed_bytes = 0;
}
static void weight_delete(struct weight *w) {
  weight_drop(w);
  mem_big_free((void *)(size_t)w->source, (size_t)w->rows * w->row_bytes);
}

static void check_products(const struct kern *k, const struct limits *l, const struct gemm_scratch *s) {
#if defined(__x86_64__)
  char name[48];
  const char *type = dtype_info(l->dtype)->name;
  struct tensor x = tensor_new(X_ROWS, COLS), y = tensor_new(X_ROWS, PANEL_ROWS);
  struct product fast = {k, weight_new(l->dtype, PANEL_ROWS, FEW_ROWS), x, y, *s}, slow = fast;
  slow.k = &kern_ref;
  slow.x.rows = slow.y.rows = REF_ROWS;
  weight_pack(k, &fast.w);
  snprintf(name, sizeof name, "%s %d rows", type, X_ROWS);
  check(k->name, name, "reference", side_product(&fast), side_product(&slow), l->ref);
  check(k->name, name, "byte loop", side_product(&fast), side_loop(), l->loop);
  check(k->name, name, "peak", side_product(&fast), side_peak(!dtype_info(l->dtype)->quantised), l->peak);
  fast.x.rows = fast.y.rows = 4;
  snprintf(name, sizeof name, "%s 4 rows", type);
  check(k->name, name, "byte loop", side_product(&fast), side_loop(), l->few);
  weight_delete(&fast.w);

  /* more weights than caches hold; what one row of x reads of them against what memcpy reads */
  struct product cold = {.k = k, .w = weight_new(l->dtype, (int)(COLD_BYTES / fast.w.row_bytes), FEW_ROWS), .x = x, .s = *s};
  cold.y = tensor_new(1, cold.w.rows);
  cold.x.rows = 1;
  weight_pack(k, &cold.w);
  struct side one = side_product(&cold);
  one.work = (double)(cold.w.packed ? cold.w.packed_bytes : (size_t)cold.w.rows * cold.w.row_bytes);
  snprintf(name, sizeof name, "%s 1 row, bytes", type);
  check(k->name, name, "memcpy", one, side_copy(), l->one);
  weight_delete(&cold.w);
  tensor_free(&cold.y);
  tensor_free(&x);
  tensor_free(&y);
#else
  (void)k, (void)l, (void)s;
#endif
}

static void shortlist_run(void *ctx) {
  static const int32_t n_best[1] = {1};
  struct product *p = ctx;
  struct tensor no_peaks = {0};
  shortlist_product(p->k, NULL, &p->s, &p->w, &p->y, &no_peaks, &p->x, 0, n_best);
}

/* The likeliest token out of a matrix that no cache holds, against all logits. */
static void check_shortlist(const struct kern *k, const struct gemm_scratch *s) {
  struct err e = {0};
  if (!k->shortlist) return;
  const int rows = COLD_BYTES / COLS;
  struct product p = {k, weight_new(DTYPE_Q8_0, rows, rows), tensor_new(1, COLS), tensor_new(1, rows), *s};
  weight_pack(k, &p.w);
  p.w.shortlist_bytes = shortlist_bytes(k, &p.w);
  p.w.shortlist = big(p.w.shortlist_bytes);
  if (shortlist_make(k, NULL, &p.w, &e)) puts(e.msg), exit(1);
  check(k->name, "shortlist, 1 row", "Q8_0", (struct side){shortlist_run, &p, 1, 0}, (struct side){product_run, &p, 1, 0}, 1.05);
  mem_big_free(p.w.shortlist, p.w.shortlist_bytes);
  weight_delete(&p.w);
  tensor_free(&p.x);
  tensor_free(&p.y);
}

/* ---- attention ---------------------------------------------------------------------------------------------------------- */

enum { HEAD_DIM = 256, N_Q = 4, DEPTH = 2048, PAGE = 16, PAGES = (DEPTH + 64) / PAGE };

struct attention {
  struct attn *a;
  struct batch b;
  struct tensor q, k, v, out;
  double keys; /* that all rows see */
  int32_t q_start[2], pos[64], seq[64], lo[64], hi[64], page[PAGES];
  int64_t slot[64];
};
static void attention_run(void *ctx) {
  struct attention *t = ctx;
  attn_cpu_ops.prepare(t->a, &t->b);
  attn_cpu_ops.run(t->a, 0, &t->q, &t->k, &t->v, &t->out);
}

/* rows <= 64 of one sequence behind DEPTH keys. */
static struct attention *attention_new(const struct kern *k, int rows) {
  struct err e;
  const struct attn_layer layer = {KV_FULL, N_Q, 1, HEAD_DIM, 1 / 16.0f, 0};
  struct attn_config c = {.layers = &layer, .n_layers = 1, .kv_dtype = DTYPE_BF16, .page_tokens = PAGE, .rows_max = 64, .seqs_max = 1};
  c.n_pages[KV_FULL] = PAGES, c.tokens_max = PAGES * PAGE, c.kern = k;
  struct attention *t = xcalloc(1, sizeof *t);
  t->a = attn_cpu_ops.open(&c, &e);
  if (!t->a) {
    fprintf(stderr, "bench-check: %s\n", e.msg);
    exit(1);
  }
  t->b = (struct batch){.n_rows = rows, .n_seqs = 1, .rows_max = 64, .seqs_max = 1, .pages_max = {PAGES, PAGES}};
  t->b.q_start = t->q_start, t->b.pos = t->pos, t->b.seq = t->seq;
  t->b.lo[KV_FULL] = t->lo, t->b.hi[KV_FULL] = t->hi, t->b.slot[KV_FULL] = t->slot, t->b.page[KV_FULL] = t->page;
  t->q = tensor_new(64, N_Q * HEAD_DIM), t->out = tensor_new(64, N_Q * HEAD_DIM);
  t->k = tensor_new(64, HEAD_DIM), t->v = tensor_new(64, HEAD_DIM);
  for (int i = 0; i < PAGES; i++) t->page[i] = i + 1;
  for (int from = 0; from <= DEPTH; from += 64) { /* fill the cache; the last round is what is timed */
    int n = from < DEPTH ? 64 : rows;
    t->keys = 0;
    for (int r = 0; r < n; r++) {
      t->pos[r] = from + r, t->hi[r] = from + r + 1;
      t->slot[r] = PAGE + from + r;
      t->keys += t->hi[r];
    }
    t->b.n_rows = t->q_start[1] = n;
    t->q.rows = t->k.rows = t->v.rows = t->out.rows = n;
    attention_run(t);
  }
  return t;
}
static void attention_delete(struct attention *t) {
  attn_cpu_ops.close(t->a);
  struct tensor *all[] = {&t->q, &t->k, &t->v, &t->out};
  for (size_t i = 0; i < ARRAY_LEN(all); i++) {
    all[i]->rows = 64;
    tensor_free(all[i]);
  }
  free(t);
}
static struct side side_attention(struct attention *t) { return (struct side){attention_run, t, 4.0 * N_Q * HEAD_DIM * t->keys, 0}; }

static void check_attention(const struct kern *k) {
#if defined(__x86_64__)
  struct attention *many = attention_new(k, 64), *one = attention_new(k, 1), *ref = attention_new(&kern_ref, 1);
  check(k->name, "attention 64 rows", "reference", side_attention(many), side_attention(ref), 12);
  check(k->name, "attention 64 rows", "peak", side_attention(many), side_peak(true), .24);
  check(k->name, "attention 1 row", "reference", side_attention(one), side_attention(ref), 7);
  attention_delete(many);
  attention_delete(one);
  attention_delete(ref);
#else
  (void)k;
#endif
}

/* ---- the rest ----------------------------------------------------------------------------------------------------------- */

enum { ELEMENTS = 2048 };
static float values[3][ELEMENTS];
struct element_op {
  const struct kern *k;
  int op;
};
static void element_run(void *ctx) {
  const struct element_op *o = ctx;
  bool bad;
  switch (o->op) {
  case 0: o->k->rmsnorm(values[0], values[1], values[2], ELEMENTS, 1e-6f); break;
  case 1: o->k->add_rmsnorm(values[0], values[1], values[2], ELEMENTS, 1e-6f); break;
  case 2: o->k->gated(values[0], values[1], values[2], ACT_GELU_TANH, ELEMENTS); break;
  case 3: o->k->softcap(values[0], values[1], 30, ELEMENTS); break;
  case 4: o->k->rope(values[0], values[1], values[2], ELEMENTS); break;
  case 5: o->k->argmax(values[1], ELEMENTS, &bad); break;
  default: o->k->peaks(values[0], values[1], ELEMENTS); break;
  }
}

static void check_elements(const struct kern *k) {
  static const char *const names[] = {"rmsnorm", "add_rmsnorm", "gelu", "softcap", "rope", "argmax", "peaks"};
  static const double least[] = {
      2.3, 2.5, 15, 11, 1.3, 4, 8}; /* argmax: half of 8, which avx2 has on processors with wider vectors; of Zen 3's 12 it is a third */
  for (int i = 0; i < (int)ARRAY_LEN(names); i++) {
    for (int v = 0; v < 3; v++)
      for (int j = 0; j < ELEMENTS; j++) values[v][j] = next_float();
    struct element_op fast = {k, i}, slow = {&kern_ref, i};
    check(k->name, names[i], "reference", (struct side){element_run, &fast, 1, 0}, (struct side){element_run, &slow, 1, 0}, least[i]);
  }
}

int main(int argc, char **argv) {
  if (argc > 1) wanted = argv[1];
  for (int i = 0; i < LOOP_COLS; i++) {
    loop_x[i] = (int8_t)i;
    for (int r = 0; r < LOOP_ROWS; r++) loop_w[r][i] = (int8_t)(r * i);
  }
  copy_from = big(COPY_BYTES), copy_to = big(COPY_BYTES);
  memset(copy_from, 1, COPY_BYTES);
  struct gemm_scratch s = {.rows_max = X_ROWS, .cols_max = COLS, .n_workers = 1, .n_bytes = gemm_scratch_bytes(X_ROWS, COLS, 1)};
  s.data = big(s.n_bytes);
  const struct kern *k;
  for (int v = 0; (k = kern_variant(v)); v++) {
    if (k->isa == ISA_REF) continue;
    for (size_t i = 0; i < ARRAY_LEN(limits); i++) check_products(k, &limits[i], &s);
    check_shortlist(k, &s);
    check_attention(k);
    check_elements(k);
  }
  mem_big_free(s.data, s.n_bytes);
  mem_big_free(copy_from, COPY_BYTES);
  mem_big_free(copy_to, COPY_BYTES);
  printf("%d passed, %d failed\n", n_passed, n_failed);
  return n_failed > 0;
}
