/* memory.c — every byte that the backend has on the device, and every pinned one on the host.
 *
 *   blocks        what ascend_alloc and ascend_alloc_host gave out; close gives back what is left
 *   temporary     chunks, filled from the front again by every operation; they are never moved, and not freed before close, for recorded
 *                 steps know their addresses. The stream does one operation after the other, so the next may have the same memory
 *   workspaces    the same: the largest is used, smaller ones stay for the records that know them
 *   pinned        what copies to the device are read from; filled from the front, and again from there once everything has been waited for
 *   held          vectors: two copies each, float32 and the device's type; a pointer into a held range is found
 *   batch         the held batch's arrays of one number per row, at fixed places; one copy in each step brings what is in use
 *
 * The device's kernels may read 32 bytes beyond a tensor's end: parts of chunks are that far apart. Parts begin at multiples of 64; an operand
 * must begin at one of 32.
 *
 * After an error nothing is allocated until finish has told it, and after the device was lost nothing is freed until close: nobody knows what it
 * still does.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "compute/ascend/ascend.h"

enum {
  ALIGN = 64,
  OPERAND_ALIGN = 32,
  OVER_READ = 32,
  CHUNK_BYTES = 2 << 20, /* temporary memory and workspaces grow by this at least: a page of the device */
  PINNED_BYTES = 8 << 20,
  CHUNKS_MAX = 64,
  BATCH_ARRAYS = 6 + 2 * BATCH_KINDS, /* token, soft, pos, seq, q_start, out; lo, hi */
};

struct block {
  void *data;
  bool on_host;
};

struct chunk {
  char *data;
  size_t n_bytes;
};

struct held {
  const float *host;
  size_t n;
  char *device; /* float32, then the device's type from `half` on */
  size_t half;
};

struct held_batch {
  const struct batch *batch; /* NULL: none */
  const int32_t *arrays[BATCH_ARRAYS];
  int n_arrays;
  int capacity; /* numbers of each array */
  size_t pitch; /* bytes from one array to the next on the device */
  char *device; /* [n_arrays + 1][capacity]; the last is of the device's type: which rows see a bank */
};

struct ascend_memory {
  struct block *blocks;
  int n_blocks, blocks_cap;
  struct chunk temp[CHUNKS_MAX], workspaces[CHUNKS_MAX];
  int n_temp, n_workspaces;
  int temp_at; /* chunk that is being filled */
  size_t temp_used;
  char *pinned;
  size_t pinned_used;
  struct held *held; /* by address */
  int n_held, held_cap;
  struct held_batch batch;
};

/* ---- blocks ----------------------------------------------------------------------------------------------------------------------- */

static void *take(struct ascend *d, size_t n_bytes, bool on_host, const char *what, struct err *e) {
  char human[32], why[256];
  void *p = NULL;
  if (d->record) ascend_fail(d, "%s: a recorded step asked for memory", what);
  if (d->device.lost) ascend_fail(d, "%s: the device is lost", what);
  if (!ascend_ok(d) || !ascend_enter(d)) {
    if (e) *e = d->failed;
    return NULL;
  }
  n_bytes = MAX(n_bytes, ALIGN);
  int rc = on_host ? d->acl.aclrtMallocHost(&p, n_bytes) : d->acl.aclrtMalloc(&p, n_bytes, NPU_HUGE_FIRST);
  if (rc || !p) {
    err_set(e, ERR_NO_MEMORY, "NPU %d: %s: cannot get %s of %s memory: %s", d->config.number, what, mem_human(n_bytes, human),
            on_host ? "pinned host" : "device", acl_error_text(&d->acl, rc, why));
    return NULL;
  }
  return p;
}

static void *take_block(struct ascend *d, size_t n_bytes, bool on_host, const char *what, struct err *e) {
  struct ascend_memory *m = d->memory;
  void *p = take(d, n_bytes, on_host, what, e);
  if (!p) return NULL;
  if (m->n_blocks == m->blocks_cap) {
    m->blocks_cap = MAX(2 * m->blocks_cap, 64);
    m->blocks = xrealloc(m->blocks, (size_t)m->blocks_cap * sizeof *m->blocks);
  }
  m->blocks[m->n_blocks++] = (struct block){p, on_host};
  return p;
}

static void give_block(struct ascend *d, const struct block *b) {
  if (b->on_host) d->acl.aclrtFreeHost(b->data);
  else d->acl.aclrtFree(b->data);
}

static void free_block(struct ascend *d, void *p) {
  struct ascend_memory *m = d->memory;
  if (!p) return;
  ascend_enter(d);
  ascend_wait(d);
  if (d->device.lost) return; /* queued work may still use it: close gives it back, when there are no streams any more */
  for (int i = m->n_blocks - 1; i >= 0; i--) {
    if (m->blocks[i].data != p) continue;
    give_block(d, &m->blocks[i]);
    m->blocks[i] = m->blocks[--m->n_blocks];
    return;
  }
  CHECK(!"freed memory is the device's");
}

void *ascend_alloc(struct ascend *d, size_t n_bytes, const char *what, struct err *e) { return take_block(d, n_bytes, false, what, e); }
void ascend_free(struct ascend *d, void *p) { free_block(d, p); }
void *ascend_alloc_host(struct ascend *d, size_t n_bytes, const char *what, struct err *e) { return take_block(d, n_bytes, true, what, e); }
void ascend_free_host(struct ascend *d, void *p) { free_block(d, p); }

/* ---- temporary memory and workspaces ------------------------------------------------------------------------------------------------ */

/* Also in the middle of a step, where the host's memory is not to be asked for: chunks have places of their own. */
static bool add_chunk(struct ascend *d, struct chunk *chunks, int *n, size_t n_bytes, const char *what) {
  struct err e = {0};
  if (*n == CHUNKS_MAX) {
    ascend_fail(d, "%s: more than %d pieces", what, CHUNKS_MAX);
    return false;
  }
  chunks[*n] = (struct chunk){take(d, n_bytes, false, what, &e), n_bytes};
  if (!chunks[*n].data) {
    if (ascend_ok(d)) d->failed = e;
    return false;
  }
  (*n)++;
  return true;
}

void ascend_temp_reset(struct ascend *d) {
  d->memory->temp_at = 0;
  d->memory->temp_used = 0;
}

void *ascend_temp(struct ascend *d, size_t n_bytes) {
  struct ascend_memory *m = d->memory;
  size_t n;
  if (!ascend_ok(d)) return NULL;
  if (size_add_overflows(n_bytes, OVER_READ + ALIGN, &n) || n > SIZE_MAX / 4) {
    ascend_fail(d, "temporary memory: %zu bytes are too many", n_bytes);
    return NULL;
  }
  n = align_up(n_bytes + OVER_READ, ALIGN);
  while (m->temp_at < m->n_temp && n > m->temp[m->temp_at].n_bytes - m->temp_used) {
    m->temp_at++;
    m->temp_used = 0;
  }
  if (m->temp_at == m->n_temp) {
    size_t last = m->n_temp ? m->temp[m->n_temp - 1].n_bytes : 0;
    if (!add_chunk(d, m->temp, &m->n_temp, MAX(align_up(n, CHUNK_BYTES), 2 * last), "temporary memory")) return NULL;
  }
  char *p = m->temp[m->temp_at].data + m->temp_used;
  m->temp_used += n;
  return p;
}

void *ascend_workspace(struct ascend *d, size_t n_bytes) {
  struct ascend_memory *m = d->memory;
  if (!ascend_ok(d)) return NULL;
  size_t largest = m->n_workspaces ? m->workspaces[m->n_workspaces - 1].n_bytes : 0;
  if (n_bytes > SIZE_MAX / 4) {
    ascend_fail(d, "workspace: %zu bytes are too many", n_bytes);
    return NULL;
  }
  if (n_bytes > largest &&
      !add_chunk(d, m->workspaces, &m->n_workspaces, MAX(align_up(n_bytes, CHUNK_BYTES), largest + largest / 2), "workspace"))
    return NULL;
  return m->workspaces[MAX(m->n_workspaces, 1) - 1].data;
}

/* ---- copies to the device ------------------------------------------------------------------------------------------------------------- */

void ascend_waited(struct ascend *d) { d->memory->pinned_used = 0; }

/* Pinned memory for a copy to the device, of up to n_bytes: *got of them. NULL after an error. */
static void *pinned_room(struct ascend *d, size_t n_bytes, size_t least, size_t *got) {
  struct ascend_memory *m = d->memory;
  if (!ascend_ok(d)) return NULL;
  if (d->record) {
    ascend_fail(d, "a recorded step was given numbers that nobody holds");
    return NULL;
  }
  CHECK(least <= PINNED_BYTES);
  if (PINNED_BYTES - m->pinned_used < MIN(n_bytes, MAX(least, PINNED_BYTES / 4)) && !ascend_wait(d)) return NULL;
  char *p = m->pinned + m->pinned_used;
  *got = MIN(n_bytes, PINNED_BYTES - m->pinned_used);
  return p;
}
static void pinned_take(struct ascend *d, size_t n_bytes) { d->memory->pinned_used += align_up(n_bytes, ALIGN); }

static bool copy_in(struct ascend *d, void *device, const void *pinned, size_t n_bytes) {
  pinned_take(d, n_bytes);
  return ascend_check(d, d->acl.aclrtMemcpyAsync(device, n_bytes, pinned, n_bytes, NPU_HOST_TO_DEVICE, d->stream),
                      "copying %zu bytes to the device", n_bytes);
}

void ascend_write(struct ascend *d, void *device, const void *host, size_t n_bytes) {
  for (size_t done = 0, n; done < n_bytes; done += n) {
    void *pinned = pinned_room(d, n_bytes - done, 1, &n);
    if (!pinned) return;
    memcpy(pinned, (const char *)host + done, n);
    if (!copy_in(d, (char *)device + done, pinned, n)) return;
  }
}

/* n numbers as the device's type, or as they are. */
static void write_floats(struct ascend *d, void *device, const float *host, size_t n, enum dtype type) {
  size_t elem = (size_t)dtype_info(type)->block_bytes;
  for (size_t done = 0, got; done < n; done += got) {
    void *pinned = pinned_room(d, (n - done) * elem, elem, &got);
    if (!pinned) return;
    got /= elem;
    dtype_from_f32(type, host + done, pinned, got);
    if (!copy_in(d, (char *)device + done * elem, pinned, got * elem)) return;
  }
}

void *ascend_upload(struct ascend *d, const void *host, size_t n_bytes) {
  void *device = ascend_temp(d, n_bytes);
  if (device) ascend_write(d, device, host, n_bytes);
  return ascend_ok(d) ? device : NULL;
}

void ascend_send_rows(struct ascend *d, const struct tensor *t, const struct tensor *host) {
  CHECK(host->dtype == DTYPE_F32 && host->rows >= t->rows && host->cols == t->cols);
  size_t width = (size_t)t->cols * tensor_elem_bytes(t), pitch = align_up(width, ALIGN), got;
  if (width == 0) return;
  for (int row = 0, n; row < t->rows; row += n) {
    if (width > PINNED_BYTES / 2) { /* one row at a time, in pieces */
      n = 1;
      write_floats(d, tensor_at(t, row, 0), tensor_row(host, row), (size_t)t->cols, t->dtype);
      if (!ascend_ok(d)) return;
      continue;
    }
    char *pinned = pinned_room(d, (size_t)(t->rows - row) * pitch, pitch, &got);
    if (!pinned) return;
    n = (int)(got / pitch);
    for (int i = 0; i < n; i++) dtype_from_f32(t->dtype, tensor_row(host, row + i), pinned + (size_t)i * pitch, (size_t)t->cols);
    pinned_take(d, (size_t)n * pitch);
    if (!ascend_copy_rows(d, tensor_at(t, row, 0), t->row_bytes, pinned, pitch, width, n, NPU_HOST_TO_DEVICE)) return;
  }
}

/* Whole rows go in one piece; the bytes between rows, which may be another tensor's, are never written. */
bool ascend_copy_rows(struct ascend *d, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, int rows,
                      aclrtMemcpyKind kind) {
  size_t n = (size_t)rows * width;
  int rc = rows == 1 || (to_pitch == width && from_pitch == width)
               ? d->acl.aclrtMemcpyAsync(to, n, from, n, kind, d->stream)
               : d->acl.aclrtMemcpy2dAsync(to, to_pitch, from, from_pitch, width, (size_t)rows, kind, d->stream);
  return ascend_check(d, rc, "copying %d rows of %zu bytes", rows, width);
}

/* ---- what is held ------------------------------------------------------------------------------------------------------------------------ */

/* Place of the first range that begins behind p. */
static int held_after(const struct ascend_memory *m, const float *p) {
  int lo = 0, hi = m->n_held;
  while (lo < hi) {
    int mid = (lo + hi) / 2;
    if ((uintptr_t)m->held[mid].host > (uintptr_t)p) hi = mid;
    else lo = mid + 1;
  }
  return lo;
}

int ascend_hold(struct device *device, const float *w, size_t n, struct err *e) {
  struct ascend *d = ascend_of(device);
  struct ascend_memory *m = d->memory;
  size_t half = align_up(n * sizeof *w + OVER_READ, ALIGN), elem = (size_t)dtype_info(d->dtype)->block_bytes;
  if (n == 0) return 0;
  char *p = ascend_alloc(d, half + n * elem, "vectors", e);
  if (!p) return -1;
  write_floats(d, p, w, n, DTYPE_F32);
  write_floats(d, p + half, w, n, d->dtype);
  if (!ascend_ok(d)) {
    if (e) *e = d->failed;
    ascend_free(d, p);
    return -1;
  }
  if (m->n_held == m->held_cap) {
    m->held_cap = MAX(2 * m->held_cap, 64);
    m->held = xrealloc(m->held, (size_t)m->held_cap * sizeof *m->held);
  }
  int at = held_after(m, w);
  memmove(m->held + at + 1, m->held + at, (size_t)(m->n_held++ - at) * sizeof *m->held);
  m->held[at] = (struct held){w, n, p, half};
  return 0;
}

void ascend_drop(struct device *device, const float *w) {
  struct ascend *d = ascend_of(device);
  struct ascend_memory *m = d->memory;
  int at = held_after(m, w) - 1;
  if (at < 0 || m->held[at].host != w) return;
  ascend_free(d, m->held[at].device);
  memmove(m->held + at, m->held + at + 1, (size_t)(--m->n_held - at) * sizeof *m->held);
}

/* What begins at an odd place of a held range is copied to one where an operand may begin. */
static const void *operand(struct ascend *d, const char *device, size_t n_bytes) {
  if ((uintptr_t)device % OPERAND_ALIGN == 0) return device;
  void *temp = ascend_temp(d, n_bytes);
  if (temp)
    ascend_check(d, d->acl.aclrtMemcpyAsync(temp, n_bytes, device, n_bytes, NPU_DEVICE_TO_DEVICE, d->stream), "moving %zu bytes", n_bytes);
  return ascend_ok(d) ? temp : NULL;
}

const void *ascend_vector(struct ascend *d, const float *host, int n, aclDataType type) {
  struct ascend_memory *m = d->memory;
  enum dtype as = type == NPU_FLOAT ? DTYPE_F32 : d->dtype;
  size_t elem = (size_t)dtype_info(as)->block_bytes, n_bytes = (size_t)n * elem;
  CHECK(type == NPU_FLOAT || type == d->type);
  if (!ascend_ok(d)) return NULL;
  int at = held_after(m, host) - 1;
  const struct held *h = at >= 0 ? &m->held[at] : NULL;
  if (h && host + n <= h->host + h->n)
    return operand(d, h->device + (as == DTYPE_F32 ? 0 : h->half) + (size_t)(host - h->host) * elem, n_bytes);
  void *device = ascend_temp(d, n_bytes);
  if (device) write_floats(d, device, host, (size_t)n, as);
  return ascend_ok(d) ? device : NULL;
}

/* ---- the batch ----------------------------------------------------------------------------------------------------------------------------- */

static int list_arrays(const struct batch *b, const int32_t *arrays[BATCH_ARRAYS]) {
  const int32_t *all[BATCH_ARRAYS] = {b->token, b->soft, b->pos, b->seq, b->q_start, b->out};
  int n = 0;
  for (int k = 0; k < BATCH_KINDS; k++) all[6 + k] = b->lo[k], all[6 + BATCH_KINDS + k] = b->hi[k];
  for (int i = 0; i < BATCH_ARRAYS; i++)
    if (all[i]) arrays[n++] = all[i];
  return n;
}

int ascend_hold_batch(struct device *device, const struct batch *b, struct err *e) {
  struct ascend *d = ascend_of(device);
  struct held_batch *h = &d->memory->batch;
  ascend_free(d, h->device);
  *h = (struct held_batch){0};
  if (!b) return 0;
  h->n_arrays = list_arrays(b, h->arrays);
  h->capacity = MAX(MAX(b->rows_max, b->seqs_max + 1), b->out_max);
  h->pitch = align_up((size_t)h->capacity * sizeof(int32_t) + OVER_READ, ALIGN);
  h->device = ascend_alloc(d, (size_t)(h->n_arrays + 1) * h->pitch, "arrays of a step", e);
  if (!h->device) return -1;
  h->batch = b;
  return 0;
}

static void fill_sees(const struct ascend *d, uint16_t *out, const int32_t *lo, const int32_t *hi, int n) {
  uint16_t one = d->dtype == DTYPE_BF16 ? f32_to_bf16(1) : f32_to_f16(1);
  for (int r = 0; r < n; r++) out[r] = lo[r] < hi[r] ? one : 0;
}

/* One copy of [arrays, rows in use]. Arrays differ a little in how much of them is in use; none is read beyond what it holds. */
void ascend_send_batch(struct ascend *d, const struct batch *b) {
  struct held_batch *h = &d->memory->batch;
  if (!b || b != h->batch || b->n_rows < 1) return;
  int n = MIN(MAX(MAX(b->n_rows, b->n_seqs + 1), b->n_out), h->capacity), n_lines = h->n_arrays + (b->lo[BATCH_CROSS] != NULL);
  size_t width = (size_t)n * sizeof(int32_t), got;
  char *pinned = pinned_room(d, (size_t)n_lines * width, (size_t)n_lines * width, &got);
  if (!pinned) return;
  for (int i = 0; i < h->n_arrays; i++) {
    const int32_t *a = h->arrays[i];
    int in_use = a == b->q_start ? b->n_seqs + 1 : a == b->out ? b->n_out : b->n_rows;
    memcpy(pinned + (size_t)i * width, a, (size_t)in_use * sizeof *a);
    memset(pinned + (size_t)i * width + (size_t)in_use * sizeof *a, 0, width - (size_t)in_use * sizeof *a);
  }
  if (b->lo[BATCH_CROSS]) {
    uint16_t *sees = (uint16_t *)(void *)(pinned + (size_t)h->n_arrays * width);
    memset(sees, 0, width);
    fill_sees(d, sees, b->lo[BATCH_CROSS], b->hi[BATCH_CROSS], b->n_rows);
  }
  pinned_take(d, (size_t)n_lines * width);
  ascend_copy_rows(d, h->device, h->pitch, pinned, width, width, n_lines, NPU_HOST_TO_DEVICE);
}

/* Number of the held array that [host, host + n) lies in, -1 = none. */
static int held_array(const struct held_batch *h, const int32_t *host, int n) {
  for (int i = 0; h->batch && i < h->n_arrays; i++) {
    const int32_t *a = h->arrays[i];
    int capacity = a == h->batch->q_start ? h->batch->seqs_max + 1 : a == h->batch->out ? h->batch->out_max : h->batch->rows_max;
    if ((uintptr_t)host >= (uintptr_t)a && (uintptr_t)(host + n) <= (uintptr_t)(a + capacity)) return i;
  }
  return -1;
}

const int32_t *ascend_int32(struct ascend *d, const int32_t *host, int n) {
  const struct held_batch *h = &d->memory->batch;
  size_t n_bytes = (size_t)n * sizeof *host;
  if (!ascend_ok(d)) return NULL;
  int i = held_array(h, host, n);
  if (i < 0) return ascend_upload(d, host, n_bytes);
  return operand(d, h->device + (size_t)i * h->pitch + (size_t)(host - h->arrays[i]) * sizeof *host, n_bytes);
}

const void *ascend_sees(struct ascend *d, const int32_t *lo, const int32_t *hi, int n) {
  const struct held_batch *h = &d->memory->batch;
  size_t n_bytes = (size_t)n * sizeof(uint16_t), got;
  if (!ascend_ok(d)) return NULL;
  const int32_t *cross = h->batch ? h->batch->lo[BATCH_CROSS] : NULL;
  int i = cross ? held_array(h, lo, n) : -1;
  if (i >= 0 && h->arrays[i] == cross && hi == h->batch->hi[BATCH_CROSS] + (lo - cross))
    return operand(d, h->device + (size_t)h->n_arrays * h->pitch + (size_t)(lo - cross) * sizeof(uint16_t), n_bytes);
  char *device = ascend_temp(d, n_bytes);
  for (int done = 0, piece; device && done < n; done += piece) {
    void *pinned = pinned_room(d, n_bytes - (size_t)done * sizeof(uint16_t), sizeof(uint16_t), &got);
    if (!pinned) return NULL;
    piece = (int)(got / sizeof(uint16_t));
    fill_sees(d, pinned, lo + done, hi + done, piece);
    if (!copy_in(d, device + (size_t)done * sizeof(uint16_t), pinned, (size_t)piece * sizeof(uint16_t))) return NULL;
  }
  return ascend_ok(d) ? device : NULL;
}

/* ---- life ------------------------------------------------------------------------------------------------------------------------------------- */

int ascend_memory_open(struct ascend *d, struct err *e) {
  d->memory = xcalloc(1, sizeof *d->memory);
  d->memory->pinned = ascend_alloc_host(d, PINNED_BYTES, "memory for copies", e);
  return d->memory->pinned ? 0 : -1;
}

/* Callers have waited for the stream, or destroyed it. */
void ascend_memory_close(struct ascend *d) {
  struct ascend_memory *m = d->memory;
  if (!m) return;
  for (int i = 0; i < m->n_temp; i++) d->acl.aclrtFree(m->temp[i].data);
  for (int i = 0; i < m->n_workspaces; i++) d->acl.aclrtFree(m->workspaces[i].data);
  for (int i = m->n_blocks - 1; i >= 0; i--) give_block(d, &m->blocks[i]);
  free(m->blocks);
  free(m->held);
  free(m);
  d->memory = NULL;
}
