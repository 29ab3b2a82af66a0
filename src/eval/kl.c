/* kl.c — a model's distributions beside a reference's. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "eval/likelihood.h"
#include "files/safetensors.h"

struct reference { /* of one prompt; borrowed from the file */
  const struct st_tensor *ids, *logits, *top_ids, *top_logprobs;
  struct kl_prompt *out;
  float *row; /* of the reference, aligned; [vocab] or [K] */
  int32_t *best;
};

static double log_sum(const float *x, int n) {
  float max = x[0];
  double sum = 0;
  for (int i = 1; i < n; i++) max = MAX(max, x[i]);
  for (int i = 0; i < n; i++) sum += exp((double)x[i] - (double)max);
  return (double)max + log(sum);
}

static int best_of(const float *x, int n) {
  int best = 0;
  for (int i = 1; i < n; i++)
    if (x[i] > x[best]) best = i;
  return best;
}

static double divergence_full(const float *p, const float *q, int n) {
  double sp = log_sum(p, n), sq = log_sum(q, n), kl = 0;
  for (int i = 0; i < n; i++) {
    double lp = (double)p[i] - sp;
    if (lp > -80) kl += exp(lp) * (lp - ((double)q[i] - sq));
  }
  return kl;
}

/* What is not among the likeliest is one more outcome. */
static double divergence_top(const int32_t *ids, const float *lp, int k, const float *q, int vocab) {
  double sq = log_sum(q, vocab), kl = 0, rest_p = 1, rest_q = 1;
  for (int i = 0; i < k; i++) {
    double p = exp((double)lp[i]), lq = (double)q[ids[i]] - sq;
    kl += p * ((double)lp[i] - lq);
    rest_p -= p;
    rest_q -= exp(lq);
  }
  if (rest_p > 1e-9 && rest_q > 1e-12) kl += rest_p * (log(rest_p) - log(rest_q));
  return kl;
}

static void on_logits(void *ctx, int position, const float *x, int vocab) {
  struct reference *r = ctx;
  const struct st_tensor *t = r->logits ? r->logits : r->top_logprobs;
  size_t k = (size_t)t->shape[1], bytes = k * sizeof(float);
  double kl;
  int best;
  memcpy(r->row, (const char *)t->data + (size_t)position * bytes, bytes);
  if (r->logits) {
    kl = divergence_full(r->row, x, vocab);
    best = best_of(r->row, vocab);
  } else {
    memcpy(r->best, (const char *)r->top_ids->data + (size_t)position * bytes, bytes);
    kl = divergence_top(r->best, r->row, (int)k, x, vocab);
    best = r->best[0];
  }
  r->out->sum += kl;
  r->out->largest = fmax(r->out->largest, kl);
  r->out->positions++;
  r->out->same_best += best_of(x, vocab) == best;
}

static const struct st_tensor *find(const struct safetensors *s, const char *prefix, const char *name) {
  char full[256];
  snprintf(full, sizeof full, "%s%s", prefix, name);
  return safetensors_find(s, full);
}

static bool is_shape(const struct st_tensor *t, enum dtype type, int64_t rows, int64_t columns) {
  return t->dtype == type && t->n_dims == (columns ? 2 : 1) && t->shape[0] == rows && (columns <= 0 || t->shape[1] == columns);
}

/* Whether the tensors belong together and to the model; columns of -1 may be any number. */
static int check(const struct reference *r, const char *label, const char *prefix, int vocab, struct err *e) {
  int64_t n = r->ids->shape[0];
  if (r->ids->dtype != DTYPE_I32 || r->ids->n_dims != 1 || n < 1)
    return err_set(e, ERR_BAD_FILE, "%s: %sids: expected int32 [T], T at least 1", label, prefix);
  if (r->logits) {
    if (!is_shape(r->logits, DTYPE_F32, n, vocab))
      return err_set(e, ERR_BAD_FILE, "%s: %slogits: expected f32 [%lld, %d] for this model", label, prefix, (long long)n, vocab);
    return 0;
  }
  if (!r->top_ids || !r->top_logprobs)
    return err_set(e, ERR_BAD_FILE, "%s: %sids: expected %slogits, or %stop_ids and %stop_logprobs, beside it", label, prefix, prefix,
                   prefix, prefix);
  if (!is_shape(r->top_logprobs, DTYPE_F32, n, -1) || r->top_logprobs->shape[1] < 1 ||
      !is_shape(r->top_ids, DTYPE_I32, n, r->top_logprobs->shape[1]))
    return err_set(e, ERR_BAD_FILE, "%s: %stop_ids, %stop_logprobs: expected int32 and f32 [%lld, K]", label, prefix, prefix, (long long)n);
  for (int64_t i = 0; i < n * r->top_ids->shape[1]; i++) {
    int32_t id;
    memcpy(&id, (const char *)r->top_ids->data + (size_t)i * sizeof id, sizeof id);
    if (id < 0 || id >= vocab)
      return err_set(e, ERR_BAD_FILE, "%s: %stop_ids: expected ids below %d, found %d", label, prefix, vocab, (int)id);
  }
  return 0;
}

static int compare(struct cygnet *c, struct reference *r, bool (*stopped)(void), struct err *e) {
  struct cygnet_error why = {0};
  struct cygnet_event ev;
  size_t n = (size_t)r->ids->shape[0], k = (size_t)(r->logits ? r->logits->shape[1] : r->top_ids->shape[1]);
  int32_t *ids = xmalloc(n * sizeof *ids);
  memcpy(ids, r->ids->data, n * sizeof *ids);
  r->row = xmalloc(k * sizeof *r->row);
  r->best = xmalloc(k * sizeof *r->best);
  struct cygnet_request q = {.prompt = ids, .n_prompt = n, .on_logits = on_logits, .callback_ctx = r};
  uint64_t number = cygnet_submit(c, &q, &why);
  int status = number ? 0 : err_set(e, why.exit_status == 1 ? ERR_INTERNAL : ERR_BAD_INPUT, "%s", why.message);
  for (bool done = !number, aborted = false; !done;) {
    if (stopped() && !aborted) cygnet_abort(c, number), aborted = true;
    cygnet_step(c);
    while (cygnet_next_event(c, &ev)) {
      done |= ev.finish != CYGNET_FINISH_NONE;
      if (ev.finish == CYGNET_FINISH_ERROR) status = err_set(e, ERR_INTERNAL, "%s", ev.error.message);
    }
  }
  free(ids);
  free(r->row);
  free(r->best);
  return status;
}

int kl_compare(struct cygnet *c, const char *path, bool (*stopped)(void), struct kl *out, struct err *e) {
  struct safetensors s;
  struct cygnet_info info;
  char label[200];
  int status = 0;
  *out = (struct kl){0};
  cygnet_info(c, &info);
  path_label(path, label);
  if (safetensors_open(&s, path, e)) return -1;
  for (size_t i = 0; i < s.n_tensors && !status && !stopped(); i++) {
    const char *name = s.tensors[i].name;
    size_t n = strlen(name);
    if (strcmp(name, "ids") && !(n > 4 && !strcmp(name + n - 4, ".ids"))) continue;
    char *prefix = xstrndup(name, n - 3);
    struct reference r = {.ids = &s.tensors[i],
                          .logits = find(&s, prefix, "logits"),
                          .top_ids = find(&s, prefix, "top_ids"),
                          .top_logprobs = find(&s, prefix, "top_logprobs")};
    out->prompts = xrealloc(out->prompts, (size_t)(out->n + 1) * sizeof *out->prompts);
    r.out = &out->prompts[out->n++];
    *r.out = (struct kl_prompt){.name = xstrndup(name, n > 4 ? n - 4 : 0)};
    status = check(&r, label, prefix, info.vocab, e);
    if (!status) status = compare(c, &r, stopped, e);
    free(prefix);
  }
  safetensors_close(&s);
  if (!status && out->n == 0 && !stopped())
    status = err_set(e, ERR_BAD_FILE, "%s: expected tensors called ids or NAME.ids, found none", label);
  if (status) kl_free(out);
  return status;
}

void kl_free(struct kl *k) {
  for (int i = 0; i < k->n; i++) free(k->prompts[i].name);
  free(k->prompts);
  *k = (struct kl){0};
}
