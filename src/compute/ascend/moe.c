/* moe.c — a mixture of experts on the NPU: the rule of compute/moe.h by the library's operators for it.
 *
 *   logits ─ choice ─► experts [rows, n_used] int32, shares [rows, n_used] ─ times each expert's scale ─►  scales
 *   x ─ InitRouting ─► rows by expert [rows · n_used, hidden], where each came from, how many each expert has
 *      ─ grouped products, act(gate) ⊙ up, grouped product ─► FinalizeRouting: Σ scales · rows ─► y
 *
 * Shares are a softmax over the chosen logits, which is the same as softmax over all, divided by the chosen ones' sum. Shapes depend on the
 * number of rows alone and nothing is read back: it can be recorded. Weights are plain, [experts, n, k] end to end (weights.c).
 *
 * Left to the library, unlike on the CPU: which of equal logits counts as greater, and what a row with NaN among its logits chooses; its result
 * is NaN because its x is.
 */
#include "compute/ascend/ascend.h"

struct routed {
  int rows, places;       /* places = rows · n_used */
  aclDataType share_type; /* float32; half where the last operator wants that */
  const void *experts, *scales;
  const void *places_of, *counts; /* from InitRouting, and counts as INT64 */
};

static size_t share_bytes(const struct routed *r) { return r->share_type == NPU_FLOAT ? 4 : 2; }

/* experts and shares, [rows, n_used] */
static void choose(struct ascend *d, const struct moe *m, const struct routed *r, const struct tensor *logits, void *shares) {
  int64_t rows = r->rows, k = m->n_used;
  aclDataType type = r->share_type;
  struct tensor x = *logits;
  if (type != d->type) {
    x = (struct tensor){.dtype = DTYPE_F32, .rows = r->rows, .cols = m->n_experts, .row_bytes = 4 * (size_t)m->n_experts};
    x.data = ascend_temp(d, (size_t)x.rows * x.row_bytes);
    ASCEND_LAUNCH(d, Cast, ascend_tensor(d, logits), type, ascend_tensor(d, &x));
  }
  if (d->profile.has_gating) {
    ASCEND_LAUNCH(d, MoeGatingTopKSoftmaxV2, ascend_tensor(d, &x), NULL, k, 1, false, ascend_matrix(d, shares, type, rows, k),
                  ascend_matrix(d, r->experts, NPU_INT32, rows, k), NULL);
    return;
  }
  void *values = ascend_temp(d, share_bytes(r) * (size_t)(rows * k)), *indices = ascend_temp(d, 8 * (size_t)(rows * k));
  ASCEND_LAUNCH(d, Topk, ascend_tensor(d, &x), k, 1, true, true, ascend_matrix(d, values, type, rows, k),
                ascend_matrix(d, indices, NPU_INT64, rows, k));
  ASCEND_LAUNCH(d, Softmax, ascend_matrix(d, values, type, rows, k), 1, ascend_matrix(d, shares, type, rows, k));
  ASCEND_LAUNCH(d, Cast, ascend_matrix(d, indices, NPU_INT64, rows, k), NPU_INT32, ascend_matrix(d, r->experts, NPU_INT32, rows, k));
}

/* shares ⊙ scale[experts] */
static void scale_shares(struct ascend *d, const struct moe *m, const struct routed *r, const void *shares) {
  aclDataType type = r->share_type;
  const void *scale = ascend_vector(d, m->scale, m->n_experts, type);
  void *chosen = ascend_temp(d, share_bytes(r) * (size_t)r->places);
  ASCEND_LAUNCH(d, IndexSelect, ascend_array(d, scale, type, m->n_experts), 0, ascend_array(d, r->experts, NPU_INT32, r->places),
                ascend_array(d, chosen, type, r->places));
  ASCEND_LAUNCH(d, Mul, ascend_array(d, shares, type, r->places), ascend_array(d, chosen, type, r->places),
                ascend_array(d, r->scales, type, r->places));
}

static void group_rows(struct ascend *d, const struct moe *m, const struct routed *r, const struct tensor *x,
                       const struct tensor *expanded) {
  void *counts = ascend_temp(d, 4 * (size_t)m->n_experts);
  ASCEND_LAUNCH(d, MoeInitRoutingV2, ascend_tensor(d, x), ascend_matrix(d, r->experts, NPU_INT32, r->rows, m->n_used), 0, 0, m->n_experts,
                0, 2, false, ascend_tensor(d, expanded), ascend_array(d, r->places_of, NPU_INT32, r->places),
                ascend_array(d, counts, NPU_INT32, m->n_experts), NULL);
  ASCEND_LAUNCH(d, Cast, ascend_array(d, counts, NPU_INT32, m->n_experts), NPU_INT64, ascend_array(d, r->counts, NPU_INT64, m->n_experts));
}

/* y = each expert's rows of x by its matrix of w [n_experts]. */
static void grouped_product(struct ascend *d, const struct moe *m, const struct routed *r, const struct weight *w, const struct tensor *y,
                            const struct tensor *x) {
  int64_t n = w->rows, k = w->cols;
  struct ascend_shape s = {3, {m->n_experts, k, n}, {(int64_t)(w->packed_bytes / 2), 1, k}};
  ASCEND_LAUNCH(d, GroupedMatmulV4, ascend_list(d, (aclTensor *[]){ascend_tensor(d, x)}, 1),
                ascend_list(d, (aclTensor *[]){ascend_view(d, w->packed, d->type, s)}, 1), NULL, NULL, NULL, NULL, NULL, NULL,
                ascend_array(d, r->counts, NPU_INT64, m->n_experts), NULL, NULL, NULL, 3, 0, 1, 0,
                ascend_list(d, (aclTensor *[]){ascend_tensor(d, y)}, 1), NULL, NULL);
}

static struct tensor rows_of(struct ascend *d, int rows, int cols) {
  struct tensor t = {.dtype = d->dtype, .rows = rows, .cols = cols, .row_bytes = 2 * (size_t)cols};
  t.data = ascend_temp(d, (size_t)rows * t.row_bytes);
  return t;
}

void ascend_moe(struct device *device, const struct moe *m, struct tensor *y, const struct tensor *x, const struct tensor *logits,
                enum act act) {
  struct ascend *d = ascend_of(device);
  int ffn = m->gate[0].rows, n = x->rows * m->n_used;
  CHECK(logits->cols == m->n_experts && logits->rows == x->rows && y->rows == x->rows && y->cols == x->cols && m->gate[0].cols == x->cols);
  CHECK(m->gate[0].layout == 0 && m->up[0].layout == 0 && m->down[0].layout == 0);
  ascend_temp_reset(d);
  if (x->rows < 1) return;
  struct routed r = {.rows = x->rows, .places = n, .share_type = d->profile.has_bf16 ? NPU_FLOAT : d->type};
  r.experts = ascend_temp(d, 4 * (size_t)n);
  r.scales = ascend_temp(d, share_bytes(&r) * (size_t)n);
  r.places_of = ascend_temp(d, 4 * (size_t)n);
  r.counts = ascend_temp(d, 8 * (size_t)m->n_experts);
  void *shares = ascend_temp(d, share_bytes(&r) * (size_t)n);
  struct tensor expanded = rows_of(d, n, x->cols), gate = rows_of(d, n, ffn), up = rows_of(d, n, ffn), mid = rows_of(d, n, ffn);
  if (!ascend_ok(d)) return;
  choose(d, m, &r, logits, shares);
  scale_shares(d, m, &r, shares);
  group_rows(d, m, &r, x, &expanded);
  grouped_product(d, m, &r, m->gate, &gate, &expanded);
  grouped_product(d, m, &r, m->up, &up, &expanded);
  ascend_gate(d, &mid, &gate, &up, act);
  struct tensor out = expanded; /* all three have been read */
  grouped_product(d, m, &r, m->down, &out, &mid);
  bool gaps = x->rows > 1 && y->row_bytes != 2 * (size_t)y->cols; /* which the operator's result cannot have */
  struct tensor sum = gaps ? rows_of(d, x->rows, y->cols) : *y;
  ASCEND_LAUNCH(d, MoeFinalizeRoutingV2, ascend_tensor(d, &out), ascend_array(d, r.places_of, NPU_INT32, n), NULL, NULL, NULL,
                ascend_matrix(d, r.scales, r.share_type, x->rows, m->n_used), NULL, 2, ascend_tensor(d, &sum));
  if (gaps) ASCEND_LAUNCH(d, InplaceCopy, ascend_tensor(d, y), ascend_tensor(d, &sum));
}
