/* device.c — the NPU as a device: open and close, steps, what passes between host and device, and the table of operations. */
#include "compute/ascend/ascend.h"

static struct device *ascend_open(const struct device_config *c, struct err *e) {
  (void)c;
  err_set(e, ERR_UNSUPPORTED, "--backend ascend: this build has no NPU backend yet");
  return NULL;
}

const struct device_ops device_ascend_ops = {.name = "ascend", .attn = &attn_ascend_ops, .open = ascend_open};
