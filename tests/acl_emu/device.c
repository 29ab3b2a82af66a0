/* device.c — initialisation, the device and its contexts, what they say about themselves. */
#include "acl_emu/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- initialisation ------------------------------------------------------------------------------------------------------------- */

EMU_API aclError emu_aclInit(const char *configPath);
EMU_API aclError emu_aclInit(const char *configPath) {
  int rc = emu_enter("aclInit", 0);
  if (rc) return rc;
  if (configPath && *configPath) {
    FILE *f = fopen(configPath, "r");
    if (!f) return emu_leave(emu_say(RC_INVALID_FILE, "aclInit: %s cannot be read", configPath));
    fclose(f);
  }
  if (emu.initialised && emu.table.cann < 901) return emu_leave(emu_say(RC_REPEAT_INITIALIZE, "aclInit: initialised already"));
  emu.inits++;
  emu.initialised = true;
  emu.finalize_leaks[0] = 0;
  return emu_leave(0);
}

static void delete_context(struct context *c);
static int finalize(const char *name, uint64_t *left) {
  int rc = emu_enter(name, 0);
  if (rc) return rc;
  if (!emu.initialised) return emu_leave(emu_say(emu.was_finalised ? RC_REPEAT_FINALIZE : RC_UNINITIALIZE, "%s: not initialised", name));
  if (--emu.inits > 0 && emu.table.cann >= 901) {
    if (left) *left = (uint64_t)emu.inits;
    return emu_leave(0);
  }
  leaks_locked(emu.finalize_leaks, sizeof emu.finalize_leaks);
  if (emu.finalize_leaks[0] && !emu.quiet) fprintf(stderr, "acl_emu: not freed when aclFinalize was called: %s\n", emu.finalize_leaks);
  if (emu.primary) {
    delete_context(emu.primary);
    emu.primary = NULL;
    emu.set_devices = 0;
  }
  emu.initialised = false;
  emu.was_finalised = true;
  emu.inits = 0;
  if (left) *left = 0;
  return emu_leave(0);
}
EMU_API aclError emu_aclFinalize(void);
EMU_API aclError emu_aclFinalize(void) { return finalize("aclFinalize", NULL); }
EMU_API aclError emu_aclFinalizeReference(uint64_t *refCount);
EMU_API aclError emu_aclFinalizeReference(uint64_t *refCount) { return finalize("aclFinalizeReference", refCount); }
EMU_API aclnnStatus emu_aclnnInit(const char *configPath);
EMU_API aclnnStatus emu_aclnnInit(const char *configPath) {
  (void)configPath;
  int rc = emu_enter("aclnnInit", 0);
  return rc ? rc : emu_leave(0);
}
EMU_API aclnnStatus emu_aclnnFinalize(void);
EMU_API aclnnStatus emu_aclnnFinalize(void) {
  int rc = emu_enter("aclnnFinalize", 0);
  return rc ? rc : emu_leave(0);
}

/* ---- devices and contexts ---------------------------------------------------------------------------------------------------------- */

static struct context *new_context(bool primary) {
  struct context *c = object_new(K_CONTEXT, sizeof *c);
  c->primary = primary;
  c->stream = stream_new(c, 0);
  c->stream->is_default = true;
  device_start();
  return c;
}
struct of_context {
  struct context *context;
  int busy;
};
static void drop_stream(void *object, void *ctx) {
  struct stream *s = object;
  struct of_context *o = ctx;
  if (s->context != o->context) return;
  if (s->queue.first) o->busy++;
  if (s->branch) {
    for (struct branch *b = s->branch->model->branches, *next; b; b = next) {
      next = b->next;
      b->stream->branch = NULL;
      if (b->stream->group) object_drop(b->stream->group);
      b->stream->group = NULL;
    }
  }
  stream_delete(s);
}
static void drop_event(void *object, void *ctx) {
  if (((struct event *)object)->context == ((struct of_context *)ctx)->context) object_drop(object);
}
static void drop_group(void *object, void *ctx) {
  if (((struct group *)object)->model == ctx) object_drop(object);
}
static void drop_model(void *object, void *ctx) {
  struct model *m = object;
  if (m->context != ((struct of_context *)ctx)->context) return;
  for (struct branch *b = m->branches; b; b = b->next) b->stream = NULL;
  objects_each(K_GROUP, drop_group, m);
  model_free(m);
}
/* Its streams, events and models go with it. */
static void delete_context(struct context *c) {
  struct of_context o = {.context = c};
  objects_each(K_STREAM, drop_stream, &o);
  objects_each(K_MODEL, drop_model, &o);
  objects_each(K_EVENT, drop_event, &o);
  if (o.busy) emu_violate("a context was destroyed while %d of its streams had tasks to do", o.busy);
  object_drop(c);
}
static void make_current(struct context *c) {
  emu_thread()->context = c;
  emu_thread()->context_serial = c ? c->o.serial : 0;
}

EMU_API aclError emu_aclrtGetDeviceCount(uint32_t *count);
EMU_API aclError emu_aclrtGetDeviceCount(uint32_t *count) {
  int rc = emu_enter("aclrtGetDeviceCount", NEEDS_INIT);
  if (rc) return rc;
  if (!count) return emu_leave(emu_say(RC_PARAM_INVALID, "aclrtGetDeviceCount: NULL"));
  *count = DEVICES;
  return emu_leave(0);
}
static int bad_device(const char *name, int32_t device) {
  if (device >= 0 && device < DEVICES) return 0;
  return emu_say(RC_INVALID_DEVICEID, "%s: device %d; there are 0 to %d", name, device, DEVICES - 1);
}
EMU_API aclError emu_aclrtSetDevice(int32_t deviceId);
EMU_API aclError emu_aclrtSetDevice(int32_t deviceId) {
  int rc = emu_enter("aclrtSetDevice", NEEDS_INIT | REACHES_DEVICE);
  if (rc) return rc;
  if ((rc = bad_device("aclrtSetDevice", deviceId))) return emu_leave(rc);
  if (!emu.primary) emu.primary = new_context(true);
  emu.set_devices++;
  make_current(emu.primary);
  return emu_leave(0);
}
EMU_API aclError emu_aclrtGetDevice(int32_t *deviceId);
EMU_API aclError emu_aclrtGetDevice(int32_t *deviceId) {
  int rc = emu_enter("aclrtGetDevice", NEEDS_CONTEXT);
  if (rc) return rc;
  if (!deviceId) return emu_leave(emu_say(RC_PARAM_INVALID, "aclrtGetDevice: NULL"));
  *deviceId = 0;
  return emu_leave(0);
}
static int reset_device(const char *name, int32_t device, bool force) {
  int rc = emu_enter(name, NEEDS_INIT);
  if (rc) return rc;
  if ((rc = bad_device(name, device))) return emu_leave(rc);
  if (!emu.primary) return emu_leave(emu_say(RC_CONTEXT_NULL, "%s: the device was not set", name));
  if (--emu.set_devices > 0 && !force) return emu_leave(0);
  delete_context(emu.primary);
  emu.primary = NULL;
  emu.set_devices = 0;
  return emu_leave(0);
}
EMU_API aclError emu_aclrtResetDevice(int32_t deviceId);
EMU_API aclError emu_aclrtResetDevice(int32_t deviceId) { return reset_device("aclrtResetDevice", deviceId, false); }
EMU_API aclError emu_aclrtResetDeviceForce(int32_t deviceId);
EMU_API aclError emu_aclrtResetDeviceForce(int32_t deviceId) { return reset_device("aclrtResetDeviceForce", deviceId, true); }

EMU_API aclError emu_aclrtCreateContext(aclrtContext *context, int32_t deviceId);
EMU_API aclError emu_aclrtCreateContext(aclrtContext *context, int32_t deviceId) {
  int rc = emu_enter("aclrtCreateContext", NEEDS_INIT | REACHES_DEVICE);
  if (rc) return rc;
  if (!context) return emu_leave(emu_say(RC_PARAM_INVALID, "aclrtCreateContext: NULL"));
  if ((rc = bad_device("aclrtCreateContext", deviceId))) return emu_leave(rc);
  struct context *c = new_context(false);
  make_current(c);
  *context = c;
  return emu_leave(0);
}
EMU_API aclError emu_aclrtDestroyContext(aclrtContext context);
EMU_API aclError emu_aclrtDestroyContext(aclrtContext context) {
  int rc = emu_enter("aclrtDestroyContext", NEEDS_INIT);
  if (rc) return rc;
  struct context *c = object_get(K_CONTEXT, context);
  if (!c) return emu_leave(emu_say(RC_CONTEXT_NULL, "aclrtDestroyContext: %p is not a live context", context));
  if (c->primary)
    return emu_leave(emu_say(RC_PARAM_INVALID, "aclrtDestroyContext: the context of aclrtSetDevice goes with aclrtResetDevice"));
  delete_context(c);
  return emu_leave(0);
}
EMU_API aclError emu_aclrtSetCurrentContext(aclrtContext context);
EMU_API aclError emu_aclrtSetCurrentContext(aclrtContext context) {
  int rc = emu_enter("aclrtSetCurrentContext", NEEDS_INIT);
  if (rc) return rc;
  struct context *c = object_get(K_CONTEXT, context);
  if (!c) return emu_leave(emu_say(RC_CONTEXT_NULL, "aclrtSetCurrentContext: %p is not a live context", context));
  make_current(c);
  return emu_leave(0);
}
EMU_API aclError emu_aclrtGetCurrentContext(aclrtContext *context);
EMU_API aclError emu_aclrtGetCurrentContext(aclrtContext *context) {
  int rc = emu_enter("aclrtGetCurrentContext", NEEDS_CONTEXT);
  if (rc) return rc;
  if (!context) return emu_leave(emu_say(RC_PARAM_INVALID, "aclrtGetCurrentContext: NULL"));
  *context = emu_context();
  return emu_leave(0);
}

/* ---- what they say --------------------------------------------------------------------------------------------------------------------- */

EMU_API const char *emu_aclrtGetSocName(void);
EMU_API const char *emu_aclrtGetSocName(void) {
  if (emu_enter("aclrtGetSocName", 0)) return NULL;
  emu_leave(0);
  return emu.soc;
}
/* The version of the interface, not of CANN. */
EMU_API aclError emu_aclrtGetVersion(int32_t *major, int32_t *minor, int32_t *patch);
EMU_API aclError emu_aclrtGetVersion(int32_t *major, int32_t *minor, int32_t *patch) {
  int rc = emu_enter("aclrtGetVersion", 0);
  if (rc) return rc;
  if (!major || !minor || !patch) return emu_leave(emu_say(RC_PARAM_INVALID, "aclrtGetVersion: NULL"));
  *major = 1;
  *minor = emu.table.cann == 801 ? 13 : emu.table.cann == 805 ? 15 : 17;
  *patch = 0;
  return emu_leave(0);
}
struct package_version {
  char version[128], major[64], minor[64], release[64], patch[64], reserved[128];
};
EMU_API aclError emu_aclsysGetCANNVersion(unsigned package, struct package_version *v);
EMU_API aclError emu_aclsysGetCANNVersion(unsigned package, struct package_version *v) {
  int major = 0, minor = 0, rc = emu_enter("aclsysGetCANNVersion", 0);
  if (rc) return rc;
  if (!v || package > 7) return emu_leave(emu_say(RC_INVALID_PARAM, "aclsysGetCANNVersion: NULL, or package %u", package));
  memset(v, 0, sizeof *v);
  sscanf(emu.version, "%d.%d", &major, &minor);
  snprintf(v->version, sizeof v->version, "%s", emu.version);
  snprintf(v->major, sizeof v->major, "%d", major);
  snprintf(v->minor, sizeof v->minor, "%d", minor);
  return emu_leave(0);
}
EMU_API aclError emu_aclsysGetVersionStr(char *package, char *version);
EMU_API aclError emu_aclsysGetVersionStr(char *package, char *version) {
  int rc = emu_enter("aclsysGetVersionStr", 0);
  if (rc) return rc;
  if (!package || !version) return emu_leave(emu_say(RC_INVALID_PARAM, "aclsysGetVersionStr: NULL"));
  snprintf(version, 128, "%s", emu.version);
  return emu_leave(0);
}
EMU_API aclError emu_aclGetDeviceCapability(uint32_t deviceId, int info, int64_t *value);
EMU_API aclError emu_aclGetDeviceCapability(uint32_t deviceId, int info, int64_t *value) {
  int rc = emu_enter("aclGetDeviceCapability", 0);
  if (rc) return rc;
  if (!value || info < 0 || info > 2 || deviceId >= DEVICES)
    return emu_leave(emu_say(RC_INVALID_PARAM, "aclGetDeviceCapability: device %u, question %d", deviceId, info));
  int64_t cores = emu.chip == EMU_310P ? 8 : emu.chip == EMU_A3 ? 24 : 20;
  *value = info == 0   ? cores
           : info == 1 ? (emu.chip == EMU_310P ? 7 : 2 * cores)
                       : (emu.chip == EMU_310P ? 16 : 192) * (int64_t)1024 * 1024;
  return emu_leave(0);
}
EMU_API aclError emu_aclrtGetDeviceInfo(uint32_t deviceId, unsigned attr, int64_t *value);
EMU_API aclError emu_aclrtGetDeviceInfo(uint32_t deviceId, unsigned attr, int64_t *value) {
  int rc = emu_enter("aclrtGetDeviceInfo", NEEDS_INIT);
  if (rc) return rc;
  int64_t cores = emu.chip == EMU_310P ? 8 : emu.chip == EMU_A3 ? 24 : 20;
  if (!value || deviceId >= DEVICES) return emu_leave(emu_say(RC_PARAM_INVALID, "aclrtGetDeviceInfo: device %u", deviceId));
  switch (attr) {
  case 1: *value = 7; break;
  case 101:
  case 102: *value = cores; break;
  case 201: *value = emu.chip == EMU_310P ? 7 : 2 * cores; break;
  case 301: *value = (int64_t)emu.budget; break;
  case 302: *value = (emu.chip == EMU_310P ? 16 : 192) * (int64_t)1024 * 1024; break;
  case 401:
  case 402:
  case 501: *value = 0; break;
  default: return emu_leave(emu_say(RC_PARAM_INVALID, "aclrtGetDeviceInfo: attribute %u", attr));
  }
  return emu_leave(0);
}
EMU_API aclError emu_aclrtGetDeviceCapability(int32_t deviceId, unsigned feature, int32_t *value);
EMU_API aclError emu_aclrtGetDeviceCapability(int32_t deviceId, unsigned feature, int32_t *value) {
  int rc = emu_enter("aclrtGetDeviceCapability", NEEDS_INIT);
  if (rc) return rc;
  if (!value || (feature != 1 && feature != 21) || (rc = bad_device("aclrtGetDeviceCapability", deviceId)))
    return emu_leave(rc ? rc : emu_say(RC_PARAM_INVALID, "aclrtGetDeviceCapability: feature %u", feature));
  *value = feature == 1 && emu.task_update;
  return emu_leave(0);
}
static const int attributes[] = {0, 1, 2}; /* INF_NAN, BF16, JIT_COMPILE */
EMU_API aclError emu_aclGetCannAttribute(int attr, int32_t *value);
EMU_API aclError emu_aclGetCannAttribute(int attr, int32_t *value) {
  int rc = emu_enter("aclGetCannAttribute", 0);
  if (rc) return rc;
  if (!value || attr < 0 || attr > 2) return emu_leave(emu_say(RC_INVALID_PARAM, "aclGetCannAttribute: %d", attr));
  *value = attr == 2 ? 1 : emu.chip != EMU_310P;
  return emu_leave(0);
}
EMU_API aclError emu_aclGetCannAttributeList(const int **list, size_t *num);
EMU_API aclError emu_aclGetCannAttributeList(const int **list, size_t *num) {
  int rc = emu_enter("aclGetCannAttributeList", 0);
  if (rc) return rc;
  if (!list || !num) return emu_leave(emu_say(RC_INVALID_PARAM, "aclGetCannAttributeList: NULL"));
  *list = attributes;
  *num = 3;
  return emu_leave(0);
}
EMU_API aclError emu_aclrtGetRunMode(unsigned *mode);
EMU_API aclError emu_aclrtGetRunMode(unsigned *mode) {
  int rc = emu_enter("aclrtGetRunMode", NEEDS_INIT);
  if (rc) return rc;
  if (!mode) return emu_leave(emu_say(RC_PARAM_INVALID, "aclrtGetRunMode: NULL"));
  *mode = 1;
  return emu_leave(0);
}
EMU_API aclError emu_aclrtQueryDeviceStatus(int32_t deviceId, unsigned *status);
EMU_API aclError emu_aclrtQueryDeviceStatus(int32_t deviceId, unsigned *status) {
  int rc = emu_enter("aclrtQueryDeviceStatus", NEEDS_INIT);
  if (rc) return rc;
  if (!status || (rc = bad_device("aclrtQueryDeviceStatus", deviceId))) return emu_leave(rc ? rc : RC_PARAM_INVALID);
  *status = emu.lost ? 1 : 0;
  return emu_leave(0);
}
EMU_API aclError emu_aclrtSetSysParamOpt(unsigned opt, int64_t value);
EMU_API aclError emu_aclrtSetSysParamOpt(unsigned opt, int64_t value) {
  int rc = emu_enter("aclrtSetSysParamOpt", NEEDS_CONTEXT);
  if (rc) return rc;
  if (opt > 2 || value < 0 || value > 1)
    return emu_leave(emu_say(RC_PARAM_INVALID, "aclrtSetSysParamOpt: option %u, value %lld", opt, (long long)value));
  return emu_leave(0);
}
EMU_API aclError emu_aclrtSetOpExecuteTimeOut(uint32_t seconds);
EMU_API aclError emu_aclrtSetOpExecuteTimeOut(uint32_t seconds) {
  (void)seconds;
  int rc = emu_enter("aclrtSetOpExecuteTimeOut", NEEDS_INIT);
  return rc ? rc : emu_leave(0);
}
EMU_API aclError emu_aclrtSetOpWaitTimeout(uint32_t seconds);
EMU_API aclError emu_aclrtSetOpWaitTimeout(uint32_t seconds) {
  (void)seconds;
  int rc = emu_enter("aclrtSetOpWaitTimeout", NEEDS_INIT);
  return rc ? rc : emu_leave(0);
}
