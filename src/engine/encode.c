/* encode.c — which media are encoded next, and where their rows go. The rules are in encode.h. */
#include "engine/encode.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine.h"

/* ---- a job's life -------------------------------------------------------------------------------------------------------------- */

static void end_job(struct encode *j) {
  for (int i = 0; i < j->n_items; i++) media_release(j->items[i].media);
  j->x = NULL;
  j->n_items = 0;
}

/* The entry that an item goes to; 0: nobody waits for it. */
static int32_t entry_of(const struct cygnet *c, const struct encode_item *y) {
  int32_t id = banks_find(c->banks, &y->key);
  return id && !banks_is_filled(c->banks, id) ? id : 0;
}

static bool is_wanted(const struct cygnet *c, const struct encode *j) {
  for (int i = j->is_complete ? j->item : 0; i < j->n_items; i++)
    if (entry_of(c, &j->items[i])) return true;
  return false;
}

void encode_settle(struct cygnet *c, bool all) {
  struct encode *j = &c->encode;
  if (!j->x || (!all && is_wanted(c, j))) return;
  if (!j->is_complete) encoder_cancel(j->x);
  end_job(j);
}

int encode_open(struct cygnet *c, struct err *e) {
  struct device *d = c->model->dev;
  c->encode.block = ENCODER_ROWS;
  return d->ops->host_alloc(d, &c->encode.host, ENCODER_ROWS, c->config.hidden, "rows of pictures and sounds", e);
}

void encode_close(struct cygnet *c) {
  if (c->model) c->model->dev->ops->host_free(c->model->dev, &c->encode.host);
}

/* ---- what is next -------------------------------------------------------------------------------------------------------------- */

static struct encoder *encoder_of(const struct cygnet *c, const struct media *m) {
  return m->kind == MEDIA_AUDIO ? c->model->audio : c->model->vision;
}

static bool waits(const struct cygnet *c, const struct request_bank *b) { return b->entry && !banks_is_filled(c->banks, b->entry); }

static bool is_in_job(const struct encode *j, const struct bank_key *key) {
  for (int i = 0; i < j->n_items; i++)
    if (memcmp(&j->items[i].key, key, sizeof *key) == 0) return true;
  return false;
}

static void add_item(struct encode *j, const struct request *r, const struct request_bank *b, int span) {
  const struct request_span *y = &r->spans[span];
  media_retain(y->media);
  j->items[j->n_items++] = (struct encode_item){
      .key = b->key, .first_row = y->bank_end - y->media->n_rows, .media = y->media, .number = r->number};
}

/* Pictures of one bank that are not stored yet, as many as the encoder takes. */
static void begin_group(struct cygnet *c, const struct request *r, const struct request_bank *b) {
  struct encode *j = &c->encode;
  uint64_t serial = banks_serial(c->banks, b->entry);
  if (j->partial_serial != serial) j->n_stored = 0;
  j->partial_serial = serial;
  int rows = 0;
  for (int i = j->n_stored; i < b->n_spans && j->n_items < ENCODER_ITEMS_MAX; i++) {
    rows += r->spans[b->first_span + i].media->n_patches;
    if (i > j->n_stored && rows > j->x->rows_max) break;
    add_item(j, r, b, b->first_span + i);
  }
}

/* Others that wait and are small enough to share a block. */
static void add_others(struct cygnet *c) {
  struct encode *j = &c->encode;
  int rows = j->items[0].media->n_patches, most = MIN(j->x->rows_max, ENCODER_ROWS);
  for (const struct request *r = c->sched.running.first; r; r = r->next)
    for (int i = 0; i < r->n_banks; i++) {
      const struct request_bank *b = &r->banks[i];
      const struct media *m = r->spans[b->first_span].media;
      if (b->n_spans > 1 || !waits(c, b) || encoder_of(c, m) != j->x || is_in_job(j, &b->key)) continue;
      if (j->n_items == ENCODER_ITEMS_MAX || rows + m->n_patches > most) return; /* in order */
      rows += m->n_patches;
      add_item(j, r, b, b->first_span);
    }
}

static bool begin_job(struct cygnet *c) {
  struct encode *j = &c->encode;
  const struct request *r = c->sched.running.first;
  const struct request_bank *b = NULL;
  for (; r; r = r->next) {
    int i = 0;
    while (i < r->n_banks && !waits(c, &r->banks[i])) i++;
    if (i == r->n_banks) continue;
    b = &r->banks[i];
    break;
  }
  if (!b) return false;
  j->x = encoder_of(c, r->spans[b->first_span].media);
  j->n_items = 0;
  j->is_complete = false;
  j->item = j->row = 0;
  j->serial = 0;
  j->ms = 0;
  if (b->n_spans > 1) {
    begin_group(c, r, b);
  } else {
    add_item(j, r, b, b->first_span);
    add_others(c);
  }
  const struct media *items[ENCODER_ITEMS_MAX];
  for (int i = 0; i < j->n_items; i++) items[i] = j->items[i].media;
  c->model->dev->ops->step(c->model->dev, NULL);
  encoder_begin(j->x, items, j->n_items);
  return true;
}

/* ---- storing ------------------------------------------------------------------------------------------------------------------- */

static bool is_finite(struct cygnet *c, const struct tensor *rows) {
  struct tensor host = tensor_rows(c->encode.host, rows->rows);
  c->model->dev->ops->fetch(c->model->dev, &host, rows);
  for (int r = 0; r < host.rows; r++) {
    const float *x = tensor_row(&host, r);
    for (int i = 0; i < host.cols; i++)
      if (!isfinite(x[i])) return false;
  }
  return true;
}

/* Rows of the job that come before an item's. */
static int rows_before(const struct encode *j, int item) {
  int n = 0;
  for (int i = 0; i < item; i++) n += j->items[i].media->n_rows;
  return n;
}

static void store_rows(struct cygnet *c, const struct tensor *rows, const int64_t *slots) {
  struct device *d = c->model->dev;
  if (c->limits.media.cross) {
    c->model->ops->fill(c->model, rows, slots);
    return;
  }
  for (int first = 0, n; first < rows->rows; first += n) { /* a page's slots are consecutive */
    for (n = 1; first + n < rows->rows && slots[first + n] == slots[first] + n;) n++;
    struct tensor to = tensor_part(c->model->soft, (int)slots[first], n, 0, rows->cols), from = tensor_part(*rows, first, n, 0, rows->cols);
    d->ops->copy(d, &to, &from);
  }
}

/* An item is in its entry. */
static void finish_item(struct cygnet *c, const struct encode_item *y, int32_t entry) {
  struct encode *j = &c->encode;
  int n_rows = banks_n_rows(c->banks, entry);
  if (y->first_row == 0 && y->media->n_rows < n_rows) j->partial_serial = banks_serial(c->banks, entry), j->n_stored = 0;
  if (y->media->n_rows < n_rows) j->n_stored++;
  if (y->first_row + y->media->n_rows == n_rows) banks_fill(c->banks, entry);
  c->stats.n_encoded++;
  c->stats.media_rows_encoded += (uint64_t)y->media->n_rows;
}

/* A block of rows of the next item goes to its entry, if anybody still wants it. The entry may be another one than that of the blocks
 * before. */
static void store(struct cygnet *c) {
  struct encode *j = &c->encode;
  const struct encode_item *y = &j->items[j->item];
  int32_t entry = entry_of(c, y);
  bool starts = y->first_row == 0 || (entry && j->partial_serial == banks_serial(c->banks, entry));
  if (!entry || !starts) {
    j->item++, j->row = 0;
    return;
  }
  if (banks_serial(c->banks, entry) != j->serial) j->row = 0;
  j->serial = banks_serial(c->banks, entry);
  int n = MIN(y->media->n_rows - j->row, j->block);
  struct tensor rows = encoder_part(j->x->out, rows_before(j, j->item) + j->row, n);
  struct err why = {0};
  bool finite = is_finite(c, &rows);
  if (finite) {
    banks_slots(c->banks, entry, y->first_row + j->row, n, j->slots);
    store_rows(c, &rows, j->slots);
  }
  if (!engine_finish_device(c, &why) || !finite) {
    engine_fail_bank(c, entry, why.code ? why.msg : "the encoder computed rows that are no finite numbers");
    j->item++, j->row = 0;
    return;
  }
  j->row += n;
  if (j->row < y->media->n_rows) return;
  finish_item(c, y, entry);
  j->item++, j->row = 0;
}

/* Time is the request's that wanted an item first, in proportion to what goes in. */
static void share_time(struct cygnet *c) {
  struct encode *j = &c->encode;
  int64_t n = 0;
  for (int i = 0; i < j->n_items; i++) n += j->items[i].media->n_patches;
  for (int i = 0; i < j->n_items; i++) {
    struct request *r = engine_find(c, j->items[i].number);
    if (r) r->encode_ms += j->ms * j->items[i].media->n_patches / (double)n;
  }
}

/* ---- one unit ------------------------------------------------------------------------------------------------------------------ */

/* In debug builds encoders do not allocate either. */
static void guard(bool up) {
#ifdef CYGNET_DEBUG
  if (up) mem_guard_begin("encoder");
  else mem_guard_end();
#else
  (void)up;
#endif
}

/* The device failed: what it computed for the job is worth nothing. */
static void fail_job(struct cygnet *c, const struct err *why) {
  struct encode *j = &c->encode;
  for (int i = 0; i < j->n_items; i++) {
    int32_t entry = entry_of(c, &j->items[i]);
    if (entry) engine_fail_bank(c, entry, why->msg);
  }
  if (!j->is_complete) encoder_cancel(j->x);
  end_job(j);
}

bool encode_unit(struct cygnet *c) {
  struct encode *j = &c->encode;
  struct device *d = c->model->dev;
  struct err why = {0};
  encode_settle(c, false);
  int64_t start_ns = clock_ns();
  if (!j->x && !begin_job(c)) return false;
  d->ops->step(d, NULL);
  if (!j->is_complete) {
    guard(true);
    j->is_complete = encoder_unit(j->x);
    guard(false);
    if (!engine_finish_device(c, &why)) {
      fail_job(c, &why);
      return true;
    }
  } else {
    store(c);
  }
  /* rows of the store are copied at once; keys and values of a bank are work of their own */
  while (j->is_complete && !c->limits.media.cross && j->item < j->n_items) store(c);
  double ms = clock_ms_since(start_ns);
  j->ms += ms;
  c->stats.encode_ms += ms;
  if (j->is_complete && j->item == j->n_items) {
    share_time(c);
    end_job(j);
  }
  return true;
}
