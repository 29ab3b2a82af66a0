/* attn_fused.h — FusedInferAttentionScore and IncreFlashAttention: what phase 1 of both does in the same way.
 *
 * Steps, in order, all sticky (after the first refusal they do nothing): fused_begin, fused_query, fused_keys, fused_pages when there is a
 * table, fused_mask and fused_shift, lengths, fused_place, fused_out, fused_finish. What differs between operators, chips and versions is
 * checked by those who call.
 */
#ifndef ACL_EMU_ATTN_FUSED_H
#define ACL_EMU_ATTN_FUSED_H

#include "acl_emu/attn_core.h"

struct fused {
  struct emu_plan *p;
  const char *in; /* letters of query, keys and values */
  bool packed;    /* tokens of all sequences in one row: T */
  bool single;    /* one query for each sequence: the decode route, whose mask has no axis of queries */
  int64_t batch;  /* sequences */
  int64_t rows;   /* of the query: S, or T */
  int64_t d, d_v;
  int type;           /* of query, keys, values and output */
  bool paged, listed; /* listed: one tensor for each sequence */
  int64_t blocks_wide, block_tokens;
  bool heads_outside;                  /* pages are [blocks, N, block, D] */
  int64_t *q_lens, *kv_lens, *kv_most; /* [batch] */
  struct attn_seq *seq;                /* [batch] */
  struct attn_problem a;
};

bool fused_begin(struct fused *f, struct emu_plan *p, const char *in, bool packed);
void fused_query(struct fused *f, const aclTensor *query, int64_t n_heads, int64_t n_kv_heads);
void fused_set_batch(struct fused *f, int64_t batch); /* packed: known from the lengths; else fused_query does it */
void fused_keys(struct fused *f, const aclTensorList *key, const aclTensorList *value, bool paged);
/* Table and pool: ids, shapes, N * D. What block sizes and which pool layouts are allowed is the caller's. */
void fused_pages(struct fused *f, const aclTensor *table, int64_t block_tokens);
/* Mask with one byte for each query and key; compressed: the triangle. NULL: none. */
void fused_mask(struct fused *f, const aclTensor *mask, bool compressed);
void fused_shift(struct fused *f, const aclTensor *shift);
/* Single lengths: one for all sequences, or at least one each, from 0 to most[i] (NULL: limit). Absent: `otherwise` (NULL: refused). */
void fused_lengths(struct fused *f, const char *name, const aclIntArray *array, const int64_t *most, const int64_t *otherwise,
                   int64_t *out);
void fused_out(struct fused *f, const char *letters, const aclTensor *out);
void fused_lse(struct fused *f, bool wanted, const aclTensor *lse);
void fused_place(struct fused *f); /* where the rows and keys of each sequence begin; lengths are known */
aclnnStatus fused_finish(struct fused *f);

#endif
