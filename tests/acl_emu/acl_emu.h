/* acl_emu.h — what a test may ask of the emulated NPU, and switch.
 *
 * The emulator is what dlopen finds when ASCEND_HOME_PATH is BUILD/MODE/tests/acl_emu/PROFILE (A2-8.1, A2-8.5, A2-9.1, A3-9.1, 310P-8.5);
 * `dlsym(handle of libascendcl.so, "acl_emu")` is a function that returns this table. tests/npu.h does that. For whole programs the same is set
 * by environment variables, read when the library is loaded:
 *
 *   ACL_EMU_MEMORY     bytes of device memory, with k, m, g (256m)
 *   ACL_EMU_SEED       number: another schedule of the streams (1)
 *   ACL_EMU_DELAY_US   longest random delay before a task (0)
 *   ACL_EMU_DELAY_ONE_IN   one task in so many has such a delay (1)
 *   ACL_EMU_LAZY       1: the device does nothing until somebody waits for it (0)
 *   ACL_EMU_ORDER      1: sums in another order (0)
 *   ACL_EMU_DEFECTS    names with commas: mask512, pse_shared, uniform, pse_inf, band_off, empty_garbage
 *   ACL_EMU_FAULT      faults with commas, see `fault`: "aclrtMalloc:3:207001,op Mm:10:561103,sync:2:507015,run RmsNorm:7:507015,replay:4:507011"
 *   ACL_EMU_STREAMS, ACL_EMU_EVENTS   how many there are
 *   ACL_EMU_HANG_MS    how long a wait during which no task can run may last before it is told to the caller as 507046 (10000)
 *   ACL_EMU_SOC, ACL_EMU_CANN   other names than the profile's ("Ascend910A", "9.9.0")
 *   ACL_EMU_TASK_UPDATE 0: the driver cannot update tasks
 *   ACL_EMU_QUIET      1: violations are not written to stderr
 *   ACL_EMU_TRACE      1: every call is written to stderr
 *
 * Violations are what the real thing lets pass and pays for later (memory freed under a queued task, a host buffer written before its copy was done):
 * counted, with the first text kept, and written to stderr.
 */
#ifndef ACL_EMU_H
#define ACL_EMU_H

#include <stddef.h>
#include <stdint.h>

struct acl_emu_counts {
  uint64_t calls;                                   /* of all functions */
  uint64_t launches;                                /* phase 2 */
  uint64_t runs;                                    /* operators executed, in replays too */
  uint64_t waits;                                   /* synchronise stream, device, event */
  uint64_t copies, h2d_bytes, d2h_bytes, d2d_bytes; /* asked for */
  uint64_t replays, updates;
  uint64_t device_bytes, device_bytes_peak;                                                                 /* allocated */
  uint64_t device_blocks, host_blocks, streams, events, tensors, scalars, arrays, lists, executors, models; /* alive */
};

struct acl_emu {
  int version; /* 1 */
  const char *profile, *soc;
  int cann;
  void (*memory)(uint64_t bytes);
  void (*seed)(uint64_t seed);
  void (*delay_us)(int most);
  void (*lazy)(int on);
  void (*other_order)(int on);
  void (*defects)(unsigned bits); /* enum emu_defect of emu.h */
  void (*limits)(int streams, int events);
  void (*hang_ms)(int ms);
  void (*quiet)(int on);
  void (*task_update)(int possible);
  /* The n-th time from now (1: the next) that `where` happens it fails with code, once; n 0: every time. where:
   *   "aclrtMalloc"     a function by name, which then does nothing but return the code; "aclnnMm", a phase 2, takes its executor all the same
   *   "op Mm"           phase 1 of an operator        "launch Mm"  its phase 2        "any op", "any launch"
   *   "run Mm"          its execution: the stream's next wait returns the code, the output is poison    "any run"
   *   "sync"            a wait for stream, device or event: returns the code after the work was done
   *   "replay"          execution of a captured model
   * Faults add up; NULL clears all. */
  void (*fault)(const char *where, int n, int code);
  /* The device is lost: every call that reaches it gives this code until reset. 0: back. */
  void (*lose)(int code);
  void (*counts)(struct acl_emu_counts *out);
  uint64_t (*called)(const char *name); /* how often this function was called ("aclrtMalloc"), or this operator launched ("Mm") */
  uint64_t (*violations)(void);
  const char *(*violation)(void); /* the first; "" */
  /* What is alive, in words, "" for nothing: "3 tensors, 1 executor (aclnnMm), 2 device blocks of 4096 bytes". Owned until the next call. */
  const char *(*leaks)(void);
  /* What aclFinalize found, the same; "" when it found nothing or was not called. */
  const char *(*finalize_leaks)(void);
  /* Counts, calls, violations to zero; faults, defects, delays, laziness and the other order off. What is alive stays. */
  void (*reset)(void);
  /* Look at device memory, and write it, behind everybody's back (for tests); 0 when the range is not one live block. */
  int (*peek)(const void *device, void *out, size_t n);
  int (*poke)(void *device, const void *in, size_t n);
  int (*idle)(void); /* nothing is queued or running */
};

typedef const struct acl_emu *(*acl_emu_fn)(void);

#endif
