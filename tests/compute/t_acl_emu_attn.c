/* t_acl_emu_attn.c — the numbers of the emulator's attention: against float64 loops over random cases of every layout; what the device does in
 * silence (memory that nobody wrote, faults of the field); lengths in captured calls.
 */
#include "acl_emu_attn.h"

/* ---- random worlds ---------------------------------------------------------------------------------------------------------------- */

enum { SEQS = 4 };
struct world {
  int type, batch, n_q, n_kv, d, d_v, S, KS; /* S, KS: longest */
  int64_t rows[SEQS], keys[SEQS];
  double scale;
  double *q, *k, *v; /* [batch, S, n_q, d], [batch, KS, n_kv, d or d_v] */
  int sparse;        /* -1: FULL mask alone, else as FIA's; 0 with mask: within pre, next */
  int64_t pre, next;
  unsigned char *mask; /* [batch, S, KS]; NULL */
  bool mask_shared;    /* the same for all sequences */
  double *shift;       /* [batch, n_q, S, KS]; NULL */
  double *want;        /* [batch, S, n_q, d_v]; NaN: anything, of rows that have no result */
  double *lse;         /* [batch, S, n_q] */
  bool shift_first, zero_masked;
};

static double *random_numbers(int type, size_t n) {
  double *x = calloc(n + 1, sizeof *x);
  for (size_t i = 0; i < n; i++) x[i] = rounded(type, (double)test_rand_normal(&seed));
  return x;
}

static void world_init(struct world *w) {
  w->S = w->KS = 0;
  for (int b = 0; b < w->batch; b++) {
    if (w->rows[b] > w->S) w->S = (int)w->rows[b];
    if (w->keys[b] > w->KS) w->KS = (int)w->keys[b];
  }
  size_t queries = (size_t)(w->batch * w->S * w->n_q), keys = (size_t)(w->batch * w->KS * w->n_kv);
  w->q = random_numbers(w->type, queries * (size_t)w->d);
  w->k = random_numbers(w->type, keys * (size_t)w->d);
  w->v = random_numbers(w->type, keys * (size_t)w->d_v);
  w->want = calloc(queries * (size_t)w->d_v + 1, sizeof *w->want);
  w->lse = calloc(queries + 1, sizeof *w->lse);
  w->scale = 1 / sqrt(w->d);
  w->pre = w->next = MOST;
}
static void world_free(struct world *w) {
  free(w->q);
  free(w->k);
  free(w->v);
  free(w->want);
  free(w->lse);
  free(w->mask);
  free(w->shift);
  memset(w, 0, sizeof *w);
}
static void random_mask(struct world *w, int percent, bool keep_one) {
  w->mask_shared = w->S > 1 && random_int(0, 1);
  w->mask = calloc((size_t)(w->batch * w->S * w->KS) + 1, 1);
  for (int i = 0; i < w->batch * w->S * w->KS; i++) w->mask[i] = random_int(0, 99) < percent;
  for (int i = 0; keep_one && w->KS && i < w->batch * w->S; i++) {
    int64_t n = w->keys[i / w->S];
    if (n) w->mask[i * w->KS + random_int(0, (int)n - 1)] = 0;
  }
  for (int b = 1; w->mask_shared && b < w->batch; b++) memcpy(w->mask + b * w->S * w->KS, w->mask, (size_t)(w->S * w->KS));
}
static void random_shift(struct world *w) { w->shift = random_numbers(w->type, (size_t)(w->batch * w->n_q * w->S * w->KS)); }

static bool sees(const struct world *w, int b, int64_t i, int64_t j) {
  int64_t end = i + w->keys[b] - w->rows[b];
  switch (w->sparse) {
  case 0: return !w->mask || (j >= i - w->pre && j <= i + w->next && !w->mask[(b * w->S + i) * w->KS + j]);
  case 2: return j <= i;
  case 3: return j <= end;
  case 4: return j >= end - w->pre && j <= end + w->next;
  default: return !w->mask || !w->mask[(b * w->S + i) * w->KS + j];
  }
}

static void twin_row(struct world *w, int b, int i, int h, double *score) {
  int g = h / (w->n_q / w->n_kv);
  const double *q = w->q + ((int64_t)(b * w->S + i) * w->n_q + h) * w->d;
  double *out = w->want + ((int64_t)(b * w->S + i) * w->n_q + h) * w->d_v, max = -INFINITY, sum = 0;
  for (int64_t j = 0; j < w->keys[b]; j++) {
    const double *k = w->k + ((b * w->KS + j) * w->n_kv + g) * w->d;
    double s = 0, shift = w->shift ? w->shift[((b * w->n_q + h) * w->S + i) * w->KS + j] : 0;
    for (int d = 0; d < w->d; d++) s += q[d] * k[d];
    s = w->shift_first ? (s + shift) * w->scale : s * w->scale + shift;
    score[j] = sees(w, b, i, j) ? s : -INFINITY;
    if (score[j] > max) max = score[j];
  }
  for (int64_t j = 0; j < w->keys[b]; j++)
    if (score[j] > -INFINITY) sum += score[j] = exp(score[j] - max);
  w->lse[(b * w->S + i) * w->n_q + h] = sum > 0 ? max + log(sum) : INFINITY;
  for (int d = 0; d < w->d_v; d++) {
    double x = 0;
    for (int64_t j = 0; j < w->keys[b]; j++)
      if (score[j] > -INFINITY) x += score[j] * w->v[((b * w->KS + j) * w->n_kv + g) * w->d_v + d];
    bool own = w->mask && w->keys[b] > 0 && !w->zero_masked;
    out[d] = sum > 0 ? x / sum : own ? (double)NAN : 0;
  }
}
static void twin(struct world *w) {
  double *score = calloc((size_t)w->KS + 1, sizeof *score);
  for (int b = 0; b < w->batch; b++)
    for (int i = 0; i < w->rows[b]; i++)
      for (int h = 0; h < w->n_q; h++) twin_row(w, b, i, h, score);
  free(score);
}

/* Where element (b, s, n, d) lies in a tensor of these letters; t: the token's number in T. */
static int64_t place(const char *letters, const int64_t size[5], int64_t b, int64_t s, int64_t t, int64_t n, int64_t d) {
  int64_t at = 0;
  for (; *letters; letters++) switch (*letters) {
    case 'B': at = at * size[0] + b; break;
    case 'S': at = at * size[1] + s; break;
    case 'T': at = at * size[2] + t; break;
    case 'N': at = at * size[3] + n; break;
    case 'H': at = at * size[3] + n; /* fall through */
    default: at = at * size[4] + d; break;
    }
  return at;
}
static struct shape dims_of(int type, const char *letters, const int64_t size[5]) {
  struct shape s = {.type = type, .n = (int)strlen(letters)};
  for (int i = 0; i < s.n; i++) {
    char c = letters[i];
    s.dims[i] = c == 'B' ? size[0] : c == 'S' ? size[1] : c == 'T' ? size[2] : c == 'N' ? size[3] : c == 'H' ? size[3] * size[4] : size[4];
  }
  return s;
}

/* [batch, S, n, d] into a device tensor; what belongs to no sequence is NaN. */
static struct shape pack(const struct world *w, const double *x, const char *letters, int S, int n, int d, const int64_t *lens) {
  int64_t total = 0, t = 0;
  for (int b = 0; b < w->batch; b++) total += lens[b];
  int64_t size[5] = {w->batch, S, total, n, d};
  struct shape s = dims_of(w->type, letters, size);
  size_t bytes = (size_t)count(&s) * size_of(w->type);
  char *host = malloc(bytes + 1);
  memset(host, 0xff, bytes);
  for (int b = 0; b < w->batch; b++)
    for (int64_t i = 0; i < lens[b]; i++, t++)
      for (int h = 0; h < n; h++)
        for (int e = 0; e < d; e++)
          encode(w->type, x[((b * (int64_t)S + i) * n + h) * d + e], host + (size_t)place(letters, size, b, i, t, h, e) * size_of(w->type));
  s.data = device_of(host, bytes);
  free(host);
  return s;
}

static void *fetch(const struct shape *s) {
  size_t bytes = (size_t)count(s) * size_of(s->type);
  void *host = malloc(bytes + 1);
  assert_int_equal(acl.aclrtMemcpy(host, bytes, s->data, bytes, NPU_DEVICE_TO_HOST), 0);
  return host;
}

static double tolerance(int type) { return type == NPU_BF16 ? 0x1p-8 : type == NPU_FLOAT16 ? 0x1p-11 : 0; }

/* The output against the twin; its bits into raw [batch, S, n_q, d_v] when that is given. */
static void check_out(const struct world *w, const struct shape *out, const char *letters, uint32_t *raw, const char *what) {
  int64_t total = 0, t = 0;
  for (int b = 0; b < w->batch; b++) total += w->rows[b];
  int64_t size[5] = {w->batch, w->S, total, w->n_q, w->d_v};
  char *host = fetch(out);
  for (int b = 0; b < w->batch; b++)
    for (int64_t i = 0; i < w->rows[b]; i++, t++)
      for (int h = 0; h < w->n_q; h++)
        for (int e = 0; e < w->d_v; e++) {
          int64_t at = ((b * (int64_t)w->S + i) * w->n_q + h) * w->d_v + e;
          const char *p = host + (size_t)place(letters, size, b, i, t, h, e) * size_of(w->type);
          double found = decode(w->type, p), want = w->want[at];
          if (raw) raw[at] = 0, memcpy(&raw[at], p, size_of(w->type));
          if (isnan(want) ? isnan(found) : fabs(found - want) <= tolerance(w->type) * 1.05 * fabs(want) + 3e-5) continue;
          fail_msg("%s %s: sequence %d (%d rows, %d keys) row %d head %d [%d]: %.9g, the twin has %.9g; D %d sparse %d", emu->profile, what,
                   b, (int)w->rows[b], (int)w->keys[b], (int)i, h, e, found, want, w->d, w->sparse);
        }
  free(host);
}

/* Full mask in one of the forms that are allowed. */
static struct shape pack_mask(const struct world *w, bool single, int64_t wide) {
  int64_t b = w->batch, S = w->S;
  bool one = w->mask_shared && random_int(0, 1);
  struct shape s;
  if (single) s = PICK(0, 1) ? SHAPE(NPU_BOOL, b, 1, 1, wide) : PICK(0, 1) ? SHAPE(NPU_INT8, b, 1, wide) : SHAPE(NPU_UINT8, b, wide);
  else if (one) s = PICK(0, 1) ? SHAPE(NPU_BOOL, S, wide) : PICK(0, 1) ? SHAPE(NPU_UINT8, 1, S, wide) : SHAPE(NPU_BOOL, 1, 1, S, wide);
  else s = PICK(0, 1) ? SHAPE(NPU_INT8, b, S, wide) : SHAPE(NPU_BOOL, b, 1, S, wide);
  size_t n = (size_t)count(&s);
  unsigned char *m = malloc(n + 1);
  memset(m, 0xff, n);
  for (int64_t r = 0; r < (one ? S : b * S); r++)
    for (int64_t j = 0; j < w->KS && j < wide; j++) m[r * wide + j] = w->mask[r * w->KS + j];
  s.data = device_of(m, n);
  free(m);
  return s;
}

static struct shape pack_shift(const struct world *w, int64_t wide) {
  struct shape s = SHAPE(w->type, w->batch, w->n_q, w->S, wide);
  size_t bytes = (size_t)count(&s) * size_of(w->type);
  char *host = malloc(bytes + 1);
  memset(host, 0xff, bytes);
  for (int64_t r = 0; r < (int64_t)w->batch * w->n_q * w->S; r++)
    for (int64_t j = 0; j < w->KS; j++) encode(w->type, w->shift[r * w->KS + j], host + (size_t)(r * wide + j) * size_of(w->type));
  s.data = device_of(host, bytes);
  free(host);
  return s;
}

/* Keys and values into pages that lie anywhere in a pool, what is not theirs NaN. form 3, 4, 5: dimensions of the pool. */
static void pack_pages(struct fia *f, const struct world *w, int block, int form, int spare_columns) {
  int64_t M = (w->KS + block - 1) / block + spare_columns, n_pages = w->batch * M + 2, next = 0;
  if (M == 0) M = 1, n_pages = w->batch + 2;
  int32_t *table = malloc((size_t)(w->batch * M) * sizeof *table), *ids = malloc((size_t)n_pages * sizeof *ids);
  for (int i = 0; i < n_pages; i++) ids[i] = i;
  for (int i = (int)n_pages - 1; i > 0; i--) {
    int j = random_int(0, i);
    int32_t x = ids[i];
    ids[i] = ids[j], ids[j] = x;
  }
  for (int b = 0; b < w->batch; b++)
    for (int64_t c = 0; c < M; c++) table[b * M + c] = c * block < w->keys[b] ? ids[next++] : -1;
  for (int side = 0; side < 2; side++) {
    int64_t d = side ? w->d_v : w->d, n = w->n_kv;
    struct shape s = form == 3   ? SHAPE(w->type, n_pages, block, n * d)
                     : form == 4 ? SHAPE(w->type, n_pages, n, block, d)
                                 : SHAPE(w->type, n_pages, n, d / 16, block, 16);
    size_t bytes = (size_t)count(&s) * size_of(w->type);
    char *host = malloc(bytes);
    memset(host, 0xff, bytes);
    for (int b = 0; b < w->batch; b++)
      for (int64_t j = 0; j < w->keys[b]; j++)
        for (int64_t g = 0; g < n; g++)
          for (int64_t e = 0; e < d; e++) {
            int64_t page = table[b * M + j / block], o = j % block, at;
            at = form == 3   ? (page * block + o) * n * d + g * d + e
                 : form == 4 ? ((page * n + g) * block + o) * d + e
                             : (((page * n + g) * (d / 16) + e / 16) * block + o) * 16 + e % 16;
            encode(w->type, (side ? w->v : w->k)[((b * (int64_t)w->KS + j) * n + g) * d + e], host + (size_t)at * size_of(w->type));
          }
    s.data = device_of(host, bytes);
    *(side ? &f->v : &f->k) = s;
    free(host);
  }
  f->table = SHAPE(NPU_INT32, w->batch, M);
  f->table.data = device_of(table, (size_t)(w->batch * M) * sizeof *table);
  f->block = block;
  free(table);
  free(ids);
}

static void lengths(int64_t *out, const int64_t *in, int n, bool cumulative) {
  for (int i = 0; i < n; i++) out[i] = in[i] + (cumulative && i ? out[i - 1] : 0);
}

enum keys_in { DENSE, PAGED, LISTED };
static struct shape listed[2][SEQS];

/* A call for this world in this layout; in: the letters of query, keys and values; out: of the result. */
static struct fia call_of(struct world *w, const char *layout, const char *in, enum keys_in keys, int block, int form, bool single) {
  struct fia f = {.version = newest(), .layout = layout, .heads = w->n_q, .kv_heads = w->n_kv == w->n_q ? 0 : w->n_kv, .scale = w->scale};
  bool packed = strchr(in, 'T') != NULL;
  f.mask = f.shift = f.table = f.lse = f.extra = absent;
  f.pre = w->pre, f.next = w->next, f.sparse = w->sparse < 0 ? 1 : w->sparse;
  f.q = pack(w, w->q, in, w->S, w->n_q, w->d, w->rows);
  f.n_q_lens = f.n_kv_lens = w->batch;
  lengths(f.q_lens, w->rows, w->batch, packed);
  lengths(f.kv_lens, w->keys, w->batch, packed && keys == DENSE);
  if (keys == PAGED) {
    pack_pages(&f, w, block, form, random_int(0, 2));
  } else if (keys == DENSE) {
    f.k = pack(w, w->k, in, w->KS, w->n_kv, w->d, w->keys);
    f.v = pack(w, w->v, in, w->KS, w->n_kv, w->d_v, w->keys);
  } else {
    for (int b = 0; b < w->batch; b++) {
      struct world one = {.type = w->type, .batch = 1};
      int64_t len[1] = {w->keys[b]};
      listed[0][b] = pack(&one, w->k + (int64_t)b * w->KS * w->n_kv * w->d, in, w->KS, w->n_kv, w->d, len);
      listed[1][b] = pack(&one, w->v + (int64_t)b * w->KS * w->n_kv * w->d_v, in, w->KS, w->n_kv, w->d_v, len);
    }
    f.k_list = listed[0], f.v_list = listed[1], f.n_list = w->batch;
  }
  int64_t wide = keys == PAGED ? f.table.dims[1] * block : w->KS + (w->KS % 32 ? random_int(0, 32 - w->KS % 32) : 0);
  if (w->mask) f.mask = pack_mask(w, single, wide);
  if (w->shift) f.shift = pack_shift(w, wide + random_int(0, 3));
  if (w->sparse >= 2) f.mask = triangle_shape();
  return f;
}

static void run_fia(struct world *w, struct fia *f, const char *out, uint32_t *raw, const char *what) {
  int64_t total = 0;
  for (int b = 0; b < w->batch; b++) total += w->rows[b];
  int64_t size[5] = {w->batch, w->S, total, w->n_q, w->d_v};
  bool packed = strchr(out, 'T') != NULL;
  f->out = dims_of(w->type, out, size);
  if ((f->lse_wanted = f->version && random_int(0, 3) == 0))
    f->lse = packed ? SHAPE(NPU_FLOAT, total, w->n_q, 1) : SHAPE(NPU_FLOAT, w->batch, w->n_q, w->S, 1);
  expect(fia(f), 0, what, 0);
  twin(w);
  check_out(w, &f->out, out, raw, what);
  if (!f->lse_wanted) return;
  float *lse = fetch(&f->lse);
  int64_t t = 0;
  for (int b = 0; b < w->batch; b++)
    for (int64_t i = 0; i < w->rows[b]; i++, t++)
      for (int h = 0; h < w->n_q; h++) {
        double found = (double)lse[packed ? t * w->n_q + h : (b * w->n_q + h) * w->S + i], want = w->lse[(b * w->S + i) * w->n_q + h];
        if (isinf(want) ? !isinf(found) : fabs(found - want) > 1e-4)
          fail_msg("%s %s: lse %g, the twin has %g", emu->profile, what, found, want);
      }
  free(lse);
}

static void random_heads(struct world *w) {
  w->n_kv = random_int(1, 3);
  w->n_q = w->n_kv * random_int(1, 3);
}

/* One query for each sequence. */
static void decode_case(void) {
  static const char *const layouts[] = {"BSH", "BSND", "BNSD"};
  struct world w = {.type = PICK(NPU_BF16, NPU_FLOAT16), .batch = random_int(1, SEQS), .d = PICK(16, 32, 64, 80, 128, 256, 512)};
  bool incre = acl.IncreFlashAttentionV4 && random_int(0, 3) == 0;
  if (is_310p()) incre = true, w.type = NPU_FLOAT16;
  random_heads(&w);
  if (is_310p()) w.n_kv = w.n_q;
  w.d_v = w.d;
  for (int b = 0; b < w.batch; b++) w.rows[b] = 1, w.keys[b] = random_int(0, 4) ? random_int(1, 40) : 0;
  world_init(&w);
  if (w.KS == 0) {
    world_free(&w);
    return;
  }
  w.sparse = 1; /* without effect; the twin then looks at the mask alone */
  if (random_int(0, 1)) random_mask(&w, 40, random_int(0, 1));
  if (random_int(0, 3) == 0) random_shift(&w);
  uint32_t *raw[2] = {calloc((size_t)(w.batch * w.n_q * w.d_v), 4), calloc((size_t)(w.batch * w.n_q * w.d_v), 4)};
  for (int turn = 0; turn < 2; turn++) {
    const char *in = layouts[random_int(0, 2)];
    enum keys_in keys = w.batch > 1 ? PICK(DENSE, PAGED, PAGED, LISTED) : PICK(DENSE, PAGED);
    bool outside = strcmp(in, "BNSD") == 0 || (is_new() && !incre && w.n_q != w.n_kv);
    struct fia f = call_of(&w, in, in, keys, 16 * PICK(1, 2, 8), outside ? PICK(3, 4) : 3, true);
    f.version = incre ? 0 : random_int(2, newest());
    f.precise = random_int(0, 1);
    f.sparse = random_int(0, 4), f.pre = random_int(-3, 3), f.next = -5; /* all without effect */
    if (random_int(0, 1)) f.n_q_lens = -1;
    run_fia(&w, &f, in, raw[turn], in);
  }
  assert_memory_equal(raw[0], raw[1], (size_t)(w.batch * w.n_q * w.d_v) * 4);
  free(raw[0]);
  free(raw[1]);
  release();
  world_free(&w);
}

static void random_sparse(struct world *w, bool packed, bool band) {
  w->sparse = packed ? (band ? PICK(0, 3, 4) : PICK(0, 3)) : PICK(0, 0, 1, 2, 3, 4);
  if (!packed && w->sparse <= 1 && (w->sparse == 1 || random_int(0, 2))) random_mask(w, 30, random_int(0, 1));
  if (w->sparse == 0 && w->mask && random_int(0, 1)) w->pre = random_int(0, 20), w->next = random_int(0, 20);
  if (w->sparse == 4) {
    w->pre = random_int(0, 30), w->next = random_int(0, 1) ? 0 : random_int(0, 5);
    if (random_int(0, 4) == 0) w->pre = 30, w->next = MOST;
  }
}

/* Several queries; a second layout gives the same bits. */
static void prompt_case(void) {
  static const struct {
    const char *name, *in, *out;
    int since;
  } layouts[] = {{"BSH", "BSH", "BSH", 2},         {"BSND", "BSND", "BSND", 2},    {"BNSD", "BNSD", "BNSD", 2},
                 {"BNSD_BSND", "BNSD", "BSND", 2}, {"BSH_BNSD", "BSH", "BNSD", 4}, {"BSND_BNSD", "BSND", "BNSD", 4}};
  struct world w = {.type = PICK(NPU_BF16, NPU_FLOAT16), .batch = random_int(1, 3), .d = PICK(16, 64, 80, 128, 256, 512)};
  random_heads(&w);
  w.d_v = w.d;
  for (int b = 0; b < w.batch; b++) w.rows[b] = random_int(b == 0 ? 2 : 0, 6), w.keys[b] = random_int(b == 0, 40);
  world_init(&w);
  random_sparse(&w, false, true);
  if (random_int(0, 4) == 0) random_shift(&w);
  w.zero_masked = random_int(0, 1);
  size_t n = (size_t)(w.batch * w.S * w.n_q * w.d_v);
  uint32_t *raw[2] = {calloc(n, 4), calloc(n, 4)};
  for (int turn = 0; turn < 2; turn++) {
    int l = random_int(0, newest() == 4 && (w.d == 64 || w.d == 128) ? 5 : 3);
    enum keys_in keys = w.batch > 1 ? PICK(DENSE, PAGED, LISTED) : PICK(DENSE, PAGED);
    bool outside = strcmp(layouts[l].in, "BNSD") == 0 || (is_new() && w.n_q != w.n_kv);
    struct fia f = call_of(&w, layouts[l].name, layouts[l].in, keys, 128, outside ? PICK(3, 4) : 3, false);
    f.version = random_int(layouts[l].since, newest());
    f.precise = random_int(0, 1) + (w.zero_masked ? 2 : 0);
    if (w.sparse == 1 || w.sparse == 2 || w.sparse == 3) f.pre = -7, f.next = 3; /* without effect */
    run_fia(&w, &f, layouts[l].out, raw[turn], layouts[l].name);
  }
  assert_memory_equal(raw[0], raw[1], n * 4);
  free(raw[0]);
  free(raw[1]);
  release();
  world_free(&w);
}

/* All tokens in a row, and again one sequence at a time by BSND: the same bits. */
static void packed_case(void) {
  static const struct {
    const char *name, *in, *out;
    int since;
  } layouts[] = {{"TND", "TND", "TND", 3}, {"NTD_TND", "NTD", "TND", 3}, {"NTD", "NTD", "NTD", 4}};
  struct world w = {.type = NPU_BF16, .batch = random_int(1, SEQS), .d = is_new() ? PICK(32, 64, 80, 128, 256) : PICK(128, 192)};
  random_heads(&w);
  if (is_new() && w.d != 64 && w.d != 128 && w.n_q == w.n_kv) w.n_q *= 2;
  w.d_v = w.d == 192 && random_int(0, 1) ? 128 : w.d;
  if (w.d_v == 192) w.n_q = w.n_kv;
  for (int b = 0; b < w.batch; b++) w.rows[b] = random_int(b == 0, 5), w.keys[b] = random_int(b == 0, 40);
  world_init(&w);
  random_sparse(&w, true, is_new());
  size_t n = (size_t)(w.batch * w.S * w.n_q * w.d_v);
  uint32_t *raw = calloc(n, 4), *again = calloc(n, 4);
  int l = random_int(0, newest() == 4 ? 2 : 1);
  bool wide = w.d != 64 && w.d != 128;
  int block = is_new() ? 16 * PICK(1, 2, 8) : PICK(128, 512), form = is_new() ? (wide ? PICK(3, 5) : PICK(3, 4, 5)) : PICK(3, 4);
  struct fia f = call_of(&w, layouts[l].name, layouts[l].in, PICK(DENSE, PAGED), block, form, false);
  f.version = random_int(layouts[l].since, newest());
  run_fia(&w, &f, layouts[l].out, raw, layouts[l].name);
  if (w.d == w.d_v && w.S > 1) {
    f = call_of(&w, "BSND", "BSND", PAGED, 128, 3, false);
    run_fia(&w, &f, "BSND", again, "BSND after TND");
    assert_memory_equal(raw, again, n * 4);
  }
  free(raw);
  free(again);
  release();
  world_free(&w);
}
/* ---- FlashAttention ---------------------------------------------------------------------------------------------------- */

/* The same elements, further apart. */
static struct shape spread(const struct shape *s, int apart) {
  struct shape r = *s;
  size_t size = size_of(s->type), n = (size_t)count(s), wide = (size_t)s->dims[s->n - 1];
  char *host = fetch(s), *far = malloc(n * size * (size_t)apart);
  memset(far, 0xff, n * size * (size_t)apart);
  for (size_t row = 0; row < n / wide; row++) memcpy(far + row * wide * size * (size_t)apart, host + row * wide * size, wide * size);
  r.data = device_of(far, n * size * (size_t)apart);
  for (int64_t i = s->n - 1, next = 1; i >= 0; i--) r.strides[i] = next, next *= s->dims[i] * (i == s->n - 1 ? apart : 1);
  free(host);
  free(far);
  return r;
}

static void flash_case(void) {
  static const char *const layouts[] = {"BSH", "SBH", "BSND", "BNSD"};
  bool packed = random_int(0, 1);
  struct world w = {.type = PICK(NPU_BF16, NPU_FLOAT16, NPU_FLOAT), .batch = random_int(1, 3), .d = PICK(1, 8, 20, 72, 128, 512, 768)};
  random_heads(&w);
  w.d_v = w.d > 8 && random_int(0, 2) == 0 ? w.d - 8 : w.d;
  for (int b = 0; b < w.batch; b++) {
    w.rows[b] = packed || b == 0 ? random_int(b == 0, 5) : w.rows[0];
    w.keys[b] = packed || b == 0 ? random_int(w.rows[b] ? (int)w.rows[b] : b == 0, 40) : w.keys[0];
  }
  world_init(&w);
  w.sparse = PICK(0, 0, 1, 2, 3, 4);
  if (w.sparse == 4) w.pre = random_int(0, 30), w.next = random_int(0, 5);
  if (w.sparse <= 1 && random_int(0, 1)) random_mask(&w, 30, true);
  if (!packed && random_int(0, 3) == 0) random_shift(&w), w.shift_first = true;
  const char *in = packed ? "TND" : layouts[random_int(0, 3)];
  int64_t total = 0;
  for (int b = 0; b < w.batch; b++) total += w.rows[b];
  int64_t size[5] = {w.batch, w.S, total, w.n_q, w.d_v};
  struct flash f = {.packed = packed,
                    .layout = in,
                    .heads = w.n_q,
                    .scale = w.scale,
                    .keep = 1,
                    .pre = w.pre,
                    .next = w.next,
                    .sparse = w.sparse,
                    .n_lens = w.batch,
                    .n_kv_lens = w.batch,
                    .mask = absent,
                    .shift = absent,
                    .extra = absent};
  f.q = pack(&w, w.q, in, w.S, w.n_q, w.d, w.rows);
  f.k = pack(&w, w.k, in, w.KS, w.n_kv, w.d, w.keys);
  f.v = pack(&w, w.v, in, w.KS, w.n_kv, w.d_v, w.keys);
  if (random_int(0, 1)) f.k = spread(&f.k, 2);
  lengths(f.q_lens, w.rows, w.batch, true);
  lengths(f.kv_lens, w.keys, w.batch, true);
  f.out = dims_of(w.type, in, size);
  f.max = packed ? (random_int(0, 1) ? SHAPE(NPU_FLOAT, total, w.n_q, 8) : SHAPE(NPU_FLOAT, w.n_q, total, 8))
                 : SHAPE(NPU_FLOAT, w.batch, w.n_q, w.S, 8);
  f.sum = f.max;
  if (w.mask) {
    bool shared = packed || w.mask_shared;
    for (int b = 1; shared && b < w.batch; b++) memcpy(w.mask + b * w.S * w.KS, w.mask, (size_t)(w.S * w.KS));
    for (int r = 0; packed && r < w.batch * w.S; r++) w.mask[r * w.KS] = 0; /* no row without a key */
    f.mask = shared ? SHAPE(NPU_BOOL, w.S, w.KS) : SHAPE(NPU_UINT8, w.batch, 1, w.S, w.KS);
    f.mask.data = device_of(w.mask, (size_t)count(&f.mask));
  }
  if (w.shift) f.shift = pack_shift(&w, w.KS);
  if (w.sparse >= 2 && random_int(0, 4)) f.mask = triangle_shape();
  if (f.mask.absent) w.sparse = 0; /* without a mask the mode has no effect */
  expect(flash(&f), 0, in, __LINE__);
  twin(&w);
  check_out(&w, &f.out, in, NULL, packed ? "VarLen" : in);
  if (!packed) { /* sum = exp(lse - max), eight times each */
    float *max = fetch(&f.max), *sum = fetch(&f.sum);
    for (int64_t i = 0; i < (int64_t)w.batch * w.n_q * w.S; i++) {
      int64_t b = i / (w.n_q * w.S), h = i / w.S % w.n_q, row = i % w.S;
      double lse = w.lse[(b * w.S + row) * w.n_q + h];
      for (int k = 0; k < 8; k++) assert_true(fabs((double)max[i * 8 + k] + log((double)sum[i * 8 + k]) - lse) < 1e-4);
    }
    free(max);
    free(sum);
  }
  release();
  world_free(&w);
}
/* ---- pages ---------------------------------------------------------------------------------------------------- */

/* Tokens into slots, then out again by a table: what comes back is what went in. */
static void pages_case(void) {
  int type = PICK(NPU_BF16, NPU_FLOAT16), n = random_int(1, 3), d = 16 * random_int(1, 3), dv = 16 * random_int(1, 3),
      block = PICK(1, 4, 16), T = random_int(1, 20), form = random_int(0, is_new() ? 2 : 1);
  int64_t cols = (T + block - 1) / block, n_pages = cols + 3;
  struct world w = {.type = type, .batch = 1};
  double *k = random_numbers(type, (size_t)(T * n * d)), *v = random_numbers(type, (size_t)(T * n * dv));
  int64_t len = T, *slots = malloc((size_t)T * sizeof *slots);
  int32_t *table = malloc((size_t)cols * sizeof *table), len32 = T, pair[2] = {0, T};
  for (int64_t c = 0; c < cols; c++) table[c] = (int32_t)((c + 2) % n_pages);
  for (int64_t i = 0; i < T; i++) slots[i] = table[i / block] * block + i % block;
  struct scatter s = {.extra = absent,
                      .cache_mode = form == 1    ? "PA_NZ"
                                    : PICK(0, 1) ? "Norm"
                                                 : NULL,
                      .scatter_mode = form == 2 ? "NHSD" : "None"};
  s.k = pack(&w, k, "TND", T, n, d, &len);
  s.v = pack(&w, v, "TND", T, n, dv, &len);
  s.slots = SHAPE(NPU_INT64, T);
  s.slots.data = device_of(slots, (size_t)T * sizeof *slots);
  for (int side = 0; side < 2; side++) {
    struct shape *c = side ? &s.v_cache : &s.k_cache;
    int64_t e = side ? dv : d;
    *c = form == 0          ? SHAPE(type, n_pages, block, n, e)
         : form == 2        ? SHAPE(type, n_pages, n, block, e)
         : random_int(0, 1) ? SHAPE(type, n_pages, n * e / 16, block, 16)
                            : SHAPE(type, n_pages, n, e / 16, block, 16);
    poison(c);
  }
  expect(scatter(&s), 0, "scatter", __LINE__);
  for (int side = 0; side < 2; side++) {
    const double *x = side ? v : k;
    int64_t e = side ? dv : d;
    char *host = fetch(side ? &s.v_cache : &s.k_cache);
    for (int64_t i = 0; i < T; i++)
      for (int64_t h = 0; h < n; h++)
        for (int64_t c = 0; c < e; c++) {
          int64_t page = slots[i] / block, o = slots[i] % block;
          int64_t at = form == 0   ? ((page * block + o) * n + h) * e + c
                       : form == 2 ? ((page * n + h) * block + o) * e + c
                                   : ((page * n + h) * (e / 16) + c / 16) * block * 16 + o * 16 + c % 16;
          assert_true(decode(type, host + at * 2) == x[(i * n + h) * e + c]);
        }
    free(host);
  }
  if (form < 2 && acl.GatherPaKvCache) {
    struct gather g = {.k_cache = s.k_cache,
                       .v_cache = s.v_cache,
                       .table = SHAPE(NPU_INT32, 1, cols),
                       .mode = form ? "PA_NZ" : "Norm",
                       .cumulative = random_int(0, 1),
                       .offsets = absent};
    if (form) { /* its rows are flat: pages of 4 dimensions */
      g.k_cache = SHAPE(type, n_pages, n * d / 16, block, 16), g.v_cache = SHAPE(type, n_pages, n * dv / 16, block, 16);
      g.k_cache.data = s.k_cache.data, g.v_cache.data = s.v_cache.data;
    }
    g.table.data = device_of(table, (size_t)cols * sizeof *table);
    g.lens = SHAPE(NPU_INT32, g.cumulative ? 2 : 1);
    g.lens.data = device_of(g.cumulative ? pair : &len32, 8 - (g.cumulative ? 0 : 4));
    g.k = form ? SHAPE(type, T, n * d) : SHAPE(type, T, n, d);
    g.v = form ? SHAPE(type, T, n * dv) : SHAPE(type, T, n, dv);
    expect(gather(&g), 0, "gather", __LINE__);
    for (int side = 0; side < 2; side++) {
      char *host = fetch(side ? &g.v : &g.k);
      for (int64_t i = 0; i < (int64_t)T * n * (side ? dv : d); i++) assert_true(decode(type, host + i * 2) == (side ? v : k)[i]);
      free(host);
    }
  }
  free(k);
  free(v);
  free(slots);
  free(table);
  release();
}
/* ---- what is silent on the device --------------------------------------------------------------------------------------------------- */

/* One sequence of n keys, one head of 16: q is 0, so all keys that are seen weigh the same; values are the key's number / 16. */
static double average(struct fia *f) {
  char *host = NULL;
  expect(fia(f), 0, "average", __LINE__);
  host = fetch(&f->out);
  double x = decode(f->q.type, host);
  free(host);
  return x;
}
static struct fia average_base(int n, int type) {
  struct fia f = decode_base();
  f.layout = "BSH", f.heads = 1, f.kv_heads = 1, f.block = 128, f.scale = 1;
  int64_t pages = (n + 127) / 128, len = n;
  struct world w = {.type = type, .batch = 1};
  double *v = calloc((size_t)(pages * 128 * 16), sizeof *v);
  for (int i = 0; i < n * 16; i++) v[i] = i / 16 < 512 ? 1 : 3;
  int32_t table[64];
  for (int i = 0; i < pages; i++) table[i] = i;
  f.q = f.out = SHAPE(type, 1, 1, 16);
  f.k = SHAPE(type, pages, 128, 16);
  f.v = pack(&w, v, "TND", (int)pages * 128, 1, 16, (int64_t[]){pages * 128});
  f.v = (struct shape){.type = type, .n = 3, .dims = {pages, 128, 16}, .data = f.v.data};
  f.table = SHAPE(NPU_INT32, 1, pages);
  own_data(&f.table, table);
  f.kv_lens[0] = len, f.n_kv_lens = 1;
  free(v);
  return f;
}

static void test_poison(void) {
  struct fia f = average_base(300, NPU_BF16);
  assert_true(average(&f) == 1);
  /* a value that nobody wrote, at key 299: seen, or hidden by a mask, it shows; beyond the length it does not */
  uint16_t nan = 0xffff;
  assert_int_equal(acl.aclrtMemcpy((char *)f.v.data + 299 * 32, 2, &nan, 2, NPU_HOST_TO_DEVICE), 0);
  assert_true(isnan(average(&f)));
  unsigned char mask[384] = {[299] = 1};
  f.mask = SHAPE(NPU_BOOL, 1, 384);
  own_data(&f.mask, mask);
  assert_true(isnan(average(&f)));
  f.kv_lens[0] = 299;
  assert_true(average(&f) == 1);
  /* a key that nobody wrote shows unless it is hidden */
  assert_int_equal(acl.aclrtMemcpy((char *)f.k.data + 298 * 32, 2, &nan, 2, NPU_HOST_TO_DEVICE), 0);
  assert_true(isnan(average(&f)));
  set_byte(f.mask.data, 298, 1);
  assert_true(average(&f) == 1);
  release();
}

static void test_defects(void) {
  unsigned char mask[1024];
  for (int j = 0; j < 1024; j++) mask[j] = j >= 512;
  struct fia f = average_base(1024, NPU_BF16);
  f.mask = SHAPE(NPU_BOOL, 1, 1, 1, 1024);
  own_data(&f.mask, mask);
  assert_true(average(&f) == 1);
  emu->defects(1); /* a mask is not looked at from key 512 on */
  assert_true(average(&f) == 2);
  f.mask = absent;
  uint16_t shift[1024];
  for (int j = 0; j < 1024; j++) shift[j] = f32_to_bf16(j >= 512 ? -100.0f : 0);
  f.shift = SHAPE(NPU_BF16, 1, 1, 1, 1024);
  own_data(&f.shift, shift);
  assert_true(average(&f) == 1);
  for (int j = 512; j < 1024; j++) shift[j] = f32_to_bf16(-INFINITY);
  own_data(&f.shift, shift);
  assert_true(average(&f) == 1);
  emu->defects(8);
  assert_true(isnan(average(&f)));
  f.shift = absent;
  emu->defects(32); /* 0 keys leave the output as it was */
  f.kv_lens[0] = 0;
  uint16_t old = f32_to_bf16(5);
  assert_int_equal(acl.aclrtMemcpy(f.out.data, 2, &old, 2, NPU_HOST_TO_DEVICE), 0);
  assert_true(average(&f) == 5);
  emu->defects(0);
  assert_true(average(&f) == 0);
  release();

  f = decode_base(); /* two heads, one shift for both: accepted, and wrong */
  f.shift = SHAPE(NPU_BF16, 1, 1, 1, 384);
  expect(fia(&f), TILING, "shared shift", __LINE__);
  emu->defects(2);
  f.shift.data = NULL;
  expect(fia(&f), 0, "shared shift with the defect", __LINE__);
  release();

  if (is_new() || emu->cann >= 805) { /* TND, no mask, fp16: the plain average */
    struct world w = {.type = NPU_FLOAT16, .batch = 1, .d = 128, .d_v = 128, .n_q = 2, .n_kv = 1, .rows = {3}, .keys = {20}};
    world_init(&w);
    struct fia t = call_of(&w, "TND", "TND", DENSE, 0, 3, false);
    run_fia(&w, &t, "TND", NULL, "TND");
    emu->defects(4);
    for (int i = 0; i < 3 * 2 * 128; i++) w.q[i] = 0; /* what the twin then finds */
    t.out.data = NULL, t.lse_wanted = false;
    expect(fia(&t), 0, "uniform", __LINE__);
    twin(&w);
    check_out(&w, &t.out, "TND", NULL, "uniform");
    world_free(&w);
    release();
  }
  emu->defects(16); /* bands one key too narrow */
  struct world w = {.type = NPU_BF16, .batch = 1, .d = 64, .d_v = 64, .n_q = 2, .n_kv = 1, .rows = {4}, .keys = {20}};
  world_init(&w);
  w.sparse = 4, w.pre = 5, w.next = 0;
  struct fia t = call_of(&w, "BSND", "BSND", PAGED, 128, 3, false);
  w.pre = 4;
  run_fia(&w, &t, "BSND", NULL, "band of one less");
  emu->defects(0);
  w.pre = 5;
  run_fia(&w, &t, "BSND", NULL, "band");
  world_free(&w);
  release();
}

/* Lengths are the host's: a captured call keeps them until its task is updated. */
static void test_captured(void) {
  struct fia f = average_base(600, NPU_BF16);
  void *graph = NULL, *group = NULL;
  aclrtStream side;
  char layout[] = "BSH";
  aclTensor *q = tensor_of(&f.q), *out = tensor_of(&f.out), *table = tensor_of(&f.table);
  aclTensorList *k = list_of(&f.k, NULL, 1), *v = list_of(&f.v, NULL, 1);
  void *workspace = device_of(NULL, 1 << 20);
  int64_t len[3] = {512, 600, 512};
  assert_int_equal(acl.aclrtCreateStream(&side), 0);
  for (int turn = 0; turn < 3; turn++) {
    aclIntArray *lens = acl.aclCreateIntArray(&len[turn], 1);
    uint64_t bytes = 0;
    aclOpExecutor *ex = NULL;
    aclrtStream on = turn == 0 ? stream : side;
    int rc = acl.FusedInferAttentionScoreV2(q, k, v, NULL, NULL, NULL, lens, NULL, NULL, NULL, NULL, NULL, NULL, NULL, table, NULL, NULL,
                                            NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1, 1.0, MOST, MOST, layout, 1, 0, 0, 128, 0, false, 0,
                                            0, out, NULL, &bytes, &ex);
    expect(rc, 0, "phase 1", __LINE__);
    assert_true(bytes <= 1 << 20);
    acl.aclDestroyIntArray(lens);
    if (turn == 0) {
      expect(acl.aclmdlRICaptureBegin(stream, NPU_CAPTURE_THREAD_LOCAL), 0, "capture", __LINE__);
      expect(acl.aclmdlRICaptureTaskGrpBegin(stream), 0, "group", __LINE__);
    } else {
      expect(acl.aclmdlRICaptureTaskUpdateBegin(side, group), 0, "update", __LINE__);
    }
    expect(acl.issue[ACL_OP_FusedInferAttentionScoreV2](workspace, bytes, ex, on), 0, "phase 2", __LINE__);
    if (turn == 0) {
      expect(acl.aclmdlRICaptureTaskGrpEnd(stream, &group), 0, "group", __LINE__);
      expect(acl.aclmdlRICaptureEnd(stream, &graph), 0, "capture", __LINE__);
    } else {
      expect(acl.aclmdlRICaptureTaskUpdateEnd(side), 0, "update", __LINE__);
      expect(acl.aclrtSynchronizeStream(side), 0, "update", __LINE__);
    }
    for (int again = 0; again < 2; again++) {
      expect(acl.aclmdlRIExecuteAsync(graph, stream), 0, "replay", __LINE__);
      expect(acl.aclrtSynchronizeStream(stream), 0, "replay", __LINE__);
      char *host = fetch(&f.out);
      assert_true(fabs(decode(NPU_BF16, host) - (len[turn] == 512 ? 1 : (512 + 88 * 3) / 600.0)) < 0.005);
      free(host);
    }
  }
  assert_int_equal(acl.aclmdlRIDestroy(graph), 0);
  acl.aclDestroyTensor(q);
  acl.aclDestroyTensor(out);
  acl.aclDestroyTensor(table);
  acl.aclDestroyTensorList(k);
  acl.aclDestroyTensorList(v);
  assert_int_equal(acl.aclrtDestroyStream(side), 0);
  release();
}
static void cases(int n) {
  for (int i = 0; i < n; i++) {
    decode_case();
    if (is_310p()) continue;
    prompt_case();
    packed_case();
    flash_case();
    if (acl.ScatterPaKvCache) pages_case();
  }
}

static void random_body(void) {
  open_npu();
  cases(25);
  close_npu();
}
static void order_body(void) { /* sums from the other end: other bits, the same numbers */
  open_npu();
  emu->other_order(1);
  cases(8);
  close_npu();
}
static void silent_body(void) {
  open_npu();
  if (!is_310p()) {
    test_poison();
    test_defects();
    test_captured();
  }
  close_npu();
}
static void test_random(void **state) {
  (void)state;
  npu_each_profile(random_body);
}
static void test_other_order(void **state) {
  (void)state;
  npu_each_profile(order_body);
}
static void test_silent(void **state) {
  (void)state;
  npu_each_profile(silent_body);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_other_order), cmocka_unit_test(test_silent)};
TEST_MAIN(tests)
