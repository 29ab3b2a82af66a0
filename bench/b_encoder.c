/* b_encoder.c — how long the layers of picture encoders take, beside the machine's peak of float32 multiply-adds.
 *
 * Usage: b_encoder [ref|avx2|avx512] [threads, 0 = by itself] [part of a name] [bf16|f32] [turns]
 * Random weights at real geometry, in units of 512 rows as the encoders work; one layer is measured and counts as many times as there are.
 * Each figure is the median of the turns (3).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "compute/device.h"
#include "compute/floor.h"

enum { UNIT = 512, TURNS_MOST = 32 };

enum form { SIGLIP, GEMMA4, MLLAMA }; /* what stands between the products */
static const struct geometry {
  const char *name;
  enum form form;
  int n_layers, rows, width, inner, n_heads;
} geometries[] = {
    {"SigLIP 896 x 896", SIGLIP, 27, 4096, 1152, 4304, 16},
    {"Gemma 4 small, 280 tokens", GEMMA4, 16, 2520, 768, 3072, 12},
    {"Gemma 4 large, 280 tokens", GEMMA4, 27, 2520, 1152, 4304, 16},
    {"Llama 3.2 Vision, 4 tiles", MLLAMA, 40, 6432, 1280, 5120, 16},
};

static struct device *dev;
static const struct device_ops *ops;
static uint32_t random_state = 1;

static float random_number(void) { /* -1/2 .. 1/2 */
  random_state = random_state * 1664525 + 1013904223;
  return (float)(random_state >> 8) * 0x1p-24f - 0.5f;
}
static void must(int failed, const struct err *e) {
  if (!failed) return;
  fprintf(stderr, "%s\n", e->msg);
  exit(1);
}

static struct tensor new_tensor(int rows, int cols) {
  struct err e = {0};
  struct tensor t;
  must(ops->alloc(dev, &t, rows, cols, "bench", &e), &e);
  for (int r = 0; r < rows; r++) {
    for (int c = 0; c < cols; c++) tensor_row(&t, r)[c] = random_number();
  }
  return t;
}

/* Sources are not kept: a fast level has its packed copy. */
static struct weight new_weight(enum dtype type, int rows, int cols) {
  struct err e = {0};
  struct weight w = {.dtype = type, .rows = rows, .cols = cols};
  must(!dtype_row_bytes(type, (size_t)cols, &w.row_bytes), &e);
  char *source = mem_big_alloc((size_t)rows * w.row_bytes, "weights", &e);
  must(!source, &e);
  for (size_t i = 0, size = w.row_bytes / (size_t)cols; i < (size_t)rows * (size_t)cols; i++) {
    float x = random_number() / sqrtf((float)cols) * 3;
    dtype_from_f32(type, &x, source + i * size, 1);
  }
  w.source = source;
  must(ops->weight_bind(dev, &w, 1, "bench", &e), &e);
  if (w.packed) mem_big_free(source, (size_t)rows * w.row_bytes);
  return w;
}

enum { Q, K, V, O, UP, GATE, DOWN, WEIGHTS };
struct layer {
  const struct geometry *g;
  struct weight w[WEIGHTS];
  struct tensor x, q, k, v, hidden, heads, up, gate; /* the first four of all rows, the others of a unit */
  struct tensor vector;                              /* one row: norms and biases */
  struct rope_table rope;
  int32_t *lo, *hi, *place;
};

enum part { PRODUCTS, ATTENTION, REST, PARTS };
static double seconds[PARTS];
static int64_t clock_at;
static void part_done(enum part p) {
  int64_t now = clock_ns();
  seconds[p] += (double)(now - clock_at) * 1e-9;
  clock_at = now;
}

static struct tensor rows_of(const struct tensor *t, int row, int n) {
  struct tensor part = *t;
  part.data = tensor_row(t, row);
  part.rows = n;
  return part;
}
static void product(const struct weight *w, struct tensor *y, const struct tensor *x) {
  part_done(REST);
  ops->linear(dev, 1, &w, &y, x);
  part_done(PRODUCTS);
}

static void norm(const struct layer *l, struct tensor *y, const struct tensor *x) {
  const float *w = l->vector.data;
  if (l->g->form == GEMMA4) ops->rmsnorm(dev, y, x, w, 1, 1e-6f);
  else ops->layernorm(dev, y, x, w, w, 1e-6f);
}

static void qkv_unit(struct layer *l, int row, int n) {
  const struct geometry *g = l->g;
  struct tensor x = rows_of(&l->x, row, n), h = tensor_rows(l->hidden, n);
  struct tensor q = rows_of(&l->q, row, n), k = rows_of(&l->k, row, n), v = rows_of(&l->v, row, n);
  norm(l, &h, &x);
  part_done(REST);
  ops->linear(dev, 3, (const struct weight *[]){&l->w[Q], &l->w[K], &l->w[V]}, (struct tensor *[]){&q, &k, &v}, &h);
  part_done(PRODUCTS);
  struct tensor *all[] = {&q, &k, &v};
  for (int i = 0; i < 3; i++) {
    if (g->form == SIGLIP) ops->bias_act(dev, all[i], l->vector.data, ACT_NONE);
    if (g->form == GEMMA4) ops->rmsnorm(dev, all[i], all[i], i < 2 ? l->vector.data : NULL, g->n_heads, 1e-6f);
  }
  if (g->form != GEMMA4) return;
  ops->rope_step(dev, &l->rope, l->place + row, n);
  ops->rope2d(dev, &q, g->n_heads, &l->rope, &l->rope);
  ops->rope2d(dev, &k, g->n_heads, &l->rope, &l->rope);
}

static void rest_unit(struct layer *l, int row, int n) {
  const struct geometry *g = l->g;
  const float *vector = l->vector.data;
  struct tensor x = rows_of(&l->x, row, n), q = rows_of(&l->q, row, n), h = tensor_rows(l->hidden, n), heads = tensor_rows(l->heads, n),
                up = tensor_rows(l->up, n), gate = tensor_rows(l->gate, n);
  part_done(REST);
  ops->attend(dev, &heads, &q, &l->k, &l->v, g->n_heads, 0.1f, l->lo + row, l->hi + row);
  part_done(ATTENTION);
  product(&l->w[O], &h, &heads);
  if (g->form == GEMMA4) {
    ops->add_rmsnorm(dev, &x, &h, vector, 1e-6f);
  } else {
    if (g->form == SIGLIP) ops->bias_act(dev, &h, vector, ACT_NONE);
    ops->add(dev, &x, &h);
  }
  norm(l, &h, &x);
  if (g->form == GEMMA4) {
    part_done(REST);
    ops->linear_gated(dev, &up, &l->w[GATE], &l->w[UP], &h, ACT_GELU_TANH, &gate);
    part_done(PRODUCTS);
  } else {
    product(&l->w[UP], &up, &h);
    ops->bias_act(dev, &up, vector, g->form == SIGLIP ? ACT_GELU_TANH : ACT_GELU_ERF);
  }
  product(&l->w[DOWN], &h, &up);
  if (g->form == GEMMA4) {
    ops->add_rmsnorm(dev, &x, &h, vector, 1e-6f);
  } else {
    ops->bias_act(dev, &h, vector, ACT_NONE);
    ops->add(dev, &x, &h);
  }
}

static void run_layer(struct layer *l) {
  clock_at = clock_ns();
  for (int row = 0; row < l->g->rows; row += UNIT) qkv_unit(l, row, MIN(UNIT, l->g->rows - row));
  for (int row = 0; row < l->g->rows; row += UNIT) rest_unit(l, row, MIN(UNIT, l->g->rows - row));
  part_done(REST);
}

static struct layer new_layer(const struct geometry *g, enum dtype type) {
  struct err e = {0};
  struct layer l = {.g = g};
  for (int i = 0; i < WEIGHTS; i++) {
    if (i == GATE && g->form != GEMMA4) continue;
    l.w[i] = new_weight(type, i == UP || i == GATE ? g->inner : g->width, i == DOWN ? g->inner : g->width);
  }
  struct tensor *all[] = {&l.x, &l.q, &l.k, &l.v};
  for (int i = 0; i < 4; i++) *all[i] = new_tensor(g->rows, g->width);
  l.hidden = new_tensor(UNIT, g->width);
  l.heads = new_tensor(UNIT, g->width);
  l.up = new_tensor(UNIT, g->inner);
  l.gate = new_tensor(UNIT, g->inner);
  l.vector = new_tensor(1, g->inner);
  int half = g->width / g->n_heads / 2;
  must(ops->rope_init(dev, &l.rope, half, 100, 1, 1, &e), &e);
  l.lo = xcalloc((size_t)g->rows, sizeof *l.lo);
  l.hi = xcalloc((size_t)g->rows, sizeof *l.hi);
  l.place = xcalloc((size_t)g->rows, sizeof *l.place);
  for (int r = 0; r < g->rows; r++) l.hi[r] = g->rows, l.place[r] = r % 64;
  return l;
}
static void free_layer(struct layer *l) {
  struct tensor *all[] = {&l->x, &l->q, &l->k, &l->v, &l->hidden, &l->heads, &l->up, &l->gate, &l->vector};
  for (size_t i = 0; i < ARRAY_LEN(all); i++) ops->free(dev, all[i]);
  for (int i = 0; i < WEIGHTS; i++) {
    if (l->w[i].source) ops->weight_free(dev, &l->w[i], 1);
  }
  ops->rope_free(dev, &l->rope);
  free(l->lo);
  free(l->hi);
  free(l->place);
}

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}
static double median(double *x, int n) {
  qsort(x, (size_t)n, sizeof *x, by_size);
  return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

static void bench(const struct geometry *g, enum dtype type, int turns, double peak) {
  struct layer l = new_layer(g, type);
  double took[PARTS + 1][TURNS_MOST], ops_of[PARTS] = {0};
  for (int t = -1; t < turns; t++) { /* the first is for warming up */
    memset(seconds, 0, sizeof seconds);
    run_layer(&l);
    double all = 0;
    for (int p = 0; p < PARTS && t >= 0; p++) took[p][t] = seconds[p] * g->n_layers, all += took[p][t];
    if (t >= 0) took[PARTS][t] = all;
  }
  double wide = (double)g->width, rows = (double)g->rows, n_inner = g->form == GEMMA4 ? 3 : 2;
  ops_of[PRODUCTS] = 2 * rows * wide * (4 * wide + n_inner * g->inner) * g->n_layers;
  ops_of[ATTENTION] = 4 * rows * rows * wide * g->n_layers;
  double s[PARTS + 1];
  for (int p = 0; p <= PARTS; p++) s[p] = median(took[p], turns);
  double rate = (ops_of[PRODUCTS] + ops_of[ATTENTION]) / s[PARTS] * 1e-9;
  printf(
      "%-26s %-4s %7.2f s  %5.1f GFLOP/s, %2.0f %% of peak | products %6.2f s %5.1f, %2.0f %% | attention %6.2f s %5.1f, %2.0f %% | rest %5.2f s\n",
      g->name, dtype_info(type)->name, s[PARTS], rate, 100 * rate / peak, s[PRODUCTS], ops_of[PRODUCTS] / s[PRODUCTS] * 1e-9,
      ops_of[PRODUCTS] / s[PRODUCTS] * 1e-7 / peak, s[ATTENTION], ops_of[ATTENTION] / s[ATTENTION] * 1e-9,
      ops_of[ATTENTION] / s[ATTENTION] * 1e-7 / peak, s[REST]);
  fflush(stdout);
  free_layer(&l);
}

int main(int argc, char **argv) {
  struct err e = {0};
  struct device_config config = {.rows_max = UNIT, .cols_max = 5120, .keys_max = 6432, .head_dim_max = 80};
  static const char *const isas[] = {[ISA_REF] = "ref", [ISA_AVX2] = "avx2", [ISA_AVX512] = "avx512"};
  for (int i = ISA_REF; i <= ISA_AVX512 && argc > 1; i++) {
    if (!strcmp(argv[1], isas[i])) config.isa = (enum isa)i;
  }
  config.n_threads = argc > 2 ? atoi(argv[2]) : 0;
  enum dtype type = argc > 4 && !strcmp(argv[4], "f32") ? DTYPE_F32 : DTYPE_BF16;
  int turns = argc > 5 ? MIN(MAX(atoi(argv[5]), 1), TURNS_MOST) : 3;
  ops = &device_cpu_ops;
  dev = ops->open(&config, &e);
  must(!dev, &e);
  struct machine_floor peak;
  must(floor_measure(dev->kern, dev->workers, 256 << 20, &peak, &e), &e);
  printf("level %s, %d threads, peak %.0f GFLOP/s (%s)\n", dev->kern->name, workers_count(dev->workers), peak.float_gop_s, peak.float_name);
  for (size_t i = 0; i < ARRAY_LEN(geometries); i++) {
    if (argc < 4 || strstr(geometries[i].name, argv[3])) bench(&geometries[i], type, turns, peak.float_gop_s);
  }
  ops->close(dev);
  return 0;
}
