/* serve.h — the server: HTTP in front of one engine.
 *
 * Routes (route.c has the table)
 *   OpenAI      POST /v1/chat/completions, /v1/completions, /v1/responses, /v1/audio/transcriptions   GET /v1/models, /v1/models/{id}
 *   Anthropic   POST /v1/messages, /v1/messages/count_tokens
 *   SGLang      POST /generate, /abort_request, /flush_cache                GET /health, /health_generate, /get_model_info, /server_info, /v1/loads
 *   more        POST /tokenize, /detokenize, /apply-template                GET /metrics, / (chat page)
 *
 * Rules
 *   1. Every error body is {"error":{"message","type","param","code"}}, whatever the route.
 *   2. With API keys every request needs "Authorization: Bearer KEY" (or "x-api-key: KEY", as Anthropic's clients send it), also for paths that do
 *      not exist. The chat page comes with the 401, holds no secret and asks for the key. Public: /health, /health_generate and /ping alone. With an
 *      admin key the routes that act on others (/flush_cache, /abort_request) want that one, and only that (403 for an API key); with an admin key
 *      alone the other routes are open.
 *   3. No CORS header is sent unless cors_origin says so. A server that listens on a loopback address answers only to Host names that are IP
 *      addresses, localhost, or in allowed_hosts, so that a web page cannot reach it through a name of its own.
 *   4. POST wants Content-Type: application/json (which a web page of another origin cannot send unasked), unless it has no body and needs
 *      none; a route for files wants multipart/form-data, which such a page can send, so there an Origin that is neither ours nor allowed
 *      is refused. What acts on others is refused to pages of other sites by what browsers say of themselves (Sec-Fetch-Site).
 *   5. serve_stop once: new requests get 503, running ones go on; after grace_ms the rest get an error object. Twice: ends at once.
 *      An engine that has lost its device (cygnet_lost) stops the server in the same way.
 *   6. The model field of a request is not compared with the served name; answers carry the served name.
 */
#ifndef CYGNET_SERVE_H
#define CYGNET_SERVE_H

#include "base/err.h"
#include "cygnet.h"
#include "server/http.h"

struct access;
struct media_limits; /* media.h */

struct serve_options {                    /* zero = the value in brackets; strings are borrowed while the server lives */
  const char *host;                       /* ["127.0.0.1"] */
  int port;                               /* [any free one] */
  const char *api_key;                    /* [open] */
  const char *admin_key;                  /* [see rule 2] */
  const struct access *access;            /* [the two keys above] in their place: any number of keys (access.h) */
  struct http_tls tls;                    /* [plain HTTP] */
  int prep_threads;                       /* [2] that parse, render and tokenise */
  bool log_requests;                      /* a line for each request at its end */
  const char *model_name;                 /* [the model's own] name in answers and /v1/models */
  const char *cors_origin;                /* [none] "*" or one origin */
  const char *allowed_hosts;              /* [see rule 3] names, comma between */
  int calls_max;                          /* [1024] requests in the house; more get 503 */
  int choices_max;                        /* [128] n times the number of prompts in one request */
  int grace_ms;                           /* [30 s] see rule 5; -1: none */
  int health_ms;                          /* [20 s] how long /health_generate waits for the engine */
  const struct cygnet_sampling *sampling; /* [temperature 1] for what a request leaves out */
  const char *options_json;               /* [none] JSON object with the options the program was started with, for /server_info */
  struct http_limits limits;
  const struct media_limits *media; /* [its defaults] what pictures and sounds may cost and where they may come from */
  bool quiet;                       /* nothing on stderr but warnings */
};

/* Row i of the table of routes, for pages about the program; false behind the last one. */
struct serve_route {
  const char *methods, *path, *key, *what; /* "GET, POST"; "/generate"; "API key"; a few words */
};
bool serve_route(int i, struct serve_route *out);

bool serve_is_loopback(const char *host); /* nobody outside of this machine reaches it */

/* Serves until SIGTERM or SIGINT. Returns 0, or -1 and *e when it cannot start, or stopped because the engine lost its device. The engine is
 * used by a thread of the server meanwhile. */
int serve_run(struct cygnet *c, const struct serve_options *o, struct err *e);

/* The same in steps, and with any engine. */
struct serve;
struct port;
struct serve *serve_open(const struct port *port, const struct serve_options *o, struct err *e); /* listens; returns owned */
int serve_port(const struct serve *s);
void serve_loop(struct serve *s);  /* until stopped, on the calling thread */
void serve_stop(struct serve *s);  /* any thread, see rule 5 */
void serve_close(struct serve *s); /* after serve_loop */

#endif
