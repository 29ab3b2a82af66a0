/* ascend_probe.c — a report of what this machine's NPU does, one line for each point that no document settles.
 *
 *   ascend_probe [--device N] [--seconds N] [--list] [NAME...]
 *
 * Each point runs in a child, which says what it finds through a pipe; one that crashes or does not end costs its own line only. The parent never loads CANN.
 * A NAME is a point's, or the beginning of several.
 *
 * Status: 0 all is as expected, 1 something differs or failed, 2 there is no NPU to ask.
 */
#include "ascend_probe.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

enum { FOUND_BYTES = 900, SMALL_GIB = 4, ROUNDS = 3 };

struct message { /* from a child: small enough for a pipe to take it whole */
  enum verdict verdict;
  char text[FOUND_BYTES];
};

struct options {
  int device, seconds, n_names;
  char **names;
};

/* ---- what points share -------------------------------------------------------------------------------------------------------------- */

void probe_say(struct probe *p, enum verdict v, const char *fmt, ...) {
  struct message m = {.verdict = v};
  va_list args;
  va_start(args, fmt);
  vsnprintf(m.text, sizeof m.text, fmt, args);
  va_end(args);
  if (write(p->pipe, &m, sizeof m) < 0) _exit(1); /* nobody listens any more */
}

bool probe_quietly_done(struct probe *p, struct err *e) {
  *e = (struct err){0};
  return ascend_finish(&p->d->device, e) == 0;
}

bool probe_done(struct probe *p, enum verdict v, const char *what) {
  struct err e;
  if (probe_quietly_done(p, &e)) return true;
  probe_say(p, v, "%s%s%s", what, *what ? ": " : "", e.msg);
  return false;
}

bool probe_has(struct probe *p, enum acl_op op) {
  if (ascend_has(p->d, op)) return true;
  probe_say(p, PROBE_SKIPPED, "this CANN has no %s", acl_op_name(op));
  return false;
}

bool probe_has_fused(struct probe *p) {
  if (p->d->profile.fused) return true;
  probe_say(p, PROBE_SKIPPED, "%s has no fused attention", ascend_chip_name(p->d->profile.chip));
  return false;
}

bool probe_has_capture(struct probe *p) {
  if (p->d->profile.has_capture) return true;
  probe_say(p, PROBE_SKIPPED, "%s has no stream capture", ascend_chip_name(p->d->profile.chip));
  return false;
}

void *probe_room(struct probe *p, size_t n_bytes, int fill) {
  struct ascend *d = p->d;
  struct err e = {0};
  if (!ascend_ok(d)) return NULL;
  void *room = ascend_alloc(d, n_bytes, "a point", &e);
  if (!room) ascend_fail(d, "%s", e.msg);
  else ascend_check(d, d->acl.aclrtMemsetAsync(room, n_bytes, fill, n_bytes, d->stream), "aclrtMemsetAsync of %zu bytes", n_bytes);
  return room;
}

void probe_write(struct probe *p, void *device, const float *x, size_t n) {
  uint16_t *half = xmalloc(n * sizeof *half + 1);
  dtype_from_f32(p->d->dtype, x, half, n);
  if (device) ascend_write(p->d, device, half, n * sizeof *half);
  free(half);
}

void *probe_put(struct probe *p, float *x, size_t n) {
  uint16_t *half = xmalloc(n * sizeof *half + 1);
  dtype_from_f32(p->d->dtype, x, half, n);
  dtype_to_f32(p->d->dtype, half, x, n);
  void *device = probe_put_bytes(p, half, n * sizeof *half);
  free(half);
  return device;
}

void *probe_put_bytes(struct probe *p, const void *x, size_t n_bytes) {
  void *device = probe_room(p, n_bytes, 0);
  if (device) ascend_write(p->d, device, x, n_bytes);
  return device;
}

void probe_get(struct probe *p, void *out, const void *device, size_t n_bytes) {
  struct ascend *d = p->d;
  memset(out, 0xff, n_bytes);
  if (device && ascend_ok(d)) ascend_check(d, d->acl.aclrtMemcpy(out, n_bytes, device, n_bytes, NPU_DEVICE_TO_HOST), "aclrtMemcpy");
}

void probe_get_numbers(struct probe *p, float *out, const void *device, size_t n) {
  uint16_t *half = xmalloc(n * sizeof *half + 1);
  probe_get(p, half, device, n * sizeof *half);
  dtype_to_f32(p->d->dtype, half, out, n);
  free(half);
}

float probe_number(int what, size_t i) {
  uint64_t x = (uint64_t)what * 0x9e3779b97f4a7c15u + (uint64_t)i * 0xbf58476d1ce4e5b9u;
  x ^= x >> 31, x *= 0x7fb5d329728ea185u, x ^= x >> 27, x *= 0x81dadef4bc2dd44du, x ^= x >> 33;
  return (float)((int)(x & 127) - 64) / 64 + 1.0f / 128;
}

double probe_time(struct probe *p, void (*f)(struct probe *p, void *ctx), void *ctx, int times) {
  double best = -1;
  f(p, ctx);
  if (!probe_done(p, PROBE_FAILED, "")) return -1;
  for (int round = 0; round < ROUNDS; round++) {
    int64_t start = clock_ns();
    for (int i = 0; i < times; i++) f(p, ctx);
    if (!probe_done(p, PROBE_FAILED, "")) return -1;
    double us = (double)(clock_ns() - start) / 1e3 / times;
    if (best < 0 || us < best) best = us;
  }
  return best;
}

bool probe_discard(struct probe *p, enum acl_op op, int rc, uint64_t workspace_bytes, aclOpExecutor *executor, struct err *e) {
  struct ascend *d = p->d;
  *e = (struct err){0};
  if (ascend_ok(d)) {
    if (rc == 0) ascend_fail(d, "not to be run"); /* end_launch frees what was made, and launches nothing */
    ascend_end_launch(d, op, rc, workspace_bytes, executor);
  }
  if (rc) *e = d->failed;
  d->failed = (struct err){0};
  return rc == 0;
}

/* ---- fused attention -------------------------------------------------------------------------------------------------------------------- */

static aclTensor *fused_rows(struct ascend *d, const struct fused_call *c, const void *data) {
  const int64_t heads = c->n_q, width = c->head_dim;
  if (!strcmp(c->layout, "TND")) return ascend_view(d, data, d->type, (struct ascend_shape){3, {c->rows, heads, width}, {0}});
  if (!strcmp(c->layout, "BSND")) return ascend_view(d, data, d->type, (struct ascend_shape){4, {c->batch, c->rows, heads, width}, {0}});
  return ascend_view(d, data, d->type, (struct ascend_shape){3, {c->batch, c->rows, heads * width}, {0}});
}

static aclTensorList *fused_pool(struct ascend *d, const struct fused_call *c, const void *data) {
  aclTensor *t = ascend_view(d, data, d->type, (struct ascend_shape){3, {c->pages, c->page, (int64_t)c->n_kv * c->head_dim}, {0}});
  return ascend_list(d, &t, 1);
}

static aclTensor *fused_mask(struct ascend *d, const struct fused_call *c) {
  const int64_t keys = (int64_t)c->width * c->page;
  if (c->sparse) return ascend_view(d, c->mask, NPU_BOOL, (struct ascend_shape){2, {2048, 2048}, {0}});
  if (c->mask_wide) return ascend_view(d, c->mask, NPU_BOOL, (struct ascend_shape){4, {c->batch, 1, 1, keys}, {0}});
  return ascend_view(d, c->mask, NPU_BOOL, (struct ascend_shape){3, {c->batch, 1, keys}, {0}});
}

/* Phase 1 of the version that is there; the caller has begun the launch and ends it. */
#define TENSORS                                                                                                                            \
  fused_rows(d, c, c->q), fused_pool(d, c, c->k), fused_pool(d, c, c->v), NULL, fused_mask(d, c),                                          \
      c->ends ? ascend_ints(d, c->ends, c->batch) : NULL, ascend_ints(d, c->keys, c->batch), NULL, NULL, NULL, NULL, NULL, NULL, NULL,     \
      ascend_matrix(d, c->table, NPU_INT32, c->batch, c->width), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
#define NUMBERS c->n_q, scale, c->pre, c->next, layout, c->n_kv, c->sparse, 0, c->page, 0, false, 0, 0
static int fused_phase_1(struct ascend *d, const struct fused_call *c, uint64_t *bytes, aclOpExecutor **executor) {
  char layout[8];
  double scale = 1 / sqrt(c->head_dim);
  snprintf(layout, sizeof layout, "%s", c->layout);
  if (d->profile.fused >= 4)
    return d->acl.FusedInferAttentionScoreV4(TENSORS, NULL, NULL, NULL, NULL, NULL, NUMBERS, 0, fused_rows(d, c, c->out), NULL, bytes,
                                             executor);
  if (d->profile.fused == 3)
    return d->acl.FusedInferAttentionScoreV3(TENSORS, NULL, NULL, NULL, NUMBERS, fused_rows(d, c, c->out), NULL, bytes, executor);
  return d->acl.FusedInferAttentionScoreV2(TENSORS, NUMBERS, fused_rows(d, c, c->out), NULL, bytes, executor);
}

static enum acl_op fused_op(const struct ascend *d) {
  return d->profile.fused >= 4   ? ACL_OP_FusedInferAttentionScoreV4
         : d->profile.fused == 3 ? ACL_OP_FusedInferAttentionScoreV3
                                 : ACL_OP_FusedInferAttentionScoreV2;
}

void probe_fused(struct probe *p, const struct fused_call *c) {
  uint64_t bytes = 0;
  aclOpExecutor *executor = NULL;
  int rc = 0;
  if (ascend_begin_launch(p->d, fused_op(p->d))) rc = fused_phase_1(p->d, c, &bytes, &executor);
  ascend_end_launch(p->d, fused_op(p->d), rc, bytes, executor);
}

int64_t probe_fused_workspace(struct probe *p, const struct fused_call *c, struct err *e) {
  uint64_t bytes = 0;
  aclOpExecutor *executor = NULL;
  int rc = ascend_begin_launch(p->d, fused_op(p->d)) ? fused_phase_1(p->d, c, &bytes, &executor) : -1;
  return probe_discard(p, fused_op(p->d), rc, bytes, executor, e) ? (int64_t)bytes : -1;
}

/* ---- the device itself -------------------------------------------------------------------------------------------------------------------- */

static void device_itself(struct probe *p) {
  struct ascend *d = p->d;
  char text[256], missing[400] = "";
  size_t free_bytes = 0, total = 0, used = 0;
  int n_missing = 0;
  ascend_check(d, d->acl.aclrtGetMemInfo(NPU_HBM_MEM, &free_bytes, &total), "aclrtGetMemInfo");
  if (!probe_done(p, PROBE_FAILED, "")) return;
  probe_say(p, PROBE_FIGURE, "%s; %.1f of %.1f GiB free", ascend_profile_text(&d->profile, text), (double)free_bytes / (1 << 30),
            (double)total / (1 << 30));
  for (int op = 0; op < ACL_OP_COUNT; op++)
    if (!ascend_has(d, (enum acl_op)op) && ++n_missing && used + 48 < sizeof missing)
      used += (size_t)snprintf(missing + used, sizeof missing - used, "%s%s", used ? " " : "", acl_op_name((enum acl_op)op) + 5);
  probe_say(p, PROBE_FIGURE, "%d operators are not there%s%s", n_missing, n_missing ? ": " : "", missing);
}

static const struct point first_points[] = {
    {"device", "a known chip and version", device_itself},
    {0},
};
static const struct point *const lists[] = {first_points, probe_attention, probe_graphs, probe_operators};

/* ---- processes ------------------------------------------------------------------------------------------------------------------------------ */

static void in_child(const struct point *point, const struct options *o, int to) {
  struct device_config c = {.n_threads = 1, .rows_max = 64, .cols_max = 64, .number = o->device};
  struct probe p = {.pipe = to};
  struct err e = {0};
  size_t free_bytes, total = 0;
  struct device *device = device_ascend_ops.open(&c, &e);
  if (!device) {
    probe_say(&p, PROBE_FAILED, "%s", e.msg);
    return;
  }
  p.d = ascend_of(device);
  p.small = p.d->acl.aclrtGetMemInfo(NPU_HBM_MEM, &free_bytes, &total) == 0 && total < (size_t)SMALL_GIB << 30;
  point->run(&p);
  device_ascend_ops.close(device);
}

/* The child's findings, one after the other, until it has ended or its time is over. */
static enum verdict listen(int from, pid_t child, int seconds, char found[4 * FOUND_BYTES]) {
  enum verdict worst = PROBE_SKIPPED;
  size_t used = 0, room = 4 * FOUND_BYTES;
  int64_t end = clock_ns() + (int64_t)seconds * 1000000000;
  bool ended = false, late = false;
  int status = 0;
  found[0] = 0;
  while (!ended && !late) {
    struct message m;
    struct pollfd fd = {from, POLLIN, 0};
    int64_t left = (end - clock_ns()) / 1000000;
    int ready = poll(&fd, 1, left > 0 ? (int)left : 0);
    if (ready == 0) late = true;
    if (ready <= 0) continue;
    if (read(from, &m, sizeof m) != (ssize_t)sizeof m) ended = true;
    else if (used + 2 < room) {
      worst = MAX(worst, m.verdict);
      used += (size_t)snprintf(found + used, room - used, "%s%s", used ? "; " : "", m.text);
      used = MIN(used, room - 1);
    }
  }
  if (late) kill(child, SIGKILL);
  pid_t reaped = 0;
  for (int i = 0; reaped == 0 && i < 500; i++) { /* one that hangs in the driver cannot even be killed */
    reaped = waitpid(child, &status, WNOHANG);
    if (reaped == 0) usleep(20000);
  }
  const char *gap = used ? "; " : "";
  if (late) snprintf(found + used, room - used, "%sno end after %d s", gap, seconds);
  else if (reaped > 0 && WIFSIGNALED(status)) snprintf(found + used, room - used, "%sended by signal %d", gap, WTERMSIG(status));
  else if (reaped == 0) snprintf(found + used, room - used, "%sits process does not end", gap);
  else if (!used) snprintf(found, room, "nothing was found");
  else return worst;
  return PROBE_FAILED;
}

static enum verdict try_point(const struct point *point, const struct options *o) {
  static const char *const words[] = {"skipped", "figure", "as expected", "DIFFERS", "FAILED"};
  static char found[4 * FOUND_BYTES];
  int ends[2];
  int64_t start = clock_ns();
  fflush(NULL);
  if (pipe(ends)) return PROBE_FAILED;
  pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    dup2(STDERR_FILENO, STDOUT_FILENO); /* the report is the parent's, whatever CANN writes */
    in_child(point, o, ends[1]);
    _exit(0);
  }
  close(ends[1]);
  enum verdict v = PROBE_FAILED;
  if (child < 0) snprintf(found, sizeof found, "no process: %s", strerror(errno));
  else v = listen(ends[0], child, o->seconds, found);
  close(ends[0]);
  printf("%-11s  %s (%.1f s)\n    expected  %s\n    found     %s\n", words[v], point->name, (double)(clock_ns() - start) / 1e9,
         point->expected, found);
  fflush(stdout);
  return v;
}

static bool is_wanted(const struct options *o, const char *name) {
  for (int i = 0; i < o->n_names; i++)
    if (!strncmp(name, o->names[i], strlen(o->names[i]))) return true;
  return o->n_names == 0;
}

static int usage(void) {
  fprintf(stderr, "ascend_probe [--device N] [--seconds N] [--list] [NAME...]\n");
  return 2;
}

int main(int argc, char **argv) {
  struct options o = {.seconds = 120};
  bool list_only = false;
  int at = 1, counts[PROBE_FAILED + 1] = {0};
  for (; at < argc && !strncmp(argv[at], "--", 2); at++) {
    if (!strcmp(argv[at], "--list")) list_only = true;
    else if (!strcmp(argv[at], "--device") && at + 1 < argc) o.device = atoi(argv[++at]);
    else if (!strcmp(argv[at], "--seconds") && at + 1 < argc && atoi(argv[at + 1]) > 0) o.seconds = atoi(argv[++at]);
    else return usage();
  }
  o.names = argv + at, o.n_names = argc - at;
  for (size_t l = 0; l < ARRAY_LEN(lists); l++) {
    for (const struct point *point = lists[l]; point->name; point++) {
      if (!is_wanted(&o, point->name)) continue;
      if (list_only) {
        printf("%-16s %s\n", point->name, point->expected);
        continue;
      }
      enum verdict v = try_point(point, &o);
      counts[v]++;
      if (l == 0 && v == PROBE_FAILED) return 2; /* no device: nothing else can be asked */
    }
  }
  if (!list_only)
    printf("probe: %d as expected, %d differ, %d failed, %d figures, %d skipped\n", counts[PROBE_EXPECTED], counts[PROBE_DIFFERS],
           counts[PROBE_FAILED], counts[PROBE_FIGURE], counts[PROBE_SKIPPED]);
  return counts[PROBE_DIFFERS] || counts[PROBE_FAILED];
}
