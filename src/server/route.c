/* route.c — the table of routes, and who may use them. */
#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

#include "server/access.h"
#include "server/multipart.h"
#include "server/serve_impl.h"

struct route {
  const char *methods;           /* with commas between, as Allow wants them; HEAD comes with GET */
  const char *path;              /* a path that ends in / stands for what is below it, too; "/" only for itself */
  const struct dialect *dialect; /* answered through the prep thread, or */
  void (*handle)(struct serve *s, struct http_exchange *x); /* at once */
  enum access_level access;
  const char *what; /* for docs/reference.md */
};

static const struct route routes[] = {
    {"GET", "/health", NULL, ops_health, ACCESS_PUBLIC, "200 while requests are welcome"},
    {"GET", "/health_generate", &dialect_health_generate, NULL, ACCESS_PUBLIC, "200 when the engine produces tokens"},
    {"GET", "/ping", NULL, ops_ping, ACCESS_PUBLIC, "200, always"},
    {"GET", "/metrics", NULL, ops_metrics, ACCESS_USE, "Prometheus' text format"},
    {"GET", "/", NULL, ops_page, ACCESS_USE, "the chat page"},
    {"GET", "/v1/models", NULL, ops_models, ACCESS_USE, "the model served, and what it takes"},
    {"GET", "/v1/models/", NULL, ops_model, ACCESS_USE, "the same for one name"},
    {"POST", "/v1/chat/completions", &dialect_chat, NULL, ACCESS_USE, "OpenAI: conversations"},
    {"POST", "/v1/completions", &dialect_completion, NULL, ACCESS_USE, "OpenAI: texts to continue"},
    {"POST", "/v1/responses", &dialect_responses, NULL, ACCESS_USE, "OpenAI: responses"},
    {"POST", "/v1/audio/transcriptions", &dialect_transcribe, NULL, ACCESS_USE, "OpenAI: speech to text"},
    {"POST", "/v1/messages", &dialect_anthropic, NULL, ACCESS_USE, "Anthropic: conversations"},
    {"POST", "/v1/messages/count_tokens", &dialect_count_tokens, NULL, ACCESS_USE, "Anthropic: how long a prompt would be"},
    {"POST, PUT", "/generate", &dialect_generate, NULL, ACCESS_USE, "SGLang: one prompt or a batch"},
    {"POST", "/tokenize", &dialect_tokenize, NULL, ACCESS_USE, "text or messages to tokens"},
    {"POST", "/v1/tokenize", &dialect_tokenize, NULL, ACCESS_USE, "the same"},
    {"POST", "/detokenize", &dialect_detokenize, NULL, ACCESS_USE, "tokens to text"},
    {"POST", "/v1/detokenize", &dialect_detokenize, NULL, ACCESS_USE, "the same"},
    {"POST", "/apply-template", &dialect_apply_template, NULL, ACCESS_USE, "messages to the prompt that the model would get"},
    {"GET", "/get_model_info", NULL, ops_model_info, ACCESS_USE, "what is served"},
    {"GET", "/model_info", NULL, ops_model_info, ACCESS_USE, "the same"},
    {"GET", "/server_info", NULL, ops_server_info, ACCESS_USE, "options, sizes, memory, counters"},
    {"GET", "/get_server_info", NULL, ops_server_info, ACCESS_USE, "the same"},
    {"GET", "/get_load", NULL, ops_loads, ACCESS_USE, "load in short"},
    {"GET", "/v1/loads", NULL, ops_loads, ACCESS_USE, "load, for balancers"},
    {"GET, POST", "/flush_cache", &dialect_flush, NULL, ACCESS_ADMIN, "forget the prefix cache"},
    {"POST", "/abort_request", NULL, ops_abort, ACCESS_ADMIN, "end requests"},
};

bool serve_route(int i, struct serve_route *out) {
  static const char *const keys[] = {[ACCESS_PUBLIC] = "none", [ACCESS_USE] = "API key", [ACCESS_ADMIN] = "admin key"};
  if (i < 0 || i >= (int)ARRAY_LEN(routes)) return false;
  *out = (struct serve_route){.methods = routes[i].methods, .path = routes[i].path, .key = keys[routes[i].access], .what = routes[i].what};
  return true;
}

static const struct route *route_find(struct str path) {
  for (size_t i = 0; i < ARRAY_LEN(routes); i++) {
    size_t n = strlen(routes[i].path);
    if (str_is(path, routes[i].path) && (n == 1 || routes[i].path[n - 1] != '/')) return &routes[i];
    if (n > 1 && routes[i].path[n - 1] == '/' && path.n > n && str_starts(path, routes[i].path)) return &routes[i];
  }
  return NULL;
}

static bool method_is_right(const struct route *r, struct str method) {
  if (str_is(method, "HEAD")) method = str_c("GET");
  for (const char *p = r->methods; *p; p += strspn(p, ", ")) {
    size_t n = strcspn(p, ",");
    if (method.n == n && memcmp(p, method.p, n) == 0) return true;
    p += n;
  }
  return false;
}

/* ---- who may ---------------------------------------------------------------------------------------------------------- */

/* The keys of the options: those that were read at start, or the two that stand there. */
static int check_access(const struct serve *s, const struct http_exchange *x, enum access_level level) {
  struct access two = {0};
  const struct access *a = s->options.access;
  struct str shown[2] = {{0}, {0}};
  int count;
  struct str value = http_head_find(&x->head, "Authorization", &count);
  if (count == 1 && value.n > 7 && strncasecmp(value.p, "Bearer ", 7) == 0) shown[0] = str_of(value.p + 7, value.n - 7);
  value = http_head_find(&x->head, "X-Api-Key", &count);
  if (count == 1 && value.n) shown[1] = value;
  unsigned char digest[DIGEST_BYTES];
  if (!a) {
    const char *key = s->options.api_key, *admin = s->options.admin_key;
    if (key) digest_sha256(key, strlen(key), digest);
    if (admin) digest_sha256(admin, strlen(admin), two.admin);
    two.keys = &digest;
    two.n_keys = key != NULL;
    two.has_admin = admin != NULL;
    a = &two;
  }
  return access_check(a, level, shown, 2);
}

static bool is_listed(struct str name, const char *list) {
  for (const char *p = list; p && *p;) {
    size_t n = strcspn(p, ",");
    if (n == name.n && n && strncasecmp(p, name.p, n) == 0) return true;
    p += n + (p[n] == ',');
  }
  return false;
}

/* Rule 3 of serve.h. */
static bool host_allowed(const struct serve *s, struct str host) {
  char name[260];
  unsigned char address[16];
  if (!s->loopback_only && !s->options.allowed_hosts) return true;
  if (!host.n) return true; /* HTTP/1.0: no browser */
  const char *end;
  if (host.p[0] == '[') {
    end = memchr(host.p, ']', host.n);
    if (!end) return false;
    host = str_of(host.p + 1, (size_t)(end - host.p - 1));
  } else if ((end = memchr(host.p, ':', host.n))) {
    host.n = (size_t)(end - host.p);
  }
  if (host.n >= sizeof name) return false;
  memcpy(name, host.p, host.n);
  name[host.n] = 0;
  if (inet_pton(AF_INET, name, address) == 1 || inet_pton(AF_INET6, name, address) == 1) return true;
  return strcasecmp(name, "localhost") == 0 || is_listed(host, s->options.allowed_hosts);
}

/* True when a page of this origin may read the answer: x->extra says so. */
static bool cors(const struct serve *s, struct http_exchange *x) {
  struct str origin = http_head_find(&x->head, "Origin", NULL);
  const char *allowed = s->options.cors_origin;
  if (!allowed) return false;
  bool may = origin.n && (!strcmp(allowed, "*") || str_is(origin, allowed));
  http_add_header(x, "Vary: Origin"); /* also of answers without: they may be kept in a cache */
  if (!may) return false;
  http_add_header(x, "Access-Control-Allow-Origin: %s", allowed);
  http_add_header(x, "Access-Control-Expose-Headers: x-request-id");
  return true;
}

static void preflight(struct http_exchange *x) {
  http_add_header(x, "Access-Control-Allow-Methods: GET, POST");
  http_add_header(x, "Access-Control-Allow-Headers: "
                     "authorization, content-type, x-api-key, x-request-id, anthropic-version, anthropic-beta");
  http_add_header(x, "Access-Control-Max-Age: 600");
  http_reply(x, 204, NULL, NULL, 0);
}

/* ---- the two moments of a request -------------------------------------------------------------------------------------- */

static bool is_json(struct str type) {
  const char *end = memchr(type.p ? type.p : "", ';', type.n);
  if (end) type.n = (size_t)(end - type.p);
  while (type.n && (type.p[type.n - 1] == ' ' || type.p[type.n - 1] == '\t')) type.n--;
  return type.n == 16 && strncasecmp(type.p, "application/json", 16) == 0;
}

/* Rule 4 of serve.h; and who sends no body need not say what it is. */
static bool wants_no_json(const struct route *r, const struct http_head *h) {
  if (!str_is(h->method, "POST") && !str_is(h->method, "PUT")) return true;
  bool no_body = h->content_length <= 0 && !h->chunked, from_page = http_head_find(h, "Origin", NULL).n > 0;
  return r->dialect && r->dialect->empty_body && no_body && !from_page;
}

/* Browsers say so themselves, also for an <img> that only wants to do harm. */
static bool from_a_web_page(const struct http_head *h) {
  struct str site = http_head_find(h, "Sec-Fetch-Site", NULL);
  return str_is(site, "cross-site") || str_is(site, "same-site");
}

/* A form of any page can send multipart/form-data, and a browser says whose page it was. */
static bool from_another_origin(const struct serve *s, const struct http_head *h) {
  struct str origin = http_head_find(h, "Origin", NULL);
  const char *allowed = s->options.cors_origin;
  if (from_a_web_page(h) && !allowed) return true;
  if (!origin.n || (allowed && (!strcmp(allowed, "*") || str_is(origin, allowed)))) return false;
  const char *slashes = memmem(origin.p, origin.n, "://", 3);
  if (!slashes) return true;
  struct str host = str_of(slashes + 3, origin.n - (size_t)(slashes + 3 - origin.p));
  return host.n != h->host.n || strncasecmp(host.p, h->host.p, host.n) != 0;
}

/* What a body has to be. */
static void check_type(struct serve *s, struct http_exchange *x, const struct route *r) {
  struct str type = http_head_find(&x->head, "Content-Type", NULL);
  char boundary[MULTIPART_BOUNDARY_MAX + 1];
  bool in_parts = r->dialect && r->dialect->in_parts;
  if (in_parts && from_another_origin(s, &x->head))
    serve_reply_error(x, 403, "cross_site", "a page of another site may not use %s", r->path);
  else if (in_parts && !multipart_boundary(type, boundary))
    serve_reply_error(x, 400, "invalid_content_type", "expected the header \"Content-Type: multipart/form-data\" with a boundary");
  else if (!in_parts && !wants_no_json(r, &x->head) && !is_json(type))
    serve_reply_error(x, 400, "invalid_content_type", "expected the header \"Content-Type: application/json\"");
  else if (r->dialect && !str_is(x->head.method, "GET") && s->n_calls >= s->options.calls_max)
    serve_reply_busy(s, x); /* a probe needs no place */
}

void route_head(void *ctx, struct http_exchange *x) {
  struct serve *s = ctx;
  const struct http_head *h = &x->head;
  char shown[200];
  if (!host_allowed(s, h->host)) {
    serve_reply_error(x, 403, "host_not_allowed",
                      "this server does not answer to the name %s; start it with --allowed-hosts to change that",
                      str_escape(h->host, shown, sizeof shown));
    return;
  }
  if (cors(s, x) && str_is(h->method, "OPTIONS")) {
    preflight(x);
    return;
  }
  const struct route *r = route_find(h->path);
  int refused = check_access(s, x, r ? r->access : ACCESS_USE);
  if (refused == 401 && r && r->handle == ops_page && method_is_right(r, h->method)) {
    ops_page_locked(s, x); /* a browser cannot send a key with the address of a page: the page asks for it */
    return;
  }
  if (refused == 401) {
    serve_reply_error(x, 401, "invalid_api_key", "expected the header \"Authorization: Bearer KEY\" with %s",
                      r && r->access == ACCESS_ADMIN ? "the key for this route" : "this server's API key");
    return;
  }
  if (refused) {
    serve_reply_error(x, refused, "admin_key_required", "expected the admin key: an API key is not enough for what concerns other users");
    return;
  }
  if (!r) {
    serve_reply_error(x, 404, "not_found", "there is nothing at %s", str_escape(h->path, shown, sizeof shown));
    return;
  }
  if (!method_is_right(r, h->method)) {
    http_add_header(x, "Allow: %s", r->methods);
    serve_reply_error(x, 405, "method_not_allowed", "expected the method %s at %s", r->methods, r->path);
    return;
  }
  if (s->draining && r->handle != ops_health) {
    serve_reply_error(x, 503, "busy", "the server is shutting down");
    return;
  }
  if (r->access == ACCESS_ADMIN && from_a_web_page(h)) {
    serve_reply_error(x, 403, "cross_site", "a page of another site may not use %s", r->path);
    return;
  }
  check_type(s, x, r);
}

const struct dialect *route_dialect(const struct http_exchange *x) {
  const struct route *r = route_find(x->head.path);
  return r ? r->dialect : NULL;
}

void route_request(void *ctx, struct http_exchange *x) {
  struct serve *s = ctx;
  const struct route *r = route_find(x->head.path);
  CHECK(r); /* route_head answered the others */
  if (r->dialect) serve_call(s, x, r->dialect);
  else r->handle(s, x);
}
