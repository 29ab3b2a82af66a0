/* thinking.c — the switch and the budget of thoughts. Runs on the prep thread. */
#include "server/thinking.h"

#include <limits.h>
#include <string.h>

static const struct {
  const char *word;
  bool on;
  int budget; /* -1: no limit */
} efforts[] = {{"none", false, -1},    {"off", false, -1}, {"minimal", true, 256}, {"low", true, 1024},
               {"medium", true, 4096}, {"high", true, -1}, {"xhigh", true, -1},    {"max", true, -1}};

static void want(struct params *p, const struct api *a, struct thinking *t, const char *field, bool on) {
  if (on && !a->info.chat_thinks) params_refuse(p, field, "this model does not think in a channel of its own");
  if (t->field && t->on != on) params_fail(p, field, "contradicts %s", t->field);
  t->field = field;
  t->on = on;
}

static void want_effort(struct params *p, const struct api *a, struct thinking *t, const char *field, const char *word, int *budget) {
  size_t i = 0;
  char shown[40];
  while (i < ARRAY_LEN(efforts) && strcmp(efforts[i].word, word)) i++;
  if (i == ARRAY_LEN(efforts)) {
    params_fail(p, field, "expected none, minimal, low, medium, high, xhigh or max, found \"%s\"",
                str_escape(str_c(word), shown, sizeof shown));
    return;
  }
  want(p, a, t, field, efforts[i].on);
  *budget = efforts[i].budget;
}

static void read_effort(struct params *p, const struct api *a, struct thinking *t, int *budget) {
  const json_t *reasoning = NULL;
  const char *word;
  size_t n;
  if (params_string(p, "reasoning_effort", 64, &word, &n)) want_effort(p, a, t, "reasoning_effort", word, budget);
  if (!params_object(p, "reasoning", &reasoning)) return;
  struct params inner = params_of(reasoning, "body: reasoning", p->e);
  bool enabled = true;
  if (params_string(&inner, "effort", 64, &word, &n) && !inner.failed) want_effort(p, a, t, "reasoning", word, budget);
  if (params_bool(&inner, "enabled", &enabled)) want(p, a, t, "reasoning", enabled);
  if (params_int(&inner, "max_tokens", 0, INT_MAX - 1, &t->budget)) want(p, a, t, "reasoning", true);
  p->failed |= inner.failed;
}

/* thinking_budget: -1 says no limit. */
static void read_budget(struct params *p, struct thinking *t) { params_int(p, "thinking_budget", -1, INT_MAX - 1, &t->budget); }

static void read_kwargs(struct params *p, const struct api *a, struct thinking *t) {
  const json_t *kwargs = NULL;
  static const char *const names[] = {"enable_thinking", "thinking"};
  params_object(p, "chat_template_kwargs", &kwargs);
  struct params inner = params_of(kwargs, "body: chat_template_kwargs", p->e);
  for (size_t i = 0; i < ARRAY_LEN(names); i++) {
    bool on = false;
    if (params_bool(&inner, names[i], &on)) want(p, a, t, "chat_template_kwargs", on);
  }
  params_bool(&inner, "preserve_thinking", &t->preserve);
  read_budget(&inner, t);
  p->failed |= inner.failed;
}

/* SGLang's place for what a server may know or not; this one knows one thing. */
static void read_custom(struct params *p, struct thinking *t) {
  const json_t *custom = NULL, *v;
  const char *key;
  if (!params_object(p, "custom_params", &custom)) return;
  json_object_foreach((json_t *)(uintptr_t)custom, key, v) {
    if (strcmp(key, "thinking_budget")) params_refuse(p, "custom_params", "only thinking_budget is supported by this server");
  }
  struct params inner = params_of(custom, "body: custom_params", p->e);
  inner.failed = p->failed;
  read_budget(&inner, t);
  p->failed |= inner.failed;
}

void thinking_read(struct params *p, const struct api *a, struct thinking *t, struct job *j) {
  bool on = false, separate = true, stream = true;
  int by_effort = -1;
  *t = (struct thinking){.budget = -2};
  if (params_bool(p, "enable_thinking", &on)) want(p, a, t, "enable_thinking", on);
  read_kwargs(p, a, t);
  read_effort(p, a, t, &by_effort);
  read_budget(p, t);
  read_custom(p, t);
  params_bool(p, "preserve_thinking", &t->preserve);
  params_bool(p, "separate_reasoning", &separate);
  params_bool(p, "stream_reasoning", &stream);
  if (t->budget == -2) t->budget = by_effort;
  j->thinking_budget = t->budget + 1;
  j->merge_thoughts = !separate;
  j->hold_thoughts = !stream;
}
