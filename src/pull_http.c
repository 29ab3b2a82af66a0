/* pull_http.c — the hub: who it is, one GET with its redirects, the listing, what its refusals mean. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/web.h"
#include "commands.h"
#include "cygnet.h"
#include "eval/url.h"
#include "files/json.h"
#include "pull.h"

enum {
  REDIRECTS_MAX = 5,
  PAGES_MAX = 200,
  LIST_BYTES_MAX = 64 << 20,
  TOKEN_BYTES_MAX = 4096,
  REASON_BYTES_MAX = 2048,
  CONNECT_S = 15,
  PAUSE_MS_MAX = 60000,
};

/* ---- where and who ------------------------------------------------------------------------------------------------------------------ */

/* Scheme, host and port of two addresses are the same. */
static bool same_origin(const char *a, const char *b) {
  static const CURLUPart parts[] = {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT};
  CURLU *u = curl_url(), *v = curl_url();
  bool same = u && v && !curl_url_set(u, CURLUPART_URL, a, 0) && !curl_url_set(v, CURLUPART_URL, b, 0);
  for (size_t i = 0; same && i < ARRAY_LEN(parts); i++) {
    char *x = NULL, *y = NULL;
    same = !curl_url_get(u, parts[i], &x, CURLU_DEFAULT_PORT) && !curl_url_get(v, parts[i], &y, CURLU_DEFAULT_PORT) && !strcasecmp(x, y);
    curl_free(x);
    curl_free(y);
  }
  curl_url_cleanup(u);
  curl_url_cleanup(v);
  return same;
}

static bool is_https(const char *url) { return str_starts_nocase(str_c(url), "https://"); }

/* An http address of this machine itself. */
static bool is_local(const char *url) {
  static const char *const hosts[] = {"localhost", "127.0.0.1", "[::1]"};
  CURLU *u = curl_url();
  char *host = NULL;
  bool local = false;
  if (u && !curl_url_set(u, CURLUPART_URL, url, 0) && !curl_url_get(u, CURLUPART_HOST, &host, 0))
    for (size_t i = 0; i < ARRAY_LEN(hosts); i++) local = local || !strcasecmp(host, hosts[i]);
  curl_free(host);
  curl_url_cleanup(u);
  return local;
}

/* The token's file, where its owner's other programs look for it. *text stays NULL when there is none. */
static int token_of_file(char **text, struct err *e) {
  const char *path = getenv("HF_TOKEN_PATH"), *base = getenv("HF_HOME"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  struct buf b;
  buf_init(&b, 0);
  if (path && *path) buf_puts(&b, path);
  else if (base && *base) buf_printf(&b, "%s/token", base);
  else if (cache && *cache) buf_printf(&b, "%s/huggingface/token", cache);
  else if (home && *home) buf_printf(&b, "%s/.cache/huggingface/token", home);
  int fd = b.len ? open(buf_cstr(&b), O_RDONLY | O_CLOEXEC) : -1, rc = 0;
  if (fd >= 0) {
    size_t n;
    *text = command_read_all(fd, buf_cstr(&b), TOKEN_BYTES_MAX, &n, e);
    rc = *text ? 0 : -1;
    close(fd);
  }
  buf_free(&b);
  return rc;
}

static int find_token(struct hub *h, struct err *e) {
  const char *given = getenv("HF_TOKEN");
  char *text = given && *given ? xstrdup(given) : NULL;
  if (!text && token_of_file(&text, e)) return -1;
  if (!text) return 0;
  size_t from = strspn(text, " \t\r\n"), n = strlen(text + from);
  while (n && strchr(" \t\r\n", text[from + n - 1])) n--;
  for (size_t i = 0; i < n; i++)
    if (text[from + i] <= ' ' || text[from + i] >= 0x7f) {
      free(text);
      return err_set(e, ERR_BAD_INPUT, "%s: expected a token of printable characters on one line",
                     given && *given ? "HF_TOKEN" : "the token's file");
    }
  if (n) h->token = xstrndup(text + from, n);
  free(text);
  if (h->token && !is_https(h->endpoint) && !is_local(h->endpoint)) {
    free(h->token);
    h->token = NULL;
    fprintf(stderr, "cygnet: HF_ENDPOINT is plain http, where anybody on the way can read: the token is not sent\n");
  }
  return 0;
}

int hub_open(struct hub *h, const struct hub_name *name, struct err *e) {
  const char *endpoint = getenv("HF_ENDPOINT");
  char shown[100];
  if (!endpoint || !*endpoint) endpoint = "https://huggingface.co";
  struct str s = str_c(endpoint);
  CURLU *u = curl_url();
  bool fine = (is_https(endpoint) || str_starts_nocase(s, "http://")) && u && !curl_url_set(u, CURLUPART_URL, endpoint, 0) &&
              !strpbrk(endpoint, "?#@ ");
  curl_url_cleanup(u);
  *h = (struct hub){.name = name};
  if (!fine) return err_set(e, ERR_BAD_INPUT, "HF_ENDPOINT: expected https://HOST, found \"%s\"", str_escape(s, shown, sizeof shown));
  while (s.n && s.p[s.n - 1] == '/') s.n--;
  h->endpoint = xstrndup(s.p, s.n);
  h->curl = curl_easy_init();
  CHECK(h->curl);
  return find_token(h, e);
}

void hub_close(struct hub *h) {
  if (h->curl) curl_easy_cleanup(h->curl);
  free(h->endpoint);
  free(h->token);
  *h = (struct hub){0};
}

/* ---- one request -------------------------------------------------------------------------------------------------------------------- */

struct request {
  struct hub *h;
  const struct pull_sink *sink;
  struct pull_head head;
  struct err *e;
  bool begun, refused; /* the sink was told; it did not want it */
  bool silent;         /* nothing came for too long */
  int64_t last_ns;     /* when something came */
  struct buf reason;   /* the body of a refusal, its beginning */
};

static void copy(char *out, size_t out_bytes, struct str s) {
  size_t n = s.n < out_bytes ? s.n : 0; /* too long is as good as none */
  memcpy(out, s.p, n);
  out[n] = 0;
}

static struct str unquoted(struct str s) {
  if (s.n >= 2 && s.p[0] == '"' && s.p[s.n - 1] == '"') s = str_of(s.p + 1, s.n - 2);
  return s;
}

/* <URL>; rel="next" */
static void take_link(struct pull_head *head, struct str s) {
  const char *end = s.n && s.p[0] == '<' ? memchr(s.p, '>', s.n) : NULL;
  if (end && memmem(end, (size_t)(s.p + s.n - end), "rel=\"next\"", 10))
    copy(head->next, sizeof head->next, str_of(s.p + 1, (size_t)(end - s.p - 1)));
}

static size_t on_header(char *p, size_t size, size_t n, void *ctx) {
  struct request *r = ctx;
  struct pull_head *head = &r->head;
  struct str line = str_of(p, size * n);
  r->last_ns = clock_ns();
  while (line.n && (line.p[line.n - 1] == '\n' || line.p[line.n - 1] == '\r')) line.n--;
  const char *colon = memchr(line.p, ':', line.n);
  if (str_starts_nocase(line, "HTTP/"))
    head->etag[0] = head->range[0] = head->next[0] = head->error_code[0] = 0; /* an answer after 100 Continue */
  if (!colon) return size * n;
  struct str name = str_of(line.p, (size_t)(colon - line.p)),
             value = str_trim_blanks(str_of(colon + 1, (size_t)(line.p + line.n - colon - 1)));
  if (str_is_nocase(name, "etag") && !str_starts(value, "W/")) copy(head->etag, sizeof head->etag, value);
  if (str_is_nocase(name, "x-linked-etag")) copy(head->linked, sizeof head->linked, unquoted(value));
  if (str_is_nocase(name, "content-range")) copy(head->range, sizeof head->range, value);
  if (str_is_nocase(name, "x-error-code")) copy(head->error_code, sizeof head->error_code, value);
  if (str_is_nocase(name, "link")) take_link(head, value);
  return size * n;
}

static size_t on_body(char *p, size_t size, size_t n, void *ctx) {
  struct request *r = ctx;
  r->last_ns = clock_ns();
  if (!r->begun) {
    curl_easy_getinfo(r->h->curl, CURLINFO_RESPONSE_CODE, &r->head.status);
    if (r->head.status != 200 && r->head.status != 206) {
      buf_append(&r->reason, p, MIN(size * n, REASON_BYTES_MAX - r->reason.len));
      return size * n;
    }
    r->begun = true;
    r->refused = r->sink->begin(r->sink->ctx, &r->head, r->e) != 0;
  }
  if (!r->refused) r->refused = r->sink->take(r->sink->ctx, p, size * n, r->e) != 0;
  return r->refused ? 0 : size * n;
}

static int on_progress(void *ctx, curl_off_t total, curl_off_t now, curl_off_t up_total, curl_off_t up) {
  struct request *r = ctx;
  (void)total, (void)now, (void)up_total, (void)up;
  r->silent = clock_ns() - r->last_ns > r->h->quiet_s * INT64_C(1000000000); /* libcurl's own limit looks at an average */
  return r->silent || r->h->stopped();
}

static void set_options(struct request *r, const char *url, struct curl_slist *headers, const char *range, char *error) {
  CURL *c = r->h->curl;
  curl_easy_reset(c); /* keeps connections */
  web_begin(c, url);
  curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)MIN(CONNECT_S, r->h->quiet_s));
  curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
  curl_easy_setopt(c, CURLOPT_HEADERDATA, r);
  curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(c, CURLOPT_WRITEDATA, r);
  curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
  curl_easy_setopt(c, CURLOPT_XFERINFODATA, r);
  curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(c, CURLOPT_ERRORBUFFER, error);
  curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
  if (range) curl_easy_setopt(c, CURLOPT_RANGE, range);
}

/* A refusal that has a meaning on a hub, as a sentence. */
static int refusal(const struct request *r, struct err *e) {
  const struct hub *h = r->h;
  const struct pull_head *head = &r->head;
  const char *repo = h->name->repo, *code = head->error_code;
  char shown[200];
  if (head->elsewhere) return err_set(e, ERR_IO, "%s: the host that the hub sends to answers %ld", repo, head->status);
  if (head->status == 403 || !strcmp(code, "GatedRepo"))
    return h->token
               ? err_set(
                     e, ERR_BAD_INPUT,
                     "%s: gated: this token may not read it (%ld): accept its terms at %s/%s as the token's owner, or use another token",
                     repo, head->status, h->endpoint, repo)
               : err_set(e, ERR_BAD_INPUT, "%s: gated (%ld): accept its terms at %s/%s, then set HF_TOKEN to a token of yours", repo,
                         head->status, h->endpoint, repo);
  if (head->status == 401)
    return h->token
               ? err_set(e, ERR_BAD_INPUT,
                         "%s: the hub does not take this token, or has no such repository (401): check HF_TOKEN and %s/%s", repo,
                         h->endpoint, repo)
               : err_set(
                     e, ERR_BAD_INPUT,
                     "%s: there is no such repository, or it is private or gated (401): see %s/%s; if it exists, accept its terms and set HF_TOKEN",
                     repo, h->endpoint, repo);
  if (head->status == 404 && !strcmp(code, "RevisionNotFound"))
    return err_set(e, ERR_NOT_FOUND, "%s: there is no branch, tag or commit %s", repo, h->name->revision);
  if (head->status == 404 && !strcmp(code, "EntryNotFound"))
    return err_set(e, ERR_NOT_FOUND, "%s: the hub lists a file that it does not have", repo);
  if (head->status == 404)
    return err_set(e, ERR_NOT_FOUND, "%s: there is no such repository, or no revision %s of it, on %s", repo, h->name->revision,
                   h->endpoint);
  return err_set(e, head->status == 429 || head->status >= 500 ? ERR_BUSY : ERR_IO, "%s: the hub answers %ld%s%s", repo, head->status,
                 r->reason.len ? ": " : "", str_escape(str_of(buf_cstr(&r->reason), MIN(r->reason.len, 180)), shown, sizeof shown));
}

/* The transfer itself failed. */
static int broken(struct request *r, CURLcode code, const char *error, struct err *e) {
  if (r->refused) return -1;
  if (r->h->stopped()) return err_set(e, ERR_CANCELLED, "stopped");
  bool for_good = code == CURLE_OUT_OF_MEMORY || code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL ||
                  code == CURLE_LOGIN_DENIED || code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE;
  char shown[200];
  if (r->silent) err_set(e, ERR_IO, "nothing came for %d s", r->h->quiet_s);
  else err_set(e, ERR_IO, "%s", str_escape(str_c(*error ? error : curl_easy_strerror(code)), shown, sizeof shown));
  return for_good ? -1 : 0;
}

/* One address. 2: *to (owned) is where it leads. */
static int get_once(struct request *r, const char *url, const char *range, const char *if_range, char **to, int *pause_ms, struct err *e) {
  struct curl_slist *headers = NULL;
  struct buf b;
  char error[CURL_ERROR_SIZE] = "", *location = NULL;
  curl_off_t after = 0;
  r->head.elsewhere = !same_origin(url, r->h->endpoint);
  r->head.status = 0;
  buf_init(&b, 0);
  if (r->h->token && !r->head.elsewhere) {
    buf_printf(&b, "Authorization: Bearer %s", r->h->token);
    headers = curl_slist_append(headers, buf_cstr(&b));
  }
  if (range && if_range && *if_range) {
    buf_clear(&b);
    buf_printf(&b, "If-Range: %s", if_range);
    headers = curl_slist_append(headers, buf_cstr(&b));
  }
  buf_free(&b);
  buf_clear(&r->reason);
  set_options(r, url, headers, range, error);
  r->silent = false;
  r->last_ns = clock_ns();
  CURLcode code = curl_easy_perform(r->h->curl);
  curl_slist_free_all(headers);
  if (code) return broken(r, code, error, e);
  long status = 0;
  curl_easy_getinfo(r->h->curl, CURLINFO_RESPONSE_CODE, &status);
  curl_easy_getinfo(r->h->curl, CURLINFO_REDIRECT_URL, &location);
  curl_easy_getinfo(r->h->curl, CURLINFO_RETRY_AFTER, &after);
  r->head.status = status;
  if (status >= 300 && status < 400 && location) {
    if (is_https(url) && !is_https(location)) return err_set(e, ERR_IO, "%s: the hub sends from https to plain http", r->h->name->repo);
    *to = xstrdup(location);
    return 2;
  }
  if (status == 200 || status == 206) {
    if (!r->begun && r->sink->begin(r->sink->ctx, &r->head, e)) return -1; /* an empty body */
    return 1;
  }
  *pause_ms = (int)(MIN(MAX(after, 0), PAUSE_MS_MAX / 1000) * 1000);
  refusal(r, e);
  return status == 408 || status == 429 || status >= 500 || r->head.elsewhere ? 0 : -1;
}

int pull_get(struct hub *h, const char *url, const char *range, const char *if_range, const struct pull_sink *sink, int *pause_ms,
             struct err *e) {
  struct request r = {.h = h, .sink = sink, .e = e};
  char *at = xstrdup(url);
  int rc = 2;
  buf_init(&r.reason, REASON_BYTES_MAX);
  *pause_ms = 0;
  for (int hop = 0; rc == 2 && hop <= REDIRECTS_MAX; hop++) {
    char *to = NULL;
    rc = get_once(&r, at, range, if_range, &to, pause_ms, e);
    if (to) {
      free(at);
      at = to;
    }
  }
  if (rc == 2) rc = err_set(e, ERR_IO, "%s: the hub redirects more than %d times", h->name->repo, REDIRECTS_MAX);
  buf_free(&r.reason);
  free(at);
  return rc;
}

bool pull_pause(const struct hub *h, int n, int at_least_ms, const struct err *e) {
  int ms = url_pause_ms(n, at_least_ms);
  if (!h->quiet) fprintf(stderr, "cygnet: %s: again in %.1f s\n", e->msg, ms / 1000.0);
  for (int64_t end = clock_ns() + ms * INT64_C(1000000); clock_ns() < end && !h->stopped();)
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
  return !h->stopped();
}

/* ---- the listing -------------------------------------------------------------------------------------------------------------------- */

struct page {
  struct buf text;
  char next[1024];
};

static int page_begin(void *ctx, const struct pull_head *head, struct err *e) {
  struct page *p = ctx;
  (void)e;
  buf_clear(&p->text);
  memcpy(p->next, head->next, sizeof p->next);
  return 0;
}

static int page_take(void *ctx, const char *p, size_t n, struct err *e) {
  struct page *page = ctx;
  return buf_append(&page->text, p, n) ? 0 : err_set(e, ERR_TOO_LARGE, "the hub's listing has more than %d MiB", LIST_BYTES_MAX >> 20);
}

static bool take_digest(struct pull_file *f, enum pull_digest kind, const char *hex) {
  size_t n = hex ? strlen(hex) : 0;
  if (n != (kind == PULL_SHA256 ? 64 : 40) || strspn(hex, "0123456789abcdef") != n) return false;
  memcpy(f->digest, hex, n + 1);
  f->kind = kind;
  return true;
}

static int add_entries(struct pull_list *out, const json_t *entries, const char *where, struct err *e) {
  if (!json_is_array(entries)) return err_set(e, ERR_BAD_FILE, "%s: expected a list", where);
  for (size_t i = 0; i < json_array_size(entries); i++) {
    const json_t *x = json_array_get(entries, i), *lfs = NULL;
    const char *type, *path, *oid = NULL;
    int64_t size;
    if (!json_is_object(x)) return err_set(e, ERR_BAD_FILE, "%s: expected a list of objects", where);
    if (json_get_string(x, "type", &type, NULL, where, e) <= 0 || strcmp(type, "file")) {
      if (e->code) return -1;
      continue;
    }
    if (json_get_string(x, "path", &path, NULL, where, e) <= 0 || json_get_int(x, "size", 0, INT64_MAX, &size, where, e) <= 0)
      return e->code ? -1 : err_set(e, ERR_BAD_FILE, "%s: expected path and size of each file", where);
    if (!hub_is_plain_path(path)) {
      const char *name = strrchr(path, '/');
      out->n_odd += (name ? name[1] : path[0]) != '.' || strstr(path, ".."); /* .gitattributes and its like are nobody's loss */
      continue;
    }
    struct pull_file f = {.path = xstrdup(path), .size = (uint64_t)size};
    if (json_get_object(x, "lfs", &lfs, where, NULL) > 0) {
      if (json_get_string(lfs, "oid", &oid, NULL, where, NULL) > 0 && str_starts(str_c(oid), "sha256:")) oid += 7;
      take_digest(&f, PULL_SHA256, oid);
    } else if (json_get_string(x, "oid", &oid, NULL, where, NULL) > 0) take_digest(&f, PULL_GIT, oid);
    out->v = xrealloc(out->v, (out->n + 1) * sizeof *out->v);
    out->v[out->n++] = f;
  }
  return 0;
}

/* One page with retries; page->text is it. */
static int get_page(struct hub *h, const char *url, struct page *page, struct err *e) {
  const struct pull_sink sink = {.begin = page_begin, .take = page_take, .ctx = page};
  for (int n = 1;; n++) {
    int pause, rc = pull_get(h, url, NULL, NULL, &sink, &pause, e);
    if (rc == 1) return 0;
    if (rc < 0 || n > h->retries) return -1;
    if (!pull_pause(h, n, pause, e)) return err_set(e, ERR_CANCELLED, "stopped");
    *e = (struct err){0};
  }
}

int pull_list(struct hub *h, struct pull_list *out, struct err *e) {
  struct buf url;
  struct page page = {0};
  int rc = 0;
  *out = (struct pull_list){0};
  buf_init(&page.text, LIST_BYTES_MAX);
  buf_init(&url, 0);
  buf_printf(&url, "%s/api/models/%s/tree/", h->endpoint, h->name->repo);
  hub_encode(&url, h->name->revision, false);
  buf_puts(&url, "?recursive=true");
  for (int n = 0; rc == 0 && url.len; n++) {
    json_t *entries = NULL;
    rc = get_page(h, buf_cstr(&url), &page, e);
    if (rc == 0 && !(entries = json_load_text(buf_cstr(&page.text), page.text.len, false, "the hub's listing", e))) rc = -1;
    if (rc == 0) rc = add_entries(out, entries, "the hub's listing", e);
    json_decref(entries);
    buf_clear(&url);
    if (rc || !*page.next) continue;
    if (n == PAGES_MAX || !same_origin(page.next, h->endpoint))
      rc = err_set(e, ERR_BAD_FILE, "the hub's listing goes on elsewhere, or without an end");
    else buf_puts(&url, page.next);
  }
  buf_free(&url);
  buf_free(&page.text);
  return rc;
}

void pull_list_free(struct pull_list *l) {
  for (size_t i = 0; i < l->n; i++) free(l->v[i].path);
  free(l->v);
  *l = (struct pull_list){0};
}
