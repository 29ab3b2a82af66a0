/* ascend_probe_attention.c — fused attention where its documents are silent, or faults are on record.
 *
 * Which keys a query sees is read off exactly: queries are zero, so all visible keys weigh the same, and values are one-hot, one column for a
 * few keys. Whether the numbers are right as well is a second question, asked with random numbers against float64.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ascend_probe.h"
#include "base/mem.h"

enum { PAGE = 128, CAUSAL_SIDE = 2048, NONE = 0, CAUSAL = 3, BAND = 4, N_Q = 4, N_KV = 1, TEXT = 600 };
#define NO_BOUND 2147483647
static const double numbers_allowed = 0.02; /* of outputs up to 1 */

struct scene { /* one sequence's keys in pages that are not in order, page 0 not among them; all sequences of a call share them */
  int head_dim, n_keys, n_pages, rows;
  float *k, *v, *q; /* as the device's type rounds them */
  void *pool_k, *pool_v, *queries, *out, *causal;
  int32_t *table; /* on the device, [table_rows, n_pages] */
};

static int slot_of(const struct scene *s, int key) { return (s->n_pages - key / PAGE) * PAGE + key % PAGE; }

static void write_pool(struct probe *p, const struct scene *s, void *pool, const float *x) {
  const size_t cols = (size_t)N_KV * (size_t)s->head_dim;
  for (int at = 0; at < s->n_keys; at += PAGE)
    probe_write(p, (char *)pool + (size_t)slot_of(s, at) * cols * 2, x + (size_t)at * cols, (size_t)MIN(PAGE, s->n_keys - at) * cols);
}

static void round_numbers(struct probe *p, float *x, size_t n) {
  uint16_t half;
  for (size_t i = 0; i < n; i++) {
    dtype_from_f32(p->d->dtype, x + i, &half, 1);
    dtype_to_f32(p->d->dtype, &half, x + i, 1);
  }
}

/* fill: the bytes of what nobody wrote: 0, or 0xff for NaN. rows of queries; table_rows copies of the table's line. */
static void scene_open(struct probe *p, struct scene *s, int head_dim, int n_keys, int rows, int table_rows, int fill) {
  *s = (struct scene){.head_dim = head_dim, .n_keys = n_keys, .n_pages = div_up(n_keys, PAGE), .rows = rows};
  const size_t D = (size_t)head_dim, n = (size_t)n_keys * D * N_KV, n_q = (size_t)rows * D * N_Q, pages = (size_t)s->n_pages;
  const size_t pool_bytes = (pages + 1) * PAGE * D * N_KV * 2;
  int32_t *ids = xcalloc((size_t)table_rows * pages, sizeof *ids);
  uint8_t *upper = xcalloc(CAUSAL_SIDE, CAUSAL_SIDE);
  s->k = xcalloc(n, sizeof *s->k), s->v = xcalloc(n, sizeof *s->v), s->q = xcalloc(n_q, sizeof *s->q);
  for (size_t i = 0; i < n; i++) s->k[i] = probe_number(1, i), s->v[i] = probe_number(2, i);
  for (size_t i = 0; i < n_q; i++) s->q[i] = 2 * probe_number(3, i);
  round_numbers(p, s->k, n), round_numbers(p, s->v, n), round_numbers(p, s->q, n_q);
  for (size_t i = 0; i < (size_t)table_rows * pages; i++) ids[i] = s->n_pages - (int)(i % pages);
  for (size_t i = 0; i < CAUSAL_SIDE; i++) memset(upper + i * CAUSAL_SIDE + i + 1, 1, CAUSAL_SIDE - i - 1);
  s->pool_k = probe_room(p, pool_bytes, fill), s->pool_v = probe_room(p, pool_bytes, fill);
  s->queries = probe_room(p, n_q * 2, 0), s->out = probe_room(p, n_q * 2, 0xff);
  s->table = probe_put_bytes(p, ids, (size_t)table_rows * pages * sizeof *ids);
  s->causal = probe_put_bytes(p, upper, (size_t)CAUSAL_SIDE * CAUSAL_SIDE);
  if (ascend_ok(p->d)) write_pool(p, s, s->pool_k, s->k);
  free(ids);
  free(upper);
}

static void scene_close(struct scene *s) {
  free(s->k);
  free(s->v);
  free(s->q);
}

static struct fused_call scene_call(const struct scene *s, const char *layout, int batch, int rows, int sparse) {
  struct fused_call c = {.layout = layout, .batch = batch, .rows = rows, .n_q = N_Q, .n_kv = N_KV, .head_dim = s->head_dim};
  c.sparse = sparse, c.pages = s->n_pages + 1, c.page = PAGE, c.pre = NO_BOUND, c.next = NO_BOUND;
  c.q = s->queries, c.k = s->pool_k, c.v = s->pool_v, c.out = s->out;
  c.table = s->table, c.width = s->n_pages;
  if (sparse) c.mask = s->causal;
  return c;
}

/* ---- what is seen ------------------------------------------------------------------------------------------------------------------ */

/* seen [rows, n_keys / few]: whether any of `few` keys is by all heads; 2: by some of them. False: it failed, e says why. */
static bool look(struct probe *p, struct scene *s, const struct fused_call *c, int few, uint8_t *seen, struct err *e) {
  const int D = s->head_dim, n = s->n_keys / few;
  float *v = xcalloc((size_t)s->n_keys * (size_t)D, sizeof *v), *out = xcalloc((size_t)s->rows * N_Q * (size_t)D, sizeof *out);
  float *zero = xcalloc((size_t)s->rows * N_Q * (size_t)D, sizeof *zero);
  bool fine = true;
  probe_write(p, s->queries, zero, (size_t)s->rows * N_Q * (size_t)D);
  for (int first = 0; first < n && fine; first += D) {
    memset(v, 0, (size_t)s->n_keys * (size_t)D * sizeof *v);
    for (int j = first * few; j < MIN(first + D, n) * few; j++) v[(size_t)j * (size_t)D + (size_t)(j / few - first)] = 1;
    write_pool(p, s, s->pool_v, v);
    probe_fused(p, c);
    fine = probe_quietly_done(p, e);
    probe_get_numbers(p, out, s->out, (size_t)s->rows * N_Q * (size_t)D);
    for (int r = 0; r < s->rows && fine; r++) {
      for (int i = first; i < MIN(first + D, n); i++) {
        int heads = 0; /* that see it; NaN is seen */
        for (int h = 0; h < N_Q; h++) heads += !(out[(size_t)(r * N_Q + h) * (size_t)D + (size_t)(i - first)] < 0.25f / (float)s->n_keys);
        seen[(size_t)r * (size_t)n + (size_t)i] = heads == 0 ? 0 : heads == N_Q ? 1 : 2;
      }
    }
  }
  free(v);
  free(out);
  free(zero);
  return fine;
}

/* Rows see [lo[r], hi[r]); "" when they do, else the first row that does not. */
static void compare_seen(const uint8_t *seen, int rows, int n_keys, const int *lo, const int *hi, char text[TEXT]) {
  text[0] = 0;
  for (int r = 0; r < rows; r++) {
    const uint8_t *row = seen + (size_t)r * (size_t)n_keys;
    int first = n_keys, last = -1, n = 0;
    for (int j = 0; j < n_keys; j++)
      if (row[j]) first = MIN(first, j), last = j, n += row[j] == 1;
    if (first == lo[r] && last == hi[r] - 1 && n == hi[r] - lo[r]) continue;
    snprintf(text, TEXT, "row %d of %d, which should see keys %d to %d, sees %d keys from %d to %d", r, rows, lo[r], hi[r] - 1, n, first,
             last);
    return;
  }
}

/* ---- numbers ------------------------------------------------------------------------------------------------------------------------- */

/* Greatest difference from float64; rows see [lo[r], hi[r]). -1: it failed, and was said. */
static double difference(struct probe *p, struct scene *s, const struct fused_call *c, const int *lo, const int *hi, struct err *e) {
  const size_t D = (size_t)s->head_dim;
  float *out = xcalloc((size_t)s->rows * N_Q * D, sizeof *out);
  double *weight = xcalloc((size_t)s->n_keys, sizeof *weight), worst = 0;
  probe_write(p, s->queries, s->q, (size_t)s->rows * N_Q * D);
  write_pool(p, s, s->pool_v, s->v);
  probe_fused(p, c);
  if (!probe_quietly_done(p, e)) worst = -1;
  probe_get_numbers(p, out, s->out, (size_t)s->rows * N_Q * D);
  for (int i = 0; i < s->rows * N_Q && worst >= 0; i++) {
    const float *q = s->q + (size_t)i * D;
    const int r = i / N_Q;
    double top = -INFINITY, total = 0;
    for (int j = lo[r]; j < hi[r]; j++) {
      weight[j] = 0;
      for (size_t d = 0; d < D; d++) weight[j] += (double)q[d] * (double)s->k[(size_t)j * D + d];
      weight[j] /= sqrt((double)D);
      top = fmax(top, weight[j]);
    }
    for (int j = lo[r]; j < hi[r]; j++) total += weight[j] = exp(weight[j] - top);
    for (size_t d = 0; d < D; d += 7) {
      double sum = 0;
      for (int j = lo[r]; j < hi[r]; j++) sum += weight[j] * (double)s->v[(size_t)j * D + d];
      double off = fabs((double)out[(size_t)i * D + d] - (hi[r] > lo[r] ? sum / total : 0));
      worst = isnan(off) ? INFINITY : fmax(worst, off);
    }
  }
  free(out);
  free(weight);
  return worst;
}

static void say_numbers(struct probe *p, const char *what, double worst, const struct err *e) {
  if (worst < 0) probe_say(p, PROBE_DIFFERS, "%s: %s", what, e->msg);
  else probe_say(p, worst <= numbers_allowed ? PROBE_EXPECTED : PROBE_DIFFERS, "%s within %.2g", what, worst);
}

/* ---- points ------------------------------------------------------------------------------------------------------------------------------ */

enum { MASK_KEYS = 2048, MASK_PART = 64, MASK_PARTS = MASK_KEYS / MASK_PART };

/* Parts in words: "512 to 2047". */
static void add_range(char text[TEXT], int from, int to) {
  size_t used = strlen(text);
  snprintf(text + used, TEXT - used, "%s%d to %d", used ? ", " : "", from * MASK_PART, to * MASK_PART - 1);
}

/* seen [MASK_PARTS, MASK_PARTS], of row b part b is masked. */
static void say_mask(struct probe *p, const char *what, const uint8_t *seen) {
  char ignored[TEXT] = "";
  int lost = 0, from = -1;
  for (int b = 0; b <= MASK_PARTS; b++) {
    bool is_ignored = b < MASK_PARTS && seen[b * MASK_PARTS + b];
    if (is_ignored && from < 0) from = b;
    if (!is_ignored && from >= 0) add_range(ignored, from, b), from = -1;
    for (int i = 0; b < MASK_PARTS && i < MASK_PARTS; i++) lost += i != b && seen[b * MASK_PARTS + i] != 1;
  }
  if (!*ignored && !lost) probe_say(p, PROBE_EXPECTED, "%s: all of 64 to 2048 keys are masked", what);
  else
    probe_say(p, PROBE_DIFFERS, "%s: masks of keys %s are ignored, %d parts are masked that should not be", what,
              *ignored ? ignored : "none", lost);
}

static void mask_of_head(struct probe *p, int head_dim) {
  struct scene s;
  struct err e;
  static uint8_t seen[MASK_PARTS * MASK_PARTS], mask[MASK_PARTS * MASK_KEYS];
  char what[64];
  int64_t keys[MASK_PARTS];
  bool fine = true;
  for (int b = 0; b < MASK_PARTS; b++) {
    keys[b] = MASK_KEYS;
    memset(mask + b * MASK_KEYS + b * MASK_PART, 1, MASK_PART);
  }
  scene_open(p, &s, head_dim, MASK_KEYS, MASK_PARTS, MASK_PARTS, 0);
  struct fused_call c = scene_call(&s, "BSH", MASK_PARTS, 1, NONE);
  const uint8_t *masks = probe_put_bytes(p, mask, sizeof mask);
  c.mask = masks, c.keys = keys;
  snprintf(what, sizeof what, "heads of %d, [32, 1, keys]", head_dim);
  if (look(p, &s, &c, MASK_PART, seen, &e)) say_mask(p, what, seen);
  else probe_say(p, PROBE_DIFFERS, "%s: %s", what, e.msg);
  c.batch = 1, c.mask_wide = true, s.rows = 1;
  snprintf(what, sizeof what, "heads of %d, [1, 1, 1, keys]", head_dim);
  for (int b = 0; b < MASK_PARTS && fine; b++) {
    c.mask = masks + b * MASK_KEYS;
    fine = look(p, &s, &c, MASK_PART, seen + b * MASK_PARTS, &e);
  }
  if (fine) say_mask(p, what, seen);
  else probe_say(p, PROBE_DIFFERS, "%s: %s", what, e.msg);
  scene_close(&s);
}

static void decode_mask(struct probe *p) {
  if (!probe_has_fused(p)) return;
  mask_of_head(p, 128);
  mask_of_head(p, 256);
}

enum { DEEP_KEYS = 640, DEEP_ROWS = 16 };

/* The last rows of DEEP_KEYS keys, with a window (0: none): what they see, then their numbers. known: it is expected to be taken at all. */
static void many_rows(struct probe *p, const char *layout, int head_dim, int window, bool known) {
  struct scene s;
  struct err e;
  char what[64], wrong[TEXT];
  int lo[DEEP_ROWS], hi[DEEP_ROWS];
  const int64_t keys = DEEP_KEYS, end = DEEP_ROWS;
  uint8_t *seen = xcalloc(DEEP_ROWS, DEEP_KEYS);
  for (int r = 0; r < DEEP_ROWS; r++) {
    hi[r] = DEEP_KEYS - DEEP_ROWS + r + 1;
    lo[r] = window ? MAX(hi[r] - window, 0) : 0;
  }
  scene_open(p, &s, head_dim, DEEP_KEYS, DEEP_ROWS, 1, 0);
  struct fused_call c = scene_call(&s, layout, 1, DEEP_ROWS, window ? BAND : CAUSAL);
  if (window) c.pre = window - 1, c.next = 0;
  if (!strcmp(layout, "TND")) c.ends = &end;
  c.keys = &keys;
  snprintf(what, sizeof what, "%s, heads of %d, window %d", layout, head_dim, window);
  if (!look(p, &s, &c, 1, seen, &e)) {
    bool plainly = !known && !p->d->device.lost;
    probe_say(p, plainly ? PROBE_EXPECTED : PROBE_DIFFERS, "%s: refused%s%s", what, plainly ? "" : ": ", plainly ? "" : e.msg);
  } else {
    compare_seen(seen, DEEP_ROWS, DEEP_KEYS, lo, hi, wrong);
    probe_say(p, *wrong || !known ? PROBE_DIFFERS : PROBE_EXPECTED, "%s: %s%s", what, known ? "" : "taken, though no document says so; ",
              *wrong ? wrong : "all rows see what they should");
    say_numbers(p, "numbers", difference(p, &s, &c, lo, hi, &e), &e);
  }
  scene_close(&s);
  free(seen);
}

static void tnd_band(struct probe *p) {
  if (!probe_has_fused(p)) return;
  const bool wide = p->d->profile.fused_wide_tnd;
  many_rows(p, "TND", 128, 0, true);
  many_rows(p, "TND", 128, 130, wide);
  many_rows(p, "TND", 256, 0, wide);
  many_rows(p, "TND", 256, 130, wide);
  many_rows(p, "TND", 256, 512, wide);
}

static void bsnd_wide(struct probe *p) {
  if (!probe_has_fused(p)) return;
  many_rows(p, "BSND", 512, 0, true);
  many_rows(p, "BSND", 512, 200, true);
}

static void bsnd_band(struct probe *p) {
  static const int windows[] = {1, 2, 127, 128, 129, 512};
  if (!probe_has_fused(p)) return;
  for (size_t i = 0; i < ARRAY_LEN(windows); i++) many_rows(p, "BSND", 256, windows[i], true);
}

static void decode_numbers(struct probe *p) {
  static const int64_t lengths[] = {1, 127, 128, 129, 511, 512, 513, 1024, 1025, 1500};
  enum { ROWS = ARRAY_LEN(lengths) };
  int lo[ROWS] = {0}, hi[ROWS];
  if (!probe_has_fused(p)) return;
  for (int r = 0; r < ROWS; r++) hi[r] = (int)lengths[r];
  for (int head_dim = 64; head_dim <= 512; head_dim *= 2) {
    struct scene s;
    struct err e;
    char what[32];
    scene_open(p, &s, head_dim, 1500, ROWS, ROWS, 0);
    struct fused_call c = scene_call(&s, "BSH", ROWS, 1, NONE);
    c.keys = lengths;
    snprintf(what, sizeof what, "heads of %d", head_dim);
    say_numbers(p, what, difference(p, &s, &c, lo, hi, &e), &e);
    scene_close(&s);
  }
}

/* Many queries that all see all keys, as cross-attention has them. */
static void no_mask(struct probe *p) {
  enum { ROWS = 7, KEYS = 300 };
  int lo[ROWS] = {0}, hi[ROWS];
  const int64_t keys = KEYS;
  if (!probe_has_fused(p)) return;
  for (int r = 0; r < ROWS; r++) hi[r] = KEYS;
  struct scene s;
  struct err e;
  scene_open(p, &s, 128, KEYS, ROWS, 1, 0);
  struct fused_call c = scene_call(&s, "BSND", 1, ROWS, NONE);
  c.keys = &keys;
  say_numbers(p, "7 queries, 300 keys, BSND", difference(p, &s, &c, lo, hi, &e), &e);
  scene_close(&s);
}

/* ---- edges ---------------------------------------------------------------------------------------------------------------------------------- */

static const char *content(const float *x, size_t n, float before) {
  bool zero = true, kept = true, nan = false;
  for (size_t i = 0; i < n; i++) zero &= x[i] == 0, kept &= x[i] == before, nan |= isnan(x[i]);
  return zero ? "zeros" : kept ? "what was there before" : nan ? "NaN" : "other numbers";
}

static void length_0(struct probe *p) {
  enum { D = 128, ROWS = 3 };
  static const int64_t keys[ROWS] = {5, 0, 130}, ends[ROWS] = {1, 2, 3};
  static const char *const layouts[] = {"BSH", "TND"};
  struct scene s;
  struct err e;
  float seven[ROWS * N_Q * D], out[ROWS * N_Q * D];
  if (!probe_has_fused(p)) return;
  for (size_t i = 0; i < ARRAY_LEN(seven); i++) seven[i] = 7;
  scene_open(p, &s, D, 130, ROWS, ROWS, 0);
  write_pool(p, &s, s.pool_v, s.v);
  for (size_t i = 0; i < ARRAY_LEN(layouts); i++) {
    struct fused_call c = scene_call(&s, layouts[i], ROWS, i ? ROWS : 1, i ? CAUSAL : NONE);
    c.keys = keys, c.ends = i ? ends : NULL;
    probe_write(p, s.out, seven, ARRAY_LEN(seven));
    probe_fused(p, &c);
    if (!probe_quietly_done(p, &e)) {
      probe_say(p, PROBE_DIFFERS, "%s: %s", layouts[i], e.msg);
      continue;
    }
    probe_get_numbers(p, out, s.out, ARRAY_LEN(out));
    const char *text = content(out + N_Q * D, N_Q * D, 7);
    probe_say(p, strcmp(text, "zeros") ? PROBE_DIFFERS : PROBE_EXPECTED, "%s: %s", layouts[i], text);
  }
  scene_close(&s);
}

/* Everything that a sequence does not own is NaN: the rest of its last page, page 0, to which its table's unused entries point. */
static void page_rest(struct probe *p) {
  enum { ROWS = 4, KEYS = 300 };
  static const int64_t keys[ROWS] = {1, 100, 129, 300};
  int lo[ROWS] = {0}, hi[ROWS];
  struct scene s;
  struct err e;
  if (!probe_has_fused(p)) return;
  scene_open(p, &s, 256, KEYS, ROWS, ROWS, 0xff);
  int32_t ids[ROWS][3];
  for (int r = 0; r < ROWS; r++) {
    hi[r] = (int)keys[r];
    for (int i = 0; i < 3; i++) ids[r][i] = i * PAGE < hi[r] ? s.n_pages - i : 0;
  }
  struct fused_call c = scene_call(&s, "BSH", ROWS, 1, NONE);
  c.table = probe_put_bytes(p, ids, sizeof ids);
  c.keys = keys;
  double worst = difference(p, &s, &c, lo, hi, &e);
  say_numbers(p, "only page 0 and the last page's rest are NaN: numbers", worst, &e);
  scene_close(&s);
}

static void workspace_sizes(struct probe *p) {
  enum { BATCH = 16, LONGEST = 32768 };
  if (!probe_has_fused(p)) return;
  const int longest = p->small ? 8192 : LONGEST;
  for (int head_dim = 128; head_dim <= 512; head_dim *= 2) {
    struct scene s;
    int64_t most = 0, last = -1, at = 0, at_longest = 0, keys[BATCH];
    int falls = 0, tried = 0;
    struct err e = {0};
    scene_open(p, &s, head_dim, longest, BATCH, BATCH, 0);
    for (int64_t n = 1; n <= longest; n = n < 64 ? n * 2 : n + MAX(n / 16, 1) > longest && n < longest ? longest : n + MAX(n / 16, 1)) {
      struct fused_call c = scene_call(&s, "BSH", BATCH, 1, NONE);
      for (int b = 0; b < BATCH; b++) keys[b] = n;
      c.keys = keys;
      int64_t bytes = ascend_ok(p->d) ? probe_fused_workspace(p, &c, &e) : -1;
      if (bytes < 0) break;
      if (bytes > most) most = bytes, at = n;
      falls += bytes < last;
      last = at_longest = bytes;
      tried++;
    }
    if (!ascend_ok(p->d)) probe_done(p, PROBE_FAILED, "");
    else if (!tried) probe_say(p, PROBE_DIFFERS, "heads of %d: %s", head_dim, e.msg);
    else
      probe_say(p, most > at_longest ? PROBE_DIFFERS : PROBE_EXPECTED,
                "heads of %d, 16 rows, %d lengths to %d: at most %lld bytes (at %lld), %lld at the longest, smaller than before %d times",
                head_dim, tried, longest, (long long)most, (long long)at, (long long)at_longest, falls);
    scene_close(&s);
  }
}

static void same_bits(struct probe *p) {
  enum { ROWS = 4, KEYS = 1000, D = 256, TIMES = 20 };
  static const int64_t keys[ROWS] = {1000, 999, 513, 64};
  static float first[ROWS * N_Q * D], out[ROWS * N_Q * D];
  struct scene s;
  int n = 0;
  if (!probe_has_fused(p)) return;
  scene_open(p, &s, D, KEYS, ROWS, ROWS, 0);
  struct fused_call c = scene_call(&s, "BSH", ROWS, 1, NONE);
  c.keys = keys;
  probe_write(p, s.queries, s.q, ARRAY_LEN(out));
  write_pool(p, &s, s.pool_v, s.v);
  for (int i = 0; i < TIMES; i++) {
    probe_fused(p, &c);
    if (!probe_done(p, PROBE_FAILED, "")) break;
    probe_get_numbers(p, i ? out : first, s.out, ARRAY_LEN(out));
    n += i > 0 && memcmp(out, first, sizeof out) != 0;
  }
  probe_say(p, n ? PROBE_DIFFERS : PROBE_EXPECTED, "decoding attention: %d of %d repetitions differ", n, TIMES - 1);
  scene_close(&s);
}

const struct point probe_attention[] = {
    {"decode-mask", "a mask of one query excludes what it says, behind key 512 too", decode_mask},
    {"decode-numbers", "decoding over pages is right at lengths around pages and 512, for heads of 64 to 512", decode_numbers},
    {"tnd-band", "TND: causal for heads of 128; windows and heads of 256 from CANN 9.1 on, refused before", tnd_band},
    {"bsnd-512", "BSND over pages takes heads of 512, causal and with a window", bsnd_wide},
    {"bsnd-band", "pre_tokens of W - 1 shows a query W keys, itself among them", bsnd_band},
    {"no-mask", "several queries see all keys where nothing is masked", no_mask},
    {"length-0", "a row without keys gives zeros", length_0},
    {"page-rest", "what lies behind a sequence's keys, and in page 0, is not looked at", page_rest},
    {"workspace", "no length wants more workspace than the longest", workspace_sizes},
    {"attention-bits", "the same call gives the same bits", same_bits},
    {0},
};
