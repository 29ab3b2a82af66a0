/* fetch.c — one thing from the web, through libcurl with everything switched off that follows, guesses or remembers. */
#include "server/fetch.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/web.h"
#include "cygnet.h"

enum { HOST_BYTES_MAX = 255 };

/* ---- addresses -------------------------------------------------------------------------------------------------------------- */

static bool is_public4(uint32_t a) {
  static const struct {
    uint32_t net;
    int bits;
  } closed[] = {
      {0x00000000, 8},  /* this network */
      {0x0a000000, 8},  /* private */
      {0x64400000, 10}, /* shared by customers of a provider */
      {0x7f000000, 8},  /* loopback */
      {0xa9fe0000, 16}, /* link-local: metadata of clouds */
      {0xac100000, 12}, /* private */
      {0xc0000000, 24}, /* protocol assignments */
      {0xc0000200, 24}, /* documentation */
      {0xc0586300, 24}, /* 6to4 relays */
      {0xc0a80000, 16}, /* private */
      {0xc6120000, 15}, /* benchmarks */
      {0xc6336400, 24}, /* documentation */
      {0xcb007100, 24}, /* documentation */
      {0xe0000000, 4},  /* multicast */
      {0xf0000000, 4},  /* reserved, broadcast */
  };
  for (size_t i = 0; i < ARRAY_LEN(closed); i++)
    if ((a ^ closed[i].net) >> (32 - closed[i].bits) == 0) return false;
  return true;
}

static uint32_t at4(const unsigned char *p) { return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]; }

/* Global unicast is 2000::/3; what is special inside it, and what carries an IPv4 address, is left out: nobody needs it to serve a
 * picture. */
static bool is_public6(const unsigned char a[16]) {
  static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};
  if (!memcmp(a, mapped, sizeof mapped)) return is_public4(at4(a + 12));
  if ((a[0] & 0xe0) != 0x20) return false;                       /* ::, ::1, NAT64, unique local, link-local, multicast, ... */
  if (a[0] == 0x20 && a[1] == 0x02) return false;                /* 6to4 */
  if (a[0] == 0x20 && a[1] == 0x01 && a[2] < 0x02) return false; /* 2001::/23: Teredo, ORCHID, benchmarks, ... */
  if (a[0] == 0x20 && a[1] == 0x01 && a[2] == 0x0d && a[3] == 0xb8) return false; /* documentation */
  return !(a[0] == 0x3f && a[1] == 0xff);                                         /* 3fff::/20: documentation */
}

bool fetch_is_public(const struct sockaddr *a) {
  if (a->sa_family == AF_INET) {
    struct sockaddr_in in;
    memcpy(&in, a, sizeof in);
    return is_public4(ntohl(in.sin_addr.s_addr));
  }
  if (a->sa_family != AF_INET6) return false;
  struct sockaddr_in6 in;
  memcpy(&in, a, sizeof in);
  return is_public6(in.sin6_addr.s6_addr);
}

/* ---- hosts that are allowed ----------------------------------------------------------------------------------------------- */

/* The next of a list: its host (brackets of an IPv6 address included) and port, 0: none was given. false: malformed. */
static bool next_allowed(const char **list, struct str *host, int *port) {
  const char *at = *list;
  size_t n = strcspn(at, ",");
  *list = at + n + (at[n] == ',');
  *host = str_of(at, n);
  *port = 0;
  const char *close = n && at[0] == '[' ? memchr(at, ']', n) : NULL;
  const char *colon = close ? (close + 1 < at + n ? close + 1 : NULL) : memchr(at, ':', n);
  if (n && at[0] == '[' && !close) return false;
  if (colon) {
    int64_t number;
    if (*colon != ':' || !str_to_i64(str_of(colon + 1, (size_t)(at + n - colon - 1)), 1, 65535, &number)) return false;
    *port = (int)number;
    host->n = (size_t)(colon - at);
  }
  for (size_t i = 0; i < host->n; i++)
    if (host->p[i] <= ' ' || host->p[i] >= 0x7f || strchr("/@?#", host->p[i])) return false;
  return host->n > 0 && host->n <= HOST_BYTES_MAX;
}

int fetch_check_allow(const char *allow, struct err *e) {
  for (const char *p = allow; p && *p;) {
    struct str host;
    const char *from = p;
    char shown[80];
    int port;
    if (!next_allowed(&p, &host, &port))
      return err_set(e, ERR_BAD_INPUT, "media-allow: expected HOST or HOST:PORT, comma between, found \"%s\"",
                     str_escape(str_of(from, strcspn(from, ",")), shown, sizeof shown));
  }
  return 0;
}

static bool is_web_port(long port) { return port == 80 || port == 443; }

static bool is_allowed(const char *allow, const char *host, long port) {
  for (const char *p = allow; p && *p;) {
    struct str name;
    int only;
    if (next_allowed(&p, &name, &only) && strlen(host) == name.n && !strncasecmp(host, name.p, name.n) &&
        (only ? only == port : is_web_port(port)))
      return true;
  }
  return false;
}

/* ---- one transfer ----------------------------------------------------------------------------------------------------------- */

struct transfer {
  const struct fetch_options *o;
  struct buf *out;
  int64_t deadline_ns;
  bool exempt;            /* its host is allowed */
  bool looked_up;         /* its name has been */
  bool closed, too_large; /* why it ended */
};

static curl_socket_t open_socket(void *ctx, curlsocktype purpose, struct curl_sockaddr *a) {
  struct transfer *t = ctx;
  t->looked_up = true;
  if (purpose != CURLSOCKTYPE_IPCXN || (!t->exempt && !fetch_is_public(&a->addr))) {
    t->closed = true;
    return CURL_SOCKET_BAD;
  }
  return socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
}

static size_t take(char *p, size_t size, size_t n, void *ctx) {
  struct transfer *t = ctx;
  size_t bytes = size * n;
  if (bytes > t->o->max_bytes - t->out->len || !buf_append(t->out, p, bytes)) {
    t->too_large = true;
    return bytes + 1;
  }
  return bytes;
}

/* A lookup cannot be ended: libcurl leaves it to a thread of its own that lives as long as the resolver takes (QUICK_EXIT). So the caller
 * is not asked until it is over or the time is: who comes and goes quickly would otherwise leave any number of such threads behind. */
static int progress(void *ctx, curl_off_t total, curl_off_t now, curl_off_t up_total, curl_off_t up) {
  struct transfer *t = ctx;
  (void)now, (void)up_total, (void)up;
  if (total > 0 && (uint64_t)total > t->o->max_bytes) t->too_large = true;
  return t->too_large || (t->looked_up && t->o->stop && t->o->stop(t->o->ctx));
}

static pthread_once_t curl_once = PTHREAD_ONCE_INIT;
static void curl_begin(void) { curl_global_init(CURL_GLOBAL_DEFAULT); }

static struct curl_slist *resolve_list(const char *resolve) {
  struct curl_slist *list = NULL;
  for (const char *p = resolve; p && *p;) {
    size_t n = strcspn(p, " ");
    char *one = xstrndup(p, n);
    list = curl_slist_append(list, one);
    free(one);
    p += n + (p[n] == ' ');
  }
  return list;
}

static void set_options(CURL *c, struct transfer *t, const char *url, struct curl_slist *resolve) {
  long left_ms = (long)((t->deadline_ns - clock_ns()) / 1000000);
  web_begin(c, url);
  curl_easy_setopt(c, CURLOPT_PROXY, ""); /* also none of the environment */
  curl_easy_setopt(c, CURLOPT_NOPROXY, "*");
  curl_easy_setopt(c, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
  curl_easy_setopt(c, CURLOPT_FRESH_CONNECT, 1L);
  curl_easy_setopt(c, CURLOPT_FORBID_REUSE, 1L);
  curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, MAX(left_ms, 1L));
  curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, MAX(left_ms, 1L));
#if LIBCURL_VERSION_NUM >= 0x075700
  curl_easy_setopt(c, CURLOPT_QUICK_EXIT, 1L); /* or a slow resolver would hold it longer than that; older ones do */
#endif
  curl_easy_setopt(c, CURLOPT_OPENSOCKETFUNCTION, open_socket);
  curl_easy_setopt(c, CURLOPT_OPENSOCKETDATA, t);
  curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take);
  curl_easy_setopt(c, CURLOPT_WRITEDATA, t);
  curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, progress);
  curl_easy_setopt(c, CURLOPT_XFERINFODATA, t);
  curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
  if (resolve) curl_easy_setopt(c, CURLOPT_RESOLVE, resolve);
}

/* May this address be asked at all? Sets t->exempt. */
static int check_address(CURLU *u, struct transfer *t, struct err *e) {
  char *scheme = NULL, *host = NULL, *port = NULL, *user = NULL, *password = NULL;
  int rc = -1;
  int64_t number = 0;
  if (curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) || curl_url_get(u, CURLUPART_HOST, &host, 0) ||
      curl_url_get(u, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) || !str_to_i64(str_c(port), 1, 65535, &number)) {
    err_set(e, ERR_BAD_INPUT, "expected an address like https://example.org/picture.png");
    goto done;
  }
  curl_url_get(u, CURLUPART_USER, &user, 0);
  curl_url_get(u, CURLUPART_PASSWORD, &password, 0);
  t->exempt = is_allowed(t->o->allow, host, (long)number);
  if (strcmp(scheme, "http") && strcmp(scheme, "https")) err_set(e, ERR_BAD_INPUT, "expected http or https in an address");
  else if (user || password) err_set(e, ERR_BAD_INPUT, "expected no user name and no password in an address");
  else if (!t->exempt && !t->o->any) err_set(e, ERR_BAD_INPUT, "this server fetches from some hosts only, and this is none of them");
  else if (!t->exempt && !is_web_port((long)number))
    err_set(e, ERR_BAD_INPUT, "expected port 80 or 443 in an address, found %d", (int)number);
  else rc = 0;
done:
  curl_free(scheme);
  curl_free(host);
  curl_free(port);
  curl_free(user);
  curl_free(password);
  return rc;
}

static int fail_transfer(const struct transfer *t, CURLcode code, struct err *e) {
  if (t->too_large) return err_set(e, ERR_TOO_LARGE, "expected at most %zu bytes behind this address, found more", t->o->max_bytes);
  if (t->closed) return err_set(e, ERR_BAD_INPUT, "expected an address that is public on the internet");
  if (t->o->stop && t->o->stop(t->o->ctx)) return err_set(e, ERR_CANCELLED, "the caller gave up");
  if (code == CURLE_OPERATION_TIMEDOUT) return err_set(e, ERR_BAD_INPUT, "the address did not answer within %d ms", t->o->timeout_ms);
  return err_set(e, ERR_BAD_INPUT, "the address could not be fetched: %s", curl_easy_strerror(code));
}

/* 0 and the body, or 1 and the address that it redirects to (owned), or -1 and *e. */
static int transfer_once(struct transfer *t, const char *url, struct curl_slist *resolve, char **to, struct err *e) {
  CURL *c = curl_easy_init();
  long status = 0;
  char *location = NULL;
  int rc = -1;
  if (!c) return err_set(e, ERR_NO_MEMORY, "no memory for a transfer");
  t->looked_up = false;
  set_options(c, t, url, resolve);
  buf_clear(t->out);
  CURLcode code = curl_easy_perform(c);
  if (code != CURLE_OK) {
    fail_transfer(t, code, e);
    goto done;
  }
  curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status);
  curl_easy_getinfo(c, CURLINFO_REDIRECT_URL, &location);
  if (status == 200) {
    rc = 0;
  } else if (status >= 300 && status < 400 && location) {
    *to = xstrdup(location);
    rc = 1;
  } else {
    err_set(e, ERR_BAD_INPUT, "the address answered %ld", status);
  }
done:
  curl_easy_cleanup(c);
  return rc;
}

/* One address: transfer_once, if it may be asked. */
static int follow(struct transfer *t, const char *url, struct curl_slist *resolve, char **to, struct err *e) {
  CURLU *u = curl_url();
  int rc = -1;
  if (!u || strlen(url) > FETCH_URL_BYTES_MAX || curl_url_set(u, CURLUPART_URL, url, 0))
    err_set(e, ERR_BAD_INPUT, "expected an address like https://example.org/picture.png");
  else if (check_address(u, t, e) == 0)
    rc = clock_ns() < t->deadline_ns ? transfer_once(t, url, resolve, to, e) : fail_transfer(t, CURLE_OPERATION_TIMEDOUT, e);
  curl_url_cleanup(u);
  return rc;
}

int fetch(struct str url, const struct fetch_options *o, struct buf *out, struct err *e) {
  struct transfer t = {.o = o, .out = out, .deadline_ns = clock_ns() + (int64_t)o->timeout_ms * 1000000};
  if (url.n > FETCH_URL_BYTES_MAX) return err_set(e, ERR_TOO_LARGE, "expected an address of at most %d bytes", FETCH_URL_BYTES_MAX);
  pthread_once(&curl_once, curl_begin);
  char *at = xstrndup(url.p, url.n);
  struct curl_slist *resolve = resolve_list(o->resolve);
  int rc = 1;
  for (int hop = 0; rc == 1 && hop <= FETCH_REDIRECTS_MAX; hop++) {
    char *next = NULL;
    rc = follow(&t, at, resolve, &next, e);
    if (next) {
      free(at);
      at = next;
    }
  }
  if (rc == 1) rc = err_set(e, ERR_BAD_INPUT, "the address redirects more than %d times", FETCH_REDIRECTS_MAX);
  curl_slist_free_all(resolve);
  free(at);
  if (rc < 0) buf_clear(out);
  return rc;
}
