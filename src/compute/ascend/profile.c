/* profile.c — chip, version and symbols become capabilities. What a document says of a chip is written here and nowhere else. */
#include "compute/ascend/profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "compute/ascend/acl.h"

enum { CANN_LEAST = 801, CANN_MOST = 999, CANN_WIDE_TND = 901 };

static const struct {
  const char *prefix, *after; /* a name begins with prefix and one of these; NULL: anything */
  enum ascend_chip chip;
} chips[] = {{"Ascend910B", "1234", ASCEND_A2}, {"Ascend910_93", NULL, ASCEND_A3}, {"Ascend310P", NULL, ASCEND_310P}};

const char *ascend_chip_name(enum ascend_chip chip) {
  static const char *const names[] = {[ASCEND_A2] = "A2", [ASCEND_A3] = "A3", [ASCEND_310P] = "310P"};
  return names[chip];
}

static int read_chip(struct ascend_profile *p, const struct acl *a, struct err *e) {
  const char *name = a->aclrtGetSocName();
  str_escape(str_c(name ? name : ""), p->soc, sizeof p->soc);
  for (size_t i = 0; name && i < ARRAY_LEN(chips); i++) {
    size_t n = strlen(chips[i].prefix);
    if (strncmp(name, chips[i].prefix, n) || (chips[i].after && (!name[n] || !strchr(chips[i].after, name[n])))) continue;
    p->chip = chips[i].chip;
    return 0;
  }
  return err_set(e, ERR_UNSUPPORTED,
                 "the NPU calls itself \"%s\": expected Ascend910B1 to B4 (A2), Ascend910_93.. (A3) or Ascend310P.. (310P); others are not "
                 "known to this build",
                 p->soc);
}

/* "8.5.0", "8.1.RC1", "9.1.0.B030" -> 805, 801, 901; 0 = not a version. */
static int version_number(const char *text) {
  char *end;
  long major = strtol(text, &end, 10);
  if (end == text || *end != '.' || major < 1 || major > 99) return 0;
  const char *rest = end + 1;
  long minor = strtol(rest, &end, 10);
  return end == rest || minor < 0 || minor > 99 ? 0 : (int)(major * 100 + minor);
}

/* As CANN says; else, from the newest operator that it has, the oldest version that this can be. */
static int read_version(const struct acl *a) {
  aclCANNPackageVersion v;
  char text[128];
  memset(&v, 0, sizeof v);
  if (a->aclsysGetCANNVersion && !a->aclsysGetCANNVersion(NPU_PACKAGE_CANN, &v)) {
    v.version[sizeof v.version - 1] = 0;
    int n = version_number(v.version);
    if (n) return n;
  }
  char names[][16] = {"cann", "toolkit", "runtime"}; /* not const: theirs is a plain char * */
  for (size_t i = 0; a->aclsysGetVersionStr && i < ARRAY_LEN(names); i++) {
    memset(text, 0, sizeof text);
    if (a->aclsysGetVersionStr(names[i], text)) continue;
    text[sizeof text - 1] = 0;
    int n = version_number(text);
    if (n) return n;
  }
  return a->FusedInferAttentionScoreV4 ? 805 : CANN_LEAST;
}

/* Without these there is no road at all. */
static int check_operators(const struct acl *a, struct err *e) {
  static const enum acl_op needed[] = {ACL_OP_Mm,  ACL_OP_BatchMatMul, ACL_OP_IndexSelect, ACL_OP_RmsNorm, ACL_OP_Softmax,
                                       ACL_OP_Add, ACL_OP_Mul,         ACL_OP_Muls,        ACL_OP_Cast,    ACL_OP_InplaceCopy};
  char missing[200] = "";
  size_t used = 0;
  for (size_t i = 0; i < ARRAY_LEN(needed); i++)
    if (!a->issue[needed[i]] && used + 40 < sizeof missing)
      used += (size_t)snprintf(missing + used, sizeof missing - used, "%s%s", used ? ", " : "", acl_op_name(needed[i]));
  if (!used) return 0;
  return err_set(e, ERR_UNSUPPORTED, "CANN in %s lacks operators that every model needs: %s; is the package of operators installed?",
                 a->where, missing);
}

int ascend_profile_read(struct ascend_profile *p, const struct acl *a, int device, struct err *e) {
  memset(p, 0, sizeof *p);
  if (read_chip(p, a, e)) return -1;
  p->cann = read_version(a);
  if (p->cann < CANN_LEAST || p->cann > CANN_MOST)
    return err_set(e, ERR_UNSUPPORTED, "CANN in %s is version %d.%d: expected 8.1 to 9.x", a->where, p->cann / 100, p->cann % 100);
  if (check_operators(a, e)) return -1;
  bool large = p->chip != ASCEND_310P; /* the others have documents that leave most of this out for the 310P */
  p->has_bf16 = large;
  if (large) p->fused = a->FusedInferAttentionScoreV4 ? 4 : a->FusedInferAttentionScoreV3 ? 3 : a->FusedInferAttentionScoreV2 ? 2 : 0;
  p->fused_wide_tnd = p->fused && p->cann >= CANN_WIDE_TND;
  p->has_scatter_paged = large && a->ScatterPaKvCache;
  p->has_index_copy = large && a->InplaceIndexCopy;
  p->has_gating = large && a->MoeGatingTopKSoftmaxV2;
  p->has_wide_rope = large && a->RotaryPositionEmbedding;
  p->has_group_quant = large && a->WeightQuantBatchMatmulV2;
  p->has_capture = large && a->aclmdlRICaptureBegin && a->aclmdlRICaptureGetInfo && a->aclmdlRICaptureEnd && a->aclmdlRIExecuteAsync &&
                   a->aclmdlRIDestroy;
  int32_t supported = 1; /* a CANN that cannot be asked has to be believed */
  if (a->aclrtGetDeviceCapability && a->aclrtGetDeviceCapability(device, NPU_FEATURE_TASK_UPDATE, &supported)) supported = 0;
  p->has_task_update = p->has_capture && supported == 1 && a->aclmdlRICaptureTaskGrpBegin && a->aclmdlRICaptureTaskGrpEnd &&
                       a->aclmdlRICaptureTaskUpdateBegin && a->aclmdlRICaptureTaskUpdateEnd;
  return 0;
}

const char *ascend_profile_text(const struct ascend_profile *p, char text[256]) {
  char fused[40] = "no fused attention";
  if (p->fused) snprintf(fused, sizeof fused, "fused attention V%d%s", p->fused, p->fused_wide_tnd ? " (wide TND)" : "");
  snprintf(text, 256, "%s (%s), CANN %d.%d, %s, %s%s%s", p->soc, ascend_chip_name(p->chip), p->cann / 100, p->cann % 100,
           p->has_bf16 ? "bf16" : "fp16", fused, p->has_scatter_paged ? ", paged scatter" : "",
           p->has_task_update ? ", capture with updates"
           : p->has_capture   ? ", capture without updates"
                              : ", no capture");
  return text;
}
