/* b_attn.c — rates of attention and of the elementwise kernels.
 *
 * Usage: b_attn [auto|ref|avx2|avx512] [threads] [part of a line's name]
 * Prefill: GFLOP/s, 4 * head_dim per query head and visible key. Decode: also GB/s of keys and values read.
 * Each figure is the best of several runs: with one thread of its processor time, otherwise of the time that passed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/mem.h"
#include "compute/device.h"

enum { REPEATS = 7, PAGE = 16 };

static struct device *device;

static double now_ms(void) {
  struct timespec t;
  clock_gettime(workers_count(device->workers) == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

struct bench_case {
  const char *name;
  int n_q, n_kv, head_dim;
  int rows, depth, n_seqs; /* rows of each sequence, behind depth keys */
  int window;
  enum dtype kv_dtype;
};

static const struct bench_case cases[] = {
    {"prefill 512, 270M full", 4, 1, 256, 512, 0, 1, 0, DTYPE_BF16},
    {"prefill 512 at 4096, full", 4, 1, 256, 512, 4096, 1, 0, DTYPE_BF16},
    {"prefill 512 at 16384, full", 4, 1, 256, 512, 16384, 1, 0, DTYPE_BF16},
    {"prefill 512 at 4096, window 512", 4, 1, 256, 512, 4096, 1, 512, DTYPE_BF16},
    {"prefill 512 at 4096, f32", 4, 1, 256, 512, 4096, 1, 0, DTYPE_F32},
    {"prefill 512 at 4096, 8 over 4", 8, 4, 256, 512, 4096, 1, 0, DTYPE_BF16},
    {"prefill 512 at 4096, 512 wide", 8, 1, 512, 512, 4096, 1, 0, DTYPE_BF16},
    {"prefill 512 at 4096, 16 over 16", 16, 16, 64, 512, 4096, 1, 0, DTYPE_BF16},
    {"decode at 4096, 270M full", 4, 1, 256, 1, 4096, 1, 0, DTYPE_BF16},
    {"decode at 4096, f32", 4, 1, 256, 1, 4096, 1, 0, DTYPE_F32},
    {"decode at 4096, f16", 4, 1, 256, 1, 4096, 1, 0, DTYPE_F16},
    {"decode at 4096, q8_0", 4, 1, 256, 1, 4096, 1, 0, DTYPE_Q8_0},
    {"decode at 4096, window 512", 4, 1, 256, 1, 4096, 1, 512, DTYPE_BF16},
    {"decode at 16384, 270M full", 4, 1, 256, 1, 16384, 1, 0, DTYPE_BF16},
    {"decode at 32768, 270M full", 4, 1, 256, 1, 32768, 1, 0, DTYPE_BF16},
    {"decode at 32768, 8 over 4", 8, 4, 256, 1, 32768, 1, 0, DTYPE_BF16},
    {"decode at 32768, 8 over 1, 512", 8, 1, 512, 1, 32768, 1, 0, DTYPE_BF16},
    {"decode at 16384, 8 over 8, 64", 8, 8, 64, 1, 16384, 1, 0, DTYPE_BF16},
    {"decode 16 sequences at 1000", 4, 1, 256, 1, 1000, 16, 0, DTYPE_BF16},
};

static struct tensor new_tensor(int rows, int cols) {
  struct err e;
  struct tensor t;
  if (device->ops->alloc(device, &t, rows, cols, "bench", &e)) {
    fprintf(stderr, "%s\n", e.msg);
    exit(1);
  }
  uint32_t x = 12345;
  for (int r = 0; r < rows; r++) {
    for (int c = 0; c < cols; c++) {
      x = x * 1664525 + 1013904223;
      tensor_row(&t, r)[c] = ((float)(x >> 8) - 0x1p23f) * 0x1p-23f;
    }
  }
  return t;
}

static void fill_batch(struct batch *b, const struct bench_case *c, int pages_max) {
  int n_rows = c->rows * c->n_seqs;
  *b = (struct batch){
      .n_rows = n_rows, .n_seqs = c->n_seqs, .rows_max = n_rows, .seqs_max = c->n_seqs, .pages_max = {pages_max, pages_max}};
  b->q_start = xcalloc((size_t)c->n_seqs + 1, sizeof(int32_t));
  b->pos = xcalloc((size_t)n_rows, sizeof(int32_t));
  b->seq = xcalloc((size_t)n_rows, sizeof(int32_t));
  b->lo[KV_FULL] = xcalloc((size_t)n_rows, sizeof(int32_t));
  b->hi[KV_FULL] = xcalloc((size_t)n_rows, sizeof(int32_t));
  b->slot[KV_FULL] = xcalloc((size_t)n_rows, sizeof(int64_t));
  b->page[KV_FULL] = xcalloc((size_t)(c->n_seqs * pages_max), sizeof(int32_t));
  for (int i = 0; i < c->n_seqs * pages_max; i++) b->page[KV_FULL][i] = i + 1;
  for (int r = 0; r < n_rows; r++) {
    int s = r / c->rows, pos = c->depth + r % c->rows;
    b->seq[r] = s, b->pos[r] = pos;
    b->lo[KV_FULL][r] = (int32_t)kv_window_lo(pos, c->window), b->hi[KV_FULL][r] = pos + 1;
    b->slot[KV_FULL][r] = (int64_t)b->page[KV_FULL][s * pages_max + pos / PAGE] * PAGE + pos % PAGE;
    b->q_start[s + 1] = r + 1;
  }
}

/* Write keys and values into every slot: memory that was never written is one page of zeros in the machine's eyes. */
static void fill_cache(struct attn *a, const struct bench_case *c, int n_pages) {
  enum { ROWS = 512 };
  struct batch b = {.n_rows = ROWS, .rows_max = ROWS};
  b.lo[KV_FULL] = b.hi[KV_FULL] = xcalloc(ROWS, sizeof(int32_t));
  b.slot[KV_FULL] = xcalloc(ROWS, sizeof(int64_t));
  struct tensor q = new_tensor(ROWS, c->n_q * c->head_dim), out = new_tensor(ROWS, c->n_q * c->head_dim);
  struct tensor k = new_tensor(ROWS, c->n_kv * c->head_dim), v = new_tensor(ROWS, c->n_kv * c->head_dim);
  int32_t start = 0;
  b.q_start = &start;
  for (int64_t slot = PAGE; slot < (int64_t)(n_pages + 1) * PAGE; slot += ROWS) {
    for (int r = 0; r < ROWS; r++) b.slot[KV_FULL][r] = slot + r < (int64_t)(n_pages + 1) * PAGE ? slot + r : 0;
    attn_cpu_ops.prepare(a, &b);
    attn_cpu_ops.run(a, 0, &q, &k, &v, &out);
  }
  device->ops->free(device, &q);
  device->ops->free(device, &k);
  device->ops->free(device, &v);
  device->ops->free(device, &out);
  free(b.lo[KV_FULL]);
  free(b.slot[KV_FULL]);
}

static void free_batch(struct batch *b) {
  free(b->q_start);
  free(b->pos);
  free(b->seq);
  free(b->lo[KV_FULL]);
  free(b->hi[KV_FULL]);
  free(b->slot[KV_FULL]);
  free(b->page[KV_FULL]);
}

static void run_case(const struct bench_case *c) {
  struct err e;
  struct batch b;
  const struct attn_layer layer = {KV_FULL, c->n_q, c->n_kv, c->head_dim, 1 / 16.0f, 0};
  int pages_max = div_up(c->depth + c->rows, PAGE);
  fill_batch(&b, c, pages_max);
  struct attn_config config = {.layers = &layer, .n_layers = 1, .kv_dtype = c->kv_dtype, .page_tokens = PAGE, .rows_max = 512};
  config.n_pages[KV_FULL] = pages_max * c->n_seqs, config.seqs_max = c->n_seqs, config.tokens_max = c->depth + c->rows;
  config.kern = device->kern, config.workers = device->workers;
  struct attn *a = attn_cpu_ops.open(&config, &e);
  if (!a) {
    fprintf(stderr, "%s\n", e.msg);
    exit(1);
  }
  fill_cache(a, c, pages_max * c->n_seqs);
  struct tensor q = new_tensor(b.n_rows, c->n_q * c->head_dim), out = new_tensor(b.n_rows, c->n_q * c->head_dim);
  struct tensor k = new_tensor(b.n_rows, c->n_kv * c->head_dim), v = new_tensor(b.n_rows, c->n_kv * c->head_dim);
  double best = 1e30, keys = 0;
  for (int i = 0; i < REPEATS + (c->rows == 1 ? 20 : 0); i++) {
    double start = now_ms();
    attn_cpu_ops.prepare(a, &b);
    attn_cpu_ops.run(a, 0, &q, &k, &v, &out);
    best = MIN(best, now_ms() - start);
  }
  for (int r = 0; r < b.n_rows; r++) keys += b.hi[KV_FULL][r] - b.lo[KV_FULL][r];
  double flop = keys * 4 * c->head_dim * c->n_q, n_bytes = keys / c->rows * (double)attn_slot_bytes(c->kv_dtype, c->n_kv, c->head_dim);
  printf("%-34s %8.3f ms %7.1f GFLOP/s", c->name, best, flop / best * 1e-6);
  if (c->rows == 1) printf(" %6.1f GB/s", n_bytes / best * 1e-6);
  printf("\n");
  fflush(stdout);
  attn_cpu_ops.close(a);
  device->ops->free(device, &q);
  device->ops->free(device, &k);
  device->ops->free(device, &v);
  device->ops->free(device, &out);
  free_batch(&b);
}

static void elementwise(void) {
  enum { ROWS = 64, COLS = 2048 };
  struct tensor x = new_tensor(ROWS, COLS), y = new_tensor(ROWS, COLS), z = new_tensor(ROWS, COLS);
  static const char *const names[] = {"rmsnorm", "add_rmsnorm", "add", "gelu", "softcap", "argmax"};
  for (size_t op = 0; op < ARRAY_LEN(names); op++) {
    double best = 1e30;
    const struct kern *kern = device->kern;
    for (int i = 0; i < 40; i++) {
      double start = now_ms();
      for (int r = 0; r < ROWS; r++) {
        float *yr = tensor_row(&y, r);
        const float *xr = tensor_row(&x, r), *zr = tensor_row(&z, r);
        bool bad;
        switch (op) {
        case 0: kern->rmsnorm(yr, xr, zr, COLS, 1e-6f); break;
        case 1: kern->add_rmsnorm(yr, xr, zr, COLS, 1e-6f); break;
        case 2: kern->add(yr, xr, COLS); break;
        case 3: kern->gated(yr, xr, zr, ACT_GELU_TANH, COLS); break;
        case 4: kern->softcap(yr, xr, 30, COLS); break;
        default: kern->argmax(xr, COLS, &bad); break;
        }
      }
      best = MIN(best, now_ms() - start);
    }
    printf("%-12s %6.3f ns a number\n", names[op], best * 1e6 / (ROWS * COLS));
  }
  device->ops->free(device, &x);
  device->ops->free(device, &y);
  device->ops->free(device, &z);
}

int main(int argc, char **argv) {
  static const char *const isas[] = {"auto", "ref", "avx2", "avx512"};
  struct device_config config = {.n_threads = argc > 2 ? atoi(argv[2]) : 0, .rows_max = 1, .cols_max = 64};
  for (int i = 0; argc > 1 && i < (int)ARRAY_LEN(isas); i++) {
    if (!strcmp(argv[1], isas[i])) config.isa = (enum isa)i;
  }
  struct err e;
  device = device_cpu_ops.open(&config, &e);
  if (!device) {
    fprintf(stderr, "%s\n", e.msg);
    return 1;
  }
  printf("%s, %d threads\n", device->kern->name, workers_count(device->workers));
  for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
    if (argc < 4 || strstr(cases[i].name, argv[3])) run_case(&cases[i]);
  }
  if (argc < 4) elementwise();
  device_cpu_ops.close(device);
  return 0;
}
