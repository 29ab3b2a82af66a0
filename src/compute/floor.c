/* floor.c — measure the machine's floors. */
#include "compute/floor.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"

enum { READ_LEAST = 64 << 20, READ_MOST = 1 << 30, READ_ITEMS = 64, ROUNDS = 2000000, TRIES = 5 };

struct read_job {
  char *data;
  size_t n_per_item;
  uint64_t (*read)(const void *p, size_t n_bytes);
  uint64_t sums[64];
};

static void fill_item(void *ctx, int item, int worker) {
  const struct read_job *j = ctx;
  (void)worker;
  memset(j->data + (size_t)item * j->n_per_item, item + 1, j->n_per_item);
}

static void read_item(void *ctx, int item, int worker) {
  struct read_job *j = ctx;
  j->sums[worker & 63] += j->read(j->data + (size_t)item * j->n_per_item, j->n_per_item);
}

/* Eight chains: the loads set the pace. */
static uint64_t read_plain(const void *from, size_t n_bytes) {
  const uint64_t *p = from;
  uint64_t a = 0, b = 0, c = 0, d = 0, f = 0, g = 0, h = 0, i = 0;
  for (size_t k = 0; k + 8 <= n_bytes / 8; k += 8) {
    __builtin_prefetch((const char *)(p + k) + FLOOR_READ_NEAR);
    a += p[k], b += p[k + 1], c += p[k + 2], d += p[k + 3];
    f += p[k + 4], g += p[k + 5], h += p[k + 6], i += p[k + 7];
  }
  return a + b + c + d + f + g + h + i;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Medians of the passes over the buffer: on a shared machine one pass in ten is a tenth faster than the others, which nothing that takes longer can be. Of two
 * ways the better one: they differ by as much as a fifth, and not in the same direction on all processors. */
static int measure_reads(const struct kern *k, struct workers *w, size_t n_bytes, struct machine_floor *out, struct err *e) {
  size_t most = MAX((size_t)READ_LEAST, MIN((size_t)READ_MOST, mem_available_bytes() / 4));
  n_bytes = align_up(MIN(MAX(n_bytes, (size_t)READ_LEAST), most), READ_ITEMS * 4096);
  struct read_job j = {.data = mem_big_alloc(n_bytes, "read test", e), .n_per_item = n_bytes / READ_ITEMS};
  uint64_t (*wide)(const void *p, size_t n_bytes) = read_plain;
  if (!j.data) return -1;
#if defined(__x86_64__)
  if (k->isa != ISA_REF) wide = k->isa == ISA_AVX512 ? floor_read_avx512 : floor_read_avx2;
#else
  (void)k;
#endif
  workers_run(w, fill_item, &j, READ_ITEMS);
  double rates[2][TRIES];
  for (int t = 0; t < 2 * TRIES; t++) {
    j.read = t % 2 ? wide : read_plain;
    int64_t start = clock_ns();
    workers_run(w, read_item, &j, READ_ITEMS);
    rates[t % 2][t / 2] = (double)n_bytes / (double)(clock_ns() - start);
  }
  for (int way = 0; way < 2; way++) {
    qsort(rates[way], TRIES, sizeof rates[way][0], ascending);
    out->read_gb_s = MAX(out->read_gb_s, rates[way][TRIES / 2]);
  }
  volatile uint64_t keep = j.sums[0]; /* the sums are used */
  (void)keep;
  mem_big_free(j.data, n_bytes);
  return 0;
}

struct spin_job {
  double (*fn)(int n);
  double ops[1024];
};

static void spin_item(void *ctx, int item, int worker) {
  (void)worker;
  struct spin_job *j = ctx;
  j->ops[item] = j->fn(ROUNDS);
}

static double spin_rate(struct workers *w, double (*fn)(int n)) {
  struct spin_job j = {.fn = fn};
  double best = 0;
  int n = MIN(workers_count(w), (int)ARRAY_LEN(j.ops));
  for (int t = 0; t < TRIES; t++) {
    int64_t start = clock_ns();
    workers_run(w, spin_item, &j, n);
    double ns = (double)(clock_ns() - start), ops = 0;
    for (int i = 0; i < n; i++) ops += j.ops[i];
    best = MAX(best, ops / ns);
  }
  return best;
}

int floor_measure(const struct kern *k, struct workers *w, size_t read_bytes, struct machine_floor *out, struct err *e) {
  *out = (struct machine_floor){.float_name = "f32"};
  if (measure_reads(k, w, read_bytes, out, e)) return -1;
#if defined(__x86_64__)
  if (k->isa == ISA_AVX2) {
    out->int8_gop_s = spin_rate(w, k == &kern_avxvnni ? floor_int8_avxvnni : floor_int8_avx2);
    out->float_gop_s = spin_rate(w, floor_float_avx2);
  } else if (k->isa == ISA_AVX512) {
    bool amx = k == &kern_amx, bf16 = amx || k == &kern_avx512bf16;
    out->int8_gop_s = spin_rate(w, amx ? floor_int8_amx : floor_int8_avx512);
    out->float_gop_s = spin_rate(w, amx ? floor_bf16_amx : bf16 ? floor_bf16_avx512 : floor_float_avx512);
    if (bf16) out->float_name = "bf16";
  }
#endif
  return 0;
}
