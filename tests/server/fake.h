/* fake.h — a scripted engine behind the port, a server on a free port, and a client of plain sockets, for the tests of the server.
 *
 * Tokens are bytes (0..255); 256 is BOS, 257 the end. What is generated stands in the prompt: the text after the last "say:" up to the next
 * newline or the end ("Hello, world!" when there is none; "\n" in it is a newline). Words anywhere in the prompt steer it:
 *   !hold=N     N steps before the first token            !delay=N   each step lasts N ms
 *   !fail=N     error after N tokens                      !refuse=N  submit fails with status N
 *   !params     the text is the parameters that arrived   !seed      the text is the seed
 *   !extras     the text is more of them                  !retract=N pushed back N times
 *   !cached=N   prompt tokens from the cache (else half)
 *   !form       the text is the form and the thoughts that are asked for
 *   !media      the text is the pictures and sounds that arrived, "a/4 b/2", and the places of the placeholders
 * Control tokens of Gemma 4 that stand in the text (<|channel> and so on) are what cygnet.h says of control tokens: marks where those are wanted,
 * spelled with show_special, else nothing. A prompt with "!open" ends inside a thought if thoughts are on. A form with "!bad" in it is refused.
 * Pictures are the bytes "IMG name rows", sounds "SND name seconds" (a row a second, 30 at most at once); what is neither is refused as
 * damaged, "BOMB" as too large. With ignore_eos the text is said again and again up to max_tokens. Token i of a prompt has the
 * log-probability -i/8, its k-th alternative 1 less each.
 */
#ifndef CYGNET_TEST_FAKE_H
#define CYGNET_TEST_FAKE_H

#include "test.h"

#include <arpa/inet.h>
#include <math.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "files/json.h"
#include "server/port.h"
#include "server/serve.h"
#include "text/output_impl.h"

#define UNUSED __attribute__((unused))

/* ---- engine ----------------------------------------------------------------------------------------------------------- */

enum {
  FAKE_SLOTS = 64,
  FAKE_CTX = 4096,
  FAKE_VOCAB = 258,
  FAKE_IMAGE = 300,
  FAKE_AUDIO = 301,
  FAKE_MEDIA_VOCAB = 302,
  FAKE_SECONDS = 30,
  FAKE_MARKS = 1000 /* ids of control tokens, by enum output_marker */
};

struct fake_request {
  uint64_t number; /* 0: free slot */
  void *user;
  char text[8192];
  int n_text, at; /* bytes = tokens */
  int hold, delay_ms, fail_at, n_prompt, n_media, logprobs, prompt_logprobs, n_cached, n_retractions;
  int32_t *prompt; /* owned; only with prompt_logprobs */
  enum cygnet_finish end;
  int matched_stop, matched_id;
  bool aborted, thinks;
  int n_reasoning;
  uint64_t seed;
};

struct fake {
  enum tok_family family; /* of the parser; 0: Gemma 3 */
  bool thinks, tools;     /* what info says of conversations */
  bool sees, hears;       /* and of pictures and sound */
  bool budgets;           /* pictures have a choice of rows */
  struct fake_request slots[FAKE_SLOTS];
  int max_running, max_queued; /* by number: the oldest run */
  uint64_t next_number, n_steps, n_aborted, n_finished;
  /* events of the last step */
  struct cygnet_event events[FAKE_SLOTS];
  char texts[FAKE_SLOTS][8];
  struct cygnet_token tokens[FAKE_SLOTS];
  struct cygnet_mark marks[FAKE_SLOTS];
  struct cygnet_logprob tops[FAKE_SLOTS][24];
  struct cygnet_token *prompts[FAKE_SLOTS]; /* owned; with prompt_tops */
  struct cygnet_logprob *prompt_tops[FAKE_SLOTS];
  int n_events, next_event;
  atomic_int running;   /* for tests, any thread */
  atomic_int steps;     /* likewise */
  atomic_int aborts;    /* likewise */
  atomic_int submits;   /* likewise */
  atomic_int n_flushes; /* likewise */
  atomic_int tokenise_ms;
  atomic_int stats_ms; /* how long reading them takes */
  atomic_int n_media;  /* pictures and sounds that live */
  atomic_int n_cut;    /* sounds cut into pieces */
};

static void fake_info(void *self, struct cygnet_info *out) {
  const struct fake *f = self;
  *out = (struct cygnet_info){.name = "fake/model",
                              .architecture = "fake",
                              .format = "none",
                              .isa = "ref",
                              .kv_type = "f32",
                              .vocab = FAKE_VOCAB,
                              .ctx_tokens = FAKE_CTX,
                              .threads = 1,
                              .chat_thinks = f->thinks,
                              .chat_tools = f->tools,
                              .image_id = f->sees ? FAKE_IMAGE : -1,
                              .video_id = -1,
                              .audio_id = f->hears ? FAKE_AUDIO : -1,
                              .vision = f->sees ? "fake-eye" : NULL,
                              .audio = f->hears ? "fake-ear" : NULL,
                              .image_budgets = {f->budgets ? 70 : 0, 280, 1120},
                              .audio_seconds = f->hears ? FAKE_SECONDS : 0,
                              .max_running = 4};
  if (f->sees || f->hears) out->vocab = FAKE_MEDIA_VOCAB;
}

static int fake_encode(void *self, const char *text, size_t n, int special, int bos, int32_t **ids, size_t *n_ids) {
  struct fake *f = self;
  (void)special;
  int ms = atomic_load(&f->tokenise_ms);
  if (ms) usleep((unsigned)ms * 1000);
  *ids = malloc((n + 2) * sizeof **ids);
  *n_ids = 0;
  if (bos) (*ids)[(*n_ids)++] = 256;
  for (size_t i = 0; i < n; i++) (*ids)[(*n_ids)++] = (unsigned char)text[i];
  return 0;
}

static const char *fake_piece(void *self, int32_t id, size_t *n) {
  static char bytes[256];
  (void)self;
  *n = id >= 0 && id < 256 ? 1 : id < FAKE_VOCAB && id >= 0 ? 5 : 0;
  if (*n == 1) return bytes[id] = (char)id, &bytes[id];
  return *n == 0 ? NULL : id == 256 ? "<bos>" : "<eos>";
}

static char *fake_decode(void *self, const int32_t *ids, size_t n, int skip_special, size_t *n_text) {
  struct buf raw, out;
  (void)self;
  buf_init(&raw, 0);
  buf_init(&out, 0);
  for (size_t i = 0; i < n; i++) {
    if (ids[i] < 256) buf_putc(&raw, (char)ids[i]);
    else if (!skip_special) buf_puts(&raw, ids[i] == 256 ? "<bos>" : "<eos>");
  }
  for (size_t i = 0; i < raw.len;) {
    uint32_t cp;
    char put[4];
    i += (size_t)utf8_step(raw.data + i, raw.len - i, &cp, NULL);
    buf_append(&out, put, (size_t)utf8_put(cp, put));
  }
  buf_free(&raw);
  buf_append(&out, "", 0);
  char *text = buf_take(&out, n_text);
  return text ? text : xstrdup("");
}

/* Parts: text, "\1" for a picture, "\2" for a sound. */
static void fake_parts(const json_t *content, struct buf *text) {
  for (size_t k = 0; k < json_array_size(content); k++) {
    const json_t *part = json_array_get(content, k);
    const char *type = json_string_value(json_object_get(part, "type")), *t = json_string_value(json_object_get(part, "text"));
    if (t) buf_puts(text, t);
    else buf_putc(text, type && strstr(type, "audio") ? 2 : 1);
  }
}

static int fake_render(void *self, const char *messages, const char *tools, const char *options, int32_t **ids, size_t *n_ids, int *thought,
                       struct cygnet_error *e) {
  struct err why;
  bool thinks = strstr(options, "\"enable_thinking\":true") != NULL;
  (void)tools;
  *thought = thinks && strstr(messages, "!open");
  json_t *list = json_load_text(messages, strlen(messages), false, "messages", &why), *m;
  size_t i;
  struct buf text;
  int r = 0;
  buf_init(&text, 0);
  json_array_foreach(list, i, m) {
    const char *role = json_string_value(json_object_get(m, "role")), *content = json_string_value(json_object_get(m, "content"));
    struct buf parts;
    buf_init(&parts, 0);
    if (json_is_array(json_object_get(m, "content"))) {
      fake_parts(json_object_get(m, "content"), &parts);
      content = buf_cstr(&parts);
    }
    if (role && !content && (json_object_get(m, "tool_calls") || json_is_null(json_object_get(m, "content")))) content = "";
    if (!role || !content) {
      *e = (struct cygnet_error){.status = 400};
      snprintf(e->message, sizeof e->message, "messages[%zu].%s: expected a string", i, role ? "content" : "role");
      r = -1;
    } else if (strstr(options, "\"raw\":true")) {
      buf_puts(&text, content);
    } else {
      buf_printf(&text, "<%s>%s\n", role, content);
    }
    buf_free(&parts);
    if (r) break;
  }
  if (r == 0) fake_encode(self, buf_cstr(&text), text.len, 0, 1, ids, n_ids);
  for (size_t k = 0; r == 0 && k < *n_ids; k++)
    if ((*ids)[k] == 1 || (*ids)[k] == 2) (*ids)[k] = (*ids)[k] == 1 ? FAKE_IMAGE : FAKE_AUDIO;
  buf_free(&text);
  json_decref(list);
  return r;
}

/* ---- pictures and sounds ------------------------------------------------------------------------------------------------ */

struct cygnet_media {
  char name[32];
  int rows;
  double seconds;
  atomic_int *alive;
};

static struct cygnet_media *fake_media_new(void *self, enum cygnet_media_kind kind, const void *bytes, size_t n,
                                           const struct cygnet_media_options *o, struct cygnet_error *e) {
  struct fake *f = self;
  char *text = xstrndup(bytes, n);
  struct cygnet_media m = {.alive = &f->n_media};
  *e = (struct cygnet_error){.status = 400};
  bool good = kind == CYGNET_AUDIO ? sscanf(text, "SND %31s %lf", m.name, &m.seconds) == 2
                                   : sscanf(text, "IMG %31s %d", m.name, &m.rows) == 2;
  if (!good && !strncmp(text, "BOMB", 4)) e->status = 413;
  free(text);
  if (!good) snprintf(e->message, sizeof e->message, e->status == 413 ? "too many pixels" : "damaged");
  if (kind == CYGNET_AUDIO) {
    double part = o->seconds > 0 ? MIN(o->seconds, m.seconds - o->start_seconds) : m.seconds - o->start_seconds;
    if (good && part > FAKE_SECONDS + 1e-9) snprintf(e->message, sizeof e->message, "expected at most %d s of sound", FAKE_SECONDS);
    good &= part <= FAKE_SECONDS + 1e-9;
    m.rows = MAX((int)ceil(part - 1e-9), 1);
    if (o->start_seconds > 0) snprintf(m.name + strlen(m.name), 8, "@%d", (int)o->start_seconds);
  } else if (o->max_tokens) {
    m.rows = MIN(m.rows, o->max_tokens);
  }
  if (!good) return NULL;
  struct cygnet_media *out = xcalloc(1, sizeof *out);
  *out = m;
  atomic_fetch_add(m.alive, 1);
  return out;
}
static void fake_media_free(struct cygnet_media *m) {
  if (!m) return;
  atomic_fetch_sub(m->alive, 1);
  free(m);
}

static int fake_media_pieces(void *self, const void *bytes, size_t n, double seconds_max, struct cygnet_media **pieces, int n_max,
                             double *seconds, struct cygnet_error *e) {
  struct cygnet_media *first = fake_media_new(self, CYGNET_AUDIO, bytes, n, &(struct cygnet_media_options){.seconds = seconds_max}, e);
  if (!first) return -1;
  *seconds = first->seconds;
  int count = (int)ceil(*seconds / seconds_max - 1e-9);
  fake_media_free(first);
  for (int i = 0; i < count && count <= n_max; i++)
    pieces[i] = fake_media_new(self, CYGNET_AUDIO, bytes, n,
                               &(struct cygnet_media_options){.start_seconds = i * *seconds / count, .seconds = *seconds / count}, e);
  atomic_fetch_add(&((struct fake *)self)->n_cut, 1);
  return count;
}

static int fake_media_tokens(const struct cygnet_media *m) { return m->rows; }
static size_t fake_media_memory(const struct cygnet_media *m) { return (size_t)m->rows * 100; }

static int fake_expand(void *self, const int32_t *ids, size_t n, const struct cygnet_media *const *media, size_t n_media, int32_t **out,
                       size_t *n_out, struct cygnet_error *e) {
  size_t total = n, k = 0;
  (void)self, (void)e;
  for (size_t i = 0; i < n_media; i++) total += (size_t)media[i]->rows;
  *out = malloc(total * sizeof **out);
  *n_out = 0;
  for (size_t i = 0; i < n; i++) {
    int times = ids[i] == FAKE_IMAGE || ids[i] == FAKE_AUDIO ? media[k++]->rows : 1;
    while (times-- > 0) (*out)[(*n_out)++] = ids[i];
  }
  return 0;
}

/* "a/4 b/2 at 3,9" */
static void fake_say_media(char *text, size_t size, const struct cygnet_request *r) {
  size_t n = 0, found = 0;
  text[0] = 0;
  for (size_t i = 0; i < r->n_media; i++)
    n += (size_t)snprintf(text + n, size - n, "%s%s/%d", i ? " " : "", r->media[i]->name, r->media[i]->rows);
  for (size_t i = 0; i < r->n_prompt; i++)
    if (r->prompt[i] == FAKE_IMAGE || r->prompt[i] == FAKE_AUDIO)
      n += (size_t)snprintf(text + n, size - n, "%s%c%zu", found++ ? "," : " at ", r->prompt[i] == FAKE_IMAGE ? 'i' : 's', i);
}

/* ---- forms and parsers ---------------------------------------------------------------------------------------------- */

struct cygnet_grammar {
  enum cygnet_grammar_kind kind;
  char *text; /* owned */
};

static UNUSED atomic_int fake_grammars; /* that live */

static struct cygnet_grammar *fake_grammar_new(void *self, enum cygnet_grammar_kind kind, const char *text, size_t n,
                                               struct cygnet_error *e) {
  (void)self;
  char *copy = xstrndup(text, n);
  if (strstr(copy, "!bad")) {
    *e = (struct cygnet_error){.status = 400};
    snprintf(e->message, sizeof e->message, "schema: keyword \"!bad\" is not supported");
    free(copy);
    return NULL;
  }
  struct cygnet_grammar *g = xcalloc(1, sizeof *g);
  *g = (struct cygnet_grammar){kind, copy};
  atomic_fetch_add(&fake_grammars, 1);
  return g;
}
static void fake_grammar_free(struct cygnet_grammar *g) {
  if (!g) return;
  atomic_fetch_sub(&fake_grammars, 1);
  free(g->text);
  free(g);
}

struct cygnet_parser {
  struct output *output;
  void (*fn)(void *ctx, const struct cygnet_part *part);
  void *ctx;
};
static void fake_part(void *ctx, const struct output_part *p) {
  struct cygnet_parser *parser = ctx;
  parser->fn(parser->ctx, &(struct cygnet_part){(enum cygnet_part_kind)p->kind, p->text.p, p->text.n, p->name.p, p->name.n, p->index});
}
static struct cygnet_parser *fake_parser_new(void *self, const char *const *names, int n_names, int in_thought,
                                             void (*fn)(void *ctx, const struct cygnet_part *part), void *ctx) {
  const struct fake *f = self;
  struct cygnet_parser *p = xcalloc(1, sizeof *p);
  struct output_options o = {.family = f->family, .tools = n_names > 0, .names = names, .n_names = n_names, .in_thought = in_thought != 0};
  p->fn = fn;
  p->ctx = ctx;
  p->output = output_new(NULL, &o, fake_part, p);
  return p;
}
static void fake_parser_free(struct cygnet_parser *p) {
  if (p) output_delete(p->output);
  free(p);
}
static void fake_parser_push(struct cygnet_parser *p, const char *text, size_t n, const struct cygnet_mark *marks, size_t n_marks) {
  size_t at = 0;
  for (size_t i = 0; i < n_marks; i++) {
    if (marks[i].at > at) output_text(p->output, text + at, marks[i].at - at);
    at = marks[i].at;
    output_take_marker(p->output, (enum output_marker)(marks[i].id - FAKE_MARKS));
  }
  if (n > at) output_text(p->output, text + at, n - at);
}
static void fake_parser_finish(struct cygnet_parser *p) { output_finish(p->output); }

/* ---- the engine goes on --------------------------------------------------------------------------------------------- */

/* Spellings of control tokens in the script: a byte each (1 + marker), left as they are, or left out. */
static void fake_spellings(char *text, const struct cygnet_request *r) {
  char *out = text;
  for (const char *p = text; *p;) {
    size_t m = 0;
    while (m < MARKS && strncmp(p, output_spellings[m], strlen(output_spellings[m]))) m++;
    if (m == MARKS || r->show_special) {
      *out++ = *p++;
      continue;
    }
    p += strlen(output_spellings[m]);
    if (r->marks) *out++ = (char)(1 + m);
  }
  *out = 0;
}

static const char *fake_word(const char *text, const char *word, int *value) {
  const char *at = strstr(text, word);
  if (at && value) *value = atoi(at + strlen(word));
  return at;
}

static void fake_script(struct fake_request *q, const struct cygnet_request *r, const char *prompt) {
  const char *say = NULL;
  for (const char *p = prompt; (p = strstr(p, "say:")); p += 4) say = p + 4;
  if (strstr(prompt, "!params")) {
    const struct cygnet_sampling *s = &r->sampling;
    snprintf(q->text, sizeof q->text,
             "t=%g k=%d p=%g m=%g f=%g pr=%g r=%g seed=%d/%llu min=%d bias=%zu max=%d stop=%zu ids=%zu keep=%d eos=%d special=%d",
             s->temperature, s->top_k, s->top_p, s->min_p, s->frequency_penalty, s->presence_penalty, s->repetition_penalty, s->has_seed,
             (unsigned long long)s->seed, s->min_tokens, s->n_bias, r->max_tokens, r->n_stop, r->n_stop_ids, r->keep_stop, r->ignore_eos,
             r->show_special);
  } else if (strstr(prompt, "!extras")) {
    snprintf(q->text, sizeof q->text, "priority=%d salt=%.*s logprobs=%d prompt=%d", r->priority, (int)r->n_cache_salt,
             r->cache_salt ? r->cache_salt : "", r->logprobs, r->prompt_logprobs);
  } else if (strstr(prompt, "!seed")) {
    snprintf(q->text, sizeof q->text, "%llu", (unsigned long long)r->sampling.seed);
  } else if (say) {
    size_t n = 0;
    for (; *say && *say != '\n' && n + 1 < sizeof q->text; say++) {
      if (say[0] == '\\' && say[1] == 'n') q->text[n++] = '\n', say++;
      else q->text[n++] = *say;
    }
  } else {
    snprintf(q->text, sizeof q->text, "Hello, world!");
  }
  if (strstr(prompt, "!media")) fake_say_media(q->text, sizeof q->text, r);
  if (strstr(prompt, "!form"))
    snprintf(q->text, sizeof q->text, "%d %s thoughts=%d budget=%d marks=%d", r->grammar ? (int)r->grammar->kind : -1,
             r->grammar ? r->grammar->text : "", r->thoughts, r->thinking_budget, r->marks);
  else fake_spellings(q->text, r);
  q->thinks = r->thoughts == CYGNET_THOUGHTS_OPEN;
  q->n_text = (int)strlen(q->text);
  q->end = CYGNET_FINISH_STOP;
  q->matched_stop = -1;
  q->matched_id = 257;
  for (size_t i = 0; i < r->n_stop; i++) {
    const char *at = strstr(q->text, r->stop[i]);
    if (!at || at - q->text >= q->n_text) continue;
    q->n_text = (int)(at - q->text);
    q->matched_stop = (int)i;
    q->matched_id = -1;
  }
  if (r->ignore_eos && q->matched_stop < 0 && q->n_text && !strstr(prompt, "!params")) {
    int n = q->n_text;
    for (; q->n_text < MIN(r->max_tokens, (int)sizeof q->text - 1); q->n_text++) q->text[q->n_text] = q->text[q->n_text - n];
  }
  if (r->max_tokens >= 0 && q->n_text >= r->max_tokens && !strstr(prompt, "!params")) {
    q->n_text = r->max_tokens;
    q->end = CYGNET_FINISH_LENGTH;
    q->matched_stop = q->matched_id = -1;
  }
}

static uint64_t fake_submit(void *self, const struct cygnet_request *r, struct cygnet_error *e) {
  struct fake *f = self;
  struct fake_request *q = NULL;
  int n = 0;
  for (int i = 0; i < FAKE_SLOTS; i++) {
    if (f->slots[i].number) n++;
    else if (!q) q = &f->slots[i];
  }
  char *prompt = malloc(r->n_prompt + 1);
  for (size_t i = 0; i < r->n_prompt; i++) prompt[i] = r->prompt[i] < 256 ? (char)r->prompt[i] : '^';
  prompt[r->n_prompt] = 0;
  int refuse = 0;
  fake_word(prompt, "!refuse=", &refuse);
  if (n >= f->max_running + f->max_queued || !q) refuse = 503;
  if (refuse) {
    *e = (struct cygnet_error){.status = refuse};
    snprintf(e->message, sizeof e->message, refuse == 503 ? "queue: %d requests are waiting" : "refused %d", n);
    free(prompt);
    return 0;
  }
  *q = (struct fake_request){.number = ++f->next_number,
                             .user = r->user,
                             .n_prompt = (int)r->n_prompt,
                             .n_media = (int)r->n_media,
                             .fail_at = -1,
                             .logprobs = r->logprobs,
                             .prompt_logprobs = r->prompt_logprobs,
                             .n_cached = (int)r->n_prompt / 2,
                             .seed = r->sampling.seed};
  fake_word(prompt, "!hold=", &q->hold);
  fake_word(prompt, "!delay=", &q->delay_ms);
  fake_word(prompt, "!fail=", &q->fail_at);
  fake_word(prompt, "!cached=", &q->n_cached);
  fake_word(prompt, "!retract=", &q->n_retractions);
  if (r->prompt_logprobs) {
    q->prompt = malloc(r->n_prompt * sizeof *q->prompt);
    memcpy(q->prompt, r->prompt, r->n_prompt * sizeof *q->prompt);
  }
  fake_script(q, r, prompt);
  free(prompt);
  atomic_fetch_add(&f->submits, 1);
  return q->number;
}

static void fake_abort(void *self, uint64_t number) {
  struct fake *f = self;
  for (int i = 0; i < FAKE_SLOTS; i++)
    if (f->slots[i].number == number) {
      f->slots[i].aborted = true;
      atomic_fetch_add(&f->aborts, 1);
    }
}

static void fake_put_prompt(struct fake *f, struct fake_request *q, int i) {
  struct cygnet_event *ev = &f->events[i];
  int from = MIN(q->prompt_logprobs - 1, q->n_prompt), n_top = q->logprobs > 1 ? q->logprobs - 1 : 0;
  struct cygnet_token *t = f->prompts[i] = calloc((size_t)q->n_prompt, sizeof *t);
  struct cygnet_logprob *top = f->prompt_tops[i] = calloc((size_t)(q->n_prompt * n_top + 1), sizeof *top);
  for (int at = from; at < q->n_prompt; at++, t++) {
    *t = (struct cygnet_token){q->prompt[at], at ? -(float)at / 8 : NAN, top, at ? n_top : 0};
    for (int k = 0; k < t->n_top; k++) *top++ = (struct cygnet_logprob){(q->prompt[at] + k) % 256, -(float)at / 8 - (float)k};
  }
  ev->prompt = f->prompts[i];
  ev->n_prompt = (size_t)(q->n_prompt - from);
  free(q->prompt);
  q->prompt = NULL;
}

static void fake_drop_prompts(struct fake *f) {
  for (int i = 0; i < FAKE_SLOTS; i++) {
    free(f->prompts[i]);
    free(f->prompt_tops[i]);
    f->prompts[i] = NULL;
    f->prompt_tops[i] = NULL;
  }
}

/* One token of one request → an event; text only when it completes a character. */
static void fake_advance(struct fake *f, struct fake_request *q) {
  int i = f->n_events++;
  struct cygnet_event *ev = &f->events[i];
  *ev = (struct cygnet_event){.request = q->number,
                              .user = q->user,
                              .text = f->texts[i],
                              .matched_stop = -1,
                              .matched_id = -1,
                              .prompt_tokens = q->n_prompt,
                              .cached_tokens = q->n_cached,
                              .n_media = q->n_media,
                              .n_media_cached = q->n_media / 2,
                              .n_retractions = q->n_retractions,
                              .queue_ms = 1,
                              .prefill_ms = 2,
                              .decode_ms = q->at,
                              .seed = q->seed};
  f->texts[i][0] = 0;
  if (q->prompt && !q->aborted) fake_put_prompt(f, q, i);
  if (q->aborted || q->at == q->fail_at) {
    ev->finish = q->aborted ? CYGNET_FINISH_ABORT : CYGNET_FINISH_ERROR;
    ev->error.status = 500;
    snprintf(ev->error.message, sizeof ev->error.message, "logits are not finite");
  } else if (q->at < q->n_text) {
    int begin = q->at, n;
    while (begin > 0 && ((unsigned char)q->text[begin] & 0xc0) == 0x80) begin--;
    n = ++q->at - begin;
    int mark = q->text[q->at - 1] >= 1 && q->text[q->at - 1] <= MARKS ? q->text[q->at - 1] - 1 : -1;
    if (mark == MARK_CHANNEL) q->thinks = true;
    q->n_reasoning += q->thinks;
    if (mark == MARK_CHANNEL_END) q->thinks = false;
    if (mark >= 0) {
      f->marks[i] = (struct cygnet_mark){0, FAKE_MARKS + mark};
      ev->marks = &f->marks[i];
      ev->n_marks = 1;
    } else if (!utf8_incomplete_tail(q->text + begin, (size_t)n)) {
      memcpy(f->texts[i], q->text + begin, (size_t)n);
      f->texts[i][n] = 0;
      ev->n_text = (size_t)n;
    }
    int id = (unsigned char)q->text[q->at - 1];
    for (int k = 0; k + 1 < q->logprobs && k < 24; k++) f->tops[i][k] = (struct cygnet_logprob){(id + k) % 256, -0.25f * (float)(k + 1)};
    f->tokens[i] = (struct cygnet_token){id, -0.25f, f->tops[i], q->logprobs > 1 ? q->logprobs - 1 : 0};
    ev->tokens = &f->tokens[i];
    ev->n_tokens = 1;
  }
  if (!ev->finish && q->at >= q->n_text && q->at != q->fail_at) {
    ev->finish = q->end;
    ev->matched_stop = q->matched_stop;
    ev->matched_id = q->matched_id;
  }
  ev->completion_tokens = q->at;
  ev->reasoning_tokens = q->n_reasoning;
  if (ev->finish) {
    f->n_finished++;
    free(q->prompt);
    q->prompt = NULL;
    q->number = 0;
  }
}

static int fake_step(void *self) {
  struct fake *f = self;
  int delay_ms = 0, n = 0;
  f->n_events = f->next_event = 0;
  fake_drop_prompts(f);
  bool done[FAKE_SLOTS] = {false};
  for (int turn = 0; turn < FAKE_SLOTS; turn++) { /* oldest first */
    struct fake_request *q = NULL;
    for (int i = 0; i < FAKE_SLOTS; i++)
      if (f->slots[i].number && !done[i] && (!q || f->slots[i].number < q->number)) q = &f->slots[i];
    if (!q) break;
    done[q - f->slots] = true;
    n++;
    if (n > f->max_running && !q->aborted) continue;
    if (q->delay_ms > delay_ms) delay_ms = q->delay_ms;
    if (q->hold > 0 && !q->aborted) q->hold--;
    else fake_advance(f, q);
  }
  atomic_store(&f->running, n);
  if (n) atomic_fetch_add(&f->steps, 1);
  f->n_steps += n > 0;
  if (delay_ms) usleep((unsigned)delay_ms * 1000);
  return n > 0;
}

static int fake_next_event(void *self, struct cygnet_event *ev) {
  struct fake *f = self;
  if (f->next_event >= f->n_events) return 0;
  *ev = f->events[f->next_event++];
  if (f->next_event == f->n_events) {
    int n = 0;
    for (int i = 0; i < FAKE_SLOTS; i++) n += f->slots[i].number != 0;
    atomic_store(&f->running, n);
  }
  return 1;
}

static void fake_stats(void *self, struct cygnet_stats *out) {
  struct fake *f = self;
  int n = 0, ms = atomic_load(&f->stats_ms);
  if (ms) usleep((unsigned)ms * 1000);
  for (int i = 0; i < FAKE_SLOTS; i++) n += f->slots[i].number != 0;
  *out = (struct cygnet_stats){.n_steps = f->n_steps,
                               .n_finished = f->n_finished,
                               .n_running = MIN(n, f->max_running),
                               .n_waiting = MAX(n - f->max_running, 0),
                               .pool_full_cached_tokens = atomic_load(&f->n_flushes) ? 0 : 64};
}

static int fake_flush(void *self) {
  struct fake *f = self;
  if (atomic_load(&f->running)) return -1;
  atomic_fetch_add(&f->n_flushes, 1);
  return 0;
}

static UNUSED struct port fake_port(struct fake *f) {
  if (!f->max_running) f->max_running = 4;
  if (!f->max_queued) f->max_queued = 16;
  return (struct port){.self = f,
                       .info = fake_info,
                       .encode = fake_encode,
                       .decode = fake_decode,
                       .piece = fake_piece,
                       .render = fake_render,
                       .release = free,
                       .media_new = fake_media_new,
                       .media_pieces = fake_media_pieces,
                       .media_free = fake_media_free,
                       .media_tokens = fake_media_tokens,
                       .media_memory = fake_media_memory,
                       .expand = fake_expand,
                       .grammar_new = fake_grammar_new,
                       .grammar_free = fake_grammar_free,
                       .parser_new = fake_parser_new,
                       .parser_free = fake_parser_free,
                       .parser_push = fake_parser_push,
                       .parser_finish = fake_parser_finish,
                       .submit = fake_submit,
                       .abort = fake_abort,
                       .step = fake_step,
                       .next_event = fake_next_event,
                       .stats = fake_stats,
                       .flush = fake_flush};
}

/* ---- server ----------------------------------------------------------------------------------------------------------- */

struct fixture {
  struct fake fake;
  struct serve *serve;
  pthread_t thread;
  int port;
};

static void *fixture_main(void *arg) {
  serve_loop(((struct fixture *)arg)->serve);
  return NULL;
}

/* What the fake engines of the next fixtures take. */
static UNUSED bool fixture_sees, fixture_hears, fixture_budgets;

/* With the fake engine, or with port when it is not NULL. */
static struct fixture *fixture_start_port(const struct port *port, const struct serve_options *o, int max_running, int max_queued) {
  struct fixture *f = calloc(1, sizeof *f);
  struct err e;
  struct serve_options options = o ? *o : (struct serve_options){0};
  f->fake.max_running = max_running;
  f->fake.max_queued = max_queued;
  f->fake.sees = fixture_sees;
  f->fake.hears = fixture_hears;
  f->fake.budgets = fixture_budgets;
  struct port fake = fake_port(&f->fake);
  options.quiet = true;
  log_set_level(LOG_ERROR);
  f->serve = serve_open(port ? port : &fake, &options, &e);
  if (!f->serve) fail_msg("%s", e.msg);
  f->port = serve_port(f->serve);
  assert_int_equal(pthread_create(&f->thread, NULL, fixture_main, f), 0);
  return f;
}
static UNUSED struct fixture *fixture_start(const struct serve_options *o, int max_running, int max_queued) {
  return fixture_start_port(NULL, o, max_running, max_queued);
}

static UNUSED void fixture_join(struct fixture *f) {
  pthread_join(f->thread, NULL);
  serve_close(f->serve);
  fake_drop_prompts(&f->fake);
  free(f);
}
static UNUSED void fixture_stop(struct fixture *f) {
  serve_stop(f->serve);
  serve_stop(f->serve);
  fixture_join(f);
}

/* Wait until the value is as wanted; false after two seconds. */
static UNUSED bool becomes(atomic_int *value, int wanted) {
  for (int i = 0; i < 2000; i++) {
    if (atomic_load(value) == wanted) return true;
    usleep(1000);
  }
  return false;
}

/* ---- client ----------------------------------------------------------------------------------------------------------- */

static UNUSED int client_receive_bytes; /* SO_RCVBUF of the next connections; 0: the system's */

static UNUSED int client_connect(int port) {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (client_receive_bytes) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &client_receive_bytes, sizeof client_receive_bytes);
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (connect(fd, (struct sockaddr *)&a, sizeof a)) {
    close(fd);
    return -1;
  }
  return fd;
}

static UNUSED void client_send(int fd, const char *p, size_t n) {
  while (n) {
    ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
    if (k <= 0) return; /* the other side may have closed: what it answered counts */
    p += k;
    n -= (size_t)k;
  }
}
static UNUSED void client_puts(int fd, const char *s) { client_send(fd, s, strlen(s)); }

struct answer {
  int status; /* 0: closed without one */
  bool closed, truncated;
  struct buf head, body, raw; /* body decoded from chunks; raw: beyond this answer */
};

static UNUSED void answer_free(struct answer *a) {
  buf_free(&a->head);
  buf_free(&a->body);
  buf_free(&a->raw);
}

static UNUSED const char *answer_header(const struct answer *a, const char *name, char value[256]) {
  value[0] = 0;
  for (const char *p = buf_cstr(&a->head); (p = strstr(p, "\r\n"));) {
    p += 2;
    if (strncasecmp(p, name, strlen(name)) == 0 && p[strlen(name)] == ':') {
      sscanf(p + strlen(name) + 1, " %255[^\r]", value);
      return value;
    }
  }
  return NULL;
}

/* More bytes within ms: 1, end: 0, nothing: -1. */
static int client_more(int fd, struct buf *in, int ms) {
  char chunk[65536];
  struct pollfd p = {fd, POLLIN, 0};
  if (poll(&p, 1, ms) <= 0) return -1;
  ssize_t n = recv(fd, chunk, sizeof chunk, 0);
  if (n <= 0) return 0;
  buf_append(in, chunk, (size_t)n);
  return 1;
}

/* One answer, from what is left in *in and from the socket. */
static UNUSED void client_read_from(int fd, struct buf *in, struct answer *a, int ms) {
  *a = (struct answer){0};
  char *end;
  while (!(end = in->data ? strstr(in->data, "\r\n\r\n") : NULL)) {
    int r = client_more(fd, in, ms);
    if (r <= 0) {
      a->closed = r == 0;
      return;
    }
  }
  size_t n_head = (size_t)(end - in->data) + 4;
  buf_append(&a->head, in->data, n_head);
  buf_drop_front(in, n_head);
  sscanf(a->head.data, "HTTP/1.1 %d", &a->status);
  if (a->status == 100) {
    answer_free(a);
    client_read_from(fd, in, a, ms);
    return;
  }
  char value[256];
  long length = answer_header(a, "Content-Length", value) ? atol(value) : -1;
  bool chunked = answer_header(a, "Transfer-Encoding", value) != NULL;
  struct http_chunked decoder = {0};
  if (a->status == 204) return;
  for (;;) {
    size_t used = 0;
    if (chunked) {
      enum http_chunked_result r = http_chunked_feed(&decoder, in->data ? in->data : "", in->len, &used, &a->body);
      if (used) buf_drop_front(in, used);
      if (r == HTTP_CHUNKED_DONE) return;
      if (r != HTTP_CHUNKED_MORE) fail_msg("the answer is badly chunked");
    } else if (length >= 0) {
      used = MIN(in->len, (size_t)length - a->body.len);
      buf_append(&a->body, in->data, used);
      if (used) buf_drop_front(in, used);
      if (a->body.len == (size_t)length) return;
    } else {
      buf_append(&a->body, in->data, in->len);
      buf_clear(in);
    }
    int r = client_more(fd, in, ms);
    if (r > 0) continue;
    a->closed = r == 0;
    a->truncated = chunked || length >= 0;
    return;
  }
}

static UNUSED void client_read(int fd, struct answer *a) {
  struct buf in;
  buf_init(&in, 0);
  client_read_from(fd, &in, a, TEST_TSAN ? 120000 : 5000); /* a step takes long there, and longer on a busy machine */
  a->raw = in;
}

/* Is the connection closed by the server within ms? */
static UNUSED bool client_sees_close(int fd, int ms) {
  struct buf in;
  buf_init(&in, 0);
  int r;
  while ((r = client_more(fd, &in, ms)) > 0) {}
  buf_free(&in);
  return r == 0;
}

/* One request on a connection of its own. */
static UNUSED int client_post(int port, const char *path, const char *body) {
  char head[512];
  int fd = client_connect(port);
  if (fd < 0) return -1;
  snprintf(head, sizeof head, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", path,
           strlen(body));
  client_puts(fd, head);
  client_puts(fd, body);
  return fd;
}
static UNUSED int client_ask(int port, const char *path, const char *body, struct answer *a) {
  int fd = client_post(port, path, body);
  if (fd < 0) return *a = (struct answer){0}, 0;
  client_read(fd, a);
  close(fd);
  return a->status;
}
static UNUSED int client_get(int port, const char *path, struct answer *a) {
  char head[512];
  int fd = client_connect(port);
  if (fd < 0) return *a = (struct answer){0}, 0;
  snprintf(head, sizeof head, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
  client_puts(fd, head);
  client_read(fd, a);
  close(fd);
  return a->status;
}

/* ---- ranges of fields ------------------------------------------------------------------------------------------------- */

struct range {
  const char *field, *good[5], *bad[7]; /* JSON values */
};

/* Each value of each field, put in between before and after: good ones are 200; bad ones are 400 with the field's name, or no JSON at all. */
static UNUSED void check_ranges(int port, const char *path, const char *before, const char *after, const struct range *table, size_t n) {
  for (size_t i = 0; i < n; i++)
    for (size_t k = 0; k < ARRAY_LEN(table->good) + ARRAY_LEN(table->bad); k++) {
      bool good = k < ARRAY_LEN(table->good);
      const char *value = good ? table[i].good[k] : table[i].bad[k - ARRAY_LEN(table->good)];
      if (!value) continue;
      char body[700], param[100];
      struct answer a;
      snprintf(body, sizeof body, "%s\"%s\":%s%s", before, table[i].field, value, after);
      client_ask(port, path, body, &a);
      if (a.status != (good ? 200 : 400)) fail_msg("%s %s: status %d: %s", path, body, a.status, buf_cstr(&a.body));
      snprintf(param, sizeof param, "\"param\":\"%s\"", table[i].field);
      if (!good && !strstr(a.body.data, param) && !strstr(a.body.data, "invalid_json")) fail_msg("%s: %s", body, a.body.data);
      if (!good && (!strstr(a.body.data, "\"error\":{\"message\":\"") || !utf8_valid(a.body.data, a.body.len)))
        fail_msg("%s: %s", body, a.body.data);
      answer_free(&a);
    }
}

#endif
