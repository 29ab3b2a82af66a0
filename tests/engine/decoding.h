/* decoding.h — sequences that decode side by side at the same length, on a device with records: for t_npu_graph and bench/b_ascend.
 *
 * One step is recorded at the first call of decoding_step, and replayed from then on. Faults of the program's own setting end it (CHECK).
 */
#ifndef TEST_DECODING_H
#define TEST_DECODING_H

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/engine.h"

enum { DECODING_ROWS_MAX = 16, DECODING_CHUNK = 64, DECODING_PAGE = 128, DECODING_LAUNCHES = 4096 };

struct decoding {
  struct model_config *config;
  struct weights *weights;
  struct model *m;
  struct kv *kv;
  struct kv_seq seqs[DECODING_ROWS_MAX];
  struct batch b;
  struct device_record *record;
  int rows;
  int64_t host_ns; /* of the last replay: what the host does before it waits */
};

static inline void decoding_add(struct decoding *d, int s, int n, int n_out) {
  struct batch *b = &d->b;
  struct kv_seq *q = &d->seqs[s];
  int first = q->n_tokens, window = d->config->window_tokens;
  kv_drop_window(d->kv, q, first);
  struct kv_short missing = kv_reserve(d->kv, q, n);
  CHECK(!missing.pages[KV_FULL] && !missing.pages[KV_SLIDING]);
  for (int i = 0; i < n; i++) {
    int row = b->n_rows + i, pos = first + i;
    b->token[row] = 3 + (pos * 7 + s) % (d->config->vocab - 3);
    b->soft[row] = -1;
    b->pos[row] = pos;
    b->seq[row] = b->n_seqs;
    b->lo[BATCH_CROSS][row] = b->hi[BATCH_CROSS][row] = 0;
    for (int k = 0; k < KV_KINDS; k++) {
      b->lo[k][row] = k == KV_SLIDING ? (int32_t)kv_window_lo(pos, window) : 0;
      b->hi[k][row] = k == KV_SLIDING && !window ? 0 : pos + 1;
      b->slot[k][row] = k == KV_SLIDING && !window ? 0 : kv_slot(d->kv, q, (enum kv_kind)k, pos);
    }
    if (i >= n - n_out) b->out[b->n_out++] = row;
  }
  for (int k = 0; k < KV_KINDS; k++)
    for (int i = (k == KV_SLIDING ? (int)kv_window_lo(first, window) : 0) / DECODING_PAGE; i <= (first + n - 1) / DECODING_PAGE; i++)
      b->page[k][b->n_seqs * b->pages_max[k] + i] = k == KV_FULL ? q->pairs[i].full : q->pairs[i].swa;
  b->n_rows += n;
  b->q_start[++b->n_seqs] = b->n_rows;
  kv_commit(d->kv, q, n);
}

static inline void decoding_clear(struct decoding *d) { d->b.n_rows = d->b.n_seqs = d->b.n_out = d->b.n_soft = d->b.n_cross = 0; }

/* rows sequences of `length` tokens each, of which none will be longer than tokens_max; pages for `room` tokens each. */
static inline int decoding_open(struct decoding *d, const char *model, const struct device_ops *device, int rows, int tokens_max,
                                int length, int room, struct err *e) {
  memset(d, 0, sizeof *d);
  CHECK(rows <= DECODING_ROWS_MAX);
  d->rows = rows;
  d->config = xcalloc(1, sizeof *d->config);
  if (!(d->weights = weights_open(model, d->config, e))) return -1;
  int window = d->config->window_tokens, n_pages = rows * div_up(room, DECODING_PAGE);
  struct model_plan plan = {.device = device,
                            .n_threads = 1,
                            .kv_dtype = DTYPE_BF16,
                            .page_tokens = DECODING_PAGE,
                            .n_pages = {n_pages, window ? n_pages : 0},
                            .rows_max = DECODING_CHUNK,
                            .out_max = DECODING_ROWS_MAX,
                            .seqs_max = DECODING_ROWS_MAX,
                            .tokens_max = tokens_max,
                            .quiet = true};
  struct kv_config kc = {.page_tokens = DECODING_PAGE,
                         .n_pages = {n_pages, window ? n_pages : 0},
                         .window_tokens = window,
                         .seqs_max = rows,
                         .tokens_max = tokens_max};
  struct batch_shape shape = {.rows_max = DECODING_CHUNK,
                              .seqs_max = DECODING_ROWS_MAX,
                              .out_max = DECODING_ROWS_MAX,
                              .tokens_max = tokens_max,
                              .page_tokens = DECODING_PAGE};
  if (!(d->m = model_open(d->config, d->weights, &plan, e)) || !(d->kv = kv_new(&kc, e)) || batch_init(&d->b, &shape, e)) return -1;
  struct device *dev = d->m->dev;
  if (dev->ops->hold_batch(dev, &d->b, e) || !(d->record = dev->ops->record_new(dev, DECODING_LAUNCHES, DECODING_LAUNCHES * 256, e)))
    return -1;
  for (int s = 0; s < rows; s++) {
    CHECK(kv_seq_open(d->kv, &d->seqs[s]));
    for (int left = length, n; left > 0; left -= n) {
      n = MIN(left, DECODING_CHUNK);
      decoding_clear(d);
      decoding_add(d, s, n, 1);
      model_forward(d->m, &d->b);
      if (dev->ops->finish(dev, e)) return -1;
    }
  }
  return 0;
}

static inline void decoding_close(struct decoding *d) {
  for (int s = 0; d->kv && s < d->rows; s++) kv_seq_close(d->kv, &d->seqs[s]);
  if (d->m) d->m->dev->ops->record_delete(d->m->dev, d->record);
  model_close(d->m);
  weights_close(d->weights);
  kv_delete(d->kv);
  batch_free(&d->b);
  free(d->config);
}

/* One more token for each; their logits are in d->m->logits_host. */
static inline int decoding_step(struct decoding *d, struct err *e) {
  struct device *dev = d->m->dev;
  decoding_clear(d);
  for (int s = 0; s < d->rows; s++) decoding_add(d, s, 1, 1);
  if (dev->ops->record_launches(d->record) == 0) {
    struct tensor logits = tensor_rows(d->m->logits, d->rows);
    model_forward(d->m, &d->b);
    if (dev->ops->finish(dev, e)) return -1;
    dev->ops->record_begin(dev, d->record);
    d->m->ops->forward(d->m, &d->b, &logits);
    dev->ops->record_end(dev, d->record);
  } else {
    int64_t start_ns = clock_ns();
    dev->ops->step(dev, &d->b);
    d->m->attn_ops->prepare(d->m->attn, &d->b);
    dev->ops->record_replay(dev, d->record);
    d->host_ns = clock_ns() - start_ns;
    model_fetch(d->m, d->rows);
  }
  return dev->ops->finish(dev, e);
}

#endif
