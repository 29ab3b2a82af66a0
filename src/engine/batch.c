/* batch.c — from picks to the record that model and attention read. What the fields mean is in compute/batch.h. */
#include "compute/batch.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/engine.h"

enum { SLOTS_AT_ONCE = 256 };

static int pages_max(const struct batch_shape *s) { return div_up(s->tokens_max, s->page_tokens); }

size_t batch_bytes(const struct batch_shape *s) {
  size_t per_row = 4 * sizeof(int32_t) + BATCH_KINDS * 2 * sizeof(int32_t) + KV_KINDS * sizeof(int64_t);
  size_t per_seq = sizeof(int32_t) + (KV_KINDS * (size_t)pages_max(s) + (size_t)s->cross_pages_max) * sizeof(int32_t);
  return (size_t)s->rows_max * per_row + (size_t)s->seqs_max * per_seq + sizeof(int32_t) + 2 * (size_t)s->out_max * sizeof(int32_t);
}

int batch_init(struct batch *b, const struct batch_shape *s, struct err *e) {
  memset(b, 0, sizeof *b);
  CHECK(s->rows_max >= 1 && s->seqs_max >= 1 && s->out_max >= 1 && s->tokens_max >= 1 && s->page_tokens >= 1);
  b->rows_max = s->rows_max;
  b->seqs_max = s->seqs_max;
  b->out_max = s->out_max;
  for (int k = 0; k < KV_KINDS; k++) b->pages_max[k] = pages_max(s);
  b->pages_max[BATCH_CROSS] = s->cross_pages_max;

  size_t rows = (size_t)s->rows_max, seqs = (size_t)s->seqs_max;
  bool ok = (b->token = mem_try_alloc(rows * sizeof *b->token)) && (b->soft = mem_try_alloc(rows * sizeof *b->soft)) &&
            (b->pos = mem_try_alloc(rows * sizeof *b->pos)) && (b->seq = mem_try_alloc(rows * sizeof *b->seq)) &&
            (b->q_start = mem_try_alloc((seqs + 1) * sizeof *b->q_start)) &&
            (b->out = mem_try_alloc((size_t)s->out_max * sizeof *b->out)) &&
            (b->n_best = mem_try_alloc((size_t)s->out_max * sizeof *b->n_best));
  for (int k = 0; ok && k < BATCH_KINDS; k++)
    ok = (b->lo[k] = mem_try_alloc(rows * sizeof *b->lo[k])) && (b->hi[k] = mem_try_alloc(rows * sizeof *b->hi[k])) &&
         (b->page[k] = mem_try_alloc(MAX(1, seqs * (size_t)b->pages_max[k]) * sizeof *b->page[k]));
  for (int k = 0; ok && k < KV_KINDS; k++) ok = (b->slot[k] = mem_try_alloc(rows * sizeof *b->slot[k]));
  if (ok) return 0;
  batch_free(b);
  char human[32];
  return err_set(e, ERR_NO_MEMORY, "batch: cannot get %s for %d rows of %d sequences", mem_human(batch_bytes(s), human), s->rows_max,
                 s->seqs_max);
}

void batch_free(struct batch *b) {
  free(b->token);
  free(b->soft);
  free(b->pos);
  free(b->seq);
  free(b->q_start);
  free(b->out);
  free(b->n_best);
  for (int k = 0; k < BATCH_KINDS; k++) {
    free(b->lo[k]);
    free(b->hi[k]);
    free(b->page[k]);
  }
  for (int k = 0; k < KV_KINDS; k++) free(b->slot[k]);
  memset(b, 0, sizeof *b);
}

/* First key that a query at pos sees in a layer of this kind. */
static int32_t first_key(const struct kv *kv, enum kv_kind kind, int pos) {
  return (int32_t)kv_window_lo(pos, kind == KV_SLIDING ? kv_window_tokens(kv) : 0);
}

/* A row of text that sees no bank. */
static void add_row(struct batch *b, const struct kv *kv, const struct kv_stats *st, int32_t token, int pos, int row) {
  b->token[row] = token;
  b->soft[row] = -1;
  b->pos[row] = pos;
  b->seq[row] = b->n_seqs;
  for (int k = 0; k < KV_KINDS; k++) {
    bool exists = st->n_pages[k] > 0;
    b->lo[k][row] = exists ? first_key(kv, k, pos) : 0;
    b->hi[k][row] = exists ? pos + 1 : 0;
  }
  b->lo[BATCH_CROSS][row] = b->hi[BATCH_CROSS][row] = 0;
}

static void add_rows(struct batch *b, const struct kv *kv, const struct kv_stats *st, const struct sched_pick *p) {
  const struct request *r = p->r;
  int first = r->n_computed, n_best = request_n_best(r);
  CHECK(b->n_seqs < b->seqs_max && b->n_rows + p->n <= b->rows_max && b->n_out + p->n_out <= b->out_max);
  CHECK(p->n >= 1 && first + p->n <= r->n_tokens + r->n_forced + r->n_draft && p->n_out + p->n_late <= p->n);
  for (int i = 0; i < p->n; i++) {
    int row = b->n_rows + i, pos = first + i;
    add_row(b, kv, st, pos < r->n_tokens ? r->tokens[pos] : r->ahead[pos - r->n_tokens], pos, row);
    for (int k = 0; k < KV_KINDS; k++) b->slot[k][row] = st->n_pages[k] > 0 ? kv_slot(kv, &r->kv, k, pos) : 0;
    if (i < p->n - p->n_late - p->n_out || i >= p->n - p->n_late) continue;
    b->n_best[b->n_out] = n_best;
    b->out[b->n_out++] = row;
  }
}

/* Rows of pictures and sounds: what the model is told there, where they lie in the store, and how far those of one picture see. */
static void add_spans(struct batch *b, struct batch_media media, const struct kv_stats *st, const struct sched_pick *p) {
  const struct request *r = p->r;
  int first = r->n_computed, end = first + p->n;
  for (int i = 0; i < r->n_spans && r->spans[i].first < end; i++) {
    const struct request_span *y = &r->spans[i];
    int from = MAX(y->first, first), to = MIN(y->first + y->n, end), row = b->n_rows + from - first;
    if (from >= to) continue;
    for (int k = 0; k < to - from; k++) b->token[row + k] = media.rules->token;
    if (media.rules->cross) continue;
    int64_t slots[SLOTS_AT_ONCE];
    for (int k = 0, n; k < to - from; k += n) {
      n = MIN(to - from - k, SLOTS_AT_ONCE);
      banks_slots(media.banks, r->banks[y->bank].entry, from - y->first + k, n, slots);
      for (int t = 0; t < n; t++) b->soft[row + k + t] = (int32_t)slots[t];
    }
    b->n_soft += to - from;
    if (!y->whole) continue;
    CHECK(from == y->first && to == y->first + y->n); /* keys of this step are those of a whole picture */
    for (int kind = 0; kind < KV_KINDS; kind++)
      for (int k = 0; k < to - from && st->n_pages[kind] && media.rules->both_ways[kind]; k++) b->hi[kind][row + k] = to;
  }
}

/* Banks: each row sees, of the last one that begins at or before it, the pictures up to its own position. */
static void add_banks(struct batch *b, struct batch_media media, const struct sched_pick *p) {
  const struct request *r = p->r;
  int first = r->n_computed, end = first + p->n, page = banks_page_rows(media.banks);
  int32_t *table = b->page[BATCH_CROSS] + (size_t)b->n_seqs * (size_t)b->pages_max[BATCH_CROSS];
  for (int i = 0; i < r->n_banks && r->banks[i].from < end; i++) {
    const struct request_bank *y = &r->banks[i];
    int from = MAX(y->from, first), to = MIN(y->until, end);
    if (from >= to) continue;
    CHECK((y->first_row + y->n_rows + page - 1) / page <= b->pages_max[BATCH_CROSS]);
    banks_pages(media.banks, y->entry, table + y->first_row / page);
    for (int pos = from; pos < to; pos++) {
      int row = b->n_rows + pos - first, last = MIN(pos - y->from, y->n_spans - 1);
      b->lo[BATCH_CROSS][row] = y->first_row;
      b->hi[BATCH_CROSS][row] = y->first_row + r->spans[y->first_span + last].bank_end;
    }
    b->n_cross += to - from;
  }
}

/* Pages from the first key that a row at `first` sees to position `last`. */
static void add_pages(struct batch *b, const struct kv *kv, const struct kv_stats *st, const struct request *r, int first, int last) {
  int page = kv_page_tokens(kv);
  for (int k = 0; k < KV_KINDS; k++) {
    if (st->n_pages[k] == 0) continue;
    int32_t *table = b->page[k] + (size_t)b->n_seqs * (size_t)b->pages_max[k];
    for (int i = first_key(kv, k, first) / page; i <= last / page; i++) {
      const struct kv_page *pair = &r->kv.pairs[i];
      table[i] = k == KV_FULL ? pair->full : pair->swa;
      DCHECK(table[i] > 0);
    }
  }
}

static void clear(struct batch *b) {
  b->n_rows = b->n_seqs = b->n_out = b->n_soft = b->n_cross = 0;
  b->q_start[0] = 0;
}

void batch_build(struct batch *b, const struct kv *kv, struct batch_media media, const struct sched_pick *picks, int n_picks) {
  struct kv_stats st = kv_stats(kv);
  clear(b);
  for (int i = 0; i < n_picks; i++) {
    const struct sched_pick *p = &picks[i];
    add_rows(b, kv, &st, p);
    add_pages(b, kv, &st, p->r, p->r->n_computed, p->r->n_computed + p->n - 1);
    if (p->r->n_spans) add_spans(b, media, &st, p);
    if (p->r->n_spans && media.rules->cross) add_banks(b, media, p);
    b->n_rows += p->n;
    b->q_start[++b->n_seqs] = b->n_rows;
  }
}

void batch_build_round(struct batch *b, const struct kv *kv, struct request *const *requests, int n) {
  struct kv_stats st = kv_stats(kv);
  CHECK(n <= b->rows_max && n <= b->seqs_max);
  clear(b);
  b->n_rows = n;
  for (int i = 0; i < n; i++) {
    const struct request *r = requests[i];
    int pos = r->n_tokens - 1;
    CHECK(request_decodes(r) && r->kv.n_tokens == pos);
    add_row(b, kv, &st, r->tokens[pos], pos, i);
    for (int k = 0; k < KV_KINDS; k++) {
      if (st.n_pages[k] > 0) b->hi[k][i] = pos; /* what is committed */
      b->slot[k][i] = 0;
    }
    add_pages(b, kv, &st, r, pos, pos - 1);
    b->q_start[++b->n_seqs] = i + 1;
  }
}
