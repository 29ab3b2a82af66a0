/* attn_fia.c — FusedInferAttentionScore V2, V3, V4: which combinations the tiler of a chip and a CANN takes.
 *
 * Three routes: decode (BSH, BSND, BNSD with one query for each sequence: sparseMode, preTokens and nextTokens have no effect, a mask is a full
 * one), prompt (more queries), packed (TND, NTD). Not done here, and so refused: quantised keys, rope tensors, sinks, prefixes, left padding, trees.
 */
#include "acl_emu/attn_fused.h"

#include <string.h>

struct layout {
  const char *name, *in, *out; /* letters */
  int since;                   /* version of the operator */
  bool rope;                   /* for calls with rope tensors alone */
};
static const struct layout layouts[] = {
    {"BSH", "BSH", "BSH", 2, false},         {"BSND", "BSND", "BSND", 2, false},   {"BNSD", "BNSD", "BNSD", 2, false},
    {"BNSD_BSND", "BNSD", "BSND", 2, false}, {"BSH_NBSD", "BSH", "NBSD", 3, true}, {"BSND_NBSD", "BSND", "NBSD", 3, true},
    {"BNSD_NBSD", "BNSD", "NBSD", 3, true},  {"TND", "TND", "TND", 3, false},      {"TND_NTD", "TND", "NTD", 3, true},
    {"NTD_TND", "NTD", "TND", 3, false},     {"NTD", "NTD", "NTD", 4, false},      {"BSH_BNSD", "BSH", "BNSD", 4, false},
    {"BSND_BNSD", "BSND", "BNSD", 4, false},
};

struct args { /* of V4; what older ones lack is NULL or 0 */
  int version;
  const aclTensor *query;
  const aclTensorList *key, *value;
  const aclTensor *shift, *mask;
  const aclIntArray *q_lens, *kv_lens;
  const aclTensor *table;
  int64_t heads;
  double scale;
  int64_t pre, next;
  const char *layout;
  int64_t kv_heads, sparse, precise, block, query_quant;
  bool lse_wanted;
  const aclTensor *out, *lse;
};

static const struct layout *find_layout(struct emu_plan *p, const struct args *x) {
  if (!emu_check(p, x->layout != NULL, EMU_NULLPTR, "inputLayout is NULL")) return &layouts[0];
  for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
    const struct layout *l = &layouts[i];
    if (strcmp(l->name, x->layout) != 0) continue;
    emu_check(p, l->since <= x->version, EMU_TILING, "inputLayout %s is not one of V%d, but of V%d", l->name, x->version, l->since);
    emu_check(p, !l->rope, EMU_TILING, "inputLayout %s is for calls with queryRope and keyRope", l->name);
    return l;
  }
  emu_refuse(p, EMU_TILING, "inputLayout \"%s\" is unknown", x->layout);
  return &layouts[0];
}

/* ---- packed ------------------------------------------------------------------------------------------------------------------- */

static void packed_old(const struct fused *f, const struct args *x) { /* before 9.0 */
  struct emu_plan *p = f->p;
  bool grouped = f->a.n_q != f->a.n_kv, bf16 = f->type == EMU_BF16, older = emu_cann() < 805;
  bool equal = f->d == f->d_v && (f->d == 128 || f->d == 192 || (f->d == 64 && !older));
  emu_check(p, bf16 || (grouped && !older), EMU_TILING, "When layout is %s, query must be BF16%s", x->layout,
            older ? "" : " (or FLOAT16 with fewer key heads than query heads)");
  emu_check(p, equal || (f->d == 192 && f->d_v == 128), EMU_TILING,
            "When layout is %s, queryD must be %s, found queryD %lld and valueD %lld", x->layout, older ? "192/128" : "192/128/64",
            (long long)f->d, (long long)f->d_v);
  emu_check(p, !(grouped && f->paged && f->d_v == 192), EMU_TILING, "valueD 192 is not for grouped queries with pages");
  emu_check(p, x->sparse == 0 || x->sparse == 3, EMU_TILING, "When layout is %s, sparseMode must be 0 or 3, found %lld", x->layout,
            (long long)x->sparse);
  emu_check(p, x->precise == 0 || x->precise == 1, EMU_TILING, "innerPrecise is %lld: 0 or 1", (long long)x->precise);
  emu_check(p, !f->paged || x->block == 128 || x->block == 512 || x->block == 1024, EMU_TILING,
            "When layout is %s, blockSize must be 128, 512 or 1024, found %lld", x->layout, (long long)x->block);
  emu_check(p, !f->a.nz, EMU_TILING, "pools in NZ layout need 9.x");
}

static void packed_new(const struct fused *f, const struct args *x) { /* from 9.0 on */
  struct emu_plan *p = f->p;
  bool grouped = f->a.n_q != f->a.n_kv;
  bool listed = (f->d == f->d_v && (f->d == 64 || f->d == 128)) || (f->d == 192 && f->d_v == 128);
  bool wide = !listed && grouped && f->d == f->d_v && f->d <= 256 && f->d % 16 == 0;
  emu_check(
      p, listed || wide, EMU_TILING,
      "When layout is %s, queryD must be 64, 128, 192 (valueD 128), or up to 256 with grouped queries; found queryD %lld, valueD %lld, "
      "numHeads %d, numKeyValueHeads %d",
      x->layout, (long long)f->d, (long long)f->d_v, f->a.n_q, f->a.n_kv);
  emu_check(p, x->sparse == 0 || x->sparse == 3 || x->sparse == 4, EMU_TILING,
            "When layout is %s, sparseMode must be 0, 3 or 4, found %lld", x->layout, (long long)x->sparse);
  int64_t most = listed && f->type == EMU_FLOAT16 ? 1 : 0;
  emu_check(p, x->precise >= 0 && x->precise <= most, EMU_TILING, "innerPrecise is %lld: at most %lld for %s and heads of %lld",
            (long long)x->precise, (long long)most, emu_type_name(f->type), (long long)f->d);
  emu_check(p, !f->paged || (x->block % 16 == 0 && x->block <= (wide ? 128 : 1024)), EMU_TILING,
            "blockSize is %lld: a multiple of 16, at most %d for heads of %lld", (long long)x->block, wide ? 128 : 1024, (long long)f->d);
  emu_check(p, !(wide && f->heads_outside), EMU_TILING, "pools [blocks, N, block, D] are not for heads of %lld", (long long)f->d);
}

static void packed_lengths(struct fused *f, const struct args *x) {
  struct emu_plan *p = f->p;
  struct attn_problem *a = &f->a;
  int64_t n = 0, n_kv = 0;
  const int64_t *q = emu_ints_optional(p, "actualSeqLengths", x->q_lens, &n);
  const int64_t *kv = emu_ints_optional(p, "actualSeqLengthsKv", x->kv_lens, &n_kv);
  emu_check(p, q && kv, EMU_TILING, "When layout is %s, actualSeqLengths and actualSeqLengthsKv must be there", x->layout);
  emu_check(p, n >= 1 && n <= 4096, EMU_TILING, "actualSeqLengths has %lld entries: 1 to 4096", (long long)n);
  emu_check(p, n == n_kv, EMU_TILING, "actualSeqLengths has %lld entries, actualSeqLengthsKv %lld", (long long)n, (long long)n_kv);
  fused_set_batch(f, p->ok ? n : 0);
  if (!p->ok) return;
  attn_check_cumulative(p, "actualSeqLengths", q, n, f->rows, f->q_lens);
  fused_keys(f, x->key, x->value, x->table != NULL);
  if (x->table) {
    fused_pages(f, x->table, x->block);
    if (p->ok) fused_lengths(f, "actualSeqLengthsKv", x->kv_lens, f->kv_most, NULL, f->kv_lens);
  } else if (p->ok) {
    attn_check_cumulative(p, "actualSeqLengthsKv", kv, n, f->kv_most[0], f->kv_lens);
  }
  emu_check(p, f->rows <= 1048576, EMU_TILING, "T is %lld: at most 1048576", (long long)f->rows);
  if (!p->ok) return;
  if (emu_cann() < 900) packed_old(f, x);
  else packed_new(f, x);
  emu_check(p, x->sparse != 0 || !x->mask, EMU_TILING, "When layout is %s, sparseMode 0 takes no attenMask", x->layout);
  a->uniform = emu_defect(EMU_DEFECT_UNIFORM) && x->sparse == 0 && f->type == EMU_FLOAT16;
}

/* ---- BSH, BSND, BNSD ---------------------------------------------------------------------------------------------------------- */

static void pool_layout(const struct fused *f, const struct args *x) {
  struct emu_plan *p = f->p;
  bool crosses = emu_cann() >= 900 && f->a.n_q != f->a.n_kv, outside = strcmp(f->in, "BNSD") == 0;
  emu_check(p, !f->heads_outside || outside || crosses, EMU_TILING,
            "With inputLayout %s pools are [blocks, block, N*D]; [blocks, N, block, D] goes with BNSD and TND", x->layout);
  emu_check(p, !f->a.nz, EMU_TILING, "pools in NZ layout are for TND");
}

static void batched_keys(struct fused *f, const struct args *x) {
  struct emu_plan *p = f->p;
  fused_keys(f, x->key, x->value, x->table != NULL);
  if (x->table) {
    fused_pages(f, x->table, x->block);
    pool_layout(f, x);
  }
  emu_check(p, f->d <= 512 && f->d % 16 == 0, EMU_TILING, "heads of %lld: at most 512 and a multiple of 16", (long long)f->d);
  emu_check(p, f->batch <= 65536, EMU_TILING, "B is %lld: at most 65536", (long long)f->batch);
  bool wide = strcmp(f->in, "BNSD") != 0;
  emu_check(p, !wide || (int64_t)f->a.n_q * f->d < 65535, EMU_TILING, "N * D is %lld: less than 65535 with inputLayout %s",
            (long long)f->a.n_q * f->d, x->layout);
  if (p->ok) fused_lengths(f, "actualSeqLengthsKv", x->kv_lens, f->kv_most, x->table ? NULL : f->kv_most, f->kv_lens);
}

static void decode(struct fused *f, const struct args *x) {
  struct emu_plan *p = f->p;
  f->single = true;
  batched_keys(f, x);
  for (int64_t b = 0; p->ok && b < f->batch; b++) f->q_lens[b] = 1; /* actualSeqLengths has no effect */
  emu_check(p, x->precise == 0 || x->precise == 1, EMU_TILING, "innerPrecise is %lld: with one query 0 or 1", (long long)x->precise);
  emu_check(p, !f->paged || (x->block % 16 == 0 && x->block <= 512), EMU_TILING, "blockSize is %lld: a multiple of 16, at most 512",
            (long long)x->block);
  fused_mask(f, x->mask, false);
  f->a.sees = x->mask ? ATTN_FULL : ATTN_ALL;
  if (x->mask && f->paged && emu_defect(EMU_DEFECT_MASK_512)) f->a.mask_from = 512;
  f->a.masked_row = ATTN_EMPTY_NAN;
}

static void band_fits(const struct fused *f, const struct args *x) {
  struct emu_plan *p = f->p;
  emu_check(p, x->pre + x->next >= 0, EMU_TILING, "preTokens %lld + nextTokens %lld is below 0", (long long)x->pre, (long long)x->next);
  for (int64_t b = 0; p->ok && b < f->batch; b++)
    emu_check(p, x->pre >= -f->q_lens[b] && x->next >= -f->kv_lens[b], EMU_TILING,
              "preTokens %lld and nextTokens %lld: at least -%lld and -%lld for sequence %lld", (long long)x->pre, (long long)x->next,
              (long long)f->q_lens[b], (long long)f->kv_lens[b], (long long)b);
}

/* Sparse modes of calls with more than one query, and of packed ones. */
static void sparse(struct fused *f, const struct args *x) {
  struct emu_plan *p = f->p;
  struct attn_problem *a = &f->a;
  bool compressed = x->sparse >= 2;
  emu_check(p, x->sparse >= 0 && x->sparse <= 4, EMU_TILING, "sparseMode is %lld: 0 to 4", (long long)x->sparse);
  emu_check(p, x->sparse == 0 || x->mask, EMU_TILING, "sparseMode %lld needs an attenMask", (long long)x->sparse);
  fused_mask(f, x->mask, compressed);
  a->pre = x->pre, a->next = x->next;
  switch (x->sparse) {
  case 0: a->sees = x->mask ? ATTN_WITHIN : ATTN_ALL; break;
  case 1: a->sees = ATTN_FULL; break;
  case 2: a->sees = ATTN_UPPER; break;
  case 3: a->sees = ATTN_LOWER; break;
  default:
    a->sees = ATTN_BAND;
    band_fits(f, x);
    if (emu_defect(EMU_DEFECT_BAND_OFF)) a->pre--;
    break;
  }
  if (a->sees == ATTN_WITHIN)
    emu_check(p, x->pre + x->next >= 0, EMU_TILING, "preTokens %lld + nextTokens %lld is below 0", (long long)x->pre, (long long)x->next);
  a->masked_row = x->precise & 2 ? ATTN_EMPTY_ZERO : ATTN_EMPTY_NAN;
}

static void prompt(struct fused *f, const struct args *x, const struct layout *l) {
  struct emu_plan *p = f->p;
  batched_keys(f, x);
  for (int64_t b = 0; p->ok && b < f->batch; b++) f->q_lens[b] = f->rows; /* the most, and what is meant when nothing is said */
  if (p->ok) fused_lengths(f, "actualSeqLengths", x->q_lens, f->q_lens, f->q_lens, f->q_lens);
  emu_check(p, f->rows <= 20971520, EMU_TILING, "Q_S is %lld: at most 20971520", (long long)f->rows);
  emu_check(p, x->precise >= 0 && x->precise <= 3, EMU_TILING, "innerPrecise is %lld: 0 to 3", (long long)x->precise);
  emu_check(p, !f->paged || (x->block % 128 == 0 && x->block <= (emu_cann() >= 900 ? 1024 : 512)), EMU_TILING,
            "blockSize is %lld: with several queries a multiple of 128, at most %d", (long long)x->block, emu_cann() >= 900 ? 1024 : 512);
  bool split = f->d == 192 && f->d_v == 128;
  if (strcmp(l->out, "BNSD") == 0 && strcmp(l->in, "BNSD") != 0)
    emu_check(p, split || (f->d == f->d_v && (f->d == 64 || f->d == 128)), EMU_TILING,
              "inputLayout %s: heads of 64, 128, or 192 with values of 128; found %lld and %lld", l->name, (long long)f->d,
              (long long)f->d_v);
  else emu_check(p, f->d == f->d_v, EMU_TILING, "heads of keys are %lld, of values %lld", (long long)f->d, (long long)f->d_v);
  sparse(f, x);
}

/* ---- all of them -------------------------------------------------------------------------------------------------------------- */

static aclnnStatus plan(struct emu_plan *p, const struct args *x) {
  struct fused f;
  emu_needs_chip(p, emu_chip() != EMU_310P);
  const struct layout *l = find_layout(p, x);
  fused_begin(&f, p, l->in, attn_has(l->in, 'T'));
  emu_check(p, x->query_quant == 0, EMU_TILING, "queryQuantMode is %lld without quantised tensors: 0", (long long)x->query_quant);
  fused_query(&f, x->query, x->heads, x->kv_heads);
  bool plain = strcmp(l->in, l->out) == 0;
  if (!p->ok) {
  } else if (f.packed) {
    packed_lengths(&f, x);
    sparse(&f, x);
  } else if (f.rows == 1 && plain) {
    decode(&f, x);
    emu_check(p, f.d == f.d_v, EMU_TILING, "heads of keys are %lld, of values %lld", (long long)f.d, (long long)f.d_v);
  } else {
    emu_check(p, f.rows > 1 || strcmp(l->name, "BNSD_BSND") != 0, EMU_TILING, "inputLayout BNSD_BSND is for more than one query");
    prompt(&f, x, l);
  }
  if (p->ok) fused_shift(&f, x->shift);
  if (p->ok) fused_out(&f, l->out, x->out);
  if (p->ok) fused_lse(&f, x->lse_wanted, x->lse);
  f.a.scale = (float)x->scale;
  f.a.leave_empty = emu_defect(EMU_DEFECT_EMPTY_GARBAGE);
  fused_place(&f);
  return fused_finish(&f);
}

/* Arguments of all versions that this emulator refuses. */
#define REFUSE_QUANT()                                                                                                                     \
  emu_absent(p, "deqScale1", deqScale1Optional);                                                                                           \
  emu_absent(p, "quantScale1", quantScale1Optional);                                                                                       \
  emu_absent(p, "deqScale2", deqScale2Optional);                                                                                           \
  emu_absent(p, "quantScale2", quantScale2Optional);                                                                                       \
  emu_absent(p, "quantOffset2", quantOffset2Optional);                                                                                     \
  emu_absent(p, "antiquantScale", antiquantScaleOptional);                                                                                 \
  emu_absent(p, "antiquantOffset", antiquantOffsetOptional);                                                                               \
  emu_absent(p, "queryPaddingSize", queryPaddingSizeOptional);                                                                             \
  emu_absent(p, "kvPaddingSize", kvPaddingSizeOptional);                                                                                   \
  emu_absent(p, "keyAntiquantScale", keyAntiquantScaleOptional);                                                                           \
  emu_absent(p, "keyAntiquantOffset", keyAntiquantOffsetOptional);                                                                         \
  emu_absent(p, "valueAntiquantScale", valueAntiquantScaleOptional);                                                                       \
  emu_absent(p, "valueAntiquantOffset", valueAntiquantOffsetOptional);                                                                     \
  emu_absent(p, "keySharedPrefix", keySharedPrefixOptional);                                                                               \
  emu_absent(p, "valueSharedPrefix", valueSharedPrefixOptional);                                                                           \
  emu_absent(p, "actualSharedPrefixLen", actualSharedPrefixLenOptional);                                                                   \
  emu_check(p, antiquantMode == 0 && keyAntiquantMode == 0 && valueAntiquantMode == 0, EMU_TILING,                                         \
            "antiquant modes without quantised keys: 0")
#define REFUSE_ROPE()                                                                                                                      \
  emu_absent(p, "queryRope", queryRopeOptional);                                                                                           \
  emu_absent(p, "keyRope", keyRopeOptional);                                                                                               \
  emu_absent(p, "keyRopeAntiquantScale", keyRopeAntiquantScaleOptional)
#define ARGS(v, quant)                                                                                                                     \
  {                                                                                                                                        \
    .version = v, .query = query, .key = key, .value = value, .shift = pseShiftOptional, .mask = attenMaskOptional,                        \
    .q_lens = actualSeqLengthsOptional, .kv_lens = actualSeqLengthsKvOptional, .table = blockTableOptional, .heads = numHeads,             \
    .scale = scaleValue, .pre = preTokens, .next = nextTokens, .layout = inputLayout, .kv_heads = numKeyValueHeads, .sparse = sparseMode,  \
    .precise = innerPrecise, .block = blockSize, .query_quant = quant, .lse_wanted = softmaxLseFlag, .out = attentionOut,                  \
    .lse = softmaxLse                                                                                                                      \
  }

EMU_OPERATOR(FusedInferAttentionScoreV2, const aclTensor *query, const aclTensorList *key, const aclTensorList *value,
             const aclTensor *pseShiftOptional, const aclTensor *attenMaskOptional, const aclIntArray *actualSeqLengthsOptional,
             const aclIntArray *actualSeqLengthsKvOptional, const aclTensor *deqScale1Optional, const aclTensor *quantScale1Optional,
             const aclTensor *deqScale2Optional, const aclTensor *quantScale2Optional, const aclTensor *quantOffset2Optional,
             const aclTensor *antiquantScaleOptional, const aclTensor *antiquantOffsetOptional, const aclTensor *blockTableOptional,
             const aclTensor *queryPaddingSizeOptional, const aclTensor *kvPaddingSizeOptional, const aclTensor *keyAntiquantScaleOptional,
             const aclTensor *keyAntiquantOffsetOptional, const aclTensor *valueAntiquantScaleOptional,
             const aclTensor *valueAntiquantOffsetOptional, const aclTensor *keySharedPrefixOptional,
             const aclTensor *valueSharedPrefixOptional, const aclIntArray *actualSharedPrefixLenOptional, int64_t numHeads,
             double scaleValue, int64_t preTokens, int64_t nextTokens, char *inputLayout, int64_t numKeyValueHeads, int64_t sparseMode,
             int64_t innerPrecise, int64_t blockSize, int64_t antiquantMode, bool softmaxLseFlag, int64_t keyAntiquantMode,
             int64_t valueAntiquantMode, const aclTensor *attentionOut, const aclTensor *softmaxLse) {
  EMU_PLAN(p, "FusedInferAttentionScoreV2");
  REFUSE_QUANT();
  struct args x = ARGS(2, 0);
  return plan(p, &x);
}

EMU_OPERATOR(FusedInferAttentionScoreV3, const aclTensor *query, const aclTensorList *key, const aclTensorList *value,
             const aclTensor *pseShiftOptional, const aclTensor *attenMaskOptional, const aclIntArray *actualSeqLengthsOptional,
             const aclIntArray *actualSeqLengthsKvOptional, const aclTensor *deqScale1Optional, const aclTensor *quantScale1Optional,
             const aclTensor *deqScale2Optional, const aclTensor *quantScale2Optional, const aclTensor *quantOffset2Optional,
             const aclTensor *antiquantScaleOptional, const aclTensor *antiquantOffsetOptional, const aclTensor *blockTableOptional,
             const aclTensor *queryPaddingSizeOptional, const aclTensor *kvPaddingSizeOptional, const aclTensor *keyAntiquantScaleOptional,
             const aclTensor *keyAntiquantOffsetOptional, const aclTensor *valueAntiquantScaleOptional,
             const aclTensor *valueAntiquantOffsetOptional, const aclTensor *keySharedPrefixOptional,
             const aclTensor *valueSharedPrefixOptional, const aclIntArray *actualSharedPrefixLenOptional,
             const aclTensor *queryRopeOptional, const aclTensor *keyRopeOptional, const aclTensor *keyRopeAntiquantScaleOptional,
             int64_t numHeads, double scaleValue, int64_t preTokens, int64_t nextTokens, char *inputLayout, int64_t numKeyValueHeads,
             int64_t sparseMode, int64_t innerPrecise, int64_t blockSize, int64_t antiquantMode, bool softmaxLseFlag,
             int64_t keyAntiquantMode, int64_t valueAntiquantMode, const aclTensor *attentionOut, const aclTensor *softmaxLse) {
  EMU_PLAN(p, "FusedInferAttentionScoreV3");
  REFUSE_QUANT();
  REFUSE_ROPE();
  struct args x = ARGS(3, 0);
  return plan(p, &x);
}

EMU_OPERATOR(FusedInferAttentionScoreV4, const aclTensor *query, const aclTensorList *key, const aclTensorList *value,
             const aclTensor *pseShiftOptional, const aclTensor *attenMaskOptional, const aclIntArray *actualSeqLengthsOptional,
             const aclIntArray *actualSeqLengthsKvOptional, const aclTensor *deqScale1Optional, const aclTensor *quantScale1Optional,
             const aclTensor *deqScale2Optional, const aclTensor *quantScale2Optional, const aclTensor *quantOffset2Optional,
             const aclTensor *antiquantScaleOptional, const aclTensor *antiquantOffsetOptional, const aclTensor *blockTableOptional,
             const aclTensor *queryPaddingSizeOptional, const aclTensor *kvPaddingSizeOptional, const aclTensor *keyAntiquantScaleOptional,
             const aclTensor *keyAntiquantOffsetOptional, const aclTensor *valueAntiquantScaleOptional,
             const aclTensor *valueAntiquantOffsetOptional, const aclTensor *keySharedPrefixOptional,
             const aclTensor *valueSharedPrefixOptional, const aclIntArray *actualSharedPrefixLenOptional,
             const aclTensor *queryRopeOptional, const aclTensor *keyRopeOptional, const aclTensor *keyRopeAntiquantScaleOptional,
             const aclTensor *dequantScaleQueryOptional, const aclTensor *learnableSinkOptional, int64_t numHeads, double scaleValue,
             int64_t preTokens, int64_t nextTokens, char *inputLayout, int64_t numKeyValueHeads, int64_t sparseMode, int64_t innerPrecise,
             int64_t blockSize, int64_t antiquantMode, bool softmaxLseFlag, int64_t keyAntiquantMode, int64_t valueAntiquantMode,
             int64_t queryQuantMode, const aclTensor *attentionOut, const aclTensor *softmaxLse) {
  EMU_PLAN(p, "FusedInferAttentionScoreV4");
  REFUSE_QUANT();
  REFUSE_ROPE();
  emu_absent(p, "dequantScaleQuery", dequantScaleQueryOptional);
  emu_absent(p, "learnableSink", learnableSinkOptional);
  struct args x = ARGS(4, queryQuantMode);
  return plan(p, &x);
}
