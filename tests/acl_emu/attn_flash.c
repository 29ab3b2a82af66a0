/* attn_flash.c — FlashAttentionScore and FlashAttentionVarLenScore: the forward half of the training operators.
 *
 * No pages; heads up to 768; strided inputs. Without a mask sparseMode, preTokens and nextTokens have no effect: all keys are seen. A row that
 * sees nothing has no result. Dropout, prefixes, and sparse modes from 5 on are not done here, and refused.
 */
#include "acl_emu/attn_core.h"

#include <stdlib.h>
#include <string.h>

struct flash {
  struct emu_plan *p;
  const char *in;
  bool packed;
  int type;
  int64_t batch, rows, keys, d, d_v; /* rows, keys: S, or T */
  struct attn_seq *seq;
  struct attn_problem a;
};

static void take(struct flash *f, int slot, int64_t n_heads, struct attn_axes *at, struct attn_dims *dims) {
  struct emu_plan *p = f->p;
  if (!p->ok) return;
  const struct emu_tensor *t = &p->t[slot];
  emu_check(p, attn_view(t, f->in, n_heads, at, dims), EMU_PARAM_INVALID, "%s is %s, the layout is %s with %lld heads", t->name,
            emu_text(t), f->in, (long long)n_heads);
  emu_check(p, t->type == f->type, EMU_PARAM_INVALID, "%s is %s, query is %s: one type", t->name, emu_text(t), emu_type_name(f->type));
}

/* How many key heads H holds: as many as the heads of the query fit in. */
static int64_t kv_heads(const struct flash *f, int slot) {
  const struct emu_tensor *t = &f->p->t[slot];
  const char *h = strchr(f->in, 'H'), *n = strchr(f->in, 'N');
  if (t->n_dims != (int)strlen(f->in)) return 1;
  if (n) return t->dims[n - f->in];
  int64_t wide = h ? t->dims[h - f->in] : 1;
  return f->d > 0 && wide % f->d == 0 ? wide / f->d : 1;
}

static void inputs(struct flash *f, const aclTensor *query, const aclTensor *key, const aclTensor *value, int64_t n_heads) {
  struct emu_plan *p = f->p;
  struct attn_problem *a = &f->a;
  struct attn_dims q = {0}, k = {0}, v = {0};
  a->q = emu_reads(p, "query", query);
  a->k = emu_reads(p, "key", key);
  a->v = emu_reads(p, "value", value);
  EMU_TYPES(p, a->q, EMU_FLOAT16, EMU_BF16, EMU_FLOAT);
  f->type = p->t[a->q].type;
  emu_check(p, n_heads >= 1 && n_heads <= 256, EMU_TILING, "headNum is %lld: 1 to 256", (long long)n_heads);
  take(f, a->q, n_heads, &a->q_at, &q);
  f->d = q.d;
  int64_t n_kv = p->ok ? kv_heads(f, a->k) : 1;
  take(f, a->k, n_kv, &a->k_at, &k);
  take(f, a->v, n_kv, &a->v_at, &v);
  emu_check(p, q.n == n_heads, EMU_TILING, "query has %lld heads, headNum is %lld", (long long)q.n, (long long)n_heads);
  emu_check(p, k.n == v.n && n_kv >= 1 && n_heads % n_kv == 0, EMU_TILING, "%lld query heads, %lld of key, %lld of value",
            (long long)n_heads, (long long)k.n, (long long)v.n);
  emu_check(p, k.d == q.d && v.d <= q.d && q.d >= 1 && q.d <= 768, EMU_TILING,
            "heads of query %lld, key %lld, value %lld: the first two equal and at most 768, the third no wider", (long long)q.d,
            (long long)k.d, (long long)v.d);
  emu_check(p, q.b == k.b && k.b == v.b && k.s == v.s && k.t == v.t, EMU_TILING, "query, key and value differ in batch or length");
  f->batch = q.b, f->rows = f->packed ? q.t : q.s, f->keys = f->packed ? k.t : k.s, f->d_v = v.d;
  emu_check(p, f->rows >= 1 && f->rows <= 1048576 && f->keys >= 1 && f->keys <= 1048576, EMU_TILING, "%lld rows, %lld keys: 1 to 1048576",
            (long long)f->rows, (long long)f->keys);
  a->n_q = (int)n_heads, a->n_kv = (int)n_kv, a->d_qk = (int)q.d, a->d_v = (int)v.d;
}

static void outputs(struct flash *f, const aclTensor *max, const aclTensor *sum, const aclTensor *out) {
  struct emu_plan *p = f->p;
  struct attn_problem *a = &f->a;
  struct attn_dims o = {0};
  a->out = emu_writes(p, "attentionOut", out);
  a->max = emu_writes(p, "softmaxMax", max);
  a->sum = emu_writes(p, "softmaxSum", sum);
  EMU_TYPES(p, a->max, EMU_FLOAT);
  EMU_TYPES(p, a->sum, EMU_FLOAT);
  emu_needs_contiguous(p, a->max, EMU_PARAM_INVALID);
  emu_needs_contiguous(p, a->sum, EMU_PARAM_INVALID);
  take(f, a->out, a->n_q, &a->out_at, &o);
  emu_check(p, o.n == a->n_q && o.d == f->d_v && (f->packed ? o.t : o.s) == f->rows && (f->packed || o.b == f->batch), EMU_PARAM_INVALID,
            "attentionOut is %s: query's shape with heads of %lld", emu_text(&p->t[a->out]), (long long)f->d_v);
  if (!p->ok) return;
  const struct emu_tensor *m = &p->t[a->max];
  int64_t n = a->n_q, t = f->rows;
  emu_check(p, emu_same_shape(m, &p->t[a->sum]), EMU_PARAM_INVALID, "softmaxMax %s and softmaxSum %s differ", emu_text(m),
            emu_text(&p->t[a->sum]));
  if (f->packed) {
    bool rows_first = emu_is_shape(m, 3, t, n, (int64_t)8), heads_first = emu_is_shape(m, 3, n, t, (int64_t)8);
    emu_check(p, rows_first || heads_first, EMU_PARAM_INVALID, "softmaxMax is %s: [T,N,8] or [N,T,8]", emu_text(m));
    a->part_at = rows_first ? (struct attn_axes){.s = 8 * n, .n = 8, .d = 1} : (struct attn_axes){.n = 8 * t, .s = 8, .d = 1};
  } else {
    emu_check(p, emu_is_shape(m, 4, f->batch, n, t, (int64_t)8), EMU_PARAM_INVALID, "softmaxMax is %s: [B,N,Sq,8]", emu_text(m));
    a->part_at = (struct attn_axes){.b = 8 * n * t, .n = 8 * t, .s = 8, .d = 1};
  }
}

static void sequences(struct flash *f, const int64_t *q_lens, const int64_t *kv_lens) {
  struct attn_problem *a = &f->a;
  int64_t q = 0, kv = 0;
  f->seq = calloc((size_t)f->batch + 1, sizeof *f->seq);
  if (!f->seq) abort();
  for (int64_t b = 0; b < f->batch; b++) {
    struct attn_seq *s = &f->seq[b];
    s->rows = q_lens ? q_lens[b] : f->rows;
    s->keys = kv_lens ? kv_lens[b] : f->keys;
    s->q = b * a->q_at.b + q * a->q_at.s;
    s->out = b * a->out_at.b + q * a->out_at.s;
    s->lse = b * a->part_at.b + q * a->part_at.s;
    s->k = b * a->k_at.b + kv * a->k_at.s;
    s->v = b * a->v_at.b + kv * a->v_at.s;
    if (f->packed) q += s->rows, kv += s->keys;
  }
}

/* [Sq,Skv], [1,1,Sq,Skv], [B,1,Sq,Skv]; of packed layouts Sq and Skv are the longest. One mask for each head is refused here. */
static void full_mask(struct flash *f, int slot) {
  struct emu_plan *p = f->p;
  const struct emu_tensor *m = &p->t[slot];
  int n = m->n_dims;
  int64_t rows = 0, keys = 0;
  for (int64_t b = 0; b < f->batch; b++) {
    rows = f->seq[b].rows > rows ? f->seq[b].rows : rows;
    keys = f->seq[b].keys > keys ? f->seq[b].keys : keys;
  }
  bool right = (n == 2 || (n == 4 && m->dims[1] == 1 && (m->dims[0] == 1 || m->dims[0] == f->batch))) && m->dims[n - 2] == rows &&
               m->dims[n - 1] == keys;
  emu_check(p, right, EMU_TILING, "attenMask is %s: [Sq = %lld, Skv = %lld], [1,1,Sq,Skv] or [B,1,Sq,Skv]", emu_text(m), (long long)rows,
            (long long)keys);
  f->a.mask = slot;
  f->a.mask_at = (struct attn_axes){.b = n == 4 && m->dims[0] > 1 ? m->strides[0] : 0, .s = m->strides[n - 2], .d = m->strides[n - 1]};
}

static void masks(struct flash *f, const aclTensor *mask, int64_t sparse, int64_t pre, int64_t next) {
  static const enum attn_sees sees[] = {ATTN_WITHIN, ATTN_FULL, ATTN_UPPER, ATTN_LOWER, ATTN_BAND};
  struct emu_plan *p = f->p;
  struct attn_problem *a = &f->a;
  a->sees = ATTN_ALL, a->pre = pre, a->next = next, a->masked_row = ATTN_EMPTY_FAULT;
  emu_check(p, sparse >= 0 && sparse <= 4, EMU_TILING, "sparseMode is %lld: 0 to 4 are done here", (long long)sparse);
  if (!p->ok) return;
  if (mask) {
    int slot = emu_reads(p, "attenMask", mask);
    EMU_TYPES(p, slot, EMU_BOOL, EMU_UINT8);
    if (!p->ok) return;
    a->sees = sees[sparse];
    if (sparse >= 2) {
      attn_check_compressed(p, a, slot);
      emu_needs_contiguous(p, slot, EMU_PARAM_INVALID);
    } else {
      full_mask(f, slot);
    }
    if (a->sees == ATTN_BAND || a->sees == ATTN_WITHIN)
      emu_check(p, pre + next >= 0, EMU_TILING, "preTokens %lld + nextTokens %lld is below 0", (long long)pre, (long long)next);
    if (a->sees == ATTN_BAND && emu_defect(EMU_DEFECT_BAND_OFF)) a->pre--;
  }
  for (int64_t b = 0; p->ok && b < f->batch; b++) { /* bands move evenly: the first and the last row tell */
    const struct attn_seq *s = &f->seq[b];
    int64_t lo, hi;
    for (int end = 0; end < 2 && s->rows > 0; end++) {
      int64_t i = end ? s->rows - 1 : 0;
      attn_interval(a, s, i, &lo, &hi);
      emu_check(p, lo < hi, EMU_TILING, "row %lld of sequence %lld (%lld rows, %lld keys) sees no key: there is no result for that",
                (long long)i, (long long)b, (long long)s->rows, (long long)s->keys);
    }
  }
}

static void shift(struct flash *f, const aclTensor *t_shift) {
  struct emu_plan *p = f->p;
  struct attn_problem *a = &f->a;
  if (!t_shift) return;
  int slot = emu_reads(p, "realShift", t_shift);
  const struct emu_tensor *t = &p->t[slot];
  emu_check(p, t->type == f->type, EMU_PARAM_INVALID, "realShift is %s, query is %s: one type", emu_text(t), emu_type_name(f->type));
  bool right = t->n_dims == 4 && (t->dims[0] == 1 || t->dims[0] == f->batch) && t->dims[1] == a->n_q &&
               (t->dims[2] == 1 || t->dims[2] == f->rows) && t->dims[3] == f->keys;
  emu_check(p, right, EMU_TILING, "realShift is %s: [1 or B, N, Sq or 1, Skv]", emu_text(t));
  if (!p->ok) return;
  a->shift = slot, a->shift_first = true;
  a->shift_at = (struct attn_axes){t->dims[0] > 1 ? t->strides[0] : 0, t->dims[2] > 1 ? t->strides[2] : 0, t->strides[1], t->strides[3]};
}

static aclnnStatus finish(struct flash *f, double scale, double keep) {
  struct emu_plan *p = f->p;
  emu_check(p, keep == 1.0, keep > 0 && keep < 1 ? EMU_TILING : EMU_PARAM_INVALID, "keepProb is %g: 1 is done here", keep);
  f->a.scale = (float)scale;
  f->a.n_seqs = (int)f->batch;
  if (p->ok) f->a.seq = emu_keep(p, f->seq, (size_t)f->batch * sizeof *f->seq);
  uint64_t bytes = p->ok ? 4096 + (uint64_t)(f->a.n_q * f->rows) * 64 : 0;
  free(f->seq);
  return emu_finish(p, attn_run, &f->a, sizeof f->a, bytes);
}

static void begin(struct flash *f, struct emu_plan *p, const char *in) {
  memset(f, 0, sizeof *f);
  attn_problem_init(&f->a);
  f->p = p, f->in = in, f->packed = attn_has(in, 'T');
  emu_needs_chip(p, emu_chip() != EMU_310P);
}

EMU_OPERATOR(FlashAttentionScore, const aclTensor *query, const aclTensor *key, const aclTensor *value, const aclTensor *realShiftOptional,
             const aclTensor *dropMaskOptional, const aclTensor *paddingMaskOptional, const aclTensor *attenMaskOptional,
             const aclIntArray *prefixOptional, double scaleValue, double keepProb, int64_t preTokens, int64_t nextTokens, int64_t headNum,
             char *inputLayout, int64_t innerPrecise, int64_t sparseMode, const aclTensor *softmaxMaxOut, const aclTensor *softmaxSumOut,
             const aclTensor *softmaxOutOut, const aclTensor *attentionOutOut) {
  static const char *const layouts[] = {"BSH", "SBH", "BSND", "BNSD"};
  EMU_PLAN(p, "FlashAttentionScore");
  struct flash f;
  const char *in = NULL;
  (void)softmaxOutOut; /* reserved */
  emu_check(p, inputLayout != NULL, EMU_NULLPTR, "inputLayout is NULL");
  for (int i = 0; inputLayout && i < 4; i++)
    if (strcmp(layouts[i], inputLayout) == 0) in = layouts[i];
  emu_check(p, in != NULL, EMU_TILING, "inputLayout \"%s\": BSH, SBH, BSND or BNSD", inputLayout ? inputLayout : "");
  begin(&f, p, in ? in : "BSH");
  emu_absent(p, "dropMask", dropMaskOptional);
  emu_absent(p, "paddingMask", paddingMaskOptional);
  emu_absent(p, "prefix", prefixOptional);
  emu_check(p, innerPrecise >= 0 && innerPrecise <= 2, EMU_TILING, "innerPrecise is %lld: 0 to 2", (long long)innerPrecise);
  inputs(&f, query, key, value, headNum);
  outputs(&f, softmaxMaxOut, softmaxSumOut, attentionOutOut);
  if (p->ok) sequences(&f, NULL, NULL);
  if (p->ok) masks(&f, attenMaskOptional, sparseMode, preTokens, nextTokens);
  if (p->ok) shift(&f, realShiftOptional);
  return finish(&f, scaleValue, keepProb);
}

EMU_OPERATOR(FlashAttentionVarLenScore, const aclTensor *query, const aclTensor *key, const aclTensor *value,
             const aclTensor *realShiftOptional, const aclTensor *dropMaskOptional, const aclTensor *paddingMaskOptional,
             const aclTensor *attenMaskOptional, const aclIntArray *prefixOptional, const aclIntArray *actualSeqQLenOptional,
             const aclIntArray *actualSeqKvLenOptional, double scaleValue, double keepProb, int64_t preTokens, int64_t nextTokens,
             int64_t headNum, char *inputLayout, int64_t innerPrecise, int64_t sparseMode, const aclTensor *softmaxMaxOut,
             const aclTensor *softmaxSumOut, const aclTensor *softmaxOutOut, const aclTensor *attentionOutOut) {
  EMU_PLAN(p, "FlashAttentionVarLenScore");
  struct flash f;
  int64_t n = 0, n_kv = 0;
  (void)softmaxOutOut;
  emu_check(p, inputLayout != NULL, EMU_NULLPTR, "inputLayout is NULL");
  emu_check(p, inputLayout && strcmp(inputLayout, "TND") == 0, EMU_TILING, "inputLayout \"%s\": TND", inputLayout ? inputLayout : "");
  begin(&f, p, "TND");
  emu_absent(p, "realShift", realShiftOptional);
  emu_absent(p, "dropMask", dropMaskOptional);
  emu_absent(p, "paddingMask", paddingMaskOptional);
  emu_absent(p, "prefix", prefixOptional);
  emu_check(p, innerPrecise >= 0 && innerPrecise <= 2, EMU_TILING, "innerPrecise is %lld: 0 to 2", (long long)innerPrecise);
  inputs(&f, query, key, value, headNum);
  outputs(&f, softmaxMaxOut, softmaxSumOut, attentionOutOut);
  const int64_t *q = emu_ints(p, "actualSeqQLen", actualSeqQLenOptional, &n);
  const int64_t *kv = emu_ints(p, "actualSeqKvLen", actualSeqKvLenOptional, &n_kv);
  emu_check(p, n >= 1 && n <= 2048 && n == n_kv, EMU_TILING, "%lld lengths of queries, %lld of keys: equally many, 1 to 2048", (long long)n,
            (long long)n_kv);
  if (p->ok) {
    int64_t q_lens[2048], kv_lens[2048];
    f.batch = n;
    attn_check_cumulative(p, "actualSeqQLen", q, n, f.rows, q_lens);
    attn_check_cumulative(p, "actualSeqKvLen", kv, n, f.keys, kv_lens);
    if (p->ok) sequences(&f, q_lens, kv_lens);
  }
  if (p->ok) masks(&f, attenMaskOptional, sparseMode, preTokens, nextTokens);
  return finish(&f, scaleValue, keepProb);
}
