/* attn_paged.c — ScatterPaKvCache and GatherPaKvCache: keys and values into pages and out of them.
 *
 *   Norm    cache [blocks, block, N, D]                 slot = block number * block + place
 *   NHSD    cache [blocks, N, block, D]                 (scatter, from 9.0)
 *   PA_NZ   cache [blocks, N * D / e, block, e] or [blocks, N, D / e, block, e], e elements of 32 bytes
 *
 * On the device a slot or block out of range is a stray write or read, and of two writes to one slot either wins: here both are faults.
 */
#include "acl_emu/attn_core.h"

#include <stdlib.h>
#include <string.h>

enum { TOKEN_BYTES_MOST = 148 * 1024 };

struct cache {                        /* one of keys or values */
  int rows, pool;                     /* tensors of the plan: [T, N, D], and the pages; -1: none */
  int64_t n, d;                       /* heads, their size */
  int64_t row, row_head, row_element; /* strides of the rows */
  int64_t block, place, head;         /* strides of the pool */
  int64_t run, run_stride;            /* elements that lie together, and how far the next run is */
};
struct paged {
  struct cache k, v;
  int slots, table, lens, offsets; /* scatter: slots; gather: the others */
  bool cumulative;
  int64_t tokens, blocks, block_tokens, batch, cols;
};

enum form { NORM, NHSD, NZ };

static int64_t elements_of_32_bytes(int type) { return 256 / emu_element_bits(type); }

/* The pool's shape; heads and their size are known from the rows. */
static void pool(struct emu_plan *p, struct cache *c, enum form form, int64_t *blocks, int64_t *block_tokens) {
  if (!p->ok) return;
  const struct emu_tensor *t = &p->t[c->pool];
  int64_t e = elements_of_32_bytes(t->type);
  bool right = false;
  c->run = c->d, c->run_stride = 0;
  if (form == NORM && t->n_dims == 4 && t->dims[2] == c->n && t->dims[3] == c->d) {
    right = c->d == 1 || t->strides[3] == 1;
    *block_tokens = t->dims[1];
    c->block = t->strides[0], c->place = t->strides[1], c->head = t->strides[2];
  } else if (form == NHSD && t->n_dims == 4 && t->dims[1] == c->n && t->dims[3] == c->d) {
    right = c->d == 1 || t->strides[3] == 1;
    *block_tokens = t->dims[2];
    c->block = t->strides[0], c->head = t->strides[1], c->place = t->strides[2];
  } else if (form == NZ && (t->n_dims == 4 || t->n_dims == 5) && t->dims[t->n_dims - 1] == e && c->d % e == 0) {
    int s = t->n_dims - 2;
    right = t->contiguous && (t->n_dims == 4 ? t->dims[1] == c->n * c->d / e : t->dims[1] == c->n && t->dims[2] == c->d / e);
    *block_tokens = t->dims[s];
    c->block = t->strides[0], c->place = e, c->head = c->d / e * *block_tokens * e;
    c->run = e, c->run_stride = *block_tokens * e;
  }
  *blocks = t->dims[0];
  emu_check(p, right && *blocks >= 1 && *block_tokens >= 1, EMU_PARAM_INVALID,
            "%s is %s, which does not hold tokens of [%lld,%lld] in pages", t->name, emu_text(t), (long long)c->n, (long long)c->d);
}

static const int cache_types[] = {EMU_FLOAT16, EMU_BF16, EMU_INT8, EMU_UNDEFINED};

/* Rows [T, N, D] of the pool's type. */
static void rows_of(struct emu_plan *p, struct cache *c) {
  if (!p->ok) return;
  const struct emu_tensor *t = &p->t[c->rows];
  emu_types(p, c->rows, cache_types);
  emu_check(p, t->type == p->t[c->pool].type, EMU_PARAM_INVALID, "%s is %s, its cache is %s: one type", t->name, emu_text(t),
            emu_text(&p->t[c->pool]));
  emu_check(p, t->n_dims == 3 && t->dims[1] >= 1 && t->dims[2] >= 1, EMU_PARAM_INVALID, "%s is %s: [T,N,D]", t->name, emu_text(t));
  c->n = t->dims[1], c->d = t->dims[2];
  c->row = t->strides[0], c->row_head = t->strides[1], c->row_element = t->strides[2];
}

/* One token between rows and pool. */
static void copy_token(const struct emu_tensor *rows, const struct emu_tensor *cache, const struct cache *c, int64_t row, int64_t slot,
                       int64_t block_tokens, bool out) {
  size_t size = (size_t)emu_element_bits(rows->type) / 8;
  int64_t together = c->row_element == 1 ? c->run : 1;
  for (int64_t h = 0; h < c->n; h++)
    for (int64_t i = 0; i < c->d; i += together) {
      int64_t at = slot / block_tokens * c->block + slot % block_tokens * c->place + h * c->head + i / c->run * c->run_stride + i % c->run;
      char *page = cache->data + (size_t)at * size;
      char *mine = rows->data + (size_t)(row * c->row + h * c->row_head + i * c->row_element) * size;
      memcpy(out ? mine : page, out ? page : mine, (size_t)together * size);
    }
}

/* ---- scatter ------------------------------------------------------------------------------------------------------------------ */

static int by_value(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

static void scatter_run(struct emu_call *c, const void *ctx) {
  const struct paged *s = ctx;
  int64_t all = s->blocks * s->block_tokens;
  int64_t *slot = emu_scratch(c, (size_t)(s->tokens + 1) * sizeof *slot), *sorted = emu_scratch(c, (size_t)(s->tokens + 1) * sizeof *slot);
  for (int64_t i = 0; i < s->tokens; i++) {
    slot[i] = sorted[i] = emu_get_int(&c->t[s->slots], i);
    if (slot[i] >= 0 && slot[i] < all) continue;
    emu_fault(c, EMU_VECTOR_CORE_EXCEPTION, "slotMapping [%lld] is %lld, the pool has %lld slots%s", (long long)i, (long long)slot[i],
              (long long)all,
              slot[i] == -1 ? " (memory that was never written, or a row that is to be left out: give it a slot of its own)" : "");
    return;
  }
  qsort(sorted, (size_t)s->tokens, sizeof *sorted, by_value);
  for (int64_t i = 1; i < s->tokens; i++) {
    if (sorted[i] != sorted[i - 1]) continue;
    emu_fault(c, EMU_VECTOR_CORE_EXCEPTION, "slotMapping holds %lld twice: which row is stored is not specified", (long long)sorted[i]);
    return;
  }
  for (int64_t i = 0; i < s->tokens; i++) {
    copy_token(&c->t[s->k.rows], &c->t[s->k.pool], &s->k, i, slot[i], s->block_tokens, false);
    if (s->v.rows >= 0) copy_token(&c->t[s->v.rows], &c->t[s->v.pool], &s->v, i, slot[i], s->block_tokens, false);
  }
}

static bool is_mode(const char *mode, const char *name) { return mode && strcmp(mode, name) == 0; }

static enum form scatter_form(struct emu_plan *p, const char *cache_mode, const char *scatter_mode) {
  bool norm = !cache_mode || is_mode(cache_mode, "Norm") || !*cache_mode, nz = is_mode(cache_mode, "PA_NZ");
  bool none = !scatter_mode || is_mode(scatter_mode, "None") || !*scatter_mode, nhsd = is_mode(scatter_mode, "NHSD");
  emu_check(p, norm || nz, EMU_PARAM_INVALID, "cacheMode \"%s\": Norm or PA_NZ", cache_mode ? cache_mode : "");
  emu_check(p, none || (nhsd && norm), EMU_PARAM_INVALID, "scatterMode \"%s\": None, or NHSD with Norm", scatter_mode ? scatter_mode : "");
  emu_check(p, !nhsd || emu_cann() >= 900, EMU_PARAM_INVALID, "scatterMode NHSD needs 9.x");
  return nz ? NZ : nhsd ? NHSD : NORM;
}

static void nhsd_rules(struct emu_plan *p, const struct paged *s) {
  if (!p->ok) return;
  int64_t e = elements_of_32_bytes(p->t[s->k.rows].type), bytes = 32 / e;
  emu_check(p, s->k.d % e == 0 && s->v.d % e == 0, EMU_TILING, "heads of %lld and %lld: whole 32 bytes", (long long)s->k.d,
            (long long)s->v.d);
  emu_check(p, s->k.n < 4095, EMU_TILING, "%lld heads: fewer than 4095", (long long)s->k.n);
  emu_check(p, (s->k.n * s->k.d + s->v.n * s->v.d) * bytes < 196608, EMU_TILING, "a token's keys and values take 196608 bytes or more");
}

static void scatter_values(struct emu_plan *p, struct paged *s, enum form form) {
  int64_t blocks = 0, tokens = 0;
  rows_of(p, &s->v);
  pool(p, &s->v, form, &blocks, &tokens);
  if (!p->ok) return;
  emu_check(p, s->k.n == s->v.n && p->t[s->k.rows].dims[0] == p->t[s->v.rows].dims[0], EMU_PARAM_INVALID,
            "key is %s, value %s: T and N are the same", emu_text(&p->t[s->k.rows]), emu_text(&p->t[s->v.rows]));
  emu_check(p, s->blocks == blocks && s->block_tokens == tokens, EMU_PARAM_INVALID,
            "the caches differ in blocks: %lld of %lld, %lld of %lld", (long long)s->blocks, (long long)s->block_tokens, (long long)blocks,
            (long long)tokens);
  if (form == NHSD) nhsd_rules(p, s);
}

EMU_OPERATOR(ScatterPaKvCache, const aclTensor *key, aclTensor *keyCacheRef, const aclTensor *slotMapping, const aclTensor *value,
             aclTensor *valueCacheRef, const aclTensor *compressLensOptional, const aclTensor *compressSeqOffsetOptional,
             const aclTensor *seqLensOptional, char *cacheModeOptional, char *scatterModeOptional, const aclIntArray *stridesOptional,
             const aclIntArray *offsetsOptional) {
  EMU_PLAN(p, "ScatterPaKvCache");
  struct paged s = {.table = -1, .lens = -1, .offsets = -1};
  (void)stridesOptional; /* without effect except with scatterMode Nct */
  (void)offsetsOptional;
  emu_needs_chip(p, emu_chip() != EMU_310P);
  emu_absent(p, "compressLens", compressLensOptional);
  emu_absent(p, "compressSeqOffset", compressSeqOffsetOptional);
  emu_absent(p, "seqLens", seqLensOptional);
  enum form form = scatter_form(p, cacheModeOptional, scatterModeOptional);
  s.k.rows = emu_reads(p, "key", key);
  s.slots = emu_reads(p, "slotMapping", slotMapping);
  s.v.rows = emu_reads(p, "value", value);
  s.k.pool = emu_updates(p, "keyCache", keyCacheRef);
  s.v.pool = emu_updates(p, "valueCache", valueCacheRef);
  EMU_TYPES(p, s.slots, EMU_INT32, EMU_INT64);
  rows_of(p, &s.k);
  pool(p, &s.k, form, &s.blocks, &s.block_tokens);
  if (p->ok && p->t[s.v.rows].n == 0 && p->t[s.v.pool].n == 0) { /* keys alone */
    emu_check(p, form == NORM, EMU_PARAM_INVALID, "without values: cacheMode Norm");
    s.v.rows = -1;
  } else {
    scatter_values(p, &s, form);
  }
  s.tokens = p->ok ? p->t[s.k.rows].dims[0] : 0;
  emu_check(p, p->ok && emu_is_shape(&p->t[s.slots], 1, s.tokens), EMU_PARAM_INVALID, "slotMapping is %s: [T = %lld]",
            emu_text(&p->t[p->ok ? s.slots : 0]), (long long)s.tokens);
  return emu_finish(p, scatter_run, &s, sizeof s, 0);
}

/* ---- gather ------------------------------------------------------------------------------------------------------------------- */

/* Tokens of sequence b, or -1 after a fault. */
static int64_t gather_length(struct emu_call *c, const struct paged *s, int64_t b, int64_t done) {
  const struct emu_tensor *lens = &c->t[s->lens];
  int64_t first = s->cumulative ? emu_get_int(lens, b) : 0, len = emu_get_int(lens, s->cumulative ? b + 1 : b) - first;
  bool begins = !s->cumulative || first == done;
  if (len >= 0 && begins && done + len <= s->tokens) return len;
  emu_fault(c, EMU_VECTOR_CORE_EXCEPTION, "seqLens: sequence %lld begins at %lld with %lld tokens, %lld of %lld are behind", (long long)b,
            (long long)first, (long long)len, (long long)done, (long long)s->tokens);
  return -1;
}

static void gather_run(struct emu_call *c, const void *ctx) {
  const struct paged *s = ctx;
  int64_t done = 0;
  for (int64_t b = 0; b < s->batch; b++) {
    int64_t len = gather_length(c, s, b, done), from = s->offsets >= 0 ? emu_get_int(&c->t[s->offsets], b) / s->block_tokens : 0;
    if (len < 0) return;
    for (int64_t i = 0; i < len; i++) {
      int64_t col = from + i / s->block_tokens;
      int64_t block = col >= 0 && col < s->cols ? emu_get_int(&c->t[s->table], b * s->cols + col) : -1;
      if (block < 0 || block >= s->blocks) {
        emu_fault(c, EMU_VECTOR_CORE_EXCEPTION, "blockTables [%lld,%lld]: block %lld (the table has %lld columns, the pool %lld blocks)",
                  (long long)b, (long long)col, (long long)block, (long long)s->cols, (long long)s->blocks);
        return;
      }
      int64_t slot = block * s->block_tokens + i % s->block_tokens;
      copy_token(&c->t[s->k.rows], &c->t[s->k.pool], &s->k, done + i, slot, s->block_tokens, true);
      copy_token(&c->t[s->v.rows], &c->t[s->v.pool], &s->v, done + i, slot, s->block_tokens, true);
    }
    done += len;
  }
  if (done != s->tokens)
    emu_fault(c, EMU_VECTOR_CORE_EXCEPTION, "seqLens come to %lld tokens, key has %lld", (long long)done, (long long)s->tokens);
}

/* Of PA_NZ the rows are [T, N * D], which says nothing about heads: one head then. */
static void gather_rows(struct emu_plan *p, struct cache *c, bool nz) {
  if (!p->ok) return;
  const struct emu_tensor *t = &p->t[c->rows];
  if (!nz) {
    rows_of(p, c);
  } else {
    emu_types(p, c->rows, cache_types);
    emu_check(p, t->type == p->t[c->pool].type, EMU_PARAM_INVALID, "%s is %s, its cache is %s: one type", t->name, emu_text(t),
              emu_text(&p->t[c->pool]));
    emu_check(p, t->n_dims == 2, EMU_PARAM_INVALID, "%s is %s: [T, N * D] with PA_NZ", t->name, emu_text(t));
    c->n = 1, c->d = t->dims[1];
    c->row = t->strides[0], c->row_element = t->strides[1];
  }
  emu_needs_contiguous(p, c->rows, EMU_PARAM_INVALID);
  emu_needs_contiguous(p, c->pool, EMU_PARAM_INVALID);
  if (!p->ok) return;
  int64_t bytes = c->n * c->d * emu_element_bits(t->type) / 8;
  emu_check(p, bytes <= TOKEN_BYTES_MOST, EMU_TILING, "%s: a token has %lld bytes, at most %d", t->name, (long long)bytes,
            TOKEN_BYTES_MOST);
}

EMU_OPERATOR(GatherPaKvCache, const aclTensor *keyCache, const aclTensor *valueCache, const aclTensor *blockTables,
             const aclTensor *seqLens, aclTensor *keyRef, aclTensor *valueRef, const aclTensor *seqOffsetOptional, char *cacheMode,
             bool isSeqLensCumsum) {
  EMU_PLAN(p, "GatherPaKvCache");
  struct paged s = {.slots = -1, .offsets = -1, .cumulative = isSeqLensCumsum};
  int64_t v_blocks = 0, v_tokens = 0;
  emu_needs_chip(p, emu_chip() != EMU_310P);
  emu_check(p, cacheMode != NULL, EMU_NULLPTR, "cacheMode is NULL");
  bool nz = is_mode(cacheMode, "PA_NZ");
  emu_check(p, nz || is_mode(cacheMode, "Norm"), EMU_PARAM_INVALID, "cacheMode \"%s\": Norm or PA_NZ", cacheMode ? cacheMode : "");
  s.k.pool = emu_reads(p, "keyCache", keyCache);
  s.v.pool = emu_reads(p, "valueCache", valueCache);
  s.table = emu_reads(p, "blockTables", blockTables);
  s.lens = emu_reads(p, "seqLens", seqLens);
  s.k.rows = emu_updates(p, "key", keyRef);
  s.v.rows = emu_updates(p, "value", valueRef);
  s.offsets = emu_reads_optional(p, "seqOffset", seqOffsetOptional);
  EMU_TYPES(p, s.table, EMU_INT32); /* of these chips; a later one takes INT64 */
  emu_check(p, p->t[s.lens].type == p->t[s.table].type, EMU_PARAM_INVALID, "seqLens is %s, blockTables %s: one type",
            emu_text(&p->t[s.lens]), emu_text(&p->t[s.table]));
  emu_needs_contiguous(p, s.table, EMU_PARAM_INVALID);
  emu_needs_contiguous(p, s.lens, EMU_PARAM_INVALID);
  gather_rows(p, &s.k, nz);
  gather_rows(p, &s.v, nz);
  pool(p, &s.k, nz ? NZ : NORM, &s.blocks, &s.block_tokens);
  pool(p, &s.v, nz ? NZ : NORM, &v_blocks, &v_tokens);
  emu_check(p, s.blocks == v_blocks && s.block_tokens == v_tokens, EMU_PARAM_INVALID,
            "the caches differ in blocks: %lld of %lld, %lld of %lld", (long long)s.blocks, (long long)s.block_tokens, (long long)v_blocks,
            (long long)v_tokens);
  if (p->ok) {
    const struct emu_tensor *t = &p->t[s.table];
    emu_check(p, t->n_dims == 2, EMU_PARAM_INVALID, "blockTables is %s: [B, blocks]", emu_text(t));
    s.batch = t->dims[0], s.cols = t->n_dims == 2 ? t->dims[1] : 0;
    s.tokens = p->t[s.k.rows].dims[0];
    emu_check(p, emu_is_shape(&p->t[s.lens], 1, s.batch + (isSeqLensCumsum ? 1 : 0)), EMU_PARAM_INVALID, "seqLens is %s: [B = %lld%s]",
              emu_text(&p->t[s.lens]), (long long)s.batch, isSeqLensCumsum ? " + 1" : "");
    emu_check(p, p->t[s.v.rows].dims[0] == s.tokens, EMU_PARAM_INVALID, "key has %lld tokens, value %lld", (long long)s.tokens,
              (long long)p->t[s.v.rows].dims[0]);
    emu_check(p, s.offsets < 0 || (p->t[s.offsets].type == p->t[s.table].type && emu_is_shape(&p->t[s.offsets], 1, s.batch)),
              EMU_PARAM_INVALID, "seqOffset: [B] of the type of blockTables");
  }
  return emu_finish(p, gather_run, &s, sizeof s, 0);
}
