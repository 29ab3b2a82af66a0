/* media.c — pictures and sounds of a request. */
#include "server/media.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "server/base64.h"
#include "server/fetch.h"

enum { ITEMS = 16, TIMEOUT_MS = 10000, LOW_TOKENS = 70, HIGH_TOKENS = 1120 };
static const size_t item_bytes = (size_t)32 << 20, total_bytes = (size_t)1 << 30;
static const char all_taken[] = "pictures and sounds of other requests take all the room that there is; try again later";

/* ---- the house -------------------------------------------------------------------------------------------------------------- */

int media_house_open(struct media_house *h, const struct media_limits *l, struct err *e) {
  *h = (struct media_house){.limits = *l, .folder = -1};
  atomic_init(&h->held_bytes, 0);
  atomic_init(&h->n_fetched, 0);
  if (h->limits.items <= 0) h->limits.items = ITEMS;
  if (!h->limits.item_bytes) h->limits.item_bytes = item_bytes;
  if (!h->limits.total_bytes) h->limits.total_bytes = total_bytes;
  if (h->limits.timeout_ms <= 0) h->limits.timeout_ms = TIMEOUT_MS;
  if (fetch_check_allow(l->allow, e)) return -1;
  if (!l->path || !*l->path) return 0;
  h->path = realpath(l->path, NULL);
  h->folder = h->path ? open(h->path, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
  if (h->folder < 0) return err_set(e, ERR_BAD_INPUT, "media-path: %.200s: %s", l->path, strerror(errno));
  return 0;
}

void media_house_close(struct media_house *h) {
  if (h->folder >= 0) close(h->folder);
  free(h->path);
  *h = (struct media_house){.folder = -1};
}

/* 0, or -1: that would be more than is held for all. */
static int hold(struct media_house *h, size_t n) {
  size_t before = atomic_fetch_add(&h->held_bytes, n);
  if (before + n <= h->limits.total_bytes) return 0;
  atomic_fetch_sub(&h->held_bytes, n);
  return -1;
}
static void let_go(struct media_house *h, size_t n) { atomic_fetch_sub(&h->held_bytes, n); }

/* ---- what a request says ------------------------------------------------------------------------------------------------------ */

void media_list_free(struct media_list *list) {
  free(list->v);
  *list = (struct media_list){0};
}

static bool has_budget(const struct api *a, int tokens) {
  for (size_t i = 0; i < ARRAY_LEN(a->info.image_budgets) && a->info.image_budgets[i]; i++)
    if (a->info.image_budgets[i] == tokens) return true;
  return false;
}

static void read_budget(struct params *p, const struct api *a, int *budget) {
  int tokens = 0;
  if (!params_int(p, "max_soft_tokens", 1, 1 << 20, &tokens)) return;
  if (!a->info.image_budgets[0]) {
    params_refuse(p, "max_soft_tokens", "pictures have one number of tokens in this model");
  } else if (!has_budget(a, tokens)) {
    struct buf list;
    buf_init(&list, 0);
    for (size_t i = 0; i < ARRAY_LEN(a->info.image_budgets) && a->info.image_budgets[i]; i++)
      buf_printf(&list, i ? ", %d" : "%d", a->info.image_budgets[i]);
    params_fail(p, "max_soft_tokens", "expected one of %s, found %d", buf_cstr(&list), tokens);
    buf_free(&list);
  } else {
    *budget = tokens;
  }
}

void media_budget(struct params *p, const struct api *a, int *budget) {
  const json_t *kwargs = NULL, *v;
  const char *key;
  *budget = 0;
  read_budget(p, a, budget);
  if (!params_object(p, "mm_processor_kwargs", &kwargs)) return;
  struct params inner = params_of(kwargs, "body: mm_processor_kwargs", p->e);
  read_budget(&inner, a, budget);
  json_object_foreach((json_t *)(uintptr_t)kwargs, key, v) {
    char shown[60];
    if (params_is_given(v) && strcmp(key, "max_soft_tokens"))
      params_fail(&inner, "mm_processor_kwargs", "expected max_soft_tokens, all that this server takes, found \"%s\"",
                  str_escape(str_c(key), shown, sizeof shown));
  }
  p->failed |= inner.failed;
}

static void fail_at(struct params *p, const char *param, const char *place, const char *fmt, ...) PRINTF_LIKE(4, 5);
static void fail_at(struct params *p, const char *param, const char *place, const char *fmt, ...) {
  char text[300];
  va_list args;
  if (p->failed) return;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  p->failed = true;
  api_error_set(p->e, 400, "invalid_value", param, "%s%s", place, text);
  p->e->placed = true;
}

/* A picture's "detail": how closely it is looked at, where the model leaves a choice. */
static int budget_of_detail(struct params *p, const struct api *a, const json_t *detail, int budget, const char *param, const char *place) {
  char shown[40];
  const char *word = json_string_value(detail);
  if (!detail || json_is_null(detail) || (word && !strcmp(word, "auto"))) return budget;
  bool low = word && !strcmp(word, "low"), high = word && (!strcmp(word, "high") || !strcmp(word, "original"));
  int tokens = low ? LOW_TOKENS : HIGH_TOKENS;
  if (!low && !high)
    fail_at(p, param, place, ".detail: expected \"auto\", \"low\" or \"high\", found \"%s\"",
            str_escape(str_c(word ? word : ""), shown, sizeof shown));
  return has_budget(a, tokens) ? tokens : budget;
}

void media_add(struct params *p, const struct api *a, enum cygnet_media_kind kind, const json_t *where, int budget, const char *param,
               const char *place, struct media_list *list) {
  bool image = kind == CYGNET_IMAGE;
  const json_t *url = json_is_object(where) ? json_object_get(where, "url") : where;
  if (json_is_object(where) && !url) url = json_object_get(where, "data"); /* of sound, as OpenAI has it */
  if (!(image ? a->info.vision : a->info.audio))
    fail_at(p, param, place, ": expected text, this model takes no %s", image ? "pictures" : "sound");
  else if (!json_is_string(url) || !json_string_length(url))
    fail_at(p, param, place, ": expected %s as a data: address or base64", image ? "a picture" : "a sound");
  else if (list->n == a->media->limits.items)
    fail_at(p, param, place, ": expected at most %d pictures and sounds in a request", a->media->limits.items);
  int tokens = image ? budget_of_detail(p, a, json_object_get(where, "detail"), budget, param, place) : 0;
  if (p->failed) return;
  list->v = xrealloc(list->v, (size_t)(list->n + 1) * sizeof *list->v);
  struct media_item *item = &list->v[list->n++];
  *item = (struct media_item){.kind = kind, .where = str_of(json_string_value(url), json_string_length(url)), .max_tokens = tokens};
  snprintf(item->place, sizeof item->place, "%s", place);
}

static const struct part_type {
  const char *type;
  enum cygnet_media_kind kind;
  const char *keys[3]; /* where its address may be */
} part_types[] = {{"image_url", CYGNET_IMAGE, {"image_url", "url"}},      {"input_image", CYGNET_IMAGE, {"image_url"}},
                  {"image", CYGNET_IMAGE, {"image", "image_url", "url"}}, {"input_audio", CYGNET_AUDIO, {"input_audio"}},
                  {"audio_url", CYGNET_AUDIO, {"audio_url", "url"}},      {"audio", CYGNET_AUDIO, {"audio", "audio_url", "url"}}};

static const struct part_type *type_of(const json_t *part) {
  const char *type = json_string_value(json_object_get(part, "type"));
  for (size_t i = 0; type && i < ARRAY_LEN(part_types); i++)
    if (!strcmp(type, part_types[i].type)) return &part_types[i];
  return NULL;
}

static void collect_part(struct params *p, const struct api *a, const json_t *part, const char *param, const char *place, int budget,
                         struct media_list *list) {
  const struct part_type *type = type_of(part);
  const json_t *where = NULL;
  if (!type) return;
  for (size_t k = 0; k < ARRAY_LEN(type->keys) && type->keys[k] && !where; k++) where = json_object_get(part, type->keys[k]);
  if (!where && json_object_get(part, "file_id")) fail_at(p, param, place, ".file_id: nothing is stored by this server");
  if (type->kind == CYGNET_IMAGE && json_object_get(part, "detail"))
    budget = budget_of_detail(p, a, json_object_get(part, "detail"), budget, param, place);
  media_add(p, a, type->kind, where, budget, param, place, list);
}

void media_collect(struct params *p, const struct api *a, const json_t *messages, const char *param, int budget, struct media_list *list) {
  for (size_t i = 0; i < json_array_size(messages) && !p->failed; i++) {
    const json_t *content = json_object_get(json_array_get(messages, i), "content");
    for (size_t k = 0; json_is_array(content) && k < json_array_size(content) && !p->failed; k++) {
      const json_t *part = json_array_get(content, k), *own = json_object_get(part, "place");
      char place[96];
      if (json_is_string(own)) str_escape(str_c(json_string_value(own)), place, sizeof place);
      else snprintf(place, sizeof place, "messages[%zu].content[%zu]", i, k);
      collect_part(p, a, part, param, place, budget, list);
    }
  }
}

void media_strip(json_t *messages) {
  for (size_t i = 0; i < json_array_size(messages); i++) {
    json_t *message = json_array_get(messages, i), *content = json_object_get(message, "content");
    bool found = false;
    for (size_t k = 0; json_is_array(content) && k < json_array_size(content) && !found; k++) found = type_of(json_array_get(content, k));
    if (!found) continue;
    content = json_copy(content);
    for (size_t k = 0; k < json_array_size(content); k++) {
      const struct part_type *type = type_of(json_array_get(content, k));
      if (type) json_array_set_new(content, k, json_pack("{s:s}", "type", type->type));
    }
    json_object_set_new(message, "content", content);
  }
}

/* ---- bytes ---------------------------------------------------------------------------------------------------------------------- */

/* Opens a file below the folder; links that lead out of it, or through /proc, are refused, and so is what is no regular file. */
static int open_below(int folder, const char *path) {
  struct open_how how = {.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
  int fd = (int)syscall(SYS_openat2, folder, path, &how, sizeof how);
  if (fd >= 0 || (errno != ENOSYS && errno != EPERM)) return fd;
  /* without that call: one name after the other, and no links at all */
  int at = openat(folder, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
  for (const char *p = path; at >= 0; p += strspn(p, "/")) {
    char name[256];
    size_t n = strcspn(p, "/");
    bool last = p[n + strspn(p + n, "/")] == 0;
    if (n == 0 || n >= sizeof name || (n == 2 && !memcmp(p, "..", 2))) {
      close(at);
      errno = EACCES;
      return -1;
    }
    memcpy(name, p, n);
    name[n] = 0;
    fd = openat(at, name, (last ? O_RDONLY | O_NONBLOCK | O_NOCTTY : O_PATH | O_DIRECTORY) | O_NOFOLLOW | O_CLOEXEC);
    close(at);
    if (last || fd < 0) return fd;
    at = fd;
    p += n;
  }
  return -1;
}

/* What is behind "file://" is a path: that of a file in the folder, from the root on. */
static int read_file(const struct media_house *h, struct str url, struct buf *out, struct err *e) {
  struct buf path;
  struct stat st;
  struct str rest = str_of(url.p + 7, url.n - 7);
  int rc = -1, fd = -1;
  if (h->folder < 0) return err_set(e, ERR_BAD_INPUT, "this server reads no files; its --media-path would name a folder to read from");
  if (str_starts_nocase(rest, "localhost")) rest = str_of(rest.p + 9, rest.n - 9);
  buf_init(&path, 4096);
  size_t n = strlen(h->path);
  if (base64_percent_decode(rest, &path, e)) goto done;
  const char *p = buf_cstr(&path);
  bool inside = strlen(p) == path.len && !strncmp(p, h->path, n) && (p[n] == '/' || (n == 1 && p[0] == '/'));
  if (inside) p += n, p += strspn(p, "/");
  if (!inside || !*p) {
    err_set(e, ERR_BAD_INPUT, "expected a file in the folder that this server reads from");
    goto done;
  }
  fd = open_below(h->folder, p);
  if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode)) { /* no word on what there is instead */
    err_set(e, ERR_BAD_INPUT, "expected a file in the folder that this server reads from");
    goto done;
  }
  rc = 0;
  for (char block[16384]; rc == 0;) {
    ssize_t got = read(fd, block, sizeof block);
    if (got == 0) break;
    if (got < 0) rc = err_set(e, ERR_BAD_INPUT, "the file could not be read");
    else if (!buf_append(out, block, (size_t)got)) rc = err_set(e, ERR_TOO_LARGE, "expected at most %zu bytes in a file", out->max_bytes);
  }
done:
  if (fd >= 0) close(fd);
  buf_free(&path);
  return rc;
}

static bool is_cancelled(void *ctx) { return atomic_load(&((struct call *)ctx)->cancelled); }

static int read_web(const struct api *a, struct call *c, struct str url, int *left_ms, struct buf *out, struct err *e) {
  struct media_house *h = a->media;
  if (!h->limits.urls && !h->limits.allow)
    return err_set(e, ERR_BAD_INPUT, "this server fetches nothing from the web: send a data: address, or start it with --media-urls");
  if (*left_ms <= 0) return err_set(e, ERR_BAD_INPUT, "the addresses of this request did not answer within %d ms", h->limits.timeout_ms);
  struct fetch_options o = {.any = h->limits.urls,
                            .allow = h->limits.allow,
                            .max_bytes = h->limits.item_bytes,
                            .timeout_ms = *left_ms,
                            .stop = is_cancelled,
                            .ctx = c,
                            .resolve = h->limits.resolve_test};
  int64_t begin = clock_ns();
  atomic_fetch_add(&h->n_fetched, 1);
  int rc = fetch(url, &o, out, e);
  *left_ms -= (int)((clock_ns() - begin) / 1000000);
  return rc;
}

/* The bytes of one item; held for, *charged. */
static int read_item(const struct api *a, struct call *c, const struct media_item *item, int *left_ms, struct buf *out, size_t *charged,
                     struct err *e) {
  struct media_house *h = a->media;
  struct str s = item->where;
  bool web = str_starts_nocase(s, "http://") || str_starts_nocase(s, "https://"), file = str_starts_nocase(s, "file://"),
       data = base64_is_data_url(s);
  *charged = 0;
  if (!web && !file && !data && memchr(s.p, ':', MIN(s.n, (size_t)32)))
    return err_set(e, ERR_BAD_INPUT, "expected a data: address, base64, http or https");
  if (!web && !file && s.n / 4 * 3 > h->limits.item_bytes + 64)
    return err_set(e, ERR_TOO_LARGE, "expected at most %zu bytes", h->limits.item_bytes);
  size_t n = web || file ? h->limits.item_bytes : MIN(h->limits.item_bytes, s.n);
  if (hold(h, n)) return err_set(e, ERR_BUSY, "%s", all_taken);
  *charged = n;
  out->max_bytes = h->limits.item_bytes;
  if (web) return read_web(a, c, s, left_ms, out, e);
  if (file) return read_file(h, s, out, e);
  return data ? base64_data_url(s, out, e) : base64_decode(s, out, e);
}

/* ---- decoded -------------------------------------------------------------------------------------------------------------------- */

static int fail_item(struct api_error *e, int status, const struct media_item *item, const char *param, const char *why) {
  const char *code = status == 413                ? "request_too_large"
                     : status == 503              ? "busy"
                     : status >= 500              ? "internal_error"
                     : item->kind == CYGNET_AUDIO ? "invalid_audio"
                                                  : "invalid_image";
  api_error_set(e, status, code, param, "%s%s%s", item->place, *item->place ? ": " : "", why);
  e->placed = true;
  return -1;
}

/* m is the job's from here on, also when there is no room for it. */
static int add_to_job(const struct api *a, struct job *j, const struct media_item *item, struct cygnet_media *m, const char *param,
                      struct api_error *e) {
  size_t held = a->port.media_memory(m);
  if (hold(a->media, held)) {
    a->port.media_free(m);
    return fail_item(e, 503, item, param, all_taken);
  }
  j->media = xrealloc(j->media, (size_t)(j->n_media + 1) * sizeof *j->media);
  j->media[j->n_media++] = (struct job_media){.kind = item->kind, .media = m, .charged = held};
  return 0;
}

static int load_bytes(const struct api *a, struct call *c, const struct media_item *item, const struct buf *bytes, const char *param,
                      struct api_error *e) {
  struct cygnet_error why = {0};
  const struct cygnet_media_options o = {.max_tokens = item->max_tokens};
  if (!bytes->len)
    return fail_item(e, 400, item, param,
                     item->kind == CYGNET_AUDIO ? "expected a sound, found nothing" : "expected a picture, found nothing");
  struct cygnet_media *m = a->port.media_new(a->port.self, item->kind, bytes->data, bytes->len, &o, &why);
  if (!m) return fail_item(e, why.status >= 400 ? why.status : 400, item, param, why.message);
  return add_to_job(a, &c->job, item, m, param, e);
}

int media_load_pieces(const struct api *a, struct call *c, struct str bytes, int seconds, int n_max, const char *param,
                      struct api_error *e) {
  const struct media_item item = {.kind = CYGNET_AUDIO, .place = "file"};
  struct cygnet_error why = {0};
  struct cygnet_media **pieces = xcalloc((size_t)n_max, sizeof *pieces);
  int rc = 0, n = a->port.media_pieces(a->port.self, bytes.p, bytes.n, seconds, pieces, n_max, &c->job.seconds, &why);
  if (n < 0) rc = fail_item(e, why.status >= 400 ? why.status : 400, &item, param, why.message);
  for (int i = 0; i < n && n <= n_max; i++) {
    if (rc == 0) rc = add_to_job(a, &c->job, &item, pieces[i], param, e);
    else a->port.media_free(pieces[i]);
  }
  free(pieces);
  return rc ? rc : n;
}

int media_load(const struct api *a, struct call *c, const struct media_list *list, const char *param, struct api_error *e) {
  int left_ms = a->media->limits.timeout_ms, rc = 0;
  for (int i = 0; i < list->n && rc == 0; i++) {
    const struct media_item *item = &list->v[i];
    struct buf bytes;
    struct err why = {0};
    size_t charged;
    if (atomic_load(&c->cancelled)) return api_error_set(e, 499, NULL, NULL, "the client left");
    buf_init(&bytes, 0);
    rc = read_item(a, c, item, &left_ms, &bytes, &charged, &why);
    if (rc) rc = fail_item(e, err_http_status(why.code), item, param, why.msg);
    else rc = load_bytes(a, c, item, &bytes, param, e);
    buf_free(&bytes);
    if (charged) let_go(a->media, charged);
  }
  return rc;
}

static int count_mismatch(struct api_error *e, const char *param, const char *what, int n_ids, int n_media) {
  return api_error_set(e, 400, "invalid_value", param, "%s: expected as many %s as the prompt has placeholders for them, %d, found %d",
                       param ? param : "body", what, n_ids, n_media);
}

int media_match(const struct api *a, struct job *j, struct job_prompt *t, int first, int n, const char *param, struct api_error *e) {
  const int32_t ids[2] = {a->info.image_id, a->info.audio_id};
  const bool taken[2] = {a->info.vision != NULL, a->info.audio != NULL};
  int asked[2] = {0}, found[2] = {0}, next[2] = {first, first};
  for (int i = first; i < first + n; i++) asked[j->media[i].kind == CYGNET_AUDIO]++;
  t->media = xcalloc((size_t)n + 1, sizeof *t->media);
  for (size_t i = 0; i < t->n_ids; i++) {
    int k = taken[0] && t->ids[i] == ids[0] ? 0 : taken[1] && t->ids[i] == ids[1] ? 1 : -1;
    if (k < 0 || found[k]++ >= asked[k]) continue;
    while ((j->media[next[k]].kind == CYGNET_AUDIO) != k) next[k]++;
    const struct cygnet_media *m = j->media[next[k]++].media;
    int tokens = a->port.media_tokens(m);
    t->media[t->n_media++] = m;
    *(k ? &t->audio_tokens : &t->image_tokens) += tokens;
    t->n_more_tokens += (size_t)(tokens - 1);
  }
  if (found[0] != asked[0]) return count_mismatch(e, param, "pictures", found[0], asked[0]);
  if (found[1] != asked[1]) return count_mismatch(e, param, "sounds", found[1], asked[1]);
  return 0;
}

void media_free(const struct api *a, struct job *j) {
  for (int i = 0; i < j->n_media; i++) {
    a->port.media_free(j->media[i].media);
    let_go(a->media, j->media[i].charged);
  }
  free(j->media);
}
