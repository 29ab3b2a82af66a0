/* url.h — a server that speaks OpenAI's or SGLang's API over HTTP, through libcurl.
 *
 * Rules
 *   1. Redirects are not followed and nothing is kept between runs: the key goes to the address that was given, and nowhere else.
 *   2. Asked again, with longer and longer pauses: no connection, no answer in time, 408, 429, 5xx. Any other refusal is one.
 *   3. Messages carry what the server said, made printable and cut.
 */
#ifndef CYGNET_EVAL_URL_H
#define CYGNET_EVAL_URL_H

#include <curl/curl.h>
#include <jansson.h>

#include "base/buf.h"
#include "base/err.h"

struct url {
  char *base;             /* owned; without a slash or /v1 at its end */
  const char *key;        /* NULL: none */
  int timeout_s, retries; /* of one request; how often it is asked again */
  bool (*stopped)(void);  /* asked a few times a second; may be NULL */
};
/* http:// or https://, with or without /v1 at its end. option: who gave it, for messages ("--url"). */
int url_init(struct url *u, const char *option, const char *address, struct err *e);
void url_free(struct url *u);

/* One request on its way, for the multi interface or alone. */
struct transfer {
  CURL *curl; /* owned */
  struct curl_slist *headers;
  struct buf body, reply;
  char error[CURL_ERROR_SIZE];
};
/* body NULL: GET. Takes the body's memory. */
void transfer_open(struct transfer *t, const struct url *u, const char *path, struct buf *body);
void transfer_close(struct transfer *t);
/* How it went: 1 *reply is what came (owned); 0 it is worth asking again after *pause_ms at least; -1 refused. *e is set but for 1. */
int transfer_result(struct transfer *t, CURLcode code, json_t **reply, int *pause_ms, struct err *e);
/* Pause before try number n (from 1), at least what the server asked for. */
int url_pause_ms(int n, int at_least_ms);

/* Asks and waits, with retries. NULL and *e. */
json_t *url_call(const struct url *u, const char *path, const json_t *body, struct err *e);
/* The first name that /v1/models has, owned. NULL and *e. */
char *url_model(const struct url *u, struct err *e);

#endif
