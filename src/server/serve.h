/* serve.h — the server: HTTP in front of one engine.
 *
 * Routes (route.c has the table)
 *   GET  /                     chat page              GET  /v1/models, /v1/models/{id}
 *   GET  /health               200, or 503            POST /v1/chat/completions, /v1/completions
 *   GET  /get_model_info, /model_info                 POST /tokenize, /v1/tokenize
 *   GET  /server_info, /get_server_info               POST /detokenize, /v1/detokenize
 *
 * Rules
 *   1. Every error body is {"error":{"message","type","param","code"}}, whatever the route.
 *   2. With an API key every request needs "Authorization: Bearer KEY", also for paths that do not exist and for the chat page. Public: /health alone.
 *   3. No CORS header is sent unless cors_origin says so. A server that listens on a loopback address answers only to Host names that are IP
 *      addresses, localhost, or in allowed_hosts, so that a web page cannot reach it through a name of its own.
 *   4. POST wants Content-Type: application/json (which a web page of another origin cannot send unasked).
 *   5. serve_stop once: new requests get 503, running ones go on; after grace_ms the rest get an error object. Twice: ends at once.
 *   6. The model field of a request is not compared with the served name; answers carry the served name.
 */
#ifndef CYGNET_SERVE_H
#define CYGNET_SERVE_H

#include "base/err.h"
#include "cygnet.h"
#include "server/http.h"

struct serve_options {                    /* zero = the value in brackets; strings are borrowed while the server lives */
  const char *host;                       /* ["127.0.0.1"] */
  int port;                               /* [any free one] */
  const char *api_key;                    /* [open] */
  const char *model_name;                 /* [the model's own] name in answers and /v1/models */
  const char *cors_origin;                /* [none] "*" or one origin */
  const char *allowed_hosts;              /* [see rule 3] names, comma between */
  int calls_max;                          /* [1024] requests in the house; more get 503 */
  int choices_max;                        /* [128] n times the number of prompts in one request */
  int grace_ms;                           /* [30 s] see rule 5; -1: none */
  const struct cygnet_sampling *sampling; /* [temperature 1] for what a request leaves out */
  const char *options_json;               /* [none] JSON object with the options the program was started with, for /server_info */
  struct http_limits limits;
  bool quiet; /* no lines on stderr */
};

/* Serves until SIGTERM or SIGINT. Returns 0, or -1 and *e when it cannot start. The engine is used by a thread of the server meanwhile. */
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
