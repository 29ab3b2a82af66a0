/* score.c — what a run came to. */
#include "eval/score.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

void score_wilson(double share, int n, double *low, double *high) {
  const double z = 1.959963984540054;
  *low = 0;
  *high = 1;
  if (n <= 0) return;
  double zz = z * z, middle = share + zz / (2 * n), half = z * sqrt(share * (1 - share) / n + zz / (4.0 * n * n)), by = 1 + zz / n;
  *low = MAX(0, (middle - half) / by);
  *high = MIN(1, (middle + half) / by);
}

void score_of(const struct eval_run *r, struct score *s) {
  int n = r->questions->n * r->samples;
  *s = (struct score){.questions = r->questions->n, .samples = r->samples, .seconds = r->seconds};
  for (int i = 0; i < n; i++) {
    const struct eval_mark *m = &r->marks[i];
    s->right += m->right;
    s->failed += m->state == EVAL_FAILED;
    s->unanswered += m->state == EVAL_DONE && !m->found;
    s->cut += m->cut;
    s->prompt_tokens += m->prompt_tokens;
    s->completion_tokens += m->completion_tokens;
    if (!m->known) s->fresh_tokens += m->completion_tokens;
  }
  s->share = n ? (double)s->right / n : 0;
  score_wilson(s->share, s->questions, &s->low, &s->high);
}

/* ---- by subject ---------------------------------------------------------------------------------------------------------------------- */

struct group {
  const char *name;
  int right, n;
};
static int by_name(const void *a, const void *b) { return strcmp(((const struct group *)a)->name, ((const struct group *)b)->name); }

static struct group *groups_of(const struct eval_run *r, int *n) {
  struct group *v = NULL;
  *n = 0;
  for (int i = 0; i < r->questions->n; i++) {
    const char *name = r->questions->v[i].group;
    int at = 0;
    if (!name) continue;
    while (at < *n && strcmp(v[at].name, name)) at++;
    if (at == *n) {
      v = xrealloc(v, (size_t)(*n + 1) * sizeof *v);
      v[(*n)++] = (struct group){.name = name};
    }
    v[at].n += r->samples;
    for (int k = 0; k < r->samples; k++) v[at].right += r->marks[i * r->samples + k].right;
  }
  if (*n) qsort(v, (size_t)*n, sizeof *v, by_name);
  return v;
}

static double places(double v) { return round(v * 1e6) / 1e6; }

json_t *score_json(const struct eval_run *r, const struct score *s, const json_t *header, double minimum) {
  json_t *o = json_deep_copy(header);
  int n;
  struct group *groups = groups_of(r, &n);
  json_object_set_new(o, "score", json_real(places(s->share)));
  json_object_set_new(o, "low", json_real(places(s->low)));
  json_object_set_new(o, "high", json_real(places(s->high)));
  json_object_set_new(o, "questions", json_integer(s->questions));
  json_object_set_new(o, "samples", json_integer(s->samples));
  json_object_set_new(o, "right", json_integer(s->right));
  json_object_set_new(o, "unanswered", json_integer(s->unanswered));
  json_object_set_new(o, "cut", json_integer(s->cut));
  json_object_set_new(o, "errors", json_integer(s->failed));
  json_object_set_new(o, "prompt_tokens", json_integer(s->prompt_tokens));
  json_object_set_new(o, "completion_tokens", json_integer(s->completion_tokens));
  json_object_set_new(o, "seconds", json_real(places(s->seconds)));
  json_object_set_new(o, "known", json_integer(r->n_known));
  if (minimum >= 0) {
    json_object_set_new(o, "min", json_real(minimum));
    json_object_set_new(o, "passed", json_boolean(s->share >= minimum));
  }
  if (n) {
    json_t *table = json_object();
    for (int i = 0; i < n; i++)
      json_object_set_new(table, groups[i].name, json_pack("{s:i, s:i}", "right", groups[i].right, "n", groups[i].n));
    json_object_set_new(o, "groups", table);
  }
  free(groups);
  return o;
}

void score_print(const struct eval_run *r, const struct score *s, double minimum) {
  int n, all = s->questions * s->samples;
  struct group *groups = groups_of(r, &n);
  for (int i = 0; i < n; i++)
    printf("  %-38s %5.1f %%  (%d of %d)\n", groups[i].name, 100.0 * groups[i].right / groups[i].n, groups[i].right, groups[i].n);
  free(groups);
  printf("%s: %.1f %% right, %d of %d; 95 %% interval %.1f to %.1f\n", r->name, 100 * s->share, s->right, all, 100 * s->low, 100 * s->high);
  if (s->samples > 1) printf("  %d questions, each asked %d times; the interval is over questions\n", s->questions, s->samples);
  if (s->unanswered) printf("  %d without an answer that could be read\n", s->unanswered);
  if (s->cut) printf("  %d cut at their limit of tokens\n", s->cut);
  if (s->failed) printf("  %d failed and counted as wrong; the first: %s\n", s->failed, r->first_error ? r->first_error : "");
  printf("  %lld prompt tokens, %lld generated", (long long)s->prompt_tokens, (long long)s->completion_tokens);
  if (r->n_known) printf("; %d answers from the log", r->n_known);
  if (s->seconds > 0 && s->fresh_tokens) printf("; %.1f s, %.1f tokens/s", s->seconds, (double)s->fresh_tokens / s->seconds);
  printf("\n");
  if (minimum >= 0) printf("  minimum %.1f %%: %s\n", 100 * minimum, s->share >= minimum ? "reached" : "missed");
}
