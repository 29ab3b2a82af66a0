/* memory.c — device memory in its own address range, pinned host memory, synchronous copies.
 *
 * A block starts 64 bytes into a page, is poisoned (0xff) when it is made, and is followed by a guard that is looked at when it is freed.
 * Addresses are not handed out again before the range has been used up, so that a stale one is seen for what it is.
 */
#include "acl_emu/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, LEAD = 64, GUARD = 64, GUARD_BYTE = 0xa5, POISON = 0xff };
static const uint64_t range_bytes = (uint64_t)32 << 30;

void memory_open(void) {
  int fd = memfd_create("acl_emu", MFD_CLOEXEC);
  void *alias = MAP_FAILED, *base = MAP_FAILED;
  if (fd >= 0 && ftruncate(fd, (off_t)range_bytes) == 0) {
    alias = mmap(NULL, range_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    base = mmap(NULL, range_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  if (alias == MAP_FAILED || base == MAP_FAILED) {
    perror("acl_emu: device memory");
    abort();
  }
  close(fd);
  emu.alias = alias;
  emu.base = (uint64_t)(uintptr_t)base;
  emu.limit = emu.base + range_bytes;
  emu.next = emu.base + PAGE;
}

bool address_is_device(const void *p) { return (uint64_t)(uintptr_t)p >= emu.base && (uint64_t)(uintptr_t)p < emu.limit; }
void *emu_reach(uint64_t address) { return emu.alias + (address - emu.base); }

/* The number of blocks that start at or below address. */
static int blocks_below(uint64_t address) {
  int lo = 0, hi = emu.n_blocks;
  while (lo < hi) {
    int mid = (lo + hi) / 2;
    if (emu.blocks[mid].address <= address) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}
struct block *block_find(uint64_t address, size_t n_bytes) {
  int i = blocks_below(address) - 1;
  if (i < 0) return NULL;
  struct block *b = &emu.blocks[i];
  return address - b->address <= b->n_bytes && n_bytes <= b->n_bytes - (address - b->address) ? b : NULL;
}

/* Where `need` bytes of the range are free: after the last block handed out, else anywhere. 0: nowhere. */
static uint64_t find_room(uint64_t need) {
  if (emu.limit - emu.next >= need) {
    uint64_t at = emu.next;
    emu.next += need;
    return at;
  }
  uint64_t at = emu.base + PAGE;
  for (int i = 0; i <= emu.n_blocks; i++) {
    uint64_t end = i < emu.n_blocks ? emu.blocks[i].address - LEAD : emu.limit;
    if (end - at >= need) return at;
    if (i < emu.n_blocks) at = (emu.blocks[i].address + emu.blocks[i].taken + GUARD + PAGE - 1) / PAGE * PAGE;
  }
  return 0;
}

static int device_alloc(const char *name, void **out, size_t size, unsigned policy, bool tail) {
  static uint64_t serial;
  static const unsigned policies[] = {0, 1, 2, 3, 4, 5, 6, 7, 0x100, 0x1000, 0x100000};
  bool known = false;
  for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) known |= policies[i] == policy;
  if (!out) return emu_say(RC_PARAM_INVALID, "%s: devPtr is NULL", name);
  *out = NULL;
  if (!size) return emu_say(RC_PARAM_INVALID, "%s: size is 0", name);
  if (!known) return emu_say(RC_PARAM_INVALID, "%s: policy 0x%x is not one of aclrtMemMallocPolicy's values", name, policy);
  if (size > SIZE_MAX - 4 * PAGE) return emu_say(RC_MEMORY_ALLOCATION, "%s: size %zu is too large", name, size);
  size_t taken = (size + 31) / 32 * 32 + (tail ? 32 : 0);
  if (taken > emu.budget || emu.counts.device_bytes > emu.budget - taken)
    return emu_say(RC_MEMORY_ALLOCATION, "%s: %zu bytes asked for, %llu of %llu are free", name, size,
                   (unsigned long long)(emu.budget > emu.counts.device_bytes ? emu.budget - emu.counts.device_bytes : 0),
                   (unsigned long long)emu.budget);
  uint64_t at = find_room((LEAD + taken + GUARD + PAGE - 1) / PAGE * PAGE);
  if (!at) return emu_say(RC_MEMORY_ALLOCATION, "%s: no addresses left for %zu bytes", name, size);
  if (emu.n_blocks == emu.cap_blocks) {
    int cap = emu.cap_blocks ? 2 * emu.cap_blocks : 256;
    struct block *more = realloc(emu.blocks, sizeof *more * (size_t)cap);
    if (!more) return emu_say(RC_MEMORY_ALLOCATION, "%s: out of host memory", name);
    emu.blocks = more;
    emu.cap_blocks = cap;
  }
  uint64_t address = at + LEAD;
  int i = blocks_below(address);
  memmove(emu.blocks + i + 1, emu.blocks + i, sizeof *emu.blocks * (size_t)(emu.n_blocks - i));
  emu.blocks[i] = (struct block){.address = address, .serial = ++serial, .n_bytes = size, .taken = taken, .tail = tail};
  emu.n_blocks++;
  emu.counts.device_bytes += taken;
  if (emu.counts.device_bytes > emu.counts.device_bytes_peak) emu.counts.device_bytes_peak = emu.counts.device_bytes;
  memset(emu_reach(address), POISON, taken);
  memset((char *)emu_reach(address) + size, GUARD_BYTE, taken - size + GUARD);
  *out = (void *)(uintptr_t)address;
  return 0;
}

/* The runtime does not check this during a capture, and the graph pays for it. */
static void find_capture(void *object, void *ctx) {
  const struct model *m = object;
  if (m->status == CAPTURE_ACTIVE) *(bool *)ctx = true;
}
static void warn_of_capture(const char *name) {
  bool capturing = false;
  objects_each(K_MODEL, find_capture, &capturing);
  if (capturing) emu_violate("%s while a stream is being captured", name);
}

EMU_API aclError emu_aclrtMalloc(void **devPtr, size_t size, unsigned policy);
EMU_API aclError emu_aclrtMalloc(void **devPtr, size_t size, unsigned policy) {
  int rc = emu_enter("aclrtMalloc", NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  warn_of_capture("aclrtMalloc");
  return emu_leave(device_alloc("aclrtMalloc", devPtr, size, policy, true));
}
EMU_API aclError emu_aclrtMallocAlign32(void **devPtr, size_t size, unsigned policy);
EMU_API aclError emu_aclrtMallocAlign32(void **devPtr, size_t size, unsigned policy) {
  int rc = emu_enter("aclrtMallocAlign32", NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  warn_of_capture("aclrtMallocAlign32");
  return emu_leave(device_alloc("aclrtMallocAlign32", devPtr, size, policy, false));
}
EMU_API aclError emu_aclrtMallocCached(void **devPtr, size_t size, unsigned policy);
EMU_API aclError emu_aclrtMallocCached(void **devPtr, size_t size, unsigned policy) {
  int rc = emu_enter("aclrtMallocCached", NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  warn_of_capture("aclrtMallocCached");
  return emu_leave(device_alloc("aclrtMallocCached", devPtr, size, policy, true));
}

static void check_guard(const struct block *b) {
  const unsigned char *g = (unsigned char *)emu_reach(b->address) + b->n_bytes;
  for (size_t i = 0; i < b->taken - b->n_bytes + GUARD; i++)
    if (g[i] != GUARD_BYTE) {
      emu_violate("device block of %zu bytes: byte %zu behind its end was written", b->n_bytes, i);
      return;
    }
}

EMU_API aclError emu_aclrtFree(void *devPtr);
EMU_API aclError emu_aclrtFree(void *devPtr) {
  char what[128];
  int rc = emu_enter("aclrtFree", NEEDS_CONTEXT);
  if (rc) return rc;
  if (!devPtr) return emu_leave(emu_say(RC_PARAM_INVALID, "aclrtFree: devPtr is NULL"));
  uint64_t address = (uint64_t)(uintptr_t)devPtr;
  struct block *b = block_find(address, 0);
  if (!b || b->address != address)
    return emu_leave(emu_say(RC_PARAM_INVALID, "aclrtFree: %p is not the start of a live block (freed twice?)", devPtr));
  warn_of_capture("aclrtFree");
  if (pending_uses(address, b->n_bytes, false, false, what))
    emu_violate("aclrtFree of a block of %zu bytes that a queued task still uses: %s", b->n_bytes, what);
  check_guard(b);
  /* give whole pages back; whoever still looks there is told by the table of blocks */
  uint64_t from = b->address - LEAD, to = (b->address + b->taken + GUARD + PAGE - 1) / PAGE * PAGE;
  if (b->taken > 64 * 1024) madvise(emu_reach(from), to - from, MADV_REMOVE);
  else memset(emu_reach(b->address), POISON, b->taken);
  emu.counts.device_bytes -= b->taken;
  emu.n_blocks--;
  memmove(b, b + 1, sizeof *b * (size_t)(emu.blocks + emu.n_blocks - b));
  return emu_leave(0);
}

/* ---- host memory ------------------------------------------------------------------------------------------------------------- */

struct host_block *host_find(const void *p, size_t n_bytes) {
  const char *q = p;
  for (int i = 0; i < emu.n_hosts; i++) {
    struct host_block *h = &emu.hosts[i];
    if (q >= h->p && (size_t)(q - h->p) <= h->n_bytes && n_bytes <= h->n_bytes - (size_t)(q - h->p)) return h;
  }
  return NULL;
}
static int host_add(char *p, size_t n, bool registered) {
  if (emu.n_hosts == emu.cap_hosts) {
    int cap = emu.cap_hosts ? 2 * emu.cap_hosts : 64;
    struct host_block *more = realloc(emu.hosts, sizeof *more * (size_t)cap);
    if (!more) return RC_MEMORY_ALLOCATION;
    emu.hosts = more;
    emu.cap_hosts = cap;
  }
  emu.hosts[emu.n_hosts++] = (struct host_block){.p = p, .n_bytes = n, .registered = registered};
  return 0;
}

EMU_API aclError emu_aclrtMallocHost(void **hostPtr, size_t size);
EMU_API aclError emu_aclrtMallocHost(void **hostPtr, size_t size) {
  int rc = emu_enter("aclrtMallocHost", NEEDS_CONTEXT);
  if (rc) return rc;
  void *p = NULL;
  if (!hostPtr || !size) return emu_leave(emu_say(RC_PARAM_INVALID, "aclrtMallocHost: hostPtr is NULL or size is 0"));
  *hostPtr = NULL;
  warn_of_capture("aclrtMallocHost");
  if (size > SIZE_MAX / 2 || posix_memalign(&p, 64, size))
    return emu_leave(emu_say(RC_MEMORY_ALLOCATION, "aclrtMallocHost: no %zu bytes", size));
  if ((rc = host_add(p, size, false))) {
    free(p);
    return emu_leave(rc);
  }
  memset(p, POISON, size);
  *hostPtr = p;
  return emu_leave(0);
}

static int host_drop(const char *name, void *p, bool registered) {
  char what[128];
  for (int i = 0; i < emu.n_hosts; i++) {
    struct host_block h = emu.hosts[i];
    if (h.p != p || h.registered != registered) continue;
    if (pending_uses((uint64_t)(uintptr_t)p, h.n_bytes, true, false, what))
      emu_violate("%s of a block of %zu bytes that a queued task still uses: %s", name, h.n_bytes, what);
    emu.hosts[i] = emu.hosts[--emu.n_hosts];
    if (!registered) free(p);
    return 0;
  }
  return emu_say(RC_PARAM_INVALID, "%s: %p is not the start of a live block", name, p);
}
EMU_API aclError emu_aclrtFreeHost(void *hostPtr);
EMU_API aclError emu_aclrtFreeHost(void *hostPtr) {
  int rc = emu_enter("aclrtFreeHost", NEEDS_CONTEXT);
  return rc ? rc : emu_leave(host_drop("aclrtFreeHost", hostPtr, false));
}
EMU_API aclError emu_aclrtHostRegister(void *ptr, uint64_t size, unsigned type, void **devPtr);
EMU_API aclError emu_aclrtHostRegister(void *ptr, uint64_t size, unsigned type, void **devPtr) {
  int rc = emu_enter("aclrtHostRegister", NEEDS_CONTEXT);
  if (rc) return rc;
  if (!ptr || !size || !devPtr || (uintptr_t)ptr % PAGE || (type != 0 && type != 4 && type != 8))
    return emu_leave(emu_say(RC_PARAM_INVALID, "aclrtHostRegister: needs whole pages, a size, and a place for the address"));
  if (host_find(ptr, 1)) return emu_leave(emu_say(RC_PARAM_INVALID, "aclrtHostRegister: registered already"));
  *devPtr = ptr; /* seen by the device at the same address; operators refuse it all the same */
  return emu_leave(host_add(ptr, size, true));
}
EMU_API aclError emu_aclrtHostUnregister(void *ptr);
EMU_API aclError emu_aclrtHostUnregister(void *ptr) {
  int rc = emu_enter("aclrtHostUnregister", NEEDS_CONTEXT);
  return rc ? rc : emu_leave(host_drop("aclrtHostUnregister", ptr, true));
}

EMU_API aclError emu_aclrtGetMemInfo(unsigned attr, size_t *freeBytes, size_t *totalBytes);
EMU_API aclError emu_aclrtGetMemInfo(unsigned attr, size_t *freeBytes, size_t *totalBytes) {
  int rc = emu_enter("aclrtGetMemInfo", NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  if (!freeBytes || !totalBytes || attr > 17) return emu_leave(emu_say(RC_PARAM_INVALID, "aclrtGetMemInfo: NULL, or memory %u", attr));
  bool ddr = attr == 0 || attr == 2 || attr == 3 || attr == 6 || attr == 7;
  bool has = !ddr || emu.chip == EMU_310P; /* a chip without HBM answers with its DDR, one with HBM has no DDR */
  *totalBytes = has ? emu.budget : 0;
  *freeBytes = has && emu.budget > emu.counts.device_bytes ? emu.budget - emu.counts.device_bytes : 0;
  return emu_leave(0);
}

struct pointer_attributes {
  uint32_t id;
  int location; /* 0 host, 1 device, 2 unregistered */
  uint32_t page, reserved[4];
};
EMU_API aclError emu_aclrtPointerGetAttributes(const void *ptr, struct pointer_attributes *out);
EMU_API aclError emu_aclrtPointerGetAttributes(const void *ptr, struct pointer_attributes *out) {
  int rc = emu_enter("aclrtPointerGetAttributes", NEEDS_CONTEXT);
  if (rc) return rc;
  if (!ptr || !out) return emu_leave(emu_say(RC_PARAM_INVALID, "aclrtPointerGetAttributes: NULL"));
  *out = (struct pointer_attributes){.location = block_find((uint64_t)(uintptr_t)ptr, 1) ? 1 : host_find(ptr, 1) ? 0 : 2, .page = PAGE};
  return emu_leave(0);
}

/* ---- synchronous copies ------------------------------------------------------------------------------------------------------- */

uint64_t host_sum(const void *p, size_t spitch, size_t width, size_t height) {
  uint64_t h = 1469598103934665603U;
  for (size_t y = 0; y < height; y++) {
    const unsigned char *s = (const unsigned char *)p + y * spitch;
    size_t i = 0;
    for (; i + 8 <= width; i += 8) {
      uint64_t w;
      memcpy(&w, s + i, 8);
      h = (h ^ w) * 1099511628211U;
      h ^= h >> 29;
    }
    for (; i < width; i++) h = (h ^ s[i]) * 1099511628211U;
  }
  return h;
}

/* *reach: where these bytes can be reached now. */
static int resolve(const char *name, const char *which, const void *p, size_t n, bool *device, char **reach) {
  *device = address_is_device(p);
  *reach = *device ? emu_reach((uint64_t)(uintptr_t)p) : (char *)(uintptr_t)p;
  if (!p) return emu_say(RC_PARAM_INVALID, "%s: %s is NULL", name, which);
  if (*device && !block_find((uint64_t)(uintptr_t)p, n))
    return emu_say(RC_DRV_INTERNAL, "%s: %s: %zu bytes at %p are not inside a live block of the device", name, which, n, p);
  return 0;
}

void count_copy(bool from_device, bool to_device, size_t n) {
  emu.counts.copies++;
  if (from_device && to_device) emu.counts.d2d_bytes += n;
  else if (to_device) emu.counts.h2d_bytes += n;
  else if (from_device) emu.counts.d2h_bytes += n;
}

static int copy_now(const char *name, void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height) {
  bool to, from;
  char *d, *s, what[128];
  int rc;
  size_t d_bytes = dpitch * (height - 1) + width, s_bytes = spitch * (height - 1) + width;
  if ((rc = resolve(name, "dst", dst, d_bytes, &to, &d)) || (rc = resolve(name, "src", src, s_bytes, &from, &s))) return rc;
  if (dst == src) return 0;
  if (pending_uses((uint64_t)(uintptr_t)src, s_bytes, !from, true, what))
    emu_violate("%s reads what a queued task has yet to write: %s", name, what);
  if (pending_uses((uint64_t)(uintptr_t)dst, d_bytes, !to, false, what))
    emu_violate("%s writes where a queued task has yet to work: %s", name, what);
  count_copy(from, to, width * height);
  for (size_t y = 0; y < height; y++) memmove(d + y * dpitch, s + y * spitch, width);
  return 0;
}

EMU_API aclError emu_aclrtMemcpy(void *dst, size_t destMax, const void *src, size_t count, unsigned kind);
EMU_API aclError emu_aclrtMemcpy(void *dst, size_t destMax, const void *src, size_t count, unsigned kind) {
  int rc = emu_enter("aclrtMemcpy", NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  if ((rc = capture_forbids("aclrtMemcpy"))) return emu_leave(rc);
  if (!count || destMax < count || kind > 7)
    return emu_leave(emu_say(RC_PARAM_INVALID, "aclrtMemcpy: count %zu, destMax %zu, kind %u", count, destMax, kind));
  return emu_leave(copy_now("aclrtMemcpy", dst, count, src, count, count, 1));
}
/* Copies of matrices: the three plain directions, from device to device only on A2 and A3. */
int check_pitches(const char *name, size_t dpitch, size_t spitch, size_t width, size_t height, unsigned kind) {
  if (kind < 1 || kind > 3 || (kind == 3 && emu.chip == EMU_310P))
    return emu_say(RC_INVALID_PARAM, "%s: kind %u is not among those that %s does (1 host to device, 2 device to host%s)", name, kind,
                   emu.soc, emu.chip == EMU_310P ? "" : ", 3 device to device");
  if (!width || !height || width > dpitch || width > spitch || width > 5000000 || height > 5242880)
    return emu_say(RC_PARAM_INVALID, "%s: width %zu, pitches %zu and %zu, height %zu", name, width, dpitch, spitch, height);
  return 0;
}
EMU_API aclError emu_aclrtMemcpy2d(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height, unsigned kind);
EMU_API aclError emu_aclrtMemcpy2d(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height, unsigned kind) {
  int rc = emu_enter("aclrtMemcpy2d", NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  if ((rc = capture_forbids("aclrtMemcpy2d"))) return emu_leave(rc);
  if ((rc = check_pitches("aclrtMemcpy2d", dpitch, spitch, width, height, kind))) return emu_leave(rc);
  return emu_leave(copy_now("aclrtMemcpy2d", dst, dpitch, src, spitch, width, height));
}
EMU_API aclError emu_aclrtMemset(void *ptr, size_t maxCount, int32_t value, size_t count);
EMU_API aclError emu_aclrtMemset(void *ptr, size_t maxCount, int32_t value, size_t count) {
  bool device;
  char *p, what[128];
  int rc = emu_enter("aclrtMemset", NEEDS_CONTEXT | REACHES_DEVICE);
  if (rc) return rc;
  if ((rc = capture_forbids("aclrtMemset"))) return emu_leave(rc);
  if (!count || maxCount < count) return emu_leave(emu_say(RC_PARAM_INVALID, "aclrtMemset: count %zu, maxCount %zu", count, maxCount));
  if ((rc = resolve("aclrtMemset", "devPtr", ptr, count, &device, &p))) return emu_leave(rc);
  if (!device && !host_find(ptr, count))
    return emu_leave(emu_say(RC_PARAM_INVALID, "aclrtMemset: %p is memory of neither aclrtMalloc nor aclrtMallocHost", ptr));
  if (pending_uses((uint64_t)(uintptr_t)ptr, count, !device, false, what))
    emu_violate("aclrtMemset writes where a queued task has yet to work: %s", what);
  memset(p, value, count);
  return emu_leave(0);
}
