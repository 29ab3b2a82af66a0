/* b_gemm.c — rates of matrix products by type and shape, beside the machine's floors.
 *
 * Usage: b_gemm [ref|avx2|avx512] [part of a line's name]
 * One row: GB/s of packed weights (more weights than the caches hold are gone through in turn). Many rows: GOP/s (2 per multiply-add).
 * Each figure is the best of several runs.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "compute/gemm.h"

enum { ROWS = 512, COLD_BYTES = 96 << 20, THREADS = 2 };

static double now(void) { return (double)clock_ns() * 1e-9; }

struct shape {
  const char *name;
  enum dtype dtype;
  int rows, cols;
};

/* The sample model's products, then one shape for each other type. */
static const struct shape shapes[] = {
    {"q           ", DTYPE_Q5_0, 1024, 640},    {"k           ", DTYPE_Q5_0, 256, 640},    {"v           ", DTYPE_Q8_0, 256, 640},
    {"gate, up    ", DTYPE_Q5_0, 2048, 640},    {"attn_output ", DTYPE_Q4_K, 640, 1024},   {"ffn_down    ", DTYPE_Q6_K, 640, 2048},
    {"ffn_down    ", DTYPE_Q4_K, 640, 2048},    {"head        ", DTYPE_Q8_0, 262144, 640}, {"other       ", DTYPE_Q4_0, 2048, 1024},
    {"other       ", DTYPE_Q4_1, 2048, 1024},   {"other       ", DTYPE_Q5_1, 2048, 1024},  {"other       ", DTYPE_Q2_K, 2048, 1024},
    {"other       ", DTYPE_Q3_K, 2048, 1024},   {"other       ", DTYPE_Q5_K, 2048, 1024},  {"other       ", DTYPE_IQ4_NL, 2048, 1024},
    {"other       ", DTYPE_IQ4_XS, 2048, 1024}, {"other       ", DTYPE_F16, 2048, 1024},   {"other       ", DTYPE_BF16, 2048, 1024},
    {"other       ", DTYPE_F32, 2048, 1024},
};

static void *big(size_t n_bytes) {
  struct err e;
  void *p = mem_big_alloc(n_bytes, "bench", &e);
  if (!p) {
    fprintf(stderr, "%s\n", e.msg);
    exit(1);
  }
  return p;
}

static struct tensor tensor_new(int rows, int cols) {
  struct tensor t = {.dtype = DTYPE_F32, .rows = rows, .cols = cols, .row_bytes = align_up((size_t)cols * 4, 64)};
  t.data = big((size_t)rows * t.row_bytes);
  return t;
}

static uint32_t state = 1;
static uint32_t next(void) { return state = state * 1664525 + 1013904223; }

/* Random blocks with small finite scales: any bytes will do but for the f16 fields. */
static void fill(struct weight *w) {
  const struct dtype_info *info = dtype_info(w->dtype);
  size_t bytes = (size_t)info->block_bytes;
  uint8_t *p = (uint8_t *)(size_t)w->source;
  static const int halves[DTYPE_COUNT][2] = {
      [DTYPE_Q4_1] = {0, 2},   [DTYPE_Q5_1] = {0, 2},     [DTYPE_Q4_K] = {0, 2},    [DTYPE_Q5_K] = {0, 2},
      [DTYPE_Q2_K] = {80, 82}, [DTYPE_Q3_K] = {108, 108}, [DTYPE_Q6_K] = {208, 208}};
  for (size_t i = 0; i < (size_t)w->rows * w->row_bytes; i += bytes) {
    for (size_t j = 0; j < bytes; j++) p[i + j] = (uint8_t)(next() >> 24);
    for (int h = 0; h < 2; h++) memcpy(p + i + halves[w->dtype][h], &(uint16_t){0x1c00}, info->quantised ? 2 : 0);
    float v = (float)(next() >> 8) * 0x1p-24f - 0.5f;
    if (!info->quantised) dtype_from_f32(w->dtype, &v, p + i, 1);
  }
}

static double best_seconds(const struct kern *k, struct workers *workers, struct gemm_scratch *s, struct weight *w, int copies,
                           struct tensor *y, struct tensor *x, int runs) {
  double best = 1e9;
  for (int r = 0; r < runs; r++) {
    double t = now();
    for (int i = 0; i < copies; i++) {
      const struct weight *wi = &w[i];
      gemm(k, workers, s, 1, &wi, &y, x);
    }
    t = (now() - t) / copies;
    if (t < best) best = t;
  }
  return best;
}

static void bench(const struct kern *k, struct workers *const pools[THREADS], const struct shape *shape) {
  struct weight w = {.dtype = shape->dtype, .rows = shape->rows, .cols = shape->cols};
  dtype_row_bytes(w.dtype, (size_t)w.cols, &w.row_bytes);
  size_t source_bytes = (size_t)w.rows * w.row_bytes;
  w.source = big(source_bytes);
  fill(&w);
  w.packed_bytes = gemm_packed_bytes(k, &w);
  size_t bytes = w.packed_bytes ? w.packed_bytes : source_bytes;
  int copies = (int)(1 + COLD_BYTES / bytes);
  struct weight *all = calloc((size_t)copies, sizeof *all);
  double pack = now();
  for (int i = 0; i < copies; i++) {
    all[i] = w;
    if (!w.packed_bytes) continue;
    all[i].packed = big(w.packed_bytes);
    gemm_pack(k, pools[THREADS - 1], &all[i]);
  }
  pack = now() - pack;
  struct tensor x = tensor_new(ROWS, w.cols), y = tensor_new(ROWS, MIN(w.rows, 262144));
  for (int r = 0; r < ROWS; r++)
    for (int i = 0; i < w.cols; i++) tensor_row(&x, r)[i] = (float)(next() >> 8) * 0x1p-24f - 0.5f;
  struct gemm_scratch s = {.rows_max = ROWS, .cols_max = w.cols, .n_workers = THREADS};
  s.n_bytes = gemm_scratch_bytes(ROWS, w.cols, THREADS);
  s.data = big(s.n_bytes);
  printf("%s %-7s %6d x %-5d %4.2f bits pack %5.0f MB/s ", shape->name, dtype_info(w.dtype)->name, w.rows, w.cols,
         8.0 * (double)bytes / w.rows / w.cols, (double)source_bytes * copies / pack * 1e-6);
  for (int t = 0; t < THREADS; t++) {
    static const int rows[] = {1, 2, 4, 16, ROWS};
    printf("| %d thread%s", t + 1, t ? "s" : " ");
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
      struct tensor xi = tensor_rows(x, rows[i]), yi = tensor_rows(y, rows[i]);
      if (rows[i] == ROWS && w.rows > 65536) continue;
      double seconds = best_seconds(k, pools[t], &s, all, rows[i] >= 16 ? 1 : copies, &yi, &xi, rows[i] >= 16 ? 8 : 5);
      if (rows[i] == 1) printf(" 1: %5.2f GB/s", (double)bytes / seconds * 1e-9);
      else printf(" %d: %3.0f", rows[i], 2e-9 * w.rows * w.cols * rows[i] / seconds);
    }
    printf(" GOP/s ");
  }
  printf("\n");
  fflush(stdout);
  for (int i = 0; i < copies; i++) mem_big_free(all[i].packed, w.packed_bytes);
  free(all);
  mem_big_free(x.data, (size_t)ROWS * x.row_bytes);
  mem_big_free(y.data, (size_t)ROWS * y.row_bytes);
  mem_big_free(s.data, s.n_bytes);
  mem_big_free((void *)(size_t)w.source, source_bytes);
}

/* --- floors ----------------------------------------------------------------------------------------------------------- */

enum { READ_BYTES = 256 << 20, READ_ITEMS = 64 };
static uint64_t sink;

static void read_item(void *ctx, int item, int worker) {
  const uint64_t *p = (const uint64_t *)ctx + (size_t)item * (READ_BYTES / READ_ITEMS / 8);
  uint64_t sum[8] = {0};
  (void)worker;
  for (size_t i = 0; i < READ_BYTES / READ_ITEMS / 8; i += 8)
    for (int j = 0; j < 8; j++) sum[j] ^= p[i + j];
  __atomic_fetch_xor(&sink, sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7], __ATOMIC_RELAXED);
}

#if defined(__x86_64__)
/* 8 products of 32 bytes and their 16-bit sums: what AVX2 can do at most. */
__attribute__((target("avx2"))) static void int8_item(void *ctx, int item, int worker) {
  (void)ctx, (void)item, (void)worker;
  for (int i = 0; i < 100000; i++)
    __asm__ volatile("vpmaddubsw %%ymm8, %%ymm9, %%ymm10\n vpaddw %%ymm10, %%ymm0, %%ymm0\n"
                     "vpmaddubsw %%ymm8, %%ymm9, %%ymm11\n vpaddw %%ymm11, %%ymm1, %%ymm1\n"
                     "vpmaddubsw %%ymm8, %%ymm9, %%ymm12\n vpaddw %%ymm12, %%ymm2, %%ymm2\n"
                     "vpmaddubsw %%ymm8, %%ymm9, %%ymm13\n vpaddw %%ymm13, %%ymm3, %%ymm3\n"
                     "vpmaddubsw %%ymm8, %%ymm9, %%ymm10\n vpaddw %%ymm10, %%ymm4, %%ymm4\n"
                     "vpmaddubsw %%ymm8, %%ymm9, %%ymm11\n vpaddw %%ymm11, %%ymm5, %%ymm5\n"
                     "vpmaddubsw %%ymm8, %%ymm9, %%ymm12\n vpaddw %%ymm12, %%ymm6, %%ymm6\n"
                     "vpmaddubsw %%ymm8, %%ymm9, %%ymm13\n vpaddw %%ymm13, %%ymm7, %%ymm7\n" ::
                         : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm10", "xmm11", "xmm12", "xmm13");
}
#endif

static void floors(struct workers *const pools[THREADS]) {
  void *p = big(READ_BYTES);
  memset(p, 1, READ_BYTES);
  for (int t = 0; t < THREADS; t++) {
    double read = 1e9, multiply = 1e9;
    for (int r = 0; r < 8; r++) {
      double at = now();
      workers_run(pools[t], read_item, p, READ_ITEMS);
      read = MIN(read, now() - at);
#if defined(__x86_64__)
      at = now();
      if (kern_available(ISA_AVX2)) workers_run(pools[t], int8_item, NULL, 4 * THREADS);
      multiply = MIN(multiply, now() - at);
#endif
    }
    printf("floor: %d thread%s read %5.2f GB/s, AVX2 8-bit multiply %4.0f GOP/s\n", t + 1, t ? "s" : " ", READ_BYTES / read * 1e-9,
           4 * THREADS * 100000 * 8 * 64 / multiply * 1e-9);
  }
  mem_big_free(p, READ_BYTES);
}

int main(int argc, char **argv) {
  struct err e;
  enum isa isa = ISA_AUTO;
  if (argc > 1) isa = !strcmp(argv[1], "ref") ? ISA_REF : !strcmp(argv[1], "avx512") ? ISA_AVX512 : ISA_AVX2;
  const struct kern *k = kern_select(isa, &e);
  if (!k) {
    fprintf(stderr, "%s\n", e.msg);
    return 1;
  }
  struct workers *pools[THREADS];
  for (int t = 0; t < THREADS; t++) {
    pools[t] = workers_new(t + 1, &e);
    if (!pools[t]) {
      fprintf(stderr, "%s\n", e.msg);
      return 1;
    }
  }
  printf("level %s\n", k->name);
  floors(pools);
  for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
    char name[64];
    snprintf(name, sizeof name, "%s %s", shapes[i].name, dtype_info(shapes[i].dtype)->name);
    if (argc < 3 || strstr(name, argv[2])) bench(k, pools, &shapes[i]);
  }
  for (int t = 0; t < THREADS; t++) workers_delete(pools[t]);
  return 0;
}
