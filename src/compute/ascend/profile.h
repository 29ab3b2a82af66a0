/* profile.h — which chip and which CANN this is, and what they can do.
 *
 * From the SoC's name, CANN's version and which symbols exist; attention's routes also prove themselves when a model is opened (attn.h), for
 * silent faults are on record. Anything unknown is refused with the names that are known.
 *
 *   A2    Ascend910B1 .. B4-1        bf16
 *   A3    Ascend910_93xx             bf16; one die is one device
 *   310P  Ascend310P*                fp16; no fused attention, no scatter, no capture: composed operations, eager
 */
#ifndef CYGNET_ASCEND_PROFILE_H
#define CYGNET_ASCEND_PROFILE_H

#include "base/base.h"
#include "base/err.h"

struct acl;

enum ascend_chip { ASCEND_A2, ASCEND_A3, ASCEND_310P };

struct ascend_profile {
  enum ascend_chip chip;
  char soc[64];
  int cann; /* 801 = 8.1, 805 = 8.5, 901 = 9.1 */
  bool has_bf16;
  int fused;           /* FusedInferAttentionScore: its newest version that is there, 2 .. 4; 0 = none */
  bool fused_wide_tnd; /* TND with a band for heads of up to 256 and grouped queries */
  bool has_scatter_paged, has_index_copy;
  bool has_gating;      /* MoeGatingTopKSoftmaxV2 has a kernel */
  bool has_wide_rope;   /* RotaryPositionEmbedding up to 896; else 128 */
  bool has_group_quant; /* WeightQuantBatchMatmulV2 with groups, int4 */
  bool has_capture, has_task_update;
};

/* a is open; device number chosen. Refuses chips and versions that are not known. */
int ascend_profile_read(struct ascend_profile *p, const struct acl *a, int device, struct err *e);
const char *ascend_chip_name(enum ascend_chip chip); /* "A2" */
/* "Ascend910B3 (A2), CANN 8.5, fused attention V4, paged scatter, capture with updates" */
const char *ascend_profile_text(const struct ascend_profile *p, char text[256]);

#endif
