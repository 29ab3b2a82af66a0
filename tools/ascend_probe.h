/* ascend_probe.h — what an NPU does where documents leave it open: points, each tried in a process of its own.
 *
 * A point is a function that tries one thing and says what it found. It works on the backend's own device (ascend.h), so loading, launching and waiting
 * are the same code as when a model runs. Whatever it takes from the device is given back when its process ends.
 *
 *   ascend_probe.c              the program: processes, time limits, the report; what points share
 *   ascend_probe_attention.c    fused attention: masks, bands, head sizes, lengths
 *   ascend_probe_operators.c    other operators: limits, roundings, orders, times
 *   ascend_probe_graphs.c       capture and replay
 */
#ifndef CYGNET_ASCEND_PROBE_H
#define CYGNET_ASCEND_PROBE_H

#include "compute/ascend/ascend.h"

enum verdict { /* of several the last in this order is the point's */
               PROBE_SKIPPED,
               PROBE_FIGURE, /* nothing was expected: a number to be read */
               PROBE_EXPECTED,
               PROBE_DIFFERS, /* from what the backend was written for, for better or worse */
               PROBE_FAILED,  /* an error, a crash, no end */
};

struct probe {
  struct ascend *d;
  bool small; /* the device is an emulated one: sizes that it manages */
  int pipe;
};

struct point {
  const char *name, *expected;
  void (*run)(struct probe *p);
};
extern const struct point probe_attention[], probe_operators[], probe_graphs[]; /* name NULL ends a list */

/* One finding; they add up. */
void probe_say(struct probe *p, enum verdict v, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Wait; false: something failed since the last wait. It is said as v, behind `what`. */
bool probe_done(struct probe *p, enum verdict v, const char *what);
/* The same without a word: the error goes to text. */
bool probe_quietly_done(struct probe *p, struct err *e);
/* False, and said, when this CANN or chip lacks it. */
bool probe_has(struct probe *p, enum acl_op op);
bool probe_has_fused(struct probe *p);
bool probe_has_capture(struct probe *p);

/* Device memory, each byte `fill`; NULL ends the point with an error at the next wait. */
void *probe_room(struct probe *p, size_t n_bytes, int fill);
/* n numbers as the device's type rounds them, in place, and on the device. */
void *probe_put(struct probe *p, float *x, size_t n);
void *probe_put_bytes(struct probe *p, const void *x, size_t n_bytes);
void probe_write(struct probe *p, void *device, const float *x, size_t n); /* rounded to the device's type */
/* After a wait. */
void probe_get(struct probe *p, void *out, const void *device, size_t n_bytes);
void probe_get_numbers(struct probe *p, float *out, const void *device, size_t n); /* of the device's type */
/* From -1 to 1, a function of what and i. */
float probe_number(int what, size_t i);

/* Microseconds of one of `times` calls of f, waited for together; the best of three rounds. < 0: failed, and said. */
double probe_time(struct probe *p, void (*f)(struct probe *p, void *ctx), void *ctx, int times);
/* End a launch whose phase 1 succeeded without running it: rc, bytes and executor as for ascend_end_launch. False: phase 1 refused, and why. */
bool probe_discard(struct probe *p, enum acl_op op, int rc, uint64_t workspace_bytes, aclOpExecutor *executor, struct err *e);

/* One launch of the newest FusedInferAttentionScore that is there. */
struct fused_call {
  const char *layout;         /* "BSH", "BSND", "TND" */
  int batch, rows;            /* of each of the batch; TND: of all */
  int n_q, n_kv, head_dim;    /* */
  int sparse, pages, page;    /* keys and values are [pages, page, n_kv * head_dim] */
  int64_t pre, next;          /* pre_tokens and next_tokens */
  const void *q, *k, *v;      /* */
  void *out;                  /* */
  const int32_t *table;       /* [batch, width], on the device */
  int width;                  /* */
  const void *mask;           /* sparse 0: NULL or [batch, width * page]; else [2048, 2048] */
  bool mask_wide;             /* as [batch, 1, 1, keys], else [batch, 1, keys] */
  const int64_t *ends, *keys; /* [batch], of rows (TND) and keys */
};
void probe_fused(struct probe *p, const struct fused_call *c);
/* Phase 1 alone: bytes of workspace, or -1 and why. */
int64_t probe_fused_workspace(struct probe *p, const struct fused_call *c, struct err *e);

#endif
