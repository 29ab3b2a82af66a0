/* cmd_complete.c — continue a text: streamed to the terminal, or one JSON object. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "commands.h"

enum { GRAMMAR_FILE_BYTES_MAX = 16 << 20 };

struct outcome { /* what the run gave, for --json and the closing line */
  struct buf text;
  int32_t *ids;
  size_t n_ids, cap_ids;
  struct cygnet_event last; /* its pointers are stale */
};

static void take_event(const struct cygnet_event *ev, bool stream, struct outcome *out) {
  buf_append(&out->text, ev->text, ev->n_text);
  for (size_t i = 0; i < ev->n_tokens; i++) {
    if (out->n_ids == out->cap_ids) {
      out->cap_ids = out->cap_ids ? 2 * out->cap_ids : 256;
      out->ids = xrealloc(out->ids, out->cap_ids * sizeof *out->ids);
    }
    out->ids[out->n_ids++] = ev->tokens[i].id;
  }
  if (stream && ev->n_text) {
    fwrite(ev->text, 1, ev->n_text, stdout);
    fflush(stdout);
  }
  if (ev->finish) out->last = *ev;
}

static void print_json(const struct cygnet *c, const int32_t *prompt, size_t n_prompt, const struct outcome *r) {
  struct cygnet_stats st; /* of this one request */
  cygnet_stats(c, &st);
  json_t *prompt_ids = json_array(), *ids = json_array();
  for (size_t i = 0; i < n_prompt; i++) json_array_append_new(prompt_ids, json_integer(prompt[i]));
  for (size_t i = 0; i < r->n_ids; i++) json_array_append_new(ids, json_integer(r->ids[i]));
  const struct cygnet_event *v = &r->last;
  json_t *o = json_pack(
      "{s:o, s:o, s:s%, s:s, s:{s:i, s:i, s:i, s:{s:i}, s:{s:i, s:I, s:I, s:I}}, s:{s:f, s:f, s:f}}", "prompt_ids", prompt_ids, "ids", ids,
      "text", buf_cstr(&r->text), r->text.len, "finish_reason", cygnet_finish_name(v->finish), "usage", "prompt_tokens", v->prompt_tokens,
      "completion_tokens", v->completion_tokens, "total_tokens", v->prompt_tokens + v->completion_tokens, "prompt_tokens_details",
      "cached_tokens", v->cached_tokens, "completion_tokens_details", "reasoning_tokens", v->reasoning_tokens, "drafted_tokens",
      (json_int_t)st.drafted_tokens, "accepted_tokens", (json_int_t)st.accepted_tokens, "forced_tokens", (json_int_t)st.forced_tokens,
      "timings", "queue_ms", v->queue_ms, "prefill_ms", v->prefill_ms, "decode_ms", v->decode_ms);
  if (v->finish == CYGNET_FINISH_ERROR) json_object_set_new(o, "error", json_string(v->error.message));
  char *text = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(6));
  puts(text);
  free(text);
  json_decref(o);
}

static void print_rates(const struct cygnet *c, const struct cygnet_event *v) {
  struct cygnet_info info;
  struct cygnet_stats st;
  cygnet_info(c, &info);
  cygnet_stats(c, &st);
  char mem[32];
  int decoded = v->completion_tokens - 1;
  fprintf(stderr, "\n[%s on %s, %d thread%s: loaded in %.0f ms; prompt %d tokens", info.name, info.isa, info.threads,
          info.threads == 1 ? "" : "s", info.load_ms, v->prompt_tokens);
  if (v->prefill_ms > 0) fprintf(stderr, ", %.0f tokens/s", 1000 * (v->prompt_tokens - v->cached_tokens) / v->prefill_ms);
  if (decoded > 0 && v->decode_ms > 0)
    fprintf(stderr, "; answer %d tokens, %.1f tokens/s", v->completion_tokens, 1000 * decoded / v->decode_ms);
  if (v->n_media) fprintf(stderr, "; %d encoded in %.0f ms", v->n_media - v->n_media_cached, v->encode_ms);
  if (st.drafted_tokens)
    fprintf(stderr, ", %llu of %llu guesses right", (unsigned long long)st.accepted_tokens, (unsigned long long)st.drafted_tokens);
  if (st.forced_tokens) fprintf(stderr, ", %llu without a choice", (unsigned long long)st.forced_tokens);
  fprintf(stderr, "; memory %s]\n", mem_human(mem_peak_resident_bytes(), mem));
}

/* The argument itself, or what is in @FILE. Owned; NULL and *e. */
static char *read_argument(const char *text, size_t *n, struct err *e) {
  if (text[0] != '@') {
    *n = strlen(text);
    return xstrdup(text);
  }
  int fd = open(text + 1, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    err_set(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_BAD_FILE, "%.200s: %s", text + 1, strerror(errno));
    return NULL;
  }
  char *read = command_read_all(fd, text + 1, (size_t)GRAMMAR_FILE_BYTES_MAX, n, e);
  close(fd);
  return read;
}

/* What the answer must be: 0 and *g, which stays NULL when nothing was asked for. */
static int read_grammar(const struct options *o, const struct cygnet *c, struct cygnet_grammar **g) {
  const struct {
    const char *text;
    enum cygnet_grammar_kind kind;
  } kinds[] = {{o->json_schema, CYGNET_GRAMMAR_JSON_SCHEMA}, {o->grammar, CYGNET_GRAMMAR_EBNF}, {o->regex, CYGNET_GRAMMAR_REGEX}};
  struct err err = {0};
  for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
    if (!kinds[i].text) continue;
    if (*g) {
      err_set(&err, ERR_BAD_INPUT, "expected one of --json-schema, --grammar and --regex, found several");
      return command_fail(&err);
    }
    size_t n = 0;
    char *text = read_argument(kinds[i].text, &n, &err);
    if (!text) return command_fail(&err);
    struct cygnet_error e = {0};
    *g = cygnet_grammar_new(c, kinds[i].kind, text, n, &e);
    free(text);
    if (!*g) return command_fail_public(&e);
  }
  return 0;
}

static int complete(const struct options *o, struct cygnet *c, const struct cygnet_grammar *g, const int32_t *ids, size_t n,
                    const struct command_media *media) {
  struct cygnet_error e = {0};
  struct cygnet_request r = {.prompt = ids,
                             .n_prompt = n,
                             .media = (const struct cygnet_media *const *)media->v,
                             .n_media = media->n,
                             .grammar = g,
                             .max_tokens = o->n >= 0 ? (int)o->n : 128,
                             .stop = (const char *const *)o->stop.v,
                             .n_stop = (size_t)o->stop.n,
                             .ignore_eos = o->ignore_eos};
  options_sampling(o, CMD_COMPLETE, &r.sampling);
  if (!cygnet_submit(c, &r, &e)) return command_fail_public(&e);
  struct outcome out = {0};
  buf_init(&out.text, 0);
  struct cygnet_event ev;
  do
    while (cygnet_next_event(c, &ev)) take_event(&ev, !o->json, &out);
  while (!out.last.finish && cygnet_step(c) && !ferror(stdout));
  while (cygnet_next_event(c, &ev)) take_event(&ev, !o->json, &out);

  if (o->json) print_json(c, ids, n, &out);
  else {
    if (isatty(STDOUT_FILENO) || out.text.len == 0 || out.text.data[out.text.len - 1] != '\n') putchar('\n');
    fflush(stdout);
    if (!o->quiet && out.last.finish != CYGNET_FINISH_ERROR) print_rates(c, &out.last);
  }
  int status = 0;
  if (out.last.finish == CYGNET_FINISH_ERROR) status = command_fail_public(&out.last.error);
  buf_free(&out.text);
  free(out.ids);
  return status;
}

int cmd_complete(const struct options *o) {
  int status = 0;
  struct options alone = *o;
  alone.max_running = 1;
  struct cygnet *c = command_open(&alone, &status);
  if (!c) return status;
  int32_t *ids = NULL;
  size_t n = 0;
  struct cygnet_grammar *g = NULL;
  struct command_media media = {0};
  status = command_prompt_media(o, c, &ids, &n, &media);
  if (!status) status = read_grammar(o, c, &g);
  if (!status) status = complete(o, c, g, ids, n, &media);
  command_media_cut(&media, 0);
  cygnet_grammar_free(g);
  cygnet_free(ids);
  cygnet_close(c);
  return status;
}
