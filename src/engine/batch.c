/* batch.c — from picks to the record that model and attention read. What the fields mean is in compute/batch.h. */
#include "compute/batch.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/engine.h"

static int pages_max(const struct batch_shape *s) { return div_up(s->tokens_max, s->page_tokens); }

size_t batch_bytes(const struct batch_shape *s) {
  size_t per_row = 3 * sizeof(int32_t) + KV_KINDS * (2 * sizeof(int32_t) + sizeof(int64_t));
  size_t per_seq = sizeof(int32_t) + KV_KINDS * (size_t)pages_max(s) * sizeof(int32_t);
  return (size_t)s->rows_max * per_row + (size_t)s->seqs_max * per_seq + sizeof(int32_t) + (size_t)s->out_max * sizeof(int32_t);
}

int batch_init(struct batch *b, const struct batch_shape *s, struct err *e) {
  memset(b, 0, sizeof *b);
  CHECK(s->rows_max >= 1 && s->seqs_max >= 1 && s->out_max >= 1 && s->tokens_max >= 1 && s->page_tokens >= 1);
  b->rows_max = s->rows_max;
  b->seqs_max = s->seqs_max;
  b->out_max = s->out_max;
  for (int k = 0; k < KV_KINDS; k++) b->pages_max[k] = pages_max(s);

  size_t rows = (size_t)s->rows_max, tables = (size_t)s->seqs_max * (size_t)pages_max(s);
  bool ok = (b->token = mem_try_alloc(rows * sizeof *b->token)) && (b->pos = mem_try_alloc(rows * sizeof *b->pos)) &&
            (b->seq = mem_try_alloc(rows * sizeof *b->seq)) &&
            (b->q_start = mem_try_alloc(((size_t)s->seqs_max + 1) * sizeof *b->q_start)) &&
            (b->out = mem_try_alloc((size_t)s->out_max * sizeof *b->out));
  for (int k = 0; ok && k < KV_KINDS; k++)
    ok = (b->lo[k] = mem_try_alloc(rows * sizeof *b->lo[k])) && (b->hi[k] = mem_try_alloc(rows * sizeof *b->hi[k])) &&
         (b->slot[k] = mem_try_alloc(rows * sizeof *b->slot[k])) && (b->page[k] = mem_try_alloc(tables * sizeof *b->page[k]));
  if (ok) return 0;
  batch_free(b);
  char human[32];
  return err_set(e, ERR_NO_MEMORY, "batch: cannot get %s for %d rows of %d sequences", mem_human(batch_bytes(s), human), s->rows_max,
                 s->seqs_max);
}

void batch_free(struct batch *b) {
  free(b->token);
  free(b->pos);
  free(b->seq);
  free(b->q_start);
  free(b->out);
  for (int k = 0; k < KV_KINDS; k++) {
    free(b->lo[k]);
    free(b->hi[k]);
    free(b->slot[k]);
    free(b->page[k]);
  }
  memset(b, 0, sizeof *b);
}

/* First key that a query at pos sees in a layer of this kind. */
static int32_t first_key(const struct kv *kv, enum kv_kind kind, int pos) {
  return (int32_t)kv_window_lo(pos, kind == KV_SLIDING ? kv_window_tokens(kv) : 0);
}

static void add_rows(struct batch *b, const struct kv *kv, const struct kv_stats *st, const struct sched_pick *p) {
  const struct request *r = p->r;
  int first = r->n_computed;
  CHECK(b->n_seqs < b->seqs_max && b->n_rows + p->n <= b->rows_max && b->n_out + p->n_out <= b->out_max);
  CHECK(p->n >= 1 && first + p->n <= r->n_tokens + r->n_forced + r->n_draft && p->n_out <= p->n);
  for (int i = 0; i < p->n; i++) {
    int row = b->n_rows + i, pos = first + i;
    b->token[row] = pos < r->n_tokens ? r->tokens[pos] : r->ahead[pos - r->n_tokens];
    b->pos[row] = pos;
    b->seq[row] = b->n_seqs;
    for (int k = 0; k < KV_KINDS; k++) {
      bool exists = st->n_pages[k] > 0;
      b->lo[k][row] = exists ? first_key(kv, k, pos) : 0;
      b->hi[k][row] = exists ? pos + 1 : 0;
      b->slot[k][row] = exists ? kv_slot(kv, &r->kv, k, pos) : 0;
    }
    if (i >= p->n - p->n_out) b->out[b->n_out++] = row;
  }
  b->n_rows += p->n;
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

void batch_build(struct batch *b, const struct kv *kv, const struct sched_pick *picks, int n_picks) {
  struct kv_stats st = kv_stats(kv);
  b->n_rows = b->n_seqs = b->n_out = 0;
  b->q_start[0] = 0;
  for (int i = 0; i < n_picks; i++) {
    add_rows(b, kv, &st, &picks[i]);
    add_pages(b, kv, &st, picks[i].r, picks[i].r->n_computed, picks[i].r->n_computed + picks[i].n - 1);
    b->q_start[++b->n_seqs] = b->n_rows;
  }
}

void batch_build_round(struct batch *b, const struct kv *kv, struct request *const *requests, int n) {
  struct kv_stats st = kv_stats(kv);
  CHECK(n <= b->rows_max && n <= b->seqs_max);
  b->n_rows = n;
  b->n_seqs = b->n_out = 0;
  b->q_start[0] = 0;
  for (int i = 0; i < n; i++) {
    const struct request *r = requests[i];
    int pos = r->n_tokens - 1;
    CHECK(request_decodes(r) && r->kv.n_tokens == pos);
    b->token[i] = r->tokens[pos];
    b->pos[i] = pos;
    b->seq[i] = i;
    for (int k = 0; k < KV_KINDS; k++) {
      bool exists = st.n_pages[k] > 0;
      b->lo[k][i] = exists ? first_key(kv, k, pos) : 0;
      b->hi[k][i] = exists ? pos : 0;
      b->slot[k][i] = 0;
    }
    add_pages(b, kv, &st, r, pos, pos - 1);
    b->q_start[++b->n_seqs] = i + 1;
  }
}
