/* attn_incre.c — IncreFlashAttentionV4: one query for each sequence. */
#include "acl_emu/attn_fused.h"

#include <string.h>

static void rules_310p(struct fused *f, int64_t n_kv_heads) {
  struct emu_plan *p = f->p;
  if (emu_chip() != EMU_310P) return;
  emu_check(p, f->type == EMU_FLOAT16, EMU_PARAM_INVALID, "this chip takes FLOAT16, query is %s", emu_type_name(f->type));
  emu_check(p, n_kv_heads == 0, EMU_TILING, "numKeyValueHeads is %lld: this chip takes 0 alone", (long long)n_kv_heads);
  emu_check(p, f->batch <= 256, EMU_TILING, "B is %lld: at most 256 on this chip", (long long)f->batch);
  for (int64_t b = 0; p->ok && b < f->batch; b++)
    emu_check(p, f->kv_most[b] <= 65536, EMU_TILING, "KV_S is %lld: at most 65536 on this chip", (long long)f->kv_most[b]);
}

EMU_OPERATOR(IncreFlashAttentionV4, const aclTensor *query, const aclTensorList *key, const aclTensorList *value, const aclTensor *pseShift,
             const aclTensor *attenMask, const aclIntArray *actualSeqLengths, const aclTensor *dequantScale1, const aclTensor *quantScale1,
             const aclTensor *dequantScale2, const aclTensor *quantScale2, const aclTensor *quantOffset2, const aclTensor *antiquantScale,
             const aclTensor *antiquantOffset, const aclTensor *blocktable, const aclTensor *kvPaddingSize, int64_t numHeads,
             double scaleValue, char *inputLayout, int64_t numKeyValueHeads, int64_t blockSize, int64_t innerPrecise,
             const aclTensor *attentionOut) {
  EMU_PLAN(p, "IncreFlashAttentionV4");
  struct fused f;
  emu_absent(p, "dequantScale1", dequantScale1);
  emu_absent(p, "quantScale1", quantScale1);
  emu_absent(p, "dequantScale2", dequantScale2);
  emu_absent(p, "quantScale2", quantScale2);
  emu_absent(p, "quantOffset2", quantOffset2);
  emu_absent(p, "antiquantScale", antiquantScale);
  emu_absent(p, "antiquantOffset", antiquantOffset);
  emu_absent(p, "kvPaddingSize", kvPaddingSize);
  emu_check(p, inputLayout != NULL, EMU_NULLPTR, "inputLayout is NULL");
  const char *in = inputLayout ? inputLayout : "BSH";
  emu_check(p, !strcmp(in, "BSH") || !strcmp(in, "BSND") || !strcmp(in, "BNSD"), EMU_TILING, "inputLayout \"%s\": BSH, BSND or BNSD", in);
  fused_begin(&f, p, p->ok ? in : "BSH", false);
  f.single = true;
  fused_query(&f, query, numHeads, numKeyValueHeads);
  emu_check(p, f.rows == 1, EMU_TILING, "query has Q_S = %lld: this operator takes 1", (long long)f.rows);
  if (p->ok) fused_keys(&f, key, value, blocktable != NULL);
  if (p->ok && blocktable) {
    fused_pages(&f, blocktable, blockSize);
    emu_check(p, blockSize % 16 == 0 && blockSize <= 512, EMU_TILING, "blockSize is %lld: a multiple of 16, at most 512",
              (long long)blockSize);
    emu_check(p, !f.heads_outside || !strcmp(in, "BNSD"), EMU_TILING, "pools [blocks, N, block, D] go with inputLayout BNSD, found %s", in);
    emu_check(p, !f.a.nz, EMU_TILING, "pools in NZ layout are not for this operator");
  }
  rules_310p(&f, numKeyValueHeads);
  emu_check(p, f.d <= 512 && f.d % 16 == 0, EMU_TILING, "heads of %lld: at most 512 and a multiple of 16", (long long)f.d);
  emu_check(p, f.d == f.d_v, EMU_TILING, "heads of keys are %lld, of values %lld", (long long)f.d, (long long)f.d_v);
  emu_check(p, innerPrecise == 0 || innerPrecise == 1, EMU_TILING, "innerPrecise is %lld: 0 or 1", (long long)innerPrecise);
  if (p->ok) fused_lengths(&f, "actualSeqLengths", actualSeqLengths, f.kv_most, blocktable ? NULL : f.kv_most, f.kv_lens);
  for (int64_t b = 0; p->ok && b < f.batch; b++) f.q_lens[b] = 1;
  if (p->ok) fused_mask(&f, attenMask, false);
  if (p->ok) fused_shift(&f, pseShift);
  if (p->ok) fused_out(&f, f.in, attentionOut);
  f.a.sees = attenMask ? ATTN_FULL : ATTN_ALL;
  f.a.masked_row = ATTN_EMPTY_NAN;
  f.a.scale = (float)scaleValue;
  if (attenMask && f.paged && emu_defect(EMU_DEFECT_MASK_512)) f.a.mask_from = 512;
  f.a.leave_empty = emu_defect(EMU_DEFECT_EMPTY_GARBAGE);
  fused_place(&f);
  return fused_finish(&f);
}
