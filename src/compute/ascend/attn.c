/* attn.c — attention on the NPU: storage, prepare, and the choice of routes. The rules are in attn.h. */
#include "compute/ascend/attn.h"

static struct attn *attn_ascend_open(const struct attn_config *c, struct err *e) {
  (void)c;
  err_set(e, ERR_UNSUPPORTED, "attention: this build has no NPU backend yet");
  return NULL;
}

const struct attn_ops attn_ascend_ops = {.name = "ascend", .open = attn_ascend_open};
