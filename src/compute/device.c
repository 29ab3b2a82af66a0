/* device.c — devices by name. */
#include "compute/device.h"

#include <string.h>

const struct device_ops *device_by_name(const char *name) {
  if (!strcmp(name, "cpu")) return &device_cpu_ops;
  if (!strcmp(name, "ascend") || !strcmp(name, "npu")) return &device_ascend_ops;
  return NULL;
}
