/* pull.h — files from a Hugging Face-style hub, through libcurl. For `cygnet pull` alone: nothing else asks the network for models.
 *
 *   GET HUB/api/models/REPO/tree/REVISION?recursive=true    what there is: paths, sizes, digests; page after page
 *   GET HUB/REPO/resolve/REVISION/PATH                      a file, mostly by a redirect to another host
 *
 * Rules
 *   1. The token goes to the hub's own scheme, host and port, and never on with a redirect elsewhere; over plain http only to this machine.
 *   2. What comes is written to FILE.part and gets its name when its size is right and its digest is the hub's: the SHA-256 of large files, the
 *      SHA-1 that git gives small ones. FILE.part.etag says which version of the file a part belongs to.
 *   3. A cut transfer goes on where it ended, in the same run and in a later one. Nothing is deleted but FILE.part.etag: a file that differs is kept
 *      as FILE.old, bytes with a wrong digest as FILE.wrong.
 *   4. Asked again, with longer and longer pauses that begin anew with each byte that comes: no connection, a cut or silent one, 408, 429, 5xx.
 *   5. `stopped` is asked a few times a second, whatever goes on.
 */
#ifndef CYGNET_PULL_H
#define CYGNET_PULL_H

#include <curl/curl.h>

#include "hub.h"

enum { PULL_ETAG_BYTES = 200 };

struct hub {
  const struct hub_name *name;
  char *endpoint;       /* owned; without a slash at its end */
  char *token;          /* owned; NULL: none */
  CURL *curl;           /* owned: one connection after the other */
  int retries, quiet_s; /* how often in a row without a byte; how long nothing may come */
  bool quiet;           /* no sentences about what goes on */
  bool (*stopped)(void);
};
/* Endpoint and token from the environment: HF_ENDPOINT; HF_TOKEN, HF_TOKEN_PATH, HF_HOME. The caller sets the rest. */
int hub_open(struct hub *h, const struct hub_name *name, struct err *e);
void hub_close(struct hub *h);

enum pull_digest { PULL_UNKNOWN, PULL_SHA256, PULL_GIT };

struct pull_file {
  char *path; /* owned; plain (hub_is_plain_path) */
  uint64_t size;
  enum pull_digest kind;
  char digest[65]; /* hexadecimal */
};
struct pull_list {
  struct pull_file *v; /* owned, and each path */
  size_t n;
  size_t n_odd; /* left out: their names are no plain paths */
};
int pull_list(struct hub *h, struct pull_list *out, struct err *e);
void pull_list_free(struct pull_list *l);

/* What the progress line shows of all files together. */
struct pull_progress {
  bool shown; /* on a terminal */
  uint64_t done, total;
  size_t number, n_files;
  const char *name;
  double rate;   /* bytes a second, of the last seconds */
  uint64_t mark; /* what came until mark_ns */
  uint64_t came; /* over the network, in all */
  int64_t mark_ns, drawn_ns;
};
void pull_progress_draw(struct pull_progress *p, bool now);
void pull_progress_clear(const struct pull_progress *p);

/* One answer's head, as far as it matters here. */
struct pull_head {
  long status;
  bool elsewhere;             /* it came from another host than the hub */
  char etag[PULL_ETAG_BYTES]; /* "": none, or a weak one */
  char linked[80];            /* X-Linked-ETag of the hub's answer, without quotes */
  char range[80];             /* Content-Range */
  char next[1024];            /* Link: the next page */
  char error_code[40];        /* X-Error-Code */
};
/* Who takes an answer's body. begin is told its head first, and may refuse; take gets its bytes. Both: 0, or -1 and *e, which ends it for good. */
struct pull_sink {
  int (*begin)(void *ctx, const struct pull_head *head, struct err *e);
  int (*take)(void *ctx, const char *p, size_t n, struct err *e);
  void *ctx;
};
/* One GET, redirects followed. 1: all of the body came; 0: worth asking again, after *pause_ms at least; -1: refused or stopped. *e but for 1. */
int pull_get(struct hub *h, const char *url, const char *range, const char *if_range, const struct pull_sink *sink, int *pause_ms,
             struct err *e);
/* Waits before try number n (from 1) after *e, and says so. false: stopped. */
bool pull_pause(const struct hub *h, int n, int at_least_ms, const struct err *e);

/* How much of the file lies in the folder already. *whole: under its name with its size; else in FILE.part. */
uint64_t pull_here(const char *folder, const struct pull_file *f, bool *whole);
/* The file into the folder, which exists. 0, or -1 and *e. */
int pull_file(struct hub *h, const char *folder, const struct pull_file *f, struct pull_progress *p, struct err *e);
/* An empty FILE.part where there is neither the file nor a part of it: until it is whole the folder shows what is missing. */
int pull_announce(const char *folder, const struct pull_file *f, struct err *e);

#endif
