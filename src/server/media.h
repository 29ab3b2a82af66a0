/* media.h — pictures and sounds of a request: where their bytes come from, what they may cost, and which placeholder each belongs to. Prep
 * threads.
 *
 *   parts of messages ──media_collect──► struct media_list ──media_load──► job.media ──media_match──► prompt.media, by placeholders
 *
 * Rules
 *   1. A part says where its bytes are: a data: address, bare base64, http(s) where the operator allows it, file:// below the operator's
 *      folder. What the bytes are is decided by looking at them; types and names that came along are not believed.
 *   2. Everything is read and decoded before anything is computed. An error names the message and the part, and is the same each time.
 *   3. Memory is bounded: items of a request, bytes of an item, bytes of all that is held for all requests (503 beyond).
 *   4. Pictures and sounds each keep their order. A prompt has exactly one placeholder for each.
 */
#ifndef CYGNET_SERVER_MEDIA_H
#define CYGNET_SERVER_MEDIA_H

#include "server/params.h"

struct media_limits {       /* zero = the value in brackets */
  int items;                /* [16] pictures and sounds of a request */
  size_t item_bytes;        /* [32 MiB] as they come */
  size_t total_bytes;       /* [1 GiB] held for all requests */
  bool urls;                /* [no] http(s) addresses of public hosts */
  const char *allow;        /* [none] hosts that may be fetched from, public or not: fetch.h */
  const char *path;         /* [none] file:// below this folder */
  int timeout_ms;           /* [10 s] for all addresses of a request */
  const char *resolve_test; /* [names are looked up] fetch.h */
};

struct media_house {
  struct media_limits limits;
  int folder; /* descriptor of limits.path; -1: none */
  char *path; /* limits.path without links; owned */
  atomic_size_t held_bytes;
  atomic_uint_least64_t n_fetched; /* addresses fetched from */
};
int media_house_open(struct media_house *h, const struct media_limits *l, struct err *e);
void media_house_close(struct media_house *h); /* also after an open that failed */

struct media_item {
  enum cygnet_media_kind kind;
  struct str where; /* an address or base64; borrowed from the body */
  int max_tokens;   /* as in cygnet_media_options */
  char place[96];   /* "messages[1].content[0]" */
};
struct media_list {
  struct media_item *v; /* owned */
  int n;
};
void media_list_free(struct media_list *list);

/* max_soft_tokens and mm_processor_kwargs {"max_soft_tokens"} of a request → *budget, 0: not given. */
void media_budget(struct params *p, const struct api *a, int *budget);
/* All pictures and sounds of messages in OpenAI's form; errors are about the field param. A part's own "place" counts for more than where
 * it stands. */
void media_collect(struct params *p, const struct api *a, const json_t *messages, const char *param, int budget, struct media_list *list);
/* One that is a string or {"url"}; place is copied. */
void media_add(struct params *p, const struct api *a, enum cygnet_media_kind kind, const json_t *where, int budget, const char *param,
               const char *place, struct media_list *list);
/* What a renderer has to know of such parts: messages (changed) without their bytes. */
void media_strip(json_t *messages);

/* Reads and decodes all; c->job.media has them. param: what an error is about. */
int media_load(const struct api *a, struct call *c, const struct media_list *list, const char *param, struct api_error *e);
/* A sound that came as a file, in pieces of equal length of at most `seconds`; job.seconds is the whole's. Their number, which beyond n_max
 * is just told, or -1. */
int media_load_pieces(const struct api *a, struct call *c, struct str bytes, int seconds, int n_max, const char *param,
                      struct api_error *e);
/* Of job.media those from `first` on, n of them, to the placeholders of t. */
int media_match(const struct api *a, struct job *j, struct job_prompt *t, int first, int n, const char *param, struct api_error *e);
void media_free(const struct api *a, struct job *j);

#endif
