/* model.c — what all families share: choose the family, open device and attention, taps, planning figures. */
#include "models/model.h"

#include "base/mem.h"
#include "compute/attend.h"
#include "compute/head.h"
#include "models/drafter.h"
#include "models/encoder.h"

static const struct model_ops *const families[] = {&model_gemma3_ops, &model_gemma4_ops, &model_mllama_ops};

static const struct model_ops *family_ops(enum model_family family) {
  for (size_t i = 0; i < ARRAY_LEN(families); i++)
    if (families[i]->family == family) return families[i];
  return NULL;
}

int model_attn_layers(const struct model_config *c, struct attn_layer *layers) {
  for (int l = 0; l < c->n_layers; l++) {
    static const int kinds[] = {[LAYER_FULL] = KV_FULL, [LAYER_SLIDING] = KV_SLIDING, [LAYER_CROSS] = BATCH_CROSS};
    const struct layer_config *from = &c->layers[l];
    layers[l] = (struct attn_layer){.kind = kinds[from->kind],
                                    .n_q = from->n_q,
                                    .n_kv = from->n_kv,
                                    .head_dim = from->head_dim,
                                    .scale = c->attn_scale,
                                    .owner = from->kind == LAYER_CROSS ? l : from->kv_donor};
  }
  return c->n_layers;
}

/* Widest input of any product of `linear`; experts have their own scratch. */
static int cols_widest(const struct model_config *c) {
  int widest = MAX(c->hidden, c->ple);
  for (int l = 0; l < c->n_layers; l++) {
    widest = MAX(widest, c->layers[l].ffn);
    widest = MAX(widest, c->layers[l].n_q * c->layers[l].head_dim);
  }
  return widest;
}
static int cols_max(const struct model_config *c, const struct model_plan *plan) {
  int widest = MAX(cols_widest(c), plan->drafter ? drafter_cols_max(plan->drafter) : 0);
  return MAX(widest, plan->media ? encoder_cols_max(c) : 0);
}

/* Rows of a bank that become keys and values at once. */
static int fill_rows(const struct model_plan *plan) { return plan->n_pages[BATCH_CROSS] > 0 ? ENCODER_ROWS : 0; }

/* Most rows of one product. */
static int rows_max(const struct model_config *c, const struct model_plan *plan) {
  return MAX(plan->rows_max, MAX(fill_rows(plan), plan->media ? encoder_block_max(c) : 0));
}

static struct moe_shape experts_of(const struct model_config *c, int rows_max) {
  if (!c->n_experts) return (struct moe_shape){0};
  return (struct moe_shape){rows_max, c->hidden, c->expert_ffn, c->n_experts, c->n_experts_used};
}

size_t model_scratch_bytes(const struct model_config *c, const struct model_plan *plan) {
  size_t hidden = (size_t)c->hidden, q = 0, kv = 0, ffn = (size_t)c->ple, ple = (size_t)c->n_layers * (size_t)c->ple;
  for (int l = 0; l < c->n_layers; l++) {
    const struct layer_config *y = &c->layers[l];
    q = MAX(q, (size_t)y->n_q * (size_t)y->head_dim);
    kv = MAX(kv, (size_t)y->n_kv * (size_t)y->head_dim);
    ffn = MAX(ffn, (size_t)y->ffn);
  }
  size_t per_row = (3 * hidden + 2 * MAX(q, ffn) + ple) * sizeof(float), per_kv = 2 * kv * sizeof(float),
         per_out = (hidden + q + ple + (size_t)c->vocab + (size_t)head_blocks(c->vocab)) * sizeof(float);
  if (c->n_experts) per_row += (hidden + (size_t)c->n_experts) * sizeof(float);
  int n_threads = plan->n_threads > 0 ? plan->n_threads : workers_default_threads();
  struct moe_shape experts = experts_of(c, plan->rows_max);
  return (size_t)plan->rows_max * per_row + (size_t)MAX(plan->rows_max, fill_rows(plan)) * per_kv + (size_t)plan->out_max * per_out +
         (size_t)plan->soft_rows * hidden * sizeof(float) + gemm_scratch_bytes(rows_max(c, plan), cols_max(c, plan), n_threads) +
         moe_scratch_bytes(&experts, n_threads) +
         (plan->media ? attend_scratch_bytes(encoder_keys_max(c), encoder_head_dim_max(c), n_threads) : 0);
}

struct model *model_open(const struct model_config *c, struct weights *w, const struct model_plan *plan, struct err *e) {
  const struct model_ops *ops = family_ops(c->family);
  if (!ops) {
    err_set(e, ERR_UNSUPPORTED, "architecture %s: expected one that this build runs (gemma3, gemma4, mllama)", c->architecture);
    return NULL;
  }
  struct model *m = ops->new_model();
  m->ops = ops;
  m->config = *c;
  m->plan = *plan;
  if (shard_config(&m->shard, &m->config, plan->link, e)) goto fail;
  c = &m->config;

  struct device_config dc = {.isa = plan->isa,
                             .n_threads = plan->n_threads,
                             .rows_max = rows_max(c, plan),
                             .cols_max = cols_max(c, plan),
                             .experts = experts_of(c, plan->rows_max),
                             .keys_max = plan->media ? encoder_keys_max(c) : 0,
                             .head_dim_max = plan->media ? encoder_head_dim_max(c) : 0,
                             .positions_max = plan->tokens_max,
                             .number = plan->device_number,
                             .link = plan->link};
  m->dev = (plan->device ? plan->device : &device_cpu_ops)->open(&dc, e);
  if (!m->dev) goto fail;

  struct attn_layer layers[MODEL_LAYERS_MAX];
  int n_layers = model_attn_layers(c, layers);
  if (plan->drafter) n_layers += drafter_attn_layers(plan->drafter, c, layers + n_layers);
  struct attn_config ac = {.layers = layers,
                           .n_layers = n_layers,
                           .kv_dtype = plan->kv_dtype,
                           .page_tokens = plan->page_tokens,
                           .n_pages = {plan->n_pages[KV_FULL], plan->n_pages[KV_SLIDING], plan->n_pages[BATCH_CROSS]},
                           .rows_max = plan->rows_max,
                           .seqs_max = plan->seqs_max,
                           .tokens_max = plan->tokens_max,
                           .window = c->window_tokens,
                           .kern = m->dev->kern,
                           .workers = m->dev->workers,
                           .device = m->dev};
  m->attn_ops = plan->attn ? plan->attn : m->dev->ops->attn;
  m->attn = m->attn_ops->open(&ac, e);
  if (!m->attn) goto fail;
  m->kv_bytes = m->attn_ops->bytes(&ac);
  m->scratch_bytes = model_scratch_bytes(c, plan);

  if (m->dev->ops->alloc(m->dev, &m->logits, plan->out_max, c->vocab, "logits", e)) goto fail;
  if (m->dev->ops->is_near && m->dev->ops->alloc(m->dev, &m->peaks, plan->out_max, head_blocks(c->vocab), "peaks of logits", e)) goto fail;
  if (m->dev->ops->host_alloc(m->dev, &m->logits_host, plan->out_max, c->vocab, "logits", e)) goto fail;
  if (plan->soft_rows > 0 && m->dev->ops->alloc(m->dev, &m->soft, plan->soft_rows, c->hidden, "rows of pictures and sounds", e)) goto fail;
  if (ops->load(m, w, e)) goto fail;
  return m;
fail:
  model_close(m);
  return NULL;
}

void model_close(struct model *m) {
  if (!m) return;
  encoder_close(m->vision);
  encoder_close(m->audio);
  if (m->dev) m->ops->unload(m);
  if (m->attn) m->attn_ops->close(m->attn);
  if (m->dev) {
    m->dev->ops->free(m->dev, &m->logits);
    m->dev->ops->free(m->dev, &m->peaks);
    m->dev->ops->free(m->dev, &m->soft);
    m->dev->ops->host_free(m->dev, &m->logits_host);
    m->dev->ops->host_free(m->dev, &m->tap_host);
    m->dev->ops->close(m->dev);
  }
  m->ops->delete_model(m);
}

void model_launch(struct model *m, const struct batch *b) {
  CHECK(b->n_rows >= 1 && b->n_rows <= m->plan.rows_max && b->n_out <= m->plan.out_max);
  struct tensor logits = tensor_rows(m->logits, b->n_out);
  m->dev->ops->step(m->dev, b);
  m->attn_ops->prepare(m->attn, b);
  m->ops->forward(m, b, &logits);
  TAP(m, "logits", -1, &logits);
}

void model_head(struct model *m, struct tensor *logits, const struct weight *w, const struct tensor *x, float cap, const struct batch *b) {
  struct tensor peaks = m->peaks.data ? tensor_rows(m->peaks, logits->rows) : m->peaks;
  m->dev->ops->head(m->dev, logits, &peaks, w, x, cap, b->n_best);
}

struct tensor model_fetch(struct model *m, int n_out) {
  struct tensor logits = tensor_rows(m->logits, n_out);
  m->dev->ops->fetch(m->dev, &m->logits_host, &logits);
  return tensor_rows(m->logits_host, n_out);
}

struct tensor model_forward(struct model *m, const struct batch *b) {
  model_launch(m, b);
  return model_fetch(m, b->n_out);
}

/* A far device's rows come over in pieces of a fixed size. */
void model_tap_rows(struct model *m, const char *name, int layer, int first, const struct tensor *x) {
  enum { PIECE_FLOATS = 1 << 20 };
  const struct device_ops *ops = m->dev->ops;
  int at_once = ops->is_near ? x->rows : MAX(1, PIECE_FLOATS / MAX(1, x->cols));
  if (!ops->is_near && (!m->tap_host.data || m->tap_host.cols < x->cols || m->tap_host.rows < at_once)) {
    ops->host_free(m->dev, &m->tap_host);
    if (ops->host_alloc(m->dev, &m->tap_host, at_once, x->cols, "taps", NULL)) return;
  }
  for (int row = 0; row < x->rows; row += at_once) {
    struct tensor part = tensor_part(*x, row, MIN(at_once, x->rows - row), 0, x->cols), host = m->tap_host;
    ops->fetch(m->dev, &host, &part);
    for (int r = 0; r < part.rows; r++) m->tap(m->tap_ctx, name, layer, first + row + r, tensor_row(&host, r), x->cols);
  }
}

void model_tap(struct model *m, const char *name, int layer, const struct tensor *x) { model_tap_rows(m, name, layer, 0, x); }
