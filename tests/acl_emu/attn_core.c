/* attn_core.c — softmax(scale * q·kᵀ + shift)·v over what the masks leave. See attn_core.h. */
#include "acl_emu/attn_core.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

void attn_problem_init(struct attn_problem *a) {
  memset(a, 0, sizeof *a);
  a->table = a->mask = a->shift = a->lse = a->sum = a->max = -1;
  a->mask_from = INT64_MAX;
}

/* ---- layouts ------------------------------------------------------------------------------------------------------------------ */

bool attn_has(const char *letters, char c) { return strchr(letters, c) != NULL; }

bool attn_view(const struct emu_tensor *t, const char *letters, int64_t n_heads, struct attn_axes *at, struct attn_dims *dims) {
  memset(at, 0, sizeof *at);
  *dims = (struct attn_dims){1, 1, 1, 1, 1};
  if (t->n_dims != (int)strlen(letters)) return false;
  for (int i = 0; i < t->n_dims; i++) {
    int64_t size = t->dims[i], stride = t->strides[i];
    switch (letters[i]) {
    case 'B': dims->b = size, at->b = stride; break;
    case 'S': dims->s = size, at->s = stride; break;
    case 'T': dims->t = size, at->s = stride; break;
    case 'N': dims->n = size, at->n = stride; break;
    case 'D': dims->d = size, at->d = stride; break;
    case 'H':
      if (n_heads < 1 || size % n_heads != 0) return false;
      dims->n = n_heads, dims->d = size / n_heads;
      at->d = stride, at->n = stride * dims->d;
      break;
    default: return false;
    }
  }
  return true;
}

void attn_check_cumulative(struct emu_plan *p, const char *name, const int64_t *x, int64_t n, int64_t total, int64_t *out) {
  for (int64_t i = 0; p->ok && i < n; i++) {
    int64_t before = i ? x[i - 1] : 0;
    emu_check(p, x[i] >= before, EMU_TILING, "%s is cumulative: entry %lld is %lld after %lld", name, (long long)i, (long long)x[i],
              (long long)before);
    out[i] = x[i] - before;
  }
  if (p->ok)
    emu_check(p, x[n - 1] == total, EMU_TILING, "%s ends with %lld, the tensor holds T = %lld tokens", name, (long long)x[n - 1],
              (long long)total);
}

void attn_check_compressed(struct emu_plan *p, struct attn_problem *a, int slot) {
  const struct emu_tensor *m = &p->t[slot];
  bool right = m->n_dims >= 2 && m->n_dims <= 4;
  for (int i = 0; right && i < m->n_dims; i++) right = m->dims[i] == (i < m->n_dims - 2 ? 1 : ATTN_COMPRESSED);
  emu_check(p, right, EMU_TILING, "attenMask of sparse modes 2, 3, 4 is the triangle [2048,2048], found %s", emu_text(m));
  a->mask = slot, a->compressed = true;
}

/* ---- masks -------------------------------------------------------------------------------------------------------------------- */

void attn_interval(const struct attn_problem *a, const struct attn_seq *s, int64_t i, int64_t *lo, int64_t *hi) {
  int64_t last = i + s->keys - s->rows; /* the key that is row i itself when both end together */
  *lo = 0, *hi = s->keys;
  switch (a->sees) {
  case ATTN_UPPER: *hi = i + 1; break;
  case ATTN_LOWER: *hi = last + 1; break;
  case ATTN_BAND: *lo = last - a->pre, *hi = last + a->next + 1; break;
  case ATTN_WITHIN: *lo = i - a->pre, *hi = i + a->next + 1; break;
  case ATTN_ALL:
  case ATTN_FULL: break;
  }
  if (*lo < 0) *lo = 0;
  if (*hi > s->keys) *hi = s->keys;
  if (*hi < *lo) *hi = *lo;
}

/* A wrong constant is silent on the device. Looked at: the rows that so many keys could need, and some of the others, each time different ones
 * (4 MiB for every call would be felt). */
static bool triangle_is_right(struct emu_call *c, const struct attn_problem *a, int64_t most_keys) {
  static atomic_uint turn;
  int64_t other = atomic_fetch_add(&turn, 1) % 64;
  const struct emu_tensor *m = &c->t[a->mask];
  unsigned char *want = emu_scratch(c, 2 * ATTN_COMPRESSED);
  memset(want, 0, ATTN_COMPRESSED);
  memset(want + ATTN_COMPRESSED, 1, ATTN_COMPRESSED);
  for (int64_t i = 0; i < ATTN_COMPRESSED; i++) {
    if (i > most_keys && i % 64 != other) continue;
    const unsigned char *row = (const unsigned char *)m->data + i * m->strides[m->n_dims - 2];
    if (memcmp(row, want + ATTN_COMPRESSED - 1 - i, ATTN_COMPRESSED) == 0) continue;
    int64_t j = 0;
    while (row[j] == (j > i)) j++;
    emu_fault(c, EMU_AICORE_EXCEPTION, "attenMask [%lld,%lld] holds %d, the triangle has %d there%s", (long long)i, (long long)j, row[j],
              j > i, row[j] == 0xff ? " (memory that was never written)" : "");
    return false;
  }
  return true;
}

/* ---- pages -------------------------------------------------------------------------------------------------------------------- */

/* Blocks of sequence b for its keys; false and a fault when one does not exist: the device would read whatever lies there. */
static bool blocks_exist(struct emu_call *c, const struct attn_problem *a, int b) {
  const struct emu_tensor *table = &c->t[a->table];
  int64_t used = (a->seq[b].keys + a->block_tokens - 1) / a->block_tokens;
  for (int64_t i = 0; i < used; i++) {
    int64_t block = emu_load_int(table, b * a->table_cols + i);
    if (block >= 0 && block < a->n_blocks) continue;
    emu_fault(c, EMU_AICORE_EXCEPTION, "blockTable [%d,%lld] is %lld, the pool has %lld blocks%s", b, (long long)i, (long long)block,
              (long long)a->n_blocks, block == -1 ? " (memory that was never written?)" : "");
    return false;
  }
  return true;
}

/* Keys (or values) of kv head g of sequence b as floats [keys, d]. */
static void load_keys(struct emu_call *c, const struct attn_problem *a, int b, int g, bool values, float *x) {
  const struct attn_seq *s = &a->seq[b];
  const struct emu_tensor *t = &c->t[(values ? a->v : a->k) + (a->listed ? b : 0)];
  const struct attn_axes *at = values ? &a->v_at : &a->k_at;
  int64_t d = values ? a->d_v : a->d_qk, first = values ? s->v : s->k;
  for (int64_t j = 0; j < s->keys; j++) {
    int64_t e = first + j * at->s + g * at->n;
    if (a->table >= 0) {
      int64_t block = emu_load_int(&c->t[a->table], b * a->table_cols + j / a->block_tokens);
      e = block * (values ? a->v_block : a->k_block) + (j % a->block_tokens) * at->s + g * at->n;
    }
    if (a->nz) {
      for (int64_t i = 0; i < d; i += 16) emu_load_row(t, e + i / 16 * a->block_tokens * 16, 1, 16, x + j * d + i);
    } else {
      emu_load_row(t, e, at->d, d, x + j * d);
    }
  }
}

/* ---- one row ------------------------------------------------------------------------------------------------------------------ */

struct work {      /* of one kv head of one sequence */
  float *k, *v;    /* [keys, d] */
  float *q, *out;  /* one row */
  float *score;    /* [keys] */
  int64_t *key;    /* [keys], those that the row sees, ascending */
  int64_t *broken; /* keys whose value holds something that is not finite */
  int64_t n_broken;
  bool other_order;
};

static void find_broken(const struct attn_problem *a, const struct attn_seq *s, struct work *w) {
  w->n_broken = 0;
  for (int64_t j = 0; j < s->keys; j++) {
    bool finite = true;
    for (int d = 0; d < a->d_v; d++) finite &= isfinite(w->v[j * a->d_v + d]) != 0;
    if (!finite) w->broken[w->n_broken++] = j;
  }
}

/* The keys that row i sees; -1 after a fault. */
static int64_t visible(struct emu_call *c, const struct attn_problem *a, int b, int64_t i, struct work *w) {
  const struct attn_seq *s = &a->seq[b];
  int64_t lo, hi, n = 0;
  attn_interval(a, s, i, &lo, &hi);
  bool asks = a->mask >= 0 && !a->compressed;
  const struct emu_tensor *m = asks ? &c->t[a->mask] : NULL;
  const unsigned char *row = asks ? (const unsigned char *)m->data + b * a->mask_at.b + i * a->mask_at.s : NULL;
  for (int64_t j = lo; j < hi; j++) {
    unsigned char hidden = row && j < a->mask_from ? row[j * a->mask_at.d] : 0;
    if (hidden > 1) {
      emu_fault(c, EMU_AICORE_EXCEPTION, "attenMask holds %d for row %lld and key %lld of sequence %d: 0 or 1%s", hidden, (long long)i,
                (long long)j, b, hidden == 0xff ? " (memory that was never written)" : "");
      return -1;
    }
    if (!hidden) w->key[n++] = j;
  }
  return n;
}

static float shift_of(struct emu_call *c, const struct attn_problem *a, int b, int h, int64_t i, int64_t j) {
  if (a->shift < 0 || (a->shift_first_head && h > 0)) return 0;
  const struct attn_axes *at = &a->shift_at;
  double x = emu_load(&c->t[a->shift], b * at->b + h * at->n + i * at->s + j * at->d);
  return a->shift_breaks && x == -INFINITY ? NAN : (float)x;
}

static void store_parts(struct emu_call *c, const struct attn_problem *a, int b, int h, int64_t i, float max, float sum) {
  if (a->lse >= 0) {
    double lse = sum == 0 ? INFINITY : (double)max + log((double)sum);
    emu_store(&c->t[a->lse], a->seq[b].lse + h * a->lse_at.n + i * a->lse_at.s, lse);
  }
  for (int k = 0; a->max >= 0 && k < 8; k++) {
    int64_t at = a->seq[b].lse + h * a->part_at.n + i * a->part_at.s + k * a->part_at.d;
    emu_store(&c->t[a->max], at, (double)max);
    emu_store(&c->t[a->sum], at, (double)sum);
  }
}

/* Softmax over n keys and the sum of values into w->out. */
static void weigh(const struct attn_problem *a, struct work *w, int64_t n, float *max_out, float *sum_out) {
  float max = -INFINITY, sum = 0;
  for (int64_t i = 0; i < n; i++) max = w->score[i] > max ? w->score[i] : max;
  for (int d = 0; d < a->d_v; d++) w->out[d] = 0;
  for (int64_t k = 0; k < n; k++) {
    int64_t i = w->other_order ? n - 1 - k : k;
    float p = a->uniform ? 1.0f : expf(w->score[i] - max);
    const float *v = w->v + w->key[i] * a->d_v;
    sum += p;
    for (int d = 0; d < a->d_v; d++) w->out[d] += p * v[d];
  }
  *max_out = max, *sum_out = sum;
}

/* Values of hidden keys, weight 0: nothing, unless they are not finite. */
static void weigh_hidden(const struct attn_problem *a, struct work *w, int64_t n) {
  int64_t at = 0;
  for (int64_t b = 0; b < w->n_broken; b++) {
    int64_t j = w->broken[b];
    while (at < n && w->key[at] < j) at++;
    if (at < n && w->key[at] == j) continue;
    for (int d = 0; d < a->d_v; d++) w->out[d] += 0.0f * w->v[j * a->d_v + d];
  }
}

static void store_row(struct emu_call *c, const struct attn_problem *a, int b, int h, int64_t i, const float *x) {
  emu_store_row(&c->t[a->out], a->seq[b].out + h * a->out_at.n + i * a->out_at.s, a->out_at.d, a->d_v, x);
}

static void fill_row(struct emu_call *c, const struct attn_problem *a, int b, int h, int64_t i, float value, struct work *w) {
  for (int d = 0; d < a->d_v; d++) w->out[d] = value;
  store_row(c, a, b, h, i, w->out);
  store_parts(c, a, b, h, i, 0, 0);
}

/* False after a fault. */
static bool attend_row(struct emu_call *c, const struct attn_problem *a, int b, int h, int64_t i, struct work *w) {
  const struct attn_seq *s = &a->seq[b];
  int64_t n = visible(c, a, b, i, w);
  if (n < 0) return false;
  if (n == 0) { /* of a full mask: it depends; else the operator knows */
    bool own_mask = a->sees == ATTN_FULL || a->sees == ATTN_WITHIN;
    if (a->masked_row == ATTN_EMPTY_FAULT) {
      emu_fault(c, EMU_AICORE_EXCEPTION, "row %lld of sequence %d sees no key: this operator has no result for that", (long long)i, b);
      return false;
    }
    fill_row(c, a, b, h, i, own_mask && a->masked_row == ATTN_EMPTY_NAN ? NAN : 0.0f, w);
    return true;
  }
  emu_load_row(&c->t[a->q], s->q + h * a->q_at.n + i * a->q_at.s, a->q_at.d, a->d_qk, w->q);
  for (int64_t k = 0; k < n; k++) {
    int64_t j = w->key[k];
    float dot = emu_dot(w->q, w->k + j * a->d_qk, a->d_qk), shift = shift_of(c, a, b, h, i, j);
    w->score[k] = a->shift_first ? (dot + shift) * a->scale : dot * a->scale + shift;
  }
  float max, sum;
  weigh(a, w, n, &max, &sum);
  if (w->n_broken > 0) weigh_hidden(a, w, n);
  for (int d = 0; d < a->d_v; d++) w->out[d] /= sum;
  store_row(c, a, b, h, i, w->out);
  store_parts(c, a, b, h, i, max, sum);
  return true;
}

/* ---- all of it ---------------------------------------------------------------------------------------------------------------- */

static int64_t most_keys(const struct attn_problem *a) {
  int64_t n = 1;
  for (int b = 0; b < a->n_seqs; b++) n = a->seq[b].keys > n ? a->seq[b].keys : n;
  return n;
}

static void work_init(struct emu_call *c, const struct attn_problem *a, struct work *w) {
  size_t keys = (size_t)most_keys(a);
  memset(w, 0, sizeof *w);
  w->k = emu_scratch(c, keys * (size_t)a->d_qk * sizeof *w->k);
  w->v = emu_scratch(c, keys * (size_t)a->d_v * sizeof *w->v);
  w->q = emu_scratch(c, (size_t)a->d_qk * sizeof *w->q);
  w->out = emu_scratch(c, (size_t)a->d_v * sizeof *w->out);
  w->score = emu_scratch(c, keys * sizeof *w->score);
  w->key = emu_scratch(c, keys * sizeof *w->key);
  w->broken = emu_scratch(c, keys * sizeof *w->broken);
  w->other_order = emu_other_order();
}

void attn_run(struct emu_call *c, const void *ctx) {
  const struct attn_problem *a = ctx;
  struct work w;
  work_init(c, a, &w);
  if (a->compressed && !triangle_is_right(c, a, most_keys(a))) return;
  for (int b = 0; b < a->n_seqs; b++) {
    const struct attn_seq *s = &a->seq[b];
    if (a->table >= 0 && !blocks_exist(c, a, b)) return;
    for (int h = 0; h < a->n_q; h++)
      for (int64_t i = s->rows; i < s->rows + s->idle; i++) fill_row(c, a, b, h, i, NAN, &w);
    if (s->keys == 0) {
      for (int h = 0; h < a->n_q && !a->leave_empty; h++)
        for (int64_t i = 0; i < s->rows; i++) fill_row(c, a, b, h, i, 0, &w);
      continue;
    }
    int group = a->n_q / a->n_kv;
    for (int g = 0; g < a->n_kv && s->rows > 0; g++) {
      load_keys(c, a, b, g, false, w.k);
      load_keys(c, a, b, g, true, w.v);
      find_broken(a, s, &w);
      for (int h = g * group; h < (g + 1) * group; h++)
        for (int64_t i = 0; i < s->rows; i++)
          if (!attend_row(c, a, b, h, i, &w)) return;
    }
  }
}
