/* attn_fused.c — see attn_fused.h. */
#include "acl_emu/attn_fused.h"

#include <stdlib.h>
#include <string.h>

bool fused_begin(struct fused *f, struct emu_plan *p, const char *in, bool packed) {
  memset(f, 0, sizeof *f);
  attn_problem_init(&f->a);
  f->p = p, f->in = in, f->packed = packed;
  return p->ok;
}

void fused_set_batch(struct fused *f, int64_t batch) {
  f->batch = batch;
  size_t n = (size_t)(batch > 0 ? batch : 1);
  f->q_lens = calloc(n, sizeof *f->q_lens);
  f->kv_lens = calloc(n, sizeof *f->kv_lens);
  f->kv_most = calloc(n, sizeof *f->kv_most);
  f->seq = calloc(n, sizeof *f->seq);
  if (!f->q_lens || !f->kv_lens || !f->kv_most || !f->seq) abort();
}

/* ---- query -------------------------------------------------------------------------------------------------------------------- */

void fused_query(struct fused *f, const aclTensor *query, int64_t n_heads, int64_t n_kv_heads) {
  struct emu_plan *p = f->p;
  struct attn_problem *a = &f->a;
  struct attn_dims dims;
  a->q = emu_reads(p, "query", query);
  EMU_TYPES(p, a->q, EMU_FLOAT16, EMU_BF16);
  emu_needs_contiguous(p, a->q, EMU_PARAM_INVALID);
  f->type = p->t[a->q].type;
  emu_check(p, n_heads >= 1 && n_heads <= 256, EMU_TILING, "numHeads is %lld: 1 to 256", (long long)n_heads);
  if (n_kv_heads == 0) n_kv_heads = n_heads;
  emu_check(p, n_kv_heads >= 1 && p->ok && n_heads % n_kv_heads == 0, EMU_TILING, "numHeads %lld is no multiple of numKeyValueHeads %lld",
            (long long)n_heads, (long long)n_kv_heads);
  emu_check(p, p->ok && n_heads / n_kv_heads <= 64, EMU_TILING, "numHeads is %lld times numKeyValueHeads: at most 64",
            (long long)(p->ok ? n_heads / n_kv_heads : 0));
  if (!p->ok) return;
  const struct emu_tensor *q = &p->t[a->q];
  if (!emu_check(p, attn_view(q, f->in, n_heads, &a->q_at, &dims), EMU_PARAM_INVALID, "query is %s, the layout is %s with %lld heads",
                 emu_text(q), f->in, (long long)n_heads))
    return;
  emu_check(p, dims.n == n_heads, EMU_TILING, "query %s has %lld heads, numHeads is %lld", emu_text(q), (long long)dims.n,
            (long long)n_heads);
  emu_check(p, dims.d >= 1 && q->n > 0, EMU_TILING, "query %s is empty", emu_text(q));
  a->n_q = (int)n_heads, a->n_kv = (int)n_kv_heads, a->d_qk = (int)dims.d;
  f->d = f->d_v = dims.d;
  f->rows = f->packed ? dims.t : dims.s;
  if (!f->packed) fused_set_batch(f, dims.b);
}

/* ---- keys and values ------------------------------------------------------------------------------------------------------------ */

static void check_kv_tensor(struct fused *f, int slot) {
  struct emu_plan *p = f->p;
  emu_check(p, p->t[slot].type == f->type, EMU_PARAM_INVALID, "%s is %s, query is %s: one type", p->t[slot].name, emu_text(&p->t[slot]),
            emu_type_name(f->type));
  emu_needs_contiguous(p, slot, EMU_PARAM_INVALID);
}

/* One dense tensor in the query's layout. */
static void dense_tensor(struct fused *f, int slot, struct attn_axes *at, struct attn_dims *dims) {
  struct emu_plan *p = f->p;
  const struct emu_tensor *t = &p->t[slot];
  if (!emu_check(p, attn_view(t, f->in, f->a.n_kv, at, dims), EMU_PARAM_INVALID, "%s is %s, the layout is %s with %d heads", t->name,
                 emu_text(t), f->in, f->a.n_kv))
    return;
  emu_check(p, dims->n == f->a.n_kv, EMU_TILING, "%s %s has %lld heads, numKeyValueHeads is %d", t->name, emu_text(t), (long long)dims->n,
            f->a.n_kv);
}

static void dense_keys(struct fused *f, int n) {
  struct emu_plan *p = f->p;
  struct attn_problem *a = &f->a;
  struct attn_dims k, v;
  f->listed = a->listed = n > 1;
  emu_check(p, n == 1 || !f->packed, EMU_TILING, "a list of %d keys is not for packed layouts", n);
  emu_check(p, n == 1 || (n == f->batch && n <= 256), EMU_TILING,
            "key is a list of %d tensors: 1, or one for each of the %lld sequences (256 at most)", n, (long long)f->batch);
  for (int i = 0; p->ok && i < n; i++) {
    dense_tensor(f, a->k + i, &a->k_at, &k);
    dense_tensor(f, a->v + i, &a->v_at, &v);
    if (!p->ok) return;
    emu_check(p, k.b == v.b && k.s == v.s && k.t == v.t, EMU_TILING, "key %s and value %s differ", emu_text(&p->t[a->k + i]),
              emu_text(&p->t[a->v + i]));
    emu_check(p, f->packed || k.b == (n == 1 ? f->batch : 1), EMU_TILING, "key %s: a batch of %lld is expected", emu_text(&p->t[a->k + i]),
              (long long)(n == 1 ? f->batch : 1));
    emu_check(p, k.d == f->d && (i == 0 || v.d == f->d_v), EMU_TILING, "key %s: heads of %lld, those of the query are %lld",
              emu_text(&p->t[a->k + i]), (long long)k.d, (long long)f->d);
    f->d_v = v.d;
    if (f->packed) {
      f->kv_most[0] = k.t; /* of all together; lengths say more */
    } else {
      for (int64_t b = n == 1 ? 0 : i; b < (n == 1 ? f->batch : i + 1); b++) f->kv_most[b] = k.s;
    }
  }
  a->d_v = (int)f->d_v;
}

void fused_keys(struct fused *f, const aclTensorList *key, const aclTensorList *value, bool paged) {
  struct emu_plan *p = f->p;
  struct attn_problem *a = &f->a;
  int n = 0, n_v = 0;
  a->k = emu_reads_list(p, "key", key, &n);
  a->v = emu_reads_list(p, "value", value, &n_v);
  emu_check(p, n == n_v, EMU_PARAM_INVALID, "key is a list of %d tensors, value of %d", n, n_v);
  for (int i = 0; p->ok && i < n; i++) {
    check_kv_tensor(f, a->k + i);
    check_kv_tensor(f, a->v + i);
  }
  if (!p->ok) return;
  f->paged = paged;
  if (paged) emu_check(p, n == 1, EMU_TILING, "key is a list of %d tensors: with blockTable it is one pool", n);
  else dense_keys(f, n);
}

/* ---- pages -------------------------------------------------------------------------------------------------------------------- */

/* One pool: strides, heads, and how many blocks. */
static bool pool_view(struct fused *f, int slot, struct attn_axes *at, int64_t *block, int64_t *n_blocks, int64_t *d) {
  const struct emu_tensor *t = &f->p->t[slot];
  int64_t n = f->a.n_kv, tokens = f->block_tokens;
  memset(at, 0, sizeof *at);
  at->d = 1;
  *n_blocks = t->dims[0], *block = t->strides[0];
  switch (t->n_dims) {
  case 3: /* [blocks, block, N * D] */
    if (t->dims[1] != tokens || t->dims[2] % n != 0) return false;
    *d = t->dims[2] / n;
    at->s = t->strides[1], at->n = *d;
    return true;
  case 4: /* [blocks, N, block, D] */
    if (t->dims[1] != n || t->dims[2] != tokens) return false;
    *d = t->dims[3];
    at->n = t->strides[1], at->s = t->strides[2];
    f->heads_outside = true;
    return true;
  case 5: /* [blocks, N, D / 16, block, 16] */
    if (t->dims[1] != n || t->dims[3] != tokens || t->dims[4] != 16) return false;
    *d = t->dims[2] * 16;
    at->n = t->strides[1], at->s = 16;
    f->a.nz = true;
    return true;
  default: return false;
  }
}

void fused_pages(struct fused *f, const aclTensor *table, int64_t block_tokens) {
  struct emu_plan *p = f->p;
  struct attn_problem *a = &f->a;
  a->table = emu_reads(p, "blockTable", table);
  EMU_TYPES(p, a->table, EMU_INT32);
  emu_needs_contiguous(p, a->table, EMU_PARAM_INVALID);
  emu_check(p, block_tokens > 0, EMU_TILING, "blockSize is %lld with a blockTable", (long long)block_tokens);
  if (!p->ok) return;
  const struct emu_tensor *t = &p->t[a->table];
  emu_check(p, t->n_dims == 2 && t->dims[0] == f->batch && t->dims[1] >= 1, EMU_TILING, "blockTable is %s: [B = %lld, blocks]", emu_text(t),
            (long long)f->batch);
  if (!p->ok) return;
  f->block_tokens = block_tokens, f->blocks_wide = t->dims[1];
  int64_t k_blocks = 0, v_blocks = 0, d = 0, d_v = 0;
  const struct emu_tensor *k = &p->t[a->k], *v = &p->t[a->v];
  bool fits = k->n_dims == v->n_dims && pool_view(f, a->k, &a->k_at, &a->k_block, &k_blocks, &d) &&
              pool_view(f, a->v, &a->v_at, &a->v_block, &v_blocks, &d_v);
  emu_check(p, fits, EMU_TILING,
            "pools %s and %s: [blocks, %lld, N*D], [blocks, N, %lld, D] or [blocks, N, D/16, %lld, 16] with N = %d (blockSize %lld)",
            emu_text(k), emu_text(v), (long long)block_tokens, (long long)block_tokens, (long long)block_tokens, a->n_kv,
            (long long)block_tokens);
  emu_check(p, k_blocks == v_blocks, EMU_TILING, "pools %s and %s differ in blocks", emu_text(k), emu_text(v));
  emu_check(p, d == f->d, EMU_TILING, "pool %s has heads of %lld, those of the query are %lld", emu_text(k), (long long)d, (long long)f->d);
  emu_check(p, k->n_dims != 3 || k->dims[2] <= 65535, EMU_TILING, "pool %s: N * D is more than 65535", emu_text(k));
  f->d_v = d_v;
  a->d_v = (int)d_v, a->table_cols = f->blocks_wide, a->block_tokens = block_tokens, a->n_blocks = k_blocks;
  for (int64_t b = 0; b < f->batch; b++) f->kv_most[b] = f->blocks_wide * block_tokens;
}

/* ---- masks -------------------------------------------------------------------------------------------------------------------- */

static int64_t align_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

/* The keys a mask or shift must cover: its last axis. Dense: as many as there are, or up to the next 32; paged: at least all that the table reaches
 * for one query, what the longest sequence's blocks hold for more. Lengths are known. */
static bool wide_enough(const struct fused *f, int64_t wide) {
  int64_t most = 0;
  for (int64_t b = 0; b < f->batch; b++) most = f->kv_most[b] > most ? f->kv_most[b] : most;
  if (!f->paged) return wide >= most && wide <= align_up(most, 32);
  if (f->single) return wide >= most;
  int64_t longest = 0;
  for (int64_t b = 0; b < f->batch; b++) longest = f->kv_lens[b] > longest ? f->kv_lens[b] : longest;
  return wide >= align_up(longest, f->block_tokens);
}

static void full_mask_single(struct fused *f, const struct emu_tensor *m, int slot) {
  bool right = m->n_dims >= 2 && m->n_dims <= 4 && m->dims[0] == f->batch;
  for (int i = 1; right && i < m->n_dims - 1; i++) right = m->dims[i] == 1;
  emu_check(f->p, right, EMU_TILING, "attenMask is %s: for one query [B = %lld, KV_S], [B,1,KV_S] or [B,1,1,KV_S]", emu_text(m),
            (long long)f->batch);
  f->a.mask_at = (struct attn_axes){.b = m->strides[0], .d = 1};
  f->a.mask = slot;
}

static void full_mask_many(struct fused *f, const struct emu_tensor *m, int slot) {
  int n = m->n_dims;
  bool right = n >= 2 && n <= 4 && m->dims[n - 2] >= f->rows && m->dims[n - 2] <= align_up(f->rows, 16);
  if (right && n >= 3) right = m->dims[0] == 1 || m->dims[0] == f->batch;
  if (right && n == 4) right = m->dims[1] == 1;
  emu_check(f->p, right, EMU_TILING, "attenMask is %s: [Q_S = %lld, KV_S], [1 or B,Q_S,KV_S] or [1 or B,1,Q_S,KV_S]", emu_text(m),
            (long long)f->rows);
  if (!f->p->ok) return;
  f->a.mask_at = (struct attn_axes){.b = n >= 3 && m->dims[0] > 1 ? m->strides[0] : 0, .s = m->strides[n - 2], .d = 1};
  f->a.mask = slot;
}

void fused_mask(struct fused *f, const aclTensor *mask, bool compressed) {
  struct emu_plan *p = f->p;
  if (!mask) return;
  int slot = emu_reads(p, "attenMask", mask);
  EMU_TYPES(p, slot, EMU_BOOL, EMU_INT8, EMU_UINT8);
  emu_needs_contiguous(p, slot, EMU_PARAM_INVALID);
  if (!p->ok) return;
  const struct emu_tensor *m = &p->t[slot];
  if (compressed) {
    attn_check_compressed(p, &f->a, slot);
    return;
  }
  if (f->single) full_mask_single(f, m, slot);
  else full_mask_many(f, m, slot);
  emu_check(p, p->ok && wide_enough(f, m->dims[m->n_dims - 1]), EMU_TILING,
            "attenMask %s: its last axis must hold all keys (with pages blocks * blockSize), without pages up to the next 32", emu_text(m));
}

void fused_shift(struct fused *f, const aclTensor *shift) {
  struct emu_plan *p = f->p;
  struct attn_problem *a = &f->a;
  if (!shift) return;
  emu_check(p, !f->packed, EMU_TILING, "pseShift is not for packed layouts");
  int slot = emu_reads(p, "pseShift", shift);
  emu_check(p, p->t[slot].type == f->type, EMU_PARAM_INVALID, "pseShift is %s, query is %s: one type", emu_text(&p->t[slot]),
            emu_type_name(f->type));
  emu_needs_contiguous(p, slot, EMU_PARAM_INVALID);
  if (!p->ok) return;
  const struct emu_tensor *t = &p->t[slot];
  bool shared = f->single && t->n_dims == 4 && t->dims[1] == 1 && a->n_q > 1 && emu_defect(EMU_DEFECT_PSE_SHARED);
  bool right = t->n_dims == 4 && (t->dims[0] == 1 || t->dims[0] == f->batch) && (shared || t->dims[1] == a->n_q) &&
               (f->single ? t->dims[2] == 1 : t->dims[2] >= f->rows);
  emu_check(p, right, EMU_TILING, "pseShift is %s: [1 or B, Q_N = %d, Q_S = %lld, KV_S]", emu_text(t), a->n_q, (long long)f->rows);
  int64_t most = 0;
  for (int64_t b = 0; b < f->batch; b++) most = f->kv_most[b] > most ? f->kv_most[b] : most;
  emu_check(p, right && t->dims[3] >= most, EMU_TILING, "pseShift is %s: its last axis must be at least %lld", emu_text(t),
            (long long)most);
  if (!p->ok) return;
  a->shift = slot, a->shift_first_head = shared, a->shift_breaks = emu_defect(EMU_DEFECT_PSE_INF);
  a->shift_at = (struct attn_axes){t->dims[0] > 1 ? t->strides[0] : 0, t->strides[2], t->strides[1], t->strides[3]};
}

/* ---- lengths ------------------------------------------------------------------------------------------------------------------ */

void fused_lengths(struct fused *f, const char *name, const aclIntArray *array, const int64_t *most, const int64_t *otherwise,
                   int64_t *out) {
  struct emu_plan *p = f->p;
  int64_t n = 0;
  const int64_t *x = emu_ints_optional(p, name, array, &n);
  if (!p->ok) return;
  if (!array) {
    emu_check(p, otherwise != NULL, EMU_TILING, "%s is missing", name);
    for (int64_t b = 0; p->ok && b < f->batch; b++) out[b] = otherwise[b];
    return;
  }
  emu_check(p, n == 1 || n >= f->batch, EMU_TILING, "%s has %lld entries: 1, or at least the batch's %lld", name, (long long)n,
            (long long)f->batch);
  for (int64_t b = 0; p->ok && b < f->batch; b++) {
    int64_t len = x[n == 1 ? 0 : b];
    emu_check(p, len >= 0 && len <= most[b], EMU_TILING, "%s: entry %lld is %lld, 0 to %lld are possible", name, (long long)b,
              (long long)len, (long long)most[b]);
    out[b] = len;
  }
}

/* ---- outputs ------------------------------------------------------------------------------------------------------------------ */

void fused_out(struct fused *f, const char *letters, const aclTensor *out) {
  struct emu_plan *p = f->p;
  struct attn_problem *a = &f->a;
  struct attn_dims dims;
  a->out = emu_writes(p, "attentionOut", out);
  emu_check(p, p->t[a->out].type == f->type, EMU_PARAM_INVALID, "attentionOut is %s, query is %s: one type", emu_text(&p->t[a->out]),
            emu_type_name(f->type));
  emu_needs_contiguous(p, a->out, EMU_PARAM_INVALID);
  if (!p->ok) return;
  const struct emu_tensor *t = &p->t[a->out];
  bool right = attn_view(t, letters, a->n_q, &a->out_at, &dims) && dims.n == a->n_q && dims.d == f->d_v &&
               (f->packed ? dims.t : dims.s) == f->rows && (f->packed || dims.b == f->batch);
  emu_check(p, right, EMU_PARAM_INVALID, "attentionOut is %s: %s of B = %lld, S or T = %lld, N = %d, D = %lld", emu_text(t), letters,
            (long long)f->batch, (long long)f->rows, a->n_q, (long long)f->d_v);
}

void fused_lse(struct fused *f, bool wanted, const aclTensor *lse) {
  struct emu_plan *p = f->p;
  struct attn_problem *a = &f->a;
  if (!wanted) return; /* a tensor that is there stays as it is */
  a->lse = emu_writes(p, "softmaxLse", lse);
  EMU_TYPES(p, a->lse, EMU_FLOAT);
  emu_needs_contiguous(p, a->lse, EMU_PARAM_INVALID);
  if (!p->ok) return;
  const struct emu_tensor *t = &p->t[a->lse];
  bool right = f->packed ? emu_is_shape(t, 3, f->rows, (int64_t)a->n_q, (int64_t)1)
                         : emu_is_shape(t, 4, f->batch, (int64_t)a->n_q, f->rows, (int64_t)1);
  emu_check(p, right, EMU_PARAM_INVALID, "softmaxLse is %s: [B,N,Q_S,1], packed [T,N,1], of B = %lld, N = %d, rows = %lld", emu_text(t),
            (long long)f->batch, a->n_q, (long long)f->rows);
  a->lse_at = f->packed ? (struct attn_axes){.s = a->n_q, .n = 1} : (struct attn_axes){.b = a->n_q * f->rows, .n = f->rows, .s = 1};
}

void fused_place(struct fused *f) {
  struct attn_problem *a = &f->a;
  int64_t q = 0, kv = 0;
  for (int64_t b = 0; f->p->ok && b < f->batch; b++) {
    struct attn_seq *s = &f->seq[b];
    int64_t kb = f->listed ? 0 : b;
    s->rows = f->q_lens[b], s->keys = f->kv_lens[b];
    s->idle = f->packed ? 0 : f->rows - s->rows;
    s->q = b * a->q_at.b + q * a->q_at.s;
    s->out = b * a->out_at.b + q * a->out_at.s;
    s->lse = b * a->lse_at.b + q * a->lse_at.s;
    s->k = kb * a->k_at.b + kv * a->k_at.s;
    s->v = kb * a->v_at.b + kv * a->v_at.s;
    if (f->packed) q += s->rows, kv += s->keys;
  }
}

/* As much as flash decoding's partial results would take: longer keys are split further, as far as there are cores for it. */
static uint64_t workspace_of(const struct fused *f) {
  int64_t longest = 0, work = f->batch * f->a.n_kv, cores = 24;
  for (int64_t b = 0; b < f->batch; b++) longest = f->kv_lens[b] > longest ? f->kv_lens[b] : longest;
  int64_t splits = (longest + 511) / 512, room = cores / (work > 0 ? work : 1);
  if (splits > room) splits = room;
  if (splits < 1) splits = 1;
  return 4096 + (uint64_t)(splits * f->batch * f->a.n_q * (f->d_v + 16)) * sizeof(float);
}

aclnnStatus fused_finish(struct fused *f) {
  uint64_t bytes = f->p->ok ? workspace_of(f) : 0;
  f->a.n_seqs = (int)f->batch;
  if (f->p->ok) f->a.seq = emu_keep(f->p, f->seq, (size_t)f->batch * sizeof *f->seq);
  free(f->q_lens);
  free(f->kv_lens);
  free(f->kv_most);
  free(f->seq);
  return emu_finish(f->p, attn_run, &f->a, sizeof f->a, bytes);
}
